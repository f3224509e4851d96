"""MEADS: generalised Hamiltonian Monte Carlo of many chains, with nothing to tune.

For each draw walkers are dealt into folds, and the folds move one after the other. Scales, step
size and how long momentum is remembered are computed for a fold from where the walkers of another
one stand and from their gradients. What depends on others only leaves the target of each walker as
it is, so this goes on for ever, and there is no warm-up but for moving to the posterior.

The paper moves all folds but one at once, each by its neighbour in a circle, and cuts the circle at
the one that is held. Here that one moves after them, by its neighbour as it is then: a draw is one
move of each walker, and one gradient. What a move is, ghmc.py says.

References
----------
M. D. Hoffman, P. Sountsov, "Tuning-free generalized Hamiltonian Monte Carlo", AISTATS (2022).
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import record, replace, static
from probtorch.errors import ArgumentError
from probtorch.infer.mcmc.inlined import InlinedDensity
from probtorch.infer.mcmc.integrators import Density, PhasePoint, leapfrog
from probtorch.infer.mcmc.kernel import Kernel, statistic
from probtorch.infer.mcmc.kernels.ghmc import onwards
from probtorch.infer.mcmc.kernels.hmc import DIVERGENCE_THRESHOLD, acceptance, energy_drop
from probtorch.infer.mcmc.kernels.walkers import evaluated, row_of, with_row
from probtorch.infer.mcmc.metrics import DiagonalMetric
from probtorch.infer.mcmc.randomness import Key, normals, uniform
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import clamp, maximum, sqrt, where
from probtorch.ops.contraction import matmul
from probtorch.ops.control import cond, while_loop
from probtorch.ops.exponentials import exp, log
from probtorch.ops.indexing import index_put
from probtorch.ops.reduction import sum as total

__all__ = ["MEADS", "MEADSInfo", "MEADSState"]

# The step size by that at which leapfrog steps of a normal with the largest curvature would become
# unstable, a quarter of it; and no more than this [hoffman2022, section 3.2].
STEP_SHARE, LONGEST_STEP = 0.5, 1.0


@record
class MEADSState:
    """What goes on from draw to draw.

    Parameters
    ----------
    position, momentum : Tensor, shape (walkers, dim), float64
        The latter whitened.
    level : Tensor, shape (walkers,)
        As in `GHMCState`.
    moves : Tensor, 0-d int64
        Made so far by each; momentum and level are to be drawn where there are none.
    logdensity : Tensor, shape (walkers,)
    grad : Tensor, shape (walkers, dim)
    counter : Tensor, 0-d int64
    """

    position: TensorBase
    momentum: TensorBase
    level: TensorBase
    moves: TensorBase
    logdensity: TensorBase
    grad: TensorBase
    counter: TensorBase


@record
class MEADSInfo:
    """What the move of each walker came to; all of shape (walkers,).

    Parameters
    ----------
    accept_prob, step_size : Tensor
    diverging : Tensor, bool
    lp : Tensor
    n_steps : Tensor, int64
    """

    accept_prob: TensorBase = statistic("acceptance_rate")
    step_size: TensorBase = statistic("step_size")
    diverging: TensorBase = statistic("diverging", dtype=bool, combine=np.logical_or)
    lp: TensorBase = statistic("lp")
    n_steps: TensorBase = statistic("n_steps", dtype=np.int64, combine=np.add)


# Which fold is next, the state, acceptances, step sizes, and who diverged.
_Round: TypeAlias = tuple[TensorBase, MEADSState, TensorBase, TensorBase, TensorBase]
# Which of the walkers of a fold is next, and where they came to.
_Points: TypeAlias = tuple[TensorBase, PhasePoint]


def _one_step(
    density: Density, metric: DiagonalMetric, starts: PhasePoint, step_size: TensorBase
) -> PhasePoint:
    """Take a leapfrog step from each row: one after the other, or by a density of rows at once."""
    if isinstance(density, InlinedDensity):
        return leapfrog(density, metric, starts, step_size)

    def step(carry: _Points) -> _Points:
        k, ends = carry
        return k + 1, with_row(ends, k, leapfrog(density, metric, row_of(ends, k), step_size))

    size = starts.position.shape[0]
    return while_loop(lambda c: c[0] < size, step, (wrap(np.array(0)), starts))[1]


class MEADS(Kernel[MEADSState]):
    """Generalised Hamiltonian Monte Carlo of many chains that tune each other [hoffman2022]_.

    For many chains: each has one gradient per move, as `GHMC`, and there is nothing to warm up but
    the way to the posterior. The more walkers, the better they know the scales.

    Each walker is a chain of the result: ``num_chains`` ensembles make ``num_chains * walkers``
    chains.

    Parameters
    ----------
    model, potential_fn, init_strategy, reparam
        As for `NUTS`. Starting points that are given have a row for each walker of each ensemble.
    walkers : int
        Points of an ensemble, two for each fold at least, and as many in each.
    folds : int
        Each is tuned by another one.

    References
    ----------
    [hoffman2022]_.

    Examples
    --------
    >>> from probtorch.infer import MCMC, MEADS, Target
    >>> target = Target.from_density(lambda q: -0.5 * (q * q).sum(), dim=2)
    >>> mcmc = MCMC(MEADS(target, walkers=16), num_samples=2000, seed=1, progress_bar=False)
    >>> mcmc.run()
    Draws(16 chains x 2000 draws: x (2))
    """

    info = MEADSInfo
    moves_rows = True

    walkers: int = static(default=32)
    folds: int = static(default=4)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (isinstance(self.folds, int) and self.folds >= 2):
            raise ArgumentError(
                "MEADS(folds=...)",
                expected="an int of at least 2",
                got=f"{self.folds!r:.60}",
                fix="leave it out for 4",
            )
        whole = isinstance(self.walkers, int) and self.walkers % self.folds == 0
        if not (whole and self.walkers >= 2 * self.folds):
            raise ArgumentError(
                "MEADS(walkers=...)",
                expected=f"a multiple of {self.folds}, the folds, and {2 * self.folds} at least",
                got=f"{self.walkers!r:.60}",
                fix=f"give {8 * self.folds}, or more",
            )

    @property
    def members(self) -> int:
        """How many points a state holds."""
        return self.walkers

    def attrs(self) -> dict[str, object]:
        """Return the settings that results should carry."""
        return {**super().attrs(), "walkers": self.walkers, "folds": self.folds}

    def init(self, position: TensorBase, counter: TensorBase | int = 0) -> MEADSState:
        """Return the state at positions, shape (walkers, dim), whose momenta are to be drawn."""
        values, grads = evaluated(self.density, position)
        none = wrap(np.zeros((), np.int64))
        still = 0.0 * position
        return MEADSState(position, still, 0.0 * values, none, values, grads, as_tensor(counter))

    def step(self, key: Key, state: MEADSState) -> tuple[MEADSState, MEADSInfo]:
        """Return ``(state, info)`` after a move of each walker."""
        members, dim = state.position.shape
        each = wrap(np.arange(members))
        # Ranks of random numbers are a random order.
        drawn = uniform(key, state.counter + each)
        rank = (drawn.reshape(members, 1) > drawn.reshape(1, members)).long().sum(1)
        order = index_put(wrap(np.zeros(members, np.int64)), (rank,), each)
        counter = state.counter + members

        def first() -> tuple[TensorBase, TensorBase]:
            momentum = normals(key, counter + members, members * dim).reshape(members, dim)
            return momentum, 2.0 * uniform(key, counter + each) - 1.0

        momentum, level = cond(state.moves > 0, lambda: (state.momentum, state.level), first)
        begun = replace(
            state,
            momentum=momentum,
            level=level,
            moves=state.moves + 1,
            counter=counter + members * (dim + 1),
        )

        def move(carry: _Round) -> _Round:
            # The last fold first: each by one that has not moved, and the first by the last.
            fold, state, accepted, sizes, lost = carry
            size = members // self.folds
            within = wrap(np.arange(size))
            mine = order[fold * size + within]
            others = order[(fold + (self.folds - 1)) % self.folds * size + within]
            state, accept_prob, step_size, diverging = self._move(key, state, mine, others)
            return (
                fold - 1,
                state,
                index_put(accepted, (mine,), accept_prob),
                index_put(sizes, (mine,), step_size + 0.0 * accept_prob),
                index_put(lost, (mine,), diverging),
            )

        none, no = wrap(np.zeros(members)), wrap(np.zeros(members, bool))
        begin = wrap(np.array(self.folds - 1)), begun, none, none, no
        _, new, accepted, sizes, lost = while_loop(lambda c: c[0] >= 0, move, begin)
        ones = wrap(np.ones(members, np.int64))
        return new, MEADSInfo(accepted, sizes, lost, new.logdensity, ones)

    def _move(
        self, key: Key, state: MEADSState, mine: TensorBase, others: TensorBase
    ) -> tuple[MEADSState, TensorBase, TensorBase, TensorBase]:
        """Move walkers by where others are: the state, acceptances, step size, and divergences."""
        size, dim = mine.shape[0], state.position.shape[1]
        scale, step_size, damping = self._settings(state, others)
        share = 1.0 - exp(-2.0 * step_size * damping)
        noise = normals(key, state.counter, size * dim).reshape(size, dim)
        momentum = sqrt(1.0 - share) * state.momentum[mine] + sqrt(share) * noise
        level = onwards(state.level[mine], 0.5 * share)
        starts = PhasePoint(
            state.position[mine], momentum, state.logdensity[mine], state.grad[mine]
        )

        ends = _one_step(self.density, DiagonalMetric(scale), starts, step_size)

        energy = 0.5 * total(momentum * momentum, 1) - starts.logdensity
        drop = energy_drop(energy, 0.5 * total(ends.momentum * ends.momentum, 1) - ends.logdensity)
        accepted = log(absolute(level)) < drop
        row = accepted.reshape(size, 1)
        new = replace(
            state,
            position=index_put(state.position, (mine,), where(row, ends.position, starts.position)),
            momentum=index_put(state.momentum, (mine,), where(row, ends.momentum, -momentum)),
            level=index_put(
                state.level,
                (mine,),
                where(accepted, level * exp(-where(accepted, drop, 0.0)), level),
            ),
            logdensity=index_put(
                state.logdensity, (mine,), where(accepted, ends.logdensity, starts.logdensity)
            ),
            grad=index_put(state.grad, (mine,), where(row, ends.grad, starts.grad)),
            counter=state.counter + size * dim,
        )
        accept_prob, _ = acceptance(drop)
        return new, accept_prob, step_size, ~(drop > -DIVERGENCE_THRESHOLD)

    def _settings(
        self, state: MEADSState, others: TensorBase
    ) -> tuple[TensorBase, TensorBase, TensorBase]:
        """Return what some walkers say: scales (dim,), step size and damping."""
        position, grad = state.position[others], state.grad[others]
        size = position.shape[0]

        def largest(rows: TensorBase) -> TensorBase:
            """The largest eigenvalue of second moments: of their square, by trace."""
            products = matmul(rows, rows.transpose(0, 1))
            squares = total(products * products) / size
            return squares / clamp(total(rows * rows), min=1e-300)

        centred = position - total(position, 0) / size
        variance = total(centred * centred, 0) / size
        scales = where(variance > 0.0, sqrt(variance), 1.0)
        curvature = largest(grad * scales)
        step_size = clamp(STEP_SHARE / sqrt(clamp(curvature, min=1e-300)), max=LONGEST_STEP)
        slowest = 1.0 / sqrt(clamp(largest(centred / scales), min=1e-300))
        # In the beginning, when walkers are far out, momentum is forgotten sooner.
        early = 1.0 / (step_size * state.moves.double())
        return scales, step_size, maximum(slowest, early)
