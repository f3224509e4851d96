"""What a run shows while it lasts: a row per chain in a terminal or notebook, lines in a log file.

Nothing is shown, and rich is not imported, before a run has lasted a third of a second; all goes to
stderr. Displays read the attributes of `ChainRun`s; they never touch the chains.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from probtorch.infer.display import LOG_EVERY, PATIENCE, REFRESH, is_shown
from probtorch.infer.mcmc.running import convergence

if TYPE_CHECKING:
    from rich.table import Table

    from probtorch.infer.mcmc.chain import ChainRun

__all__ = ["Progress"]

COLUMNS = (
    "chain",
    "progress",
    "draws",
    "phase",
    "step size",
    "divergences",
    "evaluations/s",
    "time",
    "log density",
)
# Of rows with more numbers R-hat and effective sizes are not shown while a run lasts.
SHOWN_SIZE = 10_000
# A trace in a terminal: how many characters, and which; in a notebook its size in pixels.
WIDTH, BARS = 16, "▁▂▃▄▅▆▇█"
# Columns of a terminal that has room for traces, too.
ROOM = 110
WIDE, HIGH = 120, 18


class Progress:
    """The display of one run; a context manager.

    Parameters
    ----------
    chains : sequence of ChainRun
    shown : bool
        Off, nothing is ever shown. ``PROBTORCH_PROGRESS=0`` switches all displays off.
    """

    def __init__(self, chains: Sequence[ChainRun], *, shown: bool = True) -> None:
        self.chains = list(chains)
        self.shown = is_shown(shown)
        self._start = time.perf_counter()
        self._display: LogDisplay | TerminalDisplay | NotebookDisplay | None = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._display is not None:
            self._display.close()

    def update(self) -> None:
        """Show how far the chains are; called several times a second."""
        if not self.shown or time.perf_counter() - self._start < PATIENCE:
            return
        if self._display is None:
            self._display = _choose_display()(self.chains)
        self._display.update()


def _choose_display() -> type[LogDisplay | TerminalDisplay | NotebookDisplay]:
    if _in_notebook():
        return NotebookDisplay
    return TerminalDisplay if sys.stderr.isatty() else LogDisplay


def _in_notebook() -> bool:
    # IPython is never imported for this: where it is not loaded, there is no notebook.
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and type(shell).__name__ == "ZMQInteractiveShell"


# --------------------------------------------------------------------------------------------- rows


def phase_of(chain: ChainRun) -> str:
    """Return what a chain is doing, in a word."""
    if chain.finished:
        whole = chain.iteration == chain.num_warmup + chain.num_samples
        return "failed" if chain.error is not None else "done" if whole else "stopped"
    if not chain.seconds:
        return "waiting"
    return "warm-up" if chain.warming_up else "sampling"


def warmed(chain: ChainRun) -> int:
    """Return how many transitions of its warm-up a chain has made."""
    return min(chain.iteration, chain.num_warmup)


def drawn(chain: ChainRun) -> tuple[int, int]:
    """Return how many draws a chain has, after thinning, and how many it is to have."""
    thinning = chain.draws.thinning
    return max(chain.iteration - chain.num_warmup, 0) // thinning, chain.num_samples // thinning


def row(number: int, chain: ChainRun) -> tuple[str, ...]:
    """Return the cells of a chain, without the bar."""
    rate = chain.evaluations / chain.seconds if chain.seconds else 0.0
    phase = phase_of(chain)
    if phase == "warm-up":
        phase += f" {warmed(chain)}/{chain.num_warmup}"
    return (
        str(number),
        "{}/{}".format(*drawn(chain)),
        phase,
        "" if math.isnan(chain.step_size) else f"{chain.step_size:.3g}",
        str(chain.divergences),
        _rounded(rate),
        f"{chain.seconds:.1f} s",
    )


def _rounded(rate: float) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if rate >= size:
            return f"{rate / size:.3g}{unit}"
    return f"{rate:.3g}"


def share(chain: ChainRun) -> float:
    """Return how much of a chain is done, from 0 to 1."""
    return chain.iteration / max(chain.num_warmup + chain.num_samples, 1)


def worst(chains: Sequence[ChainRun]) -> tuple[float, float]:
    """Return the largest R-hat and the smallest effective size so far; nan where none is known."""
    well = [chain.draws for chain in chains if chain.error is None]
    if not well or not all(x.readable for x in well):
        return math.nan, math.nan
    rhat, ess = convergence([x.moments() for x in well], well[0].members)
    known = ~np.isnan(rhat)
    for slot in chains[0].target.slots.values():
        if slot.is_structure:
            known[slot.start : slot.stop] = False
    if not known.any():
        return math.nan, math.nan
    return float(rhat[known].max()), float(ess[known].min())


def quality(chains: Sequence[ChainRun]) -> str:
    """Return the worst R-hat and effective size so far in words, nothing where none is known."""
    if any(chain.draws.size > SHOWN_SIZE for chain in chains):
        return ""
    rhat, ess = worst(chains)
    if math.isnan(rhat):
        return ""
    return f"R-hat at most {rhat:.3f}, effective size at least {ess:.0f}"


def levels(chain: ChainRun) -> list[float]:
    """Return the trace of a chain's log density, from 0 to 1.

    The way up from where a chain starts is long; what is far below the rest is 0.
    """
    values = np.array(chain.trace.values)
    if not len(values):
        return []
    top, middle = values.max(), np.median(values)
    floor = max(values.min(), middle - 2.0 * (top - middle))
    if not top > floor:
        return [0.5] * len(values)
    found: list[float] = np.clip((values - floor) / (top - floor), 0.0, 1.0).tolist()
    return found


def sparkline(chain: ChainRun) -> str:
    """Return the end of a chain's trace in a few characters."""
    return "".join(BARS[round(x * (len(BARS) - 1))] for x in levels(chain)[-WIDTH:])


def drawing(chain: ChainRun) -> str:
    """Return a chain's trace as a line in SVG."""
    heights = levels(chain)
    step = WIDE / max(len(heights) - 1, 1)
    points = " ".join(
        f"{i * step:.1f},{HIGH - 1 - x * (HIGH - 2):.1f}" for i, x in enumerate(heights)
    )
    return (
        f'<svg width="{WIDE}" height="{HIGH}"><polyline points="{points}" fill="none" '
        'stroke="currentColor"/></svg>'
    )


def log_line(chains: Sequence[ChainRun]) -> str:
    """Return all chains in one line."""
    done, total = map(sum, zip(*map(drawn, chains)))
    divergences = sum(c.divergences for c in chains)
    seconds = max(c.seconds for c in chains)
    evaluations = sum(c.evaluations for c in chains)
    warming = sum(c.warming_up and not c.finished for c in chains)
    made, wanted = sum(map(warmed, chains)), sum(c.num_warmup for c in chains)
    phase = f", {warming} of {len(chains)} chains in warm-up ({made}/{wanted})" if warming else ""
    rate = _rounded(evaluations / seconds if seconds else 0.0)
    parts = (
        f"{done}/{total} draws ({100.0 * done / max(total, 1):.0f} %){phase}",
        f"{divergences} divergences",
        f"{rate} evaluations/s",
        f"{seconds:.1f} s",
    )
    return ", ".join((*parts, *filter(None, [quality(chains)])))


def table_of(chains: Sequence[ChainRun]) -> str:
    """Return all chains as a table in HTML; all its text is our own."""
    head = "".join(f"<th>{name}</th>" for name in COLUMNS)
    body = ""
    for i, chain in enumerate(chains):
        number, *cells = row(i, chain)
        bar = f'<progress max="1" value="{share(chain):.3f}"></progress>'
        cells = [number, bar, *cells, drawing(chain)]
        body += "<tr>" + "".join(f"<td>{c}</td>" for c in cells) + "</tr>"
    caption = f"<caption>{quality(chains)}</caption>"
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


# ----------------------------------------------------------------------------------------- displays


class LogDisplay:
    """Lines for a file or pipe: at the start, every ten seconds, at the end."""

    def __init__(self, chains: Sequence[ChainRun]) -> None:
        self.chains = chains
        print(f"sampling {len(chains)} chains: {log_line(chains)}", file=sys.stderr, flush=True)
        self._last = time.perf_counter()

    def update(self) -> None:
        """Write a line if ten seconds have passed since the last one."""
        now = time.perf_counter()
        if now - self._last >= LOG_EVERY:
            self._last = now
            print(f"sampling: {log_line(self.chains)}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Write the last line."""
        print(f"sampled: {log_line(self.chains)}", file=sys.stderr, flush=True)


class TerminalDisplay:
    """A live table."""

    def __init__(self, chains: Sequence[ChainRun]) -> None:
        from rich.console import Console
        from rich.live import Live

        self.chains = chains
        console = Console(stderr=True)
        self._traces = console.encoding.startswith("utf") and console.width >= ROOM
        self._live = Live(
            console=console,
            get_renderable=self._table,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start(refresh=True)
        self._last = time.perf_counter()

    def _table(self) -> Table:
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        for name in COLUMNS if self._traces else COLUMNS[:-1]:
            left = name in ("progress", "phase", "log density")
            table.add_column(name, justify="left" if left else "right", no_wrap=True)
        for i, chain in enumerate(self.chains):
            number, *cells = row(i, chain)
            bar = ProgressBar(total=1.0, completed=share(chain), width=12)
            table.add_row(number, bar, *cells, *([sparkline(chain)] if self._traces else []))
        table.caption = quality(self.chains)
        return table

    def update(self) -> None:
        """Draw the table again if it is time."""
        now = time.perf_counter()
        if now - self._last >= REFRESH:
            self._last = now
            self._live.refresh()

    def close(self) -> None:
        """Leave the last state on the screen."""
        self._live.refresh()
        self._live.stop()


class NotebookDisplay:
    """A small HTML table that is replaced in place."""

    def __init__(self, chains: Sequence[ChainRun]) -> None:
        from IPython.display import HTML, display

        self.chains, self._html = chains, HTML
        self._handle = display(HTML(table_of(chains)), display_id=True)
        self._last = time.perf_counter()

    def update(self) -> None:
        """Replace the table if it is time."""
        now = time.perf_counter()
        if now - self._last >= REFRESH:
            self._last = now
            self._handle.update(self._html(table_of(self.chains)))

    def close(self) -> None:
        """Show the last state."""
        self._handle.update(self._html(table_of(self.chains)))
