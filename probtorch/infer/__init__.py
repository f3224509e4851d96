"""Inference: from a model to draws of its posterior.

`Target` (potential.py) is a model as a log density on R^dim; samplers know nothing else.
`MCMC` (mcmc/) runs one of its kernels, `NUTS` above all, on it. `SVI` (vi/) fits a guide (guides/)
to a model by an objective (objectives/). approximations/ needs no guide; what works with weighted
particles is in sequential/. `Predictive` (prediction/) goes the other way, from draws back through
the model; `check` (critique/) asks what speaks against it, and `fit` (plans/) picks one of all.
"""

from typing import TYPE_CHECKING

from probtorch.core.rooms import late_names
from probtorch.infer import approximations, guides, objectives, sequential
from probtorch.infer.absent import INSTEAD

if TYPE_CHECKING:  # checkers know the names from here, Python from the table
    from probtorch.core.validation import (
        enable_validation as enable_validation,
        is_validation_enabled as is_validation_enabled,
    )
    from probtorch.effects.density import (
        log_density as log_density,
    )
    from probtorch.effects.enumerable import config_enumerate as config_enumerate
    from probtorch.infer.approximations import *
    from probtorch.infer.background import (
        BackgroundRun as BackgroundRun,
        in_background as in_background,
    )
    from probtorch.infer.checkpoint import (
        Checkpoint as Checkpoint,
        CheckpointWarning as CheckpointWarning,
    )
    from probtorch.infer.critique.check_report import (
        CheckReport as CheckReport,
    )
    from probtorch.infer.critique.checking import (
        check as check,
    )
    from probtorch.infer.critique.criticism import loo_kfold as loo_kfold, reloo as reloo
    from probtorch.infer.critique.moment_match import loo_moment_match as loo_moment_match
    from probtorch.infer.critique.sensitivity import (
        Sensitivity as Sensitivity,
        power_sensitivity as power_sensitivity,
    )
    from probtorch.infer.discrete import (
        infer_discrete as infer_discrete,
    )
    from probtorch.infer.guides import *
    from probtorch.infer.many.fit_many import (
        fit_many as fit_many,
    )
    from probtorch.infer.many.many_fits import (
        ManyFits as ManyFits,
    )
    from probtorch.infer.mcmc.driver import (
        MCMC as MCMC,
    )
    from probtorch.infer.mcmc.gibbs.gibbs import (
        Gibbs as Gibbs,
    )
    from probtorch.infer.mcmc.gibbs.given_updates import (
        FullConditional as FullConditional,
    )
    from probtorch.infer.mcmc.gibbs.hmc_gibbs import (
        DiscreteHMCGibbs as DiscreteHMCGibbs,
        HMCGibbs as HMCGibbs,
    )
    from probtorch.infer.mcmc.gibbs.mixed_hmc import (
        MixedHMC as MixedHMC,
    )
    from probtorch.infer.mcmc.handle import (
        ChainProgress as ChainProgress,
        RunHandle as RunHandle,
        RunProgress as RunProgress,
    )
    from probtorch.infer.mcmc.kernels.adjusted_mclmc import (
        AdjustedMCLMC as AdjustedMCLMC,
    )
    from probtorch.infer.mcmc.kernels.aies import (
        AIES as AIES,
    )
    from probtorch.infer.mcmc.kernels.barker import (
        BarkerMH as BarkerMH,
    )
    from probtorch.infer.mcmc.kernels.chees import (
        ChEESHMC as ChEESHMC,
    )
    from probtorch.infer.mcmc.kernels.differential_evolution import (
        DEMetropolis as DEMetropolis,
    )
    from probtorch.infer.mcmc.kernels.dynamic_hmc import (
        DynamicHMC as DynamicHMC,
    )
    from probtorch.infer.mcmc.kernels.elliptical_slice import (
        EllipticalSlice as EllipticalSlice,
    )
    from probtorch.infer.mcmc.kernels.ensemble_slice import (
        ESS as ESS,
    )
    from probtorch.infer.mcmc.kernels.ghmc import (
        GHMC as GHMC,
    )
    from probtorch.infer.mcmc.kernels.gist import (
        GIST as GIST,
    )
    from probtorch.infer.mcmc.kernels.hmc import (
        HMC as HMC,
    )
    from probtorch.infer.mcmc.kernels.independent import (
        IndependentMH as IndependentMH,
    )
    from probtorch.infer.mcmc.kernels.mala import (
        MALA as MALA,
    )
    from probtorch.infer.mcmc.kernels.malt import (
        MALT as MALT,
    )
    from probtorch.infer.mcmc.kernels.mclmc import (
        MCLMC as MCLMC,
    )
    from probtorch.infer.mcmc.kernels.meads import (
        MEADS as MEADS,
    )
    from probtorch.infer.mcmc.kernels.nuts import (
        NUTS as NUTS,
    )
    from probtorch.infer.mcmc.kernels.orbital import (
        OrbitalHMC as OrbitalHMC,
    )
    from probtorch.infer.mcmc.kernels.random_walk import (
        RandomWalk as RandomWalk,
        RandomWalkKernel as RandomWalkKernel,
    )
    from probtorch.infer.mcmc.kernels.replica_exchange import (
        ReplicaExchange as ReplicaExchange,
    )
    from probtorch.infer.mcmc.kernels.rmhmc import (
        RMHMC as RMHMC,
    )
    from probtorch.infer.mcmc.kernels.sample_adaptive import (
        SA as SA,
    )
    from probtorch.infer.mcmc.kernels.slice import (
        Slice as Slice,
    )
    from probtorch.infer.mcmc.kernels.smmala import (
        SMMALA as SMMALA,
    )
    from probtorch.infer.mcmc.kernels.snaper import (
        SNAPERHMC as SNAPERHMC,
    )
    from probtorch.infer.mcmc.pilot import (
        FormsOfSites as FormsOfSites,
        choose_reparam as choose_reparam,
    )
    from probtorch.infer.mcmc.subsampling.cyclical_sgld import (
        CyclicalSGLD as CyclicalSGLD,
    )
    from probtorch.infer.mcmc.subsampling.hmcecs import (
        HMCECS as HMCECS,
    )
    from probtorch.infer.mcmc.subsampling.sghmc import (
        SGHMC as SGHMC,
    )
    from probtorch.infer.mcmc.subsampling.sgld import (
        SGLD as SGLD,
    )
    from probtorch.infer.mcmc.subsampling.sgnht import (
        SGNHT as SGNHT,
    )
    from probtorch.infer.objectives import *
    from probtorch.infer.plans.fitted import (
        Fitted as Fitted,
    )
    from probtorch.infer.plans.planned import (
        fit as fit,
    )
    from probtorch.infer.plans.planning import (
        Plan as Plan,
    )
    from probtorch.infer.potential import (
        Target as Target,
    )
    from probtorch.infer.prediction.predictive import (
        Predictive as Predictive,
        log_likelihood as log_likelihood,
    )
    from probtorch.infer.results import (
        SampledDraws as SampledDraws,
    )
    from probtorch.infer.sequential import *
    from probtorch.infer.starts.initialization import (
        init_to_feasible as init_to_feasible,
        init_to_generated as init_to_generated,
        init_to_mean as init_to_mean,
        init_to_median as init_to_median,
        init_to_sample as init_to_sample,
        init_to_uniform as init_to_uniform,
        init_to_value as init_to_value,
    )
    from probtorch.infer.starts.path_starts import (
        init_to_typical_set as init_to_typical_set,
    )
    from probtorch.infer.starts.pathfinder import (
        init_to_pathfinder as init_to_pathfinder,
    )
    from probtorch.infer.vi.best_of_starts import (
        BestOfStarts as BestOfStarts,
        best_of_starts as best_of_starts,
    )
    from probtorch.infer.vi.converged import (
        Converged as Converged,
    )
    from probtorch.infer.vi.guide_quality import (
        GuideWarning as GuideWarning,
    )
    from probtorch.infer.vi.svi import (
        SVI as SVI,
    )
    from probtorch.infer.vi.svi_result import (
        SVIResult as SVIResult,
    )
    from probtorch.infer.util import (
        initialize_model as initialize_model,
    )
else:
    _HOMES = {
        "background": "BackgroundRun in_background",
        "checkpoint": "Checkpoint CheckpointWarning",
        "critique.check_report": "CheckReport",
        "critique.checking": "check",
        "critique.criticism": "loo_kfold reloo",
        "critique.moment_match": "loo_moment_match",
        "critique.sensitivity": "Sensitivity power_sensitivity",
        "discrete": "infer_discrete",
        "many.fit_many": "fit_many",
        "many.many_fits": "ManyFits",
        "mcmc.driver": "MCMC",
        "mcmc.gibbs.gibbs": "Gibbs",
        "mcmc.gibbs.given_updates": "FullConditional",
        "mcmc.gibbs.hmc_gibbs": "DiscreteHMCGibbs HMCGibbs",
        "mcmc.gibbs.mixed_hmc": "MixedHMC",
        "mcmc.handle": "ChainProgress RunHandle RunProgress",
        "mcmc.kernels.adjusted_mclmc": "AdjustedMCLMC",
        "mcmc.kernels.aies": "AIES",
        "mcmc.kernels.barker": "BarkerMH",
        "mcmc.kernels.chees": "ChEESHMC",
        "mcmc.kernels.differential_evolution": "DEMetropolis",
        "mcmc.kernels.dynamic_hmc": "DynamicHMC",
        "mcmc.kernels.elliptical_slice": "EllipticalSlice",
        "mcmc.kernels.ensemble_slice": "ESS",
        "mcmc.kernels.ghmc": "GHMC",
        "mcmc.kernels.gist": "GIST",
        "mcmc.kernels.hmc": "HMC",
        "mcmc.kernels.independent": "IndependentMH",
        "mcmc.kernels.mala": "MALA",
        "mcmc.kernels.malt": "MALT",
        "mcmc.kernels.mclmc": "MCLMC",
        "mcmc.kernels.meads": "MEADS",
        "mcmc.kernels.nuts": "NUTS",
        "mcmc.kernels.orbital": "OrbitalHMC",
        "mcmc.kernels.random_walk": "RandomWalk RandomWalkKernel",
        "mcmc.kernels.replica_exchange": "ReplicaExchange",
        "mcmc.kernels.rmhmc": "RMHMC",
        "mcmc.kernels.sample_adaptive": "SA",
        "mcmc.kernels.slice": "Slice",
        "mcmc.kernels.smmala": "SMMALA",
        "mcmc.kernels.snaper": "SNAPERHMC",
        "mcmc.pilot": "FormsOfSites choose_reparam",
        "mcmc.subsampling.cyclical_sgld": "CyclicalSGLD",
        "mcmc.subsampling.hmcecs": "HMCECS",
        "mcmc.subsampling.sghmc": "SGHMC",
        "mcmc.subsampling.sgld": "SGLD",
        "mcmc.subsampling.sgnht": "SGNHT",
        "plans.fitted": "Fitted",
        "plans.planned": "fit",
        "plans.planning": "Plan",
        "potential": "Target",
        "prediction.predictive": "Predictive log_likelihood",
        "probtorch.core.validation": "enable_validation is_validation_enabled",
        "probtorch.effects.density": "log_density",
        "probtorch.effects.enumerable": "config_enumerate",
        "results": "SampledDraws",
        "starts.initialization": (
            "init_to_feasible init_to_generated init_to_mean init_to_median init_to_sample "
            "init_to_uniform init_to_value"
        ),
        "starts.path_starts": "init_to_typical_set",
        "starts.pathfinder": "init_to_pathfinder",
        "vi.best_of_starts": "BestOfStarts best_of_starts",
        "vi.converged": "Converged",
        "vi.guide_quality": "GuideWarning",
        "vi.svi": "SVI",
        "vi.svi_result": "SVIResult",
        "util": "initialize_model",
        "approximations": " ".join(approximations.__all__),
        "guides": " ".join(guides.__all__),
        "objectives": " ".join(objectives.__all__),
        "sequential": " ".join(sequential.__all__),
    }
    __all__, __getattr__, __dir__ = late_names(__name__, _HOMES, instead=INSTEAD)
