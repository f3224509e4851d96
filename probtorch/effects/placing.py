"""Placing sites among plates, and dims of inference's own around all plates of a model.

Read plates.py first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from probtorch.core.signatures import explain_calls
from probtorch.core.typed import Shape
from probtorch.distributions.distribution import Distribution
from probtorch.effects.runtime import STATE, Handler, Placement
from probtorch.effects.site import Frame, Site
from probtorch.errors import ShapeError

__all__ = ["PARTICLES", "give_size", "particles", "place", "push", "replicate"]

# The plate of several runs at once; a name that no model gives.
PARTICLES = "(particles)"


def place(
    fn: Distribution, name: str, frames: tuple[Frame, ...], shape: tuple[int, ...]
) -> Distribution:
    """Return distribution `fn` of site `name` expanded to `shape`, that of the plates `frames`.

    Raises
    ------
    ShapeError
        If a batch dim of `fn` has neither the size of its plate nor 1.
    """
    batch = tuple(fn.batch_shape)
    if batch == shape:
        return fn
    if len(batch) < len(shape):
        batch = (1,) * (len(shape) - len(batch)) + batch
    target = list(batch)
    for frame in frames:
        if frame.dim is None:
            continue
        size = batch[frame.dim]
        if size != 1 and size != frame.size:
            raise ShapeError(
                f"Shape mismatch inside plate({frame.name!r}) at site {name!r} dim {frame.dim}, "
                f"{frame.size} vs {size}",
                expected=f"size {frame.size} or 1 at batch dim {frame.dim}",
                got=f"a distribution of batch shape {tuple(fn.batch_shape)}",
                fix=_other_size(batch, frame, size)
                if frame.indices is None
                else f"the plate works on {frame.size} of {frame.full_size} rows: index the "
                "parameters with what `with plate(...) as rows` gives",
            )
        target[frame.dim] = frame.size
    return fn.expand(tuple(target)) if tuple(target) != tuple(fn.batch_shape) else fn


def _other_size(batch: Shape, frame: Frame, size: int) -> str:
    """What to do about a batch dim of another size than its plate."""
    further_left = batch[: frame.dim][::-1]
    if frame.size in further_left:
        count = further_left.index(frame.size) + 1
        which = "last dim belongs" if count == 1 else f"last {count} dims belong"
        return f"write .to_event({count}) behind the distribution, if its {which} to one draw"
    return f"make the plate's size {size}, or index the parameters with its rows"


class replicate(Handler):
    """Run a whole model `size` times at once, along a batch dim of inference's own.

    Latent draws get `size` copies at `dim`, left of all plates of the model; data need not have the
    dim.

    Parameters
    ----------
    fn : callable, optional
    size : int
    dim : int, negative
        Left of every plate of the model. Dims at or to the left of it are held to no plate.
    """

    def __init__(
        self, fn: Callable[..., object] | None = None, size: int = 1, dim: int = -1
    ) -> None:
        super().__init__(fn)
        self.size, self.dim = size, dim

    def on_sample(self, site: Site) -> None:
        """Expand a draw that is still to be made, and release the dim from the plates."""
        site.free_dim = self.dim if site.free_dim is None else max(self.dim, site.free_dim)
        if site.value is None and hasattr(site.fn, "batch_shape"):
            batch = tuple(site.fn.batch_shape)
            batch = (1,) * (-self.dim - len(batch)) + batch
            shape = with_size(batch, self.dim, self.size)
            if shape != batch:
                site.fn = site.fn.expand(shape)

    def on_factor(self, site: Site) -> None:
        """Release the dim from the plates."""
        site.free_dim = self.dim if site.free_dim is None else max(self.dim, site.free_dim)


@contextlib.contextmanager
def particles(size: int, dim: int) -> Iterator[Frame]:
    """Context manager: several runs at once are the rows of a plate around all others.

    Where `replicate` leaves a dim to inference, this one names it: sites are independent along it,
    so that sums over enumerated sites are taken for each particle. Guide and model share the frame.
    """
    frame = Frame(PARTICLES, size, size, dim)
    now = STATE.plates
    shape = with_size(now.shape, dim, size)
    STATE.plates = Placement((frame, *now.frames), shape, now.scale, now, now.waiting)
    try:
        yield frame
    finally:
        STATE.plates = now


def push(frame: Frame) -> None:
    """Go into a plate."""
    now = STATE.plates
    shape = now.shape if frame.dim is None else with_size(now.shape, frame.dim, frame.size)
    STATE.plates = Placement(
        now.frames + (frame,), shape, now.scale * frame.scale, now, now.waiting
    )


def give_size(shape: Shape) -> Placement:
    """Give plates that were made without a size that of `shape`, of a statement inside them.

    Parameters
    ----------
    shape : tuple of int
        The statement's batch shape. Where it has no dim of a plate, that has one row.

    Returns
    -------
    Placement
        What is in force from now on.
    """
    now = STATE.plates
    if now.waiting:
        assert now.outer is not None  # where the plate was entered
        STATE.plates = now.outer
        give_size(shape)
        if len(now.waiting) > len(now.outer.waiting):
            plate = now.waiting[-1]
            assert plate.dim is not None  # it was entered
            push(plate.sized(shape[plate.dim] if -plate.dim <= len(shape) else 1))
        else:
            push(now.frames[-1])
    return STATE.plates


def with_size(shape: Shape, dim: int, size: int) -> Shape:
    """`shape` with `size` at the negative `dim`, padded with 1 on the left as needed."""
    shape = (1,) * (-dim - len(shape)) + shape
    i = len(shape) + dim
    return shape[:i] + (size,) + shape[i + 1 :]


explain_calls(globals())
