"""Logistic regression: whether a breast tumour is malignant, by thirty measurements of its cells.

The coefficients have a heavy-tailed prior whose scale is learnt. Some of the patients are kept
back, and the predictions for them are checked: how often they are right, and whether probabilities
mean what they say. Run it with ``python models/logistic/model.py``; the data come with
scikit-learn.
"""

import argparse
import itertools
from pathlib import Path

import numpy as np
from scipy.special import betaincinv

import probtorch
import probtorch.distributions as dist
from probtorch.infer import MCMC, NUTS

TEST_SHARE = 0.3


def load(seed):
    """Return the names of the measurements, and (x, malignant) to learn from and to test on."""
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    x = (data.data - data.data.mean(0)) / data.data.std(0)
    malignant = (data.target == 0).astype(float)
    order = np.random.default_rng(seed).permutation(len(x))
    test, train = np.split(order, [int(TEST_SHARE * len(x))])
    return list(data.feature_names), (x[train], malignant[train]), (x[test], malignant[test])


def model(names, x, malignant=None):
    """The log-odds of malignancy are intercept + x beta, with Student-t coefficients."""
    intercept = probtorch.sample("intercept", dist.Normal(0.0, 3.0))
    scale = probtorch.sample("scale", dist.HalfNormal(1.0))
    with probtorch.plate("measurement", coords=names):
        t = probtorch.sample("t", dist.StudentT(4.0, 0.0, 1.0))
        beta = probtorch.deterministic("beta", scale * t)
    logits = intercept + x @ beta
    with probtorch.plate("patient", len(x)):
        probtorch.sample("malignant", dist.Bernoulli(logits=logits), obs=malignant)


def figure(draws, names, chance, malignant, path):
    """Draw the coefficients, and the share of malignant tumours against the predicted chance."""
    from matplotlib.figure import Figure

    beta = draws.posterior["beta"].reshape(-1, len(names))
    low, middle, high = np.quantile(beta, [0.05, 0.5, 0.95], axis=0)
    order = np.argsort(middle)
    rows = np.arange(len(names))
    canvas = Figure(figsize=(10, 5.5), layout="constrained")
    left, right = canvas.subplots(1, 2, width_ratios=(3, 2))
    left.errorbar(
        middle[order], rows, xerr=[(middle - low)[order], (high - middle)[order]], fmt="o",
        markersize=3, capsize=2,
    )  # fmt: skip
    left.axvline(0.0, color="0.6", linewidth=0.8)
    left.set_yticks(rows, np.array(names)[order], fontsize=7)
    left.set_xlabel("coefficient per standard deviation, with 90 % intervals")
    right.plot([0, 1], [0, 1], color="0.6", linewidth=0.8)
    for low, high in itertools.pairwise([0.0, 0.05, 0.3, 0.7, 0.95, 1.0]):
        group = (chance >= low) & ((chance < high) | (high == 1.0))
        found = malignant[group]
        if not len(found):
            continue
        # Jeffreys' interval for a share.
        bounds = betaincinv(found.sum() + 0.5, len(found) - found.sum() + 0.5, [0.05, 0.95])
        middle = chance[group].mean()
        right.plot([middle, middle], bounds, color="C0")
        right.plot(middle, found.mean(), "o", color="C0")
        right.annotate(f"{len(found)}", (middle, bounds[1]), (0, 3), textcoords="offset points")
    right.set_xlabel("predicted chance of malignancy, test patients")
    right.set_ylabel("share found malignant (numbers: patients; bars: 90 % intervals)")
    for axes in (left, right):
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

    names, (x, malignant), (x_test, malignant_test) = load(settings.seed)
    mcmc = MCMC(
        NUTS(model),
        num_samples=settings.draws,
        warmup_steps=settings.warmup,
        num_chains=settings.chains,
        seed=settings.seed,
    )
    mcmc.run(names, x, malignant=malignant)
    print(mcmc.draws.summary(names=["intercept", "scale", "beta"]))
    took = mcmc.seconds
    print("\nseconds:", ", ".join(f"{name} {seconds:.3f}" for name, seconds in took.items()))

    replicated = mcmc.draws.predict(names, x_test, seed=settings.seed)["malignant"]
    chance = replicated.mean((0, 1))
    right = ((chance > 0.5) == (malignant_test == 1.0)).mean()
    print(f"{len(x_test)} test patients: {100 * right:.1f} % of the diagnoses are right")

    settings.out.mkdir(parents=True, exist_ok=True)
    mcmc.draws.extended(log_likelihood=True).save(settings.out / "logistic.nc")
    figure(mcmc.draws, names, chance, malignant_test, settings.out / "logistic.png")
    print(f"wrote {settings.out}/logistic.nc and {settings.out}/logistic.png")


if __name__ == "__main__":
    main()
