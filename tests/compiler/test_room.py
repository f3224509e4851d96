"""Functions that meet ever more shapes: versions are bounded, told of, and the right ones stay."""

import warnings

import numpy as np
import pytest

import probtorch
from probtorch.compiler.calls.room import MAX_SHAPES, Room, Shapes
from probtorch.compiler.paths import CompileWarning
from probtorch.infer import SVI, AutoNormal, Trace_ELBO
from probtorch.optim import Adam

MOST = 4


@pytest.fixture
def double():
    """A compiled function with room for `MOST` shapes."""

    @probtorch.compile
    def double(x):
        return (x * 2.0).cumsum(0)

    double._versions.room.most = MOST
    return double


def call(fn, n):
    """Call with a vector of n numbers; returns whether native code answered."""
    out = fn(probtorch.ones(n))
    assert out.tolist() == [2.0 * (i + 1) for i in range(n)]
    return fn.last is not None


def test_shapes_that_never_come_back_run_eagerly(double):
    for n in range(1, 40):
        assert not call(double, n)
    assert len(double.paths.versions) == 1
    assert [call(double, 1) for _ in range(2)] == [True, True]


def test_a_shape_among_others_is_compiled_when_it_comes_back(double):
    native = [[call(double, n) for n in (3, 3, 5, 5, 5, 3)] for _ in range(2)]
    assert native == [[False, True, False, False, True, True], [True] * 6]


def test_explain_tells_of_shapes_that_did_not_come_back(double):
    for n in (3, 4, 5, 5):
        call(double, n)
    text, page = double.explain(), double.explain(format="html")
    said = "1 call of new shapes ran eagerly: shapes among others are compiled when met again"
    assert "2 compiled paths" in text and said in text and said in page
    call(double, 4)
    assert "ran eagerly" not in double.explain()


def test_other_types_and_numbers_are_compiled_at_once():
    scaled = probtorch.compile(lambda x, k: x * k)
    for x, k in ((np.ones(3), 2), (np.ones(3), 3), (np.ones(3, np.float32), 2)):
        before = len(scaled.paths)
        assert scaled(probtorch.tensor(x), k).tolist() == [k] * 3
        assert len(scaled.paths) == before + 1


def test_a_function_that_is_compiled_whole_is_so_for_every_shape():
    double = probtorch.compile(lambda x: x * 2.0, fullgraph=True)
    for n in (1, 2, 3):
        double(probtorch.ones(n))
    assert len(double.paths) == 3


def test_shapes_that_ended_in_an_error_are_no_shapes_among_others():
    first = probtorch.compile(lambda x: x[:, 0] * 2.0)
    with pytest.raises(IndexError):
        first(probtorch.ones(3))
    first(probtorch.ones(3, 2))
    assert len(first.paths) == 1


def test_draws_are_those_of_eager_calls_whichever_shapes_are_new():
    def noisy(x):
        return x + probtorch.randn(x.shape, dtype=x.dtype)

    sizes, found = [3, 5, 3, 5, 5, 4, 3, 4], []
    for fn in (noisy, probtorch.compile(noisy)):
        probtorch.manual_seed(0)
        found.append([fn(probtorch.zeros(n)).tolist() for n in sizes])
    assert found[0] == found[1]


def test_a_shape_on_the_tape_is_compiled_when_it_comes_back():
    square = probtorch.compile(lambda x: (x * x).sum())
    kept = []
    for n in (2, 3, 3, 3, 2):
        x = probtorch.ones(n).requires_grad_()
        square(x).backward()
        assert x.grad.tolist() == [2.0] * n
        kept.append(len(square._taped))
    assert kept == [1, 1, 2, 2, 2]


def test_shapes_that_are_known_are_bounded():
    shapes = Shapes()
    assert not shapes.is_new("rest", 0)
    for n in range(1, 5000):
        assert shapes.is_new("rest", n)
        assert shapes.count() <= 8 * MAX_SHAPES + 1
    assert not shapes.is_new("rest", 4999)


@pytest.mark.filterwarnings("ignore::probtorch.compiler.paths.CompileWarning")
def test_of_shapes_that_come_in_turn_as_many_as_there_is_room_for_stay_compiled(double):
    rounds = [[call(double, n) for n in range(1, 8)] for _ in range(6)]
    assert rounds[-1] == rounds[-2] == [True] * MOST + [False] * 3


@pytest.mark.filterwarnings("ignore::probtorch.compiler.paths.CompileWarning")
def test_shapes_of_another_task_replace_the_old_ones(double):
    for first in (1, 11, 21):
        for _ in range(5):
            native = [call(double, n) for n in range(first, first + MOST)]
        assert all(native)
    assert len(double.paths.versions) == MOST


@pytest.mark.filterwarnings("ignore::probtorch.compiler.paths.CompileWarning")
def test_a_shape_that_left_and_came_back_often_is_no_change_of_numbers(double):
    for _ in range(12):
        for first in (1, 11):
            for _ in range(4):
                native = [call(double, n) for n in range(first, first + MOST)]
            assert all(native)


@pytest.mark.filterwarnings("ignore::probtorch.compiler.paths.CompileWarning")
def test_versions_on_the_tape_are_bounded_too():
    square = probtorch.compile(lambda x: (x * x).sum())
    square._versions.room.most = MOST
    for n in range(1, 12):
        for _ in range(3):
            x = probtorch.ones(n).requires_grad_()
            square(x).backward()
            assert x.grad.tolist() == [2.0] * n
        assert len({*square._taped, *square.paths.versions}) <= MOST


def test_it_is_told_of_once_with_the_shape_and_what_to_do(double):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in range(1, 12):
            call(double, n), call(double, n)
    (warning,) = caught
    assert warning.category is CompileWarning
    text = str(warning.message)
    assert f"double has met more than {MOST} shapes" in text
    assert "(5,)" in text and "others run eagerly" in text and "drop_last=True" in text
    assert warning.filename == __file__
    assert f"new after {MOST} others" in double.explain()
    assert f"{MOST} compiled paths" in double.explain()


def test_there_is_room_for_the_lengths_of_ordinary_sequences():
    assert probtorch.compile(lambda x: x)._versions.room.most == MAX_SHAPES >= 100


def test_a_room_forgets_what_it_met_long_ago():
    room = Room(2)
    for n in range(1000):
        room.met(n)
    assert len(room._calls) <= 16


# ------------------------------------------------------------------------------------------ SVI


def steps(most, sizes):
    """Losses of SVI on data of these sizes, and how many versions there are in the end."""

    def model(y):
        loc = probtorch.sample("loc", probtorch.distributions.Normal(0.0, 1.0))
        with probtorch.plate("data", len(y)):
            probtorch.sample("y", probtorch.distributions.Normal(loc, 1.0), obs=y)

    probtorch.manual_seed(0)
    svi = SVI(model, AutoNormal(model), Adam({"lr": 0.05}), Trace_ELBO())
    rng, losses = np.random.default_rng(0), []
    for n in sizes:
        losses.append(svi.step(probtorch.tensor(rng.normal(size=n))))
        function = svi.compiled._function
        if function is not None:
            function._versions.room.most = most
    return losses, len(function.paths.versions)


def test_steps_of_svi_are_native_for_every_shape_and_versions_are_bounded():
    sizes = [3 + k % 6 for k in range(18)]
    with pytest.warns(CompileWarning, match=r"SVI\.step has met more than 4 shapes") as caught:
        few, kept = steps(MOST, sizes)
    assert len(caught) == 1
    assert kept == MOST
    many, kept = steps(MAX_SHAPES, sizes)
    assert kept == 6
    # What is compiled is no matter of history: a run that is resumed has the same numbers.
    assert few == many
