"""Fields: how a distribution states its parameters, once.

`param(constraint)` is a tensor parameter, `setting()` an argument that is not a tensor (a size),
and `one_of("probs", "logits")` says that exactly one of several is given; the others are computed
when asked for, by the methods `_probs`, `_logits`. From the fields `WithFields`, the base of
`Distribution`, makes `__init__`, validation, `batch_shape`, `repr` and tree leaves.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias, dataclass_transform, overload
from typing import cast as typed

import numpy as np

from probtorch.backends.registry import device_of
from probtorch.core import dtype as dtypes
from probtorch.core.casting import to_float
from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.core.shape import broadcast_shapes
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import is_number, number_alone
from probtorch.core.tree import make_leaf_type
from probtorch.core.typed import DType, Shape, SizeLike, TensorLike
from probtorch.distributions import constraints
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.meant import cure_for_name
from probtorch.distributions.spelled import told_of_classes
from probtorch.distributions.validation import check_parameter, validation_in_force
from probtorch.distributions.written import adopt, check_attributes, split_attributes
from probtorch.errors import ArgumentError, ShapeError
from probtorch.tensor import Tensor

__all__ = [
    "INSTANCE_STATE",
    "MISSING",
    "Given",
    "Parameter",
    "Values",
    "WithFields",
    "as_parameter",
    "one_of",
    "param",
    "setting",
]

MISSING = object()
# By name what a distribution is made of: tensors, settings, other distributions.
Values: TypeAlias = dict[str, Any]
# What is accepted for a parameter.
Given: TypeAlias = TensorLike | Sequence
# What a tree of any distribution carries besides parameters and settings.
INSTANCE_STATE = ("_expanded", "_validate_args", "_weak")


class Parameter:
    """One argument of a distribution; on an instance it reads as the value.

    A value given at construction lies in the instance's `__dict__` and is found there first. Only a
    parameter left out (see `one_of`) gets here, and is computed afresh at each access: a stored
    copy could outlive the tape it was made on.
    """

    __slots__ = ("constraint", "default", "name")

    if TYPE_CHECKING:
        # For type checkers: what `__init__` takes.
        def __set__(self, instance: object, value: Given | None) -> None: ...

    def __init__(self, constraint: Constraint | None, default: object) -> None:
        self.constraint = constraint
        self.default = default
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: object = None) -> Parameter: ...
    @overload
    def __get__(self, instance: object, owner: object = None) -> Tensor: ...
    def __get__(self, instance: Any, owner: object = None) -> Any:
        if instance is None:
            return self
        derive = getattr(instance, "_" + self.name, None)
        if derive is None:
            raise AttributeError(f"{type(instance).__name__} was made without {self.name!r}")
        return derive()

    def __repr__(self) -> str:
        return f"<parameter {self.name}: {self.constraint!r}>"

    def convert(self, value: Any) -> tuple[Any, bool]:
        """Return ``(value, weak)``; see `as_parameter`."""
        if self.constraint is None:
            return value, True
        return as_parameter(value, self.name)


def as_parameter(value: Given, name: str, *, as_is: bool = False) -> tuple[Tensor, bool]:
    """Return ``(tensor, weak)``: the parameter, and whether it came from a Python number.

    Python numbers become float64 tensors without dims: exact, and weak in promotion. Integers
    become floats unless `as_is`.
    """
    if isinstance(value, TensorBase):
        if is_number(value):
            return number_alone(value), True
        t = value
    elif type(value) in (float, int, bool):
        whole = as_is and type(value) is not float
        return wrap(np.array(value, np.int64 if whole else np.float64)), True
    else:
        # Sequences of any kind are converted as lists are.
        t = as_tensor(typed(TensorLike, value), name)
    return (t if as_is else to_float(t)), False


def param(constraint: Constraint, *, default: object = MISSING) -> Any:
    """State a tensor parameter.

    Parameters
    ----------
    constraint : Constraint
        The set it lies in; its `event_dim` rightmost dims of the parameter belong to one event.
        A `constraints.dependent` one may look at the other parameters.
    default : number or None, optional
        None for an alternative that may be left out (see `one_of`).
    """
    return Parameter(constraint, default)


def setting(*, default: object = MISSING, kw_only: bool = False) -> Any:
    """State an argument that is not a tensor; `kw_only` is for type checkers."""
    return Parameter(None, default)


class one_of:
    """Say that exactly one of the named parameters is given; `Distribution` keeps the names."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def __set_name__(self, owner: Any, name: str) -> None:
        owner._alternatives = self.names


@dataclass_transform(field_specifiers=(param, setting))
class WithFields:
    """A class whose fields are its arguments; subclasses state them, type checkers know them."""

    _fields: ClassVar[dict[str, Parameter]] = {}
    __signature__: ClassVar[inspect.Signature]
    _alternatives: ClassVar[tuple[str, ...]] = ()
    # What other libraries call fields; None for arguments of theirs that have no use here.
    _also: ClassVar[Mapping[str, str | None]] = {}
    __static_fields__: ClassVar[tuple[str, ...]] = INSTANCE_STATE

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        own = {n: f for n, f in cls.__dict__.items() if isinstance(f, Parameter)}
        # Of all bases: a user's class may have a mixin without fields before the distribution.
        inherited: dict[str, Parameter] = {}
        for base in cls.__mro__[1:]:
            for name, field in base.__dict__.get("_fields", {}).items():
                inherited.setdefault(name, field)
        cls._fields = {**{n: f for n, f in inherited.items() if n not in own}, **own}
        if own:
            cls._is_filled = "__init__" not in cls.__dict__
            if cls._is_filled:
                setattr(cls, "__init__", WithFields._fill)  # noqa: B010  # mypy: of an instance
            settings = tuple(n for n, f in cls._fields.items() if f.constraint is None)
            cls.__static_fields__ = (*settings, *INSTANCE_STATE)
            cls.__signature__ = _signature(cls._fields)
        adopt(cls)
        if cls._fields and not own and _is_more_than_fields(cls):
            make_leaf_type(cls)
        if not cls._fields and "__init__" in cls.__dict__ and "log_prob" in cls.__dict__:
            cls.__static_fields__ = cls.__dict__.get("__static_fields__", ("_others",))

    # Whether `_fill` is the constructor of the class that stated the fields.
    _is_filled = True

    def __init__(self, *args: Any, validate_args: bool | None = None, **kwargs: Any) -> None:
        # A class that has fields without a constructor of its own gets `_fill`, so who comes here
        # went past it, as `super(Normal, self).__init__(batch_shape, event_shape)` does, or states
        # no fields: both have PyTorch's arguments.
        if self._is_filled:
            self._past(args, validate_args, kwargs)
        else:
            self._fill(*args, validate_args=validate_args, **kwargs)

    def _past(
        self, args: Sequence[object], validate_args: bool | None, kwargs: Mapping[str, object]
    ) -> None:
        told = {} if validate_args is None else {"validate_args": validate_args}
        self._start_written(*args, **told, **kwargs)  # type: ignore[arg-type, misc]  # as it was called

    def _fill(self, *args: object, validate_args: bool | None = None, **kwargs: object) -> None:
        """Take the arguments of a class that states fields."""
        cls, fields = type(self), self._fields
        if self.__dict__ and args and isinstance(args[0], (list, tuple)):
            # Went past a class that inherits fields and constructor, such as `Categorical`, and
            # has set fields itself: these are shapes.
            if not self.__dict__.keys().isdisjoint(fields):
                self._past(args, validate_args, kwargs)
                return
        values = self._completed(_bind(cls, fields, args, kwargs))
        if self._alternatives:
            _check_alternatives(cls.__name__, self._alternatives, values)
        store, shapes, strong = self.__dict__, [], []
        for name, field in fields.items():
            value = values.get(name, field.default)
            if value is MISSING:
                raise ArgumentError(
                    cls.__name__,
                    expected=f"a value for {name}",
                    got="none",
                    fix=f"call {cls.__name__}({', '.join(fields)})",
                )
            if value is None and field.default is None:
                continue
            store[name], weak = field.convert(value)
            if field.constraint is None:
                continue
            value = store[name]
            if not weak:
                strong.append(value.array)
            shapes.append(_batch_part(cls, name, value, field.constraint.event_dim))
        batch = broadcast_shapes(*shapes, op=cls.__name__) if any(shapes) else ()
        dtype = dtypes.promote(strong) if strong else None
        device = next((device_of(x) for x in strong if type(x) is not np.ndarray), None)
        self._set_shapes(batch, (), dtype=dtype, device=device, validate_args=validate_args)
        self._event_shape = tuple(self._infer_event_shape())
        if self._validate_args:
            self._check_parameters()

    def _set_shapes(
        self,
        batch_shape: Iterable[int],
        event_shape: Iterable[int],
        *,
        dtype: DType | None = None,
        device: str | None = None,
        validate_args: bool | None = None,
    ) -> None:
        """Set what every instance has; `dtype` is that of draws, None for the default dtype, and
        `device` where random numbers are wanted, None for the host.
        """
        self._batch_shape, self._event_shape = tuple(batch_shape), tuple(event_shape)
        self._dtype, self._device = dtype, device
        self._expanded: Shape | None = None
        self._validate_args = (
            validation_in_force() if validate_args is None else bool(validate_args)
        )

    # Whether the class overrides public methods in place of stating fields; see written.py.
    _written = False

    def _start_written(
        self,
        batch_shape: SizeLike = (),
        event_shape: SizeLike = (),
        validate_args: bool | None = None,
    ) -> None:
        batch, event = as_size(batch_shape), as_size(event_shape)
        fields, store = self._fields, self.__dict__
        given = {n: f for n, f in fields.items() if store.get(n) is not None}
        optional = {n for n, f in fields.items() if f.default is not MISSING}
        one = not self._alternatives or sum(n in given for n in self._alternatives) == 1
        if not fields or not one or not fields.keys() <= given.keys() | optional:
            self._written = True
            self._set_shapes(batch, event, validate_args=validate_args)
            if self._validate_args:
                check_attributes(self, self.arg_constraints)
            return
        # The fields of a class that this one is derived from, which it has set itself.
        strong = []
        for name, field in given.items():
            store[name], weak = field.convert(store[name])
            if field.constraint is not None and not weak:
                strong.append(store[name].array)
        for name in optional - given.keys():
            if fields[name].default is not None:
                store[name], _ = fields[name].convert(fields[name].default)
        dtype = dtypes.promote(strong) if strong else None
        self._set_shapes(batch, event, dtype=dtype, validate_args=validate_args)
        if self._validate_args:
            self._check_parameters()

    @property
    def _others(self) -> tuple[tuple[str, object], ...]:
        return split_attributes(self)[1]

    def _completed(self, values: Values) -> Values:
        """Return the arguments, by name, with what some of them say about others."""
        return values

    def _infer_event_shape(self) -> Shape:
        """Return the event shape from the parameters; () for distributions of single numbers."""
        return ()

    def _given(self, name: str) -> bool:
        """Whether the alternative `name` is the one given at construction."""
        return name in self.__dict__

    def _check_parameters(self) -> None:
        for name, field in self._fields.items():
            value, constraint = self.__dict__.get(name), field.constraint
            if constraint is not None and value is not None:
                check_parameter(type(self).__name__, name, value, constraint, self)

    @property
    def arg_constraints(self) -> dict[str, Constraint]:
        """Dict from parameter name to its constraint, for the parameters given."""
        return {
            name: _resolved(field.constraint, self)
            for name, field in self._fields.items()
            if field.constraint is not None and name in self.__dict__
        }

    def __repr__(self) -> str:
        parts = [
            f"{n}={_shown(self.__dict__[n])}" for n in self._tree_names() if n in self.__dict__
        ]
        if self._expanded is not None:
            parts.append(f"batch_shape={tuple(self._batch_shape)}")
        return f"{type(self).__name__}({', '.join(parts)})"

    # ------------------------------------------------------------------------------ as a tree

    def _tree_names(self) -> tuple[str, ...]:
        return tuple(self._fields)

    @property
    def __tree_fields__(self) -> tuple[str, ...]:
        if self._written:
            return split_attributes(self)[0]
        return tuple(
            n for n, f in self._fields.items() if f.constraint is not None and n in self.__dict__
        )

    @property
    def _weak(self) -> bool:
        """Whether all parameters came from Python numbers, so that draws have the default dtype."""
        return self._dtype is None

    if TYPE_CHECKING:

        def expand(self, batch_shape: SizeLike, _instance: Self | None = None) -> Self: ...

    @classmethod
    def __tree_build__(cls, values: Values) -> Self:
        if "_others" in values:
            made = object.__new__(cls)
            made.__dict__.update(values.pop("_others"))
            made.__dict__.update(values)
            return made
        expanded, validate = values.pop("_expanded"), values.pop("_validate_args")
        weak = values.pop("_weak")
        out = cls._from_tree(values)
        out._validate_args = validate
        out._dtype = None if weak else out._dtype
        return out if expanded is None else out.expand(expanded)

    @classmethod
    def _from_tree(cls, values: Values) -> Self:
        return cls(**values, validate_args=False)


def _constraints_of(cls: type[WithFields]) -> dict[str, Constraint]:
    return {n: f.constraint for n, f in cls._fields.items() if f.constraint is not None}


setattr(  # noqa: B010  # mypy knows the property of instances
    WithFields,
    "arg_constraints",
    told_of_classes(vars(WithFields)["arg_constraints"], _constraints_of),
)


# ------------------------------------------------------------------------------ helpers


def _is_more_than_fields(cls: type[WithFields]) -> bool:
    """Whether a user's class is made by a constructor that asks for something beside the fields."""
    if cls._from_tree.__func__ is not WithFields._from_tree.__func__:  # type: ignore[attr-defined]
        return False
    if cls.__init__ is WithFields._fill or cls.__module__.startswith("probtorch."):
        return False
    taken = list(inspect.signature(cls.__init__).parameters.values())[1:]
    named = {p.name for p in taken if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    wanted = {*cls._fields, "validate_args"}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in taken)
    return not named <= wanted or not (takes_any or wanted <= named)


def as_size(shape: SizeLike) -> Shape:
    """Return a shape as a tuple; a number is a shape of one dim."""
    return (shape,) if isinstance(shape, int) else tuple(shape)


def _check_alternatives(owner: str, names: Sequence[str], values: Mapping[str, object]) -> None:
    """Raise ArgumentError unless `values` holds exactly one of `names`."""
    given = [n for n in names if values.get(n) is not None]
    if len(given) != 1:
        raise ArgumentError(
            owner,
            expected=f"exactly one of {', '.join(names)}",
            got=" and ".join(given) if given else "none of them",
            fix=f"call {owner}({names[0]}=...)",
        )


def _bind(
    cls: type[WithFields],
    fields: Mapping[str, Parameter],
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> Values:
    """Return a dict from field name to argument, as Python binds a call; missing ones left out.

    Raises
    ------
    ArgumentError
        For too many, unknown or repeated arguments.
    """
    if len(args) > len(fields):
        raise ArgumentError(
            cls.__name__,
            expected=f"at most {len(fields)} arguments ({', '.join(fields)})",
            got=f"{len(args)}",
            fix="pass a batch as one tensor per parameter",
        )
    values = dict(zip(fields, args))
    for given, value in kwargs.items():
        name = given if given in fields else cls._also.get(given, given)
        if name is None:
            continue
        if name not in fields:
            raise ArgumentError(
                cls.__name__,
                expected=f"arguments named {', '.join(fields)}",
                got=name,
                fix=cure_for_name(cls.__name__, name, fields),
            )
        if name in values:
            raise ArgumentError(
                cls.__name__,
                expected=f"one value for {name}",
                got="one by position and one by name",
                fix=f"drop {name}=, or name the other arguments too",
            )
        values[name] = value
    return values


def _signature(fields: Mapping[str, Parameter]) -> inspect.Signature:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    items, optional = [], False
    for name, field in fields.items():
        optional |= field.default is not MISSING
        default = None if field.default is MISSING else field.default
        items.append(
            inspect.Parameter(name, kind, default=default if optional else inspect.Parameter.empty)
        )
    items.append(inspect.Parameter("validate_args", inspect.Parameter.KEYWORD_ONLY, default=None))
    return inspect.Signature(items)


def _batch_part(cls: type, name: str, value: Tensor, event_dim: int) -> Shape:
    shape = value.array.shape
    if len(shape) < event_dim:
        raise ShapeError(
            f"{cls.__name__}: parameter {name}",
            expected=f"at least {event_dim} dims, the rightmost of which form one event",
            got=f"shape {shape}",
            fix="pass a vector (or matrix) per batch element",
        )
    return shape[: len(shape) - event_dim]


def _resolved(constraint: Constraint, owner: object) -> Constraint:
    return (
        constraint.resolve(owner) if isinstance(constraint, constraints.Dependent) else constraint
    )


def _shown(value: Tensor) -> str:
    if isinstance(value, TensorBase):
        return f"{value:g}" if value.array.ndim == 0 else f"{tuple(value.array.shape)}"
    return repr(value)
