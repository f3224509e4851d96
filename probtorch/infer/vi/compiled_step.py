"""`CompiledStep`: a whole step of SVI as one native call.

Guide, model, objective, backward pass, the check that all is finite, the optimizer's update and the
random draws are recorded together (compiler/compiled_function.py) and replayed. A step whose loss
or gradients are not finite fails its guard before anything is written, and is taken again eagerly,
where the error can be explained. So is whatever the compiler cannot express; the numbers are the
same either way.

A recorded step is taken back and taken again natively. So all steps after the first one, which is
always eager, have native numbers, and a run that is resumed goes on bit for bit, whatever it has
compiled. The same holds for shapes of arguments that come later: their first step is eager, since
many a batch of its own size never comes back, and compiling takes a hundred times as long as a
step. Which shapes there were is part of a fit's state, and so is ahead of how many steps in a row a
Python value was changed that the model reads: after some of them all steps are eager, in a run that
is resumed at the same one. So is which of these became inputs: floats, such as the weight of a
term that is annealed. The learning rate reaches compiled code as a tensor, so that schedules need
no new recording; all other options of the optimizer belong to the recording.
"""

from __future__ import annotations

import contextlib
import operator
import time
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from probtorch.autograd.modes import enable_grad
from probtorch.autograd.tape import grad
from probtorch.compiler.compiled_function import MAX_CHANGED, CompiledFunction
from probtorch.compiler.explain.explain import explain_reason
from probtorch.compiler.guards.walk import Entries, Known
from probtorch.compiler.native.host import InternalCompilerError
from probtorch.compiler.record.record import OUTSIDE
from probtorch.config import settings
from probtorch.core.dispatch import recorder, wrap
from probtorch.core.making import as_tensor
from probtorch.core.rng import Used, default_generator, state_of, used
from probtorch.core.tensor_base import TensorBase, is_tensor
from probtorch.core.tree import flatten
from probtorch.effects.minibatches import StrangeLoader
from probtorch.errors import CompileError, ProbtorchError, is_ours, user_location
from probtorch.infer.objectives.loss_function import as_objective
from probtorch.infer.objectives.site_estimators import RERUNS
from probtorch.infer.vi.arrays_as_tensors import ArraysAsTensors
from probtorch.infer.vi.fit_memory import FitMemory
from probtorch.infer.vi.fit_state import FitState, GeneratorStates, StepInfo
from probtorch.ops.comparisons import isfinite
from probtorch.ops.reduction import sum as total
from probtorch.optim.elementwise import ElementwiseOptimizer
from probtorch.optim.pyro import PyroOptim

if TYPE_CHECKING:
    from probtorch.compiler.calls.replay import Path
    from probtorch.core.typed import Tree
    from probtorch.effects.minibatches import Batch


__all__ = ["CompiledStep"]

# Seconds that a chunk of native steps takes: short enough for Ctrl-C and the progress bar.
CHUNK = 0.05
MAX_CHUNK = 10_000


# Shapes that are remembered: more than programs are kept of.
MAX_SHAPES = 1024
# A run may go on with another loader, but not with another one at every step.
MAX_STRANGERS = 10


IN_COMPANY = "gradients are averaged over processes, between compiled gradients and the update"


class _NotFinite(Exception):
    """The loss or a gradient of this step is not finite: nothing was moved."""


class _Other(Exception):
    """Arguments do not mean what tensors in their place do."""

    def __init__(self) -> None:
        super().__init__("the loss is another (x.std(), say, is not that of a tensor)")


class CompiledStep:
    """The compiled form of the steps of a fit.

    Parameters
    ----------
    fit : FitMemory

    Attributes
    ----------
    reason : str or None
        Why steps are taken eagerly, if they are.
    """

    def __init__(self, fit: FitMemory) -> None:
        self.fit = fit
        self.reason: str | None = None
        self._arrays_in = ArraysAsTensors()
        # Why steps are eager, which is told at the next one: an error that the eager step raises,
        # too, tells it better.
        self._to_tell: tuple[str, str] | None = None
        self._strangers = 0  # recordings that met a loader which the step before had not
        self._function: CompiledFunction | None = None
        # What a run in Python began with, and the parameters that there were.
        self._used: Used = {}  # generators that runs in Python drew from, as they were before
        self._before: FitState | None = None
        self._known: list[TensorBase] = []
        self._raised: Exception | None = None  # by model, guide or objective in that run
        self._loss: tuple[object, ...] | None = None  # what says how the loss is computed
        self._settled: tuple[object, ...] | None = (
            None  # the last triple that was given the time to settle
        )
        # Learning rates by group, which tensor each is in, and the tensors.
        self._rates: list[TensorBase] = []
        self._numbers: tuple[int | None, ...] = ()
        self._tensors: list[TensorBase] = []
        self._seconds = 0.0  # per native step
        self._shapes: dict[object, int] = {}  # shapes of arguments, and what they are saved as
        self._met = False  # whether a step was to be compiled

    def __getstate__(self) -> dict[str, object]:
        return {"fit": self.fit}  # what was compiled is compiled anew where it is wanted

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__init__(**state)  # type: ignore[misc]  # nothing but the fit was kept

    def __environment__(self) -> list[object]:
        return []  # it names what counts itself, see `_roots`

    # ------------------------------------------------------------------------------ may it be used

    def ready(self) -> bool:
        """Whether the next step may be compiled."""
        self._look()
        if self._to_tell is not None and self._function is not None:
            telling, self._to_tell = self._to_tell, None
            self._function.paths.warn(*telling, loud=True)
        if self.reason is not None or not settings.jit or recorder() is not None:
            return False
        # What comes into being at the first step is no part of a step.
        if not self.fit.num_steps or not self.fit.updater.optimizers():
            return False
        if self._function is None:
            self.reason = self.reason or self._obstacle() or self._outrun()
            self._function = CompiledFunction(
                self._step,
                roots=self._roots,
                values=self._which_rates,
                saving=True,
                convert=self._arrays_in.convert,
                quiet=True,  # `_give_up` tells
                name="SVI.step",
            )
            self._function.inputs = self.fit.inputs
        return self.reason is None

    def _look(self) -> None:
        """See whether the loss is still computed by the same code; if not, judge anew."""
        fit = self.fit
        objective = fit.objective
        now = (
            objective,
            fit.own_loss_and_grads,
            fit.__dict__.get("loss_and_grads"),
            getattr(objective, "__dict__", {}).get("loss_and_grads"),
        )
        if self._loss is None or not all(map(operator.is_, now, self._loss)):
            if self._loss is not None and self._function is not None:
                self.reason = self._obstacle()
            self._loss = now

    def _outrun(self) -> str | None:
        """Say whether steps were eager already, in a run that is resumed, for a value that changes.

        Nothing tells whether it has changed ahead of the first step that is recorded here: it
        counts as changed, but where no step was recorded before. If it was not, the next step that
        a path fits takes the count back.
        """
        fit = self.fit
        if not self._met and fit.num_steps > 1:
            fit.changes += 1
        self._met = True
        if fit.changes <= MAX_CHANGED:
            return None
        return f"a value that it can reach has changed ahead of {MAX_CHANGED} steps in a row"

    def _obstacle(self) -> str | None:
        fit = self.fit
        own = fit.own_gradients()
        if own is not None:
            return own
        if fit.in_company:
            return IN_COMPANY
        for optimizer in fit.updater.optimizers():
            if not isinstance(optimizer, ElementwiseOptimizer):
                return f"the update of {type(optimizer).__name__} is not compiled"
        return None

    def _roots(self) -> list[object]:
        """What has to stay what it is: the user's code and objects, parameters, the optimizer."""
        fit = self.fit
        found: list[object] = [fit.model, fit.guide, fit.objective, vars(fit.params)]
        fixed = "model", "guide", "generator", "objective", "params"
        found.append(Entries(vars(fit), fixed, busy=True))
        found.append(getattr(fit.objective, "__dict__", {}))
        found.append(vars(fit.updater))
        # Learning rates of optimizers are not among what is watched, nor are schedules, which a
        # step only meets by the rates.
        optim = fit.updater.optimizer
        made = optim.optim_objs.values() if isinstance(optim, PyroOptim) else ()
        found.append(Known((fit, *fit.updater.optimizers(), *made)))
        found += [vars(o) for o in (optim,) if isinstance(o, PyroOptim)]
        for o in fit.updater.optimizers():
            found += [Entries(vars(o), ("state", "param_groups")), o.state]
            found += (Entries(group, _without_rate(group)) for group in o.param_groups)
        return found

    # ------------------------------------------------------------------------------ learning rates

    def _which_rates(self) -> tuple[int | None, ...]:
        """Put learning rates into their tensors; which groups share one is part of a recording."""
        now = [group["lr"] for group in self._groups()]
        if all(type(rate) is float for rate in now) and now == self._rates:
            return self._numbers
        # Arrays are numbers, too, and may be written to.
        now = [rate if isinstance(rate, TensorBase) else float(rate) for rate in now]
        if len(now) == len(self._rates) and all(map(_same_rate, now, self._rates)):
            return self._numbers
        numbers: dict[float, int] = {}
        for rate in now:
            if not isinstance(rate, TensorBase):
                number = numbers.setdefault(float(rate), len(numbers))
                if number == len(self._tensors):
                    self._tensors.append(wrap(np.zeros(())))
                self._tensors[number].array[()] = rate
        self._rates = now
        self._numbers = tuple(
            None if isinstance(rate, TensorBase) else numbers[float(rate)] for rate in now
        )
        return self._numbers

    def _groups(self) -> list[dict[str, Tree]]:
        return [group for o in self.fit.updater.optimizers() for group in o.param_groups]

    @contextlib.contextmanager
    def _rates_as_tensors(self) -> Iterator[None]:
        """Context manager: the groups' learning rates are 0-d tensors."""
        groups, numbers = self._groups(), self._which_rates()
        before = [group["lr"] for group in groups]
        try:
            for group, number in zip(groups, numbers, strict=True):
                if number is not None:
                    group["lr"] = self._tensors[number]
            yield
        finally:
            for group, rate in zip(groups, before, strict=True):
                group["lr"] = rate

    # ------------------------------------------------------------------------------------ the step

    def __call__(self, args: tuple[object, ...], kwargs: dict[str, object]) -> StepInfo | None:
        """Take one step; returns None if it has to be taken eagerly."""
        fit, function = self.fit, self._function
        # The batches of plates with loaders are inputs as the arguments are.
        inputs = (args, kwargs, fit.feed.batches())
        assert function is not None  # made by ready()
        leaves = flatten(inputs)[0]
        if self._is_new(leaves):
            return None
        start = fit.generator_states()
        self._before, self._used = None, {}  # until a run in Python notes it
        self._raised = None
        function.changes = fit.changes
        try:
            with enable_grad():
                loss = function(*inputs)
                fit.changes = function.changes if function.recorded is not None else 0
                fit.inputs = function.inputs
                # Whenever Python has run, on tensors: also where nothing has come of the recording.
                in_python = function.recorded is not None or function.last is None
                if in_python and self._before is not None and self._arrays_in.stand_in(inputs):
                    now = self._parameters()
                    # One that has made parameters would find them there.
                    if len(now) == len(self._known) and all(map(operator.is_, now, self._known)):
                        self._compare_as_given(loss, start, inputs)
                if (path := function.recorded) is not None:

                    def put_back() -> None:
                        path.restore()
                        self._rewind(start)

                    loss = function.taken_again(loss, put_back, *inputs)
        except InternalCompilerError:
            raise
        except Exception as error:
            if self._is_the_models(error, inputs):
                raise
            # Other errors of a model are raised by the eager step, with all that it knows. If that
            # one passes, the next are eager too.
            fit.updater.zero_grad()
            if self._before is not None:
                fit.restore(self._before)
            self._rewind(start)
            self._strangers += isinstance(error, StrangeLoader)
            if self._strangers > MAX_STRANGERS or not isinstance(
                error, (_NotFinite, StrangeLoader, *OUTSIDE)
            ):
                what = f"recording raised {type(error).__name__}: {error}".split("\n")[0]
                if isinstance(error, _Other):
                    what = str(error)
                    self._arrays_in.retreat(what, inputs)
                    return self._in_another_way(args, kwargs)
                if self._gives_up(what, "", inputs):
                    return self._in_another_way(args, kwargs)
            return None
        reason = function.reason or function.paths.aside
        if function.changes > MAX_CHANGED and function.reason is not None:
            # For good: what was compiled before is not there in a run that is resumed.
            fit.changes, self.reason = function.changes, function.reason[0]
        if reason is not None and function.last is None and self._gives_up(*reason, inputs):
            if self._before is not None:
                fit.restore(self._before)
            self._rewind(start)
            return self._in_another_way(args, kwargs)
        self._remember(function.last, start, fit.num_steps)
        return StepInfo(float(loss.item()))

    def _is_the_models(self, error: Exception, inputs: object) -> bool:
        """Whether a run such as an eager step makes raised an error, other than by a bug of ours.

        Another run would find changed what this one has written, or drawn, ahead of the error.
        """
        raised, self._raised = self._raised, None
        if error is not raised or self._arrays_in.stand_in(inputs):
            return False
        if isinstance(error, ProbtorchError):
            return not isinstance(error, (CompileError, StrangeLoader, *OUTSIDE))
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        return trace is not None and not is_ours(trace.tb_frame.f_code.co_filename)

    def _in_another_way(
        self, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> StepInfo | None:
        """Take the step by a function that is made anew: its numbers are native ones, too."""
        told = self._function is not None and self._function.paths.told
        self._function = None
        if not self.ready() or self._function is None:
            return None
        self._function.paths.told = told
        return self(args, kwargs)

    def _gives_up(self, reason: str, place: str, inputs: object) -> bool:
        """Go on with what tensors stood for, if they stood for anything, and return True; else take
        steps eagerly.
        """
        function = self._function
        assert function is not None  # one that did not go
        if not function.paths.told and self._arrays_in.retreat(reason, inputs):
            return True
        if self._arrays_in.why_not and not function.reason:
            reason = (
                f"arrays among the arguments change from step to step, and "
                f"{self._arrays_in.why_not} where tensors come in their place: pass tensors"
            )
        place = place or user_location()
        if not function.paths:
            self.reason = reason + (f" (at {place})" if place else "")
        if not function.paths.told and not reason.startswith(RERUNS):
            self._to_tell = reason, place
        return False

    def _compare_as_given(self, loss: TensorBase, start: GeneratorStates, inputs: tuple) -> None:
        """See whether the step that was recorded with tensors is that with what they stand for.

        An array has methods that mean something else than a tensor's (``y.std()``), or that a
        tensor has not.

        Raises
        ------
        _Other
        """
        fit, before = self.fit, self._before
        assert before is not None  # noted by the run that was recorded
        after, states = fit.take(), fit.generator_states()
        now = {i: (g, state_of(g)) for i, (g, _) in self._used.items()}
        fit.restore(before)
        self._rewind(start)
        try:
            other = self._step(*inputs)
        except Exception as error:
            raise _Other from error
        tolerance = 1e-4 if loss.array.dtype == np.float32 else 1e-7
        if not np.allclose(other.array, loss.array, rtol=tolerance, atol=tolerance):
            raise _Other
        fit.restore(after)
        fit.set_generator_states(states)
        for generator, state in now.values():
            generator.set_state(state)
        self._before = before

    def _rewind(self, start: GeneratorStates) -> None:
        """Put generators back: those of the fit, and the user's that a run in Python has used."""
        self.fit.set_generator_states(start)
        for generator, state in self._used.values():
            generator.set_state(state)

    def _is_new(self, leaves: list[object]) -> bool:
        """Whether arguments have shapes that no step had, where others had some: notes them."""
        shapes = tuple([_shape_of(x) for x in leaves])
        number = self._shapes.get(shapes)
        if number is None:
            if len(self._shapes) >= MAX_SHAPES:
                self._shapes.clear()
            # The same in every process.
            text = repr(tuple([None if x is None else (x[0], str(x[1])) for x in shapes]))
            number = self._shapes[shapes] = zlib.crc32(text.encode())
        met = self.fit.shapes
        if number in met:
            return False
        first = not met
        if len(met) >= MAX_SHAPES:
            del met[next(iter(met))]
        met[number] = None
        return not first

    def _remember(self, path: Path | None, generators: GeneratorStates, step: int) -> None:
        """Note the state before the last step: a path that took it has its tensors in memory."""
        fit, before = self.fit, self._before
        loaders = fit.feed.state_dict()

        def good() -> FitState:
            if path is None:
                assert before is not None  # Python took it
                return before
            path.restore()
            return fit.take(generators=generators, loaders=loaders, step=step)

        fit.good, fit.failures = good, 0

    def settle(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Let an objective find out what it will of a new pair: that is no part of a step."""
        fit = self.fit
        now = fit.objective, fit.model, fit.guide
        if self._settled is not None and all(map(operator.is_, now, self._settled)):
            return
        self._settled = now
        if not as_objective(fit.objective).settled(fit.model, fit.guide):
            before = fit.take()
            with contextlib.suppress(Exception):  # the step itself raises it again
                fit.setup(*args, **kwargs)
            fit.restore(before)

    def _step(
        self, args: tuple[object, ...], kwargs: dict[str, object], batches: dict[int, Batch]
    ) -> TensorBase:
        """One step in Tensor operations."""
        fit, updater = self.fit, self.fit.updater
        comparing = self._function is not None and self._function.comparing
        if not comparing:
            self._before, self._known = fit.take(), self._parameters()
        with used(self._used), fit.active(), fit.feed.lending(batches):
            try:
                loss, gradients = self._loss_and_gradients(args, kwargs)
            except Exception as error:
                self._raised = None if comparing else error
                raise
        check = loss
        for g in gradients:
            if g is not None:
                check = check + total(g)
        if not bool(isfinite(check)):
            raise _NotFinite
        with used(self._used), self._rates_as_tensors():
            for p, g in zip(updater.parameters.values(), gradients, strict=True):
                p.grad = g
            updater.step()
            updater.zero_grad()
        return loss

    def _parameters(self) -> list[TensorBase]:
        return [p for _, p in self.fit.params.named_parameters()]

    def _loss_and_gradients(
        self, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[TensorBase, list[TensorBase | None]]:
        fit = self.fit
        objective, updater = fit.objective, fit.updater
        estimates = as_objective(objective).estimates(fit.model, fit.guide, args, kwargs)
        loss: TensorBase | float = 0.0
        gradients: list[TensorBase | None] | None = None
        for value, surrogate in estimates:
            loss = loss - value.detach()
            updater.adopt(dict(fit.params.named_parameters()))
            if surrogate.requires_grad:
                parameters = list(updater.parameters.values())
                free = [p for p in parameters if p.requires_grad]
                part = iter(grad(-surrogate, free, allow_unused=True))
                found = [next(part) if p.requires_grad else None for p in parameters]
                before = gradients
                gradients = found if before is None else list(map(_added, before, found))
        return as_tensor(loss), gradients or [None] * len(updater.parameters)

    # ---------------------------------------------------------------------------------- many steps

    def many(self, steps: int, args: tuple[object, ...], kwargs: dict[str, object]) -> list[float]:
        """Take up to `steps` steps on the same data without going back to Python.

        Returns
        -------
        list of float
            Their losses. Fewer where time is up; none where the next step has to be taken alone.
        """
        fit = self.fit
        # Plates with loaders want another batch at each step.
        if fit.feed or not self.ready() or self._function is None:
            return []
        inputs = (args, kwargs, {})
        begin = time.perf_counter()
        if self._seconds:
            steps = min(steps, MAX_CHUNK, max(1, int(CHUNK / self._seconds)))
        else:
            steps = 1
        with enable_grad():
            path, arrays = self._function.find(*inputs)
            if path is None:
                return []
            if settings.verify:
                steps = min(steps, path.until_due())
            losses, before = path.repeat(arrays, steps)
        if not len(losses):
            return []
        self._seconds = (time.perf_counter() - begin) / len(losses)
        states = {id(generator): tuple(state) for generator, state in before}
        own, default = fit.generator_states()
        generators = states.get(id(fit.generator), own), states.get(id(default_generator), default)
        fit.num_steps, fit.changes = fit.num_steps + len(losses), 0
        self._remember(path, generators, fit.num_steps - 1)
        return np.asarray(losses, np.float64).tolist()

    def compare_at_the_end(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Compare a step with Python's where a run has ended, if none was for long: the fit stays
        where it is.

        Raises
        ------
        ReplayError
            If they differ.
        """
        fit, function = self.fit, self._function
        if fit.feed or function is None or self.reason is not None or not settings.verify:
            return
        before, self._used = fit.take(), {}
        try:
            with enable_grad():
                function.settle(args, kwargs, {})
        finally:
            fit.restore(before)
            self._rewind(before.generators)

    # ------------------------------------------------------------------------------------- telling

    def explain(self, *, format: str = "text", profile: bool = False) -> str:
        """Return what the steps became; see `CompiledFunction.explain`."""
        if self.reason is not None:
            return explain_reason(f"SVI.step runs eagerly: {self.reason}", format=format)
        if self._function is None:
            reason = "SVI.step: nothing compiled yet (the first step is always eager)"
            return explain_reason(reason, format=format)
        return self._function.explain(format=format, profile=profile)


def _shape_of(x: object) -> tuple[object, object] | None:
    """What is looked at of an argument: not its value, of which compiled code knows itself."""
    if is_tensor(x):
        x = x.array
    # Of the type first: a proxy may have nothing to stand for.
    dtype = getattr(x, "dtype", None) if hasattr(type(x), "dtype") else None
    if dtype is None:
        return None
    # To write NumPy's down takes as long as the rest of it.
    return getattr(x, "shape", None), dtype if isinstance(dtype, np.dtype) else str(dtype)


def _same_rate(a: TensorBase | float, b: TensorBase | float) -> bool:
    return a is b or (type(a) is type(b) is float and a == b)


def _without_rate(group: dict[str, object]) -> tuple[str, ...]:
    """Keys of an optimizer's group that are options, or its parameters, but the learning rate."""
    return tuple(k for k in group if k != "lr")


def _added(a: TensorBase | None, b: TensorBase | None) -> TensorBase | None:
    return b if a is None else a if b is None else a + b
