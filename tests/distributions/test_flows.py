"""Flows: densities that integrate to 1, gradients of their parameters, contexts, extremes."""

import math
import pickle

import numpy as np
import pytest
from scipy import stats

import probtorch.distributions.transforms as tr
from probtorch.autograd import grad
from probtorch.autograd.modes import no_grad
from probtorch.compiler.compile import compile
from probtorch.core.rng import Generator, manual_seed
from probtorch.distributions import (
    ConditionalTransformedDistribution,
    MaskedDistribution,
    MultivariateNormal,
    Normal,
    TransformedDistribution,
)
from probtorch.distributions.transforms.flows.planar import ConditionedPlanar
from probtorch.distributions.transforms.flows.spline import ConditionedSpline
from probtorch.effects import handlers, sample
from probtorch.errors import ArgumentError, ShapeError
from probtorch.nn import AutoRegressiveNN, ConditionalDenseNN, Lambda
from probtorch.nn.utils import functional_call
from probtorch.optim import Adam
from probtorch.tensor import tensor
from probtorch.testing import assert_close
from tests.derivatives import gradcheck

MAKERS = {
    "iaf": lambda d: tr.affine_autoregressive(d),
    "stable iaf": lambda d: tr.affine_autoregressive(d, stable=True),
    "maf": lambda d: tr.affine_autoregressive(d).inv,
    "coupling": lambda d: tr.affine_coupling(d),
    "spline": lambda d: tr.spline(d),
    "spline coupling": lambda d: tr.spline_coupling(d, count_bins=4),
    "spline autoregressive": lambda d: tr.spline_autoregressive(d, count_bins=4),
    "planar": lambda d: tr.planar(d),
    "sylvester": lambda d: tr.sylvester(d),
    "radial": lambda d: tr.radial(d),
    "householder": lambda d: tr.householder(d),
    "matrix exponential": lambda d: tr.matrix_exponential(d),
}
# Inverses by roots or differential equations: too long for 90 000 points.
COSTLY = {
    "neural": lambda d: tr.neural_autoregressive(d, [3], width=2),
    "block": lambda d: tr.block_autoregressive(d, [3], residual="normal"),
    "continuous": lambda d: tr.continuous_flow(d, [4], 0.5, rtol=1e-7, atol=1e-8),
}
CONDITIONAL = {
    "iaf": lambda d, c: tr.conditional_affine_autoregressive(d, c),
    "maf": lambda d, c: tr.conditional_affine_autoregressive(d, c).inv,
    "coupling": lambda d, c: tr.conditional_affine_coupling(d, c),
    "spline": lambda d, c: tr.conditional_spline(d, c, count_bins=4),
    "spline autoregressive": lambda d, c: tr.conditional_spline_autoregressive(d, c, count_bins=4),
    "spline coupling": lambda d, c: tr.conditional_spline_coupling(d, c, count_bins=4),
    "half a spline coupling": lambda d, c: tr.ConditionalSplineCoupling(
        d, 1, ConditionalDenseNN(1, c, [8], [4 * (d - 1), 4 * (d - 1), 3 * (d - 1)]), count_bins=4
    ),
    "planar": lambda d, c: tr.conditional_planar(d, c),
    "sylvester": lambda d, c: tr.conditional_sylvester(d, c),
    "radial": lambda d, c: tr.conditional_radial(d, c),
    "householder": lambda d, c: tr.conditional_householder(d, c, count_transforms=2),
    "batch normalisation": lambda d, c: tr.conditional_batchnorm(d, c).eval(),
    "matrix exponential": lambda d, c: tr.conditional_matrix_exponential(d, c),
    "neural": lambda d, c: tr.conditional_neural_autoregressive(d, c, width=3),
    "polynomial": lambda d, c: tr.conditional_polynomial(d, c, [4]),
    "block": lambda d, c: tr.conditional_block_autoregressive(d, c, hidden_factors=[3]),
    "sinh-arcsinh": lambda d, c: tr.conditional_sinh_arcsinh(d, c),
    "cosine": lambda d, c: tr.conditional_discrete_cosine(d, c),
    "several": lambda d, c: tr.ConditionalComposeTransformModule(
        [tr.conditional_planar(d, c), tr.permute(d), tr.radial(d), tr.conditional_planar(d, c)]
    ),
}
EACH = pytest.mark.parametrize("name", MAKERS)
EACH_CONDITIONAL = pytest.mark.parametrize("name", CONDITIONAL)


def stirred(module, seed=0, spread=0.3):
    """The module in double precision, with parameters in general position."""
    module, rng = module.double(), np.random.default_rng(seed)
    for p in module.parameters():
        p.data.add_(tensor(spread * rng.standard_normal(p.shape)))
    return module


def made(name, d=2):
    manual_seed(1)
    return stirred({**MAKERS, **COSTLY}[name](d))


def standard(d):
    return Normal(tensor(np.zeros(d)), tensor(np.ones(d))).to_event(1)


# ---------------------------------------------------------------------------------------- densities


@EACH
def test_the_density_integrates_to_one(name):
    flow = TransformedDistribution(standard(2), made(name))
    draws = flow.sample((4000,), Generator(0)).numpy()
    half = np.abs(draws - np.median(draws, 0)).max(0) * 1.5
    points = 301
    axes = [m + h * np.linspace(-1.0, 1.0, points) for m, h in zip(np.median(draws, 0), half)]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), -1)
    density = np.exp(flow.log_prob(tensor(grid)).detach().numpy())
    mass = density.sum() * np.prod([a[1] - a[0] for a in axes])
    # Networks with kinks: the sum is right to second order in the mesh.
    assert_close(mass, 1.0, rtol=4e-3)


@EACH
def test_the_density_of_a_draw_is_the_same_with_and_without_its_pre_image(name):
    flow = TransformedDistribution(standard(3), made(name, 3))
    y, log_prob = flow.sample_and_log_prob((50,), Generator(0))
    assert_close(flow.log_prob(y.detach()).detach(), log_prob.detach(), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize(
    "name", [*MAKERS, *(pytest.param(n, marks=pytest.mark.slow) for n in COSTLY)]
)
@pytest.mark.parametrize("direction", ["draws", "density"])
def test_gradients_of_parameters_agree_with_differences(name, direction):
    flow, base = made(name), standard(2)
    names = [n for n, _ in flow.named_parameters()]
    values = [tensor(p.detach().numpy(), requires_grad=True) for p in flow.parameters()]
    rng = np.random.default_rng(4)
    point = tensor(rng.standard_normal((2, 2)))
    weight = tensor(rng.standard_normal((2, 2)))

    def read(x):
        if direction == "draws":
            return (flow(x) * weight).sum()
        return TransformedDistribution(base, flow).log_prob(x).sum()

    holder = Lambda(read)
    holder.flow = flow

    def value(*given):
        named = {f"flow.{n}": v for n, v in zip(names, given)}
        return functional_call(holder, named, point)

    assert gradcheck(value, tuple(values), fast_mode=True, eps=1e-5, atol=1e-6)


def test_gradients_do_not_depend_on_what_was_called_before():
    """No cache: the density of a draw has the same gradients as that of an equal number."""
    flow = made("iaf", 3)
    d = TransformedDistribution(standard(3), flow)
    y = d.rsample((4,), Generator(0))
    fresh = y.detach().requires_grad_()
    one = grad(d.log_prob(y).sum(), [y], retain_graph=True)[0]
    other = grad(d.log_prob(fresh).sum(), [fresh])[0]
    assert_close(one, other, rtol=1e-12)


class Counting(AutoRegressiveNN):
    """A network that counts its passes."""

    passes = 0

    def forward(self, x):
        Counting.passes += 1
        return super().forward(x)


def counted(wrap):
    manual_seed(1)
    network = Counting(3, [8])
    flow = stirred(tr.AffineAutoregressive(network))
    Counting.passes = 0
    return flow, wrap(TransformedDistribution(standard(3), flow))


WRAPPERS = {
    "alone": lambda d: d,
    "in a plate": lambda d: d.expand((4,)),
    "as one event": lambda d: d.expand((4,)).to_event(1),
    "masked": lambda d: d.expand((4,)).mask(tensor([True, False, True, True])),
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_a_sample_statement_takes_one_pass_for_a_draw_and_its_density(wrap):
    flow, d = counted(wrap)
    with handlers.seed(None, 3):
        run = handlers.trace(lambda: sample("z", d)).get_trace()
    site = run["z"]
    known = site.fn.log_prob(site.value)
    # A mask puts other numbers where it hides some: those have no known pre-image.
    assert Counting.passes == 1 or isinstance(d, MaskedDistribution)
    found = []
    for lp in (known, d.log_prob(site.value)):
        flow.zero_grad()
        lp.sum().backward(retain_graph=True)
        zero = [np.zeros(p.shape) if p.grad is None else p.grad.numpy() for p in flow.parameters()]
        found.append([lp.detach().numpy(), *zero])
    for a, b in zip(*found, strict=True):
        assert_close(a, b, rtol=1e-8, atol=1e-9)


def test_the_density_of_a_masked_autoregressive_flow_takes_one_pass():
    flow, _ = counted(lambda d: d)
    TransformedDistribution(standard(3), flow.inv).log_prob(tensor(np.zeros((5, 3))))
    assert Counting.passes == 1


def test_the_users_own_distribution_remembers_nothing():
    """After the parameters have moved, the density of an old draw is that of the new flow."""
    flow, d = counted(lambda d: d)
    with handlers.seed(None, 3):
        z = sample("z", d)
    before = d.log_prob(z).item()
    for p in flow.parameters():
        p.data.add_(0.1)
    assert abs(d.log_prob(z).item() - before) > 1e-3
    assert_close(d.log_prob(z).detach(), d.log_prob(z.detach()).detach(), rtol=1e-12)


def test_a_draw_without_a_tape_has_a_density_with_one():
    flow, d = counted(lambda d: d)
    d = d.remembering()
    with no_grad():
        z = d.rsample((), Generator(3))
        assert Counting.passes == 1
        d.log_prob(z)
        assert Counting.passes == 1
    d.log_prob(z).backward()
    assert any(np.abs(p.grad.numpy()).max() > 0 for p in flow.parameters() if p.grad is not None)


def test_only_what_is_costly_to_invert_is_remembered():
    for transform in (tr.ExpTransform(), tr.spline(3), tr.affine_autoregressive(3).inv):
        d = TransformedDistribution(standard(3), transform)
        assert d.remembering() is d and d.to_event(0).remembering() is d
    for transform in (tr.planar(3), tr.iterated(2, tr.affine_autoregressive, 3)):
        d = TransformedDistribution(standard(3), transform).remembering()
        y = d.rsample()
        copy = pickle.loads(pickle.dumps(d))
        assert_close(copy.log_prob(y).detach(), d.log_prob(y).detach(), rtol=1e-5, atol=1e-5)


# ----------------------------------------------------------------------------------- with a context


@EACH_CONDITIONAL
def test_conditional_transforms_are_invertible_with_the_right_determinant(name):
    manual_seed(2)
    conditional = stirred(CONDITIONAL[name](3, 2))
    rng = np.random.default_rng(0)
    transform = conditional.condition(tensor(rng.standard_normal(2)))
    x = tensor(rng.standard_normal(3)).requires_grad_()
    y, ladj = transform.call_and_ladj(x)
    assert_close(transform.inv(y), x.detach(), rtol=1e-8, atol=1e-9)
    rows = [grad(out, [x], retain_graph=True)[0].numpy() for out in y.unbind()]
    event = ladj.sum() if ladj.ndim else ladj
    assert_close(event.detach(), np.linalg.slogdet(np.array(rows))[1], rtol=1e-8, atol=1e-9)


@EACH_CONDITIONAL
def test_a_batch_of_contexts_is_a_batch_of_transforms(name):
    manual_seed(2)
    conditional = stirred(CONDITIONAL[name](3, 2))
    rng = np.random.default_rng(0)
    contexts, x = tensor(rng.standard_normal((5, 2))), tensor(rng.standard_normal((5, 3)))
    many = conditional.condition(contexts)
    together = many(x).detach()
    again = many(tensor(np.stack([x.numpy(), x.numpy()]))).detach()
    assert_close(again[1], together, rtol=1e-12)
    assert_close(many.inv(together).detach(), x, rtol=1e-8, atol=1e-9)
    alone = [conditional.condition(c)(v).detach().numpy() for c, v in zip(contexts, x)]
    assert_close(together, np.array(alone), rtol=1e-12)
    assert (
        np.ptp([conditional.condition(c)(x[0]).detach().numpy() for c in contexts], 0).max() > 0.01
    )


# The networks of the others see the vector as well.
@pytest.mark.parametrize(
    "name",
    ["spline", "planar", "sylvester", "radial", "householder", "batch normalisation", "cosine"],
)
def test_one_vector_in_many_contexts_is_many_vectors(name):
    manual_seed(2)
    conditional = stirred(CONDITIONAL[name](3, 2))
    rng = np.random.default_rng(0)
    contexts, x = tensor(rng.standard_normal((5, 2))), tensor(rng.standard_normal(3))
    many = conditional.condition(contexts)
    y, ladj = many.call_and_ladj(x)
    each = [conditional.condition(c).call_and_ladj(x) for c in contexts]
    assert_close(y.detach(), np.array([v.detach().numpy() for v, _ in each]), rtol=1e-12)
    known = np.array([j.detach().numpy() for _, j in each])
    assert_close(ladj.detach() + tensor(0.0 * known), known, rtol=1e-11, atol=1e-12)
    back = np.array([conditional.condition(c).inv(x).detach().numpy() for c in contexts])
    assert_close(many.inv(x).detach(), back, rtol=1e-9, atol=1e-9)


@EACH_CONDITIONAL
def test_conditional_distributions_train_their_networks(name):
    manual_seed(2)
    conditional = CONDITIONAL[name](2, 1).double()
    flow = ConditionalTransformedDistribution(standard(2), [conditional])
    context = tensor(np.linspace(-1.0, 1.0, 7)[:, None])
    lp = flow.condition(context).log_prob(tensor(np.full((7, 2), 0.4)))
    assert lp.shape == (7,)
    lp.sum().backward()
    if name != "householder":  # A rotation of a round normal changes nothing.
        assert any(np.abs(p.grad.numpy()).max() > 0 for p in conditional.parameters())


def test_forms_with_a_context_are_those_without_one():
    x, rows = np.array([0.3, -1.0, 2.0]), lambda *v: tensor(np.array(v))
    # softplus of both is 1.4.
    tails = tr.ConditionalSinhArcsinh(
        3, lambda c: (c * 0.3, c * 0.0 + math.log(math.expm1(1.4) / math.expm1(1.0)))
    )
    pairs = [
        (tails.condition(rows(1.0, 1.0, 1.0)), tr.SinhArcsinhTransform(0.3, 1.4)),
        (
            tr.ConditionalDiscreteCosine(lambda c: c).condition(rows(0.7)),
            tr.DiscreteCosineTransform(-1, 0.7),
        ),
    ]
    for ours, plain in pairs:
        y, ladj = ours.call_and_ladj(tensor(x))
        assert_close(y, plain(tensor(x)), rtol=1e-12)
        assert_close(ladj, plain.log_abs_det_jacobian(tensor(x), y).sum(), atol=1e-12)
        assert_close(ours.inv(y), x, rtol=1e-12)


def test_normalisation_in_a_context_takes_the_moments_of_all_contexts():
    module = stirred(tr.conditional_batchnorm(3, 2, momentum=0.2))
    rng = np.random.default_rng(0)
    y, contexts = 2.0 + 3.0 * rng.standard_normal((6, 3)), tensor(rng.standard_normal((6, 2)))
    free, shift = (v.detach().numpy() for v in module.nn(contexts))
    scale = np.log1p(np.exp(free) * np.expm1(1.0))
    flow = TransformedDistribution(standard(3), module.condition(contexts))
    found, spread = flow.log_prob(tensor(y)).detach().numpy(), np.sqrt(y.var(0, ddof=1) + 1e-5)
    noise = (y - y.mean(0)) / spread * scale + shift
    known = stats.norm.logpdf(noise) + np.log(scale / spread)
    assert_close(found, known.sum(-1), rtol=1e-12)
    assert_close(module.moving_mean, 0.2 * y.mean(0), rtol=1e-12)
    assert_close(module.moving_variance, 0.8 + 0.2 * y.var(0, ddof=1), rtol=1e-12)
    assert set(module.state_dict()) >= {"moving_mean", "moving_variance"}
    with pytest.raises(ShapeError, match="ConditionalBatchNorm in training"):
        module.condition(contexts).inv(tensor(y[0]))
    alone = module.eval().condition(contexts)
    assert_close(alone.inv(alone(tensor(y))).detach(), y, rtol=1e-12)


@pytest.mark.slow
def test_a_continuous_flow_is_carried_by_its_context():
    manual_seed(2)
    conditional = stirred(tr.conditional_continuous_flow(2, 1, [4], 0.5, rtol=1e-9, atol=1e-10))
    x = tensor(np.array([0.3, -1.0])).requires_grad_()
    flows = [conditional.condition(tensor(np.array([c]))) for c in (-1.0, 1.0)]
    y, ladj = flows[0].call_and_ladj(x)
    assert np.abs((y - flows[1](x)).detach().numpy()).max() > 0.01
    assert_close(flows[0].inv(y), x.detach(), rtol=1e-7, atol=1e-8)
    rows = [grad(out, [x], retain_graph=True)[0].numpy() for out in y.unbind()]
    assert_close(ladj.detach(), np.linalg.slogdet(np.array(rows))[1], rtol=1e-7)


def test_what_is_no_conditional_distribution_is_refused():
    with pytest.raises(ArgumentError, match="ConditionalTransformedDistribution"):
        ConditionalTransformedDistribution(standard(2), [3])


# ------------------------------------------------------------------------------------------ splines


def test_a_spline_with_free_parameters_of_zero_is_the_identity():
    zeros = [tensor(np.zeros((1, n))) for n in (8, 8, 7)]
    x = tensor(np.linspace(-5.0, 5.0, 201)[:, None])
    y, slope = ConditionedSpline(tuple(zeros), 3.0).call_and_ladj(x)
    assert_close(y, x, rtol=1e-12, atol=1e-12)
    assert_close(slope, np.zeros_like(x), atol=1e-12)


def test_a_spline_goes_through_its_knots_with_its_slopes():
    """Positions and slopes by formulas of their own, in NumPy."""
    rng = np.random.default_rng(0)
    w, h, s = (2.0 * rng.standard_normal(n) for n in (5, 5, 4))
    curve = ConditionedSpline(tuple(tensor(v[None]) for v in (w, h, s)), 2.0)

    def places(free):
        share = 1e-3 + (1.0 - 5e-3) * np.exp(free) / np.exp(free).sum()
        return -2.0 + 4.0 * np.cumsum(share)[:-1]

    slopes = 1e-3 + np.log1p(np.exp(s + np.log(np.expm1(1.0 - 1e-3))))
    y, log_slope = curve.call_and_ladj(tensor(places(w)[:, None]))
    assert_close(y, places(h)[:, None], rtol=1e-12)
    assert_close(log_slope, np.log(slopes)[:, None], rtol=1e-9, atol=1e-12)
    x = np.linspace(-3.0, 3.0, 2001)
    y = curve(tensor(x[:, None])).numpy()[:, 0]
    assert (np.diff(y) > 0).all() and (y[np.abs(x) > 2.0] == x[np.abs(x) > 2.0]).all()


@pytest.mark.parametrize("spread", [10.0, 100.0])
def test_splines_survive_extreme_parameters(spread):
    rng = np.random.default_rng(1)
    parameters = tuple(tensor(spread * rng.standard_normal((1, n))) for n in (8, 8, 7))
    curve = ConditionedSpline(parameters, 3.0)
    x = tensor(np.linspace(-3.5, 3.5, 500)[:, None]).requires_grad_()
    y, slope = curve.call_and_ladj(x)
    assert np.isfinite(y.detach().numpy()).all() and np.isfinite(slope.detach().numpy()).all()
    back = curve.inv(y.detach()).numpy()
    # Where the curve is flat its inverse is steep: errors are those of y over the slope.
    bound = 1e-12 * (1.0 + np.exp(-slope.detach().numpy()))
    assert (np.abs(back - x.detach().numpy()) <= 1e-9 + bound).all()
    assert np.isfinite(grad(slope.sum(), [x])[0].numpy()).all()


def test_linear_splines_are_refused():
    with pytest.raises(ArgumentError, match="order") as error:
        tr.spline(3, order="linear")
    assert "'linear'" in error.value.got


# -------------------------------------------------------------------------------- planar and radial


@pytest.mark.parametrize("product", [-0.999999, -0.9, 0.0, 5.0, 1e4])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_inverse_of_a_planar_flow_is_found_however_steep_it_is(product, dtype):
    n = np.log(np.expm1(product + 1.0)) if product < 30 else product + 1.0
    transform = ConditionedPlanar(
        *(tensor(np.array(v, dtype)) for v in (0.3, [n / 2.0, 1.0], [2.0, 0.0]))
    )
    x = tensor(np.random.default_rng(0).uniform(-3.0, 3.0, (200, 2)).astype(dtype))
    y = transform(x)
    found, eps = transform.inv(y), np.finfo(dtype).eps
    # Where the map contracts, x is not determined by y to rounding, but its image is.
    pair = (found, x) if product > 0.0 else (transform(found), y)
    assert_close(*pair, rtol=50 * eps, atol=50 * eps * (1.0 + max(product, 0.0)))


def test_the_inverse_of_a_planar_flow_has_right_second_derivatives():
    transform = made("planar", 3)
    rng = np.random.default_rng(0)
    y = tensor(rng.standard_normal(3)).requires_grad_()
    weight = tensor(rng.standard_normal(3))

    def slope(y):
        y = y if y.requires_grad else y.clone().requires_grad_()
        return grad((transform.inv(y) * weight).sum(), [y], create_graph=True)[0]

    assert gradcheck(slope, (y,), eps=1e-5, atol=1e-7)


def test_a_radial_flow_is_smooth_at_its_centre():
    transform = made("radial", 2)
    x = transform.x0.detach().clone().requires_grad_()
    y, ladj = transform.call_and_ladj(x)
    assert_close(y.detach(), x.detach())
    assert np.isfinite(grad(ladj + y.sum(), [x])[0].numpy()).all()


# ------------------------------------------------------------------------------------- other pieces


def test_householder_matrices_are_orthogonal():
    transform = made("householder", 4)
    matrix = transform(tensor(np.eye(4))).detach().numpy()
    assert_close(matrix @ matrix.T, np.eye(4), atol=1e-12)


def test_batch_normalisation_keeps_running_moments_in_training():
    transform = tr.batchnorm(2, momentum=1.0).double()
    rng = np.random.default_rng(0)
    y = rng.normal([3.0, -1.0], [2.0, 0.5], (500, 2))
    x = transform.inv(tensor(y)).detach().numpy()
    assert_close(x.mean(0), np.zeros(2), atol=1e-12)
    assert_close(x.std(0, ddof=1), np.ones(2), rtol=1e-4)
    assert_close(transform.moving_mean, y.mean(0), rtol=1e-12)
    assert_close(transform.moving_variance, y.var(0, ddof=1), rtol=1e-12)
    transform.eval()
    back = transform(tensor(x)).detach()
    assert_close(back, y, rtol=1e-10)


def test_batch_normalisation_in_training_needs_a_batch():
    with pytest.raises(ShapeError, match="at least 2 rows"):
        tr.batchnorm(2).inv(tensor([1.0, 2.0]))


def test_a_vector_of_one_number_cannot_be_coupled():
    with pytest.raises(ArgumentError, match="at least 2 numbers"):
        tr.affine_coupling(1)


def test_sizes_may_be_integers_of_numpy():
    assert tr.affine_coupling(np.int64(4)).split_dim == 2
    assert tr.permute(np.int64(1)).permutation == (0,)


def test_parameters_of_a_composition_are_found_once_and_by_optimizers():
    shared = tr.planar(2)
    parts = [shared, tr.permute(2), tr.ExpTransform(), shared, tr.iterated(2, tr.radial, 2)]
    whole = tr.ComposeTransformModule(parts)
    assert len(whole) == len(whole.parts) == 6
    assert len(list(whole.parameters())) == 3 + 2 * 3
    assert len(list(whole.inv.parameters())) == 9
    other = tr.ComposeTransformModule([tr.planar(2), *parts[1:3], tr.planar(2), *parts[4:]])
    assert whole != other and whole == whole and whole.inv == whole.inv


def test_a_masked_autoregressive_flow_learns_a_correlated_normal():
    """Maximum likelihood with exact gradients: the fit comes to within 0.02 nats of the truth."""
    covariance = np.array([[1.0, 0.8], [0.8, 1.5]])
    target = MultivariateNormal(tensor(np.array([1.0, -1.0])), covariance_matrix=tensor(covariance))
    data = target.sample((1500,), Generator(3))
    manual_seed(0)
    flow = tr.affine_autoregressive(2, [8]).double().inv
    fitted = TransformedDistribution(standard(2), flow)
    optimizer = Adam(flow.parameters(), lr=0.02)
    for _ in range(300):
        optimizer.zero_grad()
        loss = -fitted.log_prob(data).mean()
        loss.backward()
        optimizer.step()
    test = target.sample((4000,), Generator(4))
    gap = (target.log_prob(test) - fitted.log_prob(test)).mean().item()
    entropy = stats.multivariate_normal(cov=covariance).entropy()
    assert math.isfinite(entropy) and -0.005 < gap < 0.02


def test_channels_are_mixed_by_a_matrix_of_the_context():
    manual_seed(2)
    flow = stirred(tr.conditional_generalized_channel_permute(2, 3))
    x, context = tensor(np.random.default_rng(0).standard_normal((3, 4, 2))), tensor([0.3, -1.0])
    transform = flow.condition(context.double())
    y = transform(x).detach()
    assert_close(transform.inv(y).detach(), x, rtol=1e-9, atol=1e-9)
    points = [tensor(row[:, None, None]) for row in np.eye(3)]
    weight = np.array([transform(p).detach().numpy()[:, 0, 0] for p in points]).T
    assert_close(y, np.einsum("ij,jhw->ihw", weight, x.numpy()), rtol=1e-9, atol=1e-9)
    expected = 8 * np.linalg.slogdet(weight)[1]
    assert_close(transform.log_abs_det_jacobian(x, y).detach(), expected, rtol=1e-9)
    with pytest.raises(ShapeError, match="third from the end"):
        transform(tensor(np.ones((2, 4, 2))))
    with pytest.raises(ShapeError, match="each of 0 to 2 once"):
        tr.GeneralizedChannelPermute(3, [0, 0, 1])


@pytest.mark.slow
def test_random_probes_have_the_divergence_as_their_mean():
    manual_seed(1)
    exact = stirred(tr.continuous_flow(3, [6], 0.5), spread=0.6)
    probed = tr.ContinuousFlow(exact.nn, 0.5, "hutchinson", 2, rtol=1e-5)
    for p in exact.parameters():
        p.requires_grad_(False)
    x = tensor(np.random.default_rng(0).standard_normal(3))
    y, want = exact.call_and_ladj(x)
    many = x.expand((400, 3))
    z, found = probed.call_and_ladj(many)
    assert_close(z[0], y, rtol=1e-3)
    error = found.detach().numpy().std() / math.sqrt(400)
    assert 0 < error < 0.04
    assert abs(found.detach().numpy().mean() - want.item()) < 5 * error
    back, minus = probed.inv.call_and_ladj(z)
    assert_close(back, many, rtol=1e-4, atol=1e-5)
    assert abs(minus.detach().numpy().mean() + want.item()) < 5 * error


@pytest.mark.parametrize("activation", ["sigmoid", "tanh", "ELU", "LeakyReLU"])
def test_neural_maps_are_inverted_far_out(activation):
    manual_seed(1)
    flow = stirred(tr.neural_autoregressive(2, activation=activation, width=4))
    # The second number comes first, and what it makes of the map is not extreme.
    assert flow.arn.permutation.tolist() == [1, 0]
    x = tensor(np.array([[-60.0, 0.4], [25.0, -0.9], [0.0, 0.0]]))
    assert_close(flow.inv(flow(x)), x, rtol=1e-6, atol=1e-9)


def test_a_polynomial_is_the_integral_of_its_slope():
    manual_seed(1)
    flow = stirred(tr.polynomial(1))
    upper = 1.3
    nodes, weights = np.polynomial.legendre.leggauss(20)
    at = tensor((0.5 * upper * (nodes + 1.0))[:, None])
    slopes = np.exp(flow.log_abs_det_jacobian(at, None).detach().numpy())
    ends = flow(tensor(np.array([[0.0], [upper]]))).detach().numpy()[:, 0]
    assert_close(ends[1] - ends[0], 0.5 * upper * (weights @ slopes), rtol=1e-12)


@pytest.mark.parametrize(
    "make, expected",
    [
        (lambda: tr.neural_autoregressive(2, activation="relu"), "'sigmoid'"),
        (lambda: tr.block_autoregressive(2, activation="relu"), "'tanh'"),
        (lambda: tr.block_autoregressive(2, residual="plain"), "'gated'"),
        (lambda: tr.continuous_flow(2, trace="both"), "'hutchinson'"),
        (lambda: tr.continuous_flow(2, time=0.0), "above 0"),
    ],
)
def test_unknown_settings_of_flows_are_refused(make, expected):
    with pytest.raises(ArgumentError, match=expected):
        make()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["polynomial", *COSTLY])
def test_densities_by_roots_and_by_equations_are_compiled(name):
    makers = {"polynomial": lambda d: tr.polynomial(d, [3]), **COSTLY}
    manual_seed(1)
    flow = TransformedDistribution(standard(2), stirred(makers[name](2)))
    x = tensor(np.random.default_rng(0).standard_normal((5, 2)))
    expected = flow.log_prob(x)
    compiled = compile(lambda x: flow.log_prob(x))
    for _ in range(3):  # The third call of a shape is native.
        assert_close(compiled(x), expected, rtol=1e-8, atol=1e-9)
    assert "1 compiled path" in str(compiled.explain())
