"""The semi-supervised autoencoder learns from images without labels."""

import pytest

pytest.importorskip("sklearn")


def test_a_short_run_lowers_the_bound_and_keeps_what_the_labels_taught(run_model, number):
    options = ["--frozen", 60, "--steps", 60, "--batch", 16]
    report = run_model("ss_vae", *options)
    alone = number("labelled images alone: ", report)
    # 100 labels alone teach 88 %; 120 small steps cost some of it or add some, chance is 10 %.
    assert alone > 80.0
    assert number("semi-supervised: ", report) > alone - 8.0
    # Independent pixels have 253 nats per image (models/vae).
    assert number("loss at the end: ", report) < 240.0


@pytest.mark.slow
def test_images_without_labels_teach_the_classifier(run_model, number):
    report = run_model("ss_vae")
    # The README states 88.3 and 93.6 %.
    assert number("semi-supervised: ", report) > number("labelled images alone: ", report) + 1.0
