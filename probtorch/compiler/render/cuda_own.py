"""`OwnKernel`: a call of a lowered program that is a device function of ours.

Made by `cuda_calls.py`, read by `cuda.py`.
"""

from dataclasses import dataclass

__all__ = ["OwnKernel"]


@dataclass(frozen=True)
class OwnKernel:
    """A call that is a device function of ours.

    Attributes
    ----------
    function : str
        A symbol of `cuda_math.FUNCTIONS`, with `grid`.
    arguments : list
        Buffers, pairs of buffer and offset, numbers.
    threads : int
        That have something to do.
    work : int
        Steps in all.
    fails : bool
        Whether it may set the status.
    together : bool
        Whether its blocks wait for each other: the kernel is started with all of them at once.
    """

    function: str
    arguments: list[object]
    threads: int
    work: int
    fails: bool = False
    together: bool = False
