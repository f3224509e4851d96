"""Chains that number components differently are told from chains that disagree."""

import numpy as np
import pytest

from probtorch.diagnostics import Draws, diagnose
from probtorch.diagnostics.relabelling import renumbered


def components(orders, draws=400, centres=(-2.0, 0.0, 3.0), seed=0):
    """Locations, scales and a table of moves, the components of each chain in an order of its."""
    rng = np.random.default_rng(seed)
    loc = np.asarray(centres) + 0.2 * rng.normal(size=(len(orders), draws, 3))
    scale = np.array([1.0, 0.3, 0.6]) + 0.05 * rng.normal(size=loc.shape)
    move = np.arange(9.0).reshape(3, 3) + rng.normal(size=(len(orders), draws, 3, 3))
    shared = rng.normal(size=loc.shape[:2])
    for chain, order in enumerate(orders):
        loc[chain], scale[chain] = loc[chain][:, order], scale[chain][:, order]
        move[chain] = move[chain][:, order][:, :, order]
    return {"loc": loc, "scale": scale, "move": move, "shared": shared}


def test_the_order_of_each_chain_is_found():
    given = [(0, 1, 2), (2, 0, 1), (0, 1, 2), (1, 0, 2)]
    drawn = components(given)
    del drawn["shared"]
    found = renumbered(drawn)
    assert found.names == ("loc", "scale", "move")
    # The order that undoes what was done.
    assert found.orders == tuple(tuple(int(i) for i in np.argsort(order)) for order in given)


def test_the_finding_says_so_and_asks_for_an_order():
    findings = diagnose(Draws(components([(0, 1, 2), (0, 2, 1), (0, 1, 2), (0, 1, 2)])))
    assert [finding.kind for finding in findings] == ["rhat"]
    assert "renumbered (chain 1: 0, 2, 1)" in findings[0].fix
    assert "Ordered(base_dist, 3)" in findings[0].fix


def test_what_more_variables_have_is_taken_for_the_components():
    """Two topics of four words, exchanged: in each topic another order of the words would do."""
    rng = np.random.default_rng(2)
    words = np.array([[0.7, 0.3, 0.01, 0.02], [0.02, 0.01, 0.3, 0.7]])
    share = np.array([0.9, 0.2])
    orders = [(0, 1), (1, 0)]
    drawn = {
        "words": np.stack([words[list(o)] for o in orders])[:, None] + np.zeros((1, 400, 1, 1)),
        "share": np.stack([share[list(o)] for o in orders])[:, None] + np.zeros((1, 400, 1)),
    }
    drawn = {name: x + 0.01 * rng.normal(size=x.shape) for name, x in drawn.items()}
    found = renumbered(drawn)
    assert found.names == ("words", "share") and found.orders == tuple(orders)


@pytest.mark.parametrize("shift", [0.5, 5.0])
def test_chains_that_are_elsewhere_are_not_renumbered(shift):
    drawn = components([(0, 1, 2)] * 4)
    drawn["loc"][1, :, 0] += shift
    (finding, *_) = diagnose(Draws(drawn))
    assert finding.kind == "rhat"
    assert "run longer" in finding.fix


def test_similar_components_that_disagree_a_little_are_not_renumbered():
    rng = np.random.default_rng(1)
    theta = rng.normal(size=(4, 400, 8)) + 0.4 * rng.normal(size=(4, 1, 8))
    assert renumbered({"theta": theta}) is None
