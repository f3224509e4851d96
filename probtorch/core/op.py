"""`Op`: the record that says everything about one operation, and the registry of all of them.

An op is declared once, in a file of `probtorch/ops`, by one of the family functions there
(`elementwise`, `reduction`, `structured`, ...). All readers take what they need from the same
record: eager execution (`run`), the tape (`vjp`), forward mode (`jvp`), the compiler (`family`,
`formula`, `native`), and the contract tests (`domain`, `reference`,
`samples`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from probtorch.core.native import NativeFunction, Routine
from probtorch.core.tensor_base import TensorBase
from probtorch.errors import ArgumentError

__all__ = ["REGISTRY", "Op", "core_dims", "register"]

REGISTRY: dict[str, Op] = {}

# Families of the ops that compute; others only move elements, complex ones too.
_COMPUTING = frozenset(
    ("reduction", "scan", "contraction", "linalg", "sorting", "special", "sampling", "structured")
)

# What an op is given: elementwise ones take Python's numbers too. And what it gives.
Operand: TypeAlias = "TensorBase | complex"
Output: TypeAlias = "TensorBase | tuple[TensorBase, ...]"
# Keyword arguments of `run`: each op has its own.
Attrs: TypeAlias = Mapping[str, Any]


@dataclass(slots=True, eq=False)
class Op:
    """One operation on tensors.

    Attributes
    ----------
    name : str
        Unique name, also used in error messages and graphs.
    family : str
        "elementwise", "reduction", "movement", "indexing", "contraction", "linalg", "control" or
        "structured".
    run : callable
        ``run(*arrays, **attrs)`` on arrays of one backend; returns an array or, for several
        outputs, a tuple.
    vjp : callable or None
        ``vjp(g, out, inputs, attrs, needs) -> sequence`` of cotangents, one per input (None where
        `needs` is False or the input is not differentiable). Written in Tensor ops. For several
        outputs `g` and `out` are tuples.
    jvp : callable or None
        ``jvp(tangents, out, inputs, attrs)`` -> tangent of the output; a missing tangent is None.
    formula : callable or None
        Elementwise ops: the scalar formula over an algebra `s` (see ops/families.py).
    result : str
        Elementwise dtype rule: "same", "float" (integers become the default float dtype) or "bool".
    partials : tuple of callable or None
        Elementwise ops: ``(g, *saved) -> cotangent`` per input, None where there is none.
    rules : tuple of (int, callable, tuple of int, bool)
        Elementwise ops, in the order in which the tape takes them: for each input that has one, its
        position, its partial as a function of
        ``(g, out, inputs)``, the positions of the inputs that it is given, and whether it is given
        the output.
    plain : dict of int to callable
        Elementwise ops: of those rules whose partial is arithmetic alone, by the position of the
        input, the same as a function of ``(g, out, inputs)`` that computes on the arrays.
    inputs : tuple of str
        Names of the inputs; a last one with a star stands for all that follow.
    saves : tuple of str
        What the derivative reads the elements of: names of inputs, and "out". What is not among
        them may change in place before the derivative is taken.
    core : str or None
        The dims that one application works on; what an op does to them it does along all others
        alike. As in NumPy's gufuncs for the last dims, ``"(m,n),(n,p)->(m,p)"``, where ``*sizes``
        stands for as many as the attribute `sizes` has; or the name of the attribute that says
        which they are, "dim" or "dims", of inputs that are equal in rank. None for an op whose
        batching has a rule of its own.
    native : Routine, Function, str or None
        What carries it out in compiled code: see core/native.py. None where there is a formula, a
        decomposition, or a rule of its own in the compiler's `lower/`.
    num_outputs : int
        Number of output tensors. With several, `vjp` and the hooks see a list of cotangents, None
        for an output that took no part.
    domain : tuple
        For the tests: one interval per input, from `testing.domains`.
    reference : callable or None
        For the tests: an independent implementation on NumPy arrays.
    samples : callable or None
        For the tests: ``samples(rng)`` yields ``(args, kwargs)`` for ops that are not elementwise.
    complex : bool or callable
        Whether the op and its derivatives hold for complex numbers as they stand; else what is
        computed of complex operands instead, ``complex(*operands)``. Without it they are refused.
    public : callable or None
        The function users call.
    refuses_complex, is_view : bool
        What `apply` asks of every op: whether complex operands are an error, and whether the result
        may share memory with the first input.
    extra : dict
        What few ops need. For the compiler: "decompose". For dispatch: "view" (the result may share
        memory with the first input), "mask_inputs" (positions of boolean inputs), "integers_only".
        For loops: "picks" (the derivative looks for the elements that the result is made of).
        For the tests: "random" (values have no reference), "not_differentiable" (positions),
        "float64_only", "input_dtype" and "result_dtype" (where they are fixed), "of_complex" (tried
        on complex numbers alone).
    """

    name: str
    family: str
    run: Callable[..., np.ndarray | tuple[np.ndarray, ...]]
    vjp: Callable[..., Sequence[TensorBase | None]] | None = None
    jvp: Callable[..., Output] | None = None
    formula: Callable[..., object] | None = None
    partials: tuple[Callable[..., TensorBase] | None, ...] = ()
    result: str = "same"
    rules: tuple[tuple[int, Callable[..., TensorBase], tuple[int, ...], bool], ...] = ()
    plain: Mapping[int, Callable[..., np.ndarray]] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    saves: tuple[str, ...] | None = None
    reads_output: bool = field(init=False)
    refuses_complex: bool = field(init=False)
    is_view: bool = field(init=False)
    core: str | None = None
    native: Routine | NativeFunction | str | None = None
    num_outputs: int = 1
    complex: bool | Callable[..., TensorBase] = False
    domain: tuple[str, ...] = ()
    reference: Callable[..., object] | None = None
    samples: Callable[[np.random.Generator], Iterable[tuple[tuple[object, ...], Attrs]]] | None = (
        None
    )
    doc: str = ""
    public: Callable[..., Output] | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = {name.removeprefix("*") for name in self.inputs}
        if self.vjp is not None and self.saves is None:
            raise ArgumentError(
                f"op {self.name!r}",
                expected="saves=, what its derivative reads",
                got="a derivative without it",
                fix="name the inputs whose elements it reads, and out; if there are none, say so",
            )
        if unknown := set(self.saves or ()) - known - {"out"}:
            raise ArgumentError(
                f"op {self.name!r}",
                expected=f"saves= of {', '.join(sorted(known))} or out",
                got=", ".join(sorted(unknown)),
                fix="the names of the inputs are those in the signature of the run or the formula",
            )
        self.reads_output = "out" in (self.saves or ())
        self.refuses_complex = self.family in _COMPUTING and not self.complex
        self.is_view = "view" in self.extra

    def saved_inputs(self, count: int) -> list[int]:
        """Return the positions, among `count` inputs, of those that the derivative reads."""
        if not self.saves:
            return []
        last = len(self.inputs) - 1
        names = [self.inputs[min(i, last)].removeprefix("*") for i in range(count)]
        return [i for i, name in enumerate(names) if name in self.saves]

    def core_ranks(self, attrs: Attrs) -> list[int]:
        """Return how many core dims each input has in a call with `attrs`."""
        inputs, _ = core_dims(self.core)
        return [
            sum(len(attrs[name[1:]]) if name[0] == "*" else 1 for name in names) for names in inputs
        ]

    def __repr__(self) -> str:
        return f"<op {self.name}>"


@functools.cache
def core_dims(core: str) -> tuple[list[list[str]], ...]:
    """Return the names of the core dims of each input, and of each output, as `Op.core` has them.

    Examples
    --------
    >>> core_dims("(n,n),(n,m)->(n,m)")
    ([['n', 'n'], ['n', 'm']], [['n', 'm']])
    """
    return tuple(
        [[name for name in part.split(",") if name] for part in re.findall(r"\((.*?)\)", side)]
        for side in core.split("->")
    )


def register(op: Op) -> Op:
    """Add `op` to the registry and return it; a name can be taken once."""
    if op.name in REGISTRY:
        raise KeyError(f"op {op.name!r} is declared twice")
    REGISTRY[op.name] = op
    return op
