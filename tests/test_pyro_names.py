"""Names of Pyro's that stand for what is there already, and handlers that leave or tie sites."""

import math
import queue as queues
import random

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch import poutine, sample, tensor
from probtorch.effects.trace import Trace
from probtorch.errors import ArgumentError, DomainError, InferenceError, ModelError, ShapeError
from probtorch.handlers import NonlocalExit, equalize, escape, queue, seed, trace
from probtorch.infer import (
    MCMC,
    NUTS,
    SVI,
    AutoNormal,
    JitTrace_ELBO,
    JitTraceEnum_ELBO,
    JitTraceGraph_ELBO,
    JitTraceMeanField_ELBO,
    RandomWalkKernel,
    Trace_ELBO,
)
from probtorch.infer.mcmc.util import initialize_model, summary
from probtorch.infer.util import torch_item
from probtorch.optim import Adam, CosineAnnealingLR, ExponentialLR, PyroLRScheduler


def coin_tree():
    """Two or three outcomes, after one of two."""
    if sample("first", dist.Bernoulli(0.25)):
        sample("left", dist.Categorical(tensor([0.2, 0.3, 0.5])))
    else:
        sample("right", dist.Bernoulli(0.5))
    return sample("x", dist.Normal(0.0, 1.0))


def every_run(kind):
    waiting = kind()
    waiting.put(Trace())
    step, runs = queue(coin_tree, waiting), []
    while True:
        try:
            runs.append(trace(step).get_trace())
        except queues.Empty:
            return runs


@pytest.mark.parametrize("kind", [queues.Queue, queues.LifoQueue])
def test_a_queue_visits_every_execution_once(kind):
    runs = every_run(kind)
    probabilities = [
        math.exp(sum(float(s.fn.log_prob(s.value)) for n, s in run.items() if n != "x"))
        for run in runs
    ]
    expected = [0.25 * 0.2, 0.25 * 0.3, 0.25 * 0.5, 0.375, 0.375]
    assert sorted(probabilities) == pytest.approx(sorted(expected), rel=1e-6)
    assert all("x" in run for run in runs)


def test_a_queue_gives_up_and_may_try_a_few_values_only():
    waiting = queues.Queue()
    waiting.put(Trace())
    with pytest.raises(InferenceError, match="within 1 tries"):
        queue(coin_tree, waiting, max_tries=1)()
    few = queues.Queue()
    few.put(Trace())
    queue(coin_tree, few, num_samples=1)()
    assert few.empty()


def test_a_run_is_left_at_a_site_and_leaves_nothing_behind():
    with pytest.raises(NonlocalExit, match="'x'") as left:
        escape(coin_tree, lambda site: site.name == "x")()
    assert left.value.site.value is None
    assert set(trace(seed(coin_tree, 1)).get_trace()) > {"first", "x"}


def biases():
    return sample("bias_1", dist.Beta(2.0, 2.0)), sample("bias_2", dist.Beta(2.0, 2.0))


@pytest.mark.parametrize("sites", ["bias_.*", ["bias_1", "bias_2"]])
def test_equal_sites_are_one(sites):
    run = trace(seed(equalize(biases, sites), 0)).get_trace()
    assert run["bias_1"].value is run["bias_2"].value
    assert [run[n].kind for n in ("bias_1", "bias_2")] == ["sample", "deterministic"]
    both = trace(seed(equalize(biases, sites, keep_dist=True), 0)).get_trace()
    one = dist.Beta(2.0, 2.0).log_prob(both["bias_1"].value)
    assert float(both.log_prob_sum()) == pytest.approx(2.0 * float(one), rel=1e-6)


def test_equal_sites_are_sampled_as_one_and_anew_in_each_run():
    mcmc = MCMC(NUTS(equalize(biases, "bias_.*")), num_samples=400, seed=1, progress_bar=False)
    mcmc.run()
    draws = mcmc.get_samples()
    assert (draws["bias_1"] == draws["bias_2"]).all()
    assert len(np.unique(draws["bias_1"])) > 50


def test_equal_parameters_are_one_and_shapes_have_to_agree():
    def params():
        return probtorch.param("a", tensor(1.0)), probtorch.param("b", tensor(2.0))

    one, two = equalize(params, ["a", "b"], type="param")()
    assert one is two

    def unlike():
        sample("a", dist.Normal(tensor([0.0, 0.0, 0.0]), 1.0).to_event(1))
        sample("b", dist.Normal(tensor([0.0, 0.0]), 1.0).to_event(1))

    with pytest.raises(ShapeError, match="'b'"):
        equalize(unlike, ["a", "b"])()
    with pytest.raises(ArgumentError, match="type"):
        equalize(unlike, ["a"], type="plate")


@pytest.mark.parametrize(
    "cls", [JitTrace_ELBO, JitTraceGraph_ELBO, JitTraceEnum_ELBO, JitTraceMeanField_ELBO]
)
def test_objectives_of_compiled_steps_are_the_others(cls):
    def model(y):
        sample("y", dist.Normal(sample("b", dist.Normal(0.0, 1.0)), 1.0), obs=y)

    losses = []
    for objective in (cls(num_particles=2, ignore_jit_warnings=True), cls.__mro__[2](2)):
        svi = SVI(model, AutoNormal(model), Adam({"lr": 0.1}), objective, seed=3)
        losses.append([svi.step(tensor(1.0)) for _ in range(3)])
    assert losses[0] == losses[1]


def test_schedules_are_made_of_a_dict_of_options():
    schedule = ExponentialLR({"optimizer": Adam, "optim_args": {"lr": 0.1}, "gamma": 0.5})
    assert isinstance(schedule, PyroLRScheduler)
    assert isinstance(
        CosineAnnealingLR({"optimizer": Adam, "optim_args": {"lr": 0.1}, "T_max": 5}),
        PyroLRScheduler,
    )

    def model(y):
        sample("y", dist.Normal(sample("b", dist.Normal(0.0, 1.0)), 1.0), obs=y)

    svi = SVI(model, AutoNormal(model), schedule, Trace_ELBO(), seed=3)
    svi.step(tensor(1.0))
    schedule.step()
    rates = {o.optimizer.param_groups[0]["lr"] for o in schedule.optim_objs.values()}
    assert rates == {0.05}
    with pytest.raises(AttributeError, match="ExponentialLRs"):
        probtorch.optim.ExponentialLRs  # noqa: B018


def test_one_seed_for_all_generators():
    def draws():
        return float(probtorch.rand(())), random.random(), float(np.random.rand())

    probtorch.set_rng_seed(7)
    first = draws()
    probtorch.set_rng_seed(7)
    assert draws() == first


def test_checks_and_stacks_of_plates_at_the_front_door():
    with probtorch.validation_enabled(False):
        dist.Normal(0.0, -1.0)
    with pytest.raises(DomainError):
        dist.Normal(0.0, -1.0)
    with probtorch.plate_stack("rows", [3, 2]):
        assert sample("x", dist.Normal(0.0, 1.0)).shape == (3, 2)


def test_the_other_name_of_the_handlers():
    assert poutine.trace is trace
    assert poutine.__all__ == probtorch.handlers.__all__


def test_the_random_walk_by_its_other_name():
    kernel = RandomWalkKernel(biases, init_step_size=0.3)
    assert repr(kernel).startswith("RandomWalk(")
    assert kernel.step_size == 0.3


def test_modules_of_scripts_have_pyros_names():
    """``from pyro.infer.autoguide import ...`` and its kind."""
    from probtorch.effects import reparam_strategies
    from probtorch.infer import autoguide, guides, mcmc, reparam
    from probtorch.infer.starts import initialization

    assert set(guides.__all__) < set(autoguide.__all__)
    for name in autoguide.__all__:
        home = guides if name in guides.__all__ else initialization
        assert getattr(autoguide, name) is getattr(home, name)
    reparams = {n for n in probtorch.effects.__all__ if n.endswith("Reparam")}
    assert reparams | {"NeuTraReparam", "StructuredReparam", "ReparamStrategy"} == set(
        reparam.__all__
    )
    assert reparam.AutoReparam is reparam_strategies.AutoReparam
    assert mcmc.NUTS is NUTS and mcmc.MCMC is MCMC


def test_summaries_of_pyro_are_tables_by_name():
    rng = np.random.default_rng(0)
    draws = {"x": rng.normal(size=(2, 50, 3)), "k": rng.integers(0, 5, (2, 50))}
    found = summary(draws, prob=0.8)
    assert list(found["x"]) == ["mean", "std", "median", "10.0%", "90.0%", "n_eff", "r_hat"]
    flat = draws["x"].reshape(-1, 3)
    np.testing.assert_allclose(found["x"]["mean"].numpy(), flat.mean(0))
    np.testing.assert_allclose(found["x"]["std"].numpy(), flat.std(0, ddof=1))
    low, high = probtorch.diagnostics.hpdi(flat, 0.8)
    np.testing.assert_allclose(found["x"]["90.0%"].numpy(), high)
    np.testing.assert_allclose(found["x"]["10.0%"].numpy(), low)
    rhat = probtorch.diagnostics.split_gelman_rubin(draws["k"].astype(float))
    np.testing.assert_allclose(found["k"]["r_hat"].numpy(), rhat)
    short = summary({"x": draws["x"][0, :3]}, group_by_chain=False)["x"]
    assert short["n_eff"].isnan().all() and short["mean"].shape == (3,)


def test_several_chains_start_at_several_points():
    def model():
        probtorch.sample("x", probtorch.distributions.Gamma(2.0, 1.0).expand([3]).to_event(1))

    start, potential, transforms, _ = initialize_model(
        model, num_chains=4, jit_compile=True, skip_jit_warnings=True, seed=0
    )
    assert start["x"].shape == (4, 3) and len(set(start["x"][:, 0].tolist())) == 4
    first = {"x": start["x"][0]}
    assert potential(first).isfinite() and transforms["x"].inv(first["x"]).min() > 0.0
    with pytest.raises(ArgumentError, match="num_chains >= 1"):
        initialize_model(model, num_chains=0)
    assert torch_item(probtorch.tensor(1.5)) == torch_item(1.5) == 1.5


def weighed_elbo(model, guide, *args, **kwargs):
    weight = kwargs.pop("weight", 1.0)
    drawn = poutine.trace(guide).get_trace(*args, **kwargs)
    run = poutine.trace(poutine.replay(model, trace=drawn)).get_trace(*args, **kwargs)
    return weight * (drawn.log_prob_sum() - run.log_prob_sum())


def test_a_loss_function_has_arguments_of_its_own():
    def model(y):
        z = sample("z", dist.Normal(0.0, 1.0))
        sample("y", dist.Normal(z, 1.0), obs=y)

    def guide(y):
        sample("z", dist.Normal(probtorch.param("loc", tensor(0.3)), 1.0))

    y = tensor(1.0)
    losses = []
    for weight in (1.0, 2.0):
        svi = SVI(model, guide, Adam({"lr": 0.0}), weighed_elbo, seed=0)
        losses.append([svi.step(y, weight=weight) for _ in range(5)])
    np.testing.assert_allclose(losses[1], 2.0 * np.array(losses[0]), rtol=1e-6)
    with pytest.raises(ArgumentError, match="weight"):
        SVI(model, guide, Adam({"lr": 0.0}), Trace_ELBO()).step(y, weight=1.0)


def test_a_step_of_pyros_objectives_that_nothing_calls_is_refused():
    with pytest.raises(ModelError, match=r"(?s)_differentiable_loss_particle.*loss=fn"):

        class Causal(Trace_ELBO):
            def _differentiable_loss_particle(self, model_trace, guide_trace):
                return 0.0, 0.0

    class Counted(Trace_ELBO):
        calls = 0

        def loss_and_grads(self, model, guide, *args, **kwargs):
            self.calls += 1
            return super().loss_and_grads(model, guide, *args, **kwargs)

    def model():
        sample("z", dist.Normal(0.0, 1.0))

    loss = Counted()
    svi = SVI(model, AutoNormal(model), Adam({"lr": 0.01}), loss)
    for _ in range(4):
        svi.step()
    assert loss.calls == 4
