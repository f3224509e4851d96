"""Effect handlers under the name that they are imported by; defined in effects/."""

from probtorch.effects.handlers import (
    block,
    condition,
    do,
    infer_config,
    lift,
    markov,
    mask,
    replay,
    scale,
    scope,
    seed,
    substitute,
    trace,
    uncondition,
)
from probtorch.effects.reparams import reparam

__all__ = [
    "block",
    "condition",
    "do",
    "infer_config",
    "lift",
    "markov",
    "mask",
    "reparam",
    "replay",
    "scale",
    "scope",
    "seed",
    "substitute",
    "trace",
    "uncondition",
]
