"""Calls of choices, lines, polynomials and spectra; see numpy_calls.py."""

import numpy as np

from tests.interop.numpy_calls import (
    BOOLS,
    TYPES,
    Row,
    array,
    axes,
    data,
    one_axis,
    other,
    pairs,
)

__all__ = ["LINES"]


def _with_gaps(x):
    if x.dtype.kind not in "fc" or x.size < 5:
        return x
    y = x.copy()
    y.flat[0], y.flat[1], y.flat[2] = np.nan, np.inf, -np.inf
    if x.dtype.kind == "c":
        y.flat[3], y.flat[4] = complex(np.nan, 1), complex(2, np.inf)
    return y


LINES = {
    "where": [
        Row(
            lambda x: [
                (x > 0 if x.dtype != complex else x.real > 0, data(x), data(other(x))),
                (data(x), data(x), 2),
                (data(np.ones((2, *x.shape), bool)), 2.5, data(x)),
                (data(x), data(x)),
                (True, data(x), 1),
            ]
        )
    ],
    "clip": [
        Row(
            lambda x: [
                (data(x), low, high)
                for low, high in [
                    (0, 1),
                    (None, 1),
                    (-0.5, None),
                    (None, None),
                    (1, 0),
                    (data(other(x)), data(other(x) + 1)),
                    (np.zeros((2, *x.shape)), 1.5),
                ]
            ]
        ),
        Row(
            options={
                "min": (0, 0.5, None),
                "max": (0, 0.5, None, data(np.array(0.3))),
                "a_min": (0, 0.5),
                "a_max": (0, 0.5),
                "dtype": (np.float32, np.float64),
            }
        ),
    ],
    "select": [
        Row(
            lambda x: [
                ([np.real(x) > 0.5, np.real(x) > 0], [data(x), data(other(x))]),
                ([data(np.real(x) > 0.5), np.real(x) > 0], [data(x), 2]),
                ([data(np.real(x) > 0.5)], [data(x)]),
                ([np.real(x) > 0.5], []),
                ([], []),
                ([data(x)], [data(x)]),
            ],
            {"default": (0, 2.5, data(np.array(1.5)))},
            "default",
        )
    ],
    "piecewise": [
        Row(
            lambda x: [
                (data(x), [np.real(x) > 0], [lambda v: v * 2]),
                (data(x), [np.real(x) > 0], [lambda v: v * 2, 5]),
                (data(x), [data(np.real(x) > 0), np.real(x) > 0.5], [1, lambda v: v * v, -1]),
                (data(x), np.real(x) > 0, [2.5, lambda v: v]),
                (data(x), np.array([np.real(x) > 0, np.real(x) <= 0]), [2.5, lambda v: v]),
                (data(x), [np.real(x) > 0], [1, 2, 3]),
                (data(x), [True], [1, 2]),
            ]
        ),
        Row(
            lambda x: [(data(x), [np.real(x) > 0], [lambda v, k: v * k], 3)],
        ),
    ],
    "nan_to_num": [
        Row(
            lambda x: [(data(x),), (data(_with_gaps(x)),)],
            {"nan": (0.0, 3.0), "posinf": (None, 7.0), "neginf": (-7.0, None), "copy": BOOLS},
            "copy nan posinf neginf",
        )
    ],
    **{
        key: [
            Row(
                lambda x: [(data(x),), (data(x * 37),)],
                {"decimals": (0, 1, -1, 2, np.int64(1))},
                "decimals",
            )
        ]
        for key in ("round", "around")
    },
    "fix": [Row(lambda x: [(data(x),), (data(x * 3),)])],
    "sinc": [Row(), Row(lambda x: [(data(np.zeros_like(x)),)])],
    "i0": [Row()],
    "real": [Row()],
    "imag": [Row()],
    "angle": [Row(options={"deg": BOOLS}, places="deg")],
    "interp": [
        Row(
            lambda x: [
                (data(x), np.linspace(-1, 1, 4), [1.0, 3.0, -1.0, 2.0]),
                (data(x), data(np.linspace(-1, 1, 4)), data(array("float64", (4,)))),
                ([-3.0, 0.2, 0.5, 9.0], np.arange(x.size), data(x)),
                (0.5, np.arange(x.size), data(x)),
                (0.5, np.arange(3.0), data(x)),
                (data(x), [0.5], [2.0]),
            ],
            {"left": (7.0, None), "right": (-7.0, None), "period": (2.0, None, 0)},
            "left right period",
            shapes=("0", "1", "2", "none"),
        )
    ],
    "convolve": [
        Row(
            lambda x: [
                (data(x), data(other(x)[:3] if x.ndim else x)),
                (data(other(x)[:2] if x.ndim else x), data(x)),
                (data(x), [1, 2]),
                (data(x), 2.0),
            ],
            {"mode": ("full", "same", "valid", "v", "zz", 1)},
            "mode",
        )
    ],
    "gradient": [
        Row(
            lambda x: [
                (data(x),),
                (data(x), 0.5),
                (data(x), 0.5, 0.25),
                (data(x), np.array([0.0, 1.0, 3.0, 3.5, 4.0])),
                (data(x), 2),
            ],
            {"axis": axes, "edge_order": (1, 2, 3)},
        )
    ],
    "polyval": [
        Row(
            lambda x: [(data(x), 0.7), ([1, -2, 3], data(x)), (data(x), data(x)), (data(x), [1, 2])]
        ),
    ],
    "vander": [
        Row(options={"N": (None, 0, 1, 3, np.int64(2)), "increasing": BOOLS}, places="N increasing")
    ],
    "ediff1d": [
        Row(options={"to_end": (None, 1, [1, 2]), "to_begin": (0, [2.5])}, places="to_end to_begin")
    ],
    "linspace": [
        Row(
            pairs,
            {
                "num": (5, 1, 0, 2, -1, np.int64(3), 2.5),
                "endpoint": BOOLS,
                "retstep": BOOLS,
                "dtype": TYPES,
                "axis": (0, -1, 1),
            },
            "num endpoint",
        )
    ],
    "logspace": [
        Row(
            pairs,
            {
                "num": (5, 1, 0),
                "endpoint": BOOLS,
                "base": (2.0, 10, data(np.array(3.0))),
                "dtype": TYPES[:2],
                "axis": (0, -1),
            },
            "num endpoint base",
        )
    ],
    **{
        f"fft.{name}": [
            Row(
                options={
                    "axis": one_axis,
                    "n": (None, 3, 8, 0, -1, np.int64(4)),
                    "norm": (None, "ortho", "forward", "backward", "x"),
                },
                places="n axis norm",
            )
        ]
        for name in ("fft", "ifft", "rfft", "irfft")
    },
    "trapezoid": [
        Row(
            options={
                "axis": one_axis,
                "x": lambda x: [
                    None,
                    np.arange(x.shape[-1] if x.ndim else 1) ** 2.0,
                    data(np.arange(x.shape[-1] if x.ndim else 1) ** 2.0),
                    data(other(x)),
                ],
                "dx": (1.0, 0.5, 2, np.float64(0.5)),
            },
            places="x dx axis",
        )
    ],
    "einsum": [
        Row(
            lambda x: [
                ("...->...", data(x)),
                ("ij->ji", data(x)),
                ("ij,ij", data(x), data(other(x))),
                ("i,i->i", data(x), other(x)),
                ("i,j", data(x), data(x)),
                ("ii", data(x)),
                ("ijk->k", data(x)),
                (data(x), [0, 1], [1, 0]),
                ("i,", data(x), 2),
            ],
            {"optimize": (True, False, "greedy"), "dtype": (np.float64,), "order": ("C",)},
        )
    ],
}
