"""What locks, logs or shows may change all the time, until code computes with what it holds."""

import collections
import io
import logging
import logging.handlers
import threading
import warnings
import weakref

import numpy as np
import pytest

from probtorch import tensor
from probtorch.compiler.compile import compile
from probtorch.compiler.paths import CompileWarning
from probtorch.distributions.transforms import AffineTransform

X = tensor([1.0, 2.0])


def level_of_a_handler():
    handler = logging.StreamHandler(io.StringIO())
    return lambda: X * handler.level, lambda i: handler.setLevel(10 + i), handler


def records_of_a_handler():
    handler = logging.handlers.BufferingHandler(1000)
    record = logging.LogRecord("a", 10, "", 1, "m", (), None)
    return lambda: X * len(handler.buffer), lambda i: handler.emit(record), handler


def place_in_a_file():
    file = open("/dev/null", "w")
    return lambda: X * file.tell(), lambda i: file.write("abc"), file


def state_of_a_file():
    file = open("/dev/null", "w")
    return lambda: X * (1.0 + file.closed), lambda i: file.close(), file


def width_of_a_console():
    console = pytest.importorskip("rich.console").Console(width=80, file=io.StringIO())
    return lambda: X * console.width, lambda i: setattr(console, "width", 80 + i), console


def rows_of_a_table():
    table = pytest.importorskip("rich.table").Table("a")
    return lambda: X * table.row_count, lambda i: table.add_row("b"), table


def length_of_a_text():
    text = pytest.importorskip("rich.text").Text("abc")
    return lambda: X * len(text), lambda i: text.append("d"), text


def tasks_of_a_display():
    progress = pytest.importorskip("rich.progress").Progress()
    task = progress.add_task("a", total=100)
    return (
        lambda: X * progress.tasks[0].completed,
        lambda i: progress.update(task, advance=1),
        progress,
    )


def turns_of_a_bar():
    bar = pytest.importorskip("tqdm").tqdm(total=100, file=io.StringIO())
    return lambda: X * bar.n, lambda i: bar.update(1), bar


def length_of_a_bar():
    bar = pytest.importorskip("tqdm").tqdm(total=100, file=io.StringIO())
    return lambda: X * len(bar), lambda i: setattr(bar, "total", 101 + i), bar


def what_a_bar_counts():
    bar = pytest.importorskip("tqdm").tqdm([1.0, 2.0], disable=True)
    return lambda: X * sum(bar), lambda i: bar.iterable.append(float(i)), bar


def numbers_that_a_bar_counts():
    numbers = np.array([1.0, 2.0])
    bar = pytest.importorskip("tqdm").tqdm(numbers, disable=True)
    return lambda: X * float(sum(bar)), lambda i: numbers.__setitem__(0, 2.0 + i), bar


def a_queue_that_a_bar_counts():
    numbers = collections.deque([1.0, 2.0])
    bar = pytest.importorskip("tqdm").tqdm(numbers, disable=True)
    return lambda: X * sum(bar), lambda i: numbers.append(float(i)), bar


class Loader:
    def __init__(self):
        self.numbers = {"a": 1.0}

    def __iter__(self):
        return iter(self.numbers.values())


def what_a_bar_over_a_loader_counts():
    loader = Loader()
    bar = pytest.importorskip("tqdm").tqdm(loader, disable=True)
    return lambda: X * sum(bar), lambda i: loader.numbers.update({str(i): float(i)}), bar


def values_that_a_bar_counts():
    numbers = {"a": 1.0}
    bar = pytest.importorskip("tqdm").tqdm(numbers.values(), disable=True)
    return lambda: X * sum(bar), lambda i: numbers.update({str(i): float(i)}), bar


def level_by_a_pattern():
    handler = logging.StreamHandler(io.StringIO())

    def read():
        match handler:
            case logging.StreamHandler(level=found):
                return X * found

    return read, lambda i: handler.setLevel(10 + i), handler


def level_by_a_name_that_is_computed():
    handler, parts = logging.StreamHandler(io.StringIO()), ["lev", "el"]
    return (
        lambda: X * getattr(handler, "".join(parts)),
        lambda i: handler.setLevel(10 + i),
        handler,
    )


def whether_a_lock_is_free():
    lock = threading.Lock()

    def read():
        free = lock.acquire(blocking=False)
        if free:
            lock.release()
        return X * (2.0 if free else 3.0)

    return read, lambda i: lock.release() if i % 2 else lock.acquire(), lock


def data_of_a_line():
    line = pytest.importorskip("matplotlib.lines").Line2D([0.0, 1.0], [0.0, 1.0])
    return lambda: X * line.get_ydata()[1], lambda i: line.set_ydata([0.0, 2.0 + i]), line


def width_of_a_line():
    line = pytest.importorskip("matplotlib.lines").Line2D([0.0, 1.0], [0.0, 1.0])
    return lambda: X * line._linewidth, lambda i: line.set_linewidth(1.0 + i), line


HELD = [
    *(level_of_a_handler, records_of_a_handler, place_in_a_file, state_of_a_file),
    *(width_of_a_console, rows_of_a_table, length_of_a_text, tasks_of_a_display),
    *(turns_of_a_bar, length_of_a_bar, what_a_bar_counts, data_of_a_line, width_of_a_line),
    *(numbers_that_a_bar_counts, a_queue_that_a_bar_counts, what_a_bar_over_a_loader_counts),
    *(values_that_a_bar_counts, level_by_a_pattern, level_by_a_name_that_is_computed),
    whether_a_lock_is_free,
]


@pytest.mark.parametrize("make", HELD, ids=lambda f: f.__name__)
def test_what_a_bystander_holds_never_goes_stale(make):
    read, change, bystander = make()
    compiled = compile(read)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CompileWarning)
        for i in range(5):
            assert [compiled().tolist() for _ in range(2)] == [read().tolist()] * 2, i
            if not getattr(bystander, "closed", False):
                change(i)
    getattr(bystander, "close", lambda: None)()


class Trainer:
    def __init__(self, shown):
        self.shown, self.rate = shown, 2.0

    def step(self):
        return X * self.rate


# A file that was closed is no bystander any more, and what a bar counts is watched with it.
COUNTING = (what_a_bar_counts, numbers_that_a_bar_counts, a_queue_that_a_bar_counts)
SHOWN = [make for make in HELD if make not in (state_of_a_file, *COUNTING)]


@pytest.mark.parametrize("make", SHOWN, ids=lambda f: f.__name__)
def test_a_bystander_that_nobody_computes_with_keeps_nothing_eager(make):
    _, change, bystander = make()
    trainer = Trainer(bystander)
    compiled = compile(trainer.step)
    for i in range(4):
        assert compiled().tolist() == [2.0, 4.0]
        change(i)
    trainer.rate = 3.0
    assert compiled().tolist() == [3.0, 6.0]
    assert len(compiled.paths) == 2
    getattr(bystander, "close", lambda: None)()


def test_showing_within_a_function_keeps_it_compiled():
    console = pytest.importorskip("rich.console").Console(file=io.StringIO())
    handler = logging.StreamHandler(io.StringIO())

    def fn(x):
        console.print("a step")
        handler.flush()
        return x * 2.0

    compiled = compile(fn)
    assert [compiled(X).tolist() for _ in range(3)] == [[2.0, 4.0]] * 3
    assert len(compiled.paths) == 1


def test_a_lock_that_is_only_taken_keeps_nothing_eager():
    lock, other = threading.Lock(), threading.RLock()

    def fn(x):
        lock.acquire()
        try:
            with other:
                return x * 2.0
        finally:
            lock.release()

    compiled = compile(fn)
    assert [compiled(X).tolist() for _ in range(3)] == [[2.0, 4.0]] * 3
    assert len(compiled.paths) == 1


def counting():
    for i in range(100):
        yield float(i)


def unpacked(v, it):
    first, *_ = it
    return v * first


# What moves a generator, or asks how far it has come.
GOES_ON = {
    "next": lambda v, it: v * next(it),
    "loop": lambda v, it: v * [k for k, _ in zip(it, range(2))][-1],
    "sum": lambda v, it: v * sum(k for k in it if k < 50.0),
    "send": lambda v, it: v * it.send(None),
    "close": lambda v, it: v * (it.close() is None),
    "in": lambda v, it: v * (3.0 in it),
    "unpacked": unpacked,
    "frame": lambda v, it: v * (it.gi_frame is None),
    "by name": lambda v, it: v * (getattr(it, "_".join(["gi", "frame"])) is None),
}


@pytest.mark.filterwarnings("ignore::probtorch.compiler.paths.CompileWarning")
@pytest.mark.parametrize("name", GOES_ON)
def test_a_generator_that_a_call_moves_is_moved_at_each_call(name):
    def play(wrap):
        holder = {"it": counting(), "k": 2.0}
        act = GOES_ON[name]
        fn = wrap(lambda v: act(v, holder["it"]) if holder["k"] > 1.0 else v * holder["k"])
        found = []
        for i in range(12):
            holder["k"] = 0.5 if i % 3 == 0 else 2.0
            try:
                found.append(fn(tensor([1.0, 1.0])).tolist())
            except (StopIteration, ValueError) as error:
                found.append(type(error).__name__)
        return [*found, next(holder["it"], None)]

    assert play(compile) == play(lambda fn: fn)


def test_a_generator_beside_what_is_read_keeps_no_function_eager():
    holder = {"it": counting(), "k": 2.0}
    fn = compile(lambda v: v * holder["k"])
    for i in range(6):
        assert fn(tensor([1.0, 1.0])).tolist() == [2.0, 2.0]
        next(holder["it"])
        if i == 3:
            holder["it"] = counting()
    assert fn.reason is None
    assert next(holder["it"]) == 2.0


NAMES = {"__name__": lambda it: it.__name__, "__qualname__": lambda it: it.__qualname__}


@pytest.mark.parametrize("name", NAMES)
def test_the_name_of_a_generator_is_watched(name):
    holder = {"it": counting()}
    fn = compile(lambda v: v * len(NAMES[name](holder["it"])), verify=False)
    for text in ("a", "a", "abc", "abc", "ab"):
        setattr(holder["it"], name, text)
        assert fn(X).tolist() == [len(text), 2.0 * len(text)]


def cleans_up(state):
    try:
        yield 1.0
        yield 2.0
    finally:
        state["k"] += 5.0


def passes_on(state):
    yield from cleans_up(state)


class CleansUp:
    def __init__(self, state):
        self.state = state

    def __del__(self):
        self.state["k"] += 5.0

    def __next__(self):
        return 1.0


@pytest.mark.filterwarnings("ignore::probtorch.compiler.paths.CompileWarning")
@pytest.mark.parametrize("where", ["between", "in the call"])
@pytest.mark.parametrize("make", [cleans_up, passes_on, CleansUp])
def test_what_runs_code_when_it_is_dropped_is_not_held_back(make, where):
    state = {"k": 1.0}
    state["it"] = make(state)
    next(state["it"])

    def drops(v):
        if where == "in the call":
            state["it"] = None
        return v * state["k"]

    fn = compile(drops, verify=False)
    for i in range(4):
        if where == "between":
            assert fn(X).tolist() == [1.0 + 5.0 * i, 2.0 + 10.0 * i]
            state["it"] = None
        assert fn(X).tolist() == [6.0 + 5.0 * i, 12.0 + 10.0 * i]
        state["it"] = make(state)
        next(state["it"])


@pytest.mark.filterwarnings("ignore::probtorch.compiler.paths.CompileWarning")
def test_a_coroutine_that_a_call_moves_is_moved_at_each_call():
    async def three():
        return 3.0

    async def counts():
        yield 1.0
        yield 2.0

    state = {}

    def of_a_coroutine(v):
        try:
            state["it"].send(None)
        except StopIteration as end:
            return v * end.value
        except RuntimeError:
            return v * -1.0

    def of_a_generator(v):
        try:
            state["it"].__anext__().send(None)
        except StopIteration as end:
            return v * end.value
        except StopAsyncIteration:
            return v * -1.0

    for read, make in ((of_a_coroutine, three), (of_a_generator, counts)):
        found = []
        for wrap in (compile, lambda fn: fn):
            state["it"], fn = make(), wrap(read)
            found.append([fn(X).tolist() for _ in range(5)])
        assert found[0] == found[1]


class Held:
    k = 2.0


def fresh_tensor():
    return tensor([3.0, 4.0])


def of_a_reference(state):
    ref = weakref.ref(state["o"])
    return lambda v: v * (2.0 if ref() is None else 3.0)


def of_values(state):
    table = weakref.WeakValueDictionary(o=state["o"])
    return lambda v: v * (len(table) + 1.0)


def of_keys(state):
    table = weakref.WeakKeyDictionary({state["o"]: 1.0})
    return lambda v: v * (sum(table.values()) + 1.0)


def of_a_set(state):
    table = weakref.WeakSet([state["o"]])
    return lambda v: v * (len(table) + 1.0)


def adds(state):
    def end(*_):
        state["k"] += 5.0

    return end


def of_a_callback(state):
    state["ref"] = weakref.ref(state["o"], adds(state))
    return lambda v: v * state["k"]


def of_a_finalizer(state):
    weakref.finalize(state["o"], adds(state))
    return lambda v: v * state["k"]


@pytest.mark.filterwarnings("ignore::probtorch.compiler.paths.CompileWarning")
@pytest.mark.parametrize("make", [Held, fresh_tensor])
@pytest.mark.parametrize(
    "tell", [of_a_reference, of_values, of_keys, of_a_set, of_a_callback, of_a_finalizer]
)
def test_who_looks_whether_an_object_is_gone_sees_it_go(tell, make):
    found = []
    for wrap in (lambda fn: compile(fn, verify=False), lambda fn: fn):
        state = {"o": make(), "k": 1.0}
        read = tell(state)
        fn = wrap(lambda v, state=state, read=read: read(v) + (state["o"] is None))
        found.append([])
        for _ in range(2):
            found[-1] += [fn(X).tolist() for _ in range(3)]
            state["o"] = None
    assert found[0] == found[1]
    assert found[0][0] != found[0][-1]


def test_an_inverse_that_is_kept_for_its_transform_keeps_nothing_eager():
    scaled = AffineTransform(1.0, 2.0)
    inverse = scaled.inv
    fn = compile(lambda v: inverse(v) + scaled(v))
    with warnings.catch_warnings():
        warnings.simplefilter("error", CompileWarning)
        assert [fn(X).tolist() for _ in range(3)] == [[3.0, 5.5]] * 3
    assert len(fn.paths) == 1
