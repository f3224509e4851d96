"""Kernels against formulas of two points, written out in NumPy."""

import math

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch.contrib.gp import kernels as k
from probtorch.errors import ArgumentError, DomainError, DTypeError, ShapeError
from probtorch.nn import PyroSample
from probtorch.testing import assert_close

VARIANCE, LENGTHS = 1.7, np.array([0.6, 1.3])
V = probtorch.tensor(VARIANCE, dtype=probtorch.float64)
L = probtorch.tensor(LENGTHS)
W = np.array([[0.3, -1.0], [0.8, 0.2]])


def r2(x, z):
    return (((x - z) / LENGTHS) ** 2).sum()


def min_abs(x, z):
    return min(abs(x[0]), abs(z[0])) if x[0] * z[0] > 0 else 0.0


def matern(nu):
    def value(x, z):
        from scipy.special import gamma, kv

        s = math.sqrt(2 * nu * r2(x, z))
        return VARIANCE * (2 ** (1 - nu) / gamma(nu) * s**nu * kv(nu, s) if s else 1.0)

    return value


CASES = {
    "RBF": (lambda: k.RBF(2, V, L), lambda x, z: VARIANCE * math.exp(-r2(x, z) / 2)),
    "RationalQuadratic": (
        lambda: k.RationalQuadratic(2, V, L, probtorch.tensor(0.75)),
        lambda x, z: VARIANCE * (1 + r2(x, z) / 1.5) ** -0.75,
    ),
    "Exponential": (lambda: k.Exponential(2, V, L), matern(0.5)),
    "Matern32": (lambda: k.Matern32(2, V, L), matern(1.5)),
    "Matern52": (lambda: k.Matern52(2, V, L), matern(2.5)),
    "Cosine": (
        lambda: k.Cosine(2, V, L),
        lambda x, z: VARIANCE * math.cos(math.sqrt(r2(x, z))),
    ),
    "Periodic": (
        lambda: k.Periodic(2, V, L, probtorch.tensor(0.75)),
        lambda x, z: (
            VARIANCE * math.exp(-2 * (np.sin(np.pi * (x - z) / 0.75) ** 2 / LENGTHS**2).sum())
        ),
    ),
    "Linear": (lambda: k.Linear(2, V), lambda x, z: VARIANCE * (x @ z)),
    "Polynomial": (
        lambda: k.Polynomial(2, V, probtorch.tensor(0.5), degree=3),
        lambda x, z: VARIANCE * (0.5 + x @ z) ** 3,
    ),
    "Constant": (lambda: k.Constant(2, V), lambda x, z: VARIANCE),
    "WhiteNoise": (lambda: k.WhiteNoise(2, V), lambda x, z: VARIANCE if x is z else 0.0),
    "Brownian": (lambda: k.Brownian(1, V), lambda x, z: VARIANCE * min_abs(x, z)),
    "Coregionalize": (
        lambda: k.Coregionalize(2, components=probtorch.tensor(W), diagonal=L),
        lambda x, z: x @ (W @ W.T + np.diag(LENGTHS)) @ z,
    ),
    "Multitask": (
        # The sign of the second column says which task.
        lambda: k.Warping(
            k.Multitask(k.RBF(1, V, L[0]), 2, components=probtorch.tensor(W[:, :1]), diagonal=L),
            lambda x: probtorch.stack([x[:, 0], (x[:, 1] > 0.0).double()], -1),
        ),
        lambda x, z: (
            VARIANCE
            * math.exp(-(((x[0] - z[0]) / LENGTHS[0]) ** 2) / 2)
            * (W[:, :1] @ W[:, :1].T + np.diag(LENGTHS))[int(x[1] > 0), int(z[1] > 0)]
        ),
    ),
    "Sum": (
        lambda: k.RBF(2, V, L) + k.Linear(2, V),
        lambda x, z: VARIANCE * (math.exp(-r2(x, z) / 2) + x @ z),
    ),
    "Product": (
        lambda: 2.0 * k.RBF(2, V, L) * k.Linear(1, V, active_dims=[1]),
        lambda x, z: 2.0 * VARIANCE**2 * math.exp(-r2(x, z) / 2) * x[1] * z[1],
    ),
    "Power": (lambda: k.Linear(2, V) ** 2, lambda x, z: (VARIANCE * (x @ z)) ** 2),
    "Exponent": (
        lambda: k.Exponent(k.Linear(2, V)),
        lambda x, z: math.exp(VARIANCE * (x @ z)),
    ),
    "VerticalScaling": (
        lambda: k.VerticalScaling(k.RBF(2, V, L), lambda x: x[:, 0] + 2.0),
        lambda x, z: VARIANCE * math.exp(-r2(x, z) / 2) * (x[0] + 2) * (z[0] + 2),
    ),
    "Warping": (
        lambda: k.Warping(k.RBF(2, V, L), lambda x: x**3, [0.5, 0.0, 2.0]),
        lambda x, z: 0.5 + 2.0 * (VARIANCE * math.exp(-r2(x**3, z**3) / 2)) ** 2,
    ),
}
RNG = np.random.default_rng(0)
X, Z = RNG.normal(size=(5, 2)), RNG.normal(size=(4, 2))


def test_every_kernel_has_a_case():
    bases = {"Kernel", "Combination", "DotProduct", "Isotropy"}
    assert set(CASES) == set(k.__all__) - bases


@pytest.mark.parametrize("name", CASES)
def test_covariances_are_those_of_the_formula(name):
    make, formula = CASES[name]
    kernel, x, z = make(), list(X), list(Z)
    tx, tz = probtorch.tensor(X), probtorch.tensor(Z)
    expected = np.array([[formula(a, b) for b in x] for a in x])
    np.testing.assert_allclose(kernel(tx).detach().numpy(), expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(
        kernel(tx, diag=True).detach().numpy(), np.diag(expected), rtol=1e-12, atol=1e-12
    )
    across = np.array([[formula(a, b) for b in z] for a in x])
    np.testing.assert_allclose(kernel(tx, tz).detach().numpy(), across, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in CASES if name != "Cosine"])
def test_covariances_are_positive_semidefinite_with_finite_slopes(name):
    kernel = CASES[name][0]()
    # Points twice: distances of 0 have slopes, too.
    x = probtorch.tensor(np.concatenate([X, X[:2]]))
    values = np.linalg.eigvalsh(kernel(x).detach().numpy())
    assert values[0] > -1e-12 * values[-1]
    for wrt_points in (False, True):
        inputs = x.clone().requires_grad_(wrt_points)
        kernel.zero_grad()
        (kernel(inputs) ** 2).sum().backward()
        for p in kernel.parameters():
            assert probtorch.isfinite(p.grad).all()
        if wrt_points and name not in ("Constant", "WhiteNoise"):
            assert probtorch.isfinite(inputs.grad).all()


def test_kernels_look_at_their_columns():
    kernel = k.RBF(1, active_dims=[1])
    assert kernel(probtorch.tensor(X)).equal(k.RBF(1)(probtorch.tensor(X[:, 1])))
    assert (kernel + k.RBF(1, active_dims=[0])).active_dims == [0, 1]
    with pytest.raises(ShapeError, match=r"more than 1 dims.*\n.*got: +shape \(5, 1\)"):
        kernel(probtorch.zeros(5, 1))
    with pytest.raises(ArgumentError, match="as many active_dims as input_dim says, 2"):
        k.RBF(2, active_dims=[0])


def test_arguments_that_make_no_kernel_are_refused():
    with pytest.raises(ArgumentError, match="a positive number"):
        k.RBF(1) + -1.0
    with pytest.raises(DTypeError, match="a kernel, and a kernel or a positive number"):
        k.Sum(k.RBF(1), "x")
    with pytest.raises(ArgumentError, match="positive int"):
        k.RBF(1) ** 0.5
    with pytest.raises(ArgumentError, match="positive int as degree"):
        k.Polynomial(1, degree=0)
    with pytest.raises(ArgumentError, match="nonnegative owarping_coef"):
        k.Warping(k.RBF(1), owarping_coef=[1.0, -1.0])
    with pytest.raises(ArgumentError, match="input_dim 1"):
        k.Brownian(2)
    with pytest.raises(ShapeError, match=r"components of shape \(2, 1\)"):
        k.Coregionalize(2, rank=1, components=probtorch.zeros(2, 3))
    with pytest.raises(ArgumentError, match=r"num_tasks.*\n.*a positive int"):
        k.Multitask(k.RBF(1), 0)
    with pytest.raises(ArgumentError, match=r"task_dim.*\n.*kern does not look.*\n.*1, where"):
        k.Multitask(k.RBF(1, active_dims=[1]), 2, task_dim=1)
    with pytest.raises(ArgumentError, match=r"num_tasks.*\n.*a positive int.*\n.*True"):
        k.Multitask(k.RBF(1), True)


@pytest.mark.parametrize("task", [0.9, -0.9, -1.0, 3.0, np.nan, np.inf, -np.inf])
def test_tasks_that_there_are_not_are_refused(task):
    points = probtorch.tensor([[0.3, 1.0], [0.5, task]])
    with pytest.raises(DomainError, match=rf"column 1 of X\n.*from 0 to 2\n.*{task:g} in row 1\n"):
        k.Multitask(k.RBF(1), 3)(points)


def test_the_column_of_tasks_may_be_counted_from_the_last():
    w = probtorch.tensor([[1.0], [-1.0]])
    points = probtorch.tensor([[0.3, 7.0, 0.0], [0.4, 8.0, 1.0]])
    found, expected = (
        k.Multitask(k.RBF(2), 2, components=w, task_dim=dim)(points) for dim in (-1, 2)
    )
    assert_close(found, expected)
    kernel = k.Multitask(k.RBF(2), 2, task_dim=-1)
    with pytest.raises(ArgumentError, match=r"task_dim.*\n.*kern does not look.*\n.*1, where"):
        kernel(points[:, 1:])


def test_a_compiled_kernel_of_tasks_refuses_them_too():
    kernel = k.Multitask(k.RBF(1), 2)
    compiled = probtorch.compile(lambda points: kernel(points).detach())
    points = probtorch.tensor([[0.3, 1.0], [0.5, 0.0]])
    for _ in range(3):
        assert_close(compiled(points), kernel(points).detach())
    assert compiled.reason is None
    with pytest.raises(DomainError, match="from 0 to 1"):
        compiled(points + 0.5)


def test_priors_are_read_from_the_model_and_from_the_guide():
    kernel = k.RBF(1, lengthscale=dist.LogNormal(0.0, 1.0))
    kernel.variance = PyroSample(dist.Gamma(2.0, 2.0))
    kernel.autoguide("lengthscale", dist.Normal, init=probtorch.tensor(2.0))
    kernel.set_mode("guide")
    names = {name for name, _ in kernel.named_parameters()}
    assert {n.removesuffix("_unconstrained") for n in names} == {
        *("lengthscale_loc", "lengthscale_scale", "variance_map"),
    }
    assert kernel.variance.item() == pytest.approx(1.0)  # the mean of its prior
    probtorch.manual_seed(0)
    draws = np.array([kernel.lengthscale.item() for _ in range(400)])
    # A normal of the log with standard deviation 0.1: the mean of 400 is within 4 of 0.005.
    assert abs(np.log(draws).mean() - math.log(2.0)) < 0.02
    kernel.autoguide("lengthscale")  # the mode instead: the normal's parameters go
    assert not any("lengthscale_loc" in name for name, _ in kernel.named_parameters())
    kernel.set_mode("model")
    assert len({kernel.lengthscale.item() for _ in range(3)}) == 3
    with pytest.raises(ArgumentError, match=r"one of \['lengthscale', 'variance'\]"):
        kernel.autoguide("noise")
    with pytest.raises(DTypeError, match="Delta, Normal or MultivariateNormal"):
        kernel.autoguide("variance", dist.Gamma)
    with pytest.raises(ArgumentError, match="'model' or 'guide'"):
        kernel.set_mode("eval")


def test_joint_guide_of_a_vector():
    kernel = k.RBF(2, lengthscale=dist.LogNormal(probtorch.zeros(2), 1.0).to_event(1))
    kernel.autoguide("lengthscale", dist.MultivariateNormal)
    kernel.set_mode("guide")
    assert kernel.lengthscale.shape == (2,) and (kernel.lengthscale > 0).all()
    assert kernel.lengthscale_scale_tril.shape == (2, 2)
