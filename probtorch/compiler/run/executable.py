"""`Executable`: what a recorded graph becomes, on any device; `CallFrame`: memory to run it in.

An executable is code and shared. A caller (a thread, most often) binds a frame and runs it:

    frame = executable.bind()
    outputs = frame.new_outputs()
    status = frame.run(inputs, outputs)

Status 0 says that every guard held: then the outputs are filled, and outside tensors that the
function changes have their new elements. With any other status nothing outside has changed.

`executor.py` has the CPU's, `gpu.py` the GPU's, `prepare.py` chooses. All else asks neither which
one it has nor what it is made of; what only one of them can do is a property here, or a method that
says what it could not do.
"""

from __future__ import annotations

import functools
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from probtorch.compiler.explain.explain import Explanation, explain
from probtorch.compiler.explain.profile import Kept
from probtorch.compiler.graph import Graph

if TYPE_CHECKING:
    from probtorch.compiler.machine.plans import StoredPlan
    from probtorch.compiler.nests.lowering import Lowering
    from probtorch.compiler.render.llvm import NestPlan
    from probtorch.core.tensor_base import TensorBase

__all__ = ["CallFrame", "Executable", "arrays_of", "owner_of"]

# A step of Python per tensor would take most of the time of a short call.
_ARRAY = operator.attrgetter("array")


def arrays_of(tensors: Sequence[TensorBase]) -> list[np.ndarray]:
    """Return the arrays that tensors have now."""
    return list(map(_ARRAY, tensors))


def owner_of(array: np.ndarray) -> object:
    """Return the object that owns the memory of an array; all arrays on GPUs count as one's."""
    if not isinstance(array, np.ndarray):
        return type(array)
    # NumPy keeps chains of views short.
    while isinstance(array, np.ndarray) and array.base is not None:
        array = array.base
    return array


class Executable(ABC):
    """Machine code or kernels of one recorded graph.

    Parameters
    ----------
    graph : Graph
        As recorded; belongs to the executable from here on.
    device : str
        Where it runs.

    Attributes
    ----------
    inputs, outputs : tuple of GraphValue
        For their shapes and dtypes; the last outputs are new contents of `updates`.
    updates : list of Tensor
        Outside tensors that it changes.
    kept : Kept
        The inputs of the last run, for a profile.
    seconds : dict of str to float
        What making it took, by "key", "passes", "render" and "native".
    from_cache : bool
        Whether the code was read from the disk cache.
    graph : Graph
        After the passes.
    lowering : Lowering
        The loop nests that the text was written from.
    plan : Plan
        Where each buffer lies.
    ir : str
        The generated text.
    """

    from_cache = False
    untimed = ""  # why `profile` cannot run it
    plan: NestPlan | StoredPlan
    if TYPE_CHECKING:  # some make them when they are asked for

        @property
        def graph(self) -> Graph: ...

        @property
        def lowering(self) -> Lowering: ...

        @property
        def ir(self) -> str: ...

    def __init__(self, graph: Graph, device: str) -> None:
        self.device = device
        self.inputs, self.outputs = tuple(graph.inputs), tuple(graph.outputs)
        self.updates = list(graph.updates.values())
        self.results = self.outputs[: len(self.outputs) - len(self.updates)]
        self.seconds: dict[str, float] = {}
        self.kept = Kept(graph)

    @property
    def notes(self) -> Sequence[str]:
        """What costs time, as sentences."""
        return ()

    @property
    def refs(self) -> list[TensorBase]:
        """The outside tensors that it reads; one may be there more than once."""
        return self.plan.refs

    @functools.cached_property
    def tensors(self) -> list[TensorBase]:
        """All outside tensors: those that are read, and those that are only written."""
        return list({id(t): t for t in (*self.refs, *self.updates)}.values())

    def keep(self, inputs: Sequence[np.ndarray]) -> None:
        """Remember inputs to be timed on, if it can be."""
        if not self.untimed:
            self.kept.keep([np.asarray(x, order="C") for x in inputs])

    @abstractmethod
    def kind(self, array: np.ndarray) -> tuple[Hashable, ...]:
        """Return what the code relies on of an outside tensor's array, besides its elements."""

    @abstractmethod
    def bind(
        self,
        arrays: list[np.ndarray] | None = None,
        *,
        saving: bool = False,
        old: CallFrame | None = None,
    ) -> CallFrame:
        """Return a `CallFrame`, memory to run it in.

        Parameters
        ----------
        arrays : list of array, optional
            Those of `tensors`, each of the kind that it was; read anew and written at each run.
            Without it those that the tensors have now.
        saving : bool
            Keep what updated tensors held before the last run, see `CallFrame.previous`.
        old : CallFrame, optional
            Of the same caller, with other arrays, not to be used any more unless it is returned.
        """

    def explain(self, *, format: str = "text", profile: bool = False) -> Explanation | str:
        """Return its guards, loop nests, memory and times; see `Compiled.explain`."""
        return explain("the program", [self], None, format=format, profile=profile)


class CallFrame(ABC):
    """One caller's memory for an executable; not for two threads at a time.

    Attributes
    ----------
    arrays : list of array
        Of the outside tensors, as they were when it was bound.
    entry : (int, int) or None
        Addresses of a C function ``int64 run(table)`` and of a table that begins with the addresses
        of inputs and outputs. None where only `run` can do it.
    repeats : bool
        Whether `repeat` may be called.
    """

    arrays: list[np.ndarray]
    entry: tuple[int, int] | None = None
    repeats = False

    @abstractmethod
    def new_outputs(self) -> list[np.ndarray]:
        """Return uninitialised arrays for the results, each on the device where it is to lie."""

    @abstractmethod
    def run(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> int:
        """Run, and update outside tensors; returns the status, 0 where all guards held.

        Parameters
        ----------
        inputs : sequence of array
        outputs : sequence of array
            As `new_outputs` returns them.
        """

    def fixed(
        self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
    ) -> Callable[[], int]:
        """Return `run` on contiguous arrays that stay where they are; then the frame is taken."""
        return functools.partial(self.run, inputs, outputs)

    def lanes(
        self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
    ) -> np.ndarray | None:
        """Return tables, one for each row of arrays of arguments and results, (rows, words).

        They share this frame's other memory, so that one is run after the other; results of fewer
        rows are written to in turn. The caller keeps all alive. None where there is no C function,
        or a run does more than read and write these.
        """
        return None

    def repeat(self, draws: np.ndarray, inputs: Sequence[np.ndarray], results: np.ndarray) -> int:
        """Run ``len(results)`` times without Python, the first results going into `results`.

        Parameters
        ----------
        draws : int64 array, shape (draws, 2)
            Address of a counter, and what it advances by between runs.
        inputs : sequence of array
        results : array, shape (runs, ...)

        Returns
        -------
        int
            How many runs were completed: fewer where a guard failed.
        """
        raise NotImplementedError(
            f"expected a frame of native code of processors, which repeats itself without "
            f"Python, got {type(self).__name__}: call run() for each run"
        )

    @abstractmethod
    def touched_by(self, arrays: Sequence[np.ndarray]) -> bool:
        """Whether one of the arrays may share memory with an updated tensor."""

    @abstractmethod
    def previous(self) -> list[np.ndarray]:
        """Return arrays with what updated tensors held before the last run."""

    def refresh(self) -> None:  # noqa: B027  most frames look at the tensors themselves
        """Take in what others have written to updated tensors since the last run."""
