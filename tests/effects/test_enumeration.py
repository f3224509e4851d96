"""`enumerate_sites`: where the values of discrete sites lie."""

import pytest

from probtorch.distributions import Bernoulli, Binomial, Categorical, Normal
from probtorch.effects import enumerate_sites, handlers, markov, plate, sample
from probtorch.effects.enumeration import DeeperPlates, Enumeration
from probtorch.tensor import tensor

PARALLEL = {"enumerate": "parallel"}


def traced(fn, enumeration):
    with handlers.trace() as found, enumerate_sites(None, enumeration):
        fn()
    return found


def test_each_site_has_a_dim_to_the_left_of_the_plates():
    def model():
        with plate("rows", 4):
            a = sample("a", Bernoulli(0.3), infer=PARALLEL)
            b = sample(
                "b",
                Categorical(tensor([[0.2, 0.5, 0.3], [0.1, 0.1, 0.8]])[a.long()]),
                infer=PARALLEL,
            )
            sample("y", Normal(a + b, 1.0), obs=tensor([0.0, 1.0, 2.0, 3.0]))

    found = traced(model, Enumeration(-2))
    assert tuple(found["a"].value.shape) == (2, 1)
    assert tuple(found["b"].value.shape) == (3, 1, 1)
    shapes = {name: tuple(found[name].compute_log_prob().shape) for name in "aby"}
    assert shapes == {"a": (2, 4), "b": (3, 2, 4), "y": (3, 2, 4)}
    assert found["y"].notes["dims"] == {-2: 0, -3: 1}


def test_sites_without_the_annotation_are_drawn():
    found = traced(lambda: sample("a", Bernoulli(0.3)), Enumeration())
    assert tuple(found["a"].value.shape) == ()


def test_given_values_are_kept():
    def model():
        sample("a", Binomial(3, 0.3), infer=PARALLEL)
        sample("b", Bernoulli(0.3), infer=PARALLEL, obs=1.0)

    with handlers.trace() as found, enumerate_sites(None, Enumeration()):
        handlers.substitute(model, {"a": 2.0})()
    assert found["a"].value.item() == 2.0 and found["b"].value.item() == 1.0


def test_dims_in_a_chain_are_used_again_and_others_are_not():
    def model():
        sample("before", Bernoulli(0.3), infer=PARALLEL)
        for t in markov(range(9)):
            sample(f"x_{t}", Bernoulli(0.3), infer=PARALLEL)
        sample("after", Bernoulli(0.3), infer=PARALLEL)

    enumeration = Enumeration()
    traced(model, enumeration)
    dims = {v.name: v.dim for v in enumeration.variables.values()}
    assert dims["before"] == -1
    assert [dims[f"x_{t}"] for t in range(9)] == [-2, -3, -4] * 3
    # The last steps of the loop are in sight of what follows.
    assert dims["after"] not in {-1, dims["x_8"], dims["x_7"]}


def test_a_model_puts_its_sites_to_the_left_of_the_guides():
    enumeration = Enumeration()
    site = lambda name: sample(name, Bernoulli(0.3), infer=PARALLEL)
    traced(lambda: site("a"), enumeration)
    traced(lambda: site("b"), enumeration)
    assert [v.dim for v in enumeration.variables.values()] == [-1, -2]


def test_draws_take_the_place_of_values():
    enumeration = Enumeration()
    infer = {**PARALLEL, "num_samples": 5}
    found = traced(lambda: sample("a", Normal(0.0, 1.0), infer=infer), enumeration)
    assert tuple(found["a"].value.shape) == (5,)
    assert enumeration.variables[0].sampled and enumeration.variables[0].size == 5


def test_a_plate_at_the_dims_of_variables_asks_for_room():
    def model():
        with plate("rows", 2):
            sample("a", Bernoulli(0.3))

    with pytest.raises(DeeperPlates):
        traced(model, Enumeration(-1))


def test_a_wrapped_model_starts_anew_at_each_call():
    model = enumerate_sites(lambda: sample("a", Bernoulli(0.3), infer=PARALLEL))
    assert [tuple(model().shape) for _ in range(2)] == [(2,), (2,)]


def test_steps_of_a_chain_share_their_values():
    def model():
        for t in markov(range(7)):
            sample(f"x_{t}", Bernoulli(0.3), infer=PARALLEL)

    found = traced(model, Enumeration())
    assert found["x_0"].value is found["x_3"].value is found["x_6"].value
    assert not found["x_0"].value.numpy().flags.writeable
