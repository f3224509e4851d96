"""The record of draws: what it accepts, refuses, selects and keeps on disk."""

import dataclasses
import os
import subprocess
import sys
import tracemalloc
import zipfile
from datetime import date
from pathlib import Path

import numpy as np
import pytest

from probtorch.diagnostics import Draws, arviz_
from probtorch.errors import ArgumentError, DTypeError, FileError, ShapeError

ROOT = Path(__file__).parents[2]


def assert_same_draws(a, b):
    groups = [d._given_groups() for d in (a, b)]
    assert groups[0].keys() == groups[1].keys()
    for group, variables in groups[0].items():
        assert variables.keys() == groups[1][group].keys()
        for name, values in variables.items():
            other = groups[1][group][name]
            np.testing.assert_array_equal(values, other)
            assert values.dtype == other.dtype, (group, name)
    assert a.coords.keys() == b.coords.keys()
    for dim, labels in a.coords.items():
        np.testing.assert_array_equal(labels, b.coords[dim])
    assert (a.dims, a.attrs) == (b.dims, b.attrs)


@pytest.fixture
def awkward():
    """Everything that a file format can trip over."""
    rng = np.random.default_rng(0)
    shape = (2, 10)
    return Draws(
        {
            "flag": rng.random(shape) < 0.5,
            "count": rng.integers(0, 9, (*shape, 3)),
            "wave": rng.normal(size=shape) + 1j * rng.normal(size=shape),
            "net/weight": rng.normal(size=(*shape, 2, 2)).astype(np.float32),
            "net.weight": rng.normal(size=shape),
            "half": rng.normal(size=shape).astype(np.float16),
            "day": rng.normal(size=(*shape, 3)),
        },
        {"diverging": rng.random(shape) < 0.5, "energy": rng.normal(size=shape)},
        # The plate `day` shares its name with a variable; `count` names none of its dims.
        dims={"day": ("day",), "net/weight": (None, "out/side")},
        coords={"day": [10, 20, 30], "out/side": ["a", "b"]},
        groups={
            "observed_data": {"label": np.array(["x", "yy"]), "seen": np.array([True, False])},
            "warmup_posterior": {"count": rng.integers(0, 9, (2, 4, 3))},
        },
        attrs={"none": None, "yes": True, "tree": {"a": [1, 2]}, "n": 3, "model_name": "a/b"},
    )


def test_sizes_and_repr_tell_what_is_there(schools):
    assert (schools.num_chains, schools.num_draws) == (4, 200)
    assert repr(schools) == "Draws(4 chains x 200 draws: mu, tau, theta (school: 3))"


def test_samples_join_chains_one_after_the_other(schools):
    samples = schools.get_samples()
    assert list(samples) == ["mu", "tau", "theta"]
    np.testing.assert_array_equal(samples["theta"][200:400], schools.posterior["theta"][1])
    grouped = schools.get_samples(group_by_chain=True, names="mu")
    assert list(grouped) == ["mu"] and grouped["mu"].shape == (4, 200)


def test_a_record_is_frozen_and_apart_from_the_dicts_it_was_made_of():
    variables = {"x": np.zeros((1, 5))}
    draws = Draws(variables)
    variables["y"] = np.zeros((1, 5))
    assert list(draws.posterior) == ["x"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        draws.posterior = {}


def test_arrays_are_shared_not_copied():
    x = np.zeros((2, 5))
    assert np.shares_memory(Draws({"x": x}).get_samples()["x"], x)


def test_anything_numpy_can_read_is_accepted():
    class Foreign:
        def __array__(self, dtype=None, copy=None):
            return np.ones((2, 3))

    assert Draws({"x": Foreign(), "y": [[1, 2, 3], [4, 5, 6]]}).num_draws == 3


def test_select_keeps_statistics_and_narrows_the_warm_up(schools):
    warm = {name: schools.posterior[name][:, :5] for name in schools.posterior}
    few = schools.with_group("warmup_posterior", warm).select(["tau", "mu"])
    assert list(few.posterior) == ["tau", "mu"]
    assert list(few.groups["warmup_posterior"]) == ["tau", "mu"]
    assert few.sample_stats.keys() == schools.sample_stats.keys()
    with pytest.raises(ArgumentError, match=r"(?s)expected: .*mu, tau, theta.*got: +sigma.*fix: "):
        schools.select("sigma")


def test_with_group_adds_and_replaces(schools):
    prior = {"mu": np.zeros((1, 7))}
    more = schools.with_group("prior", prior, dims={"new": ("time",)}, coords={"time": [1, 2]})
    assert more.groups["prior"]["mu"].shape == (1, 7)
    assert "prior" not in schools.groups and list(more.coords["time"]) == [1, 2]
    fewer = schools.with_group("sample_stats", {})
    assert fewer.sample_stats == {} and fewer.posterior.keys() == schools.posterior.keys()


def test_a_log_likelihood_may_have_lost_event_dims():
    draws = Draws(
        {"x": np.zeros((1, 3))},
        dims={"y": ("row", "column")},
        groups={
            "observed_data": {"y": np.zeros((2, 4))},
            "log_likelihood": {"y": np.zeros((1, 3, 2))},
        },
    )
    assert draws.to_datatree()["log_likelihood"]["y"].dims == ("chain", "draw", "row")


# -------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("ending", ["nc", "npz"])
def test_draws_come_back_from_a_file_as_they_were(schools, awkward, tmp_path, ending):
    for draws in (schools, awkward):
        path = tmp_path / f"draws.{ending}"
        draws.save(path)
        assert_same_draws(Draws.load(path), draws)


@pytest.mark.parametrize("ending", ["nc", "npz"])
def test_a_file_can_be_read_and_replaced_again(schools, tmp_path, ending):
    path = tmp_path / f"draws.{ending}"
    schools.save(path)
    loaded = Draws.load(path)
    loaded.select("mu").save(path)
    assert list(Draws.load(path).posterior) == ["mu"]
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("ending", ["nc", "npz"])
def test_a_failed_save_leaves_the_old_file(schools, tmp_path, ending, monkeypatch):
    path = tmp_path / f"draws.{ending}"
    schools.save(path)
    before = path.read_bytes()

    def full_disk(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="no space"):
        schools.select("mu").save(path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == [path.name]


FULL_DISK = """
import resource, sys
import numpy as np
from probtorch.diagnostics import Draws
from probtorch.errors import FileError
path = sys.argv[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
draws = Draws({f"x{i}": np.random.default_rng(i).normal(size=(4, 20000)) for i in range(3)})
try:
    draws.save(path)
except FileError as error:
    sys.exit(7 if "File too large" in str(error) else str(error))
"""


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="room cannot be set aside there")
@pytest.mark.parametrize("ending", ["nc", "npz"])
def test_a_disk_that_fills_is_an_error_and_no_crash(schools, tmp_path, ending):
    path = tmp_path / f"draws.{ending}"
    schools.save(path)
    before = path.read_bytes()
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(path)], cwd=ROOT, check=False, capture_output=True
    )
    assert done.returncode == 7, done.stderr.decode()
    assert path.read_bytes() == before and os.listdir(tmp_path) == [path.name]


def test_a_netcdf_file_has_its_room_before_it_is_written(schools, awkward, tmp_path, monkeypatch):
    many = Draws({f"x{i}": np.zeros((4, 25, 3)) for i in range(60)}, attrs={"note": "x" * 40000})
    labels = [f"label {i}" for i in range(5000)]
    labelled = Draws({"x": np.ones((1, 2, 5000))}, dims={"x": ("g",)}, coords={"g": labels})
    sizes = []
    monkeypatch.setattr(arviz_, "reserve", lambda _, size: sizes.append(size))
    for draws in (schools, awkward, many, labelled):
        path = tmp_path / "draws.nc"
        draws.save(path)
        assert path.stat().st_size < sizes[-1] < 3 * path.stat().st_size + 2**17


def test_dates_are_kept_as_labels(tmp_path):
    days = np.array(["2024-01-01", "2024-02-01"], "datetime64[D]")
    draws = Draws({"x": np.zeros((1, 4, 2))}, dims={"x": ("day",)}, coords={"day": days})
    for path in (tmp_path / "d.nc", tmp_path / "d.npz"):
        draws.save(path)
        np.testing.assert_array_equal(Draws.load(path).coords["day"], days)


def test_dates_of_pandas_stay_dates_and_pairs_become_text(tmp_path):
    pandas = pytest.importorskip("pandas")
    months = tuple(pandas.date_range("2020-01-01", periods=3, freq="MS"))
    pairs = tuple(pandas.MultiIndex.from_product([["a"], [1, 2, 3]]))
    zoned = tuple(month.tz_localize("Europe/Rome") for month in months)
    for labels, kind, first in [
        (months, "M", np.datetime64("2020-01-01")),
        ((date(2020, 1, 1), None, date(2020, 1, 3)), "U", "2020-01-01"),
        (zoned, "U", str(zoned[0])),
        (tuple(map(pandas.Timestamp, (1, 2, 3))), "U", "1970-01-01 00:00:00.000000001"),
        (pairs, "U", "a, 1"),
    ]:
        draws = Draws({"x": np.zeros((1, 4, 3))}, dims={"x": ("row",)}, coords={"row": labels})
        assert draws.coords["row"].dtype.kind == kind and draws.coords["row"][0] == first
        draws.save(tmp_path / "draws.nc")
        again = Draws.load(tmp_path / "draws.nc").coords["row"]
        np.testing.assert_array_equal(again, draws.coords["row"])


def test_a_file_of_another_library_is_read_in_arviz_terms(az, tmp_path):
    import xarray

    posterior = xarray.Dataset(
        {"b": (("draw", "chain", "city"), np.arange(24.0).reshape(4, 2, 3))},
        coords={"city": ["x", "y", "z"], "chain": [0, 1], "draw": range(4)},
        attrs={"inference_library": "other"},
    )
    path = tmp_path / "other.nc"
    xarray.DataTree.from_dict({"posterior": posterior}).to_netcdf(path, engine="h5netcdf")
    draws = Draws.load(path)
    assert draws.posterior["b"].shape == (2, 4, 3)
    assert draws.posterior["b"][1, 2, 0] == 15.0
    assert draws.dims == {"b": ("city",)} and list(draws.coords["city"]) == ["x", "y", "z"]
    assert draws.attrs == {"inference_library": "other"}


def test_files_without_draws_are_refused(tmp_path):
    import xarray

    np.savez(tmp_path / "a.npz", x=np.zeros(3))
    with pytest.raises(
        ArgumentError, match=r"(?s)expected: .*Draws.save.*got: +format None.*fix: "
    ):
        Draws.load(tmp_path / "a.npz")
    tree = xarray.DataTree.from_dict({"prior": xarray.Dataset({"x": 1.0})})
    tree.to_netcdf(tmp_path / "a.nc", engine="h5netcdf")
    with pytest.raises(
        ArgumentError, match=r"(?s)expected: .*posterior.*got: +groups prior.*fix: "
    ):
        Draws.load(tmp_path / "a.nc")


def test_no_pickle_is_read(tmp_path):
    np.savez(tmp_path / "a.npz", contents=np.array({"format": 1}, dtype=object))
    with pytest.raises(ValueError, match="allow_pickle=False"):
        Draws.load(tmp_path / "a.npz")


# ------------------------------------------------------------------------------------------- errors

OK = np.zeros((2, 5))


@pytest.mark.parametrize(
    "error, fields, message",
    [
        (ArgumentError, {"posterior": {}}, r"at least one variable.*fix: "),
        (ShapeError, {"posterior": {"x": OK[0]}}, r"posterior\['x'\].*chain.*\(5,\).*x\[None\]"),
        (ShapeError, {"posterior": {"x": OK[:0]}}, r"at least one chain.*\(0, 5\).*fix: "),
        (ShapeError, {"posterior": {"x": OK, "y": np.zeros((5, 2))}}, r"\(2, 5\).*\(5, 2\).*fix: "),
        (ShapeError, {"posterior": {"x": OK}, "sample_stats": {"lp": np.zeros((2, 4))}},
         r"sample_stats\['lp'\].*\(2, 5\) as in posterior\['x'\].*\(2, 4\).*fix: "),
        (DTypeError, {"posterior": {"x": np.full((2, 5), "a")}}, r"numbers.*<U1.*fix: "),
        (DTypeError, {"posterior": {"x": np.full((2, 5), None)}}, r"numbers.*object.*fix: "),
        (ArgumentError, {"posterior": {"x": OK}, "groups": {"posteriors": {}}},
         r"expected: .*log_likelihood.*got: .*posteriors.*fix: "),
        (ArgumentError, {"posterior": {"x": np.zeros((2, 5, 3))}, "dims": {"x": ("draw",)}},
         r"other than chain.*got: .*draw.*fix: "),
        (ShapeError, {"posterior": {"x": OK}, "dims": {"x": ("a",)}}, r"at most 0.*'a'.*fix: "),
        (ArgumentError, {"posterior": {"x": np.zeros((2, 5, 3, 3))}, "dims": {"x": ("a", "a")}},
         r"different names.*\('a', 'a'\).*fix: "),
        (ShapeError, {"posterior": {"x": np.zeros((2, 5, 3))}, "dims": {"x": ("a",)},
                      "coords": {"a": [1, 2]}}, r"size 2 as in coords\['a'\].*size 3.*fix: "),
        (ShapeError, {"posterior": {"x": OK}, "coords": {"a": [[1, 2]]}}, r"\(n,\).*\(1, 2\).*fix"),
    ],
    ids=["empty", "no chain dim", "no chains", "disagree", "stats", "text", "objects", "group",
         "reserved", "too many", "twice", "coords size", "coords shape"],
)  # fmt: skip
def test_what_does_not_fit_is_refused_with_a_cure(error, fields, message):
    with pytest.raises(error, match=rf"(?s){message}"):
        Draws(**fields)


def test_a_damaged_npz_file_is_refused(schools, tmp_path):
    path = tmp_path / "draws.npz"
    schools.save(path)
    good, rng = path.read_bytes(), np.random.default_rng(0)
    for _ in range(100):
        bad, place = bytearray(good), rng.integers(len(good))
        if rng.uniform() < 0.5:
            del bad[place:]
        else:
            bad[place] ^= 1 << rng.integers(8)
        path.write_bytes(bad)
        # Bytes that nothing depends on, such as the time a member was made, may differ.
        try:
            found = Draws.load(path)
        except ValueError:
            continue
        for name, values in schools.posterior.items():
            np.testing.assert_array_equal(found.posterior[name], values)


def test_npz_files_that_would_unpack_to_more_than_they_hold_are_refused(tmp_path):
    path = tmp_path / "draws.npz"
    np.savez_compressed(path, contents=np.zeros(10**6))
    with pytest.raises(FileError, match="is compressed"):
        Draws.load(path)
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776,), }"
    member = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(64)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("contents.npy", member)
    with pytest.raises(FileError, match="another size than it says"):
        Draws.load(path)


def netcdf(path, shape, **options):
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        group = file.create_group("posterior")
        for name, size in zip(("chain", "draw"), shape):
            data, chunks = np.arange(size) if size < 100 else None, (min(size, 1000),)
            scale = group.create_dataset(name, (size,), "i8", data, chunks=chunks)
            scale.make_scale(name)
        x = group.create_dataset("x", shape=shape, dtype="f8", **options)
        for i, name in enumerate(("chain", "draw")):
            x.dims[i].attach_scale(group[name])


@pytest.mark.parametrize("shape", [(1, 10**9), (4, 3 * 10**6)], ids=str)
def test_a_netcdf_file_that_asks_for_more_than_it_holds_is_refused(shape, tmp_path):
    path = tmp_path / "bomb.nc"
    netcdf(path, shape, chunks=(1, 1000))
    assert path.stat().st_size < 20_000
    tracemalloc.start()
    try:
        with pytest.raises(FileError, match="arrays of at most"):
            Draws.load(path)
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


def test_a_netcdf_file_with_parts_elsewhere_is_refused(tmp_path):
    path = tmp_path / "parts.nc"
    (tmp_path / "secret").write_bytes(bytes(8 * 10))
    netcdf(path, (1, 10), external=[(str(tmp_path / "secret"), 0, 80)])
    with pytest.raises(FileError, match="lies in another file"):
        Draws.load(path)


@pytest.mark.parametrize("content", [b"", b"no netCDF", b"CDF\x01" + bytes(100)], ids=str)
def test_what_is_no_netcdf_is_refused(content, tmp_path):
    (tmp_path / "x.nc").write_bytes(content)
    with pytest.raises(FileError, match=r"a netCDF file, as Draws\.save writes it"):
        Draws.load(tmp_path / "x.nc")
    with pytest.raises(FileNotFoundError):
        Draws.load(tmp_path / "none.nc")


def test_a_netcdf_file_cut_short_is_refused(tmp_path):
    path = tmp_path / "x.nc"
    Draws(posterior={"x": np.random.default_rng(0).normal(size=(2, 50))}).save(path)
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(FileError, match="copy it again"):
        Draws.load(path)


def test_statistic_may_have_the_name_of_a_variable_with_dims():
    draws = Draws({"lp": np.zeros((1, 5, 2))}, {"lp": np.ones((1, 5))}, dims={"lp": ("bush",)})
    assert draws.sample_stats["lp"].shape == (1, 5) and draws.dims["lp"] == ("bush",)
