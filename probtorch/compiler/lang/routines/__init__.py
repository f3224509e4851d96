"""Functions written in the kernel language: each once, for every target.

`elementary.py` has exp, log and their kin for vectors on a processor; `philox.py` random bits;
`special.py` and `zeta.py` the special functions that CUDA (and for zeta SciPy) lacks; `draws.py`
the samplers of ops/rejection.py, `incomplete.py` the integrals of ops/incomplete.py.
"""
