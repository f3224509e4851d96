"""The front door: what `import probtorch` offers, and what it leaves unloaded.

The list of public names is kept in front_door.txt, so that a name appears or vanishes only on
purpose: after such a change, write the new list there.
"""

import subprocess
import sys
from pathlib import Path

import pytest

import probtorch
from probtorch.core.op import REGISTRY

ROOT = Path(__file__).resolve().parents[2]
SNAPSHOT = Path(__file__).with_name("front_door.txt")
# A room is public as soon as its folder is there.
ROOMS = {path.parent.name for path in (ROOT / "probtorch").glob("*/__init__.py")}
HEAVY = ("scipy", "llvmlite", "arviz", "xarray", "rich", "pandas", "matplotlib", "cupy")


def public_names():
    return [name for name in dir(probtorch) if not name.startswith("_") and name not in ROOMS]


def test_public_names_are_those_of_the_snapshot():
    expected = SNAPSHOT.read_text().split()
    assert sorted(set(public_names()) - set(expected)) == [], "new names: add them to the snapshot"
    assert sorted(set(expected) - set(public_names())) == [], "names that are gone"


@pytest.mark.parametrize("name", SNAPSHOT.read_text().split())
def test_public_name_can_be_fetched(name):
    assert hasattr(probtorch, name)


@pytest.mark.parametrize("name", sorted(ROOMS))
def test_every_room_can_be_reached(name):
    assert getattr(probtorch, name).__name__ == f"probtorch.{name}"
    assert name in dir(probtorch)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'tensr'"):
        probtorch.tensr  # noqa: B018
    assert not hasattr(probtorch, "tensr")


def test_import_loads_nothing_heavy():
    code = f"import sys, probtorch; print([m for m in {HEAVY!r} if m in sys.modules])"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"


def test_rooms_of_inference_import_nothing_of_scipy():
    # A third of the time that it takes to import them; what needs it imports it when it is used.
    code = "import sys, probtorch.infer; print([m for m in sys.modules if m.startswith('scipy')])"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"


def test_import_leaves_the_floors_above_unloaded():
    code = "import sys, probtorch; print(sorted(m for m in sys.modules if m.count('.') == 1))"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for room in ("effects", "infer", "distributions", "diagnostics", "compiler"):
        assert f"probtorch.{room}" not in run.stdout


def test_dtype_names_of_torch_are_numpy_dtypes():
    pairs = {"float": "float32", "double": "float64", "half": "float16", "long": "int64"}
    for short, full in {**pairs, "int": "int32", "short": "int16"}.items():
        assert getattr(probtorch, short) is getattr(probtorch, full)


def test_functions_at_the_front_door_are_those_of_their_ops():
    for name in ("exp", "mul", "where", "lgamma"):
        assert getattr(probtorch, name) is REGISTRY[name].public
