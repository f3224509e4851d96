"""Networks from numbers to parameters of a distribution, and the scaling of features."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import ClassVar

from probtorch.autograd.modes import no_grad
from probtorch.core.signatures import explain_calls
from probtorch.distributions.bernoulli import Bernoulli
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.heavy_tailed import StudentT
from probtorch.distributions.location_scale import Laplace
from probtorch.distributions.normal import Normal
from probtorch.distributions.positive import Exponential
from probtorch.errors import ArgumentError
from probtorch.nn.activation import ELU
from probtorch.nn.containers import Sequential
from probtorch.nn.functional import softplus
from probtorch.nn.linear import Linear
from probtorch.nn.module import Module
from probtorch.nn.parameter import Parameter
from probtorch.ops.arithmetic import where
from probtorch.tensor import Tensor, tensor

__all__ = [
    "BernoulliNet",
    "DiagNormalNet",
    "DistributionNet",
    "ExponentialNet",
    "FullyConnected",
    "LaplaceNet",
    "NormalNet",
    "PreWhitener",
    "StudentTNet",
]


class FullyConnected(Sequential):
    """Linear layers with `ELU` between them.

    Parameters
    ----------
    sizes : sequence of int
        Features of the input, of the hidden layers, and of the output.
    final_activation : Module, optional
        Behind the last layer.
    """

    def __init__(self, sizes: Sequence[int], final_activation: Module | None = None) -> None:
        layers: list[Module] = []
        for before, after in itertools.pairwise(sizes):
            layers += [Linear(before, after), ELU()]
        del layers[-1:]
        super().__init__(*layers, *([] if final_activation is None else [final_activation]))


class DistributionNet(Module):
    """Base of networks whose output is the parameters of one number's distribution.

    Parameters
    ----------
    sizes : sequence of int
        Features of the input and of the hidden layers.
    """

    outputs: ClassVar[int] = 2
    family: ClassVar[Callable[..., Distribution]]

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.fc = FullyConnected([*sizes, self.outputs])

    @staticmethod
    def get_class(dtype: str) -> type[DistributionNet]:
        """Return the network of a distribution: of "bernoulli", `BernoulliNet`."""
        known = {cls.__name__.lower().removesuffix("net"): cls for cls in _NETS}
        if dtype not in known:
            raise ArgumentError(
                "outcome_dist",
                expected=f"one of {', '.join(map(repr, known))}",
                got=repr(dtype),
                fix="choose the kind that the outcomes have",
            )
        return known[dtype]

    @classmethod
    def make_dist(cls, *parameters: Tensor) -> Distribution:
        """Return the distribution of these parameters."""
        return cls.family(*parameters)

    def _loc_scale(self, x: Tensor) -> tuple[Tensor, Tensor]:
        both = self.fc(x)
        # Limits as in Pyro's networks, so that no draw of an untrained one is infinite.
        scale = softplus(both[..., 1]).clamp(min=1e-3, max=1e6)
        return both[..., 0].clamp(min=-1e6, max=1e6), scale


class BernoulliNet(DistributionNet):
    """A network for the logits, between -10 and 10, of a `Bernoulli`."""

    outputs = 1

    def forward(self, x: Tensor) -> tuple[Tensor]:
        """Return (logits,) without the last dim of `x`."""
        return (self.fc(x).squeeze(-1).clamp(min=-10.0, max=10.0),)

    @classmethod
    def make_dist(cls, *parameters: Tensor) -> Distribution:
        """Return the `Bernoulli` of these logits."""
        return Bernoulli(logits=parameters[0])


class ExponentialNet(DistributionNet):
    """A network for the rate of an `Exponential`."""

    outputs = 1
    family = Exponential

    def forward(self, x: Tensor) -> tuple[Tensor]:
        """Return (rate,) without the last dim of `x`."""
        return (softplus(self.fc(x).squeeze(-1)).clamp(min=1e-3, max=1e6).reciprocal(),)


class LaplaceNet(DistributionNet):
    """A network for loc and scale of a `Laplace`."""

    family = Laplace

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return (loc, scale) without the last dim of `x`."""
        return self._loc_scale(x)


class NormalNet(DistributionNet):
    """A network for loc and scale of a `Normal`."""

    family = Normal

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return (loc, scale) without the last dim of `x`."""
        return self._loc_scale(x)


class StudentTNet(DistributionNet):
    """A network for loc and scale of a `StudentT`, with degrees of freedom above 1 for all."""

    family = StudentT

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__(sizes)
        self.df_unconstrained = Parameter(tensor(0.0))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return (df, loc, scale) without the last dim of `x`."""
        loc, scale = self._loc_scale(x)
        return (softplus(self.df_unconstrained) + 1.0).expand_as(loc), loc, scale


_NETS = (BernoulliNet, ExponentialNet, LaplaceNet, NormalNet, StudentTNet)


class DiagNormalNet(Module):
    """A network for loc and scale of several independent normal numbers.

    Parameters
    ----------
    sizes : sequence of int
        Features of the input, of the hidden layers, and how many numbers there are.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.dim = sizes[-1]
        self.fc = FullyConnected([*sizes[:-1], 2 * self.dim])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return (loc, scale), of shape (..., numbers)."""
        both = self.fc(x)
        scale = (softplus(both[..., self.dim :]) + 1e-3).clamp(max=1e2)
        return both[..., : self.dim].clamp(min=-1e2, max=1e2), scale


class PreWhitener(Module):
    """Takes off the mean of features and divides by their standard deviation.

    Parameters
    ----------
    data : Tensor, shape (rows, features)
        Whose mean and deviation these are; features that do not vary are not divided.
    """

    loc: Tensor
    inv_scale: Tensor

    def __init__(self, data: Tensor) -> None:
        super().__init__()
        with no_grad():
            scale = data.std(0, unbiased=False)
            self.register_buffer("loc", data.mean(0))
            self.register_buffer("inv_scale", where(scale > 0.0, scale, 1.0).reciprocal())

    def forward(self, data: Tensor) -> Tensor:
        """Return rows on that scale."""
        return (data - self.loc) * self.inv_scale


explain_calls(globals())
