"""The Kalman filter, its smoother, and draws of states given what is seen.

States are rows: z[t] = z[t - 1] F + c + noise(Q), and x[t] = z[t] H + d + noise(R). Covariances are
updated in Joseph's form, which stays positive in single precision. Elements of x that are nan are
missing: their rows leave the update, exactly as if they had been summed out. All are single loops
over time. Notation as in Särkkä (2013), Bayesian Filtering and Smoothing, transposed.
"""

from __future__ import annotations

import numpy as np

from probtorch.autograd.scan import scan
from probtorch.core.casting import cast
from probtorch.core.shape import broadcast_shapes
from probtorch.core.tree import record
from probtorch.core.typed import DType, Shape
from probtorch.distributions.formulas import known_true
from probtorch.distributions.series import Steps, broadcast
from probtorch.ops.arithmetic import where
from probtorch.ops.cholesky_factors import cholesky
from probtorch.ops.comparisons import eq
from probtorch.ops.diagonals import diagonal
from probtorch.ops.exponentials import log
from probtorch.ops.linalg import solve_triangular
from probtorch.ops.movement import expand, movedim, unsqueeze
from probtorch.ops.pieces import cat
from probtorch.ops.reduction import sum as total
from probtorch.tensor import Tensor

__all__ = [
    "Filtered",
    "LinearGaussian",
    "conditioned",
    "kalman",
    "marginals",
    "smoothed",
    "updated",
]


@record
class LinearGaussian:
    """A linear Gaussian model; all but the first two have a time dim or none.

    Attributes
    ----------
    loc, cov : Tensor, shapes (..., h), (..., h, h)
        Of the state before the first step.
    F, c, Q : Tensor, shapes (..., h, h), (..., h), (..., h, h)
        How states follow each other.
    H, d, R : Tensor, shapes (..., h, n), (..., n), (..., n, n)
        How values follow states.
    """

    loc: Tensor
    cov: Tensor
    F: Tensor
    c: Tensor
    Q: Tensor
    H: Tensor
    d: Tensor
    R: Tensor

    def steps(self, count: int, dtype: DType, names: str = "F c Q H d R") -> Steps:
        """Sort what a loop over `count` steps needs."""
        dims = {"F": 2, "c": 1, "Q": 2, "H": 2, "d": 1, "R": 2}
        parts = {name: (getattr(self, name), dims[name]) for name in names.split()}
        return Steps(parts, count, dtype, "GaussianHMM")


@record
class Filtered:
    """What the filter finds.

    Attributes
    ----------
    square : Tensor, shape (...)
        Sum over time of the squared lengths of surprises in their own scale.
    half_log_det : Tensor, shape (...)
        Sum of half the log determinants of their covariances.
    seen : Tensor or float, shape (...)
        How many numbers were not missing.
    loc, cov : Tensor, shapes (steps, ..., h), (steps, ..., h, h), or without time
        Of the state given all values up to its own; of the last where only that was asked for.
    """

    square: Tensor
    half_log_det: Tensor
    seen: Tensor | float
    loc: Tensor
    cov: Tensor


def _solved(tril: Tensor, x: Tensor, upper: bool = False) -> Tensor:
    """tril^-1 x, batches broadcast."""
    shape = broadcast_shapes(tril.array.shape[:-2], x.array.shape[:-2], op="GaussianHMM")
    return solve_triangular(broadcast(tril, shape, 2), broadcast(x, shape, 2), upper=upper)


def _row(z: Tensor, matrix: Tensor) -> Tensor:
    """Z matrix, for vectors z and batches that broadcast."""
    return (unsqueeze(z, -2) @ matrix)[..., 0, :]


def _identity(like: Tensor, n: int) -> Tensor:
    return like.new_tensor(np.eye(n))


def _joseph(keep: Tensor, cov: Tensor, gain: Tensor, noise: Tensor) -> Tensor:
    """keep^T cov keep + gain^T noise gain: a sum of two that are positive."""
    return keep.mT @ cov @ keep + gain.mT @ noise @ gain


def updated(
    m: Tensor, P: Tensor, surprise: Tensor, H: Tensor, R: Tensor, seen: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Learn from a value what the state is.

    Parameters
    ----------
    m, P : Tensor, shapes (..., h), (..., h, h)
        Mean and covariance of the state before.
    surprise : Tensor, shape (..., n)
        The value minus what was expected.
    H, R : Tensor, shapes (..., h, n), (..., n, n)
    seen : Tensor, shape (..., n), optional
        0 for elements that are missing, else 1.

    Returns
    -------
    m, P : Tensor
        Of the state after.
    square, half_log_det : Tensor, shape (...)
        The squared length of the surprise in its own scale, and half the log determinant of its
        covariance.
    """
    if seen is not None:
        surprise, H = surprise * seen, H * unsqueeze(seen, -2)
        unit = _identity(surprise, surprise.array.shape[-1])
        R = R * unsqueeze(seen, -1) * unsqueeze(seen, -2) + unit * unsqueeze(1.0 - seen, -1)
    seen_by = H.mT @ P
    L = cholesky(seen_by @ H + R)
    u = _solved(L, unsqueeze(surprise, -1))
    gain = _solved(L.mT, _solved(L, seen_by), upper=True)
    keep = _identity(m, m.array.shape[-1]) - H @ gain
    square, half_log_det = total(u * u, (-2, -1)), total(log(diagonal(L, 0, -2, -1)), -1)
    return m + _row(surprise, gain), _joseph(keep, P, gain, R), square, half_log_det


def kalman(model: LinearGaussian, x: Tensor, *, all_states: bool = False) -> Filtered:
    """Run the filter over values x, shape (..., steps, n), nan where missing."""
    count, dtype = x.array.shape[-2], x.array.dtype
    steps = model.steps(count, dtype)
    seen = eq(x, x)
    whole = known_true(seen)
    n = model.H.array.shape[-1]
    loc, cov = _in(model.loc, dtype), _in(model.cov, dtype)
    shared = broadcast_shapes(
        loc.array.shape[:-1], cov.array.shape[:-2], steps.batch, op="GaussianHMM"
    )
    batch = broadcast_shapes(shared, x.array.shape[:-2], op="GaussianHMM.log_prob")
    # What is missing changes covariances; else they are the same for all values.
    wide = shared if whole else batch

    def step(
        state: tuple[Tensor, Tensor], now: dict[str, Tensor]
    ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, ...]]:
        (m, P), p = state, steps.at(now)
        F, H = p["F"], p["H"]
        m = _row(m, F) + p["c"]
        P = F.mT @ P @ F + p["Q"]
        surprise = p["x"] - (_row(m, H) + p["d"])
        m, P, square, size = updated(m, P, surprise, H, p["R"], p.get("w"))
        m, P = broadcast(m, batch, 1), broadcast(P, wide, 2)
        square, size = broadcast(square, batch, 0), broadcast(size, wide, 0)
        return (m, P), (square, size, m, P) if all_states else (square, size)

    xs = {**steps.sliced, "x": movedim(x if whole else where(seen, x, 0.0), -2, 0)}
    if not whole:
        xs["w"] = movedim(cast(seen, dtype), -2, 0)
    steps.sliced = xs
    last, found = scan(step, (broadcast(loc, batch, 1), broadcast(cov, wide, 2)), xs)
    m, P = found[2:] if all_states else last
    number = float(count * n) if whole else total(cast(seen, dtype), (-2, -1))
    return Filtered(total(found[0], 0), total(found[1], 0), number, m, P)


def _in(x: Tensor, dtype: DType) -> Tensor:
    return x if x.array.dtype == dtype else cast(x, dtype)


def _later(steps: Steps) -> dict[str, Tensor]:
    return {name: x[1:] for name, x in steps.sliced.items()}


def _backwards(m: Tensor, P: Tensor, p: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """From the filtered state: gain, what comes next, and the covariance given what comes next."""
    F, Q = p["F"], p["Q"]
    seen_by = F.mT @ P
    L = cholesky(seen_by @ F + Q)
    gain = _solved(L.mT, _solved(L, seen_by), upper=True)
    keep = _identity(m, m.array.shape[-1]) - F @ gain
    return gain, _row(m, F) + p["c"], _joseph(keep, P, gain, Q)


def smoothed(model: LinearGaussian, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return means and covariances of the states given all values, time in front of the event."""
    found = kalman(model, x, all_states=True)
    steps = model.steps(x.array.shape[-2], x.array.dtype, "F c Q")

    def step(
        state: tuple[Tensor, Tensor], now: tuple[dict[str, Tensor], Tensor, Tensor]
    ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        (m, P), (params, loc, cov) = state, now
        gain, ahead, left = _backwards(loc, cov, steps.at(params))
        m = loc + _row(m - ahead, gain)
        P = left + gain.mT @ P @ gain
        return (m, P), (m, P)

    m, P = found.loc, found.cov
    _, (ms, Ps) = scan(step, (m[-1], P[-1]), (_later(steps), m[:-1], P[:-1]), reverse=True)
    m, P = cat([ms, m[-1:]], 0), cat([Ps, P[-1:]], 0)
    return movedim(m, 0, -2), movedim(P, 0, -3)


def conditioned(model: LinearGaussian, x: Tensor, noise: Tensor) -> Tensor:
    """Draw the states given all values: filter forwards, draw backwards.

    `noise` is of shape (*draws, *batch, steps, h), with the batch of model and values.
    """
    found = kalman(model, x, all_states=True)
    steps = model.steps(x.array.shape[-2], x.array.dtype, "F c Q")
    m, P = found.loc, found.cov
    noise = movedim(noise, -2, 0)
    shape = tuple(noise.array.shape[1:])

    def drawn(loc: Tensor, cov: Tensor, e: Tensor) -> Tensor:
        return expand(loc + _row(e, cholesky(cov).mT), shape)

    def step(
        z: Tensor, now: tuple[dict[str, Tensor], Tensor, Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        params, loc, cov, e = now
        gain, ahead, left = _backwards(loc, cov, steps.at(params))
        new = drawn(loc + _row(z - ahead, gain), left, e)
        return new, new

    last = drawn(m[-1], P[-1], noise[-1])
    xs = (_later(steps), m[:-1], P[:-1], noise[:-1])
    _, rest = scan(step, last, xs, reverse=True)
    return movedim(cat([rest, unsqueeze(last, 0)], 0), 0, -2)


def marginals(model: LinearGaussian, count: int) -> tuple[Tensor, Tensor]:
    """Return means and variances of all values before any is seen, shapes (..., steps, n)."""
    dtype = model.F.array.dtype
    steps = model.steps(count, dtype)
    loc, cov = _in(model.loc, dtype), _in(model.cov, dtype)
    batch: Shape = broadcast_shapes(
        loc.array.shape[:-1], cov.array.shape[:-2], steps.batch, op="GaussianHMM"
    )

    def step(
        state: tuple[Tensor, Tensor], now: dict[str, Tensor]
    ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        (m, P), p = state, steps.at(now)
        m = broadcast(_row(m, p["F"]) + p["c"], batch, 1)
        P = broadcast(p["F"].mT @ P @ p["F"] + p["Q"], batch, 2)
        x = broadcast(_row(m, p["H"]) + p["d"], batch, 1)
        seen = diagonal(p["H"].mT @ P @ p["H"] + p["R"], 0, -2, -1)
        return (m, P), (x, broadcast(seen, batch, 1))

    start = (broadcast(loc, batch, 1), broadcast(cov, batch, 2))
    if steps.sliced:
        _, (x, v) = scan(step, start, steps.sliced)
    else:
        _, (x, v) = scan(lambda s, _: step(s, {}), start, length=count)
    return movedim(x, 0, -2), movedim(v, 0, -2)
