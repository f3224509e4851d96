"""Log densities of the rarer distributions against mpmath, over six orders of magnitude.

Parameters are drawn over their sets, values from the distribution itself; the yardstick is that of
test_density_accuracy.py. By default a few rows in double precision, at night also slopes, single
precision and compiled code. A case without a twin in further_oracles.py fails.
"""

import functools
from types import SimpleNamespace

import mpmath
import numpy as np
import pytest

from probtorch.autograd import grad
from probtorch.compiler.compile import compile
from probtorch.core.rng import Generator
from probtorch.distributions import biject_to, constraints
from probtorch.tensor import tensor
from tests.contracts.density_oracles import Oracle, exactly
from tests.contracts.further_oracles import EXACT
from tests.contracts.test_density_accuracy import Asked, assert_exact, rounded, value_error
from tests.distributions.further_cases import FURTHER

UNIVARIATE = {case.id: case for case in FURTHER if case.event_dim == 0}
each = pytest.mark.parametrize("name", UNIVARIATE)


def test_every_rarer_distribution_has_a_twin():
    assert set(UNIVARIATE) == set(EXACT)


@functools.cache
def asked(name, dtype, count):
    """Return rows of parameters, a draw of the distribution at each, and exact log densities."""
    case, rng = UNIVARIATE[name], np.random.default_rng(7)
    values, columns = SimpleNamespace(), []
    for parameter in case.params:
        constraint = case.cls._fields[parameter].constraint
        if constraints.is_dependent(constraint):
            constraint = constraint.resolve(values)
        wide = 2.0 * rng.standard_normal(count)
        drawn = rounded(biject_to(constraint)(tensor(wide)).numpy(), dtype)
        setattr(values, parameter, tensor(drawn))
        columns.append(drawn)
    make = lambda *given: case.cls(
        **dict(zip(case.params, given, strict=True)), **case.fixed, validate_args=False
    )
    d = make(*map(tensor, columns))
    with np.errstate(over="ignore"):
        x = rounded(d.sample((), Generator(3)).numpy(), dtype)
    # Squares of what is farther out are beyond single precision.
    keep = d.support.check(tensor(x)).numpy() & (np.abs(x) < 1e18) & (np.abs(x) > 1e-18)
    keep |= case.is_discrete
    if "loc" in case.params and not case.is_discrete:
        # A draw that has rounded to the location is nearer to it than steps of the twin are long.
        keep &= x != columns[case.params.index("loc")]
    columns = [c[keep] for c in (*columns, x)]
    whole = (len(case.params),) if case.is_discrete else ()
    oracle = Oracle(make, EXACT[name], None, whole)
    with mpmath.workdps(oracle.digits):
        rows = [exactly(row) for row in zip(*columns, strict=True)]
        return Asked(oracle, columns, rows, [oracle.exact(*row) for row in rows], dtype)


def density_and_slopes(oracle, count):
    inner = [j for j in range(count) if j not in oracle.whole]
    make = oracle.make  # not the oracle, from which a program would reach mpmath's memory

    def fn(*columns):
        leaves = [c.detach().requires_grad_() if j in inner else c for j, c in enumerate(columns)]
        lp = make(*leaves[:-1]).log_prob_inside(leaves[-1])
        return lp, *grad(lp.sum(), [leaves[j] for j in inner], materialize_grads=True)

    return fn


@each
def test_a_log_density_keeps_its_digits(name):
    where = asked(name, np.float64, 12)
    *given, x = where.tensors()
    lp = where.oracle.make(*given).log_prob_inside(x).numpy()
    with mpmath.workdps(where.oracle.digits):
        for i, got in enumerate(lp):
            error = value_error(where, i, got)
            assert error <= 1.0, (error, got, float(where.values[i]), [c[i] for c in where.columns])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@each
def test_slopes_keep_their_digits_in_compiled_code_too(name, dtype):
    where = asked(name, dtype, 30)
    fn = density_and_slopes(where.oracle, len(where.columns))
    native = compile(fn)
    with np.errstate(all="ignore"):
        native(*where.tensors())
        for run in (fn, native):
            lp, *slopes = run(*where.tensors())
            assert_exact(where, lp, slopes)
    assert native.reason is None
