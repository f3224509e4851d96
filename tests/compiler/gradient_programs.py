"""Random functions of a tensor and of tensors outside, with branches, gradients and hooks inside,
and what happens to all of them between calls: `differs` holds compiled calls against eager ones.

    python -m tests.compiler.gradient_programs [functions] [first seed]
"""

import sys
import time
import warnings

import numpy as np

import probtorch
from probtorch import autograd, nn
from probtorch.compiler.paths import CompileWarning

__all__ = ["differs"]

STEPS = "mul add sin take quiet detach grad hook asks branch branch mask view own".split()
ENDS = ["h", "h", "h", "both", "outside", "argument", "number"]
KINDS = ["plain", "leaf", "leaf", "inner", "parameter", "outside"]
EVENTS = "factor freeze thaw change hook unhook replace none none none".split()


def plan(rng, depth=2):
    """Return a list of steps, each a name and numbers; those of branches hold lists of steps."""
    steps = []
    for _ in range(int(rng.integers(1, 5))):
        kind = str(rng.choice(STEPS))
        if kind == "branch" and depth:
            limit = float(rng.normal())
            steps.append((kind, limit, plan(rng, depth - 1), plan(rng, depth - 1)))
        elif kind != "branch":
            steps.append((kind, int(rng.integers(3)), int(rng.integers(3))))
    return steps


class World:
    """Tensors and numbers outside of a function, and the function itself."""

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        self.steps = plan(rng)
        self.end = str(rng.choice(ENDS)), int(rng.integers(3))
        needs = rng.random(3) < 0.7
        self.outside = [
            probtorch.tensor(rng.normal(size=2), requires_grad=bool(needs[i])) for i in range(3)
        ]
        self.factor = [2.0]
        self.hooks = []

    def function(self, x):
        """What is compiled."""
        h = self.run(self.steps, x, x * 1.0)
        kind, i = self.end
        if kind == "both":
            return h, self.outside[i] * h.detach()
        if kind == "number":
            return h.sum(), 3
        if kind == "outside" and self.run_from == "else":
            return self.outside[i]
        if kind == "argument" and self.run_from == "else":
            return x
        return h

    def run(self, steps, x, h):
        """Carry steps out on `h`."""
        self.run_from = ""
        for kind, i, *rest in steps:
            if kind == "branch":
                then, other = rest
                taken = bool(h.sum() > i)
                h = self.run(then if taken else other, x, h)
                self.run_from = "then" if taken else "else"
                continue
            h = self.step(kind, i, rest[0], x, h)
        return h

    def step(self, kind, i, j, x, h):
        """One step."""
        p, q = self.outside[i], self.outside[j]
        if kind == "mul":
            return h * p
        if kind == "add":
            return h + p * q
        if kind == "sin":
            return h.sin() + x
        if kind == "take":
            return h + p[j % 2]
        if kind == "quiet":
            with probtorch.no_grad():
                return h * p
        if kind == "detach":
            return h + (p * h).detach()
        if kind == "grad":
            if not h.requires_grad:
                return h
            with_respect_to = (p, x, h)[j]
            if not with_respect_to.requires_grad:
                return h
            total = (h * h * q).sum()
            options = {"create_graph": i == 0, "retain_graph": True, "allow_unused": True}
            (g,) = autograd.grad(total, with_respect_to, **options)
            return h if g is None else h + g
        if kind == "hook":
            h = h * 1.0
            if h.requires_grad:
                factor = self.factor
                h.register_hook(lambda g: g * factor[0])
            return h
        if kind == "asks":
            if i == 0:
                return h * 2.0 if isinstance(x, nn.Parameter) else h - p
            if i == 1:
                return h * 2.0 if x.is_leaf else h + q
            return h * 2.0 if (x, p, q)[j].requires_grad else h * 3.0
        if kind == "mask":
            h = h * 1.0
            h[h > 0.5] *= 2.0
            return h
        if kind == "view":
            h = h * 1.0
            v = h[:1]
            h.mul_(p)
            v.add_(q[1])
            return h
        return h + x * h

    def event(self, kind, i, number):
        """Something happens between two calls."""
        p = self.outside[i]
        if kind == "factor":
            self.factor[0] = number
        elif kind == "freeze":
            p.requires_grad_(False)
        elif kind == "thaw":
            p.requires_grad_(True)
        elif kind == "change":
            with probtorch.no_grad():
                p.mul_(number)
        elif kind == "hook" and p.requires_grad:
            self.hooks.append(p.register_hook(lambda g: g * number))
        elif kind == "unhook" and self.hooks:
            self.hooks.pop().remove()
        elif kind == "replace":
            new = probtorch.tensor([number, 1.0], dtype=probtorch.float64)
            self.outside[i] = new.requires_grad_() if i else new

    def call(self, f, kind, values):
        """Call, go backwards, and return all that came of it as plain Python."""
        x = source = probtorch.tensor(values, requires_grad=kind != "plain")
        if kind == "inner":
            x = source * 2.0
        elif kind == "parameter":
            x = source = nn.Parameter(source)
        elif kind == "outside":
            x = self.outside[1]
        found = f(x)
        tensors = [
            t for t in (found if isinstance(found, tuple) else (found,)) if t.__class__ is not int
        ]
        out = [(t.requires_grad, t.tolist()) for t in tensors]
        wanted = [(t * t).sum() for t in tensors if t.requires_grad]
        if wanted:
            sum(wanted).backward()
        for t in (source, *self.outside):
            out.append(None if t.grad is None else t.grad.tolist())
            t.grad = None
        return out


def differs(seed):
    """Return what differs between compiled and eager calls of function `seed`, None if nothing."""
    rng = np.random.default_rng(seed)
    eager, native = World(seed), World(seed)
    compiled = probtorch.compile(native.function)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CompileWarning)
        for number in range(14):
            kind = str(rng.choice(KINDS))
            values = rng.normal(size=2)
            expected = eager.call(eager.function, kind, values)
            got = native.call(compiled, kind, values)
            if not _same(expected, got):
                return f"seed {seed}, call {number} ({kind}): {got} where Python has {expected}"
            event = str(rng.choice(EVENTS)), int(rng.integers(3)), float(rng.uniform(0.5, 1.5))
            for world in (eager, native):
                world.event(*event)
    return None


def _same(a, b):
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, float):
        return isinstance(b, float) and np.isclose(a, b, 1e-8, 1e-8, equal_nan=True)
    return a == b


def main(count=2000, first=1_000_000):
    """Hold functions from seed `first` on; returns the number of differences."""
    began, wrong = time.perf_counter(), 0
    for seed in range(first, first + count):
        found = differs(seed)
        if found is not None:
            wrong += 1
            print(found, flush=True)
    print(f"{count} functions, {wrong} differ, {time.perf_counter() - began:.0f} s")
    return wrong


if __name__ == "__main__":
    sys.exit(bool(main(*map(int, sys.argv[1:]))))
