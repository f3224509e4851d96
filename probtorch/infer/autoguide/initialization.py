"""Pyro's name for where guides begin: what is here is in `probtorch.infer.starts`."""

from probtorch.infer.initialization import *  # noqa: F403  # names are stated there
from probtorch.infer.initialization import __all__ as __all__
