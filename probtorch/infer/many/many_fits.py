"""`ManyFits`: what `fit_many` returns, draws with a dim for the data set and a verdict on each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from probtorch.core.signatures import explain_calls
from probtorch.diagnostics.draws import Draws
from probtorch.errors import ArgumentError

__all__ = ["DATA_SET", "FitGroup", "ManyFits"]

# The dim that counts data sets.
DATA_SET = "data_set"
# Beyond these a posterior is doubtful: those of `diagnose`, with R-hat less strict, since the worst
# of several parameters of each of thousands of posteriors is looked at.
RHAT, ESS = 1.05, 50.0
# Of importance ratios: beyond it their mean is not to be relied on.
PARETO_K = 0.7
# Failures that a repr names.
SHOWN = 3


@dataclass(frozen=True)
class FitGroup:
    """Data sets of one shape.

    Attributes
    ----------
    labels : list
        Of those that could be fitted.
    posterior : dict of str to ndarray, each (data set, chain, draw, *shape)
    diagnostics : dict of str to ndarray, each (data set,)
    dims : dict of str to tuple
    coords : dict of str to list
        Of the model's plates.
    """

    labels: list[object]
    posterior: Mapping[str, np.ndarray]
    diagnostics: Mapping[str, np.ndarray]
    dims: Mapping[str, tuple[str | None, ...]]
    coords: Mapping[str, list[object]]


class ManyFits:
    """Posteriors of one model, each of a data set of its own.

    Attributes
    ----------
    groups : list of FitGroup
        One for each shape of data.
    failed : dict
        The error of each data set that could not be fitted, by its label.
    labels : list
        Of those that could.
    seconds : float
        What it took.
    interrupted : bool
        Whether Ctrl-C ended it.
    """

    def __init__(
        self,
        name: str,
        groups: list[FitGroup],
        failed: dict[object, Exception],
        *,
        seconds: float,
        interrupted: bool,
    ) -> None:
        self.name, self.groups, self.failed = name, groups, failed
        self.seconds, self.interrupted = seconds, interrupted
        self._places = {
            label: (group, i) for group in groups for i, label in enumerate(group.labels)
        }
        self.labels = list(self._places)

    @property
    def draws(self) -> Draws:
        """All draws as one `Draws`, each variable with a first dim "data_set".

        Raises
        ------
        ArgumentError
            If the data sets have several shapes.
        """
        if len(self.groups) != 1:
            raise ArgumentError(
                "ManyFits.draws",
                expected="data sets of one shape",
                got=f"{len(self.groups)} shapes",
                fix="take fits[label], or one of fits.groups; or pad the data: fit_many(mask=...)",
            )
        group = self.groups[0]
        known = {name: group.dims.get(name, ()) for name in group.posterior}
        return Draws(
            {name: np.moveaxis(x, 0, 2) for name, x in group.posterior.items()},
            dims={name: (DATA_SET, *dims) for name, dims in known.items()},
            coords={**group.coords, DATA_SET: group.labels},
            attrs={"model_name": self.name, "sampling_time": self.seconds},
        )

    @property
    def diagnostics(self) -> dict[str, np.ndarray]:
        """Of each data set, in the order of `labels`, worst of all parameters.

        ``r_hat`` and ``ess`` (bulk, all chains), ``divergences`` (their number) and ``accept``, the
        mean acceptance; of an approximation ``pareto_k``, the shape of its importance ratios.
        """
        names = self.groups[0].diagnostics if self.groups else ()
        return {n: np.concatenate([g.diagnostics[n] for g in self.groups]) for n in names}

    @property
    def doubtful(self) -> list[object]:
        """Labels of posteriors that should be looked at.

        R-hat is above 1.05, fewer than 50 draws are effective, or some diverged; or a chain never
        moved, so that nothing can be told. Of an approximation `pareto_k` is above 0.7.
        """
        found = self.diagnostics
        if not found:
            return []
        # Of unconstrained coordinates, none of which is constant by construction: nan is doubtful.
        if "pareto_k" in found:
            bad = ~(found["pareto_k"] <= PARETO_K)
            return [label for label, doubt in zip(self.labels, bad) if doubt]
        bad = ~(found["r_hat"] <= RHAT) | ~(found["ess"] >= ESS) | (found["divergences"] > 0)
        return [label for label, doubt in zip(self.labels, bad) if doubt]

    def __getitem__(self, label: object) -> Draws:
        """Return the draws of one data set."""
        if label in self.failed:
            raise self.failed[label]
        if label not in self._places:
            raise ArgumentError(
                f"ManyFits[{label!r}]",
                expected="the label of a data set: its key, or its number",
                got=f"none of {len(self)}",
                fix="fits.labels has them",
            )
        group, i = self._places[label]
        return Draws(
            {name: x[i] for name, x in group.posterior.items()},
            dims=group.dims,
            coords=group.coords,
            attrs={"model_name": self.name, DATA_SET: str(label)},
        )

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self) -> Iterator[object]:
        return iter(self.labels)

    def __contains__(self, label: object) -> bool:
        return label in self._places

    def means(self) -> dict[str, np.ndarray]:
        """Return posterior means by name, each (data set, *shape), in the order of `labels`.

        Raises
        ------
        ArgumentError
            If the data sets have several shapes.
        """
        return {name: x.mean(axis=(0, 1)) for name, x in self.draws.posterior.items()}

    def __repr__(self) -> str:
        total = len(self) + len(self.failed)
        shapes = "" if len(self.groups) == 1 else f" of {len(self.groups)} shapes"
        lines = [f"ManyFits of {self.name}: {len(self)} of {total} data sets{shapes}"]
        if self.groups:
            first = next(iter(self.groups[0].posterior.values()))
            lines[0] += f", {first.shape[1]} chains x {first.shape[2]} draws each"
            rate = len(self) / self.seconds if self.seconds else math.nan
            lines.append(f"{self.seconds:.1f} s, {rate:.3g} data sets a second")
        if doubtful := self.doubtful:
            some = ", ".join(map(repr, doubtful[:SHOWN]))
            more = ", ..." if len(doubtful) > SHOWN else ""
            lines.append(f"{len(doubtful)} are doubtful (.doubtful): {some}{more}")
        for label, error in list(self.failed.items())[:SHOWN]:
            lines.append(f"failed: {label!r}: {type(error).__name__}: {error}".splitlines()[0])
        if len(self.failed) > SHOWN:
            lines.append(f"and {len(self.failed) - SHOWN} more (.failed)")
        if self.interrupted:
            lines.append("interrupted: the rest is missing")
        return "\n".join(lines)


explain_calls(globals())
