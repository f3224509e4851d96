"""Laws that every effect handler keeps.

A row says how to make the handler so that it has nothing to do with the model, and so that it acts
on it. The first must be the identity, wherever in the nesting it stands; both must leave no trace
when the model fails, work in all three forms, and leave a recorded density free of guards, with the
same values compiled as eager.
"""

import inspect

import numpy as np
import pytest

from probtorch.compiler.density import NativeDensity
from probtorch.compiler.record.record import record
from probtorch.core.rng import Generator
from probtorch.distributions.normal import HalfNormal, Normal
from probtorch.effects import enumeration, equalizing, exits, handlers, placing, reparams
from probtorch.effects.enumeration import Enumeration
from probtorch.effects.handlers import seed, substitute, trace
from probtorch.effects.plates import plate
from probtorch.effects.primitives import sample
from probtorch.effects.runtime import STATE, Handler
from probtorch.tensor import tensor

Y = np.array([0.3, -1.0, 2.0])
OTHER = trace(seed(lambda: sample("other", Normal(0.0, 1.0)), rng_seed=0)).get_trace()
SAME = trace(seed(lambda: sample("a", Normal(0.0, 1.0)), rng_seed=0)).get_trace()

# name: (arguments that do nothing to the model below, arguments that do something). No arguments of
# the first kind exist for uncondition: it acts on every observed site.
ROWS = {
    "block": ({"hide": ["other"]}, {"hide": ["a"]}),
    "condition": ({"data": {"other": 1.0}, "strict": False}, {"data": {"a": 1.0}}),
    # Only finite discrete sites are acted upon; the model has none.
    "enumerate_sites": ({"enumeration": Enumeration(-6)}, {"enumeration": Enumeration(-7)}),
    "do": ({"data": {"other": 1.0}, "strict": False}, {"data": {"a": 1.0}}),
    "equalize": ({"sites": ["other"]}, {"sites": ["a", "b"]}),
    "escape": ({"escape_fn": lambda site: False}, {"escape_fn": None}),
    "infer_config": ({"config_fn": lambda site: {}}, {"config_fn": lambda site: {"k": 1}}),
    "lift": ({"prior": {"other": Normal(0.0, 1.0)}}, {"prior": Normal(0.0, 1.0)}),
    "mask": ({"mask": True}, {"mask": False}),
    "reparam": ({"config": {}}, {"config": {"b": reparams.LocScaleReparam(0.0)}}),
    "replay": ({"trace": OTHER}, {"trace": SAME}),
    "replicate": ({"size": 1, "dim": -5}, {"size": 2, "dim": -2}),
    "scale": ({"scale": 1.0}, {"scale": 2.0}),
    "scope": ({"prefix": "", "divider": ""}, {"prefix": "inner"}),
    "seed": ({"rng_seed": Generator(0)}, {"rng_seed": 7}),
    "substitute": ({"data": {"other": 1.0}}, {"data": {"a": 1.0}}),
    "trace": ({}, {"param_only": True}),
    "uncondition": (None, {}),
}
HANDLERS = {
    name: cls
    for module in (enumeration, equalizing, exits, handlers, placing, reparams)
    for name, cls in vars(module).items()
    if inspect.isclass(cls) and issubclass(cls, Handler) and not name.startswith("_")
}
HANDLERS.pop("Handler")
IRRELEVANT = [name for name, (nothing, _) in ROWS.items() if nothing is not None]


def model():
    a = sample("a", Normal(0.0, 2.0))
    tau = sample("tau", HalfNormal(1.0))
    with plate("data", 3):
        b = sample("b", Normal(a, tau))
        sample("y", Normal(b, 0.5), obs=Y)
    return b


def unobserved():
    return sample("a", Normal(0.0, 2.0))


def failing():
    sample("a", Normal(0.0, 1.0))
    with plate("data", 3):
        raise RuntimeError("the model fails")


def summary(tr):
    return {name: (s.kind, s.observed, s.value.numpy().tolist()) for name, s in tr.items()}


def make(name, which, fn=None):
    return HANDLERS[name](fn, **ROWS[name][which])


def test_every_handler_has_a_row():
    assert set(HANDLERS) == set(ROWS)


@pytest.mark.parametrize("name", IRRELEVANT)
def test_irrelevant_handler_is_the_identity(name):
    # A seed replaces the numbers drawn: the one below makes the same ones.
    rng_seed = 0
    plain = trace(seed(model, rng_seed=rng_seed)).get_trace()
    if name == "seed":
        got = trace(seed(model, rng_seed=Generator(rng_seed))).get_trace()
    else:
        got = trace(seed(make(name, 0, model), rng_seed=rng_seed)).get_trace()
    assert summary(got) == summary(plain)
    assert got.log_prob_sum().item() == plain.log_prob_sum().item()


@pytest.mark.parametrize("name", [n for n in IRRELEVANT if n != "seed"])
@pytest.mark.parametrize("other", [n for n in IRRELEVANT if n != "seed"])
def test_irrelevant_handlers_nest_in_any_order(name, other):
    plain = trace(seed(model, rng_seed=0)).get_trace()
    got = trace(seed(make(name, 0, make(other, 0, model)), rng_seed=0)).get_trace()
    assert summary(got) == summary(plain)


@pytest.mark.parametrize(
    "name, which",
    [(name, which) for name, row in ROWS.items() for which in (0, 1) if row[which] is not None],
)
def test_exception_unwinds_the_stack(name, which):
    with pytest.raises(RuntimeError, match="the model fails"):
        make(name, which, failing)()
    assert STATE.handlers == () and STATE.plates.frames == ()


@pytest.mark.parametrize("name", ROWS)
def test_wrapper_decorator_and_context_manager_agree(name):
    wrapped = make(name, 1, unobserved)
    decorated = make(name, 1)(unobserved)

    def inside():
        with make(name, 1):
            return unobserved()

    results = [seed(fn, rng_seed=0)().tolist() for fn in (wrapped, decorated, inside)]
    assert results[0] == results[1] == results[2]
    assert decorated.__name__ == "unobserved"


def density(name):
    """Joint density of the model under a handler, as a function of one unconstrained vector."""

    def fn(q):
        values = {"a": q[0], "tau": q[1].exp(), "b": q[2:5], "b_decentered": q[2:5]}
        if name == "uncondition":
            values["y"] = q[2:5] * 0.5
        if name == "scope":
            values = {f"inner/{site}": value for site, value in values.items()}
        handled = make(name, 1, model)
        run = substitute(handled, values)
        return trace(seed(run, rng_seed=0)).get_trace().log_prob_sum()

    return fn


# Under block a site is drawn whatever value it was given; a masked model has a constant density.
RECORDED = [name for name in ROWS if name != "block"]
COMPILED = [name for name in RECORDED if name != "mask"]


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_density_has_no_guards(name):
    q = tensor([0.3, -0.2, 0.5, 1.0, -1.0], dtype="float64")
    recorder, _ = record(density(name), [q])
    assert recorder.graph.guards == [] and recorder.unsupported == []


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_density_equals_eager(name):
    fn = density(name)
    q = np.array([0.3, -0.2, 0.5, 1.0, -1.0])
    leaf = tensor(q, dtype="float64", requires_grad=True)
    eager = fn(leaf)
    eager.backward()
    value, gradient = NativeDensity(fn, 5).value_and_grad(q)
    np.testing.assert_allclose(value, eager.item(), rtol=1e-13)
    np.testing.assert_allclose(gradient, leaf.grad.numpy(), rtol=1e-12, atol=1e-14)
