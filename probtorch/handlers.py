"""Effect handlers under the name that they are imported by; defined in effects/."""

from probtorch.effects.equalizing import equalize
from probtorch.effects.exits import NonlocalExit, escape, queue
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
    "NonlocalExit",
    "block",
    "condition",
    "do",
    "equalize",
    "escape",
    "infer_config",
    "lift",
    "markov",
    "mask",
    "queue",
    "reparam",
    "replay",
    "scale",
    "scope",
    "seed",
    "substitute",
    "trace",
    "uncondition",
]
