"""`explain`: what a compiled function became, as text or as an HTML page.

For each path: its guards and its graph with the user's lines, the loop nests with their ops and the
bytes that each moves (one line per nest is one pass over memory), library calls, loops and
branches, the memory it needs, how long compiling took, and with ``profile=True`` how long each nest
and call takes.

`report.py` gathers all of it, `explain_page.py` writes the page, `profile.py` takes the times.
"""

from probtorch.compiler.explain.explain_page import fragment, page
from probtorch.compiler.explain.profile import profile as time_of
from probtorch.compiler.explain.report import Line, Report, report_of, size, span, visible
from probtorch.errors import ArgumentError

__all__ = ["Explanation", "explain", "explain_reason"]

# Nodes listed per path; a longer graph is cut.
MAX_NODES = 400


class Explanation(str):
    """The text of an explanation; notebooks show its page instead.

    Attributes
    ----------
    report : Report
    """

    report: Report

    def __new__(cls, text, report):
        self = super().__new__(cls, text)
        self.report = report
        return self

    def __getnewargs__(self):
        return str(self), self.report

    def _repr_html_(self):
        return fragment(self.report)


def explain(name, programs, reason, *, notes=(), format="text", profile=False):
    """Return the explanation of a function.

    Parameters
    ----------
    name : str
    programs : sequence of Executable
        Of its compiled paths.
    reason : (str, str), optional
        Why it runs eagerly, if it does, and the user's line as "file:line" or "".
    format : "text" or "html"
    notes : tuple of str
        What else there is to say of all paths.
    profile : bool
        Whether each is timed, see `profile.py`.

    Returns
    -------
    Explanation, or str
        The latter for "html".
    """
    profiles = [time_of(p) if profile else None for p in programs]
    report = report_of(name, programs, reason, profiles, notes)
    return _formatted(report, _text(report), format)


def explain_reason(sentence, *, format="text"):
    """Return the explanation of a function of which there is only this to say."""
    sentence = visible(sentence, None)
    return _formatted(Report(sentence, "", Line()), sentence, format)


def _formatted(report, text, format):
    if format == "text":
        return Explanation(text, report)
    if format != "html":
        raise ArgumentError(
            "explain: format", expected="'text' or 'html'", got=repr(format), fix="use one of them"
        )
    return page(report)


# ---------------------------------------------------------------------------------------- as text


def _text(report):
    lines = [report.title]
    if report.reason:
        at = f" (at {report.at.file}:{report.at.number})" if report.at.number else ""
        lines.append(f"runs eagerly: {report.reason}{at}")
    lines += report.notes
    for path in report.paths:
        lines.append(path.head)
        lines += [f"  {note}" for note in path.notes]
        if path.profile is not None:
            lines.append(f"  {_timing(path.profile)}")
        for i, (text, at) in enumerate(path.guards):
            lines.append(f"  guard {i}: {text}{_at(at)}")
        lines.append("  loop nests:")
        lines += [f"    {'  ' * step.depth}{_step(step)}" for step in path.steps]
        lines.append(f"  graph of {path.inputs}:")
        lines += [f"    {text}{_at(at)}" for text, _, at in path.nodes[:MAX_NODES]]
        if len(path.nodes) > MAX_NODES:
            lines.append(f"    ... and {len(path.nodes) - MAX_NODES} more")
        lines.append(f"  outputs: {path.outputs}")
    return "\n".join(lines)


def _timing(measured):
    if measured.refused:
        return f"not profiled: {measured.refused}"
    inside = sum(seconds for seconds, _ in measured.steps)
    return (
        f"one run takes {span(measured.seconds)} (the faster half of {measured.readings}); "
        f"its steps, timed one by one, {span(inside)}"
    )


def _step(step):
    if not step.number:
        return step.title
    text = f"{step.title}; reads {size(step.read)}, writes {size(step.written)}"
    if step.time is None:
        return text
    seconds, count = step.time
    return f"{text}; {span(seconds)}" + (f" in {count} turns" if count != 1 else "")


def _at(line):
    return f"  # {line.short}" if line.number else ""
