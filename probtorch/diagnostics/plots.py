"""One figure to look at before believing a table: traces, densities and divergences.

Drawn with matplotlib's object interface, so it needs no display and touches no global state.
"""

from __future__ import annotations

import os
from pathlib import PosixPath
from typing import TYPE_CHECKING

import numpy as np

from probtorch.core.signatures import explain_calls
from probtorch.diagnostics.drawn import HasDraws, drawn
from probtorch.diagnostics.draws import Draws
from probtorch.diagnostics.layout import chosen, entry_labels, flat_entries, judged, real_parts
from probtorch.errors import ArgumentError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


__all__ = ["trace_plot"]

# More rows than this nobody looks at, and the picture outgrows a screen.
MAX_ROWS = 20

GRID_POINTS = 200

# A density estimate from this many draws looks the same as from all.
DENSITY_DRAWS = 5000


def trace_plot(draws: Draws | HasDraws, path: PosixPath, names: str | None = None) -> str:
    """Draw one row per scalar parameter: the density of each chain, and its trace.

    Parameters
    ----------
    draws : Draws, or what has some
        What an inference engine returned.
    path : str or path-like
        File to write; the ending chooses the format (png, pdf, svg).
    names : str or sequence of str, optional
        Which variables. At most 20 scalars are drawn; the title says when there are more.

    Returns
    -------
    str
        The path.

    Raises
    ------
    ArgumentError
        If a name is not in the posterior, or there is nothing to draw.

    Notes
    -----
    Divergent draws are marked below the traces. Integer variables show their frequencies.
    """
    figure = _figure(drawn(draws, "trace_plot"), names)
    figure.savefig(os.fspath(path), dpi=120)
    return os.fspath(path)


def _figure(draws: Draws, names: str | None) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    scalars, total = _scalars(draws, names)
    if not scalars or draws.num_draws == 0:
        raise ArgumentError(
            "trace_plot", expected="at least one scalar and one draw",
            got=f"{total} scalars, {draws.num_draws} draws",
            fix="name a variable that has entries, and run the sampler",
        )  # fmt: skip
    figure = Figure(figsize=(10, 0.6 + 1.5 * len(scalars)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(scalars), 2, squeeze=False, width_ratios=(1, 2))
    diverging = np.asarray(draws.sample_stats.get("diverging", False), bool)
    for (density, trace), (label, values) in zip(axes, scalars):
        for chain, series in enumerate(values):
            color = f"C{chain % 10}"
            x, y = _density(series)
            if x.size:
                drawstyle = "steps-mid" if x.dtype.kind == "i" else "default"
                density.plot(x, y, color=color, linewidth=1.2, drawstyle=drawstyle)
            trace.plot(series, color=color, linewidth=0.5, alpha=0.8)
        if diverging.any():
            divergent = np.flatnonzero(diverging.any(axis=0))
            trace.plot(
                divergent, np.zeros(divergent.size), "|", color="black", markersize=6,
                transform=trace.get_xaxis_transform(), clip_on=False,
            )  # fmt: skip
        density.set_title(label, loc="left", fontsize=10)
        density.set_yticks([])
        density.set_ylim(bottom=0)
        trace.set_xlim(0, max(draws.num_draws - 1, 1))
        for axis in (density, trace):
            axis.tick_params(labelsize=8)
            axis.spines[["top", "right"]].set_visible(False)
    axes[-1, 1].set_xlabel("draw", fontsize=9)
    note = f"{draws.num_chains} chains x {draws.num_draws} draws"
    if len(scalars) < total:
        note += f"; the first {len(scalars)} of {total} parameters"
    if diverging.any():
        note += f"; {int(diverging.sum())} divergences (black ticks)"
    figure.suptitle(note, fontsize=10)
    return figure


def _scalars(draws: Draws, names: str | None) -> tuple[list[tuple[str, np.ndarray]], int]:
    """The first rows to draw as (label, values (chain, draw)), and how many there are in all."""
    scalars, total = [], 0
    for name in chosen(judged(names, draws), draws.posterior, "trace_plot"):
        for part, values in real_parts({name: draws.posterior[name]}):
            shape = values.shape[2:]
            flat = flat_entries(values)
            total += flat.shape[2]
            dims = {part: draws.dims.get(name, ())}
            for i, label in enumerate(entry_labels(part, shape, dims, draws.coords)):
                if len(scalars) == MAX_ROWS:
                    break
                scalars.append((label, flat[..., i]))
    return scalars, total


def _density(series: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Points of a density curve; none when the draws have no spread to estimate one from."""
    if series.dtype.kind in "biu":
        values = series.astype(np.int64)
        low, high = int(np.min(values)) - 1, int(np.max(values)) + 1
        if high - low < GRID_POINTS:
            counts = np.bincount(values - low, minlength=high - low + 1)
            return np.arange(low, high + 1), counts / values.size
    series = series[np.isfinite(series)].astype(float)
    series = series[:: max(1, series.size // DENSITY_DRAWS)]
    if series.size < 2 or np.ptp(series) == 0:
        return np.empty(0), np.empty(0)
    # Silverman's rule: the smaller of two measures of spread, so that long tails do not blur.
    quartiles = np.subtract(*np.quantile(series, [0.75, 0.25])) / 1.349
    sd = series.std(ddof=1)
    width = 0.9 * (min(sd, quartiles) if quartiles > 0 else sd) * series.size**-0.2
    # The curve covers what the draws cover, less a thousandth at both ends: one far outlier must
    # not flatten the picture.
    low, high = np.quantile(series, [0.001, 0.999])
    grid = np.linspace(low - 2 * width, high + 2 * width, GRID_POINTS)
    kernel = np.exp(-0.5 * ((grid[:, None] - series) / width) ** 2)
    return grid, kernel.mean(axis=1) / (width * np.sqrt(2.0 * np.pi))


explain_calls(globals())
