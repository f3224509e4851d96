"""`NativeDensity`: paths join as they are met, threads share them, and errors come out."""

import ctypes
import math
import threading
import warnings

import numpy as np
import pytest

import probtorch
from probtorch.autograd.tape import grad
from probtorch.compiler import density as compiled_density
from probtorch.compiler import paths
from probtorch.compiler.density import NativeDensity
from probtorch.compiler.paths import CompileWarning
from probtorch.config import configure
from probtorch.core.dispatch import grad_enabled, recorder, wrap
from probtorch.core.making import as_tensor
from probtorch.errors import ArgumentError, DomainError
from probtorch.ops.control import cond, while_loop

Q = np.array([0.5, -1.0, 2.0])


def squares(q):
    return -0.5 * (q * q).sum()


def branching(q):
    """Two paths whose values and gradients differ."""
    return q.exp().sum() if q[0] > 0 else (q * q).sum()


def branching_by_hand(q):
    return (np.exp(q).sum(), np.exp(q)) if q[0] > 0 else ((q * q).sum(), 2.0 * q)


def assert_at(density, q, value, gradient):
    got, g = density.value_and_grad(q)
    np.testing.assert_allclose(got, value, rtol=1e-13)
    np.testing.assert_allclose(g, gradient, rtol=1e-13, atol=1e-300)


# ------------------------------------------------------------------------------------------ paths


def test_value_and_gradient_by_a_closed_form():
    density = NativeDensity(squares, 3)
    for scale in (1.0, -2.0, 0.0):
        assert_at(density, Q * scale, -0.5 * (Q * Q).sum() * scale**2, -Q * scale)
    assert density.evaluations == 1 and len(density.paths) == 1


def test_a_branch_flips_back_and_forth_and_is_recorded_once_each_way():
    density = NativeDensity(branching, 3)
    for sign in (1, -1, 1, 1, -1, -1, 1):
        assert_at(density, Q * sign, *branching_by_hand(Q * sign))
    assert density.evaluations == 2 and len(density.paths) == 2


def test_nested_branches_make_a_path_per_outcome():
    def fn(q):
        total = q.sum() * 0.0
        for i in range(3):
            total = total + (q[i].exp() if q[i] > 0 else q[i] * 3.0)
        return total

    density = NativeDensity(fn, 3)
    rng = np.random.default_rng(0)
    for _ in range(60):
        q = rng.standard_normal(3)
        assert_at(
            density, q, np.where(q > 0, np.exp(q), 3 * q).sum(), np.where(q > 0, np.exp(q), 3.0)
        )
    assert len(density.paths) == 8 == density.evaluations


def test_a_loop_over_a_computed_number_is_a_path_per_number():
    def fn(q):
        total = q[0] * 0.0
        for k in range(int(q[2])):
            total = total + q[0] * k
        return total

    density = NativeDensity(fn, 3)
    for n in (2, 3, 2, 0, 3):
        s = sum(range(n))
        assert_at(density, np.array([1.5, 0.0, n + 0.25]), 1.5 * s, [s, 0.0, 0.0])
    assert len(density.paths) == 3


def test_the_first_evaluation_of_a_path_is_the_native_one():
    density = NativeDensity(lambda q: (q.exp() * q.sin()).sum(), 3)
    first = density.value_and_grad(Q)
    again = density.value_and_grad(Q)
    assert first[0] == again[0]
    np.testing.assert_array_equal(first[1], again[1])


def test_many_paths_are_told_of_once_with_the_branch_and_the_cure(monkeypatch):
    monkeypatch.setattr(compiled_density, "MANY_PATHS", 3)

    def change_point(q):
        levels = [q[0] if i < q[1] else q[2] for i in range(8)]
        return sum(-((level - 1.0) ** 2) for level in levels)

    density = NativeDensity(change_point, 3, name="the log density of change_point")
    told = r"(?s)other branches of Python.*3 paths by now.*test_density.py:\d+.*where\(condition"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for at in (0.5, 1.5):
            density.value_and_grad(np.array([0.0, at, 0.0]))
    with pytest.warns(CompileWarning, match=told):
        density.value_and_grad(np.array([0.0, 2.5, 0.0]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert density.value_and_grad(np.array([0.0, 3.5, 0.0]))[0] == -8.0
    assert len(density.paths) == 4


def test_beyond_the_limit_of_paths_the_known_ones_stay_native(monkeypatch):
    monkeypatch.setattr(paths, "MAX_PATHS", 4)
    density = NativeDensity(lambda q: q.sum() * int(q[0]), 3)

    def check(n):
        assert_at(density, np.array([n + 0.5, 1, 1]), (n + 2.5) * n, [n, n, n])

    for n in range(4):
        check(n)
    with pytest.warns(CompileWarning, match="4 different paths"):
        check(4)
    check(5)
    check(6)
    assert len(density.paths) == 4
    before = density.evaluations
    assert_at(density, np.array([1.5, 1, 1]), 3.5, [1, 1, 1])
    assert density.evaluations == before
    assert_at(density, np.array([6.5, 1, 1]), 51.0, [6, 6, 6])


def test_zero_and_minus_zero_are_two_numbers():
    def fn(q):
        return q.sum() * math.copysign(1.0, float(q[0]))

    density = NativeDensity(fn, 3)
    for first, sign in ((0.0, 1.0), (-0.0, -1.0), (0.0, 1.0), (-0.0, -1.0)):
        assert_at(density, np.array([first, 1.0, 2.0]), 3.0 * sign, [sign] * 3)


# --------------------------------------------------------------------------- what the model returns


def test_a_density_in_float32_comes_out_in_full():
    density = NativeDensity(lambda q: (q.float() * 2.0).sum(), 3)
    for q in (Q, -Q):
        assert_at(density, q, q.sum() * 2.0, [2.0, 2.0, 2.0])


@pytest.mark.parametrize("value", [3.5, 2, True, np.float64(1.25)], ids=repr)
def test_a_constant_density_has_gradient_zero(value):
    density = NativeDensity(lambda q: value, 3)
    for _ in range(2):
        assert_at(density, Q, float(value), [0.0, 0.0, 0.0])


def test_a_density_of_some_of_its_variables_has_gradient_zero_in_the_others():
    density = NativeDensity(lambda q: q[1].exp(), 3)
    for _ in range(2):
        assert_at(density, Q, math.exp(-1.0), [0.0, math.exp(-1.0), 0.0])


def test_an_outside_parameter_does_not_stand_in_for_q():
    w = wrap(np.array(2.0)).requires_grad_()
    density = NativeDensity(lambda q: w * 3.0, 3)
    for _ in range(2):
        assert_at(density, Q, 6.0, [0.0, 0.0, 0.0])


def test_a_density_that_is_no_number_is_an_error_with_the_fix():
    density = NativeDensity(lambda q: q * 2.0, 3, name="the model")
    with pytest.raises(ArgumentError, match=r"the model(.|\n)*a 0-d tensor(.|\n)*sum the terms"):
        density.value_and_grad(Q)


def test_derivatives_of_derivatives_are_compiled_too():
    def fn(q):
        x = q.detach().requires_grad_()
        (slope,) = grad((x**3).sum(), x, create_graph=True)
        return (slope * q).sum()

    density = NativeDensity(fn, 3)
    for q in (Q, -Q):
        assert_at(density, q, (3 * q**3).sum(), 3 * q**2)


def test_native_loops_and_branches_inside():
    def fn(q):
        with probtorch.no_grad():
            n = while_loop(lambda i: i < q.abs().sum(), lambda i: i + 1.0, as_tensor(np.float64(0)))
            s = cond(q[0] > 0, lambda a: a * 2.0, lambda a: a - 1.0, q[1])
        return q.sum() * n + s * q[2]

    density = NativeDensity(fn, 3)
    for q in (Q, -Q, Q * 3.0):
        n = math.ceil(np.abs(q).sum())
        s = q[1] * 2.0 if q[0] > 0 else q[1] - 1.0
        assert_at(density, q, q.sum() * n + s * q[2], [n, n, n + s])
    assert len(density.paths) == 1


# ------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    "error",
    [
        DomainError("x", expected="positive", got="-1"),
        np.linalg.LinAlgError("singular"),
        ZeroDivisionError("0"),
        OverflowError("big"),
        FloatingPointError("bad"),
    ],
    ids=lambda e: type(e).__name__,
)
def test_a_point_outside_of_the_domain_has_density_minus_infinity_and_gradient_zero(error):
    def fn(q):
        if q[0] < 0:
            raise error
        return q.sum()

    density = NativeDensity(fn, 3)
    for q in (Q, -Q, Q, -Q):
        value, g = density.value_and_grad(q)
        assert value == (q.sum() if q[0] > 0 else -math.inf)
        np.testing.assert_array_equal(g, np.ones(3) if q[0] > 0 else np.zeros(3))


def test_any_other_error_comes_out_of_native_code_and_leaves_no_trace():
    def fn(q):
        if q[0] < 0:
            raise KeyError("mine")
        return q.sum()

    density = NativeDensity(fn, 3)
    assert_at(density, Q, Q.sum(), np.ones(3))
    for _ in range(2):
        with pytest.raises(KeyError, match="mine"):
            density.value_and_grad(-Q)
        assert recorder() is None and grad_enabled()
    assert_at(density, Q, Q.sum(), np.ones(3))


def test_an_error_is_kept_for_the_caller_of_the_native_function():
    def fn(q):
        raise KeyError("mine")

    context = NativeDensity(fn, 3).context()
    call = ctypes.CFUNCTYPE(ctypes.c_double, *[ctypes.c_void_p] * 3)(context.function)
    q, g = Q.copy(), np.empty(3)
    assert math.isnan(call(q.ctypes.data, g.ctypes.data, context.address))
    with pytest.raises(KeyError, match="mine"):
        context.raise_error()
    context.raise_error()


def test_an_index_out_of_bounds_is_the_users_error():
    table = wrap(np.arange(4.0))
    density = NativeDensity(lambda q: table[q[0].long()] * q.sum(), 3)
    assert_at(density, Q, 0.0, [0.0] * 3)
    with pytest.raises(IndexError, match=r"got: +9"):
        density.value_and_grad(np.array([9.0, 0, 0]))
    assert_at(density, np.array([3.5, 0, 0]), 10.5, [3.0] * 3)


# ------------------------------------------------------------------------------------- falling back


def masked(q):
    return q[q > 0].sum()


def test_what_cannot_be_compiled_is_evaluated_eagerly_after_one_warning_at_its_line():
    density = NativeDensity(masked, 3, name="the model")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for q in (Q, -Q, Q):
            assert_at(density, q, q[q > 0].sum(), (q > 0).astype(float))
    (warning,) = caught
    assert warning.filename == __file__
    assert warning.lineno == masked.__code__.co_firstlineno + 1
    assert "the model runs eagerly" in str(warning.message)
    assert not density.paths and density.evaluations == 3
    assert "runs eagerly" in density.explain()


@pytest.mark.parametrize(
    "fn",
    [
        lambda q: (q + probtorch.randn(3)).sum(),
        lambda q: q.sum() * float(q.numpy(force=True).sum()),
        lambda q: (q.detach().numpy() * 2.0).sum() + q.sum() * 0.0,
        lambda q: q.sum() + len(q[q > 0].tolist()),
    ],
    ids=["draw", "numpy", "detached numpy", "tolist"],
)
def test_what_a_replay_would_freeze_is_never_compiled(fn):
    density = NativeDensity(fn, 3)
    with pytest.warns(CompileWarning):
        density.value_and_grad(Q)
    assert not density.paths
    assert density.evaluations == 1
    density.value_and_grad(-Q)
    assert density.evaluations == 2


def test_a_refusal_on_one_path_leaves_the_others_native():
    density = NativeDensity(lambda q: q.exp().sum() if q[0] > 0 else q[q > 0].sum(), 3)
    assert_at(density, Q, np.exp(Q).sum(), np.exp(Q))
    with pytest.warns(CompileWarning):
        assert_at(density, -Q, 1.0, [0.0, 1.0, 0.0])
    before = density.evaluations
    assert_at(density, Q, np.exp(Q).sum(), np.exp(Q))
    assert density.evaluations == before


def test_switched_off_every_evaluation_is_eager():
    with configure(jit=False):
        density = NativeDensity(branching, 3)
        for sign in (1, -1, 1):
            assert_at(density, Q * sign, *branching_by_hand(Q * sign))
    assert density.evaluations == 3 and not density.paths
    assert "PROBTORCH_JIT=0" in density.explain()


def test_a_python_function_is_called_for_every_point():
    density = NativeDensity.from_python(lambda q: (-(q * q).sum(), -2.0 * q), 3)
    for q in (Q, -Q):
        assert_at(density, q, -(q * q).sum(), -2.0 * q)
    assert density.evaluations == 2


def test_evaluation_does_not_depend_on_the_callers_grad_mode_or_recorder():
    density = NativeDensity(squares, 3)
    with probtorch.no_grad():
        assert_at(density, Q, -0.5 * (Q * Q).sum(), -Q)
        value, g = density.eager(Q)
        assert not grad_enabled()
    assert value == pytest.approx(-0.5 * (Q * Q).sum())
    np.testing.assert_array_equal(g, -Q)


# ------------------------------------------------------------------------------------------ threads


def test_threads_have_a_context_each_and_share_the_paths():
    density = NativeDensity(branching, 3)
    wrong, errors = [], []

    def work(seed):
        try:
            context = density.context()
            rng = np.random.default_rng(seed)
            for _ in range(300):
                q = rng.standard_normal(3)
                value, g = context.value_and_grad(q)
                expected, slope = branching_by_hand(q)
                if not (math.isclose(value, expected, rel_tol=1e-12) and np.allclose(g, slope)):
                    wrong.append(q)
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors and not wrong
    assert len(density.paths) == 2


def test_threads_may_evaluate_different_densities_eagerly_at_once():
    def maker(k):
        def fn(q):
            inside = q[q > -1e9]  # not compiled: the shape depends on values
            for _ in range(5):
                inside = inside * 1.0
            return (inside * inside).sum() * k

        return fn

    densities = [NativeDensity(maker(k), 3) for k in range(1, 5)]
    wrong = []

    def work(k):
        for _ in range(60):
            value, g = densities[k - 1].value_and_grad(Q)
            if value != (Q * Q).sum() * k or not np.array_equal(g, 2.0 * Q * k):
                wrong.append((k, value, g))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CompileWarning)
        for d in densities:
            d.value_and_grad(Q)
        threads = [threading.Thread(target=work, args=(k,)) for k in range(1, 5)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert not wrong


def test_a_context_made_before_a_path_was_compiled_picks_it_up():
    density = NativeDensity(branching, 3)
    early = density.context()
    late = density.context()
    late.value_and_grad(Q)
    assert density.evaluations == 1
    value, g = early.value_and_grad(Q)
    expected, slope = branching_by_hand(Q)
    assert value == pytest.approx(expected)
    np.testing.assert_allclose(g, slope)
    assert len(density.paths) == 1 and early.bound == 1


@pytest.mark.parametrize(("free", "compared"), [(1e9, 5), (0.0, 0)])
def test_points_are_compared_with_python_as_often_as_that_is_quick(monkeypatch, free, compared):
    monkeypatch.setattr("probtorch.compiler.verify.FREE", free)
    monkeypatch.setattr("probtorch.compiler.verify.SHARE", 0.0)
    density = NativeDensity(squares, 3)
    seen = []
    monkeypatch.setattr(density, "_verify", lambda q, context: seen.append(q))
    for _ in range(17):
        assert_at(density, Q, -2.625, -Q)
    # The 2nd call, and the 3rd, 5th, 9th and 17th.
    assert len(seen) == compared
