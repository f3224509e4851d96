"""The network makes digits finer than interpolation does."""

import runpy
from pathlib import Path

import numpy as np
import pytest

import probtorch

pytest.importorskip("sklearn")

SCRIPT = Path(__file__).resolve().parents[2] / "models" / "super_resolution" / "model.py"


def test_a_short_training_beats_bicubic_interpolation(run_model, number):
    report = run_model("super_resolution", "--no-compile", "--epochs", 2, "--lr", 5e-3)
    nearest, bicubic = number("nearest: ", report), number("bicubic: ", report)
    assert 12.0 < nearest < bicubic < 14.5
    assert number("sub-pixel network: ", report) > bicubic


def test_decibels_of_a_known_error():
    script = runpy.run_path(str(SCRIPT))
    truth = probtorch.full((2, 1, 8, 8), 0.5)
    assert script["decibels"](truth + 0.1, truth) == pytest.approx(20.0, abs=1e-4)
    small = script["coarse"](probtorch.arange(16.0).view(1, 1, 4, 4))
    np.testing.assert_allclose(small.numpy()[0, 0], [[2.5, 4.5], [10.5, 12.5]])


@pytest.mark.slow
def test_full_training_beats_least_squares(run_model, number):
    report = run_model("super_resolution")
    # The README states both.
    assert number("sub-pixel network: ", report) > number("least squares: ", report)
