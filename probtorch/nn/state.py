"""Saving and loading the state of modules: what to collect, what fits, and what to say if not.

A state dict maps dotted names to tensors that share the module's memory. Loading compares names
first and shapes second, changes nothing unless everything fits (or `strict` is off), and pairs a
missing name with the unexpected one that is most like it: most failures are a renamed attribute or
a prefix. Where a class or a hook has a say in loading, the state is taken module by module, as they
expect, and the tensors get their values back if it fails.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast

from probtorch.core.late import difflib
from probtorch.core.making import as_tensor
from probtorch.core.typed import StateDict, TensorLike
from probtorch.errors import ArgumentError, ModelError
from probtorch.nn.hooks import Entry
from probtorch.nn.parameter import UninitializedBuffer, UninitializedParameter
from probtorch.tensor import Tensor

if TYPE_CHECKING:
    from probtorch.nn.module import Module

__all__ = ["IncompatibleKeys", "Metadata", "collect", "hooks_of", "load", "load_own", "save_own"]

EXTRA = "_extra_state"
_ASSIGN = "assign_to_params_buffers"  # PyTorch's name for it in the metadata
_WITHOUT_SHAPE = UninitializedParameter, UninitializedBuffer


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


# What is known of the module that was saved: the `version` of its class.
Metadata: TypeAlias = StateDict

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


def hooks_of(module: Module, kind: str) -> list[Entry]:
    """Return the hooks of one kind with their options."""
    return [] if module._hooks is None else list(module._hooks.tables[kind].values())


def collect(
    module: Module, destination: StateDict | None, prefix: str, keep_vars: bool
) -> StateDict:
    """Fill `destination` with the state of `module` and its children; see `Module.state_dict`."""
    if destination is None:
        destination = OrderedDict()
        # Where PyTorch has it, and classes look that load older forms.
        destination._metadata = OrderedDict()  # type: ignore[attr-defined]
    about: Metadata = {"version": module._version}
    if hasattr(destination, "_metadata"):
        destination._metadata[prefix[:-1]] = about
    for hook, _ in hooks_of(module, "state_pre"):
        hook(module, prefix, keep_vars)
    module._save_to_state_dict(destination, prefix, keep_vars)
    for name, child in module._modules.items():
        if child is not None:
            start = f"{prefix}{name}."
            child.state_dict(destination=destination, prefix=start, keep_vars=keep_vars)
    for hook, options in hooks_of(module, "state"):
        found = hook(module, destination, prefix, about)
        if found is not None and not options["may_replace"]:
            raise ArgumentError(
                "state_dict post-hook",
                expected="None",
                got=type(found).__name__,
                fix="change the dict that the hook is given, and return nothing",
            )
        if found is not None:
            destination = cast(StateDict, found)
    return destination


def save_own(module: Module, destination: StateDict, prefix: str, keep_vars: bool) -> None:
    """Put what one module holds into `destination`; see `Module._save_to_state_dict`."""
    for _, name, t in _entries(module):
        # What has no shape yet stands for itself, as in PyTorch: whoever loads it can tell.
        bare = keep_vars or isinstance(t, _WITHOUT_SHAPE)
        destination[prefix + name] = t if bare else t.detach()
    if type(module).get_extra_state is not _base_of(module).get_extra_state:
        destination[prefix + EXTRA] = module.get_extra_state()


def _base_of(module: Module) -> type[Module]:
    """Return the class that states the default of what this file asks, and that lies above it."""
    return next(c for c in reversed(type(module).__mro__) if "get_extra_state" in c.__dict__)


def _takes_part(module: Module) -> bool:
    """Whether the class or a hook of a module has a say in how its part is loaded."""
    own = type(module)._load_from_state_dict is not _base_of(module)._load_from_state_dict
    return own or any(hooks_of(module, kind) for kind in ("load_pre", "load_post"))


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
    if any(_takes_part(m) for _, m in _tree(module, "")):
        return _load_by_parts(module, places, state, strict, assign)
    extras = {
        start + EXTRA: m
        for start, m in _tree(module, "")
        if type(m).set_extra_state is not _base_of(m).set_extra_state
    }
    missing = [n for n in (*places, *extras) if n not in state]
    unexpected = [n for n in state if n not in places and n not in extras]
    for name, (_, _, target) in places.items():
        if name in state:
            _materialize(target, state[name])
    wrong = _wrong_shapes(places, state)
    if wrong or (strict and (missing or unexpected)):
        raise _mismatch(
            module, places, state, missing if strict else [], unexpected if strict else [], wrong
        )
    for name, (owner, attribute, target) in places.items():
        if name in state and not isinstance(state[name], _WITHOUT_SHAPE):
            _write(owner, attribute, target, as_tensor(state[name], "load_state_dict"), assign)
    for name, owner in extras.items():
        if name in state:
            owner.set_extra_state(state[name])
    return IncompatibleKeys(missing, unexpected)


def _load_by_parts(
    module: Module, places: Places, state: StateDict, strict: bool, assign: bool
) -> IncompatibleKeys:
    """Have each module take its part, by its own rules; what they are told is PyTorch's."""
    before = [
        (owner, name, target, None if isinstance(target, _WITHOUT_SHAPE) else target.array.copy())
        for owner, name, target in places.values()
    ]
    local = OrderedDict(state)
    metadata: dict[str, Metadata] = getattr(state, "_metadata", None) or {}
    local._metadata = metadata  # type: ignore[attr-defined]  # which hooks may read
    missing: list[str] = []
    unexpected: list[str] = []
    wrong: list[str] = []
    found = IncompatibleKeys(missing, unexpected)
    try:
        _load_part(module, local, "", metadata, assign, found, wrong)
        if wrong or (strict and (missing or unexpected)):
            listed = (missing, unexpected) if strict else ([], [])
            raise _mismatch(module, places, state, *listed, wrong)
    except BaseException:
        for owner, name, target, array in before:
            table = owner._parameters if name in owner._parameters else owner._buffers
            table[name] = target
            if array is not None and target.array.shape == array.shape:
                owner._overwrite(target, Tensor(array))
        raise
    return found


def _load_part(
    module: Module,
    state: StateDict,
    prefix: str,
    metadata: Mapping[str, Metadata],
    assign: bool,
    found: IncompatibleKeys,
    wrong: list[str],
) -> None:
    about = dict(metadata.get(prefix[:-1], {}))
    if assign:
        about[_ASSIGN] = True
    module._load_from_state_dict(
        state, prefix, about, True, found.missing_keys, found.unexpected_keys, wrong
    )
    for name, child in module._modules.items():
        if child is not None:
            start = f"{prefix}{name}."
            part = {key: value for key, value in state.items() if key.startswith(start)}
            _load_part(child, part, start, metadata, assign, found, wrong)
    for hook, _ in hooks_of(module, "load_post"):
        if hook(module, found) is not None:
            raise ArgumentError(
                "load_state_dict post-hook",
                expected="None",
                got="a value",
                fix="change the lists that the hook is given, and return nothing",
            )


def load_own(
    module: Module,
    state: StateDict,
    prefix: str,
    about: Metadata,
    strict: bool,
    missing: list[str],
    unexpected: list[str],
    wrong: list[str],
) -> None:
    """Take what one module holds out of `state`; see `Module._load_from_state_dict`."""
    own = {name: t for _, name, t in _entries(module)}
    for name, target in own.items():
        key = prefix + name
        if key not in state:
            missing += [key] if strict else []
            continue
        _materialize(target, state[key])
        if unfit := _wrong_shapes({key: (module, name, target)}, state):
            wrong += unfit
        elif not isinstance(state[key], _WITHOUT_SHAPE):
            value = as_tensor(state[key], f"load_state_dict, {key}")
            _write(module, name, target, value, bool(about.get(_ASSIGN)))
    extra = type(module).set_extra_state is not _base_of(module).set_extra_state
    if extra and prefix + EXTRA in state:
        module.set_extra_state(state[prefix + EXTRA])
    elif extra and strict:
        missing.append(prefix + EXTRA)
    known = {*own, *([EXTRA] if extra else [])}
    for key in state if strict else ():
        if key.startswith(prefix):
            name, _, rest = key[len(prefix) :].partition(".")
            if name not in (module._modules if rest else known):
                unexpected.append(key)


def _materialize(target: Tensor, value: TensorLike) -> None:
    """Give a parameter of a lazy layer, which has no shape yet, that of its value."""
    if isinstance(target, _WITHOUT_SHAPE) and not isinstance(value, _WITHOUT_SHAPE):
        target.materialize(as_tensor(value, "load_state_dict").shape)


def _wrong_shapes(places: Places, state: Mapping[str, TensorLike]) -> list[str]:
    out = []
    for name, (_, _, target) in places.items():
        if name not in state:
            continue
        value = as_tensor(state[name], f"load_state_dict, {name}")
        if isinstance(value, _WITHOUT_SHAPE):
            if not isinstance(target, _WITHOUT_SHAPE):
                out.append(
                    f"no shape for {name}: the checkpoint was taken of a lazy layer before its "
                    f"first input, the shape in current model is {target.shape}."
                )
            continue
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
        got=f"{len(missing)} missing, {len(unexpected)} unexpected, {len(wrong)} that do not fit",
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
