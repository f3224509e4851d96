"""Lines that stand in training scripts for PyTorch, and what they do here."""

import numpy as np
import pytest

import probtorch as torch
from probtorch import nn
from probtorch.errors import ArgumentError, DTypeError
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
