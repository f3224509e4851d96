"""The rows of docs/reference/differences.md: what differs from PyTorch, where, an example."""

import dataclasses
import fnmatch
import re
from pathlib import Path

import numpy as np

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "differences.md"
HEADER = ["id", "functions", "aspects", "conditions", "example", "why"]
ASPECTS = ("refused", "accepted", "form", "shape", "dtype", "value", "gradient", "limit")


def _arrays(call):
    """Return the tensors of a call, and its numbers, as arrays."""
    numbers = [a for a in (*call.args, *call.options.values()) if isinstance(a, float)]
    return [*(leaf.array for leaf in call.leaves()), *map(np.float64, numbers)]


def _any(test):
    return lambda call: any(test(a) for a in _arrays(call))


def _floats(a):
    return a[np.isfinite(a)] if a.dtype.kind == "f" else a


def _asymmetric(a):
    return a.ndim > 1 and not np.array_equal(
        a, np.swapaxes(a, -1, -2), equal_nan=a.dtype.kind == "f"
    )


def _numbers(a):
    if isinstance(a, (list, tuple)):
        return any(map(_numbers, a))
    return isinstance(a, (bool, int, float))


CONDITIONS = {
    "half": _any(lambda a: a.dtype == np.float16),
    "integers": _any(lambda a: a.dtype.kind in "biu"),
    "bool": _any(lambda a: a.dtype.kind == "b"),
    "uint8": _any(lambda a: a.dtype == np.uint8),
    "empty": _any(lambda a: a.size == 0),
    "0-d": _any(lambda a: a.ndim == 0),
    "nan": _any(lambda a: a.dtype.kind == "f" and bool(np.isnan(a).any())),
    "infinite": _any(lambda a: a.dtype.kind == "f" and bool(np.isinf(a).any())),
    "zero": _any(lambda a: bool((a == 0).any())),
    "ties": _any(lambda a: a.size != np.unique(_floats(a)).size),
    "asymmetric": _any(_asymmetric),
    "number": lambda call: _numbers([*call.args, *call.options.values()]),
    "mixed": lambda call: len({leaf.array.dtype for leaf in call.leaves()}) > 1,
}


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of a table of the page."""

    id: str
    functions: tuple
    aspects: tuple
    conditions: tuple
    messages: tuple
    example: str
    why: str

    def names(self, name):
        """Whether the row speaks of a function, named as in the recipes of the sweep."""
        last = name.rpartition(".")[2]
        return any(fnmatch.fnmatchcase(n, f) for f in self.functions for n in (name, last))

    def covers(self, call, aspect, said):
        """Whether the row describes a difference; `said` is the text of both results or errors."""
        return (
            self.names(call.name)
            and aspect in self.aspects
            and all(CONDITIONS[c](call) for c in self.conditions)
            and all(m in said for m in self.messages)
        )


def rows():
    """Return the rows of all tables of the page that have the columns of `HEADER`."""
    out, inside = [], False
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if not line.startswith("|"):
            inside = False
            continue
        cells = [c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]]
        if cells == HEADER:
            inside = True
        elif inside and not set(line) <= set("| -:"):
            if len(cells) != len(HEADER):
                raise ValueError(f"{PAGE.name}: {len(cells)} columns in {line!r}")
            out.append(_row(cells))
    return out


def _row(cells):
    name, functions, aspects, conditions, example, why = cells
    messages = tuple(re.findall(r'"([^"]*)"', conditions))
    words = re.sub(r'"[^"]*"', "", conditions).replace(",", " ").split()
    return Row(
        name.strip("`"),
        tuple(re.findall(r"`([^`]+)`", functions)),
        tuple(aspects.replace(",", " ").split()),
        tuple(words),
        messages,
        example.strip("`").replace("\\|", "|"),
        why,
    )
