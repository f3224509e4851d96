"""What the house tells whoever listens: its three verbs, and the names that tensors get.

1. *An operation was applied*: `dispatch.apply` and the doors of elementwise ops say so themselves.
2. *Python read this value*: `read`.
3. *Random bits were drawn*: `drawn`.

The floors that make tensors and their tape also tell of other names of a tensor (`alias`), of
Python's numbers that became tensors (`entered`), and of places on the tape. Two questions go the
other way: `is_constant` and `rerun`. Options of our objects that change while a compiled function
is in use (learning rates) come through `number` and `repeated`. Where nobody listens, nothing
happens.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, TypeGuard, TypeVar

from probtorch.core import dispatch
from probtorch.core.tensor_base import TensorBase

if TYPE_CHECKING:
    from probtorch.core.rng import Generator


__all__ = [
    "alias",
    "as_float",
    "attached",
    "drawn",
    "entered",
    "is_constant",
    "is_number",
    "layout_read",
    "who_asked",
    "number",
    "number_alone",
    "numbers_shown",
    "place_changed",
    "read",
    "repeated",
    "rerun",
]

P = ParamSpec("P")
T = TypeVar("T")


def read(what: str, t: TensorBase | None = None, value: T = None) -> T:  # type: ignore[assignment]
    """Tell that Python reads something that the operations on tensors do not say.

    Parameters
    ----------
    what : str
        What it reads, or by which function, for messages: "item()", "nonzero".
    t : Tensor, optional
        Whose elements it depends on; without one it is the state of something else, such as a
        loader, and no replay can know what that would be.
    value
        What Python is about to get. A replay can compare a number with its own; nothing else can
        be compared. None if elements only decide on something, such as the shape of a result.

    Returns
    -------
    What Python gets: mostly `value`.
    """
    if dispatch._RECORDING:
        active = dispatch.recorder()
        if active is not None:
            return active.read(what, t, value)
    return value


def drawn(
    what: str, generator: Generator, count: int
) -> tuple[TensorBase, TensorBase, TensorBase] | None:
    """Tell that the function `what` draws `count` times 64 bits from a generator.

    Returns
    -------
    tuple of Tensor, or None
        Seed, stream and first counter of the draws, 0-d int64 tensors that a replay sets anew; None
        if the caller is to reserve them: ``generator.advance(count)``.
    """
    active = dispatch.recorder()
    return None if active is None else active.drawn(what, generator, count)


def entered(value: object, t: TensorBase) -> None:
    """Tell that Python's `value` became the tensor `t`."""
    if dispatch._RECORDING:  # looked at here: every number that becomes a tensor comes by
        active = dispatch.recorder()
        if active is not None:
            active.entered(value, t)


def alias(source: TensorBase, t: TensorBase, *, taped: bool) -> None:
    """Tell that `t` has the elements of `source`, and where `taped` its gradient too."""
    if dispatch._RECORDING:
        active = dispatch.recorder()
        if active is not None:
            active.alias(source, t, taped)


def place_changed(t: TensorBase, what: str) -> None:
    """Tell that Python changes, by the method `what`, what the tensor `t` is on the tape."""
    active = dispatch.recorder()
    if active is not None:
        active.place_changed(t, what)


def attached() -> None:
    """Tell that a function of the user's puts what it computed on the tape by a rule of its own."""
    active = dispatch.recorder()
    if active is not None:
        active.attached()


def layout_read() -> None:
    """Tell that Python looks at how elements lie in memory."""
    active = dispatch.recorder()
    if active is not None:
        active.layout_read()


def who_asked(t: TensorBase) -> int:
    """Return the hash of a tensor, and tell that Python asks for it: sets and dicts find out so
    which tensor one is.
    """
    active = dispatch.recorder()
    if active is not None:
        active.who_asked(t)
    return object.__hash__(t)


def number(table: dict[str, T], key: str) -> T:
    """Return a number, or a tuple of them, out of the options of one of our objects.

    Under a recorder it is a tensor, which replays fill anew: the number may then be another. The
    object says by `__followed__` which of its dicts and keys are read in this way alone.
    """
    active = dispatch.recorder()
    return table[key] if active is None else active.number(table, key)


def is_number(x: object) -> TypeGuard[float]:
    """Whether something is a tensor that stands for a Python number."""
    return dispatch._is_number(x)


def number_alone(x: object) -> TensorBase:
    """Return a tensor that stands for a Python number as one of double precision that does not."""
    assert isinstance(x, TensorBase)
    t = dispatch.wrap(x.array)
    alias(x, t, taped=True)
    return t


def as_float(x: float) -> float:
    """Return a number as a float; as it is where a tensor stands for one."""
    return x if is_number(x) else float(x)


def numbers_shown() -> None:
    """Tell that Python looks at such numbers by itself: then they have to stay what they are."""
    active = dispatch.recorder()
    if active is not None:
        active.numbers_shown()


def repeated(method: Callable[P, T]) -> Callable[P, T]:
    """Decorate a method that changes such numbers, and nothing else that others may read: replays
    call it, too. Its object can `remember` its state and `recall` it.
    """

    @functools.wraps(method)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        active = dispatch.recorder()
        if active is None:
            return method(*args, **kwargs)
        return active.act(method, args[0], args[1:], kwargs)

    return wrapped


def is_constant(t: TensorBase) -> bool:
    """Whether the elements of `t` are the same at every replay and for every slice."""
    active = dispatch.recorder()
    return active is None or active.is_constant(t)


def rerun() -> bool:
    """Whether what happens here is carried out again: on other slices, or by a replay."""
    active = dispatch.recorder()
    return active is not None and active.reruns
