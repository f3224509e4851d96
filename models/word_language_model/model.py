"""Word-level language models: the next word of the Python language reference.

An LSTM and a transformer read a text word by word and predict the next one; both are set against
counts of words and of pairs of words. The text is the help on topics that ships with Python
(``pydoc_data.topics``). Run it with ``python models/word_language_model/model.py``.
"""

import argparse
import collections
import math
import re
import time
from pathlib import Path

import numpy as np

import probtorch
import probtorch.nn.functional as F
from probtorch import nn, optim

# Rarer words are all the same one to the models; the last part of the text is for testing.
LEAST, TEST_SHARE = 3, 0.1
RARE = "<rare>"
WIDTH, HEADS, DROPOUT = 128, 4, 0.2


def load():
    """Return the numbers of the words of the text, to train on and to test on, and the words."""
    from pydoc_data.topics import topics

    # In an order of their own: neighbours in the alphabet need not be alike.
    order = np.random.default_rng(0).permutation(len(topics))
    text = "\n".join(list(topics.values())[i] for i in order).lower()
    words = re.findall(r"[a-z]+|[0-9]+|[^\sa-z0-9]", text)
    split = len(words) - int(TEST_SHARE * len(words))
    counts = collections.Counter(words[:split])
    vocabulary = [RARE, *(w for w, n in counts.most_common() if n >= LEAST)]
    number = {word: i for i, word in enumerate(vocabulary)}
    numbers = probtorch.tensor([number.get(w, 0) for w in words])
    return numbers[:split], numbers[split:], vocabulary


class LSTM(nn.Module):
    """Shapes: words are ``(time, batch)``, the result is ``(time, batch, words)`` and a state."""

    def __init__(self, words):
        super().__init__()
        self.drop = nn.Dropout(DROPOUT)
        self.embedding = nn.Embedding(words, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH)
        self.decoder = nn.Linear(WIDTH, words)
        # One matrix reads words and writes them (Press and Wolf 2017).
        self.decoder.weight = self.embedding.weight
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)

    def forward(self, words, state=None):
        x, state = self.lstm(self.drop(self.embedding(words)), state)
        return self.decoder(self.drop(x)), tuple(part.detach() for part in state)


class Transformer(nn.Module):
    """Shapes as of `LSTM`; what lies before the piece of text is not remembered."""

    def __init__(self, words, longest=512):
        super().__init__()
        self.drop = nn.Dropout(DROPOUT)
        self.embedding = nn.Embedding(words, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, DROPOUT, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(WIDTH)
        self.decoder = nn.Linear(WIDTH, words)
        self.decoder.weight = self.embedding.weight
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        self.register_buffer("position", waves(longest), persistent=False)

    def forward(self, words, state=None):
        length = len(words)
        x = self.embedding(words) * math.sqrt(WIDTH) + self.position[:length]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        x = self.norm(self.encoder(self.drop(x), mask=mask, is_causal=True))
        return self.decoder(x), state


def waves(longest):
    """Places in the text as sines and cosines (Vaswani et al. 2017), (longest, 1, WIDTH)."""
    angle = np.arange(longest)[:, None] / 10000.0 ** (np.arange(0, WIDTH, 2) / WIDTH)
    table = np.stack([np.sin(angle), np.cos(angle)], -1).reshape(longest, 1, WIDTH)
    return probtorch.tensor(table, dtype=probtorch.float32)


def columns(numbers, batch):
    """The text as `batch` columns, (time, batch), each one going on where the last one ends."""
    length = len(numbers) // batch
    return numbers[: length * batch].view(batch, length).t().contiguous()


def pieces(text, length):
    """Pairs of a piece of the columns and the same one word later."""
    for start in range(0, len(text) - length, length):
        yield text[start : start + length], text[start + 1 : start + length + 1]


def train(net, text, settings):
    """Return the mean loss of each epoch."""
    optimizer = optim.Adam(net.parameters(), lr=settings.lr)
    text = columns(text, settings.batch)
    steps = sum(1 for _ in pieces(text, settings.length))
    scheduler = optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=settings.lr, total_steps=settings.epochs * steps
    )

    def step(words, targets, state):
        optimizer.zero_grad()
        logits, state = net(words, state)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        return loss.detach(), state

    if settings.compile:
        step = probtorch.compile(step)
    losses = []
    net.train()
    for epoch in range(settings.epochs):
        state, total = None, 0.0
        for words, targets in pieces(text, settings.length):
            loss, state = step(words, targets, state)
            total += loss.item()
            scheduler.step()
        losses.append(total / steps)
        print(f"  epoch {epoch + 1}: {math.exp(losses[-1]):.1f} per word", flush=True)
    return losses


def perplexity(net, text, length):
    """Perplexity per word of a text, read from its beginning in one column."""
    net.eval()
    total, count, state = 0.0, 0, None
    with probtorch.no_grad():
        for words, targets in pieces(text[:, None], length):
            logits, state = net(words, state)
            total += F.cross_entropy(logits.squeeze(1), targets.squeeze(1), reduction="sum").item()
            count += len(targets)
    return math.exp(total / count)


def perplexity_of_counts(text, test, words):
    """Perplexities by counts of words, and of pairs of words (Witten and Bell 1991)."""
    text, test = text.numpy(), test.numpy()
    single = (np.bincount(text, minlength=words) + 1.0) / (len(text) + words)
    pairs = collections.Counter(zip(text[:-1].tolist(), text[1:].tolist(), strict=True))
    before = np.bincount(text[:-1], minlength=words)
    kinds = np.bincount([first for first, _ in pairs], minlength=words)
    first, second = test[:-1], test[1:]
    both = np.array([pairs[pair] for pair in zip(first.tolist(), second.tolist(), strict=True)])
    # Words never met before anything else fall back to single words.
    weight = np.maximum(kinds[first], 1)
    chance = (both + weight * single[second]) / (before[first] + weight)
    return [math.exp(-np.log(p).mean()) for p in (single[second], chance)]


def write(net, vocabulary, count, length):
    """Words that the model makes up, each drawn given those before."""
    net.eval()
    made = [vocabulary.index("the")]
    with probtorch.no_grad():
        for _ in range(count):
            logits, _ = net(probtorch.tensor(made[-length:])[:, None])
            chance = F.softmax(logits[-1, 0] / 0.8, dim=0)
            chance[0] = 0.0
            made.append(probtorch.multinomial(chance, 1).item())
    return " ".join(vocabulary[i] for i in made)


def figure(curves, bars, path):
    """Draw the training and the perplexities on the test text."""
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(10, 3.4), layout="constrained")
    curve, chart = canvas.subplots(1, 2)
    for name, losses in curves.items():
        curve.semilogy(np.arange(1, len(losses) + 1), np.exp(losses), "o-", ms=3, label=name)
    curve.set_xlabel("epoch")
    curve.set_ylabel("perplexity while training")
    curve.legend(frameon=False)
    drawn = chart.barh(list(bars), list(bars.values()), height=0.6)
    chart.bar_label(drawn, fmt="%.0f", padding=3)
    chart.set_xlabel("perplexity per word of the test text")
    chart.invert_yaxis()
    for axes in (curve, chart):
        axes.spines[["top", "right"]].set_visible(False)
    canvas.savefig(path, dpi=90)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch", type=int, default=32, help="columns of text")
    parser.add_argument("--length", type=int, default=32, help="words per step and column")
    parser.add_argument("--words", type=int, default=None, help="to learn from; all by default")
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument(
        "--compile", action=argparse.BooleanOptionalAction, default=True, help="the training step"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the files")
    settings = parser.parse_args()

    text, test, vocabulary = load()
    text, test = text[: settings.words], test[: settings.words]
    print(f"{len(text)} words to learn from, {len(test)} to test on, {len(vocabulary)} different")
    single, pairs = perplexity_of_counts(text, test, len(vocabulary))
    bars, curves = {"counts of words": single, "counts of pairs": pairs}, {}
    for kind in (LSTM, Transformer):
        name = kind.__name__
        probtorch.manual_seed(settings.seed)
        net = kind(len(vocabulary))
        began = time.perf_counter()
        print(f"{name}, {sum(p.numel() for p in net.parameters())} weights", flush=True)
        curves[name] = train(net, text, settings)
        bars[name] = perplexity(net, test, settings.length)
        print(f"  {time.perf_counter() - began:.1f} s")
        print(f"  writes: {write(net, vocabulary, 30, settings.length)}")
    for name, value in bars.items():
        print(f"{name}: perplexity {value:.1f}")

    settings.out.mkdir(parents=True, exist_ok=True)
    figure(curves, bars, settings.out / "word_language_model.png")
    print(f"wrote {settings.out}/word_language_model.png")


if __name__ == "__main__":
    main()
