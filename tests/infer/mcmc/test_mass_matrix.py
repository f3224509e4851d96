"""Mass matrices from draws and gradients: exact for Gaussians, in windows, in every form."""

import numpy as np
import pytest

from probtorch.core.tree import leaves
from probtorch.infer import MCMC, NUTS, Target
from probtorch.infer.mcmc.metrics import DiagonalMetric
from probtorch.infer.mcmc.stacked import Stacked
from probtorch.infer.mcmc.warm_up import estimates, forms
from probtorch.infer.mcmc.warm_up.adaptation import schedule
from probtorch.infer.mcmc.warm_up.estimates import Moments, Rows, Spectrum
from probtorch.infer.mcmc.warm_up.forms import Auto, Blocks, Dense, Diagonal, LowRank
from probtorch.infer.mcmc.warm_up.mass_matrix import MassMatrices, MassMatrix
from probtorch.infer.mcmc.warm_up.small_fits import geometric_mean
from probtorch.infer.mcmc.warm_up.windows import Window, Windows
from probtorch.testing.compare import assert_close


def covariance(dim, seed=0, directions=None):
    """Scales from 0.1 to 10, and a few long directions, or all correlated."""
    rng = np.random.default_rng(seed)
    directions = dim if directions is None else directions
    rows = np.linalg.qr(rng.normal(size=(dim, dim)))[0][:directions]
    inner = np.eye(dim) + (rows.T * rng.uniform(5.0, 40.0, directions)) @ rows
    scale = np.exp(rng.uniform(-2.3, 2.3, dim))
    return scale[:, None] * inner * scale


def gaussian_rows(sigma, n, seed=0):
    """Draws of a Gaussian far from 0, and the gradients of its log density there."""
    rng = np.random.default_rng(seed)
    draws = rng.multivariate_normal(np.zeros(len(sigma)), sigma, n)
    return np.stack([draws + 100.0, -draws @ np.linalg.inv(sigma)])


def left_over(sigma, found):
    """The condition number of a covariance as seen through a mass matrix."""
    factor = np.linalg.cholesky(found)
    return np.linalg.cond(np.linalg.solve(factor, np.linalg.solve(factor, sigma).T))


def test_moments_of_parts_are_those_of_all():
    rng = np.random.default_rng(0)
    pairs = rng.normal(size=(2, 40, 3)) + 1e3
    whole = Moments.of(pairs)
    parts = Moments.empty(3)
    for rows in (slice(0, 1), slice(1, 9), slice(9, 40)):
        parts += Moments.of(pairs[:, rows])
    for name, value in vars(whole).items():
        np.testing.assert_allclose(getattr(parts, name), value, rtol=1e-10)
    np.testing.assert_allclose(whole.squares, 39.0 * pairs.var(axis=1, ddof=1), rtol=1e-10)


def test_the_diagonal_is_exact_for_independent_coordinates_from_a_handful_of_draws():
    sigma = np.diag([1e-6, 1.0, 1e6])
    found = estimates.diagonal(Moments.of(gaussian_rows(sigma, 4)).squares, np.ones(3))
    np.testing.assert_allclose(found, np.diag(sigma), rtol=1e-6)


@pytest.mark.parametrize("dim", [2, 5, 20])
def test_the_dense_matrix_is_exact_for_a_gaussian_from_as_many_draws_as_dimensions(dim):
    sigma = covariance(dim)
    pairs = gaussian_rows(sigma, 3 * dim)
    found = estimates.dense(pairs, estimates.diagonal(Rows(pairs).squares, np.ones(dim)))
    scale = np.sqrt(np.diag(sigma))
    # What the ridge of 1e-5 changes, beside variances of about 1.
    np.testing.assert_allclose(
        found / np.outer(scale, scale), sigma / np.outer(scale, scale), atol=5e-3
    )
    ratios = np.linalg.eigvals(np.linalg.solve(sigma, found)).real
    assert ratios.max() < 1.01 and ratios.min() > 0.99


@pytest.mark.parametrize("principal, most", [(False, 4.0), (True, 8.0)])
@pytest.mark.parametrize("n", [60, 400])
def test_a_few_long_directions_are_found_with_fewer_draws_than_dimensions(n, principal, most):
    dim = 150
    rng = np.random.default_rng(1)
    rows = np.linalg.qr(rng.normal(size=(dim, dim)))[0][:3]
    sigma = np.eye(dim) + (rows.T * np.array([99.0, 399.0, 24.0])) @ rows
    rows = Rows(gaussian_rows(sigma, n))
    variance = estimates.diagonal(rows.squares, np.ones(dim))
    (fit,) = estimates.low_rank(
        rows, variance, rank=32, cut=2.0, ridges=[estimates.RIDGE], principal=principal
    )
    found = fit.covariance()
    plain = sigma / np.sqrt(np.outer(variance, variance))
    # The condition number that the sampler is left with.
    assert np.linalg.cond(plain) > 600.0
    assert left_over(sigma, found) < (50.0 if n < dim else most)


def test_misfit_is_one_for_the_right_matrix_and_grows_with_each_wrong_direction():
    sigma = covariance(6, directions=2)
    rows = Rows(gaussian_rows(sigma, 20_000))
    eigenvalues, vectors = np.linalg.eigh(sigma)
    right = Spectrum(np.ones(6), vectors.T, eigenvalues)
    assert_close(right.covariance(), sigma)
    exact = estimates.misfit(rows, right)
    assert abs(exact - 1.0) < 0.02
    wrong = Spectrum(np.ones(6), vectors.T, eigenvalues * np.array([9.0, 1, 1, 1, 1, 1]))
    # One direction of six is 9 times too wide: (9 + 1/9 - 2) / 12 more.
    more = estimates.misfit(rows, wrong) - exact
    assert abs(more - (9.0 + 1.0 / 9.0 - 2.0) / 12.0) < 0.02


def test_the_misfit_of_a_spectrum_is_that_of_its_matrix():
    sigma = covariance(40)
    rows = Rows(gaussian_rows(sigma, 60))
    variance = estimates.diagonal(rows.squares, np.ones(40))
    late = Rows(gaussian_rows(sigma, 20, seed=1))
    draws, grads = late.pairs
    fits = estimates.low_rank(rows, variance, rank=4, cut=1.25, ridges=[1e-5, 1e-2])
    for fit in [*fits, Spectrum(np.sqrt(variance), np.zeros((0, 40)), np.zeros(0))]:
        matrix = fit.covariance()
        total = np.vdot(draws, draws @ np.linalg.inv(matrix)) + np.vdot(grads, grads @ matrix)
        np.testing.assert_allclose(estimates.misfit(late, fit), total / 1600.0, rtol=1e-8)
    np.testing.assert_allclose(
        estimates.plain_misfit(late, variance), estimates.misfit(late, fit), rtol=1e-12
    )


def test_coordinates_without_spread_keep_the_variance_they_had():
    draws = np.array([[1.0, 2.0], [1.0, 3.0], [1.0, 5.0]])
    grads = np.array([[0.0, 1.0], [0.0, -1.0], [0.0, 0.5]])
    found = estimates.diagonal(Moments.of(np.stack([draws, grads])).squares, np.array([7.0, 7.0]))
    assert found[0] == 7.0 and found[1] != 7.0
    np.testing.assert_array_equal(
        estimates.first_diagonal(np.array([0.0, -4.0, 1e300])), [1.0, 0.25, 1e-20]
    )


def learnt(form, sigma, n, seed=0, last=False):
    """The metric of a form after one window of draws."""
    draws, grads = gaussian_rows(sigma, n, seed)
    mass, metric = MassMatrix(form, draws[0]), form.of_gradient(grads[0])
    mass.add(draws[1:], grads[1:])
    mass.end_segment(switch=False)
    return mass.learnt(metric, choose=True, last=last)


@pytest.mark.parametrize(
    "form", [Dense(6), LowRank(6), Auto(6), Blocks(6, [np.array([4, 0]), np.array([1, 2, 5])])]
)
def test_every_form_learns_the_covariances_that_it_can_hold(form):
    sigma = covariance(6, directions=2)
    if isinstance(form, Blocks):
        outside = np.ones((6, 6), bool)
        for at in [*form.places, np.array([3])]:
            outside[np.ix_(at, at)] = False
        sigma[outside] = 0.0
    metric = learnt(form, sigma, 60)
    # Low rank leaves directions within a factor of two of the diagonal to it.
    exact = not isinstance(form, LowRank)
    assert left_over(sigma, metric.inverse_mass()) < (1.05 if exact else 4.2)
    np.testing.assert_allclose(metric.variance(), np.diag(metric.inverse_mass()), rtol=1e-10)
    assert_close(metric.log_determinant(), np.linalg.slogdet(metric.inverse_mass())[1])


@pytest.mark.parametrize(
    "form",
    [Diagonal(6), Dense(6), LowRank(6), Blocks(6, [np.array([4, 0]), np.array([1, 2, 5])])],
    ids=["diagonal", "dense", "low rank", "blocks"],
)
def test_log_determinants_of_stacked_metrics_are_those_of_each(form):
    metrics = [learnt(form, covariance(6, seed=k, directions=k), 60) for k in range(1, 4)]
    together = Stacked.of(metrics).whole().log_determinant()
    assert together.shape == (3,)
    assert_close(together, np.array([m.log_determinant() for m in metrics]))


def test_auto_takes_directions_where_they_pay_and_none_where_they_do_not():
    correlated, independent = covariance(10, directions=2), np.diag(np.linspace(1.0, 50.0, 10))
    assert learnt(Auto(10), correlated, 80).name == "low_rank"
    assert learnt(Auto(10), independent, 80).name == "diag"
    # Correlations that are noise: heavy tails, few draws.
    rng = np.random.default_rng(3)
    draws = rng.standard_t(3.0, size=(40, 30))
    grads = -4.0 * draws / (3.0 + draws**2)
    mass = MassMatrix(Auto(30))
    mass.add(draws, grads)
    mass.end_segment(switch=False)
    assert mass.learnt(Auto(30).identity(), choose=True).name == "diag"


def test_weak_directions_in_many_dimensions_are_taken_where_later_draws_confirm_them():
    rng = np.random.default_rng(5)
    rows = np.linalg.qr(rng.normal(size=(60, 60)))[0][:8]
    sigma = np.eye(60) + 0.8 * rows.T @ rows
    metric = learnt(Auto(60), sigma, 300, last=True)
    assert int(metric.count.array) == 8
    assert left_over(sigma, metric.inverse_mass()) < 1.2
    # Of few draws with heavy tails they are noise.
    draws = rng.standard_t(3.0, size=(200, 60))
    mass = MassMatrix(Auto(60))
    mass.add(draws, -4.0 * draws / (3.0 + draws**2))
    mass.end_segment(switch=False)
    assert mass.learnt(Auto(60).identity(), choose=True, last=True).name == "diag"


def test_a_switch_forgets_what_is_older_than_the_background():
    far, near = gaussian_rows(np.eye(2), 30), gaussian_rows(np.diag([4.0, 0.25]), 30)
    mass, metric = MassMatrix(Diagonal(2)), DiagonalMetric.unit(2)
    mass.add(*far)
    mass.end_segment(switch=True)
    mass.add(*near)
    mass.end_segment(switch=False)
    assert abs(mass.learnt(metric, choose=True).variance()[0] - 4.0) > 0.5
    mass.end_segment(switch=True)
    np.testing.assert_allclose(mass.learnt(metric, choose=True).variance(), [4.0, 0.25])


def test_both_windows_together_have_the_moments_of_all_draws_of_a_chain():
    pairs, windows = gaussian_pairs(3, 60, 4), Windows(3, 4, keeps_rows=False)
    chosen, every = np.array([0, 2]), np.arange(3)
    windows.take_up(every, pairs[:, :, :20].copy())
    windows.drop_older(every)
    windows.take_up(every, pairs[:, :, 20:].copy())
    sums = windows.settled(chosen, fewest=4, enough=10, arrived=5.0, ramp=1e-10)
    for k, i in enumerate(chosen):
        # Of the first draw nobody knows whether it led anywhere.
        found, wanted = sums.of(k), Moments.of(pairs[i, :, 1:])
        assert found.count == 59
        assert_close(found.mean, wanted.mean)
        assert_close(found.squares, wanted.squares)


def gaussian_pairs(chains, n, dim):
    """Draws and gradients, shape (chains, 2, n, dim), of a normal for each chain."""
    return np.stack([gaussian_rows(covariance(dim, seed), n, seed) for seed in range(chains)])


def test_what_was_drawn_on_the_way_is_forgotten():
    far, near = gaussian_rows(np.eye(2), 30), gaussian_rows(np.diag([4.0, 0.25]), 30)
    mass = MassMatrix(Diagonal(2))
    mass.add(far[0] + 50.0, far[1])
    mass.end_segment(switch=True)
    mass.add(*near)
    mass.end_segment(switch=False)
    assert mass.shift() > 20.0
    metric = mass.learnt(DiagonalMetric.unit(2), choose=False)
    np.testing.assert_allclose(metric.variance(), [4.0, 0.25])
    assert mass.shift() is None


def test_draws_of_a_neck_are_forgotten_where_gradients_were_many_times_as_large():
    sigma = np.diag([4.0, 0.25])
    narrow, wide = gaussian_rows(sigma, 30), gaussian_rows(sigma, 30, seed=1)
    mass = MassMatrix(Diagonal(2))
    for pairs, times in ((narrow, 8.0), (wide, 1.0)):
        mass.add(pairs[0], times * pairs[1])
        mass.end_segment(switch=times > 1.0)
    metric = mass.learnt(DiagonalMetric.unit(2), choose=False)
    np.testing.assert_allclose(metric.variance(), [4.0, 0.25])


def test_draws_that_did_not_move_or_overflow_are_left_out():
    draws, grads = gaussian_rows(np.diag([4.0, 0.25]), 10)
    repeated, again = np.repeat(draws, 3, axis=0), np.repeat(grads, 3, axis=0)
    again[::7] = np.nan
    mass = MassMatrix(Diagonal(2))
    mass.add(repeated, again)
    mass.end_segment(switch=False)
    np.testing.assert_allclose(
        mass.learnt(DiagonalMetric.unit(2), choose=True).variance(), [4.0, 0.25]
    )


def test_how_draws_arrive_makes_no_difference_and_a_snapshot_holds_everything():
    draws, grads = gaussian_rows(covariance(4), 30)
    whole, parts = MassMatrix(Dense(4)), MassMatrix(Dense(4))
    whole.add(draws, grads)
    for i in range(15):
        parts.add(draws[i : i + 1], grads[i : i + 1])
    resumed = MassMatrix(Dense(4))
    resumed.restore(parts.snapshot())
    resumed.add(draws[15:], grads[15:])
    for mass in (whole, resumed):
        mass.end_segment(switch=True)
    first, second = (m.learnt(Dense(4).identity(), choose=True) for m in (whole, resumed))
    np.testing.assert_array_equal(first.factor.array, second.factor.array)


def test_a_warm_up_decomposes_a_large_matrix_once(monkeypatch):
    """All fits but the last look at the leading directions only."""
    sizes, plain = [], np.linalg.eigh
    monkeypatch.setattr(np.linalg, "eigh", lambda x: sizes.append(x.shape[-1]) or plain(x))
    dim = 100
    sigma = covariance(dim, directions=3)
    draws, grads = gaussian_rows(sigma, 340)
    mass, metric, at = MassMatrix(Auto(dim), draws[0]), Auto(dim).identity(), 0
    for segment in schedule(400):
        if segment.learn:
            here = slice(at, at + segment.length)
            mass.add(draws[here], grads[here])
            mass.end_segment(switch=segment.switch)
            metric = mass.learnt(metric, choose=segment.choose, last=segment.last)
            at += segment.length
    assert metric.name == "low_rank" and left_over(sigma, metric.inverse_mass()) < 6.0
    assert sizes == [dim, dim]  # those of the leading directions are small_fits.py's


def test_a_choice_in_many_dimensions_is_as_good_from_some_of_the_draws(monkeypatch):
    sigma = covariance(60, directions=3)
    rows = gaussian_rows(sigma, 500)
    window, form = Window(Moments.of(rows), rows), Auto(60)
    few, last = (
        form.fitted(window, form.identity(), 0, True, is_last) for is_last in (False, True)
    )
    monkeypatch.setattr(forms, "LOOKED_AT", 500)
    whole = form.fitted(window, form.identity(), 0, True)
    assert not np.array_equal(few.inverse_mass(), whole.inverse_mass())
    by_hand = LowRank(60).fitted(window, form.identity(), 0, True, True)
    np.testing.assert_array_equal(last.inverse_mass(), by_hand.inverse_mass())
    assert left_over(sigma, last.inverse_mass()) < 5.0
    for metric in (few, whole):
        assert left_over(sigma, metric.inverse_mass()) < 8.0


MODELS = {"diag": "diag", "low_rank": "low_rank", "dense": "dense", "auto": "low_rank"}


@pytest.mark.parametrize("metric, kind", MODELS.items())
def test_a_run_with_each_form_finds_the_covariance(metric, kind):
    sigma = np.array([[1.0, 0.95, 0.0], [0.95, 1.0, 0.0], [0.0, 0.0, 100.0]])
    precision = np.linalg.inv(sigma)
    target = Target.from_density(lambda q: -0.5 * (q @ (precision @ q)), 3)
    mcmc = MCMC(NUTS(target, metric=metric), 1000, 300, num_chains=2, seed=4, progress_bar=False)
    mcmc.run()
    found = [chain.kernel.metric for chain in mcmc.last_state]
    assert {m.name for m in found} == {kind}
    draws = mcmc.draws.positions.reshape(-1, 3)
    scale = np.sqrt(np.outer(np.diag(sigma), np.diag(sigma)))
    np.testing.assert_allclose(np.cov(draws.T) / scale, sigma / scale, atol=0.15)
    if metric != "diag":
        np.testing.assert_allclose(found[0].inverse_mass() / scale, sigma / scale, atol=0.15)


def test_blocks_of_sites_and_matrices_by_site():
    from probtorch import sample
    from probtorch.distributions import MultivariateNormal, Normal

    cov = np.array([[1.0, 0.9], [0.9, 1.0]])

    def model():
        sample("a", Normal(0.0, 10.0))
        sample("b", MultivariateNormal(np.zeros(2), covariance_matrix=cov))
        sample("c", Normal(0.0, 0.1))

    def last(**options):
        kernel = NUTS(model, **options)
        mcmc = MCMC(kernel, 300, 200, num_chains=1, seed=0, progress_bar=False)
        mcmc.run()
        return mcmc.last_state[0].kernel.metric

    matrix = last(metric=[("b", "c")]).inverse_mass()
    assert np.all(matrix[0, 1:] == 0.0) and matrix[1, 2] > 0.5
    np.testing.assert_allclose(np.diag(matrix), [100.0, 1.0, 1.0, 0.01], rtol=0.5)
    kept = last(inverse_mass_matrix={"a": 100.0, "b": cov, "c": 0.01}, adapt_mass_matrix=False)
    expected = np.diag([100.0, 1.0, 1.0, 0.01])
    expected[1:3, 1:3] = cov
    assert_close(kept.inverse_mass(), expected)
    assert_close(
        last(inverse_mass_matrix={"a": 100.0}, adapt_mass_matrix=False).variance(),
        np.array([100.0, 1.0, 1.0, 1.0]),
    )


# ------------------------------------------------------------------------------- chains in step


def windows_of(dim, chains, repeated=()):
    """Warm-ups of chains, with what each draws; those of some chains repeat a draw."""
    rng = np.random.default_rng(5)
    for chain in range(chains):
        sigma = covariance(dim, directions=min(2 * chain, dim))
        draws, grads = gaussian_rows(sigma, 340, seed=chain)
        if chain in repeated:
            at = rng.integers(1, 340, 9)
            draws[at], grads[at] = draws[at - 1], grads[at - 1]
        yield MassMatrix(Auto(dim), draws[0] - 1.0), draws, grads


def course(mass, draws, grads, *, together):
    """Metrics after each segment of a warm-up, of each chain."""
    metrics, at, everyone = [m.form.identity() for m in mass], 0, np.arange(len(mass))
    matrices = MassMatrices.of(mass) if together else None
    for segment in schedule(400):
        if not segment.learn:
            continue
        here = slice(at, at + segment.length)
        how = {"choose": segment.choose, "last": segment.last}
        if matrices is not None:
            pairs = np.stack([np.stack([x[here], g[here]]) for x, g in zip(draws, grads)])
            matrices.end_segment(everyone, pairs, switch=segment.switch)
            now = Stacked.of(metrics)
            changed, found = matrices.learnt(everyone, now, **how)
            for k, i in enumerate(changed.tolist()):
                metrics[i] = Stacked(now.structure, found)[k]
        else:
            for m, x, g in zip(mass, draws, grads):
                m.add(x[here], g[here])
                m.end_segment(switch=segment.switch)
            metrics = [m.learnt(metric, **how) for m, metric in zip(mass, metrics)]
        at += segment.length
        yield metrics


@pytest.mark.parametrize("dim", [1, 5, 40, 60])
def test_what_a_chain_learns_does_not_depend_on_the_chains_in_step_with_it(dim):
    for in_step, alone in zip(
        course(*zip(*windows_of(dim, 5, repeated=(1, 3))), together=True),
        course(*zip(*windows_of(dim, 5, repeated=(1, 3))), together=False),
    ):
        for a, b in zip(in_step, alone):
            for x, y in zip(leaves(a), leaves(b), strict=True):
                np.testing.assert_array_equal(x.array, y.array)
    assert {m.name for m in in_step} == ({"diag"} if dim == 1 else {"diag", "low_rank"})


@pytest.mark.parametrize(
    "dim, count", [(1, 8), (2, 5), (3, 12), (9, 30), (10, 7), (10, 300), (24, 40)]
)
def test_native_geometric_mean_is_that_of_numpy(dim, count):
    both = np.stack([x.T @ x / count for x in gaussian_rows(covariance(dim), count)])
    variances, rows = geometric_mean(both, 1e-3)
    expected, columns = estimates.geometric_mean(both[0], both[1], 1e-3)
    order = np.argsort(variances)
    np.testing.assert_allclose(variances[order], expected, rtol=1e-6)
    np.testing.assert_allclose(rows @ rows.T, np.eye(dim), atol=1e-6)
    found = (rows.T * variances) @ rows
    np.testing.assert_allclose(found, (columns * expected) @ columns.T, atol=1e-6 * expected[-1])
    with pytest.raises(np.linalg.LinAlgError):
        geometric_mean(both * np.nan, 1e-3)


@pytest.mark.parametrize("choose, last", [(False, False), (True, False), (True, True)])
def test_small_windows_are_fitted_natively_as_by_numpy(choose, last, monkeypatch):
    monkeypatch.setattr(forms, "OFTEN", 0)
    kinds = set()
    for count in (6, 14, 25, 60, 200):
        for chain in range(6):
            sigma = covariance(8, directions=chain)
            draws, grads = gaussian_rows(sigma, count, seed=10 * chain + count)
            form, pairs = Auto(8), np.stack([draws, grads])
            window = Window(Moments.of(pairs), pairs)
            now = form.identity()
            if chain % 2:
                rows = np.stack(gaussian_rows(covariance(8, directions=1), 40))
                now = form.fitted(Window(Moments.of(rows), rows), now, 0, True)
            for fresh in (0, count - count // 2):
                native = form.fitted(window, now, fresh, choose, last)
                with monkeypatch.context() as patch:
                    patch.setattr(forms, "SMALL", 0)
                    patch.setattr(forms, "LOOKED_AT", count)
                    plain = form.fitted(window, now, fresh, choose, last)
                assert (native is now) == (plain is now)
                one, other = native.inverse_mass(), plain.inverse_mass()
                np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6 * abs(other).max())
                kinds.add((native.name, native is now))
    assert {("diag", False), ("low_rank", not choose)} <= kinds


@pytest.mark.parametrize("choose, last", [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("dim, rank", [(41, 32), (90, 3)])
def test_wide_windows_are_fitted_natively_as_by_numpy(dim, rank, choose, last, monkeypatch):
    native, kinds = LowRank(dim, rank), set()
    monkeypatch.setattr(forms, "is_native", lambda: False)
    plain = LowRank(dim, rank)
    native.least_gain = plain.least_gain = forms.WORTH_IT
    assert plain.by_numpy and not native.by_numpy
    for count in (6, 22, 36, 100, 200):
        for directions in (0, 1, 12):
            pairs = gaussian_rows(covariance(dim, directions=directions), count, seed=count)
            # Gradients that vary by more than their position says.
            pairs[1] *= np.exp(0.2 * np.random.default_rng(1).normal(size=pairs[1].shape))
            window, now = Window(Moments.of(pairs), pairs), plain.identity()
            if directions == 1:
                rows = gaussian_rows(covariance(dim, directions=3), 60)
                now = plain.fitted(Window(Moments.of(rows), rows), now, 0, True)
            for fresh in (0, count // 2):
                one, other = (f.fitted(window, now, fresh, choose, last) for f in (native, plain))
                assert (one is now) == (other is now)
                np.testing.assert_array_equal(one.count.array, other.count.array)
                a, b = one.inverse_mass(), other.inverse_mass()
                np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9 * abs(b).max())
                kinds.add((one.name, one is now))
    assert {("diag", False), ("low_rank", not choose)} <= kinds


@pytest.mark.parametrize("dim", [3, 60])
def test_a_window_that_overflows_leaves_the_matrix_as_it_is(dim):
    form, pairs = Auto(dim), np.random.default_rng(0).normal(size=(2, 60, dim))
    pairs[0, 7] = 1e200
    now = form.identity()
    with np.errstate(over="ignore"):
        moments = Moments.of(pairs)
    assert form.fitted(Window(moments, pairs), now, 0, True) is now


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_row_that_only_the_last_fit_sees_is_seen_to_be_no_number(bad):
    dim, count = 41, 2 * forms.LOOKED_AT + 1
    pairs = gaussian_rows(covariance(dim, directions=3), count)
    form = Auto(dim)
    now, at = form.identity(), count // 2
    assert at % form._step(count) == 1
    assert form.fitted(Window(Moments.of(pairs), pairs), now, 0, True, True) is not now
    pairs[1, at, 3] = bad
    with np.errstate(invalid="ignore"):
        moments = Moments.of(pairs)
        assert form.fitted(Window(moments, pairs), now, 0, True, True) is now
        with pytest.raises(np.linalg.LinAlgError):
            estimates.dense(pairs, np.ones(dim))


@pytest.mark.parametrize("dim", [41, 60])
def test_rows_that_are_all_equal_make_no_matrix_of_rounding(dim, monkeypatch):
    native, rng = LowRank(dim), np.random.default_rng(0)
    monkeypatch.setattr(forms, "is_native", lambda: False)
    plain = LowRank(dim)
    for count in (20, 21, 50, 161):
        # Their sums are rounded.
        pairs = np.repeat(rng.normal(size=(2, 1, dim)), count, axis=1)
        assert not Rows(pairs).squares.any() and not Rows(pairs).pairs.any()
        window, now = Window(Moments.of(pairs), pairs), native.identity()
        with np.errstate(invalid="ignore"):
            assert native.fitted(window, now, 0, True, True) is now
            with pytest.raises(np.linalg.LinAlgError):
                plain.fitted(window, now, 0, True, True)


@pytest.mark.parametrize("form", [Auto(3), Diagonal(3), Dense(3), Auto(40)], ids=lambda f: f.dim)
def test_a_coordinate_whose_gradient_is_one_number_is_as_wide_as_its_ramp(form):
    """Far out in a tail of exp(g x) the gradient says 1 / |g|, and its variance nothing."""
    rng = np.random.default_rng(0)
    mass, now = MassMatrix(form), form.of_variance(np.full(form.dim, 1e-3))
    draws = rng.normal(size=(60, form.dim))
    draws[:, 0] *= 1e-3
    for noise in (0.0, 1e-16):
        mass.forget()
        grads = -draws + 0.0
        grads[:, 0] = 0.25 * (1.0 + noise * rng.normal(size=60))
        mass.add(draws, grads)
        mass.end_segment(switch=False)
        found = mass.learnt(now, choose=True).inverse_mass()
        found = np.diag(found) if found.ndim == 2 else found
        np.testing.assert_allclose(found[0], 16.0, rtol=0.2)
        np.testing.assert_allclose(found[1:], 1.0, rtol=0.2)


def test_weak_directions_that_would_fill_a_matrix_are_left_out():
    dim, rng = 120, np.random.default_rng(3)
    rows = np.linalg.qr(rng.normal(size=(dim, dim)))[0][:30]
    strong, weak = rows[:4], rows[4:]
    sigma = np.eye(dim) + 5.0 * strong.T @ strong + 0.9 * weak.T @ weak
    draws = rng.multivariate_normal(np.zeros(dim), sigma, 250)
    # Gradients that vary by more than their position says.
    grads = -draws @ np.linalg.inv(sigma) * np.exp(0.4 * rng.normal(size=draws.shape))
    form, pairs = Auto(dim), np.stack([draws, grads])
    metric = form.fitted(Window(Moments.of(pairs), pairs), form.identity(), 0, True, True)
    _, variances = metric.in_use()
    assert 4 <= len(variances) < form.rank
    assert np.all(np.maximum(variances, 1.0 / variances) > forms.CUT)
    # 3.15 with as many as there is room for.
    assert left_over(sigma, metric.inverse_mass()) < 3.5


@pytest.mark.parametrize("spread", [0.3, 0.6])
def test_the_last_fit_takes_no_noise_for_directions_where_draws_are_fewer_than_dimensions(spread):
    dim, rng = 150, np.random.default_rng(1)
    rows = np.linalg.qr(rng.normal(size=(dim, dim)))[0][:4]
    sigma = np.eye(dim) + 40.0 * rows.T @ rows
    # By the symmetric root, which is one and the same in every NumPy.
    draws = rng.normal(size=(130, dim)) @ (np.eye(dim) + (np.sqrt(41.0) - 1.0) * rows.T @ rows)
    # Gradients that vary by more than their position says.
    grads = -draws @ np.linalg.inv(sigma) * np.exp(spread * rng.normal(size=draws.shape))
    form, pairs = Auto(dim), np.stack([draws, grads])
    metric = form.fitted(Window(Moments.of(pairs), pairs), form.identity(), 0, True, True)
    assert int(metric.count.array) == 4
    # 41 without directions; 210 and 45 with the 31 and 32 that the whole covariances have.
    assert left_over(sigma, metric.inverse_mass()) < 12.0
