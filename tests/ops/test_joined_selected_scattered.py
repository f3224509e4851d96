"""Functions that join, split, select, scatter and summarise: NumPy and SciPy say what comes out.

A row is a function of tensors, the same of arrays, and its operands. Of rows with floating-point
operands the derivative is checked, too.
"""

import itertools
import math

import numpy as np
import pytest
import scipy.linalg
import scipy.spatial
import scipy.stats

import probtorch as torch
from probtorch.testing import gradcheck

rng = np.random.default_rng(11)
X, Y, Z = (rng.normal(size=(4, 3)) for _ in range(3))
CUBE = rng.normal(size=(2, 3, 4))
V, W = rng.normal(size=5), rng.normal(size=5)
M = rng.normal(size=(3, 3))
WHOLE = rng.integers(-9, 10, (4, 3))
GAPS = np.where(rng.random((4, 6)) < 0.3, np.nan, rng.normal(size=(4, 6)))
INDEX = np.array([2, 0, 2, 1])


def scattered(op, x, index, src):
    out = x.copy()
    for i, j in np.ndindex(index.shape):
        out[index[i, j], j] = op(out[index[i, j], j], src[i, j])
    return out


def changed(x, *key_value):
    out = x.copy()
    for key, value in zip(key_value[::2], key_value[1::2], strict=True):
        out[key] = value
    return out


def added(x, index, src):
    out = x.copy()
    np.add.at(out, index, src)
    return out


AT = rng.integers(0, 4, (3, 3))
MASK = rng.random((4, 3)) < 0.5

ROWS = {
    "hstack": (lambda x, y: torch.hstack([x, y]), lambda x, y: np.hstack([x, y]), X, Y),
    "hstack_vectors": (lambda x, y: torch.hstack([x, y]), lambda x, y: np.hstack([x, y]), V, W),
    "vstack": (lambda x, y: torch.vstack([x, y]), lambda x, y: np.vstack([x, y]), V, W),
    "dstack": (lambda x, y: torch.dstack([x, y]), lambda x, y: np.dstack([x, y]), X, Y),
    "column_stack": (lambda *x: torch.column_stack(x), lambda *x: np.column_stack(x), V, W),
    "row_stack": (lambda x, y: torch.row_stack([x, y]), lambda x, y: np.vstack([x, y]), X, Y),
    "block_diag": (torch.block_diag, scipy.linalg.block_diag, X, M),
    "atleast_3d": (torch.atleast_3d, np.atleast_3d, X),
    "cartesian_prod": (
        torch.cartesian_prod,
        lambda *v: np.array(list(itertools.product(*v))),
        V,
        W[:3],
    ),
    "combinations": (
        lambda v: torch.combinations(v, 3),
        lambda v: np.array(list(itertools.combinations(v, 3))),
        V,
    ),
    "tensor_split": (lambda v: torch.tensor_split(v, 3)[1], lambda v: np.array_split(v, 3)[1], V),
    "hsplit": (lambda x: torch.hsplit(x, [1])[1], lambda x: np.hsplit(x, [1])[1], X),
    "rot90": (lambda x: torch.rot90(x, 3), lambda x: np.rot90(x, 3), X),
    "fliplr": (torch.fliplr, np.fliplr, X),
    "unflatten": (lambda x: x.unflatten(0, (2, -1)), lambda x: x.reshape(2, 2, 3), X),
    "select": (lambda x: x.select(1, -1), lambda x: x[:, -1], X),
    "narrow": (lambda x: x.narrow(0, 1, 2), lambda x: x[1:3], X),
    "take": (lambda x: torch.take(x, torch.tensor(AT)), lambda x: np.take(x, AT), X),
    "repeat_interleave": (
        lambda x: torch.repeat_interleave(x, torch.tensor([2, 0, 1, 3]), dim=0),
        lambda x: np.repeat(x, [2, 0, 1, 3], 0),
        X,
    ),
    "take_along_dim": (
        lambda x: torch.take_along_dim(x, torch.tensor(AT), 0),
        lambda x: np.take_along_axis(x, AT, 0),
        X,
    ),
    "scatter_add": (
        lambda x, s: x.scatter_add(0, torch.tensor(AT), s),
        lambda x, s: scattered(np.add, x, AT, s),
        X,
        M,
    ),
    "scatter_amax": (
        lambda x, s: x.scatter_reduce(0, torch.tensor(AT), s, "amax"),
        lambda x, s: scattered(np.maximum, x, AT, s),
        X,
        M,
    ),
    "index_add": (
        lambda x, s: x.index_add(0, torch.tensor(INDEX), s, alpha=2),
        lambda x, s: added(x, INDEX, 2 * s),
        X,
        Y,
    ),
    "index_copy": (
        lambda x, s: x.index_copy(0, torch.tensor([3, 1]), s),
        lambda x, s: changed(x, [3, 1], s),
        X,
        Y[:2],
    ),
    "index_fill": (
        lambda x: x.index_fill(0, torch.tensor([3, 1]), -1.0),
        lambda x: changed(x, [3, 1], -1.0),
        X,
    ),
    "masked_fill": (
        lambda x: x.masked_fill(torch.tensor(MASK), 7.0),
        lambda x: np.where(MASK, 7.0, x),
        X,
    ),
    "masked_scatter": (
        lambda x, s: x.masked_scatter(torch.tensor(MASK), s),
        lambda x, s: changed(x, MASK, s.ravel()[: MASK.sum()]),
        X,
        Y,
    ),
    "select_scatter": (
        lambda x, s: torch.select_scatter(x, s, 1, 0),
        lambda x, s: changed(x, (slice(None), 0), s),
        X,
        V[:4],
    ),
    "addmm": (
        lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2),
        lambda c, a, b: 0.5 * c + 2 * a @ b,
        X,
        Y,
        M,
    ),
    "addcdiv": (
        lambda x, a, b: torch.addcdiv(x, a, b, value=0.1),
        lambda x, a, b: x + 0.1 * a / b,
        X,
        Y,
        Z,
    ),
    "addr": (torch.addr, lambda x, a, b: x + np.outer(a, b), X, V[:4], W[:3]),
    "lerp": (lambda x, y: torch.lerp(x, y, 0.25), lambda x, y: x + 0.25 * (y - x), X, Y),
    "baddbmm": (torch.baddbmm, lambda c, a, b: c + a @ b, CUBE[:, :, :3], CUBE, CUBE.mT[:, :, :3]),
    "kron": (torch.kron, np.kron, X, M),
    "cross": (torch.linalg.cross, np.cross, X, Y),
    "cdist": (torch.cdist, scipy.spatial.distance.cdist, X, Y),
    "vander": (lambda v: torch.vander(v, 4), lambda v: np.vander(v, 4), V),
    "matrix_exp": (torch.linalg.matrix_exp, scipy.linalg.expm, M),
    "multi_dot": (
        lambda *a: torch.linalg.multi_dot(list(a)),
        lambda *a: np.linalg.multi_dot(a),
        X,
        M,
        M,
        V[:3],
    ),
    "cov": (torch.cov, np.cov, X),
    "corrcoef": (torch.corrcoef, np.corrcoef, X),
    "gradient": (lambda v: torch.gradient(v, spacing=0.5)[0], lambda v: np.gradient(v, 0.5), V),
    "dist": (
        lambda x, y: torch.dist(x, y, 3),
        lambda x, y: (abs(x - y) ** 3).sum() ** (1 / 3),
        X,
        Y,
    ),
    "nansum": (lambda x: torch.nansum(x, 1), lambda x: np.nansum(x, 1), GAPS),
    "nanmean": (lambda x: torch.nanmean(x, 1), lambda x: np.nanmean(x, 1), GAPS),
    "nanquantile": (
        lambda x: torch.nanquantile(x, 0.3, 1),
        lambda x: np.nanquantile(x, 0.3, 1),
        GAPS,
    ),
    "mode": (
        lambda x: torch.mode(x, 0).values,
        lambda x: scipy.stats.mode(x, 0).mode,
        WHOLE // 6,
    ),
    "count_nonzero": (torch.count_nonzero, np.count_nonzero, WHOLE),
    "gcd": (lambda x: torch.gcd(x, torch.tensor(12)), lambda x: np.gcd(x, 12), WHOLE),
    "lcm": (lambda x: torch.lcm(x, torch.tensor(12)), lambda x: np.lcm(x, 12), WHOLE),
    "hypot": (torch.hypot, np.hypot, X, Y),
    "fmax": (torch.fmax, np.fmax, X, Y),
    "nan_to_num": (lambda x: torch.nan_to_num(x, 0.5), lambda x: np.nan_to_num(x, nan=0.5), GAPS),
    "heaviside": (torch.heaviside, np.heaviside, WHOLE * 1.0, X),
    "float_power": (lambda x: torch.float_power(x, 2), lambda x: np.float_power(x, 2), WHOLE),
}


@pytest.mark.parametrize("name", ROWS)
def test_values_are_numpys(name):
    ours, oracle, *operands = ROWS[name]
    found = ours(*map(torch.tensor, operands)).numpy()
    expected = oracle(*operands)
    assert found.shape == np.shape(expected)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


NO_SLOPE = {"heaviside"}


@pytest.mark.parametrize(
    "name",
    [n for n, (_, _, *xs) in ROWS.items() if xs[0].dtype == np.float64 and n not in NO_SLOPE],
)
def test_slopes_are_those_of_differences(name):
    ours, _, *operands = ROWS[name]
    operands = [np.where(np.isnan(x), np.arange(x.size).reshape(x.shape), x) for x in operands]
    assert gradcheck(ours, tuple(torch.tensor(x, requires_grad=True) for x in operands))


@pytest.mark.parametrize(
    ("fill", "law"),
    [
        (lambda x: x.normal_(2.0, 3.0), scipy.stats.norm(2, 3)),
        (lambda x: x.uniform_(-1.0, 4.0), scipy.stats.uniform(-1, 5)),
        (lambda x: x.exponential_(2.0), scipy.stats.expon(scale=0.5)),
        (lambda x: x.cauchy_(1.0, 2.0), scipy.stats.cauchy(1, 2)),
        (lambda x: x.log_normal_(0.5, 0.7), scipy.stats.lognorm(0.7, scale=math.exp(0.5))),
    ],
)
def test_tensors_are_filled_with_draws_of_the_law(fill, law):
    torch.manual_seed(3)
    x = torch.empty(20_000, dtype=torch.float64)
    assert fill(x) is x
    assert scipy.stats.kstest(x.numpy(), law.cdf).pvalue > 1e-4


def test_whole_numbers_are_drawn_from_their_range():
    torch.manual_seed(3)
    found = torch.empty(30_000, dtype=torch.int64).random_(2, 8)
    counts = np.bincount(found.numpy(), minlength=8)
    assert counts[:2].sum() == 0
    assert scipy.stats.chisquare(counts[2:]).pvalue > 1e-4
    tries = torch.empty(30_000).geometric_(0.3).numpy()
    assert tries.min() == 1
    assert abs(tries.mean() - 1 / 0.3) < 5 * math.sqrt(0.7) / 0.3 / math.sqrt(30_000)


@pytest.mark.parametrize(
    "change",
    [
        lambda x, s: x.masked_fill_(x > 0, s.sum()),
        lambda x, s: x.index_add_(0, torch.tensor(INDEX), s),
        lambda x, s: x.scatter_add_(0, torch.tensor(AT), s),
        lambda x, s: x.addcmul_(s, s, value=0.5),
        lambda x, s: x.lerp_(s, 0.25),
        lambda x, s: x.index_fill_(0, torch.tensor([1]), 2.0),
        lambda x, s: x.hypot_(s),
    ],
)
def test_in_place_forms_have_the_derivative_of_the_others(change):
    s, at = torch.tensor(Y, requires_grad=True), torch.tensor(X, requires_grad=True)
    assert gradcheck(lambda x, s: change(x.clone(), s), (at, s))
    x = torch.tensor(X)
    assert change(x, torch.tensor(Y)) is x


@pytest.mark.parametrize("along", [0, 1])
def test_many_numbers_are_added_at_indices_in_their_order(along):
    rng = np.random.default_rng(7)
    x, source = rng.standard_normal((9, 40)), rng.standard_normal((12, 40))
    index = rng.integers(0, 9, (12, 40))
    if along:
        x, source, index = (np.ascontiguousarray(a.T) for a in (x, source, index))
    x, source = x.astype(np.float32), source.astype(np.float32)
    wanted, slices = x.copy(), x.copy()
    rows = index[:, 0] if along == 0 else index[0]
    for place in np.ndindex(*index.shape):
        there = list(place)
        there[along] = index[place]
        wanted[tuple(there)] += source[place]
        there[along] = rows[place[along]]
        slices[tuple(there)] += source[place]
    made = torch.tensor(x).scatter_add(along, torch.tensor(index), torch.tensor(source))
    np.testing.assert_array_equal(made.numpy(), wanted)
    made = torch.tensor(x).index_add(along, torch.tensor(rows), torch.tensor(source))
    np.testing.assert_array_equal(made.numpy(), slices)
    # Negative indices count from the end, and what is beyond is refused.
    at = torch.tensor(rows - x.shape[along])
    if along == 0:
        made = torch.tensor(x).index_put((at,), torch.tensor(source), accumulate=True)
        np.testing.assert_array_equal(made.numpy(), slices)
        with pytest.raises(IndexError, match="indices in"):
            torch.tensor(x).index_put((at + 18,), torch.tensor(source), accumulate=True)
