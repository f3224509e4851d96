"""Which latent sites a posterior couples, read off one run of the model.

The model is run once with every latent value as a leaf of the tape. Each log density (of a latent
or observed site, or a factor) then says by its gradients which latent values it is a function of:
those are tied to one another in the posterior. A discrete site, which is summed out, ties all that
may meet in it.

Written as a product of conditionals, site by site, the posterior needs more: a site that is left
out of what a later one depends on would have to carry that dependence. So sites are eliminated from
the last to the first, and the earlier neighbours of each are tied to one another (the fill-in of
sparse Cholesky factorisation). For a normal posterior the result can represent it exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from probtorch.autograd.modes import enable_grad
from probtorch.autograd.tape import grad
from probtorch.core.dispatch import wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.effects.plate_rows import take_rows
from probtorch.effects.runtime import Handler
from probtorch.errors import ArgumentError
from probtorch.infer.model_runs import lifted, out_of_sight
from probtorch.ops.reduction import sum as total

if TYPE_CHECKING:
    from probtorch.effects.site import Site
    from probtorch.infer.guides.latents import Latent


__all__ = ["coupled_plates", "elimination_parents", "factors_of", "sorted_by_parents"]


class _Leaves(Handler):
    """Give latent sites leaves of the tape as values."""

    def __init__(self, leaves: Mapping[str, TensorBase]) -> None:
        super().__init__()
        self.leaves = leaves

    def on_sample(self, site: Site) -> None:
        if site.observed or site.value is not None or site.name not in self.leaves:
            return
        event = len(site.fn.event_shape)
        site.value = take_rows(self.leaves[site.name], event, site.plates, site.name)


def factors_of(
    model: Callable[..., object],
    latents: Mapping[str, Latent],
    args: tuple[object, ...],
    kwargs: dict[str, object],
    *,
    precise: bool,
) -> tuple[
    list[tuple[frozenset[str], frozenset[str]]], list[tuple[frozenset[str], frozenset[str]]]
]:
    """Run the model and return what its log densities are functions of.

    Parameters
    ----------
    model : callable
    latents : dict of str to Latent
        The sites, with the values to run the model at.
    args, kwargs
        The model's arguments.
    precise : bool
        Whether to run it in float64.

    Returns
    -------
    factors : list of (names of latent sites, names of the plates it lies in)
        One for each log density.
    ties : list of (names of latent sites, names of the plates it lies in)
        What is tied by a discrete latent site, which is summed out: the sites that its own density
        is a function of, and those of all densities after it that may see it.

    Notes
    -----
    A dependence that no gradient passes, such as one through a comparison, is not seen.
    """
    leaves = {n: wrap(latent.init.copy()).requires_grad_() for n, latent in latents.items()}
    if precise:
        args, kwargs = lifted(args), lifted(kwargs)
    with enable_grad(), out_of_sight(_Leaves(leaves), precise=precise) as seen:
        model(*args, **kwargs)
        found, ties = [], []
        for site in seen.nodes.values():
            if not site.has_density:
                continue
            names, plates = _touched(site, leaves), frozenset(f.name for f in site.plates)
            for around, tied in ties:
                # Outside of a plate of the discrete site its rows are out of sight.
                if around <= plates:
                    tied |= names
            if site.kind == "sample" and not site.observed and site.fn.is_discrete:
                ties.append((plates, set(names)))
            if names:
                found.append((names, plates))
    return found, [(frozenset(tied), around) for around, tied in ties]


def _touched(site: Site, leaves: dict[str, TensorBase]) -> frozenset[str]:
    """Names of the leaves that a site's log density is a function of."""
    density = site.compute_log_prob()
    if not density.requires_grad:
        return frozenset()
    slopes = grad(total(density), list(leaves.values()), retain_graph=True, allow_unused=True)
    return frozenset(n for n, g in zip(leaves, slopes, strict=True) if g is not None)


def coupled_plates(
    factors: Iterable[tuple[frozenset[str], frozenset[str]]], name: str, plates: Iterable[str]
) -> set[str]:
    """Return those of a site's plates whose rows the posterior couples.

    A log density outside of a plate that is a function of a site inside sees all of its rows.
    """
    touching = [where for names, where in factors if name in names]
    return {p for p in plates if any(p not in where for where in touching)}


def elimination_parents(order: list[str], cliques: Iterable[Iterable[str]]) -> dict[str, list[str]]:
    """Return, for each site, the earlier ones that it depends on given all earlier ones.

    Parameters
    ----------
    order : list of str
    cliques : iterable of sets of names
        Sites that are tied to one another.
    """
    place = {name: i for i, name in enumerate(order)}
    near: dict[str, set[str]] = {name: set() for name in order}
    for clique in cliques:
        for name in clique:
            near[name] |= set(clique) - {name}
    parents = {}
    for name in reversed(order):
        earlier = {other for other in near[name] if place[other] < place[name]}
        for other in earlier:
            near[other] |= earlier - {other}
        parents[name] = sorted(earlier, key=place.__getitem__)
    return {name: parents[name] for name in order}


def sorted_by_parents(names: Iterable[str], parents: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the names with each after those it depends on, otherwise in the order given.

    Raises
    ------
    ArgumentError
        If dependencies go around in a circle.
    """
    left, done = list(names), []
    while left:
        free = [n for n in left if not set(parents.get(n, ())) & set(left)]
        if not free:
            raise ArgumentError(
                "AutoStructured(dependencies=...)",
                expected="dependencies that can be followed to an end",
                got=f"a circle among {', '.join(map(repr, left))}",
                fix="drop one of the arrows",
            )
        done.append(free[0])
        left.remove(free[0])
    return done
