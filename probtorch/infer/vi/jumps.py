"""Objectives that jump where Python goes another way: pathwise gradients do not see a jump.

``int(b)``, ``if b > 0:`` and ``range(int(n))`` of a reparameterised site are answered by guards, so
a sampler of densities, which compares values, stays right. A pathwise gradient is the slope between
the jumps: of a model that uses ``int(b)`` alone it is that of the prior, and SVI goes there without
any sign of it. Differences with small steps see the same slope (gradient_check.py), so this looks
for places nearby where Python turns another way, and compares the values on the two sides, twice:
the difference of a form that goes through steadily (``b if b > 0 else 0``, interpolation in a
table) becomes smaller with the distance of the sides, that of a jump does not.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable

import numpy as np

from probtorch.autograd.escapes import NotAlike, Watch, random_values
from probtorch.diagnostics.findings import InferenceWarning
from probtorch.errors import user_frame
from probtorch.infer.model_runs import OUTSIDE

__all__ = ["Side", "warn_of_a_jump"]

# A run of the objective: its value and what was seen.
Side = tuple[float, Watch]

# How far parameters are moved to find another turn, in units of a direction of length 1.
REACH = (0.3, -0.3, 3.0, -3.0)
# How often the distance is halved before the first look at the two sides, and before the second.
HALVINGS = (12, 5)
# The least jump relative to the values, and up to which relative difference draws are the same.
JUMP, SAME = 1e-6, 1e-4
# After these seconds a slow model is left alone.
PATIENCE = 5.0


def warn_of_a_jump(name: str, here: Side, probe: Callable[[float], Side]) -> None:
    """Warn if an objective jumps at a place nearby where Python turns another way.

    Parameters
    ----------
    name : str
        Of the model.
    here : tuple of float and Watch
        The objective with the parameters as they are.
    probe : callable
        The same with parameters moved by a step; the draws come from the same random bits.

    Warns
    -----
    InferenceWarning
    """
    if not here[1].turns:
        return
    end = time.perf_counter() + PATIENCE
    for step in REACH:
        try:
            there = probe(step)
            if _way(there) != _way(here) and _look_between(name, here, there, step, probe, end):
                return
        except (NotAlike, *OUTSIDE):
            continue
        if time.perf_counter() > end:
            return


def _way(side: Side) -> list[bool | int]:
    return [turn.value for turn in side[1].turns]


def _look_between(
    name: str, near: Side, far: Side, step: float, probe: Callable[[float], Side], end: float
) -> bool:
    """Close in on a turn that differs, and compare its two sides; whether that led to a warning."""
    way, low, high = _way(near), 0.0, step
    differences: list[float] = []
    for halvings in HALVINGS:
        for _ in range(halvings):
            if time.perf_counter() > end:
                return False
            middle = 0.5 * (low + high)
            found = probe(middle)
            if _way(found) == way:
                low, near = middle, found
            else:
                high, far = middle, found
        differences.append(abs(near[0] - far[0]))
    large = JUMP * max(1.0, abs(near[0]))
    stays = large < differences[1] < math.inf and differences[1] > 0.5 * differences[0]
    if not (stays and _drawn_alike(near[1], far[1])):
        return False
    _warn(name, near, far)
    return True


def _drawn_alike(one: Watch, two: Watch) -> bool:
    """Whether two runs drew the same: a sampler that rejects may jump by itself."""
    ones, twos = random_values(one), random_values(two)
    return len(ones) == len(twos) and all(
        a == b and x.shape == y.shape and np.allclose(x, y, rtol=SAME, atol=SAME)
        for (a, x), (b, y) in zip(ones, twos, strict=True)
    )


def _warn(name: str, near: Side, far: Side) -> None:
    turn, other = next(
        (a, b) for a, b in zip(near[1].turns, far[1].turns, strict=False) if a.value != b.value
    )
    sites = ", ".join(turn.what.sites) or "a parameter"
    warnings.warn_explicit(
        f"the objective of {name} jumps where {sites} makes Python turn another way\n"
        "  expected: an objective without jumps: pathwise gradients do not see them, so the fit "
        "leaves them out of account\n"
        f"  got:      {near[0]:.6g} where {turn}, {far[0]:.6g} next to it, where it is "
        f"{other.value}\n"
        "  fix:      write the choice as a discrete site, which is summed out or scored, or in a "
        "steady form (sigmoid for a step, interpolation for a table); or sample with NUTS, which "
        "compares values",
        InferenceWarning,
        *(user_frame() or ("<unknown>", 0)),
    )
