"""Modules of other libraries by their names: each has what its room has, and hides nothing."""

import importlib
import pickle
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import cloudpickle
import pytest

import probtorch
from probtorch.core.other_modules import MODULES
from probtorch.errors import UnknownImportError, UnknownNameError

PACKAGE = Path(probtorch.__file__).parent


@pytest.mark.parametrize("name", MODULES)
def test_a_module_of_others_is_imported_and_is_no_file(name):
    module = importlib.import_module(name)
    room = importlib.import_module(MODULES[name])
    assert module is not room
    assert set(dir(room)) <= set(dir(module))
    path = PACKAGE.joinpath(*name.split(".")[1:])
    assert not path.with_suffix(".py").exists() and not path.is_dir()


def test_names_are_those_of_the_room():
    from probtorch.distributions.independent import Independent
    from probtorch.distributions.transforms.haar import HaarTransform
    from probtorch.infer.mcmc.api import MCMC
    from probtorch.nn.modules.linear import Linear

    assert Independent is probtorch.distributions.Independent
    assert HaarTransform is probtorch.distributions.transforms.HaarTransform
    assert MCMC is probtorch.infer.MCMC
    assert Linear is probtorch.nn.Linear is probtorch.nn.modules.Linear
    assert probtorch.distributions.studentT.StudentT is probtorch.distributions.StudentT


def test_what_the_room_has_not_is_told_as_by_the_room():
    with pytest.raises(UnknownImportError, match="results have their draws"):
        from probtorch.infer.svi import EmpiricalMarginal  # noqa: F401
    with pytest.raises(UnknownNameError, match="results have their draws"):
        _ = probtorch.infer.svi.EmpiricalMarginal
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("probtorch.distributions.no_such_module")


def test_they_are_there_in_a_fresh_process():
    code = "from probtorch.nn.modules.module import Module; assert Module.__name__ == 'Module'"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=PACKAGE.parent)


def test_a_function_is_not_hidden_by_the_module_of_its_name():
    hidden = []
    for name in MODULES:
        package, _, last = name.rpartition(".")
        parent = importlib.import_module(package)
        if last in getattr(parent, "__all__", ()):
            found = getattr(parent, last)
            importlib.import_module(name)
            hidden += (
                [name] if getattr(parent, last) is not found or last not in dir(parent) else []
            )
            assert not isinstance(found, type(sys)), name
    assert hidden == []
    assert "probtorch.distributions.transforms.spline" in MODULES


def test_functions_that_hold_a_package_travel_after_it_has_had_a_module_of_others():
    for name in MODULES:
        importlib.import_module(name)
    parents = {sys.modules[name.rpartition(".")[0]] for name in MODULES}
    packages = [package for package in parents if type(package) is not ModuleType]
    assert packages
    for package in packages:
        assert pickle.loads(pickle.dumps(package)) is package
        assert cloudpickle.loads(cloudpickle.dumps(lambda held=package: held))() is package
