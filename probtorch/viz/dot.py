"""`Dot`: a graph as text in Graphviz's language, and as a picture where Graphviz is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import warnings
from collections.abc import Mapping
from typing import Self

from probtorch.core.signatures import explain_calls
from probtorch.errors import ArgumentError, users_stacklevel

__all__ = ["Dot"]

# Drawing a graph with thousands of nodes can take very long.
_SECONDS = 120
_PROGRAM = "dot"


def quoted(text: object) -> str:
    """A text as Graphviz reads it."""
    plain = str(text).replace("\\", "\\\\").replace('"', '\\"')
    return '"' + plain.replace("\r", "").replace("\n", "\\n") + '"'


class Dot:
    """A directed graph.

    Parameters
    ----------
    name : str
    graph, node : dict, optional
        Attributes of the graph, and of all nodes.

    Attributes
    ----------
    source : str
        The graph in Graphviz's language.

    Examples
    --------
    >>> graph = Dot("small").node("a", label="first").edge("a", "b")
    >>> print(graph.source)
    digraph "small" {
      "a" [label="first"]
      "a" -> "b"
    }
    """

    def __init__(
        self,
        name: str = "graph",
        graph: Mapping[str, object] | None = None,
        node: Mapping[str, object] | None = None,
    ) -> None:
        self._head = f"digraph {quoted(name)} {{"
        self._lines: list[str] = []
        self._depth = 1
        for kind, attributes in (("graph", graph), ("node", node)):
            if attributes:
                self._add(kind + _attributes(attributes))

    def _add(self, line: str) -> None:
        self._lines.append("  " * self._depth + line)

    def node(self, name: str, **attributes: object) -> Self:
        """Add a node; returns the graph."""
        self._add(quoted(name) + _attributes(attributes))
        return self

    def edge(self, tail: str, head: str, **attributes: object) -> Self:
        """Add an edge; returns the graph."""
        self._add(f"{quoted(tail)} -> {quoted(head)}{_attributes(attributes)}")
        return self

    def open_cluster(self, name: str, label: str) -> Self:
        """Begin a box, in which what follows stands; returns the graph."""
        self._add(f"subgraph {quoted('cluster_' + name)} {{")
        self._depth += 1
        self._add(f"label={quoted(label)} labeljust=r labelloc=b")
        return self

    def close_cluster(self) -> Self:
        """End the innermost box; returns the graph."""
        self._depth -= 1
        self._add("}")
        return self

    @property
    def source(self) -> str:
        """The graph in Graphviz's language."""
        return "\n".join([self._head, *self._lines, "}"])

    def __str__(self) -> str:
        return self.source

    def save(self, filename: str | os.PathLike[str]) -> str:
        """Write the text to a file; returns its name."""
        with open(filename, "w", encoding="utf-8") as file:
            file.write(self.source + "\n")
        return os.fspath(filename)

    def pipe(self, format: str = "svg") -> bytes | None:
        """Return the picture, or None where Graphviz is not installed.

        Raises
        ------
        ArgumentError
            If Graphviz knows no such format.
        """
        program = shutil.which(_PROGRAM)
        if program is None:
            return None
        run = subprocess.run(
            [program, f"-T{format}"],
            input=self.source.encode(),
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
        if run.returncode:
            raise ArgumentError(
                "Dot.pipe",
                expected="a format that Graphviz draws",
                got=f"{format!r}: {run.stderr.decode(errors='replace').strip()[:200]}",
                fix="write format='svg', 'png' or 'pdf'",
            )
        return run.stdout

    def render(self, filename: str | os.PathLike[str], format: str | None = None) -> str:
        """Write the picture to a file; its text, with a warning, where Graphviz is not installed.

        Parameters
        ----------
        filename : str or path-like
        format : str, optional
            "svg", "png", "pdf" ...; by default what the name ends in, or "svg".

        Returns
        -------
        str
            The name of the file that was written.
        """
        path, suffix = os.path.splitext(os.fspath(filename))
        if format is None:
            format = suffix[1:] or "svg"
        elif suffix != f".{format}":
            path += suffix
        if format in ("dot", "gv"):
            return self.save(f"{path}.{format}")
        picture = self.pipe(format)
        if picture is None:
            warnings.warn(
                "the graph is written as text\n"
                f"  expected: the program {_PROGRAM!r} of Graphviz, to draw it\n"
                "  got:      none on the path\n"
                "  fix:      install Graphviz (apt install graphviz, brew install graphviz), or "
                f"open {path}.dot in a viewer",
                RuntimeWarning,
                stacklevel=users_stacklevel(),
            )
            return self.save(f"{path}.dot")
        with open(f"{path}.{format}", "wb") as file:
            file.write(picture)
        return f"{path}.{format}"

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """What a notebook shows."""
        picture = self.pipe("svg")
        if picture is None:
            return {"text/plain": self.source}
        return {"image/svg+xml": picture.decode(), "text/plain": self.source}


def _attributes(given: Mapping[str, object]) -> str:
    texts = [f"{name}={quoted(value)}" for name, value in given.items()]
    return f" [{' '.join(texts)}]" if texts else ""


explain_calls(globals())
