"""What model statements do and read, told to floors below them.

The compiler has to know whether a function performs statements and what they read; the floor that
performs them says so here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from probtorch.core.rng import Generator

__all__ = ["Surroundings", "surroundings"]


class Surroundings:
    """What model statements do and read, as the compiler has to know; see effects/params.py."""

    def performed(self) -> int:
        """Return how many statements this thread has performed."""
        return 0

    def active(self) -> bool:
        """Whether statements mean something else here than in a plain script."""
        return False

    def roots(self) -> tuple[object, ...]:
        """Return objects whose Python values statements read in a plain script."""
        return ()

    def generator(self) -> Generator | None:
        """Return what draws without a generator of their own come from; None for the default."""
        return None


_surroundings = Surroundings()  # effects/params.py fills the door


def surroundings() -> Surroundings:
    """Return what tells about model statements."""
    return _surroundings
