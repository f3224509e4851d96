"""Derivatives against numbers: `gradcheck`, `gradgradcheck`, and the differences they rest on.

The numeric side is a central difference of fourth order in float64, with the step in proportion to
the size of the input: about ten correct digits where the function is smooth. The inputs themselves
are moved, and put back, so that functions that close over them are seen. The default tolerances are
PyTorch's: loose enough for functions that bend within a step. NumPy functions that
accept complex arrays can be differentiated to rounding by a complex step instead (Squire and Trapp
1998); the op sweep does so with the reference functions.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.exceptions import ComplexWarning

from probtorch.autograd.tape import grad
from probtorch.backends.registry import device_of, to_device, to_host
from probtorch.core.dispatch import mark_changed, wrap
from probtorch.core.dtype import complex128, float64
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import DType
from probtorch.errors import AutogradError, DTypeError

if TYPE_CHECKING:
    from probtorch.tensor import Tensor

__all__ = ["GradcheckError", "complex_step", "difference", "gradcheck", "gradgradcheck"]

STEP = 1e-3
_DOUBLE = (float64, complex128)
_COMPLEX_STEP = 1e-30


class GradcheckError(AutogradError):
    """A derivative that does not agree with finite differences."""


def difference(
    fn: Callable[[np.ndarray], np.ndarray], x: np.ndarray, direction: np.ndarray
) -> np.ndarray:
    """Return the derivative of the array function `fn` at `x` along `direction`, by differences.

    Parameters
    ----------
    fn : callable
        From a float64 array to a float64 array.
    x, direction : ndarray of one shape
    """
    h = STEP * max(1.0, float(np.max(np.abs(x), initial=0.0)))
    near = fn(x + h * direction) - fn(x - h * direction)
    far = fn(x + 2 * h * direction) - fn(x - 2 * h * direction)
    return (8.0 * near - far) / (12.0 * h)


def complex_step(
    fn: Callable[[np.ndarray], np.ndarray], x: np.ndarray, direction: np.ndarray
) -> np.ndarray | None:
    """Return the derivative of an analytic array function, to rounding, or None if it is not one.

    Not analytic is what refuses complex arrays, returns real ones, or (as with abs inside) returns
    another value there than on the real line or a derivative that differences contradict.
    """
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("error")
            out = np.asarray(fn(x + 1j * _COMPLEX_STEP * direction))
            real = np.asarray(fn(x))
    except (TypeError, ValueError, ComplexWarning):
        return None
    if not np.iscomplexobj(out) or not np.allclose(out.real, real, rtol=1e-12, atol=1e-12):
        return None
    exact = out.imag / _COMPLEX_STEP
    rough = difference(fn, x, direction)
    scale = 1.0 + np.max(np.abs(rough), initial=0.0)
    return exact if np.allclose(exact, rough, rtol=1e-5, atol=1e-6 * scale) else None


def gradcheck(
    func: Callable[..., Tensor | Sequence[Tensor]],
    inputs: Tensor | Sequence[Tensor],
    *,
    eps: float = STEP,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    fast_mode: bool = False,
) -> bool:
    """Compare the gradients that the tape gives with finite differences.

    Parameters
    ----------
    func : callable
        From tensors to a tensor or a tuple of tensors, smooth around `inputs`.
    inputs : Tensor or sequence of Tensor
        Those with ``requires_grad=True`` are checked; they must be float64 or complex128, which
        are moved in real and imaginary direction. While `func` is
        called for a difference they hold other numbers, so what else reads them sees these too.
    eps : float
        Step, relative to the largest element of an input if that exceeds 1.
    atol, rtol : float
        Tolerances of the comparison.
    raise_exception : bool
        Raise on a mismatch instead of returning False.
    fast_mode : bool
        Check one random direction per input instead of every element.

    Returns
    -------
    bool

    Raises
    ------
    GradcheckError
        Naming the output, the input and the element that disagree.
    DTypeError
        If a checked input is not float64.
    """
    inputs = (inputs,) if isinstance(inputs, TensorBase) else tuple(inputs)
    for i, x in enumerate(inputs):
        if isinstance(x, TensorBase) and x.requires_grad and x.array.dtype not in _DOUBLE:
            raise DTypeError(
                "gradcheck",
                expected="float64 or complex128 inputs, as differences in float32 have three "
                "digits",
                got=f"{x.array.dtype} for input {i}",
                fix="convert it with .double() or .cdouble() before requires_grad_()",
            )
    rng = np.random.default_rng(0)
    try:
        for i, x in enumerate(inputs):
            if isinstance(x, TensorBase) and x.requires_grad:
                _check_input(func, inputs, i, eps, atol, rtol, rng if fast_mode else None)
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


def _outputs(
    func: Callable[..., Tensor | Sequence[Tensor]], inputs: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    out = func(*inputs)
    return (out,) if isinstance(out, TensorBase) else tuple(out)


def _check_input(
    func: Callable[..., Tensor | Sequence[Tensor]],
    inputs: Sequence[Tensor],
    i: int,
    eps: float,
    atol: float,
    rtol: float,
    rng: np.random.Generator | None,
) -> None:
    x = inputs[i]
    outputs = _outputs(func, inputs)
    tested = [k for k, out in enumerate(outputs) if out.dtype.kind in "fc"]
    # Before the inputs move: backward passes read them.
    jacobians = {k: _jacobian(outputs[k], x) for k in tested}
    directions = np.eye(x.numel()).reshape(x.numel(), *x.shape)
    if x.dtype.kind == "c":
        directions = np.concatenate([directions, 1j * directions])
    if rng is not None:
        directions = _random(rng, (1, *x.shape), x.dtype)
    at_rest = np.array(to_host(x.array))

    def value(array: np.ndarray) -> list[np.ndarray]:
        with _holding(x, array) as moved:
            replaced = [*inputs[:i], moved, *inputs[i + 1 :]]
            found = [np.array(out.detach().numpy()) for out in _outputs(func, replaced)]
        return found

    numeric = [_differences(value, at_rest, d, eps) for d in directions]
    for k in tested:
        for d, columns in zip(directions, numeric):
            got = _along(jacobians[k], d)
            wrong = ~np.isclose(got, columns[k], rtol=rtol, atol=atol)
            if wrong.any():
                at = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
                element = (
                    "a random direction" if rng else np.unravel_index(np.abs(d).argmax(), d.shape)
                )
                raise GradcheckError(
                    f"gradcheck: gradient of output {k} with respect to input {i}",
                    expected=f"{columns[k][at]!r} by differences, for element "
                    f"{tuple(map(int, at))} of the output and {_plain(element)} of the input",
                    got=repr(got[at]),
                    fix="check the backward rule, or that the function is smooth there",
                )


@contextlib.contextmanager
def _holding(x: Tensor, array: np.ndarray) -> Iterator[Tensor]:
    """Let `x` hold the numbers of `array` for a while; memory that is read-only is replaced."""
    device = device_of(x.array)
    if type(x.array) is np.ndarray and not x.array.flags.writeable:
        yield wrap(to_device(array, device))
        return
    before = np.array(to_host(x.array))
    try:
        x.array[...] = to_device(array, device)
        mark_changed(x)
        yield x
    finally:
        x.array[...] = to_device(before, device)
        mark_changed(x)


def _plain(element: str | Iterable[int]) -> str:
    return element if isinstance(element, str) else f"element {tuple(map(int, element))}"


def _differences(
    value: Callable[[np.ndarray], list[np.ndarray]],
    x: np.ndarray,
    direction: np.ndarray,
    eps: float,
) -> list[np.ndarray]:
    h = eps * max(1.0, float(np.max(np.abs(x), initial=0.0)))
    steps = [value(x + k * h * direction) for k in (1, -1, 2, -2)]
    return [(8.0 * (a - b) - (c - d)) / (12.0 * h) for a, b, c, d in zip(*steps)]


def _jacobian(out: Tensor, x: Tensor) -> list[np.ndarray]:
    """Gradients of the elements of `out`, (*out.shape, *x.shape); of complex ones those of the real
    and of the imaginary parts. One backward pass for each.
    """
    return [_rows(out, x, part) for part in ((1.0, 1j) if out.dtype.kind == "c" else (1.0,))]


def _rows(out: Tensor, x: Tensor, part: complex) -> np.ndarray:
    rows = np.zeros((out.numel(), x.numel()), x.dtype)
    if out.requires_grad:
        for k in range(out.numel()):
            g = np.zeros(out.numel(), out.dtype)
            g[k] = part
            seed = wrap(g.reshape(out.shape))
            (gx,) = grad(out, x, seed, retain_graph=True, allow_unused=True)
            if gx is not None:
                rows[k] = gx.detach().numpy().ravel()
    return rows.reshape((*out.shape, *x.shape))


def _along(jacobian: list[np.ndarray], direction: np.ndarray) -> np.ndarray:
    """Derivative along a direction: a gradient is the real and imaginary part of its slopes."""
    parts = [np.tensordot(rows.conj(), direction, direction.ndim).real for rows in jacobian]
    return parts[0] if len(parts) == 1 else parts[0] + 1j * parts[1]


def _random(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    out = rng.standard_normal(shape)
    return out + 1j * rng.standard_normal(shape) if dtype.kind == "c" else out


def gradgradcheck(
    func: Callable[..., Tensor | Sequence[Tensor]],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Tensor | Sequence[Tensor] | None = None,
    *,
    eps: float = STEP,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    fast_mode: bool = False,
) -> bool:
    """Compare second derivatives with differences of the first ones.

    Parameters
    ----------
    func : callable
    inputs : Tensor or sequence of Tensor
    grad_outputs : Tensor or sequence of Tensor, optional
        Cotangents at which to differentiate; random ones by default. They are checked too.
    eps, atol, rtol, raise_exception, fast_mode
        See `gradcheck`.
    """
    inputs = (inputs,) if isinstance(inputs, TensorBase) else tuple(inputs)
    wanted = [i for i, x in enumerate(inputs) if isinstance(x, TensorBase) and x.requires_grad]
    outputs = [out for out in _outputs(func, inputs) if out.requires_grad]
    if grad_outputs is None:
        rng = np.random.default_rng(1)
        grad_outputs = [wrap(_random(rng, out.shape, out.dtype)) for out in outputs]
        for g in grad_outputs:
            g.requires_grad_()
    elif isinstance(grad_outputs, TensorBase):
        grad_outputs = (grad_outputs,)
    n = len(inputs)

    def first_derivatives(*both: Tensor) -> tuple[Tensor, ...]:
        xs = list(both[:n])
        for i in wanted:
            # Differences pass plain tensors; the inner gradient needs them on the tape.
            if not xs[i].requires_grad:
                xs[i].requires_grad_()
        outs = [out for out in _outputs(func, xs) if out.requires_grad]
        return grad(
            outs,
            [xs[i] for i in wanted],
            list(both[n:]),
            create_graph=True,
            materialize_grads=True,
        )

    return gradcheck(
        first_derivatives,
        (*inputs, *grad_outputs),
        eps=eps,
        atol=atol,
        rtol=rtol,
        raise_exception=raise_exception,
        fast_mode=fast_mode,
    )


explain_calls(globals())
