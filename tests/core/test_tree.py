"""Trees: flattening and rebuilding nested containers and records."""

from collections import namedtuple

import pytest

from probtorch import Tensor, tensor, vmap
from probtorch.core.tree import flatten, leaves, map_tree, record, replace, static, unflatten
from probtorch.distributions import Normal
from probtorch.testing import assert_close

Pair = namedtuple("Pair", "left right")


@record
class Kernel:
    """A record with two children and a part of its structure."""

    step: float
    mass: tuple
    steps: int = static(default=10)


@pytest.mark.parametrize(
    "tree",
    [
        1.0,
        (),
        None,
        [1, (2, [3]), {}],
        {"b": 1, "a": {"c": (2, None)}},
        Pair(1, Pair([2], 3)),
    ],
    ids=str,
)
def test_tree_is_rebuilt_from_its_leaves(tree):
    items, structure = flatten(tree)
    rebuilt = unflatten(structure, items)
    assert rebuilt == tree
    assert type(rebuilt) is type(tree)
    assert flatten(rebuilt) == (items, structure)


def test_dict_keeps_the_order_of_insertion():
    assert leaves({"z": 1, "a": 2}) == [1, 2]


def test_record_is_a_frozen_node_with_static_parts():
    kernel = Kernel(0.5, (1.0, 2.0), steps=3)
    items, structure = flatten(kernel)
    assert items == [0.5, 1.0, 2.0]
    double = unflatten(structure, [2 * x for x in items])
    assert (double.step, double.mass, double.steps) == (1.0, (2.0, 4.0), 3)
    with pytest.raises(AttributeError):
        kernel.step = 1.0
    assert replace(kernel, step=9.0).step == 9.0


def test_static_part_is_in_the_structure():
    assert flatten(Kernel(1, (), steps=1))[1] != flatten(Kernel(1, (), steps=2))[1]
    assert flatten(Kernel(1, (), steps=1))[1] == flatten(Kernel(2, (), steps=1))[1]


def test_map_goes_leaf_by_leaf():
    assert map_tree(lambda x, y: x + y, {"a": 1, "b": [2]}, {"a": 10, "b": [20]}) == {
        "a": 11,
        "b": [22],
    }


def test_trees_of_different_sizes_cannot_be_mapped_together():
    with pytest.raises(ValueError, match="shorter"):
        map_tree(lambda x, y: x, [1, 2], [1])


def test_what_users_set_of_a_distribution_is_part_of_the_tree():
    d = Normal(tensor(1.0), tensor(2.0))
    d.weight, d.note = tensor(3.0), "first"
    items, structure = flatten(d)
    assert [float(x) if isinstance(x, Tensor) else x for x in items] == [1.0, 2.0, 3.0, "first"]
    again = unflatten(structure, [tensor(4.0), tensor(5.0), tensor(6.0), "second"])
    assert (float(again.loc), float(again.weight), again.note) == (4.0, 6.0, "second")
    assert flatten(Normal(tensor(1.0), tensor(2.0)))[1] != structure
    assert_close(vmap(lambda d, x: d.loc * d.weight + x, in_dims=(None, 0))(_weighed(), X), 2.0 + X)


@record
class Ordered:
    """A record whose constructor does more than keep its arguments."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if self.low > self.high:
            low, high = self.high, self.low
            object.__setattr__(self, "low", low)
            object.__setattr__(self, "high", high)


@record
class Inherits(Kernel):
    """A record with a field more than its base, which has a default of its own."""

    rate: float = 0.5


def test_records_are_rebuilt_as_their_constructors_would_make_them():
    assert map_tree(lambda x: -x, Ordered(1.0, 2.0)).high == -1.0
    doubled = map_tree(lambda x: 2 * x, Inherits(0.1, (1.0,), steps=3))
    assert (type(doubled), doubled.step, doubled.mass, doubled.rate, doubled.steps) == (
        *(Inherits, 0.2, (2.0,), 1.0, 3),
    )
    with pytest.raises(AttributeError):
        doubled.step = 1.0


X = tensor([1.0, 2.0])


def _weighed():
    d = Normal(tensor(1.0), 1.0)
    d.weight = tensor(2.0)
    return d
