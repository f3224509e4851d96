"""Warm-up: the step size by dual averaging, and the course of it all.

A kernel brings its `Warmup`: a `Tuner`, which is part of the compiled program and follows the
acceptance after each transition (tuners.py has one that does not), and a `Learner`, which is shown
the draws between calls of the program and finds, say, a mass matrix (mass_matrix.py).
`dual_averaging_*` and `find_step_size` are pure functions in tensor ops; `schedule` says when what
is learnt is set. The step size is looked for once, at the start; from then on dual averaging
follows every change of the mass matrix without a break.

References
----------
M. D. Hoffman, A. Gelman, "The No-U-Turn Sampler", JMLR 15 (2014), section 3.2.
A. Seyboldt, E. Carlson, B. Carpenter, "Preconditioning Hamiltonian Monte Carlo by minimizing Fisher
divergence" (2026), for windows that overlap and updates every few draws.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import map_tree, record, replace, static
from probtorch.core.typed import Tree
from probtorch.errors import InferenceError
from probtorch.infer.mcmc.integrators import Density, PhasePoint, leapfrog
from probtorch.infer.mcmc.metrics import Metric, kinetic_energy, sample_momentum
from probtorch.infer.mcmc.warm_up.easing import Easing
from probtorch.ops.arithmetic import sqrt, where
from probtorch.ops.comparisons import isfinite, isnan
from probtorch.ops.control import while_loop
from probtorch.ops.exponentials import exp, log

if TYPE_CHECKING:
    from probtorch.infer.mcmc.kernels.hmc import HMCState
    from probtorch.infer.mcmc.randomness import Key
    from probtorch.infer.potential import Target


__all__ = [
    "DEEPEST",
    "AcceptanceTuner",
    "DualAveraging",
    "Learner",
    "Segment",
    "Tuner",
    "Warmup",
    "dual_averaging_start",
    "dual_averaging_update",
    "find_step_size",
    "mean_restarted",
    "schedule",
    "switches",
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

# Windows of the mass matrix: the shortest, and each next one by the iterations before it.
SHORTEST_WINDOW, WINDOW_GROWTH = 10, 0.43
# The first updates of the mass matrix are so many draws apart.
FIRST_UPDATE = 5
# An update is left out if a window ends within a tenth of its iterations before or after it.
NEAR = 10
# Doublings of a trajectory that is not limited: more than any can have.
DEEPEST = 30
# Up to these iterations trajectories are doubled so often at most: before the scales are known
# they are long and say little.
SHALLOW = ((10, 5), (20, 6), (40, 8))
# Share of the warm-up, its end, in which only the step size is tuned.
STEP_SIZE_SHARE = 0.15

# ---------------------------------------------------------------------------------------- step size


@record
class DualAveraging:
    """State of the step size adaptation; all float64, 0-d or, for several, 1-d but the counts.

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
    mean_count : Tensor
        Updates that the mean is taken over.
    """

    centre: TensorBase
    error: TensorBase
    log_step: TensorBase
    log_step_mean: TensorBase
    count: TensorBase
    mean_count: TensorBase


def dual_averaging_start(step_size: TensorBase) -> DualAveraging:
    """Return a fresh state around a step size, a 0-d float64 Tensor.

    Early updates are drawn towards ten times as much: large steps are cheap to try.
    """
    none, zero = 0.0 * step_size, wrap(np.zeros(()))
    return DualAveraging(log(10.0 * step_size), none, log(step_size), none, zero, zero)


def mean_restarted(state: DualAveraging) -> DualAveraging:
    """Return the state whose mean begins anew, without the steps of another mass matrix."""
    return replace(state, mean_count=wrap(np.zeros(())))


def dual_averaging_update(
    state: DualAveraging, accept_prob: TensorBase, target: TensorBase | float
) -> DualAveraging:
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
    mean_count = state.mean_count + 1.0
    weight = exp(-FORGETTING * log(mean_count))
    mean = weight * log_step + (1.0 - weight) * state.log_step_mean
    return DualAveraging(state.centre, error, log_step, mean, count, mean_count)


# Step size, counter, whether the way is known, whether it is up, whether the goal was crossed.
_Search: TypeAlias = tuple[TensorBase, TensorBase, TensorBase, TensorBase, TensorBase]


def find_step_size(
    density: Density,
    metric: Metric,
    key: Key,
    counter: TensorBase,
    point: PhasePoint | HMCState,
    step_size: TensorBase,
) -> tuple[TensorBase, TensorBase]:
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
    dim = point.position.array.shape[0]
    wanted = float(np.log(FIRST_GUESS_ACCEPT))

    def gain(step_size: TensorBase, counter: TensorBase) -> TensorBase:
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

    def searching(state: _Search) -> TensorBase:
        size, _, _, _, crossed = state
        return ~crossed & (size > SMALLEST_STEP_SIZE) & (size < LARGEST_STEP_SIZE)

    def body(state: _Search) -> _Search:
        # The first try says which way to go, so that the program has one leapfrog step only.
        size, counter, known, up, _ = state
        accepted = gain(size, counter) > wanted
        crossed = known & (accepted ^ up)
        factor = where(~known | crossed, 1.0, where(up, 2.0, 0.5))
        up = (known & up) | (~known & accepted)
        return size * factor, counter + dim, known | ~known, up, crossed

    no = wrap(np.asarray(False))
    step_size, counter, *_ = while_loop(searching, body, (step_size, counter, no, no, no))
    return step_size, counter


class Tuner(Protocol):
    """What the program itself tunes, after each transition; a record, its state the fields.

    Attributes
    ----------
    tunes : str
        The field of the kernel that a search begins with, a step size say.
    fields : tuple of str
        All that are tuned.
    follows : str
        The field of the info that says how well it does, and is compared with `target`.
    searches : bool
        Whether the kernel has a ``first_guess(key, state) -> (value, state)``, in tensor ops.
    """

    @property
    def target(self) -> TensorBase:
        """What to aim at, 0-d."""

    @property
    def tunes(self) -> str:
        """The field that a search begins with."""

    @property
    def follows(self) -> str:
        """The field of the info that is compared with the target."""

    @property
    def searches(self) -> bool:
        """Whether the kernel finds a first value."""

    @property
    def fields(self) -> tuple[str, ...]:
        """All fields of the kernel that are tuned."""

    def restarted(self, value: TensorBase) -> Self:
        """Return it as it is around another value of what it `tunes`, a Tensor."""

    def updated(self, info: object, wanted: TensorBase) -> tuple[Self, dict[str, TensorBase]]:
        """Return the tuner after a transition, and the values of its `fields` to go on with.

        The tuner is unchanged where `wanted`, a bool Tensor, is not.
        """

    def refocused(self) -> Self:
        """Return it ready to settle: what else is learnt, a metric say, changes no more."""

    def settled(self) -> dict[str, TensorBase]:
        """Return the values of its `fields` to keep after warm-up."""

    def aimed_at(self) -> TensorBase:
        """Return what it aims at as it stands: `target`, or what it made of that."""


@record
class AcceptanceTuner:
    """Tunes a positive number by an acceptance, with dual averaging; see `Tuner`.

    Parameters
    ----------
    averaging : DualAveraging
    target : Tensor, 0-d
        The acceptance to aim at.
    easing : Easing, optional
        Lowers it where trajectories become shorter by that.
    tunes, follows : str
    searches : bool
    """

    averaging: DualAveraging
    target: TensorBase
    easing: Easing | None = None
    tunes: str = static(default="step_size")
    follows: str = static(default="accept_symmetric")
    searches: bool = static(default=True)

    @classmethod
    def around(
        cls,
        value: float | np.ndarray,
        target: float | np.ndarray,
        *,
        follows: str = "accept_symmetric",
        searches: bool = True,
    ) -> AcceptanceTuner:
        """Return the tuner of a number, or of several, that have this value to begin with."""
        averaging = dual_averaging_start(wrap(np.asarray(value)))
        return cls(averaging, wrap(np.asarray(target)), follows=follows, searches=searches)

    @property
    def fields(self) -> tuple[str, ...]:
        """The one that it tunes."""
        return (self.tunes,)

    def restarted(self, value: TensorBase) -> AcceptanceTuner:
        """Return it as it is around another value, a Tensor."""
        return replace(self, averaging=dual_averaging_start(value))

    def updated(
        self, info: object, wanted: TensorBase
    ) -> tuple[AcceptanceTuner, dict[str, TensorBase]]:
        """Return the tuner after a transition, and the value to go on with."""
        acceptance: TensorBase = getattr(info, self.follows)
        easing = self.easing
        if easing is not None:
            steps: TensorBase = getattr(info, "n_steps")  # noqa: B009  # any kernel's with an easing
            longer = self.averaging.log_step > self.averaging.log_step_mean
            easing = easing.updated(steps, acceptance, longer)
        new = replace(self, easing=easing)
        averaging = dual_averaging_update(self.averaging, acceptance, new.aimed_at())
        if acceptance.array.ndim:
            averaging = _where_told(acceptance, averaging, self.averaging)
        new = replace(new, averaging=averaging)
        kept = map_tree(lambda new, old: where(wanted, new, old), new, self)
        return kept, {self.tunes: exp(averaging.log_step)}

    def refocused(self) -> AcceptanceTuner:
        """Return it with a mean that begins anew, and what it aims at settled."""
        easing = None if self.easing is None else self.easing.refocused()
        return replace(self, averaging=mean_restarted(self.averaging), easing=easing)

    def settled(self) -> dict[str, TensorBase]:
        """Return the mean."""
        return {self.tunes: wrap(np.exp(self.averaging.log_step_mean.array))}

    def aimed_at(self) -> TensorBase:
        """Return the acceptance that it aims at, the lower one where it is eased."""
        return self.target if self.easing is None else self.easing.of(self.target)


def _where_told(acceptance: TensorBase, new: DualAveraging, old: DualAveraging) -> DualAveraging:
    """The new state of several numbers; one whose acceptance is nan keeps its value."""
    untold = isnan(acceptance)
    return replace(
        new,
        error=where(untold, old.error, new.error),
        log_step=where(untold, old.log_step, new.log_step),
        log_step_mean=where(untold, old.log_step, new.log_step_mean),
    )


def check_found(value: float) -> None:
    """Raise unless the search for a first value came to an end.

    Raises
    ------
    InferenceError
    """
    if SMALLEST_STEP_SIZE < value < LARGEST_STEP_SIZE:
        return
    got, fix = (
        ("rejection down to 1e-30", "look for a jump in the log density, or a wrong gradient")
        if value <= SMALLEST_STEP_SIZE
        else ("acceptance up to 1e7", "the posterior is flat: give parameters proper priors")
    )
    raise InferenceError(
        "no step size for the sampler",
        expected="a leapfrog step that is accepted with probability near 0.8",
        got=got,
        fix=fix,
    )


# --------------------------------------------------------------------------------------- the course


class Learner(Protocol):
    """What is learnt from the draws of one chain, between calls of the program; see `MassMatrix`.

    Attributes
    ----------
    learns : str
        The field of the kernel that is set.
    """

    learns: str

    def add(self, positions: np.ndarray, grads: np.ndarray | None) -> None:
        """Take down what was drawn; it counts from the end of the segment on."""

    def end_segment(self, *, switch: bool) -> None:
        """Let what was added count; `switch` forgets what is older than the background window."""

    def learnt(self, now: Any, *, choose: bool, last: bool = False) -> Any:
        """Return the value to go on with, given the present one; see `Segment`."""

    def shift(self) -> float | None:
        """Return how far two windows are apart, in standard deviations; None where unknown."""

    def forget(self) -> None:
        """Begin anew."""

    def snapshot(self) -> Tree:
        """Return all of it, as a tree for `probtorch.save`."""

    def restore(self, saved: Tree) -> None:
        """Take over what `snapshot` returned."""


@dataclass(frozen=True)
class Warmup:
    """What happens before draws count; without arguments, nothing but moving on.

    Parameters
    ----------
    tuner : Tuner, optional
        Part of the program; as a chain begins with it.
    tunes : bool
        Whether the tuner's value is followed.
    searches : bool
        Whether the kernel's `first_guess` is asked for the value to begin with.
    learner : callable, optional
        ``learner(target, position)``, the `Learner` of a chain that starts there.
    shallow : bool
        Whether the kernel has a field `depth`, which the first segments keep small.
    """

    tuner: Tuner | None = None
    tunes: bool = True
    searches: bool = False
    learner: Callable[[Target, np.ndarray], Learner] | None = None
    shallow: bool = False

    @property
    def follows(self) -> bool:
        """Whether there is something to tune, and it is tuned."""
        return self.tuner is not None and self.tunes

    @property
    def does_something(self) -> bool:
        """Whether anything is tuned or learnt."""
        return self.follows or self.learner is not None

    def segments(self, length: int, *, search: bool = True) -> list[Segment]:
        """Return `length` iterations as segments; `search` only at the beginning of a chain."""
        return schedule(
            length,
            adapt_step_size=self.follows,
            adapt_mass_matrix=self.learner is not None,
            search=search and self.searches,
            shallow=self.shallow,
        )


@dataclass(frozen=True)
class Segment:
    """A stretch of warm-up iterations that is run as one.

    Parameters
    ----------
    length : int
        Iterations.
    search : bool
        Whether to look for a step size first, and start dual averaging around it.
    learn : bool
        Whether draws and gradients enter the windows of the mass matrix.
    switch : bool
        Whether the background window becomes the foreground at the end.
    update : bool
        Whether the mass matrix is set from the foreground at the end, after the switch.
    choose : bool
        Whether that may take the time to change to another form or to decompose matrices.
    last : bool
        Whether it is the last update, and may take longer still.
    values : dict of str to number
        What fields of the kernel are meanwhile.
    """

    length: int
    search: bool = False
    learn: bool = False
    switch: bool = False
    update: bool = False
    choose: bool = False
    last: bool = False
    values: Mapping[str, float] = field(default_factory=dict)


def switches(stop: int) -> list[int]:
    """Return the iterations below `stop` at which a window of the mass matrix becomes the oldest.

    Each window is 0.43 times as long as all before it, 10 at least, and the last one has room for
    another of its kind: what is estimated at the end comes from the last 40 to 70 % of the draws.

    Examples
    --------
    >>> switches(340)
    [10, 20, 30, 42, 60, 85, 121, 173]
    """
    found, at = [], 0
    while True:
        at += max(SHORTEST_WINDOW, int(WINDOW_GROWTH * at))
        if at + max(SHORTEST_WINDOW, int(WINDOW_GROWTH * at)) > stop:
            return found
        found.append(at)


def schedule(
    num_warmup: int,
    *,
    adapt_step_size: bool = True,
    adapt_mass_matrix: bool = True,
    search: bool = True,
    shallow: bool = False,
) -> list[Segment]:
    """Return the warm-up as a list of `Segment`; their lengths sum to `num_warmup`.

    Parameters
    ----------
    num_warmup : int
    adapt_step_size, adapt_mass_matrix : bool
    search : bool
        Whether to look for a first step size.
    shallow : bool
        Whether the first trajectories are to be short (`SHALLOW`).

    Notes
    -----
    The mass matrix is updated every few draws from the fifth on; the last 15 % of the iterations
    tune the step size only.
    """
    return list(_schedule(num_warmup, adapt_step_size, adapt_mass_matrix, search, shallow))


@functools.lru_cache(maxsize=32)
def _schedule(
    num_warmup: int, adapt_step_size: bool, adapt_mass_matrix: bool, search: bool, shallow: bool
) -> tuple[Segment, ...]:
    last = max(int(STEP_SIZE_SHARE * num_warmup), 1) if adapt_step_size and num_warmup else 0
    stop = num_warmup - last if adapt_mass_matrix else 0
    changes = switches(stop)
    chosen = {*changes, stop}
    # A long last window is chosen from halfway, too.
    chosen.add((stop + (changes[-1] if changes else 0)) // 2)
    updates, at = set(chosen), FIRST_UPDATE
    while at < stop:
        # None beside one of those: what came between them would change little.
        if not any(0 < abs(at - other) < at // NEAR for other in chosen):
            updates.add(at)
        at += FIRST_UPDATE if at < 4 * FIRST_UPDATE else max(2 * FIRST_UPDATE, at // 5)
    segments, begin = [], 0
    for end in sorted(updates - {0}):
        segments.append(
            Segment(
                end - begin,
                learn=True,
                switch=end in changes,
                update=True,
                choose=end in chosen,
                last=end == stop,
                values=_depth(end) if shallow else {},
            )
        )
        begin = end
    if num_warmup > stop:
        segments.append(Segment(num_warmup - stop, values=_depth(np.inf) if shallow else {}))
    if segments and search and adapt_step_size:
        segments[0] = replace(segments[0], search=True)
    return tuple(segments)


def _depth(end: float) -> dict[str, int]:
    return {"depth": next((depth for stop, depth in SHALLOW if end <= stop), DEEPEST)}
