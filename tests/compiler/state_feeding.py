"""Random programs that feed on state: each call reads what calls before it wrote.

`program(seed)` writes the text of a function ``step(x)``: a few places of state_places.py, read,
written, tested and looped over between operations on tensors, with `change(i)` for what happens
outside between calls, and `left()` for what is there. `check(seed)` runs the text twice, eagerly
and compiled, over twelve calls with outside changes in between, and returns what differs: results,
gradients, errors, and what is left behind. A third of the programs is a model of SVI.
``python -m tests.compiler.state_feeding --seed N --minutes M`` goes on with new ones.
"""

import argparse
import collections
import contextlib
import contextvars
import copy
import functools
import heapq
import itertools
import os
import random
import re
import tempfile
import time
import types
import warnings
import weakref

import numpy as np

import probtorch
from probtorch import nn, optim, tanh, tensor
from probtorch.compiler.compile import compile as compiled
from probtorch.config import configure
from probtorch.core.rng import Generator
from probtorch.distributions import LogNormal, Normal
from probtorch.effects import clear_param_store, param, sample
from probtorch.infer import SVI, AutoNormal
from tests.compiler.state_places import HELP, PLACES

__all__ = ["CALLS", "check", "main", "program"]

CALLS = 12


class Writer:
    """Writes one program."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        chosen = self.rng.sample(list(PLACES), self.rng.randrange(1, 4))
        self.places = [(f"s{i}", PLACES[name]) for i, name in enumerate(chosen)]
        self.names = chosen
        # Most programs write at few of their calls, so that others are replays: a state that every
        # call changes makes a function eager.
        self.settled = self.rng.random() < 0.7

    def number(self):
        return str(self.rng.choice([-1.5, -0.5, 0.25, 0.5, 1.0, 2.0]))

    def of(self, name, text, values=True):
        """A text of a place with its names and values filled in."""
        text = text.replace("@", name).replace("\0", "@")
        text = re.sub(r"{c}", lambda _: self.number(), text)
        text = re.sub(r"{n}", lambda _: self.plain(), text)
        text = re.sub(r"{v}", lambda _: self.value(), text) if values else text
        return text.replace("{{", "{").replace("}}", "}")

    def read(self):
        name, place = self.rng.choice(self.places)
        return self.of(name, self.rng.choice(place.reads).replace("{v}", self.number()))

    def plain(self):
        """A number of Python, sometimes of a tensor."""
        if self.settled and self.rng.random() < 0.7:
            return self.number()
        return self.rng.choice(
            [self.number(), self.number(), "len(seen) * 0.5", "round(float(x.detach().sum()), 1)"]
        )

    def value(self):
        """A number or a tensor, which does not grow from call to call."""
        rng, c = self.rng, self.number()
        if self.settled and rng.random() < 0.5:
            return rng.choice([c, "y.detach() * 0.5", "x.detach().mean()", "x.shape[0] * 0.5"])
        return rng.choice(
            [
                c, f"0.25 * {self.read()} + {c}", f"{c} - 0.25 * {self.read()}",
                "y.detach() * 0.5", "tanh(x).detach()", "x.detach().mean()", self.plain(),
                "float(x.detach()[0])", "x.shape[0] * 0.5",
            ]
        )  # fmt: skip

    def test(self):
        name, place = self.rng.choice(self.places)
        tests = place.tests or ("x.detach()[0] > {c}", "len(seen) % 2", "len(seen) > 5")
        return self.of(name, self.rng.choice(tests))

    def statement(self, depth=1):
        """Lines of one statement."""
        rng = self.rng
        kinds = ["read", "read", "write", "write", "write", "inside", "if", "loop", "count", "try"]
        how = rng.choice(kinds)
        if how == "write":
            name, place = rng.choice(self.places)
            if place.writes:
                lines = self.of(name, rng.choice(place.writes)).split("\n")
                if self.settled and rng.random() < 0.7:
                    test = f"x.detach()[0] > {rng.choice([0.3, 0.5, 0.7])}"
                    lines = [f"if {rng.choice([test, test, self.test()])}:", *self.indented(lines)]
                return lines
        if how == "if" and depth:
            lines = [f"if {self.test()}:", *self.indented(self.statement(depth - 1))]
            if rng.random() < 0.6:
                lines += ["else:", *self.indented(self.statement(depth - 1))]
            return lines
        if how == "loop" and depth:
            return [f"for _ in range({rng.randrange(1, 4)}):", *self.indented(self.statement(0))]
        if how == "count":
            growing = ["seen.append(len(seen))", "seen.append(1.0)"] * (not self.settled)
            return [rng.choice(["y = tanh(y)", "y = y.clone().mul_(0.5)", *growing])]
        if how == "try" and depth:
            return [
                "try:", *self.indented(self.statement(0)),
                f"    if {self.test()}:", "        raise KeyError('k')",
                "except KeyError:", *self.indented(self.statement(0)),
            ]  # fmt: skip
        if how == "inside":
            read = self.read()
            return rng.choice(
                [
                    ["def h(v):", f"    return 0.5 * v + {read}", "y = h(y)"],
                    [f"y = y + 0.1 * func.grad(lambda v: (v * v * ({read})).sum())(x.detach())"],
                    [f"y = y + func.vmap(lambda v: v * 0.5 + ({read}))(x).reshape(2, -1)[:, 0]"],
                    [f"y = y + sum([k * ({read}) for k in (0.25, 0.5)])"],
                    ["with probtorch.no_grad():", f"    k = 0.5 * ({read})", "y = y + k"],
                    [f"if (k := {read}) is not None:", "    y = y - 0.25 * k"],
                    [f"y = probtorch.where(y > 0.0, y + 0.5 * ({read}), y)"],
                    [f"match {read}:", "    case 0.5:", "        y = -y", "    case k:",
                     "        y = y + 0.25 * k"],
                ]
            )  # fmt: skip
        return [f"y = y * {self.number()} + {rng.choice(['', '0.5 * '])}{self.read()}"]

    @staticmethod
    def indented(lines):
        return ["    " + line for line in lines]

    def text(self):
        rng = self.rng
        top, inside, declared = [], [], []
        for name, place in self.places:
            setup = self.of(name, place.setup).split("\n")
            (top if place.at_module else inside).extend(setup)
            if place.declare:
                declared.append(self.of(name, place.declare))
        body = [line for _ in range(rng.randrange(2, 7)) for line in self.statement()]
        if rng.random() < 0.12:
            body += [f"if {self.test()}:", "    raise ValueError('of the user')"]
        if rng.random() < 0.2:
            body += [f"if {self.test()}:", "    return y * 2.0"]
        changes, declared_outside = [], list(declared)
        for name, place in self.places:
            changes += [self.of(name, c) for c in place.changes]
            if not place.at_module:
                # Another object in its place, if there is one like it.
                again = f"    {name} = copy.deepcopy({name})"
                changes.append(f"try:\n{again}\nexcept (TypeError, RuntimeError): pass")
                declared_outside.append(f"nonlocal {name}")
        cases = []
        for i, change in enumerate(changes):
            cases += [f"    {'if' if i == 0 else 'elif'} i == {i}:", *self.indented(self.indented(
                change.split("\n")))]  # fmt: skip
        left = ", ".join(self.of(name, place.left) for name, place in self.places)
        lines = [
            *top, "def make(weight):", *self.indented(["seen = []", *inside]),
            "    def step(x):", *self.indented(self.indented([*declared, "y = x * weight", *body])),
            "        return y",
            "    def change(i):", *self.indented(self.indented(declared_outside)),
            *self.indented(cases),
            "    def left():", f"        return [{left}, len(seen)]",
            "    return step, change, left",
        ]  # fmt: skip
        return "\n".join(lines) + "\n", len(changes)


def program(seed):
    """Return the text of a seed's program, the number of its changes, and its places."""
    writer = Writer(seed)
    return *writer.text(), writer.names


def torch_rows(y):
    """Rows of a batch: a vector twice, so that their variance is not 0."""
    return probtorch.stack([y, y * 0.5 + 0.25])


def names():
    import pandas as pd

    found = {
        "probtorch": probtorch, "tensor": lambda x: tensor(x, dtype=probtorch.float64), "nn": nn,
        "optim": optim, "np": np, "pd": pd, "collections": collections, "contextlib": contextlib,
        "contextvars": contextvars, "copy": copy, "functools": functools,
        "func": probtorch.func, "heapq": heapq,
        "itertools": itertools, "random": random, "types": types, "weakref": weakref,
        "tanh": tanh, "Generator": Generator, "torch_rows": torch_rows,
        "__name__": "of_a_random_program",
    }  # fmt: skip
    exec(compile(HELP, "help_of_random_programs.py", "exec"), found)  # noqa: S102 - ours
    return found


def plain(x):
    """What is compared of a result: numbers, and what kind of thing holds them."""
    if isinstance(x, (list, tuple)):
        return [plain(y) for y in x]
    if isinstance(x, probtorch.Tensor):
        return "tensor", np.asarray(x.detach().array, np.float64)
    if isinstance(x, np.ndarray) and x.dtype != object:
        return "array", np.asarray(x, np.float64)
    return x


def same(a, b):
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, (float, np.ndarray, np.floating)):
        if type(a) is not type(b) or np.shape(a) != np.shape(b):
            return False
        return np.allclose(a, b, 1e-6, 1e-7, equal_nan=True)
    return type(a) is type(b) and a == b


class Model:
    """An object that is called, and counts."""

    def __init__(self, step):
        self.step, self.calls = step, 0

    def __call__(self, x):
        self.calls = min(self.calls + 1, 4)
        return self.step(x) * self.calls

    def method(self, x):
        return self.step(x) + self.calls


def without_a_tape(step):
    def fn(x):
        with probtorch.no_grad():
            return step(x)

    return fn


def around_another(step):
    inner = compiled(lambda v: v * 0.5)
    return lambda x: step(inner(x))


# What is compiled is the function itself, or one of these around it.
FORMS = {
    "twice": lambda step: lambda x: step(x) + 0.5 * step(tanh(x)),
    "object": Model,
    "method": lambda step: Model(step).method,
    "partial": lambda step: functools.partial(step),
    "argument": lambda step: lambda x, keep=[0.5]: step(x) + keep[0],
    "inner": around_another,
    "no tape": without_a_tape,
}


def play(text, seed, changes, how):
    """Make a program and call it twelve times; returns all that was seen."""
    rng = random.Random(seed + 1)
    form = rng.choice([*FORMS, None, None, None])
    verify = rng.random() < 0.2
    scope = names()
    exec(compile(text, f"random_program_{seed}.py", "exec"), scope)  # noqa: S102 - ours
    weight = tensor([0.75, -1.25], dtype=probtorch.float64)
    taped = how != "svi" and rng.random() < 0.4
    if taped:
        weight.requires_grad_()
    step, change, left = scope["make"](weight)
    probtorch.manual_seed(seed)
    if how.startswith("svi"):
        call = of_svi(step, rng.random() < 0.5)
        fits = None
    else:
        fits = {"eager": lambda f: f, "compiled": lambda f: compiled(f, verify=verify)}[how]
        call = fits(step if form is None else FORMS[form](step))
    found = []
    for turn in range(CALLS):
        x = tensor([rng.uniform(-1, 1), 0.5 * (turn % 3)], dtype=probtorch.float64)
        kind = rng.random()
        weight.grad = None
        try:
            if kind < 0.06 and fits is not None:
                # Not in SVI, whose eager steps go back to all leaves, also through what an earlier
                # step left on the tape, and fail there; compiled ones go to the parameters alone.
                x = x.requires_grad_()
            elif kind < 0.1 and fits is not None:
                x = x.float()
            elif kind < 0.16 and fits is not None:
                found.append(plain(step(x)))  # the function itself, which writes as well
            out = call(x)
            found.append(plain(out))
            if fits is not None and out.requires_grad:
                out.sum().backward()
                found += [plain(weight.grad), plain(x.grad)]
        except Exception as error:  # the same kind of error is asked of both
            found.append(type(error).__name__)
        if changes and rng.random() < 0.35:
            change(rng.randrange(changes))
        found.append(("left", plain(left())))
    return found


def of_svi(step, in_the_guide):
    """A step of SVI on a model, or guide, whose mean is what the function makes of its argument."""

    def model(x):
        mu = sample("mu", Normal(0.0, 1.0))
        scale = sample("scale", LogNormal(0.0, 0.5))
        mean = (x if in_the_guide else tanh(step(x))) * mu
        sample("y", Normal(mean, scale + 0.5).to_event(1), obs=x * 0.0 + 0.75)

    def guide(x):
        loc = param("loc", tensor([0.5, -0.5]))
        moved = tanh(step(x)).sum() * 0.5
        sample("mu", Normal(loc[0] + moved.detach(), 0.5))
        sample("scale", LogNormal(loc[1], 0.25))

    clear_param_store()
    guide = guide if in_the_guide else AutoNormal(model)
    svi = SVI(model, guide, optim.Adam({"lr": 0.05}), seed=0)
    return lambda x: float(svi.step(x))


def check(seed):
    """Return None, or what differs between the eager and the compiled run, with the program."""
    text, changes, chosen = program(seed)
    svi = seed % 3 == 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runs = []
        for jit in (False, True):
            random.seed(seed)
            np.random.seed(seed % 2**32)
            with configure(jit=jit) if svi else contextlib.nullcontext():
                runs.append(play(text, seed, changes, "svi" if svi else ["eager", "compiled"][jit]))
    eager, fast = runs
    for turn, (a, b) in enumerate(zip(eager, fast, strict=False)):
        if not same(a, b):
            return (
                f"program {seed} ({'svi' if svi else 'function'} of {', '.join(chosen)}): "
                f"{turn} is {b}, eager {a}\n{text}"
            )
    if len(eager) != len(fast):
        return f"program {seed}: {len(fast)} things seen, eager {len(eager)}\n{text}"
    return None


def main(argv=None):
    """Check new programs until time is up; returns how many were wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1_000_000)
    parser.add_argument("--minutes", type=float, default=10.0)
    options = parser.parse_args(argv)
    end = time.monotonic() + 60.0 * options.minutes
    seed, wrong = options.seed, 0
    with tempfile.TemporaryDirectory(prefix="probtorch-states-") as folder:
        # The user's own cache would grow by a file per program.
        os.environ["PROBTORCH_CACHE_DIR"] = folder
        while time.monotonic() < end:
            found = check(seed)
            seed += 1
            if found is not None:
                wrong += 1
                print(found, flush=True)
            if (seed - options.seed) % 500 == 0:
                print(f"{seed - options.seed} programs, {wrong} wrong", flush=True)
    print(f"{seed - options.seed} programs, {wrong} wrong", flush=True)
    return wrong


if __name__ == "__main__":
    raise SystemExit(bool(main()))
