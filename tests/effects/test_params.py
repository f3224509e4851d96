"""Parameter stores: constrained outside, unconstrained inside, owned by whoever optimises."""

import math

import numpy as np
import pytest

from probtorch.distributions import constraints
from probtorch.effects.params import ParamStore, clear_param_store, get_param_store
from probtorch.effects.primitives import param
from probtorch.errors import ArgumentError, DomainError
from probtorch.tensor import tensor
from probtorch.testing import assert_close


def test_leaf_is_unconstrained_and_value_constrained():
    store = ParamStore()
    value = store.setdefault("s", np.array([0.5, 2.0]), constraints.positive)
    np.testing.assert_allclose(value.detach().numpy(), [0.5, 2.0], rtol=1e-15)
    leaf = store.unconstrained("s")
    np.testing.assert_allclose(leaf.detach().numpy(), np.log([0.5, 2.0]), rtol=1e-15)
    assert leaf.is_leaf and leaf.requires_grad


def test_a_value_knows_the_leaf_behind_it():
    store = ParamStore()
    scale = store.setdefault("s", 2.0, constraints.positive)
    loc = store.setdefault("m", 2.0)
    assert scale.unconstrained() is store.unconstrained("s")
    assert loc.unconstrained() is store.unconstrained("m")
    with pytest.raises(AttributeError, match="no attribute 'unconstrained'"):
        (scale * 2.0).unconstrained()


@pytest.mark.parametrize(
    "init, dtype",
    [(1, "float32"), (1.0, "float32"), ([1.0], "float32"), (np.ones(1), "float64")],
    ids=repr,
)
def test_initial_values_get_the_dtype_of_a_tensor(init, dtype):
    assert ParamStore().setdefault("w", init).dtype == dtype


def test_initial_tensor_is_copied():
    init = tensor([1.0])
    store = ParamStore()
    store.setdefault("w", init)
    init.fill_(5.0)
    assert store["w"].tolist() == [1.0]


def test_store_reads_like_a_dict():
    store = ParamStore()
    store["a"] = 1.0
    store.setdefault("b", 2.0, constraints.positive)
    store["b"] = 3.0
    assert list(store) == list(store.keys()) == store.get_all_param_names() == ["a", "b"]
    assert {k: round(v.item(), 5) for k, v in store.items()} == {"a": 1.0, "b": 3.0}
    assert len(store.values()) == len(store) == 2 and "a" in store
    assert list(store.match("a")) == ["a"]
    assert math.isclose(store.unconstrained("b").item(), math.log(3.0), rel_tol=1e-6)
    del store["a"]
    assert "a" not in store and repr(store) == "<ParamStore of b>"


def test_named_parameters_are_the_leaves_themselves():
    store = ParamStore()
    store.setdefault("w", 1.0)
    ((name, leaf),) = store.named_parameters()
    leaf.data = tensor(7.0)
    assert name == "w" and store["w"].item() == 7.0


def test_missing_parameter_is_refused_with_those_that_are_there():
    store = ParamStore()
    store["a"] = 1.0
    with pytest.raises(ArgumentError, match=r"parameter 'b'[\s\S]*one of 'a'[\s\S]*run the model"):
        store["b"]


def test_active_store_takes_the_params_of_the_model():
    store = ParamStore()
    with store.activate():
        param("w", tensor(1.0))
        assert get_param_store() is store
    assert list(store) == ["w"] and list(get_param_store()) == []


def test_activation_ends_with_an_error_too():
    def run():
        with ParamStore().activate():
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        run()
    assert get_param_store() is not None and list(get_param_store()) == []


def test_clear_forgets_and_state_brings_back():
    param("w", 4.0, constraint=constraints.positive)
    state = get_param_store().get_state()
    clear_param_store()
    assert list(get_param_store()) == []
    get_param_store().set_state(state)
    assert math.isclose(get_param_store()["w"].item(), 4.0, rel_tol=1e-6)
    with pytest.raises(ArgumentError, match=r"same names[\s\S]*got[\s\S]*get_state"):
        get_param_store().set_state({"params": {}, "constraints": state["constraints"]})


def test_scope_is_a_store_within_the_store():
    param("outer", 1.0)
    store = get_param_store()
    with store.scope() as inner:
        param("w", 2.0)
        assert list(store) == ["w"]
    assert list(store) == ["outer"]
    with store.scope(inner):
        assert param("w").item() == 2.0


def test_weights_that_do_not_sum_to_1_are_divided_by_their_sum():
    weights = tensor([[0.5, 0.7], [3.0, 1.0]])
    found = param("weights", weights, constraint=constraints.simplex)
    assert_close(found, weights / weights.sum(-1, keepdim=True))
    exact = param("exact", tensor([0.3, 0.7]), constraint=constraints.simplex)
    assert_close(exact, tensor([0.3, 0.7]))


@pytest.mark.parametrize("weights", [[0.5, -0.7], [1.0, math.inf], [0.5, math.nan], [0.0, 3.0]])
def test_weights_that_are_no_positive_numbers_start_no_simplex(weights):
    with pytest.raises(DomainError, match="positive numbers, which are divided"):
        param("weights", tensor(weights), constraint=constraints.simplex)
