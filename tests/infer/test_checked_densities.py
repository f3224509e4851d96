"""Where a parameter of a distribution is invalid the density is 0: a proposal that is rejected."""

import math
import warnings

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch import plate, sample
from probtorch.compiler.paths import CompileWarning
from probtorch.errors import DomainError, InferenceError
from probtorch.infer import MCMC, NUTS, SVI, Target, Trace_ELBO
from probtorch.infer.model_runs import OUTSIDE
from probtorch.optim import Adam
from probtorch.tensor import tensor


def eager(target, q):
    try:
        return target.density.eager(np.array(q, float))
    except OUTSIDE:
        return -math.inf, np.zeros(len(q))


def assert_like_eager(target, points):
    with warnings.catch_warnings():
        warnings.simplefilter("error", CompileWarning)
        for q in points:
            (value, gradient), (expected, slope) = target.value_and_grad(q), eager(target, q)
            assert np.isclose(value, expected, equal_nan=True) or value == expected, q
            np.testing.assert_allclose(gradient, slope, rtol=1e-9, atol=1e-12)
        many, gradients = target.value_and_grad_many(np.array(points))
        for q, value, gradient in zip(points, many, gradients, strict=True):
            expected, slope = eager(target, q)
            assert np.isclose(value, expected) or value == expected, q
            np.testing.assert_allclose(gradient, slope, rtol=1e-9, atol=1e-12)


def gamma_of_normal():
    a = sample("a", dist.Normal(0.0, 1.0))
    sample("y", dist.Gamma(a, 1.0), obs=tensor(1.2))


@pytest.mark.filterwarnings("ignore::probtorch.diagnostics.findings.InferenceWarning")
def test_draws_stay_where_the_model_is_defined():
    # 400 draws at an effective size above 60 and a deviation of 0.5: a mean off by 0.3 would be
    # more than four standard errors.
    grid = np.linspace(1e-3, 6.0, 4000)
    weight = np.array(
        [Target.from_model(gamma_of_normal).value_and_grad([g])[0] for g in grid[::40]]
    )
    weight = np.exp(weight - weight.max())
    mean = (grid[::40] * weight).sum() / weight.sum()
    for seed in range(3):
        probtorch.manual_seed(seed)
        mcmc = MCMC(NUTS(gamma_of_normal), num_samples=400, warmup_steps=300, disable_progbar=True)
        mcmc.run()
        a = mcmc.get_samples()["a"].numpy()
        assert (a > 0.0).all()
        assert abs(a.mean() - mean) < 0.3


def test_rejections_do_not_leave_native_code():
    target = Target.from_model(gamma_of_normal)
    points = [[0.5], [-0.5], [0.7], [-0.2], [-3.0], [2.0], *([x] for x in np.linspace(-1, 1, 9))]
    assert_like_eager(target, points)
    assert target.density.evaluations == 2 and target.density.reason is None


def rows(scale):
    def model():
        a = sample("a", dist.Normal(0.0, 1.0).expand([4]).to_event(1))
        b = sample("b", dist.Normal(0.0, 1.0))
        with plate("n", 4):
            sample("y", dist.Normal(b / a, scale(a, b)), obs=tensor([0.1, 0.2, 0.3, 0.4]))
        sample("z", dist.Beta(1.0 + b, 2.0), obs=tensor(0.5))

    return model


@pytest.mark.parametrize(
    "scale", [lambda a, b: a + 1.0, lambda a, b: a * b, lambda a, b: b.exp()], ids=["a", "ab", "b"]
)
def test_densities_of_random_points_are_those_of_eager_runs(scale):
    rng = np.random.default_rng(0)
    points = [np.full(5, 0.5), *rng.normal(size=(25, 5)), np.array([0.0, 0.0, 1.0, 1.0, 0.0])]
    assert_like_eager(Target.from_model(rows(scale)), points)


def test_a_model_that_catches_the_refusal_has_the_density_it_says():
    def model():
        a = sample("a", dist.Normal(0.0, 1.0))
        try:
            likelihood = dist.Gamma(a, 1.0)
        except DomainError:
            likelihood = dist.Exponential(a.exp())
        sample("y", likelihood, obs=tensor(1.2))

    target = Target.from_model(model)
    assert_like_eager(target, [[x] for x in (0.5, -0.5, 1.0, -1.0, 0.2, -0.2, 0.3, 0.9, -0.7)])
    assert math.isfinite(target.value_and_grad([-0.5])[0])
    assert target.density.evaluations == 2


def test_a_value_outside_a_support_that_moves_is_rejected():
    def model():
        high = sample("high", dist.Normal(1.0, 1.0))
        with plate("n", 3):
            sample("y", dist.Uniform(0.0, high), obs=tensor([0.1, 0.2, 0.7]))

    target = Target.from_model(model)
    assert_like_eager(target, [[x] for x in (1.0, 0.5, -1.0, 2.0, 0.71, 0.69, 0.0, -0.1, 3.0, 0.1)])


def test_checks_in_a_python_loop_are_rolled_with_it():
    def model():
        a = sample("a", dist.Normal(0.0, 1.0))
        x = tensor(0.0, dtype=probtorch.float64)
        for t in range(400):
            x = 0.9 * x + a * math.sin(t)
            sample(f"y{t}", dist.Normal(x, 1.0 + a * (t % 3)), obs=tensor(0.1 * (t % 7)))

    target = Target.from_model(model)
    assert_like_eager(target, [[x] for x in (0.3, -0.6, 0.1, -0.4, -0.7)])
    assert target.density.reason is None
    assert all(len(path.graph.nodes) < 400 for path in target.density.paths)


def test_a_nan_that_a_mask_hides_is_refused_as_eagerly():
    # log of a negative number in a masked row: the parameter is nan, though the density is not.
    def model():
        a = sample("a", dist.Normal(0.0, 1.0))
        loc = probtorch.stack([a, (a + 1.0).log()])
        with plate("n", 2):
            likelihood = dist.Normal(loc, 1.0).mask(tensor([True, False]))
            sample("y", likelihood, obs=tensor([0.1, 0.2]))

    assert_like_eager(Target.from_model(model), [[x] for x in (0.5, -2.0, 0.1, -3.0, -0.5)])


def test_a_step_of_svi_refuses_a_parameter_that_has_left_its_set():
    def model():
        p = probtorch.param("p", tensor(0.3))
        x = sample("x", dist.Beta(2.0, 2.0))
        with plate("n", 3):
            sample("y", dist.Beta(p, 1.0), obs=tensor([0.9, 0.95, 0.99]))
        return x

    def guide():
        sample("x", dist.Beta(2.0, 2.0))

    losses = {}
    for jit in (True, False):
        probtorch.clear_param_store()
        svi = SVI(model, guide, Adam({"lr": 1e-3}), Trace_ELBO(), seed=0)
        if not jit:
            svi.loss_and_grads = svi.loss_and_grads  # a step of its own is not compiled
        losses[jit] = [svi.step() for _ in range(4)]
        with probtorch.no_grad():
            probtorch.get_param_store()["p"].data.fill_(-1.5)
        with pytest.raises(InferenceError, match="concentration1"):
            svi.step()
    np.testing.assert_allclose(losses[True], losses[False], rtol=1e-5)


def test_a_model_that_runs_at_one_point_in_eight_is_found_to_run():
    def model():
        a = sample("a", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        w = sample("w", dist.Dirichlet(a))
        sample("y", dist.Categorical(w), obs=tensor(1))

    target = Target.from_model(model)
    assert_like_eager(target, [np.full(5, 0.3), np.array([0.5, -0.5, 1.0, 0.1, 0.2])])
