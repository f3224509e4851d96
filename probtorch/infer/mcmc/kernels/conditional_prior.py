"""The Gaussian prior of some sites of a model, given where all the others are.

In a block of a Gibbs sampler the prior is another one at each step: a latent function's covariance
depends on a length scale that another block has just moved. So mean and draws come from running the
model, as part of the sampler's program: its sites get normal numbers of ours in place of random
ones, zeros for the mean. No covariance is made or factored that the model does not make itself, and
the squared lengths that an ellipse needs are differences of log densities.

The Gaussian is the law of the sites' own distributions, in the model's order, without masks and
scales; whatever else the density has counts as likelihood. gaussian_prior.py has the prior of whole
models, which is one for all steps.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from probtorch.autograd.modes import no_grad
from probtorch.core.dispatch import wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import record, static
from probtorch.diagnostics.findings import InferenceWarning
from probtorch.distributions.source import Source
from probtorch.distributions.transforms.transform import identity_transform
from probtorch.effects.exits import NonlocalExit
from probtorch.effects.runtime import Handler
from probtorch.errors import InferenceError, users_stacklevel
from probtorch.infer.mcmc.kernels.gaussian_prior import TOLERANCE, Ellipse
from probtorch.infer.mcmc.randomness import Key, normals
from probtorch.infer.model_runs import OUTSIDE
from probtorch.infer.potential import ModelTarget, Target
from probtorch.infer.slots import Slot, bijection, innermost
from probtorch.ops.movement import reshape
from probtorch.ops.pieces import cat

if TYPE_CHECKING:
    from probtorch.core.typed import Shape
    from probtorch.effects.site import Site
    from probtorch.tensor import Tensor

__all__ = ["ConditionalPrior", "GaussianGiven"]

# So many draws of a run are looked at when it is over. What is no Gaussian there is mostly far from
# one, and nobody is to be warned of rounding where covariances have become all but singular.
LOOKED_AT, ROUGHLY = 8, 1e-3


@dataclass(frozen=True)
class ConditionalPrior:
    """The prior of some continuous sites of a model, given all others.

    Parameters
    ----------
    target : ModelTarget
    names : tuple of str
        The sites, in the order of their coordinates.
    owner : str
        The kernel that it is for, for messages.
    """

    target: ModelTarget
    names: tuple[str, ...]
    owner: str

    @classmethod
    def of(cls, target: Target, names: Sequence[str], owner: str) -> ConditionalPrior:
        """Return it.

        Raises
        ------
        InferenceError
            If the target is no model.
        """
        if not isinstance(target, ModelTarget):
            raise InferenceError(
                f"{owner}: the prior of {', '.join(map(repr, names))}",
                expected="a model with sample statements",
                got="a density, of which nobody knows what the prior is",
                fix=_fix(owner),
            )
        return cls(target, tuple(names), owner)

    def mean(self, position: TensorBase) -> tuple[TensorBase, TensorBase, int]:
        """Return the mean, the log density there, and how many normal numbers a draw takes.

        Parameters
        ----------
        position : Tensor, shape (dim,)
            Of the whole target; where the sites themselves are there makes no difference.
        """
        noise = _Noise(None)
        block = self._run(position, noise, None)
        return block.position(), block.logdensity, noise.used

    def drawn(self, position: TensorBase, noise: TensorBase) -> tuple[TensorBase, TensorBase]:
        """Return what normal numbers, shape (n,), make a draw of, and the log density there."""
        block = self._run(position, _Noise(noise), None)
        return block.position(), block.logdensity

    def logdensity(self, position: TensorBase, x: TensorBase) -> TensorBase:
        """Return the log density at coordinates `x` of the sites, the others at `position`."""
        return self._run(position, None, x).logdensity

    def _run(
        self, position: TensorBase, noise: _Noise | None, x: TensorBase | None
    ) -> _BlockOfSites:
        slots = self.target.slots
        block = _BlockOfSites([slots[name] for name in self.names], noise, x)
        # What comes behind the last of the sites makes no difference, and need not be defined.
        with contextlib.suppress(NonlocalExit):
            self.target.run_at(position, block)
        return block

    def check_at(self, positions: np.ndarray) -> None:
        """Warn if the prior is no Gaussian at some of a run's positions (chain, draw, dim).

        Where chains began it was one, or there would be no run.
        """
        chains, draws, _ = positions.shape
        for i in range(LOOKED_AT):
            try:
                at = positions[i % chains, draws * (i + 1) // LOOKED_AT - 1]
                self.check(at, tolerance=ROUGHLY)
            except InferenceError as error:
                warnings.warn(
                    f"draws are not of the posterior\n{error}",
                    InferenceWarning,
                    stacklevel=users_stacklevel(),
                )
                return

    def check(self, position: np.ndarray, tolerance: float = TOLERANCE) -> None:
        """Refuse a prior that is no Gaussian, other sites being where they are at a position.

        Draws have to be affine in normal numbers, and the log density quadratic around their mean.

        Raises
        ------
        InferenceError
            If one is not.
        """
        whole, rng = wrap(np.array(position)), np.random.default_rng(0)
        with no_grad(), np.errstate(all="ignore"):
            try:
                mean, top, count = self.mean(whole)
            except _OtherNoise as other:
                got = f"{other.kind}, which draws others than normal numbers"
                raise self._refused(other.site, got) from None
            except OUTSIDE as error:
                got = f"one at whose mean the model is not defined: {error}".partition("\n")[0]
                raise self._refused(self.names[0], got) from None
            loc = mean.array
            a, b = rng.normal(size=(2, count))

            def step(z: np.ndarray) -> np.ndarray:
                return self.drawn(whole, wrap(z))[0].array - loc

            one, two = step(a), step(b)
            off = np.abs(step(a - 3.0 * b) - (one - 3.0 * two))
            size = np.abs(one) + np.abs(two) + np.abs(loc)
            for name, here in self._places():
                if not (off[here] <= tolerance * size[here]).all():
                    raise self._refused(name, "draws that are not linear in normal numbers")

            def square(x: np.ndarray) -> float:
                return 2.0 * float((top - self.logdensity(whole, wrap(loc + x))).array)

            first, second = square(one), square(two)
            pairs = [
                (square(-one), first),
                (square(3.0 * two), 9.0 * second),
                (square(one + two) + square(one - two), 2.0 * (first + second)),
            ]
            if count == loc.size:
                pairs.append((first, float(a @ a)))
            room = 20.0 * tolerance * (first + second + abs(float(top.array)))
        if not all(abs(found - expected) <= room for found, expected in pairs):
            raise self._refused(self.names[0], "a log density that is not quadratic")

    def _places(self) -> list[tuple[str, slice]]:
        """Where each site is among the coordinates of the block."""
        found, at = [], 0
        for name in self.names:
            slot = self.target.slots[name]
            found.append((name, slice(at, at := at + slot.stop - slot.start)))
        return found

    def _refused(self, name: str, got: str) -> InferenceError:
        return InferenceError(
            f"{self.owner}: the prior of {name!r}, in a block of sites",
            expected="a Gaussian of the block, given all other sites",
            got=got,
            fix=_fix(self.owner),
            at=self.target.slots[name].location or None,
        )


def _fix(owner: str) -> str:
    return (
        f"leave the site to NUTS, or give {owner}(model, loc=..., covariance=...) of a Gaussian "
        "near the posterior"
    )


@record
class GaussianGiven:
    """A `ConditionalPrior` at a position, as the kernel of its block is lent it for a step.

    Parameters
    ----------
    position : Tensor, shape (dim,)
        Of the whole target.
    prior : ConditionalPrior
    """

    position: TensorBase
    prior: ConditionalPrior = static()

    def ellipse(self, key: Key, counter: TensorBase, position: TensorBase) -> Ellipse:
        """Return the ellipse through a position of the block and a draw of the Gaussian."""
        prior, whole = self.prior, self.position
        loc, top, count = prior.mean(whole)
        drawn, at_drawn = prior.drawn(whole, normals(key, counter, count))
        here, there = position - loc, drawn - loc
        here2 = 2.0 * (top - prior.logdensity(whole, position))
        there2 = 2.0 * (top - at_drawn)
        # The squared length of their sum has twice their product in it.
        sum2 = 2.0 * (top - prior.logdensity(whole, position + there))
        both = 0.5 * (sum2 - here2 - there2)
        return Ellipse(loc, here, there, here2, both, there2, counter + count)


# ------------------------------------------------------------------------------- runs of the model


class _OtherNoise(Exception):
    """A site draws something else than normal numbers."""

    def __init__(self) -> None:
        super().__init__("other draws than normal ones")
        self.site = self.kind = ""


class _Noise(Source):
    """Normal numbers that are given, one after the other; zeros for None."""

    __slots__ = ("noise", "used")

    def __init__(self, noise: TensorBase | None) -> None:
        self.dtype, self.device = np.dtype(np.float64), None
        self.noise, self.used = noise, 0

    @property
    def generator(self) -> NoReturn:  # type: ignore[override]  # what all other draws begin with
        """Refuse."""
        raise _OtherNoise

    def _scaled(
        self, kind: str, shape: Shape, scale: Tensor | None, shift: Tensor | None
    ) -> Tensor:
        if kind != "normals":
            raise _OtherNoise
        first, self.used = self.used, self.used + math.prod(shape)
        if self.noise is None:
            z = wrap(np.zeros(shape))
        else:
            z = reshape(self.noise[first : self.used], shape)
        z = z if scale is None else z * scale
        return z if shift is None else z + shift


class _BlockOfSites(Handler):
    """Give some sites values, drawn from noise or at coordinates, and sum their log densities."""

    def __init__(self, slots: Sequence[Slot], noise: _Noise | None, x: TensorBase | None) -> None:
        super().__init__()
        self.noise, self.logdensity = noise, wrap(np.zeros(()))
        self.parts: dict[str, TensorBase] = {}
        self.slots = {slot.name: slot for slot in slots}
        self.left = set(self.slots)
        at = 0
        for slot in slots:
            size = slot.stop - slot.start
            if x is not None:
                self.parts[slot.name] = x[at : at + size]
            at += size

    def position(self) -> TensorBase:
        """Return the coordinates of the sites."""
        return cat([self.parts[name] for name in self.slots])

    def on_sample(self, site: Site) -> None:
        """Give the value."""
        slot = self.slots.get(site.name)
        if slot is None or site.observed or site.value is not None:
            return
        transform, fn = bijection(site, slot), site.fn
        if self.noise is not None:
            shape = tuple(site.fn.batch_shape) + tuple(site.fn.event_shape)
            try:
                value = site.fn._sample(self.noise, shape)
            except _OtherNoise as other:
                other.site, other.kind = site.name, type(innermost(site.fn)).__name__
                raise
            free = transform.inv(value)
            self.parts[site.name] = reshape(free, (slot.stop - slot.start,))
        if slot.holes is not None:
            fn = fn.mask(wrap(~slot.holes.known))
        free = reshape(self.parts[site.name], slot.free_shape)
        if transform is identity_transform:
            site.value = free
        else:
            site.value, log_det = transform.call_and_ladj(free)
            self.logdensity = self.logdensity + log_det.sum()
        self.logdensity = self.logdensity + fn.log_prob_inside(site.value).sum()
        self.left.discard(site.name)
        if not self.left:
            raise NonlocalExit(site)
