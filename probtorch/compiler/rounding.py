"""What other roundings of the same numbers lead to: Monte Carlo arithmetic (Parker, 1997).

A run in Python is repeated with its arguments and the results of all operations moved by a few
units in the last place, as another order of the same sums would move them. What the result of the
run answers with is the size of the differences that rounding explains: see verify.py.

What a routine on matrices computes is exact for a matrix close by (Higham, 2002), and how far off
the result is then depends on that matrix. So its operand is moved before, whole numbers too, by
units of what its errors are measured by, and the routine is run again.
"""

import math

import numpy as np

from probtorch.autograd.listener import Listener
from probtorch.core.tensor_base import TensorBase

__all__ = ["OtherOutcome", "OtherRounding", "moved"]

# What rounds nothing.
_EXACT_FAMILIES = {"movement", "indexing", "control"}
_EXACT = {
    *("abs", "amax", "amin", "cast", "ceil", "clamp", "clone", "copysign", "cummax_index"),
    *("floor", "maximum", "minimum", "neg", "order_statistic", "relu", "round", "sign", "trunc"),
    *("philox", "bits_to_uniform", "where", "demand", "to_device"),
}
# Matrices close by that are tried before one is said to have no result.
_TRIES = 4
_ARITHMETIC = {"add", "div", "mul", "sub"}


def moved(x, seed, size=8, whole=False, least=0.0):
    """Return an array with each number moved by up to four units in the last place.

    That of floats of `size` bytes, where `x` has longer ones, and of `least` where `x` is smaller.
    Unless `whole`, whole numbers stay: most of them are exact.
    """
    if seed is None or x.dtype.kind not in "fc":
        return x
    if x.dtype.kind == "c":
        rng, out, least = np.random.default_rng(seed), x.copy(), np.maximum(np.abs(x), least)
        out.real, out.imag = (moved(y, rng, size, whole, least) for y in (x.real, x.imag))
        return out
    rng = np.random.default_rng(seed)  # a generator stays what it is
    steps = rng.integers(1, 5, x.shape) * rng.choice((-1, 1), x.shape)
    unit = np.finfo(f"f{min(size, x.dtype.itemsize)}").eps
    with np.errstate(all="ignore"):
        other = x + steps * unit * np.maximum(np.abs(x), least)
        return np.where(np.isinf(x) | (not whole) & (x == np.rint(x)), x, other).astype(x.dtype)


def _of_sum(sizes, read, out):
    return sizes[0] * math.sqrt(read[0].size / max(out.size, 1))


def _of_product(sizes, read, out):
    return sizes[0] * sizes[1] * math.sqrt(read[0].shape[-1])


def _of_logarithms(sizes, read, out):
    # The logarithm of a sum, in which the largest term is 1, less a number of the input's size.
    return max(1.0, sizes[0])


# How large sums are on the way to a result, of terms that have no common sign: from the largest
# numbers read, what was read and the result.
_PARTIAL_SUMS = {
    "sum": _of_sum,
    "matmul": _of_product,
    "sparse_product": _of_product,
    "affine": lambda sizes, read, out: max(_of_product(sizes, read, out), sizes[-1]),
    "cumsum": lambda sizes, read, out: sizes[0] * math.sqrt(read[0].size),
    "variance": lambda sizes, read, out: sizes[0] * math.sqrt(np.abs(out).max()),
    "logsumexp": _of_logarithms,
    "logcumsumexp": _of_logarithms,
    "log_softmax": _of_logarithms,
    "class_log_probs": _of_logarithms,
}


def _size_of_partial_sums(op, read, out):
    """How large sums are on the way to a result; 0 where that is not known to matter."""
    read = [x for x in read if x.dtype.kind == "f"]  # no index, no mask
    if not (read and out.size and all(x.size for x in read)):
        return 0.0
    with np.errstate(all="ignore"):
        if op.family in ("fourier", "linalg"):
            # Their errors are those of the largest numbers, everywhere.
            found = float(np.abs(out[np.isfinite(out)]).max(initial=0.0))
        elif op.name in _PARTIAL_SUMS:
            sizes = [float(np.abs(x).max()) for x in read]
            found = float(_PARTIAL_SUMS[op.name](sizes, read, out))
        else:
            return 0.0
    return found if math.isfinite(found) else 0.0


def _all_whole(x):
    return x.dtype.kind != "f" or bool((x == np.rint(x)).all())


def _of_all(a):
    return np.abs(a).max((-2, -1), keepdims=True)


def _of_columns(a):
    return np.abs(a).max(-2, keepdims=True)


def _of_diagonal(a):
    root = np.sqrt(np.abs(np.diagonal(a, 0, -2, -1)))
    return root[..., :, None] * root[..., None, :]


def _of_elements(a):
    return 0.0


# What the errors of routines on matrices are measured by, as errors of the matrix: by the largest
# number of its column where columns are eliminated, whatever the scales of the others (Higham 2002,
# theorems 9.3 and 19.4), by the diagonal of a matrix with a Cholesky factor (10.5), by the element
# where a triangle is solved (8.5). Others, whose rotations mix columns, by the largest number.
_BACKWARD = {
    **dict.fromkeys(("det", "inv", "lu", "qr", "slogdet", "solve"), _of_columns),
    "cholesky": _of_diagonal,
    "solve_triangular": _of_elements,
}


def _for_a_matrix_close_by(op, inputs, attrs, rng):
    """Return what an op on matrices comes to for one as close as its errors are; None if there is
    no such result.
    """
    a, *rest = (x.array if isinstance(x, TensorBase) else x for x in inputs)
    if type(a) is not np.ndarray or not a.size:
        return None
    with np.errstate(all="ignore"):
        close = moved(a, rng, whole=True, least=_BACKWARD.get(op.name, _of_all)(a))
        try:
            found = op.run(close, *rest, **attrs)
        except Exception:
            return None
    return found if type(found) is tuple else (found,)


class OtherOutcome(Exception):
    """An operation on matrices raised an error where for one close by it comes to a result."""


class OtherRounding(Listener):
    """Moves what operations compute by a few units in the last place, as another order of the same
    sums would; a context manager around an eager run.

    Parameters
    ----------
    seed : int or None
        None moves nothing.
    """

    def __init__(self, seed):
        super().__init__()
        self._rng = None if seed is None else np.random.default_rng((1, seed))

    def applied(self, op, inputs, attrs, out):
        """Move the result of an operation, if it rounds and its memory is nobody else's."""
        super().applied(op, inputs, attrs, out)
        if self._rng is None or op.family in _EXACT_FAMILIES or op.name in _EXACT:
            return
        read = [x.array for x in inputs if isinstance(x, TensorBase)]
        outs = out if type(out) is tuple else (out,)
        close = [None] * len(outs)
        if op.family == "linalg":
            close = _for_a_matrix_close_by(op, inputs, attrs, self._rng) or [np.nan] * len(outs)
        # Functions reach whole numbers where they level off, sums by rounding.
        sums = op.family != "elementwise" or op.name in _ARITHMETIC
        for t, other in zip(outs, close, strict=True):
            x = t.array
            if (
                type(x) is np.ndarray
                and x.flags.writeable
                and not any(np.may_share_memory(x, y) for y in read if type(y) is np.ndarray)
            ):
                if other is not None:
                    x[...] = other
                whole = sums and not all(map(_all_whole, read))
                least = _size_of_partial_sums(op, read, x) if whole else 0.0
                x[...] = moved(x, self._rng, whole=whole, least=least)
                nan = np.isnan(x) if x.dtype.kind == "f" else np.zeros(x.shape, bool)
                if nan.any():  # its sign is a matter of the instruction
                    x[nan] = np.copysign(np.nan, self._rng.choice((-1.0, 1.0), nan.sum()))

    def op_failed(self, op, inputs, attrs, error):
        """End the run where rounding decides whether there is a result."""
        super().op_failed(op, inputs, attrs, error)
        if self._rng is not None and op.family == "linalg":
            for _ in range(_TRIES):
                if _for_a_matrix_close_by(op, inputs, attrs, self._rng) is not None:
                    raise OtherOutcome(f"{op.name} of a matrix close by has a result") from error
