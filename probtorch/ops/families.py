"""Families: how an op is declared. Each fills the `Op` record from as little as its kin needs.

- `elementwise`: a scalar formula and one partial per input; vjp, jvp, broadcasting and dtype rules
  follow.
- `linear`: a run and its transpose; the tangent rule is the op itself. Movement and summing ops are
  of this kind.
- `structured`: everything stated, side by side (cholesky, matmul, prod ...).

Partials are written in Tensor ops, as ``lambda g, y, x: ...``: cotangent, output, inputs. The name
of an argument that a partial does not look at starts with an underscore, or is swallowed by ``*_``:
that is how the tape knows what it must guard against later in-place changes.
"""

import functools
import inspect
from typing import Any

import numpy as np

from probtorch.core import dtype as dtypes
from probtorch.core.casting import cast
from probtorch.core.dispatch import apply, binary_door, unary_door
from probtorch.core.op import Op, register
from probtorch.core.operands import general, prepared, written
from probtorch.core.tensor_base import TensorBase
from probtorch.errors import ArgumentError
from probtorch.ops.scalar import numpy_algebra, special_function

__all__ = ["elementwise", "linear", "structured", "unbroadcast", "use_sum_to"]

_sum_to: Any = None


def use_sum_to(fn):
    """Register the op that sums a cotangent down to a shape; called once, by ops/reduction.py."""
    global _sum_to
    _sum_to = fn
    return fn


def unbroadcast(g, shape):
    """Sum cotangent `g` over the dims that broadcasting added to `shape`."""
    return g if g._data.shape == shape else _sum_to(g, shape)


def _rules(partials):
    """Return `Op.rules`, and whether any partial looks at the output (see the module docstring)."""
    rules, output = [], False
    for i, p in enumerate(partials):
        if p is None:
            continue
        code = p.__code__
        names = list(code.co_varnames[: code.co_argcount])
        if code.co_flags & inspect.CO_VARARGS:  # one name for all that follow
            names += code.co_varnames[len(names) :][:1] * (len(partials) + 2 - len(names))
        reads = tuple(j for j, n in enumerate(names[2:]) if not n.startswith("_"))
        reads_output = len(names) > 1 and not names[1].startswith("_")
        output |= reads_output
        rules.append((i, p, reads, reads_output))
    return tuple(rules), output


def elementwise(
    name, *, formula, partials, domain, reference, eager=None, result="same", doc="", extra=None
):
    """Declare an elementwise op and return its public function.

    Parameters
    ----------
    name : str
    formula : callable
        ``formula(s, x, ...)``: the scalar definition over the algebra `s` (operators and the names
        in ops/scalar.py).
    partials : tuple of callable or None
        One per input, ``(g, y, *inputs) -> cotangent``; None where not differentiable. Used for vjp
        and jvp alike.
    domain : tuple of str
        One interval per input (names in testing/domains.py).
    reference : callable
        The oracle on NumPy arrays.
    eager : ufunc or str, optional
        A single fast array function; "special.NAME" for SciPy's. Without it the formula runs on
        arrays.
    result : {"same", "float", "bool"}
        Dtype rule; "float" turns integers into the default float dtype first.
    """
    differentiable = any(p is not None for p in partials)
    rules, reads_output = _rules(partials)
    if isinstance(eager, str):
        eager = special_function(eager.removeprefix("special."))
    fn = eager or functools.partial(formula, numpy_algebra)
    if not isinstance(fn, np.ufunc) and result != "bool":
        fn = _keep_dtype(fn)
    op = register(
        Op(
            name,
            "elementwise",
            fn,
            formula=formula,
            partials=partials,
            rules=rules,
            result=result,
            reads_inputs=any(reads for _, _, reads, _ in rules),
            reads_output=reads_output,
            domain=domain,
            reference=reference,
            doc=doc,
            extra=dict(extra or {}),
        )
    )
    op.vjp = _bind_vjp(op) if differentiable else None
    op.jvp = _bind_jvp(op) if differentiable else None
    arity = len(partials)
    if arity == 1:
        call = unary_door(op, fn, prepared, written)
    elif arity == 2:
        call = binary_door(op, fn, general, written)
    else:

        def call(*operands, out=None):
            if len(operands) != arity:
                return _other_count(op, operands)
            return general(op, fn, operands, out)

    call.__name__ = call.__qualname__ = name
    # Where it is declared, so that it pickles by name.
    call.__module__ = formula.__module__
    call.__doc__ = doc
    call.op = op
    op.public = call
    return call


def _other_count(op, operands):
    """Call `op` with more or fewer operands than it has, which few ops give a meaning."""
    meaning = op.extra.get("other_counts", {}).get(len(operands))
    if meaning is not None:
        return meaning(*operands)
    raise ArgumentError(
        op.name,
        expected=f"{len(op.partials)} operands",
        got=str(len(operands)),
        fix=op.doc,
    )


def _keep_dtype(fn):
    """Return `fn` with the float dtype of its inputs, which SciPy and tables may widen.

    Half precision is computed in single: what a formula loses on its way is not seen in the result.
    """

    def call(*arrays):
        for a in arrays:
            dtype = getattr(a, "dtype", None)
            if dtype is not None and dtype.kind == "f":
                if dtype is dtypes.float16:
                    arrays = tuple(b.astype(dtypes.float32) if _is_half(b) else b for b in arrays)
                out = fn(*arrays)
                return out if out.dtype == dtype else out.astype(dtype)
        return fn(*arrays)

    return call


def _is_half(array):
    return getattr(array, "dtype", None) is dtypes.float16


def partial_in_single(partial, g, out, inputs):
    """Return a partial of half precision, computed in single and rounded once."""
    wide = [
        cast(x, dtypes.float32) if isinstance(x, TensorBase) and _is_half(x._data) else x
        for x in inputs
    ]
    out = None if out is None else cast(out, dtypes.float32)
    return cast(partial(cast(g, dtypes.float32), out, *wide), dtypes.float16)


def _bind_vjp(op):
    partials = op.partials

    def vjp(g, out, inputs, attrs, needs):
        grads = []
        for partial, x, need in zip(partials, inputs, needs, strict=True):
            if need and partial is not None:
                if g._data.dtype is dtypes.float16:
                    gx = partial_in_single(partial, g, out, inputs)
                else:
                    gx = partial(g, out, *inputs)
                grads.append(
                    gx if gx._data.shape == x._data.shape else unbroadcast(gx, x._data.shape)
                )
            else:
                grads.append(None)
        return grads

    return vjp


def _bind_jvp(op):
    partials = op.partials

    def jvp(tangents, out, inputs, attrs):
        total = None
        for partial, t in zip(partials, tangents, strict=True):
            if t is not None and partial is not None:
                if t._data.dtype is dtypes.float16:
                    term = partial_in_single(partial, t, out, inputs)
                else:
                    term = partial(t, out, *inputs)
                total = term if total is None else total + term
        if total is not None and total._data.shape != out._data.shape:
            total = total.expand(out._data.shape)
        return total

    return jvp


def linear(name, family, *, run, transpose, samples, reference=None, view=False, doc=""):
    """Declare an op linear in its one input; ``transpose(g, x, **attrs)`` is its adjoint."""

    def vjp(g, out, inputs, attrs, needs):
        return (transpose(g, inputs[0], **attrs),)

    def jvp(tangents, out, inputs, attrs):
        return apply(op, (tangents[0],), attrs)

    op = register(
        Op(
            name,
            family,
            run,
            vjp,
            jvp,
            reads_inputs=False,
            samples=samples,
            reference=reference,
            doc=doc,
        )
    )
    if view:
        op.extra["view"] = True
    return op


def structured(
    name,
    family,
    *,
    run,
    samples,
    vjp=None,
    jvp=None,
    reference=None,
    reads_inputs=True,
    reads_output=False,
    num_outputs=1,
    doc="",
    extra=None,
):
    """Declare an op by stating every rule; see `Op` for the meaning of each."""
    return register(
        Op(
            name,
            family,
            run,
            vjp,
            jvp,
            reads_inputs=reads_inputs,
            reads_output=reads_output,
            samples=samples,
            reference=reference,
            num_outputs=num_outputs,
            doc=doc,
            extra=dict(extra or {}),
        )
    )
