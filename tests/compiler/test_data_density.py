"""A density with its data as an argument is the density of each data set, compiled once."""

import numpy as np
import pytest

from probtorch.compiler.data_density import DataDensity
from probtorch.compiler.density import NativeDensity
from probtorch.compiler.verify import ReplayError
from probtorch.config import configure
from probtorch.core.dispatch import wrap
from probtorch.errors import DomainError
from probtorch.ops.exponentials import exp

POINTS = np.random.default_rng(0).normal(size=(5, 3))
DATA = np.random.default_rng(1).normal(size=(4, 6))


def regression(q, data):
    """Six observations around a line, and a scale."""
    at = wrap(np.linspace(-1.0, 1.0, 6))
    residual = (data - q[0] - q[1] * at) * exp(-q[2])
    return -0.5 * (residual * residual).sum() - 6.0 * q[2] - 0.5 * (q * q).sum()


@pytest.mark.parametrize("row", DATA, ids=["first", "second", "third", "fourth"])
def test_exchanged_data_give_the_density_compiled_for_them(row):
    density = DataDensity(regression, 3, DATA[0], name="d")
    expected = NativeDensity(lambda q: regression(q, wrap(row)), 3)
    density.value_and_grad(POINTS[0])
    density.set_data(row)
    for q in POINTS:
        value, slope = density.value_and_grad(q)
        native = density.context().native(q)
        eager = density.eager(q)
        reference = expected.value_and_grad(q)
        for found in (value, slope), native, eager:
            np.testing.assert_allclose(found[0], reference[0], rtol=1e-13)
            np.testing.assert_allclose(found[1], reference[1], rtol=1e-12)
    assert len(density.paths) == 1


def test_many_points_share_the_data_at_hand():
    density = DataDensity(regression, 3, DATA[0], name="d")
    density.set_data(DATA[2])
    points = np.random.default_rng(2).normal(size=(70, 3))
    values, slopes = density.value_and_grad_many(points)
    expected = NativeDensity(lambda q: regression(q, wrap(DATA[2])), 3)
    for q, value, slope in zip(points, values, slopes, strict=True):
        reference = expected.value_and_grad(q)
        np.testing.assert_allclose(value, reference[0], rtol=1e-12)
        np.testing.assert_allclose(slope, reference[1], rtol=1e-11)


def test_a_context_keeps_the_data_that_it_was_made_with():
    density = DataDensity(regression, 3, DATA[0], name="d")
    before = density.context()
    expected = before.native(POINTS[0])
    density.set_data(DATA[1])
    np.testing.assert_array_equal(before.native(POINTS[0])[1], expected[1])
    assert density.context().native(POINTS[0])[0] != expected[0]
    before.set_data(DATA[1])
    np.testing.assert_array_equal(
        before.native(POINTS[0])[1], density.context().native(POINTS[0])[1]
    )


def test_a_branch_on_the_data_is_a_path_of_its_own():
    def density_of(q, data):
        scale = 1.0 if data.sum() > 0 else 3.0
        return -0.5 * scale * (q * q).sum()

    density = DataDensity(density_of, 2, np.array([1.0]), name="d")
    q = np.array([1.0, 2.0])
    assert density.value_and_grad(q)[0] == -2.5
    for data, value in ((-1.0, -7.5), (2.0, -2.5), (-0.5, -7.5)):
        density.set_data(np.array([data]))
        assert density.value_and_grad(q)[0] == value
    assert len(density.paths) == 2


def test_errors_of_python_leave_native_code_as_they_are():
    def refusing(q, data):
        raise ValueError("no such model")

    context = DataDensity(refusing, 2, np.array([1.0]), name="d").context()
    with pytest.raises(ValueError, match="no such model"):
        context.native(np.zeros(2))
    assert context.inner.error is None


def test_a_point_outside_of_the_model_has_no_density():
    def outside(q, data):
        if q[0] > data[0]:
            raise DomainError("q", expected="less", got="more", fix="less")
        return -(q * q).sum()

    context = DataDensity(outside, 2, np.array([1.0]), name="d").context()
    assert context.native(np.array([2.0, 0.0]))[0] == -np.inf
    assert context.native(np.array([0.5, 0.0]))[0] == -0.25


def test_verification_sees_the_data_of_the_context():
    """A function that reads on behind the recorder's back gives another answer with each call."""
    calls = []

    def restless(q, data):
        calls.append(None)
        return -(q * q).sum() * data[0] * np.float64(len(calls) if len(calls) > 3 else 1.0)

    density = DataDensity(restless, 2, np.array([1.0]), name="d")
    context = density.context()
    with configure(verify=False):
        for _ in range(3):
            context.native(np.ones(2))
    calls.extend([None] * 10)
    with pytest.raises(ReplayError):
        density.verify(np.ones(2), context)
    stable = DataDensity(regression, 3, DATA[0], name="d")
    stable.set_data(DATA[3])
    context = stable.context()
    context.native(POINTS[0])
    stable.verify(POINTS[0], context)
    assert len(stable.paths) == 1
