"""Inference: from a model to draws of its posterior.

`Target` (potential.py) is a model as a log density on R^dim; samplers know nothing else.
`MCMC` (mcmc/) runs one of its kernels, `NUTS` above all, on it. `SVI` (vi/) fits a guide (guides/)
to a model by an objective (objectives/). approximations/ needs no guide; what works with weighted
particles is in sequential/. `Predictive` (prediction/) goes the other way, from draws back through
the model; `check` (critique/) asks what speaks against it, and `fit` (plans/) picks one of all.
"""

from probtorch.effects.density import log_density
from probtorch.effects.enumeration import config_enumerate
from probtorch.infer import approximations, guides, objectives, sequential
from probtorch.infer.approximations import *  # noqa: F403  # an approximation states its name there alone
from probtorch.infer.checkpoint import Checkpoint, CheckpointWarning
from probtorch.infer.critique.check_report import CheckReport
from probtorch.infer.critique.checking import check
from probtorch.infer.critique.criticism import loo_kfold, loo_moment_match, reloo
from probtorch.infer.critique.sensitivity import Sensitivity, power_sensitivity
from probtorch.infer.discrete import infer_discrete
from probtorch.infer.guides import *  # noqa: F403  # a guide states its name in guides/ alone
from probtorch.infer.many.fit_many import fit_many
from probtorch.infer.many.many_fits import ManyFits
from probtorch.infer.mcmc.driver import MCMC
from probtorch.infer.mcmc.gibbs.gibbs import Gibbs
from probtorch.infer.mcmc.gibbs.given_updates import FullConditional
from probtorch.infer.mcmc.gibbs.hmc_gibbs import DiscreteHMCGibbs, HMCGibbs
from probtorch.infer.mcmc.gibbs.mixed_hmc import MixedHMC
from probtorch.infer.mcmc.handle import ChainProgress, RunHandle, RunProgress
from probtorch.infer.mcmc.kernels.adjusted_mclmc import AdjustedMCLMC
from probtorch.infer.mcmc.kernels.aies import AIES
from probtorch.infer.mcmc.kernels.barker import BarkerMH
from probtorch.infer.mcmc.kernels.chees import ChEESHMC
from probtorch.infer.mcmc.kernels.differential_evolution import DEMetropolis
from probtorch.infer.mcmc.kernels.dynamic_hmc import DynamicHMC
from probtorch.infer.mcmc.kernels.elliptical_slice import EllipticalSlice
from probtorch.infer.mcmc.kernels.ensemble_slice import ESS
from probtorch.infer.mcmc.kernels.ghmc import GHMC
from probtorch.infer.mcmc.kernels.hmc import HMC
from probtorch.infer.mcmc.kernels.mala import MALA
from probtorch.infer.mcmc.kernels.mclmc import MCLMC
from probtorch.infer.mcmc.kernels.meads import MEADS
from probtorch.infer.mcmc.kernels.nuts import NUTS
from probtorch.infer.mcmc.kernels.random_walk import RandomWalk, RandomWalkKernel
from probtorch.infer.mcmc.kernels.replica_exchange import ReplicaExchange
from probtorch.infer.mcmc.kernels.rmhmc import RMHMC
from probtorch.infer.mcmc.kernels.slice import Slice
from probtorch.infer.mcmc.kernels.snaper import SNAPERHMC
from probtorch.infer.mcmc.pilot import FormsOfSites, choose_reparam
from probtorch.infer.mcmc.subsampling.hmcecs import HMCECS
from probtorch.infer.mcmc.subsampling.sghmc import SGHMC
from probtorch.infer.mcmc.subsampling.sgld import SGLD
from probtorch.infer.mcmc.subsampling.sgnht import SGNHT
from probtorch.infer.objectives import *  # noqa: F403  # and so does an objective
from probtorch.infer.plans.planned import Fitted, fit
from probtorch.infer.plans.planning import Plan
from probtorch.infer.potential import Target
from probtorch.infer.prediction.predictive import Predictive, log_likelihood
from probtorch.infer.results import SampledDraws
from probtorch.infer.sequential import *  # noqa: F403  # and so does what works with particles
from probtorch.infer.starts.initialization import (
    init_to_feasible,
    init_to_generated,
    init_to_mean,
    init_to_median,
    init_to_sample,
    init_to_uniform,
    init_to_value,
)
from probtorch.infer.starts.path_starts import init_to_typical_set
from probtorch.infer.starts.pathfinder import init_to_pathfinder
from probtorch.infer.vi.best_of_starts import BestOfStarts, best_of_starts
from probtorch.infer.vi.converged import Converged
from probtorch.infer.vi.guide_quality import GuideWarning
from probtorch.infer.vi.svi import SVI
from probtorch.infer.vi.svi_result import SVIResult

__all__ = [
    "AIES",
    "AdjustedMCLMC",
    "BarkerMH",
    "BestOfStarts",
    "ChEESHMC",
    "ChainProgress",
    "CheckReport",
    "Checkpoint",
    "CheckpointWarning",
    "Converged",
    "DEMetropolis",
    "DiscreteHMCGibbs",
    "DynamicHMC",
    "ESS",
    "EllipticalSlice",
    "Fitted",
    "FormsOfSites",
    "FullConditional",
    "GHMC",
    "Gibbs",
    "GuideWarning",
    "HMC",
    "HMCECS",
    "HMCGibbs",
    "MALA",
    "MCLMC",
    "MCMC",
    "MEADS",
    "ManyFits",
    "MixedHMC",
    "NUTS",
    "Plan",
    "Predictive",
    "RMHMC",
    "RandomWalk",
    "RandomWalkKernel",
    "ReplicaExchange",
    "RunHandle",
    "RunProgress",
    "SGHMC",
    "SGLD",
    "SGNHT",
    "SNAPERHMC",
    "SVI",
    "SVIResult",
    "SampledDraws",
    "Sensitivity",
    "Slice",
    "Target",
    "best_of_starts",
    "check",
    "choose_reparam",
    "config_enumerate",
    "fit",
    "fit_many",
    "infer_discrete",
    "init_to_feasible",
    "init_to_generated",
    "init_to_mean",
    "init_to_median",
    "init_to_pathfinder",
    "init_to_sample",
    "init_to_typical_set",
    "init_to_uniform",
    "init_to_value",
    "log_density",
    "log_likelihood",
    "loo_kfold",
    "loo_moment_match",
    "power_sensitivity",
    "reloo",
]
__all__ += approximations.__all__
__all__ += guides.__all__
__all__ += objectives.__all__
__all__ += sequential.__all__
