"""What recorded calls leave elsewhere: the caller's own tensors and containers, once.

A call that is recorded does what Python does, whatever comes of the recording: it runs once, and
what it stores outside is what it was given.
"""

import collections
import contextvars
import functools
import itertools
import queue
import threading
import weakref

import numpy as np
import pytest

import probtorch
from probtorch import compile, no_grad, tensor
from probtorch.autograd.modes import enable_grad
from probtorch.compiler.paths import CompileWarning
from probtorch.distributions import Distribution, Normal, constraints
from probtorch.errors import AutogradError
from probtorch.nn import Module
from probtorch.testing import assert_close

pytestmark = pytest.mark.filterwarnings("ignore::probtorch.compiler.paths.CompileWarning")

Pair = collections.namedtuple("Pair", "first second")


class Box:
    """Somewhere to put things."""

    kept = None
    __slots__ = ("__dict__", "slot")


def in_list(box, x):
    box.kept = [x]
    return lambda: box.kept[0]


def in_tuples(box, x):
    box.kept = ((x, 1),)
    return lambda: box.kept[0][0]


def in_named_tuple(box, x):
    box.kept = Pair(1, {"x": [x]})
    return lambda: box.kept.second["x"][0]


def in_attribute(box, x):
    box.kept = x
    return lambda: box.kept


def in_slot(box, x):
    box.slot = (x,)
    return lambda: box.slot[0]


def in_class(box, x):
    Box.shared = x
    return lambda: Box.shared


def in_closure(box, x):
    box.kept = lambda: x
    return box.kept


def as_key(box, x):
    box.kept = {x: 1}
    return lambda: next(iter(box.kept))


def in_set(box, x):
    box.kept = {x}
    return lambda: next(iter(box.kept))


STORES = [
    *(in_list, in_tuples, in_named_tuple, in_attribute, in_slot, in_class, in_closure, as_key),
    in_set,
]
MADE = {
    "plain": lambda i: tensor([1.0 + i, 2.0]),
    "leaf": lambda i: tensor([1.0 + i, 2.0], requires_grad=True),
    "result": lambda i: tensor([1.0 + i, 2.0], requires_grad=True) * 1.0,
    "view": lambda i: tensor([[1.0 + i, 2.0], [0.0, 1.0]])[0],
}


@pytest.mark.parametrize("outside", [False, True], ids=["given", "given and found outside"])
@pytest.mark.parametrize("mode", [no_grad, enable_grad])
@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("store", STORES)
def test_what_a_call_keeps_of_its_arguments_is_the_callers(store, kind, mode, outside):
    box, found = Box(), [None]

    def kept(x):
        found[0] = store(box, x)
        return x.sum() if extra[0] is None else (x * extra[0]).sum()

    extra = [None]
    compiled = compile(kept)
    for i in range(5):
        x = MADE[kind](i)
        extra[0] = x if outside else None
        with mode():
            compiled(x)
        got = found[0]()
        # The caller's tensor, or in the first calls, where another may have stood for it, a view.
        assert got is x or (got._base is (x if x._base is None else x._base) and i < 3)
        assert got is x or kind != "plain" or outside
        assert np.shares_memory(got.numpy(force=True), x.numpy(force=True))
        assert got.requires_grad == x.requires_grad
        if x.requires_grad:
            x.retain_grad()
            (3.0 * got).sum().backward()
            assert_close(x.grad, tensor([3.0, 3.0]))


def test_a_change_in_place_of_the_callers_is_known_to_what_a_call_kept():
    seen = []

    @compile
    def kept(x):
        seen.append(x)
        return x.sum() * outside[0].sum()

    for i in range(3):
        x = tensor([1.0 + i, 2.0], requires_grad=True) * 1.0
        outside = [x]
        kept(x)
        loss = (seen[-1] * seen[-1]).sum()
        with no_grad():
            x.mul_(2.0)
        with pytest.raises(AutogradError, match="modified in place"):
            loss.backward()


@pytest.mark.parametrize("kind", ["leaf", "result"])
def test_gradients_of_what_a_call_keeps_reach_the_callers_tensor(kind):
    kept = []

    @compile
    def loss(x):
        kept.append(x * 2.0)
        return (x * x).sum()

    for i in range(5):
        kept.clear()
        x = MADE[kind](i)
        x.retain_grad()
        (loss(x) + kept[0].sum()).backward()
        assert_close(x.grad, 2.0 * x.detach() + 2.0)


def test_backward_passes_go_through_kept_leaves_as_often_as_python_does():
    last = [None]

    def loss(x):
        found = (x * x).sum() if last[0] is None else (x * last[0]).sum()
        last[0] = x
        return found

    found = []
    for fn in (loss, compile(loss)):
        last[0] = None
        leaves = [tensor([1.0 + i, 2.0], requires_grad=True) for i in range(6)]
        for x in leaves:
            fn(x).backward()
        found.append([x.grad.tolist() for x in leaves])
    assert found[0] == found[1]


def test_gradients_that_a_call_asks_an_argument_to_keep_are_kept():
    @compile
    def loss(x):
        x.retain_grad()
        return (x * x).sum()

    for i in range(5):
        x = tensor([1.0 + i], requires_grad=True) * 2.0
        loss(x).backward()
        assert_close(x.grad, 2.0 * x.detach())


def test_a_call_that_is_recorded_runs_once():
    calls, printed = [], []

    @compile
    def loss(x):
        calls.append(1)
        printed.append(x.shape)
        return (x * x).sum()

    for i in range(6):
        calls.clear()  # so that it looks as it did ahead of the call before
        printed.clear()
        loss(tensor([1.0 + i, 2.0], requires_grad=True)).backward()
        assert len(calls) == 1
        assert len(printed) == 1


def test_a_call_that_cannot_be_replayed_draws_once():
    def loss(x):
        noise = probtorch.randn(2)
        return (x * noise).sum() + probtorch.unique((x * 0.0).detach()).sum()

    drawn = []
    for fn in (loss, compile(loss)):
        probtorch.manual_seed(3)
        drawn.append([float(fn(tensor([1.0, 2.0], requires_grad=True))) for _ in range(5)])
    assert drawn[0] == drawn[1]


def test_results_that_are_arguments_are_the_callers_where_no_recording_came_of_it():
    seen = []

    @compile
    def same(x):
        seen.append(0)
        return x

    for i in range(5):
        x = tensor([1.0 + i], requires_grad=True)
        with no_grad():
            assert same(x) is x


def test_containers_that_a_call_stores_elsewhere_are_the_callers():
    box = Box()

    @compile
    def loss(x, options):
        box.kept = options, options["deep"]
        return x.sum() * options["a"]

    for i in range(5):
        options = {"a": tensor(1.0 + i), "deep": [tensor(2.0)]}
        loss(tensor([1.0, 2.0]), options)
        assert box.kept[0] is options
        assert box.kept[1] is options["deep"]


def test_what_is_put_into_lists_among_the_arguments_holds_the_callers_tensors():
    @compile
    def loss(x, seen):
        seen.append((x, [x, {"x": x}]))
        return x.sum()

    for wanted in (False, True):
        seen = []
        for i in range(4):
            x = tensor([1.0 + i, 2.0], requires_grad=wanted)
            loss(x, seen)
            pair = seen[-1]
            assert pair[0] is x
            assert pair[1][0] is x
            assert pair[1][1]["x"] is x


# --------------------------------------------------------------------------------- who is who


def test_tuples_named_tuples_and_distributions_are_recognised():
    a, b = tensor(1.0), tensor(2.0)
    known, other = (a, b), (a, b)
    pair, unit = Pair(a, b), Normal(a, b)
    alike = compile(lambda x, y: a * 2.0 if x is y else a * 3.0)
    is_known = compile(lambda x: a * 2.0 if x is known else a * 3.0)
    of_pair = compile(lambda x: a * 2.0 if x is pair else a * 3.0)
    of_unit = compile(lambda d: a * 2.0 if d is unit else a * 3.0)
    for _ in range(3):
        for x, y in ((known, known), (known, other), (pair, pair), (pair, Pair(a, b))):
            assert_close(alike(x, y), alike.fn(x, y))
        for x in (unit, Normal(a, b)):
            assert_close(alike(x, unit), alike.fn(x, unit))
            assert_close(of_unit(x), of_unit.fn(x))
        for x in (known, other, (tensor(1.0), tensor(2.0))):
            assert_close(is_known(x), is_known.fn(x))
        for x in (pair, Pair(a, b)):
            assert_close(of_pair(x), of_pair.fn(x))


def test_attributes_that_users_set_of_distributions_count():
    @compile
    def scaled(d):
        return d.loc * d.factor + d.offset

    d = Normal(tensor(1.0), tensor(2.0))
    for factor in (2.0, 3.0, 4.0, 2.0):
        d.factor, d.offset = factor, tensor(0.5 * factor)
        assert_close(scaled(d), scaled.fn(d))
    hidden = compile(lambda d: d.loc * getattr(d, "_factor", -1.0))
    for factor in (2.0, 2.0, 3.0, 4.0):
        d._factor = factor
        assert_close(hidden(d), d.loc * factor)

    @compile
    def noted(d):
        d.seen = d.loc * 2.0
        return d.loc + 1.0

    for i in range(4):
        d = Normal(tensor(1.0 + i), 1.0)
        noted(d)
        assert_close(d.seen, tensor(2.0 + 2.0 * i))


def test_attributes_of_distributions_that_users_wrote_count():
    class Helper:
        factor = 2.0

    class Written(Distribution):
        support = constraints.real

        def __init__(self, loc, extra):
            self.loc, self.extra = loc, extra
            super().__init__()

        def log_prob(self, x):
            extra = self.extra
            scale = extra.factor if isinstance(extra, Helper) else extra[0]
            return -((x - self.loc) ** 2) * scale

        def sample(self, sample_shape=(), **kwargs):
            return self.loc

    x = tensor(3.0)
    for extra in (Helper(), [2.0], (2.0,)):
        d, compiled = Written(tensor(1.0), extra), compile(lambda d, x: d.log_prob(x))
        for i in range(8):
            if i == 2 and isinstance(extra, Helper):
                extra.factor = 3.0
            elif i == 2 and isinstance(extra, list):
                extra[0] = 3.0
            elif i == 5:
                d = Written(tensor(1.5), (4.0,))
            assert_close(compiled(d, x), d.log_prob(x))


def test_functions_that_keep_things_say_that_they_run_eagerly():
    seen = []

    @compile
    def kept(x):
        seen.append((x,))
        return x.sum()

    for _ in range(2):
        kept(tensor([1.0]))
    with pytest.warns(CompileWarning, match="changes the number of items in closure.seen"):
        kept(tensor([1.0]))


# ------------------------------------------------------------- what is given and found outside


def _in_a_cache(x):
    @functools.lru_cache
    def kept(key):
        return holder.pop()

    holder = [x]
    kept(0)
    return lambda: kept(0)


def _in_a_thread(x):
    local = threading.local()
    local.x = x
    return lambda: local.x


def _by_a_weak_reference(x):
    return weakref.ref(x)


def _in_a_variable(x):
    variable = contextvars.ContextVar("variable")
    variable.set(x)
    return variable.get


def _by_an_iterator(x):
    turns = itertools.cycle([x])
    return lambda: next(turns)


def _by_a_generator(x):
    def each():
        while True:
            yield x

    turns = each()
    return lambda: next(turns)


def _in_objects(x):
    array = np.empty(1, object)
    array[0] = x
    return lambda: array[0]


def _in_a_queue(x):
    queue_of_one = queue.SimpleQueue()

    def taken():
        queue_of_one.put(x)
        return queue_of_one.get()

    return taken


def _in_a_distribution(x):
    d = Normal(x, 1.0)
    return lambda: d.loc


def _in_a_buffer(x):
    module = Module()
    module.register_buffer("kept", x)
    return lambda: module.kept


def _in_a_view(x):
    v = x.view(2, 1)
    return lambda: v[:, 0]


def _in_memory(x):
    a = x.numpy()
    return lambda: probtorch.from_numpy(a)


def _as_the_base_of_a_view(x):
    v = x[:1]
    return lambda: v._base


HELD = [
    *(_in_a_cache, _in_a_thread, _by_a_weak_reference, _in_a_variable, _by_an_iterator),
    *(_by_a_generator, _in_objects, _in_a_queue, _in_a_distribution, _in_a_buffer, _in_a_view),
    *(_in_memory, _as_the_base_of_a_view),
]


@pytest.mark.parametrize("order", ["xxxzzxzx", "zzzxxzxz"])
@pytest.mark.parametrize("held", HELD)
def test_an_argument_is_not_taken_for_what_is_found_outside(held, order):
    x, z = tensor([41.0, 2.0]), tensor([5.0, 6.0])
    outside = held(x)
    compiled = compile(lambda y: y * 2.0 + outside())
    for name in order:
        y = x if name == "x" else z
        assert_close(compiled(y), y * 2.0 + x)


def test_caches_that_know_arguments_by_who_they_are_do_so():
    def made():
        @functools.lru_cache
        def doubled(t):
            return t * 2.0

        return lambda y: doubled(y) + y

    x, z = tensor([41.0, 2.0]), tensor([5.0, 6.0])
    for order in ((x, x, x, z, z, x, z), (z, x, x, x, z), (x, x, x, x, x, z)):
        fn, compiled = made(), compile(made())
        for y in order:
            assert_close(compiled(y), fn(y))


def test_where_elements_lie_is_asked_in_python():
    x, z = tensor([41.0, 2.0]), tensor([5.0, 6.0])
    v = x[:1]
    compiled = compile(lambda y: y * 2.0 if y.data_ptr() == v.data_ptr() else y * 3.0)
    for y in (x, x, x, z, x, z):
        assert_close(compiled(y), y * (2.0 if y is x else 3.0))


def test_a_recorded_change_in_place_of_an_argument_is_known_to_the_tape():
    outside = [None]

    @compile
    def add_one(y):
        y.add_(1.0)
        return y.sum() + outside[0].sum()

    for _ in range(3):
        x, w = tensor([1.0, 2.0]), tensor([1.0, 1.0], requires_grad=True)
        outside[0], loss = x, (w * x).sum()
        with no_grad():
            add_one(x)
        with pytest.raises(AutogradError, match="modified in place"):
            loss.backward()


def test_attributes_of_a_function_do_not_hide_those_of_the_compiled_one():
    def fn(x):
        return x * 2.0

    fn.find, fn._record, fn.note = 1, 2, "kept"
    compiled = compile(fn)
    assert_close(compiled(tensor(1.0)), tensor(2.0))
    assert compiled.note == "kept"
    assert callable(compiled.find)
