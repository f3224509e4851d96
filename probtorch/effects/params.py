"""`ParamStore`: named parameters, kept unconstrained and read constrained.

A store belongs to whoever optimises: an inference object makes one and activates it around the
model. Outside of any, `param` and `get_param_store` use the store that was shown last (`show`),
which is the view that Pyro users expect; a script that optimises nothing has one of its own.

Parameters of modules stay where they are: the store refers to them (`adopt`), so that one tensor is
moved whoever looks at it.
"""

from __future__ import annotations

import contextlib
import os
import re
import weakref
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping
from typing import Any

import numpy as np

from probtorch.compiler.guards.walk import Entries
from probtorch.core import doors
from probtorch.core import dtype as dtypes
from probtorch.core.casting import cast
from probtorch.core.dispatch import mark_changed, set_grad_enabled, wrap
from probtorch.core.rng import Generator
from probtorch.core.signatures import explain_calls
from probtorch.core.surroundings import Surroundings
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import StateDict, TensorLike
from probtorch.distributions import constraints
from probtorch.distributions.constraint_states import constraint_of, constraint_state
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.constraints.base import how_to_say
from probtorch.distributions.transforms.registry import transform_to
from probtorch.effects.runtime import STATE, generator_in_force
from probtorch.effects.site import as_value
from probtorch.errors import ArgumentError, DomainError, DTypeError, ModelError, ShapeError
from probtorch.nn.parameter import Parameter
from probtorch.serialization import load, save
from probtorch.tensor import Tensor

__all__ = [
    "ParamStore",
    "as_shares",
    "clear_param_store",
    "get_param_store",
    "read_owned",
    "read_param",
    "take_loaded",
]


class ParamStore:
    """Named parameters: each a leaf of unconstrained numbers and the constraint of its value.

    Reads like a dict of constrained values: ``store["scale"]`` is differentiable with respect to
    the leaf that `named_parameters` hands to an optimizer.

    Examples
    --------
    >>> store = ParamStore()
    >>> scale = store.setdefault("scale", 2.0, constraints.positive)
    >>> (scale.item(), store.unconstrained("scale").requires_grad)
    (2.0, True)
    """

    def __init__(self) -> None:
        self._leaves: dict[str, Tensor] = {}
        self._constraints: dict[str, Constraint] = {}
        # Running statistics and the like of the modules met, by dotted name: state, not parameters.
        self.buffers: dict[str, Tensor] = {}

    # -------------------------------------------------------------------- values

    def __getitem__(self, name: str) -> Tensor:
        leaf = self.unconstrained(name)
        value = transform_to(self._constraints[name])(leaf)
        if value is not leaf:
            # What `value.unconstrained()` returns, as Pyro's parameters do.
            value._extra = {**(value._extra or {}), "unconstrained": leaf}
        return value

    def __setitem__(self, name: str, value: TensorLike) -> None:
        """Give a parameter a new constrained value, keeping its constraint (real for a new one).

        One that belongs to a module gets it in place.
        """
        self._put(name, value, self._constraints.get(name, constraints.real))

    def __delitem__(self, name: str) -> None:
        self.unconstrained(name)
        del self._leaves[name], self._constraints[name]

    def __contains__(self, name: str) -> bool:
        return name in self._leaves

    def __iter__(self) -> Iterator[str]:
        return iter(self._leaves)

    def __len__(self) -> int:
        return len(self._leaves)

    def keys(self) -> KeysView[str]:
        """Return the names, in order of creation."""
        return self._leaves.keys()

    def items(self) -> ItemsView[str, Tensor]:
        """Return names with constrained values."""
        return {name: self[name] for name in self._leaves}.items()

    def values(self) -> list[Tensor]:
        """Return the constrained values."""
        return [self[name] for name in self._leaves]

    def setdefault(
        self,
        name: str,
        init: TensorLike | Callable[..., TensorLike] | None,
        constraint: Constraint = constraints.real,
    ) -> Tensor:
        """Return the constrained value of `name`, made from `init` if there is none yet.

        Parameters
        ----------
        name : str
        init : Tensor, array, number or callable
            Initial constrained value; a callable is asked for it.
        constraint : Constraint

        Raises
        ------
        DomainError
            If `init` violates the constraint. Rows of positive numbers are weights of a simplex,
            and divided by their sum.
        """
        if name not in self._leaves:
            self._put(name, init() if callable(init) else init, constraint)
        return self[name]

    def adopt(self, name: str, leaf: Tensor, constraint: Constraint = constraints.real) -> Tensor:
        """Make a tensor that belongs to a module the leaf behind `name`; return its value.

        Parameters
        ----------
        name : str
        leaf : Parameter
            Unconstrained numbers; not copied.
        constraint : Constraint

        Raises
        ------
        ModelError
            If the name has another leaf already.
        """
        if self._leaves.setdefault(name, leaf) is not leaf:
            raise ModelError(
                f"parameter {name!r}",
                expected="one module of this name",
                got="another module, or a param statement, that had the name before",
                fix="make the network outside of the model, once; or choose another name; or write "
                "module(name, net, update_module_params=True) to go on with the values in the "
                "store",
            )
        self._constraints.setdefault(name, constraint)
        return self[name]

    def unconstrained(self, name: str) -> Tensor:
        """Return the leaf tensor of unconstrained numbers behind `name`."""
        try:
            return self._leaves[name]
        except KeyError:
            raise ArgumentError(
                f"parameter {name!r}",
                expected=f"one of {', '.join(map(repr, self._leaves)) or '(the store is empty)'}",
                got=repr(name),
                fix="run the model first: param() makes its parameters when it is first called",
            ) from None

    def _put(self, name: str, init: Any, constraint: Constraint) -> None:
        value = as_value(init, name)
        if value.array.dtype.kind != "f":
            value = cast(value, dtypes.default_dtype())
        elif not isinstance(init, TensorBase) and not hasattr(init, "dtype"):
            # Numbers in the source become the default dtype, as probtorch.tensor makes them.
            value = cast(value, dtypes.default_dtype())
        value = as_shares(value, constraint)
        valid = constraint.check(value)
        if not bool(valid.all()):
            raise DomainError(
                f"parameter {name!r}",
                expected=f"an initial value in {constraint}",
                got=f"{np.array2string(value.detach().numpy(), threshold=8)}",
                fix="start from positive numbers, which are divided by their sum"
                if constraint is constraints.simplex
                else "start inside it, or state another one: param(name, init, constraint=...)",
            )
        before = set_grad_enabled(False)
        try:
            free = transform_to(constraint).inv(value)
        finally:
            set_grad_enabled(before)
        self._constraints[name] = constraint
        leaf = self._leaves.get(name)
        if isinstance(leaf, Parameter) and leaf.array.shape == free.array.shape:
            leaf.array[...] = free.array
            mark_changed(leaf)
            return
        self._leaves[name] = wrap(np.array(free.array) if not free.is_cuda else free.array.copy())
        self._leaves[name].requires_grad_()

    # -------------------------------------------------------------------- the whole store

    def named_parameters(self) -> ItemsView[str, Tensor]:
        """Return names with the unconstrained leaves, what an optimizer updates."""
        return self._leaves.items()

    def get_all_param_names(self) -> list[str]:
        """Return the names, in order of creation."""
        return list(self._leaves)

    def match(self, pattern: str) -> dict[str, Tensor]:
        """Return the constrained values of the names that a regular expression matches."""
        regex = re.compile(pattern)
        return {name: self[name] for name in self._leaves if regex.match(name)}

    def clear(self) -> None:
        """Forget every parameter."""
        self._leaves.clear()
        self._constraints.clear()
        self.buffers.clear()
        _LOADED.discard(self)

    def get_state(self) -> StateDict:
        """Return ``{"params": leaves, "constraints": ...}``, the leaves themselves."""
        return {"params": dict(self._leaves), "constraints": dict(self._constraints)}

    def set_state(self, state: StateDict) -> None:
        """Replace everything by what `get_state` returned; an `SVI` made next goes on there."""
        self._replace(state)
        _LOADED.add(self)

    def _replace(self, state: StateDict) -> None:
        if set(state["params"]) != set(state["constraints"]):
            raise ArgumentError(
                "ParamStore.set_state",
                expected="the same names under 'params' and 'constraints'",
                got=f"{sorted(state['params'])} and {sorted(state['constraints'])}",
                fix="pass what get_state() returned",
            )
        self._leaves = dict(state["params"])
        self._constraints = dict(state["constraints"])

    def state_dict(self) -> StateDict:
        """Return leaves, constraints and the buffers of modules as a tree for `probtorch.save`.

        The tensors are those in use, not copies.
        """
        return {
            "params": {name: leaf.detach() for name, leaf in self._leaves.items()},
            "constraints": {n: constraint_state(c) for n, c in self._constraints.items()},
            "buffers": {name: buffer.detach() for name, buffer in self.buffers.items()},
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Take over what `state_dict` returned.

        Leaves and buffers that are there keep their memory, so that an optimizer or a module goes
        on with them. Parameters that the state does not know are forgotten. An `SVI` that is made
        next goes on with the store, if it is the one of `get_param_store`.

        Raises
        ------
        ShapeError
            If a parameter has another shape; nothing is changed.
        ArgumentError
            If the state is of something else.
        """
        if not {"params", "constraints", "buffers"} <= set(state):
            raise ArgumentError(
                "ParamStore.load_state_dict",
                expected="what state_dict() returned",
                got=f"entries {', '.join(map(str, state)) or '(none)'}",
                fix="save the store itself: store.save(path)",
            )
        made = {name: constraint_of(c) for name, c in state["constraints"].items()}
        known = {**self.buffers, **self._leaves}
        for name, saved in (*state["params"].items(), *state["buffers"].items()):
            if name in known and known[name].array.shape != saved.array.shape:
                raise ShapeError(
                    f"ParamStore.load_state_dict: parameter {name!r}",
                    expected=f"shape {tuple(known[name].array.shape)}, as it has",
                    got=f"shape {tuple(saved.array.shape)}",
                    fix="load into a store of the same model, or clear() it first",
                )
        for name in [n for n in self._leaves if n not in state["params"]]:
            del self[name]
        for name, saved in state["params"].items():
            if name in self._leaves:
                _overwrite(self._leaves[name], saved)
            else:
                self._leaves[name] = wrap(saved.array.copy())
                self._leaves[name].requires_grad_()
            self._constraints[name] = made[name]
        for name, saved in state["buffers"].items():
            if name in self.buffers:
                _overwrite(self.buffers[name], saved)
        _LOADED.add(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the parameters with their constraints to a file; see `probtorch.save`."""
        save(self.state_dict(), path)

    def load(self, path: str | os.PathLike[str], map_location: str | None = None) -> None:
        """Take over the parameters of a file that `save` wrote, as `load_state_dict` does.

        Parameters
        ----------
        path : str or path-like
        map_location : optional
            As `probtorch.load` takes it.
        """
        self.load_state_dict(load(path, map_location))

    def show(self) -> None:
        """Make this the store that scripts see: what `get_param_store` returns outside of others.

        An inference object shows its own, so that ``param("loc")`` in the script that optimised it
        reads the result.
        """
        global _SCRIPT_STORE
        _SCRIPT_STORE = self

    @contextlib.contextmanager
    def activate(self) -> Iterator[ParamStore]:
        """Context manager: `param` statements of this thread live in this store."""
        before, STATE.params = STATE.params, self
        try:
            yield self
        finally:
            STATE.params = before

    @contextlib.contextmanager
    def scope(self, state: StateDict | None = None) -> Iterator[StateDict]:
        """Context manager: an empty store, or one with `state`; what was before comes back after.

        Gives a dict that holds the inner state when the block has ended; pass it to the next
        `scope`.
        """
        inner = {"params": {}, "constraints": {}} if state is None else state
        outer = self.get_state()
        try:
            self._replace(inner)
            yield inner
            inner.update(self.get_state())
        finally:
            self._replace(outer)

    def __repr__(self) -> str:
        return f"<ParamStore of {', '.join(self._leaves) or 'nothing'}>"


# What scripts see: whoever optimises activates a store of its own, and shows it.
_SCRIPT_STORE = ParamStore()
# Stores whose parameters a script has loaded, and which no inference object has taken over yet.
_LOADED: weakref.WeakSet[ParamStore] = weakref.WeakSet()


def _read_by_scripts() -> tuple[object, Mapping[str, object]]:
    """What compiled functions of a script depend on, if they perform statements."""
    found = {} if _SCRIPT_STORE is None else vars(_SCRIPT_STORE)
    return Entries(globals(), ("_SCRIPT_STORE",)), found


class _Statements(Surroundings):
    """What a compiled function that performs statements depends on."""

    def performed(self) -> int:
        return STATE.performed

    def active(self) -> bool:
        return bool(STATE.handlers or STATE.plates.frames or STATE.chains.links) or not (
            STATE.params is None and STATE.rows is None
        )

    def roots(self) -> tuple[object, ...]:
        return _read_by_scripts()

    def generator(self) -> Generator | None:
        return generator_in_force()


doors.statements.fill(_Statements())


def get_param_store() -> ParamStore:
    """Return the store `param` uses now: the active inference object's, else the one shown last."""
    return _SCRIPT_STORE if STATE.params is None else STATE.params


get_param_store.__reads__ = _read_by_scripts  # type: ignore[attr-defined]  # for compiled code


def take_loaded() -> ParamStore | None:
    """Return the store that scripts see if it was loaded and nothing has gone on from it yet."""
    store = get_param_store()
    if store not in _LOADED:
        return None
    _LOADED.discard(store)
    return store


def clear_param_store() -> None:
    """Forget every parameter of the store that `param` uses now."""
    get_param_store().clear()


def _overwrite(tensor: Tensor, saved: Tensor) -> None:
    tensor.array[...] = saved.array
    mark_changed(tensor)


def as_shares(value: Tensor, constraint: Constraint) -> Tensor:
    """Positive rows that are to start a simplex, divided by their sums, as Pyro's are."""
    numbers = value.array
    if constraint is constraints.simplex and numbers.ndim and numbers.shape[-1]:
        totals = numbers.sum(axis=-1, keepdims=True)
        off = abs(totals - 1.0) > 1e-6
        if bool((numbers > 0.0).all()) and bool(off.any()) and bool((totals < np.inf).all()):
            return wrap(numbers / totals)
    return value


_OF_ITS_OWN = (
    "; each SVI has parameters of its own: to go on with those of the script or of another, "
    "SVI(..., params=get_param_store()) or params=first.params"
)


def read_param(
    name: str, init: TensorLike | Callable[..., TensorLike] | None, constraint: Constraint
) -> Tensor:
    """Return the constrained value of `name` in the store in use, made from `init` if new."""
    store = get_param_store()
    if isinstance(constraint, type) or not hasattr(constraint, "check"):
        raise DTypeError(
            f"param {name!r}",
            expected="constraint= as an object of probtorch.distributions.constraints",
            got=f"{type(constraint).__name__} {constraint!r:.60}",
            fix=how_to_say(constraint),
        )
    if init is None and name not in store:
        raise ModelError(
            f"param {name!r}",
            expected="an initial value at the first call",
            got="none, and no such parameter in the store",
            fix=f"write param({name!r}, tensor(...), constraint=...)"
            + ("" if STATE.params is None else _OF_ITS_OWN),
        )
    return store.setdefault(name, init, constraint)


def read_owned(name: str, leaf: Tensor, constraint: Constraint, from_store: bool = False) -> Tensor:
    """Return the constrained value of a module's parameter, which the store in use refers to.

    Parameters
    ----------
    name : str
    leaf : Parameter
    constraint : Constraint
    from_store : bool
        Take the value that the store has under the name, if it has one.

    Raises
    ------
    ModelError
        If the store of an inference has another leaf under the name, and it is not to be taken.
    ShapeError
        If it is to be taken and has another shape.
    """
    store = get_param_store()
    known = store._leaves.get(name, leaf)
    if known is leaf or (STATE.params is not None and not from_store):
        return store.adopt(name, leaf, constraint)
    if not from_store:
        # Nobody optimises here, and the store is that of some inference before: a module is what
        # it is.
        return transform_to(constraint)(leaf)
    if known.array.shape != leaf.array.shape:
        raise ShapeError(
            f"parameter {name!r}",
            expected=f"shape {tuple(known.array.shape)}, as in the parameter store",
            got=f"a module whose parameter has shape {tuple(leaf.array.shape)}",
            fix="build the network with the sizes it had, or choose another name",
        )
    return store[name]


explain_calls(globals())
