"""Tables: printed, and written between markers in docs/benchmarks.md."""

from pathlib import Path

__all__ = ["duration", "table", "write_section"]

PAGE = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md"


def duration(seconds: float) -> str:
    """Return seconds with three digits and a unit that suits them."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def table(header: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table whose columns also line up as plain text."""
    cells = [header, *rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]

    def line(row: list[str]) -> str:
        return "| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |"

    rule = "|" + "|".join("-" * (w + 2) for w in widths) + "|"
    return "\n".join([line(header), rule, *map(line, rows)])


def write_section(suite: str, text: str, page: Path = PAGE) -> None:
    """Replace what stands between the markers of `suite` in the benchmarks page.

    Raises
    ------
    ValueError
        If the page has no such markers.
    """
    begin, end = f"<!-- {suite}: begin -->", f"<!-- {suite}: end -->"
    content = page.read_text()
    if begin not in content or end not in content:
        raise ValueError(f"{page} has no section between {begin} and {end}; add the two markers")
    head, rest = content.split(begin, 1)
    _, tail = rest.split(end, 1)
    page.write_text(f"{head}{begin}\n{text.strip()}\n{end}{tail}")
