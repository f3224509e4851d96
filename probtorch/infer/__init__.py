"""Inference: from a model to draws of its posterior.

`Target` (potential.py) is a model as a log density on R^dim; samplers know nothing else.
`Predictive` goes the other way, from draws back through the model.
"""

from probtorch.infer.initialization import (
    init_to_feasible,
    init_to_generated,
    init_to_mean,
    init_to_median,
    init_to_sample,
    init_to_uniform,
    init_to_value,
)
from probtorch.infer.potential import Target

__all__ = [
    "Target",
    "init_to_feasible",
    "init_to_generated",
    "init_to_mean",
    "init_to_median",
    "init_to_sample",
    "init_to_uniform",
    "init_to_value",
]
