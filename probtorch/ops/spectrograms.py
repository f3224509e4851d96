"""Short-time Fourier transforms: spectra of overlapping frames of a signal, and back.

A frame is cut out (windows.py), multiplied by a window and transformed (fourier.py). The inverse
adds the frames up where they overlap and divides by the squares of the window that lie there, which
is the signal whose spectra are closest (Griffin and Lim 1984).
"""

from __future__ import annotations

import warnings

from probtorch.backends.registry import array_module as namespace
from probtorch.core import dtype as dtypes
from probtorch.core.casting import to_inexact
from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.core.misuse import in_our_words
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.errors import ArgumentError, DomainError, DTypeError, ShapeError, users_stacklevel
from probtorch.ops.arithmetic import abs
from probtorch.ops.comparisons import lt
from probtorch.ops.complex_numbers import view_as_real
from probtorch.ops.fourier import fft, ifft, irfft, rfft
from probtorch.ops.movement import expand, movedim, reshape, slice_
from probtorch.ops.padding import pad
from probtorch.ops.reduction import any as some
from probtorch.ops.windows import overlap_add, windows

__all__ = ["istft", "stft"]

# Below, the sum of squares of the windows counts as 0; PyTorch's number.
_NOTHING = 1e-11


def _sizes(op: str, n_fft: int, hop_length: int | None, win_length: int | None) -> tuple[int, int]:
    """Return the distance of frames and the length of the window."""
    hop = n_fft // 4 if hop_length is None else hop_length
    length = n_fft if win_length is None else win_length
    if hop < 1 or not 0 < length <= n_fft:
        raise ArgumentError(
            op,
            expected="hop_length of at least 1, and win_length from 1 to n_fft",
            got=f"n_fft={n_fft}, hop_length={hop}, win_length={length}",
            fix="hop_length is n_fft // 4 and win_length n_fft where they are left out",
        )
    return hop, length


def _framed(
    op: str, window: TensorLike | None, length: int, n_fft: int, like: TensorBase
) -> TensorBase:
    """Return the window with zeros at both ends, as long as a frame; ones if there is none."""
    if window is None:
        single = like.array.dtype in (dtypes.float32, dtypes.complex64)
        dtype = dtypes.float32 if single else dtypes.float64
        window = wrap(namespace(like.array).ones(length, dtype))
    window = as_tensor(window, op)
    if window.array.shape != (length,):
        raise ShapeError(
            op,
            expected=f"a window of shape ({length},), that of win_length",
            got=str(window.array.shape),
            fix="pass win_length=len(window)",
        )
    left = (n_fft - length) // 2
    return pad(window, (left, n_fft - length - left)) if length < n_fft else window


@in_our_words
def stft(
    input: TensorLike,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: TensorLike | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> TensorBase:
    """Return the spectra of overlapping frames of a signal.

    Parameters
    ----------
    input : Tensor, shape (length,) or (batch, length)
        Real or complex.
    n_fft : int
        Elements of a frame.
    hop_length : int, optional
        From the start of a frame to that of the next; ``n_fft // 4`` by default.
    win_length : int, optional
        Elements of the window, `n_fft` by default; a shorter one lies in the middle of the frame.
    window : Tensor, shape (win_length,), optional
        What frames are multiplied by, for example `hann_window`; ones by default.
    center : bool
        Whether frame t has its middle at ``t * hop_length``, for which the signal is padded by
        ``n_fft // 2`` at both ends; otherwise it starts there.
    pad_mode : {"reflect", "constant", "replicate", "circular"}
        How; see `nn.functional.pad`.
    normalized : bool
        Whether the spectra are divided by the root of `n_fft`.
    onesided : bool, optional
        Whether only ``n_fft // 2 + 1`` frequencies are given, as the others are their conjugates;
        by default if signal and window are real.
    return_complex : bool, optional
        Whether the result is complex; with False real and imaginary part lie in one more dim. To be
        said where signal and window are real.
    align_to_window : bool, optional
        Without `center`: whether the first frame has its window, not itself, at the start.

    Returns
    -------
    Tensor, shape (..., frequencies, frames)

    Raises
    ------
    ArgumentError
        If sizes do not fit together, or half of the frequencies of complex numbers are asked for.
    ShapeError
        If the signal is shorter than a frame, or the window is not of `win_length`.
    """
    x = to_inexact(as_tensor(input, "stft"))
    hop, length = _sizes("stft", n_fft, hop_length, win_length)
    frame = _framed("stft", window, length, n_fft, x)
    is_complex = "c" in (x.array.dtype.kind, frame.array.dtype.kind)
    onesided = not is_complex if onesided is None else onesided
    if return_complex is None and not is_complex:
        raise ArgumentError(
            "stft",
            expected="return_complex for a real signal",
            got="nothing",
            fix="pass return_complex=True; view_as_real gives real and imaginary part",
        )
    if onesided and is_complex:
        raise ArgumentError(
            "stft",
            expected="onesided=False for complex numbers, whose spectra have no symmetry",
            got="onesided=True",
            fix="leave it out",
        )
    if center and align_to_window is not None:
        raise ArgumentError(
            "stft",
            expected="align_to_window with center=False only",
            got=f"align_to_window={align_to_window}",
            fix="leave it out",
        )
    if x.array.ndim not in (1, 2):
        raise ShapeError(
            "stft",
            expected="a signal of shape (length,) or (batch, length)",
            got=str(x.array.shape),
            fix="reshape it to (batch, length), or use vmap",
        )
    if center:
        x = pad(x, (n_fft // 2, n_fft // 2), pad_mode)
    elif align_to_window:
        left = (n_fft - length) // 2
        x = pad(x, (left, n_fft - length - left))
    if not 0 < n_fft <= x.array.shape[-1]:
        raise ShapeError(
            "stft",
            expected=f"n_fft from 1 to {x.array.shape[-1]}, the length of the (padded) signal",
            got=str(n_fft),
            fix="pass a smaller n_fft, or a longer signal",
        )
    cut = windows(x, (n_fft,), (hop,), (1,))  # (n_fft, ..., frames)
    cut = cut * reshape(frame, (n_fft, *(1,) * (cut.array.ndim - 1)))
    spectra = (rfft if onesided else fft)(cut, dim=0, norm="ortho" if normalized else "backward")
    spectra = movedim(spectra, 0, -2)
    return spectra if return_complex or return_complex is None else view_as_real(spectra)


@in_our_words
def istft(
    input: TensorLike,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: TensorLike | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> TensorBase:
    """Return the signal whose spectra, by `stft` with the same arguments, are closest to `input`.

    Parameters
    ----------
    input : Tensor, shape (frequencies, frames) or (batch, frequencies, frames)
        Complex.
    n_fft, hop_length, win_length, window, center, normalized
        As for `stft`.
    onesided : bool, optional
        Whether only ``n_fft // 2 + 1`` frequencies are there; by default if they are not `n_fft`.
    length : int, optional
        That of the signal, which is cut or filled up with zeros; otherwise what the frames cover,
        with `center` up to the middle of the last one.
    return_complex : bool
        Whether the signal is complex, which needs all frequencies.

    Returns
    -------
    Tensor, shape (..., length)

    Raises
    ------
    DTypeError
        If `input` is real.
    ArgumentError, ShapeError
        If sizes do not fit together.
    DomainError
        If the windows leave elements of the signal out (their squares add up to 0).
    """
    z = as_tensor(input, "istft")
    if z.array.dtype.kind != "c":
        raise DTypeError(
            "istft",
            expected="complex spectra, as stft(..., return_complex=True) gives them",
            got=str(z.array.dtype),
            fix="use view_as_complex for real and imaginary part in the last dim",
        )
    if z.array.ndim not in (2, 3) or not z.array.size:
        raise ShapeError(
            "istft",
            expected="spectra of shape (frequencies, frames) or (batch, frequencies, frames)",
            got=str(z.array.shape),
            fix="reshape them, or use vmap",
        )
    hop, win = _sizes("istft", n_fft, hop_length, win_length)
    frequencies, frames = z.array.shape[-2:]
    onesided = frequencies != n_fft if onesided is None else onesided
    if frequencies != (n_fft // 2 + 1 if onesided else n_fft):
        raise ShapeError(
            "istft",
            expected=f"{n_fft // 2 + 1 if onesided else n_fft} frequencies for n_fft={n_fft} and "
            f"onesided={onesided}",
            got=str(frequencies),
            fix="pass the n_fft and onesided of stft",
        )
    if hop > win:
        raise ArgumentError(
            "istft",
            expected=f"hop_length up to win_length={win}, so that frames overlap or touch",
            got=str(hop),
            fix="pass the hop_length and win_length of stft",
        )
    frame = _framed("istft", window, win, n_fft, z)
    if (return_complex and onesided) or (not return_complex and frame.array.dtype.kind == "c"):
        raise ArgumentError(
            "istft",
            expected="onesided=False with return_complex, and return_complex for a complex window",
            got=f"onesided={onesided}, return_complex={return_complex}, a window of "
            f"{frame.array.dtype}",
            fix="a real signal has a real window and half of the frequencies",
        )
    norm = "ortho" if normalized else "backward"
    if return_complex:
        parts = ifft(z, n_fft, -2, norm)
    else:
        half = tuple((0, 1, n) for n in z.array.shape[:-2])
        parts = irfft(slice_(z, (*half, (0, 1, n_fft // 2 + 1), (0, 1, frames))), n_fft, -2, norm)
    column = reshape(frame, (n_fft, 1))
    whole = n_fft + hop * (frames - 1)
    added = overlap_add(movedim(parts * column, -2, 0), (whole,), (n_fft,), (hop,), (1,))
    squares = expand(column * column, (n_fft, frames))
    below = overlap_add(squares, (whole,), (n_fft,), (hop,), (1,))
    start = n_fft // 2 if center else 0
    end = whole - start if length is None else start + length
    kept = min(end, whole) - start
    if kept < 1:
        raise ShapeError(
            "istft",
            expected="frames that reach beyond the padding, and a length of at least 1",
            got=f"{frames} frames of {n_fft}, length={length}",
            fix="pass more frames, or center=False",
        )
    lead = tuple((0, 1, n) for n in added.array.shape[:-1])
    added, below = slice_(added, (*lead, (start, 1, kept))), slice_(below, ((start, 1, kept),))
    if bool(some(lt(abs(below), _NOTHING))):
        raise DomainError(
            "istft",
            expected="windows whose squares add up to more than 0 everywhere",
            got="elements of the signal on which no window lies",
            fix="use a smaller hop_length, another window, or center=True",
        )
    signal = added / below
    if end <= whole:
        return signal
    warnings.warn(
        f"istft: the frames cover {kept} elements; "
        f"the last {end - start - kept} of length={length} are zeros",
        stacklevel=users_stacklevel(),
    )
    return pad(signal, (0, end - start - kept))
