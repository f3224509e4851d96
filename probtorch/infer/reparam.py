"""Pyro's and NumPyro's name for reparameterisations: what is here is in `probtorch.effects`.

`NeuTraReparam` and `StructuredReparam`, which take a fitted guide, are in `probtorch.infer.guides`.
"""

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
from probtorch.effects.reparam_strategies import AutoReparam, MinimalReparam, ReparamStrategy
from probtorch.effects.reparams import LocScaleReparam, Reparam, TransformReparam
from probtorch.effects.stable_reparams import (
    LatentStableReparam,
    StableReparam,
    SymmetricStableReparam,
)
from probtorch.infer.guides.reparams import NeuTraReparam, StructuredReparam

__all__ = [
    "AutoReparam",
    "CircularReparam",
    "ConjugateReparam",
    "DiscreteCosineReparam",
    "ExplicitReparam",
    "GumbelSoftmaxReparam",
    "HaarReparam",
    "LatentStableReparam",
    "LinearHMMReparam",
    "LocScaleReparam",
    "MinimalReparam",
    "NeuTraReparam",
    "ProjectedNormalReparam",
    "Reparam",
    "ReparamStrategy",
    "SplitReparam",
    "StableReparam",
    "StructuredReparam",
    "StudentTReparam",
    "SymmetricStableReparam",
    "TransformReparam",
    "UnitJacobianReparam",
]
