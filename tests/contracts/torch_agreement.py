"""Run a call in probtorch and in PyTorch, and say in what the two differ.

The aspects: `refused` (probtorch raises, PyTorch answers), `accepted` (the reverse), `form` (a
tuple where the other has a tensor), `shape`, `dtype`, `value`, `gradient`, `limit` (a gradient, but
only at arguments that are nan or infinite). Values agree to rounding of the largest element; where
single and half precision do not, both are held against the result in double precision, and ours may
be off by twice what PyTorch's is.
"""

import contextlib
import dataclasses
import functools
import math
import warnings

import numpy as np
import torch
import torch.nn.functional

import probtorch
import probtorch.nn
from tests.contracts.fitting_arguments import FLOATS, Data
from tests.contracts.fitting_calls import RANDOM, Call
from tests.contracts.further_calls import draw_call

ROOMS = {
    "": (probtorch, torch),
    "special": (probtorch.special, torch.special),
    "linalg": (probtorch.linalg, torch.linalg),
    "functional": (probtorch.nn.functional, torch.nn.functional),
    "Tensor": (probtorch.Tensor, torch.Tensor),
}
RTOL = {"float64": 1e-9, "float32": 3e-5, "float16": 4e-3}
# Indices of equal elements, and nan, may come in any order; vectors of a decomposition up to sign.
ORDERS = {"sort", "argsort", "topk", "kthvalue", "median", "unique"}
UP_TO_SIGN = {
    "svd_lowrank",
    "pca_lowrank",
    "linalg.svd",
    "Tensor.svd",
    "svd",
    "linalg.eigh",
    "linalg.qr",
    "Tensor.qr",
    "qr",
}
# They take functions, end in files or other processes, draw, take or give complex numbers, or set
# what is in force; PyTorch has taken `matrix_rank` away.
# Those of complex numbers are called by test_complex_against_torch.py.
NOT_CALLED = set(
    "Tensor.cdouble Tensor.cfloat complex imag istft linalg.eig linalg.eigvals polar stft "
    "view_as_complex view_as_real "
    "Tensor.apply_ Tensor.as_subclass Tensor.bernoulli_ Tensor.cauchy_ Tensor.data_ptr "
    "Tensor.exponential_ Tensor.geometric_ Tensor.log_normal_ Tensor.map_ Tensor.new_empty "
    "Tensor.normal_ Tensor.random_ Tensor.uniform_ get_rng_state initial_seed matrix_rank seed "
    "set_printoptions set_rng_state typename "
    "Tensor.backward Tensor.cuda Tensor.new Tensor.register_hook Tensor.retain_grad compile cond "
    "Tensor.register_post_accumulate_grad_hook "
    "enable_grad from_dlpack from_numpy get_default_dtype get_num_threads inference_mode "
    "is_grad_enabled load manual_seed no_grad save set_default_dtype set_num_threads vmap "
    "while_loop finfo get_default_device set_default_device set_default_tensor_type "
    "are_deterministic_algorithms_enabled use_deterministic_algorithms "
    "get_float32_matmul_precision set_float32_matmul_precision".split()
)
# What is called with complex numbers there; recipes call some of it with real ones.
OF_COMPLEX = set(
    "Tensor.cdouble Tensor.cfloat Tensor.conj_physical_ angle complex conj conj_physical imag "
    "is_conj is_neg istft linalg.eig linalg.eigvals polar real resolve_conj resolve_neg stft "
    "view_as_complex view_as_real".split()
)
# Methods that take their arguments in another order than the function does.
ORDER_OF_METHODS = {"polygamma", "where"}
# Of PyTorch's own: no kernel for a dtype, or for what it calls a deprecated form.
NO_KERNEL = (
    "not implemented for",
    "not supported for",
    "unsupported",
    "Unsupported",
    "not support",
)


def functions(name, seed):
    """Return what a name means in both libraries: functions, or (every other time) methods."""
    room, _, last = name.rpartition(".")
    pair = ROOMS[room]
    methods = name not in ORDER_OF_METHODS and all(hasattr(t, last) for t in ROOMS["Tensor"])
    if room == "" and seed % 2 and methods:
        pair = ROOMS["Tensor"]
    return [getattr(r, last) for r in pair]


def shared_names():
    """Return the names of all functions that both libraries have, by room, as in `RECIPES`."""
    out, plain = set(), set()
    for label, (ours, theirs) in ROOMS.items():
        for name in dir(ours):
            a, b = getattr(ours, name), getattr(theirs, name, None)
            if name.startswith("_") or isinstance(a, type) or not (callable(a) and callable(b)):
                continue
            if label == "":
                plain.add(name)
            if label != "Tensor" or name not in plain:
                out.add(f"{label}.{name}".lstrip("."))
    return out


def _array(x):
    return np.asarray(x.detach().numpy())


def leaves_of(out, room):
    """Return a description of the form of a result, and its tensors and numbers, in order."""
    if isinstance(out, room.Tensor):
        return "tensor", [out]
    if isinstance(out, (tuple, list)):
        forms, flat = [], []
        for v in out:
            form, more = leaves_of(v, room)
            forms.append(form)
            flat += more
        return f"({', '.join(forms)})", flat
    if isinstance(out, np.ndarray):
        return "array", [room.from_numpy(np.array(out))]
    if isinstance(out, (bool, int, float)):
        return type(out).__name__, [room.tensor(out)] if not isinstance(out, bool) else [out]
    return "other", [str(out).rpartition(".")[2]]


class Outcome:
    """What one library makes of a call: an error, or form, results and gradients."""

    def __init__(self, room, fn, call, *, in_double=False):
        self.error = self.gradient_error = self.gradients = None
        call = doubled(call) if in_double else call
        try:
            args, options, _ = call.arguments(room)
            self.form, self.leaves = leaves_of(fn(*args, **options), room)
        except Exception as e:
            self.error = e
            return
        if call.name in RANDOM or not any(_floats(t) for t in self.leaves):
            return
        try:
            self.gradients = self._gradients(room, fn, call)
        except Exception as e:
            self.gradient_error = e

    def _gradients(self, room, fn, call):
        args, options, tensors = call.arguments(room)
        inputs = [t for t in tensors if _floats(t)]
        for t in inputs:
            t.requires_grad_()
        if call.name.endswith("_") and inputs and args[0] is inputs[0]:
            args[0] = args[0].clone()
        _, leaves = leaves_of(fn(*args, **options), room)
        total, rng = None, np.random.default_rng(0)
        for t in leaves:
            if _floats(t) and t.requires_grad:
                weights = rng.standard_normal(tuple(t.shape)).astype(_array(t).dtype)
                part = (t * room.from_numpy(np.array(weights))).sum()
                total = part if total is None else total + part
        if total is None:
            return [None] * len(inputs)
        total.backward()
        return [None if t.grad is None else _array(t.grad) for t in inputs]


def _floats(t):
    return hasattr(t, "dtype") and str(t.dtype).rpartition(".")[2] in FLOATS


def doubled(call):
    """Return the call with its floats in double precision."""

    def wide(a):
        if isinstance(a, Data) and a.array.dtype.kind == "f":
            return Data(a.array.astype(np.float64), a.layout)
        if isinstance(a, (list, tuple)):
            return type(a)(wide(v) for v in a)
        return a

    return Call(call.name, wide(call.args), {k: wide(v) for k, v in call.options.items()})


@dataclasses.dataclass(frozen=True)
class Difference:
    """That the libraries differ on a call, in one aspect, and what each made of it."""

    call: Call
    seed: int
    aspect: str
    ours: str
    theirs: str

    def __str__(self):
        return (
            f"{self.aspect}, call {self.seed}: {self.call}\n  probtorch: {self.ours}\n"
            f"  PyTorch:   {self.theirs}"
        )


def unlisted(name, seed, rows):
    """Return the differences on a random call that no row of the page describes."""
    call = draw_call(name, seed)
    found = [Difference(call, seed, a, str(x), str(y)) for a, x, y in differences(call, seed)]
    return [d for d in found if not any(r.covers(call, d.aspect, d.ours + d.theirs) for r in rows)]


def example_differs(row):
    """Whether the example of a row gives another result (or error) in each of the libraries."""
    example = Call(row.id, (), {})
    with _quiet():
        a, b = (
            Outcome(room, functools.partial(_example, row.example, room), example)
            for room in (probtorch, torch)
        )
        found = [d[0] for d in _compare(example, a, b, lambda: b)]
    return any(
        d in row.aspects or ({"gradient", "limit"} & set(row.aspects) and d == "value")
        for d in found
    )


def _example(text, room):
    def slope(fn, at, dtype="float32"):
        """Return the gradient of the sum of a function at a point."""
        x = room.tensor(at, dtype=getattr(room, dtype), requires_grad=True)
        fn(x).sum().backward()
        return x.grad

    rooms = {"torch": room, "F": room.nn.functional, "linalg": room.linalg, "slope": slope}
    return eval(text, {**rooms, "inf": math.inf, "nan": math.nan})


def _off(got, expected, rtol, atol=1e-300):
    """Return whether arrays differ by more than rounding of the largest element, or by `atol`."""
    got, expected = np.asarray(got), np.asarray(expected)
    if expected.dtype.kind not in "fc" and got.dtype.kind not in "fc":
        return not np.array_equal(got, expected)
    a, b = got.astype(np.float64), expected.astype(np.float64)
    with np.errstate(all="ignore"):
        size = np.abs(b[np.isfinite(b)]).max(initial=0.0)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        near = np.abs(a - b) <= rtol * (np.abs(b) + 0.1 * size) + atol
        return not np.all(same | near)


def _error(got, truth):
    a, b = np.asarray(got, np.float64), np.asarray(truth, np.float64)
    with np.errstate(all="ignore"):
        if np.any(np.isfinite(b) & ~np.isfinite(a)) or np.any(np.isnan(a) != np.isnan(b)):
            return np.inf
        d = np.abs(a - b)[np.isfinite(b) & np.isfinite(a)]
        return float(d.max(initial=0.0))


def differences(call, seed):
    """Return the aspects in which the two libraries differ on a call, with what each said."""
    ours, theirs = functions(call.name, seed)
    with _quiet():
        a, b = Outcome(probtorch, ours, call), Outcome(torch, theirs, call)
        truth = functools.cache(lambda: Outcome(torch, theirs, call, in_double=True))
        return list(_compare(call, a, b, truth))


@contextlib.contextmanager
def _quiet():
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


def _compare(call, a, b, truth):
    if a.error is not None and b.error is not None:
        return
    if a.error is not None:
        yield "refused", f"{type(a.error).__name__}: {_short(a.error)}", _show(b)
        return
    if b.error is not None:
        if any(text in str(b.error) for text in NO_KERNEL):
            return
        yield "accepted", _show(a), f"{type(b.error).__name__}: {_short(b.error)}"
        return
    if a.form != b.form:
        yield "form", a.form, b.form
        if len(a.leaves) != len(b.leaves):
            return
    for k, (x, y) in enumerate(zip(a.leaves, b.leaves, strict=True)):
        if not hasattr(x, "dtype") or not hasattr(y, "dtype"):
            if x != y and not (hasattr(x, "dtype") or hasattr(y, "dtype")):
                yield "value", x, y
            continue
        if tuple(x.shape) != tuple(y.shape):
            yield "shape", tuple(x.shape), tuple(y.shape)
            continue
        names = [str(t.dtype).rpartition(".")[2] for t in (x, y)]
        if names[0] != names[1]:
            yield "dtype", *names
        if call.name in RANDOM or (call.name.rpartition(".")[2] in ORDERS and k and _ties(call)):
            continue
        if call.name == "argsort" and _ties(call):
            continue
        got, expected = _array(x), _array(y)
        if call.name in UP_TO_SIGN:
            got, expected = abs(got), abs(expected)
        yield from _values("value", got, expected, lambda k=k: _leaf(truth(), k), names)
    if b.gradients is None or call.name in UP_TO_SIGN:
        return
    if a.gradients is None:
        yield "gradient", f"{type(a.gradient_error).__name__}: {a.gradient_error}", "an answer"
        return
    for k, (x, y) in enumerate(zip(a.gradients, b.gradients, strict=True)):
        if x is None and y is None:
            continue
        x = np.zeros_like(y) if x is None else x
        y = np.zeros_like(x) if y is None else y
        if x.shape != y.shape or x.dtype != y.dtype:
            yield "gradient", f"{x.dtype} {x.shape}", f"{y.dtype} {y.shape}"
            continue
        names = [x.dtype.name, y.dtype.name]
        names += [str(t.dtype).rpartition(".")[2] for t in b.leaves if _floats(t)]
        found = list(_values("gradient", x, y, lambda k=k: _slope(truth(), k), names))
        if found and _differ_in_limits_alone(call, k, x, y, names):
            found = [("limit", *found[0][1:])]
        yield from found


def _differ_in_limits_alone(call, k, x, y, names):
    """Whether slopes differ only at arguments that are nan or infinite."""
    inputs = [a.array for a in call.leaves() if a.array.dtype.kind == "f"]
    if k >= len(inputs) or inputs[k].shape != x.shape:
        return False
    finite = np.isfinite(inputs[k])
    if x.shape and len(inputs) == 2 and inputs[0].shape == inputs[1].shape:
        finite = np.isfinite(inputs[0]) & np.isfinite(inputs[1])
    rtol = max(RTOL[n] for n in names)
    return not _off(np.where(finite, x, 0), np.where(finite, y, 0), rtol)


def _leaf(outcome, k):
    return None if outcome.error is not None else _array(outcome.leaves[k])


def _slope(outcome, k):
    return None if outcome.gradients is None else outcome.gradients[k]


def _values(aspect, got, expected, truth, names):
    rtol = max(RTOL.get(n, 0.0) for n in names)
    if "float16" in names and aspect == "gradient":
        rtol *= 5  # every op on the way rounds to three digits
    # Terms of a gradient may cancel.
    if not _off(got, expected, rtol, rtol * 1e-2 if aspect == "gradient" else 1e-300):
        return
    if names[0] == names[1] and got.dtype.kind == "f" and names[0] != "float64":
        exact = truth()
        if exact is not None and exact.shape == got.shape:
            close = 2 * _error(expected, exact)
            if names[0] == "float16":
                close += 4e-3 * float(np.abs(exact[np.isfinite(exact)]).max(initial=0.0))
            if _error(got, exact) <= close:
                return
    yield aspect, got.tolist(), expected.tolist()


def _ties(call):
    x = call.leaves()[0].array
    return x.size != np.unique(x).size or (x.dtype.kind == "f" and np.isnan(x).any())


def _short(e):
    return " ".join(str(e).split())[:160]


def _show(outcome):
    return str([t.tolist() if hasattr(t, "tolist") else t for t in outcome.leaves])[:160]
