"""`FitMemory`: where the state of a fit lives, beside the model, guide and objective it is of.

Parameters belong to a store, to modules and to an optimizer at once, and compiled code knows their
tensors: so a state is not passed along, it is read from this memory (`take`) and written to it
(`put`, `load`), into the same tensors. What a step makes of the memory is eager_step.py and
compiled_step.py, which know nothing of each other; fit.py takes one or the other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from probtorch.core.dispatch import overwrite
from probtorch.core.rng import Generator, default_generator, generator_of
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import replace
from probtorch.core.typed import Tree
from probtorch.distributed.group import get_world_size
from probtorch.effects.handlers import seed as seed_handler
from probtorch.effects.minibatches import Feed
from probtorch.effects.params import ParamStore
from probtorch.infer.model_runs import lifted
from probtorch.infer.objectives.elbo import Trace_ELBO
from probtorch.infer.objectives.loss_function import Loss, as_objective
from probtorch.infer.objectives.runs import is_precise, same_draws
from probtorch.infer.run_identity import objective_options, options_of
from probtorch.infer.vi.fit_state import FitState, GeneratorStates
from probtorch.infer.vi.shared_steps import shared_loss_and_grads
from probtorch.infer.vi.updater import Optim, Updater, copied

if TYPE_CHECKING:
    from probtorch.infer.objectives.protocol import Guide, Model
    from probtorch.optim.optimizer import Optimizer
    from probtorch.optim.pyro import PyroOptim


__all__ = ["FitMemory", "number"]


class FitMemory:
    """The memory of an `SVI` object, which has the parameters and attributes that users know.

    Attributes
    ----------
    updater : Updater
        The optimizer, and the parameters that it moves.
    own_loss_and_grads : callable or None
        What was given in place of the objective's.
    identity : dict
        What a checkpoint has to agree in, as it was given.
    distributed : bool
        Whether the processes of a run take steps together.
    failures : int
        How many of the last steps in a row were refused.
    waiting : FitState or None
        A state that waits for the first run, in which the parameters come into being.
    shapes : dict of int to None
        Shapes of arguments that steps after the first one have had, in order.
    changes : int
        Ahead of how many of the last steps in a row a Python value was changed that they read.
    inputs : tuple
        Which numbers of Python's are inputs of native steps.
    good : callable or None
        Returns the state before the last step that was well.
    """

    def __init__(
        self,
        model: Callable[..., object],
        guide: Callable[..., object],
        optim: Optim,
        loss: Loss | None,
        loss_and_grads: Callable[..., TensorBase | float] | None,
        params: ParamStore | None,
        seed: int | Generator | None,
        patience: int | None,
        optim_args: Mapping[str, object],
        distributed: bool = False,
    ) -> None:
        self.model, self.guide = model, guide
        self.objective: Loss = Trace_ELBO() if loss is None else loss
        self.params = ParamStore() if params is None else params
        self.generator = None if seed is None else generator_of(seed)
        self.patience = patience
        self.trained_before: dict[str, TensorBase] = {}
        self.num_steps = self.failures = 0
        self.shapes: dict[int, None] = {}
        self.changes = 0
        self.inputs: tuple[tuple[int, ...], ...] = ()
        self.feed = Feed(lifted if is_precise(guide) else None)
        self.distributed = self.feed.joins_shards = bool(distributed)
        self.own_loss_and_grads = loss_and_grads
        own = self.generator
        self.identity = {
            "seed": None if own is None else [own.initial_seed(), own.stream],
            "optimizer": options_of(optim, optim_args),
            "objective": objective_options(self.objective),
        }
        self.updater = Updater(optim, optim_args)
        self.waiting: FitState | None = None
        self.good: Callable[[], FitState] | None = None

    def __getstate__(self) -> dict[str, object]:
        # The way back from a step that fails may be code over this object's own memory.
        return {**self.__dict__, "good": None}

    @property
    def in_company(self) -> bool:
        """Whether steps are taken together with other processes."""
        return self.distributed and get_world_size() > 1

    @property
    def optim(self) -> Optimizer | PyroOptim | None:
        """The optimizer; None for one given as a class, before the first step."""
        return self.updater.optimizer

    # ---------------------------------------------------------------------------------- losses

    def loss(
        self, model: Model, guide: Guide, *args: object, **kwargs: object
    ) -> TensorBase | float:
        """Return the objective's loss for another model and guide, as Pyro's attribute does."""
        return as_objective(self.objective).loss(model, guide, *args, **kwargs)

    def loss_and_grads(self, model: Model, guide: Guide, *args: object, **kwargs: object) -> float:
        """Return the loss and add its gradients to the ``.grad`` of the parameters."""
        own = self.own_loss_and_grads or as_objective(self.objective).loss_and_grads
        if not self.in_company:
            return number(own(model, guide, *args, **kwargs))
        return shared_loss_and_grads(self, lambda: number(own(model, guide, *args, **kwargs)))

    def quick_gradients(
        self, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Callable[[], float] | None:
        """Return what estimates the loss of this rank and adds gradients, by compiled code.

        None where it is Python that does; see `CompiledGradients`.
        """
        return None

    def own_gradients(self) -> str | None:
        """Say who computes the gradients, if they are not those of the objective's estimates."""
        if self.own_loss_and_grads is not None:
            return "loss_and_grads= was given"
        if "loss_and_grads" in vars(self):
            return "loss_and_grads of the SVI object was replaced"
        if as_objective(self.objective).own_gradients:
            return f"{type(self.objective).__name__} computes its gradients itself"
        return None

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Context manager: parameters in the store of this object, draws from its generator."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.params.activate())
            stack.enter_context(self.feed.activate())
            if self.generator is not None:
                stack.enter_context(seed_handler(None, self.generator))
            yield

    def setup(self, *args: object, **kwargs: object) -> None:
        """Run guide and model once, so that all parameters exist; `step` does it by itself.

        The generators go back to where they were, and so do buffers of modules.
        """
        with self.active(), same_draws(), _unmoved(self.params):
            next(iter(as_objective(self.objective).runs(self.model, self.guide, args, kwargs)))

    # -------------------------------------------------------------------------------- the state

    def around(self) -> dict[str, Any]:
        """Return the fields of a state that have nothing to do with parameters."""
        return {
            "buffers": {name: copied(b) for name, b in self.params.buffers.items()},
            "objective": as_objective(self.objective).state_dict(),
            "generators": self.generator_states(),
            "loaders": self.feed.state_dict(),
            "step": self.num_steps,
            "failures": self.failures,
            "shapes": tuple(self.shapes),
            "changes": self.changes,
            "inputs": self.inputs,
        }

    def take(self, **known: object) -> FitState:
        """Return the state that the memory holds, in copies; but for fields that are `known`."""
        return FitState(**{**self.around(), **self.updater.take(), **known})

    def restore(self, state: FitState) -> None:
        """Write back what a step moves, and not what it uses up: draws, batches, its number."""
        self.updater.put(state)
        for name, saved in state.buffers.items():
            overwrite(self.params.buffers[name], saved.array)
        as_objective(self.objective).load_state_dict(state.objective)

    def put(self, state: FitState) -> None:
        """Go to a state of this fit: an earlier one undoes all steps since.

        Options of the optimizer stay as they are: they are the user's, a step does not move them.
        """
        self.restore(state)
        self.set_generator_states(state.generators)
        self.feed.load_state_dict(state.loaders)
        self.num_steps, self.failures = state.step, state.failures
        self.shapes, self.changes = dict.fromkeys(state.shapes), state.changes
        self.inputs = state.inputs

    def load(self, state: FitState) -> None:
        """Go to a state that may come from elsewhere, options of the optimizer included.

        Raises
        ------
        ArgumentError
            If it is of other parameters.
        """
        self.updater.load(state, dict(self.params.named_parameters()))
        self.put(state)
        self.waiting = self.good = None

    def generator_states(self) -> GeneratorStates:
        """Return the states of the generator of sample statements and of the default one."""
        own = None if self.generator is None else self.generator.get_state()[:]
        return own, default_generator.get_state()[:]

    def set_generator_states(self, states: GeneratorStates) -> None:
        """Set both."""
        own, default = states
        if own is not None and self.generator is not None:
            self.generator.set_state(own)
        default_generator.set_state(default)

    # ------------------------------------------------------------------------- saving, resuming

    def state_dict(self) -> dict[str, Tree]:
        """Return all that the next steps depend on, as copies.

        Returns
        -------
        dict
            Nested dicts, lists, numbers, strings and tensors, nothing else: parameters
            (unconstrained), the buffers of modules that `module` stated, the optimizer's state, the
            objective's, the generators', where the loaders of plates stand, and the number of
            steps.
        """
        return (self.waiting or self.take()).to_dict()

    def load_state_dict(self, state: Mapping[str, Tree]) -> None:
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
        found = FitState.of_dict(state)
        self.waiting, self.good = found, None
        self.num_steps, self.failures = found.step, found.failures
        # At once, since a loader may draw before the first step.
        self.set_generator_states(found.generators)
        if self._has(found):
            self.load(found)

    def _has(self, state: FitState) -> bool:
        """Whether there are the parameters of a state."""
        return {n for n in state.params if not n.startswith("optim.")} <= set(self.params)

    def meet(self, state: FitState, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Make the parameters of a state, by a run, if they are not there."""
        if not self._has(state):
            self.setup(*args, **kwargs)

    def resume(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Bring a state that waits into force."""
        if self.waiting is not None:
            self.meet(self.waiting, args, kwargs)
            # They were set when the state came; since then a loader may have drawn.
            self.load(replace(self.waiting, generators=self.generator_states()))


class _Noted(dict[str, TensorBase]):
    """Buffers by name, with what each held when it was met."""

    def __init__(self, met: dict[str, TensorBase]) -> None:
        super().__init__(met)
        self.held = [(b, copied(b).array) for b in met.values()]

    def __setitem__(self, name: str, b: TensorBase) -> None:
        if self.get(name) is not b:
            self.held.append((b, copied(b).array))
        super().__setitem__(name, b)


@contextlib.contextmanager
def _unmoved(store: ParamStore) -> Iterator[None]:
    """Context manager: buffers hold at the end what they held when they were met."""
    met, store.buffers = store.buffers, _Noted(store.buffers)
    try:
        yield
    finally:
        for b, before in reversed(store.buffers.held):
            overwrite(b, before)
        met.update(store.buffers)
        store.buffers = met


def number(loss: TensorBase | float) -> float:
    """Return a loss as a number."""
    return float(loss.item()) if hasattr(loss, "item") else float(loss)
