"""Ctrl-C while native code runs a loop: Python's signal handlers get their turn now and then.

A signal only notes that it came: its handler is Python code, which the main thread runs when it is
back in Python. A loop whose end depends on its numbers may never end, so every loop of a program
counts its rounds down, and when none are left asks `pt_poll`. That looks at the clock first: below
`_OFTEN` since it was asked the last time, it gives four times as many rounds; otherwise it lets the
handlers run, and gives fewer rounds if it was asked too late. So a round costs a subtraction and a
branch, and a loop of short rounds is stopped within a tenth of a second. Where a round takes longer
than that, the first four pass before the handlers have a turn, and one between later turns.

What a handler raises (KeyboardInterrupt, mostly) is kept here, with the thread it is for; the
program returns a status that is not 0, and `compiler/native/interrupts.py` raises it in Python.
"""

import time

from probtorch.compiler.lang.function import KernelRoutine

__all__ = ["DECLARATIONS", "MEMORY", "MODULE", "ROUNDS", "ROUTINES", "supported"]

MODULE = "interrupts"
# Rounds before the first question.
ROUNDS = 1
# Nanoseconds between two turns of the handlers: at least, and wanted at most.
_OFTEN, _SELDOM = 20_000_000, 80_000_000
_MOST_ROUNDS = 1 << 40

# What a run hands on: the rounds that are left, the time of the last question (0 before the first),
# the rounds that were given then.
_LEFT, _ASKED, _GIVEN = range(3)
# Of the process: the thread that an exception is for (0 for none), and its type, value, traceback.
_OWNER, _TYPE, _VALUE, _TRACEBACK = range(4)

DECLARATIONS = (
    "@interrupt = internal global [4 x i64] zeroinitializer, align 64",
    "declare i32 @clock_gettime(i32, ptr)",
    "declare i32 @PyGILState_Ensure()",
    "declare void @PyGILState_Release(i32)",
    "declare i32 @PyErr_CheckSignals()",
    "declare void @PyErr_Fetch(ptr, ptr, ptr)",
    "declare i64 @PyThread_get_thread_ident()",
)


# What `pt_poll` says of itself to who calls it: of the memory that a program knows, it reads and
# writes the rounds alone. So what a loop reads need not be read anew after each question. (What a
# handler writes into arrays comes as if another thread had written it: now or with the next run.)
MEMORY = "memory(argmem: readwrite, inaccessiblemem: readwrite)"


def supported():
    """Whether there is a clock that native code can read: not on Windows."""
    return hasattr(time, "clock_gettime")


def _word(w, k):
    return w.offset(w.symbol("interrupt"), k, "i64")


def _listen(w):
    """Let Python's signal handlers run; returns 1 if one has raised an exception in this thread."""
    held = w.call("PyGILState_Ensure", "i32")
    failed = w.call("PyErr_CheckSignals", "i32")
    thread = w.call("PyThread_get_thread_ident", "i64")
    with w.when(failed != 0):
        w.call("PyErr_Fetch", "void", *(_word(w, k) for k in (_TYPE, _VALUE, _TRACEBACK)))
        w.store_at(thread, _word(w, _OWNER))
    stopped = w.where(w.load_at(_word(w, _OWNER), "i64") == thread, w.whole(1), w.whole(0))
    w.call("PyGILState_Release", "void", held)
    return stopped


def _poll(w, run):
    """Say whether a loop must end (1) or goes on (0), with the rounds until the next question."""
    clock = w.on_stack(2, "i64")
    w.call("clock_gettime", "i32", w.value(time.CLOCK_MONOTONIC, "i32"), clock)
    now = w.load(clock, 0, "i64") * 1_000_000_000 + w.load(clock, 1, "i64")
    before, rounds = w.load(run, _ASKED, "i64"), w.variable("i64", w.load(run, _GIVEN, "i64"))
    passed, stop = now - before, w.variable("i64", 0)
    often, seldom = w.branch(w.logical_or(before <= 0, passed < _OFTEN))
    with often:
        rounds.value = w.minimum(rounds.value * 4, w.whole(_MOST_ROUNDS))
    with seldom:
        stop.value = w.call("listen", "i64")
        with w.when(passed > _SELDOM):
            rounds.value = w.maximum(rounds.value >> 2, w.whole(1))
    for k, x in ((_LEFT, rounds.value), (_GIVEN, rounds.value), (_ASKED, now)):
        w.store(run, k, x, "i64")
    return stop.value


ROUTINES = {
    "listen": KernelRoutine(_listen, "", "i64"),
    "pt_poll": KernelRoutine(_poll, "ptr", "i64"),
    "pt_interrupt": KernelRoutine(lambda w: w.symbol("interrupt"), "", "ptr"),
}
