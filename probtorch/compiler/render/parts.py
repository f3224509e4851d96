"""Which loop nests several threads share, and how they are cut: `plan_parts`.

A nest that takes long enough has one of its dims cut into parts, by its shape alone. Every part is
one call of the nest's function, whatever the number of threads and also where it is one; so no bit
of the result depends on who ran which part, or on how many there were.

A dim may be cut if no two parts write the same element. What is summed over the cut dim (also
products, extremes, scaled rows, indexed additions) each part adds up in memory of its own, which is
joined to the result in the order of the parts (`region.py`); that must be little work beside the
nest itself. Additions to windows that overlap a little (the gradient of ``x[1:] - x[:-1]``) make
two turns: parts with even numbers, then those with odd ones, of which no two touch. Other writes
that may collide (indexed stores, positions of extremes) keep a nest, or a dim of it, in one piece.

Read `render/nest.py` and `render/blocked.py` for how a part is written, `region.py` for its call.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from probtorch.compiler.nests.loops import POINTWISE, Group, Mem, MemoryBuffer
from probtorch.compiler.render.blocked import BLOCK, in_blocks
from probtorch.compiler.render.costs import cost_of
from probtorch.compiler.render.items import kept_strides
from probtorch.compiler.render.runtime import pool

__all__ = ["Own", "Parts", "plan_parts"]

# Nanoseconds of one core from which a nest is cut, and that a part should take. Waking a helper
# takes 5 us (spinning) to 50 us (asleep); taking a part, 0.1 us.
LEAST = 60_000.0
PART = 15_000.0
# Parts at most: enough to keep 64 threads evenly busy.
MOST = 256
# Indices of an innermost dim that a part has at least: its loop should run in vectors.
LEAST_INNER = 256
# Part of the nest's work that joining the parts' own sums may cost; and what an element of one
# costs (set, added to, read and added: nanoseconds).
JOINING, JOIN_ELEMENT = 0.15, 0.6

_JOINED = {"sum": "sum", "add": "sum", "prod": "prod", "amax": "amax", "amin": "amin"}


@dataclass(frozen=True)
class Own:
    """Memory in which each part accumulates what others accumulate too.

    Attributes
    ----------
    target : Buffer
        Where the joined result goes.
    buffer : Buffer
        An array like it for each part, `step` elements apart.
    kind : str
        How to join: "sum", "prod", "amax" or "amin".
    is_total : bool
        Whether a part writes it once (a total in a register) instead of adding to it.
    """

    target: MemoryBuffer
    buffer: MemoryBuffer
    kind: str
    step: int
    is_total: bool


@dataclass(frozen=True)
class Parts:
    """How a nest is cut: dim `dim`, `count` parts of `size` indices (rows in blocks: of blocks); in
    two `turns` where neighbours write the same elements.
    """

    dim: int
    size: int
    count: int
    turns: int = 1
    own: dict[MemoryBuffer, Own] = field(default_factory=dict)


def plan_parts(lowering):
    """Set `parts` of every group that is worth it; must come before memory is planned."""
    if not pool.supported():
        return
    for s in lowering.block.walk():
        if isinstance(s, Group) and s.items and s.domain and 0 not in s.domain:
            s.parts = _cut(s, lowering)


def _cut(group, lowering):
    """Return the best way to cut a group, or None."""
    indices = math.prod(group.domain)
    # Nothing costs more than this per index and item, but for what has a loop of its own.
    longest = max(i.attrs.get("size", i.attrs.get("n", 1) ** 3) for i in group.items)
    if indices * len(group.items) * 200.0 * longest < LEAST:
        return None
    cost = indices * cost_of(group)
    if cost < LEAST:
        return None
    best, most = None, 1
    for dim in range(len(group.domain)):
        shared = _shared(group, dim)
        if shared is None:
            continue
        count = _count(group, dim, shared, cost)
        if count > most:
            best, most = (dim, shared), count
        if most >= 32:
            break  # outer dims first: their parts are in one piece
    if best is None:
        return None
    dim, shared = best
    steps = _steps(group, dim)
    size = -(-steps // most)
    count = -(-steps // size)
    own = {}
    for target, (kind, is_total) in shared.own.items():
        # Parts have cache lines of their own, but for single numbers, which are written once.
        line = max(1, 64 // target.dtype.itemsize)
        step = -(-target.numel // line) * line if target.numel > 1 else 1
        dtype = target.dtype
        if is_total and kind == "sum" and dtype == np.float32:
            # Joined and then rounded once: totals of 2**24 have no room for odd numbers.
            dtype = np.dtype(np.float64)
        buffer = lowering.buffer("arena", dtype, count * step)
        group.scratch.append(buffer)
        own[target] = Own(target, buffer, kind, step, is_total)
    return Parts(dim, size, count, 2 if shared.reach else 1, own)


def _count(group, dim, shared, cost):
    """How many parts a cut of `dim` gives."""
    steps, reach = _steps(group, dim), shared.reach
    if in_blocks(group):
        reach = -(-reach // BLOCK)
    elif dim == len(group.domain) - 1:
        reach = max(reach, LEAST_INNER)
    joined = sum(b.numel for b in shared.own)
    wanted = min(cost / PART, MOST)
    if joined:
        wanted = min(wanted, JOINING * cost / (JOIN_ELEMENT * joined))
    return min(steps // max(reach, 1), int(wanted))


def _steps(group, dim):
    """How many steps a cut goes between: indices, or blocks of rows."""
    return group.domain[0] // BLOCK if in_blocks(group) else group.domain[dim]


# ---------------------------------------------------------------------------- what parts may share


@dataclass(frozen=True)
class _Shared:
    """What parts have for themselves, as {buffer: (how they are joined, whether it is a total)},
    and how many indices of the cut dim apart two of them may still write the same element.
    """

    own: dict[MemoryBuffer, tuple[str, bool]]
    reach: int = 0


@dataclass(frozen=True)
class _Access:
    """A write: its offset, (stride, size, whether this dim is cut) for each dim it moves along, and
    whether it adds to what is there.
    """

    offset: int
    moves: tuple[tuple[int, int, bool], ...]
    adds: bool = False

    def span(self, cut):
        """First and last element it reaches from its offset along dims that are cut, or not."""
        reach = [s * (n - 1) for s, n, is_cut in self.moves if is_cut == cut]
        return sum(min(0, r) for r in reach), sum(max(0, r) for r in reach)


def _shared(group, dim):
    """Return what parts along `dim` share and must not, a `_Shared`; None if the dim must not be
    cut.
    """
    stores, sums, totals = {}, {}, {}
    for item in group.items:
        a, root = item.attrs, item.root
        if item.kind == "reduce":
            depth = a["depth"]
            if depth is None and not a["strides"][dim]:
                sums.setdefault(root.buffer, []).append(a["reduce"])
            elif depth is not None and depth <= dim:
                totals.setdefault(root.buffer, []).append(a["reduce"])
            else:
                _note(stores, group, dim, root.buffer, 0, a["strides"])
        elif item.kind == "axpy":
            sums.setdefault(root.buffer, []).append("sum")
        elif item.kind == "scatter":
            sums.setdefault(a["buffer"], []).append("add" if a["mode"] == "add" else None)
        elif item.kind == "scan":
            _note(stores, group, dim, a["buffer"], 0, a["strides"], [(a["out_step"], a["size"])])
        elif "out_steps" in a:
            inner = [(step, a["n"]) for step in a["out_steps"]]
            _note(stores, group, dim, a["buffer"], 0, a["strides"], inner)
        elif item.kind == "store":
            collides = not a["strides"][dim] if a["strides"] else True
            if a["mode"] == "add" and collides:
                sums.setdefault(a["buffer"], []).append("add")
            else:
                adds = a["mode"] == "add"
                _note(stores, group, dim, a["buffer"], a["offset"], a["strides"], adds=adds)
        elif root is not None and root.buffer is not None:
            _note(stores, group, dim, root.buffer, 0, kept_strides(root.shape))
    if not _reads_are_apart(group, dim, stores, sums, totals):
        return None
    reach = 0
    for accesses in stores.values():
        if not _is_exclusive(accesses):
            overlap = _reach(accesses)
            if overlap is None:
                return None
            reach = max(reach, overlap)
    own = _joins(stores, sums, totals)
    return None if own is None else _Shared(own, reach)


def _note(stores, group, dim, buffer, offset, strides, inner=(), adds=False):
    access = _access(group, dim, offset, strides, inner, adds)
    stores.setdefault(buffer, set()).add(access)


def _access(group, dim, offset, strides, inner=(), adds=False):
    moves = [(s, n, d == dim) for d, (s, n) in enumerate(zip(strides, group.domain, strict=False))]
    if len(moves) <= dim:
        moves.append((0, group.domain[dim], True))
    moves += [(s, n, False) for s, n in inner]
    return _Access(offset, tuple(moves), adds)


def _joins(stores, sums, totals):
    """Decide how the parts' own sums are joined; None where that cannot be."""
    out = {}
    for is_total, found in ((False, sums), (True, totals)):
        for buffer, kinds in found.items():
            known = {_JOINED.get(kind) for kind in kinds}
            alone = buffer not in stores and buffer not in out
            if None in known or len(known) > 1 or not alone or (is_total and len(kinds) > 1):
                return None
            out[buffer] = (known.pop(), is_total)
    return out


def _reads_are_apart(group, dim, stores, *sums):
    """Whether no item reads from memory what the nest writes, except exactly where it writes."""
    accumulated = {b for found in sums for b in found}
    for item in group.items:
        for x in item.operands:
            if not isinstance(x, Mem):
                continue
            if x.buffer in accumulated:
                return False
            if x.buffer in stores:
                here = {_access(group, dim, x.offset, x.strides)}
                if item.kind not in POINTWISE or stores[x.buffer] != here:
                    return False
    return True


def _is_exclusive(accesses):
    """Whether parts along the cut dim never write the same element of a buffer."""
    clusters = []
    for access in sorted(accesses, key=lambda a: _range(a)[0]):
        low, high = _range(access)
        if clusters and low <= clusters[-1][0]:
            top, members = clusters.pop()
            clusters.append((max(top, high), [*members, access]))
        else:
            clusters.append((high, [access]))
    return all(_is_apart(members) for _, members in clusters)


def _range(access):
    (a, b), (c, d) = access.span(False), access.span(True)
    return access.offset + a + c, access.offset + b + d


def _reach(accesses):
    """From how many indices of the cut dim on writes never meet, if all of them are additions;
    None if there is no such number, or order matters.
    """
    steps = {s for access in accesses for s, _, is_cut in access.moves if is_cut}
    if len(steps) > 1 or 0 in steps or not all(access.adds for access in accesses):
        return None
    (step,) = steps
    low, high = _inner_range(accesses)
    return (high - low) // abs(step) + 1


def _inner_range(accesses):
    """First and last element that one index of the cut dim reaches, at index 0."""
    low = min(access.offset + access.span(False)[0] for access in accesses)
    return low, max(access.offset + access.span(False)[1] for access in accesses)


def _is_apart(accesses):
    """Whether writes that may meet do so only within one index of the cut dim."""
    steps = {s for access in accesses for s, _, is_cut in access.moves if is_cut}
    if len(steps) > 1 or 0 in steps:
        return False
    (step,) = steps
    low, high = _inner_range(accesses)
    if abs(step) > high - low:
        return True
    # All else moves by multiples of a number that the cut dim does not reach.
    first = accesses[0]
    others = [s for access in accesses for s, n, is_cut in access.moves if n > 1 and not is_cut]
    unit = math.gcd(*others, *(access.offset - first.offset for access in accesses))
    (count,) = {n for s, n, is_cut in first.moves if is_cut}
    if abs(step) * (count - 1) < unit:
        return True
    # Each index goes elsewhere: strides in order of size, each larger than what is below it.
    if len(accesses) > 1:
        return False
    below = 0
    for s, n, _ in sorted(accesses[0].moves, key=lambda move: abs(move[0])):
        if s == 0 and n > 1:
            continue  # along such a dim it writes the same element again, in the same part
        if abs(s) <= below:
            return False
        below += abs(s) * (n - 1)
    return True
