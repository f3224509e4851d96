"""Calls of products and of linear algebra; see numpy_calls.py."""

import numpy as np

from tests.interop.numpy_calls import (
    BOOLS,
    INEXACT,
    TYPES,
    Row,
    array,
    axes,
    data,
    one_axis,
    other,
)

__all__ = ["PRODUCTS"]


def _signless(found):
    """Factors of matrices without the signs of their vectors, which nobody has decided on."""
    if not isinstance(found, tuple):
        return found
    if len(found) == 3:
        # What completes a basis is anybody's choice, of which no gradient is taken.
        u, s, v = found
        k = s.shape[-1]
        found = u[..., :k], s, v[..., :k, :]
    return tuple(abs(x) for x in found)


def _square(x):
    """A stack of square matrices, well conditioned, from the numbers of `x`."""
    n = 3
    y = np.resize(x, (2, n, n)) if x.size else np.zeros((0, 0), x.dtype)
    if not x.size:
        return y
    return y + (4 * np.eye(n)).astype(x.dtype if x.dtype != bool else float)


def _squares(x):
    y = _square(x)
    yield (data(y),)
    if y.ndim > 2:
        yield (data(y[0]),)
        yield (data(y[0, :2]),)


def _definite(x):
    for (y,) in _squares(x):
        if y.shape[-1] == y.shape[-2]:
            yield (data(y @ np.conj(np.swapaxes(y, -1, -2))),)


def _solved(x):
    for (y,) in _squares(x):
        yield y, data(np.resize(other(x), y.shape[-1:]))
        yield y, data(np.resize(other(x), (*y.shape[:-1], 2)))


def _matrices(x):
    yield data(x), data(other(x))
    yield data(x), data(np.swapaxes(other(x), -1, -2)) if x.ndim > 1 else data(other(x))
    yield data(x), np.swapaxes(other(x), -1, -2) if x.ndim > 1 else other(x)
    yield data(x), data(array(str(x.dtype), x.shape[-1:], 4))
    yield data(array(str(x.dtype), x.shape[-1:], 4)), data(x)
    yield data(x), 3
    yield 2.5, data(x)


PRODUCTS = {
    "dot": [Row(_matrices)],
    "inner": [Row(_matrices)],
    "outer": [Row(_matrices)],
    "vdot": [Row(_matrices)],
    "kron": [Row(_matrices)],
    "tensordot": [
        Row(
            _matrices,
            {"axes": (0, 1, 2, ([0], [0]), (0, 0), (-1, 0), ((0, 1), (0, 1)), ([0], [9]), -1)},
            "axes",
        )
    ],
    "cross": [
        Row(
            lambda x: [
                (data(y), data(other(y)))
                for y in (x, array(str(x.dtype), (2, 3)), array(str(x.dtype), (3, 2)))
            ],
            {
                "axis": one_axis,
                "axisa": (0, -1),
                "axisb": (0, -1),
                "axisc": (0, -1),
            },
            shapes=("1", "3"),
        )
    ],
    "trace": [
        Row(
            options={
                "axis1": (0, 1, -1, np.int64(0), 5),
                "offset": (0, 1, -1, 5),
                "axis2": (0, 1, -1, 2),
                "dtype": TYPES,
            },
            places="offset axis1 axis2 dtype",
        )
    ],
    "linalg.norm": [
        Row(
            options={
                "axis": axes,
                "ord": (None, 2, 1, 0, 3, -1, 0.5, np.inf, -np.inf, "fro", "nuc", -2, "xx"),
                "keepdims": BOOLS,
            },
            places="ord axis keepdims",
        )
    ],
    "linalg.vector_norm": [
        Row(options={"axis": axes, "ord": (2, 1, 0, 3, np.inf, -1), "keepdims": BOOLS})
    ],
    "linalg.cholesky": [Row(_definite, {"upper": BOOLS}), Row(_squares)],
    "linalg.inv": [Row(_squares), Row()],
    "linalg.pinv": [
        Row(
            _squares, {"rcond": (None, 1e-3, 0.4), "hermitian": (False,), "rtol": (1e-3,)}, "rcond"
        ),
        Row(_definite, {"hermitian": BOOLS, "rcond": (1e-3,)}),
    ],
    "linalg.solve": [Row(_solved), Row(_matrices)],
    "linalg.lstsq": [
        Row(
            lambda x: [
                (data(y), data(b))
                for y in (np.resize(x, (4, 3)) + np.eye(4, 3), np.resize(x, (3, 4)) + np.eye(3, 4))
                for b in (np.resize(other(x), y.shape[0]), np.resize(other(x), (y.shape[0], 2)))
            ],
            {"rcond": (None, -1, 1e-3, 0.4)},
            "rcond",
            shapes=("1", "2"),
        )
    ],
    "linalg.det": [Row(_squares), Row()],
    "linalg.slogdet": [Row(_squares), Row()],
    "linalg.eigh": [
        Row(
            _definite,
            {"UPLO": ("L", "U", "l", "x")},
            "UPLO",
            shapes=("1", "2", "3"),
            look=_signless,
        )
    ],
    "linalg.eigvalsh": [
        Row(_definite, {"UPLO": ("L", "U", "l", "x")}, "UPLO", shapes=("1", "2", "3")),
        Row(
            _squares,
            {"UPLO": ("L", "U")},
            "UPLO",
            dtypes=("int64", *INEXACT),
            shapes=("1", "2", "3"),
        ),
    ],
    "linalg.svd": [
        Row(
            _squares,
            {"compute_uv": BOOLS, "full_matrices": (True, False), "hermitian": (False,)},
            "full_matrices compute_uv",
            shapes=("1", "2", "3"),
            look=_signless,
        ),
        Row(
            _definite,
            {"hermitian": BOOLS, "compute_uv": BOOLS},
            shapes=("1", "2", "3"),
            look=_signless,
        ),
        Row(shapes=("1", "2", "3", "none"), look=_signless),
    ],
    "linalg.matrix_power": [
        Row(
            lambda x: [
                (y, n) for (y,) in _squares(x) for n in (0, 1, 2, 3, 5, -1, np.int64(2), 1.5)
            ]
        )
    ],
    "linalg.multi_dot": [
        Row(lambda x: [([y, y, data(other(y))],) for (y,) in _squares(x)]),
        Row(lambda x: [([data(x)],), ([data(x), data(x)],)]),
    ],
    "linalg.cross": [
        Row(
            lambda x: [
                (data(y), data(other(y)))
                for y in (array(str(x.dtype), (2, 3)), array(str(x.dtype), (3, 2)))
            ],
            {"axis": one_axis},
            shapes=("1",),
        )
    ],
    "linalg.diagonal": [Row(options={"offset": (0, 1, -1, 5)})],
    "linalg.matmul": [Row(_matrices)],
    "linalg.matrix_transpose": [Row()],
    "linalg.outer": [Row(_matrices)],
    "linalg.svdvals": [Row(_squares, shapes=("1", "2", "3")), Row()],
    "linalg.tensordot": [Row(_matrices, {"axes": (0, 1, 2, ([0], [0]))})],
    "linalg.trace": [Row(options={"offset": (0, 1, -1, 5), "dtype": TYPES})],
    "linalg.vecdot": [Row(_matrices, {"axis": (0, -1, np.int64(0), 5)})],
}
