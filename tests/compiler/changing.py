"""Functions between whose calls something changes, run eagerly and compiled.

A maker returns ``(fn, change)``; ``change(i)`` is called between groups of calls of ``fn()``. It
makes both anew for each run, so that neither run sees the other's state.
"""

import warnings

import probtorch
from probtorch.compiler.compile import compile
from probtorch.compiler.paths import CompileWarning

__all__ = ["differences", "runs"]

GROUPS, CALLS = 4, 3


def numbers(out):
    """Return a result with lists of numbers for its tensors."""
    if isinstance(out, tuple):
        return tuple(map(numbers, out))
    return out.tolist() if hasattr(out, "tolist") else out


def runs(make):
    """Return what all calls give eagerly, what they give compiled, and the compiled function."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CompileWarning)
        for wrap in (lambda fn: fn, compile):
            probtorch.manual_seed(0)
            fn, change = make()
            call, results = wrap(fn), []
            for i in range(GROUPS):
                results += [numbers(call()) for _ in range(CALLS)]
                change(i)
            found.append(results)
    return (*found, call)


def differences(make):
    """Return what is wrong, in words: calls that differ, or that what changes is not seen."""
    eager, compiled, _ = runs(make)
    wrong = [
        f"call {k}: {b} instead of {a}"
        for k, (a, b) in enumerate(zip(eager, compiled, strict=True))
        if a != b
    ]
    if all(a == eager[0] for a in eager):
        wrong.append(f"nothing changes: {eager[0]} at each call")
    return wrong
