"""Warm-up: step size by dual averaging, mass matrix by running moments, in Stan's windows.

`dual_averaging_*` and `moments_*` are pure functions of records in tensor ops, part of the compiled
program; closing a window (`inverse_mass_of`) and the plan of windows (`windows`, `schedule`) are
NumPy and Python, done between calls of the program. All constants are Stan's, so that warm-up
behaves as there.

References
----------
M. D. Hoffman, A. Gelman, "The No-U-Turn Sampler", JMLR 15 (2014), section 3.2.
Stan Development Team, Stan Reference Manual, chapter "MCMC sampling", section "Automatic parameter
tuning". B. P. Welford, "Note on a method for calculating corrected sums of squares and products",
Technometrics 4 (1962).
"""

from dataclasses import dataclass

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import record
from probtorch.infer.mcmc.integrators import PhasePoint, leapfrog
from probtorch.infer.mcmc.metrics import kinetic_energy, sample_momentum
from probtorch.ops.control import while_loop
from probtorch.ops.elementwise import exp, isfinite, log, sqrt, where
from probtorch.ops.movement import unsqueeze

__all__ = [
    "DualAveraging",
    "Moments",
    "Segment",
    "dual_averaging_start",
    "dual_averaging_update",
    "find_step_size",
    "inverse_mass_of",
    "moments_start",
    "moments_update",
    "schedule",
    "windows",
]

# Nesterov's dual averaging as tuned by Hoffman and Gelman (2014), section 3.2.1, and kept by Stan.
SHRINKAGE = 0.05
STABILISER = 10.0
FORGETTING = 0.75

# The acceptance rate of one step that the first guess of the step size looks for (Stan's
# base_hmc.hpp).
FIRST_GUESS_ACCEPT = 0.8
LARGEST_STEP_SIZE = 1e7
SMALLEST_STEP_SIZE = 1e-30

# Stan's windows: first steps, first window, last steps; a short warm-up has them in these shares.
FIRST_STEPS, FIRST_WINDOW, LAST_STEPS = 75, 25, 50
FIRST_SHARE, LAST_SHARE = 0.15, 0.1
SHORTEST_WARMUP = 20

# An estimated variance is shrunk as if it came with this many draws of variance 1e-3.
PRIOR_DRAWS, PRIOR_VARIANCE = 5.0, 1e-3

# ---------------------------------------------------------------------------------------- step size


@record
class DualAveraging:
    """State of the step size adaptation; all 0-d float64.

    Parameters
    ----------
    centre : Tensor
        The log step size that early iterations shrink to.
    error : Tensor
        Weighted mean of target minus observed acceptance.
    log_step : Tensor
        The step size to use next.
    log_step_mean : Tensor
        Its weighted mean, the step size to keep after warm-up.
    count : Tensor
        Updates so far.
    """

    centre: TensorBase
    error: TensorBase
    log_step: TensorBase
    log_step_mean: TensorBase
    count: TensorBase


def dual_averaging_start(step_size):
    """Return a fresh state around a step size, a 0-d float64 Tensor.

    Early updates are drawn towards ten times as much: large steps are cheap to try.
    """
    zero = wrap(np.zeros(()))
    return DualAveraging(log(10.0 * step_size), zero, log(step_size), zero, zero)


def dual_averaging_update(state, accept_prob, target):
    """Return the state after one transition.

    Parameters
    ----------
    state : DualAveraging
    accept_prob : Tensor, 0-d
        Mean acceptance probability of the transition.
    target : float or Tensor, 0-d
        The acceptance to aim at.
    """
    count = state.count + 1.0
    weight = 1.0 / (count + STABILISER)
    error = (1.0 - weight) * state.error + weight * (target - accept_prob)
    log_step = state.centre - error * sqrt(count) / SHRINKAGE
    weight = exp(-FORGETTING * log(count))
    mean = weight * log_step + (1.0 - weight) * state.log_step_mean
    return DualAveraging(state.centre, error, log_step, mean, count)


def find_step_size(density, metric, key, counter, point, step_size):
    """Double or halve a step size until the acceptance of one leapfrog step crosses 0.8.

    Parameters
    ----------
    density, metric
        As for `leapfrog`.
    key, counter
        Where the momenta come from: a fresh one for every try.
    point : HMCState
        Where to start; its position, logdensity and grad are read.
    step_size : Tensor, 0-d float64
        First guess.

    Returns
    -------
    step_size : Tensor, 0-d
        Outside (1e-30, 1e7) if there is none: the caller must say so.
    counter : Tensor, 0-d int64
        The first counter not used.

    Notes
    -----
    Stan's rule (base_hmc.hpp), which needs no step size of its own.
    """
    dim = point.position._data.shape[0]
    wanted = float(np.log(FIRST_GUESS_ACCEPT))

    def gain(step_size, counter):
        momentum = sample_momentum(key, counter, dim)
        start = PhasePoint(point.position, momentum, point.logdensity, point.grad)
        end = leapfrog(density, metric, start, step_size)
        change = (
            end.logdensity
            - kinetic_energy(end.momentum)
            - point.logdensity
            + kinetic_energy(momentum)
        )
        return where(isfinite(change), change, -np.inf)

    def searching(state):
        size, _, _, crossed = state
        return ~crossed & (size > SMALLEST_STEP_SIZE) & (size < LARGEST_STEP_SIZE)

    def body(state):
        size, counter, up, _ = state
        accepted = gain(size, counter) > wanted
        crossed = accepted ^ up
        factor = where(crossed, 1.0, where(up, 2.0, 0.5))
        return size * factor, counter + dim, up, crossed

    up = gain(step_size, counter) > wanted
    never = up & ~up
    step_size, counter, _, _ = while_loop(searching, body, (step_size, counter + dim, up, never))
    return step_size, counter


# -------------------------------------------------------------------------------------- mass matrix


@record
class Moments:
    """Running mean and sum of squared deviations of the positions (Welford 1962).

    Parameters
    ----------
    mean : Tensor, shape (dim,)
    squares : Tensor, shape (dim,) or (dim, dim)
        Of each coordinate, or all products of two.
    count : Tensor, 0-d float64
    """

    mean: TensorBase
    squares: TensorBase
    count: TensorBase


def moments_start(dim, dense):
    """Return empty moments; `dense` for products of all pairs."""
    return Moments(
        wrap(np.zeros(dim)), wrap(np.zeros((dim, dim) if dense else dim)), wrap(np.zeros(()))
    )


def moments_update(moments, position):
    """Return the moments with one more position."""
    count = moments.count + 1.0
    before = position - moments.mean
    mean = moments.mean + before / count
    after = position - mean
    dense = moments.squares._data.ndim == 2
    product = unsqueeze(after, 1) * before if dense else after * before
    return Moments(mean, moments.squares + product, count)


def inverse_mass_of(moments, *, regularize=True):
    """Return the covariance of the positions seen, an array of shape (dim,) or (dim, dim).

    Parameters
    ----------
    moments : Moments
        Of two positions at least.
    regularize : bool
        Shrink it towards 1e-3 times the identity as in Stan, with the weight of five draws.
    """
    count = float(moments.count._data)
    covariance = moments.squares._data / (count - 1.0)
    if not regularize:
        return covariance
    prior = PRIOR_VARIANCE * (np.eye(len(covariance)) if covariance.ndim == 2 else 1.0)
    return (count * covariance + PRIOR_DRAWS * prior) / (count + PRIOR_DRAWS)


# ------------------------------------------------------------------------------------------ windows


def windows(num_warmup):
    """Return the windows of mass matrix adaptation, a list of (start, stop) iterations.

    Stan's rules: 75 first steps without, then windows of 25, 50, 100 ... iterations, the last one
    stretched up to the 50 last steps. A warm-up shorter than 150 is split 15 %, 75 %, 10 % with one
    window; below 20 there is none.

    Examples
    --------
    >>> windows(1000)
    [(75, 100), (100, 150), (150, 250), (250, 450), (450, 950)]
    """
    if num_warmup < SHORTEST_WARMUP:
        return []
    first, size, last = FIRST_STEPS, FIRST_WINDOW, LAST_STEPS
    if first + size + last > num_warmup:
        first, last = int(FIRST_SHARE * num_warmup), int(LAST_SHARE * num_warmup)
        size = num_warmup - first - last
    found, start, end = [], first, num_warmup - last
    while start < end:
        stop = start + size
        # What is left must hold a window of twice the size, or this window takes it. The first
        # window takes it only where less than its own size is left: there Stan would estimate
        # variances from a handful of draws.
        if stop + (2 if found else 1) * size > end:
            stop = end
        found.append((start, stop))
        start, size = stop, 2 * size
    return found


@dataclass(frozen=True)
class Segment:
    """A stretch of warm-up iterations that is run as one.

    Parameters
    ----------
    length : int
        Iterations.
    search : bool
        Whether to look for a step size first, and start dual averaging afresh around it.
    collect : bool
        Whether positions enter the moments.
    close : bool
        Whether to set the mass matrix from the moments at the end.
    """

    length: int
    search: bool = False
    collect: bool = False
    close: bool = False


def schedule(num_warmup, *, adapt_step_size=True, adapt_mass_matrix=True, search=True):
    """Return the warm-up as a list of `Segment`; their lengths sum to `num_warmup`.

    Parameters
    ----------
    num_warmup : int
    adapt_step_size, adapt_mass_matrix : bool
    search : bool
        Whether to look for a first step size, at the start and after each change of the mass
        matrix.
    """
    segments = []

    def add(length, **what):
        # A new mass matrix asks for a new step size.
        fresh = not segments or segments[-1].close
        if length:
            segments.append(Segment(length, search=search and adapt_step_size and fresh, **what))

    at = 0
    for start, stop in windows(num_warmup) if adapt_mass_matrix else []:
        add(start - at)
        add(stop - start, collect=True, close=True)
        at = stop
    add(num_warmup - at)
    return segments
