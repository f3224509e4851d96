"""Bayesian neural network: a curve from noisy points, with a gap where there are none.

The weights are random like any other unknown of a model. Their posterior is found twice, by NUTS
and by variational inference with independent normals, and the two are compared on points that
neither has seen. Run it with ``python models/bayesian_neural_network/model.py``.
"""

import argparse
import time
import warnings
from pathlib import Path

import numpy as np
from scipy.special import logsumexp
from scipy.stats import norm

import probtorch
import probtorch.distributions as dist
from probtorch import nn
from probtorch.diagnostics.findings import ConvergenceWarning
from probtorch.infer import MCMC, NUTS, SVI, AutoNormal, GuideWarning, Trace_ELBO, init_to_sample
from probtorch.optim import Adam

HIDDEN, NOISE = 20, 0.1
# Points to learn from lie left and right of the gap, those to test on everywhere.
LEFT, GAP, RIGHT = -1.0, (-0.25, 0.35), 1.0


NET = nn.Sequential(nn.Linear(1, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1))
PRIOR = {
    "0.weight": dist.Normal(0.0, 4.0),
    "0.bias": dist.Normal(0.0, 2.0),
    # The sum of many units stays of the size of one.
    "2.weight": dist.Normal(0.0, HIDDEN**-0.5),
    "2.bias": dist.Normal(0.0, 1.0),
}


def truth(x):
    return 0.7 * x + 0.4 * np.sin(6.0 * x)


def load(seed):
    """Return (x, y) to learn from and to test on."""
    rng = np.random.default_rng(seed)
    x = np.sort(np.concatenate([rng.uniform(LEFT, GAP[0], 30), rng.uniform(GAP[1], RIGHT, 30)]))
    x_test = np.sort(rng.uniform(LEFT, RIGHT, 400))
    return tuple((at, truth(at) + NOISE * rng.standard_normal(len(at))) for at in (x, x_test))


def model(x, y=None):
    """Points lie around the curve of a network with random weights."""
    f = probtorch.random_module("net", NET, PRIOR)(x[:, None]).squeeze(-1)
    sigma = probtorch.sample("sigma", dist.HalfNormal(0.5))
    with probtorch.plate("point", len(x)):
        probtorch.deterministic("f", f)
        probtorch.sample("y", dist.Normal(f, sigma), obs=y)


def by_nuts(x, y, settings):
    mcmc = MCMC(
        NUTS(model, target_accept_prob=0.95),
        num_samples=settings.draws,
        warmup_steps=settings.warmup,
        num_chains=settings.chains,
        seed=settings.seed,
    )
    with warnings.catch_warnings():
        # Units can change places and signs: chains agree about the curve, not about the weights.
        warnings.simplefilter("ignore", ConvergenceWarning)
        mcmc.run(x, y)
    return mcmc.draws


def by_svi(x, y, settings):
    # Units that all start at 0 would stay alike: start at a draw of the prior, and narrow.
    guide = AutoNormal(model, init_to_sample, init_scale=0.01)
    svi = SVI(model, guide, Adam({"lr": 0.01}), Trace_ELBO(), seed=settings.seed)
    result = svi.run(settings.steps, x, y, progress_bar=False)
    with warnings.catch_warnings():
        # Independent normals are far from this posterior; how far shows in the comparison.
        warnings.simplefilter("ignore", GuideWarning)
        return result.draws(settings.draws, seed=settings.seed)


def predict(draws, x, seed):
    """Return draws of the curve and of noisy points at x, and of the noise, one row per draw."""
    found = draws.predict(x, seed=seed)
    sigma = draws.posterior["sigma"].reshape(-1, 1)
    return found["f"].reshape(-1, len(x)), found["y"].reshape(-1, len(x)), sigma


def report(name, prediction, x, y):
    """Print how well points are predicted, outside of the gap and inside."""
    f, replicated, sigma = prediction
    density = logsumexp(norm.logpdf(y, f, sigma), axis=0) - np.log(len(f))
    low, high = np.quantile(replicated, [0.05, 0.95], axis=0)
    covered = (low < y) & (y < high)
    gap = (GAP[0] < x) & (x < GAP[1])
    for where, rows in (("data", ~gap), ("gap", gap)):
        print(
            f"{name}, {where}: log density {density[rows].mean():.2f} per point, "
            f"90 % interval covers {100 * covered[rows].mean():.0f} %, "
            f"width {(high - low)[rows].mean():.2f}"
        )


def figure(points, predictions, path):
    """Draw the bands of each method over the points."""
    from matplotlib.figure import Figure

    x, y = points
    canvas = Figure(figsize=(10, 4), layout="constrained")
    grid, curves = predictions
    for axes, (name, (f, replicated, _)) in zip(
        canvas.subplots(1, 2, sharey=True), curves.items(), strict=True
    ):
        for draws, shade in ((replicated, 0.2), (f, 0.4)):
            low, high = np.quantile(draws, [0.05, 0.95], axis=0)
            axes.fill_between(grid, low, high, color="C0", alpha=shade, linewidth=0)
        axes.plot(grid, truth(grid), color="0.3", linewidth=0.8, linestyle="--", label="truth")
        axes.plot(grid, f.mean(0), color="C0", label="mean")
        axes.plot(x, y, "o", color="C1", markersize=3, label="data")
        axes.set_title(f"{name}: 90 % bands of curve (dark) and points (light)", fontsize=10)
        axes.set_xlabel("x")
        axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    canvas.savefig(path, dpi=90)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--warmup", type=int, default=1000, help="iterations per chain")
    parser.add_argument("--draws", type=int, default=1000, help="per chain, and of the guide")
    parser.add_argument("--steps", type=int, default=20_000, help="of variational inference")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the files")
    settings = parser.parse_args()

    (x, y), (x_test, y_test) = load(settings.seed)
    grid = np.linspace(1.3 * LEFT, 1.3 * RIGHT, 150)
    curves = {}
    for name, fit in (("NUTS", by_nuts), ("SVI", by_svi)):
        began = time.perf_counter()
        draws = fit(x, y, settings)
        print(f"{name}: {time.perf_counter() - began:.1f} s")
        report(name, predict(draws, x_test, settings.seed), x_test, y_test)
        curves[name] = predict(draws, grid, settings.seed)

    settings.out.mkdir(parents=True, exist_ok=True)
    figure((x, y), (grid, curves), settings.out / "bayesian_neural_network.png")
    print(f"wrote {settings.out}/bayesian_neural_network.png")


if __name__ == "__main__":
    main()
