"""The adversarial networks learn from each other."""

import runpy
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sklearn")

SCRIPT = Path(__file__).resolve().parents[2] / "models" / "dcgan" / "model.py"


def test_script_runs_and_scores_real_images_above_noise(run_model, number):
    report = run_model("dcgan", "--no-compile", "--epochs", 1, "--batch", 256)
    real, noise = number("test images: score ", report), number("images: score ", report)
    assert 7.5 < real < 10.0
    assert 1.0 <= noise < real
    assert 2.0 < number("pixels of different images: score ", report) < 5.0


def test_score_is_the_number_of_digits_that_are_read_without_doubt():
    class Reader:
        def predict_proba(self, x):
            return np.eye(10)[np.arange(len(x)) % 4]

    script = runpy.run_path(str(SCRIPT))
    assert script["score"](Reader(), np.zeros((40, 1, 8, 8))) == pytest.approx(4.0)


@pytest.mark.slow
def test_full_training_makes_digits(run_model, number):
    report = run_model("dcgan")
    # The README states 6.1 against 3.5.
    noise = number("pixels of different images: score ", report)
    assert number("new images: score ", report) > noise + 1.0
