"""Sine waves continued by a recurrent network, fitted by LBFGS in double precision.

An LSTM of two layers reads a wave and predicts its next value at each step; after the end of what
was seen it reads its own predictions. The waves differ in phase alone: the network has to find out
where in its period a wave is. Run it with ``python models/sine_waves/model.py``.
"""

import argparse
import time
from pathlib import Path

import numpy as np

import probtorch
from probtorch import nn, optim

# 25 samples per period.
PERIOD, HIDDEN = 25, 24
# The first sample of a wave does not tell where it goes: so many predictions do not count.
UNTOLD = 4


def load(waves, length, seed):
    """Return waves with random phases, (waves, length), in float64."""
    phase = np.random.default_rng(seed).uniform(0.0, PERIOD, (waves, 1))
    return probtorch.from_numpy(np.sin(2.0 * np.pi / PERIOD * (np.arange(length) + phase)))


class Sequence(nn.Module):
    """Shapes: ``seen`` is ``(waves, time)``, the result is ``(waves, time + future)``."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(1, HIDDEN, num_layers=2, batch_first=True)
        self.linear = nn.Linear(HIDDEN, 1)

    def forward(self, seen, future=0):
        states, last = self.lstm(seen.unsqueeze(-1))
        parts = [self.linear(states)]
        for _ in range(future):
            states, last = self.lstm(parts[-1][:, -1:], last)
            parts.append(self.linear(states))
        return probtorch.cat(parts, dim=1).squeeze(-1)


def train(net, waves, settings):
    """Return the loss at each step of the optimizer."""
    criterion = nn.MSELoss()
    optimizer = optim.LBFGS(net.parameters(), lr=1.0, max_iter=20, line_search_fn="strong_wolfe")
    inputs, targets = waves[:, :-1], waves[:, 1:]

    def closure():
        optimizer.zero_grad()
        loss = criterion(net(inputs)[:, UNTOLD:], targets[:, UNTOLD:])
        loss.backward()
        return loss.detach()

    if settings.compile:
        closure = probtorch.compile(closure)
    losses = []
    for step in range(settings.steps):
        losses.append(optimizer.step(closure).item())
        print(f"step {step}: loss {losses[-1]:.3g}", flush=True)
    return losses


def figure(waves, predicted, seen, losses, path):
    """Draw the training and two waves with their continuation."""
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(10, 3.4), layout="constrained")
    curve, drawn = canvas.subplots(1, 2, width_ratios=(1, 2))
    curve.semilogy(losses, "o-", markersize=3)
    curve.set_xlabel("step of LBFGS (20 iterations each)")
    curve.set_ylabel("mean squared error")
    for wave, guess, colour in zip(waves, predicted, ("tab:blue", "tab:orange"), strict=False):
        drawn.plot(wave, color=colour, alpha=0.4, linewidth=4)
        drawn.plot(np.arange(1, len(guess) + 1), guess, color=colour, linewidth=1)
    drawn.axvline(seen, color="black", linewidth=0.8, linestyle=":")
    drawn.set_title("new waves (thick) and predictions; right of the dots without looking")
    drawn.title.set_fontsize(10)
    for axes in (curve, drawn):
        axes.spines[["top", "right"]].set_visible(False)
    canvas.savefig(path, dpi=90)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--waves", type=int, default=30, help="waves to learn from")
    parser.add_argument("--length", type=int, default=40, help="samples seen of each wave")
    parser.add_argument("--future", type=int, default=100, help="samples to continue")
    parser.add_argument("--steps", type=int, default=10, help="of LBFGS, 20 iterations each")
    parser.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="the loss and its gradient",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the files")
    settings = parser.parse_args()

    probtorch.manual_seed(settings.seed)
    net = Sequence().double()
    began = time.perf_counter()
    losses = train(net, load(settings.waves, settings.length, settings.seed), settings)
    print(f"trained in {time.perf_counter() - began:.1f} s")

    seen, future = settings.length, settings.future
    waves = load(20, seen + future, settings.seed + 1000)
    with probtorch.no_grad():
        # Position t predicts sample t + 1, so the last one belongs to no sample.
        predicted = net(waves[:, :seen], future=future)[:, :-1]
    error = (predicted - waves[:, 1:]) ** 2
    next_one = error[:, UNTOLD : seen - 1].mean().item()
    print(f"new waves, next sample: mean squared error {next_one:.3g}")
    print(f"continued by {future} samples: mean squared error {error[:, seen:].mean().item():.3g}")
    print(f"always zero: mean squared error {(waves**2).mean().item():.3g}")

    settings.out.mkdir(parents=True, exist_ok=True)
    path = settings.out / "sine_waves.png"
    figure(waves.numpy(), predicted.numpy(), seen, losses, path)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
