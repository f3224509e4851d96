"""Our own products of matrices: the right numbers, nothing beyond the operands, any threads."""

import ctypes
import functools
import mmap
import sys

import numpy as np
import pytest

import probtorch
from probtorch import compile
from probtorch.compiler.machine.engine import runtime_address
from probtorch.compiler.render.runtime import products
from probtorch.core.dispatch import wrap

TYPES = {"s": np.float32, "d": np.float64}
# Sums of k products are off by less than this times the sum of their magnitudes (k up to 512).
TOLERANCE = {"s": 3e-6, "d": 6e-15}
PAGE = mmap.PAGESIZE


@functools.cache
def native(p):
    types = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 7
    return ctypes.CFUNCTYPE(None, *types)(runtime_address(f"pt_product_{p}"))


class Fenced:
    """Memory between two pages that nobody may touch."""

    def __init__(self, size=64 * PAGE):
        self.size, self.map = size, mmap.mmap(-1, size + 2 * PAGE)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        protect = ctypes.CDLL(None).mprotect
        protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        for at in (0, size + PAGE):
            assert protect(self.base + at, PAGE, 0) == 0

    def array(self, count, dtype, at_end):
        """Numbers that begin after the first such page, or end before the second: all nan."""
        nbytes = count * np.dtype(dtype).itemsize
        at = self.base + PAGE + (self.size - nbytes if at_end else 0)
        out = np.frombuffer((ctypes.c_char * nbytes).from_address(at), dtype)
        out[:] = np.nan
        return out


def operand(fenced, rng, shape, dtype, at_end):
    """A matrix whose rows have nan between them."""
    leading = shape[1] + int(rng.integers(0, 9))
    flat = fenced.array((shape[0] - 1) * leading + shape[1], dtype, at_end)
    strides = leading * flat.itemsize, flat.itemsize
    out = np.lib.stride_tricks.as_strided(flat, shape, strides)
    out[:] = rng.standard_normal(shape)
    return out, leading


@pytest.fixture(scope="module")
def fences():
    return [Fenced() for _ in range(3)]


@pytest.mark.skipif(sys.platform != "linux", reason="pages are fenced as Linux does it")
@pytest.mark.parametrize("p", ["s", "d"])
@pytest.mark.parametrize("turned_b", [False, True], ids=["b", "turned b"])
@pytest.mark.parametrize("turned_a", [False, True], ids=["a", "turned a"])
def test_products_read_and_write_their_operands_alone(turned_a, turned_b, p, fences):
    rng = np.random.default_rng(3)
    dtype = TYPES[p]
    for trial in range(150):
        m, k, n = (int(x) for x in rng.integers(8, 80, 3))
        if trial == 0:
            m, k, n = 8, 512, 8
        at_end = bool(trial % 2)
        a, lda = operand(fences[0], rng, (k, m) if turned_a else (m, k), dtype, at_end)
        b, ldb = operand(fences[1], rng, (n, k) if turned_b else (k, n), dtype, at_end)
        c = fences[2].array(m * n, dtype, at_end)
        down_along = (1, lda) if turned_a else (lda, 1)
        pointers = (x.ctypes.data for x in (a, b, c))
        native(p)(*pointers, m, n, k, *down_along, ldb, int(turned_b))
        x = (a.T if turned_a else a).astype(np.longdouble)
        y = (b.T if turned_b else b).astype(np.longdouble)
        wrong = np.abs(c.reshape(m, n) - x @ y) / (np.abs(x) @ np.abs(y))
        assert wrong.max() < TOLERANCE[p], (m, k, n)


def forms(x, w, g):
    """What a linear layer and its gradients multiply."""
    return x @ w.T, g @ w, g.T @ x


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["f32", "f64"])
def test_products_of_a_layer_are_ours_and_equal_eager_ones(dtype):
    rng = np.random.default_rng(0)
    x, w, g = (
        wrap(rng.standard_normal(shape).astype(dtype)) for shape in ((96, 70), (45, 70), (96, 45))
    )
    layer = compile(forms)
    layer(x, w, g)
    tolerance = 70 * np.finfo(dtype).eps
    for got, want in zip(layer(x, w, g), forms(x, w, g), strict=True):
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=0, atol=8 * tolerance)
    p = "d" if dtype == np.float64 else "s"
    text = layer.source()
    assert text.count(f"call void @pt_product_{p}(") == 3


def test_products_of_many_matrices_with_one_are_one():
    rng = np.random.default_rng(1)
    x, w = wrap(rng.standard_normal((4, 30, 25))), wrap(rng.standard_normal((20, 25)))
    layer = compile(lambda x, w: x @ w.T)
    layer(x, w)
    np.testing.assert_allclose(layer(x, w).numpy(), x.numpy() @ w.numpy().T, rtol=1e-13, atol=1e-13)
    assert "call void @pt_product_d(" in layer.source()


@pytest.mark.parametrize("turned_b", [False, True], ids=["b", "turned b"])
def test_threads_change_no_bit(turned_b):
    rng = np.random.default_rng(2)
    m, k, n = 200, 150, 201
    assert m * k * n > products._SHARED
    a = rng.standard_normal((m, k))
    b = rng.standard_normal((n, k) if turned_b else (k, n))
    found = []
    before = probtorch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            probtorch.set_num_threads(threads)
            c = np.full((m, n), np.nan)
            sizes = m, n, k, k, 1, b.shape[1], int(turned_b)
            native("d")(a.ctypes.data, b.ctypes.data, c.ctypes.data, *sizes)
            found.append(c)
    finally:
        probtorch.set_num_threads(before)
    np.testing.assert_allclose(found[0], a @ (b.T if turned_b else b), rtol=1e-12, atol=1e-12)
    for c in found[1:]:
        np.testing.assert_array_equal(c, found[0])


def test_large_long_and_thin_products_are_left_to_blas():
    assert products.is_suitable(128, 200, 200, "s", True)
    assert not products.is_suitable(7, 200, 200, "s", False)
    assert not products.is_suitable(200, 7, 200, "s", False)
    assert not products.is_suitable(8, 200, 200, "s", True)
    assert not products.is_suitable(64, 64, 513, "d", False)
    assert not products.is_suitable(1000, 1000, 100, "s", False)


def test_what_reads_the_transpose_of_a_product_reads_it_by_rows():
    rng = np.random.default_rng(5)
    x, g = wrap(rng.standard_normal((96, 70))), wrap(rng.standard_normal((96, 45)))
    w = wrap(rng.standard_normal((45, 70)))
    descend = compile(lambda x, g, w: w - 0.1 * (x.T @ g).T)
    descend(x, g, w)
    want = w.numpy() - 0.1 * g.numpy().T @ x.numpy()
    np.testing.assert_allclose(descend(x, g, w).numpy(), want, rtol=1e-12, atol=1e-12)
    # g.T @ x, whose rows are what is subtracted.
    assert "i64 45, i64 70, i64 96," in descend.source()
    assert "mul nsw i64 %i2, 45" not in descend.source()


def test_a_product_that_is_read_both_ways_is_made_once():
    rng = np.random.default_rng(6)
    a, b = wrap(rng.standard_normal((40, 30))), wrap(rng.standard_normal((30, 40)))
    f = compile(lambda a, b: ((a @ b).T + (a @ b), (a @ b).T))
    f(a, b)
    product = a.numpy() @ b.numpy()
    both, turned = f(a, b)
    np.testing.assert_allclose(both.numpy(), product.T + product, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(turned.numpy(), product.T, rtol=1e-12, atol=1e-12)
    assert f.source().count("call void @pt_product_d(") == 1


def test_turning_back_leaves_operands_as_they_were():
    rng = np.random.default_rng(7)
    a, b = wrap(rng.standard_normal((40, 30))), wrap(rng.standard_normal((50, 40)))
    f = compile(lambda a, b: (a.T @ b.T).T.sum(dim=0) + (b @ a).T.sum(dim=1))
    f(a, b)
    np.testing.assert_allclose(f(a, b).numpy(), 2 * (b.numpy() @ a.numpy()).sum(0), rtol=1e-11)
