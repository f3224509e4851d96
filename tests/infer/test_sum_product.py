"""Sums of products in log space against einsum and against sums over all combinations."""

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest

from probtorch.errors import InferenceError
from probtorch.infer.enumeration.sum_product import (
    Axes,
    Factor,
    add,
    aligned,
    connected,
    eliminate,
    expect,
    sum_plates,
)
from probtorch.tensor import tensor


@dataclass
class SummedVariable:
    id: int
    size: int
    plates: frozenset = frozenset()

    @property
    def name(self):
        return f"v{self.id}"


NONE = frozenset()


def random_graph(rng, count=6):
    """Variables without plates, and factors over one to three of them that cover all."""
    variables = [SummedVariable(i, int(rng.integers(1, 4))) for i in range(count)]
    axes = Axes(variables, {})
    factors = []
    for i in range(count + 2):
        scope = {i % count, *rng.integers(0, count, rng.integers(0, 3)).tolist()}
        names = axes.ordered(scope)
        shape = tuple(axes.size[a] for a in names)
        factors.append(Factor(tensor(rng.normal(size=shape)), names, NONE, f"f{i}"))
    return variables, axes, factors


def by_einsum(factors, kept=()):
    operands = [x for f in factors for x in (np.exp(f.value.numpy()), list(f.axes))]
    return np.log(np.einsum(*operands, list(kept)))


@pytest.mark.parametrize("seed", range(25))
def test_a_sum_without_plates_is_that_of_einsum(seed):
    rng = np.random.default_rng(seed)
    variables, axes, factors = random_graph(rng)
    found = eliminate(factors, {v.id for v in variables}, axes)
    assert all(f.axes == () for f in found)
    total = sum(f.value.item() for f in found)
    assert total == pytest.approx(by_einsum(factors).item(), rel=1e-12)
    # The groups are those that no variable connects.
    assert len(found) == len(connected(factors, {v.id for v in variables}))


@pytest.mark.parametrize("seed", range(10))
def test_variables_that_are_kept_stay_axes(seed):
    rng = np.random.default_rng(100 + seed)
    variables, axes, factors = random_graph(rng)
    kept = axes.ordered((0, 3))
    found = eliminate(factors, {v.id for v in variables} - set(kept), axes)
    joint = add(found, axes)
    exact = by_einsum(factors, kept)
    np.testing.assert_allclose(joint.value.numpy(), exact.reshape(joint.value.shape), rtol=1e-12)


@pytest.mark.parametrize("seed", range(10))
def test_the_maximum_is_that_of_all_combinations(seed):
    rng = np.random.default_rng(200 + seed)
    variables, axes, factors = random_graph(rng, count=5)
    found = eliminate(factors, {v.id for v in variables}, axes, maximum=True)
    best = max(
        sum(f.value.numpy()[tuple(values[a] for a in f.axes)].item() for f in factors)
        for values in itertools.product(*(range(v.size) for v in variables))
    )
    assert sum(f.value.item() for f in found) == pytest.approx(best, rel=1e-12)


def test_a_plate_is_a_product_over_its_rows():
    """log sum_z p(z) prod_i sum_w p(w | z) f_i(w), by loops."""
    rng = np.random.default_rng(0)
    z, w = SummedVariable(0, 2), SummedVariable(1, 3, frozenset({"rows"}))
    axes = Axes([z, w], {"rows": 4})
    prior, link, data = rng.normal(size=2), rng.normal(size=(3, 2)), rng.normal(size=(3, 4))
    rows = frozenset({"rows"})
    factors = [
        Factor(tensor(prior), (0,), NONE, "z"),
        # Of all rows alike: it has no dim for them.
        Factor(tensor(link), (1, 0), rows, "w"),
        Factor(tensor(data), (1, "rows"), rows, "y"),
    ]
    (found,) = eliminate(factors, {0, 1}, axes)
    exact = math.log(
        sum(
            math.exp(prior[a])
            * math.prod(sum(math.exp(link[b, a] + data[b, i]) for b in range(3)) for i in range(4))
            for a in range(2)
        )
    )
    assert found.axes == () and found.value.item() == pytest.approx(exact, rel=1e-13)


def test_a_group_inside_of_a_plate_keeps_its_rows():
    w = SummedVariable(0, 3, frozenset({"rows"}))
    axes = Axes([w], {"rows": 4})
    data = np.random.default_rng(1).normal(size=(3, 4))
    factor = Factor(tensor(data), (0, "rows"), frozenset({"rows"}), "y")
    (found,) = eliminate([factor], {0}, axes)
    assert found.axes == ("rows",)
    np.testing.assert_allclose(found.value.numpy(), np.log(np.exp(data).sum(0)), rtol=1e-13)


def test_a_factor_that_is_the_same_for_all_rows_counts_once_for_each():
    axes = Axes([], {"rows": 5})
    factor = Factor(tensor(2.0), (), frozenset({"rows"}), "y")
    assert sum_plates(factor, {"rows"}, axes).value.item() == 10.0


def test_crossing_plates_name_sites_and_plates():
    p, q = frozenset({"p"}), frozenset({"q"})
    axes = Axes([SummedVariable(0, 2, p), SummedVariable(1, 2, q)], {"p": 2, "q": 3})
    tie = Factor(tensor(np.zeros((2, 2, 2, 3))), (1, 0, "p", "q"), p | q, "tie")
    with pytest.raises(InferenceError, match=r"'v0', 'v1' .*'p', 'q'(.|\n)*'tie'"):
        eliminate([tie], {0, 1}, axes)


def test_a_long_chain_is_summed_from_its_ends():
    n, k = 50, 4
    axes = Axes([SummedVariable(t, k) for t in range(n)], {})
    rng = np.random.default_rng(2)
    factors = [
        Factor(tensor(rng.normal(size=(k, k))), (t, t - 1), NONE, str(t)) for t in range(1, n)
    ]
    tables = []
    (found,) = eliminate(factors, set(range(n)), axes, tables=tables)
    message = np.zeros(k)
    for factor in factors:
        message = np.log(np.exp(factor.value.numpy() + message).sum(1))
    assert found.value.item() == pytest.approx(np.log(np.exp(message).sum()), rel=1e-12)
    assert [len(t.axes) for t in tables] == [2] * (n - 1) + [1]
    assert sorted(found.sites, key=int) == [str(t) for t in range(1, n)]


def test_impossible_values_pass_no_nan():
    a = tensor(np.array([0.0, -np.inf]), requires_grad=True)
    b = tensor(np.array([[-np.inf, -np.inf], [0.3, 0.1]]), requires_grad=True)
    axes = Axes([SummedVariable(0, 2), SummedVariable(1, 2)], {})
    factors = [Factor(a, (0,), NONE, "a"), Factor(b, (1, 0), NONE, "b")]
    (found,) = eliminate(factors, {0, 1}, axes)
    assert found.value.item() == pytest.approx(0.3)
    found.value.backward()
    np.testing.assert_array_equal(a.grad.numpy(), [1.0, 0.0])
    np.testing.assert_array_equal(b.grad.numpy(), [[0.0, 0.0], [1.0, 0.0]])


def test_a_mean_ignores_what_has_probability_zero():
    axes = Axes([SummedVariable(0, 3)], {})
    w = Factor(tensor(np.array([0.25, 0.0, 0.75])), (0,), NONE)
    for bad in (np.inf, -np.inf, np.nan):
        x = Factor(tensor(np.array([1.0, bad, 3.0])), (0,), NONE)
        assert expect(x, 0, w, axes).value.item() == 2.5


def test_alignment_puts_dims_where_they_belong():
    x = tensor(np.zeros((2, 3)))
    assert tuple(aligned(x, (1, "p"), (2, 1, 0, "p")).shape) == (2, 1, 3)
    assert aligned(x, (1, "p"), (2, 1, "p")) is x
    assert tuple(aligned(tensor(1.0), (), (1, "p")).shape) == ()
