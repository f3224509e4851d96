"""`fit` on modes of unequal width: which are found, and that shares are told or doubted."""

import math

import numpy as np
import pytest

from probtorch.core.rng import Generator
from probtorch.diagnostics import InferenceWarning
from probtorch.distributions import Normal
from probtorch.effects import factor, sample
from probtorch.infer import NUTS, SMC, Target, fit
from probtorch.infer.plans.modes import Modes, separate_modes
from probtorch.ops.exponentials import logaddexp
from probtorch.tensor import tensor


def wide_and_narrow(dim, sd):
    """A model whose posterior has half of its mass in a wide normal, half in a narrow one."""

    def model():
        prior = Normal(0.0, 3.0)
        x = sample("x", prior.expand([dim]).to_event(1))
        wide = Normal(-2.0, 0.5).log_prob(x).sum()
        narrow = Normal(2.0, sd).log_prob(x).sum()
        factor("two", logaddexp(wide, narrow) + math.log(0.5) - prior.log_prob(x).sum())

    return model


def test_a_narrow_mode_that_replicas_do_not_get_to_is_told_with_a_cure_that_works():
    model = wide_and_narrow(10, 0.25)
    with pytest.warns(InferenceWarning, match="no draw is in 1 of 2 modes") as told:
        fitted = fit(model, seed=1, verbose=False)
    assert not fitted.trusted and "no draw is in 1 of 2 modes" in fitted.verdict
    assert (fitted["x"] < 0.0).all()
    cure = str(told[0].message).split("fit(model, ..., ")[1].splitlines()[0].removesuffix(")")
    assert cure == (
        "engine=lambda m: SMC(NUTS(m), 4000, reference=fitted.plan.facts.reference, num_steps=5)"
    )
    cured = fit(
        model, seed=1, verbose=False,
        engine=lambda m: SMC(NUTS(m), 4000, reference=fitted.plan.facts.reference, num_steps=5),
    )  # fmt: skip
    # Of 4000 weighted particles the share has an error of 0.01.
    assert cured.trusted and abs((cured["x"][..., 0] > 0.0).mean() - 0.5) < 0.05


def test_shares_of_modes_that_chains_hardly_ever_change_are_doubted():
    modes = Modes(np.array([[-3.0], [3.0]]), np.ones((2, 1, 1)), 9.0)
    apart = np.where(np.arange(100) < 50, -3.0, 3.0)[None, :, None].repeat(4, axis=0)
    assert modes.doubt(apart) == "all chains together went 4 times from mode to mode"
    assert modes.doubt(np.tile([[[-3.0], [3.0]]], (1, 50, 1))) == ""
    # The wider of two normals has the points that are as far from both.
    uneven = Modes(np.array([[-3.0], [3.0]]), np.array([[[4.0]], [[0.25]]]), 9.0)
    assert list(uneven.nearest(np.array([[0.0], [2.0], [2.8]]))) == [0, 1, 1]


def test_covariances_of_modes_are_those_of_normals():
    covariance = np.array([[1.0, 0.6], [0.6, 0.5]])
    precision = tensor(np.linalg.inv(covariance))
    target = Target.from_density(lambda q: -0.5 * ((q - 1.0) @ (precision @ (q - 1.0))), 2)
    found = separate_modes(target, Generator(0))
    np.testing.assert_allclose(found.tops, [[1.0, 1.0]], atol=0.1)
    np.testing.assert_allclose(found.covariances[0], covariance, rtol=1e-5)
    drawn = found.reference.sample((4000,), generator=Generator(1)).numpy()
    # Five standard errors of variances.
    np.testing.assert_allclose(np.cov(drawn.T), 1.2 * covariance, atol=5 * 1.2 * (2 / 4000) ** 0.5)


@pytest.mark.parametrize(("dim", "sd"), [(1, 0.1), (5, 0.25)])
def test_narrow_modes_are_found_where_a_path_in_twenty_ends(dim, sd):
    target = Target.from_model(wide_and_narrow(dim, sd))
    assert [len(separate_modes(target, Generator(seed))) for seed in range(4)] == [2] * 4
