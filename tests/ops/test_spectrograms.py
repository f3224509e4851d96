"""stft by its definition, istft as its inverse and as least squares, derivatives by differences."""

import numpy as np
import pytest

import probtorch
from probtorch import istft, stft, tensor
from probtorch.autograd.checking import gradcheck, gradgradcheck
from probtorch.compiler.paths import CompileWarning
from probtorch.errors import ArgumentError, DomainError, DTypeError, ShapeError
from probtorch.func import vmap
from probtorch.testing.compare import assert_close

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 21))
HANN = probtorch.hann_window(8, dtype=probtorch.float64)


def by_definition(x, n_fft, hop, window, normalized=False):
    """Sum over k of window[k] x[t hop + k] exp(-2 pi i f k / n_fft), for all f and t."""
    k = np.arange(n_fft)
    turns = np.exp(-2j * np.pi * np.outer(k, k) / n_fft)
    frames = range(0, x.shape[-1] - n_fft + 1, hop)
    out = np.stack([(x[..., t : t + n_fft] * window) @ turns for t in frames], -1)
    return out / np.sqrt(n_fft) if normalized else out


@pytest.mark.parametrize("n_fft, hop, win", [(8, 2, 8), (8, 3, 5), (7, 7, 6), (4, 1, 1)])
@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("onesided, normalized", [(True, False), (False, True)])
def test_spectra_are_those_of_the_definition(n_fft, hop, win, center, onesided, normalized):
    window = RNG.uniform(0.2, 1.0, win)
    left = (n_fft - win) // 2
    whole = np.pad(window, (left, n_fft - win - left))
    got = stft(
        tensor(X), n_fft, hop, win, tensor(window), center, "reflect", normalized, onesided, True
    )
    x = np.pad(X, [(0, 0), (n_fft // 2, n_fft // 2)], "reflect") if center else X
    expected = by_definition(x, n_fft, hop, whole, normalized)
    assert_close(got, expected[:, : n_fft // 2 + 1] if onesided else expected, rtol=1e-11)
    assert_close(
        stft(tensor(X[0]), n_fft, hop, win, tensor(window), center, return_complex=True),
        by_definition(x, n_fft, hop, whole)[0, : n_fft // 2 + 1],
        rtol=1e-11,
    )


def test_forms_of_arguments_and_results():
    x = tensor(X)
    z = stft(x, 8, return_complex=True)
    assert z.shape == (2, 5, 11)
    assert_close(z, stft(x, 8, 2, window=probtorch.ones(8).double(), return_complex=True))
    assert_close(stft(x, 8, return_complex=False), probtorch.view_as_real(z))
    assert_close(x.stft(8, return_complex=True), z)
    assert_close(z.istft(8), istft(z, 8))
    single = stft(x.float(), 8, window=HANN.float(), return_complex=True)
    assert single.dtype == probtorch.complex64
    assert istft(single, 8, window=HANN.float()).dtype == probtorch.float32
    padded = tensor(np.pad(X, [(0, 0), (1, 2)]))
    window = tensor(np.array([0.5, 1.0, 0.5, 0.2, 0.1]))
    assert_close(
        stft(x, 8, 2, 5, window, False, return_complex=True, align_to_window=True),
        stft(padded, 8, 2, 5, window, False, return_complex=True),
    )


@pytest.mark.parametrize("normalized, onesided", [(False, None), (True, False)])
def test_the_inverse_gives_the_signal_back(normalized, onesided):
    options = {"window": HANN, "normalized": normalized, "onesided": onesided}
    z = stft(tensor(X), 8, 2, return_complex=True, **options)
    assert_close(istft(z, 8, 2, length=21, **options), X, rtol=1e-11, atol=1e-12)
    assert_close(istft(z, 8, 2, **options), X[:, :20], rtol=1e-11, atol=1e-12)
    complex_signal = X + 1j * X[:, ::-1]
    z = stft(tensor(complex_signal), 8, 2, window=HANN)
    back = istft(z, 8, 2, window=HANN, length=21, return_complex=True)
    assert_close(back, complex_signal, rtol=1e-11, atol=1e-12)
    with pytest.warns(UserWarning, match="the last 6 of length=30 are zeros"):
        longer = istft(z, 8, 2, window=HANN, length=30, return_complex=True)
    assert_close(longer[:, 24:], np.zeros((2, 6)))


def test_the_inverse_is_the_closest_signal():
    # Of spectra that belong to no signal: least squares over all signals, by their matrix.
    z = tensor(RNG.standard_normal((8, 4)) + 1j * RNG.standard_normal((8, 4)))
    options = {"window": HANN + 0.1, "center": False, "onesided": False}
    spectra = [stft(tensor(row), 8, 3, **options, return_complex=True) for row in np.eye(17)]
    basis = np.stack([s.numpy().ravel() for s in spectra], 1)
    parts = np.concatenate([basis.real, basis.imag])
    wanted = np.concatenate([z.numpy().real.ravel(), z.numpy().imag.ravel()])
    expected = np.linalg.lstsq(parts, wanted, rcond=None)[0]
    symmetric = z.numpy() / 2 + np.roll(z.numpy()[::-1], 1, 0).conj() / 2
    got = istft(tensor(symmetric), 8, 3, **options)
    assert_close(got, expected, rtol=1e-10, atol=1e-11)


def test_derivatives_agree_with_differences():
    x = tensor(X[0, :7], requires_grad=True)
    window = tensor(RNG.uniform(0.3, 1.0, 3), requires_grad=True)

    def there(x, window):
        return stft(x, 4, 2, 3, window, return_complex=True)

    assert gradcheck(there, (x, window), rtol=1e-6, atol=1e-8, fast_mode=True)
    assert gradgradcheck(there, (x, window), rtol=1e-6, atol=1e-7, fast_mode=True)
    z = there(x, window).detach().requires_grad_()

    def back(z, window):
        return istft(z, 4, 2, 3, window, length=7)

    assert gradcheck(back, (z, window), rtol=1e-6, atol=1e-8, fast_mode=True)
    assert gradgradcheck(back, (z, window), rtol=1e-6, atol=1e-7, fast_mode=True)


def test_vmap_takes_more_batches():
    x = tensor(RNG.standard_normal((3, 2, 12)))
    batched = vmap(lambda row: stft(row, 6, return_complex=True))(x)
    assert_close(batched[1], stft(x[1], 6, return_complex=True))
    assert_close(vmap(lambda z: istft(z, 6))(batched)[2], istft(batched[2], 6))


def test_compiled_functions_run_eagerly():
    fn = probtorch.compile(lambda x: (stft(x, 6, return_complex=False) ** 2).sum())
    with pytest.warns(CompileWarning, match="complex numbers, which are computed eagerly"):
        first = fn(tensor(X))
    assert_close(fn(tensor(2.0 * X)), 4.0 * first)


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda x, z: stft(x, 8), ArgumentError, "return_complex for a real signal"),
        (lambda x, z: stft(x * 1j, 8, onesided=True), ArgumentError, "onesided=False"),
        (lambda x, z: stft(x, 8, 0, return_complex=True), ArgumentError, "hop_length of at"),
        (lambda x, z: stft(x, 8, win_length=9, return_complex=True), ArgumentError, "win_length"),
        (lambda x, z: stft(x, 40, center=False, return_complex=True), ShapeError, "n_fft from 1"),
        (lambda x, z: stft(x, 8, window=HANN[1:], return_complex=True), ShapeError, "a window"),
        (lambda x, z: stft(x[None], 8, return_complex=True), ShapeError, "a signal of shape"),
        (
            lambda x, z: stft(x, 8, return_complex=True, align_to_window=True),
            ArgumentError,
            "align_to_window with center=False",
        ),
        (lambda x, z: istft(x, 8), DTypeError, "complex spectra"),
        (lambda x, z: istft(z, 10), ShapeError, "6 frequencies"),
        (lambda x, z: istft(z, 8, 8, 4), ArgumentError, "hop_length up to win_length=4"),
        (lambda x, z: istft(z, 8, return_complex=True), ArgumentError, "onesided=False with"),
        (lambda x, z: istft(z, 8, 8, window=HANN), DomainError, "squares add up"),
        (lambda x, z: istft(z[None, None], 8), ShapeError, "spectra of shape"),
        (lambda x, z: istft(z[..., :1], 8, 2), ShapeError, "frames that reach beyond"),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused(call, error, message):
    x = tensor(X)
    with pytest.raises(error, match=message):
        call(x, stft(x, 8, return_complex=True))
