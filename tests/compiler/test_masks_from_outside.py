"""Shapes that depend on masks from outside: compiled, and recorded anew where a mask changes."""

import numpy as np
import pytest

import probtorch
from probtorch import compile, tensor
from probtorch.compiler.paths import CompileWarning

X = tensor([1.0, 2.0, 3.0, 4.0])


@pytest.mark.filterwarnings("error")
def test_a_mask_of_numpy_made_in_the_function():
    data = np.array([1.0, np.nan, 3.0, np.nan])

    @compile
    def filled(x):
        known = ~np.isnan(data)
        out = probtorch.zeros(4)
        out[known] = tensor(data[known], dtype=probtorch.float32)
        out[~known] = x
        return out * 2.0

    for turn in range(7):
        if turn == 4:
            data[:] = [np.nan, 5.0, np.nan, 7.0]
        values = tensor([10.0 + turn, 20.0])
        expected = np.where(np.isnan(data), 0.0, data)
        expected[np.isnan(data)] = values.numpy()
        np.testing.assert_array_equal(filled(values).numpy(), 2.0 * expected)
    assert "2 compiled paths" in filled.explain()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("change", ["in place", "another"])
def test_a_mask_that_is_a_tensor_outside(change):
    masks = {"now": tensor([True, False, True, False])}

    @compile
    def chosen(x):
        return x[~masks["now"]].sum()

    assert [chosen(X + i).item() for i in range(3)] == [6.0, 8.0, 10.0]
    if change == "in place":
        masks["now"][3] = True
    else:
        masks["now"] = tensor([True, False, True, True])
    assert [chosen(X + i).item() for i in range(3)] == [2.0, 3.0, 4.0]


@pytest.mark.filterwarnings("error")
def test_counts_and_other_questions_of_what_is_outside():
    groups = np.array([0, 1, 1, 3])

    @compile
    def by_group(x):
        counts = probtorch.bincount(tensor(groups))
        return x.repeat_interleave(counts) * probtorch.unique(tensor(groups)).sum()

    for turn in range(4):
        found = by_group(X + turn)
        assert found.tolist() == [4.0 * v for v in np.repeat(X.numpy() + turn, [1, 2, 0, 1])]
    groups[0] = 1
    assert by_group(X).tolist() == [4.0 * v for v in np.repeat(X.numpy(), [0, 3, 0, 1])]


def test_a_mask_of_arguments_or_of_what_is_learnt_is_no_constant():
    weight = probtorch.nn.Parameter(tensor([1.0, -1.0, 1.0, -1.0]))
    for fn in (lambda x: x[x > 2.0].sum(), lambda x: x[weight > 0.0].sum()):
        native = compile(fn)
        with pytest.warns(CompileWarning, match="depends on the values of a tensor"):
            native(X)
        with probtorch.no_grad():
            for turn in range(4):
                assert native(X - turn).item() == fn(X - turn).item()
                weight.neg_()


def test_a_mask_that_the_function_changes_is_no_constant():
    mask = tensor([True, False, False, False])

    @compile
    def grows(x):
        found = x[mask].sum()
        mask[1:] = mask[:-1].clone()
        return found

    with pytest.warns(CompileWarning, match="runs eagerly"):
        assert [grows(X).item() for _ in range(5)] == [1.0, 3.0, 6.0, 10.0, 10.0]


def test_a_mask_with_draws_is_no_constant():
    probtorch.manual_seed(0)

    @compile
    def dropped(x):
        return x[probtorch.rand(4) > 0.5].sum()

    with pytest.warns(CompileWarning, match="depends on the values of a tensor"):
        found = {dropped(X).item() for _ in range(20)}
    assert len(found) > 3


def test_a_mask_with_other_memory_is_read_anew():
    mask = tensor([1.0, -1.0, 1.0, -1.0])

    @compile
    def chosen(x):
        return x[mask > 0.0].sum()

    assert [chosen(X).item() for _ in range(3)] == [4.0] * 3
    mask.data = tensor([1.0, 1.0, 1.0, 1.0])
    assert chosen(X).item() == 10.0


@pytest.mark.filterwarnings("ignore::probtorch.CompileWarning")
def test_a_mask_that_changes_before_a_gradient_does_not_change_it():
    mask = tensor([True, False, True, False])
    squares = compile(lambda x: (x[mask] ** 2).sum())
    for turn in range(3):
        x = (X + turn).requires_grad_()
        squares(x).backward()
        assert x.grad.tolist() == (2.0 * (X + turn) * mask).tolist()
    x = X.clone().requires_grad_()
    y = squares(x)
    mask[1] = True
    y.backward()
    assert x.grad.tolist() == [2.0, 0.0, 6.0, 0.0]
