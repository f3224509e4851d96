"""Text made of a recorded tensor, or of an array: Python may branch on it, so nothing is frozen."""

import numpy as np
import pandas as pd
import pytest

from probtorch import compile, tensor
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


ARRAY = np.array([1 / 3, 2 / 3])
SERIES = pd.Series(ARRAY)
TEXTS = {
    "str": lambda: str(ARRAY),
    "f-string": lambda: f"{ARRAY}",
    "percent": lambda: "%s" % ARRAY,  # noqa: UP031  as people write it
    "format": lambda: "{}".format(ARRAY),  # noqa: UP032
    "array2string": lambda: np.array2string(ARRAY),
    "a list": lambda: "".join(map(str, [ARRAY])),
    "pandas": lambda: str(SERIES),
    "to_string": lambda: pd.DataFrame({"a": ARRAY}).to_string(),
}


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("returned", [True, False], ids=["returned", "counted"])
def test_how_arrays_are_printed_is_watched(name, returned):
    text = TEXTS[name]

    def fn(x):
        return (x * 2, text()) if returned else x * len(text())

    native = compile(fn, verify=False)
    x = tensor([1.0, 2.0])
    try:
        for digits in (3, 3, 3, 5, 5, 6, 3):
            np.set_printoptions(precision=digits)
            pd.set_option("display.precision", digits)
            assert repr(native(x)) == repr(fn(x))
    finally:
        np.set_printoptions(precision=8)
        pd.reset_option("display.precision")
    assert native.reason is None
