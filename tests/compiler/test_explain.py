"""What `explain` says is true: bytes by hand, times by a clock of our own; the page is inert."""

import ctypes
import html
import pickle
import re
from html.parser import HTMLParser

import numpy as np
import pytest

import probtorch
from probtorch.compiler.compile import compile
from probtorch.compiler.density import NativeDensity
from probtorch.compiler.explain.explain import explain, explain_reason
from probtorch.compiler.explain.profile import profile
from probtorch.compiler.explain.report import size, span, visible
from probtorch.compiler.explain.traffic import traffic_of
from probtorch.compiler.machine.engine import compile_module
from probtorch.compiler.nests.loops import address
from probtorch.compiler.program import NativeProgram
from probtorch.compiler.render.timed import render_timed, timed
from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.distributions import Normal
from probtorch.errors import ArgumentError
from probtorch.infer import SVI, AutoNormal, Target
from probtorch.ops.control import while_loop
from probtorch.ops.foreign import native_density
from probtorch.optim import Adam
from tests.backends import fake_cupy
from tests.compiler.gpu_programs import compiled as gpu_program

rng = np.random.default_rng(0)
VOID = {"meta", "rect", "path", "br"}


class Page(HTMLParser):
    """Checks that elements nest; collects tags, attributes and text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.text = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def says(self, text):
        return text in "".join(self.text)


def program_of(fn, *arrays):
    f = compile(fn)
    f(*map(wrap, arrays))
    (path,) = f.paths
    return f, path.program


def traffic(program):
    """Bytes read and written by each nest and call."""
    found = [traffic_of(s, program.lowering) for s in timed(program.lowering.block)]
    return [(t.read, t.written) for t in found]


# ------------------------------------------------------------------------------------------- bytes


def test_a_fused_chain_reads_its_input_and_writes_its_result_once():
    x = np.ones(1000)
    _, program = program_of(lambda x: (x * 2.0 + x.exp()).sin(), x)
    assert traffic(program) == [(8000, 8000)]


def test_a_sum_writes_one_number():
    _, program = program_of(lambda x: (x * x).sum(), np.ones(1000))
    assert traffic(program) == [(8000, 8)]


def test_what_is_broadcast_is_read_once():
    _, program = program_of(lambda x, y: x.reshape(-1, 1) * y, np.ones(30), np.ones(40))
    assert traffic(program) == [(30 * 8 + 40 * 8, 1200 * 8)]


def test_a_matrix_and_its_transpose_in_one_nest_are_read_once():
    def fn(matrix, b):
        return (matrix.t() @ (matrix @ b).sin()) * 1.0

    _, program = program_of(fn, np.ones((500, 20)), np.ones(20))
    read = sum(t[0] for t in traffic(program))
    written = sum(t[1] for t in traffic(program))
    matrix, vector = 500 * 20 * 8, 20 * 8
    # The vector, the sums (added to in memory), and the sums again where they are copied.
    assert read <= matrix + 4 * vector and read >= matrix + vector
    assert vector <= written <= 3 * vector


def test_a_gather_reads_no_more_than_it_takes():
    index = wrap(np.array([5, 7, 5]))
    _, program = program_of(lambda x: x[index] * 2.0, np.ones(100_000))
    ((read, written),) = traffic(program)
    assert (read, written) == (3 * 8 + 3 * 8, 3 * 8)


def test_a_product_by_blas_reads_both_matrices_and_writes_one():
    f, program = program_of(lambda x, y: x @ y, np.ones((60, 70)), np.ones((70, 80)))
    assert traffic(program)[-1] == (8 * (60 * 70 + 70 * 80), 8 * 60 * 80)
    assert "call gemm; reads 78.4 kB, writes 38.4 kB" in f.explain()


def test_two_nests_apart_move_more_than_one():
    def fn(x):
        return (x - x.mean()).exp().sum()

    _, program = program_of(fn, np.ones(1000))
    assert sum(read for read, _ in traffic(program)) >= 2 * 8000


# ------------------------------------------------------------------------------------------ profile


def heavy_and_light(x, y):
    return x.sin().tan().exp().sum(), (y + 1.0).sum()


def test_the_time_is_where_the_work_is():
    x, y = rng.standard_normal(40_000), rng.standard_normal(7)
    f, program = program_of(heavy_and_light, x, y)
    program.keep([x, y])
    measured = profile(program)
    titles = [step.title for step in f.explain().report.paths[0].steps]
    spent = {title: seconds for title, (seconds, _) in zip(titles, measured.steps, strict=True)}
    heavy = next(s for title, s in spent.items() if "sin" in title)
    # 40 000 elements through three functions against 7 sums: a factor of some 10 000.
    assert heavy > 10 * max(s for title, s in spent.items() if "sin" not in title)
    assert measured.seconds > heavy / 10


def test_each_statement_is_timed_as_often_as_it_runs():
    """With a clock that goes on by 1000 ns at each reading, every number is known."""

    def fn(x):
        y, _ = while_loop(lambda s: s[1] < 5, lambda s: (s[0].sin(), s[1] + 1), (x, as_tensor(0)))
        return y.sum()

    x = np.ones(30)
    _, program = program_of(fn, x)
    readings = [0]

    def tick(_, place):
        readings[0] += 1
        seconds, rest = divmod(1000 * readings[0] + 999_990_000, 1_000_000_000)
        place[0], place[1] = seconds, rest
        return 0

    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_int64))
    clock = kind(tick)
    native = compile_module(
        render_timed(program.lowering, program.plan),
        symbols={"clock_gettime": ctypes.cast(clock, ctypes.c_void_p).value},
    )
    statements = list(timed(program.lowering.block))
    clocks = np.zeros((1 + len(statements), 2), np.int64)
    frame = program.bind()
    frame.table[program.plan.table] = address(clocks)
    outputs = frame.new_outputs()
    frame.attach([x], outputs)
    run = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(native.address("run"))
    assert run(frame.address) == 0
    np.testing.assert_array_equal(clocks[:, 0], 1000 * clocks[:, 1])
    assert clocks[0, 1] == 1 and readings[0] == 2 * clocks[:, 1].sum()
    assert {5, 6} <= set(clocks[1:, 1].tolist())  # the body, the test
    expected = x
    for _ in range(5):
        expected = np.sin(expected)
    np.testing.assert_allclose(outputs[0], expected.sum(), rtol=1e-12)


def test_turns_of_a_loop_are_counted():
    def fn(x):
        return while_loop(lambda s: s[1] < 17, lambda s: (s[0].sin(), s[1] + 1), (x, as_tensor(0)))

    x = np.ones(300)
    _, program = program_of(fn, x)
    program.keep([x])
    measured = profile(program)
    assert {count for _, count in measured.steps} >= {17, 18}
    program = NativeProgram(lambda t: fn(t)[0], wrap(x))
    program(wrap(x))
    assert "in 17 turns" in program.explain(profile=True)


def test_profiling_changes_nothing():
    total = wrap(np.zeros(3))
    generator = probtorch.Generator(1)

    @compile
    def fn(x):
        total.add_(x)
        return x + probtorch.rand(3, generator=generator, dtype=probtorch.float64)

    x = wrap(np.ones(3))
    results = [fn(x) for _ in range(3)]
    state = generator.get_state()
    text = fn.explain(profile=True)
    assert "one run takes" in text and "not profiled" not in text
    np.testing.assert_array_equal(total.array, np.full(3, 3.0))
    assert generator.get_state() == state
    assert not np.array_equal(fn(x).array, results[-1].array)
    np.testing.assert_array_equal(total.array, np.full(3, 4.0))


def test_the_code_that_is_used_reads_no_clock():
    f, program = program_of(heavy_and_light, np.ones(5), np.ones(3))
    before = program.ir
    f.explain(profile=True)
    assert "clock" not in f.source()
    assert program.ir == before


def test_large_arguments_are_not_kept_and_it_says_so():
    f, _ = program_of(lambda x: x.sum(), np.ones(2**18))
    assert "not profiled: the arguments of the last call are gone" in f.explain(profile=True)
    x = wrap(np.ones(2**18))
    f(x)
    assert "one run takes" in f.explain(profile=True)


def test_a_path_that_no_longer_fits_is_not_timed():
    x = wrap(np.ones(4))
    f = compile(lambda x: x * 2.0 if x[0] > 0 else x * 3.0)
    f(x)
    x.array[0] = -1.0
    assert "not profiled: a guard or check failed" in f.explain(profile=True)


def test_each_path_of_a_density_is_timed_where_it_was_recorded():
    density = NativeDensity(lambda q: q.sin().sum() if q[0] > 0 else -(q * q).sum(), 3)
    density.value_and_grad(np.ones(3))
    density.value_and_grad(-np.ones(3))
    assert density.explain(profile=True).count("one run takes") == 2


def test_a_program_that_calls_a_density_by_address_is_not_run():
    density = NativeDensity(lambda q: -(q * q).sum(), 2)
    context = density.context()
    handle = [as_tensor(np.int64(a)) for a in (context.function, context.address)]
    inputs = (wrap(np.ones(2)), *handle)
    program = NativeProgram(lambda t: native_density(*t), inputs)
    value, _ = program(inputs)
    assert float(value) == -2.0
    # The context may be gone by now, or in use by another thread.
    assert "not profiled: it calls a density by its address" in program.explain(profile=True)


# --------------------------------------------------------------------------------------- the page


def everything():
    """Functions of every kind, each with at least one path."""
    branch = compile(lambda x: (x * x).sum() if x[0] > 0 else x.exp().sum())
    branch(wrap(np.ones(3)))
    branch(wrap(-np.ones(3)))
    density = NativeDensity(lambda q: -(q * q).sum(), 3)
    density.value_and_grad(np.ones(3))
    x = wrap(np.ones(4))
    program = NativeProgram(lambda t: while_loop(lambda s: s[0] < 9, lambda s: s + 1, t), x)
    program(x)

    def model(y):
        mu = probtorch.sample("mu", Normal(0.0, 5.0))
        with probtorch.plate("data", len(y)):
            probtorch.sample("y", Normal(mu, 1.0), obs=y)

    y = wrap(np.array([1.0, 2.0]))
    svi = SVI(model, AutoNormal(model), Adam({"lr": 0.01}), seed=0)
    svi.run(5, y, progress_bar=False)
    target = Target.from_model(model, y)
    target.value_and_grad(np.zeros(1))
    return {"branch": branch, "density": density, "program": program, "svi": svi, "target": target}


@pytest.fixture(scope="module")
def explained():
    return everything()


@pytest.mark.parametrize("kind", ["branch", "density", "program", "svi", "target"])
@pytest.mark.parametrize("with_times", [False, True])
def test_the_page_is_one_inert_document(explained, kind, with_times):
    text = explained[kind].explain(format="html", profile=with_times)
    assert type(text) is str and text.startswith("<!DOCTYPE html>")
    page = Page(text)
    assert {"script", "link", "iframe", "object", "img"}.isdisjoint(page.tags)
    names = {name for name, _ in page.attributes}
    assert names.isdisjoint({"src", "href", "srcset", "action"})
    assert not any(name.startswith("on") and name != "open" for name in names)
    assert "url(" not in text and "@import" not in text and "http://" not in text
    assert ("http-equiv", "Content-Security-Policy") in page.attributes
    assert page.says("share") == with_times
    text.encode("utf-8")


def test_the_page_holds_what_the_text_says(explained):
    text, page = explained["branch"].explain(), Page(explained["branch"].explain(format="html"))
    assert text.count("  guard 0: ") == 2 and page.says("Guards: it is used while")
    assert page.says("branch = compile(lambda x: (x * x).sum() if x[0] > 0 else x.exp().sum())")
    assert page.says("test_explain.py:")
    for reads in re.findall(r"reads (\S+ \S+),", text):
        assert page.says(reads)


def test_nodes_know_the_nest_that_they_went_into():
    f, _ = program_of(lambda x: (x * 2.0).sum() + x[1:3].exp().sum(), np.ones(9))
    (path,) = f.explain().report.paths
    where = {re.search(r"= (\w+)\(", text)[1]: steps for text, steps, _ in path.nodes}
    numbers = {step.title.split(": ")[0]: step.number for step in path.steps}
    assert where["mul"] == str(numbers["nest over 9"])
    assert where["exp"] == str(numbers["nest over 2"])
    assert where["slice"] == "layout only"
    last = path.steps[-1]
    assert set(last.reads) == {s.number for s in path.steps} - {last.number}


def test_notebooks_show_the_page_and_everybody_else_the_text(explained):
    text = explained["branch"].explain()
    assert isinstance(text, str) and text.startswith("<lambda>: 2 compiled paths")
    fragment = text._repr_html_()
    assert Page(fragment).tags[0] == "div"
    assert fragment in explained["branch"].explain(format="html")
    again = pickle.loads(pickle.dumps(text))
    assert again == text and again._repr_html_() == fragment


def test_an_explanation_keeps_no_program_alive():
    import gc
    import weakref

    f, program = program_of(lambda x: x.sin(), np.ones(3))
    text, watch = f.explain(profile=True), weakref.ref(program)
    del f, program
    gc.collect()
    assert watch() is None and "nest over 3: sin" in text


def test_programs_on_a_gpu_have_a_page_and_no_times(monkeypatch):
    fake_cupy.install(monkeypatch)
    program = gpu_program(lambda x: (x * x).sum(), [np.ones(5)])
    options = {"profile": True}
    text = explain("there", [program], None, **options)
    assert "nest over 5: mul sum; reads 40 B" in text and "kernels on cuda:0" in text
    assert "not profiled: kernels on a GPU are not timed one by one" in text
    assert Page(explain("there", [program], None, format="html", **options)).says("cuda:0")


def test_long_graphs_are_folded():
    def fn(x):
        for k in range(450):
            x = (x * (1.0 + 1e-3 * k)).sin()
        return x

    f, program = program_of(fn, np.ones(2))
    count = len(program.graph.nodes)
    assert count > 400
    page = Page(f.explain(format="html"))
    assert page.says("ops 0 to 199") and page.says(f"to {count - 1}")
    assert f"... and {count - 400} more" in f.explain()


def test_why_something_is_eager_is_said_with_the_line():
    def fn(x):
        return x[x > 0]  # the shape depends on values: <b>

    f = compile(fn)
    with pytest.warns(UserWarning, match="runs eagerly"):
        f(wrap(np.ones(3)))
    page = Page(f.explain(format="html"))
    assert page.says("Runs eagerly") and page.says("the shape depends on values: <b>")
    assert "b" not in page.tags


def test_an_unknown_format_is_refused():
    with pytest.raises(ArgumentError, match="'text' or 'html'") as caught:
        compile(lambda x: x).explain(format="pdf")
    assert "pdf" in str(caught.value)


def test_a_single_sentence_has_a_page_too():
    assert explain_reason("eager: <script>") == "eager: <script>"
    page = Page(explain_reason("eager: <script>", format="html"))
    assert page.says("eager: <script>") and "script" not in page.tags


# ------------------------------------------------------------------------------------------- words


def test_sizes_and_times_have_units():
    assert [size(n) for n in (0, 999, 1000, 78_400, 2.5e6, 3e9)] == [
        "0 B",
        "999 B",
        "1 kB",
        "78.4 kB",
        "2.5 MB",
        "3 GB",
    ]
    assert [span(s) for s in (0.0, 1.5e-7, 2e-5, 0.25, 3.0)] == [
        "0 ns",
        "150 ns",
        "20 us",
        "250 ms",
        "3 s",
    ]


def test_what_cannot_be_seen_is_shown_as_escapes():
    assert visible("a\nb\0\x1b[31m\u202eabc\ud800") == r"a\nb\x00\x1b[31m\u202eabc\ud800"
    assert visible("é 中 x") == "é 中 x"
    assert len(visible("x" * 10_000)) < 300
    assert html.unescape(html.escape(visible("<>&\"'"))) == "<>&\"'"
