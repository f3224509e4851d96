"""Which tensors are alive: counted, shown, and the same number after every step of training."""

import gc
import subprocess
import sys
from pathlib import Path

import probtorch
from probtorch import nn, optim
from probtorch.utils.memory import live_tensors, summary

ROOT = Path(__file__).resolve().parents[2]


def test_live_tensors_are_those_that_somebody_has():
    gc.collect()
    before = len(live_tensors())
    kept = [probtorch.zeros(7, 3), nn.Parameter(probtorch.ones(2))]
    found = live_tensors()
    assert len(found) - before == 2
    assert any(t is kept[0] for t in found) and any(t is kept[1] for t in found)
    assert len(live_tensors("cpu")) >= 2 and live_tensors("cuda:9") == []
    del kept, found
    assert len(live_tensors()) == before


def test_a_summary_counts_shared_memory_once():
    gc.collect()
    before = int(summary().splitlines()[-1].split()[2])
    x = probtorch.zeros(123, 457)
    views = [x.detach(), x[1:], x.T]
    text = summary()
    row = next(line.split() for line in text.splitlines() if "(123, 457)" in line)
    assert row == ["Tensor", "float32", "(123,", "457)", "cpu", "2", str(2 * x.array.nbytes)]
    assert int(text.splitlines()[-1].split()[2]) - before == x.array.nbytes
    assert len(views) == 3
    assert "more rows" in summary(row_limit=1)


def train(steps):
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    adam = optim.Adam(net.parameters())
    x = probtorch.ones(5, 4)
    for _ in range(steps):
        adam.zero_grad()
        net(x).square().mean().backward()
        adam.step()
        yield


def test_training_leaves_as_many_tensors_as_there_were():
    counts = []
    for _ in train(4):
        gc.collect()
        counts.append(len(live_tensors()))
    assert len(set(counts[2:])) == 1


LEAKS = """
import gc
import probtorch as torch

kept = torch.tensor([[1.0, 2.0, 3.0]], requires_grad=True)
for obj in gc.get_objects():
    try:
        if torch.is_tensor(obj) or (hasattr(obj, "data") and torch.is_tensor(obj.data)):
            print(type(obj), obj.size())
    except OSError:  # of the loader of ctypes, which takes any name for a library
        pass
"""


def test_the_snippet_that_looks_for_leaks_prints_shapes_and_never_raises():
    run = subprocess.run(
        [sys.executable, "-c", LEAKS], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "<class 'probtorch.tensor.Tensor'> Size([1, 3])" in run.stdout
