"""Batches of a new shape: eager once, native from the second time on, and resumed bit for bit."""

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch.infer import SVI, AutoNormal
from probtorch.optim import Adam

RNG = np.random.default_rng(0)
BATCHES = {n: probtorch.tensor(RNG.normal(size=n)) for n in (4, 5, 6, 7)}


def model(y):
    mu = probtorch.sample("mu", dist.Normal(0.0, 1.0))
    with probtorch.plate("row", len(y)):
        probtorch.sample("y", dist.Normal(mu, 1.0), obs=y)


def fit():
    return SVI(model, AutoNormal(model), Adam({"lr": 0.01}), seed=0)


def took(svi, *sizes):
    """Which of some steps were native."""
    found = []
    for n in sizes:
        svi.step(BATCHES[n])
        function = svi.compiled._function
        found.append(function is not None and function.last is not None)
        if function is not None:
            function.last = None
    return found


def test_first_step_of_a_new_shape_is_eager_and_the_next_native():
    # The very first step makes parameters, and says nothing of shapes.
    assert took(fit(), 4, 4, 5, 4, 5, 5, 6, 4) == [
        False,
        True,
        False,
        True,
        True,
        True,
        False,
        True,
    ]


def test_losses_are_those_of_eager_steps():
    order = [4, 4, 5, 6, 5, 7, 4, 6]
    ours, eager = fit(), fit()
    losses = [ours.step(BATCHES[n]) for n in order]
    with probtorch.configure(jit=False):
        expected = [eager.step(BATCHES[n]) for n in order]
    np.testing.assert_allclose(losses, expected, rtol=1e-10)


@pytest.mark.parametrize("at", [1, 2, 3, 5])
def test_resumed_fits_go_on_bit_for_bit(at):
    order = [4, 4, 5, 6, 5, 6, 7, 5]
    whole = fit()
    states = []
    for n in order:
        states.append(whole.state_dict())
        whole.step(BATCHES[n])
    resumed = fit()
    resumed.load_state_dict(states[at])
    for n in order[at:]:
        resumed.step(BATCHES[n])
    for name, value in whole.get_params().items():
        np.testing.assert_array_equal(resumed.get_params()[name].numpy(), value.numpy())


def test_states_saved_before_shapes_were_kept_are_read():
    svi = fit()
    svi.step(BATCHES[4])
    state = svi.state_dict()
    del state["shapes"]
    other = fit()
    other.load_state_dict(state)
    assert np.isfinite(other.step(BATCHES[5]))


def test_going_back_to_a_state_forgets_later_shapes():
    svi = fit()
    took(svi, 4, 4)
    state = svi.state_dict()
    assert took(svi, 5, 5) == [False, True]
    svi.load_state_dict(state)
    assert took(svi, 5, 5) == [False, True]
