"""Loops in native code end when a signal handler raises, and go on where it does not."""

import contextlib
import math
import os
import re
import signal
import threading
import time

import pytest

import probtorch
from probtorch.compiler.native import host
from probtorch.distributions import Normal
from probtorch.infer import Target
from probtorch.tensor import tensor

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers here")

ENDLESS = 1e300


class Rung(Exception):
    pass


@contextlib.contextmanager
def alarm(handler, seconds=0.2):
    """Call `handler` after some seconds, wherever this thread is then."""
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def ring(*_):
    raise Rung("now")


def count_to(end):
    return probtorch.while_loop(lambda s: s < end, lambda s: s + 1.0, tensor(0.0).double())


def native(fn, *args):
    compiled = probtorch.compile(fn)
    for _ in range(3):
        compiled(*args)
    assert compiled.reason is None and compiled.last is not None
    return compiled


def test_a_loop_without_an_end_is_stopped_by_what_a_handler_raises():
    f = native(count_to, tensor(5.0).double())
    with alarm(ring), pytest.raises(Rung, match="now"):
        f(tensor(ENDLESS).double())
    assert f(tensor(7.0).double()).item() == 7.0
    assert f.reason is None


def test_ctrl_c_stops_a_loop():
    f = native(count_to, tensor(5.0).double())
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        f(tensor(ENDLESS).double())
    timer.join()
    assert f(tensor(7.0).double()).item() == 7.0


def test_a_loop_of_slow_rounds_is_stopped_too():
    a = probtorch.eye(300, dtype=probtorch.float64)

    def powers(end):
        def turn(state):
            i, x = state
            return i + 1.0, x @ a

        return probtorch.while_loop(lambda state: state[0] < end, turn, (tensor(0.0).double(), a))[
            1
        ]

    f = native(powers, tensor(3.0).double())
    with alarm(ring), pytest.raises(Rung):
        f(tensor(ENDLESS).double())


def test_a_handler_that_raises_nothing_lets_a_loop_go_on():
    f = native(count_to, tensor(5.0).double())
    rung, end = [], tensor(5e7).double()
    with alarm(lambda *_: rung.append(time.monotonic()), 0.05):
        found = f(end)
        ended = time.monotonic()
    assert found.item() == 5e7
    assert len(rung) == 1 and rung[0] < ended


def test_a_call_that_is_stopped_changes_nothing():
    state, generator = tensor([1.0, 2.0]), probtorch.Generator(3)

    def step(end):
        noise = probtorch.rand(2, generator=generator)
        state.add_(noise)
        n = count_to(end)
        state.mul_(2.0)
        return n

    f = native(step, tensor(5.0).double())
    before, drawn = state.tolist(), generator.get_state()
    with alarm(ring), pytest.raises(Rung):
        f(tensor(ENDLESS).double())
    assert (state.tolist(), generator.get_state()) == (before, drawn)


def test_a_density_is_stopped():
    def model():
        x = probtorch.sample("x", Normal(0.0, 1.0))
        n = count_to(probtorch.where(x > 2.0, ENDLESS, 3.0).detach())
        probtorch.factor("n", -n * x * x)

    target = Target.from_model(model)
    for q in (0.5, 0.7, 0.9):
        target.value_and_grad([q])
    with alarm(ring), pytest.raises(Rung):
        target.value_and_grad([2.5])
    value, _ = target.value_and_grad([1.0])
    assert value == pytest.approx(-0.5 - 0.9189385332046727 - 3.0)


def _blocks_in_loops(function):
    """The basic blocks of an LLVM function from which a way leads back to them, as texts."""
    texts = [str(block) for block in function.blocks]
    names = [re.match(r"\s*\"?([\w.$-]+)\"?:", text).group(1) for text in texts]
    after = {
        name: set(re.findall(r'label %"?([\w.$-]+)"?', text))
        for name, text in zip(names, texts, strict=True)
    }

    def reached(name):
        found, todo = set(), list(after[name])
        while todo:
            if (x := todo.pop()) not in found:
                found.add(x)
                todo += after[x]
        return found

    return [text for name, text in zip(names, texts, strict=True) if name in reached(name)]


def test_what_is_the_same_in_each_round_is_computed_before_them(monkeypatch):
    optimised = []

    class Machine:
        def __init__(self, machine):
            self._machine = machine

        def __getattr__(self, name):
            return getattr(self._machine, name)

        def emit_object(self, module):
            optimised.append(module.clone())
            return self._machine.emit_object(module)

    make = host._machine
    monkeypatch.setattr(host, "_machine", lambda *args: Machine(make(*args)))
    monkeypatch.setenv("PROBTORCH_CACHE", "0")

    def fn(x, end):
        scale = x * 2.0
        return probtorch.while_loop(
            lambda s: s[0] < end, lambda s: (s[0] + 1.0, s[1] + scale.log()), (end * 0.0, end * 0.0)
        )[1]

    f = native(fn, tensor(2.0).double(), tensor(5.0).double())
    assert f(tensor(2.0).double(), tensor(3.0).double()).item() == pytest.approx(3 * math.log(4.0))
    (program,) = (m for m in optimised if "pt_log_f64(" in str(m) and "pt_poll" in str(m))
    (run,) = (x for x in program.functions if not x.is_declaration and x.name == "run")
    inside = "".join(_blocks_in_loops(run))
    assert "pt_poll" in inside and "pt_log_f64" in str(run)
    assert "pt_log_f64" not in inside
