"""Pyro's and NumPyro's name for the guides that write themselves, and for where they begin.

What is here is in `probtorch.infer.guides` and `probtorch.infer.starts`.
"""

from probtorch.infer.guides import *  # noqa: F403  # a guide states its name there alone
from probtorch.infer.guides import __all__ as _guides  # type: ignore[attr-defined]  # by a table
from probtorch.infer.starts.initialization import (
    init_to_feasible,
    init_to_generated,
    init_to_mean,
    init_to_median,
    init_to_sample,
    init_to_uniform,
    init_to_value,
)

__all__ = [
    *_guides,
    "init_to_feasible",
    "init_to_generated",
    "init_to_mean",
    "init_to_median",
    "init_to_sample",
    "init_to_uniform",
    "init_to_value",
]
