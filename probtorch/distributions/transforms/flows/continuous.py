"""Continuous normalizing flows: vectors that are carried along by a learned field.

``y`` is where the solution of dx/dt = field(x, t) from ``x`` is at the end; the inverse goes
backwards in time. The log-determinant is the integral of the field's divergence (Chen et al. 2018),
exact, or by random probes (Hutchinson's estimator, Grathwohl et al. 2019).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from probtorch.autograd.forward import jvp
from probtorch.core.rng import generator_for
from probtorch.core.signatures import explain_calls
from probtorch.core.typed import Tree
from probtorch.distributions.source import Source
from probtorch.distributions.transforms.flows.autoregressive import InContext
from probtorch.distributions.transforms.flows.module import (
    ConditionalTransformModule,
    OnePass,
    TransformModule,
    hidden_sizes,
)
from probtorch.distributions.transforms.transform import Transform
from probtorch.errors import ArgumentError
from probtorch.nn.arguments import whole
from probtorch.nn.autoregressive import ConditionalDenseNN, DenseNN
from probtorch.nn.module import Module
from probtorch.nn.utils import with_parameters
from probtorch.ode.odeint import odeint
from probtorch.ops.arithmetic import where
from probtorch.ops.movement import expand, reshape
from probtorch.ops.pieces import cat
from probtorch.ops.reduction import sum as total
from probtorch.ops.trigonometry import tanh
from probtorch.tensor import Tensor

__all__ = [
    "ConditionalContinuousFlow",
    "ContinuousFlow",
    "conditional_continuous_flow",
    "continuous_flow",
]

TRACES = ("exact", "hutchinson")


class ContinuousFlow(OnePass, TransformModule):
    """Vectors carried along by a field for a time.

    Parameters
    ----------
    nn : callable
        From ``(..., n + 1)``, the vector and the time, to the slope ``(..., n)``. Smooth
        activations make few steps.
    time : float, positive
        How long.
    trace : {"exact", "hutchinson"}
        Divergence by n derivatives of the field, or by `probes` random ones: then densities are
        random, right in their mean, and gradients of expected log densities have no bias.
    probes : int
        Random directions per evaluation of a density.
    rtol, atol, method
        Of `odeint`; in single precision tolerances are no finer than 2e-6.

    Raises
    ------
    ArgumentError
        If `trace` is another, or `time` not positive.

    References
    ----------
    Chen, Rubanova, Bettencourt and Duvenaud (2018), "Neural ordinary differential equations";
    Grathwohl, Chen, Bettencourt, Sutskever and Duvenaud (2019), "FFJORD".
    """

    costly_inverse = True

    def __init__(
        self,
        nn: Module,
        time: float = 1.0,
        trace: str = "exact",
        probes: int = 1,
        rtol: float = 1e-6,
        atol: float = 1e-8,
        method: str = "dopri5",
    ) -> None:
        TransformModule.__init__(self)
        whole("ContinuousFlow", probes=probes)
        if trace not in TRACES:
            raise ArgumentError(
                "ContinuousFlow(trace=...)",
                expected="'exact' or 'hutchinson'",
                got=repr(trace),
                fix="leave it out for the exact one",
            )
        if not time > 0.0:
            raise ArgumentError(
                "ContinuousFlow(time=...)",
                expected="a time above 0",
                got=repr(time),
                fix="leave it out for 1; .inv goes backwards",
            )
        self.nn, self.time, self.trace, self.probes = nn, float(time), trace, probes
        self.rtol, self.atol, self.method = rtol, atol, method

    def _field(self) -> Callable[[Tensor, Tensor], Tensor]:
        """Return the field, a function of vectors and a time, with the parameters of now.

        A solver evaluates it again for gradients, when a module may have others.
        """
        nn = held(self.nn)

        def field(x: Tensor, t: Tensor) -> Tensor:
            clock = expand(reshape(t, (1,) * x.array.ndim), (*x.array.shape[:-1], 1))
            return nn(cat([x, clock], -1))

        return field

    def _times(self, x: Tensor, backwards: bool) -> Tensor:
        ends = np.array([0.0, self.time])
        return x.new_tensor(ends[::-1].copy() if backwards else ends)

    def _solved(self, slope: Callable[..., Tree], start: Tree, x: Tensor, backwards: bool) -> Tree:
        """Return the states at both ends; `x` is a tensor of their kind."""
        finest = 20.0 * float(np.finfo(x.array.dtype).eps)
        return odeint(
            slope,
            start,
            self._times(x, backwards),
            rtol=max(self.rtol, finest),
            atol=max(self.atol, finest),
            method=self.method,
        )

    def _carried(self, x: Tensor, backwards: bool) -> Tensor:
        field = self._field()
        return self._solved(lambda t, x: field(x, t), x, x, backwards)[1]

    def _directions(self, x: Tensor) -> Tensor:
        """Return vectors v, shape (count, ..., n), over which v J v adds up to the divergence."""
        shape, n = x.array.shape, x.array.shape[-1]
        if self.trace == "exact":
            eye = np.eye(n).reshape((n, *(1,) * (len(shape) - 1), n))
            return expand(x.new_tensor(eye), (n, *shape))
        rng = Source(generator_for(None), x.array.dtype)
        u = rng.uniform((self.probes, *shape))
        return where(u < 0.5, -1.0, 1.0) * (x.new_tensor(1.0 / self.probes) ** 0.5)

    def _both(self, x: Tensor, backwards: bool) -> tuple[Tensor, Tensor]:
        """Carry a vector and the integral of the divergence along."""
        v, field = self._directions(x), self._field()

        def slope(t: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            wide = expand(state[0], v.array.shape)
            value, moved = jvp(lambda x: field(x, t), (wide,), (v,))
            return value[0], total(v * moved, (0, -1))

        start = x, x.new_zeros(x.array.shape[:-1])
        ends, logs = self._solved(slope, start, x, backwards)
        return ends[1], logs[1]

    def _call(self, x: Tensor) -> Tensor:
        return self._carried(x, False)

    def _inverse(self, y: Tensor) -> Tensor:
        return self._carried(y, True)

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self._both(x, False)

    def _inverse_and_ladj(self, y: Tensor) -> tuple[Tensor, Tensor]:
        x, log_det = self._both(y, True)
        return x, -log_det


def held(nn: Module) -> Module:
    """Return a network with the parameters that it has now."""
    return with_parameters(nn, dict(nn.named_parameters())) if isinstance(nn, Module) else nn


class ConditionalContinuousFlow(ConditionalTransformModule):
    """`ContinuousFlow` whose field also depends on a context.

    Parameters
    ----------
    nn : callable
        Called as ``nn(vector and time, context)``, for example a `ConditionalDenseNN`.
    time, trace, probes, rtol, atol, method
        As of `ContinuousFlow`.
    """

    def __init__(
        self,
        nn: Module,
        time: float = 1.0,
        trace: str = "exact",
        probes: int = 1,
        rtol: float = 1e-6,
        atol: float = 1e-8,
        method: str = "dopri5",
    ) -> None:
        super().__init__()
        self.nn, self.time, self.trace, self.probes = nn, time, trace, probes
        self.rtol, self.atol, self.method = rtol, atol, method

    def condition(self, context: Tensor) -> Transform:
        """Return the transform for a context."""
        network = InContext(held(self.nn), context)
        return ContinuousFlow(
            network,  # type: ignore[arg-type]  # called like one
            self.time,
            self.trace,
            self.probes,
            self.rtol,
            self.atol,
            self.method,
        )


def continuous_flow(
    input_dim: int,
    hidden_dims: Sequence[int] | None = None,
    time: float = 1.0,
    trace: str = "exact",
    probes: int = 1,
    rtol: float = 1e-6,
    atol: float = 1e-8,
    method: str = "dopri5",
) -> ContinuousFlow:
    """Return a new continuous flow, whose field is a network with tanh activations.

    Parameters
    ----------
    input_dim : int
    hidden_dims : sequence of int, optional
        Of the network; two layers of ``10 * input_dim`` if None.
    time, trace, probes, rtol, atol, method
        As of `ContinuousFlow`.

    Returns
    -------
    ContinuousFlow
    """
    layers = hidden_sizes(hidden_dims, input_dim)
    network = DenseNN(input_dim + 1, layers, [input_dim], nonlinearity=tanh)
    return ContinuousFlow(network, time, trace, probes, rtol, atol, method)


def conditional_continuous_flow(
    input_dim: int,
    context_dim: int,
    hidden_dims: Sequence[int] | None = None,
    time: float = 1.0,
    trace: str = "exact",
    probes: int = 1,
    rtol: float = 1e-6,
    atol: float = 1e-8,
    method: str = "dopri5",
) -> ConditionalContinuousFlow:
    """Return a new continuous flow with a context.

    Parameters
    ----------
    input_dim, context_dim : int
    hidden_dims : sequence of int, optional
        Of the network; two layers of ``10 * input_dim`` if None.
    time, trace, probes, rtol, atol, method
        As of `ContinuousFlow`.

    Returns
    -------
    ConditionalContinuousFlow
    """
    layers = hidden_sizes(hidden_dims, input_dim)
    network = ConditionalDenseNN(input_dim + 1, context_dim, layers, [input_dim], nonlinearity=tanh)
    return ConditionalContinuousFlow(network, time, trace, probes, rtol, atol, method)


explain_calls(globals())
