"""What depends on what, before data and after: Pyro 1.9's answers, and second derivatives."""

import itertools

import numpy as np
import pytest

import probtorch
from probtorch import deterministic, factor, handlers, param, plate, sample
from probtorch.distributions import Categorical, Delta, LogNormal, Normal
from probtorch.func import hessian
from probtorch.infer.inspect import get_dependencies, get_model_relations, render_model
from probtorch.infer.util import log_density

ZERO = probtorch.tensor(0.0)


def collider():
    a, b = sample("a", Normal(0.0, 1.0)), sample("b", LogNormal(0.0, 1.0))
    c = sample("c", Normal(a, b))
    sample("d", Normal(c, 1.0), obs=ZERO)


def plates():
    i, j = plate("i", 3, dim=-1), plate("j", 2, dim=-2)
    with i:
        a = sample("a", Normal(0.0, 1.0))
    with j:
        b = sample("b", Normal(0.0, 1.0))
    with i, j:
        c = sample("c", Normal(a + b, 1.0))
        sample("y", Normal(c, 1.0), obs=probtorch.zeros(2, 3))
    sample("z", Normal(c.mean() + a.sum(), 1.0), obs=ZERO)


def through():
    a = sample("a", Normal(0.0, 1.0))
    m = deterministic("m", a * param("k", ZERO + 1.0))
    s = sample("s", LogNormal(sample("d", Delta(m + 1.0)), 1.0))
    sample("y", Normal(m, s), obs=ZERO)


def others():
    a, b = sample("a", Normal(0.0, 1.0)), sample("b", Normal(0.0, 1.0))
    factor("f", a * b)
    k = sample("k", Categorical(probtorch.ones(3)))
    sample("y", Normal(probtorch.tensor([0.1, 0.5, 0.9])[k], 1.0), obs=ZERO)
    with handlers.mask(mask=False):
        sample("hidden", Normal(a, 1.0), obs=ZERO)


def with_plates(found):
    return {a: {b: " ".join(sorted(p)) for b, p in of.items()} for a, of in found.items()}


@pytest.mark.parametrize(
    ("model", "prior", "posterior"),
    [
        (
            collider,
            {"a": "a", "b": "b", "c": "a b c", "d": "c d"},
            {"a": {"a": "", "b": "", "c": ""}, "b": {"b": "", "c": ""}, "c": {"c": "", "d": ""}},
        ),
        (
            plates,
            {"a": "a", "b": "b", "c": "a b c", "y": "c y", "z": "a c z"},
            {
                "a": {"a": "i", "b": "", "c": "i", "z": ""},
                "b": {"b": "", "c": ""},
                "c": {"c": "i j", "y": "", "z": ""},
            },
        ),
        (
            through,
            {"a": "a", "s": "a s", "y": "a s y"},
            {"a": {"a": "", "s": "", "y": ""}, "s": {"s": "", "y": ""}},
        ),
        (
            others,
            {"a": "a", "b": "b", "f": "a b f", "k": "k", "y": "k y"},
            {"a": {"a": "", "b": "", "f": ""}, "b": {"b": "", "f": ""}, "k": {"k": "", "y": ""}},
        ),
    ],
)
def test_dependencies_are_pyros(model, prior, posterior):
    found = get_dependencies(model)
    assert {a: " ".join(sorted(b)) for a, b in found["prior_dependencies"].items()} == prior
    assert not any(p for of in found["prior_dependencies"].values() for p in of.values())
    assert with_plates(found["posterior_dependencies"]) == posterior


def test_two_sites_depend_where_the_log_density_has_a_second_derivative():
    """Given all others, two entries of a Gaussian are independent where this is 0."""
    sizes = {"a": (3,), "b": (2, 1), "c": (2, 3)}
    starts = np.cumsum([0, 3, 2, 6])
    place = {name: slice(*starts[k : k + 2]) for k, name in enumerate(sizes)}

    def density(flat):
        values = {name: flat[place[name]].reshape(shape) for name, shape in sizes.items()}
        return log_density(plates, (), {}, values)[0]

    curvature = hessian(density)(probtorch.linspace(-1.0, 1.0, 11, dtype=probtorch.float64))
    curvature = abs(curvature.numpy()) > 1e-9
    found = get_dependencies(plates)["posterior_dependencies"]
    for (one, at), (other, to) in itertools.combinations_with_replacement(place.items(), 2):
        block = curvature[at, to]
        assert block.any() == (other in found[one])
        if "b" not in (one, other):  # both have rows of plate i, the last dim
            block = block.reshape(-1, 3, *([2] if other == "c" else []), 3).any(0)
            ties = block if block.ndim == 2 else block.any(1)
            assert ties[~np.eye(3, dtype=bool)].any() == ("i" in found[one].get(other, ()))


def test_relations_go_through_deterministic_sites_unless_these_are_asked_for():
    found = get_model_relations(through)
    assert found["sample_sample"] == {"a": [], "m": ["a"], "d": ["a"], "s": ["a"], "y": ["a", "s"]}
    assert found["sample_param"] == {"a": [], **{key: ["k"] for key in "mdsy"}}
    found = get_model_relations(through, include_deterministic=True)
    assert found["sample_sample"] == {"a": [], "m": ["a"], "d": ["m"], "s": ["d"], "y": ["m", "s"]}
    assert found["sample_param"] == {**{key: [] for key in "adsy"}, "m": ["k"]}
    every = get_dependencies(through, include_deterministic=True)["prior_dependencies"]
    expected = {"a": "a", "m": "a m", "d": "m d", "s": "d s", "y": "m s y"}
    assert {a: " ".join(b) for a, b in every.items()} == expected
    assert probtorch.render_model is render_model
