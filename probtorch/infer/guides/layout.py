"""`SiteBlock`: the numbers of a site as rows of vectors.

Rows of plates that stay apart are batch dims of a block, all the rest of a site (event, and rows
that are coupled) is one vector. `seen_by` says what a row of another site sees of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import record, static
from probtorch.effects.site import Frame
from probtorch.infer.guides.latents import Latent
from probtorch.infer.guides.structure import coupled_plates
from probtorch.ops.movement import permute, reshape
from probtorch.ops.reduction import sum as total

__all__ = ["SiteBlock", "block_of"]


@record
class SiteBlock:
    """Where the numbers of a site are in its block.

    Attributes
    ----------
    latent : Latent
    local : tuple of Frame
        Plates whose rows stay apart.
    rows : tuple of int
        Batch shape of the block: the size of a local plate, 1 for any other batch dim.
    size : int
        Numbers in the vector.
    """

    latent: Latent = static()
    local: tuple[Frame, ...] = static()
    rows: tuple[int, ...] = static()
    size: int = static()

    @classmethod
    def of(cls, latent: Latent, local: tuple[Frame, ...]) -> SiteBlock:
        """Return the block of a site whose rows stay apart in some of its plates."""
        axes = {latent.batch_ndim + f.dim for f in local if f.dim is not None}
        rows = tuple(latent.free_shape[i] if i in axes else 1 for i in range(latent.batch_ndim))
        return cls(latent, local, rows, latent.size // math.prod(rows))

    def _axes(self) -> tuple[list[int], ...]:
        """Axes of the unconstrained value: those of local plates, and all others."""
        latent = self.latent
        local = sorted(latent.batch_ndim + f.dim for f in self.local if f.dim is not None)
        return local, [i for i in range(len(latent.free_shape)) if i not in local]

    def laid_out(self, array: np.ndarray) -> np.ndarray:
        """Return an unconstrained value as a block, shape (*rows, size)."""
        local, rest = self._axes()
        return array.transpose(*local, *rest).reshape(*self.rows, self.size)

    def restored(self, vector: TensorBase) -> TensorBase:
        """Return a block as the unconstrained value; particles stay in front."""
        local, rest = self._axes()
        shape, k = vector.array.shape, self.latent.batch_ndim
        if len(shape) - 1 < k:
            shape = (1,) * (k + 1 - len(shape)) + shape
        lead = shape[: len(shape) - 1 - k]
        rows = shape[len(lead) : -1]
        free = self.latent.free_shape
        x = reshape(vector, (*lead, *(rows[i] for i in local), *(free[i] for i in rest)))
        back = np.argsort([*local, *rest])
        return permute(x, (*range(len(lead)), *(len(lead) + int(i) for i in back)))

    def packed(self, free: TensorBase) -> TensorBase:
        """Return an unconstrained value as a block, (*particles, *rows, size): undo `restored`."""
        local, rest = self._axes()
        shape = free.array.shape
        n = len(shape) - len(self.latent.free_shape)
        turned = permute(free, (*range(n), *(n + i for i in local), *(n + i for i in rest)))
        rows = tuple(shape[n + i] if i in local else 1 for i in range(self.latent.batch_ndim))
        return reshape(turned, (*shape[:n], *rows, self.size))

    def summed(self, terms: TensorBase) -> TensorBase:
        """Return terms of shape (*particles, *batch) summed over all but the local plates."""
        local, _ = self._axes()
        k = self.latent.batch_ndim
        n = terms.array.ndim - k
        others = tuple(n + i for i in range(k) if i not in local)
        return total(terms, others, keepdim=True) if others else terms

    def beyond(self, other: SiteBlock) -> list[Frame]:
        """Local plates that another site is not in: it sees all of their rows."""
        names = {f.name for f in other.local}
        return [f for f in self.local if f.name not in names]

    def seen_by(self, other: SiteBlock, vector: TensorBase) -> TensorBase:
        """Return a block as a vector for each row of another: rows beyond it become numbers."""
        shape = vector.array.shape
        moved = sorted(len(shape) - 1 + f.dim for f in self.beyond(other) if f.dim is not None)
        if moved:
            kept = [i for i in range(len(shape) - 1) if i not in moved]
            vector = permute(vector, (*kept, *moved, len(shape) - 1))
            size = shape[-1] * math.prod(shape[i] for i in moved)
            vector = reshape(
                vector, (*(1 if i in moved else shape[i] for i in range(len(shape) - 1)), size)
            )
        here, there = ({f.name: f.dim for f in b.local if f.dim} for b in (self, other))
        dims = {there[name]: here[name] for name in here if name in there}
        turned = any(a != b for a, b in dims.items())
        if turned:
            # All rows but those of these plates are of size 1 by now.
            depth = max(-d for pair in dims.items() for d in pair)
            shape = vector.array.shape
            shape = (1,) * (depth + 1 - len(shape)) + shape
            free = iter([d for d in range(-depth, 0) if d not in dims.values()])
            order = [dims[d] if d in dims else next(free) for d in range(-depth, 0)]
            n = len(shape) - 1
            turn = (*range(n - depth), *(n + d for d in order), n)
            vector = permute(reshape(vector, shape), turn)
        shape, extra = vector.array.shape, vector.array.ndim - 1 - other.latent.batch_ndim
        if (moved or turned) and extra > 0 and math.prod(shape[:extra]) == 1:
            # Dims of its own, of which nothing is left, are no batch dims of the other.
            return reshape(vector, shape[extra:])
        return vector


def block_of(latent: Latent, factors: Iterable[tuple[frozenset[str], frozenset[str]]]) -> SiteBlock:
    """Return the block of a site: the rows that the posterior keeps apart stay apart."""
    coupled = coupled_plates(factors, latent.name, [f.name for f in latent.frames])
    # The rows of a subsample cannot be coupled: they are not all there.
    local = tuple(f for f in latent.frames if f.name not in coupled or f.indices is not None)
    return SiteBlock.of(latent, local)
