"""`python -m probtorch` and `__config__`: what it runs on, and whether a GPU can be used."""

import ctypes
import subprocess
import sys
import types
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

import probtorch
from probtorch import __config__
from probtorch.backends import cupy_

ROOT = Path(__file__).resolve().parents[1]


def rows(text):
    """The lines of all sections, by name."""
    lines = [line.strip() for line in text.splitlines() if line.startswith("  ")]
    return dict(line.split(maxsplit=1) for line in lines)


def test_running_the_package_prints_what_show_returns():
    run = subprocess.run(
        [sys.executable, "-m", "probtorch"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert run.stdout.startswith(f"probtorch {probtorch.__version__}\n")
    printed = rows(run.stdout)
    assert printed["numpy"] == np.__version__
    assert printed["llvmlite"] == metadata.version("llvmlite")
    for section in ("BLAS and threads", "compiler", "devices", "settings"):
        assert f"\n\n{section}\n" in run.stdout
    # The processes differ in nothing that is shown but what the cache holds, and in the libraries
    # of linear algebra and of threads that other packages loaded: several may go by one name.
    own = rows(probtorch.__config__.show())
    aside = {"cache": "", "openmp": "", "blas": ""}
    assert {**own, **aside} == {**printed, **aside}


def test_threads_are_those_in_force():
    before = probtorch.get_num_threads()
    try:
        probtorch.set_num_threads(3)
        assert "loops of compiled programs  3 threads" in __config__.parallel_info()
    finally:
        probtorch.set_num_threads(before)


def test_settings_in_force_are_shown():
    with probtorch.configure(verify=False):
        assert rows(__config__.show())["verify"] == "False"


def test_the_cache_is_named_and_said_to_be_off(monkeypatch, tmp_path):
    monkeypatch.setenv("PROBTORCH_CACHE_DIR", str(tmp_path / "kernels"))
    (tmp_path / "kernels").mkdir(mode=0o700)
    (tmp_path / "kernels" / "a").write_bytes(b"x" * 2**20)
    # The key of the directory is made as it is looked at.
    assert f"{tmp_path / 'kernels'} (2 files, 1.0 MB)" in __config__.show()
    monkeypatch.setenv("PROBTORCH_CACHE", "0")
    assert rows(__config__.show())["cache"].startswith("off")


class Driver:
    """What NVIDIA's library answers."""

    def __init__(self, status):
        self.cuInit = lambda flags: status

    def cuDriverGetVersion(self, version):
        version._obj.value = 12040

    def cuDeviceGetCount(self, count):
        count._obj.value = 2


@pytest.fixture
def on_linux(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    monkeypatch.setattr(cupy_.importlib.util, "find_spec", lambda name: None)


def test_a_machine_without_a_driver_is_told_so(monkeypatch, on_linux):
    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    found = rows(__config__.show())
    assert found["cuda"].startswith("not usable: there is no NVIDIA driver (libcuda.so.1)")
    assert "pip install" not in found["cuda"]  # which would not help


def test_a_driver_that_fails_is_told_with_its_number(monkeypatch, on_linux):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver(804))
    assert "cuInit fails with 804: this device needs a newer driver" in __config__.show()


def test_a_driver_without_cupy_is_told_what_to_install(monkeypatch, on_linux):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver(0))
    text = __config__.show()
    assert "CUDA 12.4, 2 devices" in text
    assert "CuPy is not installed; pip install 'probtorch[cuda12]'" in text


class Device:
    def __init__(self, index):
        self.mem_info = (2**30, 4 * 2**30)
        if index:
            raise RuntimeError("cudaErrorECCUncorrectable")

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        pass


def cupy(arange):
    properties = {"name": b"Some GPU", "major": 9, "minor": 0}
    runtime = types.SimpleNamespace(
        runtimeGetVersion=lambda: 12060,
        getDeviceCount=lambda: 2,
        getDeviceProperties=lambda i: properties,
    )
    cuda = types.SimpleNamespace(runtime=runtime, Device=Device)
    return types.SimpleNamespace(__version__="14.0", cuda=cuda, arange=arange)


@pytest.mark.parametrize(
    "arange, said", [(np.arange, "usable: "), (np.zeros, "NOT USABLE: it computes wrongly")]
)
def test_each_gpu_is_tried_and_its_trouble_told(monkeypatch, arange, said):
    monkeypatch.setitem(sys.modules, "cupy", cupy(arange))
    found = dict(cupy_.facts())
    assert found["CuPy"] == "14.0, CUDA 12.6"
    assert found["cuda:0"].startswith(said) and "Some GPU, 9.0, 1.0 of 4.0 GiB" in found["cuda:0"]
    assert found["cuda:1"].endswith("RuntimeError: cudaErrorECCUncorrectable")
