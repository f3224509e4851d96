"""`while_loop` and `cond`: values, gradients, and what they refuse; gradients through what they
close over, and all that branches and bodies do besides, compiled as eagerly.
"""

import types
import weakref

import numpy as np
import pytest

import probtorch
from probtorch import compile, scan, tensor
from probtorch.compiler.record.record import record
from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.distributions import LogNormal, Normal
from probtorch.effects.primitives import sample
from probtorch.errors import ArgumentError, ShapeError
from probtorch.infer import Target
from probtorch.ops.control import cond, while_loop
from tests.derivatives import gradcheck

X = np.array([1.0, -2.0, 3.0])


def power(x, n):
    """x multiplied by itself n times over."""
    state = (as_tensor(0), x * 0.0 + 1.0)
    return while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] * x), state)[1]


@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_a_loop_repeats_while_its_condition_holds(n):
    np.testing.assert_allclose(power(wrap(X), n).array, X**n, rtol=1e-15)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_a_gradient_flows_through_every_turn_of_a_loop(n):
    x = wrap(X.copy()).requires_grad_()
    power(x, n).sum().backward()
    np.testing.assert_allclose(x.grad.array, n * X ** (n - 1), rtol=1e-14)
    gradcheck(lambda x: power(x, n), wrap(X.copy()).requires_grad_())


def test_a_gradient_of_a_gradient_flows_through_a_loop():
    x = wrap(X.copy()).requires_grad_()
    (slope,) = probtorch.autograd.grad(power(x, 4).sum(), x, create_graph=True)
    (bend,) = probtorch.autograd.grad(slope.sum(), x)
    np.testing.assert_allclose(bend.array, 12.0 * X**2, rtol=1e-14)


@pytest.mark.parametrize("pred", [True, wrap(np.array(True)), wrap(np.array([1])), np.bool_(True)])
def test_cond_takes_the_branch_that_its_predicate_names(pred):
    x = wrap(X)
    yes = cond(pred, lambda a, b: a + b, lambda a, b: a - b, x, x)
    np.testing.assert_array_equal(yes.array, X + X)
    flipped = ~pred if isinstance(pred, np.bool_) else not bool(pred)
    no = cond(flipped, lambda a, b: a + b, lambda a, b: a - b, x, x)
    np.testing.assert_array_equal(no.array, X - X)


@pytest.mark.parametrize("first", [1.0, -1.0])
def test_a_gradient_flows_through_the_branch_taken(first):
    def fn(x):
        return cond(x[0] > 0, lambda a: a * a * a, lambda a: a.exp(), x)

    q = np.array([first, 0.5, 2.0])
    x = wrap(q.copy()).requires_grad_()
    fn(x).sum().backward()
    np.testing.assert_allclose(x.grad.array, 3 * q**2 if first > 0 else np.exp(q), rtol=1e-14)
    gradcheck(fn, wrap(q.copy()).requires_grad_())


def test_only_the_branch_taken_is_run():
    def never(x):
        raise AssertionError("the other branch ran")

    assert float(cond(wrap(np.array(True)), lambda x: x.sum(), never, wrap(X))) == 2.0


def test_states_may_be_trees():
    def body(state):
        return {"i": state["i"] + 1, "pair": [state["pair"][1], state["pair"][0] * 2.0]}

    start = {"i": as_tensor(0), "pair": [wrap(X), wrap(X + 1.0)]}
    out = while_loop(lambda s: s["i"] < 3, body, start)
    np.testing.assert_array_equal(out["pair"][0].array, (X + 1.0) * 2.0)
    np.testing.assert_array_equal(out["pair"][1].array, X * 4.0)


def test_the_initial_state_is_not_changed_by_a_body_that_works_in_place():
    x = wrap(X.copy())

    def body(s):
        s[1][0] = s[1][0] + 10.0
        return s[0] + 1, s[1]

    out = while_loop(lambda s: s[0] < 3, body, (as_tensor(0), x))[1]
    np.testing.assert_array_equal(out.array, [31.0, -2.0, 3.0])
    np.testing.assert_array_equal(x.array, X)


def test_operands_are_not_changed_by_a_branch_that_works_in_place():
    x = wrap(X.copy())

    def branch(a):
        a.add_(1.0)
        return a

    out = cond(wrap(np.array(True)), branch, lambda a: a, x)
    np.testing.assert_array_equal(out.array, X + 1.0)
    np.testing.assert_array_equal(x.array, X)


@pytest.mark.parametrize(
    "body",
    [
        lambda s: (s[0] + 1, s[1][:2]),
        lambda s: (s[0] + 1, s[1].float()),
        lambda s: (s[0] + 1,),
        lambda s: [s[0] + 1, s[1]],
    ],
    ids=["shape", "dtype", "length", "container"],
)
def test_a_state_that_changes_its_form_is_refused(body):
    with pytest.raises(ShapeError, match=r"while_loop\n(.|\n)*expected:(.|\n)*fix:"):
        while_loop(lambda s: s[0] < 2, body, (as_tensor(0), wrap(X)))


def test_operands_of_cond_may_be_spelled_as_in_pytorch():
    x, y = tensor(5.0), tensor(2.0)

    def product(a, b):
        return a * b

    for wrapped in (lambda fn: fn, compile):
        for pred, wanted in ((y < x, 10.0), (x < y, 3.0)):
            both = [
                lambda p: cond(p, product, lambda a, b: a - b, x, y),
                lambda p: cond(p, product, lambda a, b: a - b, (x, y)),
                lambda p: cond(p, product, lambda a, b: a - b, [x, y]),
                lambda p: cond(p, product, lambda a, b: a - b, operands=(x, y)),
                lambda p: cond(p, lambda s: s[0] * s[1], lambda s: s[0] - s[1], (x, y)),
                lambda p: cond(p, lambda s: s[0] * y, lambda s: s[0] - y, operands=((x,),)),
                lambda p: cond(p, lambda a: a * y, lambda a: a - y, operands=[x]),
                lambda p: cond(p, lambda: x * y, lambda: x - y, ()),
            ]
            for call in both:
                assert float(wrapped(call)(pred)) == wanted


@pytest.mark.parametrize(
    ("operands", "named", "got"),
    [
        (((tensor(5.0),),), {}, "a tuple of 1, and a true_fn that takes either"),
        (([tensor(5.0)],), {}, "a list of 1, and a true_fn that takes either"),
        ((tensor(5.0),), {"operands": (tensor(5.0),)}, "1 operands and operands="),
        ((), {"operands": tensor(5.0)}, "Tensor"),
    ],
)
def test_operands_of_cond_that_may_mean_two_things_are_refused(operands, named, got):
    with pytest.raises(ArgumentError) as caught:
        cond(tensor(True), lambda x: x * 2, lambda x: x * 3, *operands, **named)
    assert got in str(caught.value)
    assert "operands=" in caught.value.fix


W = tensor([2.0, 3.0, 4.0], requires_grad=True)
START = tensor(0), probtorch.ones(3)


def inner_gradient(x):
    w = x.detach().clone().requires_grad_()
    loss = cond(x.sum() > 0.0, lambda: (w * w).sum(), lambda: w.sum())
    return x * probtorch.autograd.grad(loss, w)[0]


def off_the_tape(x):
    with probtorch.no_grad():
        y = cond(x.sum() > 0.0, lambda: x * W, lambda: x + W)
    return x * y


# What branches and bodies close over: arguments, tensors outside, or nothing.
CLOSING = {
    "branch": lambda x: cond(x.sum() > 0.0, lambda: x * W, lambda: x + W),
    "branch beside a term": lambda x: x**2 + cond(x.sum() > 0.0, lambda: x * W, lambda: x + W),
    "one branch": lambda x: cond(x.sum() > 9.0, lambda: x * W, lambda: x.detach() * 1.0),
    "loop": lambda x: while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * W + x), START)[1],
    "nothing": lambda x: (
        x * while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * 2.0), START)[1]
    ),
    "branch in a loop": lambda x: while_loop(
        lambda s: s[0] < 3,
        lambda s: (s[0] + 1, cond(s[0] > 1, lambda: s[1] * x, lambda: s[1] + x)),
        START,
    )[1],
    "step of a scan": lambda x: scan(lambda c, v: (c * W + v * x, c), START[1], probtorch.ones(4))[
        0
    ],
    "branch in a scan": lambda x: scan(
        lambda c, v: (cond(v > 0.0, lambda: c * x, lambda: c + x), c),
        START[1],
        tensor([1.0, -1.0, 1.0]),
    )[0],
    "gradient inside": inner_gradient,
    "off the tape": off_the_tape,
}


@pytest.mark.parametrize("needs", [True, False])
@pytest.mark.parametrize("name", CLOSING)
@pytest.mark.filterwarnings("ignore::probtorch.compiler.paths.CompileWarning")
def test_gradients_reach_what_branches_and_bodies_close_over(name, needs):
    native, found = compile(CLOSING[name]), []
    for fn in (CLOSING[name], native):
        rows = []
        for i in range(6):
            W.grad = None
            x = (tensor([1.0, 2.0, 3.0]) * (1.0 if i % 3 else -1.0)).requires_grad_(needs)
            y = fn(x)
            rows += [y.detach().numpy(), np.array(y.requires_grad)]
            if y.requires_grad:
                y.sum().backward()
            rows += [t.grad.numpy() for t in (x, W) if t.grad is not None]
        found.append(rows)
    assert len(found[0]) == len(found[1])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-6)
    assert native.reason is None or name == "branch in a scan"


@pytest.mark.parametrize(
    "mean",
    [
        lambda z: cond(z > 0.0, lambda: z * 2.0, lambda: z - 1.0),
        lambda z: while_loop(
            lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * 0.5 + z), (0, z * 0.0)
        )[1],
        lambda z: while_loop(
            lambda s: s[0] < 3,
            lambda s: (s[0] + 1, s[1] * 0.5 + z),
            (tensor(0), tensor(1.0, dtype=probtorch.float64)),
        )[1],
    ],
    ids=["branch", "loop that carries one", "loop"],
)
def test_a_density_has_the_slope_of_what_branches_and_bodies_close_over(mean):
    def model():
        z, scale = sample("z", Normal(0.0, 1.0)), sample("scale", LogNormal(0.0, 1.0))
        sample("y", Normal(mean(z), scale), obs=tensor(1.0))

    target = Target.from_model(model)
    for q in ([0.3, 0.1], [-0.4, 0.2], [0.5, 0.5]):
        at, h = np.array(q), 1e-6
        found = target.value_and_grad(at)[1]
        for k, step in enumerate(np.eye(2) * h):
            ahead, behind = (target.value_and_grad(at + s)[0] for s in (step, -step))
            np.testing.assert_allclose(found[k], (ahead - behind) / (2.0 * h), rtol=1e-5)


# What branches and bodies do besides their result: each returns the act, and a look at what is left
# of it in Python.


def drawing():
    return lambda: probtorch.rand(3), lambda: None


def drawing_from_its_own():
    rng = probtorch.Generator(3)
    return lambda: probtorch.rand(3, generator=rng), lambda: rng.counter


def changing_in_place():
    n = probtorch.zeros(3)
    return lambda: n.add_(1.0) * 1.0, n.tolist


def appending():
    found, table, names = [], {}, set()

    def act():
        found.append(len(found))
        table[len(found)] = found[-1]
        names.add(str(found[-1]))
        return float(len(found))

    return act, lambda: (list(found), dict(table), sorted(names))


def counting():
    count, box = 0, types.SimpleNamespace(runs=0)

    def act():
        nonlocal count
        count += 1
        box.runs += 1
        return float(count)

    return act, lambda: (count, box.runs)


def drawing_after_all_else():
    parts = appending(), counting(), changing_in_place(), drawing()
    return (
        lambda: sum(act() for act, _ in parts),
        lambda: [look() for _, look in parts],
    )


ACTS = [
    drawing,
    drawing_from_its_own,
    changing_in_place,
    appending,
    counting,
    drawing_after_all_else,
]


def few(body):
    return while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, body(*s)), START)[1]


PLACES = {
    "branch": lambda x, w, act: cond(x.sum() > 0.0, lambda: x * w * act(), lambda: x - w),
    "both branches": lambda x, w, act: cond(
        x.sum() > 0.0, lambda: x * w * act(), lambda: x - w * act()
    ),
    "branch within": lambda x, w, act: cond(
        x.sum() > 0.0,
        lambda: cond(x[0] > 0.5, lambda: x * w * act(), lambda: x - act()),
        lambda: x - w,
    ),
    "before a branch": lambda x, w, act: cond(
        x.sum() > 0.0, lambda: act() * cond(x[0] > 0.5, lambda: x * w, lambda: x - w), lambda: x - w
    ),
    "loop": lambda x, w, act: few(lambda i, s: s * w + x * act()),
    "test of a loop": lambda x, w, act: while_loop(
        lambda s: (s[1] + 0.0 * act()).sum() < 20.0, lambda s: (s[0], s[1] * w + 2.0), START
    )[1],
    "branch in a loop": lambda x, w, act: few(
        lambda i, s: cond(i > 1, lambda: s * w * act(), lambda: s + x)
    ),
    "loop in a branch": lambda x, w, act: cond(
        x.sum() > 0.0, lambda: few(lambda i, s: s * w + x * act()), lambda: x - w
    ),
    "step of a scan": lambda x, w, act: scan(
        lambda c, v: (c * w + v * x * act(), c), START[1], probtorch.ones(4)
    )[0],
    "loop in a loop": lambda x, w, act: few(
        lambda i, s: s + few(lambda j, r: r * w + x * act()).tanh()
    ),
}


def compared(fn_of, needs):
    """Compare six calls of compiled functions with those of eager ones, on either side of 0.

    ``fn_of()`` returns a function and a look at what it leaves in Python.
    """
    found = []
    for wrapped in (lambda fn: fn, compile):
        fn, look = fn_of()
        fn, rows = wrapped(fn), []
        probtorch.manual_seed(1)
        for sign in (1.0, 1.0, -1.0, 1.0, -1.0, 1.0):
            W.grad = None
            x = (tensor([1.0, 2.0, 3.0]) * sign).requires_grad_(needs == "argument")
            y = fn(x)
            if y.requires_grad:
                y.sum().backward()
            rows += [y.detach().numpy(), y.requires_grad, look()]
            rows += [t.grad.numpy() for t in (x, W) if t.grad is not None]
        found.append([*rows, probtorch.rand(2).numpy()])
    assert len(found[0]) == len(found[1])
    for one, other in zip(*found, strict=True):
        if isinstance(one, np.ndarray):
            np.testing.assert_allclose(other, one, rtol=1e-5)
        else:
            assert one == other


@pytest.mark.parametrize("needs", ["nothing", "leaf", "argument"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("make", ACTS, ids=lambda make: make.__name__)
@pytest.mark.filterwarnings("ignore::probtorch.compiler.paths.CompileWarning")
def test_branches_and_bodies_do_what_they_do_as_often_as_eagerly(make, place, needs):
    w = W if needs == "leaf" else W.detach()

    def fn_of():
        act, look = make()
        return lambda x: PLACES[place](x, w, act), look

    compared(fn_of, needs)


@pytest.mark.parametrize("needs", ["nothing", "leaf", "argument"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.filterwarnings("ignore::probtorch.compiler.paths.CompileWarning")
def test_lists_of_a_call_get_what_they_get_eagerly(place, needs):
    w = W if needs == "leaf" else W.detach()

    def fn(x):
        found, count = [], types.SimpleNamespace(runs=0)

        def act():
            found.append(x)
            count.runs += 2
            return 1.5

        return PLACES[place](x, w, act) + float(len(found) + count.runs)

    compared(lambda: (fn, lambda: None), needs)


def test_what_a_branch_closes_over_is_asked_nothing():
    class Asked:
        def __getattribute__(self, name):
            raise AssertionError(f"{name} was asked for")

    class Gone:
        pass

    asked, gone = Asked(), weakref.proxy(Gone())

    def fn(x):
        kept = [asked, gone]
        return cond(x.sum() > 0.0, lambda: x * len(kept), lambda: x - len(kept))

    out = record(fn, [probtorch.ones(3)])[1]
    assert out.tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("leaf", [W, W.detach()], ids=["leaf", "no leaf"])
def test_branches_within_branches_are_not_run_again_and_again(leaf):
    class Runs:  # which nobody puts back
        count = 0

    def nest(x, k):
        if k == 0:
            Runs.count += 1
            return x * leaf
        return cond(x.sum() > -k, lambda: nest(x, k - 1) * 1.5, lambda: x - leaf)

    out = compile(lambda x: nest(x, 10))(probtorch.ones(3))
    np.testing.assert_allclose(out.detach().numpy(), leaf.detach().numpy() * 1.5**10, rtol=1e-6)
    assert 1 <= Runs.count <= 11


@pytest.mark.filterwarnings("ignore::probtorch.compiler.paths.CompileWarning")
def test_an_error_of_a_branch_leaves_what_it_leaves_eagerly():
    found = []

    def fn(x):
        def yes():
            found.append(1)
            raise KeyError("here")

        return cond(x.sum() > 0.0, yes, lambda: x)

    with pytest.raises(KeyError, match="here"):
        compile(fn)(probtorch.ones(3))
    assert found == [1]
