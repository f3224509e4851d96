"""Exchange with other libraries through safetensors."""

import json
import struct
import sys

import numpy as np
import pytest

import probtorch
from probtorch.errors import DTypeError, FileError
from probtorch.nn import BatchNorm1d, Linear, Sequential
from probtorch.serialization import load, save
from probtorch.tensor import tensor


def by_hand(arrays):
    """A file in the format's own words: length, JSON, bytes."""
    names = {np.dtype("f4"): "F32", np.dtype("f8"): "F64", np.dtype("i8"): "I64"}
    header, data = {}, b""
    for name, x in arrays.items():
        place = [len(data), len(data) + x.nbytes]
        header[name] = {"dtype": names[x.dtype], "shape": list(x.shape), "data_offsets": place}
        data += x.tobytes()
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def parsed(content):
    """Names, dtypes, shapes and bytes of a file in the format."""
    (length,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    header.pop("__metadata__", None)
    return {n: (h["dtype"], h["shape"], data[slice(*h["data_offsets"])]) for n, h in header.items()}


@pytest.fixture
def package():
    return pytest.importorskip("safetensors", reason="the extra safetensors is not installed")


def test_files_of_others_are_read(package, tmp_path):
    path = tmp_path / "x.safetensors"
    arrays = {"w": np.arange(6.0).reshape(2, 3), "n": np.array(3), "e": np.ones((0, 2), "f4")}
    path.write_bytes(by_hand(arrays))
    found = load(path)
    assert set(found) == set(arrays)
    for name, x in arrays.items():
        assert found[name].numpy().dtype == x.dtype
        np.testing.assert_array_equal(found[name].numpy(), x)


def test_the_state_of_a_module_goes_out_and_comes_back(package, tmp_path):
    path = tmp_path / "net.safetensors"
    net = Sequential(Linear(3, 2), BatchNorm1d(2))
    save(net.state_dict(), path)
    content = parsed(path.read_bytes())
    for name, x in net.state_dict().items():
        dtype, shape, data = content[name]
        assert shape == list(x.shape)
        assert data == x.numpy().tobytes()
        assert dtype == {"float32": "F32", "int64": "I64"}[x.numpy().dtype.name]
    other = Sequential(Linear(3, 2), BatchNorm1d(2))
    other.load_state_dict(load(path, map_location="cpu"))
    for a, b in zip(net.state_dict().values(), other.state_dict().values(), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_arrays_that_are_not_contiguous_are_written_as_they_read(package, tmp_path):
    path = tmp_path / "x.safetensors"
    base = np.arange(12.0).reshape(3, 4)
    save({"t": base.T, "s": base[::2, ::-1], "d": probtorch.from_numpy(base[1:2, 1].copy())}, path)
    found = load(path)
    np.testing.assert_array_equal(found["t"].numpy(), base.T)
    np.testing.assert_array_equal(found["s"].numpy(), base[::2, ::-1])


def test_what_the_format_cannot_hold_is_refused(package, tmp_path):
    path = tmp_path / "x.safetensors"
    for tree in ({"step": 3}, [tensor([1.0])], {1: tensor([1.0])}, {"a": {"b": tensor([1.0])}}):
        with pytest.raises(DTypeError, match="choose another suffix"):
            save(tree, path)
    assert not path.exists()


def test_damaged_files_and_foreign_dtypes_are_named(package, tmp_path):
    path = tmp_path / "x.safetensors"
    good = by_hand({"w": np.ones(3)})
    for bad in (b"", good[:-1], good + b"x", good.replace(b"F64", b"F99"), b"\xff" * 100):
        path.write_bytes(bad)
        with pytest.raises(FileError, match="a safetensors file") as raised:
            load(path)
        assert str(path) in raised.value.subject
    path.write_bytes(good.replace(b"F64", b"BF16").replace(b"[3]", b"[12]"))
    with pytest.raises(FileError):
        load(path)
    with pytest.raises(FileNotFoundError, match=r"none\.safetensors"):
        load(tmp_path / "none.safetensors")


def test_without_the_package_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    with pytest.raises(FileError, match=r"pip install 'probtorch\[safetensors\]'"):
        save({"x": tensor([1.0])}, tmp_path / "x.safetensors")
    assert list(tmp_path.iterdir()) == []
