"""Entries of distributions that PyMC, Stan and TFP have beyond the usual libraries."""

import numpy as np
from scipy import special, stats

import probtorch.distributions as dist
from tests.distributions.cases import Case
from tests.distributions.references import Masses, Stated

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


RAREST = [
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
