"""Distributions that wait for a context: `condition` gives the distribution for one.

They carry flows whose parameters are functions of a context (`ConditionalTransformModule`), as in
amortised guides and conditional density estimation.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence

from probtorch.core.signatures import explain_calls
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.transformed import TransformedDistribution
from probtorch.distributions.transforms.flows.module import ConditionalTransform, conditioned
from probtorch.distributions.transforms.transform import Transform
from probtorch.errors import ArgumentError
from probtorch.tensor import Tensor

__all__ = ["ConditionalDistribution", "ConditionalTransformedDistribution"]


class ConditionalDistribution(abc.ABC):
    """A distribution for every context."""

    @abc.abstractmethod
    def condition(self, context: Tensor) -> Distribution:
        """Return the distribution for a context.

        Parameters
        ----------
        context : Tensor, shape (..., context_dim)

        Returns
        -------
        Distribution
        """


class ConditionalTransformedDistribution(ConditionalDistribution):
    """A base distribution sent through transforms, some of which depend on a context.

    Parameters
    ----------
    base_dist : Distribution or ConditionalDistribution
    transforms : sequence of Transform or ConditionalTransform
        Applied in this order.

    Examples
    --------
    >>> import probtorch
    >>> from probtorch.distributions import Normal
    >>> from probtorch.distributions.transforms import conditional_planar
    >>> base = Normal(probtorch.zeros(3), 1.0).to_event(1)
    >>> flow = ConditionalTransformedDistribution(base, [conditional_planar(3, 2)])
    >>> flow.condition(probtorch.ones(2)).sample((5,)).shape
    Size([5, 3])
    """

    def __init__(
        self, base_dist: Distribution, transforms: Transform | Sequence[Transform]
    ) -> None:
        kinds = (Transform, ConditionalTransform)
        transforms = [transforms] if isinstance(transforms, kinds) else list(transforms)
        if not isinstance(base_dist, (Distribution, ConditionalDistribution)) or not all(
            isinstance(t, kinds) for t in transforms
        ):
            raise ArgumentError(
                "ConditionalTransformedDistribution",
                expected="a distribution and transforms, each conditional or not",
                got=f"{type(base_dist).__name__} with "
                f"{', '.join(type(t).__name__ for t in transforms) or 'nothing'}",
                fix="for example (Normal(zeros(3), 1.0).to_event(1), [conditional_planar(3, 2)])",
            )
        self.base_dist, self.transforms = base_dist, transforms

    def clear_cache(self) -> None:
        """Do nothing, as nothing is cached: training loops written for Pyro call it."""

    def condition(self, context: Tensor) -> Distribution:
        """Return the `TransformedDistribution` for a context."""
        base = self.base_dist
        base = base.condition(context) if isinstance(base, ConditionalDistribution) else base
        return TransformedDistribution(base, [conditioned(t, context) for t in self.transforms])


explain_calls(globals())
