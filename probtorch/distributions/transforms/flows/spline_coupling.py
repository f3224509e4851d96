"""Splines in coupling layers: one part of the vector makes the curves that the other goes through.

Durkan, Bekasov, Murray and Papamakarios (2019). The curves are those of `spline`, the parts those
of `coupling`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast as typed

from probtorch.core.signatures import explain_calls
from probtorch.core.typed import Tree
from probtorch.distributions.fields import Values
from probtorch.distributions.transforms.flows.autoregressive import InContext
from probtorch.distributions.transforms.flows.coupling import split_of
from probtorch.distributions.transforms.flows.module import (
    ConditionalTransformModule,
    OnePass,
    TransformModule,
    hidden_sizes,
)
from probtorch.distributions.transforms.flows.spline import (
    ConditionalSpline,
    ConditionedSpline,
    Spline,
    parameter_sizes,
    rational_quadratic,
)
from probtorch.distributions.transforms.transform import Transform
from probtorch.distributions.transforms.vector import last_part
from probtorch.nn.autoregressive import ConditionalDenseNN, DenseNN
from probtorch.nn.module import Module
from probtorch.ops.movement import expand
from probtorch.ops.pieces import cat
from probtorch.ops.reduction import sum as total
from probtorch.tensor import Tensor

__all__ = [
    "ConditionalSplineCoupling",
    "SplineCoupling",
    "conditional_spline_coupling",
    "spline_coupling",
]


class ConditionedSplineCoupling(OnePass):
    """Splines of the second part, by a network of the first, and given ones of the first part.

    Parameters
    ----------
    split_dim : int
    lower_spline : ConditionedSpline, optional
        Of the first part, which stays as it is if None.
    upper_spline : ConditionalSpline
        Of the second part; its context is the first.
    """

    def __init__(
        self,
        split_dim: int,
        lower_spline: ConditionedSpline | None,
        upper_spline: ConditionalSpline,
    ) -> None:
        self.split_dim = split_dim
        self.lower_spline, self.upper_spline = lower_spline, upper_spline

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x1 = last_part(x, 0, self.split_dim)
        upper = self.upper_spline.condition(x1)
        if self.lower_spline is None:
            y2, slope = upper.call_and_slope(last_part(x, self.split_dim))
            return cat([x1, y2], -1), total(slope, -1)
        # Both parts go through their splines at once, which takes half as many operations.
        lead = x.array.shape[:-1]
        pairs = zip(self.lower_spline._parameters_now(), upper._parameters_now(), strict=True)
        parameters = [cat([expand(a, (*lead, *a.array.shape[-2:])), b], -2) for a, b in pairs]
        y, slope = rational_quadratic(x, parameters, upper.bound)
        return y, total(slope, -1)

    def _inverse(self, y: Tensor) -> Tensor:
        return self._inverse_and_ladj(y)[0]

    def _inverse_and_ladj(self, y: Tensor) -> tuple[Tensor, Tensor]:
        x1, y2 = last_part(y, 0, self.split_dim), last_part(y, self.split_dim)
        ladj = None
        if self.lower_spline is not None:
            x1, slope = self.lower_spline._inverse_and_ladj(x1)
            ladj = total(slope, -1)
        x2, slope = self.upper_spline.condition(x1)._inverse_and_ladj(y2)
        upper = total(slope, -1)
        return cat([x1, x2], -1), upper if ladj is None else ladj + upper


class SplineCoupling(ConditionedSplineCoupling, TransformModule):
    """Splines of the second part of a vector, with parameters that are functions of the first.

    Parameters
    ----------
    input_dim, split_dim : int
        Sizes of the vector and of its first part.
    hypernet : callable
        From the first part to three parameters of ``input_dim - split_dim`` times K, K and K - 1
        numbers.
    count_bins, bound, order
        See `Spline`.
    identity : bool
        Leave the first part as it is; otherwise it goes through a `Spline` of its own.

    References
    ----------
    [durkan2019]_
    """

    def __init__(
        self,
        input_dim: int,
        split_dim: int,
        hypernet: Module,
        count_bins: int = 8,
        bound: float = 3.0,
        order: str = "quadratic",
        identity: bool = False,
    ) -> None:
        TransformModule.__init__(self)
        self.split_dim, self.identity = split_of("SplineCoupling", input_dim, split_dim), identity
        settings: Values = {"count_bins": count_bins, "bound": bound, "order": order}
        self.lower_spline = None if identity else Spline(split_dim, **settings)
        self.upper_spline = ConditionalSpline(hypernet, input_dim - split_dim, **settings)


class ConditionalSplineCoupling(ConditionalTransformModule):
    """`SplineCoupling` whose networks see a context.

    Parameters
    ----------
    input_dim, split_dim : int
        Sizes of the vector and of its first part.
    hypernet : ConditionalDenseNN
        From the first part and the context to three parameters of ``input_dim - split_dim`` times
        K, K and K - 1 numbers.
    lower_nn : callable, optional
        From the context to the parameters of the splines of the first part, `split_dim` times as
        many. If None the first part stays as it is.
    count_bins, bound, order
        See `Spline`.

    References
    ----------
    [durkan2019]_
    """

    def __init__(
        self,
        input_dim: int,
        split_dim: int,
        hypernet: Callable[..., Tree],
        lower_nn: Module | None = None,
        count_bins: int = 8,
        bound: float = 3.0,
        order: str = "quadratic",
    ) -> None:
        super().__init__()
        self.split_dim = split_of("ConditionalSplineCoupling", input_dim, split_dim)
        self.input_dim, self.nn = input_dim, hypernet
        self._settings: Values = {"count_bins": count_bins, "bound": bound, "order": order}
        self.lower_spline = (
            None if lower_nn is None else ConditionalSpline(lower_nn, split_dim, **self._settings)
        )

    def condition(self, context: Tensor) -> Transform:
        """Return the transform for a context."""
        lower = None if self.lower_spline is None else self.lower_spline.condition(context)
        network, size = InContext(self.nn, context), self.input_dim - self.split_dim
        # What is asked of the network here is a call.
        upper = ConditionalSpline(typed(Module, network), size, **self._settings)
        return ConditionedSplineCoupling(self.split_dim, lower, upper)


def spline_coupling(
    input_dim: int,
    split_dim: int | None = None,
    hidden_dims: Sequence[int] | None = None,
    count_bins: int = 8,
    bound: float = 3.0,
    order: str = "quadratic",
) -> SplineCoupling:
    """Return a new spline coupling layer.

    Parameters
    ----------
    input_dim : int
        At least 2.
    split_dim : int, optional
        Size of the first part; half if None.
    hidden_dims : sequence of int, optional
        Of the network; two layers of ``10 * input_dim`` if None.
    count_bins, bound, order
        See `Spline`.

    Returns
    -------
    SplineCoupling
    """
    split_dim = split_of("spline_coupling", input_dim, split_dim)
    layers = hidden_sizes(hidden_dims, input_dim)
    network = DenseNN(split_dim, layers, parameter_sizes(count_bins, input_dim - split_dim))
    return SplineCoupling(input_dim, split_dim, network, count_bins, bound, order)


def conditional_spline_coupling(
    input_dim: int,
    context_dim: int,
    split_dim: int | None = None,
    hidden_dims: Sequence[int] | None = None,
    count_bins: int = 8,
    bound: float = 3.0,
    order: str = "quadratic",
) -> ConditionalSplineCoupling:
    """Return a new spline coupling layer with a context, which both parts depend on.

    Parameters
    ----------
    input_dim, context_dim : int
        The first at least 2.
    split_dim : int, optional
        Size of the first part; half if None.
    hidden_dims : sequence of int, optional
        Of the two networks; two layers of ``10 * input_dim`` if None.
    count_bins, bound, order
        See `Spline`.

    Returns
    -------
    ConditionalSplineCoupling
    """
    split_dim = split_of("conditional_spline_coupling", input_dim, split_dim)
    layers = hidden_sizes(hidden_dims, input_dim)
    upper = parameter_sizes(count_bins, input_dim - split_dim)
    network = ConditionalDenseNN(split_dim, context_dim, layers, upper)
    lower = DenseNN(context_dim, layers, parameter_sizes(count_bins, split_dim))
    return ConditionalSplineCoupling(input_dim, split_dim, network, lower, count_bins, bound, order)


explain_calls(globals())
