"""Loops and branches that take over memory do so only where nobody else can notice."""

import numpy as np
import pytest

from probtorch.compiler.explain.traffic import traffic_of
from probtorch.compiler.nests.loops import Group, Loop, Mem
from probtorch.compiler.program import NativeProgram
from probtorch.compiler.render.blocked import in_blocks
from probtorch.core.dispatch import wrap
from probtorch.core.tree import leaves
from probtorch.ops.control import cond, while_loop
from probtorch.ops.diagonals import diag_embed
from probtorch.ops.indexing import index_put
from probtorch.ops.movement import unslice

X, Y = np.arange(4.0), np.array([10.0, -1.0, 2.0, 0.5])


def repeat(n, body, *state):
    """Run ``state = body(*state)`` n times."""
    start = (wrap(np.array(0)), *state)
    return while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, *body(*s[1:])), start)[1:]


def swapped(x, y, flag):
    return cond(flag, lambda a, b: (a, b), lambda a, b: (b, a), x + 1.0, y + 1.0)


def changed_in_one_branch(x, y, flag):
    return cond(flag, lambda a, b: a, lambda a, b: a * 2.0 + b, x + 1.0, y)


def both_from_one_operand(x, y, flag):
    a = x + 1.0
    return cond(flag, lambda a: (a, a * 3.0), lambda a: (a * 2.0, a), a)


def operand_is_also_captured(x, y, flag):
    a = x + 1.0
    return cond(flag, lambda b: b, lambda b: index_put(b, (wrap(np.array(0)),), a[3]) + a, a)


def operand_twice(x, y, flag):
    a = x + 1.0
    return cond(
        flag, lambda b, c: (b, c), lambda b, c: (index_put(b, (wrap(np.array(1)),), c[2]), c), a, a
    )


def carried_twice(x, y, flag):
    a = x + 1.0
    return repeat(3, lambda b, c: (b * 2.0, c + b), a, a)


def carried_and_captured(x, y, flag):
    a = x + 1.0
    return repeat(3, lambda b: (b + a,), a)


def carried_and_used_later(x, y, flag):
    a = x + 1.0
    (b,) = repeat(3, lambda b: (b * 2.0,), a)
    return a, b


def carried_view_of_what_lives_on(x, y, flag):
    a = x + 1.0
    (b,) = repeat(2, lambda b: (b * 2.0,), a.reshape(4))
    return b, a


def loop_in_loop(x, y, flag):
    def outer(a, table):
        def inner(b, table):
            return b + 1.0, index_put(table, (wrap(np.array(2)),), b + table[0])

        b, table = repeat(2, inner, a, table)
        return b * 0.5 + a, table

    return repeat(3, outer, x + 0.0, wrap(np.zeros((3, 4))))


def branch_in_loop(x, y, flag):
    def body(a, b):
        a = a + b
        return cond(
            a.sum() > 12.0, lambda a, b: (a - 5.0, b), lambda a, b: (a, b + a * 0.125), a, b
        )

    return repeat(6, body, x + 0.0, y + 0.0)


def new_from_old(x, y, flag):
    """Each from the old elements of both, and of one that is read after the new one is there."""

    def body(a, b):
        new = a * 0.5 + b
        return new, b + (a * new).sum() * 0.25

    return repeat(3, body, x + 0.0, y + 0.0)


def read_elsewhere(x, y, flag):
    return repeat(3, lambda a, b: (a.flip(0) + b, b[1] + a), x + 0.0, y + 0.0)


def turned_round(x, y, flag):
    return repeat(5, lambda a, b, c: (b + 0.0, c * 2.0, a - 1.0), x + 0.0, y + 0.0, x * y)


def rows_and_sums(x, y, flag):
    """Rows of a table written and read at an index, beside what is carried whole."""

    def body(a, table):
        row = wrap(np.array(1)) * (a[0] > 2.0).long()
        table = index_put(table, (row,), a)
        a = a + table[row + 1]
        return a, index_put(table, (row + 1,), a * 0.5)

    return repeat(4, body, x + 0.0, wrap(np.arange(12.0).reshape(3, 4)))


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize(
    "fn",
    [
        new_from_old,
        read_elsewhere,
        turned_round,
        rows_and_sums,
        swapped,
        changed_in_one_branch,
        both_from_one_operand,
        operand_is_also_captured,
        operand_twice,
        carried_twice,
        carried_and_captured,
        carried_and_used_later,
        carried_view_of_what_lives_on,
        loop_in_loop,
        branch_in_loop,
    ],
    ids=lambda fn: fn.__name__,
)
def test_compiled_is_eager(fn, flag):
    args = wrap(X.copy()), wrap(Y.copy()), wrap(np.array(flag))
    program = NativeProgram(lambda t: fn(*t), args)
    for ours, theirs in zip(leaves(program(args)), leaves(program.eager(args)), strict=True):
        np.testing.assert_array_equal(ours.array, theirs.array)
    np.testing.assert_array_equal(args[0].array, X)


def whole_piece(x, y, flag):
    """Zeros with a piece that leaves none of them, shaped apart from the nest that computes it."""
    table = (x.unsqueeze(-1) * y).reshape(2, 2, 4)
    return unslice(table, ((0, 1, 2), (0, 1, 2), (0, 1, 4)), (2, 2, 4))


def whole_diagonal(x, y, flag):
    return diag_embed((x + y).reshape(2, 2, 1)) * 2.0


@pytest.mark.parametrize("fn", [whole_piece, whole_diagonal], ids=lambda fn: fn.__name__)
def test_numbers_that_a_copy_overwrites_do_not_come_after_it(fn):
    args = wrap(X.copy()), wrap(Y.copy()), wrap(np.array(True))
    program = NativeProgram(lambda t: fn(*t), args)
    np.testing.assert_array_equal(program(args).array, program.eager(args).array)


def random_body(seed):
    """Return a loop's body on whole numbers, which are exact: three vectors, a table, a number."""
    rng = np.random.default_rng(seed)
    steps = [(int(rng.integers(8)), *map(int, rng.integers(100, size=3))) for _ in range(9)]
    last = rng.integers(100, size=5)

    def body(a, b, c, table, n):
        vectors, numbers = [a, b, c], [n]
        for kind, i, j, k in steps:
            x, y = vectors[i % len(vectors)], vectors[j % len(vectors)]
            number = numbers[k % len(numbers)]
            row = number & 3
            if kind == 0:
                vectors.append((x + y) & 255)
            elif kind == 1:
                vectors.append((x * 3 - number) & 255)
            elif kind == 2:
                vectors.append(x.flip(0) ^ y)
            elif kind == 3:
                vectors.append(table[row] + x)
            elif kind == 4:
                table = index_put(table, (row,), x)
            elif kind == 5:
                numbers.append((x * y).sum() & 1023)
            elif kind == 6:
                numbers.append(number + x[k % 5])
            else:
                vectors.append(cond(number > 300, lambda x, y: x, lambda x, y: y + 1, x, y))
        chosen = [vectors[int(k) % len(vectors)] for k in last[:3]]
        return *chosen, table, numbers[int(last[3]) % len(numbers)] & 1023

    return body


@pytest.mark.parametrize(
    "seeds",
    [range(12), *(pytest.param(range(k, k + 50), marks=pytest.mark.slow) for k in (100, 150))],
    ids=str,
)
def test_random_loops_are_eager_ones(seeds):
    """What a loop overwrites nobody reads again, whatever reads what in which order."""
    start = [np.arange(5) * k for k in (1, 7, 31)]
    args = tuple(map(wrap, (*start, np.arange(20).reshape(4, 5), np.array(5))))
    for seed in seeds:
        body = random_body(seed)
        program = NativeProgram(lambda t, body=body: repeat(6, body, *t), args)
        for ours, theirs in zip(leaves(program(args)), leaves(program.eager(args)), strict=True):
            np.testing.assert_array_equal(ours.array, theirs.array, err_msg=f"seed {seed}")


def copies(program):
    """How many nests in the bodies of a program's loops copy whole arrays."""
    loops = [s for s in program.program.lowering.block.walk() if isinstance(s, Loop)]
    return sum(
        item.kind == "store" and isinstance(item.operands[0], Mem)
        for loop in loops
        for s in loop.body.walk()
        if isinstance(s, Group)
        for item in s.items
    )


def test_a_step_copies_nothing_that_it_need_not():
    """Leapfrog writes to the memory it reads; turned round, what is carried has to be copied."""

    def leapfrog(q, p):
        return repeat(5, lambda q, p: (q + 0.1 * p, p - 0.1 * (q + 0.1 * p)), q + 0.0, p + 0.0)

    args = wrap(X.copy()), wrap(Y.copy())
    assert copies(NativeProgram(lambda t: leapfrog(*t), args)) == 0
    assert copies(NativeProgram(lambda t: swap_in_turns(*t), args)) > 0


def swap_in_turns(x, y):
    return repeat(5, lambda a, b: (b, a), x + 0.0, y + 0.0)


@pytest.mark.parametrize("index", [np.array(1), np.arange(200) % 3], ids=["row", "elements"])
def test_only_indices_that_vary_make_blocks(index):
    """A row of a table is read as any array; of two rows each is counted."""

    def fn(t):
        table, i, j = t
        x = table[:, 0] if index.ndim else table
        return (x[i] * 2.0 + x[j]).sin() + 1.0

    table = np.random.default_rng(0).standard_normal((3, 200))
    args = wrap(table), wrap(index), wrap(2 - index)
    program = NativeProgram(fn, args)
    low = program.program.lowering
    (nest,) = [s for s in low.block.walk() if isinstance(s, Group) and s.domain]
    assert in_blocks(nest) == bool(index.ndim)
    if not index.ndim:
        assert traffic_of(nest, low).read == 8 * (2 * 200 + 2)
    np.testing.assert_allclose(program(args).array, program.eager(args).array, rtol=1e-14)


@pytest.mark.parametrize("heavy", [True, False], ids=["logarithm", "sum"])
def test_one_logarithm_beside_a_scattered_store_has_a_loop_of_its_own(heavy):
    """A loop that scatters does not vectorise: a sum is as quick in it, a logarithm is not."""

    def fn(t):
        table, index = t
        x = table[index]
        x = (x + 1.0).log() if heavy else x + 1.0
        return x, index_put(table * 0.0, (index,), x, accumulate=True)

    args = wrap(np.arange(200.0)), wrap(np.arange(500) % 200)
    program = NativeProgram(fn, args)
    nests = [s for s in program.program.lowering.block.walk() if isinstance(s, Group) and s.domain]
    indexed = [n for n in nests if any(i.kind == "gather" for i in n.items)]
    assert len(indexed) == 1 and in_blocks(indexed[0]) == heavy
    for got, expected in zip(program(args), program.eager(args), strict=True):
        np.testing.assert_allclose(got.array, expected.array, rtol=1e-14)
