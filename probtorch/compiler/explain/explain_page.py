"""An explanation as one HTML page: no scripts, no network, nothing of the user's unescaped.

`page` is a whole document, whose policy forbids scripts and every request; `fragment` is the same
for a cell of a notebook. Steps are a table with an arc from each step to those that read what it
wrote; each opens to show the ops that were fused into it, with the user's lines. Long graphs are
folded in stretches.
"""

import html

from probtorch.compiler.explain.report import size, span

__all__ = ["fragment", "page"]

# Nodes of a graph per folded stretch, and from how many on the graph is folded at all.
_STRETCH, _FOLDED = 200, 400
# Rows of a table of steps up to which arcs are drawn; beyond, they are a thicket.
_MAX_ARCS = 120
# Pixels: height of a row, distance of arcs.
_ROW, _LANE = 22, 7

_STYLE = """
.pt-explain { font: 14px/1.5 system-ui, sans-serif; max-width: 75em; }
.pt-explain code, .pt-explain pre { font: 12px/1.5 ui-monospace, monospace; white-space: pre-wrap;
  overflow-wrap: anywhere; unicode-bidi: isolate; }
.pt-explain table { border-collapse: collapse; margin: .5em 0; }
.pt-explain th, .pt-explain td { text-align: left; padding: 1px 10px 1px 0; vertical-align: top;
  border-bottom: 1px solid #8883; }
.pt-explain .n { text-align: right; white-space: nowrap; }
.pt-explain .bar { fill: #c60; } .pt-explain .box { fill: #48a3; stroke: #48a; }
.pt-explain .arc { fill: none; stroke: #48a; } .pt-explain svg text { font-size: 11px;
  fill: currentColor; }
.pt-explain .why { border-left: 4px solid #c60; padding-left: .7em; }
.pt-explain section { border-top: 2px solid #8886; margin-top: 1.5em; }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def page(report):
    """Return a report as a self-contained HTML document."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_escape(_POLICY)}">\n'
        f"<title>{_escape(report.title)}</title>\n</head>\n<body>\n{fragment(report)}\n"
        "</body>\n</html>\n"
    )


def fragment(report):
    """Return a report as one HTML element."""
    parts = [f'<div class="pt-explain"><style>{_STYLE}</style><h2>{_escape(report.title)}</h2>']
    if report.reason:
        parts.append(
            f'<p class="why">Runs eagerly: {_escape(report.reason)} {_source(report.at)}</p>'
        )
    parts += [f"<p>{_escape(note)}</p>" for note in report.notes]
    parts += [_path(k, path) for k, path in enumerate(report.paths)]
    return "\n".join(parts) + "</div>"


def _escape(text):
    return html.escape(str(text), quote=True)


def _source(line):
    """The user's line: where, and what it says."""
    if not line.number:
        return ""
    where = f'<span title="{_escape(line.file)}">{_escape(line.short)}</span>'
    return f"{where} <code>{_escape(line.source)}</code>" if line.source else where


def _table(head, rows):
    """A table; cells are HTML, and a head that ends in "|" is of numbers."""
    classes = [' class="n"' if name.endswith("|") else "" for name in head]
    lines = ["<table><thead><tr>"]
    lines += [f"<th{c}>{_escape(h.rstrip('|'))}</th>" for h, c in zip(head, classes, strict=True)]
    lines.append("</tr></thead><tbody>")
    for row in rows:
        cells = "".join(f"<td{c}>{x}</td>" for x, c in zip(row, classes, strict=True))
        lines.append(f"<tr>{cells}</tr>")
    return "".join(lines) + "</tbody></table>"


def _path(k, path):
    parts = [f"<section><h3>Path {k}</h3>"]
    parts.append(
        _table(["what", ""], [(_escape(name), _escape(fact)) for name, fact in path.facts])
    )
    parts += [f"<p>{_escape(note)}</p>" for note in path.notes]
    if path.profile is not None and path.profile.refused:
        parts.append(f'<p class="why">Not profiled: {_escape(path.profile.refused)}</p>')
    if path.guards:
        rows = [
            (str(i), f"<code>{_escape(text)}</code>", _source(at))
            for i, (text, at) in enumerate(path.guards)
        ]
        parts.append("<h4>Guards: it is used while</h4>" + _table(["", "holds", "line"], rows))
    numbered = [s for s in path.steps if s.number]
    if numbered:
        parts.append("<h4>Loop nests and calls</h4>" + _arcs(numbered) + _steps(path))
    parts.append(_graph(path))
    return "\n".join(parts) + "</section>"


def _steps(path):
    """The table of steps, each with what was fused into it."""
    total = sum(s.time[0] for s in path.steps if s.time) or 1.0
    head = ["|", "step", "reads|", "writes|"]
    if any(s.time for s in path.steps):
        head += ["runs|", "time|", "share"]
    rows = []
    for s in path.steps:
        indent = "&emsp;" * s.depth
        if not s.number:
            rows.append(["", f"{indent}<i>{_escape(s.title)}</i>"] + [""] * (len(head) - 2))
            continue
        row = [str(s.number), indent + _fused(s), size(s.read), size(s.written)]
        if s.time:
            seconds, count = s.time
            width = 100 * seconds / total
            row += [
                str(count),
                span(seconds),
                f"{_bar(width)} {width:.0f}%",
            ]
        rows.append(row + [""] * (len(head) - len(row)))
    return _table(head, rows)


def _bar(percent):
    bar = f'<rect class="bar" width="{percent:.1f}" height="10"/>'
    return f'<svg width="100" height="12">{bar}</svg>'


def _fused(step):
    name, _, ops = step.title.partition(": ")
    label = f"{name}: {len(ops.split())} ops" if ops else name
    if not step.ops:
        return _escape(step.title)
    rows = [(f"<code>{_escape(op)}</code>", _source(at)) for op, at in step.ops]
    kinds = " ".join(dict.fromkeys(ops.split()))
    brief = _escape(kinds if len(kinds) <= 80 else kinds[:80] + "...")
    summary = f"<summary>{_escape(label)} <code>{brief}</code></summary>"
    return f"<details>{summary}{_table(['op', 'line'], rows)}</details>"


def _arcs(steps):
    """The steps from top to bottom, and arcs to those that read what they wrote."""
    if len(steps) > _MAX_ARCS:
        return ""
    row = {s.number: i for i, s in enumerate(steps)}
    pairs = [(row[r], i) for i, s in enumerate(steps) for r in s.reads if row[r] != i]
    lanes = max((abs(i - j) for i, j in pairs), default=0)
    left = 20 + _LANE * min(lanes, 30)
    shapes = []
    for i, j in pairs:
        bend = left - 12 - _LANE * min(abs(i - j), 30)
        y, z = _ROW * i + 14, _ROW * j + 8
        shapes.append(f'<path class="arc" d="M{left},{y} C{bend},{y} {bend},{z} {left},{z}"/>')
    for i, s in enumerate(steps):
        title = s.title if len(s.title) <= 90 else s.title[:90] + "..."
        shapes.append(
            f'<rect class="box" x="{left}" y="{_ROW * i + 2}" width="26" height="{_ROW - 4}"/>'
            f'<text x="{left + 5}" y="{_ROW * i + 15}">{s.number}</text>'
            f'<text x="{left + 34}" y="{_ROW * i + 15}">{_escape(title)}</text>'
        )
    return (
        f"<details open><summary>which step reads what which one wrote</summary>"
        f'<svg width="{left + 700}" height="{_ROW * len(steps) + 4}" role="img">'
        f"{''.join(shapes)}</svg></details>"
    )


def _graph(path):
    rows = [
        (
            str(i),
            f"<code>{_escape(text)}</code>",
            _escape(steps),
            _source(at),
        )
        for i, (text, steps, at) in enumerate(path.nodes)
    ]
    head = ["|", "op", "in step", "line"]
    if len(rows) <= _FOLDED:
        body = _table(head, rows)
    else:
        body = "\n".join(
            f"<details><summary>ops {k} to {min(k + _STRETCH, len(rows)) - 1}</summary>"
            f"{_table(head, rows[k : k + _STRETCH])}</details>"
            for k in range(0, len(rows), _STRETCH)
        )
    return (
        f"<details><summary>the recorded graph: {len(rows)} ops</summary>"
        f"<p>of <code>{_escape(path.inputs)}</code></p>{body}"
        f"<p>to <code>{_escape(path.outputs)}</code></p></details>"
    )
