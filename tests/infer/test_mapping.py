"""`DrawMap`: the compiled loop over draws gives what a Python loop gives."""

import numpy as np
import pytest

from probtorch.config import configure
from probtorch.infer.mapping import BLOCK, LARGE_BLOCK, DrawMap
from probtorch.ops.exponentials import exp
from probtorch.ops.reduction import sum as total


def outputs(inputs):
    x, k = inputs["x"], inputs["k"]
    return {"a": exp(x), "b": total(x) * k, "flag": x[0] > 0.0, "k": k + 1}


def inputs(n):
    rng = np.random.default_rng(n)
    return {"x": rng.normal(size=(n, 3)), "k": rng.integers(0, 9, size=n)}


def check(found, given):
    x, k = given["x"], given["k"]
    np.testing.assert_allclose(found["a"], np.exp(x), rtol=1e-14)
    np.testing.assert_allclose(found["b"], x.sum(-1) * k, rtol=1e-14)
    np.testing.assert_array_equal(found["flag"], x[..., 0] > 0)
    np.testing.assert_array_equal(found["k"], k + 1)
    assert found["flag"].dtype == bool and found["k"].dtype == np.int64


@pytest.mark.parametrize("n", [1, 15, 16, BLOCK, BLOCK + 1, 3 * BLOCK + 7])
def test_every_number_of_draws_gives_the_same(n):
    given = inputs(n)
    check(DrawMap(outputs)(given), given)


def test_program_is_used_again_and_made_anew_for_other_shapes():
    mapped = DrawMap(outputs)
    for n in (40, 60):
        check(mapped(inputs(n)), inputs(n))
    wide = {"x": np.random.default_rng(0).normal(size=(50, 5)), "k": np.arange(50)}
    check(mapped(wide), wide)


def test_of_very_many_draws_more_go_at_once_and_few_may_follow():
    mapped = DrawMap(outputs)
    for n in (8 * LARGE_BLOCK + 3, 20):
        check(mapped(inputs(n)), inputs(n))
    assert mapped._block == LARGE_BLOCK


def test_a_quarter_of_the_draws_goes_at_once():
    mapped = DrawMap(outputs)
    for n in (4 * BLOCK + 40, 5 * BLOCK):
        check(mapped(inputs(n)), inputs(n))
    assert mapped._block == BLOCK + 10


def test_leading_dims_are_kept():
    given = {k: v.reshape(4, 25, *v.shape[1:]) for k, v in inputs(100).items()}
    found = DrawMap(outputs)(given, lead=2)
    assert found["a"].shape == (4, 25, 3)
    check(found, given)


def test_without_the_compiler_the_result_is_the_same():
    with configure(jit=False):
        check(DrawMap(outputs)(inputs(50)), inputs(50))


def test_function_that_branches_on_values_runs_draw_by_draw():
    mapped = DrawMap(lambda d: {"y": d["x"] if d["x"] > 0.0 else -d["x"]})
    x = np.random.default_rng(0).normal(size=100)
    np.testing.assert_array_equal(mapped({"x": x})["y"], np.abs(x))


def test_no_draws_give_nothing():
    assert DrawMap(outputs)({"x": np.zeros((0, 3)), "k": np.zeros(0, int)}) == {}
