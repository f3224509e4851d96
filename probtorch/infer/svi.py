"""`SVI`: stochastic variational inference, the optimisation of a guide towards a posterior.

A step draws from the guide, asks an objective (objectives/) for the loss and its gradients, and
lets an optimizer move the parameters. Parameters of `param` statements live in a store that the
`SVI` object owns; while it runs, and after, `get_param_store` shows that store. All that a step
depends on is in `state_dict`, so a run that is resumed goes on bit for bit.

A loss or gradient that is not finite moves nothing. When it comes `patience` times in a row, the
run stops: everything is put back to the last step that was well, and the error names the step and
the first site that is not finite.

Names and signatures are Pyro's, `run` and its result NumPyro's. svi_result.py has the result,
guides/ the guides that write themselves.
"""

from __future__ import annotations

import contextlib
import math
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from probtorch.autograd.modes import enable_grad, no_grad
from probtorch.core.rng import Generator, default_generator
from probtorch.core.signatures import explained
from probtorch.distributions.validation import validation_enabled
from probtorch.effects.handlers import seed as seed_handler
from probtorch.effects.minibatches import Feed
from probtorch.effects.params import ParamStore
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer.checkpoint import RunRecord
from probtorch.infer.compiled_step import CompiledStep
from probtorch.infer.first_step import judge_statements
from probtorch.infer.forgotten import Statements
from probtorch.infer.gradient_check import checkable
from probtorch.infer.gradient_variance import gradient_variance
from probtorch.infer.guides.base import AutoGuide
from probtorch.infer.model_calls import check_model, check_model_call, is_rng_key
from probtorch.infer.model_runs import OUTSIDE, lifted
from probtorch.infer.non_finite import bad_entries, first_non_finite
from probtorch.infer.objectives.elbo import ELBO, Trace_ELBO
from probtorch.infer.objectives.runs import run_pair, same_draws
from probtorch.infer.run_identity import objective_options, options_of
from probtorch.infer.step_progress import StepProgress
from probtorch.infer.svi_result import SVIResult
from probtorch.infer.updater import Updater, copied, overwrite
from probtorch.optim.optimizer import Optimizer
from probtorch.optim.pyro import PyroOptim

__all__ = ["SVI"]

# The reader of a state refuses others: a later layout gets a later number.
STATE_FORMAT = 1


def _advice(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """The fix line for names that NumPyro and others use."""
    if "optimizer" in kwargs:
        return "write optim=..., or pass the optimizer third: SVI(model, guide, optim, loss)"
    if len(args) + ("optim" in kwargs) < 3:
        return 'write SVI(model, AutoNormal(model), Adam({"lr": 0.01}), Trace_ELBO())'
    return None


class SVI:
    """Variational inference by stochastic gradients.

    Parameters
    ----------
    model, guide : callable
        Called with the same arguments. The guide draws all latent sites of the model.
    optim : Optimizer, PyroOptim or callable
        ``Adam({"lr": 0.01})``; or a class, whose options are given as keywords
        (``SVI(model, guide, Adam, loss, lr=0.01)``); or an optimizer over the parameters of
        modules, to which those of `param` statements are added.
    loss : ELBO or callable
        An objective, or ``loss(model, guide, *args, **kwargs)`` that returns a differentiable
        tensor. `Trace_ELBO` by default.
    loss_and_grads : callable, optional
        Used in place of the objective's own: returns the loss and adds to the gradients.
    params : ParamStore, optional
        A store to share with another SVI object; its own by default.
    seed : int or Generator, optional
        Where sample statements draw from; the default generator if None.
    patience : int or None
        How many losses in a row may be other than finite before the run stops: the parameters rest
        in such steps. None never stops.
    **optim_args
        Options of an optimizer given as a class.

    Attributes
    ----------
    params : ParamStore
    num_steps : int
        Steps taken.
    feed : Feed
        Where the loaders of plates stand.

    Notes
    -----
    A guide with ``precise = True``, as the automatic ones are by default, makes the model run in
    float64. Other guides and models keep the dtypes they were written in.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import SVI, AutoNormal, Trace_ELBO
    >>> from probtorch.optim import Adam
    >>> def coin(y):
    ...     p = probtorch.sample("p", dist.Beta(1.0, 1.0))
    ...     with probtorch.plate("toss", len(y)):
    ...         probtorch.sample("y", dist.Bernoulli(p), obs=y)
    >>> svi = SVI(coin, AutoNormal(coin), Adam({"lr": 0.05}), Trace_ELBO(), seed=0)
    >>> result = svi.run(500, probtorch.tensor([1.0, 1.0, 0.0, 1.0]), progress_bar=False)
    >>> bool(result.losses[-100:].mean() < result.losses[:100].mean())
    True
    """

    @explained("SVI", advice=_advice)
    def __init__(
        self,
        model: Callable[..., Any],
        guide: Callable[..., Any],
        optim: Any,
        loss: Any = None,
        loss_and_grads: Callable[..., Any] | None = None,
        *,
        params: ParamStore | None = None,
        seed: int | Generator | None = None,
        patience: int | None = 1,
        **optim_args: Any,
    ) -> None:
        if patience is not None and (isinstance(patience, bool) or not patience >= 1):
            raise ArgumentError(
                "SVI(patience=...)",
                expected="a number of at least 1, or None to never stop",
                got=repr(patience),
                fix="leave it out to stop at the first loss that is not finite",
            )
        self._check_parts(model, guide, loss)
        self.model, self.guide = model, guide
        self.objective: Any = Trace_ELBO() if loss is None else loss
        self.params = ParamStore() if params is None else params
        self.generator = (
            None if seed is None else seed if isinstance(seed, Generator) else Generator(seed)
        )
        self.patience = patience
        self.num_steps = 0
        self.feed = Feed(lifted if getattr(guide, "precise", False) else None)
        self._own_loss_and_grads = loss_and_grads
        # What a checkpoint has to agree in, as it was given.
        own = self.generator
        self._identity = {
            "seed": None if own is None else [own.initial_seed(), own.stream],
            "optimizer": options_of(optim, optim_args),
            "objective": objective_options(self.objective),
        }
        self._updater = Updater(optim, optim_args)
        self._compiled = CompiledStep(self)
        self._failures = 0
        # How to go back before the last update: its loss and gradients were finite.
        self._good: tuple[Callable[[], None], Any, int, Any] | None = None
        self._buffers: list[tuple[Any, Any]] = []
        # A state that waits for the first run, in which the parameters come into being.
        self._waiting: Mapping[str, Any] | None = None
        self.params.show()

    @staticmethod
    def _check_parts(model, guide, loss):
        """Refuse what is no model, guide or loss, before the first step fails somewhere inside."""
        if not (loss is None or isinstance(loss, (ELBO, type, str))):
            return  # a loss of the user's own may do with other things
        check_model(model, "SVI")
        if isinstance(guide, (Optimizer, PyroOptim)) or (
            isinstance(guide, type) and issubclass(guide, (AutoGuide, Optimizer))
        ):
            automatic = issubclass(guide, AutoGuide) if isinstance(guide, type) else False
            raise ArgumentError(
                "SVI(guide)",
                expected="a guide: a function with sample statements, or an automatic one",
                got=guide.__name__ if isinstance(guide, type) else f"an optimizer, {guide!r:.40}",
                fix=f"make it: {guide.__name__}(model)"  # type: ignore[union-attr]  # a class then
                if automatic
                else "write SVI(model, guide, optim, loss), in this order",
            )
        check_model(guide, "SVI", "guide")
        if loss is not None and (isinstance(loss, type) or not callable(loss)):
            if not hasattr(loss, "loss") or isinstance(loss, type):
                raise ArgumentError(
                    "SVI(loss=...)",
                    expected="an objective, or a function loss(model, guide, *args, **kwargs)",
                    got=f"the class {loss.__name__}" if isinstance(loss, type) else repr(loss),
                    fix=f"make it: {loss.__name__}()"
                    if isinstance(loss, type)
                    else "write Trace_ELBO(), or leave it out",
                )

    def __getstate__(self) -> dict[str, Any]:
        # The way back from a step that fails is code over this object's own memory.
        return {**self.__dict__, "_good": None, "_buffers": []}

    @property
    def optim(self) -> Any:
        """The optimizer; None for one given as a class, before the first step."""
        return self._updater.optimizer

    # ---------------------------------------------------------------------------------- losses

    def loss(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the objective's loss for another model and guide, as Pyro's attribute does."""
        if hasattr(self.objective, "loss"):
            return self.objective.loss(model, guide, *args, **kwargs)
        return self.objective(model, guide, *args, **kwargs)

    def loss_and_grads(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> float:
        """Return the loss and add its gradients to the ``.grad`` of the parameters."""
        own = self._own_loss_and_grads or getattr(self.objective, "loss_and_grads", None)
        if own is not None:
            return _number(own(model, guide, *args, **kwargs))
        loss: Any = self.objective(model, guide, *args, **kwargs)
        if getattr(loss, "requires_grad", False):
            loss.backward()
        return _number(loss)

    def evaluate_loss(self, *args: Any, **kwargs: Any) -> float:
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
        with no_grad(), self._active():
            loss = _number(self.loss(self.model, self.guide, *args, **kwargs))
        self.feed.looked()
        return loss

    def gradient_variance(
        self, *args: Any, estimators: Any = None, num_samples: int = 100, **kwargs: Any
    ) -> Any:
        """Compare gradient estimators at the present parameters; nothing is moved.

        Parameters
        ----------
        *args, **kwargs
            What model and guide are called with.
        estimators : sequence, optional
            Estimators or their names, each put on all sites of the guide without a pathwise
            gradient to which it applies (on all sites, if every one has such a gradient); or dicts
            of them by site. By default those that are unbiased and apply.
        num_samples : int
            Estimates per estimator.

        Returns
        -------
        VarianceTable
            Variance per parameter and in total, and seconds per estimate; the row "as written" is
            that of the guide as it is.

        Raises
        ------
        InferenceError
            If the objective takes no estimators per site.
        ArgumentError
            If an estimator applies nowhere, or a site is unknown.
        """
        return gradient_variance(self, args, kwargs, estimators, num_samples)

    @contextlib.contextmanager
    def _active(self) -> Iterator[None]:
        """Context manager: parameters in the store of this object, draws from its generator."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.params.activate())
            stack.enter_context(self.feed.activate())
            if self.generator is not None:
                stack.enter_context(seed_handler(None, self.generator))
            yield

    # ----------------------------------------------------------------------------------- steps

    def setup(self, *args: Any, **kwargs: Any) -> None:
        """Run guide and model once, so that all parameters exist; `step` does it by itself.

        The generators go back to where they were.
        """
        runs = getattr(self.objective, "runs", None)
        with self._active(), same_draws():
            if runs is None:
                run_pair(self.model, self.guide, args, kwargs)
            else:
                next(iter(runs(self.model, self.guide, args, kwargs)))

    def step(self, *args: Any, **kwargs: Any) -> float:
        """Take one step: estimate the loss, and move the parameters along its gradients.

        Parameters
        ----------
        *args, **kwargs
            What model and guide are called with.

        Returns
        -------
        float
            The loss before the move. It is not finite where `patience` lets the run go on.

        Raises
        ------
        InferenceError
            If the loss or a gradient is not finite once too often.
        ModelError, ShapeError
            If guide and model do not fit together.
        """
        if self._waiting is not None:
            self._resume(args, kwargs)
        self.params.show()
        self.feed.begin()
        if not self.num_steps:
            check_model_call(self.model, args, kwargs, "svi.step")
        else:  # at the first step nothing else is known either
            self._compiled.settle(args, kwargs)
        if self._compiled.ready():
            loss = self._compiled(args, kwargs)
            if loss is not None:
                self._failures = 0
                self._end_step()
                return loss
        start = self._generator_states()
        self._hold_buffers()
        error: Exception | None = None
        said = Statements() if not self.num_steps else contextlib.nullcontext()
        with enable_grad(), self._active():
            try:
                with said:
                    loss = self.loss_and_grads(self.model, self.guide, *args, **kwargs)
            except OUTSIDE as refusal:
                if not self.num_steps:
                    raise
                error, loss = refusal, math.nan
            if error is None:
                self._updater.adopt(dict(self.params.named_parameters()))
            bad = self._bad(loss, error)
            if bad is not None:
                return self._reject(loss, bad, error, start, args, kwargs)
            self._failures = 0
            if isinstance(said, Statements):
                self._check(said, args, kwargs, start)
            checkpoint = self._updater.checkpoint()
            self._remember(lambda: self._updater.restore(checkpoint), start)
            self._updater.step(lambda: self._again(start, args, kwargs))
            self._updater.zero_grad()
        self._end_step()
        return loss

    def _check(self, said, args, kwargs, start):
        """Look for what was forgotten, and compare the gradients with differences; once."""
        check = checkable(self)
        try:
            with same_draws():
                judge_statements(said, self.model, args, kwargs)
            if check is not None:
                check(self, args, kwargs, start)
        except InferenceError:
            self._updater.zero_grad()
            self._restore_buffers()
            raise

    def _end_step(self):
        """Count the step; plates with loaders get their next batches."""
        self.num_steps += 1
        self.feed.end()

    def _remember(self, restore, generators):
        """Note how to go back to where this step began."""
        self._good = (restore, generators, self.num_steps, self.feed.state_dict())

    def _hold_buffers(self):
        """Keep what the buffers of modules hold, for a step that turns out not to count."""
        self._buffers = [(b, b._data.copy()) for b in self.params.buffers.values()]

    def _restore_buffers(self):
        for buffer, before in self._buffers:
            overwrite(buffer, before)

    def _again(self, start, args, kwargs):
        """The loss of this step at other parameters: with the same draws."""
        self._updater.zero_grad()
        self._set_generator_states(start)
        with enable_grad():
            return self.loss_and_grads(self.model, self.guide, *args, **kwargs)

    def _bad(self, loss, error):
        """What is not finite about this step, None if all is well."""
        if error is not None:
            return f"{type(error).__name__}: {error}".split("\n")[0]
        if not math.isfinite(loss):
            return f"a loss of {loss}"
        for name, p in self._updater.parameters.items():
            if p.grad is not None and not _all_finite(p.grad._data):
                return f"a gradient of parameter {name!r} that is {bad_entries(p.grad)}"
        return None

    def _reject(self, loss, bad, error, start, args, kwargs):
        """Move nothing; stop if that has been so often enough."""
        self._updater.zero_grad()
        self._restore_buffers()
        self._failures += 1
        if self.patience is None or self._failures < self.patience:
            self._end_step()
            return loss
        step = self.num_steps
        after = self._generator_states()
        self._set_generator_states(start)
        what, at = (bad, None) if math.isfinite(loss) else self._blame(args, kwargs)
        self._set_generator_states(after)
        if self._good is not None:
            restore, generators, self.num_steps, loaders = self._good
            restore()
            self.feed.load_state_dict(loaders)
            self._set_generator_states(generators)
        self._failures = 0
        restored = f"; parameters are those before step {self.num_steps}" if self._good else ""
        raise InferenceError(
            f"SVI stopped at step {step}: {bad}{restored}",
            expected="a finite loss with finite gradients",
            got=what,
            fix="a smaller learning rate, another init_scale or init_loc_fn, or patience=10 to "
            "pass over single bad draws",
            at=at,
        ) from error

    def _blame(self, args, kwargs):
        """The first site that is not finite in the runs of this step."""
        with validation_enabled(False):
            runs = getattr(self.objective, "runs", None)
            if runs is not None:
                return first_non_finite(runs(self.model, self.guide, args, kwargs))
            pairs = (run_pair(self.model, self.guide, args, kwargs) for _ in range(1))
            return first_non_finite(pairs)

    # ------------------------------------------------------------------------------------- run

    def run(
        self,
        num_steps: int,
        *args: Any,
        progress_bar: bool = True,
        callback: Callable[[int, float], Any] | None = None,
        checkpoint: Any = None,
        checkpoint_every: int | None = None,
        **kwargs: Any,
    ) -> SVIResult:
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
            A folder in which the state is saved as the run goes on, for a run that is killed: the
            same call goes on from there, bit for bit. `num_steps` and the losses are those of the
            whole run.
        checkpoint_every : int, optional
            Steps between two checkpoints; 100 by default.

        Returns
        -------
        SVIResult
            Parameters and losses. Ctrl-C ends the run after the step at hand, with what there is,
            and writes a last checkpoint.

        Raises
        ------
        InferenceError
            As `step`; state is that of the last step that was well.
        ArgumentError
            If the folder has checkpoints of a run with other data, another model, seed, optimizer
            or objective.
        FileError
            If the folder of checkpoints cannot be written to when the run begins, or what is there
            cannot be read. Later on a checkpoint that fails is a warning (see `Checkpoint`).
        """
        count = None if isinstance(num_steps, bool) or np.ndim(num_steps) else num_steps
        if not hasattr(count, "__index__") or num_steps < 0:
            key = is_rng_key(num_steps) and bool(args)
            raise ArgumentError(
                "SVI.run",
                expected="num_steps, a count",
                got=f"{num_steps!r:.60}",
                fix="leave the key out: svi.run(1000, *args); a seed is given as SVI(..., seed=0)"
                if key
                else "write svi.run(1000, *args)",
            )
        check_model_call(self.model, args, kwargs, "svi.run", "num_steps, ")
        if getattr(self.guide, "precise", False):
            # Once, and not at every step.
            args, kwargs = lifted(args), lifted(kwargs)
        record = RunRecord(self, args, kwargs, checkpoint, checkpoint_every)
        losses = record.losses
        shown = StepProgress(num_steps, done=len(losses), shown=progress_bar)
        with _Interrupt() as interrupt, shown as progress:
            while len(losses) < num_steps and not (interrupt.asked or record.stopped):
                new = self._steps(record.room(num_steps), args, kwargs, callback is None)
                losses += new
                for loss in new:
                    progress.update(loss)
                if callback is not None:
                    record.stopped = callback(len(losses) - 1, losses[-1]) is True
                record.update()
            record.close()
        if self._waiting is not None:  # a finished run was restored, and there was no step
            self._resume(args, kwargs)
        return SVIResult(
            params=self.get_params(),
            losses=np.array(losses),
            svi=self,
            args=args,
            kwargs=kwargs,
            interrupted=interrupt.asked,
            seconds=record.elapsed,
        )

    def _steps(self, at_most, args, kwargs, several):
        """Take one step, or many natively if `several` may be taken; returns their losses."""
        losses = self._compiled.many(at_most, args, kwargs) if several else []
        if not losses:
            return [self.step(*args, **kwargs)]
        self._failures = 0
        return losses

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
        return self._compiled.explain(format=format, profile=profile)

    def get_params(self) -> dict[str, Any]:
        """Return copies of the constrained values of the `param` sites by name."""
        with no_grad():
            return {name: copied(value) for name, value in self.params.items()}

    # ------------------------------------------------------------------------- saving, resuming

    def _generator_states(self, known=None):
        """States of the generator of sample statements and of the default one.

        `known` has states by the id of their generator, in place of those they have now.
        """
        known = known or {}

        def state(generator):
            return known.get(id(generator)) or tuple(generator.get_state())

        own = None if self.generator is None else state(self.generator)
        return own, state(default_generator)

    def _set_generator_states(self, states):
        own, default = states
        if own is not None and self.generator is not None:
            self.generator.set_state(own)
        default_generator.set_state(default)

    def state_dict(self) -> dict[str, Any]:
        """Return all that the next steps depend on, as copies.

        Returns
        -------
        dict
            Nested dicts, lists, numbers, strings and tensors, nothing else: parameters
            (unconstrained), the buffers of modules that `module` stated, the optimizer's state, the
            objective's, the generators', where the loaders of plates stand, and the number of
            steps.
        """
        if self._waiting is not None:
            return dict(self._waiting)
        generator, default = self._generator_states()
        remembered = getattr(self.objective, "state_dict", dict)()
        return {
            "format": STATE_FORMAT,
            "num_steps": self.num_steps,
            "updater": self._updater.state_dict(),
            "buffers": {name: copied(b) for name, b in self.params.buffers.items()},
            "objective": remembered,
            "loaders": self.feed.state_dict(),
            "generator": generator,
            "default_generator": default,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned; the steps after it are then the same bit for bit.

        Parameters
        ----------
        state : dict
            Of an SVI with the same model, guide, optimizer and objective.

        Raises
        ------
        ArgumentError
            If the state has another layout or other parameters.

        Notes
        -----
        The default generator is set too: dropout and the like draw from it. Where parameters do not
        exist yet, the state waits for the first step.
        """
        if state.get("format") != STATE_FORMAT:
            raise ArgumentError(
                "SVI.load_state_dict",
                expected=f"a state of format {STATE_FORMAT}, made by state_dict()",
                got=f"format {state.get('format')!r}",
                fix="load it with the version of the library that saved it",
            )
        self._waiting, self._good, self._failures = state, None, 0
        self.num_steps = state["num_steps"]
        # At once, since a loader may draw before the first step.
        self._set_generator_states((state["generator"], state["default_generator"]))
        names = {n for n in state["updater"]["params"] if not n.startswith("optim.")}
        if names <= set(self.params):
            self._resume()

    def _resume(self, args=None, kwargs=None):
        """Bring the waiting state into force, after making the parameters if `args` are given."""
        state: Any = self._waiting
        if args is not None:
            self.setup(*args, **(kwargs or {}))
        self._updater.load_state_dict(state["updater"], dict(self.params.named_parameters()))
        for name, saved in state["buffers"].items():
            overwrite(self.params.buffers[name], saved._data)
        self._waiting = None
        self.feed.load_state_dict(state["loaders"])
        if hasattr(self.objective, "load_state_dict"):
            self.objective.load_state_dict(state["objective"])

    def __repr__(self) -> str:
        names = (getattr(f, "__name__", type(f).__name__) for f in (self.model, self.guide))
        return f"SVI({', '.join(names)}, {type(self.objective).__name__}, {self.num_steps} steps)"


class _Interrupt:
    """Turns Ctrl-C into a note, so that no step is torn; a second one raises as usual."""

    def __init__(self):
        self.asked = False
        self._before: Any = None

    def __enter__(self):
        # Only the main thread may; and who set a handler of his own wants to keep it.
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def _note(self, number, frame):
        if self.asked:
            raise KeyboardInterrupt("interrupted twice")
        self.asked = True

    def __exit__(self, *exc):
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)


def _number(loss):
    return float(loss.item()) if hasattr(loss, "item") else float(loss)


def _all_finite(array):
    """Whether all entries are finite, by their sum unless that is not."""
    with np.errstate(all="ignore"):
        return math.isfinite(float(array.sum())) or bool(abs(array).max() < math.inf)
