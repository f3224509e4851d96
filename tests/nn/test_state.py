"""state_dict and load_state_dict: what is saved, what fits, and the message when it does not."""

import copy
from collections import OrderedDict

import numpy as np
import pytest

import probtorch.nn as nn
from probtorch.autograd.modes import no_grad
from probtorch.errors import ArgumentError, ModelError
from probtorch.factories import ones
from probtorch.serialization import load, save
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


def test_extra_state_is_saved_also_where_loading_is_overridden():
    class Counting(nn.Linear):
        def get_extra_state(self):
            return 7

        def set_extra_state(self, state):
            self.steps = state

        def load_state_dict(self, state_dict, strict=True, assign=False):
            return super().load_state_dict(state_dict, strict, assign)

    m = Counting(1, 1)
    m.load_state_dict(m.state_dict())
    assert m.steps == 7


class Renamed(nn.Module):
    """Saves `scale`; its version 1 called it `gain` and had its inverse."""

    _version = 2

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(ones(2))

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, *rest):
        version = local_metadata.get("version")
        if version is None or version < 2:
            state_dict[prefix + "scale"] = 1.0 / state_dict.pop(prefix + "gain")
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)


def test_classes_convert_what_older_versions_saved(tmp_path):
    old = OrderedDict({"0.gain": ones(2) * 4.0, "1.weight": ones(1, 2), "1.bias": ones(1)})
    net = nn.Sequential(Renamed(), nn.Linear(2, 1))
    net.load_state_dict(old)
    assert net[0].scale.tolist() == [0.25, 0.25]
    assert list(old) == ["0.gain", "1.weight", "1.bias"]
    new = net.state_dict()
    assert new._metadata["0"] == {"version": 2}
    net.load_state_dict(new)
    # The version is in files, too.
    save(new, tmp_path / "new.pt")
    again = load(tmp_path / "new.pt")
    assert (again._metadata["0"], again._metadata["1"]) == ({"version": 2}, {"version": 1})
    net.load_state_dict(again)
    assert net[0].scale.tolist() == [0.25, 0.25]


def test_what_a_failed_loading_changed_is_changed_back():
    net = nn.Sequential(nn.Linear(2, 1), Renamed())
    before = net[0].weight.tolist()
    state = {"0.weight": ones(1, 2) * 3.0, "0.bias": ones(1), "1.gain": ones(5)}
    with pytest.raises(ModelError, match=r"size mismatch for 1\.scale"):
        net.load_state_dict(state, strict=False)
    assert net[0].weight.tolist() == before
    with pytest.raises(ModelError, match=r'Missing key\(s\) in state_dict: "0\.bias"'):
        net.load_state_dict({"0.weight": ones(1, 2), "1.gain": ones(2)})
    with pytest.raises(ModelError, match=r'Unexpected key\(s\) in state_dict: "2\.a", "0\.c"'):
        net.load_state_dict({**state, "1.gain": ones(2), "2.a": ones(1), "0.c": ones(1)})
    assert net[0].weight.tolist() == before
    found = net.load_state_dict({"0.weight": ones(1, 2), "1.gain": ones(2)}, strict=False)
    assert found.missing_keys == ["0.bias"]
    assert net[0].weight.tolist() == [[1.0, 1.0]]
    assigned = ones(2)
    net[1].load_state_dict({"gain": assigned}, assign=True)
    assert net[1].scale.tolist() == [1.0, 1.0]


def test_classes_save_a_form_of_their_own():
    class Half(nn.Linear):
        def _save_to_state_dict(self, destination, prefix, keep_vars):
            super()._save_to_state_dict(destination, prefix, keep_vars)
            destination[prefix + "weight"] = destination[prefix + "weight"].half()

    class Renaming(nn.Linear):
        def state_dict(self, destination=None, prefix="", keep_vars=False):
            return super().state_dict(destination, prefix + "inner.", keep_vars)

    net = nn.Sequential(Half(2, 1), Renaming(1, 1))
    state = net.state_dict()
    assert list(state) == ["0.weight", "0.bias", "1.inner.weight", "1.inner.bias"]
    assert (state["0.weight"].dtype, state["0.bias"].dtype) == (np.float16, np.float32)


def test_hooks_see_what_is_saved():
    net, seen = nn.Sequential(nn.Linear(2, 1)), []
    first = net[0].register_state_dict_pre_hook(lambda m, prefix, keep: seen.append((prefix, keep)))

    def without_bias(module, state, prefix, metadata):
        assert module is net[0]
        assert metadata == {"version": 1}
        del state[prefix + "bias"]

    net[0].register_state_dict_post_hook(without_bias)
    assert list(net.state_dict(keep_vars=True)) == ["0.weight"]
    assert seen == [("0.", True)]
    first.remove()
    net.register_state_dict_post_hook(lambda *_: {})
    with pytest.raises(ArgumentError, match="state_dict post-hook"):
        net.state_dict()
    assert len(seen) == 1


def test_dict_of_the_older_hook_is_what_the_root_saves():
    net = nn.Sequential(nn.Linear(2, 1))
    net[0]._register_state_dict_hook(lambda m, state, prefix, metadata: {})
    assert list(net.state_dict()) == ["0.weight", "0.bias"]
    net._register_state_dict_hook(
        lambda m, state, prefix, metadata: {"net." + k: v for k, v in state.items()}
    )
    assert list(net.state_dict()) == ["net.0.weight", "net.0.bias"]


def test_hooks_change_what_is_loaded():
    net = nn.Sequential(nn.Linear(2, 1, bias=False))

    def renamed(state, prefix, metadata, strict, missing, unexpected, errors):
        state[prefix + "weight"] = state.pop(prefix + "w")

    handle = net[0]._register_load_state_dict_pre_hook(renamed)
    net.load_state_dict({"0.w": ones(1, 2)})
    assert net[0].weight.tolist() == [[1.0, 1.0]]
    twin = copy.deepcopy(net)
    handle.remove()
    with pytest.raises(ModelError, match="Missing key"):
        net.load_state_dict({"0.w": ones(1, 2)})
    twin.load_state_dict({"0.w": ones(1, 2) * 2.0})
    assert (net[0].weight.tolist(), twin[0].weight.tolist()) == ([[1.0, 1.0]], [[2.0, 2.0]])

    net[0].register_load_state_dict_pre_hook(
        lambda module, state, prefix, *rest: state.update({prefix + "weight": module.weight * 0.0})
    )
    net.load_state_dict({})
    assert net[0].weight.tolist() == [[0.0, 0.0]]


def test_methods_that_are_hooks_are_those_of_the_copy():
    class Own(nn.Linear):
        def __init__(self):
            super().__init__(1, 1)
            self.seen = []
            self._register_load_state_dict_pre_hook(self._note)

        def _note(self, state, prefix, *rest):
            self.seen.append(prefix)

    one = Own()
    two = copy.deepcopy(one)
    two.load_state_dict(one.state_dict())
    assert (one.seen, two.seen) == ([], [""])


def test_hooks_after_loading_decide_what_counts_as_missing():
    net = nn.Sequential(nn.Linear(2, 1))
    net.register_load_state_dict_post_hook(lambda module, keys: keys.missing_keys.clear())
    found = net.load_state_dict({"0.weight": ones(1, 2)})
    assert found.missing_keys == []
    assert net[0].weight.tolist() == [[1.0, 1.0]]
    net.register_load_state_dict_post_hook(lambda module, keys: keys)
    before = net[0].weight.tolist()
    with pytest.raises(ArgumentError, match="load_state_dict post-hook"):
        net.load_state_dict({"0.weight": ones(1, 2) * 5.0})
    assert net[0].weight.tolist() == before


def test_extra_state_is_loaded_by_parts_too():
    class Counting(nn.Linear):
        def get_extra_state(self):
            return 7

        def set_extra_state(self, state):
            self.steps = state

    net = nn.Sequential(Counting(1, 1), Renamed())
    state = net.state_dict()
    net.load_state_dict(state)
    assert net[0].steps == 7
    del state["0._extra_state"]
    with pytest.raises(ModelError, match=r"0\._extra_state"):
        net.load_state_dict(state)
