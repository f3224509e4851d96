"""Normalizing flow: the density of two interlocking moons, learnt from points.

A flow bends a standard normal until it has the shape of the data: rational-quadratic splines of one
coordinate given the other, in turn (Durkan et al. 2019). Its log likelihood of new points is set
against a kernel density estimate and against the true density. Run it with
``python models/flow/model.py``.
"""

import argparse
import time
from pathlib import Path

import numpy as np
from scipy.spatial.distance import cdist
from scipy.special import logsumexp
from scipy.stats import gaussian_kde, multivariate_normal

import probtorch
import probtorch.distributions as dist
from probtorch.distributions import transforms
from probtorch.infer import SVI, Trace_ELBO
from probtorch.optim import Adam
from probtorch.optim.lr_scheduler import CosineAnnealingLR
from probtorch.utils.data import DataLoader

NOISE = 0.1
HIDDEN = [32, 32]


def arc(angle):
    """Points of the upper moon, and of the lower one, at these angles."""
    upper = np.stack([np.cos(angle), np.sin(angle)], -1)
    return upper, np.array([1.0, 0.5]) - upper


def draw(count, rng):
    """Draw points: a moon, a place along it, and noise."""
    upper, lower = arc(rng.uniform(0.0, np.pi, count))
    on_upper = rng.random((count, 1)) < 0.5
    return np.where(on_upper, upper, lower) + NOISE * rng.standard_normal((count, 2))


def true_log_density(x):
    """Log density that the points were drawn from, by the midpoint rule along the moons."""
    centres = np.concatenate(arc((np.arange(200) + 0.5) * np.pi / 200))
    exponent = -0.5 * cdist(x, centres, "sqeuclidean") / NOISE**2
    return logsumexp(exponent, axis=1) - np.log(len(centres) * 2.0 * np.pi * NOISE**2)


def kernel_log_density(x_train, x):
    """Log density by Gaussian kernels, whose width is chosen by a fifth of the points."""
    held, rest = np.split(x_train, [len(x_train) // 5])
    widths = np.geomspace(0.02, 0.5, 20)
    scores = [gaussian_kde(rest.T, width).logpdf(held.T).mean() for width in widths]
    return gaussian_kde(x_train.T, widths[np.argmax(scores)]).logpdf(x.T)


class Flow:
    """Points, scaled to the flow's box, are a standard normal that went through the layers."""

    def __init__(self, x, layers):
        self.loc, self.scale = x.mean(0), x.std(0)
        swap = transforms.permute(2, [1, 0])
        splines = (transforms.spline_coupling(2, hidden_dims=HIDDEN) for _ in range(layers))
        self.bend = transforms.ComposeTransformModule([t for s in splines for t in (s, swap)])

    def density(self):
        normal = dist.Normal(probtorch.zeros(2), 1.0).to_event(1)
        place = transforms.AffineTransform(self.loc, self.scale, event_dim=1)
        return dist.TransformedDistribution(normal, [self.bend, place])

    def model(self, x):
        probtorch.module("bend", self.bend)
        with probtorch.plate("point", len(x)):
            probtorch.sample("x", self.density(), obs=x)


def guide(x):
    """Nothing is latent: the bound is the log likelihood itself."""


def learn(flow, x, *, epochs, batch, lr, report=print):
    """Maximise the log likelihood of points, in steps that shrink; returns how many there were."""
    optimizer = Adam(flow.bend.parameters(), lr=lr)
    schedule = CosineAnnealingLR(optimizer, epochs)
    svi = SVI(flow.model, guide, optimizer, Trace_ELBO())
    loader = DataLoader(x, batch_size=batch, shuffle=True)
    for epoch in range(epochs):
        loss = sum(svi.step(rows) for rows in loader) / len(x)
        schedule.step()
        if (epoch + 1) % max(1, epochs // 10) == 0:
            report(f"epoch {epoch + 1}: log likelihood {-loss:.3f} per point")
    return svi.num_steps


def figure(flow, x, path):
    """Draw the points, the flow's density and the true one."""
    from matplotlib.figure import Figure

    across, up = np.linspace(-1.5, 2.5, 160), np.linspace(-1.0, 1.5, 100)
    grid = np.stack(np.meshgrid(across, up), -1)
    with probtorch.no_grad():
        learnt = flow.density().log_prob(probtorch.tensor(grid)).exp().numpy()
    true = np.exp(true_log_density(grid.reshape(-1, 2))).reshape(grid.shape[:2])
    canvas = Figure(figsize=(10, 2.6), layout="constrained")
    panels = canvas.subplots(1, 3, sharex=True, sharey=True)
    panels[0].plot(*x[:1000].T, ".", markersize=1.5)
    for axes, density in ((panels[1], learnt), (panels[2], true)):
        axes.pcolormesh(
            across, up, density, vmin=0.0, vmax=true.max(), cmap="Blues", rasterized=True
        )
    for axes, title in zip(panels, ("points (1000 of them)", "flow", "truth"), strict=True):
        axes.set_title(title, fontsize=10)
        axes.set_aspect("equal")
    canvas.savefig(path, dpi=90)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--points", type=int, default=5000, help="to learn from")
    parser.add_argument("--layers", type=int, default=4, help="of the flow")
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--batch", type=int, default=100, help="points per step")
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the files")
    settings = parser.parse_args()

    rng = np.random.default_rng(settings.seed)
    x, x_test = (draw(count, rng).astype(np.float32) for count in (settings.points, 5000))
    probtorch.manual_seed(settings.seed)
    flow = Flow(x, settings.layers)
    began = time.perf_counter()
    steps = learn(flow, x, epochs=settings.epochs, batch=settings.batch, lr=settings.lr)
    seconds = time.perf_counter() - began
    print(f"{steps} steps in {seconds:.1f} s, {1e3 * seconds / steps:.2f} ms each")

    with probtorch.no_grad():
        learnt = flow.density().log_prob(probtorch.tensor(x_test)).numpy()
    print(f"{len(x_test)} new points, nats per point:")
    print(f"flow: {learnt.mean():.3f}")
    print(f"kernel density estimate: {kernel_log_density(x, x_test).mean():.3f}")
    plain = multivariate_normal(x.mean(0), np.cov(x.T)).logpdf(x_test)
    print(f"normal: {plain.mean():.3f}")
    print(f"truth: {true_log_density(x_test).mean():.3f}")

    settings.out.mkdir(parents=True, exist_ok=True)
    figure(flow, x, settings.out / "flow.png")
    print(f"wrote {settings.out}/flow.png")


if __name__ == "__main__":
    main()
