"""`Tensor`: a table of methods, each one an op.

What is written out here is what is not an op and short: facts, shapes, in-place spellings, copies
and pickles, and `tensor`, which makes one of anything. Longer methods are functions elsewhere:
autograd/values.py shows tensors to Python and other libraries, autograd/methods.py asks the tape,
ops/transfer.py converts dtypes and devices; ops/construction.py copies data.
"""

from types import FunctionType

import numpy as np

from probtorch import method_table
from probtorch.array_protocols import array_function, array_ufunc, from_dlpack, from_numpy
from probtorch.autograd import methods, values
from probtorch.backends.registry import address, device_of, to_device, to_host
from probtorch.core import doors
from probtorch.core import dtype as dtypes
from probtorch.core.casting import cast
from probtorch.core.device import device_named
from probtorch.core.dispatch import grad_enabled, mark_changed, recorder, wrap
from probtorch.core.in_place import assign, is_plain
from probtorch.core.making import as_tensor
from probtorch.core.memory_format import contiguous_format, lies_in, preserve_format
from probtorch.core.misuse import in_our_words
from probtorch.core.shape import Size, normalize_dim, sizes
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import alias, entered, is_number, layout_read, read, who_asked
from probtorch.errors import (
    ArgumentError,
    AutogradError,
    DTypeError,
    ShapeError,
    TensorIndexError,
)
from probtorch.nesting import from_nested
from probtorch.ops import (
    arithmetic,
    comparisons,
    complex_numbers,
    contraction,
    exponentials,
    filling,
    indexing,
    movement,
    pieces,
    reshaping,
    special,
    transfer,
)
from probtorch.ops.construction import array_of, copied, tensors_in

__all__ = ["Tensor", "from_dlpack", "from_numpy", "retyped", "tensor"]


class Tensor(TensorBase):
    """An n-dimensional array that remembers how it was computed.

    Made by `probtorch.tensor`, the factories (`zeros`, `arange` ...) or by operations. Called as
    PyTorch's class is, ``Tensor(4, 3)`` is uninitialised of these sizes, and ``Tensor([1, 2])`` has
    these elements, in the default dtype whatever theirs was; tensors keep theirs. Indexing,
    broadcasting and promotion follow PyTorch; `dim` and `axis` are both accepted.
    """

    __slots__ = ()

    def __new__(cls, *data, dtype=None):
        if len(data) > 1 or (len(data) == 1 and isinstance(data[0], (int, Size))):
            dtype = dtypes.default_dtype() if dtype is None else dtypes.as_dtype(dtype)
            t = wrap(np.empty(sizes("Tensor", data), dtype))
        else:
            data = data[0] if data else ()
            if dtype is None and not isinstance(data, TensorBase):
                dtype = dtypes.default_dtype()
            t = tensor(data, dtype=dtype)
        if cls is not Tensor:
            t = retyped(t, cls)
        return t

    # ----------------------------------------------------------------------------------- arithmetic

    __add__ = arithmetic.add
    __sub__ = arithmetic.sub
    __mul__ = arithmetic.mul
    __truediv__ = arithmetic.div
    __pow__ = exponentials.pow
    __mod__ = arithmetic.remainder
    __floordiv__ = arithmetic.floor_divide
    __neg__ = arithmetic.neg
    __abs__ = arithmetic.abs
    __matmul__ = contraction.matmul
    __eq__ = comparisons.equal_to
    __ne__ = comparisons.different_from
    __lt__ = comparisons.lt
    __le__ = comparisons.le
    __gt__ = comparisons.gt
    __ge__ = comparisons.ge
    __and__ = comparisons.bitwise_and
    __or__ = comparisons.bitwise_or
    __xor__ = comparisons.bitwise_xor
    __lshift__ = comparisons.shift_left
    __rshift__ = comparisons.shift_right
    __invert__ = comparisons.bitwise_not
    __hash__ = who_asked

    def __pos__(self):
        return self

    def __radd__(self, other):
        return arithmetic.add(other, self)

    def __rsub__(self, other):
        return arithmetic.sub(other, self)

    def __rmul__(self, other):
        return arithmetic.mul(other, self)

    def __rtruediv__(self, other):
        return arithmetic.div(other, self)

    def __rpow__(self, other):
        return exponentials.pow(other, self)

    def __rmod__(self, other):
        return arithmetic.remainder(other, self)

    def __rfloordiv__(self, other):
        return arithmetic.floor_divide(other, self)

    def __round__(self, ndigits=None):
        return arithmetic.round(self, decimals=ndigits or 0)

    def __rmatmul__(self, other):
        return contraction.matmul(other, self)

    def __rand__(self, other):
        return comparisons.bitwise_and(other, self)

    def __ror__(self, other):
        return comparisons.bitwise_or(other, self)

    def __rxor__(self, other):
        return comparisons.bitwise_xor(other, self)

    def __rlshift__(self, other):
        return comparisons.shift_left(other, self)

    def __rrshift__(self, other):
        return comparisons.shift_right(other, self)

    # ------------------------------------------------------------------------------------- indexing

    __getitem__ = indexing.getitem
    __setitem__ = indexing.setitem

    def __len__(self):
        if not self.array.ndim:
            raise DTypeError(
                "len()", expected="a tensor with dims", got="a 0-d tensor", fix="use numel()"
            )
        return self.array.shape[0]

    def __iter__(self):
        if not self.array.ndim:
            raise DTypeError(
                "iteration", expected="a tensor with dims", got="a 0-d tensor", fix="use item()"
            )
        return iter(pieces.unbind(self, 0))

    def __reversed__(self):
        return pieces.flip(self, 0) if self.array.ndim else self

    def __contains__(self, value):
        return bool((self == value).any())

    # ---------------------------------------------------------------------------------------- facts

    @property
    def shape(self):
        """Sizes of the dims."""
        return Size(self.array.shape)

    @property
    def dtype(self):
        """Dtype of the elements (a NumPy dtype)."""
        return self.array.dtype

    @property
    def ndim(self):
        """Number of dims."""
        return self.array.ndim

    @property
    def device(self):
        """Where the memory is, a `device`, which equals its name: "cpu" or "cuda:0"."""
        return device_named(device_of(self.array))

    @property
    def grad(self):
        """Gradient that `backward` left here, or None."""
        active = recorder()
        if active is not None:
            active.gradient_read(self)
        return methods.meant(self)._grad if self._grad is None else self._grad

    @grad.setter
    def grad(self, value):
        active = recorder()
        if active is not None:
            active.gradient_kept(self)
        methods.meant(self)._grad = self._grad = value

    @grad.deleter
    def grad(self):
        self.grad = None

    @property
    def is_leaf(self):
        """Whether no recorded operation made this tensor."""
        return methods.meant(self).grad_fn is None

    @property
    def retains_grad(self):
        """Whether this is a non-leaf whose `.grad` is filled."""
        return "retained" in (self._extra or {})

    @property
    def is_cpu(self):
        """Whether the memory is the host's."""
        return isinstance(self.array, np.ndarray)

    @property
    def is_cuda(self):
        """Whether the memory is on a GPU."""
        return not isinstance(self.array, np.ndarray)

    # There are no tensors of these kinds.
    is_sparse = is_sparse_csr = is_quantized = is_mkldnn = is_nested = False
    data = property(methods.detach, methods.set_data)

    @property
    def T(self):
        """The tensor with its dims in reverse order."""
        return movement.reversed_dims(self)

    @property
    def mT(self):
        """The tensor with its last two dims swapped."""
        return movement.transpose(self, -2, -1)

    @property
    def H(self):
        """A matrix transposed and conjugated."""
        if self.array.ndim not in (0, 2):
            raise ShapeError(
                "H",
                expected="a matrix, or a tensor without dims",
                got=f"shape {self.array.shape}",
                fix="use .mH for matrices in the last two dims",
            )
        return complex_numbers.conj(self).T

    @property
    def mH(self):
        """The tensor with its last two dims swapped, and conjugated."""
        return reshaping.adjoint(self)

    @property
    def real(self):
        """The real part, a view; of real numbers the tensor itself."""
        return complex_numbers.real(self)

    @real.setter
    def real(self, value):
        complex_numbers.real(self).copy_(value)

    @property
    def imag(self):
        """The imaginary part of complex numbers, a view."""
        return complex_numbers.imag(self)

    @imag.setter
    def imag(self, value):
        complex_numbers.imag(self).copy_(value)

    def dim(self):
        """Return the number of dims."""
        return self.array.ndim

    def size(self, dim=None):
        """Return the shape, or the size of one dim."""
        return self.shape if dim is None else self.array.shape[self._dim_of_mine(dim, "size")]

    def _dim_of_mine(self, dim, op):
        if not self.array.ndim:
            raise TensorIndexError(
                op,
                expected="a tensor with dims",
                got=f"dim={dim} of a tensor without",
                fix="unsqueeze it, or leave dim out",
            )
        return normalize_dim(dim, self.array.ndim, op)

    def numel(self):
        """Return the number of elements."""
        return self.array.size

    nelement = numel

    def element_size(self):
        """Return the bytes per element."""
        return self.array.dtype.itemsize

    @property
    def itemsize(self):
        """Bytes per element."""
        return self.array.dtype.itemsize

    @property
    def output_nr(self):
        """Which of the results of its operation this tensor is."""
        return methods.meant(self)._index

    @property
    def nbytes(self):
        """Bytes that the elements take."""
        return self.array.nbytes

    def data_ptr(self):
        """Return the address of the first element."""
        layout_read()
        return address(self.array)

    def get_device(self):
        """Return the number of the GPU, -1 in host memory."""
        return -1 if self.device.index is None else self.device.index

    def ndimension(self):
        """Return the number of dims."""
        return self.array.ndim

    def is_floating_point(self):
        """Whether the dtype is a real floating one."""
        return self.array.dtype.kind == "f"

    def is_complex(self):
        """Whether the dtype is a complex one."""
        return self.array.dtype.kind == "c"

    def is_signed(self):
        """Whether the dtype has negative numbers."""
        return self.array.dtype.kind in "ifc"

    def is_same_size(self, other):
        """Whether another tensor has the same shape."""
        return self.array.shape == as_tensor(other, "is_same_size").array.shape

    def is_contiguous(self, memory_format=contiguous_format):
        """Whether the elements lie in row-major order, or in the one that is named."""
        layout_read()
        return lies_in(self.array, memory_format)

    def contiguous(self, memory_format=contiguous_format):
        """Return the tensor itself or a row-major copy, whatever format is named."""
        return self if self.array.flags.c_contiguous else self.clone()

    def clone(self, *, memory_format=preserve_format):
        """Return a copy, through which gradients flow; `memory_format` moves nothing."""
        return arithmetic.clone(self)

    def stride(self, dim=None):
        """Return how many elements lie between neighbours along each dim, or along one."""
        layout_read()
        strides = tuple(s // self.array.itemsize for s in self.array.strides)
        return strides if dim is None else strides[self._dim_of_mine(dim, "stride")]

    # -------------------------------------------------------------------------------- Python values

    apply_ = values.apply_
    map_ = values.map_
    item = values.item
    tolist = values.tolist
    numpy = values.numpy
    is_nonzero = values.is_nonzero
    __bool__ = values.truth
    __int__ = values.integer
    __float__ = values.real
    __complex__ = values.complex_number
    __index__ = values.index
    __repr__ = values.text
    _repr_html_ = values.html
    __format__ = values.formatted

    # ------------------------------------------------------------------------------------ protocols

    __array_priority__ = 1000
    # Above Series (3000) and DataFrame (4000): `series * t` is then t's to compute.
    __pandas_priority__ = 5000

    __array__ = values.array
    __buffer__ = values.buffer
    __dlpack__ = values.dlpack
    __dlpack_device__ = values.dlpack_device

    # No `__getattr__`: see `values.LookedFor`.
    __array_struct__ = values.array_struct
    __array_interface__ = values.array_interface
    __cuda_array_interface__ = values.cuda_array_interface
    unconstrained = values.unconstrained
    _data = values.masked_data

    def __array_namespace__(self, *, api_version=None):
        """Return the functions of the array API standard, for libraries that take any array."""
        from probtorch import array_api  # late: most programs never ask for it

        known = array_api.__array_api_version__
        if api_version is not None and not "2021.12" <= api_version <= known:
            raise ArgumentError(
                "__array_namespace__",
                expected=f"a version of the standard up to {known}",
                got=repr(api_version),
                fix="leave api_version out",
            )
        return array_api

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        return array_ufunc(ufunc, method, inputs, kwargs)

    def __array_function__(self, func, types, args, kwargs):
        return array_function(func, args, kwargs)

    def __copy__(self):
        if self.grad_fn is not None:
            return self.view(self.array.shape)  # on the tape, of the same memory
        rebuild, given = self.__reduce_ex__(4)
        return rebuild(*given)

    def __deepcopy__(self, memo):
        if self.grad_fn is not None:
            raise AutogradError(
                "deepcopy",
                expected="a leaf tensor",
                got="the result of an operation",
                fix="detach().clone() it first",
            )
        out = retyped(wrap(self.array.copy()), type(self))
        alias(self, out, taped=False)
        out.requires_grad = self.requires_grad
        out._grad = None if self._grad is None else wrap(self._grad.array.copy())
        memo[id(self)] = out
        return out

    def __reduce_ex__(self, protocol):
        if self.grad_fn is not None:
            raise AutogradError(
                "pickle",
                expected="a leaf tensor",
                got="the result of an operation",
                fix="detach() it first",
            )
        array = read("pickle", self, to_host(self.array))
        return _rebuild, (type(self), array, self.requires_grad)

    # ------------------------------------------------------------------------------------- autograd

    backward = methods.backward
    requires_grad_ = methods.requires_grad_
    detach = methods.detach
    detach_ = methods.detach_
    register_hook = methods.register_hook
    register_post_accumulate_grad_hook = methods.register_post_accumulate_grad_hook
    retain_grad = methods.retain_grad

    # ----------------------------------------------------------------------------------- conversion

    to = transfer.to

    def type(self, dtype=None, non_blocking=False):
        """Return the tensor in another dtype, or the name that PyTorch has for its type.

        Parameters
        ----------
        dtype : dtype, str or class, optional
            Also PyTorch's older spellings: ``Tensor`` is the default dtype, "torch.FloatTensor" is
            float32. Left out, such a name is returned.
        non_blocking : bool
            For PyTorch's sake; it changes nothing.
        """
        if dtype is None:
            return f"torch.{dtypes.class_name(self.array.dtype)}"
        if isinstance(dtype, type) and issubclass(dtype, Tensor):
            dtype = dtypes.default_dtype()
        return cast(self, dtypes.as_dtype(dtype))

    def type_as(self, other):
        """Return the tensor in the dtype of `other`."""
        return cast(self, as_tensor(other, "type_as").array.dtype)

    def as_subclass(self, cls):
        """Return the tensor as one of a subclass of Tensor, on the same memory."""
        if not (isinstance(cls, type) and issubclass(cls, Tensor)):
            raise ArgumentError(
                "as_subclass",
                expected="a subclass of Tensor",
                got=f"{cls!r:.60}",
                fix="pass the class",
            )
        return retyped(self, cls)

    def cpu(self):
        """Return the tensor in host memory."""
        return self.to(device="cpu")

    def cuda(self, device=None, non_blocking=False):
        """Return the tensor on a GPU; `non_blocking` as in `to`."""
        return self.to(device="cuda" if device is None else device, non_blocking=non_blocking)

    # ------------------------------------------------------------------------------------- in place

    copy_ = filling.copy_
    fill_ = filling.fill_
    zero_ = filling.zero_

    def new_zeros(self, *size, dtype=None, device=None, requires_grad=False):
        """Return zeros of a size, with this dtype and device unless others are given."""
        return self.new_full(size, 0, dtype=dtype, device=device, requires_grad=requires_grad)

    def new_ones(self, *size, dtype=None, device=None, requires_grad=False):
        """Return ones of a size, with this dtype and device unless others are given."""
        return self.new_full(size, 1, dtype=dtype, device=device, requires_grad=requires_grad)

    @in_our_words
    def new_full(self, size, fill_value, *, dtype=None, device=None, requires_grad=False):
        """Return a filled tensor of a size, with this dtype and device unless others are given."""
        size = size if isinstance(size, (tuple, list)) else (size,)
        dtype = self.array.dtype if dtype is None else dtypes.as_dtype(dtype)
        dtypes.check_fits("new_full", fill_value, dtype)
        filled = np.full(sizes("new_full", size), fill_value, dtype)
        made = wrap(to_device(filled, self.device if device is None else device))
        return made.requires_grad_() if requires_grad else made

    @in_our_words
    def new_empty(self, *size, dtype=None, device=None, requires_grad=False):
        """Return an uninitialised tensor of a size, like this unless said otherwise."""
        dtype = self.array.dtype if dtype is None else dtypes.as_dtype(dtype)
        empty = np.empty(sizes("new_empty", size), dtype)
        made = wrap(to_device(empty, self.device if device is None else device))
        return made.requires_grad_() if requires_grad else made

    def new(self, *data):
        """Return a tensor of this dtype and device: of these numbers, or uninitialised of sizes.

        PyTorch's older form of `new_tensor` and `new_empty`.
        """
        return Tensor(*data, dtype=self.array.dtype).to(device=self.device)

    def new_tensor(self, data, *, dtype=None, device=None, requires_grad=False):
        """Return `data` as a tensor of this dtype and device unless others are given."""
        return tensor(
            data,
            dtype=self.array.dtype if dtype is None else dtype,
            device=self.device if device is None else device,
            requires_grad=requires_grad,
        )

    # --------------------------------------------------------------------------------------- shapes

    def view(self, *shape):
        """Return the same elements in another shape, in the same memory: changes are seen in both.

        Raises
        ------
        ShapeError
            If the elements do not lie in memory as the shape needs them; `reshape` then copies.
        """
        if len(shape) == 1 and isinstance(shape[0], np.dtype):
            raise ArgumentError(
                "view", expected="sizes", got=str(shape[0]), fix="use to(dtype) to convert"
            )
        return movement.view(self, *shape)

    def view_as(self, other):
        """Return `self` in the shape of `other`, without a copy; see `view`."""
        return movement.view(self, as_tensor(other, "view_as").array.shape)

    def reshape_as(self, other):
        """Return `self` in the shape of `other`."""
        return movement.reshape(self, as_tensor(other, "reshape_as").array.shape)

    def expand_as(self, other):
        """Return `self` expanded to the shape of `other`."""
        return movement.expand(self, as_tensor(other, "expand_as").array.shape)

    def polygamma(self, n):
        """Return derivative `n` of digamma: `special.polygamma`, whose order comes first."""
        return special.polygamma(n, self)

    def polygamma_(self, n):
        """In-place `polygamma`."""
        return _in_place("polygamma", Tensor.polygamma)(self, n)

    def where(self, condition, other):
        """Return `self` where `condition` holds, else `other`."""
        return arithmetic.where(condition, self, other)


def _in_place(name, fn):
    several = not hasattr(fn, "op")
    op = getattr(getattr(fn, "usual", fn), "op", None)  # with options it may be several
    usual = op and op.result != "bool" and "integers_only" not in op.extra
    ufunc = op.run if usual and type(op.run) is np.ufunc else None
    others = -1 if ufunc is None else ufunc.nin - 1

    def method(self, *args, **kwargs):
        if len(args) == others and not kwargs and is_plain(self) and self.array.dtype.char in "fd":
            x, y = self.array, args[0] if others else 0.0
            if isinstance(y, TensorBase) and not (y.requires_grad and grad_enabled()):
                y = y.array
            if type(y) is int and abs(y) < 2**53:
                y = float(y)
            if type(y) is float or (
                type(y) is np.ndarray and y.dtype is x.dtype and (y.shape == x.shape or not y.ndim)
            ):
                ufunc(x, y, x) if others else ufunc(x, x)
                mark_changed(self)
                return self
        # Of a function of several operations any may read what is to be overwritten.
        x = arithmetic.clone(self) if several and self.requires_grad and grad_enabled() else self
        return assign(self, fn(x, *args, **kwargs), name + "_")

    method.__name__ = method.__qualname__ = name + "_"
    method.__doc__ = f"In-place `{name}`."
    return method


def _add_method(word, fn):
    """Make `fn` a method of Tensor, and its in-place form where the word ends in ``_``."""
    name = word.removesuffix("_")
    if fn.__name__.endswith("_"):
        setattr(Tensor, word, fn)
        return
    setattr(Tensor, name, fn)
    if word != name:
        setattr(Tensor, word, _in_place(name, fn))


for _module, _words in method_table.METHODS.items():
    for _word in _words.split():
        _add_method(_word, getattr(_module, _word.removesuffix("_")))
for _word, _fn in method_table.OTHER_NAMES.items():
    _add_method(_word, _fn)
for _name, _dtype in method_table.CONVERSIONS.items():
    setattr(Tensor, _name, method_table.conversion(_name, _dtype))
for _name, _alias in method_table.ALIASES.items():
    for _end in ("", "_"):
        if hasattr(Tensor, _alias + _end) and _name + _end not in vars(Tensor):
            setattr(Tensor, _name + _end, getattr(Tensor, _alias + _end))
for _symbol, _method in {
    "add": "add",
    "sub": "sub",
    "mul": "mul",
    "truediv": "div",
    "pow": "pow",
    "mod": "remainder",
    "floordiv": "floor_divide",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
}.items():
    setattr(Tensor, f"__i{_symbol}__", getattr(Tensor, _method + "_"))

# Functions that stand elsewhere are methods: Python's own errors call them so, and so they pickle.
for _name, _fn in vars(Tensor).items():
    if isinstance(_fn, FunctionType) and _fn.__module__ in (
        values.__name__,
        methods.__name__,
        transfer.__name__,
        filling.__name__,
    ):
        _fn.__name__, _fn.__qualname__, _fn.__module__ = _name, f"Tensor.{_name}", __name__

doors.tensor_class.fill(Tensor)


def retyped(t, cls):
    """Return a tensor as one of class `cls`, with all that it knows."""
    if type(t) is cls:
        return t
    out = object.__new__(cls)
    for slot in TensorBase.__slots__:
        if slot != "__weakref__":
            setattr(out, slot, getattr(t, slot))
    alias(t, out, taped=True)
    return out


def _rebuild(cls, array, requires_grad):
    out = retyped(wrap(dtypes.shared(array)), cls)
    out.requires_grad = requires_grad
    return out


def tensor(data, *, dtype=None, device=None, requires_grad=False):
    """Make a tensor from numbers, nested sequences, an array or a tensor; always a copy.

    Python floats become the default dtype (float32), integers int64, booleans bool; arrays keep
    their dtype. Tensors keep their gradient, alone or inside sequences, which are stacked; a single
    one with ``requires_grad=True`` is copied to a leaf of its own.

    Raises
    ------
    ShapeError
        If nested sequences are ragged.
    DTypeError
        If the data are not numbers, or `requires_grad` is asked of integers.
    """
    dtype = None if dtype is None else dtypes.as_dtype(dtype)
    if isinstance(data, TensorBase):
        if dtype is None and is_number(data):
            dtype = dtypes.default_dtype()
        t = copied(data, dtype, requires_grad)
    elif isinstance(data, (list, tuple)):
        t = from_nested(data, dtype)
    elif (held := tensors_in(data)) is not None:
        t = from_nested(held, dtype)
    else:
        t = wrap(array_of(data, dtype))
        entered(data, t)
    if device is not None and transfer.elsewhere(t.array, device):
        t = t.to(device=device)
    return t.requires_grad_() if requires_grad else t


explain_calls(globals())
