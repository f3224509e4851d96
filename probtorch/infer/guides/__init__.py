"""Guides that write themselves: families of distributions over the latent sites of any model.

`base` meets the model and puts unconstrained values back in their plates; `mean_field` treats every
number alone, `joint` all of them as one vector (`low_rank` is its distribution with few
directions, `gaussian` the one with the model's zeros in the precision), `flow` sends such a vector
through learned transforms. `structured` gives each site a distribution that depends on the sites
before it, which `structure` reads off the model and `layout` puts into rows; `discrete_sites` has
tables of probabilities, `dais` moves draws by the model's gradients, `messenger` runs the model
with other distributions. `by_hand` has what a user writes, `composite` makes one guide of several,
and `reparams` changes the coordinates of a sampler by a fitted guide.
"""

from probtorch.infer.guides.base import AutoGuide
from probtorch.infer.guides.by_hand import AutoCallable, EasyGuide
from probtorch.infer.guides.composite import AutoGuideList
from probtorch.infer.guides.dais import AutoDAIS
from probtorch.infer.guides.discrete_sites import AutoDiscreteParallel
from probtorch.infer.guides.flow import AutoBNAFNormal, AutoIAFNormal, AutoNormalizingFlow
from probtorch.infer.guides.gaussian import AutoGaussian
from probtorch.infer.guides.joint import (
    AutoContinuous,
    AutoDiagonalNormal,
    AutoLaplaceApproximation,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
)
from probtorch.infer.guides.mean_field import AutoDelta, AutoNormal
from probtorch.infer.guides.messenger import (
    AutoHierarchicalNormalMessenger,
    AutoMessenger,
    AutoNormalMessenger,
    AutoRegressiveMessenger,
)
from probtorch.infer.guides.reparams import NeuTraReparam, StructuredReparam
from probtorch.infer.guides.structured import AutoStructured

__all__ = [
    "AutoBNAFNormal",
    "AutoCallable",
    "AutoContinuous",
    "AutoDAIS",
    "AutoDelta",
    "AutoDiagonalNormal",
    "AutoDiscreteParallel",
    "AutoGaussian",
    "AutoGuide",
    "AutoGuideList",
    "AutoHierarchicalNormalMessenger",
    "AutoIAFNormal",
    "AutoLaplaceApproximation",
    "AutoLowRankMultivariateNormal",
    "AutoMessenger",
    "AutoMultivariateNormal",
    "AutoNormal",
    "AutoNormalMessenger",
    "AutoNormalizingFlow",
    "AutoRegressiveMessenger",
    "AutoStructured",
    "EasyGuide",
    "NeuTraReparam",
    "StructuredReparam",
]
