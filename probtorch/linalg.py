"""Linear algebra under the names of torch.linalg; defined in ops/linalg.py and the files
that read it.
"""

from probtorch.ops.cholesky_factors import cholesky, cholesky_ex, cholesky_inverse, cholesky_solve
from probtorch.ops.contraction import matmul
from probtorch.ops.determinants import det, logdet, slogdet
from probtorch.ops.diagonals import diagonal
from probtorch.ops.eigen import eig, eigvals
from probtorch.ops.factorisations import (
    inv_ex,
    lu,
    lu_factor,
    lu_factor_ex,
    lu_solve,
    lu_unpack,
    solve_ex,
)
from probtorch.ops.linalg import (
    LinAlgError,
    inv,
    matrix_power,
    solve,
    solve_triangular,
    solve_triangular_vector,
    solve_vector,
    trace,
)
from probtorch.ops.norms import matrix_norm
from probtorch.ops.orthogonal import qr
from probtorch.ops.products import (
    Lstsq,
    cond,
    lstsq,
    matrix_exp,
    multi_dot,
    tensorinv,
    tensorsolve,
    vecdot,
    vector_norm,
)
from probtorch.ops.products import linalg_cross as cross
from probtorch.ops.products import linalg_norm as norm
from probtorch.ops.products import linalg_vander as vander
from probtorch.ops.pseudoinverses import matrix_rank, pinv
from probtorch.ops.reflections import householder_product
from probtorch.ops.spectral import eigh, eigvalsh, svd, svdvals

__all__ = [
    "LinAlgError",
    "Lstsq",
    "cholesky",
    "cholesky_ex",
    "cholesky_inverse",
    "cholesky_solve",
    "cond",
    "cross",
    "det",
    "diagonal",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "householder_product",
    "inv",
    "inv_ex",
    "logdet",
    "lstsq",
    "lu",
    "lu_factor",
    "lu_factor_ex",
    "lu_solve",
    "lu_unpack",
    "matmul",
    "matrix_exp",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "multi_dot",
    "norm",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "solve_ex",
    "solve_triangular",
    "solve_triangular_vector",
    "solve_vector",
    "svd",
    "svdvals",
    "tensorinv",
    "tensorsolve",
    "trace",
    "vander",
    "vecdot",
    "vector_norm",
]
