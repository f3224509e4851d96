"""`Report`: what there is to say of a compiled function, as plain text and numbers.

It keeps no program alive. The text (`explain.py`) and the page (`explain_page.py`) are written from
it. Whatever comes from users (names, files, lines) passes through `visible` here.
"""

import linecache
import os
from dataclasses import dataclass

from probtorch.compiler.explain.profile import Profile
from probtorch.compiler.explain.traffic import traffic_of
from probtorch.compiler.nests.loops import Call, Group, Guard, Loop
from probtorch.compiler.nests.lowering import is_view
from probtorch.compiler.render.timed import timed

__all__ = ["Line", "PathReport", "Report", "Step", "report_of", "size", "span", "visible"]

# Characters of a name or line.
MAX_CHARACTERS = 200


@dataclass(frozen=True)
class Line:
    """Where the user wrote something: full path, number (0: unknown) and the text of the line."""

    file: str = ""
    number: int = 0
    source: str = ""

    @property
    def short(self):
        """The file's own name and the number, or ""."""
        return f"{os.path.basename(self.file)}:{self.number}" if self.number else ""


@dataclass(frozen=True)
class Step:
    """A nest, a call, or (number 0) a guard, loop or branch around others.

    `ops` are the ops of a nest with the user's lines, `read` and `written` bytes, `time` seconds
    in one run and how often it ran, `reads` the steps whose results it takes.
    """

    title: str
    depth: int
    number: int = 0
    ops: tuple[tuple[str, Line], ...] = ()
    read: int = 0
    written: int = 0
    time: tuple[float, int] | None = None
    reads: tuple[int, ...] = ()


@dataclass(frozen=True)
class PathReport:
    """One compiled path; `nodes` are (text, the steps that it became part of, line)."""

    head: str
    facts: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    guards: tuple[tuple[str, Line], ...]
    steps: tuple[Step, ...]
    inputs: str
    nodes: tuple[tuple[str, str, Line], ...]
    outputs: str
    profile: Profile | None


@dataclass(frozen=True)
class Report:
    """A function: its paths, and why it runs eagerly, if it does."""

    title: str
    reason: str
    at: Line
    paths: tuple[PathReport, ...] = ()
    notes: tuple[str, ...] = ()


def report_of(name, programs, reason, profiles, notes=()):
    """Return the report of a function; see `explain` for the parameters."""
    count = f"{len(programs)} compiled path{'s' if len(programs) != 1 else ''}"
    text, place = reason or ("", "")
    paths = tuple(_path(k, p, profiles[k]) for k, p in enumerate(programs))
    return Report(f"{visible(name)}: {count}", visible(text, None), _place(place), paths, notes)


def visible(text, limit=MAX_CHARACTERS):
    """Return `text` in one line of printable characters, cut to `limit`, if there is one.

    Control characters, direction marks and lone surrogates become escapes: they could forge lines,
    drive a terminal, or turn the order of what follows.
    """
    text = str(text)
    shown = text if limit is None else text[: limit + 1]
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)
    return shown if limit is None or len(shown) <= limit else shown[:limit] + "..."


def size(nbytes):
    """Return a number of bytes with its unit."""
    for unit in ("B", "kB", "MB"):
        if nbytes < 1000:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.3g} GB"


def span(seconds):
    """Return a time with its unit."""
    for unit, scale in (("ns", 1e9), ("us", 1e6), ("ms", 1e3)):
        if seconds * scale < 1000:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds:.3g} s"


def _line(location):
    if not location:
        return Line()
    file, number = location
    try:
        source = linecache.getline(file, number).strip()
    except ValueError:
        source = ""  # code may have been compiled under a name that no file can have
    return Line(visible(file, None), number, visible(source))


def _place(text):
    file, _, number = text.rpartition(":")
    return _line((file, int(number))) if file and number.isdecimal() else Line()


def _path(k, program, measured):
    graph, plan, seconds = program.graph, program.plan, program.seconds
    source = "read from the disk cache" if program.from_cache else "compiled"
    times = " + ".join(f"{name} {span(s)}" for name, s in seconds.items())
    steps = _steps(program.lowering, () if measured is None else measured.steps)
    facts = [
        ("ops", str(len(graph.nodes))),
        (source, f"{1e3 * sum(seconds.values()):.1f} ms ({times})"),
        ("arena", f"{plan.arena} bytes"),
        ("scalars", str(plan.scalars)),
        ("constant arrays", str(len(plan.consts))),
        ("bytes read", size(sum(s.read for s in steps))),
        ("bytes written", size(sum(s.written for s in steps))),
    ]
    if measured is not None and not measured.refused:
        facts.append(
            ("one run", f"{span(measured.seconds)}, the faster half of {measured.readings}")
        )
    head = (
        f"path {k}: {len(graph.nodes)} ops, {source} in {1e3 * sum(seconds.values()):.1f} ms; "
        f"arena {plan.arena} bytes, "
        f"{plan.scalars} scalars, {len(plan.consts)} constant arrays"
    )
    return PathReport(
        head=head,
        facts=tuple(facts),
        notes=tuple(program.notes),
        guards=tuple((f"{v!r} is {x!r}", _line(n.location)) for v, x, n in graph.guards),
        steps=steps,
        inputs=repr(graph.inputs),
        nodes=_nodes(graph, program.lowering),
        outputs=repr(graph.outputs),
        profile=measured,
    )


def _nodes(graph, lowering):
    """The nodes of a graph, each with the numbers of the steps that it became part of; movement
    ops become part of none, they change how others read.
    """
    steps = {}
    for number, statement in enumerate(timed(lowering.block), 1):
        for node in _nodes_of(statement):
            # By its results: some rules lower a node by way of another one.
            for v in node.outs:
                steps.setdefault(v.id, []).append(number)
    return tuple(
        (
            visible(node, None),
            ", ".join(dict.fromkeys(str(k) for v in node.outs for k in steps.get(v.id, ())))
            or ("layout only" if is_view(node) else ""),
            _line(node.location),
        )
        for node in graph.nodes
    )


def _nodes_of(statement):
    if isinstance(statement, Group):
        return [item.node for item in statement.items if item.node is not None]
    return [] if statement.node is None else [statement.node]


def _steps(lowering, times):
    """The statements of a program, inner ones after what is around them."""
    numbers = {id(s): k for k, s in enumerate(timed(lowering.block), 1)}
    written = {}  # buffer -> the last step that wrote it
    steps = []

    def walk(block, depth):
        for s in block.statements:
            number = numbers.get(id(s), 0)
            if number:
                traffic = traffic_of(s, lowering)
                steps.append(
                    Step(
                        _title(s),
                        depth,
                        number,
                        tuple((visible(n.name), _line(n.location)) for n in _nodes_of(s)),
                        traffic.read,
                        traffic.written,
                        times[number - 1] if times else None,
                        tuple(sorted({written[b] for b in traffic.reads if b in written})),
                    )
                )
                written.update(dict.fromkeys(traffic.writes, number))
            elif isinstance(s, Guard):
                steps.append(Step(f"check guard {s.index}", depth))
            else:
                words = ("while", "do") if isinstance(s, Loop) else ("if", "else")
                for word, inner in zip(words, s.blocks, strict=True):
                    steps.append(Step(word, depth))
                    walk(inner, depth + 1)

    walk(lowering.block, 0)
    return tuple(steps)


def _title(statement):
    if isinstance(statement, Call):
        return f"call {statement.attrs.get('symbol', statement.name)}"
    if not statement.items:
        return "fill"
    names = [i.node.name if i.node is not None else i.kind for i in statement.items]
    shape = "x".join(map(str, statement.domain)) or "scalar"
    cut = "" if statement.parts is None else f"; {statement.parts.count} parts for threads"
    return f"nest over {shape}: {' '.join(map(visible, names))}{cut}"
