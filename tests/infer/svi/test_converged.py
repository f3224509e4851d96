"""`Converged`: what it sees in losses, and `SVI.run(until=...)`."""

import math
import warnings

import numpy as np
import pytest

from probtorch.diagnostics.findings import InferenceWarning
from probtorch.distributions import Normal
from probtorch.effects import plate, sample
from probtorch.errors import ArgumentError
from probtorch.infer import SVI, AutoNormal, Converged, Trace_ELBO
from probtorch.optim import Adam
from probtorch.tensor import tensor

Y = tensor([1.0, 2.0, 3.0, 2.0])


def model(y):
    mu = sample("mu", Normal(0.0, 2.5))
    with plate("row", len(y)):
        sample("y", Normal(mu, 1.0), obs=y)


def exact_loss():
    covariance = np.eye(4) + 6.25
    y = Y.numpy().astype(float)
    _, log_det = np.linalg.slogdet(covariance)
    return 0.5 * (4 * math.log(2 * math.pi) + log_det + y @ np.linalg.solve(covariance, y))


def fitted(steps, **options):
    svi = SVI(model, AutoNormal(model), Adam({"lr": 0.02}), Trace_ELBO(), seed=0)
    return svi.run(steps, Y, progress_bar=False, **options)


def test_a_run_ends_when_the_loss_has_stopped_falling():
    result = fitted(50_000, until="converged")
    assert result.converged and 500 <= len(result.losses) < 20_000
    quarter = len(result.losses) // 4
    # The guide holds the posterior: what is left is the movement of the parameters.
    assert abs(result.losses[-quarter:].mean() - exact_loss()) < 0.1
    assert result.draws().attrs["converged"] is True
    assert "converged" in repr(result)


def test_a_run_that_ends_before_says_so():
    with pytest.warns(InferenceWarning, match="not converged after 600 steps") as caught:
        result = fitted(600, until=Converged(tolerance=0.0, resolution=0.0))
    assert result.converged is False and len(result.losses) == 600
    assert caught[0].filename == __file__ and "from the third quarter" in str(caught[0].message)
    assert fitted(10).converged is None


def test_steps_are_those_of_a_run_without_a_rule():
    result = fitted(900, until=lambda losses: len(losses) >= 300)
    assert len(result.losses) == 300 and result.converged
    assert np.array_equal(result.losses, fitted(300).losses)


def test_a_run_that_goes_on_ends_where_it_would_have(tmp_path):
    rule = Converged(tolerance=0.02, resolution=0.3, min_steps=100)
    whole = fitted(20_000, until=rule)
    n = len(whole.losses)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InferenceWarning)
        fitted(n - 30, until=rule, checkpoint=tmp_path)
    resumed = fitted(20_000, until=rule, checkpoint=tmp_path)
    assert np.array_equal(resumed.losses, whole.losses)
    again = fitted(20_000, until=rule, checkpoint=tmp_path)
    assert again.converged and len(again.losses) == n


@pytest.mark.parametrize("slope, noise", [(2.0, 0.1), (50.0, 3.0), (0.3, 0.01)])
def test_no_run_ends_while_it_falls(slope, noise):
    # Looked at 12 times each; a fall of 20 standard errors a quarter or more is overlooked by none.
    rng = np.random.default_rng(0)
    losses = 5.0 - slope * np.arange(4000) / 100.0 + noise * rng.standard_normal(4000)
    rule, step, looks = Converged(), 0, 0
    while (step := rule.next_look(step)) <= 4000:
        assert not rule(losses[:step])
        looks += 1
    assert looks >= 9


def test_a_rising_loss_has_not_converged():
    losses = 1.0 + np.arange(2000.0) / 100.0
    assert not Converged()(losses) and Converged().trend(losses).gain < 0.0


def test_losses_that_are_not_finite_are_left_out():
    losses = np.ones(1000)
    losses[::7] = np.nan
    assert Converged()(losses)
    assert not Converged()(np.full(1000, np.nan))


def test_stationary_noise_is_told_to_have_converged_once_it_is_resolved():
    rng = np.random.default_rng(1)
    losses = rng.standard_normal(6000)
    # 2 standard errors of a difference of means of n / 4: 0.1 at n = 3200. A difference is then
    # taken for real in 5 % of the looks, so one of the next two looks ends the run but for 1/400.
    rule = Converged(tolerance=0.0)
    assert not rule(losses[:2000])
    assert rule(losses[:4800]) or rule(losses)


@pytest.mark.parametrize("options", [{"tolerance": -1.0}, {"min_steps": 10}, {"resolution": "x"}])
def test_settings_are_checked(options):
    with pytest.raises(ArgumentError, match="expected: a number of at least"):
        Converged(**options)


def test_something_else_is_no_rule():
    with pytest.raises(ArgumentError, match="until="):
        fitted(10, until=0.1)
