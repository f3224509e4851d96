"""Eager operations on rows: softmax, its logarithm, logsumexp, standardising, and derivatives;
formulas of single elements that take several functions, and steps of optimizers.

Each is the inner loop of a NumPy ufunc, so it has the signature of those: places of the operands,
sizes, steps in bytes from row to row. Rows lie without gaps. A row is worked on `LANES` elements
at a time, whatever vectors the processor has, and its rest under a mask; sums are taken lane by
lane, folded in one order. So results are the same for all widths of vectors, and depend on the
processor by its fused multiply-add in exp and log alone, as compiled programs do.

Sums are in double precision. Along a long row the stretches of `STRETCH` elements are added with
what rounding loses (Neumaier 1974), so their error does not grow with the length.

The processor's flags for floating-point exceptions and its mode are what they were before: nan is
a value here and nothing to warn of.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from probtorch.compiler.lang.function import KernelFunction
from probtorch.compiler.lang.llvm import LlvmPrinter
from probtorch.compiler.lang.nodes import Value
from probtorch.compiler.lang.routines.elementary import FUNCTIONS, log
from probtorch.compiler.lang.routines.formats import F32, F64
from probtorch.compiler.lang.types import BYTES
from probtorch.compiler.native import host
from probtorch.compiler.native.ufuncs import ELEMENTS, ROWS, STEPS
from probtorch.compiler.render.runtime import cells, channels, firsts, running
from probtorch.compiler.render.runtime.elements import (
    FLOATS,
    INLINED,
    exact,
    helper,
    mode_kept,
    ufunc_loop,
    write_elements,
)
from probtorch.compiler.render.runtime.passes import LANES, WIDE, Made, Row
from probtorch.compiler.render.writer import LibraryModule

__all__ = ["names", "signature", "symbols", "write"]


def names() -> tuple[str, ...]:
    """Return the names of the modules."""
    return tuple(ROWS)


def symbols(name: str, p: str) -> tuple[str, ...]:
    """Return the functions of a module, for rows of doubles ("d") or floats ("f")."""
    return tuple([f"pt_rows_{row}_{p}" for row in ROWS[name]])


def signature(name: str, p: str) -> dict[str, tuple[str, list[str]]]:
    """Return the types of the functions of a module."""
    return {symbol: ("void", ["ptr"] * 4) for symbol in symbols(name, p)}


def write(text: LibraryModule, name: str, p: str) -> None:
    """Write the functions of a module, and what they call."""
    if name in ELEMENTS:
        write_elements(text, name, p)
        return
    if name in STEPS:
        _write_step(text, name, p)
        return
    ty = FLOATS[p]
    _write_elementary(text, ty, name in ("lstm", "gru"))
    for row, (layout, types) in ROWS[name].items():
        inner, given = f"row_{row}", types.partition("->")[0]
        count, dims = len(types.replace("->", "")), _core_dims(layout)
        w = helper(text, inner, count, len(dims))
        places, sizes = w.arguments[:count], dict(zip(dims, w.arguments[count:], strict=True))
        values = [
            place if of not in ("", "1") else w.load(place, 0, "i64" if letter == "l" else ty)
            for place, of, letter in zip(places, _operands(layout), given, strict=False)
        ]
        rest = [size for letter, size in sizes.items() if letter != "n"]
        _BODIES[row](Row(w, ty, sizes["n"]), *values, *places[len(given) :], *rest)
        w.finish()
        _write_loop(text, f"pt_rows_{row}_{p}", inner, count, len(dims))


def _write_step(text: LibraryModule, name: str, p: str) -> None:
    """A step of an optimizer: `_STEPS` says what becomes of the elements of some arrays."""
    ty, (count, more) = FLOATS[p], STEPS[name]
    given = count + 1 + more
    kind = f"<{LANES} x {ty}>"
    text.declare(f"declare {kind} @llvm.sqrt.v{LANES}f{8 * BYTES[ty]}({kind})")
    # Products and sums are rounded one by one, as NumPy's are: no flags.
    inner = helper(text, "step", given + count)
    *places, n = inner.arguments
    row = Row(inner, ty, n)
    numbers = [row.all(inner.load(place, 0, ty)) for place in places[count + 1 : given]]
    row.written(places[: count + 1], lambda *v: _STEPS[name](row, *v, *numbers), places[given:])
    inner.finish()
    loop, at, step, sizes = ufunc_loop(text, f"pt_rows_{name}_{p}", given + count)
    n = loop.load(sizes, 0, "i64")
    close = step[0] == BYTES[ty]
    for k, by in enumerate(step[1:], 1):
        close = loop.logical_and(close, by == (0 if count < k < given else BYTES[ty]))
    one_each = loop.value(1, "i64")
    together, apart = loop.branch(close)
    with mode_kept(loop):
        with together:
            loop.call("step", "void", *at, n)
        with apart, loop.loop(0, n) as i:
            one = [loop.offset(a, i * by, "i8") for a, by in zip(at, step, strict=True)]
            loop.call("step", "void", *one, one_each)
    loop.finish()


def _operands(layout: str) -> list[str]:
    """The core dims of each operand, as "m,n"."""
    return layout.partition("->")[0][1:-1].split("),(")


def _core_dims(layout: str) -> list[str]:
    """The letters of core dims in the order in which NumPy gives their sizes."""
    return list(dict.fromkeys(letter for letter in layout if letter in "mngvck"))


def _write_loop(text: LibraryModule, name: str, inner: str, count: int, dims: int) -> None:
    """The inner loop of a ufunc: all rows, one after the other."""
    w, at, step, sizes = ufunc_loop(text, name, count)
    size = [w.load(sizes, k + 1, "i64") for k in range(dims)]
    with mode_kept(w), w.loop(0, w.load(sizes, 0, "i64")) as k:
        rows = [w.offset(a, k * s, "i8") for a, s in zip(at, step, strict=True)]
        w.call(inner, "void", *rows, *size)
    w.finish()


def _write_elementary(text: LibraryModule, ty: str, gates: bool) -> None:
    """Functions of vectors, those of gates too, and the logarithm of a number."""
    here, f = host.target(), F64 if ty == "double" else F32
    wide = LlvmPrinter(LANES, here.has_fma)
    parts = exact(f)
    one = LlvmPrinter(1, here.has_fma)
    for name, printer, of, arity, formula in (
        ("exp", parts, f, 1, lambda w, x: FUNCTIONS["exp"](w, f, x)),
        # exp(x - z) with its limits: 1 where both are inf, 0 where x is -inf.
        ("share", parts, f, 2, _share(f)),
        ("quotient", wide, f, 3, _quotient),
        ("log", one, F64, 1, lambda w, x: log(w, F64, x)),
        *(("sigmoid", parts, f, 1, _sigmoid(f)),) * gates,
        *(("tanh", parts, f, 1, lambda w, x: FUNCTIONS["tanh"](w, f, x)),) * gates,
    ):
        kind = of.float_type
        w = KernelFunction(
            text,
            printer,
            name,
            kind,
            [kind] * arity,
            linkage="internal",
            attributes=INLINED,
            flags="",
        )
        w.default = kind
        w.finish(formula(w, *w.arguments))


def _quotient(w, x, inverse, divisor):
    """Return the quotient: a product and what it lacks, rounded as the quotient is, in a third of
    the time; where there is a fused multiply-add.
    """
    if not w.printer.fuses:
        return x / divisor
    near = x * inverse
    return w.fma(w.fma(-near, divisor, x), inverse, near)


def _sigmoid(f):
    def sigmoid(w, x):
        e = FUNCTIONS["exp"](w, f, -abs(x))
        return w.where(x >= 0.0, 1.0, e) / (1.0 + e)

    return sigmoid


def _share(f):
    def share(w, x, z):
        same = x == z
        e = FUNCTIONS["exp"](w, f, w.where(same, 0.0, x - w.where(same, 0.0, z)))
        return w.where(x == -math.inf, 0.0, e)

    return share


# ------------------------------------------------------------------------------- shares, logarithms


def _softmax(r: Row, x: Value, y: Value) -> None:
    top = r.all(r.largest(x))

    def shares(v: Value) -> Made:
        e = r.exp(v - top)
        return [e], [(e, y)]

    (total,) = r.sums([x], shares, fill=-math.inf)
    r.mapped([y], r.divided_by(total), y)


def _softmax_slope(r: Row, g: Value, y: Value, out: Value) -> None:
    """Write y (g - sum(y g))."""
    (along,) = r.sums([g, y], lambda a, b: ([r.wide(a) * r.wide(b)], []))
    moved = r.all(along)
    r.mapped([g, y], lambda a, b: (a - moved) * b, out)


def _log_total(r: Row, x: Value, top: Value) -> Value:
    """log(sum(exp(x - top)))."""
    moved = r.all(top)
    (total,) = r.sums([x], lambda v: ([r.exp(v - moved)], []), fill=-math.inf)
    return r.log(total)


def _log_softmax(r: Row, x: Value, y: Value) -> None:
    top = r.largest(x)
    moved, total = r.all(top), r.all(_log_total(r, x, top))
    r.mapped([x], lambda v: (v - moved) - total, y)


def _log_softmax_slope(r: Row, g: Value, y: Value, out: Value) -> None:
    """Write g - exp(y) sum(g)."""
    (total,) = r.sums([g], lambda a: ([a], []))
    moved = r.all(total)
    r.mapped([g, y], lambda a, b: a - r.exp(b) * moved, out)


def _class_log_probs(r: Row, x: Value, index: Value, at_class: Value, y: Value) -> None:
    _log_softmax(r, x, y)
    w = r.w
    # A class that is none would be memory of somebody else's.
    known = w.logical_and(index >= 0, index < r.n)
    value = w.load(y, w.where(known, index, 0), r.ty)
    w.store(at_class, 0, w.where(known, value, math.nan), r.ty)


def _class_slope(r: Row, y: Value, index: Value, g: Value, out: Value) -> None:
    """Write (1 at the class - exp(y)) g."""
    w, moved = r.w, r.all(-g)
    r.mapped([y], lambda v: r.exp(v) * moved, out)
    with w.when(w.logical_and(index >= 0, index < r.n)):
        w.store(out, index, w.load(out, index, r.ty) + g, r.ty)


def _logsumexp(r: Row, x: Value, out: Value) -> None:
    w, top = r.w, r.largest(x)
    top = w.where(abs(top) < math.inf, top, 0.0)
    total = _log_total(r, x, top) + w.convert(top, "double")
    w.store(out, 0, w.convert(total, r.ty), r.ty)


def _logsumexp_slope(r: Row, x: Value, z: Value, g: Value, out: Value) -> None:
    """Write exp(x - z) g."""
    z, g = r.all(z), r.all(g)
    r.mapped([x], lambda v: r.share(v, z) * g, out)


# ------------------------------------------------------------------------------------ standardising


def _moments(r: Row, x: Value) -> tuple[Value, Value]:
    """Return mean and variance of a row."""
    w = r.w
    if r.ty == "float":
        # In double precision one pass will do: beside any of its elements a row's mean square is at
        # most n times its variance, so that no more than log2(n) bits cancel of 29 to spare.
        first = w.load(x, 0, r.ty)
        shift = w.convert(w.where(abs(first) < math.inf, first, 0.0), "double")
        moved = r.all(shift, WIDE)

        def powers(v: Value) -> Made:
            d = r.wide(v) - moved
            return [d, d * d], []

        mean, square = (total / r.count for total in r.sums([x], powers, count=2))
        return shift + mean, w.maximum(square - mean * mean, 0.0)
    (total,) = r.sums([x], lambda v: ([v], []))
    centre = total / r.count
    moved = r.all(centre, WIDE)

    def square_of(v: Value) -> Made:
        d = r.wide(v) - moved
        return [d * d], []

    (squares,) = r.sums([x], square_of)
    return centre, squares / r.count


def _standardised(r: Row, centre: Value, variance: Value, eps: Value) -> Callable[[Value], Value]:
    """Return what standardises elements, rounded to the precision of the row."""
    w, moved = r.w, r.all(centre, WIDE)
    scale = w.sqrt(variance + w.convert(eps, "double"))
    if r.ty == "double":
        divided = r.divided_by(scale)
        return lambda v: divided(v - moved)
    factor = r.all(1.0 / scale, WIDE)
    return lambda v: r.narrow((r.wide(v) - moved) * factor)


def _standardise(r: Row, x: Value, eps: Value, y: Value, mean: Value, spread: Value) -> None:
    w = r.w
    centre, variance = _moments(r, x)
    w.store(mean, 0, w.convert(centre, r.ty), r.ty)
    w.store(spread, 0, w.convert(variance, r.ty), r.ty)
    r.mapped([x], _standardised(r, centre, variance, eps), y)


def _standardise_slope(r: Row, g: Value, y: Value, spread: Value, eps: Value, out: Value) -> None:
    """(g - mean(g) - y mean(g y)) / sqrt(spread + eps)."""
    w = r.w
    total, along = r.sums([g, y], lambda a, b: ([a, r.wide(a) * r.wide(b)], []), count=2)
    moved, along = (r.all(x / r.count, WIDE) for x in (total, along))
    scale = w.sqrt(w.convert(spread, "double") + w.convert(eps, "double"))
    if r.ty == "double":
        divided = r.divided_by(scale)
        r.mapped([g, y], lambda a, b: divided(a - b * along - moved), out)
    else:
        factor = r.all(1.0 / scale, WIDE)
        r.mapped([g, y], lambda a, b: (r.wide(a) - r.wide(b) * along - moved) * factor, out)


def _layer_norm(r: Row, x: Value, weight: Value, bias: Value, eps: Value, out: Value) -> None:
    standardised = _standardised(r, *_moments(r, x), eps)
    r.mapped([x, weight, bias], lambda v, a, b: standardised(v) * a + b, out)


def _layer_norm_slope(
    r: Row,
    g: Value,
    x: Value,
    weight: Value,
    eps: Value,
    out: Value,
    of_weight: Value,
    of_bias: Value,
    rows: Value,
) -> None:
    """Write derivatives in x, and sums over rows: those in weight and bias."""
    w = r.w
    for total in (of_weight, of_bias):
        with w.loop(0, r.n) as i:
            w.store(total, i, 0.0, "double")
    with w.loop(0, rows) as k:
        g_row, x_row, out_row = (w.offset(a, k * r.n, r.ty) for a in (g, x, out))
        centre, variance = _moments(r, x_row)
        inverse = 1.0 / w.sqrt(variance + w.convert(eps, "double"))
        _slopes_of_row(r, (g_row, x_row, weight), centre, inverse, out_row, of_weight, of_bias)


def _slopes_of_row(r, inputs, centre, inverse, out, of_weight, of_bias):
    moved, factor = r.all(centre, WIDE), r.all(inverse, WIDE)

    def parts(a, v, weight):
        y = (r.wide(v) - moved) * factor
        return r.wide(a), y, r.wide(a) * r.wide(weight)

    def terms(*values):
        _, y, slope = parts(*values)
        return [slope, slope * y], []

    total, along = (r.all(x / r.count, WIDE) for x in r.sums(inputs, terms, count=2))

    def slopes(*values):
        a, y, slope = parts(*values)
        return (slope - y * along - total) * factor, [a * y, a]

    r.mapped_and_added(inputs, slopes, out, [of_weight, of_bias])


_BODIES: dict[str, Callable[..., None]] = {
    "softmax": _softmax,
    "softmax_slope": _softmax_slope,
    "log_softmax": _log_softmax,
    "log_softmax_slope": _log_softmax_slope,
    "class_log_probs": _class_log_probs,
    "class_slope": _class_slope,
    "logsumexp": _logsumexp,
    "logsumexp_slope": _logsumexp_slope,
    "standardise": _standardise,
    "standardise_slope": _standardise_slope,
    "layer_norm": _layer_norm,
    "layer_norm_slope": _layer_norm_slope,
    **cells.BODIES,
    **channels.BODIES,
    **firsts.BODIES,
    **running.BODIES,
}


# ------------------------------------------------------------------------------ steps of optimizers
# What `rule` of the optimizers says (optim/sgd.py, adam.py, rmsprop.py), in the same order.


def _sgd_step(r, p, g, lr):
    return [p - g * lr]


def _momentum_step(r, p, b, g, lr, momentum):
    b = b * momentum + g
    return [p - b * lr, b]


def _adam_step(r, p, m, v, g, size, correction, kept, share, b2, share2, eps):
    p = p * kept
    m = m + (g - m) * share
    v = v * b2 + g * share2 * g
    root = r.sqrt(v) * correction + eps
    return [p - m / root * size, m, v]


def _rmsprop_step(r, p, v, g, alpha, share, eps, lr):
    v = v * alpha + g * share * g
    return [p - g / (r.sqrt(v) + eps) * lr, v]


def _rmsprop_momentum_step(r, p, v, total, g, alpha, share, eps, momentum, lr):
    v = v * alpha + g * share * g
    total = total * momentum + g / (r.sqrt(v) + eps)
    return [p - total * lr, v, total]


def _adagrad_step(r, p, total, g, eps, lr):
    total = total + g * g
    return [p - g / (r.sqrt(total) + eps) * lr, total]


def _adadelta_step(r, p, v, u, g, rho, share, eps, lr):
    v = v * rho + g * share * g
    d = r.sqrt(u + eps) / r.sqrt(v + eps) * g
    return [p - d * lr, v, u * rho + d * share * d]


_STEPS: dict[str, Callable[..., list[Value]]] = {
    "rmsprop_step": _rmsprop_step,
    "rmsprop_momentum_step": _rmsprop_momentum_step,
    "adagrad_step": _adagrad_step,
    "adadelta_step": _adadelta_step,
    "sgd_step": _sgd_step,
    "momentum_step": _momentum_step,
    "adam_step": _adam_step,
}
