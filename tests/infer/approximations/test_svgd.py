"""SVGD: the directions of its kernels, and where particles come to rest."""

import warnings

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer import (
    ASVGD,
    SVGD,
    GraphicalKernel,
    GuideWarning,
    IMQKernel,
    IMQSteinKernel,
    LinearKernel,
    MixtureKernel,
    RandomFeatureKernel,
    RBFKernel,
    RBFSteinKernel,
    Target,
)
from probtorch.infer.approximations.stein_kernels import stein_force
from probtorch.infer.starts.initialization import init_to_uniform, init_to_value
from probtorch.ops.exponentials import log
from probtorch.optim import LBFGS, Adagrad, Adam
from probtorch.tensor import tensor
from tests.infer.approximations.densities import COVARIANCE, LOC, gaussian

KERNELS = {
    "rbf": RBFKernel("norm"),
    "rbf vector": RBFKernel("vector", bandwidth_factor=lambda n: 1.3),
    "rbf matrix": RBFKernel("matrix", "vector_diag", 0.7),
    "pyro rbf": RBFSteinKernel(0.5),
    "imq": IMQKernel("norm", const=0.8, expon=-0.3),
    "imq vector": IMQKernel("vector"),
    "pyro imq": IMQSteinKernel(),
    "linear": LinearKernel(),
    "features": RandomFeatureKernel(seed=3),
    "mixture": MixtureKernel([0.3, 2.0], [RBFKernel(), IMQKernel()]),
    "graphical": GraphicalKernel(local_kernel_fns={"b": LinearKernel()}),
}
PARTS = {"a": (0, 2), "b": (2, 3)}


@pytest.mark.parametrize("name", KERNELS)
def test_slope_is_the_derivative_of_the_kernel(name):
    """By central differences of one particle, the bandwidth held: it is a constant of a step."""
    x = np.random.default_rng(0).standard_normal((6, 3))
    kernel, slope = KERNELS[name].evaluate(x, parts=PARTS)
    frozen = held(KERNELS[name], x)
    step = 1e-5
    for d in range(3):
        up, down = x.copy(), x.copy()
        up[1, d] += step
        down[1, d] -= step
        # Row 1 is k(x_1, x_i); of i = 1 both arguments move, which is twice the slope.
        rise = (frozen(up)[1] - frozen(down)[1]) / (2.0 * step)
        rise = rise if kernel.ndim == 2 else rise[:, d]
        expected = slope[1, :, d].copy()
        expected[1] *= 2.0
        np.testing.assert_allclose(rise, expected, rtol=1e-6, atol=1e-8)
    symmetric = kernel if kernel.ndim == 2 else kernel.transpose(2, 0, 1)
    np.testing.assert_allclose(symmetric, np.swapaxes(symmetric, -1, -2), rtol=1e-12)


def held(kernel, at):
    """The kernel with the bandwidths that it has at some particles."""
    import probtorch.infer.approximations.stein_kernels as module

    found, original = [], module._bandwidth
    module._bandwidth = lambda *args: found.append(original(*args)) or found[-1]
    kernel.evaluate(at, parts=PARTS)
    module._bandwidth = original

    def evaluate(x):
        left = iter(found)
        module._bandwidth = lambda *args: next(left)
        try:
            return kernel.evaluate(x, parts=PARTS)[0]
        finally:
            module._bandwidth = original

    return evaluate


def test_random_features_approach_the_gaussian_kernel():
    # The kernel at the particles that give the bandwidth; each of 4000 terms has an sd below 1.
    x = np.concatenate([np.random.default_rng(1).standard_normal((8, 2)), np.zeros((3992, 2))])
    factor = 1.0 / np.log(8)
    features = RandomFeatureKernel(bandwidth_subset=8, bandwidth_factor=factor)
    found = features.evaluate(x[:8])[0]  # by 8 features: near, on average
    exact = RBFKernel("norm").evaluate(x[:8])[0]
    many = np.mean(
        [
            RandomFeatureKernel(bandwidth_factor=factor, seed=s).evaluate(x[:8])[0]
            for s in range(500)
        ],
        axis=0,
    )
    assert np.abs(many - exact).max() < 4.0 / np.sqrt(4000) < np.abs(found - exact).max()


def test_force_is_the_mean_over_particles_of_pull_and_push():
    rng = np.random.default_rng(2)
    x, g = rng.standard_normal((2, 5, 3))
    for mode in ("norm", "vector"):
        k, slope = RBFKernel(mode).evaluate(x)
        k = np.broadcast_to(k[:, :, None] if k.ndim == 2 else k, (5, 5, 3))
        expected = [sum(k[j, i] * g[j] + 0.5 * slope[j, i] for j in range(5)) / 5 for i in range(5)]
        np.testing.assert_allclose(stein_force(RBFKernel(mode).evaluate(x)[0], slope, g, 0.5),
                                   expected, rtol=1e-12)  # fmt: skip


def test_particles_of_a_linear_kernel_rest_at_the_moments_of_a_normal():
    svgd = SVGD(gaussian(), LinearKernel(), Adagrad({"lr": 0.5}), 30, seed=0)
    draws = svgd.run(1500, progress_bar=False)
    x = draws.positions[0]
    sd = np.sqrt(np.diag(COVARIANCE))
    # Exact at rest (Liu and Wang 2018); what is left is how far Adagrad has come.
    assert (np.abs(x.mean(0) - LOC) < 0.02 * sd).all()
    assert np.abs((np.cov(x.T, bias=True) - COVARIANCE) / np.outer(sd, sd)).max() < 0.05
    assert 0.95 < draws.attrs["sd_ratio"] < 1.05


def test_particles_of_a_model_are_labelled_and_in_its_space():
    def model(y):
        with probtorch.plate("group", 2):
            scale = probtorch.sample("scale", dist.Gamma(3.0, 1.0))
            probtorch.sample("y", dist.Gamma(3.0, scale), obs=y)

    svgd = SVGD(model, RBFSteinKernel(), Adam({"lr": 0.1}), 40, mode="univariate", seed=0)
    draws = svgd.run(400, tensor([1.0, 3.0]), progress_bar=False)
    # Gamma(6, 2) and Gamma(6, 4): on the log scale the mean is digamma(6) - log(rate).
    found = np.log(draws["scale"]).mean((0, 1))
    np.testing.assert_allclose(found, 1.7061177 - np.log([2.0, 4.0]), atol=0.02)
    assert draws.dims["scale"] == ("group",)
    named = svgd.get_named_particles()
    assert named["scale"].shape == (40, 2) and bool((named["scale"] > 0.0).all())
    squares = svgd.step(tensor([1.0, 3.0]))
    assert set(squares) == {"scale"} and squares["scale"] < 0.01


def test_other_data_move_the_same_particles():
    def model(y):
        mu = probtorch.sample("mu", dist.Normal(0.0, 1.0))
        probtorch.sample("y", dist.Normal(mu, 0.5), obs=y)

    svgd = SVGD(model, RBFSteinKernel(), Adagrad({"lr": 0.2}), 20, seed=1)
    for y in (tensor(1.0), tensor(2.0), tensor(-1.0)):
        svgd.step(y)
    before = svgd.get_named_particles()["mu"].numpy()
    for _ in range(300):
        svgd.step(tensor(-1.0))  # another object with the same content
    assert svgd.num_steps == 303 and np.abs(before.mean() + 0.8) > 0.05
    assert abs(svgd.get_named_particles()["mu"].numpy().mean() + 0.8) < 0.01


def test_particles_that_are_too_close_together_are_told_of():
    target = Target.from_density(lambda q: -0.5 * (q * q).sum(), 40)
    svgd = SVGD(target, RBFKernel("norm"), Adagrad({"lr": 0.3}), 30, seed=0)
    with pytest.warns(GuideWarning, match=r"(?s)narrower than the posterior.*Stein's identity"):
        svgd.run(300, progress_bar=False)


def test_density_that_is_not_finite_is_an_error():
    target = Target.from_density(lambda q: log(q).sum() - q.sum(), 1)
    svgd = SVGD(target, RBFSteinKernel(), Adam({"lr": 5.0}), 5, seed=0,
                init_strategy=init_to_uniform)  # fmt: skip
    with pytest.raises(InferenceError, match=r"(?s)SVGD on .*a finite log density"):
        svgd.run(50, progress_bar=False)


def test_misuse_is_refused():
    with pytest.raises(ArgumentError, match="a kernel, such as RBFSteinKernel"):
        SVGD(gaussian(), Adam, Adam({"lr": 0.1}), 10)
    with pytest.raises(ArgumentError, match="'univariate' or 'multivariate'"):
        SVGD(gaussian(), LinearKernel(), Adam({"lr": 0.1}), 10, mode="norm")
    with pytest.raises(ArgumentError, match="LBFGS"):
        SVGD(gaussian(), LinearKernel(), LBFGS({}), 5, seed=0).step()
    with pytest.raises(InferenceError, match="none yet"):
        SVGD(gaussian(), LinearKernel(), Adam({"lr": 0.1})).get_named_particles()
    for make in (
        lambda: RBFKernel("matrx"),
        lambda: RBFKernel(matrix_mode="norm"),
        lambda: LinearKernel("vector"),
        lambda: IMQKernel(expon=0.5),
        lambda: IMQSteinKernel(alpha=-1.0),
        lambda: MixtureKernel([1.0], []),
        lambda: MixtureKernel([1.0], [RBFKernel("vector")]),
        lambda: RandomFeatureKernel(bandwidth_subset=1),
        lambda: GraphicalKernel("norm"),
        lambda: KERNELS["graphical"].evaluate(np.eye(3)),
    ):
        with pytest.raises(ArgumentError, match="fix:"):
            make()


def hills():
    """Two modes, ten standard deviations apart."""
    parts = dist.Normal(tensor(np.array([-5.0, 5.0])), 1.0)
    half = dist.Categorical(probs=tensor(np.array([0.5, 0.5])))
    probtorch.sample("x", dist.MixtureSameFamily(half, parts))


def test_cycles_lead_out_of_the_mode_that_all_particles_began_in():
    begin = init_to_value(values={"x": -5.0})
    found = {}
    for kind in (SVGD, ASVGD):
        made = kind(hills, RBFSteinKernel(), Adam({"lr": 0.1}), 30, seed=0, init_strategy=begin)
        made._meet((), {})
        # All at one point would push each other nowhere.
        made._particles.array[:] += np.linspace(-0.5, 0.5, 30)[:, None]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GuideWarning)
            draws = made.run(660, progress_bar=False)
        assert draws.attrs["inference_method"] == kind.__name__
        found[kind] = draws["x"][0]
    assert (found[SVGD] < 0.0).all()
    x = found[ASVGD]
    assert 3 <= (x > 0.0).sum() <= 27
    assert abs(np.abs(x) - 5.0).max() < 4.0  # none is left between or outside


def test_the_pull_rises_in_cycles_and_is_whole_at_the_end():
    made = ASVGD(gaussian(), RBFKernel(), Adam({"lr": 0.1}), 4, num_cycles=2, transition_speed=2.0)
    assert made._pull() == 1.0  # steps on their own
    made._course, pulls = (3, 14), []
    for made.num_steps in range(3, 17):
        pulls.append(made._pull())
    rise = [(t / 4) ** 2 for t in (1, 2, 3, 4)]
    np.testing.assert_allclose(pulls, [*rise, *rise, *[1.0] * 6])
    for name, value in (("num_cycles", 0), ("transition_speed", 0.0)):
        with pytest.raises(ArgumentError, match=name):
            ASVGD(gaussian(), RBFKernel(), Adam({"lr": 0.1}), **{name: value})
