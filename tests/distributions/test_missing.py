"""Names that are not there: what was meant, and recipes whose densities are checked with SciPy."""

import importlib

import numpy as np
import pytest
import scipy.special
import scipy.stats

import probtorch
import probtorch.distributions as dist
from probtorch.distributions.missing import NOTES, RECIPES
from probtorch.errors import UnknownImportError, UnknownNameError

NAMES = {
    **{name: getattr(probtorch, name) for name in dir(probtorch) if not name.startswith("_")},
    **{name: getattr(dist.transforms, name) for name in dist.transforms.__all__},
    **{name: getattr(dist, name) for name in dist.__all__},
}


def f64(value):
    return probtorch.tensor(value, dtype=probtorch.float64)


def log_ordered(y):
    c = np.concatenate([[0.0], scipy.special.expit(np.array([-1.0, 0.5, 2.0]) - 0.3), [1.0]])
    return np.log(np.diff(c))[np.asarray(y, int)]


COUNTS, SHARES = [0.0, 1.0, 4.0], [0.1, 0.5, 0.93]
COV = np.array([[2.0, 0.3], [0.3, 1.0]])
TRUTHS = {
    "OrderedLogit": ({"cutpoints": [-1.0, 0.5, 2.0], "eta": 0.3}, [0.0, 1.0, 3.0], log_ordered),
    "Reciprocal": ({"low": 0.5, "high": 4.0}, [1.0, 3.0], scipy.stats.loguniform(0.5, 4.0).logpdf),
    "LogitUniform": ({}, [-1.0, 2.0], scipy.stats.logistic.logpdf),
    "MvNormal": (
        {"loc": [0.0, 1.0], "cov": COV},
        [0.5, 0.5],
        scipy.stats.multivariate_normal([0, 1], COV).logpdf,
    ),
}


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_is_the_distribution_it_stands_for(name):
    given, values, truth = TRUTHS[name]
    given = {key: f64(value).requires_grad_() for key, value in given.items()}
    with probtorch.default_dtype_as(probtorch.float64):
        made = eval(RECIPES[name], {**NAMES, **given})
        density = made.log_prob(f64(values))
    np.testing.assert_allclose(density.detach().numpy(), truth(values), rtol=1e-8, atol=1e-12)
    if density.requires_grad:
        # In a model the parameters are latent: no gradient may be lost to the form of the recipe.
        density.sum().backward()
        for key, value in given.items():
            assert value.grad is None or np.isfinite(value.grad.numpy()).all(), key


@pytest.mark.parametrize("name", [*RECIPES, *NOTES])
def test_name_of_another_library_says_how_to_write_it(name):
    assert not hasattr(dist, name), "it is there by now: take it out of missing.py"
    with pytest.raises(UnknownNameError) as info:
        getattr(dist, name)
    text = str(info.value)
    assert f"got:      {name!r}" in text and "expected: a name" in text
    assert (RECIPES.get(name) or NOTES[name]) in text.partition("fix:")[2]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("Nromal", "did you mean Normal?"),
        ("Multivariate_Normal", "did you mean MultivariateNormal?"),
        ("lognormal", "did you mean LogNormal?"),
        ("StudntT", "did you mean StudentT?"),
        ("DiscretHMM", "did you mean DiscreteHMM?"),
        ("Zyx", "factor('y', log_density)"),
    ],
)
def test_misspelt_name_says_what_was_meant(name, meant):
    with pytest.raises(AttributeError, match="fix:") as info:
        getattr(dist, name)
    assert meant in str(info.value)


def test_import_of_a_missing_name_says_it_too():
    with pytest.raises(UnknownImportError) as info:
        from probtorch.distributions import OrderedLogit  # noqa: F401
    assert isinstance(info.value, ImportError)
    assert RECIPES["OrderedLogit"] in str(info.value)


def test_modules_can_be_imported_and_private_names_are_plain():
    assert importlib.import_module("probtorch.distributions.beta").Beta is dist.Beta
    with pytest.raises(AttributeError, match=r"no attribute '__wrapped__'$"):
        dist.__wrapped__  # noqa: B018


def test_star_brings_transforms_as_in_pytorch():
    wanted = {"Normal", "ExpTransform", "AffineTransform", "constraints", "kl_divergence"}
    assert wanted <= set(dist.__all__)
