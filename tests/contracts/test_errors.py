"""Every error the package raises says something, and the three-part errors have their three parts.

Read on the syntax tree, so that a raise on a path no test reaches is held to it too.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "probtorch"
PARTS = ("expected", "got", "fix")
# Raised as signals to the interpreter, never read by a person.
SIGNALS = {"StopIteration", "StopAsyncIteration", "GeneratorExit", "KeyboardInterrupt"}


def error_classes() -> set[str]:
    """Names of the three-part error classes, read from probtorch/errors.py."""
    path = PACKAGE / "errors.py"
    if not path.exists():
        return set()
    classes = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]
    return {node.name for node in classes if not node.name.endswith("Warning")}


def is_empty_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and not node.value.strip()


def silent_raises(source: str, three_part: set[str]) -> list[str]:
    """One line per `raise` in `source` that carries no message, or lacks one of the three parts."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Raise) or node.exc is None:
            continue
        error = node.exc
        called = error.func if isinstance(error, ast.Call) else error
        name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
        if not isinstance(error, ast.Call):
            # `raise error` passes on what was caught or built; `raise ValueError` says nothing.
            if name[:1].isupper() and name not in SIGNALS:
                found.append(f"line {node.lineno}: {name} without a message")
            continue
        keywords = {keyword.arg: keyword.value for keyword in error.keywords}
        if not error.args and not keywords and name[:1].isupper() and name not in SIGNALS:
            found.append(f"line {node.lineno}: {name} without a message")
        if any(is_empty_text(value) for value in [*error.args, *keywords.values()]):
            found.append(f"line {node.lineno}: {name} with an empty message")
        if name in three_part and None not in keywords:
            missing = [part for part in PARTS if part not in keywords]
            if missing:
                found.append(f"line {node.lineno}: {name} lacks {', '.join(missing)}")
    return found


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT))
)
def test_every_raise_says_what_is_wrong(path):
    assert silent_raises(path.read_text(), error_classes()) == []


@pytest.mark.parametrize(
    "source",
    [
        "raise ValueError",
        "raise ValueError()",
        "raise ValueError('')",
        "raise errors.ShapeError('matmul', expected='a', got='b')",
        "raise ShapeError('matmul', expected='a', got='b', fix=' ')",
    ],
)
def test_a_silent_raise_is_found_by_the_check(source):
    assert len(silent_raises(source, {"ShapeError"})) == 1


@pytest.mark.parametrize(
    "source",
    [
        "raise",
        "raise error from None",
        "raise StopIteration",
        "raise build_error(site)",
        "raise ValueError('what was wrong')",
        "raise ShapeError('matmul', expected='a', got='b', fix='c')",
        "raise ShapeError('matmul', **parts)",
    ],
)
def test_a_raise_that_speaks_is_let_through(source):
    assert silent_raises(source, {"ShapeError"}) == []
