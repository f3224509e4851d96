"""Closed forms of KL(p || q), registered when this package is imported.

- same.py: both of one family on the line
- between.py: of different families on the line, from `expectations.py` and
  `rarer_expectations.py`, what is known of p
- discrete.py: counts and categories
- vectors.py: vectors, and distributions made of others
- directions.py: unit vectors
- matrices.py: matrices, and normal vectors with a structure of their own
- parts.py: of independent parts, of steps, or through one map of both sides

A class with a family of its own may bring its rules along: `register_kl` imports no distribution.
Who asks for a divergence imports `kl_divergence` from here, and has all rules.
"""

from probtorch.distributions.divergences import (
    between,
    directions,
    discrete,
    matrices,
    parts,
    same,
    vectors,
)
from probtorch.distributions.kl_rules import kl_divergence, register_kl

__all__ = [
    "between",
    "directions",
    "discrete",
    "kl_divergence",
    "matrices",
    "parts",
    "register_kl",
    "same",
    "vectors",
]
