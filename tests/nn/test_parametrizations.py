"""Orthogonal, normed, symmetric, positive definite, orthonormal and low-rank weights.

Oracles: what defines the set, NumPy's decompositions, determinants of Jacobians by differences, and
the volumes of spheres and rotation groups.
"""

import math

import numpy as np
import pytest
from scipy import special

import probtorch
from probtorch import nn, optim
from probtorch.errors import ArgumentError, DomainError, ShapeError
from probtorch.nn.utils import parametrizations
from probtorch.nn.utils.parametrizations import (
    PositiveDefiniteWeight,
    StiefelWeight,
    SymmetricWeight,
    low_rank,
    orthogonal,
    positive_definite,
    spectral_norm,
    stiefel,
    symmetric,
    weight_norm,
)
from probtorch.nn.utils.parametrize import log_abs_det_jacobian
from probtorch.testing.compare import assert_close

SHAPES = [(4, 4), (5, 2), (2, 5)]


class Holder(nn.Module):
    """A module with one weight of any shape."""

    def __init__(self, shape, seed=0):
        super().__init__()
        rng = np.random.default_rng(seed)
        self.weight = nn.Parameter(probtorch.tensor(rng.standard_normal(shape)))


def gram(w):
    """The matrix that is the identity where the smaller dim is orthonormal."""
    w = w.detach().array
    wide = w.shape[-2] < w.shape[-1]
    return w @ w.swapaxes(-1, -2) if wide else w.swapaxes(-1, -2) @ w


def assert_orthonormal(w, slack=1e-12):
    np.testing.assert_allclose(gram(w) - np.eye(min(w.shape[-2:])), 0.0, atol=slack)


def disturbed(made, seed=1):
    """Move the originals somewhere else."""
    rng = np.random.default_rng(seed)
    with probtorch.no_grad():
        for p in made.parameters():
            p.add_(probtorch.tensor(0.5 * rng.standard_normal(p.shape)))
    return made


# --------------------------------------------------------------------------------- PyTorch's own


@pytest.mark.parametrize("shape", [*SHAPES, (3, 4, 2)], ids=str)
@pytest.mark.parametrize("trivialized", [True, False])
@pytest.mark.parametrize("kind", ["matrix_exp", "cayley", "householder"])
def test_orthogonal_weight_stays_orthogonal(kind, trivialized, shape):
    made = orthogonal(Holder(shape), "weight", kind, use_trivialization=trivialized)
    assert_orthonormal(made.weight)
    assert_orthonormal(disturbed(made).weight)
    if trivialized or kind == "householder":
        q = np.linalg.qr(np.random.default_rng(3).standard_normal(shape[-2:]))[0]
        q = np.broadcast_to(q if q.shape == shape[-2:] else np.eye(*shape[-2:]), shape)
        made.weight = probtorch.tensor(q.copy())
        assert_close(made.weight, q, rtol=1e-10, atol=1e-12)
    else:
        with pytest.raises(NotImplementedError, match="nothing can be assigned"):
            made.weight = made.weight.detach()


def test_orthogonal_start_is_the_factor_of_the_weight():
    before = Holder((5, 3)).weight.detach().array
    q, r = np.linalg.qr(before)
    made = orthogonal(Holder((5, 3)))
    assert_close(made.weight, q * np.sign(np.diag(r)), rtol=1e-10)


def test_orthogonal_weight_is_trained_without_leaving():
    made = orthogonal(nn.Linear(6, 6))
    target = probtorch.tensor(np.linalg.qr(np.random.default_rng(0).standard_normal((6, 6)))[0])
    optimizer = optim.Adam(made.parameters(), lr=0.05)
    losses = []
    for _ in range(100):
        optimizer.zero_grad()
        loss = ((made.weight - target.float()) ** 2).sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        assert_orthonormal(made.weight, 1e-5)  # float32
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("dim", [0, 1, -2, None])
def test_weight_norm_has_length_and_direction(dim):
    before = Holder((3, 4)).weight.detach().array
    made = weight_norm(Holder((3, 4)), dim=dim)
    assert_close(made.weight, before, rtol=1e-12)
    g, v = made.parametrizations.weight.originals()
    axis = {0: 1, -2: 1, 1: 0, None: None}[dim]
    norm = np.linalg.norm(before, axis=axis, keepdims=dim is not None)
    assert_close(g, norm, rtol=1e-12)
    with probtorch.no_grad():
        g.mul_(3.0)
        v.mul_(0.1)
    assert_close(made.weight, 3 * before, rtol=1e-12)


def test_spectral_norm_follows_the_largest_singular_value():
    made = spectral_norm(Holder((4, 3)), n_power_iterations=30)
    before = Holder((4, 3)).weight.detach().array
    assert_close(made.weight, before / np.linalg.svd(before)[1][0], rtol=1e-8)
    disturbed(made)
    assert np.linalg.svd(made.weight.detach().array)[1][0] == pytest.approx(1.0, rel=1e-8)
    made.eval()
    u = made.parametrizations.weight[0]._u.clone()
    made.weight.sum().backward()
    assert_close(made.parametrizations.weight[0]._u, u)


def test_spectral_norm_takes_the_outputs_of_a_transposed_convolution():
    made = spectral_norm(nn.ConvTranspose1d(2, 3, 4), n_power_iterations=40)
    matrix = made.weight.detach().array.swapaxes(0, 1).reshape(3, -1)
    assert np.linalg.svd(matrix)[1][0] == pytest.approx(1.0, rel=1e-4)


def test_spectral_norm_of_a_vector_is_its_length():
    made = spectral_norm(nn.Linear(3, 4), "bias")
    assert np.linalg.norm(made.bias.detach().array) == pytest.approx(1.0, rel=1e-5)


# -------------------------------------------------------------------------------- free coordinates


@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (2, 4, 4)], ids=str)
def test_symmetric_weight_is_its_triangle(shape):
    made = symmetric(Holder(shape))
    before = Holder(shape).weight.detach().array
    assert_close(made.weight, (before + before.swapaxes(-1, -2)) / 2)
    n = shape[-1]
    assert made.parametrizations.weight.original.shape[-1] == n * (n + 1) // 2
    w = disturbed(made).weight
    assert_close(w, w.mT)
    value = np.arange(n * n, dtype=float).reshape(n, n)
    made.weight = probtorch.tensor(np.broadcast_to(value + value.T, shape).copy())
    assert_close(made.weight, np.broadcast_to(value + value.T, shape))


@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (2, 4, 4)], ids=str)
def test_positive_definite_weight_stays_so(shape):
    made = positive_definite(Holder(shape))
    for _ in range(2):
        w = made.weight.detach().array
        assert_close(w, w.swapaxes(-1, -2))
        assert (np.linalg.eigvalsh(w) > 0).all()
        disturbed(made)
    root = np.random.default_rng(5).standard_normal(shape)
    value = root @ root.swapaxes(-1, -2) + np.eye(shape[-1])
    made.weight = probtorch.tensor(value)
    assert_close(made.weight, value, rtol=1e-10)


def test_positive_definite_start_keeps_eigenvectors_and_sizes():
    made = Holder((3, 3))
    part = (made.weight.detach().array + made.weight.detach().array.T) / 2
    values, vectors = np.linalg.eigh(part)
    assert values.min() < 0 < values.max()
    expected = vectors * np.maximum(abs(values), 1e-3 * abs(values).max()) @ vectors.T
    assert_close(positive_definite(made).weight, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("shape", [*SHAPES, (3, 4, 2)], ids=str)
def test_stiefel_weight_stays_orthonormal(shape):
    before = Holder(shape).weight.detach().array
    made = stiefel(Holder(shape))
    u, _, vh = np.linalg.svd(before, full_matrices=False)
    assert_close(made.weight, u @ vh, rtol=1e-10)
    n, k = max(shape[-2:]), min(shape[-2:])
    assert made.parametrizations.weight.original.shape[-1] == n * k - k * (k + 1) // 2
    assert_orthonormal(disturbed(made).weight)
    made.weight = probtorch.tensor(u @ vh)
    assert_close(made.weight, u @ vh)


def test_low_rank_weight_starts_nearest_and_keeps_its_rank():
    before = Holder((4, 5)).weight.detach().array
    made = low_rank(Holder((4, 5)), rank=2)
    u, s, vh = np.linalg.svd(before)
    assert_close(made.weight, (u[:, :2] * s[:2]) @ vh[:2], rtol=1e-10)
    assert np.linalg.matrix_rank(disturbed(made).weight.detach().array) == 2


# ------------------------------------------------------------------------------- log-determinants


def jacobian(coordinates, x, step=1e-6):
    """By central differences, of a function from vectors to vectors."""
    columns = []
    for i in range(x.size):
        shift = np.zeros_like(x)
        shift[i] = step
        columns.append((coordinates(x + shift) - coordinates(x - shift)) / (2 * step))
    return np.array(columns).T


def moved(made, seed=2):
    """A module, its coordinates somewhere, and its weight as a function of them."""
    original = made.parametrizations.weight.original
    x = 0.7 * np.random.default_rng(seed).standard_normal(original.shape)

    def weight(value):
        with probtorch.no_grad():
            original.copy_(probtorch.tensor(value))
            return made.weight.array.copy()

    weight(x)
    return x, weight


@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("kind", [symmetric, positive_definite])
def test_log_determinant_of_a_triangle_is_that_of_its_jacobian(kind, n):
    made = kind(Holder((n, n)))
    x, weight = moved(made)
    _, expected = np.linalg.slogdet(jacobian(lambda v: weight(v)[np.tril_indices(n)], x))
    weight(x)
    assert log_abs_det_jacobian(made, "weight").item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("shape", [(2, 2), (3, 1), (4, 2), (4, 4), (2, 4)], ids=str)
def test_log_determinant_of_orthonormal_columns_is_that_of_the_invariant_measure(shape):
    made = stiefel(Holder(shape))
    x, weight = moved(made)
    k = min(shape)

    def tall(v):
        return weight(v).T if shape[0] < shape[1] else weight(v)

    w = tall(x)
    whole = np.linalg.qr(w, mode="complete")[0]
    whole[:, :k] = w
    below = np.tril_indices(max(shape), -1, k)
    _, expected = np.linalg.slogdet(jacobian(lambda v: (whole.T @ tall(v))[below], x))
    weight(x)
    assert log_abs_det_jacobian(made, "weight").item() == pytest.approx(expected, abs=1e-6)


def test_flat_measures_add_up_to_the_volumes_of_sphere_and_rotations():
    # The integrand depends on the length of the coordinates only, so shells are enough: of two
    # coordinates for the sphere (area 4 pi), of three for rotations of space (volume 8 pi^2), of
    # one for those of the plane.
    angles = (np.arange(500) + 0.5) / 500 * np.pi
    r = 2 * np.tan(angles / 2)
    steps = np.pi / 500 / np.cos(angles / 2) ** 2
    for shape, volume, shells in [
        ((3, 1), 4 * np.pi, 2 * np.pi * r),
        ((3, 3), 8 * np.pi**2, 4 * np.pi * r**2),
        ((2, 2), 2 * np.pi, 2.0),
    ]:
        made = StiefelWeight(shape)
        made.right_inverse(probtorch.eye(*shape).double())
        n, k = shape
        x = np.zeros((r.size, n * k - k * (k + 1) // 2))
        x[:, 0] = r
        each = probtorch.func.vmap(lambda row, made=made: made.log_abs_det_jacobian(row, None))
        density = np.exp(each(probtorch.tensor(x)).array)
        assert np.sum(density * shells * steps) == pytest.approx(volume, rel=1e-4)


def test_weight_with_a_prior_has_its_posterior_mean():
    # exp(kappa cos(angle)) on rotations of the plane: the mean cosine is I1(kappa) / I0(kappa).
    made = stiefel(Holder((2, 2)))
    made.weight = probtorch.eye(2).double()
    original, kappa = made.parametrizations.weight.original, 1.5
    density, cosine = [], []
    angles = (np.arange(400) + 0.5) / 400 * 2 * np.pi - np.pi
    for a in 2 * np.tan(angles / 2):
        with probtorch.no_grad():
            original.fill_(a)
            c = made.weight[0, 0].item()
            density.append(math.exp(kappa * c + log_abs_det_jacobian(made, "weight").item()))
            cosine.append(c)
    weights = np.array(density) / np.cos(angles / 2) ** 2  # da = d angle / cos^2
    found = np.sum(weights * cosine) / np.sum(weights)
    assert found == pytest.approx(special.iv(1, kappa) / special.iv(0, kappa), rel=1e-9)


def test_log_determinants_are_differentiable_and_compiled():
    x = probtorch.tensor([0.3, -0.2, 0.5, 0.1, -0.4], dtype=probtorch.float64)
    made = StiefelWeight((4, 2))
    made.right_inverse(probtorch.eye(4, 2).double())

    def density(x):
        y = made(x)
        return made.log_abs_det_jacobian(x, y) + y[0, 0]

    grad = probtorch.func.grad(density)(x)
    expected = jacobian(lambda v: np.array([density(probtorch.tensor(v)).item()]), x.array)[0]
    assert_close(grad, expected, rtol=1e-6, atol=1e-8)
    assert_close(probtorch.compile(density)(x), density(x))


@pytest.mark.parametrize(
    "kind", [SymmetricWeight(), PositiveDefiniteWeight(), StiefelWeight((3, 3))]
)
def test_batch_of_vectors_gives_a_batch_of_matrices(kind):
    count = 3 if isinstance(kind, StiefelWeight) else 6
    if isinstance(kind, StiefelWeight):
        kind.right_inverse(probtorch.eye(3).double())
    x = probtorch.tensor(np.random.default_rng(0).standard_normal((4, count)))
    single = probtorch.stack([kind(row) for row in x])
    assert_close(kind(x), single)
    assert_close(probtorch.func.vmap(kind)(x), single)


# ------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    "make, error, text",
    [
        (lambda: orthogonal(nn.Linear(2, 2), "bias"), ShapeError, "two or more dims"),
        (lambda: orthogonal(nn.Linear(2, 2), "weigth"), ArgumentError, "the name of a parameter"),
        (
            lambda: orthogonal(nn.Linear(2, 2), orthogonal_map="qr"),
            ArgumentError,
            "matrix_exp, cayley",
        ),
        (
            lambda: setattr(orthogonal(nn.Linear(2, 2)), "weight", probtorch.ones(3, 3)),
            ShapeError,
            r"shape \(2, 2\)",
        ),
        (lambda: spectral_norm(nn.Linear(2, 2), dim=2), ArgumentError, "from -2 to 1"),
        (lambda: spectral_norm(nn.Linear(2, 2), n_power_iterations=0), ArgumentError, "> 0"),
        (lambda: spectral_norm(nn.Linear(2, 2), "wait"), ArgumentError, "the name of a parameter"),
        (lambda: symmetric(nn.Linear(2, 3)), ShapeError, "square matrices"),
        (lambda: positive_definite(nn.Linear(2, 3)), ShapeError, "square matrices"),
        (
            lambda: setattr(positive_definite(nn.Linear(2, 2)), "weight", -probtorch.eye(2)),
            DomainError,
            "least eigenvalue of -1",
        ),
        (lambda: stiefel(nn.Linear(2, 2), "bias"), ShapeError, "two or more dims"),
        (lambda: stiefel(nn.Linear(2, 2), "wait"), ArgumentError, "weight, bias"),
        (
            lambda: setattr(stiefel(nn.Linear(2, 2)), "weight", probtorch.ones(3, 3)),
            ShapeError,
            r"shape \(2, 2\)",
        ),
        (lambda: low_rank(nn.Linear(2, 3), rank=3), ArgumentError, "at most 2"),
        (lambda: low_rank(nn.Linear(2, 3), rank=0), ArgumentError, "> 0"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(make, error, text):
    with pytest.raises(error, match=text):
        make()


# ------------------------------------------------------------------------------- against PyTorch


@pytest.mark.parametrize(
    "name, options",
    [
        ("orthogonal", {}),
        ("orthogonal", {"orthogonal_map": "cayley"}),
        ("orthogonal", {"orthogonal_map": "householder"}),
        ("weight_norm", {}),
        ("spectral_norm", {"n_power_iterations": 2}),
    ],
)
def test_training_is_that_of_torch(name, options):
    torch = pytest.importorskip("torch")
    theirs = torch.nn.Linear(4, 3).double()
    ours = nn.Linear(4, 3).double()
    getattr(torch.nn.utils.parametrizations, name)(theirs, **options)
    getattr(parametrizations, name)(ours, **options)
    state = {k: probtorch.tensor(v.numpy()) for k, v in theirs.state_dict().items()}
    ours.load_state_dict(state)
    x = np.random.default_rng(0).standard_normal((5, 4))
    for net, package in ((theirs, torch), (ours, probtorch)):
        optimizer = package.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            (net(package.tensor(x)) ** 2).sum().backward()
            optimizer.step()
    for key, value in theirs.state_dict().items():
        assert_close(ours.state_dict()[key], value.numpy(), rtol=1e-10, atol=1e-12)
