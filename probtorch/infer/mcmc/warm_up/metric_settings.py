"""What users say about the mass matrix, checked: its form, and the one to begin with."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias, TypeGuard, cast

import numpy as np

from probtorch.core.typed import TensorLike
from probtorch.errors import ArgumentError, ShapeError
from probtorch.infer.mcmc.metrics import (
    BlockMetric,
    DenseMetric,
    DiagonalMetric,
    LowRankMetric,
    Metric,
)
from probtorch.infer.mcmc.warm_up.forms import (
    WIDEST,
    Auto,
    Blocks,
    Covariances,
    Dense,
    Diagonal,
    Form,
    LowRank,
    Variances,
)
from probtorch.infer.names import unknown_name

if TYPE_CHECKING:
    from probtorch.infer.potential import Target


__all__ = [
    "FormOfMetric",
    "GivenMass",
    "block_places",
    "chosen_metric",
    "form_of",
    "given_inverse_mass",
    "metric_of",
]

# Of the mass matrix, as users say it: a name, or blocks of sites; and one that they give. An
# inverse mass matrix is kept as an array, or by blocks of sites.
FormOfMetric: TypeAlias = str | Sequence[Sequence[str]]
GivenMass: TypeAlias = TensorLike | Mapping[str, TensorLike] | Mapping[tuple[str, ...], TensorLike]
InverseMass: TypeAlias = np.ndarray | dict[tuple[str, ...], np.ndarray]

FORMS: dict[str, type[Form]] = {
    "auto": Auto,
    "diag": Diagonal,
    "low_rank": LowRank,
    "dense": Dense,
}
# From draws alone, for kernels without gradients.
FORMS_OF_DRAWS: dict[str, type[Form]] = {
    "auto": Covariances,
    "diag": Variances,
    "dense": Covariances,
}
# What other libraries call them.
SYNONYMS = {
    "diagonal": "diag",
    "diag_e": "diag",
    "dense_e": "dense",
    "full": "dense",
    "lowrank": "low_rank",
    "low-rank": "low_rank",
}


def chosen_metric(
    owner: str,
    metric: FormOfMetric,
    full_mass: bool | None,
    dense_mass: bool | Sequence[Sequence[str]] | None,
) -> str | tuple[tuple[str, ...], ...]:
    """Return the form of the mass matrix, a name or a tuple of tuples of sites.

    Raises
    ------
    ArgumentError
        If it is none, or if it is said twice.
    """
    said = [
        (name, value)
        for name, value in (("full_mass", full_mass), ("dense_mass", dense_mass))
        if value is not None
    ]
    if metric != "auto":
        said.append(("metric", metric))
    if len(said) > 1:
        raise ArgumentError(
            f"{owner}({', '.join(name for name, _ in said)})",
            expected="one of metric, full_mass and dense_mass",
            got=", ".join(f"{name}={value!r:.40}" for name, value in said),
            fix=f"keep metric={metric!r:.40}" if metric != "auto" else "keep one",
        )
    name, value = said[0] if said else ("metric", "auto")
    if isinstance(value, (bool, np.bool_)) and name != "metric":
        return "dense" if value else "diag"
    if isinstance(value, str):
        value = SYNONYMS.get(value, value)
        if value in FORMS:
            return value
    elif _are_blocks(value):
        blocks = tuple(tuple(block) for block in value)
        sites = [site for block in blocks for site in block]
        if len(set(sites)) == len(sites):
            return blocks
        raise ArgumentError(
            f"{owner}({name}=...)",
            expected="blocks that share no site",
            got=f"{max(sites, key=sites.count)!r} in two of them",
            fix="put all sites that belong together into one block",
        )
    raise ArgumentError(
        f"{owner}({name}=...)",
        expected=f"one of {', '.join(map(repr, FORMS))}, or blocks of sites"
        if name == "metric"
        else "True, False or blocks of sites",
        got=f"{value!r:.60}",
        fix='leave it out for "auto"; blocks are written [("a", "b"), ("c",)]',
    )


def _are_blocks(value: object) -> TypeGuard[Sequence[Sequence[str]]]:
    return (
        isinstance(value, Sequence)
        and len(value) > 0
        and all(
            isinstance(block, (tuple, list)) and block and all(isinstance(s, str) for s in block)
            for block in value
        )
    )


def given_inverse_mass(owner: str, value: GivenMass | None) -> InverseMass | None:
    """Return the inverse mass matrix that was given, as an array or a dict of arrays, or None.

    Raises
    ------
    ShapeError
        If it is neither a vector nor a matrix.
    """
    if value is None:
        return None
    if isinstance(value, Mapping):
        return {
            (key,) if isinstance(key, str) else tuple(key): np.asarray(x, np.float64)
            for key, x in value.items()
        }
    array = np.asarray(value, np.float64)
    if array.ndim not in (1, 2):
        raise ShapeError(
            f"{owner}(inverse_mass_matrix=...)",
            expected="shape (dim,) or (dim, dim), or a dict by site",
            got=f"shape {array.shape}",
            fix="give the diagonal, or the matrix",
        )
    return array


def form_of(
    metric: FormOfMetric,
    given: InverseMass | None,
    dim: int,
    places: Sequence[np.ndarray],
    forms: Mapping[str, type[Form]] = MappingProxyType(FORMS),
) -> Form:
    """Return the form for `dim` coordinates.

    A matrix that was given makes it dense, and matrices of blocks make blocks, unless told.
    """
    if places or not isinstance(metric, str):
        return Blocks(dim, places)
    if metric == "auto":
        if isinstance(given, np.ndarray) and given.ndim == 2:
            metric = "dense"
        elif dim > WIDEST:
            metric = "diag"
    return _form(cast("Callable[[int], Form]", forms[metric]), dim)


@functools.lru_cache(maxsize=16)
def _form(kind: Callable[[int], Form], dim: int) -> Form:
    """A form for all chains of so many coordinates: it changes no more once it is made."""
    return kind(dim)


def block_places(
    owner: str, metric: FormOfMetric, given: InverseMass | None, target: Target
) -> list[np.ndarray]:
    """Return the coordinates of each dense block.

    Raises
    ------
    ArgumentError
        If a site is not in the model.
    """
    if not isinstance(metric, str):
        blocks = metric
    elif metric == "auto" and isinstance(given, dict):
        blocks = [sites for sites, x in given.items() if _is_covariance(x, sites, target)]
    else:
        return []
    return [_places(owner, sites, target) for sites in blocks]


def _places(owner: str, sites: Sequence[str], target: Target) -> np.ndarray:
    for site in sites:
        if site not in target.slots:
            raise unknown_name(
                f"{owner}: {target.name} has no latent site {site!r}", site, target.slots
            )
    slots = [target.slots[site] for site in sites]
    return np.concatenate([np.arange(slot.start, slot.stop) for slot in slots])


def _is_covariance(x: np.ndarray, sites: tuple[str, ...], target: Target) -> bool:
    """Whether an array given for sites is a matrix of them, not variances of one matrix."""
    if len(sites) > 1:
        return True
    slot = target.slots.get(sites[0])
    return slot is not None and x.ndim == 2 and x.shape != tuple(slot.free_shape)


def metric_of(owner: str, given: InverseMass, form: Form, target: Target) -> Metric:
    """Return the metric of the inverse mass matrix that was given.

    Raises
    ------
    ShapeError, ArgumentError
        If it does not fit the target.
    """
    dim = target.dim
    if isinstance(given, dict):
        return _by_site(owner, given, form, target)
    if given.shape[0] != dim or len(set(given.shape)) > 1:
        raise ShapeError(
            f"{owner}(inverse_mass_matrix=...)",
            expected=f"{dim} unconstrained coordinates",
            got=f"shape {given.shape}",
            fix="give variances of the unconstrained parameters, in the order of the sites",
        )
    if given.ndim == 1:
        return form.of_variance(given)
    if isinstance(form, Dense):
        return DenseMetric.from_inverse_mass(given)
    raise ShapeError(
        f"{owner}(inverse_mass_matrix=...)",
        expected=f"variances, shape ({dim},), for this form of the metric",
        got=f"a matrix, shape {given.shape}",
        fix='say metric="dense", or give the diagonal',
    )


def _by_site(
    owner: str, given: dict[tuple[str, ...], np.ndarray], form: Form, target: Target
) -> BlockMetric | LowRankMetric:
    variance, covariances = np.ones(target.dim), {}
    for sites, x in given.items():
        at = _places(owner, sites, target)
        size = len(at)
        if _is_covariance(x, sites, target):
            expected, fits = f"a ({size}, {size}) matrix", x.shape == (size, size)
            if fits:
                covariances[sites] = x
                variance[at] = np.diag(x)
        else:
            shape = tuple(target.slots[sites[0]].free_shape)
            expected, fits = f"variances of shape {shape}", x.shape in ((), shape)
            if fits:
                variance[at] = np.broadcast_to(x, shape).reshape(-1)
        if not fits:
            raise ShapeError(
                f"{owner}(inverse_mass_matrix=...) for {', '.join(map(repr, sites))}",
                expected=expected,
                got=f"shape {x.shape}",
                fix="give them for the unconstrained values of the site",
            )
    DiagonalMetric.from_inverse_mass(variance)
    if not covariances:
        return form.of_variance(variance)
    if not isinstance(form, Blocks):
        raise ArgumentError(
            f"{owner}(inverse_mass_matrix=...)",
            expected="variances by site, for this form of the metric",
            got="covariances of blocks",
            fix="leave metric out: blocks are kept as they are given",
        )
    found = []
    for at in form.places:
        matching = [
            x for sites, x in covariances.items() if _same(_places(owner, sites, target), at)
        ]
        found.append(matching[0] if matching else np.diag(variance[at]))
    return BlockMetric.from_inverse_mass(variance, form.places, found)


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    return np.array_equal(one, other)
