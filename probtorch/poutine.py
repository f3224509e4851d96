"""Pyro's name for the effect handlers: what is here is in `probtorch.handlers`."""

from typing import TYPE_CHECKING

from probtorch.core.rooms import late_beside
from probtorch.handlers import *  # noqa: F403  # a handler states its name there alone
from probtorch.handlers import INSTEAD
from probtorch.handlers import __all__ as __all__

if not TYPE_CHECKING:
    __getattr__, __dir__ = late_beside(__name__, {}, INSTEAD)
