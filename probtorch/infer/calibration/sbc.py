"""Simulation-based calibration: whether inference gives back what the data were made with.

Parameters are drawn from the prior, data from the model given the parameters, and the posterior
given the data. The first draw is then one more draw of the last distribution, so its rank among
posterior draws is uniform, for every scalar function of parameters and data, whatever the model
(Talts et al. 2018). A mistake in a sampler, a density or a bijection leaves its mark on the ranks.

Read simulated.py first; uniformity.py judges the ranks, sbc_plot.py draws them.

References
----------
S. Talts, M. Betancourt, D. Simpson, A. Vehtari, A. Gelman, "Validating Bayesian inference
algorithms with simulation-based calibration", arXiv:1804.06788 (2018).
M. Modrák, A. H. Moon, S. Kim, P. Bürkner, N. Huurre, K. Faltejsková, A. Gelman, A. Vehtari,
"Simulation-based calibration checking for Bayesian computation: the choice of test quantities
shapes sensitivity", Bayesian Analysis (2023).
"""

from __future__ import annotations

import math
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from probtorch.config import configure, settings
from probtorch.core.rng import Generator, default_generator
from probtorch.core.signatures import explain_calls, explained
from probtorch.diagnostics.checks import InferenceWarning
from probtorch.diagnostics.convergence import ess_bulk
from probtorch.errors import ArgumentError, DomainError, InferenceError
from probtorch.infer.calibration.displays import TurnProgress
from probtorch.infer.calibration.sbc_plot import ecdf_difference_figure
from probtorch.infer.calibration.simulated import (
    BLOCK_ELEMENTS,
    Arrays,
    AugmentedTarget,
    Quantity,
    SimulatedTarget,
    data_sites,
    kernel_for,
    simulate,
)
from probtorch.infer.calibration.uniformity import holm, uniformity_pvalue
from probtorch.infer.mcmc.driver import MCMC
from probtorch.infer.mcmc.kernel import Kernel
from probtorch.infer.mcmc.kernels.nuts import NUTS
from probtorch.infer.potential import ModelTarget
from probtorch.infer.results import SampledDraws

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Calibration", "counted", "posterior_sbc", "sbc"]

# Thinning to begin with, and the most that is tried before the draws are taken as they are.
FIRST_THINNING, MAX_THINNING = 2, 32
# Effective draws per draw that are as good as independence: ranks among 63 draws worth 50 have a
# variance that is 1 % too large, which takes 10^5 replications to see.
INDEPENDENT = 0.8
# Rows of a repr.
SHOWN = 30


@dataclass(frozen=True, eq=False, repr=False)
class Calibration:
    """What `sbc` found.

    Attributes
    ----------
    ranks : dict of str to ndarray of int, each (replications,)
        How many of `num_draws` posterior draws lie below the value that the data were made with, by
        quantity; ties are broken at random.
    pvalues : dict of str to float
        Of uniformity, by quantity; exact (`uniformity.py`).
    adjusted : dict of str to float
        The same, adjusted for the number of quantities (Holm).
    level : float
        Chance of a false alarm that the verdict keeps to.
    num_draws : int
        Posterior draws per replication, of all chains.
    name : str
        Of the model and the kernel.
    ess : ndarray, shape (replications,)
        Effective draws before thinning, of the parameter that has fewest.
    thinning : ndarray of int, shape (replications,)
    divergences : ndarray of int, shape (replications,)
    failed : dict of int to Exception
        Replications that could not be run, by number; they have no ranks.
    wanted : int
        Replications that were asked for.
    """

    ranks: dict[str, np.ndarray]
    level: float
    num_draws: int
    name: str
    ess: np.ndarray
    thinning: np.ndarray
    divergences: np.ndarray
    failed: dict[int, Exception]
    wanted: int
    pvalues: dict[str, float] = field(init=False)
    adjusted: dict[str, float] = field(init=False)

    def __post_init__(self) -> None:
        found = {name: uniformity_pvalue(x, self.num_draws) for name, x in self.ranks.items()}
        adjusted = holm(np.array(list(found.values())))
        object.__setattr__(self, "pvalues", found)
        object.__setattr__(self, "adjusted", dict(zip(found, map(float, adjusted))))

    @property
    def replications(self) -> int:
        """Replications that have ranks."""
        return len(self.ess)

    @property
    def calibrated(self) -> bool:
        """Whether no quantity's ranks speak against uniformity, at `level` for all together."""
        return min(self.adjusted.values()) > self.level

    @property
    def verdicts(self) -> dict[str, bool]:
        """Whether each quantity is calibrated, as far as can be seen."""
        return {name: p > self.level for name, p in self.adjusted.items()}

    def plot(
        self, path: str | os.PathLike[str] | None = None, names: Iterable[str] | None = None
    ) -> Figure | str:
        """Draw, for each quantity, how far the ECDF of its ranks is from uniform, with its band.

        Parameters
        ----------
        path : str or path-like, optional
            File to write; the ending chooses the format (png, pdf, svg).
        names : sequence of str, optional
            Which quantities; at most 20 are drawn, those with the smallest p-values.

        Returns
        -------
        str or matplotlib.figure.Figure
            The path; without one the figure.

        Notes
        -----
        A curve leaves its band somewhere with probability `level` divided by the number of
        quantities, if inference is right: so any curve outside is a verdict. A curve above 0 has
        too many small ranks: draws lie too high. Up, then down: draws too narrow; down, then up:
        too wide.
        """
        return ecdf_difference_figure(self, path, names)

    def __repr__(self) -> str:
        order = sorted(self.pvalues, key=lambda name: self.pvalues[name])
        width = max(len("quantity"), *(len(name) for name in order[:SHOWN]))
        of = "" if self.wanted == self.replications else f" of {self.wanted}"
        done = f"{self.replications}{of} replications, {self.num_draws} draws each"
        lines = [
            f"Calibration of {self.name}: {done}",
            f"{'quantity':{width}}  p-value  adjusted  ranks",
        ]
        for name in order[:SHOWN]:
            shape = "uniform" if self.verdicts[name] else _shape(self.ranks[name], self.num_draws)
            p, adjusted = _shown(self.pvalues[name]), _shown(self.adjusted[name])
            lines.append(f"{name:{width}}  {p:>7}  {adjusted:>8}  {shape}")
        if len(order) > SHOWN:
            lines.append(f"and {len(order) - SHOWN} more with larger p-values")
        bad = sum(not good for good in self.verdicts.values())
        chance = f"(chance of a false alarm: {self.level:g})"
        lines.append(
            f"calibrated, as far as this can tell {chance}"
            if not bad
            else f"not calibrated: {bad} of {len(order)} quantities {chance}"
        )
        lines += self.notes()
        return "\n".join(lines)

    def notes(self) -> list[str]:
        """Return what happened on the way that bears on the verdict, a line each."""
        notes, of = [], self.replications
        if self.failed:
            number, error = next(iter(self.failed.items()))
            first = f"{type(error).__name__}: {error}".splitlines()[0]
            notes.append(f"{len(self.failed)} replications failed; number {number}: {first}")
        diverging = int((self.divergences > 0).sum())
        if diverging:
            notes.append(f"{diverging} of {of} replications had divergences")
        few = int((self.ess < INDEPENDENT * self.num_draws).sum())
        if few:
            notes.append(
                f"{few} of {of} replications have fewer effective draws than draws: their ranks "
                "are too often small or large; more warmup_steps or a larger thinning would tell"
            )
        return notes


def _shown(p: float) -> str:
    return f"{p:.3f}" if p >= 1e-3 else f"{p:.0e}"


def _shape(ranks: np.ndarray, num_draws: int) -> str:
    """What ranks that are not uniform look like, in words."""
    share = (ranks + 0.5) / (num_draws + 1) - 0.5
    shift = share.mean() * math.sqrt(12.0 * len(ranks))
    # The fourth moment of a uniform variable on (-1/2, 1/2) is 1/80.
    spread = ((share**2).mean() - 1.0 / 12.0) / math.sqrt((1 / 80 - 1 / 144) / len(ranks))
    words = []
    if abs(spread) > 2.5:
        words.append("draws too narrow, or not independent" if spread > 0 else "draws too wide")
    if abs(shift) > 2.5:
        words.append("draws too low" if shift > 0 else "draws too high")
    return "; ".join(words) or "not uniform"


@explained("sbc")
def sbc(
    model: Callable[..., object],
    kernel: Kernel | Callable[..., Kernel] = NUTS,
    replications: int = 100,
    *,
    args: tuple[object, ...] = (),
    kwargs: Mapping[str, object] | None = None,
    observed: Iterable[str] = (),
    quantities: Mapping[str, Quantity] | None = None,
    log_likelihood: bool = True,
    simulator: Callable[..., object] | None = None,
    num_samples: int = 63,
    warmup_steps: int = 300,
    num_chains: int = 1,
    thinning: int | None = None,
    level: float = 0.01,
    seed: int | Generator | None = 0,
    progress_bar: bool = True,
) -> Calibration:
    """Check a model and a sampler by simulation-based calibration.

    Use it to find out whether a sampler draws from the posterior that a model states: for a kernel,
    a distribution or a bijection of your own, and for a model that you have rewritten.

    Parameters
    ----------
    model : callable
        With sample statements. Its data are the sites that it observes, in whatever form: whatever
        values are passed for them are replaced by simulated ones.
    kernel : class, callable or kernel
        ``kernel(model)`` makes the kernel: `NUTS`, `HMC`, ``lambda m: NUTS(m, full_mass=True)``; or
        a kernel, whose settings are then used.
    replications : int
        Data sets; 100 find gross mistakes, 1000 a standard deviation that is 15 % off.
    args, kwargs
        What the model is called with: sizes, covariates, and data or None in their place.
    observed : sequence of str
        Sites that are data although nothing is passed for them. If nothing is observed or named,
        the sites that say ``obs=`` and have got None are.
    quantities : dict of str to callable, optional
        More test quantities: functions of a dict of tensors, the parameters and the data by name,
        such as ``{"effect": lambda v: v["b"] * v["x"]}``. They see mistakes that single parameters
        do not show.
    log_likelihood : bool
        Whether the log likelihood of the data is a test quantity; it shows a posterior that leaves
        out some of the data.
    simulator : callable, optional
        The model that parameters and data are drawn from, of the same sites and arguments; `model`
        by default. Another one shows what a mistake would look like, and whether it would be seen.
    num_samples : int
        Draws per chain that ranks are taken among, after thinning.
    warmup_steps, num_chains
        As for `MCMC`.
    thinning : int, optional
        Keep every so many-th draw. By default each replication runs until its draws are worth as
        many independent ones, by their effective sample size, up to 32 times the draws.
    level : float
        Largest chance of calling a right sampler wrong.
    seed : int or Generator, optional
        Source of all randomness; the default generator if None.
    progress_bar : bool

    Returns
    -------
    Calibration
        Prints as a table; ``.calibrated`` is the verdict, ``.ranks``, ``.pvalues`` and ``.plot()``
        what it rests on. After Ctrl-C, of the replications that were done.

    Raises
    ------
    ArgumentError
        If it is not clear what the data are, or a factor says what no draw can follow.
    InferenceError
        If no replication could be run.
    KeyboardInterrupt
        On Ctrl-C before the first replication is done.

    Warns
    -----
    InferenceWarning
        If replications failed: those that are left may be a selection.

    Notes
    -----
    The model is compiled once, with the data as an argument, so a replication of a small model
    takes some 20 ms; a model that turns its data into Python numbers runs eagerly.
    Discrete sites are drawn with the rest and summed out again by inference; they have no ranks.
    A deterministic site is a quantity like a parameter; one that never varies is left out. Data
    that a model also computes with outside of its ``obs=`` stay what was passed for them there.

    References
    ----------
    [talts2018]_; [modrak2023]_ for the test quantities; [sailynoja2022]_ for the test.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import NUTS
    >>> from probtorch.testing import sbc
    >>> def coin(tosses, y=None):
    ...     p = probtorch.sample("p", dist.Beta(2.0, 2.0))
    ...     probtorch.sample("y", dist.Binomial(tosses, p), obs=y)
    >>> result = sbc(coin, NUTS, 50, args=(10,), progress_bar=False)
    >>> result.calibrated
    True
    >>> result.ranks["p"].shape
    (50,)
    """
    asked = _settings(
        replications=replications,
        num_samples=num_samples,
        warmup_steps=warmup_steps,
        num_chains=num_chains,
        thinning=thinning,
        level=level,
    )
    kwargs = dict(kwargs or {})
    names = data_sites(model, tuple(args), kwargs, observed, "sbc")
    if seed is None:
        seed = default_generator
    generator = seed if isinstance(seed, Generator) else Generator(seed)
    first, ties, *streams = generator.spawn(2 + replications)
    drawn = simulate(simulator or model, tuple(args), kwargs, replications, first)
    target = SimulatedTarget(
        model, tuple(args), kwargs, {name: drawn[name][0] for name in names},
        quantities, log_likelihood,
    )  # fmt: skip
    made = kernel_for(kernel, target, "sbc")
    runs = _Replications(target, made, drawn, names, asked)
    return _calibrated(runs, ties, streams, progress_bar)


@explained("posterior_sbc")
def posterior_sbc(
    draws: SampledDraws,
    kernel: Kernel | Callable[..., Kernel] = NUTS,
    replications: int = 50,
    *,
    num_samples: int = 63,
    warmup_steps: int = 300,
    thinning: int | None = None,
    level: float = 0.01,
    seed: int | Generator | None = 0,
    progress_bar: bool = True,
) -> Calibration:
    """Check a sampler where it was used: by data simulated from the posterior.

    Parameters are draws of the posterior, more data are simulated given them, and the posterior
    given both the data and these is sampled: the parameters are one more draw of it. `sbc` looks at
    all that the prior allows, which may be nothing like the data; this looks at their
    neighbourhood.

    Parameters
    ----------
    draws : SampledDraws
        Of the posterior, by a sampler, of a model that observes data.
    kernel, replications, num_samples, warmup_steps, thinning, level, seed, progress_bar
        See `sbc`. There should be no more replications than `draws` has effective draws.

    Returns
    -------
    Calibration

    Raises
    ------
    InferenceError
        If the draws do not know their model, or no replication could be run.
    ArgumentError
        If nothing is observed, or there are fewer draws than replications.

    Warns
    -----
    InferenceWarning
        If replications failed.

    References
    ----------
    [sailynoja2025]_

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import MCMC, NUTS
    >>> from probtorch.testing import posterior_sbc
    >>> def coin(y):
    ...     p = probtorch.sample("p", dist.Beta(2.0, 2.0))
    ...     probtorch.sample("y", dist.Binomial(10, p), obs=y)
    >>> draws = MCMC(NUTS(coin), 300, 200, seed=0, progress_bar=False).run(7.0)
    >>> posterior_sbc(draws, replications=30, progress_bar=False).calibrated
    True
    """
    asked = _settings(
        replications=replications,
        num_samples=num_samples,
        warmup_steps=warmup_steps,
        num_chains=1,
        thinning=thinning,
        level=level,
    )
    known = getattr(draws, "target", None)
    if not isinstance(known, ModelTarget):
        raise InferenceError(
            "posterior_sbc",
            expected="draws that know their model, as MCMC returns them",
            got="draws of a hand-written density" if known else "draws read from a file, or arrays",
            fix="pass mcmc.draws",
        )
    count = draws.num_chains * draws.num_draws
    if not known.observed_data or count < replications:
        raise ArgumentError(
            "posterior_sbc(draws)",
            expected=f"at least {replications} draws, of a model that observes data",
            got=f"{count} draws, {len(known.observed_data)} observed sites",
            fix="run inference with data, or sbc, which needs none",
        )
    if seed is None:
        seed = default_generator
    generator = seed if isinstance(seed, Generator) else Generator(seed)
    first, ties, *streams = generator.spawn(2 + replications)
    # Far from each other in their chains.
    rows = (np.arange(replications) * count) // replications
    positions = draws.positions.reshape(count, known.dim)[rows]
    values = known.constrain_many(positions)
    latent = {name: values[name] for name in known.slots}
    args, kwargs = known.given
    names = data_sites(known.model, args, kwargs, (), "posterior_sbc")
    drawn = simulate(known.model, args, kwargs, replications, first, latent) | latent
    target = AugmentedTarget(
        known.model, args, kwargs, {name: drawn[name][0] for name in names},
        {name: known.observed_data[name] for name in names},
    )  # fmt: skip
    made = kernel_for(kernel, target, "posterior_sbc")
    runs = _Replications(target, made, drawn, names, asked)
    return _calibrated(runs, ties, streams, progress_bar)


def _calibrated(
    runs: _Replications, ties: Generator, streams: Sequence[Generator], progress_bar: bool
) -> Calibration:
    """Run all replications, and judge their ranks."""
    runs.run(streams, progress_bar)
    asked, replications = runs.settings, len(streams)
    if not runs.done:
        raise next(iter(runs.failed.values()))
    if runs.failed:
        warnings.warn(
            f"{len(runs.failed)} of {replications} replications of sbc failed\n"
            "  expected: posteriors that can be sampled for all data that the model simulates\n"
            f"  got:      {next(iter(runs.failed.values()))!s}\n"
            "  fix:      see the error; ranks are those of the other replications",
            InferenceWarning,
            stacklevel=4,
        )
    return Calibration(
        ranks=runs.ranks(ties),
        level=asked["level"],
        num_draws=asked["num_samples"] * asked["num_chains"],
        name=f"{runs.target.name} with {runs.kernel.name}",
        ess=np.array([run.ess for run in runs.done]),
        thinning=np.array([run.thinning for run in runs.done]),
        divergences=np.array([run.divergences for run in runs.done]),
        failed=runs.failed,
        wanted=replications,
    )


@dataclass(frozen=True)
class _Run:
    """One replication: thinned draws (num_draws, dim), the point they should be like, its data."""

    draws: np.ndarray
    truth: np.ndarray
    data: np.ndarray
    ess: float
    thinning: int
    divergences: int


class _Interrupted(Exception):
    """Ctrl-C came while chains ran."""


class _Replications:
    """All replications of one call."""

    def __init__(
        self,
        target: SimulatedTarget,
        kernel: Kernel,
        drawn: Arrays,
        names: Sequence[str],
        asked: dict[str, Any],
    ) -> None:
        self.target, self.kernel, self.drawn, self.names = target, kernel, drawn, names
        self.settings = asked
        self.done: list[_Run] = []
        self.failed: dict[int, Exception] = {}
        self._needed: list[float] = []  # thinning that would have done, by replication

    def run(self, streams: Sequence[Generator], shown: bool) -> None:
        """Run one after the other, until they are done or Ctrl-C comes."""
        points = self.target.points(self.drawn)
        with TurnProgress(len(streams), "replications", shown=shown) as progress:
            try:
                for number, stream in enumerate(streams):
                    try:
                        self.done.append(self._replicate(number, stream, points))
                    except (InferenceError, DomainError) as error:
                        self.failed[number] = error
                    progress.update(math.nan)
            except (KeyboardInterrupt, _Interrupted):
                if not self.done:
                    raise KeyboardInterrupt("interrupted before the first replication") from None
                print(
                    f"interrupted: keeping the {len(self.done)} replications that are done",
                    file=sys.stderr,
                    flush=True,
                )

    def _replicate(
        self, number: int, stream: Generator, points: Callable[[int], np.ndarray]
    ) -> _Run:
        data = {name: self.drawn[name][number] for name in self.names}
        self.target.exchange(data)
        truth = points(number)
        # Compiled code is compared with Python's answer now and then, less and less often.
        verify = settings.verify and number & (number - 1) == 0
        with warnings.catch_warnings(), configure(verify=verify):
            # Thousands of runs: what each of them has to say is counted instead.
            warnings.simplefilter("ignore", InferenceWarning)
            positions, divergences, ess = self._sample(stream)
        wanted, length = self.settings["num_samples"], positions.shape[1]
        rows = np.arange(1, wanted + 1) * length // wanted - 1
        draws = positions[:, rows].reshape(-1, self.target.dim)
        return _Run(draws, truth, self.target.pack_data(data), ess, length // wanted, divergences)

    def _sample(self, stream: Generator) -> tuple[np.ndarray, int, float]:
        """Positions (chain, draw, dim) before thinning, divergences, effective draws."""
        s = self.settings
        wanted, fixed = s["num_samples"], s["thinning"]
        mcmc = MCMC(
            self.kernel,
            wanted * (fixed or self._thinning()),
            s["warmup_steps"],
            num_chains=s["num_chains"],
            seed=stream,
            progress_bar=False,
        )
        mcmc.diagnose = False  # it is the ranks that are looked at
        positions, divergences = self._draw(mcmc)
        while True:
            ess = _least_ess(positions)
            length = positions.shape[1]
            enough = INDEPENDENT * wanted * s["num_chains"]
            self._needed.append(length / wanted * enough / max(ess, 1.0))
            if fixed or ess >= enough or length >= MAX_THINNING * wanted:
                return positions, divergences, ess
            self._needed.pop()
            more = min(max(int(length * (enough / max(ess, 1.0) - 1.0)), wanted), 3 * length)
            mcmc.post_warmup_state = mcmc.last_state
            mcmc.num_samples = min(more, MAX_THINNING * wanted - length)
            further, diverged = self._draw(mcmc)
            positions = np.concatenate([positions, further], axis=1)
            divergences += diverged

    def _draw(self, mcmc: MCMC) -> tuple[np.ndarray, int]:
        draws = mcmc.run()
        if draws.attrs.get("interrupted"):
            raise _Interrupted
        if draws.num_chains < self.settings["num_chains"]:
            raise InferenceError(
                "sbc",
                expected=f"{self.settings['num_chains']} chains",
                got=f"{draws.num_chains}; {draws.attrs.get('failed_chains')}",
                fix="see the error of the chain that failed",
            )
        return draws.positions, int(np.sum(draws.sample_stats.get("diverging", 0)))

    def _thinning(self) -> int:
        """What would have done for most of the last replications."""
        if not self._needed:
            return FIRST_THINNING
        # Draws cost less than a second run.
        guess = math.ceil(np.quantile(self._needed[-20:], 0.8))
        return min(max(guess, 1), MAX_THINNING)

    # ---------------------------------------------------------------------------------------- ranks

    def ranks(self, generator: Generator) -> dict[str, np.ndarray]:
        """Ranks (replications,) of the truth among the draws, by label."""
        rng = np.random.default_rng([generator.initial_seed(), generator.stream])
        draws = len(self.done[0].draws)
        row = (1 + draws) * (self.target.dim + self.done[0].data.size)
        block = max(1, BLOCK_ELEMENTS // row)
        labels: list[str] = []
        parts, bad, lowest, highest = [], [], [], []
        for start in range(0, len(self.done), block):
            runs = self.done[start : start + block]
            points = np.concatenate([np.vstack([run.truth[None], run.draws]) for run in runs])
            data = np.repeat([run.data for run in runs], 1 + draws, axis=0)
            labels, values = self.target.columns(self.target.scores(points, data))
            values = values.reshape(len(runs), 1 + draws, -1)
            truth, others = values[:, :1], values[:, 1:]
            below, equal = (others < truth).sum(axis=1), (others == truth).sum(axis=1)
            parts.append(below + rng.integers(0, equal + 1))
            bad.append(np.isnan(values).any(axis=(0, 1)))
            lowest.append(values.min(axis=(0, 1)))
            highest.append(values.max(axis=(0, 1)))
        ranks, nan = np.concatenate(parts), np.any(bad, axis=0)
        if nan.any():
            name = labels[int(np.flatnonzero(nan)[0])]
            raise ArgumentError(
                f"sbc: quantity {name!r}",
                expected="a number at every draw",
                got="nan at some",
                fix="mend it, or leave it out, so that it can be ranked",
            )
        varies = np.min(lowest, axis=0) < np.max(highest, axis=0)
        return {label: ranks[:, i] for i, label in enumerate(labels) if varies[i]}


def _least_ess(positions: np.ndarray) -> float:
    """Effective draws of the coordinate that has fewest; 0 for one that does not move."""
    return float(np.min(np.nan_to_num(ess_bulk(positions), nan=0.0)))


def _settings(**given: Any) -> dict[str, Any]:
    """Return the settings; refuse what is no count."""
    least = {"replications": 2, "warmup_steps": 0, "num_samples": 4}
    for name, value in given.items():
        if not (name == "level" or (name == "thinning" and value is None)):
            counted("sbc", name, value, least.get(name, 1))
    if not (isinstance(given["level"], float) and 0.0 < given["level"] < 1.0):
        raise ArgumentError(
            "sbc(level=...)",
            expected="a chance in (0, 1)",
            got=f"{given['level']!r:.60}",
            fix="leave it at 0.01",
        )
    return given


def counted(caller: str, name: str, value: Any, least: int) -> None:
    """Refuse a setting that is no integer of at least `least`."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < least:
        raise ArgumentError(
            f"{caller}({name}=...)",
            expected=f"an integer of at least {least}",
            got=f"{value!r:.60}",
            fix=f"for example {name}={max(least, 100)}",
        )


explain_calls(globals())
