"""Random programs of views and in-place changes, and three ways to run them.

A program is a list of steps on named tensors: views of views (stepped, reversed, transposed,
diagonal), changes in place of tensors and of their views, by all spellings, arithmetic, and a loss.
`Tape` runs it on the tape of a library with PyTorch's vocabulary. `ComplexStep` runs it on NumPy's
arrays, whose views share memory by themselves, with a complex step for the derivative: it knows
nothing of tapes, and its derivatives are exact to rounding.
"""

import operator

import numpy as np

__all__ = ["ComplexStep", "Tape", "program"]

CHANGES = ("mul", "add", "sub", "copy", "fill", "zero", "sin", "square", "iadd", "set", "mask")


def program(rng, length=12, detached=False):
    """Return a random program, a list of ``(name of the result or None, step, arguments)``."""
    steps, sim = [], ComplexStep(np.linspace(0.3, 1.4, 6), np.zeros(6))

    def do(name, step, *args):
        steps.append((name, step, args))
        sim.run([steps[-1]])

    count = iter(range(10**6))
    do(f"t{next(count)}", "times", "x", float(rng.integers(1, 4)))
    for _ in range(length):
        names = [n for n in sim.values if n != "x"]
        # Mostly what came last, so that views of views of changed tensors come about.
        name = names[-min(int(rng.geometric(0.3)), len(names))]
        kind = rng.choice(["make", "view", "view", "change", "change", "arithmetic", "keep"])
        if kind == "make":
            do(f"t{next(count)}", *_made(rng, name, sim, detached))
        elif kind == "view":
            do(f"t{next(count)}", "view", name, _view(rng, sim.values[name].shape))
        elif kind == "change":
            _change(rng, do, name, names, sim)
        elif kind == "arithmetic":
            do(f"t{next(count)}", str(rng.choice(["double", "sin", "square"])), name)
        else:
            do(None, "keep", name, float(rng.integers(1, 5)))
    for name in rng.choice([n for n in sim.values if n != "x"], 2):
        do(None, "keep", str(name), float(rng.integers(1, 5)))
    return steps


def _made(rng, name, sim, detached):
    kind = rng.choice(["times", "clone", "zeros", "detach" if detached else "zeros"])
    if kind == "times":
        return "times", "x", float(rng.integers(1, 4))
    if kind == "zeros":
        return "zeros", tuple(int(n) for n in rng.choice([2, 3, 6], rng.integers(1, 3)))
    return str(kind), name


def _view(rng, shape):
    kinds = ["index", "index", "index", "reshape", "transpose", "unsqueeze", "diagonal", "same"]
    kind = rng.choice(kinds)
    if kind == "diagonal" and len(shape) == 2:
        return ("diagonal",)
    if kind == "transpose" and len(shape) > 1:
        return ("transpose",)
    if kind == "unsqueeze" and len(shape) < 3:
        return "unsqueeze", int(rng.integers(len(shape) + 1))
    if kind == "reshape" and int(np.prod(shape)) == 6:
        return "reshape", [(6,), (2, 3), (3, 2), (1, 6)][rng.integers(4)]
    return "index", _key(rng, shape)


def _key(rng, shape):
    key = []
    for n in shape:
        kind = rng.integers(4)
        if n == 0 or kind == 0:
            key.append(slice(None))
        elif kind == 1:
            key.append(int(rng.integers(-n, n)))
        else:
            start = int(rng.integers(n))
            key.append(slice(start, int(rng.integers(start, n + 1)) or None, int(kind - 1)))
    return tuple(key)


def _change(rng, do, name, names, sim):
    value = sim.values[name]
    kind = str(rng.choice(CHANGES))
    others = [n for n in names if sim.values[n].shape in ((), value.shape)]
    other = str(rng.choice(others)) if others and rng.random() < 0.6 else None
    if kind in ("sin", "square", "zero"):
        do(None, "change", name, kind, None)
    elif kind == "fill":
        do(None, "change", name, kind, float(rng.integers(1, 4)))
    elif kind == "set":
        key = _key(rng, value.shape)
        place = value[key].shape
        fitting = [n for n in names if sim.values[n].shape in ((), place)]
        what = str(rng.choice(fitting)) if fitting and rng.random() < 0.7 else 2.0
        do(None, "set", name, key, what)
    elif kind == "iadd":
        do(None, "iadd", name, _key(rng, value.shape), 1.5)
    elif kind == "mask":
        mask = rng.random(value.shape) < 0.5
        scalars = [n for n in names if sim.values[n].shape == ()]
        do(None, "masked", name, mask, str(rng.choice(scalars)) if scalars else 0.5)
    else:
        do(None, "change", name, kind, other or 0.5)


class Interpreter:
    """What the two ways have in common: names, and the loss that is kept."""

    def __init__(self):
        self.values = {}
        self.kept = []

    def run(self, steps):
        """Carry steps out."""
        for name, step, args in steps:
            found = getattr(self, step)(*args)
            if name is not None:
                self.values[name] = self.result(found)

    def result(self, found):
        return found

    def operand(self, what):
        """Return a number, or the tensor of a name."""
        return self.values[what] if isinstance(what, str) else what

    def times(self, name, number):
        return self.values[name] * number

    def double(self, name):
        return self.values[name] + self.values[name]

    def iadd(self, name, key, number):
        self.values[name][key] += number

    def set(self, name, key, what):
        self.values[name][key] = self.operand(what)

    def masked(self, name, mask, what):
        self.values[name][self.mask_of(mask)] = self.operand(what)

    def keep(self, name, weight):
        # By a product with numbers, which reads no elements in its gradient: what happens to the
        # tensor later is then no reason to refuse.
        value = self.values[name]
        self.kept.append((value * weight).sum())


class Tape(Interpreter):
    """On the tape of `lib`: probtorch, or torch."""

    def __init__(self, lib, x):
        super().__init__()
        self.lib = lib
        self.x = self.values["x"] = lib.tensor(x, dtype=lib.float64, requires_grad=True)

    def mask_of(self, mask):
        return self.lib.tensor(mask)

    def zeros(self, shape):
        return self.lib.zeros(*shape, dtype=self.lib.float64)

    def clone(self, name):
        return self.values[name].clone()

    def detach(self, name):
        return self.values[name].detach()

    def sin(self, name):
        return self.values[name].sin()

    def square(self, name):
        t = self.values[name]
        return t * t

    def view(self, name, how):
        kind, *rest = how
        t = self.values[name]
        if kind == "index":
            return t[rest[0]]
        if kind == "transpose":
            return t.transpose(0, 1)
        return getattr(t, kind)(*rest)

    def change(self, name, kind, what):
        t, other = self.values[name], self.operand(what)
        if kind == "copy":
            t.copy_(other if what.__class__ is str else self.lib.tensor(other))
        elif what is None:
            getattr(t, kind + "_")()
        else:
            getattr(t, kind + "_")(other)

    def loss(self):
        return sum(self.kept)


class ComplexStep(Interpreter):
    """On arrays, at ``x + ih direction``."""

    STEP = 1e-30

    def __init__(self, x, direction):
        super().__init__()
        self.values["x"] = x + 1j * self.STEP * direction

    def result(self, found):
        return np.asarray(found)  # NumPy makes numbers of results without dims

    def mask_of(self, mask):
        return mask

    def zeros(self, shape):
        return np.zeros(shape, complex)

    def clone(self, name):
        return self.values[name].copy()

    def detach(self, name):
        return self.values[name]

    def sin(self, name):
        return np.sin(self.values[name])

    def square(self, name):
        return self.values[name] ** 2

    def view(self, name, how):
        kind, *rest = how
        a = self.values[name]
        if kind == "index":
            key = tuple(slice(k, k + 1 or None) if isinstance(k, int) else k for k in rest[0])
            drop = tuple(i for i, k in enumerate(rest[0]) if isinstance(k, int))
            # Not an index by integers alone, nor an empty one: these would be copies.
            return np.squeeze(a[(*key, ...)], drop)
        if kind == "reshape":
            return a.reshape(rest[0])
        if kind == "unsqueeze":
            return np.expand_dims(a, rest[0])
        if kind == "diagonal":
            out = a.diagonal()
            out.setflags(write=True)
            return out
        return a.T if a.ndim == 2 else np.swapaxes(a, 0, 1)

    def change(self, name, kind, what):
        a, other = self.values[name], self.operand(what)
        if kind in ("sin", "square"):
            a[...] = np.sin(a) if kind == "sin" else a**2
        elif kind in ("copy", "fill", "zero"):
            a[...] = 0.0 if kind == "zero" else np.array(other)
        else:
            a[...] = getattr(operator, kind)(a, other)

    def derivative(self):
        """Return the derivative of the loss along the direction."""
        return sum(self.kept).imag / self.STEP
