"""`CEVAE`: the estimator, its objective, and the effects that it finds."""

from __future__ import annotations

from collections.abc import Callable

from probtorch.autograd.modes import no_grad
from probtorch.contrib.cevae.models import CausalGuide, CausalModel
from probtorch.contrib.cevae.networks import PreWhitener
from probtorch.core.rng import Generator
from probtorch.core.signatures import explain_calls
from probtorch.effects.handlers import replay, trace
from probtorch.errors import ArgumentError, ShapeError
from probtorch.factories import ones, zeros
from probtorch.infer.vi.svi import SVI
from probtorch.nn.module import Module
from probtorch.ops.pieces import cat
from probtorch.optim.adam import ClippedAdam
from probtorch.tensor import Tensor
from probtorch.utils.data import DataLoader, TensorDataset

__all__ = ["CEVAE", "causal_effect_loss"]


def causal_effect_loss(
    model: Callable[..., object],
    guide: Callable[..., object],
    *args: object,
    **kwargs: object,
) -> Tensor:
    """Return minus the evidence lower bound, and minus the log density of what the guide predicts.

    Observed sites of the guide, treatment and outcome, are no latent ones: their densities are
    terms of their own, through which the networks learn that predict them where there are no data.

    Parameters
    ----------
    model, guide : callable
    *args, **kwargs
        What both are called with.
    """
    drawn = trace(guide).get_trace(*args, **kwargs)
    stated = trace(replay(model, drawn)).get_trace(*args, **kwargs)
    drawn.compute_log_prob()
    loss = -stated.log_prob_sum()
    for site in drawn.nodes.values():
        if site.kind == "sample":
            term = site.log_prob_sum
            assert term is not None  # computed above
            loss = loss - term if site.observed else loss + term
    return loss


class CEVAE(Module):
    """Estimates what a binary treatment does to an outcome, where a confounder moves both.

    Parameters
    ----------
    feature_dim : int
        Number of features, which are noisy signs of the confounder.
    outcome_dist : {"bernoulli", "exponential", "laplace", "normal", "studentt"}
    latent_dim : int
        Numbers of the confounder.
    hidden_dim, num_layers : int
        Units of each hidden layer of the networks, and how many there are.
    num_samples : int
        Draws of the confounder for each effect, unless `ite` is told otherwise.

    Attributes
    ----------
    model, guide : CausalModel, CausalGuide

    Notes
    -----
    The effect is the right one if the features tell of all that moves both treatment and outcome,
    which no data can say.

    Examples
    --------
    >>> import probtorch
    >>> from probtorch.contrib.cevae import CEVAE
    >>> probtorch.set_rng_seed(0)
    >>> x, t = probtorch.randn(40, 2), probtorch.bernoulli(0.5 * probtorch.ones(40))
    >>> cevae = CEVAE(2, "normal", latent_dim=1, hidden_dim=4, num_layers=2)
    >>> losses = cevae.fit(x, t, 2.0 * t + x[:, 0], num_epochs=2, batch_size=20)
    >>> len(losses), cevae.ite(x).shape
    (4, Size([40]))
    """

    whiten: PreWhitener

    def __init__(
        self,
        feature_dim: int,
        outcome_dist: str = "bernoulli",
        latent_dim: int = 20,
        hidden_dim: int = 200,
        num_layers: int = 3,
        num_samples: int = 100,
    ) -> None:
        super().__init__()
        sizes = {
            "feature_dim": feature_dim,
            "latent_dim": latent_dim,
            "hidden_dim": hidden_dim,
            "num_layers": num_layers,
        }
        for name, size in {**sizes, "num_samples": num_samples}.items():
            if not isinstance(size, int) or size < 1:
                raise ArgumentError(
                    f"CEVAE({name}=...)",
                    expected="an integer of at least 1",
                    got=repr(size),
                    fix="leave it out for the default, or say how many",
                )
        self.feature_dim, self.num_samples = feature_dim, num_samples
        self.model = CausalModel(**sizes, outcome_dist=outcome_dist)
        self.guide = CausalGuide(**sizes, outcome_dist=outcome_dist)

    def fit(
        self,
        x: Tensor,
        t: Tensor,
        y: Tensor,
        num_epochs: int = 100,
        batch_size: int = 100,
        learning_rate: float = 1e-3,
        learning_rate_decay: float = 0.1,
        weight_decay: float = 1e-4,
        log_every: int = 100,
    ) -> list[float]:
        """Train model and guide.

        Parameters
        ----------
        x : Tensor, shape (rows, features)
        t, y : Tensor, shape (rows,)
            Treatments, 0 or 1, and outcomes.
        num_epochs, batch_size : int
        learning_rate, weight_decay : float
            Of `ClippedAdam`.
        learning_rate_decay : float
            By what the rate is multiplied from the first step to the last.
        log_every : int
            For Pyro's sake: losses are returned.

        Returns
        -------
        losses : list of float
            Of each step, per row.
        """
        self._check_features("fit", x)
        rows = tuple(x.shape[:1])
        if tuple(t.shape) != rows or tuple(y.shape) != rows:
            raise ShapeError(
                "CEVAE.fit",
                expected=f"a treatment and an outcome of each row, shape {rows}",
                got=f"t of shape {tuple(t.shape)} and y of shape {tuple(y.shape)}",
                fix="pass one number of each per row of x",
            )
        self.whiten = PreWhitener(x)
        data = TensorDataset(x, t, y)
        loader = DataLoader(data, batch_size=batch_size, shuffle=True, generator=Generator(0))
        options = {
            "lr": learning_rate,
            "weight_decay": weight_decay,
            "lrd": learning_rate_decay ** (1.0 / (num_epochs * len(loader))),
        }
        svi = SVI(self.model, self.guide, ClippedAdam(options), causal_effect_loss)
        return [
            svi.step(self.whiten(some), treated, outcome, size=len(data)) / len(data)
            for _ in range(num_epochs)
            for some, treated, outcome in loader
        ]

    @no_grad()
    def ite(
        self, x: Tensor, num_samples: int | None = None, batch_size: int | None = None
    ) -> Tensor:
        """Return what the treatment does to the mean outcome of each row.

        Parameters
        ----------
        x : Tensor, shape (rows, features)
        num_samples : int, optional
            Draws of the confounder per row.
        batch_size : int, optional
            Rows at a time; all by default.

        Returns
        -------
        effects : Tensor, shape (rows,)
            Mean outcome with the treatment minus that without it, over the confounders that the
            guide finds for the row's features. Their mean is the average effect.
        """
        self._check_features("ite", x)
        if "whiten" not in self._modules:
            raise ArgumentError(
                "CEVAE.ite",
                expected="an estimator that was fitted",
                got="one that was not",
                fix="call fit(x, t, y) first",
            )
        draws = self.num_samples if num_samples is None else num_samples
        parts = [x] if batch_size is None else x.split(batch_size)
        return cat([self._effects(self.whiten(part), draws) for part in parts])

    def _effects(self, x: Tensor, draws: int) -> Tensor:
        t = self.guide.t_dist(x).sample((draws,))
        y = self.guide.y_dist(t, x).sample()
        z = self.guide.z_dist(y, t, x).sample()
        without, treated = zeros(1), ones(1)
        return (self.model.y_dist(treated, z).mean - self.model.y_dist(without, z).mean).mean(0)

    def _check_features(self, what: str, x: Tensor) -> None:
        if x.ndim != 2 or x.shape[-1] != self.feature_dim:
            raise ShapeError(
                f"CEVAE.{what}",
                expected=f"x of shape (rows, {self.feature_dim})",
                got=str(tuple(x.shape)),
                fix="one row per unit, one column per feature",
            )


explain_calls(globals())
