"""Optimisation on minibatches: plates with loaders, plates with subsamples, loops by hand."""

import contextlib
import copy
import itertools

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch import config, nn
from probtorch.effects import get_param_store, handlers, module, param, plate, sample, subsample
from probtorch.errors import InferenceError, ModelError
from probtorch.infer import (
    SVI,
    AutoDelta,
    AutoMultivariateNormal,
    AutoNormal,
    RenyiELBO,
    Trace_ELBO,
    TraceEnum_ELBO,
    TraceGraph_ELBO,
    TraceMeanField_ELBO,
)
from probtorch.optim import LBFGS, SGD, Adam
from probtorch.testing import assert_close
from probtorch.utils.data import DataLoader, IterableDataset, TensorDataset


@pytest.fixture(autouse=True)
def unchecked():
    """These tests count the runs of models; the check of gradients would add some."""
    with config.configure(check_gradients=False):
        yield


RNG = np.random.default_rng(3)
X = RNG.normal(size=(10, 2))
Y = X @ np.array([1.0, -2.0]) + 0.3 * RNG.normal(size=10)
# Names the rows, to see which ones a step worked on.
ROWS = np.arange(10.0)


def loader_of(*arrays, seed=7, **options):
    tensors = [probtorch.tensor(a) for a in arrays]
    options = {"batch_size": 4, "shuffle": True} | options
    return DataLoader(TensorDataset(*tensors), generator=probtorch.Generator(seed), **options)


def regression(loader, seen=None):
    """A model of a loader's batches of x, y and row numbers, which are noted in `seen`."""

    def model():
        w = sample("w", dist.Normal(probtorch.zeros(2), 1.0).to_event(1))
        with plate("data", loader) as (x, y, rows):
            if seen is not None:
                seen.append(rows.tolist())
            sample("y", dist.Normal(x @ w, 0.5), obs=y)

    return model


def svi_of(loader, seen=None, guide=AutoNormal, lr=0.05, **options):
    model = regression(loader, seen)
    return SVI(model, guide(model), Adam({"lr": lr}), Trace_ELBO(**options), seed=0)


# ------------------------------------------------------------------------------------- unbiased


def point(name="loc"):
    """The value of w that guides below put all their mass on."""
    return param(name, probtorch.tensor([0.3, -0.4], dtype=probtorch.float64))


def guide(*args):
    sample("w", dist.Delta(point(), event_dim=1))


def gradient_of(model, *args):
    """Loss and gradient of the point `loc`."""
    store = probtorch.effects.ParamStore()
    with store.activate():
        loss = Trace_ELBO().loss_and_grads(model, guide, *args)
    return np.array([loss, *store.unconstrained("loc").grad.numpy()])


def exact_gradient(x=X, y=Y):
    """The same in closed form, for all rows."""
    w = np.array([0.3, -0.4])
    error = (y - x @ w) / 0.5
    loss = 0.5 * (w @ w) + np.log(2 * np.pi)
    loss += 0.5 * (error @ error) + len(y) * (np.log(0.5) + 0.5 * np.log(2 * np.pi))
    return np.array([loss, *(w - error @ x / 0.5)])


def by_rows(rows):
    w = sample("w", dist.Normal(probtorch.zeros(2, dtype=probtorch.float64), 1.0).to_event(1))
    with plate("data", 10, subsample=probtorch.tensor(rows)) as i:
        sample("y", dist.Normal(probtorch.tensor(X)[i] @ w, 0.5), obs=probtorch.tensor(Y)[i])


@pytest.mark.parametrize("size", [1, 2, 3])
def test_gradient_is_unbiased_over_all_subsamples(size):
    subsets = list(itertools.combinations(range(10), size))
    found = np.mean([gradient_of(by_rows, rows) for rows in subsets], axis=0)
    assert_close(found, exact_gradient(), rtol=1e-12)


def test_gradient_is_unbiased_over_all_subsamples_of_nested_plates():
    data = np.random.default_rng(1).normal(size=(3, 4))

    def model(inner, outer):
        w = sample("w", dist.Normal(probtorch.zeros(2, dtype=probtorch.float64), 1.0).to_event(1))
        with plate("outer", 4, subsample=probtorch.tensor(outer)) as j:
            sample("a", dist.Normal(w[0], 1.0), obs=probtorch.tensor(data[0])[j])
            with plate("inner", 3, subsample=probtorch.tensor(inner)) as i:
                y = probtorch.tensor(data)[i[:, None], j]
                sample("y", dist.Normal(w[1], 1.0), obs=y)

    pairs = itertools.product(
        itertools.combinations(range(3), 2), itertools.combinations(range(4), 2)
    )
    found = np.mean([gradient_of(model, *pair) for pair in pairs], axis=0)
    w = np.array([0.3, -0.4])
    loss = 0.5 * (w @ w) + 9.0 * np.log(2 * np.pi)
    loss += 0.5 * ((data[0] - w[0]) ** 2).sum() + 0.5 * ((data - w[1]) ** 2).sum()
    slope = w - np.array([(data[0] - w[0]).sum(), (data - w[1]).sum()])
    assert_close(found, [loss, *slope], rtol=1e-12)


def test_steps_of_an_epoch_of_equal_batches_average_to_the_full_gradient():
    loader, found = loader_of(X, Y, ROWS, batch_size=5), []
    svi = SVI(regression(loader), guide, SGD({"lr": 0.0}), Trace_ELBO())

    def gradients(model, guide):
        loss = svi.objective.loss_and_grads(model, guide)
        found.append([loss, *get_param_store().unconstrained("loc").grad.numpy()])
        return loss

    svi = SVI(svi.model, guide, SGD({"lr": 0.0}), Trace_ELBO(), loss_and_grads=gradients)
    svi.run(4, progress_bar=False)
    assert_close(np.mean(found[:2], axis=0), exact_gradient(), rtol=1e-6)
    assert_close(np.mean(found[2:], axis=0), exact_gradient(), rtol=1e-6)


def test_scale_follows_a_short_last_batch():
    loader = loader_of(X, Y, ROWS)
    svi = svi_of(loader)
    scales = []

    def watched():
        tr = probtorch.handlers.trace(regression(loader)).get_trace()
        scales.append((tr["y"].scale, len(tr["y"].value)))

    svi.model = watched
    svi.objective = lambda model, guide: (model(), 0.0 * point("p").sum())[1]
    for _ in range(4):
        svi.step()
    assert scales == [(2.5, 4), (2.5, 4), (5.0, 2), (2.5, 4)]


# ------------------------------------------------------------------------------ batches by step


def test_an_epoch_has_every_row_once_and_epochs_differ():
    seen = []
    svi = svi_of(loader_of(X, Y, ROWS), seen, num_particles=1)
    with config.configure(jit=False):
        svi.run(6, progress_bar=False)
    # The guide runs the model twice when it meets it; those saw the batch of the first step.
    setup, steps = seen[:2], seen[2:]
    assert setup == [steps[0]] * 2
    epochs = steps[:3], steps[3:]
    for epoch in epochs:
        assert sorted(itertools.chain(*epoch)) == ROWS.tolist()
    assert epochs[0] != epochs[1]


def test_model_guide_and_particles_of_a_step_see_one_batch():
    seen = []
    loader = loader_of(X, Y, ROWS)
    model = regression(loader, seen)

    def amortised():
        loc = param("loc", probtorch.zeros(2, dtype=probtorch.float64))
        with plate("data", loader) as (_, _, rows):
            seen.append(rows.tolist())
        sample("w", dist.Normal(loc, 1.0).to_event(1))

    svi = SVI(model, amortised, Adam({"lr": 0.1}), Trace_ELBO(num_particles=3), seed=0)
    with config.configure(jit=False):
        svi.run(3, progress_bar=False)
    assert len(seen) == 3 * 6
    for step in range(3):
        assert seen[6 * step : 6 * step + 6] == [seen[6 * step]] * 6
    assert len({tuple(rows) for rows in seen}) == 3


def test_an_optimizer_that_asks_again_gets_the_same_batch():
    seen = []
    model = regression(loader_of(X, Y, ROWS), seen)
    svi = SVI(model, guide, LBFGS, Trace_ELBO(), lr=0.5, max_iter=4)
    for _ in range(2):
        svi.step()
    runs = [list(group) for _, group in itertools.groupby(seen)]
    assert len(runs) == 2
    assert min(len(run) for run in runs) > 2


def test_evaluation_sees_the_batch_of_the_step_to_come():
    seen = []
    svi = svi_of(loader_of(X, Y, ROWS), seen)
    svi.step()
    first = seen[-1]
    svi.evaluate_loss()
    second = seen[-1]
    svi.evaluate_loss()
    assert seen[-1] == second != first
    with config.configure(jit=False):
        svi.step()
    assert seen[-1] == second
    svi.evaluate_loss()
    assert seen[-1] != second


@pytest.mark.filterwarnings("ignore:SVI.step runs eagerly")
def test_data_held_out_go_by_as_they_are_evaluated_and_leave_the_steps_alone():
    train, held_out, seen = loader_of(X, Y, ROWS), loader_of(X, Y, ROWS, shuffle=False), []

    def model(loader):
        w = sample("w", dist.Normal(probtorch.zeros(2), 1.0).to_event(1))
        with plate("data", loader) as (x, y, rows):
            seen.append(rows.tolist())
            sample("y", dist.Normal(x @ w, 0.5), obs=y)

    def make():
        train.load_state_dict(begin)
        return SVI(model, AutoNormal(model), Adam({"lr": 0.02}), Trace_ELBO(), seed=0)

    begin = train.state_dict()
    losses = make().run(7, train, progress_bar=False).losses
    svi, found, evaluated = make(), [], []
    for step in range(7):
        found.append(svi.step(train))
        state = svi.generator.get_state()
        svi.evaluate_loss(held_out)
        svi.generator.set_state(state)
        evaluated.append(seen[-1])
        if step == 3:
            svi.load_state_dict(svi.state_dict())
    assert np.array_equal(found, losses)
    epoch = [[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0], [8.0, 9.0]]
    assert evaluated[:4] == [*epoch, epoch[0]]


def test_a_run_may_go_on_with_another_loader():
    first, second, seen = loader_of(X, Y, ROWS, shuffle=False), loader_of(X, Y, ROWS, seed=1), []

    def model(loader):
        w = sample("w", dist.Normal(probtorch.zeros(2), 1.0).to_event(1))
        with plate("data", loader) as (x, y, rows):
            seen.append(rows.tolist())
            sample("y", dist.Normal(x @ w, 0.5), obs=y)

    svi = SVI(model, AutoNormal(model), Adam({"lr": 0.02}), Trace_ELBO(), seed=0)
    with config.configure(jit=False):
        svi.run(2, first, progress_bar=False)
        svi.run(4, second, progress_bar=False)
        assert svi.state_dict()["loaders"]["data"]["generators"][0][0] == 1
        svi.run(1, first, progress_bar=False)
    assert sorted(itertools.chain(*seen[4:7])) == ROWS.tolist()
    # The first one goes on with the rest of its epoch.
    assert seen[-1] == [8.0, 9.0]


def test_steps_on_another_loader_are_compiled_anew():
    def make():
        loaders = [loader_of(X, Y, ROWS, seed=s, batch_size=5) for s in (1, 2)]
        current = []

        def model():
            w = sample("w", dist.Normal(probtorch.zeros(2), 1.0).to_event(1))
            with plate("data", current[0]) as (x, y, _):
                sample("y", dist.Normal(x @ w, 0.5), obs=y)

        svi = SVI(model, AutoNormal(model), Adam({"lr": 0.02}), Trace_ELBO(), seed=0)
        losses = []
        for loader in loaders:
            current[:] = [loader]
            losses += svi.run(8, progress_bar=False).losses.tolist()
        return svi, losses

    svi, losses = make()
    assert "2 compiled paths" in svi.explain()
    with config.configure(jit=False):
        assert_close(make()[1], losses, rtol=1e-9)


def test_steps_are_compiled_and_the_same_as_eager_ones():
    eager, native = (svi_of(loader_of(X, Y, ROWS), lr=0.02) for _ in range(2))
    with config.configure(jit=False):
        losses = eager.run(40, progress_bar=False).losses
    assert_close(native.run(40, progress_bar=False).losses, losses, rtol=1e-9)
    # One path for batches of 4 rows, one for the short last one.
    assert "2 compiled paths" in native.explain()


@pytest.mark.parametrize("rows", [10, 5000])
def test_steps_on_random_subsamples_are_compiled_and_the_same_as_eager_ones(rows):
    x = probtorch.tensor(np.resize(X, (rows, 2)))

    def model():
        w = sample("w", dist.Normal(probtorch.zeros(2), 1.0).to_event(1))
        with plate("data", rows, subsample_size=3) as i:
            sample("y", dist.Normal(x[i] @ w, 0.5), obs=x[i][:, 0])

    eager, native = (
        SVI(model, AutoNormal(model), Adam({"lr": 0.02}), Trace_ELBO(), seed=0) for _ in range(2)
    )
    with config.configure(jit=False):
        losses = eager.run(30, progress_bar=False).losses
    assert_close(native.run(30, progress_bar=False).losses, losses, rtol=1e-9)
    assert "1 compiled path" in native.explain()


@pytest.mark.parametrize("after", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("looked", [False, True], ids=["plain", "after evaluation"])
def test_a_resumed_run_goes_on_with_the_rest_of_the_epoch(after, looked):
    svi = svi_of(loader_of(X, Y, ROWS))
    svi.run(after, progress_bar=False)
    if looked:
        svi.evaluate_loss()
    state = svi.state_dict()
    losses = svi.run(8, progress_bar=False).losses
    resumed = svi_of(loader_of(X, Y, ROWS, seed=99))
    resumed.load_state_dict(state)
    assert np.array_equal(resumed.run(8, progress_bar=False).losses, losses)
    # Once more, back from where that got to.
    resumed.load_state_dict(state)
    assert np.array_equal(resumed.run(8, progress_bar=False).losses, losses)


def test_a_loader_on_the_default_generator_resumes_too():
    def make(seed):
        probtorch.manual_seed(seed)
        data = TensorDataset(*(probtorch.tensor(a) for a in (X, Y, ROWS)))
        model = regression(DataLoader(data, batch_size=4, shuffle=True))
        return SVI(model, AutoNormal(model), Adam({"lr": 0.05}), Trace_ELBO())

    for after in (2, 3, 4):
        svi = make(1)
        svi.run(after, progress_bar=False)
        state = svi.state_dict()
        losses = svi.run(7, progress_bar=False).losses
        resumed = make(2)
        resumed.load_state_dict(state)
        assert np.array_equal(resumed.run(7, progress_bar=False).losses, losses)


def test_loops_over_the_loader_in_between_change_nothing():
    plain, disturbed = loader_of(Y), loader_of(Y)
    runs = []
    for loader in (plain, disturbed):

        def model(loader=loader):
            with plate("data", loader) as (y,):
                z = sample("z", dist.Normal(0.0, 1.0))
                sample("y", dist.Normal(z, 0.5), obs=y)

        svi = SVI(model, AutoNormal(model), Adam({"lr": 0.05}), Trace_ELBO(), seed=0)
        losses = []
        for _ in range(3):
            losses.append(svi.step())
            if loader is disturbed:
                # Begins epochs of its own, on numbers that are put back.
                state = loader.generator.get_state()
                assert sorted(float(y) for (batch,) in loader for y in batch) == sorted(Y)
                loader.generator.set_state(state)
        svi.load_state_dict(svi.state_dict())
        losses += [svi.step() for _ in range(3)]
        runs.append((losses, svi.get_params()["z_auto_loc"].tolist()))
    assert runs[0] == runs[1]


def test_workers_change_nothing():
    alone, helped = (svi_of(loader_of(X, Y, ROWS, num_workers=n)) for n in (0, 2))
    expected = alone.run(7, progress_bar=False).losses
    assert np.array_equal(helped.run(7, progress_bar=False).losses, expected)


@pytest.mark.parametrize("stop", [1, 2])
def test_a_stopped_run_is_back_at_the_batch_of_the_last_good_step(stop):
    loader, seen = loader_of(X, Y, ROWS), []
    order = [x.tolist() for _, _, x in loader_of(X, Y, ROWS)]

    def model():
        w = sample("w", dist.Normal(probtorch.zeros(2), 1.0).to_event(1))
        with plate("data", loader) as (x, y, rows):
            seen.append(rows.tolist())
            broken = probtorch.where(rows == order[stop][0], float("nan"), 0.0)
            sample("y", dist.Normal(x @ w, 0.5), obs=y)
            probtorch.factor("broken", broken)

    svi = SVI(model, AutoNormal(model), Adam({"lr": 0.01}), Trace_ELBO(), seed=0)
    stopped = pytest.raises(InferenceError, match=f"stopped at step {stop}")
    with stopped, config.configure(jit=False):
        svi.run(5, progress_bar=False)
    assert svi.num_steps == stop - 1
    svi.evaluate_loss()
    assert seen[-1] == order[stop - 1]


def test_a_stream_gives_batches_whose_size_is_that_of_their_data():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(zip(X, Y, strict=True))

    loader = DataLoader(Stream(), batch_size=4)

    def model():
        w = sample("w", dist.Normal(probtorch.zeros(2), 1.0).to_event(1))
        with plate("data", 10, loader=loader) as (x, y):
            site = sample("y", dist.Normal(x @ w, 0.5), obs=y)
        assert len(site) in (4, 2)

    svi = SVI(model, AutoNormal(model), Adam({"lr": 0.05}), Trace_ELBO(), seed=0)
    losses = svi.run(300, progress_bar=False).losses
    assert losses[-30:].mean() < losses[:30].mean()


# ----------------------------------------------------------------------------------- by hand


def test_a_loop_written_by_hand_trains():
    loader = loader_of(X, Y, batch_size=4)

    def model(x, y):
        w = sample("w", dist.Normal(probtorch.zeros(2), 1.0).to_event(1))
        with plate("data", 10, subsample_size=len(x)):
            sample("y", dist.Normal(x @ w, 0.5), obs=y)

    svi = SVI(model, AutoDelta(model), Adam({"lr": 0.02}), Trace_ELBO(), seed=0)
    for _ in range(150):
        for x, y in loader:
            svi.step(x, y)
    precision = np.eye(2) + X.T @ X / 0.25
    mode = np.linalg.solve(precision, X.T @ Y / 0.25)
    assert_close(svi.guide.median()["w"], mode, atol=0.1)
    assert svi.num_steps == 450


# ------------------------------------------------------------------------------- local latents


def local_model(rows):
    """Rows with a latent number each: z ~ N(0, 1), y ~ N(z, 0.5)."""

    def model():
        with rows() as y:
            z = sample("z", dist.Normal(0.0, 1.0))
            sample("y", dist.Normal(z, 0.5), obs=y)

    return model


LOCAL = loader_of(Y, batch_size=4)


@contextlib.contextmanager
def rows_by_loader():
    with plate("data", LOCAL) as (y,):
        yield y


@contextlib.contextmanager
def rows_by_subsample():
    with plate("data", 10, subsample_size=4) as rows:
        yield probtorch.tensor(Y)[rows]


@contextlib.contextmanager
def rows_by_function():
    with plate("data", LOCAL):
        yield subsample(probtorch.tensor(Y), event_dim=0)


@pytest.mark.parametrize("rows_of", [rows_by_loader, rows_by_subsample, rows_by_function])
def test_local_latents_have_parameters_for_all_rows_and_are_found(rows_of):
    model = local_model(rows_of)
    guide = AutoNormal(model)
    svi = SVI(model, guide, Adam({"lr": 0.03}), Trace_ELBO(), seed=0)
    svi.run(800, progress_bar=False)
    assert svi.get_params()["z_auto_loc"].shape == (10,)
    # Each row by itself: precision 1 + 4, mean 4 y / 5. The noise of the steps is about 0.05.
    assert_close(guide.median()["z"], 0.8 * Y, atol=0.25)
    assert guide.sample_posterior(5)["z"].shape == (5, 10)


def test_a_step_moves_the_parameters_of_its_rows_only():
    seen = []
    model = local_model(rows_by_loader)
    svi = SVI(model, AutoNormal(model), SGD({"lr": 0.01}), Trace_ELBO(), seed=0)
    svi.setup()
    before = svi.get_params()["z_auto_loc"].numpy()

    def watched(model, guide):
        loss = svi.objective.loss_and_grads(model, guide)
        seen.append(np.flatnonzero(svi.params.unconstrained("z_auto_loc").grad.numpy()))
        return loss

    watching = SVI(model, svi.guide, SGD({"lr": 0.01}), Trace_ELBO(), watched, params=svi.params)
    watching.step()
    moved = np.flatnonzero(svi.get_params()["z_auto_loc"].numpy() != before)
    assert moved.tolist() == seen[0].tolist()
    assert len(moved) == 4


def test_guides_over_all_rows_refuse_local_latents_of_a_loader():
    model = local_model(rows_by_loader)
    svi = SVI(model, AutoMultivariateNormal(model), Adam({"lr": 0.05}), Trace_ELBO())
    with pytest.raises(InferenceError, match="works on 4 of 10 rows"):
        svi.step()


def test_local_latents_of_a_stream_are_refused():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(Y)

    loader = DataLoader(Stream(), batch_size=4)

    def model():
        with plate("data", 10, loader=loader) as y:
            z = sample("z", dist.Normal(0.0, 1.0))
            sample("y", dist.Normal(z, 0.5), obs=y)

    svi = SVI(model, AutoNormal(model), Adam({"lr": 0.05}), Trace_ELBO())
    with pytest.raises(InferenceError, match="come from a stream"):
        svi.step()


def test_nested_subsamples_are_shared_by_model_and_guide():
    seen = []

    def rows(who):
        with plate("outer", 6, subsample_size=3) as j, plate("inner", 5, subsample_size=2) as i:
            seen.append((who, i.tolist(), j.tolist()))
            yield

    def guide():
        for _ in rows("guide"):
            sample("z", dist.Normal(param("loc", 0.0), 1.0))

    def model():
        for _ in rows("model"):
            sample("z", dist.Normal(0.0, 1.0))

    svi = SVI(model, guide, Adam({"lr": 0.05}), Trace_ELBO(), seed=0)
    with config.configure(jit=False):
        svi.run(3, progress_bar=False)
    # The model runs alone too, where it is looked for its data.
    steps = [
        (a, b)
        for (who, *a), (then, *b) in itertools.pairwise(seen)
        if (who, then) == ("guide", "model")
    ]
    assert len({str(drawn) for drawn, _ in steps}) == len(steps) == 3
    assert all(drawn == replayed for drawn, replayed in steps)


@pytest.mark.parametrize(
    "objective",
    [
        Trace_ELBO(),
        TraceGraph_ELBO(),
        TraceMeanField_ELBO(),
        TraceEnum_ELBO(),
        RenyiELBO(num_particles=2),
        Trace_ELBO(num_particles=3, vectorize_particles=True),
    ],
    ids=lambda objective: f"{type(objective).__name__}-{objective.num_particles}",
)
@pytest.mark.parametrize("jit", [True, False], ids=["compiled", "eager"])
def test_a_model_that_says_nothing_of_a_subsample_takes_the_rows_of_its_guide(objective, jit):
    y = probtorch.tensor(np.random.default_rng(0).normal(size=12))

    def model_with(**options):
        def model():
            mu = sample("mu", dist.Normal(0.0, 3.0))
            with plate("data", 12, **options) as rows:
                z = sample("z", dist.Normal(mu, 1.0))
                sample("y", dist.Normal(z, 0.5), obs=y[rows])
            return rows

        return model

    def guide():
        sample("mu", dist.Normal(param("loc", probtorch.tensor(0.0)), 0.3))
        locs = param("locs", probtorch.zeros(12))
        with plate("data", 12, subsample_size=5) as rows:
            sample("z", dist.Normal(locs[rows], 0.5))

    def losses_and_parameters(model):
        svi = SVI(model, guide, Adam({"lr": 0.05}), copy.deepcopy(objective), seed=0)
        with config.configure(jit=jit):
            return [svi.step() for _ in range(6)], svi.get_params()

    found, params = losses_and_parameters(model_with())
    expected, wanted = losses_and_parameters(model_with(subsample_size=5))
    assert found == expected
    for name, value in wanted.items():
        assert_close(params[name], value)


def test_all_rows_in_an_order_of_the_guide_are_those_of_the_model():
    order = probtorch.tensor([2, 0, 1])
    drawn = handlers.trace(lambda: plate("data", 3, subsample=order)).get_trace()
    with handlers.replay(trace=drawn), plate("data", 3) as rows:
        assert rows.tolist() == [2, 0, 1]


def test_a_network_as_guide_learns_local_latents():
    probtorch.manual_seed(0)
    net, loader = nn.Linear(1, 1, dtype=probtorch.float64), loader_of(Y[:, None], batch_size=4)

    def model():
        with plate("data", loader) as (y,):
            z = sample("z", dist.Normal(0.0, 1.0))
            sample("y", dist.Normal(z, 0.5), obs=y.squeeze(-1))

    def guide():
        encoder = module("encoder", net)
        with plate("data", loader) as (y,):
            scale = param("scale", 0.3, dist.constraints.positive)
            sample("z", dist.Normal(encoder(y).squeeze(-1), scale))

    svi = SVI(model, guide, Adam({"lr": 0.02}), Trace_ELBO(), seed=0)
    svi.run(1500, progress_bar=False)
    # The exact posterior is linear in y: mean 0.8 y, standard deviation 5**-0.5.
    assert_close(net.weight, [[0.8]], atol=0.1)
    assert_close(net.bias, [0.0], atol=0.15)
    assert_close(svi.get_params()["scale"], 5.0**-0.5, atol=0.1)


def test_different_loaders_in_model_and_guide_are_refused():
    mine, theirs = loader_of(Y), loader_of(Y)

    def guide():
        param("p", 0.0)
        with plate("data", theirs):
            pass

    def model():
        with plate("data", mine) as (y,):
            sample("y", dist.Normal(0.0, 1.0), obs=y)

    svi = SVI(model, guide, Adam({"lr": 0.05}), Trace_ELBO())
    with pytest.raises(ModelError, match="plate 'data'") as caught:
        svi.step()
    assert "one loader" in caught.value.fix
