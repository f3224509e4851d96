"""Random streams and draws, from core/rng.py, and from sampling.py and its kin in ops.

The state of the default generator is a tensor of its three integers under PyTorch's names, as that
is what scripts save.
"""

import contextlib
from collections.abc import Iterable, Iterator

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.core.rng import Generator, GeneratorState, default_generator, manual_seed
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.errors import ArgumentError
from probtorch.ops.categories import bernoulli, categorical, multinomial
from probtorch.ops.random_integers import randint, randperm
from probtorch.ops.sampling import exponential, normal, rand, rand_like, randn, randn_like, uniform
from probtorch.ops.variates import binomial, poisson, standard_gamma, standard_log_gamma, von_mises

__all__ = [
    "Generator",
    "GeneratorState",
    "bernoulli",
    "binomial",
    "categorical",
    "default_generator",
    "exponential",
    "fork_rng",
    "get_rng_state",
    "initial_seed",
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
    "seed",
    "set_rng_state",
    "standard_gamma",
    "standard_log_gamma",
    "uniform",
    "von_mises",
]


def get_rng_state() -> TensorBase:
    """Return the state of the default generator: seed, stream and counter, int64 of shape (3,)."""
    return wrap(np.array(default_generator.get_state(), np.uint64).view(np.int64))


def set_rng_state(new_state: TensorLike) -> None:
    """Resume the default generator from what `get_rng_state` returned.

    Raises
    ------
    ArgumentError
        If it is something else.
    """
    state = as_tensor(new_state, "set_rng_state").array
    if state.shape != (3,) or state.dtype != np.int64:
        raise ArgumentError(
            "set_rng_state",
            expected="what get_rng_state returned: int64 of shape (3,)",
            got=f"{state.dtype} of shape {state.shape}",
            fix="states of other libraries mean nothing here: use manual_seed",
        )
    first, stream, counter = (int(n) for n in state.view(np.uint64))
    default_generator.set_state((first, stream, counter))


def seed() -> int:
    """Seed the default generator by the operating system, and return that seed."""
    return default_generator.seed()


def initial_seed() -> int:
    """Return the seed of the default generator."""
    return default_generator.initial_seed()


@contextlib.contextmanager
def fork_rng(devices: Iterable[object] | None = None, enabled: bool = True) -> Iterator[None]:
    """Leave the default generator as it was before the block, whatever is drawn within.

    Parameters
    ----------
    devices : optional
        Accepted for PyTorch's sake: a stream is the same on all devices.
    enabled : bool
    """
    before = default_generator.get_state()
    try:
        yield
    finally:
        if enabled:
            default_generator.set_state(before)


explain_calls(globals())
