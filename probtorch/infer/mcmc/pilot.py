"""Centred or not: which form of each hierarchical site a sampler likes, found by a short run.

A site ``theta ~ Normal(mu, tau)`` with latent mu or tau can be drawn as it is (centred), or as
noise that is scaled and shifted (non-centred). Data that say little about theta leave it tied to
tau by its prior, a funnel; data that say much tie the noise to tau instead. What decides is the
share of what is known of an element, given all else, that the data contribute: with prior precision
1 of the noise and total precision d, it is 1 - 1/d [papaspiliopoulos2007]_. The pilot run is
non-centred throughout, and d is the curvature of the log density along the noise, by differences of
gradients at its draws.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from probtorch.core.dispatch import set_grad_enabled, wrap
from probtorch.core.rng import Generator
from probtorch.core.signatures import explain_calls
from probtorch.core.tree import record, replace, static
from probtorch.distributions import constraints
from probtorch.effects.reparams import LocScaleReparam, Reparam, peeled, reparam
from probtorch.effects.site import Site
from probtorch.errors import ArgumentError
from probtorch.infer.display import activity, is_shown
from probtorch.infer.mcmc.chain import ChainRun
from probtorch.infer.mcmc.chunk import ChunkRunner
from probtorch.infer.mcmc.kernel import Kernel
from probtorch.infer.mcmc.kernels.nuts import NUTS
from probtorch.infer.mcmc.recording import DrawRecord
from probtorch.infer.mcmc.saved import SavedRun
from probtorch.infer.mcmc.starts import new_chains
from probtorch.infer.mcmc.threads import run_chains
from probtorch.infer.potential import ModelTarget, Target

__all__ = ["FormsOfSites", "choose_reparam", "in_form"]

WARMUP, DRAWS, CHAINS, SEED = 150, 40, 2, 0
# Of the standard deviation of a coordinate, for differences of gradients.
STEP = 0.01
# Signs that the curvature is looked at with, at each draw: off-diagonal terms average out.
PROBES = 2


@record
class FormsOfSites:
    """Which sites are drawn in which form; it is a `config` of `reparam`.

    Attributes
    ----------
    forms : dict of str to {"centred", "non-centred"}
        For each site that was looked at: those with loc and scale of which one is latent.
    shares : dict of str to float
        The share, 0 to 1, of what is known of its elements that comes from the data.
    """

    forms: Mapping[str, str] = static()
    shares: Mapping[str, float] = static()
    # Parameters of the family beside loc and scale, by site.
    others: Mapping[str, tuple[str, ...]] = static()

    def __call__(self, site: Site) -> Reparam | None:
        """Return what to do with a site."""
        if self.forms.get(site.name) != "non-centred":
            return None
        return LocScaleReparam(0.0, self.others[site.name])

    def __str__(self) -> str:
        """One line on each site."""
        if not self.forms:
            return "no site has a latent loc or scale"
        return "\n".join(
            f"{name}: {form} ({100 * self.shares[name]:.0f} % of what is known of it given the "
            "rest is from the data)"
            for name, form in self.forms.items()
        )


def choose_reparam(
    model: Callable[..., object],
    *args: object,
    **kwargs: object,
) -> FormsOfSites:
    """Choose between centred and non-centred for each hierarchical site, by a short run of NUTS.

    Parameters
    ----------
    model : callable
    *args, **kwargs
        What it is called with.

    Returns
    -------
    FormsOfSites
        To look at, and to use: ``reparam(model, config=choose_reparam(model, *args))``.

    Raises
    ------
    InferenceError
        If no chain can start, as for `MCMC.run`.

    Notes
    -----
    A site is non-centred if less than half of what is known of it, given all other sites, comes
    from the data: the mean over its elements and 80 draws. The run takes 190 transitions of two
    chains, and compiles the non-centred model; the choice for the same model and data is the same
    every time.

    References
    ----------
    [papaspiliopoulos2007]_

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> def schools(y):
    ...     tau = probtorch.sample("tau", dist.HalfNormal(1.0))
    ...     with probtorch.plate("school", len(y)):
    ...         theta = probtorch.sample("theta", dist.Normal(0.0, tau))
    ...         probtorch.sample("y", dist.Normal(theta, 5.0), obs=y)
    >>> choose_reparam(schools, probtorch.tensor([1.0, -2.0, 0.5])).forms
    {'theta': 'non-centred'}
    """
    others = _hierarchical(model, args, kwargs)
    if not others:
        return FormsOfSites({}, {}, {})
    apart = {name: LocScaleReparam(0.0, given) for name, given in others.items()}
    target = Target.from_model(reparam(model, config=apart), *args, **kwargs)
    draws = _pilot(target)
    shares = {}
    for name in others:
        slot = target.slots[f"{name}_decentered"]
        shares[name] = _share_of_data(target, draws, slice(slot.start, slot.stop))
    forms = {n: "centred" if share > 0.5 else "non-centred" for n, share in shares.items()}
    return FormsOfSites(forms, shares, others)


def in_form(
    kernel: Kernel, args: tuple[object, ...], kwargs: dict[str, object], *, shown: bool
) -> tuple[Kernel, FormsOfSites | None]:
    """Return a kernel whose model is in the coordinates it was told of, and what was chosen.

    Parameters
    ----------
    kernel : Kernel
    args : tuple
    kwargs : dict
        What the model is called with.
    shown : bool
        Whether to say on stderr what was chosen.
    """
    change, model = kernel.reparam, kernel.model
    if change is None:
        return kernel, None
    if model is None or isinstance(model, Target):
        raise ArgumentError(
            f"{kernel.name}(reparam=...)",
            expected="a model with sample statements",
            got="a Target" if model is not None else "potential_fn, which has no sites",
            fix="leave it out, or give the model itself",
        )
    chosen = None
    if change == "auto":
        with activity("choosing between centred and non-centred sites", shown=shown):
            change = chosen = choose_reparam(model, *args, **kwargs)
        if is_shown(shown) and chosen.forms:
            print(f'reparam="auto" chose\n{chosen}', file=sys.stderr, flush=True)
    if isinstance(change, Mapping) or callable(change):
        return replace(kernel, model=reparam(model, config=change)), chosen
    raise ArgumentError(
        f"{kernel.name}(reparam=...)",
        expected='"auto", a dict from sites to reparameterisations, or a function of a site',
        got=repr(change),
        fix="leave it out for the model as it is",
    )


def _hierarchical(
    model: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
) -> dict[str, tuple[str, ...]]:
    """The sites that have two forms, with their parameters beside loc and scale."""
    target = ModelTarget(model, args, kwargs)
    point = wrap(np.zeros(target.dim)).requires_grad_()
    before = set_grad_enabled(True)
    try:
        sites = target.trace_at(point)
    finally:
        set_grad_enabled(before)
    found = {}
    for name in target.slots:
        base, _ = peeled(sites[name].fn)
        fields = getattr(base, "__tree_fields__", ())
        if base.event_shape or base.support is not constraints.real:
            continue
        if not {"loc", "scale"} <= set(fields):
            continue
        if base.loc.requires_grad or base.scale.requires_grad:
            found[name] = tuple(n for n in fields if n not in ("loc", "scale"))
    return found


def _pilot(target: Target) -> np.ndarray:
    """Draws of a short run, shape (draws, dim)."""
    kernel = NUTS(target)
    runs = [
        ChainRun(ChunkRunner(chain), context, WARMUP, target, DRAWS, 1, kernel)
        for chain, context in new_chains(kernel, target, None, CHAINS, Generator(SEED))
    ]
    # Processes that share rows evaluate in one order.
    count = CHAINS if target.parts.ranks == 1 else 1
    run_chains(runs, count, SavedRun(None, None, {}), shown=False, look=lambda _: [])
    for run in runs:
        if run.error is not None:
            raise run.error
    records = [run.draws for run in runs if isinstance(run.draws, DrawRecord)]
    return np.concatenate([x.positions[: x.complete] for x in records])


def _share_of_data(target: Target, draws: np.ndarray, part: slice) -> float:
    """The mean of 1 - 1/d over draws and elements; see the top of the file."""
    size = STEP * draws[:, part].std(0) + 1e-8
    signs = np.random.default_rng(0)
    shares = []
    for q in draws:
        curvature = np.mean(list(_curvatures(target, q, part, size, signs)), 0)
        shares.append(1.0 - 1.0 / np.maximum(curvature, 1.0))
    return float(np.mean(shares))


def _curvatures(
    target: Target, q: np.ndarray, part: slice, size: np.ndarray, signs: np.random.Generator
) -> Iterator[np.ndarray]:
    for _ in range(PROBES):
        step = np.zeros_like(q)
        step[part] = size * signs.choice([-1.0, 1.0], size.shape)
        above, below = (target.value_and_grad(q + s)[1][part] for s in (step, -step))
        yield (below - above) / (2.0 * step[part])


explain_calls(globals())
