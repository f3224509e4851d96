"""Generative adversarial network: new digits that a second network cannot tell from real ones.

A generator of transposed convolutions turns random numbers into images, a discriminator of strided
ones tells them from handwritten digits, and each learns from the other (Radford et al. 2016). Run
it with ``python models/dcgan/model.py``; the data come with scikit-learn.
"""

import argparse
import math
import time
from pathlib import Path

import numpy as np

import probtorch
import probtorch.nn.functional as F
from probtorch import nn, optim
from probtorch.utils.data import DataLoader

SIDE, DARKEST, LATENT, WIDTH = 8, 16, 32, 32
TEST_SHARE = 0.2


def load(seed):
    """Return images (n, 1, 8, 8) from -1 to 1 and their digits, to train on and to test on."""
    from sklearn.datasets import load_digits

    data = load_digits()
    order = np.random.default_rng(seed).permutation(len(data.data))
    test, train = np.split(order, [int(TEST_SHARE * len(order))])
    x = (data.images[:, None] / (DARKEST / 2) - 1.0).astype(np.float32)
    return x[train], data.target[train], x[test], data.target[test]


def generator():
    """From (batch, LATENT, 1, 1) to (batch, 1, 8, 8)."""
    return nn.Sequential(
        nn.ConvTranspose2d(LATENT, 2 * WIDTH, 2, bias=False),
        nn.BatchNorm2d(2 * WIDTH),
        nn.ReLU(True),
        nn.ConvTranspose2d(2 * WIDTH, WIDTH, 4, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(WIDTH),
        nn.ReLU(True),
        nn.ConvTranspose2d(WIDTH, 1, 4, stride=2, padding=1),
        nn.Tanh(),
    )


def discriminator():
    """From (batch, 1, 8, 8) to the log odds that an image is real, (batch,)."""
    return nn.Sequential(
        nn.Conv2d(1, WIDTH, 4, stride=2, padding=1),
        nn.LeakyReLU(0.2, True),
        nn.Conv2d(WIDTH, 2 * WIDTH, 4, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(2 * WIDTH),
        nn.LeakyReLU(0.2, True),
        nn.Conv2d(2 * WIDTH, 1, 2),
        nn.Flatten(0),
    )


def small(module):
    """The first weights of Radford et al."""
    if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(module.weight, 0.0, 0.02)
    elif isinstance(module, nn.BatchNorm2d):
        nn.init.normal_(module.weight, 1.0, 0.02)
        nn.init.zeros_(module.bias)


def train(made_by, judged_by, x, settings):
    """Return the losses of discriminator and generator in each epoch, (epochs, 2)."""
    loader = DataLoader(x, batch_size=settings.batch, shuffle=True, drop_last=True)
    optimizer_d = optim.Adam(judged_by.parameters(), lr=settings.lr, betas=(0.5, 0.999))
    optimizer_g = optim.Adam(made_by.parameters(), lr=settings.lr, betas=(0.5, 0.999))
    real, fake = probtorch.full((settings.batch,), 0.9), probtorch.zeros(settings.batch)

    def step(images):
        new = made_by(probtorch.randn(settings.batch, LATENT, 1, 1))
        optimizer_d.zero_grad()
        loss_d = F.binary_cross_entropy_with_logits(judged_by(images), real)
        loss_d = loss_d + F.binary_cross_entropy_with_logits(judged_by(new.detach()), fake)
        loss_d.backward()
        optimizer_d.step()

        optimizer_g.zero_grad()
        loss_g = F.binary_cross_entropy_with_logits(judged_by(new), probtorch.ones_like(fake))
        loss_g.backward()
        optimizer_g.step()
        return probtorch.stack([loss_d.detach(), loss_g.detach()])

    if settings.compile:
        step = probtorch.compile(step)
    losses = []
    for epoch in range(settings.epochs):
        losses.append(np.mean([step(images).numpy() for images in loader], axis=0))
        if (epoch + 1) % max(1, settings.epochs // 5) == 0:
            d, g = losses[-1]
            print(f"epoch {epoch + 1}: discriminator {d:.3f}, generator {g:.3f}", flush=True)
    return np.array(losses)


def score(reader, images):
    """Inception score with a reader of digits (Salimans et al. 2016): from 1 to 10 digits.

    It is 10 if every image is clearly one digit, and all digits are as frequent.
    """
    p = reader.predict_proba(images.reshape(len(images), -1))
    return math.exp((p * np.log((p + 1e-12) / (p.mean(0) + 1e-12))).sum(1).mean())


def figure(images, losses, path):
    """Draw the training and new images."""
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(9, 3.4), layout="constrained")
    curve, drawn = canvas.subplots(1, 2)
    curve.plot(losses, label=["discriminator", "generator"])
    curve.set_xlabel("epoch")
    curve.set_ylabel("loss, nats")
    curve.legend(frameon=False)
    curve.spines[["top", "right"]].set_visible(False)
    tiles = np.pad(images.reshape(6, 12, SIDE, SIDE), ((0, 0), (0, 0), (1, 1), (1, 1)), "minimum")
    drawn.imshow(tiles.transpose(0, 2, 1, 3).reshape(6 * (SIDE + 2), -1), cmap="gray_r")
    drawn.set_title("new images", fontsize=10)
    drawn.set_axis_off()
    canvas.savefig(path, dpi=90)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch", type=int, default=64, help="images per step")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument(
        "--compile", action=argparse.BooleanOptionalAction, default=True, help="the training step"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the files")
    settings = parser.parse_args()

    from sklearn.linear_model import LogisticRegression

    x, digit, x_test, _ = load(settings.seed)
    probtorch.manual_seed(settings.seed)
    made_by, judged_by = generator().apply(small), discriminator().apply(small)
    began = time.perf_counter()
    losses = train(made_by, judged_by, x, settings)
    print(f"trained in {time.perf_counter() - began:.1f} s")

    made_by.eval()
    with probtorch.no_grad():
        new = made_by(probtorch.randn(1000, LATENT, 1, 1)).numpy()
    reader = LogisticRegression(max_iter=500).fit(x.reshape(len(x), -1), digit)
    noise = np.random.default_rng(settings.seed).permuted(x.reshape(len(x), -1), axis=0)
    print(f"new images: score {score(reader, new):.2f} of 10")
    print(f"test images: score {score(reader, x_test):.2f}")
    print(f"pixels of different images: score {score(reader, noise):.2f}")
    frequent = np.bincount(reader.predict(new.reshape(len(new), -1)), minlength=10) / len(new)
    print(f"share of the rarest digit: {100.0 * frequent.min():.1f} %")

    settings.out.mkdir(parents=True, exist_ok=True)
    figure(new[:72], losses, settings.out / "dcgan.png")
    print(f"wrote {settings.out}/dcgan.png")


if __name__ == "__main__":
    main()
