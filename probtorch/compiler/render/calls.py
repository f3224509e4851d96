"""Library calls of the driver, and small functions that a program has for itself.

Matrices are row-major here and column-major in BLAS and LAPACK, which therefore see transposes: a
row-major lower factor is their upper one, and C = A B becomes C' = B' A'.
"""

from probtorch.compiler.lang.nodes import Cast
from probtorch.compiler.lang.routines.integers import power
from probtorch.compiler.render import runtime
from probtorch.compiler.render.runtime import products

__all__ = ["CALLS", "write_helper"]


def gemm(driver, call):
    """C = A B, by ours or by BLAS."""
    at, c = call.attrs, call.buffers[2]
    p, ty = ("d", "double") if str(c.dtype) == "float64" else ("s", "float")
    left, right = (
        driver.offset(driver.pointer(b), n * b.dtype.itemsize, "i8") if n else driver.pointer(b)
        for b, n in zip(call.buffers[:2], at["offsets"], strict=True)
    )
    into, (turned_a, turned_b), (lda, ldb) = driver.pointer(c), at["transposed"], at["ld"]
    m, n, k = at["m"], at["n"], at["k"]
    if products.is_suitable(m, n, k, p, turned_b):
        symbol = f"pt_product_{p}"
        driver.module.declare(runtime.declaration(symbol))
        down_along = (1, lda) if turned_a else (lda, 1)
        numbers = map(driver.whole, (m, n, k, *down_along, ldb, int(turned_b)))
        driver.call(symbol, "void", left, right, into, *numbers)
        return
    flags = ("T" if turned else "N" for turned in (turned_b, turned_a))
    one, zero = driver.variable(ty, 1.0), driver.variable(ty, 0.0)
    # By columns c' = b' a'.
    driver.fortran(f"pt_{p}gemm", *flags, n, m, k, one, right, ldb, left, lda, zero, into, n)


def density(driver, call):
    """A density by its address: ``double f(const double *q, double *grad, void *context)``, where
    `grad` is null if nobody reads the gradient.
    """
    q, function, context, logp, *grad = call.buffers
    into = driver.pointer(grad[0]) if grad else driver.value(0, "ptr")
    f, c = (driver.put(Cast(driver.scalar(b), "ptr", bits=True)) for b in (function, context))
    v = driver.call(f, "double", driver.pointer(q), into, c)
    driver.store_at(v, driver.pointer(logp))


def routine(driver, call):
    """A function of render/runtime; its arguments are buffers and whole numbers. One that can fail
    returns whether it did: then eager execution would raise an error.
    """
    symbol = call.attrs["symbol"]
    driver.module.declare(runtime.declaration(symbol))
    given = call.attrs["arguments"]
    args = [driver.whole(x) if isinstance(x, int) else driver.pointer(x) for x in given]
    failed = driver.call(symbol, runtime.types_of(symbol)[0], *args)
    if call.attrs["fails"]:
        driver.stop_if(failed, -1)


CALLS = {"gemm": gemm, "density": density, "routine": routine}


def write_helper(module, name):
    """Write a small function into the module that asks for it."""
    if name == "pt_power":
        attributes = "nounwind willreturn memory(none)"
        w = module.function(name, "i64", ["i64"] * 2, linkage="internal", attributes=attributes)
        w.finish(power(w, *w.arguments))
        return
    ty = name.removeprefix("pt_fill_")
    w = module.function(name, "void", ["ptr", "i64", ty], linkage="internal")
    place, count, x = w.arguments
    with w.loop(0, count) as i:
        w.store(place, i, x, ty)
    w.finish()
