"""The convolutional network reads digits that it has not seen."""

import pytest

pytest.importorskip("sklearn")


def test_one_epoch_reads_most_digits(run_model, number):
    small = ["--epochs", 1, "--batch", 32, "--lr", 8e-3]
    report = run_model("convolution", "--no-compile", *small)
    # One epoch of small batches gives about 88 %, chance is 10 %.
    assert number("test images read right: ", report) > 0.5 * 359
    assert 94.0 < number("linear classifier: ", report) < 99.0


@pytest.mark.slow
def test_full_training_beats_a_linear_classifier(run_model, number):
    report = run_model("convolution")
    # The README states 98.6 and 96.4 % of 359.
    right = 100.0 * number("test images read right: ", report) / 359
    assert right > number("linear classifier: ", report) + 1.0
