"""The pool of threads that large loop nests share, in native code.

A nest that is worth it is cut into parts when its program is made (`render/parts.py`); a part is
a call ``body(context, number)``. `pt_parallel` runs all parts of a nest. The thread that calls it
opens a *region*: it publishes the body, opens a gate with as many seats as there are helpers,
takes parts by counting up one shared number, and when none are left closes the gate and waits for
the helpers that came in. A helper is a POSIX thread: it spins for a short while before it sleeps on
a condition, so the second of two nests finds it awake.

There is one region at a time. Who calls while another thread has it, or where one thread is
allowed, runs the parts in order on its own, which gives the same bits: parts are the same whoever
runs them. Helpers are started by the first region that needs them, with all signals blocked, so
Ctrl-C arrives where Python waits for it. A forked child has none, and starts anew (`pt_pool_reset`,
called there by `compiler/native/threads.py`); `pt_pool_stop` ends them before the process ends.

The gate decides who is in: a helper enters by counting the seats down, and closing exchanges what
is left for 0, so the caller knows how many to wait for. Sleeping and waking follow Dekker: the
caller opens the gate, then looks for sleepers; a helper notes that it sleeps, then looks at the
gate again; all of it sequentially consistent.
"""

import signal
import sys

from probtorch.compiler.lang.function import KernelRoutine
from probtorch.compiler.lang.nodes import Cast
from probtorch.compiler.native import host

__all__ = ["DECLARATIONS", "MODULE", "ROUTINES", "supported"]

MODULE = "pool"
# Helpers at most, whatever is asked for.
_MOST = 255
# Rounds of waiting before a helper sleeps, and before a caller that waits for helpers gives its
# core away. A round is a load and a pause: 10 to 50 ns, so helpers stay awake for 40 us or more.
_ROUNDS = 2000

# The words of the pool that several threads write have cache lines of 8 words for themselves.
_LIMIT, _STARTED, _QUIT, _BODY, _CONTEXT, _PARTS, _STATUS = range(7)
_TAKEN, _GATE, _NEXT, _DONE, _SLEEPERS = 8, 16, 24, 32, 40
# More than any system's pthread_mutex_t and pthread_cond_t.
_MUTEX, _CONDITION, _THREADS = 48, 64, 80
_WORDS = _THREADS + _MOST + 1
# Bytes of a sigset_t: 128 in glibc and musl.
_SIGNALS = 128

DECLARATIONS = (
    f"@pool = internal global [{_WORDS} x i64] zeroinitializer, align 64",
    "declare i32 @pthread_create(ptr, ptr, ptr, ptr)",
    "declare i32 @pthread_join(i64, ptr)",
    "declare i32 @pthread_mutex_init(ptr, ptr)",
    "declare i32 @pthread_mutex_lock(ptr)",
    "declare i32 @pthread_mutex_unlock(ptr)",
    "declare i32 @pthread_cond_init(ptr, ptr)",
    "declare i32 @pthread_cond_wait(ptr, ptr)",
    "declare i32 @pthread_cond_broadcast(ptr)",
    "declare i32 @pthread_sigmask(i32, ptr, ptr)",
    "declare i32 @sigfillset(ptr)",
    "declare i32 @sched_yield()",
)


def supported():
    """Return whether loops can have several threads here: on Linux, where this has been tried."""
    return sys.platform == "linux"


# ------------------------------------------------------------------------------ words of the pool


def _word(w, k):
    return w.offset(w.symbol("pool"), k, "i64")


def _get(w, k):
    return w.atomic("load", _word(w, k))


def _set(w, k, x):
    w.atomic("store", _word(w, k), x)


def _change(w, k, op, x):
    """Change a word by "add", "or" or "xchg"; returns what it was."""
    return w.atomic(op, _word(w, k), x)


def _replace(w, k, old, new):
    """Put `new` in the place of `old`; returns whether `old` was there."""
    return w.atomic("cmpxchg", _word(w, k), new, old)


def _pointer(w, k):
    """A word as a pointer."""
    return w.put(Cast(_get(w, k), "ptr", bits=True))


def _call(w, name, *args):
    return w.call(name, "i32", *args)


def _lock(w, verb):
    _call(w, f"pthread_mutex_{verb}", _word(w, _MUTEX))


def _pause(w):
    """Tell the processor that this is a loop that waits."""
    arch = host.target().triple.partition("-")[0]
    known = {"x86_64": ("llvm.x86.sse2.pause", []), "aarch64": ("llvm.aarch64.hint", ["i32"])}
    if arch in known:
        name, types = known[arch]
        w.module.declare(f"declare void @{name}({', '.join(types)})")
        w.call(name, "void", *(w.value(1, ty) for ty in types))


# ------------------------------------------------------------------------------------- a region


def _work(w):
    """Take part in the open region until all its parts are taken."""
    body, context, parts = _pointer(w, _BODY), _pointer(w, _CONTEXT), _get(w, _PARTS)
    status = w.variable("i64", 0)
    k = w.variable("i64", _change(w, _NEXT, "add", 1))
    with w.repeat_while(lambda: k.value < parts):
        status.value = status.value | w.call(body, "i64", context, k.value)
        k.value = _change(w, _NEXT, "add", 1)
    with w.when(status.value != 0):
        _change(w, _STATUS, "or", status.value)


def _helper(w, _):
    """Wait for regions and work in them: the life of a helper."""
    rounds = w.variable("i64", 0)

    def idle():
        closed = _get(w, _GATE) <= 0
        return w.logical_and(closed, _get(w, _QUIT) == 0)

    with w.repeat_while(lambda: _get(w, _QUIT) == 0):
        rounds.value = w.whole(0)
        with w.repeat_while(idle):
            _pause(w)
            rounds.value = rounds.value + 1
            with w.when(rounds.value >= _ROUNDS):
                _lock(w, "lock")
                _change(w, _SLEEPERS, "add", 1)
                with w.repeat_while(idle):
                    _call(w, "pthread_cond_wait", _word(w, _CONDITION), _word(w, _MUTEX))
                _change(w, _SLEEPERS, "add", -1)
                _lock(w, "unlock")
        seats = _get(w, _GATE)
        with w.when(seats > 0):
            with w.when(_replace(w, _GATE, seats, seats - 1)):
                w.call("work", "void")
                _change(w, _DONE, "add", 1)
    return w.value(0, "ptr")


def _start(w, wanted):
    """Start helpers until there are `wanted`; returns how many there are."""
    count, failed = w.variable("i64", _get(w, _STARTED)), w.variable("i1", w.truth(False))

    def more():
        return w.logical_and(count.value < wanted, w.logical_not(failed.value))

    with w.when(count.value < wanted):
        every, before = w.on_stack(_SIGNALS, "i8"), w.on_stack(_SIGNALS, "i8")
        null = w.value(0, "ptr")
        _call(w, "sigfillset", every)
        how = w.value(int(getattr(signal, "SIG_SETMASK", 0)), "i32")
        _call(w, "pthread_sigmask", how, every, before)
        with w.repeat_while(more):
            cell = w.offset(_word(w, _THREADS), count.value, "i64")
            got = _call(w, "pthread_create", cell, null, w.symbol("helper"), null)
            failed.value = got != 0
            count.value = count.value + w.where(got != 0, 0, w.whole(1))
        _call(w, "pthread_sigmask", how, before, null)
        _set(w, _STARTED, count.value)
    return count.value


def _parallel(w, body, context, parts):
    """Run parts 0 .. parts - 1 of a nest; returns the bitwise or of what they return."""
    status, seats = w.variable("i64", 0), w.variable("i64", 0)
    wanted = w.minimum(w.minimum(_get(w, _LIMIT), parts), w.whole(_MOST + 1))
    free = w.variable("i1", w.truth(False))
    with w.when(wanted > 1):
        free.value = _replace(w, _TAKEN, 0, 1)
    with w.when(free.value):
        helpers = wanted - 1
        seats.value = w.minimum(helpers, w.call("start", "i64", helpers))
        with w.when(seats.value <= 0):
            _set(w, _TAKEN, 0)
    together, alone = w.branch(seats.value > 0)
    with together:
        for k, pointer in ((_BODY, body), (_CONTEXT, context)):
            _set(w, k, w.put(Cast(pointer, "i64", bits=True)))
        for k, x in ((_PARTS, parts), (_STATUS, 0), (_NEXT, 0), (_DONE, 0), (_GATE, seats.value)):
            _set(w, k, x)
        with w.when(_get(w, _SLEEPERS) > 0):
            _lock(w, "lock")
            _call(w, "pthread_cond_broadcast", _word(w, _CONDITION))
            _lock(w, "unlock")
        w.call("work", "void")
        inside = seats.value - _change(w, _GATE, "xchg", 0)
        rounds = w.variable("i64", 0)
        with w.repeat_while(lambda: _get(w, _DONE) < inside):
            _pause(w)
            rounds.value = rounds.value + 1
            with w.when(rounds.value > _ROUNDS):
                _call(w, "sched_yield")
        status.value = _get(w, _STATUS)
        _set(w, _TAKEN, 0)
    with alone:
        with w.loop(0, parts) as part:
            status.value = status.value | w.call(body, "i64", context, part)
    return status.value


# ------------------------------------------------------------------------------------- from Python


def _reset(w):
    with w.loop(0, _WORDS) as k:
        w.store(w.symbol("pool"), k, 0, "i64")
    _call(w, "pthread_mutex_init", _word(w, _MUTEX), w.value(0, "ptr"))
    _call(w, "pthread_cond_init", _word(w, _CONDITION), w.value(0, "ptr"))


def _limit(w, threads):
    _set(w, _LIMIT, threads)


def _stop(w):
    # Who asks for a region from now on works alone; one that is open ends first.
    _set(w, _LIMIT, 1)
    with w.repeat_while(lambda: w.logical_not(_replace(w, _TAKEN, 0, 1))):
        _call(w, "sched_yield")
    _set(w, _QUIT, 1)
    _lock(w, "lock")
    _call(w, "pthread_cond_broadcast", _word(w, _CONDITION))
    _lock(w, "unlock")
    with w.loop(0, _get(w, _STARTED)) as k:
        thread = w.load(_word(w, _THREADS), k, "i64")
        _call(w, "pthread_join", thread, w.value(0, "ptr"))
    _set(w, _STARTED, 0)
    _set(w, _QUIT, 0)
    _set(w, _TAKEN, 0)


ROUTINES = {
    "work": KernelRoutine(_work, "", "void"),
    "helper": KernelRoutine(_helper, "ptr", "ptr"),
    "start": KernelRoutine(_start, "i64", "i64"),
    "pt_parallel": KernelRoutine(_parallel, "ptr ptr i64", "i64"),
    "pt_pool_reset": KernelRoutine(_reset, "", "void"),
    "pt_pool_limit": KernelRoutine(_limit, "i64", "void"),
    "pt_pool_stop": KernelRoutine(_stop, "", "void"),
}
