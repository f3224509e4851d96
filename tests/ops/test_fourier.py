"""probtorch.fft against SciPy, and derivatives against differences; the laws of the three ops below
are in tests/contracts/test_complex_ops.py.
"""

import numpy as np
import pytest
import scipy.fft

import probtorch
from probtorch import fft, tensor
from probtorch.autograd.checking import gradcheck, gradgradcheck
from probtorch.compiler.paths import CompileWarning
from probtorch.errors import ArgumentError, DTypeError, ShapeError
from probtorch.func import vmap
from probtorch.testing.compare import assert_close

ALONG = ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"]
EVERY = [name + end for name in ALONG for end in ("", "2", "n")]


def signal(shape, name, rng):
    x = rng.standard_normal(shape)
    of_real = name.startswith(("rfft", "ihfft"))
    return x if of_real else x + 1j * rng.standard_normal(shape)


def calls(name, rng):
    """Arguments of ours and of SciPy's function: sizes, dims, norms."""
    shape = (2, 5, 4)
    for norm in (None, "ortho", "forward", "backward"):
        x = signal(shape, name, rng)
        if name in ALONG:
            for n, dim in ((None, -1), (6, 1), (3, -2), (1, 0)):
                n = 2 if n == 1 and name in ("hfft", "irfft") else n
                yield x, {"n": n, "dim": dim, "norm": norm}, {"n": n, "axis": dim, "norm": norm}
            continue
        dims = [(-2, -1), (1, 0)] if name.endswith("2") else [None, (0, 2), (2,)]
        for dim in dims:
            yield x, {"dim": dim, "norm": norm}, {"axes": dim, "norm": norm}
        for s in ((6, 3), (2, 7)):
            axes = (-2, -1)
            yield x, {"s": s, "norm": norm}, {"s": s, "axes": axes, "norm": norm}


@pytest.mark.parametrize("name", EVERY)
def test_values_are_those_of_scipy(name):
    rng = np.random.default_rng(5)
    for x, ours, theirs in calls(name, rng):
        expected = getattr(scipy.fft, name)(x, **theirs)
        got = getattr(fft, name)(tensor(x), **ours)
        assert_close(got, expected, rtol=1e-11, atol=1e-12, msg=str(ours))
        assert got.dtype == expected.dtype


@pytest.mark.parametrize("name", EVERY)
def test_single_precision_and_integers(name):
    x = signal((3, 4), name, np.random.default_rng(0))
    single = x.astype(np.complex64 if x.dtype.kind == "c" else np.float32)
    got = getattr(fft, name)(tensor(single))
    assert str(got.dtype) in ("complex64", "float32")
    assert_close(got, getattr(fft, name)(tensor(x)), rtol=1e-5, atol=1e-5)
    whole = probtorch.arange(12).reshape(3, 4)
    assert_close(getattr(fft, name)(whole), getattr(fft, name)(whole.float()))


@pytest.mark.parametrize("name", EVERY)
def test_derivatives_agree_with_differences(name):
    x = tensor(signal((1, 2, 4), name, np.random.default_rng(1)), requires_grad=True)
    sizes = {"n": 5} if name in ALONG else {"s": (2, 5), "dim": (1, 2)}

    def fn(x):
        return getattr(fft, name)(x, **sizes, norm="ortho")

    assert gradcheck(fn, x, rtol=1e-6, atol=1e-8, fast_mode=True)
    if name in ALONG:
        assert gradgradcheck(lambda x: fn(x) ** 2, x, rtol=1e-6, atol=1e-6, fast_mode=True)


@pytest.mark.parametrize("there, back", [("fft", "ifft"), ("rfft", "irfft"), ("ihfft", "hfft")])
def test_the_inverse_undoes_it(there, back):
    x = tensor(signal((3, 6), there, np.random.default_rng(2)))
    for end in ("", "2", "n"):
        for norm in ("backward", "ortho", "forward"):
            again = getattr(fft, back + end)(getattr(fft, there + end)(x, norm=norm), norm=norm)
            assert_close(again, x, rtol=1e-12, atol=1e-13)


def test_vmap_and_out():
    x = tensor(signal((3, 4, 5), "fft", np.random.default_rng(3)))
    assert_close(vmap(fft.fft)(x), fft.fft(x))
    assert_close(vmap(lambda row: fft.fftn(row))(x), fft.fftn(x, dim=(1, 2)))
    assert_close(vmap(fft.rfft, in_dims=1)(x.real), fft.rfft(x.real.movedim(1, 0)))
    buffer = probtorch.empty(0, dtype=probtorch.complex128)
    assert fft.fft(x, out=buffer) is buffer
    assert_close(buffer, fft.fft(x))


def test_a_derivative_of_a_real_loss_descends():
    # Wiener's inverse filter by gradient descent on |ifft(h fft(x)) - y|^2, which ends at x.
    rng = np.random.default_rng(4)
    blur = fft.fft(tensor(np.array([0.8, 0.15, 0.05, 0.0, 0.0, 0.0])))
    true = tensor(rng.standard_normal(6))
    seen = fft.ifft(blur * fft.fft(true))
    x = probtorch.zeros(6, dtype=probtorch.float64, requires_grad=True)
    for _ in range(60):
        loss = ((fft.ifft(blur * fft.fft(x)) - seen).abs() ** 2).sum()
        (g,) = probtorch.autograd.grad(loss, x)
        x = (x - 0.5 * g).detach().requires_grad_()
    assert_close(x.detach(), true, rtol=1e-6, atol=1e-6)


def test_frequencies_and_shifts():
    for n in (1, 4, 5):
        assert_close(fft.fftfreq(n, 0.5), np.fft.fftfreq(n, 0.5).astype(np.float32))
        assert_close(fft.rfftfreq(n, 0.5), np.fft.rfftfreq(n, 0.5).astype(np.float32))
        x = probtorch.arange(2 * n).reshape(2, n)
        assert_close(fft.fftshift(x), np.fft.fftshift(x.numpy()))
        assert_close(fft.fftshift(x, 1), np.fft.fftshift(x.numpy(), 1))
        assert_close(fft.ifftshift(x, (0, 1)), np.fft.ifftshift(x.numpy()))
        assert_close(fft.ifftshift(fft.fftshift(x)), x)
    made = fft.fftfreq(4, dtype=probtorch.float64, requires_grad=True)
    assert made.dtype == probtorch.float64 and made.requires_grad


def test_compiled_functions_run_eagerly():
    fn = probtorch.compile(lambda x: (fft.rfft(x).abs() ** 2).sum())
    x = tensor(np.array([0.2, 1.5, -0.3]))
    with pytest.warns(CompileWarning, match="complex numbers, which are computed eagerly"):
        assert_close(fn(x), 3 * (x**2).sum() / 2 + fft.rfft(x)[0].real ** 2 / 2)
    assert_close(fn(x * 2.0), 4 * (fft.rfft(x).abs() ** 2).sum())


def test_bad_arguments_are_refused():
    x = tensor(np.ones((3, 4)))
    with pytest.raises(ShapeError, match="at least 1 data point"):
        fft.fft(x, n=0)
    with pytest.raises(ShapeError, match="at least 1 data point"):
        fft.fft(probtorch.ones(2, 0))
    with pytest.raises(ShapeError, match="at least 1 data point"):
        fft.irfft(probtorch.ones(1))
    with pytest.raises(ShapeError, match="one occurs twice"):
        fft.fftn(x, dim=(0, -2))
    with pytest.raises(ShapeError, match="1 sizes for 2 dims"):
        fft.fft2(x, s=(3,))
    with pytest.raises(ShapeError, match="s of 3 sizes"):
        fft.fftn(x, s=(3, 3, 3))
    with pytest.raises(DTypeError, match=r"(?s)real numbers.*complex128.*use fft,"):
        fft.rfft(x * 1j)
    with pytest.raises(DTypeError, match="use ifft2,"):
        fft.ihfft2(x * 1j)
    with pytest.raises(ArgumentError, match='norm: "backward"'):
        fft.fft(x, norm="none")
