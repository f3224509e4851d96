"""The model of confounder, features, treatment and outcome, and the guide that inverts it."""

from __future__ import annotations

from collections.abc import Sequence

from probtorch.contrib.cevae.networks import (
    BernoulliNet,
    DiagNormalNet,
    DistributionNet,
    FullyConnected,
)
from probtorch.distributions.bernoulli import Bernoulli
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.normal import Normal
from probtorch.effects.plates import plate
from probtorch.effects.primitives import sample
from probtorch.effects.pyro_module import PyroModule
from probtorch.factories import arange
from probtorch.nn.activation import ELU
from probtorch.ops.arithmetic import where
from probtorch.ops.pieces import cat
from probtorch.tensor import Tensor

__all__ = ["CausalGuide", "CausalModel"]


def _rows(x: Tensor, size: int | None) -> plate:
    """The plate of `size` rows of which `x` has some: what is inside counts for all."""
    rows = len(x)
    return plate("data", rows if size is None else size, subsample=arange(rows))


def _by_treatment(t: Tensor, zero: Sequence[Tensor], one: Sequence[Tensor]) -> list[Tensor]:
    """Parameters of the treated and of the others, each from a network of its own."""
    treated = t.bool()
    return [where(treated, b, a) for a, b in zip(zero, one, strict=True)]


class CausalModel(PyroModule):
    """A confounder z, its noisy signs x, a treatment t that depends on z, and an outcome y of both.

    Parameters
    ----------
    feature_dim, latent_dim, hidden_dim, num_layers : int
        Numbers of features, of the confounder, and of units in so many hidden layers.
    outcome_dist : str
        As for `CEVAE`.
    """

    def __init__(
        self,
        feature_dim: int,
        latent_dim: int,
        hidden_dim: int,
        num_layers: int,
        outcome_dist: str,
    ) -> None:
        super().__init__("model")  # its weights have other names than the guide's
        self.latent_dim = latent_dim
        hidden = [latent_dim, *([hidden_dim] * num_layers)]
        outcome = DistributionNet.get_class(outcome_dist)
        self.x_nn = DiagNormalNet([*hidden, feature_dim])
        # One network for the outcomes of each treatment, however few had it.
        self.y0_nn, self.y1_nn = outcome(hidden), outcome(hidden)
        self.t_nn = BernoulliNet([latent_dim])

    def forward(
        self, x: Tensor, t: Tensor | None = None, y: Tensor | None = None, size: int | None = None
    ) -> Tensor:
        """State the model of `size` rows, of which these are some; returns outcomes."""
        with _rows(x, size):
            z = sample("z", self.z_dist())
            sample("x", self.x_dist(z), obs=x)
            t = sample("t", self.t_dist(z), obs=t)
            return sample("y", self.y_dist(t, z), obs=y)

    def z_dist(self) -> Distribution:
        """Return the prior of the confounder."""
        return Normal(0.0, 1.0).expand([self.latent_dim]).to_event(1)

    def x_dist(self, z: Tensor) -> Distribution:
        """Return the distribution of features."""
        return Normal(*self.x_nn(z)).to_event(1)

    def t_dist(self, z: Tensor) -> Distribution:
        """Return the distribution of treatments."""
        return Bernoulli(logits=self.t_nn(z)[0])

    def y_dist(self, t: Tensor, z: Tensor) -> Distribution:
        """Return the distribution of outcomes."""
        return self.y0_nn.make_dist(*_by_treatment(t, self.y0_nn(z), self.y1_nn(z)))


class CausalGuide(PyroModule):
    """Treatment and outcome from features, and the confounder from all three.

    Parameters
    ----------
    feature_dim, latent_dim, hidden_dim, num_layers, outcome_dist
        As for `CausalModel`.
    """

    def __init__(
        self,
        feature_dim: int,
        latent_dim: int,
        hidden_dim: int,
        num_layers: int,
        outcome_dist: str,
    ) -> None:
        super().__init__("guide")
        outcome = DistributionNet.get_class(outcome_dist)
        hidden = [hidden_dim] * (num_layers - 1)
        width = hidden[-1] if hidden else feature_dim
        self.t_nn = BernoulliNet([feature_dim])
        # The first layers are the same for both treatments, the last ones are not.
        self.y_nn = FullyConnected([feature_dim, *hidden], ELU())
        self.y0_nn, self.y1_nn = outcome([width]), outcome([width])
        width = hidden[-1] if hidden else 1 + feature_dim
        self.z_nn = FullyConnected([1 + feature_dim, *hidden], ELU())
        self.z0_nn = DiagNormalNet([width, latent_dim])
        self.z1_nn = DiagNormalNet([width, latent_dim])

    def forward(
        self, x: Tensor, t: Tensor | None = None, y: Tensor | None = None, size: int | None = None
    ) -> None:
        """State the guide; with treatments and outcomes the networks that predict them learn."""
        with _rows(x, size):
            # For rows whose treatment is not known; in training they are no latent sites.
            t = sample("t", self.t_dist(x), obs=t, infer={"is_auxiliary": True})
            y = sample("y", self.y_dist(t, x), obs=y, infer={"is_auxiliary": True})
            sample("z", self.z_dist(y, t, x))

    def t_dist(self, x: Tensor) -> Distribution:
        """Return the distribution of treatments."""
        return Bernoulli(logits=self.t_nn(x)[0])

    def y_dist(self, t: Tensor, x: Tensor) -> Distribution:
        """Return the distribution of outcomes."""
        hidden = self.y_nn(x)
        return self.y0_nn.make_dist(*_by_treatment(t, self.y0_nn(hidden), self.y1_nn(hidden)))

    def z_dist(self, y: Tensor, t: Tensor, x: Tensor) -> Distribution:
        """Return the distribution of the confounder."""
        y = y.unsqueeze(-1)
        hidden = self.z_nn(cat([y, x.expand(*y.shape[:-1], x.shape[-1])], -1))
        both = self.z0_nn(hidden), self.z1_nn(hidden)
        return Normal(*_by_treatment(t.unsqueeze(-1), *both)).to_event(1)
