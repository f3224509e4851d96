"""The semi-supervised autoencoder learns from images without labels."""

import runpy
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit, log_softmax
from scipy.stats import binom, norm

import probtorch
from probtorch.infer import TraceEnum_ELBO

SCRIPT = Path(__file__).resolve().parents[2] / "models" / "ss_vae" / "model.py"

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


def in_numpy(net):
    """Return a network with two hidden layers as a function of arrays."""
    *hidden, last = zip(*[iter(p.detach().numpy().astype(float) for p in net.parameters())] * 2)

    def call(x):
        for weight, bias in hidden:
            x = np.maximum(x @ weight.T + bias, 0.0)
        return x @ last[0].T + last[1]

    return call


def test_bound_is_the_sum_over_digits_in_numpy():
    script = runpy.run_path(str(SCRIPT))
    labelled, unlabelled, _ = script["load"](20, 1)
    unlabelled, (x, y) = unlabelled[:60], labelled
    weight, times = 20.0, 30
    with probtorch.handlers.seed(rng_seed=0):
        probtorch.manual_seed(0)
        net = script["SemiSupervised"](weight)
        data = [probtorch.tensor(a) for a in (unlabelled, x, y)]
        loss = TraceEnum_ELBO().loss
        ours = [loss(net.model, net.guide, *data, len(unlabelled)) for _ in range(times)]

    decoder, classifier, encoder = map(in_numpy, (net.decoder, net.classifier, net.encoder))
    rng = np.random.default_rng(0)

    def bound(x, digit):
        label = np.eye(10)[digit]
        loc, log_scale = np.split(encoder(np.c_[x / 16 - 0.5, label]), 2, axis=1)
        z = rng.normal(loc, np.exp(log_scale))
        pixels = binom.logpmf(x, 16, expit(decoder(np.c_[label, z]))).sum(1)
        return (
            pixels + (norm.logpdf(z) - norm.logpdf(z, loc, np.exp(log_scale))).sum(1) - np.log(10)
        )

    log_q, read = (log_softmax(classifier(a / 16 - 0.5), axis=1) for a in (unlabelled, x))
    theirs = []
    for _ in range(times):
        terms = [bound(unlabelled, np.full(len(unlabelled), k)) - log_q[:, k] for k in range(10)]
        total = (np.exp(log_q) * np.stack(terms, axis=1)).sum() + bound(x, y).sum()
        theirs.append(-total - weight * read[np.arange(len(x)), y].sum())
    error = np.sqrt((np.var(ours) + np.var(theirs)) / times)
    # Five standard errors, about 1 part in 1000: fails for 1 in 10^6 seeds.
    assert abs(np.mean(ours) - np.mean(theirs)) < 5 * error
    assert error < 1e-3 * np.mean(theirs)


@pytest.mark.slow
def test_images_without_labels_teach_the_classifier(run_model, number):
    report = run_model("ss_vae")
    # The README states 88.3 and 93.6 %.
    assert number("semi-supervised: ", report) > number("labelled images alone: ", report) + 1.0
