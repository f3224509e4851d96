"""NumPy's functions on tensors: which operation of ours each one is.

`array_protocols.py` looks them up. A function takes NumPy's arguments, and raises `UnknownArgument`
for one that it does not know; then NumPy's own answers, where no gradient is lost by that.
"""

import numpy as np

from probtorch.array_functions.arguments import UnknownArgument, plain_arrays
from probtorch.array_functions.choices import CHOICES
from probtorch.array_functions.joins import JOINS
from probtorch.array_functions.lines import LINES
from probtorch.array_functions.orders import ORDERS
from probtorch.array_functions.products import PRODUCTS
from probtorch.array_functions.reductions import REDUCE, REDUCTIONS, reduced
from probtorch.array_functions.shapes import SHAPES

__all__ = ["FUNCTIONS", "LOOKS", "REDUCE", "UnknownArgument", "plain_arrays", "reduced"]

FUNCTIONS = {**REDUCTIONS, **ORDERS, **JOINS, **SHAPES, **PRODUCTS, **CHOICES, **LINES}

LOOKS = {
    np.shape,
    np.ndim,
    np.size,
    np.result_type,
    np.can_cast,
    np.iscomplexobj,
    np.isrealobj,
    np.shares_memory,
    np.may_share_memory,
    np.allclose,
    np.array_equal,
    np.array_equiv,
    np.isclose,
    np.array_repr,
    np.array_str,
    np.array2string,
    np.savetxt,
    np.save,
    np.savez,
    np.nonzero,
    np.flatnonzero,
    np.argwhere,
    np.count_nonzero,
    np.searchsorted,
    np.digitize,
}
