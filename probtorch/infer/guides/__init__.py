"""Guides that write themselves: families of distributions over the latent sites of any model.

`base` meets the model and puts unconstrained values back in their plates; `mean_field` treats every
number alone, `joint` all of them as one vector (`low_rank` is its distribution with few
directions), `flow` sends such a vector through learned transforms. `structured` gives each site a
distribution that depends on the sites before it, which `structure` reads off the model;
`composite` makes one guide of several, and `reparams` changes the coordinates of a sampler by a
fitted guide.
"""

from probtorch.infer.guides.base import AutoGuide
from probtorch.infer.guides.composite import AutoGuideList
from probtorch.infer.guides.flow import AutoIAFNormal, AutoNormalizingFlow
from probtorch.infer.guides.joint import (
    AutoContinuous,
    AutoDiagonalNormal,
    AutoLaplaceApproximation,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
)
from probtorch.infer.guides.mean_field import AutoDelta, AutoNormal
from probtorch.infer.guides.reparams import NeuTraReparam, StructuredReparam
from probtorch.infer.guides.structured import AutoStructured

__all__ = [
    "AutoContinuous",
    "AutoDelta",
    "AutoDiagonalNormal",
    "AutoGuide",
    "AutoGuideList",
    "AutoIAFNormal",
    "AutoLaplaceApproximation",
    "AutoLowRankMultivariateNormal",
    "AutoMultivariateNormal",
    "AutoNormal",
    "AutoNormalizingFlow",
    "AutoStructured",
    "NeuTraReparam",
    "StructuredReparam",
]
