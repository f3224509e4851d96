"""The picture of a calibration: per quantity, the ECDF of its ranks minus that of uniform ones.

As in diagnostics/plots.py, matplotlib's object interface: no display, no global state.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from probtorch.diagnostics.layout import chosen
from probtorch.infer.calibration.uniformity import cumulative_counts, ecdf_band

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from probtorch.infer.calibration.calibrated import Calibration

__all__ = ["ecdf_difference_figure"]

MAX_PANELS = 20
COLUMNS = 4


def ecdf_difference_figure(
    calibration: Calibration, path: str | os.PathLike[str] | None, names: Iterable[str] | None
) -> Figure | str:
    """Draw a `Calibration`; see its `plot`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    wanted = chosen(names, calibration.ranks, "Calibration.plot")
    wanted = sorted(wanted, key=calibration.pvalues.__getitem__)[:MAX_PANELS]
    columns = min(COLUMNS, len(wanted))
    rows = math.ceil(len(wanted) / columns)
    figure = Figure(figsize=(1.0 + 2.8 * columns, 0.8 + 2.2 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)

    draws, count = calibration.num_draws, calibration.replications
    level = calibration.level / len(calibration.ranks)
    lower, upper = ecdf_band(count, draws, level)
    share = np.arange(1, draws + 1) / (draws + 1)
    at = np.concatenate([[0.0], share, [1.0]])
    for axis, name in zip(axes.flat, wanted):
        below = cumulative_counts(calibration.ranks[name], draws) / count
        bad = not calibration.verdicts[name]
        axis.fill_between(
            at, _closed(lower - share), _closed(upper - share), color="C0", alpha=0.2, linewidth=0
        )
        axis.plot(at, _closed(below - share), color="C3" if bad else "C0", linewidth=1.2)
        axis.axhline(0.0, color="black", linewidth=0.5)
        axis.set_title(f"{name}, p = {calibration.pvalues[name]:.2g}", loc="left", fontsize=9)
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes.flat[len(wanted) :]:
        axis.set_visible(False)
    figure.supxlabel("rank / (draws + 1)", fontsize=9)
    figure.supylabel("ECDF - uniform", fontsize=9)
    note = f"{calibration.name}: {count} replications, {draws} draws"
    if len(wanted) < len(calibration.ranks):
        note += f"; {len(wanted)} of {len(calibration.ranks)} quantities"
    figure.suptitle(note, fontsize=10)
    if path is None:
        return figure
    figure.savefig(os.fspath(path), dpi=120)
    return os.fspath(path)


def _closed(values: np.ndarray) -> np.ndarray:
    """With 0 at both ends, where every ECDF is that of a uniform variable."""
    return np.concatenate([[0.0], values, [0.0]])
