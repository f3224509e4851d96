"""`prepare`: the executable of a recorded graph, for the device that its arrays are on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probtorch.compiler.graph import Graph
from probtorch.compiler.run.executable import Executable
from probtorch.compiler.run.executor import CpuProgram
from probtorch.compiler.run.gpu import GpuProgram

__all__ = ["prepare"]


def prepare(
    graph: Graph, devices: Iterable[str | None] = (), results: Sequence[str] | None = None
) -> Executable:
    """Compile a recorded graph.

    Parameters
    ----------
    graph : Graph
        Belongs to the executable from here on.
    devices : iterable of str
        Of all arrays that take part: it runs on the first GPU among them, else on the CPU. None
        stands for the CPU.
    results : sequence of str, optional
        The device of each result; without it results stay where the program runs.

    Raises
    ------
    CompileError
        If something in it has no form on that device.
    """
    device = next((d for d in devices if d is not None and d != "cpu"), None)
    if device is None:
        return CpuProgram(graph)
    return GpuProgram(graph, device, results)
