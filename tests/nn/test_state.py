"""state_dict and load_state_dict: what is saved, what fits, and the message when it does not."""

from collections import OrderedDict

import numpy as np
import pytest

import probtorch.nn as nn
from probtorch.autograd.modes import no_grad
from probtorch.errors import ArgumentError, ModelError
from probtorch.factories import ones
from probtorch.testing import assert_close


def network():
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))


def test_state_shares_memory_and_has_no_gradient():
    m = nn.Linear(2, 2)
    state = m.state_dict()
    assert isinstance(state, OrderedDict)
    assert not any(t.requires_grad for t in state.values())
    with no_grad():
        m.weight.fill_(3.0)
    assert state["weight"].tolist() == [[3.0, 3.0], [3.0, 3.0]]
    assert m.state_dict(keep_vars=True)["weight"] is m.weight
    assert list(m.state_dict(prefix="a.")) == ["a.weight", "a.bias"]
    filled = {}
    assert m.state_dict(destination=filled) is filled


def test_loading_copies_into_the_parameters_there_are():
    a, b = network(), network()
    weight = b[0].weight
    result = b.load_state_dict(a.state_dict())
    assert (result.missing_keys, result.unexpected_keys) == ([], [])
    assert b[0].weight is weight
    assert not np.shares_memory(a[0].weight.detach().numpy(), weight.detach().numpy())
    assert_close(a[0].weight.detach(), weight.detach(), rtol=0, atol=0)


def test_arrays_can_be_loaded_and_take_the_dtype_of_the_module():
    m = nn.Linear(2, 1)
    m.load_state_dict({"weight": np.array([[1.0, 2.0]]), "bias": np.array([3.0])})
    assert m.weight.dtype == np.float32
    assert m.weight.tolist() == [[1.0, 2.0]]


def test_assign_puts_the_given_tensors_in_place():
    m = nn.Linear(2, 1)
    given = {"weight": ones(1, 2, dtype=np.float64), "bias": ones(1, dtype=np.float64)}
    m.load_state_dict(given, assign=True)
    assert isinstance(m.weight, nn.Parameter) and m.weight.requires_grad
    assert np.shares_memory(m.weight.detach().numpy(), given["weight"].numpy())
    assert m.weight.dtype == np.float64


def test_message_pairs_renamed_keys():
    state = network().state_dict()
    renamed = {f"module.{k}": v for k, v in state.items()}
    with pytest.raises(RuntimeError, match=r"Error\(s\) in loading state_dict for Sequential") as e:
        network().load_state_dict(renamed)
    assert 'Missing key(s) in state_dict: "0.weight", "0.bias"' in str(e.value)
    assert 'Unexpected key(s) in state_dict: "module.0.weight"' in str(e.value)
    assert "rename 'module.0.weight' to '0.weight'" in e.value.fix
    state["0.wieght"] = state.pop("0.weight")
    with pytest.raises(ModelError) as e:
        network().load_state_dict(state)
    assert e.value.fix == "rename '0.wieght' to '0.weight'"


def test_message_states_both_shapes_and_nothing_changes():
    m = nn.Linear(2, 3)
    before = m.bias.detach().clone()
    with pytest.raises(
        ModelError,
        match=r"size mismatch for weight: copying a param with shape Size\(\[2, 2\]\) from "
        r"checkpoint, the shape in current model is Size\(\[3, 2\]\)",
    ):
        m.load_state_dict({"weight": ones(2, 2), "bias": ones(3)}, strict=False)
    assert_close(m.bias.detach(), before, rtol=0, atol=0)


def test_loading_what_fits_reports_the_rest():
    m = nn.Linear(2, 1)
    result = m.load_state_dict({"weight": ones(1, 2), "other": ones(1)}, strict=False)
    assert result.missing_keys == ["bias"]
    assert result.unexpected_keys == ["other"]
    assert "missing_keys=['bias']" in repr(result)
    assert m.weight.tolist() == [[1.0, 1.0]]


def test_what_is_no_dict_is_refused():
    with pytest.raises(ArgumentError, match="a dict from names to tensors"):
        nn.Linear(2, 1).load_state_dict("weights.pt")


def test_extra_state_travels_along():
    class Counting(nn.Linear):
        steps = 0

        def get_extra_state(self):
            return {"steps": self.steps}

        def set_extra_state(self, state):
            self.steps = state["steps"]

    a, b = nn.Sequential(Counting(1, 1)), nn.Sequential(Counting(1, 1))
    a[0].steps = 5
    state = a.state_dict()
    assert state["0._extra_state"] == {"steps": 5}
    b.load_state_dict(state)
    assert b[0].steps == 5
    del state["0._extra_state"]
    with pytest.raises(ModelError, match=r"0\._extra_state"):
        b.load_state_dict(state)
