"""Batch normalisation folded into the layer before it, and norms of several tensors."""

import numpy as np
import pytest

import probtorch
import probtorch.nn as nn
from probtorch.errors import ArgumentError, InferenceError
from probtorch.nn.utils import (
    clip_grads_with_norm_,
    fuse_conv_bn_eval,
    fuse_linear_bn_eval,
    get_total_norm,
)
from probtorch.tensor import tensor
from probtorch.testing import assert_close

RNG = np.random.default_rng(9)


def trained(bn):
    bn.running_mean.copy_(tensor(RNG.standard_normal(4)))
    bn.running_var.copy_(tensor(RNG.uniform(0.5, 2.0, 4)))
    for p in bn.parameters():
        p.data.copy_(tensor(RNG.standard_normal(4)))
    return bn.double().eval()


@pytest.mark.parametrize("bias", [True, False])
def test_one_layer_computes_what_two_did(bias):
    image, rows = tensor(RNG.standard_normal((2, 3, 5, 5))), tensor(RNG.standard_normal((6, 3)))
    for layer, bn, x, options in [
        (nn.Conv2d(3, 4, 3, bias=bias), nn.BatchNorm2d(4), image, {}),
        (nn.ConvTranspose2d(3, 4, 2, bias=bias), nn.BatchNorm2d(4), image, {"transpose": True}),
        (nn.Linear(3, 4, bias=bias), nn.BatchNorm1d(4, affine=False), rows, {}),
    ]:
        layer, bn = layer.double().eval(), trained(bn)
        fuse = fuse_linear_bn_eval if isinstance(layer, nn.Linear) else fuse_conv_bn_eval
        one = fuse(layer, bn, **options)
        assert_close(one(x).detach(), bn(layer(x)).detach(), rtol=1e-11, atol=1e-12)
        assert type(one) is type(layer) and one.weight.requires_grad
    with pytest.raises(ArgumentError, match=r"call eval\(\) first"):
        fuse_linear_bn_eval(nn.Linear(3, 4), nn.BatchNorm1d(4))


def test_gradients_are_clipped_by_a_norm_that_is_known():
    values = [RNG.standard_normal(3), RNG.standard_normal((2, 2))]
    flat = np.concatenate([v.reshape(-1) for v in values])
    given = [tensor(v) for v in values]
    for p in (1.0, 2.0, np.inf):
        assert_close(get_total_norm(given, p), np.linalg.norm(flat, p), rtol=1e-12)
    weights = [probtorch.zeros_like(v, requires_grad=True) for v in given]
    for w, g in zip(weights, given):
        w.grad = g.clone()
    clip_grads_with_norm_(weights, 0.5, tensor(2.0, dtype=probtorch.float64))
    for w, v in zip(weights, values):
        assert_close(w.grad, v * 0.5 / (2.0 + 1e-6), rtol=1e-12)
    with pytest.raises(InferenceError, match="a finite norm"):
        get_total_norm([tensor(np.array([np.nan]))], error_if_nonfinite=True)
