"""Files that are damaged, foreign or made to do harm: always a `FileError`, never a wrong value."""

import contextlib
import hashlib
import io
import json
import pickle
import random
import tracemalloc
import zipfile

import numpy as np
import pytest

from probtorch.core.rng import GeneratorState
from probtorch.errors import DeviceError, DTypeError, FileError
from probtorch.nn import Linear, ReLU, Sequential
from probtorch.nn.utils.parametrizations import weight_norm
from probtorch.serialization import container, load, save
from probtorch.serialization.tree import encode
from probtorch.tensor import tensor

TREE = {
    "params": {"loc": tensor([0.5, -1.0]), "scale": tensor(np.ones((3, 2)))},
    "losses": np.arange(20.0),
    "step": 17,
    "names": ["a", "b", None, 1.5],
    "generator": GeneratorState(1, 2, 3),
}


def content(tree=TREE):
    file = io.BytesIO()
    save(tree, file)
    return file.getvalue()


def loaded(data, **options):
    return load(io.BytesIO(data), **options)


def made(header, blobs=()):
    """A file with this header and these blobs, checksums and all."""
    file = io.BytesIO()
    container.write(file, {"blobs": [len(b) for b in blobs], **header}, blobs)
    return file.getvalue()


def signed(text):
    """A file with this text as its header, and no arrays."""
    start = container._START.pack(container.MAGIC, 1, 0, len(text), 64 + len(text) + 32)
    digest = hashlib.sha256(start + text).digest()
    return start + digest + text + hashlib.sha256(digest).digest()


# ------------------------------------------------------------------------------------- damage


def damaged(data, rng):
    """`data` with something done to it, as disks, networks and editors do."""
    data = bytearray(data)
    kind = rng.choice(["bit", "byte", "cut", "more", "zeros", "swap", "repeat", "lines", "insert"])
    i, j = sorted(rng.sample(range(len(data)), 2))
    if kind == "bit":
        data[i] ^= 1 << rng.randrange(8)
    elif kind == "byte":
        data[i] = rng.randrange(256)
    elif kind == "cut":
        del data[i:]
    elif kind == "more":
        data += rng.randbytes(rng.randrange(1, 100))
    elif kind == "zeros":
        data[i:j] = bytes(j - i)
    elif kind == "swap":
        data[i:j] = rng.randbytes(j - i)
    elif kind == "repeat":
        data[i:i] = data[i:j]
    elif kind == "lines":
        data = data.replace(b"\n", b"\r\n")
    elif kind == "insert":
        data[i:i] = rng.randbytes(1)
    return bytes(data)


@pytest.mark.parametrize("mapped", [False, True], ids=["read", "mapped"])
def test_no_damage_goes_unnoticed(mapped, tmp_path):
    good, rng, path, refused = content(), random.Random(0), tmp_path / "x", 0
    while refused < 500:
        bad = damaged(good, rng)
        if bad == good:
            continue
        path.write_bytes(bad)
        with pytest.raises(FileError):
            load(path, mmap=mapped)
        refused += 1


def test_every_single_byte_counts():
    good = content({"x": tensor([1.0, 2.0])})
    for i in range(len(good)):
        bad = bytearray(good)
        bad[i] ^= 0x10
        with pytest.raises(FileError):
            loaded(bytes(bad))


def test_every_length_but_the_whole_is_refused():
    good = content({"x": tensor([1.0, 2.0])})
    for length in range(len(good)):
        with pytest.raises(FileError):
            loaded(good[:length])


def test_the_message_says_what_is_wrong_and_where(tmp_path):
    path = tmp_path / "run.ckpt"
    good = content()
    path.write_bytes(good[:-10])
    with pytest.raises(FileError, match="cut short") as raised:
        load(path)
    assert raised.value.subject == f"loading {path}"
    assert "earlier checkpoint" in raised.value.fix
    path.write_bytes(good + b"\n")
    with pytest.raises(FileError, match="behind its end"):
        load(path)
    bad = bytearray(good)
    bad[good.index(np.float32(-1.0).tobytes())] ^= 1
    path.write_bytes(bad)
    with pytest.raises(FileError, match="blob 0 that do not fit"):
        load(path)
    # Without a look at the arrays their damage cannot be seen; that is what is asked for.
    assert load(path, mmap=True, verify=False)["step"] == 17


def test_a_later_version_is_named():
    bad = bytearray(content())
    bad[8] = 2
    with pytest.raises(FileError, match="version 2"):
        loaded(bytes(bad))


def test_a_file_that_shrinks_while_it_is_read_is_noticed(tmp_path):
    path = tmp_path / "x"
    save(np.zeros(10**6), path)

    class Shrinking(io.FileIO):
        def readinto(self, buffer):
            if len(buffer) > 10**6:
                return super().readinto(memoryview(buffer)[: 10**5]) if self.tell() < 10**6 else 0
            return super().readinto(buffer)

    with Shrinking(path) as stream, pytest.raises(FileError, match="got shorter"):
        load(stream)


# ------------------------------------------------------------------------------------- foreign


def zipped(*names):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in names:
            archive.writestr(name, b"x")
    return file.getvalue()


def npz():
    file = io.BytesIO()
    np.savez(file, x=np.ones(3))
    return file.getvalue()


FOREIGN = {
    "a damaged PyTorch file": (zipped("archive/data.pkl", "archive/data/0"), "torch.save.*copy it"),
    "another archive": (zipped("mimetype"), "zip archive that PyTorch did not write"),
    "an old PyTorch file": (pickle.dumps({"x": 1}, 2), "PyTorch.*safetensors.torch"),
    "npz": (npz(), "numpy.load"),
    "npy": (b"\x93NUMPY\x01\x00", "numpy.load"),
    "netCDF": (b"\x89HDF\r\n\x1a\n" + bytes(100), "Draws.load"),
    "safetensors": (b"\x02\x00\x00\x00\x00\x00\x00\x00{}", r"ends in \.safetensors"),
    "nothing": (b"", "an empty file"),
    "text": (b"loc: 1.0\n", "check the path"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_files_of_others_are_named_with_a_way_to_read_them(name):
    data, expected = FOREIGN[name]
    with pytest.raises(FileError, match=f"(?s){expected}"):
        loaded(data)


class Bomb:
    fired = False

    def __reduce__(self):
        return setattr, (Bomb, "fired", True)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_are_never_run(protocol, tmp_path):
    for name in ("x.pt", "x"):
        path = tmp_path / name
        path.write_bytes(pickle.dumps(Bomb(), protocol))
        with pytest.raises(FileError):
            load(path, weights_only=False)
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", pickle.dumps(Bomb(), protocol))
        with pytest.raises(FileError):
            load(path, weights_only=False)
    assert not Bomb.fired


def test_a_file_that_is_not_there_is_said_as_usual(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing\.ckpt"):
        load(tmp_path / "nothing.ckpt")


# ------------------------------------------------------------------------------------- malice

VIEW = [0, 0, "<f4", [2], None]
BLOB = np.ones(2, "<f4").tobytes()
MALICE = {
    "no nodes": {},
    "nodes that are none": {"nodes": 3},
    "an empty list of nodes": {"nodes": []},
    "a dict as a node": {"nodes": [{"a": 1}]},
    "an unknown kind": {"nodes": [["object", "os.system"]]},
    "a kind that is a list": {"nodes": [[["list"], []]]},
    "a node that holds itself": {"nodes": [["list", [0]]]},
    "a node that holds a later one": {"nodes": [["list", [1]], 3]},
    "a node counted from the end": {"nodes": [1, ["list", [-1]]]},
    "a number that is no number": {"nodes": [1, ["list", [0.0]]]},
    "true for a number": {"nodes": [1, 2, ["list", [True]]]},
    "children that are a text": {"nodes": [1, ["list", "0"]]},
    "half a pair": {"nodes": [1, ["dict", [0]]]},
    "a key twice": {"nodes": ["a", ["dict", [0, 0, 0, 0]]]},
    "a list as a key": {"nodes": [["list", []], ["dict", [0, 0]]]},
    "a state of two numbers": {"nodes": [1, ["generator_state", [0, 0]]]},
    "an integer in no base": {"nodes": [["int", "0xfg"]]},
    "an integer of no text": {"nodes": [["int", 12]]},
    "a float of three bytes": {"nodes": [["float", "000000"]]},
    "too many arguments": {"nodes": [["float", "00" * 8, 1]]},
    "a view that is not there": {"nodes": [["array", 1]]},
    "a view counted from the end": {"nodes": [["array", -1]]},
    "a scalar with dims": {"nodes": [["scalar", 0]]},
    "a gradient of integers": {
        "nodes": [["tensor", 0, "cpu", True]],
        "views": [[0, 0, "<i4", [2], None]],
    },
    **{
        f"a dtype {dtype}": {"views": [[0, 0, dtype, [1], None]]}
        for dtype in (
            "O",
            "|O8",
            "<f16",
            "V4",
            "<f4,<f4",
            "U",
            "<U0",
            3,
            None,
            ">f4",
            "<U999999999",
            "(1,,2)f8",
            "(2,)<f4",
        )
    },
    **{
        f"a value of dtype {dtype}": {"nodes": [["dtype", dtype]]}
        for dtype in ("(1,,2)f8", "(2,)f4", "f4", "O", "<f4,<f4", "x" * 5000, 3, None)
    },
    "a shape beyond the blob": {"views": [[0, 0, "<f4", [3], None]]},
    "a shape that overflows": {"views": [[0, 0, "<f4", [2**32, 2**32], None]]},
    "a shape that overflows to 0": {"views": [[0, 0, "<f4", [2**62, 4], None]]},
    "a negative shape": {"views": [[0, 0, "<f4", [-1], None]]},
    "two negative sizes": {"views": [[0, 0, "<f4", [-1, -2], None]]},
    "a shape of texts": {"views": [[0, 0, "<f4", ["2"], None]]},
    "100 dims": {"views": [[0, 0, "<f4", [1] * 100, None]]},
    "an offset beyond the blob": {"views": [[0, 4, "<f4", [2], None]]},
    "a negative offset": {"views": [[0, -4, "<f4", [2], None]]},
    "a huge offset": {"views": [[0, 2**70, "<f4", [2], None]]},
    "strides beyond the blob": {"views": [[0, 0, "<f4", [2], [8]]]},
    "strides before the blob": {"views": [[0, 0, "<f4", [2], [-4]]]},
    "huge strides": {"views": [[0, 0, "<f4", [2], [2**70]]]},
    "strides that repeat an element": {"views": [[0, 0, "<f4", [2], [0]]]},
    "too few strides": {"views": [[0, 0, "<f4", [1, 2], [4]]]},
    "elements that are not aligned": {"views": [[0, 1, "<f4", [1], None]]},
    "elements that are nowhere": {"views": [[None, 0, "<f4", [2**50], None]]},
    "no elements, of a huge shape": {"views": [[None, 0, "<f4", [0, 2**62, 2**62], None]]},
    "another blob": {"views": [[1, 0, "<f4", [2], None]]},
    "a blob counted from the end": {"views": [[-1, 0, "<f4", [2], None]]},
    "a blob that is true": {"views": [[False, 0, "<f4", [2], None]]},
    "half a view": {"views": [[0, 0]]},
    "views that are none": {"views": None},
}


@pytest.mark.parametrize("name", MALICE)
def test_a_header_with_right_checksums_and_wrong_content_is_refused(name):
    sound = {"nodes": [["array", 0]], "views": [VIEW]}
    np.testing.assert_array_equal(loaded(made(sound, [BLOB])), [1.0, 1.0])
    header = (
        MALICE[name] if name in ("no nodes", "nodes that are none") else {**sound, **MALICE[name]}
    )
    tracemalloc.start()
    try:
        with pytest.raises(FileError):
            loaded(made(header, [BLOB]))
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "sizes", [[2**62], [-8], [8, 8], [], "8", [8.0], [True] * 8, None, [0]], ids=str
)
def test_sizes_that_do_not_fit_the_file_are_refused_before_memory_is_set_aside(sizes):
    text = json.dumps({"nodes": [["array", 0]], "views": [VIEW], "blobs": sizes}).encode()
    start = container._START.pack(container.MAGIC, 1, 0, len(text), 64 + len(text) + 200)
    data = start + hashlib.sha256(start + text).digest() + text + bytes(200)
    tracemalloc.start()
    try:
        with pytest.raises(FileError):
            loaded(data)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("length", [2**63, 2**40, 10**4])
def test_a_header_longer_than_the_file_is_refused(length):
    start = container._START.pack(container.MAGIC, 1, 0, length, 1000)
    with pytest.raises(FileError, match="a header of"):
        loaded(start + bytes(1000 - len(start)))


@pytest.mark.parametrize(
    "text",
    [b"[" * 10**6, b"{}", b"[]", b"null", b"\xff", b'{"blobs":[],"nodes":[NaN]}', b"9" * 5000],
)
def test_a_header_that_is_no_json_or_nests_too_deep_is_refused(text):
    with pytest.raises(FileError):
        loaded(signed(text))


def test_keys_that_would_exhaust_the_stack_are_refused():
    nodes = [["tuple", []], *(["tuple", [i]] for i in range(200_000))]
    with pytest.raises(FileError, match="tuples within tuples"):
        loaded(made({"nodes": [*nodes, ["dict", [200_000, 0]]], "views": []}))
    with pytest.raises(DTypeError, match="a key of more than 1000 entries"):
        save({tuple(range(1000)): 1}, io.BytesIO())
    key = ((1, 2), *range(900))
    assert loaded(content({key: 1})) == {key: 1}


def test_keys_that_would_be_hashed_forever_are_refused():
    nodes = [["tuple", []], *(["tuple", [i, i]] for i in range(100_000))]
    with pytest.raises(FileError, match="tuples within tuples"):
        loaded(made({"nodes": [*nodes, ["dict", [100_000, 0]]], "views": []}))


@pytest.mark.parametrize("kind", ["dict", "ordered_dict"])
def test_keys_with_one_hash_are_refused(kind):
    # Python's hash of a whole number is its rest by this one: a dict of n such keys takes n * n
    # comparisons, 11 s for a file of 0.75 MB.
    prime, n = 2**61 - 1, 20_000
    nodes = [["int", hex(k * prime)] for k in range(n)]
    pairs = [i for k in range(n) for i in (k, 0)]
    with pytest.raises(FileError, match="keys that were made to collide"):
        loaded(made({"nodes": [*nodes, [kind, pairs]], "views": []}))
    few = {k * prime: k for k in range(100)} | {-1: 1, -2: 2}
    assert loaded(content(few)) == few
    many = {k: 2 * k for k in range(-3000, 3000)} | {(k, 0.5 * k): k for k in range(3000)}
    assert loaded(content(many)) == many


def read_or_refused(data, told):
    refused = None
    try:
        loaded(data)
    except FileError as error:
        refused = str(error)
    assert refused is None or told in refused


@pytest.mark.parametrize(
    "node",
    [["list", []], ["tuple", []], ["dict", []], ["ordered_dict", []], ["array", 0], 0.5, "a"]
    + [["tensor", 0, "cpu", False], ["parameter", 0, "cpu", True], ["scalar", 1], ["bytes", 0]],
    ids=lambda node: str(node[0] if isinstance(node, list) else node),
)
def test_a_header_takes_memory_in_proportion_to_its_length(node, monkeypatch):
    monkeypatch.setattr("probtorch.serialization.limits.ALLOWANCE", 0)
    views = [VIEW, [0, 0, "<f4", [], None]]
    data = made({"nodes": [node] * 3000, "views": views}, [BLOB])
    with contextlib.suppress(FileError):
        loaded(data)  # imports what it needs
    told = "more than 12 times its length in memory"
    tracemalloc.start()
    try:
        read_or_refused(data, told)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 12 * len(data) + 2**16
    # Parsed at once it was 18 times for a list of empty lists.
    assert node != ["list", []] or peak < 9 * len(data)


def test_bytes_that_show_one_array_a_thousand_times_are_refused():
    blob = bytes(10**6)
    header = {"nodes": [["bytes", 0]] * 1000, "views": [[0, 0, "|u1", [10**6], None]]}
    tracemalloc.start()
    try:
        with pytest.raises(FileError, match="more than 12 times its length"):
            loaded(made(header, [blob]))
        assert tracemalloc.get_traced_memory()[1] < 50 * 10**6
    finally:
        tracemalloc.stop()


def test_a_name_twice_in_a_header_is_refused():
    text = b'{"nodes":[1],"views":[],"blobs":[],"nodes":[2]}'
    sound = b'{"nodes":[1],"views":[],"blobs":[]}'
    inside = b'{"nodes":[1],"views":[],"blobs":[],"more":{"a":[{"b":1,"b":2}]}}'
    assert loaded(signed(sound)) == 1
    for bad in (text, inside):
        with pytest.raises(FileError, match="a name twice in one object"):
            loaded(signed(bad))


@pytest.mark.parametrize("device", ["cuda:" + "9" * 5000, "cuda:²", "cpu:" + "0" * 5000, "tpu", ""])
def test_a_device_that_is_none_is_refused(device):
    header = {"nodes": [["tensor", 0, device, False]], "views": [VIEW]}
    with pytest.raises(DeviceError) as caught:
        loaded(made(header, [BLOB]))
    assert len(str(caught.value)) < 1000


def test_white_space_in_a_header_is_no_matter():
    header = {"nodes": [1, ["list", [0, 0]]], "views": [], "blobs": [], "more": {}}
    text = json.dumps(header, indent=2).encode() + b" \n"
    assert loaded(signed(text)) == [1, 1]


@pytest.mark.parametrize(
    "text",
    ['{"nodes":[1,],"views":[],"blobs":[]}', '{"nodes":[1],"views":[],"blobs":[]', "", "{", '{"a"']
    + ['{"nodes":[1],"views":[],"blobs":[],}', '{"nodes":[1 2],"views":[],"blobs":[]}', '{"a":']
    + ['{"nodes":[1],"views":[],"blobs":[]}]', '{1:2,"nodes":[1],"views":[],"blobs":[]}', '{"a" 1}']
    + ['{"nodes":[', '{"nodes":[1', '{"nodes":[[', "{,}", '{"nodes":[1]"views":[],"blobs":[]}'],
)
def test_a_header_that_is_nearly_json_is_refused(text):
    with pytest.raises(FileError, match="a header that is no JSON"):
        loaded(signed(text.encode()))


def test_lists_that_hold_lists_that_hold_lists_cost_what_they_hold():
    # A billion laughs: 2 to the 200 if it were written out.
    nodes = ["ha", *(["list", [i, i]] for i in range(200))]
    tracemalloc.start()
    try:
        loaded(made({"nodes": nodes, "views": []}))
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def mutated(value, rng):
    """`value`, a piece of a header, with something in it replaced."""
    strange = [
        None, True, -1, 0, 1, 2, 2**31, 2**63, 2**70, 1.5, "", "list", "x" * 50, [], {}, [0],
        ["list", []], "<f8", "|O", "tensor", "int", "cuda:0", "../x", "\x00",
        "probtorch.nn.linear", "Linear", "set", "object", "named", "os", "weight", ["set", [0]],
        "(1,,2)f8", "cuda:" + "9" * 5000, ["dtype", "(1,,2)f8"],
    ]  # fmt: skip
    if isinstance(value, list) and value and rng.random() < 0.9:
        i = rng.randrange(len(value))
        kind = rng.choice(["inside", "inside", "inside", "drop", "double", "swap"])
        if kind == "inside":
            return [*value[:i], mutated(value[i], rng), *value[i + 1 :]]
        if kind == "drop":
            return value[:i] + value[i + 1 :]
        return value[:i] + value[i:] * 2 if kind == "double" else value[::-1]
    if isinstance(value, int) and not isinstance(value, bool) and rng.random() < 0.5:
        return value + rng.choice([-1, 1, 2, 1000])
    return rng.choice(strange)


def test_headers_with_right_checksums_and_random_content_are_read_or_refused():
    net = Sequential(weight_norm(Linear(2, 2)), ReLU())
    everything = {
        **TREE,
        "net": net,
        "set": {1, "a"},
        "more": [1j, b"xy", 2**90, float("nan"), np.float32(1.0), np.dtype("i4")],
    }
    header, blobs = encode(everything)
    blobs = [bytes(b) for b in blobs]
    rng, refused = random.Random(0), 0
    for _ in range(3000):
        bad = dict(header)
        for _ in range(rng.choice([1, 1, 2, 3])):
            name = rng.choice(["nodes", "nodes", "views", "views", "library"])
            bad[name] = mutated(bad[name], rng)
        file = io.BytesIO()
        container.write(file, bad, blobs)
        try:
            loaded(file.getvalue())
        except (FileError, DeviceError):
            refused += 1
    assert 1000 < refused < 3000
