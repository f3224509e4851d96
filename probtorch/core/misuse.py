"""Arguments of a wrong kind, told in our words after Python has told in its own.

``topk(x, 3.0)`` gets as far as a slice of an array, whose TypeError speaks of slice indices. A
check of every argument at every call would cost what small tensors do not have to spare; so nothing
is checked, and where a call ends in an error of Python's or of the array library, `misused` looks
which argument is not what the signature says. What the user's own functions raise is theirs.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TypeVar

import numpy as np

from probtorch.core.refusals import shown
from probtorch.core.tensor_base import TensorBase
from probtorch.errors import ArgumentError, CapacityError, ProbtorchError

__all__ = ["RAW", "in_our_words", "misused"]

F = TypeVar("F", bound=Callable[..., object])

# What Python and the array library raise for arguments that they cannot use.
RAW = (TypeError, ValueError, IndexError, OverflowError, AttributeError, KeyError, MemoryError)

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LIBRARIES = tuple(f"{os.sep}{name}{os.sep}" for name in ("numpy", "scipy", "cupy", "opt_einsum"))

_NUMBERS = (bool, int, float, np.number, np.bool_)


def _whole(v: object) -> bool:
    return isinstance(v, (int, np.integer, np.bool_)) or _of_integers(v)


def _of_integers(v: object) -> bool:
    return isinstance(v, TensorBase) and v.array.dtype.kind in "iub"


def _sizes(v: object) -> bool:
    return _whole(v) or (isinstance(v, (tuple, list, np.ndarray)) and all(map(_whole, v)))


def _tensor(v: object) -> bool:
    known = (TensorBase, np.ndarray, complex, *_NUMBERS, list, tuple)
    return isinstance(v, known) or hasattr(v, "__array__")


def _real(v: object) -> bool:
    return isinstance(v, (*_NUMBERS, TensorBase)) and not isinstance(v, np.complexfloating)


# By what annotations say: whether a value is that, and the words for it.
_KINDS: dict[str, tuple[Callable[[object], bool], str]] = {
    "int": (_whole, "a whole number"),
    "float": (_real, "a real number"),
    "complex": (lambda v: _real(v) or isinstance(v, complex), "a number"),
    "bool": (lambda v: _whole(v) or isinstance(v, TensorBase), "True or False"),
    "str": (lambda v: isinstance(v, str), "a text"),
    "None": (lambda v: v is None, "None"),
    "Tensor": (lambda v: isinstance(v, TensorBase), "a tensor"),
    "TensorBase": (lambda v: isinstance(v, TensorBase), "a tensor"),
    "TensorLike": (_tensor, "a tensor, an array or numbers"),
    "Operand": (_tensor, "a tensor or a number"),
    "SizeLike": (_sizes, "a whole number or a tuple of them"),
    "Dims": (lambda v: v is None or _sizes(v), "a whole number, a tuple of them, or None"),
    "Sizes": (_sizes, "a whole number or a tuple of them"),
    "Shape": (_sizes, "a tuple of whole numbers"),
    "Sequence[int]": (_sizes, "whole numbers"),
    "tuple[int, ...]": (_sizes, "a tuple of whole numbers"),
    "list[int]": (_sizes, "whole numbers"),
    "Iterable[TensorLike]": (lambda v: hasattr(v, "__iter__"), "a list or tuple of tensors"),
    "Iterable[TensorBase]": (lambda v: hasattr(v, "__iter__"), "a list or tuple of tensors"),
    "Sequence[TensorLike]": (lambda v: hasattr(v, "__iter__"), "a list or tuple of tensors"),
}
# Beyond it a whole number is no size, no dim, no count and no index.
_LARGEST = 2**31


def in_our_words(fn: F) -> F:
    """Let a function raise `ArgumentError` where it fails of arguments of a wrong kind.

    Costs a frame, so it stands at functions that take microseconds; those with ``out=`` have it
    from `takes_out`.
    """

    @functools.wraps(fn)
    def call(*args: object, **options: object) -> object:
        try:
            return fn(*args, **options)
        except RAW as error:
            found = misused(call.__name__, fn, args, options, error)
            if found is None:
                raise
            raise found from error

    return call  # type: ignore[return-value]  # the same arguments and results


def misused(
    name: str,
    fn: Callable[..., object],
    args: Sequence[object],
    options: Mapping[str, object],
    error: Exception,
    *,
    certain: bool = False,
) -> ArgumentError | CapacityError | None:
    """Return the error for a call that ended in `error`, or None where that says enough.

    Parameters
    ----------
    name : str
        What the function is called in the message.
    fn : callable
    args, options
        What it was given.
    error : Exception
        What came out of it.
    certain : bool
        Whether only to speak where one argument is clearly not what the signature says.
    """
    if isinstance(error, ProbtorchError):
        # What was told in the words of an operation inside of the function may be told better.
        if error.__cause__ is None or isinstance(error.__cause__, ProbtorchError):
            return None
        certain = True
    bare = inspect.unwrap(fn)
    inside = _frames_inside(bare, error.__traceback__)
    # Not entered: the number or the names of arguments are wrong, which is said elsewhere.
    if inside is None or not all(map(_ours, inside)):
        return None
    if isinstance(error, MemoryError) or "array is too big" in str(error):
        return CapacityError(
            name,
            expected="a result for which there is memory",
            got=str(error)[:120],
            fix="ask for fewer elements, or work in blocks",
        )
    try:
        given = inspect.signature(bare).bind(*args, **options).arguments
    except TypeError:
        return None
    notes = bare.__annotations__
    for key, value in given.items():
        words = _misfit(notes.get(key), value)
        if words is not None:
            return ArgumentError(
                f"{name}: {key}",
                expected=words,
                got=_described(value),
                fix=_instead(name, key, value, words),
            )
    large = [(k, v) for k, n in given.items() for v in _numbers(n) if abs(v) >= _LARGEST]
    if large:
        key, number = large[0]
        return ArgumentError(
            f"{name}: {key}",
            expected="a number of a size that it can be used with",
            got=shown(number),
            fix="pass a smaller one",
        )
    if certain:
        return None
    return ArgumentError(
        name,
        expected="arguments that go together",
        got=", ".join(f"{k}={_described(v)}" for k, v in given.items())[:200],
        fix=f"{type(error).__name__} says: {str(error)[:120]}",
    )


def _frames_inside(fn: Callable[..., object], trace: TracebackType | None) -> list[str] | None:
    """Return the files of the frames from that of `fn` on; None if there is none."""
    code = getattr(fn, "__code__", None)
    files: list[str] | None = None
    while trace is not None:
        frame = trace.tb_frame.f_code
        if frame is code and files is None:
            files = []
        if files is not None:
            files.append(frame.co_filename)
        trace = trace.tb_next
    return files


def _ours(file: str) -> bool:
    return file.startswith((_HERE, "<")) or any(part in file for part in _LIBRARIES)


def _misfit(note: object, value: object) -> str | None:
    """Return what an annotation asks for, where `value` is certainly not that."""
    if not isinstance(note, str):
        return None
    kinds = [_KINDS.get(part.strip()) for part in note.split(" | ")]
    known = [kind for kind in kinds if kind is not None]
    if len(known) < len(kinds) or any(holds(value) for holds, _ in known):
        return None
    return " or ".join(words for _, words in known)


def _numbers(value: object) -> Iterator[int]:
    for v in value if isinstance(value, (tuple, list)) else (value,):
        if isinstance(v, int):
            yield v
        elif isinstance(v, float) and abs(v) == np.inf:
            yield _LARGEST


def _described(value: object) -> str:
    if isinstance(value, (TensorBase, np.ndarray)):
        array = value.array if isinstance(value, TensorBase) else value
        return f"{type(value).__name__} of shape {tuple(array.shape)}, {array.dtype}"
    if isinstance(value, int) and not isinstance(value, bool):
        return shown(value)
    if value is None or isinstance(value, bool):
        return repr(value)
    return (
        f"{type(value).__name__} {value!r:.60}"
        if not isinstance(value, (tuple, list))
        else (f"{type(value).__name__} ({', '.join(map(_described, value[:4]))})")
    )


def _instead(name: str, key: str, value: object, words: str) -> str:
    if isinstance(value, float) and value.is_integer() and "whole" in words:
        return f"write {key}={int(value)}"
    return f"pass {words} as {key}"
