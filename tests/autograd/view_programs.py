"""Random programs of views and in-place changes, and three ways to run them.

A program is a list of steps on named tensors: views of views (stepped, reversed, transposed,
diagonal, unbound, expanded), changes in place of tensors and of their views, by all spellings,
reads and writes at masks and at index tensors, arithmetic, and a loss.
`Tape` runs it on the tape of a library with PyTorch's vocabulary. `ComplexStep` runs it on NumPy's
arrays, whose views share memory by themselves, with a complex step for the derivative: it knows
nothing of tapes, and its derivatives are exact to rounding.
"""

import operator

import numpy as np

__all__ = ["ComplexStep", "Tape", "program"]

CHANGES = "mul add sub copy fill zero sin square iadd set mask place".split()


def program(rng, length=12, off_tape=False, shared=True):
    """Return a random program, a list of ``(name of the result or None, step, arguments)``.

    With `off_tape` it also detaches, switches the tape off, hooks, and keeps gradients, about which
    `ComplexStep` knows nothing. With `shared`, tensors are also changed by parts of themselves
    (``y[:2].sub_(y[1])``): NumPy reads before it writes, PyTorch 2.13 not always.
    """
    steps, sim = [], ComplexStep(np.linspace(0.3, 1.4, 6), np.zeros(6))

    cut = set()  # names of what depends on views that were taken off the tape

    def do(name, step, *args):
        steps.append((name, step, args))
        sim.run([steps[-1]])
        if step == "quiet_view" or any(isinstance(a, str) and a in cut for a in args):
            changed = sim.values[args[0] if name is None else name]
            cut.update(n for n, v in sim.values.items() if np.may_share_memory(v, changed))
            cut.add(name)

    count = iter(range(10**6))
    do(f"t{next(count)}", "times", "x", float(rng.integers(1, 4)))
    for _ in range(length):
        names = [n for n in sim.values if n != "x"]
        # Mostly what came last, so that views of views of changed tensors come about.
        name = names[-min(int(rng.geometric(0.3)), len(names))]
        kinds = ["make", "view", "view", "change", "change", "arithmetic", "keep", "start", "pick"]
        kind = rng.choice(kinds + ["watch", "quiet"] * off_tape)
        if kind == "make":
            do(f"t{next(count)}", *_made(rng, name, off_tape))
        elif kind == "watch":
            # PyTorch 2.13 takes views for parts of the tape that were made off it; of views it
            # forgets what it retains when their base changes, and may crash when they are hooked.
            choices = [("gradient_of", name)]
            quiet = any(step in ("quiet_change", "detach") for _, step, _ in steps)
            if sim.values[name].base is None:
                choices += [("retain", name), ("hook", name, 2.0)]
            elif quiet:
                continue
            if name not in cut:
                do(None, *choices[rng.integers(len(choices))])
        elif kind == "view":
            how = _view(rng, sim.values[name].shape)
            # A view of all of a tensor in its own shape is that tensor here, and has its hooks.
            if not off_tape or sim.view(name, how).shape != sim.values[name].shape:
                do(f"t{next(count)}", "view", name, how)
        elif kind == "quiet" and rng.random() < 0.5:
            do(f"t{next(count)}", "quiet_view", name, _view(rng, sim.values[name].shape))
        elif kind == "quiet" and sim.values[name].flags.writeable:
            do(None, "quiet_change", name, 2.0)
        elif kind == "start":
            do(None, "start", name)
        elif kind == "pick":
            do(f"t{next(count)}", "pick", name, _places(rng, sim.values[name].shape))
        elif kind == "change" and sim.values[name].flags.writeable:
            _change(rng, do, name, names, sim, off_tape, shared)
        elif kind in ("change", "quiet"):
            continue  # several places of an expanded tensor are one
        elif kind == "arithmetic":
            do(f"t{next(count)}", str(rng.choice(["double", "sin", "square"])), name)
        else:
            do(None, "keep", name, float(rng.integers(1, 5)))
    names = [n for n in sim.values if n != "x"]
    for name in rng.choice(names, 2):
        do(None, "keep", str(name), float(rng.integers(1, 5)))
    do(None, "start", str(rng.choice(names)))
    return steps


def _made(rng, name, off_tape):
    kind = rng.choice(["times", "clone", "zeros", "detach" if off_tape else "zeros"])
    if kind == "times":
        return "times", "x", float(rng.integers(1, 4))
    if kind == "zeros":
        return "zeros", tuple(int(n) for n in rng.choice([2, 3, 6], rng.integers(1, 3)))
    return str(kind), name


def _view(rng, shape):
    kinds = ["index", "index", "index", "reshape", "transpose", "unsqueeze", "diagonal", "unbind"]
    kind = rng.choice([*kinds, "expand"])
    if kind == "unbind" and shape:
        dim = int(rng.integers(len(shape)))
        if shape[dim]:
            return "unbind", dim, int(rng.integers(shape[dim]))
    if kind == "expand" and len(shape) < 3:
        return "expand", int(rng.integers(1, 4))
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


def _apart(a, b):
    return a.size and not np.may_share_memory(a, b)


def _places(rng, shape):
    """An index with a mask, or with arrays of integers of which none names a place twice."""
    if not shape or rng.random() < 0.4:
        return (np.asarray(rng.random(shape) < 0.5),)
    dim = int(rng.integers(len(shape)))
    size = int(rng.integers(shape[dim] + 1))
    at = rng.permutation(shape[dim])[:size]
    if size and rng.random() < 0.3:
        at[0] -= shape[dim]  # counted from the end
    return (*(slice(None),) * dim, at)


def _change(rng, do, name, names, sim, off_tape, shared):
    value = sim.values[name]
    # A tensor overwritten by numbers leaves the tape here, and stays on it in PyTorch: who keeps
    # gradients can tell.
    kind = str(rng.choice([c for c in CHANGES if not (off_tape and c in ("fill", "zero", "copy"))]))
    others = [n for n in names if sim.values[n].shape in ((), value.shape)]
    if not shared:
        others = [n for n in others if not np.may_share_memory(sim.values[n], value)]
    other = str(rng.choice(others)) if others and rng.random() < 0.6 else None
    if kind in ("sin", "square", "zero"):
        do(None, "change", name, kind, None)
    elif kind == "fill":
        do(None, "change", name, kind, float(rng.integers(1, 4)))
    elif kind in ("set", "place"):
        key = (_key if kind == "set" else _places)(rng, value.shape)
        place = value[key]
        # Copies within memory that overlaps mean something else to each library.
        apart = [n for n in names if _apart(sim.values[n], value)]
        fitting = [n for n in apart if sim.values[n].shape in ((), place.shape)]
        what = str(rng.choice(fitting)) if fitting and rng.random() < 0.7 else 2.0
        do(None, kind, name, key, what)
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
        self.started = []

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

    def pick(self, name, key):
        return self.values[name][self.places_of(key)]

    def place(self, name, key, what):
        self.values[name][self.places_of(key)] = self.operand(what)

    def places_of(self, key):
        return tuple(self.mask_of(k) if isinstance(k, np.ndarray) else k for k in key)

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
        self.watched = []
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
        if kind == "unbind":
            return t.unbind(rest[0])[rest[1]]
        if kind == "expand":
            return t.expand(rest[0], *t.shape)
        return getattr(t, kind)(*rest)

    def change(self, name, kind, what):
        t, other = self.values[name], self.operand(what)
        if kind == "copy":
            t.copy_(other if what.__class__ is str else self.lib.tensor(other))
        elif what is None:
            getattr(t, kind + "_")()
        else:
            getattr(t, kind + "_")(other)

    def start(self, name):
        # From the tensor itself, not from something computed from it.
        t = self.values[name]
        if t.requires_grad:
            (found,) = self.lib.autograd.grad(
                t, self.x, self.ramp(t), retain_graph=True, allow_unused=True
            )
            self.started.append(found)
        else:
            self.started.append(None)

    def ramp(self, t):
        size = int(np.prod(t.shape))
        return self.lib.tensor(np.arange(1.0, 1.0 + size).reshape(tuple(t.shape)))

    def quiet_view(self, name, how):
        with self.lib.no_grad():
            return self.view(name, how)

    def quiet_change(self, name, number):
        with self.lib.no_grad():
            self.values[name].mul_(number)

    def hook(self, name, factor):
        t = self.values[name]
        if t.requires_grad:
            t.register_hook(lambda g: g * factor)

    def retain(self, name):
        t = self.values[name]
        if t.requires_grad:
            t.retain_grad()
        self.watched.append(t if t.requires_grad else None)

    def gradient_of(self, name):
        t, total, found = self.values[name], sum(self.kept), None
        if t.requires_grad and self.kept and total.requires_grad:
            (found,) = self.lib.autograd.grad(total, t, retain_graph=True, allow_unused=True)
        self.started.append(found)

    def gradients(self):
        """Go backwards, and return the loss and all gradients that were met, as arrays."""
        total = sum(self.kept)
        if total.requires_grad:
            total.backward()
        found = [self.x.grad, *self.started, *(None if t is None else t.grad for t in self.watched)]
        return total.item(), [0.0 if g is None else np.array(g.tolist()) for g in found]


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
            if a.flags.writeable:
                out.setflags(write=True)
            return out
        if kind == "unbind":
            return a[(*(slice(None),) * rest[0], rest[1], ...)]
        if kind == "expand":
            return np.broadcast_to(a, (rest[0], *a.shape))
        return a.T if a.ndim == 2 else np.swapaxes(a, 0, 1)

    def change(self, name, kind, what):
        a, other = self.values[name], self.operand(what)
        if kind in ("sin", "square"):
            a[...] = np.sin(a) if kind == "sin" else a**2
        elif kind in ("copy", "fill", "zero"):
            a[...] = 0.0 if kind == "zero" else np.array(other)
        else:
            a[...] = getattr(operator, kind)(a, other)

    def start(self, name):
        value = self.values[name]
        self.started.append((value * np.arange(1.0, 1.0 + value.size).reshape(value.shape)).sum())

    def quiet_view(self, name, how):
        return self.view(name, how)

    def quiet_change(self, name, number):
        self.values[name][...] *= number

    def hook(self, name, factor):
        pass

    def retain(self, name):
        pass

    def gradient_of(self, name):
        pass

    def derivatives(self):
        """Return the derivatives of the loss, and of what was started from, along the direction."""
        return [v.imag / self.STEP for v in (sum(self.kept), *self.started)]
