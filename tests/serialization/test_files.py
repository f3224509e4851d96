"""Putting a file in place: as a whole or not at all, whatever goes wrong."""

import errno
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

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
        monkeypatch.setattr(files, "open", fail, raising=False)
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


def test_a_link_is_replaced_and_what_it_points_to_left_alone(path, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(path)
    save(NEW, link)
    assert not link.is_symlink()
    assert load(path) == OLD
    assert load(link)["version"] == "new"


def test_the_file_may_be_read_as_any_new_file_may(tmp_path):
    before = os.umask(0o027)
    try:
        save(OLD, tmp_path / "x")
    finally:
        os.umask(before)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o640


KILLED = """
import sys, numpy as np
from probtorch.serialization import save
print("ready", flush=True)
for i in range(10**9):
    save({"i": i, "x": np.full(200_000, float(i))}, sys.argv[1])
"""


def test_a_process_killed_while_it_writes_leaves_a_whole_file(tmp_path):
    path, rng, seen = tmp_path / "x", np.random.default_rng(0), set()
    for _ in range(3):
        command = [sys.executable, "-c", KILLED, str(path)]
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
    assert max(seen) > 0
