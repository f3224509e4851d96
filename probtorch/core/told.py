"""What a recorder is told beside operations: values that enter and leave, other names.

Operations it hears of in dispatch.py. Here it learns where Python's numbers became tensors, where
Python took values out of them, and that a tensor stands for another.
"""

from probtorch.core import dispatch
from probtorch.core.dispatch import recorder

__all__ = ["carry", "told_entry", "told_exit"]


def told_entry(value, t):
    """Tell the active listener, if it asks for that, that Python's `value` became tensor `t`."""
    if dispatch._RECORDING:  # looked at here: every number that becomes a tensor comes by
        entered = getattr(recorder(), "entered", None)
        if entered is not None:
            entered(value, t)


def told_exit(how, t, value):
    """Tell the active listener, if it asks for that, that Python takes `value` out of `t`.

    Returns
    -------
    What Python gets: mostly `value`.
    """
    active = recorder()
    if active is not None:
        left = getattr(active, "left", None)
        if left is not None:
            return left(how, t, value)
    return value


def carry(source, t):
    """Tell the active recorder that `t` is another name for `source`, gradient and all."""
    active = recorder()
    if active is not None:
        getattr(active, "carry", active.alias)(source, t)
