"""Sphinx settings: Markdown through MyST, notebooks executed at build time, furo's theme."""

from importlib import metadata

project = "probtorch"
author = "The probtorch authors"
copyright = f"{author}, Apache-2.0"
release = metadata.version("probtorch")

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"probtorch {release}"

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
nb_execution_raise_on_error = True
napoleon_google_docstring = False
autodoc_typehints = "none"
