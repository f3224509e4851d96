"""Convergence statistics against closed forms, plain loops, and ArviZ."""

import importlib
import math

import numpy as np
import pytest
from scipy import stats

from probtorch.diagnostics import columns as column_arithmetic
from probtorch.diagnostics import convergence, entrywise, native_halves, ranks
from probtorch.diagnostics.convergence import (
    autocovariance,
    bfmi,
    ess_bulk,
    ess_mean,
    ess_quantile,
    ess_sd,
    ess_tail,
    mcse_mean,
    mcse_quantile,
    mcse_sd,
    rhat,
    split_rhat,
    statistics,
)
from probtorch.diagnostics.intervals import eti, hdi
from probtorch.errors import DomainError, DTypeError, ShapeError

SCALARS = {
    "rhat": rhat,
    "split_rhat": split_rhat,
    "ess_bulk": ess_bulk,
    "ess_tail": ess_tail,
    "ess_mean": ess_mean,
    "ess_sd": ess_sd,
    "ess_quantile": lambda x: ess_quantile(x, 0.3),
    "mcse_mean": mcse_mean,
    "mcse_sd": mcse_sd,
    "mcse_quantile": lambda x: mcse_quantile(x, 0.3),
}

# The function of that name stands in front of the module.
autocorrelation = importlib.import_module("probtorch.diagnostics.autocorrelation")


def autoregressive(rng, phi, shape):
    """Stationary AR(1) series of unit innovations along axis 1."""
    noise = rng.normal(size=shape)
    series = np.empty(shape)
    series[:, 0] = noise[:, 0] / math.sqrt(1.0 - phi**2)
    for t in range(1, shape[1]):
        series[:, t] = phi * series[:, t - 1] + noise[:, t]
    return series


@pytest.fixture(params=["arrays", "native code"])
def code(request, monkeypatch):
    """Both ways to compute: small blocks by NumPy, large ones in native code."""
    monkeypatch.setattr(native_halves, "LEAST", 1 if request.param == "native code" else 2**62)


BOTH = pytest.mark.usefixtures("code")


# ------------------------------------------------------------------------------------ known answers


@BOTH
@pytest.mark.parametrize("phi", [-0.5, 0.0, 0.5, 0.9])
def test_ess_of_an_autoregressive_chain_is_the_theoretical_one(phi):
    # tau is estimated from about 40 000 / tau independent pieces: a relative error near 4 % at
    # phi = 0.9, less elsewhere. 15 % is beyond 3.5 of those; the seed is fixed.
    x = autoregressive(np.random.default_rng(1), phi, (4, 10_000))
    expected = x.size * (1.0 - phi) / (1.0 + phi)
    assert ess_mean(x) == pytest.approx(expected, rel=0.15)
    assert ess_bulk(x) == pytest.approx(expected, rel=0.15)


@BOTH
def test_ess_sd_of_an_autoregressive_chain_follows_the_squares():
    # Squares of a Gaussian AR(1) have autocorrelation phi^(2 t).
    phi = 0.8
    x = autoregressive(np.random.default_rng(2), phi, (4, 10_000))
    assert ess_sd(x) == pytest.approx(x.size * (1 - phi**2) / (1 + phi**2), rel=0.15)


def test_mcse_matches_the_spread_over_repeated_runs():
    # The spread of 400 estimates has a relative error of 1/sqrt(800) = 3.5 %; 15 % is over 4 of it.
    rng = np.random.default_rng(3)
    runs = autoregressive(rng, 0.6, (4, 400, 400))
    merged = runs.reshape(-1, 400)
    spread = {
        "mean": merged.mean(axis=0).std(ddof=1),
        "sd": merged.std(axis=0, ddof=1).std(ddof=1),
        "median": np.median(merged, axis=0).std(ddof=1),
    }
    assert np.mean(mcse_mean(runs)) == pytest.approx(spread["mean"], rel=0.15)
    assert np.mean(mcse_sd(runs)) == pytest.approx(spread["sd"], rel=0.15)
    assert np.mean(mcse_quantile(runs, 0.5)) == pytest.approx(spread["median"], rel=0.15)


def test_autocovariance_is_the_sum_of_products():
    x = np.random.default_rng(4).normal(size=(2, 11, 3))
    centred = x - x.mean(axis=1, keepdims=True)
    expected = np.array(
        [
            [(centred[c, : 11 - t] * centred[c, t:]).sum(axis=0) / 11 for t in range(11)]
            for c in (0, 1)
        ]
    )
    np.testing.assert_allclose(autocovariance(x), expected, atol=1e-13)


def test_bfmi_of_independent_energies_is_two():
    # E (e[i+1] - e[i])^2 = 2 Var(e); 20 000 draws leave a relative error below 2 %.
    energy = np.random.default_rng(5).normal(50.0, 7.0, (3, 20_000))
    np.testing.assert_allclose(bfmi(energy), 2.0, rtol=0.06)


def test_bfmi_is_nan_where_it_means_nothing():
    energy = np.stack([np.arange(4.0), np.full(4, 2.0), [0.0, np.nan, 1.0, 2.0]])
    values = bfmi(energy)
    assert values[0] == pytest.approx(1.0 / np.var([0, 1, 2, 3], ddof=1))
    assert np.isnan(values[1:]).all()
    assert np.isnan(bfmi(np.zeros((2, 1)))).all()


@BOTH
def test_split_rhat_is_the_textbook_formula():
    x = np.random.default_rng(6).normal(size=(3, 11)) + [[0.0], [0.5], [1.0]]
    halves = [half for chain in x for half in (chain[:5], chain[-5:])]
    within = np.mean([np.var(half, ddof=1) for half in halves])
    between = np.var([np.mean(half) for half in halves], ddof=1)
    assert split_rhat(x) == pytest.approx(math.sqrt((0.8 * within + between) / within), rel=1e-13)


@BOTH
def test_rhat_sees_chains_that_differ_only_in_spread():
    x = np.random.default_rng(7).normal(size=(4, 500)) * [[1.0], [1.0], [1.0], [5.0]]
    assert split_rhat(x) < 1.02
    assert rhat(x) > 1.1


@BOTH
def test_rhat_sees_a_single_chain_that_drifts():
    rng = np.random.default_rng(8)
    still = rng.normal(size=(1, 1000))
    assert rhat(still) < 1.01
    assert rhat(still + np.linspace(0.0, 3.0, 1000)) > 1.2


def test_normal_scores_average_ties():
    x = np.random.default_rng(9).integers(0, 5, (3, 2, 20)).astype(float)
    scores = column_arithmetic.normal_scores(x)
    for entry, result in zip(x, scores):
        ranks = stats.rankdata(entry).reshape(entry.shape)
        np.testing.assert_allclose(result, stats.norm.ppf((ranks - 0.375) / 40.25), rtol=1e-13)


ROWS = {
    "smooth": lambda rng: rng.normal(size=300),
    "tied": lambda rng: rng.integers(0, 9, 300).astype(float),
    "an ulp apart": lambda rng: 1.0 + rng.integers(0, 40, 300) * 2.0**-52,
    "pairs an ulp apart": lambda rng: (
        (np.arange(300) // 2 + 1) * (1.0 + np.arange(300) % 2 * 2.0**-52)
    )[rng.permutation(300)],
    "zeros of both signs": lambda rng: rng.choice([-0.0, 0.0, 1.0, -1.0, 1e-320], 300),
    "of all sizes": lambda rng: rng.choice([-1.0, 1.0], 300) * 10.0 ** rng.uniform(-320, 300, 300),
    "constant": lambda rng: np.full(300, 0.1),
}


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("entries", [1, 3, 4000], ids=["few bits", "more bits", "too many bits"])
def test_orders_are_exact_where_positions_take_the_lowest_bits(kind, entries):
    rng = np.random.default_rng(20)
    rows = np.stack([ROWS[kind](rng) for _ in range(3)])
    some = np.concatenate([rng.normal(size=(entries - 1, 300)), rows])[-entries:]
    order = ranks.SortedRows.of(some)
    np.testing.assert_array_equal(order[:, :], np.sort(some, axis=1))
    assert (np.sort(order.positions.ravel()) == np.arange(some.size)).all()
    expected = stats.norm.ppf((stats.rankdata(some[-3:], axis=1) - 0.375) / 300.25)
    np.testing.assert_allclose(order.scores()[-3:], expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("draws", [2, 63, 64, 65, 200])
@pytest.mark.parametrize("phi", [-0.8, 0.0, 0.97])
def test_effective_sizes_of_bits_are_those_of_the_numbers(draws, phi):
    rng = np.random.default_rng(21)
    halves = autoregressive(rng, phi, (50, draws, 6)).transpose(0, 2, 1) < -1.0
    numbers = autocorrelation.effective_size(autocorrelation.Halves.of(halves.astype(float)))
    np.testing.assert_allclose(autocorrelation.effective_size_of_bits(halves), numbers, rtol=1e-11)


@pytest.mark.parametrize("prob", [0.1, 0.5, 0.9])
def test_hdi_is_the_narrowest_of_all_intervals(prob):
    x = np.random.default_rng(10).gamma(2.0, size=(2, 50))
    ordered = np.sort(x.ravel())
    reach = int(prob * 100)
    widths = {ordered[i + reach] - ordered[i]: i for i in range(100 - reach)}
    start = widths[min(widths)]
    np.testing.assert_array_equal(hdi(x, prob), [ordered[start], ordered[start + reach]])


def test_eti_leaves_equal_shares_outside():
    x = np.random.default_rng(11).gamma(2.0, size=(2, 51, 3))
    expected = np.quantile(x, [0.1, 0.9], axis=(0, 1)).T
    np.testing.assert_allclose(eti(x, 0.8), expected, rtol=1e-13)


def test_a_quantile_inside_an_atom_is_the_atom():
    # Weighted means of equal numbers can round below them, and lose the atom from "<= quantile".
    atom = 0.1 + 0.2
    ordered = np.sort(np.concatenate([np.full(50, atom), np.full(47, 2.0)]))[None]
    for prob in np.linspace(0.01, 0.5, 30):
        assert column_arithmetic.quantile_of(ordered, prob)[0] == atom


# ------------------------------------------------------------------------------------ against ArviZ


@BOTH
@pytest.mark.parametrize("shape", [(4, 500), (3, 57), (2, 7), (4, 4)], ids=str)
@pytest.mark.parametrize("phi", [-0.7, 0.0, 0.95])
def test_statistics_agree_with_arviz(az, shape, phi):
    rng = np.random.default_rng(12)
    x = np.stack([autoregressive(rng, phi, shape) for _ in range(3)], axis=-1)
    x[..., 2] = np.round(x[..., 2])
    data = az.convert_to_dataset({"x": x})
    pairs = {
        "rhat": (rhat(x), az.rhat(data)),
        "split_rhat": (split_rhat(x), az.rhat(data, method="split")),
        "ess_bulk": (ess_bulk(x), az.ess(data, method="bulk")),
        "ess_tail": (ess_tail(x), az.ess(data, method="tail", prob=(0.05, 0.95))),
        "ess_mean": (ess_mean(x), az.ess(data, method="mean")),
        "ess_sd": (ess_sd(x), az.ess(data, method="sd")),
        "ess_quantile": (ess_quantile(x, 0.3), az.ess(data, method="quantile", prob=0.3)),
        "mcse_mean": (mcse_mean(x), az.mcse(data, method="mean")),
        "mcse_sd": (mcse_sd(x), az.mcse(data, method="sd")),
        "mcse_quantile": (mcse_quantile(x, 0.3), az.mcse(data, method="quantile", prob=0.3)),
    }
    for name, (ours, theirs) in pairs.items():
        np.testing.assert_allclose(ours, theirs["x"].values, rtol=1e-10, err_msg=name)


@BOTH
def test_the_shared_computation_equals_the_single_functions():
    x = autoregressive(np.random.default_rng(13), 0.5, (4, 101))[..., None] * [1.0, -3.0]
    columns = statistics(x, 0.8)
    for name in ("mcse_mean", "mcse_sd", "ess_bulk", "ess_tail"):
        np.testing.assert_array_equal(columns[name], SCALARS[name](x))
    np.testing.assert_array_equal(columns["r_hat"], rhat(x))
    np.testing.assert_allclose(columns["mean"], x.mean(axis=(0, 1)), rtol=1e-13)
    np.testing.assert_allclose(columns["sd"], x.std(axis=(0, 1), ddof=1), rtol=1e-13)
    interval = np.stack([columns["hdi_low"], columns["hdi_high"]], axis=-1)
    np.testing.assert_array_equal(interval, hdi(x, 0.8))


# ------------------------------------------------------------------------------------ awkward draws


@BOTH
@pytest.mark.parametrize("name", SCALARS)
def test_event_dims_and_blocks_match_a_loop_over_entries(name, monkeypatch):
    x = autoregressive(np.random.default_rng(14), 0.3, (2, 30, 6)).reshape(2, 30, 2, 3)
    expected = [[SCALARS[name](x[:, :, i, j]) for j in range(3)] for i in range(2)]
    monkeypatch.setattr(entrywise, "BLOCK_ELEMENTS", 2 * 30 * 4)
    np.testing.assert_allclose(SCALARS[name](x), expected, rtol=1e-12)
    assert SCALARS[name](x[..., :0]).shape == (2, 0)


@BOTH
@pytest.mark.parametrize("name", SCALARS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_draw_that_is_not_finite_gives_nan_for_its_entry_alone(name, bad):
    x = np.random.default_rng(15).normal(size=(4, 20, 2))
    x[1, 3, 0] = bad
    value = SCALARS[name](x)
    assert np.isnan(value[0]) and value[1] == SCALARS[name](x[..., 1])


@BOTH
def test_infinities_of_both_signs_give_nan_and_sums_that_overflow_do_not():
    x = np.random.default_rng(15).normal(size=(4, 20, 3))
    x[0, 0, 0], x[1, 0, 0] = np.inf, -np.inf
    x[..., 1] = 1e308 + 1e307 * np.tanh(x[..., 1])
    assert np.isnan(rhat(x)).tolist() == [True, False, False]
    assert ess_bulk(x)[1] == ess_bulk(x[..., 1] * 2.0**-9)


@BOTH
def test_an_entry_that_never_varies_has_full_ess_and_no_rhat():
    x = np.full((4, 26), 0.1)
    assert np.isnan(rhat(x)) and np.isnan(split_rhat(x))
    assert [ess_bulk(x), ess_tail(x), ess_mean(x), ess_sd(x)] == [104.0] * 4
    columns = statistics(x)
    assert (columns["mean"], columns["sd"]) == (0.1, 0.0)
    assert (columns["mcse_mean"], columns["mcse_sd"]) == (0.0, 0.0)


@BOTH
def test_chains_stuck_at_different_values_have_infinite_rhat():
    x = np.broadcast_to(np.array([[0.1], [0.2], [0.3]]), (3, 40))
    assert rhat(x) == np.inf and split_rhat(x) == np.inf
    assert ess_bulk(x) < 10


@BOTH
def test_two_values_around_zero_are_judged_by_location_alone():
    x = np.random.default_rng(16).choice([-1.0, 1.0], (4, 100))
    assert rhat(x) == pytest.approx(split_rhat(x), rel=1e-2)


@BOTH
@pytest.mark.parametrize("exponent", [-700, 900])
def test_very_small_and_large_units_change_nothing(exponent):
    # The scale is a power of two, so equality is exact; plain squares would vanish or overflow.
    x = autoregressive(np.random.default_rng(17), 0.5, (4, 50))
    scaled = np.ldexp(x, exponent)
    for name, function in SCALARS.items():
        expected = function(x)
        if name.startswith("mcse"):
            expected = np.ldexp(expected, exponent)
        assert function(scaled) == expected, name
    assert statistics(scaled)["sd"] == np.ldexp(statistics(x)["sd"], exponent)


@BOTH
@pytest.mark.parametrize("draws", [0, 1, 3])
def test_too_few_draws_give_nan_where_chains_must_be_split(draws):
    x = np.arange(2.0 * draws).reshape(2, draws)
    assert all(np.isnan(function(x)) for function in SCALARS.values())
    columns = statistics(x)
    assert np.isnan(columns["r_hat"]) and np.isnan(columns["ess_bulk"])
    if draws:
        assert columns["mean"] == pytest.approx(x.mean())


@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint16, np.float32])
def test_other_number_types_are_read_as_float64(dtype):
    x = np.random.default_rng(18).integers(0, 2, (4, 60))
    for function in SCALARS.values():
        np.testing.assert_array_equal(function(x.astype(dtype)), function(x.astype(float)))


# ------------------------------------------------------------------------------------------- errors


def test_draws_without_a_chain_dim_are_refused_with_a_cure():
    with pytest.raises(ShapeError, match=r"(?s)expected: .*chain, draw.*got: .*\(5,\).*x\[None\]"):
        rhat(np.arange(5.0))


def test_complex_and_text_draws_are_refused():
    with pytest.raises(DTypeError, match=r"(?s)expected: real.*complex128.*fix: "):
        ess_bulk(np.ones((2, 5), complex))
    with pytest.raises(DTypeError, match="<U1"):
        statistics(np.full((2, 5), "a"))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: hdi(x, 90),
        lambda x: eti(x, 0.0),
        lambda x: ess_quantile(x, 1.0),
        lambda x: mcse_quantile(x, -0.1),
        lambda x: ess_tail(x, (0.05, 95)),
        lambda x: statistics(x, float("nan")),
    ],
    ids=["hdi", "eti", "ess_quantile", "mcse_quantile", "ess_tail", "statistics"],
)
def test_probabilities_are_inside_the_unit_interval(call):
    with pytest.raises(DomainError, match=r"(?s)inside \(0, 1\).*got: .*fix: .*0\.9"):
        call(np.zeros((2, 10)))


def test_bfmi_wants_one_energy_per_draw():
    with pytest.raises(ShapeError, match=r"(?s)expected: .*\(chain, draw\).*\(2, 5, 1\).*energy"):
        bfmi(np.zeros((2, 5, 1)))


@pytest.mark.parametrize("kind", ["independent", "antithetic", "sticky", "walk", "constant"])
def test_autocorrelation_times_are_the_same_lag_by_lag_and_by_transform(kind, monkeypatch):
    rng = np.random.default_rng(3)
    noise = rng.normal(size=(6, 4, 120))
    weight = {"antithetic": -0.6, "sticky": 0.9, "walk": 1.0}.get(kind, 0.0)
    halves = np.empty_like(noise)
    halves[..., 0] = noise[..., 0]
    for t in range(1, 120):
        halves[..., t] = weight * halves[..., t - 1] + noise[..., t]
    if kind == "constant":
        halves[:3] = 1.0
    moments = autocorrelation.Halves.of(halves)
    found = autocorrelation.effective_size(moments)
    monkeypatch.setattr(autocorrelation, "STEPS", ())
    np.testing.assert_allclose(autocorrelation.effective_size(moments), found, rtol=1e-12)


def test_blocks_shared_out_over_threads_are_put_together(monkeypatch):
    x = np.random.default_rng(4).normal(size=(2, 50, 37))
    whole = convergence.rhat(x)
    monkeypatch.setattr(entrywise, "BLOCK_ELEMENTS", 500)
    monkeypatch.setattr(entrywise, "get_num_threads", lambda: 3)
    np.testing.assert_array_equal(convergence.rhat(x), whole)


@pytest.mark.parametrize("draws", [4, 5, 9, 33, 120])
@pytest.mark.parametrize(
    "kind", ["plain", "ties", "sticky", "stuck", "binary", "huge", "subnormal"]
)
def test_native_code_computes_what_arrays_do(kind, draws, monkeypatch):
    rng = np.random.default_rng(18)
    x = rng.normal(size=(3, draws, 40))
    if kind == "sticky":
        x = np.moveaxis([autoregressive(rng, 0.95, (3, draws)) for _ in range(40)], 0, -1)
    x = {
        "ties": lambda: np.round(x, 1),
        "stuck": lambda: np.where(np.arange(40) % 2, x, [[[0.1]], [[0.2]], [[0.1]]]),
        "binary": lambda: x > 1.0,
        "huge": lambda: x * 1e307,
        "subnormal": lambda: x * 1e-310,
    }.get(kind, lambda: x)()
    found = []
    for least in (1, 2**62):
        monkeypatch.setattr(native_halves, "LEAST", least)
        found.append(statistics(x))
    for name, values in found[0].items():
        np.testing.assert_allclose(values, found[1][name], rtol=1e-10, atol=0, err_msg=name)
