"""`SVGD`: particles that flow to a posterior, pulled by its gradient and kept apart by a kernel.

A step evaluates the compiled density at all particles in one native call, makes of the gradients
the direction of steepest descent towards the posterior (stein_kernels.py), and lets an optimizer
move the particles along it. Names are Pyro's.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from probtorch.core.arguments import choice_of, count_of
from probtorch.core.dispatch import wrap
from probtorch.core.rng import Generator, generator_of
from probtorch.core.signatures import explained
from probtorch.core.tensor_base import TensorBase
from probtorch.errors import ArgumentError, InferenceError, user_frame
from probtorch.infer.approximations.result import target_of
from probtorch.infer.approximations.stein_kernels import SteinKernel, stein_force
from probtorch.infer.approximations.stein_record import SteinRecord
from probtorch.infer.checkpoint import Checkpoint
from probtorch.infer.control import Interrupt
from probtorch.infer.potential import ModelTarget, Target
from probtorch.infer.results import SampledDraws, make_draws
from probtorch.infer.run_identity import digests, options_of
from probtorch.infer.starts.initialization import Strategy, init_to_sample, init_to_uniform
from probtorch.infer.vi.guide_quality import LARGEST_SD_RATIO, GuideWarning
from probtorch.infer.vi.step_progress import StepProgress
from probtorch.infer.vi.updater import Optim, Updater

__all__ = ["SVGD"]

# Pyro's words for a kernel per coordinate and one for whole particles.
MODES = {"univariate": "vector", "multivariate": "norm"}
# Fewer particles than this say little about their own spread.
ENOUGH = 25


class SVGD:
    """Stein variational gradient descent.

    Parameters
    ----------
    model : callable or Target
        A model without discrete sites that cannot be summed out, or a density.
    kernel : SteinKernel
        For example ``RBFSteinKernel()``.
    optim : Optimizer class, PyroOptim or callable
        ``Adagrad({"lr": 0.1})``, or a class with its options as keywords.
    num_particles : int
    max_plate_nesting : int, optional
        Accepted for Pyro's sake: plates place themselves.
    mode : {"univariate", "multivariate"}, optional
        Whether kernels without a mode of their own act on each coordinate alone, which is the
        default and the better choice in many dimensions, or on whole particles. Coordinate by
        coordinate, correlations are hardly found: of two parameters with one of -0.46, 100
        particles show -0.09, and standard deviations 0.89 of the exact ones; whole, -0.46 and 0.96.
    init_strategy : callable, optional
        Where particles start; at draws from the prior by default, and uniformly between -2 and 2
        for a hand-written density.
    seed : int or Generator, optional
        Where starts are drawn from; the default generator if None.
    **optim_args
        Options of an optimizer given as a class.

    Raises
    ------
    ArgumentError
        For a kernel that is none, another mode, or an optimizer that asks for several losses a
        step.

    Notes
    -----
    In many dims particles with one kernel for all coordinates are too close together
    [liu2016]_; `run` compares their spread with what Stein's identity says of it, and warns.
    A step with other data than the one before evaluates the density in Python, since compiled code
    knows its data.

    References
    ----------
    [liu2016]_.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import SVGD, RBFSteinKernel
    >>> from probtorch.optim import Adagrad
    >>> def model(y):
    ...     mu = probtorch.sample("mu", dist.Normal(0.0, 1.0))
    ...     with probtorch.plate("data", len(y)):
    ...         probtorch.sample("y", dist.Normal(mu, 1.0), obs=y)
    >>> svgd = SVGD(model, RBFSteinKernel(), Adagrad({"lr": 0.5}), num_particles=30, seed=0)
    >>> draws = svgd.run(200, probtorch.tensor([1.0, 2.0, 3.0]), progress_bar=False)
    >>> round(float(draws["mu"].mean()), 2), bool(abs(draws["mu"].std() - 0.5) < 0.05)
    (1.5, True)
    """

    # The class at the front door, whatever is derived from it: for checkpoints.
    _name: ClassVar[str] = "SVGD"

    @explained("SVGD")
    def __init__(
        self,
        model: Callable[..., object] | Target,
        kernel: SteinKernel,
        optim: Optim,
        num_particles: int = 10,
        max_plate_nesting: int | None = None,
        mode: str | None = None,
        *,
        init_strategy: Strategy | None = None,
        seed: int | Generator | None = None,
        **optim_args: object,
    ) -> None:
        if not isinstance(kernel, SteinKernel):
            raise ArgumentError(
                "SVGD(kernel)",
                expected="a kernel, such as RBFSteinKernel()",
                got=f"{kernel!r:.60}",
                fix="write SVGD(model, RBFSteinKernel(), optim, num_particles)",
            )
        if mode is not None:
            choice_of("SVGD", "mode", mode, MODES)
        self.model, self.kernel, self.init_strategy = model, kernel, init_strategy
        self.num_particles = count_of("SVGD", "num_particles", num_particles)
        self.mode, self.seed = mode, seed
        self.num_steps = 0
        self._optim = options_of(optim, optim_args)
        self._updater = Updater(optim, optim_args)
        # The generator of its own, if there is one; particles alone are drawn from it.
        self._seeded = None if seed is None else generator_of(seed)
        # The step that a run began at, and how many it has.
        self._course: tuple[int, int] | None = None
        self._leaf: TensorBase | None = None
        self._target: Target | None = None
        self._given: dict[str, str] = {}
        self._steady = False

    # ------------------------------------------------------------------------------------- steps

    def step(self, *args: object, **kwargs: object) -> dict[str, float]:
        """Move all particles once.

        Parameters
        ----------
        *args, **kwargs
            What the model is called with.

        Returns
        -------
        dict of str to float
            The mean square of the direction, per particle and coordinate, by site: small when the
            particles have come to rest.

        Raises
        ------
        InferenceError
            If the log density or its gradient is not finite at a particle.
        """
        target = self._meet(args, kwargs)
        leaf = self._particles
        points = leaf.array
        gradients = self._pull() * self._gradients(target, points)[1]
        parts = {name: (s.start, s.stop) for name, s in target.slots.items()}
        kernel, slope = self.kernel.evaluate(points, MODES[self.mode or "univariate"], parts)
        force = stein_force(kernel, slope, gradients)
        leaf.grad = wrap(-force)
        self._updater.step()
        self.num_steps += 1
        squares = (force * force).mean(axis=0)
        return {name: float(squares[a:b].mean()) for name, (a, b) in parts.items()}

    def run(
        self,
        num_steps: int,
        *args: object,
        progress_bar: bool = True,
        checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
        checkpoint_every: float | None = None,
        max_seconds: float | None = None,
        **kwargs: object,
    ) -> SampledDraws:
        """Take many steps.

        Parameters
        ----------
        num_steps : int
        *args, **kwargs
            What the model is called with.
        progress_bar : bool
            Show steps and the size of the direction on stderr.
        checkpoint : path or Checkpoint, optional
            A folder in which the particles are saved as the run goes on, for a run that is killed:
            the same call goes on from there, bit for bit. `num_steps` is that of the whole run.
        checkpoint_every : float, optional
            Seconds between two checkpoints; 5 by default.
        max_seconds : float, optional
            End the run after this time, with what there is.

        Returns
        -------
        SampledDraws
            The particles, as one chain; Ctrl-C ends the run after the step at hand, and writes a
            last checkpoint.

        Raises
        ------
        InferenceError
            As `step`.
        ArgumentError
            If the folder has a run with other settings, another seed, another model or other data.
        FileError
            If the folder cannot be written to when the run begins, or what is there cannot be read.

        Warns
        -----
        GuideWarning
            If the particles are narrower or wider than the posterior, by a factor of 1.5.

        Notes
        -----
        Under the posterior the mean of the matrices ``(x - mean) gradient'`` is minus the identity
        (Stein). Of particles in place of draws it is minus their covariance times the precision of
        the posterior, if that is normal; so it says what the posterior's standard deviations are.
        """
        kind = type(self).__name__
        count = count_of(f"{kind}.run", "num_steps", num_steps, 0)
        began = time.perf_counter()
        target = self._meet(args, kwargs)
        self._course = self.num_steps, count
        try:
            # From here on the default generator stands where a run that is saved had it.
            record = SteinRecord(
                self._name, self, self.kernel, checkpoint, checkpoint_every, args, kwargs,
                lambda: target.value_and_grad_many(self._particles.array)[0], began,
            )  # fmt: skip
            self._course = self.num_steps - record.done, count
            shown = StepProgress(count, done=record.done, shown=progress_bar)
            with record, Interrupt(f"{kind}.run", max_seconds) as interrupt, shown as progress:
                interrupt.shows(
                    lambda: self._so_far(target, record.seconds) if record.done else None
                )
                while record.done < count:
                    squares = self.step(*args, **kwargs)
                    progress.update(max(squares.values()))
                    record.update()
                    if record.done < count and interrupt.asked:
                        break
                record.close()
        finally:
            self._course = None
        points = self._particles.array.copy()
        values, gradients = self._gradients(target, points)
        attrs = self._facts(record.seconds, interrupt.heeded)
        if count and self.num_particles >= ENOUGH:
            attrs |= _judge_spread(target, points, gradients)
        return make_draws(target, points[None], {"lp": values[None]}, attrs)

    def _facts(self, seconds: float, interrupted: bool) -> dict[str, object]:
        """What attributes of the particles tell."""
        return {
            "inference_library": "probtorch",
            "inference_method": type(self).__name__,
            "num_steps": self.num_steps,
            "sampling_time": seconds,
            "interrupted": interrupted,
        }

    def _so_far(self, target: Target, seconds: float) -> SampledDraws:
        """The particles where they are; no step more is taken to know their densities."""
        points = self._particles.array.copy()
        return make_draws(target, points[None], {}, self._facts(seconds, True))

    def get_named_particles(self) -> dict[str, TensorBase]:
        """Return the particles by site, each (num_particles, *shape), in the model's space.

        Raises
        ------
        InferenceError
            Before the first step.
        """
        if self._target is None:
            raise InferenceError(
                "SVGD.get_named_particles",
                expected="particles, which the first step makes",
                got="none yet",
                fix="call step() or run() first",
            )
        found = self._target.constrain_many(self._particles.array)
        return {name: wrap(x) for name, x in found.items() if name in self._target.slots}

    def _settings(self) -> dict[str, object]:
        """What a checkpoint has to agree in, beside kernel and seed."""
        assert self._target is not None
        shapes = {name: tuple(slot.free_shape) for name, slot in self._target.slots.items()}
        return {
            **self._optim,
            "num_particles": self.num_particles,
            "mode": self.mode or "univariate",
            "sites": shapes,
        }

    def _pull(self) -> float:
        """What the posterior's gradient counts for in the next step."""
        return 1.0

    def __repr__(self) -> str:
        name = getattr(self.model, "__name__", None) or getattr(self.model, "name", "model")
        kind = type(self).__name__
        return f"{kind}({name}, {self.num_particles} particles, {self.num_steps} steps)"

    # ----------------------------------------------------------------------------------- particles

    @property
    def _particles(self) -> TensorBase:
        assert self._leaf is not None
        return self._leaf

    def _meet(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Target:
        """The density for these arguments; particles are made at the first."""
        given = digests(args, kwargs)
        if self._target is not None and given == self._given:
            self._steady = True
            return self._target
        self._steady = self._target is None
        target = target_of("SVGD", self.model, args, kwargs)
        if self._leaf is None:
            strategy = self.init_strategy
            if strategy is None:
                strategy = init_to_sample if isinstance(target, ModelTarget) else init_to_uniform
            points = target.initial(self.num_particles, generator_of(self._seeded), strategy)
            self._leaf = wrap(points).requires_grad_()
            self._updater.adopt({"svgd_particles": self._leaf})
            if self._updater.needs_closure:
                raise ArgumentError(
                    "SVGD(optim=...)",
                    expected="an optimizer that moves along a gradient",
                    got="LBFGS, which asks for losses; there is none here",
                    fix='use Adagrad({"lr": 0.1}) or Adam({"lr": 0.05})',
                )
        self._target, self._given = target, given
        return target

    def _gradients(self, target: Target, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self._steady:
            values, gradients = target.value_and_grad_many(points)
        else:
            found = [target.density.eager(q) for q in points]
            values, gradients = np.array([v for v, _ in found]), np.stack([g for _, g in found])
        bad = ~(np.isfinite(values) & np.isfinite(gradients).all(-1))
        if bad.any():
            raise InferenceError(
                f"SVGD on {target.name}, step {self.num_steps + 1}",
                expected="a finite log density and gradient at every particle",
                got=f"others at {int(bad.sum())} of {len(points)}",
                fix="take smaller steps, or look at where the density is finite",
            )
        return values, gradients


def _spread_ratio(away: np.ndarray, gradients: np.ndarray) -> np.ndarray:
    """Standard deviations of particles over those of a normal posterior with such gradients.

    With fewer particles than the matrix asks for, those given the other coordinates.
    """
    n, dim = away.shape
    if n > 2 * dim:
        covariance, product = away.T @ away / n, -away.T @ gradients / n
        try:
            variances = np.diag(np.linalg.solve(product, covariance))
        except np.linalg.LinAlgError:
            variances = np.full(dim, -1.0)
        if (variances > 0.0).all():
            return np.asarray(np.sqrt(np.diag(covariance) / variances))
    return np.asarray(np.sqrt(np.maximum(-(away * gradients).mean(0), 0.0)))


def _judge_spread(target: Target, points: np.ndarray, gradients: np.ndarray) -> dict[str, object]:
    """Attributes that say how wide particles are by Stein's identity; warns if they are not."""
    ratio = _spread_ratio(points - points.mean(0), gradients)
    off = np.abs(np.log(np.maximum(ratio, 1e-300)))
    worst = int(off.argmax())
    (slot,) = (s for s in target.slots.values() if s.start <= worst < s.stop)
    place = np.unravel_index(worst - slot.start, slot.free_shape) if slot.free_shape else ()
    name = slot.name + (f"[{', '.join(map(str, place))}]" if place else "")
    if not off[worst] <= np.log(LARGEST_SD_RATIO):
        message = (
            f"SVGD: the particles are {'narrower' if ratio[worst] < 1.0 else 'wider'} than the "
            "posterior\n"
            f"  expected: a spread within a factor of {LARGEST_SD_RATIO:g} (unconstrained scale)\n"
            f"  got:      {ratio[worst]:.2f} times as wide along {name}, by Stein's identity\n"
            "  fix:      take more steps, use more particles or LinearKernel(), or sample with NUTS"
        )
        warnings.warn_explicit(message, GuideWarning, *(user_frame() or ("<unknown>", 0)))
    return {"sd_ratio": float(ratio[worst]), "sd_ratio_of": name}
