"""Objectives: what variational inference minimises.

`protocol` says what they have to offer, `loss_function` makes one of a function of the user's.
`runs` runs guide and model together, `elbo` has what all objectives share and the plain bound,
`score` the terms for draws without pathwise gradients. The others are variations: `mean_field`
(divergences in closed form), `renyi` and `importance` (several particles in one bound),
`wake_sleep` (two losses), `tail_adaptive` (draws weighted by ranks), `divergences` (draws weighted
by other divergences, and an upper bound), `graph` (Rao-Blackwellised
scores with baselines), `enumerated` (exact sums over finite discrete sites), `tmc` (weights of all
combinations of draws), `mmd` (draws like those of the prior) and `energy` (predictions like the
data), which are no bounds. `compiled` has Pyro's names for where steps are compiled.
"""

from typing import TYPE_CHECKING

from probtorch.core.rooms import late_names

if TYPE_CHECKING:  # checkers know the names from here, Python from the table
    from probtorch.infer.objectives.compiled import (
        JitTrace_ELBO as JitTrace_ELBO,
        JitTraceEnum_ELBO as JitTraceEnum_ELBO,
        JitTraceGraph_ELBO as JitTraceGraph_ELBO,
        JitTraceMeanField_ELBO as JitTraceMeanField_ELBO,
    )
    from probtorch.infer.objectives.divergences import (
        CUBO as CUBO,
        FDivergence as FDivergence,
    )
    from probtorch.infer.objectives.elbo import (
        ELBO as ELBO,
        Trace_ELBO as Trace_ELBO,
    )
    from probtorch.infer.objectives.energy import (
        EnergyDistance as EnergyDistance,
    )
    from probtorch.infer.objectives.enumerated import (
        TraceEnum_ELBO as TraceEnum_ELBO,
    )
    from probtorch.infer.objectives.graph import (
        TraceGraph_ELBO as TraceGraph_ELBO,
    )
    from probtorch.infer.objectives.importance import (
        ImportanceWeightedELBO as ImportanceWeightedELBO,
    )
    from probtorch.infer.objectives.mean_field import (
        TraceMeanField_ELBO as TraceMeanField_ELBO,
    )
    from probtorch.infer.objectives.mmd import (
        Trace_MMD as Trace_MMD,
    )
    from probtorch.infer.objectives.protocol import (
        Estimate as Estimate,
        Guide as Guide,
        Objective as Objective,
    )
    from probtorch.infer.objectives.renyi import (
        RenyiELBO as RenyiELBO,
    )
    from probtorch.infer.objectives.tail_adaptive import (
        TraceTailAdaptive_ELBO as TraceTailAdaptive_ELBO,
    )
    from probtorch.infer.objectives.tmc import (
        TraceTMC_ELBO as TraceTMC_ELBO,
    )
    from probtorch.infer.objectives.wake_sleep import (
        ReweightedWakeSleep as ReweightedWakeSleep,
    )
else:
    _HOMES = {
        "compiled": "JitTrace_ELBO JitTraceEnum_ELBO JitTraceGraph_ELBO JitTraceMeanField_ELBO",
        "divergences": "CUBO FDivergence",
        "elbo": "ELBO Trace_ELBO",
        "energy": "EnergyDistance",
        "enumerated": "TraceEnum_ELBO",
        "graph": "TraceGraph_ELBO",
        "importance": "ImportanceWeightedELBO",
        "mean_field": "TraceMeanField_ELBO",
        "mmd": "Trace_MMD",
        "protocol": "Estimate Guide Objective",
        "renyi": "RenyiELBO",
        "tail_adaptive": "TraceTailAdaptive_ELBO",
        "tmc": "TraceTMC_ELBO",
        "wake_sleep": "ReweightedWakeSleep",
    }
    __all__, __getattr__, __dir__ = late_names(__name__, _HOMES)
