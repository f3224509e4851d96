"""The one door: every operation on tensors passes through here.

`apply` computes, puts a `TapeNode` on the tape if a gradient is wanted, and tells the recorder if
one is active. Elementwise ops get a specialised door each (`unary_door`, `binary_door`), because on
small tensors the cost of an op is the cost of this file: see benchmarks/eager.py and its budget in
DESIGN. Nothing here knows a particular op.

The interpreter's state is grad mode and the active recorder, one of each per thread, and a clock
that ticks with every node and every in-place change. A node's epoch is the tick of its making: it
orders the tape, and a tensor whose memory changed at a later tick is stale for that node. The state
is in globals of this module, which only its functions write: a door that asked an object for them
would be slower by some percent.

Read operands.py next for what the doors do not take, history.py for changes in place.
"""

from __future__ import annotations

import functools
import sys
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from probtorch.core import doors
from probtorch.core.accumulate_grad import AccumulateGrad, step_to
from probtorch.core.interpreter import Interpreter
from probtorch.core.refusals import (
    complex_refused,
    not_taken,
    refuse_masked,
    refuse_raw,
)
from probtorch.core.shape import ALL_DIMS
from probtorch.core.tensor_base import TensorBase
from probtorch.errors import AutogradError, user_frame

if TYPE_CHECKING:
    from probtorch.core.op import Attrs, Op, Operand, Output


__all__ = [
    "EMPTY",
    "RENAMED",
    "TapeNode",
    "applied",
    "applied_in_turn",
    "apply",
    "around",
    "binary_door",
    "called",
    "finish",
    "grad_enabled",
    "know_view",
    "last_change",
    "mark_changed",
    "overwrite",
    "recent_changes",
    "recorder",
    "set_grad_enabled",
    "set_recorder",
    "tick",
    "unary_door",
    "unheard",
    "unseen",
    "untaped_view",
    "unwatched",
    "whole_door",
    "wrap",
]


D = TypeVar("D", bound="Callable[..., object]")


class _Mode(threading.local):
    """What is switched on in this thread, so that threads cannot switch it for each other."""

    grad = True
    recorder: Interpreter | None = None

    def __environment__(self) -> list[object]:
        """Nothing in it is a function's own (see compiler/guards/entering.py)."""
        return []


_MODE = _Mode()
# How many threads have a recorder, and how many have the tape switched off. While none has, an op
# looks no further than these numbers: an attribute of a threading.local costs five times a global.
_RECORDING = 0
_UNTAPED = 0
_counting = threading.Lock()
_CLOCK = 0
_CHANGED = 0  # the tick of the last in-place change of any tensor
# Tick and the user's (file, line) of the latest in-place changes, for the error that blames one.
_CHANGES: deque[tuple[int, tuple[str, int] | None]] = deque(maxlen=64)
_Tensor = TensorBase  # until probtorch.tensor fills the door
_new = object.__new__
_ref = weakref.ref
_ndarray = np.ndarray
_generic = np.generic
_asarray = np.asarray
_NUMBERS = frozenset((int, float))
EMPTY: Attrs = {}

# Infinities and nan mean what IEEE says they mean, as in PyTorch: log(0) is -inf, quietly. The
# filter covers NumPy's calls from this package only; np.errstate around each call costs as much
# as the call.
_OURS = r"probtorch\.(core|ops|tensor|autograd\.values)\b"
warnings.filterwarnings("ignore", category=RuntimeWarning, module=_OURS)


def grad_enabled() -> bool:
    """Whether operations are put on the tape."""
    return _MODE.grad


def set_grad_enabled(value: bool) -> bool:
    """Switch the tape on or off in this thread; returns the setting before."""
    global _UNTAPED
    before, _MODE.grad = _MODE.grad, bool(value)
    if before is not _MODE.grad:
        with _counting:
            _UNTAPED += 1 if before else -1
    return before


def recorder() -> Interpreter | None:
    """Return the active interpreter or None; that of another thread is not active in this one."""
    return _MODE.recorder if _RECORDING else None


def unheard() -> bool:
    """Whether nobody listens: what has no gradient may then be computed in whatever way."""
    return not _RECORDING or _MODE.recorder is None


def unseen(*operands: object) -> bool:
    """Whether neither tape nor recorder asks how a result comes about, and all is NumPy's: then
    it may be computed of the arrays in whatever way.

    So it is in most backward passes: rules have a short form for it beside the one in ops.
    """
    if _RECORDING and _MODE.recorder is not None:
        return False
    for x in operands:
        if isinstance(x, _Tensor):
            if type(x.array) is not _ndarray or (x.requires_grad and _MODE.grad):
                return False
    return True


def unwatched(*operands: object) -> bool:
    """`unseen`, and nobody counts operations: for short forms of which nothing is to be noticed."""
    return sys.getprofile() is None and unseen(*operands)


def set_recorder(new: Interpreter | None) -> Interpreter | None:
    """Install `new` as this thread's recorder (None for none); returns the one before."""
    global _RECORDING
    before, _MODE.recorder = _MODE.recorder, new
    if (before is None) is not (new is None):
        with _counting:
            _RECORDING += 1 if before is None else -1
    return before


def _tell(op: Op, inputs: tuple[Operand, ...], attrs: Attrs, out: Output) -> None:
    """Tell this thread's recorder, if it has one, of one operation."""
    active = _MODE.recorder
    if active is not None:
        active.applied(op, inputs, attrs, out)


@doors.errors_raised.fill
def _tell_raised(error: BaseException) -> None:
    """Tell this thread's recorder of an error that depends on the elements of tensors."""
    active = recorder()
    if active is not None:
        active.raised(error)


class TapeNode:
    """One entry of the tape: the op, its inputs, and what its vjp may need.

    `tick` is set where this is the result of an in-place change, to the tick of that, and where it
    reads a view from its root, to that of its making; `changed` where the memory of outputs changed
    in place later, to the ticks by their places. `where`, the user's line, is set in anomaly mode
    only (autograd/anomaly.py).
    """

    epoch: float
    tick: float
    changed: dict[int, float]
    op: Op
    inputs: tuple[Any, ...]
    attrs: Attrs
    # The output by a weak reference, and its array; several in tuples.
    out: Any
    saved: Any
    # By their keys: of which output, and what is called, which may be a weak reference (`retain`).
    hooks: dict[int, tuple[int, Callable[..., TensorBase | None]]] | None
    where: object
    __slots__ = (
        "__weakref__",
        "attrs",
        "changed",
        "epoch",
        "hooks",
        "inputs",
        "op",
        "out",
        "saved",
        "tick",
        "where",
    )

    def __init__(self, op: Op, inputs: tuple[Operand, ...], attrs: Attrs) -> None:
        global _CLOCK
        _CLOCK += 1
        self.epoch = _CLOCK
        self.op = op
        self.inputs = inputs
        self.attrs = attrs
        self.out = None
        self.saved = None
        self.hooks = None

    def __lt__(self, other: TapeNode) -> bool:
        # Of two with one epoch, which only readings of views have.
        return self.tick < other.tick

    def name(self) -> str:
        """Return the name of the op in PyTorch's way: of add "AddBackward0"."""
        words = self.op.name.strip("_").split("_")
        return "".join(w[:1].upper() + w[1:] for w in words) + "Backward0"

    @property
    def next_functions(self) -> tuple[tuple[TapeNode | AccumulateGrad | None, int], ...]:
        """``(node, which of its outputs)`` for each input; None for inputs without a gradient.

        Raises
        ------
        AutogradError
            If a backward pass has freed the graph.
        """
        if self.inputs is None:
            raise AutogradError(
                f"{self.name()}.next_functions",
                expected="a graph that is still there",
                got="one that a backward pass has freed",
                fix="look before backward(), or pass it retain_graph=True",
            )
        return tuple(step_to(x, self.epoch) for x in self.inputs)

    def __repr__(self) -> str:
        return f"<{self.name()} object at {id(self):#x}>"


def wrap(array: np.ndarray | np.generic | float) -> TensorBase:
    """Return a new tensor around `array`, memory that is its own from now on (no copy, no tape)."""
    t = around(array)
    if _RECORDING and _MODE.recorder is not None:
        _MODE.recorder.fresh(t)
    return t


def around(array: Any) -> TensorBase:
    """Return a new tensor around memory that others may change too."""
    if type(array) is not _ndarray:
        if isinstance(array, _generic):
            array = _asarray(array)  # reductions return NumPy scalars for 0-d arrays
        elif not hasattr(array, "__cuda_array_interface__"):
            refuse_masked(array)
            array = _asarray(array)
    t = _new(_Tensor)
    t.array = array
    t.grad_fn = t._grad = t._base = t._extra = None
    t.requires_grad = False
    t._version = t._index = 0
    return t


def apply(op: Op, inputs: tuple[Any, ...], attrs: Attrs = EMPTY) -> Any:
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
    arrays, wanted, strict = [], False, op.refuses_complex
    for x in inputs:
        if isinstance(x, _Tensor):
            a = x.array
            if strict and a.dtype.kind == "c":
                raise complex_refused(op)
            if x.requires_grad:
                wanted = True
            arrays.append(a)
        else:
            arrays.append(x)
    result: Any
    try:
        result = op.run(*arrays, **attrs)
    except Exception as error:
        if _RECORDING and _MODE.recorder is not None:
            _MODE.recorder.op_failed(op, inputs, attrs, error)
        refuse_raw(op, inputs, attrs, error)
        raise
    several = type(result) is tuple
    out: Any
    if several:
        out = tuple([wrap(r) for r in result])
    elif type(result) is _ndarray and not _RECORDING:  # `wrap` without two calls
        out = _new(_Tensor)
        out.array = result
        out.grad_fn = out._grad = out._base = out._extra = None
        out.requires_grad = False
        out._version = out._index = 0
    else:
        out = wrap(result)
    if op.is_view:
        _know_memory(inputs[0], out)
    if wanted and op.vjp is not None and (not _UNTAPED or _MODE.grad):
        _attach(TapeNode(op, inputs, attrs), out, several)
    if _RECORDING:
        _tell(op, inputs, attrs, out)
    return out


def _know_memory(x: TensorBase, out: TensorBase) -> None:
    """Let `out` know that it views the memory of `x`, if it does."""
    array, mine = out.array, x.array
    base = array.base
    # NumPy lets every view point at the owner of the memory; a copy has another owner or none.
    if base is None or (base is not mine and base is not mine.base):
        return
    root = x._base
    if root is None:
        root = x
    out._base = root
    # Of a view: the tick since which its place on the tape is what it is.
    out._version = _CLOCK
    extra = x._extra
    if extra is not None and "root" in extra:
        root = extra["root"]
        root = x if root is None else root
        out._extra = {"root": root}
    if not root.requires_grad and array.dtype.kind in "fc":
        know_view(root, out)


def applied(op: Op, x: TensorBase, array: np.ndarray, attrs: Attrs) -> TensorBase:
    """Do what `apply` does once `op.run` has made `array` of `x` alone.

    For ops whose arguments are found right or wrong by carrying them out.
    """
    t = around(array)
    if op.is_view:
        _know_memory(x, t)
    if x.requires_grad and (not _UNTAPED or _MODE.grad):
        _attach(TapeNode(op, (x,), attrs), t, False)
    if _RECORDING:
        _tell(op, (x,), attrs, t)
    return t


def applied_in_turn(
    op: Op, x: TensorBase, array: np.ndarray, attrs: Attrs, then: Op, last: np.ndarray, given: Attrs
) -> TensorBase:
    """Do what `applied` does, of a view `array` of `x` that nobody sees but the op `then`, and of
    the view `last` that this makes of it.
    """
    between, t = around(array), around(last)
    # As most are; nobody will ask the one between to learn anything.
    owns = x._base is None and (x._extra is None or "root" not in x._extra)
    taped = x.requires_grad and (not _UNTAPED or _MODE.grad)
    if owns:
        between._base, between._version = x, _CLOCK
    else:
        _know_memory(x, between)
    if taped:
        _attach(TapeNode(op, (x,), attrs), between, False)
    active = _MODE.recorder if _RECORDING else None
    if active is not None:
        active.applied(op, (x,), attrs, between)
    if owns:
        t._base, t._version = x, _CLOCK
        if not x.requires_grad and last.dtype.kind in "fc":
            know_view(x, t)
    else:
        _know_memory(x, t)
    if taped and between.requires_grad:
        _attach(TapeNode(then, (between,), given), t, False)
    if active is not None:
        active.applied(then, (between,), given, t)
    return t


def untaped_view(x: TensorBase, array: np.ndarray) -> TensorBase | None:
    """Return a tensor around `array`, a view of the memory of `x`, if neither the tape nor a
    recorder is to know of it; else None.
    """
    if (_RECORDING and _MODE.recorder is not None) or (x.requires_grad and _MODE.grad):
        return None
    out = around(array)
    _know_memory(x, out)
    return out


def finish(op: Op, inputs: tuple[Operand, ...], result: np.ndarray | np.generic) -> TensorBase:
    """Return an elementwise result as a tensor, on the tape and told to the recorder."""
    if type(result) is not _ndarray and not hasattr(result, "__cuda_array_interface__"):
        result = np.asarray(result)
    t = wrap(result) if _RECORDING else around(result)
    if op.vjp is not None:
        for x in inputs:
            if isinstance(x, TensorBase) and x.requires_grad:
                if not _UNTAPED or _MODE.grad:
                    _attach(TapeNode(op, inputs, EMPTY), t, False)
                break
    if _RECORDING:
        _tell(op, inputs, EMPTY, t)
    return t


def know_view(root: TensorBase, view: TensorBase) -> None:
    """Let `root`, which requires no gradient yet, know a view that has to learn when it does."""
    extra = root._extra
    if extra is None:
        root._extra = {"views": [_ref(view)]}
        return
    views = extra.get("views")
    if views is None:
        extra["views"] = [_ref(view)]
        return
    views.append(_ref(view))
    count = len(views)
    if count > 16 and count & (count - 1) == 0:
        # At powers of two, so that many short-lived views cost no more than they must.
        views[:] = [r for r in views if r() is not None]


def _attach(node: TapeNode, out: Any, several: bool) -> None:
    if several:
        for i, o in enumerate(out):
            if o.array.dtype.kind in "fc":
                o.requires_grad = True
                o.grad_fn = node
                o._index = i
    elif out.array.dtype.kind in "fc":
        out.requires_grad = True
        out.grad_fn = node
    if node.op.reads_output:
        save_output(node, out)


def save_output(node: TapeNode, out: Output) -> None:
    """Let `node`'s vjp read its output without keeping the output tensor in a reference cycle."""
    if isinstance(out, tuple):
        node.out = tuple(weakref.ref(o) for o in out)
        node.saved = tuple(o.array for o in out)
    else:
        node.out = weakref.ref(out)
        node.saved = out.array


def mark_changed(*tensors: TensorBase, place: tuple[str, int] | None = None) -> int:
    """Note an in-place change of the memory of tensors, in the user's line or at `place`; returns
    the tick of the clock.
    """
    global _CLOCK, _CHANGED
    _CLOCK += 1
    _CHANGED = _CLOCK
    _CHANGES.append((_CLOCK, place or user_frame(2)))
    for t in tensors:
        root = t if t._base is None else t._base
        root._version = _CLOCK
        node = root.grad_fn
        if node is not None:  # which outlives its outputs, and may need their elements
            node.changed = {**getattr(node, "changed", {}), root._index: _CLOCK}
    return _CLOCK


def overwrite(tensor: TensorBase, array: np.ndarray) -> None:
    """Put other elements into a leaf, keeping its memory."""
    tensor.array[...] = array
    mark_changed(tensor)


def tick() -> int:
    """Let the clock tick for a change in place that touches no memory; returns the tick."""
    global _CLOCK, _CHANGED
    _CLOCK += 1
    _CHANGED = _CLOCK
    return _CLOCK


def last_change() -> int:
    """Return the tick of the last in-place change of any tensor."""
    return _CHANGED


def recent_changes() -> deque[tuple[int, tuple[str, int] | None]]:
    """Return `(tick, (file, line))` of the latest in-place changes."""
    return _CHANGES


def _is_number(x: object) -> bool:
    """Whether something is a tensor in the place of a Python number, whose dtype does not count."""
    return "number" in (getattr(x, "_extra", None) or ())


def unary_door(
    op: Op,
    fn: Callable[..., np.ndarray],
    prepared: Callable[[Op, Any], TensorBase],
    written: Callable[..., TensorBase],
) -> Any:
    """Return the public function of a one-argument elementwise op; `fn` works on arrays.

    `prepared` and `written` of operands.py do what is seldom: other operands than tensors of
    floats, and results that go into `out`.
    """
    differentiable = op.vjp is not None
    reads_output = op.reads_output

    def call(input: Any, *, out: TensorBase | None = None) -> TensorBase:
        global _CLOCK
        try:
            a = input.array
        except AttributeError:
            input = prepared(op, input)
            a = input.array
        if a.dtype.kind != "f":
            if a.dtype.kind == "c" and callable(op.complex):
                return op.complex(input) if out is None else written(op, (input,), None, out)
            input = prepared(op, input)
            a = input.array
        try:
            r = fn(a)
        except (TypeError, ValueError) as e:
            raise not_taken(op, (input,), e) from None
        if out is not None:
            if _RECORDING and _is_number(input):
                return call(prepared(op, input), out=out)
            return written(op, (input,), r, out)
        if type(r) is not _ndarray:
            if not isinstance(r, _generic):
                return finish(op, (input,), r)
            r = _asarray(r)  # ufuncs return a NumPy scalar for 0-d arrays
        t = _new(_Tensor)
        t.array = r
        t._grad = t._base = t._extra = None
        t._version = t._index = 0
        if differentiable and input.requires_grad and (not _UNTAPED or _MODE.grad):
            t.requires_grad = True
            t.grad_fn = node = _new(TapeNode)
            _CLOCK += 1
            node.epoch = _CLOCK
            node.op = op
            node.inputs = (input,)
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
            if input._extra and _is_number(input):
                return call(prepared(op, input))
            active = _MODE.recorder
            if active is not None:
                active.applied(op, (input,), EMPTY, t)
        return t

    return call


def binary_door(
    op: Op,
    fn: Callable[..., np.ndarray],
    general: Callable[..., TensorBase],
    written: Callable[..., TensorBase],
) -> Any:
    """Return the public function of a two-argument elementwise op; `fn` works on arrays.

    `general` and `written` of operands.py do what is seldom: operands of different dtypes, and
    results that go into `out`.
    """
    kinds = "f" if op.result == "float" else "fiub"
    # Where a Python integer beside integers is one of theirs; NumPy says where it does not fit.
    whole = "iu" if op.result != "float" and "mask_inputs" not in op.extra else ""
    # The floats beside which a number may come first, as in 1.0 - x.
    leading = "fd" if "mask_inputs" not in op.extra else ""
    differentiable = op.vjp is not None
    reads_output = op.reads_output

    def call(input: Any, other: Any, *, out: TensorBase | None = None) -> TensorBase:
        global _CLOCK
        try:
            if type(input) in _NUMBERS:
                b = other.array
                if b.dtype.char in leading:
                    a = input = float(input)
                elif type(input) is int and b.dtype.kind in whole:
                    a = input
                else:
                    return general(op, fn, (input, other), out)
                wanted = other.requires_grad
                r = fn(a, b)
            else:
                a = input.array
                if type(other) in _NUMBERS:
                    # A number beside halves, "e", may be none of theirs.
                    if a.dtype.char not in "fd" and (
                        type(other) is not int or a.dtype.kind not in whole
                    ):
                        return general(op, fn, (input, other), out)
                    b = other
                    wanted = input.requires_grad
                else:
                    b = other.array
                    # Arrays of ctypes, and unpickled ones, have dtypes of their own.
                    if (a.dtype is not b.dtype and a.dtype != b.dtype) or a.dtype.kind not in kinds:
                        return general(op, fn, (input, other), out)
                    wanted = input.requires_grad or other.requires_grad
                r = fn(a, b)
        except (AttributeError, ValueError, TypeError, OverflowError):
            return general(op, fn, (input, other), out)
        if _RECORDING and (
            (type(input) not in _NUMBERS and input._extra and _is_number(input))
            or (type(other) not in _NUMBERS and other._extra and _is_number(other))
        ):
            return general(op, fn, (input, other), out)
        if out is not None:
            return written(op, (input, other), r, out)
        if type(r) is not _ndarray:
            if not isinstance(r, _generic):
                return finish(op, (input, other), r)
            r = _asarray(r)  # ufuncs return a NumPy scalar for 0-d arrays
        t = _new(_Tensor)
        t.array = r
        t._grad = t._base = t._extra = None
        t._version = t._index = 0
        if wanted and differentiable and (not _UNTAPED or _MODE.grad):
            t.requires_grad = True
            t.grad_fn = node = _new(TapeNode)
            _CLOCK += 1
            node.epoch = _CLOCK
            node.op = op
            node.inputs = (input, other)
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
            active = _MODE.recorder
            if active is not None:
                active.applied(op, (input, other), EMPTY, t)
        return t

    return call


def whole_door(op: Op, full: D) -> D:
    """Return `full`, the public function of a reduction, with a short way for all elements of
    floats on the host and nothing else asked for.
    """
    run, reads_output = op.run, op.reads_output

    def call(input: TensorBase, a: np.ndarray) -> TensorBase:
        dims = ALL_DIMS[a.ndim]
        t = _new(_Tensor)
        r = run(a, dims, False)
        t.array = r if type(r) is _ndarray else _asarray(r)
        t._grad = t._base = t._extra = None
        t._version = t._index = 0
        if input.requires_grad and (not _UNTAPED or _MODE.grad):
            t.requires_grad = True
            t.grad_fn = node = TapeNode(op, (input,), {"dims": dims, "keepdim": False})
            if reads_output:
                node.out = _ref(t)
                node.saved = t.array
        else:
            t.requires_grad = False
            t.grad_fn = None
        return t

    @functools.wraps(full)
    def chosen(*args: object, **options: object) -> object:
        if len(args) == 1 and not options and not _RECORDING and isinstance(args[0], _Tensor):
            a = args[0].array
            if type(a) is _ndarray and a.dtype.char in "fd" and a.size:
                return call(args[0], a)
        return full(*args, **options)

    return chosen  # type: ignore[return-value]  # the same arguments and results


# The code of doors whose operands are called otherwise; the profiler knows doors by their code.
RENAMED: set[CodeType] = set()


def called(door: D, **names: str) -> D:
    """Let operands of a door have other names in calls: ``called(door, other="exponent")``.

    Calls by keyword look at the names of a code object's variables, so this costs nothing.
    """
    assert isinstance(door, FunctionType)
    code = door.__code__
    door.__code__ = code.replace(co_varnames=tuple(names.get(n, n) for n in code.co_varnames))
    RENAMED.add(door.__code__)
    return door
