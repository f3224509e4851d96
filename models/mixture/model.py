"""Gaussian mixture: how many kinds of eruption a geyser has, and of which kind each one was.

The kind of an eruption is a discrete latent site. It is summed out exactly: by `TraceEnum_ELBO`
where variational inference compares numbers of kinds, and by NUTS, which then samples the rest;
`infer_discrete` gives the kinds back. Run it with ``python models/mixture/model.py``; the eruptions
are drawn in the script, after those of Old Faithful.
"""

import argparse
import time
from pathlib import Path

import numpy as np
from scipy.stats import norm

import probtorch
import probtorch.distributions as dist
from probtorch.handlers import block, substitute, trace
from probtorch.infer import (
    MCMC,
    NUTS,
    SVI,
    AutoNormal,
    TraceEnum_ELBO,
    infer_discrete,
    init_to_value,
)
from probtorch.optim import Adam

# Minutes that an eruption lasts, and minutes until the next one, for two kinds: roughly what
# Azzalini and Bowman (1990) report.
SHARE = np.array([0.36, 0.64])
MEANS = np.array([[2.04, 54.5], [4.29, 80.0]])
SCALES = np.array([[0.27, 5.8], [0.41, 6.0]])


def load(seed, count=272):
    """Return eruptions and their true kinds."""
    rng = np.random.default_rng(seed)
    kind = rng.choice(2, count, p=SHARE)
    return rng.normal(MEANS[kind], SCALES[kind]), kind


def model(x, kinds):
    """Each kind has its share, its mean and its spread; each eruption is of one kind."""
    centre, spread = x.mean(0), x.std(0)
    share = probtorch.sample("share", dist.Dirichlet(probtorch.ones(kinds)))
    with probtorch.plate("kinds", kinds):
        mean = probtorch.sample("mean", dist.Normal(centre, 2.0 * spread).to_event(1))
        scale = probtorch.sample("scale", dist.LogNormal(np.log(0.5 * spread), 0.7).to_event(1))
    with probtorch.plate("eruption", len(x)):
        kind = probtorch.sample("kind", dist.Categorical(share), infer={"enumerate": "parallel"})
        probtorch.sample("x", dist.Normal(mean[kind], scale[kind]).to_event(1), obs=x)


def start(x, kinds):
    """A place to begin: the kinds side by side along the duration, in order."""
    parts = np.array_split(x[np.argsort(x[:, 0])], kinds)
    return init_to_value(
        values={
            "share": np.full(kinds, 1.0 / kinds),
            "mean": np.stack([part.mean(0) for part in parts]),
            "scale": np.stack([part.std(0) for part in parts]),
        }
    )


def bound(x, kinds, settings):
    """Return the evidence lower bound of a number of kinds, in nats."""
    guide = AutoNormal(block(model, hide=["kind"]), start(x, kinds), init_scale=0.02)
    svi = SVI(model, guide, Adam({"lr": 0.01}), TraceEnum_ELBO(), seed=settings.seed)
    svi.run(settings.steps, x, kinds, progress_bar=False)
    return -np.mean([svi.evaluate_loss(x, kinds) for _ in range(200)])


def figure(x, found, draws, path):
    """Draw the eruptions by the kind found, with an ellipse of two standard deviations for each."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Ellipse

    canvas = Figure(figsize=(6, 4), layout="constrained")
    axes = canvas.subplots()
    for kind in range(2):
        axes.plot(*x[found == kind].T, ".", color=f"C{kind}")
        mean, scale = (draws.posterior[name].mean((0, 1))[kind] for name in ("mean", "scale"))
        axes.add_patch(Ellipse(mean, *(4.0 * scale), fill=False, color=f"C{kind}"))
    axes.set_xlabel("duration of an eruption (minutes)")
    axes.set_ylabel("until the next one (minutes)")
    axes.spines[["top", "right"]].set_visible(False)
    canvas.savefig(path, dpi=90)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--most", type=int, default=4, help="kinds to try")
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--warmup", type=int, default=1000, help="iterations per chain")
    parser.add_argument("--draws", type=int, default=1000, help="per chain")
    parser.add_argument("--steps", type=int, default=2000, help="of variational inference")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the files")
    settings = parser.parse_args()

    x, true_kind = load(settings.seed)
    began = time.perf_counter()
    for kinds in range(2, settings.most + 1):
        print(f"{kinds} kinds: evidence lower bound {bound(x, kinds, settings):.1f} nats")
    print(f"variational inference: {time.perf_counter() - began:.1f} s\n")

    mcmc = MCMC(
        NUTS(model, init_strategy=start(x, 2)),
        num_samples=settings.draws,
        warmup_steps=settings.warmup,
        num_chains=settings.chains,
        seed=settings.seed,
    )
    mcmc.run(x, 2)
    print(mcmc.draws.summary(names=["share", "mean", "scale"]))
    print("\nseconds:", ", ".join(f"{name} {took:.3f}" for name, took in mcmc.seconds.items()))

    middle = {name: mcmc.draws.posterior[name].mean((0, 1)) for name in ("share", "mean", "scale")}
    found = most_probable(x, middle)
    known = norm.logpdf(x[:, None], MEANS, SCALES).sum(-1) + np.log(SHARE)
    for who, kind in (("found", found), ("by who knows the truth", known.argmax(1))):
        print(f"kinds {who}: {100 * (kind == true_kind).mean():.1f} % right")

    settings.out.mkdir(parents=True, exist_ok=True)
    mcmc.draws.save(settings.out / "mixture.nc")
    figure(x, found, mcmc.draws, settings.out / "mixture.png")
    print(f"wrote {settings.out}/mixture.nc and {settings.out}/mixture.png")


def most_probable(x, values):
    """Return the most probable kind of each eruption, given the rest."""
    decoded = infer_discrete(substitute(model, values), temperature=0)
    return trace(decoded).get_trace(x, 2)["kind"].value.numpy()


if __name__ == "__main__":
    main()
