"""Array modules: the one seam between probtorch and the memory its arrays live in.

`registry.py` is the door; `numpy_.py` and `cupy_.py` answer the same few questions for the CPU and
for CUDA devices. Code above this floor asks `array_module(array)` and writes `xp.exp(array)`.
"""

from probtorch.backends import cudnn
from probtorch.backends.others import cuda, mkl, mkldnn, mps, openmp

__all__ = ["cuda", "cudnn", "mkl", "mkldnn", "mps", "openmp"]
