"""Orthogonal polynomials, and functions of Bessel and Airy, against SciPy and by identities."""

import numpy as np
import pytest
import scipy.special

import probtorch as torch
from probtorch import special
from probtorch.testing import assert_close, gradcheck

X = np.linspace(-0.9, 0.95, 7)
SCIPY = {
    "chebyshev_polynomial_t": scipy.special.eval_chebyt,
    "chebyshev_polynomial_u": scipy.special.eval_chebyu,
    "shifted_chebyshev_polynomial_t": scipy.special.eval_sh_chebyt,
    "shifted_chebyshev_polynomial_u": scipy.special.eval_sh_chebyu,
    "hermite_polynomial_h": scipy.special.eval_hermite,
    "hermite_polynomial_he": scipy.special.eval_hermitenorm,
    "laguerre_polynomial_l": scipy.special.eval_laguerre,
    "legendre_polynomial_p": scipy.special.eval_legendre,
}


@pytest.mark.parametrize("name", SCIPY)
def test_polynomials_are_those_of_scipy(name):
    fn, x = getattr(special, name), torch.tensor(X)
    for n in (0, 1, 2, 7, 40):
        expected = torch.tensor(SCIPY[name](n, X))
        assert_close(fn(x, n), expected, rtol=1e-9, atol=1e-9 * expected.abs().max().item())
    degrees = np.array([0, 5, 1, 2, 3, 4, 6])
    assert_close(fn(x, torch.tensor(degrees)), torch.tensor(SCIPY[name](degrees, X)), rtol=1e-9)
    assert fn(x, -1).tolist() == [0.0] * 7
    assert gradcheck(lambda x: fn(x, 5), x.requires_grad_())


@pytest.mark.parametrize("shifted", ["", "shifted_"])
def test_third_and_fourth_kind_are_ratios_of_cosines_and_sines(shifted):
    x = np.linspace(0.1, 0.9, 5)
    t = np.arccos(2 * x - 1 if shifted else x)
    for letter, f in (("v", np.cos), ("w", np.sin)):
        found = getattr(special, f"{shifted}chebyshev_polynomial_{letter}")(torch.tensor(x), 4)
        np.testing.assert_allclose(found.numpy(), f(4.5 * t) / f(0.5 * t), atol=1e-13)


def test_degrees_in_a_tensor_compile():
    x, n = torch.tensor(X), torch.tensor([0, 5, 1, 2, 3, 4, 6])
    compiled = torch.compile(special.legendre_polynomial_p)
    for _ in range(2):
        assert_close(compiled(x, n), special.legendre_polynomial_p(x, n))


def test_bessel_functions_at_their_ends():
    zero, far = torch.tensor(0.0), torch.tensor(float("inf"))
    assert special.bessel_j0(zero) == 1.0 and special.bessel_j1(zero) == 0.0
    assert special.bessel_y0(zero) == -float("inf") and special.modified_bessel_k0(zero) == far
    assert special.spherical_bessel_j0(far) == 0.0 and special.airy_ai(far) == 0.0
    x = torch.tensor([0.0, 1e-9], dtype=torch.float64, requires_grad=True)
    special.bessel_j1(x).sum().backward()
    assert_close(x.grad, torch.tensor([0.5, 0.5], dtype=torch.float64))


def test_airy_is_right_on_both_sides_of_each_seam():
    x = np.concatenate([np.linspace(-25, 12, 60), [-1.0, 1.0, np.nextafter(1.0, 2), -1 - 1e-9]])
    found = special.airy_ai(torch.tensor(x)).numpy()
    np.testing.assert_allclose(found, scipy.special.airy(x)[0], rtol=1e-11, atol=2e-14)
