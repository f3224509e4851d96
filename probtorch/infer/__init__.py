"""Inference: from a model to draws of its posterior.

`Target` (potential.py) is a model as a log density on R^dim; samplers know nothing else.
`MCMC` (mcmc/) runs one of its kernels, `NUTS` above all, on it. `SVI` fits a guide (guides/) to a
model by an objective (objectives/).
`Predictive` goes the other way, from draws back through the model.
"""

from probtorch.effects.density import log_density
from probtorch.effects.enumeration import config_enumerate
from probtorch.infer import guides, objectives
from probtorch.infer.checkpoint import Checkpoint, CheckpointWarning
from probtorch.infer.discrete import infer_discrete
from probtorch.infer.guides import *  # noqa: F403  # a guide states its name in guides/ alone
from probtorch.infer.mcmc.aies import AIES
from probtorch.infer.mcmc.driver import MCMC
from probtorch.infer.mcmc.hmc import HMC
from probtorch.infer.mcmc.mala import MALA
from probtorch.infer.mcmc.nuts import NUTS
from probtorch.infer.mcmc.pilot import FormsOfSites, choose_reparam
from probtorch.infer.mcmc.random_walk import RandomWalk
from probtorch.infer.mcmc.slice import Slice
from probtorch.infer.objectives import *  # noqa: F403  # and so does an objective
from probtorch.infer.potential import Target
from probtorch.infer.predictive import Predictive, log_likelihood
from probtorch.infer.results import SampledDraws
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
from probtorch.infer.vi.guide_quality import GuideWarning
from probtorch.infer.vi.svi import SVI
from probtorch.infer.vi.svi_result import SVIResult

__all__ = [
    "AIES",
    "Checkpoint",
    "CheckpointWarning",
    "FormsOfSites",
    "GuideWarning",
    "HMC",
    "MALA",
    "MCMC",
    "NUTS",
    "Predictive",
    "RandomWalk",
    "SVI",
    "SVIResult",
    "SampledDraws",
    "Slice",
    "Target",
    "choose_reparam",
    "config_enumerate",
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
]
__all__ += guides.__all__
__all__ += objectives.__all__
