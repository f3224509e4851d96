"""Statements: what they return, and what they refuse."""

import math

import numpy as np
import pytest
from scipy import stats

from probtorch.distributions import constraints
from probtorch.distributions.normal import Normal
from probtorch.effects.handlers import condition, mask, seed, trace
from probtorch.effects.params import get_param_store
from probtorch.effects.placing import replicate
from probtorch.effects.plates import plate
from probtorch.effects.primitives import deterministic, factor, param, sample
from probtorch.errors import DomainError, DTypeError, ModelError, ShapeError
from probtorch.tensor import tensor


def log_joint(model, *args):
    return trace(model).get_trace(*args).log_prob_sum().item()


# ------------------------------------------------------------------------------ sample


def test_sample_without_handlers_draws_with_a_gradient():
    loc = tensor(1.0, requires_grad=True)
    x = sample("x", Normal(loc, 1.0))
    x.backward()
    assert x.shape == () and loc.grad.item() == 1.0


def test_observed_value_is_returned():
    y = tensor([1.0, 2.0])
    assert sample("y", Normal(0.0, 1.0), obs=y) is y


def test_python_data_do_not_lose_digits_in_the_density():
    got = log_joint(lambda: sample("y", Normal(0.0, 3.0), obs=0.1))
    assert math.isclose(got, stats.norm(0, 3).logpdf(0.1), rel_tol=1e-15)


def test_function_can_be_sampled_and_has_no_density():
    def model():
        return sample("x", lambda a, b=0: tensor(float(a + b)), 2, b=3)

    assert model().item() == 5.0
    with pytest.raises(ModelError, match="no density"):
        log_joint(model)


def test_sample_shape_puts_copies_on_the_left():
    assert sample("x", Normal(0.0, np.ones(3)), sample_shape=(2,), rng_key=7).shape == (2, 3)


def test_infer_settings_are_the_sites_own():
    options = {"a": 1}
    with trace() as tr:
        sample("x", Normal(0.0, 1.0), infer=options)
    tr["x"]["infer"]["b"] = 2
    assert options == {"a": 1}


def test_name_that_is_no_string_is_refused():
    with pytest.raises(DTypeError, match=r"a name as its first argument[\s\S]*Normal[\s\S]*write"):
        sample(Normal(0.0, 1.0), "x")


def test_value_instead_of_a_distribution_is_refused():
    with pytest.raises(
        DTypeError, match=r"site 'x'[\s\S]*a distribution[\s\S]*float 1.0[\s\S]*obs"
    ):
        sample("x", 1.0)


def test_duplicate_names_are_refused_with_both_lines():
    def model():
        sample("x", Normal(0.0, 1.0))
        sample("x", Normal(0.0, 1.0))

    line = model.__code__.co_firstlineno
    with pytest.raises(ModelError) as error:
        trace(model).get_trace()
    text = str(error.value)
    assert "Multiple sample sites named 'x'" in text
    assert f"{__file__}:{line + 1}" in text and f"{__file__}:{line + 2}" in text
    assert "expected" in text and "fix" in text and "x_{i}" in text


# ------------------------------------------------------------------------------ shapes of data


def test_values_outside_any_plate_are_refused_when_the_density_is_asked_for():
    def model():
        mu = sample("mu", Normal(0.0, 1.0))
        sample("y", Normal(mu, 1.0), obs=np.zeros(10))

    tr = trace(model).get_trace()
    with pytest.raises(ModelError) as error:
        tr.log_prob_sum()
    text = str(error.value)
    assert "site 'y' has 10 values outside any plate" in text
    assert "with plate('data', 10)" in text and ".to_event(1)" in text
    assert error.value.location == f"{__file__}:{model.__code__.co_firstlineno + 2}"


def test_latent_values_outside_any_plate_are_refused_too():
    with pytest.raises(ModelError, match=r"site 'x' has 6 values outside any plate"):
        log_joint(lambda: sample("x", Normal(np.zeros((2, 3)), 1.0)))


def test_dim_left_of_the_plate_is_outside_it():
    def model():
        with plate("rows", 3):
            sample("x", Normal(np.zeros((5, 3)), 1.0))

    with pytest.raises(ModelError, match=r"site 'x' has 5 values[\s\S]*'rows' at dim -1") as error:
        log_joint(model)
    assert "to_event" not in str(error.value)


def test_to_event_declares_one_draw():
    y = np.linspace(-1, 1, 10)
    got = log_joint(lambda: sample("y", Normal(0.0, np.ones(10)).to_event(1), obs=y))
    assert math.isclose(got, stats.norm.logpdf(y).sum(), rel_tol=1e-14)


def test_data_that_would_multiply_the_terms_are_refused():
    def model():
        with plate("data", 10):
            sample("y", Normal(np.zeros((10, 1)), 1.0), obs=np.zeros(10))

    with pytest.raises(ShapeError) as error:
        model()
    text = str(error.value)
    assert "log_prob would have 100 terms for 10 observations" in text
    assert "(10,)" in text and "(10, 10)" in text and "squeeze" in text
    assert error.value.location == f"{__file__}:{model.__code__.co_firstlineno + 2}"


def test_data_given_by_condition_are_checked_as_well():
    def model():
        with plate("data", 10):
            sample("y", Normal(0.0, 1.0))

    with pytest.raises(ShapeError, match="100 terms for 10 observations"):
        condition(model, {"y": np.zeros((10, 1))})()


def test_one_observation_for_many_rows_is_refused():
    with plate("data", 5):
        with pytest.raises(ShapeError, match="5 terms for 1 observations"):
            sample("y", Normal(0.0, 1.0), obs=1.0)


def test_data_that_do_not_fit_are_refused_by_site():
    with plate("data", 5):
        with pytest.raises(ShapeError, match=r"site 'y'[\s\S]*\(5,\)[\s\S]*shape \(4,\)"):
            sample("y", Normal(0.0, 1.0), obs=np.zeros(4))


def test_wrong_event_size_is_refused_by_site():
    with pytest.raises(ShapeError, match=r"site 'y'[\s\S]*event \(3,\)[\s\S]*\(1,\)"):
        sample("y", Normal(np.zeros(3), 1.0).to_event(1), obs=np.zeros(1))


def test_full_data_in_a_subsampling_plate_are_refused_with_the_cure():
    with plate("data", 10, subsample_size=4):
        with pytest.raises(ShapeError, match=r"works on 4 of 10 rows[\s\S]*obs=data\[rows\]"):
            sample("y", Normal(0.0, 1.0), obs=np.zeros(10))


def test_dims_of_inference_are_held_to_no_plate():
    y = np.array([0.5, -1.0])

    def model():
        mu = sample("mu", Normal(0.0, 1.0))
        with plate("data", 2):
            sample("y", Normal(mu, 1.0), obs=y)

    with trace() as tr, replicate(size=4, dim=-2), seed(rng_seed=0):
        model()
    assert tr["mu"]["value"].shape == (4, 1)
    assert tr["y"].compute_log_prob().shape == (4, 2)
    mu = tr["mu"]["value"].numpy().astype("float64")
    want = stats.norm.logpdf(mu).sum() + stats.norm(mu, 1).logpdf(y).sum()
    assert math.isclose(tr.log_prob_sum().item(), want, rel_tol=1e-6)


# ------------------------------------------------------------------------------ obs_mask


def test_partly_observed_site_joins_data_and_draws():
    there = np.array([True, False, True])
    y = np.array([0.5, np.nan, 2.0])

    def model():
        with plate("data", 3):
            return sample("y", Normal(1.0, 2.0), obs=y, obs_mask=there)

    tr = trace(seed(model, rng_seed=0)).get_trace()
    joined = tr.returned.numpy()
    assert joined[0] == 0.5 and joined[2] == 2.0
    assert joined[1] == tr["y_unobserved"]["value"].numpy()[1]
    want = stats.norm(1, 2).logpdf([0.5, 2.0]).sum()
    assert math.isclose(tr["y_observed"].compute_log_prob_sum().item(), want, rel_tol=1e-14)
    assert tr.stochastic_nodes == ["y_unobserved"] and tr["y"].kind == "deterministic"


def test_obs_mask_without_data_leaves_everything_latent():
    with plate("data", 2), trace() as tr:
        sample("y", Normal(0.0, 1.0), obs_mask=[True, False])
    assert tr.stochastic_nodes == ["y"]


# ------------------------------------------------------------------------------ factor and others


def test_factor_adds_to_the_joint_density():
    def model():
        factor("f", -1.5)
        with plate("a", 3):
            factor("g", tensor([1.0, 2.0, 3.0]))

    assert log_joint(model) == 4.5


def test_factor_counts_once_per_row_of_its_plate():
    def model():
        with plate("a", 3):
            factor("f", 2.0)

    assert log_joint(model) == 6.0


def test_factor_outside_a_plate_must_be_one_number():
    with pytest.raises(ModelError, match=r"factor 'f' has 3 values[\s\S]*sum the log factor"):
        log_joint(lambda: factor("f", np.zeros(3)))


def test_masked_factor_passes_no_gradient():
    x = tensor([1.0, 2.0], requires_grad=True)

    def model():
        with plate("a", 2), mask(mask=[True, False]):
            factor("f", x * x)

    trace(model).get_trace().log_prob_sum().backward()
    assert x.grad.tolist() == [2.0, 0.0]


def test_deterministic_is_recorded_and_has_no_density():
    def model():
        return deterministic("d", tensor([1.0, 2.0]))

    tr = trace(model).get_trace()
    assert tr["d"]["value"] is tr.returned
    assert tr.log_prob_sum().item() == 0.0
    assert tr.stochastic_nodes == tr.observation_nodes == []


# ------------------------------------------------------------------------------ param


def test_param_is_made_once_and_read_again():
    first = param("w", tensor([1.0, 2.0]))
    second = param("w", tensor([5.0, 5.0]))
    assert first.tolist() == second.tolist() == [1.0, 2.0]
    assert param("v", init_value=lambda: tensor(3.0)).item() == 3.0


def test_constrained_param_is_differentiable_in_its_leaf():
    param("s", 2.0, constraint=constraints.positive).backward()
    assert math.isclose(get_param_store().unconstrained("s").grad.item(), 2.0, rel_tol=1e-6)


def test_param_without_initial_value_is_refused():
    with pytest.raises(ModelError, match=r"param 'w'[\s\S]*initial value[\s\S]*write param"):
        param("w")


def test_param_outside_its_constraint_is_refused():
    with pytest.raises(
        DomainError, match=r"parameter 's'[\s\S]*positive[\s\S]*-1[\s\S]*constraint"
    ):
        param("s", -1.0, constraint=constraints.positive)


def test_param_is_cut_to_the_rows_of_a_subsampling_plate():
    with plate("data", 5, subsample=[3, 1]):
        assert param("w", np.arange(5.0), event_dim=0).tolist() == [3.0, 1.0]
        assert param("v", np.arange(10.0).reshape(5, 2), event_dim=1).tolist() == [[6, 7], [2, 3]]
