"""Pyro's name for the effect handlers: what is here is in `probtorch.handlers`."""

from probtorch.handlers import *  # noqa: F403  # a handler states its name there alone
from probtorch.handlers import __all__ as __all__
