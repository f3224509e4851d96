"""Files of PyTorch's are read as data: what PyTorch wrote comes back, and nothing in one is run."""

import importlib.util
import io
import pickle
import sys
import types
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest

import probtorch
from probtorch import nn, optim
from probtorch.errors import DeviceError, FileError
from probtorch.serialization import load

FILE = Path(__file__).with_name("from_pytorch.pt")


@pytest.fixture(scope="module")
def found():
    return load(FILE)


def values(t):
    return t.numpy(force=True).tolist()


# ------------------------------------------------------------------------ what PyTorch has written


def test_a_state_dict_goes_into_a_module_of_ours(found):
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    net.load_state_dict(found["net"])
    assert values(net[0].weight) == [[0.0, 0.25], [0.5, 0.75], [1.0, 1.25]]
    assert values(net[0].bias) == [0.5, -0.5, 2.0]
    assert isinstance(found["net"], OrderedDict)
    assert found["net"]["1.num_batches_tracked"].dtype == probtorch.int64


def test_a_state_of_an_optimizer_goes_into_ours(found):
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    sgd = optim.SGD(net.parameters(), lr=1.0, momentum=0.5)
    sgd.load_state_dict(found["sgd"])
    assert sgd.param_groups[0]["lr"] == 0.25
    net[0].bias.grad = probtorch.zeros(3)
    before = values(net[0].bias)
    sgd.step()
    # The momentum of a gradient of ones, halved, times the rate.
    assert values(net[0].bias) == pytest.approx([b - 0.125 for b in before])


def test_tensors_of_one_storage_share_memory(found):
    data = load(FILE)
    assert values(data["part"]) == [[1.0, 3.0], [2.0, 4.0]]
    data["whole"][1] = 9.0
    assert data["part"][0, 0] == 9.0
    assert values(found["part"]) == [[1.0, 3.0], [2.0, 4.0]]


def test_tensors_of_every_shape(found):
    assert values(found["spread"]) == [[1.0] * 3] * 2
    assert found["empty"].shape == (0, 3)
    assert found["number"].item() == 2.5 and found["number"].dtype == probtorch.float64


def test_every_dtype_that_numpy_has(found):
    for name, t in found["dtypes"].items():
        assert t.dtype == name and values(t) == [1, 2, 3]
    assert values(found["bool"]) == [True, False]
    assert found["complex"].dtype == np.complex64 and values(found["complex"]) == [1 + 2j, -3j]
    assert values(found["conjugate"]) == [1 - 2j, 3j]


def test_dtypes_that_numpy_lacks_are_float32_of_the_same_values(found):
    for name, expected in {
        "bfloat16": [1.5, -2.0, np.inf],
        "e4m3": [1.5, -448.0, 2.0**-9],
        "e5m2": [1.5, -57344.0, -np.inf],
    }.items():
        assert found[name].dtype == probtorch.float32 and values(found[name]) == expected


def test_parameters_and_leaves_require_grad(found):
    assert type(found["parameter"]) is nn.Parameter and found["parameter"].requires_grad
    assert found["leaf"].requires_grad and not found["whole"].requires_grad
    assert values(found["noted"]) == [1.0, 1.0] and values(found["buffer"]) == [1.0]


def test_plain_data(found):
    assert found["plain"] == [
        1, -2, 2**70, 0.1, "text", b"by\xfftes", b"", None, True, 1 + 2j, (1, (2, "x"))
    ]  # fmt: skip
    assert found["sets"] == [{1, 2}, frozenset({"a"})]
    assert list(found["ordered"].items()) == [("b", 1), ("a", 2)]
    assert found["device"] == "cuda:1" and found["size"] == probtorch.Size([2, 3])
    assert found["dtype"] is probtorch.float64 or found["dtype"] == np.dtype("float64")
    assert found[3] == "a number as a key"


def test_streams_that_cannot_be_moved_back_are_read(found):
    class Pipe(io.RawIOBase):
        def __init__(self):
            self.rest = io.BytesIO(FILE.read_bytes())

        def read(self, size=-1):
            return self.rest.read(size)

    assert values(load(Pipe())["whole"]) == values(found["whole"])


def test_where_pytorch_is_installed_it_writes_the_same(found, tmp_path):
    torch = pytest.importorskip("torch")
    spec = importlib.util.spec_from_file_location(
        "written", FILE.with_name("write_pytorch_files.py")
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.save(module.content(), tmp_path / "x.pt")
    again = load(tmp_path / "x.pt")
    assert repr(again) == repr(found)


# ------------------------------------------------------------- files made here, in PyTorch's layout


@pytest.fixture
def torch(monkeypatch):
    """Modules whose names a pickle then has; nothing of them is ever called."""
    root, utils, storage = map(types.ModuleType, ("torch", "torch._utils", "torch.storage"))
    for module, name in [
        (root, "FloatStorage"),
        (root, "BoolStorage"),
        (root, "Tensor"),
        (root, "Evil"),
        (storage, "UntypedStorage"),
    ]:
        setattr(module, name, type(name, (), {"__module__": module.__name__}))

    def _rebuild_tensor_v2(*args):
        raise AssertionError("called")

    _rebuild_tensor_v2.__module__ = "torch._utils"
    _rebuild_tensor_v2.__qualname__ = "_rebuild_tensor_v2"
    utils._rebuild_tensor_v2 = _rebuild_tensor_v2
    for module in (root, utils, storage):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    root._utils = utils
    return root


class Made:
    """A tensor as PyTorch pickles one."""

    def __init__(self, torch, offset=0, size=(4,), stride=(1,), key="0", count=4, **options):
        self.storage = types.SimpleNamespace(
            kind=options.pop("kind", torch.FloatStorage), key=key, count=count, device="cpu"
        )
        vars(self.storage).update(options)
        self.reduced = torch._utils._rebuild_tensor_v2, (
            self.storage, offset, size, stride, False, OrderedDict()
        )  # fmt: skip

    def __reduce__(self):
        return self.reduced


class Pickler(pickle.Pickler):
    def persistent_id(self, x):
        if isinstance(x, types.SimpleNamespace):
            return ("storage", x.kind, x.key, x.device, x.count)
        return None


def packed(tree, protocol=2, order=b"little", **entries):
    stream = io.BytesIO()
    Pickler(stream, protocol).dump(tree)
    return archived(stream.getvalue(), order, **entries)


def archived(program, order=b"little", compression=zipfile.ZIP_STORED, **entries):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        archive.writestr("x/data.pkl", program)
        archive.writestr("x/byteorder", order)
        given = entries or {"data/0": np.arange(4, dtype="<f4").tobytes()}
        for name, data in given.items():
            archive.writestr(f"x/{name}", data)
    out.seek(0)
    return out


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_every_protocol_of_pickles_is_read(torch, protocol):
    text = "long " * 100
    tree = {"t": Made(torch), "rest": [1, text, text, {2}, (1, 2, 3, 4), b"bytes", {"a": ()}]}
    found = load(packed(tree, protocol))
    assert values(found["t"]) == [0.0, 1.0, 2.0, 3.0] and found["rest"] == tree["rest"]


def test_one_object_stays_one(torch):
    t = Made(torch)
    found = load(packed([t, t, Made(torch)]))
    assert found[0] is found[1] and found[0] is not found[2]
    assert np.shares_memory(found[0].numpy(), found[2].numpy())


def test_the_other_byte_order(torch):
    data = {"data/0": np.arange(4, dtype=">f4").tobytes()}
    assert values(load(packed(Made(torch), order=b"big", **data))) == [0.0, 1.0, 2.0, 3.0]


def test_a_device_that_is_not_here_is_as_for_other_files(torch):
    made = packed(Made(torch, device="cuda:7"))
    with pytest.raises(DeviceError, match='map_location="cpu"'):
        load(made)
    made.seek(0)
    assert values(load(made, map_location="cpu")) == [0.0, 1.0, 2.0, 3.0]


class Runs:
    fired = False

    def __reduce__(self):
        return setattr, (Runs, "fired", True)


WRONG = {
    "a tensor beyond its storage": {"offset": 1},
    "a negative offset": {"offset": -1},
    "a negative size": {"size": (-1,)},
    "a negative stride": {"stride": (-1,), "offset": 3},
    "a stride beyond the storage": {"stride": (2,)},
    "sizes without strides": {"size": (2, 2)},
    "a size that is a text": {"size": ("4",)},
    "a size that is no number": {"size": (True,)},
    "a huge size": {"size": (2**62, 4), "stride": (2**62, 1)},
    "too many dims": {"size": (1,) * 65, "stride": (0,) * 65},
    "a storage that is not there": {"key": "1"},
    "a storage by a path": {"key": "../data.pkl"},
    "a storage that is too short": {"count": 5},
    "a storage that counts by text": {"count": "4"},
    "a storage of text": {"kind": "FloatStorage"},
}


@pytest.mark.parametrize("name", WRONG)
def test_an_impossible_tensor_is_refused(torch, name):
    with pytest.raises(FileError):
        load(packed(Made(torch, **WRONG[name])))


def test_booleans_other_than_0_and_1_are_refused(torch):
    made = packed(Made(torch, kind=torch.BoolStorage), **{"data/0": b"\x00\x01\x02\x01"})
    with pytest.raises(FileError, match="booleans"):
        load(made)


NAMES = {
    "a function": (lambda torch: Runs(), r"setattr"),
    "a class": (lambda torch: {"model": torch.Evil()}, r"torch\.Evil"),
    "a class as data": (lambda torch: [torch.Tensor], r"torch\.Tensor"),
    "a function as data": (lambda torch: [torch._utils._rebuild_tensor_v2], "_rebuild_tensor_v2"),
    "a function in a tuple": (lambda torch: (OrderedDict, 1), "OrderedDict"),
    "a function of NumPy's": (lambda torch: np.ones(2), r"numpy\.\S*_reconstruct"),
    "a key of tuples of tuples": (lambda torch: {((1,),): 1}, "no text or number"),
    "a key of a large number": (lambda torch: {2**61: 1}, "no text or number"),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("protocol", [2, 4])
def test_what_is_no_plain_data_is_refused_by_its_name(torch, name, protocol):
    tree, said = NAMES[name]
    with pytest.raises(FileError, match=said) as raised:
        load(packed(tree(torch), protocol), weights_only=False)
    assert "torch.save(model.state_dict(), path)" in raised.value.fix
    assert not Runs.fired


PROGRAMS = {
    "nothing": b"",
    "no pickle": b"hello",
    "an end too early": b"\x80\x02]",
    "an empty stack": b"\x80\x02.",
    "two results": b"\x80\x02]].",
    "a mark": b"\x80\x02(.",
    "a mark in a list": b"\x80\x02](a.",
    "no mark": b"\x80\x02]e.",
    "a tuple of nothing": b"\x80\x02\x85.",
    "a memo that is not there": b"\x80\x02h\x05.",
    "half a pair": b"\x80\x02}(K\x01u.",
    "an item of a list": b"\x80\x02]K\x01K\x02s.",
    "a call of a number": b"\x80\x02K\x01)R.",
    "a call without arguments": b"\x80\x02ccollections\nOrderedDict\nK\x01R.",
    "a dict made of items": b"\x80\x02ccollections\nOrderedDict\n]K\x01a\x85R.",
    "the inside of a list": b"\x80\x02]}b.",
    "an instance": b"\x80\x02(cposix\nsystem\no.",
    "an old instance": b"(iposix\nsystem\n.",
    "an object by its class": b"\x80\x02ccollections\nOrderedDict\n)\x81.",
    "an extension": b"\x80\x02\x82\x01.",
    "a name with a break": b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
    "a persistent text": b"Pstorage\n.",
    "a persistent number": b"\x80\x02K\x01Q.",
    "a list that is a key": b"\x80\x02}]K\x01s.",
    "other bytes": b"\x80\x04\x8c\x07_codecs\x8c\x06encode\x93\x8c\x01a\x8c\x05utf-7\x86R.",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_pickle_that_is_made_otherwise_is_refused(name):
    with pytest.raises(FileError):
        load(archived(PROGRAMS[name]))


def test_a_file_costs_memory_in_proportion_to_its_length(torch):
    # Five bytes each: another ordered dict.
    names = b"\x80\x02ccollections\nOrderedDict\nq\x00)q\x01"
    program = names + b"](" + b"h\x00h\x01R" * 200_000 + b"e."
    with pytest.raises(FileError, match="far more memory"):
        load(archived(program))


def test_long_lists_of_small_things_are_read():
    tree = [[], {}, {"a": 1}, ("b",), 1, 0.5, None, "text"] * 20_000
    assert (
        load(archived(pickle.dumps([list(x) if type(x) is list else x for x in tree], 2))) == tree
    )


def test_a_list_that_holds_itself_is_what_it_is():
    found = load(archived(b"\x80\x02]q\x00h\x00a."))
    assert found[0] is found


def test_archives_that_are_made_otherwise_are_refused(torch):
    with pytest.raises(FileError, match="compressed"):
        load(archived(b"\x80\x02].", compression=zipfile.ZIP_DEFLATED))
    with pytest.raises(FileError, match="TorchScript"):
        load(archived(b"\x80\x02].", **{"constants.pkl": b"", "code/x.py": b""}))
    whole = packed(Made(torch)).getvalue()
    for part in (whole[:-30], whole[: len(whole) // 2]):
        with pytest.raises(FileError, match="damaged"):
            load(io.BytesIO(part))
    altered = whole.replace(np.arange(4, dtype="<f4").tobytes(), np.ones(4, "<f4").tobytes())
    with pytest.raises(FileError, match="CRC"):
        load(io.BytesIO(altered))
