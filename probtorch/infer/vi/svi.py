"""`SVI`: stochastic variational inference, the optimisation of a guide towards a posterior.

A step draws from the guide, asks an objective (objectives/) for the loss and its gradients, and
lets an optimizer move the parameters. Parameters of `param` statements live in a store that the
`SVI` object owns; while it runs, and after, `get_param_store` shows that store.

All that a step depends on is a `FitState`, which a step takes to the next one (fit.py). run.py has
the loop around steps, svi_result.py its result, guides/ the guides that write themselves; this file
has the names that users know: Pyro's, `run` and its result NumPyro's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from probtorch.core.rng import Generator
from probtorch.core.signatures import explained
from probtorch.core.tensor_base import TensorBase
from probtorch.effects.params import ParamStore, take_loaded
from probtorch.infer.checkpoint import Checkpoint
from probtorch.infer.vi.begun_anew import trained_before
from probtorch.infer.vi.fit import Fit
from probtorch.infer.vi.gradient_variance import gradient_variance
from probtorch.infer.vi.run import run_steps
from probtorch.infer.vi.svi_arguments import advice, check_parts
from probtorch.infer.vi.svi_result import SVIResult

if TYPE_CHECKING:
    from probtorch.estimators.protocol import Estimator
    from probtorch.estimators.variance import VarianceTable
    from probtorch.infer.objectives.loss_function import Loss
    from probtorch.infer.vi.converged import Until
    from probtorch.infer.vi.updater import Optim

__all__ = ["SVI"]


class SVI(Fit):
    """Variational inference by stochastic gradients.

    Parameters
    ----------
    model, guide : callable
        Called with the same arguments. The guide draws all latent sites of the model.
    optim : Optimizer, PyroOptim or callable
        ``Adam({"lr": 0.01})``; or a class, whose options are given as keywords
        (``SVI(model, guide, Adam, loss, lr=0.01)``); or an optimizer over the parameters of
        modules, to which those of `param` statements are added.
    loss : ELBO or callable
        An objective, or ``loss(model, guide, *args, **kwargs)`` that returns a differentiable
        tensor. `Trace_ELBO` by default.
    loss_and_grads : callable, optional
        Used in place of the objective's own: returns the loss and adds to the gradients.
    params : ParamStore, optional
        A store to share with another SVI object; its own by default, or `get_param_store()` if
        that was loaded from a file.
    seed : int or Generator, optional
        Where sample statements draw from; the default generator if None.
    patience : int or None
        How many losses in a row may be other than finite before the run stops: the parameters rest
        in such steps. None never stops.
    distributed : bool
        Whether the processes of a run (`probtorch.distributed`) fit together: their gradients are
        averaged at each step, so that plates with ``shard=True``, and loaders with a
        `DistributedSampler`, count all rows. In a run of one process it changes nothing. Such steps
        are taken in Python.
    **optim_args
        Options of an optimizer given as a class.

    Attributes
    ----------
    params : ParamStore
    num_steps : int
        Steps taken.
    feed : Feed
        Where the loaders of plates stand.

    Notes
    -----
    A guide with ``precise = True``, as the automatic ones are by default, makes the model run in
    float64. Other guides and models keep the dtypes they were written in.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import SVI, AutoNormal, Trace_ELBO
    >>> from probtorch.optim import Adam
    >>> def coin(y):
    ...     p = probtorch.sample("p", dist.Beta(1.0, 1.0))
    ...     with probtorch.plate("toss", len(y)):
    ...         probtorch.sample("y", dist.Bernoulli(p), obs=y)
    >>> svi = SVI(coin, AutoNormal(coin), Adam({"lr": 0.05}), Trace_ELBO(), seed=0)
    >>> result = svi.run(500, probtorch.tensor([1.0, 1.0, 0.0, 1.0]), progress_bar=False)
    >>> bool(result.losses[-100:].mean() < result.losses[:100].mean())
    True
    """

    @explained("SVI", advice=advice)
    def __init__(
        self,
        model: Callable[..., object],
        guide: Callable[..., object],
        optim: Optim,
        loss: Loss | None = None,
        loss_and_grads: Callable[..., TensorBase | float] | None = None,
        *,
        params: ParamStore | None = None,
        seed: int | Generator | None = None,
        patience: int | None = 1,
        distributed: bool = False,
        **optim_args: object,
    ) -> None:
        check_parts(model, guide, loss, patience)
        if params is None:
            params = take_loaded()
        super().__init__(
            *(model, guide, optim, loss, loss_and_grads),
            *(params, seed, patience, optim_args, distributed),
        )
        if params is None and seed is None:
            self.trained_before = trained_before(model, guide)
        self.params.show()

    def step(self, *args: object, **kwargs: object) -> float:
        """Take one step: estimate the loss, and move the parameters along its gradients.

        Parameters
        ----------
        *args, **kwargs
            What model and guide are called with.

        Returns
        -------
        float
            The loss before the move. It is not finite where `patience` lets the run go on.

        Raises
        ------
        InferenceError
            If the loss or a gradient is not finite once too often.
        ModelError, ShapeError
            If guide and model do not fit together.
        """
        return self.advance(args, kwargs).loss

    def run(
        self,
        num_steps: int,
        *args: object,
        progress_bar: bool = True,
        callback: Callable[[int, float], object] | None = None,
        checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
        checkpoint_every: int | None = None,
        until: Until = None,
        max_seconds: float | None = None,
        **kwargs: object,
    ) -> SVIResult:
        """Take many steps.

        Parameters
        ----------
        num_steps : int
            At most, with `until`.
        *args, **kwargs
            What model and guide are called with.
        progress_bar : bool
            Show steps and smoothed loss on stderr.
        callback : callable, optional
            ``callback(step, loss)`` after each step; returning True ends the run.
        checkpoint : path or Checkpoint, optional
            A folder in which the state is saved as the run goes on, for a run that is killed: the
            same call goes on from there, bit for bit. `num_steps` and the losses are those of the
            whole run.
        checkpoint_every : int, optional
            Steps between two checkpoints; 100 by default.
        until : "converged", Converged or callable, optional
            End the run when the loss has stopped falling, by the rule `Converged` with settings of
            its own; or when a function of all losses so far, asked every 100 steps, returns True.
        max_seconds : float, optional
            End the run after this time, with what there is, as Ctrl-C does.

        Returns
        -------
        SVIResult
            Parameters and losses. Ctrl-C ends the run after the step at hand, with what there is,
            and writes a last checkpoint.

        Raises
        ------
        InferenceError
            As `step`; state is that of the last step that was well.
        ArgumentError
            If the folder has checkpoints of a run with other data, another model, seed, optimizer
            or objective.
        FileError
            If the folder of checkpoints cannot be written to when the run begins, or what is there
            cannot be read. Later on a checkpoint that fails is a warning (see `Checkpoint`).

        Warns
        -----
        InferenceWarning
            If `until` is given and was not met after `num_steps`.
        """
        checkpoints = checkpoint, checkpoint_every
        return run_steps(
            self, num_steps, args, kwargs, checkpoints, progress_bar, callback, until, max_seconds
        )

    def gradient_variance(
        self,
        *args: object,
        estimators: Sequence[str | Estimator] | None = None,
        num_samples: int = 100,
        **kwargs: object,
    ) -> VarianceTable:
        """Compare gradient estimators at the present parameters; nothing is moved.

        Parameters
        ----------
        *args, **kwargs
            What model and guide are called with.
        estimators : sequence, optional
            Estimators or their names, each put on all sites of the guide without a pathwise
            gradient to which it applies (on all sites, if every one has such a gradient); or dicts
            of them by site. By default those that are unbiased and apply.
        num_samples : int
            Estimates per estimator.

        Returns
        -------
        VarianceTable
            Variance per parameter and in total, and seconds per estimate; the row "as written" is
            that of the guide as it is.

        Raises
        ------
        InferenceError
            If the objective takes no estimators per site.
        ArgumentError
            If an estimator applies nowhere, or a site is unknown.
        """
        return gradient_variance(self, args, kwargs, estimators, num_samples)

    def __repr__(self) -> str:
        names = (getattr(f, "__name__", type(f).__name__) for f in (self.model, self.guide))
        return f"SVI({', '.join(names)}, {type(self.objective).__name__}, {self.num_steps} steps)"
