"""`export`: a module's call as an ONNX file; the only file that imports onnx."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import IO

import numpy as np

from probtorch.autograd.modes import no_grad
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import leaves
from probtorch.errors import ArgumentError, FileError
from probtorch.nn.module import Module
from probtorch.onnx.rules import RULES
from probtorch.onnx.tracing import OnnxGraph, OnnxNode, Tracer, take_layers_whole
from probtorch.serialization.files import replacing

__all__ = ["export"]

# The rules are written for this version of the operators, and those after it run them as well.
_OPSET, _NEWEST = 18, 23
# Of the file's own layout: one that programs of the last years read.
_LAYOUT = 10


def export(
    model: Module,
    args: TensorBase | tuple[TensorBase, ...],
    f: str | os.PathLike[str] | IO[bytes],
    *,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    opset_version: int = _OPSET,
    dynamic_axes: Mapping[str, object] | None = None,
) -> None:
    """Write a module as an ONNX file, by watching one call of it in evaluation mode.

    Parameters
    ----------
    model : Module
    args : Tensor or tuple of Tensor
        What it is called with. The file takes inputs of these shapes and dtypes.
    f : str, path-like or binary file
    input_names, output_names : sequence of str, optional
        By default "input_0" and so on, "output_0" and so on.
    opset_version : int, from 18 to 23
        Of ONNX's operators.
    dynamic_axes : optional
        Not supported: shapes are those of `args`.

    Raises
    ------
    FileError
        If the package onnx is not installed.
    ModelError
        If the module does something that has no counterpart here.
    ArgumentError
        If names do not fit, or sizes are to be left open.

    Notes
    -----
    As in every export by watching, loops and branches are those that this call took, and random
    draws and numbers that Python reads are constants. Parameters keep their names; what depends on
    parameters alone is computed beforehand.
    """
    args = args if isinstance(args, tuple) else (args,)
    onnx = _package()
    _check(args, opset_version, dynamic_axes)
    inputs = _names("input", input_names, len(args))
    graph = OnnxGraph()
    for name, t in (*model.named_parameters(), *model.named_buffers()):
        graph.label(t, name)
    for name, x in zip(inputs, args, strict=True):
        graph.bind(x, name)
    tracer = Tracer(graph, RULES)
    undo, training = take_layers_whole(tracer, model), model.training
    model.eval()
    try:
        with no_grad(), tracer:
            found = [x for x in leaves(model(*args)) if isinstance(x, TensorBase)]
    finally:
        model.train(training)
        for back in undo:
            back()
    outputs = _names("output", output_names, len(found))
    for name, x in zip(outputs, found, strict=True):
        graph.nodes.append(OnnxNode("Identity", (graph.value(x),), name, {}))
    graph.pruned(outputs)
    _shorten(graph, outputs)
    values = [
        [
            onnx.helper.make_tensor_value_info(name, _kind(onnx, x.array.dtype), x.array.shape)
            for name, x in zip(names, tensors, strict=True)
        ]
        for names, tensors in ((inputs, args), (outputs, found))
    ]
    made = onnx.helper.make_graph(
        [_node(onnx, node) for node in graph.nodes],
        type(model).__name__,
        *values,
        [onnx.numpy_helper.from_array(x, name) for name, x in graph.constants.items()],
    )
    opset = onnx.helper.make_opsetid("", opset_version)
    file = onnx.helper.make_model(
        made, opset_imports=[opset], producer_name="probtorch", ir_version=_LAYOUT
    )
    onnx.checker.check_model(file)
    data = file.SerializeToString()
    if hasattr(f, "write"):
        f.write(data)
        return
    with replacing(f) as stream:
        stream.write(data)


def _shorten(graph: OnnxGraph, outputs: Sequence[str]) -> None:
    """Let the node before an output have its name, where nobody else needs it."""
    by_output = {node.output: i for i, node in enumerate(graph.nodes)}
    for name in outputs:
        i = by_output[name]
        (source,) = graph.nodes[i].inputs
        used = sum(source in node.inputs for node in graph.nodes)
        if source in by_output and used == 1 and source not in outputs:
            last = graph.nodes[by_output[source]]
            renamed = OnnxNode(last.operator, last.inputs, name, last.attributes)
            graph.nodes[by_output[source]] = renamed
            graph.nodes[i] = OnnxNode("", (), "", {})
    graph.nodes = [node for node in graph.nodes if node.operator]


def _names(stem: str, given: Sequence[str] | None, count: int) -> list[str]:
    names = [f"{stem}_{i}" for i in range(count)] if given is None else list(given)
    if len(set(names)) != count or len(names) != count:
        raise ArgumentError(
            f"onnx.export({stem}_names=...)",
            expected=f"{count} different names, one for each {stem}",
            got=repr(names),
            fix="give as many, or leave them out",
        )
    return names


def _check(args: tuple[object, ...], opset: int, dynamic_axes: object) -> None:
    if not all(isinstance(x, TensorBase) for x in args):
        raise ArgumentError(
            "onnx.export(args=...)",
            expected="tensors",
            got=", ".join(type(x).__name__ for x in args),
            fix="wrap other arguments into a module whose forward takes tensors alone",
        )
    if not _OPSET <= opset <= _NEWEST:
        raise ArgumentError(
            "onnx.export(opset_version=...)",
            expected=f"a version from {_OPSET} to {_NEWEST}",
            got=repr(opset),
            fix=f"leave it out for {_OPSET}",
        )
    if dynamic_axes:
        raise ArgumentError(
            "onnx.export(dynamic_axes=...)",
            expected="sizes that are those of the arguments",
            got=f"{dynamic_axes!r:.80}",
            fix="export once for each size that is needed",
        )


def _node(onnx: ModuleType, node: OnnxNode) -> object:
    attributes = {
        key: _kind(onnx, value) if isinstance(value, np.dtype) else value
        for key, value in node.attributes.items()
    }
    return onnx.helper.make_node(node.operator, list(node.inputs), [node.output], **attributes)


def _kind(onnx: ModuleType, dtype: np.dtype) -> int:
    return onnx.helper.np_dtype_to_tensor_dtype(dtype)


def _package() -> ModuleType:
    try:
        for part in ("onnx.helper", "onnx.checker", "onnx.numpy_helper"):
            import_module(part)
        return import_module("onnx")
    except ModuleNotFoundError:
        raise FileError(
            "onnx.export",
            expected="the package onnx",
            got="an environment without it",
            fix="pip install 'probtorch[onnx]'",
        ) from None


explain_calls(globals())
