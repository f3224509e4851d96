"""Convolutional network: handwritten digits read from their pixels (LeCun et al. 1998).

Two convolutions, pooling, dropout and two linear layers, trained on images that are moved by up to
a pixel, then scored on images that the network has not seen. Run it with
``python models/convolution/model.py``; the data come with scikit-learn.
"""

import argparse
import time
from pathlib import Path

import numpy as np

import probtorch
import probtorch.nn.functional as F
from probtorch import nn, optim
from probtorch.utils.data import DataLoader, TensorDataset

SIDE, DIGITS, DARKEST = 8, 10, 16
TEST_SHARE = 0.2


def load(seed):
    """Return images (n, 1, 8, 8) from 0 to 1 and their digits, to train on and to test on."""
    from sklearn.datasets import load_digits

    data = load_digits()
    order = np.random.default_rng(seed).permutation(len(data.data))
    test, train = np.split(order, [int(TEST_SHARE * len(order))])
    x = (data.images[:, None] / DARKEST).astype(np.float32)
    return tuple(probtorch.tensor(a) for i in (train, test) for a in (x[i], data.target[i]))


class Net(nn.Module):
    """Shapes: images are ``(batch, 1, 8, 8)``, the result is ``(batch, 10)`` logits."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.dropout = nn.Dropout(0.25)
        self.fc1 = nn.Linear(32 * (SIDE // 2) ** 2, 64)
        self.fc2 = nn.Linear(64, DIGITS)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = probtorch.flatten(self.dropout(x), 1)
        return self.fc2(F.relu(self.fc1(x)))


def moved(x):
    """Each image moved by -1, 0 or 1 pixel in both directions."""
    padded = F.pad(x, (1, 1, 1, 1))
    corner = probtorch.randint(0, 3, (2, len(x), 1))
    rows, columns = corner + probtorch.arange(SIDE)
    image = probtorch.arange(len(x))[:, None, None]
    return padded[image, 0, rows[:, :, None], columns[:, None, :]].unsqueeze(1)


def train(net, x, y, settings):
    """Return the mean loss of each epoch."""
    loader = DataLoader(
        TensorDataset(x, y), batch_size=settings.batch, shuffle=True, drop_last=True
    )
    optimizer = optim.Adam(net.parameters(), lr=settings.lr)
    scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=settings.epochs)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    if settings.compile:
        step = probtorch.compile(step)
    losses = []
    for epoch in range(settings.epochs):
        net.train()
        total = sum(step(moved(images), digits).item() for images, digits in loader)
        losses.append(total / len(loader))
        scheduler.step()
        if (epoch + 1) % max(1, settings.epochs // 5) == 0:
            print(f"epoch {epoch + 1}: loss {losses[-1]:.4f}", flush=True)
    return losses


def straight_line(x, y, x_test, y_test):
    """Percent read right by a linear classifier of the pixels: what a network has to beat."""
    from sklearn.linear_model import LogisticRegression

    flat = [a.numpy().reshape(len(a), -1) for a in (x, x_test)]
    fit = LogisticRegression(max_iter=500).fit(flat[0], y.numpy())
    return 100.0 * fit.score(flat[1], y_test.numpy())


def figure(net, x, y, losses, path):
    """Draw the training, the first filters and the test images that are read least well."""
    from matplotlib.figure import Figure

    with probtorch.no_grad():
        log_probs = F.log_softmax(net(x), dim=1)
        filters = net.conv1.weight.squeeze(1).numpy()
    right = log_probs[probtorch.arange(len(y)), y]
    worst = right.argsort()[:16]
    canvas = Figure(figsize=(10, 3.4), layout="constrained")
    curve, seen, wrong = canvas.subplots(1, 3)
    curve.semilogy(np.arange(1, len(losses) + 1), losses)
    curve.set_xlabel("epoch")
    curve.set_ylabel("loss, nats per image")
    curve.spines[["top", "right"]].set_visible(False)
    seen.imshow(tiles(filters), cmap="RdBu")
    seen.set_title("the 16 filters of the first layer", fontsize=10)
    wrong.imshow(tiles(x[worst].squeeze(1).numpy()), cmap="gray_r")
    wrong.set_title("the 16 test images read least well", fontsize=10)
    for place, (label, read) in enumerate(zip(y[worst], log_probs[worst].argmax(1), strict=True)):
        row, column = divmod(place, 4)
        at = column * (SIDE + 2) + SIDE, row * (SIDE + 2) + SIDE
        text = f"{label.item()}" if label == read else f"{label.item()} as {read.item()}"
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
        wrong.text(*at, text, color="tab:red", fontsize=8, ha="right", va="bottom", bbox=box)
    for axes in (seen, wrong):
        axes.set_axis_off()
    canvas.savefig(path, dpi=90)


def tiles(images):
    """One picture of 16 images in four rows."""
    images = np.pad(images, ((0, 0), (1, 1), (1, 1)))
    side = images.shape[-1]
    return images.reshape(4, 4, side, side).transpose(0, 2, 1, 3).reshape(4 * side, 4 * side)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch", type=int, default=64, help="images per step")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument(
        "--compile", action=argparse.BooleanOptionalAction, default=True, help="the training step"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the files")
    settings = parser.parse_args()

    x, y, x_test, y_test = load(settings.seed)
    probtorch.manual_seed(settings.seed)
    net = Net()
    began = time.perf_counter()
    losses = train(net, x, y, settings)
    seconds = time.perf_counter() - began
    print(f"{sum(p.numel() for p in net.parameters())} weights, {seconds:.1f} s")

    net.eval()
    with probtorch.no_grad():
        right = (net(x_test).argmax(dim=1) == y_test).sum().item()
    print(f"test images read right: {right} of {len(y_test)}, {100.0 * right / len(y_test):.1f} %")
    print(f"linear classifier: {straight_line(x, y, x_test, y_test):.1f} %")

    settings.out.mkdir(parents=True, exist_ok=True)
    figure(net, x_test, y_test, losses, settings.out / "convolution.png")
    print(f"wrote {settings.out}/convolution.png")


if __name__ == "__main__":
    main()
