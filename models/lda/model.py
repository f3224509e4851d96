"""Latent Dirichlet allocation: the topics that short documents are made of (Blei et al. 2003).

A topic is a distribution over words, a document a mixture of topics, and each word comes from one
topic, which is summed out exactly (`TraceEnum_ELBO`). The mixture of a document is guessed from its
words by a neural network, so a step needs some of the documents only.
The documents are drawn in the script from topics that are bars in a square of 25 words (Griffiths
and Steyvers 2004), so that what is found can be seen. Run it with ``python models/lda/model.py``.
"""

import argparse
import time
from pathlib import Path

import numpy as np
from scipy.optimize import linear_sum_assignment

import probtorch
import probtorch.distributions as dist
from probtorch import nn
from probtorch.distributions import constraints
from probtorch.infer import SVI, TraceEnum_ELBO
from probtorch.optim import Adam

SIDE = 5
TOPICS, WORDS = 2 * SIDE, SIDE * SIDE
LENGTH = 100
# Concentrations: documents are made of few topics.
MIXED, SPREAD = 0.3, 0.5
HIDDEN = 64


def bars():
    """Return the true topics, rows and columns of the square; shape (topics, words)."""
    rows = np.kron(np.eye(SIDE), np.ones(SIDE))
    columns = np.kron(np.ones(SIDE), np.eye(SIDE))
    return np.concatenate([rows, columns]) / SIDE


def draw(documents, rng):
    """Return words, shape (LENGTH, documents), and the true mixtures."""
    mixtures = rng.dirichlet(np.full(TOPICS, MIXED), documents)
    words = [rng.choice(WORDS, LENGTH, p=mixture @ bars()) for mixture in mixtures]
    return np.stack(words, axis=1), mixtures


def count(words):
    """Return how often each word is in each document, shape (documents, WORDS)."""
    return np.stack([np.bincount(column, minlength=WORDS) for column in words.T]).astype(np.float32)


def model(words, counts, batch):
    """State topics, documents' mixtures, the topic of each word, and the words."""
    with probtorch.plate("topics", TOPICS):
        topic = probtorch.sample("topic", dist.Dirichlet(SPREAD * probtorch.ones(WORDS)))
    with probtorch.plate("documents", words.shape[1], batch) as rows:
        mixture = probtorch.sample("mixture", dist.Dirichlet(MIXED * probtorch.ones(TOPICS)))
        with probtorch.plate("words", LENGTH):
            which = probtorch.sample(
                "which", dist.Categorical(mixture), infer={"enumerate": "parallel"}
            )
            probtorch.sample("word", dist.Categorical(topic[which]), obs=words[:, rows])


class Guide:
    """A Dirichlet for each topic; a network from the words of a document to that of its mixture."""

    def __init__(self):
        self.net = nn.Sequential(
            nn.Linear(WORDS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, TOPICS), nn.Softplus()
        )

    def __call__(self, words, counts, batch):
        probtorch.module("net", self.net)
        with probtorch.plate("topics", TOPICS):
            pseudo = probtorch.param("pseudo", start, constraints.positive, event_dim=1)
            probtorch.sample("topic", dist.Dirichlet(pseudo))
        with probtorch.plate("documents", words.shape[1], batch) as rows:
            probtorch.sample("mixture", self.mixture(counts[rows]))

    def mixture(self, counts):
        """What the network makes of the counts of a document's words."""
        # The prior, and as many words as the network finds of each topic.
        return dist.Dirichlet(MIXED + LENGTH * self.net(counts / counts.sum(-1, keepdim=True)))


def start():
    """Topics to begin with: any."""
    return 1.0 + 10.0 * probtorch.rand(TOPICS, WORDS)


def log_likelihood(words, mixtures, topics):
    """Return the mean log probability of a word, given mixtures and topics."""
    chances = np.take_along_axis(mixtures @ topics, words.T, axis=1)
    return np.log(chances).mean()


def completed(guide, topics, words):
    """Predict the second half of each document by the first half; nats per word."""
    half = LENGTH // 2
    with probtorch.no_grad():
        mixtures = guide.mixture(probtorch.tensor(count(words[:half]))).mean.numpy()
    return log_likelihood(words[half:], mixtures, topics)


def matched(topics):
    """Return the topics in the order of the true ones, and how far they are (total variation)."""
    far = 0.5 * np.abs(topics[:, None] - bars()).sum(-1)
    found, true = linear_sum_assignment(far)
    order = found[np.argsort(true)]
    return topics[order], far[order, np.arange(TOPICS)]


def figure(topics, path):
    """Draw the true topics above those found."""
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(9, 2.2), layout="constrained")
    for axes, topic in zip(canvas.subplots(2, TOPICS).flat, [*bars(), *topics], strict=True):
        axes.imshow(topic.reshape(SIDE, SIDE), cmap="gray_r", vmin=0.0, vmax=1.0 / SIDE)
        axes.set_xticks([])
        axes.set_yticks([])
    canvas.axes[0].set_ylabel("true")
    canvas.axes[TOPICS].set_ylabel("found")
    canvas.savefig(path, dpi=90)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--documents", type=int, default=1000, help="to learn from")
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--batch", type=int, default=32, help="documents per step")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the files")
    settings = parser.parse_args()

    rng = np.random.default_rng(settings.seed)
    words, _ = draw(settings.documents, rng)
    new, mixtures = draw(500, rng)
    probtorch.manual_seed(settings.seed)
    guide = Guide()
    svi = SVI(model, guide, Adam({"lr": settings.lr}), TraceEnum_ELBO())
    data = probtorch.tensor(words), probtorch.tensor(count(words))
    began = time.perf_counter()
    for _ in range(10):
        result = svi.run(settings.steps // 10, *data, settings.batch, progress_bar=False)
        bound = -result.losses.mean() / words.size
        print(f"step {svi.num_steps}: bound {bound:.3f} nats per word", flush=True)
    seconds = time.perf_counter() - began
    print(f"{svi.num_steps} steps in {seconds:.1f} s, {1e3 * seconds / svi.num_steps:.2f} ms each")

    pseudo = svi.get_params()["pseudo"].numpy()
    found = pseudo / pseudo.sum(-1, keepdims=True)
    topics, far = matched(found)
    print(
        f"topics: {(far < 0.2).sum()} of {TOPICS} found, distance {far.mean():.3f} from the truth"
    )
    print("half of each of 500 new documents predicted by the other half, nats per word:")
    print(f"model: {completed(guide, found, new):.3f}")
    shares = count(words).sum(0, keepdims=True) / words.size
    print(
        f"frequency of words: {log_likelihood(new[LENGTH // 2 :], np.ones((500, 1)), shares):.3f}"
    )
    print(f"truth: {log_likelihood(new[LENGTH // 2 :], mixtures, bars()):.3f}")

    settings.out.mkdir(parents=True, exist_ok=True)
    figure(topics, settings.out / "lda.png")
    print(f"wrote {settings.out}/lda.png")


if __name__ == "__main__":
    main()
