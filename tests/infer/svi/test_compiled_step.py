"""Compiled steps of SVI: the numbers of eager ones, step by step, draws included."""

import math

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch.config import configure
from probtorch.core.rng import Generator, default_generator
from probtorch.errors import InferenceError
from probtorch.infer import (
    CUBO,
    SVI,
    AutoDelta,
    AutoDiagonalNormal,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
    FDivergence,
    ImportanceWeightedELBO,
    RenyiELBO,
    Trace_ELBO,
    Trace_MMD,
    TraceGraph_ELBO,
    TraceMeanField_ELBO,
    TraceTailAdaptive_ELBO,
)
from probtorch.nn import BatchNorm1d, Dropout, Linear, Sequential, Softplus
from probtorch.optim import SGD, Adagrad, Adam, AdamW, ClippedAdam, PyroLRScheduler, RMSprop
from probtorch.optim.lr_scheduler import ExponentialLR
from probtorch.tensor import tensor

STEPS = 50
RNG = np.random.default_rng(0)
Y = tensor(RNG.standard_normal(12) + 1.0)
X = tensor(RNG.standard_normal((12, 3)))


def regression(x, y):
    beta = probtorch.sample("beta", dist.Normal(probtorch.zeros(3), 1.0).to_event(1))
    sigma = probtorch.sample("sigma", dist.HalfNormal(1.0))
    with probtorch.plate("rows", len(y)):
        probtorch.sample("y", dist.Normal(x @ beta, sigma), obs=y)


def any_number_at_once(x, y):
    """`regression`, written for particles in dims at the left."""
    beta = probtorch.sample("beta", dist.Normal(probtorch.zeros(3), 1.0).to_event(1))
    sigma = probtorch.sample("sigma", dist.HalfNormal(1.0))
    with probtorch.plate("rows", len(y)):
        probtorch.sample("y", dist.Normal((x * beta).sum(-1), sigma), obs=y)


def coins(x, y):
    p = probtorch.sample("p", dist.Beta(2.0, 2.0))
    with probtorch.plate("rows", len(y)):
        probtorch.sample("heads", dist.Bernoulli(p), obs=(y > 0.0).double())


def coins_guide(x, y):
    loc = probtorch.param("loc", tensor(0.1, dtype=probtorch.float64))
    half = tensor(0.5, dtype=probtorch.float64)
    scale = probtorch.param("scale", half, constraint=dist.constraints.positive)
    base = dist.Normal(loc, scale)
    probtorch.sample("p", dist.TransformedDistribution(base, dist.transforms.SigmoidTransform()))


def trajectory(make, jit, steps=STEPS, batches=None):
    """Losses and parameters of an SVI made by `make`, taken step by step."""
    default_generator.manual_seed(3)
    svi = make()
    schedule = getattr(svi, "schedule", None)
    with configure(jit=jit):
        losses = []
        for i in range(steps):
            losses.append(svi.step(*(batches[i % len(batches)] if batches else (X, Y))))
            if schedule is not None:
                schedule.step()
    return svi, losses, {n: p.numpy() for n, p in svi.get_params().items()}


def assert_same(make, *, batches=None, paths=1):
    mine, losses, params = trajectory(make, True, batches=batches)
    _, eager_losses, eager_params = trajectory(make, False, batches=batches)
    assert mine.compiled.reason is None
    assert len(mine.compiled._function.paths) == paths
    np.testing.assert_allclose(losses, eager_losses, rtol=1e-10, atol=1e-10)
    assert list(params) == list(eager_params)
    for name, value in params.items():
        np.testing.assert_allclose(value, eager_params[name], rtol=1e-10, atol=1e-10)


GUIDES = [AutoNormal, AutoMultivariateNormal, AutoLowRankMultivariateNormal, AutoDelta]


@pytest.mark.parametrize("guide", GUIDES)
def test_automatic_guides(guide):
    assert_same(lambda: SVI(regression, guide(regression), Adam({"lr": 0.05}), seed=1))


OPTIMIZERS = {
    "adam": lambda: Adam({"lr": 0.05}),
    "sgd": lambda: SGD({"lr": 1e-3, "momentum": 0.9}),
    "adamw": lambda: AdamW({"lr": 0.05}),
    "rmsprop": lambda: RMSprop({"lr": 0.01}),
    "adagrad": lambda: Adagrad({"lr": 0.1}),
    "clipped": lambda: ClippedAdam({"lr": 0.05, "lrd": 0.9, "clip_norm": 1.0}),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name):
    make = OPTIMIZERS[name]
    assert_same(lambda: SVI(regression, AutoNormal(regression), make(), seed=1))


OBJECTIVES = {
    "particles": lambda: Trace_ELBO(num_particles=3),
    "vectorised": lambda: Trace_ELBO(num_particles=3, vectorize_particles=True),
    "mean field": TraceMeanField_ELBO,
    "graph": TraceGraph_ELBO,
    "renyi": lambda: RenyiELBO(alpha=0.5, num_particles=3),
    "mmd": lambda: Trace_MMD(num_particles=2),
    "tail adaptive": lambda: TraceTailAdaptive_ELBO(num_particles=3),
    "divergence": lambda: FDivergence("jensen_shannon", num_particles=3),
    "upper bound": lambda: CUBO(num_particles=3),
}


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_objectives(objective):
    def make():
        return SVI(coins, coins_guide, Adam({"lr": 0.05}), OBJECTIVES[objective](), seed=1)

    assert_same(make)


def mixture(x, y):
    switch = probtorch.sample("switch", dist.Bernoulli(tensor(0.4, dtype=probtorch.float64)))
    with probtorch.plate("rows", len(y)):
        k = probtorch.sample("k", dist.Categorical(tensor(np.array([0.3, 0.3, 0.4]))))
        probtorch.sample("y", dist.Normal(k.double() - switch, 1.0), obs=y)


def mixture_guide(x, y):
    logit = probtorch.param("logit", tensor(0.1, dtype=probtorch.float64))
    logits = probtorch.param("logits", probtorch.zeros(len(y), 3, dtype=probtorch.float64))
    with probtorch.plate("rows", len(y)):
        probtorch.sample("k", dist.Categorical(logits=logits))
    probtorch.sample("switch", dist.Bernoulli(logits=logit))


SCORED = {
    "single": Trace_ELBO,
    "graph": TraceGraph_ELBO,
    "importance": lambda **options: RenyiELBO(0.0, **options),
    "upper": lambda **options: RenyiELBO(2.0, **options),
    "standard": lambda **options: ImportanceWeightedELBO(gradient="standard", **options),
    "vimco": lambda **options: ImportanceWeightedELBO(gradient="vimco", **options),
}


@pytest.mark.parametrize("at_once", [False, True], ids=["in turn", "at once"])
@pytest.mark.parametrize("objective", SCORED)
def test_draws_without_pathwise_gradients(objective, at_once):
    def make():
        bound = SCORED[objective](num_particles=3, vectorize_particles=at_once)
        return SVI(mixture, mixture_guide, Adam({"lr": 0.05}), bound, seed=1)

    assert_same(make)


def network_parts():
    encoder = Sequential(Linear(3, 8, dtype=probtorch.float64), Softplus())
    encoder.append(Linear(8, 4, dtype=probtorch.float64))
    decoder = Sequential(Linear(2, 8, dtype=probtorch.float64), Softplus())
    decoder.append(Linear(8, 3, dtype=probtorch.float64))

    def model(x):
        with probtorch.plate("rows", len(x)):
            zero = probtorch.zeros(len(x), 2, dtype=probtorch.float64)
            z = probtorch.sample("z", dist.Normal(zero, 1.0).to_event(1))
            probtorch.sample("x", dist.Normal(decoder(z), 0.5).to_event(1), obs=x)

    def guide(x):
        with probtorch.plate("rows", len(x)):
            h = encoder(x)
            q = dist.Normal(h[..., :2], h[..., 2:].exp())
            probtorch.sample("z", q.to_event(1))

    return model, guide, [*encoder.parameters(), *decoder.parameters()], encoder


def autoencoder(schedule=False, extra=None):
    default_generator.manual_seed(11)
    model, guide, parameters, encoder = network_parts()
    if extra is not None:
        encoder.insert(0, extra())
    optimizer = Adam(parameters, lr=0.01)
    svi = SVI(model, guide, optimizer, seed=2)
    if schedule:
        svi.schedule = ExponentialLR(optimizer, 0.9)
    return svi


def test_networks_with_a_learning_rate_schedule():
    assert_same(lambda: autoencoder(schedule=True), batches=[(X,)])


def test_minibatches_of_each_shape_have_a_path():
    batches = [(X[:5],), (X[5:10],), (X[10:],)]
    assert_same(autoencoder, batches=batches, paths=2)


def test_dropout_draws_anew_at_each_step():
    assert_same(lambda: autoencoder(extra=lambda: Dropout(0.3)), batches=[(X,)])


def test_running_averages_of_batch_normalisation_move():
    def run(jit):
        svi, *_ = trajectory(
            lambda: autoencoder(
                extra=lambda: BatchNorm1d(3, affine=False, dtype=probtorch.float64)
            ),
            jit,
            batches=[(X,)],
        )
        norm = svi.guide.__closure__[0].cell_contents[0]
        return norm.running_mean.numpy(), norm.num_batches_tracked.item()

    (mine, count), (eager, eager_count) = run(True), run(False)
    np.testing.assert_allclose(mine, eager, rtol=1e-10)
    assert count == eager_count == STEPS


def test_a_branch_on_a_draw_has_two_paths():
    def model(x, y):
        a = probtorch.sample("a", dist.Normal(tensor(0.0, dtype=probtorch.float64), 1.0))
        scale = 1.0 if a > 0.3 else 2.0
        with probtorch.plate("rows", len(y)):
            probtorch.sample("y", dist.Normal(a, scale), obs=y)

    def guide(x, y):
        loc = probtorch.param("loc", tensor(0.0, dtype=probtorch.float64))
        probtorch.sample("a", dist.Normal(loc, 1.0))

    assert_same(lambda: SVI(model, guide, Adam({"lr": 0.02}), seed=4), paths=2)


def test_numpy_data_are_compiled_too():
    arrays = [(X.numpy(), Y.numpy())]
    assert_same(
        lambda: SVI(regression, AutoNormal(regression), Adam({"lr": 0.05}), seed=1), batches=arrays
    )


def test_a_loss_function_of_the_users_is_compiled():
    def loss(model, guide, *args):
        return Trace_ELBO().differentiable_loss(model, guide, *args) * 2.0

    assert_same(lambda: SVI(coins, coins_guide, Adam({"lr": 0.02}), loss, seed=5))


def test_many_native_steps_are_the_single_ones():
    def make():
        return SVI(regression, AutoNormal(regression), Adam({"lr": 0.05}), seed=1)

    one = make()
    together = one.run(300, X, Y, progress_bar=False)
    alone = make()
    losses = [alone.step(X, Y) for _ in range(300)]
    assert together.losses.tolist() == losses
    assert one.num_steps == 300
    assert one.generator.get_state() == alone.generator.get_state()
    for name, value in one.get_params().items():
        assert value.tolist() == alone.get_params()[name].tolist()


class _Heavier(Trace_ELBO):
    """Computes its own gradients: those of ten times the loss."""

    def loss_and_grads(self, model, guide, *args, **kwargs):
        return 10.0 * super().loss_and_grads(model, guide, *args, **kwargs)


def _swap_method(svi):
    whole = svi.objective.loss_and_grads
    svi.objective.loss_and_grads = lambda *args, **kwargs: 10.0 * whole(*args, **kwargs)


def _swap_step(svi):
    whole = svi.loss_and_grads
    svi.loss_and_grads = lambda *args, **kwargs: 10.0 * whole(*args, **kwargs)


@pytest.mark.parametrize(
    "change",
    [lambda svi: setattr(svi, "objective", _Heavier()), _swap_method, _swap_step],
    ids=["objective", "method of the objective", "method of svi"],
)
def test_a_loss_that_computes_itself_is_asked_from_then_on(change):
    runs = []
    for jit in (True, False):
        svi = SVI(regression, AutoNormal(regression), Adam({"lr": 0.05}), seed=1)
        with configure(jit=jit):
            runs.append([svi.step(X, Y) for _ in range(4)])
            change(svi)
            runs[-1] += [svi.step(X, Y) for _ in range(4)]
    np.testing.assert_allclose(*runs, rtol=1e-10)


def test_a_learning_rate_changed_in_place_counts():
    runs = []
    for jit in (True, False):
        svi = SVI(regression, AutoNormal(regression), Adam({"lr": 0.05}), seed=1)
        with configure(jit=jit):
            svi.step(X, Y)
            rate = np.array(0.3)
            for optimizer in svi.updater.optimizers():
                optimizer.param_groups[0]["lr"] = rate
            runs.append([svi.step(X, Y) for _ in range(3)])
            rate[...] = 0.01
            runs[-1] += [svi.step(X, Y) for _ in range(3)]
    np.testing.assert_allclose(*runs, rtol=1e-10)


def test_a_frozen_parameter_leaves_steps_compiled():
    runs = []
    for jit in (True, False):
        net = Sequential(Linear(3, 4), Softplus(), Linear(4, 1))

        def model(x, y, net=net):
            probtorch.module("net", net)
            with probtorch.plate("rows", len(y)):
                mean = net(x.float()).squeeze(-1)
                probtorch.sample("y", dist.Normal(mean, 1.0), obs=y.float())

        default_generator.manual_seed(5)
        for p in net.parameters():
            p.data.copy_(tensor(np.full(p.shape, 0.1, np.float32)))
        svi = SVI(model, lambda x, y: None, Adam({"lr": 0.05}), seed=1)
        with configure(jit=jit):
            runs.append([svi.step(X, Y) for _ in range(3)])
            net[0].weight.requires_grad_(False)
            before = net[0].weight.tolist()
            runs[-1] += [svi.step(X, Y) for _ in range(3)]
            assert net[0].weight.tolist() == before
            net[0].weight.requires_grad_(True)
            runs[-1] += [svi.step(X, Y) for _ in range(3)]
        if jit:
            assert "compiled path" in svi.explain()
    np.testing.assert_allclose(*runs, rtol=1e-5)


KINDS = {
    "plain": Trace_ELBO,
    "vectorised": lambda: Trace_ELBO(num_particles=4, vectorize_particles=True),
    "importance": lambda: RenyiELBO(num_particles=4, vectorize_particles=True),
    "mean field": TraceMeanField_ELBO,
}


@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize("later", KINDS)
@pytest.mark.parametrize("first", KINDS)
def test_an_objective_may_be_swapped_in_the_middle(first, later, seed):
    runs = []
    for jit in (True, False):
        default_generator.manual_seed(3)
        model, guide = any_number_at_once, AutoNormal(any_number_at_once)
        svi = SVI(model, guide, Adam({"lr": 0.05}), KINDS[first](), seed=seed)
        with configure(jit=jit):
            runs.append([svi.step(X, Y) for _ in range(4)])
            svi.objective = KINDS[later]()
            runs[-1] += [svi.step(X, Y) for _ in range(4)]
        if jit:
            assert svi.explain().startswith("SVI.step: 2 compiled paths")
    np.testing.assert_allclose(*runs, rtol=1e-10)


@pytest.mark.parametrize("objective", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("at", [1, 2, 5, 20])
def test_a_resumed_run_goes_on_bit_for_bit(at, objective):
    def make():
        model, guide = any_number_at_once, AutoNormal(any_number_at_once)
        return SVI(model, guide, Adam({"lr": 0.05}), objective(), seed=1)

    whole = make()
    losses = [whole.step(X, Y) for _ in range(30)]
    first = make()
    for _ in range(at):
        first.step(X, Y)
    second = make()
    second.load_state_dict(first.state_dict())
    assert [second.step(X, Y) for _ in range(30 - at)] == losses[at:]


@pytest.mark.filterwarnings("ignore:SVI.step runs eagerly")
@pytest.mark.parametrize("optimizer", [Adam, SGD, RMSprop, Adagrad])
def test_a_resumed_run_of_steps_that_cannot_be_compiled_goes_on_bit_for_bit(optimizer):
    # A step taken while recording rounds otherwise than an eager one (sums of 300 terms show it).
    def by_complex_numbers():
        beta = probtorch.sample("beta", dist.Gamma(2.0, 1.0).expand([300]).to_event(1))
        turned = probtorch.exp(beta.to(probtorch.complex64) * 1j)
        probtorch.factor("turned", turned.real.sum())

    def make():
        model = by_complex_numbers
        return SVI(model, AutoDiagonalNormal(model), optimizer({"lr": 0.01}), seed=1)

    whole = make()
    losses = [whole.step() for _ in range(8)]
    assert "eagerly" in whole.explain()
    first = make()
    for _ in range(3):
        first.step()
    second = make()
    second.load_state_dict(first.state_dict())
    assert [second.step() for _ in range(5)] == losses[3:]


@pytest.mark.filterwarnings("ignore:SVI.step runs eagerly")
@pytest.mark.parametrize("at", [1, 2, 3, 9, 10, 12])
def test_a_resumed_run_whose_model_reads_a_constant_that_changes_goes_on_bit_for_bit(at):
    # After as many changes in a row as are compiled, steps are eager, in either run from the same
    # one on; sums of 300 terms show which steps are.
    annealed = {"weight": 0.1}

    def model():
        beta = probtorch.sample("beta", dist.Gamma(2.0, 1.0).expand([300]).to_event(1))
        weight = math.sqrt(annealed["weight"])  # of no tensor: it has to be a constant
        probtorch.factor("turned", weight * probtorch.log1p(probtorch.exp(beta)).sum())

    def make():
        return SVI(model, AutoDiagonalNormal(model), Adam({"lr": 0.01}), seed=1)

    def step(svi, k):
        annealed["weight"] = 0.1 + 0.05 * k
        return svi.step()

    whole, first, second = make(), make(), make()
    losses = [step(whole, k) for k in range(16)]
    assert "has changed ahead of" in whole.explain()
    for k in range(at):
        step(first, k)
    second.load_state_dict(first.state_dict())
    assert [step(second, k) for k in range(at, 16)] == losses[at:]
    assert second.state_dict()["changes"] == whole.state_dict()["changes"]


@pytest.mark.parametrize("kind", ["entry", "variable", "argument"])
@pytest.mark.parametrize("at", [1, 2, 3, 9])
def test_a_resumed_run_whose_model_reads_a_number_that_changes_goes_on_bit_for_bit(at, kind):
    # Powers are other native code where exponents are constants.
    annealed, power = {"power": 1.5}, 1.5

    def model(given):
        beta = probtorch.sample("beta", dist.Gamma(2.0, 1.0).expand([300]).to_event(1))
        by = {"entry": annealed["power"], "variable": power, "argument": given}[kind]
        probtorch.factor("turned", -(beta**by).sum())

    def make():
        return SVI(model, AutoDiagonalNormal(model), Adam({"lr": 0.01}), seed=1)

    def step(svi, k):
        nonlocal power
        annealed["power"] = power = (1.5, 1.5, 2.0, 2.5, 2.0)[min(k // 2, 4)]
        return svi.step(power)

    whole, first, second = make(), make(), make()
    losses = [step(whole, k) for k in range(14)]
    with probtorch.configure(jit=False):
        eager = make()
        assert [step(eager, k) for k in range(14)] == pytest.approx(losses, rel=1e-5)
    assert whole.explain().splitlines()[0] == "SVI.step: 3 compiled paths"
    assert whole.state_dict()["inputs"]
    for k in range(at):
        step(first, k)
    second.load_state_dict(first.state_dict())
    assert [step(second, k) for k in range(at, 14)] == losses[at:]


@pytest.mark.parametrize("native", ["step", "run"])
def test_a_loss_that_is_not_finite_restores_the_last_good_state(native):
    hurdle = tensor(np.array(0.0))

    def model(x, y):
        a = probtorch.sample("a", dist.Normal(tensor(0.0, dtype=probtorch.float64), 1.0))
        probtorch.factor("far", (2.0 - a - hurdle).log())

    def guide(x, y):
        loc = probtorch.param("loc", tensor(0.0, dtype=probtorch.float64))
        probtorch.sample("a", dist.Normal(loc, 0.01))

    svi = SVI(model, guide, Adam({"lr": 0.05}), seed=0)
    for _ in range(10):
        svi.step(X, Y)
    reference = svi.state_dict()
    svi.step(X, Y)
    hurdle.fill_(10.0)
    assert svi.explain().startswith("SVI.step: 1 compiled path")
    with pytest.raises(InferenceError, match=r"stopped at step 11.*before step 10") as caught:
        svi.step(X, Y) if native == "step" else svi.run(5, X, Y, progress_bar=False)
    assert "far" in str(caught.value)
    now = svi.state_dict()
    assert now["num_steps"] == 10
    assert now["generator"] == reference["generator"]
    for name, value in reference["updater"]["params"].items():
        assert now["updater"]["params"][name].tolist() == value.tolist()


def test_the_last_good_state_after_many_native_steps_is_one_step_back():
    limit = tensor(np.array(1.0))

    def model(x, y):
        a = probtorch.sample("a", dist.Normal(tensor(5.0, dtype=probtorch.float64), 1.0))
        probtorch.factor("wall", (limit - a).log())

    def guide(x, y):
        loc = probtorch.param("loc", tensor(0.0, dtype=probtorch.float64))
        probtorch.sample("a", dist.Normal(loc, 0.2))

    def make():
        return SVI(model, guide, SGD({"lr": 0.01}), seed=3)

    svi, single = make(), make()
    with pytest.raises(InferenceError, match="stopped at step"):
        svi.run(5000, X, Y, progress_bar=False)
    with pytest.raises(InferenceError, match="stopped at step"):
        single.run(5000, X, Y, progress_bar=False, callback=lambda step, loss: None)
    assert svi.num_steps == single.num_steps > 5
    assert svi.generator.get_state() == single.generator.get_state()
    assert svi.get_params()["loc"].item() == single.get_params()["loc"].item()


def test_explain_says_why_a_step_is_eager():
    def loss_and_grads(model, guide, *args):
        return Trace_ELBO().loss_and_grads(model, guide, *args)

    svi = SVI(coins, coins_guide, Adam({"lr": 0.02}), None, loss_and_grads, seed=5)
    for _ in range(3):
        svi.step(X, Y)
    assert svi.explain() == "SVI.step runs eagerly: loss_and_grads= was given"


def test_another_generator_of_the_same_seed_draws_the_same():
    one = SVI(coins, coins_guide, Adam({"lr": 0.02}), seed=Generator(5))
    two = SVI(coins, coins_guide, Adam({"lr": 0.02}), seed=5)
    assert [one.step(X, Y) for _ in range(5)] == [two.step(X, Y) for _ in range(5)]


def test_an_optimizer_that_is_given_more_parameters_moves_them():
    extra = tensor(1.0, dtype=probtorch.float64, requires_grad=True)
    late = tensor(1.0, dtype=probtorch.float64, requires_grad=True)

    def model(x, y):
        probtorch.factor("loss", -((extra * late - 3.0) ** 2))

    def guide(x, y):
        pass

    optimizer = Adam([extra], lr=0.01)
    svi = SVI(model, guide, optimizer, seed=0)
    for _ in range(5):
        svi.step(X, Y)
    assert late.item() == 1.0
    optimizer.add_param_group({"params": [late], "lr": 0.1})
    for _ in range(5):
        svi.step(X, Y)
    assert late.item() == pytest.approx(1.5, abs=0.05)


def test_a_model_put_in_the_place_of_another_is_the_one_that_steps_use():
    def model(loc):
        def found():
            probtorch.sample("z", dist.Normal(loc, 1.0))

        return found

    def guide():
        probtorch.sample("z", dist.Normal(probtorch.param("loc", tensor(0.0)), 1.0))

    def losses(jit):
        with configure(jit=jit):
            svi = SVI(model(0.0), guide, SGD, probtorch.infer.Trace_ELBO(), seed=0, lr=0.1)
            before = [svi.step() for _ in range(4)]
            svi.model = model(5.0)
            return before + [svi.step() for _ in range(4)]

    assert losses(True) == pytest.approx(losses(False), abs=1e-5)


def test_steps_of_a_schedule_need_no_other_path():
    schedule = {"optimizer": Adam, "optim_args": {"lr": 0.05}, "gamma": 0.9}

    def losses(jit):
        optim = PyroLRScheduler(ExponentialLR, schedule)
        svi = SVI(regression, AutoNormal(regression), optim, Trace_ELBO(), seed=0)
        found = []
        with configure(jit=jit):
            for _ in range(12):
                found.append(svi.step(X, Y))
                optim.step()
        return svi, found

    svi, found = losses(True)
    assert len(svi.compiled._function.paths) == 1
    np.testing.assert_allclose(found, losses(False)[1], rtol=1e-9)
