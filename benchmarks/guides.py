"""Which guide for which posterior: bound, error and time of every family on small models.

Each guide is fitted by the same recipe (Adam, ten particles, a step size that shrinks a
hundredfold) and compared with a long run of NUTS. Printed for each: the bound in nats, estimated
from 10 000 draws; Pareto k; the largest error of a posterior mean, in posterior standard
deviations; the range of quotients of standard deviations (below 1: the guide is too narrow); the
seconds of the first three steps, in which they are recorded and compiled; and of all others.

Run as ``python -m benchmarks.guides``; it takes some minutes on one core.
"""

from benchmarks.machine import describe, restrict_to_one_core

restrict_to_one_core()

import time  # noqa: E402 - after the thread settings, on principle
import warnings  # noqa: E402

import numpy as np  # noqa: E402

import probtorch  # noqa: E402
import probtorch.distributions as dist  # noqa: E402
from probtorch.distributions.transforms import (  # noqa: E402
    ComposeTransformModule,
    permute,
    spline_coupling,
)
from probtorch.infer import (  # noqa: E402
    MCMC,
    NUTS,
    SVI,
    AutoIAFNormal,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
    AutoNormalizingFlow,
    AutoStructured,
    GuideWarning,
    Trace_ELBO,
)
from probtorch.optim import Adam, PyroLRScheduler  # noqa: E402
from probtorch.optim.lr_scheduler import ExponentialLR  # noqa: E402

STEPS, FIRST = 3000, 3
DRAWS = 10_000


def eight_schools(y, sigma):
    """Effects of coaching, non-centred (Rubin 1981)."""
    mu = probtorch.sample("mu", dist.Normal(0.0, 5.0))
    tau = probtorch.sample("tau", dist.HalfCauchy(5.0))
    with probtorch.plate("school", 8):
        z = probtorch.sample("z", dist.Normal(0.0, 1.0))
        probtorch.sample("y", dist.Normal(mu + tau * z, sigma), obs=y)


def regression(x, y):
    """Logistic regression on correlated columns."""
    with probtorch.plate("column", x.shape[1]):
        beta = probtorch.sample("beta", dist.Normal(0.0, 2.0))
    with probtorch.plate("row", len(y)):
        probtorch.sample("y", dist.Bernoulli(logits=beta @ x.mT), obs=y)


def groups(y, group, count):
    """Means of groups around a common one, centred, with the spreads unknown."""
    mu = probtorch.sample("mu", dist.Normal(0.0, 5.0))
    tau = probtorch.sample("tau", dist.HalfNormal(2.0))
    sigma = probtorch.sample("sigma", dist.HalfNormal(2.0))
    with probtorch.plate("group", count):
        theta = probtorch.sample("theta", dist.Normal(mu, tau))
    with probtorch.plate("row", len(y)):
        probtorch.sample("y", dist.Normal(theta[..., group], sigma), obs=y)


def banana():
    """Two numbers, one the square of the other plus noise; no data."""
    x = probtorch.sample("x", dist.Normal(0.0, 1.0))
    probtorch.sample("y", dist.Normal(x * x, 0.5))


def problems():
    """Yield ``(name, model, arguments)``."""
    y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    sigma = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
    yield "eight schools (10)", eight_schools, (probtorch.tensor(y), probtorch.tensor(sigma))
    rng = np.random.default_rng(1)
    x = rng.standard_normal((150, 6)) + 1.5 * rng.standard_normal((150, 1))
    p = 1.0 / (1.0 + np.exp(-x @ np.array([0.5, -0.5, 0.3, 0.0, -0.3, 0.2])))
    data = (rng.random(150) < p).astype(float)
    yield "logistic regression (6)", regression, (probtorch.tensor(x), probtorch.tensor(data))
    group = np.repeat(np.arange(12), 6)
    y = 1.0 + rng.standard_normal(12)[group] + rng.standard_normal(72)
    yield "groups (15)", groups, (probtorch.tensor(y), probtorch.tensor(group), 12)
    yield "banana (2)", banana, ()


def couplings(dim):
    """Three spline couplings, with the order turned around between them."""
    turned = [permute(dim, range(dim)[::-1]) for _ in range(2)]
    first, second, third = (spline_coupling(dim) for _ in range(3))
    return ComposeTransformModule([first, turned[0], second, turned[1], third])


GUIDES = {
    "AutoNormal": AutoNormal,
    "AutoStructured, normal": lambda m: AutoStructured(m, conditionals="normal"),
    "AutoStructured, mvn": AutoStructured,
    "AutoLowRankMultivariateNormal": AutoLowRankMultivariateNormal,
    "AutoMultivariateNormal": AutoMultivariateNormal,
    "AutoIAFNormal, 2 flows": lambda m: AutoIAFNormal(m, num_transforms=2),
    "3 spline couplings": lambda m: AutoNormalizingFlow(m, couplings),
}


def fitted(model, guide, args):
    """Fit a guide; return the result, the seconds of first and other steps, and the bound."""
    is_flow = isinstance(guide, AutoNormalizingFlow)
    gamma = 0.01 ** (1.0 / STEPS)
    settings = {"optimizer": Adam, "optim_args": {"lr": 0.02 if is_flow else 0.05}, "gamma": gamma}
    optim = PyroLRScheduler(ExponentialLR, settings)
    svi = SVI(model, guide, optim, Trace_ELBO(10, vectorize_particles=True), seed=0)
    seconds = []
    for steps in (FIRST, STEPS - FIRST):
        start = time.perf_counter()
        result = svi.run(steps, *args, progress_bar=False, callback=lambda i, loss: optim.step())
        seconds.append(time.perf_counter() - start)
    judge = SVI(model, guide, Adam({}), Trace_ELBO(DRAWS, vectorize_particles=True), seed=1)
    judge.params = result.svi.params
    return result, seconds, -judge.evaluate_loss(*args)


def compared(draws, exact):
    """Return the largest error of a mean and the range of quotients of standard deviations."""
    errors, ratios = [], []
    for name, reference in exact.items():
        found = draws.posterior[name].reshape(-1, *reference.shape[1:])
        sd = reference.std(axis=0)
        errors.append(np.abs(found.mean(axis=0) - reference.mean(axis=0)) / sd)
        ratios.append(found.std(axis=0) / sd)
    ratios = np.concatenate([np.ravel(r) for r in ratios])
    return max(float(np.max(e)) for e in errors), float(ratios.min()), float(ratios.max())


def main() -> None:
    """Print one table per model."""
    warnings.simplefilter("ignore", GuideWarning)
    print(describe(("numpy", "scipy", "llvmlite", "probtorch")))
    for name, model, args in problems():
        sampler = MCMC(
            NUTS(model, target_accept_prob=0.95),
            5000,
            1000,
            num_chains=4,
            seed=0,
            progress_bar=False,
        )
        sampler.run(*args)
        exact = {n: x.reshape(-1, *x.shape[2:]) for n, x in sampler.draws.posterior.items()}
        print(f"\n{name}\n")
        print("| guide | bound | k | error of means | quotients of sds | compiling, s | steps, s |")
        print("|---|---|---|---|---|---|---|")
        for label, make in GUIDES.items():
            guide = make(model)
            result, seconds, bound = fitted(model, guide, args)
            draws = result.draws(DRAWS)
            error, low, high = compared(draws, exact)
            k = draws.attrs["pareto_k"]
            print(
                f"| {label} | {bound:.2f} | {k:.2f} | {error:.2f} | {low:.2f} to {high:.2f} | "
                f"{seconds[0]:.1f} | {seconds[1]:.1f} |"
            )


if __name__ == "__main__":
    main()
