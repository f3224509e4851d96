"""Blocks of a Gibbs sampler that a function of the user draws from their conditional distribution.

The function is called while the sampler's program is recorded, with the values of all sites, and
draws as models do. `CountedDraws` lets these draws take their bits from the chain's key and
counter, so that a step stays a pure function of them.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping

from probtorch.core.casting import cast
from probtorch.core.making import as_tensor
from probtorch.core.rng import Generator
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.errors import ArgumentError, ModelError, ShapeError
from probtorch.infer.mcmc.randomness import CountedDraws, Key
from probtorch.infer.mixed import MixedTarget
from probtorch.infer.model_runs import in_float64
from probtorch.ops.arithmetic import where
from probtorch.ops.comparisons import isfinite
from probtorch.ops.movement import expand

__all__ = ["FullConditional", "GivenUpdate", "kept_if_impossible"]


@dataclasses.dataclass(frozen=True, repr=False)
class FullConditional:
    """What updates a block of `Gibbs`: a function that draws its sites given all others.

    Parameters
    ----------
    fn : callable
        ``fn(rng_key=..., gibbs_sites=..., hmc_sites=...)`` with a Generator for its draws and the
        values of the block's and of all other sites, dicts of tensors; returns a dict with new
        values of the block. Written in tensor ops: it becomes part of the sampler's program.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import FullConditional
    >>> def draw(rng_key, gibbs_sites, hmc_sites):
    ...     new = dist.Normal(0.5 * hmc_sites["y"], 0.5).sample(generator=rng_key)
    ...     return {"x": new}
    >>> FullConditional(draw).fn is draw
    True
    """

    fn: Callable[..., Mapping[str, TensorLike]]

    def __post_init__(self) -> None:
        try:
            inspect.signature(self.fn).bind(rng_key=0, gibbs_sites=0, hmc_sites=0)
        except ValueError:
            return  # builtins and the like do not say
        except TypeError as error:
            raise ArgumentError(
                "the function of a block of Gibbs",
                expected="a function of rng_key, gibbs_sites and hmc_sites",
                got=f"{self!r}: {error}",
                fix="write def draw(rng_key, gibbs_sites, hmc_sites): ..., which returns a dict",
            ) from None

    def __repr__(self) -> str:
        return f"FullConditional({getattr(self.fn, '__name__', type(self.fn).__name__)})"


@dataclasses.dataclass(frozen=True, eq=False)
class GivenUpdate:
    """The update of a block by a user's function, for one target.

    Parameters
    ----------
    given : FullConditional
    names : tuple of str
        The block's sites.
    target : MixedTarget
    """

    given: FullConditional
    names: tuple[str, ...]
    target: MixedTarget

    # The same for all chains of a run, so that they have one program.
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GivenUpdate) or self.names != other.names:
            return False
        return self.given is other.given and self.target is other.target

    def __hash__(self) -> int:
        return hash((id(self.given), self.names, id(self.target)))

    def __call__(
        self, key: Key, position: TensorBase, counter: TensorBase
    ) -> tuple[TensorBase, TensorBase, TensorBase]:
        """Return the new position, the first counter that was not used, and whether it is inside.

        Values outside of their supports leave the position as it is.

        Raises
        ------
        ModelError
            If the function does not return the block's sites.
        ShapeError
            If a value has not the shape of its site.
        """
        now = self.target.values_at(position)
        own = {name: now[name] for name in self.names}
        rest = {name: x for name, x in now.items() if name not in self.names}
        with in_float64(), CountedDraws(key, counter) as draws:
            found = self.given.fn(rng_key=Generator(0), gibbs_sites=own, hmc_sites=rest)
        if not isinstance(found, Mapping):
            raise ModelError(
                "the function of a block of Gibbs",
                expected=f"a dict with new values of {', '.join(map(repr, self.names))}",
                got="None" if found is None else type(found).__name__,
                fix=f"write return {{{self.names[0]!r}: value}}",
            )
        if set(found) != set(self.names):
            raise ModelError(
                "the function of a block of Gibbs",
                expected=f"a dict with new values of {', '.join(map(repr, self.names))}",
                got=f"one of {', '.join(map(repr, found)) or 'nothing'}",
                fix="return the sites of the block, all of them and no others",
            )
        new = {name: self._fitting(name, found[name], now[name]) for name in self.names}
        there, inside = self.target.position_of(now | new, now)
        return where(inside, there, position), counter + draws.used, inside

    def _fitting(self, name: str, value: TensorLike, before: TensorBase) -> TensorBase:
        new, shape = as_tensor(value, name), before.array.shape
        if new.array.shape not in ((), shape):
            raise ShapeError(
                f"new value of site {name!r}",
                expected=f"shape {shape}",
                got=f"shape {new.array.shape}",
                fix="return one value per element of the site",
            )
        new = new if new.array.shape == shape else expand(new, shape)
        return new if new.array.dtype == before.array.dtype else cast(new, before.array.dtype)


def kept_if_impossible(
    logdensity: TensorBase, before: TensorBase, position: TensorBase, old: TensorBase
) -> tuple[TensorBase, TensorBase, TensorBase]:
    """Return position and log density, the old ones where the new have none, and whether so."""
    fine = isfinite(logdensity)
    clean = where(fine, position, old)
    return clean, where(fine, logdensity, before), ~fine


explain_calls(globals())
