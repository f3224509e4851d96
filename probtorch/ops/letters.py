"""Equations of Einstein summation: which letters stand where, and the plan of opt_einsum."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import EllipsisType

from probtorch.core.late import opt_einsum
from probtorch.errors import ArgumentError

__all__ = ["lettered", "plan_of"]


@functools.lru_cache(256)
def plan_of(
    equation: str, *shapes: tuple[int, ...]
) -> tuple[list[str], str, list[tuple[int, ...]]]:
    """Return the letters of operands and result, and which operands to contract, step by step."""
    inputs, output, _ = opt_einsum.parser.parse_einsum_input((equation, *shapes), shapes=True)
    return inputs.split(","), output, opt_einsum.contract_path(equation, *shapes, shapes=True)[0]


def lettered(arguments: tuple[object, ...]) -> tuple[str, tuple[object, ...]]:
    """Return equation and operands of the form that has lists of numbers behind each operand."""
    n = len(arguments) // 2 * 2
    lists: list[Sequence[int | EllipsisType]] = []
    for dims in (*arguments[1:n:2], *arguments[n:]):
        if not isinstance(dims, (list, tuple)) or not all(
            d is Ellipsis or (isinstance(d, int) and 0 <= d < 52) for d in dims
        ):
            raise ArgumentError(
                "einsum",
                expected="behind each operand the list of its dims, of numbers from 0 to 51 or ...",
                got=f"{dims!r}"[:80],
                fix='write einsum(x, [0, 1], y, [1, 2], [0, 2]), or einsum("ij,jk->ik", x, y)',
            )
        lists.append(dims)
    if len(arguments) == n:
        found = [d for dims in lists for d in dims]
        free = sorted(d for d in found if isinstance(d, int) and found.count(d) == 1)
        lists.append([*[Ellipsis] * (Ellipsis in found), *free])
    letter = lambda d: "..." if d is Ellipsis else opt_einsum.get_symbol(d)
    words = ["".join(map(letter, dims)) for dims in lists]
    return f"{','.join(words[:-1])}->{words[-1]}", arguments[:n:2]
