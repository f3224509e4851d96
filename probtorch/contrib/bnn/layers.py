"""Layers whose weights have a normal posterior: Flipout and local reparameterisation.

One draw of the weights for a whole batch makes the noise of all its rows the same, so that a larger
batch has no less of it. Both remedies use that the layer is linear in its weights, so one wrapper
serves every such layer.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from probtorch.core.making import as_tensor
from probtorch.core.signatures import explained
from probtorch.core.typed import TensorLike
from probtorch.distributions.kl import kl_divergence
from probtorch.distributions.normal import Normal
from probtorch.effects.priors import Prior, check_priors, fit_prior, prior_of
from probtorch.errors import ArgumentError, DTypeError, NoClosedFormError
from probtorch.func.stateless import functional_call
from probtorch.nn.convolution import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
)
from probtorch.nn.linear import Linear
from probtorch.nn.module import Module
from probtorch.nn.parameter import Parameter
from probtorch.ops.arithmetic import sqrt, where
from probtorch.ops.exponentials import exp
from probtorch.ops.sampling import rand, randn
from probtorch.tensor import Tensor

__all__ = ["ESTIMATORS", "LAYERS", "VariationalLayer"]

ESTIMATORS = ("flipout", "local", "shared")

# Layers that are linear in their weights, with the dims that follow the channels.
LAYERS: dict[type[Module], int] = {
    Linear: 0,
    Conv1d: 1,
    Conv2d: 2,
    Conv3d: 3,
    ConvTranspose1d: 1,
    ConvTranspose2d: 2,
    ConvTranspose3d: 3,
}


class VariationalLayer(Module):
    """A layer with independent normal weights, for variational inference.

    Shapes: those of `layer`.

    Parameters
    ----------
    layer : Linear, Conv1d to Conv3d, or ConvTranspose1d to ConvTranspose3d
        Its weights, which it goes on to own, are the means of the posterior.
    estimator : {"flipout", "local", "shared"}
        Where noise comes from in training. "flipout": one draw of the weights, whose signs are
        turned for each row of the batch. "local": the outputs themselves are drawn, by their means
        and variances. "shared": one draw of the weights for the whole batch.
    prior : Distribution, dict or callable
        A distribution for all weights; a dict of them by ``"weight"`` and ``"bias"``; or
        ``prior(name, shape)``. It needs a closed form of its divergence from a normal distribution;
        normal and Laplace ones have it. By default standard normal.
    init_scale : float
        Standard deviations at the start, as a part of ``1 / sqrt(inputs of one output)``.

    Attributes
    ----------
    layer : Module
    weight_log_scale, bias_log_scale : Parameter
        Logarithms of the standard deviations, of the shapes of weight and bias.

    Raises
    ------
    ArgumentError
        If the estimator is unknown, or a scale not positive.
    DTypeError
        If `layer` is of another kind.

    Notes
    -----
    In evaluation mode (``eval()``) each call draws the weights once for all rows: the outputs are
    one function of the posterior.

    Gradients of the mean loss of a batch are unbiased with "flipout" and "shared" for every
    network, with rows of dim 0 as the independent ones. "local" is so where each row of the layer's
    input adds a term of its own to the loss: for `Linear` on (rows, features). Outputs at several
    positions of a row share weights, which it takes as independent draws; so it is an approximation
    for convolutions, and for sequences through `Linear`.

    References
    ----------
    Kingma, Salimans and Welling (2015), "Variational dropout and the local reparameterization
    trick"; Wen et al. (2018), "Flipout: efficient pseudo-independent weight perturbations on
    mini-batches". TFP's ``DenseFlipout``, ``DenseLocalReparameterization`` and
    ``DenseReparameterization`` are `Linear` with the three estimators.

    Examples
    --------
    >>> import probtorch
    >>> from probtorch import nn
    >>> from probtorch.contrib.bnn import VariationalLayer
    >>> layer = VariationalLayer(nn.Linear(2, 3), "local")
    >>> layer(probtorch.ones(5, 2)).shape, layer.kl().shape
    (Size([5, 3]), Size([]))
    """

    @explained("VariationalLayer", meant={"prior_scale": "prior", "posterior_scale": "init_scale"})
    def __init__(
        self,
        layer: Module,
        estimator: str = "flipout",
        prior: Prior | None = None,
        init_scale: float = 0.1,
    ) -> None:
        super().__init__()
        if type(layer) not in LAYERS:
            raise DTypeError(
                "VariationalLayer",
                expected=f"a layer among {', '.join(c.__name__ for c in LAYERS)}",
                got=type(layer).__name__,
                fix="to_variational(net) wraps those inside a network; random_module gives all "
                "others a prior",
            )
        if estimator not in ESTIMATORS:
            raise ArgumentError(
                "VariationalLayer(estimator=...)",
                expected=", ".join(map(repr, ESTIMATORS)),
                got=repr(estimator),
                fix="leave it out for Flipout, which suits every layer",
            )
        if not init_scale > 0.0:
            raise ArgumentError(
                "VariationalLayer(init_scale=...)",
                expected="a number above 0",
                got=repr(init_scale),
                fix="leave it out for 0.1",
            )
        self.layer, self.estimator = layer, estimator
        self.prior = Normal(0.0, 1.0) if prior is None else prior
        check_priors("VariationalLayer", self.prior, [name for name, _ in self._means()])
        weight = layer.weight
        inputs = weight.array.size // weight.array.shape[1 if self._transposed() else 0]
        start = math.log(init_scale / math.sqrt(max(inputs, 1)))
        self.weight_log_scale = Parameter(weight.new_full(weight.shape, start))
        self.bias_log_scale = (
            None if layer.bias is None else Parameter(layer.bias.new_full(layer.bias.shape, start))
        )

    if TYPE_CHECKING:
        layer: Module
        weight_log_scale: Parameter
        bias_log_scale: Parameter | None

    def forward(self, input: TensorLike) -> Tensor:
        x = as_tensor(input, "VariationalLayer")
        if not self.training or self.estimator == "shared":
            drawn = [m + d for m, d in zip(self._values(), self._draw(), strict=True)]
            return self._computed(x, *drawn)
        if self.estimator == "local":
            return self._local(x)
        return self._flipout(x)

    def kl(self) -> Tensor:
        """Return the divergence of the posterior of the weights from their prior, in nats.

        Raises
        ------
        NoClosedFormError
            If there is no closed form for the prior.
        """
        found: Tensor | float = 0.0
        for (name, mean), scale in zip(self._means(), self._scales(), strict=True):
            shape = tuple(mean.shape)
            prior = prior_of(self.prior, name, shape)
            if prior is None:
                raise ArgumentError(
                    "VariationalLayer: prior",
                    expected=f"a distribution for {name!r}",
                    got="none",
                    fix=f"add {name!r} to the dict, or give one distribution for all",
                )
            fitted = fit_prior(prior, shape, f"VariationalLayer: prior of {name!r}")
            posterior = Normal(mean, scale).to_event(len(shape))
            try:
                found = found + kl_divergence(posterior, fitted)
            except (NoClosedFormError, NotImplementedError):
                raise NoClosedFormError(
                    f"VariationalLayer: prior of {name!r}",
                    expected="a prior with a closed form of its divergence from a normal one",
                    got=type(prior).__name__,
                    fix="take Normal or Laplace; random_module and a guide take any prior",
                ) from None
        return as_tensor(found, "VariationalLayer.kl")

    def extra_repr(self) -> str:
        return f"estimator={self.estimator!r}"

    # ------------------------------------------------------------------------------- the three ways

    def _flipout(self, x: Tensor) -> Tensor:
        """The mean, and one draw of the deviation with its signs turned for each row."""
        y = self._computed(x, *self._values())
        deviation = self._computed(x * self._signs(x), *self._draw())
        return y + deviation * self._signs(deviation)

    def _local(self, x: Tensor) -> Tensor:
        """Outputs by their own means and variances."""
        mean = self._computed(x, *self._values())
        variance = self._computed(x * x, *(s * s for s in self._scales()))
        noise = randn(mean.array.shape, dtype=mean.array.dtype, device=mean.device)
        # Where no input counts the root would have an infinite slope.
        some = variance > 0.0
        return mean + where(some, sqrt(where(some, variance, 1.0)), 0.0) * noise

    def _signs(self, x: Tensor) -> Tensor:
        """1 or -1 for each row and channel, the same at all positions of a row."""
        after = LAYERS[type(self.layer)]
        shape = list(x.array.shape)
        channels = len(shape) - 1 - after
        kept = (channels,) if channels == 0 else (0, channels)
        shape = [n if i in kept else 1 for i, n in enumerate(shape)]
        return where(rand(shape, dtype=x.array.dtype, device=x.device) < 0.5, -1.0, 1.0)

    # ------------------------------------------------------------------------------------- weights

    def _means(self) -> list[tuple[str, Tensor]]:
        named = ("weight", self.layer.weight), ("bias", self.layer.bias)
        return [(name, p) for name, p in named if p is not None]

    def _values(self) -> list[Tensor]:
        return [p for _, p in self._means()]

    def _scales(self) -> list[Tensor]:
        logs = self.weight_log_scale, self.bias_log_scale
        return [exp(p) for p in logs if p is not None]

    def _draw(self) -> list[Tensor]:
        """Draw how far the weights lie from their means."""
        return [
            s * randn(s.array.shape, dtype=s.array.dtype, device=s.device) for s in self._scales()
        ]

    def _computed(self, x: Tensor, *weights: Tensor) -> Tensor:
        """What the layer does with these weights."""
        named = {name: w for (name, _), w in zip(self._means(), weights, strict=True)}
        return functional_call(self.layer, named, (x,))

    def _transposed(self) -> bool:
        return type(self.layer).__name__.startswith("ConvTranspose")
