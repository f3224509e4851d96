"""One call of `Predictive`: its runs of the model, many draws at a time.

Three ways lead from draws to what the model makes of them, and a call takes the first that holds:
all draws of a block in one run (`replicate` adds a dim to the left of all plates), one run under
`vmap`, which asks nothing of the model's shapes, and draw by draw. Whether a model bears a batch
cannot be seen from outside (``x @ beta`` means something else for a batch of betas), so the first
block is checked: two of its draws are run again alone, and every density and every computed value
has to agree. Where many equal blocks follow, their run is compiled.

Read predictive.py first.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from probtorch.autograd.vmap import vmap
from probtorch.backends.registry import to_host
from probtorch.compiler.compile import compile
from probtorch.config import settings
from probtorch.core.dispatch import wrap
from probtorch.core.late import difflib
from probtorch.core.rng import Generator
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.diagnostics.findings import InferenceWarning
from probtorch.effects.enumerable import as_annotated, can_enumerate
from probtorch.effects.handlers import seed as seed_handler
from probtorch.effects.handlers import substitute, trace
from probtorch.effects.minibatches import AllRows
from probtorch.effects.placing import replicate
from probtorch.effects.primitives import UNOBSERVED
from probtorch.effects.reparams import states_instead
from probtorch.effects.runtime import Handler
from probtorch.effects.site import Site, as_value
from probtorch.effects.trace import Trace
from probtorch.errors import ArgumentError, InferenceError, ModelError, ShapeError, users_stacklevel
from probtorch.infer.enumeration.choices import Choices, ModelBranch, branches_of
from probtorch.infer.enumeration.summed import OneValue, Sums
from probtorch.infer.model_runs import in_float64, lifted
from probtorch.infer.names import unknown_name
from probtorch.infer.prediction.prediction_values import (
    Arrays,
    Computed,
    FirstDraw,
    FromVector,
    as_array,
)

__all__ = ["PredictionRuns"]

# Elements of all sites together in one vectorised run: 64 MiB of float64.
BLOCK_ELEMENTS = 2**23
# Agreement of a vectorised run with single ones, relative to the size of the numbers, by dtype of
# the densities.
RTOL = {"f8": 1e-8, "f4": 1e-3}
# Draws to try first: a model that crosses draws with draws then makes 9 values of a million.
FEW = 3
# As many blocks make compiling one worth its second.
MANY_BLOCKS = 12


class PredictionRuns:
    """The model with its arguments, and samples flattened to (count, ...).

    Parameters
    ----------
    model : callable
    args, kwargs
        What it is called with.
    samples : dict of str to ndarray
        With one leading dim or two.
    params : dict
        Values of `param` sites.
    generator : Generator
        Where random numbers come from.
    all_rows : bool
        Whether plates with subsamples work on all their rows.
    keep_deterministic : bool
        Whether deterministic sites take the values that the samples have for them.

    Attributes
    ----------
    first : Trace
        The run at the first draw.
    lead : tuple of int
        The leading dims of the samples, of `count` draws together.
    """

    first: Trace
    lead: tuple[int, ...]
    count: int

    def __init__(
        self,
        model: Callable[..., object],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        samples: Arrays,
        params: Mapping[str, TensorLike],
        generator: Generator,
        *,
        all_rows: bool = True,
        keep_deterministic: bool = False,
    ) -> None:
        self.model, self.samples, self.params, self.generator = model, samples, params, generator
        # Samples of float64 come from an inference in float64: what they are put into is to be as
        # precise.
        self.precise = any(x.dtype == np.float64 for x in samples.values())
        self.args, self.kwargs = (lifted(args), lifted(kwargs)) if self.precise else (args, kwargs)
        self.rows = AllRows(lifted if self.precise else None) if all_rows else None
        self.keep_deterministic = keep_deterministic
        self.computed: Arrays = {}
        # Discrete sites that only some branches of the model come to, and so some draws.
        self.of_branches: frozenset[str] = frozenset()
        self.of_guide = False  # whether samples are a guide's
        self._compiled: Callable[[dict[str, TensorBase]], dict[str, TensorBase]] | None = None

    def run(self, *handlers: Handler) -> Trace:
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

    # ---------------------------------------------------------------------------------- preparation

    def look(self, batch_ndims: int | None, num_samples: int | None) -> None:
        """Run once at the first draw, to learn about the sites; flatten the samples."""
        self._drop_data(batch_ndims)
        first = FirstDraw(self.samples, batch_ndims)
        self.first = self.run(first)
        self._drop_others()
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
        self.lead = leads.pop() if leads else (num_samples or 0,)
        self.count = math.prod(self.lead)
        if num_samples is not None and num_samples != self.count:
            raise ArgumentError(
                "Predictive",
                expected=f"num_samples={self.count}, as many as there are posterior samples",
                got=f"num_samples={num_samples}",
                fix="leave num_samples out, or pass fewer samples",
            )
        if self.keep_deterministic:
            self.computed = {
                name: self._given(name, x)
                for name, x in self.samples.items()
                if self.first[name].kind == "deterministic"
            }
        self.samples = {
            n: x.reshape(self.count, *x.shape[len(self.lead) :]) for n, x in used.items()
        }
        self.given = frozenset(self.samples)

    def _drop_data(self, batch_ndims: int | None) -> None:
        """Leave out samples of data with gaps, where they are no data but a site to draw.

        ``sample(name, obs=data, obs_mask=m)`` joins data and what was drawn for the gaps under
        `name`: given these samples, a run without data would return the data for predictions.
        """
        joined = {n: part for n in self.samples if (part := n + UNOBSERVED) in self.samples}
        if not joined:
            return
        others = {n: x for n, x in self.samples.items() if n not in joined}
        sites = self.run(FirstDraw(others, batch_ndims))
        for name, part in joined.items():
            if name in sites.stochastic_nodes and part not in sites:
                del others[part]
            else:
                others[name] = self.samples[name]
        self.samples = others

    def _drop_others(self) -> None:
        """Leave out samples of no site, as of a model that has groups besides; not misspelt ones.

        A name that is close to a site without samples is taken for that one.
        """
        sites = [n for n, s in self.first.items() if s.kind in ("sample", "deterministic")]
        others = [name for name in self.samples if name not in self.first]
        without = [name for name in sites if name not in self.samples]
        # What a sampler drew in place of a site that there are samples of: NUTS(model, reparam=...)
        restated = {n for n in others if states_instead(n, self.samples)}
        others = [name for name in others if name not in restated]
        self.samples = {n: x for n, x in self.samples.items() if n not in restated}
        for name in others:
            if len(others) == len(self.samples) or difflib.get_close_matches(name, without, 1):
                raise unknown_name(f"the model has no site {name!r}", name, sites)
        if others:
            self.samples = {name: x for name, x in self.samples.items() if name in self.first}
            warnings.warn(
                f"samples of {', '.join(map(repr, others))} are not used: the model has no such "
                f"site, but {', '.join(map(repr, sites))}",
                InferenceWarning,
                stacklevel=users_stacklevel(),
            )

    def _given(self, name: str, x: np.ndarray) -> np.ndarray:
        """Values of a deterministic site, one per draw."""
        shape = as_array(self.first[name].value).shape
        if x.shape != (*self.lead, *shape):
            raise ShapeError(
                f"posterior samples of site {name!r}",
                expected=f"shape {(*self.lead, *shape)}, as the model computes it",
                got=f"shape {x.shape}",
                fix="leave exclude_deterministic=True: the site is then computed from the others",
                at=self.first[name].location,
            )
        return x.reshape(self.count, *shape)

    def draw_discrete(self) -> None:
        """Add draws of the finite discrete sites from their posterior, given data and samples."""
        latent = [n for n in self.first.stochastic_nodes if n not in self.samples]
        wanted = [n for n in latent if can_enumerate(self.first[n])]
        others = [n for n in latent if n not in wanted]
        if others:
            raise ModelError(
                f"Predictive(infer_discrete=True): site {others[0]!r} has neither samples nor data",
                expected="samples or data of every site that is not finite and discrete",
                got=f"samples of {', '.join(map(repr, self.samples)) or 'nothing'}",
                fix="pass the data: values of discrete sites are drawn given them; then predict "
                "with the result among the samples",
                at=self.first[others[0]].location,
            )
        if not wanted:
            return
        # One column more, so that there is one where all latent sites are discrete.
        columns = [*self.samples.values(), np.zeros(self.count)]
        q = np.concatenate([x.reshape(self.count, -1).astype(np.float64) for x in columns], axis=1)
        evaluation = FromVector.of(self.samples)

        def along(choices: Choices) -> Trace:
            tracer = trace()
            self.run(tracer, evaluation(wrap(q[0])), OneValue(), choices)
            return tracer.trace

        branches: list[ModelBranch] = []
        if any(as_annotated(self.first[name]) == "sequential" for name in wanted):
            branches = [b for b in branches_of(along, "the model") if b.names]
        sums = Sums(self.run, evaluation, -1 - self.depth, branches=branches)
        values = sums.values_at(q, 1, self.generator)
        self.of_branches = frozenset(name for name in values if not sums.on_all_paths(name))
        self.samples = self.samples | values

    def returned(self, wanted: Sequence[str]) -> list[str]:
        """Return the names of the sites to return."""
        sites = {n: s for n, s in self.first.items() if s.kind in ("sample", "deterministic")}
        if not wanted:
            given = self.given | self.computed.keys() | self.of_branches
            names = [n for n, s in sites.items() if n not in given and not s.observed]
            if not names:
                observed = [n for n, s in sites.items() if s.observed]
                raise _nothing_to_predict(observed, self.of_guide)
            return names
        for name in wanted:
            if name not in sites and name != "_RETURN":
                raise unknown_name(f"return_sites: the model has no site {name!r}", name, sites)
        return list(wanted)

    # --------------------------------------------------------------------------------------- blocks

    def block(self) -> int:
        """Return the number of draws to run at once."""
        values = (s.value for s in self.first.values())
        elements = sum(x.array.size for x in values if isinstance(x, TensorBase))
        return max(2, BLOCK_ELEMENTS // max(elements, 1))

    def parts(
        self, names: Sequence[str], parallel: bool | None, size: int | None
    ) -> Iterator[Arrays]:
        """Yield the values of the named sites block by block, each (draws of the block, *shape).

        Parameters
        ----------
        names : sequence of str
        parallel : bool or None
            True allows the first way alone, False the last.
        size : int or None
            Draws per block; what memory allows if None.
        """
        ways = [self.at_once, self.mapped, self.one_by_one]
        if parallel is False or self.count < 2:
            ways = ways[-1:]
        elif self.computed or self.of_branches:
            # Values that are given for computed sites do not say which of their dims are plates',
            # and draws that take different branches are no one run.
            ways = ways[1:]
        step = min(self.block() if size is None else size, max(self.count, 1))
        for begin in range(0, self.count, step):
            rows = slice(begin, min(begin + step, self.count))
            while True:
                start = self.generator.get_state()
                try:
                    part = ways[0](names, rows)
                    break
                except Exception as error:
                    # Whatever it is, it says that this model cannot be run so: single runs bear it,
                    # or will say it better.
                    if parallel is True:
                        raise InferenceError(
                            "Predictive(parallel=True): the model cannot be run for all draws at "
                            "once",
                            expected="a model that gives the same for a batch of draws as for each "
                            "alone",
                            got=f"{type(error).__name__}: {error}".split("\n")[0],
                            fix="leave parallel out: the draws are then run one by one",
                        ) from error
                    if len(ways) == 1:
                        raise
                    self.generator.set_state(start)
                    ways.pop(0)
            yield part

    def together(self, names: Sequence[str], parallel: bool | None, size: int | None) -> Arrays:
        """Return what `parts` yields, as one array (count, *shape) per site."""
        out: Arrays = {}
        begin = 0
        for part in self.parts(names, parallel, size):
            for name, values in part.items():
                if name not in out:
                    out[name] = np.empty((self.count, *values.shape[1:]), values.dtype)
                elif out[name].shape[1:] != values.shape[1:]:
                    raise _uneven(name, {out[name].shape[1:], values.shape[1:]}, self.first)
                out[name][begin : begin + len(values)] = values
            begin += len(values)
        return out

    # --------------------------------------------------------------------------------- all at once

    @property
    def depth(self) -> int:
        """Number of batch dims that plates of the model take."""
        dims = [-f.dim for s in self.first.values() for f in s.plates if f.dim is not None]
        return max(dims, default=0)

    def at_once(self, names: Sequence[str], rows: slice) -> Arrays:
        """Return the values of the named sites of a block by one vectorised run."""
        size = rows.stop - rows.start
        if rows.start == 0:
            if size > FEW:
                start = self.generator.get_state()
                self._checked(FEW)
                self.generator.set_state(start)
            found = self._checked(size)
        elif settings.jit and self.count >= MANY_BLOCKS * size:
            return self._by_program(names, rows)
        else:
            found = self.vectorised(rows)
        return {n: self._rows(_value(found, n), n, size) for n in names}

    def vectorised(self, rows: slice) -> Trace:
        """Return the trace of one run with the given draws along a dim left of all plates."""
        return self._vectorised(self._columns(rows), rows.stop - rows.start)

    def _columns(self, rows: slice) -> dict[str, TensorBase]:
        """The samples of a block with the dim of draws left of all plates."""
        size, depth, values = rows.stop - rows.start, self.depth, {}
        for name, x in self.samples.items():
            batch = tuple(self.first[name].fn.batch_shape)
            padded = (1,) * (depth - len(batch))
            values[name] = wrap(x[rows].reshape(size, *padded, *x.shape[1:]))
        return values

    def _vectorised(self, values: Mapping[str, TensorBase], size: int) -> Trace:
        return self.run(replicate(None, size, -1 - self.depth), substitute(None, values))

    def _by_program(self, names: Sequence[str], rows: slice) -> Arrays:
        """The values of a block by the compiled run; the last block may be too short for it."""
        size = rows.stop - rows.start
        if self._compiled is None:

            def run(values: dict[str, TensorBase]) -> dict[str, TensorBase]:
                found = self._vectorised(values, size)
                return {n: as_value(_value(found, n), "value") for n in names}

            self._compiled, self._compiled_size = compile(run), size
        if size != self._compiled_size or not self.samples:
            found = self.vectorised(rows)
            return {n: self._rows(_value(found, n), n, size) for n in names}
        with warnings.catch_warnings():
            # What cannot be compiled is run by Python, as fast as it would be anyway.
            warnings.simplefilter("ignore")
            values = self._compiled(self._columns(rows))
        return {n: self._rows(values[n], n, size) for n in names}

    def _checked(self, size: int) -> Trace:
        """The trace of the first draws at once, compared with single runs at both ends."""
        found = self.vectorised(slice(0, size))
        for i in (0, size - 1):
            self._compare(found, i, size)
        return found

    def _rows(self, given: TensorLike, name: str, size: int) -> np.ndarray:
        """The values of one site from a vectorised run, shape (size, *shape)."""
        value = as_array(given)
        shape = as_array(_value(self.first, name)).shape
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

    def _compare(self, found: Trace, i: int, size: int) -> None:
        """Run draw `i` alone with all values of the vectorised run; every number has to agree."""
        latent = [n for n, s in found.items() if s.kind == "sample" and not s.observed]
        values = {n: self._rows(found[n].value, n, size)[i] for n in latent}
        alone = self.run(substitute(None, values))
        if alone.keys() != found.keys():
            raise _disagrees(next(iter(alone.keys() ^ found.keys())))
        for name, site in alone.items():
            if site.has_density and hasattr(site.fn, "log_prob"):
                pair: tuple[float | np.ndarray, float | np.ndarray] = (
                    _summed(found[name], i, size),
                    float(as_array(site.compute_log_prob()).sum()),
                )
            elif site.kind == "deterministic":
                pair = self._rows(found[name].value, name, size)[i], as_array(site.value)
            else:
                continue
            _check_agreement(name, site, *pair)

    # ------------------------------------------------------------------------------- one by `vmap`

    def mapped(self, names: Sequence[str], rows: slice) -> Arrays:
        """Return the values of the named sites of a block by one run under `vmap`."""
        first = rows.start == 0
        size = rows.stop - rows.start

        def one(_: TensorBase, values: dict[str, TensorBase]) -> tuple[dict[str, TensorBase], ...]:
            found = self.run(*self._fixed(values))
            wanted = {n: as_value(_value(found, n), "value") for n in names}
            if not first:
                return (wanted,)
            sites = {n: s for n, s in found.items() if s.kind in ("sample", "deterministic")}
            densities = {
                n: s.compute_log_prob().sum()
                for n, s in sites.items()
                if s.has_density and hasattr(s.fn, "log_prob")
            }
            drawn = {n: as_value(s.value, "value") for n, s in sites.items() if not s.observed}
            return wanted, drawn, densities

        draws = {n: wrap(x[rows]) for n, x in (self.samples | self.computed).items()}
        everything = vmap(one, randomness="different")(wrap(np.zeros(size)), draws)
        parts = [{n: to_host(x.array) for n, x in part.items()} for part in everything]
        if first:
            for i in (0, size - 1):
                self._compare_mapped(parts[1], parts[2], i)
        return parts[0]

    def _compare_mapped(self, values: Arrays, densities: Arrays, i: int) -> None:
        """Run draw `i` alone with all values that it has among the others; see `_compare`."""
        latent = [n for n, s in self.first.items() if s.kind == "sample" and not s.observed]
        fixed = {n: values[n][i] for n in latent} | {n: x[i] for n, x in self.computed.items()}
        for name, site in self.run(*self._fixed(fixed)).items():
            if name in densities:
                alone = float(as_array(site.compute_log_prob()).sum())
                _check_agreement(name, site, densities[name][i], alone)
            elif site.kind == "deterministic":
                _check_agreement(name, site, values[name][i], as_array(site.value))

    def _fixed(self, values: Mapping[str, np.ndarray | TensorBase]) -> tuple[Handler, ...]:
        """Handlers that give sites the values of one draw."""
        fixed = substitute(None, values)
        return (fixed, Computed(values)) if self.computed else (fixed,)

    # -------------------------------------------------------------------------------- draw by draw

    def one_by_one(self, names: Sequence[str], rows: slice) -> Arrays:
        """Return the values of the named sites of a block, one run per draw."""
        found: dict[str, list[np.ndarray]] = {name: [] for name in names}
        given = self.samples | self.computed
        for i in range(rows.start, rows.stop):
            run = self.run(*self._fixed({n: x[i] for n, x in given.items()}))
            for name in names:
                found[name].append(as_array(_value(run, name)))
        return {name: _stacked(name, values, self.first) for name, values in found.items()}

    def likelihood(self, values: dict[str, TensorBase]) -> dict[str, TensorBase]:
        """Return the log density of each observation at one draw; compiled by a `DrawMap`."""
        found = self.run(substitute(None, values))
        out: dict[str, TensorBase] = {}
        for name in found.observation_nodes:
            found[name].compute_log_prob()
            density = found[name].unscaled_log_prob
            assert density is not None  # it has just been computed
            out[name] = density
        return out


# ------------------------------------------------------------------------------------------ helpers


def _value(found: Trace, name: str) -> TensorBase:
    return found.returned if name == "_RETURN" else found[name].value


def _stacked(name: str, values: list[np.ndarray], first: Trace) -> np.ndarray:
    shapes = {value.shape for value in values}
    if len(shapes) > 1:
        raise _uneven(name, shapes, first)
    return np.stack(values)


def _uneven(name: str, shapes: set[tuple[int, ...]], first: Trace) -> ShapeError:
    return ShapeError(
        f"site {name!r}",
        expected="the same shape for every draw",
        got=" and ".join(map(str, sorted(shapes)[:2])),
        fix="leave it out of return_sites",
        at=None if name == "_RETURN" else first[name].location,
    )


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)


def _summed(site: Site, i: int, size: int) -> float:
    """The log density of draw `i` at a site of a vectorised run."""
    log_prob = as_array(site.compute_log_prob())
    free = -(site.free_dim or 0)
    if free and log_prob.ndim >= free and log_prob.shape[-free] == size:
        log_prob = np.moveaxis(log_prob, -free, 0)[i]
    return float(log_prob.sum())


def _check_agreement(
    name: str, site: Site, together: float | np.ndarray, alone: float | np.ndarray
) -> None:
    rtol = RTOL.get(as_array(site.value).dtype.str[1:], 1e-8)
    scale = np.max(np.abs(alone), initial=1.0, where=np.isfinite(alone))
    if not np.allclose(together, alone, rtol=rtol, atol=rtol * scale, equal_nan=True):
        raise _disagrees(name)


def _nothing_to_predict(observed: Sequence[str], of_guide: bool) -> ArgumentError:
    """The error for a model all of whose sites have values already."""
    names = ", ".join(map(repr, observed))
    if of_guide and not names:
        return ArgumentError(
            "Predictive",
            expected="a site of the model that the guide has not",
            got="a guide with all sites of the model; one that first runs without data takes them "
            "for latent",
            fix="run the guide with the data once, guide(x, y), before it predicts",
        )
    return ArgumentError(
        "Predictive",
        expected="a site to draw: one with neither samples nor data, or a deterministic one",
        got=f"data at {names}, samples everywhere else" if names else "samples of every site",
        fix="call the model without the data: obs=None draws the site; where the model needs them "
        "for their sizes, Predictive(handlers.uncondition(model), ...)"
        if names
        else "name what you want in return_sites",
    )


def _disagrees(name: str) -> ModelError:
    return ModelError(
        f"site {name!r} differs when several draws are run at once",
        expected="the same numbers as for each draw alone",
        got="others",
        fix="index from the right, and write sums with dim=-1, so that the model takes batches",
    )
