"""Gradients of samples by `vmap(grad(functional_call))` are those of a loop, for every layer."""

import numpy as np
import pytest

import probtorch
from probtorch import nn
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import leaves
from probtorch.errors import AutogradError
from probtorch.func import functional_call, grad, vmap
from tests.nn.layers import LAYERS

SAMPLES = 3
# What takes a whole tensor to Python, which differs from sample to sample: refused.
READING = {"MultiLabelMarginLoss", "Embedding(5,3,scale_grad_by_freq=True)-3"}


def outputs(found):
    return [t for t in leaves(found) if isinstance(t, TensorBase)]


def built(layer):
    probtorch.manual_seed(0)
    module = layer.build().double()
    # Running statistics are changed in place by all samples; dropout has a test of its own.
    return module.eval() if any(True for _ in module.buffers()) else module


def problem(layer):
    """Return a module's loss of parameters and one sample, the parameters, and all samples."""
    module, inputs = built(layer), [t.detach() for t in layer.tensors()]
    smooth = [layer.has_gradient(i) for i in range(len(inputs))]
    samples = [
        probtorch.stack([t * (1.0 + 0.01 * k) if wanted else t for k in range(SAMPLES)])
        for t, wanted in zip(inputs, smooth, strict=True)
    ]
    rng = np.random.default_rng(0)
    outs = outputs(module(*inputs))
    weights = [probtorch.tensor(rng.standard_normal(t.shape)) for t in outs]

    def loss(parameters, *sample):
        found = outputs(functional_call(module, parameters, sample))
        return sum((t * w).sum() for t, w in zip(found, weights, strict=True))

    return loss, {name: p.detach() for name, p in module.named_parameters()}, samples


def params():
    for layer in LAYERS:
        # Without parameters it is the gradient of the inputs: the op sweeps have those batched.
        marks = [] if list(built(layer).parameters()) else [pytest.mark.slow]
        yield pytest.param(layer, id=layer.id, marks=marks)


@pytest.mark.parametrize("layer", [*params()])
def test_batched_gradients_of_samples_equal_those_of_a_loop(layer):
    loss, parameters, samples = problem(layer)
    chosen = [i for i in range(len(samples)) if layer.has_gradient(i)]
    slope = grad(loss, argnums=(0, *(1 + i for i in chosen)))
    batched = vmap(slope, in_dims=(None, *[0] * len(samples)))
    if layer.id in READING or layer.name in READING:
        with pytest.raises(AutogradError, match="vmap"):
            batched(parameters, *samples)
        return
    found, *of_inputs = batched(parameters, *samples)
    for k in range(SAMPLES):
        expected, *others = slope(parameters, *(x[k] for x in samples))
        pairs = [(found[name][k], g) for name, g in expected.items()]
        pairs += [(x[k], g) for x, g in zip(of_inputs, others, strict=True)]
        for a, b in pairs:
            np.testing.assert_allclose(a.tolist(), b.tolist(), 1e-9, 1e-12)


@pytest.mark.parametrize("randomness", ["different", "same"])
def test_dropout_in_training_draws_for_each_sample_or_for_all(randomness):
    module = nn.Sequential(nn.Linear(3, 40), nn.Dropout(0.5)).double()
    x = probtorch.ones(SAMPLES, 3, dtype=probtorch.float64)
    parameters = {name: p.detach() for name, p in module.named_parameters()}

    def loss(parameters, x):
        return functional_call(module, parameters, x).sum()

    probtorch.manual_seed(5)
    found = vmap(grad(loss), in_dims=(None, 0), randomness=randomness)(parameters, x)
    probtorch.manual_seed(5)
    for k in range(SAMPLES):
        if randomness == "same":
            probtorch.manual_seed(5)
        expected = grad(loss)(parameters, x[k])
        for name, g in expected.items():
            np.testing.assert_array_equal(found[name][k].tolist(), g.tolist())
    with pytest.raises(probtorch.errors.ArgumentError, match="randomness"):
        vmap(grad(loss), in_dims=(None, 0))(parameters, x)
