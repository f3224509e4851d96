"""BlackJAX: its kernels, for the suite that compares kernels with equal settings."""

import functools
from collections.abc import Callable
from typing import NamedTuple

from benchmarks.kernel_targets import PIECE

# Steps of their own warm-up, where a kernel has one.
WARMUP = 1000
DISTRIBUTIONS = ("blackjax", "jax", "jaxlib")


def _algorithms():
    """From a kernel's name to a function of log density, dimension and settings."""
    import blackjax
    import jax
    import jax.numpy as jnp

    def steps(key, mean):
        return jnp.ceil(2.0 * mean * jax.random.uniform(key)).astype(int)

    def ghmc(f, dim, s):
        # Of the momentum sqrt(1 - alpha) is kept.
        alpha = 1.0 - jnp.exp(-2.0 * s["step_size"])
        return blackjax.ghmc(f, s["step_size"], jnp.ones(dim), alpha, 0.05)

    def adjusted(f, dim, s):
        # Their velocities have length 1, ours the square root of the dimension.
        mean = 0.5 * jnp.pi / s["step_size"]
        return blackjax.adjusted_mclmc_dynamic(
            f,
            s["step_size"] * dim**0.5,
            integration_steps_fn=functools.partial(steps, mean=mean),
        )

    def ellipse(f, dim, s):
        return blackjax.elliptical_slice(
            lambda q: f(q) + 0.125 * (q * q).sum(), mean=jnp.zeros(dim), cov=4.0 * jnp.eye(dim)
        )

    def walk(f, dim, s):
        return blackjax.normal_random_walk(f, s["step_size"] * jnp.ones(dim))

    def langevin(f, dim, s):
        # The gradient has half the square of our step size before it, and needs no data.
        made, size = blackjax.sgld(lambda q, _: jax.grad(f)(q)), 0.5 * s["step_size"] ** 2

        def step(key, state):
            moved = made.step(key, state.position, None, size)
            return Moved(moved), None

        return Algorithm(lambda q, key: Moved(q), step)

    return {
        "SGLD, exact gradients": langevin,
        "NUTS": lambda f, dim, s: blackjax.nuts(f, s["step_size"], jnp.ones(dim)),
        "HMC, 5 steps": lambda f, dim, s: blackjax.hmc(f, s["step_size"], jnp.ones(dim), 5),
        "MALA": lambda f, dim, s: blackjax.mala(f, 0.5 * s["step_size"] ** 2),
        "BarkerMH": lambda f, dim, s: blackjax.barker(f, s["step_size"], jnp.ones(dim)),
        "GHMC": ghmc,
        "MCLMC": lambda f, dim, s: blackjax.mclmc(
            f, dim**0.5, s["step_size"] * dim**0.5, inverse_mass_matrix=jnp.ones(dim)
        ),
        "AdjustedMCLMC": adjusted,
        "RandomWalk": walk,
        "EllipticalSlice": ellipse,
    }


class Algorithm(NamedTuple):
    """A kernel, as theirs are."""

    init: Callable
    step: Callable


class Moved(NamedTuple):
    """A state that is a position."""

    position: object


def _ensembles():
    """The same for kernels of many chains, of which theirs are one each."""
    import blackjax
    import jax
    import jax.numpy as jnp

    def together(made):
        def step(key, states):
            keys = jax.random.split(key, states.position.shape[0])
            return jax.vmap(made.step)(keys, states)

        return Algorithm(lambda q, key: jax.vmap(lambda row: made.init(row, key))(q), step)

    def chees(f, dim, s):
        # All chains have one argument for random numbers, so trajectories have one length.
        def steps(key):
            length = 2.0 * s["trajectory_length"] * jax.random.uniform(key)
            return jnp.clip(jnp.ceil(length / s["step_size"]), 1, 1024).astype(int)

        made = blackjax.dynamic_hmc(f, s["step_size"], jnp.ones(dim), integration_steps_fn=steps)
        return together(made)

    def meads(f, dim, s):
        found = {}

        def first(positions, key):
            warmup = blackjax.meads_adaptation(f, num_chains=positions.shape[0])
            (states, found["parameters"]), _ = warmup.run(key, positions, WARMUP)
            return states

        def step(key, states):
            made = blackjax.ghmc(f, **found["parameters"])
            keys = jax.random.split(key, states.position.shape[0])
            return jax.vmap(made.step)(keys, states)

        return Algorithm(first, step)

    return {"ChEESHMC": chees, "MEADS": meads}


def kernel_sampler(kernel, density, start, settings):
    """Return ``run(draws, seed) -> (positions, evaluations or None)``, or None without such kernel.

    Draws are multiples of `PIECE`, the length of the loop that is compiled.

    Parameters
    ----------
    kernel : str
    density : callable
        In JAX.
    start : ndarray, shape (dim,) or (walkers, dim)
    settings : dict
        What ours were tuned to.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np

    make = {**_algorithms(), **_ensembles()}.get(kernel)
    if make is None:
        return None
    algorithm = make(density, start.shape[-1], settings)
    first = algorithm.init(jax.numpy.asarray(start), jax.random.PRNGKey(0))

    @jax.jit
    def chain(state, key):
        def transition(state, key):
            state, info = algorithm.step(key, state)
            taken = jnp.sum(getattr(info, "num_integration_steps", 1))
            return state, (state.position, taken)

        return jax.lax.scan(transition, state, jax.random.split(key, PIECE))

    # Gradients that one of their steps takes.
    each = {"AdjustedMCLMC": 2, "MCLMC": 2}.get(kernel, 1)

    def run(draws, seed=0):
        state, parts = first, []
        for key in jax.random.split(jax.random.PRNGKey(seed), draws // PIECE):
            state, part = chain(state, key)
            parts.append(part)
        parts = jax.block_until_ready(parts)
        positions, taken = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        evaluations = None if kernel == "EllipticalSlice" else each * float(taken.sum())
        if positions.ndim == 3:
            return np.swapaxes(positions, 0, 1), evaluations
        return positions[None], evaluations

    return run
