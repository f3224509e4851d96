"""What PyTorch answers, and was once answered otherwise here: each eager and compiled.

`tests/contracts/test_against_torch.py` holds everything against PyTorch where it is installed;
these are the cases in which it found something, with exact values.
"""

import math

import numpy as np
import pytest

import probtorch
from probtorch import tensor
from probtorch.autograd import grad
from probtorch.errors import DomainError, DTypeError, ShapeError, TensorIndexError
from probtorch.func import vmap
from probtorch.nn import functional as F
from probtorch.testing import assert_close
from tests.ops.test_numbers import both, compiled, slopes

INF, NAN = math.inf, math.nan


# ---------------------------------------------------------------------------- nan stays where it is


@both
def test_triangles_take_no_nan_from_outside(run):
    x = tensor([[1.0, NAN], [INF, 2.0]])
    assert run(lambda x: x.tril())(tensor([[1.0, NAN], [3.0, INF]])).tolist() == [[1, 0], [3, INF]]
    assert run(lambda x: x.triu(2))(x).tolist() == [[0, 0]] * 2
    assert run(lambda x: x.tril())(tensor([[True, True], [True, True]])).dtype == np.bool_
    batched = vmap(lambda m: m.tril(-1))(probtorch.stack([x, x]))
    assert batched.tolist() == [[[0, 0], [INF, 0]]] * 2


@both
def test_means_over_intervals_see_their_interval_alone(run):
    x = tensor([[[1.0, 3.0, NAN, INF, 2.0, 4.0]]])
    assert_close(
        run(lambda x: F.adaptive_avg_pool1d(x, 3))(x),
        [[[2.0, NAN, 3.0]]],
        check_dtype=False,
        equal_nan=True,
    )
    uneven = run(lambda x: F.adaptive_avg_pool1d(x, 4))(tensor([[[1.0, 3.0, INF, 5.0, 7.0]]]))
    assert uneven.tolist() == [[[2.0, INF, INF, 6.0]]]


@both
def test_a_slope_that_is_nan_stays_in_its_channel(run):
    x = tensor([[1.0, -2.0]])
    got = run(lambda x: F.prelu(x, tensor([NAN, 0.5])))(x)
    assert got.tolist() == [[1.0, -1.0]]
    assert slopes(lambda x: F.prelu(x, tensor([NAN, 0.5])), [[1.0, -2.0]], run) == [[1.0, 0.5]]


@both
def test_slopes_of_losses_at_infinite_differences(run):
    target = tensor([-INF, 0.0, 0.5])
    for loss, ends in ((F.huber_loss, 1.0), (F.smooth_l1_loss, 1.0)):
        got = slopes(lambda x, f=loss: f(x, target, reduction="sum"), [1.0, INF, 1.0], run)
        assert got == [ends, ends, 0.5]


@both
@pytest.mark.parametrize("loss", [F.huber_loss, F.smooth_l1_loss, F.mse_loss])
def test_curvature_of_losses_at_no_difference(run, loss):
    def curvature(x):
        x = x.detach().requires_grad_()
        (first,) = grad(loss(x, probtorch.zeros(1), reduction="sum"), x, create_graph=True)
        return grad(first.sum(), x)[0]

    assert run(curvature)(tensor([0.0])).tolist() == [2.0 if loss is F.mse_loss else 1.0]


@both
def test_curvature_of_remainders_is_zero(run):
    def curvature(y):
        y = y.detach().requires_grad_()
        total = probtorch.remainder(tensor(3.0), y).sum() + probtorch.fmod(tensor(3.0), y).sum()
        (first,) = grad(total, y, create_graph=True)
        return grad((first * y).sum(), y)[0] - first.detach()

    assert run(curvature)(tensor([2.0, -0.7])).tolist() == [0.0, 0.0]


def test_curvature_of_norms_of_nothing():
    x = probtorch.zeros(0, 3, requires_grad=True)
    (first,) = grad(F.layer_norm(x * 1.0, (3,)).sum(), x, create_graph=True)
    assert grad((first * 2.0).sum(), x)[0].shape == (0, 3)


@both
def test_quotients_that_are_rounded_have_slope_zero_also_at_zero(run):
    for mode in ("trunc", "floor"):
        fn = lambda y, m=mode: probtorch.div(tensor(3.0), y, rounding_mode=m) * 1.0
        assert slopes(fn, [0.0, 2.0], run) == [0.0, 0.0]


@both
def test_slopes_of_norms_below_one_are_zero_at_zero(run):
    at = [0.0, 4.0, 1.0]
    assert slopes(lambda x: x.norm(0.5), at, run) == pytest.approx([0.0, 1.5, 3.0])
    assert run(lambda x: x.norm(-1.0))(tensor(at)).item() == 0.0


@both
def test_slopes_of_products_with_logs_of_nothing(run):
    fn = probtorch.special.xlogy
    assert slopes(lambda x: fn(x, tensor([-1.0, 0.0, 1.0])), [0.0, 0.0, 0.0], run) == [0, 0, 0]
    fn = probtorch.special.xlog1py
    assert slopes(lambda x: fn(x, tensor([-2.0, -1.0])), [0.0, 0.0], run) == [0.0, 0.0]


# ------------------------------------------------------------------------------------------ digits


@pytest.mark.parametrize("name", ["sinc", "expm1", "digamma", "logit", "lgamma", "softplus"])
def test_half_precision_is_rounded_once(name):
    fn = getattr(probtorch, name)
    x = np.linspace(0.05, 0.95, 37).astype(np.float16)

    def both_parts(dtype):
        at = tensor(x).to(dtype).requires_grad_()
        out = fn(at)
        out.sum().backward()
        return out.detach().double().numpy(), at.grad.double().numpy()

    for got, exact in zip(both_parts(probtorch.float16), both_parts(probtorch.float64)):
        # A unit in the last place: slopes may be computed from a value that is rounded.
        np.testing.assert_allclose(got, exact, rtol=2.0**-10, atol=1e-7)


def test_products_of_halves_and_numbers_that_are_none_are_rounded_once():
    # 1e6 is infinite as a half, 2**-26 is 0, and 0.1 has an error of its own.
    x = tensor([60000.0, 3.0, -0.5], dtype=probtorch.float16, requires_grad=True)
    found = (x / 1e6, 100.0 / (x * 1e-3), x * 2.0**-26, x.detach().clone().mul_(0.1), x * 100000)
    wide = x.detach().double()
    exact = (wide / 1e6, 100.0 / wide * 1e3, wide * 2.0**-26, wide * 0.1, wide * 100000)
    for got, value in zip(found, exact, strict=True):
        assert got.dtype == probtorch.float16
        np.testing.assert_allclose(
            got.detach().double().numpy(), value.half().double().numpy(), rtol=2e-3, atol=2.0**-24
        )
    (x / 1e6).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), np.float16(1e-6), atol=2.0**-24)


def test_softmax_and_its_gradient_in_half_precision():
    x = tensor([[0.8, 2.4, -4.3], [-1.6, 6.3, 2.0]], dtype=probtorch.float16)
    weights = tensor([[0.126, -0.132, 0.64], [0.105, -0.536, 0.362]], dtype=probtorch.float16)

    def slope(dtype):
        at = x.detach().clone().to(dtype).requires_grad_()
        (F.softmax(-at, -2) * weights.to(dtype)).sum().backward()
        return at.grad.double().numpy()

    got, exact = slope(probtorch.float16), slope(probtorch.float64)
    np.testing.assert_allclose(got, exact, rtol=0.02, atol=3e-6)


def test_half_precision_in_windows_norms_and_losses():
    assert F.cosine_similarity(tensor([1.0]).half(), tensor(2), 0).dtype == probtorch.float16
    half = probtorch.float16
    x = probtorch.full((1, 1, 4, 4), 30000.0, dtype=half)
    assert F.avg_pool2d(x, 4).item() == pytest.approx(30000, rel=1e-3)
    assert F.adaptive_avg_pool2d(x, 1).item() == pytest.approx(30000, rel=1e-3)
    assert F.rms_norm(tensor([0.08], dtype=half), (1,)).item() == pytest.approx(1.0, rel=1e-3)
    assert probtorch.linalg.matrix_norm(probtorch.full((2, 2), 300.0, dtype=half)).item() == 600


@both
def test_log_of_a_probability_of_zero_is_cut_exactly(run):
    loss = run(lambda p: F.binary_cross_entropy(p, tensor([1.0])))(tensor([0.0]))
    assert loss.item() == 100.0


# ----------------------------------------------------------------------------------- dtypes, shapes


@both
def test_dtypes_of_sums_and_powers(run):
    assert run(lambda x: x.sum(dtype=probtorch.uint8))(tensor([200, 100])).tolist() == 44
    assert run(lambda x: x.sum(dtype=probtorch.int32))(tensor([1.5, 2.5])).dtype == np.int32
    cubed = run(lambda a: probtorch.linalg.matrix_power(a, 3))(tensor([[1, 1], [1, 0]]))
    assert cubed.dtype == np.int64 and cubed.tolist() == [[3, 2], [2, 1]]
    got = run(lambda v: F.gaussian_nll_loss(tensor([0]), tensor([1]), v))(tensor([0.5]))
    assert got.item() == pytest.approx(0.5 * (math.log(0.5) + 2.0))


@both
def test_tensors_without_dims_count_as_one_of_size_one(run):
    x, at = tensor(3.0), tensor(0)
    assert run(lambda x: x.gather(0, at))(x).item() == 3.0
    assert run(lambda x: probtorch.scatter(x, 0, at, tensor(5.0)))(x).item() == 5.0
    assert run(lambda x: x.index_select(0, tensor([0])))(x).shape == ()
    assert run(lambda x: x.movedim(0, -1))(x).item() == 3.0
    assert run(lambda x: x[:0] % 0)(tensor([1, 2])).shape == (0,)


@both
def test_operands_that_broadcast(run):
    x = tensor([[1.0, 2.0], [3.0, 4.0]])
    got = run(lambda x: F.cosine_similarity(x, tensor([[1.0], [2.0]]), 1))(x)
    assert_close(got, [3.0 / math.sqrt(10.0), 14.0 / math.sqrt(200.0)], check_dtype=False)
    picked = probtorch.masked_select(x, tensor([True, False]))
    assert picked.tolist() == [1.0, 3.0]
    assert probtorch.masked_select(x, tensor(False)).shape == (0,)


def test_windows_of_no_rows():
    x = probtorch.zeros(0, 2, 6)
    values, places = F.max_pool1d(x, 2, return_indices=True)
    assert values.shape == places.shape == (0, 2, 3)
    assert F.adaptive_max_pool1d(x, 4, return_indices=True)[1].shape == (0, 2, 4)
    none = probtorch.zeros(2, 0)
    assert vmap(probtorch.searchsorted)(none, probtorch.zeros(2, 3)).tolist() == [[0, 0, 0]] * 2
    assert probtorch.multinomial(probtorch.zeros(0, 3), 2).shape == (0, 2)


# ---------------------------------------------------------------------------------------- quantiles


def test_quantiles_are_differentiable_in_their_levels():
    x = tensor([0.0, 1.0, 4.0, 9.0], dtype=probtorch.float64)
    assert slopes(lambda q: probtorch.quantile(x, q), [0.1, 0.5, 0.9]) == pytest.approx(
        [3.0, 9.0, 15.0]
    )


@pytest.mark.parametrize("interpolation", ["linear", "lower", "higher", "nearest", "midpoint"])
def test_compiled_quantiles_follow_their_levels(interpolation):
    fn = lambda x, q: probtorch.quantile(x, q, interpolation=interpolation)
    native = probtorch.compile(fn)
    x = tensor(np.random.default_rng(1).standard_normal(12))
    for q in (0.5, 0.5, 0.5, 0.05, 0.93, 1.0, 0.0, 0.31):
        level = tensor(q, dtype=probtorch.float64)
        assert_close(native(x, level), fn(x, level))
        exact = np.quantile(x.numpy(), q, method=interpolation)
        assert_close(native(x, level), exact, check_dtype=False)
    with pytest.raises((DomainError, TensorIndexError)):
        native(x, tensor(1.5, dtype=probtorch.float64))


# ---------------------------------------------------------------------------------- what is refused


def test_a_view_is_never_a_copy():
    x = probtorch.arange(6.0).reshape(2, 3)
    same = x.view(3, 2)
    same[0, 0] = 7.0
    assert x[0, 0].item() == 7.0
    part = x[:, :2].view(2, 2, 1)
    part[1, 1, 0] = 8.0
    assert x[1, 1].item() == 8.0
    assert x.t().view(3, 1, 2).shape == (3, 1, 2)
    assert probtorch.zeros(0, 3).t().view(0).shape == (0,)
    assert probtorch.zeros(3).expand(2, 3).view(2, 3, 1).shape == (2, 3, 1)
    for refused in (
        lambda: x.t().view(6),
        lambda: x[:, :2].view(4),
        lambda: x.t().view_as(probtorch.zeros(6)),
        lambda: probtorch.zeros(3).expand(2, 3).view(6),
        lambda: vmap(lambda m: m.t().view(6))(probtorch.zeros(4, 2, 3)),
    ):
        with pytest.raises(ShapeError, match=r"(?s)view.*strides.*fix:.*reshape"):
            refused()


def test_a_compiled_view_looks_at_the_layout_of_each_argument():
    native = probtorch.compile(lambda x: x.view(6) * 2.0)
    x = probtorch.arange(6.0).reshape(2, 3)
    for _ in range(4):
        assert native(x).tolist() == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    for _ in range(3):
        with pytest.raises(ShapeError, match="view"):
            native(x.reshape(3, 2).t())
    assert native(x).tolist() == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]


def test_random_views_are_where_numpy_has_them():
    rng = np.random.default_rng(0)
    shapes = [(2, 3, 4), (4, 6), (24,), (1, 24), (2, 2, 6), (3, 8), (4, 1, 6), (2, 3, 2, 2)]
    kept = refused = 0
    for _ in range(400):
        base = np.arange(48.0).reshape(2, 3, 8)
        x = base[:, :, :: rng.integers(1, 3)][..., :4].transpose(rng.permutation(3))
        if rng.random() < 0.3:
            x = base[0, :, :].reshape(3, 8).T if rng.random() < 0.5 else base[:, 1:, :6]
        shape = shapes[rng.integers(len(shapes))]
        if math.prod(shape) != x.size:
            continue
        probe = x.view()
        try:
            # What NumPy does without a copy shares its memory.
            there = np.shares_memory(np.reshape(probe, shape), base)
            ours = probtorch.from_numpy(x).view(shape)
            assert there and np.shares_memory(ours.numpy(), base)
            np.testing.assert_array_equal(ours.numpy(), x.reshape(shape))
            kept += 1
        except ShapeError:
            assert not there
            refused += 1
    assert kept > 30 and refused > 30


def test_what_pytorch_refuses():
    x = probtorch.zeros(2, 3, 4)
    with pytest.raises(ShapeError, match="at most 2 dims"):
        x.t()
    with pytest.raises(TensorIndexError, match="cumsum"):
        tensor(1.0).cumsum(1)
    with pytest.raises(ShapeError, match="start_dim before end_dim"):
        x.flatten(2, 1)
    with pytest.raises(ShapeError, match="last dims of one size"):
        probtorch.inner(probtorch.ones(1), probtorch.ones(3))
    with pytest.raises(ShapeError, match="without dims"):
        x.fill_(probtorch.ones(4))
    with pytest.raises(DTypeError, match="boolean mask"):
        probtorch.masked_select(x, tensor([0, 1, 1, 0]))
    with pytest.raises(DomainError, match="target between 0 and 1"):
        F.binary_cross_entropy(tensor([0.5]), tensor([1.5]))
    for refused in (
        lambda: probtorch.full((2,), -1, dtype=probtorch.uint8),
        lambda: tensor([1, 2]).fill_(NAN),
        lambda: tensor([1], dtype=probtorch.int8).new_full((2,), 300),
    ):
        with pytest.raises(DomainError, match=r"(?s)expected: a number from.*can hold"):
            refused()


def test_rounded_division_when_compiled():
    native = compiled(lambda x, y: probtorch.div(x, y, rounding_mode="trunc"))
    assert probtorch.div(tensor(-0.1).half(), INF, rounding_mode="trunc").dtype == probtorch.float16
    x, y = tensor([7.0, -7.0, 7.0, -0.5]), tensor([2.0, 2.0, -0.0, 1.0])
    np.testing.assert_array_equal(native(x, y).numpy(), [3.0, -3.0, -INF, -0.0])


def test_warnings_about_spreads_name_the_line_that_asked():
    for ask in (
        lambda: probtorch.ones(1).std(),
        lambda: probtorch.var(probtorch.ones(1).half()),
        lambda: F.softmax(probtorch.ones(2)),
        lambda: F.mse_loss(probtorch.ones(2, 2), probtorch.ones(2)),
    ):
        with pytest.warns(UserWarning, match="nan|dim=|sizes equal") as seen:
            ask()
        assert [w.filename for w in seen] == [__file__]
