"""``Trace_ELBO(estimator="auto")``: what is picked, that nothing moves, that it is kept."""

import numpy as np
import pytest

from probtorch.distributions import Bernoulli, Normal, Poisson, constraints
from probtorch.effects import param, plate, sample
from probtorch.errors import ArgumentError
from probtorch.infer import SVI, Trace_ELBO, TraceGraph_ELBO, TraceMeanField_ELBO
from probtorch.optim import Adam
from probtorch.tensor import tensor

Y = tensor([0.2, 1.9, 2.2])


def model(y):
    rate = sample("rate", Poisson(2.0))
    mu = sample("mu", Normal(0.0, 1.0))
    with plate("row", len(y)):
        z = sample("z", Bernoulli(0.5))
        sample("y", Normal(2.0 * z + mu + 0.1 * rate, 0.2), obs=y)


def guide(y, choice=None):
    notes = {} if choice is None else {"infer": {"estimator": choice}}
    sample("rate", Poisson(param("rate_q", tensor(2.0), constraints.positive)))
    sample("mu", Normal(param("loc", tensor(0.0)), 0.5))
    with plate("row", len(y)):
        probs = param("probs", tensor([0.5, 0.5, 0.5]), constraints.unit_interval)
        sample("z", Bernoulli(probs), **notes)


def coin(y):
    sample("y", Normal(2.0 * sample("z", Bernoulli(0.5)), 0.2), obs=y[0])


def coin_guide(y):
    sample("z", Bernoulli(param("probs", tensor(0.5), constraints.unit_interval)))


def fit(objective, guide=guide, model=model):
    return SVI(model, guide, Adam({"lr": 0.05}), objective, seed=0)


@pytest.mark.slow
def test_each_site_gets_the_estimator_with_the_least_product_of_variance_and_runs():
    svi = fit(Trace_ELBO(estimator="auto"))
    svi.step(Y)
    picks = svi.picks
    assert list(picks.chosen) == ["rate", "z"]  # mu has a path
    for site, chosen in picks.chosen.items():
        rows = [row for row in picks.rows if row.site == site]
        assert {"as written"} < {row.estimator for row in rows}
        assert min(rows, key=lambda row: row.cost).estimator == chosen
    of_z = {row.estimator: row for row in picks.rows if row.site == "z"}
    # To know the cost of both values takes other runs.
    assert of_z["enumerate"].runs > of_z["as written"].runs
    assert of_z["enumerate"].variance < 0.2 * of_z["as written"].variance
    assert picks.chosen["z"] != "as written"
    said = svi.explain()
    assert f"estimator of site 'z': {picks.chosen['z']}" in said and "variance" in said
    # The steps are those of the same estimator chosen by hand.
    by_hand = fit(Trace_ELBO())
    by_hand.objective.pick(svi.objective.picked)
    by_hand.step(Y)
    assert [svi.step(Y) for _ in range(3)] == [by_hand.step(Y) for _ in range(3)]


def test_the_choice_belongs_to_the_state_and_is_not_made_again():
    first = fit(Trace_ELBO(estimator="auto"), coin_guide, coin)
    losses = [first.step(Y)]
    picked = {"z": "enumerate"}  # exact, at two runs
    assert first.objective.picked == picked and first.picks.chosen == picked
    rows = {row.estimator: row for row in first.picks.rows}
    assert rows["as written"].runs == 1.0 and rows["enumerate"].runs > 1.0
    assert rows["enumerate"].variance < 1e-6 * rows["as written"].variance
    assert "estimator of site 'z': enumerate" in first.explain()
    other = fit(Trace_ELBO(estimator="auto"), coin_guide, coin)
    other.load_state_dict(first.state_dict())
    losses.append(first.step(Y))
    assert other.step(Y) == losses[1]
    assert other.picks is None and other.objective.picked == picked
    # The steps are those of the same estimator chosen by hand.
    by_hand = fit(Trace_ELBO(), coin_guide, coin)
    by_hand.objective.pick(picked)
    assert [by_hand.step(Y) for _ in range(2)] == losses
    other.objective.picked = None
    other.step(Y)
    assert other.picks.chosen == picked


@pytest.mark.slow
def test_gradients_are_those_of_the_bound():
    svi = fit(Trace_ELBO(num_particles=2, estimator="auto"))
    svi.step(Y)
    table = svi.gradient_variance(Y, estimators=["score_function"], num_samples=400)
    picked, plain = table["as written"], table["score_function"]
    error = np.sqrt((picked.variances["probs"] + plain.variances["probs"]) / 400)
    # Three numbers, five standard errors each: a false alarm in 500 000 seeds.
    assert (np.abs(picked.means["probs"] - plain.means["probs"]) < 5 * error).all()
    assert picked.total < plain.total


def test_sites_that_choose_keep_their_estimator():
    def chosen(y):
        probs = param("probs", tensor(0.5), constraints.unit_interval)
        sample("z", Bernoulli(probs), infer={"estimator": "disarm"})

    svi = fit(Trace_ELBO(estimator="auto"), chosen, coin)
    svi.step(Y)
    assert svi.picks.chosen == {}


def test_where_all_draws_have_paths_nothing_is_picked():
    def normal(y):
        sample("mu", Normal(param("loc", tensor(0.0)), 0.5))

    def target(y):
        sample("y", Normal(sample("mu", Normal(0.0, 1.0)), 1.0), obs=y)

    svi = SVI(target, normal, Adam({"lr": 0.1}), TraceGraph_ELBO(estimator="auto"), seed=0)
    plain = SVI(target, normal, Adam({"lr": 0.1}), TraceGraph_ELBO(), seed=0)
    y = tensor(1.0)
    assert [svi.step(y) for _ in range(3)] == [plain.step(y) for _ in range(3)]
    assert svi.picks.chosen == {} and "without a pathwise gradient" in repr(svi.picks)


@pytest.mark.parametrize(
    "make", [lambda: Trace_ELBO(estimator="best"), lambda: TraceMeanField_ELBO(estimator="auto")]
)
def test_other_choices_are_refused(make):
    with pytest.raises(ArgumentError, match="estimator="):
        make()
