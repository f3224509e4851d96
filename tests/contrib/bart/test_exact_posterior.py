"""The trees of a posterior, against all trees that there are and quadrature over their leaves."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

import probtorch
import probtorch.distributions as dist
from probtorch.contrib.bart import bart, leaf_proposals, tree_update
from probtorch.infer import MCMC, Gibbs
from probtorch.infer.mcmc import chunk

X = np.array([[0.0, 1.0], [0.0, 0.0], [1.0, 1.0], [1.0, 0.0], [2.0, 1.0], [2.0, 1.0]])
CUTS = ((0.5, 1.5), (0.5,))
WEIGHTS = (0.7, 0.3)
ALPHA, BETA, DEPTH, SCALE, LOC = 0.8, 1.0, 2, 1.5, 0.3


ROWS = tuple(range(len(X)))


def all_trees(rows=ROWS, cuts=CUTS, depth=0):
    """Every tree below a node, as (shape, prior probability, groups of rows by leaf).

    Written from the paper: a node is split with alpha (1 + d)^-beta if anything is left to cut, on
    a variable by weight, at a cut with equal chance.
    """
    free = [v for v in range(2) if cuts[v]]
    split = ALPHA * (1 + depth) ** -BETA if free and depth < DEPTH else 0.0
    yield "leaf", 1.0 - split, (rows,)
    if not split:
        return
    weight = sum(WEIGHTS[v] for v in free)
    for v in free:
        for cut in cuts[v]:
            chance = split * WEIGHTS[v] / weight / len(cuts[v])
            sides = []
            for keep in (lambda c, cut=cut: c < cut, lambda c, cut=cut: c > cut):
                own = tuple(
                    tuple(c for c in cs if keep(c)) if u == v else cs for u, cs in enumerate(cuts)
                )
                inside = tuple(i for i in rows if keep(X[i, v]))
                sides.append(list(all_trees(inside, own, depth + 1)))
            for (a, pa, ga), (b, pb, gb) in itertools.product(*sides):
                yield (v, cut, a, b), chance * pa * pb, ga + gb


def shape_of(row, node=0):
    """The shape of a tree as numbers, read without the library."""
    splits = 2**DEPTH - 1
    if node >= splits or row[node] == 0:
        return "leaf"
    variable = int(row[node] - 1) >> 20
    return (variable, row[splits + node], shape_of(row, 2 * node + 1), shape_of(row, 2 * node + 2))


# By the likelihood: data, the distribution of a datum given f, and the log density by SciPy.
LIKELIHOODS = {
    "normal": (
        np.array([-0.4, -0.8, 0.6, 0.3, 1.9, 2.2]),
        lambda f: dist.Normal(f, 0.8),
        lambda y, f: stats.norm.logpdf(y, f, 0.8),
    ),
    "bernoulli": (
        np.array([0.0, 0.0, 1.0, 0.0, 1.0, 1.0]),
        lambda f: dist.Bernoulli(logits=f),
        lambda y, f: stats.bernoulli.logpmf(y, 1.0 / (1.0 + np.exp(-f))),
    ),
    "poisson": (
        np.array([0.0, 1.0, 2.0, 1.0, 3.0, 5.0]),
        lambda f: dist.Poisson(probtorch.exp(f)),
        lambda y, f: stats.poisson.logpmf(y, np.exp(f)),
    ),
    # Not concave: differences of slopes are negative at outliers.
    "student": (
        np.array([-2.5, -1.0, 1.6, 0.1, 2.2, -3.0]),
        lambda f: dist.StudentT(2.0, f, 0.8),
        lambda y, f: stats.t.logpdf(y, 2.0, f, 0.8),
    ),
}


def exact(name):
    """Probability of each shape, and the mean of f at each row, by enumeration."""
    y, _, logpdf = LIKELIHOODS[name]
    grid = np.linspace(-9.0, 9.0, 4001)
    prior = stats.norm.pdf(grid, LOC, SCALE) * (grid[1] - grid[0])
    weights, means = {}, []
    for shape, probability, groups in all_trees():
        evidence, mean = probability, np.empty(len(X))
        for group in groups:
            rows = list(group)
            density = prior * np.exp(sum((logpdf(y[i], grid) for i in rows), np.zeros_like(grid)))
            evidence *= density.sum()
            mean[rows] = (density * grid).sum() / density.sum()
        weights[shape] = evidence
        means.append(mean)
    total = sum(weights.values())
    found = {shape: w / total for shape, w in weights.items()}
    return found, sum(w * m for w, m in zip(found.values(), means))


def sampled(name, num_samples=40_000):
    y, likelihood, _ = LIKELIHOODS[name]

    def model(y):
        f = bart(
            "f", X, trees=1, alpha=ALPHA, beta=BETA, max_depth=DEPTH, scale=SCALE, loc=LOC,
            split_prior=WEIGHTS,
        )  # fmt: skip
        with probtorch.plate("row", len(X)):
            probtorch.sample("y", likelihood(f), obs=y)

    mcmc = MCMC(
        Gibbs(model), num_samples=num_samples, warmup_steps=200, num_chains=2, seed=3,
        progress_bar=False,
    )  # fmt: skip
    return mcmc.run(probtorch.tensor(y))


def distance(name, draws, wanted=None):
    """Distance of the shapes drawn from the exact ones in total variation, and of means of f."""
    found, mean = exact(name)
    found = wanted or found
    trees = draws.posterior["f_trees"]
    splits = 2**DEPTH - 1
    codes, values = np.split(trees.reshape(-1, trees.shape[-1])[:, : 2 * splits], 2, axis=1)
    # Values of leaves are no part of a shape.
    rows = np.concatenate([codes, np.where(codes > 0.0, values, 0.0)], axis=1)
    rows, counts = np.unique(rows, axis=0, return_counts=True)
    shares = dict.fromkeys(found, 0.0)
    for row, count in zip(rows, counts):
        shares[shape_of(row)] += count / counts.sum()
    off = 0.5 * sum(abs(shares[shape] - p) for shape, p in found.items())
    return off, np.abs(draws.posterior["f"].mean((0, 1)) - mean).max()


def test_prior_probabilities_of_all_trees_add_up_to_one():
    assert math.isclose(sum(p for _, p, _ in all_trees()), 1.0)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_trees_of_the_posterior_are_those_of_enumeration(name):
    # 80,000 draws with autocorrelation: 0.01 is about what chance leaves of 54 shapes.
    off, of_means = distance(name, sampled(name))
    assert off < 0.02
    assert of_means < 0.03


def test_trees_and_a_scale_that_nuts_moves_have_the_joint_posterior():
    """Leaves integrated out by hand, the scale by a grid."""
    y = LIKELIHOODS["normal"][0]
    grid = np.linspace(0.02, 6.0, 1200)
    prior = stats.halfnorm.pdf(grid, scale=1.5)

    def evidence(group):
        """Log density of the data of a leaf, by scale: a normal with one value for all rows."""
        rows, variance = list(group), grid**2
        n, of_leaf, off = len(rows), SCALE**2, y[rows] - LOC
        centred = (off**2).sum() - of_leaf * off.sum() ** 2 / (variance + n * of_leaf)
        volume = n * np.log(2.0 * np.pi * variance) + np.log1p(n * of_leaf / variance)
        return -0.5 * (volume + centred / variance)

    joint = {
        shape: probability * prior * np.exp(sum(evidence(group) for group in groups))
        for shape, probability, groups in all_trees()
    }
    total = sum(of_shape.sum() for of_shape in joint.values())
    shares = {shape: of_shape.sum() / total for shape, of_shape in joint.items()}
    mean = (sum(joint.values()) * grid).sum() / total

    def model(y):
        f = bart(
            "f", X, trees=1, alpha=ALPHA, beta=BETA, max_depth=DEPTH, scale=SCALE, loc=LOC,
            split_prior=WEIGHTS,
        )  # fmt: skip
        sigma = probtorch.sample("sigma", dist.HalfNormal(1.5))
        with probtorch.plate("row", len(X)):
            probtorch.sample("y", dist.Normal(f, sigma), obs=y)

    mcmc = MCMC(
        Gibbs(model), num_samples=30_000, warmup_steps=500, num_chains=2, seed=5,
        progress_bar=False,
    )  # fmt: skip
    mcmc.diagnose = False  # six rows: where all are fitted, a trajectory in ten thousand diverges
    draws = mcmc.run(probtorch.tensor(y))
    off, _ = distance("normal", draws, shares)
    assert off < 0.025
    # Its standard deviation is 0.35, of some 4,000 effective draws.
    assert abs(draws.posterior["sigma"].mean() - mean) < 0.03


def broken(monkeypatch, owner, name, method):
    """Put a method in the place of one of the update, with a store of programs of its own."""
    monkeypatch.setattr(owner, name, method)
    monkeypatch.setattr(chunk, "_programs", {})
    monkeypatch.setattr(chunk, "_free", {})


def test_a_move_that_forgets_how_many_nodes_there_are_is_seen(monkeypatch):
    right = tree_update.TreeUpdate._moves
    broken(
        monkeypatch, tree_update.TreeUpdate, "_moves", lambda self, *args: 0.0 * right(self, *args)
    )
    off, _ = distance("normal", sampled("normal"))
    assert off > 0.05


def test_leaves_that_forget_their_prior_are_seen(monkeypatch):
    right = leaf_proposals.LeafProposals.term

    def without_the_prior(self, fits, value):
        return right(self, fits, value) + 0.5 * self.precision * value * value

    broken(monkeypatch, leaf_proposals.LeafProposals, "term", without_the_prior)
    off, of_means = distance("poisson", sampled("poisson"))
    assert max(off, of_means) > 0.05
