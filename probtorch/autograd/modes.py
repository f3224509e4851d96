"""Switching the tape on and off, as context managers and decorators."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator
from typing import ParamSpec, Self, TypeVar, cast, overload

from probtorch.core import dispatch
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import map_tree
from probtorch.core.typed import Tree

__all__ = [
    "enable_grad",
    "inference_mode",
    "is_grad_enabled",
    "no_grad",
    "set_grad_enabled",
    "stop_gradient",
]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Yielded = TypeVar("Yielded")
Sent = TypeVar("Sent")


class _Mode:
    """Set grad mode inside a block or a function, and restore it after, errors included."""

    def __init__(self, value: bool) -> None:
        self._value = value
        self._before = []

    def __repr__(self) -> str:
        return f"set_grad_enabled({self._value})"

    def __enter__(self) -> Self:
        self._before.append(dispatch.set_grad_enabled(self._value))
        return self

    def __exit__(self, *exc: object) -> None:
        dispatch.set_grad_enabled(self._before.pop())

    def __call__(self, fn: Callable[P, R]) -> Callable[P, R]:
        if inspect.isgeneratorfunction(fn):
            # Their R is a generator, and stays the one it is.
            return cast("Callable[P, R]", _in_each_turn(fn, self._value))

        @functools.wraps(fn)
        def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return fn(*args, **kwargs)

        return wrapped


def _in_each_turn(
    fn: Callable[P, Generator[Yielded, Sent, R]], value: bool
) -> Callable[P, Generator[Yielded, Sent, R]]:
    """Return a generator function whose body runs in a grad mode, and its consumer in their own."""

    def turn(step: Callable[..., T], *args: object) -> T:
        with _Mode(value):
            return step(*args)

    @functools.wraps(fn)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> Generator[Yielded, Sent, R]:
        body = fn(*args, **kwargs)
        try:
            out = turn(body.send, None)
            while True:
                try:
                    sent = yield out
                except GeneratorExit:
                    turn(body.close)
                    raise
                except BaseException as e:
                    out = turn(body.throw, e)
                else:
                    out = turn(body.send, sent)
        except StopIteration as e:
            return e.value

    return wrapped


@overload
def no_grad(fn: None = None) -> _Mode: ...
@overload
def no_grad(fn: Callable[P, R]) -> Callable[P, R]: ...
def no_grad(fn: Callable[P, R] | None = None) -> _Mode | Callable[P, R]:
    """Context manager or decorator: operations inside are not put on the tape."""
    return _Mode(False) if fn is None else _Mode(False)(fn)


@overload
def enable_grad(fn: None = None) -> _Mode: ...
@overload
def enable_grad(fn: Callable[P, R]) -> Callable[P, R]: ...
def enable_grad(fn: Callable[P, R] | None = None) -> _Mode | Callable[P, R]:
    """Context manager or decorator: operations inside are put on the tape."""
    return _Mode(True) if fn is None else _Mode(True)(fn)


@overload
def stop_gradient(x: None = None) -> _Mode: ...
@overload
def stop_gradient(x: T) -> T: ...
def stop_gradient(x: Tree = None) -> Tree:
    """Let values count as constants, on purpose.

    Parameters
    ----------
    x : tree of tensors, optional
        Returned detached. Without it the result is a context manager (a decorator for a function):
        what is computed or taken out of tensors inside is constant for every gradient, and the
        checks of inference that look for gradients cut by mistake leave it alone.

    Examples
    --------
    >>> import probtorch
    >>> b = probtorch.tensor(3.0, requires_grad=True)
    >>> with probtorch.stop_gradient():
    ...     weight = float(b)
    >>> (weight * b).backward()
    >>> b.grad
    tensor(3.)
    """
    if x is None:
        return _Mode(False)
    if callable(x) and not isinstance(x, TensorBase):
        return _Mode(False)(x)
    return map_tree(_detached, x)


def _detached(t: object) -> object:
    return t.detach() if isinstance(t, TensorBase) else t


@overload
def inference_mode(mode: bool = True) -> _Mode: ...
@overload
def inference_mode(mode: Callable[P, R]) -> Callable[P, R]: ...
def inference_mode(mode: bool | Callable[P, R] = True) -> _Mode | Callable[P, R]:
    """Context manager or decorator: `no_grad` if `mode`, as PyTorch spells it for inference."""
    if callable(mode):
        return no_grad(mode)
    return _Mode(False) if mode else _Mode(dispatch.grad_enabled())


class set_grad_enabled(_Mode):
    """Switch the tape at once; as a context manager, restore the setting before at the end."""

    def __init__(self, mode: object) -> None:
        super().__init__(bool(mode))
        self._initial = dispatch.set_grad_enabled(self._value)

    def __enter__(self) -> Self:
        self._before.append(self._initial)
        dispatch.set_grad_enabled(self._value)
        return self

    def __call__(self, fn: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function; outside of it the setting is what it was before."""
        dispatch.set_grad_enabled(self._initial)
        return _Mode(self._value)(fn)


def is_grad_enabled() -> bool:
    """Whether operations are put on the tape."""
    return dispatch.grad_enabled()
