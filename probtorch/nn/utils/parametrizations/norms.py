"""Weights divided by a norm: of each row, with its length learned apart, or the spectral one."""

from __future__ import annotations

from typing import TypeVar

from probtorch.autograd.modes import no_grad
from probtorch.core.signatures import explain_calls
from probtorch.errors import ArgumentError
from probtorch.factories import ones
from probtorch.nn.functional.linear import normalize
from probtorch.nn.init import normal_
from probtorch.nn.module import Module
from probtorch.nn.utils.parametrize import register_parametrization, remove_parametrizations
from probtorch.ops.arithmetic import sqrt
from probtorch.ops.contraction import matmul
from probtorch.ops.movement import permute, reshape
from probtorch.ops.reduction import sum as total
from probtorch.tensor import Tensor

__all__ = ["remove_spectral_norm", "remove_weight_norm", "spectral_norm", "weight_norm"]

M = TypeVar("M", bound=Module)

# Power iterations before the first use, as in PyTorch.
FIRST = 15


class _WeightNorm(Module):
    """From lengths and directions to a weight."""

    def __init__(self, dim: int | None = 0) -> None:
        super().__init__()
        self.dim = -1 if dim is None else dim

    def _norm(self, v: Tensor) -> Tensor:
        """The 2-norm over all dims but one, or over all."""
        if self.dim == -1:
            return sqrt(total(v * v))
        kept = self.dim % v.ndim
        return sqrt(total(v * v, tuple(d for d in range(v.ndim) if d != kept), keepdim=True))

    def forward(self, g: Tensor, v: Tensor) -> Tensor:
        return v * (g / self._norm(v))

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return self._norm(weight), weight


def weight_norm(module: M, name: str = "weight", dim: int | None = 0) -> M:
    """Learn the length of each row of a weight apart from its direction.

    Parameters
    ----------
    module : Module
    name : str
        The weight becomes ``g * v / norm(v)``, with ``original0 = g`` and ``original1 = v``.
    dim : int or None
        Where the rows lie: the norm is over all other dims. None has one length for all.

    Returns
    -------
    Module
        `module`, which has changed.

    References
    ----------
    T. Salimans, D. P. Kingma, "Weight normalization", NeurIPS 2016.

    Examples
    --------
    >>> from probtorch import nn
    >>> layer = weight_norm(nn.Linear(20, 40))
    >>> [tuple(t.shape) for t in layer.parametrizations.weight.originals()]
    [(40, 1), (40, 20)]
    """
    return register_parametrization(module, name, _WeightNorm(dim), unsafe=True)


def remove_weight_norm(module: M, name: str = "weight") -> M:
    """Make a weight that `weight_norm` has split one parameter again; returns the module."""
    return remove_parametrizations(module, name)


def remove_spectral_norm(module: M, name: str = "weight") -> M:
    """Make a weight that `spectral_norm` divides one parameter again; returns the module."""
    return remove_parametrizations(module, name)


class _SpectralNorm(Module):
    """A weight divided by its largest singular value, which power iteration follows."""

    _u: Tensor
    _v: Tensor

    def __init__(
        self, weight: Tensor, n_power_iterations: int = 1, dim: int = 0, eps: float = 1e-12
    ) -> None:
        super().__init__()
        if not -weight.ndim <= dim < weight.ndim:
            raise ArgumentError(
                "spectral_norm: dim",
                expected=f"a dim of the weight, from {-weight.ndim} to {weight.ndim - 1}",
                got=str(dim),
                fix="leave it out",
            )
        if n_power_iterations <= 0:
            raise ArgumentError(
                "spectral_norm: n_power_iterations",
                expected="an integer > 0",
                got=str(n_power_iterations),
                fix="leave it out: one per step is enough",
            )
        self.dim, self.eps = dim % weight.ndim, eps
        if weight.ndim > 1:
            self.n_power_iterations = n_power_iterations
            with no_grad():
                matrix = self._matrix(weight.detach())
                for name, size in zip(("_u", "_v"), matrix.shape):
                    start = normal_(ones(size, dtype=matrix.dtype, device=matrix.device))
                    self.register_buffer(name, normalize(start, dim=0, eps=eps))
            self._follow(matrix, FIRST)

    def _matrix(self, weight: Tensor) -> Tensor:
        """The weight with `dim` in rows and all other dims in columns."""
        others = (d for d in range(weight.ndim) if d != self.dim)
        return reshape(permute(weight, (self.dim, *others)), (weight.shape[self.dim], -1))

    @no_grad
    def _follow(self, matrix: Tensor, times: int) -> None:
        for _ in range(times):
            self._u.copy_(normalize(matmul(matrix, self._v), dim=0, eps=self.eps))
            self._v.copy_(normalize(matmul(self._u, matrix), dim=0, eps=self.eps))

    def forward(self, weight: Tensor) -> Tensor:
        if weight.ndim == 1:
            return normalize(weight, dim=0, eps=self.eps)
        matrix = self._matrix(weight)
        if self.training:
            self._follow(matrix.detach(), self.n_power_iterations)
        # Copies, since the next use in training changes them before gradients are computed.
        u, v = self._u.clone(), self._v.clone()
        return weight / matmul(u, matmul(matrix, v))

    def right_inverse(self, value: Tensor) -> Tensor:
        return value


def spectral_norm(
    module: M,
    name: str = "weight",
    n_power_iterations: int = 1,
    eps: float = 1e-12,
    dim: int | None = None,
) -> M:
    """Divide a weight by its largest singular value, so that a layer lengthens no vector.

    Parameters
    ----------
    module : Module
    name : str
    n_power_iterations : int
        Done at each use in training; the vectors are buffers, so they follow the weight.
    eps : float
        The least norm that vectors are divided by.
    dim : int, optional
        Which dim has the outputs: 0, and 1 for transposed convolutions.

    Returns
    -------
    Module
        `module`, which has changed.

    Raises
    ------
    ArgumentError
        If the module has no such tensor, or for options out of range.

    References
    ----------
    T. Miyato et al., "Spectral normalization for generative adversarial networks", ICLR 2018.

    Examples
    --------
    >>> from probtorch import linalg, nn
    >>> layer = spectral_norm(nn.Linear(20, 40), n_power_iterations=50)
    >>> round(linalg.svdvals(layer.weight)[0].item(), 3)
    1.0
    """
    weight = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        raise ArgumentError(
            f"spectral_norm: {name!r}",
            expected=f"the name of a parameter or buffer of {type(module).__name__}",
            got=repr(name),
            fix="name a tensor that the module has",
        )
    if dim is None:
        dim = int(type(module).__name__.removeprefix("Parametrized").startswith("ConvTranspose"))
    return register_parametrization(
        module, name, _SpectralNorm(weight, n_power_iterations, dim, eps)
    )


explain_calls(globals())
