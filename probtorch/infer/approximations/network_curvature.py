"""Curvature of a network's log likelihood: Gauss-Newton matrices, whole, diagonal or Kronecker.

For each sample the matrix is ``J' L J``, with J the Jacobian of the outputs with respect to the
weights and L minus the second derivative of the log likelihood with respect to the outputs; it is
positive semidefinite, and the Hessian itself where the network fits. `CurvatureSpectrum` holds the
sum over all samples as eigenvalues and a rotation, which is all that a posterior asks of it.

Kronecker factors are those of [martens2015]_ with the exact L in place of sampled labels: for a
layer with inputs a and derivatives g of its outputs, the mean of a a' and the sum of g L g'.
Convolutions count each place as a sample [grosse2016]_.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from probtorch.autograd.jacobians import jacrev
from probtorch.autograd.modes import enable_grad
from probtorch.autograd.tape import grad
from probtorch.autograd.vmap import vmap
from probtorch.backends.registry import to_host
from probtorch.core.dispatch import wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.errors import ArgumentError, ShapeError
from probtorch.func.stateless import functional_call
from probtorch.nn import functional as F
from probtorch.nn.convolution import Conv2d
from probtorch.nn.linear import Linear
from probtorch.nn.module import Module
from probtorch.ops.reduction import sum as total

__all__ = [
    "CurvatureSpectrum",
    "add_factors",
    "jacobians",
    "kronecker_spectrum",
    "layers_of",
    "matrix_spectrum",
]


@dataclass(frozen=True, eq=False)
class CurvatureSpectrum:
    """A positive semidefinite matrix over all weights, by its eigenvalues and eigenvectors.

    Attributes
    ----------
    values : ndarray, shape (weights,)
    group : ndarray of int, shape (weights,)
        To which group of weights (a layer, a parameter) an eigenvector belongs.
    groups : tuple of str
        Their names.
    rotate, unrotate : callable
        From weights (..., weights) to coordinates along the eigenvectors, and back.
    """

    values: np.ndarray
    group: np.ndarray
    groups: tuple[str, ...]
    rotate: Callable[[np.ndarray], np.ndarray]
    unrotate: Callable[[np.ndarray], np.ndarray]


def jacobians(
    net: Module, weights: dict[str, TensorBase], x: TensorBase
) -> tuple[np.ndarray, np.ndarray]:
    """Return outputs (samples, outputs) and Jacobians (samples, outputs, weights), float64."""

    def one(weights: dict[str, TensorBase], row: TensorBase) -> TensorBase:
        found = functional_call(net, weights, (row.unsqueeze(0),))
        return check_outputs(found)[0]

    by_name = vmap(jacrev(one), in_dims=(None, 0))(weights, x)
    with_rows = [to_host(by_name[name].array).astype(np.float64) for name in weights]
    samples, outputs = with_rows[0].shape[:2]
    parts = [j.reshape(samples, outputs, -1) for j in with_rows]
    values = to_host(functional_call(net, weights, (x,)).array).astype(np.float64)
    return values, np.concatenate(parts, axis=-1)


def check_outputs(outputs: object) -> TensorBase:
    """Return what a network returned, or refuse what is no tensor (samples, outputs)."""
    if not isinstance(outputs, TensorBase) or outputs.array.ndim != 2:
        raise ShapeError(
            "NetworkLaplace(net)",
            expected="a network whose result is a tensor of shape (samples, outputs)",
            got=f"shape {tuple(outputs.array.shape)}"
            if isinstance(outputs, TensorBase)
            else type(outputs).__name__,
            fix="wrap it in a module that returns one row of outputs for each sample",
        )
    return outputs


def matrix_spectrum(matrix: np.ndarray, sizes: dict[str, int]) -> CurvatureSpectrum:
    """Return the spectrum of a whole matrix, or of a diagonal given as a vector.

    Parameters
    ----------
    matrix : ndarray, shape (weights, weights) or (weights,)
    sizes : dict of str to int
        Weights by parameter: the groups of a diagonal. A whole matrix is one group.
    """
    if matrix.ndim == 1:
        group = np.repeat(np.arange(len(sizes)), list(sizes.values()))
        return CurvatureSpectrum(np.maximum(matrix, 0.0), group, tuple(sizes), _same, _same)
    values, vectors = np.linalg.eigh(matrix)
    return CurvatureSpectrum(
        np.maximum(values, 0.0),
        np.zeros(len(values), int),
        ("all",),
        functools.partial(_times, vectors),
        functools.partial(_times, vectors.T),
    )


# ------------------------------------------------------------------------------ Kronecker factors


@dataclass(eq=False)
class LayerFactors:
    """Sums over samples of what a layer's Kronecker factors are made of.

    Attributes
    ----------
    module : Module
    weight, bias : str or None
        Names of its parameters among those that count.
    inputs, outputs : ndarray
        Sum of a a' and of g L g'.
    count : int
        Samples, or samples times places.
    """

    module: Module
    weight: str
    bias: str | None
    inputs: np.ndarray
    outputs: np.ndarray
    count: int = 0


def layers_of(net: Module, names: list[str]) -> list[LayerFactors]:
    """Return the layers that the named parameters belong to.

    Raises
    ------
    ArgumentError
        If a parameter belongs to a layer without a Kronecker form.
    """
    found, left = [], set(names)
    for prefix, module in net.named_modules():
        start = f"{prefix}." if prefix else ""
        weight = f"{start}weight"
        if weight not in left or not isinstance(module, (Linear, Conv2d)):
            continue
        if isinstance(module, Conv2d) and (module.groups != 1 or module.padding_mode != "zeros"):
            continue
        bias = f"{start}bias" if f"{start}bias" in left else None
        left -= {weight, bias}
        shape = tuple(module.weight.array.shape)
        width = int(np.prod(shape[1:])) + (bias is not None)
        outputs = np.zeros((shape[0], shape[0]))
        found.append(LayerFactors(module, weight, bias, np.zeros((width, width)), outputs))
    if left:
        raise ArgumentError(
            'NetworkLaplace(hessian_structure="kron")',
            expected="weights of Linear and Conv2d, one of each group and padded with zeros",
            got=", ".join(sorted(left)[:5]),
            fix='use hessian_structure="diag", or switch their requires_grad off',
        )
    return found


def add_factors(
    net: Module,
    layers: list[LayerFactors],
    x: TensorBase,
    root_of: Callable[[np.ndarray], np.ndarray],
) -> np.ndarray:
    """Add a batch to the factors of all layers; return the outputs.

    Parameters
    ----------
    net : Module
    layers : list of LayerFactors
    x : Tensor, shape (samples, ...)
    root_of : callable
        From outputs (samples, outputs) to R with ``L = R R'``, shape (samples, outputs, columns).
    """
    met: list[tuple[LayerFactors, TensorBase, TensorBase]] = []
    handles = [
        layer.module.register_forward_hook(functools.partial(_note, met, layer)) for layer in layers
    ]
    try:
        with enable_grad():
            outputs = check_outputs(net(x))
    finally:
        for handle in handles:
            handle.remove()
    values = to_host(outputs.array).astype(np.float64)
    roots = root_of(values)
    for layer, given, _ in met:
        a = _input_rows(layer, given)
        layer.inputs += a.T @ a
        layer.count += len(a)
    made = [result for _, _, result in met]
    for column in np.moveaxis(roots, -1, 0):
        weights = wrap(column.astype(outputs.array.dtype))
        slopes = grad(total(outputs * weights), made, retain_graph=True)
        for (layer, _, _), slope in zip(met, slopes):
            g = to_host(slope.array).astype(np.float64)
            if isinstance(layer.module, Conv2d):
                g = np.moveaxis(g, 1, -1)
            g = g.reshape(-1, g.shape[-1])
            layer.outputs += g.T @ g
    return values


def _note(
    met: list[tuple[LayerFactors, TensorBase, TensorBase]],
    layer: LayerFactors,
    module: Module,
    args: tuple[TensorBase, ...],
    output: TensorBase,
) -> TensorBase:
    met.append((layer, args[0].detach(), output))
    # Another tensor goes on, so that what comes next may overwrite it.
    return output * 1.0


def _input_rows(layer: LayerFactors, given: TensorBase) -> np.ndarray:
    """The inputs of a layer as rows, with a 1 for its bias."""
    module = layer.module
    if isinstance(module, Conv2d):
        patches = F.unfold(
            given, module.kernel_size, module.dilation, module.padding, module.stride
        )
        a = np.moveaxis(to_host(patches.array), 1, -1)
    else:
        a = to_host(given.array)
    a = a.reshape(-1, a.shape[-1]).astype(np.float64)
    return a if layer.bias is None else np.concatenate([a, np.ones((len(a), 1))], axis=1)


def kronecker_spectrum(layers: list[LayerFactors], sizes: dict[str, int]) -> CurvatureSpectrum:
    """Return the spectrum of the block diagonal matrix with a Kronecker product for each layer."""
    starts = dict(zip(sizes, np.cumsum([0, *sizes.values()])))
    blocks, values, group = [], [], []
    for i, layer in enumerate(layers):
        inner, a = np.linalg.eigh(layer.inputs / max(layer.count, 1))
        outer, b = np.linalg.eigh(layer.outputs)
        products = np.maximum(outer, 0.0)[:, None] * np.maximum(inner, 0.0)
        places = starts[layer.weight] + np.arange(sizes[layer.weight])
        places = places.reshape(len(outer), -1)
        if layer.bias is not None:
            biases = starts[layer.bias] + np.arange(sizes[layer.bias])
            places = np.concatenate([places, biases[:, None]], axis=1)
        blocks.append((places, a, b))
        values.append(products.reshape(-1))
        group.append(np.full(products.size, i))
    return CurvatureSpectrum(
        np.concatenate(values),
        np.concatenate(group),
        tuple(layer.weight.removesuffix(".weight") for layer in layers),
        functools.partial(_kron_rotate, blocks),
        functools.partial(_kron_unrotate, blocks),
    )


Blocks = list[tuple[np.ndarray, np.ndarray, np.ndarray]]


def _kron_rotate(blocks: Blocks, weights: np.ndarray) -> np.ndarray:
    return np.concatenate(list(_turned(blocks, weights)), axis=-1)


def _turned(blocks: Blocks, weights: np.ndarray) -> Iterator[np.ndarray]:
    for places, a, b in blocks:
        turned = b.T @ weights[..., places] @ a
        yield turned.reshape(*weights.shape[:-1], -1)


def _kron_unrotate(blocks: Blocks, coordinates: np.ndarray) -> np.ndarray:
    found, start = np.empty_like(coordinates), 0
    for places, a, b in blocks:
        part = coordinates[..., start : start + places.size]
        start += places.size
        part = part.reshape(*coordinates.shape[:-1], *places.shape)
        found[..., places] = b @ part @ a.T
    return found


def _same(weights: np.ndarray) -> np.ndarray:
    return weights


def _times(matrix: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return np.asarray(weights @ matrix)
