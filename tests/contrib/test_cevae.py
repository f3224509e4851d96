"""Effects of treatments: the objective by SciPy's densities, the estimate against the truth."""

import numpy as np
import pytest
from scipy import stats

import probtorch
from probtorch import handlers, nn
from probtorch.contrib.cevae import (
    CEVAE,
    BernoulliNet,
    DistributionNet,
    FullyConnected,
    PreWhitener,
    causal_effect_loss,
)
from probtorch.errors import ArgumentError, ShapeError, UnknownNameError
from probtorch.testing import assert_close

RNG = np.random.default_rng(0)
KINDS = {
    "bernoulli": lambda y, logits: -np.logaddexp(0.0, np.where(y > 0, -logits, logits)),
    "exponential": lambda y, rate: stats.expon(scale=1.0 / rate).logpdf(y),
    "laplace": lambda y, *p: stats.laplace(*p).logpdf(y),
    "normal": lambda y, *p: stats.norm(*p).logpdf(y),
    "studentt": lambda y, *p: stats.t(*p).logpdf(y),
}


def rows(n, kind="normal"):
    x, t = RNG.normal(size=(n, 3)), (RNG.random(n) < 0.5).astype(float)
    y = t if kind == "bernoulli" else abs(RNG.normal(size=n))
    return [probtorch.tensor(a, dtype=probtorch.float64) for a in (x, t, y)]


@pytest.mark.parametrize("kind", KINDS)
def test_the_objective_is_the_sum_that_the_paper_states(kind):
    probtorch.manual_seed(0)
    x, t, y = rows(7, kind)
    net = CEVAE(3, kind, latent_dim=2, hidden_dim=5, num_layers=3).double()
    z = probtorch.tensor(RNG.normal(size=(7, 2)), dtype=probtorch.float64)
    guide = handlers.substitute(net.guide, {"z": z})

    def by_network(layers, *of):
        """What the network of each row's own treatment says."""
        zero, one = (layer(*of) for layer in layers)
        pairs = zip(zero, one, strict=True)
        by = t.bool()
        return [
            np.where(by[:, None] if a.ndim == 2 else by, b.detach(), a.detach()) for a, b in pairs
        ]

    m, g = net.model, net.guide
    numbers = [a.numpy() for a in (x, t, y, z)]
    loc, scale = (a.detach().numpy() for a in m.x_nn(z))
    density, treatment = KINDS[kind], KINDS["bernoulli"]
    expected = stats.norm.logpdf(numbers[3]).sum() + stats.norm(loc, scale).logpdf(numbers[0]).sum()
    expected += treatment(numbers[1], m.t_nn(z)[0].detach().numpy()).sum()
    expected += density(numbers[2], *by_network((m.y0_nn, m.y1_nn), z)).sum()
    # What the guide says of treatment and outcome counts for it, what it says of z against.
    expected += treatment(numbers[1], g.t_nn(x)[0].detach().numpy()).sum()
    expected += density(numbers[2], *by_network((g.y0_nn, g.y1_nn), g.y_nn(x))).sum()
    hidden = g.z_nn(probtorch.cat([y[:, None], x], -1))
    q = stats.norm(*by_network((g.z0_nn, g.z1_nn), hidden)).logpdf(numbers[3]).sum()
    found = causal_effect_loss(net.model, guide, x, t, y, size=21)
    assert float(found) == pytest.approx(-3.0 * float(expected - q), rel=1e-6)


def test_an_effect_is_found_where_treated_and_others_differ_from_the_start():
    rng = np.random.default_rng(0)
    n = 1500
    z = (rng.random(n) < 0.5).astype(float)
    x = z[:, None] + 0.5 * rng.normal(size=(n, 4))
    t = (rng.random(n) < 0.25 + 0.5 * z).astype(float)
    y = t + 2.0 * z + 0.3 * rng.normal(size=n)
    naive = y[t == 1].mean() - y[t == 0].mean()
    probtorch.set_rng_seed(0)
    net = CEVAE(4, "normal", latent_dim=1, hidden_dim=16, num_layers=2, num_samples=20)
    data = [probtorch.tensor(a, dtype=probtorch.float32) for a in (x, t, y)]
    losses = net.fit(*data, num_epochs=20, learning_rate=5e-3)
    assert np.mean(losses[-15:]) < 0.7 * np.mean(losses[:15])
    effects = net.ite(data[0], batch_size=400)
    assert effects.shape == (n,) and not effects.requires_grad
    # The effect is 1, what the groups differ by 2; the estimator's own error is seen to be 0.2.
    assert naive > 1.8 and abs(float(effects.mean()) - 1.0) < 0.5
    again = CEVAE(4, "normal", latent_dim=1, hidden_dim=16, num_layers=2)
    again.whiten = PreWhitener(data[0])
    again.load_state_dict(net.state_dict())
    assert_close(again.ite(data[0], 200).mean(), effects.mean(), atol=0.1)


def test_networks_are_those_of_pyro():
    net = FullyConnected([3, 4, 5], final_activation=nn.ELU())
    assert [type(layer).__name__ for layer in net] == ["Linear", "ELU", "Linear", "ELU"]
    assert DistributionNet.get_class("bernoulli") is BernoulliNet
    x = probtorch.tensor([[1.0, 2.0], [3.0, 2.0]])
    white = PreWhitener(x)(x)
    assert_close(white, probtorch.tensor([[-1.0, 0.0], [1.0, 0.0]]))
    names = list(CEVAE(2, latent_dim=1, hidden_dim=2, num_layers=1).state_dict())
    assert "guide.y0_nn.fc.0.weight" in names and "model.x_nn.fc.0.weight" in names


def test_what_does_not_fit_is_refused():
    x, t, y = rows(4)
    net = CEVAE(3, latent_dim=1, hidden_dim=2, num_layers=1)
    for wrong, error, message in [
        (lambda: CEVAE(0), ArgumentError, "at least 1"),
        (lambda: CEVAE(3, "poisson"), ArgumentError, "'bernoulli', 'exponential'"),
        (lambda: net.fit(x[:, :2], t, y), ShapeError, r"\(rows, 3\)"),
        (lambda: net.fit(x, t[:2], y), ShapeError, "of each row"),
        (lambda: net.ite(x), ArgumentError, "call fit"),
        (lambda: probtorch.contrib.cevae.Model, UnknownNameError, "CausalModel"),
    ]:
        with pytest.raises(error, match=message):
            wrong()
