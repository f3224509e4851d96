"""Digits, limits and dtypes that were once wrong, each eager and compiled.

Oracles are exact values. What is compiled runs three times: the first call records.
"""

import math
import pickle

import numpy as np
import pytest

import probtorch
from probtorch import tensor
from probtorch.autograd import grad
from probtorch.errors import ArgumentError, DomainError, DTypeError, ShapeError, TensorIndexError
from probtorch.func import vmap
from probtorch.nn import BatchNorm1d
from probtorch.nn import functional as F
from probtorch.testing import assert_close

INF, NAN = math.inf, math.nan
rng = np.random.default_rng(0)


def eager(fn):
    return fn


def compiled(fn):
    native = probtorch.compile(fn)

    def call(*args):
        native(*args), native(*args)
        return native(*args)

    return call


both = pytest.mark.parametrize("run", [eager, compiled], ids=lambda f: f.__name__)


def slopes(fn, values, run=eager, dtype=probtorch.float64):
    def gradient(x):
        x = x.detach().requires_grad_()
        return grad(fn(x).sum(), x)[0]

    return run(gradient)(tensor(values, dtype=dtype)).tolist()


# ------------------------------------------------------------------------------------------ softmax


@both
@pytest.mark.parametrize("shift", [0.0, 100.0, 1e4, 1e6])
def test_softmax_does_not_depend_on_a_shift_of_the_logits(run, shift):
    x = np.array([[1.0, 2.0, 4.0], [3.0, 3.0, -2.0]], np.float32)
    moved = (x + np.float32(shift)).astype(np.float32)
    z = moved.astype(np.float64) - moved.max(-1, keepdims=True)
    exact = np.exp(z) / np.exp(z).sum(-1, keepdims=True)
    got = run(lambda x: F.softmax(x, -1))(tensor(moved))
    assert_close(got, exact, rtol=1e-6, check_dtype=False)
    assert_close(got.sum(-1), np.ones(2), rtol=3e-7, check_dtype=False)
    logs = run(lambda x: F.log_softmax(x, -1))(tensor(moved))
    assert_close(logs, np.log(exact), rtol=1e-6, atol=1e-6, check_dtype=False)
    loss = run(lambda x: F.cross_entropy(x, tensor([2, 0])))(tensor(moved))
    assert_close(loss, -np.log(exact[[0, 1], [2, 0]]).mean(), rtol=1e-6, check_dtype=False)


@both
def test_gradient_of_cross_entropy_keeps_its_digits_at_large_logits(run):
    x = np.array([[1e4, 1e4 + 1.0, 1e4 - 2.0]], np.float32)
    z = x.astype(np.float64) - 1e4
    exact = np.exp(z) / np.exp(z).sum() - np.array([[1.0, 0.0, 0.0]])
    got = slopes(lambda x: F.cross_entropy(x, tensor([0])), x.tolist(), run, probtorch.float32)
    np.testing.assert_allclose(got, exact, rtol=2e-6)


@both
def test_softmax_of_infinities_is_that_of_pytorch(run):
    got = run(lambda x: F.softmax(x, -1))(tensor([[INF, 0.0], [-INF, 0.0], [-INF, -INF]]))
    np.testing.assert_array_equal(got.numpy(), [[NAN, NAN], [0.0, 1.0], [NAN, NAN]])


def test_softmax_of_half_precision_adds_up_to_one():
    x = (tensor([10.0, 11.0, 12.0]) + 1000.0).half()
    assert float(F.softmax(x, 0).float().sum()) == pytest.approx(1.0, abs=1e-3)
    assert F.softmax(probtorch.zeros(70000, dtype=probtorch.float16), 0).isfinite().all()


# --------------------------------------------------------------------------- sums, spreads, norms


@both
@pytest.mark.parametrize("centre", [0.0, 1e4, -1e6])
def test_spread_of_single_precision_keeps_its_digits_beside_a_large_mean(run, centre):
    step = max(abs(centre), 1.0) * 1e-6
    x = (centre + rng.standard_normal((200, 3)) * step).astype(np.float32)
    exact = x.astype(np.float64)
    for fn, oracle in [
        (lambda x: x.var(), exact.var(ddof=1)),
        (lambda x: x.var(0), exact.var(0, ddof=1)),
        (lambda x: x.std(0, 0), exact.std(0)),
    ]:
        assert_close(run(fn)(tensor(x)), oracle, rtol=2e-6, check_dtype=False)
    got = run(lambda x: F.batch_norm(x, None, None, training=True, eps=0.0))(tensor(x))
    assert_close(
        got, (exact - exact.mean(0)) / exact.std(0), rtol=2e-5, atol=2e-5, check_dtype=False
    )


@both
def test_gradient_of_the_variance_keeps_its_digits_beside_a_large_mean(run):
    x = (1e4 + rng.standard_normal(50) * 1e-2).astype(np.float32)
    exact = x.astype(np.float64)
    got = slopes(lambda x: x.var(), x.tolist(), run, probtorch.float32)
    np.testing.assert_allclose(got, 2.0 * (exact - exact.mean()) / 49.0, rtol=1e-5, atol=1e-8)


@both
def test_running_sums_of_a_million_single_precision_numbers(run):
    x = probtorch.full((1_000_000,), 0.1)
    exact = float(np.float32(0.1)) * 1_000_000
    assert float(run(lambda x: x.cumsum(0)[-1])(x)) == pytest.approx(exact, rel=1e-7)
    logs = run(lambda x: probtorch.logcumsumexp(x, 0)[-1])(probtorch.zeros(300_000))
    assert float(logs) == pytest.approx(math.log(300_000), rel=2e-7)
    grown = run(lambda x: x.cumprod(0)[-1])(probtorch.full((100_000,), 1.00001))
    assert float(grown) == pytest.approx(float(np.float32(1.00001)) ** 100_000, rel=2e-7)


@both
def test_columns_of_many_single_precision_numbers_are_added_exactly_enough(run):
    exact = float(np.float32(0.1))
    for shape, dims in [((300_000, 3), (0,)), ((600, 500, 3), (0, 1)), ((3, 300_000), (1,))]:
        got = run(lambda x, dims=dims: x.sum(dims))(probtorch.full(shape, 0.1))
        np.testing.assert_allclose(got.numpy(), exact * 300_000, rtol=1e-5)


def test_a_compiled_sum_of_more_than_2_to_the_24_ones_is_their_number():
    assert compiled(lambda x: x.sum())(probtorch.ones(2**25 - 2)).item() == 2**25 - 2


def test_half_precision_is_added_up_in_more():
    half = probtorch.float16
    assert probtorch.full((70000,), 1.0, dtype=half).mean().item() == 1.0
    assert probtorch.full((1000,), 100.0, dtype=half).norm().item() == pytest.approx(3162, rel=1e-3)
    x = tensor(np.tile([300.0, -300.0], 200), dtype=half)
    assert x.std().item() == pytest.approx(300.4, rel=1e-3)
    for got in (
        F.layer_norm(x, (400,)),
        F.rms_norm(x, (400,)),
        F.group_norm(x.reshape(1, 4, 100), 2),
    ):
        assert got.dtype == half
        np.testing.assert_allclose(abs(got.float().numpy()), 1.0, rtol=1e-3)
    assert probtorch.full((4000,), 0.1, dtype=half).cumsum(0)[-1].item() == pytest.approx(
        400, rel=1e-2
    )


# --------------------------------------------------------------------------------- slopes, limits


@both
def test_slopes_of_exponential_units_at_zero(run):
    assert slopes(F.elu, [0.0], run) == [1.0]
    assert slopes(F.celu, [0.0], run) == [1.0]
    assert slopes(F.selu, [0.0], run) == pytest.approx([1.7580993408473766])
    assert slopes(lambda x: F.elu(x, 2.0), [0.0], run) == [2.0]


@both
@pytest.mark.parametrize("fn", [F.hardtanh, F.relu6, F.hardsigmoid], ids=lambda f: f.__name__)
def test_slopes_at_the_ends_of_a_limited_range_are_zero(run, fn):
    ends = {"hardtanh": [-1.0, 1.0], "relu6": [0.0, 6.0], "hardsigmoid": [-3.0, 3.0]}
    assert slopes(fn, ends[fn.__name__], run) == [0.0, 0.0]


@both
def test_nan_is_not_swallowed(run):
    for fn in (F.elu, F.selu, F.celu, F.hardshrink, F.softshrink, F.hardtanh, F.relu6):
        assert math.isnan(run(fn)(tensor([NAN, 1.0]))[0])
    assert math.isnan(run(lambda x: F.threshold(x, 0.0, 1.0))(tensor([NAN]))[0])


@both
def test_functions_that_are_flat_almost_everywhere_have_slope_zero(run):
    for fn in (probtorch.sign, probtorch.floor, probtorch.ceil, probtorch.trunc, probtorch.round):
        assert slopes(lambda x, fn=fn: fn(x) * 1.0, [1.3, -2.6, INF], run) == [0.0, 0.0, 0.0]


@both
def test_slopes_of_powers_of_zero(run):
    assert slopes(lambda b: 0**b, [-1.0, 0.0, 2.0], run) == [-INF, 0.0, 0.0]
    assert slopes(lambda b: tensor(0.0, dtype=probtorch.float64) ** b, [-1.0, 2.0], run) == [
        -INF,
        0,
    ]


@both
def test_clamp_with_crossed_bounds_is_the_upper_one(run):
    x = tensor([-3.0, 0.0, 3.0])
    assert run(lambda x: probtorch.clamp(x, 1, -1))(x).tolist() == [-1.0, -1.0, -1.0]
    assert slopes(lambda x: probtorch.clamp(x, 1, -1), [-3.0, 0.0, 3.0], run) == [0.0, 0.0, 0.0]
    assert slopes(lambda hi: probtorch.clamp(x, tensor(1.0), hi), [-1.0], run) == [3.0]


@both
def test_slope_of_logit_is_nan_where_its_value_is(run):
    np.testing.assert_array_equal(
        slopes(probtorch.logit, [-0.1, 1.1, 0.5, 0.0], run), [NAN, NAN, 4.0, INF]
    )


@both
def test_lgamma_at_the_ends(run):
    x = tensor([-INF, INF, 5e-324, -5e-324, 1e-310, 0.0, NAN], dtype=probtorch.float64)
    exact = [INF, INF, 744.4400719213812, 744.4400719213812, 713.8013788281542, INF, NAN]
    assert_close(run(probtorch.lgamma)(x), exact, rtol=1e-14, check_dtype=False)


@both
def test_curvature_of_scaled_bessel_functions_at_infinity_is_zero(run):
    def curvature(x):
        x = x.detach().requires_grad_()
        (first,) = grad(probtorch.special.i0e(x).sum(), x, create_graph=True)
        return grad(first.sum(), x)[0]

    assert run(curvature)(tensor([INF, -INF])).tolist() == [0.0, 0.0]


# ---------------------------------------------------------------------------------- dtypes, forms


@both
def test_dtypes_that_pytorch_gives(run):
    assert run(probtorch.square)(tensor([True, False])).dtype == np.int64
    assert run(probtorch.sign)(tensor([True, False])).tolist() == [True, False]
    assert run(probtorch.trace)(tensor([[1, 2], [3, 4]])).dtype == np.int64
    assert run(lambda x: F.threshold(x, 0, 99))(tensor([1, -9])).tolist() == [1, 99]
    assert run(F.relu6)(tensor([-1, 9])).dtype == np.int64
    assert run(lambda x: probtorch.div(x, 2, rounding_mode="floor"))(tensor([-7])).tolist() == [-4]
    assert run(lambda x: probtorch.div(x, 2, rounding_mode="trunc"))(tensor([-7])).tolist() == [-3]
    got = run(lambda x: x.div(2.0, rounding_mode="trunc"))(tensor([-7.0]))
    assert got.tolist() == [-3.0]


@both
@pytest.mark.parametrize("name", ["int8", "int16", "int32", "int64", "uint8"])
def test_floats_beyond_the_integers_are_the_same_eager_and_compiled(run, name):
    x = tensor([INF, -INF, NAN, 3e9, -3e30, 300.0, -1.7, 2.9], dtype=probtorch.float64)
    wide = np.int64 if name == "int64" else np.int32
    top, bottom = np.iinfo(wide).max, np.iinfo(wide).min
    third = 3_000_000_000 if wide is np.int64 else top
    exact = np.array([top, bottom, 0, third, bottom, 300, -1, 2], wide).astype(name)
    for dtype in (probtorch.float64, probtorch.float32):
        got = run(lambda x, d=dtype: x.to(d).to(getattr(probtorch, name)))(x)
        np.testing.assert_array_equal(got.numpy(), exact)


def written(y, write):
    write(y)
    return y


INTO_INTEGERS = {
    "one by one": lambda x, y: written(y, lambda y: [y.__setitem__(i, x[i]) for i in range(5)]),
    "numbers": lambda x, y: written(y, lambda y: [y.__setitem__(i, v) for i, v in enumerate(ENDS)]),
    "a slice": lambda x, y: written(y, lambda y: y.__setitem__(slice(None), x)),
    "a list": lambda x, y: written(y, lambda y: y.__setitem__(slice(None), ENDS)),
    "places": lambda x, y: written(y, lambda y: y.__setitem__(probtorch.arange(5), x)),
    "a mask": lambda x, y: written(y, lambda y: y.__setitem__(y == 0, x)),
    "copy_": lambda x, y: y.copy_(x),
    "index_put": lambda x, y: y.index_put((probtorch.arange(5),), x),
    "type_as": lambda x, y: x.type_as(y),
    "tensor": lambda x, y: tensor(ENDS, dtype=y.dtype),
    "as_tensor": lambda x, y: probtorch.as_tensor(np.array(ENDS), dtype=y.dtype),
    "asarray": lambda x, y: probtorch.asarray(ENDS, dtype=y.dtype),
    "numbers of tensors": lambda x, y: probtorch.stack([tensor(v, dtype=y.dtype) for v in ENDS]),
}
ENDS = [INF, -INF, NAN, -3e30, 2.9]


@both
@pytest.mark.parametrize("way", INTO_INTEGERS)
@pytest.mark.filterwarnings("ignore::probtorch.compiler.paths.CompileWarning")
def test_floats_become_the_same_integers_however_they_are_written(run, way):
    x = tensor(ENDS, dtype=probtorch.float64)
    for dtype in (probtorch.int64, probtorch.int16, probtorch.uint8):
        got = run(lambda x, d=dtype: INTO_INTEGERS[way](x, probtorch.zeros(5, dtype=d)))(x)
        assert got.tolist() == x.to(dtype).tolist()


def test_complex_numbers_are_refused_by_real_tensors():
    y = probtorch.zeros(2)
    for write in (
        lambda: y.__setitem__(0, 1 + 2j),
        lambda: y.__setitem__(slice(None), tensor([1j, 2.0])),
        lambda: tensor([1j], dtype=probtorch.float64),
    ):
        with pytest.raises(DTypeError, match="complex"):
            write()


def test_nonzero_and_where_have_both_forms():
    x = tensor([[0.0, 1.0], [2.0, 0.0]])
    assert probtorch.nonzero(x).tolist() == [[0, 1], [1, 0]]
    assert [i.tolist() for i in x.nonzero(as_tuple=True)] == [[0, 1], [1, 0]]
    assert [i.tolist() for i in probtorch.where(x > 1.5)] == [[1], [0]]
    assert probtorch.nonzero(tensor(3.0)).shape == (1, 0)
    assert [i.tolist() for i in probtorch.where(tensor(True))] == [[0]]
    with pytest.raises(ArgumentError, match=r"(?s)where.*3 operands.*got:\s+2"):
        probtorch.where(x > 1.5, x)


NAMED = {
    "max": (lambda x: x.max(-1), ("values", "indices")),
    "min": (lambda x: x.min(-1), ("values", "indices")),
    "sort": (lambda x: x.sort(), ("values", "indices")),
    "topk": (lambda x: x.topk(2), ("values", "indices")),
    "kthvalue": (lambda x: x.kthvalue(2), ("values", "indices")),
    "median": (lambda x: x.median(-1), ("values", "indices")),
    "cummax": (lambda x: x.cummax(-1), ("values", "indices")),
    "slogdet": (probtorch.linalg.slogdet, ("sign", "logabsdet")),
    "qr": (probtorch.linalg.qr, ("Q", "R")),
    "svd": (probtorch.linalg.svd, ("U", "S", "Vh")),
    "eigh": (probtorch.linalg.eigh, ("eigenvalues", "eigenvectors")),
}


@pytest.mark.parametrize("name", NAMED)
def test_results_have_names_and_stay_tuples(name):
    fn, names = NAMED[name]
    x = tensor([[2.0, 1.0, 0.5], [1.0, 3.0, 0.2], [0.5, 0.2, 4.0]])
    plain = fn(x)
    batched = vmap(fn)(probtorch.stack([x, x]))
    for result in (plain, compiled(fn)(x), pickle.loads(pickle.dumps(plain))):
        assert isinstance(result, tuple) and result._fields == names
        for k, part in enumerate(names):
            assert getattr(result, part) is result[k]
            assert_close(result[k], plain[k])
    assert batched._fields == names and batched[0].shape[0] == 2


# ------------------------------------------------------------------------------- what is refused


@both
def test_negative_rows_and_classes_are_refused(run):
    weight = tensor([[1.0], [2.0], [3.0]])
    for fn in (lambda i: F.embedding(i, weight), lambda i: F.one_hot(i, 3)):
        call = run(fn)
        call(tensor([1, 2]))
        native = probtorch.compile(fn) if run is compiled else fn
        native(tensor([1, 2])), native(tensor([1, 2]))
        with pytest.raises(TensorIndexError):
            native(tensor([-1, 2]))


def test_shapes_without_elements_or_dims():
    assert [p.shape for p in probtorch.zeros(0, 3).chunk(2)] == [(0, 3), (0, 3)]
    assert probtorch.inner(tensor(2.0), probtorch.ones(3)).tolist() == [2.0, 2.0, 2.0]
    assert probtorch.linalg.matrix_rank(probtorch.zeros(0, 3)).item() == 0
    assert F.group_norm(probtorch.zeros(0, 4, 3), 2).shape == (0, 4, 3)
    assert probtorch.ones(2, 3).norm("nuc").item() == pytest.approx(math.sqrt(6.0))
    with pytest.raises(ShapeError, match="two dims for the nuclear norm"):
        probtorch.ones(3).norm("nuc")
    with pytest.raises(ShapeError, match="pixel_shuffle"):
        F.pixel_shuffle(probtorch.ones(3), 2)
    with pytest.raises(DomainError, match="finite"):
        probtorch.linalg.svd(tensor([[INF, 1.0], [1.0, 2.0]]))


def test_a_compiled_decomposition_of_infinities_ends():
    call = probtorch.compile(probtorch.linalg.svd)
    call(probtorch.eye(3)), call(probtorch.eye(3))
    with pytest.raises(DomainError, match="finite"):
        call(probtorch.full((3, 3), INF))


# ------------------------------------------------------------------------------------------ layers


def test_batch_norm_whose_tracking_is_switched_off_later_leaves_its_buffers_alone():
    layer = BatchNorm1d(2)
    layer.track_running_stats = False
    layer(tensor(rng.standard_normal((5, 2)), dtype=probtorch.float32))
    assert layer.running_mean.tolist() == [0.0, 0.0]
    assert layer.running_var.tolist() == [1.0, 1.0]
    assert layer.num_batches_tracked.item() == 0


def test_a_normalised_tensor_may_be_overwritten_by_what_follows():
    x = tensor([[1.0, 2.0, 4.0]], requires_grad=True)
    F.relu(F.layer_norm(x, (3,)), inplace=True).sum().backward()
    assert x.grad.isfinite().all()


def test_vmap_with_the_same_randomness_draws_the_same_in_every_chunk():
    fn = lambda x: x + probtorch.rand(()) + probtorch.randn(())
    got = vmap(fn, randomness="same", chunk_size=2)(probtorch.zeros(5))
    assert len(set(got.tolist())) == 1
    other = vmap(fn, randomness="different", chunk_size=2)(probtorch.zeros(5))
    assert len(set(other.tolist())) == 5


@pytest.mark.parametrize("name", ["tanh", "exp", "softplus", "add", "lgamma"])
def test_elementwise_functions_pickle_by_name(name):
    function = getattr(probtorch, name)
    assert pickle.loads(pickle.dumps(function)) is function


@pytest.mark.parametrize(
    "dtype", [probtorch.float64, probtorch.float32, probtorch.float16], ids=str
)
def test_a_number_before_a_tensor_is_the_tensor_of_it(dtype):
    x = tensor([-1.5, 0.25, 3.0], dtype=dtype)
    for name in ("add", "sub", "mul", "div", "pow", "lt", "floor_divide", "copysign"):
        fn = getattr(probtorch, name)
        for number in (2, 0.5, -3):
            found, expected = fn(number, x), fn(tensor(number, dtype=dtype).expand(3), x)
            assert found.dtype == expected.dtype, (name, number)
            assert_close(found, expected)
    (g,) = grad((1.0 - x.requires_grad_()).sum(), x)
    assert_close(g, -probtorch.ones(3, dtype=dtype))


def test_a_whole_number_before_whole_numbers_stays_whole_and_in_range():
    n = tensor([1, 2, 3])
    assert (2 - n).tolist() == [1, 0, -1] and (2 - n).dtype == probtorch.int64
    assert (1 / n).dtype == probtorch.float32 and (2.5 * n).tolist() == [2.5, 5.0, 7.5]
    for x in (n, n.double()):
        with pytest.raises(DomainError, match="a whole number of about"):
            10**400 * x
