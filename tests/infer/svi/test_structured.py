"""`AutoStructured`: what depends on what, rows that stay apart, exactness on normal targets."""

import math

import numpy as np
import pytest

from probtorch import nn
from probtorch.core.rng import Generator, manual_seed
from probtorch.distributions import (
    Bernoulli,
    Categorical,
    Delta,
    Dirichlet,
    HalfCauchy,
    LogNormal,
    MultivariateNormal,
    Normal,
)
from probtorch.effects import handlers, param, plate, sample
from probtorch.errors import ArgumentError, InferenceError, ModelError
from probtorch.infer import SVI, AutoStructured, Trace_ELBO, TraceEnum_ELBO, init_to_value
from probtorch.optim import Adam
from probtorch.tensor import tensor
from tests.infer.svi.programs import COVARIANCE, EFFECT, ERROR, MEAN, correlated_model
from tests.infer.svi.test_guides import ROWS, exact_local, fit, local, schools

PRECISION = np.zeros((13, 13))
PRECISION[0, 0] = 1.0 / 9.0 + 12.0
PRECISION[0, 1:] = PRECISION[1:, 0] = -1.0
PRECISION[1:, 1:] = np.eye(12) * (1.0 + 1.0 / 0.09)


def chain():
    """Three numbers; y ties b and c, and through them a."""
    a = sample("a", Normal(0.0, 1.0))
    b = sample("b", Normal(a, 0.5))
    c = sample("c", Normal(a - b, 0.7))
    sample("y", Normal(b + c, 1.0), obs=tensor(1.0))


def exact_chain():
    """Mean and covariance of (a, b, c) given y, by the factors' normal equations."""
    rows = np.array([[1.0, 0, 0], [-1, 1, 0], [-1, 1, 1], [0, 1, 1]])
    weights = np.array([1.0, 0.5, 0.7, 1.0]) ** -2.0
    covariance = np.linalg.inv(rows.T @ (weights[:, None] * rows))
    return covariance @ rows.T @ (weights * np.array([0.0, 0.0, 0.0, 1.0])), covariance


# -------------------------------------------------------------------------------------- structure


def crossed():
    """Rows of plate a lie at dim -1 of x, and at dim -2 of y, where plate b has the other."""
    with plate("a", 3):
        x = sample("x", Normal(0.0, 1.0))
    with plate("b", 2), plate("a", 3):
        y = sample("y", Normal(x.reshape((*x.shape[:-2], 3, 1)), 0.5))
        sample("z", Normal(y, 0.5), obs=tensor([[0.0, 1.0], [2.0, 1.0], [-1.0, 0.0]]))


@pytest.mark.parametrize("vectorize", [False, True])
def test_a_plate_may_have_another_dim_at_each_site(vectorize):
    guide = AutoStructured(crossed, init_loc_fn=init_to_value(values={"x": 0.0}))
    objective = Trace_ELBO(10, vectorize_particles=vectorize)
    svi = SVI(crossed, guide, Adam({"lr": 0.03}), objective, seed=0)
    svi.run(500 if vectorize else 3, progress_bar=False)
    assert guide.dependencies == {"y": {"x": "linear"}}
    draws = guide.sample_posterior(4000 if vectorize else 2, generator=Generator(1))
    assert draws["x"].shape[1:] == (3,) and draws["y"].shape[1:] == (3, 2)
    if vectorize:
        # Each x has two rows of z at variance 0.5: precision 1 + 4; y is half of x and of z.
        total = np.array([1.0, 3.0, -1.0])
        x, y = draws["x"].numpy(), draws["y"].numpy()
        assert np.abs(x.mean(0) - 2.0 * total / 5.0).max() < 0.05
        assert np.abs(x.std(0) - 5.0**-0.5).max() < 0.04
        shared = [[np.corrcoef(x[:, i], y[:, j, 0])[0, 1] for i in range(3)] for j in range(3)]
        # Var(y) = 0.125 + 0.2 / 4, Cov(x, y) = 0.2 / 2.
        exact = 0.1 / math.sqrt(0.2 * 0.175)
        assert np.abs(np.array(shared) - exact * np.eye(3)).max() < 0.08


def test_a_site_may_depend_on_one_in_other_and_more_plates():
    def model():
        with plate("c", 4), plate("a", 3):
            sample("x", Normal(0.0, 1.0))
        with plate("a", 3):
            sample("y", Normal(0.0, 1.0))
        with plate("b", 2):
            sample("z", Normal(0.0, 1.0))

    ties = {"y": {"x": "linear"}, "z": {"x": "linear", "y": "linear"}}
    guide = AutoStructured(model, dependencies=ties, conditionals="normal")
    SVI(model, guide, Adam({"lr": 0.03}), seed=0).run(2, progress_bar=False)
    shapes = {n: tuple(p.shape) for n, p in guide.named_parameters() if n.endswith("weight")}
    # Of y in row a of plate a the four numbers x[a, :]; of z all of x, and all of y.
    assert shapes == {"y_auto_weight": (3, 1, 4), "z_auto_weight": (2, 1, 15)}


def test_sites_depend_on_earlier_ones_that_the_posterior_ties_them_to():
    guide = AutoStructured(chain)
    guide()
    assert guide.dependencies == {"b": {"a": "linear"}, "c": {"a": "linear", "b": "linear"}}


def test_sites_that_meet_only_in_the_data_depend_on_each_other():
    def model():
        a = sample("a", Normal(0.0, 1.0))
        b = sample("b", Normal(0.0, 1.0))
        sample("alone", Normal(0.0, 1.0))
        sample("y", Normal(a * b, 1.0), obs=tensor(1.0))

    guide = AutoStructured(model)
    guide()
    assert guide.dependencies == {"b": {"a": "linear"}}


def test_a_markov_chain_depends_on_its_past_by_one_step():
    def model():
        x = 0.0
        for t in range(6):
            x = sample(f"x{t}", Normal(x, 1.0))
            sample(f"y{t}", Normal(x, 1.0), obs=tensor(0.3))

    guide = AutoStructured(model)
    guide()
    assert guide.dependencies == {f"x{t}": {f"x{t - 1}": "linear"} for t in range(1, 6)}


def test_globals_that_locals_share_are_tied():
    """Given its rows mu and tau are not independent: eliminating z ties them."""
    guide = AutoStructured(schools)
    guide(ERROR, y=EFFECT)
    assert guide.dependencies == {
        "tau": {"mu": "linear"},
        "z": {"mu": "linear", "tau": "linear"},
    }


def test_globals_come_before_locals_whatever_the_order_in_the_model():
    def model():
        with plate("rows", 4):
            z = sample("z", Normal(0.0, 1.0))
        w = sample("w", Normal(0.0, 1.0))
        with plate("rows", 4):
            sample("y", Normal(z + w, 1.0), obs=tensor([0.0, 1.0, 2.0, 3.0]))

    guide = AutoStructured(model)
    drawn = guide()
    assert guide.dependencies == {"z": {"w": "linear"}}
    assert list(drawn) == ["z", "w"]


def test_sites_that_meet_in_a_discrete_one_are_tied():
    """Summing z out ties the weights to the locations, which no gradient tells."""

    def mixture(y):
        w = sample("w", Dirichlet(tensor([1.0, 1.0])))
        with plate("component", 2):
            loc = sample("loc", Normal(tensor([-1.0, 1.0]), 3.0))
        with plate("row", len(y)):
            z = sample("z", Categorical(w), infer={"enumerate": "parallel"})
            sample("y", Normal(loc[..., z], 1.0), obs=y)
        sample("other", Normal(0.0, 1.0))

    rng = np.random.default_rng(0)
    y = tensor(np.concatenate([rng.normal(-2.0, 1.0, 30), rng.normal(2.0, 1.0, 50)]))
    guide = AutoStructured(mixture)
    svi = SVI(mixture, guide, Adam({"lr": 0.05}), TraceEnum_ELBO(2), seed=0)
    svi.step(y)
    assert guide.dependencies == {"loc": {"w": "linear"}}
    # Components of one plate meet in every row.
    assert svi.get_params()["loc_auto_scale_tril"].shape[-2:] == (2, 2)


def shapes(guide, *args, **kwargs):
    svi = SVI(guide.model, guide, Adam({"lr": 0.1}), seed=0)
    svi.setup(*args, **kwargs)
    return {n: tuple(p.shape) for n, p in svi.get_params().items()}


def test_rows_that_the_posterior_keeps_apart_stay_apart():
    found = shapes(AutoStructured(schools), ERROR, y=EFFECT)
    assert found["z_auto_loc"] == (8, 1) and found["z_auto_weight"] == (8, 1, 2)
    assert "z_auto_scale_tril" not in found


def test_rows_that_a_density_outside_of_the_plate_sees_are_one_vector():
    def regression(x):
        with plate("column", 3):
            beta = sample("beta", Normal(0.0, 1.0))
        with plate("row", 5):
            sample("y", Normal(x @ beta, 1.0), obs=tensor(np.zeros(5)))

    x = tensor(np.random.default_rng(0).standard_normal((5, 3)))
    found = shapes(AutoStructured(regression), x)
    assert found["beta_auto_scale_tril"] == (1, 3, 3) and found["beta_auto_loc"] == (1, 3)


def test_crossed_plates_are_laid_out_each_in_its_own_way():
    def model():
        with plate("person", 4, dim=-1):
            skill = sample("skill", Normal(0.0, 1.0))
        with plate("item", 3, dim=-2):
            level = sample("level", MultivariateNormal(tensor(np.zeros(2)), tensor(np.eye(2))))
            hardness = level[..., 0]
            with plate("person", 4, dim=-1):
                sample("y", Normal(skill - hardness, 1.0), obs=tensor(np.ones((3, 4))))

    guide = AutoStructured(model)
    found = shapes(guide)
    # Both lie in a plate of the data, so their rows stay apart; an item sees all persons.
    assert found["skill_auto_loc"] == (4, 1)
    assert found["level_auto_loc"] == (3, 1, 2)
    assert found["level_auto_weight"] == (3, 1, 2, 4)
    drawn = guide.sample_posterior((5,))
    assert drawn["skill"].shape == (5, 4) and drawn["level"].shape == (5, 3, 1, 2)
    assert math.isfinite(Trace_ELBO(3, vectorize_particles=True).loss(model, guide))


# -------------------------------------------------------------------------------------- exactness


def covariance_of(guide, names):
    draws = guide.sample_posterior(40_000, generator=Generator(0))
    columns = [draws[n].numpy().reshape(40_000, -1) for n in names]
    return np.cov(np.concatenate(columns, 1).T)


def test_a_multivariate_site_is_recovered():
    guide = AutoStructured(correlated_model)
    result = fit(correlated_model, guide, 800)
    np.testing.assert_allclose(guide.median()["x"].numpy(), MEAN, atol=0.05)
    np.testing.assert_allclose(covariance_of(guide, ["x"]), COVARIANCE, atol=0.1)
    assert result.pareto_k < 0.3


def test_dependent_sites_are_recovered_with_their_covariance():
    guide = AutoStructured(chain)
    result = fit(chain, guide, 800)
    mean, covariance = exact_chain()
    found = guide.median()
    np.testing.assert_allclose([found[n].item() for n in "abc"], mean, atol=0.03)
    np.testing.assert_allclose(covariance_of(guide, "abc"), covariance, atol=0.04)
    assert result.pareto_k < 0.5


def test_without_dependencies_the_answer_is_that_of_mean_field():
    """Precisions of the diagonal (Bishop 2006, sec. 10.1.2)."""
    guide = AutoStructured(chain, conditionals="normal", dependencies={})
    fit(chain, guide, 600)
    mean, covariance = exact_chain()
    found = guide.median()
    np.testing.assert_allclose([found[n].item() for n in "abc"], mean, atol=0.03)
    expected = np.diag(np.diag(np.linalg.inv(covariance)) ** -1.0)
    np.testing.assert_allclose(covariance_of(guide, "abc"), expected, atol=0.02)


def test_rows_of_a_subsampled_plate_are_recovered_with_their_tie_to_the_global():
    guide = AutoStructured(local)
    objective = Trace_ELBO(4, vectorize_particles=True)
    fit(local, guide, 800, tensor(ROWS), objective=objective)
    expected, covariance = exact_local(), np.linalg.inv(PRECISION)
    found = guide.median()
    np.testing.assert_allclose(found["mu"].item(), expected[0], atol=0.1)
    np.testing.assert_allclose(found["z"].numpy(), expected[1:], atol=0.1)
    cov = covariance_of(guide, ["mu", "z"])
    np.testing.assert_allclose(np.diag(cov), np.diag(covariance), rtol=0.25)
    # 800 steps on a third of the rows leave scales 10 to 20 % off; without ties this were 0.
    np.testing.assert_allclose(cov[0, 1:].mean(), covariance[0, 1:].mean(), rtol=0.35)


def test_a_step_moves_the_rows_in_use_and_no_others():
    svi = SVI(local, AutoStructured(local), Adam({"lr": 0.1}), seed=0)
    svi.setup(tensor(ROWS))
    before = svi.get_params()
    svi.step(tensor(ROWS))
    after = svi.get_params()
    for name in ("z_auto_loc", "z_auto_scale", "z_auto_weight"):
        moved = (before[name].numpy() != after[name].numpy()).reshape(12, -1).any(1)
        assert moved.sum() == 4, name


def test_the_bound_of_a_subsample_is_unbiased():
    """The mean over all plates of 2 of 4 rows is the bound of all rows, at the same parameters."""

    def model(y, rows=None):
        mu = sample("mu", Normal(0.0, 1.0))
        with plate("rows", 4, subsample=rows) as chosen:
            z = sample("z", LogNormal(mu, 1.0))
            sample("y", Normal(z, 1.0), obs=y[chosen])

    y = tensor(np.array([0.5, 1.5, 2.5, 0.3]))
    guide = AutoStructured(
        model, create_plates=lambda y, rows=None: plate("rows", 4, subsample=rows), init_scale=0.7
    )
    whole = SVI(model, guide, Adam({"lr": 0.1}), Trace_ELBO(4000, vectorize_particles=True), seed=1)
    for _ in range(3):
        whole.step(y)
    # The same draws of mu in all of them; those of z differ, so 4000 particles leave 0.1.
    every = whole.evaluate_loss(y)
    parts = [
        whole.evaluate_loss(y, tensor(np.array([i, j]))) for i in range(4) for j in range(i + 1, 4)
    ]
    assert len(parts) == 6
    np.testing.assert_allclose(np.mean(parts), every, atol=0.15)


# -------------------------------------------------------------------------- kinds of conditionals


def test_a_point_is_where_the_density_is_largest():
    def model():
        p = sample("p", Dirichlet(tensor([2.0, 3.0, 4.0])))
        sample("x", Normal(p[0], 1.0))

    guide = AutoStructured(model, conditionals={"p": "delta", "x": "normal"}, dependencies={})
    fit(model, guide, 400, objective=Trace_ELBO())
    np.testing.assert_allclose(guide.median()["p"].numpy(), np.array([1, 2, 3]) / 6.0, atol=2e-3)
    draws = guide.sample_posterior((4, 2))
    assert draws["p"].shape == (4, 2, 3) and (np.ptp(draws["p"].numpy(), (0, 1)) == 0).all()


def test_a_point_that_depends_on_another_site_moves_with_it():
    guide = AutoStructured(chain, conditionals={"a": "normal", "b": "delta", "c": "normal"})
    fit(chain, guide, 400)
    draws = guide.sample_posterior(500, generator=Generator(0))
    a, b = draws["a"].numpy(), draws["b"].numpy()
    assert abs(np.corrcoef(a, b)[0, 1]) > 1.0 - 1e-9


def test_noise_can_be_the_users():
    def noise():
        scale = param("width", tensor(0.1, dtype=np.dtype("f8")))
        return scale * sample("own", Normal(tensor(np.zeros(1)), 1.0).to_event(1), infer=AUXILIARY)

    guide = AutoStructured(chain, conditionals={"a": noise}, dependencies={"c": {"b": "linear"}})
    svi = SVI(chain, guide, Adam({"lr": 0.05}), Trace_ELBO(10, vectorize_particles=True), seed=0)
    result = svi.run(10, progress_bar=False)
    assert "width" in result.params and "a_auto_scale" not in result.params
    assert guide.sample_posterior((3,))["a"].shape == (3,)
    assert set(guide.median()) == {"a", "b", "c"}


AUXILIARY = {"is_auxiliary": True}


def test_a_network_can_stand_for_a_dependence_and_is_trained():
    """y = x^2 + noise: no linear dependence helps, a small network does."""

    def model():
        x = sample("x", Normal(0.0, 1.0))
        sample("y", Normal(x * x, 0.3))

    def bound(guide):
        result = fit(model, guide, 1200, lr=0.1)
        judge = SVI(model, guide, Adam({}), Trace_ELBO(4000, vectorize_particles=True), seed=1)
        judge.params = result.svi.params
        return judge.evaluate_loss(), result

    linear, _ = bound(AutoStructured(model))
    manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
    weights = [p.detach().numpy().copy() for p in net.parameters()]
    guide = AutoStructured(model, dependencies={"y": {"x": net}})
    curved, result = bound(guide)
    assert linear > 0.6 and curved < 0.5 * linear
    assert {f"y_auto_on_x.{n}" for n, _ in net.named_parameters()} <= set(result.params)
    for p, old in zip(net.parameters(), weights, strict=True):
        np.testing.assert_array_equal(p.detach().numpy(), old)
    draws = guide.sample_posterior(20_000, generator=Generator(0))
    x, y = draws["x"].numpy(), draws["y"].numpy()
    assert np.corrcoef(x * x, y)[0, 1] > 0.7
    # No closed form: medians are those of draws.
    assert abs(guide.median()["y"].item() - np.median(y)) < 0.05 * y.std()


# -------------------------------------------------------------------------------------- questions


def test_medians_and_quantiles_of_a_linear_guide():
    guide = AutoStructured(chain)
    fit(chain, guide, 800)
    mean, covariance = exact_chain()
    found = guide.quantiles([0.1, 0.5, 0.9])
    for i, name in enumerate("abc"):
        sd = covariance[i, i] ** 0.5
        expected = mean[i] + sd * np.array([-1.2816, 0.0, 1.2816])
        np.testing.assert_allclose(found[name].numpy(), expected, atol=0.1 * sd)


def test_guides_start_where_they_are_told():
    guide = AutoStructured(correlated_model, init_loc_fn=init_to_value(values={"x": MEAN}))
    guide()
    np.testing.assert_allclose(guide.median()["x"].numpy(), MEAN)
    spread = guide.sample_posterior(2000, generator=Generator(0))["x"].numpy().std(0)
    np.testing.assert_allclose(spread, 0.1, rtol=0.1)


def test_a_model_with_point_masses_and_data_only_sites_is_fine():
    def model(y):
        s = sample("s", HalfCauchy(1.0))
        fixed = sample("fixed", Delta(tensor(2.0)))
        sample("z", Bernoulli(0.3), obs=tensor(1.0))
        sample("y", Normal(fixed, s), obs=y)

    guide = AutoStructured(model)
    assert set(guide(tensor(1.0))) == {"s"}


# ---------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"conditionals": "gamma"}, "conditionals"),
        ({"conditionals": {"a": 3}}, "conditionals"),
        ({"dependencies": "quadratic"}, "dependencies"),
        ({"dependencies": {"b": "a"}}, "dependencies"),
        ({"dependencies": {"a": {"a": "linear"}}}, "on itself"),
        ({"init_scale": -1.0}, "init_scale"),
    ],
    ids=str,
)
def test_settings_of_an_unknown_kind_are_refused(settings, message):
    with pytest.raises(ArgumentError, match=message):
        AutoStructured(chain, **settings)


def test_dependencies_that_go_around_are_refused():
    around = {"a": {"c": "linear"}, "b": {"a": "linear"}, "c": {"b": "linear"}}
    with pytest.raises(ArgumentError, match="a circle among 'a', 'b', 'c'"):
        AutoStructured(chain, dependencies=around)()


@pytest.mark.parametrize(
    "settings",
    [{"conditionals": {"aa": "delta"}}, {"dependencies": {"b": {"aa": "linear"}}}],
    ids=str,
)
def test_names_that_the_model_does_not_have_are_refused(settings):
    with pytest.raises(ModelError, match="no latent site 'aa'") as error:
        AutoStructured(chain, **settings)()
    assert "did you mean 'a'?" in error.value.fix


def test_a_global_site_cannot_depend_on_rows_that_come_and_go():
    guide = AutoStructured(local, dependencies={"mu": {"z": "linear"}})
    with pytest.raises(InferenceError, match="'mu' cannot depend on 'z'") as error:
        guide(tensor(ROWS))
    assert "4 of 12 rows" in error.value.got
    with handlers.seed(None, 0):
        AutoStructured(local, dependencies={"z": {"mu": "linear"}})(tensor(ROWS))
