"""What is done in a shorter way where nobody listens, held against what a listener sees."""

import pickle
import sys

import numpy as np
import pytest

import probtorch as pt
from probtorch.core import operands
from probtorch.nn import functional as F
from probtorch.ops.filling import _BELOW_ONE
from probtorch.ops.scans import linear_recurrence

RNG = np.random.default_rng(7)
X = RNG.standard_normal((4, 6))
ROWS = np.array([5, 0, 3, 3])
WITH_NAN = np.array([[1.0, np.nan, 0.0], [2.0, 1.0, 1.0]])

WAYS = {
    "unbind": (lambda x: pt.stack([t * (k + 1.0) for k, t in enumerate(x.unbind(1))]), X),
    "split": (lambda x: pt.cat([t * 2.0 for t in x.split([1, 0, 3])]), X),
    "chunk": (lambda x: x.chunk(4, 1)[2] * 3.0, X),
    "diagonal": (lambda x: x.diagonal(1), X),
    "diagonal of the first dims": (lambda x: x.reshape(2, 3, 4).diagonal(), X),
    "median of all": (lambda x: x.median(), X),
    "median of all, nan": (lambda x: x.median(), WITH_NAN),
    "median": (lambda x: x.median(1).values, X),
    "median, nan": (lambda x: x.median(1).values, WITH_NAN),
    "place of a median": (lambda x: x.median(0).indices * x.sum(), X),
    "kthvalue": (lambda x: x.kthvalue(2, 1, True).values, X),
    "gather": (lambda x: x.gather(1, pt.tensor(ROWS[:, None] // [1, 2])), X),
    "gather of the first dim": (lambda x: x.gather(0, pt.tensor(ROWS[None, :] % 4)), X),
    "take_along_dim": (lambda x: pt.take_along_dim(x, pt.tensor(ROWS[:, None]), 1), X),
    "take_along_dim from the end": (
        lambda x: pt.take_along_dim(x, pt.tensor(-ROWS[:, None] - 1), 1),
        X,
    ),
    "nll_loss": (lambda x: F.nll_loss(x, pt.tensor(ROWS)), X),
    "nll_loss, some ignored": (lambda x: F.nll_loss(x, pt.tensor(ROWS), ignore_index=3), X),
    "one_hot": (lambda x: F.one_hot(pt.tensor(ROWS[:, None]), 7) * x.sum(), X),
    "one_hot without a number": (lambda x: F.one_hot(pt.tensor(ROWS)) * x.sum(), X),
    "rows of a table": (lambda x: x[pt.tensor([[0, 3, 3], [-1, 0, 2]])], X),
    "elements of a table": (lambda x: x[pt.tensor([0, 3, -1]), pt.tensor([[5], [-6]])], X),
    "columns of a table": (lambda x: x[:, pt.tensor([5, 0, 0])], X),
    "running sums": (lambda x: x.cumsum(1) * x.cumsum(0), X),
    "running products": (lambda x: x.cumprod(1) * x.cumprod(0), X),
    "sums of exponentials": (lambda x: x.logcumsumexp(1) * x.logcumsumexp(0), X),
    "recurrence": (lambda x: linear_recurrence(x, x[0] * 2.0, 0) + linear_recurrence(x, x, -1), X),
    "product": (lambda x: x.prod() * x.prod(1, True) * x.prod(0), X),
    "product, one zero": (lambda x: x.prod(1), X * (np.arange(6) != 2)),
    "product, two zeros": (lambda x: x.prod(), X * (np.arange(6) % 5 != 2)),
    "largest of windows": (lambda x: F.max_pool2d(x[None], (2, 3), 1, 1), np.round(X)),
    "means of windows": (lambda x: F.avg_pool2d(x[None], 2, 1), X),
    "means over intervals": (lambda x: F.adaptive_avg_pool2d(x[None], (3, 4)), X),
    "more intervals than elements": (lambda x: F.adaptive_avg_pool2d(x[None], (7, 6)), X),
    "means over even intervals": (lambda x: F.adaptive_avg_pool2d(x[None], (2, 3)), X),
    "means over intervals, even along one dim": (
        lambda x: F.adaptive_avg_pool2d(x[None], (2, 4)),
        X,
    ),
    "largest of even intervals": (lambda x: F.adaptive_max_pool2d(x[None], (2, 3)), np.round(X)),
    "largest of intervals": (lambda x: F.adaptive_max_pool2d(x[None], (3, 3)), np.round(X)),
    "deviation and mean": (lambda x: pt.stack(pt.std_mean(x, 1) + pt.std_mean(x, 1, 0.5)), X),
    "variance and mean of all": (lambda x: pt.stack(pt.var_mean(x, unbiased=False)), X),
    "deviation": (lambda x: x.std(0) + x.std(0, unbiased=False, keepdim=True), X),
    "counted": (lambda x: pt.count_nonzero(x) * x.sum(), X * (np.arange(6) % 5 != 2)),
    "counted, nan": (lambda x: pt.count_nonzero(x) + 0.0 * x[1].sum(), WITH_NAN),
    "softmax of the first dim": (lambda x: x.softmax(0), X),
    "softmax of a dim between": (lambda x: x.reshape(2, 3, 2, 2).softmax(1), X),
    "channels without a scale": (lambda x: F.batch_norm(x, None, None, training=True), X),
    "all of it": (lambda x: x[:] * x[0:4] * x[-9:9], X),
    "flattened": (lambda x: x.flatten() * x[0, 0].flatten(), X),
    "added at an index, with gaps": (
        lambda x: x.T.index_add(0, pt.tensor(ROWS), x.T[1:5]).index_add(
            1, pt.tensor([3, 3]), x.T[:, :2]
        ),
        X,
    ),
    "means of all": (lambda x: F.adaptive_avg_pool2d(x[None], 1), X),
    "rolled": (lambda x: x.roll(2, -1).roll((1, -3), (0, 1)).roll(-5), X),
    "windows along a dim": (lambda x: x.unfold(-1, 3, 2).sum(-1) + x.unfold(0, 2, 1).sum(), X),
    "product and sum": (
        lambda x: pt.addmm(x[0, :4], x, x.T) + pt.addmm(x[:, :4], x, x.T, beta=2),
        X,
    ),
    "counts": (lambda x: pt.bincount(pt.tensor(ROWS), minlength=8) * x.sum(), X),
    "filled alike": (lambda x: pt.zeros_like(x) + pt.full_like(x, 3) * x + pt.ones_like(x), X),
    "added at places": (
        lambda x: x.scatter_add(1, pt.tensor(ROWS[:, None]), x).index_add(
            0, pt.tensor([3, 3]), x[:2]
        ),
        X,
    ),
    "written to": (lambda x: (x * 1.0).add_(2).sub_(0.5).mul_(x.detach()).div_(3.0).exp_(), X),
    "root, written": (lambda x: (x * x + 1.0).sqrt_(), X),
}


def _values(fn, at, dtype):
    x = pt.tensor(at.astype(dtype), requires_grad=True)
    alone = fn(x.detach())
    y = fn(x)
    weights = pt.tensor(np.linspace(0.5, 2.0, y.numel()).reshape(y.shape), dtype=y.dtype)
    (y * weights).sum().backward()
    return alone, y.detach(), x.grad


@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=["double", "single"])
@pytest.mark.parametrize("fn, at", WAYS.values(), ids=WAYS)
def test_short_ways_give_what_a_listener_sees(fn, at, dtype):
    short = _values(fn, at, dtype)
    with pt.autograd.detect_anomaly(check_nan=False):
        long = _values(fn, at, dtype)
    # Slopes are sums of terms of about 1, some of which cancel.
    limits = {"rtol": 1e-6, "atol": 2e-7} if dtype == np.float32 else {"rtol": 1e-13}
    for a, b in zip(short, long, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a.numpy(), b.numpy(), **limits)


@pytest.mark.parametrize(
    "parts",
    [
        lambda x: x.unbind(1),
        lambda x: x.split(3, 1),
        lambda x: x.chunk(2),
        lambda x: [x.diagonal()],
    ],
    ids=["unbind", "split", "chunk", "diagonal"],
)
def test_parts_are_views_that_learn_of_their_root(parts):
    x = pt.tensor(X)
    for part in parts(x):
        assert part._base is x
        part.zero_()
    assert x.diagonal().tolist() == [0.0] * 4
    x = pt.zeros(4, 6)
    seen = parts(x)
    x.add_(pt.ones(4, 6, requires_grad=True))
    assert all(part.requires_grad for part in seen)


def test_all_of_a_tensor_is_a_view_of_it():
    x = pt.tensor(X)
    for y in (x[:], x[0:9], x[-4:]):
        y[0, 0] = 7.0
        assert x[0, 0] == 7.0
        x[0, 0] = 0.0
    turned = x[:, ::2][:]
    assert turned.stride() == (6, 2) and turned.tolist() == x[:, ::2].tolist()
    leaf = pt.tensor(X, requires_grad=True)
    with pt.no_grad():
        assert not leaf[:].requires_grad
    assert leaf[:].requires_grad


@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=["double", "single"])
def test_rows_are_added_in_the_order_of_the_index_and_no_zero_loses_its_sign(dtype):
    x = np.full((5, 3), -0.0, dtype)
    index, rows = RNG.integers(1, 5, 40), RNG.standard_normal((40, 3)).astype(dtype)
    want = x.copy()
    np.add.at(want, index, rows)
    found = pt.tensor(x).index_add(0, pt.tensor(index), pt.tensor(rows)).numpy()
    np.testing.assert_array_equal(found, want)
    assert np.signbit(found[0]).all()
    with pytest.raises(pt.errors.TensorIndexError, match="got"):
        pt.tensor(x).index_add(0, pt.tensor([5]), pt.tensor(rows[:1]))


def test_statistics_have_the_bits_of_their_parts():
    for dtype in (np.float64, np.float32):
        x = pt.tensor((RNG.standard_normal((7, 300)) + 100.0).astype(dtype))
        for dim in (None, 0, 1, (0, 1)):
            for pair, of in ((pt.std_mean, pt.std), (pt.var_mean, pt.var)):
                spread, centre = pair(x, dim)
                assert spread.tolist() == of(x, dim).tolist()
                assert centre.tolist() == pt.mean(x, dim).tolist() and centre.dtype == dtype
    with pytest.warns(UserWarning, match="degrees of freedom"):
        assert pt.std_mean(pt.ones(1))[0].isnan()


def test_uniform_fills_are_the_draws_of_rand_and_stay_below_1():
    for dtype in (np.float32, np.float64):
        pt.manual_seed(3)
        want = pt.rand(50, dtype=dtype).tolist()
        pt.manual_seed(3)
        assert pt.zeros(50, dtype=dtype).uniform_().tolist() == want
    assert np.float32(float(_BELOW_ONE)) == np.nextafter(np.float32(1), np.float32(0))
    assert np.float32(1.0 - 2.0**-53) == 1.0  # what a draw may be, before


@pytest.mark.parametrize("number", [6, 9])
def test_classes_beyond_the_last_are_refused_as_before(number):
    with pytest.raises(pt.errors.TensorIndexError, match="got"):
        F.one_hot(pt.tensor([0, number]), 6)
    with pytest.raises(pt.errors.TensorIndexError, match="got"):
        pt.tensor(X).gather(1, pt.tensor([[number]]))


@pytest.mark.parametrize("dtype", [pt.float64, pt.float32, pt.int64, pt.bool], ids=str)
def test_pickled_tensors_have_the_dtype_that_others_have(dtype):
    x = pickle.loads(pickle.dumps(pt.ones(3, dtype=dtype)))
    assert x.dtype is pt.ones(1, dtype=dtype).dtype
    buffer = pickle.loads(pickle.dumps(pt.nn.Buffer(pt.ones(3, dtype=dtype))))
    assert buffer.dtype is x.dtype


@pytest.mark.parametrize("first", [True, False])
def test_arrays_with_a_dtype_object_of_their_own_take_the_short_way(first):
    # As those of ctypes and of pickles have, equal to NumPy's.
    array = np.frombuffer(np.arange(3.0).tobytes(), pickle.loads(pickle.dumps(np.dtype("<f8"))))
    own, other = pt.tensor(array), pt.ones(3, dtype=pt.float64, requires_grad=True)
    assert own.array.dtype is not other.array.dtype
    long = []

    def profile(frame, event, _):
        if event == "call" and frame.f_code is operands.general.__code__:
            long.append(frame.f_back.f_code.co_name)

    sys.setprofile(profile)
    try:
        total = own + other if first else other + own
    finally:
        sys.setprofile(None)
    assert not long
    np.testing.assert_array_equal(total.detach().numpy(), [1.0, 2.0, 3.0])
    swapped = pt.tensor(np.arange(3.0, dtype=">f8")) + other
    assert swapped.dtype == pt.float64 and swapped.tolist() == total.tolist()
