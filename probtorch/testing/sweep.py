"""Test cases for every registered op: the inputs, and how to run op and reference on them.

Elementwise ops are tested on shapes made here from their declared domains; all others on their own
`samples`. The laws themselves are in tests/contracts/test_every_op.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from probtorch.autograd.checking import complex_step, difference
from probtorch.core.dispatch import apply, wrap
from probtorch.core.op import REGISTRY, Attrs, Op
from probtorch.core.typed import DType, Shape
from probtorch.tensor import Tensor
from probtorch.testing.domains import draw

__all__ = [
    "Case",
    "cases",
    "complex_cases",
    "complex_ops",
    "differentiable_inputs",
    "layouts",
    "registered_ops",
    "untested_ops",
]

SHAPES: dict[str, tuple[tuple[int, ...], ...]] = {
    "0-d": ((), (), ()),
    "vector": ((3,), (3,), (3,)),
    "empty": ((2, 0), (2, 0), (2, 0)),
    "matrix": ((2, 3), (2, 3), (2, 3)),
    "broadcast": ((3, 1), (2,), ()),
    "broadcast-0-d": ((), (2, 3), (1, 3)),
}


@dataclass(frozen=True)
class Case:
    """One op on one set of inputs.

    Attributes
    ----------
    op : Op
    label : str
        Names the case within its op.
    arrays : tuple of ndarray
        Inputs, float64 where floating.
    attrs : dict
        Keyword arguments of the op.
    """

    op: Op
    label: str
    arrays: tuple[np.ndarray, ...]
    attrs: Attrs

    def tensors(self, dtype: DType | None = None) -> list[Tensor]:
        """Return fresh tensors of the inputs, on the tape where the op is differentiable in them.

        Parameters
        ----------
        dtype : floating dtype, optional
            Convert floating inputs to it.
        """
        out = []
        for i, a in enumerate(self.arrays):
            a = np.array(a)
            t = wrap(a.astype(dtype) if dtype is not None and a.dtype.kind == "f" else a)
            t.requires_grad = i in differentiable_inputs(self.op, self.arrays)
            out.append(t)
        return out

    def run(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Apply the op to tensors; returns the tuple of its outputs."""
        if self.op.family == "elementwise" and self.op.public is not None:
            out = self.op.public(*tensors)
        else:
            out = apply(self.op, tuple(tensors), self.attrs)
        return out if isinstance(out, tuple) else (out,)

    def expected(self, arrays: Sequence[np.ndarray] | None = None) -> tuple[np.ndarray, ...]:
        """Return what the reference gives, as a tuple of arrays."""
        reference = self.op.reference
        assert reference is not None
        out = reference(*(self.arrays if arrays is None else arrays), **self.attrs)
        out = out if isinstance(out, (tuple, list)) else (out,)
        return tuple(np.asarray(a) for a in out)

    def slope(self, i: int, direction: np.ndarray, k: int = 0) -> tuple[np.ndarray, bool]:
        """Return the derivative of output `k` of the reference in input `i` along `direction`.

        Returns
        -------
        slope : ndarray
            Of the shape of the output.
        exact : bool
            Whether it is good to rounding (complex step) or to about ten digits (differences).
        """

        def fn(x: np.ndarray) -> np.ndarray:
            return self.expected([*self.arrays[:i], x, *self.arrays[i + 1 :]])[k]

        exact = complex_step(fn, self.arrays[i], direction)
        if exact is not None:
            return exact, True
        return difference(fn, self.arrays[i], direction), False


def registered_ops() -> list[Op]:
    """Return all registered ops that the sweep can test, by name."""
    missing = untested_ops()
    return [
        op
        for _, op in sorted(REGISTRY.items())
        if op.name not in missing and "of_complex" not in op.extra
    ]


def complex_ops() -> list[Op]:
    """Return all registered ops that take complex numbers or give them, by name."""
    return [op for _, op in sorted(REGISTRY.items()) if op.complex and not callable(op.complex)]


def complex_cases(op: Op) -> list[Case]:
    """Return the test cases of `op` with complex numbers for real ones, off all branch cuts."""
    rng = np.random.default_rng(sum(map(ord, op.name)) + 1)
    masks = op.extra.get("mask_inputs", ())
    if op.samples is None:
        found = [
            Case(op, label, tuple(draw(d, rng, s) for d, s in zip(op.domain, shapes)), {})
            for label, shapes in (("vector", SHAPES["vector"]), ("broadcast", SHAPES["broadcast"]))
        ]
    else:
        found = cases(op)
    if "of_complex" in op.extra:
        return found
    out = []
    for case in found:
        arrays = tuple(
            a + 1j * rng.uniform(0.2, 0.9, a.shape) if a.dtype.kind == "f" and i not in masks else a
            for i, a in enumerate(case.arrays)
        )
        out.append(Case(op, case.label, arrays, case.attrs))
    return out


def untested_ops() -> list[str]:
    """Return the names of registered ops whose declaration says nothing about how to test them.

    Draws (``extra["random"]``) need no reference: their values answer to goodness-of-fit tests.
    """
    return sorted(
        op.name
        for op in REGISTRY.values()
        if (op.reference is None and not op.extra.get("random"))
        or not (op.samples if op.samples is not None else op.domain)
    )


def differentiable_inputs(op: Op, arrays: Sequence[np.ndarray]) -> tuple[int, ...]:
    """Return the positions of the inputs that `op` has a derivative in."""
    if op.vjp is None:
        return ()
    if op.rules:
        return tuple(sorted(i for i, *_ in op.rules if op.partials[i] is not None))
    fixed = op.extra.get("not_differentiable", ())
    return tuple(i for i, a in enumerate(arrays) if a.dtype.kind in "fc" and i not in fixed)


def cases(op: Op) -> list[Case]:
    """Return the test cases of `op`; the same ones at every call."""
    rng = np.random.default_rng(sum(map(ord, op.name)))
    if op.samples is not None:
        return [
            Case(op, f"sample {i}", tuple(np.asarray(a) for a in arrays), attrs)
            for i, (arrays, attrs) in enumerate(op.samples(rng))
        ]
    arity = len(op.domain)
    out = []
    for label, shapes in SHAPES.items():
        if arity > 1 or not label.startswith("broadcast"):
            out.append(_smooth_case(op, label, shapes, rng))
    return out


def _smooth_case(op: Op, label: str, shapes: Sequence[Shape], rng: np.random.Generator) -> Case:
    """Draw inputs until no kink of the reference, such as a tie of two inputs, is close to them."""
    for _ in range(100):
        arrays = tuple(draw(d, rng, shapes[i % 3]) for i, d in enumerate(op.domain))
        case = Case(op, label, arrays, {})
        if all(_is_smooth(case, i) for i in differentiable_inputs(op, arrays)):
            return case
    raise ValueError(f"{op.name}: the declared domain has a kink wherever test values are drawn")


def _is_smooth(case: Case, i: int) -> bool:
    x = case.arrays[i]

    def fn(moved: np.ndarray) -> np.ndarray:
        return case.expected([*case.arrays[:i], moved, *case.arrays[i + 1 :]])[0]

    # Two step sizes disagree if a kink or a jump is in reach of either.
    near, far = (difference(fn, x, np.full(x.shape, reach)) / reach for reach in (1.0, 7.0))
    return np.allclose(near, far, rtol=1e-3, atol=1e-3)


def layouts(array: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield ``(label, copy)``: the same elements laid out differently in memory."""
    a = np.asarray(array)
    if a.ndim:
        yield "column-major", np.asfortranarray(a)
        yield "negative stride", np.ascontiguousarray(a[::-1])[::-1]
        yield "every second element", np.repeat(a, 2, axis=-1)[..., ::2]
        if a.shape[0] and (a == a[:1]).all():
            yield "expanded", np.broadcast_to(a[:1], a.shape)
    frozen = np.array(a)
    frozen.setflags(write=False)
    yield "read-only", frozen
