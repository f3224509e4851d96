"""Calls of NumPy's functions, made on arrays and on tensors: the data of `test_numpy_sweep.py`.

A `Call` is a function, its arguments and keywords with arrays in them. `calls_of` makes them from
rows of the function, which stand in the four files rows_of_*.py: each array, each value of each
option by keyword and by place, and each value of the first option together with each other one.
"""

import itertools
from dataclasses import dataclass, field

import numpy as np

SHAPES = {"0": (), "1": (5,), "2": (3, 4), "3": (2, 3, 2), "none": (0,), "none2": (0, 3)}
DTYPES = ("int64", "bool", "float32", "float64", "complex128")


def array(dtype, shape, seed=0):
    """Numbers away from ties and from each other's mirror images; whole ones from -5 to 5."""
    rng = np.random.default_rng(seed + 7 * len(shape) + sum(shape))
    size = int(np.prod(shape))
    if dtype == "bool":
        return rng.random(shape) < 0.6
    if dtype in ("int64", "uint8"):
        low = 0 if dtype == "uint8" else -5
        return rng.integers(low, 6, shape).astype(dtype)
    x = rng.permutation(np.linspace(-1.83, 2.11, size)).reshape(shape)
    if dtype == "complex128":
        return x + 1j * rng.permutation(np.linspace(-0.93, 1.47, size)).reshape(shape)
    return np.asarray(x, dtype)


@dataclass
class Call:
    """One call: `tags` say which options it has, for tables of what is refused."""

    fn: object
    args: tuple
    kwargs: dict
    tags: tuple = ()
    look: object = None

    def __str__(self):
        words = [_shown(a) for a in self.args]
        words += [f"{k}={_shown(v)}" for k, v in self.kwargs.items()]
        return f"{self.fn.__name__}({', '.join(words)})"

    def made(self, of):
        """Make the call with ``of(array)`` for each floating or other array that is data."""
        found = self.fn(*_replaced(self.args, of), **_replaced(self.kwargs, of))
        return found if self.look is None else self.look(found)

    def data(self):
        """The arrays of data, in the order in which `made` replaces them."""
        found = []
        self_args = (self.args, self.kwargs)
        _replaced(self_args, lambda x: found.append(x) or x)
        return found


class Data(np.ndarray):
    """An array that stands for a tensor; all other arrays stay what they are."""


def data(x):
    return np.asarray(x).view(Data)


def _shown(x):
    if isinstance(x, np.ndarray):
        what = f"{x.dtype}{list(x.shape)}"
        return what if isinstance(x, Data) else f"np:{what}"
    if isinstance(x, (list, tuple)):
        inside = ", ".join(map(_shown, x))
        return f"[{inside}]" if isinstance(x, list) else f"({inside})"
    if isinstance(x, np.generic):
        return repr(x)
    return getattr(x, "__name__", None) or repr(x)


def _replaced(x, of):
    if isinstance(x, Data):
        return of(x.view(np.ndarray))
    if isinstance(x, (list, tuple)):
        return type(x)(_replaced(i, of) for i in x)
    if isinstance(x, dict):
        return {k: _replaced(v, of) for k, v in x.items()}
    return x


@dataclass
class Row:
    """What a function is called with: leading arguments made of an array, and its options."""

    lead: object = lambda x: [(data(x),)]
    options: dict = field(default_factory=dict)
    places: str = ""
    dtypes: tuple = DTYPES
    shapes: tuple = tuple(SHAPES)
    pairs: bool = True
    look: object = None


def axes(x):
    n = x.ndim
    yield from (None, 0, -1, np.int64(0), n - 1, n, -n - 1, (), (0,), np.array(0), 0.0)
    if n > 1:
        yield from ((0, 1), (0, -1), (-1, -n), (0, n), (0, 0))


def one_axis(x):
    yield from (0, -1, np.int64(0), x.ndim - 1, x.ndim, -x.ndim - 1, None, np.array(0), 0.0)


def two_axes(x):
    yield from (0, 1, -1, -x.ndim, np.int64(0), x.ndim)


def mask(x):
    yield np.arange(x.size).reshape(x.shape) % 2 == 0
    yield True


BOOLS = (True, False, 1)
TYPES = ("float64", np.float32, np.int64, int, float, complex, np.dtype("int32"), bool)


def options_of(row, x):
    for name, values in row.options.items():
        yield name, list(values(x)) if callable(values) else list(values)


def calls_of(name, rows):
    """Every call of the function of that name that its rows make."""
    fn = function(name)
    for row in rows:
        arrays = itertools.product(row.shapes, row.dtypes)
        for shape, dtype in arrays:
            x = array(dtype, SHAPES[shape])
            for lead in row.lead(x):
                yield from _with_options(fn, row, x, lead)


def _with_options(fn, row, x, lead):
    yield Call(fn, lead, {}, (), row.look)
    options = dict(options_of(row, x))
    order = row.places.split()
    for name, values in options.items():
        for value in values:
            yield Call(fn, lead, {name: value}, (name,), row.look)
            if name in order:
                before = order[: order.index(name)]
                if all(options.get(b) for b in before):
                    filled = tuple(options[b][0] for b in before)
                    yield Call(fn, (*lead, *filled, value), {}, (*before, name), row.look)
    if row.pairs and len(options) > 1:
        first, *others = options
        for value in options[first]:
            for other in others:
                for also in options[other][:3]:
                    yield Call(fn, lead, {first: value, other: also}, (first, other), row.look)


def function(name):
    at = np
    for part in name.split("."):
        at = getattr(at, part)
    return at


def other(x, seed=3):
    """Another array of the same kind, of that shape."""
    return array(str(x.dtype), x.shape, seed)


def pairs(x):
    """A function of two: with one of its own kind, with a number, and one that is no tensor."""
    yield data(x), data(other(x))
    yield data(x), other(x)
    yield other(x), data(x)
    yield data(x), 2
    yield 2, data(x)


INEXACT = ("float32", "float64", "complex128")
