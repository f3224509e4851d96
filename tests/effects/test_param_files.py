"""The parameter store and Pyro's optimizers in files."""

import numpy as np
import pytest

import probtorch
from probtorch.distributions import Normal, constraints
from probtorch.effects import get_param_store, module, param, sample
from probtorch.effects.params import ParamStore
from probtorch.errors import ArgumentError, FileError, ShapeError
from probtorch.infer import SVI, AutoNormal, Trace_ELBO
from probtorch.nn import BatchNorm1d
from probtorch.optim import Adam
from probtorch.tensor import tensor


def filled():
    store = ParamStore()
    store.setdefault("loc", tensor([1.0, -2.0]))
    store.setdefault("scale", tensor([0.5, 3.0]), constraints.positive)
    store.setdefault("p", tensor(np.array([0.2, 0.8])), constraints.interval(0.0, 2.0))
    store.setdefault("weights", tensor([0.3, 0.7]), constraints.simplex)
    return store


def test_a_store_goes_through_a_file_with_its_constraints(tmp_path):
    store, other = filled(), ParamStore()
    other.setdefault("old", tensor([1.0]))
    store.save(tmp_path / "params.pt")
    other.load(tmp_path / "params.pt", map_location="cpu")
    assert list(other) == list(store)
    for name in store:
        np.testing.assert_array_equal(other[name].detach().numpy(), store[name].detach().numpy())
        assert other.unconstrained(name).requires_grad
        assert other.unconstrained(name) is not store.unconstrained(name)
    other["scale"] = tensor([2.0, 2.0])
    with pytest.raises(ValueError, match="positive"):
        other["scale"] = tensor([-2.0, 2.0])


def test_leaves_that_are_there_keep_their_memory():
    store, other = filled(), filled()
    leaf = other.unconstrained("scale")
    other["scale"] = tensor([9.0, 9.0])
    leaf = other.unconstrained("scale")
    other.load_state_dict(store.state_dict())
    assert other.unconstrained("scale") is leaf
    np.testing.assert_allclose(other["scale"].detach().numpy(), [0.5, 3.0], rtol=1e-6)


def test_modules_keep_their_parameters_and_buffers(tmp_path):
    def build():
        net = BatchNorm1d(2)
        svi = SVI(lambda x: module("net", net)(x).sum() and None, lambda x: None, Adam({"lr": 0.1}),
                  lambda model, guide, x: (module("net", net)(x) ** 2).sum())  # fmt: skip
        return net, svi

    x = probtorch.randn(5, 2)
    net, svi = build()
    for _ in range(3):
        svi.step(x)
    svi.params.save(tmp_path / "params")
    other, its_svi = build()
    its_svi.setup(x)
    its_svi.params.load(tmp_path / "params")
    for a, b in zip(net.state_dict().values(), other.state_dict().values(), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_a_store_of_another_model_is_refused_and_nothing_changed():
    store, other = filled(), ParamStore()
    other.setdefault("loc", tensor([1.0]))
    with pytest.raises(ShapeError, match="parameter 'loc'"):
        other.load_state_dict(store.state_dict())
    assert list(other) == ["loc"]
    with pytest.raises(ArgumentError, match="what state_dict"):
        other.load_state_dict({"loc": tensor([1.0])})


def test_files_of_pyro_are_not_run(tmp_path):
    (tmp_path / "params.pt").write_bytes(b"\x80\x02}q\x00.")
    with pytest.raises(FileError, match="a pickle, as older versions"):
        ParamStore().load(tmp_path / "params.pt")


def test_a_script_of_pyro_saves_and_goes_on(tmp_path):
    def model():
        sample("z", Normal(1.0, 1.0))

    def guide():
        loc = param("loc", tensor(0.0))
        sample("z", Normal(loc, param("scale", tensor(1.0), constraint=constraints.positive)))

    def steps(svi, count):
        return [svi.step() for _ in range(count)]

    optimizer = Adam({"lr": 0.05})
    svi = SVI(model, guide, optimizer, Trace_ELBO(), seed=0)
    steps(svi, 5)
    get_param_store().save(tmp_path / "params")
    optimizer.save(tmp_path / "optim")
    state = svi.generator.get_state()
    expected = steps(svi, 5)
    again = Adam({"lr": 0.05})
    store = ParamStore()
    store.load(tmp_path / "params")
    again.load(tmp_path / "optim")
    svi = SVI(model, guide, again, Trace_ELBO(), seed=0, params=store)
    svi.generator.set_state(state)
    np.testing.assert_allclose(steps(svi, 5), expected, rtol=1e-6)


def restored(path, **options):
    """A run that is made after the store was loaded, and what it was trained to before."""

    def model():
        sample("z", Normal(1.0, 1.0))

    guide = AutoNormal(model)
    first = SVI(model, guide, Adam({"lr": 0.05}), Trace_ELBO(), seed=0)
    for _ in range(5):
        first.step()
    get_param_store().save(path)
    trained = {name: value.tolist() for name, value in get_param_store().items()}
    probtorch.clear_param_store()
    get_param_store().load(path)
    svi = SVI(model, AutoNormal(model), Adam({"lr": 0.0}), Trace_ELBO(), **options)
    svi.step()
    return svi, trained


@pytest.mark.parametrize("options", [{}, {"seed": 1}], ids=["", "seed"])
def test_a_run_goes_on_with_the_store_that_a_script_has_loaded(tmp_path, options):
    svi, trained = restored(tmp_path / "params", **options)
    assert {name: value.tolist() for name, value in svi.params.items()} == trained


def test_a_store_that_was_loaded_is_taken_over_once(tmp_path):
    svi, _ = restored(tmp_path / "params")
    assert SVI(svi.model, svi.guide, Adam({"lr": 0.1}), seed=0).params is not svi.params
    store = get_param_store()
    store.load(tmp_path / "params")
    probtorch.clear_param_store()
    assert SVI(svi.model, svi.guide, Adam({"lr": 0.1}), seed=0).params is not store
