"""Starting points: each strategy, and what is said when there is none."""

import numpy as np
import pytest

from probtorch.core.dispatch import wrap
from probtorch.core.rng import Generator
from probtorch.distributions import (
    Cauchy,
    Dirichlet,
    Exponential,
    HalfNormal,
    ImproperUniform,
    Normal,
    Uniform,
    constraints,
)
from probtorch.effects import factor, plate, sample
from probtorch.errors import DomainError, InferenceError, ModelError
from probtorch.infer import (
    AutoNormal,
    Target,
    init_to_feasible,
    init_to_generated,
    init_to_mean,
    init_to_median,
    init_to_sample,
    init_to_uniform,
    init_to_value,
)
from probtorch.infer.starts.initialization import check_value_names
from probtorch.ops.arithmetic import sqrt
from probtorch.ops.exponentials import log
from probtorch.tensor import tensor


def model():
    sample("x", Normal(3.0, 1.0))
    high = sample("high", Exponential(1.0))
    sample("inside", Uniform(0.0, high))
    sample("p", Dirichlet(tensor([5.0, 2.0, 3.0])))
    with plate("row", 4):
        sample("heavy", Cauchy(0.0, 1.0))
    sample("flat", ImproperUniform(constraints.positive))


def start(strategy, chains=1, seed=0):
    target = Target.from_model(model)
    return target, target.initial(chains, Generator(seed), strategy)


@pytest.mark.parametrize(
    "strategy",
    [
        init_to_uniform,
        init_to_feasible,
        init_to_median,
        init_to_median(num_samples=5),
        init_to_mean,
    ],
    ids=["uniform", "feasible", "median", "median of 5", "mean"],
)
def test_every_strategy_starts_at_a_finite_point(strategy):
    target, points = start(strategy, 3)
    assert points.shape == (3, target.dim)
    for q in points:
        value, gradient = target.value_and_grad(q)
        assert np.isfinite(value) and np.isfinite(gradient).all()


def test_uniform_stays_in_its_radius_and_differs_by_chain():
    _, points = start(init_to_uniform(radius=0.5), 4)
    assert np.abs(points).max() <= 0.5 and np.abs(points).max() > 0.3
    assert len(np.unique(points[:, 0])) == 4


def test_chain_starts_at_the_same_point_whatever_the_number_of_chains():
    _, two = start(init_to_uniform, 2)
    _, four = start(init_to_uniform, 4)
    np.testing.assert_array_equal(two, four[:2])


def test_feasible_is_the_middle_of_the_unconstrained_space():
    _, points = start(init_to_feasible)
    np.testing.assert_allclose(points, 0.0, atol=1e-12)


def test_mean_is_the_prior_mean_where_there_is_one():
    target, points = start(init_to_mean)
    values = target.constrain(wrap(points[0]))
    np.testing.assert_allclose(values["x"].array, 3.0)
    np.testing.assert_allclose(values["high"].array, 1.0)
    np.testing.assert_allclose(values["inside"].array, 0.5)
    np.testing.assert_allclose(values["p"].array, [0.5, 0.2, 0.3])


def test_strategies_without_an_answer_ask_the_one_that_was_given():
    def heavy():
        sample("x", Cauchy(3.0, 1.0))

    given = init_to_value(values={"x": 7.0})
    guide = AutoNormal(heavy, init_loc_fn=init_to_mean(fallback=given))
    guide()
    assert guide.median()["x"].item() == 7.0


def test_median_approaches_the_prior_median():
    # The median of 2001 draws of Normal(3, 1) has standard error 0.028; 0.15 is 5 of them.
    target, points = start(init_to_median(num_samples=2001))
    values = target.constrain(wrap(points[0]))
    assert abs(values["x"].array - 3.0) < 0.15
    assert abs(values["high"].array - np.log(2)) < 0.15
    np.testing.assert_allclose(values["p"].array.sum(), 1.0)


def test_sample_draws_from_the_prior():
    def narrow():
        sample("x", Normal(100.0, 0.1))

    points = Target.from_model(narrow).initial(5, Generator(1), init_to_sample)
    assert np.abs(points - 100.0).max() < 1.0 and len(np.unique(points)) == 5


def test_given_values_are_used_and_the_rest_falls_back():
    strategy = init_to_value(values={"x": 7.0, "high": 2.0}, fallback=init_to_feasible)
    target, points = start(strategy)
    values = target.constrain(wrap(points[0]))
    np.testing.assert_allclose([values["x"].array, values["high"].array], [7.0, 2.0])
    np.testing.assert_allclose(values["inside"].array, 1.0)


def test_generated_strategy_is_made_for_each_try():
    def model():
        x = sample("x", Normal(0.0, 1.0))
        factor("f", log(x - 2.5))  # NaN, then -inf, at the first values below

    values = iter([2.0, 2.5, 3.0])
    strategy = init_to_generated(generate=lambda: init_to_value(values={"x": next(values)}))
    assert Target.from_model(model).initial(1, Generator(0), strategy)[0, 0] == 3.0


def test_unknown_name_is_refused_with_the_closest_one():
    with pytest.raises(ModelError, match=r"(?s)no latent site 'hihg'.*did you mean 'high'"):
        start(init_to_value(values={"hihg": 1.0}))


def test_value_outside_the_support_is_refused():
    with pytest.raises(DomainError, match=r"(?s)value of site 'high'.*got: +-1"):
        start(init_to_value(values={"high": -1.0}))


# ------------------------------------------------------------------------------ failures


def failure(model, *args, strategy=init_to_uniform):
    """The message of the search in vain: three parts, at most 12 lines, at a line of this file."""
    with pytest.raises(InferenceError) as caught:
        Target.from_model(model, *args).initial(1, Generator(0), strategy)
    message = str(caught.value)
    assert all(part in message for part in ("expected:", "got:", "fix:"))
    assert len(message.splitlines()) <= 12
    return message


def test_a_gradient_that_is_nan_is_told_of_though_points_further_out_have_no_density():
    def kinked(y):
        b = sample("b", Normal(0.0, 1.0))
        with plate("data", 2):
            sample("y", Exponential((5.0 * b).exp() + 0.0 * (0.0 * b).sqrt()), obs=y)

    message = failure(kinked, np.array([1.0, 1e5]))
    assert "the gradient for site 'b' is nan" in message


def test_data_outside_the_support_are_counted_and_placed():
    def waiting(y):
        rate = sample("rate", HalfNormal(1.0))
        with plate("data", 4):
            sample("y", Exponential(rate), obs=y)

    message = failure(waiting, np.array([1.0, -2.5, 3.0, -1.0]))
    assert "no starting point for waiting in 100 tries" in message
    assert "observed site 'y': 2 of 4 values are not in" in message
    assert "the first -2.5 at index (1,)" in message
    assert "check the data" in message and "test_initialization.py" in message
    assert "rate" in message and "HalfNormal" in message  # the table has every site


@pytest.mark.parametrize("strategy", [init_to_uniform, init_to_sample, init_to_median])
def test_starts_are_found_where_data_leave_little_of_a_support(strategy):
    def bounded(y):
        top = sample("top", Uniform(0.0, 100.0))
        with plate("data", 2):
            sample("y", Uniform(0.0, top), obs=y)

    # Two in a thousand draws of the prior; the unconstrained value is above 6.2.
    target = Target.from_model(bounded, np.array([99.8, 3.0]))
    for seed in range(5):
        (q,) = target.initial(1, Generator(seed), strategy)
        assert 99.8 < target.constrain(tensor(q))["top"].item() < 100.0


def test_minus_infinity_names_the_site_and_its_value():
    def impossible():
        sample("a", Normal(0.0, 1.0))
        sample("y", Uniform(0.0, 1.0, validate_args=False), obs=tensor(2.0))

    message = failure(impossible)
    assert "log density -inf at observed site 'y': the value 2 is not in" in message


def test_nan_is_told_apart_and_names_the_parameter():
    def broken():
        x = sample("x", Normal(0.0, 1.0))
        sample("y", Normal(log(-1.0 - x * x), 1.0, validate_args=False), obs=tensor(2.0))

    message = failure(broken)
    assert "log density nan at observed site 'y', whose parameter loc is nan" in message
    assert "log or sqrt of a negative number" in message


def test_nan_factor_is_named():
    def broken():
        x = sample("x", Normal(0.0, 1.0))
        factor("penalty", sqrt(-1.0 - x * x))

    assert "log density nan at factor 'penalty'" in failure(broken)


def test_gradient_that_is_not_finite_names_the_site():
    def cusp():
        sample("a", Normal(0.0, 1.0))
        x = sample("x", Normal(0.0, 1.0))
        factor("f", -sqrt(x * x))

    message = failure(cusp, strategy=init_to_feasible)
    assert "in 1 try" in message
    assert "a finite log density, but the gradient for site 'x' is nan" in message
    assert "a norm or a power of 0" in message


def test_hand_written_density_says_what_it_gave():
    target = Target.from_density(lambda q: log(-1.0 - q * q).sum(), 2)
    with pytest.raises(InferenceError, match=r"(?s)got: +log density nan.*init_params"):
        target.initial(1, Generator(0))


def test_long_table_shows_the_site_at_fault():
    def many():
        for i in range(20):
            sample(f"x{i}", Normal(0.0, 1.0))
        sample("last", Uniform(0.0, 1.0, validate_args=False), obs=tensor(2.0))

    message = failure(many)
    assert "last" in message and "and 16 more" in message


def test_values_of_a_site_and_of_what_stands_for_it_may_be_given_together():
    both = {"high": 2.0, "high_base": 3.0}
    for name, other in (("high", "high_base"), ("high_base", "high")):
        check_value_names(init_to_value(values=both), [name], "the model")
        with pytest.raises(ModelError, match=f"no latent site '{other}'"):
            check_value_names(init_to_value(values={other: 1.0}), [name], "the model")
