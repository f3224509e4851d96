"""Sequential and importance sampling: particles, their weights, and the evidence they estimate.

`Importance` (importance.py) weights the draws of a guide or of the prior; `CSIS` (csis.py) trains
the guide. `SMC` (smc.py) goes from the prior to the posterior by temperatures (tempering.py); any
kernel moves its particles (mutation.py). `ParticleFilter` (particle_filter.py) follows the
states of a series that is given by functions, `SMCFilter` (smc_filter.py) one of sample statements;
`ParticleGibbs` (particle_gibbs.py) is a chain of runs of any program. `ABC` and `ABCSMC` (abc.py)
need simulations only (simulations.py).

weights.py is what all here share: effective sizes, resampling, the mean weight with its error.
Results with weights are `WeightedDraws` (weighted_draws.py).
"""

from probtorch.infer.sequential.abc import ABC, ABCSMC, SimulationWarning
from probtorch.infer.sequential.course import SMCWarning
from probtorch.infer.sequential.csis import CSIS
from probtorch.infer.sequential.importance import Importance
from probtorch.infer.sequential.particle_filter import FilteredStates, ParticleFilter
from probtorch.infer.sequential.particle_gibbs import ParticleGibbs, RunDraws
from probtorch.infer.sequential.smc import SMC, SMCDraws
from probtorch.infer.sequential.smc_filter import SMCFilter
from probtorch.infer.sequential.weighted_draws import ImportanceWarning, WeightedDraws

__all__ = [
    "ABC",
    "ABCSMC",
    "CSIS",
    "SMC",
    "FilteredStates",
    "Importance",
    "ImportanceWarning",
    "ParticleFilter",
    "ParticleGibbs",
    "RunDraws",
    "SMCDraws",
    "SMCFilter",
    "SMCWarning",
    "SimulationWarning",
    "WeightedDraws",
]
