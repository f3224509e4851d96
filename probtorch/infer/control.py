"""What ends a run before its time, or lets it wait: Ctrl-C, a clock, who holds its handle.

`Control` is what the threads of a run are told to stop, to wait and to go on by. A chain asks
between two calls of the native program, some 50 ms apart. Who tells may be any thread: the one that
listens for Ctrl-C, a clock, the user's, by a handle. A run that goes on in the background by itself
(background.py) finds its control by `control_here`. `Interrupt` is for loops in Python, which ask
between two steps; there they also answer who wants to see what they have (`Question`), so that
nobody looks while a step is under way.
"""

from __future__ import annotations

import contextlib
import math
import numbers
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

from probtorch.core.rng import default_generator
from probtorch.effects.runtime import generator_in_force
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer.model_runs import untraced

__all__ = [
    "CALL_SECONDS",
    "GROWTH",
    "Control",
    "Ended",
    "Interrupt",
    "Question",
    "TimeIsUp",
    "control_here",
    "ended_amid_fit",
    "ended_before",
    "positive",
    "shown_to_any_thread",
    "told_to_end",
    "under_control",
]

# A call of the native program is sized to take this long (seconds): short enough for Ctrl-C and the
# progress display, long enough that what happens between calls costs nothing.
CALL_SECONDS = 0.05
# The first calls feel their way: how much more than the last one a call may do.
GROWTH = 8


class TimeIsUp(InferenceError):
    """The seconds given to a run were over before it had anything to keep."""


class Ended(Exception):
    """A run of many fits was told to end in the midst of one."""


def ended_amid_fit() -> Ended:
    """Return the error for that."""
    return Ended("told to end while a data set was fitted")


class Question:
    """What somebody wants to see of a run, who waits for the answer in another thread.

    Attributes
    ----------
    answered : bool
        Whether the run has; it may have ended instead.
    value : object
    error : Exception or None
        What came of it.
    """

    def __init__(self) -> None:
        self._settled = threading.Event()
        self._left = self.answered = False
        self.value: object = None
        self.error: Exception | None = None

    def answer(self, so_far: Callable[[], object]) -> None:
        """Answer by what a function returns, unless nobody waits any more."""
        if self._left:
            return
        try:
            self.value = so_far()
        except Exception as error:  # raised where it was asked
            self.error = error
        self.answered = True
        self.settle()

    def settle(self) -> None:
        """Let who waits go on."""
        self._settled.set()

    def wait(self, timeout: float | None) -> bool:
        """Wait, at most so many seconds; whether there is nothing to wait for any more."""
        done = self._settled.wait(timeout)
        self._left = not done
        return done


class Control:
    """What the chains of one run are to do.

    Parameters
    ----------
    within : Control, optional
        Of the larger run that this one is a part of: what ends it or lets it wait does so to this
        one. The end of this one, or of its time, is nothing to the larger.
    """

    def __init__(self, within: Control | None = None) -> None:
        self._within = within
        self._aborted = False
        self._line: Callable[[], str] | None = None
        self._stopped = threading.Event()
        self._going = threading.Event()
        self._going.set()
        self._lock = threading.Lock()
        # Wakes a loop that waits: to go on, or to answer.
        self._turn = threading.Condition(self._lock)
        self._questions: list[Question] = []
        self._loops: list[Interrupt | _Open] = []  # that have something to show, the innermost last
        self._shows = self._over = False
        self._paused_at = 0.0
        # Pauses before this run began are none of its own.
        self._waited = 0.0 if within is None else -within.waited

    @property
    def aborted(self) -> bool:
        """Whether it was the user who ended the run."""
        return self._aborted or (self._within is not None and self._within.aborted)

    @property
    def line(self) -> Callable[[], str] | None:
        """What the run shows of itself, as one line; set by its display."""
        return self._line

    @line.setter
    def line(self, line: Callable[[], str]) -> None:
        self._line = line
        if self._within is not None:
            self._within.line = line

    @property
    def stopped(self) -> bool:
        """Whether the chains are to end."""
        return self._stopped.is_set() or (self._within is not None and self._within.stopped)

    @property
    def paused(self) -> bool:
        """Whether the chains are to wait."""
        return not self._going.is_set() or (self._within is not None and self._within.paused)

    @property
    def waited(self) -> float:
        """Seconds of all pauses together, the present one included."""
        outside = 0.0 if self._within is None else self._within.waited
        with self._lock:
            here = 0.0 if self._going.is_set() else time.perf_counter() - self._paused_at
            return self._waited + here + outside

    def abort(self) -> None:
        """Let chains end, as the user wants it."""
        self._aborted = True
        self.stop()

    def stop(self) -> None:
        """Let chains end after their present call; those that wait end, too."""
        self._stopped.set()
        self.resume()

    def pause(self) -> None:
        """Let chains wait after their present call."""
        with self._lock:
            if self._going.is_set() and not self.stopped:
                self._paused_at = time.perf_counter()
                self._going.clear()

    def resume(self) -> None:
        """Let chains that wait go on."""
        with self._lock:
            if not self._going.is_set():
                self._waited += time.perf_counter() - self._paused_at
                self._going.set()
                self._turn.notify_all()

    def go_on(self) -> bool:
        """Return whether a chain is to make another call; while the run is paused, wait first."""
        if self._within is not None:
            self._within.go_on()
        self._going.wait()
        return not self.stopped

    # ------------------------------------------------------------------------- what there is so far

    def _is_asked(self, loop: Interrupt) -> bool:
        """Whether there are questions for a loop: for the innermost one that has an answer."""
        return bool(self._questions) and (not self._loops or self._loops[-1] is loop)

    def turn(self, loop: Interrupt) -> bool:
        """Return what `go_on` does; the loop answers what is asked, now and while it waits."""
        if self._within is not None:
            self._within.turn(loop)
        while True:
            with self._turn:
                self._turn.wait_for(lambda: self._going.is_set() or self._is_asked(loop))
            if not self.answer(loop):
                return not self.stopped

    def answer(self, loop: Interrupt) -> bool:
        """Let a loop answer what is asked of it; whether anything was."""
        with self._lock:
            asked: list[Question] = []
            if self._is_asked(loop):
                asked, self._questions = self._questions, asked
        for question in asked:
            question.answer(loop.shown)
        return bool(asked)

    def ask(self) -> Question | None:
        """Return a question that the run answers between two steps, or has answered.

        None if it has had nothing to show yet, or is over.
        """
        question = Question()
        while True:
            with self._turn:
                if self._over or not self._shows:
                    return None
                inner = self._loops[-1] if self._loops else None
                if not isinstance(inner, _Open):
                    self._questions.append(question)
                    self._turn.notify_all()
                    return question
            if inner.answer([question]):
                return question

    def show(self, loop: Interrupt | _Open) -> None:
        """Let a loop answer from now on."""
        with self._lock:
            self._loops.append(loop)
            self._shows, asked = True, []
            if isinstance(loop, _Open):
                asked, self._questions = self._questions, asked
        if isinstance(loop, _Open):
            loop.answer(asked)

    def hide(self, loop: Interrupt | _Open) -> None:
        """Let a loop answer no more: questions wait for the next one, or for the end of the run."""
        with self._lock:
            self._loops.remove(loop)

    def close(self) -> None:
        """The run is over: nobody is to wait for an answer any more."""
        with self._lock:
            self._over = True
            questions, self._questions = self._questions, []
        for question in questions:
            question.settle()


class _Here(threading.local):
    """What this thread is told by."""

    control: Control | None = None


_HERE = _Here()


def control_here() -> Control | None:
    """Return what the run in this thread is told by, if it is one in the background."""
    return _HERE.control


def told_to_end() -> bool:
    """Return whether the run in this thread is to end; while it is paused, wait first.

    What makes many runs asks so between two of them.
    """
    control = control_here()
    return control is not None and not control.go_on()


def ended_before(subject: str, what: str) -> BaseException:
    """Return the error of many runs that were told to end before there was anything to keep."""
    if control_here() is None:
        return KeyboardInterrupt(f"interrupted before {what}")
    return InferenceError(
        subject,
        expected=f"time for {what}",
        got="none: the run was aborted",
        fix="let it run for longer",
    )


def under_control(control: Control) -> None:
    """Let whatever runs in this thread from now on be told by `control`."""
    _HERE.control = control


class _Open:
    """What can be looked at from any thread, until it is closed."""

    def __init__(self, so_far: Callable[[], object]) -> None:
        self._so_far, self._lock = so_far, threading.Lock()
        self._closed = False

    def answer(self, questions: Sequence[Question]) -> bool:
        """Answer in the thread that calls; whether it was not too late."""
        with self._lock:
            if self._closed:
                return False
            for question in questions:
                question.answer(self._so_far)
        return True

    def close(self) -> None:
        """Wait for a look that is under way, and let there be no other."""
        with self._lock:
            self._closed = True


@contextlib.contextmanager
def shown_to_any_thread(so_far: Callable[[], object]) -> Iterator[None]:
    """Context manager: who holds the handle of the run in this thread sees what a function returns.

    Parameters
    ----------
    so_far : callable
        Called in the thread that asks, one at a time.
    """
    control = control_here()
    if control is None:
        yield
        return
    shown = _Open(so_far)
    control.show(shown)
    try:
        yield
    finally:
        control.hide(shown)
        shown.close()


class Interrupt:
    """What a loop asks between two steps: whether to end. A context manager.

    It turns Ctrl-C into a note, so that no step is torn; a second one raises as usual. A run in the
    background waits in `asked` while it is paused.

    Parameters
    ----------
    subject : str
        Whose run it is, for messages.
    max_seconds : float, optional
        From now, pauses aside; then `asked` is true.

    Attributes
    ----------
    heeded : bool
        Whether the loop was told to end when it asked: what it has is not all.

    Raises
    ------
    ArgumentError
        If the time is no positive number.
    """

    def __init__(self, subject: str, max_seconds: float | None = None) -> None:
        self._subject = subject
        self._seconds = positive(subject, "max_seconds", max_seconds, 60)
        self._began = time.perf_counter()
        self._control = control_here()
        # Pauses before the loop began are none of its own.
        self._waited = 0.0 if self._control is None else self._control.waited
        self._noted = self._late = self.heeded = False
        self._so_far: Callable[[], object] | None = None
        self._before: Callable[[int, FrameType | None], object] | int | None = None

    def __enter__(self) -> Interrupt:
        # Only the main thread may; and who set a handler of his own wants to keep it.
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._noted:
            raise KeyboardInterrupt("interrupted twice")
        self._noted = True

    def __exit__(self, *exc: object) -> None:
        if self._so_far is not None and self._control is not None:
            if exc[0] is None:
                self._control.answer(self)
            self._control.hide(self)
            self._so_far = None
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    @property
    def asked(self) -> bool:
        """Whether the loop is to end; once true it stays so, and so does `heeded`."""
        control = self._control
        if control is not None and not control.turn(self):
            self._noted = True
        if self._seconds is not None and not self._late:
            waited = 0.0 if control is None else control.waited - self._waited
            self._late = time.perf_counter() >= self._began + self._seconds + waited
        self.heeded = self._noted or self._late
        return self.heeded

    def shows(self, so_far: Callable[[], object]) -> None:
        """Say what the loop has to show when it is looked at, until it ends.

        Parameters
        ----------
        so_far : callable
            Called between two steps, in the thread of the loop, if a handle asks. It returns what
            no later step changes, and leaves the loop as it is; None where there is nothing yet.
        """
        anew, self._so_far = self._so_far is None, so_far
        if anew and self._control is not None:
            self._control.show(self)

    def shown(self) -> object:
        """Return what there is so far; what is drawn for it would have been drawn all the same."""
        if self._so_far is None:
            return None
        generators = {id(g): g for g in (default_generator, generator_in_force()) if g is not None}
        states = [(g, g.get_state()) for g in generators.values()]
        try:
            with untraced():
                return self._so_far()
        finally:
            for generator, state in states:
                if generator.get_state() != state:
                    generator.set_state(state)

    @property
    def told(self) -> str:
        """What ended the loop, for the line that says what is kept."""
        return "interrupted" if self._noted else "the time is up"

    def without(self, what: str) -> BaseException:
        """Return the error of a loop that ended before there was anything to keep."""
        if self._control is None and self._noted:
            return KeyboardInterrupt(f"interrupted before {what}")
        return (InferenceError if self._noted else TimeIsUp)(
            self._subject,
            expected=f"time for {what}",
            got="none: the run was aborted" if self._noted else f"max_seconds={self._seconds:g}",
            fix="let it run for longer",
        )


def positive(subject: str, name: str, value: float | None, example: int) -> float | None:
    """Return a setting that is a positive number or None.

    Raises
    ------
    ArgumentError
        If it is neither.
    """
    if value is None:
        return None
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not number or not 0.0 < float(value) < math.inf:
        raise ArgumentError(
            f"{subject}({name}=...)",
            expected="a positive number",
            got=repr(value),
            fix=f"for example {name}={example}",
        )
    return float(value)
