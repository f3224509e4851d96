"""Variational autoencoder: handwritten digits from eight numbers each (Kingma and Welling 2014).

A neural network turns eight standard normal numbers into an image; another one, the guide, guesses
the eight numbers from the image. Both are trained together, then scored on images that they have
not seen. Run it with ``python models/vae/model.py``; the data come with scikit-learn.
"""

import argparse
import time
from pathlib import Path

import numpy as np
from scipy.stats import binom

import probtorch
import probtorch.distributions as dist
from probtorch import nn
from probtorch.infer import SVI, Trace_ELBO
from probtorch.optim import Adam
from probtorch.utils.data import DataLoader

SIDE, PIXELS, LATENT, HIDDEN = 8, 64, 8, 200
# The images were scanned as 32 x 32 bits; a pixel counts the dark ones among 4 x 4.
DARKEST = 16
TEST_SHARE = 0.2


def load(seed):
    """Return images and digits to train on, and to test on; pixels are counts from 0 to 16."""
    from sklearn.datasets import load_digits

    data = load_digits()
    order = np.random.default_rng(seed).permutation(len(data.data))
    test, train = np.split(order, [int(TEST_SHARE * len(order))])
    images = data.data.astype(np.float32)
    return images[train], data.target[train], images[test], data.target[test]


class VAE:
    """The model, which makes images of latent numbers, and the guide, which goes back."""

    def __init__(self):
        self.encoder = nn.Sequential(
            nn.Linear(PIXELS, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, 2 * LATENT),
        )
        self.decoder = nn.Sequential(
            nn.Linear(LATENT, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, PIXELS),
        )

    def model(self, x):
        probtorch.module("decoder", self.decoder)
        with probtorch.plate("image", len(x)):
            z = probtorch.sample("z", dist.Normal(probtorch.zeros(LATENT), 1.0).to_event(1))
            probtorch.sample("x", self.pixels(z), obs=x)

    def guide(self, x):
        probtorch.module("encoder", self.encoder)
        with probtorch.plate("image", len(x)):
            probtorch.sample("z", self.posterior(x))

    def pixels(self, z):
        """Distribution of the image that belongs to z."""
        return dist.Binomial(DARKEST, logits=self.decoder(z)).to_event(1)

    def posterior(self, x):
        """What the guide makes of an image: independent normals for the latent numbers."""
        loc, log_scale = self.encoder(x / DARKEST - 0.5).chunk(2, dim=-1)
        return dist.Normal(loc, log_scale.exp()).to_event(1)


def log_evidence(vae, x, particles):
    """Return log p(x) per image by importance sampling from the guide, shape (len(x),)."""
    with probtorch.no_grad():
        posterior = vae.posterior(x)
        z = posterior.sample((particles,))
        prior = dist.Normal(probtorch.zeros(LATENT), 1.0).to_event(1)
        log_weight = vae.pixels(z).log_prob(x) + prior.log_prob(z) - posterior.log_prob(z)
        return probtorch.logsumexp(log_weight, 0) - np.log(particles)


def independent_pixels(x, x_test):
    """Log likelihood per image if pixels were independent: what a model of images has to beat."""
    # One dark and one light bit of a prior keep pixels possible that were never dark.
    share = (x.sum(0) + 1.0) / (DARKEST * len(x) + 2.0)
    return binom.logpmf(x_test, DARKEST, share).sum(1).mean()


def figure(vae, x_test, digit_test, losses, path):
    """Draw the training, reconstructions, the latent space and new images."""
    from matplotlib.figure import Figure

    with probtorch.no_grad():
        means = vae.posterior(x_test).mean.numpy()
        rebuilt = vae.decoder(probtorch.tensor(means[:16])).sigmoid().numpy()
        new = vae.decoder(probtorch.randn(32, LATENT)).sigmoid().numpy()
    canvas = Figure(figsize=(10, 5.4), layout="constrained")
    (curve, space), (pairs, drawn) = canvas.subplots(2, 2, height_ratios=(5, 4))
    curve.plot(np.arange(1, len(losses) + 1), losses)
    curve.set_ylim(top=losses[0], bottom=losses.min() - 3.0)
    curve.set_xlabel("epoch")
    curve.set_ylabel("loss, nats per image")
    curve.spines[["top", "right"]].set_visible(False)
    # The two directions in which the latent means spread most.
    centred = means - means.mean(0)
    axes = np.linalg.svd(centred, full_matrices=False)[2][:2]
    dots = space.scatter(*(centred @ axes.T).T, c=digit_test, cmap="tab10", s=8)
    space.set_title("test images in the two main directions of z", fontsize=10)
    canvas.colorbar(dots, ax=space, label="digit")
    show(pairs, np.concatenate([x_test[:8], rebuilt[:8] * 16, x_test[8:16], rebuilt[8:] * 16]))
    pairs.set_title("test images, each above what the model makes of it", fontsize=10)
    show(drawn, new * DARKEST)
    drawn.set_title("new images, from random z", fontsize=10)
    canvas.savefig(path, dpi=90)


def show(axes, images):
    """Draw images in rows of eight."""
    tiles = np.asarray(images).reshape(-1, 8, SIDE, SIDE)
    tiles = np.pad(tiles, ((0, 0), (0, 0), (1, 1), (1, 1)))
    axes.imshow(tiles.transpose(0, 2, 1, 3).reshape(len(tiles) * (SIDE + 2), -1), cmap="gray_r")
    axes.set_axis_off()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--batch", type=int, default=64, help="images per step")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the files")
    settings = parser.parse_args()

    x, _, x_test, digit_test = load(settings.seed)
    probtorch.manual_seed(settings.seed)
    vae = VAE()
    loader = DataLoader(x, batch_size=settings.batch, shuffle=True)
    svi = SVI(vae.model, vae.guide, Adam({"lr": settings.lr}), Trace_ELBO())
    began = time.perf_counter()
    losses = []
    for epoch in range(settings.epochs):
        losses.append(sum(svi.step(batch) for batch in loader) / len(x))
        if (epoch + 1) % max(1, settings.epochs // 10) == 0:
            print(f"epoch {epoch + 1}: loss {losses[-1]:.2f} nats per image", flush=True)
    seconds = time.perf_counter() - began
    print(f"{svi.num_steps} steps in {seconds:.1f} s, {1e3 * seconds / svi.num_steps:.2f} ms each")

    x_test = probtorch.tensor(x_test)
    elbo = -np.mean([svi.evaluate_loss(x_test) for _ in range(20)]) / len(x_test)
    print(f"{len(x_test)} test images: ELBO {elbo:.2f} nats per image")
    print(f"log evidence, 500 particles: {log_evidence(vae, x_test, 500).mean().item():.2f}")
    print(f"independent pixels: {independent_pixels(x, x_test.numpy()):.2f}")

    settings.out.mkdir(parents=True, exist_ok=True)
    figure(vae, x_test, digit_test, np.array(losses), settings.out / "vae.png")
    print(f"wrote {settings.out}/vae.png")


if __name__ == "__main__":
    main()
