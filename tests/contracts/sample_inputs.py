"""Many more inputs for every registered op, made from what its declaration says.

Elementwise ops get shapes that broadcast, in memory that is turned, strided or expanded. An op with
core dims (`Op.core`) is given every dim, or blocks and batches of the matrices that it is declared
with; one that moves elements gets a row in `MOVED`. Numbers come from the declared domain, or from
between those of the declared sample.

`inputs_of` are as smooth as `sweep.cases`; `integers_of` have values and no differences. Zeros,
infinities and nan are in test_compiled_ops.py and test_against_torch.py.
"""

import functools
import itertools

import numpy as np

from probtorch.core.op import core_dims
from probtorch.ops.sparse import sparse_rows
from probtorch.testing.sweep import Case, _smooth_case, cases

# What an elementwise op is given beside the shapes of sweep.SHAPES; by turns in other memory.
SHAPES = (
    ((1,), (1,), (1,)),
    ((1, 1), (1,), (1, 1)),
    ((0,), (0,), (1,)),
    ((3, 0, 2), (1, 2), (3, 1, 1)),
    ((2, 1, 3), (2, 1, 3), (2, 1, 3)),
    ((7,), (7,), (7,)),
    ((4, 2), (4, 2), (4, 2)),
    ((2, 1, 2, 2), (2, 1, 2, 2), (2, 1, 2, 2)),
    ((5, 1), (5, 1), (5, 1)),
    ((1, 6), (1, 6), (1, 6)),
    ((2, 3), (2, 3), (2, 3)),
)
BROADCAST = (
    ((2, 3), (3,), (2, 1)),
    ((2, 1, 3), (4, 1), (1,)),
    ((0,), (1,), ()),
    ((), (3,), (3,)),
    ((1,), (5,), ()),
)
BATCHES = ((), (2,), (0,), (1, 2))
# Attributes that say where in the operands something happens: such ops have no smaller blocks.
PLACES = {"shape", "sizes", "spec", "spatial", "offset", "dims", "dim"}


def turned(a, k):
    """The same numbers laid out otherwise: the k-th of five ways, as far as there are dims."""
    if not a.ndim or k % 5 == 0:
        return a
    if k % 5 == 1:
        return np.asfortranarray(a)
    if k % 5 == 2:
        return np.ascontiguousarray(a[::-1])[::-1]
    if k % 5 == 3:
        return np.repeat(a, 2, axis=-1)[..., ::2]
    wide = np.zeros((*a.shape[:-1], a.shape[-1] + 3), a.dtype)
    wide[..., 2:-1] = a
    return wide[..., 2:-1]


def similar(rng, a, shape):
    """Numbers of `shape` between those of `a`, all different where they are floats."""
    size = int(np.prod(shape))
    flat = a.reshape(-1)
    if a.dtype.kind != "f" or flat.size < 2:
        return (rng.choice(flat, size) if flat.size else flat[:0]).reshape(shape).astype(a.dtype)
    steps = (np.arange(size) + rng.uniform(0.3, 0.7, size)) / max(size, 1)
    # Between neighbours of one sign only: what keeps away from 0 goes on doing so.
    parts = [p for p in (np.sort(flat[flat < 0]), np.sort(flat[flat >= 0])) if p.size]
    out = np.empty(size)
    for i, part in enumerate(parts):
        at = slice(i, None, len(parts))
        out[at] = np.interp(steps[at], np.linspace(0.0, 1.0, part.size), part)
    return rng.permutation(out).reshape(shape).astype(a.dtype)


@functools.cache
def inputs_of(op):
    """Return cases for `op` beside those of `sweep.cases`; the same ones at every call."""
    rng = np.random.default_rng(sum(map(ord, op.name)) + 1)
    if op.samples is None:
        made = _elementwise(op, rng)
    elif op.name in MOVED:
        made = [Case(op, "", arrays, attrs) for arrays, attrs in MOVED[op.name](rng)]
    else:
        case = cases(op)[0]
        if {"dim", "dims"} & set(case.attrs):
            made = _along_dims(case, rng)
        elif op.core is None or "*" in op.core:
            made = _parts(case)
        elif not any(core_dims(op.core)[0]):
            made = _of_numbers(case, rng)
        else:
            made = _of_matrices(case)
    return [
        Case(op, f"{i}: {[a.shape for a in c.arrays]} {c.attrs}", _turn(c.arrays, i), c.attrs)
        for i, c in enumerate(made)
    ]


def _turn(arrays, i):
    return tuple(turned(np.asarray(a), i + j) for j, a in enumerate(arrays))


def _elementwise(op, rng):
    shapes = SHAPES + (BROADCAST if len(op.domain) > 1 else ())
    return [_smooth_case(op, "", shape, rng) for shape in shapes]


def _of_numbers(case, rng):
    """Ops of numbers that have attributes: other shapes and other numbers of the same kind."""
    shapes = SHAPES + (BROADCAST if len(case.arrays) > 1 else ())
    for shape in shapes:
        arrays = (similar(rng, a, shape[i % 3]) for i, a in enumerate(case.arrays))
        yield Case(case.op, "", tuple(arrays), case.attrs)


def _along_dims(case, rng):
    """Every dim, or every set of dims, of several shapes; what else is an attribute is kept."""
    several = "dims" in case.attrs
    for shape in ((3,), (2, 3), (3, 1, 2), (2, 0), (2, 2, 1, 2)):
        dims = range(len(shape))
        chosen = itertools.combinations(dims, 1)
        if several:
            chosen = itertools.chain(chosen, itertools.combinations(dims, len(dims)))
        for at in dict.fromkeys(chosen):
            if np.prod([shape[d] for d in at]) <= case.attrs.get("correction", 0):
                continue  # nothing to reduce, or no degrees of freedom: public functions see to it
            if case.op.name == "order_statistic" and len(at) > 1:  # sorts one dim
                continue
            attrs = case.attrs | ({"dims": at} if several else {"dim": at[0]})
            if "keepdim" in attrs:
                attrs["keepdim"] = bool(rng.integers(2))
            if "k" in attrs:
                attrs["k"] = int(rng.integers(shape[at[0]]))
            arrays = []
            for a in case.arrays:
                own = list(shape)
                if case.op.name == "cat":
                    own[at[0]] = int(rng.integers(3))
                arrays.append(similar(rng, a if a.size else case.arrays[0], tuple(own)))
            yield Case(case.op, "", tuple(arrays), attrs)


def _of_matrices(case):
    """Leading blocks of the declared matrices, alone and in batches."""
    inputs, _ = core_dims(case.op.core)
    # What is never declared with two batches that broadcast is not meant for them.
    leads = [[a.shape[: a.ndim - len(c)] for a, c in zip(s.arrays, inputs)] for s in cases(case.op)]
    shared = all(len(set(lead)) == 1 and lead[0] for lead in leads)
    whole = [a[(0,) * (a.ndim - len(c))] for a, c in zip(case.arrays, inputs, strict=True)]
    sizes = {n: s for c, a in zip(inputs, whole) for n, s in zip(c, a.shape)}
    smaller = [sizes]
    if not PLACES & set(case.attrs):
        smaller += [{n: min(s, k) for n, s in sizes.items()} for k in (1, 2)]
        smaller += [{**sizes, n: 0} for n in sizes if n != "n"] + [dict.fromkeys(sizes, 0)]
    pairs = list(itertools.combinations(sizes, 2))
    for block, batch in itertools.product(smaller, BATCHES):
        if any((block[m] >= block[n]) < (sizes[m] >= sizes[n]) for m, n in pairs):
            continue  # tall matrices may be declared, and wide ones not
        if 0 in block.values() and any(a.dtype.kind == "i" for a in whole):
            continue  # integers are places, of which there are none then
        arrays = []
        for i, (a, c) in enumerate(zip(whole, inputs)):
            part = a[tuple(slice(block[n]) for n in c)]
            if a.dtype.kind == "i":
                arrays.append(
                    np.full((*batch, *part.shape), np.minimum(part, min(block.values()) - 1))
                )
                continue
            scales = 1.0 + 0.25 * np.arange(np.prod(batch)).reshape((*batch, *(1 for _ in c)))
            if i and not shared:  # the second operand has no batch, or one more dim
                scales = scales[None] if len(batch) == 1 else 1.0
            arrays.append(part * scales)
        yield Case(case.op, "", tuple(a.astype(w.dtype) for a, w in zip(arrays, whole)), case.attrs)


def _parts(case):
    """Parts of the operands that have the largest shape, where batches are all there is."""
    shape = max((a.shape for a in case.arrays), key=len)
    keys = (np.s_[:1], np.s_[1:], np.s_[::-1], np.s_[::2], np.s_[:0], np.s_[None], np.s_[:, None])
    if case.op.core is None:
        keys += (np.s_[0], np.s_[..., :1], np.s_[..., ::2], np.s_[..., :0], np.s_[0, 0])
    for key in keys:
        yield Case(
            case.op,
            "",
            tuple(a[key] if a.shape == shape and a.ndim > 1 else a for a in case.arrays),
            case.attrs,
        )


# ------------------------------------------------------------------------- what moves elements


def _permutations(rng):
    for ndim in range(4):
        for dims in itertools.permutations(range(ndim)):
            yield (rng.standard_normal((2, 3, 4)[:ndim]),), {"dims": dims}
    yield (rng.standard_normal((0, 3, 1)),), {"dims": (2, 0, 1)}


def _expansions(rng):
    for a, b in (
        ((), ()), ((), (0,)), ((), (2, 3)), ((1,), (4,)), ((3,), (3,)), ((3,), (2, 3)),
        ((1, 1), (2, 3)), ((2, 1), (2, 0)), ((0, 1), (0, 2)), ((2, 1, 3), (2, 2, 3)),
        ((1, 3), (2, 4, 3)), ((1,), (1, 1, 1)), ((5, 1, 1), (5, 1, 2)),
    ):  # fmt: skip
        yield (rng.standard_normal(a),), {"shape": b}


def _reshapes(rng):
    for a, b in (
        ((), (1,)), ((1,), ()), ((6,), (2, 3)), ((2, 3), (6,)), ((2, 3), (3, 2)), ((0, 2), (3, 0)),
        ((2, 0), (0,)), ((2, 3, 2), (3, 4)), ((4, 3), (2, 2, 3, 1)), ((1, 1), ()), ((2, 2), (2, 2)),
        ((2, 6), (2, 2, 3)), ((12,), (1, 12)),
    ):  # fmt: skip
        yield (rng.standard_normal(a),), {"shape": b}


def _specs(rng, count=13):
    """Shapes, and for each dim a (start, step, number) that stays inside."""
    for i in range(count):
        shape = tuple(int(n) for n in rng.integers(1, 6, 1 + i % 3))
        spec = []
        for n in shape:
            number, step = int(rng.integers(0, n + 1)), int(rng.choice([-1, 1]))
            if number * 2 <= n:
                step *= 2
            reach = abs(step) * max(number - 1, 0)
            start = int(rng.integers(0, n - reach))
            spec.append((start + reach if step < 0 else start, step, number))
        yield shape, tuple(spec)


def _diagonals(rng):
    for shape, offset in (
        ((3, 3), 0), ((3, 3), 1), ((3, 3), -2), ((2, 4), 0), ((2, 4), 3), ((2, 4), -1), ((4, 2), 1),
        ((4, 2), -3), ((0, 3), 0), ((3, 0), 0), ((2, 3, 3), -1), ((1, 2, 2, 5), 2), ((0, 2, 2), 0),
    ):  # fmt: skip
        yield (rng.standard_normal(shape),), {"offset": offset}


def _embedded_diagonals(rng):
    for (x,), attrs in _diagonals(rng):
        yield (np.diagonal(x, attrs["offset"], -2, -1),), {**attrs, "shape": x.shape[-2:]}


def _slices(rng):
    for shape, spec in _specs(rng):
        yield (rng.standard_normal(shape),), {"spec": spec}


def _unslices(rng):
    for shape, spec in _specs(rng):
        yield (rng.standard_normal([n for *_, n in spec]),), {"spec": spec, "shape": shape}


def _written_slices(rng):
    for k, (shape, spec) in enumerate(_specs(rng)):
        size = [n for *_, n in spec][k % 2 :]
        size = [1, *size[1:]] if k % 3 == 0 else size
        value = rng.standard_normal(size[: len(shape)])
        yield (rng.standard_normal(shape), value), {"spec": spec}


def _places(rng):
    """Shapes, dims, and one index array for each of these dims; some repeat, some are negative."""
    for shape, dims, at in (
        ((4,), (0,), (3,)), ((4,), (0,), ()), ((4,), (0,), (0,)), ((4,), (0,), (2, 2)),
        ((2, 3), (0,), (3,)), ((2, 3), (1,), (3,)), ((2, 3), (0, 1), (4,)),
        ((2, 3), (0, 1), (2, 1)),
        ((2, 0), (0,), (3,)), ((2, 3, 4), (1,), (2,)), ((2, 3, 4), (0, 2), (3,)),
        ((2, 3, 4), (1, 2), (2, 2)), ((2, 3, 4), (0, 1, 2), (5,)),
    ):  # fmt: skip
        yield shape, dims, tuple(rng.integers(-shape[d], shape[d], at) for d in dims)


def _taken(rng):
    for shape, dims, index in _places(rng):
        yield (rng.standard_normal(shape), *index), {"dims": dims}


def _found(shape, dims, index):
    """The shape of ``x[index]`` with the indices' dims where the first of them was, or in front."""
    key = [slice(None)] * len(shape)
    for d, i in zip(dims, index):
        key[d] = i
    return np.zeros(shape)[tuple(key)].shape


def _put_back(rng):
    for shape, dims, index in _places(rng):
        g = rng.standard_normal(_found(shape, dims, index))
        yield (g, *index), {"dims": dims, "shape": shape}


def _put(rng):
    for k, (shape, dims, _) in enumerate(_places(rng)):
        # Without accumulation each place is named once: which of two writes stays is not said.
        n = min(shape[d] for d in dims)
        index = tuple(rng.permutation(shape[d])[:n] - shape[d] * (k % 2) for d in dims)
        value = rng.standard_normal(_found(shape, dims, index))
        for accumulate in (False, True):
            if accumulate:
                index = tuple(np.repeat(i[:1], n) for i in index)
            if n:
                yield (
                    (rng.standard_normal(shape), value, *index),
                    {
                        "dims": dims,
                        "accumulate": accumulate,
                    },
                )


def _windows(rng):
    for lead, spatial, sizes, stride, dilation in (
        ((), (5,), (3,), (1,), (1,)), ((2,), (5,), (2,), (2,), (1,)),
        ((0,), (4,), (2,), (1,), (1,)),
        ((2,), (7,), (3,), (2,), (2,)), ((1,), (3,), (3,), (1,), (1,)),
        ((2,), (6,), (1,), (3,), (1,)),
        ((), (4, 3), (2, 2), (1, 1), (1, 1)), ((2,), (4, 5), (3, 1), (1, 2), (1, 1)),
        ((1,), (5, 5), (2, 3), (2, 1), (2, 2)), ((), (3, 3, 3), (2, 2, 2), (1, 1, 1), (1, 1, 1)),
        ((2, 1), (4,), (4,), (4,), (1,)), ((), (2, 2), (1, 1), (1, 1), (1, 1)),
    ):  # fmt: skip
        size = int(np.prod((*lead, *spatial)))
        x = rng.permutation(np.linspace(-2.0, 2.0, size)).reshape(*lead, *spatial)
        yield (x,), {"sizes": sizes, "stride": stride, "dilation": dilation}


def _overlaps(rng):
    for (x,), attrs in _windows(rng):
        n = len(attrs["sizes"])
        spatial = x.shape[x.ndim - n :]
        rows = zip(spatial, attrs["sizes"], attrs["stride"], attrs["dilation"], strict=True)
        counts = [(s - (k - 1) * d - 1) // st + 1 for s, k, st, d in rows]
        size = (*attrs["sizes"], *x.shape[: x.ndim - n], *counts)
        yield (rng.standard_normal(size),), {"spatial": spatial, **attrs}


def _searches(rng):
    for k, (a, b) in enumerate(
        (
            ((5,), (1,)), ((5,), (3,)), ((5,), (2, 2)), ((5,), (0,)), ((0,), (2,)), ((1,), (4,)),
            ((2, 4), (2, 3)), ((2, 4), (2, 0)), ((1, 4), (1, 2)), ((2, 1, 3), (2, 1, 2)),
            ((2, 0), (2, 3)), ((3, 2), (3, 2)),
        )
    ):  # fmt: skip
        row = np.sort(rng.integers(-3, 4, a).astype(float))
        yield (row, rng.integers(-4, 5, b).astype(float)), {"right": bool(k % 2)}


def _sparse(rng):
    for rows, columns, width in itertools.product((1, 4, 6), (1, 5), (1, 2)):
        dense = rng.standard_normal((rows, columns)) * (rng.random((rows, columns)) < 0.5)
        parts = [*sparse_rows(dense), *sparse_rows(dense.T)]
        yield (*parts, rng.standard_normal((columns, width))), {}


def _classified_rows(rng):
    """Matrices with a column for each row."""
    for n, m in itertools.product((1, 2, 4, 5), (1, 3, 4)):
        yield (rng.standard_normal((n, m)), rng.integers(0, m, n)), {}


def _classified(rng):
    """Rows with a class each: as many rows as classes are named."""
    rows = ((), (1,), (4,), (2, 3), (2, 1))
    for shape in ((*outer, classes) for outer in rows for classes in (1, 3, 4)):
        yield (rng.standard_normal(shape), rng.integers(0, shape[-1], shape[:-1])), {}


MOVED = {
    "class_loss": _classified,
    "class_mean": _classified_rows,
    "permute": _permutations,
    "expand": _expansions,
    "reshape": _reshapes,
    "diagonal": _diagonals,
    "diag_embed": _embedded_diagonals,
    "slice": _slices,
    "unslice": _unslices,
    "slice_put": _written_slices,
    "take": _taken,
    "untake": _put_back,
    "put": _put,
    "windows": _windows,
    "window_max": _windows,
    "window_sum": _windows,
    "overlap_add": _overlaps,
    "searchsorted": _searches,
    "sparse_product": _sparse,
}


# ---------------------------------------------------------------------------------- integers


def integers_of(op):
    """Return cases of an elementwise op with integers from where its domain lies."""
    rng = np.random.default_rng(sum(map(ord, op.name)) + 2)
    only = op.extra.get("input_dtype")
    out = []
    for dtype in ("int64", "int32", "uint8") if only is None else (only,):
        arrays = []
        for d in op.domain:
            low, high = (0, 1) if d in ("unit", "probability", "boolean") else (1, 5)
            a = rng.integers(low, high + 1, (2, 3))
            arrays.append(a.astype(bool if d == "boolean" else dtype))
        out.append(Case(op, str(dtype), tuple(arrays), {}))
    return out
