"""Gaussian process latent variable models: the points are latent, too."""

from __future__ import annotations

from probtorch.contrib.gp.models.model import GPModel
from probtorch.contrib.gp.parameterized import Parameterized, reading
from probtorch.core.signatures import explain_calls
from probtorch.core.typed import TensorLike
from probtorch.distributions.normal import Normal
from probtorch.effects.pyro_module import PyroSample, pyro_method
from probtorch.errors import DTypeError
from probtorch.tensor import Tensor

__all__ = ["GPLVM"]


class GPLVM(Parameterized):
    """A Gaussian process whose points are latent: each row of data has a place in few dims.

    Parameters
    ----------
    base_model : GPModel
        A process with observations ``y``, shape (outputs, n), and points X, shape (n, dims): where
        the guide begins. Its own `X` is not used.

    Attributes
    ----------
    X : Tensor, shape (n, dims)
        Latent: standard normal a priori, independent normals in the guide. Assign another
        `PyroSample`, or call `autoguide`, for others.

    References
    ----------
    Lawrence (2005), "Probabilistic non-linear principal component analysis with Gaussian process
    latent variable models"; Titsias and Lawrence (2010), "Bayesian Gaussian process latent variable
    model".
    """

    def __init__(self, base_model: GPModel) -> None:
        super().__init__()
        if not isinstance(base_model, GPModel) or base_model.X.array.ndim != 2:
            raise DTypeError(
                "GPLVM",
                expected="a process with points of shape (n, dims)",
                got=f"{type(base_model).__name__} {base_model!r:.60}",
                fix="for example GPLVM(SparseGPRegression(X, y, kernel, Xu)), with X by PCA",
            )
        self.base_model = base_model
        start = base_model.X.detach()
        self.X: Tensor = PyroSample(  # type: ignore[assignment]
            Normal(start * 0.0, 1.0).to_event(2)
        )
        self.autoguide("X", Normal, init=start)

    def model(self) -> Tensor:
        """The prior of the points, that of the process, and the likelihood."""
        return self._model()

    def guide(self) -> None:
        """What approximates the posterior."""
        self.complete_guides()
        self._guide()

    @pyro_method
    def forward(
        self, Xnew: TensorLike, full_cov: bool = False, noiseless: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Predict the outputs at points of the latent space; see the base model."""
        with reading("guide"):
            new = self.base_model.points(Xnew, "Xnew")
            return self.base_model.posterior(self.X, new, full_cov, noiseless)

    def __call__(self, *args: object, **kwargs: object) -> object:  # type: ignore[override]
        self.complete_guides()
        return super().__call__(*args, **kwargs)

    @pyro_method
    def _model(self) -> Tensor:
        with reading("model"):
            return self.base_model.joint(self.X)

    @pyro_method
    def _guide(self) -> None:
        with reading("guide"):
            self.draw_all()
            self.base_model.approximation()


explain_calls(globals())
