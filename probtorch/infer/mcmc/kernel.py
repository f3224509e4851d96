"""What a kernel is: the contract between samplers and the driver, which knows nothing else of them.

A kernel is one frozen record. Its fields are of three kinds: `tuned` ones are tensors in programs,
and may change from call to call (a step size, a metric); `static` ones are compiled in; a `setting`
is read outside of programs only. Users construct it with a model; `in_use` is the same record with
a compiled density in the place of the model, the form that it has in a chain.

What a step tells is a record of the kernel's own, each field declared by `statistic`: its name in
results, its dtype, and what becomes of several transitions of which one is kept. chunk.py makes its
columns from that, and whoever looks for something (divergences, trees that are full) looks for its
name and does without. What warm-up does is a value, `Warmup` (adaptation.py).

random_walk.py is the shortest example; docs/internals/inference.md has one more, line by line.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    Protocol,
    Self,
    TypeVar,
    cast,
    dataclass_transform,
)

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.signatures import explained
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import record, replace, static
from probtorch.core.typed import DType, DTypeLike, TensorLike
from probtorch.errors import ArgumentError
from probtorch.infer.mcmc.integrators import Density
from probtorch.infer.mcmc.names_of_settings import MEANT, settings_of_others
from probtorch.infer.mcmc.randomness import Key
from probtorch.infer.mcmc.warm_up.adaptation import Warmup
from probtorch.infer.mcmc.warm_up.estimates import Spectrum
from probtorch.infer.model_calls import check_model
from probtorch.infer.potential import Target
from probtorch.infer.starts.initialization import Strategy
from probtorch.infer.starts.path_starts import init_to_typical_set

if TYPE_CHECKING:
    from probtorch.compiler.density import NativeDensity
    from probtorch.infer.results import SampledDraws

__all__ = [
    "Kernel",
    "State",
    "Statistic",
    "checked",
    "setting",
    "statistic",
    "statistics",
    "tuned",
]

K = TypeVar("K", bound="Kernel")


class State(Protocol):
    """What every state has; see `Kernel`."""

    @property
    def position(self) -> TensorBase:
        """Of shape (dim,), or (members, dim)."""

    @property
    def logdensity(self) -> TensorBase:
        """The log density there."""

    @property
    def counter(self) -> TensorBase:
        """The first random counter that was not used yet."""


S = TypeVar("S", bound=State)


# ------------------------------------------------------------------------------- what a step tells


@dataclasses.dataclass(frozen=True)
class Statistic:
    """How a field of an info appears in results.

    Parameters
    ----------
    field : str
    name : str or None
        None for what warm-up reads and results do not show.
    dtype : dtype
    combine : ufunc or None
        Makes one value of those of several transitions when draws are thinned; the last one counts
        if None.
    like : str or None
        The field of the kernel whose shape it has, for what warm-up reads only.
    """

    field: str
    name: str | None
    dtype: DType
    combine: np.ufunc | None
    like: str | None = None


def statistic(
    name: str | None = None,
    *,
    combine: np.ufunc | None = None,
    dtype: DTypeLike = np.float64,
    like: str | None = None,
) -> Any:
    """Declare a field of an info: a tensor of the position's shape without its last dim.

    Parameters
    ----------
    name : str, optional
        Under which results have it: ArviZ's where there is one (``acceptance_rate lp n_steps
        diverging energy step_size tree_depth reached_max_treedepth``). Without a name it is read by
        warm-up only. `n_steps` is how often the density was evaluated.
    combine, dtype, like
        See `Statistic`.
    """
    return dataclasses.field(metadata={"statistic": (name, dtype, combine, like)})


@functools.lru_cache(maxsize=64)
def statistics(info: type) -> tuple[Statistic, ...]:
    """Return the declared fields of a class of infos, in order."""
    return tuple(Statistic(f.name, *_declared(f, info)) for f in dataclasses.fields(info))


def _declared(
    field: dataclasses.Field[object], info: type
) -> tuple[str | None, DType, np.ufunc | None, str | None]:
    if "statistic" not in field.metadata:
        raise TypeError(f"{info.__name__}.{field.name} is declared without statistic(...)")
    name, dtype, combine, like = field.metadata["statistic"]
    return name, np.dtype(dtype), combine, like


# ---------------------------------------------------------------------------- what a kernel is like


def tuned(*, default: object = None, between: tuple[float, float] | None = None) -> Any:
    """Declare a field that is a tensor, or a record of them, in programs.

    Parameters
    ----------
    default
        A number is made a tensor where the kernel is put to use.
    between : (float, float), optional
        What users give has to lie strictly between these.
    """
    return dataclasses.field(default=default, metadata={"between": between})


def setting(*, default: object = None, between: tuple[float, float] | None = None) -> Any:
    """Declare a field that programs do not know: warm-up and driver read it; as for `tuned`."""
    return dataclasses.field(default=default, metadata={"between": between, "outside": True})


@dataclass_transform(
    frozen_default=True,
    kw_only_default=True,
    field_specifiers=(dataclasses.field, static, setting, tuned),
)
class _Fields:
    """Makes a record of each subclass, whose constructor explains calls that do not fit."""

    # Made by `record`.
    __tree_fields__: ClassVar[tuple[str, ...]]
    __static_fields__: ClassVar[tuple[str, ...]]

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        own = vars(cls)
        # Of a class that has none of its own, record would make these: __replace__ from 3.13 on.
        for name in ("__repr__", "__replace__"):
            if name not in own and hasattr(cls, name):
                setattr(cls, name, getattr(cls, name))
        record(cls, kw_only=True)
        explain = explained(
            cls.__name__,
            meant=MEANT,
            advice=lambda args, kwargs: settings_of_others(cls, _Fields, kwargs),
        )
        setattr(cls, "__init__", explain(cls.__init__))  # noqa: B010  # mypy: no method


class Kernel(_Fields, ABC, Generic[S]):
    """The base of all kernels; a subclass becomes a record by that alone.

    A kernel states its fields, `info` (the class of what `step` tells), `init` and `step`; and
    `warmup`, where it has one. Everything else is here.

    `init` and `step` are pure, written in tensor ops: they run eagerly under a debugger, and are
    compiled for a run. Branches are `where` and `cond`, loops `while_loop`. All that they know of a
    model is ``self.density(position) -> (log density, gradient)``. A state has the fields

    - `position`, float64 of shape (dim,), or (members, dim) for a kernel with `members`, whose
      members then are chains of the result;
    - `logdensity`, there;
    - `counter`, 0-d int64, the first random counter that was not used yet (randomness.py);
    - `grad`, of the position's shape, if the kernel wants its warm-up to learn from gradients;

    and others, as long as `init` can make them of position and counter.

    Parameters
    ----------
    model : callable or Target, optional
        A model with sample statements.
    potential_fn : callable, optional
        Instead of a model: minus a log density, of a vector or a dict of unconstrained values; then
        `run` needs `init_params`.
    init_strategy : callable
        Where chains start; see `init_to_typical_set` and its kin.
    reparam : "auto", dict or callable, optional
        The coordinates of the model's sites: a dict from names to reparameterisations, or a
        function of a site, as for `handlers.reparam`. "auto" chooses between centred and
        non-centred for each hierarchical site by a short run, and says what it chose; see
        `choose_reparam`.

    Attributes
    ----------
    density : callable
        In a chain: ``density(position) -> (log density, gradient)``.
    info : type
        The class of infos; a record whose fields are declared by `statistic`.
    """

    info: ClassVar[type]
    # Whether particles may be moved by it (sequential/): steps from a state that `init` has just
    # made leave any density that it is given invariant, exactly.
    moves_particles: ClassVar[bool] = True
    # Whether discrete sites are coordinates of its target, instead of being summed out.
    moves_discrete: ClassVar[bool] = False
    # Whether its walkers may be moved all at once, by an `InlinedDensity`, as a GPU wants it.
    moves_rows: ClassVar[bool] = False

    model: Callable[..., object] | Target | None = dataclasses.field(
        default=None, metadata={"outside": True}, kw_only=False
    )
    potential_fn: Callable[..., TensorBase] | None = setting(default=None)
    init_strategy: Strategy = setting(default=init_to_typical_set)
    reparam: object = setting(default=None)
    # None in the hands of users: nothing is evaluated there.
    density: Density = dataclasses.field(default=cast("Density", None), init=False)

    # --------------------------------------------------------------------- what a kernel is made of

    @abstractmethod
    def init(self, position: TensorBase, counter: TensorBase | int = 0) -> S:
        """Return the state at a position; a pure function in tensor ops."""

    @abstractmethod
    def step(self, key: Key, state: S) -> tuple[S, object]:
        """Return ``(state, info)`` after one transition; a pure function in tensor ops."""

    def resumed(self, state: S) -> S:
        """Return a state to go on from, its density taken anew: the model's data may have changed.

        What `init` cannot know, say a momentum, goes on. A kernel whose states have more that is of
        the density than `logdensity` and `grad` says here how that is renewed.
        """
        new = self.init(state.position, state.counter)
        changed = {"logdensity": new.logdensity}
        if hasattr(new, "grad"):
            changed["grad"] = new.grad
        return replace(state, **changed)

    @property
    def warmup(self) -> Warmup:
        """What is tuned and learnt before draws count: nothing, unless a kernel says what."""
        return Warmup()

    @property
    def members(self) -> int:
        """How many points a state holds; 0 for one point, a vector."""
        return 0

    @property
    def posterior_alone(self) -> str:
        """What of it moves by the posterior and by no density on the way there; "" if nothing."""
        return ""

    @property
    def follows_prior(self) -> bool:
        """Whether it moves along the Gaussian prior of its sites, which is its field `gaussian`.

        In a block of a Gibbs sampler that is another one at each step, and lent to it.
        """
        return False

    def first_values(
        self, target: Target, state: S, spectrum: Spectrum | None, warming: bool
    ) -> Mapping[str, object]:
        """Return what `tuned` fields are to begin with, by name; the rest is as it was given.

        Parameters
        ----------
        target : Target
        state : record
            Where the chain starts.
        spectrum : Spectrum or None
            What finding the start told of the covariance.
        warming : bool
            Whether a warm-up follows.
        """
        return {}

    def metrics_of_spectra(
        self, target: Target, spectra: Spectrum, warming: bool
    ) -> list[np.ndarray] | None:
        """Return the metrics that chains begin with, as stacked leaves, where all else is alike.

        That is where a state is position, log density and gradient, and `first_values` a metric of
        the spectrum; None where chains have to be made one by one.

        Parameters
        ----------
        target : Target
        spectra : Spectrum
            Of all chains, stacked.
        warming : bool
        """
        return None

    def tuned_values(self, names: Sequence[str]) -> dict[str, float | list[float]]:
        """Return what is tuned, as results show it: numbers by the names of fields."""
        return {name: float(getattr(self, name).array) for name in names}

    def first_guess(self, key: Key, state: S) -> tuple[TensorBase, S]:
        """Return a value for what is tuned, and the state after the search for it.

        Asked for where the tuner `searches`; a pure function in tensor ops.
        """
        raise NotImplementedError(type(self).__name__)

    def blank_values(self, dim: int, leaves: Sequence[np.ndarray]) -> Mapping[str, object]:
        """Return `tuned` fields of any value, of the kind that a saved chain has.

        Parameters
        ----------
        dim : int
        leaves : list of ndarray
            The chain's.
        """
        return {}

    def on(self, target: Target) -> Self:
        """Return the kernel with what its programs have to know of a target: itself, mostly."""
        return self

    def native(self, target: Target) -> NativeDensity:
        """Return the density that it evaluates: the target's, unless a kernel says which."""
        return target.density

    @classmethod
    def takes_any_density(cls) -> bool:
        """Return whether log density and gradient are all it evaluates, so others can lend them."""
        return cls.native is Kernel.native

    def evaluated_at(self, position: np.ndarray) -> np.ndarray:
        """Return an argument of that density, for a position of shape (dim,)."""
        return position

    def dim_of(self, leaves: Sequence[np.ndarray]) -> int:
        """Return the number of coordinates of a saved chain.

        Parameters
        ----------
        leaves : list of ndarray
            The chain's.
        """
        of_position = 2 if self.members else 1
        return max((x.shape[-1] for x in leaves if x.ndim == of_position), default=0)

    def earlier(self) -> Self | None:
        """Return the kernel as earlier releases had it, whose saved chains have other arrays.

        Such chains go on as they were; None where they are the same.
        """
        return None

    def mistaken(self) -> Mapping[str, tuple[Self, str]]:
        """Return kernels whose saved chains may be given to this one, and have other arrays.

        By what they were built with; each with what to write to go on with such chains.
        """
        return {}

    def stated(self) -> str:
        """Return what users call it, with the setting that `mistaken` ones do not share."""
        return self.name

    def attrs(self) -> dict[str, object]:
        """Return the settings that results should carry."""
        if self.reparam is None:
            return {"kernel": self.name}
        told = self.reparam if isinstance(self.reparam, (str, Mapping)) else "a function"
        return {"kernel": self.name, "reparam": str(told)}

    def of_run(
        self, target: Target, kernels: Sequence[Self], draws: SampledDraws
    ) -> Mapping[str, object]:
        """Return attributes that tell more of a run, say what divergent draws come from.

        Parameters
        ----------
        target : Target
        kernels : sequence of Kernel
            In use, one per chain.
        draws : Draws
        """
        return {}

    # --------------------------------------------------------------------------------- what is done

    def __post_init__(self) -> None:
        if (self.model is None) == (self.potential_fn is None):
            raise ArgumentError(
                self.name,
                expected="one of model and potential_fn",
                got="both" if self.model is not None else "neither",
                fix=f"write {self.name}(model), the function itself and not what it returns, "
                f"or {self.name}(potential_fn=minus_log_density)",
            )
        if self.model is not None and not isinstance(self.model, Target):
            check_model(self.model, self.name)
        if not callable(self.init_strategy):
            raise ArgumentError(
                f"{self.name}(init_strategy=...)",
                expected="a function, such as init_to_median()",
                got=repr(self.init_strategy),
                fix="import init_to_uniform, init_to_median or init_to_value from probtorch.infer",
            )
        for f in dataclasses.fields(self):
            if between := f.metadata.get("between"):
                self._set(**{f.name: checked(self.name, f.name, getattr(self, f.name), *between)})

    def _set(self, **values: object) -> None:
        """Settle fields, in constructors."""
        self.__dict__.update(values)

    @classmethod
    def __tree_build__(cls: type[K], values: Mapping[str, object]) -> K:
        made = object.__new__(cls)
        made.__dict__.update(values)
        return made

    def __replace__(self: K, **changes: object) -> K:
        names = _field_names(type(self))
        assert changes.keys() <= names, f"{type(self).__name__} has no {changes.keys() - names}"
        return self.__tree_build__({**self.__dict__, **changes})

    def in_use(self: K, density: Density, **values: object) -> K:
        """Return the kernel on a density, without settings, with these values of `tuned` fields."""
        kind = type(self)
        names = (*kind.__tree_fields__, *kind.__static_fields__)
        return self.of(**{n: getattr(self, n) for n in names} | values | {"density": density})

    @classmethod
    def of(cls: type[K], density: Density, **values: object) -> K:
        """Return a kernel in use, given its fields; see `in_use`."""
        tree = cls.__tree_fields__
        made = {n: _tensor(values.get(n, getattr(cls, n))) for n in tree}
        return cls.__tree_build__({**values, **made, "density": density})

    @property
    def name(self) -> str:
        """What messages and results call it."""
        return type(self).__name__

    def target(
        self,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        init_params: TensorLike | Mapping[str, TensorLike] | None = None,
    ) -> Target:
        """Return the `Target` for the arguments of a run.

        `init_params`, for one chain, says what the variables of a potential look like.
        """
        if isinstance(self.model, Target):
            return self.model
        if self.model is not None:
            return Target.from_model(self.model, *args, **kwargs)
        if init_params is None:
            raise ArgumentError(
                f"{self.name}(potential_fn=...)",
                expected="run(init_params=...), which gives names and shapes",
                got="no init_params",
                fix="pass an array of shape (dim,), or a dict of arrays by name",
            )
        assert self.potential_fn is not None
        return Target.from_potential(self.potential_fn, init_params)

    def __repr__(self) -> str:
        what = self.model if self.model is not None else self.potential_fn
        return f"{self.name}({getattr(what, '__name__', type(what).__name__)})"


@functools.lru_cache(maxsize=64)
def _field_names(kind: type[Kernel]) -> frozenset[str]:
    """The names of all fields of a class of kernels."""
    return frozenset(f.name for f in dataclasses.fields(kind))


def _tensor(x: object) -> object:
    return wrap(np.asarray(x)) if isinstance(x, (int, float)) else x


def checked(owner: str, name: str, value: float, low: float, high: float) -> float:
    """Return a setting as a float strictly between two bounds."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not low < number < high:
        raise ArgumentError(
            f"{owner}({name}=...)",
            expected=f"a number in ({low:g}, {high:g})",
            got=f"{value!r:.60}",
            fix="leave it out for the default",
        )
    return number
