"""From unconstrained positions to labelled results: `make_draws`.

What a sampler has when it is done is an array (chain, draw, dim) and statistics. Here they become
`Draws`: constrained and deterministic sites by name, dims and coords from the model's plates, the
data beside them. What costs another pass over the draws (log likelihoods, predictions, the prior)
is computed when it is asked for.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypedDict, cast

import numpy as np
from numpy.typing import ArrayLike

from probtorch.core.rng import Generator, generator_of
from probtorch.core.signatures import explain_calls
from probtorch.diagnostics.drawn import HasDraws, drawn
from probtorch.diagnostics.draws import Draws
from probtorch.diagnostics.layout import PREDICTIONS, dims_key
from probtorch.errors import ArgumentError, InferenceError, ShapeError
from probtorch.infer.names import unknown_name
from probtorch.infer.potential import ModelTarget, Target
from probtorch.infer.prediction.called_model import CalledModel
from probtorch.infer.prediction.predictive import Predictive

if TYPE_CHECKING:
    import arviz
    import xarray

    from probtorch.diagnostics.summary import Summary


__all__ = ["ArvizGroups", "SampledDraws", "joined", "make_draws", "with_model"]

# Log likelihoods larger than this are computed only when asked for.
LIKELIHOOD_BYTES = 2**28
# Draws from the prior unless told: as many as give its quartiles to about 3 %.
PRIOR_DRAWS = 500
# Discrete sites that a summary names.
SHOWN_SITES = 3


# The groups of data and of replications of data.
_OF_DATA = {"observed_data", "posterior_predictive", "prior_predictive", "predictions"}


def make_draws(
    target: Target,
    positions: np.ndarray,
    stats: Mapping[str, np.ndarray],
    attrs: Mapping[str, object] | None = None,
    *,
    warmup_positions: np.ndarray | None = None,
    warmup_stats: Mapping[str, np.ndarray] | None = None,
    posterior: Mapping[str, np.ndarray] | None = None,
) -> SampledDraws:
    """Label a sampler's draws.

    Parameters
    ----------
    target : Target
        What was sampled.
    positions : ndarray, shape (chain, draw, dim)
        Unconstrained draws.
    stats : dict of str to ndarray, each (chain, draw)
        Sample statistics under ArviZ's names.
    attrs : dict, optional
        Settings and facts of the run.
    warmup_positions, warmup_stats : optional
        The same of the warm-up, if it was kept.
    posterior : dict of str to ndarray, optional
        What the draws are in the model's space, where that is known already.

    Returns
    -------
    SampledDraws
    """
    groups = {}
    if warmup_positions is not None:
        groups["warmup_posterior"] = target.constrain_many(warmup_positions)
    if warmup_stats is not None:
        groups["warmup_sample_stats"] = dict(warmup_stats)
    if target.observed_data:
        groups["observed_data"] = target.data_at(positions)
    if target.constant_data:
        groups["constant_data"] = target.constant_data
    return SampledDraws(
        posterior=target.constrain_many(positions) if posterior is None else posterior,
        sample_stats=stats,
        dims=target.dims,
        coords=target.coords,
        groups=groups,
        attrs={"model_name": target.name, **(attrs or {})},
        target=target,
        positions=positions,
    )


def joined(first: SampledDraws, second: SampledDraws) -> SampledDraws:
    """Return the draws of one after those of the other, chain by chain.

    Both are of one target and have the same chains; settings, data and warm-up are those of
    `first`.
    """

    def both(
        one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        return {name: np.concatenate([x, other[name]], axis=1) for name, x in one.items()}

    return dataclasses.replace(
        first,
        posterior=both(first.posterior, second.posterior),
        sample_stats=both(first.sample_stats, second.sample_stats),
        positions=np.concatenate([first.positions, second.positions], axis=1),
    )


class ArvizGroups(TypedDict, total=False):
    """The keywords of `SampledDraws.to_arviz`."""

    log_likelihood: bool | None
    posterior_predictive: bool | Mapping[str, ArrayLike]
    prior: bool | int | Mapping[str, ArrayLike]
    predictions: Mapping[str, ArrayLike] | None
    seed: int | Generator | None
    constant_data: Mapping[str, ArrayLike] | None
    predictions_constant_data: Mapping[str, ArrayLike] | None
    coords: Mapping[str, Sequence[object]] | None
    dims: Mapping[str, Sequence[str | None]] | None
    pred_dims: Mapping[str, Sequence[str | None]] | None


@dataclass(frozen=True, eq=False, repr=False)
class SampledDraws(Draws):
    """Draws that still know their model, so that more can be computed from them.

    Parameters
    ----------
    target : Target, optional
        Not kept by `save` and by pickle.
    positions : ndarray, shape (chain, draw, dim), optional
        Unconstrained draws.
    call : CalledModel, optional
        The model and its arguments, where the draws are of no density: of particles, of runs whose
        sites differ, of simulations. Not kept by `save` and by pickle.
    """

    target: Any = None  # a `ModelTarget`, mostly; gone where draws were read from a file
    positions: np.ndarray = cast("np.ndarray", None)  # which sampled draws always have
    call: CalledModel | None = None

    def extended(
        self,
        log_likelihood: bool | None = None,
        posterior_predictive: bool | Mapping[str, ArrayLike] = False,
        prior: bool | int | Mapping[str, ArrayLike] = False,
        *,
        predictions: Mapping[str, ArrayLike] | None = None,
        seed: int | Generator | None = None,
        constant_data: Mapping[str, ArrayLike] | None = None,
        predictions_constant_data: Mapping[str, ArrayLike] | None = None,
        coords: Mapping[str, Sequence[object]] | None = None,
        dims: Mapping[str, Sequence[str | None]] | None = None,
        pred_dims: Mapping[str, Sequence[str | None]] | None = None,
    ) -> SampledDraws:
        """Return draws with more groups of ArviZ's schema.

        Parameters
        ----------
        log_likelihood : bool, optional
            Add the log density of each observation at each draw, for leave-one-out
            cross-validation. By default if it takes at most 256 MiB, and the draws have no such
            group of their own (`with_group`).
        posterior_predictive : bool or dict
            Add replications of the data, one per draw; or the given ones, as `Predictive` returns
            them: (chain * draw, ...), one chain after the other, or (chain, draw, ...).
        prior : bool, int or dict
            Add draws from the prior (500 if True) and of the data they predict; or the given ones,
            as `Predictive` returns them.
        predictions : dict, optional
            What is predicted for new covariates, as `Predictive` returns it.
        seed : int or Generator, optional
            Where random numbers come from; the default generator if None.
        constant_data : dict of str to array_like, optional
            Covariates and the like, beside those that are arguments of the model.
        predictions_constant_data : dict of str to array_like, optional
            The covariates of `predictions`.
        coords, dims : dict, optional
            Labels of dims, and names of the dims of variables, beside those of the plates.
        pred_dims : dict, optional
            Names of the dims of variables in `predictions` and `predictions_constant_data`, whose
            rows are not those of the data: without names they get some like ``y_dim_0``.

        Raises
        ------
        InferenceError
            If the model is not known: the draws were loaded from a file, or the density is
            hand-written.
        ModelError
            If `dims` or `pred_dims` name a variable that there is not.
        """
        groups = dict(self.groups)
        if log_likelihood is None:
            small = self._log_likelihood_bytes() <= LIKELIHOOD_BYTES
            log_likelihood = small and self._has_quick_density() and "log_likelihood" not in groups
        if log_likelihood:
            groups["log_likelihood"] = self._log_likelihood_anew() or groups.get(
                "log_likelihood", {}
            )
        if isinstance(posterior_predictive, Mapping):
            groups["posterior_predictive"] = self._by_chain(
                _arrays(posterior_predictive), "posterior_predictive"
            )
        elif posterior_predictive:
            groups["posterior_predictive"] = self.predict(seed=seed)
        if isinstance(prior, Mapping):
            groups |= self._split(self._by_chain(_arrays(prior), "prior"), groups)
        elif prior is not False:
            model = self._without_data()
            count = PRIOR_DRAWS if prior is True else prior
            found = _arrays(Predictive(model, num_samples=count, seed=seed)())
            groups |= self._split({name: x[None] for name, x in found.items()}, groups)
        if constant_data is not None:
            groups["constant_data"] = {**groups.get("constant_data", {}), **_arrays(constant_data)}
        if predictions is not None:
            groups["predictions"] = self._by_chain(_arrays(predictions), "predictions")
        if predictions_constant_data is not None:
            groups["predictions_constant_data"] = _arrays(predictions_constant_data)
        groups = {name: variables for name, variables in groups.items() if variables}
        _check_named(dims or {}, pred_dims or {}, {**groups, "posterior": self.posterior})
        named = {dims_key("predictions", name): given for name, given in (pred_dims or {}).items()}
        return dataclasses.replace(
            self,
            groups=groups,
            coords={**self.coords, **(coords or {})},
            dims={**self.dims, **(dims or {}), **named},
        )

    def _by_chain(self, values: dict[str, np.ndarray], group: str) -> dict[str, np.ndarray]:
        """Draws as `Predictive` returns them, with a dim of chains in front.

        How many leading dims there are is known from the shapes that data and parameters have.
        """
        data = self._data()
        inner = {name: x.ndim - 2 for name, x in self.posterior.items()}
        inner |= {name: np.ndim(y) for name, y in data.items()}
        leading = {values[name].ndim - inner[name] for name in values if name in inner}
        sizes = (self.num_chains, self.num_draws)
        if leading == {2} or (
            leading != {1} and all(x.shape[:2] == sizes for x in values.values())
        ):
            return values

        if group == "prior":
            return {name: x[None] for name, x in values.items()}
        for name, x in values.items():
            if x.shape[:1] != (sizes[0] * sizes[1],):
                raise ShapeError(
                    f"{group}[{name!r}]",
                    expected=f"{sizes[0] * sizes[1]} draws along the first dim, as the posterior "
                    f"has ({sizes[0]} x {sizes[1]})",
                    got=f"shape {x.shape}",
                    fix="predict from all draws, Predictive(model, draws.get_samples())(...), or "
                    "leave it to draws.predict(...)",
                )
        return {name: x.reshape((*sizes, *x.shape[1:])) for name, x in values.items()}

    def predict(
        self, *args: object, seed: int | Generator | None = None, **kwargs: object
    ) -> dict[str, np.ndarray]:
        """Draw what the model predicts, one replication per posterior draw.

        Parameters
        ----------
        *args, **kwargs
            Arguments to run the model on, for example new covariates and no data. Without any, it
            is run as for inference, with the data taken away.
        seed : int or Generator, optional
            Where random numbers come from; the default generator if None.

        Returns
        -------
        dict of str to ndarray, each (chain, draw, *shape)
            With arguments the sites that inference did not see, and the deterministic ones;
            without, the observed sites.

        Raises
        ------
        InferenceError
            If the draws do not know their model.

        Notes
        -----
        Finite discrete sites that were summed out are drawn from their posterior, given the data of
        the inference, as `infer_discrete` does. Those inside of plates are drawn anew: each row of
        new data has its own, and so has each row of a replication.
        `Predictive(infer_discrete=True)` draws them from their posterior too.

        Where sites change from run to run, the model is run once for each draw, and sites that not
        all runs have in one shape are left out.
        """
        if self.call is not None:
            return self.call.predict(self, args, kwargs, seed)
        target = self._model()
        # From the positions, since the posterior may have been narrowed to some of its variables.
        latent = target.constrain_many(self.positions)
        latent = {name: latent[name] for name in target.slots}
        generator = None if seed is None else generator_of(seed)
        shared = target.shared_discrete_at(self.positions, generator)
        latent |= shared
        if args or kwargs:
            found = Predictive(target.model, latent, batch_ndims=2, seed=generator)(*args, **kwargs)
            return {n: x for n, x in shared.items() if n in target.summed} | _arrays(found)
        sites, model = target.observed, target.unconditioned
        found = Predictive(model, latent, return_sites=sites, batch_ndims=2, seed=generator)()
        return _arrays(found)

    def log_likelihood(self) -> dict[str, np.ndarray]:
        """Return the log density of each observation at each draw, computed where it is missing.

        Returns
        -------
        dict of str to ndarray, each (chain, draw, *observations)
            By observed site, natural log; unscaled, 0 where masked. Where sites change from run
            to run, the model is run once for each draw, and observed sites that not all runs have
            in one shape are left out.

        Raises
        ------
        ArgumentError
            If the draws do not know their model, and have no such group.
        InferenceError
            If the data are those of a simulator, without a density.
        """
        if "log_likelihood" in self.groups or not self._knows_its_model:
            return Draws.log_likelihood(self)
        return self._log_likelihood_anew()

    def replications(self, seed: int = 0) -> dict[str, np.ndarray]:
        """Return replications of the data, one per draw, drawn where there are none.

        Parameters
        ----------
        seed : int

        Returns
        -------
        dict of str to ndarray, each (chain, draw, *shape)
        """
        if "posterior_predictive" in self.groups or not self._knows_its_model:
            return Draws.replications(self, seed)
        return self.predict(seed=seed)

    def infer_discrete(
        self, temperature: int = 1, *, seed: int | Generator | None = None
    ) -> dict[str, np.ndarray]:
        """Draw the finite discrete sites, which the sampler has summed out, for each draw.

        Parameters
        ----------
        temperature : {0, 1}
            1 for a draw from their joint posterior given the other sites, 0 for their most probable
            values.
        seed : int or Generator, optional
            Where random numbers come from; the default generator if None.

        Returns
        -------
        dict of str to ndarray, each (chain, draw, *shape)
            Empty if the model has no such sites.

        Raises
        ------
        InferenceError
            If the draws do not know their model.
        """
        generator = None if seed is None else generator_of(seed)
        return self._model().discrete_at(self.positions, temperature, generator)

    def summary(
        self,
        *,
        names: str | Sequence[str] | None = None,
        hdi_prob: float = 0.9,
        round_to: int | None = None,
    ) -> Summary:
        """Summarise each scalar parameter in one row; see `probtorch.diagnostics.summary`."""
        table = Draws.summary(self, names=names, hdi_prob=hdi_prob, round_to=round_to)
        if getattr(self.target, "without_data", None) is not None:
            note = "Nothing is observed: these are draws of the prior."
            table = dataclasses.replace(table, notes=(*table.notes, note))
        summed = getattr(self.target, "summed", None)
        if not summed:
            return table
        shown = [f"{name!r} ({size} values)" for name, size in summed.items()]
        rest = f" and {len(shown) - SHOWN_SITES} more" if len(shown) > SHOWN_SITES else ""
        note = f"Summed out: {', '.join(shown[:SHOWN_SITES])}{rest}; see draws.infer_discrete()."
        return dataclasses.replace(table, notes=(*table.notes, note))

    def to_arviz(
        self,
        log_likelihood: bool | None = None,
        posterior_predictive: bool | Mapping[str, ArrayLike] = False,
        prior: bool | int | Mapping[str, ArrayLike] = False,
        *,
        predictions: Mapping[str, ArrayLike] | None = None,
        seed: int | Generator | None = None,
        constant_data: Mapping[str, ArrayLike] | None = None,
        predictions_constant_data: Mapping[str, ArrayLike] | None = None,
        coords: Mapping[str, Sequence[object]] | None = None,
        dims: Mapping[str, Sequence[str | None]] | None = None,
        pred_dims: Mapping[str, Sequence[str | None]] | None = None,
    ) -> arviz.InferenceData | xarray.DataTree:
        """Return an `xarray.DataTree` (ArviZ 1 and later) or an InferenceData (0.22, 0.23).

        The latter's `to_zarr` refuses zarr 3: ``draws.extended(...).save("x.zarr")`` writes such a
        store.

        Parameters
        ----------
        log_likelihood, posterior_predictive, prior, predictions
            Groups to add; the last three take what `Predictive` returns. See `extended`.
        seed, constant_data, predictions_constant_data, coords, dims, pred_dims
            Further groups, labels and names; see `extended`.
        """
        extended = self.extended(
            log_likelihood,
            posterior_predictive,
            prior,
            predictions=predictions,
            seed=seed,
            constant_data=constant_data,
            predictions_constant_data=predictions_constant_data,
            coords=coords,
            dims=dims,
            pred_dims=pred_dims,
        )
        return Draws.to_arviz(extended._counted())

    def _counted(self) -> Self:
        """The draws with counts and kinds among data and replications as integers: ArviZ plots
        and scores data of floats as continuous ones.
        """
        names = getattr(self.target, "discrete_data", frozenset())
        groups = {
            group: {n: _whole(x) if n in names else x for n, x in values.items()}
            if group in _OF_DATA
            else values
            for group, values in self.groups.items()
        }
        return dataclasses.replace(self, groups=groups) if names else self

    @property
    def _knows_its_model(self) -> bool:
        return self.call is not None or isinstance(self.target, ModelTarget)

    def _data(self) -> Mapping[str, np.ndarray]:
        return {**getattr(self.target, "observed_data", {}), **self.groups.get("observed_data", {})}

    def _log_likelihood_bytes(self) -> int:
        data = self._data().values()
        return 8 * self.num_chains * self.num_draws * sum(y.size for y in data)

    def _has_quick_density(self) -> bool:
        """Whether densities of the data are had for all draws at once, of rows in memory."""
        if self.call is not None:
            return self.call.is_quick(self)
        return isinstance(self.target, ModelTarget) and not self.target.parts.stored

    def _split(
        self, values: Mapping[str, np.ndarray], groups: Mapping[str, Mapping[str, object]]
    ) -> dict[str, dict[str, np.ndarray]]:
        """Prior draws as two groups: of the latent and deterministic sites, and of the data."""
        if self.call is not None:
            observed = {*self.call.observed}
        elif self.target is None:
            # Data are what other groups have as such.
            told = {*groups.get("observed_data", ()), *groups.get("posterior_predictive", ())}
            observed = told - self.posterior.keys()
        else:
            observed = {*getattr(self.target, "observed", ())}
        return {
            "prior": {n: x for n, x in values.items() if n not in observed},
            "prior_predictive": {n: x for n, x in values.items() if n in observed},
        }

    def _log_likelihood_anew(self) -> dict[str, np.ndarray]:
        """What the model says of its data, whatever groups there are; nothing without a model."""
        if self.call is not None:
            return self.call.log_likelihood(self)
        known = isinstance(self.target, ModelTarget)
        return self._model().log_likelihood(self.positions) if known else {}

    def _without_data(self) -> Callable[[], object]:
        """The model as it was called, with the data taken away."""
        return self._model().unconditioned if self.call is None else self.call.without_data

    def _model(self) -> ModelTarget:
        if isinstance(self.target, ModelTarget):
            return self.target
        raise InferenceError(
            "predictions from these draws",
            expected="draws that know their model",
            got="draws of a hand-written density"
            if self.target
            else "draws read from a file or a pickle, or of a table"
            if self.call is None
            else "draws of no density: of particles, runs or simulations",
            fix="write Predictive(model, draws)(...), and give it to to_arviz",
        )

    def __getstate__(self) -> dict[str, object]:
        # A model is code, which the process that reads a file of draws may not have.
        return {**self.__dict__, "target": None, "call": None}

    def __copy__(self) -> SampledDraws:
        return self  # it never changes

    def __deepcopy__(self, memo: dict[int, object]) -> SampledDraws:
        made = object.__new__(type(self))
        memo[id(self)] = made
        made.__dict__.update({k: copy.deepcopy(v, memo) for k, v in self.__dict__.items()})
        return made


def _whole(x: np.ndarray) -> np.ndarray:
    """Whole numbers of a float dtype as integers; others, as data with gaps, as they are."""
    if x.dtype.kind != "f" or not (np.abs(x) < 2**53).all() or not (x == np.rint(x)).all():
        return x
    return x.astype(np.int64)


def _arrays(values: Mapping[str, ArrayLike]) -> dict[str, np.ndarray]:
    if not isinstance(values, Mapping):
        raise ArgumentError(
            "groups of draws",
            expected="a dict from variables to arrays, as Predictive returns it",
            got=f"{type(values).__name__} {values!r:.60}",
            fix="write {'y': values}",
        )
    return {name: np.asarray(value) for name, value in values.items()}


def _check_named(
    dims: Mapping[str, object],
    pred_dims: Mapping[str, object],
    groups: Mapping[str, Mapping[str, object]],
) -> None:
    """Refuse dims of variables that there are not."""
    for given, argument, predicted in ((dims, "dims", False), (pred_dims, "pred_dims", True)):
        of = [x for group, x in groups.items() if not predicted or group in PREDICTIONS]
        known = dict.fromkeys(name for variables in of for name in variables)
        # Dims of predictions may be spelled as `Draws.dims` has them, too.
        known |= dict.fromkeys(
            dims_key(g, n) for g in PREDICTIONS for n in groups.get(g, ()) if not predicted
        )
        for name in given:
            if name not in known:
                raise unknown_name(f"to_arviz({argument}=...)", name, known)


def with_model(given: Draws | HasDraws, subject: str) -> tuple[SampledDraws, ModelTarget]:
    """Return draws and the target of the model that they are of.

    Draws of particles or runs get the density of their model here, where it has one.

    Raises
    ------
    InferenceError
        If they know none, or it is no density on R^n.
    """
    draws = cast("SampledDraws", drawn(given, subject))
    target, call = getattr(draws, "target", None), getattr(draws, "call", None)
    if isinstance(call, CalledModel) and target is None:
        target = call.target()
        positions = call.positions(draws, target)
        draws = dataclasses.replace(draws, target=target, positions=positions)
    if isinstance(target, ModelTarget):
        return draws, target
    raise InferenceError(
        subject,
        expected="draws that know their model, as MCMC and SVI return them",
        got="draws of a hand-written density" if target else "draws read from a file, or arrays",
        fix="pass mcmc.draws",
    )


explain_calls(globals(), methods={"SampledDraws": "extended infer_discrete summary to_arviz"})
