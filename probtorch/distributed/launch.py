"""`spawn`: ranks as processes of this machine, for tests and for servers without MPI."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Literal

from probtorch.core.signatures import explain_calls
from probtorch.distributed.communicator import TIMEOUT, DistributedError
from probtorch.distributed.group import destroy_process_group, init_process_group
from probtorch.distributed.pipes import PipeCommunicator
from probtorch.errors import ArgumentError

__all__ = ["spawn"]

# Seconds that the other ranks have to end by themselves when one has failed.
GRACE = 2.0


def spawn(
    fn: Callable[..., object],
    args: Sequence[object] = (),
    nprocs: int = 2,
    *,
    timeout: float = TIMEOUT,
    start_method: Literal["fork", "spawn", "forkserver"] | None = None,
) -> list[object]:
    """Run a function in several processes of this machine, which are the ranks of one run.

    Parameters
    ----------
    fn : callable
        Called as ``fn(rank, *args)`` in each. Under the start method "spawn" it has to be a
        function of a module, as for `multiprocessing`.
    args : sequence
    nprocs : int
        How many.
    timeout : float
        Seconds that any rank may wait for another.
    start_method : str, optional
        "fork", "spawn" or "forkserver"; by default "fork" on Linux where no other thread runs, else
        "spawn".

    Returns
    -------
    list
        What each returned, in the order of ranks; anything that pickles.

    Raises
    ------
    DistributedError
        If a rank failed or was killed; it has the rank's number, its error and the last checkpoint.
        The others are ended. The rank's own traceback is on stderr.

    Examples
    --------
    >>> from probtorch.distributed import get_world_size, spawn
    >>> def hello(rank):
    ...     return rank, get_world_size()
    >>> spawn(hello, nprocs=2)
    [(0, 2), (1, 2)]
    """
    if not isinstance(nprocs, int) or nprocs < 1:
        raise ArgumentError(
            "spawn(nprocs=...)", expected="how many processes", got=repr(nprocs), fix="pass an int"
        )
    if start_method is None:
        forks = sys.platform == "linux" and threading.active_count() == 1
        start_method = "fork" if forks else "spawn"
    context = multiprocessing.get_context(start_method)
    start: Callable[..., BaseProcess] = vars(type(context))["Process"]  # not of their base
    to_hub = {rank: socket.socketpair() for rank in range(1, nprocs)}
    results = [context.Pipe(duplex=False) for _ in range(nprocs)]
    processes: list[BaseProcess] = []
    sys.stdout.flush()
    sys.stderr.flush()
    for rank in range(nprocs):
        mine = {r: ours for r, (ours, _) in to_hub.items()} if not rank else {0: to_hub[rank][1]}
        # Ends that a forked process has by inheritance would keep dead ranks' pipes open.
        others: list[Connection | socket.socket]
        others = [end for pair in to_hub.values() for end in pair if end not in mine.values()]
        others += [r for r, _ in results] + [w for i, (_, w) in enumerate(results) if i != rank]
        unused = others if start_method == "fork" else []
        process = start(
            target=_main,
            args=(fn, rank, nprocs, mine, results[rank][1], tuple(args), timeout, unused),
            name=f"rank {rank}",
        )
        process.start()
        processes.append(process)
    for pair in to_hub.values():
        for end in pair:
            end.close()
    for _, result in results:
        result.close()
    return _results(processes, [r for r, _ in results])


def _main(
    fn: Callable[..., object],
    rank: int,
    size: int,
    pipes: dict[int, socket.socket],
    result: Connection,
    args: tuple[object, ...],
    timeout: float,
    unused: Sequence[Connection | socket.socket],
) -> None:
    """What a rank does: the function, and a word on how it ended."""
    for end in unused:
        end.close()
    ranks = PipeCommunicator(rank, size, pipes, timeout)
    init_process_group(ranks)
    try:
        value = fn(rank, *args)
        # It may be the one rank that knows: others can die after it has ended.
        found: tuple[str, object, str] = ("ok", value, ranks.last_checkpoint())
    except KeyboardInterrupt:
        found = ("lost", "interrupted", ranks.last_checkpoint())
    except BaseException as error:
        saved = ranks.last_checkpoint()
        kind = "lost" if isinstance(error, DistributedError) else "error"
        found = (kind, f"{type(error).__name__}: {error}".split("\n")[0], saved)
        if kind == "error":
            print(f"rank {rank} of {size}:\n{traceback.format_exc()}", file=sys.stderr)
    destroy_process_group()
    # After Ctrl-C nobody may be there to listen.
    with contextlib.suppress(OSError):
        try:
            result.send(found)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            result.send(("error", f"what rank {rank} returned does not pickle: {error}", ""))
    sys.stdout.flush()
    sys.stderr.flush()
    # Nothing of the parent's is cleared away twice.
    os._exit(0 if found[0] == "ok" else 1)


def _results(processes: Sequence[BaseProcess], pipes: list[Connection]) -> list[object]:
    """Wait for all ranks; end the others when one has failed."""
    found: dict[int, tuple[str, object, str]] = {}
    open_ = dict(enumerate(pipes))
    late: float | None = None
    try:
        while open_:
            ready = wait(list(open_.values()), late)
            if not ready:
                break
            for rank in [r for r, pipe in open_.items() if pipe in ready]:
                pipe = open_.pop(rank)
                try:
                    found[rank] = pipe.recv()
                except EOFError:
                    processes[rank].join()
                    found[rank] = "died", _died(processes[rank].exitcode), ""
                if found[rank][0] != "ok":
                    late = GRACE
    finally:
        for process in processes:
            if late is not None or sys.exc_info()[0] is not None:
                process.terminate()
            process.join(GRACE)
            if process.is_alive():
                process.kill()
    failed = {r: x for r, x in found.items() if x[0] != "ok"}
    if not failed:
        return [found[r][1] for r in range(len(pipes))]
    # The one that began it: others were lost because of it.
    order = {"error": 0, "died": 0, "lost": 1}
    rank = min(failed, key=lambda r: (order[failed[r][0]], r))
    kind, what, _ = failed[rank]
    saved = next((x[2] for x in found.values() if x[2]), "")
    raise DistributedError(
        f"rank {rank} of {len(pipes)} {'was lost' if kind == 'lost' else 'failed'}",
        expected="all ranks to end well",
        got=f"{what}; last checkpoint: {saved or 'none'}",
        fix="mend what failed and start again: a run with checkpoint=... goes on from there",
    )


def _died(code: int | None) -> str:
    """How a process ended that said nothing."""
    if code is not None and code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code} before it returned"


explain_calls(globals())
