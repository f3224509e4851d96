"""Pyro's schedules: ``ExponentialLR({"optimizer": Adam, "optim_args": {...}, "gamma": 0.9})``.

They have the names of those of `lr_scheduler`, which are made of an optimizer.
"""

from __future__ import annotations

from functools import partial

from probtorch.optim import lr_scheduler
from probtorch.optim.pyro import PyroLRScheduler

__all__ = [*lr_scheduler.__all__]

globals().update({name: partial(PyroLRScheduler, getattr(lr_scheduler, name)) for name in __all__})
