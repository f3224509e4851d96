"""Whose a file is: errors name the user's lines, compiled code watches the user's own code."""

import csv
import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import probtorch
from probtorch.source_files import owner


@pytest.mark.parametrize(
    ("file", "whose"),
    [
        (probtorch.__file__, "ours"),
        ("<string>", "ours"),
        (json.__file__, "standard"),
        (functools.__file__, "standard"),
        (csv.__file__, "standard"),
        (np.__file__, "installed"),
        (pytest.__file__, "installed"),
        (__file__, "user"),
        (os.path.join(os.curdir, "model.py"), "user"),
    ],
    ids=lambda value: os.path.basename(os.path.dirname(value)) or value,
)
def test_files_have_owners(file, whose):
    assert owner(file) == whose


@pytest.mark.parametrize("on_path", ["place", "link"])
@pytest.mark.parametrize("asked", ["place", "link"])
def test_packages_beside_a_program_are_installed_and_what_is_among_them_is_the_users(
    tmp_path, on_path, asked
):
    (tmp_path / "link").symlink_to(tmp_path / "place")
    on_path, asked, tmp_path = tmp_path / on_path, tmp_path / asked, tmp_path / "place"
    tmp_path.mkdir()
    # As `pip install --target` leaves it: a folder of packages with their metadata.
    for package in ("letters", "mine"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("def two(x):\n    return x + x\n")
    (tmp_path / "script.py").write_text("")
    (tmp_path / "single.py").write_text("")
    info = tmp_path / "letters-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: letters\nVersion: 1.0\n")
    (info / "RECORD").write_text("letters/__init__.py,,\nsingle.py,,\n")
    program = f"""
import sys
sys.path.append({str(on_path)!r})
from probtorch.source_files import owner
for name in ("letters/__init__.py", "single.py", "mine/__init__.py", "script.py"):
    print(owner({str(asked)!r} + "/" + name))
"""
    home = Path(probtorch.__file__).parents[1]
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(home)},
    )  # fmt: skip
    assert told.stdout.split() == ["installed", "installed", "user", "user"]
