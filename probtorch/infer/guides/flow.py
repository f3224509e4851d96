"""Guides by normalizing flows: a normal vector sent through learned transforms.

The flow works on standard normal numbers; what comes out is scaled and shifted (``auto_scale``,
``auto_loc``), so that the guide starts near the initial point with a small spread, whatever the
flow starts as. Weights of the flow are `param` statements called ``auto_flow.{name}``; the flow is
called with them by `with_parameters`, and the module itself is never written to.

Draws are made by a sample statement, which remembers the density of a draw where the flow is costly
to invert (`TransformedDistribution.remembering`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.dtype import float64
from probtorch.core.rng import Generator, drawing_as
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import DTypeLike
from probtorch.distributions.normal import Normal
from probtorch.distributions.transformed import TransformedDistribution
from probtorch.distributions.transforms.flows.autoregressive import affine_autoregressive
from probtorch.distributions.transforms.flows.block import block_autoregressive
from probtorch.distributions.transforms.flows.coupling import permute
from probtorch.distributions.transforms.flows.module import ComposeTransformModule, iterated
from probtorch.distributions.transforms.scalar import AffineTransform
from probtorch.distributions.transforms.transform import Transform
from probtorch.effects.primitives import param
from probtorch.errors import ArgumentError
from probtorch.infer.guides.base import SummarisedByDraws, off_tape
from probtorch.infer.guides.joint import ScaledGuide
from probtorch.infer.starts.initialization import Strategy, init_to_median
from probtorch.nn.arguments import whole
from probtorch.nn.module import Module
from probtorch.nn.utils import with_parameters

__all__ = ["AutoBNAFNormal", "AutoIAFNormal", "AutoNormalizingFlow"]

# Seed, stream (ASCII "flow") and counter that initial weights are drawn from.
FLOW_GENERATOR = (0, 0x666C6F77, 0)


class AutoNormalizingFlow(SummarisedByDraws, ScaledGuide):
    """A normal vector sent through a flow.

    Parameters
    ----------
    model : callable
    init_transform_fn : callable
        From the number of latent numbers to a `Transform` of vectors of that length, usually with
        learned parameters: ``partial(iterated, 3, planar)`` or `spline_autoregressive`.
    init_loc_fn : callable
        Where the guide starts; see `AutoGuide`.
    init_scale : float
        What the flow's result is multiplied by, to start with.
    prefix, dtype
        See `AutoGuide`.

    Raises
    ------
    ArgumentError
        At the first call: if `init_transform_fn` gives no invertible transform of vectors.

    Notes
    -----
    Parameters are ``auto_loc`` and ``auto_scale`` of shape (dim,) and those of the flow, called
    ``auto_flow.{name}``. Initial weights and orders of a flow are the same in every run: call
    `manual_seed` in `init_transform_fn` for others. Medians and quantiles are those of 10 000
    draws, the same every time.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.distributions.transforms import spline_coupling
    >>> from probtorch.infer import SVI, AutoNormalizingFlow
    >>> from probtorch.optim import Adam
    >>> def banana():
    ...     x = probtorch.sample("x", dist.Normal(0.0, 1.0))
    ...     probtorch.sample("y", dist.Normal(x * x, 0.5))
    >>> guide = AutoNormalizingFlow(banana, spline_coupling)
    >>> result = SVI(banana, guide, Adam({"lr": 0.01}), seed=0).run(5, progress_bar=False)
    >>> guide.sample_posterior(100)["x"].shape
    Size([100])
    """

    def __init__(
        self,
        model: Callable[..., object],
        init_transform_fn: Callable[[int], Transform],
        init_loc_fn: Strategy = init_to_median,
        init_scale: float = 0.1,
        *,
        prefix: str = "auto",
        dtype: DTypeLike = float64,
    ) -> None:
        super().__init__(model, init_loc_fn, init_scale, prefix=prefix, dtype=dtype)
        self.init_transform_fn = init_transform_fn
        self.flow: Transform | None = None  # made by `setup`

    def setup(self, *args: object, **kwargs: object) -> None:
        """Run the model once to find its latent sites, and make the flow."""
        super().setup(*args, **kwargs)
        if self.flow is None:
            flow = self._new_flow()
            if not isinstance(flow, Transform) or flow.domain.event_dim > 1 or not flow.bijective:
                raise ArgumentError(
                    f"{self.__name__}(init_transform_fn=...)",
                    expected=f"an invertible transform of vectors of {self.dim} numbers",
                    got=f"{type(flow).__name__} {flow!r:.60}",
                    fix="for example init_transform_fn=affine_autoregressive",
                )
            self.flow = flow.to(self.dtype) if isinstance(flow, Module) else flow

    def _new_flow(self) -> Transform:
        """Make the flow, with the same initial weights, and the same orders, in every run.

        Orders are no parameters: a saved state fits a guide that is made anew only if they are
        those it was saved with.
        """
        with drawing_as(Generator(*FLOW_GENERATOR)):
            return self.init_transform_fn(self.dim)

    def distribution(self) -> TransformedDistribution:
        """Return the distribution of the vector."""
        return self._sent(lambda x: x)

    def _sent(self, read: Callable[[TensorBase], TensorBase]) -> TransformedDistribution:
        """The distribution of the vector, made of parameters as `read` gives them."""
        n, flow = self.dim, self.flow
        assert flow is not None  # made by `setup`
        if isinstance(flow, Module):
            weights = {
                name: read(param(f"{self.prefix}_flow.{name}", lambda p=p: p.detach().clone()))
                for name, p in flow.named_parameters()
            }
            flow = cast("Transform", with_parameters(flow, weights))  # what it was
        loc, scale = map(read, self._loc_and_scale())
        noise = Normal(wrap(np.zeros(n, self.dtype)), wrap(np.ones(n, self.dtype)))
        affine = AffineTransform(loc, scale, 1)
        return TransformedDistribution(noise.to_event(1), [flow, affine], validate_args=False)

    def get_posterior(self) -> TransformedDistribution:
        """Return the distribution of the unconstrained vector."""
        with self._asked():
            return self._sent(off_tape)


class AutoIAFNormal(AutoNormalizingFlow):
    """A normal vector sent through inverse autoregressive flows (Kingma et al. 2016).

    Parameters
    ----------
    model : callable
    hidden_dim : int or sequence of int, optional
        Sizes of the hidden layers of the networks; ``[3 * dim + 1]`` if None.
    init_loc_fn : callable, optional
        Where the guide starts, at prior medians if None; see `AutoGuide`.
    num_transforms : int
        How many flows, each with an order of its own.
    init_scale, prefix, dtype
        See `AutoNormalizingFlow`.
    **init_transform_kwargs
        Settings of `AffineAutoregressive`.
    """

    def __init__(
        self,
        model: Callable[..., object],
        hidden_dim: int | Sequence[int] | None = None,
        init_loc_fn: Strategy | None = None,
        num_transforms: int = 1,
        *,
        init_scale: float = 0.1,
        prefix: str = "auto",
        dtype: DTypeLike = float64,
        **init_transform_kwargs: object,
    ) -> None:
        layers = [hidden_dim] if isinstance(hidden_dim, int) else hidden_dim
        settings = {"hidden_dims": layers, **init_transform_kwargs}
        super().__init__(
            model,
            functools.partial(_autoregressive, num_transforms, settings),
            init_to_median if init_loc_fn is None else init_loc_fn,
            init_scale,
            prefix=prefix,
            dtype=dtype,
        )


class AutoBNAFNormal(AutoNormalizingFlow):
    """A normal vector sent through block neural autoregressive flows.

    Parameters
    ----------
    model : callable
    num_flows : int
        How many flows; the order of the numbers is turned around between two of them.
    hidden_factors : sequence of int
        Units per number of each hidden layer.
    init_loc_fn : callable
        Where the guide starts; see `AutoGuide`.
    init_scale, prefix, dtype
        See `AutoNormalizingFlow`.

    Notes
    -----
    Every flow has a gated residual, the last one too: without it tanh reaches only a box, and the
    guide would give the rest of the space the density 0.

    References
    ----------
    De Cao, Titov and Aziz (2019), "Block neural autoregressive flow".
    """

    def __init__(
        self,
        model: Callable[..., object],
        num_flows: int = 1,
        hidden_factors: Sequence[int] = (8, 8),
        init_loc_fn: Strategy = init_to_median,
        init_scale: float = 0.1,
        *,
        prefix: str = "auto",
        dtype: DTypeLike = float64,
    ) -> None:
        super().__init__(
            model,
            functools.partial(_blocks, num_flows, hidden_factors),
            init_loc_fn,
            init_scale,
            prefix=prefix,
            dtype=dtype,
        )


def _blocks(repeats: int, hidden_factors: Sequence[int], dim: int) -> Transform:
    whole("AutoBNAFNormal", num_flows=repeats)
    parts: list[Transform] = []
    for i in range(repeats):
        if i:
            parts.append(permute(dim, range(dim)[::-1]))
        parts.append(block_autoregressive(dim, hidden_factors, residual="gated"))
    return ComposeTransformModule(parts)


def _autoregressive(repeats: int, settings: Mapping[str, object], dim: int) -> Transform:
    return iterated(repeats, affine_autoregressive, dim, **settings)


explain_calls(globals())
