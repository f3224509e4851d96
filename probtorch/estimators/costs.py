"""`Costs`: a function of one value as the cost of many, with its shape checked."""

from __future__ import annotations

from collections.abc import Callable

from probtorch.core.making import as_tensor
from probtorch.core.typed import TensorLike
from probtorch.distributions.distribution import Distribution
from probtorch.errors import ShapeError
from probtorch.estimators.protocol import unwrapped
from probtorch.ops.movement import reshape
from probtorch.ops.pieces import stack
from probtorch.tensor import Tensor

__all__ = ["Costs"]


class Costs:
    """Costs of several values, shape (n, *C), from a function of one.

    Parameters
    ----------
    fn : callable
        From a value of q to a cost that broadcasts to the batch shape of q; with `vectorized` from
        n values to n such costs.
    q : Distribution
        As the user gave it: what `Independent` counts as event is joint.
    vectorized : bool

    Attributes
    ----------
    shape : tuple of int or None
        Shape of one cost as `fn` returned it; None before the first call.
    evaluations : int
        Values that `fn` was called with so far.
    """

    def __init__(
        self, fn: Callable[[Tensor], TensorLike], q: Distribution, vectorized: bool = False
    ) -> None:
        self.fn, self.q, self.vectorized = fn, q, vectorized
        self.shape: tuple[int, ...] | None = None
        self.evaluations = 0
        self._events = unwrapped(q)[1]

    def __call__(self, z: Tensor) -> Tensor:
        """Return the costs of n values."""
        n = z.array.shape[0]
        self.evaluations += n
        if self.vectorized:
            found = as_tensor(self.fn(z), "cost")
            if found.array.shape[:1] != (n,):
                raise ShapeError(
                    "cost(vectorized=True)",
                    expected=f"{n} costs along the first dim, one per value",
                    got=f"shape {tuple(found.shape)}",
                    fix="sum over the last dims only, or leave vectorized out",
                )
        else:
            found = stack([as_tensor(self.fn(z[i]), "cost") for i in range(n)])
        shape, batch = found.array.shape[1:], tuple(self.q.batch_shape)
        padded = (1,) * (len(batch) - len(shape)) + tuple(shape)
        if len(padded) != len(batch) or any(s not in (1, b) for s, b in zip(padded, batch)):
            raise ShapeError(
                "cost",
                expected=f"a number, or a shape that broadcasts to the batch shape {batch} of q "
                "(one cost per row)",
                got=f"shape {tuple(shape)}",
                fix="sum the cost, or give q the batch dims with expand()",
            )
        self.shape = tuple(shape)
        return reshape(found, (n, *padded, *(1,) * self._events))

    def like(self, fn: Callable[[Tensor], TensorLike]) -> Costs:
        """Return the costs of another function of the same values."""
        return Costs(fn, self.q, self.vectorized)

    def restored(self, x: Tensor) -> Tensor:
        """Return a tensor of shape C in the shape that `fn` returned."""
        assert self.shape is not None  # `fn` was called before
        return reshape(x, self.shape)
