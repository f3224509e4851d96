"""Chains of one kind as rows of arrays: `ChainStack`, and records of one kind, `Stacked`.

A thousand chains are a dozen arrays; a `Chain` of its own is made where one is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.tree import Structure, flatten, unflatten
from probtorch.core.typed import Tree

if TYPE_CHECKING:
    from probtorch.compiler.density import DensityContext, NativeDensity
    from probtorch.infer.mcmc.chunk import Chain
    from probtorch.infer.mcmc.warm_up.adaptation import Tuner

__all__ = ["ChainStack", "Stacked"]


class Stacked:
    """Records of one kind as one, whose leaves are stacked.

    Parameters
    ----------
    structure
        Of one.
    leaves : list of ndarray, each (chains, *shape)
    """

    def __init__(self, structure: Structure, leaves: list[np.ndarray]) -> None:
        self.structure, self.leaves = structure, leaves

    @classmethod
    def of(cls, values: Sequence[object]) -> Stacked:
        """Return some records, copied."""
        parts, structures = zip(*map(flatten, values))
        return cls(structures[0], [np.stack([x.array for x in leaf]) for leaf in zip(*parts)])

    def __getitem__(self, row: int) -> Tree:
        if self.structure == ("leaf",):
            return wrap(np.array(self.leaves[0][row]))
        return unflatten(self.structure, [wrap(np.array(x[row])) for x in self.leaves])

    def whole(self) -> Tree:
        """Return them as one record."""
        return unflatten(self.structure, [wrap(x) for x in self.leaves])


class ChainStack:
    """Chains as the rows of arrays.

    Parameters
    ----------
    chain : Chain
        One of them, which says what they are like.
    leaves : list of ndarray
        Of all of them; kept, not copied.
    made_in : DensityContext, optional
        Of the density that they were made with, kept alive: programs are recorded with it.
    learns : str or None
        The field of the kernel that their learners set.

    Attributes
    ----------
    context : DensityContext or None
        In which all of them evaluate the density, if they go together.
    """

    context: DensityContext | None = None

    def __init__(
        self,
        chain: Chain,
        leaves: list[np.ndarray],
        made_in: DensityContext | None = None,
        learns: str | None = None,
    ) -> None:
        self.leaves, self.learns, self._made_in = leaves, learns, made_in
        self.density: NativeDensity | None = None if made_in is None else made_in.density
        self.structure = flatten(chain)[1]
        self.at: Chain = unflatten(self.structure, range(len(leaves)))
        # Of the kernel: what each field is like, and where its leaves are.
        self._fields: dict[str, tuple[Structure, range]] = {}
        at = 0
        for name in chain.kernel.__tree_fields__:
            parts, structure = flatten(getattr(chain.kernel, name))
            self._fields[name] = structure, range(at, at := at + len(parts))
        self.of_kernel = at
        self._settled: dict[str, np.ndarray] | None = None

    def __len__(self) -> int:
        return len(self.leaves[0])

    # ---------------------------------------------------------------------------------- what is set

    def set(self, name: str, value: float) -> None:
        """Set a field of all kernels to a number."""
        self.put(name, [np.asarray(value)])

    def put(self, name: str, leaves: Sequence[np.ndarray], rows: np.ndarray | None = None) -> None:
        """Set a field of all kernels, or of some, to records whose leaves are stacked."""
        for place, column in zip(self._fields[name][1], leaves, strict=True):
            self.leaves[place][... if rows is None else rows] = column

    def refocus(self) -> None:
        """Have all tuners begin to settle; see `Tuner.refocused`."""
        tuner = self.tuners()
        if tuner is not None:
            for place, leaf in zip(flatten(self.at.tuner)[0], flatten(tuner.refocused())[0]):
                self.leaves[place][...] = leaf.array

    def settle(self) -> None:
        """Have all kernels keep what their tuners came to."""
        for name, value in self.settled().items():
            self.put(name, [value])

    # ------------------------------------------------------------------------------- what there is

    def settled(self) -> dict[str, np.ndarray]:
        """Return what tuners would have fields of the kernels be after warm-up, all chains'."""
        tuner = self.tuners()
        return {} if tuner is None else {n: x.array for n, x in tuner.settled().items()}

    def tuners(self) -> Tuner | None:
        """The tuners as one, whose leaves are stacked."""
        places, structure = flatten(self.at.tuner)
        return Stacked(structure, [self.leaves[i] for i in places]).whole()

    def field(self, name: str) -> Stacked:
        """Return a field of the kernels as it stands."""
        structure, places = self._fields[name]
        return Stacked(structure, [self.leaves[i] for i in places])

    def has(self, name: str) -> bool:
        """Whether kernels have a field of that name."""
        return name in self._fields

    @property
    def size(self) -> int:
        """Numbers in a position."""
        place: int = self.at.state.position  # type: ignore[assignment]  # a tree of places
        return self.leaves[place][0].size

    def position(self, row: int) -> np.ndarray:
        """Return where a chain stands, a copy."""
        place: int = self.at.state.position  # type: ignore[assignment]  # a tree of places
        return np.array(self.leaves[place][row])

    def chain(self, row: int) -> Chain:
        """Return a chain as it stands, a copy."""
        found: Chain = Stacked(self.structure, self.leaves)[row]
        return found
