"""Names that everyone meets: one module of handlers, kernels in their folder, the version."""

import subprocess
import sys
import tomllib
from pathlib import Path

import probtorch
from probtorch import effects, infer
from probtorch.infer import mcmc

ROOT = Path(__file__).resolve().parents[1]


def test_version_is_that_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert probtorch.__version__ == project["version"]


def test_handlers_are_one_module_whichever_way_it_is_reached():
    code = (
        "import probtorch; first = probtorch.handlers; first.reparam\n"
        "import probtorch.handlers as second; from probtorch import handlers as third\n"
        "from probtorch.handlers import reparam\n"
        "print(first is second is third is probtorch.handlers, reparam is first.reparam)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == ["True", "True"]
    assert probtorch.handlers.__name__ == "probtorch.handlers"


def test_folder_of_samplers_has_them():
    assert (mcmc.MCMC, mcmc.NUTS, mcmc.HMC) == (infer.MCMC, infer.NUTS, infer.HMC)


def test_reparameterisations_can_be_asked_for():
    assert isinstance(effects.LocScaleReparam(0.0), effects.Reparam)
    assert not isinstance("text", effects.Reparam)
