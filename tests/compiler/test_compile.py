"""`probtorch.compile`: every call gives what the function gives, whichever call it is."""

import logging
import math
import sys
import threading
import warnings

import numpy as np
import pytest

import probtorch
from probtorch.autograd.tape import grad
from probtorch.compiler import paths
from probtorch.compiler.compile import compile
from probtorch.compiler.paths import CompileWarning
from probtorch.config import configure
from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.core.rng import Generator
from probtorch.ops.control import cond, while_loop
from probtorch.ops.variates import poisson, standard_gamma

X = np.array([1.0, -2.0, 3.0])


def counting(fn):
    """Return a compiled `fn` that counts its runs in Python."""
    # Not a list, whose growth the compiler sees, and would go on eagerly.
    log = logging.Logger("runs")
    log.addHandler(keep := Keep())

    def counted(*args, **kwargs):
        log.warning("run")
        return fn(*args, **kwargs)

    compiled = compile(counted, verify=False)
    compiled.runs = keep.records
    return compiled


class Keep(logging.Handler):
    """Keeps what is logged."""

    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(record)


def tensor(values, **options):
    return wrap(np.array(values, **options))


def assert_same(got, expected):
    assert got.array.dtype == expected.array.dtype
    np.testing.assert_array_equal(got.array, expected.array)


# ----------------------------------------------------------------------------- calls and versions


def test_the_function_runs_once_in_python():
    f = counting(lambda x: x * 2.0 + 1.0)
    for scale in (1.0, 2.0, -3.0):
        assert_same(f(tensor(X * scale)), tensor(X * scale * 2.0 + 1.0))
    assert len(f.runs) == 1


def test_it_is_a_decorator_with_and_without_parentheses():
    @compile
    def plain(x):
        """Its text."""
        return x + 1.0

    @compile()
    def called(x):
        return x + 1.0

    assert plain.__name__ == "plain" and plain.__doc__ == "Its text."
    assert_same(plain(tensor(X)), called(tensor(X)))


def test_each_shape_and_dtype_is_a_version_of_its_own():
    f = counting(lambda x: (x * 2).sum())
    arguments = [np.ones(3), np.ones(4), np.ones((3, 1)), np.ones(3, np.float32), np.ones(3, int)]
    for _ in range(3):
        for a in arguments:
            assert_same(f(tensor(a)), (tensor(a) * 2).sum())
    # Two of the shapes come when there is another of their type: these run twice.
    assert len(f.paths) == len(arguments)
    assert len(f.runs) == len(arguments) + 2


@pytest.mark.parametrize(
    "values", [(1, 2), (1, 1.0), (True, 1), (0.0, -0.0), ("a", "b"), (None, 1)]
)
def test_each_static_argument_is_a_version_of_its_own(values):
    meaning = {"a": 1.0, "b": 2.0, None: 3.0}

    def fn(x, value):
        number = meaning.get(value, value) if isinstance(value, (str, type(None))) else value
        return x / number if isinstance(number, float) else x * number

    f = compile(fn)
    for _ in range(2):
        for value in values:
            assert_same(f(tensor([2.0]), value), fn(tensor([2.0]), value))
    assert len(f.paths) == 2


def test_nan_is_one_version():
    f = counting(lambda x, value: x + value)
    for _ in range(3):
        assert np.isnan(f(tensor(X), float("nan")).array).all()
    assert len(f.runs) == 1


def test_arguments_and_results_are_trees():
    f = compile(lambda pair, *, scale: {"sum": pair[0] + pair[1] * scale["by"], "n": 3})
    for k in (1.0, 2.0):
        out = f((tensor(X), tensor(X * k)), scale={"by": tensor(2.0)})
        np.testing.assert_array_equal(out["sum"].array, X + 2.0 * X * k)
        assert out["n"] == 3


def test_an_unhashable_argument_runs_eagerly():
    f = counting(lambda x, array: x + array.sum())
    for _ in range(2):
        assert_same(f(tensor(X), np.ones(2)), tensor(X + 2.0))
    assert len(f.runs) == 2


def test_the_default_dtype_is_part_of_the_version():
    f = compile(lambda n: n.long() / 2)
    for dtype in (probtorch.float32, probtorch.float64, probtorch.float32):
        before = probtorch.get_default_dtype()
        probtorch.set_default_dtype(dtype)
        try:
            assert f(tensor([1, 2])).dtype == dtype
        finally:
            probtorch.set_default_dtype(before)


def test_strided_arguments_are_read_right():
    f = compile(lambda x: x.cumsum(0) * x[0])
    a = np.arange(24.0).reshape(4, 6)
    for view in (a[::2], a.T, a[:, ::-1], np.broadcast_to(a[:, :1], (4, 6)), a[1:3, 2]):
        assert_same(f(wrap(view)), wrap(view).cumsum(0) * wrap(view)[0])
        assert_same(f(wrap(view)), wrap(view).cumsum(0) * wrap(view)[0])


# ------------------------------------------------------------------------------------------ guards


def test_a_branch_is_compiled_path_by_path_and_never_frozen():
    def fn(x):
        if x.sum() > 0:
            return x * 2.0
        return x - 1.0 if x[0] > -5 else x * 0.0

    f = counting(fn)
    for _ in range(3):
        for a in (X, -X, X - 10.0):
            assert_same(f(tensor(a)), fn(tensor(a)))
    assert len(f.runs) == 3
    assert len(f.paths) == 3


@pytest.mark.parametrize("take", [float, lambda t: t.item()], ids=["float", "item"])
def test_a_number_taken_from_a_tensor_is_guarded_bit_by_bit(take):
    def fn(x):
        return x * math.copysign(2.0, take(x[0]))

    f = compile(fn)
    for value in (0.0, -0.0, math.nan, math.inf, -math.inf, 0.0, -0.0, math.nan):
        a = np.array([value, 1.0])
        got, expected = f(tensor(a)).array, fn(tensor(a)).array
        np.testing.assert_array_equal(got, expected)
        np.testing.assert_array_equal(np.signbit(got), np.signbit(expected))


def test_integers_taken_from_floats_are_guarded_by_their_truncation():
    f = counting(lambda x: x * int(x[0]))
    for value in (1.2, 1.9, -0.5, 0.5, 2.0, 1.5):
        assert_same(f(tensor([value, 1.0])), tensor([value * int(value), float(int(value))]))
    assert len(f.runs) == 3  # 1, 0 and 2


def test_an_index_out_of_bounds_raises_on_every_call():
    f = compile(lambda x, i: x[i])
    assert_same(f(tensor(X), tensor([1, -1])), tensor(X[[1, -1]]))
    for bad in (3, -4):
        with pytest.raises(IndexError, match=rf"got: +{bad}"):
            f(tensor(X), tensor([0, bad]))
    assert_same(f(tensor(X), tensor([2, 0])), tensor(X[[2, 0]]))


def test_an_integer_division_by_zero_raises_on_every_call():
    f = compile(lambda x, y: (x // y, x % y))
    a = tensor([7, -7, 7])
    for divisors in ([2, 2, -2], [3, 5, 7]):
        q, r = f(a, tensor(divisors))
        np.testing.assert_array_equal(q.array, a.array // np.array(divisors))
        np.testing.assert_array_equal(r.array, a.array % np.array(divisors))
    with pytest.raises(ZeroDivisionError):
        f(a, tensor([1, 0, 2]))


def test_too_many_paths_stop_recording_but_keep_what_is_there(monkeypatch):
    monkeypatch.setattr(paths, "MAX_PATHS", 3)
    f = counting(lambda x: x * float(x[0]))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CompileWarning)
        for k in range(6):
            assert_same(f(tensor([float(k), 1.0])), tensor([float(k * k), float(k)]))
    assert len(caught) == 1 and "3 different paths" in str(caught[0].message)
    before = len(f.runs)
    assert_same(f(tensor([1.0, 1.0])), tensor([1.0, 1.0]))
    assert len(f.runs) == before


def test_of_too_many_paths_the_python_value_that_differs_is_named(monkeypatch):
    monkeypatch.setattr(paths, "MAX_PATHS", 3)
    settings = {"mode": ""}
    f = compile(lambda x: x * len(settings["mode"]))

    def calls():
        for k in range(6):
            settings["mode"] = "a" * k
            assert_same(f(tensor([1.0])), tensor([float(k)]))

    with pytest.warns(CompileWarning, match="3 different paths.*; mode is not what it was"):
        calls()


# -------------------------------------------------------------------- what is outside the arguments


def test_outside_tensors_are_read_anew():
    w = tensor([1.0, 2.0, 3.0])
    f = counting(lambda x: x * w)
    for value in (1.0, -4.0):
        w[1] = value
        assert_same(f(tensor(X)), tensor(X * w.array))
    w.data = tensor([7.0, 8.0, 9.0])
    assert_same(f(tensor(X)), tensor(X * np.array([7.0, 8.0, 9.0])))
    assert len(f.runs) == 1


def test_an_outside_tensor_of_another_shape_is_another_path():
    w = tensor(2.0)
    f = compile(lambda x: x * w)
    assert_same(f(tensor(X)), tensor(X * 2.0))
    w.data = tensor([1.0, 2.0, 3.0])
    for _ in range(2):
        assert_same(f(tensor(X)), tensor(X * np.array([1.0, 2.0, 3.0])))


def test_an_accumulator_made_inside_starts_afresh_at_every_call():
    def fn(x):
        total = probtorch.zeros((), dtype=probtorch.float64)
        for i in range(3):
            total.add_(x[i])
        out = probtorch.zeros(4, dtype=probtorch.float64)
        out[1:3] = x[:2] * total
        return out

    f = counting(fn)
    for scale in (1.0, 2.0, 5.0):
        assert_same(f(tensor(X * scale)), fn(tensor(X * scale)))
    assert len(f.runs) == 1


def test_an_argument_changed_in_place_is_changed_at_every_call():
    def fn(x):
        x.add_(1.0)
        return x * 2.0

    f = compile(fn)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CompileWarning)
        for _ in range(3):
            a, b = tensor(X), tensor(X)
            assert_same(f(a), fn(b))
            assert_same(a, b)


def test_an_outside_tensor_changed_in_place_is_changed_at_every_call():
    def counter(total):
        def fn(x):
            total.add_(x.sum())
            return x + total

        return fn

    mine, theirs = tensor(0.0), tensor(0.0)
    f, plain = compile(counter(mine)), counter(theirs)
    for k in range(4):
        assert_same(f(tensor(X * k)), plain(tensor(X * k)))
        assert_same(mine, theirs)


def test_an_outside_tensor_that_is_also_an_argument_is_changed_once():
    def maker(w):
        def fn(x):
            w.add_(1.0)
            return x * 2.0

        return fn

    mine, theirs = tensor(X), tensor(X)
    f, plain = compile(maker(mine)), maker(theirs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CompileWarning)
        for argument in (None, "itself", None, "itself"):
            got = f(mine if argument else tensor(X))
            assert_same(got, plain(theirs if argument else tensor(X)))
            assert_same(mine, theirs)


def test_results_share_no_memory_with_arguments_constants_or_each_other():
    w = tensor([1.0, 2.0, 3.0])

    def fn(x):
        made = probtorch.ones(3, dtype=probtorch.float64)
        return x, x[1:], w, made, made, x * 1.0

    f = compile(fn)
    for _ in range(3):
        a = tensor(X)
        out = f(a)
        for y, expected in zip(out, fn(tensor(X)), strict=True):
            assert_same(y, expected)
        for y in out:
            y.array[...] = -1.0
        assert_same(a, tensor(X))
        assert_same(w, tensor([1.0, 2.0, 3.0]))


# ------------------------------------------------------------------------------------------ draws


@pytest.mark.parametrize("draw", ["rand", "randn"])
def test_draws_are_the_eager_ones_call_after_call(draw):
    generators = [probtorch.Generator(7), probtorch.Generator(7)]

    def fn(x, g):
        return x + getattr(probtorch, draw)(3, generator=g, dtype=probtorch.float64)

    f = compile(lambda x: fn(x, generators[0]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CompileWarning)
        got = [f(tensor(X)).array for _ in range(4)]
    expected = [fn(tensor(X), generators[1]).array for _ in range(4)]
    np.testing.assert_allclose(got, expected, rtol=1e-14)
    assert generators[0].get_state() == generators[1].get_state()


def test_draws_of_any_kind_are_never_frozen():
    draws = {
        "randint": lambda: probtorch.randint(0, 1000, (20,)),
        "randperm": lambda: probtorch.randperm(50),
        "bernoulli": lambda: probtorch.bernoulli(probtorch.full((60,), 0.5)),
        "poisson": lambda: poisson(probtorch.full((30,), 50.0)),
        "standard_gamma": lambda: standard_gamma(probtorch.full((3,), 2.0)),
        "normal": lambda: probtorch.normal(probtorch.zeros(3), probtorch.ones(3)),
    }
    for name, draw in draws.items():
        f = compile(lambda x, draw=draw: x.sum() + draw())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CompileWarning)
            seen = {f(tensor(X)).array.tobytes() for _ in range(4)}
        assert len(seen) == 4, name


# ---------------------------------------------------------------------------------------- gradients


def test_gradients_inside_are_compiled_too():
    def fn(x, y):
        x = x.detach().requires_grad_()
        value = (x.exp() * y).sum()
        return value.detach(), grad(value, x)[0]

    f = counting(fn)
    for scale in (1.0, 0.5):
        got, expected = (g(tensor(X * scale), tensor([1.0, 2.0, 3.0])) for g in (f, fn))
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_allclose(a.array, b.array, rtol=1e-14)
    assert len(f.runs) == 1


def test_a_gradient_through_the_call_is_compiled_both_ways():
    f = counting(lambda x: ((x * x).sum(), x.exp(), x.shape[0]))
    for k in range(4):
        x = tensor(X * (k + 1)).requires_grad_()
        y = x * 1.0
        total, e, n = f(y)
        assert n == 3
        (total + (e * tensor([1.0, 2.0, 3.0], dtype=np.float64)).sum()).backward()
        expected = 2.0 * x.detach().numpy() + np.array([1.0, 2.0, 3.0]) * np.exp(X * (k + 1))
        np.testing.assert_allclose(x.grad.array, expected, rtol=1e-12)
    # To learn what it closes over, forward, and backward: once each.
    assert len(f.runs) == 3


def test_gradients_flow_to_modules_and_what_is_closed_over():
    net = probtorch.nn.Sequential(
        probtorch.nn.Linear(3, 4), probtorch.nn.Tanh(), probtorch.nn.Linear(4, 1)
    )
    scale = tensor(0.7, dtype=np.float32).requires_grad_()
    log_scale = scale.log()
    compiled = compile(lambda x: (net(x) * log_scale.exp() + log_scale * scale).sum())
    x = tensor(np.random.default_rng(0).standard_normal((5, 3)), dtype=np.float32)
    leaves = [*net.parameters(), scale]
    for k in range(4):
        expected = grad(compiled.fn(x), leaves, retain_graph=True)
        found = grad(compiled(x), leaves, retain_graph=True)
        for g, right in zip(found, expected, strict=True):
            np.testing.assert_allclose(g.numpy(), right.numpy(), rtol=2e-5, atol=1e-6)
        with probtorch.no_grad():
            for p in net.parameters():
                p.sub_(0.01 * (k + 1))
        if k == 2:
            net[0] = probtorch.nn.Linear(3, 4)
            leaves = [*net.parameters(), scale]


def test_a_branch_under_a_gradient_has_both_paths():
    compiled = compile(lambda x: (x * x).sum() if x[0] > 0 else x.exp().sum())
    for _ in range(2):
        for sign in (1.0, -1.0):
            x = tensor(X * sign).requires_grad_()
            compiled(x).backward()
            expected = 2.0 * x.detach().numpy() if sign > 0 else np.exp(x.detach().numpy())
            np.testing.assert_allclose(x.grad.array, expected, rtol=1e-12)


def test_second_derivatives_through_a_call():
    compiled = compile(lambda x: (x**3).sum())
    x = tensor(X).requires_grad_()
    for _ in range(2):
        (g,) = grad(compiled(x), x, create_graph=True)
        np.testing.assert_allclose(grad(g.sum(), x)[0].numpy(), 6.0 * X, rtol=1e-12)


def test_a_function_that_draws_is_not_run_twice_for_its_gradient():
    rng, other = Generator(1), Generator(1)

    def fn(x, rng):
        return (x * probtorch.rand(3, generator=rng, dtype=np.float64)).sum()

    compiled = compile(lambda x: fn(x, rng))
    x = tensor(X).requires_grad_()
    with pytest.warns(CompileWarning, match="a draw in a call whose result needs a gradient"):
        grad(compiled(x), x)
    grad(fn(x, other), x)
    for _ in range(2):
        expected = grad(fn(x, other), x)[0]
        np.testing.assert_allclose(grad(compiled(x), x)[0].numpy(), expected.numpy())
    assert rng.get_state() == other.get_state()


def test_a_gradient_to_an_outside_parameter_is_not_lost():
    w = tensor([1.0, 2.0, 3.0])
    f = compile(lambda x: (x * w).sum())
    with probtorch.no_grad():
        for _ in range(2):
            f(tensor(X))
    f(tensor(X))
    f(tensor(X))
    w.requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CompileWarning)
        for _ in range(2):
            w.grad = None
            f(tensor(X)).backward()
            np.testing.assert_array_equal(w.grad.array, X)


def test_a_training_step_with_backward_leaves_its_gradients():
    w = tensor([1.0, 2.0, 3.0]).requires_grad_()

    def step(x):
        loss = (x * w).sum()
        loss.backward()
        return loss.detach()

    f = compile(step)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CompileWarning)
        for k in (1.0, 2.0, 3.0):
            w.grad = None
            f(tensor(X * k))
            np.testing.assert_array_equal(w.grad.array, X * k)


# ------------------------------------------------------------------------------------- falling back


@pytest.mark.parametrize(
    "fn, reason",
    [
        (lambda x: x[x > 0] * 2.0, "nonzero"),
        (lambda x: wrap(x.numpy() * 2.0), "numpy"),
        (lambda x: x.half() * 2.0, "float16"),
        (lambda x: (x, object())[0] if x is None else (x, [].append), "neither a tensor"),
    ],
    ids=["mask", "numpy", "float16", "object"],
)
def test_what_cannot_be_compiled_runs_eagerly_after_one_warning(fn, reason):
    f = counting(fn)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CompileWarning)
        for a in (X, -X, X):
            got, expected = f(tensor(a)), fn(tensor(a))
            got, expected = (o[0] if isinstance(o, tuple) else o for o in (got, expected))
            assert_same(got, expected)
    assert len(caught) == 1
    assert reason in str(caught[0].message)
    assert caught[0].filename == __file__
    assert reason in f.explain()
    assert len(f.runs) == 3


def test_a_path_that_was_compiled_stays_in_use_after_another_was_refused():
    f = counting(lambda x: x * 2.0 if x[0] > 0 else wrap(x.numpy() * 3.0))
    f(tensor(X))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CompileWarning)
        assert_same(f(tensor(-X)), tensor(-X * 3.0))
    before = len(f.runs)
    assert_same(f(tensor(X)), tensor(X * 2.0))
    assert len(f.runs) == before


def test_errors_of_the_function_are_the_users_and_leave_it_usable():
    def fn(x):
        if x[0] < 0:
            raise KeyError("mine")
        return x * 2.0

    f = compile(fn)
    f(tensor(X))
    for _ in range(2):
        with pytest.raises(KeyError, match="mine"):
            f(tensor(-X))
    assert_same(f(tensor(X)), tensor(X * 2.0))


def test_switched_off_it_is_the_function_itself():
    f = counting(lambda x: x * 2.0)
    with configure(jit=False):
        for _ in range(3):
            assert_same(f(tensor(X)), tensor(X * 2.0))
    assert len(f.runs) == 3 and not f.paths


def test_a_compiled_function_inside_another_is_part_of_it():
    inner = counting(lambda x: x * 2.0)
    outer = counting(lambda x: inner(x) + 1.0)
    for _ in range(3):
        assert_same(outer(tensor(X)), tensor(X * 2.0 + 1.0))
    assert len(outer.runs) == len(inner.runs) == 1


# ---------------------------------------------------------------------------- what comes out of it


def identity(x):
    return x


def constant(x):
    return probtorch.ones(2, dtype=probtorch.float64)


def twice(x):
    y = x + 1.0
    return y, y


def a_view(x):
    return (x + 1.0)[::-2]


def an_expanded_constant(x):
    return probtorch.zeros((), dtype=probtorch.float64).expand(3) + 0.0 * x


def nothing(x):
    return None


@pytest.mark.parametrize("fn", [identity, constant, twice, a_view, an_expanded_constant, nothing])
def test_a_result_may_be_anything_that_the_function_has(fn):
    f = counting(fn)
    for scale in (1.0, 2.0):
        got, expected = f(tensor(X * scale)), fn(tensor(X * scale))
        if expected is None:
            assert got is None
            continue
        for a, b in zip(
            got if isinstance(got, tuple) else (got,),
            expected if isinstance(expected, tuple) else (expected,),
            strict=True,
        ):
            assert_same(a, b)
    assert len(f.runs) == 1


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3), (2, 0, 3)], ids=str)
def test_empty_tensors_pass_through_everything(shape):
    def fn(x):
        y = (x.exp() + 1.0) * x.sum()
        return (
            y,
            y.sum(0),
            y.sum(),
            y.prod(-1),
            y.cumsum(0),
            y.reshape(-1),
            y.flip(0),
            y @ y.mT if y.ndim > 1 else y @ y,
            y.logsumexp(0),
            y > 0,
            probtorch.cat([y, y]),
            y.any(),
        )

    f = compile(fn)
    for _ in range(2):
        for a, b in zip(f(tensor(np.ones(shape))), fn(tensor(np.ones(shape))), strict=True):
            assert_same(a, b)


def test_loops_and_branches_inside():
    def fn(x, n):
        def body(s):
            i, y, total = s
            y = cond(y.sum() > 0, lambda z: z * 0.5 - 1.0, lambda z: z + 2.0, y)
            return i + 1, y, total + y.sum()

        return while_loop(lambda s: s[0] < n, body, (as_tensor(0), x, x.sum()))

    f = counting(fn)
    for n in (0, 1, 5, 20):
        got, expected = f(tensor(X), tensor(n)), fn(tensor(X), tensor(n))
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_allclose(a.array, b.array, rtol=1e-14)
    assert len(f.paths) == 1


def test_a_long_scalar_program_compiles():
    def fn(x):
        for k in range(2500):
            x = x * 0.999 + 0.001 * (k % 7)
        return x

    f = counting(fn)
    for value in (0.5, -1.5):
        np.testing.assert_allclose(f(tensor(value)).array, fn(tensor(value)).array, rtol=1e-11)
    assert len(f.runs) == 1


# ------------------------------------------------------------------------------------ what it shows


def test_explain_shows_paths_guards_nests_and_the_graph():
    @compile
    def explained(x):
        return (x * x).sum() if x[0] > 0 else x.exp().sum()

    explained(tensor(X))
    explained(tensor(-X))
    text = explained.explain()
    assert text.startswith("explained: 2 compiled paths")
    assert "guard 0" in text and "test_compile.py" in text
    assert "nest over 3: mul sum" in text and "nest over 3: exp sum" in text


def test_source_is_the_generated_text_of_every_path():
    f = compile(lambda x: x * 2.0 if x[0] > 0 else x * 3.0)
    f(tensor(X))
    f(tensor(-X))
    assert f.source().count("define i64 @run(ptr %a0)") == 2


# ------------------------------------------------------------------------------------------ threads


def test_threads_may_call_it_at_once():
    f = compile(lambda x: x.exp().sum() if x[0] > 0 else (x * x).sum())
    wrong = []

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(200):
            a = rng.standard_normal(5)
            expected = np.exp(a).sum() if a[0] > 0 else (a * a).sum()
            if not math.isclose(float(f(tensor(a))), expected, rel_tol=1e-12):
                wrong.append(a)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    assert len(f.paths) >= 2


def test_threads_on_different_branches_get_their_own_results_on_the_tape():
    @compile
    def f(x):
        if x.sum() > 0:
            return (x * x).sum(), "up"
        return (x * 3.0).sum(), x + 1.0, "down"

    wrong, pause = [], sys.getswitchinterval()

    def work(values, size):
        x = tensor(values).requires_grad_(True)
        wrong.extend(1 for _ in range(300) if len(f(x)) != size)

    threads = [
        threading.Thread(target=work, args=case)
        for case in 2 * [([1.0, 2.0], 2), ([-1.0, -2.0], 3)]
    ]
    sys.setswitchinterval(1e-6)
    try:
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        sys.setswitchinterval(pause)
    assert not wrong


def test_one_threads_recording_does_not_hear_of_another_threads_work():
    started, done = threading.Lock(), threading.Lock()
    started.acquire(), done.acquire()

    def meddle():
        started.acquire(timeout=5)
        t = tensor(X)
        for _ in range(50):
            t = t * 2.0 - t.sum() * 0.0
            bool(t.sum() > 0)
        done.release()

    def fn(x):
        y = x * 2.0
        started.release()
        done.acquire(timeout=5)
        return y + 1.0

    other = threading.Thread(target=meddle)
    other.start()
    f = compile(fn)
    assert_same(f(tensor(X)), tensor(X * 2.0 + 1.0))
    other.join()
    assert not f.paths[0].program.graph.guards
    assert len(f.paths[0].program.graph.nodes) == 2
