"""An error that a function catches is an outcome like a branch: native code has it in the same
place, or the function runs eagerly.
"""

import math
import warnings

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch import linalg, sample
from probtorch.autograd.scan import scan
from probtorch.compiler.compile import compile
from probtorch.compiler.paths import CompileWarning
from probtorch.compiler.record.record import OUTSIDE
from probtorch.infer import SVI, Target, Trace_ELBO
from probtorch.optim import Adam
from probtorch.tensor import tensor

EYE = probtorch.eye(2)
NAN, INF = math.nan, math.inf


def jitter(k):
    try:
        return linalg.cholesky(k)[0, 0]
    except np.linalg.LinAlgError:
        return linalg.cholesky(k + 5.0 * EYE)[0, 0]


def inverse(k):
    try:
        return linalg.inv(k).sum()
    except np.linalg.LinAlgError:
        return k.sum() - 1.0


def twice(k):
    """The error of a second op; the first one passes."""
    first = linalg.cholesky(k + 3.0 * EYE)
    try:
        return linalg.cholesky(first - EYE)[1, 1]
    except np.linalg.LinAlgError:
        return first[0, 0]


def whole(x):
    try:
        return x * int(x)
    except ValueError:
        return x.isnan() * 100.0
    except OverflowError:
        return x


def gamma(x):
    try:
        return dist.Gamma(x, 1.0).log_prob(1.5)
    except ValueError:
        return x.exp()


def value(x):
    try:
        return dist.Beta(2.0, 2.0).log_prob(x)
    except ValueError:
        return -x


def scaled(numbers):
    return [x * EYE for x in numbers]


def scalars(numbers):
    return [tensor(x) for x in numbers]


MATRICES = scaled([1.0, 2.0, -1.0, 1.0, -1.0, -2.0, 3.0, 0.0, 1.0])
# Functions of which all ways are native, and arguments that go one way and the other.
NATIVE = {
    "jitter": (jitter, MATRICES),
    "inverse": (inverse, scaled([2.5, 2.1, 0.0, 3.0, 0.0, 2.7])),
    "twice": (twice, MATRICES),
    "int": (whole, scalars([2.5, 2.1, NAN, 2.9, NAN, INF, 2.7, INF])),
    "gamma": (gamma, scalars([2.5, -2.1, 1.0, NAN, -3.0, 0.0, 2.7])),
    "value": (value, scalars([0.5, 2.0, 0.1, NAN, -3.0, 0.7, 0.2])),
}


@pytest.mark.parametrize(("fn", "arguments"), NATIVE.values(), ids=NATIVE)
def test_ways_through_an_except_are_compiled_like_branches(fn, arguments):
    native = compile(fn)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CompileWarning)
        for x in arguments * 2:
            expected, found = fn(x).item(), native(x).item()
            assert found == pytest.approx(expected, rel=1e-5, nan_ok=True), x
    assert native.reason is None
    assert len(native.paths) >= 2


def pick(x, i):
    try:
        return x[i] * 2.0
    except IndexError:
        return x.sum()


def quotient(x, i):
    try:
        return (x.long() + 7) // i
    except ZeroDivisionError:
        return x.sum()


def draw(x, i):
    try:
        return probtorch.poisson(x * i) * 0.0 + 1.0
    except ValueError:
        return x - 1.0


def stepped(x, i):
    def step(carry, row):
        try:
            return carry + linalg.cholesky(row * i * EYE)[0, 0], None
        except np.linalg.LinAlgError:
            return carry - 1.0, None

    return scan(step, tensor(0.0), x + 1.0)[0]


# What native code cannot express: then the function is Python's.
EAGER = {"index": pick, "division": quotient, "draw": draw, "scan": stepped}


@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("fn", EAGER.values(), ids=EAGER)
def test_what_native_code_cannot_express_runs_eagerly_with_one_warning(fn, first):
    x = probtorch.arange(3.0)
    numbers = [1, 2, {"index": 5, "division": 0}.get(next(k for k in EAGER if EAGER[k] is fn), -1)]
    native = compile(fn)
    with warnings.catch_warnings(record=True) as met:
        warnings.simplefilter("always", CompileWarning)
        for i in [numbers[first], *numbers, *numbers[::-1]]:
            expected, found = fn(x, tensor(i)), native(x, tensor(i))
            np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-6)
    assert len(met) <= 1
    if fn is not stepped:
        assert len(met) == 1 and met[0].filename == __file__
        assert "was raised and caught" in str(met[0].message)


def test_an_error_that_is_not_caught_is_raised_at_each_call():
    native = compile(lambda k: linalg.cholesky(k).sum())
    for x in (1.0, -1.0, 2.0, -2.0, -1.0, 1.0):
        if x > 0:
            assert native(x * EYE).item() == pytest.approx(2.0 * math.sqrt(x), rel=1e-5)
        else:
            with pytest.raises(np.linalg.LinAlgError):
                native(x * EYE)
    assert native.reason is None and len(native.paths) == 1


@pytest.mark.parametrize("caught", [True, False], ids=["caught", "left"])
def test_densities_take_the_way_that_an_error_takes(caught):
    def model():
        a = sample("a", dist.Normal(0.0, 1.0))
        covariance = probtorch.eye(3) * a + 0.2
        if caught:
            try:
                factor = linalg.cholesky(covariance)
            except np.linalg.LinAlgError:
                factor = linalg.cholesky(covariance + 4.0 * probtorch.eye(3))
        else:
            factor = linalg.cholesky(covariance)
        normal = dist.MultivariateNormal(probtorch.zeros(3), scale_tril=factor)
        sample("y", normal, obs=tensor([0.1, 0.2, 0.3]))

    target = Target.from_model(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CompileWarning)
        for a in (0.5, -0.5, 0.7, -0.9, -1.2, 1.0, 0.1, -0.1):
            found, slope = target.value_and_grad([a])
            try:
                expected, gradient = target.density.eager(np.array([a]))
            except OUTSIDE:
                expected, gradient = -INF, [0.0]
            assert found == pytest.approx(expected, rel=1e-9), a
            np.testing.assert_allclose(slope, gradient, rtol=1e-8)
    assert math.isfinite(target.value_and_grad([-0.5])[0]) == caught
    assert target.density.evaluations == 2


def test_a_step_of_svi_takes_the_way_that_an_error_takes():
    def model(k):
        try:
            factor = linalg.cholesky(k)
        except np.linalg.LinAlgError:
            factor = linalg.cholesky(k + 5.0 * EYE)
        normal = dist.MultivariateNormal(probtorch.zeros(2), scale_tril=factor)
        sample("y", normal, obs=tensor([0.1, 0.2]))
        sample("x", dist.Normal(probtorch.param("p", tensor(0.5)), 1.0), obs=tensor(1.0))

    def losses(eager):
        probtorch.clear_param_store()
        svi = SVI(model, lambda k: None, Adam({"lr": 0.01}), Trace_ELBO(), seed=0)
        if eager:
            svi.loss_and_grads = svi.loss_and_grads  # steps of its own are not compiled
        return [svi.step(x * EYE) for x in (1.0, 1.0, 1.0, -1.0, -1.0, 1.0, 2.0, -2.0)]

    np.testing.assert_allclose(losses(False), losses(True), rtol=1e-5)


@pytest.mark.parametrize("transform", ["jvp", "vmap"])
def test_an_error_caught_inside_a_transform_is_no_part_of_a_recording(transform):
    """The recording around `jvp` and `vmap` hears of it: a replay would take that way each time."""

    def f(x):
        if transform == "jvp":
            return probtorch.func.jvp(jitter, (x,), (EYE,))[0]
        return probtorch.func.vmap(jitter)(probtorch.stack([x, x]))

    compiled = compile(f)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CompileWarning)
        for x in (tensor([[1.0, 2.0], [2.0, 1.0]]), tensor([[2.0, 0.5], [0.5, 1.0]])):
            for _ in range(3):
                assert compiled(x).tolist() == f(x).tolist()
