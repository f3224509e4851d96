"""Library calls and small helper functions of the driver, as IR text.

Matrices are row-major here and column-major in BLAS and LAPACK, which therefore see transposes: a
row-major lower factor is their upper one, and C = A B becomes C' = B' A'.
"""

from probtorch.compiler.lang.llvm import LlvmModule
from probtorch.compiler.lang.routines.integers import power
from probtorch.compiler.native import library
from probtorch.compiler.render import runtime
from probtorch.compiler.render.runtime import products

__all__ = ["HELPERS", "helper_text"]


def _prefix(buffer):
    return "d" if str(buffer.dtype) == "float64" else "s"


def _scalar(driver, ty, value):
    """Return a pointer to a fresh stack cell that holds `value`."""
    name = driver.s.fresh("c")
    driver.entry.append(f"  {name} = alloca {ty}")
    driver.s.lines.append(f"  store {ty} {value}, ptr {name}")
    return name


def _shifted(driver, buffer, offset):
    pointer = driver.pointer(buffer)
    if not offset:
        return pointer
    return driver.s.emit(
        f"getelementptr i8, ptr {pointer}, i64 {offset * buffer.dtype.itemsize}", "ptr"
    ).name


def gemm(driver, call):
    """C = A B, by ours or by BLAS."""
    a, b, c = call.buffers
    at = call.attrs
    p = _prefix(c)
    left, right = _shifted(driver, a, at["offsets"][0]), _shifted(driver, b, at["offsets"][1])
    turned_a, turned_b = at["transposed"]
    if products.is_suitable(at["m"], at["n"], at["k"], p, turned_b):
        symbol = f"pt_product_{p}"
        driver.module.declare(runtime.declaration(symbol))
        pointers = ", ".join(f"ptr {x}" for x in (left, right, driver.pointer(c)))
        lda, ldb = at["ld"]
        down_along = (1, lda) if turned_a else (lda, 1)
        numbers = at["m"], at["n"], at["k"], *down_along, ldb, int(turned_b)
        sizes = ", ".join(f"i64 {n}" for n in numbers)
        return [f"  call void @{symbol}({pointers}, {sizes})"]
    ty = "double" if p == "d" else "float"
    integer = library.integer_type()
    symbol = f"pt_{p}gemm"
    driver.module.declare(library.declaration(symbol))
    flags = [_scalar(driver, "i8", ord("T" if t else "N")) for t in reversed(at["transposed"])]
    m, n, k = (_scalar(driver, integer, v) for v in (at["n"], at["m"], at["k"]))
    one = _scalar(driver, ty, "0x3FF0000000000000")
    zero = _scalar(driver, ty, "0x0000000000000000")
    lda, ldb, ldc = (_scalar(driver, integer, v) for v in (at["ld"][1], at["ld"][0], at["n"]))
    # By columns c' = b' a'.
    args = [*flags, m, n, k, one, right, lda, left, ldb, zero, driver.pointer(c), ldc]
    return [f"  call void @{symbol}({', '.join(f'ptr {x}' for x in args)})"]


def density(driver, call):
    """A density by its address: ``double f(const double *q, double *grad, void *context)``."""
    q, function, context, logp, grad = call.buffers
    f = driver.s.emit(f"inttoptr i64 {driver.load(function).name} to ptr", "ptr").name
    c = driver.s.emit(f"inttoptr i64 {driver.load(context).name} to ptr", "ptr").name
    v = driver.s.emit(
        f"call double {f}(ptr {driver.pointer(q)}, ptr {driver.pointer(grad)}, ptr {c})", "double"
    )
    return [f"  store double {v.name}, ptr {driver.pointer(logp)}"]


def routine(driver, call):
    """A function of render/runtime; its arguments are buffers and whole numbers. One that can fail
    returns whether it did: then eager execution would raise an error.
    """
    symbol = call.attrs["symbol"]
    driver.module.declare(runtime.declaration(symbol))
    args = ", ".join(
        f"i64 {x}" if isinstance(x, int) else f"ptr {driver.pointer(x)}"
        for x in call.attrs["arguments"]
    )
    text = f"call {runtime.types_of(symbol)[0]} @{symbol}({args})"
    if not call.attrs["fails"]:
        return [f"  {text}"]
    driver.leave_unless(driver.s.logical_not(driver.s.emit(text, "i1")), "-1")
    return []


HELPERS = {
    "gemm": gemm,
    "density": density,
    "routine": routine,
}


def _fill(ty):
    return f"""define internal void @pt_fill_{ty}(ptr %p, i64 %n, {ty} %v) nounwind {{
entry:
  %empty = icmp eq i64 %n, 0
  br i1 %empty, label %out, label %h
h:
  %i = phi i64 [ 0, %entry ], [ %next, %h ]
  %a = getelementptr {ty}, ptr %p, i64 %i
  store {ty} %v, ptr %a
  %next = add nuw nsw i64 %i, 1
  %more = icmp ult i64 %next, %n
  br i1 %more, label %h, label %out
out:
  ret void
}}"""


def helper_text(name, module):
    """Return the IR of a helper function by name."""
    if name == "pt_power":
        attributes = "nounwind willreturn memory(none)"
        own = LlvmModule()
        w = own.function(name, "i64", ["i64", "i64"], linkage="internal", attributes=attributes)
        w.finish(power(w, *w.arguments))
        return own.functions[0]
    return _fill(name.removeprefix("pt_fill_"))
