"""Reparameterisations of whole values: parts, series, angles, and products with a likelihood.

The names are Pyro's and NumPyro's; reparams.py has the handler and says what a `Reparam` is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from probtorch.core.signatures import explain_calls
from probtorch.core.typed import Shape
from probtorch.distributions import constraints
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.gaussian_hmm import GaussianHMM
from probtorch.distributions.hidden_markov import HiddenMarkovModel
from probtorch.distributions.linear_hmm import IndependentHMM, LinearHMM
from probtorch.distributions.products import conjugate_update
from probtorch.distributions.transformed import TransformedDistribution
from probtorch.distributions.uniform import ImproperUniform
from probtorch.effects.further_reparams import needed
from probtorch.effects.primitives import factor, sample
from probtorch.effects.reparams import Reparam, peeled
from probtorch.effects.site import Site
from probtorch.errors import ArgumentError, ModelError
from probtorch.ops.pieces import cat
from probtorch.tensor import Tensor

__all__ = ["CircularReparam", "ConjugateReparam", "LinearHMMReparam", "SplitReparam"]


class CircularReparam:
    """Draw an angle as a number of the whole line, ``{name}_unwrapped``, and wrap it.

    The number has a flat density, and the density of the angle is the factor ``{name}_factor``.

    Notes
    -----
    Values lie in [-pi, pi). Every turn has the same density, so the number itself has no
    distribution: look at the angle.
    """

    def apply(self, site: Site) -> Tensor:
        """State the number and the factor, and return the angle."""
        fn = site.fn
        kind = fn.support
        while isinstance(kind, constraints.IndependentConstraint):
            kind = kind.base_constraint
        if not isinstance(kind, constraints.Circular):
            raise ModelError(
                f"site {site.name!r} is no angle",
                expected="a distribution of angles, such as VonMises",
                got=f"{type(fn).__name__} on {fn.support!r}",
                fix="use another reparameterisation for this site",
                at=site.location,
            )
        events = len(fn.event_shape)
        flat = _flat(constraints.real, events, fn.batch_shape, fn.event_shape)
        x = sample(f"{site.name}_unwrapped", flat, infer=site.infer)
        angle = (x + math.pi) % (2.0 * math.pi) - math.pi
        factor(f"{site.name}_factor", fn.log_prob(angle))
        return angle


def _flat(
    base: Constraint, events: int, batch_shape: Sequence[int], event_shape: Sequence[int]
) -> ImproperUniform:
    support = constraints.independent(base, events) if events else base
    return ImproperUniform(support, batch_shape, event_shape)


class SplitReparam:
    """Draw a value in parts along a dim: the sites ``{name}_split_{i}``.

    Other handlers can then treat the parts differently, for example observe one of them, or
    reparameterise the low frequencies of a series and not the high ones.

    Parameters
    ----------
    sections : list of int
        Sizes of the parts.
    dim : int, below 0
        An event dim.

    Notes
    -----
    Parts have flat densities, and the joint density is the factor ``{name}_factor``: inference can
    sample them, the prior alone cannot.
    """

    def __init__(self, sections: Sequence[int], dim: int = -1) -> None:
        if dim >= 0:
            raise ArgumentError(
                "SplitReparam",
                expected="dim, counted from the end",
                got=repr(dim),
                fix="-1 is the last dim",
            )
        self.sections, self.dim = list(sections), dim

    def apply(self, site: Site) -> Tensor:
        """State the parts and the factor, and return the parts joined."""
        fn, name = site.fn, site.name
        shape, kind, events = tuple(fn.event_shape), fn.support, 0
        while isinstance(kind, constraints.IndependentConstraint):
            events, kind = events + kind.reinterpreted_batch_ndims, kind.base_constraint
        fits = len(shape) >= -self.dim and sum(self.sections) == shape[self.dim]
        if not fits or kind.event_dim or events != len(shape):
            raise ModelError(
                f"site {name!r} cannot be split into {self.sections} along dim {self.dim}",
                expected=f"an event dim {self.dim} of size {sum(self.sections)}, and a support "
                "that says of each element where it lies",
                got=f"event shape {shape} on {fn.support!r}",
                fix="call to_event(n) on its distribution, or give other sections",
                at=site.location,
            )
        parts = []
        for i, size in enumerate(self.sections):
            part = [*shape]
            part[self.dim] = size
            flat = _flat(kind, len(shape), fn.batch_shape, part)
            parts.append(sample(f"{name}_split_{i}", flat, infer=site.infer))
        value = cat(parts, self.dim)
        factor(f"{name}_factor", fn.log_prob(value))
        return value


class ConjugateReparam:
    """Draw from the product of the prior and a guess at the likelihood, ``{name}_updated``.

    The guess is divided out again by the factor ``{name}_factor``, so the model stays what it was;
    where the guess is good, the posterior is near the new prior.

    Parameters
    ----------
    guide : Distribution or callable
        A density over the site's value, of the same family (see `conjugate_update`); a function is
        called with the arguments of the model that `reparam` wraps.
    """

    def __init__(self, guide: Distribution | Callable[..., Distribution]) -> None:
        self.guide = guide

    def apply(self, site: Site) -> Tensor:
        """State the updated site and the factor, and return its value."""
        fn, guide = site.fn, self.guide
        if not isinstance(guide, Distribution):
            args, kwargs = site.notes.get("called_with", ((), {}))
            guide = guide(*args, **kwargs)
        _, events = peeled(fn)
        if events and peeled(guide)[1] < events:
            guide = guide.to_event(events - peeled(guide)[1])
        updated, evidence = conjugate_update(fn, guide.expand(tuple(fn.batch_shape)))
        value = sample(f"{site.name}_updated", updated, infer=site.infer)
        factor(f"{site.name}_factor", evidence - guide.log_prob(value))
        return value


_LINEAR: tuple[type[HiddenMarkovModel], ...] = (LinearHMM, IndependentHMM)


class LinearHMMReparam:
    """A linear state space model with other noise as one with normal noise; data may be given.

    Each part of the noise is reparameterised on its own, as the sites ``{name}_init``,
    ``{name}_trans`` and ``{name}_obs`` with what they add; then the density of the series given
    those is that of a Kalman filter.

    Parameters
    ----------
    init, trans, obs : Reparam, optional
        Of the initial state, the noise of the states and that of the values: one that makes the
        noise normal given auxiliary sites, such as `StudentTReparam`. None for noise that is
        normal.
    """

    takes_data = True

    def __init__(
        self,
        init: Reparam | None = None,
        trans: Reparam | None = None,
        obs: Reparam | None = None,
    ) -> None:
        self.init, self.trans, self.obs = init, trans, obs

    def apply(self, site: Site) -> Distribution:
        """State the auxiliary sites of the noise and return the normal model."""
        base, rows, event_dim = needed(site, *_LINEAR)
        return self._of(base, rows, site).to_event(event_dim)

    def _of(self, hmm: HiddenMarkovModel, rows: Shape, site: Site) -> HiddenMarkovModel:
        if isinstance(hmm, IndependentHMM):
            side = (*rows, hmm._event_shape[1])
            return IndependentHMM(self._of(hmm.base_dist, side, site), duration=hmm.duration)
        if not isinstance(hmm, LinearHMM):
            raise _no_linear(site, hmm)
        steps = (hmm._event_shape[0],)
        noise, transforms = hmm._noise(), hmm._transforms()
        parts = (
            ("init", self.init, hmm.initial_dist, rows),
            ("trans", self.trans, hmm.transition_dist, rows + steps),
            ("obs", self.obs, noise, rows + steps),
        )
        if hmm.duration is None and (self.trans is not None or self.obs is not None):
            raise ModelError(
                f"site {site.name!r} does not say how many steps it has",
                expected="a LinearHMM with a duration",
                got="none",
                fix="pass duration=n to it",
                at=site.location,
            )
        first, moves, seen = (
            d if change is None else _normal(site, name, change, d, shape)
            for name, change, d, shape in parts
        )
        matrices = hmm.transition_matrix, hmm.observation_matrix
        made: LinearHMM
        if transforms:
            seen = TransformedDistribution(seen, list(transforms))
            made = LinearHMM(first, matrices[0], moves, matrices[1], seen, duration=hmm.duration)
        else:
            made = GaussianHMM(first, matrices[0], moves, matrices[1], seen, duration=hmm.duration)
        return made.expand(rows)


def _normal(
    site: Site,
    part: str,
    change: Reparam,
    noise: Distribution,
    rows: Shape,
) -> Distribution:
    """Return a part of the noise, which has become normal given the sites it has stated."""
    # Time, and the dims that are events around the model, belong to the noise's event.
    own = len(rows) - len(tuple(site.fn.batch_shape))
    whole = noise.expand(rows).to_event(own)
    inner = Site(
        "sample",
        f"{site.name}_{part}",
        whole,
        infer=site.infer,
        code=site.code,
        instruction=site.instruction,
    )
    made = change.apply(inner)
    if not isinstance(made, Distribution):
        raise ModelError(
            f"the noise {part!r} of site {site.name!r} is not normal after its reparameterisation",
            expected="a reparameterisation that returns a distribution, such as StudentTReparam",
            got=type(change).__name__,
            fix="use another one for this part",
            at=site.location,
        )
    base, events = peeled(made)
    return base.to_event(events - own) if events > own else base


def _no_linear(site: Site, inner: Distribution) -> ModelError:
    return ModelError(
        f"site {site.name!r} cannot be reparameterised so",
        expected="an IndependentHMM of a LinearHMM",
        got=type(inner).__name__,
        fix="use another reparameterisation for this site",
        at=site.location,
    )


explain_calls(globals())
