"""`Predictive`: a model run forwards from draws of its latent sites; `log_likelihood` of data.

Without draws the model is run as it is (prior predictive); with draws, or a guide that makes them,
the latent sites they name take their values and the rest is drawn anew (posterior predictive). All
draws are run at once where that is safe: the `replicate` handler adds a dim to the left of all
plates. Whether a model bears that cannot be seen from outside (``x @ beta`` means something else
for a batch of betas), so it is checked: two of the draws are run again alone, and every density and
every computed value has to agree. If not, a single run is carried out for all draws by `vmap`,
which asks nothing of the model's shapes, and is checked alike; if Python branches on a draw, they
are run one by one.

Read effects/runtime.py first; results.py uses this for the groups of ArviZ's schema.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from probtorch.autograd.vmap import vmap
from probtorch.backends.registry import to_host
from probtorch.core.dispatch import set_grad_enabled, wrap
from probtorch.core.rng import Generator, default_generator
from probtorch.core.showing import call_of
from probtorch.core.signatures import explain_calls, explained
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.diagnostics.draws import Draws
from probtorch.effects.handlers import seed as seed_handler
from probtorch.effects.handlers import substitute, trace
from probtorch.effects.minibatches import AllRows
from probtorch.effects.plates import replicate
from probtorch.effects.runtime import Handler
from probtorch.effects.site import Site, as_value
from probtorch.effects.trace import Trace
from probtorch.errors import ArgumentError, InferenceError, ModelError, ShapeError
from probtorch.infer.mapping import DrawMap
from probtorch.infer.model_calls import check_model, check_model_call
from probtorch.infer.model_runs import in_float64, lifted
from probtorch.infer.names import unknown_name

if TYPE_CHECKING:
    pass

__all__ = ["Predictive", "log_likelihood"]

# Elements of all sites together in one vectorised run: 64 MiB of float64.
BLOCK_ELEMENTS = 2**23
# Agreement of a vectorised run with single ones, relative to the size of the numbers, by dtype of
# the densities.
RTOL = {"f8": 1e-8, "f4": 1e-3}
# Draws to try first: a model that crosses draws with draws then makes 9 values of a million.
FEW = 3
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
        Draws by site name with one leading dim (num_samples), or two (chain, draw). Deterministic
        sites among them are ignored: they are computed again.
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
    no gradient.

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
        posterior_samples: Mapping[str, TensorLike] | Draws | None = None,
        guide: Callable[..., object] | None = None,
        num_samples: int | None = None,
        return_sites: Sequence[str] = (),
        parallel: bool | None = None,
        *,
        params: Mapping[str, TensorLike] | None = None,
        batch_ndims: int | None = None,
        seed: int | Generator | None = None,
        all_rows: bool = True,
    ) -> None:
        if isinstance(posterior_samples, Draws):
            posterior_samples, batch_ndims = posterior_samples.posterior, 2
        check_model(model, "Predictive")
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
        self.model, self.guide, self.num_samples = model, guide, num_samples
        self.posterior_samples = {
            name: to_host(as_value(value, name).array)
            for name, value in (posterior_samples or {}).items()
        }
        self.return_sites = (
            (return_sites,) if isinstance(return_sites, str) else tuple(return_sites)
        )
        self.parallel, self.params, self.batch_ndims = parallel, dict(params or {}), batch_ndims
        self.seed, self.all_rows = seed, all_rows

    def __repr__(self) -> str:
        return call_of(self)

    def __call__(self, *args: object, **kwargs: object) -> dict[str, TensorBase]:
        """Run the model on these arguments.

        Returns
        -------
        dict of str to Tensor, each (num_samples, *shape) or (chain, draw, *shape)
        """
        with _no_grad():
            job = self._job(args, kwargs)
            names = job.returned(self.return_sites)
            if self.parallel is False:
                found = job.one_by_one(names)
            else:
                found = job.at_once(names, must=self.parallel is True)
                found = found or job.mapped(names) or job.one_by_one(names)
        return {name: wrap(x.reshape(job.lead + x.shape[1:])) for name, x in found.items()}

    forward = __call__

    def get_vectorized_trace(self, *args: object, **kwargs: object) -> Trace:
        """Return the trace of one run with all draws along a dim to the left of all plates."""
        with _no_grad():
            job = self._job(args, kwargs)
            return job.vectorised(slice(0, job.count))

    def _job(self, args, kwargs):
        check_model_call(self.model, args, kwargs, "predictive")
        given = self.seed
        if given is None:
            given = default_generator
        generator = given if isinstance(given, Generator) else Generator(given)
        samples = self.posterior_samples
        if self.guide is not None:
            with AllRows().activate() if self.all_rows else contextlib.nullcontext():
                samples = _guide_draws(self.guide, args, kwargs, self.num_samples, generator)
        job = _Job(self.model, args, kwargs, samples, self.params, generator, self.all_rows)
        job.look(self.batch_ndims, self.num_samples)
        return job


def log_likelihood(
    model: Callable[..., object],
    posterior_samples: Mapping[str, TensorLike] | Draws,
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
        A value per draw for every latent site.
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
    if isinstance(posterior_samples, Draws):
        posterior_samples, batch_ndims = posterior_samples.posterior, 2
    samples = {n: to_host(as_value(x, n).array) for n, x in posterior_samples.items()}
    with _no_grad():
        job = _Job(model, args, kwargs, samples, {}, Generator(0))
        job.look(batch_ndims, None)
        for name in job.first.stochastic_nodes:
            if name not in samples:
                raise ModelError(
                    f"log_likelihood: no samples for site {name!r}",
                    expected=f"samples of {', '.join(map(repr, job.first.stochastic_nodes))}",
                    got=f"samples of {', '.join(map(repr, samples)) or 'nothing'}",
                    fix="pass all latent sites, or observe this one with handlers.condition",
                    at=job.first[name].location,
                )
        found = DrawMap(job.likelihood)(job.samples)
    return {name: x.reshape(job.lead + x.shape[1:]) for name, x in found.items()}


def _nothing_to_predict(observed):
    """Error for a model all of whose sites have values already."""
    names = ", ".join(map(repr, observed))
    return ArgumentError(
        "Predictive",
        expected="a site to draw: one with neither samples nor data, or a deterministic one",
        got=f"data at {names}, samples everywhere else" if names else "samples of every site",
        fix="call the model without the data: obs=None draws the site"
        if names
        else "name what you want in return_sites",
    )


# --------------------------------------------------------------------------------------------- runs


class _Job:
    """One call: the model with its arguments, and samples flattened to (count, ...)."""

    def __init__(self, model, args, kwargs, samples, params, generator, all_rows=True):
        self.model, self.samples, self.params, self.generator = model, samples, params, generator
        # Samples of float64 come from an inference in float64: what they are put into is to be as
        # precise.
        self.precise = any(x.dtype == np.float64 for x in samples.values())
        self.args, self.kwargs = (lifted(args), lifted(kwargs)) if self.precise else (args, kwargs)
        self.rows = AllRows(lifted if self.precise else None) if all_rows else None

    def run(self, *handlers: _FirstDraw | replicate | substitute) -> Trace:
        """Run the model under handlers, outermost first, and return the trace."""
        with contextlib.ExitStack() as stack:
            if self.precise:
                stack.enter_context(in_float64())
            if self.rows is not None:
                stack.enter_context(self.rows.activate())
            found = stack.enter_context(trace())
            stack.enter_context(seed_handler(None, self.generator))
            for handler in handlers:
                stack.enter_context(handler)
            if self.params:
                stack.enter_context(substitute(None, self.params))
            found.returned = self.model(*self.args, **self.kwargs)
        return found

    def look(self, batch_ndims: int | None, num_samples: int | None) -> None:
        """Run once at the first draw, to learn about the sites; flatten the samples."""
        first = _FirstDraw(self.samples, batch_ndims)
        self.first = self.run(first)
        for name in self.samples:
            if name not in self.first:
                sites = [n for n, s in self.first.items() if s.kind in ("sample", "deterministic")]
                raise unknown_name(f"the model has no site {name!r}", name, sites)
        used = {name: x for name, x in self.samples.items() if name in first.lead}
        leads = {x.shape[: first.lead[name]] for name, x in used.items()}
        if len(leads) > 1:
            a, b = sorted(leads, key=len)[:2]
            raise ShapeError(
                "posterior samples",
                expected="the same leading dims for all sites",
                got=f"{a} and {b}",
                fix="give (num_samples, ...) or (chain, draw, ...) for every site",
            )
        if not leads and num_samples is None:
            # All samples are of deterministic or observed sites.
            raise ArgumentError(
                "Predictive",
                expected="samples of at least one latent site",
                got=f"samples of {', '.join(map(repr, self.samples))}",
                fix="pass num_samples, or the samples of the latent sites",
            )
        self.lead: tuple[int, ...] = leads.pop() if leads else (num_samples or 0,)
        self.count = math.prod(self.lead)
        if num_samples is not None and num_samples != self.count:
            raise ArgumentError(
                "Predictive",
                expected=f"num_samples={self.count}, as many as there are posterior samples",
                got=f"num_samples={num_samples}",
                fix="leave num_samples out, or pass fewer samples",
            )
        self.samples = {
            n: x.reshape(self.count, *x.shape[len(self.lead) :]) for n, x in used.items()
        }

    def returned(self, wanted):
        """Names of the sites to return."""
        sites = {n: s for n, s in self.first.items() if s.kind in ("sample", "deterministic")}
        if not wanted:
            names = [n for n, s in sites.items() if n not in self.samples and not s.observed]
            if not names:
                raise _nothing_to_predict([n for n, s in sites.items() if s.observed])
            return names
        for name in wanted:
            if name not in sites and name != "_RETURN":
                raise unknown_name(f"return_sites: the model has no site {name!r}", name, sites)
        return list(wanted)

    # ------------------------------------------------------------------------------- draw by draw

    def one_by_one(self, names):
        """Values of the named sites, one run per draw."""
        rows = {name: [] for name in names}
        for i in range(self.count):
            found = self.run(substitute(None, {n: x[i] for n, x in self.samples.items()}))
            for name in names:
                rows[name].append(_array(_value(found, name)))
        return {name: _stacked(name, values, self.first) for name, values in rows.items()}

    def mapped(self, names):
        """Values of the named sites by one run under `vmap`, or None if that is refused."""
        if self.count < 2:
            return None
        start = self.generator.get_state()

        def one(values: dict[str, TensorBase]) -> tuple[dict[str, TensorBase], ...]:
            found = self.run(substitute(None, values))
            sites = {n: s for n, s in found.items() if s.kind in ("sample", "deterministic")}
            densities = {
                n: s.compute_log_prob().sum()
                for n, s in sites.items()
                if s.has_density and hasattr(s.fn, "log_prob")
            }
            wanted = {n: as_value(_value(found, n), "value") for n in names}
            drawn = {n: as_value(s.value, "value") for n, s in sites.items() if not s.observed}
            return wanted, drawn, densities

        try:
            block = min(self.count, self._block())
            draws = {n: wrap(x) for n, x in self.samples.items()}
            everything = vmap(
                lambda _, values: one(values), randomness="different", chunk_size=block
            )(wrap(np.zeros(self.count)), draws)
            wanted, values, densities = (
                {n: to_host(x.array) for n, x in part.items()} for part in everything
            )
            for i in (0, self.count - 1):
                self._compare_mapped(values, densities, i)
        except Exception:
            # Whatever it is, single runs will say it better, or bear it.
            self.generator.set_state(start)
            return None
        return wanted

    def _compare_mapped(
        self, values: dict[str, np.ndarray], densities: dict[str, np.ndarray], i: int
    ) -> None:
        """Run draw `i` alone with all values that it has among the others; see `_compare`."""
        latent = [n for n, s in self.first.items() if s.kind == "sample" and not s.observed]
        fixed = {n: values[n][i] for n in latent}
        for name, site in self.run(substitute(None, fixed)).items():
            if name in densities:
                alone = float(_array(site.compute_log_prob()).sum())
                _check_agreement(name, site, densities[name][i], alone)
            elif site.kind == "deterministic":
                _check_agreement(name, site, values[name][i], _array(site.value))

    def likelihood(self, values):
        """Log density of each observation at one draw; recorded and compiled by `DrawMap`."""
        found = self.run(substitute(None, values))
        out = {}
        for name in found.observation_nodes:
            found[name].compute_log_prob()
            out[name] = found[name].unscaled_log_prob
        return out

    # ------------------------------------------------------------------------------- all at once

    def at_once(self, names, must):
        """Values of the named sites by vectorised runs, or None if the model does not bear them."""
        if self.count < 2:
            return None
        start = self.generator.get_state()
        block = min(self.count, self._block())
        parts = []
        try:
            if block > FEW:
                self._checked(FEW)
                self.generator.set_state(start)
            for begin in range(0, self.count, block):
                rows = slice(begin, min(begin + block, self.count))
                found = self.vectorised(rows) if begin else self._checked(rows.stop)
                size = rows.stop - rows.start
                parts.append({n: self._rows(found, n, size) for n in names})
        except Exception as error:
            # Whatever it is, it says that this model cannot be run for several draws at once.
            if must:
                raise InferenceError(
                    "Predictive(parallel=True): the model cannot be run for all draws at once",
                    expected="a model that gives the same for a batch of draws as for each alone",
                    got=f"{type(error).__name__}: {error}".split("\n")[0],
                    fix="leave parallel out: the draws are then run one by one",
                ) from error
            self.generator.set_state(start)
            return None
        return {n: np.concatenate([part[n] for part in parts]) for n in names}

    def _block(self) -> int:
        """Number of draws to run at once."""
        values = (s.value for s in self.first.values())
        elements = sum(x.array.size for x in values if isinstance(x, TensorBase))
        return max(2, BLOCK_ELEMENTS // max(elements, 1))

    @property
    def depth(self) -> int:
        """Number of batch dims that plates of the model take."""
        dims = [-f.dim for s in self.first.values() for f in s.plates if f.dim is not None]
        return max(dims, default=0)

    def vectorised(self, rows: slice) -> Trace:
        """The trace of one run with the given draws along a dim left of all plates."""
        size, depth = rows.stop - rows.start, self.depth
        values = {}
        for name, x in self.samples.items():
            batch = tuple(self.first[name].fn.batch_shape)
            padded = (1,) * (depth - len(batch))
            values[name] = x[rows].reshape(size, *padded, *x.shape[1:])
        return self.run(replicate(None, size, -1 - depth), substitute(None, values))

    def _checked(self, size: int) -> Trace:
        """The trace of the first draws at once, compared with single runs at both ends."""
        found = self.vectorised(slice(0, size))
        for i in (0, size - 1):
            self._compare(found, i, size)
        return found

    def _rows(self, found, name, size):
        """The values of one site from a vectorised trace, shape (size, *shape)."""
        value = _array(_value(found, name))
        shape = _array(_value(self.first, name)).shape
        if value.shape[:1] == (size,) and _squeezed(value.shape[1:]) == _squeezed(shape):
            return value.reshape(size, *shape)
        if value.shape == shape:
            return np.broadcast_to(value, (size, *shape))
        raise ShapeError(
            f"site {name!r}",
            expected=f"shape {shape} per draw",
            got=f"shape {value.shape} for {size} draws at once",
            fix="index from the right, and write sums with dim=-1, so that the model takes batches",
        )

    def _compare(self, found, i, size):
        """Run draw `i` alone with all values of the vectorised run; every number has to agree."""
        latent = [n for n, s in found.items() if s.kind == "sample" and not s.observed]
        values = {n: self._rows(found, n, size)[i] for n in latent}
        alone = self.run(substitute(None, values))
        if alone.keys() != found.keys():
            raise _disagrees(next(iter(alone.keys() ^ found.keys())))
        for name, site in alone.items():
            if site.has_density and hasattr(site.fn, "log_prob"):
                pair: tuple[float | np.ndarray, float | np.ndarray] = (
                    _summed(found[name], i, size),
                    float(_array(site.compute_log_prob()).sum()),
                )
            elif site.kind == "deterministic":
                pair = self._rows(found, name, size)[i], _array(site.value)
            else:
                continue
            _check_agreement(name, site, *pair)


class _FirstDraw(Handler):
    """Give latent sites the first of their draws, and find out how many leading dims there are."""

    def __init__(self, samples, batch_ndims):
        super().__init__()
        self.samples, self.batch_ndims = samples, batch_ndims
        self.lead = {}

    def on_sample(self, site: Site) -> None:
        if site.observed or site.value is not None or site.name not in self.samples:
            return
        x = self.samples[site.name]
        shape = tuple(site.fn.batch_shape) + tuple(site.fn.event_shape)
        lead = x.ndim - len(shape) if self.batch_ndims is None else self.batch_ndims
        if lead < 1 or x.shape[lead:] != shape:
            raise ShapeError(
                f"posterior samples of site {site.name!r}",
                expected=f"shape (num_samples, *{shape}) or (chain, draw, *{shape})",
                got=f"shape {x.shape}",
                fix="pass draws of this model, with the same sizes of plates",
                at=site.location,
            )
        if not math.prod(x.shape[:lead]):
            raise ShapeError(
                f"posterior samples of site {site.name!r}",
                expected="at least one draw",
                got=f"shape {x.shape}",
                fix="sample first",
            )
        self.lead[site.name] = lead
        site.value = wrap(x[(0,) * lead])


def _guide_draws(guide, args, kwargs, count, generator):
    """Draws of the guide's latent sites, by name, (count, ...)."""
    rows: dict[str, list[np.ndarray]] = {}
    for _ in range(count):
        with trace() as found, seed_handler(None, generator):
            guide(*args, **kwargs)
        for name in found.stochastic_nodes:
            if not found[name].infer.get("is_auxiliary"):
                rows.setdefault(name, []).append(_array(found[name].value))
    return {name: np.stack(values) for name, values in rows.items()}


# ------------------------------------------------------------------------------------------ helpers


@contextlib.contextmanager
def _no_grad() -> Iterator[None]:
    before = set_grad_enabled(False)
    try:
        yield
    finally:
        set_grad_enabled(before)


def _value(found: Trace, name: str) -> TensorBase:
    return found.returned if name == "_RETURN" else found[name].value


def _array(value: TensorBase) -> np.ndarray:
    return to_host(as_value(value, "value").array)


def _stacked(name: str, values: list[np.ndarray], first: Trace) -> np.ndarray:
    shapes = {value.shape for value in values}
    if len(shapes) == 1:
        return np.stack(values)
    raise ShapeError(
        f"site {name!r}",
        expected="the same shape for every draw",
        got=" and ".join(map(str, sorted(shapes)[:2])),
        fix="leave it out of return_sites",
        at=None if name == "_RETURN" else first[name].location,
    )


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)


def _summed(site, i, size):
    """The log density of draw `i` at a site of a vectorised run."""
    log_prob = _array(site.compute_log_prob())
    free = -site.free_dim
    if log_prob.ndim >= free and log_prob.shape[-free] == size:
        log_prob = np.moveaxis(log_prob, -free, 0)[i]
    return float(log_prob.sum())


def _check_agreement(
    name: str, site: Site, together: float | np.ndarray, alone: float | np.ndarray
) -> None:
    rtol = RTOL.get(_array(site.value).dtype.str[1:], 1e-8)
    scale = np.max(np.abs(alone), initial=1.0, where=np.isfinite(alone))
    if not np.allclose(together, alone, rtol=rtol, atol=rtol * scale, equal_nan=True):
        raise _disagrees(name)


def _disagrees(name: str) -> ModelError:
    return ModelError(
        f"site {name!r} differs when several draws are run at once",
        expected="the same numbers as for each draw alone",
        got="others",
        fix="index from the right, and write sums with dim=-1, so that the model takes batches",
    )


explain_calls(globals())
