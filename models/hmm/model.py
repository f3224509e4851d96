"""Hidden Markov model: quiet and restless years in a century of great earthquakes.

The number of earthquakes in a year depends on a hidden state of the earth, which changes from year
to year with probabilities of its own. NUTS samples rates and probabilities with the states summed
out; `infer_discrete` brings the states back. The density is checked against a forward algorithm
written in NumPy. Run it with ``python models/hmm/model.py``.
"""

import argparse
import time
from pathlib import Path

import numpy as np
from scipy.special import logsumexp
from scipy.stats import dirichlet, gamma, poisson

import probtorch
import probtorch.distributions as dist
from probtorch.infer import MCMC, NUTS

FIRST_YEAR = 1900
# Earthquakes of magnitude 7 and more in each year from 1900 to 2006 (US Geological Survey, as in
# Zucchini and MacDonald 2009, table 1.1).
COUNTS = np.array([
    13, 14, 8, 10, 16, 26, 32, 27, 18, 32, 36, 24, 22, 23, 22, 18, 25, 21, 21, 14,
    8, 11, 14, 23, 18, 17, 19, 20, 22, 19, 13, 26, 13, 14, 22, 24, 21, 22, 26, 21,
    23, 24, 27, 41, 31, 27, 35, 26, 28, 36, 39, 21, 17, 22, 17, 19, 15, 34, 10, 15,
    22, 18, 15, 20, 15, 22, 19, 16, 30, 27, 29, 23, 20, 16, 21, 21, 25, 16, 18, 15,
    18, 14, 10, 15, 8, 15, 6, 11, 8, 7, 18, 16, 13, 12, 13, 20, 15, 16, 12, 18,
    15, 16, 13, 15, 16, 11, 11,
])  # fmt: skip
# The step from one rate to the next has a gamma prior of this shape and mean.
SHAPE, MEAN = 2.0, 10.0


def model(counts, states):
    """State the states' rates in rising order, how states follow each other, and the counts."""
    first = probtorch.sample("first", dist.Dirichlet(probtorch.ones(states)))
    with probtorch.plate("state", states):
        move = probtorch.sample("move", dist.Dirichlet(probtorch.ones(states)))
        step = probtorch.sample("step", dist.Gamma(SHAPE, SHAPE / MEAN))
        rate = probtorch.deterministic("rate", step.cumsum(-1))
    x = None
    for t in probtorch.markov(range(len(counts))):
        x = probtorch.sample(f"x_{t}", dist.Categorical(first if x is None else move[x]))
        probtorch.sample(f"y_{t}", dist.Poisson(rate[x]), obs=counts[t])


def log_joint(first, move, step):
    """Log density of counts and parameters, by SciPy's densities and the forward algorithm."""
    data = poisson.logpmf(COUNTS[:, None], np.cumsum(step))
    forward = np.log(first) + data[0]
    for row in data[1:]:
        forward = logsumexp(forward[:, None] + np.log(move), axis=0) + row
    uniform = np.ones(len(first))
    prior = dirichlet.logpdf(first, uniform) + gamma.logpdf(step, SHAPE, scale=MEAN / SHAPE).sum()
    return logsumexp(forward) + prior + sum(dirichlet.logpdf(row, uniform) for row in move)


def largest_difference(draws):
    """Return the largest difference between our log joint density and NumPy's over some draws."""
    some = slice(None, None, 50)
    ours = draws.target.log_joint(draws.positions[:, some])
    first, move, step = (draws.posterior[name][:, some] for name in ("first", "move", "step"))
    theirs = [
        [log_joint(first[c, d], move[c, d], step[c, d]) for d in range(ours.shape[1])]
        for c in range(ours.shape[0])
    ]
    return np.abs(ours - theirs).max()


def figure(draws, paths, path):
    """Draw the counts, the rate of each year, and how sure its state is."""
    from matplotlib.figure import Figure

    year = FIRST_YEAR + np.arange(len(COUNTS))
    rate = draws.posterior["rate"].mean((0, 1))
    chance = np.stack([(paths == k).mean(0) for k in range(len(rate))])
    canvas = Figure(figsize=(9, 4.5), layout="constrained")
    above, below = canvas.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    above.bar(year, COUNTS, color="0.75", label="earthquakes")
    above.step(year, rate @ chance, where="mid", color="C0", label="rate of the year")
    above.legend(frameon=False)
    above.set_ylabel("earthquakes in a year")
    below.stackplot(year, chance, labels=[f"rate {r:.0f}" for r in rate], step="mid")
    below.legend(loc="upper left", fontsize=8)
    below.set_ylabel("chance of a state")
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    canvas.savefig(path, dpi=90)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--states", type=int, default=3)
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--warmup", type=int, default=1000, help="iterations per chain")
    parser.add_argument("--draws", type=int, default=1000, help="per chain")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the files")
    settings = parser.parse_args()

    mcmc = MCMC(
        NUTS(model),
        num_samples=settings.draws,
        warmup_steps=settings.warmup,
        num_chains=settings.chains,
        seed=settings.seed,
    )
    mcmc.run(COUNTS, settings.states)
    print(mcmc.draws.summary(names=["rate", "move"]))
    print("seconds:", ", ".join(f"{name} {took:.3f}" for name, took in mcmc.seconds.items()))
    print(f"largest difference from NumPy's density: {largest_difference(mcmc.draws):.1e} nats")

    began = time.perf_counter()
    found = mcmc.draws.infer_discrete(seed=settings.seed)
    paths = np.stack([found[f"x_{t}"].ravel() for t in range(len(COUNTS))], axis=1)
    print(f"states of all draws: {time.perf_counter() - began:.1f} s")
    calm = FIRST_YEAR + np.flatnonzero((paths == 0).mean(0) > 0.5)
    print(f"years that are more likely than not in the calmest state: {len(calm)}, {calm}")

    settings.out.mkdir(parents=True, exist_ok=True)
    mcmc.draws.save(settings.out / "hmm.nc")
    figure(mcmc.draws, paths, settings.out / "hmm.png")
    print(f"wrote {settings.out}/hmm.nc and {settings.out}/hmm.png")


if __name__ == "__main__":
    main()
