"""Memory that tensors share with others: array interface, buffers, DLPack both ways."""

import sys

import numpy as np
import pytest

import probtorch
from probtorch.errors import ArgumentError, DTypeError, ExportError
from probtorch.tensor import tensor
from probtorch.utils import dlpack

DTYPES = "bool uint8 int8 int16 int32 int64 float16 float32 float64 complex64 complex128".split()
SHAPES = [(), (0,), (3,), (2, 3)]


def sample(dtype, shape):
    array = np.random.default_rng(0).normal(size=shape) * 3
    return np.asarray(abs(array) if dtype == "uint8" else array).astype(dtype)


# --------------------------------------------------------------------------- NumPy's own protocol


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_asarray_shares_memory_of_every_dtype(dtype, shape):
    array = sample(dtype, shape)
    t = tensor(array)
    again = np.asarray(t)
    assert again.dtype == dtype and again.shape == shape
    assert np.array_equal(again, array)
    assert array.size == 0 or np.shares_memory(again, t.array)


def test_views_keep_their_strides():
    x = probtorch.arange(6.0).reshape(2, 3)
    for view in (x.T, x[:, ::2], x.expand(2, 2, 3)):
        assert np.asarray(view).strides == view.array.strides


def test_an_array_outlives_the_tensor_and_its_new_memory():
    t = tensor([1.0, 2.0])
    array = np.asarray(t)
    t.data = tensor([3.0, 4.0])
    assert array.tolist() == [1.0, 2.0]
    del t
    assert array.tolist() == [1.0, 2.0]


def test_read_only_memory_stays_so():
    t = probtorch.from_numpy(np.broadcast_to(np.ones(3), (2, 3)))
    assert not np.asarray(t).flags.writeable
    assert t.__array_interface__["data"][1]


def test_the_interface_names_the_memory_and_keeps_it():
    t = tensor([[1.0, 2.0], [3.0, 4.0]])
    found = t.T.__array_interface__
    assert found["shape"] == (2, 2) and found["typestr"] == "<f4"
    assert found["data"] == (t.array.ctypes.data, False) and found["strides"] == (4, 8)
    assert found["owner"] is not None


@pytest.mark.parametrize("name", ["__array_struct__", "__array_interface__"])
def test_a_gradient_is_not_lost_through_an_address(name):
    t = tensor([1.0], requires_grad=True)
    assert not hasattr(t, name)
    assert hasattr(t.detach(), name)
    with probtorch.no_grad():
        assert hasattr(t, name)


@pytest.mark.filterwarnings("ignore:fn runs eagerly")
def test_a_compiled_function_that_hands_out_memory_is_right():
    @probtorch.compile
    def fn(x):
        return tensor(np.asarray(x) * 2.0)

    for value in (1.0, 2.0, 3.0):
        assert fn(tensor([value])).tolist() == [2.0 * value]


# ---------------------------------------------------------------------------------------- buffers


def test_a_buffer_is_the_memory():
    t = probtorch.arange(6.0).reshape(2, 3)
    view = t.__buffer__(0) if sys.version_info < (3, 12) else memoryview(t)
    assert view.format == "f" and view.shape == (2, 3)
    view[1, 2] = 9.0
    assert t[1, 2] == 9.0


def test_a_buffer_of_a_tensor_that_requires_grad_is_refused():
    t = tensor([1.0], requires_grad=True)
    with pytest.raises(BufferError, match="requires_grad=True"):
        t.__buffer__(0)


# ----------------------------------------------------------------------------------------- DLPack


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_dlpack_and_back(dtype, shape):
    array = sample(dtype, shape)
    t = probtorch.from_dlpack(np.from_dlpack(tensor(array)))
    assert t.dtype == dtype and t.shape == shape and np.array_equal(t.numpy(), array)


class Asking:
    """A library that takes only what a version of the protocol can say."""

    def __init__(self, t, **options):
        self.t, self.options = t, options

    def __dlpack__(self, **_):
        return self.t.__dlpack__(**self.options)

    def __dlpack_device__(self):
        return self.t.__dlpack_device__()


def test_negative_strides_are_copied_and_others_shared():
    x = probtorch.arange(6.0).reshape(2, 3)
    turned = np.from_dlpack(x[::-1])
    assert min(turned.strides) > 0 and turned.tolist() == x.tolist()[::-1]
    assert not np.shares_memory(turned, x.array)
    assert np.shares_memory(np.from_dlpack(x.T), x.array)
    as_asked = np.from_dlpack(Asking(x[::-1], copy=False, max_version=(1, 0)))
    assert np.shares_memory(as_asked, x.array)


def test_read_only_memory_is_copied_for_those_who_cannot_be_told():
    array = np.broadcast_to(np.ones(3), (2, 3))
    t = probtorch.from_numpy(array)
    assert not np.shares_memory(np.from_dlpack(Asking(t)), array)
    told = np.from_dlpack(Asking(t, max_version=(1, 0)))
    assert np.shares_memory(told, array) and not told.flags.writeable


def test_a_copy_is_made_where_it_is_asked_for():
    x = probtorch.arange(3.0)
    assert not np.shares_memory(np.from_dlpack(Asking(x, copy=True, max_version=(1, 0))), x.array)


def test_capsules_go_both_ways_once():
    x = probtorch.arange(3.0)
    capsule = dlpack.to_dlpack(x)
    y = dlpack.from_dlpack(capsule)
    x[0] = 7.0
    assert y.tolist() == [7.0, 1.0, 2.0]
    with pytest.raises(ArgumentError, match="read-only"):
        y[0] = 1.0  # a capsule of this form cannot say that it may be changed
    with pytest.raises(ValueError, match="PyCapsule_GetPointer"):
        probtorch.from_dlpack(capsule)
    with pytest.raises(ExportError):
        dlpack.to_dlpack(tensor([1.0], requires_grad=True))


def test_a_dtype_that_numpy_lacks_is_refused_with_its_name():
    class Brain:
        dtype = "torch.bfloat16"

        def __dlpack__(self, **options):
            raise RuntimeError("Unsupported dtype in DLTensor.")

        def __dlpack_device__(self):
            return (1, 0)

    with pytest.raises(DTypeError, match=r"torch\.bfloat16"):
        probtorch.from_dlpack(Brain())


# --------------------------------------------------------------------------- with other libraries


def other(name):
    module = pytest.importorskip(name)
    if name == "torch":
        return module.from_dlpack, module.from_numpy, lambda x: x.numpy()
    module.config.update("jax_enable_x64", True)
    return module.dlpack.from_dlpack, module.numpy.asarray, np.asarray


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_every_dtype_goes_to_another_library_and_comes_back(library):
    theirs, make, back = other(library)
    for dtype in DTYPES:
        for shape in SHAPES:
            array = sample(dtype, shape)
            there = theirs(tensor(array))
            assert back(there).dtype == dtype and np.array_equal(back(there), array)
            made = make(array.copy())
            for here in (probtorch.from_dlpack(made), tensor(made), probtorch.as_tensor(made)):
                assert here.dtype == dtype and np.array_equal(here.numpy(), array)


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_views_go_to_another_library(library):
    theirs, _, back = other(library)
    x = probtorch.arange(6.0).reshape(2, 3)
    for view in (x.T, x[::-1], probtorch.flip(x, 1)):
        assert back(theirs(view)).tolist() == view.tolist()
    fixed = probtorch.from_numpy(np.broadcast_to(np.ones(3), (2, 3)))
    assert back(theirs(fixed)).tolist() == fixed.tolist()


def test_pytorch_shares_memory_both_ways():
    torch = pytest.importorskip("torch")
    x = probtorch.arange(3.0)
    torch.from_dlpack(x)[0] = 5.0
    assert x[0] == 5.0
    y = torch.arange(3.0)
    probtorch.from_dlpack(y)[0] = 5.0
    assert y[0] == 5.0
    with pytest.raises(DTypeError, match="bfloat16"):
        probtorch.from_dlpack(torch.ones(2, dtype=torch.bfloat16))
