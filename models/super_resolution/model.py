"""Super-resolution: digits made twice as fine by sub-pixel convolution (Shi et al. 2016).

A network reads a coarse digit of 4 x 4 pixels and computes four values for each of them, which
`PixelShuffle` lays out as the digit of 8 x 8. It is scored on digits that it has not seen. Run it
with ``python models/super_resolution/model.py``; the data come with scikit-learn.
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

FACTOR, SIDE, DARKEST, TEST_SHARE = 2, 8, 16, 0.2


def load(seed):
    """Return images from 0 to 1 to learn from and to test on, (n, 1, 8, 8)."""
    from sklearn.datasets import load_digits

    images = probtorch.tensor((load_digits().images[:, None] / DARKEST).astype(np.float32))
    order = np.random.default_rng(seed).permutation(len(images))
    test, train = np.split(order, [int(TEST_SHARE * len(order))])
    return images[train], images[test]


def coarse(fine):
    """The picture at half the resolution: means of 2 x 2 pixels."""
    return F.avg_pool2d(fine, FACTOR)


def bicubic(x):
    return F.interpolate(x, scale_factor=FACTOR, mode="bicubic", align_corners=False)


class SubPixel(nn.Module):
    """Shapes: ``x`` is ``(batch, 1, h, w)``, the result is ``(batch, 1, 2 h, 2 w)``."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 32, 5, padding=2),
            nn.ReLU(),
            nn.Conv2d(32, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, FACTOR**2, 3, padding=1),
            nn.PixelShuffle(FACTOR),
        )

    def forward(self, x):
        # What is learnt is the difference from the picture with each pixel four times.
        return F.interpolate(x, scale_factor=FACTOR, mode="nearest") + self.body(x)


def train(net, images, settings):
    """Return the mean loss of each epoch."""
    loader = DataLoader(images, batch_size=settings.batch, shuffle=True, drop_last=True)
    optimizer = optim.Adam(net.parameters(), lr=settings.lr)
    scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=settings.epochs)

    def step(fine):
        optimizer.zero_grad()
        loss = F.mse_loss(net(coarse(fine)), fine)
        loss.backward()
        optimizer.step()
        return loss.detach()

    if settings.compile:
        step = probtorch.compile(step)
    losses = []
    for epoch in range(settings.epochs):
        losses.append(np.mean([step(fine).item() for fine in loader]))
        scheduler.step()
        if (epoch + 1) % max(1, settings.epochs // 5) == 0:
            print(f"epoch {epoch + 1}: {-10 * math.log10(losses[-1]):.2f} dB", flush=True)
    return losses


def straight(images, small):
    """The finer pictures as the best linear function of the coarse ones: what else is simple."""
    flat, fine = (x.numpy().reshape(len(x), -1) for x in (coarse(images), images))
    with_one = [np.c_[x, np.ones(len(x))] for x in (flat, small.numpy().reshape(len(small), -1))]
    weights = np.linalg.lstsq(with_one[0], fine, rcond=None)[0]
    return probtorch.tensor((with_one[1] @ weights).reshape(-1, 1, SIDE, SIDE).astype(np.float32))


def decibels(guess, truth):
    """Peak signal to noise ratio of the pictures, brightness from 0 to 1."""
    return -10.0 * math.log10(F.mse_loss(guess.clamp(0.0, 1.0), truth).item())


def tiles(images):
    """One picture of 16 images in four rows."""
    # Borders in proportion, so that coarse and fine pictures lie alike.
    border = images.shape[-1] // 4
    images = np.pad(images, ((0, 0), (border, border), (border, border)))
    side = images.shape[-1]
    return images.reshape(4, 4, side, side).transpose(0, 2, 1, 3).reshape(4 * side, 4 * side)


def figure(pictures, losses, path):
    """Draw the training and some of the test images."""
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(10, 3), layout="constrained")
    curve, *shown = canvas.subplots(1, 1 + len(pictures))
    curve.plot(-10.0 * np.log10(losses))
    curve.set_xlabel("epoch")
    curve.set_ylabel("dB, on what it learns from")
    curve.spines[["top", "right"]].set_visible(False)
    for axes, (title, picture) in zip(shown, pictures.items(), strict=True):
        axes.imshow(picture, cmap="gray_r", vmin=0.0, vmax=1.0, interpolation="nearest")
        axes.set_title(title, fontsize=10)
        axes.set_axis_off()
    canvas.savefig(path, dpi=90)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--batch", type=int, default=64, help="images per step")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument(
        "--compile", action=argparse.BooleanOptionalAction, default=True, help="the training step"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the files")
    settings = parser.parse_args()

    images, fine = load(settings.seed)
    probtorch.manual_seed(settings.seed)
    net = SubPixel()
    began = time.perf_counter()
    losses = train(net, images, settings)
    print(
        f"{sum(p.numel() for p in net.parameters())} weights, {time.perf_counter() - began:.1f} s"
    )

    small = coarse(fine)
    with probtorch.no_grad():
        made = net(small)
    print(f"sub-pixel network: {decibels(made, fine):.2f} dB")
    print(f"least squares: {decibels(straight(images, small), fine):.2f} dB")
    print(f"bicubic: {decibels(bicubic(small), fine):.2f} dB")
    print(f"nearest: {decibels(F.interpolate(small, scale_factor=FACTOR), fine):.2f} dB")

    made, smooth = made.clamp(0.0, 1.0), bicubic(small)
    shown = {"coarse": small, "bicubic": smooth, "network": made, "truth": fine}
    pictures = {name: tiles(x[:16].squeeze(1).numpy()) for name, x in shown.items()}
    settings.out.mkdir(parents=True, exist_ok=True)
    figure(pictures, losses, settings.out / "super_resolution.png")
    print(f"wrote {settings.out}/super_resolution.png")


if __name__ == "__main__":
    main()
