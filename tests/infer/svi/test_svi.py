"""`SVI`: steps, optimizers of every form, resuming, losses that are not finite, Ctrl-C."""

import math
import signal

import numpy as np
import pytest

import probtorch
from probtorch.autograd.tape import grad
from probtorch.config import configure
from probtorch.diagnostics.findings import InferenceWarning
from probtorch.distributions import Bernoulli, Delta, HalfNormal, Normal, constraints
from probtorch.effects import get_param_store, module, param, plate, sample
from probtorch.effects.params import ParamStore
from probtorch.errors import ArgumentError, DomainError, InferenceError, ModelError
from probtorch.infer import (
    SVI,
    AutoDelta,
    AutoNormal,
    RenyiELBO,
    Trace_ELBO,
    TraceEnum_ELBO,
    TraceGraph_ELBO,
    TraceMeanField_ELBO,
)
from probtorch.infer.vi.step_progress import StepProgress
from probtorch.nn import Linear
from probtorch.optim import LBFGS, SGD, Adam, PyroLRScheduler
from probtorch.optim.lr_scheduler import ExponentialLR
from probtorch.tensor import tensor
from tests.infer.svi.programs import (
    DATA,
    normal_evidence,
    normal_guide,
    normal_model,
    normal_posterior,
)

F8 = np.dtype("f8")
OBJECTIVES = [
    Trace_ELBO,
    TraceGraph_ELBO,
    TraceMeanField_ELBO,
    TraceEnum_ELBO,
    lambda: RenyiELBO(num_particles=2),
]


def values(svi):
    return {name: value.numpy() for name, value in svi.get_params().items()}


def test_the_conjugate_posterior_is_found():
    schedule = {"optimizer": Adam, "optim_args": {"lr": 0.1}, "gamma": 0.995}
    optimizer = PyroLRScheduler(ExponentialLR, schedule)
    svi = SVI(normal_model, normal_guide, optimizer, Trace_ELBO(), seed=0)
    svi.run(1000, DATA, progress_bar=False, callback=lambda i, loss: optimizer.step())
    mean, sd = normal_posterior()
    # At the optimum the gradient of every draw differs; the steps have shrunk to 0.0007 by then.
    np.testing.assert_allclose(values(svi)["loc"], mean, atol=0.02)
    np.testing.assert_allclose(np.exp(values(svi)["log_scale"]), sd, rtol=0.02)
    # At the posterior the bound is the evidence, whatever is drawn.
    np.testing.assert_allclose(svi.evaluate_loss(DATA), -normal_evidence(), atol=0.02)


# ----------------------------------------------------------------------------------- optimizers


def five_losses(optim, **options):
    svi = SVI(normal_model, normal_guide, optim, seed=0, **options)
    return [svi.step(DATA) for _ in range(5)]


def test_an_optimizer_is_the_same_in_every_form():
    expected = five_losses(Adam({"lr": 0.05}))
    assert len(set(expected)) == 5
    assert five_losses(Adam, lr=0.05) == expected
    assert five_losses(lambda p: Adam(p, lr=0.05)) == expected
    spare = tensor([1.0], requires_grad=True)
    assert five_losses(Adam([spare], lr=0.05)) == expected


def test_an_optimizer_over_modules_moves_them_and_the_param_statements():
    probtorch.manual_seed(0)
    layer = Linear(1, 1)
    x = tensor(np.array([[0.0], [1.0], [2.0]], "f4"))
    y = tensor(np.array([1.0, 3.0, 5.0], "f4"))

    def model():
        noise = param("noise", 1.0, constraint=probtorch.distributions.constraints.positive)
        with plate("rows", 3):
            sample("y", Normal(layer(x)[:, 0], noise), obs=y)

    def guide():
        pass

    svi = SVI(model, guide, Adam(layer.parameters(), lr=0.05))
    svi.run(400, progress_bar=False)
    np.testing.assert_allclose(layer.weight.item(), 2.0, atol=0.05)
    np.testing.assert_allclose(layer.bias.item(), 1.0, atol=0.08)
    assert get_param_store()["noise"].item() < 0.2


def test_an_optimizer_that_needs_several_losses_gets_them_with_the_same_draws():
    svi = SVI(normal_model, normal_guide, LBFGS, TraceMeanField_ELBO(20), seed=0, max_iter=5)
    losses = [svi.step(DATA) for _ in range(6)]
    assert losses[-1] < losses[0]
    mean, _ = normal_posterior()
    np.testing.assert_allclose(values(svi)["loc"], mean, atol=0.5)


def test_schedules_of_pyro_are_taken():
    optim = PyroLRScheduler(
        ExponentialLR, {"optimizer": SGD, "optim_args": {"lr": 0.01}, "gamma": 0.0}
    )
    svi = SVI(normal_model, normal_guide, optim, seed=0)
    svi.step(DATA)
    before = values(svi)
    optim.step()
    svi.step(DATA)
    assert values(svi) == before


def test_options_beside_a_finished_optimizer_are_refused():
    with pytest.raises(ArgumentError, match="no options"):
        SVI(normal_model, normal_guide, Adam({"lr": 0.1}), lr=0.2)


def test_what_is_no_optimizer_is_refused():
    with pytest.raises(ArgumentError, match="optim"):
        SVI(normal_model, normal_guide, 0.1)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("optim", [lambda: Adam({"lr": 0.1}), lambda: Adam, lambda: LBFGS({})])
def test_without_parameters_steps_estimate_the_loss(objective, optim):
    def model():
        sample("x", Normal(0.0, 1.0), obs=tensor(1.0, dtype=F8))

    svi = SVI(model, lambda: None, optim(), objective())
    with pytest.warns(InferenceWarning, match="nothing to optimise"):
        loss = svi.step()
    np.testing.assert_allclose(loss, 0.5 + 0.5 * math.log(2 * math.pi))
    # It is told of once.
    np.testing.assert_array_equal(svi.run(3, progress_bar=False).losses, loss)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_an_empty_model_has_loss_zero(objective):
    svi = SVI(lambda: None, lambda: None, Adam({"lr": 0.1}), objective())
    with pytest.warns(InferenceWarning, match="nothing to optimise"):
        assert svi.step() == 0.0
    assert svi.evaluate_loss() == 0.0


def test_lbfgs_of_a_dict_moves_all_parameters_together():
    """Its first step finds the minimum of a quadratic in which the parameters are correlated."""

    def loss(model, guide):
        a, b = param("a", tensor(1.0, dtype=F8)), param("b", tensor(-2.0, dtype=F8))
        return (a - 1.5 * b) ** 2 + (b - 3.0) ** 2

    svi = SVI(None, None, LBFGS({"line_search_fn": "strong_wolfe"}), loss)
    svi.run(2, progress_bar=False)
    np.testing.assert_allclose([values(svi)["a"], values(svi)["b"]], [4.5, 3.0], rtol=1e-6)
    other = SVI(None, None, LBFGS, loss, line_search_fn="strong_wolfe")
    other.run(2, progress_bar=False)
    assert values(other) == values(svi)


def test_lbfgs_with_options_per_parameter_is_refused():
    with pytest.raises(ArgumentError, match="all parameters together"):
        SVI(normal_model, normal_guide, LBFGS(lambda name: {"lr": 1.0}))


@pytest.mark.parametrize(
    "objective",
    [
        Trace_ELBO(),
        TraceEnum_ELBO(),
        Trace_ELBO(num_particles=4, vectorize_particles=True),
    ],
    ids=["single", "enumerated", "vectorised"],
)
def test_a_guide_may_differentiate_on_its_own_account(objective):
    """Its location is a Newton step from a parameter, along the gradient of the log density."""

    def model():
        x = sample("x", Normal(0.0, 1.0))
        z = sample("z", Bernoulli(0.5)) if isinstance(objective, TraceEnum_ELBO) else 0.0
        sample("y", Normal(x + z, 1.0), obs=tensor(2.0, dtype=F8))

    def guide():
        start = param("start", tensor(0.3, dtype=F8))
        x = start.detach().requires_grad_()
        (slope,) = grad(0.5 * x**2 + 0.5 * (2.0 - x) ** 2, [x])
        sample("x", Normal(start - 0.5 * slope, 0.7))

    svi = SVI(model, guide, Adam({"lr": 0.01}), objective, seed=0)
    assert all(math.isfinite(svi.step()) for _ in range(3))


def test_a_loss_may_be_a_function():
    def loss(model, guide, target):
        return (param("p", tensor(1.0, dtype=F8)) - target) ** 2

    svi = SVI(None, None, SGD({"lr": 0.25}), loss)
    assert svi.step(3.0) == 4.0
    np.testing.assert_allclose(values(svi)["p"], 2.0)
    assert svi.evaluate_loss(3.0) == 1.0


def test_parameters_that_come_later_are_moved_too():
    def loss(model, guide, name):
        return param(name, tensor(1.0, dtype=F8)) * 1.0

    for optim in (SGD({"lr": 0.5}), lambda p: SGD(p, lr=0.5)):
        svi = SVI(None, None, optim, loss)
        for name in ("a", "b", "a"):
            svi.step(name)
        assert values(svi) == {"a": 0.0, "b": 0.5}


# --------------------------------------------------------------------------------- parameters


def test_parameters_belong_to_the_object_and_are_in_view():
    first = SVI(normal_model, normal_guide, Adam({"lr": 0.1}), seed=0)
    first.step(DATA)
    assert get_param_store() is first.params
    second = SVI(normal_model, normal_guide, Adam({"lr": 0.1}), seed=0)
    assert list(second.params) == [] and get_param_store() is second.params
    first.step(DATA)
    assert get_param_store() is first.params
    assert list(second.params) == []


def test_a_store_can_be_shared():
    store = ParamStore()
    first = SVI(normal_model, normal_guide, Adam({"lr": 0.1}), params=store, seed=0)
    first.step(DATA)
    second = SVI(normal_model, normal_guide, Adam({"lr": 0.1}), params=store, seed=0)
    moved = values(first)
    second.step(DATA)
    assert values(first) == values(second) != moved


def test_evaluating_moves_nothing():
    svi = SVI(normal_model, normal_guide, Adam({"lr": 0.1}), seed=0)
    svi.step(DATA)
    before = values(svi)
    loss = svi.evaluate_loss(DATA)
    assert math.isfinite(loss) and values(svi) == before
    assert all(p.grad is None for _, p in svi.params.named_parameters())


def test_clearing_the_store_starts_anew():
    svi = SVI(normal_model, normal_guide, Adam({"lr": 0.1}), seed=0)
    for _ in range(3):
        svi.step(DATA)
    probtorch.clear_param_store()
    svi.step(DATA)
    # Adam's first step is of the size of the learning rate.
    np.testing.assert_allclose(abs(values(svi)["loc"] - 0.3), 0.1, rtol=1e-6)


# ------------------------------------------------------------------------------------ resuming


def schools(sigma, y):
    mu = sample("mu", Normal(0.0, 5.0))
    with plate("school", len(y), subsample_size=2) as rows:
        z = sample("z", Normal(0.0, 1.0))
        # Draws of the default generator, as dropout makes them, count as well.
        jitter = 1.0 + 0.01 * probtorch.rand(2)
        sample("y", Normal(mu + z * jitter, sigma[rows]), obs=y[rows])


SIGMA, Y = tensor([1.0, 2.0, 1.5, 1.0]), tensor([0.3, 2.0, -1.0, 0.5])


@pytest.mark.parametrize("seed", [0, None], ids=["own generator", "default generator"])
@pytest.mark.parametrize(
    "optim",
    [lambda: Adam({"lr": 0.05}), lambda: Adam, lambda: lambda p: SGD(p, lr=0.01, momentum=0.9)],
    ids=["pyro", "class", "momentum"],
)
def test_a_resumed_run_goes_on_bit_for_bit(optim, seed):
    def make():
        return SVI(schools, AutoNormal(schools), optim(), Trace_ELBO(2), seed=seed)

    probtorch.manual_seed(1)
    whole = make()
    for _ in range(4):
        whole.step(SIGMA, Y)
    state = whole.state_dict()
    rest = [whole.step(SIGMA, Y) for _ in range(4)]
    probtorch.manual_seed(99)
    resumed = make()
    resumed.load_state_dict(state)
    assert resumed.num_steps == 4
    assert [resumed.step(SIGMA, Y) for _ in range(4)] == rest
    for name, value in values(whole).items():
        np.testing.assert_array_equal(values(resumed)[name], value)


def test_a_state_can_be_loaded_back_into_a_run_that_went_on():
    svi = SVI(normal_model, normal_guide, Adam({"lr": 0.05}), seed=0)
    for _ in range(3):
        svi.step(DATA)
    state = svi.state_dict()
    rest = [svi.step(DATA) for _ in range(3)]
    svi.load_state_dict(state)
    assert [svi.step(DATA) for _ in range(3)] == rest


def test_a_state_that_waits_is_returned_as_it_is():
    svi = SVI(normal_model, normal_guide, Adam({"lr": 0.05}), seed=0)
    svi.step(DATA)
    state = svi.state_dict()
    fresh = SVI(normal_model, normal_guide, Adam({"lr": 0.05}), seed=0)
    fresh.load_state_dict(state)
    assert fresh.state_dict() == state


@pytest.mark.filterwarnings("ignore:SVI.step runs eagerly")
def test_running_means_of_baselines_are_part_of_the_state():
    def model(y):
        a = sample("a", Bernoulli(0.3))
        sample("y", Normal(3.0 * a, 1.0), obs=y)

    def guide(y):
        options = {"use_decaying_avg_baseline": True}
        logit = param("logit", tensor(0.4, dtype=F8))
        sample("a", Bernoulli(logits=logit), infer={"baseline": options})

    def make():
        return SVI(model, guide, SGD({"lr": 0.1}), TraceGraph_ELBO(), seed=0)

    whole, y = make(), tensor(2.0)
    for _ in range(3):
        whole.step(y)
    state = whole.state_dict()
    for _ in range(3):
        whole.step(y)
    resumed = make()
    resumed.load_state_dict(state)
    for _ in range(3):
        resumed.step(y)
    assert values(resumed) == values(whole)


def test_a_state_of_other_parameters_is_refused():
    svi = SVI(normal_model, normal_guide, Adam({"lr": 0.05}), seed=0)
    svi.step(DATA)
    other = SVI(normal_model, AutoNormal(normal_model), Adam({"lr": 0.05}), seed=0)
    other.load_state_dict(svi.state_dict())
    with pytest.raises(ArgumentError, match="'log_scale'"):
        other.step(DATA)


def test_a_state_of_another_format_is_refused():
    svi = SVI(normal_model, normal_guide, Adam({"lr": 0.05}))
    with pytest.raises(ArgumentError, match="format"):
        svi.load_state_dict({"params": {}})


# ------------------------------------------------------------------- losses that are not finite


class Breaking:
    """The normal model, whose noise becomes nan in chosen steps."""

    def __init__(self, bad):
        self.bad, self.calls = bad, 0

    def __call__(self, y):
        mu = sample("mu", Normal(0.0, 2.0))
        broken = self.calls in self.bad
        with plate("data", len(y)):
            sample("y", Normal(mu, 1.0, validate_args=False), obs=y * (np.nan if broken else 1.0))


def stepping(model, steps, **options):
    svi = SVI(model, normal_guide, Adam({"lr": 0.1}), seed=0, **options)
    history = []
    for i in range(steps):
        model.calls = i
        history.append(values(svi))
        svi.step(DATA)
    return svi, history


def test_a_loss_of_nan_stops_with_step_and_site_and_the_last_good_state():
    model = Breaking({3})
    svi = SVI(model, normal_guide, Adam({"lr": 0.1}), seed=0)
    states = []
    for i in range(3):
        model.calls = i
        states.append((values(svi), svi.state_dict()))
        svi.step(DATA)
    model.calls = 3
    with pytest.raises(InferenceError, match="SVI stopped at step 3") as error:
        svi.step(DATA)
    model.calls = 0
    assert "'y'" in error.value.got and "nan" in error.value.got
    assert "test_svi.py" in error.value.location
    # Step 2 was the last whose loss was finite: its parameters, draws and number are back.
    before, state = states[2]
    assert values(svi) == before and svi.num_steps == 2
    assert svi.state_dict()["generator"] == state["generator"]
    # And it goes on from there as if nothing had been.
    clean, history = stepping(Breaking(set()), 5)
    for i in range(2, 5):
        assert values(svi) == history[i]
        svi.step(DATA)
    assert values(svi) == values(clean)


def test_patience_passes_over_single_bad_steps():
    model = Breaking({2, 4})
    svi, history = stepping(model, 6, patience=2)
    assert history[3] == history[2] and history[5] == history[4] != history[3]
    assert svi.num_steps == 6


def test_patience_ends():
    with pytest.raises(InferenceError, match="stopped at step 3"):
        stepping(Breaking({2, 3}), 6, patience=2)


def test_without_patience_set_no_number_of_bad_steps_stops():
    svi, history = stepping(Breaking({1, 2, 3, 4, 5}), 6, patience=None)
    assert values(svi) == history[1] and svi.num_steps == 6


def test_a_gradient_of_nan_stops_before_the_parameters_move():
    def loss(model, guide):
        p = param("p", tensor([1.0, 0.0], dtype=F8))
        return (p * p).sum(0).sqrt() + (p[1] * p[1]).sqrt()

    svi = SVI(None, None, SGD({"lr": 0.1}), loss)
    with pytest.raises(InferenceError, match="gradient of parameter 'p'"):
        svi.step()
    np.testing.assert_array_equal(values(svi)["p"], [1.0, 0.0])


def test_a_parameter_that_runs_away_is_named():
    def model(y):
        scale = param("scale", tensor(1.0, dtype=F8))
        sample("y", Normal(0.0, scale), obs=y)

    # The loss is log(scale), so a step of 3 takes the scale from 1 to -2, which Normal refuses.
    svi = SVI(model, lambda y: None, SGD({"lr": 3.0}), seed=0)
    svi.step(tensor(0.0, dtype=F8))
    with pytest.raises(InferenceError, match="stopped at step 1") as error:
        svi.step(tensor(0.0, dtype=F8))
    assert isinstance(error.value.__cause__, DomainError)
    np.testing.assert_allclose(values(svi)["scale"], 1.0)


def test_what_is_wrong_from_the_start_is_said_as_it_is():
    def model():
        sample("x", Normal(0.0, param("scale", tensor(-1.0))))

    with pytest.raises(DomainError, match="scale"):
        SVI(model, lambda: sample("x", Normal(0.0, 1.0)), Adam({"lr": 0.1})).step()


def test_state_of_momentum_is_put_back_too():
    """A class optimizer, whose step counts and moments come into being at the first step."""
    model = Breaking({1})
    svi = SVI(model, normal_guide, Adam, seed=0, lr=0.1)
    svi.step(DATA)
    model.calls = 1
    with pytest.raises(InferenceError, match="step 1"):
        svi.step(DATA)
    model.calls = 0
    expected = SVI(Breaking(set()), normal_guide, Adam, seed=0, lr=0.1)
    for _ in range(3):
        svi.step(DATA)
        expected.step(DATA)
    assert values(svi) == values(expected)


def test_a_negative_patience_is_refused():
    with pytest.raises(ArgumentError, match="patience"):
        SVI(normal_model, normal_guide, Adam({"lr": 0.1}), patience=0)


def test_a_mistake_in_the_guide_is_not_taken_for_a_bad_loss():
    calls = []

    def guide(y):
        calls.append(1)
        if len(calls) < 4:  # a step that is recorded is also run on the array itself
            normal_guide(y)

    svi = SVI(normal_model, guide, Adam({"lr": 0.1}))
    with configure(check_gradients=False):  # it runs the guide more often
        svi.step(DATA)
    svi.step(DATA)
    with pytest.raises(ModelError, match="no site 'mu'"):
        svi.step(DATA)


# ------------------------------------------------------------------------------------------ runs


def test_ctrl_c_ends_the_run_after_the_step_and_keeps_everything():
    def interrupt(step, loss):
        if step == 4:
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    svi = SVI(normal_model, normal_guide, Adam({"lr": 0.1}), seed=0)
    result = svi.run(100, DATA, progress_bar=False, callback=interrupt)
    assert signal.getsignal(signal.SIGINT) is before
    assert result.interrupted and len(result.losses) == 5 == svi.num_steps
    other = SVI(normal_model, normal_guide, Adam({"lr": 0.1}), seed=0)
    whole = other.run(8, DATA, progress_bar=False)
    rest = svi.run(3, DATA, progress_bar=False)
    np.testing.assert_array_equal(np.concatenate([result.losses, rest.losses]), whole.losses)


def test_ctrl_c_twice_raises_at_once():
    def interrupt(step, loss):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    svi = SVI(normal_model, normal_guide, Adam({"lr": 0.1}), seed=0)
    with pytest.raises(KeyboardInterrupt):
        svi.run(10, DATA, progress_bar=False, callback=interrupt)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_callback_may_end_the_run():
    svi = SVI(normal_model, normal_guide, Adam({"lr": 0.1}), seed=0)
    result = svi.run(100, DATA, progress_bar=False, callback=lambda step, loss: step == 6)
    assert len(result.losses) == 7 and not result.interrupted


def test_no_steps_are_a_run_too():
    svi = SVI(normal_model, normal_guide, Adam({"lr": 0.1}), seed=0)
    assert len(svi.run(0, DATA).losses) == 0


@pytest.mark.parametrize("num_steps", [-1, 2.5, True, None])
def test_a_number_of_steps_that_is_none_is_refused(num_steps):
    with pytest.raises(ArgumentError, match="num_steps"):
        SVI(normal_model, normal_guide, Adam({"lr": 0.1})).run(num_steps, DATA)


def test_the_same_seed_gives_the_same_run():
    results = [
        SVI(normal_model, AutoNormal(normal_model), Adam({"lr": 0.1}), seed=3).run(
            5, DATA, progress_bar=False
        )
        for _ in range(2)
    ]
    np.testing.assert_array_equal(results[0].losses, results[1].losses)


@pytest.mark.parametrize("steps", [3, 40])
def test_the_same_seed_gives_the_same_random_initial_values(steps):
    """Of parameters, in both spellings, in eager steps and in compiled ones; and dropout."""

    def model():
        x = sample("x", Normal(probtorch.zeros(2), 1.0).to_event(1))
        kept = probtorch.nn.functional.dropout(x, 0.5)
        sample("y", Normal(kept.sum(), 1.0), obs=tensor(1.0))

    def guide():
        loc = param("loc", lambda: probtorch.randn(2))
        scale = param("scale", probtorch.rand(2) + 0.5, constraint=constraints.positive)
        sample("x", Normal(loc, scale).to_event(1))

    def fitted(seed):
        return SVI(model, guide, Adam({"lr": 0.05}), seed=seed).run(steps, progress_bar=False)

    first, again, other = fitted(3), fitted(3), fitted(4)
    np.testing.assert_array_equal(first.losses, again.losses)
    for name, value in first.params.items():
        np.testing.assert_array_equal(value.numpy(), again.params[name].numpy())
        assert (value.numpy() != other.params[name].numpy()).all()


def test_data_in_single_precision_are_lifted_for_a_precise_guide():
    """The loss of a point at the data does not lose what float32 would."""
    seen = []

    def model(y):
        mu = sample("mu", Normal(0.0, 1.0))
        seen.append((mu * y).dtype)
        with plate("data", 2):
            sample("y", Normal(mu, 1.0), obs=y)

    y = tensor([1.0, 2.0])
    SVI(model, AutoDelta(model), Adam({"lr": 0.1})).step(y)
    assert set(seen) == {F8}
    seen.clear()
    with configure(check_gradients=False):  # which takes place in double precision
        SVI(model, AutoDelta(model, dtype=probtorch.float32), Adam({"lr": 0.1})).step(y)
    assert set(seen) == {np.dtype("f4")}


def test_progress_shows_steps_and_a_smoothed_loss(capsys):
    with StepProgress(4, shown=True) as progress:
        progress._next = 0.0
        for loss in (8.0, 4.0, math.nan, 3.0):
            progress.update(loss)
    # 8, then (8 + 4) / 2, nothing for nan, then 6 + (3 - 6) / 4.
    assert "4/4 steps, loss 5.25," in progress.line()
    assert "4/4 steps" in capsys.readouterr().err


def test_progress_that_is_off_writes_nothing(capsys):
    SVI(normal_model, normal_guide, Adam({"lr": 0.1})).run(3, DATA, progress_bar=False)
    assert capsys.readouterr().err == ""


def test_a_deterministic_guide_site_needs_no_parameters_of_its_own():
    def model(y):
        mu = sample("mu", Normal(0.0, 1.0))
        sample("y", Normal(mu, param("noise", 1.0).exp()), obs=y)

    def guide(y):
        sample("mu", Delta(tensor(0.5)))

    svi = SVI(model, guide, Adam({"lr": 0.1}), seed=0)
    svi.step(tensor(1.0))
    assert list(svi.params) == ["noise"]


def test_a_network_that_nobody_stated_is_named():
    net = Linear(2, 1)
    x, y = probtorch.ones(5, 2), probtorch.ones(5)

    def mean(x):
        return net(x).squeeze(-1)

    def model(stated):
        if stated:
            module("net", net)
        scale = sample("scale", HalfNormal(1.0))
        with plate("row", 5):
            sample("y", Normal(mean(x), scale), obs=y)

    def fit(stated):
        svi = SVI(model, AutoNormal(model), Adam({"lr": 0.01}), seed=0)
        svi.step(stated)
        net.zero_grad()
        return svi.step(stated)

    fit(True)  # says nothing
    before = net.weight.detach().clone()
    with pytest.warns(InferenceWarning, match=r"(?s)not learned.*net.weight, net.bias.*module"):
        fit(False)
    np.testing.assert_array_equal(net.weight.detach().numpy(), before.numpy())
    net.requires_grad_(False)
    fit(False)


def test_a_guide_outside_of_the_plate_of_a_subsample_is_refused():
    def model():
        with plate("row", 20, subsample_size=5):
            sample("z", Normal(0.0, 1.0))

    def guide():
        sample("z", Normal(param("loc", 0.0), 1.0).expand([5]).to_event(1))

    with pytest.raises(ModelError, match=r"(?s)plate 'row' in the model only.*guide inside"):
        SVI(model, guide, Adam({"lr": 0.1})).step()


def test_a_guide_whose_draws_leave_the_support_is_told_where_to_draw_from():
    def model():
        sample("s", HalfNormal(1.0))

    def guide():
        sample("s", Normal(param("loc", 0.0), 1.0))

    svi = SVI(model, guide, Adam({"lr": 0.1}), seed=0)
    with pytest.raises(InferenceError, match="let the guide draw 's' from nonnegative"):
        svi.run(50, progress_bar=False)
