"""Simulation-based calibration: whether inference gives back what the data were made with.

Parameters are drawn from the prior, data from the model given the parameters, and the posterior
given the data. The first draw is then one more draw of the last distribution, so its rank among
posterior draws is uniform, for every scalar function of parameters and data, whatever the model
(Talts et al. 2018). A mistake in a sampler, a density or a bijection leaves its mark on the ranks.

Read simulated.py first. replications.py goes from data to draws to ranks; draws are those of
chains.py (any kernel) or engines.py (anything else that samples a posterior); uniformity.py judges
the ranks, calibrated.py has the result and sbc_plot.py its picture. posterior_sbc.py does the same
around data that were seen.

References
----------
S. Talts, M. Betancourt, D. Simpson, A. Vehtari, A. Gelman, "Validating Bayesian inference
algorithms with simulation-based calibration", arXiv:1804.06788 (2018).
M. Modrák, A. H. Moon, S. Kim, P. Bürkner, N. Huurre, K. Faltejsková, A. Gelman, A. Vehtari,
"Simulation-based calibration checking for Bayesian computation: the choice of test quantities
shapes sensitivity", Bayesian Analysis (2023).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import index
from typing import SupportsIndex, cast

from probtorch.core.rng import Generator, generator_of
from probtorch.core.signatures import explain_calls, explained
from probtorch.diagnostics.findings import InferenceWarning
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer.calibration.calibrated import Calibration
from probtorch.infer.calibration.chains import ChainDrawer
from probtorch.infer.calibration.engines import Engine, FunctionDrawer, PosteriorFunction, RunDrawer
from probtorch.infer.calibration.replications import Drawer, Replications
from probtorch.infer.calibration.simulated import (
    Arrays,
    Quantity,
    SimulatedMixedTarget,
    SimulatedTarget,
    data_sites,
    kernel_for,
    simulate,
)
from probtorch.infer.mcmc.kernel import Kernel
from probtorch.infer.mcmc.kernels.nuts import NUTS
from probtorch.infer.remote.pools import ExecutorLike, check_executor

__all__ = [
    "calibrated",
    "check_settings",
    "checked_function",
    "counted",
    "engine_for",
    "sbc",
]


@explained("sbc")
def sbc(
    model: Callable[..., object],
    kernel: Kernel | Callable[..., object] = NUTS,
    replications: int = 100,
    *,
    posterior: PosteriorFunction | None = None,
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
    num_steps: int = 1000,
    level: float = 0.01,
    seed: int | Generator | None = 0,
    executor: ExecutorLike | None = None,
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
        What samples. ``kernel(model)`` makes a kernel: `NUTS`, `Gibbs`, ``lambda m: NUTS(m,
        full_mass=True)``; or it makes anything else that draws from a posterior when its `run` is
        called with the model's arguments: ``lambda m: SMC(NUTS(m), 500)``, `Importance`,
        `LaplaceApproximation`, `Pathfinder`, ``lambda m: SVI(m, AutoNormal(m), Adam, lr=0.02)``, an
        `MCMC` of your own. Leave out its seed. A kernel is taken with its settings.
    replications : int
        Data sets; 100 find gross mistakes, 1000 a standard deviation that is 15 % off.
    posterior : callable, optional
        What samples instead, a function of yours. ``posterior(args, data, seed)`` gets `args`, the
        simulated data as a dict of arrays by site, and a Generator of this replication; it returns
        at least `num_samples` draws, as `Draws` or as a dict of arrays (draws, *shape) by site.
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
        Draws that ranks are taken among, of each chain, after thinning. Of more draws than these
        that an engine returns, so many are picked evenly; weighted ones are resampled.
    warmup_steps, num_chains
        As for `MCMC`; of kernels.
    thinning : int, optional
        Keep every so many-th draw, of kernels. By default each replication runs until its draws are
        worth as many independent ones, by their effective sample size, up to 32 times the draws.
    num_steps : int
        Of an `SVI`.
    level : float
        Largest chance of calling a right sampler wrong.
    seed : int or Generator, optional
        Source of all randomness; the default generator if None.
    executor : concurrent.futures.Executor or callable, optional
        Where blocks of 16 replications run; here, one after the other, by default. The result does
        not depend on the workers. Thinning that is not given is chosen anew in each block, so ranks
        are not those without an executor.
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
    Discrete sites are drawn with the rest and summed out again by inference; they have no ranks,
    but with kernels that move them (`Gibbs`), and where they have too many values to be summed.

    What is no kernel is made anew for each data set: 5 ms for `Importance`, 30 for `Pathfinder`,
    100 for `SMC` or a short `SVI` on a small model. An approximation (Laplace's, a guide) is
    calibrated where it is exact; elsewhere ranks tell which quantities it has too narrow.
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
    check_settings(
        "sbc",
        replications=replications,
        num_samples=num_samples,
        warmup_steps=warmup_steps,
        num_chains=num_chains,
        thinning=thinning,
        num_steps=num_steps,
        level=level,
    )
    if executor is not None:
        check_executor(executor, "sbc")
    args, kwargs = tuple(args), dict(kwargs or {})
    names = data_sites(model, args, kwargs, observed, "sbc")
    first, ties, *streams = generator_of(seed).spawn(2 + replications)
    drawn = simulate(simulator or model, args, kwargs, replications, first)
    data = {name: drawn[name][0] for name in names}
    given = model, args, kwargs, data, quantities, log_likelihood

    drawer: Drawer
    if posterior is not None:
        target = _any_target(*given)
        drawer = FunctionDrawer(target, checked_function(posterior, "sbc"), args, num_samples)
    else:
        made = engine_for(kernel, model, "sbc")
        if isinstance(made, Kernel):
            kind = SimulatedMixedTarget if made.moves_discrete else SimulatedTarget
            target = kind(*given)
            drawer = ChainDrawer(
                target, kernel_for(kernel, target, "sbc"), num_samples=num_samples,
                warmup_steps=warmup_steps, num_chains=num_chains, thinning=thinning,
            )  # fmt: skip
        else:
            target = _any_target(*given)
            make = cast("Callable[..., Engine]", kernel)  # as it has made one
            drawer = RunDrawer(target, make, model, args, kwargs, num_samples, num_steps)
    runs = Replications(target, drawer, drawn, names)
    return calibrated(runs, ties, streams, level, progress_bar, executor)


def engine_for(make: object, model: Callable[..., object], caller: str) -> object:
    """Return what samples: a kernel, or what a user's class or function makes for a model.

    Raises
    ------
    ArgumentError
        If it is neither a kernel nor an engine with a method `run`.
    """
    if isinstance(make, Kernel):
        return make
    made = make(model) if callable(make) else None
    if isinstance(made, Kernel) or callable(getattr(made, "run", None)):
        return made
    raise ArgumentError(
        f"{caller}(kernel)",
        expected="NUTS, HMC, or a function that makes one for a model; or one that makes an "
        "engine with a method run, such as lambda m: SMC(NUTS(m))",
        got=f"{type(make).__name__} {make!r:.60}",
        fix=f"write {caller}(..., NUTS), {caller}(..., lambda m: NUTS(m, full_mass=True)), or "
        f"{caller}(..., posterior=function) for a function that returns draws",
    )


def checked_function(posterior: object, caller: str) -> PosteriorFunction:
    """Return a function of the user's; an `ArgumentError` says what it should be."""
    if callable(posterior):
        return posterior
    raise ArgumentError(
        f"{caller}(posterior=...)",
        expected="a function of the model's arguments, the data and a seed that returns draws",
        got=f"{type(posterior).__name__} {posterior!r:.60}",
        fix="write posterior=lambda args, data, seed: {'mu': draws_of_mu}",
    )


def _any_target(
    model: Callable[..., object],
    args: tuple[object, ...],
    kwargs: dict[str, object],
    data: Arrays,
    quantities: Mapping[str, Quantity] | None,
    log_likelihood: bool,
) -> SimulatedTarget:
    """The target with discrete sites summed out, and where they cannot be, as coordinates."""
    given = model, args, kwargs, data, quantities, log_likelihood
    try:
        return SimulatedTarget(*given)
    except InferenceError:
        return SimulatedMixedTarget(*given)


def calibrated(
    runs: Replications,
    ties: Generator,
    streams: Sequence[Generator],
    level: float,
    progress_bar: bool,
    executor: ExecutorLike | None = None,
) -> Calibration:
    """Return what the ranks of all replications say; runs them."""
    runs.run(streams, progress_bar, executor)
    replications = len(streams)
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
        level=level,
        num_draws=len(runs.done[0].drawn.points),
        name=f"{runs.target.name} with {runs.drawer.name}",
        ess=runs.ess,
        thinning=runs.thinning,
        divergences=runs.divergences,
        failed=runs.failed,
        wanted=replications,
    )


def check_settings(caller: str, **given: object) -> None:
    """Refuse what is no count; raises `ArgumentError`."""
    least = {"replications": 2, "warmup_steps": 0, "num_samples": 4}
    for name, value in given.items():
        if not (name == "level" or (name == "thinning" and value is None)):
            counted(caller, name, value, least.get(name, 1))
    if not (isinstance(given["level"], float) and 0.0 < given["level"] < 1.0):
        raise ArgumentError(
            f"{caller}(level=...)",
            expected="a chance in (0, 1)",
            got=f"{given['level']!r:.60}",
            fix="leave it at 0.01",
        )


def counted(caller: str, name: str, value: object, least: int) -> None:
    """Refuse a setting that is no integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex) or index(value) < least:
        raise ArgumentError(
            f"{caller}({name}=...)",
            expected=f"an integer of at least {least}",
            got=f"{value!r:.60}",
            fix=f"for example {name}={max(least, 100)}",
        )


explain_calls(globals())
