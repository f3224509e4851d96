"""Public signatures are annotated in the rooms whose names users write."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "probtorch"
ROOMS = (
    "distributions",
    "effects",
    "estimators",
    "factories.py",
    "func",
    "nn",
    "optim",
    "ops/contraction.py",
    "ops/gathering.py",
    "profiler",
    "serialization",
    "viz",
)
# Rooms whose functions all have types, private helpers too: mypy is told so in pyproject.toml.
TYPED = {
    "probtorch.array_api.*",
    "probtorch.autograd.*",
    "probtorch.backends.*",
    "probtorch.core.*",
    "probtorch.diagnostics.*",
    "probtorch.distributions.*",
    "probtorch.effects.*",
    "probtorch.estimators.*",
    "probtorch.factories",
    "probtorch.func.*",
    "probtorch.infer.*",
    "probtorch.nn.*",
    "probtorch.numerics.*",
    "probtorch.ode.*",
    "probtorch.onnx.*",
    "probtorch.ops.*",
    "probtorch.optim.*",
    "probtorch.profiler.*",
    "probtorch.serialization.*",
    "probtorch.testing.*",
    "probtorch.utils.*",
    "probtorch.viz.*",
}
# How often `Any` is written in a room, imports included. It may only become less: `Tensor`, `Tree`,
# `Distribution`, `object`, a Protocol or a type variable tells users what they get.
ANY = {
    "autograd": 28,
    "backends": 5,
    "compiler": 22,
    "core": 69,
    "diagnostics": 27,
    "distributions": 39,
    "effects": 41,
    "infer": 61,
    "nn": 26,
    "ops": 35,
    "optim": 17,
    "serialization": 5,
    "tensor.pyi": 5,
    "utils": 19,
}
# Properties that are constraints of the class as well: their descriptor states the type.
DESCRIBED = {"support"}


def is_public(name):
    return not name.startswith("_") or name in ("__init__", "__call__")


def unannotated(body, prefix="", method=False):
    """Yield the names of public functions and constructors that lack an annotation."""
    for node in body:
        if isinstance(node, ast.ClassDef) and is_public(node.name):
            yield from unannotated(node.body, f"{prefix}{node.name}.", True)
        elif isinstance(node, ast.FunctionDef) and is_public(node.name):
            a = node.args
            given = [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))]
            static = any(getattr(d, "id", "") == "staticmethod" for d in node.decorator_list)
            bound = method and not static
            told = all(x.annotation for x in given[bound:])
            if not (told and node.returns) and node.name not in DESCRIBED:
                yield prefix + node.name


@pytest.mark.parametrize("room", ROOMS)
def test_public_signatures_of_the_room_are_annotated(room):
    path = PACKAGE / room
    files = [path] if path.suffix else sorted(path.rglob("*.py"))
    assert files
    found = [(f.name, n) for f in files for n in unannotated(ast.parse(f.read_text()).body)]
    assert found == []


def test_missing_annotation_is_found_by_the_check():
    source = (
        "class A:\n    def f(self, x: int): ...\n    def g(self) -> int: ...\ndef h(x) -> int: ..."
    )
    assert list(unannotated(ast.parse(source).body)) == ["A.f", "h"]


def written(room):
    """How often `Any` is written in the code of a room; in prose it is a word."""
    path = PACKAGE / room
    files = [path] if path.is_file() else sorted(path.rglob("*.py")) + sorted(path.rglob("*.pyi"))
    code = (re.sub(r'"""[\s\S]*?"""|#.*', "", f.read_text()) for f in files)
    return sum(len(re.findall(r"\bAny\b", text)) for text in code)


def test_any_becomes_no_more_in_any_room():
    rooms = {
        p.name
        for p in PACKAGE.iterdir()
        if p.suffix in (".py", ".pyi") or (p.is_dir() and p.name != "__pycache__")
    }
    found = {room: written(room) for room in rooms}
    assert {r: n for r, n in found.items() if n > ANY.get(r, 0)} == {}
    assert sum(ANY.values()) <= 400


def told_to_mypy(typed):
    """Modules that pyproject.toml tells mypy to want types in, or not to."""
    overrides = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["overrides"]
    return {m for o in overrides if o.get("disallow_untyped_defs") is typed for m in o["module"]}


def test_typed_rooms_stay_typed():
    assert told_to_mypy(True) >= TYPED


def test_no_file_of_a_typed_room_is_left_out():
    assert told_to_mypy(False) == set()
