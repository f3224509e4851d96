"""Eight schools: does coaching help, and does it help more in some schools than in others.

Samples the posterior, prints a summary and how long each part took, and writes the draws (netCDF,
for ArviZ) and a figure. Run it with ``python models/eight_schools/model.py``, or ``make demo``.
"""

import time

START = time.perf_counter()

import argparse  # noqa: E402 - the clock starts before the imports that it is to time
from pathlib import Path  # noqa: E402

import numpy as np  # noqa: E402

import probtorch  # noqa: E402
import probtorch.distributions as dist  # noqa: E402
from probtorch.infer import MCMC, NUTS  # noqa: E402

IMPORTED = time.perf_counter()

# Rubin (1981): estimated effect of coaching in points, and its standard error, in eight schools.
SCHOOLS = ["A", "B", "C", "D", "E", "F", "G", "H"]
EFFECT = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERROR = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def model(sigma, y=None):
    """Effects theta of the schools are normal around mu; tau says how much schools differ."""
    mu = probtorch.sample("mu", dist.Normal(0.0, 5.0))
    tau = probtorch.sample("tau", dist.HalfCauchy(5.0))
    with probtorch.plate("school", coords=SCHOOLS):
        # Non-centred: theta = mu + tau z is easier to explore than theta ~ Normal(mu, tau).
        z = probtorch.sample("z", dist.Normal(0.0, 1.0))
        theta = probtorch.deterministic("theta", mu + tau * z)
        probtorch.sample("y", dist.Normal(theta, sigma), obs=y)


def figure(draws, path):
    """Draw what each school reported against what the model makes of it."""
    from matplotlib.figure import Figure

    theta = draws.posterior["theta"].reshape(-1, len(SCHOOLS))
    low, middle, high = np.quantile(theta, [0.05, 0.5, 0.95], axis=0)
    rows = np.arange(len(SCHOOLS))
    canvas = Figure(figsize=(7, 4), layout="constrained")
    axes = canvas.subplots()
    axes.errorbar(
        EFFECT, rows - 0.15, xerr=1.645 * ERROR, fmt="o", color="0.6", capsize=3, label="reported"
    )
    axes.errorbar(
        middle, rows + 0.15, xerr=[middle - low, high - middle], fmt="o", color="C0", capsize=3,
        label="posterior",
    )  # fmt: skip
    axes.axvline(draws.posterior["mu"].mean(), color="C0", linewidth=0.8, linestyle="--")
    axes.set_yticks(rows, SCHOOLS)
    axes.invert_yaxis()
    axes.set_xlabel("effect of coaching (points), with 90 % intervals")
    axes.set_ylabel("school")
    axes.legend(frameon=False)
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

    print(
        f"eight schools: {settings.chains} chains x ({settings.warmup} warm-up + {settings.draws})"
    )
    mcmc = MCMC(
        # 0.95 instead of 0.8: smaller steps, for the narrow neck of the posterior where tau is near
        # 0.
        NUTS(model, target_accept_prob=0.95),
        num_samples=settings.draws,
        warmup_steps=settings.warmup,
        num_chains=settings.chains,
        seed=settings.seed,
    )
    began = time.perf_counter()
    mcmc.run(ERROR, y=EFFECT)
    sampled = time.perf_counter()
    table = str(mcmc.draws.summary(names=["mu", "tau", "theta"]))
    summarised = time.perf_counter()
    print(table)

    settings.out.mkdir(parents=True, exist_ok=True)
    full = mcmc.draws.extended(log_likelihood=True, posterior_predictive=True, seed=settings.seed)
    full.save(settings.out / "eight_schools.nc")
    figure(mcmc.draws, settings.out / "eight_schools.png")
    written = time.perf_counter()

    took = mcmc.seconds
    parts = {
        "import": IMPORTED - START,
        "model and compile": took["model"] + took["compile"],
        "sampling": took["sampling"],
        "results": sampled - began - sum(took.values()),
        "summary": summarised - sampled,
        "files": written - summarised,
    }
    print("\nseconds:", ", ".join(f"{name} {seconds:.3f}" for name, seconds in parts.items()))
    print(f"wrote {settings.out}/eight_schools.nc and {settings.out}/eight_schools.png")


if __name__ == "__main__":
    main()
