"""Every Python block of the README and the guides runs, top to bottom, one namespace per page."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "guide").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_python_blocks_of_a_page_run_in_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8")
    namespace = {"__name__": page.stem}
    for match in BLOCK.finditer(text):
        # Blank lines in front, so that a traceback shows the line of the page.
        lines = text[: match.start(1)].count("\n")
        exec(compile("\n" * lines + match.group(1), str(page), "exec"), namespace)  # noqa: S102
    assert namespace
