"""Errors that say what was expected, what arrived and how to fix it.

Every error of the library is a `ProbtorchError` made from three parts. The message also names the
line of the user's own file that led here, found by walking up the stack to the first frame outside
this package. Each class also inherits from the built-in exceptions that PyTorch and NumPy users
already catch for the same mistake.
"""

import sys
from types import FrameType

from probtorch.source_files import owner

__all__ = [
    "ArgumentError",
    "AutogradError",
    "CapacityError",
    "CompileError",
    "DTypeError",
    "DeviceError",
    "DivisionByZeroError",
    "DomainError",
    "ExportError",
    "FileError",
    "InferenceError",
    "MaskError",
    "ModelError",
    "NoClosedFormError",
    "NotDifferentiableError",
    "ProbtorchError",
    "ShapeError",
    "TensorIndexError",
    "UnknownImportError",
    "UnknownModuleError",
    "UnknownNameError",
    "is_ours",
    "is_users",
    "user_frame",
    "user_location",
    "users_stacklevel",
]


def user_frame(depth=1):
    """Return ``(file, line)`` of the innermost stack frame of the user's, or None if there is none.

    Frames of this package, of the standard library and of code without a file are not the user's;
    frames of installed packages are only if there are no others, since pandas, say, may stand
    between.
    """
    frame: FrameType | None = sys._getframe(depth)
    installed = None
    while frame is not None:
        name = frame.f_code.co_filename
        whose = owner(name)
        if whose == "user":
            return name, frame.f_lineno
        if whose == "installed" and installed is None:
            installed = name, frame.f_lineno
        frame = frame.f_back
    return installed


def is_ours(file):
    """Whether a source file is of this package."""
    return owner(file) == "ours"


def is_users(file):
    """Whether a source file is the user's own: neither of a package nor of the standard library."""
    return owner(file) == "user"


def user_location(depth=1):
    """Return "file:line" of the innermost stack frame outside this package, or "" when there is
    none.
    """
    found = user_frame(depth + 1)
    return f"{found[0]}:{found[1]}" if found else ""


def users_stacklevel():
    """Return the `stacklevel` with which the caller's warning names a line of the user's."""
    frame: FrameType | None = sys._getframe(1)
    level = 1
    while frame is not None and is_ours(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    return level


def _tell_raised(error: BaseException) -> None:
    """Tell of an error that depends on the elements of tensors; core/dispatch.py fills the door.

    A function that catches it takes another way then, which whoever records it has to know.
    """


class ProbtorchError(Exception):
    """Base of all errors of the library.

    Parameters
    ----------
    subject : str
        The op, site or argument that the message is about.
    expected, got, fix : str, optional
        What would have been right, what arrived, and one thing to do about it.
    at : str, optional
        The "file:line" to blame, where that is not the line that is running now.
    """

    # Whether it depends on the elements of tensors that it is raised, not on their shapes alone.
    depends_on_values = False

    def __init__(self, subject, *, expected=None, got=None, fix=None, at=None):
        self.subject, self.expected, self.got, self.fix = subject, expected, got, fix
        self.location = at or user_location(2)
        lines = [subject]
        if expected is not None:
            lines.append(f"  expected: {expected}")
        if got is not None:
            lines.append(f"  got:      {got}")
        if fix is not None:
            lines.append(f"  fix:      {fix}")
        if self.location:
            lines.append(f"  at:       {self.location}")
        super().__init__("\n".join(lines))
        if self.depends_on_values:
            _tell_raised(self)

    def __reduce__(self):
        # Calling the class again, as exceptions do, would take the whole text for the subject and
        # add the line of the process that unpickles it.
        return _restored, (type(self), self.args, self.__dict__)


def _restored(cls, args, state):
    """An error as it was before it was pickled."""
    # That class of Python's whose memory it has: of two bases only one knows how to make it.
    made_by = cls
    while made_by.__module__ != "builtins":
        made_by = made_by.__base__
    error = made_by.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


class ShapeError(ProbtorchError, RuntimeError, ValueError):
    """Shapes or sizes that do not go together."""


class MaskError(ShapeError, IndexError):
    """A mask whose shape is not that of the dims it selects from: PyTorch calls that an index."""


class DTypeError(ProbtorchError, TypeError, RuntimeError):
    """A value of the wrong dtype or Python type."""


class DeviceError(ProbtorchError, RuntimeError, TypeError):
    """Tensors on different devices, or a device that is not there."""


class ArgumentError(ProbtorchError, ValueError, TypeError, RuntimeError):
    """An argument that is missing, unknown, out of range or in conflict with another."""


class TensorIndexError(ProbtorchError, IndexError, RuntimeError):
    """An index out of bounds or of the wrong kind."""

    depends_on_values = True


class UnknownNameError(ProbtorchError, AttributeError):
    """A name that a module of the library does not have."""


class UnknownImportError(ProbtorchError, ImportError):
    """A name that a ``from ... import`` asks for and the library does not have."""


class UnknownModuleError(UnknownImportError, ModuleNotFoundError):
    """A module that an ``import`` asks for and the library does not have."""


class CapacityError(ProbtorchError, MemoryError):
    """More memory than there is, asked for by sizes that are probably a mistake."""


class DomainError(ProbtorchError, ValueError, RuntimeError):
    """A value outside the set where the function or distribution is defined."""

    depends_on_values = True


class DivisionByZeroError(DomainError, ZeroDivisionError):
    """An integer divided by 0, or weights that add up to 0."""


class AutogradError(ProbtorchError, RuntimeError):
    """A derivative was asked for that the tape cannot give."""


class NotDifferentiableError(AutogradError):
    """The op has no derivative with respect to this input."""


class NoClosedFormError(ProbtorchError, NotImplementedError):
    """A quantity that has no formula here for these distributions."""


class ExportError(AutogradError, BufferError):
    """Memory that cannot be handed to another library."""


class ModelError(ProbtorchError, RuntimeError, ValueError):
    """A mistake in a model: duplicate sites, missing plates, impossible data."""


class InferenceError(ProbtorchError, RuntimeError, ValueError):
    """Inference cannot start or go on."""


class FileError(ProbtorchError, OSError, ValueError):
    """A file that cannot be written, or that does not hold what it should."""


class CompileError(ProbtorchError, RuntimeError):
    """Something that cannot be compiled; callers fall back to eager execution."""
