"""Chains that only number the components differently: the label switching of mixtures.

Where a model does not tell its components apart, each chain settles in one of their orders. Chains
then disagree about every component, and agree about all that does not depend on the numbers.
`renumbered` looks for an order per chain in which they agree.

References
----------
M. Stephens, "Dealing with label switching in mixture models", JRSS B 62 (2000).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from probtorch.diagnostics.convergence import rhat

__all__ = ["Renumbering", "renumbered"]

# Variables are looked at whose components are so many at most.
MOST_COMPONENTS = 30
# Chains agree in an order where no R-hat is larger: the limit that was usual for short runs.
AGREED = 1.1
# Components changed places where their distances, squared and in standard deviations within chains,
# are so many times as large in the given order, and more by that much.
TIMES, MORE = 4.0, 9.0


@dataclass(frozen=True)
class Renumbering:
    """An order of the components per chain in which the chains agree.

    Parameters
    ----------
    names : tuple of str
        The variables whose components they are.
    orders : tuple of tuple of int
        For each chain the numbers of its components in the order of the first chain.
    """

    names: tuple[str, ...]
    orders: tuple[tuple[int, ...], ...]


def renumbered(variables: Mapping[str, np.ndarray]) -> Renumbering | None:
    """Find the order per chain in which chains agree; None if there is none, or no other is needed.

    Parameters
    ----------
    variables : dict of str to ndarray, each (chain, draw, *event)
        Real draws of what chains disagree about.
    """
    groups = {
        size: {name: x for name, x in variables.items() if size in x.shape[2:]}
        for size in sorted({size for x in variables.values() for size in x.shape[2:]})
        if 2 <= size <= MOST_COMPONENTS
    }
    # First what explains most: topics, which documents have too, before the words of a topic.
    for size, group in sorted(groups.items(), key=lambda item: -len(item[1])):
        orders = _orders(group, size)
        if orders is None or len(set(orders)) == 1:
            continue
        if all(_agreed(_in_order(x, size, orders)) for x in group.values()):
            return Renumbering(tuple(group), orders)
    return None


def _orders(group: Mapping[str, np.ndarray], size: int) -> tuple[tuple[int, ...], ...] | None:
    """For each chain the order whose components are nearest to those of the first chain."""
    from scipy.optimize import linear_sum_assignment  # slow to import, and seldom needed

    means = []
    for x in group.values():
        if x.shape[2:].count(size) == 1:
            parts = np.moveaxis(x, 2 + x.shape[2:].index(size), 2)
            parts = parts.reshape(*parts.shape[:3], -1)
            spread = parts.std(axis=1).mean(axis=(0, 1))
            means.append(parts.mean(axis=1) / np.where(spread > 0.0, spread, 1.0))
    if not means:
        return None
    features = np.concatenate(means, axis=2)  # (chain, component, feature)
    if not np.isfinite(features).all():
        return None
    orders = []
    for chain in features:
        distances = ((features[0][:, None] - chain[None]) ** 2).sum(axis=-1)
        rows, order = linear_sum_assignment(distances)
        apart, together = distances.trace(), distances[rows, order].sum()
        moved = apart > TIMES * together + MORE
        orders.append(tuple(int(i) for i in (order if moved else rows)))
    return tuple(orders)


def _in_order(x: np.ndarray, size: int, orders: tuple[tuple[int, ...], ...]) -> np.ndarray:
    """The draws with all dims of components in the order of each chain."""
    chains = []
    for chain, order in zip(x, orders, strict=True):
        for dim, extent in enumerate(x.shape[2:], start=1):
            if extent == size:
                chain = np.take(chain, order, axis=dim)
        chains.append(chain)
    return np.stack(chains)


def _agreed(x: np.ndarray) -> bool:
    r_hat = rhat(x)
    return bool((np.isnan(r_hat) | (r_hat <= AGREED)).all())
