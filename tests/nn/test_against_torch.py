"""Every layer against PyTorch's: output, gradients, state, signature; skipped without PyTorch."""

import inspect
import warnings

import numpy as np
import pytest

import probtorch.nn as nn
from probtorch.autograd.tape import backward
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import leaves
from probtorch.tensor import tensor
from tests.nn.layers import LAYERS

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

# PyTorch keeps some settings in float32 inside float64 kernels: alpha of CELU, 1/6 of Hardsigmoid.
ROUNDING = {"rtol": 1e-7, "atol": 1e-9}

SHARED = [layer for layer in LAYERS if hasattr(torch.nn, layer.name)]


def flat(result):
    if isinstance(result, (tuple, list)):
        return [t for part in result for t in flat(part)]
    return [] if result is None else [result]


def pair(layer):
    """Both modules in float64, with PyTorch's parameters."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about nested tensors and the like
        theirs = layer.build(torch.nn, torch.tensor).double()
        ours = layer.build().double()
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


@pytest.mark.parametrize("layer", SHARED, ids=lambda layer: layer.id)
def test_output_and_gradients_agree(layer):
    ours, theirs = pair(layer)
    x, y = layer.tensors(), [torch.tensor(a) for a in layer.inputs]
    for i, t in enumerate(y):
        t.requires_grad_(layer.has_gradient(i))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = flat(theirs(*y))
    got = [t for t in leaves(ours(*x)) if isinstance(t, TensorBase)]
    assert len(got) == len(expected)
    rng = np.random.default_rng(0)
    gs = [rng.standard_normal(tuple(t.shape)) for t in expected]
    for a, b in zip(got, expected):
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), **ROUNDING)
    on_tape = [i for i, t in enumerate(expected) if t.requires_grad]
    if not on_tape:
        return
    backward([got[i] for i in on_tape], [tensor(gs[i]) for i in on_tape])
    torch.autograd.backward([expected[i] for i in on_tape], [torch.tensor(gs[i]) for i in on_tape])
    named = [*ours.named_parameters(), *((f"input {i}", t) for i, t in enumerate(x))]
    others = dict([*theirs.named_parameters(), *((f"input {i}", t) for i, t in enumerate(y))])
    for name, p in named:
        if others[name].grad is not None:
            np.testing.assert_allclose(
                p.grad.numpy(), others[name].grad.numpy(), err_msg=name, **ROUNDING
            )
    for name, value in theirs.state_dict().items():
        np.testing.assert_allclose(ours.state_dict()[name].numpy(), value.numpy(), rtol=1e-9)


@pytest.mark.parametrize("layer", SHARED, ids=lambda layer: layer.id)
def test_names_shapes_and_dtypes_of_the_state_agree(layer):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours, theirs = layer.build(), layer.build(torch.nn, torch.tensor)
    described = [
        {name: (tuple(t.shape), str(t.dtype).removeprefix("torch.")) for name, t in state.items()}
        for state in (ours.state_dict(), theirs.state_dict())
    ]
    assert described[0] == described[1]


@pytest.mark.parametrize("name", sorted({layer.name for layer in SHARED}))
def test_signature_is_pytorchs(name):
    def described(cls):
        found = list(inspect.signature(cls.__init__).parameters.values())[1:]
        return {p.name: None if callable(p.default) else p.default for p in found}

    theirs = described(getattr(torch.nn, name))
    if "args" in theirs:
        return  # PyTorch states no signature
    ours = described(getattr(nn, name))
    # Arguments that PyTorch has renamed or added since are no promise of ours.
    late = {"min_value", "max_value", "bias"} - set(ours)
    theirs = {k: v for k, v in theirs.items() if k not in late}
    assert {k: ours.get(k, "missing") for k in theirs} == theirs
    shared = [k for k in ours if k in theirs]
    assert shared == [k for k in theirs if k in shared]
