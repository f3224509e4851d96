"""What a run shows: rows, lines in a log, tables, and nothing at all for short or silent runs."""

import io
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from probtorch.config import configure
from probtorch.infer import display
from probtorch.infer.display import activity
from probtorch.infer.mcmc import progress
from probtorch.infer.mcmc.kernels.hmc import HMCInfo
from probtorch.infer.mcmc.progress import Progress
from probtorch.infer.mcmc.recording import DrawRecord
from probtorch.infer.mcmc.running import RunningTrace

ROOT = Path(__file__).resolve().parents[3]


def chain(**changes):
    fields = {
        "num_warmup": 100, "num_samples": 300, "iteration": 150, "warming_up": False,
        "finished": False, "error": None,
        "seconds": 2.0, "step_size": 0.123456, "divergences": 3, "evaluations": 3_000_000,
        "draws": DrawRecord(300, (2,), HMCInfo), "trace": RunningTrace(),
        "target": SimpleNamespace(slots={}),
    }  # fmt: skip
    return SimpleNamespace(**{**fields, **changes})


class Screen(io.StringIO):
    def __init__(self, terminal):
        super().__init__()
        self.terminal = terminal

    def isatty(self):
        return self.terminal


@pytest.mark.parametrize(
    "changes, phase",
    [
        ({}, "sampling"),
        ({"warming_up": True, "iteration": 50}, "warm-up 50/100"),
        ({"finished": True, "iteration": 400}, "done"),
        ({"finished": True}, "stopped"),
        ({"finished": True, "error": ValueError()}, "failed"),
        ({"seconds": 0.0, "iteration": 0, "evaluations": 0, "warming_up": True}, "waiting"),
    ],
)
def test_row_says_where_a_chain_is(changes, phase):
    row = progress.row(2, chain(**changes))
    assert row[0] == "2" and row[2] == phase
    # Draws are those after the warm-up.
    assert row[1] == f"{max(chain(**changes).iteration - 100, 0)}/300"
    if not changes:
        assert row == ("2", "50/300", "sampling", "0.123", "3", "1.5M", "2.0 s")


def test_draws_that_are_thinned_are_counted_as_they_are_kept():
    thinned = chain(draws=DrawRecord(300, (2,), HMCInfo, 4))
    assert progress.row(0, thinned)[1] == "12/75"
    assert "12/75 draws (16 %)" in progress.log_line([thinned])


@pytest.fixture
def patient(monkeypatch):
    """Displays appear at once and refresh whenever they are asked."""
    for name in ("PATIENCE", "REFRESH", "LOG_EVERY"):
        monkeypatch.setattr(progress, name, 0.0)


def shown(monkeypatch, terminal, chains):
    screen = Screen(terminal)
    monkeypatch.setattr(sys, "stderr", screen)
    with Progress(chains) as display:
        display.update()
        chains[0].iteration, chains[0].finished = 400, True
        display.update()
    return screen.getvalue()


def test_log_has_a_line_at_start_now_and_then_and_at_the_end(monkeypatch, patient):
    text = shown(monkeypatch, False, [chain(), chain(warming_up=True, iteration=50)])
    first, *between, last = text.splitlines()
    assert first.startswith(
        "sampling 2 chains: 50/600 draws (8 %), 1 of 2 chains in warm-up (150/200)"
    )
    assert len(between) == 2 and all(line.startswith("sampling: ") for line in between)
    assert last.startswith("sampled: 300/600 draws") and "6 divergences" in last
    assert "\x1b" not in text


def test_terminal_shows_a_row_per_chain(monkeypatch, patient):
    text = shown(monkeypatch, True, [chain(), chain(divergences=77)])
    assert "evaluations/s" in text and "300/300" in text and "50/300" in text and "77" in text


def test_notebook_replaces_its_table(monkeypatch, patient):
    updates = []
    handle = SimpleNamespace(update=updates.append)
    module = SimpleNamespace(HTML=lambda text: text, display=lambda text, display_id: handle)
    shell = type("ZMQInteractiveShell", (), {})()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    with Progress([chain(), chain()]) as display:
        display.update()
    assert updates[-1].count("<tr>") == 3 and "<td>50/300</td>" in updates[-1]


def sampled():
    """Two chains with 100 independent draws each, and traces that rise from far below."""
    rng = np.random.default_rng(0)
    chains = [chain(), chain()]
    for one in chains:
        one.draws = DrawRecord(300, (2,), HMCInfo)
        one.draws.positions[:100] = rng.normal(size=(100, 2))
        one.draws._seen = 100
        for lp in (-1e6, -500.0, -4.0, -3.0, -2.0, -3.0):
            one.trace.add(lp)
    return chains


def test_displays_show_rhat_and_effective_size_of_the_draws_so_far(monkeypatch, patient):
    rhat, ess = progress.worst(sampled())
    assert 0.9 < rhat < 1.1 and 50 < ess < 800
    told = f"R-hat at most {rhat:.3f}, effective size at least {ess:.0f}"
    assert shown(monkeypatch, False, sampled()).count(told) == 4
    assert told in shown(monkeypatch, True, sampled())
    assert told in progress.table_of(sampled())
    monkeypatch.setattr(progress, "SHOWN_SIZE", 1)
    assert "R-hat" not in progress.log_line(sampled())
    assert "R-hat" not in progress.log_line([chain()])


def test_coordinates_that_mean_something_together_only_are_not_judged():
    chains = sampled()
    for i, one in enumerate(chains):
        one.draws.positions[:100, 1] += 10.0 * i
    assert progress.worst(chains)[0] > 5.0
    chains[0].target.slots["trees"] = SimpleNamespace(is_structure=True, start=1, stop=2)
    assert progress.worst(chains)[0] < 1.1


def test_displays_show_the_trace_of_the_log_density(monkeypatch, patient):
    chains = sampled()
    assert progress.sparkline(chains[0]) == "▁▁▅▆█▆"
    monkeypatch.setenv("COLUMNS", "120")
    assert "▁▁▅▆█▆" in shown(monkeypatch, True, sampled())
    monkeypatch.setenv("COLUMNS", "80")
    assert "▁▁▅▆█▆" not in shown(monkeypatch, True, sampled())
    assert progress.table_of(chains).count("<polyline") == 2
    assert progress.sparkline(chain()) == ""
    trace = RunningTrace()
    for i in range(1000):
        trace.add(float(i))
    trace.add(float("nan"))
    assert len(trace.values) == 62 and trace.values[:2] == [7.5, 23.5]


@pytest.mark.parametrize("how", ["short", "argument", "setting"])
def test_nothing_is_shown_of_short_or_silent_runs(how, monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE", 1e9 if how == "short" else 0.0)
    screen = Screen(True)
    monkeypatch.setattr(sys, "stderr", screen)
    with configure(progress=how != "setting"):
        with Progress([chain()], shown=how != "argument") as display:
            display.update()
    assert screen.getvalue() == ""


def test_long_activity_is_named_and_a_short_one_is_not(monkeypatch):
    screen = Screen(False)
    monkeypatch.setattr(sys, "stderr", screen)
    with activity("compiling the model"):
        pass
    assert screen.getvalue() == ""
    monkeypatch.setattr(display, "ACTIVITY_AFTER", 0.0)
    with activity("compiling the model"):
        while not screen.getvalue():
            time.sleep(0.001)
    begun, ended = screen.getvalue().splitlines()
    assert begun == "compiling the model ..." and ended.startswith("compiling the model: ")
    with activity("compiling the model", shown=False):
        time.sleep(0.01)
    assert len(screen.getvalue().splitlines()) == 2


def test_short_run_imports_neither_rich_nor_arviz():
    script = (
        "import sys, warnings; warnings.simplefilter('ignore')\n"
        "from probtorch.infer import MCMC, NUTS, Target\n"
        "target = Target.from_density(lambda q: -0.5 * (q * q).sum(), 2)\n"
        "MCMC(NUTS(target), 50, warmup_steps=50, num_chains=2, seed=1).run()\n"
        "print(sorted({'rich', 'arviz', 'xarray', 'IPython'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, text=True, capture_output=True, check=True
    )
    # On a busy machine compiling and sampling take long enough to be told of, which is no matter.
    assert done.stdout.strip() == "[]", done.stderr
