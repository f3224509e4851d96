"""`NativeProgram`: loops and branches inside each other, against the same program run eagerly."""

import threading

import numpy as np
import pytest

import probtorch
from probtorch.compiler.program import NativeProgram
from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.core.tree import flatten, record
from probtorch.errors import CompileError, ShapeError
from probtorch.ops.control import cond, while_loop
from probtorch.ops.random_numbers import bits_to_uniform, philox

X, Y = np.array([1.0, -2.0, 3.0, 0.5]), np.array([0.25, 4.0, -1.0, 2.0])


def arrays(tree):
    return [np.array(as_tensor(x).array) for x in flatten(tree)[0]]


def tree_of(*values):
    return tuple(wrap(np.array(v)) for v in values)


def assert_native_is_eager(fn, *trees):
    """Compile `fn` for the first tree and compare on all of them, twice over."""
    native = NativeProgram(fn, trees[0])
    for tree in (*trees, *trees):
        before = arrays(tree)
        got, expected = arrays(native(tree)), arrays(native.eager(tree))
        for a, b in zip(got, expected, strict=True):
            assert a.dtype == b.dtype and a.shape == b.shape
            np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-300)
        for a, b in zip(before, arrays(tree), strict=True):
            assert a.tobytes() == b.tobytes(), "an argument was changed"
    return native


def repeat(times, body, *state):
    """Return the state after ``state = body(i, *state)`` for i < times."""
    start = (as_tensor(0), *state)
    done = while_loop(lambda s: s[0] < times, lambda s: (s[0] + 1, *body(*s)), start)
    return done[1:]


# ----------------------------------------------------------------------------------------- carries


def test_carries_swap_and_rotate():
    def fn(tree):
        x, y, n = tree
        swapped = repeat(n, lambda i, a, b: (b, a * 0.5), x, y)
        rotated = repeat(n, lambda i, a, b, c: (c, a, b + 1.0), x, y, x + y)
        return swapped, rotated

    assert_native_is_eager(fn, *(tree_of(X, Y, n) for n in (0, 1, 2, 3, 7)))


def test_a_carry_may_become_a_view_of_another():
    def fn(tree):
        x, y, n = tree
        return repeat(n, lambda i, a, b: (b.flip(0), a[1:2].expand(4) + b), x, y)

    assert_native_is_eager(fn, *(tree_of(X, Y, n) for n in (0, 1, 2, 5)))


def test_a_carry_may_become_a_constant_a_captured_value_or_its_old_self():
    def fn(tree):
        x, y, n = tree
        twice = y * 2.0
        return repeat(n, lambda i, a, b, c: (b, twice, probtorch.ones_like(c) * 7.0), x, y, x)

    assert_native_is_eager(fn, *(tree_of(X, Y, n) for n in (0, 1, 2, 4)))


@pytest.mark.parametrize("dtype", ["bool", "int64", "int32", "int8", "uint8", "float32"])
def test_carries_of_every_dtype(dtype):
    def fn(tree):
        x, n = tree
        flip = (lambda a: ~a) if dtype == "bool" else (lambda a: a * 3 + 1)
        return repeat(n, lambda i, a: (flip(a),), x)

    start = np.array([0, 1, 1, 0] if dtype == "bool" else [1, 2, 3, 100], dtype)
    assert_native_is_eager(fn, *(tree_of(start, n) for n in (0, 1, 2, 9)))


def test_a_boolean_carry_ends_its_loop():
    def fn(tree):
        x, limit = tree

        def body(s):
            _, i, total = s
            total = total + x[i % 4].abs()
            return total < limit, i + 1, total

        return while_loop(lambda s: s[0], body, (as_tensor(True), as_tensor(0), x.sum() * 0.0))

    assert_native_is_eager(fn, *(tree_of(X, limit) for limit in (0.0, 5.0, 40.0)))


# ------------------------------------------------------------------------------------ in-place work


def test_carried_arrays_are_updated_in_place():
    def fn(tree):
        x, n = tree

        def body(i, h, seen):
            h[i % 4] = h[(i + 1) % 4] * 0.5 + 1.0
            h[1:3] = h[0:2]
            seen[i % 3] += 1
            return h, seen

        return repeat(n, body, x, probtorch.zeros(3, dtype=probtorch.int64))

    assert_native_is_eager(fn, *(tree_of(X, n) for n in (0, 1, 2, 11)))


def test_two_names_of_one_array_do_not_see_each_others_updates():
    def fn(tree):
        x, n = tree
        both = x * 1.0

        def body(i, a, b):
            a[i % 4] = -1.0
            return a, b + a.sum()

        return repeat(n, body, both, both), both

    assert_native_is_eager(fn, *(tree_of(X, n) for n in (0, 1, 3)))


def test_a_branch_may_update_what_it_is_given():
    def fn(tree):
        x, flag = tree

        def update(a):
            a[0] = 9.0
            return a

        y = x + 1.0
        return cond(flag, update, lambda a: a * 2.0, y), y

    assert_native_is_eager(fn, tree_of(X, True), tree_of(X, False))


# ------------------------------------------------------------------------------------------ nesting


def three_deep(tree):
    x, n = tree

    def innermost(s):
        k, a, best = s
        a = cond(a.sum() > 2.0, lambda v: v * 0.5, lambda v: v + 0.75, a)
        return k + 1, a, probtorch.maximum(best, a.amax())

    def middle(s):
        j, a, best, count = s
        _, a, best = while_loop(lambda t: t[0] < j, innermost, (as_tensor(0), a, best))
        return j + 1, a, best, cond(best > 3.0, lambda c: c + 1, lambda c: c, count)

    def outer(s):
        i, a, best, count = s
        state = (as_tensor(0), a, best * 0.9, count)
        _, a, best, count = while_loop(lambda t: t[0] < i + 2, middle, state)
        return i + 1, a, best, count

    return while_loop(lambda s: s[0] < n, outer, (as_tensor(0), x, x.amax(), as_tensor(0)))


def test_loops_and_branches_three_deep():
    assert_native_is_eager(three_deep, *(tree_of(X, n) for n in (0, 1, 2, 5)))


def test_branches_three_deep():
    def fn(tree):
        x, a, b, c = tree

        def deepest(y):
            return cond(c, lambda z: z * x, lambda z: z - x, y)

        def deeper(y):
            return cond(b, lambda z: deepest(z) + 1.0, lambda z: z.flip(0), y)

        return cond(a, deeper, lambda z: deepest(z * 3.0), x)

    flags = [(a, b, c) for a in (True, False) for b in (True, False) for c in (True, False)]
    assert_native_is_eager(fn, *(tree_of(X, *f) for f in flags))


def test_inner_bodies_capture_from_every_level():
    table = wrap(np.arange(12.0).reshape(3, 4))

    def fn(tree):
        x, y, n = tree
        shift = x * y

        def outer(i, a):
            half = a * 0.5

            def inner(j, b):
                return (b + half + shift * table[j] + x,)

            return repeat(as_tensor(3), inner, a)

        return repeat(n, outer, y)

    assert_native_is_eager(fn, *(tree_of(X, Y, n) for n in (0, 1, 4)))


def test_a_value_is_read_again_after_the_loop_that_took_it():
    def fn(tree):
        x, n = tree
        y = x * 2.0
        view = y[::2]
        (z,) = repeat(n, lambda i, a: (a + 1.0,), y)
        return y, view, z, y.sum() + z.sum()

    assert_native_is_eager(fn, *(tree_of(X, n) for n in (0, 3)))


def test_matrix_products_reductions_and_gathers_in_a_body():
    def fn(tree):
        a, v, order, n = tree

        def body(i, w):
            w = (a @ w)[order]
            return (w / (w * w).sum().sqrt(),)

        return repeat(n, body, v)

    rng = np.random.default_rng(0)
    a, order = rng.standard_normal((4, 4)), np.array([2, 0, 3, 1])
    assert_native_is_eager(fn, *(tree_of(a, X, order, n) for n in (0, 1, 30)))


def test_counters_make_random_numbers_in_a_loop():
    def fn(tree):
        seed, counter, n = tree

        def body(i, counter, total):
            u = bits_to_uniform(philox(seed, as_tensor(3), counter))
            return counter + 1, total + u

        return repeat(n, body, counter, as_tensor(np.float64(0.0)))

    native = assert_native_is_eager(fn, *(tree_of(7, c, n) for c, n in ((0, 5), (5, 0), (9, 20))))
    (_, first), (_, second) = native(tree_of(7, 0, 5)), native(tree_of(7, 5, 5))
    assert 0.0 < float(first) < 5.0 and float(first) != float(second)


# ------------------------------------------------------------------------------ trees and messages


@record
class State:
    position: object
    count: object


def test_records_dicts_and_lists_come_back_as_they_were():
    def fn(tree):
        s = tree["state"]
        return {"state": State(s.position * 2.0, s.count + 1), "more": [tree["x"], (s.count,)]}

    native = NativeProgram(fn, {"state": State(wrap(X), as_tensor(1)), "x": wrap(Y)})
    out = native({"state": State(wrap(Y), as_tensor(5)), "x": wrap(X)})
    assert type(out["state"]) is State and list(out) == ["state", "more"]
    np.testing.assert_array_equal(out["state"].position.array, Y * 2.0)
    assert int(out["state"].count) == 6 and int(out["more"][1][0]) == 5


def test_other_shapes_are_refused_with_both_named():
    native = NativeProgram(lambda tree: tree[0] * 2.0, tree_of(X))
    with pytest.raises(ShapeError, match=r"leaf 0 of shape \(4,\)(.|\n)*got: +shape \(3,\)"):
        native(tree_of(X[:3]))


def test_a_python_branch_on_a_tensor_is_refused_with_the_cure():
    with pytest.raises(CompileError, match=r"write the branch with probtorch\.cond"):
        NativeProgram(lambda tree: tree[0] if tree[0].sum() > 0 else -tree[0], tree_of(X))


def test_a_draw_from_a_generator_is_refused():
    with pytest.raises(CompileError, match="a draw from a Generator"):
        NativeProgram(lambda tree: tree[0] + probtorch.randn(4), tree_of(X))


def test_an_index_out_of_bounds_is_an_error_and_not_memory():
    native = NativeProgram(lambda tree: tree[0][tree[1]], tree_of(X, 2))
    assert float(native(tree_of(X, -1))) == 0.5
    for bad in (4, -5, 2**40):
        with pytest.raises(CompileError, match="indices within bounds"):
            native(tree_of(X, bad))
    assert float(native(tree_of(X, 0))) == 1.0


def test_the_example_is_not_changed_by_compiling():
    example = tree_of(X, 3)

    def fn(tree):
        x, n = tree
        x[0] = 100.0
        return repeat(n, lambda i, h: (probtorch.index_put(h, [i], as_tensor(0.0)),), x)

    NativeProgram(fn, example)
    np.testing.assert_array_equal(example[0].array, X)


def test_results_go_into_arrays_that_are_given():
    native = NativeProgram(lambda tree: (tree[0] + tree[1], tree[0].sum()), tree_of(X, Y))
    rows, totals = np.zeros((3, 4)), np.zeros(3)
    for i in range(2):
        native.into(tree_of(X, i * Y), [rows[i], totals[i : i + 1].reshape(())])
    np.testing.assert_array_equal(rows, [X, X + Y, 0.0 * X])
    np.testing.assert_array_equal(totals, [X.sum(), X.sum(), 0.0])
    # Frames of other devices have results of their own, which are brought home.
    native._own_frame.entry = None
    native.into(tree_of(X, 2.0 * Y), [rows[2], totals[2:].reshape(())])
    np.testing.assert_array_equal(rows[2], X + 2.0 * Y)
    with pytest.raises(ShapeError):
        native.into(tree_of(X[:3], Y[:3]), [rows[2], totals[2:].reshape(())])


@pytest.mark.parametrize("size, inlined", [(4, 5), (300, 3)], ids=str)
def test_small_nests_in_loops_within_loops_are_inlined_in_long_programs(size, inlined):
    def inner(count, y):
        # A sum, and what reads it; the rest is numbers: how many turns there were, the last one.
        return repeat(count, lambda _, z: (z / (1.0 + z.square().sum()),), y)

    def fn(tree):
        x, count = tree
        # Each reads all that the one before has written: nests of their own.
        for _ in range(15):
            x = x / x.square().sum().sqrt()
        return repeat(count, lambda _, y: inner(count, y), x)

    x = np.random.default_rng(0).normal(size=size)
    native = assert_native_is_eager(fn, tree_of(x, 3))
    nests = [line for line in native.program.ir.splitlines() if "void @nest" in line]
    nests = [line for line in nests if line.startswith("define")]
    assert len(nests) > 24
    assert len([line for line in nests if "noinline" not in line]) == inlined


def test_nests_with_calls_that_are_in_no_loop_are_not_inlined_in_long_programs():
    def fn(tree):
        (x,) = tree
        for _ in range(30):
            x = x.exp() / x.exp().sum()
        return x

    native = assert_native_is_eager(fn, tree_of(np.linspace(-1.0, 1.0, 4)))
    heads = [line for line in native.program.ir.splitlines() if line.startswith("define")]
    nests = [line for line in heads if "void @nest" in line]
    assert len(nests) > 24
    assert all("noinline" in line for line in nests)


def test_several_threads_run_with_memory_of_their_own():
    native = NativeProgram(three_deep, tree_of(X, 3))
    expected = arrays(native.eager(tree_of(Y, 4)))
    wrong = []

    def work():
        bound = native.bind()
        for _ in range(200):
            got = arrays(bound(tree_of(Y, 4)))
            if not all(np.allclose(a, b, rtol=1e-13) for a, b in zip(got, expected, strict=True)):
                wrong.append(got)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
