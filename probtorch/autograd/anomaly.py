"""Anomaly mode: which operation made a gradient nan, and on which line of the user's program.

It watches from outside, so it costs nothing while it is off: a `Listener` notes the line of every
node as it is made, and looks at every cotangent as it is found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from probtorch.autograd.listener import Listener
from probtorch.backends.registry import to_host
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.errors import AutogradError, user_location

if TYPE_CHECKING:
    from probtorch.autograd.function import Function, FunctionCtx
    from probtorch.core.dispatch import TapeNode
    from probtorch.core.op import Attrs, Op, Operand, Output

__all__ = ["detect_anomaly", "set_detect_anomaly"]


class detect_anomaly(Listener):
    """Context manager: raise where a backward pass first makes a nan, naming the forward operation.

    Both passes must run inside. The forward pass becomes several times slower.

    Parameters
    ----------
    check_nan : bool
        With False only the lines are noted; other errors of the backward pass do not change.

    Examples
    --------
    >>> import probtorch
    >>> x = probtorch.tensor(0.0, requires_grad=True)
    >>> with probtorch.autograd.detect_anomaly():
    ...     (x * probtorch.sqrt(x * 0.0)).backward()
    Traceback (most recent call last):
    ...
    probtorch.errors.AutogradError: sqrt: the gradient of input 0 is nan
    ...
    """

    def __init__(self, check_nan: bool = True) -> None:
        super().__init__()
        self.check_nan = check_nan

    def applied(self, op: Op, inputs: tuple[Operand, ...], attrs: Attrs, out: Output) -> None:
        """Note the line that made the node of `out`."""
        for t in out if isinstance(out, tuple) else (out,):
            if t.grad_fn is not None and t.grad_fn.op is op:
                t.grad_fn.where = user_location(2)
        super().applied(op, inputs, attrs, out)

    def function_applied(
        self,
        function: type[Function],
        ctx: FunctionCtx,
        inputs: Sequence[object],
        outs: Sequence[TensorBase],
    ) -> None:
        """Note the line that called a custom function."""
        for t in outs:
            if t.grad_fn is not None:
                t.grad_fn.where = user_location(2)
        super().function_applied(function, ctx, inputs, outs)

    def cotangent(self, node: TapeNode, i: int, g: TensorBase) -> None:
        """Raise where the cotangent is the first that is nan."""
        super().cotangent(node, i, g)
        array = to_host(g.array)
        if not self.check_nan or array.dtype.kind not in "fc" or not np.isnan(array).any():
            return
        at = tuple(int(k) for k in np.argwhere(np.isnan(array))[0])
        raise AutogradError(
            f"{node.op.name}: the gradient of input {i} is nan",
            expected="a finite gradient",
            got=f"nan, first at index {at} of shape {array.shape}",
            fix="keep the inputs of this operation inside the set where it has a derivative",
            at=getattr(node, "where", None),
        )


class set_detect_anomaly:
    """Switch anomaly mode on or off at once; as a context manager it is undone at the end."""

    _active: detect_anomaly | None = None

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        self._before = set_detect_anomaly._active
        self._switch(detect_anomaly(check_nan) if mode else None)

    @staticmethod
    def _switch(new: detect_anomaly | None) -> None:
        if set_detect_anomaly._active is not None:
            set_detect_anomaly._active.__exit__()
        set_detect_anomaly._active = new
        if new is not None:
            new.__enter__()

    def __enter__(self) -> set_detect_anomaly:
        return self

    def __exit__(self, *exc: None) -> None:
        self._switch(self._before)


explain_calls(globals())
