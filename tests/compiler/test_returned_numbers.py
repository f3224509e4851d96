"""Numbers that a training step only returns are results; others are guards, up to a limit.

Also what of Python around a step decides whether it is recorded anew.
"""

import functools
import math
import runpy

import pytest

import probtorch
from probtorch import nn
from probtorch.compiler.paths import CompileWarning
from probtorch.core.tree import flatten
from probtorch.errors import CompileError
from probtorch.nn import functional as F
from probtorch.testing import assert_close

# A global with the name of a method, which changes all the time.
mean: list[int] = []


class Step:
    """A network, its optimizer, and a step in several spellings."""

    def __init__(self):
        probtorch.manual_seed(0)
        self.net = nn.Linear(3, 1)
        self.optimizer = probtorch.optim.SGD(self.net.parameters(), lr=0.1)

    def loss(self, x):
        self.optimizer.zero_grad()
        out = self.net(x)
        loss = (out * out).mean()
        loss.backward()
        self.optimizer.step()
        return loss, out

    def returned(self, x):
        return self.loss(x)[0].item()

    def in_containers(self, x):
        loss, out = self.loss(x)
        value = loss.item()
        return {"loss": value, "positive": (out > 0).sum().item(), "shape": 3}, [float(loss)]

    def used(self, x):
        value = self.loss(x)[0].item()
        return value + 1.0

    def decides(self, x):
        value = self.loss(x)[0].item()
        if value > 1e9:
            return -1.0
        return value


def leaves(result):
    return flatten(result)[0]


def calls(name, count=14):
    """Compare a step with itself compiled; returns the compiled function."""
    eager, other = Step(), Step()
    compiled = probtorch.compile(getattr(other, name))
    rng = probtorch.Generator().manual_seed(1)
    for _ in range(count):
        x = probtorch.randn(4, 3, generator=rng)
        found, expected = compiled(x), getattr(eager, name)(x)
        if isinstance(expected, float):
            assert type(found) is float
            assert found == pytest.approx(expected, rel=1e-5)
        else:
            (found, (last,)), (expected, (same,)) = found, expected
            assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)
            assert last == pytest.approx(same, rel=1e-5)
            assert type(found["positive"]) is int
            assert (found["positive"], found["shape"]) == (expected["positive"], 3)
    assert_close(other.net.weight, eager.net.weight)
    return compiled


@pytest.mark.parametrize("name", ["returned", "in_containers"])
def test_a_number_that_is_only_returned_needs_no_guard(name):
    compiled = calls(name)
    assert len(compiled.paths) == 1 and "guard" not in compiled.explain()


@pytest.mark.parametrize("name", ["used", "decides"])
def test_a_number_that_is_used_is_guarded_and_given_up_after_eight(name):
    with pytest.warns(CompileWarning, match="more than 8 different numbers"):
        compiled = calls(name)
    assert len(compiled.paths) == 8


def test_what_a_wrapper_is_returned_is_guarded():
    # Whoever calls the function may use what it returns.
    def inner(x):
        return x.sum().item()

    @probtorch.compile
    def outer(x):
        return x * 2.0 if inner(x) > 0 else x

    one = probtorch.ones(2)
    for x in (one, one, -one, -one):
        assert_close(outer(x), x * 2.0 if float(x.sum()) > 0 else x)


def root(x):
    return math.sqrt(x.sum())


def whole(x):
    return int(x.sum())


def imaginary(x):
    return complex(x.sum())


def before_a_change(x):
    y = x * 1.0
    value = y[0].item()
    y.add_(1.0)
    return value, y


def of_lists(x):
    return [float(x.max()), x.sum(dim=0, keepdim=True).item()], {"n": (x > 2.0).sum().item()}


def shadowed(x, float=lambda x: x.item() * 2.0):
    return float(x.sum())


def joined(x, y):
    return (x + y).sum().item()


def folded(x):
    return functools.reduce(joined, [x, x, x])


@pytest.mark.parametrize(
    "fn", [root, whole, imaginary, before_a_change, of_lists, shadowed, folded, "reduce"]
)
def test_numbers_are_those_of_eager_calls(fn):
    # Nothing is verified: a number that was kept from the first call would stay.
    if fn == "reduce":
        fn = functools.partial(functools.reduce, joined)
    compiled = probtorch.compile(fn, verify=False)
    for i in range(4):
        x = probtorch.tensor([1.0, 2.0, 3.0]) * (i + 0.5)
        given = [x, x, x] if isinstance(fn, functools.partial) else x
        for found, expected in zip(leaves(compiled(given)), leaves(fn(given)), strict=True):
            assert type(found) is type(expected)
            assert_close(found, expected)


def test_a_source_that_has_changed_since_is_not_believed(tmp_path):
    path = tmp_path / "steps.py"
    used = "def step(x):\n    v = x.sum().item()\n    w = x * v\n    return v, w\n"
    path.write_text(used)
    names = runpy.run_path(str(path))
    path.write_text(used.replace("x * v", "x * 1"))
    step = probtorch.compile(names["step"], verify=False)
    for i in range(4):
        x = probtorch.tensor([1.0, 2.0]) * (i + 1.0)
        assert_close(step(x)[1], x * (3.0 * (i + 1.0)))


def test_an_attribute_is_not_taken_for_a_global_of_its_name():
    compiled = probtorch.compile(lambda x: x.mean() * 2.0)
    for i in range(4):
        assert_close(compiled(probtorch.ones(3) * i), probtorch.tensor(2.0 * i))
        mean.append(i)
    mean.clear()
    assert len(compiled.paths) == 1


def test_what_changes_ahead_of_every_call_is_named_and_leaves_the_function_eager():
    class Trainer(Step):
        history = None

        def fit(self, count):
            self.history = []
            step = probtorch.compile(self.step)
            for i in range(count):
                step(probtorch.ones(2, 3) * (i % 3))
                self.history.append(i)
            return step

        def step(self, x):
            return self.loss(x)[0].detach() * (1.0 if self.history is not None else 2.0)

    with pytest.warns(CompileWarning, match="history, a list"):
        step = Trainer().fit(14)
    assert step.reason is not None and len(step.paths) < 12


def test_a_step_that_looks_whether_its_gradients_are_finite_is_one_path():
    def step(x):
        s.optimizer.zero_grad()
        s.net(x).square().mean().backward()
        norm = nn.utils.clip_grad_norm_(s.net.parameters(), 0.1, error_if_nonfinite=True)
        s.optimizer.step()
        return norm

    s = Step()
    compiled = probtorch.compile(step)
    for i in range(5):
        compiled(probtorch.ones(2, 3) * (i + 1.0))
    assert len(compiled.paths) == 1


def test_a_step_may_write_to_data_in_place():
    def step(x):
        loss = F.mse_loss(net(x), x[:, :1])
        loss.backward()
        for p in net.parameters():
            p.data -= 0.1 * p.grad.data
            p.grad = None
        return loss.item()

    results = []
    for wrap in (lambda f: f, probtorch.compile):
        net = Step().net
        run = wrap(step)
        results.append([run(probtorch.ones(2, 3)) for _ in range(5)])
    assert_close(results[1], results[0])
    assert run.reason is None and len(run.paths) == 1


def test_keywords_of_pytorch_are_taken_and_fullgraph_refuses_eager_calls():
    f = probtorch.compile(lambda x: x * 2.0, mode="max-autotune", dynamic=True, backend="eager")
    assert_close(f(probtorch.ones(2)), 2.0 * probtorch.ones(2))
    assert probtorch.compile(len, disable=True) is len

    @probtorch.compile(fullgraph=True)
    def chosen(x):
        return x[x > 0]

    for _ in range(2):
        with pytest.raises(CompileError, match=r"nonzero.*\n.*fullgraph=True"):
            chosen(probtorch.ones(2))

    @probtorch.compile(fullgraph=True)
    def power(x, n):
        return x**n

    for n in range(8):
        power(probtorch.ones(2), n)
    for n in (8, 9):
        with pytest.raises(CompileError, match="values of numbers"):
            power(probtorch.ones(2), n)
