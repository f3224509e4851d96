"""The same posteriors in NumPy and SciPy alone, and made-up data to evaluate them on.

Each density takes the flat unconstrained vector, in the order of the model's sites, with the
bijections written out: x = exp(q) for positive numbers, x = a + (b - a) sigmoid(q) for intervals,
increments exp(q) for ordered vectors, x = (s, 1 - s) with s = sigmoid(q) for a simplex of two.
Nothing of the package is used.
"""

import numpy as np
from scipy import stats
from scipy.integrate import solve_ivp
from scipy.special import expit, log_expit, logsumexp

normal = stats.norm.logpdf


def eight_schools(q, J, y, sigma):
    mu, tau, z = q[0], np.exp(q[1]), q[2:]
    prior = normal(mu, 0, 5) + stats.halfcauchy.logpdf(tau, 0, 5) + q[1] + normal(z).sum()
    return prior + normal(y, mu + tau * z, sigma).sum()


def autoregression(q, K, T, y):
    alpha, beta, sigma = q[0], q[1 : 1 + K], np.exp(q[-1])
    lags = np.stack([y[K - 1 - k : T - 1 - k] for k in range(K)], -1)
    prior = normal(alpha, 0, 10) + normal(beta, 0, 10).sum()
    prior += stats.halfcauchy.logpdf(sigma, 0, 2.5) + q[-1]
    return prior + normal(y[K:], alpha + lags @ beta, sigma).sum()


def garch(q, T, y, sigma1):
    mu, alpha0, alpha1 = q[0], np.exp(q[1]), expit(q[2])
    beta1 = (1 - alpha1) * expit(q[3])
    log_det = q[1] + log_expit(q[2]) + log_expit(-q[2])
    log_det += np.log(1 - alpha1) + log_expit(q[3]) + log_expit(-q[3])
    variance = np.empty(T)
    variance[0] = sigma1**2
    for t in range(1, T):
        variance[t] = alpha0 + alpha1 * (y[t - 1] - mu) ** 2 + beta1 * variance[t - 1]
    return log_det + normal(y, mu, np.sqrt(variance)).sum()


def hidden_markov(q, N, K, y):
    rows = np.stack([[expit(q[0]), expit(-q[0])], [expit(q[1]), expit(-q[1])]])
    mu = np.cumsum(np.exp(q[2:]))
    log_det = (log_expit(q[:2]) + log_expit(-q[:2])).sum() + q[2:].sum()
    prior = normal(mu, [3, 10], 1).sum()
    # Sum over all paths by products of matrices, scaled at each step.
    total, state = 0.0, np.ones(2)
    for t in range(N):
        state = (state if t == 0 else state @ rows) * np.exp(normal(y[t], mu, 1))
        total += np.log(state.sum())
        state = state / state.sum()
    return log_det + prior + total


def gaussian_process(q, N, x, y, k):
    rho, alpha, sigma = np.exp(q)
    cov = alpha**2 * np.exp(-((x[:, None] - x) ** 2) / (2 * rho**2)) + sigma * np.eye(N)
    prior = stats.gamma.logpdf(rho, 25, scale=1 / 4)
    prior += stats.halfnorm.logpdf(alpha, 0, 2) + stats.halfnorm.logpdf(sigma, 0, 1)
    return q.sum() + prior + stats.multivariate_normal.logpdf(y, np.zeros(N), cov)


def lotka_volterra(q, N, ts, y_init, y):
    th = np.exp(q[:4])
    z, sigma = np.exp(q[4:6]), np.exp(q[6:8])
    prior = normal(th, [1, 0.05, 1, 0.05], [0.5, 0.05, 0.5, 0.05]).sum()
    prior += stats.lognorm.logpdf(z, 1, 0, 10).sum()
    prior += stats.lognorm.logpdf(sigma, 1, 0, np.exp(-1)).sum()
    total = stats.lognorm.logpdf(y_init, sigma, 0, z).sum()

    def slope(t, s):
        return [(th[0] - th[1] * s[1]) * s[0], (th[3] * s[0] - th[2]) * s[1]]

    solved = solve_ivp(slope, (0, ts[-1]), z, "DOP853", ts, rtol=1e-11, atol=1e-11)
    total += stats.lognorm.logpdf(y, sigma, 0, solved.y.T).sum()
    return q.sum() + prior + total


def gauss_mixture(q, N, y):
    mu = np.array([q[0], q[0] + np.exp(q[1])])
    sigma, theta = np.exp(q[2:4]), expit(q[4])
    log_det = q[1] + q[2:4].sum() + log_expit(q[4]) + log_expit(-q[4])
    prior = normal(mu, 0, 2).sum() + stats.halfnorm.logpdf(sigma, 0, 2).sum()
    prior += stats.beta.logpdf(theta, 5, 5)
    parts = np.log([theta, 1 - theta]) + normal(y[:, None], mu, sigma)
    return log_det + prior + logsumexp(parts, axis=1).sum()


def bayesian_regression(q, N, D, X, y):
    beta, sigma = q[:D], np.exp(q[D])
    prior = normal(beta, 0, 10).sum() + stats.halfnorm.logpdf(sigma, 0, 10) + q[D]
    return prior + normal(y, X @ beta, sigma).sum()


def kidscore(q, N, kid_score, mom_hs, mom_iq):
    design = np.stack([np.ones(N), mom_hs, mom_iq, mom_hs * mom_iq], 1)
    prior = stats.halfcauchy.logpdf(np.exp(q[4]), 0, 2.5)
    return prior + _regression(q, design, kid_score)


def nes(q, N, partyid7, real_ideo, race_adj, age_discrete, educ1, gender, income, year):
    ages = [age_discrete == age for age in (2, 3, 4)]
    columns = [np.ones(N), real_ideo, race_adj, *ages, educ1, gender, income]
    return _regression(q, np.stack(columns, 1), partyid7)


def logearn(q, N, earn, height, male):
    return _regression(q, np.stack([np.ones(N), height, male], 1), np.log(earn))


def mesquite(q, N, weight, diam1, diam2, canopy_height, total_height, group, density):
    columns = [np.ones(N), np.log(diam1 * diam2 * canopy_height), np.log(diam1 * diam2)]
    columns += [np.log(diam1 / diam2), np.log(total_height), group]
    return _regression(q, np.stack(columns, 1), np.log(weight))


def _regression(q, design, y):
    """Flat priors on the coefficients and on sigma = exp(q[-1])."""
    return q[-1] + normal(y, design @ q[:-1], np.exp(q[-1])).sum()


DENSITIES = {
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

# What `made_up` draws: N(0, 1) for "n", positive numbers for "p", indicators for "b", 1 to 4 for
# "i".
_COLUMNS = {
    "kidiq-kidscore_interaction": {"kid_score": "n", "mom_hs": "b", "mom_iq": "p"},
    "nes1980-nes": {
        "partyid7": "i", "real_ideo": "i", "race_adj": "p", "age_discrete": "i", "educ1": "i",
        "gender": "b", "income": "i", "year": "i",
    },
    "earnings-logearn_height_male": {"earn": "p", "height": "p", "male": "b"},
    "mesquite-logmesquite_logvash": {
        "weight": "p", "diam1": "p", "diam2": "p", "canopy_height": "p", "total_height": "p",
        "group": "b", "density": "i",
    },
}  # fmt: skip


def made_up(name, rng):
    """Data of the right kind and small size for the posterior `name`."""
    n = 12
    if name in _COLUMNS:
        draw = {
            "n": lambda: rng.normal(size=n),
            "p": lambda: rng.gamma(3.0, 1.0, size=n) + 0.1,
            "b": lambda: rng.integers(0, 2, size=n).astype(float),
            "i": lambda: rng.integers(1, 5, size=n).astype(float),
        }
        return {"N": n} | {column: draw[kind]() for column, kind in _COLUMNS[name].items()}
    y = rng.normal(size=n)
    return {
        "eight_schools-eight_schools_noncentered": {
            "J": n, "y": 10 * y, "sigma": rng.uniform(9, 18, size=n),
        },
        "arK-arK": {"K": 3, "T": n, "y": y},
        "garch-garch11": {"T": n, "y": 5 + y, "sigma1": 0.5},
        "hmm_example-hmm_example": {"N": n, "K": 2, "y": 3 + 7 * (y > 0) + rng.normal(size=n)},
        "gp_pois_regr-gp_regr": {"N": n, "x": np.linspace(-10, 10, n), "y": y, "k": np.ones(n)},
        "hudson_lynx_hare-lotka_volterra": {
            "N": 3, "ts": np.arange(1.0, 4.0), "y_init": np.array([30.0, 4.0]),
            "y": rng.uniform(5, 60, size=(3, 2)),
        },
        "low_dim_gauss_mix-low_dim_gauss_mix": {"N": n, "y": 3 * y},
        "sblri-blr": {"N": n, "D": 5, "X": rng.normal(size=(n, 5)), "y": y},
    }[name]  # fmt: skip
