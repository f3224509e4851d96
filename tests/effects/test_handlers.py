"""The algebra of handlers: what each does, how they combine, and their errors."""

import contextlib
import math

import numpy as np
import pytest
from scipy import stats

import probtorch
from probtorch.core.rng import Generator, default_generator
from probtorch.distributions.bernoulli import Bernoulli
from probtorch.distributions.counts import Poisson
from probtorch.distributions.gamma import Gamma
from probtorch.distributions.normal import HalfNormal, Normal
from probtorch.effects.handlers import (
    block,
    condition,
    do,
    infer_config,
    lift,
    mask,
    replay,
    scale,
    scope,
    seed,
    substitute,
    trace,
    uncondition,
)
from probtorch.effects.params import ParamStore
from probtorch.effects.plates import plate
from probtorch.effects.primitives import deterministic, factor, param, sample
from probtorch.errors import ArgumentError, DTypeError, ModelError, ShapeError
from probtorch.tensor import tensor

Y = np.array([0.3, -1.0, 2.0])


def model(y=Y):
    mu = sample("mu", Normal(0.0, 2.0))
    tau = sample("tau", HalfNormal(1.0))
    with plate("data", 3):
        sample("y", Normal(mu, tau), obs=y)
    return mu


def run(fn, *args, rng_seed=0):
    return trace(seed(fn, rng_seed=rng_seed)).get_trace(*args)


def values(tr):
    return {name: tr[name]["value"].numpy().tolist() for name in tr}


# ------------------------------------------------------------------------------ seed, trace, replay


def test_seeded_trace_is_reproducible():
    assert values(run(model)) == values(run(model)) != values(run(model, rng_seed=1))


def test_order_of_seed_and_trace_does_not_matter():
    inner, outer = trace(seed(model, rng_seed=3)).get_trace(), trace(model)
    seed(outer, rng_seed=3)()
    assert values(inner) == values(outer.trace)


def test_innermost_seed_counts():
    got = run(seed(model, rng_seed=5), rng_seed=9)
    assert values(got) == values(run(model, rng_seed=5))


def test_generator_as_seed_goes_on_where_it_was():
    rng = Generator(2)
    first, second = seed(model, rng_seed=rng)().item(), seed(model, rng_seed=rng)().item()
    assert first != second
    assert first == seed(model, rng_seed=2)().item()


def test_hidden_sites_are_seeded_all_the_same():
    assert seed(block(model), rng_seed=4)().item() == seed(model, rng_seed=4)().item()


def test_draws_that_are_no_sites_are_seeded_too():
    """Factories, initial values of parameters, dropout, and distributions drawn from by hand."""

    class OwnSampler(Normal):
        def sample(self, sample_shape=()):
            return self.loc + probtorch.randn(*sample_shape, *self.batch_shape)

    def drawn():
        with ParamStore().activate():
            found = [
                param("called", lambda: probtorch.randn(3)),
                param("given", probtorch.rand(3)),
                probtorch.nn.functional.dropout(probtorch.ones(50), 0.5),
                Normal(0.0, 1.0).sample((2,)),
                OwnSampler(tensor([0.0, 1.0]), 1.0).sample(),
                OwnSampler(tensor([0.0, 1.0]), 1.0).sample(),
                probtorch.randperm(20),
                sample("x", Gamma(2.0, 1.0)),
                probtorch.nn.Linear(2, 1).weight,
            ]
        return [x.detach().numpy().tolist() for x in found]

    default = default_generator.get_state()
    first, again, other = (seed(drawn, rng_seed=s)() for s in (1, 1, 2))
    assert first == again
    assert all(a != b for a, b in zip(first, other, strict=True))
    assert first[4] != first[5]
    assert default_generator.get_state() == default
    assert seed(seed(drawn, rng_seed=1), rng_seed=2)() == first


@pytest.mark.parametrize("bad", [None, 0.5])
def test_seed_that_is_none_is_refused(bad):
    with pytest.raises(ArgumentError, match=r"expected[\s\S]*got[\s\S]*fix"):
        seed(model, rng_seed=bad)


def test_replay_is_bitwise():
    tr = run(model)
    again = trace(replay(model, tr)).get_trace()
    for name in ("mu", "tau"):
        assert again[name]["value"] is tr[name]["value"]
    assert again.log_prob_sum().item() == tr.log_prob_sum().item()


def test_replay_leaves_sites_the_trace_has_not():
    tr = run(lambda: sample("mu", Normal(0.0, 1.0)))
    again = trace(replay(trace=tr)(seed(model, rng_seed=1))).get_trace()
    assert again["mu"]["value"] is tr["mu"]["value"]
    assert again["tau"]["value"].item() > 0


def test_replay_reads_params_by_name():
    with replay(params={"w": 3.0}):
        assert param("w", tensor(1.0)).item() == 3.0
        assert param("v", tensor(1.0)).item() == 1.0


def test_replayed_value_of_another_shape_is_refused_with_both_lines():
    guide = run(lambda: sample("mu", Normal(np.zeros(2), 1.0).to_event(1)))
    with pytest.raises(ShapeError) as error:
        replay(model, guide)()
    text = str(error.value)
    assert "shapes disagree at site 'mu': () vs (2,)" in text
    assert guide["mu"].location in text and "plates" in text


def test_observed_site_cannot_be_replayed():
    guide = run(lambda: sample("mu", Normal(0.0, 1.0), obs=1.0))
    with pytest.raises(ModelError, match=r"site 'mu'[\s\S]*latent[\s\S]*observed[\s\S]*rename"):
        replay(model, guide)()


def test_unknown_graph_type_is_refused():
    with pytest.raises(ArgumentError, match=r"'flat'[\s\S]*'dense'[\s\S]*leave graph_type out"):
        trace(model, graph_type="dense")


def test_param_only_trace_has_only_params():
    def with_param():
        param("w", tensor(1.0))
        return model()

    assert list(trace(with_param, param_only=True).get_trace()) == ["w"]


# ------------------------------------------------------------------------------ values by name


def test_condition_is_the_same_as_obs():
    def latent():
        mu = sample("mu", Normal(0.0, 2.0))
        tau = sample("tau", HalfNormal(1.0))
        with plate("data", 3):
            sample("y", Normal(mu, tau))
        return mu

    a, b = run(model), run(condition(latent, {"y": Y}))
    assert b.observation_nodes == ["y"]
    assert values(a) == values(b)
    assert a.log_prob_sum().item() == b.log_prob_sum().item()


def test_condition_takes_the_values_of_a_trace():
    tr = run(model)
    again = trace(condition(model, tr)).get_trace()
    assert set(again.observation_nodes) == {"mu", "tau", "y"}
    assert values(again) == values(tr)


def test_outer_condition_has_the_last_word():
    inner = condition(model, {"mu": 1.0})
    assert condition(inner, {"mu": 2.0})().item() == 2.0


def test_uncondition_undoes_condition_and_obs():
    tr = run(uncondition(condition(model, {"mu": 1.0})))
    assert set(tr.stochastic_nodes) == {"mu", "tau", "y"}
    assert values(tr)["y"] != Y.tolist()
    assert tr["y"].notes["obs"].numpy().tolist() == Y.tolist()


@pytest.mark.parametrize("handler", [condition, do])
def test_unknown_name_is_refused_with_the_closest_one(handler):
    with pytest.raises(ModelError) as error:
        handler(model, data={"tua": 1.0})()
    text = str(error.value)
    assert f"{handler.__name__}: the model has no site 'tua'" in text
    assert "'mu', 'tau', 'y'" in text and "did you mean 'tau'" in text
    assert error.value.location.startswith(__file__)


def test_unknown_name_does_not_hide_the_models_own_error():
    def broken():
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        condition(broken, {"x": 1.0})()


def test_unknown_name_can_be_allowed():
    condition(model, {"z": 1.0}, strict=False)()
    substitute(model, {"z": 1.0})()
    with pytest.raises(ModelError, match="substitute: the model has no site 'z'"):
        substitute(model, {"z": 1.0}, strict=True)()


def test_data_that_are_no_dict_are_refused():
    with pytest.raises(ArgumentError, match=r"condition[\s\S]*dict[\s\S]*float[\s\S]*data="):
        condition(model, 3.0)


def test_substitute_leaves_observed_sites_alone_and_latent_ones_latent():
    tr = run(substitute(model, {"mu": 1.5, "y": np.zeros(3)}))
    assert tr["mu"]["value"].item() == 1.5 and not tr["mu"].observed
    assert values(tr)["y"] == Y.tolist()


def test_substitute_by_function_and_for_params():
    def fn():
        return param("w", tensor(1.0)), sample("x", Normal(0.0, 1.0))

    w, x = substitute(fn, substitute_fn=lambda s: 4.0 if s.kind == "param" else None)()
    assert w.item() == 4.0 and x.item() != 4.0


# ------------------------------------------------------------------------------ scale, mask


def test_scales_compose_by_multiplication():
    plain = run(model).log_prob_sum().item()
    nested = run(scale(scale(model, 2.0), 3.0)).log_prob_sum().item()
    assert math.isclose(nested, 6.0 * plain, rel_tol=1e-14)
    assert nested == run(scale(model, scale=6.0)).log_prob_sum().item()


def test_scale_can_be_a_tensor_with_a_gradient():
    weight = tensor(2.0, dtype="float64", requires_grad=True)
    tr = run(scale(model, weight))
    tr.log_prob_sum().backward()
    assert math.isclose(weight.grad.item(), run(model).log_prob_sum().item(), rel_tol=1e-12)


@pytest.mark.parametrize("bad", [0.0, -1, float("nan"), None])
def test_scale_that_is_not_positive_is_refused(bad):
    with pytest.raises(ArgumentError, match=r"factor > 0[\s\S]*got[\s\S]*mask\(mask=False\)"):
        scale(model, bad)


def test_mask_false_switches_density_and_gradient_off_even_with_nan_data():
    mu = tensor(0.5, requires_grad=True)

    def fn():
        with plate("data", 3):
            sample("y", Normal(mu, 1.0), obs=np.array([np.nan, 1.0, np.inf]))
            factor("f", mu * tensor([np.nan, 1.0, 2.0]))

    tr = trace(mask(fn, mask=False)).get_trace()
    total = tr.log_prob_sum() + 0.0 * mu
    total.backward()
    assert total.item() == 0.0
    assert tr["y"].log_prob.tolist() == [0.0, 0.0, 0.0]
    assert mu.grad.item() == 0.0


def test_masked_nan_does_not_reach_the_gradient():
    mu = tensor(0.5, dtype="float64", requires_grad=True)

    def fn():
        with plate("data", 3), mask(mask=[False, True, True]):
            sample("y", Normal(mu, 1.0), obs=np.array([np.nan, 1.0, 2.0]))

    total = trace(fn).get_trace().log_prob_sum()
    total.backward()
    assert math.isclose(total.item(), stats.norm(0.5, 1).logpdf([1.0, 2.0]).sum(), rel_tol=1e-14)
    assert math.isclose(mu.grad.item(), 0.5 + 1.5, rel_tol=1e-14)


@pytest.mark.parametrize(
    "outer, inner, want",
    [
        ([True, False], [True, True], [1, 0]),
        ([True, False], [False, True], [0, 0]),
        (True, [False, True], [0, 1]),
        ([False, True], True, [0, 1]),
        (False, [True, True], [0, 0]),
        ([True, True], False, [0, 0]),
    ],
)
def test_masks_combine_with_and(outer, inner, want):
    def fn():
        with plate("data", 2):
            sample("y", Normal(0.0, 1.0), obs=np.array([1.0, 2.0]))

    tr = trace(mask(mask(fn, mask=inner), mask=outer)).get_trace()
    np.testing.assert_allclose(
        tr["y"].compute_log_prob().numpy(), stats.norm.logpdf([1, 2]) * want, rtol=1e-14
    )


@pytest.mark.parametrize(
    "fn", [Poisson(2.0), Bernoulli(0.3), Gamma(2.0, 1.0)], ids=lambda fn: type(fn).__name__
)
def test_masked_values_may_lie_outside_the_support(fn):
    def model():
        with plate("data", 2), mask(mask=[False, True]):
            sample("y", fn, obs=np.array([-7.5, 1.0]))

    got = trace(model).get_trace().log_prob_sum().item()
    assert got == fn.log_prob(np.array(1.0)).item()


def test_mask_wider_than_the_site_is_refused():
    with pytest.raises(ModelError, match=r"site 'mu' has 3 values[\s\S]*its mask has shape \(3,\)"):
        run(mask(model, mask=[True, False, True])).log_prob_sum()


@pytest.mark.parametrize("shape", [(5,), (5, 1), (2, 5)], ids=str)
def test_scale_that_would_count_a_site_more_than_once_is_refused(shape):
    def rows():
        with plate("rows", 5) if len(shape) > 1 else contextlib.nullcontext():
            with scale(scale=probtorch.ones(shape)):
                sample("y", Normal(0.0, 1.0), obs=probtorch.ones(5 if len(shape) > 1 else ()))

    with pytest.raises(ModelError, match=r"site 'y'[\s\S]*outside any plate[\s\S]*its scale has"):
        trace(rows).get_trace().log_prob_sum()


def test_mask_that_is_no_boolean_is_refused():
    with pytest.raises(DTypeError, match=r"booleans[\s\S]*float64[\s\S]*\.bool"):
        mask(model, mask=np.ones(3))


# ------------------------------------------------------------------------------ block


SITES = ["w", "mu", "tau", "data", "y", "d", "f"]


def all_kinds():
    param("w", tensor(1.0))
    model()
    deterministic("d", 1.0)
    factor("f", 1.0)


@pytest.mark.parametrize(
    "arguments, seen",
    [
        ({}, []),
        ({"expose_all": True}, SITES),
        ({"hide_all": False}, SITES),
        ({"hide": ["mu", "w"]}, ["tau", "data", "y", "d", "f"]),
        ({"expose": ["mu", "w"]}, ["w", "mu"]),
        ({"hide_types": ["sample"]}, ["w", "data", "y", "d", "f"]),
        ({"hide_types": ["observe", "plate"]}, ["w", "mu", "tau", "d", "f"]),
        ({"expose_types": ["param"]}, ["w"]),
        ({"expose_types": ["param"], "hide": ["w"]}, []),
        ({"expose": ["y"], "expose_types": ["param"]}, ["w", "y"]),
        ({"hide_fn": lambda site: site.name != "mu"}, ["mu"]),
        ({"expose_fn": lambda site: site["type"] == "factor"}, ["f"]),
    ],
)
def test_block_hides_what_it_is_told_to(arguments, seen):
    assert list(trace(block(all_kinds, **arguments)).get_trace()) == seen


def test_block_is_idempotent():
    once = trace(block(all_kinds, hide=["mu"])).get_trace()
    twice = trace(block(block(all_kinds, hide=["mu"]), hide=["mu"])).get_trace()
    assert list(once) == list(twice)


def test_block_between_handlers_stops_the_outer_one_only():
    hidden = condition(block(model), {"mu": 1.0}, strict=False)
    assert hidden().item() != 1.0
    assert block(condition(model, {"mu": 1.0}))().item() == 1.0


def test_contradictory_block_is_refused():
    with pytest.raises(ArgumentError, match=r"hide_fn or expose_fn[\s\S]*both[\s\S]*one function"):
        block(model, hide_fn=lambda s: True, expose_fn=lambda s: True)
    with pytest.raises(ArgumentError, match=r"differ[\s\S]*mu in both[\s\S]*take them out"):
        block(model, hide=["mu"], expose=["mu"])


# ------------------------------------------------------------------------------ do


def chain():
    a = sample("a", Normal(0.0, 1.0))
    b = sample("b", Normal(a, 1.0))
    return sample("c", Normal(b, 1.0), obs=0.7)


def test_do_changes_what_comes_after_and_keeps_the_site():
    tr = trace(seed(do(chain, {"b": 5.0}), rng_seed=0)).get_trace()
    plain = run(chain)
    assert tr["b"]["value"].item() == plain["b"]["value"].item() != 5.0
    assert not tr["b"].observed and tr["c"].fn.loc.item() == 5.0
    want = stats.norm(5, 1).logpdf(0.7)
    assert math.isclose(tr["c"].compute_log_prob_sum().item(), want, rel_tol=1e-14)


def test_do_cuts_the_ancestors_off():
    a = tensor(0.3, dtype="float64", requires_grad=True)
    tr = trace(substitute(do(chain, {"b": 5.0}), {"a": a, "b": 1.0})).get_trace()
    assert not tr["c"].compute_log_prob_sum().requires_grad
    tr.log_prob_sum().backward()
    assert math.isclose(a.grad.item(), -0.3 + (1.0 - 0.3), rel_tol=1e-14)


def test_trace_inside_of_do_sees_the_site_and_the_intervention():
    with do(data={"b": 5.0}), trace() as tr, seed(rng_seed=0):
        chain()
    assert list(tr) == ["a", "b", "b__CF", "c"]
    assert tr["b__CF"]["value"].item() == 5.0 and not tr["b__CF"].has_density


# ------------------------------------------------------------------------------ others


def test_infer_config_merges_options():
    def fn():
        sample("x", Normal(0.0, 1.0), infer={"a": 1, "b": 1})

    tr = trace(infer_config(fn, lambda site: {"b": 2, "name": site.name})).get_trace()
    assert tr["x"]["infer"] == {"a": 1, "b": 2, "name": "x"}


def test_infer_config_without_function_is_refused():
    with pytest.raises(ArgumentError, match=r"config_fn[\s\S]*None[\s\S]*infer_config\(model"):
        infer_config(model)


@pytest.mark.parametrize(
    "prior",
    [
        Normal(2.0, 0.5),
        {"w": Normal(2.0, 0.5)},
        lambda site: Normal(2.0, 0.5) if site.name == "w" else None,
    ],
    ids=["distribution", "dict", "function"],
)
def test_lift_makes_params_random(prior):
    def fn():
        with plate("a", 2):
            return param("w", tensor([1.0, 1.0]))

    tr = run(lift(fn, prior))
    assert tr["w"].kind == "sample" and tr["w"].fn.batch_shape == (2,)
    assert tr.returned is tr["w"]["value"]
    want = stats.norm(2, 0.5).logpdf(tr.returned.numpy()).sum()
    assert math.isclose(tr.log_prob_sum().item(), want, rel_tol=1e-6)


def test_lift_leaves_params_without_prior():
    tr = trace(lift(lambda: param("w", tensor(1.0)), prior={})).get_trace()
    assert tr["w"].kind == "param" and tr["w"]["value"].item() == 1.0


def test_lift_without_prior_is_refused():
    with pytest.raises(ArgumentError, match=r"prior as a distribution[\s\S]*None[\s\S]*lift\("):
        lift(model)


def test_scope_prefixes_names_so_that_a_model_can_be_used_twice():
    def twice():
        scope(model, prefix="left")()
        with scope(prefix="right", divider="."):
            model()

    assert list(run(twice)) == [
        *("left/mu", "left/tau", "left/data", "left/y"),
        *("right.mu", "right.tau", "right.data", "right.y"),
    ]


def test_outer_handlers_speak_of_scoped_names():
    scoped = scope(model, prefix="left")
    assert condition(scoped, {"left/mu": 1.0})().item() == 1.0
    assert scope(condition(model, {"mu": 1.0}), prefix="left")().item() == 1.0
