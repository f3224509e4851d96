"""Random streams and draws, from core/rng.py, ops/sampling.py and ops/variates.py."""

from probtorch.core.rng import Generator, GeneratorState, default_generator, manual_seed
from probtorch.ops.sampling import (
    bernoulli,
    categorical,
    exponential,
    multinomial,
    normal,
    rand,
    rand_like,
    randint,
    randn,
    randn_like,
    randperm,
    uniform,
)
from probtorch.ops.variates import (
    binomial,
    poisson,
    standard_gamma,
    standard_log_gamma,
    von_mises,
)

__all__ = [
    "Generator",
    "GeneratorState",
    "bernoulli",
    "binomial",
    "categorical",
    "default_generator",
    "exponential",
    "manual_seed",
    "multinomial",
    "normal",
    "poisson",
    "rand",
    "rand_like",
    "randint",
    "randn",
    "randn_like",
    "randperm",
    "standard_gamma",
    "standard_log_gamma",
    "uniform",
    "von_mises",
]
