"""Objectives: what variational inference minimises.

`protocol` says what they have to offer, `loss_function` makes one of a function of the user's.
`runs` runs guide and model together, `elbo` has what all objectives share and the plain bound,
`score` the terms for draws without pathwise gradients. The others are variations: `mean_field`
(divergences in closed form), `renyi` and `importance` (several particles in one bound),
`wake_sleep` (two losses), `tail_adaptive` (draws weighted by ranks), `graph` (Rao-Blackwellised
scores with baselines), `enumerated` (exact sums over finite discrete sites), `tmc` (weights of all
combinations of draws). `compiled` has Pyro's names for where steps are compiled.
"""

from probtorch.infer.objectives.compiled import (
    JitTrace_ELBO,
    JitTraceEnum_ELBO,
    JitTraceGraph_ELBO,
    JitTraceMeanField_ELBO,
)
from probtorch.infer.objectives.elbo import ELBO, Trace_ELBO
from probtorch.infer.objectives.enumerated import TraceEnum_ELBO
from probtorch.infer.objectives.graph import TraceGraph_ELBO
from probtorch.infer.objectives.importance import ImportanceWeightedELBO
from probtorch.infer.objectives.mean_field import TraceMeanField_ELBO
from probtorch.infer.objectives.protocol import Estimate, Guide, Objective
from probtorch.infer.objectives.renyi import RenyiELBO
from probtorch.infer.objectives.tail_adaptive import TraceTailAdaptive_ELBO
from probtorch.infer.objectives.tmc import TraceTMC_ELBO
from probtorch.infer.objectives.wake_sleep import ReweightedWakeSleep

__all__ = [
    "ELBO",
    "Estimate",
    "Guide",
    "ImportanceWeightedELBO",
    "JitTraceEnum_ELBO",
    "JitTraceGraph_ELBO",
    "JitTraceMeanField_ELBO",
    "JitTrace_ELBO",
    "Objective",
    "RenyiELBO",
    "ReweightedWakeSleep",
    "TraceEnum_ELBO",
    "TraceGraph_ELBO",
    "TraceMeanField_ELBO",
    "TraceTMC_ELBO",
    "TraceTailAdaptive_ELBO",
    "Trace_ELBO",
]
