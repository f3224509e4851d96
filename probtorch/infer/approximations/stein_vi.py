"""`SteinVI`: a mixture of guides whose parameters are particles of SVGD.

Each particle is a whole set of parameters of one guide. What pulls it is the gradient of the bound
of the mixture [ronning2025]_, the mean over particles i of log p(x, z) - log mean_j q_j(z) with z
drawn from its own guide; what keeps it from the others is a kernel between parameters
(stein_kernels.py). As the mean over the mixture of the score of log mean_j q_j is 0, only the path
of the draw is differentiated.

All particles and draws are one run of guide and model under nested `vmap`. Names are NumPyro's.
"""

from __future__ import annotations

import copy
import math
import os
import time
from collections.abc import Callable, Sequence

import numpy as np

from probtorch.autograd.modes import no_grad
from probtorch.autograd.transforms import grad_and_value
from probtorch.autograd.vmap import vmap
from probtorch.backends.registry import to_host
from probtorch.core.arguments import count_of
from probtorch.core.dispatch import wrap
from probtorch.core.rng import Generator, generator_of
from probtorch.core.signatures import explain_calls, explained
from probtorch.core.tensor_base import TensorBase
from probtorch.distributions.transforms.registry import transform_to
from probtorch.distributions.transforms.transform import Transform
from probtorch.distributions.uniform import Delta
from probtorch.effects.handlers import seed as seed_handler
from probtorch.effects.handlers import substitute, trace
from probtorch.effects.params import ParamStore
from probtorch.effects.runtime import Handler
from probtorch.effects.site import Site
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer.approximations.stein_kernels import SteinKernel, stein_force
from probtorch.infer.approximations.stein_record import SteinRecord
from probtorch.infer.approximations.stein_result import SteinVIResult, Tensors
from probtorch.infer.checkpoint import Checkpoint
from probtorch.infer.control import Interrupt
from probtorch.infer.guides.base import AutoGuide
from probtorch.infer.model_calls import check_model, check_model_call
from probtorch.infer.model_runs import lifted
from probtorch.infer.objectives.runs import Run, is_latent, is_precise, precision, run_pair
from probtorch.infer.run_identity import options_of
from probtorch.infer.starts.path_starts import normal_numbers
from probtorch.infer.vi.step_progress import StepProgress
from probtorch.infer.vi.updater import Optim, Updater
from probtorch.ops.exponential_sums import logsumexp

__all__ = ["SteinVI"]

# How far particles are put apart that all begin in one place, on the unconstrained scale.
APART = 0.1


def _none(name: str) -> bool:
    return False


class SteinVI:
    """Variational inference by a mixture of guides, with Stein's forces between them.

    Parameters
    ----------
    model, guide : callable
        The guide's draws have pathwise gradients; an automatic one is made anew for each particle,
        so that its starting strategy (`init_to_uniform`, say) scatters them.
    optim : Optimizer class, PyroOptim or callable
        ``Adagrad({"lr": 0.1})``, or a class with its options as keywords.
    kernel_fn : SteinKernel
        Between unconstrained parameters, `RBFKernel()` as a rule.
    num_stein_particles : int
        Guides in the mixture.
    num_elbo_particles : int
        Draws of each per step.
    loss_temperature : float
        Weight of the model's log density.
    repulsion_temperature : float
        Weight of the kernel's repulsion.
    non_mixture_guide_params_fn : callable, optional
        From the name of a parameter of the guide to whether all particles share it, as they share
        those of the model.
    seed : int or Generator, optional
        The default generator if None.
    **optim_args
        Options of an optimizer given as a class.

    Attributes
    ----------
    num_steps : int

    Raises
    ------
    ArgumentError
        For a kernel that is none, counts below 1, or temperatures that are not positive.

    Notes
    -----
    With one particle it is the evidence lower bound; with `AutoDelta` particles are points, and it
    is `SVGD`. Steps run in Python. Plates that draw subsamples are refused.

    References
    ----------
    [ronning2025]_, [liu2016]_.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import AutoNormal, RBFKernel, SteinVI
    >>> from probtorch.optim import Adam
    >>> def model(y):
    ...     mu = probtorch.sample("mu", dist.Normal(0.0, 1.0))
    ...     with probtorch.plate("data", len(y)):
    ...         probtorch.sample("y", dist.Normal(mu, 1.0), obs=y)
    >>> stein = SteinVI(model, AutoNormal(model), Adam({"lr": 0.05}), RBFKernel(), 2, seed=0)
    >>> result = stein.run(100, probtorch.tensor([1.0, 2.0, 3.0]), progress_bar=False)
    >>> result.params["mu_auto_loc"].shape, bool(result.losses[-1] < result.losses[0])
    (Size([2]), True)
    """

    @explained("SteinVI")
    def __init__(
        self,
        model: Callable[..., object],
        guide: Callable[..., object],
        optim: Optim,
        kernel_fn: SteinKernel,
        num_stein_particles: int = 10,
        num_elbo_particles: int = 10,
        loss_temperature: float = 1.0,
        repulsion_temperature: float = 1.0,
        non_mixture_guide_params_fn: Callable[[str], bool] = _none,
        *,
        seed: int | Generator | None = None,
        **optim_args: object,
    ) -> None:
        check_model(model, "SteinVI")
        check_model(guide, "SteinVI", "guide")
        if not isinstance(kernel_fn, SteinKernel):
            raise ArgumentError(
                "SteinVI(kernel_fn)",
                expected="a kernel, such as RBFKernel()",
                got=f"{kernel_fn!r:.60}",
                fix="write SteinVI(model, guide, optim, RBFKernel())",
            )
        if not (loss_temperature > 0.0 and repulsion_temperature >= 0.0):
            raise ArgumentError(
                "SteinVI(loss_temperature=..., repulsion_temperature=...)",
                expected="a positive number, and one that is not negative",
                got=f"{loss_temperature!r} and {repulsion_temperature!r}",
                fix="leave them out",
            )
        self.model, self.guide, self.kernel_fn = model, guide, kernel_fn
        self.num_stein_particles = count_of("SteinVI", "num_stein_particles", num_stein_particles)
        self.num_elbo_particles = count_of("SteinVI", "num_elbo_particles", num_elbo_particles)
        self.loss_temperature = float(loss_temperature)
        self.repulsion_temperature = float(repulsion_temperature)
        self.non_mixture_guide_params_fn = non_mixture_guide_params_fn
        self.num_steps = 0
        self._generator = generator_of(seed)
        self._seeded = None if seed is None else self._generator
        self._optim = options_of(optim, optim_args)
        self._updater = Updater(optim, optim_args)
        self._leaves: Tensors = {}
        self._shared: Tensors = {}
        self._transforms: dict[str, Transform] = {}
        # Whether the guide draws nothing, so that particles are points.
        self._points = False

    # --------------------------------------------------------------------------------------- steps

    def step(self, *args: object, **kwargs: object) -> float:
        """Move all particles once; return the loss before.

        Parameters
        ----------
        *args, **kwargs
            What model and guide are called with.

        Returns
        -------
        float
            Minus an estimate of the bound of the mixture, in nats (at a temperature of 1).

        Raises
        ------
        InferenceError
            If the loss or a gradient is not finite, a draw of the guide has no pathwise gradient,
            or a plate works on a subsample.
        """
        args, kwargs = self._meet(args, kwargs)

        def bound(leaves: Tensors, shared: Tensors) -> TensorBase:
            return self._bound(leaves, shared, args, kwargs)

        with precision(self.guide), seed_handler(None, self._generator):
            (pulls, common), value = grad_and_value(bound, (0, 1))(self._leaves, self._shared)
        loss = -float(value.item())
        m = self.num_stein_particles
        gradients = _matrix(pulls) * m
        if not (math.isfinite(loss) and np.isfinite(gradients).all()):
            raise InferenceError(
                f"SteinVI, step {self.num_steps + 1}",
                expected="a finite loss with finite gradients",
                got=f"a loss of {loss:.6g}",
                fix="take smaller steps, or start elsewhere",
            )
        kernel, slope = self.kernel_fn.evaluate(_matrix(self._leaves), "norm", self._parts())
        force = stein_force(kernel, slope, gradients, self.repulsion_temperature)
        for name, (start, stop) in self._parts().items():
            leaf = self._leaves[name]
            part = -force[:, start:stop].reshape(leaf.array.shape)
            leaf.grad = wrap(part.astype(leaf.array.dtype))
        for name, leaf in self._shared.items():
            leaf.grad = -common[name].detach()
        self._updater.step()
        self.num_steps += 1
        return loss

    def run(
        self,
        num_steps: int,
        *args: object,
        progress_bar: bool = True,
        callback: Callable[[int, float], object] | None = None,
        checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
        checkpoint_every: float | None = None,
        max_seconds: float | None = None,
        **kwargs: object,
    ) -> SteinVIResult:
        """Take many steps.

        Parameters
        ----------
        num_steps : int
        *args, **kwargs
            What model and guide are called with.
        progress_bar : bool
            Show steps and smoothed loss on stderr.
        callback : callable, optional
            ``callback(step, loss)`` after each step; returning True ends the run.
        checkpoint : path or Checkpoint, optional
            A folder in which the particles are saved as the run goes on, for a run that is killed:
            the same call goes on from there, bit for bit. `num_steps` and the losses are those of
            the whole run.
        checkpoint_every : float, optional
            Seconds between two checkpoints; 5 by default.
        max_seconds : float, optional
            End the run after this time, with what there is.

        Returns
        -------
        SteinVIResult
            Ctrl-C ends the run after the step at hand, and writes a last checkpoint.

        Raises
        ------
        InferenceError
            As `step`.
        ArgumentError
            If the folder has a run with other settings, another seed, another model or other data.
        FileError
            If the folder cannot be written to when the run begins, or what is there cannot be read.
        """
        count = count_of("SteinVI.run", "num_steps", num_steps, 0)
        check_model_call(self.model, args, kwargs, "stein.run", "num_steps, ")
        began = time.perf_counter()
        met = self._meet(args, kwargs)
        # From here on the default generator stands where a run that is saved had it.
        record = SteinRecord(
            "SteinVI", self, self.kernel_fn, checkpoint, checkpoint_every, args, kwargs,
            lambda: self._known(*met), began,
        )  # fmt: skip
        losses = record.losses
        shown = StepProgress(count, done=record.done, shown=progress_bar)
        with record, Interrupt("SteinVI.run", max_seconds) as interrupt, shown as progress:
            interrupt.shows(lambda: self._so_far(args, kwargs, losses, record.seconds))
            while record.done < count and not (record.stopped or interrupt.asked):
                losses.append(self.step(*args, **kwargs))
                progress.update(losses[-1])
                if callback is not None:
                    record.stopped = callback(len(losses) - 1, losses[-1]) is True
                record.update()
            record.close()
        return SteinVIResult(
            self.get_params(), np.array(losses), self, args, kwargs, record.seconds,
            interrupt.heeded,
        )  # fmt: skip

    def _so_far(
        self,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        losses: Sequence[float],
        seconds: float,
    ) -> SteinVIResult | None:
        """What a run would return that ended now, around a copy of what goes on."""
        if not losses:
            return None
        params, stein = self.get_params(), copy.deepcopy(self)
        return SteinVIResult(params, np.array(losses), stein, args, kwargs, seconds, True)

    def get_params(self) -> Tensors:
        """Return copies of the constrained parameters, of the guides (particles, *shape)."""
        with no_grad():
            found = self._constrained(self._leaves) | self._constrained(self._shared)
        return {name: wrap(to_host(x.array).copy()) for name, x in found.items()}

    def __repr__(self) -> str:
        names = (getattr(f, "__name__", type(f).__name__) for f in (self.model, self.guide))
        return f"SteinVI({', '.join(names)}, {self.num_stein_particles} particles)"

    # ----------------------------------------------------------------------------------- particles

    def _meet(
        self, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        """Make the particles at the first call; return the arguments in the guide's precision."""
        if is_precise(self.guide):
            args, kwargs = lifted(args), lifted(kwargs)
        if self._leaves:
            return args, kwargs
        children = self._generator.spawn(self.num_stein_particles)
        found: list[dict[str, np.ndarray]] = []
        shared: set[str] = set()
        for child in children:
            guide = copy.deepcopy(self.guide) if _automatic(self.guide) else self.guide
            store = ParamStore()
            with precision(guide), store.activate(), seed_handler(None, child), no_grad():
                run = run_pair(self.model, guide, args, kwargs)
                _check(run)
                self._points = not any(map(_is_random, run.guide.nodes.values()))
                names = [n for n, s in run.guide.nodes.items() if s.kind == "param"]
            values = {n: to_host(store.unconstrained(n).array) for n in store}
            own = [n for n in names if not self.non_mixture_guide_params_fn(n)]
            shared = set(values) - set(own)
            found.append(values)
            self._transforms = {n: transform_to(store._constraints[n]) for n in store}
        if _automatic(self.guide):
            with precision(self.guide), seed_handler(None, self._generator), no_grad():
                self.guide.setup(*args, **kwargs)  # type: ignore[attr-defined]  # an automatic one
        first = found[0]
        if not set(first) - shared:
            raise InferenceError(
                "SteinVI",
                expected="a guide with parameters, which are the particles",
                got="none, or none that particles do not share",
                fix="state them with param(), or use AutoNormal(model)",
            )
        stacked = {n: np.stack([x[n] for x in found]) for n in first if n not in shared}
        if all((x == x[:1]).all() for x in stacked.values()) and len(found) > 1:
            stacked = {n: x + APART * self._noise(x) for n, x in stacked.items()}
        self._leaves = {n: wrap(x).requires_grad_() for n, x in stacked.items()}
        self._shared = {n: wrap(first[n].copy()).requires_grad_() for n in sorted(shared)}
        self._updater.adopt(self._leaves | self._shared)
        if self._updater.needs_closure:
            raise ArgumentError(
                "SteinVI(optim=...)",
                expected="an optimizer that moves along a gradient",
                got="LBFGS, which asks for losses",
                fix='use Adagrad({"lr": 0.1}) or Adam({"lr": 0.05})',
            )
        return args, kwargs

    def _settings(self) -> dict[str, object]:
        """What a checkpoint has to agree in, beside kernel and seed."""
        leaves = {**self._leaves, **self._shared}
        return {
            **self._optim,
            "num_stein_particles": self.num_stein_particles,
            "num_elbo_particles": self.num_elbo_particles,
            "loss_temperature": self.loss_temperature,
            "repulsion_temperature": self.repulsion_temperature,
            "params": {name: tuple(leaf.array.shape) for name, leaf in leaves.items()},
            "shared": list(self._shared),
        }

    def _known(self, args: tuple[object, ...], kwargs: dict[str, object]) -> np.ndarray:
        """The bound at draws of a fixed seed, by which model and guide are known again."""
        with precision(self.guide), seed_handler(None, Generator(0)), no_grad():
            bound = self._bound(self._leaves, self._shared, args, kwargs)
        return np.array([float(bound.item())])

    def _noise(self, like: np.ndarray) -> np.ndarray:
        return normal_numbers(self._generator, like.shape).astype(like.dtype)

    def _parts(self) -> dict[str, tuple[int, int]]:
        """Where each parameter is in a particle."""
        found, start = {}, 0
        for name, leaf in self._leaves.items():
            stop = start + leaf.array.size // self.num_stein_particles
            found[name] = (start, stop)
            start = stop
        return found

    def _constrained(self, leaves: Tensors) -> Tensors:
        return {name: self._transforms[name](leaf) for name, leaf in leaves.items()}

    # ---------------------------------------------------------------------------------------- bound

    def _bound(
        self,
        leaves: Tensors,
        shared: Tensors,
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> TensorBase:
        """The bound of the mixture, from draws of all guides."""
        values, common = self._constrained(leaves), self._constrained(shared)
        fixed = {name: x.detach() for name, x in values.items()}

        def draw(own: Tensors, _: TensorBase) -> TensorBase:
            run, log_mixture = self._drawn(own, fixed, common, args, kwargs)
            return self.loss_temperature * run.log_model() - log_mixture

        noise = wrap(np.zeros(self.num_elbo_particles))
        each = vmap(draw, in_dims=(None, 0), randomness="different")
        return vmap(lambda own: each(own, noise).mean(), randomness="different")(values).mean()

    def _drawn(
        self,
        own: Tensors,
        others: Tensors,
        shared: Tensors,
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> tuple[Run, TensorBase]:
        """A run with one particle's parameters, and the mixture's log density of its draws."""
        with substitute(None, own | shared):
            run = run_pair(self.model, self.guide, args, kwargs)
        random = {n: s.value for n, s in run.guide.nodes.items() if _is_random(s)}
        points = [s for s in run.guide.nodes.values() if s.has_density and not _is_random(s)]
        # What depends on the draw alone: changes of variables, which all guides have in common.
        log_mixture = sum((s.compute_log_prob_sum() for s in points), wrap(np.zeros(())))

        def density(other: Tensors) -> TensorBase:
            common = {name: x.detach() for name, x in shared.items()}
            with substitute(None, other | common), _Given(random), trace() as again:
                self.guide(*args, **kwargs)
            terms = (again[n].compute_log_prob_sum() for n in random)
            return sum(terms, wrap(np.zeros(())))

        if random:
            each = vmap(density)(others)
            log_mixture = log_mixture + logsumexp(each, -1) - math.log(self.num_stein_particles)
        return run, log_mixture


# ------------------------------------------------------------------------------------------ helpers


class _Given(Handler):
    """Give sites of the guide the values that another particle has drawn."""

    def __init__(self, values: Tensors) -> None:
        super().__init__()
        self.values = values

    def on_sample(self, site: Site) -> None:
        """Give the site its value."""
        if site.name in self.values:
            site.value = self.values[site.name]


def _automatic(guide: object) -> bool:
    return isinstance(guide, AutoGuide)


def _is_random(site: Site) -> bool:
    """Whether a site of a guide is drawn: no point mass."""
    return is_latent(site) and not isinstance(site.fn, Delta)


def _check(run: Run) -> None:
    """Refuse draws without paths, and subsamples."""
    for name, site in run.guide.nodes.items():
        if _is_random(site) and not site.fn.has_rsample:
            raise InferenceError(
                f"SteinVI: guide site {name!r} has no pathwise gradient",
                expected="draws by differentiable functions of the parameters (has_rsample)",
                got=f"a {type(site.fn).__name__}",
                fix="use SVI, whose objectives take scores",
                at=site.location,
            )
    for name, site in run.model.nodes.items():
        for frame in site.plates:
            if frame.subsampled:
                raise InferenceError(
                    f"SteinVI: site {name!r} is in plate {frame.name!r}, which works on a "
                    "subsample",
                    expected="all rows, the same for all particles",
                    got=f"{frame.size} of {frame.full_size} rows",
                    fix="leave subsample_size out, and give batches as arguments with scale()",
                    at=site.location,
                )


def _matrix(leaves: Tensors) -> np.ndarray:
    """Particles as rows of float64."""
    arrays = [to_host(x.array).astype(np.float64) for x in leaves.values()]
    return np.concatenate([x.reshape(len(x), -1) for x in arrays], axis=1)


explain_calls(globals())
