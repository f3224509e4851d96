"""What results of compiled functions are on the tape: leaves are leaves, and where one result is
made of another, its gradient in that one is the eager one, or refused where no run can repeat it.
"""

import itertools

import numpy as np
import pytest

import probtorch
from probtorch import compile, tensor
from probtorch.autograd import grad
from probtorch.errors import AutogradError
from probtorch.testing import assert_close

pytestmark = pytest.mark.filterwarnings("ignore::probtorch.compiler.paths.CompileWarning")

W = tensor([1.0, 2.0, 3.0], requires_grad=True)


def features_and_loss(x):
    y = x * W
    return y, (y**2).sum()


def two_losses(x):
    return (x * W).sum(), (x + W).sum()


def an_argument_and_loss(x):
    return x, (x * W).sum()


def features_that_keep_a_gradient(x):
    y = x * W
    y.retain_grad()
    return y, (y**2).sum()


def a_leaf_and_loss(x):
    w = tensor(0.5, requires_grad=True)
    return w, (w * x).sum()


def a_leaf_and_loss_of_others(x):
    w = tensor(0.5, requires_grad=True)
    return w, (w * x * W).sum()


def a_leaf_beside_a_loss(x):
    return (x * W).detach().requires_grad_(), (x * W).sum()


def loss_of_a_hidden_leaf(x):
    w = tensor(0.5, requires_grad=True)
    return x + 1.0, (w * x).sum()


def two_leaves(x):
    return probtorch.zeros(3, requires_grad=True), (x * W).detach().requires_grad_()


def leaves_off_the_tape(x):
    with probtorch.no_grad():
        return tensor(0.5, requires_grad=True), (x * 2.0).requires_grad_()


FUNCTIONS = (
    features_and_loss,
    two_losses,
    an_argument_and_loss,
    features_that_keep_a_gradient,
    a_leaf_and_loss,
    a_leaf_and_loss_of_others,
    a_leaf_beside_a_loss,
    loss_of_a_hidden_leaf,
    two_leaves,
    leaves_off_the_tape,
)
EAGER = features_that_keep_a_gradient, a_leaf_and_loss, a_leaf_and_loss_of_others


def flags(first, second):
    return [(t.requires_grad, t.is_leaf, t.retains_grad) for t in (first, second)]


def backward(first, second):
    second.sum().backward()
    return first.grad


def between(first, second):
    return grad(second.sum(), first, allow_unused=True)


def kept(first, second):
    first.retain_grad()
    (second.sum() + first.sum()).backward()
    return None if first.is_leaf else first.grad


def hooked(first, second):
    seen = []
    first.register_hook(lambda g: seen.append(g.tolist()))
    (second.sum() * 3.0).backward()
    return seen


def outcomes(fn, use, calls=5):
    """What a use of the results comes to at each call, with the gradient of what is outside."""
    found = []
    for i in range(calls):
        W.grad = None
        try:
            used = repr(use(*fn(tensor([1.0, 2.0, float(i)]))))
        except AutogradError as error:
            used = str(error).partition("\n")[0]
        found.append((used, repr(W.grad)))
    return found


@pytest.mark.parametrize("use", [flags, backward, between, kept, hooked])
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_results_are_on_the_tape_as_eager_ones(fn, use):
    native = compile(fn)
    assert outcomes(native, use) == outcomes(fn, use)
    if use is flags or use is backward:
        assert (native.reason is not None) == (fn in EAGER)


def made_outside(first, second):
    return grad((first * 2.0).sum().exp() + second.sum() * 3.0, first)


def second_one(first, second):
    (slope,) = grad(second.sum() * first.sum(), first, create_graph=True)
    return slope, grad(slope.sum(), [first, W])


def between_and_back(first, second):
    found = grad(second.sum(), first, retain_graph=True)
    second.sum().backward()
    return found


def layers(x):
    a = (x * W).tanh()
    b = (a * W + x).exp()
    return a, (a * b).sum(), b.sum() + a


def one_dropped(first, *others):
    total = others[-1].sum() * 2.0
    del others
    return grad(total, first)


LATE = (between, kept, hooked, made_outside, second_one, between_and_back)


@pytest.mark.parametrize("use", LATE)
def test_a_gradient_between_results_is_the_eager_one_where_it_is_asked_for_late(use):
    native = compile(features_and_loss)
    assert outcomes(native, backward) == outcomes(features_and_loss, backward)
    assert native.reason is None
    # In one of the results of an earlier call, and in those of a later one.
    x = tensor([1.0, 2.0, 3.0])
    rows = []
    for fn in (features_and_loss, native):
        W.grad = None
        first, later = fn(x), fn(x + 1.0)
        rows.append([*(repr(use(*results)) for results in (later, first, fn(x))), repr(W.grad)])
    assert rows[1] == rows[0]
    assert outcomes(native, use) == outcomes(features_and_loss, use)


def test_gradients_between_many_results_are_the_eager_ones():
    native = compile(layers)
    for i in range(4):
        native(tensor([1.0, 2.0, float(i)]))
    for use in (one_dropped, lambda a, loss, b: grad(loss, a), lambda a, loss, b: grad(b.sum(), a)):
        again = compile(layers)
        for x in (tensor([0.1, 0.2, 0.3]), tensor([0.3, 0.1, 0.2]), tensor([0.2, 0.2, 0.9])):
            again(x)[1].backward()
        found = use(*again(x))
        for one, other in zip(found, use(*layers(x)), strict=True):
            assert_close(one, other, rtol=1e-6)


FACTOR = [2.0]


def in_place(x):
    y = x * W
    y.mul_(2.0)
    return y, (y**2).sum()


def scaled(x):
    y = x * W * FACTOR[0]
    return y, (y**2).sum()


def change_w():
    with probtorch.no_grad():
        W.mul_(1.0)


@pytest.mark.parametrize(
    ("fn", "change"),
    [(in_place, None), (scaled, lambda: FACTOR.append(1.0)), (features_and_loss, change_w)],
)
def test_a_gradient_between_results_is_refused_where_the_call_cannot_be_repeated(fn, change):
    native = compile(fn)
    assert outcomes(native, backward) == outcomes(fn, backward)
    assert native.reason is None
    results = native(tensor([1.0, 2.0, 3.0]))
    if change is not None:
        change()
    with pytest.raises(AutogradError) as told:
        between(*results)
    for part in ("expected", "got", "fix"):
        assert part in str(told.value)
    assert outcomes(native, between) == outcomes(fn, between)


def one_made_of_itself(x):
    return (x * W).exp()


def cubes(x):
    h = x * 2.0
    return h, (h**3).sum()


def cubes_apart(x):
    return (x * 2.0).tanh(), (x**3).sum()


def of_argument(x, results, seen):
    seen += grad(results[-1].sum(), x, retain_graph=True)


def slope(x, results, seen):
    (g,) = grad(sum(t.sum() for t in results), x, create_graph=True)
    results.append((g**2 + g).sum())


def of_result(x, results, seen):
    seen += grad(results[-1].sum() + (results[0] ** 2).sum(), results[0], retain_graph=True)


def of_both(x, results, seen):
    seen += grad(results[-1].sum(), [x, results[0]], retain_graph=True, allow_unused=True)


def hook(x, results, seen):
    results[0].register_hook(seen.append)


def retain(x, results, seen):
    results[0].retain_grad()


def back(x, results, seen):
    x.grad = None
    (results[-1].sum() * 2.0 + results[0].sum()).backward(retain_graph=True)
    seen.append(x.grad)


ASKED = of_argument, slope, of_result, of_both, hook, retain, back


def asked_in_turn(fn, asks):
    """What is seen of results of one call by several questions; stops at the first refusal."""
    x, seen, refused = tensor([1.0, 0.5, 0.25], requires_grad=True), [], False
    found = fn(x)
    results = list(found) if isinstance(found, tuple) else [found]
    try:
        for ask in asks:
            ask(x, results, seen)
        seen.append(results[0].grad if results[0].retains_grad else None)
    except AutogradError:
        refused = True
    return [x for x in seen if x is not None], refused


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("fn", [cubes, cubes_apart, features_and_loss, one_made_of_itself])
def test_questions_in_any_order_are_answered_as_eagerly_or_refused(fn):
    rng, answered = np.random.default_rng(0), 0
    for _ in range(40):
        asks = [ASKED[i] for i in rng.integers(len(ASKED), size=rng.integers(2, 5))]
        native = compile(fn)
        for k in range(3):
            native(tensor([1.0, 2.0, float(k)], requires_grad=True))
        assert native.reason is None
        wanted, _ = asked_in_turn(fn, asks)
        found, refused = asked_in_turn(native, asks)
        names = [ask.__name__ for ask in asks]
        assert refused or len(found) == len(wanted), names
        for one, other in zip(found, wanted, strict=False):
            assert_close(one, other, rtol=1e-5, msg=str(names))
        answered += not refused
        if refused:  # the next call is eager
            found, refused = asked_in_turn(native, asks)
            assert not refused and len(found) == len(wanted), names
    assert answered > 10


def test_a_gradient_of_a_gradient_in_a_result_is_the_eager_one_or_refused():
    # One that is on the tape is made of what went into the call, and not of its results.
    native = compile(cubes)
    x = tensor([1.0, 2.0], requires_grad=True)
    for _ in range(3):
        native(x)
    h, loss = native(x)
    (g,) = grad(loss, x, create_graph=True)
    with pytest.raises(AutogradError, match="create_graph"):
        grad(loss + (g**2).sum(), h)
    h, loss = native(x)
    (g,) = grad(loss, x, create_graph=True)
    assert grad(loss + (g**2).sum(), h)[0].tolist() == [1164.0, 9264.0]


def test_a_call_that_comes_to_slightly_other_results_is_another():
    row = tensor([1.0, 1.0, 1.0])

    def scaled_rows(x):
        y = x * W * row
        return y, (y**2).sum()

    native = compile(scaled_rows)
    for _ in range(3):
        native(tensor([1.0, 2.0, 3.0]))
    results = native(tensor([1.0, 2.0, 3.0]))
    row.array[...] *= 1.0 + 5e-5  # which no version tells
    with pytest.raises(AutogradError):
        between(*results)


def test_an_argument_that_was_changed_since_is_told_with_the_name_of_the_function():
    native = compile(features_and_loss)
    for i in range(4):
        x = tensor([1.0, 2.0, float(i)], requires_grad=True) * 1.0
        _, loss = native(x)
        x.add_(1.0)
        if i:
            with pytest.raises(AutogradError, match="compiled features_and_loss: a tensor needed"):
                loss.backward()


@pytest.mark.parametrize("needs", [False, True])
def test_a_tensor_that_is_returned_twice_is_one(needs):
    def twice(x):
        y = x * 2.0
        return y, {"again": y}, y[1:]

    native, found = compile(twice), []
    for fn in (twice, native):
        rows = []
        for i in range(5):
            x = tensor([1.0, 2.0, float(i)], requires_grad=needs)
            y, others, _ = fn(x)
            with probtorch.no_grad():
                others["again"].add_(10.0)
            rows.append((y is others["again"], y.tolist()))
            if needs:
                grad(y.sum() + others["again"].sum(), x)
        found.append(rows)
    assert found[1] == found[0]
    assert native.reason is None


def shared_with_an_argument(x):
    return x * 2.0, x.detach()


def shared_with_a_parameter(x):
    return (x * W).sum(), W.detach()


def shared_with_one_another(x):
    y = x * W
    return y, y[1:]


@pytest.mark.parametrize("needs", [False, True])
@pytest.mark.parametrize(
    "fn", [shared_with_an_argument, shared_with_a_parameter, shared_with_one_another]
)
def test_results_share_memory_where_python_made_them_alone(fn, needs):
    # As the docstring of compile says: of what needs a gradient, the first call is Python's, and
    # the second where it is a tensor outside that needs it.
    native, shared = compile(fn), []
    for i in range(5):
        x = tensor([1.0, 2.0, float(i)], requires_grad=needs)
        results = native(x)
        arrays = [t.array for t in (x, W, *results)]
        pairs = itertools.combinations(arrays, 2)
        shared.append(any(np.shares_memory(a, b) for a, b in pairs))
    assert native.reason is None
    outside = fn is not shared_with_an_argument
    own = 1 if needs else 2 if outside else 0
    assert shared == [i < own for i in range(5)]


def made_inside(x, w):
    return x * w * probtorch.rand(1, generator=probtorch.Generator().manual_seed(3))


# What a branch does besides, given what it is given, a tensor outside and a generator.
ACTS = {
    "a change of a tensor": lambda x, w, n, g: (n.add_(1.0), x * w)[1],
    "a draw": lambda x, w, n, g: x * w * probtorch.rand(1),
    "a draw from a generator of its own": lambda x, w, n, g: x * w * probtorch.rand(1, generator=g),
    "a seed": lambda x, w, n, g: (probtorch.manual_seed(5), x * w * probtorch.rand(1))[1],
    "a draw from a generator made inside": lambda x, w, n, g: made_inside(x, w),
    "a read of the tensor": lambda x, w, n, g: x * w * (n + 1.0),
}


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("seed", range(4))
def test_what_a_later_branch_does_is_done_once_where_a_gradient_is_wanted(act, seed):
    # Whether x is positive, and a gradient wanted, of each call.
    calls = [(False, True), *np.random.default_rng(seed).integers(0, 2, (10, 2)).astype(bool)]

    def found(compiled):
        w, n = probtorch.full((1,), 1.5, requires_grad=True), probtorch.ones(1)
        g = probtorch.Generator().manual_seed(1)
        probtorch.manual_seed(seed)

        def fn(x):
            return ACTS[act](x, w, n, g) if x.sum() > 0 else x - w

        fn = probtorch.compile(fn) if compiled else fn
        rows = []
        for positive, wanted in calls:
            x = probtorch.tensor([2.0 if positive else -2.0], requires_grad=True)
            w.grad = None
            with probtorch.set_grad_enabled(bool(wanted)):
                y = fn(x)
            if wanted:
                y.sum().backward()
            rows.append([y, n.clone(), x.grad, w.grad])
        return [[None if t is None else t.item() for t in row] for row in rows]

    assert np.allclose(*(np.array(found(c), float) for c in (False, True)), 1e-6, equal_nan=True)
