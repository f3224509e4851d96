"""Data of `condition`, `do` and `substitute` stay the caller's: runs meet what is there by then."""

import pickle

import numpy as np
import pytest

import probtorch
from probtorch.compiler.compile import compile
from probtorch.distributions.normal import Normal
from probtorch.effects.handlers import condition, do, substitute
from probtorch.effects.primitives import sample
from probtorch.errors import DTypeError
from probtorch.infer.potential import Target


def model():
    x = sample("x", Normal(0.0, 1.0))
    return sample("y", Normal(x, 2.0))


def three():
    return sample("y", Normal(0.0, 2.0).expand([3]).to_event(1))


@pytest.mark.parametrize("handler", [condition, do, substitute])
def test_a_later_change_of_the_dict_is_met(handler):
    data = {"y": 1.0}
    run = handler(model, data)
    assert run().item() == 1.0
    data["y"] = probtorch.tensor(2.0)
    assert run().item() == 2.0
    data["x"], data["y"] = 5.0, [3.0, 4.0]
    np.testing.assert_array_equal(run().numpy(), [3.0, 4.0])
    data["y"][0] = 7.0
    np.testing.assert_array_equal(run().numpy(), [7.0, 4.0])


def test_a_site_that_leaves_the_dict_is_latent_again():
    data = {"y": 2.0}
    given = condition(model, data, strict=False)
    assert set(Target.from_model(given).slots) == {"x"}
    data["x"], data["y"] = 1.0, None
    assert set(Target.from_model(given).slots) == {"y"}
    del data["x"]
    assert set(Target.from_model(given).slots) == {"x", "y"}


def test_a_copy_meets_changes_of_its_own_arrays():
    given = pickle.loads(pickle.dumps(condition(three, {"y": np.arange(3.0)})))
    given.data["y"][1] = 5.0
    np.testing.assert_array_equal(given().numpy(), [0.0, 5.0, 2.0])


def test_what_is_no_number_is_refused_where_it_is_given():
    with pytest.raises(DTypeError, match="site 'y'"):
        condition(model, {"y": "text"})


@pytest.mark.parametrize(
    "make", [np.arange, lambda n: probtorch.arange(n)], ids=["array", "tensor"]
)
def test_elements_that_change_are_read_anew_by_one_compiled_path(make):
    data = {"y": make(3.0)}
    total = compile(lambda z: (condition(three, data)() * z).sum())
    given = condition(three, data)
    outside = compile(lambda z: (given() * z).sum())
    for i in range(6):
        data["y"][0] = i
        assert outside(probtorch.tensor(2.0)).item() == 2.0 * (i + 3.0)
        assert total(probtorch.tensor(2.0)).item() == 2.0 * (i + 3.0)
    assert outside.reason is None
    assert len(list(outside.paths)) == 1


def test_compiled_code_meets_what_comes_in_the_place_of_an_array_a_tensor_or_a_number():
    data = {"y": np.zeros(3)}
    given = condition(three, data)
    total = compile(lambda z: (given() * z).sum())
    for value in (np.ones(3), probtorch.ones(3) * 2.0, [1.0, 2.0, 3.0], np.ones(3), np.ones(3) * 4):
        for _ in range(2):
            total(probtorch.tensor(1.0))
        data["y"] = value
        for _ in range(2):
            assert total(probtorch.tensor(1.0)).item() == np.sum(np.asarray(value))
