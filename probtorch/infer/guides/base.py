"""`AutoGuide`: guides that read the model and write themselves.

At its first call a guide runs the model once, by an initialisation strategy, and keeps for every
latent site its shape, its plates, and the bijection from unconstrained space onto its support
(`latents.py`).
Subclasses say how the unconstrained values are distributed; here they are put back in their plates
and through their bijections, so that the guide's sites are those of the model.

Plates that work on subsamples are entered by the guide, and the model then uses the same rows: each
row of a local latent has parameters of its own, of which a step moves those of its rows. Where the
caller chooses the rows (``subsample=``), `create_plates` says them to the guide.

Parameters are `param` statements, so they live in the store of whoever optimises; the guide
remembers that store to answer questions (`median`, `quantiles`, `sample_posterior`) afterwards. As
a `Module` it shows them: what `parameters` has handed out, or `load_state_dict` has set, belongs to
the guide from then on, and later inferences go on with it.
"""

from __future__ import annotations

import abc
import contextlib
import copy
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from probtorch.autograd.modes import no_grad
from probtorch.autograd.vmap import vmap
from probtorch.backends.registry import to_host
from probtorch.core.dispatch import wrap
from probtorch.core.dtype import as_dtype, float64
from probtorch.core.making import as_tensor
from probtorch.core.rng import Generator, default_generator
from probtorch.core.signatures import explained
from probtorch.core.tensor_base import TensorBase, is_tensor
from probtorch.core.tree import map_tree
from probtorch.core.typed import DTypeLike, StateDict
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.formulas import sum_rightmost
from probtorch.distributions.uniform import Delta
from probtorch.effects.handlers import block, trace
from probtorch.effects.params import ParamStore, get_param_store
from probtorch.effects.placing import replicate
from probtorch.effects.plates import plate
from probtorch.effects.primitives import sample
from probtorch.effects.runtime import STATE
from probtorch.effects.site import Frame
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer.guides.latents import Latent, latents_of
from probtorch.infer.model_calls import check_model
from probtorch.infer.model_runs import in_float64
from probtorch.infer.starts.initialization import (
    Strategy,
    init_to_feasible,
)
from probtorch.nn.module import Module
from probtorch.nn.state import IncompatibleKeys

if TYPE_CHECKING:
    from probtorch.distributions.constraints import Constraint
    from probtorch.nn.parameter import Parameter


__all__ = ["AutoGuide", "SummarisedByDraws", "drawn_side_by_side"]

QUANTILE_DRAWS = 10_000
# Draws in one run, where a draw is a run of the model: so many times its memory.
SIDE_BY_SIDE = 250


def _numpyros_call(args: tuple[object, ...], kwargs: dict[str, object]) -> str | None:
    """The fix line for calls with a key and parameters in front, as NumPyro's."""
    if len(args) > 1 or "rng_key" in kwargs or "params" in kwargs:
        return "leave out key and parameters, which are the guide's own: sample_posterior((100,))"
    return None


class AutoGuide(Module, abc.ABC):
    """Base of automatic guides.

    Parameters
    ----------
    model : callable
        With continuous latent sites; handlers around it (``block``, ``reparam``) count. Finite
        discrete sites are left out, for `TraceEnum_ELBO` to sum them out.
    init_loc_fn : callable
        Where to start: one of `probtorch.infer`'s strategies, asked at each latent site.
    create_plates : callable, optional
        Called with the guide's arguments; returns the plates (or one) whose rows the caller
        chooses, as the model makes them.
    prefix : str
        Part of the names of parameters and helper sites.
    dtype : dtype
        Of the parameters. With float64 the model runs in double precision too; float32 is for
        models with large networks.

    Raises
    ------
    InferenceError
        At the first call: if there is no latent site, one is discrete, or a support depends on
        other sites.

    Notes
    -----
    A guide is a `Module` whose parameters are the unconstrained numbers behind its `param`
    statements, under their names. Before it has met its model `parameters` is refused: `setup` or
    the first call make them. Its model and what else it is given are no parts of it.
    """

    def __init__(
        self,
        model: Callable[..., object],
        *,
        init_loc_fn: Strategy = init_to_feasible,
        create_plates: Callable[..., plate | Iterable[plate]] | None = None,
        prefix: str = "auto",
        dtype: DTypeLike = float64,
    ) -> None:
        super().__init__()
        check_model(model, type(self).__name__)
        self.model, self.init_loc_fn, self.create_plates = model, init_loc_fn, create_plates
        self.prefix, self.dtype = prefix, as_dtype(dtype)
        self.__name__ = type(self).__name__
        self.latents: dict[str, Latent] = {}
        self._store: ParamStore | None = None
        # Leaves that were handed out, with their constraints.
        self._owned: dict[str, tuple[TensorBase, Constraint]] = {}

    # A guide may be given a network; it is no part of the guide, whose parameters are its own.
    __setattr__ = object.__setattr__  # type: ignore[assignment]  # of any class

    @property
    def precise(self) -> bool:
        """Whether model and guide run in float64."""
        return self.dtype == float64

    # ------------------------------------------------------------------------------- running

    def forward(self, *args: object, **kwargs: object) -> dict[str, TensorBase]:
        """Draw all latent sites; return their values by name.

        Parameters
        ----------
        *args, **kwargs
            The model's arguments: the first call runs it on them.
        """
        self.setup(*args, **kwargs)
        with self._in_store():
            return self.draw(self._plates(args, kwargs))

    def call(self, *args: object, **kwargs: object) -> tuple[TensorBase, ...]:
        """Draw all latent sites; return their values in the order of their names."""
        return tuple(value for _, value in sorted(self(*args, **kwargs).items()))

    @abc.abstractmethod
    def draw(self, plates: dict[str, plate]) -> dict[str, TensorBase]:
        """State all latent sites, within the given plates; return their values by name."""

    def setup(self, *args: object, **kwargs: object) -> None:
        """Run the model once to find its latent sites; the first call does it by itself."""
        if not self.latents:
            found, chosen = latents_of(self, args, kwargs)
            self.latents, self._chosen_by_caller = found, chosen

    @property
    def has_met(self) -> bool:
        """Whether the guide has met its model."""
        return bool(self.latents)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Yield the parameters, for an optimizer, once the guide has met its model."""
        if not self.has_met:
            raise InferenceError(
                f"{self.__name__}.parameters()",
                expected="a guide that has met its model, which says how many there are",
                got="a guide that was not called yet",
                fix="call guide.setup(...) with the model's arguments before; or leave them to "
                "SVI: SVI(model, guide, Adam({'lr': 0.01}))",
            )
        return super().parameters(recurse)

    def _plates(self, args: tuple[object, ...], kwargs: dict[str, object]) -> dict[str, plate]:
        """The plates of this call by name."""
        given = () if self.create_plates is None else self.create_plates(*args, **kwargs)
        given = (given,) if isinstance(given, plate) else tuple(given)
        made = {p.name: p for p in given}
        for latent in self.latents.values():
            for frame in latent.frames:
                if frame.name not in made:
                    made[frame.name] = self._plate(latent, frame)
        return made

    def _plate(self, latent: Latent, frame: Frame) -> plate:
        if frame.indices is not None and frame.name in self._chosen_by_caller:
            raise InferenceError(
                f"{self.__name__}: the rows of plate {frame.name!r} are chosen by the model's "
                "caller",
                expected=f"create_plates, as site {latent.name!r} has a value for each row",
                got=f"{frame.size} of {frame.full_size} rows, and no create_plates",
                fix=f"pass create_plates=lambda *args: plate({frame.name!r}, {frame.full_size}, "
                "subsample=rows)",
                at=latent.location,
            )
        if frame.subsampled and frame.indices is None:
            raise InferenceError(
                f"{self.__name__}: the rows of plate {frame.name!r} come from a stream",
                expected=f"rows with numbers, as site {latent.name!r} has a value for each",
                got=f"{frame.size} of {frame.full_size} rows, nobody knows which",
                fix="use a dataset with numbered samples, or a guide that computes the values from "
                "the data",
                at=latent.location,
            )
        return plate(
            frame.name,
            frame.full_size,
            None if frame.indices is None or frame.loader is not None else frame.size,
            dim=frame.dim,
            coords=frame.coords,
            loader=frame.loader,
        )

    _chosen_by_caller: frozenset[str] = frozenset()

    @contextlib.contextmanager
    def _in_store(self) -> Iterator[None]:
        """Context manager: parameters are those of the inference that runs, else the last one's."""
        with contextlib.ExitStack() as stack:
            if self.precise:
                stack.enter_context(in_float64())
            if STATE.params is None and self._store is not None:
                stack.enter_context(self._store.activate())
            self._store = store = get_param_store()
            for name, (leaf, constraint) in self._owned.items():
                if name not in store:
                    store.adopt(name, leaf, constraint)
            yield

    @contextlib.contextmanager
    def _asked(self) -> Iterator[None]:
        """Context manager for questions about a guide that has been run."""
        if not self.has_met:
            raise InferenceError(
                self.__name__,
                expected="a guide that has been run",
                got="one that has not met its model yet",
                fix="optimise it with SVI, or call it with the model's arguments",
            )
        with no_grad(), self._in_store():
            yield

    def free_distribution(self) -> Distribution:
        """Return the distribution of all its numbers on the unconstrained scale, as one vector.

        In the order of the sites. A snapshot: it does not follow further optimisation.

        Raises
        ------
        InferenceError
            If the guide has none in closed form, or has not been run.
        """
        raise InferenceError(
            f"{self.__name__}.free_distribution",
            expected="a guide that is one distribution of all unconstrained numbers, or a normal "
            "for each",
            got="one that is made of draws or sites",
            fix="take AutoMultivariateNormal, AutoNormal or a flow; or its draws",
        )

    # ------------------------------------------------------------------------------- as a module

    @property
    def _parameters(self) -> dict[str, TensorBase]:
        """The leaves of the guide by name, which are its own from now on."""
        if not self.has_met:
            return {}
        if self._store is None and STATE.params is None:
            # The store that scripts see is that of some other inference.
            self._store = ParamStore()
        # A question meets all parameters, whatever the guide is called with.
        with self._asked(), block(), trace(param_only=True) as met:
            self.free_draws((), Generator(0))
            store = get_param_store()
            names = [name for name in met if name in store]
            self._owned = {n: (store.unconstrained(n), store._constraints[n]) for n in names}
        return {name: leaf for name, (leaf, _) in self._owned.items()}

    def load_state_dict(
        self, state_dict: StateDict, strict: bool = True, assign: bool = False
    ) -> IncompatibleKeys:
        """Copy values by name into the parameters; see `Module.load_state_dict`.

        Raises
        ------
        InferenceError
            If the guide has not met its model, or `assign` is asked for.
        """
        with self._asked():
            pass
        if assign:
            raise ArgumentError(
                f"{self.__name__}.load_state_dict(assign=True)",
                expected="values to copy: an inference refers to the parameters there are",
                got="assign=True",
                fix="leave it out",
            )
        return super().load_state_dict(state_dict, strict)

    # ----------------------------------------------------------------------------- the sites

    def _state(self, latent: Latent, free: TensorBase) -> TensorBase:
        """State a latent site whose unconstrained value is known; called inside its plates."""
        value, log_det = latent.transform.call_and_ladj(free)
        # The rows of a plate have a Jacobian each; what is left belongs to the event.
        dims = log_det.array.ndim - (value.array.ndim - latent.event_dim)
        density = -sum_rightmost(log_det, dims)
        return sample(latent.name, Delta(value, density, latent.event_dim), infer={"inside": True})

    @contextlib.contextmanager
    def _within(
        self, latent: Latent, plates: dict[str, plate], around: Collection[str] = ()
    ) -> Iterator[None]:
        """Context manager: the plates of a latent site, but for those around it by name."""
        with contextlib.ExitStack() as stack:
            for frame in latent.frames:
                if frame.name not in around:
                    stack.enter_context(plate_at(plates, frame))
            yield

    def _init(self, latent: Latent, free: bool = True) -> np.ndarray:
        return (latent.free_init if free else latent.init).astype(self.dtype)

    # -------------------------------------------------------------------------- the posterior

    @abc.abstractmethod
    def median(self, *args: object, **kwargs: object) -> dict[str, TensorBase]:
        """Return the median of every latent site by name.

        Arguments are accepted for Pyro's sake. Medians are taken on the unconstrained scale and
        sent through the bijection; for a site in a subsampled plate, of all its rows.
        """

    def quantiles(
        self, quantiles: Iterable[float], *args: object, **kwargs: object
    ) -> dict[str, TensorBase]:
        """Return quantiles of every latent site by name.

        Parameters
        ----------
        quantiles : sequence of float, in (0, 1)
        *args, **kwargs
            Accepted for Pyro's sake.

        Returns
        -------
        dict of str to Tensor, each (len(quantiles), *shape)
            Taken on the unconstrained scale, element by element.

        Raises
        ------
        InferenceError
            If the guide has none, as a point estimate.
        """
        raise InferenceError(
            f"{self.__name__}.quantiles",
            expected="a guide with a spread on the unconstrained scale",
            got="a point estimate",
            fix="use median(), or AutoNormal",
        )

    @explained("sample_posterior", advice=_numpyros_call)
    def sample_posterior(
        self,
        sample_shape: int | tuple[int, ...] = (),
        *,
        generator: Generator | None = None,
    ) -> dict[str, TensorBase]:
        """Return draws of the latent sites by name.

        Parameters
        ----------
        sample_shape : int or tuple of int
        generator : Generator, optional
            The default generator if None.

        Returns
        -------
        dict of str to Tensor, each (*sample_shape, *shape)
            Without gradients; of all rows of subsampled plates.
        """
        shape = (sample_shape,) if isinstance(sample_shape, int) else tuple(sample_shape)
        with self._asked():
            free = self.free_draws(shape, generator or default_generator)
            return off_tape({n: self.latents[n].transform(x) for n, x in free.items()})

    @abc.abstractmethod
    def free_draws(self, shape: tuple[int, ...], generator: Generator) -> dict[str, TensorBase]:
        """Return draws of the unconstrained values by name, each (*shape, *free_shape)."""

    def __repr__(self) -> str:
        name = getattr(self.model, "__name__", type(self.model).__name__)
        return f"{self.__name__}({name})"


class SummarisedByDraws(AutoGuide):
    """Base of guides that know their medians and quantiles from many draws alone.

    They are the same every time. With 10 000 draws the standard error of a median is 1.3 % of a
    standard deviation, that of a 5 % quantile 2.1 %.
    """

    def median(self, *args: object, **kwargs: object) -> dict[str, TensorBase]:
        """Return medians by name, those of 10 000 draws; see `AutoGuide.median`."""
        return {name: x[0] for name, x in self.quantiles([0.5]).items()}

    def quantiles(
        self, quantiles: Iterable[float], *args: object, **kwargs: object
    ) -> dict[str, TensorBase]:
        """Return quantiles by name, those of 10 000 draws; see `AutoGuide.quantiles`."""
        levels = as_quantiles(quantiles)
        with self._asked():
            free = self.free_draws((QUANTILE_DRAWS,), Generator(0))
            found = {n: np.quantile(to_host(x.array), levels, axis=0) for n, x in free.items()}
            return off_tape(
                {n: self.latents[n].transform(wrap(x.astype(self.dtype))) for n, x in found.items()}
            )


# ------------------------------------------------------------------------------------------ helpers


def plate_at(plates: Mapping[str, plate], frame: Frame) -> plate:
    """Return the plate of a frame, at its dim, which may be another at each site of the plate."""
    found = plates[frame.name]
    if found.dim == frame.dim:
        return found
    # The same rows, which were chosen when the plate was made.
    moved = copy.copy(found)
    moved.dim = frame.dim
    return moved


def particles_here() -> list[replicate]:
    """Return handlers that run a hidden model as often at once as the guide around it is run."""
    return [replicate(None, h.size, h.dim) for h in STATE.handlers if isinstance(h, replicate)]


T = TypeVar("T")


def off_tape(tree: T) -> T:
    """Return copies of the tensors in a tree, so that no answer changes with the next step."""
    return map_tree(lambda x: wrap(x.array.copy()) if is_tensor(x) else x, tree)


def drawn_side_by_side(
    one: Callable[[], dict[str, TensorBase]], shape: tuple[int, ...], at_once: bool = True
) -> dict[str, TensorBase]:
    """Return draws of a function that makes one, each (*shape, *shape of one), off the tape.

    All are one run under `vmap`, which asks nothing of the shapes that a model takes; what that
    does not bear, because Python looks at values, is run draw by draw; so is all without `at_once`.
    """
    count, rows = math.prod(shape), dict[str, list[np.ndarray]]()
    done = 0
    while at_once and count - done > 1:
        size = min(count - done, SIDE_BY_SIDE)
        try:
            found = vmap(lambda _: one(), randomness="different")(wrap(np.zeros(size)))
        except Exception:
            # Whatever it is, single runs bear it, or say it better.
            break
        for name, x in found.items():
            rows.setdefault(name, []).append(to_host(x.array))
        done += size
    for _ in range(max(count, 1) - done):
        for name, x in one().items():
            rows.setdefault(name, []).append(to_host(x.array)[None])
    drawn = {name: np.concatenate(parts)[:count] for name, parts in rows.items()}
    return {name: wrap(x.reshape((*shape, *x.shape[1:]))) for name, x in drawn.items()}


def check_scale(guide: str, init_scale: float) -> float:
    """Return `init_scale` as a positive number, or refuse it."""
    if not isinstance(init_scale, (int, float)) or not 0.0 < init_scale < math.inf:
        raise ArgumentError(
            f"{guide}(init_scale=...)",
            expected="a number > 0",
            got=repr(init_scale),
            fix="for example init_scale=0.1",
        )
    return float(init_scale)


def as_quantiles(quantiles: Iterable[float]) -> np.ndarray:
    """Return quantiles as a float64 vector, or refuse what lies outside (0, 1)."""
    if isinstance(quantiles, Mapping):
        raise ArgumentError(
            "quantiles",
            expected="numbers strictly between 0 and 1",
            got=f"a dict of {', '.join(map(str, quantiles)) or 'nothing'}",
            fix="leave out parameters, which are the guide's own: quantiles([0.05, 0.5, 0.95])",
        )
    array = np.atleast_1d(np.asarray(to_host(as_tensor(quantiles).array), np.float64))
    if array.ndim != 1 or not ((array > 0.0) & (array < 1.0)).all():
        raise ArgumentError(
            "quantiles",
            expected="numbers strictly between 0 and 1",
            got=repr(quantiles),
            fix="for example [0.05, 0.5, 0.95]",
        )
    return array
