"""Python values outside the arguments: a compiled function never goes on with old ones."""

import functools
import gc
import random
import types
import warnings

import numpy as np
import pytest

import probtorch
from probtorch.compiler.compile import compile
from probtorch.compiler.guards.environment import Environment
from probtorch.compiler.paths import CompileWarning
from probtorch.nn import Dropout, Linear, ReLU, Sequential
from probtorch.ops.sampling import rand
from probtorch.tensor import tensor

factor = 2.0
table = {"a": 1.0}
small = np.array([1.0, 2.0])


class Thing:
    """A user's object, with a method that reads its attribute."""

    shared = 1.0

    def __init__(self):
        self.beta = 1.0
        self.calls = 0

    def scaled(self, x):
        return x * self.beta + self.shared

    def counted(self, x):
        self.calls += 1
        return x * self.calls


def value_of(compiled, x=3.0):
    return compiled(tensor(x)).item()


def test_a_global_number_that_changes_is_seen(monkeypatch):
    compiled = compile(lambda x: x * factor)
    assert [value_of(compiled) for _ in range(3)] == [6.0] * 3
    monkeypatch.setitem(globals(), "factor", 5.0)
    assert [value_of(compiled) for _ in range(3)] == [15.0] * 3
    monkeypatch.setitem(globals(), "factor", 2.0)
    # The first path fits again.
    assert value_of(compiled) == 6.0
    assert len(compiled.paths) == 2


def test_a_number_in_an_enclosing_function_is_seen():
    scale = 1.0

    def fn(x):
        return x * scale

    compiled = compile(fn)
    assert [value_of(compiled) for _ in range(2)] == [3.0, 3.0]
    scale = 2.0
    assert value_of(compiled) == 6.0


def test_a_variable_that_was_none_and_one_that_was_not_there_are_seen_to_be_set():
    scale = None

    def fn(x):
        try:
            return (x if scale is None else x * scale) + shift
        except NameError:
            return x + 1.0

    compiled = compile(fn)
    assert [value_of(compiled) for _ in range(2)] == [4.0, 4.0]
    shift = 0.5
    assert [value_of(compiled) for _ in range(2)] == [3.5, 3.5]
    scale = 2.0
    assert [value_of(compiled) for _ in range(2)] == [6.5, 6.5]


def test_attributes_items_and_functions_are_seen(monkeypatch):
    thing, layers = Thing(), [lambda x: x + 1.0]
    compiled = compile(lambda x: thing.scaled(layers[0](x)) * table["a"])
    assert [value_of(compiled) for _ in range(2)] == [5.0, 5.0]
    thing.beta = 2.0
    assert [value_of(compiled) for _ in range(2)] == [9.0, 9.0]
    monkeypatch.setattr(Thing, "shared", 0.0)
    assert value_of(compiled) == 8.0
    monkeypatch.setitem(table, "a", 10.0)
    assert value_of(compiled) == 80.0
    layers[0] = lambda x: x
    assert value_of(compiled) == 60.0


def test_a_small_array_changed_in_place_is_seen():
    compiled = compile(lambda x: x * small)
    assert [compiled(tensor(1.0)).tolist() for _ in range(2)] == [[1.0, 2.0]] * 2
    small[0] = 7.0
    try:
        assert compiled(tensor(1.0)).tolist() == [7.0, 2.0]
    finally:
        small[0] = 1.0


def test_a_network_that_goes_from_training_to_evaluation_is_seen():
    net = Sequential(Linear(4, 4), ReLU(), Dropout(0.5))
    compiled = compile(lambda x: net(x))
    x = tensor(np.ones((5, 4), np.float32))
    with probtorch.no_grad():
        for _ in range(3):
            compiled(x)
        net.eval()
        assert all(compiled(x).tolist() == net(x).tolist() for _ in range(3))
        net[0] = Linear(4, 4)
        assert all(compiled(x).tolist() == net(x).tolist() for _ in range(3))


def test_an_object_that_counts_its_calls_runs_eagerly():
    thing = Thing()
    compiled = compile(thing.counted)
    with pytest.warns(CompileWarning, match="changes calls"):
        found = [value_of(compiled, 1.0) for _ in range(5)]
    assert found == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_what_each_version_makes_at_its_first_call_does_not_matter():
    caches = [{} for _ in range(6)]

    def fn(x, k):
        if "weight" not in caches[k]:
            caches[k]["weight"] = tensor(float(k))
        return x * caches[k]["weight"]

    compiled = compile(fn)
    found = [compiled(tensor(3.0), i % 6).item() for i in range(24)]
    assert found == [3.0 * (i % 6) for i in range(24)]
    assert len(compiled.paths) == 6


def test_what_changes_in_some_calls_is_the_reason_that_is_given():
    best = [1e9, 1e9]

    def fn(x):
        for k in range(2):
            if x[k] < best[k]:
                best[k] = float(x[k])
        return x * best[0]

    def calls():
        seen = np.full(2, 1e9)
        for t in range(200):
            x = rng.normal(size=2) - 0.2 * t
            seen = np.minimum(seen, x)
            np.testing.assert_allclose(compiled(tensor(x)).array, x * seen[0])

    rng, compiled = np.random.default_rng(0), compile(fn)
    with pytest.warns(CompileWarning, match=r"changes? item \d of closure.best, a list") as told:
        calls()
    assert len(told) == 1
    assert "argument" not in compiled.explain()


def test_what_is_made_once_at_the_first_call_does_not_matter():
    cache = {}

    def fn(x):
        if "weight" not in cache:
            cache["weight"] = tensor(2.0)
        return x * cache["weight"]

    compiled = compile(fn)
    assert [value_of(compiled) for _ in range(4)] == [6.0] * 4
    assert len(compiled.paths) == 1


@pytest.mark.parametrize(
    "draw",
    [random.random, np.random.random, np.random.default_rng(0).random],
    ids=["python", "numpy", "generator"],
)
def test_draws_of_other_libraries_are_never_frozen(draw):
    generator = getattr(draw, "__self__", None)
    compiled = compile(lambda x: x * (generator.random() if generator is not None else draw()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CompileWarning)
        assert len({value_of(compiled) for _ in range(4)}) == 4


def test_a_number_that_changes_at_every_call_stops_the_recording():
    compiled = compile(lambda x, beta: x * round(beta))  # a constant: tensors round otherwise
    with pytest.warns(CompileWarning, match="pass what changes as a tensor"):
        found = [compiled(tensor(1.0), float(i)).item() for i in range(20)]
    assert found == [float(i) for i in range(20)]
    assert len(compiled.paths) == 8
    as_tensors = compile(lambda x, beta: x * beta)
    found = [as_tensors(tensor(1.0), tensor(float(i))).item() for i in range(20)]
    assert found == [float(i) for i in range(20)]
    assert len(as_tensors.paths) == 1


def test_a_parameter_that_is_frozen_is_another_path():
    weight = tensor(1.0, requires_grad=True)
    rng = probtorch.Generator(0)

    def step(x):
        loss = (weight * x + rand((), generator=rng)) ** 2
        if not loss.requires_grad:
            return loss
        return probtorch.autograd.grad(loss, weight)[0]

    compiled = compile(step)
    first = [compiled(tensor(1.0)).item() for _ in range(2)]
    weight.requires_grad_(False)
    second = [compiled(tensor(1.0)).item() for _ in range(2)]
    rng.manual_seed(0)
    weight.requires_grad_()
    assert [step(tensor(1.0)).item() for _ in range(2)] == pytest.approx(first)
    weight.requires_grad_(False)
    assert [step(tensor(1.0)).item() for _ in range(2)] == pytest.approx(second)


def test_a_walk_ends_on_cycles_and_large_data():
    thing = Thing()
    thing.me = thing
    thing.data = list(range(10_000))
    found = Environment([thing])
    assert found.changed() is None
    assert len(found) < 100  # with what code may ask of every tensor
    thing.data[-1] = 1
    assert found.changed() == "the items of Thing.data, a list"
    thing.data.append(1)
    assert found.changed() == "the number of items in Thing.data, a list"


@pytest.mark.parametrize("thing", [list[int], dict[str, Thing], types.MappingProxyType({})])
def test_attributes_that_are_a_view_of_a_dict_are_walked(thing):
    found = Environment([lambda: thing])
    assert found.changed() is None


def test_a_read_only_view_shows_changes_of_its_dict():
    own = {"beta": 2.0}
    view = types.MappingProxyType(own)
    found = Environment([lambda: view])
    own["beta"] = 3.0
    assert found.changed() is not None


def test_a_class_in_the_brackets_of_another_is_seen(monkeypatch):
    alias = list[Thing]
    found = Environment([lambda: alias])
    monkeypatch.setattr(Thing, "shared", 4.0)
    assert found.changed() is not None


def test_a_variable_with_a_generic_type_does_not_stop_a_compiled_function():
    numbers = list[float]
    compiled = compile(lambda x: x * numbers([2.0])[0])
    assert [value_of(compiled) for _ in range(2)] == [6.0] * 2


@pytest.mark.parametrize("size", [None, 30], ids=["without limit", "limited"])
def test_calls_look_at_no_entry_of_a_cache_that_is_as_it_was(size, monkeypatch):
    @functools.lru_cache(size)
    def kept(n):
        return float(n)

    for n in range(20):
        kept(n)
    native = compile(lambda x: x * kept(3))
    x = tensor([1.0, 2.0])
    for _ in range(4):
        native(x)

    def look(*of):
        raise AssertionError("a look at what a cache has kept")

    with monkeypatch.context() as patch:
        patch.setattr(gc, "get_referents", look)
        for _ in range(5):
            kept(4)  # which is moved in the order of uses
            assert native(x).tolist() == [3.0, 6.0]
    assert native.last is not None
    kept.cache_clear()
    kept(3)
    assert native(x).tolist() == [3.0, 6.0]


def backwards(found):
    return found[::-1]


def without_dicts(found):
    return [x for x in found if type(x) is not dict]


@pytest.mark.parametrize(
    ("size", "shown"), [(30, backwards), (30, without_dicts), (None, without_dicts)]
)
def test_a_cache_whose_entries_are_not_found_as_expected_makes_a_function_eager(
    size, shown, monkeypatch
):
    @functools.lru_cache(size)
    def kept(n):
        return {"n": [n]}

    for n in range(5):
        kept(n)
    referents = gc.get_referents

    def elsewhere(*of):
        found = referents(*of)
        return shown(found) if of == (kept,) else found

    monkeypatch.setattr(gc, "get_referents", elsewhere)
    native, x = compile(lambda x: x * kept(3)["n"][0]), tensor([1.0, 2.0])
    with pytest.warns(CompileWarning, match="_lru_cache_wrapper, whose state cannot be watched"):
        assert native(x).tolist() == [3.0, 6.0]
    kept(3)["n"][0] = 4
    assert native(x).tolist() == [4.0, 8.0]
