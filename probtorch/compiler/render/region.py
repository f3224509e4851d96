"""The call of a nest that is cut into parts, and how what they have for themselves is joined.

A region is a call of `pt_parallel` (`runtime/pool.py`) with a function ``i64 part(ptr context, i64
number)`` and a context, an array of the nest's pointers on the stack. A nest whose neighbouring
parts write the same elements makes two of them. Joining happens after, on one thread, in the order
of the parts.
"""

from probtorch.compiler.lang.routines.blocks import combined
from probtorch.compiler.lang.types import ir_type
from probtorch.compiler.render import runtime

__all__ = ["write_join", "write_region"]


def write_region(driver, parts, name, arguments, checked):
    """Write the call of all parts of nest `name` on `arguments`; returns the status, an i64.

    Parameters
    ----------
    driver : Driver
    parts : Parts
    name : str
        The nest's function.
    arguments : list of Value
        Pointers.
    checked : bool
        Whether the function returns a status; without one the result is 0.
    """
    driver.module.declare(runtime.declaration("pt_parallel"))
    context = driver.on_stack(len(arguments), "ptr")
    for i, pointer in enumerate(arguments):
        driver.store(context, i, pointer, "ptr")
    total = driver.whole(0)
    for turn in range(parts.turns):
        body = _write_part(driver.module, name, len(arguments), checked, turn, parts.turns)
        count = driver.whole(len(range(turn, parts.count, parts.turns)))
        status = driver.call("pt_parallel", "i64", driver.symbol(body), context, count)
        total = total | status if turn else status
    return total


def _write_part(module, name, count, checked, turn, turns):
    """Write the function that unpacks a context and calls the nest, for parts of a turn; returns
    its name.
    """
    w = module.function(f"{name}.part{turn}", "i64", ["ptr", "i64"], linkage="internal")
    context, number = w.arguments
    part = w.binary("add", w.binary("mul", number, turns, "nuw nsw"), turn, "nuw nsw")
    pointers = [w.load(context, i, "ptr") for i in range(count)]
    status = w.call(name, "i64" if checked else "void", part, *pointers)
    w.finish(status if checked else w.whole(0))
    return w.name


def write_join(driver, parts, name):
    """Write the joining of what each part of nest `name` had for itself."""
    if not parts.own:
        return
    types = ["ptr", "ptr"] * len(parts.own)
    w = driver.module.function(f"{name}.join", "void", types, linkage="internal")
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
    driver.call(w.name, "void", *pointers)
