"""Varying intercepts: what drives investment in eleven firms over twenty years (Grunfeld 1958).

Each firm has a level of its own, drawn from a common distribution; the slopes are shared. Run it
with ``python models/varying_intercepts/model.py``; the data come with statsmodels.
"""

import argparse
from pathlib import Path

import numpy as np

import probtorch
import probtorch.distributions as dist
from probtorch.infer import MCMC, NUTS


def load():
    """Return firms' names, the firm of each row, and investment, value and capital, all as logs."""
    from statsmodels.datasets import grunfeld

    table = grunfeld.load_pandas().data
    firms, firm = np.unique(table["firm"].to_numpy(str), return_inverse=True)
    columns = (np.log(table[name].to_numpy(float)) for name in ("invest", "value", "capital"))
    return list(firms), firm, *columns


def model(firms, firm, value, capital, invest=None):
    """log(invest) = level of the firm + elasticity of value and of capital + noise."""
    mu = probtorch.sample("mu", dist.Normal(0.0, 5.0))
    tau = probtorch.sample("tau", dist.HalfNormal(2.0))
    with probtorch.plate("firm", coords=firms):
        # Centred: twenty rows per firm say much about its level. With few rows, write it as
        # mu + tau * z with z ~ Normal(0, 1), as the eight schools do.
        level = probtorch.sample("level", dist.Normal(mu, tau))
    by_value = probtorch.sample("by_value", dist.Normal(0.0, 2.0))
    by_capital = probtorch.sample("by_capital", dist.Normal(0.0, 2.0))
    sigma = probtorch.sample("sigma", dist.HalfNormal(2.0))
    with probtorch.plate("row", len(firm)):
        mean = level[firm] + by_value * value + by_capital * capital
        probtorch.sample("invest", dist.Normal(mean, sigma), obs=invest)


def figure(draws, firms, path):
    """Draw the firms' levels with 90 % intervals, from low to high."""
    from matplotlib.figure import Figure

    level = draws.posterior["level"].reshape(-1, len(firms))
    low, middle, high = np.quantile(level, [0.05, 0.5, 0.95], axis=0)
    order = np.argsort(middle)
    rows = np.arange(len(firms))
    canvas = Figure(figsize=(7, 4), layout="constrained")
    axes = canvas.subplots()
    axes.errorbar(
        middle[order], rows, xerr=[(middle - low)[order], (high - middle)[order]], fmt="o",
        capsize=3,
    )  # fmt: skip
    axes.axvline(draws.posterior["mu"].mean(), color="0.6", linewidth=0.8, linestyle="--")
    axes.set_yticks(rows, np.array(firms)[order])
    axes.set_xlabel("level of log investment at given value and capital, with 90 % intervals")
    axes.spines[["top", "right"]].set_visible(False)
    canvas.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--warmup", type=int, default=1000, help="iterations per chain")
    parser.add_argument("--draws", type=int, default=1000, help="per chain")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the files")
    settings = parser.parse_args()

    firms, firm, invest, value, capital = load()
    # Centred covariates: the level is then that of a typical year, and hardly depends on the
    # slopes.
    value, capital = value - value.mean(), capital - capital.mean()
    mcmc = MCMC(
        NUTS(model),
        num_samples=settings.draws,
        warmup_steps=settings.warmup,
        num_chains=settings.chains,
        seed=settings.seed,
    )
    mcmc.run(firms, firm, value, capital, invest=invest)
    print(mcmc.draws.summary(names=["mu", "tau", "by_value", "by_capital", "sigma", "level"]))
    took = mcmc.seconds
    print("\nseconds:", ", ".join(f"{name} {seconds:.3f}" for name, seconds in took.items()))

    settings.out.mkdir(parents=True, exist_ok=True)
    mcmc.draws.extended(log_likelihood=True).save(settings.out / "varying_intercepts.nc")
    figure(mcmc.draws, firms, settings.out / "varying_intercepts.png")
    print(f"wrote {settings.out}/varying_intercepts.nc and {settings.out}/varying_intercepts.png")


if __name__ == "__main__":
    main()
