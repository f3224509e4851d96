"""Intrinsics: the scalar functions formulas may use, one row each with its spelling per target.

A formula is written once over an algebra `s`; `s.exp(x)` means a NumPy call when an array is
passed, a line of LLVM IR in the CPU renderer, a line of CUDA C in the GPU renderer. Adding a row
here makes the name available to all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from probtorch.backends.registry import array_module, device_of, special, to_device, to_host
from probtorch.core.philox import bits_to_uniform, philox_bits

# Formulas are given numbers beside arrays.
_Given = TypeVar("_Given", np.ndarray, float)

__all__ = ["INTRINSICS", "Intrinsic", "NumpyAlgebra", "numpy_algebra"]

# Up to here Python integers (5 us a draw) beat NumPy's fixed cost.
_FEW_DRAWS = 16


@dataclass(frozen=True)
class Intrinsic:
    """One scalar function.

    `numpy` is a NumPy function name or "special.NAME" for SciPy's; `llvm` is "llvm.NAME" for an
    LLVM intrinsic, "pt.NAME" for the vector runtime, "libm.NAME" for the C library, "scipy.NAME"
    for a pointer from compiler/native/library.py; `cuda` is the CUDA C function. `result` is
    "same" or "bool".
    """

    name: str
    numpy: str
    llvm: str
    cuda: str
    arity: int = 1
    result: str = "same"


def _rows(text: str) -> dict[str, Intrinsic]:
    out = {}
    for line in text.strip().splitlines():
        name, numpy_, llvm, cuda, *rest = line.split()
        out[name] = Intrinsic(name, numpy_, llvm, cuda, int(rest[0]) if rest else 1)
    return out


INTRINSICS = _rows(
    """
maximum    maximum           llvm.maximum      pt_maximum       2
minimum    minimum           llvm.minimum      pt_minimum       2
exp        exp               pt.exp            exp
log        log               pt.log            log
log1p      log1p             pt.log1p          log1p
log1p_unit log1p             pt.log1p_unit     log1p
expm1      expm1             pt.expm1          expm1
tanh       tanh              pt.tanh           tanh
exp2       exp2              libm.exp2         exp2
log2       log2              libm.log2         log2
log10      log10             libm.log10        log10
sqrt       sqrt              llvm.sqrt         sqrt
abs        abs               llvm.fabs         fabs
floor      floor             llvm.floor        floor
ceil       ceil              llvm.ceil         ceil
trunc      trunc             llvm.trunc        trunc
rint       rint              llvm.rint         rint
copysign   copysign          llvm.copysign     copysign         2
sin        sin               pt.sin            sin
cos        cos               pt.cos            cos
tan        tan               libm.tan          tan
asin       arcsin            libm.asin         asin
acos       arccos            libm.acos         acos
atan       arctan            libm.atan         atan
sinh       sinh              libm.sinh         sinh
cosh       cosh              libm.cosh         cosh
asinh      arcsinh           libm.asinh        asinh
acosh      arccosh           libm.acosh        acosh
atanh      arctanh           libm.atanh        atanh
atan2      arctan2           libm.atan2        atan2            2
pow        power             pt.pow            pow              2
fmod       fmod              libm.fmod         fmod             2
cbrt       cbrt              libm.cbrt         cbrt
nextafter  nextafter         libm.nextafter    nextafter        2
lgamma     special.gammaln   pt.lgamma         pt_lgamma
digamma    special.digamma   pt.digamma        pt_digamma
erf        special.erf       pt.erf            erf
erfc       special.erfc      pt.erfc           erfc
erfinv     special.erfinv    scipy.erfinv      erfinv
erfcx      special.erfcx     scipy.erfcx       erfcx
ndtr       special.ndtr      scipy.ndtr        normcdf
log_ndtr   special.log_ndtr  scipy.log_ndtr    pt_log_ndtr
ndtri      special.ndtri     scipy.ndtri       normcdfinv
normal_quantile special.ndtri pt.normal_quantile normcdfinv
zeta       special.zeta      pt.zeta           pt_zeta          2
gammainc   special.gammainc  scipy.gammainc    pt_gammainc      2
gammaincc  special.gammaincc scipy.gammaincc   pt_gammaincc     2
betainc    special.betainc   scipy.betainc     pt_betainc       3
betaln     special.betaln    scipy.betaln      pt_betaln        2
i0         special.i0        scipy.i0          cyl_bessel_i0
i0e        special.i0e       scipy.i0e         pt_i0e
i1         special.i1        scipy.i1          cyl_bessel_i1
i1e        special.i1e       scipy.i1e         pt_i1e
j0         special.j0        scipy.j0          ::j0
j1         special.j1        scipy.j1          ::j1
y0         special.y0        scipy.y0          ::y0
y1         special.y1        scipy.y1          ::y1
k0         special.k0        scipy.k0          pt_k0
k1         special.k1        scipy.k1          pt_k1
k0e        special.k0e       scipy.k0e         pt_k0e
k1e        special.k1e       scipy.k1e         pt_k1e
jv         special.jv        scipy.jv          pt_jv            2
kv         special.kv        scipy.kv          pt_kv            2
iv         special.iv        scipy.iv          pt_iv            2
ive        special.ive       scipy.ive         pt_ive           2
kve        special.kve       scipy.kve         pt_kve           2
"""
)


class NumpyAlgebra:
    """The algebra for arrays: intrinsics as NumPy or SciPy ufuncs, and structural operations."""

    @staticmethod
    def where(
        condition: np.ndarray | bool, x: np.ndarray | float, y: np.ndarray | float
    ) -> np.ndarray:
        """Choose elementwise, in the dtype of the array branch when the other is a number."""
        return np.where(condition, x, y)

    isnan = staticmethod(np.isnan)
    isinf = staticmethod(np.isinf)
    logical_and = staticmethod(np.logical_and)
    logical_or = staticmethod(np.logical_or)
    logical_not = staticmethod(np.logical_not)

    @staticmethod
    def philox(seed: np.ndarray, stream: np.ndarray, counter: np.ndarray) -> np.ndarray:
        """Return the random bits of (seed, stream, counter) as int64; see core/philox.py."""
        device = next((device_of(x) for x in (counter, seed, stream) if hasattr(x, "dtype")), "cpu")
        host = [x if isinstance(x, int) else to_host(x) for x in (seed, stream, counter)]
        if np.size(host[2]) > _FEW_DRAWS and np.ndim(host[0]) == np.ndim(host[1]) == 0:
            bits = philox_bits(int(host[0]), int(host[1]), np.asarray(host[2]))
        else:
            keys = np.broadcast_arrays(*host)
            words = [philox_bits(*(int(k) for k in key)) for key in zip(*(k.flat for k in keys))]
            bits = np.array(words, np.uint64).reshape(keys[0].shape)
        return to_device(bits.view(np.int64), device)

    @staticmethod
    def bits_to_uniform(bits: np.ndarray) -> np.ndarray:
        """Return the float64 in (0, 1) that belongs to 64 random bits; see core/philox.py."""
        return to_device(bits_to_uniform(to_host(bits)), device_of(bits))

    @staticmethod
    def wide(x: _Given) -> _Given:
        """Return `x` in double precision; the result of a formula is rounded to its own dtype."""
        return x if isinstance(x, (int, float)) else x.astype(np.float64, copy=False)

    def __environment__(self) -> list[object]:
        """What is found at first use is no change (see compiler/guards/entering.py)."""
        return []

    def __getattr__(self, name: str) -> Callable[..., np.ndarray]:
        row = INTRINSICS.get(name)
        if row is None:
            raise AttributeError(
                f"the scalar algebra has no function {name!r}; add a row to ops/scalar.py"
            )
        fn = (
            special_function(row.numpy[8:])
            if row.numpy.startswith("special.")
            else getattr(np, row.numpy)
        )
        setattr(self, name, fn)
        return fn


numpy_algebra = NumpyAlgebra()


@functools.cache
def _of_scipy(name: str) -> Callable[..., np.ndarray]:
    import scipy.special

    return getattr(scipy.special, name)


def special_function(name: str) -> Callable[..., np.ndarray]:
    """Return a function that calls `scipy.special.NAME` (imported then) or CuPy's twin."""

    def call(*arrays: np.ndarray) -> np.ndarray:
        for a in arrays:
            if hasattr(a, "__cuda_array_interface__"):
                return getattr(special(array_module(a)), name)(*arrays)
        found = _of_scipy(name)
        if len(arrays) > 1:
            # Some of SciPy's ufuncs choose float64 as soon as one operand is a Python number.
            dtype = next((a.dtype for a in arrays if not isinstance(a, (int, float))), float)
            operands = [np.asarray(a, dtype) if isinstance(a, (int, float)) else a for a in arrays]
            return found(*operands)
        return found(*arrays)

    call.__name__ = name
    return call
