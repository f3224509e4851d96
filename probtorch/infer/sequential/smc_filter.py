"""`SMCFilter`: a particle filter that is fed as data arrive, for models of sample statements.

Pyro's interface: model and guide are objects with ``init(state, ...)`` and ``step(state, ...)``,
run once for all particles, which lie along a dim to the left of all plates. What they put into
`state`, a dict, is theirs at the next step. `ParticleFilter` (particle_filter.py) is for models
that are given by functions, and keeps what smoothing needs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Protocol

import numpy as np

from probtorch.autograd.modes import no_grad
from probtorch.backends.registry import to_host
from probtorch.core.dispatch import wrap
from probtorch.core.rng import Generator, default_generator, generator_of
from probtorch.core.signatures import explain_calls, explained
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import leaves, map_tree
from probtorch.core.typed import Tree
from probtorch.distributions.empirical import Empirical
from probtorch.effects.handlers import seed as seed_handler
from probtorch.errors import ArgumentError, InferenceError, ShapeError
from probtorch.infer.mcmc.kernel import checked
from probtorch.infer.model_runs import untraced
from probtorch.infer.objectives.runs import run_pair
from probtorch.infer.sequential.importance import checked_count, prior
from probtorch.infer.sequential.weights import (
    ancestors,
    checked_resampling,
    effective_size,
    log_mean,
    normalised,
)

__all__ = ["SMCFilter", "SMCModel"]


class SMCModel(Protocol):
    """A model, or a guide, that is told of one time after the other."""

    @property
    def init(self) -> Callable[..., object]:
        """``init(state, ...)`` draws the first state, and puts it into `state`."""

    @property
    def step(self) -> Callable[..., object]:
        """``step(state, ...)`` draws the next state given the last one, observes, and stores it."""


class SMCFilter:
    """A particle filter over sample statements, one step at a time.

    Parameters
    ----------
    model : object
        With methods ``init(state, ...)`` and ``step(state, ...)``; `state` is a dict from names to
        tensors, whose first dim is that of the particles.
    guide : object, optional
        The same, with the proposals; sites that it lacks are drawn from the model, as all are
        without a guide. It reads the state and leaves it as it is.
    num_particles : int
    max_plate_nesting : int
        Number of batch dims that plates of the model take, to the right of the particles' dim.
    ess_threshold : float, in (0, 1]
        Particles are resampled after a step that leaves them less than this share of their number.
    resampling : {"systematic", "stratified", "multinomial", "residual"}
    seed : int or Generator, optional
        Where random numbers come from; the default generator if None.

    Attributes
    ----------
    state : dict of str to Tensor
        Of the particles as they are now.
    log_weights : ndarray, shape (num_particles,)
        Theirs; they sum to 1.
    log_evidence : float
        Estimate of the log marginal likelihood of all observations so far.

    References
    ----------
    [gordon1993]_.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import SMCFilter
    >>> class Walk:
    ...     def init(self, state):
    ...         state["z"] = probtorch.sample("z", dist.Normal(0.0, 1.0))
    ...     def step(self, state, y):
    ...         state["z"] = probtorch.sample("z", dist.Normal(state["z"], 1.0))
    ...         probtorch.sample("y", dist.Normal(state["z"], 0.5), obs=y)
    >>> smc = SMCFilter(Walk(), None, num_particles=2000, max_plate_nesting=0, seed=0)
    >>> smc.init()
    >>> for y in (1.0, 2.0):
    ...     smc.step(probtorch.tensor(y))
    >>> bool(abs(smc.get_empirical()["z"].mean - 1.83) < 0.1)
    True
    """

    @explained("SMCFilter", meant={"n_particles": "num_particles"})
    def __init__(
        self,
        model: SMCModel,
        guide: SMCModel | None,
        num_particles: int,
        max_plate_nesting: int = 0,
        *,
        ess_threshold: float = 0.5,
        resampling: str = "systematic",
        seed: int | Generator | None = None,
    ) -> None:
        for name, part in (("model", model), ("guide", guide)):
            lacking = [m for m in ("init", "step") if not callable(getattr(part, m, None))]
            if lacking and (part is not None or name == "model"):
                raise ArgumentError(
                    f"SMCFilter({name})",
                    expected="an object with methods init(state, ...) and step(state, ...)",
                    got=f"{type(part).__name__}, without {' and '.join(lacking)}",
                    fix="write a class with both; for plain functions use ParticleFilter",
                )
        self.model, self.guide = model, guide
        self.num_particles = checked_count("SMCFilter", "num_particles", num_particles, 2)
        self.max_plate_nesting = checked_count(
            "SMCFilter", "max_plate_nesting", max_plate_nesting, 0
        )
        self.ess_threshold = checked("SMCFilter", "ess_threshold", ess_threshold, 0.0, 1.1)
        self.resampling = checked_resampling("SMCFilter", resampling)
        self._generator = None if seed is None else generator_of(seed)
        self._begin()

    def _begin(self) -> None:
        self.state: dict[str, Tree] = {}
        self.log_weights = np.full(self.num_particles, -math.log(self.num_particles))
        self.log_evidence = 0.0
        self._begun = False

    def __repr__(self) -> str:
        return (
            f"SMCFilter({type(self.model).__name__}, num_particles={self.num_particles}, "
            f"{self.ess:.0f} effective)"
        )

    @property
    def ess(self) -> float:
        """Effective number of particles."""
        return effective_size(self.log_weights)

    def init(self, *args: object, **kwargs: object) -> None:
        """Draw the first states, by ``model.init(state, *args, **kwargs)``; forget all others."""
        self._begin()
        self._advance("init", args, kwargs)
        self._begun = True

    def step(self, *args: object, **kwargs: object) -> None:
        """Go on by ``model.step(state, *args, **kwargs)``; resample where weights are uneven.

        Raises
        ------
        InferenceError
            If `init` was not called; if no particle has any weight.
        ShapeError
            If something in the state has not the particles in front.
        """
        if not self._begun:
            raise InferenceError(
                "SMCFilter.step",
                expected="init() first, which draws the particles",
                got="no particles",
                fix="call init(...)",
            )
        self._advance("step", args, kwargs)

    def get_empirical(self) -> dict[str, Empirical]:
        """Return the weighted values of each tensor in the state as a distribution, by name."""
        weights = wrap(self.log_weights)
        return {
            name: Empirical(value, weights)
            for name, value in self.state.items()
            if isinstance(value, TensorBase)
        }

    def _advance(self, method: str, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        generator = self._generator or default_generator
        model = functools.partial(getattr(self.model, method), self.state)
        guide = prior
        if self.guide is not None:
            guide = functools.partial(getattr(self.guide, method), self.state)
        with no_grad(), untraced(), seed_handler(None, generator):
            run = run_pair(
                model,
                guide,
                args,
                kwargs,
                size=self.num_particles,
                dim=-1 - self.max_plate_nesting,
                allow_missing=True,
            )
            gained = to_host((run.log_model() - run.log_guide()).array).astype(np.float64)
        log_weights = self.log_weights + gained.reshape(-1)
        total = log_mean(log_weights)[0] + math.log(self.num_particles)
        if not math.isfinite(total):
            raise InferenceError(
                f"SMCFilter.{method}: weights of the particles",
                expected="finite log weights, at least one",
                got=f"a largest one of {np.max(log_weights)}",
                fix="use more particles, or a guide that sees the observation",
            )
        self.log_evidence += total
        self.log_weights = log_weights - total
        self._check_state()
        if self.ess < self.ess_threshold * self.num_particles:
            shares = normalised(self.log_weights)
            index = ancestors(shares, self.num_particles, generator, self.resampling)
            self._resample(index)

    def _resample(self, index: np.ndarray) -> None:
        rows = wrap(index)
        for name, value in self.state.items():
            self.state[name] = map_tree(
                lambda x: x[rows] if isinstance(x, TensorBase) else x, value
            )
        self.log_weights = np.full(self.num_particles, -math.log(self.num_particles))

    def _check_state(self) -> None:
        """Refuse what cannot be resampled."""
        for name, value in self.state.items():
            shapes = [x.array.shape for x in leaves(value) if isinstance(x, TensorBase)]
            wrong = next((s for s in shapes if s[:1] != (self.num_particles,)), None)
            if wrong is not None:
                raise ShapeError(
                    f"SMCFilter: state[{name!r}]",
                    expected=f"the {self.num_particles} particles along the first dim",
                    got=f"shape {tuple(wrong)}",
                    fix="put what is the same for all particles into the model, as an attribute; "
                    "and say how many dims plates take by max_plate_nesting",
                )


explain_calls(globals())
