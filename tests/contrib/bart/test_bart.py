"""`bart` in models: its prior, what is predicted from trees, runs that go on, mistakes."""

import math

import numpy as np
import pytest
from scipy import stats

import probtorch
import probtorch.distributions as dist
from probtorch.contrib.bart import (
    TreePrior,
    bart,
    ensembles,
    partial_dependence,
    predict,
    split_counts,
    variable_importance,
)
from probtorch.contrib.bart.model import ensemble_of
from probtorch.diagnostics import Draws
from probtorch.errors import ArgumentError, DomainError, InferenceError, ModelError, ShapeError
from probtorch.infer import (
    HMC,
    MCMC,
    NUTS,
    SVI,
    Gibbs,
    MixedHMC,
    Predictive,
    Trace_ELBO,
    autoguide,
)
from tests.contrib.bart.test_exact_posterior import (
    ALPHA,
    BETA,
    DEPTH,
    LOC,
    SCALE,
    WEIGHTS,
    X,
    all_trees,
)

DEFAULTS = {"trees": 1, "alpha": 0.95, "beta": 2.0, "split_prior": None, "scale": None}
DEFAULTS |= {"loc": None, "outputs": 1, "max_depth": 4, "max_cuts": 256, "subject": "bart"}


def prior_of(x, **settings):
    return TreePrior(ensemble_of(x, **{**DEFAULTS, **settings}))


def by_hand(trees, x, depth):
    """The value of each tree at each row, one comparison after the other."""
    splits, found = 2**depth - 1, np.empty((len(trees), len(x)))
    for j, tree in enumerate(trees):
        for i, row in enumerate(x):
            node = 0
            while node < splits and tree[node] > 0:
                right = row[int(tree[node] - 1) >> 20] > tree[splits + node]
                node = 2 * node + 1 + right
            found[j, i] = tree[splits + node]
    return found


def regression(x, y=None, trees=10, outputs=None):
    f = bart("f", x, trees=trees, outputs=outputs)
    loc, scale = (f[0], probtorch.exp(f[1] - 1.0)) if outputs else (f, None)
    if scale is None:
        scale = probtorch.sample("sigma", dist.HalfNormal(1.0))
    with probtorch.plate("row", len(x)):
        probtorch.sample("y", dist.Normal(loc, scale), obs=y)


def data(n=60, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.random((n, 3))
    y = np.sin(5.0 * x[:, 0]) + 0.3 * rng.standard_normal(n)
    return probtorch.tensor(x), probtorch.tensor(y)


def run(model, *args, num_samples=100, warmup_steps=100, **settings):
    settings = {"num_chains": 1, "seed": 1, **settings}
    mcmc = MCMC(
        Gibbs(model), num_samples=num_samples, warmup_steps=warmup_steps, progress_bar=False,
        **settings,
    )  # fmt: skip
    mcmc.diagnose = False
    mcmc.run(*args)
    return mcmc


# -------------------------------------------------------------------------------------- the prior


def test_nodes_of_the_prior_are_split_by_depth_as_stated():
    count, depth = 40_000, 3
    prior = prior_of(np.linspace(0.0, 1.0, 4000)[:, None], max_depth=depth, scale=2.0)
    trees = prior.sample((count,), probtorch.Generator(0)).numpy()[:, 0]
    splits = 2**depth - 1
    split = trees[:, :splits] > 0.0
    here = np.ones((count, 2 ** (depth + 1) - 1), bool)
    for node in range(1, here.shape[1]):
        here[:, node] = split[:, (node - 1) // 2]
    for level in range(depth):
        nodes = slice(2**level - 1, 2 ** (level + 1) - 1)
        number, asked = split[:, nodes].sum(), here[:, nodes].sum()
        p = 0.95 * (1.0 + level) ** -2.0
        # Five standard errors: a false alarm once in a million.
        assert abs(number / asked - p) < 5.0 * math.sqrt(p * (1.0 - p) / asked)
    leaves = here.copy()
    leaves[:, :splits] &= ~split
    values = trees[:, splits:][leaves]
    assert stats.kstest(values / 2.0, "norm").pvalue > 1e-4


def test_a_sum_of_trees_has_the_variance_that_scale_says():
    def model():
        bart("f", np.linspace(0.0, 1.0, 5)[:, None], trees=20, scale=3.0, loc=1.0)

    f = Predictive(model, num_samples=4000, seed=0)()["f"].numpy()
    assert np.abs(f.mean(0) - 1.0).max() < 5.0 * 3.0 / math.sqrt(4000)
    assert np.abs(f.var(0) / 9.0 - 1.0).max() < 5.0 * math.sqrt(2.0 / 4000)


def test_log_density_of_a_tree_is_that_of_its_shape_and_its_leaves():
    prior = prior_of(
        X, alpha=ALPHA, beta=BETA, max_depth=DEPTH, scale=SCALE, loc=LOC, split_prior=WEIGHTS
    )
    splits, cuts = 2**DEPTH - 1, {0: [0.5, 1.5], 1: [0.5]}
    total = 0.0
    for shape, probability, groups in all_trees():
        row, leaves = np.zeros(prior.event_shape[-1]), []

        def write(shape, node, row=row, leaves=leaves):
            if shape == "leaf":
                row[splits + node] = 0.3 * node - 0.5
                leaves.append(row[splits + node])
                return
            variable, cut, left, right = shape
            row[node] = 1 + variable * 2**20 + cuts[variable].index(cut)
            row[splits + node] = cut
            write(left, 2 * node + 1)
            write(right, 2 * node + 2)

        write(shape, 0)
        expected = math.log(probability) + stats.norm.logpdf(leaves, LOC, SCALE).sum()
        assert len(leaves) == len(groups)
        assert math.isclose(float(prior.log_prob(row[None])), expected, rel_tol=1e-12)
        total += probability
    assert math.isclose(total, 1.0)
    row = np.zeros((1, prior.event_shape[-1]))
    row[0, [0, splits]] = 1 + 2, 2.5  # a third cut of a variable that has two
    assert float(prior.log_prob(row)) == -math.inf
    # A variable that is not there above one that is, and what is no number of a split at all.
    for code in (1 + 7 * 2**20, -1.0, 1.5, math.inf, math.nan):
        row[0, [0, 1]] = code, 1
        assert float(prior.log_prob(row)) == -math.inf


def test_without_data_the_chain_draws_from_the_prior():
    x = np.random.default_rng(0).random((30, 2))

    def model():
        bart("f", x, trees=2, max_depth=3)

    draws = run(model, num_samples=40_000, warmup_steps=0).draws
    splits = (draws.posterior["f_trees"][0, :, :, :7] > 0.0).sum(-1)
    exact = prior_of(x, trees=2, max_depth=3).sample((40_000,), probtorch.Generator(1)).numpy()
    wanted = (exact[:, :, :7] > 0.0).sum(-1)
    # Moves change one split at a time: about 4,000 independent ones.
    for number in range(4):
        p = (wanted == number).mean()
        assert abs((splits == number).mean() - p) < 5.0 * math.sqrt(p / 4000.0)
    assert abs(draws.posterior["f"].var() - 1.0) < 0.1


# ------------------------------------------------------------------------------------ predictions


@pytest.mark.parametrize("outputs", [1, 3])
def test_sums_of_trees_are_those_of_a_walk_row_by_row(outputs):
    rng = np.random.default_rng(0)
    x, there = rng.random((50, 4)), rng.random((20, 4))
    prior = prior_of(x, trees=5, outputs=outputs, alpha=0.99, beta=0.3)
    trees = prior.sample((3,), probtorch.Generator(2))
    columns = probtorch.tensor(there.T.copy())
    found = ensembles.sum_of_trees(trees, columns, outputs, 4).numpy()
    for draw, of_draw in zip(trees.numpy(), found):
        expected = by_hand(draw, there, 4).reshape(outputs, 5, 20).sum(1)
        np.testing.assert_allclose(of_draw, expected, rtol=1e-12)
        one = ensembles.sum_one_by_one(probtorch.tensor(draw), columns, outputs, 4)
        np.testing.assert_allclose(one.numpy(), expected, rtol=1e-12)


def test_the_function_at_the_data_and_elsewhere_comes_from_the_trees(tmp_path):
    x, y = data()
    draws = run(regression, x, y, num_chains=2).draws
    f, trees = draws.posterior["f"], draws.posterior["f_trees"]
    np.testing.assert_allclose(predict(draws, x), f, atol=1e-10)
    there = np.random.default_rng(5).random((4, 3)) * 1.2 - 0.1
    expected = by_hand(trees[1, 7], there, 4).sum(0)
    np.testing.assert_allclose(predict(draws, there)[1, 7], expected, atol=1e-12)
    of_model = draws.predict(probtorch.tensor(there))
    np.testing.assert_allclose(of_model["f"][1, 7], expected, atol=1e-12)
    assert of_model["y"].shape == (2, 100, 4)
    draws.save(tmp_path / "draws.nc")
    kept = Draws.load(tmp_path / "draws.nc")
    np.testing.assert_array_equal(predict(kept, there), predict(draws, there))


def test_predictions_need_no_guide():
    x, y = data()

    def model(x, y=None):
        f = bart("f", x, y, trees=5)
        with probtorch.plate("row", len(x)):
            probtorch.sample("y", dist.Normal(f, 0.3), obs=y)

    draws = run(model, x, y + 100.0).draws
    assert abs(draws.posterior["f"].mean() - 100.0 - float(y.mean())) < 0.3
    np.testing.assert_allclose(draws.predict(x)["f"], draws.posterior["f"], atol=1e-10)
    np.testing.assert_allclose(predict(draws, x), draws.posterior["f"], atol=1e-10)


def test_friedmans_function_is_found_with_the_variables_that_it_has():
    rng = np.random.default_rng(0)
    x = rng.random((300, 10))
    truth = (
        10.0 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20.0 * (x[:, 2] - 0.5) ** 2
        + 10.0 * x[:, 3] + 5.0 * x[:, 4]
    )  # fmt: skip
    y = truth + rng.standard_normal(300)

    def model(x, y):
        f = bart("f", x, y, trees=30)
        sigma = probtorch.sample("sigma", dist.HalfNormal(5.0))
        with probtorch.plate("row", len(x)):
            probtorch.sample("y", dist.Normal(f, sigma), obs=y)

    mcmc = run(model, probtorch.tensor(x), probtorch.tensor(y), num_samples=500, warmup_steps=500)
    found = mcmc.draws.posterior["f"].mean((0, 1))
    ones = np.column_stack([np.ones(300), x])
    linear = ones @ np.linalg.lstsq(ones, y, rcond=None)[0]
    off, off_of_linear = (np.sqrt(np.mean((f - truth) ** 2)) for f in (found, linear))
    assert off < 0.45 * off_of_linear
    assert 0.8 < mcmc.draws.posterior["sigma"].mean() < 1.4
    shares = variable_importance(mcmc)
    assert shares[:5].min() > shares[5:].max()
    assert math.isclose(shares.sum(), 1.0)
    counts = split_counts(mcmc)
    codes = mcmc.draws.posterior["f_trees"][..., :15]
    assert counts.sum() == (codes > 0).sum()
    grid, curves = partial_dependence(mcmc, x[:50], 3, [0.1, 0.9])
    assert 6.0 < (curves[..., 1] - curves[..., 0]).mean() < 9.5  # 8
    moved = x[:50].copy()
    moved[:, 3] = 0.9
    np.testing.assert_allclose(curves[..., 1], predict(mcmc, moved).mean(-1), atol=1e-10)
    assert grid.tolist() == [0.1, 0.9]


def test_a_mean_and_a_scale_are_two_outputs():
    rng = np.random.default_rng(3)
    x = rng.random((400, 1))
    spread = np.where(x[:, 0] > 0.5, 1.0, 0.1)
    y = np.where(x[:, 0] > 0.3, 1.0, -1.0) + spread * rng.standard_normal(400)
    mcmc = run(
        regression, probtorch.tensor(x), probtorch.tensor(y), 20, 2, num_samples=200,
        warmup_steps=200,
    )  # fmt: skip
    f = mcmc.draws.posterior["f"]
    assert f.shape == (1, 200, 2, 400) and predict(mcmc, x[:5]).shape == (1, 200, 2, 5)
    np.testing.assert_allclose(predict(mcmc, x), f, atol=1e-10)
    scale = np.exp(f[0, :, 1] - 1.0).mean(0)
    assert 0.8 < scale[x[:, 0] > 0.55].mean() < 1.2
    assert 0.07 < scale[x[:, 0] < 0.45].mean() < 0.2
    assert split_counts(mcmc).shape == (1, 200, 2, 1)


# ------------------------------------------------------------------------------------------- runs


def test_runs_depend_on_the_seed_alone_and_go_on_bit_for_bit(tmp_path):
    x, y = data(30)
    options = {"num_chains": 2, "warmup_steps": 20}
    whole = run(regression, x, y, num_samples=40, num_threads=1, **options)
    threads = run(regression, x, y, num_samples=40, num_threads=2, **options)
    np.testing.assert_array_equal(whole.draws.positions, threads.draws.positions)
    first = run(regression, x, y, num_samples=25, **options)
    state = first.state_dict()
    np.testing.assert_array_equal(first.more(15).positions, whole.draws.positions)
    settings = {"progress_bar": False, "seed": 1, **options}
    later = MCMC(Gibbs(regression), num_samples=15, **settings)
    later.diagnose = False
    later.load_state_dict(state)
    np.testing.assert_array_equal(later.run(x, y).positions, whole.draws.positions[:, 25:])
    saved = MCMC(Gibbs(regression), num_samples=40, **settings)
    saved.diagnose = False
    for _ in range(2):  # the second one finds the end of the first
        saved.run(x, y, checkpoint=tmp_path)
        np.testing.assert_array_equal(saved.draws.positions, whole.draws.positions)


def test_the_sum_stays_that_of_the_trees_in_long_runs():
    x, y = data(20)
    draws = run(regression, x, y, num_samples=3000, warmup_steps=3000).draws
    np.testing.assert_allclose(predict(draws, x)[:, -1], draws.posterior["f"][:, -1], atol=1e-10)


def test_trees_are_not_judged_and_not_summarised():
    x, y = data(30)
    draws = run(regression, x, y).draws
    assert not any("f_trees" in row for row in draws.summary().rows)
    assert any("f_trees" in row for row in draws.summary(names="f_trees").rows)
    findings = probtorch.diagnostics.diagnose(draws)
    assert findings and not any("f_trees" in p for f in findings for p in f.parameters)
    found = draws.to_arviz()
    assert found["posterior"]["f_trees"].shape == (1, 100, 10, 46)


# --------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize("sampler", [NUTS, HMC])
def test_other_samplers_say_which_one_moves_trees(sampler):
    mcmc = MCMC(sampler(regression), num_samples=10, num_chains=1, progress_bar=False)
    with pytest.raises(InferenceError, match=r"(?s)f_trees.*MCMC\(Gibbs\(model\)\)"):
        mcmc.run(*data())


def test_guides_and_mixed_hmc_say_which_one_moves_trees():
    guide, adam = autoguide.AutoNormal(regression), probtorch.optim.Adam({"lr": 0.1})
    svi = SVI(regression, guide, adam, Trace_ELBO())
    with pytest.raises(InferenceError, match=r"(?s)f_trees.*Gibbs\(model\)"):
        svi.run(2, *data())
    with pytest.raises(InferenceError, match=r"(?s)f_trees.*Gibbs\(model\)"):
        MCMC(MixedHMC(HMC(regression)), num_samples=9, num_chains=1).run(*data())
    with pytest.raises(InferenceError, match=r"(?s)f_trees.*leave it out of the blocks"):
        MCMC(Gibbs(regression, {"f_trees": NUTS}), num_samples=9, num_chains=1).run(*data())


@pytest.mark.parametrize(
    ("x", "settings", "error", "told"),
    [
        (np.zeros(3), {}, ShapeError, r"X\[:, None\]"),
        (np.zeros((0, 2)), {}, ShapeError, "at least one of each"),
        (np.array([[0.0], [np.nan]]), {}, DomainError, "nan in row 1, column 0"),
        (np.zeros((3, 1)), {"trees": 10**6}, ArgumentError, "from 1 to 2000"),
        (np.zeros((3, 1)), {"trees": 2.5}, ArgumentError, "2.5"),
        (np.zeros((3, 1)), {"trees": np.nan}, ArgumentError, "from 1 to 2000"),
        (np.zeros((3, 1)), {"max_depth": 9}, ArgumentError, "from 1 to 8"),
        (np.zeros((3, 1)), {"alpha": 1.0}, DomainError, r"in \(0, 1\)"),
        (np.zeros((3, 1)), {"scale": probtorch.tensor(2.0)}, DomainError, "positive number"),
        (np.zeros((3, 2)), {"split_prior": [1.0]}, ShapeError, "each of 2 variables"),
        (np.zeros((3, 2)), {"split_prior": [1.0, -1.0]}, DomainError, "at least 0"),
        (np.zeros((3, 1)), {"y_guide": [np.nan]}, DomainError, "finite outcomes"),
    ],
)
def test_what_is_wrong_with_a_statement_is_told(x, settings, error, told):
    with pytest.raises(error, match=told):
        bart("f", x, **settings)


def test_a_statement_inside_of_a_plate_is_refused():
    with pytest.raises(ModelError, match="before the plate"), probtorch.plate("row", 3):
        bart("f", np.zeros((3, 1)))


def test_questions_that_draws_cannot_answer_are_refused():
    x, y = data(30)
    mcmc = run(regression, x, y, num_samples=20, warmup_steps=10)
    with pytest.raises(ModelError, match="'f'"):
        predict(mcmc, x, name="g")
    with pytest.raises(ShapeError, match="3 columns"):
        predict(mcmc, x[:, :2])
    with pytest.raises(ArgumentError, match="from 0 to 2"):
        partial_dependence(mcmc, x, 3)
    with pytest.raises(ArgumentError, match="from 0 to 2"):
        partial_dependence(mcmc, x, 1.5)
    with pytest.raises(ArgumentError, match="finite values"):
        partial_dependence(mcmc, x, 0, [np.inf])


def test_covariates_that_cannot_be_cut_leave_one_leaf_per_tree():
    y = probtorch.tensor(np.random.default_rng(0).normal(2.0, 1.0, 40))
    mcmc = run(regression, probtorch.zeros(40, 2), y, num_samples=400)
    assert not (mcmc.draws.posterior["f_trees"][..., :15] > 0.0).any()
    f = mcmc.draws.posterior["f"]
    assert np.ptp(f, axis=-1).max() < 1e-10
    # A normal mean with prior N(0, 1).
    assert abs(f.mean() - float(y.mean()) * 40.0 / 41.0) < 0.1
    assert np.isnan(variable_importance(mcmc)).all()
