"""Matrices, straight-through draws, ordered categories and the logistic-normal."""

import numpy as np
import pytest
from scipy import special, stats

import probtorch.distributions as dist
from probtorch import compile
from probtorch.autograd import grad
from probtorch.core.rng import Generator, manual_seed
from probtorch.distributions import biject_to
from probtorch.effects import clear_param_store, param, sample
from probtorch.errors import ArgumentError, DomainError, ShapeError
from probtorch.infer import SVI
from probtorch.optim import Adam
from probtorch.tensor import tensor
from probtorch.testing import assert_close

A = np.array([[1.2, 0.0], [0.4, 0.8]])
B = np.array([[0.9, 0.0, 0.0], [0.3, 1.1, 0.0], [-0.2, 0.5, 0.7]])


def test_a_matrix_normal_has_rows_and_columns_that_are_correlated():
    loc = np.arange(6.0).reshape(2, 3)
    d = dist.MatrixNormal(loc, A, B)
    reference = stats.matrix_normal(loc, A @ A.T, B @ B.T)
    x = d.sample((4000,), Generator(0))
    assert_close(d.log_prob(x[:5]), reference.logpdf(x[:5].numpy()))
    flat = (x.numpy() - loc).reshape(-1, 6)
    exact = np.kron(A @ A.T, B @ B.T)
    # Each entry of a scatter matrix has an error of at most 5 of its standard deviations.
    size = np.sqrt((np.outer(np.diag(exact), np.diag(exact)) + exact**2) / 4000)
    assert (np.abs(flat.T @ flat / 4000 - exact) < 5.2 * size).all()
    assert_close(d.variance, np.diag(exact).reshape(2, 3))
    assert d.expand((2,)).rsample().shape == (2, 2, 3)
    with pytest.raises(ShapeError, match="scale_tril_row"):
        dist.MatrixNormal(loc, B, B)


def test_a_low_rank_normal_is_the_whole_one():
    rng = np.random.default_rng(0)
    loc, w, diag = rng.normal(size=5), rng.normal(size=(5, 2)), rng.uniform(0.5, 2, 5)
    d = dist.LowRankMultivariateNormal(loc, w, diag)
    whole = stats.multivariate_normal(loc, w @ w.T + np.diag(diag))
    x = rng.normal(size=(3, 4, 5))
    assert_close(d.log_prob(tensor(x)), whole.logpdf(x))
    assert_close(d.entropy(), whole.entropy())
    assert_close(d.covariance_matrix, whole.cov)
    with pytest.raises(ShapeError, match="cov_diag"):
        dist.LowRankMultivariateNormal(loc, w, diag[:3])


def test_a_logistic_normal_lives_on_a_simplex_of_one_more_part():
    d = dist.LogisticNormal(np.array([0.3, -0.5]), np.array([1.0, 0.6]))
    x = d.sample((500,), Generator(1))
    assert d.event_shape == (3,) and d.support.check(x).numpy().all()
    # Each share of what is left is a logit-normal number, shifted by the number of parts left.
    share = x.numpy()[:, 0]
    z = special.logit(share) - (0.3 - np.log(2))
    assert stats.kstest(z, "norm").pvalue > 1e-6
    t = biject_to(d.support)
    u, ladj = t.inv(x), t.log_abs_det_jacobian(t.inv(x), x)
    base = dist.Normal(np.array([0.3, -0.5]), np.array([1.0, 0.6]))
    assert_close(d.log_prob(x), base.log_prob(u).sum(-1) - ladj)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: dist.OneHotCategoricalStraightThrough(logits=x),
        lambda x: dist.RelaxedOneHotCategoricalStraightThrough(0.7, logits=x),
    ],
)
def test_straight_through_draws_are_one_hot_and_pass_a_gradient(make):
    logits = tensor(np.array([0.2, -0.4, 0.9]), requires_grad=True)
    d = make(logits)
    x = d.rsample((4000,), Generator(2))
    values = x.numpy(force=True)
    assert np.allclose(values.sum(-1), 1) and np.isin(np.round(values, 12), [0, 1]).all()
    p = special.softmax(logits.detach().numpy())
    assert stats.chisquare(values.sum(0), p * 4000).pvalue > 1e-6
    weights = tensor(np.array([1.0, 2.0, 5.0]))
    (slope,) = grad((x * weights).sum(-1).mean(), [logits])
    assert np.abs(slope.numpy()).min() > 1e-3


def test_a_straight_through_gradient_is_that_of_the_probabilities():
    logits = tensor(np.array([0.2, -0.4, 0.9]), requires_grad=True)
    weights = tensor(np.array([1.0, 2.0, 5.0]))
    x = dist.OneHotCategoricalStraightThrough(logits=logits).rsample()
    (slope,) = grad((x * weights).sum(), [logits])
    (expected,) = grad((logits.softmax(-1) * weights).sum(), [logits])
    assert_close(slope, expected)


def test_a_bernoulli_passes_the_gradient_of_its_relaxation():
    logits = tensor(np.array(0.3), requires_grad=True)
    hard = dist.RelaxedBernoulliStraightThrough(0.7, logits=logits).rsample((50,), Generator(4))
    soft = dist.RelaxedBernoulli(0.7, logits=logits).rsample((50,), Generator(4))
    assert np.isin(np.round(hard.numpy(force=True), 12), [0, 1]).all()
    assert_close(grad(hard.sum(), [logits])[0], grad(soft.sum(), [logits])[0])


@pytest.mark.parametrize("shape", [(3,), ()], ids=["one-hot", "0 and 1"])
def test_a_straight_through_draw_knows_its_density_and_trains_a_guide(shape):
    hard, soft = {
        (3,): (dist.RelaxedOneHotCategoricalStraightThrough, dist.RelaxedOneHotCategorical),
        (): (dist.RelaxedBernoulliStraightThrough, dist.RelaxedBernoulli),
    }[shape]
    logits = tensor(np.linspace(-0.5, 1.0, 3) if shape else np.array(0.3), requires_grad=True)
    q, relaxed = hard(0.7, logits=logits), soft(0.7, logits=logits)
    for method in ("sample", "rsample"):
        x = getattr(q, method)((50,), Generator(4))
        behind = getattr(relaxed, method)((50,), Generator(4))
        assert_close(q.log_prob(x).detach(), relaxed.log_prob(behind).detach())
        # Under another distribution of the kind, joined, expanded and masked.
        p, flat = (kind(0.4, logits=logits.detach() * 0.0) for kind in (hard, soft))
        assert_close(p.log_prob(x).detach(), flat.log_prob(behind).detach())
        assert_close(
            p.expand((50,)).to_event(1).log_prob(x).detach(), flat.log_prob(behind).sum().detach()
        )
        assert p.mask(False).log_prob(x).sum() == 0.0
    if not shape:
        for t, limit in ((0.7, np.inf), (1.3, -np.inf)):
            assert hard(t, logits=0.3).log_prob(0.0) == limit
        near = dist.RelaxedBernoulli(1.0, logits=0.3).log_prob(np.array([1e-12, 1 - 1e-12]))
        ends = hard(1.0, logits=0.3).log_prob(np.array([0.0, 1.0]))
        assert_close(ends, near, rtol=1e-8)
    slopes = [grad(d.log_prob(v).sum(), [logits])[0] for d, v in ((q, x), (relaxed, behind))]
    assert_close(*slopes)
    weights = tensor(np.arange(3.0)) if shape else tensor(2.0).double()

    def model():
        z = sample("z", hard(0.7, logits=logits.detach() * 0.0))
        level = (z * weights).sum(-1) if shape else z * weights
        sample("y", dist.Normal(level, 0.3), obs=tensor(2.0).double())

    def guide():
        start = tensor(np.zeros(shape))
        sample("z", hard(0.7, logits=param("start", start)))

    clear_param_store()
    svi = SVI(model, guide, Adam({"lr": 0.05}))
    manual_seed(0)
    losses = [svi.step() for _ in range(200)]
    # The last category, or 1, is what was seen.
    end = param("start").detach().numpy()
    assert np.isfinite(losses).all()
    assert (end.argmax() == 2 and end[2] > end[:2].max() + 0.5) if shape else end > 0.5


CUTS = np.array([-1.0, 0.5, 2.0])


@pytest.mark.parametrize("eta", [0.3, -35.0, 60.0])
def test_ordered_categories_are_intervals_of_a_latent_number(eta):
    # Far in a tail, from the mirror image.
    for made, ref in (
        (dist.OrderedLogistic(eta, CUTS), stats.logistic),
        (dist.OrderedProbit(eta, CUTS), stats.norm),
    ):
        edges = np.concatenate([[-np.inf], CUTS, [np.inf]]) - eta
        low, high = edges[:-1], edges[1:]
        mass = np.where(low > 0, ref.sf(low) - ref.sf(high), ref.cdf(high) - ref.cdf(low))
        seen = mass > 1e-290
        lp = made.log_prob(tensor(np.arange(4.0))).numpy()
        assert_close(lp[seen], np.log(mass[seen]), rtol=1e-9)
        assert np.isfinite(lp).all()


def test_cutpoints_and_predictors_have_gradients_in_compiled_code():
    eta, y = tensor(np.linspace(-1, 2, 6)), tensor(np.array([0.0, 1, 2, 3, 1, 0]))

    def slopes(cuts, eta):
        lp = dist.OrderedLogistic(eta, cuts).log_prob(y).sum()
        return tuple(grad(lp, [cuts, eta]))

    cuts = tensor(CUTS)
    native = compile(slopes)
    for _ in range(2):
        leaves = cuts.detach().requires_grad_(), eta.detach().requires_grad_()
        for a, b in zip(native(*leaves), slopes(*leaves), strict=True):
            assert_close(a, b, rtol=1e-10)
    assert native.reason is None
    with pytest.raises(DomainError, match="cutpoints"):
        dist.OrderedLogistic(0.0, CUTS[::-1].copy())


def test_what_has_no_size_says_so():
    with pytest.raises(ArgumentError, match="num_steps"):
        dist.GaussianRandomWalk(1.0, 0)
    with pytest.raises(ArgumentError, match="a tuple of sizes"):
        dist.ZeroSumNormal(1.0, 3)
    with pytest.raises(ArgumentError, match="total_count"):
        dist.DirichletMultinomial([1.0, 2.0], 1.5)
    with pytest.raises(DomainError, match="parameter df"):
        dist.Wishart(0.5, np.eye(3))
    with pytest.raises(ShapeError, match="square"):
        dist.Wishart(5.0, scale_tril=np.ones((2, 3)), validate_args=False)
