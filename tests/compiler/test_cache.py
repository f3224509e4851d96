"""The disk cache returns what was stored, or nothing: never what somebody else put there."""

import io
import itertools
import os
import stat
import subprocess
import sys
import time
import warnings
from pathlib import Path
from unittest.mock import Mock

import pytest

from probtorch.compiler.native import cache

KEY, OTHER = "a" * 64, "b" * 64
DATA = bytes(range(256)) * 40

posix = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="modes and owners are POSIX's")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A cache directory of this test alone, not made yet."""
    path = tmp_path / "parent" / "cache"
    monkeypatch.setenv("PROBTORCH_CACHE_DIR", str(path))
    monkeypatch.delenv("PROBTORCH_CACHE", raising=False)
    return path


def forget():
    """What a new process would know of the directories it has checked: nothing."""
    cache.forget_directories()


def entry_file(place, key=KEY):
    return place / f"{key}.entry"


def test_what_is_stored_is_loaded_with_its_facts(place):
    assert cache.load(KEY) is None
    cache.store(KEY, DATA, {"calls": ["pt_exp_f64"]})
    entry = cache.load(KEY)
    assert entry == cache.CacheEntry(DATA, {"calls": ["pt_exp_f64"]})
    assert cache.directory() == place


def test_another_process_reads_it(place):
    cache.store(KEY, DATA, {})
    code = (
        f"from probtorch.compiler.native import cache; print(cache.load({KEY!r}).data == {DATA!r})"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "True", out.stderr


@posix
def test_only_the_user_can_read_or_write_what_is_created(place):
    cache.store(KEY, DATA, {})
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    for file in place.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_storing_leaves_no_temporary_files(place):
    cache.store(KEY, DATA, {})
    cache.store(KEY, DATA[::-1], {})
    assert sorted(f.name for f in place.iterdir()) == [f"{KEY}.entry", "key"]
    assert cache.load(KEY).data == DATA[::-1]


def test_zero_switches_it_off(place, monkeypatch):
    monkeypatch.setenv("PROBTORCH_CACHE", "0")
    cache.store(KEY, DATA, {})
    assert cache.load(KEY) is None
    assert cache.directory() is None
    assert not place.exists()


def assert_refused(match):
    """Expect one warning naming the reason and a cure, and a cache that is off but harmless."""
    with pytest.warns(RuntimeWarning, match=match) as caught:
        in_use = cache.directory()
    assert in_use is None
    assert len(caught) == 1
    assert "PROBTORCH_CACHE=0" in str(caught[0].message)
    cache.store(KEY, DATA, {})  # a second warning would be an error
    assert cache.load(KEY) is None


@posix
@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777], ids=oct)
def test_a_directory_that_others_can_write_is_refused(place, mode):
    place.mkdir(parents=True)
    place.chmod(mode)
    assert_refused(r"can be written by other users; .*chmod 700")
    assert list(place.iterdir()) == []


@posix
def test_a_symbolic_link_is_refused(place, tmp_path):
    real = tmp_path / "real"
    real.mkdir(mode=0o700)
    place.parent.mkdir()
    place.symlink_to(real)
    assert_refused(r"is a symbolic link; put a real directory")
    assert list(real.iterdir()) == []


@posix
def test_a_directory_of_another_user_is_refused(place, monkeypatch):
    place.mkdir(parents=True, mode=0o700)
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert_refused(r"belongs to another user; set PROBTORCH_CACHE_DIR")


def test_a_file_in_its_place_is_refused(place):
    place.parent.mkdir()
    place.write_text("not a directory")
    assert_refused(r"is no directory; remove it")


@posix
def test_a_key_that_others_can_read_is_refused(place):
    cache.store(KEY, DATA, {})
    (place / "key").chmod(0o644)
    forget()
    assert_refused(r"can be read by other users, who could forge entries; delete")


def test_a_damaged_key_is_refused(place):
    cache.store(KEY, DATA, {})
    (place / "key").write_bytes(b"short")
    forget()
    assert_refused(r"is damaged; delete")


def assert_ignored_deleted_and_rebuilt(place, key=KEY):
    with pytest.warns(RuntimeWarning, match="was damaged or is not this user's") as caught:
        assert cache.load(key) is None
    assert len(caught) == 1
    assert not entry_file(place, key).exists()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.load(key) is None
        cache.store(key, DATA, {})
        assert cache.load(key).data == DATA


@pytest.mark.parametrize("where", [0, 40, 400, -33, -1])
def test_a_tampered_entry_is_ignored_deleted_and_rebuilt(place, where):
    cache.store(KEY, DATA, {})
    content = bytearray(entry_file(place).read_bytes())
    content[where] ^= 1
    entry_file(place).write_bytes(content)
    assert_ignored_deleted_and_rebuilt(place)


@pytest.mark.parametrize("kept", [0, 1, 31, 32, 100, 5000, -1])
def test_a_truncated_entry_is_ignored_deleted_and_rebuilt(place, kept):
    cache.store(KEY, DATA, {})
    entry_file(place).write_bytes(entry_file(place).read_bytes()[:kept])
    assert_ignored_deleted_and_rebuilt(place)


def test_a_valid_entry_under_another_name_is_ignored_deleted_and_rebuilt(place):
    cache.store(KEY, DATA[::-1], {})
    entry_file(place).rename(entry_file(place, OTHER))
    assert_ignored_deleted_and_rebuilt(place, OTHER)


def test_an_entry_signed_with_another_key_is_ignored_deleted_and_rebuilt(
    place, tmp_path, monkeypatch
):
    forger = tmp_path / "forger"
    monkeypatch.setenv("PROBTORCH_CACHE_DIR", str(forger))
    cache.store(KEY, b"malicious", {})
    monkeypatch.setenv("PROBTORCH_CACHE_DIR", str(place))
    cache.store(OTHER, DATA, {})
    entry_file(place).write_bytes(entry_file(forger).read_bytes())
    assert_ignored_deleted_and_rebuilt(place)


@posix
def test_a_link_to_an_entry_is_not_followed(place, tmp_path):
    cache.store(KEY, DATA, {})
    elsewhere = tmp_path / "elsewhere"
    entry_file(place).rename(elsewhere)
    entry_file(place).symlink_to(elsewhere)
    assert cache.load(KEY) is None


def test_a_full_or_missing_disk_is_no_error(place, monkeypatch):
    assert cache.directory() == place

    class Full(io.FileIO):
        def write(self, content):
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdopen", Full)
        cache.store(KEY, DATA, {})
    assert cache.load(KEY) is None
    assert [f.name for f in place.iterdir()] == ["key"]


def test_nobody_waits_for_the_disk_but_for_the_key(place, monkeypatch):
    synced = Mock(wraps=os.fsync)
    monkeypatch.setattr(os, "fsync", synced)
    cache.store(KEY, DATA, {})
    cache.store("c" * 64, DATA, {})
    assert synced.call_count == 1 and cache.load(KEY).data == DATA


@pytest.mark.parametrize("left", [0, 1, len(DATA)])
def test_what_a_power_cut_has_left_of_an_entry_is_compiled_again(place, left):
    cache.store(KEY, DATA, {})
    file = entry_file(place)
    content = file.read_bytes()
    file.write_bytes(content[:left].ljust(len(content), b"\0"))
    assert_ignored_deleted_and_rebuilt(place)


def test_the_least_recently_used_entries_are_removed_beyond_the_bound(place, monkeypatch):
    monkeypatch.setattr(cache, "MAX_BYTES", 2.5 * len(DATA))
    monkeypatch.setattr(cache, "_stores", itertools.count(1))  # no store prunes by itself
    keys = [c * 64 for c in "cdef"]
    now = time.time()
    for age, key in zip((400, 300, 200, 100), keys):
        cache.store(key, DATA, {})
        os.utime(entry_file(place, key), (now - age, now - age))
    # Reading makes the oldest the newest.
    assert cache.load(keys[0]) is not None
    cache.prune(place)
    left = [key for key in keys if entry_file(place, key).exists()]
    assert left == [keys[0], keys[3]]


def test_there_are_not_too_many_entries(place, monkeypatch):
    monkeypatch.setattr(cache, "MAX_ENTRIES", 2)
    monkeypatch.setattr(cache, "_stores", itertools.count(1))
    keys = [c * 64 for c in "cde"]
    for age, key in enumerate(keys):
        cache.store(key, b"", {})
        os.utime(entry_file(place, key), (1e9 + age, 1e9 + age))
    cache.prune(place)
    assert [cache.load(key) is not None for key in keys] == [False, True, True]


def test_pruning_removes_what_dead_processes_left_and_nothing_else(place):
    cache.store(KEY, DATA, {})
    stale, fresh = place / "x.tmp", place / "y.tmp"
    for file in (stale, fresh):
        file.write_bytes(b"")
    os.utime(stale, (time.time() - 1e5,) * 2)
    cache.prune(place)
    assert sorted(f.name for f in place.iterdir()) == [f"{KEY}.entry", "key", "y.tmp"]


def test_names_depend_on_text_settings_and_machine(monkeypatch):
    names = {cache.key_of("a", 1), cache.key_of("a", 2), cache.key_of("b", 1), cache.key_of("a")}
    monkeypatch.setattr(cache.host, "target_signature", lambda: "another machine")
    names.add(cache.key_of("a", 1))
    assert len(names) == 5
    assert all(len(name) == 64 and int(name, 16) >= 0 for name in names)


WORKER = """
import ctypes, sys
from probtorch.compiler.machine.engine import compile_module
unary = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)
print("ready", flush=True)
sys.stdin.readline()
for k in range(10):
    ir = f"define double @f(double %x) {{\\n  %y = fadd double %x, {k}.0\\n  ret double %y\\n}}\\n"
    module = compile_module(ir)
    assert unary(module.address("f"))(0.5) == k + 0.5
print("done")
"""


def test_eight_processes_share_a_new_cache_without_corruption(place):
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(8)
    ]
    for process in processes:
        assert process.stdout.readline() == "ready\n", process.stderr.read()
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        out, err = process.communicate(timeout=120)
        assert (out, process.returncode) == ("done\n", 0), err
    entries = sorted(place.glob("*.entry"))
    assert len(entries) == 10
    assert all(cache.load(file.stem) is not None for file in entries)
    assert not list(place.glob("*.tmp"))


def test_without_a_home_there_is_no_cache(monkeypatch):
    monkeypatch.delenv("PROBTORCH_CACHE_DIR")

    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    assert cache.directory() is None
