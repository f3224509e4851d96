"""Where lower rooms reach higher ones is listed in one file, and nothing else does."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import probtorch
import probtorch.testing  # and with it every room
from probtorch.core.doors import DOORS
from probtorch.core.leaf_types import LEAF_TYPES, leaf_type_of
from probtorch.nn.parameter import Buffer, Parameter
from probtorch.tensor import tensor

PACKAGE = Path(probtorch.__file__).parent
TEXTS = {
    ".".join(("probtorch", *p.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(
        ".__init__"
    ): p.read_text()
    for p in sorted(PACKAGE.rglob("*.py"))
}
TREES = {module: ast.parse(text) for module, text in TEXTS.items()}
# The front door makes importing fast; it stands above everything.
FRONT = "probtorch"


def test_there_are_at_most_six_doors():
    assert len({(d.module, d.name) for d in DOORS}) == len(DOORS) <= 6


@pytest.mark.parametrize("door", DOORS, ids=lambda d: d.name)
def test_a_door_says_why_and_its_owner_alone_fills_it(door):
    assert len(door.reason.split()) > 8
    (variable,) = (n for n, d in vars(sys.modules["probtorch.core.doors"]).items() if d is door)
    fillers = [
        module
        for module, tree in TREES.items()
        if f"{variable}.fill" in TEXTS[module]
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == "fill"
        if variable in (getattr(node.value, "attr", None), getattr(node.value, "id", None))
    ]
    assert fillers == [door.owner]


@pytest.mark.parametrize("door", DOORS, ids=lambda d: d.name)
def test_a_door_is_filled_when_its_owner_is_imported(door):
    value = door.open()
    parts = (value, type(value), *(value if isinstance(value, tuple) else ()))
    assert door.owner in {getattr(x, "__module__", None) for x in parts}


# ------------------------------------------------------------------------------ nothing but doors


def setters(tree):
    """Names of functions of a module that keep an argument in a global of it."""
    for f in ast.walk(tree):
        if not isinstance(f, ast.FunctionDef):
            continue
        kept = {n for node in ast.walk(f) if isinstance(node, ast.Global) for n in node.names}
        given = {a.arg for a in f.args.args}
        for node in ast.walk(f):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
                names = {n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name)}
                if node.value.id in given and names & kept:
                    yield f.name


def imported(tree):
    """Names that a module imports from the package."""
    return {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("probtorch")
        for alias in node.names
    }


def hooks(tree, known):
    """Lines of a module that, as it is imported, put something of it into another module."""
    others = imported(tree)
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else ()
        for t in targets:
            if isinstance(t, ast.Attribute) and getattr(t.value, "id", None) in others:
                yield node.lineno
        calls = [node.value] if isinstance(node, ast.Expr) else []
        calls += getattr(node, "decorator_list", [])
        for call in calls:
            fn = call.func if isinstance(call, ast.Call) else call
            if isinstance(fn, ast.Attribute):
                if fn.attr in ("append", "insert") and getattr(fn.value, "id", None) in others:
                    yield node.lineno
            elif getattr(fn, "id", None) in known & others:
                yield node.lineno


def by_name(tree, source):
    """Lines that import a module of the package by its name in a text."""
    if not ("import_module" in source or "__import__" in source):
        return
    texts = {
        t.id
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        if str(node.value.value).startswith("probtorch.")
        for t in node.targets
        if isinstance(t, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args:
            name = getattr(node.func, "attr", getattr(node.func, "id", None))
            if name in ("import_module", "__import__"):
                text = getattr(node.args[0], "value", "")
                if str(text).startswith("probtorch") or getattr(node.args[0], "id", "") in texts:
                    yield node.lineno


def test_no_module_reaches_another_but_through_a_door():
    known = {n for m, tree in TREES.items() if "global " in TEXTS[m] for n in setters(tree)}
    assert "set_default_dtype" in known  # which nobody calls while importing
    found = {
        module: lines
        for module, tree in TREES.items()
        if module != FRONT
        if (lines := [*hooks(tree, known), *by_name(tree, TEXTS[module])])
    }
    assert found == {}


def test_a_hook_is_found_by_the_check():
    below = "_made = None\ndef use_made(fn):\n    global _made\n    _made = fn\n    return fn\n"
    above = (
        "from probtorch.below import HEARD, STATE, use_made\n"
        "_ROOM = 'probtorch.above'\n"
        "HEARD.append(print)\n"
        "STATE.read = print\n"
        "@use_made\n"
        "def make():\n"
        "    return import_module(_ROOM)\n"
        "use_made(make)\n"
    )
    known = set(setters(ast.parse(below)))
    assert known == {"use_made"}
    assert list(hooks(ast.parse(above), known)) == [3, 4, 6, 8]
    assert list(by_name(ast.parse(above), above)) == [7]


# ----------------------------------------------------------------------------- what it is good for


def test_distributions_load_nothing_of_the_compiler():
    source = "import sys\nfrom probtorch.distributions import *\nprint(*sys.modules, sep='\\n')"
    run = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    loaded = run.stdout.split()
    assert "probtorch.distributions.gamma" in loaded
    assert [m for m in loaded if m.startswith("probtorch.compiler")] == []


def test_long_draws_load_native_code_on_first_use_and_have_the_same_bits():
    source = (
        "import sys, hashlib, probtorch\n"
        "from probtorch import distributions as dist\n"
        "def drawn():\n"
        "    probtorch.manual_seed(3)\n"
        "    return dist.Gamma(0.7, 1.0).sample((400,)).numpy().tobytes()\n"
        "few = drawn()\n"
        "assert 'probtorch.compiler.machine.eager_draws' not in sys.modules\n"
        "probtorch.rand(8_000_000)\n"
        "probtorch.rand(100)\n"
        "assert 'probtorch.compiler.machine.eager_draws' in sys.modules\n"
        "assert drawn() == few\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("cls", [Parameter, Buffer], ids=lambda c: c.__name__)
def test_files_know_types_that_are_registered(cls, tmp_path):
    t = cls(tensor([1.0, 2.0]))
    assert leaf_type_of(t).cls is cls
    assert leaf_type_of(t.detach()) is None
    probtorch.save(t, tmp_path / "t")
    assert type(probtorch.load(tmp_path / "t")) is cls
    assert sorted(LEAF_TYPES) == [
        *("buffer", "parameter", "uninitialized buffer", "uninitialized parameter"),
    ]
