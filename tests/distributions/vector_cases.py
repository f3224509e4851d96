"""Entries of normal vectors with a structure or a gradient of their own, as in cases.py."""

import numpy as np
from scipy import special, stats

import probtorch.distributions as dist
from probtorch.tensor import tensor
from tests.distributions.cases import Case, Rows, _mvn, _outer

__all__ = ["VECTORS"]


class ScaleMixture:
    """A mixture of normal vectors of mean 0 and several sizes."""

    def __init__(self, coord, logits, sizes):
        self.log_p = logits - special.logsumexp(logits)
        self.parts = [
            stats.multivariate_normal(np.zeros(2), np.diag((s * coord) ** 2)) for s in sizes
        ]

    def logpdf(self, x):
        return special.logsumexp([p + f.logpdf(x) for p, f in zip(self.log_p, self.parts)])


class MixedNormal:
    """A mixture of normal numbers of mean 0, over a batch."""

    def __init__(self, log_p, sizes):
        self.p, self.sizes = np.exp(log_p), sizes

    def cdf(self, x):
        return (self.p * stats.norm(0, self.sizes).cdf(np.asarray(x)[..., None])).sum(-1)


def _scale_mixture(p):
    log_p = special.log_softmax(p.component_logits, -1)

    def marginals(x):
        spread = lambda c: p.component_scale * c[:, None]
        each = [(x[..., k], MixedNormal(log_p, spread(p.coord_scale[:, k]))) for k in range(2)]
        return [
            *each,
            (
                x @ [0.6, -1.1],
                MixedNormal(log_p, spread(np.hypot(*(p.coord_scale * [0.6, -1.1]).T))),
            ),
        ]

    rows = zip(p.coord_scale, p.component_logits, p.component_scale, strict=True)
    return Rows([ScaleMixture(*row) for row in rows], marginals)


def _circulant(n, row):
    """Covariances between places on a circle, from those with the first."""
    return np.stack([[np.roll(r, k) for k in range(n)] for r in row])


def _spectrum(p):
    row = np.fft.irfft(p.covariance_rfft, 2)
    return _mvn(p.loc, _circulant(2, row))


GROUPS = np.array([1, 0, 1])


def _grouped(p):
    scale = p.prior_scale[:, GROUPS]
    together = (GROUPS[:, None] == GROUPS) * scale[:, :, None] * scale[:, None, :]
    cov = together + p.obs_scale[:, :, None] ** 2 * np.eye(3)
    loc, weights = p.prior_loc[:, GROUPS], np.array([0.6, -1.1, 0.4])
    sd = np.sqrt(np.einsum("i,bij,j->b", weights, cov, weights))
    marginals = lambda x: [(x @ weights, stats.norm(loc @ weights, sd))]
    return Rows([stats.multivariate_normal(m, c) for m, c in zip(loc, cov)], marginals)


VECTORS = [
    Case(
        dist.OMTMultivariateNormal,
        ("loc", "scale_tril"),
        lambda p: _mvn(p.loc, _outer(p.scale_tril)),
        sizes={"loc": (2,), "scale_tril": (2, 2)},
    ),
    Case(
        dist.AVFMultivariateNormal,
        ("loc", "scale_tril"),
        lambda p: _mvn(p.loc, _outer(p.scale_tril)),
        {"control_var": tensor(np.array([[[0.4, -0.3]], [[0.2, 0.5]]]))},
        {"loc": (2,), "scale_tril": (2, 2)},
    ),
    Case(
        dist.GaussianScaleMixture,
        ("coord_scale", "component_logits", "component_scale"),
        _scale_mixture,
        sizes={"coord_scale": (2,), "component_logits": (3,), "component_scale": (3,)},
    ),
    Case(
        dist.CirculantNormal,
        ("loc", "covariance_rfft"),
        _spectrum,
        sizes={"loc": (2,), "covariance_rfft": (2,)},
    ),
    Case(
        dist.CirculantNormal,
        ("loc",),
        lambda p: _mvn(p.loc, _circulant(2, [p.covariance_row] * 3)),
        {"covariance_row": tensor(np.array([1.3, 0.4]))},
        {"loc": (2,)},
    ),
    Case(
        dist.GroupedNormalNormal,
        ("prior_loc", "prior_scale", "obs_scale"),
        _grouped,
        {"group_idx": GROUPS},
        {"prior_loc": (2,), "prior_scale": (2,), "obs_scale": (3,)},
    ),
]
