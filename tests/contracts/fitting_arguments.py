"""Random arguments for calls that probtorch and PyTorch have in common, by kinds.

A kind is a function of `Draw`, which has the random numbers and the first tensor, `x`, to which
later ones are fitted; `KINDS` has them by name. What is drawn is plain until `Data.tensor` hands it
to one library.
"""

import dataclasses
import math

import numpy as np

SHAPES = [(), (0,), (1,), (3,), (5,), (2, 3), (3, 3), (2, 0), (0, 3), (1, 4), (2, 1, 3), (2, 3, 4)]
FLOATS = ["float32", "float64", "float16"]
INTEGERS = ["int64", "int32", "int16", "int8", "uint8"]
ODD = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5]


@dataclasses.dataclass(frozen=True)
class Data:
    """A tensor that is to be: its elements, and whether it lies in memory in another order."""

    array: np.ndarray
    layout: str = "contiguous"

    def tensor(self, room):
        """Return the tensor in one of the libraries; each has a copy of its own."""
        x = self.array
        if self.layout == "strided":
            return room.from_numpy(np.repeat(x, 2, -1))[..., ::2]
        if self.layout == "transposed":
            turned = room.from_numpy(np.array(x.T, order="C"))
            return turned.permute(*reversed(range(x.ndim)))
        return room.from_numpy(np.array(x, order="C"))

    def __repr__(self):
        layout = "" if self.layout == "contiguous" else f", {self.layout}"
        return f"<{self.array.dtype} {self.array.tolist()} {self.array.shape}{layout}>"


@dataclasses.dataclass(frozen=True)
class DType:
    """The name of a dtype, of which each library has its own object."""

    name: str

    def __repr__(self):
        return self.name


class Draw:
    """Random arguments of one call. `x` is its first tensor, to which later ones are fitted."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.x = None
        self.dtype = self.pick(FLOATS) if self.chance(0.7) else self.pick([*INTEGERS, "bool"])
        self.odd = self.chance(0.25)

    def chance(self, p):
        return self.rng.random() < p

    def pick(self, values):
        return values[self.rng.integers(len(values))]

    def array(self, shape, dtype=None, *, odd=None, low=None, high=None):
        """Return numbers of a dtype: normal ones, uniform ones in [low, high] or small integers."""
        dtype = np.dtype(dtype or self.dtype)
        if dtype.kind == "b":
            return self.rng.integers(0, 2, shape).astype(bool)
        if dtype.kind in "iu":
            bottom = 0 if dtype.kind == "u" or low is not None else -3
            return self.rng.integers(bottom, 5, shape).astype(dtype)
        x = self.rng.standard_normal(shape) * self.pick([1.0, 1.0, 3.0])
        if low is not None:
            x = self.rng.uniform(low, high, shape)
        x = np.asarray(x).astype(dtype)
        if self.odd if odd is None else odd:
            x[self.rng.random(shape) < 0.3] = self.pick(ODD)
        return x

    def data(self, shape, dtype=None, **options):
        array = self.array(shape, dtype, **options)
        layout = "contiguous"
        if array.ndim and self.chance(0.4):
            layout = self.pick(["strided", "transposed"])
        out = Data(array, layout)
        if self.x is None:
            self.x = out
        return out

    @property
    def shape(self):
        return self.x.array.shape

    def other_dtype(self):
        return self.dtype if self.chance(0.75) else self.pick([*FLOATS, *INTEGERS, "bool"])

    def float_dtype(self):
        if self.dtype not in FLOATS and self.chance(0.8):
            self.dtype = self.pick(FLOATS)
        return self.dtype


def any_shape(d):
    return d.pick(SHAPES)


def partner(d):
    """Return a tensor that broadcasts with the first one, or a number."""
    if d.chance(0.25):
        return d.pick([2, -1, 0, 0.5, -1.5, True, 3.0, math.nan, math.inf])
    shape = list(d.shape)
    if shape and d.chance(0.4):
        shape[d.rng.integers(len(shape))] = 1
    if d.chance(0.2):
        shape = shape[1:]
    if d.chance(0.1):
        shape = [2, *shape]
    if d.chance(0.05):
        shape = list(any_shape(d))
    return d.data(tuple(shape), d.other_dtype())


def dim(d):
    n = len(d.shape)
    if d.chance(0.05):
        return n + 1
    return int(d.rng.integers(-n, n)) if n else d.pick([0, -1])


def dims(d):
    n = len(d.shape)
    if n < 2 or d.chance(0.5):
        return dim(d)
    chosen = d.rng.permutation(n)[: d.rng.integers(1, n + 1)]
    return tuple(int(i) - (n if d.chance(0.3) else 0) for i in chosen)


def size(d):
    return d.shape[dim(d) % max(len(d.shape), 1)] if d.shape else 1


def index(d, *, odd=True):
    """Return valid indices of some dim of the first tensor, of its rank."""
    shape = tuple(d.pick([0, 1, 2, max(s, 1)]) if d.chance(0.5) else s for s in d.shape)
    top = min(d.shape, default=1)
    low = -1 if odd and d.chance(0.05) else 0
    high = max(top, 1) + (1 if odd and d.chance(0.03) else 0)
    return Data(np.asarray(d.rng.integers(low, high, shape), np.int64))


def positions(d):
    """Return a vector of indices of a dim."""
    high = max(min(d.shape, default=1), 1)
    low = -1 if d.chance(0.05) else 0
    return Data(d.rng.integers(low, high, d.pick([(0,), (1,), (3,)])).astype(np.int64))


def matrices(rows=3, columns=3, *, spd=False, batch=True, odd=False):
    def make(d):
        lead = d.pick([(), (), (2,), (0,)]) if batch else ()
        shape = (*lead, rows, columns)
        a = d.array(shape, d.float_dtype(), odd=odd and d.odd)
        if a.dtype == np.float16 and d.chance(0.8):
            a = a.astype(np.float32)
            d.dtype = "float32"
        if spd:
            eye = np.eye(rows, dtype=a.dtype)
            a = a @ np.swapaxes(a, -1, -2) + eye if a.dtype.kind == "f" else a
        out = Data(np.asarray(a), d.pick(["contiguous", "strided"]))
        d.x = d.x or out
        return out

    return make


def triangle(d):
    return Data(np.tril(matrices(spd=True)(d).array))


def images(rank, channels=4):
    def make(d):
        d.float_dtype()
        spatial = tuple(int(n) for n in d.rng.integers(4, 7, rank))
        batch = d.pick([(1,), (2,), (2,), (0,), ()])
        return d.data((*batch, channels, *spatial))

    return make


def kernels(rank, turned=False):
    def make(d):
        return d.data((4, 2) + (d.pick([1, 2, 3]),) * rank, low=-1.0, high=1.0)

    return make


def logits(d):
    """Return scores of 4 classes: a vector, rows, or rows with dims behind the classes."""
    d.float_dtype()
    return d.data(d.pick([(4,), (3, 4), (3, 4), (0, 4), (2, 4, 3)]))


def classes(d):
    shape = d.shape[:1] + d.shape[2:] if len(d.shape) > 1 else ()
    low = -1 if d.chance(0.05) else 0
    return Data(np.asarray(d.rng.integers(low, 5 if d.chance(0.05) else 4, shape), np.int64))


def some_logits(d):
    d.float_dtype()
    return d.data(d.pick([(4,), (3, 4)]))


def class_flags(d):
    """Return per row a few classes, each once, and -1 behind them."""
    flags = d.rng.permuted(np.broadcast_to(np.arange(4), d.shape), axis=-1)
    return Data(np.where(np.arange(4) < d.rng.integers(1, 5), flags, -1))


def new_float(low=None, high=None, shape=None):
    """Return a kind: a tensor of floats in [low, high]; of the shape of the first one if any."""

    def make(d):
        d.float_dtype()
        to = shape or (d.shape if d.x is not None else any_shape(d))
        if low is None:
            return d.data(to)
        return d.data(to, low=low, high=high)

    return make


def broadcast_loss(d):
    return d.data(d.shape if d.chance(0.9) else (1,), d.dtype)


def signs(d):
    dtype = d.dtype if d.dtype in FLOATS else "int64"
    return Data((d.rng.integers(0, 2, d.shape) * 2 - 1).astype(dtype))


def sizes(d):
    return tuple(int(n) for n in d.rng.integers(0, 4, d.rng.integers(0, 4)))


def reshaped(d):
    n = math.prod(d.shape)
    options = [(n,), (1, n), (-1,), (n, 1), (-1, 1), (1, 1, -1), (n + 1,)]
    options += [d.shape[::-1], (2, n // 2)]
    return d.pick(options)


def permuted(d):
    return tuple(int(i) for i in d.rng.permutation(len(d.shape)))


def parts(d):
    n = d.shape[0] if d.shape else 1
    return d.pick([1, 2, 3, n or 1, [n], [1, n - 1] if n > 1 else [n], [0, n]])


def list_of(count, make_shape):
    def make(d):
        shape = any_shape(d)
        return [d.data(make_shape(d, shape), d.other_dtype()) for _ in range(d.pick(count))]

    return make


def longer(d, shape):
    return (d.pick([0, 1, 2]), *shape[1:]) if shape else ()


def vector_tail(d, lead):
    """Return operands of a matrix product that fits the first one."""
    n = d.shape[-1] if d.shape else 3
    return d.data(d.pick([(n,), (n, 2), (2, n, 4), (n, 0)]) if d.chance(0.95) else (7,))


def of_last(d):
    return (d.shape[-1],) if d.shape else (1,)


def affine(d):
    n = d.shape[-1:] or (1,)
    return d.data(n, d.dtype)


def per_channel(d):
    return d.data((4,), d.dtype)


def variances(d):
    return d.data((4,), d.dtype, low=0.5, high=2.0)


def einsum_operands(d):
    eq, shapes = d.pick(
        [
            ("ij,jk->ik", [(2, 3), (3, 4)]),
            ("i,i->", [(3,), (3,)]),
            ("ii->i", [(3, 3)]),
            ("ii", [(3, 3)]),
            ("bij,bjk->bik", [(2, 3, 4), (2, 4, 1)]),
            ("...i,...i->...", [(2, 3), (3,)]),
            ("ij->ji", [(2, 3)]),
            ("ij->", [(2, 0)]),
            ("i,j->ij", [(2,), (3,)]),
            ("ij,jk", [(2, 3), (3, 2)]),
            ("a,b->c", [(2,), (3,)]),
            ("ij,jk->ik", [(2, 3), (2, 4)]),
        ]
    )
    return [eq, *(d.data(s) for s in shapes)]


def pads(d):
    n = 2 * int(d.rng.integers(1, max(len(d.shape), 1) + 1))
    return tuple(int(i) for i in d.rng.integers(-1, 3, n))


def choice(*values):
    return lambda d: d.pick(values)


def on_vectors(dtype="int64", low=0):
    return lambda d: Data(d.rng.integers(low, 6, d.pick([(0,), (1,), (7,)])).astype(dtype))


def edges(d):
    """Return a sorted vector of floats."""
    d.float_dtype()
    return d.data(d.pick([(4,), (1,), (0,)]), odd=False)


def sorted_edges(d):
    e = edges(d).array
    return Data(np.sort(e.astype(np.float64)).astype(e.dtype))


def attention(length):
    return lambda d: d.data((*d.shape[:-2], length, d.shape[-1]) if d.x else (2, 2, 3, 4))


def some_rows(d, n):
    return Data(np.asarray(d.rng.integers(-n, n, d.pick([(), (2,)]))))


def item(d):
    """Return an index expression: numbers, slices, None, ..., masks and tensors of integers."""
    parts, left = [], len(d.shape)
    if d.chance(0.1) and d.shape:
        return d.data(d.shape, "bool")
    if d.chance(0.1):
        parts.append(Ellipsis)
    while left and d.chance(0.8):
        n = d.shape[len(d.shape) - left]
        kind = d.pick(["number", "slice", "slice", "none", "list", "tensor", "mask", "flag"])
        left -= kind not in ("none", "flag")
        parts.append(
            {
                "number": lambda n=n: int(d.rng.integers(-max(n, 1), max(n, 1))),
                "slice": lambda: slice(
                    *(d.pick([None, 0, 1, -1, 2]) for _ in range(2)), d.pick([None, 1, 2, -1])
                ),
                "none": lambda: None,
                "list": lambda n=n: [0, max(n - 1, 0)],
                "tensor": lambda n=n: Data(
                    d.rng.integers(-max(n, 1), max(n, 1), d.pick([(), (2,)]))
                ),
                "mask": lambda n=n: Data(d.rng.integers(0, 2, n).astype(bool)),
                "flag": lambda: d.pick([True, False, Data(np.array(True)), Data(np.array(False))]),
            }[kind]()
        )
    return tuple(parts)


def factor(d):
    """Return a lower triangle of a matrix of the dtype of the first tensor."""
    a = d.array((3, 3), d.x.array.dtype, odd=False)
    return Data(np.tril(a) + 2 * np.eye(3, dtype=a.dtype))


def pooled(d):
    """Return positions for each channel, none twice."""
    lead = 2 if d.shape[:1] != (4,) else 1
    count = math.prod(d.shape[lead:])
    return Data(d.rng.random((*d.shape[:lead], count)).argsort(-1).reshape(d.shape))


def bag(d):
    d.x = Data(d.rng.integers(0, 5, 3))
    return d.x


def log_probabilities(d):
    a = d.rng.standard_normal((5, 2, 4))
    a -= np.log(np.exp(a).sum(-1, keepdims=True))
    d.x = Data(a.astype(d.pick(["float32", "float64"])))
    return d.x


KINDS = {
    "x": lambda d: d.data(any_shape(d)),
    "xf": lambda d: d.data(any_shape(d), d.float_dtype()),
    "unit": new_float(0.0, 1.0),
    "positive": new_float(0.01, 9.0),
    "y": partner,
    "yf": lambda d: d.data(d.shape, d.dtype),
    "ypos": new_float(0.01, 9.0),
    "yunit": new_float(0.0, 1.0),
    "loss": broadcast_loss,
    "signs": signs,
    "bool": lambda d: d.data(d.shape if d.x and d.chance(0.8) else any_shape(d), "bool"),
    "mask": lambda d: d.data(d.shape if d.chance(0.9) else d.shape[1:], "bool"),
    "int": lambda d: d.data(any_shape(d), d.pick([*INTEGERS, "bool"])),
    "yint": lambda d: d.data(d.shape, d.x.array.dtype) if d.chance(0.8) else d.pick([1, 2, 3]),
    "vec": lambda d: d.data(d.shape if d.x and d.chance(0.95) else d.pick([(3,), (0,), (1,)])),
    "mat": lambda d: d.data(d.pick([(2, 3), (3, 3), (0, 3), (3, 1)])),
    "right": lambda d: d.data((d.shape[-1], 2), d.dtype if d.chance(0.95) else d.other_dtype()),
    "rightvec": lambda d: d.data(d.shape[-1:]),
    "batch": lambda d: d.data(d.pick([(2, 3, 3), (2, 1, 3), (0, 2, 3)])),
    "batchright": lambda d: d.data((d.shape[0], d.shape[-1], 2)),
    "anymat": lambda d: vector_tail(d, None),
    "dim": dim,
    "dims": dims,
    "row": lambda d: dim(d) if len(d.shape) < 2 else d.pick([0, 1, -1]),
    "size": size,
    "index": index,
    "positions": positions,
    "src": lambda d: d.data(d.shape, d.dtype),
    "flag": choice(True, False),
    "no": choice(False),
    "dtype": lambda d: DType(d.pick([*FLOATS, "int64", "int32", "bool", "uint8"])),
    "float": lambda d: DType(d.pick(FLOATS)),
    "number": choice(0.5, 2, 0, -1.0, 1.5),
    "small": choice(0.1, 0.5, 1.0),
    "positive_number": choice(0.5, 1.0, 2.0),
    "count": choice(0, 1, 2, 3),
    "two_or_more": choice(2, 3),
    "offset": choice(0, 1, -1, 2, -3),
    "correction": choice(0, 1, 2),
    "p": choice(1, 2, 0, 3, 0.5, math.inf, -math.inf),
    "pinf": choice(1, 2, 3.0),
    "ord": choice("fro", "nuc", 1, 2, -1, -2, math.inf, -math.inf),
    "power": choice(0, 1, 2, 3, -1),
    "q": lambda d: d.pick([0.5, 0.0, 1.0, 0.25, Data(np.array([0.1, 0.9], d.dtype))]),
    "interpolation": choice("linear", "lower", "higher", "nearest", "midpoint"),
    "rounding": choice("floor", "trunc"),
    "reduction": choice("mean", "sum", "none"),
    "square": matrices(),
    "wide": matrices(2, 3),
    "tall": matrices(4, 2),
    "spd": matrices(spd=True),
    "triangle": triangle,
    "solvee": lambda d: d.data((*d.shape[:-1], 2), odd=False),
    "sizes": sizes,
    "reshaped": reshaped,
    "permuted": permuted,
    "parts": parts,
    "tensors": list_of([1, 2, 3], longer),
    "same_tensors": list_of([1, 2, 3], lambda d, s: s),
    "vectors": list_of([1, 2, 3], lambda d, s: d.pick([(), (2,), (3,), (0,)])),
    "one_sizes": lambda d: tuple(-1 if d.chance(0.3) else s for s in d.shape),
    "expanded": lambda d: (2, *d.shape) if d.chance(0.5) else d.shape,
    "reps": lambda d: tuple(int(i) for i in d.rng.integers(0, 3, len(d.shape) or 1)),
    "shift": choice(1, -1, 2, 0),
    "indices": on_vectors(),
    "weights": lambda d: d.data(d.x.array.shape, d.float_dtype()) if d.x else None,
    "edges": sorted_edges,
    "values": lambda d: d.data(d.pick([(), (3,), (2, 2), (0,)]), d.dtype),
    "pads": pads,
    "mode": choice("constant", "reflect", "replicate", "circular"),
    "img1": images(1),
    "img2": images(2),
    "img3": images(3),
    "ker1": lambda d: d.data((2, 4, d.pick([1, 2, 3])), odd=False),
    "ker2": lambda d: d.data((2, 4, d.pick([1, 2, 3]), 2), odd=False),
    "ker3": lambda d: d.data((2, 4, 2, 1, 3), odd=False),
    "tker1": lambda d: d.data((4, 2, d.pick([1, 2, 3])), odd=False),
    "tker2": lambda d: d.data((4, 2, d.pick([1, 2, 3]), 2), odd=False),
    "tker3": lambda d: d.data((4, 2, 2, 1, 3), odd=False),
    "two": lambda d: d.data((2,), odd=False),
    "stride": choice(1, 2),
    "window": choice(1, 2, 3, 3),
    "padding": choice(0, 1, 1, 2),
    "out1": choice(1, 2, 3, 5),
    "logits": logits,
    "classes": classes,
    "few": some_logits,
    "class_flags": class_flags,
    "four": lambda d: d.data((4,), d.dtype, low=0.1, high=2.0),
    "channels": per_channel,
    "variances": variances,
    "of_last": of_last,
    "affine": affine,
    "table": lambda d: d.data((5, 3), d.float_dtype()),
    "rows": lambda d: Data(d.rng.integers(-(d.chance(0.1)), 5, d.pick([(), (3,), (2, 2), (0,)]))),
    "query": attention(3),
    "key": attention(5),
    "scalar": lambda d: d.data(()) if d.chance(0.9) else d.data((2,)),
    "onesize": lambda d: d.data(d.pick([(), (1,), (1, 1)]) if d.chance(0.9) else (2,)),
    "tile": lambda d: tuple(int(i) for i in d.rng.integers(1, 3, d.rng.integers(0, 3))),
    "einsum": einsum_operands,
    "shapes": lambda d: (2, 1),
    "group": choice(1, 2, 4, 3),
    "list": lambda d: d.pick(
        [[1, 2], [[1.5, 2], [3, 4]], 3, 2.5, True, [], [True, False], [1, 2.5]]
    ),
    "item": item,
    "factor": factor,
    "one": lambda d: d.data(()),
    "indexing": choice("ij", "xy"),
    "places": lambda d: d.data(
        (*d.shape[:1], *(3, 1, 2)[: len(d.shape) - 2], len(d.shape) - 2),
        odd=False,
        low=-1.5,
        high=1.5,
    ),
    "pooled": pooled,
    **{
        f"draws{n}": lambda d, n=n: d.data(
            (d.shape[0] if len(d.shape) == n + 2 else 1, 4, n), odd=False, low=0.0, high=1.0
        )
        for n in (2, 3)
    },
    # PyTorch ends the program on matrices without rows or in half precision.
    "solid": lambda d: d.data(d.pick([(2, 3), (4, 1)]), d.pick(["float32", "float64"])),
    "bags": lambda d: d.x or Data(d.rng.integers(0, 5, d.pick([(2, 3), (1, 1), (3, 0)]))),
    "bag": bag,
    "begins": lambda d: Data(np.array(d.pick([[0], [0, 2], [0, 0, 1, 3]]))),
    # Of no bags at all PyTorch ends the program.
    "ends": lambda d: Data(np.array(d.pick([[0, 3], [0, 2], [0, 0, 1, 3]]))),
    "bag_mode": choice("mean", "sum", "max"),
    "logp": log_probabilities,
    "joined": lambda d: Data(np.array([1, 2, 3, 2])),
    "labels": lambda d: Data(d.rng.integers(1, 4, (2, 3))),
    "grid_mode": choice("bilinear", "nearest", "bicubic"),
    "border": choice("zeros", "border", "reflection"),
    "theta": lambda d: d.data((2, 2, 3), d.float_dtype()),
    "theta3": lambda d: d.data((1, 3, 4), d.float_dtype()),
    "gelu": choice("none", "tanh"),
    "even": lambda d: d.data(d.pick([(4,), (2, 4), (4, 6), (0, 4)]), d.float_dtype()),
    "int64": lambda d: Data(d.rng.integers(0, 6, d.pick([(), (3,), (2, 2)]))),
    "lw": lambda d: d.data((2, 3), odd=False),
    "blw": lambda d: d.data((2, d.shape[-1], d.shape[-1]), odd=False),
    # In which order infinite products are added is nobody's promise.
    "finite": lambda d: d.data(d.shape if d.x else (2, 3), odd=False),
    "mat2": lambda d: d.data(d.shape),
    "anyvec": lambda d: d.data((2,)),
    "probs": lambda d: d.data(d.shape, low=0.0, high=1.0),
    "rowsigns": lambda d: Data((d.rng.integers(0, 2, d.shape[:1]) * 2 - 1).astype("int64")),
    "folded": lambda d: d.data((2, 8, 4), d.float_dtype()),
    "shuffled": lambda d: d.data((1, 2, 4, 6), d.float_dtype()),
    "values_first": lambda d: d.data(d.pick([(), (3,), (2, 2), (0,)]), d.float_dtype()),
    "vecx": lambda d: d.data((4,)),
    "posx": lambda d: (Data(d.rng.integers(0, 4, 3)),),
    "values0": lambda d: d.data((3,), d.dtype),
    "solvee0": lambda d: d.data((3, 2), d.pick(["float32", "float64"]), odd=False),
    "triangle2": lambda d: Data(
        np.tril(d.array((3, 3), d.x.array.dtype, odd=False)) + np.eye(3, dtype=d.x.array.dtype) * 2
    ),
    **{f"gker{n}": lambda d, n=n: d.data((2, 2, *(2,) * n), odd=False) for n in (1, 2, 3)},
}
