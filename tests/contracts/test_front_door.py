"""The front door: what `import probtorch` offers, and what it leaves unloaded.

The list of public names is kept in front_door.txt, so that a name appears or vanishes only on
purpose: after such a change, write the new list there.
"""

import ast
import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import probtorch
from probtorch.core.op import REGISTRY
from probtorch.core.other_modules import MODULES

ROOT = Path(__file__).resolve().parents[2]
SNAPSHOT = Path(__file__).with_name("front_door.txt")
# A room is public as soon as its folder is there.
ROOMS = {path.parent.name for path in (ROOT / "probtorch").glob("*/__init__.py")}
# Rooms whose names are imported when they are asked for.
LATE = [
    ".".join(path.parent.relative_to(ROOT).parts)
    for path in sorted((ROOT / "probtorch").rglob("__init__.py"))
    if "= late_names(" in path.read_text()
]
HEAVY = ("scipy", "llvmlite", "arviz", "xarray", "rich", "pandas", "matplotlib", "cupy")


def public_names():
    """Names of the front door; modules by other libraries' names are there once imported."""
    others = {
        name
        for name, value in vars(probtorch).items()
        if isinstance(value, ModuleType) and value.__name__ in MODULES
    }
    names = [name for name in dir(probtorch) if not name.startswith("_")]
    return [name for name in names if name not in ROOMS | others]


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


def test_the_rooms_that_import_late_are_these():
    assert set(LATE) >= {"probtorch.distributions", "probtorch.infer", "probtorch.infer.guides"}


@pytest.mark.parametrize("room", LATE)
def test_a_room_that_imports_late_offers_what_it_tells_type_checkers(room):
    module = importlib.import_module(room)
    (block,) = (
        node
        for node in ast.parse(Path(module.__file__).read_text()).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    told = {}
    for node in block.body:
        home = importlib.import_module(node.module)
        for alias in node.names:
            names = home.__all__ if alias.name == "*" else [alias.name]
            told.update(dict.fromkeys(names, home))
    assert told.keys() >= set(module.__all__)
    for name, home in told.items():
        assert getattr(module, name) is getattr(home, name), name
    assert set(module.__all__) <= set(dir(module))


def test_a_room_that_imports_late_loads_only_what_is_asked_for():
    code = (
        "import sys, probtorch.infer as infer, probtorch.distributions as dist\n"
        "dist.Normal, infer.Trace_ELBO, infer.guides.AutoNormal\n"
        "print(*sys.modules)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = set(run.stdout.split())
    assert {"probtorch.distributions.normal", "probtorch.infer.guides.mean_field"} <= loaded
    for module in ("distributions.glm", "distributions.divergences", "infer.mcmc.kernels.nuts"):
        assert f"probtorch.{module}" not in loaded


@pytest.mark.parametrize("room", ["probtorch.infer", "probtorch.infer.objectives"])
def test_a_name_that_no_late_room_has_is_an_attribute_error(room):
    module = importlib.import_module(room)
    with pytest.raises(AttributeError, match=f"module '{room}' has no attribute 'Nonsense'"):
        module.Nonsense  # noqa: B018
    with pytest.raises(ImportError, match="Nonsense"):
        exec(f"from {room} import Nonsense")  # noqa: S102


def test_a_divergence_is_in_closed_form_before_anything_else_is_asked_for():
    code = (
        "from probtorch.distributions import Beta, Dirichlet, Gamma, kl_divergence\n"
        "print(float(kl_divergence(Gamma(2.0, 1.0), Gamma(2.0, 1.0))))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert abs(float(run.stdout)) < 1e-6


def test_dtype_names_of_torch_are_numpy_dtypes():
    pairs = {"float": "float32", "double": "float64", "half": "float16", "long": "int64"}
    for short, full in {**pairs, "int": "int32", "short": "int16"}.items():
        assert getattr(probtorch, short) is getattr(probtorch, full)


def test_functions_at_the_front_door_are_those_of_their_ops():
    for name in ("exp", "mul", "where", "lgamma"):
        assert getattr(probtorch, name) is REGISTRY[name].public
