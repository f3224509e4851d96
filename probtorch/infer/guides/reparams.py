"""Reparameterisations by a fitted guide: samplers then work in coordinates where it is simple.

`NeuTraReparam` takes a guide over all numbers as one vector, `StructuredReparam` an
`AutoStructured`. Either draws the guide's noise instead of the sites, and sends it through the map
that the guide has learned; the density is that of the model, with the map's Jacobian. Where the
guide is good, what is left is nearly a standard normal.

Parameters of the guide are those it has when the reparameterisation is made.
"""

from __future__ import annotations

import abc
import contextlib
import threading
from collections.abc import Callable, Iterator

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.rng import Generator
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.distributions.distribution import Distribution, Independent
from probtorch.distributions.formulas import sum_rightmost
from probtorch.distributions.multivariate_normal import MultivariateNormal
from probtorch.distributions.normal import Normal
from probtorch.distributions.transformed import TransformedDistribution
from probtorch.distributions.transforms.scalar import AffineTransform
from probtorch.distributions.transforms.transform import ComposeTransform, Transform
from probtorch.distributions.transforms.vector import LowerCholeskyAffine
from probtorch.effects.handlers import block, substitute, trace
from probtorch.effects.plates import plate
from probtorch.effects.primitives import factor, sample
from probtorch.effects.reparams import Reparam, reparam
from probtorch.effects.runtime import STATE, Handler, Placement, outside
from probtorch.effects.site import Site, as_value
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer.guides.base import AutoGuide, off_tape
from probtorch.infer.guides.joint import AutoContinuous
from probtorch.infer.guides.low_rank import LowRankNormal
from probtorch.infer.guides.structured import AutoStructured
from probtorch.ops.cholesky_factors import cholesky
from probtorch.ops.diagonals import diag_embed

__all__ = ["NeuTraReparam", "StructuredReparam"]


class _GuideReparam(abc.ABC):
    """What reparameterisations by a guide share: one draw for all sites, shared out by name."""

    def __init__(self, guide: AutoGuide) -> None:
        self.guide = guide
        # What is left to share out in the run at hand; chains run in threads.
        self._run = threading.local()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.guide).__name__})"

    def __getstate__(self) -> dict[str, object]:
        return {n: v for n, v in self.__dict__.items() if n != "_run"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._run = threading.local()

    def reparam(self, fn: Callable[..., object] | None = None) -> reparam:
        """Return a model whose sites the guide has seen are reparameterised.

        Parameters
        ----------
        fn : callable, optional
            The model; without it the handler is a context manager.
        """
        return reparam(fn, config=self._config)

    def _config(self, site: Site) -> Reparam | None:
        known = site.value is None and site.name in self.guide.latents
        return self if known else None

    # Data, and what the guide does not know, stay as they are.
    takes_data = True
    is_joint = True

    def apply(self, site: Site) -> TensorBase | None:
        """State the guide's noise at the first site of a run, and return the site's value."""
        if self._config(site) is None:
            return None
        waiting: dict[str, TensorBase] = getattr(self._run, "waiting", {})
        if site.name not in waiting:
            with _no_plates():
                waiting = self._run.waiting = self._drawn(site)
        latent, free = self.guide.latents[site.name], waiting.pop(site.name)
        value, log_det = latent.transform.call_and_ladj(free)
        dims = log_det.array.ndim - (value.array.ndim - latent.event_dim)
        density = site.fn.log_prob(value) + sum_rightmost(log_det, dims)
        factor(f"{site.name}_density", density)
        return value

    @abc.abstractmethod
    def _drawn(self, site: Site) -> dict[str, TensorBase]:
        """State the noise and its factor, and return the unconstrained value of each site."""


@contextlib.contextmanager
def _no_plates() -> Iterator[None]:
    """Context manager: what is stated belongs to no plate of the model."""
    before = STATE.plates
    STATE.plates = Placement()
    try:
        yield
    finally:
        STATE.plates = before


class NeuTraReparam(_GuideReparam):
    """Draw all sites as the image of one normal vector under the map of a fitted guide.

    Parameters
    ----------
    guide : AutoContinuous
        One that has been fitted: `AutoIAFNormal`, `AutoMultivariateNormal` or another over one
        vector, of the same model with the same plates.

    Raises
    ------
    InferenceError
        If the guide has not met its model.

    Notes
    -----
    The vector is the site ``{name}_shared_latent``, named after the first site of the model. It has
    no density of its own: the factor ``{name}_shared_density`` has the Jacobian, and each site a
    factor ``{name}_density``.

    References
    ----------
    Hoffman, Sountsov, Dillon, Langmore, Tran and Vasudevan (2019), "NeuTra-lizing bad geometry in
    Hamiltonian Monte Carlo using neural transport".

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import MCMC, NUTS, SVI, AutoMultivariateNormal
    >>> from probtorch.optim import Adam
    >>> def model():
    ...     x = probtorch.sample("x", dist.Normal(0.0, 1.0))
    ...     probtorch.sample("y", dist.Normal(x, 0.01))
    >>> guide = AutoMultivariateNormal(model)
    >>> result = SVI(model, guide, Adam({"lr": 0.05}), seed=0).run(5, progress_bar=False)
    >>> neutra = NeuTraReparam(guide)
    >>> mcmc = MCMC(NUTS(neutra.reparam(model)), num_samples=500, seed=1, progress_bar=False)
    >>> sorted(mcmc.run().posterior)
    ['x', 'x_shared_latent', 'y']
    """

    guide: AutoContinuous

    def __init__(self, guide: AutoContinuous) -> None:
        if not isinstance(guide, AutoContinuous):
            raise _other_guide("NeuTraReparam", "a guide over one vector, AutoContinuous", guide)
        super().__init__(guide)
        self._map = standardised(guide.get_posterior())

    def transform_sample(self, latent: TensorLike) -> dict[str, TensorBase]:
        """Return the values of the model's sites for draws of the normal vector.

        Parameters
        ----------
        latent : Tensor, shape (..., dim)

        Returns
        -------
        dict of str to Tensor, each (..., *shape)
        """
        return self.guide._constrained(self._map(as_value(latent, "latent")))

    def _drawn(self, site: Site) -> dict[str, TensorBase]:
        noise = Normal(wrap(np.zeros(self.guide.dim)), 1.0).to_event(1).mask(False)
        z = sample(f"{site.name}_shared_latent", noise)
        x, log_det = self._map.call_and_ladj(z)
        factor(f"{site.name}_shared_density", log_det)
        return self.guide._cut(x)


class StructuredReparam(_GuideReparam):
    """Draw each site as the image of normal noise under the map of a fitted `AutoStructured`.

    Parameters
    ----------
    guide : AutoStructured
        One that has been fitted, of the same model with the same plates; its conditionals are
        "normal" or "mvn".

    Raises
    ------
    InferenceError
        If the guide has not met its model.

    Notes
    -----
    The noise of a site is the site ``{name}_aux``. It has no density of its own: the factor
    ``{name}_aux_density`` has the Jacobian, and each site a factor ``{name}_density``.
    """

    guide: AutoStructured

    def __init__(self, guide: AutoStructured) -> None:
        if not isinstance(guide, AutoStructured):
            raise _other_guide("StructuredReparam", "an AutoStructured", guide)
        super().__init__(guide)
        with guide._asked(), block(), trace(param_only=True) as met:
            guide.free_draws((), Generator(0))
        for name, kind in guide.conditionals.items():
            if kind not in ("normal", "mvn"):
                raise ArgumentError(
                    f"StructuredReparam: the guide's site {name!r}",
                    expected='the conditional "normal" or "mvn", which is a map of normal noise',
                    got=repr(kind),
                    fix="fit a guide with conditionals='mvn'",
                )
        self._parameters = {name: off_tape(site.value) for name, site in met.items()}

    def _drawn(self, site: Site) -> dict[str, TensorBase]:
        guide, away = self.guide, {}
        plates = {
            f.name: plate(f.name, f.full_size, dim=f.dim, coords=f.coords)
            for latent in guide.latents.values()
            for f in latent.frames
        }
        hidden = block(hide_fn=lambda site: site.kind in ("param", "plate"))
        with hidden, substitute(data=self._parameters), _Standardised():
            return {name: guide._free(name, plates, away) for name in guide._blocks}


class _Standardised(Handler):
    """State the noise of a guide's helper sites as standard normal, and map it."""

    def on_sample(self, site: Site) -> None:
        fn, change = site.fn, standardised(site.fn)
        noise = Normal(wrap(np.zeros((*fn.batch_shape, *fn.event_shape))), 1.0)
        with outside(self):
            z = sample(site.name, noise.to_event(len(fn.event_shape)).mask(False))
            site.value, log_det = change.call_and_ladj(z)
            factor(f"{site.name}_density", log_det)
        site.stop = True


def standardised(fn: Distribution) -> Transform:
    """Return the map from standard normal noise to draws of a guide's distribution."""
    if isinstance(fn, TransformedDistribution):
        return ComposeTransform([standardised(fn.base_dist), *fn.transforms])
    if isinstance(fn, MultivariateNormal):
        return LowerCholeskyAffine(fn.loc, fn.scale_tril)
    if isinstance(fn, LowRankNormal):
        few = fn.cov_factor
        return LowerCholeskyAffine(fn.loc, cholesky(few @ few.mT + diag_embed(fn.cov_diag)))
    if isinstance(fn, Independent) and isinstance(fn.base_dist, Normal):
        base = fn.base_dist
        return AffineTransform(base.loc, base.scale, fn.reinterpreted_batch_ndims)
    raise InferenceError(
        "reparameterisation by a guide",
        expected="a guide whose draws are a map of normal noise",
        got=f"one that draws from {type(fn).__name__}",
        fix="fit AutoMultivariateNormal, AutoIAFNormal or AutoStructured",
    )


def _other_guide(owner: str, expected: str, guide: object) -> ArgumentError:
    return ArgumentError(
        owner,
        expected=expected,
        got=type(guide).__name__,
        fix="fit such a guide with SVI first",
    )


explain_calls(globals())
