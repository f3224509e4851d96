"""Log densities at parameters and values from 1e-8 to 1e8, drawn by hypothesis; at night to 1e100.
In single precision from 1e-4 to 1e4, at night to 1e30.

The oracles and the yardstick are those of test_density_accuracy.py; values are draws of the
distribution, or numbers of any size. By default a few of the distributions that were once wrong
here, at night many of all. A distribution of single numbers with an oracle is in the law unless a
parameter bounds another, or it stands in a table below.
"""

import math
from types import SimpleNamespace

import mpmath
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import probtorch.distributions as dist
from probtorch.autograd import grad
from probtorch.compiler.compile import compile
from probtorch.core.rng import Generator
from probtorch.distributions import constraints
from probtorch.tensor import tensor
from tests.contracts.density_oracles import ORACLES, Oracle, exactly
from tests.contracts.further_oracles import EXACT
from tests.contracts.integral_oracles import beta_quotient, polya_gamma, stable
from tests.contracts.test_density_accuracy import Asked, one_rounding, value_error
from tests.distributions.cases import CASES, Case
from tests.distributions.further_cases import FURTHER

DIGITS, USUAL, REACH, FARTHEST, MOST = 450, 8.0, 100.0, 1e150, 1e15
# Laws of their own below, in what they are exact for.
NARROWER = {"BetaQuotient", "Stable"}
# A parameter that bounds another, of what is in the law none the less.
BOUNDED = {"NormalInverseGaussian"}
# Vectors as parameters, or a set of its own; numbers of trials have a law below.
OTHER_SETS = {
    *("BetaBinomial", "Binomial-logits", "Binomial-probs"),
    *("Categorical-probs", "Categorical-logits", "LowerTruncatedPowerLaw"),
}
# Those whose densities were wrong between 1e-8 and 1e8 before they were written for it.
MENDED = {
    *("BetaNegativeBinomial", "Burr", "Dagum", "ExpGamma", "GammaGamma", "Kumaraswamy"),
    *("GeneralizedExtremeValue", "LambertWNormal", "SigmoidBeta", "SinhArcsinh", "SkewLogistic"),
    *("SkewStudentT", "YuleSimon", "Zipf"),
}


# Those that were wrong in single precision between 1e-4 and 1e4.
MENDED_SINGLE = {
    *(
        "Chi",
        "ExpGamma",
        "GeneralizedExtremeValue",
        "GeneralizedPareto",
        "JohnsonSU",
        "LogitNormal",
    ),
    *("NoncentralT", "SinhArcsinh", "VonMises", "Weibull"),
}


def drawn(data, constraint, reach):
    """Draw a number of a set, of any order of magnitude; None for sets that are not known here."""
    power = st.floats(-reach, reach)
    if constraint in (constraints.positive, constraints.nonnegative):
        return 10.0 ** data.draw(power)
    if constraint is constraints.real:
        return data.draw(st.sampled_from([-1.0, 0.0, 1.0])) * 10.0 ** data.draw(power)
    if constraint in (constraints.nonnegative_integer, constraints.positive_integer):
        return float(round(10.0 ** data.draw(st.floats(0.0, math.log10(MOST)))))
    low, high = getattr(constraint, "lower_bound", None), getattr(constraint, "upper_bound", None)
    if isinstance(low, float) and isinstance(high, float):
        share = 10.0 ** data.draw(st.floats(-15.0, -0.01))
        return low + (high - low) * (share if data.draw(st.booleans()) else 1.0 - share)
    if isinstance(low, float) and high is None:
        return low + 10.0 ** data.draw(st.floats(-8.0, reach))
    return None


def _inside(constraint, v):
    ends = [getattr(constraint, name, None) for name in ("lower_bound", "upper_bound")]
    return constraint.check(tensor(np.array(v))).item() and (None in ends or v not in ends)


def known(case):
    sets = [case.cls._fields[name].constraint for name in case.params]
    plain = not any(map(constraints.is_dependent, sets)) or case.id in BOUNDED
    left_out = NARROWER | OTHER_SETS
    return plain and (case.id in ORACLES or case.id in EXACT) and case.id not in left_out


POLYA_GAMMA = Case(dist.PolyaGamma, ("h", "z"), None)
STABLE = Case(dist.Stable, ("stability", "skew", "scale", "loc"), None)
QUOTIENT = next(c for c in FURTHER if c.id == "BetaQuotient")
UNIVARIATE = [c for c in CASES + FURTHER if c.event_dim == 0 and known(c)] + [POLYA_GAMMA]
TWINS = (
    {name: oracle.exact for name, oracle in ORACLES.items()}
    | EXACT
    | {"BetaQuotient": beta_quotient, "PolyaGamma": polya_gamma, "Stable": stable}
)


def error_of(case, exact, parameters, x, got, dtype=np.float64):
    """Error as a share of what is allowed, 0 where rounding changes all; and the exact value."""
    with mpmath.workdps(DIGITS):
        row = exactly([*parameters, x])
        value = exact(*row)
        if not isinstance(value, mpmath.mpf) or mpmath.isnan(value):
            return 0.0, value
        whole = (len(parameters),) if case.is_discrete else ()
        columns = [np.array([v]) for v in (*parameters, x)]
        asked = Asked(Oracle(None, exact, None, whole), columns, [row], [value], dtype)
        error = value_error(asked, 0, got)
        # Such as at the end of a bounded tail, to which a value beside it has rounded.
        if error == math.inf and abs(one_rounding(asked, exact, row)) > 1e-3:
            return 0.0, value
    return error, value


def parameters_of(case, data, reach, dtype):
    """Draw parameters of a case, each in its set, and return the sets, too."""
    values, sets = SimpleNamespace(), []
    for name in case.params:
        constraint = case.cls._fields[name].constraint
        if constraints.is_dependent(constraint):
            ends = constraint.resolve(values)
            low, high = (e.item() for e in (ends.lower_bound, ends.upper_bound))
            constraint = type(ends)(low, high)
        v = drawn(data, constraint, reach)
        assume(v is not None)
        setattr(values, name, tensor(np.array(v, dtype)))
        sets.append(constraint)
    return [getattr(values, name).item() for name in case.params], sets


def compare(case, data, reach, dtype=np.float64, parameters=None):
    exact, sets = TWINS[case.id], []
    number = lambda v: tensor(np.array(v, dtype))
    if parameters is None:
        parameters, sets = parameters_of(case, data, reach, dtype)
    parameters = [number(v).item() for v in parameters]
    # In single precision shares round to the ends.
    assume(all(_inside(c, v) for c, v in zip(sets, parameters)))
    given = {n: number(v) for n, v in zip(case.params, parameters)}
    d = case.cls(**given, **case.fixed)
    with np.errstate(all="ignore"):
        x = d.sample((), Generator(data.draw(st.integers(0, 10**6)))).item()
    assert math.isfinite(x), (x, parameters)
    if data.draw(st.booleans()):
        x = drawn(data, constraints.nonnegative_integer if case.is_discrete else d.support, reach)
        x = 10.0 ** data.draw(st.floats(-reach, reach)) if x is None else x
    with np.errstate(over="ignore"):
        x = number(x).item()
    far, most = (FARTHEST, MOST) if dtype is np.float64 else (10.0 ** (reach + 5.0), 2.0**24)
    assume(x <= most if case.is_discrete else x == 0.0 or 1 / far < abs(x) < far)
    assume(d.support.check(number(x)).item())
    with np.errstate(all="ignore"):
        got = d.log_prob(number(x)).item()
    error, value = error_of(case, exact, parameters, x, got, dtype)
    assert error <= 1.0, (error, got, mpmath.nstr(value, 17), parameters, x)


# Where densities were wrong before they were written for such numbers: parameters, and the value.
ROWS = [
    ("SkewLogistic", (0.0, 9e-4, 4.9e-6), -441.0),
    ("SkewLogistic", (0.0, 1e-8, 1e-8), -1.0),
    ("SinhArcsinh", (0.0, 1.2e-6, 0.0, 1.3e6), -3.2e-6),
    ("SinhArcsinh", (0.5, 0.02, 300.0, 1e-8), 0.6),
    ("Dagum", (4e-7, 2.2e6, 5.4e-8), 3.9e-8),
    ("Burr", (3.9e-8, 9.3e7, 1.4), 37.3),
    ("Kumaraswamy", (5e6, 4.9e7), 0.999996427),
    ("Kumaraswamy", (8.3, 1.03e7), 0.14679),
    ("GeneralizedPareto", (0.0, 1e-80, 1e100), 1e140),
    ("GeneralizedExtremeValue", (0.0, 1e-80, -1e100), -1e140),
    ("BetaNegativeBinomial", (7.7e5, 8.3e6), 4.4e11),
    ("BetaNegativeBinomial", (2e-42, 2e41), 381.0),
    ("LambertWNormal", (0.0, 2.7e-67, 5e-5), 8e81),
    ("LambertWNormal", (0.0, 1e-8, 1e8), 1e8),
    ("ExpGamma", (1e38, 1e-6), 105.0),
    ("ExpInverseGamma", (1e38, 1e-6), -105.0),
    ("GammaGamma", (2.0, 3e-8, 1e-100), 1e150),
    ("SigmoidBeta", (3e5, 2e-3), 299.0),
    ("SigmoidBeta", (1e-8, 1e45), -90.0),
    ("SkewStudentT", (3e5, 2e-3, 0.0, 1e-8), 1e8),
    ("SkewStudentT", (2.7e23, 1.1e78, 0.0, 3.5e-4), -3.6e62),
    ("SkewStudentT", (1.5e93, 8.9e11, 0.0, 1.7e-40), 1.4e47),
    ("SkewStudentT", (5.5e9, 1.3e50, 1.2e-32, 6.5e-70), -5.6e-25),
    ("SigmoidBeta", (1.3e81, 1.8e37), 101.03076520170517),
    ("SigmoidBeta", (9e11, 1.5e93), -187.04510038875716),
    ("GammaGamma", (2.2e48, 1.4e88, 3e49), 4504948850.194417),
    ("GammaGamma", (1.7e17, 2.5e56, 2.3e-46), 1.5e-85),
    ("BetaNegativeBinomial", (8.2e-6, 3.1e31), 530414.0),
    ("BetaNegativeBinomial", (2.5e-25, 2.3e85), 92174160614226.0),
    ("ExGaussian", (4.5e-92, 1.2e79, 1.4e-76), 7.5e-43),
    ("SoftAsymmetricLaplace", (-3.4e18, 1.2e-74, 1.5e83, 6.5e-6), -5.8e81),
    ("NoncentralT", (1.0, 27256964.33165106, 1.0, 1078141.9380353831), -1.0),
    ("Zipf", (2e40,), 854632096.0),
    ("NormalInverseGaussian", (0.0, 2.4e39, 1.4111211509437378e93, -1.411121117347414e93), -4.8e89),
    ("NormalInverseGaussian", (0.0, 2.2e96, 1.826413476546577e82, 1.826410812444059e82), 3e25),
    ("NormalInverseGaussian", (0.0, 1.3e-27, 6.583485103291e-90, 6.58348508007e-90), -2e-27),
    ("PolyaGamma", (16104605.97127193, 20416508.03394587), 0.3944015694314077),
    ("PolyaGamma", (3.4374649406308095, 0.006862955531447072), 7635968.168073462),
    ("PolyaGamma", (0.5, 0.0), 1e9),
]


def maker(case):
    """What makes the distribution of a case from its parameters, without the rest of the case: all
    that its twin reaches in SciPy and mpmath would be watched in a compiled function.
    """
    cls, names, fixed = case.cls, case.params, case.fixed
    return lambda given: cls(**dict(zip(names, given, strict=False)), **fixed)


@pytest.mark.parametrize(("name", "parameters", "x"), ROWS, ids=[r[0] for r in ROWS])
def test_densities_and_slopes_hold_where_they_were_wrong(name, parameters, x):
    case = next(c for c in UNIVARIATE if c.id == name)
    make = maker(case)

    def fn(*leaves):
        leaves = [v.detach().requires_grad_() for v in leaves]
        d = make(leaves)
        lp = d.log_prob(leaves[-1])
        return lp, *grad(lp, leaves[:-1], materialize_grads=True)

    numbers = [tensor(np.array(v)) for v in (*parameters, x)]
    for run in (fn, compile(fn)):
        with np.errstate(all="ignore"):
            run(*numbers)
            got, *slopes = (v.item() for v in run(*numbers))
        assert error_of(case, TWINS[name], parameters, x, got)[0] <= 1.0
        assert all(map(math.isfinite, slopes)), slopes


# Densities in which something of the size of a square or a quotient is beyond single precision.
SINGLE_ROWS = [
    ("AsymmetricLaplace", (0.0, 2e-23, 3e28), 0.0),
    ("Cauchy", (7e28, 2e-18), 1.6e-9),
    ("GeneralizedNormal", (5e-30, 1e-26, 4e-3), 3e29),
    ("Gompertz", (2.5e-28, 1e-26), 5e-16),
    ("Gumbel", (7e28, 1e-18), 7.1e28),
    ("HalfCauchy", (5e-29,), 5e25),
    ("HalfStudentT", (1.2e-29, 4e-13), 1.5e21),
    ("Levy", (0.0, 1e-29), 6e29),
    ("Logistic", (7e28, 2e-18), 1.6e-9),
    ("Maxwell", (5e-29,), 5e25),
    ("Rayleigh", (5e-29,), 5e25),
    ("StudentT", (5e-23, 1.2e6, 5e-29), 0.0),
    ("TwoPieceNormal", (-1.0, 1e13, 1e26), -1.0),
]


@pytest.mark.parametrize(("name", "parameters", "x"), SINGLE_ROWS, ids=[r[0] for r in SINGLE_ROWS])
def test_single_precision_holds_where_squares_and_quotients_do_not(name, parameters, x):
    case = next(c for c in UNIVARIATE if c.id == name)
    exact = TWINS[name]
    numbers = [tensor(np.array([v], np.float32)) for v in (*parameters, x)]

    make = maker(case)

    def fn(*given):
        return make(given).log_prob(given[-1])

    native, (*parameters, x) = compile(fn), (v.item() for v in numbers)
    for run in (fn, native):
        run(*numbers)
        got = run(*numbers)
        assert got.dtype == numbers[0].dtype
        assert error_of(case, exact, parameters, x, got.item(), np.float32)[0] <= 1.0


# What is expected of 10^14 trials has no digits left where counts differ from it, unless it is
# known beyond rounding. No rounding of inputs is allowed for.
MANY_TRIALS = [
    (dist.Binomial, "Binomial-probs", (220804958832335.0, 0.38193748330337585, 84333703999893.0)),
    (dist.Binomial, "Binomial-probs", (399856464338836.0, 0.6268366997798441, 250644710029943.0)),
    (dist.Binomial, "Binomial-probs", (291988544619811.0, 0.44559092581588433, 130107167599740.0)),
    (
        dist.NegativeBinomial,
        "NegativeBinomial-probs",
        (20.82881124598695, 0.9999996069238889, 1254926696.0),
    ),
    (
        dist.NegativeBinomial,
        "NegativeBinomial-probs",
        (297746.17675614514, 0.9999849765959044, 19791429139.0),
    ),
    (dist.BetaBinomial, "BetaBinomial", (4.9e94, 2.2e-41, 9554329236.0, 9554329236.0)),
]


@pytest.mark.parametrize(("cls", "name", "row"), MANY_TRIALS)
def test_masses_of_many_trials_are_exact_beyond_the_rounding_of_what_is_expected(cls, name, row):
    given = [tensor(np.array([v, v])) for v in row]
    density = lambda *v: cls(*v[:-1]).log_prob(v[-1])
    with mpmath.workdps(DIGITS):
        exact = ORACLES[name].exact(*exactly(row))
        for run in (density, compile(density)):
            for _ in range(2):
                got = run(*given).numpy()
            assert all(abs(mpmath.mpf(float(v)) - exact) <= 1e-12 * max(1, abs(exact)) for v in got)


@pytest.mark.parametrize(
    "d",
    [
        dist.SkewStudentT(3e-4, 200.0, 0.0, 1e7),
        dist.NoncentralT(2e-8, 0.0, 0.0, 4e4),
        dist.AsymmetricLaplace(*tensor(np.float32([0.0, 7e16, 4e25]))),
        dist.SkewLogistic(*tensor(np.float32([0.0, 5e21, 1.9e-20]))),
    ],
    ids=["SkewStudentT", "NoncentralT", "AsymmetricLaplace", "SkewLogistic"],
)
def test_draws_of_the_heaviest_tails_are_finite(d):
    assert np.isfinite(d.sample((50,), Generator(0)).numpy()).all()


def law(examples):
    quiet = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    return settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=quiet,
    )


by_id = {"ids": lambda c: c.id}


@pytest.mark.parametrize("case", [c for c in UNIVARIATE if c.id in MENDED], **by_id)
@law(8)
@given(data=st.data())
def test_densities_keep_their_digits_at_large_and_small_parameters(case, data):
    compare(case, data, USUAL)


@pytest.mark.slow
@pytest.mark.parametrize("case", UNIVARIATE, **by_id)
@law(40)
@given(data=st.data())
def test_all_densities_keep_their_digits_at_large_and_small_parameters(case, data):
    compare(case, data, USUAL)


@pytest.mark.slow
@pytest.mark.parametrize("case", UNIVARIATE, **by_id)
@law(40)
@given(data=st.data())
def test_densities_keep_their_digits_at_any_size(case, data):
    compare(case, data, REACH)


@pytest.mark.parametrize("case", [c for c in UNIVARIATE if c.id in MENDED_SINGLE], **by_id)
@law(12)
@given(data=st.data())
def test_single_precision_keeps_its_digits_at_large_and_small_parameters(case, data):
    compare(case, data, 4.0, np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("case", UNIVARIATE, **by_id)
@law(40)
@given(data=st.data())
def test_all_densities_keep_their_digits_in_single_precision(case, data):
    compare(case, data, 4.0, np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("case", UNIVARIATE, **by_id)
@law(40)
@given(data=st.data())
def test_densities_keep_their_digits_in_single_precision_at_any_size(case, data):
    compare(case, data, 30.0, np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@law(12)
@given(data=st.data())
def test_quotients_of_betas_keep_their_digits_for_concentrations_up_to_a_thousand(dtype, data):
    compare(QUOTIENT, data, 3.0, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@law(25)
@given(data=st.data())
def test_stable_densities_keep_their_digits_where_they_say_so(dtype, data):
    stability, skew = data.draw(st.floats(0.02, 1.95)), data.draw(st.floats(-0.95, 0.95))
    # Next to 1 the formula is that of a distance of 1e-8 (test_stable.py).
    assume(abs(stability - 1.0) > 1e-4)
    reach = 8.0 if dtype is np.float64 else 4.0
    sizes = [drawn(data, c, reach) for c in (constraints.positive, constraints.real)]
    compare(STABLE, data, reach, dtype, [stability, skew, *sizes])


def counts_of_trials(data):
    """Trials and their probability, and a count: near what is expected, at an end, or anywhere."""
    n = float(round(10.0 ** data.draw(st.floats(0.0, math.log10(MOST)))))
    share = 10.0 ** data.draw(st.floats(-15.0, -0.3))
    p = share if data.draw(st.booleans()) else 1.0 - share
    near = n * p + data.draw(st.floats(-9.0, 9.0)) * math.sqrt(n * p * (1.0 - p))
    k = data.draw(st.sampled_from([near, near, near, 0.0, n, n * data.draw(st.floats(0.0, 1.0))]))
    return n, p, min(max(float(round(k)), 0.0), n)


def exact_within_rounding(name, d, row):
    with np.errstate(all="ignore"):
        got = d.log_prob(tensor(np.array(row[-1]))).item()
    with mpmath.workdps(DIGITS):
        exact = ORACLES[name].exact(*exactly(row))
        assert abs(mpmath.mpf(got) - exact) <= 1e-12 * max(1, abs(exact)), (got, row)


@pytest.mark.slow
@law(300)
@given(data=st.data())
def test_masses_of_trials_keep_their_digits_without_allowance_for_rounding(data):
    n, p, k = counts_of_trials(data)
    exact_within_rounding("Binomial-probs", dist.Binomial(n, p), (n, p, k))


@pytest.mark.slow
@law(300)
@given(data=st.data())
def test_masses_of_trials_before_failures_keep_their_digits_without_allowance(data):
    n, p, k = counts_of_trials(data)
    r = (n - k) + 10.0 ** data.draw(st.floats(-REACH, 0.0))
    exact_within_rounding("NegativeBinomial-probs", dist.NegativeBinomial(r, p), (r, p, k))


@pytest.mark.slow
@law(300)
@given(data=st.data())
def test_masses_of_trials_of_any_prior_keep_their_digits(data):
    n, _, k = counts_of_trials(data)
    a, b = (10.0 ** data.draw(st.floats(-REACH, REACH)) for _ in range(2))
    with np.errstate(all="ignore"):
        got = dist.BetaBinomial(a, b, n).log_prob(tensor(np.array(k))).item()
    oracle = ORACLES["BetaBinomial"]
    with mpmath.workdps(DIGITS):
        row = exactly((a, b, n, k))
        columns = [np.array([v]) for v in (a, b, n, k)]
        asked = Asked(oracle, columns, [row], [oracle.exact(*row)], np.float64)
        assert value_error(asked, 0, got) <= 1.0, (got, a, b, n, k)


# Moving log odds, or in single precision a probability, by its rounding moves the log mass of k of
# n by |k - n p| of it: more than is asked. So here the rounding of the inputs is allowed for.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("Binomial-logits", np.float64),
        ("Binomial-probs", np.float32),
        ("Binomial-logits", np.float32),
    ],
)
@law(200)
@given(data=st.data())
def test_masses_of_trials_keep_the_digits_that_their_inputs_have(name, dtype, data):
    n, p, k = counts_of_trials(data)
    oracle = ORACLES[name]
    n, k = (float(dtype(v)) for v in (n, k))
    at = float(dtype(math.log(p / (1.0 - p)) if name.endswith("logits") else p))
    assume(0.0 <= k <= n and (name.endswith("logits") or 0.0 < at < 1.0))
    columns = [np.array([v], dtype) for v in (n, at, k)]
    with np.errstate(all="ignore"):
        got = oracle.make(*map(tensor, columns[:2])).log_prob(tensor(columns[2])).item()
    with mpmath.workdps(DIGITS):
        row = exactly((n, at, k))
        asked = Asked(oracle, columns, [row], [oracle.exact(*row)], dtype)
        assert value_error(asked, 0, got) <= 1.0, (got, n, at, k)
