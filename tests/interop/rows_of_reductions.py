"""Calls of sums, extremes, spreads, quantiles and orders; see numpy_calls.py."""

import numpy as np

from tests.interop.numpy_calls import (
    BOOLS,
    TYPES,
    Row,
    axes,
    data,
    mask,
    one_axis,
    other,
)

__all__ = ["REDUCTIONS"]


_SUM = {"dtype": TYPES, "keepdims": BOOLS, "initial": (2, 0.5), "where": mask}


def _reduction(places, **options):
    return [Row(options={"axis": axes, **options}, places=places)]


def _levels(x):
    for q in (0.3, 0.0, 1.0, [0.1, 0.9], [[0.1, 0.5], [0.7, 0.9]], np.array(0.5), 1.5, [], [0.2]):
        yield data(x), q
    yield data(x), data(np.array([0.27, 0.53]))


def _percents(x):
    for q in (30, 0, 100, [10, 90], [[10, 50], [70, 90]], np.array(50), 150, 12.5):
        yield data(x), q


def _spread(x):
    yield from (1, 0.5, 0, 9)


REDUCTIONS = {
    "sum": _reduction("axis dtype", **_SUM),
    "prod": _reduction("axis dtype", **_SUM),
    "mean": _reduction("axis dtype", dtype=TYPES, keepdims=BOOLS, where=mask),
    **dict.fromkeys(
        ("max", "min", "amax", "amin"),
        _reduction("axis", keepdims=BOOLS, initial=(2, 0.5), where=mask),
    ),
    **dict.fromkeys(("any", "all"), _reduction("axis", keepdims=BOOLS, where=mask)),
    "ptp": _reduction("axis", keepdims=BOOLS),
    **dict.fromkeys(
        ("var", "std"),
        _reduction(
            "axis dtype",
            dtype=TYPES,
            ddof=_spread,
            keepdims=BOOLS,
            where=mask,
            mean=lambda x: [np.mean(x, keepdims=True)] if x.size else [0.5],
            correction=_spread,
        ),
    ),
    "average": _reduction(
        "axis weights",
        weights=lambda x: [None, data(np.abs(other(x)) + 1), np.ones(x.shape[-1:])],
        returned=(True, False),
        keepdims=BOOLS,
    ),
    "nansum": _reduction("axis dtype", **_SUM),
    "nanmean": _reduction("axis dtype", dtype=TYPES, keepdims=BOOLS, where=mask),
    "median": _reduction("axis", keepdims=BOOLS, overwrite_input=(True, False)),
    "quantile": [
        Row(_levels, {"axis": axes, "keepdims": BOOLS, "method": ("linear", "lower", "hazen")})
    ],
    "percentile": [Row(_percents, {"axis": axes, "keepdims": BOOLS, "overwrite_input": (True,)})],
    "cov": [
        Row(
            options={
                "rowvar": BOOLS,
                "y": lambda x: [data(other(x))],
                "bias": BOOLS,
                "ddof": (None, 0, 1, 2),
                "fweights": lambda x: [np.arange(x.shape[-1] if x.ndim else 1) + 1],
                "aweights": lambda x: [np.arange(x.shape[-1] if x.ndim else 1) + 1.0],
                "dtype": TYPES[:3],
            }
        ),
        Row(lambda x: [(data(x), data(other(x)))], {"rowvar": BOOLS}, "rowvar"),
    ],
    "corrcoef": [
        Row(
            options={
                "rowvar": BOOLS,
                "y": lambda x: [None, data(other(x))],
                "dtype": TYPES[:3],
            },
            places="y rowvar",
        )
    ],
    **{
        key: [Row(options={"axis": one_axis, "keepdims": BOOLS}, places="axis")]
        for key in ("argmax", "argmin")
    },
    **{
        key: [Row(options={"axis": one_axis, "dtype": TYPES}, places="axis dtype")]
        for key in ("cumsum", "cumprod")
    },
    "diff": [
        Row(
            options={
                "axis": one_axis,
                "n": (0, 1, 2, 9, -1, np.int64(1)),
                "prepend": (0, [1.0]),
                "append": (0, [1.0]),
            },
            places="n axis prepend",
        )
    ],
    "sort": [
        Row(
            options={"axis": one_axis, "kind": ("stable", "quicksort", None), "stable": BOOLS},
            places="axis kind",
        )
    ],
    "argsort": [
        Row(
            options={"axis": one_axis, "kind": ("stable", "mergesort"), "stable": (True,)},
            places="axis kind",
            dtypes=("float32", "float64", "complex128"),
        ),
        # Which of equal ones comes first is said of a stable sort alone.
        Row(
            lambda x: [(data(x), axis, "stable") for axis in one_axis(x)], dtypes=("int64", "bool")
        ),
    ],
}
