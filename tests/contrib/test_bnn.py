"""Variational layers: moments and gradients by closed forms, the mean-field posterior of a linear
regression, variance against one shared draw, what SVI counts, and what is refused.
"""

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch import nn
from probtorch.compiler.paths import CompileWarning
from probtorch.contrib.bnn import VariationalLayer, network_kl, to_variational, variational_module
from probtorch.errors import ArgumentError, DTypeError, ModelError, NoClosedFormError
from probtorch.handlers import scale, trace
from probtorch.infer import SVI, Target, Trace_ELBO
from probtorch.optim import Adam
from probtorch.tensor import tensor

F64 = probtorch.float64
ESTIMATORS = ("flipout", "local", "shared")


def linear(inputs=3, outputs=2, estimator="flipout", init_scale=0.5):
    probtorch.manual_seed(7)
    return VariationalLayer(nn.Linear(inputs, outputs, dtype=F64), estimator, None, init_scale)


def numbers(layer):
    w, b = layer.layer.weight.detach().numpy(), layer.layer.bias.detach().numpy()
    sw, sb = (p.detach().exp().numpy() for p in (layer.weight_log_scale, layer.bias_log_scale))
    return w, b, sw, sb


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_outputs_have_the_moments_of_drawn_weights(estimator):
    """8000 calls: means within 5 standard errors, variances within 8 % (5 standard errors)."""
    layer = linear(estimator=estimator)
    x = np.random.default_rng(0).normal(size=(4, 3))
    w, b, sw, sb = numbers(layer)
    with probtorch.no_grad():
        draws = np.stack([layer(tensor(x)).numpy() for _ in range(3000)])
    variance = x**2 @ (sw**2).T + sb**2
    assert (np.abs(draws.mean(0) - x @ w.T - b) < 5.0 * np.sqrt(variance / 8000)).all()
    np.testing.assert_allclose(draws.var(0), variance, rtol=0.08)
    # Rows are correlated where all have one draw, and nowhere else.
    between = np.corrcoef(draws[:, 0, 0], draws[:, 1, 0])[0, 1]
    shared = x[0] * x[1] @ sw[0] ** 2 + sb[0] ** 2
    expected = shared / np.sqrt(variance[0, 0] * variance[1, 0]) if estimator == "shared" else 0.0
    assert between == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize(
    "make, size",
    [
        (lambda: nn.Conv1d(4, 6, 3, padding=1, groups=2, dtype=F64), (2, 4, 5)),
        (lambda: nn.Conv2d(2, 3, 2, stride=2, bias=False, dtype=F64), (2, 2, 4, 4)),
        (lambda: nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect", dtype=F64), (2, 1, 3, 3)),
        (lambda: nn.Conv3d(1, 2, 2, dtype=F64), (2, 1, 2, 3, 2)),
        (lambda: nn.ConvTranspose2d(2, 2, 2, stride=2, dtype=F64), (2, 2, 2, 2)),
        (lambda: nn.Linear(3, 2, dtype=F64), (2, 4, 3)),
        (lambda: nn.Linear(3, 2, dtype=F64), (3,)),
    ],
    ids=["groups", "stride", "reflect", "3d", "transposed", "sequence", "one row"],
)
@pytest.mark.parametrize("estimator", ["flipout", "local"])
def test_layers_of_all_kinds_have_the_moments_of_drawn_weights(make, size, estimator):
    """Against 1000 draws of the weights: means within 6 standard errors, variances within 40 %
    (6 standard errors)."""
    probtorch.manual_seed(3)
    layer = VariationalLayer(make(), estimator, init_scale=0.7)
    shared = VariationalLayer(layer.layer, "shared", init_scale=0.7)
    x = tensor(np.random.default_rng(1).normal(size=size))
    with probtorch.no_grad():
        a = np.stack([layer(x).numpy() for _ in range(1000)])
        b = np.stack([shared(x).numpy() for _ in range(1000)])
    assert (np.abs(a.mean(0) - b.mean(0)) < 6.0 * np.sqrt((a.var(0) + b.var(0)) / 1000)).all()
    np.testing.assert_allclose(a.var(0), b.var(0), rtol=0.4)


def test_flipout_keeps_the_covariance_within_a_row_and_has_none_between_rows():
    probtorch.manual_seed(0)
    conv = nn.Conv1d(1, 1, 2, dtype=F64)
    flipout, shared = (VariationalLayer(conv, e, init_scale=0.7) for e in ("flipout", "shared"))
    x = tensor(np.random.default_rng(2).normal(size=(2, 1, 3)))
    with probtorch.no_grad():
        a, b = (np.stack([f(x).numpy() for _ in range(3000)])[:, :, 0] for f in (flipout, shared))
    within = np.corrcoef(a[:, 0].T)[0, 1], np.corrcoef(b[:, 0].T)[0, 1]
    assert within[0] == pytest.approx(within[1], abs=0.1)
    assert abs(np.corrcoef(a[:, 0, 0], a[:, 1, 0])[0, 1]) < 0.1


def gradients(estimator, rows, count):
    """Gradients of the mean squared error of a linear layer, and their exact expectation."""
    layer = linear(5, 1, estimator, init_scale=0.8)
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(rows, 5)), rng.normal(size=(rows, 1))
    w, b, sw, sb = numbers(layer)
    leaves = layer.layer.weight, layer.weight_log_scale, layer.layer.bias, layer.bias_log_scale
    found = []
    for _ in range(count):
        loss = ((layer(tensor(x)) - tensor(y)) ** 2).mean()
        found.append(
            np.concatenate([g.numpy().ravel() for g in probtorch.autograd.grad(loss, leaves)])
        )
    residual = x @ w.T + b - y
    exact = [
        2.0 * (residual * x).mean(0),
        (2.0 * sw**2 * (x**2).mean(0)).ravel(),
        2.0 * residual.mean(0),
        2.0 * sb**2,
    ]
    return np.stack(found), np.concatenate(exact)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_gradients_are_unbiased(estimator):
    """Within 5 standard errors of 2000 estimates."""
    found, exact = gradients(estimator, 64, 2000)
    error = np.abs(found.mean(0) - exact) / (found.std(0) / np.sqrt(2000))
    assert error.max() < 5.0


def test_variance_falls_with_the_batch_only_where_rows_have_noise_of_their_own():
    variance = {
        (e, rows): gradients(e, rows, 1000)[0].var(0)[:5].mean()
        for e in ESTIMATORS
        for rows in (64, 1024)
    }
    # "shared" has noise of x^T x eps: a part that no batch averages out.
    for own in ("flipout", "local"):
        assert variance["shared", 64] > 5.0 * variance[own, 64]
        assert variance["shared", 1024] > 60.0 * variance[own, 1024]
    assert variance["local", 64] > 8.0 * variance["local", 1024]
    assert variance["flipout", 64] > 8.0 * variance["flipout", 1024]
    assert variance["shared", 64] < 3.0 * variance["shared", 1024]


# --------------------------------------------------------------------------------------- divergence


def test_divergence_is_that_of_normal_distributions():
    layer = linear()
    w, b, sw, sb = numbers(layer)
    right = 0.0
    for m, s, p in ((w, sw, 2.0), (b, sb, 0.5)):
        right += (np.log(p / s) + (s**2 + m**2) / (2.0 * p * p) - 0.5).sum()
    layer.prior = {"weight": dist.Normal(0.0, 2.0), "bias": dist.Normal(0.0, 0.5)}
    assert layer.kl().item() == pytest.approx(right, rel=1e-12)
    layer.prior = lambda name, shape: dist.Normal(0.0, 2.0 if name == "weight" else 0.5)
    assert layer.kl().item() == pytest.approx(right, rel=1e-12)
    net = nn.Sequential(layer, nn.Tanh(), linear(2, 2), layer)
    assert network_kl(net).item() == pytest.approx(right + linear(2, 2).kl().item(), rel=1e-12)


def regression():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3)) @ np.array([[1.0, 0.5, 0.0], [0.0, 1.0, 0.3], [0.0, 0.0, 1.0]])
    y = x @ [1.0, -2.0, 0.5] + 0.7 + 0.5 * rng.normal(size=400)
    wide = np.c_[x, np.ones(400)]
    precision = wide.T @ wide / 0.25 + np.eye(4)
    mean = np.linalg.solve(precision, wide.T @ y / 0.25)
    return x, y, mean, 1.0 / np.sqrt(np.diag(precision))


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("batch", [400, 50])
def test_svi_finds_the_mean_field_posterior_whole_or_on_batches(estimator, batch):
    """The best independent normals have the exact means, and ``1 / sqrt(diag(precision))``."""
    x, y, mean, deviation = regression()
    net = to_variational(nn.Linear(3, 1, dtype=F64), estimator)

    def model(x, y):
        f = variational_module("net", net)(x).squeeze(-1)
        with probtorch.plate("row", 400, subsample_size=len(x)):
            probtorch.sample("y", dist.Normal(f, 0.5), obs=y)

    svi = SVI(model, lambda x, y: None, Adam({"lr": 0.02}), Trace_ELBO(), seed=0)
    rng, kept = np.random.default_rng(1), []
    for i in range(3000):
        rows = slice(None) if batch == 400 else rng.choice(400, batch, replace=False)
        svi.step(tensor(x[rows]), tensor(y[rows]))
        if i >= 1500 and i % 10 == 0:
            w, b, sw, sb = numbers(net)
            kept.append(np.r_[w[0], b, np.log(sw[0]), np.log(sb)])
    found = np.mean(kept, axis=0)
    np.testing.assert_allclose(found[:4], mean, atol=0.35 * deviation.max())
    np.testing.assert_allclose(np.exp(found[4:]), deviation, rtol=0.15)
    assert "1 compiled path" in svi.explain()


def test_the_bound_is_counted_once_and_annealed_by_scale():
    net = to_variational(nn.Linear(3, 1, dtype=F64))
    x = tensor(np.ones((10, 3)))

    def model():
        f = variational_module("net", net)(x).squeeze(-1)
        with probtorch.plate("row", 1000, subsample_size=10):
            probtorch.sample("y", dist.Normal(f, 0.5), obs=probtorch.zeros(10))

    site = trace(model).get_trace().nodes["net.kl"]
    assert site["scale"] == 1.0
    assert site["value"].item() == pytest.approx(-network_kl(net).item())
    annealed = trace(scale(model, 0.1)).get_trace().nodes["net.kl"]
    assert float(annealed["scale"]) == pytest.approx(0.1)


# ----------------------------------------------------------------------------------------- networks


def test_networks_are_copied_with_their_weights_as_means():
    plain = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))
    net = to_variational(plain, init_scale=1e-6)
    x = probtorch.randn(5, 1, 4, 4)
    assert [type(m).__name__ for m in net] == [
        "VariationalLayer",
        "ReLU",
        "Flatten",
        "VariationalLayer",
    ]
    np.testing.assert_allclose(net(x).detach().numpy(), plain(x).detach().numpy(), atol=1e-4)
    assert type(plain[0]) is nn.Conv2d
    again = to_variational(plain, init_scale=1.0)
    again.load_state_dict(net.state_dict())
    np.testing.assert_allclose(again(x).detach().numpy(), plain(x).detach().numpy(), atol=1e-4)
    tied = nn.Linear(3, 3)
    both = to_variational(nn.Sequential(tied, tied))
    assert both[0] is both[1]
    assert len(list(both.parameters())) == 4


def test_evaluation_mode_draws_one_function():
    layer = linear(1, 1, "local").eval()
    with probtorch.no_grad():
        y = layer(tensor([[0.0], [1.0], [2.0], [3.0]], dtype=F64)).numpy()[:, 0]
        other = layer(tensor([[0.0]], dtype=F64)).item()
    np.testing.assert_allclose(np.diff(y), np.diff(y)[0], rtol=1e-12)
    assert other != y[0]


def test_local_noise_has_a_gradient_where_no_input_counts():
    layer = VariationalLayer(nn.Linear(2, 1, bias=False), "local")
    layer(probtorch.zeros(3, 2)).sum().backward()
    assert np.isfinite(layer.weight_log_scale.grad.numpy()).all()


def test_what_is_wrong_is_said():
    net = to_variational(nn.Linear(2, 1))
    with pytest.raises(ArgumentError, match="'flipout', 'local', 'shared'"):
        VariationalLayer(nn.Linear(2, 1), "reparam")
    with pytest.raises(ArgumentError, match="above 0"):
        VariationalLayer(nn.Linear(2, 1), init_scale=0.0)
    with pytest.raises(DTypeError, match=r"a layer among Linear(.|\n)*Embedding"):
        VariationalLayer(nn.Embedding(3, 2))
    with pytest.raises(DTypeError, match="linear or convolution"):
        to_variational(nn.Sequential(nn.ReLU()))
    with pytest.raises(DTypeError, match=r"instance of nn\.Module"):
        to_variational(nn.Linear)
    with pytest.raises(DTypeError, match="variational layers"):
        network_kl(nn.Linear(2, 1))
    with pytest.raises(NoClosedFormError, match=r"closed form(.|\n)*StudentT"):
        VariationalLayer(nn.Linear(2, 1), prior=dist.StudentT(3.0, 0.0, 1.0)).kl()
    with pytest.raises(ArgumentError, match="'bias'"):
        VariationalLayer(nn.Linear(2, 1), prior={"weight": dist.Normal(0.0, 1.0)}).kl()

    def inside():
        with probtorch.plate("row", 10):
            variational_module("net", net)

    with pytest.raises(ModelError, match=r"outside of plates(.|\n)*'row'"):
        inside()


def test_a_sampler_is_told_that_the_density_draws():
    net = to_variational(nn.Linear(2, 1))

    def model():
        slope = probtorch.sample("slope", dist.Normal(0.0, 1.0))
        f = variational_module("net", net)(probtorch.ones(4, 2)).squeeze(-1)
        with probtorch.plate("row", 4):
            probtorch.sample("y", dist.Normal(f + slope, 1.0), obs=probtorch.zeros(4))

    with pytest.warns(CompileWarning, match="a draw from a Generator"):
        Target.from_model(model).value_and_grad(np.zeros(1))
