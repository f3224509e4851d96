"""What a distribution refuses eagerly is refused in native code: every parameter, every case."""

import math
import warnings

import numpy as np
import pytest

from probtorch.compiler.compile import compile
from probtorch.compiler.density import NativeDensity
from probtorch.compiler.paths import CompileWarning
from probtorch.compiler.record.record import OUTSIDE
from probtorch.core.rng import Generator
from probtorch.distributions import validation_enabled
from probtorch.errors import ProbtorchError
from probtorch.func import jvp, vmap
from probtorch.tensor import tensor
from tests.distributions.cases import CASES
from tests.distributions.further_cases import FURTHER

# Inside of no set, of some, and of most.
STRANGE = (math.nan, -1.5, -0.25, 0.0, 0.5, 2.5, math.inf)


def floats_of(case):
    """Return the names of the parameters that are floats."""
    values = vars(case.arguments())
    return [n for n in case.params if values[n].array.dtype.kind == "f"]


every_case = pytest.mark.parametrize(
    "case",
    [
        *filter(floats_of, CASES),
        *(pytest.param(c, marks=pytest.mark.slow) for c in FURTHER if floats_of(c)),
    ],
    ids=lambda case: case.id,
)


def made(case):
    """Return the arguments of a case, those that are floats by name, and draws."""
    values, floats = vars(case.arguments()), floats_of(case)
    x = case.cls(**values).sample((2,), generator=Generator(1)).detach()
    return values, {n: values[n].array for n in floats}, x


def outcome(fn, **given):
    """Return the number that a call gives, or the type and the text of its error."""
    try:
        with np.errstate(all="ignore"):
            return fn(**given).item()
    except ProbtorchError as error:
        return type(error).__name__, str(error).partition("\n  at:")[0]


def same(a, b):
    if isinstance(a, tuple) or isinstance(b, tuple):
        return a == b
    return (
        np.isclose(a, b, rtol=1e-6, equal_nan=True)
        if not math.isinf(a) or not math.isinf(b)
        else a == b
    )


def strangers(arrays):
    """Yield arguments one element of which is strange."""
    for name, array in arrays.items():
        for value in STRANGE:
            other = array.copy()
            other.flat[-1] = value
            yield name, value, {**arrays, name: other}


@every_case
def test_a_compiled_function_refuses_what_the_eager_one_refuses(case):
    (values, arrays, x), cls = made(case), case.cls

    def total(**given):
        return cls(**{**values, **given}).log_prob(x).sum()

    native = compile(total)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CompileWarning)
        native(**{n: tensor(a) for n, a in arrays.items()})
        assert native.reason is None
        for name, value, given in strangers(arrays):
            given = {n: tensor(a) for n, a in given.items()}
            expected = outcome(total, **given)
            assert same(outcome(native, **given), expected), (name, value, expected)


@every_case
def test_a_density_is_zero_where_a_parameter_is_refused(case):
    (values, arrays, x), cls = made(case), case.cls
    ends = np.cumsum([0, *(a.size for a in arrays.values())])

    def logdensity(q):
        parts = zip(arrays.items(), ends[:-1], ends[1:], strict=True)
        given = {n: q[i:j].reshape(a.shape) for (n, a), i, j in parts}
        return cls(**{**values, **given}).log_prob(x).sum()

    def eager(q):
        try:
            return density.eager(q)
        except OUTSIDE:
            return -math.inf, np.zeros(q.size)

    def flat(given):
        return np.concatenate([np.asarray(a, np.float64).reshape(-1) for a in given.values()])

    density = NativeDensity(logdensity, int(ends[-1]))
    rng = np.random.default_rng(3)
    start = flat(arrays)
    points = [start, *(flat(given) for _, _, given in strangers(arrays))]
    points += [start + rng.normal(size=start.size) for _ in range(5)]
    with warnings.catch_warnings():
        warnings.simplefilter("error", CompileWarning)
        for q in points:
            (value, gradient), (expected, slope) = density.value_and_grad(q), eager(q)
            assert same(value, expected), (q, value, expected)
            if math.isfinite(expected):
                np.testing.assert_allclose(gradient, slope, rtol=1e-6, atol=1e-8, err_msg=str(q))


@every_case
def test_forward_mode_and_vmap_refuse_what_is_refused_without_them(case):
    values, arrays, x = made(case)
    names = list(arrays)

    def total(*given):
        return case.cls(**{**values, **dict(zip(names, given, strict=True))}).log_prob(x).sum()

    def refused(fn, *args):
        try:
            with np.errstate(all="ignore"):
                fn(*args)
        except ProbtorchError:
            return True
        return False

    for name, value, given in strangers(arrays):
        points = tuple(map(tensor, given.values()))
        both = [tensor(np.stack([arrays[n], given[n]])) for n in names]
        expected = refused(total, *points)
        assert refused(jvp, total, points, points) == expected, (name, value)
        assert refused(vmap(total), *both) == expected, (name, value)


def strange_values(x):
    """Yield draws one number of which is strange."""
    for value in (*STRANGE, -1e30, 1e30):
        other = np.asarray(x, np.float64).copy()
        other.flat[-1] = value
        yield value, other


@every_case
def test_a_compiled_function_refuses_the_values_that_the_eager_one_refuses(case):
    values, _, x = made(case)
    d = case.cls(**values)

    def total(x):
        return d.log_prob(x).sum()

    native = compile(total)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CompileWarning)
        native(x=tensor(np.asarray(x.numpy(), np.float64)))
        assert native.reason is None
        for value, other in strange_values(x.numpy()):
            expected = outcome(total, x=tensor(other))
            assert same(outcome(native, x=tensor(other)), expected), (value, expected)


@every_case
def test_a_density_is_zero_where_a_value_is_outside_the_support(case):
    values, _, x = made(case)
    d, shape = case.cls(**values), x.shape
    start = np.asarray(x.numpy(), np.float64)

    def logdensity(q):
        return d.log_prob(q.reshape(shape)).sum()

    def eager(q):
        try:
            return density.eager(q)
        except OUTSIDE:
            return -math.inf, np.zeros(q.size)

    density = NativeDensity(logdensity, start.size)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CompileWarning)
        for q in (start, *(other for _, other in strange_values(start))):
            q = q.reshape(-1)
            (value, gradient), (expected, slope) = density.value_and_grad(q), eager(q)
            assert same(value, expected), (q, value, expected)
            if math.isfinite(expected):
                np.testing.assert_allclose(gradient, slope, rtol=1e-6, atol=1e-8, err_msg=str(q))


def test_with_validation_off_nothing_is_refused():
    case = next(c for c in CASES if c.id.startswith("Beta"))
    (values, arrays, x), cls = made(case), case.cls

    def total(**given):
        return cls(**{**values, **given}).log_prob(x).sum()

    bad = {n: tensor(np.full_like(a, -1.5)) for n, a in arrays.items()}
    native = compile(total)
    with validation_enabled(False):
        native(**bad)
        loose = native(**bad)
        assert same(loose.item(), total(**bad).item())
    assert outcome(native, **bad) == outcome(total, **bad)
    assert isinstance(outcome(native, **bad), tuple)


def test_calls_that_are_refused_are_no_versions():
    native = compile(lambda x: CASES[0].cls(0.0, 1.0 / x).log_prob(0.5))
    with warnings.catch_warnings():
        warnings.simplefilter("error", CompileWarning)
        for k in range(12):
            assert isinstance(outcome(native, x=-1.0 - k), tuple)
            assert isinstance(outcome(native, x=tensor(-1.0 - k)), tuple)
        native(x=tensor(2.0))
        assert native.reason is None
