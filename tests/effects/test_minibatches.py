"""Plates with loaders outside of optimisation, and what they refuse."""

import gc
import weakref

import numpy as np
import pytest
from scipy import stats

import probtorch
import probtorch.distributions as dist
from probtorch.effects import handlers, minibatches, param, plate, sample, subsample
from probtorch.effects.minibatches import AllRows, Feed, draw_rows
from probtorch.errors import ArgumentError, ModelError, ShapeError
from probtorch.testing import assert_close
from probtorch.utils.data import (
    DataLoader,
    IterableDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

Y = np.arange(10.0)
DATA = TensorDataset(probtorch.tensor(Y))


class Stream(IterableDataset):
    def __iter__(self):
        return iter(Y)


def loader_of(**options):
    return DataLoader(DATA, **({"batch_size": 4} | options))


# -------------------------------------------------------------------------------------- batches


def test_a_plate_gives_the_batch_and_knows_its_rows():
    p = plate("data", loader_of())
    with p as (y,):
        z = sample("z", dist.Normal(0.0, 1.0))
    assert y.tolist() == p.indices.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert (p.size, p.subsample_size, len(p), p.full_size) == (4, 4, 4, 10)
    assert z.shape == (4,)


def test_each_run_outside_of_inference_takes_the_next_batch():
    loader = loader_of()
    found = [plate("data", loader).indices.tolist() for _ in range(4)]
    assert found == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], [0, 1, 2, 3]]


def test_density_inside_is_scaled_to_all_rows():
    def model():
        with plate("data", loader_of()) as (y,):
            sample("y", dist.Normal(0.0, 1.0), obs=y)

    tr = handlers.trace(model).get_trace()
    expected = -0.5 * (Y[:4] ** 2) - 0.5 * np.log(2 * np.pi)
    assert_close(tr.log_prob_sum(), 2.5 * expected.sum(), rtol=1e-6)
    assert tr["data"].location.rpartition(":")[0] == __file__


def test_a_trace_is_replayed_on_its_batch():
    loader, seen = loader_of(), []

    def model():
        with plate("data", loader) as (y,):
            seen.append(y.tolist())
            sample("y", dist.Normal(0.0, 1.0), obs=y)

    tr = handlers.trace(model).get_trace()
    handlers.replay(model, tr)()
    assert seen[0] == seen[1]


def test_full_data_are_cut_to_the_rows_of_the_batch():
    loader = loader_of(shuffle=True, generator=probtorch.Generator(0))
    table = probtorch.arange(10.0) * 10.0
    with plate("data", loader) as (y,):
        assert_close(subsample(table, event_dim=0), 10.0 * y)
        assert_close(param("table", table, event_dim=0), 10.0 * y)


def test_a_feed_keeps_its_batch_until_a_step_ends():
    loader, feed = loader_of(), Feed()
    with feed.activate():
        first, again = (plate("a", loader).indices.tolist() for _ in range(2))
        feed.end()
        other = plate("b", loader).indices.tolist()
    assert first == again == [0, 1, 2, 3]
    assert other == [4, 5, 6, 7]


def test_a_feed_lets_go_of_loaders_that_are_done_with():
    feed, data = Feed(), TensorDataset(probtorch.tensor(Y))
    gone = weakref.ref(data)
    with feed.activate():
        plate("data", DataLoader(data, batch_size=4))
        feed.end()
        del data
        plate("data", loader_of())
        feed.begin()
    gc.collect()
    assert gone() is None
    assert feed.state_dict() == {}


def test_all_rows_are_in_order_and_loaded_once():
    loads = []

    class Watched(TensorDataset):
        def take(self, rows):
            loads.append(len(rows))
            return super().take(rows)

        def __getitem__(self, row):
            loads.append(1)
            return super().__getitem__(row)

    watched = Watched(probtorch.tensor(Y))
    loader = DataLoader(watched, batch_size=4, shuffle=True)
    with AllRows().activate():
        for _ in range(2):
            with plate("data", loader) as (y,):
                assert y.tolist() == Y.tolist()
    assert sum(loads) == 10
    assert loader.epoch is None


def test_all_rows_of_a_subsampling_plate_are_as_without_a_subsample():
    def model():
        with plate("data", 10, subsample_size=3, coords=range(10)) as rows:
            return sample("z", dist.Normal(probtorch.arange(10.0)[rows], 1.0))

    with AllRows().activate():
        tr = handlers.trace(model).get_trace()
    frame = tr["z"].plates[0]
    assert tr.returned.shape == (10,)
    assert (frame.size, frame.scale, frame.indices) == (10, 1.0, None)
    assert probtorch.effects.plate_info(tr).coords == {"data": tuple(range(10))}


def test_a_subset_of_a_dataset_has_the_rows_of_the_subset():
    loader = DataLoader(Subset(DATA, [1, 3, 5, 7, 9]), batch_size=2)
    p = plate("data", loader)
    assert p.full_size == 5
    assert p.indices.tolist() == [0, 1]


# -------------------------------------------------------------------------------------- streams


def test_a_stream_needs_the_number_of_its_rows():
    loader = DataLoader(Stream(), batch_size=4)
    with pytest.raises(ArgumentError, match="plate 'data'") as caught:
        plate("data", loader)
    assert "plate('data', count, loader=loader)" in caught.value.fix
    p = plate("data", 10, loader=loader)
    with p as y:
        assert y.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert p.size == 4
    with pytest.raises(ModelError, match="indices"):
        _ = p.indices


def test_rows_of_a_stream_do_not_index_data():
    with plate("data", 10, loader=DataLoader(Stream(), batch_size=4)):
        with pytest.raises(ShapeError, match="stream"):
            subsample(probtorch.tensor(Y), event_dim=0)


def test_a_stream_cannot_be_had_whole():
    with AllRows().activate(), pytest.raises(ModelError, match="all rows of a stream"):
        plate("data", 10, loader=DataLoader(Stream(), batch_size=4))


def test_a_batch_of_a_stream_needs_a_tensor_with_rows():
    loader = DataLoader(Stream(), batch_size=4, collate_fn=lambda samples: "text")
    with pytest.raises(ShapeError, match="batch of a stream"):
        plate("data", 10, loader=loader)


# -------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("sampler", "fix"),
    [
        (WeightedRandomSampler([1.0] * 10, 10), "handlers.scale"),
        (SubsetRandomSampler([1, 2, 3, 4]), "Subset"),
    ],
    ids=["weighted", "subset"],
)
def test_orders_that_would_bias_sums_are_refused(sampler, fix):
    with pytest.raises(ArgumentError, match=type(sampler).__name__) as caught:
        plate("data", loader_of(sampler=sampler))
    assert fix in caught.value.fix


def test_single_samples_are_refused():
    with pytest.raises(ArgumentError, match="batch_size=None"):
        plate("data", loader_of(batch_size=None))


@pytest.mark.parametrize("options", [{"subsample_size": 2}, {"subsample": [1, 2]}], ids=str)
def test_other_subsamples_beside_a_loader_are_refused(options):
    with pytest.raises(ArgumentError, match=r"got: +subsample"):
        plate("data", loader_of(), **options)


def test_a_plate_with_a_loader_is_no_loop():
    with pytest.raises(ModelError, match="is no loop"):
        list(plate("data", loader_of()))


def test_a_loader_without_batches_is_refused():
    with pytest.raises(ArgumentError, match="at least one batch"):
        plate("data", loader_of(batch_size=20, drop_last=True))


def test_a_collate_function_that_drops_rows_is_refused():
    def drop(samples):
        return probtorch.stack([y for (y,) in samples if y > 1.0])

    with pytest.raises(ShapeError, match="batch of 4 rows") as caught:
        plate("data", loader_of(collate_fn=drop))
    assert caught.value.got == "2 rows"


def test_labels_that_are_not_one_per_row_are_refused():
    with pytest.raises(ArgumentError, match="one label per row, 10 of them"):
        plate("data", loader_of(), coords="abc")


def test_data_of_another_size_than_the_batch_are_refused():
    with pytest.raises(ShapeError, match="site 'y'") as caught:
        with plate("data", loader_of()):
            sample("y", dist.Normal(0.0, 1.0), obs=probtorch.tensor(Y))
    assert "works on 4 of 10 rows" in caught.value.fix


# ----------------------------------------------------------------------------- random subsamples


def test_few_rows_of_many_are_a_uniform_subset_in_random_order(monkeypatch):
    monkeypatch.setattr(minibatches, "FEW_ROWS", 0)
    generator = probtorch.Generator(4)
    counts = np.zeros((16, 16))
    for _ in range(6000):
        a, b = draw_rows(16, 2, generator).tolist()
        counts[a, b] += 1
    assert np.trace(counts) == 0
    pairs = counts[~np.eye(16, dtype=bool)]
    assert stats.chisquare(pairs).pvalue > 1e-3


def test_rows_that_are_drawn_twice_too_often_are_drawn_from_a_permutation(monkeypatch):
    monkeypatch.setattr(minibatches, "FEW_ROWS", 0)
    monkeypatch.setattr(
        minibatches,
        "randint",
        lambda low, high, size, generator: probtorch.zeros(*size, dtype=probtorch.int64),
    )
    rows = draw_rows(1000, 5, probtorch.Generator(0)).tolist()
    assert len(set(rows)) == 5


def test_recorded_rows_are_those_of_eager_runs():
    def rows(generator):
        return lambda: draw_rows(100_000, 20, generator)

    eager, native = rows(probtorch.Generator(3)), probtorch.compile(rows(probtorch.Generator(3)))
    for _ in range(4):
        found = native().tolist()
        assert found == eager().tolist()
        assert len(set(found)) == 20
    assert "1 compiled path" in native.explain()
