"""NumPy's functions on tensors: `np.exp(t)`, `np.dot(X, t)`, `np.where(mask, t, 0.0)`.

NumPy hands a call with a tensor among its arguments to the tensor. Where an operation of ours says
the same, it is carried out: the result is a Tensor and keeps the gradient, and a recording goes on.
Everything else is NumPy's own on the arrays, for tensors without a gradient; with one it is an
error that says what to write.

Two tables of array_functions: that of elements.py for what NumPy and SciPy compute element by
element, `FUNCTIONS` for the rest. Where an entry does not know an argument (``out=``, ``where=``),
the call goes on as if there were none.
"""

import sys
from types import FrameType

import numpy as np

from probtorch.array_functions import (
    FUNCTIONS,
    LOOKS,
    REDUCE,
    UnknownArgument,
    plain_arrays,
    reduced,
)
from probtorch.array_functions.arguments import tensor_of
from probtorch.array_functions.elements import named_operation, operation_of
from probtorch.core.casting import cast
from probtorch.core.dispatch import grad_enabled, wrap
from probtorch.core.making import as_tensor
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.errors import ArgumentError, AutogradError, DTypeError, ProbtorchError, ShapeError
from probtorch.ops import (
    cholesky_factors,
    extremes,
    linalg,
    norms,
    reduction,
)

__all__ = ["array_function", "array_ufunc", "from_dlpack", "from_numpy", "refuse_array"]

# ---------------------------------------------------------------------------------- the protocols


def array_ufunc(ufunc, method, inputs, kwargs):
    """Carry out ``getattr(ufunc, method)(*inputs, **kwargs)``; see ``Tensor.__array_ufunc__``."""
    whose = "np" if getattr(np, ufunc.__name__, None) is ufunc else "scipy.special"
    name = f"{whose}.{ufunc.__name__}" + ("" if method == "__call__" else f".{method}")
    rest = {k: v for k, v in kwargs.items() if v is not None}
    out = rest.pop("out", (None,))
    dtype = rest.pop("dtype", None)
    result = NotImplemented
    wanted = None if dtype is None else np.dtype(dtype)
    known = wanted is None or _computed_in(ufunc, wanted, inputs)
    if known and (not rest or (method == "reduce" and rest.keys() <= {"axis", "keepdims"})):
        if method == "__call__" and operation_of(ufunc) is not None:
            # NumPy's double is a float of Python's: it has no say about the dtype.
            weak = (float(x) if isinstance(x, float) else _in(wanted, tensor_of(x)) for x in inputs)
            result = operation_of(ufunc)(*weak)
        elif method == "reduce" and ufunc in REDUCE:
            axis = kwargs.get("axis", 0)
            x = _in(wanted, tensor_of(inputs[0]))
            result = reduced(REDUCE[ufunc], x, axis, rest.get("keepdims", False))
        elif method == "outer" and operation_of(ufunc) is not None and len(inputs) == 2:
            x, y = (_in(wanted, tensor_of(x)) for x in inputs)
            result = operation_of(ufunc)(x[(..., *(None,) * y.ndim)], y)
    if result is NotImplemented:
        _refuse_taped(name, (*inputs, *out, rest))
        given = {k: plain_arrays(v) for k, v in kwargs.items()}
        found = getattr(ufunc, method)(*map(plain_arrays, inputs), **given)
        kept = out if out[0] is not None else (None,) * (len(found) if type(found) is tuple else 1)
        return _wrapped(found, kept)
    if wanted is not None:
        result = cast(result, wanted)
    return result if out[0] is None else _written(name, result, out[0])


def array_function(func, args, kwargs):
    """Carry out ``func(*args, **kwargs)``, a function of NumPy's; see ``__array_function__``."""
    handler = FUNCTIONS.get(func)
    if handler is not None:
        out = kwargs.get("out")
        rest = kwargs if out is None else {k: v for k, v in kwargs.items() if k != "out"}
        try:
            result = handler(*args, **rest)
        except UnknownArgument as unknown:
            if out is not None or unknown.args == ("out",):
                raise _no_place(_name_of(func)) from None
            result = NotImplemented
        if result is not NotImplemented:
            return result if out is None else _filled(_name_of(func), result, out)
    if func in LOOKS:
        # Their results are facts or Python's booleans: nothing goes on from them.
        return func(*plain_arrays(args, force=True), **plain_arrays(kwargs, force=True))
    _refuse_taped(_name_of(func), (args, kwargs))
    found = func(*plain_arrays(args), **plain_arrays(kwargs))
    # What an entry gives tensors for is tensors with any argument.
    return found if handler is None else _tensors_of(found)


def refuse_array(tensor, asker=""):
    """Return the error for `tensor`, which requires grad, when its array is asked for by others."""
    package, function = _caller()
    if asker:
        what = f"{asker} asked for the numbers of a tensor that requires grad"
        fix = "fill the array first, x.filled(numpy.nan), and compute with the tensor of it"
    elif package in (None, "numpy"):
        fix = (
            "let tensors hold it: mu = probtorch.zeros(n); mu[:25] = b, probtorch.tensor([b, c]) "
            "and probtorch.stack keep the gradient, and so does X @ b for X.dot(b) (to look at the "
            "numbers: .numpy(force=True))"
        )
        what = "NumPy asked for the numbers of a tensor that requires grad"
    elif package == "pandas":
        what = f"pandas asked for the numbers of a tensor that requires grad ({function})"
        fix = "convert the data first: X = probtorch.tensor(df.to_numpy()), then X @ b"
    elif package == "scipy" and function in ("dot", "multiply"):
        what = f"a sparse matrix asked for the numbers of a tensor that requires grad ({function})"
        fix = "write X @ b, which keeps the gradient; element by element, X.toarray() * b"
    else:
        what = f"{package}.{function} asked for the numbers of a tensor that requires grad"
        fix = _instead(function)
    return AutogradError(
        f"Can't call numpy() on Tensor that requires grad: {what}",
        expected="operations that keep the gradient",
        got=f"a tensor of shape {tuple(tensor.array.shape)} with requires_grad=True",
        fix=fix,
    )


# What to write in place of functions of other packages.
_IN_PLACE = {
    "cho_solve": "probtorch.cholesky_solve(b, L)",
    "expm": "probtorch.linalg.matrix_exp(A)",
    "logsumexp": "x.logsumexp(-1)",
    "softmax": "x.softmax(-1)",
    "log_softmax": "x.log_softmax(-1)",
    "trapezoid": "probtorch.trapezoid(y, x)",
    "cumulative_trapezoid": "probtorch.cumulative_trapezoid(y, x)",
    "simpson": "probtorch.trapezoid(y, x), or the weights of the rule times y",
    "quad": "probtorch.numerics.integral(f, a, b)",
    "solve_ivp": "probtorch.ode.odeint(f, y0, times)",
    "odeint": "probtorch.ode.odeint(f, y0, times)",
    "interp1d": "numpy.interp(x, xp, fp)",
    "convolve": "numpy.convolve(a, v)",
    "block_diag": "probtorch.block_diag(a, b)",
    "lfilter": "a loop over time, or probtorch.scan",
    "brentq": "probtorch.numerics.bracketed_root(f, low, high)",
    "cdist": "probtorch.cdist(x, y)",
}
_OF_STATS = ("pdf", "logpdf", "pmf", "logpmf", "cdf", "logcdf", "sf", "logsf", "ppf", "isf")


def _caller():
    """``(package, function)`` of installed code between the user and the conversion, or Nones."""
    frame: FrameType | None = sys._getframe(2)
    found: tuple[str | None, str | None] = (None, None)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        package = module.partition(".")[0]
        if package in ("pandas", "scipy", "sklearn", "xarray", "numpy", "statsmodels"):
            found = package, _called_in(frame)
        elif package != "probtorch" or found[0] is not None:
            return found
        frame = frame.f_back
    return found


def _called_in(frame):
    """What a user calls of which this is the frame: a class for its methods, what is wrapped."""
    name = frame.f_code.co_name
    if name in ("__init__", "__call__"):
        return type(frame.f_locals.get("self")).__name__
    wrapped = frame.f_locals.get("f") if name == "wrapper" else None
    return getattr(wrapped, "__name__", name)


def _instead(name):
    """What to write in place of a function of somebody else's."""
    if name in _IN_PLACE:
        return f"write {_IN_PLACE[name]}, which keeps the gradient"
    if name in _OF_STATS:
        return (
            "write it by probtorch.distributions, whose log_prob, cdf and icdf keep the gradient: "
            "Normal(loc, scale).log_prob(x)"
        )
    rooms = (reduction, extremes, norms, linalg, cholesky_factors)
    public = name and not name.startswith("_")
    if public and (named_operation(name) is not None or any(hasattr(m, name) for m in rooms)):
        where = "probtorch.linalg" if hasattr(linalg, name) else "the tensor itself"
        call = f"probtorch.linalg.{name}(...)" if hasattr(linalg, name) else f"x.{name}(...)"
        return f"probtorch has it with its gradient: call {name} of {where}, {call}"
    return (
        "write it in operations of probtorch, or as a probtorch.autograd.Function with its "
        "derivative"
    )


# --------------------------------------------------------------------------------------- helpers


def _taped(x):
    return isinstance(x, TensorBase) and x.requires_grad and grad_enabled()


def _inside(x):
    """Everything in nested arguments."""
    if isinstance(x, (list, tuple)):
        for item in x:
            yield from _inside(item)
    elif isinstance(x, dict):
        yield from _inside(list(x.values()))
    else:
        yield x


def _refuse_taped(name, arguments):
    """Refuse a call that would take a tensor off the tape."""
    for x in _inside(arguments):
        if _taped(x):
            raise AutogradError(
                f"{name} of a tensor that requires grad",
                expected="an operation that probtorch differentiates",
                got=f"a tensor of shape {tuple(x.array.shape)} with requires_grad=True, whose "
                "gradient would be lost",
                fix=_instead(name.rpartition(".")[2]),
            )


def _wrapped(found, out):
    """Results of NumPy's as tensors; what was written somewhere is what it was written to."""
    if type(found) is tuple:
        return tuple(_wrapped(x, (o,)) for x, o in zip(found, out, strict=True))
    if out[0] is not None:
        return out[0]
    numeric = isinstance(found, (np.ndarray, np.generic)) and found.dtype.kind in "biufc"
    return wrap(np.asarray(found)) if numeric else found


def _computed_in(ufunc, dtype, inputs):
    """Whether a ufunc computes in a dtype, to which its inputs are cast before."""
    letters = {t.partition("->")[2] for t in ufunc.types}
    return dtype.char in letters and all(
        np.can_cast(np.asarray(plain_arrays(x, force=True)).dtype, dtype, "same_kind")
        for x in inputs
    )


def _in(dtype, x):
    return x if dtype is None else cast(x, dtype)


def _tensors_of(found):
    """The same with tensors in the place of arrays, which NumPy also lists and names."""
    if isinstance(found, list):
        return [_tensors_of(x) for x in found]
    if isinstance(found, tuple):
        items = map(_tensors_of, found)
        return type(found)(*items) if hasattr(found, "_fields") else tuple(items)
    return _wrapped(found, (None,))


def _no_place(name):
    return ArgumentError(
        name,
        expected="a call whose result probtorch computes, or no out=",
        got="out= by place, or beside an argument that only NumPy knows",
        fix="leave out= away and keep the result; or copy it, out[...] = result",
    )


def _filled(name, result, out):
    """Put a result where ``out=`` of a function says, which is of its shape."""
    if type(result) is not type(out) and not isinstance(result, TensorBase):
        raise _no_place(name)
    if tuple(np.shape(out)) != tuple(result.array.shape):
        raise ShapeError(
            name,
            expected=f"out of shape {tuple(result.array.shape)}",
            got=f"shape {tuple(np.shape(out))}",
            fix="leave out= away",
        )
    return _written(name, result, out)


def _written(name, result, out):
    """Put a result where ``out=`` says."""
    if isinstance(out, TensorBase):
        return out.copy_(result)
    if _taped(result):
        raise AutogradError(
            f"{name} into an array",
            expected="a new tensor for the result, which has a gradient",
            got=f"an array of shape {out.shape} to write it to (x += t, or out=)",
            fix="write x = x + t; or make x a tensor first, x = probtorch.tensor(x)",
        )
    np.copyto(out, result.numpy(), casting="same_kind")
    return out


def _name_of(func):
    module = getattr(func, "__module__", "numpy").replace("numpy", "np", 1)
    return f"{module}.{func.__name__}"


# ------------------------------------------------------------------------------ arrays of others


def from_numpy(ndarray):
    """Return a tensor that shares the memory of `ndarray`; where that is read-only, so is it."""
    if not isinstance(ndarray, np.ndarray):
        raise DTypeError(
            "from_numpy",
            expected="a NumPy array",
            got=type(ndarray).__name__,
            fix="use probtorch.tensor",
        )
    return as_tensor(ndarray, "from_numpy")


def from_dlpack(ext_tensor):
    """Return a tensor that shares memory with `ext_tensor`: with ``__dlpack__``, or a capsule.

    Read-only sources give a tensor that refuses in-place changes; so do capsules of the form before
    DLPack 1.0, which cannot say that they may be changed.

    Raises
    ------
    DTypeError
        If it is no such array, or of a dtype that NumPy lacks (bfloat16, float8).
    """
    if type(ext_tensor).__name__ == "PyCapsule":
        ext_tensor = _Exported(ext_tensor)
    if isinstance(ext_tensor, np.ndarray):
        return from_numpy(ext_tensor)
    if hasattr(ext_tensor, "__cuda_array_interface__"):
        return as_tensor(ext_tensor, "from_dlpack")
    if not hasattr(ext_tensor, "__dlpack__"):
        raise DTypeError(
            "from_dlpack",
            expected="an array with a __dlpack__ method",
            got=type(ext_tensor).__name__,
            fix="use probtorch.tensor",
        )
    try:
        array = np.from_dlpack(ext_tensor)
    except RuntimeError as error:
        if isinstance(error, ProbtorchError) or "dtype" not in str(error):
            raise
        raise DTypeError(
            "from_dlpack",
            expected="a dtype that NumPy has",
            got=str(getattr(ext_tensor, "dtype", "another")),
            fix="convert it to float32 first",
        ) from error
    return as_tensor(array, "from_dlpack")


class _Exported:
    """A capsule of DLPack's, as the array it comes from: the older way to exchange one."""

    def __init__(self, capsule):
        self._capsule = capsule

    def __dlpack__(self, **options):
        return self._capsule

    def __dlpack_device__(self):
        return (1, 0)  # the CPU, in DLPack's numbers


explain_calls(globals(), names=("from_dlpack", "from_numpy"))
