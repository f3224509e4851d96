"""Residual network: a deep network that learns faster than the same one without shortcuts.

Twenty convolutions in nine blocks, each of which adds to what it was given (He et al. 2016), read
handwritten digits. Taking the additions away is all that differs in the second network. Run it with
``python models/residual_network/model.py``; the data come with scikit-learn.
"""

import argparse
import time
from pathlib import Path

import numpy as np

import probtorch
import probtorch.nn.functional as F
from probtorch import nn, optim
from probtorch.utils.data import DataLoader, TensorDataset

DIGITS, DARKEST, TEST_SHARE = 10, 16, 0.2
WIDTHS = (8, 16, 32)


def load(seed):
    """Return images (n, 1, 8, 8) from 0 to 1 and their digits, to train on and to test on."""
    from sklearn.datasets import load_digits

    data = load_digits()
    order = np.random.default_rng(seed).permutation(len(data.data))
    test, train = np.split(order, [int(TEST_SHARE * len(order))])
    x = (data.images[:, None] / DARKEST).astype(np.float32)
    return tuple(probtorch.tensor(a) for i in (train, test) for a in (x[i], data.target[i]))


class BasicBlock(nn.Module):
    """Two convolutions, and a shortcut past them, halved and widened where they do so."""

    def __init__(self, inputs, outputs, stride, shortcut):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = None
        if shortcut and inputs == outputs and stride == 1:
            self.shortcut = nn.Identity()
        elif shortcut:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.shortcut is not None:
            y = y + self.shortcut(x)
        return F.relu(y)


class Net(nn.Module):
    """Shapes: images are ``(batch, 1, 8, 8)``, the result is ``(batch, 10)`` logits."""

    def __init__(self, blocks, shortcuts):
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(1, WIDTHS[0], 3, padding=1, bias=False), nn.BatchNorm2d(WIDTHS[0]), nn.ReLU()
        )
        layers, inputs = [], WIDTHS[0]
        for stage, width in enumerate(WIDTHS):
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                layers.append(BasicBlock(inputs, width, stride, shortcuts))
                inputs = width
        self.blocks = nn.Sequential(*layers)
        self.last = nn.Linear(WIDTHS[-1], DIGITS)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        return self.last(F.adaptive_avg_pool2d(self.blocks(self.first(x)), 1).flatten(1))


def train(net, x, y, settings):
    """Return the loss of each step."""
    data = TensorDataset(x, y)
    loader = DataLoader(data, batch_size=settings.batch, shuffle=True, drop_last=True)
    optimizer = optim.SGD(
        net.parameters(), lr=settings.lr, momentum=0.9, weight_decay=1e-4, nesterov=True
    )
    total = settings.epochs * len(loader)
    scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=total)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    if settings.compile:
        step = probtorch.compile(step)
    losses = []
    net.train()
    for _ in range(settings.epochs):
        for images, digits in loader:
            losses.append(step(images, digits).item())
            scheduler.step()
    return losses


def accuracy(net, x, y):
    """Percent of images read right."""
    net.eval()
    with probtorch.no_grad():
        return 100.0 * (net(x).argmax(dim=1) == y).float().mean().item()


def figure(curves, path):
    """Draw the training of both networks."""
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(6, 3.4), layout="constrained")
    axes = canvas.subplots()
    for name, losses in curves.items():
        window = min(len(losses), 11)
        axes.semilogy(np.convolve(losses, np.ones(window) / window, mode="valid"), label=name)
    axes.set_xlabel("step")
    axes.set_ylabel("loss, nats per image")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    canvas.savefig(path, dpi=90)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--blocks", type=int, default=3, help="per width; three widths")
    parser.add_argument("--batch", type=int, default=64, help="images per step")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument(
        "--compile", action=argparse.BooleanOptionalAction, default=True, help="the training step"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the files")
    settings = parser.parse_args()

    x, y, x_test, y_test = load(settings.seed)
    curves = {}
    for name, shortcuts in {"with shortcuts": True, "without": False}.items():
        probtorch.manual_seed(settings.seed)
        net = Net(settings.blocks, shortcuts)
        began = time.perf_counter()
        curves[name] = train(net, x, y, settings)
        seconds = time.perf_counter() - began
        print(f"{sum(p.numel() for p in net.parameters())} weights, {seconds:.1f} s", flush=True)
        print(f"{name}: {accuracy(net, x_test, y_test):.1f} % read right", flush=True)
        print(f"{name}, loss at the end: {np.mean(curves[name][-20:]):.4f} nats", flush=True)

    settings.out.mkdir(parents=True, exist_ok=True)
    figure(curves, settings.out / "residual_network.png")
    print(f"wrote {settings.out}/residual_network.png")


if __name__ == "__main__":
    main()
