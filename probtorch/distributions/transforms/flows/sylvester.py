"""Sylvester flows: as many planar bends at once as a vector has numbers.

van den Berg, Hasenclever, Tomczak and Welling (2018). The inverse solves one monotone equation per
number, as `planar` does one.
"""

from __future__ import annotations

from collections.abc import Sequence

from probtorch.core.signatures import explain_calls
from probtorch.distributions.transforms.flows.linear import ConditionedHouseholder, Householder
from probtorch.distributions.transforms.flows.module import (
    ConditionalTransformModule,
    OnePass,
    TransformModule,
    hidden_sizes,
)
from probtorch.distributions.transforms.flows.planar import spread
from probtorch.distributions.transforms.flows.roots import bent_root
from probtorch.distributions.transforms.transform import Transform
from probtorch.nn import init
from probtorch.nn.arguments import whole
from probtorch.nn.autoregressive import DenseNN
from probtorch.nn.module import Module
from probtorch.ops.diagonals import diag_embed, triu
from probtorch.ops.exponentials import log1p
from probtorch.ops.movement import reshape, squeeze, unsqueeze
from probtorch.ops.pieces import stack
from probtorch.ops.reduction import sum as total
from probtorch.ops.trigonometry import tanh
from probtorch.tensor import Tensor

__all__ = ["ConditionalSylvester", "Sylvester", "conditional_sylvester", "sylvester"]


class ConditionedSylvester(OnePass):
    """``y = x + Q R tanh(S Q' x + b)`` with given parameters.

    Parameters
    ----------
    q : ConditionedHouseholder
        The orthogonal map Q.
    r_dense, s_dense : Tensor, shape (..., n, n)
        Their upper triangles are those of R and S.
    r_diagonal, s_diagonal : Tensor, shape (..., n)
        Free forms of the diagonals, which are in (-1, 1).
    bias : Tensor, shape (..., n)
    """

    costly_inverse = True

    def __init__(
        self,
        q: ConditionedHouseholder,
        r_dense: Tensor,
        r_diagonal: Tensor,
        s_dense: Tensor,
        s_diagonal: Tensor,
        bias: Tensor,
    ) -> None:
        self.q, self.bias = q, bias
        self.r_dense, self.r_diagonal = r_dense, r_diagonal
        self.s_dense, self.s_diagonal = s_dense, s_diagonal

    def _triangles(self) -> list[Tensor]:
        """R and S, with their diagonals."""
        found = []
        for name in ("r", "s"):
            diagonal = tanh(getattr(self, f"{name}_diagonal"))
            upper = triu(getattr(self, f"{name}_dense"), 1)
            found += [upper + diag_embed(diagonal), diagonal]
        return found

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        r, r_diagonal, s, s_diagonal = self._triangles()
        bend = tanh(_times(s, self.q._inverse(x)) + self.bias)
        ladj = total(log1p(r_diagonal * s_diagonal * (1.0 - bend * bend)), -1)
        return x + self.q._call(_times(r, bend)), ladj

    def _inverse(self, y: Tensor) -> Tensor:
        r, r_diagonal, s, s_diagonal = self._triangles()
        rest = self.q._inverse(y)
        slopes = self.bias + rest.new_zeros(rest.array.shape)
        heights = []
        for i in reversed(range(r_diagonal.array.shape[-1])):
            # h + c tanh(s h + d) = e, as an equation for s h.
            a, b = r_diagonal[..., i], s_diagonal[..., i]
            bend = tanh(bent_root(b * rest[..., i], a * b, slopes[..., i]) + slopes[..., i])
            height = rest[..., i] - a * bend
            heights.append(height)
            # What is left of the equations before, of which this one's number is known now.
            rest = rest - unsqueeze(bend, -1) * r[..., i]
            slopes = slopes + unsqueeze(height, -1) * s[..., i]
        return self.q._call(stack(heights[::-1], -1))


def _times(matrix: Tensor, x: Tensor) -> Tensor:
    """Return products of a matrix, or of one for each vector, and vectors."""
    if matrix.array.ndim == 2:
        return x @ matrix.mT
    return squeeze(matrix @ unsqueeze(x, -1), -1)


class Sylvester(ConditionedSylvester, TransformModule):
    """``y = x + Q R tanh(S Q' x + b)``: as many planar bends at once as there are numbers.

    Parameters
    ----------
    input_dim : int
    count_transforms : int
        Reflections whose product is the orthogonal matrix Q.

    Notes
    -----
    R and S are upper triangular, with diagonals in (-1, 1), so that every bend is invertible. The
    inverse solves one equation per number, from the last to the first.

    References
    ----------
    [berg2018]_
    """

    def __init__(self, input_dim: int, count_transforms: int = 1) -> None:
        TransformModule.__init__(self)
        whole("Sylvester", input_dim=input_dim)
        self.input_dim = input_dim
        self.q = Householder(input_dim, count_transforms)
        fill = spread(input_dim)
        for name in ("r", "s"):
            self.parameter(f"{name}_dense", (input_dim, input_dim), init=fill)
            self.parameter(f"{name}_diagonal", (input_dim,), init=fill)
        self.parameter("bias", (input_dim,), init=init.constant(0.0))


class ConditionalSylvester(ConditionalTransformModule):
    """A Sylvester flow whose parameters are the outputs of a network of the context.

    Parameters
    ----------
    input_dim : int
    nn : callable
        From the context to the directions of Q's reflections, ``count_transforms * input_dim``
        numbers, and to R, R's diagonal, S, S's diagonal and b: n * n, n, n * n, n and n numbers.
    count_transforms : int

    References
    ----------
    [berg2018]_
    """

    def __init__(self, input_dim: int, nn: Module, count_transforms: int = 1) -> None:
        super().__init__()
        whole("ConditionalSylvester", input_dim=input_dim, count_transforms=count_transforms)
        self.input_dim, self.nn, self.count_transforms = input_dim, nn, count_transforms

    def condition(self, context: Tensor) -> Transform:
        """Return the transform for a context."""
        n = self.input_dim
        u, r, r_diagonal, s, s_diagonal, bias = self.nn(context)
        u, r, s = (reshape(v, (*v.array.shape[:-1], -1, n)) for v in (u, r, s))
        return ConditionedSylvester(ConditionedHouseholder(u), r, r_diagonal, s, s_diagonal, bias)


def sylvester(input_dim: int, count_transforms: int | None = None) -> Sylvester:
    """Return a new Sylvester flow.

    Parameters
    ----------
    input_dim : int
    count_transforms : int, optional
        ``input_dim // 2 + 1`` if None.

    Returns
    -------
    Sylvester
    """
    count_transforms = input_dim // 2 + 1 if count_transforms is None else count_transforms
    return Sylvester(input_dim, count_transforms)


def conditional_sylvester(
    input_dim: int,
    context_dim: int,
    hidden_dims: Sequence[int] | None = None,
    count_transforms: int | None = None,
) -> ConditionalSylvester:
    """Return a new Sylvester flow with a context.

    Parameters
    ----------
    input_dim, context_dim : int
    hidden_dims : sequence of int, optional
        Of the network; two layers of ``10 * input_dim`` if None.
    count_transforms : int, optional
        ``input_dim // 2 + 1`` if None.

    Returns
    -------
    ConditionalSylvester
    """
    count_transforms = input_dim // 2 + 1 if count_transforms is None else count_transforms
    n, layers = input_dim, hidden_sizes(hidden_dims, input_dim)
    network = DenseNN(context_dim, layers, [count_transforms * n, n * n, n, n * n, n, n])
    return ConditionalSylvester(input_dim, network, count_transforms)


explain_calls(globals())
