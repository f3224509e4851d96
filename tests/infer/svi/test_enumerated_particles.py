"""`TraceEnum_ELBO(vectorize_particles=True)`: the mean over particles, whatever is enumerated."""

import numpy as np
import pytest

import probtorch
from probtorch import config, sample
from probtorch.distributions import Bernoulli, Categorical, Dirichlet, Normal, Poisson
from probtorch.effects import handlers, markov, param, plate
from probtorch.effects.params import ParamStore
from probtorch.effects.placing import PARTICLES
from probtorch.effects.runtime import Handler
from probtorch.errors import InferenceError
from probtorch.infer import SVI, AutoNormal, TraceEnum_ELBO
from probtorch.ops.indexing import Vindex
from probtorch.optim import Adam
from probtorch.tensor import tensor
from tests.infer.svi.programs import gradients

F8 = np.dtype("f8")
COUNT = 5
RNG = np.random.default_rng(0)
Y = tensor(RNG.normal(size=6), dtype=F8)
X = RNG.normal(size=COUNT)
COUNTS = RNG.poisson(2.0, size=(COUNT, 6)).astype(F8)


def mixture():
    """A drawn site, a summed one in a plate, data that depend on both."""
    x = sample("x", Normal(0.0, 2.0))
    with plate("rows", 6):
        z = sample("z", Categorical(tensor([0.2, 0.5, 0.3], dtype=F8)))
        loc = probtorch.stack([x, 2.0 * x, x - 1.0], -1)
        sample("y", Normal(Vindex(loc)[..., z], 1.0), obs=Y)


def draws_x():
    sample("x", Normal(param("loc", tensor(0.3, dtype=F8)), param("s", tensor(0.7, dtype=F8))))


def outside():
    """A summed site outside of the plate that the data are in: a sum of products over rows."""
    x = sample("x", Normal(0.0, 2.0))
    z = sample("z", Bernoulli(0.4))
    with plate("rows", 6):
        w = sample("w", Bernoulli(0.2 + 0.5 * z))
        sample("y", Normal(x * w + z, 1.0), obs=Y)


def chain():
    x = sample("x", Normal(0.0, 2.0))
    z = 0
    rows = tensor([[0.7, 0.3], [0.2, 0.8]], dtype=F8)
    for t in markov(range(6)):
        z = sample(f"z{t}", Categorical(rows[z]))
        sample(f"y{t}", Normal(x * z, 1.0), obs=Y[t])


def both():
    x = sample("x", Normal(0.0, 2.0))
    z = sample("z", Bernoulli(0.4))
    with plate("rows", 6):
        w = sample("w", Bernoulli(0.3))
        sample("y", Normal(x * w + z, 1.0), obs=Y)


def in_guide(how):
    def guide():
        draws_x()
        p = param("p", tensor(0.4, dtype=F8))
        sample("z", Bernoulli(p), infer={"enumerate": how})

    return guide


def counted():
    x = sample("x", Normal(0.0, 2.0))
    with plate("rows", 6):
        n = sample("n", Poisson(2.0))
        z = sample("z", Bernoulli(0.4))
        sample("y", Normal(x + n * z, 1.0), obs=Y)


def draws_counts():
    """Counts have no pathwise gradient: score-function terms by row and particle."""
    draws_x()
    rates = param("rates", probtorch.ones(6, dtype=F8))
    with plate("rows", 6):
        sample("n", Poisson(rates))


CASES = {
    "a mixture": (mixture, draws_x),
    "a site outside of its data's plate": (outside, draws_x),
    "a chain": (chain, draws_x),
    "enumerated in the guide": (both, in_guide("parallel")),
    "one value at a time": (both, in_guide("sequential")),
    "draws without gradients": (counted, draws_counts),
}


class Given(Handler):
    """Give the drawn sites the values of the particles of a run, or of one that has no others."""

    def __init__(self, row=0):
        super().__init__()
        self.row = row

    def on_sample(self, site):
        if site.observed or site.value is not None or site.name not in ("x", "n"):
            return
        given = X if site.name == "x" else COUNTS
        beside = [frame.size for frame in site.plates if frame.name == PARTICLES]
        given = given[: beside[0]] if beside else given[self.row]
        value = tensor(given.reshape(tuple(site.fn.batch_shape)), dtype=F8)
        # On the tape, as draws are: what is given is their noise.
        site.value = site.fn.loc + site.fn.scale * value if site.name == "x" else value


@pytest.mark.parametrize("case", CASES)
def test_particles_at_once_are_the_mean_of_particles_one_by_one(case):
    model, guide = CASES[case]
    with ParamStore().activate(), Given():
        objective = TraceEnum_ELBO(num_particles=COUNT, vectorize_particles=True)
        objective.loss_and_grads(model, guide)  # the first one is checked
        gradients()
        loss = objective.loss_and_grads(model, guide)
        found = gradients()
    losses, slopes = [], []
    with ParamStore().activate():
        single = TraceEnum_ELBO()
        for i in range(COUNT):
            with Given(i):
                single.loss(model, guide)
                losses.append(single.loss_and_grads(model, guide))
            slopes.append(gradients())
    np.testing.assert_allclose(loss, np.mean(losses), rtol=1e-10)
    assert found.keys() == slopes[0].keys()
    for name, slope in found.items():
        expected = np.mean([s[name] for s in slopes], axis=0)
        np.testing.assert_allclose(slope, expected, rtol=1e-8, atol=1e-10, err_msg=name)


def test_what_is_enumerated_throughout_is_exact_with_any_number_of_particles():
    def model():
        z = sample("z", Bernoulli(0.4))
        with plate("rows", 6):
            w = sample("w", Bernoulli(0.3))
            sample("y", Normal(w + z, 1.0), obs=Y)

    def guide():
        p = param("p", tensor(0.4, dtype=F8))
        sample("z", Bernoulli(p), infer={"enumerate": "parallel"})

    found = []
    for objective in (TraceEnum_ELBO(), TraceEnum_ELBO(7, vectorize_particles=True)):
        with ParamStore().activate():
            found.append((objective.loss_and_grads(model, guide), gradients()["p"]))
    np.testing.assert_allclose(*found, rtol=1e-12)


def gaussian_mixture():
    weights = sample("weights", Dirichlet(probtorch.ones(3)))
    locs = sample("locs", Normal(probtorch.zeros(3), 3.0).to_event(1))
    with plate("rows", 6):
        z = sample("z", Categorical(weights))
        sample("y", Normal(Vindex(locs)[..., z], 1.0), obs=Y)


def test_steps_with_particles_at_once_are_compiled_and_the_same_as_eager_ones():
    def run(jit):
        guide = AutoNormal(handlers.block(gaussian_mixture, hide=["z"]))
        objective = TraceEnum_ELBO(num_particles=20, vectorize_particles=True)
        svi = SVI(gaussian_mixture, guide, Adam({"lr": 0.05}), objective, seed=0)
        with config.configure(jit=jit):
            losses = [svi.step() for _ in range(6)]
        return losses, svi

    compiled, svi = run(True)
    assert "1 compiled path" in svi.explain()
    np.testing.assert_allclose(compiled, run(False)[0], rtol=1e-10)


@pytest.mark.parametrize("wrong", ["index", "sum"])
def test_a_model_that_crosses_particles_is_refused(wrong):
    def model():
        locs = sample("locs", Normal(probtorch.zeros(3), 3.0).to_event(1))
        z = sample("z", Categorical(probtorch.ones(3) / 3.0))
        shift = 0.0 if wrong == "index" else locs.mean()
        loc = locs[z] if wrong == "index" else Vindex(locs)[..., z]
        with plate("rows", 6):
            sample("y", Normal(loc + shift, 1.0), obs=Y)

    guide = AutoNormal(handlers.block(model, hide=["z"]))
    assert np.isfinite(TraceEnum_ELBO(num_particles=2).loss(model, guide))
    objective = TraceEnum_ELBO(num_particles=4, vectorize_particles=True)
    with pytest.raises(InferenceError, match=r"particles(.|\n)*leave vectorize_particles out"):
        objective.loss(model, guide)


def test_a_model_that_does_not_run_at_all_says_so_and_nothing_of_particles():
    def model():
        sample("z", Bernoulli(0.3))
        raise ZeroDivisionError("of its own")

    objective = TraceEnum_ELBO(num_particles=4, vectorize_particles=True)
    with pytest.raises(ZeroDivisionError, match="of its own"):
        objective.loss(model, lambda: None)
