"""Hand-written densities for the tests of kernels, in NumPy with their gradients or in tensors."""

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.infer.mcmc.integrators import DensityHandle
from probtorch.ops.exponentials import exp


def number(x):
    """A 0-d float64 tensor."""
    return wrap(np.asarray(x, np.float64))


def eager(value_and_grad):
    """A kernel's density from a NumPy function."""

    def density(position):
        value, grad = value_and_grad(position.array)
        return number(value), wrap(np.asarray(grad, np.float64))

    return density


def gaussian(covariance, loc=0.0):
    """Value and gradient of a normal log density."""
    precision = np.linalg.inv(covariance)

    def value_and_grad(q):
        r = q - loc
        return -0.5 * r @ precision @ r, -precision @ r

    return value_and_grad


def curved_gaussian(covariance):
    """The same with its curvature, as `Target.curved_density` has it."""
    precision, plain = np.linalg.inv(covariance), gaussian(covariance)
    dim = len(precision)

    def value_and_grad(q_and_matrix):
        value, grad = plain(q_and_matrix[:dim])
        flat = precision.reshape(-1)
        return value - q_and_matrix[dim:] @ flat, np.concatenate([grad, -flat])

    return value_and_grad


def funnel(q):
    """Neal's funnel: v ~ N(0, 3), x_i ~ N(0, exp(v / 2))."""
    v, x = q[0], q[1:]
    n, square = x.size, x @ x
    value = -(v**2) / 18.0 - 0.5 * n * v - 0.5 * square * np.exp(-v)
    return value, np.concatenate(
        [[-v / 9.0 - 0.5 * n + 0.5 * square * np.exp(-v)], -x * np.exp(-v)]
    )


def funnel_logdensity(q):
    """The same in tensor ops."""
    v, x = q[0], q[1:]
    n = x.shape[0]
    return -(v * v) / 18.0 - 0.5 * n * v - 0.5 * (x * x).sum() * exp(-v)


def banana(q):
    """A curved density in two dims."""
    bent = q[1] - q[0] ** 2
    value = -0.5 * q[0] ** 2 - 2.0 * bent**2
    return value, np.array([-q[0] + 8.0 * bent * q[0], -4.0 * bent])


def handle(context):
    """A kernel's density from the context of a NativeDensity."""
    return DensityHandle(
        wrap(np.asarray(context.function, np.int64)), wrap(np.asarray(context.address, np.int64))
    )
