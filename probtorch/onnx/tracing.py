"""Watching a call of a module: a `OnnxGraph` of nodes as ONNX has them, without ONNX."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from probtorch.autograd.listener import Listener
from probtorch.backends.registry import to_host
from probtorch.core.op import Attrs, Op, Operand, Output
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import DType
from probtorch.errors import ModelError
from probtorch.nn import convolution
from probtorch.nn.module import Module

__all__ = ["OnnxGraph", "OnnxNode", "Rule", "Tracer", "refused", "take_layers_whole"]

_PLAIN = (convolution.Conv1d, convolution.Conv2d, convolution.Conv3d)
_TRANSPOSED = (
    convolution.ConvTranspose1d,
    convolution.ConvTranspose2d,
    convolution.ConvTranspose3d,
)


@dataclass(frozen=True)
class OnnxNode:
    """One node: the name of its operator in ONNX, names of values, attributes."""

    operator: str
    inputs: tuple[str, ...]
    output: str
    attributes: Mapping[str, object]


class OnnxGraph:
    """Nodes in order, constants by name; rules write into it."""

    def __init__(self) -> None:
        self.nodes: list[OnnxNode] = []
        self.constants: dict[str, np.ndarray] = {}
        self._names: dict[int, str] = {}
        self._labels: dict[int, str] = {}
        self._constants_of: dict[tuple[int, DType], str] = {}
        self._kept: list[TensorBase] = []  # so that identities stay theirs
        self._taken: set[str] = set()

    def label(self, t: TensorBase, name: str) -> None:
        """Say what a constant is to be called, should it be used."""
        self._labels[id(t)] = name
        self._kept.append(t)

    def bind(self, t: TensorBase, name: str) -> None:
        """Say which value a tensor is."""
        self._names[id(t)] = name
        self._taken.add(name)
        self._kept.append(t)

    def computed(self, t: object) -> bool:
        """Whether a tensor depends on the inputs of the graph."""
        return isinstance(t, TensorBase) and id(t) in self._names

    def fresh(self, stem: str) -> str:
        """A name that no value has yet."""
        name, number = stem, 0
        while name in self._taken:
            number += 1
            name = f"{stem}_{number}"
        self._taken.add(name)
        return name

    def constant(self, array: np.ndarray, stem: str = "constant") -> str:
        """The name of a new constant."""
        name = self.fresh(stem)
        self.constants[name] = array
        return name

    def value(self, x: Operand, dtype: DType | None = None) -> str:
        """The name of a value: of a tensor, or of a number; converted if it has another dtype."""
        if not isinstance(x, TensorBase):
            return self.constant(np.asarray(x, dtype))
        if id(x) not in self._names:
            array = np.ascontiguousarray(to_host(x.array)).reshape(x.array.shape)
            array = array if dtype is None else array.astype(dtype, copy=False)
            known = id(x), array.dtype
            if known not in self._constants_of:
                label = self._labels.get(id(x), "constant")
                self._constants_of[known] = self.constant(array, label)
                self._kept.append(x)
            return self._constants_of[known]
        name = self._names[id(x)]
        if dtype is None or x.array.dtype == dtype:
            return name
        return self.node("Cast", name, to=np.dtype(dtype))

    def node(self, operator: str, *inputs: str, **attributes: object) -> str:
        """Add a node; returns the name of its result."""
        output = self.fresh(operator.lower())
        self.nodes.append(OnnxNode(operator, inputs, output, attributes))
        return output

    def integers(self, *numbers: int) -> str:
        """The name of a list of whole numbers."""
        return self.constant(np.asarray(numbers, np.int64))

    def pruned(self, outputs: Iterable[str]) -> None:
        """Leave out what no output depends on."""
        wanted, nodes = set(outputs), []
        for node in reversed(self.nodes):
            if node.output in wanted:
                nodes.append(node)
                wanted.update(node.inputs)
        self.nodes = nodes[::-1]
        self.constants = {name: x for name, x in self.constants.items() if name in wanted}


# Of an operation with several results it returns the names of all.
Rule = Callable[[OnnxGraph, Sequence[Operand], Attrs, TensorBase], str | tuple[str, ...]]


class Tracer(Listener):
    """Writes operations into a graph as they are carried out.

    Parameters
    ----------
    graph : OnnxGraph
    rules : dict
        By the name of an operation, a function that writes it and returns the name of its result.
    """

    def __init__(self, graph: OnnxGraph, rules: Mapping[str, Rule]) -> None:
        super().__init__()
        self._graph, self._rules = graph, rules
        self._silent = 0

    def applied(self, op: Op, inputs: tuple[Operand, ...], attrs: Attrs, out: Output) -> None:
        """Write an operation down if anything in it depends on the inputs."""
        if not self._silent and any(map(self._graph.computed, inputs)):
            rule = self._rules.get(op.name)
            if rule is None:
                raise refused(op.name)
            outs = out if isinstance(out, tuple) else (out,)
            names = rule(self._graph, inputs, attrs, outs[0])
            names = names if isinstance(names, tuple) else (names,)
            for t, name in zip(outs, names, strict=True):
                self._graph.bind(t, name)
        super().applied(op, inputs, attrs, out)

    def alias(self, source: TensorBase, t: TensorBase, taped: bool) -> None:
        """Another name of the same elements."""
        if self._graph.computed(source):
            self._graph.bind(t, self._graph.value(source))
        super().alias(source, t, taped)

    def in_place(self, target: TensorBase, value: TensorBase) -> None:
        """Changes in place have no place in a graph."""
        if self._graph.computed(target) or self._graph.computed(value):
            raise refused("a change in place")
        super().in_place(target, value)

    def _begins(self, module: Module, args: tuple[object, ...]) -> None:
        self._silent += 1

    def _ends(self, module: Module, args: tuple[object, ...], out: TensorBase) -> None:
        self._silent -= 1
        x = args[0]
        if not self._silent and isinstance(x, TensorBase) and self._graph.computed(x):
            self._graph.bind(out, _convolved(self._graph, module, x))


def take_layers_whole(tracer: Tracer, module: Module) -> list[Callable[[], None]]:
    """Let layers of convolutions in a module be one node each; returns what undoes that."""
    undo = []
    for part in module.modules():
        if _is_plain(part):
            undo.append(part.register_forward_pre_hook(tracer._begins).remove)
            undo.append(part.register_forward_hook(tracer._ends).remove)
    return undo


def _is_plain(module: Module) -> bool:
    """Whether a module is a convolution as ONNX has it: padded with zeros, by numbers."""
    known = type(module) in _PLAIN or type(module) in _TRANSPOSED
    return known and module.padding_mode == "zeros" and not isinstance(module.padding, str)


def _convolved(graph: OnnxGraph, module: Module, x: TensorBase) -> str:
    rank = module.weight.array.ndim - 2
    names = [graph.value(x), graph.value(module.weight)]
    if module.bias is not None:
        names.append(graph.value(module.bias))
    batched = x.array.ndim == rank + 2
    if not batched:
        names[0] = graph.node("Unsqueeze", names[0], graph.integers(0))
    attributes: dict[str, object] = {
        "strides": _each(module.stride, rank),
        "pads": _each(module.padding, rank) * 2,
        "dilations": _each(module.dilation, rank),
        "group": int(module.groups),
    }
    operator = "Conv"
    if type(module) in _TRANSPOSED:
        operator = "ConvTranspose"
        attributes["output_padding"] = _each(module.output_padding, rank)
    out = graph.node(operator, *names, **attributes)
    return out if batched else graph.node("Squeeze", out, graph.integers(0))


def _each(value: int | Sequence[int], rank: int) -> list[int]:
    return [int(value)] * rank if isinstance(value, int) else [int(v) for v in value]


def refused(what: str) -> ModelError:
    """Return the error for something that cannot be written down."""
    return ModelError(
        "onnx.export",
        expected="operations that have a counterpart in ONNX here",
        got=what,
        fix="write this part of forward in other operations, or export the module without it",
    )
