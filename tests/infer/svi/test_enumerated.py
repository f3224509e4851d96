"""`TraceEnum_ELBO` and its kin: what is summed out, with masks, scales and plates, and refusals."""

import itertools
from functools import partial

import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp

import probtorch
from probtorch.distributions import (
    Bernoulli,
    BetaBinomial,
    Binomial,
    Categorical,
    Normal,
    OneHotCategorical,
    Poisson,
    constraints,
)
from probtorch.effects import handlers, markov, param, plate, sample
from probtorch.effects.enumeration import Enumeration, enumerate_sites
from probtorch.effects.params import get_param_store
from probtorch.effects.runtime import Handler
from probtorch.errors import ArgumentError, InferenceError, ModelError
from probtorch.infer import SVI, Predictive, TraceEnum_ELBO, config_enumerate, infer_discrete
from probtorch.ops.exponentials import sigmoid
from probtorch.optim import Adam
from probtorch.tensor import tensor
from tests.infer.svi.programs import gradients

F8 = np.dtype("f8")
PARALLEL = {"enumerate": "parallel"}
Y = np.array([0.4, 1.7])


def f8(x):
    return tensor(x, dtype=F8)


def no_guide(*args):
    pass


# ------------------------------------------------------------------ supports, masks, scales, plates


@pytest.mark.parametrize(
    "fn",
    [
        Bernoulli(0.3),
        Bernoulli(logits=-0.4),
        Categorical(tensor([0.2, 0.5, 0.3], dtype=F8)),
        Categorical(logits=tensor([0.2, -np.inf, 0.3], dtype=F8)),
        Binomial(4, 0.3),
        BetaBinomial(1.5, 0.7, 3),
    ],
    ids=lambda fn: type(fn).__name__,
)
def test_finite_distributions_are_summed_out(fn):
    def model():
        sample("y", Normal(f8(0.5) * sample("z", fn), 1.0), obs=0.8)

    values = fn.enumerate_support()
    logs = fn.log_prob(values).numpy() + stats.norm.logpdf(0.8, 0.5 * values.numpy(), 1.0)
    assert TraceEnum_ELBO().loss(model, no_guide) == pytest.approx(-logsumexp(logs), rel=1e-12)
    marginal = TraceEnum_ELBO().compute_marginals(model, no_guide)["z"]
    share = np.exp(logs - logsumexp(logs))
    found = marginal.log_prob(marginal.enumerate_support()).exp().numpy()
    np.testing.assert_allclose(found, share, atol=1e-12)
    with handlers.trace() as found:
        infer_discrete(model, temperature=0)()
    assert found["z"].value.item() == values.numpy()[logs.argmax()]


def test_indicator_vectors_are_summed_out_in_plates():
    p, locs = f8([0.2, 0.5, 0.3]), f8([0.0, 1.0, -1.0])

    def model():
        with plate("rows", 2):
            z = sample("z", OneHotCategorical(p))
            sample("y", Normal((z * locs).sum(-1), 1.0), obs=f8(Y))

    logs = np.log(p.numpy()) + stats.norm.logpdf(Y[:, None], locs.numpy())
    loss = TraceEnum_ELBO().loss(model, no_guide)
    assert loss == pytest.approx(-logsumexp(logs, axis=1).sum(), rel=1e-13)
    marginal = TraceEnum_ELBO().compute_marginals(model, no_guide)["z"]
    share = np.exp(logs - logsumexp(logs, axis=1, keepdims=True))
    np.testing.assert_allclose(marginal.probs.numpy(), share, atol=1e-13)


def test_masked_elements_add_nothing():
    y = f8([0.0, np.nan, 2.0])

    def model(rows, mask):
        with plate("rows", len(rows)), handlers.mask(mask=mask):
            z = sample("z", Categorical(f8([0.2, 0.3, 0.5])))
            sample("y", Normal(1.0 * z, 1.0), obs=y[rows])

    whole = TraceEnum_ELBO().loss(lambda: model([0, 2], True), no_guide)
    masked = TraceEnum_ELBO().loss(lambda: model([0, 1, 2], tensor([True, False, True])), no_guide)
    assert masked == pytest.approx(whole, rel=1e-13)
    assert TraceEnum_ELBO().loss(lambda: model([0], False), no_guide) == pytest.approx(0.0)


def test_masked_elements_of_the_guide_add_nothing():
    def guide(rows, mask):
        with plate("rows", rows), handlers.mask(mask=mask):
            sample("z", Bernoulli(logits=param("a", f8(0.4))), infer=PARALLEL)

    def model(rows, mask):
        with plate("rows", rows), handlers.mask(mask=mask):
            z = sample("z", Bernoulli(0.3))
            sample("y", Normal(z, 1.0), obs=f8(Y[:rows]))

    whole = TraceEnum_ELBO().loss(lambda: model(1, True), lambda: guide(1, True))
    mask = tensor([True, False])
    masked = TraceEnum_ELBO().loss(lambda: model(2, mask), lambda: guide(2, mask))
    assert masked == pytest.approx(whole, rel=1e-13)


@pytest.mark.parametrize("guided", [False, True], ids=["model", "guide"])
def test_subsampled_rows_are_scaled_up_after_the_sum(guided):
    y = np.array([0.1, 1.4, -0.3, 2.0])

    def model(rows):
        with plate("rows", 4, subsample=tensor(rows)):
            z = sample("z", Bernoulli(0.3))
            sample("y", Normal(z, 1.0), obs=f8(y[rows]))

    def guide(rows):
        if guided:
            with plate("rows", 4, subsample=tensor(rows)):
                sample("z", Bernoulli(0.6), infer=PARALLEL)

    def loss(rows):
        return TraceEnum_ELBO().loss(model, guide, rows)

    mean = np.mean([loss([i, j]) for i, j in itertools.combinations(range(4), 2)])
    assert mean == pytest.approx(loss([0, 1, 2, 3]), rel=1e-12)


def test_a_sum_outside_of_subsampled_rows_is_refused():
    def model():
        z = sample("z", Bernoulli(0.3))
        with plate("rows", 4, subsample_size=2) as rows:
            sample("y", Normal(z, 1.0), obs=f8(np.zeros(4))[rows])

    with pytest.raises(InferenceError, match=r"different scales(.|\n)*without bias"):
        TraceEnum_ELBO().loss(model, no_guide)


def test_scales_per_row_count_after_the_sum():
    weights = f8([0.5, 2.0])

    def model(scale):
        with plate("rows", 2), handlers.scale(scale=scale):
            z = sample("z", Bernoulli(0.3))
            sample("y", Normal(z, 1.0), obs=f8(Y))

    logs = np.log([0.7, 0.3]) + stats.norm.logpdf(Y[:, None], [0.0, 1.0])
    rows = logsumexp(logs, axis=1)
    found = TraceEnum_ELBO().loss(lambda: model(weights), no_guide)
    assert found == pytest.approx(-(weights.numpy() @ rows), rel=1e-13)


def test_plates_that_a_branch_adds_later_are_made_room_for():
    deep = [False]

    def model():
        z = sample("z", Bernoulli(0.3))
        if not deep[0]:
            sample("y", Normal(z, 1.0), obs=0.3)
            return
        with plate("a", 2), plate("b", 3):
            w = sample("w", Bernoulli(sigmoid(z - 0.3)))
            sample("y", Normal(w, 1.0), obs=f8(np.zeros((3, 2))))

    objective = TraceEnum_ELBO()
    objective.loss(model, no_guide)
    deep[0] = True
    assert objective.loss(model, no_guide) == TraceEnum_ELBO().loss(model, no_guide)


def test_an_empty_plate_adds_nothing():
    def model():
        with plate("rows", 0):
            z = sample("z", Bernoulli(0.3))
            sample("y", Normal(z, 1.0), obs=f8(np.zeros(0)))

    with pytest.warns(UserWarning, match="no rows"):
        assert TraceEnum_ELBO().loss(model, no_guide) == 0.0


def test_impossible_data_have_evidence_zero():
    def model():
        z = sample("z", Categorical(f8([0.5, 0.5, 0.0])))
        sample("y", Categorical(f8([[1.0, 0.0], [1.0, 0.0], [0.5, 0.5]])[z]), obs=1)

    assert TraceEnum_ELBO().loss(model, no_guide) == np.inf
    with pytest.raises(InferenceError, match="no value of site 'z' is possible"):
        infer_discrete(model)()


# ------------------------------------------------------------------------------------ refusals


def crossing():
    p, q = plate("p", 2, dim=-1), plate("q", 3, dim=-2)
    with p:
        a = sample("a", Bernoulli(0.3))
    with q:
        b = sample("b", Bernoulli(0.3))
    with p, q:
        sample("y", Normal(a + b, 1.0), obs=f8(np.zeros((3, 2))))


def test_crossing_plates_are_refused_by_name():
    with pytest.raises(InferenceError, match=r"'a', 'b' .* plates 'p', 'q'"):
        TraceEnum_ELBO().loss(crossing, no_guide)


@pytest.mark.parametrize(
    "fn, got",
    [
        (Poisson(3.0), "Poisson, whose support"),
        (Normal(0.0, 1.0), "Normal, which is continuous"),
        (Bernoulli(0.2).expand((3,)).to_event(1), "product of supports"),
    ],
    ids=["Poisson", "Normal", "to_event"],
)
def test_sites_that_cannot_be_enumerated_say_why(fn, got):
    with pytest.raises(InferenceError, match=rf"'z' cannot be enumerated(.|\n)*{got}"):
        TraceEnum_ELBO().loss(lambda: sample("z", fn, infer=PARALLEL), no_guide)


def test_an_infinite_site_that_nobody_draws_is_missing():
    with pytest.raises(ModelError, match="guide has no site 'z'"):
        TraceEnum_ELBO().loss(lambda: sample("z", Poisson(3.0)), no_guide)


def test_too_many_variables_in_sight_are_refused():
    def model():
        for i in range(70):
            sample(f"z_{i}", Bernoulli(0.3))

    with pytest.raises(InferenceError, match=r"no dim is left(.|\n)*markov"):
        TraceEnum_ELBO().loss(model, no_guide)


def test_a_site_outside_of_a_plate_cannot_see_its_rows():
    def model():
        with plate("rows", 2):
            z = sample("z", Bernoulli(0.3))
        sample("y", Normal(z.sum(-1, keepdim=True), 1.0), obs=[0.3])

    with pytest.raises(InferenceError, match="'y' depends on 'z', and is outside of plate 'rows'"):
        TraceEnum_ELBO().loss(model, no_guide)


def test_unknown_annotation_is_refused():
    with pytest.raises(ArgumentError, match="'parallel' or 'sequential'"):
        TraceEnum_ELBO().loss(
            lambda: sample("z", Bernoulli(0.3), infer={"enumerate": "both"}), no_guide
        )


def test_marginals_and_draws_are_not_for_guides_that_enumerate():
    site = lambda: sample("z", Bernoulli(0.3), infer=PARALLEL)
    for method in ("compute_marginals", "sample_posterior"):
        with pytest.raises(InferenceError, match="enumerated in the guide"):
            getattr(TraceEnum_ELBO(), method)(site, site)
        with pytest.raises(InferenceError, match="one particle"):
            getattr(TraceEnum_ELBO(num_particles=2), method)(site, no_guide)


def test_estimators_of_sites_are_for_other_objectives():
    site = lambda: sample("z", Bernoulli(0.3), infer={"estimator": "enumerate"})
    with pytest.raises(InferenceError, match=r"'z': estimator(.|\n)*parallel"):
        TraceEnum_ELBO().loss(site, site)


def test_temperature_is_zero_or_one():
    with pytest.raises(ArgumentError, match="temperature"):
        infer_discrete(two_kinds, temperature=0.5)


# -------------------------------------------------------------------------------- config_enumerate


def test_config_enumerate_annotates_what_can_be_enumerated():
    @config_enumerate(default="sequential")
    def fn():
        sample("a", Bernoulli(0.3))
        sample("b", Normal(0.0, 1.0))
        sample("c", Bernoulli(0.3), infer=PARALLEL)
        sample("d", Bernoulli(0.3), infer={"enumerate": None})
        sample("e", Bernoulli(0.3), obs=1.0)

    found = handlers.trace(fn).get_trace()
    how = [site.infer.get("enumerate") for site in found.values()]
    assert how == ["sequential", None, "parallel", None, None]


@pytest.mark.parametrize(
    "options", [{"default": "all"}, {"num_samples": 0}, {"tmc": "mixture"}], ids=str
)
def test_config_enumerate_refuses_unknown_options(options):
    with pytest.raises(ArgumentError, match="config_enumerate"):
        config_enumerate(two_kinds, **options)


def test_expanded_values_have_the_shape_of_their_plates():
    def model():
        with plate("rows", 2):
            z = sample("z", Bernoulli(0.3))
            sample("y", Normal(z, 1.0), obs=f8(Y))
            return z.shape

    variables = Enumeration(-2)
    with enumerate_sites(None, variables):
        config_enumerate(model)()
    assert variables.dims["z"] == {-2: 0}
    objective = TraceEnum_ELBO()
    plain = objective.loss(model, no_guide)
    assert objective.loss(config_enumerate(model, expand=True), no_guide) == plain
    with enumerate_sites(None, Enumeration(-2)):
        assert config_enumerate(model)() == (2, 1)
    with enumerate_sites(None, Enumeration(-2)):
        assert config_enumerate(model, expand=True)() == (2, 2)


# ------------------------------------------------------------------------------------- optimisation


def test_a_mixture_is_learned():
    y = np.concatenate([np.linspace(-3.2, -2.8, 30), np.linspace(1.9, 2.1, 70)])

    def model(y):
        weights = param("weights", f8([0.5, 0.5]), constraint=constraints.simplex)
        locs = param("locs", f8([-1.0, 1.0]))
        with plate("data", len(y)):
            z = sample("z", Categorical(weights), infer=PARALLEL)
            sample("y", Normal(locs[z], 0.5), obs=y)

    svi = SVI(model, no_guide, Adam({"lr": 0.1}), TraceEnum_ELBO(), seed=0)
    result = svi.run(200, f8(y), progress_bar=False)
    np.testing.assert_allclose(result.params["weights"].numpy(), [0.3, 0.7], atol=0.01)
    np.testing.assert_allclose(result.params["locs"].numpy(), [-3.0, 2.0], atol=0.02)
    z = infer_discrete(handlers.substitute(model, result.params), temperature=0)
    with handlers.trace() as found:
        z(f8(y))
    assert found["z"].value.numpy().tolist() == [0] * 30 + [1] * 70
    assert get_param_store() is not None
    assert probtorch.markov is markov


# --------------------------------------------------------------------------- with other machinery


def two_kinds(y):
    centre = sample("centre", Normal(4.0, 0.1))
    with plate("rows", len(y)):
        z = sample("z", Bernoulli(0.5))
        sample("y", Normal(centre * z, 1.0), obs=y)


def guide_of_centre(y):
    sample("centre", Normal(param("loc", f8(3.8)), 0.1))


KINDS = f8([0.3, 4.1, 3.8, -0.2])


def test_predictive_draws_discrete_sites_for_each_draw_of_the_others():
    draws = {"centre": np.random.default_rng(0).normal(4.0, 0.1, size=20)}
    found = Predictive(infer_discrete(two_kinds), draws, return_sites=["z"])(KINDS)
    np.testing.assert_array_equal(found["z"].numpy().mean(0).round(), [0.0, 1.0, 1.0, 0.0])


@pytest.mark.parametrize("draw", ["infer_discrete", "sample_posterior"])
def test_a_posterior_draw_sees_the_rows_that_it_was_made_for(draw):
    def model(y):
        with plate("rows", 4, subsample_size=2) as rows:
            z = sample("z", Bernoulli(0.5))
            sample("y", Normal(8.0 * z - 2.0, 1.0), obs=y[rows])
        return rows, z

    for _ in range(6):
        if draw == "infer_discrete":
            rows, z = infer_discrete(model, temperature=0)(KINDS)
        else:
            rows, z = TraceEnum_ELBO().sample_posterior(model, no_guide, KINDS)
        np.testing.assert_array_equal(z.numpy() == 1.0, KINDS[rows].numpy() > 2.0)


def test_particles_are_averaged():
    one = TraceEnum_ELBO()
    with handlers.seed(rng_seed=0):
        singles = [one.loss(two_kinds, guide_of_centre, KINDS) for _ in range(5)]
    # The first run of a pair takes draws of its own for the comparison, and gives them back.
    for vectorised in (False, True):
        several = TraceEnum_ELBO(num_particles=5, vectorize_particles=vectorised)
        with handlers.seed(rng_seed=0):
            found = several.loss(two_kinds, guide_of_centre, KINDS)
        assert found == pytest.approx(np.mean(singles), rel=1e-12)


def test_a_bound_loss_is_differentiable():
    loss = TraceEnum_ELBO()(two_kinds, guide_of_centre)
    loss(KINDS).backward()
    (leaf,) = loss.parameters()
    assert np.isfinite(leaf.grad.numpy()).all() and leaf.grad.numpy() != 0.0


# ----------------------------------------------------------------------- wrong in a batch of values


def counts_wrongly(n):
    z = sample("z", Bernoulli(0.3))
    with plate("rows", 2):
        w = sample("w", Bernoulli(0.6))
        # The mean is over all values of z too.
        sample("y", Normal((z + w).mean(), 1.0), obs=f8(Y))


def reads_from_the_left(n):
    table = f8([[0.1, 0.9], [0.6, 0.4]])
    with plate("rows", 2):
        z = sample("z", Bernoulli(0.3))
        sample("y", Bernoulli(table[:, 0] * (z[0] + z[1]) / 2.0), obs=f8([0.0, 1.0]))


@pytest.mark.parametrize("model", [counts_wrongly, reads_from_the_left])
def test_a_model_that_means_something_else_for_many_values_is_refused(model):
    with pytest.raises(InferenceError, match=r"'y' cannot be run for all values(.|\n)*Vindex"):
        TraceEnum_ELBO().loss(partial(model, 0), no_guide)


def test_a_model_that_is_random_beside_its_sites_is_not_refused():
    def model():
        z = sample("z", Bernoulli(0.3))
        noise = f8(np.random.default_rng().normal())
        sample("y", Normal(z + noise, 1.0), obs=0.3)

    assert np.isfinite(TraceEnum_ELBO().loss(model, no_guide))


def test_differentiable_draws_are_made_for_each_value():
    """x is drawn once for each value of z; its gradient is pathwise."""
    mu = f8([-1.0, 0.5, 2.0])
    noise = np.array([0.3, -1.2, 0.8])

    class Noise(Handler):
        def on_sample(self, site):
            if site.name == "x" and site.value is None:
                # Runs without enumeration have one value of z at a time.
                draw = noise if site.fn.loc.ndim else noise[0]
                site.value = site.fn.loc + site.fn.scale * f8(draw)

    def model():
        z = sample("z", Categorical(f8([0.2, 0.5, 0.3])))
        x = sample("x", Normal(mu[z], 1.0))
        sample("y", Normal(x, 0.7), obs=0.4)

    def guide():
        z = sample("z", Categorical(logits=param("a", f8([0.1, -0.4, 0.3]))), infer=PARALLEL)
        sample("x", Normal(param("loc", f8([0.2, 0.1, -0.3]))[z], param("s", f8(0.6))))

    def by_hand():
        a, loc, s = (
            param("a", f8([0.1, -0.4, 0.3])),
            param("loc", f8(np.zeros(3))),
            param("s", f8(1)),
        )
        x = loc + s * f8(noise)
        log_q = a.log_softmax(-1)
        terms = f8([0.2, 0.5, 0.3]).log() + Normal(mu, 1.0).log_prob(x)
        terms = terms + Normal(x, 0.7).log_prob(f8(0.4)) - log_q - Normal(loc, s).log_prob(x)
        return -(log_q.exp() * terms).sum()

    with Noise():
        loss = TraceEnum_ELBO().loss_and_grads(model, guide)
    found = gradients()
    exact = by_hand()
    exact.backward()
    assert loss == pytest.approx(exact.item(), rel=1e-13)
    for name, slope in gradients().items():
        np.testing.assert_allclose(found[name], slope, atol=1e-13)


def test_parts_in_single_precision_are_no_reason_to_refuse():
    def model():
        z = sample("z", Categorical(f8([0.2, 0.3, 0.5])))
        sample("y", Normal(0.7 * z, f8(1.0)), obs=f8(100.3))

    assert np.isfinite(TraceEnum_ELBO().loss(model, no_guide))
