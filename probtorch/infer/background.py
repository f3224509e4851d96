"""`in_background`: any run in a thread of its own, with a handle that pauses and ends it.

A run finds what its handle tells by `control_here`: loops in Python ask it between two steps
(`Interrupt`), chains between two calls of their program. `MCMC.run(blocking=False)` returns a
handle that knows chains and draws, too (mcmc/handle.py); what both share is here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

from probtorch.core.dispatch import grad_enabled, set_grad_enabled
from probtorch.core.dtype import rules_of_thread, set_rules_of_thread
from probtorch.core.signatures import explain_calls
from probtorch.distributions.validation import validation_enabled, validation_in_force
from probtorch.effects.runtime import STATE
from probtorch.errors import ArgumentError
from probtorch.infer.control import Control, under_control

__all__ = ["BackgroundRun", "in_background"]

P = ParamSpec("P")
R = TypeVar("R")
# What there is of a run that has not shown anything yet.
NOTHING = "no progress to tell of yet"


class BackgroundRun(Generic[R]):
    """A run that goes on in the background; made by `in_background`.

    Parameters
    ----------
    work : callable
        Runs in a thread of its own, given a `Control`.
    finish : callable, optional
        Makes the result, in the thread that asks for it first, of what `work` returned.

    Notes
    -----
    The process does not wait for a run in the background when it ends: call `result`, or give the
    run a checkpoint.
    """

    def __init__(
        self, work: Callable[[Control], object], finish: Callable[[object], R] | None = None
    ) -> None:
        self._control, self._lock = Control(), threading.Lock()
        self._finish = finish
        # Not `Thread.join`: up to Python 3.12 a Ctrl-C there marks a thread as ended that goes on.
        self._ended = threading.Event()
        self._returned: object = None
        self._error: BaseException | None = None
        self._made: list[R] = []
        checked, surroundings = validation_in_force(), dict(vars(STATE))
        taped, dtypes = grad_enabled(), rules_of_thread()

        def run() -> None:
            under_control(self._control)
            vars(STATE).update(surroundings)
            set_grad_enabled(taped)
            set_rules_of_thread(dtypes)
            try:
                with validation_enabled(checked):
                    self._returned = work(self._control)
            except BaseException as error:  # raised where the result is asked for
                self._error = error
            finally:
                set_grad_enabled(True)  # threads without a tape are counted
                self._ended.set()
                self._control.close()

        # A daemon: nothing waits for it when the process ends.
        threading.Thread(target=run, name="probtorch run", daemon=True).start()

    # -------------------------------------------------------------------------------------- telling

    def pause(self) -> None:
        """Let the run wait, with what it has; with a checkpoint, all of it is saved."""
        self._control.pause()

    def resume(self) -> None:
        """Let a run that waits go on: its result is that of a run without a pause."""
        self._control.resume()

    def abort(self) -> R:
        """End the run, and return what there is.

        Returns
        -------
        object
            As `result`; all of it, if the run has ended by itself.

        Raises
        ------
        InferenceError
            If there was nothing to keep yet. The run has ended all the same.
        """
        if not self.finished:
            self._control.abort()
        return self._collected(None)

    # --------------------------------------------------------------------------------------- asking

    @property
    def finished(self) -> bool:
        """Whether the run has ended, well or badly."""
        return self._ended.is_set()

    @property
    def paused(self) -> bool:
        """Whether the run was told to wait."""
        return self._control.paused

    @property
    def progress(self) -> object:
        """How far the run is; its text is one line, the one that the run shows."""
        line = self._control.line
        return NOTHING if line is None else line()

    def peek(self, timeout: float | None = None) -> object:
        """Return what there is so far, while the run goes on; None where there is nothing yet.

        The run makes it between two steps, when it is asked, and goes on as if it had not been.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait for the step at hand, at most.

        Returns
        -------
        object
            What the run would return if it ended now, in one of the forms below, with
            ``interrupted`` true; the `result` once it has ended, None if it failed.

            - `SVI`: an `SVIResult` after the last steps, losses and parameters, whose `draws` are
              of the guide as it was then. `SteinVI`: a `SteinVIResult` likewise.
            - `SVGD`, `ASVGD`: the particles where they are, without their log densities.
            - `SMC`: the particles at the last temperature that was come to, with ``temperatures``.
              Until then they are no draws of the posterior. `AIS`: the weighted draws at theirs.
            - `NestedSampler`: all points so far with their weights, the live ones for what is left.
            - `ParticleGibbs`, `InvolutiveMCMC`: as many draws as all chains have.
            - `ABCSMC`: the particles, as close as they have come. `ABC`: the closest so far.
              `Importance`: the draws so far, with their weights.
            - `MCMC`, by itself and in `fit`: the first of its draws, without a wait.
            - Searches (`Pathfinder`, `LaplaceApproximation`) and filters: None. Of many runs
              (`check`, `fit_many`) it is what the one at work has.

        Raises
        ------
        TimeoutError
            If the step takes longer.
        """
        question = self._control.ask()
        if question is not None:
            if not question.wait(timeout):
                raise TimeoutError(f"a step goes on, after {timeout} seconds: {self.progress}")
            if question.error is not None:
                raise question.error
            if question.answered:
                return question.value
        if not self.finished or self._error is not None:
            return None
        return self._collected(None)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the run has ended, at most so many seconds; returns whether it has.

        Parameters
        ----------
        timeout : float, optional
            As long as it takes by default. Ctrl-C ends the wait; the run goes on.
        """
        self._ended.wait(timeout)
        return self.finished

    def result(self, timeout: float | None = None) -> R:
        """Wait for the end, and return what the run returns.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most.

        Returns
        -------
        object
            Its result.

        Raises
        ------
        TimeoutError
            If it takes longer; the run goes on.
        Exception
            What the run raised.
        """
        return self._collected(timeout)

    def _collected(self, timeout: float | None) -> R:
        if not self.wait(timeout):
            raise TimeoutError(f"the run goes on, after {timeout} seconds: {self.progress}")
        with self._lock:
            if self._error is not None:
                raise self._error
            if not self._made:
                try:
                    self._made.append(self._finished())
                except BaseException as error:
                    self._error = error
                    raise
            return self._made[0]

    def _finished(self) -> R:
        if self._finish is None:
            return self._returned  # type: ignore[return-value]  # it is what the run returned
        return self._finish(self._returned)

    def __repr__(self) -> str:
        state = "finished" if self.finished else "paused" if self.paused else "running"
        return f"{type(self).__name__}({state}: {self.progress})"


def in_background(run: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> BackgroundRun[R]:
    """Start a run in a thread of its own, and return a handle at once.

    Parameters
    ----------
    run : callable
        A method or function of inference: ``svi.run``, ``smc.run``, `fit`.
    *args, **kwargs
        What it is called with.

    Returns
    -------
    BackgroundRun
        Pauses, ends and looks at it; its `result` is what the run returns.

    Raises
    ------
    ArgumentError
        If `run` is no function.

    Notes
    -----
    Handlers, plates, `no_grad`, `validation_enabled` and the default dtype of the place of the call
    hold in the run, to its end. Pauses and ends come through between two steps of whatever takes
    `max_seconds`, and between the many runs of `check`, `fit_many`, `loo_kfold` and the tests of
    calibration; others run to their end. For chains ``mcmc.run(..., blocking=False)`` has more to
    tell. Two runs of one object at a time are no good idea.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import SVI, AutoNormal, in_background
    >>> from probtorch.optim import Adam
    >>> def model():
    ...     probtorch.sample("x", dist.Normal(0.0, 1.0))
    >>> svi = SVI(model, AutoNormal(model), Adam({"lr": 0.05}), seed=0)
    >>> run = in_background(svi.run, 200, progress_bar=False)
    >>> run.pause()
    >>> run.resume()
    >>> run.result()
    SVIResult(200 steps, last loss ...)
    """
    if not callable(run):
        raise ArgumentError(
            "in_background(run)",
            expected="a function that runs something, such as svi.run",
            got=f"{type(run).__name__} {run!r:.60}",
            fix="write in_background(svi.run, 1000, x, y): the call is made there",
        )
    return BackgroundRun(lambda control: run(*args, **kwargs))


explain_calls(globals())
