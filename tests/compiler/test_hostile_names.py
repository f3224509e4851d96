"""500 hostile names of sites, parameters, plates, labels and data: no generated text holds one.

Each goes through densities, steps of SVI, `compile` and the CUDA renderer, among 49 others, and the
text is what it is with plain names. None reaches the names of cache files, and what shows them to
people (`explain`, its page) shows them escaped.
"""

import builtins
import re

import numpy as np
import pytest

from probtorch.compiler.compile import compile
from probtorch.compiler.density import NativeDensity
from probtorch.compiler.native import cache
from probtorch.compiler.nests.lowering import Lowering
from probtorch.compiler.passes import optimise
from probtorch.compiler.program import NativeProgram
from probtorch.compiler.record.record import record
from probtorch.compiler.render import cuda
from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.core.op import REGISTRY
from probtorch.distributions import HalfNormal, Normal
from probtorch.effects import deterministic, param, plate, sample
from probtorch.infer import SVI, Target
from probtorch.ops.families import elementwise
from probtorch.optim import Adam
from tests.compiler.hostile import HOSTILE, marks_in
from tests.compiler.test_explain import Page

BATCH = 50
BATCHES = [HOSTILE[k : k + BATCH] for k in range(0, len(HOSTILE), BATCH)]
PLAIN = [f"plain{k}" for k in range(BATCH)]
TAGS = {"html", "head", "meta", "title", "body", "div", "style", "h2", "p", "span"}
ATTRIBUTES = {"charset", "http-equiv", "content", "class", "title", "lang"}
Y = wrap(np.array([1.0, 2.0, 0.5]))


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory):
    """A cache of this module alone; afterwards its file names are looked at."""
    place = tmp_path_factory.mktemp("cache") / "probtorch"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROBTORCH_CACHE_DIR", str(place))
        cache.forget_directories()
        yield place
    cache.forget_directories()


def named(fn, name):
    """Give a function a hostile name of its own."""
    fn.__name__ = fn.__qualname__ = fn.__doc__ = name
    return fn


def model_of(names):
    """Five names at a time: a site in a plate, the plate, its labels, a result, and data."""

    def model(y):
        mu = sample(f"{names[0]}", Normal(0.0, 1.0))
        for first, second, third, fourth, fifth in zip(*(iter(names),) * 5, strict=True):
            labels = [third, f"{third}{fourth}", fifth]
            with plate(f"{second} plate", 3, coords=labels):
                z = sample(f"{first} z", HalfNormal(1.0))
                deterministic(f"{fourth} twice", z * 2.0)
                sample(f"{fifth} y", Normal(mu, z), obs=y)

    return named(model, names[-1])


def guide_of(names):
    def guide(y):
        loc = param(f"{names[1]}", as_tensor(0.5))
        sample(f"{names[0]}", Normal(loc, 0.1))
        for first, second in zip(names[::5], names[1::5], strict=True):
            scale = param(f"{second} scale", wrap(np.full(3, 0.3)))
            with plate(f"{second} plate", 3):
                sample(f"{first} z", HalfNormal(scale.exp()))

    return named(guide, names[-2])


def density_text(names):
    density = Target.from_model(model_of(names), Y).density
    density.value_and_grad(np.zeros(31))
    (path,) = density.paths
    return path.ir


def svi_text(names):
    svi = SVI(model_of(names), guide_of(names), Adam({"lr": 0.01}), seed=0)
    svi.run(4, Y, progress_bar=False)
    (path,) = svi.compiled._function.paths
    return path.program.ir


def compiled_texts(names):
    """Names as keys of arguments and results, static strings, attributes, names of functions."""

    def fn(tensors, words):
        return {name: tensors[name] * float(len(words)) for name in names}

    f = compile(named(fn, names[0]))
    f({name: wrap(np.ones(2)) for name in names}, tuple(names))
    tree = dict.fromkeys(names, as_tensor(0.5))
    program = NativeProgram(lambda t: {k: v.exp() for k, v in t.items()}, tree, name=names[1])
    density = NativeDensity(named(lambda q: (q * q).sum(), names[2]), 3, name=names[3])
    density.value_and_grad(np.ones(3))
    return f.source(), program.program.ir, density.paths[0].ir


def cuda_text(names):
    """The same model's density with gradient as CUDA C."""
    target = Target.from_model(model_of(names), Y)
    rec, _ = record(target.density._evaluate, [wrap(np.zeros(31))])
    optimise(rec.graph)
    return cuda.render(Lowering(rec.graph)).source


TEXTS = [density_text, svi_text, compiled_texts, cuda_text]


@pytest.fixture(scope="module")
def plain():
    return {text_of: text_of(PLAIN) for text_of in TEXTS}


def test_there_are_five_hundred_names():
    assert len(HOSTILE) == len(set(HOSTILE)) == 500
    assert sum(bool(marks_in(name)) for name in HOSTILE) > 400
    assert max(map(len, HOSTILE)) > 1_000_000


@pytest.mark.parametrize("k", range(len(BATCHES)))
@pytest.mark.parametrize("text_of", TEXTS, ids=lambda f: f.__name__)
def test_generated_text_is_the_same_whatever_things_are_called(text_of, k, plain):
    texts = text_of(BATCHES[k])
    assert texts == plain[text_of]
    for text in [texts] if isinstance(texts, str) else texts:
        assert not marks_in(text) and text.isascii() and len(text) > 100


@pytest.fixture
def registry_as_before():
    """Ops of this test alone: the sweep of ops must not meet them."""
    before = dict(REGISTRY)
    yield
    REGISTRY.clear()
    REGISTRY.update(before)


def op_texts(names):
    """A chain of ops that users have registered, for either processor, and what explains it."""
    ops = [
        elementwise(
            name,
            formula=lambda s, x: s.exp(-x * x),
            partials=(lambda g, y, x: g * y * x * -2.0,),
            saves=("out x",),
            domain=("real",),
            reference=lambda x: np.exp(-x * x),
        )
        for name in names
    ]

    def fn(x):
        for op in ops:
            x = op(x)
        return x.sum()

    f = compile(fn)
    f(wrap(np.ones(3)))
    rec, _ = record(fn, [wrap(np.ones(3))])
    optimise(rec.graph)
    return (f.source(), cuda.render(Lowering(rec.graph)).source), f


@pytest.mark.parametrize("k", range(len(BATCHES)))
def test_names_of_registered_ops_stay_outside_and_are_shown_escaped(k, registry_as_before):
    plain, _ = op_texts([f"plain op {i}" for i in range(BATCH)])
    texts, f = op_texts([f"{name} op" for name in BATCHES[k]])
    assert texts == plain
    text = f.explain()
    assert all(c.isprintable() for line in text.split("\n") for c in line)
    assert len(text.split("\n")) == BATCH + 7
    page = Page(f.explain(format="html"))
    assert {"script", "img", "svg", "iframe", "b"} & set(page.tags) <= {"svg"}


def test_names_of_cache_files_are_digests(own_cache):
    density_text(BATCHES[0])
    files = {file.name for file in own_cache.iterdir()}
    assert len(files) > 1
    assert all(name == "key" or re.fullmatch(r"[0-9a-f]{64}\.entry", name) for name in files)
    for file in own_cache.iterdir():
        content = file.read_bytes()
        assert not re.search(rb"zq\d+qz", content) and b"plain0" not in content


@pytest.mark.parametrize("k", range(len(BATCHES)))
def test_what_explain_shows_is_one_line_and_one_document(k):
    for name in BATCHES[k]:
        density = NativeDensity(lambda q: (q * q).sum(), 3, name=name)
        density.paths.reason = (f"reason {name}", f"{name}:7")
        text = density.explain()
        title, reason = text.split("\n")
        assert title.endswith(": 0 compiled paths") and len(title) < 1000
        assert all(c.isprintable() for c in title + reason)
        page = Page(density.explain(format="html"))
        assert set(page.tags) <= TAGS and {n for n, _ in page.attributes} <= ATTRIBUTES
        density.explain(format="html").encode("utf-8")


def test_lines_of_source_are_shown_escaped(tmp_path):
    place = tmp_path / "<b onclick=x>&.py"
    place.write_text(
        "def fn(x): return (x * 2.0).sum()  # </code><script>alert(1)</script> \u202e\n"
    )
    space = {}
    exec(compile_source(place), space)  # noqa: S102
    f = compile(space["fn"])
    f(wrap(np.ones(3)))
    page = Page(f.explain(format="html"))
    assert "script" not in page.tags and "b" not in page.tags
    assert page.says("</code><script>alert(1)</script> \\u202e")
    assert page.says("<b onclick=x>&.py:1")


def compile_source(file):
    return builtins.compile(file.read_text(), str(file), "exec")
