"""Lines that stand in training scripts for PyTorch, and what they do here."""

import numpy as np
import pytest

import probtorch as torch
from probtorch import nn
from probtorch.errors import ArgumentError, AutogradError, DTypeError
from probtorch.testing import assert_close

X = torch.tensor([1.0, 2.0])


def test_tensors_equal_neither_none_nor_texts():
    assert (X == None) is False and (X != None) is True  # noqa: E711
    assert (X == "a") is False and (X[0] != object()) is True
    assert [None, X].index(None) == 0 and "a" not in [X[0]]
    with pytest.raises(DTypeError):
        torch.eq(X, None)


@pytest.mark.parametrize("number", [np.float64(2.0), np.log(7.0)], ids=str)
def test_doubles_of_numpy_are_numbers_of_python(number):
    # CLIP's temperature: nn.Parameter(torch.ones([]) * np.log(1 / 0.07))
    one = torch.ones([])
    results = (one * number, number * one, one / number, number - one, torch.tensor(3) * number)
    assert {x.dtype for x in results} == {torch.float32}
    assert (number > one).dtype == np.bool_
    assert (torch.ones([], dtype=torch.float64) * number).dtype == torch.float64


def test_a_backward_may_return_none_for_arguments_left_to_their_defaults():
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, by=2.0, unused=None):
            ctx.by = by
            return x * by

        @staticmethod
        def backward(ctx, g):
            return g * ctx.by, None, None

    class Wrong(Scale):
        @staticmethod
        def backward(ctx, g):
            return g, g

    x = torch.ones(2, requires_grad=True)
    Scale.apply(x).sum().backward()
    assert_close(x.grad, torch.tensor([2.0, 2.0]))
    with pytest.raises(ArgumentError, match="1 results"):
        Wrong.apply(x).sum().backward()


def test_flip_takes_dims_one_by_one():
    x = torch.arange(6).reshape(2, 3)
    expected = np.flip(x.numpy(), (0, 1))
    for found in (x.flip(0, 1), x.flip([0, 1]), x.flip(dims=(0, 1)), torch.flip(x, dims=[0, 1])):
        assert_close(found, expected)


def test_a_range_may_be_given_its_end_by_name():
    assert torch.arange(end=3).tolist() == [0, 1, 2]
    with pytest.raises(ArgumentError):
        torch.arange()
    with pytest.raises(DTypeError, match="one per dim"):
        torch.arange(3).flip()


def test_dtypes_have_a_type_and_limits_a_default():
    assert isinstance(torch.float32, torch.dtype) and isinstance(X.dtype, torch.dtype)
    with pytest.raises(DTypeError, match="iinfo"):
        torch.finfo(torch.int32)
    assert torch.finfo().eps == torch.finfo(torch.float32).eps == np.finfo(np.float32).eps


def test_a_buffer_does_not_take_the_name_of_a_parameter():
    net = nn.Linear(2, 1)
    with pytest.raises(ArgumentError, match="already exists"):
        net.register_buffer("weight", torch.ones(1))


def test_older_names_are_there():
    layer = nn.utils.weight_norm(nn.Linear(2, 3))
    x = layer(X)
    nn.utils.remove_weight_norm(layer)
    assert_close(layer(X), x)
    assert [name for name, _ in layer.named_parameters()] == ["bias", "weight"]
    layer = nn.utils.spectral_norm(nn.Linear(2, 3))
    nn.utils.remove_spectral_norm(layer)
    assert issubclass(torch.optim.lr_scheduler.StepLR, torch.optim.lr_scheduler._LRScheduler)
    from probtorch.distributions import TanhTransform, transforms

    assert TanhTransform is transforms.TanhTransform


def test_memory_formats_move_nothing():
    x = torch.randn(2, 3, 4, 5)
    same = x.to(memory_format=torch.channels_last).contiguous(memory_format=torch.channels_last)
    assert_close(same, x)
    assert x.is_contiguous(memory_format=torch.contiguous_format)
    assert not x.is_contiguous(memory_format=torch.channels_last)
    images = x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    assert images.is_contiguous(memory_format=torch.channels_last)
    net = nn.Conv2d(3, 2, 1).to(memory_format=torch.channels_last)
    assert net(same).shape == (2, 2, 4, 5)
    # What optimizers that people write themselves say.
    for like in (torch.zeros_like, torch.empty_like, torch.randn_like):
        assert like(x, memory_format=torch.preserve_format).shape == x.shape
    assert_close(x.clone(memory_format=torch.contiguous_format), x)


def test_transforms_take_the_size_of_a_cache():
    from probtorch.distributions import (
        AffineTransform,
        ComposeTransform,
        Normal,
        TanhTransform,
        TransformedDistribution,
    )

    # A policy of soft actor-critic.
    squash = ComposeTransform([TanhTransform(cache_size=1), AffineTransform(1.0, 2.0, 0, 1)], 1)
    action = TransformedDistribution(Normal(0.0, 1.0), squash.with_cache(1))
    draw = action.rsample((5,))
    expected = TransformedDistribution(
        Normal(0.0, 1.0), [TanhTransform(), AffineTransform(1.0, 2.0)]
    )
    assert_close(action.log_prob(draw), expected.log_prob(draw))

    class Shift(torch.distributions.Transform):
        domain = codomain = torch.distributions.constraints.real

        def __init__(self, by, cache_size=0):
            super().__init__(cache_size=cache_size)
            self.by = by

        def _call(self, x):
            return x + self.by

    assert float(Shift(1.0, cache_size=1)(2.0)) == 3.0


def test_backward_and_grad_take_pytorchs_arguments():
    w = torch.ones(2, requires_grad=True)
    torch.autograd.backward([(w * 2.0).sum(), w * 3.0], grad_tensors=[None, torch.ones(2)])
    assert_close(w.grad, torch.tensor([5.0, 5.0]))
    (slope,) = torch.autograd.grad((w**2).sum(), w, None, True, True, only_inputs=True)
    assert slope.requires_grad
    (again,) = torch.autograd.grad(slope.sum(), w, allow_unused=True)
    assert_close(again, torch.tensor([2.0, 2.0]))


def test_derivatives_of_what_does_not_depend_on_an_input_are_refused_if_asked():
    functional, x = torch.autograd.functional, torch.tensor([1.0, 2.0])
    way = functional.jacobian(lambda x: x**3, x, vectorize=True, strategy="forward-mode")
    assert_close(way, torch.tensor([[3.0, 0.0], [0.0, 12.0]]))
    assert_close(functional.hessian(lambda x: (x**2).sum(), x, strict=True), 2.0 * torch.eye(2))
    with pytest.raises(AutogradError, match="does not depend on input 1"):
        functional.jacobian(lambda x, y: x**2, (x, x), strict=True)
    with pytest.raises(AutogradError, match="a gradient"):
        functional.hessian(lambda x: x.sum(), x, strict=True)
    with pytest.raises(ArgumentError, match="reverse-mode"):
        functional.jacobian(lambda x: x, x, strategy="both")


def test_functions_of_autocast_decorate_custom_functions():
    class Square(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @torch.amp.custom_bwd(device_type="cpu")
        def backward(ctx, g):
            return 2.0 * ctx.saved_tensors[0] * g

    x = torch.tensor([3.0], requires_grad=True)
    Square.apply(x).backward()
    assert float(x.grad) == 6.0
    assert torch.amp.is_autocast_available("cpu") and not torch.amp.is_autocast_available("mps")


def test_new_makes_tensors_of_the_same_dtype():
    x = torch.zeros(2, dtype=torch.float64)
    assert x.new(3, 2).shape == (3, 2) and x.new(3, 2).dtype == torch.float64
    assert_close(x.new([1, 2]), torch.tensor([1.0, 2.0], dtype=torch.float64))
    assert torch.tensor([1]).new([2.7]).tolist() == [2]


def test_tile_takes_counts_one_by_one():
    x = torch.arange(6).reshape(2, 3)
    expected = np.tile(x.numpy(), (2, 1, 3))
    for found in (x.tile(2, 1, 3), x.tile((2, 1, 3)), torch.tile(x, dims=(2, 1, 3))):
        assert_close(found, expected)
    assert_close(x.tile(2), np.tile(x.numpy(), 2))
    with pytest.raises(DTypeError, match="integers, one per dim"):
        x.tile(2, 1.5)
