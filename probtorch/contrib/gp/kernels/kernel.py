"""`Kernel`: covariances of a function's values at pairs of points, and kernels made of kernels."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence

from probtorch.contrib.gp.parameterized import Parameterized
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.effects.site import as_value
from probtorch.errors import ArgumentError, DTypeError, ShapeError
from probtorch.ops.movement import unsqueeze
from probtorch.tensor import Tensor

__all__ = [
    "Combination",
    "Exponent",
    "Kernel",
    "Power",
    "Product",
    "Sum",
    "VerticalScaling",
    "Warping",
]


class Kernel(Parameterized, abc.ABC):
    """A positive definite function of two points.

    Parameters
    ----------
    input_dim : int
        How many features of a point it looks at.
    active_dims : sequence of int, optional
        Which; the first `input_dim` without it.

    Notes
    -----
    Kernels are added and multiplied by ``+`` and ``*``, by positive numbers too. A kernel of one's
    own states `forward`; parameters are attributes, as in any `PyroModule`.

    Examples
    --------
    >>> import probtorch
    >>> from probtorch.contrib.gp.kernels import RBF, WhiteNoise
    >>> kernel = 2.0 * RBF(input_dim=2) + WhiteNoise(input_dim=2)
    >>> kernel(probtorch.zeros(3, 2)).shape
    Size([3, 3])
    """

    def __init__(self, input_dim: int, active_dims: Sequence[int] | None = None) -> None:
        super().__init__()
        if active_dims is not None and len(active_dims) != input_dim:
            raise ArgumentError(
                type(self).__name__,
                expected=f"as many active_dims as input_dim says, {input_dim}",
                got=f"{len(active_dims)} of them",
                fix="give one number of a column for each dim that the kernel looks at",
            )
        self.input_dim = input_dim
        self.active_dims = None if active_dims is None else list(active_dims)

    @abc.abstractmethod
    def forward(self, X: Tensor, Z: Tensor | None = None, diag: bool = False) -> Tensor:
        """Return covariances.

        Parameters
        ----------
        X : Tensor, shape (n, dims) or (n,)
            Points.
        Z : Tensor, shape (m, dims) or (m,), optional
            Other points; X itself without it.
        diag : bool
            Return those of the points of X with themselves alone.

        Returns
        -------
        Tensor, shape (n, m), or (n,)
        """

    def points(self, X: TensorLike, name: str = "X") -> Tensor:
        """Return the columns of points that the kernel looks at, shape (n, input_dim)."""
        x = as_value(X, name)
        x = unsqueeze(x, -1) if x.array.ndim == 1 else x
        wanted = range(self.input_dim) if self.active_dims is None else self.active_dims
        if x.array.ndim != 2 or x.array.shape[-1] <= max(wanted, default=-1):
            raise ShapeError(
                type(self).__name__,
                expected=f"{name} of shape (points, dims), with more than {max(wanted)} dims",
                got=f"shape {tuple(x.array.shape)}",
                fix="points are rows; input_dim says how many columns the kernel looks at",
            )
        if list(wanted) == list(range(x.array.shape[-1])):
            return x
        return x[:, : self.input_dim] if self.active_dims is None else x[:, self.active_dims]

    def __add__(self, other: Kernel | float | Tensor) -> Sum:
        return Sum(self, other)

    __radd__ = __add__

    def __mul__(self, other: Kernel | float | Tensor) -> Product:
        return Product(self, other)

    __rmul__ = __mul__

    def __pow__(self, exponent: int) -> Power:
        return Power(self, exponent)


class Combination(Kernel):
    """Base of kernels that are made of a kernel, and of another one or a positive number.

    Parameters
    ----------
    kern0 : Kernel
    kern1 : Kernel, number or 0-d Tensor
    """

    def __init__(self, kern0: Kernel, kern1: Kernel | float | Tensor) -> None:
        if not isinstance(kern0, Kernel) or not isinstance(
            kern1, Kernel | int | float | TensorBase
        ):
            wrong = kern1 if isinstance(kern0, Kernel) else kern0
            raise DTypeError(
                type(self).__name__,
                expected="a kernel, and a kernel or a positive number",
                got=f"{type(wrong).__name__} {wrong!r:.60}",
                fix="a function of points becomes a kernel as the forward of a subclass of Kernel",
            )
        dims = {*_active(kern0)}
        if isinstance(kern1, Kernel):
            dims |= {*_active(kern1)}
        super().__init__(len(dims), sorted(dims))
        self.kern0 = kern0
        if not isinstance(kern1, Kernel) and not float(kern1) > 0.0:
            raise ArgumentError(
                type(self).__name__,
                expected="a positive number",
                got=repr(kern1),
                fix="with others the sum or product is no kernel",
            )
        self.kern1 = kern1

    def both(self, X: Tensor, Z: Tensor | None, diag: bool) -> tuple[Tensor, Tensor | float]:
        """Return the covariances of both."""
        first = self.kern0(X, Z, diag=diag)
        second = self.kern1
        return first, second(X, Z, diag=diag) if isinstance(second, Kernel) else second


def _active(kernel: Kernel) -> Sequence[int]:
    return range(kernel.input_dim) if kernel.active_dims is None else kernel.active_dims


class Sum(Combination):
    """The sum of two kernels, or of a kernel and a constant: of independent functions.

    Parameters
    ----------
    kern0 : Kernel
    kern1 : Kernel, number or 0-d Tensor
    """

    def forward(self, X: Tensor, Z: Tensor | None = None, diag: bool = False) -> Tensor:
        """Return covariances; see `Kernel.forward`."""
        first, second = self.both(X, Z, diag)
        return first + second


class Product(Combination):
    """The product of two kernels, or of a kernel and a variance.

    Parameters
    ----------
    kern0 : Kernel
    kern1 : Kernel, number or 0-d Tensor
    """

    def forward(self, X: Tensor, Z: Tensor | None = None, diag: bool = False) -> Tensor:
        """Return covariances; see `Kernel.forward`."""
        first, second = self.both(X, Z, diag)
        return first * second


class _Transformed(Kernel):
    """Base of kernels that change what one kernel says."""

    def __init__(self, kern: Kernel) -> None:
        super().__init__(kern.input_dim, kern.active_dims)
        self.kern = kern


class Power(_Transformed):
    """A whole power of a kernel.

    Parameters
    ----------
    kern : Kernel
    exponent : int, positive
    """

    def __init__(self, kern: Kernel, exponent: int) -> None:
        super().__init__(kern)
        if not isinstance(exponent, int) or exponent < 1:
            raise ArgumentError(
                "Power of a kernel",
                expected="a positive int",
                got=repr(exponent),
                fix="other powers of a kernel are none",
            )
        self.exponent = exponent

    def forward(self, X: Tensor, Z: Tensor | None = None, diag: bool = False) -> Tensor:
        """Return covariances; see `Kernel.forward`."""
        k: Tensor = self.kern(X, Z, diag=diag)
        return k**self.exponent


class Exponent(_Transformed):
    """The exponential function of a kernel.

    Parameters
    ----------
    kern : Kernel
    """

    def forward(self, X: Tensor, Z: Tensor | None = None, diag: bool = False) -> Tensor:
        """Return covariances; see `Kernel.forward`."""
        k: Tensor = self.kern(X, Z, diag=diag)
        return k.exp()


class VerticalScaling(_Transformed):
    """The kernel of ``s(x) f(x)``: that of f, scaled at both points.

    Parameters
    ----------
    kern : Kernel
        Of f.
    vscaling_fn : callable
        From points (n, dims) to s, shape (n,). A module is a part of the kernel.
    """

    def __init__(self, kern: Kernel, vscaling_fn: Callable[[Tensor], Tensor]) -> None:
        super().__init__(kern)
        self.vscaling_fn = vscaling_fn

    def forward(self, X: Tensor, Z: Tensor | None = None, diag: bool = False) -> Tensor:
        """Return covariances; see `Kernel.forward`."""
        k: Tensor = self.kern(X, Z, diag=diag)
        left = self.vscaling_fn(X)
        if diag:
            return k * left * left
        right = left if Z is None else self.vscaling_fn(Z)
        return unsqueeze(left, 1) * k * right


class Warping(_Transformed):
    """A kernel of warped points: ``p(k(w(x), w(z)))``.

    Parameters
    ----------
    kern : Kernel
    iwarping_fn : callable, optional
        The function w, from points (n, dims) to points. A module, such as a network, is a part of
        the kernel, and learned with it.
    owarping_coef : sequence of number, optional
        Nonnegative coefficients of the polynomial p, from the constant on.
    """

    def __init__(
        self,
        kern: Kernel,
        iwarping_fn: Callable[[Tensor], Tensor] | None = None,
        owarping_coef: Sequence[float] | None = None,
    ) -> None:
        super().__init__(kern)
        if owarping_coef is not None and not all(c >= 0 for c in owarping_coef):
            raise ArgumentError(
                "Warping",
                expected="nonnegative owarping_coef",
                got=str(list(owarping_coef)),
                fix="with others the polynomial of a kernel is none",
            )
        self.iwarping_fn = iwarping_fn
        self.owarping_coef = None if owarping_coef is None else [float(c) for c in owarping_coef]

    def forward(self, X: Tensor, Z: Tensor | None = None, diag: bool = False) -> Tensor:
        """Return covariances; see `Kernel.forward`."""
        warp = self.iwarping_fn
        if warp is not None:
            X, Z = warp(X), None if Z is None else warp(Z)
        k: Tensor = self.kern(X, Z, diag=diag)
        if self.owarping_coef is None:
            return k
        out = k * 0.0
        for c in reversed(self.owarping_coef):
            out = out * k + c
        return out


explain_calls(globals())
