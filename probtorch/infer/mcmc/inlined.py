"""A model's density as part of the sampler's program: all walkers at once, on a GPU.

A chain calls its density by an address (integrators.py), point by point: nothing that a GPU could
do. `InlinedDensity` is the density's own graph, with a batch dim of walkers, written into the
program of whoever calls it. So a chunk of transitions, densities and all, is kernels that follow
each other, and nothing goes to the host before it is over. The price is a program per model.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from probtorch.backends.registry import device_of, to_device, to_host
from probtorch.compiler.batching import batch_graph
from probtorch.compiler.program import NativeProgram
from probtorch.compiler.record.record import UNCHECKED, recording_lock, unheard
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import leaves, map_tree, record, static
from probtorch.core.typed import Tree
from probtorch.errors import CompileError
from probtorch.ops.arithmetic import where
from probtorch.ops.movement import reshape

if TYPE_CHECKING:
    from probtorch.compiler.density import NativeDensity
    from probtorch.compiler.graph import Graph

__all__ = ["DensityGraph", "InlinedDensity", "brought_home"]

T = TypeVar("T")


class DensityGraph:
    """What a density does, and the programs that do it.

    Parameters
    ----------
    name : str
        The density's.
    graph : Graph
        From a point to log density and gradient; arrays on the host.
    device : str
        Where the programs run.
    """

    def __init__(self, name: str, graph: Graph, device: str) -> None:
        self.name, self.graph, self.device = name, graph, device
        self._programs: dict[Hashable, NativeProgram] = {}
        self._lock = threading.Lock()

    def program(self, key: Hashable, fn: Callable[..., object], example: Tree) -> NativeProgram:
        """Return the sampler's program on the device, made where the key is met first.

        Raises
        ------
        CompileError
            If something in it has no form there.
        """
        with self._lock:
            if key not in self._programs:
                try:
                    self._programs[key] = NativeProgram(
                        fn, example, name="the sampler", device=self.device
                    )
                except CompileError as error:
                    raise _refused(self.name, str(error).partition("\n")[0]) from error
            return self._programs[key]


# Of each density, by device: a run that goes on has the programs of the one before.
_made: WeakKeyDictionary[NativeDensity, dict[str, DensityGraph]] = WeakKeyDictionary()


@record
class InlinedDensity:
    """A log density in tensor ops: ``inlined(q) -> (log density, gradient)``, of a point or rows.

    Parameters
    ----------
    of : DensityGraph
    """

    of: DensityGraph = static()

    @classmethod
    def made(cls, density: NativeDensity, point: np.ndarray, device: str) -> InlinedDensity:
        """Return a density for programs on a device, recorded at a point, shape (dim,).

        Raises
        ------
        CompileError
            If it cannot be recorded, or branches on values: then it takes one way for one walker
            and another for the next.
        """
        # "cuda" is the GPU in use, whose number programs have to know.
        device = device_of(to_device(np.zeros(1), device))
        with recording_lock, unheard():
            known = _made.setdefault(density, {})
            if device not in known:
                known[device] = DensityGraph(density.name, _recorded(density, point), device)
            return cls(of=known[device])

    def __call__(self, position: TensorBase) -> tuple[TensorBase, TensorBase]:
        if position.array.ndim == 1:
            values, grads = self(reshape(position, (1, -1)))
            return values[0], grads[0]
        size = position.array.shape[0]
        (values, grads), fits = batch_graph(self.of.graph, (True,), size)(position)
        if fits is not None:
            # As where one point is evaluated and its support left.
            values = where(fits, values, -np.inf)
            grads = where(reshape(fits, (size, 1)), grads, 0.0)
        return values, grads


def brought_home(tree: T) -> tuple[T, str | None]:
    """Return a tree whose tensors are on the host, and the GPU that one of them was on, if any.

    What a model makes of its arguments then agrees with values drawn on the host; the program of
    its density takes the data back to the GPU.
    """
    devices = [x.device for x in leaves(tree) if isinstance(x, TensorBase)]
    there = next((str(d) for d in devices if str(d) != "cpu"), None)
    if there is None:
        return tree, None
    return map_tree(lambda x: x.to("cpu") if isinstance(x, TensorBase) else x, tree), there


def _recorded(density: NativeDensity, point: np.ndarray) -> Graph:
    """The density's graph, as if all of its data were on the host: programs bring them along."""
    if density.reason is not None:
        raise _refused(density.name, *density.reason)
    rec = density.recorded(np.array(point))[0]
    if rec.unsupported:
        raise _refused(density.name, *rec.unsupported[0])
    if rec.graph.guards:
        raise _refused(density.name, "a branch on a value", rec.graph.guards[0][2].place)
    _adapt(rec.graph)
    return rec.graph


def _refused(name: str, reason: str, place: str = "") -> CompileError:
    return CompileError(
        name,
        expected="ops with a form on a GPU, which evaluate all walkers at once",
        got=f"{reason}{f' at {place}' if place else ''}",
        fix="leave device out to sample on the CPU; in the place of a branch write where(...)",
    )


def _adapt(graph: Graph) -> None:
    """Have a graph, and those of its loops and branches, work on the host, whatever its points are.

    A matrix that is not positive definite is not the end of all walkers: its factor, and with it
    the density of that one, is nan.
    """
    values = [*graph.outputs]
    for node in graph.nodes:
        if node.name == "to_device":
            node.attrs = {**node.attrs, "device": "cpu"}
        elif node.name in UNCHECKED and node.attrs.get("check"):
            node.attrs = {**node.attrs, "check": False}
        for inner in node.subgraphs():
            _adapt(inner)
        values += node.values()
    for value in values:
        if value.kind == "const":
            value.array = to_host(value.array)
