"""Normalisation layers against NumPy, and their running statistics step by step."""

import numpy as np
import pytest

import probtorch.nn as nn
import probtorch.nn.functional as F
from probtorch.errors import ArgumentError, ModelError, ShapeError
from probtorch.factories import ones
from probtorch.tensor import tensor
from probtorch.testing import assert_close

RNG = np.random.default_rng(8)


def normal(*shape):
    return RNG.standard_normal(shape) * 2.0 + 1.0


def standardised(x, axes, eps=1e-5):
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


@pytest.mark.parametrize("shape", [(5, 3), (4, 3, 6), (4, 3, 2, 5), (2, 3, 2, 2, 2)], ids=str)
def test_batch_norm_standardises_channels_and_tracks_them(shape):
    cls = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[len(shape)]
    m = cls(3).double()
    axes = (0, *range(2, len(shape)))
    across = (1, 3, *[1] * (len(shape) - 2))
    mean, var = np.zeros(3), np.ones(3)
    for step in range(1, 4):
        x = normal(*shape)
        assert_close(m(tensor(x)).detach(), standardised(x, axes), rtol=1e-10, atol=1e-12)
        # Running variances use n - 1, as the parameter estimate they are.
        mean = 0.9 * mean + 0.1 * x.mean(axes)
        var = 0.9 * var + 0.1 * x.var(axes, ddof=1)
        assert_close(m.running_mean, mean, rtol=1e-12)
        assert_close(m.running_var, var, rtol=1e-12)
        assert m.num_batches_tracked.item() == step
    x = normal(*shape)
    expected = (x - mean.reshape(across)) / np.sqrt(var.reshape(across) + 1e-5)
    kept = m.running_mean.clone()
    m.eval()
    assert_close(m(tensor(x)).detach(), expected, rtol=1e-12)
    assert_close(m.running_mean, kept, rtol=0, atol=0)


def test_batch_norm_without_momentum_averages_all_batches():
    m = nn.BatchNorm1d(2, momentum=None).double()
    batches = [normal(4, 2) for _ in range(3)]
    for x in batches:
        m(tensor(x))
    assert_close(m.running_mean, np.mean([x.mean(0) for x in batches], 0), rtol=1e-12)
    assert_close(m.running_var, np.mean([x.var(0, ddof=1) for x in batches], 0), rtol=1e-12)
    m.reset_running_stats()
    assert m.running_mean.tolist() == [0.0, 0.0]
    assert m.num_batches_tracked.item() == 0


def test_batch_norm_without_tracking_uses_the_batch_always():
    m = nn.BatchNorm1d(2, affine=False, track_running_stats=False).double().eval()
    x = normal(4, 2)
    assert_close(m(tensor(x)), standardised(x, 0), rtol=1e-10, atol=1e-12)
    assert list(m.state_dict()) == []


def test_gradient_through_a_batch_is_orthogonal_to_shift_and_scale():
    m = nn.BatchNorm1d(2, eps=0.0).double()
    x = tensor(normal(5, 2), requires_grad=True)
    (m(x) * tensor(normal(5, 2))).sum().backward()
    assert_close(x.grad.sum(0), np.zeros(2), atol=1e-12)
    assert_close((x.grad * x.detach()).sum(0), np.zeros(2), atol=1e-12)


def test_batch_norm_names_its_mistakes():
    with pytest.raises(ShapeError, match="more than 1 value per channel"):
        nn.BatchNorm1d(2)(ones(1, 2))
    nn.BatchNorm1d(2).eval()(ones(1, 2))
    with pytest.raises(ShapeError, match=r"\(N, C, H, W\) with C = 2"):
        nn.BatchNorm2d(2)(ones(4, 2))
    with pytest.raises(ShapeError, match="with C = 2"):
        nn.BatchNorm1d(2)(ones(4, 3))
    with pytest.raises(ArgumentError, match="outside training"):
        F.batch_norm(ones(2, 2), None, None)


@pytest.mark.parametrize("affine", [False, True])
def test_instance_norm_standardises_each_sample(affine):
    x = normal(3, 4, 6)
    m = nn.InstanceNorm1d(4, affine=affine).double()
    assert_close(m(tensor(x)).detach(), standardised(x, 2), rtol=1e-9, atol=1e-11)
    assert_close(m(tensor(x[0])).detach(), standardised(x[0], 1), rtol=1e-9, atol=1e-11)
    with pytest.raises(ShapeError, match="more than 1 spatial element"):
        m(ones(3, 4, 1))


def test_instance_norm_tracks_means_over_the_batch():
    m = nn.InstanceNorm2d(2, track_running_stats=True).double()
    x = normal(3, 2, 4, 5)
    m(tensor(x))
    assert_close(m.running_mean, 0.1 * x.mean((0, 2, 3)), rtol=1e-12)
    var = x.reshape(3, 2, -1).var(-1, ddof=1).mean(0)
    assert_close(m.running_var, 0.9 + 0.1 * var, rtol=1e-12)
    y = m.eval()(tensor(x))
    expected = (x - m.running_mean.numpy()[:, None, None]) / np.sqrt(
        m.running_var.numpy()[:, None, None] + 1e-5
    )
    assert_close(y, expected, rtol=1e-12)


@pytest.mark.parametrize("shape", [(4,), (3, 4)], ids=str)
def test_layer_norm_standardises_the_last_dims(shape):
    x, w, b = normal(2, 3, 4), normal(*shape), normal(*shape)
    axes = tuple(range(-len(shape), 0))
    got = F.layer_norm(tensor(x), shape, tensor(w), tensor(b), 1e-3)
    assert_close(got, standardised(x, axes, 1e-3) * w + b, rtol=1e-10, atol=1e-12)
    assert nn.LayerNorm(shape, bias=False).bias is None
    with pytest.raises(ShapeError, match="normalized_shape"):
        nn.LayerNorm(shape)(ones(2, 3, 5))


def test_rms_norm_divides_by_the_root_mean_square():
    x = normal(3, 4)
    expected = x / np.sqrt((x**2).mean(-1, keepdims=True) + np.finfo(np.float64).eps)
    assert_close(nn.RMSNorm(4).double()(tensor(x)).detach(), expected, rtol=1e-12)


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_group_norm_standardises_groups_of_channels(groups):
    x, w = normal(2, 6, 5), normal(6)
    apart = x.reshape(2, groups, -1)
    expected = standardised(apart, 2).reshape(x.shape) * w[:, None]
    assert_close(F.group_norm(tensor(x), groups, tensor(w)), expected, rtol=1e-9, atol=1e-11)
    with pytest.raises(ArgumentError, match="divisible by num_groups"):
        nn.GroupNorm(4, 6)
    with pytest.raises(ShapeError, match="num_groups=4"):
        F.group_norm(tensor(x), 4)


def test_states_of_before_the_count_of_batches_are_loaded_as_in_pytorch():
    net = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))
    net(ones(5, 2))
    plain = dict(net.state_dict())
    del plain["0.num_batches_tracked"]
    first = net.state_dict()
    del first["0.num_batches_tracked"]
    first._metadata["0"]["version"] = 1
    for old in (plain, first):
        other = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))
        other.load_state_dict(old)
        assert other[0].num_batches_tracked == 0
        assert other[0].running_mean.tolist() == net[0].running_mean.tolist()
    today = net.state_dict()
    del today["0.num_batches_tracked"]
    with pytest.raises(ModelError, match="num_batches_tracked"):
        net.load_state_dict(today)
