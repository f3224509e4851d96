"""Datasets that stay on the disk: the rows that are asked for, from whatever keeps them."""

import pickle

import numpy as np
import pytest

import probtorch
from probtorch.errors import ArgumentError, DTypeError, ShapeError, TensorIndexError
from probtorch.utils.data import (
    ArrayDataset,
    BlockRandomSampler,
    DataLoader,
    ParquetDataset,
    StoredRows,
)

X = np.random.default_rng(0).normal(size=(50, 3))
Y = np.arange(50)


def mapped(folder):
    np.save(folder / "x.npy", X)
    np.save(folder / "y.npy", Y)
    return [np.load(folder / f"{n}.npy", mmap_mode="r") for n in "xy"]


def zarred(folder):
    zarr = pytest.importorskip("zarr")
    found = []
    for name, array in (("x", X), ("y", Y)):
        made = zarr.create_array(
            str(folder / name), shape=array.shape, dtype=array.dtype, chunks=(7, *array.shape[1:])
        )
        made[...] = array
        found.append(made)
    return found


def dasked(folder):
    dask = pytest.importorskip("dask.array")
    return [dask.from_array(a, chunks=(7, *a.shape[1:])) for a in (X, Y)]


@pytest.mark.parametrize("kept", [mapped, zarred, dasked])
def test_rows_are_those_of_the_arrays(tmp_path, kept):
    data = ArrayDataset(*kept(tmp_path), block_rows=8)
    assert len(data) == 50 and data.block_rows == 8
    for rows in (range(8, 16), [3, 4, 5], [40, 2, 2, 17], [-1], []):
        x, y = data.take(rows)
        np.testing.assert_array_equal(x.numpy(), X[list(rows)].reshape(len(rows), 3))
        np.testing.assert_array_equal(y.numpy(), Y[list(rows)])
    x, y = data[-2]
    assert x.tolist() == X[48].tolist() and y.item() == 48
    batches = list(DataLoader(data, batch_size=20, shuffle=True))
    assert sorted(int(i) for _, y in batches for i in y) == list(range(50))


def test_parquet_rows_are_those_of_the_table(tmp_path):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pa.table({"a": X[:, 0], "b": X[:, 1], "y": Y, "name": [str(i) for i in Y]})
    paths = [tmp_path / "first.parquet", tmp_path / "second.parquet"]
    parquet.write_table(table[:30], paths[0], row_group_size=8)
    parquet.write_table(table[30:], paths[1], row_group_size=8)
    data = ParquetDataset(paths, [["a", "b"], "y"])
    again = pickle.loads(pickle.dumps(data))
    for rows in (range(5, 45), [40, 2, 2, 17], []):
        for one in (data, again):
            x, y = one.take(rows)
            np.testing.assert_array_equal(x.numpy(), X[list(rows), :2].reshape(len(rows), 2))
            np.testing.assert_array_equal(y.numpy(), Y[list(rows)])
    with pytest.raises(ArgumentError, match="one of a, b, y, name"):
        ParquetDataset(paths[0], ["c"])
    with pytest.raises(DTypeError, match="number the categories"):
        ParquetDataset(paths[0], ["name"])


def test_parquet_without_pyarrow_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ArgumentError, match=r"pip install probtorch\[parquet\]"):
        ParquetDataset("table.parquet", ["a"])


def test_part_of_a_mapped_file_is_read_in_the_machines_byte_order(tmp_path):
    np.save(tmp_path / "x.npy", X.astype(">f8"))
    data = ArrayDataset(np.load(tmp_path / "x.npy", mmap_mode="r+")[10:])
    (x,) = data.take(range(3, 9))
    np.testing.assert_array_equal(x.numpy(), X[13:19])
    (x,) = data.take(range(40))
    np.testing.assert_array_equal(x.numpy(), X[10:])


def test_what_is_no_table_of_numbers_is_refused():
    with pytest.raises(ShapeError, match="size mismatch"):
        ArrayDataset(X, Y[:10])
    with pytest.raises(DTypeError, match="numbers"):
        ArrayDataset(np.array(["a", "b"]))
    with pytest.raises(DTypeError, match="a shape and a dtype"):
        ArrayDataset([1.0, 2.0])
    with pytest.raises(ArgumentError, match="a positive number of rows"):
        ArrayDataset(X, block_rows=0)
    data = ArrayDataset(X)
    for index in (50, -51):
        with pytest.raises(TensorIndexError):
            data[index]
        with pytest.raises(TensorIndexError):
            data.take([0, index])
    with pytest.raises(NotImplementedError, match="does not define take"):
        StoredRows().take([0])


def test_blocks_come_in_random_order_and_each_sample_once():
    sampler = BlockRandomSampler(
        ArrayDataset(X, block_rows=8), together=2, generator=probtorch.Generator(1)
    )
    first, second = list(sampler), list(sampler)
    assert sorted(first) == list(range(50)) == sorted(second) and first != second
    assert len(sampler) == 50 and {i // 8 for i in first[:16]} != {i // 8 for i in second[:16]}
    with pytest.raises(ArgumentError, match="block_rows"):
        BlockRandomSampler(range(10))
