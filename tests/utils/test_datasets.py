"""Datasets, splits, samplers and collate rules."""

import collections

import numpy as np
import pytest

import probtorch
from probtorch.errors import ArgumentError, DTypeError, ShapeError, TensorIndexError
from probtorch.testing.compare import assert_close
from probtorch.utils.data import (
    BatchSampler,
    BucketBatchSampler,
    ChainDataset,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    default_convert,
    random_split,
)


class Numbers(Dataset):
    def __init__(self, *values):
        self.values = values

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        return self.values[index]


class Stream(IterableDataset):
    def __init__(self, *values):
        self.values = values

    def __iter__(self):
        return iter(self.values)

    def __len__(self):
        return len(self.values)


# ----------------------------------------------------------------------------------------- datasets


def test_tensor_dataset_slices_its_tensors():
    data = TensorDataset(probtorch.arange(6).reshape(3, 2), probtorch.arange(3) * 10)
    assert len(data) == 3
    row, number = data[1]
    assert row.tolist() == [2, 3]
    assert number.item() == 10


def test_batch_taken_at_once_is_the_collated_samples():
    data = TensorDataset(probtorch.randn(7, 2, 3), probtorch.arange(7))
    for indices in ([4], [0, 6, 2, 2], [-1, 3]):
        at_once, one_by_one = data.take(indices), default_collate([data[i] for i in indices])
        assert [type(x) for x in at_once] == [type(x) for x in one_by_one]
        for a, b in zip(at_once, one_by_one):
            assert_close(a, b, rtol=0, atol=0, check_dtype=True)


def test_tensor_dataset_of_unequal_tensors_is_refused():
    with pytest.raises(ShapeError, match="size mismatch between tensors"):
        TensorDataset(probtorch.ones(3), probtorch.ones(4))
    with pytest.raises(ShapeError, match="at least one tensor"):
        TensorDataset()
    with pytest.raises(DTypeError, match="ndarray as argument 1"):
        TensorDataset(probtorch.ones(3), np.ones(3))


def test_subset_renumbers():
    part = Subset(Numbers(*"abcdef"), [4, 0, 2])
    assert [part[i] for i in range(len(part))] == ["e", "a", "c"]
    assert part[[2, 0]] == ["c", "e"]
    assert Subset(part, [1])[0] == "a"


def test_subset_fetches_at_once_where_its_dataset_can():
    class Table(Numbers):
        calls = 0

        def __getitems__(self, indices):
            Table.calls += 1
            return [self.values[i] for i in indices]

    part = Subset(Table(*range(10, 20)), [9, 8, 7])
    assert part[[0, 2]] == [19, 17]
    assert Table.calls == 1


def test_concatenation_is_one_after_the_other():
    joined = Numbers(1, 2) + Numbers() + Numbers(3, 4, 5)
    assert isinstance(joined, ConcatDataset)
    assert [joined[i] for i in range(len(joined))] == [1, 2, 3, 4, 5]
    assert joined[-1] == 5
    assert joined[-5] == 1
    for index in (5, -6):
        with pytest.raises(TensorIndexError, match="from -5 to 4"):
            joined[index]


def test_stack_is_one_beside_the_other():
    letters, numbers = list("abcd"), TensorDataset(probtorch.arange(4))
    pairs = StackDataset(letters, numbers)
    assert len(pairs) == 4
    assert pairs[2] == ("c", (probtorch.tensor(2),))
    named = StackDataset(letter=letters, number=numbers)
    assert named[-1] == {"letter": "d", "number": (probtorch.tensor(3),)}
    (batch,) = DataLoader(named, batch_size=4)
    assert batch["letter"] == letters
    assert_close(batch["number"][0], np.arange(4))


def test_stack_fetches_at_once_where_its_datasets_can():
    asked = []

    class Many(list):
        def __getitems__(self, indices):
            asked.append(list(indices))
            return [self[i] for i in indices][: self.answers]

        answers = None

    many = Many([10, 20, 30])
    assert StackDataset(many, "abc").__getitems__([2, 0]) == [(30, "c"), (10, "a")]
    assert asked == [[2, 0]]
    Many.answers = 1
    with pytest.raises(ShapeError, match="__getitems__ of Many"):
        StackDataset(many, "abc").__getitems__([2, 0])


@pytest.mark.parametrize(
    "make, error, text",
    [
        (lambda: StackDataset(), ArgumentError, "at least one dataset"),
        (lambda: StackDataset([1], x=[1]), ArgumentError, "got:      both"),
        (lambda: StackDataset([1], [1, 2]), ShapeError, "lengths 1, 2"),
    ],
)
def test_stack_of_what_does_not_go_together_is_refused(make, error, text):
    with pytest.raises(error, match=text):
        make()


def test_chain_is_one_stream_after_the_other():
    chained = Stream(1, 2) + Stream(3)
    assert isinstance(chained, ChainDataset)
    assert list(chained) == list(chained) == [1, 2, 3]
    assert len(chained) == 3


def test_streams_and_numbered_samples_do_not_mix():
    with pytest.raises(DTypeError, match="use ChainDataset"):
        ConcatDataset([Stream(1)])
    with pytest.raises(DTypeError, match="use ConcatDataset"):
        ChainDataset([Numbers(1)])
    with pytest.raises(ArgumentError, match="empty iterable"):
        ConcatDataset([])


@pytest.mark.parametrize(
    "lengths, sizes",
    [([3, 7], [3, 7]), ([10, 0], [10, 0]), ([0.5, 0.5], [5, 5]), ([0.7, 0.2, 0.1], [7, 2, 1]),
     ([1 / 3, 1 / 3, 1 / 3], [4, 3, 3]), ([1.0], [10])],
)  # fmt: skip
def test_split_deals_every_sample_once(lengths, sizes):
    parts = random_split(Numbers(*range(10)), lengths, generator=probtorch.Generator(3))
    assert [len(p) for p in parts] == sizes
    dealt = [p[i] for p in parts for i in range(len(p))]
    assert sorted(dealt) == list(range(10))
    again = random_split(Numbers(*range(10)), lengths, generator=probtorch.Generator(3))
    assert [p.indices for p in parts] == [p.indices for p in again]


@pytest.mark.parametrize("lengths", [[3, 3], [0.5, 0.4], [11, -1], [1.5, -0.5], []])
def test_split_into_wrong_sizes_is_refused(lengths):
    with pytest.raises(ArgumentError, match="does not equal the length"):
        random_split(Numbers(*range(10)), lengths)


# ----------------------------------------------------------------------------------------- samplers


def rng():
    return probtorch.Generator(11)


RANDOM = {
    "random": lambda g: RandomSampler(range(50), generator=g),
    "replacement": lambda g: RandomSampler(range(50), replacement=True, generator=g),
    "subset": lambda g: SubsetRandomSampler(list(range(100, 150)), generator=g),
    "weighted": lambda g: WeightedRandomSampler(np.arange(50.0), 50, generator=g),
    "bucket": lambda g: BucketBatchSampler(list(range(50)), 2, window=5, generator=g),
    "batches": lambda g: BatchSampler(RandomSampler(range(50), generator=g), 2, False),
}


@pytest.mark.parametrize("name", RANDOM)
def test_order_is_a_function_of_the_seed(name):
    sampler, twin = RANDOM[name](rng()), RANDOM[name](rng())
    first, second = list(sampler), list(sampler)
    assert first != second
    assert [list(twin), list(twin)] == [first, second]
    assert len(sampler) == len(first)


@pytest.mark.parametrize("name", RANDOM)
def test_order_is_settled_when_a_pass_begins(name):
    generator = rng()
    begun = iter(RANDOM[name](generator))
    state = generator.get_state()
    list(begun)
    assert generator.get_state() == state


@pytest.mark.parametrize("name", RANDOM)
def test_default_generator_is_used_without_another(name):
    orders = []
    for _ in range(2):
        probtorch.manual_seed(5)
        orders.append(list(RANDOM[name](None)))
    assert orders[0] == orders[1]


def test_sequential_order():
    assert list(SequentialSampler(Numbers(*"abc"))) == [0, 1, 2]


def test_random_order_is_a_permutation():
    order = list(RandomSampler(range(1000), generator=rng()))
    assert order != sorted(order)
    assert sorted(order) == list(range(1000))


def test_random_pass_longer_than_the_data_repeats_permutations():
    order = list(RandomSampler(range(4), num_samples=10, generator=rng()))
    assert sorted(order[:4]) == sorted(order[4:8]) == [0, 1, 2, 3]
    assert len(set(order[8:])) == 2


def test_random_order_with_replacement_is_uniform():
    counts = np.bincount(
        list(RandomSampler(range(10), replacement=True, num_samples=20_000, generator=rng()))
    )
    # Chi-square with 9 degrees of freedom exceeds 40 with probability 8e-6.
    assert counts.sum() == 20_000
    assert ((counts - 2000) ** 2 / 2000).sum() < 40


def test_random_subset_is_permuted():
    assert sorted(SubsetRandomSampler([7, 3, 9], generator=rng())) == [3, 7, 9]


def test_weights_are_frequencies():
    weights = np.array([1.0, 0.0, 3.0, 6.0])
    drawn = list(WeightedRandomSampler(probtorch.tensor(weights), 20_000, generator=rng()))
    counts = np.bincount(drawn, minlength=4)
    expected = 2000 * weights
    assert counts[1] == 0
    kept = expected > 0
    # Chi-square with 2 degrees of freedom exceeds 25 with probability 4e-6.
    assert ((counts - expected)[kept] ** 2 / expected[kept]).sum() < 25


def test_weighted_draws_without_replacement_are_distinct():
    drawn = list(WeightedRandomSampler([0.1, 5.0, 1.0, 0.0], 3, replacement=False, generator=rng()))
    assert sorted(drawn) == [0, 1, 2]
    with pytest.raises(ArgumentError, match="4 of them positive"):
        WeightedRandomSampler([0.1, 5.0, 1.0, 0.0], 4, replacement=False)


@pytest.mark.parametrize("count", [0, 1, 6, 7])
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_hold_the_order_of_their_sampler(count, size, drop_last):
    sampler = BatchSampler(range(count), size, drop_last)
    batches = list(sampler)
    kept = count - count % size if drop_last else count
    assert [i for batch in batches for i in batch] == list(range(kept))
    assert all(len(batch) == size for batch in batches[:-1])
    assert len(sampler) == len(batches)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("count, processes", [(10, 3), (9, 3), (2, 5), (0, 2), (7, 1)])
def test_processes_share_the_samples(count, processes, drop_last, shuffle):
    parts = [
        DistributedSampler(range(count), processes, rank, shuffle, seed=3, drop_last=drop_last)
        for rank in range(processes)
    ]
    loaded = [list(part) for part in parts]
    each = count // processes if drop_last else -(-count // processes)
    assert {len(part) for part in parts} == set(map(len, loaded)) == {each}
    times = collections.Counter(i for part in loaded for i in part)
    if drop_last:
        assert set(times.values()) <= {1}
    else:
        assert set(times) == set(range(count))
        assert max(times.values(), default=1) - min(times.values(), default=1) <= 1
    if not shuffle and count:
        assert loaded[0] == [i % count for i in range(0, each * processes, processes)]


def test_epochs_of_processes_have_orders_of_their_own():
    def orders(seed):
        sampler = DistributedSampler(range(20), 1, 0, seed=seed)
        found = []
        for epoch in (0, 1, 0):
            sampler.set_epoch(epoch)
            found.append(tuple(sampler))
        return found

    first, second, again = orders(0)
    assert first == again != second
    assert not {first, second} & set(orders(1))


@pytest.mark.parametrize(
    "options", [{"rank": 1}, {"num_replicas": 2}, {"num_replicas": 2, "rank": 2}]
)
def test_number_and_rank_of_processes_go_together(options):
    with pytest.raises(ArgumentError, match="the rank of this one"):
        DistributedSampler(range(4), **options)


@pytest.mark.parametrize("drop_last", [False, True])
def test_buckets_hold_every_sample_once(drop_last):
    lengths = np.random.default_rng(0).integers(1, 100, 103)
    sampler = BucketBatchSampler(lengths, 8, drop_last, window=4, generator=rng())
    batches = list(sampler)
    assert len(batches) == len(sampler)
    seen = [i for batch in batches for i in batch]
    assert len(seen) == len(set(seen)) == (96 if drop_last else 103)


def test_buckets_need_little_padding():
    lengths = np.random.default_rng(0).integers(1, 100, 5000)
    padding = {}
    for window in (1, 100):
        batches = BucketBatchSampler(lengths, 16, window=window, generator=rng())
        sizes = [lengths[batch] for batch in batches]
        whole = sum(len(s) * s.max() for s in sizes)
        padding[window] = 1 - lengths.sum() / whole
    assert padding[100] < 0.1
    assert padding[1] > 0.3


def test_buckets_are_shuffled():
    batches = list(BucketBatchSampler(range(64), 4, generator=rng()))
    assert [batch[0] for batch in batches] != sorted(batch[0] for batch in batches)


@pytest.mark.parametrize(
    "make",
    [lambda: BatchSampler(range(3), 0, False), lambda: BatchSampler(range(3), 2.5, False),
     lambda: RandomSampler(range(3), num_samples=-1), lambda: BucketBatchSampler([1], 1, window=0),
     lambda: WeightedRandomSampler([1.0], True)],
)  # fmt: skip
def test_counts_have_to_be_counts(make):
    with pytest.raises(ArgumentError, match="an integer >="):
        make()


def test_own_sampler_has_to_say_its_order():
    with pytest.raises(NotImplementedError, match="Mine does not define __iter__"):
        list(type("Mine", (Sampler,), {})())


# ------------------------------------------------------------------------------------------- length


class RangeDataset(Dataset):
    def __len__(self, length):
        return length

    def __getitem__(self, index):
        return index


@pytest.mark.parametrize("sampler", [SequentialSampler, RandomSampler])
def test_wrong_length_method_is_reported_with_the_class(sampler):
    with pytest.raises(TypeError, match=r"len\(\) of RangeDataset") as caught:
        list(sampler(RangeDataset()))
    assert "missing 1 required positional argument: 'length'" in str(caught.value)
    assert "define RangeDataset.__len__" in str(caught.value)


def test_missing_length_method_is_reported_with_the_class():
    class Endless(Dataset):
        pass

    with pytest.raises(TypeError, match=r"len\(\) of Endless"):
        len(RandomSampler(Endless()))
    with pytest.raises(NotImplementedError, match=r"Endless does not define __getitem__\(\)"):
        Endless()[0]


# ------------------------------------------------------------------------------------------ collate


Point = collections.namedtuple("Point", "x label")


@pytest.mark.parametrize(
    "samples, expected, dtype",
    [([1, 2], [1, 2], "int64"), ([1.5, 2.5], [1.5, 2.5], "float64"),
     ([True, False], [1, 0], "bool"),
     ([np.float32(1), np.float32(2)], [1, 2], "float32"),
     ([np.zeros((2, 1), np.int16)] * 3, np.zeros((3, 2, 1)), "int16")],
)  # fmt: skip
def test_numbers_and_arrays_become_one_tensor(samples, expected, dtype):
    batch = default_collate(samples)
    assert batch.dtype == np.dtype(dtype)
    assert_close(batch, np.array(expected))


def test_containers_are_kept_and_entries_collated():
    batch = default_collate([
        {"p": Point(1, "a"), "t": (probtorch.ones(2), [1.0, 2])},
        {"p": Point(2, "b"), "t": (probtorch.zeros(2), [3.0, 4])},
    ])  # fmt: skip
    assert isinstance(batch["p"], Point)
    assert batch["p"].x.tolist() == [1, 2]
    assert batch["p"].label == ["a", "b"]
    assert isinstance(batch["t"], list)
    assert batch["t"][0].tolist() == [[1, 1], [0, 0]]
    assert [x.tolist() for x in batch["t"][1]] == [[1.0, 3.0], [2, 4]]


def test_mapping_of_another_kind_is_kept():
    batch = default_collate([collections.OrderedDict(a=1), collections.OrderedDict(a=2)])
    assert type(batch) is collections.OrderedDict
    assert batch["a"].tolist() == [1, 2]


def test_collated_tensors_keep_their_gradient():
    w = probtorch.ones(2, requires_grad=True)
    default_collate([w * 2, w * 3]).sum().backward()
    assert w.grad.tolist() == [5.0, 5.0]


def test_collated_array_is_a_copy():
    array = np.ones(2)
    default_collate([array]).array[:] = 5.0
    assert array.tolist() == [1.0, 1.0]


def test_samples_that_do_not_fit_are_refused():
    with pytest.raises(ShapeError, match=r"(?s)of the first, \(2,\).*\(3,\).*pad_sequence"):
        default_collate([probtorch.ones(2), probtorch.ones(3)])
    with pytest.raises(ShapeError, match="should be of equal size"):
        default_collate([[1, 2], [1]])
    with pytest.raises(DTypeError, match="a sample of type object"):
        default_collate([object()])
    with pytest.raises(DTypeError, match="a sample of type ndarray"):
        default_collate([np.array(["a"])])


def test_conversion_makes_tensors_of_arrays_alone():
    found = default_convert({"a": np.ones(2), "b": "text", "c": 1, "d": (np.int64(3), None)})
    assert isinstance(found["a"], probtorch.Tensor)
    assert found["b"] == "text"
    assert found["c"] == 1
    assert found["d"][0].item() == 3
    assert found["d"][1] is None
    assert default_convert(Point(np.ones(1), "a")).label == "a"
