"""Windows for spectra and filters: Hann, Hamming, Blackman, Bartlett and Kaiser.

Each is of length `window_length`; periodic ones, for spectra, are one longer with the last element
left out. (Windows of convolutions are another thing: see nn.functional.unfold.)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from probtorch.core import dtype as dtypes
from probtorch.core.dispatch import wrap
from probtorch.core.outputs import takes_out
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import DTypeLike
from probtorch.errors import ArgumentError, DTypeError
from probtorch.ops.transfer import to as moved

__all__ = [
    "bartlett_window",
    "blackman_window",
    "hamming_window",
    "hann_window",
    "kaiser_window",
]


def _window(
    op: str,
    length: int,
    periodic: bool,
    shape: Callable[[np.ndarray], np.ndarray],
    dtype: DTypeLike | None,
    device: str | None,
    requires_grad: bool,
) -> TensorBase:
    if not isinstance(length, int) or length < 0:
        raise ArgumentError(
            op, expected="window_length >= 0", got=repr(length), fix="say how many elements"
        )
    kind = dtypes.get_default_dtype() if dtype is None else dtypes.as_dtype(dtype)
    if kind.kind != "f":
        raise DTypeError(
            op, expected="a floating-point dtype", got=str(kind), fix="leave dtype out"
        )
    n = length + periodic if length > 1 else length
    # From -1 at the first to 1 at the last.
    place = np.linspace(-1.0, 1.0, n)
    made = shape(place) if n != 1 else np.ones(1)
    out = wrap(made[:length].astype(kind))
    if device is not None:
        out = moved(out, device=device)
    return out.requires_grad_() if requires_grad else out


def hann_window(
    window_length: int,
    periodic: bool = True,
    *,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> TensorBase:
    """Return Hann's window, half of one plus a cosine."""
    return _window(
        "hann_window",
        window_length,
        periodic,
        lambda x: 0.5 + 0.5 * np.cos(np.pi * x),
        dtype,
        device,
        requires_grad,
    )


@takes_out
def hamming_window(
    window_length: int,
    periodic: bool = True,
    alpha: float = 0.54,
    beta: float = 0.46,
    *,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    requires_grad: bool = False,
    out: TensorBase | None = None,
) -> TensorBase:
    """Return Hamming's window, ``alpha - beta cos(2 pi n / N)``."""
    return _window(
        "hamming_window",
        window_length,
        periodic,
        lambda x: alpha + beta * np.cos(np.pi * x),
        dtype,
        device,
        requires_grad,
    )


def blackman_window(
    window_length: int,
    periodic: bool = True,
    *,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> TensorBase:
    """Return Blackman's window, of two cosines; never below 0."""
    return _window(
        "blackman_window",
        window_length,
        periodic,
        lambda x: np.maximum(0.42 + 0.5 * np.cos(np.pi * x) + 0.08 * np.cos(2 * np.pi * x), 0.0),
        dtype,
        device,
        requires_grad,
    )


def bartlett_window(
    window_length: int,
    periodic: bool = True,
    *,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> TensorBase:
    """Return Bartlett's window, a triangle that begins and ends at 0."""
    return _window(
        "bartlett_window",
        window_length,
        periodic,
        lambda x: 1.0 - np.abs(x),
        dtype,
        device,
        requires_grad,
    )


def kaiser_window(
    window_length: int,
    periodic: bool = True,
    beta: float = 12.0,
    *,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> TensorBase:
    """Return Kaiser's window, ``I0(beta sqrt(1 - x^2)) / I0(beta)``."""
    return _window(
        "kaiser_window",
        window_length,
        periodic,
        lambda x: np.i0(beta * np.sqrt(np.maximum(1.0 - x * x, 0.0))) / np.i0(beta),
        dtype,
        device,
        requires_grad,
    )


explain_calls(globals())
