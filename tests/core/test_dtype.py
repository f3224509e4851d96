"""Promotion and default dtypes follow PyTorch.

The tables are what ``torch.result_type`` of torch 2.13 returns; rows are the first operand, columns
the second, in the order of NAMES.
"""

import numpy as np
import pytest

import probtorch
from probtorch.core.dtype import as_dtype, default_dtype_as, promote_types
from probtorch.errors import DTypeError

NAMES = "b1 u1 i1 i2 i4 i8 f2 f4 f8".split()
BOTH_WITH_DIMS = """
b1 u1 i1 i2 i4 i8 f2 f4 f8
u1 u1 i2 i2 i4 i8 f2 f4 f8
i1 i2 i1 i2 i4 i8 f2 f4 f8
i2 i2 i2 i2 i4 i8 f2 f4 f8
i4 i4 i4 i4 i4 i8 f2 f4 f8
i8 i8 i8 i8 i8 i8 f2 f4 f8
f2 f2 f2 f2 f2 f2 f2 f4 f8
f4 f4 f4 f4 f4 f4 f4 f4 f8
f8 f8 f8 f8 f8 f8 f8 f8 f8
"""
SECOND_IS_0D = """
b1 u1 i1 i2 i4 i8 f2 f4 f8
u1 u1 u1 u1 u1 u1 f2 f4 f8
i1 i1 i1 i1 i1 i1 f2 f4 f8
i2 i2 i2 i2 i2 i2 f2 f4 f8
i4 i4 i4 i4 i4 i4 f2 f4 f8
i8 i8 i8 i8 i8 i8 f2 f4 f8
f2 f2 f2 f2 f2 f2 f2 f2 f2
f4 f4 f4 f4 f4 f4 f4 f4 f4
f8 f8 f8 f8 f8 f8 f8 f8 f8
"""
# With the numbers True, 2 and 2.5.
WITH_NUMBERS = """
b1 i8 f4
u1 u1 f4
i1 i1 f4
i2 i2 f4
i4 i4 f4
i8 i8 f4
f2 f2 f2
f4 f4 f4
f8 f8 f8
"""


def entries(table, columns):
    lines = [line.split() for line in table.split("\n")[1:-1]]
    return [
        (row, column, result)
        for row, line in zip(NAMES, lines, strict=True)
        for column, result in zip(columns, line, strict=True)
    ]


def ones(name, *shape):
    return probtorch.from_numpy(np.ones(shape, name))


@pytest.mark.parametrize("a, b, expected", entries(BOTH_WITH_DIMS, NAMES))
def test_tensors_with_dims_promote_as_in_torch(a, b, expected):
    assert promote_types(np.dtype(a), np.dtype(b)) == expected
    assert (ones(a, 2) * ones(b, 2)).dtype == expected
    assert probtorch.cat([ones(a, 2), ones(b, 2)]).dtype == expected


@pytest.mark.parametrize("a, b, expected", entries(SECOND_IS_0D, NAMES))
def test_0d_tensor_does_not_widen_its_own_category(a, b, expected):
    assert (ones(a, 2) * ones(b)).dtype == expected
    assert (ones(b) * ones(a, 2)).dtype == expected


@pytest.mark.parametrize("a, b, expected", entries(WITH_NUMBERS, [True, 2, 2.5]))
def test_python_number_is_weak(a, b, expected):
    for shape in ((2,), ()):
        assert (ones(a, *shape) * b).dtype == expected
        assert (b * ones(a, *shape)).dtype == expected


def test_numpy_scalar_counts_as_a_0d_tensor():
    assert (ones("f4", 2) * np.float64(2.0)).dtype == np.float32
    assert (np.float64(2.0) * ones("f4", 2)).dtype == np.float32


def test_integers_give_the_default_float_dtype_where_floats_are_needed():
    x = probtorch.tensor([1, 2])
    assert probtorch.exp(x).dtype == np.float32
    assert (x / x).dtype == np.float32
    with default_dtype_as("float64"):
        assert probtorch.exp(x).dtype == np.float64
        assert (x / 2).dtype == np.float64
        assert probtorch.tensor([1.0]).dtype == np.float64
    assert probtorch.tensor([1.0]).dtype == np.float32


def test_default_dtype_comes_back_after_an_error():
    with pytest.raises(ZeroDivisionError), default_dtype_as("float64"):
        1 // 0  # noqa: B018
    assert probtorch.get_default_dtype() == np.float32


def test_default_dtype_must_be_floating():
    with pytest.raises(DTypeError, match="expected: a floating dtype") as caught:
        probtorch.set_default_dtype("int64")
    assert "int64" in str(caught.value)


@pytest.mark.parametrize(
    "spelling, expected",
    [
        (float, "f4"),
        (int, "i8"),
        (bool, "b1"),
        ("double", "f8"),
        ("torch.float64", "f8"),
        ("long", "i8"),
        ("half", "f2"),
        (np.int8, "i1"),
        (probtorch.float64, "f8"),
    ],
    ids=str,
)
def test_dtype_has_many_spellings(spelling, expected):
    assert as_dtype(spelling) == expected


@pytest.mark.parametrize(
    "nonsense",
    ["floaty", object(), "U3", "datetime64[s]"],
    ids=lambda x: x if isinstance(x, str) else "object",
)
def test_what_is_not_a_numeric_dtype_is_refused(nonsense):
    with pytest.raises(DTypeError, match="expected: a numeric dtype"):
        as_dtype(nonsense)


def test_small_unsigned_integers_wrap_around_as_in_torch():
    x = probtorch.tensor([1, 200], dtype=probtorch.uint8)
    assert (x + 300).tolist() == [45, 244]
    assert (x - 2).tolist() == [255, 198]
    assert (x < 300).tolist() == [True, True]
    assert (probtorch.tensor([1], dtype=probtorch.int8) + 255).tolist() == [0]


def test_numbers_alone_take_the_default_dtype():
    mask = probtorch.tensor([True, False])
    assert probtorch.where(mask, 1.0, 0.0).dtype == np.float32
    assert probtorch.where(mask, 1, 0).dtype == np.int64


def test_fraction_is_not_cut_off_for_an_integer_tensor():
    assert (probtorch.tensor([1]) * 0.5).tolist() == [0.5]


@pytest.mark.parametrize("name", ["floor_divide", "remainder", "fmod"])
def test_integer_division_by_zero_raises(name):
    x = probtorch.tensor([4, 2])
    with pytest.raises(ZeroDivisionError, match="got:      a divisor of 0"):
        getattr(probtorch, name)(x, 0)
    with pytest.raises(ZeroDivisionError, match=name):
        getattr(probtorch, name)(5, probtorch.tensor([1, 0]))


@pytest.mark.parametrize("name", ["remainder", "floor_divide", "fmod"])
def test_division_by_false_raises_too(name):
    with pytest.raises(ZeroDivisionError, match=name):
        getattr(probtorch, name)(probtorch.tensor([True]), probtorch.tensor([False]))


def test_float_division_by_zero_follows_ieee_without_a_warning():
    x = probtorch.tensor([1.0, 0.0])
    quotient = x / 0.0
    assert quotient[0].item() == np.inf
    assert np.isnan(quotient[1].item())
    assert probtorch.log(x).tolist() == [0.0, -np.inf]


def test_names_of_the_classes_that_pytorch_had():
    x = probtorch.ones(2, dtype=probtorch.int64)
    assert x.type(probtorch.Tensor).dtype == np.float32
    assert x.type("torch.DoubleTensor").dtype == np.float64
    assert x.type() == "torch.LongTensor"
    assert x.double().type("torch.FloatTensor").type() == "torch.FloatTensor"
    for name in ("float16", "float32", "float64", "int8", "int16", "int32", "uint8", "bool"):
        assert x.type(x.type(name).type()).dtype == np.dtype(name)
