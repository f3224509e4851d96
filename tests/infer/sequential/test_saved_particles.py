"""Runs of particles that are broken off anywhere go on as if they never had been."""

import itertools
import signal

import numpy as np
import pytest

import probtorch
from probtorch import plate, sample
from probtorch.distributions import Beta, HalfNormal, Normal, Poisson
from probtorch.errors import ArgumentError
from probtorch.infer import ABCSMC, AIS, NUTS, SMC, Checkpoint, ParticleGibbs, RandomWalk
from probtorch.infer.sequential import ais, mutation
from probtorch.infer.sequential.saved_particles import SavedParticles
from probtorch.serialization import load, save
from probtorch.tensor import tensor
from tests.infer.broken_runs import broken_off, broken_off_often

# So few particles are for the sake of speed.
pytestmark = pytest.mark.filterwarnings("ignore::probtorch.infer.SMCWarning")

Y = tensor([1.0, 0.2, 2.3, -0.5])


def model(y, scale=1.0):
    mu = sample("mu", Normal(0.0, 3.0))
    sd = sample("sd", HalfNormal(scale))
    with plate("row", len(y)):
        sample("y", Normal(mu, sd), obs=y)


@pytest.fixture
def often(monkeypatch):
    """Checkpoints at every look, and pieces of 7 particles."""
    monkeypatch.setattr(mutation.Mutation, "_piece", lambda *_: 7)
    return {"checkpoint_every": 0.0}


def up_to(end):
    """Draw how many checkpoints a run is to write: fewer than this."""
    rng = np.random.default_rng(0)
    return lambda: int(rng.integers(1, end))


def check_same(found, whole):
    assert set(found.posterior) == set(whole.posterior)
    for name, x in whole.posterior.items():
        assert found[name].tobytes() == x.tobytes(), name
    for name, x in whole.sample_stats.items():
        assert found.sample_stats[name].tobytes() == x.tobytes(), name
    without = lambda draws: {k: v for k, v in draws.attrs.items() if k != "sampling_time"}
    assert repr(without(found)) == repr(without(whole))


KINDS = {
    "until forgotten": {},
    "waste-free": {"waste_free": True, "num_steps": 5},
    "threads": {"num_threads": 3, "num_steps": 2},
}


@pytest.mark.parametrize("kind", KINDS)
def test_smc_that_is_broken_off_again_and_again_ends_as_one_that_never_was(
    kind, tmp_path, monkeypatch, often
):
    settings = {"num_threads": 1, "num_particles": 40, "seed": 3, "progress_bar": False}
    make = lambda: SMC(NUTS(model), **settings | KINDS[kind])
    whole, folder = make().run(Y), tmp_path / "run"
    run = lambda: make().run(Y, checkpoint=folder, **often)
    found, breaks = broken_off_often(run, up_to(5), monkeypatch)
    assert breaks > 1
    check_same(found, whole)
    # What has ended is read again; a run in one piece that writes is the same, too.
    check_same(make().run(Y, checkpoint=folder), whole)
    check_same(make().run(Y, checkpoint=tmp_path / "other", **often), whole)


def test_default_generator_goes_on_as_after_a_whole_run(tmp_path, monkeypatch, often):
    """A run without a seed, in which the default generator is known by a number drawn after it."""
    make = lambda: SMC(RandomWalk(model), 40, num_steps=3, num_threads=1, progress_bar=False)
    probtorch.manual_seed(5)
    whole, after = make().run(Y), probtorch.rand(3).tolist()
    probtorch.manual_seed(5)
    run = lambda: make().run(Y, checkpoint=tmp_path, **often)
    assert broken_off(run, 9, monkeypatch)[1]
    probtorch.manual_seed(99)
    check_same(run(), whole)
    assert probtorch.rand(3).tolist() == after


@pytest.mark.parametrize(
    "change, message",
    [
        ({"num_particles": 41}, r"num_particles=41 \(saved was 40\)"),
        ({"seed": 4}, r"seed=4, 0 \(saved was 3, 0\)"),
        ({"data": tensor([1.0, 0.2, 2.3, -0.4])}, r"another data \(args\[0\]\)"),
        ({"model": lambda y: model(y, 2.0)}, "log density of the saved run"),
        ({"kernel": NUTS}, r"\(saved was "),
    ],
)
def test_another_run_is_refused(change, message, tmp_path, monkeypatch, often):
    def run(model=model, kernel=RandomWalk, data=Y, **changed):
        settings = {"num_particles": 40, "num_steps": 2, "seed": 3, "num_threads": 1} | changed
        return SMC(kernel(model), **settings).run(data, checkpoint=tmp_path, **often)

    assert broken_off(run, 8, monkeypatch)[1]
    with pytest.raises(ArgumentError, match=message):
        run(**change)
    assert run().num_draws == 40


@pytest.mark.parametrize("layout", [2, None])
def test_files_of_another_layout_are_refused(layout, tmp_path):
    whole = gibbs(checkpoint=tmp_path, checkpoint_every=0.0)
    newest = Checkpoint(tmp_path).files()[0]
    state = load(newest)
    assert state["values"]["layout"] == 1
    state["values"] |= {"layout": layout, "run": {"draws": [3.0]}}
    save(state if layout else {**state, "values": 3}, newest)
    refused = f"layout {layout}" if layout else "another kind"
    with pytest.raises(ArgumentError, match=rf"(?s)ParticleGibbs.*layout 1.*{refused}.*folder"):
        gibbs(checkpoint=tmp_path)
    state |= {"format": 2}
    save(state, newest)
    with pytest.raises(ArgumentError, match=r"(?s)of format 1.*got: +format 2"):
        gibbs(checkpoint=tmp_path)
    newest.unlink()
    assert gibbs(checkpoint=tmp_path).posterior.keys() == whole.posterior.keys()


def test_engines_of_users_that_derive_from_ours_are_saved_as_these(tmp_path):
    class Own(SMC):
        pass

    class OwnGibbs(ParticleGibbs):
        pass

    make = lambda kind: kind(RandomWalk(model), 40, num_steps=2, seed=3, num_threads=1)
    check_same(make(Own).run(Y, checkpoint=tmp_path / "a"), make(SMC).run(Y))
    found = OwnGibbs(branching, 5, 4, 1, seed=2).run(Y[:2], checkpoint=tmp_path / "b")
    assert found.num_draws == 4


def test_seconds_between_checkpoints_need_a_folder():
    with pytest.raises(ArgumentError, match="no checkpoint"):
        SMC(NUTS(model)).run(Y, checkpoint_every=3.0)
    with pytest.raises(ArgumentError, match="a number of seconds"):
        SMC(NUTS(model)).run(Y, checkpoint="x", checkpoint_every="often")


def test_interrupted_particles_are_those_of_the_last_temperature(
    tmp_path, monkeypatch, capsys, often
):
    """Ctrl-C at look 30: what is kept is told of; the checkpoint goes on from there."""
    run = lambda **more: SMC(
        RandomWalk(model), 40, num_steps=4, seed=1, num_threads=1, ess_threshold=0.8
    ).run(Y, **more)
    whole = run()
    looks, update = itertools.count(1), SavedParticles.update

    def interrupting(self, *args, **kwargs):
        if next(looks) == 30:
            signal.raise_signal(signal.SIGINT)
        update(self, *args, **kwargs)

    with monkeypatch.context() as m:
        m.setattr(SavedParticles, "update", interrupting)
        found = run(checkpoint=tmp_path, **often)
    assert found.attrs["interrupted"] and not whole.attrs["interrupted"]
    assert 0.0 < found.temperatures[-1] < 1.0
    assert found.temperatures == whole.temperatures[: len(found.temperatures)]
    assert len(found.num_steps) == len(found.temperatures)
    assert "interrupted: keeping the particles of temperature" in capsys.readouterr().err
    check_same(run(checkpoint=tmp_path), whole)


def test_interrupt_before_the_first_temperature_is_raised(monkeypatch):
    looks = itertools.count()

    def interrupting(self, *args, **kwargs):
        if not next(looks):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(SavedParticles, "update", interrupting)
    with pytest.raises(KeyboardInterrupt, match="before the first temperature"):
        SMC(RandomWalk(model), 40, num_steps=4, num_threads=1).run(Y)


# -------------------------------------------------------------------------- particles with weights


def weighed(model=model, data=Y, **more):
    settings = {"num_steps": 2, "ess_threshold": 0.8, "num_threads": 1, "seed": 3}
    made = AIS(RandomWalk(model), 40, progress_bar=False, **settings)
    return made.run(data, **more)


def check_same_weights(found, whole):
    assert set(found.samples) == set(whole.samples)
    for name, x in whole.samples.items():
        assert found[name].tobytes() == x.tobytes(), name
    assert found.log_weights.tobytes() == whole.log_weights.tobytes()
    assert found.attrs == whole.attrs


@pytest.mark.filterwarnings("ignore::probtorch.infer.ImportanceWarning")
def test_ways_of_ais_that_are_broken_off_end_as_if_they_never_had_been(
    tmp_path, monkeypatch, often
):
    """Breaks fall into moves of the pilot and of the particles: pieces of 7 of 200 and of 40."""
    whole, breaks, midst, rng = weighed(), 0, set(), np.random.default_rng(0)
    while True:
        run = lambda: weighed(checkpoint=tmp_path / "run", **often)
        found, broken = broken_off(run, int(rng.integers(1, 60)), monkeypatch)
        if not broken:
            break
        breaks += 1
        saved = load(Checkpoint(tmp_path / "run").files()[0])["values"]["run"]
        midst.add((saved["ahead"], saved["pieces"] is not None))
    assert breaks > 5 and {(False, True), (True, True)} <= midst
    assert len(whole.attrs["temperatures"]) > 3
    check_same_weights(found, whole)
    check_same_weights(weighed(checkpoint=tmp_path / "run"), whole)
    with pytest.raises(ArgumentError, match=r"(?s)AIS.*log density of the saved run"):
        weighed(lambda y: model(y, 2.0), checkpoint=tmp_path / "run")
    with pytest.raises(ArgumentError, match=r"another data \(args\[0\]\)"):
        weighed(data=Y + 1.0, checkpoint=tmp_path / "run")


@pytest.mark.filterwarnings("ignore::probtorch.infer.ImportanceWarning")
def test_ais_that_is_interrupted_has_no_weights_but_goes_on(tmp_path, monkeypatch):
    looks, look = itertools.count(1), ais._Way._look

    def interrupting(self):
        if next(looks) == 8:
            signal.raise_signal(signal.SIGINT)
        look(self)

    with monkeypatch.context() as m:
        m.setattr(ais._Way, "_look", interrupting)
        with pytest.raises(KeyboardInterrupt, match="before the last temperature"):
            weighed(checkpoint=tmp_path)
    assert len(load(Checkpoint(tmp_path).files()[0])["values"]["run"]["temperatures"])
    check_same_weights(weighed(checkpoint=tmp_path), weighed())


# ------------------------------------------------------------------------- other kinds of particles


def simulator():
    loc = sample("loc", Normal(0.0, 3.0))
    sample("y", Normal(loc, 1.0).expand([5]).to_event(1))


def abc(**more):
    smc = ABCSMC(simulator, 60, epsilon=0.5, seed=2, progress_bar=False)
    return smc.run({"y": np.linspace(0.0, 2.0, 5)}, **more)


def branching(y):
    loc = sample("loc", Normal(0.0, 1.0)) if sample("coin", Beta(2.0, 2.0)) > 0.5 else tensor(1.0)
    for i, value in enumerate(y):
        loc = loc + sample(f"step_{i}", Poisson(1.0))
        sample(f"y_{i}", Normal(loc, 1.0), obs=value)


def gibbs(**more):
    made = ParticleGibbs(branching, 5, 8, 3, num_chains=2, seed=2, progress_bar=False)
    return made.run(tensor([1.0, 2.5]), **more)


@pytest.mark.parametrize("run", [abc, gibbs])
def test_other_particles_that_are_broken_off_end_as_if_they_never_had_been(
    run, tmp_path, monkeypatch
):
    whole, saving = run(), {"checkpoint": tmp_path, "checkpoint_every": 0.0}
    found, breaks = broken_off_often(lambda: run(**saving), up_to(8), monkeypatch)
    assert breaks > 2
    check_same(found, whole)
    check_same(run(**saving), whole)
    if run is gibbs:
        assert repr(found.values) == repr(whole.values)


def test_runs_until_enough_draws_that_are_broken_off_end_as_if_they_never_had_been(
    tmp_path, monkeypatch
):
    whole = gibbs(until_ess=60)
    assert whole.num_draws > 3 * gibbs().num_draws
    saving = {"checkpoint": tmp_path, "checkpoint_every": 0.0, "until_ess": 60}
    found, breaks = broken_off_often(lambda: gibbs(**saving), lambda: 17, monkeypatch)
    assert breaks > 2
    check_same(found, whole)
    check_same(gibbs(**saving), whole)


@pytest.mark.parametrize("run", [abc, gibbs])
def test_other_particles_are_kept_on_interrupt(run, monkeypatch, capsys):
    looks, update = itertools.count(1), SavedParticles.update

    def interrupting(self, *args, **kwargs):
        if next(looks) == 13:
            signal.raise_signal(signal.SIGINT)
        update(self, *args, **kwargs)

    monkeypatch.setattr(SavedParticles, "update", interrupting)
    found = run()
    assert found.attrs["interrupted"]
    assert "interrupted: keeping" in capsys.readouterr().err


def test_stages_that_are_over_end_alike_when_called_again(tmp_path):
    def run():
        smc = ABCSMC(simulator, 60, min_acceptance=0.4, seed=2, progress_bar=False)
        return smc.run({"y": np.linspace(0.0, 2.0, 5)}, checkpoint=tmp_path)

    first = run()
    assert first.attrs["acceptance_rates"][-1] < 0.4
    for _ in range(2):
        again = run()
        check_same(again, first)
        assert again.attrs["epsilons"] == first.attrs["epsilons"]


def largest(found, real):
    return abs(found - real).max(axis=1)


@pytest.mark.parametrize(
    ("then", "what"),
    [
        ({"summary": lambda data: data["y"].mean()}, "summary"),
        ({"summary": lambda data: 2.0 * data["y"]}, "summary"),
        ({"distance": largest}, "distance"),
    ],
)
def test_another_comparison_than_that_of_the_checkpoint_is_refused(then, what, tmp_path):
    def run(**given):
        smc = ABCSMC(simulator, 60, epsilon=2.0, seed=2, progress_bar=False, **given)
        return smc.run({"y": np.linspace(0.0, 2.0, 5)}, checkpoint=tmp_path)

    run()
    with pytest.raises(ArgumentError, match=f"(?s)the {what} of the saved run.*got:.*fix:"):
        run(**then)
