"""What a program needs besides its code, in the disk cache: a recorded graph straight to a call.

An entry is named by the graph (`keys.py`) and says which code runs it (`engine.load_module`) and
where that expects things: sizes of its memory, numbers in the text's order, and which of the
recording's constants and references stand at which place of the pointer table. It holds no data
but those numbers; arrays and tensors come from the recording at hand. It is all JSON, in a file
that `cache` has authenticated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from probtorch.compiler.machine import engine
from probtorch.compiler.native import cache
from probtorch.compiler.native.keys import GraphKey
from probtorch.compiler.nests.lowering import Lowering, arranged

if TYPE_CHECKING:
    from probtorch.compiler.render.llvm import NestPlan
    from probtorch.core.tensor_base import TensorBase

__all__ = ["StoredPlan", "layout_of", "load_plan", "store_plan"]


@dataclass(frozen=True)
class StoredPlan:
    """A `Plan` without the lowering that it was made for; the attributes are the same."""

    inputs: int
    outputs: int
    consts: list[np.ndarray]
    refs: list[TensorBase]
    packed_values: list[np.ndarray]
    scalars: int
    arena: int
    start: dict[str, int]
    tail: int
    table: int
    in_place: list[int]


_SIZES = ("inputs", "outputs", "scalars", "arena", "start", "tail", "table", "in_place")


def layout_of(plan: NestPlan | StoredPlan) -> dict[str, object]:
    """Return the numbers of a plan: what code needs to know of its memory; JSON types only."""
    return {
        **{name: getattr(plan, name) for name in _SIZES},
        "packed": [[x.dtype.str, x.tobytes().hex()] for x in plan.packed_values],
    }


def store_plan(
    key: GraphKey, lowering: Lowering, plan: NestPlan, native: engine.NativeModule
) -> None:
    """Keep the plan of a program that was compiled, where it can be said in terms of its recording.

    Parameters
    ----------
    key : GraphKey
    lowering : Lowering
    plan : Plan
    native : NativeModule
    """
    try:
        consts = [key.numbers[v.id] for v in lowering.const_values]
        refs = [key.numbers[v.id] for v in lowering.ref_values]
    except KeyError:
        return  # a pass has made an array
    facts = {**layout_of(plan), "consts": consts, "refs": refs}
    cache.store(key.name, b"", {"code": native.name, "plan": facts})


def load_plan(key: GraphKey) -> tuple[StoredPlan, engine.NativeModule] | None:
    """Return plan and code of a graph; None if the cache lacks one of them."""
    entry = cache.load(key.name)
    if entry is None:
        return None
    native = engine.load_module(entry.meta["code"])
    if native is None:
        return None
    facts = entry.meta["plan"]
    plan = StoredPlan(
        consts=[arranged(key.given[i].array)[0] for i in facts["consts"]],
        refs=[key.given[i].array for i in facts["refs"]],
        packed_values=[
            np.frombuffer(bytes.fromhex(text), dtype).reshape(()) for dtype, text in facts["packed"]
        ],
        **{name: facts[name] for name in _SIZES},
    )
    return plan, native
