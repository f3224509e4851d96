"""`TargetBase`: what every target can do, whatever it is made from.

The density as native code, with its gradient and its curvature; variables from unconstrained
coordinates and back; starting points. A target states three things: `logdensity`, `constrain` and
`unconstrain`. potential.py has those that there are.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING
from typing import cast as as_type

import numpy as np
from numpy.typing import ArrayLike

from probtorch.autograd.jacobians import hessian
from probtorch.compiler.density import NativeDensity
from probtorch.core.rng import Generator, default_generator
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import Shape, TensorLike
from probtorch.core.validation import validation_enabled
from probtorch.effects.site import as_value
from probtorch.errors import ModelError, ShapeError
from probtorch.infer.gradient_check import DensityCheck
from probtorch.infer.mapping import DrawMap
from probtorch.infer.names import unknown_name
from probtorch.infer.parts import WHOLE
from probtorch.infer.slots import Slot, slot_values
from probtorch.infer.starts.initialization import Strategy, init_to_uniform, starting_points
from probtorch.ops.movement import reshape
from probtorch.ops.reduction import sum as total

if TYPE_CHECKING:
    from probtorch.infer.potential import Target

__all__ = ["TargetBase"]


class TargetBase(abc.ABC):
    """A log density on R^dim, see `Target`."""

    name = "target"
    parts = WHOLE
    # The GPU that the model's arguments were on, where a run has brought them to the host.
    device: str | None = None

    def __init__(self, dim: int, slots: Mapping[str, Slot]) -> None:
        self.dim, self._shape = dim, (dim,)
        self.slots = dict(slots)
        self.dims: dict[str, tuple[str | None, ...]] = {}
        self.coords: dict[str, list[object]] = {}
        self.observed_data: dict[str, np.ndarray] = {}
        self.constant_data: dict[str, np.ndarray] = {}
        self.discrete_data: frozenset[str] = frozenset()
        self._constrain_map = DrawMap(self._constrain_one)

    def _constrain_one(self, inputs: dict[str, TensorBase]) -> dict[str, TensorBase]:
        with validation_enabled(False):
            return self.constrain(inputs["q"])

    def data_at(self, positions: np.ndarray) -> dict[str, np.ndarray]:
        """Return the data as results show them: nan where they have gaps.

        Parameters
        ----------
        positions : ndarray, shape (..., dim)
            Draws, of which the first and the last are looked at.
        """
        return self.observed_data

    # -------------------------------------------------------------------------------------- density

    @abc.abstractmethod
    def logdensity(self, q: TensorBase) -> TensorBase:
        """Return the log density at `q`, up to a constant.

        Parameters
        ----------
        q : Tensor, shape (dim,), float64

        Returns
        -------
        Tensor, shape (), float64
            Natural log; differentiable in `q`.
        """

    @cached_property
    def density(self) -> NativeDensity:
        """The log density and its gradient as native code; what cannot be compiled runs eagerly."""
        return self._density_of(self.logdensity)

    def _density_of(self, fn: Callable[[TensorBase], TensorBase]) -> NativeDensity:
        return NativeDensity(
            fn,
            self.dim,
            name=f"the log density of {self.name}",
            check=DensityCheck(self.name, self.slots),
        )

    @cached_property
    def curved_density(self) -> NativeDensity:
        """The log density with its Hessian H, as native code: ``log p(q) + sum(M * H(q))``.

        A function of q, and behind it the elements of any matrix M, shape (dim, dim). Its gradient
        in M is H, and in q that of the log density plus the derivatives of the sum: of M all third
        derivatives that a metric made of H needs.
        """
        return NativeDensity(
            self._curved,
            self.dim + self.dim**2,
            name=f"the log density of {self.name}, with its curvature",
        )

    def _curved(self, q_and_matrix: TensorBase) -> TensorBase:
        q, matrix = q_and_matrix[: self.dim], q_and_matrix[self.dim :]
        found = hessian(self.logdensity)(q)
        return self.logdensity(q) + total(matrix * reshape(found, (self.dim**2,)))

    def value_and_grad(self, q: ArrayLike) -> tuple[float, np.ndarray]:
        """Return ``(log density, gradient)`` at an array `q` of shape (dim,).

        Raises
        ------
        ShapeError
            If `q` has another shape.
        """
        # All of this takes a microsecond: what is an array of the right shape is asked no more.
        if q.__class__ is not np.ndarray or q.shape != self._shape:
            q = np.asarray(q, np.float64)
            self._check_point(q.shape)
        return self.density.value_and_grad(q)

    def value_and_grad_many(self, q: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """Return ``(log densities, gradients)`` at the rows of an array, many at a time.

        Parameters
        ----------
        q : array, shape (points, dim)

        Returns
        -------
        values : ndarray, shape (points,)
        gradients : ndarray, shape (points, dim)

        Notes
        -----
        The density is compiled once more, for blocks of up to 256 points; worth it for hundreds of
        points. Large batches are shared out over threads.
        """
        return self.density.value_and_grad_many(np.asarray(q, np.float64))

    def explain(self, *, format: str = "text", profile: bool = False) -> str:
        """Return what the density became in native code; see `NativeDensity.explain`."""
        return self.density.explain(format=format, profile=profile)

    # ------------------------------------------------------------------------------------ variables

    @abc.abstractmethod
    def constrain(self, q: TensorBase) -> dict[str, TensorBase]:
        """Return the variables at `q`: latent sites, then deterministic ones, by name.

        Parameters
        ----------
        q : Tensor, shape (dim,), float64

        Returns
        -------
        dict of str to Tensor
            Differentiable in `q`.
        """

    def constrain_many(self, draws: np.ndarray) -> dict[str, np.ndarray]:
        """Return the variables for many draws, by one compiled loop over them.

        Parameters
        ----------
        draws : ndarray, shape (..., dim)
            For example (chain, draw, dim).

        Returns
        -------
        dict of str to ndarray, each (..., *shape)

        Notes
        -----
        Parameters of the model's distributions are not checked, unlike by `constrain`: draws come
        from where there is a density, and to check them again takes what all of the model takes.
        """
        draws = np.asarray(draws, np.float64)
        if draws.shape[-1:] != (self.dim,):
            raise ShapeError(
                "constrain_many",
                expected=f"draws whose last dim has the target's size {self.dim}",
                got=f"shape {draws.shape}",
                fix="pass unconstrained draws (chain, draw, dim), as the sampler makes them",
            )
        return self._constrain_map({"q": draws}, draws.ndim - 1)

    @abc.abstractmethod
    def unconstrain(self, values: Mapping[str, TensorLike]) -> np.ndarray:
        """Return the point `q` of shape (dim,) at which the variables have the given values, each
        of its site's shape, or one number for all elements.

        Raises
        ------
        ModelError
            If a name is missing or unknown.
        ShapeError
            If a value has another shape, one that would broadcast among them.
        DomainError
            If a value lies outside the support of its site.
        """

    def pack(self, values: Mapping[str, TensorLike]) -> np.ndarray:
        """Return the point `q` of shape (dim,) made of unconstrained values; undoes `unpack`.

        Raises
        ------
        ModelError
            If a name is missing or unknown.
        ShapeError
            If a value has not the unconstrained shape of its site.
        """
        self._check_names(values, "unconstrained values")
        q = np.empty(self.dim)
        for name, slot in self.slots.items():
            array = np.asarray(as_value(values[name], name).array)
            if array.shape != slot.free_shape:
                raise ShapeError(
                    f"unconstrained value of {name!r}",
                    expected=f"shape {slot.free_shape}",
                    got=f"shape {array.shape}",
                    fix="give one chain's unconstrained values, or use unconstrain()",
                )
            q[slot.start : slot.stop] = array.reshape(-1)
        return q

    def unpack(self, q: TensorBase) -> dict[str, TensorBase]:
        """Return the unconstrained values at a Tensor `q` by name, as views."""
        return {name: slot_values(q, slot) for name, slot in self.slots.items()}

    def _check_point(self, shape: Shape) -> None:
        """Refuse a shape that is not a point's: one number would do for all, others be left out."""
        if shape != self._shape:
            raise ShapeError(
                f"a point of {self.name}",
                expected=f"unconstrained values of shape ({self.dim},)",
                got=f"shape {shape}",
                fix="pass one vector, as unconstrain() and pack() return it; for many points there "
                "are value_and_grad_many and constrain_many",
            )

    def _check_names(self, values: Mapping[str, object], what: str) -> None:
        """Refuse unknown and missing names."""
        for name in values:
            if name not in self.slots:
                raise unknown_name(
                    f"{what}: {self.name} has no latent site {name!r}", name, self.slots
                )
        missing = [name for name in self.slots if name not in values]
        if missing:
            raise ModelError(
                f"{what}: no value for site {missing[0]!r}",
                expected=f"values for {', '.join(map(repr, self.slots))}",
                got=f"values for {', '.join(map(repr, values)) or 'none'}",
                fix="add it",
                at=self.slots[missing[0]].location or None,
            )

    # ------------------------------------------------------------------------------ starting points

    def initial(
        self,
        num_chains: int = 1,
        generator: Generator | None = None,
        strategy: Strategy = init_to_uniform,
    ) -> np.ndarray:
        """Return a starting point per chain, at which density and gradient are finite.

        Parameters
        ----------
        num_chains : int
        generator : Generator, optional
            Each chain draws from a child of it, so that a chain starts where it starts whatever the
            number of chains. The default generator if None.
        strategy : callable
            One of `initialization`'s; or one that chooses the points of all chains together, such
            as `init_to_typical_set`.

        Returns
        -------
        ndarray, shape (num_chains, dim)

        Raises
        ------
        InferenceError
            If 100 tries found no such point, with what each site had to say at the last one.
        """
        generator = generator or default_generator
        this = as_type("Target", self)
        return starting_points(this, num_chains, generator, strategy).positions

    def part_that_starts(self) -> tuple[Target, np.ndarray, np.ndarray] | None:
        """Return what strategies for all coordinates together are asked about instead, if anything.

        Returns
        -------
        None, or (Target, ndarray of shape (dim,), ndarray of int)
            The density of some coordinates, the others being at a point; that point; their places.
        """
        return None

    @abc.abstractmethod
    def start(self, strategy: Strategy, generator: Generator) -> np.ndarray:
        """Return the point `q` of shape (dim,) that a strategy, asked site by site, amounts to."""

    def __repr__(self) -> str:
        sites = ", ".join(
            f"{name} {slot.shape}" if slot.shape else name for name, slot in self.slots.items()
        )
        return f"Target({self.name}, dim {self.dim}: {sites})"
