"""`save` and `load`: whatever goes in comes out, bit for bit, and shares what it shared."""

import collections
import io
import math
import os
import struct
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import probtorch
from probtorch.backends.registry import is_available
from probtorch.core.rng import Generator
from probtorch.core.shape import Size
from probtorch.errors import ArgumentError, DeviceError, DTypeError
from probtorch.nn import BatchNorm1d, Buffer, Linear, Parameter, Sequential
from probtorch.optim import SGD, Adam
from probtorch.serialization import load, save
from probtorch.tensor import Tensor, tensor


def again(tree, **options):
    """`tree` after a trip through a file in memory."""
    file = io.BytesIO()
    save(tree, file)
    file.seek(0)
    return load(file, **options)


def same(x, y):
    """Whether two trees are the same to the bit, types and order of keys included."""
    if type(x) is not type(y):
        return False
    if isinstance(x, dict):
        pairs = zip(x.items(), y.items(), strict=True)
        return len(x) == len(y) and all(same(a, b) for p in pairs for a, b in zip(*p))
    if isinstance(x, (list, tuple)):
        return len(x) == len(y) and all(same(a, b) for a, b in zip(x, y))
    if isinstance(x, Tensor):
        return x.requires_grad == y.requires_grad and same(x.detach().numpy(), y.detach().numpy())
    if isinstance(x, (np.ndarray, np.generic)):
        return (x.dtype, x.shape) == (y.dtype, y.shape) and x.tobytes() == y.tobytes()
    if isinstance(x, float):
        return struct.pack("<d", x) == struct.pack("<d", y)
    if isinstance(x, complex):
        return same((x.real, x.imag), (y.real, y.imag))
    return x == y


# ------------------------------------------------------------------------------------- values

PLAIN = {
    "none": None,
    "booleans": [True, False],
    "integers": [0, -1, 2**63 - 1, -(2**63), 2**63, -(10**400)],
    "floats": [0.1, -0.0, 1e308, 5e-324, math.inf, -math.inf, math.nan],
    "a nan with a message": struct.unpack("<d", bytes.fromhex("0100000000f0ffff"[:16]))[0],
    "complex": complex(-0.0, math.nan),
    "texts": ["", "scale", "naïve θ", "\ud800", 'quotes " and \\', "\x00"],
    "bytes": [b"", b"\x00\xff"],
    "empty": [{}, [], ()],
    "keys": {1: "a", (2, ("x", None)): "b", 1.5: "c", None: "d", "": "e", -1: "f", b"k": "g"},
    "order": {"b": 1, "a": 2},
    "ordered": collections.OrderedDict([("b", 1), ("a", 2)]),
    "shape": Size((2, 3)),
    "state": Generator(3, 4, 5).get_state(),
    "dtype": np.dtype("float32"),
    "numpy numbers": [np.float32(0.1), np.int64(-3), np.bool_(True), np.float16(np.nan)],
}


@pytest.mark.parametrize("name", PLAIN)
def test_plain_values_come_back_as_they_were(name):
    assert same(again(PLAIN[name]), PLAIN[name])


DTYPES = (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 "
    "complex128".split()
)


@pytest.mark.parametrize("dtype", [*DTYPES, "U3", "S3", "M8[ns]", "m8[D]", "M8"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 5), (2, 1, 3)], ids=str)
def test_arrays_of_every_dtype_and_shape_come_back_to_the_bit(dtype, shape):
    dtype = np.dtype(dtype)
    bits = np.random.default_rng(0).integers(0, 2, (*shape, dtype.itemsize), dtype=np.uint8)
    array = np.ascontiguousarray(bits).reshape(-1).view(dtype)[: math.prod(shape)].reshape(shape)
    assert same(again(array), array)
    if dtype.kind in "biufc" and dtype.name not in ("uint16", "uint32", "uint64"):
        assert same(again({"x": probtorch.from_numpy(array.copy())})["x"].numpy(), array)


@given(hnp.arrays(hnp.scalar_dtypes(), hnp.array_shapes(min_dims=0, min_side=0)))
def test_any_array_comes_back(array):
    found = again(array)
    assert same(found, array.astype(array.dtype.newbyteorder("<")))


TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers(), inner)
    ),
)


@given(TREES)
def test_any_tree_comes_back(tree):
    assert same(again(tree), tree)


def test_specials_in_arrays_are_kept_to_the_bit():
    array = np.array([math.nan, -math.nan, math.inf, -0.0, 5e-324])
    array.view(np.uint64)[0] |= 12345
    assert again(array).tobytes() == array.tobytes()


def test_big_endian_arrays_become_little_endian():
    array = np.arange(5, dtype=">i4")
    found = again(array)
    assert found.dtype == np.dtype("<i4")
    np.testing.assert_array_equal(found, array)


def test_deep_trees_need_no_stack():
    tree = leaf = []
    for _ in range(50_000):
        leaf.append([])
        leaf = leaf[0]
    found, depth = again(tree), 0
    while found:
        found, depth = found[0], depth + 1
    assert depth == 50_000


# ------------------------------------------------------------------------------------- memory

BASE = np.arange(60.0).reshape(3, 4, 5)
LAYOUTS = {
    "transposed": BASE.T,
    "permuted": BASE.transpose(1, 2, 0),
    "fortran": np.asfortranarray(BASE),
    "every second": BASE[:, ::2],
    "backwards": BASE[::-1, :, ::-2],
    "a row": BASE[1],
    "a column": BASE[:, 1, 2],
    "a field of 0 dims": BASE[1, 1, 1:2].reshape(()),
    "expanded": np.broadcast_to(np.arange(3.0), (4, 3)),
    "windows": np.lib.stride_tricks.sliding_window_view(np.arange(6.0), 3),
    "read-only": np.frombuffer(b"12345678", np.int16),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_arrays_of_every_layout_come_back(name):
    found = again(LAYOUTS[name])
    assert same(found, LAYOUTS[name])
    assert found.flags.writeable


@pytest.mark.parametrize("name", ["transposed", "permuted", "fortran"])
def test_the_order_of_dims_in_memory_is_kept(name):
    array = LAYOUTS[name]
    assert again(array).strides == array.strides != array.copy(order="C").strides


def test_a_part_of_a_large_array_is_saved_without_the_rest():
    file = io.BytesIO()
    save([np.zeros(10**6)[:3], np.zeros((1000, 1000))[:, :2]], file)
    assert len(file.getvalue()) < 20_000


def test_one_array_under_two_names_is_written_once_and_stays_one():
    weight = tensor(np.zeros(10_000))
    state = {"encoder": weight, "decoder": weight.detach(), "list": [weight]}
    file = io.BytesIO()
    save(state, file)
    assert len(file.getvalue()) < 82_000
    file.seek(0)
    found = load(file)
    assert found["list"][0] is found["encoder"] is not found["decoder"]
    found["encoder"][3] = 1.0
    assert found["decoder"][3].item() == 1.0


def test_views_of_one_array_go_on_sharing_it():
    base = np.arange(12.0).reshape(3, 4)
    parts = {
        "row": probtorch.from_numpy(base[1]),
        "column": probtorch.from_numpy(base[:, 2]),
        "back": base[::-1, ::-1],
        "bytes": base.view(np.uint8),
    }
    found = again(parts)
    assert same(found, parts)
    found["row"][2] = -1.0
    assert found["column"][1].item() == found["back"][1, 1] == -1.0
    assert np.shares_memory(found["bytes"], found["back"])


def test_interleaved_views_of_something_large_are_written_apart():
    base = np.zeros((1000, 1000))
    file = io.BytesIO()
    save([base[:, 0], base[:, 500]], file)
    assert len(file.getvalue()) < 20_000


def test_lists_and_dicts_that_are_one_object_stay_one():
    inner = [1]
    found = again({"a": inner, "b": inner, "c": [inner]})
    assert found["a"] is found["b"] is found["c"][0]


# ------------------------------------------------------------------------------------- tensors


def test_tensors_keep_class_and_wish_for_a_gradient():
    state = {
        "leaf": tensor([1.0], requires_grad=True),
        "parameter": Parameter([1.0]),
        "frozen": Parameter([1.0], requires_grad=False),
        "buffer": Buffer([1.0], persistent=False),
    }
    found = again(state)
    assert same(found, state)
    assert not found["buffer"].persistent
    assert found["leaf"].grad_fn is None


def test_the_result_of_an_operation_is_saved_as_a_leaf():
    found = again(tensor([2.0], requires_grad=True) * 3.0)
    assert found.is_leaf
    assert found.requires_grad
    found.sum().backward()
    assert found.grad.item() == 1.0


def test_state_of_modules_and_optimizers_goes_through_a_file(tmp_path):
    probtorch.manual_seed(0)

    def build():
        net = Sequential(Linear(3, 4), BatchNorm1d(4), Linear(4, 1))
        return net, Adam(net.parameters(), lr=0.01)

    def train(net, optimizer, x):
        for _ in range(5):
            optimizer.zero_grad()
            (net(x) ** 2).sum().backward()
            optimizer.step()

    x = probtorch.randn(8, 3)
    net, optimizer = build()
    train(net, optimizer, x)
    path = tmp_path / "net.pt"
    save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, path)
    train(net, optimizer, x)
    other, its_optimizer = build()
    state = load(path)
    other.load_state_dict(state["net"])
    its_optimizer.load_state_dict(state["optimizer"])
    train(other, its_optimizer, x)
    assert same(dict(other.state_dict()), dict(net.state_dict()))


def test_map_location_is_asked_for_every_tensor():
    state = {"a": tensor([1.0]), "b": np.ones(2)}
    seen = []

    def stay(x, device):
        seen.append(device)
        return x

    assert same(again(state, map_location=stay), state)
    assert seen == ["cpu"]

    def fail(x, device):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        again(state, map_location=fail)
    for where in ("cpu", {"cpu": "cpu"}, {"cuda:0": "cpu"}, lambda x, device: None):
        assert same(again(state, map_location=where), state)
    with pytest.raises(ArgumentError, match="map_location"):
        again(state, map_location=3)
    with pytest.raises(ArgumentError, match="returns the tensor"):
        again(state, map_location=lambda x, device: 3)


@pytest.mark.skipif(is_available("cuda"), reason="wants a machine without a GPU")
def test_a_device_that_is_not_there_is_named_with_the_cure():
    with pytest.raises(DeviceError, match='map_location="cpu"') as raised:
        again(tensor([1.0]), map_location={"cpu": "cuda:0"})
    assert raised.value.subject == "loading a tensor of cuda:0"


@pytest.mark.gpu
def test_tensors_of_a_gpu_come_back_where_they_were_or_where_they_are_sent():
    x = tensor([1.0, 2.0]).cuda()
    found = again({"x": x, "same": x.detach()})
    assert found["x"].device == x.device
    found["x"][0] = 5.0
    assert found["same"][0].item() == 5.0
    assert again(x, map_location="cpu").device == "cpu"


# ------------------------------------------------------------------------------------- refusals


def test_what_cannot_be_saved_is_named_with_its_place():
    with pytest.raises(DTypeError, match=r"object\['a'\]\[0\]") as raised:
        save({"a": [lambda: 0]}, io.BytesIO())
    assert "function" in raised.value.got
    with pytest.raises(DTypeError, match=r"state_dict\(\)"):
        save({"optimizer": SGD(Linear(1, 1).parameters())}, io.BytesIO())
    with pytest.raises(DTypeError, match=r"get_state\(\)"):
        save(Generator(0), io.BytesIO())
    with pytest.raises(DTypeError, match="dtype object"):
        save(np.array([None]), io.BytesIO())
    with pytest.raises(DTypeError, match="MaskedArray"):
        save(np.ma.array([1]), io.BytesIO())
    with pytest.raises(DTypeError, match="a key of type Tensor"):
        save({tensor([1.0]): 1}, io.BytesIO())
    with pytest.raises(DTypeError, match="defaultdict"):
        save(collections.defaultdict(list), io.BytesIO())


def test_subclasses_of_tensors_are_not_made_plain_in_silence():
    class Mine(Tensor):
        __slots__ = ()

    x = Parameter([1.0])
    x.__class__ = Mine
    with pytest.raises(DTypeError, match="detach"):
        save(x, io.BytesIO())


def test_a_tree_that_holds_itself_is_refused():
    tree = {"a": []}
    tree["a"].append(tree)
    with pytest.raises(DTypeError, match="holds itself"):
        save(tree, io.BytesIO())


# ------------------------------------------------------------------------------------- files


def test_paths_and_streams_hold_the_same(tmp_path):
    tree, file = {"x": tensor([1.0, 2.0])}, io.BytesIO()
    save(tree, file)
    save(tree, tmp_path / "a")
    save(tree, str(tmp_path / "b"))
    with open(tmp_path / "c", "wb") as stream:
        save(tree, stream)
    assert {(tmp_path / name).read_bytes() for name in "abc"} == {file.getvalue()}
    with open(tmp_path / "a", "rb") as stream:
        assert same(load(stream), tree)
    assert same(load(str(tmp_path / "b")), tree)


def test_a_pipe_can_be_read():
    tree, file = {"x": tensor([1.0, 2.0])}, io.BytesIO()
    save(tree, file)
    read, write = os.pipe()
    with os.fdopen(read, "rb") as source, os.fdopen(write, "wb") as sink:
        sink.write(file.getvalue())
        sink.close()
        assert same(load(source), tree)


def test_a_mapped_file_is_read_as_it_is_used_and_never_written(tmp_path):
    path = tmp_path / "x"
    array = np.arange(10_000.0)
    save({"x": array, "t": probtorch.from_numpy(array[5:]), "n": np.empty(0)}, path)
    before = path.read_bytes()
    for verify in (True, False):
        found = load(path, mmap=True, verify=verify)
        assert same(found["x"], array)
        assert found["x"].flags.aligned
        found["x"][7] = -1.0
        assert found["t"][2].item() == -1.0
    save({"x": 1}, path)  # another file in its place leaves the mapped one alone
    assert found["x"][8] == 8.0
    save(found, path)
    assert path.read_bytes() != before
    assert load(path)["x"][7] == -1.0


def test_threads_that_change_an_array_cannot_spoil_the_file():
    array, stop = np.zeros(10**6), threading.Event()

    def change():
        while not stop.is_set():
            array[:] += 1.0

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(5):
            assert again(array).shape == array.shape
    finally:
        stop.set()
        thread.join()


def test_names_of_pytorch_are_at_the_front_door():
    assert probtorch.save is save
    assert probtorch.load is load
    assert same(again([1], weights_only=True), [1])
