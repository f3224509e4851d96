"""Floats of Python's that change are rounded as constants are, and keep their digits."""

import warnings

import pytest

import probtorch
import probtorch.distributions as dist
from probtorch import compile, tensor
from probtorch.compiler.paths import CompileWarning
from probtorch.testing import assert_close
from tests.compiler import number_programs
from tests.compiler.varying_places import VALUES, Holder, X, attribute, outcome, the_same


@pytest.mark.parametrize("block", range(2))
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_random_expressions_of_floats_that_change_are_those_of_python(block):
    found = [number_programs.check(seed) for seed in range(20 * block, 20 * (block + 1))]
    assert [f for f in found if f is not None] == []


@pytest.mark.parametrize(
    "made",
    [
        lambda b: probtorch.full((3,), b),
        lambda b: tensor(b),
        lambda b: tensor([b, b]),
        lambda b: probtorch.as_tensor(b),
        lambda b: probtorch.stack([tensor(b), tensor(0.5)]),
    ],
    ids=["full", "tensor", "list", "as_tensor", "stack"],
)
def test_tensors_made_of_a_number_that_changes_have_the_digits_of_their_dtype(made):
    # Where all comes to double precision again, nobody sees the dtype in between.
    fn, change = attribute(lambda x, b: made(b).double() + x.sum().double() * 0.0)
    native = compile(fn)
    for b in (0.1, 0.2, 0.3, 0.7, 0.9, 0.6):
        change(b)
        assert_close(native(X), fn(X), rtol=1e-15, atol=0.0)
    assert len(native.paths) == 2


M = tensor([True, False, True, True, False, False])
WIDE = X.double()


@pytest.mark.parametrize(
    "body",
    {
        "where": lambda x, b: probtorch.where(M, b, 0.5).double() + x,
        "where, two": lambda x, b: probtorch.where(M, b, b * 3.0).double() + x,
        "where, beside a tensor": lambda x, b: probtorch.where(M, b, x),
        "sqrt": lambda x, b: probtorch.sqrt(b).double() * x,
        "square": lambda x, b: probtorch.square(b).double() * x,
        "add": lambda x, b: probtorch.add(b, b / 3.0).double() + x,
        "out": lambda x, b: probtorch.neg(b, out=probtorch.empty(())).double() + x,
        "as_tensor": lambda x, b: probtorch.as_tensor(b).double() + x,
        "full_like": lambda x, b: probtorch.full_like(x, b),
        "lerp": lambda x, b: probtorch.lerp(x, x * 2.0, b),
        "quantile": lambda x, b: x * probtorch.quantile(x, b),
        "normal_": lambda x, b: probtorch.empty_like(x).normal_(0, b),
        "normal_ of singles": lambda x, b: probtorch.empty(6).normal_(0.0, b).double() + x,
        "uniform_": lambda x, b: probtorch.empty_like(x).uniform_(0, b),
        "exponential_": lambda x, b: probtorch.empty_like(x).exponential_(b),
        "normal": lambda x, b: probtorch.normal(0.0, b, (6,)).double() + x,
        "affine": lambda x, b: dist.AffineTransform(b, b * 2.0).log_abs_det_jacobian(x, x),
        "power": lambda x, b: dist.PowerTransform(b).log_abs_det_jacobian(x + 2.0, x),
        "interval": lambda x, b: dist.transforms.IntervalTransform(0.0, b)(x),
        "gammainc": lambda x, b: probtorch.special.gammainc(b, x + 2.0),
        "normal density": lambda x, b: dist.Normal(b, b).log_prob(x),
    }.items(),
    ids=lambda pair: pair[0],
)
def test_a_float_that_changes_is_rounded_as_often_as_a_constant(body):
    fn, change = attribute(body[1])
    native = compile(fn)
    for b in (0.1, 0.2, 0.3, 0.7, 0.9, 0.6):
        change(b)
        with warnings.catch_warnings():
            warnings.simplefilter("error", CompileWarning)
            found = outcome(native, WIDE)
        # The native code may join a product and a sum; nothing is rounded to single precision once
        # more, or once less.
        assert_close(found, outcome(fn, WIDE), rtol=1e-13, atol=1e-14)
    assert len(native.paths) <= 3


class Asking:
    """Methods that ask for types: one that nobody calls, and one whose answer tells nothing yet."""

    def __init__(self):
        self.number = 0.1

    def __repr__(this):
        return f"{type(this).__name__}({type(this.number).__name__})"

    def plain(self, x):
        return x * self.number

    def asking(self, x):
        return x * self.number * (1.0 if type(self.number) is float or self.number < 0.6 else 2.0)


@pytest.mark.parametrize(("name", "paths"), [("plain", 2), ("asking", len(VALUES))])
def test_code_that_asks_for_types_keeps_floats_constant_where_it_runs(name, paths):
    holder = Asking()
    fn = getattr(holder, name)
    native = compile(fn)
    for value in VALUES * 2:
        holder.number = value
        assert the_same(native(X), fn(X)), value
    assert len(native.paths) == paths


def test_a_number_that_a_long_loop_carries_keeps_its_digits():
    def falling(x, number):
        for _ in range(300):
            x, number = x * number + 0.1, number * 0.999
        return x

    fn, change = attribute(falling)
    native = compile(fn)
    for b in (0.1, 0.5, 0.7, 0.9, 0.95):
        change(b)
        # In single precision the number would be off by 1e-6, and the result by several times that.
        assert_close(native(X), fn(X), rtol=1e-6, atol=0.0)
    assert len(native.paths) == 2


def augmented(x, b):
    k = b
    k *= 2.0
    k += 1.0
    k -= b
    k /= 3.0
    return x * k + b


def augmented_in_a_list(x, b):
    numbers = [b, b]
    numbers[0] += 1.0
    return x * numbers[0] + numbers[1]


@pytest.mark.parametrize("body", [augmented, augmented_in_a_list])
def test_an_augmented_assignment_leaves_the_number_that_there_was(body):
    fn, change = attribute(body)
    native = compile(fn)
    for b in VALUES:
        change(b)
        assert_close(native(WIDE), fn(WIDE), rtol=1e-13, atol=1e-14)
    assert len(native.paths) == 2


def test_an_augmented_number_that_is_left_behind_has_all_its_digits():
    holder = Holder()

    def fn(x):
        holder.number += 0.0
        holder.number = abs(holder.number)
        return x * 2.0

    native = compile(fn)
    for b in VALUES:
        holder.number = b
        native(X)
        assert holder.number == b


# The class of a number that a recording for nothing returned, and the digits of one left behind.
@pytest.mark.parametrize("seed", [9600541, 9600111])
def test_random_expressions_that_were_wrong_once_are_those_of_python(seed):
    assert number_programs.check(seed) is None
