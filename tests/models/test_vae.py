"""The variational autoencoder learns: its bound on new images is far above independent pixels."""

import pytest

pytest.importorskip("sklearn")


def test_short_training_beats_independent_pixels(run_model, number):
    report = run_model("vae", "--epochs", 15)
    elbo, pixels = number("ELBO ", report), number("independent pixels: ", report)
    # 15 epochs give about -155; a broken gradient stays at the pixels' -253 or below.
    assert elbo > pixels + 70.0
    assert elbo < number("500 particles: ", report) < elbo + 15.0


@pytest.mark.slow
def test_full_training_reaches_the_bound_that_the_readme_states(run_model, number):
    # The README states -94.7, and -98.6 for the worst of three seeds.
    assert number("ELBO ", run_model("vae")) > -100.0
