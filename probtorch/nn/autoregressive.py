"""Networks that give parameters of distributions: autoregressive (MADE) and dense ones.

`AutoRegressiveNN` is an ordinary network whose weights are masked so that the outputs for number i
see only the numbers before i in some order (Germain, Gregor, Murray and Larochelle 2015, "MADE:
masked autoencoder for distribution estimation"). Both kinds cut their output into several
parameters (`param_dims`), and both have a form with a context, which every output sees. Names,
arguments and shapes are those of `pyro.nn`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.core.typed import DTypeLike, TensorLike
from probtorch.errors import ArgumentError, ShapeError
from probtorch.nn import functional as F
from probtorch.nn import init
from probtorch.nn.activation import ReLU
from probtorch.nn.arguments import Place, shown, whole
from probtorch.nn.containers import ModuleList
from probtorch.nn.linear import Linear
from probtorch.nn.module import Module
from probtorch.ops.movement import expand, reshape, squeeze
from probtorch.ops.pieces import cat, split
from probtorch.ops.random_integers import randperm
from probtorch.tensor import Tensor

__all__ = [
    "AutoRegressiveNN",
    "ConditionalAutoRegressiveNN",
    "ConditionalDenseNN",
    "DenseNN",
    "MaskedLinear",
]


class MaskedLinear(Module):
    """``x @ (weight * mask).T + bias``: a linear layer with some connections cut.

    Shapes: ``x`` is ``(..., in_features)``, the result ``(..., out_features)``.

    Parameters
    ----------
    in_features, out_features : int
    mask : Tensor or array, shape (out_features, in_features)
        0 cuts a connection, 1 keeps it.
    bias : bool
    device, dtype
        Of the parameters, which start as those of `Linear`.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        mask: TensorLike,
        bias: bool = True,
        device: str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(device=device, dtype=dtype)
        whole("MaskedLinear", 0, in_features=in_features, out_features=out_features)
        self.in_features, self.out_features = in_features, out_features
        self.parameter("weight", (out_features, in_features), init=init.fan_in())
        self.parameter("bias", (out_features,) if bias else None, init=init.fan_in(in_features))
        given = np.asarray(as_tensor(mask, "MaskedLinear").detach().array)
        if given.shape != (out_features, in_features):
            raise ShapeError(
                "MaskedLinear",
                expected=f"a mask of shape {(out_features, in_features)}",
                got=f"shape {given.shape}",
                fix="one row per output, one column per input",
            )
        self.register_buffer("mask", wrap(given.astype(self.weight.array.dtype)))

    def forward(self, input: TensorLike) -> Tensor:
        return F.linear(input, self.weight * self.mask, self.bias)

    def extra_repr(self) -> str:
        return f"{shown(self, 'in_features', 'out_features')}, bias={self.bias is not None}"


def made_masks(
    input_dim: int,
    context_dim: int,
    hidden_dims: Sequence[int],
    permutation: Sequence[int] | np.ndarray | Tensor | None,
    multiplier: int,
) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the masks of an autoregressive network, and that of its direct connection.

    Parameters
    ----------
    input_dim, context_dim : int
    hidden_dims : sequence of int
    permutation : ndarray of int, shape (input_dim,)
        The numbers in the order in which they may see each other.
    multiplier : int
        Outputs per number; output ``k * input_dim + i`` belongs to number i.

    Returns
    -------
    masks : list of ndarray, each (outputs, inputs) of a layer
    skip : ndarray, shape (multiplier * input_dim, context_dim + input_dim)

    Notes
    -----
    Each unit has a degree: its place in the order for an input, from 1 on, 0 for the context. A
    unit is connected to those of no higher degree below it, an output to those of lower degree.
    The degrees of hidden units are spread evenly.
    """
    place = np.empty(input_dim, int)
    place[permutation] = np.arange(1, input_dim + 1)
    degrees = [np.concatenate([np.zeros(context_dim, int), place])]
    # Units of degree 0 see the context alone: without one they are needed only for a single number.
    lowest = 0 if context_dim or input_dim == 1 else 1
    for size in hidden_dims:
        degrees.append(np.round(np.linspace(lowest, input_dim - 1, size)).astype(int))
    out = np.tile(place, multiplier)
    masks = [b[:, None] >= a for a, b in itertools.pairwise(degrees)]
    masks.append(out[:, None] > degrees[-1])
    return masks, out[:, None] > degrees[0]


class _Shaped(Module):
    """What the networks share: layers with one nonlinearity, and an output in several parts."""

    def __init__(
        self,
        input_dim: int,
        context_dim: int,
        hidden_dims: Sequence[int],
        param_dims: Sequence[int],
        nonlinearity: Callable[[Tensor], Tensor] | None,
        device: str | None,
        dtype: DTypeLike | None,
    ) -> None:
        super().__init__(device=device, dtype=dtype)
        name = type(self).__name__
        whole(name, 0, context_dim=context_dim)
        self.input_dim, self.context_dim = input_dim, context_dim
        self.hidden_dims, self.param_dims = list(hidden_dims), list(param_dims)
        if not self.hidden_dims or not self.param_dims:
            raise ArgumentError(
                name,
                expected="at least one hidden layer and one parameter",
                got=f"hidden_dims={self.hidden_dims}, param_dims={self.param_dims}",
                fix="for example hidden_dims=[32], param_dims=[1, 1]",
            )
        numbers = {f"hidden_dims[{i}]": h for i, h in enumerate(self.hidden_dims)}
        numbers |= {f"param_dims[{i}]": p for i, p in enumerate(self.param_dims)}
        whole(name, input_dim=input_dim, **numbers)
        self.f = ReLU() if nonlinearity is None else nonlinearity
        self.output_multiplier = sum(self.param_dims)

    def _through(self, x: Tensor) -> Tensor:
        h = x
        for layer in self.layers[:-1]:
            h = self.f(layer(h))
        return self.layers[-1](h)

    def _joined(self, x: Tensor, context: Tensor) -> Tensor:
        """Context and input side by side; the context is repeated for all rows of the input."""
        lead = x.array.shape[:-1]
        context = expand(context, (*lead, context.array.shape[-1]))
        return cat([context, x], -1)

    def extra_repr(self) -> str:
        return shown(self, "input_dim", "context_dim", "hidden_dims", "param_dims")


class _Made(_Shaped):
    """What autoregressive networks with and without a context share: all but the call."""

    def __init__(
        self,
        input_dim: int,
        context_dim: int,
        hidden_dims: Sequence[int],
        param_dims: Sequence[int] = (1, 1),
        permutation: Sequence[int] | np.ndarray | Tensor | None = None,
        skip_connections: bool = False,
        nonlinearity: Callable[[Tensor], Tensor] | None = None,
        device: str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(
            input_dim, context_dim, hidden_dims, param_dims, nonlinearity, device, dtype
        )
        name = type(self).__name__
        drawn = randperm(input_dim) if permutation is None else as_tensor(permutation, name)
        order = np.array(drawn.detach().array)
        if sorted(order.tolist()) != list(range(input_dim)):
            raise ArgumentError(
                f"{name}(permutation=...)",
                expected=f"the numbers 0 to {input_dim - 1} in some order",
                got=str(order.tolist()),
                fix="leave it out for a random order",
            )
        self.register_buffer("permutation", wrap(order.astype(np.int64)))
        masks, skip = made_masks(
            input_dim, context_dim, self.hidden_dims, order, self.output_multiplier
        )
        kind: Place = {"device": device, "dtype": dtype}
        self.layers = ModuleList(MaskedLinear(m.shape[1], m.shape[0], m, **kind) for m in masks)
        self.skip_layer = None
        if skip_connections:
            self.skip_layer = MaskedLinear(skip.shape[1], skip.shape[0], skip, bias=False, **kind)

    def get_permutation(self) -> Tensor:
        """Return the order, an int64 Tensor."""
        return self.permutation

    def _outputs(self, x: Tensor) -> Any:
        h = self._through(x)
        if self.skip_layer is not None:
            h = h + self.skip_layer(x)
        if self.output_multiplier == 1:
            return h
        h = reshape(h, (*x.array.shape[:-1], self.output_multiplier, self.input_dim))
        if len(self.param_dims) == 1:
            return h
        parts = split(h, self.param_dims, -2)
        single = all(p == 1 for p in self.param_dims)
        return tuple(squeeze(p, -2) for p in parts) if single else tuple(parts)


class ConditionalAutoRegressiveNN(_Made):
    """A network whose outputs for a number see the context and the numbers before it.

    Shapes: ``x`` is ``(..., input_dim)``, ``context`` broadcasts to ``(..., context_dim)``. Returns
    one tensor per entry p of `param_dims`, of shape ``(..., input_dim)`` if all p are 1, else
    ``(..., p, input_dim)``; a single tensor if there is one entry.

    Parameters
    ----------
    input_dim, context_dim : int
    hidden_dims : sequence of int
        Sizes of the hidden layers.
    param_dims : sequence of int
        How many numbers each parameter has per input.
    permutation : Tensor or sequence of int, optional
        The order; drawn at random if None.
    skip_connections : bool
        Add a direct linear connection.
    nonlinearity : callable, optional
        A module or function; `ReLU` if None.
    device, dtype
        Of the parameters.

    Raises
    ------
    ArgumentError
        If a size is none, or `permutation` is no order of the inputs.

    References
    ----------
    [germain2015]_; the context as in [paige2016]_.
    """

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        return self._outputs(self._joined(x, context))


class AutoRegressiveNN(_Made):
    """A network whose outputs for a number see only the numbers before it, in some order.

    Shapes: ``x`` is ``(..., input_dim)``; what is returned is described at
    `ConditionalAutoRegressiveNN`.

    Parameters
    ----------
    input_dim, hidden_dims, param_dims, permutation, skip_connections, nonlinearity, device, dtype
        See `ConditionalAutoRegressiveNN`.

    Examples
    --------
    >>> import probtorch
    >>> mean, log_scale = AutoRegressiveNN(4, [16], param_dims=[1, 1])(probtorch.zeros(10, 4))
    >>> mean.shape
    Size([10, 4])
    """

    def __init__(
        self,
        input_dim: int,
        hidden_dims: Sequence[int],
        param_dims: Sequence[int] = (1, 1),
        permutation: Sequence[int] | np.ndarray | Tensor | None = None,
        skip_connections: bool = False,
        nonlinearity: Callable[[Tensor], Tensor] | None = None,
        device: str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(
            input_dim,
            0,
            hidden_dims,
            param_dims=param_dims,
            permutation=permutation,
            skip_connections=skip_connections,
            nonlinearity=nonlinearity,
            device=device,
            dtype=dtype,
        )

    def forward(self, x: Tensor) -> Tensor:
        return self._outputs(x)


class _Dense(_Shaped):
    """What dense networks with and without a context share: all but the call."""

    def __init__(
        self,
        input_dim: int,
        context_dim: int,
        hidden_dims: Sequence[int],
        param_dims: Sequence[int] = (1, 1),
        nonlinearity: Callable[[Tensor], Tensor] | None = None,
        device: str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(
            input_dim, context_dim, hidden_dims, param_dims, nonlinearity, device, dtype
        )
        sizes = [input_dim + context_dim, *self.hidden_dims, self.output_multiplier]
        kind: Place = {"device": device, "dtype": dtype}
        self.layers = ModuleList(Linear(a, b, **kind) for a, b in itertools.pairwise(sizes))

    def _outputs(self, x: Tensor) -> Any:
        h = self._through(x)
        return h if len(self.param_dims) == 1 else tuple(split(h, self.param_dims, -1))


class ConditionalDenseNN(_Dense):
    """A fully connected network of an input and a context, with an output in several parts.

    Shapes: ``x`` is ``(..., input_dim)``, ``context`` broadcasts to ``(..., context_dim)``. Returns
    one tensor ``(..., p)`` per entry p of `param_dims`; a single one if there is one entry.

    Parameters
    ----------
    input_dim, context_dim : int
    hidden_dims : sequence of int
        Sizes of the hidden layers.
    param_dims : sequence of int
        Sizes of the parameters.
    nonlinearity : callable, optional
        A module or function; `ReLU` if None.
    device, dtype
        Of the parameters.
    """

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        return self._outputs(self._joined(x, context))


class DenseNN(_Dense):
    """A fully connected network with an output in several parts.

    Shapes: ``x`` is ``(..., input_dim)``; returns one tensor ``(..., p)`` per entry p of
    `param_dims`, a single one if there is one entry.

    Parameters
    ----------
    input_dim, hidden_dims, param_dims, nonlinearity, device, dtype
        See `ConditionalDenseNN`.
    """

    def __init__(
        self,
        input_dim: int,
        hidden_dims: Sequence[int],
        param_dims: Sequence[int] = (1, 1),
        nonlinearity: Callable[[Tensor], Tensor] | None = None,
        device: str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(input_dim, 0, hidden_dims, param_dims, nonlinearity, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self._outputs(x)
