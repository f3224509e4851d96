"""The entries of variables that `diagnose` judges, and how findings name them.

An entry is one number of a variable, `tau` or `theta[Phillips Exeter]`; checks.py asks here for
their draws, their R-hats and effective sizes, and for those that show something most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np

from probtorch.diagnostics.columns import normal_scores
from probtorch.diagnostics.convergence import quality
from probtorch.diagnostics.draws import Draws
from probtorch.diagnostics.entrywise import per_entry
from probtorch.diagnostics.layout import chosen, entry_labels, flat_entries, real_parts

__all__ = [
    "NAMED",
    "Entries",
    "by_chain",
    "columns_of",
    "counts",
    "entries_of",
    "listed",
    "most",
    "out_of",
    "percent",
    "quality_of",
    "shift",
]

# A message names this many parameters, the worst first.
NAMED = 3
# The means of so many chains fit into a message.
SHOWN_CHAINS = 8
# Variables with fewer numbers than that together are judged in one call: most of the time of a
# small one goes by between NumPy's calls.
TOGETHER = 2**20

# Variables as labels and draws (chain, draw, *event).
Entries: TypeAlias = list[tuple[list[str], np.ndarray]]


def entries_of(draws: Draws, names: str | Sequence[str] | None) -> Entries:
    """The judged variables as (labels, real values (chain, draw, *event))."""
    entries = []
    for name in chosen(names, draws.posterior, "diagnose"):
        for part, values in real_parts({name: draws.posterior[name]}):
            dims = {part: draws.dims.get(name, ())}
            labels = entry_labels(part, values.shape[2:], dims, draws.coords)
            entries.append((labels, values))
    return entries


def quality_of(entries: Entries) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Labels, R-hat and the smaller effective size of all entries, flat."""
    labels = [label for of_variable, _ in entries for label in of_variable]
    r_hats, sizes = [np.empty(0)], [np.empty(0)]
    for draws in _together([values for _, values in entries]):
        r_hat, size = quality(draws)
        r_hats.append(r_hat)
        sizes.append(size)
    return labels, np.concatenate(r_hats), np.concatenate(sizes)


def _together(variables: list[np.ndarray]) -> Iterator[np.ndarray]:
    """Draws (chain, draw, entry) of neighbouring variables in one array, while they are small."""
    small: list[np.ndarray] = []
    for flat in map(flat_entries, variables):
        if small and sum(part.size for part in small) + flat.size > TOGETHER:
            yield np.concatenate(small, axis=-1)
            small = []
        small.append(flat)
    if small:
        yield np.concatenate(small, axis=-1) if len(small) > 1 else small[0]


def columns_of(entries: Entries, wanted: np.ndarray) -> Iterator[np.ndarray]:
    """The draws (chain, draw) of the entries with these flat numbers, which ascend."""
    first = 0
    for labels, values in entries:
        inside = wanted[(wanted >= first) & (wanted < first + len(labels))] - first
        flat = flat_entries(values)
        yield from (np.asarray(flat[..., i], float) for i in inside)
        first += len(labels)


def most(
    entries: list[tuple[list[str], np.ndarray]], score: Callable[[np.ndarray], np.ndarray]
) -> list[tuple[str, np.ndarray]]:
    """The `NAMED` entries with the largest score of their normal scores, as (label, draws)."""
    ranked = []
    for labels, values in entries:
        scores = np.ravel(per_entry(lambda columns: score(normal_scores(columns)), values))
        flat = flat_entries(values)
        for i in np.argsort(-np.nan_to_num(scores, nan=-1.0), kind="stable")[:NAMED]:
            if scores[i] > 0:
                ranked.append((scores[i], labels[i], flat[..., i]))
    ranked.sort(key=lambda item: -item[0])
    return [(label, values) for _, label, values in ranked[:NAMED]]


def shift(scores: np.ndarray, chosen_draws: np.ndarray) -> np.ndarray:
    """Distance between the mean normal score of chosen draws and of the rest; 0 is no relation.

    Ranks make it the same on either side of a monotone transform (tau or log tau).
    """
    inside = scores[:, chosen_draws].mean(axis=1)
    return np.abs(inside - scores[:, ~chosen_draws].mean(axis=1))


def counts(flags: np.ndarray) -> str:
    """How many draws of each chain are flagged."""
    if not 1 < len(flags) <= SHOWN_CHAINS:
        return ""
    return ", by chain " + ", ".join(f"{i}: {n}" for i, n in enumerate(flags.sum(axis=1)))


def by_chain(label: str, column: np.ndarray) -> str:
    """The means of the chains, which say who stands apart from whom."""
    if not 1 < len(column) <= SHOWN_CHAINS:
        return ""
    means = ", ".join(f"{i}: {mean:.3g}" for i, mean in enumerate(column.mean(axis=1)))
    return f"; {label} by chain {means}"


def listed(labels: list[str]) -> str:
    """Return the first labels, and how many more there are."""
    shown = ", ".join(labels[:NAMED])
    return shown if len(labels) <= NAMED else f"{shown} and {len(labels) - NAMED} more"


def out_of(count: int, total: int) -> str:
    """Return of how many parameters something holds, where not all are named."""
    return f"; {count} of {total} parameters" if count > NAMED else ""


def percent(share: float) -> str:
    """Return a share as text."""
    return f"{100.0 * share:.3g} %"
