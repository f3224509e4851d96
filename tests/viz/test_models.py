"""Who depends on whom in a model, and its picture."""

import re

import probtorch
from probtorch import deterministic, factor, param, plate, sample
from probtorch.autograd import Function
from probtorch.distributions import (
    Bernoulli,
    Categorical,
    HalfNormal,
    MultivariateNormal,
    Normal,
    constraints,
)
from probtorch.viz import get_model_relations, render_model


def schools(y):
    scale = param("scale", probtorch.tensor(1.0), constraint=constraints.positive)
    mu = sample("mu", Normal(0.0, scale))
    tau = sample("tau", HalfNormal(1.0))
    with plate("school", 3, dim=-1):
        eta = sample("eta", Normal(0.0, 1.0))
        theta = deterministic("theta", mu + tau * eta)
        with plate("pupil", 2, dim=-2):
            sample("y", Normal(theta, 1.0), obs=y)
    factor("size", -mu.square())


Y = probtorch.zeros(2, 3)


def test_relations_are_those_that_the_model_states():
    found = get_model_relations(schools, (Y,), include_deterministic=True)
    assert found == {
        "sample_sample": {
            "mu": [],
            "tau": [],
            "eta": [],
            "theta": ["mu", "tau", "eta"],
            "y": ["theta"],
            "size": ["mu"],
        },
        "sample_param": {
            name: ["scale"] if name == "mu" else []
            for name in ("mu", "tau", "eta", "theta", "y", "size")
        },
        "sample_dist": {
            "mu": "Normal",
            "tau": "HalfNormal",
            "eta": "Normal",
            "theta": "Deterministic",
            "y": "Normal",
            "size": "Factor",
        },
        "param_constraint": {"scale": "positive"},
        "plate_sample": {"school": ["eta", "theta", "y"], "pupil": ["y"]},
        "observed": ["y", "size"],
        "deterministic": ["theta"],
    }


def test_dependence_goes_through_discrete_values_indices_and_changes_in_place():
    def model():
        z = sample("z", Categorical(probs=probtorch.ones(3) / 3))
        b = sample("b", Bernoulli(0.5))
        loc = probtorch.zeros(2)
        loc[0] = probtorch.tensor([0.0, 1.0, 2.0])[z]
        x = sample("x", Normal(probtorch.where(b > 0.5, loc[0], loc[1]), 1.0))
        sample("matrix", MultivariateNormal(x.expand(2), probtorch.eye(2)))
        sample("detached", Normal(x.detach(), 1.0))
        sample("alone", Normal(0.0, 1.0))

    found = get_model_relations(model)["sample_sample"]
    assert found["x"] == ["z", "b"]
    assert found["matrix"] == found["detached"] == ["x"]
    assert found["alone"] == []


def test_dependence_goes_through_custom_functions():
    class Double(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2.0

        @staticmethod
        def backward(ctx, g):
            return g * 2.0

    def model():
        x = sample("x", Normal(0.0, 1.0))
        sample("y", Normal(Double.apply(x), 1.0))

    assert get_model_relations(model)["sample_sample"]["y"] == ["x"]


def test_a_chain_depends_on_what_came_just_before():
    def model(n):
        x = 0.0
        for t in range(n):
            x = sample(f"x{t}", Normal(x, 1.0))

    found = get_model_relations(model, (3,))["sample_sample"]
    assert found == {"x0": [], "x1": ["x0"], "x2": ["x1"]}


def edges(graph):
    return re.findall(r'^  "(\w+)" -> "(\w+)"', graph.source, re.MULTILINE)


def test_what_is_not_shown_is_stepped_over():
    assert edges(render_model(schools, (Y,))) == [
        ("mu", "y"),
        ("tau", "y"),
        ("eta", "y"),
        ("mu", "size"),
    ]
    full = render_model(schools, (Y,), render_params=True, render_deterministic=True)
    assert edges(full) == [
        ("scale", "mu"),
        ("mu", "theta"),
        ("tau", "theta"),
        ("eta", "theta"),
        ("theta", "y"),
        ("mu", "size"),
    ]


def test_plates_are_boxes_in_each_other():
    lines = [line.strip() for line in render_model(schools, (Y,)).source.splitlines()]
    box = 'label="{}" labeljust=r labelloc=b'
    school, pupil = lines.index(box.format("school")), lines.index(box.format("pupil"))
    y = lines.index('"y" [label="y" shape="circle" style="filled" fillcolor="gray"]')
    assert school < pupil < y < lines.index("}") < lines.index("}", lines.index("}") + 1)


def test_distributions_are_said_when_asked_for():
    source = render_model(schools, (Y,), render_distributions=True, render_params=True).source
    assert "mu ~ Normal" in source and "scale \u2208 positive" in source
    assert "~" not in render_model(schools, (Y,)).source


def test_it_writes_a_file_and_is_at_the_front_door(tmp_path):
    graph = probtorch.render_model(schools, (), {"y": Y}, filename=tmp_path / "model.dot")
    assert (tmp_path / "model.dot").read_text() == graph.source + "\n"
