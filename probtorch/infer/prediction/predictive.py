"""`Predictive`: a model run forwards from draws of its latent sites; `log_likelihood` of data.

Without draws the model is run as it is (prior predictive); with draws, or a guide that makes them,
the latent sites they name take their values and the rest is drawn anew (posterior predictive).
How the model is run for many draws at a time is in prediction_runs.py.

Read effects/runtime.py first; results.py uses this for the groups of ArviZ's schema.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.rng import Generator, default_generator
from probtorch.core.showing import call_of
from probtorch.core.signatures import explain_calls, explained
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.diagnostics.drawn import HasDraws, drawn
from probtorch.diagnostics.draws import Draws
from probtorch.effects.minibatches import AllRows
from probtorch.effects.trace import Trace
from probtorch.errors import ArgumentError, ModelError
from probtorch.infer.mapping import DrawMap
from probtorch.infer.model_calls import check_model, check_model_call
from probtorch.infer.prediction.prediction_runs import PredictionRuns
from probtorch.infer.prediction.prediction_values import as_array, guide_draws, without_gradients

__all__ = ["Predictive", "log_likelihood"]

# What other libraries call the arguments.
MEANT = {
    "samples": "posterior_samples",
    "posterior": "posterior_samples",
    "draws": "posterior_samples",
    "n_samples": "num_samples",
    "rng_key": "seed",
    "random_seed": "seed",
    "batch_shape": "batch_ndims",
}


class Predictive:
    """Draws of a model's sites, given draws of some of them.

    Parameters
    ----------
    model : callable
    posterior_samples : dict of str to array_like, or Draws, optional
        Draws by site name with one leading dim (num_samples), or two (chain, draw); or what has
        draws, an `MCMC` that has run. Deterministic sites among them are ignored: they are computed
        again.
    guide : callable, optional
        Makes the posterior draws, `num_samples` of them; called with the model's arguments.
    num_samples : int, optional
        Number of draws; needed without `posterior_samples`.
    return_sites : sequence of str
        Which sites to return; "_RETURN" is the model's return value. By default the latent sites
        that have no samples, and the deterministic ones; not those that are observed.
    parallel : bool, optional
        True: all draws in one run, or an error if the model cannot be run so. False: one by one.
        None: at once if that gives the same, else one by one.
    params : dict, optional
        Values for `param` sites.
    batch_ndims : int, optional
        Number of leading dims of the samples; found out by default.
    seed : int or Generator, optional
        Where random numbers come from; the default generator if None.
    infer_discrete : bool
        Draw the finite discrete sites from their posterior, given the data that the model is called
        with and the samples of the others, instead of from the prior.
    exclude_deterministic : bool
        Compute deterministic sites again. False gives them the values that the samples have for
        them, and so everything that follows from them.
    batch_size : int, optional
        Draws in one run of the model; by default as many as make 64 MiB.
    all_rows : bool
        Let plates that draw subsamples, or have a loader, work on all their rows: pass all the
        data. False leaves them as they are, for a model whose data were cut to the subsample.

    Raises
    ------
    ArgumentError
        If nothing says how many draws to make, or two things disagree. When called: if every site
        has samples or data, and `return_sites` names none.
    ModelError
        When called: if the samples or `return_sites` name a site that the model does not have.
    ShapeError
        When called: if a sample does not fit its site.

    Notes
    -----
    Samples of float64 make the whole run float64, as in the inference they came from. Results carry
    no gradient. The memory of a call is that of its results and of one run of `batch_size` draws;
    `batches` returns the results run by run, so that they need not be held together.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import Predictive
    >>> def coin(y):
    ...     p = probtorch.sample("p", dist.Beta(1.0, 1.0))
    ...     with probtorch.plate("toss", len(y)):
    ...         probtorch.sample("y", dist.Bernoulli(p), obs=y)
    >>> y = probtorch.tensor([1.0, 1.0, 0.0, 1.0])
    >>> Predictive(coin, num_samples=500)(y)["p"].shape
    Size([500])
    >>> draws = {"p": probtorch.rand(2000)}
    >>> Predictive(coin, draws, return_sites=["y"])(y)["y"].shape
    Size([2000, 4])
    """

    @explained("Predictive", meant=MEANT)
    def __init__(
        self,
        model: Callable[..., object],
        posterior_samples: Mapping[str, TensorLike] | Draws | HasDraws | None = None,
        guide: Callable[..., object] | None = None,
        num_samples: int | None = None,
        return_sites: Sequence[str] = (),
        parallel: bool | None = None,
        *,
        params: Mapping[str, TensorLike] | None = None,
        batch_ndims: int | None = None,
        seed: int | Generator | None = None,
        infer_discrete: bool = False,
        exclude_deterministic: bool = True,
        batch_size: int | None = None,
        all_rows: bool = True,
    ) -> None:
        check_model(model, "Predictive")
        if posterior_samples is not None and not isinstance(posterior_samples, Mapping):
            if hasattr(posterior_samples, "draws"):
                posterior_samples = drawn(posterior_samples, "Predictive")
        if isinstance(posterior_samples, Draws):
            posterior_samples, batch_ndims = posterior_samples.posterior, 2
        if posterior_samples is not None and not isinstance(posterior_samples, Mapping):
            raise ArgumentError(
                "Predictive(posterior_samples)",
                expected="a dict from site names to draws, or Draws",
                got=f"{type(posterior_samples).__name__} {posterior_samples!r:.60}",
                fix="call it: mcmc.get_samples()"
                if callable(posterior_samples)
                else "pass mcmc.get_samples(), or {name: draws}",
            )
        if posterior_samples and guide is not None:
            raise ArgumentError(
                "Predictive",
                expected="posterior_samples or guide",
                got="both",
                fix="leave one out",
            )
        if not posterior_samples and num_samples is None:
            raise ArgumentError(
                "Predictive",
                expected="posterior_samples, or num_samples for draws from the prior or the guide",
                got="neither",
                fix="write Predictive(model, num_samples=1000)",
            )
        if batch_size is not None and (isinstance(batch_size, bool) or not batch_size >= 1):
            raise ArgumentError(
                "Predictive(batch_size=...)",
                expected="a number of draws of at least 1",
                got=repr(batch_size),
                fix="leave it out: as many draws are run at once as fit into 64 MiB",
            )
        self.model, self.guide, self.num_samples = model, guide, num_samples
        self.posterior_samples = {
            name: as_array(value) for name, value in (posterior_samples or {}).items()
        }
        self.return_sites = (
            (return_sites,) if isinstance(return_sites, str) else tuple(return_sites)
        )
        self.parallel, self.params, self.batch_ndims = parallel, dict(params or {}), batch_ndims
        self.seed, self.all_rows = seed, all_rows
        self.infer_discrete, self.exclude_deterministic = infer_discrete, exclude_deterministic
        self.batch_size = batch_size

    def __repr__(self) -> str:
        return call_of(self)

    def __call__(self, *args: object, **kwargs: object) -> dict[str, TensorBase]:
        """Run the model on these arguments.

        Returns
        -------
        dict of str to Tensor, each (num_samples, *shape) or (chain, draw, *shape)
        """
        with without_gradients():
            runs = self._runs(args, kwargs)
            names = runs.returned(self.return_sites)
            found = runs.together(names, self.parallel, self.batch_size)
        return {name: wrap(x.reshape(runs.lead + x.shape[1:])) for name, x in found.items()}

    forward = __call__

    def batches(self, *args: object, **kwargs: object) -> Iterator[dict[str, TensorBase]]:
        """Run the model on these arguments, and yield the results some draws at a time.

        Use it where all results together are more than memory holds: write each part to a file, or
        add up what you want of it.

        Yields
        ------
        dict of str to Tensor, each (batch_size, *shape)
            The draws in order, chain after chain, the last part shorter where need be. With a seed
            they are those of a call.

        Examples
        --------
        >>> import probtorch
        >>> import probtorch.distributions as dist
        >>> from probtorch.infer import Predictive
        >>> def model():
        ...     mu = probtorch.sample("mu", dist.Normal(0.0, 1.0))
        ...     return probtorch.sample("y", dist.Normal(mu, 1.0).expand((100,)).to_event(1))
        >>> predictive = Predictive(model, num_samples=1000, batch_size=400)
        >>> [len(part["y"]) for part in predictive.batches()]
        [400, 400, 200]
        """
        with without_gradients():
            runs = self._runs(args, kwargs)
            parts = runs.parts(runs.returned(self.return_sites), self.parallel, self.batch_size)
        while True:
            with without_gradients():
                part = next(parts, None)
            if part is None:
                return
            yield {name: wrap(x) for name, x in part.items()}

    def get_vectorized_trace(self, *args: object, **kwargs: object) -> Trace:
        """Return the trace of one run with all draws along a dim to the left of all plates."""
        with without_gradients():
            runs = self._runs(args, kwargs)
            return runs.vectorised(slice(0, runs.count))

    def _runs(self, args: tuple[object, ...], kwargs: dict[str, object]) -> PredictionRuns:
        check_model_call(self.model, args, kwargs, "predictive")
        given = self.seed
        if given is None:
            given = default_generator
        generator = given if isinstance(given, Generator) else Generator(given)
        samples = self.posterior_samples
        if self.guide is not None:
            with AllRows().activate() if self.all_rows else contextlib.nullcontext():
                samples = guide_draws(self.guide, args, kwargs, self.num_samples or 0, generator)
        runs = PredictionRuns(
            self.model,
            args,
            kwargs,
            samples,
            self.params,
            generator,
            all_rows=self.all_rows,
            keep_deterministic=not self.exclude_deterministic,
        )
        runs.of_guide = self.guide is not None
        runs.look(self.batch_ndims, self.num_samples)
        if self.infer_discrete:
            runs.draw_discrete()
        return runs


def log_likelihood(
    model: Callable[..., object],
    posterior_samples: Mapping[str, TensorLike] | Draws | HasDraws,
    *args: object,
    parallel: bool | None = None,
    batch_ndims: int | None = None,
    **kwargs: object,
) -> dict[str, np.ndarray]:
    """Return the log density of each observation at draws of the latent sites.

    Parameters
    ----------
    model : callable
    posterior_samples : dict of str to array_like, or Draws
        A value per draw for every latent site; or what has draws, an `MCMC` that has run.
    *args, **kwargs
        What the model is called with.
    parallel : optional
        Accepted for NumPyro's sake: draws are always run by one compiled loop where the model can
        be compiled.
    batch_ndims : int, optional
        Number of leading dims of the samples; found out by default.

    Returns
    -------
    dict of str to ndarray, each (num_samples, *batch) or (chain, draw, *batch)
        Natural log, by observed site; unscaled, 0 where masked.

    Raises
    ------
    ModelError
        If a latent site has no samples, or a name is unknown.
    """
    check_model(model, "log_likelihood")
    if not isinstance(posterior_samples, Mapping):
        posterior_samples, batch_ndims = drawn(posterior_samples, "log_likelihood").posterior, 2
    samples = {n: as_array(x) for n, x in posterior_samples.items()}
    with without_gradients():
        runs = PredictionRuns(model, args, kwargs, samples, {}, Generator(0))
        runs.look(batch_ndims, None)
        for name in runs.first.stochastic_nodes:
            if name not in samples:
                raise ModelError(
                    f"log_likelihood: no samples for site {name!r}",
                    expected=f"samples of {', '.join(map(repr, runs.first.stochastic_nodes))}",
                    got=f"samples of {', '.join(map(repr, samples)) or 'nothing'}",
                    fix="pass all latent sites, or observe this one with handlers.condition",
                    at=runs.first[name].location,
                )
        found = DrawMap(runs.likelihood)(runs.samples)
    return {name: x.reshape(runs.lead + x.shape[1:]) for name, x in found.items()}


explain_calls(globals())
