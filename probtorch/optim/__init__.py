"""Optimizers and learning-rate schedules, with PyTorch's names and arithmetic.

`optimizer` has what all share, `elementwise` the machinery that runs one formula on many parameters
at once, `whole` its sibling for formulas of whole parameters; `sgd`, `adam`, `nadam`, `rmsprop`,
`rprop`, `sparse_adam`, `adafactor`, `muon`, `sm3`, `dog` and `lbfgs` the algorithms, `numpyro`
those that Pyro and NumPyro have besides; `multi` what is given the loss itself, with `newton`;
`lr_scheduler` the schedules; `swa_utils` averages of weights; `pyro` the adapters for Pyro's
optimizers, which are made from a dict of options, and `pyro_schedules` its schedules.
"""

from typing import TYPE_CHECKING

from probtorch.core.rooms import late_beside
from probtorch.optim import lr_scheduler, swa_utils
from probtorch.optim.absent import INSTEAD
from probtorch.optim.adafactor import Adafactor
from probtorch.optim.adam import Adam, Adamax, AdamW, ClippedAdam
from probtorch.optim.dog import DoG, DoWG, LDoG
from probtorch.optim.elementwise import ElementwiseOptimizer
from probtorch.optim.lbfgs import LBFGS
from probtorch.optim.multi import (
    MixedMultiOptimizer,
    MultiOptimizer,
    Newton,
    PyroMultiOptimizer,
    TorchMultiOptimizer,
)
from probtorch.optim.muon import Muon
from probtorch.optim.nadam import NAdam, RAdam
from probtorch.optim.newton import newton_step
from probtorch.optim.numpyro import AdagradRMSProp, Momentum, RMSProp, RMSPropMomentum
from probtorch.optim.optimizer import Optimizer
from probtorch.optim.pyro import PyroLRScheduler, PyroOptim
from probtorch.optim.rmsprop import Adadelta, Adagrad, RMSprop
from probtorch.optim.rprop import Rprop
from probtorch.optim.sgd import ASGD, SGD
from probtorch.optim.sm3 import SM3
from probtorch.optim.sparse_adam import SparseAdam

__all__ = [
    "ASGD",
    "LBFGS",
    "SGD",
    "SM3",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "AdagradRMSProp",
    "Adam",
    "AdamW",
    "Adamax",
    "ClippedAdam",
    "DoG",
    "DoWG",
    "ElementwiseOptimizer",
    "LDoG",
    "MixedMultiOptimizer",
    "Momentum",
    "MultiOptimizer",
    "Muon",
    "NAdam",
    "Newton",
    "Optimizer",
    "PyroMultiOptimizer",
    "PyroLRScheduler",
    "PyroOptim",
    "RAdam",
    "RMSProp",
    "RMSPropMomentum",
    "RMSprop",
    "Rprop",
    "SparseAdam",
    "TorchMultiOptimizer",
    "lr_scheduler",
    "newton_step",
    "swa_utils",
]

if not TYPE_CHECKING:  # checkers tell of names that are not in __all__
    _SCHEDULES = {"pyro_schedules": " ".join(lr_scheduler.__all__)}
    __getattr__, __dir__ = late_beside(__name__, _SCHEDULES, INSTEAD)
