"""Constraints: the sets that parameters and values live in, as typed objects.

A constraint says four things: `check(value)`, a boolean tensor of the batch shape; `event_dim`, how
many rightmost dims form one element of the set (a simplex has 1, a Cholesky factor 2);
`is_discrete`; and `interior(value)`, some harmless element, which masked densities compute with in
place of a value outside. Bounds may be numbers or tensors, so the support of one site can depend on
another. The maps from unconstrained space onto these sets are in transforms/registry.py.

Names follow `torch.distributions.constraints` and Pyro's additions. Read the scalar ones first.
"""

from typing import TYPE_CHECKING

from probtorch.core.rooms import late_beside
from probtorch.distributions.constraints.base import *  # noqa: F403
from probtorch.distributions.constraints.combinations import *  # noqa: F403
from probtorch.distributions.constraints.discrete import *  # noqa: F403
from probtorch.distributions.constraints.intervals import *  # noqa: F403
from probtorch.distributions.constraints.matrices import *  # noqa: F403
from probtorch.distributions.constraints.vectors import *  # noqa: F403
from probtorch.distributions.missing import CONSTRAINTS as _ELSEWHERE

__all__ = [  # noqa: F405
    "Constraint",
    "boolean",
    "cat",
    "circular",
    "column_stochastic_matrix",
    "complex",
    "corr_cholesky",
    "corr_matrix",
    "dependent",
    "dependent_property",
    "greater_than",
    "greater_than_eq",
    "half_open_interval",
    "independent",
    "integer",
    "integer_greater_than",
    "integer_interval",
    "interval",
    "is_dependent",
    "l1_ball",
    "left_open_interval",
    "less_than",
    "less_than_eq",
    "lower_cholesky",
    "lower_triangular",
    "multinomial",
    "nonnegative",
    "nonnegative_integer",
    "offset_multiplier",
    "one_hot",
    "open_interval",
    "ordered_vector",
    "ordered_within",
    "positive",
    "positive_definite",
    "positive_definite_circulant_vector",
    "positive_integer",
    "positive_ordered_vector",
    "positive_semidefinite",
    "real",
    "real_matrix",
    "real_vector",
    "row_stochastic_matrix",
    "scaled_unit_lower_cholesky",
    "simplex",
    "softplus_lower_cholesky",
    "softplus_positive",
    "sphere",
    "square",
    "stack",
    "symmetric",
    "unit_interval",
    "unit_lower_cholesky",
    "zero_sum",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = late_beside(__name__, {}, _ELSEWHERE)
