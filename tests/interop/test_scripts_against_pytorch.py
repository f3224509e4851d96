"""Scripts as people write them for PyTorch, run by both libraries: the same losses."""

import math

import pytest

import probtorch
from tests.interop.scripts import (  # noqa: F401
    functional,
    generative,
    layers,
    networks,
    state,
    training,
)
from tests.interop.scripts.common import SCRIPTS

pytestmark = [
    pytest.mark.slow,
    # Some steps run eagerly, which is said, and PyTorch warns of forms that it gives up.
    pytest.mark.filterwarnings("ignore"),
]
_DONE = {}


def by_pytorch(name):
    torch = pytest.importorskip("torch")
    if name not in _DONE:
        _DONE[name] = [float(x) for x in SCRIPTS[name](torch, lambda step: step)]
    return _DONE[name]


@pytest.mark.parametrize("how", ["eager", "compiled"])
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_prints_what_it_prints_under_pytorch(name, how):
    expected = by_pytorch(name)
    step = probtorch.compile if how == "compiled" else lambda step: step
    found = [float(x) for x in SCRIPTS[name](probtorch, step)]
    assert len(found) == len(expected)
    for i, (x, y) in enumerate(zip(found, expected, strict=True)):
        # In float32 over 20 steps, with optimizers that divide by the size of small gradients.
        assert math.isclose(x, y, rel_tol=5e-5, abs_tol=4e-5), (i, x, y)
