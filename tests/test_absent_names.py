"""Names that a room has not, typed by whoever knows them from elsewhere: told what to use."""

import importlib
import re
import subprocess
import sys

import pytest

import probtorch
from probtorch.core.absent import no_such_name
from probtorch.errors import UnknownImportError, UnknownModuleError, UnknownNameError

ROOMS = {
    "probtorch": "probtorch.absent",
    "probtorch.contrib": "probtorch.contrib",
    "probtorch.contrib.einstein": "probtorch.contrib.einstein",
    "probtorch.contrib.oed": "probtorch.contrib.oed",
    "probtorch.diagnostics": "probtorch.diagnostics.absent",
    "probtorch.handlers": "probtorch.handlers",
    "probtorch.infer": "probtorch.infer.absent",
    "probtorch.infer.autoguide": "probtorch.infer.autoguide",
    "probtorch.infer.mcmc": "probtorch.infer.mcmc",
    "probtorch.nn": "probtorch.nn.absent",
    "probtorch.ops": "probtorch.ops",
    "probtorch.optim": "probtorch.optim.absent",
    "probtorch.poutine": "probtorch.handlers",
}
# Where the names are that are written without a room.
PLACES = ["probtorch.distributions", "probtorch.infer", "probtorch.effects", "probtorch.utils.data"]
ABSENT = [
    (room, name) for room, table in ROOMS.items() for name in importlib.import_module(table).INSTEAD
]


@pytest.mark.parametrize(("room", "name"), ABSENT, ids=".".join)
def test_a_name_of_the_table_is_absent_and_says_what_to_use(room, name):
    module = importlib.import_module(room)
    instead = importlib.import_module(ROOMS[room]).INSTEAD[name]
    assert not hasattr(module, name)
    with pytest.raises(UnknownNameError, match=re.escape(instead)):
        getattr(module, name)
    with pytest.raises(UnknownImportError, match=re.escape(instead)):
        exec(f"from {room} import {name}")  # noqa: S102
    if name.isidentifier():
        with pytest.raises(UnknownModuleError, match=re.escape(instead)):
            importlib.import_module(f"{room}.{name}.more")


@pytest.mark.parametrize("room", ROOMS)
def test_what_to_use_is_there(room):
    """Classes are told by a capital in the middle, or behind the name of a room."""
    rooms = [importlib.import_module(place) for place in ("probtorch", room, *PLACES)]
    theirs = {"PyTorch", "NumPyro", "NumPy"}
    for advice in importlib.import_module(ROOMS[room]).INSTEAD.values():
        for words in re.findall(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*", advice):
            name = words.removeprefix("probtorch.")
            if name not in theirs and re.search(r"[a-z][A-Z]|\.[A-Z]", name):
                assert any(_leads_somewhere(place, name) for place in rooms), advice


def _leads_somewhere(place, dotted):
    for name in dotted.split("."):
        try:
            place = getattr(place, name)
        except AttributeError:
            try:
                place = importlib.import_module(f"{getattr(place, '__name__', '')}.{name}")
            except ImportError:
                return False
    return True


@pytest.mark.parametrize("room", [*ROOMS, "probtorch.ops.stats"])
def test_a_misspelt_name_has_the_near_one_beside_it(room):
    module = importlib.import_module(room)
    there = [name for name in ("distributions", "construction") if hasattr(module, name)]
    name = max(getattr(module, "__all__", there), key=len)
    with pytest.raises(UnknownNameError, match=f"did you mean {name}"):
        getattr(module, name + "s")
    with pytest.raises(AttributeError, match="__wrapped_by_nobody__"):
        module.__wrapped_by_nobody__  # noqa: B018


def test_the_error_is_for_whoever_asks():
    with pytest.raises(UnknownNameError, match=r"write f\(x\)"):
        raise no_such_name("room", {"old": "write f(x)"}, "old")


def test_a_module_that_no_table_has_is_pythons_own_error():
    for name in ("probtorch.contrib.nonsense", "probtorch.handlers.nonsense", "nonsense"):
        with pytest.raises(ModuleNotFoundError, match=f"^No module named '{name}'"):
            importlib.import_module(name)


def test_networks_of_pyro_import_their_names_from_nn():
    from probtorch.nn import (
        PyroModule,
        PyroModuleList,
        PyroParam,
        PyroSample,
        pyro_method,
        to_pyro_module_,
    )

    assert PyroModule is probtorch.PyroModule
    assert (PyroParam, PyroSample) == (probtorch.PyroParam, probtorch.PyroSample)
    assert (pyro_method, to_pyro_module_) == (probtorch.pyro_method, probtorch.to_pyro_module_)
    assert PyroModuleList is PyroModule[probtorch.nn.ModuleList]
    assert {"PyroModule", "Linear"} <= set(dir(probtorch.nn))


def test_nn_alone_loads_nothing_of_models():
    code = "import sys, probtorch.nn; print('probtorch.effects' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("name", "home"),
    [
        ("NUTS", "infer"),
        ("Normal", "distributions"),
        ("Linear", "nn"),
        ("Adam", "optim"),
        ("DataLoader", "utils.data"),
        ("hpdi", "diagnostics"),
    ],
)
def test_a_name_of_a_room_inside_is_told_with_its_room(name, home):
    with pytest.raises(UnknownNameError, match=f"it is probtorch.{home}.{name}"):
        getattr(probtorch, name)
