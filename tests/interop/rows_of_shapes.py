"""Calls that put arrays together, take them apart and turn them; see numpy_calls.py."""

import itertools

import numpy as np

from tests.interop.numpy_calls import (
    BOOLS,
    TYPES,
    Row,
    axes,
    data,
    one_axis,
    other,
    pairs,
    two_axes,
)

__all__ = ["SHAPES"]


_LIKE = {
    "dtype": TYPES,
    "order": ("C", "F", "K"),
    "subok": (True,),
    "shape": ((2, 2), 3, ()),
    "device": ("cpu",),
}


def _list_of(x):
    yield ([data(x), data(other(x))],)
    yield ((data(x), other(x)),)
    yield ([data(x)],)


def _insertions(x):
    n = x.ndim
    for at in (0, 1, -1, [0], [0, 2], [1, -1], slice(0, 2), np.array([True] + [False] * 2), 9):
        yield data(x), at, 9
        yield data(x), at, data(other(x))
        if n > 1:
            yield data(x), at, data(other(x)[:, :1])
            yield data(x), at, data(other(x)[0] if len(x) else np.zeros(x.shape[1:], x.dtype))
            yield data(x), at, [1.5, 2.5]


def _spots(x):
    for at in (
        0,
        -1,
        np.int64(1),
        9,
        -9,
        [0, 1],
        [],
        [1, -1, 1],
        slice(0, 2),
        slice(None, None, 2),
    ):
        yield data(x), at
    yield data(x), np.arange(x.shape[0] if x.ndim else 1) % 2 == 0
    yield data(x), np.array([0, 1])
    yield data(x), data(np.array([0, 1]))


def _sections(x):
    for at in (
        1,
        2,
        3,
        np.int64(2),
        0,
        -1,
        [1],
        [1, 2],
        [1, -1],
        [],
        [9],
        (1, 1),
        np.array([1, 2]),
    ):
        yield data(x), at


def _shapes_like(x):
    for shape in (x.shape, -1, (-1,), (x.size,), [x.size], (1, -1), (7, 11), np.int64(x.size), ()):
        yield data(x), shape


def _shifts(x):
    for shift in (0, 1, -2, 9, np.int64(1), (1, 2), [1], np.array([1, 1])):
        yield data(x), shift


SHAPES = {
    **{
        name: [
            Row(
                _list_of,
                {"axis": one_axis, "dtype": TYPES[:3], "casting": ("same_kind", "unsafe")},
                "axis",
            )
        ]
        for name in ("concatenate", "stack")
    },
    **{
        name: [Row(_list_of, {"dtype": TYPES[:3], "casting": ("same_kind", "unsafe")})]
        for name in ("vstack", "hstack")
    },
    "dstack": [Row(_list_of)],
    "column_stack": [Row(_list_of)],
    "block": [
        Row(_list_of),
        Row(lambda x: [([[data(x), data(x)], [data(x), data(other(x))]],), (data(x),), ([],)]),
    ],
    "append": [Row(pairs, {"axis": one_axis}, "axis")],
    "insert": [Row(_insertions, {"axis": one_axis}, "axis")],
    "delete": [Row(_spots, {"axis": one_axis}, "axis")],
    "split": [Row(_sections, {"axis": one_axis}, "axis")],
    "array_split": [Row(_sections, {"axis": one_axis}, "axis")],
    "vsplit": [Row(_sections)],
    "hsplit": [Row(_sections)],
    "dsplit": [Row(_sections)],
    "reshape": [
        Row(_shapes_like, {"order": ("C", "F", "A"), "copy": (None, True, False)}, "order"),
        Row(options={"shape": (-1, (-1, 1))}),
    ],
    "ravel": [Row(options={"order": ("C", "F", "A", "K")}, places="order")],
    "transpose": [
        Row(
            options={
                "axes": lambda x: [
                    None,
                    tuple(range(x.ndim)),
                    list(range(x.ndim))[::-1],
                    tuple(range(-x.ndim, 0)),
                    (0,),
                    (0, 0),
                    np.arange(x.ndim),
                ]
            },
            places="axes",
        )
    ],
    "squeeze": [
        Row(options={"axis": axes}, places="axis"),
        Row(lambda x: [(data(x[None, ..., None]),)], {"axis": axes}, "axis"),
    ],
    "expand_dims": [
        Row(
            options={"axis": lambda x: [*axes(x), x.ndim + 1, (0, 1), (0, -1), (1, 1)]},
            places="axis",
        )
    ],
    "swapaxes": [
        Row(
            options={},
            lead=lambda x: [
                (data(x), i, j) for i, j in itertools.product(two_axes(x), two_axes(x))
            ],
        ),
        Row(options={"axis1": (0,), "axis2": (1, -1)}),
    ],
    "moveaxis": [
        Row(
            lambda x: [
                (data(x), i, j)
                for i, j in [
                    *itertools.product(two_axes(x), two_axes(x)),
                    ((0, 1), (1, 0)),
                    ([0], [-1]),
                    ((0, 1), (0, 0)),
                    ((0, 1), (0,)),
                    (np.array([0, 1]), (-1, 0)),
                ]
            ]
        ),
        Row(options={"source": (0, -1), "destination": (1, -1)}),
    ],
    **{
        f"atleast_{n}d": [
            Row(lambda x: [(data(x),), (data(x), data(x[..., None])), (data(x), 2.5)])
        ]
        for n in (1, 2, 3)
    },
    "broadcast_to": [
        Row(
            lambda x: [
                (data(x), s)
                for s in [x.shape, (2, *x.shape), [2, *x.shape], 5, np.int64(5), (4, 4), (), (-1,)]
            ],
            {"subok": BOOLS},
            "subok",
        ),
        Row(options={"shape": lambda x: [(3, *x.shape)]}),
    ],
    "broadcast_arrays": [Row(pairs, {"subok": BOOLS})],
    "meshgrid": [
        Row(
            lambda x: [(data(x), data(other(x))), (data(x),), (data(x), [1, 2]), (data(x),) * 3],
            {"indexing": ("xy", "ij", "zz"), "sparse": BOOLS, "copy": BOOLS},
            shapes=("0", "1", "2", "none"),
        )
    ],
    "tile": [
        Row(
            lambda x: [
                (data(x), r)
                for r in (2, 0, (2, 1), [2, 3, 1], np.array([1, 2]), (), np.int64(2), -1, 1.5)
            ]
        ),
        Row(options={"reps": (2, (2, 2))}),
    ],
    "repeat": [
        Row(
            lambda x: [
                (data(x), r)
                for r in (
                    2,
                    0,
                    np.int64(2),
                    [2],
                    [1, 2],
                    np.arange(x.shape[0] if x.ndim else 1),
                    -1,
                )
            ],
            {"axis": one_axis},
            "axis",
        )
    ],
    "pad": [
        Row(
            lambda x: [
                (data(x), w)
                for w in (1, 0, (1, 2), ((1, 2),), [[1, 0]] * x.ndim, -1, {0: (1, 2)}, 7)
            ],
            {
                "mode": (
                    "constant edge wrap reflect symmetric maximum minimum mean median linear_ramp "
                    "none"
                ).split(),
                "constant_values": (3, 2.5, (1, 2), [(1, 2)], np.float64(2.5), None),
                "reflect_type": ("even", "odd"),
                "stat_length": (1, 2),
                "end_values": (3,),
            },
            "mode",
        )
    ],
    "roll": [
        Row(
            _shifts,
            {"axis": lambda x: [*axes(x), (0, -1), (0, 0), (1, 0)]},
            "axis",
        )
    ],
    "rot90": [
        Row(
            options={
                "k": (1, 0, 2, 3, -1, 5, np.int64(1)),
                "axes": ((0, 1), (1, 0), (0, -1), [-1, 0], (0, 0), (0, 5), (0, 1, 2)),
            },
            places="k axes",
        )
    ],
    "flip": [Row(options={"axis": axes}, places="axis")],
    "flipud": [Row()],
    "fliplr": [Row()],
    "tril": [Row(options={"k": (0, 1, -1, 5, np.int64(1))}, places="k")],
    "triu": [Row(options={"k": (0, 1, -1, 5, np.int64(1))}, places="k")],
    "diag": [Row(options={"k": (0, 1, -1, 5, -9, np.int64(1))}, places="k")],
    "diagflat": [Row(options={"k": (0, 1, -1, np.int64(1))}, places="k")],
    "diagonal": [
        Row(
            options={
                "axis1": (0, 1, -1, np.int64(0), 5),
                "offset": (0, 1, -1, 5, np.int64(1)),
                "axis2": (0, 1, -1, 2, -9),
            },
            places="offset axis1 axis2",
        )
    ],
    "take": [
        Row(
            lambda x: [
                (data(x), i)
                for i in (
                    0,
                    -1,
                    9,
                    -9,
                    [0, 1],
                    [[0, 1], [1, 0]],
                    np.array([0, -1]),
                    (),
                    np.int64(1),
                )
            ],
            {"axis": one_axis, "mode": ("raise", "wrap", "clip")},
            "axis",
        ),
        Row(lambda x: [(data(x), data(np.array([0, 1])))], {"axis": one_axis}),
    ],
    "take_along_axis": [
        Row(
            lambda x: [
                (data(x), np.zeros(x.shape, int)),
                (data(x), np.ones((*x.shape[:-1], 1), int)),
                (data(x), data(np.zeros(x.shape, int))),
                (data(x), np.array([0, 1, -1])),
                (data(x), np.array([9])),
                (data(x), [0, 1]),
            ],
            {"axis": one_axis},
            "axis",
        )
    ],
    "copy": [Row(options={"order": ("C", "F", "K"), "subok": BOOLS}, places="order subok")],
    "zeros_like": [Row(options=_LIKE, places="dtype")],
    "ones_like": [Row(options=_LIKE, places="dtype")],
    "empty_like": [Row(options=_LIKE, places="dtype", look=np.zeros_like)],
    "full_like": [
        Row(lambda x: [(data(x), v) for v in (3, 2.5, True, x, 1 + 2j)], _LIKE, "dtype"),
        Row(lambda x: [(data(x), data(x)), (data(x), data(np.array(2.5)))], {"dtype": TYPES[:3]}),
    ],
    "unstack": [Row(options={"axis": one_axis})],
    "matrix_transpose": [Row()],
}
