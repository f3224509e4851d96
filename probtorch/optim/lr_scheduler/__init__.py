"""Learning-rate schedules, with PyTorch's names, signatures and arithmetic.

A scheduler multiplies or replaces the "lr" of an optimizer's groups each time its `step` is
called, usually once per epoch. Where PyTorch multiplies the present value (so that several
schedulers of one optimizer compose), this does too; `base_lrs` are the values before any of them.

`base` has what all share, `decay` the formulas of the step, `cosine` and `cycles` the waves,
`plateau` the one that listens, `composed` several as one.
"""

from probtorch.optim.lr_scheduler.base import LRScheduler
from probtorch.optim.lr_scheduler.composed import ChainedScheduler, SequentialLR
from probtorch.optim.lr_scheduler.cosine import CosineAnnealingLR, CosineAnnealingWarmRestarts
from probtorch.optim.lr_scheduler.cycles import CyclicLR, OneCycleLR
from probtorch.optim.lr_scheduler.decay import (
    ConstantLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiplicativeLR,
    MultiStepLR,
    PolynomialLR,
    StepLR,
)
from probtorch.optim.lr_scheduler.plateau import ReduceLROnPlateau

_LRScheduler = LRScheduler  # its name before PyTorch 2, which older scripts derive from

__all__ = [
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "CyclicLR",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "MultiplicativeLR",
    "OneCycleLR",
    "PolynomialLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
]
