"""Models of which the gradient is whole, although much that is seen in cut ones is seen in them.

`WHOLE` are models of the data `XT` and `YT`, by name.
"""

import copy
import functools
import math

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch import exp, plate, sample, stack, tensor, where
from probtorch.autograd import Function
from probtorch.effects import module
from probtorch.effects.reparams import LocScaleReparam, reparam
from probtorch.nn import Linear, Sequential, Tanh
from probtorch.ode import odeint

X = np.linspace(-1.0, 1.0, 20)
Y = 2.0 * X + 0.3 + 0.1 * np.cos(7.0 * np.arange(20))
XT, YT = tensor(X), tensor(Y)
LABEL = tensor((Y > 0.0).astype(np.float64))


class Box:
    """An object that keeps what a model puts into it."""

    kept = 0.0


def normal(name, loc=0.0, scale=1.0):
    return sample(name, dist.Normal(loc, scale))


def seen(mean, scale=0.5):
    with plate("n", 20):
        sample("y", dist.Normal(mean, scale), obs=YT)


WHOLE = {}


def whole(fn):
    """Register a model of `XT` and `YT` without a cut."""
    WHOLE[fn.__name__] = fn
    return fn


def with_value(name):
    """Register ``made(b)``, something made of a latent value, as a model."""

    def register(made):
        def model():
            seen(made(normal("b")) * XT + normal("a"))

        WHOLE[name] = model
        return made

    return register


with_value("list")(lambda b: tensor([b, b])[0])
with_value("nested list")(lambda b: tensor([[b, 1.0], [np.float64(2.0), b * b]]).sum())
with_value("as_tensor")(lambda b: probtorch.as_tensor((b, 2))[0])
with_value("full")(lambda b: probtorch.full((20,), b))
with_value("copy")(lambda b: tensor(b))
with_value("numpy exp")(lambda b: np.exp(b))
with_value("numpy dot")(lambda b: np.dot(np.ones((20, 2)), np.stack([b, b * b])))
with_value("series of tensors")(lambda b: tensor(_series([b, b * b]))[1])
with_value("series by element")(lambda b: _series(X).apply(lambda v: v * b) + 0.0 * XT)
with_value("shallow copy")(lambda b: copy.copy(b * 2.0))
with_value("memory of functions")(functools.cache(lambda b: b * 2.0))
with_value("array first")(lambda b: np.ones(20) * b)
with_value("numpy where")(lambda b: np.where(X > 0.0, b, -b))
with_value("numpy sum")(lambda b: np.sum(np.concatenate([np.ones(2), stack([b, b])])))
with_value("scipy expit")(lambda b: pytest.importorskip("scipy.special").expit(b))
with_value("scipy gammaln")(lambda b: pytest.importorskip("scipy.special").gammaln(b * b + 1.0))
with_value("pandas series")(lambda b: pytest.importorskip("pandas").Series(X) * b)
with_value("detach")(lambda b: b + b.detach() * b.detach())
with_value("detach in place")(lambda b: b + (b * 3.0).detach_().exp())
with_value("detach of a product")(lambda b: b * (b * 3.0).detach().exp())
with_value("stop_gradient of a tensor")(lambda b: b * probtorch.stop_gradient(b))
with_value("straight through")(lambda b: b + ((b * 3.0).round() - b).detach())
with_value("rounding")(lambda b: b + (b * 3.0).floor())
with_value("where")(lambda b: where(b > 0.0, b * 2.0, b))
with_value("abs")(lambda b: b.abs())
with_value("kink at the point")(lambda b: (b - b.detach()).abs() + b)
with_value("clamp")(lambda b: b.clamp(-0.1, 0.1) + b)
with_value("relu")(lambda b: probtorch.relu(b))
with_value("single precision")(lambda b: b.float().exp())
with_value("single precision, large")(lambda b: (b.float() + 1e6) - 1e6 + b)
with_value("sort")(lambda b: stack([b, b * b, -b]).sort()[0][0])
with_value("cumsum")(lambda b: stack([b, b * b]).cumsum(0)[1])
with_value("item assignment")(lambda b: _assigned(b))
with_value("compiled")(probtorch.compile(lambda b: (b * 2.0).sin()))
with_value("vmap")(lambda b: probtorch.vmap(lambda x: x * b)(XT))
with_value("scan")(lambda b: probtorch.scan(lambda c, x: (c * 0.5 + b * x,) * 2, b, XT)[1])
with_value("while_loop")(
    lambda b: probtorch.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * 1.1), (0, b))[1]
)


def _series(values):
    return pytest.importorskip("pandas").Series(values)


def _assigned(b):
    mu = probtorch.zeros(20)
    mu[:10] = b
    mu[10:] += b * b
    return mu


@with_value("stop_gradient block")
def _(b):
    with probtorch.stop_gradient():
        weight = math.exp(b)
        array = stack([b, b]).numpy(force=True) * 2.0
    return b * weight + float(array[0])


@with_value("no_grad block")
def _(b):
    with probtorch.no_grad():
        weight = (b * 2.0).exp()
    return b * weight


@with_value("printing")
def _(b):
    print(f"{b.item():.3f} {float(b)} {b}", stack([b, b]).tolist())
    return b


@with_value("branch")
def _(b):
    return b * 2.0 if b > 0.0 else b * 3.0


@with_value("branch on a number")
def _(b):
    return b * 2.0 if float(b) > 0.0 else b * 3.0


@with_value("integer of a value")
def _(b):
    return b + int(b * 3.0)


@with_value("kept in an object")
def _(b):
    Box.kept = b
    Box.history = [float(b)]
    return Box.kept * 2.0


class Clip(Function):
    """The identity, with a gradient that is clipped."""

    @staticmethod
    def forward(ctx, x):
        return probtorch.from_numpy(np.asarray(x.detach().numpy())) * 1.0

    @staticmethod
    def backward(ctx, g):
        return g.clamp(-0.01, 0.01)


with_value("clipped gradient")(lambda b: Clip.apply(b) + b)


class Half(Function):
    """Half of a number, computed by NumPy."""

    @staticmethod
    def forward(ctx, x):
        return tensor(x.detach().numpy() * 0.5)

    @staticmethod
    def backward(ctx, g):
        return g * 0.5


with_value("custom function")(lambda b: Half.apply(b))


@with_value("noise of NumPy's")
def _(b):
    return b + np.random.default_rng().normal() * 0.1


@with_value("ode")
def _(b):
    z = odeint(lambda t, y: -y * exp(b), tensor([1.0]), tensor([0.0, 0.5, 1.0]))
    return z[2, 0]


@with_value("cholesky")
def _(b):
    return probtorch.linalg.cholesky(probtorch.eye(2) * exp(b) + 0.1)[1, 1]


@whole
def positive_sites():
    s = sample("s", dist.HalfCauchy(1.0))
    g = sample("g", dist.Gamma(2.0, 1.0))
    seen(g * XT, s + 0.1)


@whole
def simplex():
    p = sample("p", dist.Dirichlet(tensor(np.ones(3))))
    seen(p[0] * XT + p[1])


@whole
def correlation():
    factor = sample("L", dist.LKJCholesky(3, 2.0))
    seen(factor[2, 1] * XT)


@whole
def plates():
    mu = normal("mu")
    with plate("groups", 4):
        theta = normal("theta", mu)
    seen(theta[np.arange(20) % 4])


@whole
def reparameterised():
    with reparam(config={"z": LocScaleReparam(0.0)}):
        z = normal("z", normal("m"), 2.0)
    seen(z * XT)


@whole
def mixture_summed_out():
    locs = sample("locs", dist.Normal(tensor([-1.0, 1.0]), 1.0).to_event(1))
    with plate("n", 20):
        k = sample("k", dist.Bernoulli(0.5))
        sample("y", dist.Normal(where(k > 0.5, locs[0], locs[1]), 0.5), obs=YT)


@whole
def counts():
    sample("y", dist.Poisson(exp(normal("b") * XT)).to_event(1), obs=LABEL * 3.0)


@whole
def labels():
    sample("y", dist.Bernoulli(logits=normal("b") * XT).to_event(1), obs=LABEL)


@whole
def truncated():
    sample("y", dist.TruncatedNormal(normal("b"), 1.0, low=-5.0).expand([20]).to_event(1), obs=YT)


@whole
def masked():
    b = normal("b")
    with probtorch.handlers.mask(mask=LABEL > 0.5):
        seen(b * XT)


@whole
def network():
    net = module("net", Sequential(Linear(1, 4), Tanh(), Linear(4, 1)))
    seen(net(XT[:, None].float())[:, 0] + normal("b"))


@whole
def deterministic_and_factor():
    b = normal("b")
    probtorch.deterministic("twice", 2.0 * b)
    probtorch.factor("f", -(b**4))


@whole
def matrix_product():
    w = sample("w", dist.Normal(tensor(np.zeros(2)), 1.0).to_event(1))
    seen(np.stack([X, X**2], 1) @ w)


@whole
def time_series():
    x = normal("x0")
    values = []
    for t in range(20):
        x = 0.9 * x + normal(f"e{t}", 0.0, 0.1)
        values.append(x)
    seen(tensor(values))
