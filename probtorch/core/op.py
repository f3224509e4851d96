"""`Op`: the record that says everything about one operation, and the registry of all of them.

An op is declared once, in a file of `probtorch/ops`, by one of the family functions there
(`elementwise`, `reduction`, `structured`, ...). All readers take what they need from the same
record: eager execution (`run`), the tape (`vjp`), forward mode (`jvp`), the compiler (`family`,
`formula` and, by name, its lowering table), and the contract tests (`domain`, `reference`,
`samples`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["REGISTRY", "Op", "register"]

REGISTRY: dict[str, "Op"] = {}


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
        Elementwise ops: ``(g, out, *inputs) -> cotangent`` per input, None where there is none.
    rules : tuple of (int, callable, tuple of int, bool)
        Elementwise ops: for each input that has one, its position, its partial, the positions of
        the inputs that the partial looks at, and whether it looks at the output.
    reads_inputs : bool or slice
        Whether `vjp` looks at the elements of the inputs, or of the inputs in a slice (else a later
        in-place change of them is harmless).
    reads_output : bool
        Whether `vjp` looks at the output.
    num_outputs : int
        Number of output tensors. With several, `vjp` and the hooks see a list of cotangents, None
        for an output that took no part.
    domain : tuple
        For the tests: one interval per input, from `testing.domains`.
    reference : callable or None
        For the tests: an independent implementation on NumPy arrays.
    samples : callable or None
        For the tests: ``samples(rng)`` yields ``(args, kwargs)`` for ops that are not elementwise.
    public : callable or None
        The function users call.
    extra : dict
        What few ops need. For the compiler: "decompose". For dispatch: "view" (the result may share
        memory with the first input), "mask_inputs" (positions of boolean inputs), "integers_only".
        For the tests: "random" (values have no reference), "not_differentiable" (positions),
        "float64_only", "input_dtype" and "result_dtype" (where they are fixed).
    """

    name: str
    family: str
    run: Callable[..., Any]
    vjp: Callable[..., Any] | None = None
    jvp: Callable[..., Any] | None = None
    formula: Callable[..., Any] | None = None
    partials: tuple[Any, ...] = ()
    result: str = "same"
    rules: tuple[Any, ...] = ()
    reads_inputs: bool | slice = True
    reads_output: bool = False
    num_outputs: int = 1
    domain: tuple[Any, ...] = ()
    reference: Callable[..., Any] | None = None
    samples: Callable[..., Any] | None = None
    doc: str = ""
    public: Callable[..., Any] | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def __repr__(self):
        return f"<op {self.name}>"


def register(op):
    """Add `op` to the registry and return it; a name can be taken once."""
    if op.name in REGISTRY:
        raise KeyError(f"op {op.name!r} is declared twice")
    REGISTRY[op.name] = op
    return op
