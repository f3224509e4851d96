"""The one door: every operation on tensors passes through here.

`apply` computes, puts a `Node` on the tape if a gradient is wanted, and tells the recorder if one
is active. Elementwise ops get a specialised door each (`unary_door`, `binary_door`), because on
small tensors the cost of an op is the cost of this file: see benchmarks/eager.py and its budget in
DESIGN. Nothing here knows a particular op, except `cast`, which promotion needs.

The interpreter's state is grad mode and the active recorder, one of each per thread, and a clock
that ticks with every node and every in-place change. A node's epoch is the tick of its making: it
orders the tape, and a tensor whose memory changed at a later tick is stale for that node.
"""

import operator
import threading
import warnings
import weakref
from bisect import bisect_right
from collections import deque
from typing import Any

import numpy as np

from probtorch.backends.registry import array_module, device_of
from probtorch.core import dtype as dtypes
from probtorch.core.op import Op, register
from probtorch.core.shape import broadcast_shapes
from probtorch.core.tensor_base import TensorBase
from probtorch.errors import (
    HEARD_BY,
    ArgumentError,
    AutogradError,
    DeviceError,
    DomainError,
    DTypeError,
    ProbtorchError,
    ShapeError,
    user_frame,
)

__all__ = [
    "Node",
    "apply",
    "as_tensor",
    "binary_door",
    "carry",
    "cast",
    "changed_since",
    "edge",
    "finish",
    "general",
    "grad_enabled",
    "hooked",
    "hooks_changed",
    "leave_tape",
    "mark_changed",
    "recorder",
    "recording",
    "refresh",
    "refuse_masked",
    "restore",
    "retain",
    "root_of",
    "save_output",
    "saved_output",
    "set_grad_enabled",
    "set_recorder",
    "set_surroundings",
    "surroundings",
    "set_tensor_class",
    "stale",
    "take_over",
    "told_entry",
    "told_exit",
    "unary_door",
    "use_nesting",
    "use_views",
    "wrap",
]


class _Mode(threading.local):
    """What is switched on in this thread, so that threads cannot switch it for each other."""

    grad = True
    recorder: Any = None

    def __environment__(self) -> list[Any]:
        """Nothing in it is a function's own (see compiler/guards/entering.py)."""
        return []


_MODE = _Mode()
# How many threads have a recorder, and how many have the tape switched off. While none has, an op
# looks no further than these numbers: an attribute of a threading.local costs five times a global.
_RECORDING = 0
_UNTAPED = 0
_counting = threading.Lock()
_CLOCK = 0
_HOOKS = 0  # how often hooks of leaves changed
_CHANGED = 0  # the tick of the last in-place change of any tensor
# Tick and the user's (file, line) of the latest in-place changes, for the error that blames one.
_CHANGES: deque[tuple[int, Any]] = deque(maxlen=64)
_view_writer: Any = None
_view_reader: Any = None
_nesting: Any = None
_Tensor = TensorBase
_new = object.__new__
_ref = weakref.ref
_ndarray = np.ndarray
_generic = np.generic
_asarray = np.asarray
_NUMBERS = frozenset((int, float))
_PYTHON_NUMBERS = (bool, int, float, complex)
EMPTY: dict = {}
# Families of the ops that compute; others only move elements, complex ones too.
_COMPUTING = frozenset(("reduction", "scan", "contraction", "linalg", "sorting", "special"))

# Infinities and nan mean what IEEE says they mean, as in PyTorch: log(0) is -inf, quietly. The
# filter covers NumPy's calls from this package only; np.errstate around each call costs as much
# as the call.
warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"probtorch\.(core|ops|tensor)\b")


def set_tensor_class(cls):
    """Make `cls` the class of every tensor built here; called once, by probtorch.tensor."""
    global _Tensor
    _Tensor = cls


class Surroundings:
    """What model statements do and read, as the compiler has to know; see effects/runtime.py."""

    def performed(self):
        """Return how many statements this thread has performed."""
        return 0

    def active(self):
        """Whether statements mean something else here than in a plain script."""
        return False

    def roots(self):
        """Return objects whose Python values statements read in a plain script."""
        return ()


_surroundings = Surroundings()


def surroundings():
    """Return what tells about model statements."""
    return _surroundings


def set_surroundings(found):
    """Set what tells about model statements; called once, by the module that performs them."""
    global _surroundings
    _surroundings = found


def grad_enabled():
    """Whether operations are put on the tape."""
    return _MODE.grad


def set_grad_enabled(value):
    """Switch the tape on or off in this thread; returns the setting before."""
    global _UNTAPED
    before, _MODE.grad = _MODE.grad, bool(value)
    if before is not _MODE.grad:
        with _counting:
            _UNTAPED += 1 if before else -1
    return before


def recorder():
    """Return the active recorder or None; that of another thread is not active in this one."""
    return _MODE.recorder if _RECORDING else None


def recording():
    """Return what hears of all that happens, to run it again or as something else; None without.

    Listeners that only watch do not count.
    """
    active = recorder()
    while active is not None and getattr(active, "only_watches", False):
        active = active.outer
    return active


def set_recorder(new):
    """Install `new` as this thread's recorder (None for none); returns the one before."""
    global _RECORDING
    before, _MODE.recorder = _MODE.recorder, new
    if (before is None) is not (new is None):
        with _counting:
            _RECORDING += 1 if before is None else -1
    return before


def _tell(op, inputs, attrs, out):
    """Tell this thread's recorder, if it has one, of one operation."""
    active = _MODE.recorder
    if active is not None:
        active.record(op, inputs, attrs, out)


def told_entry(value, t):
    """Tell the active listener, if it asks for that, that Python's `value` became tensor `t`."""
    if _RECORDING:
        entered = getattr(_MODE.recorder, "entered", None)
        if entered is not None:
            entered(value, t)


def told_exit(how, t, value):
    """Tell the active listener, if it asks for that, that Python takes `value` out of `t`.

    Returns
    -------
    What Python gets: mostly `value`.
    """
    if _RECORDING:
        left = getattr(_MODE.recorder, "left", None)
        if left is not None:
            return left(how, t, value)
    return value


def _tell_failed(op, inputs, attrs, error):
    """Tell what records this thread of an operation that raised an error."""
    tell = getattr(recording(), "op_failed", None)
    if tell is not None:
        tell(op, inputs, attrs, error)


def _hear_of(error):
    """Tell what records this thread of an error that depends on the elements of tensors."""
    hear = getattr(recording(), "hear_of", None)
    if hear is not None:
        hear(error)


HEARD_BY.append(_hear_of)


def carry(source, t):
    """Tell the active recorder that `t` is another name for `source`, gradient and all."""
    active = recorder()
    if active is not None:
        getattr(active, "carry", active.alias)(source, t)


class Node:
    """One entry of the tape: the op, its inputs, and what its vjp may need.

    `tick` is set where this is the result of an in-place change, to the tick of that, and where it
    reads a view from its root, to that of its making. `where`, the user's line, is set in anomaly
    mode only (autograd/anomaly.py).
    """

    tick: int
    __slots__ = (
        "__weakref__",
        "attrs",
        "epoch",
        "hooks",
        "inputs",
        "op",
        "out",
        "saved",
        "tick",
        "where",
    )

    def __init__(self, op, inputs, attrs):
        global _CLOCK
        _CLOCK += 1
        self.epoch = _CLOCK
        self.op = op
        self.inputs = inputs
        self.attrs = attrs
        self.out = None
        self.saved = None
        self.hooks = None

    def __lt__(self, other):
        # Of two with one epoch, which only readings of views have.
        return self.tick < other.tick

    @property
    def name(self):
        """Name of the op, as PyTorch shows it."""
        return self.op.name

    def __repr__(self):
        return f"<{self.op.name} node>"


def wrap(array):
    """Return a new tensor around `array`, memory that is its own from now on (no copy, no tape)."""
    t = _around(array)
    if _RECORDING and _MODE.recorder is not None:
        _MODE.recorder.fresh(t)
    return t


def _around(array):
    """Return a new tensor around memory that others may change too."""
    if type(array) is not _ndarray and not hasattr(array, "__cuda_array_interface__"):
        refuse_masked(array)
        array = np.asarray(array)
    t = _new(_Tensor)
    t._data = array
    t.requires_grad = False
    t.grad_fn = None
    t._grad = None
    t._base = None
    t._version = 0
    t._index = 0
    t._extra = None
    return t


def refuse_masked(array):
    """Refuse an array with masked elements: a tensor would take the numbers under the mask."""
    if (
        hasattr(array, "mask")
        and type(array).__module__.startswith("numpy.ma")
        and array.mask.any()
    ):
        raise DTypeError(
            "tensor",
            expected="an array without masked elements",
            got=f"a masked array, {int(array.mask.sum())} of {array.size} elements masked",
            fix="fill it, x.filled(numpy.nan), and say which elements count: "
            "handlers.mask(mask=~x.mask), or index the others",
        )


def as_tensor(value, op="tensor"):
    """Return `value` as a tensor.

    Tensors come back as they are, arrays without a copy, Python numbers in their default dtype.
    """
    if isinstance(value, TensorBase):
        return value
    kind = type(value)
    if kind is float:
        t = wrap(np.array(value, dtypes.default_dtype()))
        told_entry(value, t)
        return t
    if kind is bool or kind is int:
        return wrap(np.array(value))
    if isinstance(value, (np.ndarray, np.generic)) or hasattr(value, "__cuda_array_interface__"):
        array = value if not isinstance(value, np.generic) else np.asarray(value)
        if array.dtype.kind == "O" and any(isinstance(x, TensorBase) for x in array.flat):
            return _nesting(array.tolist(), None, op)
        if array.dtype.kind not in "biufc":
            raise DTypeError(
                op,
                expected="a numeric array",
                got=f"dtype {array.dtype}",
                fix="convert it to numbers first",
            )
        # A number of NumPy's never changes, as an array may.
        t = wrap(array) if array is not value else _around(array)
        told_entry(value, t)
        return t
    if isinstance(value, (list, tuple)):
        return _nesting(value, None, op)
    if hasattr(value, "__array__"):
        return as_tensor(np.asarray(value), op)
    raise DTypeError(
        op,
        expected="a tensor, array or number",
        got=f"{type(value).__name__} {value!r:.60}",
        fix="wrap it in probtorch.tensor",
    )


def use_nesting(fn):
    """Register what makes tensors of nested sequences; called once, by probtorch/nesting.py."""
    global _nesting
    _nesting = fn


def mark_changed(*tensors, place=None):
    """Note an in-place change of the memory of tensors, in the user's line or at `place`; returns
    the tick of the clock.
    """
    global _CLOCK, _CHANGED
    _CLOCK += 1
    _CHANGED = _CLOCK
    _CHANGES.append((_CLOCK, place or user_frame(2)))
    for t in tensors:
        (t if t._base is None else t._base)._version = _CLOCK
    return _CLOCK


def last_change():
    """Return the tick of the last in-place change of any tensor."""
    return _CHANGED


def hooks_changed(by=0):
    """Return how often a gradient hook of a leaf was put on or taken off, after `by` more."""
    global _HOOKS
    _HOOKS += by
    return _HOOKS


def hooked(t):
    """Whether a leaf has gradient hooks."""
    return t._extra is not None and bool(t._extra.get("hooks"))


def changed_since(t, epoch):
    """Whether the memory of `t` changed in place after tick `epoch`."""
    return (t if t._base is None else t._base)._version > epoch


def save_output(node, out):
    """Let `node`'s vjp read its output without keeping the output tensor in a reference cycle."""
    if type(out) is tuple:
        node.out = tuple(weakref.ref(o) for o in out)
        node.saved = tuple(o._data for o in out)
    else:
        node.out = weakref.ref(out)
        node.saved = out._data


def saved_output(node):
    """Return the output tensor(s) of `node`, alive or rebuilt from the saved array.

    Raises
    ------
    AutogradError
        If the output's memory was changed in place after the node was made.
    """
    if type(node.out) is tuple:
        return tuple(
            restore(node, ref, data, i)
            for i, (ref, data) in enumerate(zip(node.out, node.saved, strict=True))
        )
    return restore(node, node.out, node.saved, 0)


def restore(node, ref, data, index):
    """Return output `index` of `node`: what `ref` refers to, else a new tensor on `data`."""
    out = ref()
    if out is not None:
        if changed_since(out, node.epoch) and changed_since(out, getattr(node, "tick", 0)):
            raise stale(node, "its output", out)
        return out
    out = wrap(data)
    out.requires_grad = data.dtype.kind in "fc"
    out.grad_fn = node
    out._index = index
    return out


def stale(node, what, t):
    """Error for a tensor `t` that the vjp of `node` needs and that was changed in place."""
    tick = (t if t._base is None else t._base)._version
    place = next((place for at, place in _CHANGES if at == tick), None)
    at = f" at {place[0]}:{place[1]}" if place else " (a trailing underscore, or x[...] = ...)"
    made = getattr(node, "where", None)
    return AutogradError(
        f"{node.op.name}: a tensor needed for its gradient was modified in place",
        expected=f"{what} unchanged since the forward pass" + (f" at {made}" if made else ""),
        got=f"an in-place operation{at} after it, on shape {t._data.shape}",
        fix="use the out-of-place form, or clone() the tensor before changing it",
    )


def apply(op, inputs, attrs=EMPTY):
    """Run `op` on tensors: compute, tape, record.

    Parameters
    ----------
    op : Op
    inputs : tuple of Tensor
        Elementwise ops may also hold Python numbers.
    attrs : dict
        Keyword arguments of `op.run`; hashable where the compiler should share kernels.

    Returns
    -------
    Tensor or tuple of Tensor
    """
    if op.family in _COMPUTING and inputs[0]._data.dtype.kind == "c":
        raise _complex(op)
    try:
        result = op.run(*[x._data if isinstance(x, TensorBase) else x for x in inputs], **attrs)
    except Exception as error:
        if _RECORDING:
            _tell_failed(op, inputs, attrs, error)
        raw = isinstance(error, (TypeError, ValueError, IndexError, ZeroDivisionError))
        if not raw or isinstance(error, (ProbtorchError, np.linalg.LinAlgError)):
            raise
        tensors = [x for x in inputs if isinstance(x, TensorBase)]
        if len({type(x._data) for x in tensors}) > 1:
            raise _mixed(op, tensors) from None
        raise _failed(op, tensors, attrs, error) from error
    several = type(result) is tuple
    out: Any = tuple(wrap(r) for r in result) if several else wrap(result)
    if op.extra and "view" in op.extra:
        x = inputs[0]
        base, owner = out._data.base, x._data.base
        # NumPy lets every view point at the owner of the memory; a copy has another owner or none.
        if base is not None and (base is x._data or base is owner):
            out._base = root = x if x._base is None else x._base
            # Of a view: the tick since which its place on the tape is what it is.
            out._version = _CLOCK
            if x._extra is not None and "root" in x._extra:
                root = x._extra["root"]
                root = x if root is None else root
                out._extra = {"root": root}
            if not root.requires_grad and out._data.dtype.kind in "fc":
                _know_view(root, out)
    if _MODE.grad and op.vjp is not None:
        for x in inputs:
            if isinstance(x, TensorBase) and x.requires_grad:
                node = Node(op, inputs, attrs)
                _attach(node, out, several)
                break
    if _RECORDING:
        _tell(op, inputs, attrs, out)
    return out


def root_of(t):
    """Return the tensor of whose elements `t` is a view on the tape, None if it is no view.

    Mostly that is the owner of the memory. Detached tensors share memory with their source, but
    take no part in its gradients: they and their views have the detached tensor as their root.
    """
    extra = t._extra
    if extra is not None and "root" in extra:
        return extra["root"]
    return t._base


def _know_view(root, view):
    """Let `root`, which requires no gradient yet, know a view that has to learn when it does."""
    if root._extra is None:
        root._extra = {"views": [_ref(view)]}
        return
    views = root._extra.setdefault("views", [])
    views.append(_ref(view))
    if len(views) & (len(views) - 1) == 0 and len(views) > 16:
        # At powers of two, so that many short-lived views cost no more than they must.
        views[:] = [r for r in views if r() is not None]


def _failed(op, tensors, attrs, e):
    """Error for what the array library refuses and no check of ours did."""
    settings = ", ".join(f"{k}={v!r:.40}" for k, v in attrs.items())
    return ArgumentError(
        op.name,
        expected="operands that fit together and to the settings",
        got=f"shapes {', '.join(str(x._data.shape) for x in tensors)}, dtypes "
        f"{', '.join(str(x._data.dtype) for x in tensors)}" + (f"; {settings}" if settings else ""),
        fix=f"{type(e).__name__} of the array library: {str(e)[:120]}",
    )


def _attach(node, out, several):
    if several:
        for i, o in enumerate(out):
            if o._data.dtype.kind in "fc":
                o.requires_grad = True
                o.grad_fn = node
                o._index = i
    elif out._data.dtype.kind in "fc":
        out.requires_grad = True
        out.grad_fn = node
    if node.op.reads_output:
        save_output(node, out)


def unary_door(op, fn):
    """Return the public function of a one-argument elementwise op; `fn` works on arrays."""
    differentiable = op.vjp is not None
    reads_output = op.reads_output

    def call(x, *, out=None):
        global _CLOCK
        try:
            a = x._data
        except AttributeError:
            x = as_tensor(x, op.name)
            a = x._data
        if a.dtype.kind != "f":
            x = _prepared(op, x)
            a = x._data
        try:
            r = fn(a)
        except (TypeError, ValueError) as e:
            raise _not_taken(op, (x,), e) from None
        if out is not None:
            return finish(op, (x,), r, out)
        if type(r) is not _ndarray:
            if not isinstance(r, _generic):
                return finish(op, (x,), r)
            r = _asarray(r)  # ufuncs return a NumPy scalar for 0-d arrays
        t = _new(_Tensor)
        t._data = r
        t._grad = t._base = t._extra = None
        t._version = t._index = 0
        if differentiable and x.requires_grad and (not _UNTAPED or _MODE.grad):
            t.requires_grad = True
            t.grad_fn = node = _new(Node)
            _CLOCK += 1
            node.epoch = _CLOCK
            node.op = op
            node.inputs = (x,)
            node.attrs = EMPTY
            node.hooks = None
            if reads_output:
                node.out = _ref(t)
                node.saved = r
            else:
                node.out = node.saved = None
        else:
            t.requires_grad = False
            t.grad_fn = None
        if _RECORDING:
            _tell(op, (x,), EMPTY, t)
        return t

    return call


def _prepared(op, x):
    """Return an operand that is no real float in the dtype that `op` computes in."""
    dtype = x._data.dtype
    if dtype.kind == "c":
        if op.name == "clone":
            return x
        raise _complex(op)
    if op.result == "float":
        return cast(x, dtypes.default_dtype())
    if dtype.kind == "b" and "booleans_as_integers" in op.extra:
        return cast(x, dtypes.int64)
    return x


def _complex(op):
    """Error for complex numbers: neither values nor gradients of ours are meant for them."""
    return DTypeError(
        op.name,
        expected="real numbers",
        got="complex ones, which tensors can hold but not compute with",
        fix="keep real and imaginary parts as two tensors, or compute with x.numpy()",
    )


def _not_taken(op, operands, e):
    """Error for what NumPy's function refuses: a dtype, or values of it."""
    got = " and ".join(
        str(x._data.dtype) if isinstance(x, TensorBase) else repr(x) for x in operands
    )
    if isinstance(e, TypeError):
        return DTypeError(
            op.name,
            expected="a dtype that it is defined for",
            got=got,
            fix="cast with .float() or .long() first",
        )
    return DomainError(
        op.name,
        expected=op.extra.get("takes", "values that it is defined for"),
        got=f"{got} ({str(e)[:100]})",
        fix="cast with .float() first",
    )


def binary_door(op, fn):
    """Return the public function of a two-argument elementwise op; `fn` works on arrays."""
    kinds = "f" if op.result == "float" else "fiub"
    differentiable = op.vjp is not None
    reads_output = op.reads_output

    def call(x, y, *, out=None):
        global _CLOCK
        try:
            a = x._data
            if type(y) in _NUMBERS:
                if a.dtype.kind != "f":
                    return general(op, fn, (x, y), out)
                b = y
                wanted = x.requires_grad
            else:
                b = y._data
                if a.dtype is not b.dtype or a.dtype.kind not in kinds:
                    return general(op, fn, (x, y), out)
                wanted = x.requires_grad or y.requires_grad
            r = fn(a, b)
        except (AttributeError, ValueError, TypeError):
            return general(op, fn, (x, y), out)
        if out is not None:
            return finish(op, (x, y), r, out)
        if type(r) is not _ndarray:
            if not isinstance(r, _generic):
                return finish(op, (x, y), r)
            r = _asarray(r)  # ufuncs return a NumPy scalar for 0-d arrays
        t = _new(_Tensor)
        t._data = r
        t._grad = t._base = t._extra = None
        t._version = t._index = 0
        if wanted and differentiable and (not _UNTAPED or _MODE.grad):
            t.requires_grad = True
            t.grad_fn = node = _new(Node)
            _CLOCK += 1
            node.epoch = _CLOCK
            node.op = op
            node.inputs = (x, y)
            node.attrs = EMPTY
            node.hooks = None
            if reads_output:
                node.out = _ref(t)
                node.saved = r
            else:
                node.out = node.saved = None
        else:
            t.requires_grad = False
            t.grad_fn = None
        if _RECORDING:
            _tell(op, (x, y), EMPTY, t)
        return t

    return call


def general(op, fn, operands, out=None):
    """Elementwise call in full: mixed dtypes, Python numbers, arrays, errors, devices."""
    operands = tuple(
        x if isinstance(x, TensorBase) or type(x) in _PYTHON_NUMBERS else as_tensor(x, op.name)
        for x in operands
    )
    if not any(isinstance(x, TensorBase) for x in operands):
        operands = tuple(as_tensor(x, op.name) for x in operands)
    skip = op.extra.get("mask_inputs", ())
    meant = [x for i, x in enumerate(operands) if i not in skip]
    common = dtypes.promote([x._data if isinstance(x, TensorBase) else x for x in meant])
    if common.kind == "c":
        raise _complex(op)
    if op.result == "float" and common.kind != "f":
        common = dtypes.default_dtype()
    if op.extra.get("integers_only") and common.kind == "f":
        raise DTypeError(
            op.name,
            expected="integers or booleans",
            got=str(common),
            fix="cast with .long() or .bool() first",
        )
    inputs = tuple(
        (cast(x, dtypes.bool_) if isinstance(x, TensorBase) else bool(x))
        if i in skip
        else (cast(x, common) if isinstance(x, TensorBase) else _number(x, common, op))
        for i, x in enumerate(operands)
    )
    if all(i in skip or not isinstance(x, TensorBase) for i, x in enumerate(inputs)):
        # Numbers alone carry no dtype into the kernel, as in where(mask, 1.0, 0.0).
        inputs = tuple(
            x if i in skip else wrap(np.asarray(x, common)) for i, x in enumerate(inputs)
        )
    arrays = [x._data if isinstance(x, TensorBase) else x for x in inputs]
    if len({type(a) for a in arrays if not isinstance(a, _PYTHON_NUMBERS)}) > 1:
        inputs = _on_one_device(op, inputs)
        arrays = [x._data if isinstance(x, TensorBase) else x for x in inputs]
    try:
        result = fn(*arrays)
    except DomainError:
        raise
    except (TypeError, ValueError) as e:
        broadcast_shapes(*(np.shape(a) for a in arrays), op=op.name)
        raise _not_taken(op, inputs, e) from None
    return finish(op, inputs, result, out)


def _on_one_device(op, inputs):
    """Return inputs of several devices on one: single numbers on the host go where others are.

    Raises
    ------
    DeviceError
        If that leaves arrays on different devices.
    """
    tensors = [x for x in inputs if isinstance(x, TensorBase)]
    if any(x._data.ndim and type(x._data) is _ndarray for x in tensors):
        raise _mixed(op, tensors)
    device = next(device_of(x._data) for x in tensors if type(x._data) is not _ndarray)
    move: Any = _Tensor.to  # type: ignore[attr-defined]  # the class of all tensors has it
    return tuple(
        move(x, device=device) if isinstance(x, TensorBase) and type(x._data) is _ndarray else x
        for x in inputs
    )


def _mixed(op, tensors):
    """Error for tensors on different devices."""
    return DeviceError(
        op.name,
        expected="all tensors on one device, numbers of shape () aside",
        got=", ".join("cpu" if type(x._data) is _ndarray else "cuda" for x in tensors),
        fix="move one of them with .to(device)",
    )


def _number(x, dtype, op):
    """Return the Python number `x` as the kind of number `dtype` holds; integers wrap around."""
    if dtype.kind == "f":
        return float(x)
    if dtype.kind in "iu":
        if int(x) != x:
            raise DTypeError(
                "number",
                expected=f"an integer for dtype {dtype}",
                got=repr(x),
                fix="cast the tensor to float",
            )
        x = int(x)
        if op.result == "bool":
            return x  # comparisons are exact for any integer
        bits = 8 * dtype.itemsize
        x &= (1 << bits) - 1
        return x - (1 << bits) if dtype.kind == "i" and x >> (bits - 1) else x
    return x


def finish(op, inputs, result, out=None):
    """Wrap an elementwise result, tape it and record it; with `out`, write it there."""
    if type(result) is not _ndarray and not hasattr(result, "__cuda_array_interface__"):
        result = np.asarray(result)
    t = wrap(result)
    if (
        _MODE.grad
        and op.vjp is not None
        and any(x.requires_grad for x in inputs if isinstance(x, TensorBase))
    ):
        _attach(Node(op, inputs, EMPTY), t, False)
    if _RECORDING:
        _tell(op, inputs, EMPTY, t)
    if out is not None:
        return assign(out, t, op.name)
    return t


def assign(target, value, op="copy_"):
    """Write `value` into the memory of `target`, which takes over its place on the tape.

    `value` must be the fresh result of an operation, known to nobody else. Where `target` is a view
    of a tensor, that tensor takes part in the change, and with it all other views: see `place_at`.

    Returns
    -------
    Tensor
        `target`.

    Raises
    ------
    AutogradError
        If `target` is a leaf that requires grad or a view of one, or a view that was made off the
        tape of a tensor that is on it.
    ShapeError, DTypeError, ArgumentError
        If `value` does not fit into `target`, or its memory is read-only.
    """
    data = target._data
    if value._data.shape != data.shape:
        raise ShapeError(
            op,
            expected=f"a result of shape {data.shape}, that of the tensor written to",
            got=str(value._data.shape),
            fix="use the out-of-place form, whose result may have another shape",
        )
    if dtypes.category(value._data.dtype) > dtypes.category(data.dtype):
        raise DTypeError(
            op,
            expected=f"a result of dtype {data.dtype}",
            got=str(value._data.dtype),
            fix="cast the tensor first",
        )
    if not data.flags.writeable:
        raise ArgumentError(
            op, expected="writable memory", got="a read-only array", fix="clone() the tensor first"
        )
    value = cast(value, data.dtype)
    root = root_of(target)
    taped = _MODE.grad and (
        target.requires_grad or value.requires_grad or (root is not None and root.requires_grad)
    )
    if taped:
        _check_in_place(target, root, op)
        if root is not None:
            refresh(target)
        _keep_old_value(target, value)
        if root is not None:
            return _view_writer(target, root, value, op)
    active = recorder()
    if active is not None:
        active.inplace(target, value)
    data[...] = value._data
    changed = mark_changed(target)
    if taped:
        take_over(target, value, changed)
    return target


def use_views(writer, reader):
    """Register what carries out taped changes of views, and what makes the nodes that read them
    from their roots; called once, by ops/indexing.py.
    """
    global _view_writer, _view_reader
    _view_writer, _view_reader = writer, reader


def _check_in_place(target, root, op):
    """Refuse the in-place changes that the tape cannot express."""
    base = target if root is None else root
    if base.requires_grad and base.grad_fn is None:
        what = "a leaf" if base is target else "a view of a leaf"
        raise AutogradError(
            f"{op}: in-place change of {what} that requires grad",
            expected="a tensor that is the result of an operation",
            got=f"{what} of shape {base._data.shape} with requires_grad=True",
            fix="wrap the change in probtorch.no_grad(), or use the out-of-place form",
        )
    if base is not target and (
        (base.requires_grad and not target.requires_grad)
        or (target._extra is not None and "custom" in target._extra)
    ):
        raise AutogradError(
            f"{op}: in-place change, on the tape, of a view that was made off it",
            expected="a view taken where operations are recorded",
            got=f"a view of shape {target._data.shape} of a tensor on the tape, taken under "
            "no_grad() or in the forward of a custom Function",
            fix="take the view again, or detach() it if no gradient is meant to follow",
        )


def _keep_old_value(target, value):
    """Put the old `target` among the inputs of the node of `value`, with its elements if read."""
    node = value.grad_fn
    while node is not None and node.op is _CAST:
        node = node.inputs[0].grad_fn
    if node is None or not any(x is target for x in node.inputs):
        return
    old = wrap(target._data.copy() if _reads(node, target) else target._data)
    old.requires_grad, old.grad_fn = target.requires_grad, target.grad_fn
    old._index = target._index
    carry(target, old)
    node.inputs = tuple(old if x is target else x for x in node.inputs)


def _reads(node, t):
    """Whether a wanted gradient of `node` depends on the elements of its input `t`."""
    inputs, reads = node.inputs, node.op.reads_inputs
    if node.op.rules:
        return any(
            inputs[j] is t
            for i, _, read, _ in node.op.rules
            if isinstance(inputs[i], TensorBase) and inputs[i].requires_grad
            for j in read
        )
    if type(reads) is slice:
        inputs = inputs[reads]
    return bool(reads) and any(x is t for x in inputs)


def take_over(target, value, changed):
    """Put `target`, changed at tick `changed`, in the place of `value` on the tape."""
    node = value.grad_fn
    _move(target, node, value._index, value.requires_grad, changed)
    if node is not None and type(node.out) is _ref and node.out() is value:
        node.out = _ref(target)
        node.saved = target._data
        node.tick = changed


def leave_tape(t):
    """Take `t` off the tape; what was computed from it before keeps its gradient."""
    global _CLOCK, _CHANGED
    _CLOCK += 1
    _CHANGED = _CLOCK
    _move(t, None, 0, False, _CLOCK)


def _move(t, node, index, wanted, changed):
    """Give `t` another place on the tape from tick `changed` on, and note the one before."""
    if t._extra is None:
        t._extra = {}
    extra, learned = t._extra, wanted and not t.requires_grad
    root = root_of(t)
    since = 0 if root is None else t._version
    extra.setdefault("history", []).append((changed, t.grad_fn, t._index, t.requires_grad, since))
    t.requires_grad, t.grad_fn, t._index = wanted, node, index
    if root is not None:
        t._version = changed
        if not wanted and not root.requires_grad:
            _know_view(root, t)
    if "retained" in extra:
        retain(t)
    if learned and "views" in extra:
        for ref in extra.pop("views"):
            view = ref()
            if view is not None and not view.requires_grad and root_of(view) is t:
                _move(view, _read_at(view, t, changed), 0, True, changed)


def retain(t):
    """Let `t` as it is now keep its gradient: what is left of it after all hooks."""
    key = -2 - id(t)  # hooks have the keys from 0 on
    extra = t._extra
    before = extra.get("retained")
    if before is not None and before.hooks is not None:
        before.hooks.pop(key, None)
    extra["retained"] = node = t.grad_fn
    if node is not None:
        if node.hooks is None:
            node.hooks = {}
        node.hooks[key] = t._index, _ref(t)


_FIRST = operator.itemgetter(0)


def place_at(t, epoch):
    """Return the `(grad_fn, index, requires_grad)` of `t` at tick `epoch`.

    A view that was taken before its root changed on the tape has other elements since: then its
    place is a reading of the root as it was at that tick. So no view is ever out of date, and
    nothing needs to be done about views when their root changes.
    """
    extra = t._extra
    found = t.grad_fn, t._index, t.requires_grad
    if extra is None and t._base is None:
        return found
    since = t._version
    history = extra.get("history") if extra else None
    if history:
        i = bisect_right(history, epoch, key=_FIRST)
        if i < len(history):
            found, since = history[i][1:4], history[i][4]
    root = root_of(t)
    if root is None or not found[2] or not root._extra:
        return found
    changes = root._extra.get("history")
    if not changes:
        return found
    i = bisect_right(changes, epoch, key=_FIRST)
    if i == 0 or changes[i - 1][0] <= since:
        return found
    wanted = changes[i][3] if i < len(changes) else root.requires_grad
    if not wanted:
        return None, 0, False
    if "custom" in extra if extra else False:
        raise AutogradError(
            "a view that a custom Function returned was used after its base was modified in place",
            expected="a view taken after the in-place operation",
            got=f"a view of shape {t._data.shape} taken before it",
            fix="clone() what the Function returns",
        )
    return _read_at(t, root, changes[i - 1][0]), 0, True


def _read_at(view, root, changed):
    """Return the node that reads `view` from `root` as it was after tick `changed`."""
    if view._extra is None:
        view._extra = {}
    known = view._extra.setdefault("read", {})
    node = known.get(changed)
    if node is None:
        node = known[changed] = _view_reader(view, root)
        # After the change, and before whatever came next.
        node.tick, node.epoch = node.epoch, changed + 0.5
        if "retained" in view._extra:
            refresh(view)
    return node


def refresh(t):
    """Give a view whose root changed on the tape its place of today."""
    if t._extra is None and t._base is None:
        return
    node, index, wanted = place_at(t, _CLOCK)
    if (node, index, wanted) != (t.grad_fn, t._index, t.requires_grad):
        root: Any = root_of(t)
        _move(t, node, index, wanted, root._extra["history"][-1][0])


def edge(t, node):
    """Return the `(grad_fn, index, requires_grad)` that `t` had when `node` was made."""
    return place_at(t, node.epoch)


def _run_cast(x, dtype):
    kind = np.dtype(dtype).kind
    if x.dtype.kind == "f" and kind in "iu":
        return _to_integers(x, np.dtype(dtype))
    return x.astype(dtype)


def _to_integers(x, dtype):
    """Return floats as integers, the same on every processor and in compiled code.

    Floats beyond the range become its largest or smallest integer, nan becomes 0. The dtypes of
    one and two bytes take the last bits of an int32, as in PyTorch.
    """
    wide = dtypes.int32 if dtype.itemsize < 4 or dtype == dtypes.int32 else dtypes.int64
    out = x.astype(wide)
    if x.dtype.itemsize == 2:
        x = x.astype(dtypes.float32)
    beyond = 2.0 ** (8 * wide.itemsize - 1)
    inside = (x > -beyond) & (x < beyond)
    if not inside.all():
        xp, limits = array_module(x), np.iinfo(wide)
        out = xp.where(x >= beyond, limits.max, xp.where(x <= -beyond, limits.min, out))
        out = xp.where(x != x, 0, out).astype(wide)
    return out.astype(dtype, copy=False)


def _cast_vjp(g, out, inputs, attrs, needs):
    return (cast(g, inputs[0]._data.dtype),)


def _cast_jvp(tangents, out, inputs, attrs):
    return cast(tangents[0], attrs["dtype"])


_CAST = register(
    Op(
        "cast",
        "cast",
        _run_cast,
        _cast_vjp,
        _cast_jvp,
        reads_inputs=False,
        samples=lambda rng: [
            ((rng.standard_normal((2, 3)).astype(np.float32),), {"dtype": dtypes.float64}),
            ((np.arange(3),), {"dtype": dtypes.float64}),
            ((rng.standard_normal(4),), {"dtype": dtypes.int32}),
        ],
        reference=lambda x, dtype: x.astype(dtype),
        doc="Convert to another dtype.",
    )
)


def cast(x, dtype):
    """Return `x` in `dtype`: the same tensor if it already is."""
    if x._data.dtype == dtype:
        return x
    if x._data.dtype.kind == "c" or np.dtype(dtype).kind == "c":
        raise _complex(_CAST)
    return apply(_CAST, (x,), {"dtype": dtype})
