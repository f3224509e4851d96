"""A category that is missing, taken for the last one.

pandas numbers categories from 0 and writes -1 where one is missing (``column.cat.codes``,
``factorize``). In ``effect[codes]`` -1 counts from the end, as everywhere in Python: the row gets
the effect of the last category, without an error. So the first run of a model is listened to. An
index of whole numbers whose only negative one is -1, and in which some number occurs twice, is
warned of; one without repetition is a way round a circle, such as ``arange(n) - 1``.
"""

from __future__ import annotations

import warnings

import numpy as np

from probtorch.autograd.listener import Listener
from probtorch.backends.registry import to_host
from probtorch.core.op import Attrs, Op, Operand, Output
from probtorch.core.tensor_base import TensorBase
from probtorch.diagnostics.findings import InferenceWarning
from probtorch.errors import user_frame

__all__ = ["MissingCodes"]


class MissingCodes(Listener):
    """Context manager: warn of indices that look like codes of missing categories.

    Warns
    -----
    InferenceWarning
        Once for each line of the user's.
    """

    def __init__(self) -> None:
        super().__init__()
        self._told: set[tuple[str, int]] = set()

    def applied(self, op: Op, inputs: tuple[Operand, ...], attrs: Attrs, out: Output) -> None:
        """Look at the indices of one operation."""
        super().applied(op, inputs, attrs, out)
        if op.name != "take":
            return
        x, *indices = inputs
        for dim, index in zip(attrs["dims"], indices, strict=True):
            if not (isinstance(x, TensorBase) and isinstance(index, TensorBase)):
                continue
            codes = to_host(index.array)
            if _with_missing(codes, x.array.shape[dim]):
                self._warn(codes, x.array.shape[dim])

    def _warn(self, codes: np.ndarray, size: int) -> None:
        place = user_frame() or ("<unknown>", 0)
        if place in self._told:
            return
        self._told.add(place)
        missing = np.argwhere(codes == -1)
        first = tuple(int(i) for i in missing[0])
        message = (
            "an index has -1 among its numbers, which takes the last row\n"
            f"  expected: numbers from 0 to {size - 1}\n"
            f"  got:      -1 at index {first}, the first of {len(missing)} among {codes.size}: "
            "pandas writes it for a category that is missing\n"
            "  fix:      leave these rows out, x[codes >= 0], or make missing a category of its "
            "own, codes % (size + 1); if the last row is meant, write codes % size"
        )
        warnings.warn_explicit(message, InferenceWarning, *place)


def _with_missing(codes: np.ndarray, size: int) -> bool:
    """Whether an index has -1, no other negative number, and some place twice."""
    if codes.size < 2 or codes.dtype.kind != "i" or int(codes.min()) != -1:
        return False
    return bool(codes.max() >= 0) and np.unique(codes % max(size, 1)).size < codes.size
