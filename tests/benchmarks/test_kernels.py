"""The comparison of kernels: its posteriors are what they are said to be, and it notices bias."""

import numpy as np
import pytest

from benchmarks import kernels
from benchmarks.kernel_targets import TARGETS, KernelTarget
from benchmarks.kernels import Entry, Outcome, judged


@pytest.mark.parametrize("name", [name for name, t in TARGETS.items() if t.exact is not None])
def test_exact_draws_are_those_of_the_density(name):
    """Stein's identities: means of g are 0, of x g -1. 200 scores beyond 5: 1 in 10 000 runs."""
    target = TARGETS[name].make()
    draws = TARGETS[name].exact(np.random.default_rng(2), 1500)
    context = target.density.context()
    grads = np.array([context.value_and_grad(x)[1] for x in draws])
    for found in (grads, draws * grads + 1.0):
        assert np.abs(found.mean(axis=0) / found.std(axis=0) * np.sqrt(1500.0)).max() < 5.0


def test_draws_are_judged_by_what_is_known():
    rng = np.random.default_rng(3)
    reference, draws = rng.normal(size=(100_000, 2)), rng.normal(size=(4, 2000, 2))
    effective, rhat, off = judged(draws, reference)
    assert 6000 < effective < 10_000 and rhat < 1.01 and off == 0.0
    assert judged(draws * 0.8, reference)[2] > kernels.SHARE
    assert judged(draws + 0.3, reference)[2] > kernels.SHARE
    apart = draws + np.arange(4.0)[:, None, None]
    assert judged(apart, reference)[1] > kernels.LARGEST_RHAT


def test_rates_of_what_is_wrong_are_not_shown():
    assert Outcome(100.0, 1000.0, 1.0, 1.001, 0.0).shown(100.0) == "100"
    assert Outcome(100.0, 1000.0, 1.0, 1.2, 0.0).shown(100.0) == "-"
    assert Outcome(100.0, 1000.0, 1.0, np.nan, 0.0).shown(100.0) == "-"
    assert Outcome(100.0, 1000.0, 1.0, 1.001, 0.1).shown(100.0) == "!"


def test_a_kernel_that_fails_is_named_with_its_error(monkeypatch):
    def failing(target):
        raise RuntimeError("no such thing")

    monkeypatch.setattr(kernels, "KERNELS", {"NUTS": Entry(failing, 10)})
    easy = KernelTarget("", TARGETS["normal"].make, lambda rng, n: rng.normal(size=(100, 10)))
    monkeypatch.setattr(kernels, "TARGETS", {"normal": easy})
    text, failures = kernels.run([])
    assert failures == ["NUTS, normal: RuntimeError: no such thing"]
    assert "failed" in text
