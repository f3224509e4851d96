"""`GPModel`: a Gaussian process with data, as a model, a guide and a prediction."""

from __future__ import annotations

import abc
from collections.abc import Callable

from probtorch.autograd.modes import no_grad
from probtorch.contrib.gp.kernels.kernel import Kernel, Warping
from probtorch.contrib.gp.parameterized import Parameterized, reading
from probtorch.core.dtype import get_default_dtype
from probtorch.core.signatures import explain_calls
from probtorch.core.typed import TensorLike
from probtorch.effects.pyro_module import pyro_method
from probtorch.effects.site import as_value
from probtorch.errors import ArgumentError, DTypeError, ShapeError
from probtorch.tensor import Tensor

__all__ = ["GPModel", "Mean"]

# From points (n, dims) to means, shape (n,) or (*latent, n).
Mean = Callable[[Tensor], Tensor]


class GPModel(Parameterized, abc.ABC):
    """Base of Gaussian processes with data.

    `model` and `guide` are what `SVI`, and `model` what `NUTS`, is given; a call, ``gp(Xnew)``,
    predicts. Parameters of the kernel and of the noise are learned, unless they have priors.

    Parameters
    ----------
    X : Tensor, array or data frame, shape (n, dims) or (n,)
        Points.
    y : Tensor or array, shape (..., n), optional
        Observations; the prior is meant without them.
    kernel : Kernel
    mean_function : callable, optional
        From points to means; 0 without it. A module is a part of the model, and learned with it.
    jitter : float, optional
        Added to the diagonals of covariance matrices, so that they have Cholesky factors; 1e-6
        without it, and 1e-4 for points in single precision.
    """

    X: Tensor
    y: Tensor | None

    def __init__(
        self,
        X: TensorLike,
        y: TensorLike | None,
        kernel: Kernel,
        mean_function: Mean | None = None,
        jitter: float | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(kernel, Kernel):
            raise DTypeError(
                type(self).__name__,
                expected="a Kernel",
                got=f"{type(kernel).__name__} {kernel!r:.60}",
                fix="X, y and kernel, in this order; for example kernels.RBF(input_dim=1)",
            )
        # Buffers: other data of the same shape are no reason to compile anew.
        self.register_buffer("X", None, persistent=False)
        self.register_buffer("y", None, persistent=False)
        self.kernel, self.mean_function = kernel, mean_function
        self.set_data(X, y)
        if jitter is None:
            jitter = 1e-6 if self.X.array.dtype.itemsize >= 8 else 1e-4
        self.jitter = jitter

    def set_data(self, X: TensorLike, y: TensorLike | None = None) -> None:
        """Give other points and observations: the next minibatch, or new data.

        Parameters
        ----------
        X : Tensor, array or data frame, shape (n, dims) or (n,)
        y : Tensor or array, shape (..., n), optional
        """
        values = None if y is None else as_value(y, "y")
        x = as_value(X, "X")
        if x.array.dtype.kind in "biu":
            # Whole numbers are numbers: in the precision of what is observed there.
            kind = get_default_dtype() if values is None else values.dtype
            x = x.to(kind if kind.kind == "f" else get_default_dtype())
        warped = any(isinstance(m, Warping) for m in self.kernel.modules())
        if x.array.ndim < 1 or (x.array.ndim > 2 and not warped):
            raise ShapeError(
                type(self).__name__,
                expected="X of shape (points, dims), or with more dims for a Warping",
                got=f"shape {tuple(x.array.shape)}",
                fix="points are rows",
            )
        if values is not None and values.array.shape[-1:] != x.array.shape[:1]:
            raise ShapeError(
                type(self).__name__,
                expected=f"y with {x.array.shape[0]} observations in its last dim, as X has points",
                got=f"shape {tuple(values.array.shape)}",
                fix="several outputs are rows of y: shape (outputs, points)",
            )
        self._replace("X", x)
        self._replace("y", values)

    def points(self, given: TensorLike, name: str) -> Tensor:
        """Return other points as a tensor, whole numbers in the dtype of X."""
        x = as_value(given, name)
        return x.to(self.X.dtype) if x.array.dtype.kind in "biu" else x

    def _replace(self, name: str, value: Tensor | None) -> None:
        """Give a buffer other numbers: where they lie before, if they fit there."""
        old = self._buffers[name]
        if value is None or old is None or old.shape != value.shape or old.dtype != value.dtype:
            setattr(self, name, None if value is None else value.detach().clone())
        else:
            with no_grad():
                old.copy_(value.detach())

    def model(self) -> Tensor:
        """The prior and the likelihood; returns the observations, or draws of them."""
        return self._model()

    def guide(self) -> None:
        """What approximates the posterior."""
        self.complete_guides()
        self._guide()

    def __call__(self, *args: object, **kwargs: object) -> object:  # type: ignore[override]
        self.complete_guides()
        return super().__call__(*args, **kwargs)

    def forward(
        self, Xnew: TensorLike, full_cov: bool = False, noiseless: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Predict: return the mean and the variances of the function at new points.

        Parameters
        ----------
        Xnew : Tensor or array, shape (m, dims) or (m,)
        full_cov : bool
            Return a covariance matrix for the variances.
        noiseless : bool
            Predict the function, or, in regressions, observations of it.

        Returns
        -------
        loc : Tensor, shape (..., m)
        cov : Tensor, shape (..., m), or (..., m, m)
        """
        new = self.points(Xnew, "Xnew")
        old = self.X
        if new.array.ndim != old.array.ndim or new.array.shape[1:] != old.array.shape[1:]:
            raise ShapeError(
                type(self).__name__,
                expected=f"points as X has them, shape (m{''.join(f', {n}' for n in old.shape[1:])}"
                f"{',' if old.array.ndim == 1 else ''})",
                got=f"shape {tuple(new.array.shape)}",
                fix="points are rows, with the features of X",
            )
        with reading("guide"):
            return self.posterior(old, new, full_cov, noiseless)

    @abc.abstractmethod
    def joint(self, X: Tensor) -> Tensor:
        """State the sites of the model at points; return the observations."""

    @abc.abstractmethod
    def approximation(self) -> None:
        """State the sites of the guide, but for random attributes."""

    @abc.abstractmethod
    def posterior(
        self, X: Tensor, Xnew: Tensor, full_cov: bool, noiseless: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Return mean and variances at new points, where the data are at X."""

    def mean_at(self, X: Tensor) -> Tensor | float:
        """Return the prior means at points."""
        return 0.0 if self.mean_function is None else self.mean_function(X)

    def observed(self) -> Tensor:
        """Return the observations, which a prediction needs."""
        if self.y is None:
            raise ArgumentError(
                f"predictions of {type(self).__name__}",
                expected="observations",
                got="y=None",
                fix="set_data(X, y)",
            )
        return self.y

    @pyro_method
    def _model(self) -> Tensor:
        with reading("model"):
            return self.joint(self.X)

    @pyro_method
    def _guide(self) -> None:
        with reading("guide"):
            self.approximation()
            self.draw_all()


explain_calls(globals())
