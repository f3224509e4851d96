"""Laws that every op obeys which takes complex numbers, or gives them.

A gradient is PyTorch's: real and imaginary part are the slopes in the two. The oracle for values is
the op's `reference`, which NumPy computes for complex numbers too; derivatives are differences in
real and imaginary directions, and forward mode is the transpose of reverse mode.
"""

import numpy as np
import pytest

import probtorch
from probtorch.autograd.checking import gradcheck, gradgradcheck
from probtorch.autograd.tape import grad
from probtorch.core.dispatch import wrap
from probtorch.errors import DTypeError
from probtorch.func import jvp, vmap
from probtorch.testing.compare import assert_close, to_array
from probtorch.testing.sweep import complex_cases, complex_ops, registered_ops

# Of Hermitian matrices, or with factors of arbitrary angles: see tests/ops/test_complex_linalg.py.
FACTORS = {"cholesky", "eig", "eigh", "pinv", "qr", "svd"}
OPS = [op for op in complex_ops() if op.name not in FACTORS]
SMOOTH = [op for op in OPS if op.vjp is not None]
TWICE = [op for op in SMOOTH if op.name not in ("cofactor", "det_hessian")]


def each(ops):
    return pytest.mark.parametrize("op", ops, ids=lambda op: op.name)


def filled(op):
    """The last case of an op that has elements."""
    return [c for c in complex_cases(op) if any(a.size for a in c.arrays)][-1]


def on_tape(case):
    """What is differentiated, and the function of it: masks and indices stay as they are."""
    tensors = case.tensors()
    wanted = [i for i, x in enumerate(tensors) if x.requires_grad]

    def fn(*given):
        inputs = list(tensors)
        for i, x in zip(wanted, given, strict=True):
            inputs[i] = x
        return case.run(inputs)

    return fn, tuple(tensors[i] for i in wanted)


@each(OPS)
def test_value_is_that_of_the_reference(op):
    for case in complex_cases(op):
        for got, expected in zip(case.run(case.tensors()), case.expected(), strict=True):
            assert_close(got, expected, rtol=1e-10, atol=1e-12, msg=case.label)


@each([op for op in OPS if op.result != "bool" and not op.extra.get("of_complex")])
def test_single_precision_stays_single(op):
    case = filled(op)
    single = {np.dtype(np.complex128): np.complex64, np.dtype(np.float64): np.float32}
    inputs = [wrap(a.astype(single.get(a.dtype, a.dtype))) for a in case.arrays]
    for got, expected in zip(case.run(inputs), case.expected(), strict=True):
        if expected.dtype in single and "dtype" not in case.attrs:
            assert got.dtype == single[expected.dtype]
            assert_close(got, expected.astype(got.dtype), rtol=1e-4, atol=1e-5)


@each(SMOOTH)
def test_gradient_agrees_with_differences_in_both_directions(op):
    fn, inputs = on_tape(filled(op))
    assert gradcheck(fn, inputs, rtol=1e-5, atol=1e-7, fast_mode=True)


@each(TWICE)
def test_second_derivative_agrees_with_differences(op):
    fn, inputs = on_tape(filled(op))
    assert gradgradcheck(fn, inputs, rtol=1e-5, atol=1e-6, fast_mode=True)


@each(SMOOTH)
def test_forward_mode_is_the_transpose_of_reverse_mode(op):
    fn, inputs = on_tape(filled(op))
    rng = np.random.default_rng(3)

    def like(t):
        out = rng.standard_normal(t.shape)
        return wrap(out + 1j * rng.standard_normal(t.shape) if t.dtype.kind == "c" else out)

    tangents = tuple(like(x) for x in inputs)
    outputs = fn(*inputs)
    smooth = [k for k, o in enumerate(outputs) if o.requires_grad]
    outputs = [outputs[k] for k in smooth]
    gs = [like(o) for o in outputs]
    _, pushed = jvp(fn, tuple(x.detach() for x in inputs), tangents)
    pushed = [pushed[k] for k in smooth]
    pulled = grad(outputs, inputs, gs)

    def inner(xs, ys):
        return sum(float(np.sum(to_array(x).conj() * to_array(y)).real) for x, y in zip(xs, ys))

    assert_close(inner(gs, pushed), inner(pulled, tangents), rtol=1e-10, atol=1e-11)


@each(OPS)
def test_vmap_gives_what_a_loop_gives(op):
    case = filled(op)
    fn, inputs = on_tape(case) if op.vjp is not None else (lambda *xs: case.run(xs), case.tensors())
    inputs = [x.detach() for x in inputs]
    twice = [probtorch.stack([x, x * 2.0 if x.dtype.kind in "fc" else x]) for x in inputs]
    batched = vmap(fn)(*twice)
    for k in range(2):
        for got, expected in zip(batched, fn(*[x[k] for x in twice]), strict=True):
            assert_close(got[k], expected, rtol=1e-10, atol=1e-12)


@each([op for op in registered_ops() if not op.complex and op.public is not None])
def test_others_refuse_complex_numbers(op):
    z = wrap(np.array([0.3 + 0.2j, 0.5 - 0.1j]))
    with pytest.raises(DTypeError, match=r"(?s)expected.*got.*complex.*fix"):
        op.public(*[z] * len(op.domain))
