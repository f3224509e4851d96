"""Roots: closed forms and SciPy as oracles, derivatives of all orders, hard starts, models."""

import numpy as np
import pytest
from scipy import optimize, special

import probtorch
import probtorch.distributions as dist
from probtorch.compiler.compile import compile
from probtorch.errors import ArgumentError, DomainError, ShapeError
from probtorch.func import grad, hessian, jacfwd, jacrev, jvp, value_and_grad, vmap
from probtorch.infer import MCMC, NUTS, Target
from probtorch.numerics import bracketed_root, root
from probtorch.ops.pieces import stack
from probtorch.tensor import tensor

F64 = probtorch.float64
METHODS = ("newton", "powell")


def double(x):
    return tensor(x, dtype=F64)


def circle(x, a):
    """Meets the diagonal at ``sqrt(a / 2)``."""
    u, v = x[..., 0], x[..., 1]
    return stack([u * u + v * v - a, u - v], -1)


# MINPACK's test problems (Moré, Garbow and Hillstrom 1981) with their standard starts.
def rosenbrock(x):
    return stack([1.0 - x[0], 10.0 * (x[1] - x[0] ** 2)])


def powell_badly_scaled(x):
    return stack([1e4 * x[0] * x[1] - 1.0, (-x[0]).exp() + (-x[1]).exp() - 1.0001])


def helical_valley(x):
    turn = probtorch.atan2(x[1], x[0]) / (2.0 * np.pi)
    return stack([10.0 * (x[2] - 10.0 * turn), 10.0 * ((x[0] ** 2 + x[1] ** 2).sqrt() - 1.0), x[2]])


def brown_almost_linear(x):
    n = x.shape[0]
    return probtorch.cat([x[:-1] + x.sum() - (n + 1.0), x.prod().reshape(1) - 1.0])


def broyden_tridiagonal(x):
    zero = x.new_zeros(1)
    before, after = probtorch.cat([zero, x[:-1]]), probtorch.cat([x[1:], zero])
    return (3.0 - 2.0 * x) * x - before - 2.0 * after + 1.0


def discrete_boundary_value(x):
    n = x.shape[0]
    h = 1.0 / (n + 1)
    t = h * tensor(np.arange(1.0, n + 1))
    zero = x.new_zeros(1)
    before, after = probtorch.cat([zero, x[:-1]]), probtorch.cat([x[1:], zero])
    return 2.0 * x - before - after + 0.5 * h * h * (x + t + 1.0) ** 3


PROBLEMS = {
    "rosenbrock": (rosenbrock, [-1.2, 1.0]),
    "powell_badly_scaled": (powell_badly_scaled, [0.0, 1.0]),
    "helical_valley": (helical_valley, [-1.0, 1e-3, 0.0]),
    "brown_almost_linear": (brown_almost_linear, [0.5] * 5),
    "broyden_tridiagonal": (broyden_tridiagonal, [-1.0] * 10),
    "discrete_boundary_value": (discrete_boundary_value, list(np.linspace(0.1, 0.9, 8) * -0.1)),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_problems_of_minpack_are_solved(name, method):
    f, start = PROBLEMS[name]
    found = root(f, double(start), method=method, max_steps=300).numpy()
    scale = max(1.0, np.abs(f(double(start)).numpy()).max())
    assert np.abs(f(double(found)).numpy()).max() < 1e-12 * scale
    theirs = optimize.root(lambda x: f(double(x)).numpy(), start, method="hybr", tol=1e-13)
    if name not in ("brown_almost_linear",):  # which has several roots
        np.testing.assert_allclose(found, theirs.x, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_a_start_at_which_slopes_are_singular_is_left(method):
    found = root(circle, double([0.4, -0.4]), double(8.0), method=method)
    np.testing.assert_allclose(found.numpy() ** 2, [4.0, 4.0], rtol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_steps_that_leave_the_domain_are_cut_short(method):
    # Newton's first step from 10 goes to 10 - 10 log(10) < 0, where the logarithm is nan.
    found = root(lambda x: x.log() * 3.0 + 0.1 * x - 0.1, double([10.0]), method=method)
    np.testing.assert_allclose(found.numpy(), [1.0], rtol=1e-10)


def test_small_unknowns_are_as_exact_as_large_ones():
    found = root(lambda x: x * x - double([1e-18, 1e12]), double([1.0, 1.0]))
    np.testing.assert_allclose(found.numpy(), [1e-9, 1e6], rtol=1e-12)
    assert abs(root(lambda x: x.exp() - 1.0, double(0.7)).item()) < 1e-15


@pytest.mark.parametrize("method", METHODS)
def test_rows_are_systems_of_their_own(method):
    a = double([2.0, 8.0, 18.0, 1e6])
    start = double([[1.0, 0.5]]).expand(4, 2)
    right = np.sqrt(a.numpy() / 2.0)[:, None] * [1.0, 1.0]
    np.testing.assert_allclose(root(circle, start, a, method=method).numpy(), right, rtol=1e-12)
    mapped = vmap(lambda a: root(circle, double([1.0, 0.5]), a, method=method))(a)
    np.testing.assert_allclose(mapped.numpy(), right, rtol=1e-12)
    # A start without the batch dims of the residuals takes them on.
    wide = root(lambda x: x**3 - a[:, None], double([1.0]), method=method)
    np.testing.assert_allclose(wide[:, 0].numpy(), np.cbrt(a.numpy()), rtol=1e-12)


def cubic(a):
    """The root of ``x^3 + x = 2 a``; its derivatives follow from the equation."""
    return root(lambda x, a: x**3 + x - 2.0 * a, double(1.0), a)


def derivatives_of_cubic(a):
    x = optimize.brentq(lambda x: x**3 + x - 2.0 * a, -10, 10, xtol=1e-14)
    slope = 3.0 * x * x + 1.0
    first = 2.0 / slope
    second = -6.0 * x * first**2 / slope
    third = -(6.0 * first**3 + 18.0 * x * first * second) / slope
    return first, second, third


@pytest.mark.parametrize("modes", ["f", "r", "fr", "rf", "ff", "rr", "fff", "rrr", "frf"])
def test_derivatives_of_all_orders_in_both_modes(modes):
    fn = cubic
    for mode in modes:
        fn = jacfwd(fn) if mode == "f" else jacrev(fn)
    right = derivatives_of_cubic(1.3)[len(modes) - 1]
    assert fn(double(1.3)).item() == pytest.approx(right, rel=1e-9)


def test_gradients_of_what_the_function_closes_over_and_of_none_of_the_start():
    a, start = double(8.0).requires_grad_(), double([1.0, 0.5]).requires_grad_()
    found = root(lambda x: circle(x, a * a), start)
    found[0].backward()
    assert a.grad.item() == pytest.approx(1.0 / np.sqrt(2.0), rel=1e-12)
    assert start.grad is None


def test_derivative_at_a_double_root_is_nan():
    a = double(0.0).requires_grad_()
    found = root(lambda x: x * x - a, double(1.0), atol=1e-9, max_steps=200)
    found.backward()
    assert abs(found.item()) < 1e-8
    assert not np.isfinite(a.grad.item()) or abs(a.grad.item()) > 1e6


@pytest.mark.parametrize("method", METHODS)
def test_compiled_roots_give_the_eager_numbers(method):
    def fn(a):
        start = double([[1.0, 0.5]]).expand(3, 2)
        return root(circle, start, a, method=method).sum()

    compiled = compile(value_and_grad(fn))
    for scale in (1.0, 1.0, 30.0, 0.01):
        a = double([2.0, 8.0, 18.0]) * scale
        value, slope = compiled(a)
        np.testing.assert_allclose(value.numpy(), 2.0 * np.sqrt(a.numpy() / 2.0).sum(), rtol=1e-11)
        np.testing.assert_allclose(slope.numpy(), 1.0 / np.sqrt(2.0 * a.numpy()), rtol=1e-11)
    assert compiled.reason is None
    assert len(compiled.paths) == 1
    # A row without a root is nan, and the others are what they were.
    value, _ = compile(value_and_grad(fn))(double([2.0, -8.0, 18.0]))
    assert np.isnan(value.item())


def test_rows_without_a_root_are_nan_under_vmap():
    found = vmap(lambda a: root(circle, double([1.0, 0.5]), a)[0])(double([2.0, -1.0]))
    np.testing.assert_allclose(found.numpy(), [1.0, np.nan], rtol=1e-12)


def test_single_precision_and_numbers():
    assert root(lambda x: x**3 - 2.0, 1.0).dtype == probtorch.float32
    assert root(lambda x: x**3 - 2.0, 1).item() == pytest.approx(np.cbrt(2.0), rel=1e-6)
    # The precision is that of the residuals, too.
    assert root(lambda x: x**3 - double([2.0]), tensor([1.0])).dtype == F64


# --------------------------------------------------------------------------------- between bounds


@pytest.mark.parametrize(
    "f, low, high",
    [
        (lambda x, m: m.cos(x) - x, 0.0, 1.0),
        (lambda x, m: (x - 1.0) * (1.0 + (x - 1.0) ** 2), -3.0, 50.0),
        (lambda x, m: x**9, -1.0, 4.0),
        (lambda x, m: m.exp(x) - 1e-6, -100.0, 100.0),
        (lambda x, m: m.log(x), 0.0, 9.0),
        (lambda x, m: 1.0 / (x - 0.3) - 6.0, 0.300001, 20.0),
        (lambda x, m: 2.9 - x, 5.0, 1.0),
    ],
)
def test_bracketed_roots_are_those_of_brent(f, low, high):
    with np.errstate(all="ignore"):
        theirs = optimize.brentq(lambda x: f(x, np), low or 1e-300, high, xtol=1e-15, maxiter=2000)
    found = bracketed_root(lambda x: f(x, probtorch), double(low), high).item()
    assert found == pytest.approx(theirs, rel=1e-14, abs=1e-14)


def test_lambert_w_elementwise_with_derivatives():
    a = double([0.1, 1.0, 2.0, 30.0])

    def fn(a):
        return bracketed_root(lambda x, a: x * x.exp() - a, 0.0, 5.0, a)

    w = special.lambertw(a.numpy()).real
    np.testing.assert_allclose(fn(a).numpy(), w, rtol=1e-14)
    first = w / (a.numpy() * (1.0 + w))
    second = -(first**2) * (2.0 + w) / (1.0 + w)
    np.testing.assert_allclose(grad(lambda a: fn(a).sum())(a).numpy(), first, rtol=1e-13)
    np.testing.assert_allclose(jvp(fn, (a,), (a * 0.0 + 1.0,))[1].numpy(), first, rtol=1e-13)
    curvature = hessian(lambda a: fn(a).sum())(a).numpy()
    np.testing.assert_allclose(np.diag(curvature), second, rtol=1e-12)
    np.testing.assert_allclose(vmap(grad(fn))(a).numpy(), first, rtol=1e-13)
    compiled = compile(value_and_grad(lambda a: fn(a).sum()))
    for _ in range(2):
        np.testing.assert_allclose(compiled(a)[1].numpy(), first, rtol=1e-13)
    assert compiled.reason is None


def test_inverse_of_a_distribution_function():
    """Quantiles of a mixture, which have no closed form."""
    weights, loc, scale = double([0.3, 0.7]), double([-1.0, 2.0]), double([0.5, 1.5])
    p = double([0.01, 0.3, 0.5, 0.99])

    def cdf(x):
        return (weights * dist.Normal(loc, scale).cdf(x[..., None])).sum(-1)

    x = bracketed_root(lambda x: cdf(x) - p, -50.0, 50.0)
    np.testing.assert_allclose(cdf(x).numpy(), p.numpy(), rtol=1e-13)


# ------------------------------------------------------------------------------------------ models

AMOUNTS = np.linspace(0.5, 4.0, 8)
BOUND = np.array([0.385, 0.716, 1.007, 1.233, 1.392, 1.497, 1.576, 1.632])


def exact_amount(affinity):
    b = AMOUNTS + 2.0 + 1.0 / affinity
    return (b - np.sqrt(b * b - 8.0 * AMOUNTS)) / 2.0


def binding(y, kind):
    affinity = probtorch.sample("affinity", dist.LogNormal(0.0, 2.0))
    total = tensor(AMOUNTS)
    if kind == "root":
        free = total[:, None]
        x = root(lambda x: x - affinity * (free - x) * (2.0 - x), probtorch.zeros(8, 1))[:, 0]
    else:
        high = tensor(np.minimum(AMOUNTS, 2.0))
        x = bracketed_root(lambda x: x - affinity * (total - x) * (2.0 - x), 0.0, high)
    with probtorch.plate("n", 8):
        probtorch.sample("y", dist.Normal(x, 0.05), obs=y)


@pytest.mark.parametrize("kind", ["root", "bracketed"])
def test_density_of_a_model_is_that_of_the_closed_form_and_compiled(kind):
    target = Target.from_model(binding, tensor(BOUND), kind)

    def logp(q):
        z = (BOUND - exact_amount(np.exp(q))) / 0.05
        half = 0.5 * np.log(2 * np.pi)
        return (
            -0.5 * (q / 2.0) ** 2 - np.log(2.0) - half + (-0.5 * z * z - np.log(0.05) - half).sum()
        )

    for q in (0.3, 1.1, -2.0, 4.0):
        value, slope = target.value_and_grad(np.array([q]))
        assert value == pytest.approx(logp(q), rel=1e-10)
        assert slope[0] == pytest.approx(
            (logp(q + 1e-5) - logp(q - 1e-5)) / 2e-5, rel=1e-6, abs=1e-6
        )
    assert target.density.reason is None
    assert len(target.density.paths) == 1


def test_points_without_a_root_are_infeasible_in_nuts():
    """``a`` has to be above 0; draws are those of the prior cut there (4 standard errors)."""

    def model():
        a = probtorch.sample("a", dist.Normal(0.5, 1.0))
        x = root(lambda x: x * x - a, 1.0)
        probtorch.sample("y", dist.Normal(x, 0.5), obs=tensor(0.8))

    target = Target.from_model(model)
    assert not np.isfinite(target.value_and_grad(np.array([-1.0]))[0])
    with pytest.warns(probtorch.diagnostics.InferenceWarning, match="divergent"):
        draws = MCMC(NUTS(target), 2000, num_chains=2, seed=1, progress_bar=False).run()
    u = np.linspace(1e-6, 7.0, 100_001)
    weight = np.exp(-0.5 * (u - 0.5) ** 2 - 2.0 * (np.sqrt(u) - 0.8) ** 2)
    mean = (weight * u).sum() / weight.sum()
    summary = draws.summary()
    ess = float(summary["ess_bulk"]["a"]) if "ess_bulk" in summary else 400.0
    assert draws["a"].min() > 0.0
    assert draws["a"].mean() == pytest.approx(mean, abs=4.0 * draws["a"].std() / np.sqrt(ess))


# ------------------------------------------------------------------------------------------ errors


def test_what_is_wrong_is_said():
    x0 = double([1.0, 0.5])
    with pytest.raises(DomainError, match=r"no root.*\n.*100 steps.*\n.*where the search ended"):
        root(circle, x0, double(-8.0))
    with pytest.raises(DomainError, match="in 2 of 3 rows, first at 1"):
        root(lambda x: x * x - double([[1.0], [-1.0], [-1.0]]), double([2.0]))
    with pytest.raises(DomainError, match="numbers at x0"):
        root(lambda x: x.log(), double(-1.0))
    with pytest.raises(ArgumentError, match="'newton' or 'powell'"):
        root(circle, x0, double(8.0), method="broyden")
    with pytest.raises(ArgumentError, match="rtol above 0"):
        root(circle, x0, double(8.0), rtol=0.0)
    with pytest.raises(ShapeError, match="as many residuals as unknowns"):
        root(lambda x: x.sum(), x0)
    with pytest.raises(ShapeError, match="stack"):
        root(lambda x: [x[0], x[1]], x0)
    with pytest.raises(ArgumentError, match="one by one after x0"):
        root(circle, x0, args=(double(8.0),))
    with pytest.raises(DomainError, match=r"different signs(.|\n)*1.718 and 59.26"):
        bracketed_root(lambda x: x * x.exp() - 1.0, 1.0, 3.0)
    a = double(2.0).requires_grad_()
    with pytest.raises(ArgumentError, match="draws random numbers"):
        root(lambda x: x - a * probtorch.rand(2).double(), x0)


def test_python_branches_work_eagerly_and_are_refused_with_a_reason_in_compiled_code():
    a = double(2.0)

    def fn(a):
        return root(lambda x: x - a if x > a else 2.0 * (x - a), double(1.0))

    assert value_and_grad(fn)(a)[1].item() == pytest.approx(1.0)
    with pytest.raises(ArgumentError, match="write branches with where"):
        compile(value_and_grad(fn))(a)
