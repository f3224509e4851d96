"""Classes of the user's are looked into past what they say of themselves: their code never runs.

Where some of it has to run (an attribute that a metaclass computes), what it raises makes the
function eager, with the one warning that says where.
"""

import collections
import types
import warnings

import pytest

from probtorch import optim
from probtorch.compiler.compile import compile
from probtorch.compiler.paths import CompileWarning
from probtorch.tensor import tensor


class Ran(Exception):
    """Code of the user's was run."""


def refuse(self, *args):
    raise Ran


ASKED = [
    "__iter__",
    "__len__",
    "__contains__",
    "__eq__",
    "__repr__",
    "__bool__",
    "keys",
    "values",
    "items",
]
METHODS = {**dict.fromkeys(ASKED, refuse), "__hash__": object.__hash__}
ENTRIES = {
    list: [1.0, 2.0],
    tuple: (1.0, 2.0),
    set: {1.0, 2.0},
    frozenset: frozenset({1.0, 2.0}),
    collections.deque: [1.0, 2.0],
    dict: {"a": 1.0},
    collections.OrderedDict: {"a": 1.0},
    collections.Counter: {"a": 1.0},
}
SILENT = {kind: type(f"Silent{kind.__name__}", (kind,), METHODS) for kind in ENTRIES}


def made(kind):
    """An object of a subclass whose every method refuses; filled by the methods of Python's own."""
    if kind in (list, tuple, set, frozenset, collections.deque):
        return SILENT[kind](ENTRIES[kind])
    found = SILENT[kind]()
    dict.update(found, ENTRIES[kind])
    return found


def around(place, thing):
    """A function that has to do with a thing, and what else it is called with."""
    holder = types.SimpleNamespace(thing=thing, inner={"more": [thing]})

    def of_closure(x):
        return x * (1.0 if thing is None else 2.0)

    def of_attribute(x):
        return x * (1.0 if holder.thing is None else 2.0)

    def of_argument(x, options):
        return x * (1.0 if options is None else 2.0)

    return {
        "closure": (of_closure, ()),
        "attribute": (of_attribute, ()),
        "argument": (of_argument, (thing,)),
        "within": (of_argument, ({"a": [thing]},)),
    }[place]


@pytest.mark.parametrize("place", ["closure", "attribute", "argument", "within"])
@pytest.mark.parametrize("kind", ENTRIES)
def test_no_method_of_a_container_is_run(kind, place):
    fn, rest = around(place, made(kind))
    native = compile(fn)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            assert native(tensor([1.0]), *rest).item() == 2.0
    assert native.reason is None


def test_what_such_a_container_holds_is_watched():
    items, table = made(list), made(collections.OrderedDict)

    def fn(x):
        return x * list.__getitem__(items, 0) + dict.__getitem__(table, "a")

    native = compile(fn)
    for _ in range(3):
        assert native(tensor([1.0])).item() == 2.0
    list.__setitem__(items, 0, 5.0)
    assert native(tensor([1.0])).item() == 6.0
    dict.__setitem__(table, "a", 3.0)
    assert native(tensor([1.0])).item() == 8.0
    list.append(items, 7.0)
    assert native(tensor([1.0])).item() == 8.0


class Computed:
    @property
    def __dict__(self):
        raise Ran


class Meta(type):
    def __getattribute__(cls, name):
        if name in ("__mro__", "__dict__"):
            raise Ran
        return type.__getattribute__(cls, name)


class OfMeta(metaclass=Meta):
    pass


class Secretive:
    def __getattribute__(self, name):
        raise Ran


# Made when they are asked for: who reports a test looks at its arguments.
HIDDEN = {"dict": Computed, "meta": OfMeta, "class": lambda: OfMeta, "attributes": Secretive}


@pytest.mark.parametrize("thing", HIDDEN)
@pytest.mark.parametrize("place", ["closure", "attribute"])
def test_what_cannot_be_looked_at_makes_the_function_eager(thing, place):
    fn, rest = around(place, HIDDEN[thing]())
    native = compile(fn)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = [native(tensor([1.0]), *rest).item() for _ in range(3)]
    assert found == [2.0] * 3
    (warning,) = told
    assert issubclass(warning.category, CompileWarning)
    assert "cannot be looked at: Ran" in str(warning.message)


# ------------------------------------------------------------ what ends a call, or needs the leaves


def test_a_function_that_changes_something_and_raises_is_not_recorded_for_ever():
    calls = []

    def fn(x):
        calls.append(1)
        raise ValueError(f"call {len(calls)}")

    native = compile(fn)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for i in range(1, 7):
            with pytest.raises(ValueError, match=f"^call {i}$"):
                native(tensor([1.0]))
    assert len(calls) == 6 and len(told) == 1
    assert "every call changes the number of items in closure.calls" in native.reason[0]


def test_one_that_only_raises_may_go_on_to_be_compiled():
    def fn(x, fails):
        if fails:
            raise ValueError("as it was told")
        return x * 2.0

    native = compile(fn)
    for _ in range(5):
        with pytest.raises(ValueError, match="as it was told"):
            native(tensor([1.0]), True)
    for _ in range(3):
        assert native(tensor([1.0]), False).item() == 2.0
    assert native.reason is None


@pytest.mark.parametrize("kind", ["SGD", "LBFGS"])
def test_an_optimizer_of_an_argument_moves_the_callers_tensor(kind):
    def step(w, x):
        make = {"SGD": optim.SGD, "LBFGS": optim.LBFGS}[kind]
        optimizer = make([w], lr=0.1)

        def closure():
            optimizer.zero_grad()
            loss = ((w - x) ** 2).sum()
            loss.backward()
            return loss

        return optimizer.step(closure).detach()

    found = []
    for fn in (step, compile(step)):
        w = tensor([1.0, 2.0], requires_grad=True)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            losses = [fn(w, tensor([0.5, 0.5])).item() for _ in range(4)]
        found.append((losses, w.tolist()))
    assert found[0] == found[1]
    assert len(told) == 1 and "an optimizer that it may make of an argument" in str(told[0].message)


class Told(property):
    """A property that a class can be asked for, too."""

    def __get__(self, instance, owner=None):
        return self.of_class if instance is None else super().__get__(instance, owner)


RATES = [2.0]


class Rated:
    """What a function asks for a property of a kind of the user's own."""

    rate = Told(lambda self: RATES[0])


Rated.__dict__["rate"].of_class = 3.0


def test_what_a_property_of_ones_own_kind_reads_is_watched():
    native = compile(lambda x: x * Rated().rate + Rated.rate)
    assert [native(tensor([1.0])).item() for _ in range(3)] == [5.0] * 3
    RATES[0] = 4.0
    assert native(tensor([1.0])).item() == 7.0
    Rated.__dict__["rate"].of_class = 10.0
    assert native(tensor([1.0])).item() == 14.0
    assert native.reason is None
