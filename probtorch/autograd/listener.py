"""`Listener`: an interpreter that notes something in passing.

Forward mode notes its tangents, anomaly mode the user's lines, `vmap` the whole batch. It is
installed around a block and hands everything on to what listened before, so that listeners nest in
each other and inside a compiled function. What can be heard is in core/interpreter.py.
"""

from __future__ import annotations

from typing import Self

from probtorch.core.dispatch import recorder, set_recorder
from probtorch.core.interpreter import Interpreter

__all__ = ["Listener"]


class Listener(Interpreter):
    """Base of interpreters that are context managers: they listen inside their block.

    Subclasses override events and call ``super()`` to pass them on.
    """

    def __enter__(self) -> Self:
        self.outer = recorder()
        set_recorder(self)
        return self

    def __exit__(self, *exc: object) -> None:
        set_recorder(self.outer)
