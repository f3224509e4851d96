"""Text made of a recorded tensor: Python may branch on it, so nothing is frozen."""

import numpy as np
import pytest

from probtorch.compiler.density import NativeDensity
from probtorch.compiler.paths import CompileWarning


@pytest.mark.parametrize("text", [lambda x: f"{x:.1f}", repr, str], ids=["format", "repr", "str"])
def test_a_branch_on_the_text_of_a_latent_value_is_not_frozen(text):
    def logdensity(q):
        sign = -1.0 if "-" in text(q[0]) else 1.0
        return (q * sign).sum()

    density = NativeDensity(logdensity, 2)
    with pytest.warns(CompileWarning, match="the text of a tensor"):
        up, _ = density.value_and_grad(np.array([1.0, 2.0]))
    down, gradient = density.value_and_grad(np.array([-1.0, 4.0]))
    assert (up, down) == (3.0, -3.0)
    np.testing.assert_array_equal(gradient, [-1.0, -1.0])


def test_the_text_of_a_constant_is_no_reason_to_run_eagerly():
    def logdensity(q):
        scale = 2.0 if "2" in repr(q.new_full((1,), 2.0)) else 1.0
        return (q * scale).sum()

    density = NativeDensity(logdensity, 2)
    value, _ = density.value_and_grad(np.array([1.0, 2.0]))
    assert value == 6.0 and density.reason is None
