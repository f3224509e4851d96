"""Derivatives of incomplete gamma and beta functions and of von Mises angles: eager formulas.

They are those of ops/incomplete.py and its users; here the nodes of the quadrature are the vector.
"""

import functools

from probtorch.compiler.lang.function import KernelRoutine
from probtorch.ops.incomplete import gamma_tail
from probtorch.ops.special.incomplete_beta import slope_in_shapes
from probtorch.ops.special.incomplete_gamma import slope_in_shape
from probtorch.ops.variates import angle_slope

__all__ = ["INCOMPLETE"]

_TWO, _THREE = "double double", "double double double"

INCOMPLETE = {"pt_von_mises_slope": KernelRoutine(angle_slope, _TWO)}
for _k in (1, 2):
    INCOMPLETE |= {
        f"pt_gamma_log_implicit_{_k}": KernelRoutine(functools.partial(gamma_tail, order=_k), _TWO),
        f"pt_gammainc_grad_a_{_k}": KernelRoutine(
            functools.partial(slope_in_shape, order=_k), _TWO
        ),
    }
for _i, _j in ((1, 0), (0, 1), (2, 0), (1, 1), (0, 2)):
    _formula = functools.partial(slope_in_shapes, order=(_i, _j))
    INCOMPLETE[f"pt_betainc_grad_{_i}{_j}"] = KernelRoutine(_formula, _THREE)
