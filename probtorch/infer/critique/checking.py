"""`check`: a model and its inference examined from all sides, in one report.

Before the data: what the prior predicts, and whether inference gives back what data were made with.
With the data: whether the sampler is right around them, what the posterior predicts, and how much
of it is the prior's. Each check is a function of this file that returns a `Section`; one that
cannot be made says why and leaves the others alone.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from probtorch.core.arguments import count_of
from probtorch.core.rng import Generator
from probtorch.core.signatures import explain_calls
from probtorch.diagnostics.checks import diagnose
from probtorch.diagnostics.criteria import loo
from probtorch.diagnostics.findings import InferenceWarning
from probtorch.errors import ArgumentError, ProbtorchError
from probtorch.infer.calibration.calibrated import Calibration
from probtorch.infer.calibration.posterior_sbc import posterior_sbc
from probtorch.infer.calibration.sbc import sbc
from probtorch.infer.calibration.simulated import data_sites, simulate
from probtorch.infer.control import ended_before, told_to_end
from probtorch.infer.critique.check_report import CheckReport, Section, as_svg
from probtorch.infer.critique.sensitivity import power_sensitivity
from probtorch.infer.mcmc.driver import MCMC
from probtorch.infer.mcmc.kernels.nuts import NUTS
from probtorch.infer.model_calls import check_model
from probtorch.infer.potential import ModelTarget
from probtorch.infer.results import SampledDraws

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["PARTS", "check"]

PARTS = ("prior", "calibration", "posterior", "predictions", "posterior calibration", "sensitivity")
# Statistics of data that predictions are compared with the data by.
STATISTICS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "mean": lambda x: x.mean(axis=1),
    "sd": lambda x: x.std(axis=1),
    "smallest": lambda x: x.min(axis=1),
    "largest": lambda x: x.max(axis=1),
}
# A statistic of the data that is further out than this share of the predictions is told of.
EXTREME = 0.01


@dataclass(frozen=True)
class _Given:
    """What all checks need."""

    model: Callable[..., object]
    args: tuple[object, ...]
    kwargs: dict[str, object]
    target: ModelTarget
    draws: SampledDraws | None
    num_samples: int
    replications: int
    level: float
    generator: Generator
    shown: bool


def check(
    model: Callable[..., object],
    *args: object,
    draws: SampledDraws | None = None,
    parts: Iterable[str] = PARTS,
    replications: int = 50,
    num_samples: int = 500,
    level: float = 0.01,
    seed: int = 0,
    progress_bar: bool = False,
    **kwargs: object,
) -> CheckReport:
    """Examine a model and its inference: prior, calibration, predictions, sensitivity.

    Parameters
    ----------
    model : callable
    *args, **kwargs
        What it is called with; with data where those are there.
    draws : SampledDraws, optional
        Of the posterior; by default NUTS makes them, 4 chains of `num_samples`.
    parts : sequence of str
        Which checks: ``prior`` (are the data among what it predicts), ``calibration`` (`sbc`),
        ``posterior`` (do chains agree), ``predictions`` (are the data among what the posterior
        predicts, and which observations move it much), ``posterior calibration``
        (`posterior_sbc`), ``sensitivity`` (`power_sensitivity`). Without data the first two that
        need none are made.
    replications : int
        Of each calibration: 50 find gross mistakes, 1000 a standard deviation 15 % off.
    num_samples : int
        Draws of the prior, and draws per chain.
    level : float
        Largest chance of each calibration to call a right sampler wrong.
    seed : int
        Source of all randomness.
    progress_bar : bool

    Returns
    -------
    CheckReport
        Prints as a line per check; ``report.save("check.html")`` writes it with tables and figures
        (which need matplotlib).

    Raises
    ------
    ArgumentError
        If a part is unknown, or a number of draws below 50.
    InferenceError
        If the model has no continuous latent sites; if a run in the background was ended before the
        first check was made. Later on those are kept that are.

    References
    ----------
    [gabry2019]_; [talts2018]_, [sailynoja2025]_, [vehtari2017]_, [kallioinen2024]_ for the parts.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import check
    >>> def coin(y):
    ...     p = probtorch.sample("p", dist.Beta(2.0, 2.0))
    ...     probtorch.sample("y", dist.Binomial(10, p), obs=y)
    >>> report = check(coin, 7.0, parts=["prior", "sensitivity"], num_samples=200)
    >>> report.good
    True
    >>> report["prior"].good
    True
    """
    check_model(model, "check")
    wanted = (parts,) if isinstance(parts, str) else tuple(parts)
    unknown = [part for part in wanted if part not in PARTS]
    if unknown:
        raise ArgumentError(
            "check(parts=...)", expected=f"names among {', '.join(PARTS)}", got=repr(unknown[0]),
            fix="leave it out for all",
        )  # fmt: skip
    count_of("check", "num_samples", num_samples, 50)
    target = ModelTarget(model, args, kwargs)
    positions = getattr(draws, "positions", None)
    if positions is not None and positions.shape[-1] != target.dim:
        # Guides have coordinates of all elements of partly observed sites.
        target = ModelTarget(model, args, kwargs, whole=True)
    generator = Generator(seed)
    if not target.observed_data:
        wanted = tuple(part for part in wanted if part in ("prior", "calibration"))
    if draws is None and set(wanted) - {"prior", "calibration"}:
        with _quietly():
            draws = MCMC(
                NUTS(target), num_samples=num_samples, warmup_steps=500, num_chains=4,
                seed=generator.spawn(1)[0], progress_bar=progress_bar,
            ).run()  # fmt: skip
    given = _Given(
        model, args, dict(kwargs), target, draws, num_samples, replications, level, generator,
        progress_bar,
    )  # fmt: skip
    sections: list[Section] = []
    for part in wanted:
        if told_to_end():
            break
        try:
            with _quietly():
                sections.append(_CHECKS[part](given))
        except ProbtorchError as error:
            if told_to_end():  # which may be why
                break
            said = str(error).strip()
            sections.append(Section(part, None, f"could not be made: {said.splitlines()[0]}", said))
    if wanted and not sections:
        raise ended_before("check", "the first of its parts")
    return CheckReport(target.name, tuple(sections))


# ------------------------------------------------------------------------------------------- checks


def _prior(given: _Given) -> Section:
    """Look whether the data are among what the prior predicts."""
    names = data_sites(given.model, given.args, given.kwargs, (), "check")
    (stream,) = given.generator.spawn(1)
    drawn = simulate(given.model, given.args, given.kwargs, given.num_samples, stream)
    predicted = {name: drawn[name] for name in names}
    return _compared("prior", "the prior", predicted, _data(given))


def _predictions(given: _Given) -> Section:
    """Look whether the data are among what the posterior predicts, and which move it much."""
    draws = _drawn(given)
    replicated = draws.replications(0)
    predicted = {name: x.reshape(-1, *x.shape[2:]) for name, x in replicated.items()}
    found = _compared("predictions", "the posterior", predicted, _data(given))
    notes, good = [found.details], found.good
    for name in draws.log_likelihood():
        elpd = loo(draws, name)
        notes.append(repr(elpd))
        good = good and not len(elpd.unreliable)
    influential = "" if good == found.good else "; some observations move the posterior much"
    return Section(
        "predictions", good, found.verdict + influential, "\n\n".join(notes), found.figures
    )


def _posterior(given: _Given) -> Section:
    """Look whether chains agree, and draws are enough."""
    draws = _drawn(given)
    serious = [finding for finding in diagnose(draws) if finding.category is not None]
    verdict = "; ".join(f.subject for f in serious) or "chains agree, and draws are enough"
    details = "\n\n".join([str(draws.summary()), *map(str, serious)])
    return Section("posterior", not serious, verdict, details)


def _calibration(given: _Given) -> Section:
    """Look whether inference gives back what data were made with, anywhere in the prior."""
    found = sbc(
        given.model, NUTS, given.replications, args=given.args, kwargs=given.kwargs,
        level=given.level, seed=given.generator.spawn(1)[0], progress_bar=given.shown,
    )  # fmt: skip
    return _ranked("calibration", found)


def _posterior_calibration(given: _Given) -> Section:
    """Look whether inference gives back what data were made with, around the data."""
    found = posterior_sbc(
        _drawn(given), NUTS, given.replications, level=given.level,
        seed=given.generator.spawn(1)[0], progress_bar=given.shown,
    )  # fmt: skip
    return _ranked("posterior calibration", found)


def _sensitivity(given: _Given) -> Section:
    """Look how much of the posterior is the prior's."""
    found = power_sensitivity(_drawn(given))
    names = [f"{name} ({found.verdicts[name]})" for name in found.sensitive[:5]]
    if names:
        return Section(
            "sensitivity", False, f"depends on the prior: {'; '.join(names)}", repr(found)
        )
    return Section("sensitivity", True, "no parameter depends much on its prior", repr(found))


_CHECKS: Mapping[str, Callable[[_Given], Section]] = {
    "prior": _prior,
    "calibration": _calibration,
    "posterior": _posterior,
    "predictions": _predictions,
    "posterior calibration": _posterior_calibration,
    "sensitivity": _sensitivity,
}


# ------------------------------------------------------------------------------------------ helpers


def _data(given: _Given) -> dict[str, np.ndarray]:
    positions = np.zeros((1, given.target.dim)) if given.draws is None else given.draws.positions
    return given.target.data_at(positions)


def _drawn(given: _Given) -> SampledDraws:
    assert given.draws is not None  # made for all parts that need them
    return given.draws


def _ranked(title: str, found: Calibration) -> Section:
    bad = [name for name, good in found.verdicts.items() if not good]
    verdict = (
        f"not calibrated: {', '.join(bad[:5])}"
        if bad
        else f"calibrated, as far as {found.replications} replications can tell"
    )
    return Section(title, not bad, verdict, repr(found), _drawn_figures(lambda: found.plot()))


def _compared(
    title: str, by: str, predicted: Mapping[str, np.ndarray], observed: Mapping[str, np.ndarray]
) -> Section:
    """Statistics of the data beside those of data sets that are predicted."""
    lines, far, panels = ["site        statistic       data   predicted (1 %, 50 %, 99 %)"], [], []
    odd = []
    for name, x in predicted.items():
        rows = np.asarray(x, np.float64).reshape(len(x), -1)
        if not np.isfinite(rows).all():
            odd.append(name)
            continue
        data = observed.get(name)
        y = None if data is None else np.asarray(data, np.float64).reshape(1, -1)
        if y is not None:
            seen = ~np.isnan(y[0])
            rows, y = rows[:, seen], y[:, seen]
            if not y.size:
                continue
        single = rows.shape[1] == 1
        for label, statistic in STATISTICS.items():
            if single and label != "mean":
                continue
            word = "value" if single else label
            values = statistic(rows)
            there = None if y is None else float(statistic(y)[0])
            low, middle, high = np.quantile(values, [0.01, 0.5, 0.99])
            shown = "" if there is None else f"{there:.4g}"
            lines.append(
                f"{name:10.10}  {word:9}  {shown:>9}   {low:.4g}, {middle:.4g}, {high:.4g}"
            )
            panels.append((f"{name}: {word}", values, there))
            if there is not None and _tail(values, there) < EXTREME:
                far.append(f"{word} of {name}")
    verdict = (
        f"the data are among what {by} predicts" if observed else f"this is what {by} predicts"
    )
    if far:
        verdict = f"{by} hardly predicts the {', '.join(far[:4])}"
    if odd:
        verdict += f"; predictions of {', '.join(odd)} are not all finite"
    figures = _drawn_figures(lambda: _histograms(panels)) if panels else ()
    return Section(title, not (far or odd), verdict, "\n".join(lines), figures)


def _tail(values: np.ndarray, there: float) -> float:
    """Two-sided share of predictions at least as far out, ties counted on both sides."""
    below, above = (values <= there).sum() + 1, (values >= there).sum() + 1
    return float(2.0 * min(below, above) / (len(values) + 1))


def _histograms(panels: list[tuple[str, np.ndarray, float | None]]) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = panels[:12]
    rows = -(-len(shown) // 4)
    figure = Figure(figsize=(11, 0.4 + 2.1 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, 4, squeeze=False)
    for axis, (title, values, there) in zip(axes.flat, shown):
        # Heavy tails would leave a single bar.
        low, high = np.quantile(values, [0.005, 0.995])
        ends = [low, high] if there is None else [min(low, there), max(high, there)]
        if ends[0] == ends[1]:
            ends = [ends[0] - 0.5, ends[1] + 0.5]
        axis.hist(values, bins=30, range=tuple(ends), color="0.75")
        if there is not None:
            axis.axvline(there, color="C3")
        axis.set_title(title, fontsize=9, loc="left")
        axis.tick_params(labelsize=8)
        axis.set_yticks([])
        axis.spines[["top", "right", "left"]].set_visible(False)
    for axis in axes.flat[len(shown) :]:
        axis.set_visible(False)
    return figure


def _drawn_figures(draw: Callable[[], object]) -> tuple[str, ...]:
    """A figure as SVG; none where matplotlib is not installed."""
    try:
        return (as_svg(draw()),)  # type: ignore[arg-type]  # a figure: no path was given
    except ModuleNotFoundError:
        return ()


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """What engines warn of is what the report tells."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InferenceWarning)
        yield


explain_calls(globals())
