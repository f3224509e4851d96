"""Types that users feel: a typed script passes strict checkers, and its mistakes are reported."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("user_script.py")

# What is written wrongly, and how mypy and pyright call the error.
MISTAKES = {
    'probtorch.exp("one")': ("arg-type", "reportArgumentType"),
    "probtorch.exp()": ("call-arg", "reportCallIssue"),
    "probtorch.expp(1.0)": ("attr-defined", "reportAttributeAccessIssue"),
    'probtorch.ones(2).sum(dim="rows")': ("arg-type", "reportArgumentType"),
    "probtorch.ones(2).logsum()": ("attr-defined", "reportAttributeAccessIssue"),
    'nn.Linear(3, "four")': ("arg-type", "reportArgumentType"),
    "nn.Linear(3)": ("call-arg", "reportCallIssue"),
    'nn.Linear(3, 4)("x")': ("arg-type", "reportArgumentType"),
    "nn.Linear(3, 4)()": ("call-arg", "reportCallIssue"),
    "Network(3, 4)(Y, Y)": ("call-arg", "reportCallIssue"),
    "dist.Normal(loc=0.0, sigma=1.0)": ("call-arg", "reportCallIssue"),
    'dist.Normal(0.0, 1.0).log_prob("x")': ("arg-type", "reportArgumentType"),
    "dist.Normal(0.0, 1.0).log_prob()": ("call-arg", "reportCallIssue"),
    'probtorch.sample("x", 3.0)': ("call-overload", "reportCallIssue"),
    'probtorch.plate("rows", "many")': ("arg-type", "reportArgumentType"),
    'MCMC(NUTS(schools), num_samples="many")': ("arg-type", "reportArgumentType"),
    "func.grad(energy)(Y)": ("call-arg", "reportCallIssue"),
    "nn.LSTM(3, 4)(Y)[1].sum()": ("attr-defined", "reportAttributeAccessIssue"),
    "nn.functional.max_pool2d(Y)": ("call-overload", "reportCallIssue"),
    "SGD([Y], lr=[0.1])": ("arg-type", "reportArgumentType"),
    "dist.Normal(0.0, 1.0).expand((2,)).probs": ("attr-defined", "reportAttributeAccessIssue"),
    "DataLoader(5)": ("arg-type", "reportArgumentType"),
    "handlers.trace(schools).get_trace(Y).nodez": ("attr-defined", "reportAttributeAccessIssue"),
    "odeint(decay, (Y, Y), Y)": ("arg-type", "reportArgumentType"),
    "expectation(dist.Bernoulli(0.5), 3)": ("arg-type", "reportArgumentType"),
}


@pytest.fixture(scope="module")
def with_mistakes(tmp_path_factory):
    """The script with a wrong statement per line at its end, and their line numbers."""
    text = SCRIPT.read_text()
    path = tmp_path_factory.mktemp("typed") / "mistakes.py"
    path.write_text(text + "\n".join(MISTAKES) + "\n")
    first = text.count("\n") + 1
    return path, {first + i: m for i, m in enumerate(MISTAKES)}


def mypy(*paths):
    """Return ``(file, line, code)`` of the errors that ``mypy --strict`` finds."""
    config = ROOT / "tests" / "typed" / "mypy.ini"
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", config, "--output=json", *paths],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode in (0, 1), run.stdout + run.stderr
    found = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    return {(Path(e["file"]).name, e["line"], e["code"]) for e in found if e["severity"] == "error"}


def pyright(*paths):
    """Return ``(file, line, rule)`` of the errors that pyright finds."""
    run = subprocess.run(
        [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", *paths],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode in (0, 1), run.stdout + run.stderr
    found = json.loads(run.stdout)["generalDiagnostics"]
    return {
        (Path(e["file"]).name, e["range"]["start"]["line"] + 1, e.get("rule"))
        for e in found
        if e["severity"] == "error"
    }


@pytest.mark.parametrize("checker, which", [(mypy, 0), (pyright, 1)], ids=["mypy", "pyright"])
def test_script_passes_and_each_mistake_is_reported(checker, which, with_mistakes):
    path, lines = with_mistakes
    found = checker(SCRIPT, path)
    assert {e for e in found if e[0] == SCRIPT.name} == set()
    expected = {(path.name, line, MISTAKES[m][which]) for line, m in lines.items()}
    assert expected <= found  # one mistake may have two errors
    assert {(name, line) for name, line, _ in found} == {(path.name, line) for line in lines}
