"""Programs of every kind in one process, for `test_plans.py`: what they give, and what was done.

As a script: builds all of them, prints a line of JSON with results as hex text, how many passes,
lowerings, renderings and LLVM compilations that took, and explanations.
"""

import json
import re

import numpy as np

import probtorch
import probtorch.distributions as dist
from probtorch import nn
from probtorch.compiler.native import host, keys
from probtorch.compiler.program import NativeProgram
from probtorch.compiler.run import executor
from probtorch.infer import SVI, Target
from probtorch.optim import Adam

__all__ = ["counted", "plain"]

COUNTED = {"optimise": executor, "Lowering": executor, "render": executor, "emit_object": host}


def counted(setattr_):
    """Count the calls of what a warm cache saves; `setattr_(module, name, value)` replaces."""
    counts = dict.fromkeys(COUNTED, 0)

    def counting(name, original):
        def call(*args, **kwargs):
            counts[name] += 1
            return original(*args, **kwargs)

        return call

    for name, module in COUNTED.items():
        setattr_(module, name, counting(name, getattr(module, name)))
    return counts


def plain(text):
    """An explanation without what differs between runs: times, and where the code came from."""
    text = re.sub(r"(compiled|read from the disk cache) in [\d.]+ ms", "made", str(text))
    names = {}
    return re.sub(r"%\d+", lambda m: names.setdefault(m[0], f"%{len(names)}"), text)


def schools():
    y = probtorch.tensor([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    sigma = probtorch.tensor([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])

    def model():
        mu = probtorch.sample("mu", dist.Normal(0.0, 5.0))
        tau = probtorch.sample("tau", dist.HalfCauchy(5.0))
        with probtorch.plate("school", 8):
            theta = probtorch.sample("theta", dist.Normal(mu, tau))
            probtorch.sample("obs", dist.Normal(theta, sigma), obs=y)

    target = Target.from_model(model)
    value, grad = target.value_and_grad(np.linspace(-1.0, 1.0, 10))
    return [value, grad], target.density.explain


def regression():
    """Data larger than what counts by value, transposed and expanded, and indices."""
    rng = np.random.default_rng(0)
    x = probtorch.tensor(rng.normal(size=(30, 100)))
    group = probtorch.tensor(rng.integers(0, 5, 100))
    y = probtorch.tensor(rng.normal(size=100))

    def model():
        beta = probtorch.sample("beta", dist.Normal(0.0, 1.0).expand([30]).to_event(1))
        with probtorch.plate("group", 5):
            alpha = probtorch.sample("alpha", dist.Normal(0.0, 1.0))
        with probtorch.plate("row", 100):
            probtorch.sample("obs", dist.Normal(x.T @ beta + alpha[group], 2.0), obs=y)

    target = Target.from_model(model)
    value, grad = target.value_and_grad(np.linspace(-1.0, 1.0, 35))
    return [value, grad], target.density.explain


def branching():
    """Two paths of one function, each with a program, and a tensor outside."""
    outside = probtorch.tensor(np.linspace(0.0, 1.0, 4))

    @probtorch.compile
    def f(x):
        if x.sum() > 0:
            return x * outside + 1.0
        return (x - outside).exp(), 3

    def call():
        return f(probtorch.ones(4)), *f(-probtorch.ones(4))

    call()
    first = call()
    outside[1] = 7.0
    return [*first, *call()], f.explain


def training():
    """Draws, updates of parameters, BLAS."""
    probtorch.manual_seed(1)
    net = nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 6))
    rows = probtorch.tensor(np.random.default_rng(2).normal(size=(50, 6)), dtype=probtorch.float32)

    def model(x):
        probtorch.module("net", net)
        with probtorch.plate("row", 50):
            z = probtorch.sample("z", dist.Normal(probtorch.zeros(50, 6), 1.0).to_event(1))
            probtorch.sample("x", dist.Normal(net(z), 1.0).to_event(1), obs=x)

    def guide(x):
        loc = probtorch.param("loc", probtorch.zeros(50, 6))
        with probtorch.plate("row", 50):
            probtorch.sample("z", dist.Normal(loc, 0.1).to_event(1))

    svi = SVI(model, guide, Adam({"lr": 0.01}))
    losses = [svi.step(rows) for _ in range(6)]
    return [losses, *(p for p in net.parameters())], str


def looping():
    """A native program with a loop, a branch and a draw by rejection."""

    def fn(state):
        x, k = state["x"], state["k"]

        def body(s):
            y = probtorch.cond(s[0].sum() > 3.0, lambda y: y * 0.5, lambda y: y + 1.0, s[0])
            return y, s[1] + 1

        return probtorch.while_loop(lambda s: s[1] < 9, body, (x, k))

    program = NativeProgram(fn, {"x": probtorch.tensor(np.arange(3.0)), "k": probtorch.tensor(0)})
    out = program({"x": probtorch.tensor(np.arange(3.0)), "k": probtorch.tensor(2)})
    return list(out), program.explain


def rolled():
    """A Python loop over time, rolled."""
    y = np.random.default_rng(3).normal(size=400)

    def model():
        rho = probtorch.sample("rho", dist.Uniform(-1.0, 1.0))
        for t in range(1, 400):
            probtorch.sample(f"y{t}", dist.Normal(rho * y[t - 1], 1.0), obs=probtorch.tensor(y[t]))

    target = Target.from_model(model)
    value, grad = target.value_and_grad(np.array([0.3]))
    return [value, grad], target.density.explain


def sorting():
    """Routines of the runtime, LAPACK and special functions."""
    x = np.random.default_rng(4).normal(size=(6, 6))

    @probtorch.compile
    def f(x):
        spd = x @ x.T + 6.0 * probtorch.eye(6, dtype=x.dtype)
        return probtorch.linalg.cholesky(spd), x.sort(0)[0], x.abs().lgamma(), x.tanh().median()

    f(probtorch.tensor(x))
    return list(f(probtorch.tensor(x))), f.explain


PROGRAMS = (schools, regression, branching, training, looping, rolled, sorting)


def as_text(x):
    if isinstance(x, (int, str)):
        return str(x)
    array = x.detach().numpy() if hasattr(x, "detach") else np.asarray(x, np.float64)
    return f"{array.dtype}{array.shape}{np.ascontiguousarray(array).tobytes().hex()}"


def main():
    keys.sources = lambda: "the same"  # even if somebody edits them meanwhile
    counts = counted(setattr)
    found = {make.__name__: make() for make in PROGRAMS}
    results = {name: [as_text(x) for x in values] for name, (values, _) in found.items()}
    before = dict(counts)  # an explanation needs passes and renderings
    texts = {name: plain(explain()) for name, (_, explain) in found.items()}
    print(json.dumps([results, before, texts]))


if __name__ == "__main__":
    main()
