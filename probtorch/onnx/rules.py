"""A rule per operation: how it is written in operators of ONNX, opset 18.

A rule is given the graph, the operands, the attributes and the result of one operation, adds nodes,
and returns the name of the value. Operands of another dtype than the result are converted first, as
our operations do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from probtorch.core.dtype import promote_types
from probtorch.core.op import Attrs, Operand
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import DType
from probtorch.onnx.tracing import OnnxGraph, Rule, refused

__all__ = ["RULES"]

_UNARY = {
    "abs": "Abs",
    "neg": "Neg",
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "sin": "Sin",
    "cos": "Cos",
    "tan": "Tan",
    "asin": "Asin",
    "acos": "Acos",
    "atan": "Atan",
    "sinh": "Sinh",
    "cosh": "Cosh",
    "tanh": "Tanh",
    "asinh": "Asinh",
    "acosh": "Acosh",
    "atanh": "Atanh",
    "sigmoid": "Sigmoid",
    "relu": "Relu",
    "floor": "Floor",
    "ceil": "Ceil",
    "round": "Round",
    "sign": "Sign",
    "erf": "Erf",
    "reciprocal": "Reciprocal",
    "softplus": "Softplus",
    "clone": "Identity",
}
_BINARY = {
    "add": "Add",
    "sub": "Sub",
    "mul": "Mul",
    "div": "Div",
    "pow": "Pow",
    "maximum": "Max",
    "minimum": "Min",
}
_COMPARISONS = {"eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater"}
_COMPARISONS |= {"ge": "GreaterOrEqual", "logical_and": "And", "logical_or": "Or"}
_COMPARISONS |= {"logical_xor": "Xor"}
_REDUCTIONS = {
    "sum": "ReduceSum",
    "amax": "ReduceMax",
    "amin": "ReduceMin",
    "prod": "ReduceProd",
    "logsumexp": "ReduceLogSumExp",
}


def _unary(operator: str) -> Rule:
    def rule(g: OnnxGraph, inputs: Sequence[Operand], attrs: Attrs, out: TensorBase) -> str:
        return g.node(operator, g.value(inputs[0], out.array.dtype))

    return rule


def _binary(operator: str) -> Rule:
    def rule(g: OnnxGraph, inputs: Sequence[Operand], attrs: Attrs, out: TensorBase) -> str:
        return g.node(operator, *(g.value(x, out.array.dtype) for x in inputs))

    return rule


def _comparison(operator: str) -> Rule:
    def rule(g: OnnxGraph, inputs: Sequence[Operand], attrs: Attrs, out: TensorBase) -> str:
        logical = operator in ("And", "Or", "Xor")
        kind = np.dtype(bool) if logical else _common(inputs)
        return g.node(operator, *(g.value(x, kind) for x in inputs))

    return rule


def _common(inputs: Sequence[Operand]) -> DType:
    kinds = [x.array.dtype for x in inputs if isinstance(x, TensorBase)]
    found = kinds[0]
    for kind in kinds[1:]:
        found = promote_types(found, kind)
    floats = any(isinstance(x, float) for x in inputs)
    return np.dtype(np.float32) if floats and found.kind != "f" else found


def _reduction(operator: str) -> Rule:
    def rule(g: OnnxGraph, inputs: Sequence[Operand], attrs: Attrs, out: TensorBase) -> str:
        dims = g.integers(*attrs["dims"])
        keep = int(attrs["keepdim"])
        return g.node(operator, g.value(inputs[0], out.array.dtype), dims, keepdims=keep)

    return rule


def _softmax(operator: str) -> Rule:
    def rule(g: OnnxGraph, inputs: Sequence[Operand], attrs: Attrs, out: TensorBase) -> str:
        dims = attrs["dims"]
        if len(dims) != 1:
            raise refused(f"{operator} over several dims")
        return g.node(operator, g.value(inputs[0], out.array.dtype), axis=int(dims[0]))

    return rule


def _of_number(g: OnnxGraph, operator: str, x: str, number: float, like: TensorBase) -> str:
    return g.node(operator, x, g.constant(np.asarray(number, like.array.dtype)))


def _rsqrt(g: OnnxGraph, inputs: Sequence[Operand], attrs: Attrs, out: TensorBase) -> str:
    return g.node("Reciprocal", g.node("Sqrt", g.value(inputs[0], out.array.dtype)))


def _square(g: OnnxGraph, inputs: Sequence[Operand], attrs: Attrs, out: TensorBase) -> str:
    x = g.value(inputs[0], out.array.dtype)
    return g.node("Mul", x, x)


def _expm1(g: OnnxGraph, inputs: Sequence[Operand], attrs: Attrs, out: TensorBase) -> str:
    # (e^x - 1) by way of tanh(x / 2), which keeps the digits near 0: 2 t / (1 - t).
    x = g.value(inputs[0], out.array.dtype)
    plain = _of_number(g, "Sub", g.node("Exp", x), 1.0, out)
    t = g.node("Tanh", _of_number(g, "Mul", x, 0.5, out))
    one = g.constant(np.asarray(1.0, out.array.dtype))
    exact = g.node("Div", _of_number(g, "Mul", t, 2.0, out), g.node("Sub", one, t))
    near = _of_number(g, "Less", g.node("Abs", x), 1.0, out)
    return g.node("Where", near, exact, plain)


def _log1p(g: OnnxGraph, inputs: Sequence[Operand], attrs: Attrs, out: TensorBase) -> str:
    # 2 artanh(x / (2 + x)), which keeps the digits near 0.
    x = g.value(inputs[0], out.array.dtype)
    plain = g.node("Log", _of_number(g, "Add", x, 1.0, out))
    ratio = g.node("Div", x, _of_number(g, "Add", x, 2.0, out))
    exact = _of_number(g, "Mul", g.node("Atanh", ratio), 2.0, out)
    near = _of_number(g, "Less", g.node("Abs", x), 0.5, out)
    return g.node("Where", near, exact, plain)


def _log_of_base(base: float) -> Rule:
    def rule(g: OnnxGraph, inputs: Sequence[Operand], attrs: Attrs, out: TensorBase) -> str:
        x = g.node("Log", g.value(inputs[0], out.array.dtype))
        return _of_number(g, "Mul", x, 1.0 / math.log(base), out)

    return rule


def _ndtr(g: OnnxGraph, inputs: Sequence[Operand], attrs: Attrs, out: TensorBase) -> str:
    x = _of_number(g, "Mul", g.value(inputs[0], out.array.dtype), math.sqrt(0.5), out)
    return _of_number(g, "Mul", _of_number(g, "Add", g.node("Erf", x), 1.0, out), 0.5, out)


def _log_sigmoid(g: OnnxGraph, inputs: Sequence[Operand], attrs: Attrs, out: TensorBase) -> str:
    x = g.node("Neg", g.value(inputs[0], out.array.dtype))
    return g.node("Neg", g.node("Softplus", x))


def _not_equal(g: OnnxGraph, inputs: Sequence[Operand], attrs: Attrs, out: TensorBase) -> str:
    kind = _common(inputs)
    return g.node("Not", g.node("Equal", *(g.value(x, kind) for x in inputs)))


def _bitwise(operator: str) -> Rule:
    def rule(g: OnnxGraph, inputs: Sequence[Operand], attrs: Attrs, out: TensorBase) -> str:
        logical = out.array.dtype.kind == "b"
        name = operator if logical else f"Bitwise{operator}"
        return g.node(name, *(g.value(x, out.array.dtype) for x in inputs))

    return rule


def _logical_not(g: OnnxGraph, inputs: Sequence[Operand], attrs: Attrs, out: TensorBase) -> str:
    return g.node("Not", g.value(inputs[0], np.dtype(bool)))


def _where(g: OnnxGraph, inputs: Sequence[Operand], attrs: Attrs, out: TensorBase) -> str:
    kind = out.array.dtype
    condition = g.value(inputs[0], np.dtype(bool))
    return g.node("Where", condition, g.value(inputs[1], kind), g.value(inputs[2], kind))


def _clamp(g: OnnxGraph, inputs: Sequence[Operand], attrs: Attrs, out: TensorBase) -> str:
    x, low, high = (g.value(x, out.array.dtype) for x in inputs)
    return g.node("Min", g.node("Max", x, low), high)


def _cast(g: OnnxGraph, inputs: Sequence[Operand], attrs: Attrs, out: TensorBase) -> str:
    return g.node("Cast", g.value(inputs[0]), to=out.array.dtype)


# ------------------------------------------------------------------------- shapes and places


def _reshape(g: OnnxGraph, inputs: Sequence[Operand], attrs: Attrs, out: TensorBase) -> str:
    return g.node("Reshape", g.value(inputs[0]), g.integers(*out.array.shape), allowzero=1)


def _permute(g: OnnxGraph, inputs: Sequence[Operand], attrs: Attrs, out: TensorBase) -> str:
    return g.node("Transpose", g.value(inputs[0]), perm=[int(d) for d in attrs["dims"]])


def _expand(g: OnnxGraph, inputs: Sequence[Operand], attrs: Attrs, out: TensorBase) -> str:
    return g.node("Expand", g.value(inputs[0]), g.integers(*out.array.shape))


def _cat(g: OnnxGraph, inputs: Sequence[Operand], attrs: Attrs, out: TensorBase) -> str:
    parts = [g.value(x, out.array.dtype) for x in inputs]
    return g.node("Concat", *parts, axis=int(attrs["dim"]))


def _slice(g: OnnxGraph, inputs: Sequence[Operand], attrs: Attrs, out: TensorBase) -> str:
    """Along each dim a start, a step and a count."""
    spec = attrs["spec"]
    starts = [start for start, _, _ in spec]
    ends = [start + step * count for start, step, count in spec]
    # Before the first element: ONNX counts -1 from the end.
    ends = [end if end >= 0 else -(2**31) for end in ends]
    names = [g.integers(*starts), g.integers(*ends), g.integers(*range(len(spec)))]
    return g.node("Slice", g.value(inputs[0]), *names, g.integers(*(s for _, s, _ in spec)))


def _unslice(g: OnnxGraph, inputs: Sequence[Operand], attrs: Attrs, out: TensorBase) -> str:
    """Zeros around what was cut out."""
    spec, shape = attrs["spec"], out.array.shape
    if any(step != 1 for _, step, _ in spec):
        raise refused("zeros between elements")
    before = [start for start, _, _ in spec]
    behind = [n - start - count for n, (start, _, count) in zip(shape, spec, strict=True)]
    return g.node("Pad", g.value(inputs[0]), g.integers(*before, *behind), mode="constant")


def _take(g: OnnxGraph, inputs: Sequence[Operand], attrs: Attrs, out: TensorBase) -> str:
    if len(attrs["dims"]) != 1 or len(inputs) != 2:
        raise refused("an index of several dims")
    index = g.value(inputs[1], np.dtype(np.int64))
    return g.node("Gather", g.value(inputs[0]), index, axis=int(attrs["dims"][0]))


# --------------------------------------------------------------------------- sums and windows


def _matmul(g: OnnxGraph, inputs: Sequence[Operand], attrs: Attrs, out: TensorBase) -> str:
    return g.node("MatMul", *(g.value(x, out.array.dtype) for x in inputs))


def _argmax(g: OnnxGraph, inputs: Sequence[Operand], attrs: Attrs, out: TensorBase) -> str:
    dims = attrs["dims"]
    if len(dims) != 1:
        raise refused("argmax over several dims")
    return g.node("ArgMax", g.value(inputs[0]), axis=int(dims[0]), keepdims=int(attrs["keepdim"]))


def _centred(g: OnnxGraph, x: str, dims: str) -> str:
    return g.node("Sub", x, g.node("ReduceMean", x, dims, keepdims=1))


def _variance(g: OnnxGraph, inputs: Sequence[Operand], attrs: Attrs, out: TensorBase) -> str:
    (x,) = inputs
    assert isinstance(x, TensorBase)
    dims = g.integers(*attrs["dims"])
    off = _centred(g, g.value(x, out.array.dtype), dims)
    total = g.node("ReduceSum", g.node("Mul", off, off), dims, keepdims=int(attrs["keepdim"]))
    count = math.prod(x.array.shape[d] for d in attrs["dims"]) - attrs["correction"]
    return _of_number(g, "Div", total, count, out)


def _standardise(
    g: OnnxGraph, inputs: Sequence[Operand], attrs: Attrs, out: TensorBase
) -> tuple[str, str, str]:
    """The result, the mean and the variance."""
    dims = g.integers(*attrs["dims"])
    x = g.value(inputs[0], out.array.dtype)
    mean = g.node("ReduceMean", x, dims, keepdims=1)
    off = g.node("Sub", x, mean)
    variance = g.node("ReduceMean", g.node("Mul", off, off), dims, keepdims=1)
    spread = g.node("Sqrt", _of_number(g, "Add", variance, attrs["eps"], out))
    return g.node("Div", off, spread), mean, variance


def _pooled(operator: str) -> Rule:
    def rule(g: OnnxGraph, inputs: Sequence[Operand], attrs: Attrs, out: TensorBase) -> str:
        """The last dims are the space, all before them channels."""
        (x,) = inputs
        assert isinstance(x, TensorBase)
        rank = len(attrs["sizes"])
        space = x.array.shape[x.array.ndim - rank :]
        name = g.node("Reshape", g.value(x), g.integers(1, -1, *space))
        options: dict[str, object] = {
            "kernel_shape": [int(n) for n in attrs["sizes"]],
            "strides": [int(n) for n in attrs["stride"]],
        }
        if operator == "MaxPool":
            options["dilations"] = [int(n) for n in attrs["dilation"]]
        elif set(attrs["dilation"]) != {1}:
            raise refused("sums of windows with gaps")
        name = g.node(operator, name, **options)
        if operator == "AveragePool":
            name = _of_number(g, "Mul", name, math.prod(attrs["sizes"]), out)
        return g.node("Reshape", name, g.integers(*out.array.shape))

    return rule


def _windows(g: OnnxGraph, inputs: Sequence[Operand], attrs: Attrs, out: TensorBase) -> str:
    """Elements by their places: of convolutions that are no layers."""
    (x,) = inputs
    assert isinstance(x, TensorBase)
    sizes, rank = attrs["sizes"], len(attrs["sizes"])
    lead, space = x.array.shape[: x.array.ndim - rank], x.array.shape[x.array.ndim - rank :]
    places = np.zeros((1,) * (2 * rank), np.int64)
    for i, (size, stride, gap) in enumerate(
        zip(sizes, attrs["stride"], attrs["dilation"], strict=True)
    ):
        count = out.array.shape[rank + len(lead) + i]
        along = np.arange(size)[:, None] * gap + np.arange(count) * stride
        shape = [1] * (2 * rank)
        shape[i], shape[rank + i] = size, count
        places = places + along.reshape(shape) * math.prod(space[i + 1 :])
    flat = g.node("Reshape", g.value(x), g.integers(*lead, -1))
    found = g.node("Gather", flat, g.constant(places), axis=len(lead))
    order = [*range(len(lead), len(lead) + rank), *range(len(lead))]
    order += range(len(lead) + rank, len(lead) + 2 * rank)
    return g.node("Transpose", found, perm=order)


RULES: dict[str, Rule] = {
    **{name: _unary(operator) for name, operator in _UNARY.items()},
    **{name: _binary(operator) for name, operator in _BINARY.items()},
    **{name: _comparison(operator) for name, operator in _COMPARISONS.items()},
    **{name: _reduction(operator) for name, operator in _REDUCTIONS.items()},
    "softmax": _softmax("Softmax"),
    "log_softmax": _softmax("LogSoftmax"),
    "rsqrt": _rsqrt,
    "square": _square,
    "expm1": _expm1,
    "log1p": _log1p,
    "log2": _log_of_base(2.0),
    "log10": _log_of_base(10.0),
    "ndtr": _ndtr,
    "log_sigmoid": _log_sigmoid,
    "ne": _not_equal,
    "bitwise_and": _bitwise("And"),
    "bitwise_or": _bitwise("Or"),
    "bitwise_xor": _bitwise("Xor"),
    "bitwise_not": _bitwise("Not"),
    "logical_not": _logical_not,
    "where": _where,
    "clamp": _clamp,
    "cast": _cast,
    "reshape": _reshape,
    "permute": _permute,
    "expand": _expand,
    "cat": _cat,
    "slice": _slice,
    "unslice": _unslice,
    "take": _take,
    "matmul": _matmul,
    "argmax": _argmax,
    "variance": _variance,
    "standardise": _standardise,
    "window_max": _pooled("MaxPool"),
    "window_sum": _pooled("AveragePool"),
    "windows": _windows,
}
