"""Traces: a mapping of sites in two spellings, joint densities, groups and tables."""

import copy
import gc
import math
import pickle
import weakref

import numpy as np
import pytest
from scipy import stats

from probtorch.distributions.normal import HalfNormal, Normal
from probtorch.effects.handlers import seed, trace
from probtorch.effects.plates import plate
from probtorch.effects.primitives import param, sample
from probtorch.errors import ModelError
from probtorch.tensor import tensor

Y = np.array([[0.1, 0.2], [0.3, -4.0], [1.0, 1.5]])


def model(y, shift=0.0):
    param("w", tensor([1.0, 2.0]))
    tau = sample("tau", HalfNormal(1.0))
    with plate("rows", 3):
        sample("y", Normal(np.full(2, shift), tau.reshape((1, 1))).to_event(1), obs=y)
    return tau


def recorded():
    return trace(seed(model, rng_seed=0)).get_trace(Y, shift=0.5)


def test_trace_reads_like_pyros_and_like_numpyros():
    tr = recorded()
    assert list(tr) == list(tr.nodes) == ["w", "tau", "rows", "y"]
    assert tr["tau"]["value"] is tr.nodes["tau"]["value"] is tr.returned
    assert tr.nodes["_RETURN"]["value"] is tr.returned
    assert tr.nodes["_INPUT"]["args"] == (Y,) and tr.nodes["_INPUT"]["kwargs"] == {"shift": 0.5}
    assert "y" in tr and "z" not in tr and len(tr) == 4
    with pytest.raises(KeyError, match="z"):
        tr.nodes["z"]


def test_trace_can_be_a_context_manager_in_either_spelling():
    with trace() as tp:
        sample("x", Normal(0.0, 1.0))
    assert tp.trace is tp.get_trace() is tp
    assert list(tp) == ["x"]


def test_calling_a_traced_function_returns_its_value():
    traced = trace(seed(model, rng_seed=0))
    assert traced(Y) is traced.trace.returned


def test_groups_of_sites():
    tr = recorded()
    assert tr.stochastic_nodes == tr.reparameterized_nodes == ["tau"]
    assert tr.nonreparam_stochastic_nodes == []
    assert tr.observation_nodes == ["y"] and tr.param_nodes == ["w"]


def test_joint_density_is_the_sum_over_sites():
    tr = recorded()
    tau = tr.returned.item()
    prior = stats.halfnorm(0, 1).logpdf(tau)
    likelihood = stats.norm(0.5, tau).logpdf(Y).sum()
    assert math.isclose(tr.log_prob_sum().item(), prior + likelihood, rel_tol=1e-6)
    only = tr.log_prob_sum(lambda name, site: site.observed)
    assert math.isclose(only.item(), likelihood, rel_tol=1e-6)


def test_compute_log_prob_fills_in_the_sites():
    tr = recorded()
    tr.compute_log_prob()
    assert tr.nodes["y"]["log_prob"].shape == (3,)
    assert tr.nodes["y"]["log_prob_sum"].shape == ()
    assert "log_prob" not in tr.nodes["w"]


def test_trace_without_densities_sums_to_zero():
    assert trace(lambda: None).get_trace().log_prob_sum().item() == 0.0


def test_format_shapes_shows_batch_and_event():
    tr = recorded()
    tr.compute_log_prob()
    lines = [line.split() for line in tr.format_shapes().splitlines()]
    assert lines[0] == ["Trace", "Shapes:"]
    assert ["w", "value", "2", "|"] in lines
    assert ["y", "dist", "3", "|", "2"] in lines
    assert ["log_prob", "3", "|"] in lines
    assert ["rows", "dim", "-1", "|", "size", "3"] in lines
    assert "y" not in tr.format_shapes(last_site="tau").split()


def test_copy_shares_sites_but_not_the_mapping():
    tr = recorded()
    twin = tr.copy()
    del twin.nodes["y"]
    assert "y" in tr and twin["tau"] is tr["tau"] and twin.returned is tr.returned


def test_param_can_be_read_twice_and_plates_and_sites_share_names_with_nothing():
    def reads_twice():
        param("w", tensor(1.0))
        param("w")

    assert list(trace(reads_twice).get_trace()) == ["w"]

    def clash():
        with plate("x", 2):
            sample("x", Normal(0.0, 1.0))

    with pytest.raises(ModelError, match=r"named 'x'[\s\S]*plate at[\s\S]*sample at[\s\S]*rename"):
        trace(clash).get_trace()


def test_repr_lists_the_sites():
    assert repr(recorded()) == "<trace of 'w', 'tau', 'rows', 'y'>"


def test_what_a_run_computed_goes_without_the_garbage_collector():
    x = tensor(np.ones(1000))

    def moved():
        return sample("y", Normal(x * 2.0, 1.0), obs=x)

    gc.collect()
    gc.disable()
    try:
        tr = trace(moved).get_trace()
        held = weakref.ref(tr["y"].fn.loc)
        assert tr.nodes["_RETURN"]["value"] is tr.returned and held() is not None
        del tr
        assert held() is None
    finally:
        gc.enable()


def test_a_trace_keeps_arguments_and_result_when_it_is_copied_and_pickled():
    def model_of_two(a, *, b):
        sample("y", Normal(a, b), obs=tensor(0.5))
        return 7

    tr = trace(model_of_two).get_trace(1.0, b=2.0)
    for again in (tr.copy(), pickle.loads(pickle.dumps(tr)), copy.deepcopy(tr)):
        assert again.args == (1.0,) and again.kwargs == {"b": 2.0} and again.returned == 7
        assert again.nodes["_INPUT"]["args"] == (1.0,) and again.nodes["_RETURN"]["value"] == 7
        assert list(again) == ["y"]
