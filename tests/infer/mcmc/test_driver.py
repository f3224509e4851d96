"""MCMC: the same draws however it is run, what it returns, and what it does in trouble."""

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from probtorch.compiler.density import NativeDensity
from probtorch.config import configure
from probtorch.core.rng import Generator, default_generator, manual_seed
from probtorch.diagnostics.findings import DivergenceWarning, InferenceWarning
from probtorch.errors import ArgumentError, InferenceError, ShapeError
from probtorch.infer.mcmc.driver import MCMC
from probtorch.infer.mcmc.kernels.hmc import HMC
from probtorch.infer.mcmc.kernels.nuts import NUTS
from probtorch.infer.potential import Target
from probtorch.testing.compare import assert_close
from tests.infer.mcmc.targets import funnel_logdensity

ROOT = Path(__file__).resolve().parents[3]
SCALES = np.array([1.0, 3.0, 0.2])


def gaussian_target():
    return Target.from_density(lambda q: -0.5 * ((q / SCALES) ** 2).sum(), 3)


def python_target(value_and_grad, dim=1):
    """A target whose every evaluation is a call of Python."""
    target = Target.from_density(lambda q: -0.5 * (q * q).sum(), dim)
    target.__dict__["density"] = NativeDensity.from_python(value_and_grad, dim)
    return target


def run(mcmc, *args, **kwargs):
    """Run without the warnings that short runs deserve."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InferenceWarning)
        return mcmc.run(*args, **kwargs)


def positions(mcmc):
    return mcmc.draws.positions


# ---------------------------------------------------------------------------------- determinism


@pytest.mark.parametrize("kernel", [NUTS, HMC])
def test_draws_do_not_depend_on_threads(kernel):
    found = []
    for settings in (
        {"num_threads": 1},
        {"num_threads": 2},
        {"num_threads": 4},
        {"chain_method": "sequential"},
        {"chain_method": "vectorized"},
    ):
        mcmc = MCMC(kernel(gaussian_target()), 300, num_chains=4, seed=7, **settings)
        draws = run(mcmc)
        found.append((positions(mcmc), draws.sample_stats))
    for q, stats in found[1:]:
        np.testing.assert_array_equal(q, found[0][0])
        for name, values in stats.items():
            np.testing.assert_array_equal(values, found[0][1][name])


def test_chain_does_not_depend_on_the_number_of_chains():
    four, two = (MCMC(NUTS(gaussian_target()), 100, num_chains=n, seed=3) for n in (4, 2))
    run(four), run(two)
    np.testing.assert_array_equal(positions(four)[:2], positions(two))
    assert len(np.unique(positions(four)[:, -1, 0])) == 4


@pytest.mark.parametrize("dim", [1, 10])
def test_hmc_forgets_a_normal_in_a_draw_by_default(dim):
    """A length between 1 and 2 leaves cos(1) of it at most; a full period would leave all."""
    target = Target.from_density(lambda q: -0.5 * (q * q).sum(), dim)
    mcmc = MCMC(HMC(target), 1000, 300, num_chains=4, seed=1, progress_bar=False)
    x = mcmc.run().positions
    correlation = (x[:, 1:] * x[:, :-1]).mean() / (x * x).mean()
    # Steps are whole, so lengths are 1 at least. Of 4000 pairs 5 standard errors are below 0.1.
    assert abs(correlation) < np.cos(1.0) + 0.1
    assert mcmc.draws.attrs["jitter"] == 0.2 and mcmc.draws.attrs["trajectory_length"] == 2.0


def test_jitter_varies_the_length_of_trajectories():
    target = Target.from_density(lambda q: -0.5 * (q * q).sum(), 50)
    kernel = HMC(target, step_size=0.05, trajectory_length=2.0 * np.pi, jitter=0.5,
                 adapt_step_size=False, adapt_mass_matrix=False)  # fmt: skip
    draws = MCMC(kernel, 400, 0, num_chains=1, seed=1, progress_bar=False).run(
        init_params=np.ones((1, 50))
    )
    assert set(np.unique(draws.sample_stats["n_steps"])) == {125}
    x = draws.positions[0]
    correlation = (x[1:] * x[:-1]).mean() / (x * x).mean()
    # The mean of cos over [pi, 3 pi] is 0: 5 standard errors of 400 lengths.
    assert abs(correlation) < 5 * np.sqrt(0.5 / 400)


def test_seed_decides_and_manual_seed_seeds_what_has_none():
    first, again, other = (MCMC(NUTS(gaussian_target()), 50, seed=s) for s in (1, 1, 2))
    for mcmc in (first, again, other):
        run(mcmc)
    np.testing.assert_array_equal(positions(first), positions(again))
    assert not np.array_equal(positions(first), positions(other))
    before, unseeded = default_generator.get_state(), []
    for _ in range(2):
        manual_seed(5)
        mcmc = MCMC(NUTS(gaussian_target()), 50)
        run(mcmc)
        unseeded.append(positions(mcmc))
    default_generator.set_state(before)
    np.testing.assert_array_equal(*unseeded)
    by_keyword = MCMC(NUTS(gaussian_target()), 50)
    run(by_keyword, rng_key=Generator(1))
    np.testing.assert_array_equal(positions(by_keyword), positions(first))


def test_run_without_compiling_gives_the_same_chain():
    native = MCMC(NUTS(gaussian_target()), 4, 6, num_chains=2, seed=1)
    run(native)
    with configure(jit=False):
        eager = MCMC(NUTS(gaussian_target()), 4, 6, num_chains=2, seed=1)
        run(eager)
    np.testing.assert_allclose(positions(eager), positions(native), rtol=1e-7)


@pytest.mark.parametrize("full_mass", [False, True])
def test_run_goes_on_from_the_last_state_bit_for_bit(full_mass):
    kernel = NUTS(gaussian_target(), full_mass=full_mass)
    whole = MCMC(kernel, 90, 60, num_chains=2, seed=4)
    run(whole)
    parts = MCMC(kernel, 45, 60, num_chains=2, seed=4)
    parts.warmup()
    halves = []
    for _ in range(2):
        run(parts)
        halves.append(positions(parts))
        parts.post_warmup_state = parts.last_state
    np.testing.assert_array_equal(np.concatenate(halves, axis=1), positions(whole))


# -------------------------------------------------------------------------------------- results


@pytest.mark.parametrize(
    "kernel", [NUTS, lambda t: NUTS(t, full_mass=True), lambda t: HMC(t, trajectory_length=2.0)]
)
def test_moments_of_a_gaussian_are_found(kernel):
    """Means within 6 MCSE and sds within 10 %; a run with a warning fails, too."""
    mcmc = MCMC(kernel(gaussian_target()), 2000, 1000, num_chains=4, seed=0)
    draws = mcmc.run()
    table = mcmc.summary()
    assert mcmc.summary(names="x", round_to=1).rows == table.rows
    for i, scale in enumerate(SCALES):
        row = table[f"x[{i}]"]
        assert abs(row["mean"]) < 6.0 * row["mcse_mean"]
        assert abs(row["sd"] / scale - 1.0) < 0.1
    adapted = [c.kernel.metric.inverse_mass() for c in mcmc.last_state]
    for found in adapted:
        variances = np.diag(found) if found.ndim == 2 else found
        assert_close(np.sqrt(variances), SCALES, rtol=0.3)
    stats = draws.sample_stats
    assert abs(stats["acceptance_rate"].mean() - 0.8) < 0.15
    assert_close(stats["lp"], -0.5 * ((positions(mcmc) / SCALES) ** 2).sum(axis=-1), rtol=1e-9)
    assert (stats["energy"] >= -stats["lp"]).all()


def test_both_sets_of_keywords_mean_the_same():
    pyro = MCMC(NUTS(gaussian_target(), full_mass=True), 40, warmup_steps=30, num_chains=2, seed=1)
    numpyro = MCMC(
        sampler=NUTS(gaussian_target(), dense_mass=True), num_warmup=30, num_samples=40,
        num_chains=2, progress_bar=False, seed=1,
    )  # fmt: skip
    run(pyro), run(numpyro)
    np.testing.assert_array_equal(positions(pyro), positions(numpyro))


def test_samples_are_tensors_joined_or_by_chain():
    mcmc = MCMC(NUTS(gaussian_target()), 30, num_chains=2, seed=1)
    run(mcmc, extra_fields=("num_steps", "potential_energy"))
    by_chain = mcmc.get_samples(group_by_chain=True)["x"]
    assert by_chain.shape == (2, 30, 3)
    assert_close(mcmc.get_samples()["x"], by_chain.reshape(60, 3))
    some = mcmc.get_samples(7)["x"].numpy()
    assert some.shape == (7, 3)
    assert all((mcmc.get_samples()["x"].numpy() == x).all(axis=1).any() for x in some)
    fields = mcmc.get_extra_fields()
    assert fields["num_steps"].shape == (60,) and (fields["num_steps"] > 0).all()
    stats = mcmc.draws.sample_stats
    np.testing.assert_array_equal(fields["potential_energy"], -stats["lp"].ravel())
    found = mcmc.diagnostics()
    assert found["x"]["r_hat"].shape == (3,) and set(found["divergences"]) == {"chain 0", "chain 1"}


def test_thinned_run_keeps_every_so_many_th_draw_and_all_divergences():
    full, thin = (MCMC(NUTS(gaussian_target()), 103, seed=2, thinning=n) for n in (1, 4))
    run(full), run(thin)
    np.testing.assert_array_equal(positions(thin), positions(full)[:, 3:100:4])
    steps = full.draws.sample_stats["n_steps"][:, :100].reshape(1, 25, 4).sum(axis=2)
    np.testing.assert_array_equal(thin.draws.sample_stats["n_steps"], steps)


def test_warmup_is_kept_on_request():
    mcmc = MCMC(NUTS(gaussian_target()), 20, 50, num_chains=2, seed=1, keep_warmup=True)
    draws = run(mcmc)
    assert draws.groups["warmup_posterior"]["x"].shape == (2, 50, 3)
    assert draws.groups["warmup_sample_stats"]["step_size"].shape == (2, 50)
    only = MCMC(NUTS(gaussian_target()), 20, 50, num_chains=2, seed=1)
    only.warmup(collect_warmup=True)
    assert only.get_samples(group_by_chain=True)["x"].shape == (2, 50, 3)


def test_hook_sees_every_iteration():
    seen = []

    def hook(kernel, params, stage, i):
        seen.append((stage, i, params))

    mcmc = MCMC(NUTS(gaussian_target()), 12, 5, seed=1, hook_fn=hook)
    run(mcmc)
    assert [(s, i) for s, i, _ in seen] == [("Warmup" if i < 5 else "Sample", i) for i in range(17)]
    assert_close(np.array([x["x"].numpy() for _, _, x in seen[5:]]), positions(mcmc)[0])


def test_fixed_step_size_and_mass_matrix_stay():
    kernel = NUTS(
        gaussian_target(), step_size=0.37, adapt_step_size=False, adapt_mass_matrix=False,
        inverse_mass_matrix=SCALES**2,
    )  # fmt: skip
    mcmc = MCMC(kernel, 50, 200, seed=1)
    draws = run(mcmc)
    assert (draws.sample_stats["step_size"] == 0.37).all()
    assert_close(mcmc.last_state[0].kernel.metric.variance(), SCALES**2)


def test_potential_of_a_dict_of_values_is_sampled():
    def potential(z):
        return 0.5 * (z["a"] ** 2 + ((z["b"] - 3.0) ** 2).sum())

    mcmc = MCMC(NUTS(potential_fn=potential), 500, num_chains=2, seed=1)
    run(mcmc, init_params={"a": np.zeros(2), "b": np.ones((2, 2))})
    samples = mcmc.get_samples()
    assert samples["a"].shape == (1000,) and samples["b"].shape == (1000, 2)
    # 1000 draws of unit variance: 0.3 is 5 standard errors even at an effective size of 280.
    assert_close(samples["b"].numpy().mean(axis=0), [3.0, 3.0], atol=0.3)


def test_chains_start_where_they_are_told():
    starts = np.array([[0.1, 0.2, 0.3], [-1.0, -2.0, -0.1]])
    kernel = NUTS(gaussian_target(), step_size=1e-9, adapt_step_size=False, max_tree_depth=1)
    mcmc = MCMC(kernel, 1, 0, num_chains=2, seed=1, initial_params=starts)
    run(mcmc)
    assert_close(positions(mcmc)[:, 0], starts, atol=1e-7)


# ---------------------------------------------------------------------------------- going wrong


def test_divergences_of_the_funnel_are_reported():
    target = Target.from_density(funnel_logdensity, 10)
    mcmc = MCMC(NUTS(target, target_accept_prob=0.5), 1000, num_chains=4, seed=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        draws = mcmc.run()
    (told,) = (w for w in caught if w.category is DivergenceWarning)
    assert re.search("divergent transitions? after warm-up", str(told.message))
    assert told.filename == __file__
    assert draws.sample_stats["diverging"].sum() > 0
    listed = sum(len(x) for x in mcmc.diagnostics()["divergences"].values())
    assert listed == draws.sample_stats["diverging"].sum()


def test_chain_that_dies_does_not_lose_the_others():
    calls = []

    def two_wells(q):
        if q[0] < 5e5:
            return -0.5 * q @ q, -q
        calls.append(q)
        if len(calls) > 30:
            raise RuntimeError("the well is dry")
        return -0.5 * (q - 1e6) @ (q - 1e6), 1e6 - q

    starts = np.array([[0.0], [1e6], [0.5]])
    mcmc = MCMC(NUTS(python_target(two_wells)), 40, 30, num_chains=3, seed=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        draws = mcmc.run(init_params=starts)
    (told,) = (str(w.message) for w in caught if "failed" in str(w.message))
    assert told.startswith("chain 1 failed") and "RuntimeError: the well is dry" in told
    assert draws.num_chains == 2 and draws.num_draws == 40
    assert draws.attrs["missing_chains"] == [1]
    assert "the well is dry" in draws.attrs["failed_chains"]["1"]
    assert np.abs(positions(mcmc)).max() < 5e5


def test_error_of_all_chains_is_raised():
    calls = []

    def broken(q):
        calls.append(q)
        if len(calls) > 40:
            raise WellIsDry("no more")
        return -0.5 * q @ q, -q

    with pytest.raises(WellIsDry, match="no more"):
        run(MCMC(NUTS(python_target(broken)), 100, num_chains=2, seed=1))


class WellIsDry(Exception):
    pass


def test_flat_density_has_no_step_size():
    # Were it flat to the last bit, it would be refused as no distribution before.
    flat = python_target(lambda q: (0.0, -1e-60 * q))
    with pytest.raises(InferenceError, match="no step size") as error:
        run(MCMC(NUTS(flat), 10, seed=1))
    assert "acceptance up to 1e7" in str(error.value) and "proper priors" in str(error.value)


def test_density_with_a_wrong_gradient_has_no_step_size():
    """Any step goes from value 0 to -100 or lower."""
    drop = python_target(lambda q: (-100.0 if q.any() else 0.0, np.zeros(1)))
    with pytest.raises(InferenceError, match="no step size") as error:
        run(MCMC(NUTS(drop), 10, seed=1), init_params=np.zeros(1))
    assert "rejection down to 1e-30" in str(error.value)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: MCMC(lambda: None, 10), ["MCMC(kernel)", "NUTS(model)"]),
        (lambda: MCMC(NUTS(gaussian_target()), 0), ["num_samples", "at least 1", "0"]),
        (lambda: MCMC(NUTS(gaussian_target())), ["num_samples", "None"]),
        (lambda: MCMC(NUTS(gaussian_target()), 10, 5, num_warmup=5), ["num_warmup", "both"]),
        (lambda: MCMC(NUTS(gaussian_target()), 10, thinning=11), ["thinning", "at most", "11"]),
        (lambda: MCMC(NUTS(gaussian_target()), 10, chain_method="threads"), ["'threads'"]),
        (lambda: MCMC(NUTS(gaussian_target()), 10, postprocess_fn=abs), ["postprocess_fn"]),
        (lambda: NUTS(), ["NUTS", "neither", "potential_fn"]),
        (lambda: NUTS(gaussian_target(), potential_fn=abs), ["NUTS", "both"]),
        (lambda: NUTS(gaussian_target(), target_accept_prob=1.0), ["(0, 1)", "1.0"]),
        (lambda: NUTS(gaussian_target(), step_size="big"), ["step_size", "'big'"]),
        (lambda: NUTS(gaussian_target(), max_tree_depth=0), ["max_tree_depth", "0"]),
        (lambda: NUTS(gaussian_target(), use_multinomial_sampling=False), ["True", "False"]),
        (lambda: NUTS(gaussian_target(), dense_mass="x"), ["dense_mass", "True, False or blocks"]),
        (lambda: NUTS(gaussian_target(), metric="full rank"), ["metric", "'low_rank'"]),
        (lambda: NUTS(gaussian_target(), metric=[("x", "y"), ("y",)]), ["share no site", "'y'"]),
        (lambda: NUTS(gaussian_target(), metric="diag", full_mass=True), ["metric", "one of"]),
        (lambda: NUTS(gaussian_target(), transforms={"x": 1}), ["transforms", "reparam"]),
        (lambda: HMC(gaussian_target(), num_steps=3, trajectory_length=1.0), ["both"]),
        (lambda: HMC(gaussian_target(), num_steps=0), ["num_steps", "at least 1"]),
        (lambda: HMC(gaussian_target(), jitter=1.0), ["jitter", "[0, 1)"]),
        (lambda: run(MCMC(NUTS(potential_fn=abs), 10)), ["potential_fn", "init_params"]),
    ],
)
def test_mistake_is_named_with_its_cure(make, words):
    with pytest.raises(ArgumentError) as error:
        make()
    message = str(error.value)
    assert all(word in message for word in [*words, "expected:", "got:", "fix:"]), message


def test_shapes_that_do_not_fit_are_named():
    with pytest.raises(ShapeError, match="initial_params") as error:
        run(MCMC(NUTS(gaussian_target()), 10, num_chains=2, initial_params=np.zeros((3, 3))))
    assert "(3,) or (2, 3)" in str(error.value)
    with pytest.raises(ShapeError, match="inverse_mass_matrix") as error:
        run(MCMC(NUTS(gaussian_target(), inverse_mass_matrix=np.ones(2)), 10))
    assert "3 unconstrained coordinates" in str(error.value)
    with pytest.raises(InferenceError, match="initial_params"):
        run(MCMC(NUTS(gaussian_target()), 10, initial_params=np.full(3, np.inf)))
    with pytest.raises(InferenceError, match="call run"):
        MCMC(NUTS(gaussian_target()), 10).get_samples()


def test_state_of_another_model_is_refused():
    one, other = (
        MCMC(NUTS(gaussian_target()), 10, seed=1),
        MCMC(NUTS(gaussian_target()), 10, num_chains=2),
    )
    run(one)
    other.post_warmup_state = one.last_state
    with pytest.raises(InferenceError, match="post_warmup_state"):
        run(other)


# --------------------------------------------------------------------------------------- Ctrl-C

SCRIPT = """
import os, signal, threading, time, warnings
# A job in the background begins with Ctrl-C ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
warnings.simplefilter("ignore")
from probtorch.infer.mcmc.driver import MCMC
from probtorch.infer.mcmc.kernels.nuts import NUTS
from probtorch.infer.potential import Target
target = Target.from_density(lambda q: -0.5 * (q * q).sum(), 2)
MCMC(NUTS(target), 20, 20, num_chains=3, progress_bar=False).run()  # compiles

def interrupt(begun):
    # Of the processor's time: on a busy machine the run gets as far as on an idle one.
    while time.process_time() - begun < 0.7:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)

mcmc = MCMC(NUTS(target), {samples}, {warmup}, num_chains=3, num_threads={threads}, seed=1{more})
threading.Thread(target=interrupt, args=(time.process_time(),), daemon=True).start()
draws = mcmc.run()
print(draws.num_chains, draws.num_draws, draws.attrs["interrupted"], mcmc.get_samples()["x"].shape)
"""


def interrupted(samples, warmup, threads, more=""):
    """Send Ctrl-C when the run has begun; returns output, errors and code."""
    script = SCRIPT.format(samples=samples, warmup=warmup, threads=threads, more=more)
    ended = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        text=True,
        capture_output=True,
        timeout=120,
        env={**os.environ, "PROBTORCH_PROGRESS": "1"},
    )
    return ended.stdout, ended.stderr, ended.returncode


def test_interrupt_keeps_what_all_chains_drew():
    out, err, code = interrupted(3_000_000, 50, 3)
    assert code == 0, err
    chains, draws, flag, *_ = out.split()
    # On a busy machine a chain may not have got to its first draw.
    assert chains in ("1", "2", "3") and flag == "True" and 0 < int(draws) < 3_000_000
    assert f"kept {chains} of 3 chains with {draws} draws each" in err
    assert "interrupted: keeping what was drawn (Ctrl-C again" in err


def test_interrupt_keeps_the_chains_that_had_begun():
    # With a hook chains run one after the other.
    out, err, code = interrupted(3_000_000, 50, 1, ", hook_fn=lambda *_: None")
    assert code == 0, err
    assert out.split()[0] == "1" and "kept 1 of 3 chains" in err


def test_chains_of_one_thread_draw_side_by_side():
    out, err, code = interrupted(3_000_000, 50, 1)
    assert code == 0, err
    assert out.split()[0] == "3" and "kept 3 of 3 chains" in err


def test_interrupt_during_warmup_has_nothing_to_keep():
    out, err, code = interrupted(1000, 30_000_000, 3)
    assert code != 0 and not out
    assert "KeyboardInterrupt: interrupted before the first draw" in err
    assert "interrupted during warm-up: there are no draws yet, so none are kept" in err
    assert "keeping what was drawn" not in err


@pytest.mark.parametrize("stage", ["warm_up_in_step", "sample_in_step"])
def test_what_fails_in_a_thread_of_chains_is_raised_where_the_run_was_asked_for(stage, monkeypatch):
    def fail(group, control):
        raise ValueError("rows of another size")

    monkeypatch.setattr(f"probtorch.infer.mcmc.threads.{stage}", fail)
    target = Target.from_density(lambda q: -0.5 * (q * q).sum(), dim=2)
    mcmc = MCMC(NUTS(target), num_samples=20, num_warmup=20, num_chains=2, progress_bar=False)
    with pytest.raises(ValueError, match="another size"):
        mcmc.run()
