"""Second names, forms in place and tensors of memory: what is specific to them.

What PyTorch answers they answer, too, as contracts/test_against_torch.py says where it is there.
"""

import numpy as np
import pytest

import probtorch as torch
from probtorch.errors import ArgumentError, AutogradError, ShapeError
from probtorch.testing import assert_close


@pytest.mark.parametrize(
    ("operator", "expected"),
    [("&=", [1, 0]), ("|=", [3, 3]), ("^=", [2, 3]), ("<<=", [2, 8]), ("//=", [1, 0])],
)
def test_augmented_assignment_changes_the_tensor_itself(operator, expected):
    x = torch.tensor([1, 2])
    names = {"x": x, "y": torch.tensor([3, 1]) if operator in "&=|=^=" else torch.tensor([1, 2])}
    if operator == "//=":
        names["y"] = torch.tensor([1, 3])
    exec(f"x {operator} y", names)  # noqa: S102
    assert names["x"] is x and x.tolist() == expected


def test_comparison_in_place_keeps_the_dtype():
    x = torch.tensor([0.5, 2.0])
    assert x.gt_(1.0) is x and x.tolist() == [0.0, 1.0] and x.dtype == torch.float32


@pytest.mark.parametrize("change", [lambda x: x.logit_(0.1), lambda x: x.renorm_(2, 0, 1.0)])
def test_gradient_flows_through_in_place_forms_of_several_operations(change):
    leaf = torch.tensor([[0.3, 0.95], [0.4, 2.5]], dtype=torch.float64, requires_grad=True)
    change(leaf * 1.0).sum().backward()
    step, slopes = 1e-6, np.zeros((2, 2))
    for at in np.ndindex(2, 2):
        ends = []
        for sign in (1.0, -1.0):
            moved = leaf.detach().clone()
            moved[at] = float(moved[at]) + sign * step
            ends.append(float(change(moved).sum()))
        slopes[at] = (ends[0] - ends[1]) / (2 * step)
    np.testing.assert_allclose(leaf.grad.numpy(), slopes, atol=1e-8)


def test_polygamma_of_a_tensor_takes_the_order():
    x = torch.tensor([0.5, 3.0], dtype=torch.float64)
    expected = torch.special.polygamma(1, x)
    assert_close(x.polygamma(1), expected)
    assert_close(x.clone().polygamma_(1), expected)


def test_fill_diagonal_begins_anew_where_it_is_wrapped():
    x = torch.zeros(7, 3).fill_diagonal_(5.0, wrap=True)
    expected = np.zeros((7, 3))
    np.fill_diagonal(expected, 5.0, wrap=True)
    assert_close(x, torch.tensor(expected, dtype=torch.float32))
    cube = torch.zeros(3, 3, 3).fill_diagonal_(1.0)
    assert [cube[i, i, i].item() for i in range(3)] == [1.0] * 3 and cube.sum() == 3.0
    with pytest.raises(ShapeError, match="more dims of one size"):
        torch.zeros(2, 3, 2).fill_diagonal_(1.0)


def test_python_functions_overwrite_elements():
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).t()
    assert x.apply_(lambda v: v * 10) is x and x.tolist() == [[10.0, 30.0], [20.0, 40.0]]
    x.map_(torch.tensor([1.0, 2.0]), lambda a, b: a + b)
    assert x.tolist() == [[11.0, 32.0], [21.0, 42.0]]
    with pytest.raises(AutogradError, match="without a gradient"):
        torch.ones(2, requires_grad=True).apply_(abs)


def test_sums_to_a_size_are_those_of_the_broadcast_dims():
    x = torch.arange(24.0).reshape(2, 3, 4)
    assert_close(x.sum_to_size(3, 1), x.sum((0, 2)).reshape(3, 1))
    assert x.bool().sum_to_size(1, 1).dtype == torch.int64
    with pytest.raises(ShapeError, match="broadcasts to"):
        x.sum_to_size(2)


def test_buffers_share_their_memory():
    memory = bytearray(np.arange(4, dtype="int32").tobytes())
    x = torch.frombuffer(memory, dtype=torch.int32, count=2, offset=4)
    memory[4:8] = np.int32(7).tobytes()
    assert x.tolist() == [7, 2]
    with pytest.raises(ArgumentError, match="4 bytes each"):
        torch.frombuffer(b"123", dtype=torch.int32)


def test_asarray_copies_only_where_it_is_told_to():
    array = np.ones(2)
    assert torch.asarray(array).array is array
    assert torch.asarray(array, copy=True).array is not array
    with pytest.raises(ArgumentError, match="copy=False"):
        torch.asarray(array, dtype=torch.float32, copy=False)
    leaf = torch.ones(2, requires_grad=True)
    assert torch.asarray(leaf * 2.0).grad_fn is not None


def test_strides_are_those_asked_for():
    assert torch.empty_strided((2, 3), (1, 2)).stride() == (1, 2)
    assert torch.empty_permuted((2, 3, 5), (0, 2, 1)).stride() == (15, 1, 3)
    with pytest.raises(ShapeError, match="each of 2 dims once"):
        torch.empty_permuted((2, 3), (0, 0))


def test_first_places_fill_a_fixed_number_of_rows():
    x = torch.tensor([[0, 1], [1, 1]])
    assert torch.nonzero_static(x, size=2).tolist() == [[0, 1], [1, 0]]
    assert x.nonzero_static(size=4, fill_value=9).tolist()[2:] == [[1, 1], [9, 9]]


def test_integers_like_a_tensor_take_its_dtype():
    x = torch.randint_like(torch.zeros(500, dtype=torch.float64), 3, 6)
    assert x.dtype == torch.float64 and set(x.tolist()) == {3.0, 4.0, 5.0}
    assert torch.randint_like(x, 2).max() <= 1.0


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.fill_(0.1),
        lambda x: x.__setitem__(0, 0.1) or x,
        lambda x: x.__setitem__(torch.tensor([True, False]), 0.1) or x,
        lambda x: x.masked_fill(x == 0, 0.1),
        lambda x: x.scatter(0, torch.tensor([0]), 0.1),
        lambda x: x.index_fill(0, torch.tensor([0]), 0.1),
        lambda x: x.index_put((torch.tensor([0]),), 0.1),
    ],
)
def test_numbers_are_written_to_doubles_with_all_their_digits(write):
    x = torch.zeros(2, dtype=torch.float64)
    assert write(x)[0].item() == 0.1
    x = torch.zeros(2, dtype=torch.float64)
    compiled = torch.compile(lambda x: write(x + 0.0))
    for _ in range(3):
        assert compiled(torch.zeros(2, dtype=torch.float64))[0].item() == 0.1
