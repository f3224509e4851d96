"""Optimizers and learning-rate schedules, with PyTorch's names and arithmetic.

`optimizer` has what all share, `elementwise` the machinery that runs one formula on many parameters
at once; `sgd`, `adam`, `rmsprop` and `lbfgs` the algorithms; `lr_scheduler` the schedules; `pyro`
the adapters for Pyro's optimizers, which are made from a dict of options.
"""

from probtorch.optim import lr_scheduler
from probtorch.optim.adam import Adam, Adamax, AdamW, ClippedAdam
from probtorch.optim.elementwise import ElementwiseOptimizer
from probtorch.optim.lbfgs import LBFGS
from probtorch.optim.optimizer import Optimizer
from probtorch.optim.pyro import PyroLRScheduler, PyroOptim
from probtorch.optim.rmsprop import Adagrad, RMSprop
from probtorch.optim.sgd import SGD

__all__ = [
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "ClippedAdam",
    "ElementwiseOptimizer",
    "LBFGS",
    "Optimizer",
    "PyroLRScheduler",
    "PyroOptim",
    "RMSprop",
    "SGD",
    "lr_scheduler",
]
