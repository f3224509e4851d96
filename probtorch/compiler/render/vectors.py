"""Vectors of as many numbers as this processor has lanes for, in the function of a nest."""

from probtorch.compiler.lang.nodes import Compare, Load, Shuffle, Value
from probtorch.compiler.lang.types import BYTES, vector
from probtorch.compiler.native import host

__all__ = ["Vectors", "lanes_of"]


def lanes_of(ty: str) -> int:
    """Return how many numbers of a type a vector holds."""
    return host.target().vector_bits // (8 * BYTES[ty])


class Vectors:
    """Writes vectors of numbers of type `ty` in the function `nest`."""

    def __init__(self, nest, ty: str) -> None:
        self.nest, self.ty, self.lanes = nest, ty, lanes_of(ty)
        self.wide = vector(ty, self.lanes)
        self._masks: dict[int, Value] = {}

    def pieces(self, size: int) -> list[tuple[int, int]]:
        """Return where each vector of so many numbers begins, and how many it has."""
        starts = range(0, size, self.lanes)
        return [(first, min(self.lanes, size - first)) for first in starts]

    def zero(self):
        return self.nest.convert(self.nest.value(0.0, self.ty), self.wide)

    def mask(self, count: int) -> Value | None:
        """Return a mask of the first lanes; None if these are all."""
        if count == self.lanes:
            return None
        if count not in self._masks:
            nest, kind = self.nest, vector("i32", self.lanes)
            with nest.at_head():
                numbers = nest.load_at(nest.table(range(self.lanes), "i32").pointer, kind)
                first = nest.convert(nest.value(count, "i32"), kind)
                self._masks[count] = nest.put(Compare("ult", numbers, first))
        return self._masks[count]

    def read(self, place: Value, count: int) -> Value:
        """Return the vector of so many numbers at a place, with zeros behind them."""
        mask = self.mask(count)
        return self.nest.put(Load(place, self.wide, mask, mask and self.zero()))

    def shuffled(self, a, b, places):
        return self.nest.put(Shuffle(a, b, list(places)))

    def turned(self, rows):
        """Return the columns of a square of numbers whose rows are given, a vector each.

        Bit by bit of their numbers, rows change places with columns.
        """
        found, bit, n = list(rows), 1, self.lanes
        while bit < n:
            low = [n + p - bit if p & bit else p for p in range(n)]
            high = [n + p if p & bit else p + bit for p in range(n)]
            for i in range(n):
                if not i & bit:
                    a, b = found[i], found[i + bit]
                    found[i], found[i + bit] = self.shuffled(a, b, low), self.shuffled(a, b, high)
            bit *= 2
        return found
