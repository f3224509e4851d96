"""Five models with one mistake each, which the comparison with the reference has to notice.

Two are gross; the others are of the size that a rule of thumb such as "a quarter of a standard
deviation" would let through. `MUTANTS` maps a name to ``(posterior, model)``.
"""

from probtorch import deterministic, exp, float64, plate, sample, sqrt, tensor
from probtorch.distributions import (
    Gamma,
    HalfCauchy,
    HalfNormal,
    MultivariateNormal,
    Normal,
    Uniform,
    constraints,
)
from tests.posteriordb.models import autoregression, flat, kidscore


def narrow_prior(J, y, sigma):
    """Eight schools with prior scale 4 for tau instead of 5."""
    mu = sample("mu", Normal(0.0, 5.0))
    tau = sample("tau", HalfCauchy(4.0))
    with plate("school", J):
        z = sample("z", Normal(0.0, 1.0))
        theta = deterministic("theta", mu + tau * z)
        sample("y", Normal(theta, sigma), obs=y)


def rows_dropped(K, T, y):
    """The autoregression without its first five rows."""
    autoregression(K, T - 5, y[5:])


def no_jacobian(T, y, sigma1):
    """Garch with density 1 / (1 - alpha1) for beta1: it cancels the log-det of the bound."""
    mu = sample("mu", flat())
    alpha0 = sample("alpha0", flat(support=constraints.positive))
    alpha1 = sample("alpha1", flat(support=constraints.unit_interval))
    beta1 = sample("beta1", Uniform(0.0, 1.0 - alpha1))
    scale = tensor(sigma1)
    for t in range(T):
        if t > 0:
            scale = sqrt(alpha0 + alpha1 * (y[t - 1] - mu) ** 2 + beta1 * scale**2)
        sample(f"y_{t}", Normal(mu, scale), obs=y[t])


def squared_noise(N, x, y, k):
    """The Gaussian process with sigma squared on the diagonal instead of sigma."""
    rho = sample("rho", Gamma(25.0, 4.0))
    alpha = sample("alpha", HalfNormal(2.0))
    sigma = sample("sigma", HalfNormal(1.0))
    distance = (x.unsqueeze(-1) - x) / rho
    eye = tensor([[float(i == j) for j in range(N)] for i in range(N)], dtype=float64)
    covariance = alpha**2 * exp(-0.5 * distance**2) + sigma**2 * eye
    sample("y", MultivariateNormal(0.0 * y, covariance), obs=y)


def rounded_data(N, kid_score, mom_hs, mom_iq, **new):
    """The regression on scores that were cut to whole tens."""
    kidscore(N, 10.0 * (kid_score / 10.0).floor(), mom_hs, mom_iq)


MUTANTS = {
    "narrow prior": ("eight_schools-eight_schools_noncentered", narrow_prior),
    "rows dropped": ("arK-arK", rows_dropped),
    "no jacobian": ("garch-garch11", no_jacobian),
    "squared noise": ("gp_pois_regr-gp_regr", squared_noise),
    "rounded data": ("kidiq-kidscore_interaction", rounded_data),
}
