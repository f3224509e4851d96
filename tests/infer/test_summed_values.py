"""Values of enumerated sites do not reach Python: a sweep of reads over the ways to enumerate."""

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit

import probtorch
from probtorch import factor, plate, sample, tensor
from probtorch.autograd.function import Function
from probtorch.config import configure
from probtorch.distributions import Bernoulli, Beta, Categorical, Delta, Normal, Uniform
from probtorch.effects import handlers, param
from probtorch.errors import InferenceError, ShapeError, TensorIndexError
from probtorch.infer import (
    SVI,
    Predictive,
    Target,
    Trace_ELBO,
    TraceEnum_ELBO,
    config_enumerate,
    infer_discrete,
)
from probtorch.optim import Adam

Y = tensor([0.2, 4.7, 5.1])
P = tensor([0.2, 0.4, 0.6, 0.8])  # draws of p


class Doubled(Function):
    """Computes with arrays, out of the sight of who listens to operations."""

    @staticmethod
    def forward(ctx, x):
        return x * 2.0

    @staticmethod
    def backward(ctx, g):
        return g * 2.0


def filled(z):
    box = probtorch.zeros(z.shape)
    box[...] = z
    return box


# What may be done with a value before it is read.
DERIVED = {
    "itself": lambda z: z,
    "any": lambda z: z.any(),
    "all": lambda z: (z == 1.0).all(),
    "sum": lambda z: z.sum(),
    "largest": lambda z: (z * 2.0 - 1.0).max(),
    "detached": lambda z: z.detach().sum(),
    "copied": lambda z: probtorch.tensor(z).sum(),
    "cast": lambda z: z.long().sum(),
    "table": lambda z: tensor([0.0, 5.0])[z.long()].sum(),
    "where": lambda z: probtorch.where(z == 1.0, 5.0, 0.0).amax(),
    "order": lambda z: z.reshape(-1).argmax(),
    "written into": lambda z: filled(z).sum(),
    "view": lambda z: z.reshape(-1)[-1],
    "custom function": lambda z: Doubled.apply(z).sum(),
    "vmapped": lambda z: probtorch.vmap(lambda x: x * 2.0)(z.reshape(-1)).sum(),
}
READS = {
    "if": lambda x: 5.0 if x else 0.0,
    "not": lambda x: 0.0 if not x else 5.0,
    "int": lambda x: 5.0 * int(x),
    "float": lambda x: 5.0 * float(x),
    "item": lambda x: 5.0 * x.item(),
    "tolist": lambda x: tensor(x.tolist()).sum(),
    "numpy": lambda x: tensor(5.0 * x.numpy()),
    "asarray": lambda x: tensor(5.0 * np.asarray(x)),
    "index": lambda x: [0.0, 5.0, 5.0, 5.0, 5.0, 5.0][x.long()],
    "range": lambda x: 5.0 * len(range(x.long())),
    "comparison": lambda x: 5.0 if x > 0 else 0.0,
    "chained comparison": lambda x: 5.0 if 0 < x < 9 else 0.0,
    "in": lambda x: 5.0 if 1.0 in x else 0.0,
    "max": lambda x: max(x, 0.5),
    "slice": lambda x: Y[: x.long()].sum(),
    "unique": lambda x: 5.0 * len(probtorch.unique(x)),
    "cond": lambda x: probtorch.cond(x > 0, lambda: tensor(5.0), lambda: tensor(0.0)),
    "loop": lambda x: probtorch.while_loop(lambda s: s < x, lambda s: s + 1.0, tensor(0.0)),
    "dlpack": lambda x: tensor(5.0 * np.from_dlpack(x)),
}


def model_of(use):
    def model(y):
        p = sample("p", Uniform(0.0, 1.0))
        z = sample("switch", Bernoulli(p))
        with plate("data", len(y)):
            sample("y", Normal(use(z), 1.0), obs=y)
        return z

    return model


def draws_p(y):
    sample("p", Beta(param("a", tensor(1.0)), 1.0))


def knows_p(y):
    sample("p", Delta(tensor(0.3)))


@config_enumerate
def draws_both(y):
    p = sample("p", Beta(param("a", tensor(1.0)), 1.0))
    sample("switch", Bernoulli(p))


def losses(model, guide, jit, objective):
    with configure(jit=jit):
        svi = SVI(model, guide, Adam({"lr": 0.1}), objective, seed=0)
        return [svi.step(Y) for _ in range(3)]


def posterior_draw(model):
    with handlers.seed(rng_seed=0):
        return infer_discrete(model)(Y)


def density(model):
    value, gradient = Target.from_model(model, Y).value_and_grad([0.3])
    return [value, *gradient]


WAYS = {
    "a target": density,
    "summed in the model": lambda m: losses(m, draws_p, True, TraceEnum_ELBO()),
    "enumerated in the guide": lambda m: losses(m, draws_both, False, TraceEnum_ELBO()),
    "the loss alone": lambda m: TraceEnum_ELBO().loss(m, knows_p, Y),
    "infer_discrete": lambda m: posterior_draw(m).item(),
    "predictions": lambda m: Predictive(infer_discrete(m), {"p": P})(Y)["switch"].tolist(),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("read", READS)
def test_no_read_is_silent(read, way):
    """Each way to read, of the value itself and of what is computed from it."""
    for name, derive in DERIVED.items():
        with pytest.raises(InferenceError, match="'switch' is being summed out") as caught:
            WAYS[way](model_of(lambda z, derive=derive: READS[read](derive(z))))
        assert "test_summed_values.py" in caught.value.location, name
        assert "table[switch.long()]" in caught.value.fix, name


# ------------------------------------------------------------------- what is right, by hand

# The log densities of the data where the switch is off, and where it is on and adds 5.
OFF, ON = (stats.norm.logpdf(Y.numpy(), loc).sum() for loc in (0.0, 5.0))


def density_by_hand():
    """Log density and slope on the unconstrained scale, where p is expit(q)."""
    p = expit(0.3)
    likelihood = p * np.exp(ON) + (1.0 - p) * np.exp(OFF)
    slope = p * (1.0 - p) * (np.exp(ON) - np.exp(OFF)) / likelihood
    return [np.log(likelihood * p * (1.0 - p)), slope + 1.0 - 2.0 * p]


def losses_by_hand(of_data):
    """Losses of the model in which `of_data`, a function of p, stands for data and switch."""

    def model(y):
        factor("y", of_data(sample("p", Uniform(0.0, 1.0))))

    return losses(model, draws_p, False, Trace_ELBO())


def loss_by_hand():
    return -np.log(0.3 * np.exp(ON) + 0.7 * np.exp(OFF))


RIGHT = {
    "a target": density_by_hand,
    "summed in the model": lambda: losses_by_hand(
        lambda p: probtorch.logaddexp(p.log() + ON, (1.0 - p).log() + OFF)
    ),
    "enumerated in the guide": lambda: losses_by_hand(lambda p: p * ON + (1.0 - p) * OFF),
    "the loss alone": loss_by_hand,
    # It is on with odds of exp(12.5) times those of p: a draw is 0 once in 60,000 runs or so.
    "infer_discrete": lambda: 1.0,
    "predictions": lambda: [1.0] * 4,
}


@pytest.mark.filterwarnings("ignore:SVI.step runs eagerly")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "use",
    [
        lambda z: probtorch.where(z == 1.0, 5.0, 0.0),
        lambda z: tensor([0.0, 5.0])[z.long()],
        lambda z: 5.0 * z,
        lambda z: (print(z), f"{z}", 5.0 * z)[-1],
        lambda z: 5.0 * z if z.ndim >= 0 and len(z.shape) < 9 and z.dtype.kind == "f" else 0.0,
        lambda z: Doubled.apply(2.5 * z),
    ],
    ids=["where", "table", "arithmetic", "printed", "shape and dtype", "custom function"],
)
@pytest.mark.filterwarnings("ignore::probtorch.compiler.paths.PrintWarning")
def test_operations_text_and_shapes_are_not_refused_and_the_sum_is_right(use, way):
    assert WAYS[way](model_of(use)) == pytest.approx(RIGHT[way]())


@pytest.mark.parametrize("way", WAYS)
def test_values_of_other_sites_are_not_refused(way):
    def model(y):
        p = sample("p", Uniform(0.0, 1.0))
        low = -5.0 if p < -1.0 else 0.0
        z = sample("switch", Bernoulli(p))
        again = tensor(float(p)) if p > 2.0 else p
        with plate("data", len(y)):
            sample("y", Normal(low + 5.0 * z + 0.0 * again, 1.0), obs=y)
        return z

    assert WAYS[way](model) == pytest.approx(RIGHT[way]())


def test_the_cure_of_the_message_works():
    """With the site enumerated in the guide one value at a time, the model may branch on it."""

    def by_branch(y):
        p = sample("p", Beta(2.0, 2.0))
        z = sample("switch", Bernoulli(p))
        sample("y", Normal(5.0 if z else 0.0, 1.0), obs=y)

    def by_where(y):
        p = sample("p", Beta(2.0, 2.0))
        z = sample("switch", Bernoulli(p))
        sample("y", Normal(probtorch.where(z == 1.0, 5.0, 0.0), 1.0), obs=y)

    def guide(y):
        sample("p", Beta(2.0, 2.0))
        sample("switch", Bernoulli(0.4), infer={"enumerate": "sequential"})

    y = tensor(1.0)
    with pytest.raises(InferenceError, match="'sequential'"):
        TraceEnum_ELBO().loss(by_branch, lambda y: sample("p", Beta(2.0, 2.0)), y)
    losses = []
    for model in (by_branch, by_where):
        with handlers.seed(rng_seed=3):
            losses.append(TraceEnum_ELBO().loss(model, guide, y))
    np.testing.assert_allclose(*losses, rtol=1e-6)


@pytest.mark.parametrize("way", WAYS)
def test_shapes_that_do_not_go_together_are_told_with_where_the_values_lie(way):
    def use(z):
        return z.reshape(1).sum()  # right for a single value

    with pytest.raises(ShapeError, match="all values of 'switch' at once lie along") as caught:
        WAYS[way](model_of(use))
    assert "test_summed_values.py" in caught.value.location
    assert "count dims from the right" in caught.value.fix


def test_the_sites_that_a_value_depends_on_are_named():
    def model():
        a = sample("a", Bernoulli(0.3))
        b = sample("b", Categorical(tensor([0.2, 0.3, 0.5])))
        c = sample("c", Bernoulli(0.5))
        sample("x", Normal(0.0, 1.0))
        sample("y", Normal(1.0 if (a + b).sum() > 2 else c, 1.0), obs=tensor(0.0))

    with pytest.raises(InferenceError, match="sites 'a', 'b' are being summed out"):
        Target.from_model(model)


def test_a_draw_that_depends_on_an_enumerated_site_is_not_read_either():
    def model():
        z = sample("z", Bernoulli(0.3))
        x = sample("x", Normal(3.0 * z, 1.0))
        sample("y", Normal(1.0 if x.sum() > 2 else 0.0, 1.0), obs=tensor(0.0))

    def guide():
        z = sample("z", Bernoulli(0.3), infer={"enumerate": "parallel"})
        sample("x", Normal(3.0 * z, 1.0))

    with pytest.raises(InferenceError, match="'z' is being summed out"):
        TraceEnum_ELBO().loss(model, guide)


def test_densities_of_the_user_are_watched_too():
    class Branching(Normal):
        def log_prob(self, value):
            return super().log_prob(value + 1.0 if self.loc.sum() > 1.0 else value)

        log_prob_inside = log_prob

    def model():
        sample("x", Normal(0.0, 1.0))
        z = sample("z", Bernoulli(0.3))
        sample("y", Branching(3.0 * z, 1.0), obs=tensor(0.0))

    with pytest.raises(InferenceError, match="'z' is being summed out"):
        Target.from_model(model)


def test_loops_that_are_recorded_whole_are_followed():
    """A compiled run hears of a loop as a whole: what it reads still counts, and nothing else."""

    def model(free):
        x = sample("x", Normal(0.0, 1.0))
        z = sample("z", Bernoulli(0.3))
        step = 1.0 if free else z.sum()
        total = probtorch.while_loop(lambda s: s < 3.0, lambda s: s + 1.0 + 0.0 * step, x.detach())
        sample("y", Normal(z, 1.0 if total.sum() > -9.0 else 2.0), obs=tensor(0.0))

    free = Target.from_model(model, True)
    value, _ = free.value_and_grad([0.3])
    with configure(jit=False):
        np.testing.assert_allclose(value, Target.from_model(model, True).value_and_grad([0.3])[0])
    with pytest.raises(InferenceError, match="'z' is being summed out"):
        Target.from_model(model, False)


def test_the_check_tries_the_ends_of_all_supports():
    """A reduction of operations reaches no Python: ``any`` is true at most random values."""

    def model(reduce):
        p = sample("p", Uniform(0.0, 1.0))
        with plate("data", 40):
            z = sample("z", Bernoulli(p))
        with plate("data", 40):
            sample("y", Normal(5.0 * reduce(z), 1.0), obs=probtorch.zeros(40))

    Target.from_model(model, lambda z: z)
    for reduce in (lambda z: z.any().float(), lambda z: z.amax(), lambda z: z.mean()):
        with pytest.raises(InferenceError, match="for all values of discrete sites at once"):
            Target.from_model(model, reduce)


def test_rows_of_a_site_that_are_looked_up_are_told_where_they_belong():
    groups = tensor([0, 1, 2, 2])

    def looked_up():
        loc = sample("loc", Normal(0.0, 1.0))
        with plate("group", 3):
            z = sample("z", Bernoulli(0.3))
        with plate("row", 4):
            sample("y", Normal(loc + z[groups], 1.0), obs=probtorch.zeros(4))

    with pytest.raises(TensorIndexError, match="all values of 'z' at once lie along") as caught:
        Target.from_model(looked_up)
    assert "inside of its plate" in caught.value.fix

    def in_a_loop(y):
        loc = sample("loc", Normal(0.0, 1.0))
        for i in plate("group", 3):
            z = sample(f"z_{i}", Bernoulli(0.3))
            rows = y[groups == i]
            with plate(f"row_{i}", len(rows)):
                sample(f"y_{i}", Normal(loc + z, 1.0), obs=rows)

    y = np.array([0.2, 1.1, -0.4, 0.9])
    wanted = stats.norm.logpdf(0.5)
    for rows in (y[:1], y[1:2], y[2:]):
        terms = [stats.norm.logpdf(rows, 0.5 + z).sum() for z in (0, 1)]
        wanted += np.logaddexp(np.log(0.7) + terms[0], np.log(0.3) + terms[1])
    found, _ = Target.from_model(in_a_loop, tensor(y)).value_and_grad([0.5])
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
