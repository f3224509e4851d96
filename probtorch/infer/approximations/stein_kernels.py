"""Kernels between particles: how far a particle's gradient reaches, and what keeps them apart.

A kernel of mode "norm" is one number for two particles, one of mode "vector" a number for each
coordinate, which depends on this coordinate alone. `SteinKernel.evaluate` returns the kernel of all
pairs with its derivative, from which `stein_force` makes the direction of [liu2016]_. Plain NumPy.
"""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from probtorch.core.rng import Generator
from probtorch.core.showing import call_of
from probtorch.core.signatures import explain_calls
from probtorch.errors import ArgumentError
from probtorch.infer.sequential.weights import uniforms
from probtorch.infer.starts.path_starts import normal_numbers

__all__ = [
    "GraphicalKernel",
    "IMQKernel",
    "IMQSteinKernel",
    "LinearKernel",
    "MixtureKernel",
    "RBFKernel",
    "RBFSteinKernel",
    "RandomFeatureKernel",
    "SteinKernel",
    "stein_force",
]

# A factor of the bandwidth, or a function from the number of particles to it; None for 1 / log n.
BandwidthFactor: TypeAlias = float | Callable[[int], float] | None
# Where each named part of a particle is: slices of its coordinates.
Parts: TypeAlias = Mapping[str, tuple[int, int]]


class SteinKernel(abc.ABC):
    """Base of kernels between particles."""

    # "norm" or "vector"; None leaves it to who asks.
    mode: str | None = None

    @abc.abstractmethod
    def evaluate(
        self, particles: np.ndarray, mode: str = "norm", parts: Parts | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the kernel of all pairs of particles, and how it changes with the first of them.

        Parameters
        ----------
        particles : ndarray, shape (n, dim)
        mode : {"norm", "vector"}
            For a kernel that has none of its own.
        parts : dict of str to (start, stop), optional
            Where each site is among the coordinates.

        Returns
        -------
        kernel : ndarray, shape (n, n) or (n, n, dim)
            ``k(x_j, x_i)`` at ``[j, i]``; with a last dim for a kernel per coordinate.
        slope : ndarray, shape (n, n, dim)
            Its derivative with respect to ``x_j``: of a kernel per coordinate, of each with respect
            to its own.
        """

    def __repr__(self) -> str:
        return call_of(self)


def stein_force(
    kernel: np.ndarray, slope: np.ndarray, gradients: np.ndarray, repulsion: float = 1.0
) -> np.ndarray:
    """Return the direction in which particles approach the posterior fastest [liu2016]_.

    Parameters
    ----------
    kernel, slope : ndarray
        Of `SteinKernel.evaluate`.
    gradients : ndarray, shape (n, dim)
        Of the log density at the particles.
    repulsion : float
        Weight of the second term.

    Returns
    -------
    ndarray, shape (n, dim)
        ``mean over j of k(x_j, x_i) gradient_j + repulsion * slope_ji``.
    """
    if kernel.ndim == 2:
        pull = kernel.T @ gradients
    else:
        pull = np.einsum("jid,jd->id", kernel, gradients)
    return np.asarray((pull + repulsion * slope.sum(axis=0)) / len(gradients))


class RBFKernel(SteinKernel):
    """The Gaussian kernel ``exp(-|x - y|^2 / h)``, h from the median of the squared distances.

    Parameters
    ----------
    mode : {"norm", "vector", "matrix"}, optional
        One number for two particles, or one for each coordinate, with a bandwidth of its own. A
        matrix has one of these on its diagonal. Who uses the kernel chooses by default.
    matrix_mode : {"norm_diag", "vector_diag"}
        Which of them.
    bandwidth_factor : float or callable, optional
        What the median is multiplied by; ``1 / log(n)`` for n particles by default.

    Raises
    ------
    ArgumentError
        For another mode.

    References
    ----------
    [liu2016]_.
    """

    def __init__(
        self,
        mode: str | None = None,
        matrix_mode: str = "norm_diag",
        bandwidth_factor: BandwidthFactor = None,
    ) -> None:
        if mode not in (None, "norm", "vector", "matrix"):
            raise _bad_mode("RBFKernel(mode=...)", "'norm', 'vector' or 'matrix'", mode)
        if matrix_mode not in ("norm_diag", "vector_diag"):
            expected = "'norm_diag' or 'vector_diag'"
            raise _bad_mode("RBFKernel(matrix_mode=...)", expected, matrix_mode)
        self.mode = matrix_mode.removesuffix("_diag") if mode == "matrix" else mode
        self.matrix_mode, self.bandwidth_factor = matrix_mode, bandwidth_factor

    def evaluate(
        self, particles: np.ndarray, mode: str = "norm", parts: Parts | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return kernel and slope; see `SteinKernel.evaluate`."""
        return _radial(_gaussian, particles, self.mode or mode, self.bandwidth_factor)


class RBFSteinKernel(SteinKernel):
    """`RBFKernel` under Pyro's name, in the mode of `SVGD`.

    Parameters
    ----------
    bandwidth_factor : float or callable, optional
        See `RBFKernel`.
    """

    def __init__(self, bandwidth_factor: BandwidthFactor = None) -> None:
        self.bandwidth_factor = bandwidth_factor

    def evaluate(
        self, particles: np.ndarray, mode: str = "norm", parts: Parts | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return kernel and slope; see `SteinKernel.evaluate`."""
        return _radial(_gaussian, particles, mode, self.bandwidth_factor)


class IMQKernel(SteinKernel):
    """The inverse multiquadric ``(const^2 + |x - y|^2)^expon``, whose reach ends nowhere.

    Parameters
    ----------
    mode : {"norm", "vector"}, optional
        See `RBFKernel`.
    const : float
        Positive.
    expon : float
        Between -1 and 0.

    Raises
    ------
    ArgumentError
        For another mode, or numbers out of their ranges.

    References
    ----------
    [gorham2017]_, theorem 8.
    """

    def __init__(self, mode: str | None = None, const: float = 1.0, expon: float = -0.5) -> None:
        if mode not in (None, "norm", "vector"):
            raise _bad_mode("IMQKernel(mode=...)", "'norm' or 'vector'", mode)
        _check_imq("IMQKernel", "const", const, "expon", expon)
        self.mode, self.const, self.expon = mode, const, expon

    def evaluate(
        self, particles: np.ndarray, mode: str = "norm", parts: Parts | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return kernel and slope; see `SteinKernel.evaluate`."""
        shape = functools.partial(_multiquadric, self.const**2, self.expon)
        return _radial(shape, particles, self.mode or mode, None, scaled=False)


class IMQSteinKernel(SteinKernel):
    """The inverse multiquadric ``(alpha + |x - y|^2 / h)^beta`` in Pyro's form.

    Parameters
    ----------
    alpha : float
        Positive.
    beta : float
        Between -1 and 0.
    bandwidth_factor : float or callable, optional
        See `RBFKernel`.

    Raises
    ------
    ArgumentError
        For numbers out of their ranges.
    """

    def __init__(
        self, alpha: float = 0.5, beta: float = -0.5, bandwidth_factor: BandwidthFactor = None
    ) -> None:
        _check_imq("IMQSteinKernel", "alpha", alpha, "beta", beta)
        self.alpha, self.beta, self.bandwidth_factor = alpha, beta, bandwidth_factor

    def evaluate(
        self, particles: np.ndarray, mode: str = "norm", parts: Parts | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return kernel and slope; see `SteinKernel.evaluate`."""
        shape = functools.partial(_multiquadric, self.alpha, self.beta)
        return _radial(shape, particles, mode, self.bandwidth_factor)


class LinearKernel(SteinKernel):
    """``x @ y + 1``: particles at rest have the mean and covariance of a normal posterior.

    Parameters
    ----------
    mode : {"norm"}

    Raises
    ------
    ArgumentError
        For another mode.

    References
    ----------
    [liu2018]_, theorem 3.3.
    """

    def __init__(self, mode: str = "norm") -> None:
        if mode != "norm":
            raise _bad_mode("LinearKernel(mode=...)", "'norm'", mode)
        self.mode = mode

    def evaluate(
        self, particles: np.ndarray, mode: str = "norm", parts: Parts | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return kernel and slope; see `SteinKernel.evaluate`."""
        n, dim = particles.shape
        return particles @ particles.T + 1.0, np.broadcast_to(particles, (n, n, dim)).copy()


class RandomFeatureKernel(SteinKernel):
    """The Gaussian kernel by random cosines, as many as particles.

    Parameters
    ----------
    mode : {"norm"}
    bandwidth_subset : int, optional
        How many particles the bandwidth is computed from; all by default.
    bandwidth_factor : float or callable, optional
        See `RBFKernel`.
    seed : int
        Of the directions and phases, which stay as they are.

    Raises
    ------
    ArgumentError
        For another mode, or a subset without a pair.

    References
    ----------
    [liu2018]_, equations 5 and 6.
    """

    def __init__(
        self,
        mode: str = "norm",
        bandwidth_subset: int | None = None,
        bandwidth_factor: BandwidthFactor = None,
        *,
        seed: int = 0,
    ) -> None:
        if mode != "norm":
            raise _bad_mode("RandomFeatureKernel(mode=...)", "'norm'", mode)
        if bandwidth_subset is not None and bandwidth_subset < 2:
            raise ArgumentError(
                "RandomFeatureKernel(bandwidth_subset=...)",
                expected="at least 2 particles",
                got=repr(bandwidth_subset),
                fix="leave it out for all",
            )
        self.mode, self.bandwidth_subset = mode, bandwidth_subset
        self.bandwidth_factor, self.seed = bandwidth_factor, seed

    def evaluate(
        self, particles: np.ndarray, mode: str = "norm", parts: Parts | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return kernel and slope; see `SteinKernel.evaluate`."""
        n, dim = particles.shape
        generator = Generator(self.seed)
        directions = normal_numbers(generator, (n, dim))
        phases = 2.0 * math.pi * uniforms(generator, n)
        some = particles[: self.bandwidth_subset]
        h = _bandwidth(((some[:, None] - some) ** 2).sum(-1), self.bandwidth_factor)
        # Of exp(-|x - y|^2 / h) the spectrum is normal with variance 2 / h.
        scaled = directions * math.sqrt(2.0 / float(h))
        angles = particles @ scaled.T + phases
        features = math.sqrt(2.0 / n) * np.cos(angles)
        bent = -math.sqrt(2.0 / n) * np.sin(angles)
        slope = np.einsum("jl,il,ld->jid", bent, features, scaled)
        return features @ features.T, slope


class MixtureKernel(SteinKernel):
    """A sum of kernels with positive weights.

    Parameters
    ----------
    ws : sequence of float
    kernel_fns : sequence of SteinKernel
    mode : {"norm", "vector"}
        That of all of them.

    Raises
    ------
    ArgumentError
        If there are not as many weights as kernels, one is not positive, or a kernel has another
        mode.
    """

    def __init__(
        self, ws: Sequence[float], kernel_fns: Sequence[SteinKernel], mode: str = "norm"
    ) -> None:
        if len(ws) != len(kernel_fns) or not ws or not all(w > 0.0 for w in ws):
            raise ArgumentError(
                "MixtureKernel(ws, kernel_fns)",
                expected="a positive weight for each kernel",
                got=f"weights {list(ws)} for {len(kernel_fns)} kernels",
                fix="write MixtureKernel([0.5, 0.5], [RBFKernel(), IMQKernel()])",
            )
        if mode not in ("norm", "vector") or any(k.mode not in (None, mode) for k in kernel_fns):
            expected = "'norm' or 'vector', and kernels of this mode"
            raise _bad_mode("MixtureKernel(mode=...)", expected, mode)
        self.ws, self.kernel_fns, self.mode = tuple(ws), tuple(kernel_fns), mode

    def evaluate(
        self, particles: np.ndarray, mode: str = "norm", parts: Parts | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return kernel and slope; see `SteinKernel.evaluate`."""
        found = [k.evaluate(particles, self.mode or mode, parts) for k in self.kernel_fns]
        kernel = np.sum([w * k for w, (k, _) in zip(self.ws, found)], axis=0)
        return kernel, np.sum([w * slope for w, (_, slope) in zip(self.ws, found)], axis=0)


class GraphicalKernel(SteinKernel):
    """A kernel for each site, which looks at the coordinates of this site alone.

    Parameters
    ----------
    mode : {"matrix"}
    local_kernel_fns : dict of str to SteinKernel, optional
        By site.
    default_kernel_fn : SteinKernel, optional
        For the other sites; `RBFKernel` by default.

    Raises
    ------
    ArgumentError
        For another mode. When it is used: for a site that there is not.

    References
    ----------
    [wang2018]_, theorem 1.
    """

    def __init__(
        self,
        mode: str = "matrix",
        local_kernel_fns: Mapping[str, SteinKernel] | None = None,
        default_kernel_fn: SteinKernel | None = None,
    ) -> None:
        if mode != "matrix":
            raise _bad_mode("GraphicalKernel(mode=...)", "'matrix'", mode)
        self.mode = "vector"
        self.local_kernel_fns = dict(local_kernel_fns or {})
        self.default_kernel_fn = default_kernel_fn or RBFKernel("norm")

    def evaluate(
        self, particles: np.ndarray, mode: str = "norm", parts: Parts | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return kernel and slope; see `SteinKernel.evaluate`."""
        n, dim = particles.shape
        parts = {"x": (0, dim)} if parts is None else parts
        for name in self.local_kernel_fns:
            if name not in parts:
                raise ArgumentError(
                    "GraphicalKernel(local_kernel_fns=...)",
                    expected=f"sites among {', '.join(map(repr, parts))}",
                    got=repr(name),
                    fix="drop it",
                )
        kernel, slope = np.empty((n, n, dim)), np.empty((n, n, dim))
        for name, (start, stop) in parts.items():
            own = self.local_kernel_fns.get(name, self.default_kernel_fn)
            part = {name: (0, stop - start)}
            k, along = own.evaluate(particles[:, start:stop], "norm", part)
            kernel[:, :, start:stop] = k[:, :, None] if k.ndim == 2 else k
            slope[:, :, start:stop] = along
        return kernel, slope


# ------------------------------------------------------------------------------------------ helpers


def _radial(
    shape: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    particles: np.ndarray,
    mode: str,
    factor: BandwidthFactor,
    scaled: bool = True,
) -> tuple[np.ndarray, np.ndarray]:
    """Kernel and slope of a function of the squared distance over the bandwidth."""
    away = particles[:, None] - particles[None]
    squared = away * away if mode == "vector" else (away * away).sum(-1)
    h = _bandwidth(squared, factor) if scaled else np.ones(())
    kernel, derivative = shape(squared / h)
    inner = 2.0 * derivative / h
    return kernel, (inner if mode == "vector" else inner[:, :, None]) * away


def _bandwidth(squared: np.ndarray, factor: BandwidthFactor) -> np.ndarray:
    """The median of the squared distances of different particles, times the factor."""
    n = len(squared)
    if n < 2:
        return np.ones(squared.shape[2:])
    median = np.median(squared[np.triu_indices(n, 1)], axis=0)
    if factor is None:
        factor = 1.0 / math.log(n)
    times = factor(n) if callable(factor) else factor
    # Particles that are all in one place: their differences are 0 whatever they are divided by.
    return np.where(median > 0.0, median * times, 1.0)


def _gaussian(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    value = np.exp(-x)
    return value, -value


def _multiquadric(const: float, power: float, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    value = (const + x) ** power
    return value, power * value / (const + x)


def _bad_mode(call: str, expected: str, mode: object) -> ArgumentError:
    return ArgumentError(call, expected=expected, got=repr(mode), fix="leave it out")


def _check_imq(owner: str, const: str, c: float, power: str, p: float) -> None:
    if not (0.0 < c < math.inf and -1.0 < p < 0.0):
        raise ArgumentError(
            f"{owner}({const}, {power})",
            expected=f"a positive {const}, and a {power} between -1 and 0",
            got=f"{c!r} and {p!r}",
            fix="leave them out",
        )


explain_calls(globals())
