"""`Dot`: text that Graphviz reads, pictures where it is installed, elsewhere a warning."""

import os
import stat
import sys

import pytest

from probtorch.errors import ArgumentError
from probtorch.viz import Dot

# Draws nothing, but answers as Graphviz does.
PROGRAM = f"""#!{sys.executable}
import sys
if sys.argv[1] not in ("-Tsvg", "-Tpng"):
    sys.exit(f'Format: "{{sys.argv[1][2:]}}" not recognized.')
sys.stdout.write("<svg>" + sys.argv[1] + str(len(sys.stdin.read())) + "</svg>")
"""


@pytest.fixture
def graph():
    return Dot("g").node("a").open_cluster("box", "a box").node("b").close_cluster().edge("a", "b")


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))


@pytest.fixture
def graphviz(monkeypatch, tmp_path):
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "dot"
    program.write_text(PROGRAM)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(folder))


def test_text_is_quoted():
    source = Dot('a "name"').node("back\\slash", label="two\nlines").source
    assert source.splitlines() == [
        'digraph "a \\"name\\"" {',
        '  "back\\\\slash" [label="two\\nlines"]',
        "}",
    ]


def test_boxes_are_nested(graph):
    assert graph.source.splitlines()[2:6] == [
        '  subgraph "cluster_box" {',
        '    label="a box" labeljust=r labelloc=b',
        '    "b"',
        "  }",
    ]
    assert str(graph) == graph.source


def test_without_graphviz_the_text_is_written_and_a_warning_says_so(graph, nowhere, tmp_path):
    with pytest.warns(RuntimeWarning, match="install Graphviz") as warned:
        path = graph.render(tmp_path / "model.svg")
    assert warned[0].filename == __file__
    assert path == str(tmp_path / "model.dot")
    assert (tmp_path / "model.dot").read_text() == graph.source + "\n"
    assert graph.pipe() is None and graph._repr_mimebundle_() == {"text/plain": graph.source}


def test_a_text_needs_no_graphviz(graph, nowhere, tmp_path):
    assert graph.render(tmp_path / "model.gv") == str(tmp_path / "model.gv")
    assert os.listdir(tmp_path) == ["model.gv"]


@pytest.mark.parametrize(
    "name, format, written",
    [
        ("model.svg", None, "model.svg"),
        ("model", None, "model.svg"),
        ("model.png", None, "model.png"),
        ("model.v2", "png", "model.v2.png"),
        ("model.png", "png", "model.png"),
    ],
)
def test_with_graphviz_a_picture_is_written(graph, graphviz, tmp_path, name, format, written):
    assert graph.render(tmp_path / name, format) == str(tmp_path / written)
    expected = f"<svg>-T{written[-3:]}{len(graph.source)}</svg>"
    assert (tmp_path / written).read_text() == expected
    assert "image/svg+xml" in graph._repr_mimebundle_()


def test_a_format_that_there_is_none_of_is_refused(graph, graphviz):
    with pytest.raises(ArgumentError, match='Format: "docx" not recognized'):
        graph.pipe("docx")
