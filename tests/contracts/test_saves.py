"""What an op's derivative reads is what its declaration says (`saves=`), over every registered op.

Two laws. A derivative reads what it declared and nothing else: of what it did not declare it sees
the shape and dtype, and a look at the elements raises here; what it did declare matters to its
value. And after a change in place of any input or output, on the tape or beside it, a backward
pass raises or gives what it gives without the change.
"""

import functools

import numpy as np
import pytest

from probtorch.autograd.modes import no_grad
from probtorch.autograd.tape import grad
from probtorch.core.dispatch import wrap
from probtorch.core.op import REGISTRY
from probtorch.errors import ArgumentError, AutogradError, NotDifferentiableError
from probtorch.ops.families import elementwise, structured
from probtorch.testing.compare import assert_close, to_array
from probtorch.testing.sweep import cases, differentiable_inputs, registered_ops

SMOOTH = [op for op in registered_ops() if op.vjp is not None]
every_smooth_op = pytest.mark.parametrize("op", SMOOTH, ids=lambda op: op.name)

# A derivative that refuses to be taken reads nothing.
REFUSES = {"von_mises_slope"}


class Read(Exception):
    """A look at the elements of an array that is there for its shape only."""


class Unread(np.ndarray):
    """An array of which a derivative may know all but the elements."""

    def _read(self, *args, **kwargs):
        raise Read

    __array_ufunc__ = __array_function__ = __getitem__ = __iter__ = __float__ = __bool__ = _read


def unread(array):
    """A tensor like `array` whose elements are not there for what does not ask NumPy for them."""
    t = wrap(np.empty(0, array.dtype))
    t.array = np.full_like(array, np.nan if array.dtype.kind == "f" else 1).view(Unread)
    return t


def some_cases(op):
    """Two cases in which there is something to differentiate."""
    made = [(c, c.run(c.tensors())) for c in cases(op) if c.arrays[0].size]
    return [
        c
        for c, outputs in made
        if differentiable_inputs(op, c.arrays) and any(o.dtype.kind == "f" for o in outputs)
    ][-2:]


def other(array):
    """Elements that are as good as those of `array` for an op, and differ."""
    if array.dtype.kind == "f":
        return array * 0.75 + 0.03125
    return ~array if array.dtype.kind == "b" else np.roll(array, 1)


def declared(op, i, count):
    """Positions of the inputs, -1 for the output, that the derivative in input `i` declares."""
    for at, _, reads, reads_output in op.rules:
        if at == i:
            return {*reads, *((-1,) if reads_output else ())}
    return {*op.saved_inputs(count), *((-1,) if op.reads_output else ())}


def cotangents(outputs):
    rng = np.random.default_rng(0)
    gs = [
        wrap(rng.standard_normal(o.shape).astype(o.dtype)) if o.dtype.kind == "f" else None
        for o in outputs
    ]
    return gs[0] if len(gs) == 1 else gs


def derivative(case, i, g, out, inputs):
    """The cotangent of input `i`, by the op's own rule."""
    op, needs = case.op, [j == i for j in range(len(inputs))]
    with no_grad():
        return to_array(op.vjp(g, out, inputs, case.attrs, needs)[i])


def reads_what_it_declared(op):
    """Assert the first law for one op."""
    read = {}
    for case in some_cases(op):
        inputs = [t.detach() for t in case.tensors()]
        outputs = case.run(inputs)
        g, out = cotangents(outputs), outputs[0] if len(outputs) == 1 else tuple(outputs)
        for i in differentiable_inputs(op, case.arrays):
            saves = declared(op, i, len(inputs))

            def found(seen, case=case, i=i, g=g, out=out, inputs=inputs):
                given = [x if j in seen else unread(to_array(x)) for j, x in enumerate(inputs)]
                return derivative(case, i, g, out if -1 in seen else None, given)

            expected = found({-1, *range(len(inputs))})
            np.testing.assert_array_equal(found(saves), expected)
            for j in saves:
                try:
                    same = np.array_equal(found(saves - {j}), expected)
                except (Read, AttributeError, TypeError, IndexError):
                    same = False
                read[i, j] = read.get((i, j), False) or not same
    if op.family != "elementwise":
        # One declaration for the derivatives in all inputs.
        read = {(None, j): any(r for (_, k), r in read.items() if k == j) for _, j in read}
    names = ["out" if j < 0 else f"input {j}" for (_, j), r in read.items() if not r]
    assert not names, f"{op.name} declares {names}, and reads it nowhere"


def changes(inputs, outputs):
    """Yield the ways of changing one input or output: a name, and what does it."""
    for i, x in enumerate(inputs):
        if not to_array(x).flags.writeable or not x.numel():
            continue
        new = wrap(other(to_array(x)))

        def beside(x=x, new=new):
            with no_grad():
                x.copy_(new)

        def by_a_view(x=x, new=new):
            with no_grad():
                x[...].copy_(new)

        yield f"input {i}", beside
        yield f"input {i} by a view", by_a_view
        if x.requires_grad:
            yield f"input {i} on the tape", functools.partial(x.copy_, new)
    for k, o in enumerate(outputs):
        if not to_array(o).flags.writeable:
            continue
        new = wrap(other(to_array(o)))
        yield f"output {k}", functools.partial(o.detach().copy_, new)
        yield f"output {k} by a view", functools.partial(o.detach()[...].copy_, new)
        if o.requires_grad:
            yield f"output {k} on the tape", functools.partial(o.copy_, new)


def raises_or_is_right_after_a_change(op):
    """Assert the second law for one op; returns how often it raised, and was right."""
    raised = right = 0
    for case in some_cases(op):
        wanted = differentiable_inputs(op, case.arrays)
        for only in [*([i] for i in wanted), *([list(wanted)] if len(wanted) > 1 else [])]:

            def fresh(case=case, only=only):
                leaves = [t.detach() for t in case.tensors()]
                for i in only:
                    leaves[i].requires_grad_()
                # Not the leaves themselves, which refuse to be changed on the tape.
                inputs = [x.clone() if x.dtype.kind == "f" else x for x in leaves]
                outputs = case.run(inputs)
                # What the outputs went into, so that they may change on the tape as well.
                results = [o.clone() if o.dtype.kind == "f" else o for o in outputs]
                return [leaves[i] for i in only], inputs, outputs, results

            def gradients(leaves, results, gs):
                pairs = [(o, g) for o, g in zip(results, gs) if o.requires_grad and g is not None]
                outs, seeds = zip(*pairs, strict=True)
                return grad(outs, leaves, seeds, materialize_grads=True)

            leaves, inputs, outputs, results = fresh()
            gs = cotangents(outputs)
            gs = gs if isinstance(gs, list) else [gs]
            expected = gradients(leaves, results, gs)
            for k in range(len(list(changes(inputs, outputs)))):
                leaves, inputs, outputs, results = fresh()
                name, change = list(changes(inputs, outputs))[k]
                change()
                try:
                    found = gradients(leaves, results, gs)
                except AutogradError as error:
                    if "modified in place" not in str(error):
                        raise
                    raised += 1
                    continue
                right += 1
                for a, b in zip(found, expected, strict=True):
                    assert_close(a, b, rtol=1e-13, atol=1e-15, msg=f"{case.label}, {name}")
    return raised, right


@every_smooth_op
def test_a_derivative_reads_what_it_declared(op):
    if op.name in REFUSES:
        with pytest.raises(NotDifferentiableError):
            op.vjp(None, None, (), {}, ())
        assert not op.saves
        return
    reads_what_it_declared(op)


@pytest.mark.parametrize(
    "op", [op for op in SMOOTH if op.name not in REFUSES], ids=lambda o: o.name
)
def test_after_a_change_in_place_backward_raises_or_is_right(op):
    raised, right = raises_or_is_right_after_a_change(op)
    assert raised + right
    assert bool(op.saves) == bool(raised)


# ------------------------------------------------------------------------- wrong declarations


@pytest.fixture
def declare():
    """Declare ops for one test and take them out of the registry again."""
    before = set(REGISTRY)

    def declare(partials, saves):
        stated = {
            "formula": lambda s, x, y: x * y,
            "domain": ("real", "real"),
            "reference": np.multiply,
        }
        elementwise("a_product", partials=partials, saves=saves, **stated)
        return REGISTRY["a_product"]

    yield declare
    for name in set(REGISTRY) - before:
        del REGISTRY[name]


def test_the_laws_hold_for_a_product(declare):
    op = declare((lambda g, y: g * y, lambda g, x: g * x), ("y", "x"))
    reads_what_it_declared(op)
    raises_or_is_right_after_a_change(op)


def test_a_partial_may_be_any_callable(declare):
    def slope(scale, g, *read):
        return g * read[0] * scale

    op = declare((functools.partial(slope, 1.0),) * 2, ("y", "x"))
    reads_what_it_declared(op)
    raises_or_is_right_after_a_change(op)


@pytest.mark.parametrize(
    "partials, saves",
    [
        ((lambda g, _, *xs: g * xs[1], None), ("", "")),
        ((lambda g, _, *xs: g * xs[1], None), None),
        ((lambda g, x, y: g * y, None), ("y", "")),
        ((lambda g: g, None), ("y", "")),
    ],
    ids=["nothing said of what is read", "no saves", "too little", "too much"],
)
def test_a_partial_that_takes_something_else_cannot_be_declared(declare, partials, saves):
    with pytest.raises(ArgumentError, match="a_product") as raised:
        declare(partials, saves)
    assert "the cotangent" in str(raised.value)


def test_a_name_that_is_no_input_cannot_be_declared(declare):
    with pytest.raises(ArgumentError, match="saves= of x, y or out"):
        declare((lambda g, z: g * z, None), ("z", ""))


def test_a_declaration_of_what_is_not_read_breaks_the_first_law(declare):
    op = declare((lambda g, x, y: g * y, lambda g, x: g * x), ("x y", "x"))
    with pytest.raises(AssertionError, match="declares"):
        reads_what_it_declared(op)


def declare_structured(saves):
    structured(
        "a_product",
        "test",
        run=lambda x, y: x * y,
        vjp=lambda g, out, inputs, attrs, needs: (g * inputs[1], g * inputs[0]),
        saves=saves,
        samples=lambda rng: [((rng.standard_normal(3), rng.standard_normal(3)), {})],
        reference=np.multiply,
    )
    return REGISTRY["a_product"]


def test_a_rule_that_reads_more_than_it_declared_breaks_both_laws(declare):
    op = declare_structured("x")
    with pytest.raises(Read):
        reads_what_it_declared(op)
    with pytest.raises(AssertionError):
        raises_or_is_right_after_a_change(op)


def test_a_rule_must_say_what_it_reads(declare):
    with pytest.raises(ArgumentError, match="saves="):
        declare_structured(None)
