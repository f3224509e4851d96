"""What the executor of a GPU runs: starts of kernels, library calls, loops of the host."""

from dataclasses import dataclass, field

from probtorch.compiler.lang.cuda import THREADS
from probtorch.compiler.render.llvm import NestPlan

__all__ = ["ALIGN", "HostLoop", "Launch", "LibraryCall", "Schedule"]

# Bytes from one part of the memory to the next.
ALIGN = 256


@dataclass(frozen=True)
class Launch:
    """Start of a kernel; its arguments are the memory and the outside buffers.

    The blocks of one that is started `together` wait for each other: no more of them are started
    than the device holds at once.
    """

    kernel: str
    outside: tuple
    blocks: int
    together: bool = False


@dataclass(frozen=True)
class LibraryCall:
    """A function of the array module and flat arrays.

    `name` is that of the op or call; `product` tells whether it multiplies matrices.
    """

    fn: object
    buffers: tuple
    attrs: dict
    name: str
    product: bool


@dataclass(frozen=True)
class HostLoop:
    """Run `test`, read the bool at `flag` (bytes from the start of the memory), run `body`."""

    test: list
    flag: int
    body: list


@dataclass
class Schedule:
    """What the executor runs.

    Attributes
    ----------
    source : str
    steps : list of Launch, LibraryCall and HostLoop
    plan : Plan
    packed, scalars, arena, nbytes : int
        Where the parts of the memory begin, and its size.
    updates : list of int
        Outputs that the last kernels exchange with the tensors whose new elements they are.
    words : list of (str, list of int)
        Kernels that store numbers of the host, and the references that these are: their arguments
        are the memory and, as 64 bits each, the numbers.
    checked : bool
        Whether the status word must be read.
    notes : list of str
        What costs a synchronisation or a break in the graph, for `explain`.
    threads : int
        Of each block.
    """

    source: str = ""
    steps: list = field(default_factory=list)
    plan: NestPlan | None = None
    packed: int = ALIGN
    scalars: int = 0
    arena: int = 0
    nbytes: int = 0
    updates: list = field(default_factory=list)
    words: list = field(default_factory=list)
    checked: bool = False
    notes: list = field(default_factory=list)
    threads: int = THREADS

    def kernels(self):
        """Return the names of all kernels."""
        launches = [s.kernel for s in self.every_step() if isinstance(s, Launch)]
        return [*launches, *(kernel for kernel, _ in self.words)]

    def word_slots(self):
        """Return the references that are numbers of the host."""
        return {slot for _, slots in self.words for slot in slots}

    def every_step(self):
        """Yield the launches and library calls, those in loops too."""
        yield from _flat(self.steps)

    def parts(self, captured):
        """Return the steps with those that follow each other and can be captured in lists; a loop
        is (parts of its test, place of the flag, parts of its body).

        Parameters
        ----------
        captured : callable
            Whether a launch or library call can be part of a CUDA graph.
        """
        return _parts(self.steps, captured)


def _flat(steps):
    for s in steps:
        if isinstance(s, HostLoop):
            yield from _flat(s.test)
            yield from _flat(s.body)
        else:
            yield s


def _parts(steps, captured):
    parts: list[object] = []
    for s in steps:
        if isinstance(s, HostLoop):
            parts.append((_parts(s.test, captured), s.flag, _parts(s.body, captured)))
        elif not captured(s):
            parts.append(s)
        elif parts and isinstance(parts[-1], list):
            parts[-1].append(s)
        else:
            parts.append([s])
    return parts
