"""Unpooling, pooling over random windows, and layers around channels, by loops in NumPy."""

import itertools

import numpy as np
import pytest

import probtorch
import probtorch.nn as nn
import probtorch.nn.functional as F
from probtorch.core.rng import manual_seed
from probtorch.errors import ArgumentError, ShapeError, TensorIndexError
from probtorch.factories import ones, zeros
from probtorch.tensor import tensor
from probtorch.testing import assert_close

RNG = np.random.default_rng(12)


def normal(*shape):
    return RNG.standard_normal(shape)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_unpooling_puts_the_largest_back_where_they_were(n):
    x = normal(2, 3, *(5, 4, 7)[:n])
    name = f"{n}d"
    pooled, places = getattr(F, "max_pool" + name)(tensor(x), 2, return_indices=True)
    back = getattr(F, "max_unpool" + name)(pooled, places, 2, output_size=x.shape).numpy()
    expected = np.zeros_like(x)
    for at in itertools.product(*(range(m // 2) for m in x.shape[2:])):
        window = (..., *(slice(2 * i, 2 * i + 2) for i in at))
        seen = x[window]
        expected[window] = np.where(
            seen == seen.max(tuple(range(2, n + 2)), keepdims=True), seen, 0
        )
    assert_close(back, expected, rtol=0, atol=0)
    with_indices = getattr(F, f"max_pool{name}_with_indices")(tensor(x), 2)
    assert with_indices[1].tolist() == places.tolist()


def test_unpooling_refuses_what_was_not_pooled():
    x, places = ones(1, 1, 2, 2), zeros(1, 1, 2, 2).long()
    with pytest.raises(ShapeError, match=r"spatial sizes 3 to 5, 3 to 5"):
        F.max_unpool2d(x, places, 2, output_size=(6, 4))
    with pytest.raises(ShapeError, match="indices of the input's shape"):
        F.max_unpool2d(x, places[..., :1], 2)
    with pytest.raises(TensorIndexError):
        F.max_unpool2d(x, places + 16, 2)


@pytest.mark.parametrize("n", [2, 3])
def test_windows_of_fractional_pooling_begin_at_rounded_steps(n):
    spatial, out, kernel = (7, 6, 5)[:n], (3, 4, 2)[:n], 2
    x, draws = normal(1, 2, *spatial), RNG.uniform(0, 1, (1, 2, n))
    pool = getattr(F, f"fractional_max_pool{n}d")
    values, places = pool(
        tensor(x), kernel, out, return_indices=True, _random_samples=tensor(draws)
    )
    for c in range(2):
        starts = []
        for d in range(n):
            u = draws[0, c, n - 1 - d if n == 2 else d]
            step = (spatial[d] - kernel) / (out[d] - 1)
            inner = [int((i + u) * step) - int(u * step) for i in range(out[d] - 1)]
            starts.append([*inner, spatial[d] - kernel])
        for at in np.ndindex(*out):
            box = tuple(slice(s[i], s[i] + kernel) for s, i in zip(starts, at))
            assert values[(0, c, *at)].item() == x[0, c][box].max()
            assert x[0, c].reshape(-1)[places[(0, c, *at)].item()] == x[0, c][box].max()


def test_fractional_pooling_draws_its_windows():
    layer, x = nn.FractionalMaxPool2d(2, output_ratio=0.5), tensor(normal(1, 1, 9, 9))
    manual_seed(0)
    first = layer(x)
    manual_seed(0)
    assert_close(layer(x), first, rtol=0, atol=0)
    assert any((layer(x) != first).any() for _ in range(5))
    assert first.shape == (1, 1, 4, 4)
    with pytest.raises(ArgumentError, match="either output_size or output_ratio"):
        nn.FractionalMaxPool2d(2)
    with pytest.raises(ShapeError, match="places for"):
        F.fractional_max_pool2d(x, 3, 8)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_local_response_norm_divides_by_squares_of_neighbours(size):
    x, expected = normal(2, 4, 3), np.empty((2, 4, 3))
    for c in range(4):
        near = slice(max(c - size // 2, 0), c + (size - 1) // 2 + 1)
        mean = (x[:, near] ** 2).sum(1) / size
        expected[:, c] = x[:, c] / (2.0 + 0.5 * mean) ** 0.6
    assert_close(F.local_response_norm(tensor(x), size, 0.5, 0.6, 2.0), expected, rtol=1e-12)


def test_channels_are_dealt_out_in_turn():
    x = tensor(np.arange(6.0).reshape(1, 6, 1))
    assert F.channel_shuffle(x, 2).reshape(-1).tolist() == [0, 3, 1, 4, 2, 5]
    with pytest.raises(ShapeError, match="groups=4 divides"):
        F.channel_shuffle(x, 4)


def test_whole_channels_are_dropped_to_the_floor_of_selu():
    manual_seed(3)
    y = F.feature_alpha_dropout(zeros(50, 40, 3), 0.25, training=True)
    assert (y == y[..., :1]).all()
    dropped = (y[..., 0] != y[..., 0].max()).float().mean().item()
    assert abs(dropped - 0.25) < 4 * (0.25 * 0.75 / 2000) ** 0.5  # false alarm: 6e-5
    assert F.feature_alpha_dropout(y, 0.25) is y


def test_batch_norms_are_converted_with_what_they_have_learned():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Sequential(nn.BatchNorm2d(2)))
    net[1](tensor(normal(5, 4), dtype=probtorch.float32))
    found = nn.SyncBatchNorm.convert_sync_batchnorm(net)
    assert found is net
    assert [type(m).__name__ for m in net.modules()].count("SyncBatchNorm") == 2
    plain = nn.BatchNorm1d(4)
    plain.load_state_dict(net[1].state_dict())
    x = tensor(normal(6, 4, 2), dtype=probtorch.float32)
    assert_close(net[1].eval()(x).detach(), plain.eval()(x).detach(), rtol=0, atol=0)
    assert int(net[1].num_batches_tracked) == 1


def test_functions_in_place_write_into_their_input():
    for name, args in [
        ("relu_", ()),
        ("elu_", (0.5,)),
        ("selu_", ()),
        ("celu_", (2.0,)),
        ("leaky_relu_", (0.1,)),
        ("hardtanh_", (-0.5, 0.5)),
        ("rrelu_", ()),
        ("threshold_", (0.1, 7.0)),
    ]:
        x = tensor(normal(20))
        expected = getattr(F, name[:-1])(x.clone(), *args)
        assert getattr(F, name)(x, *args) is x
        assert_close(x, expected, rtol=0, atol=0)


def test_triplets_take_any_distance():
    a, p, n = (tensor(normal(4, 3)) for _ in range(3))

    def distance(x, y):
        return (x - y).abs().amax(-1)

    loss = F.triplet_margin_with_distance_loss(
        a, p, n, distance_function=distance, margin=0.5, swap=True, reduction="none"
    )
    d = [np.abs(x.numpy() - y.numpy()).max(-1) for x, y in ((a, p), (a, n), (p, n))]
    assert_close(loss, np.maximum(d[0] - np.minimum(d[1], d[2]) + 0.5, 0.0), rtol=1e-12)
