"""Entries of distributions that PyMC, Stan and TFP have beyond the usual libraries."""

import numpy as np
from scipy import special, stats

import probtorch.distributions as dist
from tests.distributions.cases import Case, Rows, _outer
from tests.distributions.references import Masses, Stated, Vector, on_line

__all__ = ["RAREST"]


def _zipf(s):
    zeta = special.zeta
    raw = lambda k: np.where(s > k + 1, zeta(np.where(s > k + 1, s - k, 3.0)) / zeta(s), np.inf)
    square = lambda: np.where(s > 3, raw(2) - np.where(s > 3, raw(1), 0.0) ** 2, np.inf)
    sf = lambda k: np.where(k < 1, 1.0, zeta(s, np.maximum(np.floor(k), 0) + 1) / zeta(s))
    return Stated(
        None,
        logpmf=lambda k: -s * np.log(k) - np.log(zeta(s)),
        cdf=lambda k: 1 - sf(k),
        sf=sf,
        ppf=lambda q: np.full(len(s), 3000.0),
        mean=lambda: raw(1),
        var=square,
    )


def _generalized_poisson(m, c):
    def logpmf(k):
        rate = m + k * c
        return np.log(m) + (k - 1) * np.log(rate) - rate - special.gammaln(k + 1)

    return Masses(logpmf, top=3000)


def _inverse_gaussian_mixture(p):
    scaled = p.tailweight * p.scale, p.skewness_ * p.scale
    return on_line(stats.norminvgauss(*scaled, p.loc, p.scale).logpdf)


def _laplace_vectors(p):
    cov = _outer(p.scale_tril)
    sd = np.sqrt(np.diagonal(cov, 0, -2, -1))

    def logpdf(m, c):
        n = len(m)
        order, size = 1 - n / 2, np.log(2) - n / 2 * np.log(2 * np.pi) - np.linalg.slogdet(c)[1] / 2

        def log(x):
            q = (x - m) @ np.linalg.solve(c, x - m)
            return size + order / 2 * np.log(q / 2) + np.log(special.kv(order, np.sqrt(2 * q)))

        return Vector(log)

    marginals = lambda x: [
        (x[..., k], stats.laplace(p.loc[:, k], sd[:, k] / np.sqrt(2))) for k in range(2)
    ]
    return Rows([logpdf(m, c) for m, c in zip(p.loc, cov, strict=True)], marginals)


RAREST = [
    Case(
        dist.NormalInverseGaussian,
        ("loc", "scale", "tailweight", "skewness_"),
        _inverse_gaussian_mixture,
        coupled=False,
        costly=True,
    ),
    Case(
        dist.MultivariateLaplace,
        ("loc", "scale_tril"),
        _laplace_vectors,
        sizes={"loc": (2,), "scale_tril": (2, 2)},
        narrow=True,
        coupled=False,
    ),
    Case(
        dist.Rice,
        ("nu", "scale"),
        lambda p: stats.rice(p.nu / p.scale, scale=p.scale),
        coupled=False,
    ),
    Case(
        dist.NoncentralChi2,
        ("df", "nc"),
        lambda p: stats.ncx2(p.df, p.nc),
        coupled=False,
        costly=True,
    ),
    Case(
        dist.NoncentralT,
        ("df", "nc", "loc", "scale"),
        lambda p: stats.nct(p.df, p.nc, p.loc, p.scale),
        coupled=False,
        costly=True,
    ),
    Case(dist.Zipf, ("power",), lambda p: _zipf(p.power), least={"power": 5.0}),
    Case(
        dist.GeneralizedPoisson,
        ("rate", "excess"),
        lambda p: _generalized_poisson(p.rate, p.excess),
        costly=True,
    ),
]
