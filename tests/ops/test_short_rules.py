"""Rules that compute gradients of arrays alone, held against the same rules in operations."""

import numpy as np
import pytest

import probtorch
from probtorch import linalg, tensor
from probtorch.nn import functional as F
from probtorch.testing import assert_close

RNG = np.random.default_rng(5)
INF = np.inf
X = RNG.standard_normal((5, 4))
LIMITS = np.array([[-INF, 0.5, 1.0, 2.0], [-INF] * 4, [INF, 1.0, 2.0, 3.0], [900.0, 0.0, 1.0, 2.0]])
CLASSES = np.array([0, 3, 1, 1, 2])

CASES = {
    "softmax": (lambda x: probtorch.softmax(x, -1), X),
    "softmax of all": (lambda x: probtorch.softmax(x, (0, 1)), X),
    "log_softmax": (lambda x: probtorch.log_softmax(x, 0), X),
    "logsumexp": (lambda x: probtorch.logsumexp(x, -1), X),
    "logsumexp, kept": (lambda x: probtorch.logsumexp(x, 0, True), X),
    "logsumexp at its limits": (lambda x: probtorch.logsumexp(x, -1), LIMITS),
    "logsumexp of a number": (lambda x: probtorch.logsumexp(x, ()), X[0, 0]),
    "softmax of a number": (lambda x: probtorch.softmax(x, ()), X[0, 0]),
    "layer_norm": (lambda x: F.layer_norm(x, (4,)), X),
    "layer_norm, single": (lambda x: F.layer_norm(x, (4,)), X.astype(np.float32)),
    "cross_entropy": (lambda x: F.cross_entropy(x, tensor(CLASSES % 4), reduction="none"), X),
    "cross_entropy in the middle": (
        lambda x: F.cross_entropy(x, tensor([[0, 1], [1, 0]]), reduction="none"),
        RNG.standard_normal((2, 3, 2)),
    ),
    "median": (lambda x: x.median(), X),
    "median, of equal elements": (lambda x: x.median(1).values, np.round(X)),
    "kthvalue, kept": (lambda x: x.kthvalue(2, 0, True).values, X),
    "cross_entropy, mean": (lambda x: F.cross_entropy(x, tensor(CLASSES % 4)), X),
    "nll_loss": (lambda x: F.nll_loss(x, tensor(CLASSES % 4)), X),
    "binary_cross_entropy": (
        lambda x: F.binary_cross_entropy(x, tensor(np.round(np.abs(X) % 1, 1)), reduction="none"),
        np.clip(np.abs(X), 0.0, 1.0),
    ),
    "adaptive_max_pool1d": (lambda x: F.adaptive_max_pool1d(x, 3), X),
    "adaptive_max_pool1d, more than there are": (lambda x: F.adaptive_max_pool1d(x, 7), X),
    "adaptive_max_pool1d of equal elements": (lambda x: F.adaptive_max_pool1d(x, 3), np.round(X)),
    "max_pool1d of equal elements": (lambda x: F.max_pool1d(x, 2), np.round(X)),
    "max_pool1d, windows that overlap": (lambda x: F.max_pool1d(x, 2, 1), np.round(X)),
    "trace": (lambda x: probtorch.trace(x), X),
    "permute": (lambda x: x.reshape(5, 2, 2).permute(2, 0, 1), X),
    "cross_entropy, some ignored": (
        lambda x: F.cross_entropy(x, tensor([0, -100, 1, 2, -100])),
        X,
    ),
}


@pytest.mark.parametrize("fn, at", CASES.values(), ids=CASES)
def test_short_rules_are_those_in_operations(fn, at):
    x = tensor(at, requires_grad=True)
    y = fn(x)
    g = tensor(RNG.standard_normal(y.shape).astype(at.dtype))
    (short,) = probtorch.autograd.grad(y, [x], g, retain_graph=True)
    (long,) = probtorch.autograd.grad(y, [x], g, create_graph=True)
    assert_close(short, long.detach(), equal_nan=True)


@pytest.mark.parametrize("n", [1, 3, 64, 65, 150])
def test_gradient_of_cholesky_by_halves_is_that_of_the_formula_and_of_differences(n):
    half = RNG.standard_normal((n, n))
    a = half @ half.T + n * np.eye(n)
    weights = np.tril(RNG.standard_normal((n, n)))
    x = tensor(a, requires_grad=True)
    loss = (linalg.cholesky(x) * tensor(weights)).sum()
    (short,) = probtorch.autograd.grad(loss, [x], retain_graph=True)
    (long,) = probtorch.autograd.grad(loss, [x], create_graph=True)
    scale = np.abs(long.detach().numpy()).max()
    assert np.abs(short.numpy() - long.detach().numpy()).max() <= 1e-12 * scale
    change = RNG.standard_normal((n, n))
    change = (change + change.T) / np.linalg.norm(change)

    def at(t):
        return (np.linalg.cholesky(a + t * change) * weights).sum()

    slope = (at(1e-4) - at(-1e-4)) / 2e-4
    assert_close(float((short.numpy() * change).sum()), slope, rtol=1e-6, atol=1e-8)


def test_gradient_of_cholesky_does_not_read_what_lies_above_the_diagonal():
    a = tensor(np.eye(70) * 2.0, requires_grad=True)
    factor = linalg.cholesky(a)
    g = np.ones((70, 70))
    (full,) = probtorch.autograd.grad(factor, [a], tensor(g), retain_graph=True)
    (lower,) = probtorch.autograd.grad(factor, [a], tensor(np.tril(g)))
    assert_close(full, lower)
    assert g.min() == 1.0  # nor does it write to the gradient it was given


def test_triangular_solves_with_a_zero_on_the_diagonal_are_infinite_or_nan():
    a = tensor([[1.0, 0.0], [1.0, 0.0]]).double()
    x = linalg.solve_triangular(a, tensor([[1.0], [2.0]]).double(), upper=False)
    assert x.numpy()[0, 0] == 1.0 and np.isinf(x.numpy()[1, 0])


def test_what_nothing_listens_to_is_as_what_is_recorded():
    flags = tensor([[True, False], [True, True]])
    vmapped = probtorch.vmap(lambda row: probtorch.all(row) | ~probtorch.any(row))(flags)
    assert vmapped.tolist() == (flags.all(1) | ~flags.any(1)).tolist() == [False, True]
    compiled = probtorch.compile(lambda x: (x > 0).all().to(x.dtype) + x.any() + x.norm())
    x = tensor([3.0, -4.0])
    assert_close(compiled(x), (x > 0).all().to(x.dtype) + x.any() + x.norm())


def test_writing_to_plain_memory_is_seen_by_the_tape():
    x = tensor([1.0, 2.0], requires_grad=True)
    y = x * 1.0
    z = (y * y).sum()
    with probtorch.no_grad():
        y.fill_(0.0)
    with pytest.raises(probtorch.errors.AutogradError, match="modified in place"):
        z.backward()


def test_reshape_takes_minus_one_only_as_the_size_that_follows():
    with pytest.raises(probtorch.errors.ShapeError, match="expected: 4 elements"):
        tensor([1.0, 2.0, 3.0, 4.0]).reshape(-2, 2)
    assert tensor([1, 2, 3, 4]).reshape(2, -1).shape == (2, 2)


def test_integers_beside_whole_tensors_wrap_around_or_compare_exactly():
    small = tensor([250, 3], dtype=probtorch.uint8)
    assert (small + 10).tolist() == [4, 13]
    assert (small + 300).tolist() == [38, 47]
    assert (small < 2**70).tolist() == [True, True] and (small == -1).tolist() == [False, False]
    assert (tensor([7, -7]) / 2).dtype == probtorch.float32
