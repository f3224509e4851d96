"""Angles and directions: pairs of angles that depend on each other, projected and skewed ones.

von_mises.py has the single angle. Integrals over an angle are sums over panels that are short where
the density is high, with Gauss's rule on each; their nodes do not move with the parameters.
"""

from __future__ import annotations

import math

import numpy as np

from probtorch.core.casting import cast
from probtorch.core.dispatch import set_grad_enabled
from probtorch.core.dtype import float64, int64
from probtorch.core.signatures import explain_calls
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Given, Parameter, as_parameter, one_of, param
from probtorch.distributions.normal import HALF_LOG_2PI
from probtorch.distributions.precision import in_double
from probtorch.distributions.source import Source
from probtorch.distributions.validation import check_value
from probtorch.distributions.wrapping import Wrapped
from probtorch.errors import ShapeError
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import clamp, maximum, minimum, sqrt, where
from probtorch.ops.exponential_sums import logsumexp
from probtorch.ops.exponentials import exp, expm1, log, log1p
from probtorch.ops.gathering import gather
from probtorch.ops.movement import expand, unsqueeze
from probtorch.ops.pieces import stack
from probtorch.ops.reduction import cumsum
from probtorch.ops.reduction import sum as total
from probtorch.ops.special import log_i0e, log_ndtr
from probtorch.ops.trigonometry import acos, asinh, atan2, sin, sinh
from probtorch.tensor import Tensor

__all__ = ["ProjectedNormal", "SineBivariateVonMises", "SineSkewed", "VonMises3D"]

PANELS = 32
NODES, WEIGHTS = np.polynomial.legendre.leggauss(8)


def _length(x: Tensor) -> Tensor:
    """The length of vectors, with a derivative of 0 at 0."""
    square = total(x * x, -1)
    some = square > 0.0
    return where(some, sqrt(where(some, square, 1.0)), 0.0)


def _direction(x: Tensor) -> Tensor:
    """Vectors of length 1; the first unit vector where there is no direction."""
    length = unsqueeze(_length(x), -1)
    first = x.new_tensor(np.eye(1, x.array.shape[-1])[0])
    return where(length > 0.0, x / where(length > 0.0, length, 1.0), first)


class VonMises3D(Distribution):
    """Directions in space with density proportional to ``exp((concentration * x).sum())``.

    Density ``f(x) = k * exp(concentration @ x) / (4 * pi * sinh(k))`` with ``k =
    sqrt(concentration @ concentration)``.

    Parameters
    ----------
    concentration : Tensor, shape (..., 3)
        Its direction is the mean direction, its length how near draws are to it; 0 for uniform.

    Notes
    -----
    Draws have pathwise gradients. `mean` and `mode` are the mean direction, a vector of length 1.
    The signature is Pyro's.
    """

    concentration: Parameter = param(constraints.real_vector)
    support = constraints.sphere

    def _infer_event_shape(self) -> Shape:
        if self.concentration.array.shape[-1] != 3:
            raise ShapeError(
                "VonMises3D",
                expected="a concentration of shape (..., 3)",
                got=f"shape {self.concentration.array.shape}",
                fix="in other dims use ProjectedNormal",
            )
        return (3,)

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        k, loc = maximum(_length(self.concentration), 1e-30), _direction(self.concentration)
        # 1 less the cosine, by its quantile function.
        loss = -log1p(rng.uniform(shape[:-1]) * expm1(-2.0 * k)) / k
        loss = unsqueeze(clamp(loss, 0.0, 2.0), -1)
        noise = rng.normal(shape)
        across = _direction(noise - loc * total(noise * loc, -1, True))
        return _direction((1.0 - loss) * loc + sqrt(maximum(loss * (2.0 - loss), 1e-38)) * across)

    def _log_size(self) -> tuple[Tensor, Tensor]:
        """Return the length k of the concentration and log(sinh(k) / k) - k."""
        square = total(self.concentration * self.concentration, -1)
        near = square < 0.04
        # log(sinh(k) / k), whose parts cancel for a small k, is a series in k^2.
        s = where(near, square, 0.0)
        series = s * (1 / 6 - s * (1 / 180 - s * (1 / 2835 - s * (1 / 37800 - s / 467775))))
        k = sqrt(where(near, 1.0, square))
        small = _length(self.concentration)
        far = log(-expm1(-2.0 * k)) - log(2.0 * k)
        return where(near, small, k), where(near, series - small, far)

    def _log_prob(self, x: Tensor) -> Tensor:
        k, size = self._log_size()
        # 1 - cosine, without the difference
        apart = x - _direction(self.concentration)
        return k * total(apart * apart, -1) * -0.5 - size - math.log(4.0 * math.pi)

    def _mean(self) -> Tensor:
        return _direction(self.concentration)

    _mode = _mean

    def _entropy(self) -> Tensor:
        k, size = self._log_size()
        far = k > 0.2
        wide, square = where(far, k, 1.0), k * k
        # 1 - k (coth(k) - 1 / k) and k: what k (1 - cosine) is on average.
        loss = 1.0 + 2.0 * wide * exp(-2.0 * wide) / expm1(-2.0 * wide)
        rest = square * (1 / 3 - square * (1 / 45 - square * (2 / 945 - square / 4725)))
        return where(far, loss, k - rest) + size + math.log(4.0 * math.pi)


class ProjectedNormal(Distribution):
    """Directions of normal vectors of mean `concentration` and standard deviation 1.

    Density ``f(x) = integral(r ** (n - 1) * exp(-sum((r * x - concentration) ** 2) / 2) for r
    in between(0, inf)) / (2 * pi) ** (n / 2)`` with ``n = len(x)``.

    Parameters
    ----------
    concentration : Tensor, shape (..., n)
        Its direction is the mean direction, its length how near draws are to it; 0 for uniform.

    Notes
    -----
    Draws have pathwise gradients. The density holds for any number of dims (Pyro's for 2 and 3):
    it is an integral over the length that the vector had. `mean` and `mode` are the mean direction.

    References
    ----------
    Hernandez-Stumpfhauser, Breidt, van der Woerd (2017), "The general projected normal distribution
    of arbitrary dimension".
    """

    concentration: Parameter = param(constraints.real_vector)
    support = constraints.sphere

    def _infer_event_shape(self) -> Shape:
        n = self.concentration.array.shape[-1]
        if n < 2:
            raise ShapeError(
                "ProjectedNormal",
                expected="a concentration of shape (..., n), n from 2 on",
                got=f"shape {self.concentration.array.shape}",
                fix="on a line there are two directions: use Bernoulli",
            )
        return (n,)

    def _rsample(self, rng: Source, shape: Shape) -> Tensor:
        return _direction(self.concentration + rng.normal(shape))

    def _log_prob(self, x: Tensor) -> Tensor:
        n = self._event_shape[0]
        t = total(self.concentration * x, -1)
        ahead, behind = self.concentration - unsqueeze(t, -1) * x, self.concentration
        forward = t > 0.0
        # Of |concentration|^2 what the length does not explain.
        rest = where(unsqueeze(forward, -1), ahead, behind)
        rest = total(rest * rest, -1) * -0.5 - n * HALF_LOG_2PI
        return rest + where(
            forward,
            _log_moment_ahead(where(forward, t, 1.0), n),
            in_double(lambda t: _log_moment_behind(t, n), where(forward, -1.0, t)),
        )

    def _mean(self) -> Tensor:
        return _direction(self.concentration)

    _mode = _mean


def _log_moment_ahead(t: Tensor, n: int) -> Tensor:
    """Log of the integral of r^(n - 1) exp(-(r - t)^2 / 2) over r > 0, for t > 0.

    The integrals of neighbouring powers have ratios that follow from each other, all positive.
    """
    whole = log_ndtr(t) + HALF_LOG_2PI
    ratio = t + exp(t * t * -0.5 - whole)
    out = whole + log(ratio)
    for k in range(1, n - 1):
        ratio = t + k / ratio
        out = out + log(ratio)
    return out


def _log_moment_behind(t: Tensor, n: int) -> Tensor:
    """Log of the integral of r^(n - 1) exp(r t - r^2 / 2) over r > 0, for t <= 0.

    The trapezium rule in log r around the peak, where the integrand falls off on both sides.
    """
    before = set_grad_enabled(False)
    try:
        peak = 2.0 * n / (sqrt(t * t + 4.0 * n) - t)
        step = min(0.13, 0.5 / math.sqrt(n))
        places = np.arange(-(42.0 / n + 1.0), math.log1p(50.0 / n) + step, step)
        logs = unsqueeze(log(peak), -1) + t.new_tensor(places)
        r = exp(logs)
    finally:
        set_grad_enabled(before)
    terms = n * logs.detach() + r.detach() * (unsqueeze(t, -1) - 0.5 * r.detach())
    return logsumexp(terms, -1) + math.log(step)


class SineBivariateVonMises(Distribution):
    """Two angles that depend on each other: a normal pair on the torus.

    Density ``f(x) = exp(k * cos(a) + l * cos(b) + c * sin(a) * sin(b)) / (4 * pi ** 2 *
    sum(binom(2 * m, m) * (c ** 2 / (4 * k * l)) ** m * Iv(m, k) * Iv(m, l) for m in
    range(inf)))`` with ``k = phi_concentration`` and ``l = psi_concentration`` and ``c =
    correlation`` and ``a = x[0] - phi_loc`` and ``b = x[1] - psi_loc``.

    The density is proportional to exp(k cos(a) + l cos(b) + c sin(a) sin(b)), for angles a and b
    from their locations, concentrations k and l, and a correlation c.

    Parameters
    ----------
    phi_loc, psi_loc : Tensor or number
        Locations of both angles, in radians.
    phi_concentration, psi_concentration : Tensor or number, positive
    correlation : Tensor or number, optional
        With one peak where its square is below the product of the concentrations, else with two.
    weighted_correlation : Tensor or number, optional
        The correlation over the root of that product; exactly one of both is given.

    Notes
    -----
    The normaliser is an integral over one angle with 256 nodes, for concentrations up to 1e8 and
    with two peaks too. Draws are exact to rounding: the first angle by its cdf, the other given it
    is von Mises distributed; they have no pathwise gradient. The signature is Pyro's.

    References
    ----------
    Singh, Hnizdo, Demchuk (2002), "Probabilistic model for two dependent circular variables".
    """

    phi_loc: Parameter = param(constraints.real)
    psi_loc: Parameter = param(constraints.real)
    phi_concentration: Parameter = param(constraints.positive)
    psi_concentration: Parameter = param(constraints.positive)
    correlation: Parameter = param(constraints.real, default=None)
    weighted_correlation: Parameter = param(constraints.real, default=None)
    given = one_of("correlation", "weighted_correlation")
    support = constraints.independent(constraints.circular, 1)

    def _infer_event_shape(self) -> Shape:
        return (2,)

    def _root(self) -> Tensor:
        return sqrt(self.phi_concentration * self.psi_concentration)

    def _correlation(self) -> Tensor:
        return self.weighted_correlation * self._root()

    def _weighted_correlation(self) -> Tensor:
        return self.correlation / self._root()

    def _log_prob(self, x: Tensor) -> Tensor:
        a, b = x[..., 0] - self.phi_loc, x[..., 1] - self.psi_loc
        k, other, c = self.phi_concentration, self.psi_concentration, self.correlation
        s, r = sin(a * 0.5), sin(b * 0.5)
        kernel = -2.0 * (k * s * s + other * r * r) + c * sin(a) * sin(b)
        return kernel - in_double(_log_torus, k, other, c) - math.log(4.0 * math.pi)

    def _mean(self) -> Tensor:
        return stack([self.phi_loc + self.psi_loc * 0.0, self.psi_loc + self.phi_loc * 0.0], -1)

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        batch = shape[:-1]
        given = (self.phi_concentration, self.psi_concentration, self.correlation)
        k, other, c = (cast(t, float64) for t in given)
        level = 2.0 * cast(rng.uniform(batch), float64) - 1.0
        a = where(level < 0.0, -1.0, 1.0) * _angle_at(k, other, c, absolute(level), batch)
        across, along = c * sin(a), other + 0.0 * a
        spread = sqrt(across * across + along * along)
        b = rng.von_mises(spread, batch) + atan2(across, along)
        both = stack([a + self.phi_loc, b + self.psi_loc], -1)
        return (both + math.pi) % (2.0 * math.pi) - math.pi


def _log_marginal(k: Tensor, other: Tensor, c: Tensor, a: Tensor) -> Tensor:
    """Log density of the first angle, less that at 0 but for its normaliser."""
    across, s = c * sin(a), sin(a * 0.5)
    spread = sqrt(other * other + across * across)
    return -2.0 * k * s * s + across * across / (spread + other) + log_i0e(spread)


def _panels(k: Tensor, other: Tensor, c: Tensor) -> Tensor:
    """Edges of panels from 0 to pi along a new last dim, close to each other around the peak."""
    square = c * c
    # Where the slope of k cos(a) + sqrt(other^2 + c^2 sin(a)^2) is 0, if not at 0.
    turn = k * sqrt(other * other + square) / sqrt(maximum(square * (square + k * k), 1e-300))
    peak = acos(minimum(turn, 1.0))
    across = c * sin(peak)
    spread = sqrt(other * other + across * across)
    bend = maximum(absolute(square / spread - k), square * across * across / (spread * spread))
    width = unsqueeze(1.0 / sqrt(bend + sqrt(k + other + absolute(c)) + 1.0), -1)
    peak = unsqueeze(peak, -1)
    low, high = asinh(-peak / width), asinh((math.pi - peak) / width)
    share = k.new_tensor(np.linspace(0.0, 1.0, PANELS + 1))
    inner = peak + width * sinh(low + (high - low) * share)
    return clamp(inner, 0.0, math.pi)


def _integrals(k: Tensor, other: Tensor, c: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """Log integrals of the marginal over panels, of which start and end have the dims."""
    half = (end - start) * 0.5
    nodes = unsqueeze(start, -1) + unsqueeze(half, -1) * (half.new_tensor(NODES) + 1.0)
    k, other, c = (unsqueeze(unsqueeze(t, -1), -1) for t in (k, other, c))
    terms = _log_marginal(k, other, c, nodes) + half.new_tensor(np.log(WEIGHTS))
    return logsumexp(terms, -1) + log(maximum(half, 1e-300))


def _log_torus(k: Tensor, other: Tensor, c: Tensor) -> Tensor:
    """Log of the integral of the marginal from 0 to pi."""
    before = set_grad_enabled(False)
    try:
        edges = _panels(k, other, c)
    finally:
        set_grad_enabled(before)
    edges = edges.detach()
    return logsumexp(_integrals(k, other, c, edges[..., :-1], edges[..., 1:]), -1)


def _angle_at(k: Tensor, other: Tensor, c: Tensor, level: Tensor, batch: Shape) -> Tensor:
    """Return angles in [0, pi] below which the marginal has these shares."""
    edges = _panels(k, other, c)
    masses = _integrals(k, other, c, edges[..., :-1], edges[..., 1:])
    top = logsumexp(masses, -1, True)
    shares = exp(masses - top)
    ends = cumsum(shares, -1)
    place = total(cast(unsqueeze(level, -1) > ends, int64), -1)
    place = unsqueeze(minimum(place, PANELS - 1), -1)
    pick = lambda t: gather(expand(t, (*batch, t.array.shape[-1])), -1, place)[..., 0]
    start, width = pick(edges), pick(edges[..., 1:] - edges[..., :-1])
    share, before = pick(shares), pick(ends - shares)
    wanted = level - before
    f = clamp(wanted / maximum(share, 1e-300), 0.0, 1.0)
    # Newton's method; within a panel the density changes little.
    for _ in range(8):
        end = start + f * width
        found = exp(_integrals(k, other, c, unsqueeze(start, -1), unsqueeze(end, -1)) - top)[..., 0]
        slope = exp(_log_marginal(k, other, c, end) - top[..., 0]) * width
        f = clamp(f - (found - wanted) / maximum(slope, 1e-300), 0.0, 1.0)
    return start + f * width


class SineSkewed(Wrapped):
    """Angles of a symmetric distribution, made lopsided: its density times 1 + skewness * sines.

    Density ``f(x) = base(x) * (1 + sum(skewness * sin(x - loc)))``.

    Parameters
    ----------
    base_dist : Distribution, event shape (n,)
        Of n angles, symmetric around its mean: von Mises or uniform on (-pi, pi), with
        ``to_event(1)``, or SineBivariateVonMises.
    skewness : Tensor, shape (..., n)
        Its absolute values sum to at most 1.

    Raises
    ------
    DomainError
        If they sum to more: the density would be negative somewhere.

    Notes
    -----
    The signature is Pyro's. Draws have no pathwise gradient.

    References
    ----------
    Ameijeiras-Alonso, Ley (2022), "Sine-skewed toroidal distributions and their application in
    protein bioinformatics".
    """

    _parts = ("base_dist", "skewness")

    def __init__(
        self, base_dist: Distribution, skewness: Given, *, validate_args: bool | None = None
    ) -> None:
        given = as_parameter(skewness, "skewness")[0]
        # Not the third moment, of which there is none: Pyro's name.
        self.__dict__["skewness"] = given
        shape = given.array.shape
        if len(base_dist._event_shape) != 1 or shape[-1:] != tuple(base_dist._event_shape):
            raise ShapeError(
                "SineSkewed",
                expected="a distribution of vectors of angles, and one skewness for each angle",
                got=f"event shape {tuple(base_dist._event_shape)}, skewness of shape {shape}",
                fix="call to_event(1) on a distribution of single angles, and give skewness a dim",
            )
        self._wrap(base_dist, given[..., 0], validate_args=validate_args)
        if self._validate_args:
            check_value("SineSkewed: skewness", given, constraints.l1_ball)

    @property
    def skewness(self) -> Tensor:
        """The parameter."""
        out: Tensor = self.__dict__["skewness"]
        return out

    @property
    def has_rsample(self) -> bool:
        """False: a draw is turned over or not."""
        return False

    @constraints.dependent_property(event_dim=1)
    def support(self) -> Constraint:
        """That of the base."""
        return self.base_dist.support

    def _tilt(self, x: Tensor) -> Tensor:
        return total(self.skewness * sin(x - self.base_dist.mean), -1)

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        x = expand(self.base_dist._sample(rng, shape), shape)
        stays = rng.uniform(shape[:-1]) < 0.5 + 0.5 * self._tilt(x)
        turned = 2.0 * self.base_dist.mean - x
        x = where(unsqueeze(stays, -1), x, turned)
        return (x + math.pi) % (2.0 * math.pi) - math.pi

    def _density(self, value: Tensor, inside: bool) -> Tensor:
        base = self.base_dist._to_batch(self.base_dist._density(value, inside))
        # Where all skewness goes one way the density has a zero.
        share = 1.0 + self._tilt(value)
        some = share > 0.0
        return where(some, base + log(where(some, share, 1.0)), -math.inf)


explain_calls(globals())
