"""Families: how an op is declared. Each fills the `Op` record from as little as its kin needs.

- `elementwise`: a scalar formula and one partial per input; vjp, jvp, broadcasting and dtype rules
  follow.
- `linear`: a run and its transpose; the tangent rule is the op itself. Movement and summing ops are
  of this kind.
- `structured`: everything stated, side by side (cholesky, matmul, prod ...).

What a derivative reads is declared by `saves`, as names of inputs and "out": that is what the tape
guards against later in-place changes. A partial of an elementwise op is called with the cotangent
and what its entry of `saves` names, in that order, and cannot see anything else; so an entry that
says nothing needs not be written. For the others, whose rules also look at shapes, `saves` must be
stated, and the laws in tests/contracts/test_saves.py hold it to what the rule does.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeGuard

import numpy as np

from probtorch.core import dtype as dtypes
from probtorch.core.casting import cast
from probtorch.core.dispatch import apply, binary_door, unary_door
from probtorch.core.op import REGISTRY, Attrs, Op, register
from probtorch.core.operands import general, of_one_dtype, prepared, written
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.errors import ArgumentError, NotDifferentiableError
from probtorch.ops.accumulate import add_up
from probtorch.ops.scalar import numpy_algebra, special_function

if TYPE_CHECKING:
    from probtorch.core.native import NativeFunction, Routine
    from probtorch.core.op import Operand, Output


__all__ = [
    "Binary",
    "Power",
    "Ternary",
    "Unary",
    "elementwise",
    "linear",
    "structured",
    "unbroadcast",
    "unbroadcast_array",
]


def unbroadcast(g: TensorBase, shape: tuple[int, ...]) -> TensorBase:
    """Sum cotangent `g` over the dims that broadcasting added to `shape`."""
    have = g.array.shape
    if have == shape:
        return g
    extra = len(have) - len(shape)
    dims = tuple(i for i, s in enumerate(have) if i < extra or (shape[i - extra] == 1 and s != 1))
    # By their names: these ops are made by the families of this file.
    if dims:
        g = apply(REGISTRY["sum"], (g,), {"dims": dims, "keepdim": False})
    return g if g.array.shape == shape else apply(REGISTRY["reshape"], (g,), {"shape": shape})


def unbroadcast_array(g: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """`unbroadcast` of an array: the same sums."""
    have = g.shape
    extra = len(have) - len(shape)
    dims = tuple([i for i, s in enumerate(have) if i < extra or (shape[i - extra] == 1 and s != 1)])
    if dims:
        g = add_up(g, dims, False)
    return g if g.shape == shape else g.reshape(shape)


def _names(fn: Callable[..., object], skip: int = 0) -> tuple[str, ...]:
    """Return the names of the positional parameters of `fn`, a star before one for all others."""
    if _is_plain(fn):  # `inspect` would take a tenth of the time to import the package
        code = fn.__code__
        named = list(code.co_varnames[: code.co_argcount])
        if code.co_flags & inspect.CO_VARARGS:
            named.append("*" + code.co_varnames[code.co_argcount + code.co_kwonlyargcount])
        return tuple(named[skip:])
    named = []
    for p in list(inspect.signature(fn).parameters.values())[skip:]:
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL):
            named.append("*" * (p.kind is p.VAR_POSITIONAL) + p.name)
    return tuple(named)


def _is_plain(fn: object) -> TypeGuard[types.FunctionType]:
    return type(fn) is types.FunctionType and not hasattr(fn, "__wrapped__")


def _takes(fn: Callable[..., object], count: int) -> bool:
    """Whether `fn` can be called with so many arguments."""
    if _is_plain(fn):
        least = fn.__code__.co_argcount - len(fn.__defaults__ or ())
        rest = fn.__code__.co_flags & inspect.CO_VARARGS
        return least <= count and bool(rest or count <= fn.__code__.co_argcount)
    try:
        inspect.signature(fn).bind(*[None] * count)
    except TypeError:
        return False
    return True


def _rule(
    name: str, i: int, partial: Partial, saves: str, inputs: tuple[str, ...]
) -> tuple[int, Rule, tuple[int, ...], bool]:
    """Return the entry of `Op.rules` for the partial in input `i`, given what it reads."""
    reads, at = saves.split(), _places(saves, inputs)
    if not _takes(partial, 1 + len(reads)):
        raise ArgumentError(
            f"op {name!r}",
            expected=f"a partial in {inputs[i]} of {', '.join(['the cotangent', *reads])}",
            got=f"one of the parameters {inspect.signature(partial)}",
            fix="declare in saves= what it reads, and take that in this order",
        )
    return i, _given(partial, at), tuple(j for j in at if j >= 0), -1 in at


def _refusing(name: str, argument: str, instead: str) -> Rule:
    """Return the rule of an input in which there is a slope that is not known here."""

    def rule(g: TensorBase, out: TensorBase, inputs: Sequence[Operand]) -> TensorBase:
        raise NotDifferentiableError(
            name,
            expected=f"a constant {argument}, as no derivative is known in it",
            got="one that requires grad",
            fix=instead,
        )

    return rule


def _places(saves: str, inputs: tuple[str, ...]) -> list[int]:
    """Return the positions of what a partial reads; -1 is the output."""
    return [inputs.index(r) if r in inputs else -1 for r in saves.split()]


def _given(partial: Partial, at: list[int]) -> Rule:
    """Return `partial` as a function of `(g, out, inputs)`, given those at `at`; -1 is `out`."""
    if not at:
        return lambda g, out, inputs: partial(g)
    if at == [-1]:
        return lambda g, out, inputs: partial(g, out)
    if len(at) == 1:
        (j,) = at
        return lambda g, out, inputs: partial(g, inputs[j])
    return lambda g, out, inputs: partial(g, *[out if j < 0 else inputs[j] for j in at])


def _plain(partial: Partial, at: list[int]) -> Callable[..., np.ndarray] | None:
    """Return a partial that has operators and numbers alone as a function of the cotangent's array,
    the output's, and the inputs; None for one that calls anything.

    Operators mean the same for arrays, in the same bits, and make no tensors on their way.
    """
    if not _is_plain(partial) or partial.__code__.co_names or partial.__code__.co_freevars:
        return None
    if not at:
        return lambda g, out, inputs: partial(g)
    if at == [-1]:
        return lambda g, out, inputs: partial(g, out)
    if len(at) == 1:
        (j,) = at
        return lambda g, out, inputs: partial(g, _array_of(inputs[j]))
    return lambda g, out, inputs: partial(g, *[out if j < 0 else _array_of(inputs[j]) for j in at])


def _array_of(x: Operand) -> np.ndarray | complex:
    return x.array if isinstance(x, TensorBase) else x


# A partial is written by the author of an op; a rule is that as a function of `(g, out, inputs)`.
Partial: TypeAlias = Callable[..., TensorBase]
Rule: TypeAlias = Callable[..., TensorBase]
Samples: TypeAlias = Callable[[np.random.Generator], Iterable[tuple[tuple[Any, ...], Attrs]]]


class Unary(Protocol):
    """The public function of an elementwise op of one operand."""

    op: Op

    def __call__(self, input: TensorLike, *, out: TensorBase | None = None) -> TensorBase: ...


class Binary(Protocol):
    """The public function of an elementwise op of two operands."""

    op: Op

    def __call__(
        self, input: TensorLike, other: TensorLike, *, out: TensorBase | None = None
    ) -> TensorBase: ...


class Power(Protocol):
    """The public function of a power: its second operand has a name of its own in calls."""

    op: Op

    def __call__(
        self, input: TensorLike, exponent: TensorLike, *, out: TensorBase | None = None
    ) -> TensorBase: ...


class Ternary(Protocol):
    """The public function of an elementwise op of three operands, given by position."""

    op: Op

    def __call__(
        self, x: TensorLike, y: TensorLike, z: TensorLike, /, *, out: TensorBase | None = None
    ) -> TensorBase: ...


def elementwise(
    name: str,
    *,
    formula: Callable[..., Any],
    partials: tuple[Callable[..., TensorBase] | None, ...],
    domain: tuple[str, ...],
    reference: Callable[..., object],
    saves: tuple[str, ...] | None = None,
    eager: Callable[..., np.ndarray] | str | None = None,
    result: str = "same",
    complex: bool | Callable[..., TensorBase] = False,
    doc: str = "",
    extra: Mapping[str, object] | None = None,
    underivable: Mapping[int, str] | None = None,
) -> Any:
    """Declare an elementwise op and return its public function.

    Parameters
    ----------
    name : str
    formula : callable
        ``formula(s, x, ...)``: the scalar definition over the algebra `s` (operators and the names
        in ops/scalar.py).
    partials : tuple of callable or None
        One per input, ``(g, *saved) -> cotangent``, written in Tensor ops; None where not
        differentiable. Used for vjp and jvp alike.
    saves : tuple of str, optional
        For each partial what it is given beside the cotangent: names of inputs, which are those of
        the parameters of `formula`, and "out", as in ``("y", "out x")``. Without it none is given
        anything else.
    domain : tuple of str
        One interval per input (names in testing/domains.py).
    reference : callable
        The oracle on NumPy arrays.
    eager : ufunc or str, optional
        A single fast array function; "special.NAME" for SciPy's. Without it the formula runs on
        arrays.
    result : {"same", "float", "bool"}
        Dtype rule; "float" turns integers into the default float dtype first.
    complex : bool or callable
        Whether formula and partials hold for complex numbers, or what is computed of those instead.
    underivable : mapping of int to str
        Inputs without a partial in which there is a slope all the same, and what to do about it:
        a gradient in them is refused, not left out.
    """
    underivable = {} if underivable is None else underivable
    differentiable = any(p is not None for p in partials)
    inputs = _names(formula, 1)
    saves = ("",) * len(partials) if saves is None else saves
    rules = [
        _rule(name, i, partial, reads, inputs)
        for i, (partial, reads) in enumerate(zip(partials, saves, strict=True))
        if partial is not None
    ]
    rules += [
        (i, _refusing(name, inputs[i], instead), (), False) for i, instead in underivable.items()
    ]
    # What reads more takes more memory, and comes before there are other gradients beside it.
    rules.sort(key=lambda rule: -len(rule[2]) - rule[3])
    plain = {
        i: short
        for i, partial in enumerate(partials)
        if partial is not None and (short := _plain(partial, _places(saves[i], inputs)))
    }
    fn = special_function(eager.removeprefix("special.")) if isinstance(eager, str) else eager
    fn = fn or functools.partial(formula, numpy_algebra)
    if not isinstance(fn, np.ufunc) and result != "bool":
        fn = _keep_dtype(fn)
    op = register(
        Op(
            name,
            "elementwise",
            fn,
            formula=formula,
            partials=partials,
            rules=tuple(rules),
            plain=plain,
            result=result,
            inputs=inputs,
            saves=tuple(dict.fromkeys(" ".join(saves).split())),
            core=",".join(["()"] * len(partials)) + "->()",
            domain=domain,
            reference=reference,
            complex=complex,
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
        quickly = not (extra or {}).get("integers_only")

        def call(*operands: Operand, out: TensorBase | None = None, **named: Operand) -> Output:
            if named:
                operands = _by_name(op, operands, named)
            if len(operands) != arity:
                return _other_count(op, operands)
            if out is None and quickly and (quick := of_one_dtype(op, fn, operands)) is not None:
                return quick
            return general(op, fn, operands, out)

    call.__name__ = call.__qualname__ = name
    # Where it is declared, so that it pickles by name.
    call.__module__ = formula.__module__
    call.__doc__ = doc
    call.op = op
    op.public = call
    return call


def _by_name(
    op: Op, operands: tuple[Operand, ...], named: dict[str, Operand]
) -> tuple[Operand, ...]:
    """Add operands given by name, in the order that the op declares."""
    rest = op.extra.get("names", ())[len(operands) :]
    if set(named) != set(rest):
        raise ArgumentError(
            op.name,
            expected=f"operands by position, or by the names {', '.join(rest) or '(none)'}",
            got=", ".join(named),
            fix="give each once",
        )
    return (*operands, *(named[name] for name in rest))


def _other_count(op: Op, operands: tuple[Operand, ...]) -> Output:
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


def _keep_dtype(fn: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Return `fn` with the float dtype of its inputs, which SciPy and tables may widen.

    Half precision is computed in single: what a formula loses on its way is not seen in the result.
    """

    def call(*arrays: np.ndarray) -> np.ndarray:
        for a in arrays:
            dtype = getattr(a, "dtype", None)
            if dtype is not None and dtype.kind == "f":
                if dtype is dtypes.float16:
                    arrays = tuple(b.astype(dtypes.float32) if _is_half(b) else b for b in arrays)
                out = fn(*arrays)
                return out if out.dtype == dtype else out.astype(dtype)
        return fn(*arrays)

    return call


def _is_half(array: float | np.ndarray) -> bool:
    return getattr(array, "dtype", None) is dtypes.float16


def partial_in_single(
    partial: Rule, g: TensorBase, out: TensorBase | None, inputs: Sequence[Operand]
) -> TensorBase:
    """Return a partial of half precision, computed in single and rounded once."""
    wide = [
        cast(x, dtypes.float32) if isinstance(x, TensorBase) and _is_half(x.array) else x
        for x in inputs
    ]
    out = None if out is None else cast(out, dtypes.float32)
    return cast(partial(cast(g, dtypes.float32), out, wide), dtypes.float16)


def _bind_vjp(op: Op) -> Callable[..., Sequence[TensorBase | None]]:
    def vjp(
        g: TensorBase,
        out: TensorBase,
        inputs: tuple[TensorBase, ...],
        attrs: Attrs,
        needs: Sequence[bool],
    ) -> list[TensorBase | None]:
        grads: list[TensorBase | None] = [None] * len(inputs)
        for i, partial, _, _ in op.rules:
            if needs[i]:
                if g.array.dtype is dtypes.float16:
                    gx = partial_in_single(partial, g, out, inputs)
                else:
                    gx = partial(g, out, inputs)
                grads[i] = unbroadcast(gx, inputs[i].array.shape)
        return grads

    return vjp


def _bind_jvp(op: Op) -> Callable[..., Output]:
    def jvp(
        tangents: Sequence[TensorBase | None],
        out: TensorBase,
        inputs: tuple[TensorBase, ...],
        attrs: Attrs,
    ) -> Any:
        total = None
        for i, partial, _, _ in op.rules:
            t = tangents[i]
            if t is not None:
                if t.array.dtype is dtypes.float16:
                    term = partial_in_single(partial, t, out, inputs)
                else:
                    term = partial(t, out, inputs)
                total = term if total is None else total + term
        if total is not None and total.array.shape != out.array.shape:
            total = total.expand(out.array.shape)
        return total

    return jvp


def linear(
    name: str,
    family: str,
    *,
    run: Callable[..., np.ndarray | tuple[np.ndarray, ...]],
    transpose: Callable[..., TensorBase],
    samples: Samples,
    core: str | None = None,
    native: Routine | NativeFunction | str | None = None,
    reference: Callable[..., object] | None = None,
    view: bool = False,
    complex: bool = True,
    doc: str = "",
) -> Op:
    """Declare an op linear in its one input; ``transpose(g, x, **attrs)`` is its adjoint.

    `x` is there for its shape: the derivative of a linear op reads nothing. The adjoint is that of
    the product without conjugation, so one that only moves and adds elements holds for complex
    numbers as it stands.
    """

    def vjp(
        g: TensorBase,
        out: TensorBase,
        inputs: tuple[TensorBase, ...],
        attrs: Attrs,
        needs: Sequence[bool],
    ) -> tuple[TensorBase, ...]:
        return (transpose(g, inputs[0], **attrs),)

    def jvp(
        tangents: Sequence[TensorBase],
        out: TensorBase,
        inputs: tuple[TensorBase, ...],
        attrs: Attrs,
    ) -> Output:
        return apply(op, (tangents[0],), attrs)

    op = structured(
        name,
        family,
        run=run,
        samples=samples,
        vjp=vjp,
        jvp=jvp,
        reference=reference,
        saves="",
        core=core,
        native=native,
        complex=complex,
        doc=doc,
        extra={"view": True} if view else None,
    )
    return op


def structured(
    name: str,
    family: str,
    *,
    run: Callable[..., np.ndarray | tuple[np.ndarray, ...]],
    samples: Samples,
    vjp: Callable[..., Sequence[TensorBase | None]] | None = None,
    jvp: Callable[..., Output] | None = None,
    reference: Callable[..., object] | None = None,
    saves: str | None = None,
    core: str | None = None,
    native: Routine | NativeFunction | str | None = None,
    num_outputs: int = 1,
    complex: bool = False,
    doc: str = "",
    extra: Mapping[str, object] | None = None,
) -> Op:
    """Declare an op by stating every rule; see `Op` for the meaning of each.

    `saves` is what `vjp` reads the elements of, as in ``"a out"``: names of parameters of `run`
    that are inputs, and "out". An op with a `vjp` must state it, be it as ``""``.
    """
    return register(
        Op(
            name,
            family,
            run,
            vjp,
            jvp,
            inputs=_names(run),
            saves=None if saves is None else tuple(saves.split()),
            core=core,
            native=native,
            samples=samples,
            reference=reference,
            num_outputs=num_outputs,
            complex=complex,
            doc=doc,
            extra=dict(extra or {}),
        )
    )
