"""Named sets of numbers: what an op declaration says about its inputs, and test values from them.

Test values are spread over the set and keep a distance from its edges and from the places where
functions have kinks (0, and ties between two inputs), so that finite differences make sense there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from probtorch.core.typed import DType, Shape

__all__ = ["DOMAINS", "Domain", "draw"]


@dataclass(frozen=True)
class Domain:
    """A set of numbers.

    Attributes
    ----------
    name : str
    kind : str
        "float", "integer" or "boolean".
    pieces : tuple of (float, float)
        Closed intervals that test values are drawn from, by turns.
    """

    name: str
    kind: str
    pieces: tuple[tuple[float, float], ...]

    def draw(
        self, rng: np.random.Generator, shape: Shape = (), dtype: DType | type = np.float64
    ) -> np.ndarray:
        """Return distinct test values of `shape`, as int64 or bool where that is meant.

        Parameters
        ----------
        rng : numpy.random.Generator
        shape : tuple of int
        dtype : floating dtype
        """
        size = int(np.prod(shape))
        if self.kind == "boolean":
            return (np.arange(size) + rng.integers(2) & 1).astype(bool).reshape(shape)
        if self.kind == "integer":
            (low, high), *_ = self.pieces
            return rng.integers(int(low), int(high) + 1, shape)
        # One value per equal slice of an interval, in random order: spread out and never tied.
        values = np.empty(size)
        for i, (low, high) in enumerate(self.pieces):
            part = slice(i, None, len(self.pieces))
            n = len(values[part])
            steps = (np.arange(n) + rng.uniform(0.2, 0.8, n)) / max(n, 1)
            values[part] = low + (high - low) * steps
        return rng.permutation(values).reshape(shape).astype(dtype)


def _float(name: str, *pieces: tuple[float, float]) -> Domain:
    return Domain(name, "float", pieces)


DOMAINS = {
    domain.name: domain
    for domain in (
        _float("real", (-2.6, -0.15), (0.15, 2.4)),
        _float("nonzero", (-2.3, -0.4), (0.4, 2.5)),
        _float("positive", (0.2, 3.0)),
        _float("negative", (-3.0, -0.2)),
        _float("unit", (-0.85, -0.1), (0.1, 0.85)),
        _float("probability", (0.06, 0.94)),
        _float("above_one", (1.2, 4.0)),
        _float("above_two", (2.2, 5.0)),
        Domain("boolean", "boolean", ((0, 1),)),
        Domain("integer", "integer", ((1, 6),)),
    )
}


def draw(
    name: str, rng: np.random.Generator, shape: Shape = (), dtype: DType | type = np.float64
) -> np.ndarray:
    """Return test values from the domain called `name`; see `Domain.draw`."""
    return DOMAINS[name].draw(rng, shape, dtype)
