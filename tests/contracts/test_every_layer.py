"""Laws that every module class of `probtorch.nn` obeys, on the entries of tests/nn/layers.py."""

import copy
import pickle

import numpy as np
import pytest

import probtorch.nn as nn
from probtorch.core.rng import manual_seed
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import leaves
from probtorch.nn.utils import functional_call
from probtorch.ops.arithmetic import clone
from probtorch.ops.reduction import sum
from probtorch.tensor import tensor
from probtorch.testing import assert_close
from tests.derivatives import gradcheck
from tests.nn.layers import LAYERS, WITHOUT_ENTRY


def each(layers):
    return pytest.mark.parametrize("layer", layers, ids=lambda layer: layer.id)


every_layer = each(LAYERS)
every_layer_by_itself = each([layer for layer in LAYERS if not list(layer.build().children())])


def outputs(result):
    """Tensors in what a module returns."""
    return [t for t in leaves(result) if isinstance(t, TensorBase)]


def built(layer, seed=0):
    manual_seed(seed)
    return layer.build()


def test_every_module_class_has_an_entry():
    classes = {
        name
        for name in nn.__all__
        if isinstance(getattr(nn, name), type) and issubclass(getattr(nn, name), nn.Module)
    }
    assert classes - {layer.name for layer in LAYERS} == WITHOUT_ENTRY


@every_layer
def test_output_has_the_stated_shape_in_the_dtype_of_the_module(layer):
    shapes = layer.shape if isinstance(layer.shape, list) else [layer.shape]
    for dtype in (np.float32, np.float64):
        found = outputs(built(layer).to(np.dtype(dtype))(*layer.tensors(dtype)))
        assert [tuple(t.shape) for t in found] == shapes
        assert {t.dtype for t in found} == {np.dtype(dtype)}


@each([layer for layer in LAYERS if not layer.own_gradient])
def test_gradients_agree_with_differences(layer):
    module = built(layer).double()
    inputs, names = layer.tensors(), [name for name, _ in module.named_parameters()]
    values = [tensor(p.detach().numpy(), requires_grad=True) for p in module.parameters()]
    rng = np.random.default_rng(0)
    weights = [tensor(rng.standard_normal(t.shape)) for t in outputs(module(*inputs))]
    # In training, running statistics move with each call, without a part in the result.
    count = len(inputs)

    def total(*arguments):
        given = dict(zip(names, arguments[count:]))
        found = outputs(functional_call(module, given, arguments[:count]))
        parts = [sum(t * w) for t, w in zip(found, weights, strict=True)]
        return parts[0] if len(parts) == 1 else parts[0] + parts[1]

    assert gradcheck(total, (*inputs, *values), fast_mode=True, eps=2e-4, atol=1e-7)


@every_layer
def test_state_dict_makes_another_module_equal(layer):
    inputs = layer.tensors()
    one, other = built(layer, 1).double().eval(), built(layer, 2).double().eval()
    result = other.load_state_dict(copy.deepcopy(one.state_dict()))
    assert str(result) == "<All keys matched successfully>"
    for a, b in zip(outputs(one(*inputs)), outputs(other(*inputs)), strict=True):
        assert_close(a.detach(), b.detach(), rtol=0, atol=0)


@every_layer
@pytest.mark.parametrize(
    "duplicate",
    [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))],
    ids=["deepcopy", "pickle"],
)
def test_copies_compute_the_same_and_share_nothing(layer, duplicate):
    inputs = layer.tensors()
    module = built(layer).double().eval()
    twin = duplicate(module)
    for a, b in zip(outputs(module(*inputs)), outputs(twin(*inputs)), strict=True):
        assert_close(a.detach(), b.detach(), rtol=0, atol=0)
    for p, q in zip(module.parameters(), twin.parameters(), strict=True):
        assert not np.shares_memory(p.detach().numpy(), q.detach().numpy())


@every_layer
def test_seed_fixes_the_initial_values(layer):
    one, same, other = built(layer, 3), built(layer, 3), built(layer, 4)
    for (name, p), q, r in zip(
        one.named_parameters(), same.parameters(), other.parameters(), strict=True
    ):
        assert_close(p.detach(), q.detach(), rtol=0, atol=0, msg=name)
        if np.ptp(p.detach().numpy()) > 0:
            assert np.any(p.detach().numpy() != r.detach().numpy()), name


@every_layer_by_itself
def test_reset_parameters_starts_over(layer):
    module = built(layer, 5)
    fresh = {name: clone(t) for name, t in module.state_dict().items()}
    for p in module.parameters():
        p.data.fill_(7.0)
    manual_seed(5)
    module.reset_parameters()
    for name, t in module.state_dict().items():
        assert_close(t, fresh[name], rtol=0, atol=0, msg=name)


@every_layer
def test_repr_shows_the_class_and_its_children(layer):
    module = built(layer)
    text = repr(module)
    assert text.startswith(f"{layer.name}(")
    assert text.endswith(")")
    for name, child in module.named_children():
        assert f"({name}): {type(child).__name__}" in text


# Identity takes anything, as in PyTorch.
@each([layer for layer in LAYERS if layer.name != "Identity"])
def test_misspelt_argument_is_refused_with_the_name_that_was_meant(layer):
    cls = getattr(nn, layer.name)
    with pytest.raises(TypeError, match="unexpected keyword argument 'dtypee'"):
        cls(*layer.args, dtypee=1)
