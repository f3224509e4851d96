"""`SVIResult`: what an optimisation found, and how far to believe it.

Parameters and losses are there at once. Draws of the guide are made when they are asked for, along
with the importance ratios p(x, z) / q(z), which say whether the guide can stand for the posterior
(guide_quality.py). From there on a fit is like any other result: `Draws` with a summary,
predictions and an ArviZ export, as one chain.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from probtorch.autograd.modes import no_grad
from probtorch.autograd.vmap import vmap
from probtorch.backends.registry import to_host
from probtorch.core.arguments import count_of
from probtorch.core.rng import Generator, generator_of
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.transforms.registry import biject_to
from probtorch.effects.enumerable import can_enumerate
from probtorch.effects.handlers import seed as seed_handler
from probtorch.effects.handlers import substitute, uncondition
from probtorch.effects.trace import plate_info
from probtorch.errors import AutogradError, InferenceError
from probtorch.factories import zeros
from probtorch.infer.labels import array_arguments, labels_of, with_gaps
from probtorch.infer.objectives.runs import Run, Vectorised, is_latent, run_pair
from probtorch.infer.potential import ModelTarget, Target
from probtorch.infer.prediction.called_model import CalledModel
from probtorch.infer.prediction.predictive import Predictive
from probtorch.infer.results import SampledDraws, make_draws
from probtorch.infer.vi.guide_quality import Quality, judge, quality_of
from probtorch.infer.vi.with_ratios import WithRatios

if TYPE_CHECKING:
    from probtorch.core.typed import Tree
    from probtorch.infer.objectives.protocol import Guide, Model
    from probtorch.infer.vi.svi import SVI


__all__ = ["SVIResult"]

NUM_DRAWS = 1000

# Values and unconstrained values by site, log densities of model, guide and what the guide lacks.
_Part: TypeAlias = tuple[
    dict[str, np.ndarray], dict[str, np.ndarray], np.ndarray, np.ndarray, np.ndarray
]


@dataclass(frozen=True, eq=False, repr=False)
class SVIResult(WithRatios):
    """The end of `SVI.run`.

    Attributes
    ----------
    params : dict of str to Tensor
        Constrained values of the `param` sites.
    losses : ndarray, shape (steps,)
        The loss before each step, in nats.
    svi : SVI
        What ran; it can go on.
    args, kwargs
        What model and guide were called with.
    interrupted : bool
        Whether Ctrl-C ended the run.
    seconds : float
        How long it took.
    converged : bool or None
        Whether the rule given as `until` ended the run; None without one.

    Notes
    -----
    Draws use the parameters of the result, whatever steps come after. The weights of modules that
    are no `param` sites are not part of it.
    """

    params: dict[str, TensorBase]
    losses: np.ndarray
    svi: SVI
    args: tuple[object, ...] = ()
    kwargs: dict[str, object] = field(default_factory=dict)
    interrupted: bool = False
    seconds: float = 0.0
    converged: bool | None = None
    _made: dict[object, SampledDraws] = field(default_factory=dict)

    def draws(self, num_draws: int = NUM_DRAWS, *, seed: int | Generator = 0) -> SampledDraws:
        """Return independent draws of the guide, as one chain.

        Parameters
        ----------
        num_draws : int
        seed : int or Generator
            Where they are drawn from; an int gives the same draws every time.

        Returns
        -------
        SampledDraws
            Latent and deterministic sites. `sample_stats` has ``lp`` (log joint density) and
            ``log_weight`` (smoothed importance weights, normalised). ``attrs["pareto_k"]`` is the
            shape of their tail, ``attrs["sd_ratio"]`` how much wider they make the number called
            ``attrs["sd_ratio_of"]``.

        Warns
        -----
        GuideWarning
            If `pareto_k` is above what so many draws can bear, or the guide is too narrow.

        Notes
        -----
        Where plates work on subsamples, draws are of the sites outside of these plates, and there
        is no `pareto_k`: the density of a subsample is not that of the data.
        """
        count = count_of("SVIResult.draws", "num_draws", num_draws, expected="a number of draws")
        key = (count, seed)
        if isinstance(seed, Generator) or key not in self._made:
            generator = generator_of(seed)
            made = self._draw(count, generator)
            judge(made)
            if isinstance(seed, Generator):
                return made
            self._made[key] = made
        return self._made[key]

    def distribution(self) -> Distribution:
        """Return the guide as a `Distribution` of the unconstrained vector.

        For what takes one: ``IndependentMH(model, proposal=result.distribution())`` proposes from
        the guide itself, where the result alone would give its mean and covariance.

        Raises
        ------
        InferenceError
            If the guide is written by hand, or has no such distribution: see
            `AutoGuide.free_distribution`.
        """
        guide = self.svi.guide
        if not hasattr(guide, "free_distribution"):
            raise InferenceError(
                "SVIResult.distribution()",
                expected="an automatic guide",
                got=getattr(guide, "__name__", type(guide).__name__),
                fix="state a distribution for each site, {name: distribution}, or give the result "
                "itself, whose moments are taken",
            )
        with contextlib.ExitStack() as stack:
            stack.enter_context(no_grad())
            stack.enter_context(self.svi.params.activate())
            stack.enter_context(substitute(None, self.params))
            found: Distribution = guide.free_distribution()
        return found

    def predict(
        self, *args: object, seed: int | Generator | None = None, **kwargs: object
    ) -> dict[str, np.ndarray]:
        """Draw what the model predicts, one replication per draw; see `SampledDraws.predict`.

        Where the model is no density on R^n (minibatches, discrete sites), 1000 draws of the guide
        are made for it, of all rows.
        """
        draws = self.draws()
        if draws.target is not None:
            return draws.predict(*args, seed=seed, **kwargs)
        model, guide = self.svi.model, self.svi.guide
        sites: list[str] = []
        with contextlib.ExitStack() as stack:
            stack.enter_context(no_grad())
            stack.enter_context(self.svi.params.activate())
            stack.enter_context(substitute(None, self.params))
            if not (args or kwargs):
                args, kwargs = self.args, self.kwargs
                with self.svi.feed.activate():
                    sites = run_pair(
                        model, guide, args, kwargs, allow_missing=True
                    ).model.observation_nodes
                model = uncondition(model)
            predictive = Predictive(
                model, guide=guide, num_samples=NUM_DRAWS, return_sites=sites, seed=seed
            )
            found = predictive(*args, **kwargs)
        return {name: to_host(value.array)[None] for name, value in found.items()}

    # ------------------------------------------------------------------------------------ drawing

    def _draw(self, count: int, generator: Generator) -> SampledDraws:
        model, guide = self.svi.model, self.svi.guide
        with contextlib.ExitStack() as stack:
            stack.enter_context(no_grad())
            stack.enter_context(self.svi.params.activate())
            stack.enter_context(self.svi.feed.activate())
            stack.enter_context(substitute(None, self.params))
            target = None
            with seed_handler(None, generator):
                first = run_pair(model, guide, self.args, self.kwargs, allow_missing=True)
                found = _Drawn(first, count)
                found.fill(model, guide, self.args, self.kwargs)
            subsampled = found.subsampled
            called = CalledModel(model, self.args, self.kwargs, (), ())
            if not subsampled:
                # A model with discrete latents is no density on R^n.
                with contextlib.suppress(InferenceError):
                    target = ModelTarget(model, self.args, self.kwargs, whole=True)
        found.sum_out(target)
        quality, stats = found.judged()
        attrs = {
            "inference_library": "probtorch",
            "inference_method": "SVI",
            "guide": getattr(guide, "__name__", type(guide).__name__),
            "objective": getattr(self.svi.objective, "__name__", type(self.svi.objective).__name__),
            "num_steps": int(self.svi.num_steps),
            "sampling_time": self.seconds,
            "interrupted": self.interrupted,
            **({} if self.converged is None else {"converged": self.converged}),
            **quality.attrs,
        }
        if target is not None and found.covers(target):
            return make_draws(target, found.positions(target)[None], stats, attrs)
        return self._unlabelled(found, stats, attrs, None if subsampled else called)

    def _unlabelled(
        self,
        found: _Drawn,
        stats: dict[str, np.ndarray],
        attrs: dict[str, object],
        call: CalledModel | None,
    ) -> SampledDraws:
        """Draws of a model that is no density on R^n: as they came."""
        info = plate_info(found.first.model)
        values = {
            name: x[None]
            for name, x in found.values.items()
            if not any(f.subsampled for f in found.first.model[name].plates)
        }
        groups: dict[str, Mapping[str, np.ndarray]] = {}
        if call is not None:
            arrays = array_arguments(call.model, self.args, self.kwargs)
            labels = labels_of(found.first.model, values, arrays)
            observed = with_gaps(labels.observed, [found.first.model])
            groups = {"observed_data": observed, "constant_data": labels.constant}
            latent = tuple(n for n in found.latent if n in values)
            unseen = tuple(n for n in found.latent if n not in values)
            call = replace(call, latent=latent, observed=tuple(observed), unseen=unseen)
        shown = {*values, *groups.get("observed_data", ())}
        dims = {n: info.dims[n] for n in shown if any(info.dims.get(n, ()))}
        used = {d for names in dims.values() for d in names}
        coords = {d: list(c) for d, c in info.coords.items() if d in used}
        name = getattr(self.svi.model, "__name__", type(self.svi.model).__name__)
        attrs = {"model_name": name, **attrs}
        return SampledDraws(
            posterior=values, sample_stats=stats, dims=dims, coords=coords, groups=groups,
            attrs=attrs, call=call,
        )  # fmt: skip

    def __repr__(self) -> str:
        last = f", last loss {self.losses[-1]:.6g}" if len(self.losses) else ""
        note = ", interrupted" if self.interrupted else ", converged" if self.converged else ""
        return f"SVIResult({len(self.losses)} steps{last}{note})"


class _Drawn:
    """Many draws of a guide with their densities, as arrays with the draws in front."""

    def __init__(self, first: Run, count: int) -> None:
        self.first, self.count = first, count
        sites = first.model.nodes
        self.latent = [n for n, s in sites.items() if is_latent(s)]
        self.names = [*self.latent, *(n for n, s in sites.items() if s.kind == "deterministic")]
        self.subsampled = any(f.subsampled for s in sites.values() for f in s.plates)
        self.values: dict[str, np.ndarray] = {}
        self.free: dict[str, np.ndarray] = {}
        # Finite discrete sites that the guide does not have: summed out of the model if possible.
        guided = first.guide.nodes
        self.left = [
            n for n in self.latent if guided.get(n) is sites[n] and can_enumerate(sites[n])
        ]
        self.log_joint = self.log_guide = self.log_left = self.log_ratio = np.empty(0)

    def fill(
        self, model: Model, guide: Guide, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> None:
        """Draw: all at once if model and guide bear it, else by `vmap`, else one by one."""
        runs: Iterable[Run] | None = None
        if self.count > 1 and not self.subsampled:
            with contextlib.suppress(InferenceError):
                runs = [Vectorised(self.count, allow_missing=True)(model, guide, args, kwargs)]
        parts = None if runs is None else [self._part(run) for run in runs]
        if parts is None and self.count > 1 and not self.subsampled:
            # Refused where Python sees what differs between draws.
            with contextlib.suppress(AutogradError):
                part = self._mapped(model, guide, args, kwargs)
                if all(self._as_alone(i, part, model, guide, args, kwargs) for i in (0, -1)):
                    parts = [part]
        if parts is None:
            runs = (
                run_pair(model, guide, args, kwargs, allow_missing=True) for _ in range(self.count)
            )
            parts = [self._part(run) for run in runs]
        self.values = {n: np.concatenate([p[0][n] for p in parts]) for n in self.names}
        self.free = {n: np.concatenate([p[1][n] for p in parts]) for n in parts[0][1]}
        self.log_joint = np.concatenate([p[2] for p in parts])
        self.log_guide = np.concatenate([p[3] for p in parts])
        self.log_left = np.concatenate([p[4] for p in parts])
        self.log_ratio = self.log_joint - self.log_guide

    def _part(self, run: Run) -> _Part:
        """Values, unconstrained values, log densities of model and guide, of a run's particles."""
        values = {n: self._rows(run, n, run.model[n].value, self._shape(n)) for n in self.names}
        free = {}
        for name in self.latent:
            site = run.model[name]
            if not site.fn.is_discrete:
                transform = biject_to(site.fn.support)
                shape = tuple(transform.inverse_shape(self._shape(name)))
                free[name] = self._rows(run, name, transform.inv(site.value), shape)
        found = [run.log_model(), run.log_guide()]
        found += [run.per_particle(run.model[n].compute_log_prob()) for n in self.left]
        joint, guide, *left = (_vector(x, run.size) for x in found)
        return values, free, joint, guide, np.sum(left, axis=0) + np.zeros(run.size)

    def _mapped(
        self, model: Model, guide: Guide, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> _Part:
        """What `_part` returns, of one run for all draws that counts its dims from either side."""

        def one(_: TensorBase) -> Tree:
            run = run_pair(model, guide, args, kwargs, allow_missing=True)
            values = {n: run.model[n].value for n in self.names}
            free = {
                n: biject_to(run.model[n].fn.support).inv(values[n])
                for n in self.latent
                if not run.model[n].fn.is_discrete
            }
            found = [run.log_model(), run.log_guide()]
            return values, free, found, [run.model[n].compute_log_prob().sum() for n in self.left]

        with no_grad():
            values, free, found, left = vmap(one, randomness="different")(zeros(self.count))
        values, free = ({n: to_host(x.array) for n, x in d.items()} for d in (values, free))
        joint, guided, *left = (_vector(x, self.count) for x in (*found, *left))
        return values, free, joint, guided, np.sum(left, axis=0) + np.zeros(self.count)

    def _as_alone(
        self,
        i: int,
        part: _Part,
        model: Model,
        guide: Guide,
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> bool:
        """Whether the density of draw `i` is what a run of it alone says: a model may draw with
        NumPy, which is not seen.
        """
        values, _, joint, *_ = part
        fixed = substitute(None, {n: values[n][i] for n in self.latent})
        with no_grad():
            run = run_pair(
                model,
                guide,
                args,
                kwargs,
                handlers=(fixed,),
                model_handlers=lambda: (fixed,),
                allow_missing=True,
            )
        alone = _vector(run.log_model(), 1)[0]
        single = any(x.dtype == np.float32 for x in values.values())
        return bool(np.isclose(alone, joint[i], rtol=1e-3 if single else 1e-8, equal_nan=True))

    def sum_out(self, target: ModelTarget | None) -> None:
        """Put the density without the sites in `left` in place of the one at their draws.

        Drawn from the prior they would make the importance ratios say nothing of the guide.
        """
        if not self.left:
            return
        if target is None or set(target.summed) != set(self.left):
            self.log_ratio = np.full(self.count, np.nan)
            return
        for name in self.left:
            del self.values[name]
        self.log_joint = target.log_joint(self.positions(target))
        self.log_ratio = self.log_joint - (self.log_guide - self.log_left)

    def _shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.first.model[name].value.array.shape)

    def _rows(self, run: Run, name: str, value: TensorBase, shape: tuple[int, ...]) -> np.ndarray:
        array = to_host(value.array)
        if array.size == math.prod(shape):
            return np.broadcast_to(array.reshape(shape), (run.size, *shape)).copy()
        return array.reshape(run.size, *shape)

    def covers(self, target: Target) -> bool:
        """Whether the latent sites are those of a density on R^n."""
        return set(target.slots) <= set(self.free)

    def positions(self, target: Target) -> np.ndarray:
        """Return the draws as points of the target, shape (count, dim)."""
        q = np.empty((self.count, target.dim))
        for name, slot in target.slots.items():
            q[:, slot.start : slot.stop] = self.free[name].reshape(self.count, -1)
        return q

    def judged(self) -> tuple[Quality, dict[str, np.ndarray]]:
        """Return what the importance ratios say, and sample statistics."""
        stats = {"lp": self.log_joint[None]}
        quality = Quality() if self.subsampled else quality_of(self.log_ratio, self.free)
        if quality.log_weight is not None:
            stats["log_weight"] = quality.log_weight[None]
        return quality, stats


def _vector(x: TensorBase, size: int) -> np.ndarray:
    array = np.asarray(to_host(x.array) if isinstance(x, TensorBase) else x, np.float64)
    return np.broadcast_to(array.reshape(-1), (size,)).copy()


explain_calls(globals(), methods={"SVIResult": "draws summary"})
