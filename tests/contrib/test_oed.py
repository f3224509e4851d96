"""Expected information gains against closed forms, enumeration and finite differences.

Statistical tests have fixed seeds; tolerances are 4.5 standard errors or more (false alarms below
1e-5 each), plus what is stated of the bias.
"""

import itertools
import math

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch import nn, param, plate, plate_stack, sample
from probtorch.contrib import oed
from probtorch.contrib.oed.eig import nmc_eig as by_pyros_path
from probtorch.effects.params import get_param_store
from probtorch.errors import ArgumentError, InferenceError
from probtorch.optim import SGD, Adam
from probtorch.tensor import tensor

DESIGNS = tensor([[0.0], [0.5], [2.0]])
# Of y ~ N(w d, 1), w ~ N(0, 1).
GAINS = 0.5 * np.log1p(DESIGNS.numpy()[:, 0] ** 2)


@pytest.fixture(autouse=True)
def fresh():
    get_param_store().clear()
    probtorch.manual_seed(11)


def linear(design):
    with plate_stack("designs", design.shape[:-1]):
        w = sample("w", dist.Normal(0.0, 1.0))
        sample("y", dist.Normal(w * design[..., 0], 1.0))


def posterior(y, design, observation_labels, target_labels):
    """The exact posterior of `linear`."""
    d = design[..., 0]
    with plate_stack("designs", design.shape[:-1]):
        sample("w", dist.Normal(y["y"] * d / (1.0 + d**2), (1.0 + d**2) ** -0.5))


def outcomes(design, observation_labels, target_labels):
    """The exact distribution of the outcomes of `linear`."""
    with plate_stack("designs", design.shape[:-1]):
        sample("y", dist.Normal(0.0, (1.0 + design[..., 0] ** 2) ** 0.5))


def given(theta, design, observation_labels, target_labels):
    with plate_stack("designs", design.shape[:-1]):
        sample("y", dist.Normal(theta["w"] * design[..., 0], 1.0))


def odds(design, trace, observation_labels, target_labels):
    """The exact log density of the outcome given the target less that of the outcome."""
    w, y, d = trace.nodes["w"]["value"], trace.nodes["y"]["value"], design[..., 0]
    v = 1.0 + d**2
    return -0.5 * (y - w * d) ** 2 + 0.5 * y**2 / v + 0.5 * v.log()


ASK = (DESIGNS, "y", "w")
EXACT = {
    # M = 400 inner draws: a bias of less than Var(p / E p) / 2 M, some 0.01 for the last design.
    "nmc": (lambda: oed.nmc_eig(linear, *ASK, N=4000, M=400), 0.07),
    # With the exact posterior the inner mean has no variance.
    "vnmc": (lambda: oed.vnmc_eig(linear, *ASK, (4000, 2), 0, posterior, None), 0.07),
    "posterior": (lambda: oed.posterior_eig(linear, *ASK, 4000, 0, posterior, None), 0.06),
    "analytic": (
        lambda: oed.posterior_eig(linear, *ASK, 2, 0, posterior, None, analytic_entropy=True),
        1e-5,
    ),
    "marginal": (lambda: oed.marginal_eig(linear, *ASK, 4000, 0, outcomes, None), 0.07),
    "marginal likelihood": (
        lambda: oed.marginal_likelihood_eig(linear, *ASK, 4000, 0, outcomes, given, None),
        0.07,
    ),
    # exp(T) is the ratio of densities, whose mean of 1 has a heavy tail for the last design.
    "donsker varadhan": (
        lambda: oed.donsker_varadhan_eig(linear, *ASK, 20_000, 0, odds, None),
        0.12,
    ),
    # 400 targets: the gain of one varies by about d / sqrt(2).
    "lfire": (lambda: oed.lfire_eig(linear, *ASK, 50, 2000, 0, odds, None), 0.1),
    "laplace": (lambda: oed.laplace_eig(linear, *ASK, final_num_samples=3), 1e-5),
}


@pytest.mark.parametrize("name", EXACT)
def test_estimators_with_exact_guides_give_the_closed_form(name):
    estimate, tolerance = EXACT[name]
    found = estimate()
    assert found.shape == (3,) and found.dtype == DESIGNS.dtype
    np.testing.assert_allclose(found.detach().numpy(), GAINS, rtol=0, atol=tolerance)


def enumerated(p, chances):
    """Mutual information of a finite target and independent outcomes of chance chances[target]."""
    outcomes = list(itertools.product([0, 1], repeat=chances.shape[-1]))
    tables = np.array([[np.prod(np.where(y, c, 1 - c)) for y in outcomes] for c in chances])
    return (p[:, None] * tables * np.log(tables / (p @ tables))).sum()


def discrete(design):
    """Three hypotheses and two outcomes in a plate of their own, right of the designs."""
    chances = tensor([[0.1, 0.3], [0.5, 0.5], [0.9, 0.2]])
    with plate_stack("designs", design.shape[:-1], rightmost_dim=-2):
        z = sample("z", dist.Categorical(tensor([0.2, 0.5, 0.3])))
        with plate("item", 2):
            p = 0.5 + (chances[z.squeeze(-1)] - 0.5) * design[..., 0].unsqueeze(-1)
            sample("y", dist.Bernoulli(p))


def test_gains_of_finite_models_are_those_of_enumeration():
    designs = tensor([[0.1], [1.0]])
    chances = np.array([[0.1, 0.3], [0.5, 0.5], [0.9, 0.2]])
    expected = [
        enumerated(np.array([0.2, 0.5, 0.3]), 0.5 + (chances - 0.5) * d) for d in (0.1, 1.0)
    ]
    found = oed.nmc_eig(discrete, designs, "y", "z", N=4000, M=300)
    np.testing.assert_allclose(found.numpy(), expected, atol=0.04)

    def guide(y, design, observation_labels, target_labels):
        table = param("table", probtorch.zeros(2, 4, 3))
        code = (y["y"][..., 0] + 2.0 * y["y"][..., 1]).long()
        with plate_stack("designs", design.shape[:-1], rightmost_dim=-2):
            logits = table[probtorch.arange(2), code].unsqueeze(-2)
            sample("z", dist.Categorical(logits=logits))

    found = oed.posterior_eig(
        discrete, designs, ["y"], ["z"], 200, 250, guide, Adam({"lr": 0.05}),
        final_num_samples=6000,
    )  # fmt: skip
    np.testing.assert_allclose(found.detach().numpy(), expected, atol=0.05)


def learnt_posterior(y, design, observation_labels, target_labels):
    slope, log_sd = param("slope", probtorch.zeros(3)), param("log_sd", probtorch.zeros(3))
    with plate_stack("designs", design.shape[:-1]):
        sample("w", dist.Normal(slope * y["y"], log_sd.exp()))


def learnt_outcomes(design, observation_labels, target_labels):
    scale = param("scale", probtorch.ones(3), constraint=dist.constraints.positive)
    with plate_stack("designs", design.shape[:-1]):
        sample("y", dist.Normal(0.0, scale))


def test_guides_are_learnt_and_the_history_tells_how():
    history, found = oed.posterior_eig(
        linear, *ASK, 60, 250, learnt_posterior, Adam({"lr": 0.03}), return_history=True,
        final_num_samples=5000,
    )  # fmt: skip
    assert history.shape == (250, 3) and not history.requires_grad
    np.testing.assert_allclose(found.detach().numpy(), GAINS, atol=0.08)
    assert history[-20:, 2].mean() > history[:20, 2].mean() + 0.3
    slope = get_param_store()["slope"].detach().numpy()
    np.testing.assert_allclose(slope, [0.0, 0.4, 0.4], atol=0.1)
    found = oed.marginal_eig(
        linear, *ASK, 60, 250, learnt_outcomes, Adam({"lr": 0.03}), final_num_samples=5000
    )
    np.testing.assert_allclose(found.detach().numpy(), GAINS, atol=0.08)
    # A guide that is too wide: from below and from above.
    get_param_store().clear()
    low = oed.posterior_eig(linear, *ASK, 5000, 0, learnt_posterior, None)
    high = oed.vnmc_eig(linear, *ASK, (5000, 3), 0, learnt_posterior, None)
    assert low[2] < GAINS[2] - 0.3 and high[2] > GAINS[2] + 0.1
    # The optimizer of a network's own parameters serves, too.
    net = nn.Linear(3, 1, bias=True)

    def ratio(design, trace, observation_labels, target_labels):
        w, y = trace.nodes["w"]["value"], trace.nodes["y"]["value"]
        return net(probtorch.stack([w * y, w * w, y * y], -1)).squeeze(-1)

    optim = SGD(net.parameters(), lr=0.02)
    before = net.weight.detach().numpy().copy()
    ask = (DESIGNS[1:2], "y", "w")
    for leaf in net.parameters():
        leaf.grad = None
    bound = oed.donsker_varadhan_eig(linear, *ask, 200, 150, ratio, optim)
    assert not np.allclose(before, net.weight.detach().numpy())
    assert -0.2 < bound.item() < GAINS[1] + 0.1


@pytest.mark.parametrize("kind", ["normal", "bernoulli"])
def test_gradients_of_designs_are_those_of_the_gain(kind):
    """Along pathwise draws, and by the score function of outcomes without a path."""

    def coin(design):
        with plate_stack("designs", design.shape[:-1]):
            z = sample("z", dist.Bernoulli(0.5))
            sample("y", dist.Bernoulli(0.5 + 0.4 * (z - 0.5) * design[..., 0]))

    def exact(d):
        if kind == "normal":
            return 0.5 * math.log1p(d * d)
        return enumerated(np.array([0.5, 0.5]), np.array([[0.5 - 0.2 * d], [0.5 + 0.2 * d]]))

    model, target, d = (linear, "w", 1.2) if kind == "normal" else (coin, "z", 1.2)
    design = tensor([[d]], requires_grad=True)
    # 20,000 terms whose slopes vary by about 1.
    oed.nmc_eig(model, design, "y", target, N=20_000, M=50).sum().backward()
    slope = (exact(d + 1e-4) - exact(d - 1e-4)) / 2e-4
    assert abs(design.grad.item() - slope) < 0.05


def test_a_design_that_is_a_parameter_climbs_with_the_guide():
    def model(design):
        at = param("at", tensor([0.3]), constraint=dist.constraints.interval(0.0, 1.0))
        with plate_stack("designs", design.shape[:-1]):
            w = sample("w", dist.Normal(0.0, 1.0))
            # The best place is 0.7.
            sample("y", dist.Normal(3.0 * w * (1.0 - (at - 0.7) ** 2), 1.0))

    def guide(y, design, observation_labels, target_labels):
        slope, log_sd = param("slope", tensor(0.0)), param("log_sd", tensor(0.0))
        with plate_stack("designs", design.shape[:-1]):
            sample("w", dist.Normal(slope * y["y"], log_sd.exp()))

    oed.posterior_eig(model, probtorch.zeros(1, 1), "y", "w", 100, 400, guide, Adam({"lr": 0.05}))
    assert abs(get_param_store()["at"].item() - 0.7) < 0.1


def nuisance(design):
    """Targets given other sites, and outcomes of both: w = u + N(0, 1), y = d w + u + N(0, 1)."""
    with plate_stack("designs", design.shape[:-1]):
        u = sample("u", dist.Normal(0.0, 1.0))
        w = sample("w", dist.Normal(u, 1.0))
        sample("y", dist.Normal(design[..., 0] * w + u, 1.0))


def test_other_sites_are_summed_out_and_weighted_by_the_targets():
    d = DESIGNS.numpy()[:, 0]
    cov_w, var_y = 2.0 * d + 1.0, 2.0 * d**2 + 2.0 * d + 2.0
    expected = -0.5 * np.log1p(-(cov_w**2) / (2.0 * var_y))
    found = oed.nmc_eig(nuisance, *ASK, N=1500, M=400, M_prime=400)
    np.testing.assert_allclose(found.numpy(), expected, atol=0.1)
    found = oed.laplace_eig(nuisance, *ASK, final_num_samples=2, eig=False)
    posterior_sd = np.sqrt(2.0 - cov_w**2 / var_y)
    entropy = np.log(posterior_sd) + 0.5 * math.log(2.0 * math.pi * math.e)
    np.testing.assert_allclose(found.numpy(), entropy, rtol=1e-5)
    for estimate in (
        lambda: oed.nmc_eig(nuisance, *ASK),
        lambda: oed.marginal_eig(nuisance, *ASK, 10, 0, outcomes, None),
        lambda: oed.vnmc_eig(nuisance, *ASK, (10, 2), 0, posterior, None),
    ):
        with pytest.raises(ArgumentError, match=r"(?s)targets.*none of 'u'.*use"):
            estimate()
    with pytest.raises(InferenceError, match=r"(?s)entropy of the prior.*eig=False"):
        oed.laplace_eig(nuisance, *ASK, final_num_samples=2)


def test_laplace_knows_the_volume_of_constrained_targets():
    """A log-normal scale of what is known on the log scale: all is normal there."""

    def model(design):
        with plate_stack("designs", design.shape[:-1]):
            s = sample("s", dist.LogNormal(0.0, 1.0))
            sample("y", dist.Normal(s.log() * design[..., 0], 1.0))

    found = oed.laplace_eig(model, DESIGNS.double(), "y", "s", final_num_samples=1500)
    # Entropies are those of normals plus means of log s, which agree before and after.
    np.testing.assert_allclose(found.numpy(), GAINS, atol=0.12)


def test_what_cannot_be_estimated_is_refused():
    assert by_pyros_path is oed.nmc_eig
    with pytest.raises(ArgumentError, match=r"observation_labels='x'.*(?s:.*)'w', 'y'"):
        oed.nmc_eig(linear, DESIGNS, "x", "w")
    with pytest.raises(ArgumentError, match="M_prime"):
        oed.nmc_eig(linear, DESIGNS, "y", M_prime=3)
    with pytest.raises(ArgumentError, match="a pair"):
        oed.vnmc_eig(linear, *ASK, 10, 0, posterior, None)
    with pytest.raises(ArgumentError, match="num_samples=100"):
        oed.posterior_eig(linear, *ASK, (10, 3), 0, posterior, None)
    with pytest.raises(InferenceError, match=r"(?s)laplace_eig: site 'z'.*posterior_eig"):
        oed.laplace_eig(discrete, DESIGNS[:2], "y", "z")

    def sharp(design):
        with plate_stack("designs", design.shape[:-1]):
            w = sample("w", dist.Uniform(0.0, 1.0))
            sample(
                "y",
                dist.Uniform(w, w + 1e-6 * (1.0 + design[..., 0])),
            )

    with (
        pytest.raises(InferenceError, match=r"(?s)nmc_eig.*that are not.*inner samples"),
        dist.validation_enabled(False),
    ):
        oed.nmc_eig(sharp, DESIGNS, "y", "w", N=20, M=2)

    def switched(design):
        with plate_stack("designs", design.shape[:-1]):
            z = sample("z", dist.Bernoulli(design[..., 0].sigmoid()))
            sample("y", dist.Normal(z, 1.0))

    with pytest.raises(InferenceError, match=r"(?s)draws of 'z'.*Bernoulli.*detach"):
        oed.nmc_eig(switched, DESIGNS.clone().requires_grad_(), "y", "z")
    oed.nmc_eig(switched, DESIGNS, "y", "z")


def flat(design):
    with plate_stack("designs", design.shape):
        w = sample("w", dist.Normal(0.0, 1.0))
        sample("y", dist.Normal(w * design, 1.0))


def rows_inside(design):
    with plate_stack("designs", design.shape[:-1]):
        w = sample("w", dist.Normal(0.0, 1.0))
        with plate("rows", 3):
            sample("y", dist.Normal(w * design[..., 0], 1.0))


@pytest.mark.parametrize(
    "model, design", [(flat, tensor([0.5, 1.0, 2.0])), (rows_inside, tensor([[0.5], [2.0]]))]
)
def test_plates_beyond_those_of_the_designs_are_refused(model, design):
    """Their gains would be added up, or taken for samples."""
    with pytest.raises(ArgumentError, match=r"(?s)at dim -\d.*unsqueeze\(-1\).*rightmost_dim=-2"):
        oed.nmc_eig(model, design, "y", "w", N=10, M=5)
