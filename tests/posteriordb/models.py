"""Twelve real posteriors, written the way a user would: plain Python, loops over time included.

Each model takes the entries of its data file as keyword arguments. Priors that the source leaves
flat are `ImproperUniform`. `MODELS` maps the posterior's name to its model; the numbers they must
reproduce are in ../shared/posteriordb.
"""

import numpy as np

from probtorch import (
    deterministic,
    exp,
    factor,
    log,
    logsumexp,
    plate,
    sample,
    sqrt,
    stack,
    tensor,
)
from probtorch.distributions import (
    Beta,
    Categorical,
    Gamma,
    HalfCauchy,
    HalfNormal,
    ImproperUniform,
    LogNormal,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    TruncatedNormal,
    constraints,
)
from probtorch.ode import odeint


def flat(size=None, support=constraints.real):
    """A flat prior over `support`: for one number, or for a vector of `size`."""
    if size is None:
        return ImproperUniform(support)
    return ImproperUniform(constraints.independent(support, 1), (), (size,))


def eight_schools(J, y, sigma):
    mu = sample("mu", Normal(0.0, 5.0))
    tau = sample("tau", HalfCauchy(5.0))
    with plate("school", J):
        z = sample("z", Normal(0.0, 1.0))
        theta = deterministic("theta", mu + tau * z)
        sample("y", Normal(theta, sigma), obs=y)


def autoregression(K, T, y):
    alpha = sample("alpha", Normal(0.0, 10.0))
    with plate("lag", K):
        beta = sample("beta", Normal(0.0, 10.0))
    sigma = sample("sigma", HalfCauchy(2.5))
    for t in range(K, T):
        mean = alpha
        for k in range(K):
            mean = mean + beta[k] * y[t - k - 1]
        sample(f"y_{t}", Normal(mean, sigma), obs=y[t])


def garch(T, y, sigma1):
    mu = sample("mu", flat())
    alpha0 = sample("alpha0", flat(support=constraints.positive))
    alpha1 = sample("alpha1", flat(support=constraints.unit_interval))
    beta1 = sample("beta1", flat(support=constraints.interval(0.0, 1.0 - alpha1)))
    scale = tensor(sigma1)
    for t in range(T):
        if t > 0:
            scale = sqrt(alpha0 + alpha1 * (y[t - 1] - mu) ** 2 + beta1 * scale**2)
        sample(f"y_{t}", Normal(mu, scale), obs=y[t])


def hidden_markov(N, K, y):
    rows = [
        sample(f"theta{k + 1}", ImproperUniform(constraints.simplex, (), (K,))) for k in range(K)
    ]
    mu = sample("mu", ImproperUniform(constraints.positive_ordered_vector, (), (K,)))
    factor("mu_prior", Normal(tensor([3.0, 10.0]), 1.0).log_prob(mu).sum())
    transition = log(stack(rows))
    forward = Normal(mu, 1.0).log_prob(y[0])
    for t in range(1, N):
        forward = logsumexp(forward.unsqueeze(-1) + transition, 0) + Normal(mu, 1.0).log_prob(y[t])
    factor("y", logsumexp(forward, 0))


def gaussian_process(N, x, y, k):
    rho = sample("rho", Gamma(25.0, 4.0))
    alpha = sample("alpha", HalfNormal(2.0))
    sigma = sample("sigma", HalfNormal(1.0))
    distance = (x.unsqueeze(-1) - x) / rho
    covariance = alpha**2 * exp(-0.5 * distance**2) + sigma * tensor(np.eye(N))
    sample("y", MultivariateNormal(tensor(np.zeros(N)), covariance), obs=y)


def lotka_volterra(N, ts, y_init, y):
    theta = [
        sample(f"theta_{i + 1}", TruncatedNormal(mean, sd, low=0.0))
        for i, (mean, sd) in enumerate([(1.0, 0.5), (0.05, 0.05), (1.0, 0.5), (0.05, 0.05)])
    ]
    with plate("species", 2):
        z_init = sample("z_init", LogNormal(np.log(10.0), 1.0))
        sigma = sample("sigma", LogNormal(-1.0, 1.0))
        sample("y_init", LogNormal(log(z_init), sigma), obs=y_init)

    def slope(t, z):
        u, v = z[0], z[1]
        return stack([(theta[0] - theta[1] * v) * u, (theta[3] * u - theta[2]) * v])

    times = tensor(np.concatenate([[0.0], np.asarray(ts, np.float64)]))
    states = odeint(slope, z_init, times, rtol=1e-9, atol=1e-9)[1:]
    with plate("species", 2), plate("year", N, dim=-2):
        sample("y", LogNormal(log(states), sigma), obs=y)


def gauss_mixture(N, y):
    mu = sample("mu", ImproperUniform(constraints.ordered_vector, (), (2,)))
    factor("mu_prior", Normal(0.0, 2.0).log_prob(mu).sum())
    with plate("component", 2):
        sigma = sample("sigma", HalfNormal(2.0))
    theta = sample("theta", Beta(5.0, 5.0))
    weights = Categorical(probs=stack([theta, 1.0 - theta]))
    with plate("row", N):
        sample("y", MixtureSameFamily(weights, Normal(mu, sigma)), obs=y)


def bayesian_regression(N, D, X, y):
    with plate("covariate", D):
        beta = sample("beta", Normal(0.0, 10.0))
    sigma = sample("sigma", HalfNormal(10.0))
    with plate("row", N):
        sample("y", Normal(X @ beta, sigma), obs=y)


def kidscore(N, kid_score, mom_hs, mom_iq, **new):
    beta = sample("beta", flat(4))
    sigma = sample("sigma", HalfCauchy(2.5))
    mean = beta[0] + beta[1] * mom_hs + beta[2] * mom_iq + beta[3] * mom_hs * mom_iq
    with plate("child", N):
        sample("kid_score", Normal(mean, sigma), obs=kid_score)


def nes(N, partyid7, real_ideo, race_adj, age_discrete, educ1, gender, income, year):
    beta = sample("beta", flat(9))
    sigma = sample("sigma", flat(support=constraints.positive))
    mean = beta[0] + beta[1] * real_ideo + beta[2] * race_adj
    for i, age in enumerate((2, 3, 4)):
        mean = mean + beta[3 + i] * (age_discrete == age)
    mean = mean + beta[6] * educ1 + beta[7] * gender + beta[8] * income
    with plate("voter", N):
        sample("partyid7", Normal(mean, sigma), obs=partyid7)


def logearn(N, earn, height, male):
    beta = sample("beta", flat(3))
    sigma = sample("sigma", flat(support=constraints.positive))
    with plate("person", N):
        mean = beta[0] + beta[1] * height + beta[2] * male
        sample("log_earn", Normal(mean, sigma), obs=log(earn))


def mesquite(N, weight, diam1, diam2, canopy_height, total_height, group, density):
    beta = sample("beta", flat(6))
    sigma = sample("sigma", flat(support=constraints.positive))
    columns = [
        log(diam1 * diam2 * canopy_height),
        log(diam1 * diam2),
        log(diam1 / diam2),
        log(total_height),
        group,
    ]
    mean = beta[0]
    for i, column in enumerate(columns):
        mean = mean + beta[i + 1] * column
    with plate("bush", N):
        sample("log_weight", Normal(mean, sigma), obs=log(weight))


MODELS = {
    "eight_schools-eight_schools_noncentered": eight_schools,
    "arK-arK": autoregression,
    "garch-garch11": garch,
    "hmm_example-hmm_example": hidden_markov,
    "gp_pois_regr-gp_regr": gaussian_process,
    "hudson_lynx_hare-lotka_volterra": lotka_volterra,
    "low_dim_gauss_mix-low_dim_gauss_mix": gauss_mixture,
    "sblri-blr": bayesian_regression,
    "kidiq-kidscore_interaction": kidscore,
    "nes1980-nes": nes,
    "earnings-logearn_height_male": logearn,
    "mesquite-logmesquite_logvash": mesquite,
}


def as_arguments(data):
    """Data as the models take them: arrays as float64 tensors, sizes as they are."""
    return {
        name: tensor(np.array(value, np.float64))
        if isinstance(value, (list, np.ndarray))
        else value
        for name, value in data.items()
    }
