"""`CheckReport`: what `check` found, as text, as HTML in notebooks, and as one file."""

from __future__ import annotations

import html
import io
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from probtorch.core.signatures import explain_calls
from probtorch.serialization.files import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["CheckReport", "Section", "as_svg"]

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
pre { background: #f5f5f5; padding: .8rem; overflow-x: auto; font-size: 13px; }
.good { color: #16702e; } .bad { color: #a32020; } .open { color: #666; }
svg { max-width: 100%; height: auto; }
"""
MARKS = {True: ("good", "nothing found"), False: ("bad", "look here"), None: ("open", "not told")}


@dataclass(frozen=True)
class Section:
    """One check.

    Attributes
    ----------
    title : str
    good : bool or None
        Whether nothing was found; None if the check could not tell.
    verdict : str
        In a sentence.
    details : str
        A table or the like, as text.
    figures : tuple of str
        As SVG.
    """

    title: str
    good: bool | None
    verdict: str
    details: str = ""
    figures: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False, repr=False)
class CheckReport:
    """What was checked of a model, and what was found.

    Attributes
    ----------
    name : str
        Of the model.
    sections : tuple of Section
    """

    name: str
    sections: tuple[Section, ...]

    @property
    def good(self) -> bool:
        """Whether no check found anything."""
        return all(section.good is not False for section in self.sections)

    def __getitem__(self, title: str) -> Section:
        """Return the section with this title."""
        found = {section.title: section for section in self.sections}
        return found[title]

    def __repr__(self) -> str:
        width = max((len(s.title) for s in self.sections), default=0)
        lines = [f"check of {self.name}"]
        for section in self.sections:
            lines.append(f"{section.title:{width}}  {MARKS[section.good][1]}: {section.verdict}")
        return "\n".join(lines)

    def html(self) -> str:
        """Return the report as one HTML page, figures included."""
        name = html.escape(self.name)
        parts = [
            "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
            f"<title>check of {name}</title><style>{STYLE}</style></head><body>",
            self._repr_html_(),
            "</body></html>",
        ]
        return "\n".join(parts)

    def _repr_html_(self) -> str:
        parts = [f"<h1>check of {html.escape(self.name)}</h1>"]
        for section in self.sections:
            kind, word = MARKS[section.good]
            parts.append(
                f"<h2>{html.escape(section.title)}: <span class='{kind}'>{word}</span></h2>"
            )
            parts.append(f"<p>{html.escape(section.verdict)}</p>")
            if section.details:
                parts.append(f"<pre>{html.escape(section.details)}</pre>")
            parts += section.figures
        return "\n".join(parts)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file, whole or not at all.

        Parameters
        ----------
        path : str or path-like

        Raises
        ------
        FileError
            If the file cannot be written.
        """
        with replacing(path) as stream:
            stream.write(self.html().encode("utf-8"))


def as_svg(figure: Figure) -> str:
    """Return a figure as text that an HTML page can hold."""
    stream = io.StringIO()
    figure.savefig(stream, format="svg")
    text = stream.getvalue()
    return text[text.index("<svg") :]


explain_calls(globals())
