"""Recording: what becomes a node, a constant or a guard, and what is refused rather than frozen."""

import copy
import pickle

import numpy as np
import pytest

import probtorch
from probtorch.compiler.density import NativeDensity
from probtorch.compiler.record.record import record
from probtorch.core.dispatch import recorder, wrap
from probtorch.core.making import as_tensor
from probtorch.errors import CompileError
from probtorch.ops.control import cond, while_loop
from probtorch.ops.index_keys import nonzero
from probtorch.ops.scattering import one_hot

X = np.array([1.0, -2.0, 3.0])


def recorded(fn, *arrays, **options):
    rec, _ = record(fn, [wrap(np.array(a)) for a in arrays], **options)
    return rec


def names(rec):
    return [node.name for node in rec.graph.nodes]


def refusals(fn, *arrays, **options):
    return [reason for reason, _ in recorded(fn, *arrays, **options).unsupported]


# ----------------------------------------------------------------------------------- constants


def test_work_on_constants_is_done_while_recording():
    outside = wrap(np.arange(3.0))
    rec = recorded(lambda x: x * (outside.exp() + 1.0).sum(), X)
    assert names(rec) == ["mul"]
    assert not rec.unsupported


def test_an_outside_tensor_is_a_constant_where_frozen_and_a_reference_where_not():
    outside = wrap(np.arange(3.0))
    frozen = recorded(lambda x: x + outside, X)
    followed = recorded(lambda x: x + outside, X, frozen=False)
    assert frozen.graph.nodes[0].inputs[1].kind == "const"
    assert followed.graph.nodes[0].inputs[1].kind == "ref"


def test_a_tensor_made_inside_is_a_constant_even_where_outside_ones_are_references():
    rec = recorded(lambda x: x + probtorch.zeros(3, dtype=probtorch.float64), X, frozen=False)
    assert rec.graph.nodes[0].inputs[1].kind == "const"


def test_a_constant_changed_in_place_keeps_its_old_elements_for_what_used_it_before():
    def fn(x):
        c = probtorch.ones(3, dtype=probtorch.float64)
        half = c.reshape(3, 1)
        before = x + c
        column = x + half
        c.add_(10.0)
        return before, column, x + c

    rec, result = record(fn, [wrap(X.copy())])
    assert not rec.unsupported
    before, column, after = (node.inputs[1].array for node in rec.graph.nodes)
    np.testing.assert_array_equal(before, [1.0, 1.0, 1.0])
    np.testing.assert_array_equal(column, np.ones((3, 1)))
    np.testing.assert_array_equal(after, [11.0, 11.0, 11.0])
    np.testing.assert_array_equal(result[2].array, X + 11.0)


# -------------------------------------------------------------------------------------- guards


def test_what_python_sees_becomes_a_guard_with_its_value_and_line():
    rec = recorded(lambda x: x if x[0] > 0 else -x, X)
    ((_, value, node),) = rec.graph.guards
    assert value is True
    assert node.location[0] == __file__


@pytest.mark.parametrize(
    "look, seen",
    [
        (lambda x: bool(x[1]), True),
        (lambda x: int(x[2]), 3),
        (lambda x: float(x[1]), -2.0),
        (lambda x: x[0].item(), 1.0),
        (lambda x: (0, 1, 2)[x[0].long()], 1),
        (lambda x: 3.0 in x, True),
    ],
    ids=["bool", "int", "float", "item", "index", "in"],
)
def test_every_way_to_a_python_value_is_guarded(look, seen):
    rec = recorded(lambda x: x * float(look(x)), X)
    assert rec.graph.guards[-1][1] == seen
    assert not rec.unsupported


def test_a_constant_needs_no_guard():
    outside = wrap(np.array(3.0))
    assert not recorded(lambda x: x if outside > 0 else -x, X).graph.guards


# ------------------------------------------------------------------------------ in-place changes


def test_a_tensor_made_inside_may_be_changed_in_place():
    def fn(x):
        h = probtorch.zeros(3, dtype=probtorch.float64)
        h[0] = x[0]
        for t in range(1, 3):
            h[t] = h[t - 1] * 0.5 + x[t]
        return h

    rec, result = record(fn, [wrap(X.copy())])
    assert not rec.unsupported
    np.testing.assert_array_equal(result.array, [1.0, -1.5, 2.25])


def outside_changed(x):
    OUTSIDE.add_(x)
    return OUTSIDE * 1.0


def view_changed(x):
    y = x * 1.0
    y[0:2].add_(1.0)
    return y


def stale_view_read(x):
    y = x * 1.0
    head = y[0:2]
    y.add_(1.0)
    return head * 2.0


def stale_detached_read(x):
    y = x * 1.0
    same = y.detach()
    y.add_(1.0)
    return same * 2.0


def many_views(x):
    y = x.expand(4, 3).clone()
    rows, column, tail = y[1:3], y[:, 1], y.reshape(12)[5:]
    same = y.detach()
    rows[0] *= 3.0
    rows.T[0].add_(column[1:3])
    tail[::2] += y[0, 0]
    same[3].copy_(x)
    y.diagonal().mul_(2.0)
    column.mul_(tail[0])
    return probtorch.cat([y.reshape(-1), rows.reshape(-1), column, tail, same.reshape(-1)])


def data_replaced(x):
    y = x * 1.0
    y.data = wrap(np.zeros(3))
    return y


OUTSIDE = wrap(np.zeros(3))


@pytest.mark.parametrize(
    "fn, reason",
    [
        (outside_changed, "made outside"),
        (data_replaced, ".data"),
    ],
    ids=lambda p: getattr(p, "__name__", ""),
)
def test_a_change_that_others_could_see_is_refused(fn, reason):
    assert any(reason in r for r in refusals(fn, X))


@pytest.mark.parametrize("fn", [view_changed, stale_view_read, stale_detached_read, many_views])
def test_views_are_changed_and_read_as_the_memory_they_share(fn):
    compiled = probtorch.compile(fn)
    for x in (X, X + 1.0, X * 2.0):
        np.testing.assert_array_equal(compiled(wrap(x)).array, fn(wrap(x)).array)
    assert compiled.last is not None  # native


def test_a_view_that_is_not_read_again_does_not_stand_in_the_way():
    def fn(x):
        y = x * 1.0
        first = y[0] * 2.0
        y.add_(1.0)
        return y + first

    assert not refusals(fn, X)


def test_a_body_may_change_its_own_state_but_not_what_it_captures():
    n = wrap(np.array(3))

    def own(x):
        def body(s):
            s[1][0] = s[1][0] + 1.0
            return s[0] + 1, s[1]

        return while_loop(lambda s: s[0] < n, body, (as_tensor(0), x))[1]

    def captured(x):
        y = x * 1.0

        def body(s):
            y.add_(1.0)
            return (s[0] + 1,)

        while_loop(lambda s: s[0] < n, body, (as_tensor(0),))
        return y

    assert not refusals(own, X)
    assert any("made outside" in r for r in refusals(captured, X))


def test_recording_a_body_leaves_the_initial_state_alone():
    start = wrap(X.copy())

    def body(s):
        s[1][0] = 100.0
        return s[0] + 1, s[1]

    record(
        lambda x: while_loop(lambda s: s[0] < 2, body, (as_tensor(0), start))[1] + x,
        [wrap(X.copy())],
    )
    np.testing.assert_array_equal(start.array, X)


def test_a_gradient_left_on_an_outside_leaf_is_refused():
    leaf = wrap(X.copy()).requires_grad_()

    def fn(x):
        (leaf * x).sum().backward()
        return x * 1.0

    assert any(".grad" in r for r in refusals(fn, X))


# ----------------------------------------------------------------------------- values that leave


LEAVING = {
    "numpy": lambda x: wrap(x.numpy() * 2.0),
    "array": lambda x: wrap(np.asarray(x) * 2.0),
    "tolist": lambda x: probtorch.tensor(x.tolist()),
    "nonzero": lambda x: nonzero(x)[0],
    "mask": lambda x: x[x > 0],
    "one_hot": lambda x: one_hot(x.abs().long()),
    "dlpack": lambda x: wrap(np.from_dlpack(x)),
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "unique": lambda x: probtorch.unique(x),
}


@pytest.mark.parametrize("how", LEAVING)
def test_a_value_that_leaves_the_tape_is_refused_with_the_users_line(how):
    rec = recorded(lambda x: LEAVING[how](x * 1.0), np.abs(X))
    assert rec.unsupported
    assert rec.unsupported[0][1].startswith(__file__)


@pytest.mark.parametrize("copying", [copy.deepcopy, probtorch.tensor, lambda x: x.detach()])
def test_a_copy_stands_for_the_same_value(copying):
    rec = recorded(lambda x: copying(x) * 2.0, X)
    assert not rec.unsupported
    assert rec.graph.nodes[-1].inputs[0] is rec.graph.inputs[0]


def test_outside_data_may_leave_the_tape_where_they_are_frozen():
    data = wrap(np.array([1.0, 0.0, 2.0]))
    assert not refusals(lambda x: x[nonzero(data)[0]].sum() + float(data.numpy().sum()), X)


def test_random_draws_are_refused_where_a_replay_would_freeze_them():
    for draw in (
        lambda x: x + probtorch.randn(3),
        lambda x: x[probtorch.randperm(3)],
        lambda x: x + probtorch.bernoulli(probtorch.full((3,), 0.5)),
    ):
        assert any("draw" in r for r in refusals(draw, X))


# --------------------------------------------------------------------------- loops and branches


def test_a_number_taken_inside_a_body_is_refused_and_the_result_is_still_right():
    def fn(x):
        def body(s):
            i, y = s
            return i + 1, y * 2.0 if bool(y.sum() > 0) else y * 3.0

        return while_loop(lambda s: s[0] < 3, body, (as_tensor(0), x))[1]

    rec, result = record(fn, [wrap(X.copy())])
    assert "inside a loop body" in rec.unsupported[0][0]
    np.testing.assert_array_equal(result.array, X * 8.0)


def test_a_number_taken_in_a_sampler_is_an_error():
    with pytest.raises(CompileError, match="expected: while_loop, cond or where"):
        recorded(lambda x: x * float(x[0]), X, abstract=True)


def test_a_branch_not_taken_may_be_impossible():
    def fn(x):
        index = as_tensor(7)
        return cond(x[0] > 0, lambda y: y[0], lambda y: y[index], x)

    rec, result = record(fn, [wrap(X.copy())])
    assert "TensorIndexError" in rec.unsupported[0][0]
    assert float(result) == 1.0


def test_a_loop_not_entered_may_have_an_impossible_body():
    def fn(x):
        i = as_tensor(3)
        return while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] + x[s[0]]), (i, x[0]))[1]

    rec, result = record(fn, [wrap(X.copy())])
    assert "not entered" in rec.unsupported[0][0]
    assert float(result) == 1.0


def test_an_error_in_the_branch_taken_is_the_users():
    with pytest.raises(IndexError):
        recorded(lambda x: cond(x[0] > 0, lambda y: y[as_tensor(7)], lambda y: y[0], x), X)


# ------------------------------------------------------------------------------------- the rest


def test_the_recorder_is_gone_after_an_error():
    def fails(x):
        raise KeyError("mine")

    with pytest.raises(KeyError):
        recorded(fails, X)
    assert recorder() is None


def test_recording_inside_a_density_is_of_that_density_only():
    inner = NativeDensity(lambda q: -(q * q).sum(), 3)

    def outer(x):
        value, _ = inner.value_and_grad(X)
        return x * value

    rec, result = record(outer, [wrap(X.copy())])
    assert names(rec) == ["mul"]
    np.testing.assert_array_equal(result.array, X * -14.0)
