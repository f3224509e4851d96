"""The entries of variables that `diagnose` judges, and how findings name them.

An entry is one number of a variable, `tau` or `theta[Phillips Exeter]`; checks.py asks here for
their draws, their R-hats and effective sizes, and for those that show something most.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np

from probtorch.diagnostics.convergence import quality
from probtorch.diagnostics.draws import Draws
from probtorch.diagnostics.layout import (
    chosen,
    entry_labels,
    flat_entries,
    judged,
    of_holes,
    partly_observed,
    real_parts,
)
from probtorch.diagnostics.stored import by_entries

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
    entries, partly = [], partly_observed(draws.posterior)
    for name in chosen(judged(names, draws), draws.posterior, "diagnose"):
        for part, values in real_parts({name: draws.posterior[name]}):
            dims = {part: draws.dims.get(name, ())}
            labels = entry_labels(part, values.shape[2:], dims, draws.coords)
            entries.append(of_holes(labels, values) if name in partly else (labels, values))
    return entries


def quality_of(
    entries: Entries, marked: np.ndarray | None = None
) -> tuple[list[str], np.ndarray, np.ndarray, np.ndarray | None]:
    """Labels, R-hat and the smaller effective size of all entries, flat.

    The last is, where draws are marked, how far the ranks of these lie from those of the others.
    """
    labels = [label for of_variable, _ in entries for label in of_variable]
    found = [np.empty((2 if marked is None else 3, 0))]
    for draws in _together([values for _, values in entries]):
        found += [quality(part, marked) for part in by_entries(draws)]
    r_hats, sizes, *shifts = np.concatenate(found, axis=1)
    return labels, r_hats, sizes, shifts[0] if shifts else None


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


def most(entries: Entries, scores: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """The `NAMED` entries with the largest positive score, as (label, draws), the largest first."""
    scores = np.nan_to_num(scores, nan=-1.0)
    largest = [i for i in np.argsort(-scores, kind="stable")[:NAMED] if scores[i] > 0.0]
    labels = [label for of_variable, _ in entries for label in of_variable]
    draws = dict(zip(sorted(largest), columns_of(entries, np.sort(largest))))
    return [(labels[i], draws[i]) for i in largest]


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
