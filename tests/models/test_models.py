"""The example models run as scripts, and their files can be read again."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from probtorch.diagnostics import Draws

ROOT = Path(__file__).resolve().parents[2]


def needs(package):
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} is not installed")


@pytest.mark.parametrize(
    "name, variable, shape",
    [
        ("eight_schools", "theta", (8,)),
        pytest.param(
            "varying_intercepts", "level", (11,), marks=[pytest.mark.slow, needs("statsmodels")]
        ),
        pytest.param("logistic", "beta", (30,), marks=[pytest.mark.slow, needs("sklearn")]),
    ],
)
def test_model_runs_as_a_script_and_leaves_readable_files(name, variable, shape, tmp_path):
    command = [sys.executable, str(ROOT / "models" / name / "model.py"), "--out", str(tmp_path)]
    run = subprocess.run(
        [*command, "--chains", "2", "--warmup", "300", "--draws", "200"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert f"{variable}[" in run.stdout and "seconds:" in run.stdout
    assert (tmp_path / f"{name}.png").stat().st_size > 10_000
    draws = Draws.load(tmp_path / f"{name}.nc")
    assert draws.posterior[variable].shape == (2, 200, *shape)
    assert np.isfinite(draws.posterior[variable]).all()
    assert "log_likelihood" in draws.groups


@pytest.mark.parametrize(
    "name", sorted(path.parent.name for path in ROOT.glob("models/*/model.py"))
)
def test_model_has_a_readme_with_its_figure(name):
    folder = ROOT / "models" / name
    assert "figure.png" in (folder / "README.md").read_text()
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert f"| `{name}` |" in (ROOT / "models" / "README.md").read_text()
