"""Arguments by the names that PyTorch's users, and NumPy's, give them."""

import inspect

import numpy as np
import pytest

import probtorch
import probtorch.nn.functional as F
from probtorch import linalg, tensor
from probtorch.errors import ArgumentError, DTypeError

X = tensor([[1.0, 2.5], [-3.0, 4.0]])
ROW = tensor([2.0, 3.0])

BY_NAME = {
    "exp": (lambda: probtorch.exp(input=X), lambda: probtorch.exp(X)),
    "pow": (lambda: probtorch.pow(input=X, exponent=2), lambda: X**2),
    "a method of two operands": (lambda: X.pow(exponent=2), lambda: X**2),
    "maximum": (lambda: probtorch.maximum(X, other=ROW), lambda: probtorch.maximum(X, ROW)),
    "mm": (lambda: probtorch.mm(input=X, mat2=X), lambda: X @ X),
    "mv": (lambda: probtorch.mv(X, vec=ROW), lambda: X @ ROW),
    "outer": (lambda: probtorch.outer(ROW, vec2=ROW), lambda: ROW[:, None] * ROW),
    "where": (lambda: probtorch.where(condition=X > 0, input=X, other=0.0), lambda: X.clamp(min=0)),
    "where, its last": (lambda: probtorch.where(X > 0, X, other=0.0), lambda: X.clamp(min=0)),
    "mean": (lambda: probtorch.mean(input=X, dim=0), lambda: X.mean(0)),
    "solve": (lambda: linalg.solve(A=X, B=ROW), lambda: linalg.solve(X, ROW)),
    "split": (lambda: probtorch.split(tensor=X, split_size_or_sections=1)[1], lambda: X[1:]),
    "permute": (lambda: probtorch.permute(X, dims=(1, 0)), lambda: X.T),
    "cat by axis": (lambda: probtorch.cat([X, X], axis=1), lambda: probtorch.cat([X, X], 1)),
    "stack by axis": (lambda: probtorch.stack([X, X], axis=1), lambda: probtorch.stack([X, X], 1)),
    "max by axis": (lambda: X.max(axis=0, keepdims=True).values, lambda: X.max(0, True).values),
    "softmax of halves": (lambda: F.softmax(input=X.half(), dim=0).float(), lambda: X.softmax(0)),
    "sizes": (lambda: probtorch.zeros(size=(2, 3)), lambda: probtorch.zeros(2, 3)),
    "new_full": (lambda: X.new_full(size=(2,), fill_value=3.0), lambda: tensor([3.0, 3.0])),
    "copy_": (lambda: X.clone().copy_(ROW, non_blocking=True), lambda: ROW.expand(2, 2)),
}


@pytest.mark.parametrize("name", BY_NAME)
def test_arguments_go_by_their_names(name):
    given, expected = (make() for make in BY_NAME[name])
    assert given.shape == expected.shape
    np.testing.assert_allclose(given.numpy(), expected.numpy(), rtol=2e-3)


SYMMETRIC = np.array([[2.0, 0.5], [0.5, 1.0]])
LOWER = tensor([[2.0, 99.0], [0.5, 1.0]], dtype=probtorch.float64)
RANK_ONE = tensor([[1.0, 2.0], [2.0, 4.0 + 1e-7]], dtype=probtorch.float64)
STACK = tensor(np.arange(12.0).reshape(2, 2, 3) ** 1.5)
BY_OPTION = {
    "eigh of a triangle": (
        lambda: linalg.eigh(LOWER, UPLO="L").eigenvalues,
        np.linalg.eigvalsh(SYMMETRIC),
    ),
    "eigvalsh of a triangle": (
        lambda: linalg.eigvalsh(LOWER.mT, "U"),
        np.linalg.eigvalsh(SYMMETRIC),
    ),
    "matrix_norm of dims": (
        lambda: linalg.matrix_norm(STACK, 1, dim=(0, 2), keepdim=True),
        np.linalg.norm(STACK.numpy(), 1, axis=(0, 2), keepdims=True),
    ),
    "matrix_norm in double": (
        lambda: linalg.matrix_norm(X, dtype=probtorch.float64),
        np.linalg.norm(X.numpy().astype(float)),
    ),
    "qr, R alone": (
        lambda: linalg.qr(LOWER, mode="r").R.abs(),
        np.abs(np.linalg.qr(LOWER.numpy(), mode="r")),
    ),
    "pinv with a tolerance": (
        lambda: linalg.pinv(RANK_ONE, atol=1e-3),
        np.linalg.pinv(RANK_ONE.numpy(), rcond=1e-3),
    ),
    "pinverse": (
        lambda: probtorch.pinverse(RANK_ONE, rcond=1e-3),
        np.linalg.pinv(RANK_ONE.numpy(), rcond=1e-3),
    ),
    "pinv of symmetric matrices": (
        lambda: linalg.pinv(tensor(SYMMETRIC), hermitian=True),
        np.linalg.inv(SYMMETRIC),
    ),
    "matrix_rank with a tolerance": (lambda: linalg.matrix_rank(RANK_ONE, atol=1e-3), 1),
    "matrix_rank without": (lambda: linalg.matrix_rank(RANK_ONE), 2),
    "searchsorted, a side": (
        lambda: probtorch.searchsorted(tensor([1.0, 2.0, 3.0]), ROW, side="right"),
        [2, 3],
    ),
    "searchsorted, out of order": (
        lambda: probtorch.searchsorted(tensor([3.0, 1.0, 2.0]), ROW, sorter=tensor([1, 2, 0])),
        [1, 2],
    ),
    "diag_embed of dims": (
        lambda: probtorch.diag_embed(STACK, dim1=0, dim2=2),
        np.moveaxis(STACK.numpy()[..., None] * np.eye(3), (-2, -1), (0, 2)),
    ),
    "swapaxes": (
        lambda: STACK.swapaxes(axis0=0, axis1=2),
        np.swapaxes(STACK.numpy(), 0, 2),
    ),
    "tensordot": (
        lambda: probtorch.tensordot(a=X, b=X, dims=1),
        X.numpy() @ X.numpy(),
    ),
    "gather": (
        lambda: probtorch.gather(X, 0, tensor([[1, 0]]), sparse_grad=True),
        [[-3.0, 2.5]],
    ),
    "cdist": (
        lambda: probtorch.cdist(X, X, compute_mode="use_mm_for_euclid_dist"),
        np.linalg.norm(X.numpy()[:, None] - X.numpy(), axis=-1),
    ),
}


@pytest.mark.parametrize("name", BY_OPTION)
def test_options_say_what_they_say_elsewhere(name):
    compute, expected = BY_OPTION[name]
    np.testing.assert_allclose(compute().numpy(), expected, rtol=1e-6, atol=1e-9)


def test_places_as_small_integers_and_draws_that_want_a_gradient():
    assert probtorch.bucketize(ROW, ROW, out_int32=True).dtype == probtorch.int32
    assert probtorch.randint(0, 3, (2,), dtype=probtorch.float32, requires_grad=True).requires_grad
    assert not probtorch.randperm(3, requires_grad=False).requires_grad
    _, failed = linalg.cholesky_ex(tensor(SYMMETRIC), check_errors=True)
    assert not failed
    with pytest.raises(linalg.LinAlgError):
        linalg.cholesky_ex(-tensor(SYMMETRIC), check_errors=True)


def test_a_tolerance_has_a_gradient_and_options_that_are_none_are_refused():
    a = tensor(SYMMETRIC, requires_grad=True)
    linalg.pinv(a, atol=1e-3).sum().backward()
    inverse = np.linalg.inv(SYMMETRIC)
    np.testing.assert_allclose(a.grad.numpy(), -np.outer(inverse.sum(0), inverse.sum(1)), rtol=1e-9)
    for call, name in [
        (lambda: linalg.qr(X, mode="complete"), "mode"),
        (lambda: linalg.eigh(X, UPLO="lower"), "UPLO"),
        (lambda: probtorch.searchsorted(ROW, ROW, side="above"), "side"),
        (lambda: probtorch.searchsorted(ROW, ROW, right=True, side="left"), "side"),
    ]:
        with pytest.raises(ArgumentError, match=name):
            call()


WIDE = np.array([[1.0, 2.5], [-3.0, 4.0]])
IN_DOUBLE = {
    "softmax": (lambda d: X.softmax(0, d), np.exp(WIDE) / np.exp(WIDE).sum(0)),
    "log_softmax": (
        lambda d: X.log_softmax(0, dtype=d),
        WIDE - np.log(np.exp(WIDE).sum(0)),
    ),
    "prod": (lambda d: X.prod(0, dtype=d), WIDE.prod(0)),
    "cumsum": (lambda d: X.cumsum(1, dtype=d), WIDE.cumsum(1)),
    "cumprod": (lambda d: X.cumprod(1, dtype=d), WIDE.cumprod(1)),
    "norm": (lambda d: X.norm(dtype=d), np.linalg.norm(WIDE)),
    "vector_norm": (lambda d: linalg.vector_norm(X, dtype=d), np.linalg.norm(WIDE)),
    "linalg.norm": (lambda d: linalg.norm(X, dtype=d), np.linalg.norm(WIDE)),
}


@pytest.mark.parametrize("name", IN_DOUBLE)
def test_dtype_is_cast_to_first(name):
    compute, expected = IN_DOUBLE[name]
    found = compute(probtorch.float64)
    assert found.dtype == probtorch.float64
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-14)


def test_dtype_keeps_small_integers_and_wide_halves():
    assert tensor([3, 4]).prod(dtype=probtorch.int32).dtype == probtorch.int32
    assert X.half().softmax(0, dtype=probtorch.float32).dtype == probtorch.float32
    rows = tensor([1.9087390899658203, -1.4275647401809692, -0.42943963408470154])
    # Rounded once: the mean of the halves is 0.01733.
    assert rows.mean(dtype=probtorch.float16).item() == np.float16(rows.numpy().mean())


@pytest.mark.parametrize("decimals", [-2, -1, 0, 1, 3])
def test_round_to_decimals(decimals):
    x = tensor([1234.5678, -0.25, 0.35, 1.5, 2.5, -987.654], dtype=probtorch.float64)
    np.testing.assert_array_equal(x.round(decimals=decimals), np.round(x.numpy(), decimals))
    np.testing.assert_array_equal(
        x.clone().round_(decimals=decimals), np.round(x.numpy(), decimals)
    )


def test_round_to_more_places_than_there_are():
    x = tensor([1.7e308, 1.5, -2e-300], dtype=probtorch.float64)
    assert x.round(decimals=10**40).tolist() == x.tolist()
    assert x.round(decimals=20).tolist() == [1.7e308, 1.5, 0.0]
    assert x.round(decimals=-(10**40)).tolist() == [np.inf, 0.0, 0.0]


def test_round_to_decimals_has_a_gradient_of_0_and_wants_floats():
    x = tensor([1.26, -3.0], requires_grad=True)
    x.round(decimals=1).sum().backward()
    assert x.grad.tolist() == [0.0, 0.0]
    with pytest.raises(DTypeError, match="decimals"):
        tensor([1, 2]).round(decimals=1)


def test_new_tensors_are_like_this_unless_said_otherwise():
    x = tensor([1.0], dtype=probtorch.float64)
    assert x.new_zeros(2, 3).dtype == probtorch.float64
    made = x.new_ones((2, 3), dtype=probtorch.float32, device="cpu", requires_grad=True)
    assert (made.dtype, made.shape, made.requires_grad) == (probtorch.float32, (2, 3), True)
    assert x.new_tensor([1, 2], dtype=probtorch.int64).dtype == probtorch.int64
    assert x.new_empty(4, dtype=probtorch.int32).dtype == probtorch.int32
    assert x.new_full((2,), 7, requires_grad=True).is_leaf


def test_settings_of_another_compiler_are_taken():
    f = probtorch.compile(lambda x: x * 2.0, mode="max-autotune", fullgraph=True, dynamic=False)
    assert f(ROW).tolist() == [4.0, 6.0]

    @probtorch.compile(backend="inductor", options={"triton.cudagraphs": True})
    def g(x):
        return x + 1.0

    assert g(ROW).tolist() == [3.0, 4.0]

    def plain(x):
        return x

    assert probtorch.compile(plain, disable=True) is plain


def test_sizes_and_operands_are_given_once():
    with pytest.raises(ArgumentError, match="sizes by place, or size="):
        probtorch.zeros(2, size=(2,))
    with pytest.raises(ArgumentError, match="where"):
        probtorch.where(X > 0, X, 0.0, other=1.0)
    with pytest.raises(ArgumentError, match="condition, input, other"):
        probtorch.where(condition=X > 0, x=X, y=X)


def test_signatures_say_the_names():
    assert list(inspect.signature(probtorch.exp).parameters) == ["input", "out"]
    assert list(inspect.signature(probtorch.pow).parameters) == ["input", "exponent", "out"]
    assert list(inspect.signature(probtorch.mul).parameters) == ["input", "other", "out"]
