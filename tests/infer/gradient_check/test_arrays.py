"""Arrays made of tensors with a gradient are refused where they are made."""

import numpy as np
import pytest

import probtorch
from probtorch import tensor
from probtorch.errors import AutogradError, DTypeError
from tests.infer.gradient_check.whole_models import X


def test_masked_arrays_are_refused_where_they_would_cut_or_lose_their_mask():
    masked = np.ma.array(X, mask=X > 0.0)
    b = tensor(0.5, requires_grad=True)
    with pytest.raises(AutogradError, match="a masked array") as caught:
        masked * b
    assert "filled" in caught.value.fix
    for call in (lambda: b * masked, lambda: tensor(masked), lambda: probtorch.from_numpy(masked)):
        with pytest.raises(DTypeError, match="10 of 20 elements masked"):
            call()
    assert (b * np.ma.array(X)).requires_grad  # nothing is masked


def test_arrays_asked_for_by_others_are_refused_with_a_fix_for_that_call():
    pandas = pytest.importorskip("pandas")
    b = tensor([0.5, 0.25], requires_grad=True)
    frame = pandas.DataFrame(np.ones((3, 2)))

    def fill():
        mu = np.zeros(3)
        mu[:2] = b

    def add():
        mu = np.zeros(2)
        mu += b

    fixes = {
        r"to_numpy\(\)": lambda: frame @ b,
        "probtorch.zeros": fill,
        "x = x \\+ t": add,
        "keep the gradient": lambda: np.array([b, b]),
        "autograd.Function": lambda: np.unwrap(b),
    }
    for fix, call in fixes.items():
        with pytest.raises(AutogradError, match=fix) as caught:
            call()
        assert "detach" not in str(caught.value)


def test_functions_of_scipy_are_refused_with_what_to_write_in_their_place():
    from scipy import interpolate, linalg, special, stats

    b = tensor([0.5, 0.25], requires_grad=True)
    square = tensor(np.eye(2), requires_grad=True)
    fixes = {
        r"write x\.logsumexp\(-1\)": lambda: special.logsumexp(b),
        r"Normal\(loc, scale\)\.log_prob\(x\)": lambda: stats.norm.logpdf(b),
        r"numpy\.interp\(x, xp, fp\)": lambda: interpolate.interp1d([0.0, 1.0], b),
        r"probtorch\.linalg\.solve\(": lambda: linalg.solve(np.eye(2), b),
        r"probtorch\.linalg\.matrix_exp\(": lambda: linalg.expm(square),
    }
    for fix, call in fixes.items():
        with pytest.raises(AutogradError, match=fix) as caught:
            call()
        assert "__init__" not in str(caught.value)
