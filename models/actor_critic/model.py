"""Actor and critic: a pole is balanced on a cart (Barto, Sutton and Anderson 1983).

One network proposes pushes to the left or right and judges how long the pole will stay up; it
learns from many carts at once, by advantages over its own judgement (Mnih et al. 2016). The cart is
a few lines of NumPy below. Run it with ``python models/actor_critic/model.py``.
"""

import argparse
import math
import time
from pathlib import Path

import numpy as np

import probtorch
import probtorch.nn.functional as F
from probtorch import nn, optim
from probtorch.distributions import Categorical

# Metres, kilograms, seconds, newtons and radians, as in the paper; LIMIT is that of many tables.
GRAVITY, CART, POLE, HALF_LENGTH, FORCE, TICK = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
TRACK, TILT, LIMIT = 2.4, math.radians(12), 500
# Discount, and how far advantages look ahead (Schulman et al. 2016); weights of the loss.
DISCOUNT, TRACE, CRITIC, ENTROPY = 0.99, 0.95, 1.0, 0.01


class Carts:
    """Carts side by side: position, speed, angle and its speed, (carts, 4)."""

    def __init__(self, count, rng):
        self.rng, self.steps = rng, np.zeros(count, int)
        self.state = rng.uniform(-0.05, 0.05, (count, 4))

    def push(self, right):
        """Push each cart for one tick. Returns (fell, late): which ended, and by the clock."""
        _, speed, angle, turning = self.state.T
        force = np.where(right, FORCE, -FORCE)
        total = CART + POLE
        drive = (force + POLE * HALF_LENGTH * turning**2 * np.sin(angle)) / total
        inertia = HALF_LENGTH * (4.0 / 3.0 - POLE * np.cos(angle) ** 2 / total)
        tipping = (GRAVITY * np.sin(angle) - np.cos(angle) * drive) / inertia
        pull = drive - POLE * HALF_LENGTH * tipping * np.cos(angle) / total
        change = np.stack([speed, pull, turning, tipping], axis=1)
        self.state = self.state + TICK * change
        self.steps += 1
        fell = (np.abs(self.state[:, 0]) > TRACK) | (np.abs(self.state[:, 2]) > TILT)
        return fell, ~fell & (self.steps >= LIMIT)

    def renew(self, ended):
        """Start anew where it ended. Returns how long those carts were up."""
        lengths = self.steps[ended]
        self.steps[ended] = 0
        self.state[ended] = self.rng.uniform(-0.05, 0.05, (ended.sum(), 4))
        return lengths.tolist()


class Policy(nn.Module):
    """Shapes: states are ``(..., 4)``, the results are ``(..., 2)`` logits and ``(...)`` values."""

    def __init__(self, hidden=64):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, hidden), nn.Tanh(), nn.Linear(hidden, hidden))
        self.actor = nn.Linear(hidden, 2)
        self.critic = nn.Linear(hidden, 1)

    def forward(self, state):
        x = F.tanh(self.body(state))
        return self.actor(x), self.critic(x).squeeze(-1)


def seen(carts):
    return probtorch.tensor(carts.state, dtype=probtorch.float32)


def roll_out(net, carts, length):
    """Let the carts run. Returns states, actions, advantages, returns, and how long poles stood."""
    states, actions, values, alive, fresh, lengths = [], [], [], [], [], []
    with probtorch.no_grad():
        for _ in range(length):
            state = seen(carts)
            logits, value = net(state)
            action = Categorical(logits=logits).sample()
            fell, late = carts.push(action.numpy() == 1)
            # Where the clock ended it the pole would have stood on: its value counts.
            ahead = net(seen(carts))[1].numpy()
            states.append(state)
            actions.append(action)
            values.append(value.numpy())
            alive.append(np.where(fell, 0.0, ahead))
            fresh.append(fell | late)
            lengths += carts.renew(fell | late)
    values, alive, fresh = (np.stack(x) for x in (values, alive, fresh))
    # Each tick is worth so much that values lie between 0 and 1.
    surprise = 1.0 - DISCOUNT + DISCOUNT * alive - values
    advantages, later = np.zeros_like(surprise), 0.0
    for t in reversed(range(length)):
        later = surprise[t] + DISCOUNT * TRACE * ~fresh[t] * later
        advantages[t] = later
    as_tensor = [
        probtorch.tensor(a, dtype=probtorch.float32) for a in (advantages, advantages + values)
    ]
    return probtorch.stack(states), probtorch.stack(actions), *as_tensor, lengths


def train(net, carts, settings):
    """Return how long poles stood that ended in each update, on average."""
    optimizer = optim.Adam(net.parameters(), lr=settings.lr)
    # Large steps late let the critic forget, and poles fall again.
    scheduler = optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, total_iters=settings.updates)

    def update(states, actions, advantages, returns):
        logits, values = net(states)
        policy = Categorical(logits=logits)
        scaled = (advantages - advantages.mean()) / (advantages.std() + 1e-6)
        loss = -(policy.log_prob(actions) * scaled).mean()
        loss = loss + CRITIC * F.mse_loss(values, returns)
        loss = loss - ENTROPY * policy.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        return loss.detach()

    if settings.compile:
        update = probtorch.compile(update)
    curve = []
    for number in range(settings.updates):
        *batch, lengths = roll_out(net, carts, settings.length)
        update(*batch)
        scheduler.step()
        curve.append(np.mean(lengths) if lengths else np.nan)
        if (number + 1) % max(1, settings.updates // 8) == 0:
            recent = np.nanmean(curve[-20:])
            print(f"update {number + 1}: poles stood {recent:.0f} ticks", flush=True)
    return curve


def trial(choose, count, seed):
    """Return how long each of some poles stood, at most LIMIT ticks."""
    carts = Carts(count, np.random.default_rng(seed))
    stood = np.full(count, LIMIT)
    for tick in range(LIMIT):
        fell, _ = carts.push(choose(carts))
        stood = np.minimum(stood, np.where(fell, tick + 1, LIMIT))
        if (stood <= tick).all():
            break
    return stood


def angles(choose, seed):
    """Return the angle of one pole over time, until it falls, in degrees."""
    carts, path = Carts(1, np.random.default_rng(seed)), []
    for _ in range(LIMIT):
        fell, _ = carts.push(choose(carts))
        path.append(math.degrees(carts.state[0, 2]))
        if fell[0]:
            break
    return path


def figure(curve, paths, path):
    """Draw how long poles stood while learning, and the angle of one."""
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(10, 3.4), layout="constrained")
    learning, one = canvas.subplots(1, 2)
    learning.plot(curve)
    learning.axhline(LIMIT, color="black", linewidth=0.8, linestyle=":")
    learning.set_xlabel("update")
    learning.set_ylabel("ticks until a pole fell")
    for name, angle in paths.items():
        one.plot(angle, label=name, linewidth=1)
    one.set_xlabel("tick, 0.02 s each")
    one.set_ylabel("angle of a pole, degrees")
    one.legend(frameon=False)
    for axes in (learning, one):
        axes.spines[["top", "right"]].set_visible(False)
    canvas.savefig(path, dpi=90)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--updates", type=int, default=150)
    parser.add_argument("--carts", type=int, default=32)
    parser.add_argument("--length", type=int, default=32, help="ticks per update")
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument(
        "--compile", action=argparse.BooleanOptionalAction, default=True, help="the update"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the files")
    settings = parser.parse_args()

    probtorch.manual_seed(settings.seed)
    rng = np.random.default_rng(settings.seed)
    net = Policy()
    began = time.perf_counter()
    curve = train(net, Carts(settings.carts, rng), settings)
    print(f"{settings.updates} updates in {time.perf_counter() - began:.1f} s")

    def learnt(carts):
        with probtorch.no_grad():
            return net(seen(carts))[0].argmax(dim=-1).numpy() == 1

    def blind(carts):
        return rng.random(len(carts.state)) < 0.5

    stood = trial(learnt, 100, settings.seed + 1000)
    whole = (stood == LIMIT).sum()
    print(f"100 new poles stood {stood.mean():.1f} ticks of {LIMIT}, {whole} to the end")
    print(f"random pushes: {trial(blind, 100, settings.seed + 1000).mean():.1f} ticks")
    paths = {"learnt": angles(learnt, 0), "random pushes": angles(blind, 0)}

    settings.out.mkdir(parents=True, exist_ok=True)
    figure(curve, paths, settings.out / "actor_critic.png")
    print(f"wrote {settings.out}/actor_critic.png")


if __name__ == "__main__":
    main()
