"""Semi-supervised variational autoencoder: digits read with one label per fourteen images.

The model M2 of Kingma et al. (2014): a network makes an image of a digit y and of eight numbers z,
the style. The guide guesses y from the image and z from both. Where the label is missing the bound
is summed over the ten digits exactly (`TraceEnum_ELBO`), so unlabelled images teach the classifier
too. It starts from what the labelled images alone can teach, which is also what its accuracy is set
against. Run it with ``python models/ss_vae/model.py``; the data come with scikit-learn.
"""

import argparse
import time
from pathlib import Path

import numpy as np

import probtorch
import probtorch.distributions as dist
from probtorch import handlers, nn
from probtorch.infer import SVI, TraceEnum_ELBO
from probtorch.nn.functional import cross_entropy
from probtorch.optim import Adam

SIDE, PIXELS, DIGITS, LATENT, HIDDEN = 8, 64, 10, 8, 200
# The images were scanned as 32 x 32 bits; a pixel counts the dark ones among 4 x 4.
DARKEST = 16
TEST_SHARE = 0.2


def load(labels, seed):
    """Return (x, y) with labels, x without, and (x, y) to test on; as many labels of each digit."""
    from sklearn.datasets import load_digits

    data = load_digits()
    order = np.random.default_rng(seed).permutation(len(data.data))
    test, train = np.split(order, [int(TEST_SHARE * len(order))])
    labelled = np.concatenate(
        [train[data.target[train] == digit][: labels // DIGITS] for digit in range(DIGITS)]
    )
    others = np.setdiff1d(train, labelled)
    x, y = data.data.astype(np.float32), data.target
    return (x[labelled], y[labelled]), x[others], (x[test], y[test])


def network(inputs, outputs):
    return nn.Sequential(
        nn.Linear(inputs, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, outputs),
    )


class SemiSupervised:
    """Digits and styles make images; the guide goes back."""

    def __init__(self, weight):
        self.decoder = network(DIGITS + LATENT, PIXELS)
        self.classifier = network(PIXELS, DIGITS)
        self.encoder = network(PIXELS + DIGITS, 2 * LATENT)
        self.weight = weight

    def model(self, unlabelled, x, y, batch):
        for name in ("decoder", "classifier"):
            probtorch.module(name, getattr(self, name))
        with probtorch.plate("unlabelled", len(unlabelled), batch) as rows:
            self.image("unlabelled", unlabelled[rows])
        with probtorch.plate("labelled", len(x)):
            self.image("labelled", x, y)
            # The bound teaches the classifier by images without a label only.
            with handlers.scale(scale=self.weight):
                probtorch.sample("read", self.digit(x), obs=y)

    def guide(self, unlabelled, x, y, batch):
        for name in ("encoder", "classifier"):
            probtorch.module(name, getattr(self, name))
        with probtorch.plate("unlabelled", len(unlabelled), batch) as rows:
            seen = unlabelled[rows]
            enumerated = {"enumerate": "parallel"}
            guess = probtorch.sample("y unlabelled", self.digit(seen), infer=enumerated)
            probtorch.sample("z unlabelled", self.style(seen, guess))
        with probtorch.plate("labelled", len(x)):
            probtorch.sample("z labelled", self.style(x, y))

    def image(self, kind, x, y=None):
        """State an image, its style and its digit, which may be known."""
        any_digit = dist.Categorical(logits=probtorch.zeros(DIGITS))
        y = probtorch.sample(f"y {kind}", any_digit, obs=y)
        z = probtorch.sample(f"z {kind}", dist.Normal(probtorch.zeros(LATENT), 1.0).to_event(1))
        logits = self.decoder(joined(one_hot(y), z))
        probtorch.sample(f"x {kind}", dist.Binomial(DARKEST, logits=logits).to_event(1), obs=x)

    def digit(self, x):
        """What the classifier makes of an image."""
        return dist.Categorical(logits=self.classifier(scaled(x)))

    def style(self, x, y):
        """What the guide makes of an image of digit y: independent normals."""
        loc, log_scale = self.encoder(joined(scaled(x), one_hot(y))).chunk(2, dim=-1)
        return dist.Normal(loc, log_scale.exp()).to_event(1)


def scaled(x):
    return x / DARKEST - 0.5


def one_hot(y):
    return probtorch.one_hot(y, DIGITS).float()


def joined(*parts):
    """Vectors side by side; their batch dims may differ where digits are enumerated."""
    shape = probtorch.broadcast_shapes(*(p.shape[:-1] for p in parts))
    return probtorch.cat([p.expand(*shape, p.shape[-1]) for p in parts], dim=-1)


def supervise(classifier, x, y, steps=300):
    """Train a classifier on labelled images alone."""
    optimizer = Adam(classifier.parameters(), lr=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        cross_entropy(classifier(scaled(x)), y).backward()
        optimizer.step()


def learn(net, unlabelled, x, y, batch, *, frozen, steps, lr):
    """Optimise the bound, at first with the classifier held; returns the engine and the losses."""
    svi = SVI(net.model, net.guide, Adam({"lr": lr}), TraceEnum_ELBO())
    data = unlabelled, x, y, batch
    # First the images are to learn from the classifier: as long as they are noise it would learn
    # nonsense from them.
    net.classifier.requires_grad_(False)
    svi.run(frozen, *data, progress_bar=False)
    net.classifier.requires_grad_(True)
    return svi, svi.run(steps, *data, progress_bar=False).losses


def accuracy(classifier, x, y):
    """Share of images whose digit is read right, in percent."""
    with probtorch.no_grad():
        return 100.0 * (classifier(scaled(x)).argmax(-1) == y).float().mean().item()


def figure(net, path):
    """Draw digits in ten styles: a row is a style, a column a digit."""
    from matplotlib.figure import Figure

    with probtorch.no_grad():
        styles = probtorch.randn(8, 1, LATENT).expand(8, DIGITS, LATENT)
        digits = one_hot(probtorch.arange(DIGITS)).expand(8, DIGITS, DIGITS)
        images = net.decoder(joined(digits, styles)).sigmoid().numpy()
    tiles = np.pad(images.reshape(8, DIGITS, SIDE, SIDE), ((0, 0), (0, 0), (1, 1), (1, 1)))
    canvas = Figure(figsize=(5, 4), layout="constrained")
    axes = canvas.subplots()
    axes.imshow(tiles.transpose(0, 2, 1, 3).reshape(8 * (SIDE + 2), -1), cmap="gray_r")
    axes.set_title("eight styles (rows) of every digit", fontsize=10)
    axes.set_axis_off()
    canvas.savefig(path, dpi=90)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--labels", type=int, default=100, help="labelled images to learn from")
    parser.add_argument(
        "--frozen", type=int, default=800, help="steps before the classifier learns"
    )
    parser.add_argument("--steps", type=int, default=800, help="steps after that")
    parser.add_argument("--batch", type=int, default=64, help="images without label per step")
    parser.add_argument("--weight", type=float, default=20.0, help="of labels, for the classifier")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the files")
    settings = parser.parse_args()

    labelled, unlabelled, (x_test, y_test) = load(settings.labels, settings.seed)
    x, y, unlabelled, x_test, y_test = map(
        probtorch.tensor, (*labelled, unlabelled, x_test, y_test)
    )
    print(f"{len(x)} labels, {len(unlabelled)} images without, {len(x_test)} to test on")
    probtorch.manual_seed(settings.seed)
    net = SemiSupervised(settings.weight)
    supervise(net.classifier, x, y)
    print(f"labelled images alone: {accuracy(net.classifier, x_test, y_test):.1f} % right")

    began = time.perf_counter()
    svi, losses = learn(
        net, unlabelled, x, y, settings.batch,
        frozen=settings.frozen, steps=settings.steps, lr=settings.lr,
    )  # fmt: skip
    seconds = time.perf_counter() - began
    print(f"{svi.num_steps} steps in {seconds:.1f} s, {1e3 * seconds / svi.num_steps:.2f} ms each")
    images = len(x) + len(unlabelled)
    print(f"loss at the end: {losses[-100:].mean() / images:.2f} nats per image")
    print(f"semi-supervised: {accuracy(net.classifier, x_test, y_test):.1f} % right")

    settings.out.mkdir(parents=True, exist_ok=True)
    figure(net, settings.out / "ss_vae.png")
    print(f"wrote {settings.out}/ss_vae.png")


if __name__ == "__main__":
    main()
