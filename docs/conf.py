"""Sphinx settings: Markdown through MyST, notebooks executed at build time, furo's theme.

The reference is made from the docstrings, each on the page of its room. `_plain_stars` lets them
say ``*args`` and ``|x|`` as a reader of the source expects; `_functions_page` lists the functions
of the front door.
"""

import inspect
import re
import sys
from importlib import metadata
from pathlib import Path

import probtorch

project = "probtorch"
author = "The probtorch authors"
copyright = f"{author}, Apache-2.0"
release = metadata.version("probtorch")

# The extension that writes the pages of distributions lies beside this file.
sys.path.insert(0, str(Path(__file__).parent))
extensions = [
    "distribution_pages",
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"probtorch {release}"
# A parameter described as "shape (dim,)" is no reference to the several attributes called dim; and
# the bibliography also has what only comments and private functions cite.
suppress_warnings = ["ref.python", "ref.citation"]

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
nb_execution_raise_on_error = True
napoleon_google_docstring = False
napoleon_use_ivar = True
autodoc_typehints = "none"
autodoc_member_order = "bysource"

FUNCTIONS = Path(__file__).parent / "reference" / "generated" / "functions.md"
# Rooms whose names a page would list among those of the room around them, but that have their own.
ELSEWHERE = {
    "reference/distributions": "probtorch.distributions.transforms.flows",
    "reference/inference": "probtorch.infer.guides",
}
QUOTED = re.compile(r"(``.*?``|`.*?`)")


def _plain_stars(app, what, name, obj, options, lines):
    """Escape stars and bars outside backquotes that stand before a word or a bracket's end."""
    for i, line in enumerate(lines):
        parts = QUOTED.split(line)
        parts[::2] = [re.sub(r"(?<![\w\\])(\*{1,2}|\|)(?=[\w)])", _escaped, p) for p in parts[::2]]
        lines[i] = "".join(parts)


def _escaped(match):
    return "".join("\\" + c for c in match[1])


def _functions_page(app):
    """Write the page that lists the functions of ``probtorch`` with their first lines."""
    names = sorted(
        name
        for name in dir(probtorch)
        if not name.startswith("_") and inspect.isfunction(getattr(probtorch, name))
    )
    rows = "\n".join(f"   probtorch.{name}" for name in names)
    FUNCTIONS.parent.mkdir(exist_ok=True)
    FUNCTIONS.write_text(
        "# Functions of tensors\n\nNames are PyTorch's, and Pyro's for the statements of a model; "
        "most are methods of `Tensor`, too.\n\n"
        f"```{{eval-rst}}\n.. autosummary::\n\n{rows}\n```\n",
        encoding="utf-8",
    )


def _has_its_own_page(app, what, name, obj, skip, options):
    """Leave out what another page documents: described twice, it could not be referred to."""
    room = ELSEWHERE.get(app.env.docname)
    module = getattr(obj, "__module__", None) or ""
    return True if room and f"{module}.".startswith(f"{room}.") else None


def setup(app):
    """Connect the functions above."""
    app.connect("autodoc-skip-member", _has_its_own_page)
    app.connect("autodoc-process-docstring", _plain_stars, priority=100)
    app.connect("builder-inited", _functions_page, priority=100)
