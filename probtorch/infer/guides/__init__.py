"""Guides that write themselves: families of distributions over the latent sites of any model.

`base` meets the model and puts unconstrained values back in their plates; `mean_field` treats every
number alone, `joint` all of them as one vector (`low_rank` is its distribution with few
directions), `composite` makes one guide of several.
"""

from probtorch.infer.guides.base import AutoGuide
from probtorch.infer.guides.composite import AutoGuideList
from probtorch.infer.guides.joint import (
    AutoContinuous,
    AutoLaplaceApproximation,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
)
from probtorch.infer.guides.mean_field import AutoDelta, AutoNormal

__all__ = [
    "AutoContinuous",
    "AutoDelta",
    "AutoGuide",
    "AutoGuideList",
    "AutoLaplaceApproximation",
    "AutoLowRankMultivariateNormal",
    "AutoMultivariateNormal",
    "AutoNormal",
]
