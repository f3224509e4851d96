"""Tensor: construction, conversion, views, and how other array libraries see it."""

import copy
import enum
import math
import pickle

import numpy as np
import pytest

import probtorch
from probtorch import Tensor, from_dlpack, from_numpy, tensor
from probtorch.core.dispatch import wrap
from probtorch.errors import AutogradError, DeviceError, DTypeError, ShapeError
from probtorch.testing import assert_close


def leaf(*values):
    return tensor(list(values), requires_grad=True)


# ------------------------------------------------------------------------------------- construction


@pytest.mark.parametrize(
    "data, dtype, shape",
    [
        (1.5, "f4", ()),
        (2, "i8", ()),
        (True, "b1", ()),
        ([1.0, 2], "f4", (2,)),
        ([[1, 2], [3, 4]], "i8", (2, 2)),
        ([], "f4", (0,)),
        (np.float64(1.0), "f8", ()),
        (np.ones(2), "f8", (2,)),
        ([np.float64(1.0), 2.0], "f8", (2,)),
        ([np.ones(2), np.zeros(2)], "f8", (2, 2)),
        (range(3), "i8", (3,)),
        ((True, False), "b1", (2,)),
    ],
    ids=str,
)
def test_dtype_and_shape_follow_the_data(data, dtype, shape):
    t = tensor(data)
    assert t.dtype == dtype
    assert t.shape == shape


def test_tensor_copies():
    source = np.ones(2)
    t = tensor(source)
    t[0] = 5.0
    assert source.tolist() == [1.0, 1.0]
    assert tensor(t) is not t


def test_tensors_inside_lists_are_taken_apart():
    assert_close(tensor([tensor(1.0), tensor(2.0)]), [1.0, 2.0])
    assert tensor([[tensor(1, dtype=probtorch.int64)]]).shape == (1, 1)


def test_dtype_and_requires_grad_can_be_asked_for():
    t = tensor([1, 2], dtype="float64", requires_grad=True)
    assert t.dtype == np.float64 and t.requires_grad and t.is_leaf
    assert Tensor([1.0]).tolist() == [1.0]


@pytest.mark.parametrize(
    "make, error, words",
    [
        (lambda: tensor([[1, 2], [3]]), ShapeError, "rows of equal length"),
        (lambda: tensor(["a"]), DTypeError, "expected: numbers"),
        (lambda: tensor(object()), DTypeError, "expected: numbers"),
        (lambda: tensor([1, 2], requires_grad=True), DTypeError, "a floating or complex"),
        (lambda: from_numpy([1.0]), DTypeError, "a NumPy array"),
        (lambda: from_dlpack([1.0]), DTypeError, "__dlpack__"),
    ],
    ids=["ragged", "text", "object", "integers with grad", "list", "no dlpack"],
)
def test_what_cannot_be_a_tensor_is_named(make, error, words):
    with pytest.raises(error, match=words) as caught:
        make()
    assert "fix:" in str(caught.value)


# ------------------------------------------------------------------------------------ Python values


def test_one_element_converts_to_python():
    t = tensor([[2.5]])
    assert (float(t), int(t), bool(t), t.item(), t.tolist()) == (2.5, 2, True, 2.5, [[2.5]])
    assert [10, 20, 30][tensor(1)] == 20
    assert f"{tensor(math.pi):.2f}" == "3.14"


@pytest.mark.parametrize("convert", [float, int, bool, lambda t: t.item()])
def test_several_elements_do_not(convert):
    with pytest.raises(ShapeError, match=r"got:      shape \(2,\)"):
        convert(tensor([1.0, 2.0]))


def test_float_is_not_an_index():
    with pytest.raises(DTypeError, match="an integer tensor"):
        [1, 2][tensor(1.0)]


def test_length_iteration_and_membership():
    t = tensor([[1.0, 2.0], [3.0, 4.0]])
    assert len(t) == 2
    assert [row.tolist() for row in t] == [[1.0, 2.0], [3.0, 4.0]]
    assert 3.0 in t and 5.0 not in t
    for use in (len, iter):
        with pytest.raises(TypeError, match="a 0-d tensor"):
            use(tensor(1.0))


def test_iteration_is_differentiable():
    x = leaf(1.0, 2.0)
    a, b = x
    (a * b).backward()
    assert_close(x.grad, [2.0, 1.0])


def test_repr_tells_what_is_not_the_default():
    assert repr(tensor([1.0, 2.0])) == "tensor([1., 2.])"
    assert repr(tensor([1.0], dtype="float64")) == "tensor([1.], dtype=float64)"
    assert repr(leaf(1.0)) == "tensor([1.], requires_grad=True)"
    assert "grad_fn=<MulBackward0>" in repr(leaf(1.0) * 2)
    assert repr(tensor(3)) == "tensor(3)"


# --------------------------------------------------------------------------------- dtypes and moves


def test_conversions():
    x = tensor([1.7, -1.7])
    assert x.double().dtype == np.float64
    assert x.half().dtype == np.float16
    assert x.long().tolist() == [1, -1]
    assert x.int().dtype == np.int32
    assert x.bool().tolist() == [True, True]
    assert x.to(probtorch.float64).dtype == np.float64
    assert x.to(float) is x
    assert x.type_as(x.double()).dtype == np.float64
    assert x.to(tensor([1])).dtype == np.int64


def test_conversion_that_changes_nothing_returns_the_tensor():
    x = leaf(1.0)
    for same in (x.float(), x.to("cpu"), x.cpu(), x.to(device="cpu"), x.contiguous(), x.to(x)):
        assert same is x
    assert x.to("cpu", copy=True) is not x


def test_conversion_is_differentiable():
    x = leaf(1.0, 2.0)
    (x.double() * 3.0).sum().backward()
    assert x.grad.dtype == np.float32
    assert_close(x.grad, [3.0, 3.0])


def test_unknown_device_is_named():
    with pytest.raises(RuntimeError, match="device"):
        tensor([1.0]).to("tpu")


# -------------------------------------------------------------------------------------------- views


def test_views_share_memory():
    x = probtorch.zeros(2, 6)
    views = [
        x.reshape(3, 4),
        x.T,
        x.view(-1),
        x[1],
        x[:, ::2],
        x.permute(1, 0),
        x.unsqueeze(0),
        x.detach(),
        x.flatten(),
        x.expand(4, 2, 6),
        probtorch.flip(x, 0),
        x.diagonal(),
        *x.split(3, 1),
        *x.unbind(0),
    ]
    x.fill_(7.0)
    for view in views:
        assert (view == 7.0).all()


def test_copies_do_not_share_memory():
    x = probtorch.zeros(2, 2)
    copies = [x.clone(), x + 0, x[[0, 1]], x.T.reshape(4), tensor(x), x.repeat(1, 1)]
    x.fill_(7.0)
    for made in copies:
        assert (made == 0.0).all()


def test_new_tensors_take_dtype_from_self():
    x = tensor([1.0], dtype="float64")
    assert x.new_zeros(2, 3).tolist() == [[0.0] * 3] * 2
    assert x.new_ones((2,)).dtype == np.float64
    assert x.new_full((2,), 3).tolist() == [3.0, 3.0]
    assert x.new_tensor([1]).dtype == np.float64


def test_facts():
    x = probtorch.zeros(2, 3)
    assert (x.dim(), x.ndim, x.numel(), x.nelement(), x.element_size()) == (2, 2, 6, 6, 4)
    assert x.size() == (2, 3) and x.size(-1) == 3
    assert x.is_floating_point() and not x.is_cuda and x.device == "cpu"
    assert x.is_contiguous() and not x.T.is_contiguous() and x.T.contiguous().is_contiguous()
    assert x.mT.shape == x.t().shape == (3, 2)


# ---------------------------------------------------------------------------------- on and off tape


def test_detach_shares_memory_and_has_no_gradient():
    x = leaf(1.0, 2.0)
    d = x.detach()
    assert not d.requires_grad
    d[0] = 9.0
    assert x.tolist() == [9.0, 2.0]
    y = x * 2
    y.detach_()
    assert y.is_leaf and not y.requires_grad


def test_requires_grad_is_for_floating_leaves():
    with pytest.raises(DTypeError, match="int64"):
        tensor([1]).requires_grad_()
    with pytest.raises(AutogradError, match="use detach"):
        (leaf(1.0) * 2).requires_grad_(False)
    assert not leaf(1.0).requires_grad_(False).requires_grad


def test_results_of_integers_and_comparisons_have_no_gradient():
    x = leaf(1.0, 2.0)
    assert not (x > 1).requires_grad
    assert not x.argmax().requires_grad
    assert not x.long().requires_grad


# ------------------------------------------------------------------------------- other array worlds


def test_numpy_shares_memory_both_ways():
    array = np.ones(3)
    t = from_numpy(array)
    t[0] = 5.0
    array[1] = 6.0
    assert array.tolist() == t.tolist() == [5.0, 6.0, 1.0]
    assert np.shares_memory(t.numpy(), array)
    assert np.shares_memory(np.asarray(t), array)


def test_array_protocol_converts_and_copies_as_asked():
    t = tensor([1.0, 2.0])
    assert np.asarray(t, np.float64).dtype == np.float64
    assert not np.shares_memory(np.array(t, copy=True), t.numpy())
    assert np.shares_memory(np.array(t, copy=False), t.numpy())
    with pytest.raises(ValueError, match="copy"):
        np.array(t, np.float64, copy=False)


@pytest.mark.parametrize("leave", [np.asarray, lambda t: t.numpy(), lambda t: t.__dlpack__()])
def test_tensor_with_a_gradient_does_not_leave_silently(leave):
    with pytest.raises(AutogradError, match=r"Can.t (call numpy|export)"):
        leave(leaf(1.0))
    assert leaf(1.0).numpy(force=True).tolist() == [1.0]


def test_array_times_tensor_keeps_the_gradient():
    x = leaf(1.0, 2.0)
    a = np.array([3.0, 4.0], np.float32)
    for product in (a * x, np.multiply(a, x), x * a, np.float32(3.0) * x):
        assert isinstance(product, Tensor) and product.requires_grad
    (a * x + np.exp(x) - a @ x).sum().backward()
    assert_close(x.grad, a + np.exp([1.0, 2.0]) - 2 * a, rtol=1e-6)


def test_numpy_functions_return_tensors_with_gradients():
    x = leaf(0.5, 0.25)
    for fn in (np.sin, np.log1p, np.tanh, np.abs, np.negative, np.sqrt):
        y = fn(x)
        assert isinstance(y, Tensor) and y.requires_grad
        assert_close(y, fn(np.array([0.5, 0.25])), rtol=1e-6)
    assert_close(np.arctan2(x, 2.0), np.arctan2([0.5, 0.25], 2.0), rtol=1e-6)


def test_numpy_function_without_an_op_is_computed_off_the_tape_and_refused_on_it():
    assert_close(np.spacing(tensor([1.0])), [np.spacing(np.float32(1.0))])
    with pytest.raises(AutogradError, match="an operation that probtorch differentiates"):
        np.spacing(leaf(1.0))


def test_dlpack_goes_both_ways_without_a_copy():
    array = np.arange(3.0)
    t = from_dlpack(array)
    assert np.shares_memory(t.numpy(), array)
    back = np.from_dlpack(t)
    assert np.shares_memory(back, array)

    class Other:
        """An array of some other library."""

        def __dlpack__(self, **options):
            return array.__dlpack__(**options)

        def __dlpack_device__(self):
            return array.__dlpack_device__()

    assert np.shares_memory(from_dlpack(Other()).numpy(), array)
    with pytest.raises(BufferError):
        leaf(1.0).__dlpack__()


def test_mixed_devices_are_refused_with_both_named():
    class OnGPU:
        """What an op sees of a CuPy array before it computes: NumPy's functions refuse it."""

        __array_ufunc__ = None
        __cuda_array_interface__ = {}
        dtype, shape, ndim = np.dtype(np.float32), (2,), 1

    x, y = wrap(OnGPU()), tensor([1.0, 2.0])
    for mix in (lambda: x + y, lambda: y * x, lambda: probtorch.where(y > 0, y, x)):
        with pytest.raises(DeviceError, match="all tensors on one device") as caught:
            mix()
        message = str(caught.value)
        assert "cuda" in message and "cpu" in message and ".to(device)" in message


def test_cpu_tensor_has_no_cuda_interface():
    assert not hasattr(tensor([1.0]), "__cuda_array_interface__")
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = tensor([1.0]).nonsense


@pytest.mark.parametrize(
    "name",
    [
        "__array_struct__",
        "__array_interface__",
        "__cuda_array_interface__",
        "unconstrained",
        "_data",
    ],
)
def test_what_others_look_for_is_of_single_tensors_and_not_of_the_class(name):
    class Named(Tensor):
        pass

    assert not hasattr(Tensor, name)
    own = Named(2)
    setattr(own, name, "its own")
    assert getattr(own, name) == "its own"


def test_reading_attributes_asks_no_python_code():
    # With it in the class, the interpreter reads slots the long way, in every operation.
    assert not any(
        "__getattr__" in vars(c) or "__getattribute__" in vars(c) for c in Tensor.__mro__[:-1]
    )
    message = "'Parameter' object has no attribute 'nonsense'"
    with pytest.raises(AttributeError, match=message) as caught:
        probtorch.nn.Parameter(tensor([1.0])).nonsense  # noqa: B018
    assert caught.value.name == "nonsense"


def test_pickle_and_deepcopy_keep_leaves():
    x = leaf(1.0, 2.0)
    (x * x).sum().backward()
    for twin in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x)):
        assert twin.tolist() == [1.0, 2.0] and twin.requires_grad
        assert not np.shares_memory(twin.detach().numpy(), x.detach().numpy())
    assert copy.deepcopy(x).grad.tolist() == [2.0, 4.0]
    shared = {"a": x, "b": x}
    twin = copy.deepcopy(shared)
    assert twin["a"] is twin["b"]


@pytest.mark.parametrize("use", [copy.deepcopy, pickle.dumps])
def test_results_of_operations_are_neither_copied_nor_pickled(use):
    with pytest.raises(AutogradError, match="expected: a leaf tensor"):
        use(leaf(1.0) * 2)


def test_subclasses_survive_construction_and_copy():
    class Named(Tensor):
        __slots__ = ()

    x = Named([1.0, 2.0])
    assert type(x) is Named
    assert type(copy.deepcopy(x)) is Named
    assert (x * 2).tolist() == [2.0, 4.0]


def test_tensors_hash_by_identity():
    x, y = tensor(1.0), tensor(1.0)
    assert len({x, y}) == 2


# ------------------------------------------------------------------------------------------ methods


@pytest.mark.parametrize(
    "name, function",
    [
        ("absolute", "abs"),
        ("subtract", "sub"),
        ("multiply", "mul"),
        ("divide", "div"),
        ("clip", "clamp"),
        ("greater", "gt"),
        ("less", "lt"),
    ],
)
def test_methods_have_their_long_names(name, function):
    assert getattr(Tensor, name) is getattr(Tensor, function)


def test_reflected_operators_keep_the_order():
    x = tensor([4.0])
    assert (1 - x).item() == -3.0
    assert (1 / x).item() == 0.25
    assert (2**x).item() == 16.0
    assert (9 % x).item() == 1.0
    assert (9 // x).item() == 2.0
    assert (np.ones((1, 1), np.float32) @ x).tolist() == [4.0]


def test_integer_operators():
    x = tensor([0b1100, 0b1010])
    assert (x & 0b0110).tolist() == [0b0100, 0b0010]
    assert (0b0001 | x).tolist() == [0b1101, 0b1011]
    assert (x ^ x).tolist() == [0, 0]
    assert (x << 1).tolist() == [0b11000, 0b10100]
    assert (x >> 2).tolist() == [0b11, 0b10]
    assert (~tensor([True, False])).tolist() == [False, True]
    assert (~x).tolist() == [-13, -11]
    with pytest.raises(DTypeError, match="integers or booleans"):
        _ = tensor([1.0]) & 1


def test_comparison_with_what_is_no_number_is_refused():
    with pytest.raises(DTypeError, match="str 'a'"):
        _ = tensor([1.0]) < "a"


def test_where_method():
    x = leaf(1.0, 2.0)
    out = x.where(x > 1.5, -x)
    out.sum().backward()
    assert out.tolist() == [-1.0, 2.0]
    assert x.grad.tolist() == [-1.0, 1.0]


def test_mixing_gradients_of_views_and_bases():
    x = tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    y = x * 2
    (y[0] * y.T[0]).sum().backward()
    # y[0] = (2, 4), y.T[0] = (2, 6)
    assert_close(x.grad, [[8.0, 12.0], [8.0, 0.0]])


def test_a_frame_with_text_names_its_columns():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1.0, 2.0], "town": ["x", "y"], "day": ["1", "2"]})
    with pytest.raises(
        DTypeError, match=r"'town' \(\w+\), 'day' \(\w+\)\n  fix: .*df\[\['a', 'b'\]\]"
    ):
        probtorch.tensor(frame)
    assert probtorch.tensor(frame[["a"]]).tolist() == [[1.0], [2.0]]


# ------------------------------------------------------------------------------------------- text


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ([0.1, -2.5], "tensor([ 0.1000, -2.5000])"),
        ([1.0, 12.0], "tensor([ 1., 12.])"),
        ([1e-5, 1.5], "tensor([1.0000e-05, 1.5000e+00])"),
        ([float("nan"), 0.0, 1.0], "tensor([nan, 0., 1.])"),
        ([True, False], "tensor([ True, False])"),
        ([[1, -20], [3, 4]], "tensor([[  1, -20],\n        [  3,   4]])"),
        ([[], []], "tensor([], size=(2, 0))"),
        (3.25, "tensor(3.2500)"),
    ],
)
def test_text_has_the_layout_of_pytorch(data, text):
    assert repr(tensor(data)) == text


def test_large_tensors_show_their_edges_and_lines_are_short():
    long = repr(probtorch.zeros(5000, 3)).splitlines()
    assert len(long) == 7 and long[3].strip() == "...,"
    assert max(map(len, repr(tensor(np.linspace(-1, 1, 90))).splitlines())) <= 80


def test_settings_of_printing():
    try:
        probtorch.set_printoptions(precision=2, sci_mode=True)
        assert repr(tensor([0.125])) == "tensor([1.25e-01])"
        probtorch.set_printoptions(profile="short")
        assert repr(tensor([0.125])) == "tensor([0.12])"
        probtorch.set_printoptions(edgeitems=1, threshold=2)
        assert repr(tensor([1, 2, 3])) == "tensor([1,  ..., 3])"
    finally:
        probtorch.set_printoptions(profile="default")
    with pytest.raises(probtorch.errors.ArgumentError, match="short"):
        probtorch.set_printoptions(profile="tall")


def test_numbers_of_classes_of_their_own_are_the_numbers_that_they_are():
    class Level(enum.IntEnum):
        LOW = 2

    x, Rate = probtorch.tensor([1.0, 3.0]), type("Rate", (float,), {})
    for number, plain in ((Level.LOW, 2), (Rate(2.5), 2.5)):
        for y, z in ((x * number, x * plain), (number - x, plain - x), (x > number, x > plain)):
            assert y.dtype == z.dtype and y.tolist() == z.tolist()
        assert probtorch.as_tensor(number).tolist() == plain
        assert probtorch.where(x > 2.0, x, number).tolist() == [plain, 3.0]


def test_pythons_round_is_the_tensors():
    x = tensor([1.234, -2.5, 3.5])
    assert round(x, 1).tolist() == x.round(decimals=1).tolist()
    assert round(x).tolist() == [1.0, -2.0, 4.0]
    assert round(tensor(1.236, dtype=np.float64), 2).item() == 1.24
