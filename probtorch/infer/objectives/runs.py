"""A run of guide and model together, for one particle or for several at once.

`run_pair` runs the guide, replays the model at the guide's values and checks that the two fit: the
guide has a draw for every latent site of the model, none besides, all of the right shape. The
result is a `Run`, from which objectives take log densities per particle.

Several particles in one run lie along a batch dim to the left of all plates (`replicate`). Whether
a model bears that cannot be seen from outside (``x @ beta`` means something else for a batch of
betas), so `Vectorised` compares the first such run, site by site, with runs of single particles.

Read effects/runtime.py first; elbo.py is the first user.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from probtorch.backends.registry import to_host
from probtorch.core.dispatch import wrap
from probtorch.core.late import difflib
from probtorch.core.rng import default_generator
from probtorch.core.tensor_base import TensorBase
from probtorch.distributions.origins import like_origin
from probtorch.distributions.uniform import Delta
from probtorch.effects.handlers import replay, trace
from probtorch.effects.placing import PARTICLES, replicate
from probtorch.effects.plate_rows import give_rows
from probtorch.effects.runtime import Handler, generator_in_force
from probtorch.effects.site import Site
from probtorch.effects.trace import Trace
from probtorch.errors import InferenceError, ModelError, ProbtorchError, is_users
from probtorch.infer.model_runs import in_float64, lifted
from probtorch.ops.movement import reshape
from probtorch.ops.reduction import sum as total

if TYPE_CHECKING:
    from probtorch.infer.objectives.protocol import Guide, Model
    from probtorch.infer.objectives.site_estimators import EstimatorWatch


__all__ = [
    "FEW",
    "Run",
    "Vectorised",
    "is_precise",
    "plate_depth",
    "precision",
    "run_pair",
    "same_draws",
]

# Agreement of a vectorised run with single ones, relative to the size of the numbers: in double
# precision, and where any value is in single precision.
RTOL, SINGLE_RTOL = 1e-8, 1e-3
# Particles to try first: a model that crosses particles with particles then makes 9 values of a
# million.
FEW = 3


@dataclass(frozen=True, eq=False)
class Run:
    """One run of guide and model.

    Attributes
    ----------
    model, guide : Trace
        The guide's trace also holds latent sites that were left to the prior.
    size : int
        Number of particles in this run.
    dim : int or None
        Their (negative) batch dim; None for a single particle without one.
    again : callable or None
        Runs the pair again in the same way, without arguments.
    watch : Watch or None
        What the run left behind for gradient estimators (site_estimators.py).
    """

    model: Trace
    guide: Trace
    size: int = 1
    dim: int | None = None
    again: Callable[[], Run] | None = None
    watch: EstimatorWatch | None = None

    def per_particle(self, log_prob: TensorBase) -> TensorBase:
        """Return a log density summed over all dims but that of the particles.

        Returns
        -------
        Tensor, shape (size,), or () where it is the same for all particles or there is one
        """
        shape = log_prob.array.shape
        dim = self.dim
        if not shape:
            return log_prob
        if dim is None or len(shape) < -dim or shape[dim] != self.size:
            return total(log_prob)
        rest = tuple(i for i in range(-len(shape), 0) if i != dim)
        return total(log_prob, rest) if rest else log_prob

    def log_model(self) -> TensorBase:
        """Return the log joint density per particle."""
        return self._sum(self.model)

    def log_guide(self) -> TensorBase:
        """Return the guide's log density per particle."""
        return self._sum(self.guide)

    def _sum(self, run: Trace) -> TensorBase:
        found = None
        for site in run.nodes.values():
            if site.has_density:
                if self.dim is None:
                    term = site.compute_log_prob_sum()
                else:
                    term = self.per_particle(site.compute_log_prob())
                found = term if found is None else found + term
        return wrap(np.zeros(())) if found is None else found


def run_pair(
    model: Callable[..., object],
    guide: Callable[..., object],
    args: tuple[object, ...],
    kwargs: dict[str, object],
    *,
    size: int = 1,
    dim: int | None = None,
    handlers: tuple[Handler, ...] = (),
    model_handlers: Callable[[], tuple[Handler, ...]] = tuple,
    allow_missing: bool = False,
) -> Run:
    """Run the guide, then the model at the guide's values.

    Parameters
    ----------
    model, guide : callable
        Both called with ``*args, **kwargs``.
    size, dim : int, optional
        Particles, and the batch dim to put them at.
    handlers : tuple of Handler
        Entered around the guide.
    model_handlers : callable
        Asked, after the guide has run, for the handlers to be entered around the model.
    allow_missing : bool
        Leave latent sites that the guide lacks to the prior.

    Raises
    ------
    ModelError
        If the guide lacks a latent site of the model, or has one that the model has not.
    ShapeError
        If the two disagree about the shape of a site.
    """
    around: tuple[Handler, ...] = () if dim is None else (replicate(None, size, dim),)
    with contextlib.ExitStack() as stack:
        if is_precise(guide):
            stack.enter_context(in_float64())
            args, kwargs = lifted(args), lifted(kwargs)
        drawn = _traced(guide, args, kwargs, around + handlers)
        seen = _traced(model, args, kwargs, (*around, *model_handlers(), _Replay(trace=drawn)))
    _check(seen, drawn, allow_missing)
    return Run(seen, drawn, size, dim)


def is_precise(guide: Callable[..., object]) -> bool:
    """Whether a guide wants its model to run in float64."""
    return bool(getattr(guide, "precise", False))


def precision(guide: Callable[..., object]) -> contextlib.AbstractContextManager[object]:
    """Return the context in which the model of `guide` runs: float64 if the guide asks for it."""
    return in_float64() if is_precise(guide) else contextlib.nullcontext()


def _traced(
    fn: Callable[..., object],
    args: tuple[object, ...],
    kwargs: dict[str, object],
    handlers: tuple[Handler, ...],
) -> Trace:
    with contextlib.ExitStack() as stack:
        found = stack.enter_context(trace())
        for handler in handlers:
            stack.enter_context(handler)
        found.returned = fn(*args, **kwargs)
    return found


class _Replay(replay):
    """`replay`, which also hands on that a value is known to lie in its support."""

    def on_sample(self, site: Site) -> None:
        super().on_sample(site)
        if site.infer.get("inside"):
            site.inside = True


# ------------------------------------------------------------------------------------------- checks


def is_latent(site: Site) -> bool:
    """Whether a sample site is random: not observed, with a density, and no point mass."""
    return site.kind == "sample" and not site.observed and hasattr(site.fn, "log_prob")


def _check(model: Trace, guide: Trace, allow_missing: bool) -> None:
    """Refuse sites that only one of the two has; give the guide those left to the prior."""
    mine = {n for n, s in model.nodes.items() if is_latent(s)}
    theirs = {
        n
        for n, s in guide.nodes.items()
        if s.kind == "sample" and not s.observed and not s.infer.get("is_auxiliary")
    }
    for name, site in guide.nodes.items():
        if name in theirs and name not in mine:
            raise _extra(site, model, mine)
    for name, site in list(model.nodes.items()):
        if name in mine and name in theirs and site.plates != guide.nodes[name].plates:
            _check_scales(site, guide.nodes[name])
        if name not in mine or name in theirs or isinstance(site.fn, Delta):
            continue
        if "variable" in site.notes or "choice" in site.notes:
            # Takes all its values in the model: effects/enumeration.py, enumeration/choices.py.
            continue
        if not allow_missing:
            raise _missing(site, mine, theirs)
        # Drawn from the prior, which is the guide here: the two densities cancel.
        guide.nodes[name] = site


def _check_scales(site: Site, guided: Site) -> None:
    """Refuse a site whose rows count for more in one of the two, as only that one has the plate."""
    mine, theirs = ({f.name for f in s.plates if f.scale != 1.0} for s in (site, guided))
    if mine == theirs:
        return
    name = min(mine ^ theirs)
    inside, outside = ("model", "guide") if name in mine else ("guide", "model")
    raise ModelError(
        f"site {site.name!r} is inside of plate {name!r} in the {inside} only",
        expected="the same plates around it in both: a subsample stands for all rows",
        got=f"log densities of the {outside} that count once for each row of the batch",
        fix=f"write the statement of the {outside} inside of plate {name!r} too, with the same "
        "size and subsample_size",
        at=guided.location if name in mine else site.location,
    )


def _extra(site: Site, model: Trace, latent: set[str]) -> ModelError:
    name = site.name
    close = difflib.get_close_matches(name, latent, 1)
    if name in model.nodes:
        fix = f"take {name!r} out of the guide: in the model it is " + (
            "observed" if model.nodes[name].observed else f"a {model.nodes[name].kind} site"
        )
    elif close:
        fix = f"did you mean {close[0]!r}?"
    else:
        fix = 'take it out, or mark a helper with infer={"is_auxiliary": True}'
    return ModelError(
        f"guide site {name!r} is no latent site of the model",
        expected=f"latent sites of the model: {', '.join(map(repr, sorted(latent))) or 'none'}",
        got=repr(name),
        fix=fix,
        at=site.location,
    )


def _missing(site: Site, latent: set[str], guided: set[str]) -> ModelError:
    name = site.name
    strays = sorted(guided - latent) or sorted(guided)
    close = difflib.get_close_matches(name, strays, 1)
    hint = f" (the guide has {close[0]!r})" if close and close[0] not in latent else ""
    return ModelError(
        f"the guide has no site {name!r}{hint}",
        expected=f"a draw for every latent site of the model: "
        f"{', '.join(map(repr, sorted(latent)))}",
        got=f"draws of {', '.join(map(repr, sorted(guided))) or 'nothing'}",
        fix="sum it out with TraceEnum_ELBO, or add it to the guide"
        if getattr(site.fn, "has_enumerate_support", False)
        else f"add sample({name!r}, ...) to the guide, or leave it to the prior with "
        "allow_missing=True",
        at=site.location,
    )


# ----------------------------------------------------------------------------- several particles


@contextlib.contextmanager
def same_draws() -> Iterator[None]:
    """Context manager: the generators in use go back, at its end, to where they were."""
    generators = {id(g): g for g in (generator_in_force(), default_generator) if g is not None}
    states = [(g, g.get_state()) for g in generators.values()]
    try:
        yield
    finally:
        for generator, state in states:
            generator.set_state(state)


class Vectorised:
    """Runs of `size` particles at once, of a model that was found to bear it.

    Parameters
    ----------
    size : int
    allow_missing : bool
        See `run_pair`.
    """

    def __init__(self, size: int, allow_missing: bool = False) -> None:
        self.size, self.allow_missing = size, allow_missing
        # The pair that was checked, and the number of batch dims that its plates take.
        self._checked: tuple[Model, Guide, int] | None = None

    def settled(self, model: Model, guide: Guide) -> bool:
        """Whether this pair has been checked."""
        known = self._checked
        return known is not None and known[0] is model and known[1] is guide

    def __call__(
        self,
        model: Model,
        guide: Guide,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        handlers: tuple[Handler, ...] = (),
    ) -> Run:
        """Return one run with all particles; see `run_pair`."""
        known = self._checked
        single = None
        if known is None or not self.settled(model, guide):
            single = self._quietly(
                run_pair, model, guide, args, kwargs, allow_missing=self.allow_missing
            )
            known = (model, guide, plate_depth(single))
            if self.size > FEW:
                self._quietly(self._run, FEW, known[2], single, model, guide, args, kwargs)
        found = self._run(self.size, known[2], single, model, guide, args, kwargs, handlers)
        if plate_depth(found) > known[2]:
            # A branch with more plates than the first run had: their dims were the particles'.
            self._checked = None
            return self(model, guide, args, kwargs, handlers)
        self._checked = known
        return found

    def _quietly(self, run: Callable[..., Run], *args: object, **options: object) -> Run:
        """Run, and leave no trace of it; on the tape, if it is on: a guide may differentiate."""
        with same_draws():
            return run(*args, **options)

    def _run(
        self,
        size: int,
        depth: int,
        single: Run | None,
        model: Model,
        guide: Guide,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        handlers: tuple[Handler, ...] = (),
    ) -> Run:
        """Run `size` particles at once; given a single run, check the first and the last."""
        try:
            found = run_pair(
                model,
                guide,
                args,
                kwargs,
                allow_missing=self.allow_missing,
                size=size,
                dim=-1 - depth,
                handlers=handlers,
            )
            if single is not None:
                # Before the comparison reads them: an error here is the model's.
                found.model.compute_log_prob()
                found.guide.compute_log_prob()
        except Exception as error:
            if single is None:
                raise
            # A single particle ran: whatever it is, it says that several cannot.
            raise self._refusal(*_said(error)) from error
        if single is not None and plate_depth(found) <= depth:
            for i in (0, size - 1):
                self._compare(found, i, single, model, guide, args, kwargs)
        return found

    def _compare(
        self,
        found: Run,
        i: int,
        single: Run,
        model: Model,
        guide: Guide,
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> None:
        """Run particle `i` alone; every log density has to be what it was among the others."""
        with same_draws(), precision(guide):
            if is_precise(guide):
                args, kwargs = lifted(args), lifted(kwargs)
            drawn = _traced(guide, args, kwargs, (_One(found.guide, single.guide, i),))
            handlers = (_One(found.model, single.model, i), _Replay(trace=drawn))
            seen = _traced(model, args, kwargs, handlers)
        rtol = SINGLE_RTOL if _has_single(drawn, seen) else RTOL
        for together, alone in ((found.guide, drawn), (found.model, seen)):
            for name, site in alone.nodes.items():
                if not site.has_density or name not in together.nodes:
                    continue
                pair = (
                    _entry(found.per_particle(together.nodes[name].compute_log_prob()), i),
                    _entry(site.compute_log_prob_sum(), 0),
                )
                if not np.isclose(*pair, rtol=rtol, atol=rtol, equal_nan=True):
                    raise self._refusal(
                        f"site {name!r} with log density {pair[0]:.6g} among the others and "
                        f"{pair[1]:.6g} alone",
                        site.location,
                    )

    def _refusal(self, what: str, at: str | None = None) -> InferenceError:
        return InferenceError(
            f"vectorize_particles: {self.size} particles cannot be run at once",
            expected="a model and a guide that give the same for a batch of particles as for each",
            got=what,
            fix="index from the right, write sums with dim=-1 and x @ b as (x * b).sum(-1), or "
            "vectorize_particles=False",
            at=at,
        )


def _said(error: Exception) -> tuple[str, str | None]:
    """What an error of a run says in a line, and where the user's code raised it."""
    what = f"{type(error).__name__}: {error}".split("\n")[0]
    if isinstance(error, ProbtorchError):
        what = f"{type(error).__name__}: {error.subject} of {error.got}"
        return what, error.location
    lines = [
        frame for frame in traceback.extract_tb(error.__traceback__) if is_users(frame.filename)
    ]
    return what, f"{lines[-1].filename}:{lines[-1].lineno}" if lines else None


class _One(Handler):
    """Give latent sites the values of one particle of a vectorised run, and its rows to plates."""

    def __init__(self, many: Trace, single: Trace, i: int) -> None:
        super().__init__()
        self.many, self.single, self.i = many, single, i

    def on_sample(self, site: Site) -> None:
        if site.value is not None or site.name not in self.many or isinstance(site.fn, Delta):
            # A point mass computes its value again: from the values given here.
            return
        value = self.many[site.name].value
        shape = self.single[site.name].value.array.shape

        def one(x: TensorBase, shape: tuple[int, ...]) -> TensorBase:
            rows = reshape(x, (-1, *shape))
            return rows[self.i if rows.array.shape[0] > 1 else 0]

        # What a value was made of has the particles' dims in front as well, then its own shape.
        front = value.array.ndim - len(shape)
        part = one(value, shape)
        if value.array.shape[front:] == shape:
            part = like_origin(value, part, lambda x: one(x, x.array.shape[front:]))
        site.value = part

    def on_plate(self, site: Site) -> None:
        give_rows(site, self.many)


def plate_depth(run: Run) -> int:
    """Return the number of batch dims that the plates of a run take."""
    sites = (*run.model.nodes.values(), *run.guide.nodes.values())
    frames = (f for s in sites for f in s.plates if f.name != PARTICLES)
    return max((-f.dim for f in frames if f.dim is not None), default=0)


def _has_single(*traces: Trace) -> bool:
    """Whether any value in the traces is of single precision or less."""
    sites = (s for t in traces for s in t.nodes.values() if s.has_density or s.kind == "param")
    dtypes = (s.value.array.dtype for s in sites if isinstance(s.value, TensorBase))
    return any(dtype.kind == "f" and dtype.itemsize < 8 for dtype in dtypes)


def _entry(x: TensorBase, i: int) -> float:
    array = to_host(x.array)
    return float(array[i] if array.ndim else array)
