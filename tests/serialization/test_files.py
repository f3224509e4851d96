"""Putting a file in place: as a whole or not at all, whatever goes wrong."""

import errno
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec

import numpy as np
import pytest

from probtorch.diagnostics import Draws
from probtorch.errors import DTypeError, FileError
from probtorch.serialization import files, load, save

OLD, NEW = {"version": "old"}, {"version": "new", "x": np.arange(1000.0)}


@pytest.fixture
def path(tmp_path):
    found = tmp_path / "state"
    save(OLD, found)
    return found


def only_the_old_one(path):
    return load(path) == OLD and os.listdir(path.parent) == [path.name]


# What can fail while a file is written, with the function that fails.
FAULTS = {
    "no room while writing": ("write", errno.ENOSPC),
    "a broken disk while writing": ("write", errno.EIO),
    "no room while syncing": ("fsync", errno.ENOSPC),
    "no rename": ("replace", errno.EACCES),
    "a read-only file system": ("open", errno.EROFS),
}


def break_one(monkeypatch, name, number):
    def fail(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    if name == "write":
        monkeypatch.setattr("probtorch.serialization.container.hashlib.sha256", Failing(fail))
    elif name == "open":
        monkeypatch.setattr(os, "open", fail)
    else:
        monkeypatch.setattr(os, name, fail)


class Failing:
    """A digest that works twice and then fails: in the middle of the arrays."""

    def __init__(self, fail):
        self.left, self.fail, self.true = 2, fail, __import__("hashlib").sha256

    def __call__(self, *args):
        self.left -= 1
        return self.true(*args) if self.left > 0 else self.fail()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failed_write_leaves_the_file_that_was_there(fault, path, monkeypatch):
    with monkeypatch.context() as patch:
        break_one(patch, *FAULTS[fault])
        with pytest.raises(FileError) as raised:
            save(NEW, path)
    error = raised.value
    assert error.subject == f"writing {path}"
    assert os.strerror(FAULTS[fault][1]) in error.got
    assert "unchanged" in error.fix
    assert error.__cause__.errno == FAULTS[fault][1]
    assert only_the_old_one(path)
    save(NEW, path)
    assert load(path)["version"] == "new"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_disk_that_is_really_full_is_noticed():
    with open("/dev/full", "wb", buffering=0) as full, pytest.raises(OSError, match="No space"):
        save(NEW, full)


def test_an_object_that_cannot_be_saved_leaves_the_file_that_was_there(path):
    with pytest.raises(DTypeError):
        save({"x": object()}, path)
    assert only_the_old_one(path)


def test_an_interrupted_write_leaves_the_file_that_was_there(path, monkeypatch):
    def interrupt(descriptor):
        raise KeyboardInterrupt("Ctrl-C")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            save(NEW, path)
    assert only_the_old_one(path)


def test_file_and_folder_are_synced_around_the_rename(path, monkeypatch):
    events = []

    def sync(descriptor):
        events.append("folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file")

    replace = os.replace
    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", lambda *a: (events.append("rename"), replace(*a)))
    save(NEW, path)
    assert events == ["file", "rename", "folder"]


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileError, match="make the folder first") as raised:
        save(NEW, tmp_path / "none" / "x")
    assert str(tmp_path / "none" / "x") in raised.value.subject


def test_folders_devices_and_pipes_are_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path, tmp_path / "pipe", "/dev/null"):
        with pytest.raises(FileError, match="the path of a file"):
            save(NEW, place)
    assert os.path.exists("/dev/null")


def test_a_link_stays_one_and_what_it_points_to_is_replaced(path, tmp_path):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    for link, to in (("link", path), ("another", "link"), ("nowhere", folder / "new")):
        (tmp_path / link).symlink_to(to)
    save(NEW, tmp_path / "another")
    assert (tmp_path / "another").is_symlink() and (tmp_path / "link").is_symlink()
    assert not path.is_symlink() and load(path)["version"] == "new"
    save(OLD, tmp_path / "nowhere")
    assert load(folder / "new") == OLD


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o444], ids=oct)
def test_a_file_keeps_its_mode(mode, path):
    path.chmod(mode)
    save(NEW, path)
    assert path.stat().st_mode & 0o7777 == mode
    assert load(path)["version"] == "new"


@pytest.fixture(params=["without a name", "with a name"])
def way(request, monkeypatch):
    """Files that have no name while they are written, and file systems that know none."""
    if request.param == "with a name":
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    return request.param


@pytest.mark.usefixtures("way")
def test_draws_as_netcdf_are_written_both_ways(tmp_path):
    draws = Draws(posterior={"x": np.zeros((1, 3))})
    for _ in range(2):
        draws.save(tmp_path / "x.nc")
        assert os.listdir(tmp_path) == ["x.nc"]
        assert Draws.load(tmp_path / "x.nc").posterior["x"].shape == (1, 3)


@pytest.mark.usefixtures("way")
def test_both_ways_of_writing_put_the_same_file_in_place(path):
    save(NEW, path)
    assert load(path)["version"] == "new"
    assert os.listdir(path.parent) == [path.name]
    save(OLD, path.parent / "another")
    assert load(path.parent / "another") == OLD
    assert len(os.listdir(path.parent)) == 2


@pytest.mark.usefixtures("way")
def test_what_dead_processes_left_goes_and_what_others_write_stays(path):
    dead = path.parent / f".{path.name}.{'0' * 16}.tmp"
    dead.write_bytes(b"half a file")
    stale = path.parent / f".{path.name}.{'1' * 16}s.tmp"
    stale.write_bytes(b"half a file of a library")
    os.utime(stale, (0, 0))
    kept = [
        f".other.{'0' * 16}.tmp",
        f".{path.name}.{'0' * 15}.tmp",
        f".{path.name}.tmp",
        f".{path.name}.{'0' * 16}s.tmp",
    ]
    for name in kept:
        (path.parent / name).write_bytes(b"not ours, or perhaps not dead")
    with files.replacing(path) as stream:
        stream.write(b"in the making")
        save(NEW, path)
        assert not dead.exists() and not stale.exists()
        assert os.path.exists(stream.name)
        assert set(kept) <= set(os.listdir(path.parent))
    assert sorted(os.listdir(path.parent)) == sorted([*kept, path.name])
    assert path.read_bytes() == b"in the making"


def test_a_pipe_is_not_waited_for(tmp_path):
    for name in ("pipe", "pipe.safetensors", "pipe.npz", "pipe.nc"):
        os.mkfifo(tmp_path / name)
        read = Draws.load if name.endswith(("npz", "nc")) else load
        if name.endswith("safetensors") and find_spec("safetensors") is None:
            continue
        with pytest.raises(FileError, match="a device, pipe or socket"):
            read(tmp_path / name)


def test_the_file_may_be_read_as_any_new_file_may(tmp_path):
    before = os.umask(0o027)
    try:
        save(OLD, tmp_path / "x")
    finally:
        os.umask(before)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o640


KILLED = """
import os, sys, numpy as np
if sys.argv[2] == "with a name":
    del os.O_TMPFILE
from probtorch.serialization import save
print("ready", flush=True)
for i in range(10**9):
    save({"i": i, "x": np.full(200_000, float(i))}, sys.argv[1])
"""


def test_a_process_killed_while_it_writes_leaves_a_whole_file_and_no_other(way, tmp_path):
    path, rng, seen = tmp_path / "x", np.random.default_rng(0), set()
    for _ in range(2):
        command = [sys.executable, "-c", KILLED, str(path), way]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "ready\n"
            deadline = time.monotonic() + 30
            while not path.exists() and time.monotonic() < deadline:
                time.sleep(0.001)
            time.sleep(rng.uniform(0.02, 0.1))
            process.send_signal(signal.SIGKILL)
        found = load(path)
        assert (found["x"] == found["i"]).all()
        seen.add(found["i"])
        save(found, path)
        assert os.listdir(tmp_path) == ["x"]
    assert max(seen) > 0


def test_sources_that_are_not_installed_save_too(path):
    """As on a machine of which only a checkout is shared: there are no facts of a package."""
    script = (
        "import sys\n"
        "from importlib import metadata\n"
        "def none(name): raise metadata.PackageNotFoundError(name)\n"
        "metadata.version = none\n"
        "import probtorch\n"
        "probtorch.save({'x': probtorch.ones(2)}, sys.argv[1])\n"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], check=True)
    assert load(path)["x"].tolist() == [1.0, 1.0]
