"""Steps of SVI on NumPy's arrays: compiled, the model gets what it gets eagerly.

An array is no tensor: its `std` divides by n and not by n - 1, it has `astype`, masks of it have
shapes. Compiled steps take tensors in the place of arrays, whose numbers may then change from step
to step; where that makes a difference, the arrays themselves, which are watched.
"""

import warnings

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch import configure, plate, sample
from probtorch.compiler.paths import CompileWarning
from probtorch.infer import SVI, AutoNormal, Trace_ELBO
from probtorch.optim import Adam

Y = np.array([1.0, 2.0, 4.0, 9.0, 0.0])


def with_std(y):
    m = sample("m", dist.Normal(0.0, 10.0 * y.std()))
    with plate("rows", len(y)):
        sample("y", dist.Normal(m, y.std()), obs=y)


def with_mask(y):
    positive = y > 0
    share = sample("share", dist.Beta(1.0, 1.0))
    m = sample("m", dist.Normal(0.0, 5.0))
    with plate("all", len(y)):
        sample("positive", dist.Bernoulli(share), obs=positive.astype(float))
    with plate("some", positive.sum()):
        sample("y", dist.LogNormal(m, 1.0), obs=y[positive])


def with_missing(y):
    known = y != 0
    m = sample("m", dist.Normal(0.0, 5.0))
    missing = sample("missing", dist.Normal(m, 2.0).expand([int((~known).sum())]).to_event(1))
    whole = probtorch.zeros(len(y), dtype=probtorch.float64)
    whole[known] = probtorch.tensor(y[known])
    whole[~known] = missing
    with plate("rows", len(y)):
        sample("y", dist.Normal(m, 2.0), obs=whole)


def with_size(y):
    m = sample("m", dist.Normal(0.0, 5.0))
    with plate("rows", y.size):
        sample("y", dist.Normal(m, 1.0), obs=y)


def with_type(y):
    scale = 2.0 if isinstance(y, np.ndarray) else 50.0
    m = sample("m", dist.Normal(0.0, scale))
    with plate("rows", len(y)):
        sample("y", dist.Normal(m, 1.0), obs=y)


MODELS = [with_std, with_mask, with_missing, with_size, with_type]


def losses(model, batches):
    probtorch.clear_param_store()
    svi = SVI(model, AutoNormal(model), Adam({"lr": 0.05}), Trace_ELBO(), seed=0)
    return [svi.step(y) for y in batches], svi


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.__name__)
def test_compiled_steps_on_an_array_are_those_of_python(model):
    with configure(jit=False):
        expected, _ = losses(model, [Y] * 12)
    found, svi = losses(model, [Y] * 12)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert "1 compiled path" in svi.explain()


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.__name__)
def test_batches_that_change_are_those_of_python(model):
    batches = [np.roll(Y, i) + (np.roll(Y, i) > 0) * i / 7 for i in range(15)]
    with configure(jit=False):
        expected, _ = losses(model, batches)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found, _ = losses(model, batches)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    told = [str(w.message) for w in caught if issubclass(w.category, CompileWarning)]
    assert len(told) == 1 and "arrays among the arguments change" in told[0]
    assert "pass tensors" in told[0]


@pytest.mark.filterwarnings("error")
def test_an_array_that_is_changed_in_place_is_read_anew():
    def steps():
        y = Y.copy()
        for i in range(8):
            y[0] = i
            yield y

    with configure(jit=False):
        expected, _ = losses(with_size, steps())
    # Fewer changes than make the steps eager.
    found, _ = losses(with_size, steps())
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.filterwarnings("error")
def test_batches_of_a_plain_model_have_one_path():
    def plain(y):
        m = sample("m", dist.Normal(0.0, 5.0))
        with plate("rows", len(y)):
            sample("y", dist.Normal(m, 1.0), obs=y)

    batches = [Y + i for i in range(20)]
    with configure(jit=False):
        expected, _ = losses(plain, batches)
    found, svi = losses(plain, batches)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert "1 compiled path" in svi.explain()


def test_steps_that_stay_eager_say_so_once():
    def drawing(y):
        m = sample("m", dist.Normal(0.0, 5.0))
        with plate("rows", len(y)):
            sample("y", dist.Normal(m, 1.0 + np.random.default_rng().random()), obs=y)

    with pytest.warns(CompileWarning, match="runs eagerly") as caught:
        losses(drawing, [Y] * 6)
    assert len([w for w in caught if issubclass(w.category, CompileWarning)]) == 1
    assert caught[0].filename == __file__


def test_a_model_that_notes_each_run_has_the_losses_of_python():
    def noting(y):
        seen.append(type(y).__name__)
        m = sample("m", dist.Normal(0.0, 10.0))
        with plate("rows", len(y)):
            sample("y", dist.Normal(m, y.std()), obs=y)

    seen = []
    with configure(jit=False):
        expected, _ = losses(noting, [Y] * 6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CompileWarning)
        found, _ = losses(noting, [Y] * 6)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_an_array_that_the_model_changes_is_changed_once_a_step():
    def scaling(y):
        y /= 10.0
        m = sample("m", dist.Normal(0.0, 1.0))
        with plate("rows", len(y)):
            sample("y", dist.Normal(m, 1.0), obs=y)

    def batches():
        return [Y * (i + 1) for i in range(6)]

    given, again = batches(), batches()
    with configure(jit=False):
        expected, _ = losses(scaling, given)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CompileWarning)
        found, _ = losses(scaling, again)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_array_equal(again, given)


def test_floats_that_change_are_told_to_be_tensors():
    def weighted(y, weight):
        scale = 10.0 if type(weight) is float and weight < 0.5 else 1.0
        m = sample("m", dist.Normal(0.0, scale))
        with plate("rows", len(y)):
            sample("y", dist.Normal(m, 1.0), obs=y)

    def steps():
        probtorch.clear_param_store()
        svi = SVI(weighted, AutoNormal(weighted), Adam({"lr": 0.05}), Trace_ELBO(), seed=0)
        return [svi.step(Y, 1.0 - i / 20) for i in range(20)]

    with configure(jit=False):
        expected = steps()
    with pytest.warns(CompileWarning, match="values of numbers.* pass what changes as a tensor"):
        found = steps()
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_an_array_from_outside_that_is_indexed_by_rows_of_a_plate_says_what_to_make_of_it():
    data = np.arange(40.0)

    def rows():
        m = sample("m", dist.Normal(0.0, 5.0))
        with plate("rows", 40, subsample_size=10) as i:
            sample("y", dist.Normal(m, 1.0), obs=data[i])

    svi = SVI(rows, AutoNormal(rows), Adam({"lr": 0.05}), Trace_ELBO(), seed=0)
    with pytest.warns(CompileWarning, match=r"X = probtorch\.tensor\(X\)"):
        svi.run(5, progress_bar=False)
