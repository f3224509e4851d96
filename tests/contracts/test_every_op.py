"""Laws that every registered op obeys, on the cases of `probtorch.testing.sweep`.

The oracle for values and first derivatives is the op's `reference`, a NumPy or SciPy function: its
derivative comes from a complex step where it accepts complex arrays, else from differences of
fourth order. Second derivatives are differences of the first, which the first law has checked.
An op declared elsewhere is swept as soon as its module is imported; nothing is listed here.
"""

import importlib
import pkgutil

import numpy as np
import pytest

import probtorch.ops
from probtorch.autograd.checking import difference
from probtorch.autograd.tape import grad
from probtorch.compiler.compile import compile
from probtorch.core.dispatch import wrap
from probtorch.core.dtype import default_dtype
from probtorch.errors import NotDifferentiableError
from probtorch.testing.compare import assert_close, to_array
from probtorch.testing.sweep import (
    cases,
    differentiable_inputs,
    layouts,
    registered_ops,
    untested_ops,
)
from tests.contracts.sample_inputs import inputs_of, integers_of

for _module in pkgutil.walk_packages(probtorch.ops.__path__, "probtorch.ops."):
    importlib.import_module(_module.name)

OPS = registered_ops()
SMOOTH = [op for op in OPS if op.vjp is not None]
ELEMENTWISE = [op for op in OPS if op.family == "elementwise" and op.public is not None]


# Derivatives themselves, which have none of their own.
NO_SECOND_DERIVATIVE = {"betainc_grad", "cofactor", "gamma_log_implicit", "gammainc_grad_a"}


def each(ops):
    return pytest.mark.parametrize("op", ops, ids=lambda op: op.name)


every_op, every_smooth_op, every_elementwise_op = each(OPS), each(SMOOTH), each(ELEMENTWISE)
every_op_with_a_reference = each([op for op in OPS if op.reference is not None])
every_smooth_op_with_a_reference = each([op for op in SMOOTH if op.reference is not None])


def small_cases(op):
    """One case per op where the shape does not matter to the law."""
    return [c for c in cases(op) if all(a.size for a in c.arrays)][-2:]


def on_the_tape(made, least=1):
    """Yield the cases with so many inputs to differentiate or more, their inputs and outputs."""
    for case in made:
        inputs = case.tensors()
        if sum(x.requires_grad for x in inputs) >= least:
            yield case, inputs, case.run(inputs)


def cotangents(outputs, seed=0):
    rng = np.random.default_rng(seed)
    return [
        wrap(rng.standard_normal(o.shape).astype(o.dtype)) if o.requires_grad else None
        for o in outputs
    ]


def vjp(outputs, inputs, gs, **options):
    """Gradients for the inputs on the tape, zeros where unused; `gs` are the cotangents."""
    pairs = [(o, g) for o, g in zip(outputs, gs) if g is not None]
    wanted = [x for x in inputs if x.requires_grad]
    return grad(
        [o for o, _ in pairs],
        wanted,
        [g for _, g in pairs],
        materialize_grads=True,
        retain_graph=True,
        **options,
    )


def tangent_of(case, inputs, outputs, tangents):
    """What the op's own tangent rule gives, as a list with one entry per output."""
    if case.op.num_outputs > 1:
        return list(case.op.jvp(tangents, tuple(outputs), tuple(inputs), case.attrs))
    return [case.op.jvp(tangents, outputs[0], tuple(inputs), case.attrs)]


def random_like(inputs, seed):
    """A tangent for each input on the tape, None for the others."""
    rng = np.random.default_rng(seed)
    return [
        wrap(rng.standard_normal(x.shape).astype(x.dtype)) if x.requires_grad else None
        for x in inputs
    ]


def inner(xs, ys):
    """Sum of the elementwise products of two lists of tensors or arrays, None counting as 0."""
    pairs = [(x, y) for x, y in zip(xs, ys) if x is not None and y is not None]
    return sum(float(np.sum(to_array(x) * to_array(y))) for x, y in pairs)


def test_every_registered_op_can_be_tested():
    assert untested_ops() == []


@every_op_with_a_reference
def test_value_is_that_of_the_reference(op):
    for case in cases(op):
        for got, expected in zip(case.run(case.tensors()), case.expected(), strict=True):
            assert_close(got, expected, rtol=1e-10, atol=1e-12, msg=case.label)


@every_smooth_op_with_a_reference
def test_reverse_rule_gives_the_derivative_of_the_reference(op):
    for case, inputs, outputs in on_the_tape(cases(op)):
        gs = cotangents(outputs)
        grads = iter(vjp(outputs, inputs, gs))
        for i in differentiable_inputs(op, case.arrays):
            got = next(grads)
            assert got.shape == inputs[i].shape
            assert got.dtype == inputs[i].dtype
            expected, exact = expected_gradient(case, i, gs)
            tolerance = 1e-9 if exact else 1e-7
            scale = max(1.0, float(np.max(np.abs(expected), initial=0.0)))
            assert_close(
                got,
                expected,
                rtol=tolerance,
                atol=tolerance * scale,
                msg=f"{case.label}, input {i}",
            )


def expected_gradient(case, i, gs):
    """Gradient of sum(g * reference) in input `i`, and whether it is exact to rounding."""
    x = np.asarray(case.arrays[i], np.float64)
    case = type(case)(case.op, case.label, (*case.arrays[:i], x, *case.arrays[i + 1 :]), case.attrs)
    out, all_exact = np.zeros(x.shape), True
    if case.op.rules and x.size:
        # Elements do not mix, so one perturbation of all of them serves; then undo broadcasting.
        slope, all_exact = case.slope(i, np.ones(x.shape))
        return sum_to_shape(to_array(gs[0]) * slope, x.shape), all_exact
    for k in range(x.size):
        direction = np.zeros(x.size)
        direction[k] = 1.0
        for j, g in enumerate(gs):
            if g is not None:
                slope, exact = case.slope(i, direction.reshape(x.shape), j)
                out.reshape(-1)[k] += np.sum(to_array(g) * slope)
                all_exact &= exact
    return out, all_exact


def sum_to_shape(a, shape):
    a = a.sum(axis=tuple(range(a.ndim - len(shape))))
    thin = tuple(i for i, s in enumerate(shape) if s == 1)
    return a.sum(axis=thin, keepdims=True)


@every_smooth_op
def test_forward_rule_is_the_transpose_of_the_reverse_rule(op):
    for case, inputs, outputs in on_the_tape(cases(op)):
        gs = cotangents(outputs)
        tangents = random_like(inputs, 1)
        forward = tangent_of(case, inputs, outputs, tangents)
        backward = vjp(outputs, inputs, gs)
        for t, o in zip(forward, outputs, strict=True):
            assert t is None or t.shape == o.shape, case.label
        left = inner(gs, forward)
        right = inner(backward, [t for t in tangents if t is not None])
        size = sum(
            np.sum(np.abs(to_array(x) * to_array(t)))
            for x, t in zip(backward, [t for t in tangents if t is not None])
        )
        single = any(x.dtype == np.float32 for x in inputs)
        assert abs(left - right) <= (1e-6 if single else 1e-12) * max(1.0, size), case.label


@every_smooth_op
def test_forward_rule_takes_one_tangent_at_a_time(op):
    for case, inputs, outputs in on_the_tape(small_cases(op), 2):
        tangents = random_like(inputs, 1)
        whole = tangent_of(case, inputs, outputs, tangents)
        total = [np.zeros(o.shape) for o in outputs]
        for i, t in enumerate(tangents):
            if t is not None:
                alone = [t if j == i else None for j in range(len(inputs))]
                for k, part in enumerate(tangent_of(case, inputs, outputs, alone)):
                    if part is not None:
                        total[k] = total[k] + to_array(part)
        for a, b in zip(whole, total, strict=True):
            if a is not None:
                assert_close(a, b, rtol=1e-10, atol=1e-12)


@every_smooth_op_with_a_reference
def test_gradient_of_the_gradient_agrees_with_differences(op):
    for case, inputs, outputs in on_the_tape(small_cases(op)):
        wanted = [i for i, x in enumerate(inputs) if x.requires_grad]
        if any(inputs[i].dtype != np.float64 for i in wanted):
            continue
        gs = cotangents(outputs)
        for g in gs:
            if g is not None:
                g.requires_grad_()
        vs = random_like(inputs, 2)
        firsts = vjp(outputs, inputs, gs, create_graph=True)
        on_tape = [(f, vs[i]) for f, i in zip(firsts, wanted) if f.requires_grad]
        if not on_tape:
            continue
        seeds = [g for g in gs if g is not None]
        try:
            seconds = grad(
                [f for f, _ in on_tape],
                [*(inputs[i] for i in wanted), *seeds],
                [v for _, v in on_tape],
                materialize_grads=True,
            )
        except NotDifferentiableError:
            # Refusing is an answer; a wrong number would not be.
            assert op.name in NO_SECOND_DERIVATIVE
            continue

        for i, second in zip(wanted, seconds):
            direction = np.random.default_rng(3 + i).standard_normal(case.arrays[i].shape)

            def slope_of_first(x, i=i, case=case, gs=gs, vs=vs):
                moved = type(case)(
                    case.op, case.label, (*case.arrays[:i], x, *case.arrays[i + 1 :]), case.attrs
                )
                fresh = moved.tensors()
                first = vjp(moved.run(fresh), fresh, gs)
                return np.asarray(inner(first, [v for v in vs if v is not None]))

            expected = float(difference(slope_of_first, case.arrays[i], direction))
            got = float(np.sum(to_array(second) * direction))
            scale = max(1.0, float(np.sum(np.abs(to_array(second) * direction))))
            assert abs(got - expected) <= 2e-6 * scale, f"{case.label}, input {i}: {got} {expected}"
        # The reverse rule is linear in its cotangent; the derivative there is the forward rule.
        forward = tangent_of(case, inputs, outputs, vs)
        forward = [t for t, g in zip(forward, gs) if g is not None]
        for got, expected in zip(seconds[len(wanted) :], forward, strict=True):
            assert_close(got, expected, rtol=1e-9, atol=1e-11, msg=case.label)


@every_smooth_op
def test_reverse_rule_is_linear_in_the_cotangent(op):
    for case, inputs, outputs in on_the_tape(small_cases(op)):
        g, h = cotangents(outputs, 1), cotangents(outputs, 2)
        mixed = [None if a is None else 2.0 * a - 3.0 * b for a, b in zip(g, h)]
        parts = zip(vjp(outputs, inputs, g), vjp(outputs, inputs, h))
        for got, (a, b) in zip(vjp(outputs, inputs, mixed), parts, strict=True):
            expected = 2.0 * a - 3.0 * b
            scale = float(np.max(np.abs(to_array(a)), initial=1.0))
            single = got.dtype == np.float32
            assert_close(got, expected, atol=(1e-5 if single else 1e-12) * scale, msg=case.label)


@every_op
def test_memory_layout_does_not_matter(op):
    for case in cases(op):
        plain = case.run(case.tensors())
        plain_grads = gradients_of(case, case.tensors())
        for i, array in enumerate(case.arrays):
            for label, copy in layouts(array):
                inputs = case.tensors()
                on_tape = inputs[i].requires_grad
                inputs[i] = wrap(copy)
                inputs[i].requires_grad = on_tape
                for got, expected in zip(case.run(inputs), plain, strict=True):
                    assert_close(got, expected, check_dtype=True, msg=f"{case.label}, {label}")
                for got, expected in zip(gradients_of(case, inputs), plain_grads, strict=True):
                    assert_close(got, expected, check_dtype=True, msg=f"{case.label}, {label}")


def gradients_of(case, inputs):
    if not any(x.requires_grad for x in inputs):
        return ()
    outputs = case.run(inputs)
    return vjp(outputs, inputs, cotangents(outputs))


@every_op
def test_inputs_are_left_alone(op):
    for case in small_cases(op):
        inputs = case.tensors()
        gradients_of(case, inputs)
        for x, before in zip(inputs, case.arrays, strict=True):
            np.testing.assert_array_equal(to_array(x), before)


@every_elementwise_op
def test_out_and_in_place_forms_give_what_the_function_gives(op):
    for case in cases(op):
        inputs = [x.detach() for x in case.tensors()]
        (expected,) = case.run(inputs)
        buffer = wrap(np.empty_like(to_array(expected)))
        assert op.public(*inputs, out=buffer) is buffer
        assert_close(buffer, expected, rtol=0, atol=0, check_dtype=True)
        in_place = getattr(type(inputs[0]), op.name + "_", None)
        same = inputs[0].shape == expected.shape and inputs[0].dtype == expected.dtype
        if in_place is not None and same:
            changed = wrap(np.array(to_array(inputs[0])))
            assert in_place(changed, *inputs[1:]) is changed
            assert_close(changed, expected, rtol=0, atol=0)


def takes(op, dtype):
    """Whether an elementwise op is declared for inputs of a dtype."""
    if op.extra.get("integers_only") and dtype.kind == "f":
        return False
    return op.extra.get("input_dtype", dtype) == dtype


@pytest.mark.parametrize(
    "op, dtype",
    [
        pytest.param(op, dtype, id=f"{op.name}-{dtype}")
        for op in ELEMENTWISE
        for dtype in map(np.dtype, ("int32", "int64", "float16", "float32", "float64"))
        if takes(op, dtype)
    ],
)
def test_result_dtype_follows_the_declaration(op, dtype):
    ranges = {"boolean": (0, 2)}
    rng = np.random.default_rng(0)
    inputs = []
    for i, domain in enumerate(op.domain):
        mask = i in op.extra.get("mask_inputs", ())
        low, high = ranges.get(domain, (1, 4))
        values = rng.integers(low, high, 3)
        if domain in ("unit", "probability"):
            values = values * 0 + (0.5 if dtype.kind == "f" else 1)
        inputs.append(wrap(values.astype(np.bool_ if mask else dtype)))
    expected = {
        "same": dtype,
        "float": dtype if dtype.kind == "f" else default_dtype(),
        "bool": np.dtype(bool),
    }[op.result]
    assert op.public(*inputs).dtype == op.extra.get("result_dtype", expected)


@each([op for op in ELEMENTWISE if len(op.domain) > 1 and not op.extra.get("integers_only")])
def test_python_numbers_do_not_change_the_dtype(op):
    for position in range(len(op.domain)):
        if position in op.extra.get("mask_inputs", ()):
            continue
        case = cases(op)[1]
        inputs = list(case.tensors(np.float32))
        number = float(case.arrays[position].flat[0])
        inputs[position] = number
        arrays = list(case.arrays)
        arrays[position] = np.asarray(number)
        out = op.public(*inputs)
        assert out.dtype == (np.bool_ if op.result == "bool" else np.float32)
        if op.result != "bool":
            expected = case.expected([np.asarray(a) for a in arrays])[0]
            assert_close(out, expected.astype(np.float32), rtol=2e-5, atol=1e-6)


@every_smooth_op
def test_backward_twice_is_bitwise_equal(op):
    for case, inputs, outputs in on_the_tape(small_cases(op)):
        gs = cotangents(outputs)
        for a, b in zip(vjp(outputs, inputs, gs), vjp(outputs, inputs, gs), strict=True):
            assert to_array(a).tobytes() == to_array(b).tobytes(), case.label


@each([op for op in OPS if op.reference is not None and not op.extra.get("float64_only")])
def test_float32_result_is_the_rounded_truth(op):
    for case in cases(op):
        if not any(a.dtype == np.float64 for a in case.arrays):
            continue
        inputs = case.tensors(np.float32)
        truth = case.expected(
            [
                to_array(x).astype(np.float64) if x.dtype == np.float32 else a
                for x, a in zip(inputs, case.arrays)
            ]
        )
        for got, expected in zip(case.run(inputs), truth, strict=True):
            if expected.dtype.kind != "f":
                assert_close(got, expected)
                continue
            assert got.dtype == np.float32 or "dtype" in case.attrs
            # Four units in the last place of the largest element, as sums share its rounding.
            size = float(np.max(np.abs(expected), initial=0.0))
            atol = 0.0 if op.rules else 1e-6 * size
            assert_close(got, expected.astype(np.float32), rtol=5e-7 * 8, atol=atol + 1e-7)


@every_op
def test_compiled_result_is_the_eager_one(op):
    for case in small_cases(op)[-1:]:
        wanted = [i for i, x in enumerate(case.tensors()) if x.requires_grad]
        gs = cotangents(case.run(case.tensors()))

        def value_and_gradients(*inputs, case=case, wanted=wanted, gs=gs):
            outputs = case.run(inputs)
            grads = vjp(outputs, inputs, gs) if wanted else ()
            return [t.detach() for t in (*outputs, *grads)]

        eager = value_and_gradients(*case.tensors())
        native = compile(value_and_gradients)
        native(*case.tensors())
        assert native.reason is None
        for got, expected in zip(native(*case.tensors()), eager, strict=True):
            assert_close(got, expected, rtol=1e-11, atol=1e-12, check_dtype=True, msg=case.label)


# --------------------------------------------------------------------------- many more inputs


LEAST_ON_AVERAGE = 15


def test_ops_have_fifteen_inputs_on_average_and_none_less_than_ten():
    counts = {op.name: len(cases(op)) + len(inputs_of(op)) for op in OPS}
    assert sum(counts.values()) >= LEAST_ON_AVERAGE * len(OPS)
    assert [name for name, count in counts.items() if count < 10] == []


@every_op
def test_first_laws_hold_on_many_more_inputs(op):
    """Value, layout, derivative along a direction, forward against reverse, float32: on each."""
    rng = np.random.default_rng(7)
    for case in inputs_of(op):
        inputs = laid_out(case)
        outputs = case.run(inputs)
        plain = case.run([x.detach() for x in case.tensors()])
        for got, expected in zip(outputs, plain, strict=True):
            assert_close(got, expected, check_dtype=True, msg=f"{case.label}, layout")
        expected = None if op.reference is None else case.expected()
        if expected is not None:
            for got, truth in zip(outputs, expected, strict=True):
                assert_close(got, truth, rtol=1e-10, atol=1e-12, msg=case.label)
        if any(x.requires_grad for x in inputs):
            assert_derivatives(case, inputs, outputs, rng, expected)


def laid_out(case):
    """The inputs as they lie in memory, on the tape where the op is differentiable."""
    inputs = [wrap(a) for a in case.arrays]
    for x, on_tape in zip(inputs, case.tensors()):
        x.requires_grad = on_tape.requires_grad
    return inputs


def assert_derivatives(case, inputs, outputs, rng, expected):
    gs, tangents = cotangents(outputs), random_like(inputs, 5)
    moved = [t for t in tangents if t is not None]
    backward = vjp(outputs, inputs, gs)
    for x, g in zip((x for x in inputs if x.requires_grad), backward, strict=True):
        assert (g.shape, g.dtype) == (x.shape, x.dtype), case.label
    right = inner(backward, moved)
    parts = [np.abs(to_array(g) * to_array(t)) for g, t in zip(backward, moved)]
    size = max(1.0, sum(float(np.sum(part)) for part in parts))
    left = inner(gs, tangent_of(case, inputs, outputs, tangents))
    single = any(x.dtype == np.float32 for x in inputs)
    assert abs(left - right) <= (1e-6 if single else 1e-12) * size, case.label
    if expected is None or single or not all(a.size for a in expected):
        return
    slopes, tolerance = 0.0, 1e-9
    for i, t in enumerate(tangents):
        for k, g in enumerate(gs):
            if t is not None and g is not None and t.array.size:
                slope, exact = case.slope(i, to_array(t), k)
                slopes += float(np.sum(to_array(g) * slope))
                tolerance = tolerance if exact else 1e-6
    assert abs(slopes - right) <= tolerance * size, case.label


@every_elementwise_op
def test_integers_have_the_values_of_the_floats_that_they_are(op):
    for case in integers_of(op):
        (got,) = case.run([wrap(a) for a in case.arrays])
        kept = got.dtype.kind != "f" or "input_dtype" in op.extra
        arrays = [a if kept or a.dtype.kind == "b" else a.astype(float) for a in case.arrays]
        with np.errstate(all="ignore"):
            (expected,) = case.expected(arrays)
        # What is no number is outside of what a reference is meant for.
        there = np.isfinite(expected)
        assert got.shape == expected.shape
        expected = expected.astype(got.dtype)
        assert_close(to_array(got)[there], expected[there], msg=case.label)
