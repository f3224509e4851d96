"""`AutoGaussian`: a normal whose precision matrix has the model's own pattern of zeros.

Two numbers that meet in no log density of a model are independent given all others, so in a normal
posterior their entry of the precision matrix is zero. structure.py finds which sites each density
is a function of, layout.py which of their rows meet in it. The precision is a sum of one positive
matrix for each such clique of numbers, scattered to their places.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.dtype import float64
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import record, static
from probtorch.core.typed import DTypeLike
from probtorch.distributions import constraints
from probtorch.distributions.multivariate_normal import MultivariateNormal
from probtorch.effects.primitives import param
from probtorch.infer.guides.joint import ScaledGuide
from probtorch.infer.guides.latents import Latent
from probtorch.infer.guides.layout import SiteBlock
from probtorch.infer.guides.structure import factors_of
from probtorch.infer.starts.initialization import Strategy, init_to_median
from probtorch.ops.movement import reshape, unsqueeze
from probtorch.ops.scattering import index_add

__all__ = ["AutoGaussian"]


class AutoGaussian(ScaledGuide):
    """A normal in which numbers that meet in no density of the model are tied by others only.

    Parameters
    ----------
    model : callable
    init_loc_fn : callable
        Where the mean starts; see `AutoGuide`.
    init_scale : float
        Standard deviation to start with, on the unconstrained scale.
    prefix, dtype
        See `AutoGuide`.

    Notes
    -----
    The family of `AutoMultivariateNormal`, with the zeros in the precision matrix that a normal
    posterior of this model has: as exact for such a posterior, and with far fewer numbers to learn
    where the model has plates or chains. A step still costs the cube of the number of latent
    numbers; `AutoStructured` grows linearly with the rows of a plate.

    Parameters are ``auto_loc`` and ``auto_scale`` of shape (dim,), and for each clique of sites
    ``auto_factor.{site}.{site}``, lower triangular matrices (rows, numbers, numbers). The precision
    matrix is ``S^-1 P S^-1``, with S the diagonal matrix of the scales and P the sum of the
    factors' squares; it begins as the identity. What a discrete site ties, which is summed out, is
    one clique. A dependence that no gradient passes is not seen.

    References
    ----------
    Tan and Nott (2018), "Gaussian variational approximation with sparse precision matrices".

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import SVI, AutoGaussian
    >>> from probtorch.optim import Adam
    >>> def walk():
    ...     x = 0.0
    ...     for t in range(3):
    ...         x = probtorch.sample(f"x{t}", dist.Normal(x, 1.0))
    >>> guide = AutoGaussian(walk)
    >>> result = SVI(walk, guide, Adam({"lr": 0.01}), seed=0).run(5, progress_bar=False)
    >>> guide.get_posterior().precision_matrix[0, 2].abs().item() < 1e-9
    True
    """

    def __init__(
        self,
        model: Callable[..., object],
        init_loc_fn: Strategy = init_to_median,
        init_scale: float = 0.1,
        *,
        prefix: str = "auto",
        dtype: DTypeLike = float64,
    ) -> None:
        super().__init__(model, init_loc_fn, init_scale, prefix=prefix, dtype=dtype)
        self._cliques: tuple[_Clique, ...] = ()

    def setup(self, *args: object, **kwargs: object) -> None:
        """Run the model to find its latent sites and which of their numbers meet."""
        if self._cliques:
            return
        super().setup(*args, **kwargs)
        factors, ties = factors_of(self.model, self.latents, args, kwargs, precise=self.precise)
        self._cliques = _cliques(self.latents, [*factors, *ties])

    def distribution(self) -> MultivariateNormal:
        """Return the normal of the vector."""
        n = self.dim
        loc, scale = self._loc_and_scale()
        times = np.zeros(n)
        for clique in self._cliques:
            np.add.at(times, clique.places, 1.0)
        precision = wrap(np.zeros(n * n, self.dtype))
        for clique in self._cliques:
            at = clique.places
            tril = param(
                f"{self.prefix}_factor.{'.'.join(clique.names)}",
                lambda at=at: (np.eye(at.shape[1]) * times[at][:, None] ** -0.5).astype(self.dtype),
                constraints.softplus_lower_cholesky,
            )
            where = (at[:, :, None] * n + at[:, None, :]).reshape(-1)
            precision = index_add(precision, 0, wrap(where), reshape(tril @ tril.mT, (-1,)))
        return _normal(loc, scale, reshape(precision, (n, n)))


def _normal(loc: TensorBase, scale: TensorBase, precision: TensorBase) -> MultivariateNormal:
    unit = MultivariateNormal(loc * 0.0, precision_matrix=precision, validate_args=False)
    return MultivariateNormal(
        loc, scale_tril=unsqueeze(scale, -1) * unit.scale_tril, validate_args=False
    )


# ---------------------------------------------------------------------- which numbers meet


@record
class _Clique:
    """Numbers of the vector that meet in a density: `places`, shape (rows, numbers)."""

    names: tuple[str, ...] = static()
    places: np.ndarray = static()


def _cliques(
    latents: Mapping[str, Latent], factors: Iterable[tuple[frozenset[str], frozenset[str]]]
) -> tuple[_Clique, ...]:
    """Return the largest cliques of the model's densities."""
    found: list[dict[str, SiteBlock]] = []
    # A site without a density of its own has rows nevertheless.
    alone = [(frozenset([n]), frozenset(f.name for f in x.frames)) for n, x in latents.items()]
    for names, plates in (*factors, *alone):
        clique = _blocks(latents, [n for n in latents if n in names], plates)
        if any(_covers(other, clique) for other in found):
            continue
        found = [other for other in found if not _covers(clique, other)] + [clique]
    # Two cliques of the same sites, with other rows apart, are one parameter each.
    labels: dict[tuple[str, ...], int] = {}
    made, starts = [], _starts(latents)
    for clique in found:
        sites = tuple(clique)
        again = labels[sites] = labels.get(sites, 0) + 1
        label = sites if again == 1 else (*sites, str(again))
        made.append(_Clique(label, _places(clique, starts)))
    return tuple(made)


def _blocks(
    latents: Mapping[str, Latent], names: list[str], plates: frozenset[str]
) -> dict[str, SiteBlock]:
    """The blocks of sites as a density in some plates sees them: its rows stay apart."""
    dims: dict[str, set[int | None]] = {}
    for name in names:
        for frame in latents[name].frames:
            dims.setdefault(frame.name, set()).add(frame.dim)
    # Where a plate has another dim at each site its rows are taken together.
    apart = {plate for plate in plates if len(dims.get(plate, ())) == 1}
    return {
        n: SiteBlock.of(latents[n], tuple(f for f in latents[n].frames if f.name in apart))
        for n in names
    }


def _covers(other: dict[str, SiteBlock], clique: dict[str, SiteBlock]) -> bool:
    """Whether all numbers that meet in a clique meet in another."""
    return all(
        name in other and {f.name for f in other[name].local} <= {f.name for f in block.local}
        for name, block in clique.items()
    )


def _starts(latents: Mapping[str, Latent]) -> dict[str, int]:
    """Where the numbers of each site begin in the vector."""
    ends = np.cumsum([0, *(latent.size for latent in latents.values())])
    return {name: int(end) for name, end in zip(latents, ends[:-1], strict=True)}


def _places(clique: dict[str, SiteBlock], starts: Mapping[str, int]) -> np.ndarray:
    parts = []
    for name, block in clique.items():
        numbers = np.arange(block.latent.size).reshape(block.latent.free_shape)
        parts.append(block.laid_out(numbers + starts[name]))
    rows = np.broadcast_shapes(*(part.shape[:-1] for part in parts))
    wide = [np.broadcast_to(part, (*rows, part.shape[-1])) for part in parts]
    return np.concatenate(wide, axis=-1).reshape(math.prod(rows), -1)
