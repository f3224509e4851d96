"""A model run as the script that it is, without the price of a new Python."""

import runpy
from pathlib import Path

import numpy as np
import pytest

import probtorch

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def run_model(tmp_path, monkeypatch, capsys):
    """Return a function from a model's name and options to what the script printed.

    Its files are in `tmp_path`; random states are put back.
    """

    def run(name, *options):
        script = ROOT / "models" / name / "model.py"
        monkeypatch.setattr("sys.argv", [str(script), "--out", str(tmp_path), *map(str, options)])
        runpy.run_path(str(script), run_name="__main__")
        assert (tmp_path / f"{name}.png").stat().st_size > 3_000
        return capsys.readouterr().out

    ours, theirs = probtorch.default_generator.get_state(), np.random.get_state()
    yield run
    probtorch.default_generator.set_state(ours)
    np.random.set_state(theirs)


@pytest.fixture
def number():
    """Return a function that finds the number behind some words of a printed report."""

    def after(words, text):
        assert words in text, text
        return float(text.split(words, 1)[1].split()[0].rstrip(",;%"))

    return after
