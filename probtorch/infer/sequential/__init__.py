"""Sequential and importance sampling: particles, their weights, and the evidence they estimate.

`Importance` (importance.py) weights the draws of a guide or of the prior; `CSIS` (csis.py) trains
the guide, and `AutoProposal` (proposals.py) is one that writes itself. `SMC` (smc.py) goes from the
prior to the posterior by temperatures (tempering.py); any kernel moves its particles (mutation.py).
`AIS` (ais.py) goes the same way by weights alone.
`NestedSampler` (nested_sampler.py) goes there by levels of the likelihood; the run of both is that
of `MovedParticles` (moved_particles.py).
`ParticleFilter` (particle_filter.py) follows the states of a series that is given by functions
(its result, filtered_states.py, answers as others do by of_series.py),
`EnsembleKalmanFilter` (ensemble_kalman.py) such a series by a Gaussian's members, `SMCFilter`
(smc_filter.py) one of sample statements; `ParticleGibbs` (particle_gibbs.py) is a chain
of runs of any program, and so is `InvolutiveMCMC` (involutive.py), by moves that are stated; what
both share is run_course.py, and their runs are `RunDraws` (run_draws.py). `ABC` (abc.py) and
`ABCSMC` (abc_smc.py) need simulations only (simulations.py).

weights.py is what all here share: effective sizes, resampling, the mean weight with its error.
Results with weights are `WeightedDraws` (weighted_draws.py).
"""

from typing import TYPE_CHECKING

from probtorch.core.rooms import late_names

if TYPE_CHECKING:  # checkers know the names from here, Python from the table
    from probtorch.infer.sequential.abc import ABC as ABC, SimulationWarning as SimulationWarning
    from probtorch.infer.sequential.abc_smc import ABCSMC as ABCSMC
    from probtorch.infer.sequential.ais import AIS as AIS
    from probtorch.infer.sequential.course import (
        SMCWarning as SMCWarning,
    )
    from probtorch.infer.sequential.csis import (
        CSIS as CSIS,
    )
    from probtorch.infer.sequential.ensemble_kalman import (
        EnsembleKalmanFilter as EnsembleKalmanFilter,
        EnsembleStates as EnsembleStates,
    )
    from probtorch.infer.sequential.filtered_states import (
        FilteredStates as FilteredStates,
    )
    from probtorch.infer.sequential.importance import (
        Importance as Importance,
        psis_diagnostic as psis_diagnostic,
    )
    from probtorch.infer.sequential.involutive import (
        Involution as Involution,
        InvolutiveMCMC as InvolutiveMCMC,
    )
    from probtorch.infer.sequential.nested_course import (
        NestedSamplingWarning as NestedSamplingWarning,
    )
    from probtorch.infer.sequential.nested_sampler import (
        NestedDraws as NestedDraws,
        NestedSampler as NestedSampler,
    )
    from probtorch.infer.sequential.particle_filter import (
        ParticleFilter as ParticleFilter,
    )
    from probtorch.infer.sequential.particle_gibbs import (
        ParticleGibbs as ParticleGibbs,
    )
    from probtorch.infer.sequential.proposals import (
        AutoProposal as AutoProposal,
    )
    from probtorch.infer.sequential.run_draws import (
        RunDraws as RunDraws,
    )
    from probtorch.infer.sequential.smc import (
        SMC as SMC,
        SMCDraws as SMCDraws,
    )
    from probtorch.infer.sequential.smc_filter import (
        SMCFilter as SMCFilter,
    )
    from probtorch.infer.sequential.weighted_draws import (
        ImportanceWarning as ImportanceWarning,
        WeightedDraws as WeightedDraws,
    )
else:
    _HOMES = {
        "abc": "ABC SimulationWarning",
        "abc_smc": "ABCSMC",
        "ais": "AIS",
        "course": "SMCWarning",
        "csis": "CSIS",
        "ensemble_kalman": "EnsembleKalmanFilter EnsembleStates",
        "filtered_states": "FilteredStates",
        "importance": "Importance psis_diagnostic",
        "involutive": "Involution InvolutiveMCMC",
        "nested_course": "NestedSamplingWarning",
        "nested_sampler": "NestedDraws NestedSampler",
        "particle_filter": "ParticleFilter",
        "particle_gibbs": "ParticleGibbs",
        "proposals": "AutoProposal",
        "run_draws": "RunDraws",
        "smc": "SMC SMCDraws",
        "smc_filter": "SMCFilter",
        "weighted_draws": "ImportanceWarning WeightedDraws",
    }
    __all__, __getattr__, __dir__ = late_names(__name__, _HOMES)
