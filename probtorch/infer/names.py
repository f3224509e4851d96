"""The error for a name that nothing has: one wording for all of inference."""

from __future__ import annotations

from collections.abc import Iterable

from probtorch.core.late import difflib
from probtorch.errors import ModelError

__all__ = ["unknown_name"]


def unknown_name(subject: str, name: str, known: Iterable[str]) -> ModelError:
    """Return the error for a `name` that is not among `known`, with the closest one that is."""
    known = list(known)
    close = difflib.get_close_matches(name, known, 1)
    return ModelError(
        subject,
        expected=f"names among {', '.join(map(repr, known)) or '(none)'}",
        got=repr(name),
        fix=f"did you mean {close[0]!r}?" if close else "drop the name, or check the model",
    )
