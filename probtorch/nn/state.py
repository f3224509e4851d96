"""Saving and loading the state of modules: what to collect, what fits, and what to say if not.

A state dict maps dotted names to tensors that share the module's memory. Loading compares names
first and shapes second, changes nothing unless everything fits (or `strict` is off), and pairs a
missing name with the unexpected one that is most like it: most failures are a renamed attribute or
a prefix.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from probtorch.core.late import difflib
from probtorch.core.making import as_tensor
from probtorch.core.typed import StateDict, TensorLike
from probtorch.errors import ArgumentError, ModelError
from probtorch.nn.parameter import UninitializedBuffer, UninitializedParameter
from probtorch.tensor import Tensor

if TYPE_CHECKING:
    from probtorch.nn.module import Module

__all__ = ["IncompatibleKeys", "collect", "load"]

EXTRA = "_extra_state"


class _Keys(NamedTuple):
    missing_keys: list
    unexpected_keys: list


class IncompatibleKeys(_Keys):
    """Names that `load_state_dict` found on one side only: `missing_keys`, `unexpected_keys`."""

    __slots__ = ()

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return super().__repr__()


# By dotted name the module, the name in it, and the tensor.
Places: TypeAlias = Mapping[str, tuple["Module", str, Tensor]]


def _entries(module: Module) -> Iterator[tuple[Module, str, Tensor]]:
    """Yield ``(module, name, tensor)`` of what one module saves, itself only."""
    for name, p in module._parameters.items():
        if p is not None:
            yield module, name, p
    for name, b in module._buffers.items():
        if b is not None and name not in module._non_persistent:
            yield module, name, b


def _tree(module: Module, prefix: str) -> Iterator[tuple[str, Module]]:
    """Yield ``(prefix, module)`` depth first, a module once for every name it has."""
    yield prefix, module
    for name, child in module._modules.items():
        if child is not None:
            yield from _tree(child, f"{prefix}{name}.")


def collect(
    module: Module, destination: StateDict | None, prefix: str, keep_vars: bool
) -> StateDict:
    """Fill `destination` with the state of `module` and its children; see `Module.state_dict`."""
    out = OrderedDict() if destination is None else destination
    for start, m in _tree(module, prefix):
        for _, name, t in _entries(m):
            out[start + name] = t if keep_vars else t.detach()
        if type(m).get_extra_state is not _base_of(m).get_extra_state:
            out[start + EXTRA] = m.get_extra_state()
    return out


def _base_of(module: Module) -> type[Module]:
    """Return `Module`, which this file lies below."""
    return next(c for c in type(module).__mro__ if "load_state_dict" in c.__dict__)


def load(module: Module, state: StateDict, strict: bool, assign: bool) -> IncompatibleKeys:
    """Copy `state` into `module`; see `Module.load_state_dict`."""
    if not hasattr(state, "items"):
        raise ArgumentError(
            "load_state_dict",
            expected="a dict from names to tensors, as state_dict() returns",
            got=type(state).__name__,
            fix="load the file first, or pass other.state_dict()",
        )
    places = {
        start + name: (m, name, t) for start, m in _tree(module, "") for m, name, t in _entries(m)
    }
    extras = {
        start + EXTRA: m
        for start, m in _tree(module, "")
        if type(m).set_extra_state is not _base_of(m).set_extra_state
    }
    missing = [n for n in (*places, *extras) if n not in state]
    unexpected = [n for n in state if n not in places and n not in extras]
    for name, (_, _, target) in places.items():
        if name in state and isinstance(target, (UninitializedParameter, UninitializedBuffer)):
            target.materialize(as_tensor(state[name], "load_state_dict").shape)
    wrong = _wrong_shapes(places, state)
    if wrong or (strict and (missing or unexpected)):
        raise _mismatch(
            module, places, state, missing if strict else [], unexpected if strict else [], wrong
        )
    for name, (owner, attribute, target) in places.items():
        if name in state:
            _write(owner, attribute, target, as_tensor(state[name], "load_state_dict"), assign)
    for name, owner in extras.items():
        if name in state:
            owner.set_extra_state(state[name])
    return IncompatibleKeys(missing, unexpected)


def _wrong_shapes(places: Places, state: Mapping[str, TensorLike]) -> list[str]:
    out = []
    for name, (_, _, target) in places.items():
        if name not in state:
            continue
        value = as_tensor(state[name], f"load_state_dict, {name}")
        if value.array.shape != target.array.shape:
            out.append(
                f"size mismatch for {name}: copying a param with shape {value.shape} from "
                f"checkpoint, the shape in current model is {target.shape}."
            )
    return out


def _write(owner: Module, attribute: str, target: Tensor, value: Tensor, assign: bool) -> None:
    if not assign:
        owner._overwrite(target, value)
    elif attribute in owner._parameters:
        kind: Callable[..., Tensor] = type(target)
        setattr(owner, attribute, kind(value.detach(), target.requires_grad))
    else:
        owner._buffers[attribute] = value.detach()


def _mismatch(
    module: Module,
    places: Places,
    state: Mapping[str, object],
    missing: list[str],
    unexpected: list[str],
    wrong: list[str],
) -> ModelError:
    lines = []
    if unexpected:
        lines.append(f"Unexpected key(s) in state_dict: {_listed(unexpected)}.")
    if missing:
        lines.insert(0, f"Missing key(s) in state_dict: {_listed(missing)}.")
    lines += wrong
    pairs = _pairs(missing, unexpected)
    within = next(
        (k for k, v in state.items() if isinstance(v, Mapping) and set(missing) <= set(v)), None
    )
    if pairs:
        shown = ", ".join(f"{new!r} to {old!r}" for new, old in pairs[:8])
        fix = f"rename {shown}" + (" and so on" if len(pairs) > 8 else "")
    elif wrong:
        fix = "build the model with the sizes it was saved with"
    elif within is not None:
        fix = f"it is one entry of a checkpoint: load_state_dict(state[{within!r}])"
    else:
        fix = "load into the model that was saved, or pass strict=False to load what fits"
    return ModelError(
        f"Error(s) in loading state_dict for {type(module).__name__}:\n\t" + "\n\t".join(lines),
        expected=f"the {len(places)} names and shapes of {type(module).__name__}.state_dict()",
        got=f"{len(missing)} missing, {len(unexpected)} unexpected, {len(wrong)} of another shape",
        fix=fix,
    )


def _listed(names: list[str]) -> str:
    return ", ".join(f'"{n}"' for n in names)


def _pairs(missing: Sequence[str], unexpected: Sequence[str]) -> list[tuple[str, str]]:
    """Return pairs (unexpected, missing) of names that seem to mean the same."""
    free, out = list(missing), []
    for name in unexpected:
        same_end = [m for m in free if m.endswith("." + name) or name.endswith("." + m)]
        close = same_end or difflib.get_close_matches(name, free, n=1, cutoff=0.6)
        if close:
            out.append((name, close[0]))
            free.remove(close[0])
    return out
