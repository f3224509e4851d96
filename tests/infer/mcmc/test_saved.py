"""Runs of `MCMC` that are broken off anywhere, the warm-up included, and go on bit for bit."""

import contextlib
import os
import signal
import threading
import time
import warnings

import numpy as np
import pytest

import probtorch
from probtorch.errors import ArgumentError, FileError, InferenceError
from probtorch.infer import HMC, MCMC, NUTS, Checkpoint, CheckpointWarning, ReplicaExchange, Target
from probtorch.infer.mcmc import chain
from probtorch.serialization import load, save

# A snapshot after every call of the native program, and a file each time the main thread looks.
ALWAYS = 1e-9


class Crash(Exception):
    """What breaks a run off."""


def target(scale=3.0):
    sd = np.array([1.0, 0.1, scale])
    return Target.from_density(lambda q: -0.5 * ((q / probtorch.tensor(sd)) ** 2).sum(), 3)


def correlated():
    """A target for which directions pay, so that the metric changes its kind on the way."""
    precision = probtorch.tensor(np.linalg.inv(np.array([[1.0, 0.99], [0.99, 1.0]])))
    return Target.from_density(lambda q: -0.5 * (q @ (precision @ q)), 2)


KERNELS = {
    "NUTS": lambda **options: NUTS(target(**options)),
    "dense NUTS": lambda **options: NUTS(target(**options), full_mass=True),
    "low-rank NUTS": lambda **options: NUTS(correlated(**options)),
    "HMC": lambda **options: HMC(target(**options), trajectory_length=2.0, jitter=0.3),
}


def mcmc_of(kernel="NUTS", crash=None, seed=3, options=None, **settings):
    def hook(kernel, params, stage, i):
        if i == crash:
            raise Crash

    settings = {"num_chains": 2, "thinning": 3, "keep_warmup": True, **settings}
    return MCMC(
        KERNELS[kernel](**(options or {})), 80, 120, seed=seed,
        hook_fn=hook if crash is not None else None, progress_bar=False, **settings,
    )  # fmt: skip


def run(mcmc, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", probtorch.diagnostics.InferenceWarning)
        return mcmc.run(*args, **kwargs)


def everything(draws):
    """All arrays of a result, as bytes by name."""
    groups = {"posterior": draws.posterior, "stats": draws.sample_stats, **draws.groups}
    return {(g, n): x.tobytes() for g, arrays in groups.items() for n, x in arrays.items()}


@pytest.fixture(params=["one by one", "many at once"])
def calls(request, monkeypatch):
    """Transitions per call of the native program: a run can be broken off between two calls."""
    if request.param == "one by one":
        monkeypatch.setattr(chain, "CALL_SECONDS", 0.0)
    return request.param


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_run_broken_off_anywhere_goes_on_bit_for_bit(kernel, calls, tmp_path):
    expected = everything(run(mcmc_of(kernel)))
    assert len(expected) == 20
    # In the first, the middle and the last window of the warm-up, and among the draws.
    for crash in (2, 60, 97, 119, 121, 160, 199):
        with pytest.raises(Crash):
            run(mcmc_of(kernel, crash), checkpoint=tmp_path, checkpoint_every=ALWAYS)
    mcmc = mcmc_of(kernel)
    assert everything(run(mcmc, checkpoint=tmp_path)) == expected
    assert mcmc.last_state is not None
    # Complete, it returns at once.
    assert everything(run(mcmc_of(kernel), checkpoint=tmp_path)) == expected


@pytest.mark.parametrize("kernel", ["NUTS", "low-rank NUTS"])
def test_a_run_until_enough_draws_broken_off_anywhere_goes_on_bit_for_bit(kernel, tmp_path):
    """What is drawn beyond `num_samples` is saved too, as often as it takes to be enough."""
    made = 0

    def of(crash=None):
        def hook(kernel, params, stage, i):
            nonlocal made
            made += 1
            if crash is not None and made >= crash:
                raise Crash

        nonlocal made
        made, mcmc = 0, mcmc_of(kernel, crash=0, num_chains=1)
        mcmc.hook_fn = hook
        return mcmc

    whole = run(of(), until_ess=150)
    assert whole.num_draws > 2 * run(of()).num_draws
    expected = everything(whole)
    for crash in (150, 90, 60, 30):
        with pytest.raises(Crash):
            run(of(crash), until_ess=150, checkpoint=tmp_path, checkpoint_every=ALWAYS)
    assert everything(run(of(), until_ess=150, checkpoint=tmp_path)) == expected
    assert everything(run(of(), until_ess=150, checkpoint=tmp_path)) == expected
    assert made == 0  # it was complete
    # Asked for more, it goes on from there; what was there stays.
    more = run(of(), until_ess=300, checkpoint=tmp_path)
    assert more.num_draws > whole.num_draws
    np.testing.assert_array_equal(more.positions[:, : whole.num_draws], whole.positions)


def test_an_extension_of_another_run_is_refused(tmp_path):
    with probtorch.random.fork_rng():
        run(mcmc_of(seed=None), until_ess=300, checkpoint=tmp_path)
    for path in tmp_path.glob("step-*"):
        path.unlink()
    probtorch.manual_seed(5)
    with pytest.raises(ArgumentError, match=r"(?s)goes_on_from.*delete this folder"):
        run(mcmc_of(seed=None), until_ess=300, checkpoint=tmp_path)


def test_a_run_broken_off_while_a_chain_is_sent_elsewhere_goes_on_bit_for_bit(calls, tmp_path):
    """Chain 1 begins in a mode without weight; its second warm-up lasts from 120 to 180."""

    def hills(q):
        return probtorch.logaddexp(-0.5 * (q * q).sum(), -90.0 - 0.5 * ((q - 40.0) ** 2).sum())

    def of(crash=None):
        mcmc = mcmc_of(crash=crash)
        mcmc.kernel = NUTS(Target.from_density(hills, 2))
        return mcmc

    starts = np.array([[0.5, 0.0], [40.0, 40.0]])
    whole = run(of(), init_params=starts)
    assert whole.attrs["moved_chains"] == [1]
    for crash in (119, 130, 170, 190):
        with contextlib.suppress(Crash):
            run(of(crash), init_params=starts, checkpoint=tmp_path, checkpoint_every=ALWAYS)
    resumed = run(of(), init_params=starts, checkpoint=tmp_path)
    assert everything(resumed) == everything(whole)
    assert resumed.attrs["moved_chains"] == [1]


def test_breaks_are_taken_up_where_they_were(tmp_path, monkeypatch):
    monkeypatch.setattr(chain, "CALL_SECONDS", 0.0)
    seen = []
    for crash in (65, 150):
        with pytest.raises(Crash):
            run(mcmc_of(crash=crash, num_chains=1), checkpoint=tmp_path, checkpoint_every=ALWAYS)
        state = load(Checkpoint(tmp_path).files()[0])["values"]["chains"][0]
        seen.append((state["segment"], state["done"]))
        assert state["iteration"] == crash
        assert state["warmup"]["seen"] == min(state["iteration"], 120)
    assert seen[0][0] > 1 and seen[0][1] > 0  # in the middle of a segment of the warm-up
    assert seen[1][0] > seen[0][0]


def test_a_checkpoint_changes_nothing_in_the_draws(tmp_path):
    with_it = run(mcmc_of(), checkpoint=tmp_path, checkpoint_every=ALWAYS)
    assert everything(with_it) == everything(run(mcmc_of()))


def test_a_run_without_a_seed_goes_on_with_the_draws_it_began_with(tmp_path):
    probtorch.manual_seed(5)
    expected = everything(run(mcmc_of(seed=None)))
    after = probtorch.default_generator.get_state()
    probtorch.manual_seed(5)
    with pytest.raises(Crash):
        run(mcmc_of(crash=70, seed=None), checkpoint=tmp_path, checkpoint_every=ALWAYS)
    probtorch.manual_seed(6)
    assert everything(run(mcmc_of(seed=None), checkpoint=tmp_path)) == expected
    assert probtorch.default_generator.get_state() == after


def test_a_run_after_a_warm_up_goes_on_too(tmp_path):
    def warm(crash=None):
        mcmc = mcmc_of()
        mcmc.warmup()
        mcmc.hook_fn = mcmc_of(crash=crash).hook_fn
        return mcmc

    expected = everything(run(warm()))
    with pytest.raises(Crash):
        run(warm(40), checkpoint=tmp_path, checkpoint_every=ALWAYS)
    assert everything(run(warm(), checkpoint=tmp_path)) == expected


def test_a_model_goes_on_with_its_labels(tmp_path):
    def model(y):
        mu = probtorch.sample("mu", probtorch.distributions.Normal(0.0, 5.0))
        with probtorch.plate("school", coords=["a", "b", "c"]):
            probtorch.sample("y", probtorch.distributions.Normal(mu, 1.0), obs=y)

    y = probtorch.tensor([1.0, 2.0, 3.0])

    def fit(data=y, **options):
        mcmc = MCMC(NUTS(model), 40, 40, seed=1, progress_bar=False)
        return run(mcmc, data, **options)

    first, again = fit(checkpoint=tmp_path), fit(checkpoint=tmp_path)
    assert everything(first) == everything(again) == everything(fit())
    assert again.predict(seed=0)["y"].shape == (1, 40, 3)
    with pytest.raises(ArgumentError, match="the data it was begun with"):
        fit(y + 1.0, checkpoint=tmp_path)


def test_another_run_in_the_folder_is_refused(tmp_path):
    run(mcmc_of(), checkpoint=tmp_path)
    with pytest.raises(ArgumentError, match=r"thinning=2 \(saved was 3\)"):
        run(mcmc_of(thinning=2), checkpoint=tmp_path)
    with pytest.raises(ArgumentError, match=r"metric=\S+ \(saved was \S+\)"):
        run(mcmc_of("dense NUTS"), checkpoint=tmp_path)
    with pytest.raises(ArgumentError, match="the data it was begun with"):
        run(mcmc_of(options={"scale": 4.0}), checkpoint=tmp_path)
    with pytest.raises(ArgumentError, match=r"seed=9 \(saved was 3\)"):
        run(mcmc_of(seed=9), checkpoint=tmp_path)
    with pytest.raises(ArgumentError, match=r"seed=\[9, 0\] \(saved was 3\)"):
        run(mcmc_of(), checkpoint=tmp_path, rng_key=probtorch.Generator(9))
    svi_folder = tmp_path / "svi"
    Checkpoint(svi_folder).save(3, {"losses": np.ones(3)})
    with pytest.raises(ArgumentError, match="another"):
        run(mcmc_of(), checkpoint=svi_folder)


def test_what_is_no_time_is_refused(tmp_path):
    for every in (0, -1.0, True, "often"):
        with pytest.raises(ArgumentError, match="a number of seconds"):
            run(mcmc_of(), checkpoint=tmp_path, checkpoint_every=every)
    with pytest.raises(ArgumentError, match="a folder to write to"):
        run(mcmc_of(), checkpoint_every=3.0)


def test_a_full_disk_ends_no_run_that_has_begun(tmp_path, monkeypatch):
    def no_room(*args):
        raise OSError(28, "No space left on device")

    def fill(kernel, params, stage, i):
        if i == 50:
            monkeypatch.setattr(os, "fsync", no_room)

    mcmc = mcmc_of()
    mcmc.hook_fn = fill
    with pytest.warns(CheckpointWarning, match="No space left"):
        draws = run(mcmc, checkpoint=tmp_path)
    assert everything(draws) == everything(run(mcmc_of()))
    with pytest.raises(FileError, match="No space left"):
        run(mcmc_of(), checkpoint=tmp_path / "other")


class SlowThread(threading.Thread):
    """A thread whose start returns late, as on a busy machine."""

    def start(self):
        super().start()
        time.sleep(0.5)


@pytest.mark.parametrize(
    ("at", "thread"), [(50, threading.Thread), (150, threading.Thread), (50, SlowThread)]
)
def test_ctrl_c_loses_nothing(at, thread, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(threading, "Thread", thread)

    def interrupt(kernel, params, stage, i):
        if i == at and not sent:
            sent.append(i)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)  # for the main thread to hear of it

    sent, mcmc = [], mcmc_of()
    mcmc.hook_fn = interrupt
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        # The second chain has no draws yet; in the warm-up the first has none either.
        with pytest.raises(KeyboardInterrupt) if at < 120 else contextlib.nullcontext():
            assert run(mcmc, checkpoint=tmp_path).attrs["interrupted"]
    finally:
        signal.signal(signal.SIGINT, before)
    assert sent == [at]
    assert at <= max(steps_in(tmp_path)) < 400
    assert everything(run(mcmc_of(), checkpoint=tmp_path)) == everything(run(mcmc_of()))


def test_adapted_chains_go_through_a_file(tmp_path):
    whole = mcmc_of(keep_warmup=False, thinning=1)
    run(whole)
    save(whole.state_dict(), tmp_path / "chains")
    run_on = mcmc_of(keep_warmup=False, thinning=1)
    run_on.load_state_dict(load(tmp_path / "chains"))
    by_hand = mcmc_of(keep_warmup=False, thinning=1)
    by_hand.post_warmup_state = whole.last_state
    assert everything(run(run_on)) == everything(run(by_hand)) != everything(whole.draws)
    with pytest.raises(ArgumentError, match="that of a NUTS kernel"):
        mcmc_of("dense NUTS").load_state_dict(load(tmp_path / "chains"))
    with pytest.raises(InferenceError, match="call run"):
        mcmc_of().state_dict()


FORMER = {"target_accept_prob": 0.8}  # what NUTS aimed at before it could aim at less
KEPT = {
    "NUTS": lambda **options: NUTS(target(), **options),
    "dense NUTS": lambda **options: NUTS(target(), full_mass=True, **options),
    "NUTS inside": lambda **options: ReplicaExchange(
        NUTS(target(), **options), inverse_temperatures=(1.0, 0.5)
    ),
}


def kept_of(kernel, options, crash=None):
    mcmc = mcmc_of(crash=crash)
    mcmc.kernel = KEPT[kernel](**options)
    return mcmc


@pytest.mark.parametrize("kernel", KEPT)
def test_chains_that_were_saved_before_acceptance_was_eased_go_on_as_they_were(kernel):
    whole = kept_of(kernel, FORMER)
    run(whole)
    saved = whole.state_dict()
    former, present, eased = (kept_of(kernel, options) for options in (FORMER, {}, {}))
    for mcmc in (former, present):
        mcmc.load_state_dict(saved)
    assert everything(run(present)) == everything(run(former)) != everything(whole.draws)
    # Otherwise than in chains that begin now.
    run(eased)
    assert len(eased.state_dict()["chains"][0]) > len(saved["chains"][0])
    assert [len(x) for x in present.state_dict()["chains"]] == [len(x) for x in saved["chains"]]


@pytest.mark.parametrize("kernel", KEPT)
@pytest.mark.parametrize("crash", [60, 160])
def test_a_run_that_broke_off_before_acceptance_was_eased_goes_on_as_it_was(
    kernel, crash, tmp_path
):
    expected = everything(run(kept_of(kernel, FORMER)))
    with pytest.raises(Crash):
        run(kept_of(kernel, FORMER, crash), checkpoint=tmp_path, checkpoint_every=ALWAYS)
    assert everything(run(kept_of(kernel, {}), checkpoint=tmp_path)) == expected


def steps_in(folder):
    return [int(path.name[5:-5]) for path in folder.glob("*.ckpt")] if folder.exists() else []
