"""`FitState`: all that the next steps of a fit depend on, as data.

A step takes a state and a batch to another state. So keeping a state is a way back, saving one is a
way to go on in another process, and whether a step is taken eagerly or natively is nobody's
business. fit.py has the memory that a state is read from and written to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import record
from probtorch.core.typed import Tree
from probtorch.errors import ArgumentError

__all__ = ["FitState", "StepInfo"]

# The reader of a state refuses others: a later layout gets a later number.
STATE_FORMAT = 1


# Seed, stream and counter of the generator of sample statements, if there is one, and of the
# default one.
GeneratorStates: TypeAlias = tuple[tuple[int, int, int] | None, tuple[int, int, int]]


@record
class FitState:
    """Where a fit stands. All tensors are copies; nothing changes them.

    Attributes
    ----------
    params : dict of str to Tensor
        Unconstrained numbers by name; those of an optimizer made over them are ``optim.0`` ...
    optimizer : dict
        ``optim``: the optimizer's own state; ``groups``: names by group, where it has groups. Empty
        before there is one.
    buffers : dict of str to Tensor
        Of the modules that `module` stated: running means and the like.
    objective : dict
        What the objective remembers from step to step.
    generators : tuple
        States of the generator of sample statements (None without one) and of the default one.
    loaders : dict
        Where the loaders of plates stand.
    step : int
        Steps taken.
    failures : int
        How many of the last ones in a row were refused: their numbers were not finite.
    shapes : tuple of int
        Which shapes of arguments later steps have had; see `CompiledStep`.
    changes : int
        Ahead of how many of the last steps in a row a Python value was changed that they read.
    inputs : tuple of tuple of int
        Which numbers of Python's are inputs of native steps; see `CompiledFunction`.
    """

    params: dict[str, TensorBase]
    optimizer: dict[str, Tree]
    buffers: dict[str, TensorBase]
    objective: dict[str, Tree]
    generators: GeneratorStates
    loaders: dict[str, Tree]
    step: int = 0
    failures: int = 0
    shapes: tuple[int, ...] = ()
    changes: int = 0
    inputs: tuple[tuple[int, ...], ...] = ()

    def to_dict(self) -> dict[str, Tree]:
        """Return the state in nested dicts, lists, numbers and tensors, for `probtorch.save`."""
        generator, default = self.generators
        return {
            "format": STATE_FORMAT,
            "num_steps": self.step,
            "failures": self.failures,
            "updater": {"params": self.params, **self.optimizer},
            "buffers": self.buffers,
            "objective": self.objective,
            "loaders": self.loaders,
            "shapes": list(self.shapes),
            "changes": self.changes,
            "inputs": [list(x) for x in self.inputs],
            "generator": generator,
            "default_generator": default,
        }

    @classmethod
    def of_dict(cls, state: Mapping[str, Tree]) -> FitState:
        """Return the state that `to_dict` was called on.

        Raises
        ------
        ArgumentError
            If it has another layout.
        """
        if state.get("format") != STATE_FORMAT:
            raise ArgumentError(
                "SVI.load_state_dict",
                expected=f"a state of format {STATE_FORMAT}, made by state_dict()",
                got=f"format {state.get('format')!r}",
                fix="load it with the version of the library that saved it",
            )
        optimizer = dict(state["updater"])
        return cls(
            params=optimizer.pop("params"),
            optimizer=optimizer,
            buffers=state["buffers"],
            objective=state["objective"],
            generators=(state["generator"], state["default_generator"]),
            loaders=state["loaders"],
            step=state["num_steps"],
            failures=state.get("failures", 0),  # earlier releases saved it elsewhere
            shapes=tuple(state.get("shapes", ())),
            changes=state.get("changes", 0),
            inputs=tuple(tuple(x) for x in state.get("inputs", ())),
        )


@record
class StepInfo:
    """What happened in a step.

    Attributes
    ----------
    loss : float
        Before the move.
    refused : str or None
        What was not finite, in words; then nothing was moved.
    """

    loss: float
    refused: str | None = None
