"""Guides by flows: where they start, whose weights they use, what every objective makes of them."""

import functools

import numpy as np
import pytest

from probtorch.core.rng import Generator, manual_seed
from probtorch.distributions import LogNormal, Normal
from probtorch.distributions.transforms import (
    AffineTransform,
    PermuteTransform,
    SigmoidTransform,
    SoftmaxTransform,
    affine_autoregressive,
    affine_coupling,
    iterated,
    planar,
    radial,
    spline_autoregressive,
    spline_coupling,
)
from probtorch.effects import handlers, sample
from probtorch.errors import ArgumentError
from probtorch.infer import (
    SVI,
    AutoIAFNormal,
    AutoNormalizingFlow,
    ImportanceWeightedELBO,
    RenyiELBO,
    ReweightedWakeSleep,
    Trace_ELBO,
    TraceGraph_ELBO,
    TraceMeanField_ELBO,
    init_to_value,
)
from probtorch.optim import Adam
from probtorch.tensor import tensor
from tests.infer.svi.programs import MEAN, correlated_model
from tests.infer.svi.test_guides import fit

KINDS = {
    "planar": functools.partial(iterated, 3, planar),
    "radial": functools.partial(iterated, 2, radial),
    "iaf": affine_autoregressive,
    "maf": lambda dim: affine_autoregressive(dim).inv,
    "coupling": affine_coupling,
    "spline coupling": spline_coupling,
    "spline autoregressive": spline_autoregressive,
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_flow_starts_near_the_initial_point_with_a_small_spread(kind):
    guide = AutoNormalizingFlow(
        correlated_model, KINDS[kind], init_to_value(values={"x": MEAN}), init_scale=0.01
    )
    with handlers.seed(None, 0):
        guide()
    draws = guide.sample_posterior(1000, generator=Generator(0))["x"].numpy()
    np.testing.assert_allclose(draws.mean(0), MEAN, atol=0.05)
    assert (draws.std(0) < 0.05).all() and (draws.std(0) > 1e-4).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_moves_the_weights_of_the_flow_and_not_those_of_its_module(kind):
    guide = AutoNormalizingFlow(correlated_model, KINDS[kind])
    svi = SVI(correlated_model, guide, Adam({"lr": 0.1}), Trace_ELBO(5), seed=0)
    svi.setup()
    own = [p.detach().numpy().copy() for p in guide.flow.parameters()]
    names = [f"auto_flow.{n}" for n, _ in guide.flow.named_parameters()]
    before = svi.get_params()
    assert set(before) == {"auto_loc", "auto_scale", *names}
    svi.step()
    after = svi.get_params()
    assert any((before[n].numpy() != after[n].numpy()).any() for n in names)
    for p, old in zip(guide.flow.parameters(), own, strict=True):
        np.testing.assert_array_equal(p.detach().numpy(), old)


def test_a_flow_starts_the_same_in_every_run_and_leaves_the_default_generator_alone():
    runs = []
    for other in (1, 2):
        manual_seed(other)
        svi = SVI(correlated_model, AutoIAFNormal(correlated_model), Adam({"lr": 0.01}), seed=5)
        result = svi.run(3, progress_bar=False)
        runs.append(result.losses)
        twin = Generator(other)
        assert sample("u", Normal(0.0, 1.0)).item() == Normal(0.0, 1.0).sample((), twin).item()
    np.testing.assert_array_equal(*runs)


def test_a_resumed_run_goes_on_bit_for_bit():
    def svi():
        return SVI(correlated_model, AutoIAFNormal(correlated_model), Adam({"lr": 0.05}), seed=3)

    whole = svi().run(12, progress_bar=False)
    first = svi()
    first.run(5, progress_bar=False)
    second = svi()
    second.load_state_dict(first.state_dict())
    rest = second.run(7, progress_bar=False)
    np.testing.assert_array_equal(rest.losses, whole.losses[5:])


def test_answers_do_not_change_with_later_steps():
    guide = AutoIAFNormal(correlated_model)
    svi = SVI(correlated_model, guide, Adam({"lr": 0.1}), seed=0)
    svi.run(5, progress_bar=False)
    posterior, point = guide.get_posterior(), tensor(MEAN)
    before = posterior.log_prob(point).item()
    svi.run(5, progress_bar=False)
    assert posterior.log_prob(point).item() == before
    assert guide.get_posterior().log_prob(point).item() != before


def test_medians_and_quantiles_are_those_of_draws():
    def model():
        sample("a", LogNormal(0.0, 1.0))
        sample("b", Normal(0.0, 1.0))

    guide = AutoNormalizingFlow(model, spline_coupling, init_scale=0.5)
    guide()
    draws = guide.sample_posterior(40_000, generator=Generator(9))
    found = guide.quantiles([0.05, 0.5, 0.95])
    for name, x in draws.items():
        expected = np.quantile(x.numpy(), [0.05, 0.5, 0.95])
        # Five standard errors of a 5 % quantile of 10 000 draws and of 40 000.
        np.testing.assert_allclose(found[name].numpy(), expected, atol=0.12 * x.numpy().std())
        assert found[name][1].item() == guide.median()[name].item()


OBJECTIVES = [
    Trace_ELBO(4, vectorize_particles=True),
    TraceGraph_ELBO(4),
    TraceMeanField_ELBO(4),
    RenyiELBO(0.5, 4),
    ImportanceWeightedELBO(4),
    ImportanceWeightedELBO(4, gradient="dreg"),
    ReweightedWakeSleep(4),
]
BY_DEFAULT = (Trace_ELBO, RenyiELBO, ReweightedWakeSleep)


@pytest.mark.parametrize(
    "objective",
    # Those that weigh whole particles differ most from the plain bound.
    [
        pytest.param(o, marks=[] if type(o) in BY_DEFAULT else [pytest.mark.slow])
        for o in OBJECTIVES
    ],
    ids=lambda o: type(o).__name__,
)
def test_every_objective_can_train_a_flow(objective):
    guide = AutoIAFNormal(correlated_model)
    result = fit(correlated_model, guide, 300, lr=0.05, objective=objective)
    # The evidence is 1, and the loss begins at 4.9. Bounds of several particles, and the others'
    # own divergences, bring it down more slowly: with AutoMultivariateNormal as well.
    estimate = Trace_ELBO(500, vectorize_particles=True)
    bound = SVI(correlated_model, guide, Adam({}), estimate, seed=0)
    bound.params = result.svi.params
    assert bound.evaluate_loss() < 2.6


def test_the_gradient_of_a_density_with_a_known_pre_image_is_that_of_the_inverse():
    """Total derivatives: the draw moves with the weights as well as its density."""
    guide = AutoNormalizingFlow(correlated_model, functools.partial(iterated, 2, planar))
    svi = SVI(correlated_model, guide, Adam({"lr": 1e-9}), seed=0)
    svi.setup()
    found = []
    with svi.params.activate():
        for known in (True, False):
            fn = guide.distribution()
            y = fn.rsample((5,), Generator(2))
            # The same numbers on the same tape, but another tensor.
            lp = fn.log_prob(y if known else y + 0.0).sum()
            leaves = [p for _, p in svi.params.named_parameters()]
            lp.backward()
            found.append([_numbers(p.grad, p.shape) for p in leaves])
            for p in leaves:
                p.grad = None
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-10)


def _numbers(gradient, shape):
    return np.zeros(shape) if gradient is None else gradient.numpy().copy()


@pytest.mark.parametrize(
    "transform",
    [None, SoftmaxTransform(), lambda x: x],
    ids=["None", "softmax", "function"],
)
def test_what_is_no_invertible_transform_of_vectors_is_refused(transform):
    guide = AutoNormalizingFlow(correlated_model, lambda dim: transform)
    with pytest.raises(ArgumentError, match="init_transform_fn"):
        guide()


@pytest.mark.parametrize(
    "transform", [PermuteTransform([2, 0, 1]), AffineTransform(1.0, 2.0)], ids=repr
)
def test_a_flow_without_parameters_will_do(transform):
    guide = AutoNormalizingFlow(correlated_model, lambda dim: transform)
    guide()
    assert guide.sample_posterior(3)["x"].shape == (3, 3)
    assert SigmoidTransform().bijective


def test_one_latent_number_is_enough_for_an_autoregressive_flow():
    def model():
        sample("x", Normal(1.0, 2.0))

    guide = AutoIAFNormal(model, hidden_dim=4, num_transforms=2)
    fit(model, guide, 500, lr=0.05)
    draws = guide.sample_posterior(20_000, generator=Generator(0))["x"].numpy()
    np.testing.assert_allclose((draws.mean(), draws.std()), (1.0, 2.0), atol=0.1)
