"""The call of a nest that is cut into parts, and how what they have for themselves is joined.

A region is a call of `pt_parallel` (`runtime/pool.py`) with a function ``i64 part(ptr context, i64
number)`` and a context, an array of the nest's pointers on the stack. A nest whose neighbouring
parts write the same elements makes two of them. Joining happens after, on one thread, in the order
of the parts.
"""

from probtorch.compiler.lang.types import ir_type
from probtorch.compiler.render import runtime
from probtorch.compiler.render.items import combined
from probtorch.compiler.render.writer import Writer

__all__ = ["write_join", "write_region"]


def write_region(driver, parts, name, arguments, checked):
    """Write the call of all parts of nest `name` on `arguments`; returns the status, an i64.

    Parameters
    ----------
    driver : Driver
    parts : Parts
    name : str
        The nest's function.
    arguments : list of str
        Pointers.
    checked : bool
        Whether the function returns a status; without one the result is 0.
    """
    module, s = driver.module, driver.s
    module.declare(runtime.declaration("pt_parallel"))
    context = s.fresh("c")
    driver.entry.append(f"  {context} = alloca [{len(arguments)} x ptr]")
    for i, pointer in enumerate(arguments):
        cell = s.emit(f"getelementptr ptr, ptr {context}, i64 {i}", "ptr").name
        s.lines.append(f"  store ptr {pointer}, ptr {cell}")
    total = None
    for turn in range(parts.turns):
        module.functions.append(_part(name, len(arguments), checked, turn, parts.turns))
        count = len(range(turn, parts.count, parts.turns))
        text = f"call i64 @pt_parallel(ptr @{name}.part{turn}, ptr {context}, i64 {count})"
        status = s.emit(text, "i64")
        total = status if total is None else total | status
    return total


def _part(name, count, checked, turn, turns):
    """The text of the function that unpacks a context and calls the nest, for parts of a turn."""
    lines = [
        f"  %scaled = mul nuw nsw i64 %number, {turns}",
        f"  %part = add nuw nsw i64 %scaled, {turn}",
    ]
    for i in range(count):
        lines += [
            f"  %c{i} = getelementptr ptr, ptr %context, i64 {i}",
            f"  %p{i} = load ptr, ptr %c{i}",
        ]
    pointers = "".join(f", ptr %p{i}" for i in range(count))
    call = f"@{name}(i64 %part{pointers})"
    if checked:
        lines += [f"  %status = call i64 {call}", "  ret i64 %status"]
    else:
        lines += [f"  call void {call}", "  ret i64 0"]
    head = f"define internal i64 @{name}.part{turn}(ptr %context, i64 %number) nounwind {{"
    return "\n".join([head, "entry:", *lines, "}"])


def write_join(driver, parts, name):
    """Write the joining of what each part of nest `name` had for itself."""
    if not parts.own:
        return
    w = Writer(
        driver.module, f"{name}.join", "void", ["ptr", "ptr"] * len(parts.own), linkage="internal "
    )
    pointers = []
    for k, own in enumerate(parts.own.values()):
        target, source = w.arguments[2 * k : 2 * k + 2]
        pointers += [driver.pointer(own.target), driver.pointer(own.buffer)]
        ty, wide = ir_type(own.target.dtype), ir_type(own.buffer.dtype)
        # Totals are joined in the first part's memory, the others in that of the result.
        joined = source if own.is_total else target
        with w.loop(1 if own.is_total else 0, parts.count) as part:
            mine = w.offset(source, part * own.step, wide)
            with w.loop(0, own.target.numel) as i:
                so_far, more = w.load(joined, i, wide), w.load(mine, i, wide)
                w.store(joined, i, combined(w, own.kind, so_far, more), wide)
        if own.is_total:
            with w.loop(0, own.target.numel) as i:
                w.store(target, i, w.convert(w.load(source, i, wide), ty), ty)
    w.finish()
    args = ", ".join(f"ptr {p}" for p in pointers)
    driver.s.lines.append(f"  call void @{name}.join({args})")
