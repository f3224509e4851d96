"""Every Python block of README, guides, internals and reference runs, top to bottom.

A page has one namespace. A ``text`` block right after a Python block is what that block prints,
with ``...`` for what may differ.
"""

import contextlib
import doctest
import io
import re
from pathlib import Path

import pytest

from probtorch.core.op import REGISTRY

ROOT = Path(__file__).parents[2]
PAGES = [
    page
    for page in (
        ROOT / "README.md",
        *sorted((ROOT / "docs" / "guide").glob("*.md")),
        *sorted((ROOT / "docs" / "internals").glob("*.md")),
        *sorted((ROOT / "docs" / "reference").glob("*.md")),
    )
    if "```python" in page.read_text(encoding="utf-8")
]
BLOCK = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<prints>.*?)^```)?", re.MULTILINE | re.DOTALL
)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.fixture(autouse=True)
def registry_as_before():
    """Pages that show how to add an op register one; the sweep of ops must not meet it."""
    before = dict(REGISTRY)
    yield
    REGISTRY.clear()
    REGISTRY.update(before)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_python_blocks_of_a_page_run_in_order_and_print_what_the_page_shows(
    page, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8")
    namespace = {"__name__": page.stem}
    for match in BLOCK.finditer(text):
        # Blank lines in front, so that a traceback shows the line of the page.
        lines = text[: match.start("code")].count("\n")
        code = compile("\n" * lines + match["code"], str(page), "exec")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, namespace)  # noqa: S102
        expected = match["prints"]
        if expected is not None and not doctest.OutputChecker().check_output(
            expected, printed.getvalue(), FLAGS
        ):
            pytest.fail(
                f"{page.name}, line {lines + 1}: the block prints\n\n{printed.getvalue()}\n"
                f"and the page shows\n\n{expected}",
                pytrace=False,
            )
    assert namespace
