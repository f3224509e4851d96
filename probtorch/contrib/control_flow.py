"""NumPyro's name for loops and choices of models: `scan` and `cond` are where they were."""

from probtorch.effects.scans import scan
from probtorch.ops.control import cond

__all__ = ["cond", "scan"]
