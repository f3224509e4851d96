"""What a recording keeps: of large results only those that somebody else keeps, too."""

import contextlib
import gc
import os
import subprocess
import sys
import threading
import tracemalloc
import warnings
import weakref

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch.compiler.record.record import keeping_all, rarely_searched, record
from probtorch.effects.plate_rows import MANY, all_rows
from probtorch.infer import Target
from probtorch.infer.model_runs import LARGE

ROWS = 400_000


def test_recording_of_many_rows_holds_few_of_its_results():
    x = probtorch.tensor(np.ones(ROWS))

    def long_sum(x):
        for _ in range(20):
            x = x * 1.5 - 0.5
        return x.sum()

    tracemalloc.start()
    try:
        rec, result = record(long_sum, [x])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(rec.graph.nodes) == 41 and float(result) == ROWS
    # Of 40 arrays three at a time.
    assert peak < 6 * 8 * ROWS


def test_first_call_of_a_density_of_many_rows_takes_few_columns():
    def first_call(rows):
        x = probtorch.tensor(np.linspace(-1.0, 1.0, 2 * rows).reshape(rows, 2))
        y = probtorch.tensor(np.linspace(-2.0, 2.0, rows))

        def density(q):
            return dist.Normal(q[0] + x @ q[1:3], q[3].exp()).log_prob(y).sum()

        target = Target.from_density(density, 4)
        tracemalloc.start()
        try:
            found = target.value_and_grad(np.zeros(4))
            return found, tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    first_call(10)  # what is loaded and compiled once
    (value, slope), peak = first_call(ROWS)
    # The quotient, its cotangent, and the gradient of its square as it is made.
    assert peak < 4.7 * 8 * ROWS
    z = np.linspace(-2.0, 2.0, ROWS)
    np.testing.assert_allclose(float(value), -0.5 * (z**2 + np.log(2 * np.pi)).sum())
    columns = np.linspace(-1.0, 1.0, 2 * ROWS).reshape(ROWS, 2)
    wanted = [z.sum(), *(columns.T @ z), (z**2 - 1).sum()]
    np.testing.assert_allclose(np.asarray(slope), wanted, atol=1e-6)


def test_numbers_of_many_rows_live_as_long_as_somebody_has_them():
    few, many = (all_rows(n) for n in (1000, MANY))
    assert all_rows(1000) is few
    assert all_rows(MANY) is many
    (place,) = np.flatnonzero(many.array == 7)
    assert place == 7
    assert not many.array.flags.writeable
    gone = weakref.ref(many)
    del many
    assert gone() is None


def test_a_model_of_many_rows_keeps_no_numbers_of_rows():
    y = probtorch.tensor(np.zeros(MANY))

    def model():
        loc = probtorch.sample("loc", dist.Normal(0.0, 1.0))
        with probtorch.plate("row", MANY):
            probtorch.sample("y", dist.Normal(loc, 1.0), obs=y)

    def taken():
        tracemalloc.start()
        try:
            value, _ = Target.from_model(model).value_and_grad(np.ones(1))
            gc.collect()
            return value, tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()

    taken()  # what is loaded and compiled once
    value, kept = taken()
    np.testing.assert_allclose(value, -0.5 * (MANY + 1) * (1.0 + np.log(2 * np.pi)))
    assert kept < MANY


def test_changes_in_place_and_views_of_large_tensors_are_recorded():
    def changing(x):
        y = x * 2.0
        head = y[: ROWS // 2]
        z = y.reshape(2, -1)
        head += 1.0
        del head
        y *= 3.0
        return z.sum() + y[0] + (x[1:] - x[:-1]).abs().sum()

    compiled = probtorch.compile(changing)
    for seed in range(4):
        x = probtorch.tensor(np.random.default_rng(seed).normal(size=ROWS))
        np.testing.assert_allclose(float(compiled(x)), float(changing(x)), rtol=1e-9)
    assert compiled.reason is None


def test_large_results_that_the_tape_makes_anew_are_no_constants():
    # The quotient is gone when the rule of the division, which reads it, makes it from its array.
    y = np.random.default_rng(0).normal(size=ROWS)

    def model(y):
        scale = probtorch.sample("scale", dist.HalfNormal(1.0))
        with probtorch.plate("row", len(y)):
            probtorch.sample("y", dist.Normal(0.0, scale), obs=y)

    target = Target.from_model(model, probtorch.tensor(y))
    squares = (y**2).sum()
    for q in (0.0, 0.3, -0.4):
        scale = np.exp(q)
        _, gradient = target.value_and_grad([q])
        np.testing.assert_allclose(gradient, squares / scale**2 - ROWS - scale**2 + 1, rtol=1e-9)


def test_large_results_made_anew_belong_to_a_compiled_function():
    x = probtorch.tensor(np.linspace(0.0, 1.0, ROWS))

    def slope(q):
        return probtorch.func.grad(lambda q: ((x * q).exp() ** 2).sum())(q)

    compiled = probtorch.compile(slope)
    for q in (0.5, -0.25, 1.0):
        wanted = (2 * x.numpy() * np.exp(2 * q * x.numpy())).sum()
        found = compiled(probtorch.tensor(q, dtype=probtorch.float64))
        np.testing.assert_allclose(float(found), wanted, rtol=1e-9)
    assert compiled.reason is None


def test_first_calls_of_many_rows_leave_no_garbage():
    y = probtorch.tensor(np.zeros(LARGE // 8))

    def model(y):
        mu = probtorch.sample("mu", dist.Normal(0.0, 1.0))
        with probtorch.plate("row", len(y)):
            probtorch.sample("y", dist.Normal(mu * y, 1.0), obs=y)

    size = y.numpy().nbytes
    tracemalloc.start()
    try:
        target = Target.from_model(model, y)
        kept, _ = tracemalloc.get_traced_memory()
        target.value_and_grad(np.zeros(1))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # The numbers of the plate's rows, which it keeps.
    assert kept < 1.5 * size and peak < 9.5 * size


def test_constants_of_one_value_are_kept_as_one_element_and_answer_as_eagerly():
    def changing(x):
        twos = probtorch.ones(ROWS) * 2.0
        powers = twos.exp()
        powers[5] = x
        twos[:10].mul_(x)
        return probtorch.ones(ROWS) * 3.0, twos, powers.sum() - twos.sum()

    compiled = probtorch.compile(changing)
    for q in (1.0, 2.0, 3.0):
        x = probtorch.tensor(q)
        for found, wanted in zip(compiled(x), changing(x), strict=True):
            # Elements bit for bit; how totals round depends on how wide a processor's vectors are.
            rtol = 0.0 if found.ndim else 1e-6
            np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=rtol)
            found.add_(1.0)  # the memory of a result is its owner's
    assert compiled.reason is None

    rec, _ = record(lambda x: x * (probtorch.ones(ROWS) * 2.0), [probtorch.tensor(1.0)])
    (product,) = rec.graph.nodes
    (twos,) = (v.array for v in product.inputs if v.kind == "const")
    assert twos.shape == (ROWS,) and twos.strides == (0,) and twos[7] == 2.0


@pytest.mark.parametrize("threshold", [700, 0])
def test_the_garbage_collector_is_the_users_own_while_a_function_is_recorded(threshold):
    before = gc.get_threshold()
    gc.set_threshold(threshold, 10, 10)
    try:
        record(lambda x: 2.0 * x if gc.isenabled() else None, [probtorch.ones(3)])
        assert gc.get_threshold()[0] == threshold
    finally:
        gc.set_threshold(*before)


def test_a_threshold_that_a_recorded_function_sets_stays():
    def tuned(x):
        gc.set_threshold(4321, 10, 10)
        return 2.0 * x

    before = gc.get_threshold()
    try:
        record(tuned, [probtorch.ones(3)])
        assert gc.get_threshold()[0] == 4321
    finally:
        gc.set_threshold(*before)


def test_searches_for_garbage_overlap_in_threads():
    """Who begins first may end first; what is in force in the end is what was in the beginning."""
    before = gc.get_threshold()
    with contextlib.ExitStack() as first:
        first.enter_context(keeping_all())
        with rarely_searched():
            first.close()
            assert gc.get_threshold()[0] >= before[0]
            with keeping_all():
                assert gc.get_threshold()[0] > 10**9
    assert gc.get_threshold() == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_child_searches_for_garbage_while_its_parent_records():
    before = gc.get_threshold()
    begun, over = threading.Event(), threading.Event()

    def recording():
        with keeping_all():
            begun.set()
            over.wait()

    thread = threading.Thread(target=recording)
    thread.start()
    begun.wait()
    try:
        with rarely_searched(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python 3.12 warns of forks beside threads
            child = os.fork()
        if child == 0:
            os._exit(gc.get_threshold() != before)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        over.set()
        thread.join()
    assert gc.get_threshold() == before


RECORDINGS = """
import weakref
from probtorch.compiler.record.record import keeping_all

class Cycle:
    def __init__(self):
        self.itself = self

def recorded():
    with keeping_all():
        return [Cycle() for _ in range(20_000)]

first = weakref.ref(recorded()[0])
assert any(recorded() and first() is None for _ in range(60))
"""


def test_what_recordings_leave_in_cycles_is_found_at_last():
    # In a process of its own: in this one other objects are frozen, and nothing is made old.
    subprocess.run([sys.executable, "-c", RECORDINGS], check=True)
