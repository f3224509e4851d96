"""`AutoGaussian`, `AutoDiscreteParallel`, `AutoCallable`, `EasyGuide`."""

import math

import numpy as np
import pytest

from probtorch.core.rng import Generator
from probtorch.distributions import (
    Bernoulli,
    Categorical,
    Dirichlet,
    Gamma,
    LogNormal,
    MultivariateNormal,
    Normal,
    OneHotCategorical,
    Poisson,
    constraints,
)
from probtorch.effects import handlers, param, plate, sample
from probtorch.errors import ArgumentError, InferenceError, ShapeError
from probtorch.infer import (
    SVI,
    AutoCallable,
    AutoDiscreteParallel,
    AutoGaussian,
    AutoGuideList,
    AutoNormal,
    EasyGuide,
    Trace_ELBO,
    TraceEnum_ELBO,
    init_to_value,
)
from probtorch.optim import Adam
from probtorch.tensor import tensor
from tests.infer.svi.test_guides import fit

# ------------------------------------------------------------------------------------- AutoGaussian


def states():
    """A chain of states in two columns, and a slope that all data share."""
    slope = sample("slope", Normal(0.0, 1.0))
    with plate("column", 2):
        x = tensor([0.0, 1.0]) * 0.0
        for t in range(3):
            x = sample(f"x{t}", Normal(x, 0.5))
            sample(f"y{t}", Normal(x + slope * (t + 1.0), 0.4), obs=tensor([0.5, 1.0 - t]))


def exact_states():
    """Precision and mean over (slope, x0, x1, x2), two numbers each but the first."""
    precision, shift = np.zeros((7, 7)), np.zeros(7)
    rows = [(np.eye(7)[0], 0.0, 1.0)]
    for c in range(2):
        for t in range(3):
            step = np.eye(7)[1 + 2 * t + c] - (np.eye(7)[2 * t - 1 + c] if t else 0.0)
            seen = np.eye(7)[1 + 2 * t + c] + (t + 1.0) * np.eye(7)[0]
            rows += [(step, 0.0, 0.5), (seen, [0.5, 1.0 - t][c], 0.4)]
    for row, value, scale in rows:
        precision += np.outer(row, row) / scale**2
        shift += row * value / scale**2
    return precision, np.linalg.solve(precision, shift)


@pytest.mark.slow
def test_gaussian_has_the_zeros_of_the_model_and_is_exact_for_a_normal():
    guide = AutoGaussian(states)
    result = fit(states, guide, 900, lr=0.05)
    precision, mean = exact_states()
    found = guide.get_posterior()
    sd = np.sqrt(np.diag(np.linalg.inv(precision)))
    # The last steps move the parameters by about 1 % of a standard deviation.
    assert (np.abs(found.mean.numpy() - mean) < 0.05 * sd).all()
    covariance = np.linalg.inv(precision)
    assert np.abs(found.covariance_matrix.numpy() - covariance).max() < 0.08 * covariance.max()
    # Neither column sees the other.
    pattern = np.abs(found.precision_matrix.numpy()) > 1e-8
    assert np.array_equal(pattern, np.abs(precision) > 0.0)
    shapes = {n: tuple(p.shape) for n, p in result.params.items() if "factor" in n}
    # Each density of y ties the slope to a state, those of states tie two of a column.
    assert shapes == {
        "auto_factor.slope.x0": (2, 2, 2),
        "auto_factor.x0.x1": (2, 2, 2),
        "auto_factor.slope.x1": (2, 2, 2),
        "auto_factor.x1.x2": (2, 2, 2),
        "auto_factor.slope.x2": (2, 2, 2),
    }


def test_gaussian_begins_as_its_scale_says_and_moves_with_zeros():
    guide = AutoGaussian(states, init_loc_fn=init_to_value(values={"slope": 2.0}), init_scale=0.3)
    guide()
    found = guide.get_posterior()
    SVI(states, guide, Adam({"lr": 0.05}), seed=0).run(3, progress_bar=False)
    moved = guide.get_posterior().precision_matrix.numpy()
    assert np.array_equal(np.abs(moved) > 1e-8, np.abs(exact_states()[0]) > 0.0)
    np.testing.assert_allclose(found.covariance_matrix.numpy(), 0.09 * np.eye(7), atol=1e-12)
    assert found.mean.numpy()[0] == 2.0


def test_rows_that_a_discrete_site_ties_stay_apart():
    def model():
        loc = sample("loc", Normal(0.0, 1.0))
        with plate("row", 4):
            x = sample("x", Normal(0.0, 1.0))
            z = sample("z", Bernoulli(0.5))
            sample("y", Normal(x + loc * z, 0.5), obs=tensor([0.0, 1.0, 2.0, 3.0]))

    guide = AutoGaussian(model)
    svi = SVI(model, guide, Adam({"lr": 0.01}), TraceEnum_ELBO(), seed=0)
    result = svi.run(2, progress_bar=False)
    shapes = {n: tuple(p.shape) for n, p in result.params.items() if "factor" in n}
    assert shapes == {"auto_factor.loc.x": (4, 2, 2)}


# ----------------------------------------------------------------------------- AutoDiscreteParallel

Y = tensor([0.3, 4.1, 1.9])


def mixture(y):
    with plate("data", len(y)):
        z = sample("z", Categorical(tensor([0.2, 0.5, 0.3])))
        sample("y", Normal(2.0 * z, 1.0), obs=y)


def test_tables_of_probabilities_are_exact_where_sites_are_independent():
    guide = AutoDiscreteParallel(mixture)
    svi = SVI(mixture, guide, Adam({"lr": 0.1}), TraceEnum_ELBO(), seed=0)
    result = svi.run(3000, Y, progress_bar=False)
    y = Y.numpy()[:, None]
    joint = np.array([0.2, 0.5, 0.3]) * np.exp(-0.5 * (y - [0.0, 2.0, 4.0]) ** 2)
    joint /= math.sqrt(2.0 * math.pi)
    assert abs(result.losses[-1] + np.log(joint.sum(1)).sum()) < 1e-5
    probs = guide.get_posterior()["z"].probs.numpy()
    np.testing.assert_allclose(probs, joint / joint.sum(1, keepdims=True), atol=1e-3)
    assert guide.median()["z"].tolist() == [0, 2, 1]
    draws = guide.sample_posterior(4000, generator=Generator(0))["z"].numpy()
    assert draws.shape == (4000, 3)
    # Five standard errors of a proportion.
    assert np.abs((draws == 1).mean(0) - probs[:, 1]).max() < 5 * 0.5 / math.sqrt(4000)


def test_discrete_and_continuous_parts_make_one_guide():
    def model(y):
        loc = sample("loc", Normal(0.0, 3.0))
        with plate("data", len(y)):
            z = sample("z", Bernoulli(0.5))
            sample("y", Normal(loc + 3.0 * z, 1.0), obs=y)

    guide = AutoGuideList(model)
    guide.append(AutoNormal(handlers.block(model, hide=["z"])))
    guide.append(AutoDiscreteParallel(handlers.block(model, hide=["loc"])))
    svi = SVI(model, guide, Adam({"lr": 0.05}), TraceEnum_ELBO(), seed=0)
    svi.run(300, Y, progress_bar=False)
    assert guide.median()["z"].tolist() == [0.0, 1.0, 0.0]
    draws = guide.sample_posterior(7)
    assert draws["z"].shape == (7, 3) and draws["loc"].shape == (7,)
    with pytest.raises(InferenceError, match="quantiles"):
        guide.quantiles([0.5])


def test_vectors_with_a_one_and_subsampled_rows_have_probabilities():
    def model():
        with plate("row", 5, subsample_size=2):
            sample("z", OneHotCategorical(tensor([0.1, 0.2, 0.7])))

    guide = AutoDiscreteParallel(model)
    svi = SVI(model, guide, Adam({"lr": 0.1}), TraceEnum_ELBO(), seed=0)
    svi.run(400, progress_bar=False)
    probs = guide.get_posterior()["z"].probs.numpy()
    assert probs.shape == (5, 3)
    np.testing.assert_allclose(probs, np.tile([0.1, 0.2, 0.7], (5, 1)), atol=0.02)
    assert guide.sample_posterior(4)["z"].shape == (4, 5, 3)


@pytest.mark.parametrize("fn", [Normal(0.0, 1.0), Poisson(2.0)])
def test_other_sites_have_no_table(fn):
    guide = AutoDiscreteParallel(lambda: sample("x", fn))
    with pytest.raises(InferenceError, match=r"site 'x'(.|\n)*handlers.block"):
        guide()


# -------------------------------------------------------------------------- AutoCallable, EasyGuide


def pair(y):
    a = sample("a", Normal(0.0, 1.0))
    b = sample("b", Gamma(3.0, 1.0))
    sample("y", Normal(a + b, 1.0), obs=y)


def b_by_hand(y):
    loc = param("b_loc", tensor(1.0))
    return {"b": sample("b", LogNormal(loc + 0.0 * y, 0.1))}


def test_a_function_is_a_part_that_can_be_asked():
    guide = AutoGuideList(pair)
    guide.append(AutoNormal(handlers.block(pair, hide=["b"])))
    guide.append(AutoCallable(pair, b_by_hand))
    svi = SVI(pair, guide, Adam({"lr": 0.05}), Trace_ELBO(), seed=0)
    svi.run(10, tensor(2.0), progress_bar=False)
    assert {n for n, _ in guide.named_parameters()} == {"a_auto_loc", "a_auto_scale", "b_loc"}
    draws = guide.sample_posterior((2, 300), generator=Generator(1))
    assert draws["a"].shape == draws["b"].shape == (2, 300)
    loc = svi.get_params()["b_loc"].item()
    # Five standard errors of 600 draws, at a standard deviation of 0.1.
    assert abs(np.log(draws["b"].numpy()).mean() - loc) < 5 * 0.1 / math.sqrt(600)


def test_a_function_may_say_its_medians():
    def median(y):
        return {"b": param("b_loc").exp()}

    guide = AutoCallable(pair, b_by_hand, median)
    with pytest.raises(InferenceError, match="not met"):
        guide.median()
    guide(tensor(2.0))
    assert guide.median()["b"].item() == pytest.approx(math.e, rel=1e-6)
    with pytest.raises(ArgumentError, match="guide="):
        AutoCallable(pair, 3)


def test_medians_of_a_function_are_those_of_draws(monkeypatch):
    monkeypatch.setattr("probtorch.infer.guides.base.QUANTILE_DRAWS", 400)
    guide = AutoCallable(pair, b_by_hand)
    guide(tensor(2.0))
    # 1.25 sd / sqrt(400) is the standard error of the logarithm; five of them.
    assert abs(math.log(guide.median()["b"].item()) - 1.0) < 5 * 1.25 * 0.1 / 20.0


class Joint(EasyGuide):
    def guide(self, y):
        group = self.group("a|b")
        loc = param("loc", tensor(np.zeros(group.event_shape)))
        tril = param("tril", tensor(np.eye(2) * 0.3), constraints.lower_cholesky)
        vector, values = group.sample("ab", MultivariateNormal(loc, scale_tril=tril))
        assert vector.shape[-1] == 2 and list(values) == ["a", "b"]
        return values


def test_a_group_is_drawn_from_one_distribution():
    guide = Joint(pair)
    result = fit(pair, guide, 300, tensor(2.0), lr=0.05)
    assert result.svi.explain().startswith("SVI.step: 1 compiled path")
    alone = fit(pair, AutoNormal(pair), 300, tensor(2.0), lr=0.05)
    # The bound of a guide with a correlation is above that of one without.
    assert result.losses[-50:].mean() < alone.losses[-50:].mean()
    draws = guide.sample_posterior(300, generator=Generator(0))
    assert (draws["b"].numpy() > 0.0).all()
    assert np.corrcoef(draws["a"].numpy(), np.log(draws["b"].numpy()))[0, 1] < -0.3


def rows_model(y):
    top = sample("top", Normal(0.0, 1.0))
    with plate("row", 6, subsample_size=3) as rows:
        share = sample("share", Dirichlet(tensor([1.0, 1.0])))
        z = sample("z", Normal(top, 1.0))
        sample("y", Normal(z + share[..., 0], 1.0), obs=y[rows])


class Rows(EasyGuide):
    def guide(self, y):
        self.map_estimate("top")
        group = self.group("share|z")
        assert group.event_shape == (2,) and group.batch_shape == (6,)
        with self.plate("row"):
            loc = param("row_loc", tensor(np.zeros((6, 2))), event_dim=1)
        group.sample("local", Normal(loc, 0.5).to_event(1))


def test_groups_are_drawn_within_their_plates_and_on_the_rows_of_the_call():
    guide = Rows(rows_model)
    svi = SVI(rows_model, guide, Adam({"lr": 0.05}), Trace_ELBO(), seed=0)
    y = tensor(np.arange(6.0))
    svi.run(200, y, progress_bar=False)
    loc = svi.get_params()["row_loc"].numpy()
    assert (np.diff(loc[:, 1]) > 0.0).all()
    assert sorted(guide.sample_posterior(2)) == ["top"]


class InsidePlates(EasyGuide):
    """As `Rows`, in plates that are entered by hand, with their size or without."""

    def guide(self, y):
        self.map_estimate("top")
        with self.plate("row", 6, 3):
            loc = param("row_loc", tensor(np.zeros((6, 2))), event_dim=1)
            self.group("share|z").sample("local", Normal(loc, 0.5).to_event(1))


def test_plates_around_a_group_are_not_entered_again():
    y = tensor(np.arange(6.0))
    losses = []
    for kind in (Rows, InsidePlates):
        svi = SVI(rows_model, kind(rows_model), Adam({"lr": 0.05}), Trace_ELBO(), seed=0)
        losses.append(svi.run(20, y, progress_bar=False).losses)
    np.testing.assert_array_equal(*losses)

    class Own(EasyGuide):
        def guide(self, y):
            with self.plate("own", 4, dim=-1):
                assert sample("noise", Normal(0.0, 1.0), infer={"is_auxiliary": True}).shape == (4,)
            self.map_estimate("a")
            self.map_estimate("b")

    Own(pair)(tensor(1.0))

    class Larger(EasyGuide):
        def guide(self, y):
            self.plate("row", 7)

    with pytest.raises(ArgumentError, match="6, the size in the model"):
        Larger(rows_model)(y)


def test_a_group_of_sites_in_other_plates_has_their_rows_in_the_vector():
    def model():
        sample("a", Normal(0.0, 1.0))
        with plate("row", 3):
            sample("b", Normal(0.0, 1.0))

    class Both(EasyGuide):
        def guide(self):
            group = self.group()
            assert group.event_shape == (4,) and group.batch_shape == ()
            group.sample("all", Normal(tensor(np.arange(4.0)), 1e-9).to_event(1))

    guide = Both(model)
    guide()
    draws = guide.sample_posterior()
    np.testing.assert_allclose(draws["b"].numpy(), [1.0, 2.0, 3.0], atol=1e-6)


def test_groups_refuse_what_does_not_fit():
    class Wrong(EasyGuide):
        def guide(self, y):
            self.group("a").sample("x", Normal(0.0, 1.0))

    with pytest.raises(ShapeError, match="event shape"):
        Wrong(pair)(tensor(1.0))

    class Nobody(EasyGuide):
        def guide(self, y):
            self.group("c")

    with pytest.raises(ArgumentError, match="'a', 'b'"):
        Nobody(pair)(tensor(1.0))

    class Mixed(EasyGuide):
        def guide(self, y):
            self.group("top|z")

    with pytest.raises(ArgumentError, match="works on subsamples"):
        Mixed(rows_model)(tensor(np.zeros(6)))
    with pytest.raises(ArgumentError, match="within guide"):
        Rows(rows_model).plate("row")
