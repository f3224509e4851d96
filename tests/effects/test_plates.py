"""Plates: placement, expansion, subsampling, labels, and their errors."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from probtorch.distributions.normal import HalfNormal, Normal
from probtorch.effects.handlers import block, replay, scale, seed, trace
from probtorch.effects.placing import replicate
from probtorch.effects.plate_rows import subsample
from probtorch.effects.plates import EmptyPlateWarning, plate, plate_stack
from probtorch.effects.primitives import deterministic, factor, param, sample
from probtorch.effects.runtime import STATE
from probtorch.effects.trace import plate_info
from probtorch.errors import ArgumentError, ModelError, ShapeError
from probtorch.factories import zeros
from probtorch.tensor import tensor

STANDARD = Normal(0.0, 1.0)


# ------------------------------------------------------------------------------ placement


def test_plate_expands_what_is_inside():
    with plate("a", 3) as rows:
        x = sample("x", STANDARD)
    assert rows.tolist() == [0, 1, 2]
    assert x.shape == (3,)
    assert len(set(x.tolist())) == 3


def test_nested_plates_stack_up_to_the_left():
    with plate("a", 3):
        with plate("b", 2):
            assert sample("x", STANDARD).shape == (2, 3)
        assert sample("y", STANDARD).shape == (3,)
    assert sample("z", STANDARD).shape == ()


def test_plates_side_by_side_share_a_dim():
    a, b = plate("a", 3), plate("b", 2)
    with a:
        assert sample("x", STANDARD).shape == (3,)
    with b:
        assert sample("y", STANDARD).shape == (2,)
    assert a.dim == b.dim == -1


def test_plate_keeps_its_dim_when_entered_again():
    outer, inner = plate("outer", 3), plate("inner", 2)
    with outer, inner:
        pass
    with inner:
        assert sample("x", STANDARD).shape == (2, 1)


def test_explicit_dim_leaves_room_to_the_right():
    with plate("a", 3, dim=-2):
        assert sample("x", STANDARD).shape == (3, 1)
        with plate("b", 4):
            assert sample("y", STANDARD).shape == (3, 4)


def test_parameters_broadcast_with_the_plate():
    with plate("a", 3, dim=-2), plate("b", 4):
        assert sample("x", Normal(np.zeros(4), 1.0)).shape == (3, 4)
        assert sample("y", Normal(np.zeros((3, 1)), 1.0)).shape == (3, 4)


def test_event_dims_stay_on_the_right():
    with plate("a", 3):
        x = sample("x", Normal(np.zeros(2), 1.0).to_event(1))
    assert x.shape == (3, 2)


def test_plate_stack_spans_a_batch_shape():
    with plate_stack("p", (4, 3, 2)):
        assert sample("x", STANDARD).shape == (4, 3, 2)
    with plate_stack("p", (3, 2), rightmost_dim=-2):
        assert sample("x", STANDARD).shape == (3, 2, 1)


def test_block_takes_no_site_out_of_its_plate():
    with plate("a", 3), block():
        assert sample("x", STANDARD).shape == (3,)


def test_sequential_plate_gives_ints_and_no_dim():
    with trace() as tr:
        for i in plate("a", 3):
            assert sample(f"x_{i}", STANDARD).shape == ()
    assert [type(f.index) for f in tr["x_1"].plates] == [int]
    assert tr["x_2"].plates[0].counter == 2 and not tr["x_2"].plates[0].vectorized


def test_sequential_and_vectorised_plates_have_the_same_density():
    y = np.array([0.3, -2.0, 1.0])

    def vectorised():
        with plate("data", 3):
            sample("y", STANDARD, obs=y)

    def sequential():
        for i in plate("data", 3):
            sample(f"y_{i}", STANDARD, obs=y[i])

    want = stats.norm.logpdf(y).sum()
    for model in (vectorised, sequential):
        got = trace(model).get_trace().log_prob_sum().item()
        assert math.isclose(got, want, rel_tol=1e-14)


def test_leaving_a_sequential_plate_early_leaves_no_trace_of_it():
    for _ in plate("a", 3):
        break
    assert STATE.plates.frames == ()


def test_error_in_a_sequential_plate_leaves_no_trace_of_it():
    def model():
        for _ in plate("b", 3):
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        model()
    assert STATE.plates.frames == ()


def test_plate_without_rows_contributes_nothing():
    def model():
        sample("x", STANDARD, obs=1.0)
        with plate("data", 0):
            sample("y", STANDARD, obs=np.zeros(0))

    with pytest.warns(EmptyPlateWarning, match="plate 'data' has no rows"):
        got = trace(model).get_trace().log_prob_sum().item()
    assert math.isclose(got, stats.norm.logpdf(1.0), rel_tol=1e-14)


# ------------------------------------------------------------------------------ subsampling


def test_subsample_is_random_rows_without_replacement_scaled_up():
    with seed(rng_seed=0), trace() as tr, plate("data", 10, subsample_size=4) as rows:
        sample("y", STANDARD)
    drawn = rows.tolist()
    assert len(set(drawn)) == 4 and set(drawn) <= set(range(10))
    assert tr["y"].scale == 2.5 and tr["y"]["value"].shape == (4,)


def test_subsample_follows_the_seed():
    def rows(rng_seed):
        with seed(rng_seed=rng_seed), plate("data", 100, subsample_size=5) as rows:
            return rows.tolist()

    assert rows(1) == rows(1) != rows(2)


def test_every_row_is_drawn_equally_often():
    # 3000 subsamples of 2 of 5 rows, fixed seed: each count is binomial(3000, 0.4) with standard
    # deviation 26.8; five standard deviations give a false alarm rate below 3e-6.
    counts = np.zeros(5)
    with seed(rng_seed=4):
        for _ in range(3000):
            with plate("data", 5, subsample_size=2) as rows:
                counts[rows.numpy()] += 1
    assert counts.sum() == 6000
    assert np.all(np.abs(counts - 1200) < 5 * 26.8)


def test_subsampled_density_is_unbiased():
    y = np.array([0.3, -2.0, 1.0, 4.0, 0.0])

    def model(rows):
        with plate("data", 5, subsample=rows) as rows:
            sample("y", STANDARD, obs=y[rows.numpy()])

    subsets = [list(rows) for rows in itertools.combinations(range(5), 2)]
    mean = np.mean([trace(model).get_trace(rows).log_prob_sum().item() for rows in subsets])
    assert math.isclose(mean, stats.norm.logpdf(y).sum(), rel_tol=1e-13)


def test_scales_of_nested_subsampling_plates_multiply():
    with trace() as tr, plate("a", 10, subsample_size=5), plate("b", 9, subsample_size=3):
        with scale(scale=2.0):
            sample("x", STANDARD)
    assert tr["x"].scale == 12.0


def test_subsampling_loop_is_scaled_too():
    with trace() as tr:
        for i in plate("a", 6, subsample=[4, 2]):
            sample(f"x_{i}", STANDARD)
    assert list(tr) == ["a", "x_4", "x_2"] and tr["x_4"].scale == 3.0


def test_replay_keeps_the_subsample():
    def model():
        with plate("data", 50, subsample_size=5) as rows:
            return rows, sample("x", STANDARD)

    tr = trace(seed(model, rng_seed=0)).get_trace()
    rows, x = replay(model, tr)()
    assert rows.tolist() == tr["data"]["value"].tolist()
    assert x is tr["x"]["value"]


def test_subsample_takes_the_rows_of_data():
    data = np.arange(12.0).reshape(4, 3)
    with plate("a", 4, subsample=[2, 0]):
        assert subsample(data, event_dim=1).tolist() == data[[2, 0]].tolist()
        assert subsample(data[:, 0], event_dim=0).tolist() == [6.0, 0.0]
        assert subsample(data[[2, 0]], event_dim=1).tolist() == data[[2, 0]].tolist()


def test_subsample_passes_gradients_to_the_rows_taken():
    data = tensor([1.0, 2.0, 3.0], requires_grad=True)
    with plate("a", 3, subsample=[2, 0]):
        subsample(data, event_dim=0).sum().backward()
    assert data.grad.tolist() == [1.0, 0.0, 1.0]


def test_subsample_of_data_of_another_size_is_refused():
    with plate("a", 4, subsample=[2, 0]):
        with pytest.raises(
            ShapeError, match=r"4 rows[\s\S]*plate 'a'[\s\S]*\(7,\)[\s\S]*event_dim"
        ):
            subsample(np.zeros(7), event_dim=0)


# ------------------------------------------------------------------------------ labels


def test_plate_info_names_dims_and_carries_labels():
    def model():
        tau = sample("tau", HalfNormal(1.0))
        with plate("year", 2, dim=-2):
            with plate("school", coords=["A", "B", "C"]):
                eta = sample("eta", STANDARD)
                deterministic("theta", eta * tau)
            sample("level", STANDARD)
        deterministic("total", eta.sum())
        param("w", np.zeros(3))

    info = plate_info(trace(model).get_trace())
    assert info.dims == {
        "tau": (),
        "eta": ("year", "school"),
        "theta": ("year", "school"),
        "level": ("year", None),
        "total": (),
        "w": (None,),
    }
    assert info.coords == {"school": ("A", "B", "C")}
    assert info.sizes == {"year": 2, "school": 3}


def test_subsample_has_no_labels():
    with trace() as tr, plate("a", coords=list("abcde"), subsample_size=2):
        sample("x", STANDARD)
    assert plate_info(tr).coords == {} and plate_info(tr).sizes == {"a": 2}


# ------------------------------------------------------------------------------ without a size


@pytest.mark.parametrize("size", [None, 5], ids=["without", "with"])
def test_a_plate_without_a_size_takes_that_of_the_first_statement(size):
    def model():
        with plate("outer", 3, dim=-2), plate("data", size), plate("inner", 2, dim=-3):
            z = sample("z", Normal(zeros(5), 1.0))
            factor("f", 0.0 * z)
        with plate("data", size):
            sample("y", Normal(zeros(5, 2), 1.0).to_event(1))

    run = trace(model).get_trace()
    frames = {name: [(p.name, p.size, p.dim) for p in s.plates] for name, s in run.nodes.items()}
    around = [("outer", 3, -2), ("data", 5, -1), ("inner", 2, -3)]
    assert frames["z"] == frames["f"] == around and frames["y"] == [("data", 5, -1)]
    assert run["z"].value.shape == (2, 3, 5) and run["y"].value.shape == (5, 2)
    assert STATE.plates.frames == STATE.plates.waiting == ()


def test_data_say_the_size_of_a_plate_that_has_none():
    with trace() as run, plate("d"):
        sample("x", Normal(0.0, 1.0), obs=zeros(4))
    assert run["x"].fn.batch_shape == (4,) and run["x"].plates[0].size == 4


def test_rows_of_a_plate_without_a_size_stay_the_same():
    with plate("d"):
        sample("x", Normal(zeros(4), 1.0))
        with pytest.raises(ShapeError, match="4 vs 3"):
            sample("y", Normal(zeros(3), 1.0))
    assert STATE.plates.frames == STATE.plates.waiting == ()
    with plate("a"), pytest.raises(ModelError, match="'a' and 'b' collide"), plate("b", 4, dim=-1):
        pass
    with plate("a"), pytest.raises(ModelError, match="inside itself"), plate("a", 4):
        pass


# ------------------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    "make, parts",
    [
        (lambda: list(plate("d")), ("a size", "neither", "len(data)")),
        (lambda: plate("d", subsample=[1]), ("a size", "only a subsample", "len(data)")),
        (lambda: plate("d", 2.5), ("integer", "2.5", "size=len")),
        (lambda: plate("d", -1), ("integer >= 0", "-1", "size=len")),
        (lambda: plate("d", 3, coords="ab"), ("3 of them", "2 coords", "leave size out")),
        (lambda: plate("d", 5, 10), ("subsample_size=10 exceeds size=5", "10 rows", "smaller")),
        (lambda: plate("d", 5, 3, [1, 2]), ("subsample_size=3", "2 rows", "leave subsample_size")),
        (lambda: plate("d", 5, subsample=[[1]]), ("1-d", "(1, 1)", "flatten")),
        (lambda: plate("d", 5, dim=0), ("negative dim", "dim=0", "dim=-1")),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(make, parts):
    with pytest.raises(ArgumentError) as error:
        make()
    assert "plate 'd'" in str(error.value)
    for part in parts:
        assert part in str(error.value)
    assert error.value.location.startswith(__file__)


def test_collision_names_both_plates_and_a_free_dim():
    with plate("a", 3), pytest.raises(ModelError) as error:
        with plate("b", 4, dim=-1):
            pass
    text = str(error.value)
    assert "plates 'a' and 'b' collide at dim=-1" in text
    assert "dim=-2" in text and "expected" in text and error.value.location.startswith(__file__)
    assert STATE.plates.frames == ()


def test_plate_inside_itself_is_refused():
    rows = plate("a", 3)
    with rows, pytest.raises(ModelError, match=r"plate 'a' is entered inside itself[\s\S]*rename"):
        rows.__enter__()


@pytest.mark.parametrize("shape, count", [((3, 4), 1), ((3, 4, 5), 2)])
def test_forgotten_event_dims_are_recognised(shape, count):
    with plate("a", 3), pytest.raises(ShapeError) as error:
        sample("x", Normal(np.zeros(shape), 1.0))
    assert f".to_event({count})" in error.value.fix
    with plate("a", 3):
        assert sample("x", Normal(np.zeros(shape), 1.0).to_event(count)).shape == shape


@pytest.mark.parametrize("cut", [False, True])
def test_batch_that_does_not_fit_the_plate_is_refused(cut):
    rows = plate("a", 9, subsample_size=3) if cut else plate("a", 3)
    with rows, pytest.raises(ShapeError) as error:
        sample("x", Normal(np.zeros(4), 1.0))
    text = str(error.value)
    assert "Shape mismatch inside plate('a') at site 'x' dim -1, 3 vs 4" in text
    assert "(4,)" in text and ("works on 3 of 9 rows" if cut else "size 4") in text
    assert error.value.location.startswith(__file__)


def test_one_name_for_plates_of_two_sizes_is_refused():
    def model():
        with plate("a", 3):
            sample("x", STANDARD)
        with plate("a", 4):
            sample("y", STANDARD)

    with pytest.raises(ModelError, match=r"plate 'a'[\s\S]*size 3[\s\S]*size 4[\s\S]*names"):
        trace(model).get_trace()


def test_plate_can_be_entered_twice_in_one_model():
    def model():
        for name in "xy":
            with plate("a", 3):
                sample(name, STANDARD)

    assert list(trace(model).get_trace()) == ["a", "x", "y"]


def test_replicate_draws_independent_copies():
    with replicate(size=5, dim=-2), trace() as tr, seed(rng_seed=0), plate("a", 3):
        x = sample("x", STANDARD)
    assert x.shape == (5, 3) and len(np.unique(x.numpy())) == 15
    assert tr["x"].compute_log_prob().shape == (5, 3)
