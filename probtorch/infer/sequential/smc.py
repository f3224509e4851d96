"""`SMC`: particles that go from the prior to the posterior by temperatures, with the evidence.

Particles are drawn from the prior. Each stage raises the temperature by so much that a given share
of them is left in effective number, weights and resamples them, fits the kernel to them and moves
them by it (mutation.py). The product of the mean weights estimates the evidence. The stages are in
course.py, the path is in tempering.py, the resampling in weights.py; saved_particles.py keeps a run
on the disk.

With `waste_free` few particles are resampled and moved for long, and all places that they come by
are particles of the next stage.

References
----------
N. Chopin, "A sequential particle filter method for static models", Biometrika 89 (2002). P. Del
Moral, A. Doucet, A. Jasra, "Sequential Monte Carlo samplers", JRSS B 68 (2006). A. Jasra, D. A.
Stephens, A. Doucet, T. Tsagaris, "Inference for Levy-driven stochastic volatility models via
adaptive sequential Monte Carlo", Scandinavian Journal of Statistics 38 (2011), for temperatures by
the effective number. H.-D. Dau, N. Chopin, "Waste-free sequential Monte Carlo", JRSS B 84 (2022).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from probtorch.core.rng import Generator
from probtorch.core.signatures import explain_calls, explained
from probtorch.distributions.distribution import Distribution
from probtorch.errors import ArgumentError
from probtorch.infer.checkpoint import Checkpoint
from probtorch.infer.mcmc.kernel import Kernel, checked
from probtorch.infer.potential import Target
from probtorch.infer.results import SampledDraws, make_draws
from probtorch.infer.sequential.course import Course
from probtorch.infer.sequential.importance import checked_count
from probtorch.infer.sequential.moved_particles import MovedParticles, ParticleRun
from probtorch.infer.sequential.tempering import TemperedPath
from probtorch.infer.sequential.weights import checked_resampling

__all__ = ["SMC", "SMCDraws", "ladder"]

# Length of the chains of waste-free SMC, unless told.
CHAIN_LENGTH = 20


@dataclass(frozen=True, eq=False, repr=False)
class SMCDraws(SampledDraws):
    """The particles at the end, equal in weight, as one chain; and what their way told.

    All of the latter is in `attrs`, so it is saved with the draws.
    """

    @property
    def log_evidence(self) -> float:
        """Estimate of the log marginal likelihood."""
        return float(self.attrs["log_evidence"])

    @property
    def log_evidence_error(self) -> float:
        """Its standard error; nan where all particles have one ancestor."""
        return float(self.attrs["log_evidence_error"])

    @property
    def temperatures(self) -> list[float]:
        """Those that were gone through, the last one 1."""
        return list(self.attrs["temperatures"])

    @property
    def num_steps(self) -> list[int]:
        """Transitions of each particle at each temperature."""
        return list(self.attrs["num_steps"])


class SMC(MovedParticles[Course]):
    """Tempered sequential Monte Carlo with any kernel: draws, and the marginal likelihood.

    Where chains stay in one mode, particles from the prior find several; and the evidence comes
    with its error. It costs more gradients than `NUTS` for one mode.

    Parameters
    ----------
    kernel : Kernel
        Moves the particles: ``SMC(NUTS(model))``. Its step size and metric are learnt from the
        particles at each temperature. `Gibbs(model)` moves discrete sites too, counts without bound
        among them, and each block of sites by a kernel of its own.
    num_particles : int
    num_steps : int, optional
        Transitions of each particle at each temperature; by default as many as it takes for
        particles to forget where they stood. With `waste_free`, the length of the chains (20).
    ess_threshold : float, in (0, 1)
        Share of the particles that each next temperature leaves in effective number.
    temperatures : sequence of float, optional
        Those to go through instead, ascending, the last one 1.
    waste_free : bool
        Resample ``num_particles / num_steps`` particles, and keep all places they come by
        [dau2022]_.
    resampling : {"systematic", "stratified", "multinomial", "residual"}
    reference : Distribution, optional
        Where to begin instead of the prior, a distribution of the unconstrained vector; needed for
        a density that is no model.
    num_threads : int, optional
        As many as there are processors. The draws do not depend on it.
    seed : int or Generator, optional
        Where random numbers come from; the default generator if None.
    progress_bar : bool
        Whether to show temperatures as they are come to.

    Raises
    ------
    ArgumentError
        If a setting is out of its range; if the kernel moves ensembles, needs a chain of its own,
        or knows the posterior alone, as a `FullConditional` does.

    References
    ----------
    [delmoral2006]_, [chopin2002]_, [jasra2011]_, [dau2022]_, and [chan2013]_ for the error.

    Examples
    --------
    >>> import math
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import SMC, RandomWalk
    >>> def coin(y):
    ...     p = probtorch.sample("p", dist.Beta(1.0, 1.0))
    ...     with probtorch.plate("toss", len(y)):
    ...         probtorch.sample("y", dist.Bernoulli(p), obs=y)
    >>> y = probtorch.tensor([1.0, 1.0, 0.0, 1.0])
    >>> draws = SMC(RandomWalk(coin), num_particles=500, seed=0).run(y)
    >>> bool(abs(draws.log_evidence - math.log(1 / 20)) < 4 * draws.log_evidence_error)
    True
    >>> draws["p"].shape
    (1, 500)
    """

    _name = "SMC"

    @explained("SMC", meant={"draws": "num_particles", "num_samples": "num_particles"})
    def __init__(
        self,
        kernel: Kernel,
        num_particles: int = 1000,
        *,
        num_steps: int | None = None,
        ess_threshold: float = 0.5,
        temperatures: Sequence[float] | None = None,
        waste_free: bool = False,
        resampling: str = "systematic",
        reference: Distribution | None = None,
        num_threads: int | None = None,
        seed: int | Generator | None = None,
        progress_bar: bool = True,
    ) -> None:
        super().__init__(kernel, reference, num_threads, seed, progress_bar)
        self.num_particles = checked_count("SMC", "num_particles", num_particles, 2)
        self.waste_free = bool(waste_free)
        if num_steps is None:
            self.num_steps = CHAIN_LENGTH if waste_free else None
        else:
            self.num_steps = checked_count("SMC", "num_steps", num_steps, 1 + self.waste_free)
        if self.waste_free and (
            self.num_particles % (self.num_steps or 1)
            or self.num_particles < 4 * (self.num_steps or 1)
        ):
            raise ArgumentError(
                "SMC(waste_free=True)",
                expected=f"num_particles a multiple of num_steps={self.num_steps}, at least 4 "
                "times as large",
                got=f"num_particles={self.num_particles}",
                fix=f"write num_particles={50 * (self.num_steps or 1)}",
            )
        self.ess_threshold = checked("SMC", "ess_threshold", ess_threshold, 0.0, 1.0)
        self.temperatures = None if temperatures is None else ladder("SMC", temperatures)
        self.resampling = checked_resampling("SMC", resampling)

    def __repr__(self) -> str:
        return f"SMC({self.kernel!r}, num_particles={self.num_particles})"

    def run(
        self,
        *args: object,
        checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
        checkpoint_every: float | None = None,
        max_seconds: float | None = None,
        **kwargs: object,
    ) -> SMCDraws:
        """Go from the prior to the posterior, given the arguments of the model.

        Parameters
        ----------
        *args, **kwargs
            What the model is called with.
        checkpoint : path or Checkpoint, optional
            A folder in which the particles are saved as they go, in the midst of a temperature too,
            for a run that is killed: the same call goes on from there, and its draws are those of a
            run without a break, bit for bit.
        checkpoint_every : float, optional
            Seconds between two checkpoints; 5 by default.
        max_seconds : float, optional
            End the run after this time, as Ctrl-C does.

        Returns
        -------
        SMCDraws
            `sample_stats` has ``lp``; neighbours among the draws have common ancestors. After
            Ctrl-C they are draws at the temperature that was come to, which ``.temperatures`` ends
            with, and ``attrs["interrupted"]`` is true.

        Raises
        ------
        InferenceError
            If no particle has any weight, or the log likelihood is infinite.
        ArgumentError
            If the folder has a run with other settings, another model or other data.
        FileError
            If the folder cannot be written to when the run begins.
        KeyboardInterrupt
            On Ctrl-C before the first temperature.

        Warns
        -----
        SMCWarning
            If particles did not get away from where they stood, or come from too few ancestors.
        """
        run, course, interrupted = self._run(
            args, kwargs, checkpoint, checkpoint_every, max_seconds, streams=3
        )
        return self._result(run, course, interrupted)

    def _result(self, run: ParticleRun, course: Course, interrupted: bool) -> SMCDraws:
        positions, logdensity, facts = course.result()
        draws = make_draws(
            run.target, positions[None], {"lp": logdensity[None]},
            {
                **run.kernel.attrs(), **facts, "sampling_time": run.saved.seconds,
                "interrupted": interrupted,
            },
        )  # fmt: skip
        return SMCDraws(**vars(draws))

    def _so_far(self, run: ParticleRun, course: Course) -> SMCDraws | None:
        return self._result(run, course, interrupted=True) if course.settled else None

    def _path(self, target: Target) -> TemperedPath:
        return TemperedPath(target, self.reference)

    def _course(self, run: ParticleRun) -> Course:
        return Course(self, run)

    def _own_settings(self) -> dict[str, object]:
        return {
            "num_particles": self.num_particles,
            "num_steps": self.num_steps,
            "ess_threshold": self.ess_threshold,
            "temperatures": self.temperatures,
            "waste_free": self.waste_free,
            "resampling": self.resampling,
        }


def ladder(owner: str, temperatures: Sequence[float]) -> list[float]:
    """Return temperatures as they have to be, or refuse them for `owner`."""
    try:
        steps = [float(t) for t in temperatures]
    except (TypeError, ValueError):
        steps = []
    if not steps or steps[-1] != 1.0 or any(b <= a for a, b in zip([0.0, *steps], steps)):
        raise ArgumentError(
            f"{owner}(temperatures=...)",
            expected="ascending numbers in (0, 1], the last one 1",
            got=f"{temperatures!r:.60}",
            fix="leave it out: temperatures are chosen by ess_threshold",
        )
    return steps


explain_calls(globals())
