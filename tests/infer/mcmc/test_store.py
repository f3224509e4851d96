"""Draws that stream to a folder: the same draws, whatever breaks the run off, in bounded memory."""

import gc
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch.diagnostics import ConvergenceWarning, Draws, InferenceWarning
from probtorch.diagnostics.stored import every_th
from probtorch.errors import ArgumentError, FileError, InferenceError
from probtorch.infer import AIES, MCMC, NUTS, RandomWalk, Target
from probtorch.infer.mcmc import store as stores
from probtorch.infer.mcmc import stored_record
from tests.infer.mcmc.test_saved import ALWAYS, Crash, everything

ROOT = Path(__file__).parents[3]


def model(y):
    scale = probtorch.sample("scale", dist.HalfNormal(2.0))
    with probtorch.plate("school", coords=["a", "b/c", "d"]):
        effect = probtorch.sample("effect", dist.Normal(0.0, scale))
        probtorch.sample("y", dist.Normal(effect, 1.0), obs=y)
    probtorch.deterministic("a/b", effect[0] - effect[1])


Y = probtorch.tensor([1.0, 2.0, 4.0])


def hook_of(crash):
    def hook(kernel, params, stage, i):
        if i == crash:
            raise Crash

    return None if crash is None else hook


def mcmc_of(crash=None, make=NUTS, seed=3, **settings):
    settings = {"num_chains": 2, "thinning": 3, **settings}
    mcmc = MCMC(
        make(model), 80, 60, seed=seed, hook_fn=hook_of(crash), progress_bar=False, **settings
    )
    mcmc.diagnose = False
    return mcmc


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Four rows in a block."""
    monkeypatch.setattr(stored_record, "MOST_ROWS", 4)


@pytest.mark.parametrize("make", [NUTS, lambda model: AIES(model, walkers=10)])
def test_stored_draws_are_those_in_memory(make, tmp_path):
    expected = mcmc_of(make=make, keep_warmup=True).run(Y)
    mcmc = mcmc_of(make=make, keep_warmup=True)
    stored = mcmc.run(Y, store=tmp_path / "draws")
    assert everything(stored) == everything(expected)
    assert np.array_equal(stored.positions, expected.positions)
    assert stored.predict(seed=0)["y"].tobytes() == expected.predict(seed=0)["y"].tobytes()
    base = stored.positions
    while not isinstance(base, np.memmap):
        base = base.base
    read = Draws.load(tmp_path / "draws")
    expected = mcmc_of(make=make).run(Y)
    assert everything(read) == everything(expected)
    assert read.dims == expected.dims and read.attrs["interrupted"] is False
    assert list(read.coords["school"]) == ["a", "b/c", "d"]
    assert read.attrs["seed"] == 3


def test_some_variables_of_a_density_are_parts_of_one_file(tmp_path):
    example = {"a": np.zeros(()), "b": np.zeros((2, 2))}
    target = Target.from_density(lambda p: -(p["a"] ** 2) - (p["b"] ** 2).sum(), example=example)

    def of(**options):
        mcmc = MCMC(RandomWalk(target), 50, 30, seed=1, save_params=["b"], progress_bar=False)
        mcmc.diagnose = False
        return mcmc.run(**options)

    stored = of(store=tmp_path)
    assert list(stored) == ["b"] and stored["b"].shape == (1, 50, 2, 2)
    assert np.array_equal(stored["b"], of()["b"])
    assert everything(Draws.load(tmp_path)) == everything(stored)
    assert not list(tmp_path.glob("posterior*"))


@pytest.mark.parametrize("stored", [False, True], ids=["in memory", "stored"])
def test_names_to_keep_that_are_not_there_are_refused_before_the_first_draw(stored, tmp_path):
    where = {"store": tmp_path} if stored else {}
    mcmc = mcmc_of(save_params=["scale", "scael"])
    with pytest.raises(ArgumentError, match=r"(?s)save_params.*names among scale.*scael.*spelling"):
        mcmc.run(Y, **where)
    assert not list(tmp_path.iterdir())


def test_no_variables_at_all_leave_the_statistics(tmp_path):
    expected = mcmc_of(save_params=[]).run(Y)
    stored = mcmc_of(save_params=[]).run(Y, store=tmp_path)
    assert not list(stored) and everything(stored) == everything(expected)
    assert everything(Draws.load(tmp_path)) == everything(expected)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts open files")
def test_a_run_without_draws_leaves_no_file_open(tmp_path):
    def opened():
        gc.collect()
        return [x for x in map(read_link, os.listdir("/proc/self/fd")) if str(tmp_path) in x]

    with pytest.raises(Crash):
        mcmc_of(20).run(Y, store=tmp_path)
    assert not opened()
    endless = mcmc_of()
    endless.num_warmup = 10**7
    with pytest.raises(InferenceError, match=r"RunHandle\.abort"):
        endless.run(Y, store=tmp_path / "late", blocking=False).abort()
    del endless
    assert not opened()


def test_of_a_disk_that_fills_all_rows_on_it_are_told(tmp_path, monkeypatch):
    """Room for that is set aside, and given back when chains have failed."""
    spares, full = [], []
    pwrite, tell, set_aside = os.pwrite, stores.write_manifest, stores.set_aside

    def filling(descriptor, data, at):
        full.append(1)
        if len(full) > 60:
            raise OSError(28, "No space left on device")
        return pwrite(descriptor, data, at)

    def told(*args):
        if len(full) > 60:
            with pytest.raises(OSError):  # which is closed: there is room again
                os.fstat(spares[0])
        tell(*args)

    def kept(folder, size):
        spares.append(set_aside(folder, size))
        assert os.fstat(spares[0]).st_size >= 2 * (folder / "draws.json").stat().st_size
        return spares[0]

    monkeypatch.setattr(os, "pwrite", filling)
    monkeypatch.setattr(stores, "write_manifest", told)
    monkeypatch.setattr(stores, "set_aside", kept)
    monkeypatch.setattr(stores, "EVERY", 1e6)  # nobody is told in the midst of it
    with pytest.raises(FileError, match="No space left"):
        mcmc_of(num_chains=1).run(Y, store=tmp_path)
    monkeypatch.undo()
    read = Draws.load(tmp_path)
    # Blocks of four rows, each with one write to each file.
    rows = 4 * (60 // len([x for x in tmp_path.glob("*.npy") if "_data" not in x.name]))
    assert 0 < read.num_draws == rows < 26 and read.attrs["interrupted"]
    assert not list(tmp_path.glob("tmp*"))
    expected = mcmc_of(num_chains=1).run(Y)
    np.testing.assert_array_equal(read["scale"], expected["scale"][:, :rows])


def read_link(descriptor):
    """What a descriptor of this process is of; empty once it is closed."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""


def test_a_stored_run_broken_off_anywhere_goes_on_bit_for_bit(tmp_path):
    expected = everything(mcmc_of().run(Y))
    where = {"store": tmp_path, "checkpoint": tmp_path}  # one folder has room for both
    for crash in (20, 59, 61, 77, 100, 139):
        with pytest.raises(Crash):
            mcmc_of(crash).run(Y, **where, checkpoint_every=ALWAYS)
        if crash > 90:
            seen = Draws.load(tmp_path)
            assert seen.attrs["interrupted"] is True
            assert seen.num_draws > 3
            whole = np.frombuffer(expected["posterior", "scale"]).reshape(2, -1)
            # Of both chains, or of the first alone where that has more than twice as many.
            assert np.array_equal(seen["scale"], whole[: seen.num_chains, : seen.num_draws])
    for _ in range(2):  # complete, it returns at once
        assert everything(mcmc_of().run(Y, **where)) == expected
    assert everything(Draws.load(tmp_path)) == expected


def test_a_chain_that_draws_late_hides_no_draws_of_the_others(tmp_path, monkeypatch):
    """As `peek` has it: the second chain is taken to have nothing on the disk yet."""
    expected = mcmc_of().run(Y)
    readable = property(lambda record: 0 if record.number else record._written)
    monkeypatch.setattr(stored_record.StoredRecord, "readable", readable)
    with pytest.raises(Crash):
        mcmc_of(139).run(Y, store=tmp_path, checkpoint=tmp_path, checkpoint_every=ALWAYS)
    found = Draws.load(tmp_path)
    assert found.num_chains == 1 and found.attrs["missing_chains"] == [1]
    assert found.num_draws > 3
    np.testing.assert_array_equal(found["scale"], expected["scale"][:1, : found.num_draws])
    mcmc_of().run(Y, store=tmp_path, checkpoint=tmp_path)
    whole = Draws.load(tmp_path)
    assert everything(whole) == everything(expected) and "missing_chains" not in whole.attrs


def test_a_checkpoint_does_not_grow_with_the_draws_on_the_disk(tmp_path):
    sizes = []
    for draws in (80, 1500):
        where = {"store": tmp_path / f"draws{draws}", "checkpoint": tmp_path / f"run{draws}"}
        mcmc = mcmc_of(thinning=1)
        mcmc.num_samples = draws
        mcmc.run(Y, **where)
        sizes.append(max(path.stat().st_size for path in where["checkpoint"].glob("*.ckpt")))
    # A short run may have written its first file alone, which is a quarter smaller than later ones;
    # with the draws in it the other would be several times as large.
    assert sizes[1] < 1.5 * sizes[0]


def test_a_killed_run_without_a_checkpoint_leaves_its_draws(tmp_path):
    script = (
        "import os, time, numpy as np, probtorch\n"
        "from probtorch.infer import MCMC, NUTS, Target\n"
        "target = Target.from_density(lambda q: -0.5 * (q * q).sum(), 3)\n"
        "def hook(kernel, params, stage, i):\n"
        # The folder is told of draws every 50 ms, in which a fast machine makes all of them.
        "    if i == 3000: time.sleep(0.5)\n"
        "    if i == 6000: os.kill(os.getpid(), 9)\n"
        "mcmc = MCMC(NUTS(target), 9000, 100, seed=1, hook_fn=hook, progress_bar=False)\n"
        "from probtorch.infer.mcmc import store, stored_record\n"
        "store.EVERY, stored_record.MOST_ROWS = 0.0, 50\n"
        f"mcmc.run(store={str(tmp_path)!r})\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False)
    assert done.returncode == -9
    read = Draws.load(tmp_path)
    # The hook has not come to all draws that the folder was told of.
    assert 1000 < read.num_draws < 9000
    target = Target.from_density(lambda q: -0.5 * (q * q).sum(), 3)
    mcmc = MCMC(NUTS(target), read.num_draws, 100, seed=1, progress_bar=False)
    mcmc.diagnose = False
    assert np.array_equal(mcmc.run()["x"], read["x"])


def test_draws_of_another_run_are_not_written_over(tmp_path):
    def refused(mcmc, match, **options):
        with pytest.raises(ArgumentError, match=match):
            mcmc.run(Y, store=tmp_path / "a", **options)

    mcmc_of().run(Y, store=tmp_path / "a")
    refused(mcmc_of(), "which has no checkpoint")
    refused(mcmc_of(seed=4), "draws of another run")
    refused(mcmc_of(seed=4), "draws of another run", checkpoint=tmp_path / "new")
    # Killed before its first checkpoint, a run begins anew.
    assert mcmc_of().run(Y, store=tmp_path / "a", checkpoint=tmp_path / "run").num_draws == 26
    with pytest.raises(ArgumentError, match="a folder without"):
        mcmc_of().run(Y, store=tmp_path / "b", checkpoint=tmp_path / "run")
    (tmp_path / "a" / "draws.json").unlink()
    refused(mcmc_of(), "the draws of the run that goes on", checkpoint=tmp_path / "run")
    mcmc = mcmc_of()
    mcmc.run(Y, store=tmp_path / "c")
    mcmc.post_warmup_state = mcmc.last_state
    on = mcmc.run(Y, store=tmp_path / "d")
    assert np.array_equal(on["scale"], mcmc_of(thinning=1, num_chains=2).run(Y)["scale"]) is False
    assert on.num_draws == 26


def test_a_folder_that_cannot_be_read_says_why(tmp_path):
    with pytest.raises(FileError, match="a folder without"):
        Draws.load(tmp_path)
    mcmc_of().run(Y, store=tmp_path / "a")
    (tmp_path / "a" / "posterior.scale.npy").unlink()
    with pytest.raises(FileError, match=r"posterior\.scale\.npy"):
        Draws.load(tmp_path / "a")
    with pytest.raises(Crash):
        mcmc_of(50).run(Y, store=tmp_path / "b")
    with pytest.raises(FileError, match="none yet"):
        Draws.load(tmp_path / "b")
    (tmp_path / "b" / "draws.json").write_text("{")
    with pytest.raises(FileError, match="a damaged file"):
        Draws.load(tmp_path / "b")
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="can be written to"):
        mcmc_of().run(Y, store=tmp_path / "file")


def test_a_full_disk_ends_a_stored_run_and_says_so(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(stores.os, "pwrite", full)
    with pytest.raises(FileError, match="No space left"):
        mcmc_of().run(Y, store=tmp_path)


def test_a_stored_run_is_judged_by_some_of_its_draws(tmp_path, monkeypatch):
    monkeypatch.setattr("probtorch.infer.mcmc.driver.JUDGED", 1000)
    apart = np.array([[0.0], [30.0]])

    def hills(q):
        return probtorch.logaddexp(-0.5 * (q * q).sum(), -0.5 * ((q - 30.0) ** 2).sum())

    mcmc = MCMC(NUTS(Target.from_density(hills, 1)), 4000, 100, num_chains=2, seed=1,
                progress_bar=False)  # fmt: skip
    handle = mcmc.run(init_params=apart, store=tmp_path, blocking=False)
    with pytest.warns(ConvergenceWarning, match="chains disagree on x"):
        draws = handle.result()
    assert draws.num_draws == 4000
    assert handle.progress.rhat > 3.0 and handle.progress.ess < 150.0
    with warnings.catch_warnings():
        warnings.simplefilter("error", InferenceWarning)
        mcmc = MCMC(NUTS(Target.from_density(hills, 1)), 4000, 100, num_chains=2, seed=1,
                    progress_bar=False)  # fmt: skip
        handle = mcmc.run(init_params=0.0 * apart, store=tmp_path / "b", blocking=False)
        handle.result()
    assert handle.progress.rhat < 1.02 and handle.progress.ess > 1000.0


RESIDENT = """
import sys, warnings
import probtorch
import probtorch.distributions as dist
from probtorch.infer import MCMC, NUTS

def wide():
    with probtorch.plate("row", 1000):
        probtorch.sample("x", dist.Normal(0.0, 1.0))

def run(draws, **where):
    mcmc = MCMC(NUTS(wide, max_tree_depth=3), draws, 100, num_chains=2, seed=1, progress_bar=False)
    return mcmc.run(**where).num_draws

def resident(name):
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) / 1024 for line in f if line.startswith(name))

warnings.simplefilter("ignore")
run(300)
with open("/proc/self/clear_refs", "w") as f:
    f.write("5")  # the greatest size is counted from here
before = resident("VmHWM")
draws = run(int(sys.argv[2]), store=sys.argv[1], until_ess=float(sys.argv[3]) or None)
print(draws, resident("VmHWM") - before)
"""


def grown(*args):
    """Draws of a chain, and megabytes by which its process grew at most."""
    done = subprocess.run(
        [sys.executable, "-c", RESIDENT, *map(str, args)],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return map(float, done.stdout.split())


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux what is resident")
def test_draws_of_a_thousand_parameters_stream_in_bounded_memory(tmp_path):
    """100 000 draws, 1.6 GB on the disk; their pages count where they are mapped and looked at.

    Ten times as many take 180 MB, all of the process.
    """
    _, megabytes = grown(tmp_path, 50_000, 0)
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) > 1.6e9
    assert megabytes < 70.0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux what is resident")
def test_a_thousand_parameters_are_drawn_until_enough_in_bounded_memory(tmp_path):
    """Some 600 MB on the disk; a parameter's draws are sorted in memory, not those of all."""
    draws, megabytes = grown(tmp_path, 10_000, 11_000)
    assert draws > 15_000
    assert megabytes < 170.0


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux what is resident")
def test_code_that_compiled_a_stored_run_is_let_go(tmp_path):
    script = (
        "import sys\n"
        "from probtorch.infer import MCMC, NUTS, Target\n"
        "from probtorch.compiler.native.pages import LIBRARY, give_back\n"
        "def pages():\n"
        "    total, ours = 0, False\n"
        "    for line in open('/proc/self/smaps'):\n"
        "        words = line.split()\n"
        "        if not words[0].endswith(':'): ours = words[1] == 'r-xp' and LIBRARY in line\n"
        "        elif ours and words[0] == 'Rss:': total += int(words[1])\n"
        "    return total\n"
        "target = Target.from_density(lambda q: -0.5 * (q * q).sum(), 3)\n"
        "mcmc = MCMC(NUTS(target), 50, 50, seed=1, progress_bar=False)\n"
        "mcmc.diagnose = False\n"
        "mcmc.run()\n"
        "before = pages()\n"
        "mcmc.run(store=sys.argv[1])\n"
        "print(before, pages())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, check=True, capture_output=True,
        text=True, env={**os.environ, "PROBTORCH_CACHE": "0"},
    )  # fmt: skip
    before, after = map(int, done.stdout.split())
    assert before > 20_000 and after < before / 4


def test_a_part_of_mapped_draws_is_read_and_let_go(tmp_path):
    x = np.arange(2 * 300 * 5.0).reshape(2, 300, 5)
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    for values in (x, mapped, mapped[:, :200].reshape(2, 200, 5, 1)):
        made = every_th(values, 7)
        assert not isinstance(made, np.memmap) and np.array_equal(made, values[:, ::7])
    assert np.array_equal(mapped, x)  # what was let go is read again
