"""What both libraries have of a distribution is the same, where PyTorch is installed.

Densities and their slopes in parameters and values, moments, entropies, cdfs. What differs is named
with its reason.
"""

import numpy as np
import pytest

from probtorch.autograd import grad
from probtorch.core.rng import Generator
from probtorch.tensor import Tensor
from tests.distributions.cases import CASES

torch = pytest.importorskip("torch")

# Polynomials in single precision stand for Bessel functions there.
TOLERANCES = {"VonMises": 1e-6}
DIFFERENT = {
    ("Categorical", "mean"): "of the category's number, where PyTorch says nan",
    ("Categorical", "variance"): "of the category's number, where PyTorch says nan",
    ("Categorical", "stddev"): "of the category's number, where PyTorch says nan",
    ("Dirichlet", "mode"): "none where the density is infinite at a vertex",
    ("Multinomial", "entropy"): "PyTorch takes log(total_count!) in single precision",
    ("Uniform", "mode"): "the middle, where PyTorch says nan",
    ("Weibull", "mode"): "0 where the density falls all along, where PyTorch says nan",
    ("LKJCholesky", "value"): "the first entry, which is 1, has a slope beside the support",
}

BOTH = [case for case in CASES if hasattr(torch.distributions, case.cls.__name__)]


def leaves(values):
    """Return parameters of both libraries that require gradients."""
    ours, theirs = dict(values), dict(values)
    for name, x in values.items():
        if isinstance(x, Tensor):
            ours[name] = x.detach().requires_grad_(x.is_floating_point())
            theirs[name] = torch.tensor(x.numpy().copy(), requires_grad=x.is_floating_point())
    return ours, theirs


def known(fn):
    """Return fn(), or None for what a library does not have."""
    try:
        return fn()
    except NotImplementedError:
        return None


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("case", BOTH, ids=lambda case: case.id)
def test_what_both_libraries_have_is_the_same(case, seed):
    name = case.cls.__name__
    ours, theirs = leaves(vars(case.arguments(seed)))
    d, other = case.cls(**ours), getattr(torch.distributions, name)(**theirs)
    x = d.sample((5,), Generator(seed))
    twin = torch.tensor(x.numpy().copy())
    if not d.is_discrete:
        x.requires_grad_(), twin.requires_grad_()
    tolerance = TOLERANCES.get(name, 1e-8)

    def compare(what, a, b):
        if a is None or b is None or (name, what) in DIFFERENT:
            return
        a, b = a.detach().numpy(), b.detach().numpy()
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=what)

    lp, expected = d.log_prob(x), other.log_prob(twin)
    compare("log_prob", lp, expected)
    names = [n for n, v in ours.items() if isinstance(v, Tensor) and v.requires_grad]
    at, there = [ours[n] for n in names], [theirs[n] for n in names]
    if not d.is_discrete:
        names, at, there = [*names, "value"], [*at, x], [*there, twin]
    if names:
        slopes = grad(lp.sum(), at, materialize_grads=True)
        others = torch.autograd.grad(expected.sum(), there, allow_unused=True)
        for what, a, b in zip(names, slopes, others, strict=True):
            compare(what, a, torch.zeros(a.shape) if b is None else b)
    for what in ("mean", "variance", "stddev", "mode"):
        compare(what, known(lambda w=what: getattr(d, w)), known(lambda w=what: getattr(other, w)))
    compare("entropy", known(d.entropy), known(other.entropy))
    if not d.event_shape:
        compare("cdf", known(lambda: d.cdf(x.detach())), known(lambda: other.cdf(twin.detach())))
