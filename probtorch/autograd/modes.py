"""Switching the tape on and off, as context managers and decorators."""

import functools

from probtorch.core import dispatch

__all__ = ["enable_grad", "inference_mode", "is_grad_enabled", "no_grad", "set_grad_enabled"]


class _Mode:
    """Set grad mode inside a block or a function, and restore it after, errors included."""

    def __init__(self, value):
        self._value = value
        self._before = []

    def __enter__(self):
        self._before.append(dispatch.set_grad_enabled(self._value))
        return self

    def __exit__(self, *exc):
        dispatch.set_grad_enabled(self._before.pop())

    def __call__(self, fn):
        @functools.wraps(fn)
        def wrapped(*args, **kwargs):
            with self:
                return fn(*args, **kwargs)

        return wrapped


def no_grad(fn=None):
    """Context manager or decorator: operations inside are not put on the tape."""
    return _Mode(False) if fn is None else _Mode(False)(fn)


def enable_grad(fn=None):
    """Context manager or decorator: operations inside are put on the tape."""
    return _Mode(True) if fn is None else _Mode(True)(fn)


def inference_mode(mode=True):
    """Context manager or decorator: `no_grad` if `mode`, as PyTorch spells it for inference."""
    if callable(mode):
        return no_grad(mode)
    return _Mode(False) if mode else _Mode(dispatch.grad_enabled())


class set_grad_enabled(_Mode):
    """Switch the tape at once; as a context manager, restore the setting before at the end."""

    def __init__(self, mode):
        super().__init__(bool(mode))
        self._initial = dispatch.set_grad_enabled(self._value)

    def __enter__(self):
        self._before.append(self._initial)
        dispatch.set_grad_enabled(self._value)
        return self


def is_grad_enabled():
    """Whether operations are put on the tape."""
    return dispatch.grad_enabled()
