"""Phases: a loop nest cut into pieces that many threads can run without waiting for each other.

On a processor a nest runs in order, so an item may add to memory that the next index adds to as
well. On a GPU its indices run at the same time. `split` therefore cuts a nest where the items of
one index need those of another:

- **map**: elementwise work, gathers, stores, small dot products, running sums, and the reductions
  over the last dims. Each index is one thread's; a reduction is a team's.
- **columns**: sums over leading dims and scaled rows, an output per thread.
- **dot**: long dot products, an output per team.
- **scatter**: stores at indices. Where they are known, the sources of each destination are listed
  when the program is made; where they are not, every destination belongs to one thread, which
  looks at all indices in order.

Values that pass from one phase to another get memory. Sums of many terms are made by slices, added
up in a second pass. All of it depends on shapes alone, never on the device, and nothing is added
atomically: a program gives the same numbers on every run and on every GPU.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from probtorch.compiler.lang.cuda import THREADS
from probtorch.compiler.nests.loops import Mem, Reg

__all__ = ["Phase", "split"]

# Dot products of at least this many terms are made by a team, if there are few of them.
_LONG_DOT, _FEW_DOTS = 256, 16384
# Terms up to which one thread adds up a row by itself; and up to which it does where rows are many.
_SHORT_ROW, _MANY_ROWS, _MEDIUM_ROW = 32, 8192, 256
# Terms per slice of a sum that is cut, and slices at most.
_SLICE, _MAX_SLICES = 4096, 512
# Threads that a sum over leading dims should keep busy, and terms that each should have.
_COLUMN_THREADS, _COLUMN_TERMS = 32768, 64
# Threads that share the destinations of a scattered store whose indices are not known.
_OWNERS = 1024


@dataclass(eq=False)
class Phase:
    """Items that run together.

    Attributes
    ----------
    kind : str
        "fill", "map", "columns", "dot" or "scatter".
    items : list of Item
        For "fill", one pair of buffer and number.
    depth : int
        Of a map phase: its reductions are over the dims from here on.
    rows, length : int
        Sums, and terms of each.
    slices, lanes : int
        Into how many parts each sum is cut; how many threads share a part.
    partial : dict of int to Buffer
        By id of an item, the memory of its parts.
    table : dict
        Of a scattered store: arrays that list the sources of each destination, or owners.
    """

    kind: str
    items: list
    depth: int = 0
    rows: int = 1
    length: int = 1
    slices: int = 1
    lanes: int = 1
    partial: dict = field(default_factory=dict)
    table: dict = field(default_factory=dict)


def split(low, group):
    """Return the phases of a group, in order; gives memory to values that cross between them."""
    phases = [Phase("fill", [pair]) for pair in group.fills if not _overwritten(group, pair[0])]
    if not group.items or 0 in group.domain:
        return phases
    depth = _row_depth(group)
    levels = _levels(low, group, depth)
    by_level = {}
    for item, level in levels:
        by_level.setdefault(level, []).append(item)
    for level in sorted(by_level):
        items = by_level[level]
        if level % 2 == 0:
            phases.append(_map(low, group, items))
        else:
            phases += [_alone(low, group, item) for item in items]
    for phase in phases:
        group.scratch += phase.partial.values()
    return phases


def _overwritten(group, buffer):
    """Whether a fill of a buffer is the start of a sum that writes its buffer anyway."""
    return 0 not in group.domain and any(
        item.root is not None
        and item.root.buffer is buffer
        and (item.kind == "axpy" or (item.kind == "reduce" and item.attrs["depth"] is None))
        for item in group.items
    )


def _row_depth(group):
    """The depth at which most of the reductions of a group begin."""
    depths = [i.attrs["depth"] for i in group.items if i.kind == "reduce"]
    depths = [d for d in depths if d is not None and d < len(group.domain)]
    return max(sorted(set(depths)), key=depths.count) if depths else 0


def _levels(low, group, depth):
    """Pair each item with its level: map phases are even, what stands alone is odd."""
    made, added, out = {}, {}, []
    for item in group.items:
        apart = _stands_alone(low, item, group, depth)
        level = int(apart)
        for x in item.operands:
            if isinstance(x, Reg):
                level = max(level, made[id(x.root)])
        buffer = item.attrs.get("buffer")
        ordered = buffer is not None and (item.attrs.get("mode") == "add" or item.kind == "scatter")
        if id(buffer) in added:
            # What one index adds another may have added to in an earlier item.
            level = max(level, added[id(buffer)] + (0 if apart else 1))
        level += (level + apart) % 2
        if ordered:
            added[id(buffer)] = level
        if item.root is not None:
            made[id(item.root)] = level
        out.append((item, level))
    for item, level in out:
        for x in item.operands:
            if isinstance(x, Reg) and (made[id(x.root)] != level or level % 2):
                low.materialise(x.root)
        if item.kind == "dot" and level % 2:
            low.materialise(item.root)
    return out


def _stands_alone(low, item, group, depth):
    if item.kind == "scatter":
        if "sources" not in item.attrs:
            item.attrs["sources"] = _sources(low, item, group.domain)
        found = item.attrs["sources"]
        return found is None or len(np.unique(found)) != found.size
    if item.kind == "dot":
        return item.attrs["size"] >= _LONG_DOT and math.prod(group.domain) <= _FEW_DOTS
    if item.kind == "reduce":
        at = item.attrs["depth"]
        return at is None or (at != depth and at != len(group.domain))
    return item.kind == "axpy"


def _map(low, group, items):
    """Return a map phase; the sums in it are cut into slices where they are long and few."""
    reduces = [i for i in items if i.kind == "reduce" and i.attrs["depth"] != len(group.domain)]
    if not reduces:
        return Phase("map", items, len(group.domain), math.prod(group.domain))
    phase = Phase("map", items, reduces[0].attrs["depth"])
    phase.rows = math.prod(group.domain[: phase.depth])
    phase.length = math.prod(group.domain[phase.depth :])
    found = any(i.attrs["reduce"] in ("argmax", "argmin") for i in reduces)
    _share(phase, 1 if found else _MAX_SLICES)
    return _with_partials(low, phase, reduces)


def _with_partials(low, phase, items):
    """Give the parts of sums that are cut into slices memory; returns the phase."""
    for item in items if phase.slices > 1 else ():
        size = phase.rows * phase.slices
        phase.partial[id(item)] = low.temporary(item.root.dtype, size)
    return phase


def _share(phase, most):
    """Choose lanes and slices for sums over rows."""
    alone = phase.length <= _SHORT_ROW or (phase.rows >= _MANY_ROWS and phase.length <= _MEDIUM_ROW)
    phase.lanes = 1 if alone else THREADS
    if phase.rows < 64:
        phase.slices = max(1, min(most, phase.length // _SLICE))


def _alone(low, group, item):
    if item.kind == "scatter":
        return _scatter(low, group, item)
    if item.kind == "reduce" and item.attrs["depth"] is not None:
        return _map(low, group, [item])
    if item.kind == "dot":
        phase = Phase("dot", [item], rows=math.prod(group.domain), length=item.attrs["size"])
        _share(phase, _MAX_SLICES)
    else:
        rows = item.attrs["size"] if item.kind == "axpy" else _kept(group, item)
        length = math.prod(group.domain)
        phase = Phase("columns", [item], rows=rows)
        phase.length = length if item.kind == "axpy" else length // rows
        wanted = min(_COLUMN_THREADS // rows, phase.length // _COLUMN_TERMS, _MAX_SLICES)
        phase.slices = max(1, wanted)
    return _with_partials(low, phase, [item])


def _kept(group, item):
    return math.prod(n for n, s in zip(group.domain, item.attrs["strides"], strict=True) if s)


# ------------------------------------------------------------------------------- scattered stores


def _index_dims(item, domain):
    """Dims of the domain along which the destination moves by the indices alone."""
    return [d for d, s in enumerate(item.attrs["strides"]) if not s and domain[d] != 1]


def _sources(low, item, domain):
    """Return the destination of each index of a scattered store, if it is known now."""
    _, *index = item.operands
    if not all(isinstance(x, Mem) and x.buffer.kind in ("const", "packed") for x in index):
        return None
    dims = _index_dims(item, domain)
    shape = tuple(domain[d] for d in dims)
    total = np.zeros(shape, np.int64)
    for x, (size, stride, _, _) in zip(index, item.attrs["wraps"], strict=True):
        if x.buffer.kind == "packed":
            flat = np.atleast_1d(low.packed_values[x.buffer.slot])
        else:
            flat = np.ravel(low.consts[x.buffer.slot])
        at = np.full(shape, x.offset, np.int64)
        for axis, d in enumerate(dims):
            steps = np.arange(shape[axis]) * x.strides[d]
            at += steps.reshape((-1,) + (1,) * (len(shape) - axis - 1))
        values = flat[at].astype(np.int64)
        total += np.where(values < 0, values + size, values) * stride
    return total.ravel()


def _scatter(low, group, item):
    dims = _index_dims(item, group.domain)
    length = math.prod(group.domain[d] for d in dims)
    free = math.prod(group.domain) // length
    phase = Phase("scatter", [item], rows=free, length=length)
    found = item.attrs["sources"]
    if found is None:
        phase.table["owners"] = 1 if free >= _OWNERS else _OWNERS
        phase.table["step"] = math.gcd(*(stride for _, stride, _, _ in item.attrs["wraps"])) or 1
        return phase
    order = np.argsort(found, kind="stable")
    places, starts = np.unique(found[order], return_index=True)
    ends = np.append(starts[1:], order.size)
    if item.attrs["mode"] == "set":
        # The last one wins.
        starts = ends - 1
    for name, array in (("order", order), ("places", places), ("starts", starts), ("ends", ends)):
        phase.table[name] = _constant(low, array)
    phase.rows = free * places.size
    phase.length = length
    if order.size / places.size > 64 and item.attrs["mode"] == "add":
        phase.lanes = THREADS
    return phase


def _constant(low, array):
    """Return a buffer of the program that holds an array of integers."""
    array = np.asarray(array, np.int64)
    low.consts.append(array)
    return low.buffer("const", array.dtype, array.size, len(low.consts) - 1)
