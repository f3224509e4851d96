"""Complex arguments in probtorch and in PyTorch: values, gradients and second derivatives.

The calls are those of fitting_calls.py with complex numbers in place of most real ones, and random
calls of torch.fft. What either library refuses is no difference here: who takes complex numbers is
said in the reference.
"""

import dataclasses
import functools
import itertools

import numpy as np
import pytest

import probtorch
from probtorch import fft
from tests.contracts.fitting_arguments import Data
from tests.contracts.fitting_calls import RANDOM, RECIPES, draw_call

pytestmark = pytest.mark.slow
torch = pytest.importorskip("torch")
agreement = pytest.importorskip("tests.contracts.torch_agreement")

# Of matrices that are not Hermitian, triangular or with a real diagonal, of signs of factors, of
# results of no gradient (None or zeros), of infinities: rows of the page of differences.
OTHERWISE = {
    *("cholesky", "cholesky_solve", "Tensor.cholesky_inverse", "Tensor.qr", "Tensor.svd"),
    *("linalg.cholesky", "linalg.cholesky_ex", "linalg.eigh", "linalg.eigvalsh", "linalg.qr"),
    *("linalg.svd", "Tensor.__pow__", "Tensor.__rpow__", "pow", "Tensor.copy_", "Tensor.zero_"),
    *("Tensor.fill_", "Tensor.matrix_power", "norm", "ldexp", "trapezoid", "empty_like"),
    *("Tensor.expm1_", "Tensor.log1p_", "cholesky_inverse", "block_diag", "trapz"),
    "functional.rms_norm",  # of a real input with a complex weight
}


def complexified(a, rng):
    """Most real data with imaginary parts, in double precision, without what is not finite."""
    if isinstance(a, (list, tuple)):
        return type(a)(complexified(v, rng) for v in a)
    if not isinstance(a, Data) or a.array.dtype.kind != "f":
        return a
    real = np.where(np.isfinite(a.array), a.array, 1.0)
    if rng.random() < 0.15:
        return dataclasses.replace(a, array=real.astype(np.float64))
    whole = real.astype(np.float64) + 1j * rng.standard_normal(real.shape)
    return dataclasses.replace(a, array=np.asarray(whole))


def differentiable(t):
    return str(t.dtype).rpartition(".")[2] in ("float32", "float64", "complex64", "complex128")


def plain(t):
    return None if t is None else np.asarray(t.detach().resolve_conj().numpy())


def derivatives(room, leaves, inputs):
    """Values, gradients of a random real function of them, and gradients of those."""
    rng, total = np.random.default_rng(0), None
    for t in leaves:
        if differentiable(t) and t.requires_grad:
            w = rng.standard_normal(tuple(t.shape)) + 1j * rng.standard_normal(tuple(t.shape))
            part = ((t * room.from_numpy(np.asarray(w))).sum() ** 2).real
            total = part if total is None else total + part
    if total is None:
        return []
    first = room.autograd.grad(total, inputs, create_graph=True, allow_unused=True)
    again = sum((g.abs() ** 2).sum() for g in first if g is not None)
    if not getattr(again, "requires_grad", False):
        return list(first)
    return [*first, *room.autograd.grad(again, inputs, allow_unused=True)]


def outcome(room, fn, make):
    """Results and derivatives as arrays; None where the library refuses."""
    try:
        args, options, tensors = make(room)
        inputs = [t.requires_grad_() for t in tensors if differentiable(t)]
        if getattr(fn, "__name__", "").endswith("_") and inputs and args[0] is inputs[0]:
            args[0] = args[0].clone()
        leaves = [
            t
            for t in agreement.leaves_of(fn(*args, **options), room)[1]
            if isinstance(t, room.Tensor)
        ]
        return [plain(t) for t in (*leaves, *derivatives(room, leaves, inputs))]
    except Exception:
        return None


def agree(ours, theirs):
    # Where one has no derivative, of what has no elements or is constant, the other has zeros.
    for x, y in itertools.zip_longest(ours, theirs):
        if x is None or y is None:
            x, y = (np.zeros(1) if v is None else v for v in (x, y))
        scale = max(1.0, np.max(np.abs(y), initial=0.0))
        if np.isfinite(y).all() and not np.allclose(x, y, rtol=1e-7, atol=1e-7 * scale):
            return False
    return True


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted({*RECIPES} - OTHERWISE - RANDOM - agreement.NOT_CALLED))
def test_complex_arguments_give_what_they_give_in_pytorch(name):
    for seed in range(8):
        call, rng = draw_call(name, seed), np.random.default_rng(seed)
        call = dataclasses.replace(
            call,
            args=complexified(call.args, rng),
            options={k: complexified(v, rng) for k, v in call.options.items()},
        )
        if not any(d.array.dtype.kind == "c" for d in call.leaves()):
            continue
        fns = agreement.functions(name, seed)
        ours, theirs = (
            outcome(r, fn, call.arguments) for r, fn in zip((probtorch, torch), fns, strict=True)
        )
        if ours is not None and theirs is not None:
            assert agree(ours, theirs), f"{call}"


ONE = "angle conj conj_physical real imag resolve_conj resolve_neg view_as_real Tensor.cdouble"
CALLS = {
    **{name: (lambda f, z: f(z)) for name in ONE.split()},
    "Tensor.cfloat": lambda f, z: f(z).to(z.dtype),
    "Tensor.conj_physical_": lambda f, z: f(z * 1.0),
    "is_conj": lambda f, z: z * float(f(z)),
    "is_neg": lambda f, z: z * float(f(z)),
    "complex": lambda f, z: f(z.real, z.imag * 2.0),
    "polar": lambda f, z: f(z.real.exp(), z.imag),
    "view_as_complex": lambda f, z: f(z.abs().reshape(3, 2)),
    "linalg.eigvals": lambda f, z: (f(z[:2]) ** 3).sum(),
    "linalg.eig": lambda f, z: (f(z[:2])[1].abs() * f(z[:2])[0].abs()).sum(-1),
    "stft": lambda f, z: f(z.reshape(6), 4, 2, onesided=False),
    "istft": lambda f, z: f(z, 4, 2, center=False),
}


def test_what_recipes_leave_out_is_called_here():
    assert set(CALLS) == agreement.OF_COMPLEX


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CALLS)
def test_functions_of_complex_numbers_give_what_they_give_in_pytorch(name):
    room, _, last = name.rpartition(".")
    rng = np.random.default_rng(0)
    z = rng.standard_normal((3, 2)) + 1j * rng.standard_normal((3, 2))

    def make(library):
        t = library.tensor(z)
        return [t], {}, [t]

    ours, theirs = (
        outcome(library, functools.partial(CALLS[name], getattr(r, last)), make)
        for library, r in zip((probtorch, torch), agreement.ROOMS[room], strict=True)
    )
    assert ours is not None and theirs is not None
    assert agree(ours, theirs)


@pytest.mark.parametrize("seed", range(5))
def test_fourier_transforms_give_what_they_give_in_pytorch(seed):
    rng = np.random.default_rng(seed)
    for _ in range(60):
        name = str(rng.choice(["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"]))
        x = rng.standard_normal(tuple(rng.integers(1, 6, 3)))
        if name not in ("rfft", "ihfft"):
            x = x + 1j * rng.standard_normal(x.shape)
        options = {"norm": str(rng.choice(["backward", "ortho", "forward"]))}
        if rng.random() < 0.5:
            options |= {"n": int(rng.integers(2, 9)), "dim": int(rng.integers(-3, 3))}
        else:
            name, options["s"] = name + "n", [int(n) for n in rng.integers(2, 7, 2)]

        def make(room, x=x, options=options):
            t = room.tensor(x)
            return [t], options, [t]

        fns = getattr(fft, name), getattr(torch.fft, name)
        ours, theirs = (outcome(r, fn, make) for r, fn in zip((probtorch, torch), fns))
        assert ours is not None or theirs is None, f"{name} {x.shape} {options}"
        assert theirs is None or agree(ours, theirs), f"{name} {x.shape} {options}"
