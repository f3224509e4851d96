"""What others read while a chain stores its draws, at every instruction of the code that stores."""

from types import SimpleNamespace

import numpy as np
import pytest

from probtorch.infer import Target
from probtorch.infer.mcmc import recording, stored_record
from probtorch.infer.mcmc.collect import draws_so_far
from probtorch.infer.mcmc.kernel import statistics
from probtorch.infer.mcmc.kernels.hmc import HMCInfo
from probtorch.infer.mcmc.recording import DrawBlock, DrawRecord
from probtorch.infer.mcmc.running import BatchMoments
from probtorch.infer.mcmc.store import DrawStore
from tests.infer.watched import watched

DIM, CHAINS, ITERATIONS = 3, 2, 30
# Transitions of each call: one by one, some, all of them; the last has more than there is room for.
CALLS = {"one": [1] * ITERATIONS, "many": [1, 4, 1, 7, 2, 12, 5], "all": [ITERATIONS + 5]}
TARGET = Target.from_density(lambda q: -0.5 * (q * q).sum(), DIM)
by_calls = pytest.mark.parametrize("calls", CALLS.values(), ids=list(CALLS))
thinned = pytest.mark.parametrize("thinning", [1, 3])


class Drawn:
    """Transitions of some chains, and what is to be kept of them."""

    def __init__(self, thinning):
        rng, count = np.random.default_rng(thinning), ITERATIONS + 5
        self.positions = 5.0 + rng.normal(size=(CHAINS, count, DIM))
        self.columns = {
            s.field: (9.0 * rng.uniform(0.1, 1.0, size=(CHAINS, count))).astype(s.dtype)
            for s in statistics(HMCInfo)
        }
        for s in statistics(HMCInfo):
            if s.dtype == bool:
                self.columns[s.field] = rng.uniform(size=(CHAINS, count)) < 0.4
        rows = self.rows = ITERATIONS // thinning
        self.kept = {"position": self.positions[:, thinning - 1 : ITERATIONS : thinning]}
        for s in statistics(HMCInfo):
            if s.name is not None:
                x = self.columns[s.field][:, :ITERATIONS].reshape(CHAINS, rows, thinning)
                combined = x[:, :, -1] if s.combine is None else s.combine.reduce(x, axis=2)
                self.kept[s.name] = combined

    def stretches(self, calls):
        """Positions and columns of each call."""
        for end, count in zip(np.cumsum(calls), calls):
            part = slice(end - count, end)
            yield self.positions[:, part], {n: x[:, part] for n, x in self.columns.items()}


def info_of(columns, chain):
    return HMCInfo(**{name: x[chain] for name, x in columns.items()})


def in_memory(thinning):
    """Records of a block; what was never written shows."""
    block = DrawBlock(CHAINS, ITERATIONS // thinning, (DIM,), HMCInfo)
    block.positions.fill(np.nan)
    return [DrawRecord(ITERATIONS, (DIM,), HMCInfo, thinning, block, i) for i in range(CHAINS)]


class Reader:
    """Looks at records as `progress` and `peek` do, and compares with what was drawn."""

    def __init__(self, records, drawn):
        self.records, self.drawn = records, drawn
        self.before, self.readable = [0] * len(records), [0] * len(records)
        self.looks, self.seen = 0, set()
        runs = [
            SimpleNamespace(
                draws=x, error=None, warmup_draws=None, num_warmup=0, extensions=[], moved=False
            )
            for x in records
        ]
        kernel = SimpleNamespace(attrs=dict)
        asked = SimpleNamespace(
            kernel=kernel, num_warmup=0, thinning=1, num_threads=1, executor=None, seed=None,
            selected=lambda draws: draws,
        )  # fmt: skip
        self.run = SimpleNamespace(
            chain_runs=runs, asked=asked, target=TARGET, seconds=0.0, forms=None
        )

    def __call__(self):
        self.looks += 1
        for i, record in enumerate(self.records):
            readable, complete = record.readable, record.complete
            assert self.before[i] <= complete <= self.drawn.rows and readable <= complete
            if readable != self.readable[i] or not self.looks % 500:
                self.judge_moments(i, record)
                self.judge_peek()
            self.before[i], self.readable[i] = complete, readable

    def judge_moments(self, chain, record):
        # Who comes while it is taken waits.
        if record._lock.locked():
            return
        found, rows = record.moments(), record.readable
        expected = BatchMoments(DIM)
        expected.add(self.drawn.kept["position"][chain, :rows])
        assert (found.length, found.count) == (expected.length, expected.count)
        np.testing.assert_allclose(found.full(), expected.full(), rtol=1e-9, atol=1e-9)
        self.seen.add(rows)

    def judge_peek(self):
        draws = draws_so_far(self.run)
        if draws is None:
            return
        chains, rows = draws.positions.shape[:2]
        kept = {n: x[:, :rows] for n, x in self.drawn.kept.items()}
        whose = [i for i in range(len(self.records)) if i not in self.missing(draws)]
        assert len(whose) == chains
        np.testing.assert_array_equal(draws.positions, kept.pop("position")[whose])
        for name, x in kept.items():
            np.testing.assert_array_equal(draws.sample_stats[name], x[whose], err_msg=name)

    @staticmethod
    def missing(draws):
        return draws.attrs.get("missing_chains", [])


def judged(records, drawn, calls, work):
    reader = Reader(records, drawn)
    watched(work, reader, recording, stored_record)
    assert reader.before == [drawn.rows] * len(records)
    assert reader.looks > 10 * len(calls) and reader.seen >= {drawn.rows}
    return reader


@thinned
@by_calls
def test_rows_that_can_be_read_are_those_that_were_drawn(calls, thinning):
    drawn, records = Drawn(thinning), in_memory(thinning)

    def work():
        for positions, columns in drawn.stretches(calls):
            for i, record in enumerate(records):
                record.add(positions[i], info_of(columns, i))

    judged(records, drawn, calls, work)


@by_calls
def test_rows_of_chains_that_go_together_count_when_they_are_there(calls):
    drawn, records = Drawn(1), in_memory(1)

    def work():
        for positions, columns in drawn.stretches(calls):
            assert DrawRecord.add_together(records, positions, columns.__getitem__)

    judged(records, drawn, calls, work)


def brought(records, drawn, calls, thinning):
    """Have records take in what others drew elsewhere, call by call."""
    elsewhere, counts = in_memory(thinning), [0] * len(records)

    def work():
        for positions, columns in drawn.stretches(calls):
            for i, (there, here) in enumerate(zip(elsewhere, records)):
                there.add(positions[i], info_of(columns, i))
                here.append(there.snapshot(counts[i]))
                counts[i] = there.complete

    return work


@thinned
@by_calls
def test_rows_that_were_drawn_elsewhere_count_when_they_are_here(calls, thinning):
    drawn, records = Drawn(thinning), in_memory(thinning)
    judged(records, drawn, calls, brought(records, drawn, calls, thinning))


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """Make records on the disk, of blocks of four rows."""
    monkeypatch.setattr(stored_record, "MOST_ROWS", 4)

    def made(thinning):
        store = DrawStore(tmp_path, TARGET, {}, resumed=False, anew=False, names=None)
        stores.append(store)
        return store.begin(np.zeros((CHAINS, DIM)), ITERATIONS, HMCInfo, thinning)

    stores = []
    yield made
    for store in stores:
        store.release()


@thinned
@by_calls
def test_rows_on_the_disk_count_once_and_when_they_are_there(calls, thinning, stored):
    drawn, records = Drawn(thinning), stored(thinning)
    calls = [*calls[:-1], calls[-1] - (sum(calls) - ITERATIONS)]

    def work():
        for positions, columns in drawn.stretches(calls):
            for i, record in enumerate(records):
                record.add(positions[i], info_of(columns, i))
        for record in records:
            record.flush()

    judged(records, drawn, calls, work)


@thinned
@by_calls
def test_rows_that_were_drawn_elsewhere_go_to_the_disk_alike(calls, thinning, stored):
    drawn, records = Drawn(thinning), stored(thinning)
    bring = brought(records, drawn, calls, thinning)

    def work():
        bring()
        for record in records:
            record.flush()

    judged(records, drawn, calls, work)


@thinned
def test_a_record_that_is_restored_counts_what_is_back(thinning, stored):
    drawn = Drawn(thinning)
    for before, after in ((in_memory(thinning), in_memory(thinning)), (stored(thinning),) * 2):
        positions, columns = next(drawn.stretches([ITERATIONS]))
        for i, record in enumerate(before):
            record.add(positions[i], info_of(columns, i))
        saved = [record.snapshot() for record in before]

        def work(after=after, saved=saved):
            for record, state in zip(after, saved):
                record.restore(state)

        reader = Reader(after, drawn)
        reader.before = [0 if a is not b else drawn.rows for a, b in zip(after, before)]
        watched(work, reader, recording, stored_record)
        assert reader.before == [drawn.rows] * CHAINS
