"""Values and slopes at the edges: infinities, zeros, ties, kinks, far tails, equal eigenvalues.

One row per case, numbered N01 to N35, run in double and in single precision, eager and compiled.
What is expected is exact arithmetic, a limit, mpmath at 50 digits, or a stated convention: ties
share evenly, and at 0 the slope of abs, relu, norms and std is 0. docs/guide/edges.md tells users.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import mpmath
import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch import linalg, special
from probtorch.autograd import grad
from probtorch.compiler.compile import compile
from probtorch.core.philox import bits_to_uniform as uniform_of_bits
from probtorch.errors import AutogradError, DivisionByZeroError
from probtorch.func import vjp, vmap
from probtorch.testing import assert_close

INF, NAN = math.inf, math.nan
LN2 = math.log(2.0)
mpmath.mp.dps = 50


def exactly(fn, *points):
    """`fn` of mpmath at some points, rounded once."""
    return [float(fn(mpmath.mpf(x))) for x in points]


def slope(fn):
    """The derivative of an elementwise function, itself with a derivative."""

    def derivative(x):
        (first,) = grad(fn(x).sum(), x, create_graph=True, materialize_grads=True)
        return first

    return derivative


@dataclass(frozen=True)
class Row:
    """A function of some tensors, its value, and the gradient of the sum of its elements.

    `gradients` has one entry per operand. Rounding is relative to the largest element that is
    expected, or to `size`, that of a number which the function goes through; `condition` times
    as much is allowed.
    """

    name: str
    fn: Callable
    inputs: tuple
    value: object
    gradients: tuple
    size: float = 0.0
    condition: float = 1.0


def row(name, fn, *inputs, value, gradients=(), **more):
    return Row(name, fn, inputs, value, gradients, **more)


def rooted(x):
    return probtorch.safe_where(x > 0, probtorch.sqrt, x, x)


def ndtri_1e20():
    return float(mpmath.findroot(lambda x: mpmath.ncdf(x) - mpmath.mpf("1e-20"), -9.26))


def projector(a):
    """Weights of the projection on the eigenspace of the two smallest eigenvalues."""
    vectors = linalg.eigh(a)[1][:, :2]
    weights = probtorch.tensor([[1.0, 2.0, 3.0], [2.0, 5.0, 7.0], [3.0, 7.0, 4.0]])
    return (vectors @ vectors.mT * weights.to(a.dtype)).sum()


LOG_I0E_800 = float(mpmath.log(mpmath.besseli(0, 800)) - 800)
HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
TIED = ([2.0, 2.0, 1.0],)
SHARED = ([0.5, 0.5, 0.0],)
EYES = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 2.0]]

ROWS = [
    # ----------------------------------------------------------------- branches and infinities
    row("N01 safe_where", rooted, [-1.0, 4.0], value=[-1.0, 2.0], gradients=([1.0, 0.25],)),
    row(
        "N01 masks",
        lambda x: dist.LogNormal(0.0, 1.0).mask(x > 0).log_prob(x),
        [-1.0, 1.0],
        value=[0.0, -HALF_LOG_2PI],
        gradients=([0.0, -1.0],),
    ),
    row(
        "N01 supports",
        lambda x: dist.LogNormal(0.0, 1.0, validate_args=False).log_prob(x),
        [-1.0, 1.0],
        value=[-INF, -HALF_LOG_2PI],
        gradients=([0.0, -1.0],),
    ),
    row(
        "N02 logsumexp of impossible",
        lambda x: probtorch.logsumexp(x, 0),
        [-INF, -INF],
        value=-INF,
        gradients=([0.0, 0.0],),
    ),
    row(
        "N03 logsumexp of infinite",
        lambda x: probtorch.logsumexp(x, 0),
        [INF, 0.0],
        value=INF,
        gradients=([1.0, 0.0],),
    ),
    row(
        "N03 logsumexp of one impossible",
        lambda x: probtorch.logsumexp(x, 0),
        [-INF, 3.0],
        value=3.0,
        gradients=([0.0, 1.0],),
    ),
    row(
        "N03 logsumexp of large",
        lambda x: probtorch.logsumexp(x, 0),
        [1000.0, 1000.0],
        value=1000.0 + LN2,
        gradients=([0.5, 0.5],),
        size=1000.0,
    ),
    row(
        "N04 logaddexp",
        probtorch.logaddexp,
        [-INF, INF, -INF, 5.0],
        [-INF, 0.0, 2.0, 5.0],
        value=[-INF, INF, 2.0, 5.0 + LN2],
        gradients=([0.0, 1.0, 0.0, 0.5], [0.0, 0.0, 1.0, 0.5]),
    ),
    row(
        "N05 logcumsumexp",
        lambda x: probtorch.logcumsumexp(x, 0),
        [-INF, -INF, 0.0],
        value=[-INF, -INF, 0.0],
        gradients=([0.0, 0.0, 1.0],),
    ),
    # --------------------------------------------------------------------------- norms, powers
    *(
        row(
            f"N06 norm {p}",
            lambda x, p=p: probtorch.norm(x, p),
            [0.0, 0.0],
            value=0.0,
            gradients=([0.0, 0.0],),
        )
        for p in (1, 2, 3, 1.5, INF, "fro")
    ),
    row(
        "N07 a norm is the safe root of squares",
        lambda x: linalg.vector_norm(x, dim=1),
        [[0.0, 0.0], [3.0, 4.0]],
        value=[0.0, 5.0],
        gradients=([[0.0, 0.0], [0.6, 0.8]],),
    ),
    row(
        "N08 pow",
        lambda x, y: x**y,
        [0.0, 0.0, 2.0],
        [0.0, 2.0, 3.0],
        value=[1.0, 0.0, 8.0],
        gradients=([0.0, 0.0, 12.0], [0.0, 0.0, 8.0 * LN2]),
    ),
    row(
        "N08 pow of a negative base",
        lambda x, y: x**y,
        [-2.0],
        [3.0],
        value=[-8.0],
        gradients=([12.0], [NAN]),
    ),
    row(
        "N09 second derivative of the first power",
        slope(lambda x: x**1.0),
        [0.0, 2.0],
        value=[1.0, 1.0],
        gradients=([0.0, 0.0],),
    ),
    # ---------------------------------------------------------------------------- kinks, ties
    row(
        "N10 clamp",
        lambda x: probtorch.clamp(x, 0.0, 1.0),
        [-1.0, 0.0, 0.5, 1.0, 2.0],
        value=[0.0, 0.0, 0.5, 1.0, 1.0],
        gradients=([0.0, 1.0, 1.0, 1.0, 0.0],),
    ),
    row("N11 amax", probtorch.amax, *TIED, value=2.0, gradients=SHARED),
    row("N11 max of a dim", lambda x: x.max(0).values, *TIED, value=2.0, gradients=SHARED),
    row("N11 max", lambda x: x.max(), *TIED, value=2.0, gradients=SHARED),
    row("N11 amin", lambda x: -probtorch.amin(-x), *TIED, value=2.0, gradients=SHARED),
    row("N11 median", lambda x: x.median(), [2.0, 2.0, 1.0], value=2.0, gradients=SHARED),
    row(
        "N11 maximum",
        probtorch.maximum,
        [2.0, 1.0],
        [2.0, 3.0],
        value=[2.0, 3.0],
        gradients=([0.5, 0.0], [0.5, 1.0]),
    ),
    row("N12 abs", probtorch.abs, [0.0, -2.0], value=[0.0, 2.0], gradients=([0.0, -1.0],)),
    row("N12 relu", probtorch.relu, [0.0, -0.0], value=[0.0, 0.0], gradients=([0.0, 0.0],)),
    row(
        "N13 softplus",
        probtorch.softplus,
        [-1000.0, 1000.0],
        value=[0.0, 1000.0],
        gradients=([0.0, 1.0],),
    ),
    row(
        "N13 log_sigmoid",
        probtorch.log_sigmoid,
        [-1000.0, 1000.0],
        value=[-1000.0, 0.0],
        gradients=([1.0, 0.0],),
    ),
    row(
        "N13 second derivative of softplus decays",
        slope(probtorch.softplus),
        [15.0, 25.0, 35.0],
        value=exactly(lambda x: 1 / (1 + mpmath.exp(-x)), 15, 25, 35),
        gradients=(exactly(lambda x: mpmath.exp(-x) / (1 + mpmath.exp(-x)) ** 2, 15, 25, 35),),
        size=1.0,  # 1 - sigmoid
    ),
    row(
        "N14 softmax",
        lambda x: probtorch.softmax(x, 1),
        [[-INF, -INF], [-INF, 0.0]],
        value=[[NAN, NAN], [0.0, 1.0]],
    ),
    row(
        "N15 xlogy",
        special.xlogy,
        [0.0, 0.0, 2.0],
        [0.0, 3.0, 3.0],
        value=[0.0, 0.0, 2.0 * math.log(3.0)],
        gradients=([0.0, math.log(3.0), math.log(3.0)], [0.0, 0.0, 2.0 / 3.0]),
    ),
    row("N16 atan2", probtorch.atan2, 0.0, 0.0, value=0.0, gradients=(0.0, 0.0)),
    # ------------------------------------------------------------------ reductions with zeros
    row("N17 std of constants", probtorch.std, [3.0] * 3, value=0.0, gradients=([0.0] * 3,)),
    *(
        row(f"N18 prod {x}", probtorch.prod, x, value=value, gradients=(gradient,))
        for x, value, gradient in (
            ([0.0, 2.0, 3.0], 0.0, [6.0, 0.0, 0.0]),
            ([0.0, 2.0, 0.0], 0.0, [0.0, 0.0, 0.0]),
            ([1.0, 2.0, 3.0], 6.0, [6.0, 3.0, 2.0]),
            ([4.0], 4.0, [1.0]),
        )
    ),
    row(
        "N18 cumprod",
        lambda x: probtorch.cumprod(x, 1),
        [[0.0, 2.0, 3.0], [0.0, 0.0, 3.0]],
        value=[[0.0] * 3, [0.0] * 3],
        gradients=([[1.0 + 2.0 + 6.0, 0.0, 0.0], [1.0, 0.0, 0.0]],),
    ),
    row(
        "N18 Hessian of prod with two zeros",
        # The Hessian's row of x[0]: its entry at x[2] is x[1].
        lambda x: slope(probtorch.prod)(x)[0],
        [0.0, 5.0, 0.0],
        value=0.0,
        gradients=([0.0, 0.0, 5.0],),
    ),
    # --------------------------------------------------------------------- special functions
    row(
        "N19 second derivative of sinc",
        slope(probtorch.sinc),
        [0.0],
        value=[0.0],
        gradients=([-(math.pi**2) / 3.0],),
    ),
    row(
        "N20 log_ndtr",
        special.log_ndtr,
        [-40.0],
        value=exactly(lambda x: mpmath.log(mpmath.ncdf(x)), -40),
        gradients=(exactly(lambda x: mpmath.npdf(x) / mpmath.ncdf(x), -40),),
    ),
    row(
        "N20 ndtr",
        special.ndtr,
        [-10.0],
        value=exactly(mpmath.ncdf, -10),
        gradients=(exactly(mpmath.npdf, -10),),
        condition=10.0,  # of exp(-50)
    ),
    row("N20 ndtri", special.ndtri, [1e-20], value=[ndtri_1e20()]),
    row(
        "N20 quantile of a normal",
        lambda p: dist.Normal(0.0, 1.0).icdf(p),
        [1e-20],
        value=[ndtri_1e20()],
    ),
    row(
        "N21 gammainc",
        special.gammainc,
        [2.0],
        [1.0],
        value=exactly(lambda a: mpmath.gammainc(a, 0, 1, regularized=True), 2),
        gradients=(
            [float(mpmath.diff(lambda a: mpmath.gammainc(a, 0, 1, regularized=True), 2))],
            [math.exp(-1.0)],
        ),
        condition=10.0,  # a series
    ),
    row(
        "N22 i0e",
        special.i0e,
        [800.0],
        value=exactly(lambda x: mpmath.besseli(0, x) * mpmath.exp(-x), 800),
    ),
    row(
        "N22 log of i0",
        lambda x: probtorch.log(special.i0e(x)),
        [800.0],
        value=[LOG_I0E_800],
        gradients=([float(mpmath.besseli(1, 800) / mpmath.besseli(0, 800) - 1)],),
        size=1.0,  # i1 / i0 - 1
    ),
    # ------------------------------------------------------------------------------ matrices
    *(
        row(
            f"N23 cdist {p}",
            lambda x, y, p=p: probtorch.cdist(x, y, p),
            [[1.0, 2.0]],
            [[1.0, 2.0], [4.0, 6.0]],
            value=[[0.0, value]],
            gradients=([[-dx, -dy]], [[0.0, 0.0], [dx, dy]]),
        )
        for p, value, dx, dy in ((2.0, 5.0, 0.6, 0.8), (1.0, 7.0, 1.0, 1.0), (INF, 4.0, 0.0, 1.0))
    ),
    row(
        "N24 sum of functions of equal eigenvalues",
        lambda a: linalg.eigh(a)[0].exp().sum(),
        EYES,
        value=2.0 * math.e + math.e**2,
        gradients=(np.diag(np.exp([1.0, 1.0, 2.0])).tolist(),),
    ),
    row(
        "N24 projection on equal eigenvalues",
        # First order: the symmetric part of -(W_ij) / (1 - 2) off the block, 0 within.
        projector,
        EYES,
        value=1.0 + 2.0 * 0.0 + 5.0,
        gradients=([[0.0, 0.0, -3.0], [0.0, 0.0, -7.0], [-3.0, -7.0, 0.0]],),
    ),
    row(
        "N24 sum of equal singular values",
        lambda a: linalg.svd(a, full_matrices=False)[1].sum(),
        [[2.0, 0.0], [0.0, 2.0], [0.0, 0.0]],
        value=4.0,
        gradients=([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]],),
    ),
    row(
        "N25 det of rank n - 1",
        linalg.det,
        [[1.0, 1.0], [1.0, 1.0]],
        value=0.0,
        gradients=([[1.0, -1.0], [-1.0, 1.0]],),
    ),
    row(
        "N25 slogdet of a singular matrix",
        lambda a: probtorch.stack(list(linalg.slogdet(a))),
        [[1.0, 1.0], [1.0, 1.0]],
        value=[0.0, -INF],
    ),
    row(
        "N26 cholesky",
        # L = [[2, 0], [1, 2]] and f = L[1, 1] = sqrt(c - b^2 / a): df = dc - 2b/a db + b^2/a^2 da,
        # over 2 L[1, 1], and db in equal parts at its two places.
        lambda a: linalg.cholesky(a)[1, 1],
        [[4.0, 2.0], [2.0, 5.0]],
        value=2.0,
        gradients=([[0.0625, -0.125], [-0.125, 0.25]],),
    ),
    # ------------------------------------------------------------------------------ sums, nan
    row(
        "N32 nan wins",
        lambda x: probtorch.stack([x.amax(), x.amin(), x.max(), x.min(), x[0].maximum(x[1])]),
        [1.0, NAN, 3.0],
        value=[NAN] * 5,
    ),
    row(
        "N32 nan is sorted last",
        lambda x: probtorch.sort(x).values,
        [1.0, NAN, -3.0],
        value=[-3.0, 1.0, NAN],
        gradients=([1.0, 1.0, 1.0],),
    ),
    row("N32 nan is the largest", lambda x: x.argmax(), [1.0, NAN, 3.0], value=1),
    row(
        "N33 gathered twice",
        lambda x, w: x[[0, 0, 2]] * w,
        [1.0, 2.0, 3.0],
        [1.0, 10.0, 100.0],
        value=[1.0, 10.0, 300.0],
        gradients=([11.0, 0.0, 100.0], [1.0, 1.0, 3.0]),
    ),
    row(
        "N33 scattered twice",
        lambda x, y: x.scatter_add(0, probtorch.tensor([1, 1]), y),
        [1.0, 2.0],
        [3.0, 4.0],
        value=[1.0, 9.0],
        gradients=([1.0, 1.0], [1.0, 1.0]),
    ),
]


def value_and_gradients(fn, *xs):
    """The value, and the gradients of the sum of its elements unless nothing has one."""
    out = fn(*xs)
    if not out.requires_grad:
        return (out,)
    ones = probtorch.ones_like(out.detach())  # not through sum(): infinities would cancel
    return (out.detach(), *grad(out, xs, ones, allow_unused=True, materialize_grads=True))


def check(case, got, dtype):
    for label, actual, expected in zip(
        ("value", "first gradient", "second gradient"), got, (case.value, *case.gradients)
    ):
        expected = np.asarray(expected, actual.dtype)
        size = np.max(np.abs(expected[np.isfinite(expected)]), initial=case.size)
        unit = 0.0 if expected.dtype.kind != "f" else np.finfo(dtype).eps
        rtol = 16 * unit * case.condition
        assert_close(actual, expected, rtol=rtol, atol=rtol * size / 4, msg=label)
        assert label == "value" or actual.dtype == dtype
    assert not case.gradients or len(got) == 1 + len(case.gradients)


@pytest.mark.parametrize("case", ROWS, ids=lambda case: case.name)
def test_row_holds_in_both_precisions_eager_and_compiled(case):
    half = len(case.inputs)

    def run(*xs):
        return value_and_gradients(case.fn, *xs[:half]), value_and_gradients(case.fn, *xs[half:])

    def operands():
        return [
            probtorch.tensor(x, dtype=dtype, requires_grad=True)
            for dtype in (probtorch.float64, probtorch.float32)
            for x in case.inputs
        ]

    native = compile(run)
    native(*operands())
    for got in (run(*operands()), native(*operands())):
        check(case, got[0], np.dtype("float64"))
        check(case, got[1], np.dtype("float32"))
    assert native.reason is None


@pytest.mark.parametrize("case", ROWS, ids=lambda case: case.name)
def test_row_holds_for_each_of_a_batch(case):
    def each(*xs):
        out, back = vjp(case.fn, *xs)
        return (out, *back(probtorch.ones_like(out))) if case.gradients else (out,)

    xs = [probtorch.tensor(x, dtype=probtorch.float64) for x in case.inputs]
    found = vmap(each)(*(probtorch.stack([x, x]) for x in xs))
    for k in range(2):
        check(case, [t[k] for t in found], np.dtype("float64"))


# --------------------------------------------------------------------------- what is no table's row


def test_n01_an_untaken_branch_spoils_the_slope_of_a_plain_where():
    # Said in docs/guide/edges.md, with safe_where as what to write.
    x = probtorch.tensor([-1.0], requires_grad=True)
    (slopes,) = grad(probtorch.where(x > 0, probtorch.sqrt(x), x).sum(), x)
    assert slopes.isnan().all()


def test_n17_std_of_one_element_is_nan_with_a_warning():
    with pytest.warns(UserWarning, match="degrees of freedom"):
        assert math.isnan(probtorch.tensor([3.0]).std().item())


def test_n18_hessian_of_prod_is_exact_with_two_zeros():
    h = probtorch.func.hessian(lambda x: x.prod())(probtorch.tensor([0.0, 5.0, 0.0]))
    assert h.tolist() == [[0.0, 0.0, 5.0], [0.0, 0.0, 0.0], [5.0, 0.0, 0.0]]


def test_n24_losses_through_repeated_singular_values_are_finite():
    a = probtorch.tensor(np.eye(3)[:, :2] * 2.0, requires_grad=True)
    u, s, vh = linalg.svd(a, full_matrices=False)
    (slopes,) = grad(((u * s) @ vh).square().sum(), a)
    assert_close(slopes, 2.0 * a.detach())


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(
    "fn, good, bad, error, words",
    [
        pytest.param(
            linalg.cholesky,
            [[[[2.0, 0.0], [0.0, 2.0]]] * 2],
            [[[[2.0, 0.0], [0.0, 2.0]], [[1.0, 2.0], [2.0, 1.0]]]],
            linalg.LinAlgError,
            r"batch index 1[\s\S]*leading minor of order 2",
            id="N27 cholesky of a matrix that is not positive definite",
        ),
        pytest.param(
            lambda x, i: x[i],
            [[1.0, 2.0, 3.0], [0, 2]],
            [[1.0, 2.0, 3.0], [0, 3]],
            IndexError,
            r"\[-3, 2\]",
            id="N28 index too large",
        ),
        pytest.param(
            lambda x, i: x[i],
            [[1.0, 2.0, 3.0], [0, -3]],
            [[1.0, 2.0, 3.0], [0, -4]],
            IndexError,
            r"\[-3, 2\]",
            id="N28 index too small",
        ),
        pytest.param(
            lambda x, y: x // y,
            [[5, 6], [2, 3]],
            [[5, 6], [2, 0]],
            ZeroDivisionError,
            "divisors other than 0",
            id="N29 integer division by 0",
        ),
        pytest.param(
            lambda x, y: x % y,
            [[5, 6], [2, 3]],
            [[5, 6], [2, 0]],
            DivisionByZeroError,
            "divisors other than 0",
            id="N29 remainder of a division by 0",
        ),
    ],
)
def test_wrong_operands_are_named(fn, good, bad, error, words, compiled):
    tensors = lambda values: [probtorch.tensor(v) for v in values]
    if compiled:
        fn = compile(fn)
        fn(*tensors(good))
        fn(*tensors(good))
    with pytest.raises(error, match=words):
        fn(*tensors(bad))


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_n30_numbers_outside_of_an_integer_dtype(compiled):
    # Infinities and what is too large become the ends of int32 and int64, nan becomes 0; narrower
    # dtypes keep the low bits of that (-1 is 255), as conversions of integers do.
    dtypes = [probtorch.int64, probtorch.int32, probtorch.int16, probtorch.uint8]
    fn = lambda x: [x.to(dtype) for dtype in dtypes]
    x = probtorch.tensor([INF, -INF, NAN, -1.0, 300.0, -2.5], dtype=probtorch.float64)
    if compiled:
        fn = compile(fn)
        fn(x)
    assert [t.tolist() for t in fn(x)] == [
        [2**63 - 1, -(2**63), 0, -1, 300, -2],
        [2**31 - 1, -(2**31), 0, -1, 300, -2],
        [-1, 0, 0, -1, 300, -2],
        [255, 0, 0, 255, 44, 254],
    ]


def test_n31_sum_of_many_float32_ones_is_exact():
    total = compile(lambda x: x.sum())
    ones = probtorch.ones(2**25)
    assert ones.sum().item() == total(ones).item() == total(ones).item() == 2.0**25


def test_n33_places_written_twice_keep_one_addition():
    # x[i] += 1 is a read, an addition and a write; scatter_add and index_put(accumulate) add twice.
    x, i = probtorch.zeros(3), probtorch.tensor([0, 0, 2])
    x[i] += 1.0
    assert x.tolist() == [1.0, 0.0, 1.0]
    added = probtorch.zeros(3).index_put((i,), probtorch.ones(3), accumulate=True)
    assert added.tolist() == [2.0, 0.0, 1.0]


def test_n34_change_of_a_saved_tensor_is_named():
    x = probtorch.ones(2, requires_grad=True)
    y = x.exp()
    y.add_(1.0)
    with pytest.raises(AutogradError, match=r"exp: [\s\S]*modified in place[\s\S]*test_edges\.py"):
        y.sum().backward()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_n35_uniforms_and_their_logarithms_are_never_at_the_ends(dtype, monkeypatch):
    words = np.array([0, 2**64 - 1], np.uint64)
    uniforms = uniform_of_bits(words)
    monkeypatch.setattr("probtorch.ops.random_numbers.consecutive_uniforms", lambda *_: uniforms)
    monkeypatch.setattr("probtorch.ops.random_numbers.native_numbers", lambda *_: None)
    u = probtorch.rand(2, dtype=getattr(probtorch, dtype))
    assert (0.0 < u).all() and (u < 1.0).all()
    assert probtorch.isfinite(probtorch.log(u)).all()
    assert probtorch.isfinite(probtorch.log1p(-u)).all()
    # The cells that are documented: 2^-53 from 0, and from 1 what the dtype can tell from it.
    assert u[0].item() == 2.0**-53
    assert 1.0 - u[1].item() == (2.0**-53 if dtype == "float64" else 2.0**-24)
