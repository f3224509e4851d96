"""Index syntax against NumPy, with gradients against scattering, by generated keys."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import probtorch
from probtorch.errors import ArgumentError, DeviceError, ShapeError, TensorIndexError
from probtorch.ops.gathering import gather
from probtorch.ops.indexing import Vindex, vindex
from probtorch.ops.scattering import one_hot
from probtorch.tensor import tensor
from probtorch.testing import assert_close
from tests.backends import fake_cupy

SHAPE = (3, 4, 2, 5)


def slices(n):
    bound = st.none() | st.integers(-n - 1, n + 1)
    step = st.none() | st.sampled_from([1, 2, 3, -1, -2])
    return st.builds(slice, bound, bound, step)


@st.composite
def basic_keys(draw):
    """Ints, slices, None and an Ellipsis, in any order."""
    dims = draw(st.integers(0, len(SHAPE)))
    key = [draw(st.integers(-n, n - 1) | slices(n)) for n in SHAPE[:dims]]
    for _ in range(draw(st.integers(0, 2))):
        key.insert(draw(st.integers(0, len(key))), None)
    if draw(st.booleans()):
        key.append(Ellipsis)
    return tuple(key)


@st.composite
def fancy_keys(draw):
    """At least one integer array or mask among slices and None; no ints, which go first here."""
    key, arrays = [], 0
    common = draw(st.sampled_from([(), (2,), (3, 2)]))
    for n in SHAPE:
        if draw(st.booleans()):
            shape = common if draw(st.booleans()) else (1,) * len(common)
            size = int(np.prod(shape))
            values = draw(st.lists(st.integers(-n, n - 1), min_size=size, max_size=size))
            key.append(np.array(values, np.int64).reshape(shape))
            arrays += 1
        else:
            key.append(draw(slices(n)))
    if not arrays:
        key[0] = np.array([2, 0, 0])
    elif common == () and arrays > 1:
        key = [k if isinstance(k, slice) else k.reshape(1) for k in key]
    if draw(st.booleans()):
        key.insert(draw(st.integers(0, len(key))), None)
    return tuple(key)


@given(basic_keys() | fancy_keys(), st.booleans())
def test_reading_agrees_with_numpy(key, as_tensors):
    x = np.arange(np.prod(SHAPE), dtype=np.float64).reshape(SHAPE)
    t = probtorch.tensor(x, requires_grad=True)
    wrap = lambda k: probtorch.from_numpy(k) if as_tensors and isinstance(k, np.ndarray) else k
    got = t[tuple(wrap(k) for k in key)]
    expected = x[key]
    assert_close(got, expected, rtol=0, atol=0)
    if expected.size:
        weights = np.arange(1.0, expected.size + 1).reshape(expected.shape)
        (g,) = probtorch.autograd.grad(got, t, weights, materialize_grads=True)
        scattered = np.zeros(SHAPE)
        np.add.at(scattered, key, weights)
        assert_close(g, scattered, rtol=0, atol=0)


@given(basic_keys() | fancy_keys(), st.sampled_from(["number", "full", "row"]), st.booleans())
def test_writing_agrees_with_numpy(key, kind, taped):
    expected = np.arange(np.prod(SHAPE), dtype=np.float64).reshape(SHAPE)
    place = expected[key]
    # One value everywhere, so that the order of repeated writes does not matter.
    value = {"number": -1.0, "full": np.full(place.shape, -1.0), "row": np.full((1, 1), -1.0)}[kind]
    if kind == "row" and place.ndim < 2:
        value = -1.0
    t = probtorch.tensor(expected, requires_grad=taped)
    t = t * 1.0 if taped else t
    t[key] = value if kind == "number" else probtorch.as_tensor(np.asarray(value))
    expected[key] = value
    assert_close(t, expected, rtol=0, atol=0)
    assert t.requires_grad == taped


MASKED = np.arange(24.0).reshape(2, 3, 4)


@pytest.mark.parametrize(
    "key",
    [
        (MASKED > 7.0,),
        (np.array([True, False]),),
        (np.array([[True, False, True], [False, True, False]]),),
        (slice(None), np.array([True, False, True])),
        (Ellipsis, np.array([True, False, False, True])),
        (np.array([True, True]), slice(1, None)),
        (np.zeros((2, 3), bool), slice(None)),
    ],
    ids=range(7),
)
def test_masks_agree_with_numpy(key):
    t = probtorch.tensor(MASKED, requires_grad=True)
    as_tensors = tuple(probtorch.from_numpy(k) if isinstance(k, np.ndarray) else k for k in key)
    assert_close(t[as_tensors], MASKED[key])
    (g,) = probtorch.autograd.grad(t[as_tensors].sum(), t)
    expected = np.zeros_like(MASKED)
    expected[key] = 1.0
    assert_close(g, expected)


def test_integers_go_before_index_tensors_as_in_torch():
    # NumPy moves the dims of separated indices to the front; torch takes the integer first.
    x = np.arange(24.0).reshape(2, 3, 4)
    t, i = probtorch.from_numpy(x), probtorch.tensor([0, 2])
    assert_close(t[1, :, i], x[1][:, [0, 2]])
    assert_close(t[probtorch.tensor(1), :, i], x[1][:, [0, 2]])
    t[1, :, i] = probtorch.zeros(3, 2, dtype=probtorch.float64)
    assert_close(t[1], np.where(np.arange(4) % 2, x[1], 0.0))


def test_repeated_indices_add_up_in_the_gradient():
    x = probtorch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    (x[[0, 0, 2]] * probtorch.tensor([1.0, 10.0, 100.0])).sum().backward()
    assert x.grad.tolist() == [11.0, 0.0, 100.0]


def test_basic_index_is_a_view_and_index_tensor_a_copy():
    x = probtorch.zeros(3, 2)
    x[1][0] = 5.0
    x[[0, 1]][0] = 7.0
    assert x.tolist() == [[0.0, 0.0], [5.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize(
    "key, words",
    [
        (3, r"index in \[-3, 2\] for dim 0"),
        ((0, -3), r"index in \[-2, 1\] for dim 1"),
        ((0, 0, 0), "at most 2 indices"),
        (1.5, "float 1.5"),
        ("x", "str 'x'"),
        (np.array([0.5]), "an array of dtype float64"),
        (probtorch.tensor([0.7, 1.9]), "a tensor of dtype float32"),
        (
            probtorch.tensor([1, 0, 1], dtype=probtorch.uint8),
            r"dtype uint8[\s\S]*bool\(\) for a mask",
        ),
        (np.array(["a", "b"]), "cat.codes"),
        ([[0, 1], [2]], "rows of equal length"),
        ([slice(0, 1), 0], "a list of integers"),
        (slice(0.5, 2), "slices of integers"),
        (slice(0, 2, 0), "a step that is not 0"),
        ((0, probtorch.tensor(0.0)), "a tensor of dtype float32"),
    ],
    ids=str,
)
def test_bad_index_is_named(key, words):
    with pytest.raises(IndexError, match=words) as caught:
        probtorch.zeros(3, 2)[key]
    assert "fix:" in str(caught.value)


@pytest.mark.parametrize("taped", [False, True])
def test_index_tensor_out_of_bounds_raises_when_read_and_written(taped):
    x = probtorch.zeros(3, requires_grad=taped) * 1.0
    for bad in ([0, 3], [-4]):
        with pytest.raises(TensorIndexError, match="expected: "):
            x[probtorch.tensor(bad)]
        with pytest.raises(TensorIndexError):
            x[probtorch.tensor(bad)] = 1.0


@pytest.mark.parametrize("taped", [False, True])
def test_value_that_does_not_fit_is_refused(taped):
    x = probtorch.zeros(2, 3, requires_grad=taped) * 1.0
    for key in (0, [0, 1], (slice(None), [0, 2])):
        with pytest.raises(ShapeError, match="a value that broadcasts"):
            x[key] = probtorch.ones(5)


def test_mask_of_another_shape_is_refused():
    for error in (ShapeError, IndexError):
        with pytest.raises(error, match=r"a mask of shape \(3,\)"):
            probtorch.zeros(3, 2)[probtorch.tensor([True, False])]


def test_read_only_memory_cannot_be_assigned_to():
    with pytest.raises(ArgumentError, match="read-only"):
        probtorch.from_numpy(np.broadcast_to(0.0, (3,)))[0] = 1.0


def test_gather_and_scatter_are_each_others_transpose():
    rng = np.random.default_rng(0)
    x, index = rng.standard_normal((4, 3)), rng.integers(0, 4, (2, 3))
    for dim in (0, 1):
        i = index if dim == 0 else rng.integers(0, 3, (4, 2))
        t = probtorch.tensor(x, requires_grad=True)
        got = probtorch.gather(t, dim, probtorch.from_numpy(i))
        assert_close(got, np.take_along_axis(x, i, dim))
        g = rng.standard_normal(i.shape)
        (gx,) = probtorch.autograd.grad(got, t, g)
        zeros = probtorch.zeros(4, 3, dtype=probtorch.float64)
        spread = probtorch.scatter(zeros, dim, probtorch.from_numpy(i), g, accumulate=True)
        assert_close(gx, spread)


@pytest.mark.parametrize("shape", [(2, 1), (1, 2), (2,), (2, 2, 1)])
def test_scatter_refuses_a_source_smaller_than_the_index(shape):
    index = probtorch.zeros(2, 2, dtype=probtorch.int64)
    with pytest.raises(ShapeError, match=r"scatter(.*\n)+.*at least the shape of the index"):
        probtorch.scatter(probtorch.zeros(2, 2), 1, index, probtorch.ones(*shape))


def test_scatter_writes_numbers_and_tensors():
    x = probtorch.zeros(2, 3)
    index = probtorch.tensor([[0, 2], [1, 0]])
    expected = np.zeros((2, 3))
    np.put_along_axis(expected, index.numpy(), 5.0, 1)
    assert_close(probtorch.scatter(x, 1, index, 5.0), expected)


def test_index_put_adds_or_writes():
    x = probtorch.zeros(3)
    at = [probtorch.tensor([0, 0, 2])]
    assert probtorch.index_put(x, at, 1.0, accumulate=True).tolist() == [2.0, 0.0, 1.0]
    assert probtorch.index_put(x, at, 1.0).tolist() == [1.0, 0.0, 1.0]
    assert x.tolist() == [0.0, 0.0, 0.0]


def test_index_select_and_masked_select():
    x = probtorch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert probtorch.index_select(x, -1, probtorch.tensor([1, 0])).tolist() == [
        [2.0, 1.0],
        [4.0, 3.0],
    ]
    assert probtorch.masked_select(x, x > 2).tolist() == [3.0, 4.0]


def test_one_hot():
    assert probtorch.one_hot(probtorch.tensor([0, 2])).tolist() == [[1, 0, 0], [0, 0, 1]]
    assert probtorch.one_hot(probtorch.tensor([1]), 4).shape == (1, 4)
    with pytest.raises(TensorIndexError):
        probtorch.one_hot(probtorch.tensor([3]), 2)


# ------------------------------------------------------------------------------------------- vindex


def by_loop(x, lead, key):
    """`vindex` element by element: every batch index on its own."""
    batch = x.shape[: x.ndim - len(key)] if lead else ()
    arrays = [np.asarray(k) for k in key if not isinstance(k, slice)]
    shape = np.broadcast_shapes(batch, *(a.shape for a in arrays))
    rows = [np.broadcast_to(np.asarray(r), shape) for r in np.indices(batch)] if batch else []
    for d in range(len(batch)):
        if batch[d] == 1:
            rows[d] = np.zeros(shape, int)
    spread = iter([np.broadcast_to(a, shape) for a in arrays])
    spread = [k if isinstance(k, slice) else next(spread) for k in key]
    out = np.empty(shape, object)
    for i in np.ndindex(*shape):
        out[i] = x[(*(r[i] for r in rows), *(k if isinstance(k, slice) else k[i] for k in spread))]
    return np.array(out.tolist())


@pytest.mark.parametrize("seed", range(30))
def test_vindex_is_indexing_one_batch_element_at_a_time(seed):
    rng = np.random.default_rng(seed)
    batch = tuple(int(n) for n in rng.choice([1, 3], rng.integers(0, 3)))
    event = tuple(int(n) for n in rng.integers(2, 4, rng.integers(1, 4)))
    x = rng.normal(size=batch + event)
    key = []
    for n in event:
        shape = tuple(int(k) for k in rng.choice([1, 3], rng.integers(0, 4)))
        array = rng.integers(0, n, shape)
        key.append([slice(None), int(rng.integers(n)), array][rng.integers(3)])
    indices = [tensor(k) if isinstance(k, np.ndarray) else k for k in key]
    found = Vindex(tensor(x))[(..., *indices)]
    np.testing.assert_array_equal(found.numpy(), by_loop(x, True, key))
    if not batch:
        np.testing.assert_array_equal(vindex(tensor(x), tuple(indices)).numpy(), found.numpy())


def test_vindex_refuses_slices_and_inner_ellipsis():
    x = tensor(np.zeros((2, 3)))
    for key in ((0, ...), (..., slice(0, 1)), (0, 0, 0)):
        with pytest.raises(TensorIndexError, match="on the left only"):
            vindex(x, key)


def test_vindex_passes_gradients_to_the_rows_it_took():
    x = tensor(np.ones((2, 3)), requires_grad=True)
    Vindex(x)[..., tensor([0, 2])].sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])


def test_numbers_of_the_host_are_put_into_tensors_of_a_device(monkeypatch):
    fake_cupy.install(monkeypatch)
    x = tensor(np.arange(6.0)).to("cuda")
    x[0], x[1:3] = 7.0, 8
    x[x < 5.0] = tensor(9.0)
    np.testing.assert_array_equal(x.cpu().numpy(), [7.0, 8.0, 8.0, 9.0, 9.0, 5.0])
    np.testing.assert_array_equal(x.fill_(2.0).cpu().numpy(), np.full(6, 2.0))
    np.testing.assert_array_equal(x.zero_().cpu().numpy(), np.zeros(6))
    with pytest.raises(DeviceError, match="numbers of shape"):
        x[:2] = tensor([1.0, 2.0])


def test_copies_in_place_come_from_any_device(monkeypatch):
    fake_cupy.install(monkeypatch)
    host, there = tensor(np.arange(3.0)), tensor(np.zeros(3)).to("cuda")
    assert there.copy_(host).is_cuda
    np.testing.assert_array_equal(there.cpu().numpy(), host.numpy())
    assert not host.copy_(there * 2.0).is_cuda
    np.testing.assert_array_equal(host.numpy(), [0.0, 2.0, 4.0])


def test_indices_of_the_host_point_into_tensors_of_a_device(monkeypatch):
    fake_cupy.install(monkeypatch)
    values = np.arange(12.0).reshape(3, 4)

    def results(device):
        x = tensor(values).to(device).requires_grad_()
        picked = x[tensor([2, 0]), tensor([1, 3])]
        written = x * 1.0
        written[tensor([0, 1])] = 5.0
        total = picked.sum() + (written * written).sum() + gather(x, 1, tensor([[0, 3]])).sum()
        total.backward()
        labels = one_hot(tensor([1, 0]).to(device), 3)
        return [t.cpu().detach().numpy() for t in (picked, written, x.grad, labels)]

    for there, here in zip(results("cuda"), results("cpu"), strict=True):
        np.testing.assert_array_equal(there, here)


class Column:
    """What a column of a data frame is to an index: something that can become an array."""

    def __init__(self, values):
        self._values = np.array(values)

    def __array__(self, dtype=None, copy=None):
        return np.array(self._values, dtype)


M3, M34 = np.array([True, False, True]), np.arange(12).reshape(3, 4) % 3 == 0
MIXED = [
    (np.array([0, 2]), np.array([True, False, True, False])),
    (np.array([True, False, True]), np.array([0, 3])),
    (M3, np.array([True, False, True, False])),
    (None, M3, np.array([True, False, True, False])),
    (np.array([[1], [2]]), np.array([True, False, True, True])),
    (M34, np.array([1, 0, 1, 0])),
    (slice(None, 2), slice(None), np.array([True, True]), np.array([4, 0])),
    (Ellipsis, np.array([True, False]), np.array([1])),
    (M3, Ellipsis, np.array([0, 1])),
    True,
    False,
    (True, slice(1)),
    (slice(1), True),
    (Ellipsis, False),
    (Ellipsis, True, slice(2)),
    (slice(2), np.array(True), None),
    (None, True, M34),
]


@pytest.mark.parametrize("key", MIXED, ids=str)
@pytest.mark.parametrize("as_tensors", [False, True])
def test_masks_stand_beside_tensors_and_truth_values_as_in_numpy(key, as_tensors):
    x = np.arange(120.0).reshape(SHAPE)
    parts = key if isinstance(key, tuple) else (key,)
    if as_tensors:
        parts = tuple(probtorch.tensor(k) if isinstance(k, np.ndarray) else k for k in parts)
    t = probtorch.tensor(x, requires_grad=True)
    got = t[parts]
    assert_close(got.detach(), x[key])
    # Each element counts as often as it was read.
    weights = np.arange(1.0, 1.0 + got.numel()).reshape(got.shape)
    got.backward(probtorch.tensor(weights))
    wanted = np.zeros_like(x)
    np.add.at(wanted, key, weights)
    assert_close(t.grad, wanted)
    written = x.copy()
    written[key] = 7.0
    for grad in (False, True):
        y = probtorch.tensor(x, requires_grad=grad) * 1.0
        y[parts] = probtorch.tensor(7.0, dtype=probtorch.float64)
        assert_close(y.detach(), written)

    def changed(x):
        inside = tuple(probtorch.tensor(k) if isinstance(k, np.ndarray) else k for k in parts)
        y = x * 1.0
        y[inside] = 7.0
        return y, x[inside]

    if not as_tensors:
        compiled = probtorch.compile(changed)
        for _ in range(2):
            for a, b in zip(compiled(probtorch.tensor(x)), (written, x[key])):
                assert_close(a, b)


def test_tensor_without_dims_is_indexed_by_a_mask_of_none():
    x = probtorch.tensor(3.0)
    assert x[x == 3].tolist() == [3.0]
    assert x[x == 4].tolist() == []
    assert [i.tolist() for i in probtorch.nonzero(x, as_tuple=True)] == [[0]]
    x[x == 3] = 5.0
    assert x.item() == 5.0
    leaf = probtorch.tensor(3.0, requires_grad=True)
    y = leaf * 1.0
    y[y > 2] *= 4.0
    y.backward()
    assert leaf.grad.item() == 4.0


def test_column_of_a_data_frame_is_an_index():
    x = probtorch.arange(5.0)
    assert x[Column([3, 1])].tolist() == [3.0, 1.0]
    assert x[Column([True, False, False, True, False])].tolist() == [0.0, 3.0]
    with pytest.raises(TensorIndexError, match=r"cat\.codes"):
        x[Column(["a", "b"])]
    x[Column([0, 1])] = 9.0
    assert x.tolist() == [9.0, 9.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("taped", [False, True])
@pytest.mark.parametrize("key", [[0.5], [[0, 1], [2]], np.array([1, 0], np.uint8)], ids=str)
def test_bad_index_is_refused_when_written_to(key, taped):
    x = probtorch.zeros(3, requires_grad=taped) * 1.0
    with pytest.raises(TensorIndexError):
        x[key] = 1.0
    assert x.tolist() == [0.0, 0.0, 0.0]


def test_indices_of_gather_and_its_kin_are_whole_and_count_from_0():
    x, low, part = probtorch.arange(4.0), probtorch.tensor([0, -1]), probtorch.tensor([0.0, 1.5])
    for index, words in ((low, r"indices in \[0, 3\]"), (part, "dtype float32")):
        for use in (
            lambda i: gather(x, 0, i),
            lambda i: probtorch.scatter(x, 0, i, 1.0),
            lambda i: probtorch.index_select(x, 0, i),
        ):
            with pytest.raises(TensorIndexError, match=words):
                use(index)
    with pytest.raises(TensorIndexError):
        probtorch.index_put(x, (part,), probtorch.tensor(1.0))


def test_negative_indices_of_gather_are_refused_when_compiled():
    f = probtorch.compile(lambda x, i: gather(x, 0, i))
    x = probtorch.arange(4.0)
    for _ in range(3):
        assert f(x, probtorch.tensor([3, 0])).tolist() == [3.0, 0.0]
    assert f.last is not None  # native
    with pytest.raises(TensorIndexError, match=r"indices in \[0, 3\]"):
        f(x, probtorch.tensor([3, -1]))


def check_places(x, key):
    """Compare elements at a key with NumPy's: on the tape, their gradient, and compiled."""
    t = probtorch.tensor(x).requires_grad_()
    taken = t[key]
    (taken * 3.0).sum().backward()
    wanted = np.zeros_like(x)
    wanted[key] = 3.0
    assert taken.shape == x[key].shape
    np.testing.assert_array_equal(taken.detach().numpy(), x[key])
    np.testing.assert_array_equal(t.grad.numpy(), wanted)
    compiled = probtorch.compile(lambda t: t[key] * 3.0)
    for _ in range(2):
        np.testing.assert_array_equal(compiled(probtorch.tensor(x)).numpy(), x[key] * 3.0)


@pytest.mark.parametrize("key", [(1, 2), (-1, -4), (2,), (0, 3, 0), (-3, 0, -1)], ids=str)
def test_tuples_of_integers_are_places_on_the_tape_and_in_recordings_too(key):
    x = np.arange(12.0).reshape(3, 4, 1)
    check_places(x, key)


@pytest.mark.parametrize("key", [(3, 0), (0, -5), (0, 0, 0, 0)], ids=str)
def test_places_that_are_not_there_are_refused_on_the_tape_too(key):
    t = probtorch.zeros(3, 4, 1).requires_grad_()
    with pytest.raises(IndexError):
        t[key]


ROWS = [slice(None), slice(1, 3), slice(-2, None), slice(None, None, -2), slice(3, 1), slice(9, 12)]


@pytest.mark.parametrize("key", ROWS, ids=str)
def test_slices_of_numbers_are_views_on_the_tape_and_in_recordings_too(key):
    x = np.arange(12.0).reshape(4, 3)
    check_places(x, key)
    with probtorch.no_grad():
        assert not probtorch.tensor(x).requires_grad_()[key].requires_grad


def test_a_step_of_zero_is_refused_on_the_tape_too():
    with pytest.raises(TensorIndexError, match="step that is not 0"):
        probtorch.zeros(3).requires_grad_()[::0]
