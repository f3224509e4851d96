"""Random streams and draws; the streams are from core/rng.py, the draws from ops/sampling.py."""

from probtorch.core.rng import Generator, GeneratorState, default_generator, manual_seed
from probtorch.ops.sampling import (
    bernoulli,
    binomial,
    categorical,
    exponential,
    multinomial,
    normal,
    poisson,
    rand,
    rand_like,
    randint,
    randn,
    randn_like,
    randperm,
    standard_gamma,
    standard_log_gamma,
    uniform,
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
]
