"""What the scripts share: the table of them, and weights and data that both libraries get.

A script is a function of the library and of what compiles a step, and returns the losses and
other numbers that it would print.
"""

import numpy as np

SCRIPTS = {}


def script(fn):
    SCRIPTS[fn.__name__] = fn
    return fn


def fill(torch, net, seed=0, scale=0.3):
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.tensor(rng.normal(size=tuple(p.shape)).astype(np.float32) * scale))
    return net


def data(torch, *shape, seed=1):
    return torch.tensor(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def ints(torch, high, *shape, seed=2):
    return torch.tensor(np.random.default_rng(seed).integers(0, high, size=shape))
