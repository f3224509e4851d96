"""NumPy's and SciPy's functions on tensors: their numbers, with the gradient, or an error.

Each call is made on arrays and on tensors. NumPy's own answer is the reference for values, and its
finite differences for the gradient.
"""

import math

import numpy as np
import pytest
from scipy import special

from probtorch.array_functions import FUNCTIONS, LOOKS
from probtorch.autograd import grad
from probtorch.compiler.compile import compile
from probtorch.core.dtype import float64
from probtorch.errors import AutogradError
from probtorch.func import vmap
from probtorch.ops.numeric import ldexp
from probtorch.tensor import Tensor, tensor

# v is a line of 6 numbers between 0.5 and 1.5, a a matrix of 4 x 4, s a positive definite one.
CALLS = {
    "append": lambda v, a, s: np.append(v, 1.0),
    "append along": lambda v, a, s: np.append(a, s, axis=1),
    "array_split": lambda v, a, s: np.array_split(v, 4)[1],
    "atleast_2d": lambda v, a, s: np.atleast_2d(v),
    "atleast_3d": lambda v, a, s: np.atleast_3d(a),
    "average": lambda v, a, s: np.average(a, 1, weights=np.abs(a.shape[0] + 0 * a)),
    "block": lambda v, a, s: np.block([[a, s], [s, a]]),
    "block of lines": lambda v, a, s: np.block([v, v]),
    "broadcast_arrays": lambda v, a, s: np.broadcast_arrays(v, np.zeros((2, 1)))[0],
    "clip": lambda v, a, s: np.clip(v, 0.7, 1.2),
    "convolve": lambda v, a, s: np.convolve(v, v[:3]),
    "convolve same": lambda v, a, s: np.convolve(v[:3], v, "same"),
    "convolve valid": lambda v, a, s: np.convolve(v, v[:4], mode="valid"),
    "corrcoef": lambda v, a, s: np.corrcoef(a),
    "cov": lambda v, a, s: np.cov(a),
    "cov of columns": lambda v, a, s: np.cov(a, rowvar=False, bias=True),
    "cross": lambda v, a, s: np.cross(v[:3], v[3:]),
    "degrees": lambda v, a, s: np.degrees(v),
    "delete": lambda v, a, s: np.delete(v, [0, 2]),
    "delete along": lambda v, a, s: np.delete(a, 1, axis=1),
    "diagflat": lambda v, a, s: np.diagflat(v[:2], 1),
    "dstack": lambda v, a, s: np.dstack([a, s]),
    "ediff1d": lambda v, a, s: np.ediff1d(v),
    "eigh": lambda v, a, s: np.linalg.eigh(s @ s.T)[0],
    "eigvalsh": lambda v, a, s: np.linalg.eigvalsh(s @ s.T),
    "fft": lambda v, a, s: np.abs(np.fft.fft(v)),
    "fmax": lambda v, a, s: np.fmax(v, 1.0),
    "gradient": lambda v, a, s: np.gradient(v),
    "gradient of matrix": lambda v, a, s: np.gradient(a, 0.5)[1],
    "heaviside": lambda v, a, s: np.heaviside(v - 1.0, 0.5) * v,
    "hsplit": lambda v, a, s: np.hsplit(a, 2)[1],
    "hypot": lambda v, a, s: np.hypot(v, 2.0),
    "i0": lambda v, a, s: np.i0(v),
    "insert": lambda v, a, s: np.insert(v, 2, 9.0),
    "insert at the end": lambda v, a, s: np.insert(v, 6, v[0]),
    "insert a row": lambda v, a, s: np.insert(a, 1, v[:4], axis=0),
    "insert from the right": lambda v, a, s: np.insert(v, -1, 3.0),
    "interp": lambda v, a, s: np.interp([-1.0, 0.1, 0.55, 0.9, 2.0], np.linspace(0, 1, 6), v),
    "interp at": lambda v, a, s: np.interp(
        v, [0.0, 0.6, 1.1, 1.2], [1.0, 3.0, -1.0, 0.0], left=7.0
    ),
    "irfft": lambda v, a, s: np.fft.irfft(np.fft.rfft(v) * 2.0, 6),
    "kron": lambda v, a, s: np.kron(a, s),
    "linspace": lambda v, a, s: np.linspace(v[0], v[1], 5),
    "linspace without end": lambda v, a, s: np.linspace(v, 2.0, 4, endpoint=False),
    "logspace": lambda v, a, s: np.logspace(v[0], v[1], 4),
    "lstsq": lambda v, a, s: np.linalg.lstsq(s, v[:4], rcond=None)[0],
    "matrix_power": lambda v, a, s: np.linalg.matrix_power(s, 3),
    "median": lambda v, a, s: np.median(a, axis=0),
    "meshgrid": lambda v, a, s: np.meshgrid(v, v[:3])[0],
    "meshgrid ij": lambda v, a, s: np.meshgrid(v, v[:3], v[:2], indexing="ij")[1],
    "meshgrid sparse": lambda v, a, s: np.meshgrid(v, v[:3], sparse=True)[1],
    "multi_dot": lambda v, a, s: np.linalg.multi_dot([a, s, v[:4]]),
    "nanmean": lambda v, a, s: np.nanmean(a, axis=1),
    "nansum": lambda v, a, s: np.nansum(np.where([True, False] * 3, v, math.nan)),
    "pad": lambda v, a, s: np.pad(v, 2),
    "pad with": lambda v, a, s: np.pad(a, ((1, 0), (2, 3)), constant_values=4.0),
    "pad edge": lambda v, a, s: np.pad(a, (1, 2), mode="edge"),
    "pad reflect": lambda v, a, s: np.pad(a, 2, mode="reflect"),
    "percentile": lambda v, a, s: np.percentile(v, 30),
    "percentiles": lambda v, a, s: np.percentile(a, [5, 95], axis=0),
    "piecewise": lambda v, a, s: np.piecewise(v, [v > 1.0], [lambda x: x * x, 0.5]),
    "pinv": lambda v, a, s: np.linalg.pinv(s[:, :2]),
    "polyval": lambda v, a, s: np.polyval(v, 0.7),
    "polyval at": lambda v, a, s: np.polyval([1.0, -2.0, 3.0], v),
    "ptp": lambda v, a, s: np.ptp(a, axis=1),
    "quantile": lambda v, a, s: np.quantile(a, 0.4, axis=1, keepdims=True),
    "repeat": lambda v, a, s: np.repeat(v, 2),
    "repeat each": lambda v, a, s: np.repeat(a, [0, 2, 1, 1], axis=0),
    "rfft": lambda v, a, s: np.real(np.fft.rfft(v)) + np.imag(np.fft.rfft(v)),
    "rot90": lambda v, a, s: np.rot90(a),
    "round": lambda v, a, s: np.round(v, 1) * v,
    "select": lambda v, a, s: np.select([v > 1.2, v > 0.7], [v * 3.0, v * v], 0.5),
    "sinc": lambda v, a, s: np.sinc(v),
    "split": lambda v, a, s: np.split(v, [1, 3])[1],
    "svd": lambda v, a, s: np.linalg.svd(s)[1],
    "svd values": lambda v, a, s: np.linalg.svd(a, compute_uv=False),
    "take_along_axis": lambda v, a, s: np.take_along_axis(a, np.array([[0], [3], [1], [1]]), 1),
    "trapezoid": lambda v, a, s: np.trapezoid(v, dx=0.1),
    "trapezoid at": lambda v, a, s: np.trapezoid(a, np.array([0.0, 1.0, 3.0, 4.0]), axis=0),
    "vander": lambda v, a, s: np.vander(v, 3),
    "vsplit": lambda v, a, s: np.vsplit(a, 2)[0],
}
SPECIAL = {
    "beta": (lambda v: special.beta(v, 2.0),),
    "boxcox": (lambda v: special.boxcox(v, 0.3), lambda v: special.boxcox(v, 0.0)),
    "boxcox1p": (lambda v: special.boxcox1p(v, [0.0, 1.0, 2.0, -1.0, 0.5, 0.0]),),
    "cosm1": (lambda v: special.cosm1(v),),
    "exp10": (lambda v: special.exp10(v),),
    "exprel": (lambda v: special.exprel(v - 1.0),),
    "gamma": (lambda v: special.gamma(v), lambda v: special.gamma(v - 4.2)),
    "huber": (lambda v: special.huber(1.0, 2.0 * v),),
    "inv_boxcox": (lambda v: special.inv_boxcox(v, 0.3), lambda v: special.inv_boxcox(v, 0.0)),
    "inv_boxcox1p": (lambda v: special.inv_boxcox1p(v, -0.3),),
    "j0": (lambda v: special.j0(v),),
    "k1": (lambda v: special.k1(v),),
    "kl_div": (lambda v: special.kl_div(v, v[::-1] if isinstance(v, np.ndarray) else v.flip(0)),),
    "powm1": (lambda v: special.powm1(v, 1e-9),),
    "pseudo_huber": (lambda v: special.pseudo_huber(0.7, v),),
    "rel_entr": (lambda v: special.rel_entr(v, 0.4),),
    "rgamma": (lambda v: special.rgamma(v - 4.2),),
}


def arrays():
    rng = np.random.default_rng(5)
    a = rng.random((4, 4))
    return rng.random(6) + 0.5, a, a @ a.T + np.eye(4)


def assert_as_numpy(call, *points):
    expected = np.asarray(call(*points))
    leaves = [tensor(x, requires_grad=True) for x in points]
    found = call(*leaves)
    assert isinstance(found, Tensor)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(call(*map(tensor, points)).numpy(), expected, rtol=1e-10, atol=1e-12)
    slopes = grad(found.sum(), leaves, materialize_grads=True, allow_unused=True)
    rng, eps = np.random.default_rng(1), 1e-6
    towards = [rng.normal(size=x.shape) for x in points]
    ahead = np.asarray(call(*(x + eps * d for x, d in zip(points, towards, strict=True)))).sum()
    behind = np.asarray(call(*(x - eps * d for x, d in zip(points, towards, strict=True)))).sum()
    along = sum((d * g.numpy()).sum() for d, g in zip(towards, slopes, strict=True))
    assert along == pytest.approx((ahead - behind) / (2 * eps), rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("name", CALLS)
def test_numbers_and_gradients_of_numpys_functions(name):
    assert_as_numpy(CALLS[name], *arrays())


@pytest.mark.parametrize("name", SPECIAL)
def test_numbers_and_gradients_of_scipys_functions(name):
    for call in SPECIAL[name]:
        assert_as_numpy(call, arrays()[0])


def test_entropies_where_a_probability_is_zero():
    x, y = [0.0, 0.0, 1.0, -1.0, math.nan], [0.0, 2.0, 0.0, 1.0, 1.0]
    for fn in (special.rel_entr, special.kl_div):
        found = fn(tensor(x, dtype=np.float64), tensor(y, dtype=np.float64))
        np.testing.assert_array_equal(found.numpy(), fn(x, y))


def test_whole_numbers_have_numpys_numbers():
    n = np.array([3, 1, 4, 1, 5, 9])
    for call in (
        lambda x: np.quantile(x, 0.3),
        lambda x: np.interp(2.5, [1.0, 2.0, 3.0], x[:3]),
        lambda x: np.repeat(x, 2),
        lambda x: np.gradient(x * 1.0),
        lambda x: np.trapezoid(x),
        lambda x: np.kron(x, x),
        lambda x: np.gcd(x, 6),
        lambda x: np.append(x, x),
        lambda x: np.percentile(x, [10, 90]),
        lambda x: np.pad(x, 1),
    ):
        np.testing.assert_allclose(call(tensor(n)).numpy(), call(n), rtol=1e-6)


def test_pieces_of_a_split_are_as_many_as_numpys():
    v = arrays()[0]
    with pytest.raises(ValueError, match="equal division"):
        np.split(tensor(v), 4)
    assert [p.shape[0] for p in np.array_split(tensor(v), 4)] == [2, 2, 1, 1]


def test_what_has_no_gradient_here_says_so():
    v = tensor(arrays()[0], requires_grad=True)
    for call in (np.unwrap, np.histogram, lambda x: np.correlate(x, x), np.unique):
        with pytest.raises(AutogradError, match="gradient"):
            call(v)


# Functions of arrays that would cut a gradient: refused with one, NumPy's own without.
WITHOUT_A_GRADIENT = (
    "apply_along_axis apply_over_axes argpartition astype bincount busday_count busday_offset "
    "choose common_type compress copyto correlate cumulative_prod cumulative_sum "
    "datetime_as_string diag_indices_from einsum_path extract fill_diagonal geomspace histogram "
    "histogram2d histogram_bin_edges histogramdd in1d intersect1d is_busday iscomplex isin "
    "isneginf isposinf isreal ix_ lexsort min_scalar_type nanargmax nanargmin nancumprod "
    "nancumsum nanmax nanmedian nanmin nanpercentile nanprod nanquantile nanstd nanvar packbits "
    "partition place poly polyadd polyder polydiv polyfit polyint polymul polysub put "
    "put_along_axis putmask ravel_multi_index real_if_close resize rollaxis roots row_stack "
    "savez_compressed setdiff1d setxor1d sort_complex tril_indices_from trim_zeros "
    "triu_indices_from union1d unique unique_all unique_counts unique_inverse unique_values "
    "unpackbits unravel_index unwrap "
)


def test_every_function_of_numpy_has_been_decided_on():
    dispatcher = type(np.sum)
    known = WITHOUT_A_GRADIENT.split()
    undecided = [
        name
        for name in dir(np)
        if isinstance(getattr(np, name), dispatcher)
        and getattr(np, name) not in FUNCTIONS
        and getattr(np, name) not in LOOKS
        and name not in known
    ]
    assert undecided == []


INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    "a, v",
    [
        ([1.0, 2.0, 3.0], [NAN, 1.0]),
        ([1.0, 2.0, 3.0], [INF, 0.0, 1.0, 2.0]),
        ([INF, 0.0], [1.0, 0.0, 2.0]),
    ],
)
def test_convolve_spreads_what_is_not_finite_no_further_than_numpy(a, v):
    for mode in ("full", "same", "valid"):
        found = np.convolve(tensor(a), v, mode).numpy()
        np.testing.assert_array_equal(found, np.convolve(a, v, mode))
    x = tensor(a, dtype=float, requires_grad=True)
    (g,) = grad(np.convolve(x, [0.0, 2.0])[-1], [x])
    assert g.tolist() == [0.0] * (len(a) - 1) + [2.0]


@pytest.mark.parametrize(
    "values",
    [
        [1.0, INF, 3.0],
        [INF, INF, 3.0],
        [-INF, INF, NAN],
        [NAN, INF, INF],
        [1.0, complex(1.0, INF), 3.0],
    ],
    ids=str,
)
def test_interp_is_numpys_beside_infinite_values(values):
    x = [-1.0, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, NAN]
    expected = np.interp(x, [0, 1, 2], values)
    with np.errstate(invalid="ignore"):
        found = np.interp(tensor(x), [0, 1, 2], values)
    np.testing.assert_array_equal(found.numpy(), expected)


def test_ldexp_holds_where_the_power_is_no_number():
    x = np.array([0.0, 1e-300, INF, 1.0, 1e300, 5e-324, 0.3, 1e-300, -3.0])
    power = np.array([2000, 1100, -3000, -1074, -2100, 2097, -1030, 5000, 2])
    with np.errstate(over="ignore"):
        expected, t = np.ldexp(x, power), tensor(x, requires_grad=True)
        np.testing.assert_array_equal(np.ldexp(t, power).numpy(force=True), expected)
        single = tensor(power.astype(np.float32))
        np.testing.assert_array_equal(ldexp(t, single).numpy(force=True), expected)


def test_average_refuses_weights_that_add_up_to_nothing():
    def mean(x, w):
        return np.average(x, axis=-1, weights=w)

    a, w = tensor([[1.0, 2.0], [3.0, 5.0]]), tensor([[1.0, 1.0], [1.0, 3.0]])
    native, none = compile(mean), tensor([[1.0, 1.0], [1.0, -1.0]])
    for fn in (mean, vmap(mean), native, native, native):
        assert fn(a, w).tolist() == [1.5, 4.5]
    for fn in (mean, native):
        with pytest.raises(ZeroDivisionError, match="add up to 0"):
            fn(a, none)
    assert vmap(mean)(a, none).tolist() == [1.5, -INF]


def test_ldexp_by_an_infinite_power_is_that_power_times_the_number():
    x = tensor([0.0, 1.5, -2.0, np.inf], requires_grad=True)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(
            ldexp(x, np.inf).numpy(force=True), x.numpy(force=True) * np.inf
        )
        np.testing.assert_array_equal(ldexp(x, -np.inf).numpy(force=True), x.numpy(force=True) * 0)
    power = tensor([0.5, 300.25, -1040.5], dtype=float64, requires_grad=True)
    ldexp(tensor([3.0, 1e-80, 1e100], dtype=float64), power).sum().backward()
    slopes = [3.0 * 2**0.5, 1e-80 * 2**300.25, 1e100 * 2**-1022.0 * 2**-18.5]
    np.testing.assert_allclose(power.grad, np.log(2.0) * np.array(slopes), rtol=1e-12)


def test_interp_up_to_a_place_that_is_no_number_is_numpys():
    x, places, values = np.array([-1.0, 0.5, 1.0, 7.0, NAN]), [0.0, 1.0, NAN], [1.0, 2.0, 3.0]
    found = np.interp(tensor(x), tensor(places), tensor(values))
    np.testing.assert_array_equal(found.numpy(), np.interp(x, places, values))
