"""The tools for testing tell right from wrong: each is shown something broken."""

import numpy as np
import pytest

import probtorch
from probtorch.autograd.checking import complex_step, difference
from probtorch.core.op import REGISTRY, Op
from probtorch.errors import DTypeError
from probtorch.ops.families import elementwise
from probtorch.testing import GradcheckError, assert_close, gradcheck, gradgradcheck
from probtorch.testing.domains import DOMAINS, draw
from probtorch.testing.sweep import Case, cases, layouts, registered_ops, untested_ops


def leaf(*values):
    return probtorch.tensor(list(values), dtype=probtorch.float64, requires_grad=True)


# ------------------------------------------------------------------------------------------ compare


def test_equal_up_to_rounding_is_close():
    assert_close(probtorch.tensor([1.0, 2.0]), np.float32([1.0 + 1e-7, 2.0]))
    assert_close(np.array([1.0]), [1.0 + 1e-13])
    assert_close(np.array([np.nan, np.inf]), [np.nan, np.inf])
    assert_close([probtorch.tensor(1.0), 2.0], [1.0, 2.0])


def test_assert_close_walks_trees_and_says_where_they_differ():
    ones = probtorch.ones(2)
    tree = {"a": [ones, (ones, np.zeros((2, 3)))], "b": ones}
    assert_close(tree, {"b": [1.0, 1.0], "a": [ones, (ones, np.zeros((2, 3)))]})
    with pytest.raises(AssertionError, match=r"\['a'\]\[1\]\[0\]: 1 of 2 elements differ"):
        assert_close(tree, {"a": [ones, (ones + np.eye(2)[0], np.zeros((2, 3)))], "b": ones})
    with pytest.raises(AssertionError, match=r"items differ: got \['a', 'b'\], expected \['a'\]"):
        assert_close(tree, {"a": ones})
    with pytest.raises(AssertionError, match=r"expected Tensor"):
        assert_close(tree, ones)
    with pytest.raises(AssertionError, match=r"items differ: got \[0, 1\], expected \[0\]"):
        assert_close([ones, ones], [ones])


def test_worst_element_is_shown():
    with pytest.raises(AssertionError) as caught:
        assert_close(
            np.array([[1.0, 2.0], [3.0, 4.5]]), np.array([[1.0, 2.1], [3.0, 4.0]]), msg="law"
        )
    message = str(caught.value)
    assert message.startswith("law: 2 of 4 elements differ; the worst is at (1, 1)")
    assert "4.5" in message and "4.0" in message and "0.5 absolute" in message


@pytest.mark.parametrize(
    "actual, expected, words",
    [
        (np.ones(2), np.ones((2, 1)), "shapes differ"),
        (np.array([1]), np.array([2]), "1 of 1 elements"),
        (np.array([np.inf]), np.array([-np.inf]), "1 of 1 elements"),
        (np.array([np.nan]), np.array([1.0]), "1 of 1 elements"),
        (np.array([1.0]), np.array([1.0 + 1e-9]), "1e-09 absolute"),
    ],
    ids=range(5),
)
def test_what_differs_is_not_close(actual, expected, words):
    with pytest.raises(AssertionError, match=words):
        assert_close(actual, expected)


def test_dtype_and_nan_can_be_asked_about():
    with pytest.raises(AssertionError, match="dtypes differ"):
        assert_close(np.float32([1.0]), np.float64([1.0]), check_dtype=True)
    with pytest.raises(AssertionError, match="elements differ"):
        assert_close(np.array([np.nan]), np.array([np.nan]), equal_nan=False)


def test_tolerance_is_that_of_the_coarser_dtype():
    assert_close(np.float32([1.0]), np.float64([1.0 + 1e-6]))
    with pytest.raises(AssertionError):
        assert_close(np.float64([1.0]), 1.0 + np.float64([1e-6]))


# ------------------------------------------------------------------------------------------ domains


@pytest.mark.parametrize("name", DOMAINS)
def test_values_lie_in_their_domain_and_are_spread(name):
    domain = DOMAINS[name]
    x = draw(name, np.random.default_rng(0), (4, 5))
    assert x.shape == (4, 5)
    inside = np.zeros(x.shape, bool)
    for low, high in domain.pieces:
        inside |= (low <= x) & (x <= high)
    assert inside.all()
    if domain.kind == "float":
        assert len(np.unique(x)) == x.size
        for low, high in domain.pieces:
            part = x[(low <= x) & (x <= high)]
            assert np.ptp(part) > 0.5 * (high - low)
    assert draw(name, np.random.default_rng(0)).shape == ()
    assert draw(name, np.random.default_rng(0), (2, 0)).shape == (2, 0)


# ---------------------------------------------------------------------------------------- gradcheck


class WrongGradient(probtorch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x * 2.005


class WrongSecondGradient(probtorch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (x + x.detach())


def test_right_gradients_pass():
    x, y = leaf(0.5, 1.5), leaf(2.0)
    fn = lambda x, y: (probtorch.sin(x) * y, x.sum() ** 2)
    assert gradcheck(fn, (x, y))
    assert gradcheck(fn, (x, y), fast_mode=True)
    assert gradgradcheck(fn, (x, y))
    assert gradgradcheck(fn, (x, y), [leaf(1.0, 2.0), leaf(3.0)[0]])


def test_functions_that_close_over_their_input_are_seen():
    x = leaf(0.5, 1.5)
    assert gradcheck(lambda _: (x * x).sum(), (x,))
    assert gradgradcheck(lambda _: (x * x * x).sum(), (x,))
    assert x.tolist() == [0.5, 1.5]
    with pytest.raises(GradcheckError):
        gradcheck(lambda _: (x.detach() * x).sum(), (x,))
    assert x.tolist() == [0.5, 1.5]


def test_an_input_in_read_only_memory_is_replaced():
    assert gradcheck(lambda x: (x * x).sum(), (leaf(0.5).expand(3, 1),))


def test_right_gradients_of_functions_that_bend_pass_with_the_default_tolerances():
    def cauchy(x):
        return -(1.0 + (x / 0.03) ** 2).log()

    assert gradcheck(cauchy, (leaf(0.01, 0.05),))
    assert gradcheck(lambda x: (x * 120.0).exp(), (leaf(0.3),))


@pytest.mark.parametrize("fast", [False, True])
def test_wrong_gradient_is_found(fast):
    with pytest.raises(GradcheckError, match="output 0 with respect to input 0") as caught:
        gradcheck(WrongGradient.apply, leaf(0.5, 1.5), fast_mode=fast)
    assert "by differences" in str(caught.value)
    assert not gradcheck(WrongGradient.apply, leaf(0.5), raise_exception=False)


def test_wrong_second_gradient_is_found():
    assert gradcheck(WrongSecondGradient.apply, leaf(0.5))
    with pytest.raises(GradcheckError):
        gradgradcheck(WrongSecondGradient.apply, leaf(0.5))


def test_unused_input_has_gradient_zero():
    assert gradcheck(lambda x, y: x * 2.0, (leaf(1.0), leaf(2.0)))


def test_float32_cannot_be_checked():
    with pytest.raises(DTypeError, match="float32 for input 0"):
        gradcheck(probtorch.exp, probtorch.ones(2, requires_grad=True))


def test_differences_have_ten_digits():
    x = np.array([0.3, 1.7])
    assert_close(difference(np.sin, x, np.ones(2)), np.cos(x), rtol=1e-10)


def test_complex_step_is_exact_and_knows_what_is_not_analytic():
    x = np.array([0.3, 1.7])
    assert_close(complex_step(np.exp, x, np.ones(2)), np.exp(x), rtol=1e-15)
    assert complex_step(np.abs, x, np.ones(2)) is None
    assert complex_step(np.floor, x, np.ones(2)) is None
    assert complex_step(lambda z: z * np.abs(z), x, np.ones(2)) is None
    assert complex_step(lambda z: np.asarray(z, dtype=float), x, np.ones(2)) is None


# -------------------------------------------------------------------------------------------- sweep


@pytest.fixture
def new_op():
    """Declare ops for one test and take them out of the registry again."""
    before = set(REGISTRY)

    def declare(**changes):
        rules = {
            "formula": lambda s, x: x * x,
            "partials": (lambda g, x: g * (x * 2.0),),
            "saves": ("x",),
            "domain": ("real",),
            "reference": np.square,
        }
        return elementwise("made_for_a_test", **{**rules, **changes})

    yield declare
    for name in set(REGISTRY) - before:
        del REGISTRY[name]


def test_declared_op_is_swept(new_op):
    new_op()
    op = REGISTRY["made_for_a_test"]
    assert op in registered_ops()
    labels = [case.label for case in cases(op)]
    assert {"0-d", "vector", "empty", "matrix"} <= set(labels)


def test_op_without_reference_or_domain_is_reported(new_op):
    new_op(reference=None)
    assert untested_ops() == ["made_for_a_test"]


def test_op_with_neither_domain_nor_samples_is_reported(new_op):
    new_op(domain=())
    assert untested_ops() == ["made_for_a_test"]


def test_cases_are_the_same_at_every_call(new_op):
    new_op()
    op = REGISTRY["made_for_a_test"]
    for a, b in zip(cases(op), cases(op), strict=True):
        for x, y in zip(a.arrays, b.arrays, strict=True):
            np.testing.assert_array_equal(x, y)


def test_test_values_keep_away_from_kinks(new_op):
    new_op(
        formula=lambda s, x, y: s.maximum(x, y),
        partials=(lambda g: g, lambda g: g),
        saves=None,
        domain=("real", "real"),
        reference=np.maximum,
    )
    for case in cases(REGISTRY["made_for_a_test"]):
        x, y = np.broadcast_arrays(*case.arrays)
        assert (np.abs(x - y) > 2e-3).all()


def test_domain_that_is_all_kinks_is_reported(new_op):
    new_op(reference=lambda x: np.floor(x * 300.0))
    with pytest.raises(ValueError, match="made_for_a_test: the declared domain has a kink"):
        cases(REGISTRY["made_for_a_test"])


def test_slope_prefers_the_complex_step():
    op = Op("cube", "test", None, reference=lambda x: x**3)
    case = Case(op, "one", (np.array([2.0]),), {})
    slope, exact = case.slope(0, np.ones(1))
    assert exact
    assert_close(slope, [12.0], rtol=1e-15)
    op = Op("abs", "test", None, reference=np.abs)
    slope, exact = Case(op, "one", (np.array([-2.0]),), {}).slope(0, np.ones(1))
    assert not exact
    assert_close(slope, [-1.0], rtol=1e-9)


def test_layouts_hold_the_same_elements_elsewhere():
    x = np.arange(6.0).reshape(2, 3)
    found = dict(layouts(x))
    assert {"column-major", "negative stride", "every second element", "read-only"} == set(found)
    for made in found.values():
        np.testing.assert_array_equal(made, x)
    assert found["negative stride"].strides[0] < 0
    assert not found["read-only"].flags.writeable
    assert "expanded" in dict(layouts(np.ones((2, 3))))
    assert [label for label, _ in layouts(np.array(1.0))] == ["read-only"]
