"""How closely two runs of a program must agree, compiled and eager for one.

Rounding differs: sums are reassociated, products are contracted, exp and its kin are our own. So
each program measures its own condition: `spread` runs it a few times with the operands and results
of every op that rounds moved by about one unit in the last place at random, in the backward pass
too. Eight times what those runs differ by (and eight units in the last place) is allowed. Integers,
booleans and moved data must agree exactly, and so must the places of nan and infinities, unless the
perturbed runs disagree among themselves.
"""

import numpy as np

from probtorch.autograd.listener import Listener
from probtorch.core.tensor_base import TensorBase
from probtorch.ops import incomplete, special
from probtorch.testing.compare import to_array, tolerances

__all__ = ["differences", "same", "spread"]

FACTOR = 8.0  # see the module docstring
RUNS = 5

# What these give is exact: no rounding takes part.
EXACT = frozenset(
    (
        "clone neg abs sign floor ceil trunc round copysign where maximum minimum relu clamp cast "
        "amax amin argmax argmin reshape permute expand slice unslice strided cat diagonal "
        "diag_embed take put slice_put philox bits_to_uniform argsort order_statistic "
        "searchsorted cummax_index cummin_index"
    ).split()
)


# Where these give 0, its sign depends on the order in which they look at their operands.
FREE_ZERO = frozenset(
    ("maximum", "minimum", "amax", "amin", "relu", "sum", "prod", "cumsum", "matmul")
)

# SciPy's float32 versions of these are a dozen units off; compiled, they are computed in float64.
SPECIAL = frozenset((*special.__all__, *incomplete.__all__))

_RESTS = "factorial_rest", "gamma_rest", "stirling_rest"


def _of_rest(a):
    """The size of lgamma(a) and a log a, of which a rest is the difference; beyond, by a series."""
    size = np.abs(np.asarray(a, np.float64))
    return 1.0 + np.minimum(size * np.log1p(size), 100.0)


def _of_slope(a):
    """The size of digamma(a) and log a, of which the slope of a rest is the difference."""
    return 1.0 + np.abs(np.log(np.maximum(np.asarray(a, np.float64), 1.0)))


# Differences of larger numbers, each of which is rounded by units of its own: how large they are.
DIFFERENCES = {
    **dict.fromkeys(_RESTS, _of_rest),
    **dict.fromkeys((f"{name}_slope" for name in _RESTS), _of_slope),
    "mean_cosine_loss": lambda x: np.ones(np.shape(x)),
}


class _Mover(Listener):
    """Hears of every op, as a recorder would, and moves the result of every op that rounds.

    The op is run again on operands that are moved by about one unit in the last place at random,
    and so is its result: in place, so that the tape sees the moved one. (Normal numbers: four moves
    by plus or minus one unit cancel too often.)
    """

    def __init__(self, seed):
        super().__init__()
        self.rng = np.random.default_rng(seed)

    def moved(self, array, units=1.0):
        if not isinstance(array, np.ndarray) or array.dtype.kind != "f":
            return array
        eps = np.finfo(array.dtype).eps * units
        noise = self.rng.standard_normal(array.shape)
        # At least half a unit, or a number stays what it was in all runs.
        noise = 1.0 + eps * np.copysign(np.abs(noise) + 0.5, noise)
        return np.asarray(array * noise.astype(array.dtype))

    def moved_matrix(self, array, units):
        """Move the elements by units of the largest in their matrix: all that LAPACK promises."""
        if array.ndim < 2 or not array.size:
            return self.moved(array, units)
        eps = np.finfo(array.dtype).eps * units
        size = np.abs(array).max((-2, -1), keepdims=True)
        return np.asarray(array + (eps * size * self.rng.standard_normal(array.shape))).astype(
            array.dtype
        )

    def shuffled(self, array, dims):
        """Put the numbers along some dims in another order: large and small ones may be multiplied
        on the way to infinity, to 0 or to neither.
        """
        for dim in dims:
            array = np.take(array, self.rng.permutation(array.shape[dim]), dim)
        return array

    def record_matrices(self, op, inputs, attrs, outs):
        """Hear of a factorisation, solve or the like."""
        units = np.sqrt(max(inputs[0].array.shape[-1], 1))
        operands = [self.moved_matrix(x.array, units) for x in inputs]
        try:
            new = op.run(*operands, **attrs)
        except np.linalg.LinAlgError:
            return
        for o, x in zip(outs, new if isinstance(new, tuple) else (new,), strict=True):
            o.array[...] = self.moved(np.asarray(x), units)

    def applied(self, op, inputs, attrs, out):
        if "sampler" in op.extra:
            # Their bits are the same; moved parameters would jump to other draws.
            return
        if op.family == "linalg":
            self.record_matrices(op, inputs, attrs, out if isinstance(out, tuple) else (out,))
            return
        if isinstance(out, tuple):
            operands = [self.moved(x.array, 1.0) for x in inputs]
            for o, new in zip(out, op.run(*operands, **attrs), strict=True):
                o.array[...] = self.moved(np.asarray(new), 1.0)
            return
        if out.array.dtype.kind != "f":
            return
        if op.name not in EXACT or _narrows(op, inputs, out):
            out.array[...] = self.rounded(op, inputs, attrs, out)
        # The sign of nan means nothing, until copysign takes it.
        if op.family != "movement":  # whose results are views
            self.sign_at_random(out.array, np.isnan(out.array))
        if op.name in FREE_ZERO:
            self.sign_at_random(out.array, out.array == 0.0)

    def sign_at_random(self, array, where):
        array[where] = np.copysign(array[where], self.rng.standard_normal(where.sum()))

    def rounded(self, op, inputs, attrs, out):
        """What an op gives on operands that are moved, moved."""
        # The errors of equal terms add up: as if each had sqrt(n) times the random one.
        units = np.sqrt(_terms(op, inputs, attrs, out))
        if op.name in SPECIAL and out.array.dtype == np.float32:
            units = 32.0
        operands = [self.moved(x.array if isinstance(x, TensorBase) else x, units) for x in inputs]
        if op.name == "prod":
            operands = [self.shuffled(operands[0], attrs["dims"])]
        result = np.asarray(op.run(*operands, **attrs))
        if op.name in DIFFERENCES:
            sizes = DIFFERENCES[op.name](*operands)
            noise = np.finfo(result.dtype).eps * sizes * self.rng.standard_normal(result.shape)
            result = (result + noise).astype(result.dtype)
        return self.moved(result)


def _narrows(op, inputs, out):
    """Whether a cast rounds."""
    return op.name == "cast" and not np.can_cast(inputs[0].array.dtype, out.array.dtype)


def _terms(op, inputs, attrs, out):
    """How many numbers an op adds up or multiplies for each result."""
    if op.name == "matmul":
        return max(inputs[0].array.shape[-1], 1)
    if op.name == "cumsum" or op.family == "scan":
        return max(inputs[0].array.shape[attrs["dim"]], 1)
    if op.family == "reduction":
        return max(inputs[0].array.size / max(out.array.size, 1), 1)
    return 1


def spread(run, runs=RUNS):
    """Return, for each result of ``run()``, the value and how far perturbed runs are from it.

    Parameters
    ----------
    run : callable
        Runs a program eagerly and returns arrays.
    runs : int
        Number of perturbed runs; more of them come nearer to the largest distance there is.

    Returns
    -------
    list of (ndarray, ndarray of float64, ndarray of bool)
        The unperturbed result, the largest distance, and where all runs agree on nan, infinities
        and, for integers and booleans, on the value.
    """
    base = run()
    gaps = [np.zeros(a.shape) for a in base]
    agree = [np.ones(a.shape, bool) for a in base]
    for k in range(runs):
        with _Mover(k):
            moved = run()
        for i, (a, b) in enumerate(zip(base, moved, strict=True)):
            if a.dtype.kind != "f":
                agree[i] &= a == b
                continue
            finite = np.isfinite(a) & np.isfinite(b)
            agree[i] &= finite | (np.isnan(a) & np.isnan(b)) | (a == b)
            gap = np.abs(a.astype(np.float64) - b.astype(np.float64))
            gaps[i] = np.maximum(gaps[i], np.where(finite, gap, 0.0))
    return list(zip(base, gaps, agree, strict=True))


def differences(got, expected):
    """Return a list of sentences, one per result that differs more than its condition allows.

    Parameters
    ----------
    got : sequence of ndarray
    expected : list
        From `spread`.
    """
    found = []
    for i, (g, (e, gap, agree)) in enumerate(zip(got, expected, strict=True)):
        if g.shape != e.shape or g.dtype != e.dtype:
            found.append(f"result {i}: {g.dtype}{g.shape} instead of {e.dtype}{e.shape}")
            continue
        if e.dtype.kind != "f":
            wrong = agree & (g != e)
            allowed = np.zeros(e.shape)
        else:
            info = np.finfo(e.dtype)
            size = np.abs(e.astype(np.float64))
            allowed = FACTOR * (gap + float(info.eps) * size) + float(info.tiny)
            apart = np.abs(g.astype(np.float64) - e.astype(np.float64))
            finite = np.isfinite(e)
            same = (g == e) | (np.isnan(g) & np.isnan(e)) | (finite & (apart <= allowed))
            # Within rounding of overflow, finite and infinite are neighbours.
            edge = finite & (size + allowed >= float(info.max)) & ~np.isfinite(g)
            wrong = agree & ~same & ~edge
        if wrong.any():
            at = tuple(int(k) for k in np.argwhere(wrong)[0])
            found.append(
                f"result {i} ({e.dtype}{e.shape}): {int(wrong.sum())} of {e.size} differ, "
                f"first at {at}: got {g[at]!r}, expected {e[at]!r}, allowed {allowed[at]:.3g}"
            )
    return found


def same(a, b):
    """Whether two tensors or arrays agree up to the rounding that their dtype deserves."""
    x, y = to_array(a), to_array(b)
    rtol, atol = tolerances(x.dtype, y.dtype)
    return x.shape == y.shape and np.allclose(x, y, rtol, atol, equal_nan=True)
