"""Draws on the disk that are added to: those in memory, readable whenever a run is broken off."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from probtorch.diagnostics import Draws, InferenceWarning, stored
from probtorch.diagnostics.checks import smallest_ess
from probtorch.diagnostics.stored import by_entries
from probtorch.errors import ArgumentError, FileError
from probtorch.infer import AIES, MCMC, NUTS, RandomWalk, Target
from probtorch.infer.mcmc import stored_record
from probtorch.infer.mcmc.budget import Budget
from probtorch.infer.mcmc.running import BatchMoments, convergence
from probtorch.serialization.files import replacing
from tests.infer.mcmc.killed_extensions import run
from tests.infer.mcmc.test_handle import ENDLESS, failing_after, until
from tests.infer.mcmc.test_killed_chains import NothingYet, drawn
from tests.infer.mcmc.test_saved import ALWAYS, Crash, everything
from tests.infer.mcmc.test_store import Y, mcmc_of
from tests.infer.remote.forked import forked_pool, quiet

SCRIPT = Path(__file__).with_name("killed_extensions.py")
ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Four rows in a block."""
    monkeypatch.setattr(stored_record, "MOST_ROWS", 4)


def rows_of(folder):
    """Rows of the files in a folder, which all have as many."""
    (rows,) = {np.load(x, mmap_mode="r").shape[1] for x in folder.glob("s*stats.*.npy")}
    return rows


@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "background"])
@pytest.mark.parametrize("make", [NUTS, lambda model: AIES(model, walkers=10)])
def test_stored_draws_until_enough_are_those_in_memory(make, blocking, tmp_path):
    expected = mcmc_of(make=make, keep_warmup=True).run(Y, until_ess=300)
    where = {"store": tmp_path, "checkpoint": tmp_path}
    for saving in (where, where):  # complete, it returns at once
        mcmc = mcmc_of(make=make, keep_warmup=True)
        found = mcmc.run(Y, until_ess=300, blocking=blocking, **saving)
        draws = found if blocking else found.result()
        assert draws.num_draws == expected.num_draws == rows_of(tmp_path) > 26
        assert everything(draws) == everything(expected)
        assert draws.positions.tobytes() == expected.positions.tobytes()
        assert draws is mcmc.draws and not draws.attrs["interrupted"]
    read = Draws.load(tmp_path)
    assert read.posterior["effect"].tobytes() == expected["effect"].tobytes()
    assert read.attrs["interrupted"] is False and read.attrs["seed"] == 3
    # A larger demand goes on from what is there.
    more = mcmc_of(make=make, keep_warmup=True).run(Y, until_ess=600, **where)
    assert more.num_draws == rows_of(tmp_path) > draws.num_draws
    in_memory = mcmc_of(make=make)
    in_memory.run(Y, until_ess=300)
    expected = in_memory.more(3 * (more.num_draws - draws.num_draws))
    assert everything(Draws.load(tmp_path)) == everything(expected)


def test_more_stored_draws_are_those_in_memory(tmp_path):
    in_memory, mcmc = mcmc_of(), mcmc_of()
    in_memory.run(Y)
    before = [mcmc.run(Y, store=tmp_path)]
    for count in (10, 35):
        expected, draws = in_memory.more(count), mcmc.more(count)
        assert everything(draws) == everything(Draws.load(tmp_path)) == everything(expected)
        assert rows_of(tmp_path) == draws.num_draws
        assert draws.predict(seed=0)["y"].tobytes() == expected.predict(seed=0)["y"].tobytes()
        before.append(draws)
    assert [draws.num_draws for draws in before] == [26, 30, 42]
    for draws in before:  # of files that were replaced, too
        assert np.array_equal(draws["effect"], before[-1]["effect"][:, : draws.num_draws])
    assert not [x for x in tmp_path.iterdir() if x.suffix not in (".npy", ".json")]


def test_more_of_some_variables_of_a_density(tmp_path):
    example = {"a": np.zeros(()), "b": np.zeros((2, 2))}
    target = Target.from_density(lambda p: -(p["a"] ** 2) - (p["b"] ** 2).sum(), example=example)

    def of(**options):
        mcmc = MCMC(RandomWalk(target), 50, 30, seed=1, save_params=["b"], progress_bar=False)
        mcmc.diagnose = False
        mcmc.run(**options)
        return mcmc.more(30)

    found = of(store=tmp_path)
    assert list(found) == ["b"] and found["b"].shape == (1, 80, 2, 2)
    assert everything(found) == everything(of()) == everything(Draws.load(tmp_path))


@pytest.mark.parametrize("stored", [False, True], ids=["in memory", "stored"])
@pytest.mark.parametrize("name, value", [("save_params", ["effect"]), ("thinning", 2)])
def test_draws_of_other_settings_are_not_added(name, value, stored, tmp_path):
    where = {"store": tmp_path} if stored else {}
    mcmc = mcmc_of(save_params=["effect", "scale"])
    before = everything(mcmc.run(Y, **where))
    setattr(mcmc, name, value)
    with pytest.raises(
        ArgumentError, match=rf"(?s)MCMC.more.*{name}=.* \(saved was .*as they were"
    ):
        mcmc.more(30)
    assert everything(mcmc.draws) == before
    setattr(mcmc, name, {"save_params": ("effect", "scale"), "thinning": 3}[name])
    assert mcmc.more(30).num_draws == 36


def damaged(path):
    path.write_bytes(b"no array")


def cut(path):
    os.truncate(path, path.stat().st_size - 8)


@pytest.mark.parametrize(
    "harm, got",
    [(Path.unlink, "No such file"), (damaged, "magic string"), (cut, "less than an array")],
    ids=["gone", "damaged", "cut"],
)
def test_a_file_that_is_not_as_it_was_written_is_not_made_longer(harm, got, tmp_path):
    mcmc = mcmc_of()
    mcmc.run(Y, store=tmp_path)
    # What is mapped of a file that is cut cannot be read any more; of a copy it can.
    (tmp_path / "copy").write_bytes((tmp_path / "posterior.effect.npy").read_bytes())
    os.replace(tmp_path / "copy", tmp_path / "posterior.effect.npy")
    harm(tmp_path / "posterior.effect.npy")
    with pytest.raises(FileError, match=rf"(?s)posterior.effect.npy, as it was written.*{got}"):
        mcmc.more(30)
    assert mcmc.draws.num_draws == 26


@quiet
def test_an_executor_adds_the_same_draws(tmp_path):
    expected = mcmc_of().run(Y, until_ess=300)
    with forked_pool() as pool:
        draws = mcmc_of(executor=pool).run(Y, until_ess=300, store=tmp_path)
    assert everything(draws) == everything(Draws.load(tmp_path)) == everything(expected)


def test_stored_runs_until_enough_broken_off_anywhere_go_on_bit_for_bit(tmp_path):
    made = 0

    def of(crash=None):
        def hook(kernel, params, stage, i):
            nonlocal made
            made += 1
            if crash is not None and made >= crash:
                raise Crash

        nonlocal made
        made, mcmc = 0, mcmc_of(num_chains=1)
        mcmc.hook_fn = hook
        return mcmc

    whole = of().run(Y, until_ess=150)
    expected, seen = everything(whole), []
    where = {"store": tmp_path, "checkpoint": tmp_path}
    for crash in (130, 90, 60, 30):
        with pytest.raises(Crash):
            of(crash).run(Y, until_ess=150, **where, checkpoint_every=ALWAYS)
        seen.append(Draws.load(tmp_path)["effect"].copy())
    for _ in range(2):
        assert everything(of().run(Y, until_ess=150, **where)) == expected
        assert everything(Draws.load(tmp_path)) == expected
    assert made == 0  # it was complete
    for effect in seen:
        assert np.array_equal(effect, whole["effect"][:, : effect.shape[1]])
    assert 26 < max(effect.shape[1] for effect in seen) < whole.num_draws


def test_runs_until_enough_killed_at_random_moments_end_as_if_they_never_were(tmp_path):
    """Before a change of the disk: what a process leaves there is what others see meanwhile."""
    whole, rng, told, seen = run(), random.Random(5), [], []
    command = [sys.executable, "-W", "error", str(SCRIPT), str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as server:  # fmt: skip
        for kill in range(40):
            print(rng.randrange(1, 400) if kill < 39 else 0, file=server.stdin, flush=True)
            told.append(int(server.stdout.readline()))
            if (tmp_path / "draws.json").exists():
                with contextlib.suppress(NothingYet):
                    seen.append(drawn(tmp_path))
    # No life but the last is long enough to write all rows.
    assert told == 39 * [signal.SIGKILL] + [0]
    assert everything(Draws.load(tmp_path)) == everything(whole)
    for draws in seen:  # of the chains that have some, in their order
        firsts = iter(whole["x"][:, : draws.shape[1]])
        assert all(any(np.array_equal(one, first) for first in firsts) for one in draws)
    assert any(30 < draws.shape[1] < whole.num_draws for draws in seen)
    assert not [path for path in tmp_path.iterdir() if path.suffix in (".tmp", ".damaged")]


@pytest.mark.parametrize("file", [0, 3])
def test_a_disk_that_fills_while_files_get_longer_costs_no_draws(file, tmp_path, monkeypatch):
    expected, made = mcmc_of().run(Y, until_ess=300), []

    def full(path, **options):
        if path.suffix == ".npy":
            made.append(path)
            if len(made) > file:
                raise OSError(28, "No space left on device")
        return replacing(path, **options)

    mcmc = mcmc_of()
    mcmc.run(Y, store=tmp_path, checkpoint=tmp_path)
    monkeypatch.setattr(stored, "replacing", full)
    for go_on in (
        lambda: mcmc.more(30),
        lambda: mcmc_of().run(Y, until_ess=300, store=tmp_path, checkpoint=tmp_path),
    ):
        made.clear()
        with pytest.raises(FileError, match="No space left") as told:
            go_on()
        assert str(told.value).count("expected:") == 1
        assert mcmc.draws.num_draws == 26
        # Some files are longer by now.
        shown = Draws.load(tmp_path)
        assert everything(shown) == everything(mcmc_of().run(Y))
    monkeypatch.undo()
    monkeypatch.setattr(stored_record, "MOST_ROWS", 4)
    found = mcmc_of().run(Y, until_ess=300, store=tmp_path, checkpoint=tmp_path)
    assert everything(found) == everything(Draws.load(tmp_path)) == everything(expected)
    assert rows_of(tmp_path) == expected.num_draws


def test_draws_of_another_run_are_not_added_to(tmp_path):
    mcmc = mcmc_of()
    mcmc.run(Y, store=tmp_path / "a")
    expected = everything(mcmc.draws)
    shutil.move(tmp_path / "a", tmp_path / "moved")
    with pytest.raises(ArgumentError, match="a folder without"):
        mcmc.more(10)
    shutil.rmtree(tmp_path / "a")
    mcmc_of().run(Y, store=tmp_path / "a")
    with pytest.raises(ArgumentError, match="draws of another run"):
        mcmc.more(10)
    assert everything(mcmc.draws) == expected
    shutil.rmtree(tmp_path / "a")
    shutil.move(tmp_path / "moved", tmp_path / "a")
    assert mcmc.more(12).num_draws == 30


def test_more_beyond_a_run_that_was_ended_leaves_its_checkpoint_behind(tmp_path):
    """The chains had got to different draws: those beyond the result are written over."""
    mcmc = mcmc_of(thinning=1)
    mcmc.num_samples = ENDLESS
    handle = mcmc.run(Y, store=tmp_path, checkpoint=tmp_path, blocking=False)
    until(lambda: all(chain.draws for chain in handle.progress.chains))
    ended = handle.abort()
    more = mcmc.more(20)
    assert more.num_draws == ended.num_draws + 20 and not more.attrs["interrupted"]
    assert np.array_equal(more["effect"][:, : ended.num_draws], ended["effect"])
    assert everything(Draws.load(tmp_path)) == everything(more)
    again = mcmc_of(thinning=1)
    again.num_samples = ENDLESS
    with pytest.raises(ArgumentError, match="draws of another run"):
        again.run(Y, store=tmp_path, checkpoint=tmp_path)
    mcmc.more(20)  # on it goes
    assert Draws.load(tmp_path).num_draws == ended.num_draws + 40


def test_chains_that_failed_are_left_out_of_what_is_added(tmp_path):
    def of(count):
        mcmc = mcmc_of(num_chains=3)
        mcmc.hook_fn = failing_after(count)
        return mcmc

    def all_of(count, **options):
        mcmc = of(count)
        with pytest.warns(InferenceWarning, match="chain .* failed"):
            mcmc.run(Y, **options)
        assert mcmc.draws.attrs["missing_chains"] == [1]
        return mcmc.more(20)

    found = all_of(100, store=tmp_path)
    assert found.num_chains == 2 and found.attrs["missing_chains"] == [1]
    assert everything(found) == everything(Draws.load(tmp_path)) == everything(all_of(100))
    # One that fails among what is added: what was there stays.
    mcmc = of(250)
    with pytest.warns(InferenceWarning, match="chain 0 failed"):
        mcmc.run(Y, store=tmp_path / "b", until_ess=1000)
    expected = mcmc_of(num_chains=3).run(Y)
    for draws in (mcmc.draws, Draws.load(tmp_path / "b")):
        assert everything(draws) == everything(expected) and draws.attrs["interrupted"]


def test_a_stored_run_beyond_its_first_draws_is_looked_at_paused_and_ended(tmp_path):
    mcmc = mcmc_of(thinning=1)
    mcmc.hook_fn = lambda *_: time.sleep(1e-5)  # so that it can be looked at
    handle = mcmc.run(Y, until_ess=1e7, store=tmp_path, blocking=False)
    try:
        until(lambda: handle.progress.chains[-1].draws > 400)
        handle.pause()
        before = -1
        while before != (before := sum(chain.iteration for chain in handle.progress.chains)):
            time.sleep(0.2)
        seen, progress = handle.peek(), handle.progress
        assert 80 <= seen.num_draws <= min(chain.draws for chain in progress.chains)
        assert 0.0 < progress.share < 1.0 and not handle.wait(0.1)
        handle.resume()
        until(lambda: handle.progress.chains[-1].draws > progress.chains[-1].draws)
    finally:
        draws = handle.abort()
    assert draws.num_draws >= seen.num_draws and draws.attrs["interrupted"]
    expected = mcmc_of(thinning=1)
    expected.num_samples = draws.num_draws
    expected = expected.run(Y)
    assert everything(draws) == everything(Draws.load(tmp_path)) == everything(expected)
    assert np.array_equal(seen["effect"], expected["effect"][:, : seen.num_draws])


def test_a_run_whose_time_is_up_when_more_is_missing_says_so_in_its_folder(tmp_path, monkeypatch):
    left = iter([None, 0.0])  # at the start, and when more was found to be missing
    monkeypatch.setattr(Budget, "seconds_left", lambda self: next(left))
    draws = mcmc_of().run(Y, until_ess=900, max_seconds=60.0, store=tmp_path)
    for found in (draws, Draws.load(tmp_path)):
        assert found.num_draws == 26 and found.attrs["interrupted"]


# ------------------------------------------------------------------------------- what it is made of


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "a part"])
def test_entries_of_mapped_draws_come_in_parts(cut, tmp_path, monkeypatch):
    x = np.random.default_rng(0).normal(size=(3, 301, 11)).cumsum(axis=1)
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    if cut:
        x, mapped = x[:, :200], mapped[:, :200]
    expected = smallest_ess(Draws({"x": x}))
    assert next(by_entries(x)) is x
    # In one part, in parts that leave a smaller one, and one by one.
    for held, widths in ((2**30, [11]), (4 * 8 * x[..., 0].size, [3, 4, 4]), (1, [1] * 11)):
        monkeypatch.setattr(stored, "HELD", held)
        monkeypatch.setattr(stored, "WINDOW", 500)
        parts = list(by_entries(mapped))
        assert [part.shape[2] for part in parts] == widths
        assert not any(isinstance(part, np.memmap) for part in parts)
        assert np.array_equal(np.concatenate(parts, axis=2), x)
        assert smallest_ess(Draws({"x": mapped})) == expected
    assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]


@pytest.mark.parametrize("first, second", [(128, 4096), (4096, 128), (100, 1000), (30, 5000)])
def test_moments_of_draws_that_follow_are_those_of_all(first, second):
    x = np.random.default_rng(1).normal(size=(2, first + second, 3))
    x += np.linspace(0.0, 1.0, first + second)[:, None]

    def of(rows):
        made = BatchMoments(3)
        made.add(rows)
        return made

    joined = [of(chain[:first]).followed_by(of(chain[first:])) for chain in x]
    for one, chain in zip(joined, x):
        means, squares = one.full()
        used = one.length * one.count
        assert used <= first + second < used + 4 * one.length
        # What fills no batch is left out at the end of each part.
        kept = first - first % one.length
        rest = used - kept
        assert kept + rest == used
        whole = np.concatenate([chain[:kept], chain[first : first + rest]])
        spread = squares.sum(axis=0) + one.length * np.square(means - whole.mean(axis=0)).sum(
            axis=0
        )
        np.testing.assert_allclose(means.mean(axis=0), whole.mean(axis=0))
        np.testing.assert_allclose(spread, np.square(whole - whole.mean(axis=0)).sum(axis=0))
    rhat, ess = convergence(joined)
    expected_rhat, expected_ess = convergence([of(chain) for chain in x])
    np.testing.assert_allclose(rhat, expected_rhat, rtol=0.05)
    np.testing.assert_allclose(ess, expected_ess, rtol=0.5)


def test_draws_without_room_to_take_them_apart_say_so(tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", np.zeros((2, 100, 3)))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    monkeypatch.setattr(stored, "HELD", 1)

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(stored, "_take_apart", full)
    with pytest.raises(FileError, match=r"(?s)room for 4,800 bytes.*No space left.*every=100"):
        smallest_ess(Draws({"x": mapped}))
