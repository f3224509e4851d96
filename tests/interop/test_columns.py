"""Columns and frames of pandas and polars go in wherever a tensor does."""

import numpy as np
import pytest

import probtorch
from probtorch import nn
from probtorch.distributions import Categorical, Normal
from probtorch.effects import plate, sample
from probtorch.effects.handlers import trace
from probtorch.errors import DTypeError
from probtorch.tensor import tensor
from probtorch.testing.compare import assert_close


class Library:
    """The columns s = 1, 2, 3; i = 0, 2, 1; m = True, False, True, and a frame of two columns."""

    def __init__(self, name):
        self.module = module = pytest.importorskip(name)
        self.s, self.i, self.m = map(
            module.Series, ([1.0, 2.0, 3.0], [0, 2, 1], [True, False, True])
        )
        self.frame = module.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]})


@pytest.fixture(params=["pandas", "polars"], scope="module")
def lib(request):
    return Library(request.param)


S = np.array([1.0, 2.0, 3.0])
FRAME = np.array([[1.0, 3.0], [2.0, 4.0]])
X = np.arange(3.0)


def x():
    return tensor(X)


def log_density(y):
    def model():
        with plate("rows", len(y)):
            sample("y", Normal(0.0, 1.0), obs=y)

    return trace(model).get_trace().log_prob_sum()


USES = {
    "tensor": (lambda c: tensor(c.s), S),
    "as_tensor": (lambda c: probtorch.as_tensor(c.s), S),
    "frame": (lambda c: tensor(c.frame), FRAME),
    "list of columns": (lambda c: tensor([c.s, c.s]), np.stack([S, S])),
    "list with a tensor": (lambda c: tensor([c.s, x()]), np.stack([S, X])),
    "stack": (lambda c: probtorch.stack([c.s, x()]), np.stack([S, X])),
    "cat": (lambda c: probtorch.cat([c.s, x()]), np.concatenate([S, X])),
    "operand": (lambda c: x() * c.s - c.s, X * S - S),
    "function": (lambda c: probtorch.exp(c.s), np.exp(S)),
    "reduction": (lambda c: probtorch.sum(c.s), S.sum()),
    "einsum": (lambda c: probtorch.einsum("i,i->", c.s, c.s), (S * S).sum()),
    "product": (lambda c: probtorch.matmul(c.frame, x()[1:]), FRAME @ X[1:]),
    "right product": (lambda c: x()[1:] @ c.frame, X[1:] @ FRAME),
    "index": (lambda c: x()[c.i], X[[0, 2, 1]]),
    "mask": (lambda c: x()[c.m], X[[0, 2]]),
    "gather": (lambda c: probtorch.gather(x(), 0, c.i), X[[0, 2, 1]]),
    "where": (lambda c: probtorch.where(c.m, c.s, x()), [1.0, 1.0, 3.0]),
    "copy_": (lambda c: x().copy_(c.s), S),
    "loss": (lambda c: nn.functional.mse_loss(x(), c.s), ((X - S) ** 2).mean()),
    "layer": (lambda c: nn.functional.linear(c.frame, tensor(FRAME)), FRAME @ FRAME.T),
    "log_prob": (lambda c: Normal(c.s, 1.0).log_prob(c.s), np.full(3, -0.5 * np.log(2 * np.pi))),
    "categories": (
        lambda c: Categorical(probs=tensor(S / 6)).log_prob(c.i),
        np.log(S / 6)[[0, 2, 1]],
    ),
    "observed": (lambda c: log_density(c.s), -7.0 - 1.5 * np.log(2 * np.pi)),
}


@pytest.mark.parametrize("use", USES)
def test_a_column_is_as_good_as_a_tensor(lib, use):
    fn, expected = USES[use]
    found = fn(lib)
    assert type(found) is probtorch.Tensor and found.dtype == probtorch.float64
    assert_close(found, tensor(np.asarray(expected, np.float64)), rtol=1e-14)


def test_gradients_flow_past_a_column(lib):
    w = tensor(X, requires_grad=True)
    (w * lib.s).sum().backward()
    assert w.grad.tolist() == S.tolist()


def test_missing_numbers_are_nan(lib):
    found = tensor(lib.module.Series([1.0, None]))
    assert found.dtype == probtorch.float64 and found.isnan().tolist() == [False, True]


def test_a_frame_of_numbers_and_truths_is_one_of_floats():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"x": [0.5, 1.0], "m": [True, False], "n": [1, 2]})
    assert tensor(frame).tolist() == [[0.5, 1.0, 1.0], [1.0, 0.0, 2.0]]
    gaps = tensor(frame.assign(n=pandas.array([3, None], dtype="Int64")))
    assert gaps[0].tolist() == [0.5, 1.0, 3.0] and gaps.isnan().sum() == 1
    assert (probtorch.ones(2, 2) @ tensor(frame)).shape == (2, 3)


def test_missing_truths_of_a_column_are_nan_among_floats():
    pandas = pytest.importorskip("pandas")
    column = pandas.Series([True, None, False], dtype="boolean")
    assert_close(tensor(column), [1.0, np.nan, 0.0])
    assert_close(x() + column, [1.0, np.nan, 2.0])


def test_a_column_of_words_is_refused(lib):
    with pytest.raises(DTypeError, match="numbers"):
        tensor(lib.module.Series(["a", "b"]))


def test_pandas_takes_tensors_as_columns():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": probtorch.arange(2.0)}).assign(b=probtorch.ones(2))
    assert frame.to_numpy().tolist() == [[0.0, 1.0], [1.0, 1.0]]
    assert (pandas.Series(S) * x()).tolist() == (S * X).tolist()
