"""What a move of `InvolutiveMCMC` is made of: runs, refusals of moves that are none, the Jacobian.

What the user cannot be trusted with is checked at each proposal: that the function is an
involution, that no dimension was lost, and that model and auxiliary model meet just the sites that
they were given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from probtorch.autograd.modes import enable_grad
from probtorch.autograd.tape import grad
from probtorch.backends.registry import to_host
from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.transforms.registry import biject_to
from probtorch.effects.site import Site
from probtorch.errors import InferenceError
from probtorch.infer.sequential.run_course import Running
from probtorch.ops.movement import reshape

__all__ = [
    *("Map", "Recorded", "Values", "check_returns", "check_sites", "leaves_of", "log_det"),
    *("plain", "refuse_data", "tensors_like"),
]

# Differences of what an involution leads back to, relative and absolute, that are rounding.
ROUNDING = 1e-6

Values: TypeAlias = Mapping[str, TensorBase]
# From (run, draws) to (run', draws'), or None where there is nowhere to go.
Map: TypeAlias = Callable[
    [dict[str, TensorBase], dict[str, TensorBase]],
    tuple[Mapping[str, TensorLike], Mapping[str, TensorLike]] | None,
]


class Recorded(Running):
    """A run that keeps the distributions of its latent sites, by which values are told apart."""

    def __init__(self, known: Values) -> None:
        super().__init__(known, None)
        self.laws: dict[str, Distribution] = {}

    def after_sample(self, site: Site) -> None:
        """Keep the distribution, besides the value."""
        super().after_sample(site)
        if not site.observed:
            self.laws[site.name] = site.fn


def _continuous(law: Distribution) -> bool:
    return not getattr(law, "is_discrete", False)


def leaves_of(run: Recorded) -> dict[str, TensorBase]:
    """Return the values of a run, the continuous ones as leaves of a tape."""
    return {
        name: value.detach().clone().requires_grad_() if _continuous(run.laws[name]) else value
        for name, value in run.values.items()
    }


def tensors_like(found: Mapping[str, TensorLike], like: Values) -> dict[str, TensorBase]:
    """Return what an involution gave as tensors, numbers in the dtype of the sites they are of."""
    values: dict[str, TensorBase] = {}
    for name, x in found.items():
        value = as_tensor(x)
        if name in like and value.array.dtype != like[name].array.dtype:
            value = wrap(value.array.astype(like[name].array.dtype))
        values[name] = value
    return values


def plain(values: Values) -> dict[str, TensorBase]:
    """Return values without a tape."""
    return {name: value.detach() for name, value in values.items()}


def refuse_data(helper: Recorded) -> None:
    """Refuse an auxiliary model that observes."""
    if helper.gains:
        raise InferenceError(
            "the auxiliary model of an Involution",
            expected="latent sites only",
            got="an observed site or a factor",
            fix="draw what the involution needs, and no more",
        )


def check_sites(which: str, run: Recorded, given: Values) -> None:
    """Refuse values of sites that a model does not meet, and sites that were not given."""
    lacking = [name for name in run.values if name not in given]
    unused = [name for name in given if name not in run.values]
    if not lacking and not unused:
        return
    said = f"no value for {lacking[0]!r}" if lacking else f"a value for {unused[0]!r}, no site here"
    raise InferenceError(
        f"an Involution, and what {which} makes of it",
        expected=f"values of all sites that {which} meets with them, and of no others: "
        f"{', '.join(map(repr, run.values)) or 'none'}",
        got=said,
        fix="return dict(run) with what is new, and without what is gone; and draws that lead back",
    )


def check_returns(
    involution: Map,
    new: tuple[dict[str, TensorBase], dict[str, TensorBase]],
    was: tuple[Recorded, Recorded],
) -> None:
    """Refuse a function that does not lead back."""
    again = involution(*new)
    found: list[Mapping[str, TensorLike]] = [{}, {}] if again is None else list(again)
    for what, back, run in zip(("site", "draw"), found, was, strict=True):
        wrong = sorted(back.keys() ^ run.values.keys())
        for name, value in run.values.items():
            if name in back:
                one, other = to_host(as_tensor(back[name]).array), to_host(value.array)
                if one.shape != other.shape or not _close(one, other):
                    wrong.append(name)
        if wrong:
            name = wrong[0]
            got = f"{_shown(back.get(name))} in place of {_shown(run.values.get(name))}"
            raise InferenceError(
                "InvolutiveMCMC: a move that does not lead back",
                expected="an involution: applied to its own result it gives run and draws back",
                got="None the second time" if again is None else f"for {what} {name!r} {got}",
                fix="return, besides the new run, the draws that would make the old one of it",
            )


def _close(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two arrays differ by rounding at most; most are equal, which costs less to see."""
    if (one == other).all():
        return True
    return np.allclose(one, other, rtol=ROUNDING, atol=ROUNDING, equal_nan=True)


def _shown(value: object) -> str:
    return "nothing" if value is None else f"{value!s:.40}"


# Leaves, what became of them, and the distributions of both.
_Side: TypeAlias = tuple[
    dict[str, TensorBase], dict[str, TensorBase], dict[str, Distribution], dict[str, Distribution]
]


def log_det(sides: Sequence[_Side]) -> float:
    """Return the log of the absolute determinant of the continuous values that changed.

    A value that was passed on as it is, under whatever name, has a row of a permutation, and is
    left out with its column.
    """
    columns: dict[int, tuple[TensorBase, str, Distribution]] = {}
    for before, _, laws, _ in sides:
        for name, leaf in before.items():
            if _continuous(laws[name]):
                columns[id(leaf)] = leaf, name, laws[name]
    rows: list[TensorBase] = []
    for _, after, _, new_laws in sides:
        for name, value in after.items():
            if _continuous(new_laws[name]) and columns.pop(id(value), None) is None:
                _check_numbers(name, new_laws[name])
                rows.append(value)
    for _, name, law in columns.values():
        _check_numbers(name, law)
    leaves = [leaf for leaf, _, _ in columns.values()]
    size, found = sum(x.array.size for x in leaves), sum(x.array.size for x in rows)
    if size != found:
        raise InferenceError(
            "InvolutiveMCMC: the dimensions of a move",
            expected=f"as many continuous numbers in the new run and draws as in the old: {size}",
            got=str(found),
            fix="draw one auxiliary number for each dimension that the run gains",
        )
    if not size:
        return 0.0
    if not all(x.requires_grad for x in rows):
        return -math.inf
    slopes = np.concatenate([_slopes(x, leaves) for x in rows])
    return float(np.linalg.slogdet(slopes)[1])


def _slopes(x: TensorBase, leaves: Sequence[TensorBase]) -> np.ndarray:
    """The derivatives of all numbers of a value, shape (numbers, numbers of the leaves)."""
    with enable_grad():
        numbers = [x] if x.array.shape == () else list(reshape(x, (x.array.size,)))
    return np.stack([
        np.concatenate([
            to_host(g.array).reshape(-1)
            for g in grad(number, leaves, retain_graph=True, materialize_grads=True)
        ])
        for number in numbers
    ])  # fmt: skip


def _check_numbers(name: str, law: Distribution) -> None:
    """Refuse to change a value whose numbers are not free of each other, as of a simplex."""
    shape = tuple(law.batch_shape) + tuple(law.event_shape)
    free = biject_to(law.support).inverse_shape(shape)
    if math.prod(free) != math.prod(shape):
        raise InferenceError(
            f"InvolutiveMCMC: a move that changes site {name!r}",
            expected=f"{math.prod(shape)} numbers that are free of each other",
            got=f"a {type(law).__name__}, whose values have {math.prod(free)} dimensions",
            fix="draw free numbers in the model, and transform them there",
        )
