"""ODE solvers: closed forms and SciPy as oracles, orders of convergence, gradients both ways."""

import numpy as np
import pytest
from scipy.integrate import solve_ivp

import probtorch
import probtorch.distributions as dist
from probtorch.autograd import grad, no_grad
from probtorch.compiler.compile import compile
from probtorch.errors import ArgumentError, DomainError, ShapeError
from probtorch.func import hessian, jacrev, value_and_grad
from probtorch.infer import Target
from probtorch.ode import METHODS, odeint, odeint_adjoint, odeint_event
from probtorch.ops.pieces import stack
from probtorch.tensor import tensor
from probtorch.testing import assert_close

F64 = probtorch.float64
ADAPTIVE = [name for name, m in METHODS.items() if m.adaptive]
FIXED = [name for name, m in METHODS.items() if not m.adaptive]
STIFF_BACKWARDS = ("rodas4", "continuous")
THETA = np.array([1.0, 0.05, 1.0, 0.05])
TIMES = np.linspace(0.0, 8.0, 9)


def predators(theta):
    def slope(t, y):
        u, v = y[0], y[1]
        return stack([(theta[0] - theta[1] * v) * u, (theta[3] * u - theta[2]) * v])

    return slope


def reference(theta, y0, times, rtol=1e-12):
    def slope(t, y):
        u, v = y
        return [(theta[0] - theta[1] * v) * u, (theta[3] * u - theta[2]) * v]

    span = (times[0], times[-1])
    return solve_ivp(slope, span, y0, "DOP853", times, rtol=rtol, atol=1e-12).y.T


def driven(t, y):
    """Depends on time; solved by y = exp(sin(t))."""
    return y * t.cos()


def falling(t, y):
    """Depends on time, not linear; solved by y = 1 / (1 + t^2)."""
    return -2.0 * t * y * y


@pytest.mark.parametrize("method", ADAPTIVE)
def test_adaptive_methods_hold_their_tolerance(method):
    rtol = 1e-5 if method == "bosh3" else 1e-8
    y0, t = tensor([30.0, 4.0], dtype=F64), tensor(TIMES)
    found = odeint(predators(tensor(THETA)), y0, t, rtol=rtol, atol=rtol, method=method)
    np.testing.assert_allclose(found.numpy(), reference(THETA, [30.0, 4.0], TIMES), rtol=300 * rtol)


@pytest.mark.parametrize("method", METHODS)
def test_the_order_of_convergence_is_the_one_stated(method):
    """Errors of a smooth problem against the step size, by steps of fixed size."""
    m = METHODS[method]
    y0, errors, sizes = tensor([1.0], dtype=F64), [], [0.1, 0.05, 0.025]
    for h in sizes:
        t, y = tensor(0.0, dtype=F64), y0
        for _ in range(round(2.0 / h)):
            y, _ = m.step(falling, t, y, tensor(h, dtype=F64))
            t = t + h
        errors.append(abs(y.item() - 0.2))
    slope = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert m.order - 0.35 < slope < m.order + 1.3


@pytest.mark.parametrize("method", ADAPTIVE)
def test_the_error_estimate_is_of_lower_order_than_the_solution(method):
    m = METHODS[method]
    t, y = tensor(0.3, dtype=F64), tensor([1.2], dtype=F64)
    ratios = []
    for h in (0.1, 0.05):
        _, error = m.step(falling, t, y, tensor(h, dtype=F64))
        ratios.append(abs(error.item()))
    order = np.log2(ratios[0] / ratios[1])
    assert m.order - 0.6 < order < m.order + 1.6


@pytest.mark.parametrize("method", FIXED)
def test_fixed_steps_end_at_the_output_times(method):
    t = tensor([0.0, 0.35, 1.0, 2.5], dtype=F64)
    found = odeint(driven, tensor([1.0], dtype=F64), t, method=method, options={"step_size": 0.01})
    error = {"rk4": 1e-8, "midpoint": 1e-3, "heun2": 1e-3, "euler": 0.1}[method]
    np.testing.assert_allclose(found[:, 0].numpy(), np.exp(np.sin(t.numpy())), rtol=error)


def test_a_stiff_system_needs_few_steps():
    """Robertson's problem; the reference is SciPy's Radau."""

    def slope(t, y):
        a, b, c = y[0], y[1], y[2]
        first, second, third = 0.04 * a, 1e4 * b * c, 3e7 * b * b
        return stack([-first + second, first - second - third, third])

    def numbers(t, y):
        return slope(t, tensor(y)).numpy()

    times = np.array([0.0, 0.4, 4.0, 40.0, 400.0, 4000.0])
    y0 = [1.0, 0.0, 0.0]
    found = odeint(
        slope,
        tensor(y0, dtype=F64),
        tensor(times),
        rtol=1e-6,
        atol=1e-10,
        method="rodas4",
        options={"max_num_steps": 400},
    )
    right = solve_ivp(numbers, (0, times[-1]), y0, "Radau", times, rtol=1e-9, atol=1e-13).y.T
    np.testing.assert_allclose(found.numpy(), right, rtol=1e-4, atol=1e-9)


def test_time_may_run_backwards():
    t = tensor([2.0, 1.0, 0.0], dtype=F64)
    found = odeint(driven, tensor([np.exp(np.sin(2.0))]), t)
    np.testing.assert_allclose(found[:, 0].numpy(), np.exp(np.sin(t.numpy())), rtol=1e-7)


def test_states_may_be_trees():
    def slope(t, state):
        x, v = state["x"], state["v"]
        return {"x": v, "v": -x}

    y0 = {"x": tensor([[1.0, 0.0]], dtype=F64), "v": tensor([[0.0, 2.0]], dtype=F64)}
    found = odeint(slope, y0, tensor([0.0, 1.0], dtype=F64))
    assert found["x"].shape == (2, 1, 2)
    np.testing.assert_allclose(found["x"][1, 0].numpy(), [np.cos(1.0), 2 * np.sin(1.0)], rtol=1e-7)


def loss(method, adjoint, rtol=1e-9):
    weights = tensor(np.linspace(-1.0, 1.0, 2 * len(TIMES)).reshape(-1, 2))

    def fn(theta, y0, t):
        y = odeint(predators(theta), y0, t, rtol=rtol, atol=rtol, method=method, adjoint=adjoint)
        return (y * weights).sum()

    return fn


@pytest.mark.parametrize(
    "method, adjoint",
    # A stiff method has the discrete adjoint alone.
    [(m, a) for m in ADAPTIVE for a in ("discrete", "continuous") if (m, a) != STIFF_BACKWARDS],
)
def test_gradients_are_those_of_the_exact_solution(method, adjoint):
    rtol = {"bosh3": 1e-6, "rodas4": 1e-7}.get(method, 1e-9)
    arguments = tensor(THETA), tensor([30.0, 4.0], dtype=F64), tensor(TIMES)
    leaves = [x.requires_grad_() for x in arguments]
    found = grad(loss(method, adjoint, rtol)(*leaves), leaves)
    weights = np.linspace(-1.0, 1.0, 2 * len(TIMES)).reshape(-1, 2)

    def exact(theta, y0, times):
        return (reference(theta, y0, times) * weights).sum()

    point = [np.array(THETA), np.array([30.0, 4.0]), TIMES]
    for k, g in enumerate(found):
        for i in range(len(point[k])):
            h = 1e-5 * max(1.0, abs(point[k][i]))
            values = []
            for sign in (1.0, -1.0):
                moved = [x.copy() for x in point]
                moved[k][i] += sign * h
                if k == 2 and i == 0:
                    # SciPy begins at the first time, as we do.
                    moved[2] = moved[2].copy()
                values.append(exact(*moved))
            right = (values[0] - values[1]) / (2 * h)
            tolerance = 3e-3 if method == "bosh3" else 1e-4
            assert g[i].item() == pytest.approx(right, rel=tolerance, abs=tolerance)


@pytest.mark.parametrize(
    "method", ["dopri5", pytest.param("rodas4", marks=pytest.mark.slow), "rk4"]
)
def test_compiled_solvers_give_the_eager_numbers(method):
    def fn(theta):
        options = {"step_size": 0.05} if method == "rk4" else None
        y0, t = tensor([30.0, 4.0], dtype=F64), tensor(TIMES[:4])
        y = odeint(predators(theta), y0, t, rtol=1e-6, atol=1e-6, method=method, options=options)
        return (y**2).sum()

    compiled = compile(value_and_grad(fn))
    expected = value_and_grad(fn)(tensor(THETA))
    for _ in range(2):
        for found, right in zip(compiled(tensor(THETA)), expected, strict=True):
            np.testing.assert_allclose(found.numpy(), right.numpy(), rtol=1e-8)
    assert compiled.reason is None
    # At other parameters the same code takes other steps.
    other = tensor(THETA * 1.3)
    for found, right in zip(compiled(other), value_and_grad(fn)(other), strict=True):
        np.testing.assert_allclose(found.numpy(), right.numpy(), rtol=1e-8)
    assert len(compiled.paths) == 1


def test_a_model_with_a_solver_is_compiled():
    observed = reference(THETA, [30.0, 4.0], TIMES)[1:] * 1.05

    def model(y):
        theta = probtorch.sample("theta", dist.LogNormal(np.log(THETA), 0.5).to_event(1))
        states = odeint(
            predators(theta), tensor([30.0, 4.0], dtype=F64), tensor(TIMES), rtol=1e-6, atol=1e-6
        )
        with probtorch.plate("species", 2), probtorch.plate("year", 8, dim=-2):
            probtorch.sample("y", dist.LogNormal(states[1:].log(), 0.1), obs=y)

    target = Target.from_model(model, tensor(observed))
    q = np.log(THETA) + 0.1
    value, gradient = target.value_and_grad(q)

    def logp(q):
        theta = np.exp(q)
        z = (np.log(observed) - np.log(reference(theta, [30.0, 4.0], TIMES)[1:])) / 0.1
        prior = -0.5 * ((q - np.log(THETA)) / 0.5) ** 2 - np.log(0.5) - 0.5 * np.log(2 * np.pi)
        terms = -0.5 * z * z - np.log(0.1) - 0.5 * np.log(2 * np.pi) - np.log(observed)
        return prior.sum() + terms.sum()

    assert value == pytest.approx(logp(q), rel=1e-5)
    h = 1e-5
    numeric = [(logp(q + d) - logp(q - d)) / (2 * h) for d in np.eye(4) * h]
    np.testing.assert_allclose(gradient, numeric, rtol=2e-3)
    assert target.density.reason is None
    assert len(target.density.paths) == 1


def test_second_derivatives():
    def fn(rate):
        return odeint(lambda t, y: -rate * y, tensor([1.0], dtype=F64), tensor([0.0, 1.0])).sum()

    found = hessian(fn)(tensor(0.7, dtype=F64))
    assert found.item() == pytest.approx(np.exp(-0.7), rel=1e-5)


def test_odeint_adjoint_is_the_continuous_one():
    def fn(solve):
        return lambda rate: solve(
            lambda t, y: -rate * y, tensor([1.0], dtype=F64), tensor([0.0, 1.0, 2.0], dtype=F64)
        )

    rate = tensor(0.7, dtype=F64)
    np.testing.assert_allclose(
        jacrev(fn(odeint_adjoint))(rate).numpy(), jacrev(fn(odeint))(rate).numpy(), atol=1e-7
    )


@pytest.mark.parametrize("reverse", [False, True])
def test_an_event_ends_the_solution_and_its_time_has_a_gradient(reverse):
    """A ball thrown up: it lands at t = (v + sqrt(v^2 + 2 g h)) / g."""
    sign = -1.0 if reverse else 1.0

    def landing(v, g):
        def slope(t, y):
            return sign * stack([y[1], -g])

        t, y = odeint_event(
            slope,
            stack([v * 0.0 + 2.0, v]),
            0.0,
            event_fn=lambda t, y: y[0],
            reverse_time=reverse,
        )
        return t * sign, y[1, 1]

    v = tensor(5.0, dtype=F64, requires_grad=True)
    g = tensor(9.81, dtype=F64, requires_grad=True)
    t, speed = landing(v, g)

    def exact(v, g):
        return (v + np.sqrt(v * v + 4 * g)) / g

    assert t.item() == pytest.approx(exact(5.0, 9.81), rel=1e-6)
    assert speed.item() == pytest.approx(-np.sqrt(25 + 4 * 9.81), rel=1e-6)
    h = 1e-6
    found = grad(t, [v, g], retain_graph=True)
    assert found[0].item() == pytest.approx(
        (exact(5 + h, 9.81) - exact(5 - h, 9.81)) / (2 * h), rel=1e-5
    )
    assert found[1].item() == pytest.approx(
        (exact(5, 9.81 + h) - exact(5, 9.81 - h)) / (2 * h), rel=1e-5
    )
    assert grad(speed, [v])[0].item() == pytest.approx(-5 / np.sqrt(25 + 4 * 9.81), rel=1e-5)


@pytest.mark.parametrize(
    ("event", "when"),
    [
        (lambda t, y: (y[0] - 0.5).sign(), np.log(2.0)),
        (lambda t, y: tensor(1.0 if float(t) < 3.0 else -1.0), 3.0),
        (lambda t, y: (2.6 - t).floor() + 0.5, 2.6),
    ],
    ids=["sign", "of Python", "floor"],
)
def test_an_event_that_jumps_has_a_time_and_no_gradient(event, when):
    y0 = tensor([1.0], dtype=F64, requires_grad=True)
    with no_grad():
        t, y = odeint_event(lambda t, y: -y, y0, 0.0, event_fn=event, t_max=10.0)
    assert_close(t.numpy(), when, rtol=1e-6)
    assert_close(y[1].numpy(), np.exp([-when]), rtol=1e-6)
    with pytest.raises(DomainError, match=r"(?s)slope in time.*jumps.*not its sign"):
        odeint_event(lambda t, y: -y, y0, 0.0, event_fn=event, t_max=10.0)


def test_an_event_that_is_flat_where_it_crosses_zero_is_not_said_to_jump():
    y0 = tensor([1.0], dtype=F64, requires_grad=True)
    with pytest.raises(DomainError, match=r"(?s)slope in time.*or is flat.*or its cube"):
        odeint_event(lambda t, y: -y, y0, 0.0, event_fn=lambda t, y: (t - 1.3) ** 3, t_max=10.0)


def test_what_is_wrong_is_said():
    y0, t = tensor([1.0], dtype=F64), tensor([0.0, 1.0], dtype=F64)
    with pytest.raises(ArgumentError, match="a method among"):
        odeint(driven, y0, t, method="dopri")
    with pytest.raises(ArgumentError, match="options among"):
        odeint(driven, y0, t, options={"steps": 3})
    with pytest.raises(ShapeError, match="two or more times"):
        odeint(driven, y0, tensor(1.0))
    with pytest.raises(ShapeError, match="form of the state"):
        odeint(lambda t, y: y.sum(), y0, t)
    with pytest.raises(DomainError, match="no solution beyond"):
        odeint(lambda t, y: y * y, y0, tensor([0.0, 2.0], dtype=F64))
    with pytest.raises(DomainError, match="no solution beyond"):
        odeint(lambda t, y: -1e6 * (y - t), y0, t, options={"max_num_steps": 50})
    with pytest.raises(ArgumentError, match="discrete adjoint for 'rodas4'"):
        odeint(driven, y0, t, method="rodas4", adjoint="continuous")
    with pytest.raises(DomainError, match="a sign change"):
        odeint_event(driven, y0, 0.0, event_fn=lambda t, y: y + 1.0, t_max=3.0)
    rate = tensor(1.0, requires_grad=True)
    with pytest.raises(ArgumentError, match="branches in Python"):
        odeint(lambda t, y: -y * rate if y > 0 else y * rate, y0, t)


def test_second_derivatives_where_the_function_closes_over_the_first_state():
    # y' = -a^2 y, y(0) = a: the loss is a^2 exp(-2 a^2 T).
    def derivatives(a):
        a = a.detach().requires_grad_()
        y = odeint(
            lambda t, y: -y * a * a,
            a,
            tensor([0.0, 0.7], dtype=probtorch.float64),
            rtol=1e-9,
            atol=1e-9,
        )
        (g,) = grad((y[-1] ** 2).sum(), [a], create_graph=True)
        return g.detach(), grad(g.sum(), [a])[0]

    first, second = derivatives(tensor([0.6], dtype=probtorch.float64))
    # With E = exp(-1.4 a^2): L' = (2a - 2.8 a^3) E, L'' = (2 - 14 a^2 + 7.84 a^4) E.
    e = np.exp(-1.4 * 0.36)
    assert first.item() == pytest.approx((1.2 - 2.8 * 0.216) * e, rel=1e-6)
    assert second.item() == pytest.approx((2 - 14 * 0.36 + 7.84 * 0.1296) * e, rel=1e-5)


@pytest.mark.parametrize("method", ADAPTIVE)
def test_gradients_are_those_of_the_solution_computed_where_it_is_a_poor_one(method):
    """Prey far below atol: the solution is wrong there, and its gradient is that of what it is."""
    point = [np.array([1.2, 0.04, 0.6, 0.08]), np.array([12.0, 5.0]), np.linspace(0.0, 8.0, 7)]
    weights = tensor(np.linspace(-1.0, 1.0, 14).reshape(7, 2))

    def solved(theta, y0, times):
        z = odeint(predators(theta), y0, times, rtol=1e-3, atol=2e-2, method=method)
        return (z * weights).sum() + z[3, 0].log()

    leaves = [tensor(x, requires_grad=True) for x in point]
    found = grad(solved(*leaves), leaves)
    rng, h = np.random.default_rng(3), 1e-7
    for k, g in enumerate(found):
        direction = rng.normal(size=point[k].shape)
        ends = []
        for sign in (1.0, -1.0):
            moved = [tensor(x) for x in point]
            moved[k] = moved[k] + sign * h * tensor(direction)
            ends.append(solved(*moved).item())
        slope = (ends[0] - ends[1]) / (2.0 * h)
        assert (g.numpy() * direction).sum() == pytest.approx(slope, rel=1e-4)


def test_second_derivatives_are_those_of_the_solution_computed():
    def solved(theta):
        y0, times = tensor([9.0, 4.0], dtype=F64), tensor([0.0, 1.0, 2.0], dtype=F64)
        slope = predators(stack([theta[0], theta[1], theta[0], theta[1]]))
        return odeint(slope, y0, times, rtol=1e-3, atol=1e-2)[2, 0]

    at = np.array([1.0, 0.05])
    found = hessian(solved)(tensor(at)).numpy()
    for i, h in enumerate((1e-6, 1e-7)):
        moved = np.eye(2)[i] * h
        slopes = [jacrev(solved)(tensor(at + s * moved)).numpy() for s in (1.0, -1.0)]
        np.testing.assert_allclose(found[i], (slopes[0] - slopes[1]) / (2 * h), rtol=1e-4)
