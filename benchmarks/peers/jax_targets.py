"""The posteriors of kernel_targets.py as a JAX user writes them, in the same coordinates."""

import numpy as np

from benchmarks.kernel_targets import SIGMA, Y, logistic_data

__all__ = ["check", "log_density"]


def log_density(name):
    """Return a log density of a vector, up to a constant; None for one not written here."""
    import jax
    import jax.numpy as jnp

    def normal(q):
        return -0.5 * (q * q).sum()

    def heavy(q):
        return -2.5 * jnp.log1p(q * q / 4.0).sum()

    def skewed(q):
        return (0.5 * q - jnp.exp(q)).sum()

    def schools(q):
        mu, log_tau, z = q[0], q[1], q[2:]
        tau = jnp.exp(log_tau)
        # HalfCauchy(5) of tau, and the logarithm of its derivative.
        prior = -0.5 * (mu / 5.0) ** 2 - jnp.log1p((tau / 5.0) ** 2) + log_tau
        apart = (Y - mu - tau * z) / SIGMA
        return prior - 0.5 * (z * z).sum() - 0.5 * (apart * apart).sum()

    x, y = logistic_data()

    def logistic(q):
        logits = x @ q
        return -0.125 * (q * q).sum() + (y * logits - jax.nn.softplus(logits)).sum()

    known = {f.__name__: f for f in (normal, heavy, skewed, schools, logistic)}
    return known.get(name)


def check(density, target):
    """Raise unless the gradient at some points is that of the target."""
    import jax

    gradient, points = jax.grad(density), np.random.default_rng(5).normal(size=(3, target.dim))
    for q in points:
        np.testing.assert_allclose(gradient(q), target.value_and_grad(q)[1], rtol=1e-9, atol=1e-9)
