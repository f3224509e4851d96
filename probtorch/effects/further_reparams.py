"""More reparameterisations: by a transform, a mixture of scales, and noise.

The names are Pyro's and NumPyro's; reparams.py has the handler and says what a `Reparam` is.
"""

from __future__ import annotations

from typing import TypeVar

from probtorch.core.signatures import explain_calls
from probtorch.core.typed import Shape
from probtorch.distributions.directional import ProjectedNormal
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.gamma import Gamma
from probtorch.distributions.heavy_tailed import StudentT
from probtorch.distributions.normal import Normal
from probtorch.distributions.relaxed import RelaxedOneHotCategorical
from probtorch.distributions.transformed import TransformedDistribution
from probtorch.distributions.transforms.directions import Normalize
from probtorch.distributions.transforms.registry import biject_to
from probtorch.distributions.transforms.rotations import DiscreteCosineTransform, HaarTransform
from probtorch.distributions.transforms.transform import Transform
from probtorch.distributions.uniform import Uniform
from probtorch.effects.primitives import sample
from probtorch.effects.reparams import peeled
from probtorch.effects.site import Site
from probtorch.errors import ModelError
from probtorch.ops.arithmetic import sqrt
from probtorch.ops.exponential_sums import softmax
from probtorch.ops.exponentials import log
from probtorch.tensor import Tensor

__all__ = [
    "DiscreteCosineReparam",
    "ExplicitReparam",
    "GumbelSoftmaxReparam",
    "HaarReparam",
    "ProjectedNormalReparam",
    "StudentTReparam",
    "UnitJacobianReparam",
    "needed",
]

_Kind = TypeVar("_Kind", bound=Distribution)


class UnitJacobianReparam:
    """Draw the image of a site under a transform that keeps volumes, and map it back.

    A site with bounds is mapped to the real line first, where what is mixed has none.

    Parameters
    ----------
    transform : Transform
        Of log-determinant 0.
    suffix : str
        The auxiliary site is ``{name}_{suffix}``.
    """

    def __init__(self, transform: Transform, suffix: str = "transformed") -> None:
        self.transform, self.suffix = transform, suffix

    def apply(self, site: Site) -> Tensor:
        """State the transformed site and return its pre-image."""
        fn, transform = site.fn, self.transform
        if len(fn.event_shape) < transform.domain.event_dim:
            raise ModelError(
                f"site {site.name!r} has too few event dims for {transform}",
                expected=f"at least {transform.domain.event_dim}",
                got=f"{len(fn.event_shape)}",
                fix="call to_event(n) on its distribution: what is mixed is one event",
                at=site.location,
            )
        free = biject_to(fn.support)
        parts = [] if free.domain == fn.support else [free.inv]
        image = TransformedDistribution(fn, [*parts, transform])
        value = sample(f"{site.name}_{self.suffix}", image, infer=site.infer)
        value = transform.inv(value)
        return free(value) if parts else value


class DiscreteCosineReparam(UnitJacobianReparam):
    """Draw the cosine amplitudes ``{name}_dct`` of a series instead of the series.

    Parameters
    ----------
    dim : int, below 0
    smooth : float
        1 for Brownian motion, 0 for white noise; see `DiscreteCosineTransform`.
    """

    def __init__(self, dim: int = -1, smooth: float = 0.0) -> None:
        super().__init__(DiscreteCosineTransform(dim, smooth), "dct")


class HaarReparam(UnitJacobianReparam):
    """Draw the wavelet coefficients ``{name}_haar`` of a series instead of the series.

    Parameters
    ----------
    dim : int, below 0
    flip : bool
        Whether to reverse the series first.
    """

    def __init__(self, dim: int = -1, flip: bool = False) -> None:
        super().__init__(HaarTransform(dim, flip), "haar")


class ExplicitReparam:
    """Draw ``{name}_base``, of which the site is the image under a given transform.

    Parameters
    ----------
    transform : Transform
        A bijection; that to the right coordinates makes the base simple, whatever the site's law.
    """

    def __init__(self, transform: Transform) -> None:
        self.transform = transform

    def apply(self, site: Site) -> Tensor:
        """State the base and return its image."""
        base = TransformedDistribution(site.fn, self.transform.inv)
        return self.transform(sample(f"{site.name}_base", base, infer=site.infer))


def needed(site: Site, *kinds: type[_Kind]) -> tuple[_Kind, Shape, int]:
    """Return a site's distribution, which must be one of `kinds`, its batch shape and event dims.

    The last is how many of the batch dims are part of the site's event; see `peeled`.
    """
    base, event_dim = peeled(site.fn)
    if type(base) not in kinds:
        raise ModelError(
            f"site {site.name!r} cannot be reparameterised so",
            expected=" or ".join(f"a {kind.__name__}" for kind in kinds),
            got=type(base).__name__,
            fix="use another reparameterisation for this site",
            at=site.location,
        )
    # A wrapper may have been expanded, the distribution inside not.
    return base, (*site.fn.batch_shape, *site.fn.event_shape[:event_dim]), event_dim


class StudentTReparam:
    """A Student t as a normal whose precision ``{name}_gamma`` is drawn; data may be given."""

    takes_data = True

    def apply(self, site: Site) -> Distribution:
        """State the precision and return the normal distribution."""
        base, rows, event_dim = needed(site, StudentT)
        half = base.df * 0.5
        precision = Gamma(half, half).expand(rows).to_event(event_dim)
        gamma = sample(f"{site.name}_gamma", precision, infer=site.infer)
        return Normal(base.loc, base.scale / sqrt(gamma)).expand(rows).to_event(event_dim)


class ProjectedNormalReparam:
    """A direction as that of a normal vector around the concentration.

    The vector without its mean is the site ``{name}_normal``.
    """

    def apply(self, site: Site) -> Tensor:
        """State the vector and return its direction."""
        base, rows, event_dim = needed(site, ProjectedNormal)
        noise = Normal(0.0, 1.0).expand((*rows, *base._event_shape)).to_event(event_dim + 1)
        x = sample(f"{site.name}_normal", noise, infer=site.infer)
        return Normalize()(x + base.concentration)


class GumbelSoftmaxReparam:
    """A relaxed category from uniform noise, drawn as ``{name}_uniform``."""

    def apply(self, site: Site) -> Tensor:
        """State the noise and return the relaxed category."""
        base, rows, event_dim = needed(site, RelaxedOneHotCategorical)
        shape = (*rows, *base._event_shape)
        noise = Uniform(0.0, 1.0).expand(shape).to_event(event_dim + 1)
        u = sample(f"{site.name}_uniform", noise, infer=site.infer)
        gumbel = -log(-log(u))
        heat = base.temperature
        heat = heat.unsqueeze(-1) if heat.ndim else heat
        return softmax((base.logits + gumbel) / heat, -1)


explain_calls(globals())
