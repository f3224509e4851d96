"""Globals and attributes found by a name that is made: watched, natively, in a fresh process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.compiler.looking_anywhere import CASES

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", [fn.__name__ for fn in CASES])
def test_what_is_found_by_its_name_is_watched_and_stays_compiled(name):
    ran = subprocess.run(
        [sys.executable, "-m", "tests.compiler.looking_anywhere", name],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["reason"] is None
    assert found["found before"] == [found["before"]] * 3
    assert found["after"] != found["before"]
    assert found["found after"] == [found["after"]] * 2
