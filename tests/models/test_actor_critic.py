"""The actor learns to balance a pole on a cart, whose motion is that of the paper."""

import runpy
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "models" / "actor_critic" / "model.py"


def test_twelve_updates_beat_random_pushes(run_model, number):
    small = ["--updates", 12, "--carts", 16, "--length", 16]
    report = run_model("actor_critic", "--no-compile", *small)
    random = number("random pushes: ", report)
    # Random pushes are known to last 22 ticks.
    assert 18.0 < random < 27.0
    assert number("100 new poles stood ", report) > 1.2 * random


def test_carts_move_by_newtons_laws():
    script = runpy.run_path(str(SCRIPT))
    rng = np.random.default_rng(0)
    carts = script["Carts"](5, rng)
    carts.state = before = rng.normal(0.0, 0.1, (5, 4))
    right = np.array([True, False, True, False, True])
    carts.push(right)
    tick, cart, pole, half = 0.02, 1.0, 0.1, 0.5
    for row in range(5):
        _, speed, angle, turning = before[row]
        force = 10.0 if right[row] else -10.0

        sine, cosine = np.sin(angle), np.cos(angle)
        # Momentum of both, and torque on a rod about its end: inertia 4/3 m l^2.
        masses = [[cart + pole, pole * half * cosine], [cosine, 4.0 / 3.0 * half]]
        forces = [force + pole * half * turning**2 * sine, 9.8 * sine]
        pull, tipping = np.linalg.solve(masses, forces)
        expected = before[row] + tick * np.array([speed, pull, turning, tipping])
        np.testing.assert_allclose(carts.state[row], expected, rtol=1e-9)


@pytest.mark.slow
def test_full_training_keeps_poles_up(run_model, number):
    # The README states 478.
    assert number("100 new poles stood ", run_model("actor_critic")) > 300.0
