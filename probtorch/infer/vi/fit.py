"""`Fit`: a step of a fit, from a state to another.

`take_step` is pure in its arguments: it writes the state to the memory that users see
(fit_memory.py), takes a step there and reads the state that came of it. NumPyro's `init`, `update`,
`evaluate` and `get_params` are other names for that. Who goes on from where the memory stands calls
`advance`, which copies nothing.

A step is native (compiled_step.py) or one in Python (eager_step.py), with the same numbers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from probtorch.autograd.modes import no_grad
from probtorch.compiler.explain.explain import Explanation
from probtorch.core.rng import Generator, generator_of
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import Tree
from probtorch.infer.model_calls import check_model_call
from probtorch.infer.objectives.protocol import Objective
from probtorch.infer.vi.compiled_gradients import CompiledGradients
from probtorch.infer.vi.compiled_step import CompiledStep
from probtorch.infer.vi.eager_step import eager_step
from probtorch.infer.vi.fit_memory import FitMemory, number
from probtorch.infer.vi.fit_state import FitState, StepInfo
from probtorch.infer.vi.picked_estimators import Picks, pick_estimators, waits_for_a_choice
from probtorch.infer.vi.updater import copied

__all__ = ["Fit"]


class Fit(FitMemory):
    """The steps of an `SVI` object, which has the parameters and attributes that users know.

    Attributes
    ----------
    compiled : CompiledStep
        The native form of a step.
    gradients : CompiledGradients
        The native form of a rank's part, where processes take steps together.
    picks : Picks or None
        What ``Trace_ELBO(estimator="auto")`` has picked in this process, and why.
    """

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.compiled = CompiledStep(self)
        self.gradients = CompiledGradients(self)
        self.picks: Picks | None = None

    def state_dict(self) -> dict[str, Tree]:
        """Return all that the next steps depend on; see `FitMemory.state_dict`.

        That includes why steps are taken in Python, where they are: the one step that is taken
        while recording rounds otherwise, so a resumed run does not try again.
        """
        return {**super().state_dict(), "eager": self.compiled.reason}

    def load_state_dict(self, state: Mapping[str, Tree]) -> None:
        """Take over what `state_dict` returned; see `FitMemory.load_state_dict`."""
        super().load_state_dict(state)
        self.compiled.reason = state.get("eager")  # earlier releases did not save it

    def advance(self, args: tuple[object, ...], kwargs: dict[str, object]) -> StepInfo:
        """Take a step on the memory, natively if that is possible; see `take_step`."""
        self.resume(args, kwargs)
        self.params.show()
        if waits_for_a_choice(self):
            self.picks = pick_estimators(self, args, kwargs)
        self.feed.begin()
        if not self.num_steps and isinstance(self.objective, Objective):
            # A function of the user's may have arguments of its own.
            check_model_call(self.model, args, kwargs, "svi.step")
        else:  # at the first step nothing else is known either
            self.compiled.settle(args, kwargs)
        info = self.compiled(args, kwargs) if self.compiled.ready() else None
        if info is None:
            info = eager_step(self, args, kwargs)
        self.num_steps += 1
        self.feed.end()
        return info

    def quick_gradients(
        self, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Callable[[], float] | None:
        """Return compiled loss and gradients of this rank; see `FitMemory.quick_gradients`."""
        if not (self.in_company and self.gradients.ready()):
            return None
        return self.gradients.estimate(args, kwargs)

    def take_step(
        self,
        state: FitState,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> tuple[FitState, StepInfo]:
        """Take a step from a state to another: the result depends on the arguments alone.

        Parameters
        ----------
        state : FitState
            From `init`, or of a step; it stays as it is.
        args, kwargs
            The batch: what model and guide are called with.

        Returns
        -------
        state : FitState
        info : StepInfo

        Notes
        -----
        Parameters, store and modules are left at the new state. `step` saves the copies.
        """
        kwargs = kwargs or {}
        self.meet(state, args, kwargs)
        self.load(state)
        info = self.advance(args, kwargs)
        return self.take(), info

    def init(self, seed: int | Generator | None, *args: object, **kwargs: object) -> FitState:
        """Return the state of a fit that begins, as NumPyro's `init`.

        Parameters that exist stay as they are; others are made.

        Parameters
        ----------
        seed : int, Generator or None
            Where sample statements draw from; None goes on with what they draw from now.
        *args, **kwargs
            What model and guide are called with.
        """
        if seed is not None:
            self.generator = generator_of(seed)
        self.setup(*args, **kwargs)
        self.updater.adopt(dict(self.params.named_parameters()))
        return self.take(step=0, failures=0)

    def update(self, state: FitState, *args: object, **kwargs: object) -> tuple[FitState, float]:
        """Return the state after a step, and its loss; see `take_step`."""
        state, info = self.take_step(state, args, kwargs)
        return state, info.loss

    def evaluate(self, state: FitState, *args: object, **kwargs: object) -> float:
        """Return `evaluate_loss` at a state; nothing is moved."""
        self.meet(state, args, kwargs)
        with self._at(state):
            return self.evaluate_loss(*args, **kwargs)

    def get_params(self, state: FitState | None = None) -> dict[str, TensorBase]:
        """Return copies of the constrained values of the `param` sites by name.

        Parameters
        ----------
        state : FitState, optional
            Where; the present one if None.
        """
        with no_grad(), contextlib.nullcontext() if state is None else self._at(state):
            return {name: copied(value) for name, value in self.params.items()}

    @contextlib.contextmanager
    def _at(self, state: FitState) -> Iterator[None]:
        """Context manager: the fit is at another state."""
        before, good = self.take(), self.good
        self.load(state)
        try:
            yield
        finally:
            self.load(before)
            self.good = good

    def evaluate_loss(self, *args: object, **kwargs: object) -> float:
        """Return an estimate of the loss; nothing is moved.

        Parameters
        ----------
        *args, **kwargs
            What model and guide are called with.

        Notes
        -----
        Plates with loaders have the batches of the step to come. A loader that steps do not use,
        over data held out, gives its next batch at each call.
        """
        with no_grad(), self.active():
            loss = number(self.loss(self.model, self.guide, *args, **kwargs))
        self.feed.looked()
        return loss

    def explain(self, *, format: str = "text", profile: bool = False) -> str:
        """Return what the steps became: native code, or why they are taken eagerly.

        Parameters
        ----------
        format : "text" or "html"
            A text, which notebooks show as a page, or that page: one file, no scripts, no network.
        profile : bool
            Run a compiled step again on the data that it last met, if they are still there, and
            give the time of each of its loop nests and calls. Parameters do not change by that.

        Returns
        -------
        Explanation or str
        """
        native = self.gradients if self.in_company else self.compiled
        said = native.explain(format=format, profile=profile)
        if self.picks is None or not isinstance(said, Explanation):
            return said
        return Explanation(f"{said}\n{self.picks!r}", said.report)
