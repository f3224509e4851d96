"""The recurrent network finds out how waves go on."""

import pytest


def test_one_step_of_lbfgs_predicts_the_next_sample(run_model, number):
    small = ["--waves", 6, "--length", 12, "--future", 4, "--steps", 1]
    report = run_model("sine_waves", "--no-compile", *small)
    # 20 iterations give about 0.003.
    always_zero = number("always zero: mean squared error ", report)
    assert 0.4 < always_zero < 0.6
    assert number("next sample: mean squared error ", report) < 0.1 * always_zero


@pytest.mark.slow
def test_full_training_continues_waves(run_model, number):
    report = run_model("sine_waves")
    # The README states 7e-6 after 100 samples, and 0.5 for always zero.
    assert number("continued by 100 samples: mean squared error ", report) < 1e-3
