"""Effects: models as plain functions, and what handlers make of them.

Statements (`sample`, `param`, `plate`, `factor`, `deterministic`) are in primitives.py and
plates.py, `markov` in markov.py, `scan` in scans.py, what they say in site.py, the stack that
carries it in runtime.py, and what can be done to it in handlers.py, reparams.py and enumeration.py.
The handlers are reached as ``effects.handlers``. Networks as parts of a model are in modules.py and
pyro_module.py.
"""

from probtorch.effects import handlers
from probtorch.effects.density import log_density
from probtorch.effects.enumerable import config_enumerate
from probtorch.effects.enumeration import enumerate_sites
from probtorch.effects.further_reparams import (
    DiscreteCosineReparam,
    ExplicitReparam,
    GumbelSoftmaxReparam,
    HaarReparam,
    ProjectedNormalReparam,
    StudentTReparam,
    UnitJacobianReparam,
)
from probtorch.effects.joint_reparams import (
    CircularReparam,
    ConjugateReparam,
    LinearHMMReparam,
    SplitReparam,
)
from probtorch.effects.markov import markov
from probtorch.effects.modules import module, random_module
from probtorch.effects.params import ParamStore, clear_param_store, get_param_store
from probtorch.effects.placing import replicate
from probtorch.effects.plate_rows import subsample
from probtorch.effects.plates import EmptyPlateWarning, plate, plate_stack
from probtorch.effects.primitives import deterministic, factor, param, sample
from probtorch.effects.pyro_module import (
    PyroModule,
    PyroModuleList,
    PyroParam,
    PyroSample,
    pyro_method,
    to_pyro_module_,
)
from probtorch.effects.reparam_strategies import AutoReparam, MinimalReparam, ReparamStrategy
from probtorch.effects.reparams import LocScaleReparam, Reparam, TransformReparam, reparam
from probtorch.effects.runtime import Handler, perform
from probtorch.effects.scans import scan
from probtorch.effects.shrinkage import R2D2M2CP
from probtorch.effects.site import Frame, Site
from probtorch.effects.stable_reparams import (
    LatentStableReparam,
    StableReparam,
    SymmetricStableReparam,
)
from probtorch.effects.trace import PlateInfo, Trace, plate_info

__all__ = [
    "R2D2M2CP",
    "AutoReparam",
    "CircularReparam",
    "ConjugateReparam",
    "DiscreteCosineReparam",
    "EmptyPlateWarning",
    "ExplicitReparam",
    "Frame",
    "GumbelSoftmaxReparam",
    "HaarReparam",
    "Handler",
    "LatentStableReparam",
    "LinearHMMReparam",
    "LocScaleReparam",
    "MinimalReparam",
    "ParamStore",
    "PlateInfo",
    "ProjectedNormalReparam",
    "PyroModule",
    "PyroModuleList",
    "PyroParam",
    "PyroSample",
    "Reparam",
    "ReparamStrategy",
    "Site",
    "SplitReparam",
    "StableReparam",
    "StudentTReparam",
    "SymmetricStableReparam",
    "Trace",
    "TransformReparam",
    "UnitJacobianReparam",
    "clear_param_store",
    "config_enumerate",
    "deterministic",
    "enumerate_sites",
    "factor",
    "get_param_store",
    "handlers",
    "log_density",
    "markov",
    "module",
    "param",
    "perform",
    "plate",
    "plate_info",
    "plate_stack",
    "pyro_method",
    "random_module",
    "reparam",
    "replicate",
    "sample",
    "scan",
    "subsample",
    "to_pyro_module_",
]
