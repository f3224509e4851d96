"""Every density accepts the draws of its own distribution, whatever the parameters and the dtype.

Parameters are those of density_oracles.py, over sixteen orders of magnitude: draws underflow, or
are rounded to a bound of their support, unless samplers see to it that they are not.
"""

import warnings

import numpy as np
import pytest

from probtorch.compiler.compile import compile
from probtorch.compiler.paths import CompileWarning
from probtorch.core.rng import Generator, default_generator
from probtorch.tensor import tensor
from tests.contracts.density_oracles import ORACLES

ROWS, DRAWS = 60, 200

each = pytest.mark.parametrize("name", ORACLES)
both_dtypes = pytest.mark.parametrize("dtype", [np.float64, np.float32])


def parameters(name, dtype):
    """Return what makes a distribution of ROWS batch elements, and its parameters."""
    oracle = ORACLES[name]
    top = 1e200 if dtype is np.float64 else 1e30
    columns = list(oracle.draw(np.random.default_rng(5), ROWS, top))
    columns = [np.asarray(c, np.float64).astype(dtype).astype(np.float64) for c in columns]
    if oracle.fit:
        columns = oracle.fit(columns)
    return oracle.make, [tensor(np.asarray(c, dtype)) for c in columns[:-1]]


@both_dtypes
@each
def test_a_density_accepts_its_own_draws(name, dtype):
    make, given = parameters(name, dtype)
    d = make(*given)
    x = d.sample((DRAWS,), Generator(1))
    assert x.dtype == dtype or not x.is_floating_point()
    lp = d.log_prob(x).numpy()
    bad = np.argwhere(~np.isfinite(lp))
    assert len(bad) == 0, (lp[tuple(bad[0])], [p.numpy()[bad[0][1]] for p in given])


@each
def test_a_native_density_accepts_its_own_draws(name):
    make, given = parameters(name, np.float32)

    def own(*given):
        d = make(*given)
        return d.log_prob(d.sample((20,)))

    native = compile(own)
    default_generator.set_state((5, 1, 0))
    with warnings.catch_warnings():
        warnings.simplefilter("error", CompileWarning)
        for _ in range(3):
            assert np.isfinite(native(*given).numpy()).all()
    assert native.reason is None
