"""MEADS: generalised Hamiltonian Monte Carlo of many chains, with nothing to tune.

Walkers are dealt into folds. Scales, step size and how long momentum is remembered are computed,
before each move, for a fold from where the walkers of another one stand and from their gradients.
What depends on others only leaves the target of each walker as it is, so this goes on for ever, and
there is no warm-up but for moving to the posterior. One fold is held while the others move: with
folds in a circle, each by its neighbour, it is where the circle is cut.

A draw is as many moves as there are folds, of which each walker makes all but one; then walkers are
dealt anew. What a move is, ghmc.py says.

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
from probtorch.core.tree import record, static
from probtorch.errors import ArgumentError
from probtorch.infer.mcmc.integrators import PhasePoint, leapfrog
from probtorch.infer.mcmc.kernel import Kernel, statistic
from probtorch.infer.mcmc.kernels.ghmc import onwards
from probtorch.infer.mcmc.kernels.hmc import DIVERGENCE_THRESHOLD, acceptance, energy_drop
from probtorch.infer.mcmc.kernels.walkers import evaluated
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
        Made so far; momentum and level are to be drawn where there are none.
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
    """What the moves of each walker came to; all of shape (walkers,).

    Parameters
    ----------
    accept_prob, step_size : Tensor
        Means over the moves.
    diverging : Tensor, bool
    lp : Tensor
    n_steps : Tensor, int64
    """

    accept_prob: TensorBase = statistic("acceptance_rate")
    step_size: TensorBase = statistic("step_size")
    diverging: TensorBase = statistic("diverging", dtype=bool, combine=np.logical_or)
    lp: TensorBase = statistic("lp")
    n_steps: TensorBase = statistic("n_steps", dtype=np.int64, combine=np.add)


# Which move is next, the state, sums of acceptances and of step sizes, and who diverged.
_Round: TypeAlias = tuple[TensorBase, MEADSState, TensorBase, TensorBase, TensorBase]
_Points: TypeAlias = tuple[TensorBase, PhasePoint]


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
    >>> mcmc = MCMC(MEADS(target, walkers=16), num_samples=500, seed=1, progress_bar=False)
    >>> mcmc.run()
    Draws(16 chains x 500 draws: x (2))
    """

    info = MEADSInfo

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
        """Return ``(state, info)`` after as many moves as there are folds."""
        members, dim = state.position.shape
        each = wrap(np.arange(members))
        drawn = uniform(key, state.counter + each)
        # Ranks of random numbers are a random order.
        rank = (drawn.reshape(members, 1) > drawn.reshape(1, members)).long().sum(1)
        fold = rank // (members // self.folds)
        counter = state.counter + members
        begun = state.moves > 0
        level = where(begun, state.level, 2.0 * uniform(key, counter + each) - 1.0)
        counter = counter + members
        first = normals(key, counter, members * dim).reshape(members, dim)
        counter = counter + members * dim
        start = MEADSState(
            state.position,
            where(begun, state.momentum, first),
            level,
            state.moves,
            state.logdensity,
            state.grad,
            counter,
        )

        def move(carry: _Round) -> _Round:
            held, state, accepted, sizes, lost = carry
            state, accept_prob, step_size, diverging = self._move(key, state, fold, held)
            return held + 1, state, accepted + accept_prob, sizes + step_size, lost | diverging

        none, no = wrap(np.zeros(members)), wrap(np.zeros(members, bool))
        begin = wrap(np.array(0)), start, none, none, no
        _, new, accepted, sizes, lost = while_loop(lambda c: c[0] < self.folds, move, begin)
        made = self.folds - 1
        info = MEADSInfo(
            accepted / made,
            sizes / made,
            lost,
            new.logdensity,
            wrap(np.full(members, made)),
        )
        return new, info

    def _move(
        self, key: Key, state: MEADSState, fold: TensorBase, held: TensorBase
    ) -> tuple[MEADSState, TensorBase, TensorBase, TensorBase]:
        """Return the state after a move of all folds but one, and what that came to."""
        members, dim = state.position.shape
        neighbour = (fold + (self.folds - 1)) % self.folds
        scales, sizes, damping = self._settings(state, fold)
        scale, step_size = scales[neighbour], sizes[neighbour]
        share = 1.0 - exp(-2.0 * step_size * damping[neighbour])
        noise = normals(key, state.counter, members * dim).reshape(members, dim)
        row = share.reshape(members, 1)
        momentum = sqrt(1.0 - row) * state.momentum + sqrt(row) * noise
        level = onwards(state.level, 0.5 * share)
        moves = fold != held

        def step(carry: _Points) -> _Points:
            k, ends = carry

            def taken(ends: PhasePoint) -> PhasePoint:
                start = PhasePoint(
                    state.position[k], momentum[k], state.logdensity[k], state.grad[k]
                )
                end = leapfrog(self.density, DiagonalMetric(scale[k]), start, step_size[k])
                return PhasePoint(
                    index_put(ends.position, (k,), end.position),
                    index_put(ends.momentum, (k,), end.momentum),
                    index_put(ends.logdensity, (k,), end.logdensity),
                    index_put(ends.grad, (k,), end.grad),
                )

            return k + 1, cond(moves[k], taken, lambda ends: ends, ends)

        starts = PhasePoint(state.position, momentum, state.logdensity, state.grad)
        _, ends = while_loop(lambda c: c[0] < members, step, (wrap(np.array(0)), starts))

        energy = 0.5 * total(momentum * momentum, 1) - state.logdensity
        drop = energy_drop(energy, 0.5 * total(ends.momentum * ends.momentum, 1) - ends.logdensity)
        accepted = moves & (log(absolute(level)) < drop)
        row = accepted.reshape(members, 1)
        turned = where(row, ends.momentum, -momentum)
        new = MEADSState(
            where(row, ends.position, state.position),
            where(moves.reshape(members, 1), turned, state.momentum),
            where(
                moves, where(accepted, level * exp(-where(accepted, drop, 0.0)), level), state.level
            ),
            state.moves + 1,
            where(accepted, ends.logdensity, state.logdensity),
            where(row, ends.grad, state.grad),
            state.counter + members * dim,
        )
        accept_prob, _ = acceptance(drop)
        diverging = moves & ~(drop > -DIVERGENCE_THRESHOLD)
        return new, where(moves, accept_prob, 0.0), where(moves, step_size, 0.0), diverging

    def _settings(
        self, state: MEADSState, fold: TensorBase
    ) -> tuple[TensorBase, TensorBase, TensorBase]:
        """Return what each fold says: scales (folds, dim), step sizes and dampings (folds,)."""
        size = self.walkers // self.folds
        of_fold = (fold.reshape(1, -1) == wrap(np.arange(self.folds).reshape(-1, 1))).double()
        together = matmul(of_fold.transpose(0, 1), of_fold)

        def largest(rows: TensorBase) -> TensorBase:
            """The largest eigenvalue of each fold's second moments: of their square, by trace."""
            products = matmul(rows, rows.transpose(0, 1))
            squares = matmul(of_fold, total(together * products * products, 1)) / size**2
            return squares / clamp(matmul(of_fold, total(rows * rows, 1)) / size, min=1e-300)

        centred = state.position - (matmul(of_fold, state.position) / size)[fold]
        variance = matmul(of_fold, centred * centred) / size
        scales = where(variance > 0.0, sqrt(variance), 1.0)
        mine = scales[fold]
        curvature = largest(state.grad * mine)
        step_size = clamp(STEP_SHARE / sqrt(clamp(curvature, min=1e-300)), max=LONGEST_STEP)
        slowest = 1.0 / sqrt(clamp(largest(centred / mine), min=1e-300))
        # In the beginning, when walkers are far out, momentum is forgotten sooner.
        early = 1.0 / (step_size * (state.moves + 1).double())
        return scales, step_size, maximum(slowest, early)
