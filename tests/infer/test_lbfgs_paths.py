"""L-BFGS: the compact estimates against dense updates in exact arithmetic, and the paths."""

from fractions import Fraction

import numpy as np
import pytest

from probtorch.infer.starts.lbfgs_paths import (
    InverseHessian,
    LbfgsPaths,
    best_of_paths,
    updated_diagonal,
)


def matrices(hessian):
    """The estimates as dense matrices, column by column."""
    rows, dim = hessian.diagonal.shape
    columns = [hessian.apply(np.tile(e, (rows, 1))) for e in np.eye(dim)]
    return np.stack(columns, -1)


def exact(matrix):
    return [[Fraction(x) for x in row] for row in np.asarray(matrix).tolist()]


def product(a, b):
    return [[sum(x * y for x, y in zip(row, col)) for col in zip(*b)] for row in a]


def dense_bfgs(diagonal, steps, changes):
    """The BFGS formula for the inverse, (1 - r s y') H (1 - r y s') + r s s', in rationals."""
    dim = len(diagonal)
    h = exact(np.diag(diagonal))
    for s, y in zip(exact(steps), exact(changes)):
        r = 1 / sum(a * b for a, b in zip(s, y))
        left = [[(i == j) - r * s[i] * y[j] for j in range(dim)] for i in range(dim)]
        h = product(product(left, h), [list(column) for column in zip(*left)])
        h = [[h[i][j] + r * s[i] * s[j] for j in range(dim)] for i in range(dim)]
    return h


def determinant(matrix):
    """By elimination in rationals; the matrix is positive definite."""
    m, found = [list(row) for row in matrix], Fraction(1)
    for i in range(len(m)):
        found *= m[i][i]
        for j in range(i + 1, len(m)):
            share = m[j][i] / m[i][i]
            m[j] = [a - share * b for a, b in zip(m[j], m[i])]
    return found


def problem(rows=3, dim=5, history=4, pairs=4, seed=0):
    """Random quadratics with pairs of steps and changes of the gradient, small integers all."""
    rng = np.random.default_rng(seed)
    factor = rng.integers(-3, 4, (rows, dim, dim)).astype(float)
    precision = factor @ factor.transpose(0, 2, 1) + np.eye(dim)
    steps = np.zeros((rows, history, dim))
    steps[:, history - pairs :] = rng.integers(-4, 5, (rows, pairs, dim))
    order = np.tile(np.maximum(np.arange(1, history + 1) - (history - pairs), 0), (rows, 1))
    places = rng.permuted(np.tile(np.arange(history), (rows, 1)), axis=1)
    steps = np.take_along_axis(steps, places[:, :, None], 1)
    return precision, InverseHessian(
        2.0 ** rng.integers(-2, 3, (rows, dim)),
        np.stack([steps, steps @ precision], 1),
        np.take_along_axis(order, places, 1),
    )


@pytest.mark.parametrize("pairs", [0, 1, 4])
def test_compact_estimate_is_the_dense_update_in_exact_arithmetic(pairs):
    _, hessian = problem(pairs=pairs)
    found, log_det = matrices(hessian), hessian.log_det()
    for k in range(3):
        places = np.argsort(hessian.order[k])[hessian.order.shape[1] - pairs :]
        dense = dense_bfgs(hessian.diagonal[k], *hessian.pairs[k][:, places])
        expected = np.array(dense, float)
        np.testing.assert_allclose(found[k], expected, rtol=1e-11, atol=1e-11 * expected.max())
        np.testing.assert_allclose(log_det[k], np.log(float(determinant(dense))), rtol=1e-11)


@pytest.mark.parametrize(("dim", "history"), [(5, 2), (5, 5), (2, 6), (1, 6)])
def test_root_is_a_root_of_the_estimate(dim, history):
    _, hessian = problem(dim=dim, history=history, pairs=min(dim, history))
    root = hessian.times_root(np.tile(np.eye(dim), (3, 1, 1)))
    dense = matrices(hessian)
    np.testing.assert_allclose(
        root.transpose(0, 2, 1) @ root, dense, rtol=1e-9, atol=1e-10 * dense.max()
    )


def test_conjugate_steps_give_the_covariance_whatever_the_diagonal():
    precision, hessian = problem(history=5, pairs=5)
    # Directions that are conjugate: columns of the inverse of a transposed Cholesky factor.
    root = np.linalg.cholesky(precision).transpose(0, 2, 1)
    steps = np.linalg.inv(root).transpose(0, 2, 1)
    found = InverseHessian(hessian.diagonal, np.stack([steps, steps @ precision], 1), hessian.order)
    np.testing.assert_allclose(matrices(found), np.linalg.inv(precision), atol=1e-10)
    np.testing.assert_allclose(found.log_det(), -np.linalg.slogdet(precision)[1], atol=1e-10)


def test_diagonal_is_that_of_the_updated_scaled_diagonal():
    precision, hessian = problem()
    step, diagonal = hessian.pairs[:, 0, -1], hessian.diagonal
    change = np.einsum("kij,kj->ki", precision, step)
    for k, new in enumerate(updated_diagonal(diagonal, step, change)):
        s, y = step[k], change[k]
        b = np.diag(y @ (diagonal[k] * y) / (y @ s) / diagonal[k])
        b = b - np.outer(b @ s, b @ s) / (s @ b @ s) + np.outer(y, y) / (y @ s)
        np.testing.assert_allclose(new, 1.0 / np.diag(b), rtol=1e-12)


# ------------------------------------------------------------------------------------------- paths


def top(paths, rows):
    return paths.value[rows]


def evidence(paths, rows):
    return paths.value[rows] + 0.5 * paths.log_det[rows]


def climb(value_and_grad, starts, score=top, **settings):
    """The best points, and how often the density was evaluated."""
    calls = []

    def evaluate(points):
        calls.append(len(points))
        found = [value_and_grad(q) for q in points]
        values = np.array([v if np.isfinite(v) else -np.inf for v, _ in found])
        return values, np.stack([np.nan_to_num(g) for _, g in found])

    starts = np.asarray(starts, float)
    values, gradients = evaluate(starts)
    settings = {"max_gradients": 60, "tolerance": 1e-10, "patience": 10.0, **settings}
    paths = LbfgsPaths(evaluate, starts, values, gradients)
    best = best_of_paths(paths, score, **settings)
    return best, sum(calls)


def normal(precision, loc):
    def value_and_grad(q):
        r = q - loc
        return -0.5 * r @ precision @ r, -precision @ r

    return value_and_grad


def test_path_finds_the_mode_and_the_covariance_of_a_gaussian():
    precision = np.array([[4.0, 1.0, 0.0], [1.0, 9.0, 2.0], [0.0, 2.0, 1.0]])
    loc = np.array([1.0, -2.0, 30.0])
    best, _ = climb(normal(precision, loc), np.random.default_rng(0).uniform(-2, 2, (5, 3)))
    np.testing.assert_allclose(best.position, np.tile(loc, (5, 1)), atol=1e-4)
    # Steps are not exact, so the estimate is only near: 0.5 nats are a factor of 1.2 per dim.
    assert np.abs(best.log_det + np.linalg.slogdet(precision)[1]).max() < 1.0


def test_path_backs_off_from_where_there_is_no_density():
    def value_and_grad(q):  # x ~ Gamma(3, 100), inf and nan left of 0
        x = q[0]
        with np.errstate(all="ignore"):
            return 2.0 * np.log(x) - 100.0 * x, np.array([2.0 / x - 100.0])

    best, calls = climb(value_and_grad, [[2.0], [0.5], [1e-6]])
    np.testing.assert_allclose(best.position, 0.02, rtol=1e-3)
    assert calls < 3 * 40


def test_path_leaves_a_region_that_bends_upwards():
    def cauchy(q):
        return -np.log1p(q @ q), -2.0 * q / (1.0 + q @ q)

    best, _ = climb(cauchy, [[100.0], [-3000.0]])
    np.testing.assert_allclose(best.position, 0.0, atol=1e-3)


def test_paths_do_not_depend_on_their_neighbours():
    density = normal(np.diag([1.0, 100.0]), np.array([3.0, 0.1]))
    starts = np.random.default_rng(1).uniform(-2, 2, (6, 2))
    together, _ = climb(density, starts)
    alone, _ = climb(density, starts[2:3])
    np.testing.assert_array_equal(together.position[2], alone.position[0])
    np.testing.assert_array_equal(together.log_det[2], alone.log_det[0])


@pytest.mark.parametrize("slope", [0.0, 1.0])
def test_path_without_curvature_stays_where_it_began(slope):
    best, _ = climb(lambda q: (slope * q.sum(), np.full(2, slope)), [[0.5, -1.0]])
    np.testing.assert_array_equal(best.position, [[0.5, -1.0]])


def test_path_up_a_pole_ends_and_keeps_a_point_with_volume():
    # Minus 9 log |x| in 10 dims: it can be integrated over the pole, but no Gaussian is near it.
    def value_and_grad(q):
        r = q @ q
        return -4.5 * np.log(r) - 0.5 * r, -9.0 * q / r - q

    starts = np.random.default_rng(2).uniform(-2, 2, (4, 10))
    best, calls = climb(value_and_grad, starts, evidence, max_gradients=1000)
    assert (np.sqrt((best.position**2).sum(-1)) > 1e-3).all()
    assert calls < 4 * 300


def test_path_takes_no_more_evaluations_than_it_may():
    def rosenbrock(q):
        bent = q[1] - q[0] ** 2
        value = -100.0 * bent**2 - (1.0 - q[0]) ** 2
        return value, np.array([400.0 * q[0] * bent + 2.0 * (1.0 - q[0]), -200.0 * bent])

    _, calls = climb(rosenbrock, [[-1.2, 1.0], [2.0, -2.0]], max_gradients=7)
    assert calls == 2 * 8  # one of them at the start
    best, _ = climb(rosenbrock, [[-1.2, 1.0], [2.0, -2.0]], max_gradients=200)
    np.testing.assert_allclose(best.position, 1.0, atol=1e-3)
