"""The floors of the design hold: imports point downwards, optional packages have one door each.

The contracts are stated in pyproject.toml, `[tool.importlinter]`. What import-linter cannot say is
checked on the syntax tree: no module of the package imports names from the package root.
"""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "probtorch"
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
    "contracts"
]


def root_imports(source: str, submodules: set[str]) -> list[int]:
    """Lines where `source` imports the package root, or a name from it that is no submodule."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            if any(alias.name == "probtorch" for alias in node.names):
                found.append(node.lineno)
        elif isinstance(node, ast.ImportFrom) and node.module == "probtorch":
            if any(alias.name not in submodules for alias in node.names):
                found.append(node.lineno)
    return found


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract["id"])
def test_import_contract_is_kept(contract):
    run = subprocess.run(
        [
            sys.executable,
            "-c",
            "from importlinter.cli import lint_imports_command; lint_imports_command()",
            "--no-cache",
            "--no-logo",
            "--contract",
            contract["id"],
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize(
    "path",
    sorted({*PACKAGE.rglob("*.py")} - {PACKAGE / "__init__.py"}),
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_module_imports_names_from_the_module_that_owns_them(path):
    submodules = {p.stem for p in PACKAGE.glob("*.py")} | {p.name for p in PACKAGE.iterdir()}
    assert root_imports(path.read_text(), submodules) == []


def test_root_import_is_found_by_the_check():
    source = "import probtorch\nfrom probtorch import Tensor\nfrom probtorch import ops\n"
    assert root_imports(source, {"ops"}) == [1, 2]
