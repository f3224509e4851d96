"""Tensors in whose places others come between calls: compiled code reads the one that is there."""

import gc
import warnings
import weakref

import numpy as np
import pytest

import probtorch
from probtorch import compile, nn, optim, tensor
from probtorch.compiler.paths import CompileWarning
from probtorch.distributions import Normal
from probtorch.effects.handlers import condition
from probtorch.effects.primitives import sample
from probtorch.errors import AutogradError
from probtorch.testing import assert_close

X = tensor(np.array([1.0, -2.0, 0.5]))
RNG = np.random.default_rng(0)


def fresh(n=3):
    return tensor(RNG.standard_normal(n))


class Slotted:
    __slots__ = ("h",)


class Holder:
    pass


def entry():
    table = {"h": fresh(), "other": 1.0}
    return (lambda: table["h"]), lambda t: table.update(h=t)


def attribute():
    holder = Holder()
    holder.h = fresh()
    return (lambda: holder.h), lambda t: setattr(holder, "h", t)


def slot():
    holder = Slotted()
    holder.h = fresh()
    return (lambda: holder.h), lambda t: setattr(holder, "h", t)


def item():
    items = [1.0, fresh(), "a"]
    return (lambda: items[1]), lambda t: items.__setitem__(1, t)


def variable():
    h = fresh()

    def put(t):
        nonlocal h
        h = t

    return (lambda: h), put


def of_a_class():
    own = type("Own", (), {"h": fresh()})
    return (lambda: own.h), lambda t: setattr(own, "h", t)


def buffer():
    net = nn.Module()
    net.register_buffer("h", fresh())
    return (lambda: net.h), lambda t: setattr(net, "h", t)


PLACES = [entry, attribute, slot, item, variable, of_a_class, buffer]


def follows(fn, compiled, put, tensors, most=2):
    """Whether compiled calls are eager ones where tensors come one after the other."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", CompileWarning)
        for t in tensors:
            put(t)
            for _ in range(2):
                assert_close(compiled(X), fn(X))
    assert compiled.reason is None
    assert len(list(compiled.paths)) <= most
    return True


@pytest.mark.parametrize("place", PLACES)
def test_a_tensor_that_comes_in_the_place_of_another_is_read(place):
    get, put = place()
    fn = lambda x: (x * get()).cumsum(0) + get()[0]
    views = [tensor(RNG.standard_normal((3, 4)))[:, 1], (fresh() * 2.0).requires_grad_().detach()]
    assert follows(fn, compile(fn), put, [fresh() for _ in range(12)] + views)


def test_a_result_carried_from_call_to_call_is_read():
    state = {"h": fresh()}
    fn = lambda x: (x + state["h"] * 0.5).tanh()
    compiled = compile(fn)
    for _ in range(20):
        expected = fn(X)
        state["h"] = compiled(X)
        assert_close(state["h"], expected)
    assert compiled.reason is None


def test_each_form_has_its_path():
    get, put = entry()
    fn = lambda x: x * get().sum() * get().ndim
    forms = [fresh(), fresh(2), tensor(RNG.standard_normal((2, 2))), fresh(2).float()]
    compiled = compile(fn)
    assert follows(fn, compiled, put, forms * 4, most=5)


def test_a_branch_on_its_elements_has_a_path_for_each_way():
    get, put = attribute()
    fn = lambda x: x * 2.0 if get().sum() > 0.0 else x - get()
    tensors = [fresh() for _ in range(12)]
    assert follows(fn, compile(fn), put, tensors, most=4)


def test_a_long_loop_over_it_is_rolled():
    get, put = entry()

    def fn(x):
        for _ in range(600):
            x = (x * 0.9 + get()).sin() * 0.5
        return x

    assert follows(fn, compile(fn), put, [fresh() for _ in range(4)])


def test_two_in_turn_and_together_are_both_read():
    (one, put_one), (two, put_two) = entry(), attribute()
    fn = lambda x: x * one() - two()
    compiled = compile(fn)
    for i in range(18):
        if i % 3 != 1:
            put_one(fresh())
        if i % 3 != 2:
            put_two(fresh())
        assert_close(compiled(X), fn(X))
        if i % 5 == 4:
            put_one(two())  # one tensor in both places
            assert_close(compiled(X), fn(X))
    assert compiled.reason is None


def in_place(get, put):
    def fn(x):
        get().add_(x)
        return get() * 2.0

    return fn


def puts(get, put):
    def fn(x):
        put(get() * 0.5 + x)
        return get() * 2.0

    return fn


def its_gradient(get, put):
    return lambda x: x * (2.0 if get().grad is None else get().grad.sum()) + get()


def its_layout(get, put):
    return lambda x: x * get().stride()[0] + get()


def its_mask(get, put):
    return lambda x: x * get()[get() > 0.0].sum()


def its_base(get, put):
    return lambda x: x + (get() if get()._base is None else get()._base.sum())


@pytest.mark.filterwarnings("ignore::probtorch.compiler.paths.CompileWarning")
@pytest.mark.parametrize("more", [in_place, puts, its_gradient, its_layout, its_mask, its_base])
@pytest.mark.parametrize("place", [entry, variable])
def test_more_than_reading_does_what_python_does(place, more):
    def play(wrap):
        get, put = place()
        put(tensor(np.ones(3)))
        fn, found = wrap(more(get, put)), []
        for i in range(14):
            if i % 3:
                t = tensor(np.full(6, float(i)))
                put([t[:3], t[::2], t.detach()[:3]][i % 3])
            if i > 7 and i % 2:
                get().grad = get() * 3.0
            found += [fn(X).numpy().copy(), get().numpy().copy()]
        return found

    for a, b in zip(play(compile), play(lambda fn: fn), strict=True):
        np.testing.assert_allclose(a, b)


def test_who_it_is_is_asked_of_the_one_that_is_there():
    get, put = entry()
    other = fresh()
    fn = lambda x: x * 2.0 if get() is other else x + get()
    compiled = compile(fn)
    for i in range(20):
        put(other if i % 5 == 4 else fresh())
        assert_close(compiled(X), fn(X))
    assert compiled.reason is None


def test_an_argument_that_is_there_too_is_told_from_others():
    get, put = entry()
    fn = lambda x: x * 2.0 if get() is x else x + get()
    compiled = compile(fn)
    for i in range(12):
        x = fresh()
        put(x if i % 4 == 3 else fresh())
        assert_close(compiled(x), fn(x))


def test_memory_that_the_call_changes_is_read_as_python_reads_it():
    def play(wrap):
        get, put = entry()
        total = tensor(np.zeros(6))

        def fn(x):
            total[:3].add_(x * get())
            return total.sum() + get().sum()

        fn, found = wrap(fn), []
        for i in range(12):
            put(tensor(np.full(3, float(i))) if i % 4 else total[:3])
            found.append(fn(X).item())
        return found

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CompileWarning)
        np.testing.assert_allclose(play(compile), play(lambda fn: fn))


def test_what_was_there_is_let_go():
    get, put = entry()
    compiled = compile(lambda x: x * get())
    first = weakref.ref(get())
    compiled(X)
    for _ in range(3):
        put(fresh())
        last = weakref.ref(get())
        compiled(X)
    put(fresh())
    compiled(X)
    compiled.paths.clear()  # the first one knew its tensor by who it was
    gc.collect()
    assert first() is None and last() is None


# ------------------------------------------------------------------------------------- on the tape


@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
def test_gradients_outside_are_those_of_the_tensor_at_the_call(late):
    w = fresh().requires_grad_()

    def play(wrap):
        get, put = entry()
        put(tensor(np.ones(3)))
        fn, found = wrap(lambda x: (x * w * get()).sum() * get().sum()), []
        for i in range(12):
            put(tensor(np.arange(3.0) + i))
            w.grad = None
            loss = fn(X)
            if late:
                put(tensor(np.full(3, -7.0)))
            loss.backward()
            found += [loss.item(), *w.grad.tolist(), get().tolist()[0]]
        return found, fn

    found, compiled = play(compile)
    np.testing.assert_allclose(found, play(lambda fn: fn)[0])
    assert compiled.reason is None


class Scaled(probtorch.autograd.Function):
    @staticmethod
    def forward(ctx, x, get):
        ctx.get = get
        return x * 2.0

    @staticmethod
    def backward(ctx, g):
        return g * ctx.get(), None


def with_a_hook(x, get):
    y = x * 2.0
    y.register_hook(lambda g: g * get())
    return y


@pytest.mark.parametrize("rule", [Scaled.apply, with_a_hook], ids=["function", "hook"])
def test_a_rule_of_the_users_reads_what_is_there_or_is_refused(rule):
    w = fresh().requires_grad_()
    get, put = entry()
    compiled = compile(lambda x: (x * rule(w, get) + get()).sum())
    refused = 0
    for i in range(12):
        put(fresh())
        w.grad = None
        loss = compiled(X)
        if i % 2:
            put(fresh())
        try:
            loss.backward()
        except AutogradError:
            refused += i % 2
        else:
            assert_close(w.grad, X * get() * (1.0 if rule == Scaled.apply else 2.0))
    assert refused > 3


def test_a_leaf_that_comes_gets_its_gradient():
    get, put = attribute()
    compiled = compile(lambda x: (x * get()).sum())
    for i in range(12):
        leaf = fresh()
        put(leaf.requires_grad_() if i % 3 == 2 else leaf)
        loss = compiled(X)
        assert loss.requires_grad == leaf.requires_grad
        if leaf.requires_grad:
            loss.backward()
            assert_close(leaf.grad, X)


def test_a_change_in_place_ahead_of_the_gradient_is_refused():
    w = fresh().requires_grad_()
    get, put = entry()
    compiled = compile(lambda x: (x * w * get()).sum())
    for _ in range(4):
        put(fresh())
        compiled(X).backward()
    loss = compiled(X)
    get().mul_(2.0)
    with pytest.raises(RuntimeError, match="in-place"):
        loss.backward()


@pytest.mark.parametrize("inside", [True, False], ids=["inside", "outside"])
def test_a_network_that_carries_its_state_trains_as_eagerly(inside):
    def train(wrap):
        probtorch.manual_seed(0)
        cell, out = nn.GRUCell(2, 3), nn.Linear(3, 1)
        optimizer = optim.Adam([*cell.parameters(), *out.parameters()], lr=0.01)
        state = {"h": probtorch.zeros(4, 3)}

        def learn(loss):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        def step(x):
            h = cell(x, state["h"])
            loss = ((out(h) - x.sum(1, keepdim=True)) ** 2).mean()
            if inside:
                learn(loss)
                return loss.detach(), h.detach()
            return loss, h

        step, losses = wrap(step), []
        for _ in range(15):
            loss, h = step(probtorch.randn(4, 2))
            state["h"] = h.detach()
            if not inside:
                learn(loss)
            losses.append(loss.item())
        return losses, step

    losses, step = train(compile)
    np.testing.assert_allclose(losses, train(lambda fn: fn)[0], rtol=1e-5)
    assert step.reason is None


def test_data_that_a_handler_is_given_anew_are_read():
    def model():
        return sample("y", Normal(0.0, 1.0).expand([3]).to_event(1))

    data = {"y": fresh()}
    given = condition(model, data)
    fn = lambda x: x * given()
    assert follows(fn, compile(fn), lambda t: data.update(y=t), [fresh() for _ in range(12)])
