"""`CyclicalSGLD` against the law of its draws, place by place in a cycle, by algebra and on a grid.

With exact gradients a step is a known Gaussian transition. Of a normal posterior variances follow
by a recursion, in a cycle that begins where it ends; of two modes in one dimension the law of the
chain is that of a matrix on a fine grid.
"""

import math

import numpy as np
import pytest
from scipy import stats

import probtorch
from probtorch.diagnostics.convergence import ess_mean
from probtorch.infer import MCMC, CyclicalSGLD, Target

# Seeds are fixed; of a sound mean one in 1.7 million is further off than so many standard errors.
SIGMAS = 5.0
SD = np.array([0.5, 1.0, 3.0])
MASS = np.array([0.3, 1.0, 5.0])  # inverse, not that of the posterior
NORMAL = Target.from_density(lambda q: -0.5 * ((q / probtorch.tensor(SD)) ** 2).sum(), 3)


def squares(step_size, cycle_length):
    """Squares of the steps of a cycle, as the paper's formula (1) has them."""
    place = np.arange(cycle_length)
    return step_size**2 * 0.5 * (np.cos(np.pi * place / cycle_length) + 1.0)


def variances(steps, explored, temperature):
    """Variances of the draws of a cycle on `NORMAL`, shape (draws, 3), at its fixed point."""
    heat = np.where(np.arange(len(steps)) < explored, temperature, 1.0)
    now = SD**2
    for _ in range(10_000):
        found = []
        for square, share in zip(steps, heat):
            now = (1.0 - 0.5 * square * MASS / SD**2) ** 2 * now + share * square * MASS
            found.append(now)
    return np.array(found[explored:])


def by_place(step_size, *, cycle_length=6, exploration=0.0, temperature=1.0, cycles=4000):
    """Draws by place in the cycle, (chains, cycles, places, 3), and what their variances are."""
    kernel = CyclicalSGLD(
        NORMAL,
        step_size=step_size,
        cycle_length=cycle_length,
        exploration=exploration,
        temperature=temperature,
        inverse_mass_matrix=MASS,
    )
    explored = round(exploration * cycle_length)
    places = cycle_length - explored
    mcmc = MCMC(kernel, cycles * places, 50 * places, num_chains=4, seed=3, progress_bar=False)
    mcmc.diagnose = False
    x = mcmc.run(init_params=np.zeros((4, 3))).positions
    law = variances(squares(step_size, cycle_length), explored, temperature)
    return x.reshape(4, cycles, places, 3), law


def scores(x, law):
    """How many standard errors means and variances are off, by place and coordinate."""
    found = []
    for place, row in enumerate(law):
        for i, variance in enumerate(row):
            z = x[:, :, place, i] / math.sqrt(variance)
            found.append(z.mean() * math.sqrt(ess_mean(z)))
            found.append(((z**2).mean() - 1.0) * math.sqrt(ess_mean(z**2) / 2.0))
    return np.abs(found)


@pytest.mark.parametrize(
    "settings",
    [
        {"step_size": 0.8},
        {"step_size": 0.8, "exploration": 0.5, "temperature": 0.0},
        {"step_size": 0.8, "exploration": 0.5, "temperature": 0.4},
        {"step_size": 0.3, "cycle_length": 15, "exploration": 0.2},
    ],
    ids=["no exploration", "cold exploration", "cool exploration", "short steps"],
)
def test_draws_of_a_normal_have_the_variances_of_their_places_in_a_cycle(settings):
    x, law = by_place(**settings)
    assert scores(x, law).max() < SIGMAS
    # The test of the test: places are told apart, and from the posterior, where steps are long.
    if settings["step_size"] > 0.5:
        assert scores(x, law[::-1]).max() > SIGMAS
        assert scores(x, np.tile(SD**2, (len(law), 1))).max() > SIGMAS


def test_the_law_goes_to_the_posterior_as_steps_go_to_nothing():
    """In the square of the step size; with draws that agree where steps are short."""
    off = [
        np.abs(variances(squares(h, 6), 0, 1.0) / SD**2 - 1.0).max() for h in (0.4, 0.2, 0.1, 0.05)
    ]
    ratios = np.array(off[:-1]) / off[1:]
    assert np.all((3.5 < ratios) & (ratios < 4.5)) and off[-1] < 2e-3
    x, law = by_place(0.1, cycles=20_000)
    assert scores(x, law).max() < SIGMAS
    assert scores(x, np.tile(SD**2, (6, 1))).max() < SIGMAS  # as well as so many draws can tell
    # A cold exploration is no part of such a limit: the draws after it are too narrow.
    assert variances(squares(0.05, 6), 3, 0.0)[0].min() < 0.7 * SD.min() ** 2


GRID = np.linspace(-11.0, 11.0, 661)


def slope(x):
    """Of the log density 0.3 N(-3, 1) + 0.7 N(3, 1)."""
    left, right = 0.3 * stats.norm.pdf(x, -3.0), 0.7 * stats.norm.pdf(x, 3.0)
    return (-(x + 3.0) * left - (x - 3.0) * right) / (left + right)


def law_of_two_modes(steps):
    """Probabilities of the grid's cells for each place of a cycle, at the cycle's fixed point."""
    moves = []
    for square in steps:
        centre = GRID + 0.5 * square * slope(GRID)
        move = stats.norm.pdf(GRID[None], centre[:, None], math.sqrt(square))
        moves.append(move / move.sum(axis=1, keepdims=True))
    whole = np.linalg.multi_dot(moves)
    # What the cycle leaves as it is, with a sum of 1 in the place of one equation too many.
    equations = whole.T - np.eye(len(GRID))
    equations[0] = 1.0
    now, found = np.linalg.solve(equations, np.eye(len(GRID))[0]), []
    for move in moves:
        now = now @ move
        found.append(now)
    return np.array(found)


def test_draws_of_two_modes_are_as_often_in_each_as_the_law_of_the_chain_says():
    """Cycles of 8 steps, the longest 1.7; what steps so long make of the shares is in the law."""

    def hills(q):
        left, right = (math.log(w) - 0.5 * (q[0] - m) ** 2 for w, m in ((0.3, -3.0), (0.7, 3.0)))
        return probtorch.logaddexp(left, right)

    kernel = CyclicalSGLD(
        Target.from_density(hills, 1),
        step_size=1.7,
        cycle_length=8,
        exploration=0.0,
        temperature=1.0,
        inverse_mass_matrix=[1.0],
    )
    mcmc = MCMC(kernel, 8 * 8000, 8 * 50, num_chains=4, seed=2, progress_bar=False)
    mcmc.diagnose = False
    x = mcmc.run(init_params=np.full((4, 1), 3.0)).positions.reshape(4, 8000, 8)
    law = law_of_two_modes(squares(1.7, 8))
    for place in (0, 3, 5, 7):
        for bound in (-3.5, -2.0, 0.0, 2.0, 3.5):
            below = (x[:, :, place] < bound).astype(float)
            # Half of the cell at the bound is below it.
            share = law[place, GRID < bound - 1e-9].sum() + 0.5 * law[
                place, np.abs(GRID - bound) < 1e-9
            ].sum()  # fmt: skip
            error = math.sqrt(share * (1.0 - share) / ess_mean(below))
            assert abs(below.mean() - share) < SIGMAS * error, (place, bound)
            assert error < 0.02
    both = (x[..., 7] < 0.0).mean(axis=1)
    assert np.all((0.1 < both) & (both < 0.6))  # every chain finds both
