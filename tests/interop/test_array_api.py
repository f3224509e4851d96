"""The array API namespace of tensors: every name of the standard, with NumPy's answers."""

import inspect

import numpy as np
import pytest

import probtorch
from probtorch.errors import ArgumentError
from probtorch.tensor import tensor
from probtorch.testing.compare import assert_close

XP = tensor(1.0).__array_namespace__()
# Version 2023.12, without complex numbers, bitwise and unsigned dtypes that we have not.
NAMES = (
    "e inf nan newaxis pi arange asarray empty empty_like eye from_dlpack full full_like linspace "
    "meshgrid ones ones_like tril triu zeros zeros_like astype broadcast_arrays broadcast_to "
    "can_cast finfo iinfo isdtype result_type bool int8 int16 int32 int64 uint8 float32 float64 "
    "abs acos acosh add asin asinh atan atan2 atanh bitwise_and bitwise_left_shift bitwise_invert "
    "bitwise_or bitwise_right_shift bitwise_xor ceil clip copysign cos cosh divide equal exp expm1 "
    "floor floor_divide greater greater_equal hypot isfinite isinf isnan less less_equal log log1p "
    "log2 log10 logaddexp logical_and logical_not logical_or logical_xor maximum minimum multiply "
    "negative not_equal positive pow remainder round sign signbit sin sinh square sqrt subtract "
    "tan tanh trunc take matmul matrix_transpose tensordot vecdot concat expand_dims flip moveaxis "
    "permute_dims repeat reshape roll squeeze stack tile unstack argmax argmin nonzero "
    "searchsorted where unique_all unique_counts unique_inverse unique_values argsort sort "
    "cumulative_sum max mean min prod std sum var all any __array_namespace_info__"
).split()
LINALG = (
    "cholesky cross det diagonal eigh eigvalsh inv matmul matrix_norm matrix_power matrix_rank "
    "matrix_transpose outer pinv qr slogdet solve svd svdvals tensordot trace vecdot vector_norm"
).split()

X = np.random.default_rng(0).normal(size=(3, 4))
Y = np.random.default_rng(1).uniform(0.1, 0.9, size=(3, 4))
SQUARE = X[:, :3] @ X[:, :3].T + np.eye(3)
I = np.array([[3, 1, 2], [0, 3, 3]])
B = np.array([[True, False], [True, True]])


def test_every_name_of_the_standard_is_there():
    assert [n for n in NAMES if not hasattr(XP, n)] == []
    assert [n for n in LINALG if not hasattr(XP.linalg, n)] == []
    assert set(XP.__all__) == {*NAMES, "linalg", "__array_api_version__"}
    assert set(XP.linalg.__all__) == set(LINALG)
    assert XP is probtorch.array_api


UNARY = (
    "abs acos asin asinh atan atanh ceil cos cosh exp expm1 floor isfinite isinf isnan log log1p "
    "log2 log10 negative positive round sign signbit sin sinh square sqrt tan tanh trunc"
).split()
BINARY = (
    "add atan2 copysign divide equal floor_divide greater greater_equal hypot less less_equal "
    "logaddexp maximum minimum multiply not_equal pow remainder subtract"
).split()
REDUCTIONS = "max mean min prod std sum var".split()
CALLS = {
    **{name: lambda xp, n=name: getattr(xp, n)(xp.asarray(Y)) for name in UNARY},
    **{
        name: lambda xp, n=name: getattr(xp, n)(xp.asarray(Y), xp.asarray(Y[::-1].copy()))
        for name in BINARY
    },
    **{
        f"{name} {axis} {keep}": lambda xp, n=name, a=axis, k=keep: getattr(xp, n)(
            xp.asarray(X), axis=a, keepdims=k
        )
        for name in REDUCTIONS
        for axis in (None, 0, -1, (0, 1), ())
        for keep in (False, True)
    },
    **{
        f"{name} {axis}": lambda xp, n=name, a=axis: getattr(xp, n)(xp.asarray(B), axis=a)
        for name in ("all", "any")
        for axis in (None, 0, (0, 1), ())
    },
    **{
        f"{name} {axis}": lambda xp, n=name, a=axis: getattr(xp, n)(xp.asarray(X), axis=a)
        for name in ("argmax", "argmin")
        for axis in (None, 0, 1)
    },
    "acosh": lambda xp: xp.acosh(xp.asarray(Y + 1.0)),
    "sum of small integers": lambda xp: xp.sum(xp.asarray(I.astype(np.int8))),
    "prod of booleans": lambda xp: xp.prod(xp.asarray(B), axis=1),
    "sum in a dtype": lambda xp: xp.sum(xp.asarray(I), dtype=xp.float64),
    "var corrected": lambda xp: xp.var(xp.asarray(X), axis=0, correction=1),
    "std corrected": lambda xp: xp.std(xp.asarray(X), correction=1.5),
    "arange": lambda xp: xp.arange(1, 7, 2),
    "arange of one": lambda xp: xp.arange(4),
    "linspace": lambda xp: xp.linspace(0, 1, 5, dtype=xp.float64, endpoint=False),
    "eye": lambda xp: xp.eye(2, 3, k=1, dtype=xp.float64),
    "full": lambda xp: xp.full((2, 1), 7),
    "full_like": lambda xp: xp.full_like(xp.asarray(X), 3),
    "zeros_like": lambda xp: xp.zeros_like(xp.asarray(I), dtype=xp.float64),
    "ones": lambda xp: xp.ones(3, dtype=xp.int32),
    "zeros": lambda xp: xp.zeros((2, 0), dtype=xp.float64),
    "ones_like": lambda xp: xp.ones_like(xp.asarray(B)),
    "tril": lambda xp: xp.tril(xp.asarray(X), k=1),
    "triu": lambda xp: xp.triu(xp.asarray(X), k=-1),
    "meshgrid": lambda xp: xp.meshgrid(xp.asarray([1, 2]), xp.asarray([3, 4, 5]), xp.asarray([6])),
    "meshgrid ij": lambda xp: xp.meshgrid(xp.asarray([1, 2]), xp.asarray([3, 4]), indexing="ij"),
    "astype": lambda xp: xp.astype(xp.asarray(X), xp.int32),
    "broadcast_arrays": lambda xp: xp.broadcast_arrays(xp.asarray(X), xp.asarray(X[:1])),
    "broadcast_to": lambda xp: xp.broadcast_to(xp.asarray(X[0]), (2, 4)),
    "bitwise": lambda xp: xp.bitwise_and(xp.asarray(I), xp.asarray(2)),
    "bitwise_or": lambda xp: xp.bitwise_or(xp.asarray(B), xp.asarray(B.T.copy())),
    "bitwise_xor": lambda xp: xp.bitwise_xor(xp.asarray(I), xp.asarray(1)),
    "bitwise_invert": lambda xp: xp.bitwise_invert(xp.asarray(I)),
    "bitwise_left_shift": lambda xp: xp.bitwise_left_shift(xp.asarray(I), xp.asarray(2)),
    "bitwise_right_shift": lambda xp: xp.bitwise_right_shift(xp.asarray(I), xp.asarray(1)),
    "logical": lambda xp: xp.logical_and(xp.asarray(B), xp.logical_not(xp.asarray(B.T.copy()))),
    "logical_or": lambda xp: xp.logical_or(xp.asarray(B), xp.asarray(~B)),
    "logical_xor": lambda xp: xp.logical_xor(xp.asarray(B), xp.asarray(B.T.copy())),
    "clip": lambda xp: xp.clip(xp.asarray(X), -0.5, 0.5),
    "clip one side": lambda xp: xp.clip(xp.asarray(X), max=0.25),
    "where": lambda xp: xp.where(xp.asarray(X) > 0, xp.asarray(X), xp.asarray(Y)),
    "take": lambda xp: xp.take(xp.asarray(X), xp.asarray([2, 0]), axis=1),
    "concat": lambda xp: xp.concat([xp.asarray(X), xp.asarray(Y)], axis=1),
    "concat flat": lambda xp: xp.concat([xp.asarray(X), xp.asarray(Y[0])], axis=None),
    "expand_dims": lambda xp: xp.expand_dims(xp.asarray(X), axis=1),
    "flip": lambda xp: xp.flip(xp.asarray(X)),
    "flip one": lambda xp: xp.flip(xp.asarray(X), axis=1),
    "moveaxis": lambda xp: xp.moveaxis(xp.asarray(X), 0, 1),
    "permute_dims": lambda xp: xp.permute_dims(xp.asarray(X), (1, 0)),
    "repeat": lambda xp: xp.repeat(xp.asarray(X), 2, axis=1),
    "repeat flat": lambda xp: xp.repeat(xp.asarray(X), 2),
    "repeat each": lambda xp: xp.repeat(xp.asarray(X), xp.asarray([1, 0, 2]), axis=0),
    "reshape": lambda xp: xp.reshape(xp.asarray(X), (4, 3), copy=True),
    "roll": lambda xp: xp.roll(xp.asarray(X), 2),
    "roll axes": lambda xp: xp.roll(xp.asarray(X), (1, 2), axis=(0, 1)),
    "squeeze": lambda xp: xp.squeeze(xp.asarray(X[None, :, None]), axis=(0, 2)),
    "stack": lambda xp: xp.stack([xp.asarray(X), xp.asarray(Y)], axis=-1),
    "tile": lambda xp: xp.tile(xp.asarray(X), (2, 1)),
    "unstack": lambda xp: xp.unstack(xp.asarray(X), axis=1),
    "nonzero": lambda xp: xp.nonzero(xp.asarray(I)),
    "searchsorted": lambda xp: xp.searchsorted(
        xp.asarray([1.0, 2.0, 2.0, 3.0]), xp.asarray([2.0, 0.0]), side="right"
    ),
    "searchsorted unsorted": lambda xp: xp.searchsorted(
        xp.asarray([3.0, 1.0, 2.0]), xp.asarray([2.0, 4.0]), sorter=xp.asarray([1, 2, 0])
    ),
    "unique_all": lambda xp: xp.unique_all(xp.asarray(I)),
    "unique_counts": lambda xp: xp.unique_counts(xp.asarray(I)),
    "unique_inverse": lambda xp: xp.unique_inverse(xp.asarray(I)),
    "unique_values": lambda xp: xp.sort(xp.unique_values(xp.asarray(I))),
    "sort": lambda xp: xp.sort(xp.asarray(X), axis=0),
    "argsort": lambda xp: xp.argsort(xp.asarray(X)),
    "cumulative_sum": lambda xp: xp.cumulative_sum(xp.asarray(X), axis=1, include_initial=True),
    "cumulative_sum of integers": lambda xp: xp.cumulative_sum(xp.asarray(I[0].astype(np.int8))),
    "matmul": lambda xp: xp.matmul(xp.asarray(X), xp.asarray(Y.T.copy())),
    "matrix_transpose": lambda xp: xp.matrix_transpose(xp.asarray(X)),
    "tensordot": lambda xp: xp.tensordot(xp.asarray(X), xp.asarray(Y), axes=((0,), (0,))),
    "vecdot": lambda xp: xp.vecdot(xp.asarray(X), xp.asarray(Y), axis=0),
    "cholesky": lambda xp: xp.linalg.cholesky(xp.asarray(SQUARE), upper=True),
    "cross": lambda xp: xp.linalg.cross(xp.asarray(X), xp.asarray(Y), axis=0),
    "det": lambda xp: xp.linalg.det(xp.asarray(SQUARE)),
    "diagonal": lambda xp: xp.linalg.diagonal(xp.asarray(X), offset=1),
    "eigvalsh": lambda xp: xp.linalg.eigvalsh(xp.asarray(SQUARE)),
    "eigh": lambda xp: xp.linalg.eigh(xp.asarray(SQUARE))[0],
    "inv": lambda xp: xp.linalg.inv(xp.asarray(SQUARE)),
    "matrix_norm": lambda xp: xp.linalg.matrix_norm(xp.asarray(X), keepdims=True),
    "matrix_norm nuc": lambda xp: xp.linalg.matrix_norm(xp.asarray(X), ord="nuc"),
    "matrix_power": lambda xp: xp.linalg.matrix_power(xp.asarray(SQUARE), 3),
    "matrix_rank": lambda xp: xp.linalg.matrix_rank(xp.asarray(X)),
    "outer": lambda xp: xp.linalg.outer(xp.asarray(X[0]), xp.asarray(Y[0])),
    "pinv": lambda xp: xp.linalg.pinv(xp.asarray(X)),
    "slogdet": lambda xp: xp.linalg.slogdet(xp.asarray(SQUARE)),
    "solve": lambda xp: xp.linalg.solve(xp.asarray(SQUARE), xp.asarray(X)),
    "solve vector": lambda xp: xp.linalg.solve(xp.asarray(SQUARE), xp.asarray(X[:, 0].copy())),
    "svdvals": lambda xp: xp.linalg.svdvals(xp.asarray(X)),
    "trace": lambda xp: xp.linalg.trace(xp.asarray(X), offset=-1),
    "vector_norm": lambda xp: xp.linalg.vector_norm(xp.asarray(X), axis=0, keepdims=True),
    "vector_norm of all": lambda xp: xp.linalg.vector_norm(xp.asarray(X), keepdims=True),
    "vector_norm 1": lambda xp: xp.linalg.vector_norm(xp.asarray(X), axis=(0, 1), ord=1),
}


@pytest.mark.parametrize("call", CALLS)
def test_answers_are_numpys(call):
    found, expected = CALLS[call](XP), CALLS[call](np)
    several = isinstance(expected, (tuple, list))
    for ours, theirs in zip(*((found, expected) if several else ([found], [expected]))):
        assert type(ours) is probtorch.Tensor
        assert ours.dtype == theirs.dtype and tuple(ours.shape) == theirs.shape
        assert_close(ours, tensor(np.asarray(theirs)), rtol=1e-12, atol=1e-14)
    if several:
        assert len(found) == len(expected)
        assert getattr(found, "_fields", None) == getattr(expected, "_fields", None)


def test_factors_give_the_matrix_back():
    x = tensor(X)
    q, r = XP.linalg.qr(x)
    assert_close(q @ r, x)
    u, s, vh = XP.linalg.svd(x, full_matrices=False)
    assert_close((u * s) @ vh, x)
    u, s, vh = XP.linalg.svd(tensor(SQUARE))
    assert_close((u * s) @ vh, tensor(SQUARE))
    u, s, vh = XP.linalg.svd(x)
    k = min(x.shape)
    assert u.shape == (x.shape[0],) * 2 and vh.shape == (x.shape[1],) * 2
    assert_close((u[:, :k] * s) @ vh[:k], x)


@pytest.mark.parametrize("name", [n for n in NAMES if inspect.isfunction(getattr(XP, n))])
def test_arguments_are_those_of_the_standard(name):
    strict = pytest.importorskip("array_api_strict")
    if not hasattr(strict, name) or name in ("empty", "empty_like"):
        return
    theirs = inspect.signature(getattr(strict, name)).parameters.values()
    ours = inspect.signature(getattr(XP, name)).parameters
    keywords = {p.name for p in theirs if p.kind is inspect.Parameter.KEYWORD_ONLY}
    assert keywords - {"out"} <= set(ours)


def test_dtypes_are_asked_about():
    assert XP.isdtype(XP.float32, "real floating") and not XP.isdtype(XP.int8, "real floating")
    assert XP.isdtype(XP.bool, ("numeric", "bool")) and XP.isdtype(XP.int8, XP.int8)
    assert XP.result_type(XP.int8, XP.float32) == XP.float32
    assert XP.result_type(tensor([1], dtype=probtorch.int8), 1.5) == XP.float32
    assert XP.result_type(1, True) == XP.int64
    assert XP.can_cast(XP.int8, XP.int64) and not XP.can_cast(tensor(1.0), XP.int64)
    assert XP.finfo(tensor(1.0)).eps == np.finfo("f4").eps and XP.iinfo(XP.int8).max == 127
    with pytest.raises(ArgumentError, match="real floating"):
        XP.isdtype(XP.int8, "real")


def test_what_a_library_asks_of_the_namespace():
    info = XP.__array_namespace_info__()
    assert info.default_device() == "cpu" and "cpu" in info.devices()
    assert info.capabilities()["boolean indexing"]
    assert info.default_dtypes()["real floating"] == XP.float32
    assert set(info.dtypes(kind="integral")) == {"int8", "int16", "int32", "int64", "uint8"}
    assert tensor(1.0).__array_namespace__(api_version="2022.12") is XP
    with pytest.raises(ArgumentError, match=r"2023\.12"):
        tensor(1.0).__array_namespace__(api_version="2055.12")


def test_conversion_copies_when_it_is_asked_to():
    array, x = np.ones(3), tensor([1.0])
    assert np.shares_memory(XP.asarray(array).numpy(), array)
    assert not np.shares_memory(XP.asarray(array, copy=True).numpy(), array)
    assert XP.asarray(x) is x and XP.asarray(x, copy=False) is x
    assert XP.astype(x, XP.float32, copy=False) is x and XP.astype(x, XP.float32) is not x
    assert XP.from_dlpack(array, copy=True).tolist() == [1.0] * 3
    for given in ({"obj": [1.0]}, {"obj": x, "dtype": XP.float64}):
        with pytest.raises(ArgumentError, match="as it is"):
            XP.asarray(given.pop("obj"), copy=False, **given)


def test_gradients_flow():
    x = tensor(X, requires_grad=True)
    y = XP.sum(XP.concat([XP.square(x), XP.permute_dims(XP.exp(x), (1, 0)).T], axis=0))
    y.backward()
    assert_close(x.grad, tensor(2 * X + np.exp(X)))


@pytest.mark.parametrize(
    "call",
    [
        lambda: XP.squeeze(tensor(X), axis=0),
        lambda: XP.take(tensor(X), tensor([0])),
        lambda: XP.cumulative_sum(tensor(X)),
        lambda: XP.meshgrid(tensor([1]), indexing="yx"),
        lambda: XP.linalg.qr(tensor(X), mode="complete"),
        lambda: XP.linalg.cross(tensor(X), tensor(X)),
        lambda: XP.result_type(),
    ],
)
def test_mistakes_are_refused(call):
    with pytest.raises(ArgumentError):
        call()


def test_libraries_find_it():
    compat = pytest.importorskip("array_api_compat")
    x = tensor(X)
    assert compat.array_namespace(x, x) is XP
    assert compat.is_array_api_obj(x) and compat.size(x) == 12 and compat.device(x) == "cpu"
