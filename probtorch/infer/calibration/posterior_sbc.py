"""Simulation-based calibration around data that were seen (Säilynoja et al. 2025).

Read sbc.py first. Here parameters are draws of a posterior instead of the prior, and what is
sampled is the posterior given its data and more, simulated ones (augmented.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np

from probtorch.core.rng import Generator, generator_of
from probtorch.core.signatures import explain_calls, explained
from probtorch.diagnostics.drawn import HasDraws
from probtorch.errors import ArgumentError
from probtorch.infer.calibration.augmented import (
    FIRST,
    AugmentedMixedTarget,
    AugmentedTarget,
    Twice,
)
from probtorch.infer.calibration.calibrated import Calibration
from probtorch.infer.calibration.chains import ChainDrawer
from probtorch.infer.calibration.engines import Engine, FunctionDrawer, PosteriorFunction, RunDrawer
from probtorch.infer.calibration.replications import Drawer, Replications
from probtorch.infer.calibration.sbc import (
    calibrated,
    check_settings,
    checked_function,
    engine_for,
)
from probtorch.infer.calibration.simulated import data_sites, kernel_for, simulate
from probtorch.infer.mcmc.kernel import Kernel
from probtorch.infer.mcmc.kernels.nuts import NUTS
from probtorch.infer.potential import ModelTarget
from probtorch.infer.remote.pools import ExecutorLike, check_executor
from probtorch.infer.results import SampledDraws, with_model

__all__ = ["posterior_sbc"]


@explained("posterior_sbc")
def posterior_sbc(
    draws: SampledDraws | HasDraws,
    kernel: Kernel | Callable[..., object] = NUTS,
    replications: int = 50,
    *,
    posterior: PosteriorFunction | None = None,
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
    """Check a sampler where it was used: by data simulated from the posterior.

    Parameters are draws of the posterior, more data are simulated given them, and the posterior
    given both the data and these is sampled: the parameters are one more draw of it. `sbc` looks at
    all that the prior allows, which may be nothing like the data; this looks at their
    neighbourhood.

    Parameters
    ----------
    draws : SampledDraws, or what has some
        Of the posterior, by a sampler, of a model that observes data.
    kernel : class, callable or kernel
        What samples, as for `sbc`: a kernel, or what makes an engine for a model, such as ``lambda
        m: SMC(NUTS(m), 500)`` or `LaplaceApproximation`. Its model states the further data under
        the names of the sites, those of `draws` as ``"first/"`` and the name.
    posterior : callable, optional
        What samples instead, a function of yours; see `sbc`. Of the data that it gets as a dict the
        further ones have the names of the sites, those of `draws` are at ``"first/"`` and the name.
    replications, num_samples, warmup_steps, num_chains, thinning, num_steps, level, seed
        See `sbc`. There should be no more replications than `draws` has effective draws.
    executor, progress_bar
        See `sbc`.

    Returns
    -------
    Calibration

    Raises
    ------
    InferenceError
        If the draws do not know their model, or no replication could be run.
    ArgumentError
        If nothing is observed, there are fewer draws than replications, or discrete sites are to be
        moved of which there are no draws.

    Warns
    -----
    InferenceWarning
        If replications failed.

    Notes
    -----
    Discrete sites that are in the draws (of `Gibbs`, say) are parameters where they are moved
    again. Where they are summed out, each set of data has its own.

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
    check_settings(
        "posterior_sbc",
        replications=replications,
        num_samples=num_samples,
        warmup_steps=warmup_steps,
        num_chains=num_chains,
        thinning=thinning,
        num_steps=num_steps,
        level=level,
    )
    if executor is not None:
        check_executor(executor, "posterior_sbc")
    draws, known, count = _known(draws, replications)
    args, kwargs = known.given
    if posterior is not None:
        posterior, made = checked_function(posterior, "posterior_sbc"), None
    else:
        made = engine_for(kernel, known.model, "posterior_sbc")
    discrete = {name for name, slot in known.slots.items() if slot.levels is not None}
    mixed = bool(discrete) and (not isinstance(made, Kernel) or made.moves_discrete)

    first, ties, *streams = generator_of(seed).spawn(2 + replications)
    # Far from each other in their chains.
    rows = (np.arange(replications) * count) // replications
    values = known.constrain_many(draws.positions.reshape(count, known.dim)[rows])
    latent = {name: values[name] for name in known.slots if mixed or name not in discrete}
    if holes := {n: slot.holes for n, slot in known.slots.items() if slot.holes is not None}:
        # Targets of replications have partly observed sites whole: what is looked at by nobody
        # follows the prior.
        others = {name: x for name, x in latent.items() if name not in holes}
        (aside,) = first.spawn(1)
        whole = simulate(known.model, args, kwargs, replications, aside, others)
        latent |= {n: h.filled(latent[n], whole[n]) for n, h in holes.items()}
    names = data_sites(known.model, args, kwargs, (), "posterior_sbc")
    drawn = simulate(known.model, args, kwargs, replications, first, latent) | latent
    data = {name: drawn[name][0] for name in names}
    original = {name: known.observed_data[name] for name in names}
    moved = isinstance(made, Kernel) and made.moves_discrete
    kind = AugmentedMixedTarget if mixed or moved else AugmentedTarget
    target = kind(known.model, args, kwargs, data, original)
    if missing := sorted(target.slots.keys() - latent):
        raise ArgumentError(
            "posterior_sbc(draws)",
            expected=f"draws of all sites that are moved, {', '.join(map(repr, missing))} too",
            got=f"draws of {', '.join(map(repr, latent))}",
            fix="make the draws with the sampler that is to be checked",
        )

    drawer: Drawer
    if posterior is not None:
        before = {FIRST + name: np.asarray(x) for name, x in original.items()}
        drawer = FunctionDrawer(target, posterior, args, num_samples, before)
    elif isinstance(made, Kernel):
        drawer = ChainDrawer(
            target, kernel_for(kernel, target, "posterior_sbc"), num_samples=num_samples,
            warmup_steps=warmup_steps, num_chains=num_chains, thinning=thinning,
        )  # fmt: skip
    else:
        make = cast("Callable[..., Engine]", kernel)  # as it has made one
        both = Twice(known.model, latent)
        drawer = RunDrawer(target, make, both, args, kwargs, num_samples, num_steps)
    runs = Replications(target, drawer, drawn, names)
    return calibrated(runs, ties, streams, level, progress_bar, executor)


def _known(
    given: SampledDraws | HasDraws, replications: int
) -> tuple[SampledDraws, ModelTarget, int]:
    """Draws, their target, and how many there are; refuses those that do not do."""
    draws, known = with_model(given, "posterior_sbc")
    count = draws.num_chains * draws.num_draws
    if not known.observed_data or count < replications:
        raise ArgumentError(
            "posterior_sbc(draws)",
            expected=f"at least {replications} draws, of a model that observes data",
            got=f"{count} draws, {len(known.observed_data)} observed sites",
            fix="run inference with data, or sbc, which needs none",
        )
    return draws, known, count


explain_calls(globals())
