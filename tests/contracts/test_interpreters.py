"""Whoever listens to a computation is an `Interpreter`, whose events are all there is to hear.

The laws: what an interpreter does in public is an event of the base class, with the same arguments;
every event is handed on outwards; and nobody asks what an interpreter is or has before telling it.
"""

import ast
import inspect
import re
from pathlib import Path

import pytest

import probtorch
import probtorch.testing  # and with it every room
from probtorch.core.interpreter import Interpreter
from probtorch.core.tree import flatten
from probtorch.tensor import tensor

PACKAGE = Path(probtorch.__file__).parent
EVENTS = {name: f for name, f in vars(Interpreter).items() if not name.startswith("_")}
# What a module needs to ask anything of an interpreter.
LOOKS = re.compile(r"recorder\(\)|(get|has)attr\(|isinstance\(\w+, .*(Recorder|Listener|Watch)")
# Asked for only where `records_loops`, and so never handed on unasked.
WHOLE = ("records_loops", "while_loop", "cond")


def subclasses(cls):
    """All classes below `cls` in the package."""
    below = [s for c in cls.__subclasses__() for s in (c, *subclasses(c))]
    return [c for c in below if c.__module__.startswith("probtorch.")]


INTERPRETERS = sorted(set(subclasses(Interpreter)), key=lambda c: c.__qualname__)


def test_the_recorder_and_all_listeners_are_interpreters():
    names = {c.__name__ for c in INTERPRETERS}
    assert {"Recorder", "Listener", "Batch", "TangentSweep", "detect_anomaly", "Watch"} <= names
    assert {"_Probe", "SummedValues", "OtherRounding", "_FirstNan"} <= names


@pytest.mark.parametrize("cls", INTERPRETERS, ids=lambda c: c.__qualname__)
def test_what_an_interpreter_has_in_public_is_an_event(cls):
    own = {name for name, f in vars(cls).items() if callable(f) or isinstance(f, property)}
    own = {name for name in own if not name.startswith("_")}
    if cls.__name__ == "Recording":  # what a recorder's owner asks, and no event
        assert own & set(EVENTS) == set()
    else:
        assert own - set(EVENTS) == set()


@pytest.mark.parametrize("cls", INTERPRETERS, ids=lambda c: c.__qualname__)
def test_an_interpreter_hears_an_event_with_its_arguments(cls):
    for name, f in vars(cls).items():
        if name in EVENTS and inspect.isfunction(f):
            expected = inspect.signature(EVENTS[name]).parameters
            assert list(inspect.signature(f).parameters) == list(expected), name


def arguments(name):
    """As many objects as an event has arguments."""
    return [object() for _ in list(inspect.signature(EVENTS[name]).parameters)[1:]]


@pytest.mark.parametrize("name", sorted(n for n in EVENTS if n not in (*WHOLE, "outer")))
def test_every_event_is_handed_on_outwards(name):
    heard, answer = [], object()

    class Outer(Interpreter):
        pass

    def hear(self, *args):
        heard.append(args)
        return answer

    is_property = isinstance(EVENTS[name], property)
    setattr(Outer, name, property(hear) if is_property else hear)
    inner, middle = Interpreter(), Interpreter()
    inner.outer, middle.outer = middle, Outer()
    given = [] if is_property else arguments(name)
    found = getattr(inner, name) if is_property else getattr(inner, name)(*given)
    assert found is answer or (found is None and name in ("applied", "fresh"))
    assert heard == [tuple(given)]


@pytest.mark.parametrize("name", sorted(n for n, f in EVENTS.items() if inspect.isfunction(f)))
def test_every_event_says_what_it_is_and_has_types(name):
    signature = inspect.signature(EVENTS[name])
    assert (EVENTS[name].__doc__ or "").strip().endswith(".")
    assert signature.return_annotation is not signature.empty
    assert all(p.annotation is not p.empty for p in list(signature.parameters.values())[1:])


def probes(tree):
    """Lines of a syntax tree that ask an interpreter what it is or has, and what they ask."""
    classes = {c.__name__ for c in (Interpreter, *INTERPRETERS)}
    known = set(EVENTS) - {"read"}  # files are read, too
    listening = {"recorder"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            if getattr(node.value.func, "id", None) == "recorder":
                listening |= {t.id for t in node.targets if isinstance(t, ast.Name)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = node.value.func if isinstance(node.value, ast.Call) else node.value
            if getattr(owner, "id", None) in listening and not hasattr(Interpreter, node.attr):
                yield node.lineno, f".{node.attr}"
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        second = node.args[1] if len(node.args) > 1 else None
        if node.func.id == "isinstance" and second is not None:
            asked = {n.id for n in ast.walk(second) if isinstance(n, ast.Name)}
            yield from ((node.lineno, name) for name in asked & classes)
        if node.func.id in ("getattr", "hasattr") and isinstance(second, ast.Constant):
            if second.value in known:
                yield node.lineno, second.value


def test_nobody_asks_an_interpreter_what_it_is():
    found = [
        f"{path.relative_to(PACKAGE)}:{line} {what}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if LOOKS.search(source := path.read_text())
        for line, what in probes(ast.parse(source))
    ]
    assert found == []


def test_a_probe_is_found_by_the_check():
    source = (
        "active = recorder()\n"
        "getattr(recorder(), 'alias', None)\n"
        "isinstance(active, (int, Recorder))\n"
        "active.value_of(t)\n"
        "recorder().refuse(t)\n"
        "active.applied(op, inputs, attrs, out)\n"
    )
    assert [line for line, _ in sorted(probes(ast.parse(source)))] == [2, 3, 4, 5]


def test_loops_that_nobody_takes_whole_are_their_steps():
    items, structure = flatten((tensor(1.0), tensor(5.0)))
    found = Interpreter().while_loop(
        lambda state: state[0] < state[1],
        lambda state: (2.0 * state[0], state[1]),
        items,
        structure,
    )
    assert found[0].item() == 8.0
    for pred, side in ((tensor(True), 6.0), (tensor(False), 5.0)):
        branch = Interpreter().cond(pred, lambda x, y: x + y, lambda x, y: x * y, items, structure)
        assert branch.item() == side
