"""Trees: nested tuples, lists, dicts and records whose leaves are anything else.

`record` makes a frozen dataclass that is also a tree node; `static` fields are part of its
structure, not leaves. Inference kernels, states and infos are records, so that they can be mapped
over, flattened and replaced without special code. A field with the metadata ``outside`` is neither
leaf nor structure: a tree that is rebuilt has its default.

Other classes join by stating `__tree_fields__` and `__static_fields__`; where an instance's fields
are not its constructor's arguments, a class method `__tree_build__(values)` rebuilds it. What a
user set of such an object besides (``prior.note = 3.0``) is part of the tree, too.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType
from typing import Any, TypeAlias, TypeVar, dataclass_transform

from probtorch.core.sameness import is_value, token
from probtorch.core.typed import Tree

__all__ = [
    "flatten",
    "is_leaf_type",
    "leaves",
    "make_leaf_type",
    "map_tree",
    "names_of",
    "record",
    "replace",
    "static",
    "stored",
    "unflatten",
]

T = TypeVar("T")

# What remains of a tree without its leaves: nested tuples that can be compared.
Structure: TypeAlias = tuple[object, ...]


def replace(tree: T, **changes: object) -> T:
    """Return a record with other values of some fields.

    A class whose constructor does not take its fields says how, by `__replace__`.
    """
    own = getattr(tree, "__replace__", None)
    if own is not None:
        return own(**changes)
    return dataclasses.replace(tree, **changes)  # type: ignore[type-var]  # a record


def static(
    *, default: Any = dataclasses.MISSING, default_factory: Any = dataclasses.MISSING
) -> Any:
    """A record field that belongs to the structure: compared, never traced or mapped over."""
    return dataclasses.field(
        default=default, default_factory=default_factory, metadata={"static": True}
    )


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field, static))
def record(cls: type[T], *, kw_only: bool = False) -> type[T]:
    """Make `cls` a frozen dataclass and a tree node with its non-static fields as children."""
    own_init = "__init__" in vars(cls)
    made: Any = dataclasses.dataclass(frozen=True, eq=False, kw_only=kw_only)(cls)
    fields = [f for f in dataclasses.fields(made) if not f.metadata.get("outside")]
    whole = len(fields) == len(dataclasses.fields(made))
    ways = ("__post_init__", "__tree_build__")
    if whole and not own_init and not any(hasattr(made, way) for way in ways):
        _plain_records.add(made)
    made.__tree_fields__ = tuple(f.name for f in fields if not f.metadata.get("static"))
    made.__static_fields__ = tuple(f.name for f in fields if f.metadata.get("static"))
    _leaf_types.discard(made)
    return made


def flatten(tree: Tree) -> tuple[list[Any], Structure]:
    """Return ``(leaves, structure)``; dicts go in insertion order, None is a leafless node."""
    out = []
    return out, _flatten(tree, out)


_LEAF = ("leaf",)
_NOTHING: dict[str, object] = {}
# Types that were met as leaves: trees of them are flattened at every call of compiled code.
_leaf_types = set()
# Records whose constructor does nothing but keep its arguments.
_plain_records = set()


def is_leaf_type(kind: type) -> bool:
    """Whether objects of a type were met as leaves."""
    return kind in _leaf_types


def make_leaf_type(kind: type) -> None:
    """Let objects of a type be leaves, though they inherit fields: they cannot be made of these."""
    _leaf_types.add(kind)


def _flatten(tree: Any, out: list[Any]) -> Structure:
    kind = type(tree)
    if kind in _leaf_types:
        out.append(tree)
        return _LEAF
    if tree is None:
        return ("none",)
    if kind is tuple or kind is list:
        return (kind, tuple([_flatten(x, out) for x in tree]))
    if kind is dict:
        keys = tuple(tree)
        below = tuple([_flatten(x, out) for x in tree.values()])
        # Keys may be equal and yet not the same.
        same = all(type(k) is str for k in keys)
        return (dict, keys, below) if same else (dict, keys, below, tuple(map(token, keys)))
    # By the type: `isinstance` asks an object of another class what its class is, and attributes of
    # a proxy are those of what it stands for.
    if issubclass(kind, tuple) and hasattr(tree, "_fields"):
        if not _has_more(tree):
            return (kind, tuple([_flatten(x, out) for x in tree]))
        out.append(tree)
        return _LEAF
    if hasattr(kind, "__tree_fields__"):
        names = tree.__tree_fields__
        own = getattr(tree, "__dict__", None) or _NOTHING
        fixed = tuple([getattr(tree, n) for n in kind.__static_fields__])
        below = tuple([_flatten(own[n] if n in own else getattr(tree, n), out) for n in names])
        exact = tuple([token(v) for v in fixed if v is not None and is_value(v)]) if fixed else ()
        more = () if len(own) == len(names) else _set_besides(tree, kind, names)
        if not more:
            return (kind, names, below, fixed, exact)
        besides = tuple([_flatten(getattr(tree, n), out) for n in more])
        return (kind, names, below, fixed, exact, more, besides)
    _leaf_types.add(kind)
    out.append(tree)
    return _LEAF


def _has_more(tree: object) -> bool:
    """Whether a named tuple has attributes beside its fields that these do not decide."""
    kind, more = type(tree), getattr(tree, "__dict__", None) or ()
    return any(not isinstance(getattr(kind, n, None), functools.cached_property) for n in more)


def _set_besides(tree: object, kind: type, names: tuple[str, ...]) -> tuple[str, ...]:
    """Names of attributes that somebody set of a tree, and that its class knows nothing of."""
    own = getattr(tree, "__dict__", None)
    fixed: tuple[str, ...] = getattr(kind, "__static_fields__", ())
    if not own or hasattr(kind, "__dataclass_fields__") or "_others" in fixed:
        return ()
    if len(own) == len(names):
        return ()
    known = _names_in_code(kind)
    return tuple([n for n in own if n not in names and n not in known and not hasattr(kind, n)])


@functools.cache
def _names_in_code(kind: type) -> frozenset[str]:
    """Names of attributes that code of a class speaks of: what it may have set itself."""
    found: set[str] = set()
    for c in kind.__mro__:
        for x in vars(c).values():
            parts = (x, *(getattr(x, n, None) for n in ("__func__", "fget", "fset", "func")))
            found.update(*(p.__code__.co_names for p in parts if isinstance(p, FunctionType)))
    return frozenset(found)


def names_of(tree: object) -> tuple[str, ...]:
    """Return the names of what is below a record or its like; () of all else."""
    if not hasattr(type(tree), "__tree_fields__"):
        return ()
    names: tuple[str, ...] = tree.__tree_fields__  # type: ignore[attr-defined]  # seen above
    return (*names, *_set_besides(tree, type(tree), names))


def stored(tree: object, name: str) -> object:
    """Return what a record keeps under a name: a field that is asked for may be computed anew."""
    own = getattr(tree, "__dict__", None)
    return own[name] if own and name in own else getattr(tree, name)


def unflatten(structure: Structure, items: Iterable[object]) -> Any:
    """Rebuild a tree from its structure and an iterable of leaves."""
    return _unflatten(structure, iter(items))


def _unflatten(structure: Any, items: Iterator[object]) -> Any:
    kind = structure[0]
    if kind == "leaf":
        return next(items)
    if kind == "none":
        return None
    if kind is tuple or kind is list:
        return kind([_unflatten(s, items) for s in structure[1]])
    if kind is dict:
        return {k: _unflatten(s, items) for k, s in zip(structure[1], structure[2], strict=True)}
    if len(structure) == 2:
        # Past a `__new__` of the user's, whose arguments may be others.
        return kind._make(_unflatten(s, items) for s in structure[1])
    values = dict(zip(structure[1], [_unflatten(s, items) for s in structure[2]], strict=True))
    if structure[3]:
        values.update(zip(kind.__static_fields__, structure[3], strict=True))
    if kind in _plain_records:
        made = object.__new__(kind)
        made.__dict__.update(values)
    else:
        build = getattr(kind, "__tree_build__", None)
        made = kind(**values) if build is None else build(values)
    for name, s in zip(*structure[5:], strict=True) if len(structure) > 5 else ():
        setattr(made, name, _unflatten(s, items))
    return made


def leaves(tree: Tree) -> list[Any]:
    """Return the leaves of `tree` in order."""
    return flatten(tree)[0]


def map_tree(fn: Callable[..., object], tree: Tree, *rest: Tree) -> Any:
    """Apply `fn` leaf by leaf to one or several trees of one structure."""
    items, structure = flatten(tree)
    others = [flatten(t)[0] for t in rest]
    return unflatten(structure, [fn(*xs) for xs in zip(items, *others, strict=True)])
