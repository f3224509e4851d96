"""Distributions with extra mass at 0, made of another one.

Zero-inflated counts can be 0 for two reasons; behind a hurdle, 0 is decided by the gate alone.
inflated_families.py has those that are made of a Poisson, a gamma and their kin, by name.
"""

from __future__ import annotations

from probtorch.core.making import as_tensor
from probtorch.core.signatures import explain_calls
from probtorch.core.told import is_constant
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.atoms import Mixed, WithAtoms
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.fields import Given
from probtorch.distributions.source import Source
from probtorch.distributions.truncation import TruncatedDistribution
from probtorch.distributions.validation import check_parameter
from probtorch.distributions.wrapping import Wrapped, given_or_none
from probtorch.distributions.zero_truncated import sample_positive
from probtorch.errors import ArgumentError
from probtorch.ops.arithmetic import maximum, minimum, where
from probtorch.ops.comparisons import eq, lt
from probtorch.ops.exponentials import exp, log, logaddexp, sigmoid, softplus
from probtorch.ops.special import xlog1py, xlogy
from probtorch.tensor import Tensor

__all__ = ["HurdleDistribution", "ZeroInflatedDistribution"]


class Gated(Wrapped):
    """What zero-inflated and hurdle distributions share: a gate, by probability or log odds."""

    _parts = ("base_dist", "gate", "gate_logits")

    gate: Tensor | None
    gate_logits: Tensor | None

    def _set_gate(
        self,
        base_dist: Distribution,
        gate: Given | None,
        gate_logits: Given | None,
        validate_args: bool | None,
    ) -> None:
        owner = type(self).__name__
        if (gate is None) == (gate_logits is None):
            raise ArgumentError(
                owner,
                expected="exactly one of gate, gate_logits",
                got="none of them" if gate is None else "gate and gate_logits",
                fix=f"call {owner}(base_dist, gate=0.3)",
            )
        if base_dist._event_shape:
            raise ArgumentError(
                owner,
                expected="a distribution of single numbers",
                got=f"{type(base_dist).__name__} of event shape {tuple(base_dist._event_shape)}",
                fix="wrap the univariate distribution, and call to_event afterwards",
            )
        self.gate, self.gate_logits = (
            given_or_none(gate, "gate"),
            given_or_none(gate_logits, "gate"),
        )
        self._wrap(base_dist, self.gate, self.gate_logits, validate_args=validate_args)
        if self._validate_args and self.gate is not None:
            check_parameter(owner, "gate", self.gate, constraints.unit_interval, self)

    def _log_gate(self) -> tuple[Tensor, Tensor]:
        """Return the logs of the gate and of its complement."""
        if self.gate_logits is not None:
            return -softplus(-self.gate_logits), -softplus(self.gate_logits)
        assert self.gate is not None  # one of the two is given
        # Where a gate of 0 or 1 is not used, these have slope 0, and logarithms nan.
        return xlogy(1.0, self.gate), xlog1py(1.0, -self.gate)

    def _gate(self) -> Tensor:
        if self.gate_logits is not None:
            return sigmoid(self.gate_logits)
        assert self.gate is not None  # one of the two is given
        return self.gate

    def _base_density(self, x: Tensor) -> Tensor:
        """Log density of the base: of a count of this support, which its own may leave out."""
        base = self.base_dist
        support = base.support
        return base._density(x, not support.is_discrete or _with_zero(support) is support)

    @property
    def has_rsample(self) -> bool:
        """Whether draws carry a gradient: no, 0 comes in a jump."""
        return False

    def _closed(self, rng: Source, shape: Shape) -> Tensor:
        return lt(rng.uniform(shape), self._gate())


class ZeroInflatedDistribution(Gated):
    """Mixture of a point mass at 0 and a distribution of counts.

    Probability ``p(x) = gate + (1 - gate) * base(0) if x < 1 else (1 - gate) * base(x)``.

    Parameters
    ----------
    base_dist : Distribution
        Of counts.
    gate : Tensor or number in [0, 1], optional
        Probability of an extra zero.
    gate_logits : Tensor or number, optional
        Its log odds; exactly one of the two is given.
    """

    def __init__(
        self,
        base_dist: Distribution,
        *,
        gate: Given | None = None,
        gate_logits: Given | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if not base_dist.is_discrete:
            raise ArgumentError(
                "ZeroInflatedDistribution",
                expected="a distribution of counts",
                got=f"{type(base_dist).__name__}, which is continuous",
                fix="use HurdleDistribution: a continuous number is never 0 by itself",
            )
        self._set_gate(base_dist, gate, gate_logits, validate_args)

    @constraints.dependent_property
    def support(self) -> Constraint:
        """That of the base, with 0 if it begins above."""
        return _with_zero(self.base_dist.support)

    def _log_prob(self, x: Tensor) -> Tensor:
        none, base = eq(x, 0.0), self._base_density(x)
        if self.gate_logits is not None:
            gate, rest = self._log_gate()
            return where(none, logaddexp(gate, rest + base), rest + base)
        # Gates of 0 and 1 have slopes: no logarithm is taken of what may be 0 and is not used.
        gate = self._gate()
        zero = log(gate + (1.0 - gate) * exp(where(none, base, 0.0)))
        # Where a sum leaves out what is impossible, xlog1py has slope 0, and log1p nan.
        return where(none, zero, xlog1py(1.0, -where(none, 0.0, gate)) + base)

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        return where(self._closed(rng, shape), 0.0, self.base_dist._sample(rng, shape))

    def _cdf(self, x: Tensor) -> Tensor:
        gate = self._gate()
        return where(x >= 0.0, gate, 0.0) + (1.0 - gate) * self.base_dist.cdf(x)

    def _survival(self, x: Tensor) -> Tensor:
        gate = self._gate()
        return where(x >= 0.0, 0.0, gate) + (1.0 - gate) * self.base_dist.survival(x)

    def _mean(self) -> Tensor:
        return (1.0 - self._gate()) * self.base_dist.mean

    def _variance(self) -> Tensor:
        gate, m = self._gate(), self.base_dist.mean
        return (1.0 - gate) * (self.base_dist.variance + gate * m * m)


def _with_zero(support: Constraint) -> Constraint:
    """Return a set of counts that has 0 besides."""
    low, high = (getattr(support, end, None) for end in ("lower_bound", "upper_bound"))
    moved = [v for v in (low, high) if isinstance(v, Tensor)]
    if low is None or (not moved and low <= 0 and (high is None or high >= 0)):
        return support
    low = minimum(as_tensor(low), 0.0) if moved else min(low, 0)
    if high is None:
        return constraints.integer_greater_than(low)
    return constraints.integer_interval(
        low, maximum(as_tensor(high), 0.0) if moved else max(high, 0)
    )


def _from_zero(support: Constraint) -> bool:
    """Whether no value is known to be negative: of a bound that is not constant nothing is."""
    if isinstance(support, constraints.Real) or support is constraints.integer:
        return False
    low = getattr(support, "lower_bound", None)
    if low is None:
        return support is constraints.boolean
    known = not isinstance(low, Tensor) or is_constant(low)
    return not known or bool((as_tensor(low) >= 0.0).all())


class HurdleDistribution(WithAtoms, Gated):
    """0 with probability `gate`, else a positive value of a distribution.

    Probability ``p(x) = gate if x < 1 else (1 - gate) * base(x) / (1 - base(0))``.

    Parameters
    ----------
    base_dist : Distribution
        Of counts, of which 0 is taken out, or continuous on the positive half-line.
    gate : Tensor or number in [0, 1], optional
        Probability of 0.
    gate_logits : Tensor or number, optional
        Its log odds; exactly one of the two is given.
    """

    def __init__(
        self,
        base_dist: Distribution,
        *,
        gate: Given | None = None,
        gate_logits: Given | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if not base_dist._event_shape and not _from_zero(base_dist.support):
            raise ArgumentError(
                "HurdleDistribution",
                expected="a distribution of counts or of positive numbers",
                got=f"{type(base_dist).__name__}, whose support is {base_dist.support!r}",
                fix="cut it off first: Truncated(base, 0.0)",
            )
        self._set_gate(base_dist, gate, gate_logits, validate_args)

    @constraints.dependent_property
    def support(self) -> Constraint:
        """Counts, or the numbers from 0 on."""
        base = self.base_dist.support
        return _with_zero(base) if base.is_discrete else constraints.nonnegative

    def _mixed(self) -> Mixed | None:
        if self.is_discrete:
            return None
        gate = self._gate()
        return Mixed(((gate, 0.0),), 1.0 - gate, self.base_dist)

    def _positive(self) -> Distribution:
        base = self.base_dist
        return TruncatedDistribution(base, 1.0) if base.is_discrete else base

    def _log_some(self) -> Tensor | float:
        """Log probability that the base is not 0."""
        base = self.base_dist
        return base.log_survival(base._as_value(0.0)) if base.is_discrete else 0.0

    def _log_prob(self, x: Tensor) -> Tensor:
        gate, rest = self._log_gate()
        none = eq(x, 0.0)
        base = self._base_density(where(none, 1.0, x))
        return where(none, gate, rest + base - self._log_some())

    def _sample(self, rng: Source, shape: Shape) -> Tensor:
        closed = self._closed(rng, shape)
        some = sample_positive(self.base_dist, rng, shape)
        return where(closed, 0.0, self._positive()._sample(rng, shape) if some is None else some)

    def _cdf(self, x: Tensor) -> Tensor:
        return 1.0 - self._survival(x)

    def _survival(self, x: Tensor) -> Tensor:
        at = maximum(x, 0.0)
        some = self.base_dist.survival(at * 0.0) if self.is_discrete else 1.0
        above = (1.0 - self._gate()) * (self.base_dist.survival(at) / some)
        return where(x >= 0.0, above, 1.0)

    def _mean(self) -> Tensor:
        return (1.0 - self._gate()) * self.base_dist.mean * exp(-self._log_some())

    def _variance(self) -> Tensor:
        base, m = self.base_dist, self._mean()
        share = (1.0 - self._gate()) * exp(-self._log_some())
        return share * (base.variance + base.mean * base.mean) - m * m


explain_calls(globals())
