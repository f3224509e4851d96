"""Code that may look anywhere, as a program: what it does to the compiler, printed as JSON.

A function that finds globals or attributes by a name it makes is watched for all that its process
has loaded. What that is must not depend on the tests that ran before: so this is a process.
"""

import json
import linecache
import sys
import types

import probtorch

number = 2.0
settings = types.ModuleType("settings")
outer = types.SimpleNamespace(module=settings)
settings.factor = 2.0


def set_number():
    globals()["number"] = 3.0


def a_global_by_its_name(x):
    return x * globals()["number"]


def a_module_of_an_object(x):
    return x * outer.module.factor


def an_attribute_by_its_name(x):
    return x * getattr(outer.module, "factor")  # noqa: B009


def a_global_beside_long_sources(x):
    return x * globals()["number"] + len(linecache.cache)


CASES = {
    a_global_by_its_name: set_number,
    a_module_of_an_object: lambda: setattr(settings, "factor", 3.0),
    an_attribute_by_its_name: lambda: setattr(settings, "factor", 4.0),
    a_global_beside_long_sources: set_number,
}


def fill_linecache():
    for i in range(2000):
        lines = [f"line {i} {j}" for j in range(60)]
        linecache.cache[f"long{i}.py"] = (0, None, lines, f"long{i}.py")


def run(name):
    """Return eager and compiled results before and after the change, and what stayed compiled."""
    fn, change = next((f, c) for f, c in CASES.items() if f.__name__ == name)
    if fn is a_global_beside_long_sources:
        fill_linecache()
    x = probtorch.tensor([1.0, 2.0])
    compiled = probtorch.compile(fn)
    before, found = fn(x).tolist(), [compiled(x).tolist() for _ in range(3)]
    report = {"before": before, "found before": found, "reason": compiled.reason}
    change()
    after, found = fn(x).tolist(), [compiled(x).tolist() for _ in range(2)]
    return {**report, "after": after, "found after": found}


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1])))
