"""Compiled densities and gradients of twelve models equal independent ones in NumPy and SciPy."""

import numpy as np
import pytest

from probtorch.core.dispatch import wrap
from probtorch.infer import Target
from tests.posteriordb.models import MODELS, as_arguments
from tests.posteriordb.references import DENSITIES, made_up


@pytest.fixture(params=MODELS, ids=lambda name: name.split("-")[0])
def case(request):
    """Target, reference density and two points, on made-up data."""
    rng = np.random.default_rng(list(MODELS).index(request.param))
    data = made_up(request.param, rng)
    target = Target.from_model(MODELS[request.param], **as_arguments(data))
    points = rng.uniform(-0.5, 0.5, size=(4, target.dim))
    return target, lambda q: DENSITIES[request.param](q, **data), points


def test_log_density_differs_from_the_reference_by_a_constant(case):
    target, reference, points = case
    difference = [target.value_and_grad(q)[0] - reference(q) for q in points]
    scale = max(1.0, *(abs(reference(q)) for q in points))
    np.testing.assert_allclose(difference, difference[0], rtol=0, atol=1e-8 * scale)


def test_gradient_is_that_of_the_reference(case):
    target, reference, points = case
    for q in points[:2]:
        _, gradient = target.value_and_grad(q)
        # Central differences of fourth order: error about 1e-10 of the density's size at this step.
        h = 1e-3
        expected = [
            (8 * (reference(q + h * e) - reference(q - h * e))
             - (reference(q + 2 * h * e) - reference(q - 2 * h * e))) / (12 * h)
            for e in np.eye(target.dim)
        ]  # fmt: skip
        scale = max(1.0, np.abs(expected).max())
        np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-6 * scale)


def test_eager_density_equals_the_compiled_one(case):
    target, _, points = case
    for q in points[:2]:
        value, gradient = target.value_and_grad(q)
        eager, eager_gradient = target.density.eager(q)
        assert target.density.reason is None
        np.testing.assert_allclose(value, eager, rtol=1e-12)
        np.testing.assert_allclose(gradient, eager_gradient, rtol=1e-9, atol=1e-9)


def test_compiled_map_to_constrained_values_equals_the_eager_one(case):
    target, _, points = case
    many = target.constrain_many(np.repeat(points, 6, axis=0))
    for name, value in target.constrain(wrap(points[1])).items():
        np.testing.assert_allclose(many[name][6], value.array, rtol=1e-12)
