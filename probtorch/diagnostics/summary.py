"""The table of a posterior: what the parameters are, and how far to believe the numbers.

`summary` computes it, `Summary` holds and prints it. Neither needs ArviZ, pandas or rich: the table
appears after every run, and must not cost two seconds of imports.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from probtorch.core.signatures import closest, explain_calls
from probtorch.diagnostics.convergence import STATISTICS, statistics
from probtorch.diagnostics.drawn import HasDraws, drawn
from probtorch.diagnostics.layout import (
    chosen,
    entry_labels,
    judged,
    of_holes,
    partly_observed,
    real_parts,
)
from probtorch.errors import ArgumentError

if TYPE_CHECKING:
    import pandas

    from probtorch.diagnostics.draws import Draws

__all__ = ["Summary", "summary"]

# A printed table stops here; the numbers of all rows stay in the object.
MAX_PRINTED_ROWS = 200

# Where digits stop meaning anything: estimates show three significant digits of their own sd.
SIGNIFICANT_DIGITS = 3


def summary(
    draws: Draws | HasDraws,
    *,
    names: str | Sequence[str] | None = None,
    hdi_prob: float = 0.9,
    round_to: int | None = None,
) -> Summary:
    """Summarise each scalar parameter of the posterior in one row.

    Parameters
    ----------
    draws : Draws, or what has some
        What an inference engine returned.
    names : str or sequence of str, optional
        Which variables, in which order. All by default.
    hdi_prob : float, in (0, 1)
        Share of the draws in the highest density interval.
    round_to : int, optional
        Decimals to round all numbers to. By default numbers keep all digits and printing chooses.

    Returns
    -------
    Summary
        Columns ``mean sd hdi_5% hdi_95% mcse_mean mcse_sd ess_bulk ess_tail r_hat``, where the two
        interval columns are named for `hdi_prob`; rows like ``tau``, ``theta[0]`` or
        ``theta[Choate]``. Means, deviations and intervals are in the units of the variable.

    Raises
    ------
    ArgumentError
        If a name is not in the posterior.
    DomainError
        If `hdi_prob` is not inside (0, 1).

    Notes
    -----
    A complex variable gives rows for ``z_real`` and ``z_imag``; an empty one gives none. Of data of
    which some are missing, ``sample("x", ..., obs_mask=...)``, only those have rows.
    """
    draws = drawn(draws, "summary")
    names = chosen(judged(names, draws), draws.posterior, "summary")
    partly = partly_observed(draws.posterior)
    blocks, labels, values = {}, [], [np.empty((0, len(STATISTICS)))]
    for name in names:
        for part, array in real_parts({name: draws.posterior[name]}):
            shape = array.shape[2:]
            dims = {part: draws.dims.get(name, ())}
            rows = entry_labels(part, shape, dims, draws.coords)
            if name in partly:
                rows, array = of_holes(rows, array)
                shape = array.shape[2:]
            columns = statistics(array, hdi_prob)
            blocks[part] = (len(labels), len(labels) + len(rows), shape)
            labels.extend(rows)
            values.append(np.stack([np.ravel(columns[key]) for key in STATISTICS], axis=-1))
    table = np.concatenate(values)
    diverging = draws.sample_stats.get("diverging")
    return Summary(
        rows=tuple(labels),
        columns=_column_names(hdi_prob),
        values=table if round_to is None else np.round(table, round_to),
        blocks=blocks,
        num_chains=draws.num_chains,
        num_draws=draws.num_draws,
        divergences=None if diverging is None else int(np.count_nonzero(diverging)),
        round_to=round_to,
    )


class _Column(str):
    """The name of a column, which is not taken for a variable of the same name."""

    __slots__ = ()


@dataclass(frozen=True, eq=False, repr=False)
class Summary(dict):
    """A table of statistics, one row per scalar parameter.

    ``table["tau"]["mean"]`` is a number, ``table["theta[0]"]`` a dict from columns to numbers, and
    ``table["theta"]`` a dict from columns to arrays of the shape of the variable. ``str(table)`` is
    an aligned table; notebooks show it as HTML. ``len`` and iteration are over the rows; ``keys``
    and ``items`` over the columns, each a dict from rows to numbers, as a data frame has
    them: ``pandas.DataFrame(table)`` is the table.

    Parameters
    ----------
    rows : tuple of str
        Row labels.
    columns : tuple of str
        Column names.
    values : ndarray, shape (row, column)
        The numbers, float64.
    blocks : dict
        For each variable the first row, the row after its last, and its event shape.
    num_chains, num_draws : int
        Chains, and draws per chain, that the numbers come from.
    divergences : int or None
        Number of divergent draws; None when the engine does not report them.
    round_to : int or None
        Decimals that the values were rounded to.
    notes : tuple of str
        Lines to print below the table, such as an engine's own verdict.
    """

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    # As of a data frame, and not dict's method: field() hides that.
    values: np.ndarray = field()  # type: ignore[assignment]
    blocks: dict[str, tuple[int, int, tuple[int, ...]]] = field()
    num_chains: int
    num_draws: int
    divergences: int | None = None
    round_to: int | None = None
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    def __bool__(self) -> bool:
        return bool(self.rows)

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows)

    def __contains__(self, key: object) -> bool:
        return self._found(key) is not None

    def __getitem__(self, key: str) -> Any:
        if type(key) is _Column:
            return dict(zip(self.rows, self.values[:, self.columns.index(key)].tolist()))
        if key in self.blocks:
            start, stop, shape = self.blocks[key]
            if shape == ():
                return self._row(start)
            part = self.values[start:stop]
            return {column: part[:, i].reshape(shape) for i, column in enumerate(self.columns)}
        found = self._found(key)
        if found is None:
            raise self._unknown(key)
        return self._row(found)

    def _found(self, key: object) -> int | None:
        """The row of a label, or of a variable the first; None if there is none."""
        if key in self.blocks:
            return self.blocks[key][0]
        if key in self.rows:
            return self.rows.index(key)
        # Spaces behind the commas of an index may be left out, as NumPy's printing leaves them in.
        wanted = str(key).replace(" ", "")
        return next((i for i, row in enumerate(self.rows) if row.replace(" ", "") == wanted), None)

    def _unknown(self, key: str) -> ArgumentError:
        known, name = list(self.blocks), str(key).partition("[")[0]
        fix = f"ask for {closest(str(key), [*known, *self.rows]) or known[0]!r}" if known else None
        if name in self.blocks:
            start, stop, _ = self.blocks[name]
            rows = self.rows[start:stop]
            fix = f"ask for {name!r}" + (f", or {rows[0]!r} to {rows[-1]!r}" if rows else "")
        return ArgumentError(
            "Summary",
            expected=f"a variable among {', '.join(known)}, or one of its rows",
            got=repr(key),
            fix=fix or "summarise some variables",
        )

    # As a dict it has the columns, which is what pandas asks for. The dict it inherits from is
    # empty, so all that reads it is here.

    def keys(self) -> Any:
        """Return the names of the columns."""
        return [_Column(name) for name in self.columns]

    def items(self) -> Any:
        """Return pairs of the name of a column and the column."""
        return [(name, self[name]) for name in self.keys()]

    def get(self, key: str, default: object = None) -> Any:
        """Return ``table[key]``, or `default` where there is no such row or variable."""
        return self[key] if key in self else default

    __eq__ = object.__eq__
    __ne__ = object.__ne__
    __hash__ = object.__hash__  # type: ignore[assignment]

    def __reduce__(self) -> tuple[object, ...]:
        return Summary, tuple(getattr(self, field.name) for field in fields(self))

    def copy(self) -> Summary:
        """Return the table itself: it never changes."""
        return self

    def _row(self, index: int) -> dict[str, float]:
        return dict(zip(self.columns, self.values[index].tolist()))

    def to_dict(self) -> dict[str, dict[str, float]]:
        """Return a dict from row labels to dicts from columns to floats."""
        return {label: self._row(index) for index, label in enumerate(self.rows)}

    def to_pandas(self) -> pandas.DataFrame:
        """Return a pandas DataFrame with the row labels as index. Imports pandas."""
        import pandas

        return pandas.DataFrame(self.values, index=list(self.rows), columns=list(self.columns))

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        cells = self._cells()
        width = max([len(label) for label in self.rows[: len(cells)]], default=0)
        widths = [
            max([len(name)] + [len(row[i]) for row in cells]) for i, name in enumerate(self.columns)
        ]
        lines = [" " * width + "".join(f"  {n:>{w}}" for n, w in zip(self.columns, widths))]
        for label, row in zip(self.rows, cells):
            lines.append(f"{label:<{width}}" + "".join(f"  {c:>{w}}" for c, w in zip(row, widths)))
        return "\n".join([*lines, "", *self._notes()])

    def _repr_html_(self) -> str:
        def cell(tag: str, text: str) -> str:
            return f'<{tag} style="text-align: right">{html.escape(text)}</{tag}>'

        head = "<tr><th></th>" + "".join(cell("th", name) for name in self.columns) + "</tr>"
        body = "".join(
            f'<tr><th style="text-align: left">{html.escape(label)}</th>'
            + "".join(cell("td", text) for text in row)
            + "</tr>"
            for label, row in zip(self.rows, self._cells())
        )
        notes = "<br>".join(html.escape(note) for note in self._notes())
        table = f"<table><thead>{head}</thead><tbody>{body}</tbody></table>"
        return f"<div>{table}<p>{notes}</p></div>"

    def _cells(self) -> list[list[str]]:
        """The numbers of the printed rows as text."""
        table = []
        for row in self.values[:MAX_PRINTED_ROWS]:
            if self.round_to is not None:
                texts = [f"{value:.{max(self.round_to, 0)}f}" for value in row[:-3]]
            else:
                decimals = _decimals(row[1])
                # An error has two digits more than the estimate it belongs to, or it would read 0.
                texts = [_number(value, decimals) for value in row[:4]]
                texts += [_number(value, decimals + 1) for value in row[4:6]]
            texts += [f"{value:.0f}" for value in row[6:8]] + [f"{row[8]:.3f}"]
            table.append(texts)
        return table

    def _notes(self) -> list[str]:
        notes = []
        hidden = len(self.rows) - MAX_PRINTED_ROWS
        if hidden > 0:
            notes.append(f"... and {hidden} more rows; pass names= to choose.")
        chains = "1 chain" if self.num_chains == 1 else f"{self.num_chains} chains"
        notes.append(f"{chains} x {self.num_draws} draws.")
        if self.divergences is not None:
            notes.append(f"Number of divergences: {self.divergences}")
        return [*notes, *self.notes]


def _column_names(hdi_prob: float) -> tuple[str, ...]:
    """Spell the columns; interval ends are named as if the interval were central."""
    low = f"hdi_{50.0 * (1.0 - hdi_prob):.6g}%"
    high = f"hdi_{50.0 * (1.0 + hdi_prob):.6g}%"
    return tuple({"hdi_low": low, "hdi_high": high}.get(name, name) for name in STATISTICS)


def _decimals(sd: float) -> int:
    """Decimals that show `SIGNIFICANT_DIGITS` digits of `sd`."""
    if not math.isfinite(sd) or sd <= 0:
        return SIGNIFICANT_DIGITS
    return SIGNIFICANT_DIGITS - 1 - math.floor(math.log10(sd))


def _number(value: float, decimals: int) -> str:
    """Fixed point where that is readable, scientific notation where it is not."""
    if not math.isfinite(value):
        return str(value)
    if decimals > 8 or abs(value) >= 1e8:
        return f"{value:.{SIGNIFICANT_DIGITS}e}"
    return f"{value:.{max(decimals, 0)}f}"


explain_calls(globals())
