"""`OwnKernel`: a call of a lowered program that is a device function of ours.

Made by `cuda_calls.py`, read by `cuda.py`.
"""

from dataclasses import dataclass

__all__ = ["MEMORY", "STATUS", "OwnKernel"]

# The argument of a function that may fail; and of one that has barriers across blocks, too.
STATUS, MEMORY = "(i64 *)M", "M"


@dataclass(frozen=True)
class OwnKernel:
    """A call that is a device function of ours.

    Attributes
    ----------
    function : str
    arguments : list
        Behind the numbers of blocks: buffers, pairs of buffer and offset, numbers, and names of the
        kernel's variables; `STATUS` or `MEMORY` among them if it can fail.
    threads : int
        That have something to do.
    work : int
        Steps in all.
    helpers : str
        Which text has the function, a key of `cuda.HELPERS`.
    together : bool
        Whether its blocks wait for each other: the kernel is started with all of them at once.
    """

    function: str
    arguments: list
    threads: int
    work: int
    helpers: str = "matrices"
    together: bool = False
