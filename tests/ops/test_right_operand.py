"""Operators whose right operand is of a class that answers them itself."""

import operator

import numpy as np
import pytest
from scipy import sparse

import probtorch
from probtorch import tensor
from probtorch.errors import DTypeError
from probtorch.testing import assert_close

OPERATORS = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"]


def _answering(base):
    names = [f"__r{name}__" for name in OPERATORS] + ["__lt__", "__le__", "__gt__", "__ge__"]
    return type(
        "Answering", (base,), {n: lambda self, other, n=n: (n, type(other).__name__) for n in names}
    )


@pytest.mark.parametrize("base", [object, tuple, list])
@pytest.mark.parametrize("name", OPERATORS)
def test_the_reflected_method_is_asked(name, base):
    got = getattr(operator, name)(tensor([1.0, 2.0]), _answering(base)())
    assert got == (f"__r{name}__", "Tensor")


@pytest.mark.parametrize(("name", "asked"), [("lt", "__gt__"), ("ge", "__le__")])
def test_comparisons_are_turned_round(name, asked):
    assert getattr(operator, name)(tensor([1.0]), _answering(object)()) == (asked, "Tensor")


def test_plain_lists_and_arrays_are_still_operands():
    x = tensor([1.0, 2.0])
    assert_close(x * [3.0, 4.0], tensor([3.0, 8.0]))
    assert_close(x * np.array([3.0, 4.0], np.float32), tensor([3.0, 8.0]))


def test_a_class_that_gives_no_answer_is_refused_as_before():
    class Silent:
        def __rmul__(self, other):
            return NotImplemented

    for stranger in (Silent(), object()):
        with pytest.raises(DTypeError, match="a tensor, array or number"):
            tensor([1.0]) * stranger


@pytest.mark.parametrize("made", [sparse.csr_matrix, sparse.csr_array])
@pytest.mark.parametrize("name", ["mul", "add", "lt"])
def test_sparse_matrices_are_refused_in_our_words(made, name):
    # Their reflected methods ask for the numbers, and would leave the tape behind.
    with pytest.raises(DTypeError, match=r"a tensor, array or number(.|\n)*X @ b"):
        getattr(operator, name)(tensor([[1.0, 2.0]]), made(np.eye(2)))


def test_one_number_in_an_array_of_any_rank_fits_one_place():
    x = probtorch.zeros(2, 3)
    x[1, 2] = probtorch.full((1, 1, 1), 5.0)
    assert x[1, 2].item() == 5.0


def test_scatter_takes_value_by_name():
    at = tensor([[0], [2]])
    assert_close(
        probtorch.zeros(2, 3).scatter_(dim=-1, index=at, value=1.0),
        tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]),
    )
