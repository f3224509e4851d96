"""Pyro's name for the effect handlers: what is here is in `probtorch.handlers`."""

from typing import TYPE_CHECKING

from probtorch.core.absent import no_such_name
from probtorch.handlers import *  # noqa: F403  # a handler states its name there alone
from probtorch.handlers import INSTEAD
from probtorch.handlers import __all__ as __all__

if not TYPE_CHECKING:

    def __getattr__(name):
        if name.startswith("_"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
        raise no_such_name(__name__, INSTEAD, name, __all__)
