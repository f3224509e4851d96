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

from probtorch.compiler.lang.nodes import Value
from probtorch.compiler.native import host
from probtorch.compiler.render.writer import Writer

__all__ = ["MODULE", "SIGNATURES", "supported", "write"]

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

SIGNATURES = {
    "pt_parallel": ("i64", ["ptr", "ptr", "i64"]),
    "pt_pool_reset": ("void", []),
    "pt_pool_limit": ("void", ["i64"]),
    "pt_pool_stop": ("void", []),
}
_C = (
    "i32 @pthread_create(ptr, ptr, ptr, ptr)",
    "i32 @pthread_join(i64, ptr)",
    "i32 @pthread_mutex_init(ptr, ptr)",
    "i32 @pthread_mutex_lock(ptr)",
    "i32 @pthread_mutex_unlock(ptr)",
    "i32 @pthread_cond_init(ptr, ptr)",
    "i32 @pthread_cond_wait(ptr, ptr)",
    "i32 @pthread_cond_broadcast(ptr)",
    "i32 @pthread_sigmask(i32, ptr, ptr)",
    "i32 @sigfillset(ptr)",
    "i32 @sched_yield()",
)


def supported():
    """Return whether loops can have several threads here: on Linux, where this has been tried."""
    return sys.platform == "linux"


def write(text):
    """Write the module."""
    text.declare(f"@pool = internal global [{_WORDS} x i64] zeroinitializer, align 64")
    for line in _C:
        text.declare(f"declare {line}")
    _write_work(text)
    _write_helper(text)
    _write_start(text)
    _write_parallel(text)
    _write_control(text)


# ------------------------------------------------------------------------------ words of the pool


def _word(w, k):
    return w.emit(f"getelementptr i64, ptr @pool, i64 {k}", "ptr").name


def _get(w, k):
    return w.emit(f"load atomic i64, ptr {_word(w, k)} seq_cst, align 8", "i64")


def _set(w, k, x):
    w.lines.append(f"  store atomic i64 {w.whole(x).name}, ptr {_word(w, k)} seq_cst, align 8")


def _change(w, k, op, x):
    """Change a word by "add", "or" or "xchg"; returns what it was."""
    return w.emit(f"atomicrmw {op} ptr {_word(w, k)}, i64 {w.whole(x).name} seq_cst", "i64")


def _replace(w, k, old, new):
    """Put `new` in the place of `old`; returns whether `old` was there."""
    old, new = w.whole(old).name, w.whole(new).name
    pair = w.emit(f"cmpxchg ptr {_word(w, k)}, i64 {old}, i64 {new} seq_cst seq_cst", "{ i64, i1 }")
    return w.emit(f"extractvalue {{ i64, i1 }} {pair.name}, 1", "i1")


def _pointer(w, k):
    """A word as a pointer."""
    return w.emit(f"inttoptr i64 {_get(w, k).name} to ptr", "ptr")


def _bits(w, pointer):
    """A pointer as a word."""
    return w.emit(f"ptrtoint ptr {pointer} to i64", "i64")


def _call(w, text):
    return w.emit(f"call i32 {text}", "i32")


def _lock(w, verb):
    _call(w, f"@pthread_mutex_{verb}(ptr {_word(w, _MUTEX)})")


def _pause(w):
    """Tell the processor that this is a loop that waits."""
    arch = host.target().triple.partition("-")[0]
    name, arguments = {
        "x86_64": ("llvm.x86.sse2.pause", ""),
        "aarch64": ("llvm.aarch64.hint", "i32 1"),
    }.get(arch, ("", ""))
    if name:
        w.module.declare(f"declare void @{name}({arguments.partition(' ')[0]})")
        w.lines.append(f"  call void @{name}({arguments})")


# ------------------------------------------------------------------------------------- a region


def _write_work(text):
    """Take part in the open region until all its parts are taken."""
    w = Writer(text, "work", "void", [], linkage="internal ")
    body, context, parts = _pointer(w, _BODY), _pointer(w, _CONTEXT), _get(w, _PARTS)
    status = w.variable("i64", 0)
    k = w.variable("i64", _change(w, _NEXT, "add", 1))
    with w.repeat_while(lambda: k.value < parts):
        got = w.emit(f"call i64 {body.name}(ptr {context.name}, i64 {k.value.name})", "i64")
        status.value = status.value | got
        k.value = _change(w, _NEXT, "add", 1)
    with w.when(status.value != 0):
        _change(w, _STATUS, "or", status.value)
    w.finish()


def _write_helper(text):
    """Wait for regions and work in them: the life of a helper."""
    w = Writer(text, "helper", "ptr", ["ptr"], linkage="internal ")
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
                    _call(
                        w,
                        f"@pthread_cond_wait(ptr {_word(w, _CONDITION)}, ptr {_word(w, _MUTEX)})",
                    )
                _change(w, _SLEEPERS, "add", -1)
                _lock(w, "unlock")
        seats = _get(w, _GATE)
        with w.when(seats > 0):
            with w.when(_replace(w, _GATE, seats, seats - 1)):
                w.call("work", "void")
                _change(w, _DONE, "add", 1)
    w.finish(Value("null", "ptr", w))


def _write_start(text):
    """Start helpers until there are `wanted`; returns how many there are."""
    w = Writer(text, "start", "i64", ["i64"], linkage="internal ")
    (wanted,) = w.arguments
    count, failed = w.variable("i64", _get(w, _STARTED)), w.variable("i1", w.truth(False))

    def more():
        return w.logical_and(count.value < wanted, w.logical_not(failed.value))

    with w.when(count.value < wanted):
        masks = []
        for name in ("%all", "%before"):
            w.cells.append(f"  {name} = alloca [{_SIGNALS} x i8], align 16")
            masks.append(name)
        every, before = masks
        _call(w, f"@sigfillset(ptr {every})")
        how = int(getattr(signal, "SIG_SETMASK", 0))
        _call(w, f"@pthread_sigmask(i32 {how}, ptr {every}, ptr {before})")
        with w.repeat_while(more):
            cell = w.offset(Value(_word(w, _THREADS), "ptr", w), count.value, "i64")
            got = _call(w, f"@pthread_create(ptr {cell.name}, ptr null, ptr @helper, ptr null)")
            failed.value = got != 0
            count.value = count.value + w.where(got != 0, 0, w.whole(1))
        _call(w, f"@pthread_sigmask(i32 {how}, ptr {before}, ptr null)")
        _set(w, _STARTED, count.value)
    w.finish(count.value)


def _write_parallel(text):
    """Run parts 0 .. parts - 1 of a nest; returns the bitwise or of what they return."""
    w = Writer(text, "pt_parallel", *SIGNATURES["pt_parallel"])
    body, context, parts = w.arguments
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
        _set(w, _BODY, _bits(w, body.name))
        _set(w, _CONTEXT, _bits(w, context.name))
        for k, x in ((_PARTS, parts), (_STATUS, 0), (_NEXT, 0), (_DONE, 0), (_GATE, seats.value)):
            _set(w, k, x)
        with w.when(_get(w, _SLEEPERS) > 0):
            _lock(w, "lock")
            _call(w, f"@pthread_cond_broadcast(ptr {_word(w, _CONDITION)})")
            _lock(w, "unlock")
        w.call("work", "void")
        inside = seats.value - _change(w, _GATE, "xchg", 0)
        rounds = w.variable("i64", 0)
        with w.repeat_while(lambda: _get(w, _DONE) < inside):
            _pause(w)
            rounds.value = rounds.value + 1
            with w.when(rounds.value > _ROUNDS):
                _call(w, "@sched_yield()")
        status.value = _get(w, _STATUS)
        _set(w, _TAKEN, 0)
    with alone:
        with w.loop(0, parts) as part:
            got = w.emit(f"call i64 {body.name}(ptr {context.name}, i64 {part.name})", "i64")
            status.value = status.value | got
    w.finish(status.value)


# ------------------------------------------------------------------------------------- from Python


def _write_control(text):
    w = Writer(text, "pt_pool_reset", *SIGNATURES["pt_pool_reset"])
    with w.loop(0, _WORDS) as k:
        w.store(Value("@pool", "ptr", w), k, 0, "i64")
    _call(w, f"@pthread_mutex_init(ptr {_word(w, _MUTEX)}, ptr null)")
    _call(w, f"@pthread_cond_init(ptr {_word(w, _CONDITION)}, ptr null)")
    w.finish()

    w = Writer(text, "pt_pool_limit", *SIGNATURES["pt_pool_limit"])
    _set(w, _LIMIT, w.arguments[0])
    w.finish()

    w = Writer(text, "pt_pool_stop", *SIGNATURES["pt_pool_stop"])
    # Who asks for a region from now on works alone; one that is open ends first.
    _set(w, _LIMIT, 1)
    with w.repeat_while(lambda: w.logical_not(_replace(w, _TAKEN, 0, 1))):
        _call(w, "@sched_yield()")
    _set(w, _QUIT, 1)
    _lock(w, "lock")
    _call(w, f"@pthread_cond_broadcast(ptr {_word(w, _CONDITION)})")
    _lock(w, "unlock")
    with w.loop(0, _get(w, _STARTED)) as k:
        thread = w.load(Value(_word(w, _THREADS), "ptr", w), k, "i64")
        _call(w, f"@pthread_join(i64 {thread.name}, ptr null)")
    _set(w, _STARTED, 0)
    _set(w, _QUIT, 0)
    _set(w, _TAKEN, 0)
    w.finish()
