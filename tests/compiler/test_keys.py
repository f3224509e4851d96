"""Names of recorded graphs: the same for the same graph anywhere, another for any other graph."""

import ast
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from probtorch.compiler.graph import Graph
from probtorch.compiler.native import cache, keys, sources
from probtorch.compiler.nests import lowering
from probtorch.core.op import REGISTRY
from probtorch.ops.families import elementwise
from tests.compiler import twins

ROOT = Path(__file__).resolve().parents[2]
COMPILER = ROOT / "probtorch" / "compiler"


@pytest.fixture(autouse=True)
def same_sources(monkeypatch):
    """The sources as they are, even if somebody edits them while this runs."""
    monkeypatch.setattr(keys, "sources", lambda: "the same")


@pytest.mark.parametrize("what", twins.PAIRS)
def test_graphs_that_differ_in_one_detail_have_different_names(what):
    first, second = (keys.key_of_graph(build()) for build in twins.PAIRS[what])
    again = keys.key_of_graph(twins.PAIRS[what][0]())
    assert None not in (first, second, again)
    assert first.name == again.name
    assert first.name != second.name


def test_no_two_pairs_share_a_name():
    # Some graphs stand in several pairs on purpose, so they are told apart by what they record.
    by_name = {}
    for builds in twins.PAIRS.values():
        for build in builds:
            graph = build()
            name = keys.key_of_graph(graph).name
            ops = [n.name for n in graph.nodes], [v.shape for v in graph.inputs]
            assert by_name.setdefault(name, ops) == ops


@pytest.mark.parametrize("seed", ["0", pytest.param("1", marks=pytest.mark.slow), "4294967295"])
def test_names_are_the_same_in_another_process(seed):
    child = subprocess.run(
        [sys.executable, "-m", "tests.compiler.twins"],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    )
    there = {row[0]: row[1:] for row in (x.split("\t") for x in child.stdout.splitlines())}
    assert there == twins.names()


@pytest.mark.parametrize("size", [2, 8, 9, 64, 65, 200])
def test_data_do_not_count_where_code_cannot_depend_on_them(size):
    data = twins.LONG[:size]
    one, other = (keys.key_of_graph(twins.plus(x)()).name for x in (data, data + 1.0))
    assert one == other


@pytest.mark.parametrize("changed", ["machine", "sources", "version"])
def test_names_depend_on_machine_and_compiler(changed, monkeypatch):
    build = twins.PAIRS["op"][0]
    before = keys.key_of_graph(build()).name
    if changed == "machine":
        monkeypatch.setattr(cache.host, "target_signature", lambda: "another machine")
    elif changed == "sources":
        monkeypatch.setattr(keys, "sources", lambda: "others")
    else:
        monkeypatch.setattr(keys, "VERSION", keys.VERSION + 1)
    assert keys.key_of_graph(build()).name != before


# ------------------------------------------------------------------------------- what has no name


@pytest.fixture
def foreign():
    """An op that is declared outside the package."""
    op = elementwise(
        "foreign_double",
        formula=lambda s, x: x + x,
        partials=(lambda g: g + g,),
        domain=("real",),
        reference=lambda x: 2 * x,
    )
    yield op
    del REGISTRY["foreign_double"]


def test_an_op_from_elsewhere_has_no_name(foreign):
    # Its formula can change without a change of any file of the package.
    graph = twins.graph_of(lambda x: foreign(x), twins.X)
    assert [node.name for node in graph.nodes] == ["foreign_double"]
    assert keys.key_of_graph(graph) is None


def test_a_rule_from_elsewhere_has_no_name(monkeypatch):
    monkeypatch.setitem(lowering.RULES, "exp", lambda low, node, block: None)
    assert keys.key_of_graph(twins.graph_of(lambda x: x.exp(), twins.X)) is None


@pytest.mark.parametrize(
    "attribute",
    [
        len,
        lambda x: x,
        object(),
        threading.Lock(),
        {1, 2},
        1j,
        np.zeros(3),
        np.dtype("c16"),
        Path(),
    ],
    ids=lambda x: type(x).__name__,
)
def test_an_attribute_of_an_unknown_type_has_no_name(attribute):
    graph = twins.graph_of(lambda x: x.exp(), twins.X)
    graph.nodes[0].attrs = {"what": attribute}
    assert keys.key_of_graph(graph) is None


def test_attributes_are_told_apart_by_type_and_bits():
    values = [
        *(
            None,
            True,
            1,
            1.0,
            -1,
            0.0,
            -0.0,
            float("nan"),
            twins.NAN,
            "1",
            "None",
            "",
            "a b",
            "a,b",
        ),
        *((), [], (1,), [1], (1, 2), ((1,), 2), (1, (2,)), ("1",), ("1, 2",), ("1", "2")),
        *(np.dtype("f4"), np.dtype("f8"), "<f8", np.float32(1), np.float64(1), np.int8(1)),
        *(np.bool_(True), slice(1, 2), slice(1, 2, 1), slice(None, 2), 2**70, 10**5000),
        *(
            "\ud800",
            "\n",
            "\\n",
            np.float64("nan"),
            (float("nan"),),
            (-0.0,),
            (0.0,),
            (0,),
            (False,),
        ),
    ]
    names = []
    for value in values:
        graph = twins.graph_of(lambda x: x.exp(), twins.X)
        graph.nodes[0].attrs = {"what": value}
        names.append(keys.key_of_graph(graph).name)
    assert len(set(names)) == len(values)


def test_an_array_that_is_none_of_numpys_has_no_name():
    graph = twins.plus(twins.LONG)()
    for node in graph.nodes:
        for v in node.values():
            if v.kind == "const":
                v.array = memoryview(v.array)
    assert keys.key_of_graph(graph) is None


def test_a_value_that_nothing_makes_has_no_name():
    graph = twins.graph_of(lambda x: x.exp().sin(), twins.X)
    del graph.nodes[0]
    assert keys.key_of_graph(graph) is None


def test_an_empty_graph_has_a_name():
    assert keys.key_of_graph(Graph()) is not None


# ----------------------------------------------------------------------------------- the sources


@pytest.fixture
def package(tmp_path):
    """A package with a source in each folder that counts, all of them old."""
    for folder in ("backends", "core", "ops", "ops/record", "compiler/lower", "compiler/record"):
        file = tmp_path / folder / "a.py"
        file.parent.mkdir(parents=True)
        file.write_text("x = 1\n")
    return tmp_path


def digest(package):
    # As in a process that starts later.
    return sources.sources_below(package, loaded=2.0**40)


def change_text(file):
    file.write_text("x = 2\n")


def change_size(file):
    file.write_text("x = 10\n")


def change_time(file):
    os.utime(file, (1, 1))


def rename(file):
    file.rename(file.with_name("b.py"))


def add(file):
    file.with_name("new.py").write_text("")


@pytest.mark.parametrize(
    "change", [change_text, change_size, change_time, rename, add, Path.unlink]
)
@pytest.mark.parametrize("folder", ["ops", "ops/record", "compiler/lower"])
def test_a_change_of_a_source_changes_all_names(package, folder, change):
    before = digest(package)
    assert digest(package) == before
    change(package / folder / "a.py")
    assert before is not None
    assert digest(package) != before


def test_what_is_no_source_does_not_count(package):
    before = digest(package)
    (package / "ops" / "__pycache__").mkdir()
    (package / "ops" / "__pycache__" / "a.py").write_text("")
    (package / "ops" / "notes.md").write_text("")
    # Names hold what was recorded, whoever recorded it.
    change_text(package / "compiler" / "record" / "a.py")
    assert digest(package) == before


def test_names_are_the_same_where_files_are_listed_by_their_paths(package, monkeypatch):
    before = digest(package)
    monkeypatch.setattr(sources, "_BY_NUMBER", False)
    assert digest(package) == before is not None


def test_sources_younger_than_the_process_have_no_names(package):
    # What runs is then not what lies on the disk.
    changed = (package / "ops" / "a.py").stat().st_ctime
    assert sources.sources_below(package, loaded=changed - 1.0) is None
    assert sources.sources_below(package, loaded=changed + 60.0) is not None


def test_a_package_without_files_has_no_names(tmp_path):
    assert sources.sources_below(tmp_path, loaded=2.0**40) is None


def test_without_known_sources_no_graph_has_a_name(monkeypatch):
    monkeypatch.setattr(keys, "sources", lambda: None)
    assert keys.key_of_graph(twins.PAIRS["op"][0]()) is None


# --------------------------------------------------------------------- what the compiler looks at


def looks_at_elements(path):
    """The functions of a file in which `.array` of something is read, and not called."""
    found = set()
    for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(function, ast.FunctionDef):
            called = {id(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)}
            for node in ast.walk(function):
                read = isinstance(node, ast.Attribute) and node.attr == "array"
                if read and id(node) not in called:
                    found.add(f"{path.name}:{function.name}")
    return found


def test_nothing_else_looks_at_the_elements_of_constants():
    # A name covers what these ask of a constant. Whoever adds one here has to see to it that names
    # (`_Walk._constant`) cover that too, or cached code will be run on arrays that it is not for.
    files = [*(COMPILER / "passes").glob("*.py"), *(COMPILER / "lower").glob("*.py")]
    files += [*(COMPILER / "render").rglob("*.py"), COMPILER / "nests" / "lowering.py"]
    found = set().union(*map(looks_at_elements, files))
    assert found == {
        "simplify.py:_key",  # elements of 8 or fewer
        "simplify.py:_number",  # of one, perhaps expanded
        "simplify.py:_source",  # of one, expanded
        "indexing.py:address",  # bounds of whole numbers
        "lowering.py:_constant",  # strides; by `arranged`, elements of `SMALL` or fewer; address
        "cuda.py:_updates",  # of no constant: whether tensors that are updated are contiguous
        "cuda.py:_words",  # of no constant: which references are single numbers of the host
    }


def test_large_whole_constants_are_named_by_their_bounds():
    def taking(index):
        return keys.key_of_graph(twins.taken(index)()).name

    inner = np.where(twins.WHOLE == 2, 1, twins.WHOLE)
    inner[:2] = 0, 2
    assert taking(twins.WHOLE) == taking(inner)
    assert taking(twins.WHOLE) != taking(np.minimum(twins.WHOLE, 1))
    assert taking(twins.WHOLE) != taking(twins.WHOLE - 3)


def test_key_holds_constants_and_references_in_order():
    graph = twins.PAIRS["one tensor outside or two"][1]()
    key = keys.key_of_graph(graph)
    assert [v.kind for v in key.given] == ["ref", "ref"]
    assert [key.numbers[v.id] for v in key.given] == [0, 1]
