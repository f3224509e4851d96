"""Compiled functions that use gradients, hooks and what else Python can ask of tensors."""

import warnings

import numpy as np
import pytest

import probtorch
from probtorch import autograd, nn
from probtorch.compiler.paths import CompileWarning
from probtorch.testing import assert_close
from tests.compiler.agreement import same


def leaf(*values):
    return probtorch.tensor(values, dtype=probtorch.float64, requires_grad=True)


def differences(fn, state, *calls):
    """Return where `calls` find something else with `fn` compiled than with `fn` eager.

    Each of the two ways has a state of its own.
    """
    found = []
    for compiled in (False, True):
        given = state()
        f = fn(given)
        f = probtorch.compile(f) if compiled else f
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CompileWarning)
            found.append([np.array(x.tolist()) for call in calls for x in call(f, given)])
    assert found[0], "nothing is looked at"
    return [
        f"result {k}: {b} instead of {a}"
        for k, (a, b) in enumerate(zip(*found, strict=True))
        if not same(a, b)
    ]


# -------------------------------------------------------------------------------------------- .grad


def backward_then(f, w):
    w.grad = None
    (w * w * 3.0).sum().backward()
    with probtorch.no_grad():
        out = f()
    return [w.detach(), *([] if out is None else [out])]


@pytest.mark.parametrize(
    "fn",
    [
        lambda w: lambda: w.sub_(0.1 * w.grad),
        lambda w: lambda: w * 1.0 if w.grad is None else w * w.grad,
        lambda w: lambda: (w.grad * w.grad).sum().sqrt(),
        lambda w: lambda: probtorch.nn.utils.clip_grad_norm_([w], 1.0),
        lambda w: lambda: w.grad.zero_(),
    ],
    ids=["descent", "branch", "norm", "clip", "zero"],
)
def test_grad_is_read_at_each_call(fn):
    assert differences(fn, lambda: leaf(1.0, 2.0), *[backward_then] * 4) == []


def test_grad_of_none_is_guarded():
    w = leaf(1.0, 2.0)

    @probtorch.compile
    def f(x):
        return x * 2.0 if w.grad is None else x * 3.0

    x = probtorch.ones(2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CompileWarning)
        assert [f(x).tolist() for _ in range(3)] == [[2.0, 2.0]] * 3
        assert f.last is not None  # native
        w.grad = probtorch.ones(2, dtype=probtorch.float64)
        assert [f(x).tolist() for _ in range(3)] == [[3.0, 3.0]] * 3
        w.grad = None
        assert f(x).tolist() == [2.0, 2.0]


def call_with(*values):
    return lambda f, w: [f(leaf(*values))]


CALLS = [call_with(1.0, 2.0), call_with(3.0, 4.0), call_with(5.0, 6.0)]


def test_backward_and_grad_inside():
    def fn(w):
        def step(x):
            w.grad = None
            (w * x).sum().backward()
            return w.grad * 2.0

        return step

    assert differences(fn, lambda: leaf(1.0, 2.0), *CALLS) == []


def test_backward_and_grad_of_an_argument():
    def fn(_):
        def step(x):
            (x * x).sum().backward()
            return x.grad * 2.0

        return step

    assert differences(fn, lambda: None, *CALLS) == []


def test_gradient_that_is_gone_at_the_end_is_native():
    w = leaf(3.0)

    @probtorch.compile
    def step(x):
        w.grad = None
        (w * x).sum().backward()
        out = w.grad * 1.0
        w.grad = None
        return out

    for k in range(4):
        assert step(probtorch.tensor([float(k)], dtype=probtorch.float64)).item() == k
    assert step.last is not None
    w.grad = probtorch.ones(1, dtype=probtorch.float64)
    assert step(probtorch.tensor([1.0], dtype=probtorch.float64)).item() == 1.0
    assert step.last is not None
    assert w.grad is None


@pytest.mark.parametrize(
    "make", [nn.Buffer, lambda x: nn.Parameter(x, False), lambda x: nn.Parameter(x.detach())]
)
def test_parameters_and_buffers_made_inside_are_made_at_each_call(make):
    def call(f, _):
        return [f(probtorch.tensor([k, k + 1.0])) for k in (1.0, 2.0, 3.0, 4.0)]

    assert differences(lambda _: lambda x: make(x * 3.0).detach() * x, lambda: None, call) == []


def test_target_network_follows_inside():
    def state():
        return nn.Parameter(leaf(1.0, 2.0)), nn.Parameter(leaf(5.0, 7.0))

    def fn(networks):
        p, q = networks

        def step(x):
            (g,) = autograd.grad((q * q * x).sum(), [q])
            with probtorch.no_grad():
                q.sub_(0.1 * g)
            p.data.mul_(0.9).add_(0.1 * q)
            p.detach()[:1].copy_(q[1:])
            return (p * x).sum().detach()

        return step

    def call(f, networks):
        out = f(probtorch.tensor(2.0, dtype=probtorch.float64))
        assert getattr(f, "reason", None) is None
        return [out, *(t.detach() for t in networks)]

    assert differences(fn, state, *[call] * 4) == []


def test_gradient_of_an_argument_inside():
    @probtorch.compile
    def f(w):
        (g,) = autograd.grad((w * w * w).sum(), w)
        return g

    for k in (1.0, 2.0, 3.0, 4.0):
        w = leaf(k)
        found = f(w)
        assert_close(found, [3.0 * k * k])
        assert not found.requires_grad
    assert f.reason is None and f.paths


def branch_by_branch(f, networks):
    """What calls that go different ways leave in all places that gradients can reach."""
    found = []
    for k in (1.0, 2.0, 5.0, 1.0, 6.0, 2.0, 1.5):
        for given in (leaf(k, k + 1.0), leaf(k, k + 1.0) * 1.0, leaf(k, k + 1.0).detach()):
            leaves = [*networks, given]
            if given.requires_grad and not given.is_leaf:
                given.retain_grad()
            out = f(given)
            found += [out.detach(), probtorch.tensor(out.requires_grad)]
            if out.requires_grad:
                (out * out).sum().backward()
            for t in leaves:
                missing = t.grad is None
                found += [probtorch.tensor(missing), t.detach() if missing else t.grad]
                t.grad = None
    return found


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    "ways",
    [
        lambda x, v, w: x * w if x.sum() < 4.0 else x * v,
        lambda x, v, w: x * 1.0 if x.sum() < 4.0 else x * w,
        lambda x, v, w: x * 1.0 if x.sum() < 4.0 else w,
        lambda x, v, w: x if x.sum() < 4.0 else v * x,
        lambda x, v, w: v * w if x.sum() > 8.0 else (x * 1.0 if x.sum() < 4.0 else w * x),
        lambda x, v, w: (x * w).detach() + x,
        lambda x, v, w: x.detach() * w if x.sum() < 4.0 else x * v.detach(),
    ],
    ids=["either", "or none", "itself", "argument", "both", "detached", "detached by turns"],
)
def test_gradients_reach_what_each_way_through_a_function_reads(ways, reverse):
    def state():
        return nn.Parameter(leaf(0.5, 1.5)), nn.Parameter(leaf(2.0, 3.0))

    def fn(networks):
        return lambda x: ways(6.5 - x if reverse else x, *networks)

    assert differences(fn, state, branch_by_branch) == []


def test_function_that_runs_eagerly_after_all_has_its_gradients(monkeypatch):
    """Too many ways through it: from then on Python's own tape."""
    monkeypatch.setattr("probtorch.compiler.paths.MAX_PATHS", 3)
    weights = [nn.Parameter(leaf(k + 1.0)) for k in range(6)]
    f = probtorch.compile(lambda x: x * weights[int(x)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CompileWarning)
        for k in [*range(6), *range(6)]:
            f(leaf(float(k))).sum().backward()
            assert_close(weights[k].grad, [float(k)])
            weights[k].grad = None
    assert f.reason is not None


def test_gradient_penalty_is_differentiated_again():
    def penalised(w):
        (g,) = autograd.grad((w * w * w).sum(), w, create_graph=True)
        return (g * g).sum()

    f = probtorch.compile(penalised)
    for k in (1.0, 2.0, 3.0):
        a, b = leaf(k), leaf(k)
        f(a).backward()
        penalised(b).backward()
        assert_close(a.grad, b.grad)


def test_results_that_need_no_gradient_stay_without_one():
    @probtorch.compile
    def f(w):
        return w * 2.0, (w * 3.0).detach(), w.detach() + 1.0

    for k in (1.0, 2.0, 3.0):
        assert [t.requires_grad for t in f(leaf(k))] == [True, False, False]


# -------------------------------------------------------------------------------------------- hooks


def gradients(f, w, x):
    w.grad = None
    f(x).backward()
    return [w.grad]


def test_hooks_of_tensors_outside_are_applied_once_and_until_they_are_removed():
    x = leaf(5.0)

    def run(f, w):
        found = gradients(f, w, x) + gradients(f, w, x)
        handle = w.register_hook(lambda g: g * 10.0)
        found += gradients(f, w, x) + gradients(f, w, x) + gradients(f, w, x)
        handle.remove()
        return found + gradients(f, w, x) + gradients(f, w, x)

    assert differences(lambda w: lambda x: (w * w * x).sum(), lambda: leaf(3.0), run) == []


def test_hooks_of_leaves_that_are_differentiated_inside_are_noticed():
    def fn(w):
        def step(x):
            (g,) = autograd.grad((w * w * x).sum(), w)
            return g

        return step

    x = probtorch.tensor([5.0], dtype=probtorch.float64)

    def run(f, w):
        found = [f(x), f(x), f(x)]
        handle = w.register_hook(lambda g: g * 10.0)
        found += [f(x), f(x)]
        handle.remove()
        return [*found, f(x), f(x)]

    assert differences(fn, lambda: leaf(3.0), run) == []


def test_hooks_of_arguments_make_a_call_eager_with_a_warning():
    f = probtorch.compile(lambda w: (w * w).sum())
    w = leaf(3.0)
    w.register_hook(lambda g: g * 10.0)
    with pytest.warns(CompileWarning, match="a gradient hook of an argument"):
        f(w).backward()
    assert_close(w.grad, [60.0])


def test_hooks_inside_are_part_of_the_recording():
    def fn(_):
        def f(x):
            h = x * 2.0
            h.register_hook(lambda g: g * 10.0)
            return (h * h).sum()

        return f

    def run(f, _):
        found = []
        for k in (1.0, 2.0, 3.0):
            x = leaf(k)
            f(x).backward()
            found.append(x.grad)
        return found

    assert differences(fn, lambda: None, run) == []


# ---------------------------------------------------------------------- what Python asks of tensors


ASKED = [
    lambda x: x * 2.0 if x.requires_grad else x * 3.0,
    lambda x: x * 2.0 if x.is_leaf else x * 3.0,
    lambda x: x * 2.0 if x.is_contiguous() else x * 3.0,
    lambda x: x * float(x.stride()[0]),
    lambda x: x * float((x * 2.0).stride(0)),
    lambda x: x * 2.0 if isinstance(x, probtorch.nn.Parameter) else x * 3.0,
    lambda x: x * 2.0 if x.grad is None else x * 3.0,
]
ASKED_FOR = ["requires_grad", "is_leaf", "is_contiguous", "stride", "inner stride", "type", "grad"]


@pytest.mark.parametrize("fn", ASKED, ids=ASKED_FOR)
@pytest.mark.parametrize("grad", [False, True])
def test_what_python_asks_of_an_argument_is_answered_at_each_call(fn, grad):
    with_gradient = leaf(1.0, 2.0)
    with_gradient.grad = probtorch.ones(2, dtype=probtorch.float64)
    arguments = [
        probtorch.tensor([1.0, 2.0], dtype=probtorch.float64),
        leaf(3.0, 4.0),
        leaf(3.0, 4.0) * 1.0,
        probtorch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=probtorch.float64)[:, 0],
        probtorch.nn.Parameter(probtorch.ones(2, dtype=probtorch.float64)),
        with_gradient,
    ]
    compiled = probtorch.compile(fn)
    with warnings.catch_warnings(), autograd.set_grad_enabled(grad):
        warnings.simplefilter("ignore", CompileWarning)
        for _ in range(3):
            for x in (*arguments, *reversed(arguments)):
                assert_close(compiled(x).detach(), fn(x).detach())


@pytest.mark.parametrize("fn", ASKED, ids=ASKED_FOR)
def test_gradients_answer_what_python_asks_as_the_call_did(fn):
    def arguments():
        result = leaf(3.0, 4.0) * 1.0
        result.retain_grad()
        return leaf(1.0, 2.0), result, nn.Parameter(leaf(5.0, 6.0))

    def asks(x):
        y = x * x
        return fn(x) * y if y.requires_grad else fn(x)

    def gradients_of(f, _):
        found = []
        for _ in range(3):
            for x in arguments():
                out = f(x)
                out.sum().backward()
                found += [out.detach(), x.grad]
        return found

    assert differences(lambda _: asks, lambda: None, gradients_of) == []


def test_one_tensor_given_twice_is_known_as_one():
    def fn(x, y):
        return x * 2.0 if x is y else y * 3.0

    f = probtorch.compile(fn)
    for grad in (False, True):
        a, b = (probtorch.ones(2, requires_grad=grad) for _ in range(2))
        for _ in range(3):
            assert f(a, a).tolist() == [2.0, 2.0]
            assert f(a, b).tolist() == [3.0, 3.0]


FAMOUS = probtorch.tensor([5.0, 6.0])
NAMES = {FAMOUS: 2.0}


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x * 2.0 if x is FAMOUS else x * 3.0,
        lambda x: x * 2.0 if any(x is t for t in (None, FAMOUS)) else x * 3.0,
        lambda x: x * 2.0 if x is FAMOUS else x * FAMOUS,
        lambda x: x * NAMES.get(x, 3.0),
        lambda x: x * 2.0 if x is not FAMOUS else FAMOUS * x,
    ],
    ids=["is", "among several", "also read", "key", "is not"],
)
@pytest.mark.parametrize("first", [0, 1])
def test_a_tensor_from_outside_is_known_when_it_is_given(fn, first):
    tensors = [FAMOUS, probtorch.tensor([7.0, 8.0]), probtorch.tensor([5.0, 7.0])]
    tensors = [*tensors[first:], *tensors[:first]]
    f = probtorch.compile(fn)
    for _ in range(3):
        for t in tensors:
            assert f(t).tolist() == fn(t).tolist()
    assert f.reason is None


def test_who_is_asked_of_many_tensors_outside():
    known = [probtorch.ones(2) * k for k in range(20)]

    def fn(x):
        return x * float(next(i for i, t in enumerate(known) if t is x))

    f = probtorch.compile(fn)
    with pytest.warns(CompileWarning, match="finds outside too"):
        found = [f(t).tolist() for t in known * 2]
    assert found == [fn(t).tolist() for t in known * 2]


def test_who_is_asked_of_tensors_with_a_gradient():
    w = leaf(1.0, 2.0)

    @probtorch.compile
    def f(x):
        return (x * x).sum() if x is w else x.sum()

    other = leaf(3.0, 4.0)
    f(other).backward()
    with pytest.warns(CompileWarning, match="finds outside, too"):
        f(w).backward()
    f(other).backward()
    assert_close(other.grad, [2.0, 2.0])
    assert_close(w.grad, [2.0, 4.0])


def test_place_on_the_tape_is_answered_eagerly():
    def fn(x):
        return x * 2.0 if x.grad_fn is None else x * 3.0

    f, x = probtorch.compile(fn), leaf(1.0)
    with pytest.warns(CompileWarning, match="grad_fn"):
        f(x)
    assert [f(t).item() for t in (x, x * 1.0, x.detach(), x * 1.0)] == [2.0, 3.0, 2.0, 3.0]


def test_text_of_an_argument_is_its_own():
    f = probtorch.compile(lambda x: (x * 2.0, repr(x)))
    x = leaf(1.0) * 2.0
    with pytest.warns(CompileWarning, match="the text of a tensor"):
        assert [f(x)[1] for _ in range(3)] == [repr(x)] * 3


def test_gradient_of_one_tensor_given_twice():
    f = probtorch.compile(lambda x, y: (x * y).sum() if x is y else (x + y).sum())
    for _ in range(3):
        a = leaf(3.0)
        f(a, a).backward()
        assert_close(a.grad, [6.0])


@pytest.mark.parametrize(
    "change", [lambda w: w.requires_grad_(False), lambda w: w.register_hook(lambda g: g)]
)
def test_changes_of_what_a_tensor_outside_is_are_no_part_of_a_replay(change):
    w = leaf(1.0)

    @probtorch.compile
    def f(x):
        change(w)
        return x * 2.0

    with pytest.warns(CompileWarning, match="made outside"):
        f(probtorch.ones(1))


def test_an_argument_that_is_asked_for_a_gradient_inside_has_it_from_the_first_call_on():
    def slope(x):
        y = x.requires_grad_(True)
        (y * y).sum().backward()
        return y.grad.clone()

    native = probtorch.compile(slope)
    one, two = probtorch.tensor([1.0, 2.0]), probtorch.tensor([3.0, 4.0])
    with pytest.warns(CompileWarning, match="requires_grad_"):
        first = native(one)
    assert first.tolist() == one.grad.tolist() == [2.0, 4.0] and one.requires_grad
    assert native(two).tolist() == two.grad.tolist() == [6.0, 8.0]
