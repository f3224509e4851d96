"""Complex numbers beyond the laws of tests/contracts/test_complex_ops.py: dtypes, parts, views, the
tape's conventions, and who refuses them.
"""

import cmath
import io
import pickle

import numpy as np
import pytest

import probtorch
from probtorch import tensor
from probtorch.autograd.checking import gradcheck, gradgradcheck
from probtorch.compiler.paths import CompileWarning
from probtorch.errors import AutogradError, DTypeError
from probtorch.testing.compare import assert_close

Z = np.array([0.3 + 0.4j, -1.2 + 0.5j, 0.7 - 2.0j, -0.4 - 0.1j])


def leaf(values=Z):
    return tensor(np.array(values), requires_grad=True)


# ------------------------------------------------------------------------------------ what they are


@pytest.mark.parametrize(
    "x, y, expected",
    [
        (probtorch.ones(2), 1j, "complex64"),
        (probtorch.ones(2).double(), 1j, "complex128"),
        (probtorch.ones(2).long(), 1j, "complex64"),
        (probtorch.ones(2), probtorch.ones(2).cfloat(), "complex64"),
        (probtorch.ones(2).double(), probtorch.ones(2).cfloat(), "complex128"),
        (probtorch.ones(2).cfloat(), probtorch.tensor(1.0).double(), "complex64"),
        (probtorch.ones(2).cfloat(), probtorch.tensor(1j).cdouble(), "complex64"),
        (probtorch.ones(2).bool(), probtorch.ones(2).cfloat(), "complex64"),
    ],
)
def test_promotion_is_that_of_pytorch(x, y, expected):
    assert str((x * y).dtype) == expected
    assert str((y + x).dtype) == expected


def test_tensors_of_complex_numbers():
    assert tensor([1 + 2j]).dtype == probtorch.cfloat == probtorch.complex64
    assert tensor([1.0, 2j]).dtype == probtorch.complex64
    assert tensor(1j).dtype == probtorch.complex64
    assert tensor([1j], dtype=probtorch.cdouble).dtype == probtorch.complex128
    assert probtorch.zeros(2, dtype=probtorch.complex64).tolist() == [0j, 0j]
    assert probtorch.full((2,), 1 + 2j).dtype == probtorch.complex64
    with probtorch.default_dtype_as(probtorch.float64):
        assert tensor([1j]).dtype == probtorch.complex128
    assert tensor([1 + 2j]).tolist() == [1 + 2j] and tensor(1 - 1j).item() == 1 - 1j
    assert complex(tensor(2j)) == 2j and bool(tensor(1j)) and not bool(tensor(0j))
    assert tensor([1j]).is_complex() and probtorch.is_complex(tensor(1j))
    assert tensor([1j]).type() == "torch.ComplexFloatTensor"
    with pytest.raises(DTypeError, match=r"(?s)float\(\).*real number.*x.real"):
        float(tensor(1j))


def test_printed_as_pytorch_prints_them():
    assert repr(tensor([1 + 2j, 3 - 1j])) == "tensor([1.+2.j, 3.-1.j])"
    assert repr(tensor([0.5 - 10j])) == "tensor([0.5000-10.j])"
    assert repr(tensor([1j]).cdouble()) == "tensor([0.+1.j], dtype=complex128)"


def test_files_hold_them():
    z = leaf()
    for back in (pickle.loads(pickle.dumps(z)), _saved(z)):
        assert back.dtype == probtorch.complex128 and back.requires_grad
        assert_close(back.detach(), Z, rtol=0, atol=0)


def _saved(z):
    file = io.BytesIO()
    probtorch.save(z, file)
    file.seek(0)
    return probtorch.load(file)


# ---------------------------------------------------------------------------------- parts and forms


def test_parts_are_views():
    z = tensor(Z)
    z.real.fill_(2.0)
    z.imag[1] = -3.0
    probtorch.view_as_real(z)[0, 1] = 7.0
    assert z.tolist() == [2 + 7j, 2 - 3j, 2 - 2j, 2 - 0.1j]
    z.real = 1.0
    pairs = probtorch.view_as_real(z)
    assert probtorch.view_as_complex(pairs).data_ptr() == z.data_ptr()
    strided = probtorch.ones(2, 3).T
    assert_close(probtorch.view_as_complex(strided[:, :2]), np.full(3, 1 + 1j))
    with pytest.raises(DTypeError, match=r"(?s)imag.*complex numbers.*float32"):
        _ = probtorch.ones(2).imag
    assert probtorch.ones(2).real.tolist() == [1.0, 1.0]


def test_a_part_changed_on_the_tape_is_refused():
    z = leaf() * 2.0
    with pytest.raises(AutogradError, match="a view whose elements are elements of its base"):
        z.real.mul_(2.0)


def test_sizes_angles_and_directions():
    z = tensor(Z)
    assert_close(probtorch.angle(z), [cmath.phase(v) for v in Z])
    assert_close(probtorch.sgn(z), Z / np.abs(Z))
    assert_close(probtorch.polar(z.abs(), z.angle()), Z)
    assert_close(probtorch.complex(z.real, z.imag), Z)
    assert probtorch.angle(tensor([-1.0, 0.0, 2.0])).tolist() == [float(np.float32(np.pi)), 0, 0]
    assert probtorch.isreal(tensor([1j, 1 + 0j])).tolist() == [False, True]
    assert probtorch.isreal(tensor([1.0])).tolist() == [True]
    assert probtorch.sgn(tensor([-2.0, 0.0])).tolist() == [-1.0, 0.0]
    assert complex(probtorch.complex(tensor(np.inf), tensor(-np.inf))) == complex(np.inf, -np.inf)
    big = tensor(np.array([3e300 + 4e300j]))
    assert_close(big.abs(), [5e300])


def test_values_close_to_branch_points_keep_their_digits():
    z = tensor(np.array([1e-10 + 1e-12j, -1e-9 - 1e-11j, 1e-3j]))
    # Series to the terms that matter at these sizes.
    exact = z.numpy() + z.numpy() ** 2 / 2 + z.numpy() ** 3 / 6
    assert_close(probtorch.expm1(z), exact, rtol=1e-12)
    exact = z.numpy() - z.numpy() ** 2 / 2 + z.numpy() ** 3 / 3 - z.numpy() ** 4 / 4
    assert_close(probtorch.log1p(z), exact, rtol=1e-12)


def test_parts_that_are_nan_or_infinite_are_replaced_one_by_one():
    z = tensor([complex(np.nan, 2.0), complex(1.0, -np.inf)])
    assert probtorch.nan_to_num(z, 5.0, neginf=-7.0).tolist() == [5 + 2j, 1 - 7j]
    assert probtorch.isnan(z).tolist() == [True, False]
    assert probtorch.isfinite(z).tolist() == [False, False]


def test_conjugates_transposes_and_products():
    z = tensor(Z.reshape(2, 2))
    assert_close(z.H, Z.reshape(2, 2).conj().T)
    assert_close(z.mH, z.adjoint())
    assert_close(probtorch.vdot(z[0], z[1]), np.vdot(Z[:2], Z[2:]))
    assert_close(probtorch.linalg.vecdot(z, z), (np.abs(Z) ** 2).reshape(2, 2).sum(1))
    assert_close(probtorch.dot(z[0], z[1]), Z[:2] @ Z[2:])
    assert probtorch.conj(probtorch.ones(2)).tolist() == [1.0, 1.0]
    assert not z.is_conj() and z.resolve_conj() is z
    for p in (2, 1, 0, 0.5, np.inf, -np.inf):
        assert_close(z.norm(p), np.linalg.norm(np.abs(Z), p))
    assert_close(z.var(), np.var(Z, ddof=1))
    assert_close(probtorch.cov(z), np.cov(Z.reshape(2, 2)))
    assert probtorch.allclose(z, z + 1e-12j) and not probtorch.allclose(z, z + 1e-3j)
    assert_close(z.cumprod(1), Z.reshape(2, 2).cumprod(1))


# -------------------------------------------------------------------------------------- derivatives


def forms():
    square = probtorch.tensor(np.arange(4.0).reshape(2, 2) + 0.5)
    return {
        "abs": probtorch.abs,
        "angle": probtorch.angle,
        "sgn": probtorch.sgn,
        "conj": probtorch.conj,
        "expm1": probtorch.expm1,
        "log1p": probtorch.log1p,
        "sigmoid": probtorch.sigmoid,
        "norm": lambda z: z.norm(),
        "norm 3": lambda z: z.norm(3),
        "std": lambda z: z.std(),
        "vdot": lambda z: probtorch.vdot(z, z * z),
        "real and complex": lambda z: z.real * z + z.imag,
        "real matrix": lambda z: square @ z.reshape(2, 2),
        "einsum": lambda z: probtorch.einsum("i,j,i->j", z, z.conj(), z),
        "polar": lambda z: probtorch.polar(z.real.exp(), z.imag),
        "where": lambda z: probtorch.where(z.real > 0.0, z * z, z.conj()),
        "chosen": lambda z: z[[0, 2, 2]] * z.flip(0)[:3],
        "mean": lambda z: (z * 1j).mean(),
        "exponent": lambda z: 2.0**z + z**2.5 + z ** (1 + 1j) + (0.5 + 1j) ** z,
        "acosh": probtorch.acosh,
        "cast": lambda z: z.abs().to(probtorch.complex128) * z,
    }


@pytest.mark.parametrize("name", forms())
def test_derivatives_agree_with_differences(name):
    fn, z = forms()[name], leaf()
    assert gradcheck(fn, z, rtol=1e-5, atol=1e-7, fast_mode=True)
    assert gradgradcheck(fn, z, rtol=1e-5, atol=1e-6, fast_mode=True)


def test_gradient_is_that_of_pytorch():
    # Of |z|^2 it is 2z, of f(z) = z^2 with cotangent 1 it is conj(2z).
    z = leaf()
    (z.abs() ** 2).sum().backward()
    assert_close(z.grad, 2 * Z)
    (g,) = probtorch.autograd.grad(z * z, z, probtorch.ones(4).cdouble())
    assert_close(g, (2 * Z).conj())
    x = tensor([1.0, 2.0], requires_grad=True)
    (x * 1j).imag.sum().backward()
    assert x.grad.dtype == probtorch.float32 and x.grad.tolist() == [1.0, 1.0]
    origin = leaf([0j])
    (origin.abs() + origin.angle()).sum().backward()
    assert origin.grad.tolist() == [0j]


def test_complex_outputs_ask_for_a_cotangent():
    with pytest.raises(AutogradError, match=r"(?s)the output is complex.*\.abs\(\)"):
        leaf([1j]).sum().backward()


def test_hooks_and_custom_functions_see_gradients():
    class Square(probtorch.autograd.Function):
        @staticmethod
        def forward(ctx, z):
            ctx.save_for_backward(z)
            return z * z

        @staticmethod
        def backward(ctx, g):
            (z,) = ctx.saved_tensors
            seen.append(g)
            return g * (2.0 * z).conj()

    seen = []
    z = leaf()
    w = z * (1.0 + 0.5j)
    w.retain_grad()
    w.register_hook(seen.append)
    z.register_hook(seen.append)
    Square.apply(w).imag.sum().backward()
    assert_close(seen[0], np.full(4, 1j))
    slope = 1j * np.conj(2 * Z * (1 + 0.5j))
    assert_close(w.grad, slope)
    assert_close(seen[1], slope)
    assert_close(z.grad, slope * np.conj(1 + 0.5j))
    assert_close(seen[2], z.grad)
    assert gradgradcheck(Square.apply, z, fast_mode=True)


def test_a_scan_carries_complex_gradients():
    z = leaf()

    def steps(z):
        last, _ = probtorch.scan(lambda c, x: (c * x + 1j, c), tensor(1 + 0j).cdouble(), z)
        return last

    assert_close(steps(z), (((Z[0] + 1j) * Z[1] + 1j) * Z[2] + 1j) * Z[3] + 1j)
    assert gradcheck(steps, z, fast_mode=True)


# -------------------------------------------------------------------------------------- who refuses


def test_compiled_functions_that_meet_them_run_eagerly():
    fn = probtorch.compile(lambda x: (x * 1j).exp().real.sum())
    x = tensor(np.array([0.2, 1.5]))
    with pytest.warns(CompileWarning, match=r"complex numbers, which are computed eagerly"):
        assert_close(fn(x), np.cos([0.2, 1.5]).sum())
    assert_close(fn(x * 2.0), np.cos([0.4, 3.0]).sum())


@pytest.mark.parametrize(
    "call",
    [
        lambda z: z < z,
        lambda z: z.amax(),
        lambda z: z.sort(),
        lambda z: z.float(),
        lambda z: z.to(probtorch.float64),
        lambda z: probtorch.nn.functional.mse_loss(z, z),
        lambda z: probtorch.nn.functional.max_pool1d(z[None, None], 2),
        lambda z: probtorch.distributions.Normal(z, 1.0),
        lambda z: probtorch.distributions.Normal(0.0, 1.0).log_prob(z),
        lambda z: probtorch.optim.SGD([z.requires_grad_()], lr=0.1),
        lambda z: probtorch.zeros(4).double().add_(z),
    ],
)
def test_refused_where_they_mean_nothing(call):
    with pytest.raises(DTypeError, match=r"(?s)expected:.*got: .*complex.*fix:"):
        call(tensor(Z))
