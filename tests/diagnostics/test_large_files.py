"""Draws that are saved a piece at a time, and as Zarr stores."""

import os
import sys
import tracemalloc

import numpy as np
import pytest

from probtorch.diagnostics import Draws, arviz_, netcdf_pieces
from probtorch.errors import ArgumentError, FileError
from probtorch.serialization.files import replacing_folder
from tests.diagnostics.test_draws import assert_same_draws, awkward

__all__ = ["awkward"]  # a fixture


@pytest.fixture
def gaps(awkward):
    """The same draws with those of a longer run between the chains; some are on the disk."""
    posterior = {
        name: np.concatenate([x, x[:, :3]], axis=1)[:, :10] for name, x in awkward.posterior.items()
    }
    return Draws(
        posterior, awkward.sample_stats, awkward.dims, awkward.coords, awkward.groups, awkward.attrs
    )


def in_pieces(monkeypatch, size):
    monkeypatch.setattr(netcdf_pieces, "LEAST", 0)
    monkeypatch.setattr(netcdf_pieces, "PIECE", size)


@pytest.mark.parametrize("size", [1, 64, 2**20])
def test_draws_in_pieces_come_back_as_they_were(gaps, size, tmp_path, monkeypatch):
    gaps.save(tmp_path / "whole.nc")
    in_pieces(monkeypatch, size)
    gaps.save(tmp_path / "pieces.nc")
    whole, pieces = (Draws.load(tmp_path / f"{name}.nc") for name in ("whole", "pieces"))
    assert_same_draws(whole, gaps)
    assert_same_draws(pieces, gaps)
    assert list(pieces.posterior) == list(gaps.posterior)
    for a, b in zip(
        *(arviz_.read_datatree(tmp_path / f"{n}.nc").subtree for n in ("whole", "pieces"))
    ):
        assert a.path == b.path and a.dataset.equals(b.dataset)


def test_mapped_draws_go_in_pieces(tmp_path, monkeypatch):
    x = np.random.default_rng(0).normal(size=(2, 50, 3))
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    in_pieces(monkeypatch, 100)
    written = []
    monkeypatch.setattr(netcdf_pieces, "let_go", written.append)
    Draws({"x": mapped, "y": x}).save(tmp_path / "x.nc")
    assert len(written) == 2 * 13  # four rows each; of what is in memory in one piece none
    assert_same_draws(Draws.load(tmp_path / "x.nc"), Draws({"x": x, "y": x}))


@pytest.mark.parametrize("make", [
    lambda x: x[:, :-1],
    lambda x: x < 0.5,
    lambda x: x.astype(np.float16),
], ids=["gaps", "flags", "half precision"])  # fmt: skip
def test_saving_large_draws_takes_no_memory_for_a_copy(make, tmp_path):
    values = make(np.random.default_rng(0).random((2, 2201, 1000)))
    draws = Draws({"x": values})
    Draws({"x": values[:, :9]}).save(tmp_path / "first.nc")  # what is imported is there
    tracemalloc.start()
    try:
        draws.save(tmp_path / "x.nc")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # In the file 17 to 35 MB.
    assert peak < 10e6
    assert np.array_equal(Draws.load(tmp_path / "x.nc")["x"], values)


# -------------------------------------------------------------------------------------- Zarr stores


def test_zarr_stores_hold_what_netcdf_holds(awkward, tmp_path):
    pytest.importorskip("zarr")
    import xarray

    for draws in (Draws({"x": np.ones((1, 4))}), awkward):  # which takes the place of the first
        draws.save(tmp_path / "d.zarr")
        with xarray.open_datatree(tmp_path / "d.zarr", engine="zarr") as tree:
            found = Draws(**arviz_.fields_from_datatree(tree.load()))
        assert_same_draws(found, draws)
    draws.save(f"{tmp_path}/d.zarr/")  # as shells complete it
    assert os.listdir(tmp_path) == ["d.zarr"]
    with pytest.raises(FileError, match=r"(?s)a Zarr store.*open_datatree.*\.nc"):
        Draws.load(tmp_path / "d.zarr")


@pytest.mark.parametrize("mark", [".zgroup", "zarr.json"])
def test_a_folder_of_zarr_is_told_from_one_of_a_run(mark, tmp_path):
    with pytest.raises(FileError, match=r"got: +a folder without"):
        Draws.load(tmp_path)
    (tmp_path / mark).touch()
    with pytest.raises(FileError, match=r"got: +a Zarr store"):
        Draws.load(tmp_path)


def test_a_zarr_store_asks_for_its_package(awkward, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zarr", None)
    with pytest.raises(ArgumentError, match=r"(?s)the package zarr.*pip install zarr"):
        awkward.save(f"{tmp_path}/d.zarr/")
    assert not list(tmp_path.iterdir())


def test_a_folder_takes_the_place_of_one_of_its_kind_alone(tmp_path):
    path, marks = tmp_path / "d", ("mark",)

    def write(text, error=None):
        with replacing_folder(path, marks=marks) as folder:
            for name in ("mark", "text"):
                with open(os.path.join(folder, name), "w") as f:
                    f.write(text)
            if error is not None:
                raise error

    write("first")
    write("second")
    with pytest.raises(FileError, match="No space left"):
        write("third", OSError(28, "No space left on device"))
    with pytest.raises(KeyError):
        write("third", KeyError())
    assert (path / "text").read_text() == "second" and os.listdir(tmp_path) == ["d"]
    (path / "mark").unlink()
    with pytest.raises(FileError, match="a new path, or a folder with mark in it"):
        write("third")
    assert (path / "text").read_text() == "second" and os.listdir(tmp_path) == ["d"]
