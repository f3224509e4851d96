"""Helpers of `pyro.util` and `pyro.distributions.util` by their names."""

import math
import warnings

import pytest

import probtorch
from probtorch import ops, util
from probtorch.distributions import util as of_distributions
from probtorch.errors import ShapeError


def test_nan_and_infinity_are_warned_of_in_values_and_gradients():
    x = probtorch.tensor([0.0, 1.0], requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert util.warn_if_nan(x, "x") is x
        assert util.warn_if_inf(x, "x") is x
        assert util.warn_if_inf(math.inf, allow_posinf=True) == math.inf
    with pytest.warns(UserWarning, match="Encountered NaN: x") as found:
        util.warn_if_nan(probtorch.tensor([math.nan]), "x")
    assert found[0].filename == __file__
    with pytest.warns(UserWarning, match=r"Encountered -inf\."):
        util.warn_if_inf(-math.inf)
    y = util.warn_if_inf(x, "x", allow_neginf=True) * 2.0
    with pytest.warns(UserWarning, match=r"Encountered \+inf: backward x"):
        y.backward(probtorch.tensor([math.inf, 1.0]))


def test_recorded_code_does_not_warn():
    compiled = probtorch.compile(lambda x: util.warn_if_nan(x * 2.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            compiled(probtorch.ones(2))
    assert compiled(probtorch.ones(2)).tolist() == [2.0, 2.0]


def test_small_helpers():
    with (
        util.ignore_experimental_warning(),
        util.ignore_jit_warnings(),
        util.optional(pytest.raises(ValueError), False),
    ):
        pass
    with util.optional(pytest.raises(ValueError), True):
        raise ValueError
    assert util.torch_isnan(math.nan) and not util.torch_isnan(probtorch.ones(2))
    assert util.torch_isinf(probtorch.tensor([1.0, math.inf])) and not util.torch_isinf(1.0)
    util.set_rng_seed(3)
    first = probtorch.rand(2)
    probtorch.set_rng_seed(3)
    assert probtorch.rand(2).tolist() == first.tolist()


def test_shapes_are_broadcast_with_and_without_sizes_of_one():
    assert of_distributions.broadcast_shape((2, 1), (3,)) == (2, 3)
    assert of_distributions.broadcast_shape() == ()
    assert of_distributions.broadcast_shape((4, 2, 3), (3,), (), strict=True) == (4, 2, 3)
    with pytest.raises(ShapeError, match="end alike"):
        of_distributions.broadcast_shape((2, 1), (3,), strict=True)
    with pytest.raises(ShapeError):
        of_distributions.broadcast_shape((2,), (3,))


@pytest.mark.parametrize(
    ("dim", "right", "left"),
    [(0, (2, 3, 4), (2, 3, 4)), (1, (2, 3), (3, 4)), (2, (2,), (4,)), (9, (), ()), (-1, (2,), (4,))]
    + [(math.inf, (), ()), (-2, (2, 3), (3, 4))],
)
def test_dims_are_summed_from_either_end(dim, right, left):
    x = probtorch.ones(2, 3, 4)
    assert of_distributions.sum_rightmost(x, dim).shape == right
    assert of_distributions.sum_leftmost(x, dim).shape == left
    assert of_distributions.sum_rightmost(2.0, dim) == 2.0


def test_scales_masks_and_likes():
    x = probtorch.tensor([1.0, math.nan], dtype=probtorch.float64)
    mask = probtorch.tensor([True, False])
    assert of_distributions.scale_and_mask(x, 2.0, mask).tolist() == [2.0, 0.0]
    assert of_distributions.scale_and_mask(x, mask=False).tolist() == [0.0, 0.0]
    assert of_distributions.scale_and_mask(0, 3.0) == 0
    assert of_distributions.eye_like(x, 1, 2).tolist() == [[1.0, 0.0]]
    assert of_distributions.eye_like(x, 2).dtype == of_distributions.scalar_like(x, 3).dtype
    assert of_distributions.is_identically_zero(0)
    assert of_distributions.is_identically_one(probtorch.tensor(1))
    assert not of_distributions.is_identically_one(probtorch.tensor(1.0))


def test_the_safe_logarithm_has_no_slope_at_zero():
    x = probtorch.tensor([0.0, 2.0], requires_grad=True)
    y = ops.special.safe_log(x)
    assert y.tolist() == [-math.inf, pytest.approx(math.log(2.0))]
    y.clamp(min=-5.0).sum().backward()
    assert x.grad.tolist() == [0.0, 0.5]
