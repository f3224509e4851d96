"""Effect handlers under the name that they are imported by; defined in effects/."""

from typing import TYPE_CHECKING

from probtorch.core.rooms import late_beside
from probtorch.effects.equalizing import equalize
from probtorch.effects.exits import NonlocalExit, escape, queue
from probtorch.effects.handlers import (
    block,
    condition,
    do,
    get_mask,
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
from probtorch.effects.trace import Trace

__all__ = [
    "NonlocalExit",
    "Trace",
    "block",
    "condition",
    "do",
    "equalize",
    "escape",
    "get_mask",
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

_VALIDATION = "enable_validation is at the front door"

# What does the work of Pyro's and NumPyro's handlers that are not here.
INSTEAD = {
    "broadcast": "leave it out: a plate expands the distributions inside it",
    "collapse": "conjugate sites are integrated out by ConjugateReparam, or drawn by infer.Gibbs",
    "enable_validation": _VALIDATION,
    "enum": "finite sites are summed out by TraceEnum_ELBO and by NUTS; "
    'config_enumerate, or infer={"enumerate": "parallel"}, says which',
    "is_validation_enabled": _VALIDATION,
    "messenger": "a handler of your own derives from effects.Handler",
    "runtime": "effects.perform sends a site through the handlers",
    "unwrap": "a handler keeps the function that it wraps as .fn",
    "util": "traces have what there is to ask: Trace.stochastic_nodes, Trace.observation_nodes",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = late_beside(__name__, {}, INSTEAD)
