"""What shares a loop: statements are counted, not timed."""

import re

import numpy as np
import pytest

import probtorch
from probtorch.compiler.compile import compile
from probtorch.compiler.density import NativeDensity
from probtorch.compiler.nests.loops import Branch, Call, Group, Loop, Mem
from probtorch.compiler.program import NativeProgram
from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.ops.control import cond, while_loop
from probtorch.ops.exponentials import softplus

RNG = np.random.default_rng(0)


def groups(block):
    """The loop nests of a block that hold any work."""
    return [s for s in block.statements if isinstance(s, Group) and s.items]


def items(block):
    """Names of the items of each nest of a block."""
    return [[i.node.name if i.node else i.kind for i in g.items] for g in groups(block)]


def statements(block, kind):
    return [s for s in block.statements if isinstance(s, kind)]


def density_block(fn, dim):
    density = NativeDensity(fn, dim)
    density.value_and_grad(np.linspace(0.1, 0.5, dim))
    assert density.reason is None
    return density.paths[0].lowering.block


def compiled_block(fn, *arrays):
    compiled = compile(fn)
    compiled(*(wrap(a) for a in arrays))
    assert compiled.reason is None
    return compiled.paths[0].program.lowering.block


# ------------------------------------------------------------------------------------- densities


def test_eight_schools_is_three_nests():
    y = wrap(np.array([28.0, 8, -3, 7, -1, 1, 18, 12]))
    sigma = wrap(np.array([15.0, 10, 16, 11, 9, 11, 10, 18]))

    def eight_schools(q):
        mu, log_tau, z = q[0], q[1], q[2:]
        tau = log_tau.exp()
        prior = -0.5 * (mu / 5.0).square() - (1.0 + (tau / 5.0).square()).log() + log_tau
        residual = (y - (mu + tau * z)) / sigma
        return prior - 0.5 * z.square().sum() - 0.5 * residual.square().sum()

    block = density_block(eight_schools, 10)
    assert [g.domain for g in groups(block)] == [(), (8,), ()]


def test_a_logistic_likelihood_and_both_its_products_share_one_nest():
    x = wrap(RNG.standard_normal((300, 6)))
    y = wrap(RNG.integers(0, 2, 300).astype(float))

    def logistic(beta):
        eta = x @ beta
        return (y * eta - softplus(eta)).sum() - 0.5 * beta.square().sum()

    block = density_block(logistic, 6)
    (rows,) = [g for g in groups(block) if g.domain == (300,)]
    kinds = [i.kind for i in rows.items]
    assert kinds.count("dot") == kinds.count("axpy") == kinds.count("reduce") == 1


def test_reading_a_vector_piece_by_piece_gathers_its_gradient_in_one_buffer():
    def pieces(q):
        total = q[0] * 0.0
        for k in range(20):
            total = total + (q[k] * q[k + 1]).exp() + q[k : k + 3].sum()
        return total

    density = NativeDensity(pieces, 30)
    density.value_and_grad(np.zeros(30))
    names = [node.name for node in density.paths[0].graph.nodes]
    assert names.count("accumulate") == 1
    assert "unslice" not in names


# ---------------------------------------------------------------------------------------- fusion


def test_elementwise_work_of_one_shape_is_one_nest():
    block = compiled_block(lambda x, y: ((x * y).sin() + x.exp() / (1.0 + y * y)).tanh(), X5, Y5)
    assert items(block) == [["mul", "sin", "exp", "mul", "add", "div", "add", "tanh"]]


def test_a_reduction_joins_the_nest_that_computes_its_operand():
    block = compiled_block(lambda x: (x.exp().sum(), (x * x).amax(), x.prod(1)), M34)
    assert len(groups(block)) == 1


def test_work_that_needs_a_finished_sum_comes_after_it():
    block = compiled_block(lambda x: x / x.sum(), X5)
    assert items(block) == [["sum"], ["div"]]


def test_sizes_of_one_do_not_part_nests():
    block = compiled_block(lambda x: x.exp().reshape(5, 1) + x.reshape(1, 5, 1)[0], X5)
    assert len(groups(block)) == 1


def test_movement_makes_no_code():
    block = compiled_block(lambda x: x.T.reshape(2, 6)[::-1, 1::2].flip(1) * 2.0, M34)
    assert items(block) in ([["mul"]], [["store"], ["mul"]])
    direct = compiled_block(lambda x: x.T[::-1, 1::2].unsqueeze(0).expand(2, 4, 1) * 2.0, M34)
    assert items(direct) == [["mul"]]


def test_a_large_product_is_one_call_and_a_small_one_is_none():
    large = compiled_block(
        lambda x, y: x @ y, RNG.standard_normal((40, 30)), RNG.standard_normal((30, 40))
    )
    small = compiled_block(lambda x, y: x @ y, M34, M34.T.copy())
    assert [c.name for c in statements(large, Call)] == ["gemm"]
    assert not statements(small, Call)


def test_a_transposed_operand_of_a_large_product_is_not_copied():
    block = compiled_block(
        lambda x, y: x.T @ y, RNG.standard_normal((30, 40)), RNG.standard_normal((30, 40))
    )
    assert [c.name for c in statements(block, Call)] == ["gemm"]
    assert not groups(block)


def test_a_chain_of_scalars_is_cut_into_functions_of_bounded_length():
    ops = [probtorch.sin, probtorch.tanh, probtorch.exp, probtorch.neg]
    order = np.random.default_rng(1).integers(0, 4, 2000)

    def chain(x):
        for i in order:  # without a pattern, which would become a loop
            x = ops[i](x) + 1.0
        return x

    block = compiled_block(chain, np.array(1.0))
    sizes = [len(g.items) for g in groups(block)]
    assert sum(sizes) >= 4000
    assert max(sizes) <= 600


# --------------------------------------------------------------------------------- updates in place


def copies(block, size):
    """Stores of whole arrays of `size` elements, nested blocks included."""
    found = []
    for s in block.statements:
        if isinstance(s, Group):
            found += [
                i
                for i in s.items
                if i.kind == "store" and i.attrs["mode"] == "set" and size in s.domain
            ]
        elif isinstance(s, Loop):
            found += copies(s.test, size) + copies(s.body, size)
        elif isinstance(s, Branch):
            found += copies(s.yes, size) + copies(s.no, size)
    return found


def program_block(fn, *arrays):
    tree = tuple(wrap(a) for a in arrays)
    return NativeProgram(lambda s: fn(*s), tree).program.lowering.block


def test_writing_elements_of_an_array_made_here_copies_nothing():
    def fn(x):
        h = probtorch.zeros(50, dtype=probtorch.float64)
        for t in range(1, 6):
            h[t] = h[t - 1] * 0.5 + x[t]
        return h

    # Once: the zeros, which are a constant, into memory that may be written to.
    assert len(copies(compiled_block(fn, np.ones(50)), 50)) == 1


def test_a_loop_that_writes_elements_of_its_state_copies_nothing_inside():
    def fn(x, n):
        def body(s):
            i, h, last = s
            h[i] = h[i - 1] * 0.5 + 1.0
            last[i % 3] = h[i]
            return i + 1, h, last

        last = probtorch.zeros(3, dtype=probtorch.float64)
        return while_loop(lambda s: s[0] < n, body, (as_tensor(1), x, last))

    block = program_block(fn, np.zeros(50), np.array(40))
    (loop,) = statements(block, Loop)
    assert not copies(loop.body, 50) and not copies(loop.body, 3)
    assert len(copies(block, 50)) == 1  # the argument, on the way in


def test_a_branch_that_writes_elements_of_its_state_copies_nothing():
    def fn(x, n):
        def body(s):
            i, h = s
            h = cond(
                h[i] > 0.0,
                lambda h, i: put(h, i, -1.0),
                lambda h, i: put(h, i, 1.0),
                h,
                i,
            )
            return i + 1, h

        return while_loop(lambda s: s[0] < n, body, (as_tensor(0), x))

    (loop,) = statements(program_block(fn, np.zeros(50), np.array(40)), Loop)
    assert statements(loop.body, Branch)
    assert not copies(loop.body, 50)


def put(h, i, value):
    h[i] = value
    return h


def test_an_array_that_is_read_again_is_copied_before_it_is_written_to():
    def fn(x):
        y = x * 2.0
        z = probtorch.index_put(y, [as_tensor(3)], as_tensor(9.0))
        return y + z

    block = compiled_block(fn, np.ones(50))
    assert len(copies(block, 50)) == 1
    x = np.arange(50.0)
    expected = x * 4.0
    expected[3] = x[3] * 2.0 + 9.0
    compiled = compile(fn)
    compiled(wrap(x))
    np.testing.assert_array_equal(compiled(wrap(x)).array, expected)


def test_an_array_that_is_read_again_under_another_shape_is_copied_too():
    def fn(x):
        y = x * 2.0
        again = y.reshape(3, 2).reshape(2, 3)
        z = probtorch.index_put(again, [as_tensor(0)], as_tensor(9.0))
        return y + z

    compiled = compile(fn)
    for _ in range(2):
        got = compiled(wrap(np.ones((2, 3)))).array
        np.testing.assert_array_equal(got, [[11.0] * 3, [4.0] * 3])


@pytest.mark.parametrize("flip", [False, True])
def test_a_slice_written_over_itself_reads_the_old_elements(flip):
    def fn(x):
        y = x * 1.0
        part = y[:-1].flip(0) if flip else y[:-1]
        return probtorch.index_put(y, [wrap(np.arange(1, 6))], part)

    x = np.arange(6.0)
    expected = x.copy()
    expected[1:] = x[:-1][::-1] if flip else x[:-1]
    compiled = compile(fn)
    for _ in range(2):
        np.testing.assert_array_equal(compiled(wrap(x)).array, expected)


def test_every_operand_in_memory_is_a_buffer_with_a_stride_per_dim():
    block = compiled_block(lambda x: (x.T @ x).exp().sum(0) + x.cumsum(1).amax(0)[:4], M34)
    for group in groups(block):
        for item in group.items:
            for x in item.operands:
                if isinstance(x, Mem) and item.kind in ("compute", "reduce", "store"):
                    assert len(x.strides) == len(group.domain)


X5, Y5, M34 = RNG.standard_normal(5), RNG.standard_normal(5), RNG.standard_normal((3, 4))


# --------------------------------------------------------------------------------- turns at once


def loops_with_hints(fn, *arrays):
    """For each loop of the text: whether it calls a function, and whether it has a hint."""
    text = NativeProgram(lambda t: fn(*t), tuple(map(wrap, arrays))).program.ir
    found = []
    for function in re.findall(r"^define internal .*?^}", text, re.DOTALL | re.MULTILINE):
        loop = r"^head(\d+):(.*?)(br i1 %i\d+\.c, label %head\1,.*?)$"
        for k, body, end in re.findall(loop, function, re.S | re.M):
            calls = re.findall(r"call [^@]*@(?!llvm\.)\w", body)
            found.append((bool(calls), "!llvm.loop" in end))
            assert k
    assert len(set(re.findall(r"!llvm\.loop (!\d+)", text))) == sum(hint for _, hint in found)
    return found


def test_loops_that_call_functions_do_not_take_several_turns_at_once():
    x = RNG.normal(size=100)
    found = loops_with_hints(lambda x: (x.exp(), (x - x.exp().sum()).tanh(), x.sum()), x)
    assert (True, True) in found
    assert all(calls == hint for calls, hint in found)


def test_loops_of_plain_arithmetic_may_take_several_turns_at_once():
    x = RNG.normal(size=100)
    found = loops_with_hints(lambda x: ((x * x).sum(), x.abs().sqrt()), x)
    assert found and not any(calls or hint for calls, hint in found)
