"""Writes `from_pytorch.pt` with PyTorch, which tests read without it; run it to make it anew."""

from collections import OrderedDict
from pathlib import Path

import torch


def content():
    """What the file holds; every number is an exact one, so that tests can state it."""
    base = torch.arange(6.0)
    net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    with torch.no_grad():
        net[0].weight.copy_(torch.arange(6.0).reshape(3, 2) / 4)
        net[0].bias.copy_(torch.tensor([0.5, -0.5, 2.0]))
    sgd = torch.optim.SGD(net.parameters(), lr=0.25, momentum=0.5)
    for p in net.parameters():
        p.grad = torch.ones_like(p)
    sgd.step()
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.25)
    noted = torch.ones(2)
    noted.note = "an attribute"
    names = "float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64".split()
    return {
        "net": net.state_dict(),
        "sgd": sgd.state_dict(),
        "whole": base,
        "part": base[1:5].reshape(2, 2).T,
        "spread": torch.ones(1).expand(2, 3),
        "empty": torch.zeros(0, 3),
        "number": torch.tensor(2.5, dtype=torch.float64),
        "parameter": net[0].bias,
        "leaf": torch.tensor([1.0], requires_grad=True),
        "dtypes": {n: torch.tensor([1, 2, 3]).to(getattr(torch, n)) for n in names},
        "bool": torch.tensor([True, False]),
        "bfloat16": torch.tensor([1.5, -2.0, float("inf")], dtype=torch.bfloat16),
        "e4m3": torch.tensor([1.5, -448.0, 0.001953125]).to(torch.float8_e4m3fn),
        "e5m2": torch.tensor([1.5, -57344.0, float("-inf")]).to(torch.float8_e5m2),
        "complex": torch.tensor([1 + 2j, -3j]),
        "conjugate": torch.tensor([1 + 2j, -3j], dtype=torch.complex128).conj(),
        "noted": noted,
        "buffer": torch.nn.Buffer(torch.ones(1)),
        "device": torch.device("cuda", 1),
        "size": torch.Size([2, 3]),
        "dtype": torch.float64,
        "plain": [1, -2, 2**70, 0.1, "text", b"by\xfftes", b"", None, True, 1 + 2j, (1, (2, "x"))],
        "sets": [{1, 2}, frozenset({"a"})],
        "ordered": OrderedDict(b=1, a=2),
        3: "a number as a key",
    }


if __name__ == "__main__":
    torch.save(content(), Path(__file__).with_name("from_pytorch.pt"))
