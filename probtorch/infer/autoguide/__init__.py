"""Pyro's and NumPyro's name for the guides that write themselves, and for where they begin.

What is here is in `probtorch.infer.guides` and `probtorch.infer.starts`.
"""

from typing import TYPE_CHECKING

from probtorch.core.rooms import late_beside
from probtorch.infer.guides import *  # noqa: F403  # a guide states its name there alone
from probtorch.infer.guides import __all__ as _guides  # type: ignore[attr-defined]  # by a table
from probtorch.infer.initialization import *  # noqa: F403  # as above
from probtorch.infer.initialization import __all__ as _starts

__all__ = [*_guides, *_starts]

INSTEAD = {
    "mean_field_entropy": "TraceMeanField_ELBO has entropies in closed form where there are such",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = late_beside(__name__, {}, INSTEAD)
