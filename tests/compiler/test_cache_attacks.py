"""Compiled code under attack: what was changed is compiled again and never run.

`test_cache.py` looks at the cache alone. Here code goes through `compile_module` and is called, and
`host.emit_object` is counted: it is what costs, and what must not happen twice.
"""

import ctypes
import os
import subprocess
import sys
import warnings

import pytest

from probtorch.compiler.machine.engine import compile_module
from probtorch.compiler.native import cache, host

posix = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="modes and owners are POSIX's")
_UNARY = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)


def plus(k):
    return f"define double @f(double %x) {{\n  %y = fadd double %x, {k}.0\n  ret double %y\n}}\n"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A cache directory of this test alone, not made yet."""
    path = tmp_path / "parent" / "cache"
    monkeypatch.setenv("PROBTORCH_CACHE_DIR", str(path))
    monkeypatch.delenv("PROBTORCH_CACHE", raising=False)
    return path


@pytest.fixture
def emitted(monkeypatch):
    """The texts that LLVM was given."""
    texts, emit = [], host.emit_object

    def counting(ir, **options):
        texts.append(ir)
        return emit(ir, **options)

    monkeypatch.setattr(host, "emit_object", counting)
    return texts


def use(k):
    """Compile or load the function that adds k, and call it; returns whether it was loaded."""
    module = compile_module(plus(k))
    assert _UNARY(module.address("f"))(0.5) == k + 0.5
    return module.from_cache


def entries(place):
    return sorted(place.glob("*.entry"))


def entry_of(place, k):
    """Compile and return the file that it made."""
    before = set(entries(place)) if place.exists() else set()
    assert not use(k)
    (made,) = set(entries(place)) - before
    return made


@pytest.fixture
def quiet():
    """Collects warnings: there may be one, whatever happens how often."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught
    assert len(caught) <= 1, [str(w.message) for w in caught]


def test_flipped_bits_anywhere_are_found(place, emitted, quiet):
    file = entry_of(place, 1)
    content = file.read_bytes()
    header = content.index(b"\n")
    positions = {*range(0, header, 7), header, *range(header, len(content), 41)}
    positions |= set(range(len(content) - 32, len(content)))
    for n, at in enumerate(sorted(positions), 2):
        changed = bytearray(content)
        changed[at] ^= 1 << (at % 8)
        file.write_bytes(changed)
        assert not use(1)
        assert len(emitted) == n
        assert file.read_bytes()[:header] == content[:header]
        assert use(1)
    assert len(positions) > 60
    assert len(quiet) == 1 and "was damaged" in str(quiet[0].message)


def test_truncated_and_lengthened_entries_are_found(place, emitted, quiet):
    file = entry_of(place, 2)
    content = file.read_bytes()
    for changed in [content[:n] for n in range(0, len(content), 53)] + [
        content + b"\0",
        b"\n" * 99,
    ]:
        file.write_bytes(changed)
        assert not use(2)
        assert use(2)
    assert len(quiet) == 1


def test_entries_that_changed_places_are_found(place, emitted, quiet):
    one, two = entry_of(place, 3), entry_of(place, 4)
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    assert not use(3) and not use(4)
    assert use(3) and use(4)
    assert len(emitted) == 4


def test_code_signed_with_another_key_is_not_run(place, tmp_path, emitted, quiet, monkeypatch):
    file = entry_of(place, 5)
    monkeypatch.setenv("PROBTORCH_CACHE_DIR", str(tmp_path / "forger"))
    # The forger's code under the same name: what adds 5 would add 6.
    forged = compile_module(plus(6))
    cache.store(file.stem, forged.object_bytes, {"defines": ["f"], "calls": []})
    monkeypatch.setenv("PROBTORCH_CACHE_DIR", str(place))
    file.write_bytes((tmp_path / "forger" / file.name).read_bytes())
    assert not use(5)
    assert use(5)


@posix
def test_a_link_in_the_place_of_an_entry_is_replaced(place, tmp_path, emitted, quiet):
    file = entry_of(place, 7)
    elsewhere = tmp_path / "elsewhere"
    file.rename(elsewhere)
    before = elsewhere.read_bytes()
    file.symlink_to(elsewhere)
    assert not use(7)
    assert use(7)
    assert not file.is_symlink() and elsewhere.read_bytes() == before


@posix
def test_a_pipe_in_the_place_of_an_entry_is_not_waited_for(place, emitted, quiet):
    file = entry_of(place, 9)
    file.unlink()
    os.mkfifo(file)
    assert not use(9)
    assert use(9)
    assert file.is_file()


def test_a_folder_in_the_place_of_an_entry_is_no_error(place, emitted, quiet):
    file = entry_of(place, 8)
    file.unlink()
    file.mkdir()
    assert not use(8) and not use(8)


@posix
@pytest.mark.parametrize(
    "attack", ["mode", "owner", "link", "parent", "grandparent", "key mode", "key link"]
)
def test_a_directory_that_others_control_is_not_used(attack, place, tmp_path, emitted, monkeypatch):
    assert not use(9)
    above = {"parent": place.parent, "grandparent": tmp_path}
    if attack == "mode":
        place.chmod(0o707)
    elif attack == "owner":
        owner = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    elif attack == "link":
        place.rename(tmp_path / "real")
        place.symlink_to(tmp_path / "real")
    elif attack in above:
        above[attack].chmod(0o777)
    elif attack == "key mode":
        (place / "key").chmod(0o644)
    else:
        (place / "key").rename(tmp_path / "key")
        (place / "key").symlink_to(tmp_path / "key")
    cache.forget_directories()
    before = sorted(os.listdir(place))
    with pytest.warns(RuntimeWarning, match="compiled code is not cached") as caught:
        loaded = [use(9) for _ in range(3)]
    assert loaded == [False] * 3
    assert len(caught) == 1
    assert len(emitted) == 4
    assert sorted(os.listdir(place)) == before
    if attack in above:
        # As /tmp is: everybody may write, but only the owner can rename.
        above[attack].chmod(0o1777)
        cache.forget_directories()
        assert use(9)


# --------------------------------------------------------------------------- processes side by side

_PROGRAM = """
import sys
import numpy as np
import probtorch
import probtorch.distributions as dist
from probtorch.compiler.native import host
from probtorch.infer import SVI, AutoNormal, Target
from probtorch.optim import Adam

emitted, emit = [], host.emit_object
host.emit_object = lambda ir, **options: (emitted.append(1), emit(ir, **options))[1]
y = probtorch.tensor([28.0, 8.0, -3.0, 7.0])

def model(y):
    mu = probtorch.sample("mu", dist.Normal(0.0, 5.0))
    tau = probtorch.sample("tau", dist.HalfCauchy(5.0))
    with probtorch.plate("school", len(y)):
        probtorch.sample("y", dist.Normal(mu, tau), obs=y)

@probtorch.compile
def smooth(x):
    return (-(x * x)).exp().sum()

print("ready", flush=True)
sys.stdin.readline()
target = Target.from_model(model, y)
value, gradient = target.value_and_grad([0.3, 0.1])
x = probtorch.linspace(-1.0, 1.0, 101)
smooth(x)
svi = SVI(model, AutoNormal(model), Adam({"lr": 0.01}), seed=0)
losses = svi.run(20, y, progress_bar=False).losses
programs = [*target.density.paths]
programs += [p.program for f in (smooth, svi.compiled._function) for p in f.paths]
print(len(programs), sum(p.from_cache for p in programs), len(emitted))
print(value, gradient.tolist(), float(smooth(x)), [float(v) for v in losses])
"""


def start():
    return subprocess.Popen(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(processes):
    """Let all go at once; returns (programs, of them loaded, texts compiled) and results."""
    for process in processes:
        assert process.stdout.readline() == "ready\n", process.stderr.read()
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    counts, results = [], []
    for process in processes:
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        first, second = out.splitlines()
        counts.append(tuple(map(int, first.split())))
        results.append(second)
    return counts, results


def test_a_second_process_compiles_nothing(place):
    ((programs, loaded, emitted),), first = finish([start()])
    assert programs == 3 and loaded == 0 and emitted >= 3
    ((programs, loaded, emitted),), second = finish([start()])
    assert (programs, loaded, emitted) == (3, 3, 0)
    assert first == second


@pytest.mark.slow
def test_eight_processes_at_once_with_a_cold_cache_agree(place):
    counts, results = finish([start() for _ in range(8)])
    assert all(programs == 3 for programs, _, _ in counts)
    assert len(set(results)) == 1
    assert not list(place.glob("*.tmp"))
    made = {file.name for file in place.iterdir()}
    ((_, loaded, emitted),), again = finish([start()])
    assert (loaded, emitted) == (3, 0)
    assert again[0] == results[0]
    assert {file.name for file in place.iterdir()} == made
