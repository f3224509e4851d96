"""A gradient that is cut is refused with the line that cut it; one that is whole is left alone."""

import copy
import functools
import json
import math
import pickle
import struct

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch import exp, plate, sample, stack, tensor, where
from probtorch.autograd import Function
from probtorch.compiler.density import CompileWarning
from probtorch.config import configure
from probtorch.effects import module, param, subsample
from probtorch.effects.reparams import LocScaleReparam, reparam
from probtorch.errors import AutogradError, DTypeError, InferenceError, user_frame
from probtorch.estimators import MeasureValued, ScoreFunction
from probtorch.infer import (
    MCMC,
    NUTS,
    SVI,
    AutoDelta,
    AutoIAFNormal,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
    RenyiELBO,
    Target,
    Trace_ELBO,
    TraceEnum_ELBO,
    TraceGraph_ELBO,
    TraceMeanField_ELBO,
)
from probtorch.nn import BatchNorm1d, Dropout, Linear, ReLU, Sequential, Tanh
from probtorch.ode import odeint
from probtorch.optim import Adam

X = np.linspace(-1.0, 1.0, 20)
Y = 2.0 * X + 0.3 + 0.1 * np.cos(7.0 * np.arange(20))
XT, YT = tensor(X), tensor(Y)
LABEL = tensor((Y > 0.0).astype(np.float64))


def here():
    """The line after this call: where a cut is made."""
    return f"test_gradient_check.py:{user_frame(2)[1] + 1}"


class Box:
    """An object that keeps what a model puts into it."""

    kept = 0.0


# ----------------------------------------------------------------------------------- models cut

CUTS = {}


def cut(fn):
    """Register what is made of a latent value; it notes the line of its escape."""
    CUTS[fn.__name__] = fn
    return fn


LINE = [""]


@cut
def by_float(b):
    LINE[0] = here()
    return float(b)


@cut
def by_float_squared(b):
    LINE[0] = here()
    return float(b) ** 2


@cut
def by_item(b):
    LINE[0] = here()
    return b.item()


@cut
def by_item_times_two(b):
    LINE[0] = here()
    return b.item() * 2.0


@cut
def by_item_of_a_result(b):
    LINE[0] = here()
    return (b * 3.0 + 1.0).item()


@cut
def by_item_in_a_tensor(b):
    LINE[0] = here()
    return tensor(b.item())


@cut
def by_item_in_a_list(b):
    LINE[0] = here()
    return tensor([b.item(), 1.0])[0]


@cut
def by_item_in_a_mixed_list(b):
    LINE[0] = here()
    return tensor([b.item(), b])[0]


@cut
def by_tolist(b):
    LINE[0] = here()
    return stack([b, b]).tolist()[1]


@cut
def by_detach_numpy(b):
    LINE[0] = here()
    return b.detach().numpy()


@cut
def by_numpy_force(b):
    LINE[0] = here()
    return b.numpy(force=True) + 0.0


@cut
def by_numpy_of_a_vector(b):
    LINE[0] = here()
    return tensor(stack([b, b]).detach().numpy())[0]


@cut
def by_a_view_of_numpy(b):
    LINE[0] = here()
    return probtorch.from_numpy(stack([b, b]).numpy(force=True)[1:])[0]


@cut
def by_asarray(b):
    LINE[0] = here()
    return np.asarray(b.detach())


@cut
def by_numpy_exp(b):
    LINE[0] = here()
    return np.exp(b.detach().numpy())


@cut
def by_numpy_after_tensor_operations(b):
    LINE[0] = here()
    return (b.detach() * 2.0 + 1.0).numpy() + 0.0


@cut
def by_math(b):
    LINE[0] = here()
    return math.exp(b)


@cut
def by_element_assignment(b):
    mu = np.zeros(3)
    LINE[0] = here()
    mu[0] = b
    return mu[0]


@cut
def by_list_of_floats(b):
    LINE[0] = here()
    return np.array([float(b), 1.0]).sum()


@cut
def by_an_object(b):
    LINE[0] = here()
    Box.kept = float(b)
    return Box.kept + 0.0


@cut
def by_a_dict(b):
    LINE[0] = here()
    return {"b": b.item()}["b"] * 1.0


@cut
def by_dlpack(b):
    LINE[0] = here()
    return np.from_dlpack(b.detach()) * 1.0


@cut
def by_format(b):
    LINE[0] = here()
    return float(f"{b.item():.17g}")


@cut
def by_sum_of_python(b):
    LINE[0] = here()
    return sum(stack([b, b * b]).tolist())


@cut
def by_max_of_python(b):
    LINE[0] = here()
    return max(float(b), -100.0)


@cut
def by_numpy_interp(b):
    LINE[0] = here()
    return np.interp(b.detach(), [-10.0, 10.0], [-20.0, 20.0])


@cut
def by_full_of_item(b):
    LINE[0] = here()
    return probtorch.full((), b.item())


@cut
def by_linspace(b):
    LINE[0] = here()
    return probtorch.linspace(0.0, b, 3)[2]


@cut
def by_text(b):
    LINE[0] = here()
    return float(f"{b:.17g}")


@cut
def by_json(b):
    LINE[0] = here()
    return json.loads(json.dumps(stack([b, b]).tolist()))[0]


@cut
def by_struct(b):
    LINE[0] = here()
    return struct.unpack("d", struct.pack("d", b))[0]


@cut
def by_pickle(b):
    LINE[0] = here()
    return pickle.loads(pickle.dumps(b.detach())) * 2.0


@functools.lru_cache(None)
def squared(value):
    return value * value


@cut
def by_a_cache(b):
    LINE[0] = here()
    return squared(float(b))


@cut
def by_a_sum_of_doubles(b):
    LINE[0] = here()
    return math.fsum([b, b])


@cut
def by_a_number_of_numpy(b):
    LINE[0] = here()
    return np.float64(b) * 2.0


@cut
def by_normalising(b):
    LINE[0] = here()
    return b / (1.0 + abs(b.item()))


@cut
def by_an_array_shared_with_a_tensor(b):
    array = np.zeros(20)
    t = probtorch.from_numpy(array)
    LINE[0] = here()
    array[:] = b.detach().numpy() * 2.0
    return t


@cut
def by_solving_for_it(b):
    optimize = pytest.importorskip("scipy.optimize")
    LINE[0] = here()
    return optimize.brentq(lambda z: z**3 + z - float(b), -5.0, 5.0)


def regression(made):
    def model(x, y):
        b = sample("b", dist.Normal(0.0, 1.0))
        a = sample("a", dist.Normal(0.0, 1.0))
        with plate("n", 20):
            sample("y", dist.Normal(made(b) * x + a, 0.5), obs=y)

    return model


@pytest.mark.parametrize("name", CUTS)
def test_a_density_with_a_cut_is_refused_with_the_line(name):
    target = Target.from_model(regression(CUTS[name]), XT, YT)
    for _ in range(2):  # not only once
        with pytest.raises(InferenceError, match="'b'") as caught:
            target.value_and_grad([0.3, -0.2])
        assert LINE[0] in str(caught.value)
        assert "stop_gradient" in caught.value.fix


@pytest.mark.parametrize("name", CUTS)
def test_svi_with_a_cut_is_refused_with_the_line(name):
    model = regression(CUTS[name])
    svi = SVI(model, AutoNormal(model), Adam({"lr": 0.02}), seed=0)
    for _ in range(2):
        with pytest.raises(InferenceError, match="'b'") as caught:
            svi.step(XT, YT)
        assert LINE[0] in str(caught.value)
    assert svi.num_steps == 0


def in_a_plate(x, y):
    with plate("n", 20):
        b = sample("b", dist.Normal(0.0, 1.0))
        LINE[0] = here()
        kept = b.detach().numpy() * 2.0
        sample("y", dist.Normal(kept * x, 0.5), obs=y)


def in_a_loop(x, y):
    b = sample("b", dist.Normal(0.0, 1.0))
    total = 0.0
    for i in range(3):
        LINE[0] = here()
        total = total + b.item() * i
    sample("y", dist.Normal(total * x, 0.5).to_event(1), obs=y)


def in_a_scale(x, y):
    b = sample("b", dist.LogNormal(0.0, 1.0))
    LINE[0] = here()
    sample("y", dist.Normal(x, float(b)).to_event(1), obs=y)


def in_a_factor(x, y):
    b = sample("b", dist.Normal(0.0, 1.0))
    LINE[0] = here()
    probtorch.factor("f", -(float(b) ** 2))


def in_a_later_prior(x, y):
    b = sample("b", dist.Normal(0.0, 1.0))
    LINE[0] = here()
    c = sample("c", dist.Normal(b.item() * 2.0, 1.0))
    sample("y", dist.Normal(c * x, 0.5).to_event(1), obs=y)


def of_a_vector_site(x, y):
    b = sample("b", dist.Normal(tensor(np.zeros(3)), 1.0).to_event(1))
    LINE[0] = here()
    mu = x * float(b[1]) + 0.0
    sample("y", dist.Normal(mu, 0.5).to_event(1), obs=y)


PLACES = [in_a_plate, in_a_loop, in_a_scale, in_a_factor, in_a_later_prior, of_a_vector_site]


@pytest.mark.parametrize("model", PLACES, ids=lambda m: m.__name__)
def test_a_cut_is_refused_wherever_it_is(model):
    target = Target.from_model(model, XT, YT)
    with pytest.raises(InferenceError, match="'b'") as caught:
        target.value_and_grad(np.full(target.dim, 0.4))
    assert LINE[0] in str(caught.value)


def test_a_cut_in_a_guide_is_refused():
    def model(y):
        b = sample("b", dist.Normal(0.0, 1.0))
        c = sample("c", dist.Normal(0.0, 1.0))
        sample("y", dist.Normal(b + c, 0.5).expand([20]).to_event(1), obs=y)

    def guide(y):
        loc = param("loc", tensor(0.1))
        b = sample("b", dist.Normal(loc, 1.0))
        LINE[0] = here()
        sample("c", dist.Normal(b.item() * 2.0, 1.0))

    with pytest.raises(InferenceError, match="'b'") as caught:
        SVI(model, guide, Adam({"lr": 0.1}), seed=0).step(YT)
    assert LINE[0] in str(caught.value)


def test_a_parameter_read_as_a_number_is_refused():
    def guide(y):
        loc = param("loc", tensor(0.1))
        LINE[0] = here()
        sample("b", dist.Normal(float(loc) * 1.0, param("scale", tensor(0.5))))

    def model(y):
        b = sample("b", dist.Normal(0.0, 1.0))
        sample("y", dist.Normal(b, 0.5).expand([20]).to_event(1), obs=y)

    with pytest.raises(InferenceError, match="'loc'") as caught:
        SVI(model, guide, Adam({"lr": 0.1}), seed=0).step(YT)
    assert LINE[0] in str(caught.value)


def only(use):
    """A guide in which a parameter reaches the objective through ``use(loc)`` alone."""

    def guide(y):
        loc = param("loc", tensor(0.1))
        sample("b", dist.Normal(use(loc), 0.5))

    return guide


def with_others(use):
    """The same among parameters that weigh far more."""

    def guide(y):
        loc = param("loc", tensor(0.1))
        sample("b", dist.Normal(use(loc) + 1e4 * param("other", tensor(0.2)), 0.5))

    return guide


@pytest.mark.parametrize("made", [only, with_others])
@pytest.mark.parametrize("name", ["by_float_squared", "by_math", "by_numpy_exp", "by_text"])
def test_a_parameter_that_is_cut_off_is_refused(made, name):
    def model(y):
        b = sample("b", dist.Normal(0.0, 1.0))
        sample("y", dist.Normal(b, 0.5).expand([20]).to_event(1), obs=y)

    with pytest.raises(InferenceError, match="'loc'") as caught:
        SVI(model, made(CUTS[name]), Adam({"lr": 0.1}), seed=0).step(YT)
    assert LINE[0] in str(caught.value)


@pytest.mark.parametrize("n", [20, 100_000])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_a_cut_is_found_in_flat_and_in_steep_densities(n, scale):
    x = np.linspace(-1.0, 1.0, n)

    def model():
        b = sample("b", dist.Normal(0.0, scale))
        LINE[0] = here()
        mean = float(b) * 1.5 * x
        sample("y", dist.Normal(mean, scale).to_event(1), obs=2.0 * scale * x)

    for q in (0.3, -2.0):
        with pytest.raises(InferenceError, match="'b'") as caught:
            Target.from_model(model).value_and_grad([q * scale])
        assert LINE[0] in str(caught.value)


def test_a_cut_in_single_precision_is_found_within_the_first_points():
    x = tensor(X).float()

    def model():
        w = sample("w", dist.Normal(tensor(np.zeros(4)), 1.0).to_event(1)).float()
        b = sample("b", dist.Normal(0.0, 1.0)).float()
        LINE[0] = here()
        mean = (x[:, None] * w).tanh().sum(-1) + float(b) * 2.0
        sample("y", dist.Normal(mean, 0.5).to_event(1), obs=tensor(Y).float())

    target = Target.from_model(model)

    def walk():
        for q in (0.3, -0.4, 1.2, 0.7, -1.1):
            target.value_and_grad(np.full(5, q))

    with pytest.raises(InferenceError, match="'b'") as caught:
        walk()
    assert LINE[0] in str(caught.value)


def test_masked_arrays_are_refused_where_they_would_cut_or_lose_their_mask():
    masked = np.ma.array(X, mask=X > 0.0)
    b = tensor(0.5, requires_grad=True)
    with pytest.raises(AutogradError, match="a masked array") as caught:
        masked * b
    assert "filled" in caught.value.fix
    for call in (lambda: b * masked, lambda: tensor(masked), lambda: probtorch.from_numpy(masked)):
        with pytest.raises(DTypeError, match="10 of 20 elements masked"):
            call()
    assert (b * np.ma.array(X)).requires_grad  # nothing is masked


def test_arrays_asked_for_by_others_are_refused_with_a_fix_for_that_call():
    pandas = pytest.importorskip("pandas")
    b = tensor([0.5, 0.25], requires_grad=True)
    frame = pandas.DataFrame(np.ones((3, 2)))

    def fill():
        mu = np.zeros(3)
        mu[:2] = b

    def add():
        mu = np.zeros(2)
        mu += b

    fixes = {
        r"to_numpy\(\)": lambda: frame @ b,
        "probtorch.zeros": fill,
        "x = x \\+ t": add,
        "keep the gradient": lambda: np.array([b, b]),
        "autograd.Function": lambda: np.interp(b, [0.0, 1.0], [0.0, 2.0]),
    }
    for fix, call in fixes.items():
        with pytest.raises(AutogradError, match=fix) as caught:
            call()
        assert "detach" not in str(caught.value)


# -------------------------------------------------------------------------------- models without

WHOLE = {}


def whole(fn):
    """Register a model of `XT` and `YT` without a cut."""
    WHOLE[fn.__name__] = fn
    return fn


def normal(name, loc=0.0, scale=1.0):
    return sample(name, dist.Normal(loc, scale))


def seen(mean, scale=0.5):
    with plate("n", 20):
        sample("y", dist.Normal(mean, scale), obs=YT)


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


@pytest.mark.filterwarnings("ignore::probtorch.compiler.density.CompileWarning")
@pytest.mark.filterwarnings("ignore::probtorch.compiler.density.PrintWarning")
@pytest.mark.parametrize("name", WHOLE)
def test_a_density_without_a_cut_is_left_alone(name, monkeypatch):
    target = Target.from_model(WHOLE[name])
    for q in (0.3, 0.0):
        value, gradient = target.value_and_grad(np.full(target.dim, q))
        assert math.isfinite(value)
        assert np.isfinite(gradient).all()


def pair_of_neural():
    net = Sequential(Linear(1, 8), ReLU(), Dropout(0.5), Linear(8, 1))

    def model(x, y):
        seen(module("net", net)(x[:, None].float())[:, 0])

    return model, lambda x, y: None


def pair_of_normalised():
    net = Sequential(Linear(1, 8), BatchNorm1d(8), Tanh(), Linear(8, 1))

    def model(x, y):
        seen(module("net", net)(x[:, None].float())[:, 0])

    return model, lambda x, y: None


def pair_of_gamma():
    def model(x, y):
        seen(sample("g", dist.Gamma(2.0, 1.0)) * x)

    def guide(x, y):
        a = param("a", tensor(2.0), constraint=dist.constraints.positive)
        sample("g", dist.Gamma(a, 1.5))

    return model, guide


def pair_of_dirichlet():
    def model(x, y):
        p = sample("p", dist.Dirichlet(tensor(np.ones(3))))
        seen(p[0] * x + p[1])

    def guide(x, y):
        a = param("a", tensor([1.0, 2.0, 3.0]), constraint=dist.constraints.positive)
        sample("p", dist.Dirichlet(a))

    return model, guide


def pair_of_labels():
    def model(x, y):
        z = sample("z", dist.Bernoulli(0.4))
        seen(z * x)

    def guide(x, y):
        sample("z", dist.Bernoulli(logits=param("logit", tensor(0.2))))

    return model, guide


def pair_of_subsamples():
    def model(x, y):
        b = normal("b")
        with plate("rows", 20, subsample_size=5):
            rows = subsample(y, event_dim=0)
            sample("y", dist.Normal(b * subsample(x, event_dim=0), 0.5), obs=rows)

    return model, AutoNormal(model)


def pair_of_prints():
    def model(x, y):
        b = normal("b")
        print("b is", b.item(), float(b.exp()))
        seen(b * x)

    return model, AutoNormal(model)


def pair_of_amortised():
    net = Linear(20, 2)

    def model(x, y):
        seen(normal("b") * x)

    def guide(x, y):
        loc, scale = module("encoder", net)(y.float())
        sample("b", dist.Normal(loc, exp(scale)))

    return model, guide


def auto(guide, **options):
    def pair():
        def model(x, y):
            b = sample("b", dist.Normal(tensor(np.zeros(2)), 1.0).to_event(1))
            seen(b[0] * x + b[1], sample("s", dist.HalfNormal(1.0)) + 0.1)

        return model, guide(model, **options)

    return pair


def pair_of_numbers():
    def model(x, y):
        seen(normal("b") * x + normal("a"), sample("s", dist.HalfNormal(1.0)) + 0.1)

    return model, AutoMultivariateNormal(model)


def discrete(use, estimator=None):
    """A discrete site with a value that Python may read: no gradient passes through it."""

    def pair():
        def model(x, y):
            seen(use(sample("z", dist.Bernoulli(0.4))) * x + normal("b"))

        def guide(x, y):
            infer = {} if estimator is None else {"estimator": estimator}
            sample("z", dist.Bernoulli(logits=param("logit", tensor(0.2))), infer=infer)
            sample("b", dist.Normal(param("loc", tensor(0.1)), 0.3))

        return model, guide

    return pair


def pair_of_read_draws():
    """A continuous site with the score function may be read, too."""

    def model(x, y):
        seen(float(normal("b")) * x)

    def guide(x, y):
        sample(
            "b", dist.Normal(param("loc", tensor(0.1)), 0.3), infer={"estimator": ScoreFunction()}
        )

    return model, guide


PAIRS = {
    "discrete, item": (discrete(lambda z: z.item()), Trace_ELBO()),
    "discrete, float": (discrete(lambda z: float(z) * 2.0 + 1.0), TraceGraph_ELBO()),
    "discrete, index of a list": (discrete(lambda z: [1.0, 2.0][int(z)]), Trace_ELBO()),
    "discrete, branch": (discrete(lambda z: 2.0 if z else 1.0), Trace_ELBO()),
    "discrete, array": (discrete(lambda z: z.numpy() * 2.0), Trace_ELBO()),
    "discrete, measure valued": (discrete(lambda z: z.item(), MeasureValued()), Trace_ELBO()),
    "score function, float": (pair_of_read_draws, Trace_ELBO()),
    "network with dropout": (pair_of_neural, Trace_ELBO()),
    "batch normalisation": (pair_of_normalised, Trace_ELBO()),
    "gamma guide": (pair_of_gamma, Trace_ELBO()),
    "dirichlet guide": (pair_of_dirichlet, Trace_ELBO()),
    "score function": (pair_of_labels, Trace_ELBO()),
    "score function with baselines": (pair_of_labels, TraceGraph_ELBO()),
    "enumeration": (pair_of_labels, TraceEnum_ELBO()),
    "subsamples": (pair_of_subsamples, Trace_ELBO()),
    "prints": (pair_of_prints, Trace_ELBO()),
    "amortised": (pair_of_amortised, TraceMeanField_ELBO()),
    "AutoNormal": (auto(AutoNormal), TraceMeanField_ELBO()),
    "AutoDelta": (auto(AutoDelta), Trace_ELBO()),
    "particles": (pair_of_numbers, Trace_ELBO(4, vectorize_particles=True)),
    "low rank": (auto(AutoLowRankMultivariateNormal, rank=1), Trace_ELBO(2)),
    "flow": (auto(AutoIAFNormal), Trace_ELBO()),
    "Renyi": (auto(AutoNormal), RenyiELBO(0.5, 3)),
    "a loss of one's own": (auto(AutoNormal), lambda m, g, *a: Trace_ELBO()(m, g)(*a)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_svi_without_a_cut_is_left_alone(name):
    pair, objective = PAIRS[name]
    model, guide = pair()
    svi = SVI(model, guide, Adam({"lr": 0.01}), objective, seed=1)
    assert math.isfinite(svi.step(XT, YT))


def test_the_checks_see_enough_models():
    assert len(CUTS) + len(PLACES) + 2 >= 30
    assert len(WHOLE) + len(PAIRS) >= 60


# ---------------------------------------------------------------------------------- the verdicts


@pytest.mark.parametrize("name", ["gamma guide", "dirichlet guide", "particles", "enumeration"])
def test_estimators_get_a_verdict(name, monkeypatch):
    """Not only because there is none: a wrong slope is seen where the right one is left alone."""
    from probtorch.infer import gradient_check

    found = []
    quotient = gradient_check._quotient

    def doubled(at, value, slope, watch):
        wrong = 1.5 * slope + 0.1
        found.append(quotient(at, value, wrong, watch) not in (None, wrong))
        return None

    monkeypatch.setattr(gradient_check, "_quotient", doubled)
    pair, objective = PAIRS[name]
    SVI(*pair(), Adam({"lr": 0.01}), objective, seed=1).step(XT, YT)
    assert found
    assert all(found)


def test_a_wrong_derivative_of_a_hand_written_density_is_refused():
    def fn(q):
        return -(q * (q.detach().numpy() * 1.0)).sum()

    with pytest.raises(InferenceError, match="not that of its log density"):
        Target.from_density(fn, 3).value_and_grad([0.1, 0.2, 0.3])
    with configure(check_gradients=False), pytest.warns(CompileWarning):
        assert Target.from_density(fn, 3).value_and_grad([0.1, 0.2, 0.3])[0] < 0.0


def noisy():
    rng = np.random.default_rng(0)
    return lambda: float(rng.normal())


def counting():
    count = iter(range(1, 1000))
    return lambda: float(next(count))


@pytest.mark.parametrize("make", [noisy, counting])
def test_a_density_that_differs_at_one_point_is_never_frozen(make):
    read = make()

    def model():
        seen(normal("b") * XT + read())

    target = Target.from_model(model)
    with pytest.warns(CompileWarning, match="another value each time at the same point"):
        found = [target.value_and_grad([0.3])[0] for _ in range(5)]
    assert len(set(found)) == 5
    assert not target.density.paths


def test_draws_in_a_density_are_named_with_their_line():
    def model():
        seen(normal("b") * XT + probtorch.randn(20))

    target = Target.from_model(model)
    with pytest.warns(CompileWarning, match="test_gradient_check.py"):
        found = [target.value_and_grad([0.3])[0] for _ in range(5)]
    assert len(set(found)) == 5


def test_nuts_refuses_a_cut_before_it_samples():
    mcmc = MCMC(NUTS(regression(by_float_squared)), num_samples=5, seed=0, progress_bar=False)
    with pytest.raises(InferenceError, match="'b'"):
        mcmc.run(XT, YT)


def test_the_check_leaves_generators_buffers_and_parameters_alone():
    def steps(check):
        probtorch.manual_seed(3)
        model, guide = pair_of_normalised()
        svi = SVI(model, guide, Adam({"lr": 0.01}), seed=1)
        with configure(check_gradients=check):
            losses = [svi.step(XT, YT) for _ in range(3)]
        return losses, [b._data.copy() for b in svi.params.buffers.values()]

    (ours, buffers), (plain, others) = steps(True), steps(False)
    assert ours == plain
    assert all(np.array_equal(a, b) for a, b in zip(buffers, others, strict=True))
