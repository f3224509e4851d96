"""`make_dot`: the tape behind a tensor as a graph, under the name that pytorchviz has for it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from probtorch.autograd.methods import meant
from probtorch.core.dispatch import TapeNode
from probtorch.core.history import edge, place_at
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.errors import AutogradError
from probtorch.viz.dot import Dot

__all__ = ["make_dot"]

_LEAF, _RESULT, _SAVED = "lightblue", "darkolivegreen1", "orange"


def make_dot(
    var: TensorBase | Iterable[TensorBase],
    params: Mapping[str, TensorBase] | Iterable[tuple[str, TensorBase]] | None = None,
    show_attrs: bool = False,
    show_saved: bool = False,
    max_attr_chars: int = 50,
) -> Dot:
    """Return the graph of the operations that a tensor was computed by.

    Blue are leaves that require grad, with their names; green are results; each other node is an
    operation on the tape.

    Parameters
    ----------
    var : Tensor or iterable of Tensor
        What was computed.
    params : dict or iterable of (str, Tensor), optional
        Names of leaves: ``dict(model.named_parameters())``.
    show_attrs : bool
        Show the arguments of operations that are no tensors.
    show_saved : bool
        Show which tensors are kept for the derivative, in orange.
    max_attr_chars : int
        Longer arguments are cut.

    Raises
    ------
    AutogradError
        If a tensor is not on the tape.

    Examples
    --------
    >>> import probtorch
    >>> w = probtorch.ones(2, requires_grad=True)
    >>> graph = make_dot((w * 2.0).sum(), params={"w": w})
    >>> "mul" in graph.source and "(2)" in graph.source
    True
    """
    results = [var] if isinstance(var, TensorBase) else list(var)
    named = params.items() if isinstance(params, Mapping) else params or ()
    drawing = _Drawing({id(t): name for name, t in named}, show_attrs, show_saved, max_attr_chars)
    for t in results:
        drawing.result(t)
    return drawing.dot


class _Drawing:
    """The graph as far as it is drawn; nodes are numbered in the order in which they are met."""

    def __init__(self, names: Mapping[int, str], attrs: bool, saved: bool, width: int) -> None:
        self.dot = Dot(
            "tape",
            graph={"size": "12,12"},
            node={
                "style": "filled",
                "shape": "box",
                "align": "left",
                "fontsize": "10",
                "ranksep": "0.1",
                "height": "0.2",
                "fontname": "monospace",
            },
        )
        self._names, self._attrs, self._saved, self._width = names, attrs, saved, width
        self._known: dict[int, str] = {}
        self._kept: list[object] = []  # so that identities stay theirs

    def result(self, t: TensorBase) -> None:
        """Draw a tensor and all that it comes from."""
        t = meant(t)
        node, _, wanted = place_at(t, math.inf)
        if not wanted:
            raise AutogradError(
                "make_dot",
                expected="a tensor that requires grad, or was computed from one",
                got=f"a tensor of shape {tuple(t.array.shape)} that is not on the tape",
                fix="compute it from parameters, outside of no_grad and without detach",
            )
        if node is None:
            self._leaf(t)
            return
        name = self._name(t)
        self.dot.node(name, label=_label("", t), fillcolor=_RESULT)
        self._operations(node)
        self.dot.edge(self._name(node), name)

    def _name(self, x: object) -> str:
        if id(x) not in self._known:
            self._known[id(x)] = f"n{len(self._known)}"
            self._kept.append(x)
        return self._known[id(x)]

    def _leaf(self, t: TensorBase) -> str:
        known = id(t) in self._known
        name = self._name(t)
        if not known:
            self.dot.node(name, label=_label(self._names.get(id(t), ""), t), fillcolor=_LEAF)
        return name

    def _operations(self, last: TapeNode) -> None:
        """Draw an operation and those before it, without recursion: tapes are long."""
        if id(last) in self._known:
            return
        todo = [last]
        self._operation(last)
        while todo:
            node = todo.pop()
            name = self._name(node)
            kept = node.op.saved_inputs(len(node.inputs or ())) if self._saved else ()
            for i, x in enumerate(node.inputs or ()):
                if not isinstance(x, TensorBase):
                    continue
                x = meant(x)
                before, _, wanted = edge(x, node)
                if i in kept:
                    self._saved_tensor(name, x)
                if before is not None and wanted:
                    if id(before) not in self._known:
                        todo.append(before)
                        self._operation(before)
                    self.dot.edge(self._name(before), name)
                elif wanted:
                    self.dot.edge(self._leaf(x), name)

    def _operation(self, node: TapeNode) -> None:
        lines = [node.op.name]
        if self._attrs and node.attrs:
            lines.append("-" * 12)
            for key, value in node.attrs.items():
                text = str(value)
                cut = text if len(text) <= self._width else text[: self._width - 3] + "..."
                lines.append(f"{key}: {cut}")
        self.dot.node(self._name(node), label="\n".join(lines))

    def _saved_tensor(self, operation: str, t: TensorBase) -> None:
        name = f"{operation}_saved_{self._name(t)}"
        label = _label(self._names.get(id(t), ""), t)
        self.dot.node(name, label=label, fillcolor=_SAVED)
        self.dot.edge(operation, name, dir="none")


def _label(name: str, t: TensorBase) -> str:
    return f"{name}\n ({', '.join(map(str, t.array.shape))})"


explain_calls(globals())
