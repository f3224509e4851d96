"""Many posteriors of one model: closed forms, what differs between data sets, what fails."""

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch import handlers
from probtorch.errors import ArgumentError, DTypeError, InferenceError
from probtorch.infer import HMC, MCMC, NUTS, fit_many
from probtorch.infer.many import fit_many as fit_many_module
from probtorch.infer.many.data_sets import calls_of, grouped, padded
from probtorch.infer.many.many_target import ManyTarget
from tests.infer.remote.forked import forked_pool, quiet

RNG = np.random.default_rng(0)


def normal(y, scale=1.0):
    mu = probtorch.sample("mu", dist.Normal(0.0, scale))
    with probtorch.plate("row", len(y)):
        probtorch.sample("y", dist.Normal(mu, 1.0), obs=y)
    probtorch.deterministic("shifted", mu - y.mean())


def fitted(datasets, model=normal, kernel=None, **settings):
    named = {"num_samples": 200, "warmup_steps": 100, "seed": 0, "progress_bar": False, **settings}
    return fit_many(model, datasets, kernel, **named)


def exact(y, scale=1.0):
    """Mean and standard deviation of the conjugate posterior."""
    precision = len(y) + 1.0 / scale**2
    return y.sum() / precision, precision**-0.5


def test_posteriors_are_those_of_each_data_set():
    data = {f"shop {i}": (RNG.normal(i, 1.0, 5), 0.5 + i) for i in range(12)}
    fits = fitted(data, num_samples=1000)
    assert list(fits) == list(data) and len(fits) == 12 and not fits.failed
    draws = fits.draws
    assert draws.posterior["mu"].shape == (1, 1000, 12)
    assert list(draws.coords["data_set"]) == list(data)
    assert fits.means()["mu"].shape == (12,)
    for label, (y, scale) in data.items():
        mean, sd = exact(y, scale)
        mu = fits[label].posterior["mu"]
        # Five standard errors, with 300 effective draws at least.
        assert abs(mu.mean() - mean) < 5 * sd / 300**0.5
        assert abs(mu.std() / sd - 1) < 5 / 600**0.5
        np.testing.assert_allclose(fits[label].posterior["shifted"], mu - y.mean(), atol=1e-12)
    assert (fits.diagnostics["ess"] > 100).all() and (fits.diagnostics["divergences"] == 0).all()
    assert "12 of 12 data sets, 1 chains x 1000 draws" in repr(fits)


def test_draws_are_those_of_mcmc_with_the_stream_of_the_data_set():
    data = [RNG.normal(size=4) for _ in range(3)]
    fits = fitted(data, kernel=NUTS, num_chains=2)
    streams = probtorch.Generator(0).spawn(3)
    for i, y in enumerate(data):
        mcmc = MCMC(NUTS(normal), 200, 100, num_chains=2, seed=streams[i], progress_bar=False)
        mcmc.diagnose = False
        expected = mcmc.run(probtorch.tensor(y)).posterior["mu"]
        # Data that are constants of the compiled code may be rounded another way.
        np.testing.assert_allclose(fits[i].posterior["mu"][:, :5], expected[:, :5], rtol=1e-5)


@quiet
def test_draws_do_not_depend_on_blocks_and_workers(monkeypatch):
    data = [RNG.normal(size=3) for _ in range(7)]
    expected = fitted(data).draws.posterior["mu"]
    monkeypatch.setattr(fit_many_module, "BLOCK", 2)
    np.testing.assert_array_equal(fitted(data).draws.posterior["mu"], expected)
    with forked_pool() as pool:
        got = fitted(data, executor=pool).draws.posterior["mu"]
    np.testing.assert_array_equal(got, expected)


def test_data_sets_of_several_lengths_are_groups_or_padded_with_a_mask():
    data = {n: RNG.normal(size=n) for n in (2, 5, 3, 5)} | {"again": RNG.normal(size=3)}
    fits = fitted(data)
    assert sorted(len(g.labels) for g in fits.groups) == [1, 1, 2]
    assert fits[5].posterior["mu"].shape == (1, 200) and len(fits.diagnostics["ess"]) == 4
    with pytest.raises(ArgumentError, match=r"(?s)one shape.*3 shapes.*fits\[label\]"):
        _ = fits.draws

    def masked(y, weight, used=None):
        assert len(y) == len(weight)
        mu = probtorch.sample("mu", dist.Normal(0.0, 1.0))
        with probtorch.plate("row", len(y)), handlers.mask(mask=used):
            probtorch.sample("y", dist.Normal(mu, 1.0), obs=y)

    fits = fitted(
        {k: (y, np.ones(len(y))) for k, y in data.items()}, masked, mask="used", num_samples=1000
    )
    assert fits.draws.posterior["mu"].shape == (1, 1000, 4)
    for label, y in data.items():
        mean, sd = exact(y)
        assert abs(fits[label].posterior["mu"].mean() - mean) < 5 * sd / 300**0.5


def test_whole_numbers_in_arrays_are_data_and_may_be_indices():
    def grouped(y, group):
        a = probtorch.sample("a", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        with probtorch.plate("row", len(y)):
            probtorch.sample("y", dist.Normal(a[group], 1.0), obs=y)

    y = np.array([4.0, 4.0, -4.0])
    fits = fitted(
        [{"y": y, "group": np.array([0, 0, 1])}, {"y": y, "group": np.array([1, 0, 1])}],
        grouped,
        num_samples=1000,
    )
    # Of k observations with sum s the posterior mean is s / (k + 1).
    expected = [[8 / 3, -2.0], [2.0, 0.0]]
    np.testing.assert_allclose(fits.means()["a"], expected, atol=0.25)


def test_lists_tensors_and_series_are_data():
    pandas = pytest.importorskip("pandas")
    y = [0.5, 1.0, 2.0]
    fits = fitted([(y,), (probtorch.tensor(y),), (pandas.Series(y),), {"y": np.array(y)}])
    means = fits.groups[0].posterior["mu"].mean(axis=(1, 2))
    assert len(fits) == 4 and len(means) in (3, 4)


class Table:
    """Its text says nothing of what it holds."""

    def __init__(self, rows):
        self.rows = rows

    def __repr__(self):
        return "<Table>"


def test_only_arguments_that_are_the_same_are_compiled_together():
    table, y = Table([1.0]), np.zeros(2)
    words = [np.array(["a"] * 2000 + [last], kind) for kind in ("U1", object) for last in "bc"]
    others = [table, table, Table([1.0]), "x", "x", *words, words[2].copy()]
    groups = grouped(calls_of([(y, other) for other in others]))
    assert groups == [[0, 1], [2], [3, 4], [5], [6], [7, 9], [8]]

    def tabled(y, table):
        normal(y + table.rows[0])

    fits = fitted([(y, Table([0.0])), (y, Table([9.0]))], tabled)
    np.testing.assert_allclose(
        [fits[i].posterior["mu"].mean() for i in range(2)], [0.0, 6.0], atol=0.3
    )


def test_everything_that_a_target_tells_is_of_its_own_data():
    def mixture(y):
        mu = probtorch.sample("mu", dist.Normal(0.0, 5.0))
        with probtorch.plate("row", len(y)):
            z = probtorch.sample("z", dist.Bernoulli(0.3))
            probtorch.sample("y", dist.Normal(mu + 2.0 * z, 1.0), obs=y)

    first, second = calls_of([np.zeros(3), np.array([1.0, 4.0, -2.0])]).values()
    target, q = ManyTarget(mixture, first), np.array([0.7])
    matrix = np.array([0.0])
    alone = ManyTarget(mixture, second)
    expected = alone.value_and_grad(q)[0]
    before = target.curved_density.value_and_grad(np.concatenate([q, matrix]))[0]
    made = target.at(second)
    assert made.value_and_grad(q)[0] == pytest.approx(expected)
    assert float(made.logdensity(probtorch.tensor(q))) == pytest.approx(expected)
    assert made.curved_density.value_and_grad(np.concatenate([q, matrix]))[0] == pytest.approx(
        expected
    )
    joint = alone.log_joint(q[None])
    np.testing.assert_allclose(made.log_joint(q[None]), joint)
    assert "curved_density" not in made.__getstate__()
    assert target.value_and_grad(q)[0] == pytest.approx(before) != expected


def test_names_may_come_in_any_order():
    a, b = {"y": np.zeros(3), "w": np.ones(2)}, {"w": np.ones(2), "y": np.zeros(3)}
    assert grouped(calls_of([a, b])) == grouped(calls_of([(a,), (b,)])) == [[0, 1]]
    assert grouped(calls_of([({"in": a},), ({"in": b},)])) == [[0, 1]]
    b["y"] = np.zeros(2)
    longer = padded(calls_of([a, b, {"other": "text", "y": np.ones(1)}]), "used")
    shapes = [{k: np.shape(x) for k, x in c.kwargs.items()} for c in longer.values()]
    assert shapes[:2] == [{"y": (3,), "w": (2,), "used": (3,)}] * 2
    assert shapes[2] == {"y": (3,), "other": (), "used": (3,)}


def test_whole_numbers_that_would_be_rounded_are_refused():
    fits = fitted([np.array([0, 1]), np.array([0, 2**53 + 1])])
    assert fits.labels == [0] and isinstance(fits.failed[1], DTypeError)
    with pytest.raises(DTypeError, match=r"2\*\*53"):
        fitted([np.array([0, 2**53 + 1])])


def test_data_set_that_cannot_be_fitted_is_named_and_the_others_are_there():
    good = RNG.normal(size=3)
    data = {"first": np.full(3, np.nan), "a": good, "bad": np.full(3, np.nan), "b": good}
    fits = fitted(data)
    assert fits.labels == ["a", "b"] and set(fits.failed) == {"first", "bad"}
    assert "2 of 4 data sets" in repr(fits) and "failed: 'first'" in repr(fits)
    with pytest.raises(type(fits.failed["bad"])):
        fits["bad"]
    with pytest.raises(type(fits.failed["first"])):
        fitted([np.full(3, np.nan)])


def test_doubtful_posteriors_are_listed():
    def funnel(y):
        tau = probtorch.sample("tau", dist.Normal(0.0, 3.0))
        with probtorch.plate("row", len(y)):
            probtorch.sample("x", dist.Normal(0.0, probtorch.exp(tau / 2.0)))

    fits = fitted([np.zeros(8), np.ones(8)], funnel)
    assert fits.doubtful and "doubtful" in repr(fits)


def test_chains_that_never_move_are_doubtful():
    def stuck(model):
        return HMC(model, step_size=1e6, adapt_step_size=False, num_steps=1)

    fits = fitted([np.zeros(8), np.ones(8)], kernel=stuck, warmup_steps=0)
    assert (np.ptp(fits.draws.posterior["mu"], axis=1) == 0.0).all()
    assert fits.doubtful == [0, 1]

    def related(y):
        probtorch.sample("chol", dist.LKJCholesky(3, 2.0))
        normal(y)

    # Entries that are zero by construction are no chains that stand still.
    assert fitted([np.zeros(8)], related, num_samples=600, warmup_steps=200).doubtful == []


class Stubborn(Exception):
    """Pickle takes it, and cannot make it again."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


@quiet
def test_errors_of_workers_that_cannot_travel_are_told(monkeypatch):
    original = fit_many_module._draw

    def stubborn(plan, target, stream, verify):
        if float(target._flat[0]) == 7.0:
            raise Stubborn("this", "that")
        return original(plan, target, stream, verify)

    monkeypatch.setattr(fit_many_module, "_draw", stubborn)
    monkeypatch.setattr(fit_many_module, "goes_in_step", lambda *_: False)
    data = [np.zeros(3), np.full(3, 7.0), np.ones(3)]
    assert isinstance(fitted(data).failed[1], Stubborn)
    with forked_pool() as pool:
        fits = fitted(data, executor=pool)
    assert fits.labels == [0, 2]
    assert "Stubborn: this and that" in str(fits.failed[1])
    assert "on process" in fits.failed[1].__notes__[0]


def test_other_kernels_and_ctrl_c(monkeypatch, capfd):
    data = [RNG.normal(size=3) for _ in range(4)]
    fits = fitted(data, kernel=lambda model: HMC(model, num_steps=5), thinning=2)
    assert fits.draws.posterior["mu"].shape == (1, 100, 4)

    monkeypatch.setattr(fit_many_module, "BLOCK", 1)
    original, calls = fit_many_module.draw_in_step, []

    def interrupted(*args, **settings):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(*args, **settings)

    monkeypatch.setattr(fit_many_module, "draw_in_step", interrupted)
    fits = fitted(data)
    assert fits.labels == [0, 1] and fits.interrupted and "the rest is missing" in repr(fits)
    assert "interrupted: keeping 2 data sets" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"datasets": []}, "a sequence of data sets"),
        ({"datasets": 3.0}, "a sequence of data sets"),
        ({"num_samples": 0}, "num_samples"),
        ({"executor": 4}, "Executor"),
        ({"mask": "used", "datasets": [()]}, "an array with rows"),
    ],
)
def test_bad_settings_are_refused(settings, told):
    with pytest.raises(ArgumentError, match=told):
        fitted(**{"datasets": [np.zeros(2)], **settings})


def test_a_model_to_which_arrays_mean_something_else_than_tensors_is_refused():
    def with_std(y):
        mu = probtorch.sample("mu", dist.Normal(0.0, 1.0))
        with probtorch.plate("row", len(y)):
            probtorch.sample("y", dist.Normal(mu, y.std()), obs=y)

    def written_for_tensors(y):
        mu = probtorch.sample("mu", dist.Normal(0.0, 1.0))
        with probtorch.plate("row", len(y)):
            probtorch.sample("y", dist.Normal(mu, y.unsqueeze(0).std()), obs=y)

    data = [np.arange(5.0), np.arange(5.0) ** 2]
    with pytest.raises(InferenceError, match=r"arrays mean something else(.|\n)*correction=0"):
        fit_many(with_std, data, num_samples=10, progress_bar=False)
    for model, given in (
        (with_std, [probtorch.tensor(y) for y in data]),
        (written_for_tensors, data),
        (with_std, {"a": (probtorch.tensor(data[0]),), "b": (probtorch.tensor(data[1]),)}),
    ):
        assert len(fit_many(model, given, num_samples=10, progress_bar=False)) == 2


def test_the_warm_up_is_found_under_numpyros_name():
    with pytest.raises(ArgumentError, match="did you mean warmup_steps="):
        fit_many(lambda: None, [(), ()], num_warmup=3)
