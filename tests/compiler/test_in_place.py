"""Updates that loop nests write to the tensors themselves: which are, and that none shows."""

import threading

import numpy as np
import pytest

from probtorch.compiler.compile import compile
from probtorch.compiler.graph import Graph
from probtorch.compiler.paths import CompileWarning
from probtorch.compiler.run.executor import CpuProgram
from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.ops.control import while_loop
from probtorch.tensor import tensor

NUMBERS = np.random.default_rng(4).standard_normal((6, 40))


def states():
    return [tensor(row.reshape(8, 5)) for row in NUMBERS[:3]]


def adam(w, m, v, g):
    m.mul_(0.9).add_(g * 0.1)
    v.mul_(0.99).add_(g * g * 0.01)
    w.sub_(0.1 * m / (v.sqrt() + 1e-8))
    return g.sum()


def swap(w, m, v, g):
    old = w.clone()
    w.copy_(m)
    m.copy_(old)
    return old * g


def reads_afterwards(w, m, v, g):
    old = w * 3.0
    w.add_(g)
    return old.sum(), (w * g).sum(dim=0), (w @ g.T).sum()


def reads_elsewhere(w, m, v, g):
    w.copy_(w.flip(0) + g)
    m.sub_(m.sum(dim=0) * g)
    v.add_(w @ m.T @ v)
    return w[1:].sum() + v[0].sum()


def gathers(w, m, v, g):
    rows = w[tensor([7, 1, 1, 0, 2, 3, 4, 5])]
    w.mul_(2.0).add_(rows)
    return rows.sum()


def several(w, m, v, g):
    """Each from the old elements of all."""
    a, b, c = w + m * g, m + v * g, v + w * g
    w.copy_(a)
    m.copy_(b)
    v.copy_(c)
    return a.sum() + (b * c).sum()


def twice(w, m, v, g):
    w.add_(g)
    total = w.sum()
    w.mul_(total)
    m.add_(w)
    return w - m


def loops(w, m, v, g):
    """A loop that reads what is updated by a nest that could stand before it."""
    first = g * 2.0

    def turn(state):
        i, total = state
        return i + 1, total + (w * 0.1).sum() * w[0, 0]

    _, total = while_loop(lambda state: state[0] < 3, turn, (as_tensor(0), g.sum()))
    w.add_(first)
    m.mul_(total).add_(w * first)
    return total + (w * m).sum()


def numbers(w, m, v, g):
    for x in (w, m, v):
        x.sub_(x[0, 0])
    return w.sum()


PROGRAMS = (adam, swap, reads_afterwards, reads_elsewhere, gathers, several, twice, loops, numbers)
PLACED = {"adam": 3, "reads_afterwards": 1, "several": 3}


def in_place(compiled):
    """How many updates of each path are in place."""
    return [len(path.program.plan.in_place) for path in compiled.paths]


def leaves(result):
    return [x.numpy() for x in (result if isinstance(result, tuple) else (result,))]


def stepped(program, mine):
    """Compile a program on tensors `mine`; call it, and compare each call with the eager one."""
    theirs = states()
    compiled = compile(lambda g: program(*mine, g))
    for row in NUMBERS[3:]:
        g = tensor(row.reshape(8, 5))
        for a, b in zip(leaves(compiled(g)), leaves(program(*theirs, g)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)
        for a, b in zip(mine, theirs, strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-12, atol=1e-13)
    return compiled


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_updates_equal_those_of_the_eager_run(program):
    compiled = stepped(program, states())
    assert compiled.reason is None
    if program.__name__ in PLACED:
        assert in_place(compiled) == [PLACED[program.__name__]]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_tensors_that_are_not_contiguous_are_updated_too(program):
    mine = states()
    mine[0] = wrap(np.asfortranarray(mine[0].numpy()))
    compiled = stepped(program, mine)
    assert compiled.reason is None
    assert not mine[0].array.flags.c_contiguous


def test_a_guard_that_fails_after_an_update_undoes_it():
    def step(w, x):
        w.add_(x)
        if w.sum() > 4.0:
            w.mul_(0.5)
            return w.sum() if w[0] > 1.0 else -w.sum()
        return w.prod()

    mine, theirs = tensor(np.ones(3)), tensor(np.ones(3))
    compiled = compile(lambda x: step(mine, x))
    for x in (0.1, 0.1, 2.0, 0.2, -3.0, 0.1, 5.0, 5.0, 1.0, [0.0, 9.0, 0.0], 0.1, 0.1):
        x = tensor(np.broadcast_to(np.asarray(x, float), (3,)).copy())
        np.testing.assert_allclose(compiled(x).numpy(), step(theirs, x).numpy(), rtol=1e-14)
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-14)
    assert len(compiled.paths) == 3
    assert in_place(compiled) == [1, 1, 1]
    assert "call void @undo(" in compiled.source()


def test_an_index_out_of_bounds_after_an_update_leaves_what_the_eager_run_leaves():
    w, table = tensor(np.zeros(4)), tensor(np.arange(5.0))

    @compile
    def step(i):
        w.add_(1.0)
        return table[i].sum()

    good, bad = tensor(np.array([1, 4])), tensor(np.array([1, 5]))
    step(good)
    assert step(good).item() == 5.0
    np.testing.assert_array_equal(w.numpy(), 2.0)
    with pytest.raises(IndexError):
        step(bad)
    np.testing.assert_array_equal(w.numpy(), 3.0)


def test_a_step_can_be_taken_back_from_what_was_there_before():
    mine = states()
    compiled = compile(lambda g: adam(*mine, g))
    compiled.saving = True
    for row in NUMBERS[3:]:
        before = [x.numpy().copy() for x in mine]
        compiled(tensor(row.reshape(8, 5)))
        path = compiled.last or compiled.recorded
        after = [x.numpy().copy() for x in mine]
        path.restore()
        for x, held in zip(mine, before, strict=True):
            np.testing.assert_array_equal(x.numpy(), held)
        for x, held in zip(mine, after, strict=True):
            x.copy_(tensor(held))


def test_a_run_that_fails_does_not_touch_what_was_there_before_the_last_one():
    w = tensor(np.zeros(4))

    def step(x):
        w.add_(x)
        return w * 2.0 if w.sum() > 0.0 else w * 3.0

    compiled = compile(step)
    compiled.saving = True
    one = tensor(np.ones(4))
    for _ in range(3):
        compiled(one)
    path = compiled.last
    assert path.run([np.full(4, -9.0)]) is None  # its guard fails
    np.testing.assert_array_equal(w.numpy(), 3.0)
    path.restore()
    np.testing.assert_array_equal(w.numpy(), 2.0)


def test_runs_of_another_thread_that_all_fail_leave_what_was_there_before_the_last_one():
    w, m = tensor(np.zeros(4)), tensor(np.zeros(4))

    def step(x):
        w.add_(x)
        m.copy_(m.flip(0) + 1.0)
        return w.sum() if w.sum() > 0.0 else w.prod()

    compiled = compile(step)
    compiled.saving = True
    for _ in range(3):
        compiled(tensor(np.ones(4)))
    path, done = compiled.last, []
    thread = threading.Thread(target=lambda: done.append(path.repeat([np.full(4, -9.0)], 5)[0]))
    thread.start()
    thread.join()
    assert len(done[0]) == 0
    for x in (w, m):
        np.testing.assert_array_equal(x.numpy(), 3.0)
    path.restore()
    for x in (w, m):
        np.testing.assert_array_equal(x.numpy(), 2.0)


def test_a_tensor_of_which_only_an_empty_part_is_read_may_be_updated():
    w = tensor(np.ones(5))

    @compile
    def step(x):
        nothing = w[:0].sum()
        w.copy_(x * 2.0)
        return nothing

    for k in (1.0, 3.0, 5.0):
        assert step(tensor(np.full(5, k))).item() == 0.0
        np.testing.assert_array_equal(w.numpy(), 2.0 * k)
    assert step.reason is None


def test_a_tensor_that_is_only_written_may_be_given_other_memory():
    w = tensor(np.zeros(3))

    @compile
    def step(x):
        w.copy_(x * 2.0)
        return x.sum()

    x = tensor(np.ones(3))
    for _ in range(2):
        step(x)
    for new in (np.zeros(3), np.zeros(6)[::2]):
        w.data = wrap(new)
        for _ in range(2):
            w.zero_()
            step(x)
            np.testing.assert_array_equal(w.numpy(), 2.0)
    assert step.reason is None


@pytest.mark.filterwarnings("ignore::probtorch.compiler.paths.CompileWarning")
@pytest.mark.parametrize("k", range(3))
def test_tensors_that_come_to_share_memory_are_updated_as_in_the_eager_run(k):
    def step(w, m, v, x):
        w.add_(x)
        m.copy_(x * 3.0)
        return (v * 2.0).sum() + v[0]

    mine, theirs = states(), states()
    compiled = compile(lambda x: step(*mine, x))
    g = tensor(NUMBERS[3].reshape(8, 5))
    for i in range(5):
        if i == 2:
            for found in (mine, theirs):
                found[k].data = found[k - 1]
        np.testing.assert_allclose(compiled(g).numpy(), step(*theirs, g).numpy(), rtol=1e-12)
        for a, b in zip(mine, theirs, strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-12)


@pytest.mark.parametrize("part", [lambda w: w[::2], lambda w: w.T[::2].T, lambda w: w[1::2]])
def test_an_argument_with_gaps_that_shares_memory_with_an_updated_tensor_runs_eagerly(part):
    w, other = tensor(np.zeros((4, 4))), tensor(np.zeros((4, 4)))

    def step(x):
        w.add_(1.0)
        return x * 2.0

    compiled = compile(step)
    for _ in range(2):
        compiled(part(other))
    assert compiled.paths
    with pytest.warns(CompileWarning, match="shares"):
        y = compiled(part(w))
    np.testing.assert_array_equal(y.numpy(), np.full(y.shape, 6.0))


def test_profiling_changes_no_tensor():
    mine = states()
    compiled = compile(lambda g: adam(*mine, g))
    g = tensor(NUMBERS[3].reshape(8, 5))
    for _ in range(2):
        compiled(g)
    before = [x.numpy().copy() for x in mine]
    assert "nest" in str(compiled.explain(profile=True))
    for x, held in zip(mine, before, strict=True):
        np.testing.assert_array_equal(x.numpy(), held)


@pytest.mark.parametrize("target", [0, 1])
def test_which_tensor_is_updated_is_part_of_what_the_cache_knows(target, monkeypatch, tmp_path):
    monkeypatch.setenv("PROBTORCH_CACHE_DIR", str(tmp_path))

    def run(k):
        two = [tensor(np.ones(70)), tensor(np.full(70, 2.0))]

        def step():
            total = two[0] + two[1] * 3.0
            two[k].copy_(total)
            return total.sum()

        compiled = compile(step)
        compiled()
        compiled()
        (path,) = compiled.paths
        return [x.numpy()[0] for x in two], path.program

    want = [[13.0, 2.0], [1.0, 22.0]]
    assert run(1 - target)[0] == want[1 - target]
    got, first = run(target)
    assert got == want[target]
    assert not first.from_cache
    got, again = run(target)
    assert got == want[target]
    assert again.from_cache
    assert again.plan.in_place == first.plan.in_place == [1]


def test_large_updates_in_place_are_shared_by_threads():
    w, m = tensor(np.zeros(400_000)), tensor(np.ones(400_000))

    @compile
    def step(x):
        m.mul_(0.5).add_(x)
        w.sub_(m.exp().sqrt().log())
        return x.sum()

    for _ in range(3):
        step(tensor(1.0))
    m_now, w_now = 1.0, 0.0
    for _ in range(3):
        m_now = m_now * 0.5 + 1.0
        w_now -= 0.5 * m_now
    np.testing.assert_allclose(m.numpy(), m_now, rtol=1e-14)
    np.testing.assert_allclose(w.numpy(), w_now, rtol=1e-13)
    (path,) = step.paths
    assert path.program.plan.in_place
    parts = [s.parts for s in path.program.lowering.block.statements if getattr(s, "parts", None)]
    assert parts


def test_threads_that_go_different_ways_lose_no_update():
    w = tensor(np.zeros(20_000))

    @compile
    def step(x):
        w.add_(x)
        return w.sum() if x[0] > 0.0 else -w.sum()

    signs = [tensor(np.full(20_000, k)) for k in (1.0, -1.0)]
    for x in signs * 2:
        step(x)

    def work(x):
        for _ in range(1000):
            step(x)

    threads = [threading.Thread(target=work, args=(x,)) for x in signs * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(w.numpy(), 0.0)


def test_a_graph_without_updates_has_none_in_place():
    program = CpuProgram(Graph())
    assert program.plan.in_place == []
