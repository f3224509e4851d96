"""`Printer`: what a target must be able to spell."""

from __future__ import annotations

from keyword import iskeyword
from typing import TYPE_CHECKING, Any, ClassVar

from probtorch.compiler.lang import nodes
from probtorch.compiler.lang.nodes import Value

if TYPE_CHECKING:
    from probtorch.compiler.lang.builder import Builder

__all__ = ["Printer"]


class Printer:
    """Spells nodes: a method of the node's name in lower case for each kind.

    Attributes
    ----------
    sigil : str
        What names begin with.
    fuses : bool
        Whether `Fused` is one instruction.
    """

    sigil: ClassVar[str] = ""
    fuses: bool = False

    def print(self, b: Builder, node: Any) -> Any:
        """Write a node into the builder's lines; returns what it gives."""
        return getattr(self, _METHODS[type(node)])(b, node)

    def definition(self, name: str, text: str, ty: str) -> str:
        """Return the line that gives a name to what `text` computes."""
        raise NotImplementedError

    def constant(self, x: Any, ty: str) -> str:
        """Return the spelling of a Python number."""
        raise NotImplementedError

    def load(self, b: Builder, place: str, ty: str) -> Value:
        """Write a read of memory."""
        raise NotImplementedError

    def store(self, b: Builder, v: Value, place: str) -> None:
        """Write a write to memory."""
        raise NotImplementedError

    def requires(self, b: Builder, symbol: str) -> None:
        """Note that the module calls a function of the runtime."""
        b.module.runtime.add(symbol)

    def argument(self, i: int) -> str:
        """Return the name of a function's argument."""
        raise NotImplementedError

    def function(self, f: Any, result: Value | None) -> str:
        """Return the text of a function whose lines are written."""
        raise NotImplementedError


_METHODS = {
    kind: name + "_" * iskeyword(name)
    for kind in nodes.Node.__subclasses__()
    for name in [kind.__name__.lower()]
}
