"""Approximations of many posteriors: those of single runs, closed forms, and their verdicts."""

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch.errors import ArgumentError
from probtorch.infer import DADVI, LaplaceApproximation, Pathfinder, fit_many
from probtorch.infer.many.data_sets import calls_of
from probtorch.infer.many.many_target import ManyTarget

RNG = np.random.default_rng(0)
DATA = [(RNG.normal(i, 1.0, 6), RNG.normal(size=6)) for i in range(5)]


def line(y, x):
    a = probtorch.sample("a", dist.Normal(0.0, 2.0))
    b = probtorch.sample("b", dist.Normal(0.0, 2.0))
    with probtorch.plate("row", 6):
        probtorch.sample("y", dist.Normal(a + b * x, 1.0), obs=y)


def exact(y, x):
    """Mean and covariance of the conjugate posterior."""
    design = np.stack([np.ones(6), x], 1)
    covariance = np.linalg.inv(design.T @ design + np.eye(2) / 4.0)
    return covariance @ design.T @ y, covariance


@pytest.mark.parametrize("engine", [LaplaceApproximation, Pathfinder, DADVI])
def test_posteriors_are_those_of_each_data_set(engine):
    fits = fit_many(line, DATA, engine, num_samples=1000, seed=0, progress_bar=False)
    assert len(fits) == 5 and list(fits.diagnostics) == ["pareto_k"] and not fits.doubtful
    for i, data in enumerate(DATA):
        mean, covariance = exact(*data)
        drawn = fits[i].posterior
        # Five standard errors of 1000 draws; the normals of DADVI are estimates by 30 draws.
        slack = 0.25 if engine is DADVI else 5.0 / 1000**0.5
        for k, name in enumerate("ab"):
            sd = covariance[k, k] ** 0.5
            assert abs(drawn[name].mean() - mean[k]) < slack * sd
            if engine is not DADVI:  # of a mean field, which is narrower
                assert abs(drawn[name].std() / sd - 1.0) < 0.15


def test_modes_found_together_are_those_found_alone():
    first, *_ = calls = list(calls_of(DATA).values())
    target = ManyTarget(line, first)
    streams = probtorch.Generator(0).spawn(5)
    together = LaplaceApproximation(target).run_many([target.at(c) for c in calls], streams)
    streams = probtorch.Generator(0).spawn(5)
    for found, call, stream, data in zip(together, calls, streams, DATA):
        alone = LaplaceApproximation(target.at(call), seed=stream).run()
        np.testing.assert_array_equal(found.mean, alone.mean)
        np.testing.assert_array_equal(found.covariance, alone.covariance)
        mean, covariance = exact(*data)
        np.testing.assert_allclose(found.mean, mean, rtol=1e-8)
        np.testing.assert_allclose(found.covariance, covariance, rtol=1e-8)


def test_settings_are_those_given_and_failures_are_named():
    data = [*DATA[:2], (np.full(6, np.nan), np.ones(6)), *DATA[2:]]
    engine = LaplaceApproximation(line, num_starts=1)
    fits = fit_many(line, data, engine, num_samples=50, progress_bar=False)
    assert set(fits.failed) == {2} and len(fits) == 5
    made = fit_many(line, DATA, lambda m: Pathfinder(m, num_paths=2), progress_bar=False)
    assert made.draws.posterior["a"].shape == (1, 500, 5)
    with pytest.raises(ArgumentError, match="one chain of independent draws"):
        fit_many(line, DATA, LaplaceApproximation, num_chains=2, progress_bar=False)


def test_posteriors_that_are_no_normals_are_doubtful():
    def mixed(y):
        p = probtorch.sample("p", dist.Normal(0.0, 1.0))
        probtorch.sample("far", dist.StudentT(1.2, p, 1.0))
        probtorch.sample("y", dist.Normal(p, 1.0), obs=y)

    fits = fit_many(mixed, [0.1, 0.2], LaplaceApproximation, seed=0, progress_bar=False)
    assert fits.doubtful and "doubtful" in repr(fits)
