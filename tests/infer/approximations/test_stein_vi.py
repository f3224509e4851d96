"""SteinVI: the bound of a mixture and its gradient by quadrature, and the ends of the family."""

import math

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import norm

import probtorch
import probtorch.distributions as dist
from probtorch.autograd.transforms import grad_and_value
from probtorch.effects.handlers import seed
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer import AutoDelta, AutoNormal, RBFKernel, SteinVI, Target, init_to_uniform
from probtorch.infer.approximations.stein_kernels import stein_force
from probtorch.optim import LBFGS, SGD, Adam
from probtorch.tensor import tensor

Y = np.array([1.0, 2.0, 3.0])
# Of mu given Y: mean 1.5, sd 0.5.
MEAN, SD = 1.5, 0.5


def model(y):
    mu = probtorch.sample("mu", dist.Normal(0.0, 1.0))
    with probtorch.plate("data", len(y)):
        probtorch.sample("y", dist.Normal(mu, 1.0), obs=y)


def guide(y):
    loc = probtorch.param("loc", tensor(0.0, dtype=probtorch.float64))
    scale = probtorch.param("log_scale", tensor(-1.0, dtype=probtorch.float64)).exp()
    probtorch.sample("mu", dist.Normal(loc, scale))


def evidence():
    at = norm(0.0, 1.0).logpdf(MEAN) + norm(MEAN, 1.0).logpdf(Y).sum()
    return at - norm(MEAN, SD).logpdf(MEAN)


def mixture_bound(loc, log_scale):
    """The bound of a mixture of normals, by quadrature."""
    x = np.linspace(-8.0, 11.0, 4001)
    log_q = norm(loc[:, None], np.exp(log_scale)[:, None]).logpdf(x)
    log_q = logsumexp(log_q, axis=0) - math.log(len(loc))
    log_p = norm(MEAN, SD).logpdf(x) + evidence()
    return float((np.exp(log_q) * (log_p - log_q)).sum() * (x[1] - x[0]))


def test_bound_and_its_gradient_are_those_of_the_mixture():
    loc, log_scale = np.array([0.8, 1.4, 2.3]), np.array([-0.9, -0.2, -1.3])
    stein = SteinVI(model, guide, SGD({"lr": 0.1}), RBFKernel(), 3, 3000, seed=0)
    y = tensor(Y).double()
    stein.step(y)
    leaves = {"loc": tensor(loc).double(), "log_scale": tensor(log_scale).double()}
    with seed(None, probtorch.Generator(1)):
        (slopes, _), value = grad_and_value(
            lambda own, shared: stein._bound(own, shared, (y,), {}), (0, 1)
        )(leaves, {})
    # Draws of a log ratio of sd below 2, 9000 of them: four standard errors.
    assert abs(value.item() - mixture_bound(loc, log_scale)) < 4.0 * 2.0 / math.sqrt(9000)
    h = 1e-4
    for name, at in (("loc", 0), ("log_scale", 1)):
        for i in range(3):
            up, down = [loc.copy(), log_scale.copy()], [loc.copy(), log_scale.copy()]
            up[at][i] += h
            down[at][i] -= h
            exact = (mixture_bound(*up) - mixture_bound(*down)) / (2.0 * h)
            # Measured sds are 0.002 to 0.012: four of the largest.
            assert abs(slopes[name][i].item() - exact) < 0.05


def test_one_particle_is_the_evidence_lower_bound():
    stein = SteinVI(model, AutoNormal(model), Adam({"lr": 0.1}), RBFKernel(), 1, 5, seed=0)
    result = stein.run(150, tensor(Y), progress_bar=False)
    # At the posterior all paths have a gradient of 0, so there is no noise left.
    assert abs(result.params["mu_auto_loc"].item() - MEAN) < 0.02
    assert abs(result.params["mu_auto_scale"].item() - SD) < 0.02
    assert abs(result.losses[-1] + evidence()) < 0.01
    draws = result.draws(400)
    assert abs(draws["mu"].mean() - MEAN) < 4.0 * SD / 20.0
    assert draws.attrs["pareto_k"] < 0.5


def test_points_move_as_those_of_svgd():
    delta = AutoDelta(model, init_loc_fn=init_to_uniform)
    stein = SteinVI(model, delta, SGD({"lr": 0.01}), RBFKernel("norm"), 5, 1, seed=2)
    y = tensor(Y).double()
    stein._meet((y,), {})
    before = stein.get_params()["mu_auto_loc"].numpy()[:, None]
    assert len(np.unique(before)) == 5
    _, gradients = Target.from_model(model, y).value_and_grad_many(before)
    force = stein_force(*RBFKernel("norm").evaluate(before), gradients)
    stein.step(y)
    after = stein.get_params()["mu_auto_loc"].numpy()[:, None]
    np.testing.assert_allclose(after, before + 0.01 * force, rtol=1e-9)


def test_parameters_of_the_model_and_chosen_ones_are_shared():
    def learned(y):
        noise = probtorch.param("noise", 2.0, constraint=dist.constraints.positive)
        mu = probtorch.sample("mu", dist.Normal(0.0, 1.0))
        with probtorch.plate("data", len(y)):
            probtorch.sample("y", dist.Normal(mu, noise), obs=y)

    stein = SteinVI(learned, guide, Adam({"lr": 0.05}), RBFKernel(), 3, 4, 1.0, 1.0,
                    lambda name: name == "log_scale", seed=0)  # fmt: skip
    y = tensor(Y).double()
    result = stein.run(5, y, progress_bar=False)
    shapes = {name: tuple(x.shape) for name, x in result.params.items()}
    assert shapes == {"loc": (3,), "noise": (), "log_scale": ()}
    assert result.draws(7).posterior["mu"].shape == (1, 7)
    # The expected log likelihood of the mixture, differentiated by the log of the noise.
    stein.num_elbo_particles = 3000
    leaves = {"loc": tensor([0.5, 1.0, 2.0]).double()}
    shared = {"noise": tensor(0.3).double(), "log_scale": tensor(-1.0).double()}
    with seed(None, probtorch.Generator(1)):
        (_, common), _ = grad_and_value(
            lambda own, rest: stein._bound(own, rest, (y,), {}), (0, 1)
        )(leaves, shared)
    squares = (Y - np.array([[0.5], [1.0], [2.0]])) ** 2 + math.exp(-2.0)
    exact = squares.sum(1).mean() * math.exp(-0.6) - 3.0
    # 9000 draws of a sum of squares of sd below 4: four standard errors.
    assert abs(common["noise"].item() - exact) < 4.0 * 4.0 / math.sqrt(9000)


def test_particles_that_begin_in_one_place_are_put_apart():
    stein = SteinVI(model, AutoNormal(model), Adam({"lr": 0.1}), RBFKernel(), 4, 2, seed=0)
    stein.step(tensor(Y))
    assert len(np.unique(stein.get_params()["mu_auto_loc"].numpy())) == 4


def test_a_callback_sees_each_step_and_ends_the_run():
    stein = SteinVI(model, AutoNormal(model), Adam({"lr": 0.1}), RBFKernel(), 2, 2, seed=0)
    seen = []

    def callback(step, loss):
        seen.append(loss)
        return step == 3

    result = stein.run(10, tensor(Y), callback=callback, progress_bar=False)
    assert seen == list(result.losses) and len(seen) == 4 and not result.interrupted


def test_misuse_is_refused():
    y = tensor(Y)

    def counts(y):
        z = probtorch.sample("z", dist.Poisson(2.0))
        probtorch.sample("y", dist.Normal(z, 1.0), obs=y[0])

    def drawn(y):
        probtorch.sample("z", dist.Poisson(probtorch.param("rate", 2.0)))

    def some(y):
        mu = probtorch.sample("mu", dist.Normal(0.0, 1.0))
        with probtorch.plate("data", 3, subsample_size=2) as rows:
            probtorch.sample("y", dist.Normal(mu, 1.0), obs=y[rows])

    def fixed(y):
        probtorch.sample("mu", dist.Normal(0.0, 1.0))

    adam = Adam({"lr": 0.1})
    with pytest.raises(ArgumentError, match="a kernel, such as RBFKernel"):
        SteinVI(model, guide, adam, len)
    with pytest.raises(ArgumentError, match="num_stein_particles"):
        SteinVI(model, guide, adam, RBFKernel(), 0)
    with pytest.raises(ArgumentError, match="loss_temperature"):
        SteinVI(model, guide, adam, RBFKernel(), loss_temperature=0.0)
    for program, q, words in (
        (counts, drawn, "pathwise gradient"),
        (some, guide, "2 of 3 rows"),
        (model, fixed, "a guide with parameters"),
    ):
        with pytest.raises(InferenceError, match=words):
            SteinVI(program, q, adam, RBFKernel(), seed=0).step(y)
    with pytest.raises(ArgumentError, match="LBFGS"):
        SteinVI(model, guide, LBFGS({}), RBFKernel(), 2, seed=0).step(y)
