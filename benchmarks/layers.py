"""How far layers are from PyTorch's: outputs and gradients at random inputs, in float64.

Not a race: the largest differences over all layers that both libraries have, each relative to the
largest entry of the array compared. Run as ``python -m benchmarks.layers``; needs PyTorch.
"""

import warnings

import numpy as np

from benchmarks import machine

machine.restrict_to_one_core()


def relative(ours, theirs):
    """Largest difference of two arrays, relative to the largest entry (or 1)."""
    scale = max(1.0, float(np.abs(theirs).max(initial=0.0)))
    return float(np.abs(ours - theirs).max(initial=0.0)) / scale


def compare(layer):
    """Return the differences of outputs and of gradients of one layer."""
    import torch

    from probtorch.autograd.tape import backward
    from probtorch.core.tensor_base import TensorBase
    from probtorch.core.tree import leaves
    from probtorch.tensor import tensor
    from tests.nn.test_against_torch import flat, pair

    ours, theirs = pair(layer)
    x, y = layer.tensors(), [torch.tensor(a) for a in layer.inputs]
    for i, t in enumerate(y):
        t.requires_grad_(layer.has_gradient(i))
    expected = flat(theirs(*y))
    got = [t for t in leaves(ours(*x)) if isinstance(t, TensorBase)]
    value = max(
        relative(a.detach().numpy(), b.detach().numpy()) for a, b in zip(got, expected, strict=True)
    )
    rng = np.random.default_rng(0)
    taped = [i for i, t in enumerate(expected) if t.requires_grad]
    if not taped:
        return value, 0.0
    gs = [rng.standard_normal(tuple(expected[i].shape)) for i in taped]
    backward([got[i] for i in taped], [tensor(g) for g in gs])
    torch.autograd.backward([expected[i] for i in taped], [torch.tensor(g) for g in gs])
    named = [*ours.named_parameters(), *((f"input {i}", t) for i, t in enumerate(x))]
    others = dict([*theirs.named_parameters(), *((f"input {i}", t) for i, t in enumerate(y))])
    pairs = [
        (p.grad.numpy(), others[n].grad.numpy()) for n, p in named if others[n].grad is not None
    ]
    return value, max((relative(a, b) for a, b in pairs), default=0.0)


def main():
    """Print the number of layers, and the largest differences with their layers."""
    from tests.nn.test_against_torch import SHARED

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {layer.id: compare(layer) for layer in SHARED}
    for k, what in enumerate(("outputs", "gradients")):
        worst = sorted(found, key=lambda name: -found[name][k])[:3]
        close = sum(pair[k] < 1e-14 for pair in found.values())
        listed = ", ".join(f"{name} {found[name][k]:.1e}" for name in worst)
        print(f"{what}: {close} of {len(found)} cases within 1e-14; largest: {listed}")
    print(machine.describe(["probtorch", "torch"]))


if __name__ == "__main__":
    main()
