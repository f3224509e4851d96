"""Guides that write themselves: families of distributions over the latent sites of any model.

`base` meets the model and puts unconstrained values back in their plates; `mean_field` treats every
number alone, `joint` all of them as one vector (`low_rank` is its distribution with few
directions, `gaussian` the one with the model's zeros in the precision, `batched` one without ties
between rows), `flow` sends such a vector through learned transforms. `structured` gives each site a
distribution that depends on the sites before it, which `structure` reads off the model and `layout`
puts into rows; `discrete_sites` has tables of probabilities, `dais` moves draws by the model's
gradients (in the steps of `annealing`), `surrogate` by those of a cheaper one, `semi_dais` the rows
of a plate alone, `messenger` runs the model with other distributions, `asvi` with the priors' own,
mixed. `by_hand` has what a user writes, `composite` makes one guide of several, and `reparams`
changes the coordinates of a sampler by a fitted guide.
"""

from typing import TYPE_CHECKING

from probtorch.core.rooms import late_names

if TYPE_CHECKING:  # checkers know the names from here, Python from the table
    from probtorch.infer.guides.asvi import (
        AutoASVI as AutoASVI,
    )
    from probtorch.infer.guides.base import (
        AutoGuide as AutoGuide,
    )
    from probtorch.infer.guides.batched import (
        AutoBatchedLowRankMultivariateNormal as AutoBatchedLowRankMultivariateNormal,
        AutoBatchedMultivariateNormal as AutoBatchedMultivariateNormal,
    )
    from probtorch.infer.guides.by_hand import (
        AutoCallable as AutoCallable,
        EasyGuide as EasyGuide,
    )
    from probtorch.infer.guides.composite import (
        AutoGuideList as AutoGuideList,
    )
    from probtorch.infer.guides.dais import (
        AutoDAIS as AutoDAIS,
    )
    from probtorch.infer.guides.discrete_sites import (
        AutoDiscreteParallel as AutoDiscreteParallel,
    )
    from probtorch.infer.guides.flow import (
        AutoBNAFNormal as AutoBNAFNormal,
        AutoIAFNormal as AutoIAFNormal,
        AutoNormalizingFlow as AutoNormalizingFlow,
    )
    from probtorch.infer.guides.gaussian import (
        AutoGaussian as AutoGaussian,
    )
    from probtorch.infer.guides.joint import (
        AutoContinuous as AutoContinuous,
        AutoDiagonalNormal as AutoDiagonalNormal,
        AutoLaplaceApproximation as AutoLaplaceApproximation,
        AutoLowRankMultivariateNormal as AutoLowRankMultivariateNormal,
        AutoMultivariateNormal as AutoMultivariateNormal,
    )
    from probtorch.infer.guides.mean_field import (
        AutoDelta as AutoDelta,
        AutoNormal as AutoNormal,
    )
    from probtorch.infer.guides.messenger import (
        AutoHierarchicalNormalMessenger as AutoHierarchicalNormalMessenger,
        AutoMessenger as AutoMessenger,
        AutoNormalMessenger as AutoNormalMessenger,
        AutoRegressiveMessenger as AutoRegressiveMessenger,
    )
    from probtorch.infer.guides.reparams import (
        NeuTraReparam as NeuTraReparam,
        StructuredReparam as StructuredReparam,
    )
    from probtorch.infer.guides.semi_dais import (
        AutoSemiDAIS as AutoSemiDAIS,
    )
    from probtorch.infer.guides.structured import (
        AutoStructured as AutoStructured,
    )
    from probtorch.infer.guides.surrogate import (
        AutoSurrogateLikelihoodDAIS as AutoSurrogateLikelihoodDAIS,
    )
else:
    _HOMES = {
        "asvi": "AutoASVI",
        "base": "AutoGuide",
        "batched": "AutoBatchedLowRankMultivariateNormal AutoBatchedMultivariateNormal",
        "by_hand": "AutoCallable EasyGuide",
        "composite": "AutoGuideList",
        "dais": "AutoDAIS",
        "discrete_sites": "AutoDiscreteParallel",
        "flow": "AutoBNAFNormal AutoIAFNormal AutoNormalizingFlow",
        "gaussian": "AutoGaussian",
        "joint": (
            "AutoContinuous AutoDiagonalNormal AutoLaplaceApproximation "
            "AutoLowRankMultivariateNormal AutoMultivariateNormal"
        ),
        "mean_field": "AutoDelta AutoNormal",
        "messenger": (
            "AutoHierarchicalNormalMessenger AutoMessenger AutoNormalMessenger "
            "AutoRegressiveMessenger"
        ),
        "reparams": "NeuTraReparam StructuredReparam",
        "semi_dais": "AutoSemiDAIS",
        "structured": "AutoStructured",
        "surrogate": "AutoSurrogateLikelihoodDAIS",
    }
    __all__, __getattr__, __dir__ = late_names(__name__, _HOMES)
