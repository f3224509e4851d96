"""Names that are counted and scoped; those expected are Pyro 1.9's for the same programs."""

import threading

import pytest

import probtorch
from probtorch import deterministic, factor, handlers, param, plate
from probtorch import sample as stated
from probtorch.contrib.autoname import autoname, name_count, named, sample, scope
from probtorch.distributions import Bernoulli, Normal
from probtorch.errors import ArgumentError, ModelError
from probtorch.infer import MCMC, NUTS

D = Bernoulli(0.5)


def names(model):
    return list(handlers.trace(model).get_trace().nodes)


@autoname
def draw():
    return sample(D)


@autoname(name="model")
def several():
    for _ in autoname(range(2), name="time"):
        sample(D)
        draw()
    sample("time", D)
    sample("x", D)
    sample(D, name="x")


def test_functions_loops_and_blocks_are_scopes():
    turns = ["time/Bernoulli", "time/draw/Bernoulli", "time__1/Bernoulli", "time__1/draw/Bernoulli"]
    expected = [f"model/{name}" for name in [*turns, "time2", "x", "x1"]]
    assert names(several) == expected == names(several)

    def block():
        with autoname(name="prefix"):
            draw()
            draw()
            sample(Normal(0.0, 1.0))
        sample("free", D)
        draw()

    expected = ["prefix/draw/Bernoulli", "prefix/draw__1/Bernoulli", "prefix/Normal", "free"]
    assert names(block) == [*expected, "draw/Bernoulli"]


def test_a_loop_over_a_plate_has_its_name():
    def rows():
        for i in autoname(plate("data", 2)):
            sample(D)
            stated(f"raw{i}", D)

    expected = ["data/Bernoulli", "raw0", "data__1/Bernoulli", "raw1"]
    assert names(rows) == ["data", *expected]
    assert names(autoname(rows)) == ["data", "rows/data/Bernoulli", "raw0"] + [
        "rows/data__1/Bernoulli",
        "raw1",
    ]
    with pytest.raises(ArgumentError, match="a name, or a plate"):
        autoname(range(3))
    with pytest.raises(ArgumentError, match="a function or an iterable"):
        autoname(3)
    with pytest.raises(ArgumentError, match="a distribution, or a name"):
        sample()


def test_names_that_come_again_are_counted():
    @name_count
    def counted():
        for _ in range(3):
            stated("x", D)
        for name in ("x__1", "y__5", "y__5"):
            stated(name, D)

    assert names(counted) == ["x", "x__1", "x__2", "x__3", "y__5", "y__6"] == names(counted)


def test_scopes_that_come_again_are_counted():
    @name_count
    def model():
        with scope(prefix="a"):
            for _ in range(2):
                stated("x", D)
                with scope(prefix="b"):
                    stated("x", D)
        with scope(prefix="a"):
            stated("x", D)
        with scope(prefix="a", inner=True):
            stated("x", D)

    assert names(model) == ["a/x", "a/b/x", "a/x__1", "a/b__1/x", "a__1/x", "a/x__2"]


def test_scopes_are_of_sites_and_not_of_parameters():
    @scope(prefix="b")
    def inner():
        with scope(prefix="a"):
            stated("x", D)
            deterministic("d", probtorch.tensor(1.0))
            factor("f", probtorch.tensor(1.0))
            param("p", probtorch.tensor(1.0))

    @scope
    def outer():
        stated("x", D)
        inner()

    assert names(inner) == ["b/a/x", "b/a/d", "b/a/f", "p"]
    assert names(outer) == ["outer/x", "outer/b/a/x", "outer/b/a/d", "outer/b/a/f", "p"]
    with pytest.raises(ArgumentError, match="a prefix"), scope():
        pass


def test_each_thread_counts_for_itself():
    found = []
    threads = [threading.Thread(target=lambda: found.append(names(several))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [names(several)] * 4


def test_a_named_model_is_sampled():
    @autoname
    def model():
        loc = sample(Normal(0.0, 1.0))
        sample("y", Normal(loc, 1.0), obs=probtorch.tensor(2.0))

    mcmc = MCMC(NUTS(model), num_samples=400, num_warmup=200, progress_bar=False, seed=0)
    mcmc.run()
    # The posterior is Normal(1, sqrt(0.5)); about 150 effective draws, five standard errors.
    assert float(mcmc.get_samples()["model/Normal"].mean()) == pytest.approx(1.0, abs=0.3)


def test_places_are_names():
    def model():
        state = named.Object("state")
        state.loc.param_(probtorch.zeros(1))
        z = state.z.sample_(D)
        assert state.z is z
        state.xs, state.ys = named.List(), named.Dict()
        for _ in range(2):
            state.xs.add().sample_(D)
        state.ys["foo"].sample_(D)
        state.a.b.sample_(D, obs=probtorch.tensor(1.0))
        state.constant = 3
        assert state.constant == 3 and len(state.xs) == 2 and state.ys["foo"] in (0.0, 1.0)

    assert names(model) == [
        *("state.loc", "state.z", "state.xs[0]", "state.xs[1]", "state.ys['foo']", "state.a.b")
    ]


def test_places_are_written_once():
    state = named.Object("state")
    state.x = 1
    state.xs = named.List()
    place = state.xs.add()
    wrong = [
        (lambda: setattr(state, "x", 2), "no value yet"),
        (lambda: setattr(state, "ys", state.xs), "without name"),
        (lambda: named.List().add(), "a container with a name"),
        (lambda: named.Dict()["a"], "a container with a name"),
        (lambda: state.xs.__setitem__(0, named.Object("o")), "a List or a Dict"),
        (lambda: named.Object("root").sample_(D), "no value yet"),
    ]
    for write, message in wrong:
        with pytest.raises(ModelError, match=message):
            write()
    state.xs[0] = 5
    assert state.xs == [5] and isinstance(place, named.Object)
    with pytest.raises(ModelError, match=r"named state.xs\[0\]"):
        state.xs[0] = 6
