"""`InvolutiveMCMC`: moves between runs of a model with different sites, as the user states them.

A move has two parts: an auxiliary model, which draws what is needed to make a new run of the
present one, and an involution, a deterministic function that turns run and auxiliary draws into a
new run and the draws that would lead back from it. Applied twice it changes nothing. With p the
model's joint density and q the auxiliary model's, the new run is accepted with probability

    min(1, p(run') q(aux' | run') / (p(run) q(aux | run)) |det J|),

where J is the Jacobian of the continuous values of (run', aux') in those of (run, aux), which
automatic differentiation finds. Reversible jump MCMC, splits and merges, births and deaths,
Metropolis and Gibbs moves are all of this form.

What the user cannot be trusted with is checked at each proposal (involution_checks.py).

References
----------
P. J. Green, "Reversible jump Markov chain Monte Carlo computation and Bayesian model
determination", Biometrika 82 (1995). M. F. Cusumano-Towner, A. K. Lew, V. K. Mansinghka,
"Automating involutive MCMC using probabilistic and differentiable programming", arXiv:2007.09871
(2020). K. Neklyudov, M. Welling, E. Egorov, D. Vetrov, "Involutive MCMC: a unifying framework",
ICML 2020.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from probtorch.autograd.modes import enable_grad
from probtorch.core.dispatch import wrap
from probtorch.core.rng import Generator
from probtorch.core.signatures import explain_calls, explained
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import record, static
from probtorch.core.typed import TensorLike
from probtorch.distributions.normal import Normal
from probtorch.effects.primitives import sample
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer.model_runs import OUTSIDE
from probtorch.infer.sequential.involution_checks import (
    Map,
    Recorded,
    Values,
    check_returns,
    check_sites,
    leaves_of,
    log_det,
    plain,
    refuse_data,
    tensors_like,
)
from probtorch.infer.sequential.run_course import Particle, RunMoves
from probtorch.infer.sequential.run_engine import RunEngine
from probtorch.infer.sequential.weights import uniforms

__all__ = ["Involution", "InvolutiveMCMC"]

# Draws of the prior in search of a run that can have made the data.
FIRST_DRAWS = 10_000


@record
class Involution:
    """A move of `InvolutiveMCMC`: an auxiliary model, and an involution.

    Parameters
    ----------
    auxiliary : callable
        ``auxiliary(run)`` draws sites that the involution needs; `run` is a dict of the values of
        all latent sites of the present run. What it draws may depend on them.
    involution : callable
        ``involution(run, draws) -> (run, draws)``, of two dicts by name: the values of the new run,
        and the draws that lead back from it. A run whose sites stay as they are is made from
        ``dict(run)``. By tensor operations, where values are continuous; None says that there is
        nowhere to go, and the run stays.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import Involution
    >>> def up_or_down(run):
    ...     up = probtorch.sample("up", dist.Bernoulli(0.5))
    ...     if up.item():
    ...         probtorch.sample("new", dist.Normal(0.0, 1.0))
    >>> def birth_or_death(run, draws):
    ...     run, k = dict(run), int(run["k"])
    ...     if draws["up"]:
    ...         return {**run, "k": k + 1, f"x_{k}": draws["new"]}, {"up": 0}
    ...     if not k:
    ...         return None
    ...     last = run.pop(f"x_{k - 1}")
    ...     return {**run, "k": k - 1}, {"up": 1, "new": last}
    >>> move = Involution(up_or_down, birth_or_death)
    """

    auxiliary: Callable[[dict[str, TensorBase]], object] = static()
    involution: Map = static()

    @classmethod
    def drift(cls, scale: float, of: Callable[[str], bool] | Sequence[str]) -> Involution:
        """Return a random walk of some continuous sites, all at once.

        Parameters
        ----------
        scale : float
            Standard deviation of the steps, on the sites' own scale.
        of : callable or sequence of str
            Names of sites, or a function that tells whether a name is of one. Those that a run has
            not are left out.
        """
        if not (isinstance(scale, (int, float)) and 0.0 < scale < math.inf):
            raise ArgumentError(
                "Involution.drift(scale=...)",
                expected="a number > 0",
                got=repr(scale),
                fix="give about the standard deviation of a site given the others",
            )
        steps = _Drift(float(scale), of if callable(of) else tuple(of))
        return cls(steps.auxiliary, steps.involution)


@record
class _Drift:
    """The two functions of `Involution.drift`."""

    scale: float = static()
    of: Callable[[str], bool] | tuple[str, ...] = static()

    def _chosen(self, run: Values) -> list[str]:
        of = self.of
        return [n for n in run if (n in of if isinstance(of, tuple) else of(n))]

    def auxiliary(self, run: dict[str, TensorBase]) -> None:
        for name in self._chosen(run):
            shape = run[name].array.shape
            law = Normal(wrap(np.zeros(shape)), self.scale).to_event(len(shape))
            sample(f"step of {name}", law)

    def involution(
        self, run: dict[str, TensorBase], draws: dict[str, TensorBase]
    ) -> tuple[Mapping[str, TensorLike], Mapping[str, TensorLike]]:
        steps = {name: draws[f"step of {name}"] for name in self._chosen(run)}
        moved = {name: run[name] + step for name, step in steps.items()}
        return {**run, **moved}, {f"step of {name}": -step for name, step in steps.items()}


class InvolutiveMCMC(RunEngine):
    """Involutive and reversible jump MCMC for models whose sites come and go.

    Where `ParticleGibbs` finds its way by itself, here each move is stated: how a component is
    born, split or merged. That takes a page of code, and crosses between dimensions that blind
    proposals hardly ever cross.

    Parameters
    ----------
    model : callable
    moves : Involution or sequence of Involution
        Made one after the other for each draw. Together they have to reach all runs.
    num_samples : int
        Draws per chain.
    warmup_steps : int
        Passes through the moves before these.
    num_chains : int
        They take turns.
    seed : int or Generator, optional
        Where random numbers come from; the default generator if None.
    progress_bar : bool

    Raises
    ------
    ArgumentError
        If a number is no integer, or too small, or a move is no `Involution`.
    InferenceError
        From `run`, if a move is no involution, changes the number of continuous dimensions, or
        gives sites that a model does not have.

    Notes
    -----
    ``attrs["acceptance_rates"]`` of the draws has the share of each move that was accepted.

    References
    ----------
    [green1995]_, [cusumanotowner2020]_, [neklyudov2020]_.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import Involution, InvolutiveMCMC
    >>> def model(y):
    ...     if probtorch.sample("shifted", dist.Bernoulli(0.5)):
    ...         loc = probtorch.sample("loc", dist.Normal(0.0, 2.0))
    ...     else:
    ...         loc = 0.0
    ...     probtorch.sample("y", dist.Normal(loc, 1.0), obs=y)
    >>> def propose(run):
    ...     if not run["shifted"]:
    ...         probtorch.sample("new", dist.Normal(0.0, 2.0))
    >>> def switch(run, draws):
    ...     if run["shifted"]:
    ...         return {"shifted": 0}, {"new": run["loc"]}
    ...     return {"shifted": 1, "loc": draws["new"]}, {}
    >>> moves = [Involution(propose, switch), Involution.drift(1.0, of=["loc"])]
    >>> mcmc = InvolutiveMCMC(model, moves, num_samples=200, seed=0, progress_bar=False)
    >>> draws = mcmc.run(probtorch.tensor(2.5))
    >>> draws["shifted"].shape, bool(draws["shifted"].mean() > 0.5)
    ((1, 200), True)
    """

    _name = "InvolutiveMCMC"

    @explained("InvolutiveMCMC", meant={"num_warmup": "warmup_steps", "draws": "num_samples"})
    def __init__(
        self,
        model: Callable[..., object],
        moves: Involution | Sequence[Involution],
        num_samples: int = 1000,
        warmup_steps: int = 100,
        *,
        num_chains: int = 1,
        seed: int | Generator | None = None,
        progress_bar: bool = True,
    ) -> None:
        super().__init__(model, num_samples, warmup_steps, num_chains, seed, progress_bar)
        given = (moves,) if isinstance(moves, Involution) else moves
        several = isinstance(given, (list, tuple))
        bad = [move for move in given if not isinstance(move, Involution)] if several else [moves]
        if bad or not given:
            raise ArgumentError(
                "InvolutiveMCMC(moves=...)",
                expected="an Involution, or several",
                got=type(bad[0]).__name__ if bad else "none",
                fix="write Involution(auxiliary, involution)",
            )
        self.moves = tuple(given)

    def __repr__(self) -> str:
        name = getattr(self.model, "__name__", type(self.model).__name__)
        return f"InvolutiveMCMC({name}, {len(self.moves)} moves)"

    def _moves(self, args: tuple[object, ...], kwargs: dict[str, object]) -> RunMoves:
        return _Moving(self.model, args, kwargs, self.moves)

    def _facts(self, moves: RunMoves) -> dict[str, object]:
        assert isinstance(moves, _Moving)  # those made above
        return {"acceptance_rates": (moves.accepted / np.maximum(moves.tried, 1)).tolist()}

    def _own_settings(self) -> dict[str, object]:
        return {"num_moves": len(self.moves)}


class _Moving:
    """The moves of one model.

    Attributes
    ----------
    tried, accepted : ndarray of int, shape (moves,)
    """

    def __init__(
        self,
        model: Callable[..., object],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        moves: Sequence[Involution],
    ) -> None:
        self.model, self.args, self.kwargs, self.moves = model, args, kwargs, moves
        self.tried, self.accepted = np.zeros(len(moves), int), np.zeros(len(moves), int)
        # What the model said of the runs at which chains stand, by their dicts of values.
        self._standing: dict[int, Recorded] = {}

    def running(self, known: Values, stop: int | None = None) -> Recorded:
        """Return what the model says with these values."""
        standing = self._standing.get(id(known))
        if standing is not None:
            return standing
        with Recorded(known) as handler:
            self.model(*self.args, **self.kwargs)
        return handler

    def first(self, generator: Generator) -> Particle:
        """Return a draw of the prior that can have made the data."""
        for _ in range(FIRST_DRAWS):
            try:
                run = self.running({})
            except OUTSIDE:
                continue
            if run.log_joint > -math.inf:
                return Particle(run.values)
        raise InferenceError(
            "InvolutiveMCMC: no run of the model can have made the data",
            expected="a draw of the prior with a finite density",
            got=f"none of {FIRST_DRAWS}",
            fix="look at priors and data",
        )

    def sweep(self, kept: Particle | None, generator: Generator) -> Particle | None:
        """Make all moves, one after the other."""
        assert kept is not None
        now = self.running(kept.values)
        moved = False
        for i, move in enumerate(self.moves):
            new = self._moved(move, now, generator)
            self.tried[i] += 1
            if new is not None:
                now, moved = new, True
                self.accepted[i] += 1
        if not moved:
            self._standing[id(kept.values)] = now
            return kept
        self._standing.pop(id(kept.values), None)
        self._standing[id(now.values)] = now
        return Particle(now.values)

    def _moved(self, move: Involution, now: Recorded, generator: Generator) -> Recorded | None:
        """The run after a move, or None where it stays as it is."""
        with Recorded({}) as helper:
            move.auxiliary(dict(now.values))
        refuse_data(helper)
        run, draws = leaves_of(now), leaves_of(helper)
        with enable_grad():
            found = move.involution(dict(run), dict(draws))
        if found is None:
            return None
        new_run, new_draws = (tensors_like(x, y) for x, y in zip(found, (run, draws), strict=True))
        check_returns(move.involution, (plain(new_run), plain(new_draws)), (now, helper))
        try:
            new = self.running(plain(new_run))
        except OUTSIDE:
            return None
        check_sites("the model", new, new_run)
        if not new.log_joint > -math.inf:
            return None
        with Recorded(plain(new_draws)) as back:
            move.auxiliary(dict(new.values))
        check_sites("the auxiliary model", back, new_draws)
        volume = log_det(
            [(run, new_run, now.laws, new.laws), (draws, new_draws, helper.laws, back.laws)]
        )
        log_ratio = new.log_joint + back.log_joint - now.log_joint - helper.log_joint + volume
        if math.isnan(log_ratio):
            return None
        accepted = math.log(uniforms(generator, 1)[0]) < log_ratio
        return new if accepted else None


explain_calls(globals())
