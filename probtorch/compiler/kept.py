"""What a recorded call keeps of its arguments: `Links`, from stand-ins to the caller's tensors.

A function is recorded on stand-ins for some of its arguments (`versions.stand_ins`). If the
recording comes to nothing, its results are used all the same, and what it stored elsewhere
(``cache.append((x,))``, ``self.seen = x``) stays there. So a gradient that arrives at a stand-in
goes on to the caller's tensor, and whatever holds a stand-in gets that tensor in its place.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import types
from collections.abc import Iterable, Iterator

from probtorch.autograd.closures import another
from probtorch.autograd.modes import enable_grad
from probtorch.core.dispatch import TapeNode, mark_changed
from probtorch.core.tensor_base import TensorBase

__all__ = ["Links"]


class Links:
    """The stand-ins of one recording, and the caller's tensors.

    Parameters
    ----------
    given : list of Tensor
        What the function is called with.
    tensors : list of Tensor
        The caller's.
    linked : bool
        Whether gradients go through already.
    """

    def __init__(
        self, given: list[TensorBase], tensors: list[TensorBase], linked: bool = False
    ) -> None:
        some = [i for i, (s, t) in enumerate(zip(given, tensors, strict=True)) if s is not t]
        self._given, self._own = [given[i] for i in some], [tensors[i] for i in some]
        self._ways: list[TensorBase | None] = []
        if linked:
            return
        # Older on the tape than what is made of the stand-ins, so that all of that comes first.
        with enable_grad():
            self._ways = [another(t) if t.requires_grad else None for t in self._own]

    def callers(self, x: object) -> object:
        """Return the caller's tensor for a stand-in, anything else as it is."""
        return next((t for s, t in zip(self._given, self._own) if s is x), x)

    def note_changes(self) -> None:
        """Let the tape know of caller's tensors whose memory the call changed in place."""
        changed = [t for s, t in zip(self._given, self._own) if s._base is None and s._version]
        if changed:
            mark_changed(*changed)

    def close(
        self, kept: bool, met: Iterable[object] = (), given: Iterable[list[TensorBase]] = ()
    ) -> None:
        """Let gradients through; put the caller's tensors in the place of the stand-ins where these
        may be `kept`.

        `met` are objects that the function reaches, for those that the garbage collector does not
        look at (`gc.freeze`); the lists `given` stay as they are.
        """
        for s, way in zip(self._given, self._ways):
            if way is not None:
                s.grad_fn, s._index, s.requires_grad = way.grad_fn, way._index, True
        if kept and self._given:
            ours = [self._given, *given]
            _put_in_place(list(self._given), list(self._own), list(_holders(met)), ours)


def _holders(met: Iterable[object]) -> Iterator[object]:
    """Yield objects, and what functions among them write to."""
    for x in met:
        yield x
        if isinstance(x, types.FunctionType):
            yield from x.__closure__ or ()
            yield x.__globals__


def _put_in_place(
    old: list[object], new: list[object], met: list[object], ours: list[list[TensorBase]]
) -> None:
    """Replace objects wherever something of a user's holds them."""
    skipped = {id(old), id(new), id(ours), *map(id, ours)}
    others = {id(x): y for x, y in zip(old, new, strict=True)}
    level = old
    while level:
        skipped.add(id(level))
        tuples: list[object] = []
        # One look at all objects that there are, for all that is to be found.
        skipped.add(id(met))
        for holder in [*gc.get_referrers(*level), *met]:
            if id(holder) in skipped:
                continue
            if not isinstance(holder, tuple):
                _replace(holder, others)
            elif id(holder) not in others and any(id(x) in others for x in holder):
                # Nothing can be put into it: whoever holds it gets another one.
                items = [others.get(id(x), x) for x in holder]
                others[id(holder)] = tuple.__new__(type(holder), items)
                tuples.append(holder)
        old, level = [*old, *tuples], tuples  # kept, so that ids stay their own


def _replace(holder: object, others: dict[int, object]) -> None:
    """Put other objects, by the ids of those that they replace, into what holds these."""
    if isinstance(holder, (list, collections.deque)):
        for i, x in enumerate(holder):
            if id(x) in others:
                holder[i] = others[id(x)]
    elif isinstance(holder, dict):
        _replace_in_dict(holder, others)
    elif isinstance(holder, set):
        for x in [x for x in holder if id(x) in others]:
            holder.discard(x)
            holder.add(others[id(x)])
    elif isinstance(holder, types.CellType):
        with contextlib.suppress(ValueError):  # nothing in it
            holder.cell_contents = others.get(id(holder.cell_contents), holder.cell_contents)
    elif isinstance(holder, type):
        for name, x in list(vars(holder).items()):
            if id(x) in others:
                setattr(holder, name, others[id(x)])
    elif not isinstance(holder, (TensorBase, TapeNode, types.FrameType)):
        own = getattr(holder, "__dict__", None)
        if isinstance(own, dict):
            own.update({k: others[id(x)] for k, x in own.items() if id(x) in others})
        for kind in type(holder).__mro__:
            for member in vars(kind).values():
                if isinstance(member, types.MemberDescriptorType):
                    with contextlib.suppress(AttributeError, TypeError):  # empty, or read-only
                        x = member.__get__(holder)
                        if id(x) in others:
                            member.__set__(holder, others[id(x)])


def _replace_in_dict(holder: dict[object, object], others: dict[int, object]) -> None:
    if any(id(key) in others for key in holder):
        entries = [(others.get(id(k), k), x) for k, x in holder.items()]
        holder.clear()
        holder.update(entries)
    found = {key: others[id(x)] for key, x in holder.items() if id(x) in others}
    # Classes are told what is put into their dicts: they keep what was looked up.
    owners = gc.get_referrers(holder) if "__module__" in holder else []
    kind = next((t for t in owners if isinstance(t, type)), None)
    if kind is None:
        holder.update(found)
        return
    for key, x in found.items():
        setattr(kind, str(key), x)
