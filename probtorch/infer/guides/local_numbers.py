"""The numbers of the local sites of a plate, row by row, for `AutoSemiDAIS` (semi_dais.py)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from probtorch.core.tensor_base import TensorBase
from probtorch.distributions.formulas import sum_rightmost
from probtorch.effects.runtime import Handler
from probtorch.effects.site import Site
from probtorch.infer.guides.layout import SiteBlock
from probtorch.ops.movement import reshape
from probtorch.ops.pieces import cat

__all__ = ["AsBase", "LocalCall", "LocalNumbers"]


@dataclass(frozen=True, slots=True, eq=False)
class LocalNumbers:
    """Where the numbers of local sites are in the vector of a row.

    Attributes
    ----------
    blocks : dict of str to SiteBlock
        In their order.
    row_dims : int
        Dims of the rows: that of the plate, and those right of it.
    """

    blocks: Mapping[str, SiteBlock]
    row_dims: int

    @property
    def size(self) -> int:
        """Numbers of a row."""
        return sum(piece.size for piece in self.blocks.values())

    def cut(self, z: TensorBase) -> dict[str, TensorBase]:
        """Return the unconstrained values of local sites in vectors (..., rows, ..., numbers)."""
        found, start = {}, 0
        for name, piece in self.blocks.items():
            found[name] = piece.restored(z[..., start : start + piece.size])
            start += piece.size
        return found

    def packed(self, values: Mapping[str, TensorBase]) -> tuple[TensorBase, TensorBase]:
        """Return vectors of the rows with local sites at `values`, and log Jacobians of rows."""
        vectors, log_dets = [], []
        for name, piece in self.blocks.items():
            latent, value = piece.latent, values[name]
            free = latent.transform.inv(value)
            _, log_det = latent.transform.call_and_ladj(free)
            event = log_det.array.ndim - (value.array.ndim - latent.event_dim)
            vectors.append(piece.packed(free))
            log_dets.append(piece.summed(sum_rightmost(log_det, event)))
        depth = max(x.array.ndim for x in vectors)
        padded = [_led(x, depth - x.array.ndim) for x in vectors]
        found = log_dets[0]
        for log_det in log_dets[1:]:
            found = found + log_det
        z = cat(padded, -1)
        # Plates that are inside belong to the numbers; particles are further left.
        extra = z.array.ndim - 1 - self.row_dims
        if math.prod(z.array.shape[:extra]) == 1:
            z, found = _led(z, -extra), _led(found, -extra)
        return z, found


@dataclass(frozen=True, slots=True, eq=False)
class LocalCall:
    """What the steps of one call have in common.

    Attributes
    ----------
    values : mapping of str to Tensor
        Of the global sites.
    rows : dict of str to Site
        The plate of the local sites, with the rows in use.
    share : float
        Rows in use by rows there are.
    args, kwargs
        Of the local model.
    """

    values: Mapping[str, TensorBase]
    rows: dict[str, Site]
    share: float
    args: tuple[object, ...]
    kwargs: dict[str, object]


def _led(x: TensorBase, dims: int) -> TensorBase:
    """`x` with that many dims of size 1 more on the left, or fewer."""
    return reshape(x, (*(1,) * dims, *x.array.shape[max(-dims, 0) :]))


class AsBase(Handler):
    """State the sites of a local guide as helper sites, under other names than the model's."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self.prefix = prefix

    def on_sample(self, site: Site) -> None:
        """Give the site its other name."""
        site.name = self.prefix + site.name
        site.infer = {**site.infer, "is_auxiliary": True}
