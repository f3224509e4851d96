"""The mistakes people make most, and what the message says about each.

One row per mistake. The message must name the site or operation, what was expected, what arrived
and what to do, blame a line of this file and not one of the package, and fit a dozen lines. The
class must be one that scripts written for PyTorch already catch. A mistake that does not stop the
run is warned about, with the same parts.
"""

import inspect
import re
import warnings
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch import ones, plate, sample, tensor
from probtorch.autograd.anomaly import detect_anomaly
from probtorch.backends.registry import unavailable_reason
from probtorch.errors import user_location
from probtorch.infer import MCMC, NUTS

HERE = Path(__file__).name
MOST_LINES = 12


def run(model, *args, num_samples=150, accept=0.8, **settings):
    settings = {"num_chains": 2, "seed": 1, "progress_bar": False} | settings
    kernel = NUTS(model, target_accept_prob=accept)
    return MCMC(kernel, num_samples=num_samples, **settings).run(*args)  # here


# ----------------------------------------------------------------------------------------- mistakes
# The line to blame ends with `# here`; where a mistake has none, it is the one in `run`.


def inner_sizes_differ():
    ones(3, 4) @ ones(3, 4)  # here


def shapes_do_not_broadcast():
    ones(2, 3) + ones(2, 4)  # here


def parameters_do_not_broadcast():
    dist.Normal(tensor([0.0, 1.0, 2.0]), ones(4))  # here


def no_plate():
    def model(y):
        mu = sample("mu", dist.Normal(0.0, 1.0))
        sample("y", dist.Normal(mu, 1.0), obs=y)  # here

    run(model, ones(10))


def column_against_row():
    def model(y):
        mu = sample("mu", dist.Normal(0.0, 1.0))
        with plate("data", 10):
            sample("y", dist.Normal(mu * ones(10), 1.0), obs=y)  # here

    run(model, ones(10, 1))


def plates_in_the_other_order():
    def model(y):
        with plate("school", 3), plate("pupil", 4):
            sample("mu", dist.Normal(0.0, 1.0))
            sample("y", dist.Normal(0.0, 1.0), obs=y)  # here

    run(model, ones(3, 4))


def plate_of_another_size():
    def model(y):
        with plate("data", 11):
            mu = sample("mu", dist.Normal(0.0, 1.0))
            sample("y", dist.Normal(mu, 1.0), obs=y)  # here

    run(model, ones(10))


def missing_data_without_a_plate():
    def model(y):
        mu = sample("mu", dist.Normal(0.0, 1.0))
        sample("y", dist.Normal(mu, 1.0), obs=y)  # here

    run(model, tensor([1.0, float("nan")]))


def missing_data():
    def model(y):
        mu = sample("mu", dist.Normal(0.0, 1.0))
        with plate("data", 2):
            sample("y", dist.Normal(mu, 1.0), obs=y)  # here

    run(model, tensor([1.0, float("nan")]))


def text_for_data():
    sample("y", dist.Normal(0.0, 1.0), obs=np.array(["a", "b"]))  # here


def categories_for_numbers():
    tensor(np.array([1, "a"], object))  # here


def ordered_categories_for_numbers():
    pandas = pytest.importorskip("pandas")
    rated = pandas.Series(pandas.Categorical(["low", "high"], ["low", "high"], ordered=True))
    sample("y", dist.OrderedLogistic(0.0, tensor([0.0])), obs=rated)  # here


def nothing_for_a_number():
    tensor([1.0, None])  # here


def dates_for_numbers():
    tensor(np.array(["2024-01-01"], "M8[D]"))  # here


def fractions_for_floats():
    tensor([Fraction(1, 2)])  # here


def integer_beyond_every_dtype():
    tensor([1, 2]) + 10**20  # here


def more_than_there_is_memory_for():
    probtorch.zeros(10**7, 10**7)  # here


def weights_below_zero():
    dist.Categorical(tensor([0.5, -0.5]))  # here


def same_name_twice():
    def model():
        sample("x", dist.Normal(0.0, 1.0))
        sample("x", dist.Normal(0.0, 1.0))  # here

    run(model)


def infinite_data():
    def model(y):
        mu = sample("mu", dist.Normal(0.0, 1.0))
        with plate("row", 2):
            sample("y", dist.Normal(mu, 1.0), obs=y)  # here

    MCMC(NUTS(model), num_samples=10, progress_bar=False).run(np.array([1.0, np.inf]))


def data_outside_the_support():
    def model(y):
        rate = sample("rate", dist.Exponential(1.0))
        with plate("data", 3):
            sample("y", dist.LogNormal(rate, 1.0), obs=y)  # here

    run(model, tensor([1.0, -1.0, 2.0]))


def nan_parameter():
    dist.Normal(tensor([0.0, float("nan")]), 1.0)  # here


def nan_parameter_in_inference():
    def model(y):
        a = sample("a", dist.Normal(0.0, 1.0))
        with plate("data", 3):
            sample("y", dist.Normal(probtorch.sqrt(-a * a), 1.0), obs=y)  # here

    run(model, ones(3))


def parameter_that_is_nan_at_the_first_run():
    def model():
        a = sample("a", dist.Normal(0.0, 1.0))
        sample("y", dist.Normal(probtorch.log(-1.0 - a * a), 1.0), obs=tensor(1.0))  # here

    run(model)


def unconstrained_scale():
    s = probtorch.param("s", tensor(-1.0))
    sample("x", dist.Normal(0.0, s))  # here


def backward_of_a_vector():
    (ones(3, requires_grad=True) * 2.0).backward()  # here


def in_place_on_a_saved_tensor():
    w = ones(3, requires_grad=True)
    y = w.exp()
    y += 1.0
    y.sum().backward()  # here


def in_place_on_a_leaf():
    w = ones(3, requires_grad=True)
    w += 1.0  # here


def no_such_device():
    ones(3, device="cuda:0")  # here


def integers_take_no_fractions():
    counts = probtorch.arange(3)
    counts += 0.5  # here


def forgot_requires_grad():
    (ones(3) * 2.0).sum().backward()  # here


def site_behind_a_branch():
    def model():
        x = sample("x", dist.Normal(0.0, 1.0))
        if x > 0:
            sample("extra", dist.Normal(0.0, 1.0))  # here

    run(model)


def finite_discrete_latent():
    def model():
        z = sample("z", dist.Bernoulli(0.5))
        sample("y", dist.Normal(z, 1.0), obs=tensor(1.0))

    run(model)


def infinite_discrete_latent():
    def model():
        z = sample("z", dist.Poisson(3.0))  # here
        sample("y", dist.Normal(z, 1.0), obs=tensor(1.0))

    run(model)


def density_minus_infinity_everywhere():
    def model():
        x = sample("x", dist.Normal(0.0, 1.0))
        sample("y", dist.Uniform(10.0 + x * x, 1000.0), obs=tensor(1.0))  # here

    run(model)


def density_nan_everywhere():
    def model():
        x = sample("x", dist.Normal(0.0, 1.0))
        probtorch.factor("penalty", probtorch.sqrt(-1.0 - x * x))  # here

    run(model)


def gradient_nan_everywhere():
    def model():
        x = sample("x", dist.Normal(0.0, 1.0))  # here
        probtorch.factor("penalty", probtorch.sqrt(x * 0.0))

    run(model)


def starting_value_for_an_unknown_site():
    def model():
        sample("scale", dist.HalfNormal(1.0))

    run(model, initial_params={"scael": 1.0})


def everything_is_given():
    def model(y):
        mu = sample("mu", dist.Normal(0.0, 1.0))
        with plate("data", 3):
            sample("y", dist.Normal(mu, 1.0), obs=y)

    probtorch.infer.Predictive(model, {"mu": ones(5)})(ones(3))  # here


# Each mistake with the class scripts catch and what the message must say, in this order.
ERRORS = [
    (inner_sizes_differ, RuntimeError, ["matmul", "(3, 4) @ (3, 4)", "4 and 3", "x @ y.T"]),
    (shapes_do_not_broadcast, RuntimeError, ["add", "(2, 3) and (2, 4)", "dim -1 is 3 and 4"]),
    (parameters_do_not_broadcast, RuntimeError, ["Normal", "(3,) and (4,)"]),
    (no_plate, ValueError, ["site 'y'", "10 values", "shape (10,)", "plate('data', 10)"]),
    (column_against_row, ValueError, ["site 'y'", "100 terms for 10 observations", "(10, 1)"]),
    (
        plates_in_the_other_order,
        ValueError,
        ["site 'y'", "(4, 3)", "(3, 4)", "'school' is dim -1, 'pupil' is dim -2"],
    ),
    (same_name_twice, RuntimeError, ["'x'", "sample at", "and sample at", "rename"]),
    (plate_of_another_size, ValueError, ["'y'", "(11,)", "(10,)", "plate('data', 10)"]),
    (missing_data_without_a_plate, ValueError, ["site 'y'", "2 values", "plate('data', 2)"]),
    (
        missing_data,
        RuntimeError,
        ["no starting point", "1 of 2", "the first nan at index (1,); at"],
    ),
    (text_for_data, TypeError, ["site 'y'", "dtype <U1", "in their order"]),
    (categories_for_numbers, TypeError, ["'a' in data of dtype object", "pandas.Categorical"]),
    (ordered_categories_for_numbers, TypeError, ["site 'y'", "'low' in data", "x.cat.codes"]),
    (nothing_for_a_number, TypeError, ["None in data of dtype object", "missing by nan"]),
    (dates_for_numbers, TypeError, ["datetime64[D]", "count from a date"]),
    (fractions_for_floats, TypeError, ["data of dtype object", "numpy.asarray(x, float)"]),
    (integer_beyond_every_dtype, ValueError, ["add", "1" + "0" * 20, "write a float"]),
    (more_than_there_is_memory_for, MemoryError, ["zeros", "memory", "fewer elements"]),
    (weights_below_zero, ValueError, ["Categorical", "[ 0.5 -0.5]", "logits="]),
    (
        data_outside_the_support,
        ValueError,
        ["-inf at observed site 'y'", "1 of 3 values", "-1 at index (1,)", "handlers.mask"],
    ),
    (
        infinite_data,
        ValueError,
        ["-inf at observed site 'y': 1 of 2 values are inf", "index (1,)", "log of 0"],
    ),
    (nan_parameter, ValueError, ["Normal", "loc", "real", "nan at index (1,)"]),
    (
        nan_parameter_in_inference,
        RuntimeError,
        ["site 'y'", "parameter loc is nan", "first made by sqrt at"],
    ),
    (parameter_that_is_nan_at_the_first_run, ValueError, ["Normal", "loc", "nan", "was log"]),
    (unconstrained_scale, ValueError, ["scale", "positive", "-1", "constraint=", "softplus"]),
    (backward_of_a_vector, RuntimeError, ["backward", "one element", "(3,)", ".sum()"]),
    (in_place_on_a_saved_tensor, RuntimeError, ["exp", "modified in place", HERE, "clone()"]),
    (in_place_on_a_leaf, RuntimeError, ["add_", "leaf", "(3,)", "no_grad()"]),
    (integers_take_no_fractions, TypeError, ["add_", "int64", "float32", "cast"]),
    (forgot_requires_grad, RuntimeError, ["requires_grad=True", "shape ()", "requires_grad=False"]),
    (site_behind_a_branch, RuntimeError, ["'extra'", "same latent sites", "where()"]),
    (
        finite_discrete_latent,
        RuntimeError,
        ["no continuous latent sites", "finite discrete sites 'z' only", "infer_discrete"],
    ),
    (infinite_discrete_latent, RuntimeError, ["'z'", "Poisson", "infinite", "NegativeBinomial"]),
    (
        density_minus_infinity_everywhere,
        RuntimeError,
        ["100 tries", "-inf at observed site 'y'", "1 is not in", "Normal(loc=0", "Uniform("],
    ),
    (
        density_nan_everywhere,
        RuntimeError,
        ["nan at factor 'penalty'", "first made by sqrt at", HERE],
    ),
    (
        gradient_nan_everywhere,
        RuntimeError,
        ["finite log density", "gradient for site 'x' is nan", "the gradient of", "sqrt"],
    ),
    (starting_value_for_an_unknown_site, RuntimeError, ["'scael'", "did you mean 'scale'?"]),
    (everything_is_given, ValueError, ["Predictive", "data at 'y'", "obs=None"]),
]


def line_to_blame(mistake):
    for fn in (mistake, run):
        lines, first = inspect.getsourcelines(fn)
        for i, line in enumerate(lines):
            if line.rstrip().endswith("# here"):
                return first + i
    raise AssertionError("no line is marked")


def says_in_order(text, words):
    return re.search(".*".join(map(re.escape, words)), text, re.DOTALL) is not None


@pytest.mark.parametrize(
    ("mistake", "caught", "words"), ERRORS, ids=[row[0].__name__ for row in ERRORS]
)
def test_error_names_what_was_wrong_and_where(mistake, caught, words):
    with pytest.raises(caught) as info:
        mistake()
    text = str(info.value)
    assert says_in_order(text, words), text
    for part in ("  expected: ", "  got:      ", "  fix:      "):
        assert text.count(part) == 1, text
    assert text.splitlines()[-1].endswith(f"{HERE}:{line_to_blame(mistake)}"), text
    assert len(text.splitlines()) <= MOST_LINES, text


@pytest.mark.skipif(unavailable_reason("cuda") is None, reason="cuda:0 is there")
def test_missing_device_is_named_with_the_reason():
    with pytest.raises(RuntimeError, match=r"cuda:0 .*\n.*CuPy[\s\S]*cpu") as info:
        no_such_device()
    assert str(info.value).endswith(f"{HERE}:{line_to_blame(no_such_device)}")


def test_floats_of_both_widths_are_promoted_not_truncated():
    product = ones(3, 4) @ ones(4, 3, dtype=probtorch.float64)
    assert product.dtype == probtorch.float64


def test_anomaly_mode_adds_the_line_that_made_the_stale_tensor():
    w = ones(3, requires_grad=True)
    with detect_anomaly():
        y = w.exp()
        first = int(user_location().rpartition(":")[2]) - 1
        y += 1.0
        with pytest.raises(RuntimeError) as info:
            y.sum().backward()
    assert f"{HERE}:{first}" in str(info.value)
    assert f"an in-place operation at {__file__}:{first + 2}" in str(info.value)


# ----------------------------------------------------------------------------------------- warnings


def stiff():
    def model():
        v = sample("v", dist.Normal(0.0, 3.0))
        with plate("row", 9):
            sample("x", dist.Normal(0.0, probtorch.exp(v)))

    run(model, num_samples=400, warmup_steps=100, accept=0.4)


def too_short():
    def model():
        sample("x", dist.Normal(0.0, 1.0))

    run(model, num_samples=20, warmup_steps=200)


def stuck_in_different_places():
    def model():
        x = sample("x", dist.Normal(0.0, 20.0))
        probtorch.factor("modes", probtorch.logaddexp(-((x - 20.0) ** 2), -((x + 20.0) ** 2)))

    run(model, initial_params={"x": tensor([-20.0, 20.0])})


def number_taken_from_a_latent_value():
    def model():
        x = sample("x", dist.Normal(0.0, 1.0))
        with probtorch.stop_gradient():  # on purpose: the gradient of a cut value is refused
            number = float(x)  # here
        sample("y", dist.Normal(number, 20.0), obs=tensor(1.0))

    run(model, num_samples=30, warmup_steps=30)  # in Python


def array_taken_from_a_latent_value():
    def model():
        x = sample("x", dist.Normal(0.0, 1.0))
        with probtorch.stop_gradient():
            number = float(np.sin(x.detach().numpy()))  # here
        sample("y", dist.Normal(x + number, 1.0), obs=tensor(1.0))

    run(model, num_samples=30, warmup_steps=30)  # in Python


def empty_plate():
    def model(y):
        mu = sample("mu", dist.Normal(0.0, 1.0))
        with plate("nobody", 0):  # here
            sample("y", dist.Normal(mu, 1.0), obs=y)

    run(model, probtorch.zeros(0))


WARNINGS = [
    (stiff, "DivergenceWarning", ["divergent", "got:", "v", "fix:", "non-centred"]),
    (too_short, "ConvergenceWarning", ["too short", "x", "100 draws", "20 draws", "fix:"]),
    (stuck_in_different_places, "ConvergenceWarning", ["chains disagree on x", "R-hat", "fix:"]),
    (
        number_taken_from_a_latent_value,
        "CompileWarning",
        ["runs eagerly", "float() or item()", "8 different numbers", "fix:"],
    ),
    (array_taken_from_a_latent_value, "CompileWarning", ["runs eagerly", "numpy", "fix:"]),
    (empty_plate, "EmptyPlateWarning", ["'nobody'", "no rows", "contributes nothing"]),
]


@pytest.mark.parametrize(
    ("mistake", "kind", "words"), WARNINGS, ids=[row[0].__name__ for row in WARNINGS]
)
def test_warning_names_what_is_doubtful_and_where(mistake, kind, words):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        mistake()
    texts = [w for w in caught if w.category.__name__ == kind]
    found = [w for w in texts if says_in_order(str(w.message), words)]
    assert len(found) == 1, [str(w.message) for w in caught]
    assert (Path(found[0].filename).name, found[0].lineno) == (HERE, line_to_blame(mistake))
    assert len(str(found[0].message).splitlines()) <= MOST_LINES


def test_a_line_of_an_installed_package_is_not_blamed_for_its_caller():
    """pandas, say, stands between the user's line and the operation it calls."""
    between = compile("def call(fn):\n    return fn()\n", "/site-packages/between.py", "exec")
    names = {}
    exec(between, names)  # noqa: S102 - a file that claims to be installed
    found = names["call"](user_location)
    assert found == f"{__file__}:{inspect.currentframe().f_lineno - 1}"
