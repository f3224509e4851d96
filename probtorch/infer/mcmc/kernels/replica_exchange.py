"""Replica exchange: chains at several temperatures side by side, which swap places.

Replica i samples the density to the power of ``inverse_temperatures[i]``, by a kernel of any kind;
the lower the power, the lower the walls between modes. After each transition neighbours propose to
swap, even pairs and odd pairs in turn: what is in a mode of its own at the top comes down, step by
step. Only the replica at 1 is in the results. How far apart the powers are is tuned in warm-up
(warm_up/temperatures.py), unless they are given.

All replicas share step size and metric, the latter in units of ``1 / sqrt(power)``: a Gaussian to
that power has so much wider scales, and the same acceptance.

References
----------
R. H. Swendsen, J.-S. Wang, "Replica Monte Carlo simulation of spin glasses", Physical Review
Letters 57 (1986). S. Syed, A. Bouchard-Cote, G. Deligiannidis, A. Doucet, "Non-reversible parallel
tempering: a scalable highly parallel MCMC scheme", JRSS B 84 (2022), for pairs in turn.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Self, cast

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import map_tree, record, replace
from probtorch.errors import ArgumentError
from probtorch.infer.mcmc.integrators import Density
from probtorch.infer.mcmc.kernel import S, setting, statistic, tuned
from probtorch.infer.mcmc.kernels.nested import NestedKernel
from probtorch.infer.mcmc.kernels.random_walk import PointState, accept_probability
from probtorch.infer.mcmc.kernels.stepping import MetricKernel
from probtorch.infer.mcmc.metrics import Metric
from probtorch.infer.mcmc.randomness import Key, uniform
from probtorch.infer.mcmc.warm_up.adaptation import Warmup
from probtorch.infer.mcmc.warm_up.temperatures import PowersTuner
from probtorch.ops.arithmetic import maximum, minimum, where
from probtorch.ops.control import while_loop
from probtorch.ops.indexing import index_put
from probtorch.ops.movement import expand, unsqueeze

if TYPE_CHECKING:
    from probtorch.infer.potential import Target
    from probtorch.infer.results import SampledDraws

__all__ = ["ReplicaExchange", "ReplicaInfo", "ReplicaState"]

# Eight powers from 1 to 1/50: neighbours swap often in up to ten dimensions or so.
DEFAULT_POWERS = tuple(float(x) for x in np.geomspace(1.0, 0.02, 8))


@record
class Tempered:
    """A density to a power, for a kernel."""

    density: Density
    power: TensorBase

    def __call__(self, position: TensorBase) -> tuple[TensorBase, TensorBase]:
        value, grad = self.density(position)
        return self.power * value, self.power * grad


@record
class WidenedMetric:
    """A metric in which all scales are wider by a factor; what a step asks of it."""

    metric: Metric
    factor: TensorBase

    def velocity(self, momentum: TensorBase) -> TensorBase:
        """Return dq/dt for a whitened momentum."""
        return self.factor * self.metric.velocity(momentum)

    def force(self, grad: TensorBase) -> TensorBase:
        """Return dp/dt of the whitened momentum for a gradient of the log density."""
        return self.factor * self.metric.force(grad)


@record
class ReplicaState:
    """All replicas, the one at 1 first.

    Parameters
    ----------
    replicas : record
        The kernel's states, each of their fields with a first dim more; log densities and gradients
        are those of the powers.
    powers : Tensor, shape (replicas,)
        Those powers.
    origin : Tensor, shape (replicas,), int64
        Where what is in a replica has begun.
    turn : Tensor, 0-d int64
        Transitions so far: even and odd pairs swap in turn.
    counter : Tensor, 0-d int64
    """

    replicas: PointState
    powers: TensorBase
    origin: TensorBase
    turn: TensorBase
    counter: TensorBase

    @property
    def position(self) -> TensorBase:
        """That of the replica at 1."""
        return self.replicas.position[0]

    @property
    def logdensity(self) -> TensorBase:
        """That of the replica at 1."""
        return self.replicas.logdensity[0]

    @property
    def grad(self) -> TensorBase:
        """That of the replica at 1, if the kernel's states have gradients."""
        return self.replicas.grad[0]  # type: ignore[attr-defined]  # of those that have one


@record
class ReplicaInfo:
    """What became of one transition of all replicas, and of the swaps after it.

    Parameters
    ----------
    accept_prob, followed : Tensor
        Mean over all replicas of the acceptance, and of what the step size is tuned by.
    lp : Tensor
        Log density of the replica at 1.
    swap_prob : Tensor
        Mean over the pairs that proposed to swap of the probability that they do.
    pair_probs : Tensor, shape (replicas,)
        The probability that each replica and the next would swap; 1 for the last.
    replica : Tensor, int64
        Where what is at 1 now has begun: it changes often if replicas travel well.
    diverging : Tensor, bool
        Whether the replica at 1 diverged, where the kernel tells.
    n_steps : Tensor, int64
        Evaluations of the density by all replicas.
    """

    accept_prob: TensorBase = statistic("acceptance_rate")
    followed: TensorBase = statistic()
    lp: TensorBase = statistic("lp")
    swap_prob: TensorBase = statistic("swap_rate")
    pair_probs: TensorBase = statistic(like="powers")
    replica: TensorBase = statistic("replica", dtype=np.int64)
    diverging: TensorBase = statistic("diverging", dtype=bool, combine=np.logical_or)
    n_steps: TensorBase = statistic("n_steps", dtype=np.int64, combine=np.add)


# What is carried from replica to replica: its number, all states, the counter; sums of the
# acceptance, of what the step size is tuned by, and of evaluations; whether the first one diverged.
_Round = tuple[TensorBase, PointState, TensorBase, TensorBase, TensorBase, TensorBase, TensorBase]


class ReplicaExchange(NestedKernel[ReplicaState]):
    """Replica exchange, or parallel tempering [swendsen1986]_, for posteriors with several modes.

    A transition costs as much as one of the kernel for each replica. Neighbours should swap in a
    fifth to two thirds of their tries: see ``swap_rate`` in `sample_stats`; if it is lower, take
    more replicas. The lowest power has to be so low that modes merge. Warm-up moves the powers
    between the first and the last so that all neighbours swap equally often [syed2022]_; where each
    chain has them then is in the results' ``attrs["adapted_inverse_temperatures"]``.

    Parameters
    ----------
    kernel : HMC, NUTS, MALA, Slice, RandomWalk or another kernel with a metric
        With the model; its settings hold for all replicas.
    inverse_temperatures : sequence of float, optional
        Powers of the density, from 1 downwards, all above 0: eight from 1 to 0.02 in equal ratios
        by default. In coordinates without constraints: where the density has tails like those of a
        Cauchy, a low power of it has no integral.
    adapt_temperatures : bool, optional
        Whether warm-up moves those between the first and the last. By default it does unless they
        are given: ``inverse_temperatures=np.geomspace(1.0, 0.01, 12), adapt_temperatures=True`` is
        a ladder of twelve that it begins with.

    References
    ----------
    [swendsen1986]_, [syed2022]_.

    Examples
    --------
    >>> import probtorch
    >>> from probtorch.infer import HMC, MCMC, ReplicaExchange, Target
    >>> def two_modes(q):
    ...     return probtorch.logaddexp(-8.0 * (q[0] - 1.0) ** 2, -8.0 * (q[0] + 1.0) ** 2)
    >>> kernel = HMC(Target.from_density(two_modes, dim=1), num_steps=5)
    >>> powers = [1.0, 0.4, 0.1]
    >>> kernel = ReplicaExchange(kernel, inverse_temperatures=powers)
    >>> mcmc = MCMC(kernel, num_samples=2000, num_chains=4, seed=1, progress_bar=False)
    >>> draws = mcmc.run()
    >>> bool(abs((draws.posterior["x"] > 0.0).mean() - 0.5) < 0.05)
    True
    """

    info: ClassVar[type] = ReplicaInfo

    inverse_temperatures: tuple[float, ...] = setting(default=DEFAULT_POWERS)
    adapt_temperatures: bool = setting(default=True)
    powers: TensorBase = tuned(default=None)

    def __init__(
        self,
        kernel: MetricKernel[S],
        *,
        inverse_temperatures: Sequence[float] | None = None,
        adapt_temperatures: bool | None = None,
    ) -> None:
        self._surround(cast("MetricKernel[PointState]", kernel))
        given = inverse_temperatures is not None
        powers = DEFAULT_POWERS if inverse_temperatures is None else _checked(inverse_temperatures)
        self._set(
            inverse_temperatures=powers,
            adapt_temperatures=not given
            if adapt_temperatures is None
            else bool(adapt_temperatures),
            powers=wrap(np.array(powers)),
        )
        self.__post_init__()

    @property
    def warmup(self) -> Warmup:
        """That of the kernel inside, and the powers."""
        inside = super().warmup
        if not self.adapt_temperatures:
            return inside
        tuner = inside.tuner if inside.follows else None
        tuner = PowersTuner.around(np.array(self.inverse_temperatures), tuner)
        return replace(inside, tuner=tuner, tunes=True, searches=tuner.searches and inside.searches)

    def first_of(self, state: ReplicaState) -> PointState:
        """Return the replica at 1."""
        first = cast("PointState", map_tree(lambda x: x[0], state.replicas))
        return replace(first, counter=state.counter)

    def kernel_of(self, state: ReplicaState) -> MetricKernel[PointState]:
        """Return the kernel for the replica at 1."""
        return self._at(wrap(np.ones(())))

    def attrs(self) -> dict[str, object]:
        """Return the settings that results should carry."""
        powers = list(self.inverse_temperatures)
        own = {"inverse_temperatures": powers, "adapt_temperatures": self.adapt_temperatures}
        return {**super().attrs(), **own}

    def of_run(
        self, target: Target, kernels: Sequence[Self], draws: SampledDraws
    ) -> Mapping[str, object]:
        """Return the powers of each chain, where warm-up has moved them."""
        if not self.adapt_temperatures:
            return {}
        return {"adapted_inverse_temperatures": [k.powers.array.tolist() for k in kernels]}

    # ------------------------------------------------------------------------------------ replicas

    def _at(self, power: TensorBase) -> MetricKernel[PointState]:
        """The kernel for a power."""
        metric = WidenedMetric(cast("Metric", self.metric), power ** (-0.5))
        return self.surrounding(Tempered(self.density, power), metric)

    def init(self, position: TensorBase, counter: TensorBase | int = 0) -> ReplicaState:
        """Return the state in which all replicas are at a position, shape (dim,)."""
        first = replace(self._inner, density=self.density).init(position, counter)
        everyone, powers = wrap(np.arange(self._count)), self.powers
        alike = map_tree(lambda x: expand(x, self._count, *x.array.shape), first)
        zero = wrap(np.array(0))
        replicas = self._scaled(alike, powers)
        return ReplicaState(replicas, powers, everyone, zero, as_tensor(counter))

    def resumed(self, state: ReplicaState) -> ReplicaState:
        """Return the state with the densities of all replicas taken anew, if they have changed."""
        parts = []
        for i, power in enumerate(state.powers.array):
            kernel = self._at(wrap(np.array(power)))
            parts.append(kernel.resumed(map_tree(lambda x, i=i: x[i], state.replicas)))
        whole = map_tree(lambda *rows: wrap(np.stack([x.array for x in rows])), *parts)
        was, now = state.replicas.logdensity.array, whole.logdensity.array
        # What was swapped has been scaled to its power, which rounds.
        return state if np.allclose(was, now, rtol=1e-12) else replace(state, replicas=whole)

    @property
    def _count(self) -> int:
        """How many replicas there are."""
        return self.powers.array.shape[0]

    def _scaled(self, replicas: PointState, factors: TensorBase) -> PointState:
        """States whose log densities and gradients are multiplied by a factor each."""
        scaled = replace(replicas, logdensity=factors * replicas.logdensity)
        if not hasattr(replicas, "grad"):
            return scaled
        return replace(scaled, grad=unsqueeze(factors, 1) * replicas.grad)

    def step(self, key: Key, state: ReplicaState) -> tuple[ReplicaState, ReplicaInfo]:
        """Return ``(state, info)`` after a transition of each replica, and swaps."""
        count, powers = self._count, self.powers
        # The powers that the last transition was made at may have been others.
        before = self._scaled(state.replicas, powers / state.powers)
        state = replace(state, powers=powers)

        def move(carry: _Round) -> _Round:
            k, replicas, counter, accepted, followed, taken, diverging = carry
            mine = replace(map_tree(lambda x: x[k], replicas), counter=counter)
            new, info = self._at(powers[k]).step(key, mine)
            told = self.told(info)
            return (
                k + 1,
                map_tree(lambda whole, row: index_put(whole, (k,), row), replicas, new),
                new.counter,
                accepted + told.accept_prob,
                followed + told.followed,
                taken + told.n_steps,
                diverging | (told.diverging & (k == 0)),
            )

        nil, none = wrap(np.zeros(())), wrap(np.array(0))
        no = wrap(np.asarray(False))
        start = none, before, state.counter, nil, nil, none, no
        _, replicas, counter, accepted, followed, taken, diverging = while_loop(
            lambda carry: carry[0] < count, move, start
        )
        new, swap_prob, pair_probs = self._swapped(
            key, replace(state, replicas=replicas, counter=counter)
        )
        info = ReplicaInfo(
            accepted / count,
            followed / count,
            new.logdensity,
            swap_prob,
            pair_probs,
            new.origin[0],
            diverging,
            taken,
        )
        return new, info

    def _swapped(
        self, key: Key, state: ReplicaState
    ) -> tuple[ReplicaState, TensorBase, TensorBase]:
        """The state after swaps of even or odd pairs, the mean of their probabilities, and all."""
        count, powers = self._count, state.powers
        place = wrap(np.arange(count))
        # A neighbour for each place, on this side or the other; itself at an end that is left over.
        beside = where((place + state.turn) % 2 == 0, place + 1, place - 1)
        beside = where((beside < 0) | (beside >= count), place, beside)
        plain = state.replicas.logdensity / powers

        def chance(other: TensorBase) -> TensorBase:
            return accept_probability((powers - powers[other]) * (plain[other] - plain))

        prob = chance(beside)
        # Both of a pair look at the number of the first.
        drawn = uniform(key, state.counter + where(beside < place, beside, place))
        order = where(drawn < prob, beside, place)
        paired = (beside != place).double()
        mean = (paired * prob).sum() / maximum(paired.sum(), 1.0)
        replicas = map_tree(lambda x: x[order], state.replicas)
        replicas = self._scaled(replicas, powers / powers[order])
        origin, turn = state.origin[order], state.turn + 1
        new = ReplicaState(replicas, powers, origin, turn, state.counter + count)
        return new, mean, chance(minimum(place + 1, count - 1))


def _checked(powers: Sequence[float]) -> tuple[float, ...]:
    """Powers as floats, from 1 downwards."""
    try:
        given = tuple(float(x) for x in powers)
    except (TypeError, ValueError):
        given = ()
    falling = all(a > b for a, b in itertools.pairwise(given))
    if len(given) < 2 or given[0] != 1.0 or not falling or not given[-1] > 0.0:
        raise ArgumentError(
            "ReplicaExchange(inverse_temperatures=...)",
            expected="two numbers or more that fall from 1.0 and stay above 0",
            got=f"{powers!r:.60}",
            fix="write, say, inverse_temperatures=[1.0, 0.5, 0.2, 0.1]",
        )
    return given
