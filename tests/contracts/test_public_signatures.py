"""Public signatures are annotated in the rooms whose names users write."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "probtorch"
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
    "serialization",
)
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
