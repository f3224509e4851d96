"""Loops and branches that take over memory do so only where nobody else can notice."""

import numpy as np
import pytest

from probtorch.compiler.program import NativeProgram
from probtorch.core.dispatch import wrap
from probtorch.core.tree import leaves
from probtorch.ops.control import cond, while_loop
from probtorch.ops.indexing import index_put

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


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize(
    "fn",
    [
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
