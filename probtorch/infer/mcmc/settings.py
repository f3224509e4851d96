"""Settings of `MCMC`, checked: one of two names, whole numbers, what other libraries call them."""

from __future__ import annotations

from typing import TYPE_CHECKING, SupportsIndex, TypeVar

import numpy as np

from probtorch.errors import ArgumentError

if TYPE_CHECKING:
    pass

__all__ = ["MEANT", "count", "one_of"]

T = TypeVar("T")

# Settings of the kernel that are given to the driver, and where they go.
_ELSEWHERE = (
    "target_accept target_accept_prob adapt_delta max_treedepth max_tree_depth step_size "
    "full_mass dense_mass init_strategy"
)
_KERNEL = "it belongs to the kernel: NUTS(model, target_accept_prob=0.9, max_tree_depth=10)"
# What other libraries call the settings, or where they belong.
MEANT = {
    "draws": "num_samples",
    "n_samples": "num_samples",
    "iter": "num_samples",
    "tune": "warmup_steps",
    "warmup": "warmup_steps",
    "chains": "num_chains",
    "cores": "num_threads",
    "thin": "thinning",
    "random_seed": "seed",
    "rng_key": "seed",
    "progressbar": "progress_bar",
    "model": "wrap the model in a kernel: MCMC(NUTS(model), num_samples=1000)",
    **dict.fromkeys(_ELSEWHERE.split(), _KERNEL),
}


def one_of(name: str, value: T, alias: str, other: T) -> T:
    """Return the one of two names of a setting that was given."""
    if value is not None and other is not None:
        raise ArgumentError(
            f"MCMC({name}, {alias})",
            expected=f"{name} or {alias}",
            got="both",
            fix=f"leave {alias} out",
        )
    return other if value is None else value


def count(name: str, value: SupportsIndex | None, least: int) -> int:
    """Return a setting as an int of at least `least`."""
    if (
        value is None
        or isinstance(value, (bool, np.bool_))
        or not hasattr(value, "__index__")
        or value.__index__() < least
    ):
        raise ArgumentError(
            f"MCMC({name}=...)",
            expected=f"an integer of at least {least}",
            got=repr(value),
            fix=f"for example {name}=1000",
        )
    return value.__index__()
