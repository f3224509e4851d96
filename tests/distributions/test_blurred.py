"""Exponential tails blurred by a normal: cdfs where the normal is narrow, and in both tails.

Oracles are the closed forms with mpmath, at so many digits that their difference keeps enough.
"""

import mpmath
import numpy as np
import pytest
from mpmath import mpf

import probtorch.distributions as dist
from probtorch import compile
from probtorch.autograd import grad
from probtorch.tensor import tensor
from probtorch.testing import assert_close

# In units of the normal's standard deviation.
PLACES = (-37.0, -10.0, -2.0, -0.1, 0.0, 0.1, 0.4, 2.0, 10.0, 1e3, 1e6, 1e9)
WIDTHS = (1e-15, 1e-12, 1e-6, 1e-3, 0.5, 1.0, 3.0, 1e3)
LENGTHS = (0.5, 1e4)


def below(z, scale, length):
    """The cdf at z of an exponential number of mean `length` plus a normal one of sd `scale`."""
    z, s, n = mpf(z), mpf(scale), mpf(length)
    if z / s < -100:
        return mpf(0)  # below 1e-2000
    # ndtr(z / s) and what is taken away differ by a factor as near to 1 as scale / length.
    with mpmath.workdps(400 + int(min(z / s, 0) ** 2 / 4)):
        tail = mpmath.exp(s * s / (2 * n * n) - z / n) * mpmath.ncdf(z / s - s / n)
        return mpmath.ncdf(z / s) - tail


def cases():
    for scale in WIDTHS:
        for length in LENGTHS:
            for u in PLACES:
                # Beyond, the survival is no float.
                if u * scale / length < 700.0 and (u < 30.0 or scale < length):
                    yield u * scale, scale, length


@pytest.mark.parametrize("native", [False, True])
def test_a_normal_plus_an_exponential_number_has_its_cdf_wherever_it_is_small(native):
    z, scale, length = (np.array(column) for column in zip(*cases(), strict=True))

    def levels(z, scale, length):
        d = dist.ExGaussian(0.0, scale, length)
        return d.cdf(z), d.log_cdf(z), d.survival(z), d.log_survival(z)

    run = compile(levels) if native else levels
    run(*map(tensor, (z, scale, length)))
    cdf, log_cdf, survival, log_survival = (
        v.numpy() for v in run(*map(tensor, (z, scale, length)))
    )
    with mpmath.workdps(360):
        for i, row in enumerate(zip(z, scale, length, strict=True)):
            p = below(*row)
            for found, exact in ((log_cdf[i], mpmath.log(p)), (log_survival[i], mpmath.log1p(-p))):
                assert abs(found - exact) <= 1e-12 * max(1, abs(exact)), row
            for found, exact in ((cdf[i], p), (survival[i], 1 - p)):
                assert abs(found - exact) <= 2e-12 * exact + 1e-300, row


def test_slopes_of_its_log_cdf_are_those_of_differences():
    for row in ((-2e-3, 1e-3, 0.7), (0.3, 0.2, 0.7), (-0.1, 1.0, 0.5), (2.0, 1.0, 0.5)):
        leaves = [tensor(np.array(v), requires_grad=True) for v in row]
        found = grad(dist.ExGaussian(0.0, *leaves[1:]).log_cdf(leaves[0]), leaves)
        for i, g in enumerate(found):
            with mpmath.workdps(60):
                expected = mpmath.diff(
                    lambda v, i=i, row=row: mpmath.log(below(*row[:i], v, *row[i + 1 :])), row[i]
                )
            assert_close(g, float(expected), rtol=1e-10)


def test_a_soft_laplace_number_has_small_tails_on_both_sides():
    loc, scale, asymmetry, softness = 0.3, 1.5, 0.6, 1e-9
    soft, left, right = scale * softness, scale * asymmetry, scale / asymmetry
    x = loc + np.array([-40.0, -1.0, -3e-9, 0.0, 3e-9, 1.0, 60.0])
    d = dist.SoftAsymmetricLaplace(loc, scale, asymmetry, softness)
    found = d.log_cdf(tensor(x)).numpy(), d.log_survival(tensor(x)).numpy()
    with mpmath.workdps(50):
        for i, at in enumerate(x):
            z = mpf(float(at)) - mpf(loc)
            # Numbers of the side below are minus an exponential one, plus the normal.
            p = mpf(right) * below(z, soft, right) + mpf(left) * (1 - below(-z, soft, left))
            p /= mpf(left) + mpf(right)
            assert abs(found[0][i] - mpmath.log(p)) <= 1e-12 * max(1, abs(mpmath.log(p)))
            assert abs(found[1][i] - mpmath.log1p(-p)) <= 1e-12 * max(1, abs(mpmath.log1p(-p)))
