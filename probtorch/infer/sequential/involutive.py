"""`InvolutiveMCMC`: moves between runs of a model with different sites, as the user states them.

A move has two parts: an auxiliary model, which draws what is needed to make a new run of the
present one, and an involution, a deterministic function that turns run and auxiliary draws into a
new run and the draws that would lead back from it. Applied twice it changes nothing. With p the
model's joint density and q the auxiliary model's, the new run is accepted with probability

    min(1, p(run') q(aux' | run') / (p(run) q(aux | run)) |det J|),

where J is the Jacobian of the continuous values of (run', aux') in those of (run, aux), which
automatic differentiation finds. Reversible jump MCMC, splits and merges, births and deaths,
Metropolis and Gibbs moves are all of this form.

What the user cannot be trusted with is checked at each proposal: that the function is an
involution, that no dimension was lost, and that model and auxiliary model meet just the sites that
they were given.

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
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from probtorch.autograd.modes import enable_grad
from probtorch.autograd.tape import grad
from probtorch.backends.registry import to_host
from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.core.rng import Generator
from probtorch.core.signatures import explain_calls, explained
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import record, static
from probtorch.core.typed import TensorLike
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.normal import Normal
from probtorch.distributions.transforms.registry import biject_to
from probtorch.effects.primitives import sample
from probtorch.effects.site import Site
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer.checkpoint import Checkpoint
from probtorch.infer.model_runs import OUTSIDE
from probtorch.infer.sequential.run_course import Particle, RunMoves, Running
from probtorch.infer.sequential.run_draws import RunDraws
from probtorch.infer.sequential.run_engine import RunEngine
from probtorch.infer.sequential.weights import uniforms
from probtorch.ops.movement import reshape
from probtorch.ops.pieces import cat

__all__ = ["Involution", "InvolutiveMCMC"]

# Draws of the prior in search of a run that can have made the data.
FIRST_DRAWS = 10_000
# Differences of what an involution leads back to, relative and absolute, that are rounding.
ROUNDING = 1e-6

Values: TypeAlias = Mapping[str, TensorBase]
# From (run, draws) to (run', draws'), or None where there is nowhere to go.
Map: TypeAlias = Callable[
    [dict[str, TensorBase], dict[str, TensorBase]],
    tuple[Mapping[str, TensorLike], Mapping[str, TensorLike]] | None,
]


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

    def run(
        self,
        *args: object,
        checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
        checkpoint_every: float | None = None,
        until_ess: float | None = None,
        max_seconds: float | None = None,
        **kwargs: object,
    ) -> RunDraws:
        """Draw runs of the model given its data.

        Parameters
        ----------
        *args, **kwargs
            What the model is called with.
        checkpoint, checkpoint_every
            As for `SMC.run`; all draws are in each file.
        until_ess : float, optional
            Go on beyond `num_samples` until bulk and tail effective size of all numbers that every
            run has are at least this, over all chains.
        max_seconds : float, optional
            End the run after this time, as Ctrl-C does.

        Returns
        -------
        RunDraws
            `posterior` has the sites that all runs have in one shape, `values` all of each run.
            `sample_stats` has ``lp``, the log joint density, and ``moved``, whether a move was
            accepted; ``attrs["acceptance_rates"]`` has the share of each that was.

        Raises
        ------
        InferenceError
            If no draw of the prior can have made the data; if a move is no involution, changes the
            number of continuous dimensions, or gives sites that a model does not have.
        ModelError
            If two sites of a run share a name.
        ArgumentError
            If the folder has a run with other settings, another model or other data.
        KeyboardInterrupt
            On Ctrl-C before the first draw.
        """
        return self._run(args, kwargs, checkpoint, checkpoint_every, until_ess, max_seconds)

    def _moves(self, args: tuple[object, ...], kwargs: dict[str, object]) -> RunMoves:
        return _Moving(self.model, args, kwargs, self.moves)

    def _facts(self, moves: RunMoves) -> dict[str, object]:
        assert isinstance(moves, _Moving)  # those made above
        return {"acceptance_rates": (moves.accepted / np.maximum(moves.tried, 1)).tolist()}

    def _own_settings(self) -> dict[str, object]:
        return {"num_moves": len(self.moves)}


class _Recorded(Running):
    """A run that keeps the distributions of its latent sites, by which values are told apart."""

    def __init__(self, known: Values) -> None:
        super().__init__(known, None)
        self.laws: dict[str, Distribution] = {}

    def after_sample(self, site: Site) -> None:
        """Keep the distribution, besides the value."""
        super().after_sample(site)
        if not site.observed:
            self.laws[site.name] = site.fn


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
        self._standing: dict[int, _Recorded] = {}

    def running(self, known: Values, stop: int | None = None) -> _Recorded:
        """Return what the model says with these values."""
        standing = self._standing.get(id(known))
        if standing is not None:
            return standing
        with _Recorded(known) as handler:
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

    def _moved(self, move: Involution, now: _Recorded, generator: Generator) -> _Recorded | None:
        """The run after a move, or None where it stays as it is."""
        with _Recorded({}) as helper:
            move.auxiliary(dict(now.values))
        _refuse_data(helper)
        run, draws = _leaves(now), _leaves(helper)
        with enable_grad():
            found = move.involution(dict(run), dict(draws))
        if found is None:
            return None
        new_run, new_draws = (_tensors(x, y) for x, y in zip(found, (run, draws), strict=True))
        _check_returns(move, (_plain(new_run), _plain(new_draws)), (now, helper))
        try:
            new = self.running(_plain(new_run))
        except OUTSIDE:
            return None
        _check_sites("the model", new, new_run)
        if not new.log_joint > -math.inf:
            return None
        with _Recorded(_plain(new_draws)) as back:
            move.auxiliary(dict(new.values))
        _check_sites("the auxiliary model", back, new_draws)
        log_det = _log_det(
            [(run, new_run, now.laws, new.laws), (draws, new_draws, helper.laws, back.laws)]
        )
        log_ratio = new.log_joint + back.log_joint - now.log_joint - helper.log_joint + log_det
        if math.isnan(log_ratio):
            return None
        accepted = math.log(uniforms(generator, 1)[0]) < log_ratio
        return new if accepted else None


def _continuous(law: Distribution) -> bool:
    return not getattr(law, "is_discrete", False)


def _leaves(run: _Recorded) -> dict[str, TensorBase]:
    """Values of a run, the continuous ones as leaves of a tape."""
    return {
        name: value.detach().clone().requires_grad_() if _continuous(run.laws[name]) else value
        for name, value in run.values.items()
    }


def _tensors(found: Mapping[str, TensorLike], like: Values) -> dict[str, TensorBase]:
    """What an involution returned as tensors, numbers in the dtype of the site they stand for."""
    values: dict[str, TensorBase] = {}
    for name, x in found.items():
        value = as_tensor(x)
        if name in like and value.array.dtype != like[name].array.dtype:
            value = wrap(value.array.astype(like[name].array.dtype))
        values[name] = value
    return values


def _plain(values: Values) -> dict[str, TensorBase]:
    return {name: value.detach() for name, value in values.items()}


def _refuse_data(helper: _Recorded) -> None:
    if helper.gains:
        raise InferenceError(
            "the auxiliary model of an Involution",
            expected="latent sites only",
            got="an observed site or a factor",
            fix="draw what the involution needs, and no more",
        )


def _check_sites(which: str, run: _Recorded, given: Values) -> None:
    """Refuse values of sites that a model does not meet, and sites that were not given."""
    lacking = [name for name in run.values if name not in given]
    unused = [name for name in given if name not in run.values]
    if not lacking and not unused:
        return
    said = f"no value for {lacking[0]!r}" if lacking else f"a value for {unused[0]!r}, no site here"
    raise InferenceError(
        f"an Involution, and what {which} makes of it",
        expected=f"values of all sites that {which} meets with them, and of no others: "
        f"{', '.join(map(repr, run.values)) or 'none'}",
        got=said,
        fix="return dict(run) with what is new, and without what is gone; and draws that lead back",
    )


def _check_returns(
    move: Involution,
    new: tuple[dict[str, TensorBase], dict[str, TensorBase]],
    was: tuple[_Recorded, _Recorded],
) -> None:
    """Refuse a function that does not lead back."""
    again = move.involution(*new)
    found: list[Mapping[str, TensorLike]] = [{}, {}] if again is None else list(again)
    for what, back, run in zip(("site", "draw"), found, was, strict=True):
        wrong = sorted(back.keys() ^ run.values.keys())
        for name, value in run.values.items():
            if name in back:
                one, other = to_host(as_tensor(back[name]).array), to_host(value.array)
                if one.shape != other.shape or not np.allclose(
                    one, other, rtol=ROUNDING, atol=ROUNDING, equal_nan=True
                ):
                    wrong.append(name)
        if wrong:
            name = wrong[0]
            got = f"{_shown(back.get(name))} in place of {_shown(run.values.get(name))}"
            raise InferenceError(
                "InvolutiveMCMC: a move that does not lead back",
                expected="an involution: applied to its own result it gives run and draws back",
                got="None the second time" if again is None else f"for {what} {name!r} {got}",
                fix="return, besides the new run, the draws that would make the old one of it",
            )


def _shown(value: object) -> str:
    return "nothing" if value is None else f"{value!s:.40}"


# Leaves, what became of them, and the distributions of both.
_Side: TypeAlias = tuple[
    dict[str, TensorBase], dict[str, TensorBase], dict[str, Distribution], dict[str, Distribution]
]


def _log_det(sides: Sequence[_Side]) -> float:
    """Log of the absolute determinant of the continuous values that changed.

    A value that was passed on as it is, under whatever name, has a row of a permutation, and is
    left out with its column.
    """
    columns: dict[int, tuple[TensorBase, str, Distribution]] = {}
    for before, _, laws, _ in sides:
        for name, leaf in before.items():
            if _continuous(laws[name]):
                columns[id(leaf)] = leaf, name, laws[name]
    rows: list[TensorBase] = []
    for _, after, _, new_laws in sides:
        for name, value in after.items():
            if _continuous(new_laws[name]) and columns.pop(id(value), None) is None:
                _check_numbers(name, new_laws[name])
                rows.append(value)
    for _, name, law in columns.values():
        _check_numbers(name, law)
    leaves = [leaf for leaf, _, _ in columns.values()]
    size, found = sum(x.array.size for x in leaves), sum(x.array.size for x in rows)
    if size != found:
        raise InferenceError(
            "InvolutiveMCMC: the dimensions of a move",
            expected=f"as many continuous numbers in the new run and draws as in the old: {size}",
            got=str(found),
            fix="draw one auxiliary number for each dimension that the run gains",
        )
    if not size:
        return 0.0
    matrix = np.zeros((size, size))
    with enable_grad():
        everything = cat([reshape(x, (x.array.size,)) for x in rows], 0)
        if not everything.requires_grad:
            return -math.inf
        for i in range(size):
            slopes = grad(everything[i], leaves, retain_graph=True, materialize_grads=True)
            matrix[i] = np.concatenate([to_host(g.array).reshape(-1) for g in slopes])
    return float(np.linalg.slogdet(matrix)[1])


def _check_numbers(name: str, law: Distribution) -> None:
    """Refuse to change a value whose numbers are not free of each other, as of a simplex."""
    shape = tuple(law.batch_shape) + tuple(law.event_shape)
    free = biject_to(law.support).inverse_shape(shape)
    if math.prod(free) != math.prod(shape):
        raise InferenceError(
            f"InvolutiveMCMC: a move that changes site {name!r}",
            expected=f"{math.prod(shape)} numbers that are free of each other",
            got=f"a {type(law).__name__}, whose values have {math.prod(free)} dimensions",
            fix="draw free numbers in the model, and transform them there",
        )


explain_calls(globals())
