"""`Checkpoint`: what is written, what is kept, what is read when files fail."""

import os
import signal

import numpy as np
import pytest

import probtorch
from probtorch.core.rng import Generator, default_generator
from probtorch.distributions import Normal, constraints
from probtorch.effects import param, plate, sample
from probtorch.errors import ArgumentError, FileError
from probtorch.infer import SVI, AutoNormal, Checkpoint, CheckpointWarning, Trace_ELBO
from probtorch.nn import BatchNorm1d, Dropout, Linear, Sequential
from probtorch.optim import SGD, Adam, PyroLRScheduler
from probtorch.optim.lr_scheduler import ExponentialLR, StepLR
from probtorch.serialization import load
from probtorch.tensor import tensor
from probtorch.utils.data import DataLoader, TensorDataset
from tests.infer.svi.programs import DATA, normal_guide, normal_model

X = np.random.default_rng(0).normal(size=(50, 3)).astype("f4")
Y = (X @ np.array([1.0, -2.0, 0.5])).astype("f4")


class Stop(Exception):
    """Ends a run in the middle, as a crash does."""


class Counter:
    """Something with a state."""

    def __init__(self, count=0):
        self.count = count

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


def steps_in(folder):
    return sorted(int(p.name[5:14]) for p in folder.iterdir() if p.suffix == ".ckpt")


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


# ------------------------------------------------------------------------------------- the folder


def test_the_newest_files_are_kept_and_read(tmp_path):
    counter = Counter()
    run = Checkpoint(tmp_path / "a" / "b", {"counter": counter}, every=10, keep=3)
    assert run.restore() == (0, None)
    for step in range(1, 46):
        counter.count = 2 * step
        assert run.update(step, lambda step=step: {"step": step}) == (step % 10 == 0)
    assert steps_in(tmp_path / "a" / "b") == [20, 30, 40]
    other = Counter()
    found = Checkpoint(tmp_path / "a" / "b", {"counter": other}).restore()
    assert found == (40, {"step": 40})
    assert other.count == 80
    assert repr(run) == f"Checkpoint('{tmp_path / 'a' / 'b'}', every=10, at step 40)"


def test_the_files_are_those_of_save(tmp_path):
    Checkpoint(tmp_path, {"counter": Counter(3)}).save(7, [1.0])
    state = load(tmp_path / "step-000000007.ckpt")
    assert state["objects"] == {"counter": {"count": 3}}
    assert (state["step"], state["values"]) == (7, [1.0])


def test_generators_come_back(tmp_path):
    generator = Generator(5)
    generator.advance(10)
    default_generator.manual_seed(3)
    run = Checkpoint(tmp_path, {"generator": generator})
    run.save(1)
    states = generator.get_state(), default_generator.get_state()
    generator.advance(7)
    default_generator.manual_seed(4)
    run.restore()
    assert (generator.get_state(), default_generator.get_state()) == states


def test_a_damaged_file_gives_way_to_the_one_before(tmp_path):
    counter = Counter()
    run = Checkpoint(tmp_path, {"counter": counter})
    for step in (1, 2):
        counter.count = step
        run.save(step)
    flip(tmp_path / "step-000000002.ckpt")
    with pytest.warns(
        CheckpointWarning, match="step-000000002.ckpt is damaged: going on from"
    ) as w:
        assert run.restore().step == 1
    assert "checksum" in str(w[0].message)
    assert w[0].filename == __file__
    assert counter.count == 1
    # It is out of the way, and there for whoever wants to look.
    assert steps_in(tmp_path) == [1]
    assert (tmp_path / "step-000000002.ckpt.damaged").exists()
    assert run.restore().step == 1


def test_a_folder_without_a_whole_file_does_not_begin_anew(tmp_path):
    run = Checkpoint(tmp_path)
    for step in (1, 2):
        flip(run.save(step))
    for _ in range(2):
        with pytest.raises(FileError, match="one checkpoint that is whole") as raised:
            run.restore()
        assert "2 that are not" in raised.value.got


def test_unfinished_files_are_cleared_away(tmp_path):
    (tmp_path / ".step-000000001.ckpt.0123456789abcdef.tmp").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("mine")
    Checkpoint(tmp_path).restore()
    assert os.listdir(tmp_path) == ["notes.txt"]


def test_resume_false_refuses_what_is_there(tmp_path):
    Checkpoint(tmp_path, resume=False).restore()
    Checkpoint(tmp_path).save(5)
    with pytest.raises(ArgumentError, match="step-000000005"):
        Checkpoint(tmp_path, resume=False).restore()


def test_a_checkpoint_of_other_objects_is_refused(tmp_path):
    Checkpoint(tmp_path, {"net": Counter()}).save(5)
    with pytest.raises(ArgumentError, match="states of 'net'"):
        Checkpoint(tmp_path, {"model": Counter()}).restore()


def test_objects_without_a_state_are_refused(tmp_path):
    with pytest.raises(ArgumentError, match="object 'losses'"):
        Checkpoint(tmp_path, {"losses": []})


@pytest.mark.parametrize("options", [{"every": 0}, {"keep": 0}, {"every": True}, {"keep": 1.5}])
def test_counts_that_are_none_are_refused(options, tmp_path):
    with pytest.raises(ArgumentError, match="an integer of at least 1"):
        Checkpoint(tmp_path, **options)


def test_a_file_in_place_of_the_folder_is_named(tmp_path):
    (tmp_path / "x").write_text("mine")
    for path in (tmp_path / "x", tmp_path / "x" / "y"):
        with pytest.raises(FileError, match="folder") as raised:
            Checkpoint(path).restore()
        assert str(path) in raised.value.subject


def no_room(*args):
    raise OSError(28, "No space left on device")


def test_a_folder_that_cannot_be_written_to_is_noticed_before_the_first_step(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", no_room)
    with pytest.raises(FileError, match="No space left"):
        Checkpoint(tmp_path).restore()


def test_a_failed_write_is_a_warning_and_keeps_the_files_before(tmp_path, monkeypatch):
    run = Checkpoint(tmp_path, every=1)
    run.save(1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_room)
        with pytest.warns(CheckpointWarning, match="no checkpoint at step 2") as warned:
            assert not run.update(2)
        assert str(tmp_path) in str(warned[0].message)
        assert "No space left" in str(warned[0].message)
        with pytest.raises(FileError, match="No space left"):
            run.save(2)
        assert not run.update(3)  # and nothing is said a second time
    assert steps_in(tmp_path) == [1]
    with pytest.warns(CheckpointWarning, match="from step 4 on; 2 before it could not"):
        assert run.update(4)
    assert run.update(5)
    assert steps_in(tmp_path) == [4, 5]


# ------------------------------------------------------------------------------------- own loops


def train(folder, until, stop=None):
    """Train a net with dropout in a loop of one's own; `stop` ends it there as a crash would."""
    probtorch.manual_seed(11)
    net = Sequential(Linear(3, 8), BatchNorm1d(8), Dropout(0.3), Linear(8, 1))
    optimizer = Adam(net.parameters(), lr=0.05)
    scheduler = StepLR(optimizer, step_size=3, gamma=0.5)
    loader = DataLoader(TensorDataset(tensor(X), tensor(Y)), batch_size=16, shuffle=True)
    objects = {"net": net, "optimizer": optimizer, "scheduler": scheduler, "loader": loader}
    run = Checkpoint(folder, objects, every=3)
    step, losses = run.restore()
    losses = losses or []
    while step < until:
        for x, y in loader:
            loss = ((net(x).squeeze(-1) - y) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            step += 1
            if step % 4 == 0:
                scheduler.step()
            run.update(step, losses)
            if step == stop:
                raise Stop
            if step == until:
                break
    state = {n: x.numpy().tobytes() for n, x in net.state_dict().items()}
    return losses, state, default_generator.get_state()


def test_a_loop_of_ones_own_goes_on_bit_for_bit(tmp_path):
    expected = train(tmp_path / "whole", 30)
    for stop in (1, 4, 8, 12, 13, 25):
        with pytest.raises(Stop):
            train(tmp_path / "parts", 30, stop)
    assert train(tmp_path / "parts", 30) == expected


# ------------------------------------------------------------------------------------- SVI


def regression(loader, scale=1.0):
    w = sample("w", Normal(tensor(np.zeros(3)), 1.0).to_event(1))
    b = param("b", 0.0)
    with plate("rows", loader) as (x, y):
        sample("y", Normal((x * w).sum(-1) + b, scale), obs=y)


def fit(folder, num_steps, stop=None, own=None, **options):
    """SVI on minibatches with a schedule; `stop` ends it there as a crash would."""
    probtorch.manual_seed(7)
    schedule = {"optimizer": Adam, "optim_args": {"lr": 0.05}, "gamma": 0.98}
    optimizer = PyroLRScheduler(ExponentialLR, schedule)
    generator = Generator(own) if own is not None else None
    loader = DataLoader(
        TensorDataset(tensor(X), tensor(Y)), batch_size=20, shuffle=True, generator=generator
    )
    svi = SVI(regression, AutoNormal(regression), optimizer, seed=own)

    def callback(step, loss):
        optimizer.step()
        if step + 1 == stop:
            raise Stop

    result = svi.run(
        num_steps, loader, scale=0.5, callback=callback, progress_bar=False,
        checkpoint=folder, checkpoint_every=None if folder is None else 7, **options,
    )  # fmt: skip
    params = {n: x.numpy().tobytes() for n, x in result.params.items()}
    return result.losses.tolist(), params, default_generator.get_state()


@pytest.mark.parametrize("own", [None, 5], ids=["default generator", "generators of their own"])
def test_minibatches_schedule_and_draws_go_on_bit_for_bit(own, tmp_path):
    expected = fit(None, 40, own=own)
    assert len(set(expected[0])) == 40
    for stop in (3, 9, 16, 22, 37):
        with pytest.raises(Stop):
            fit(tmp_path, 40, stop, own=own)
    assert fit(tmp_path, 40, own=own) == expected
    assert steps_in(tmp_path) == [35, 40]
    # There is nothing left to do, and everything is as it was at the end.
    assert fit(tmp_path, 40, own=own) == expected
    assert fit(tmp_path, 25, own=own) == expected
    longer = fit(tmp_path, 60, own=own)
    assert longer == fit(None, 60, own=own)


def plain(folder, num_steps, seed=1, **options):
    svi = SVI(normal_model, normal_guide, Adam({"lr": 0.05}), seed=seed)
    return svi.run(num_steps, DATA, progress_bar=False, checkpoint=folder, **options)


def test_a_run_without_callback_goes_on_bit_for_bit(tmp_path):
    whole = plain(None, 500)
    part = plain(tmp_path, 230, checkpoint_every=100)
    assert steps_in(tmp_path) == [200, 230]
    np.testing.assert_array_equal(part.losses, whole.losses[:230])
    rest = plain(tmp_path, 500, checkpoint_every=100)
    np.testing.assert_array_equal(rest.losses, whole.losses)
    for name, value in whole.params.items():
        assert rest.params[name].numpy() == value.numpy()
    assert rest.svi.num_steps == 500
    assert rest.seconds > part.seconds


def test_a_checkpoint_changes_nothing_in_the_run(tmp_path):
    np.testing.assert_array_equal(
        plain(tmp_path, 100, checkpoint_every=9).losses, plain(None, 100).losses
    )


def test_ctrl_c_writes_a_last_checkpoint(tmp_path):
    def interrupt(step, loss):
        if step == 12:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        part = plain(tmp_path, 100, callback=interrupt)
    finally:
        signal.signal(signal.SIGINT, before)
    assert part.interrupted
    assert steps_in(tmp_path) == [13]
    rest = plain(tmp_path, 30)
    assert not rest.interrupted
    np.testing.assert_array_equal(rest.losses, plain(None, 30).losses)


def test_a_run_that_its_callback_ended_stays_ended(tmp_path):
    first = plain(tmp_path, 100, callback=lambda step, loss: step == 4)
    assert len(first.losses) == 5
    again = plain(tmp_path, 100, callback=lambda step, loss: step == 4)
    np.testing.assert_array_equal(again.losses, first.losses)


def test_a_run_that_fails_leaves_the_checkpoint_before_it(tmp_path):
    def crash(step, loss):
        if step == 150:
            raise Stop

    with pytest.raises(Stop):
        plain(tmp_path, 300, callback=crash)
    assert steps_in(tmp_path) == [100]


def test_a_full_disk_does_not_end_the_run(tmp_path, monkeypatch):
    def fill(step, loss):
        if step == 15:
            monkeypatch.setattr(os, "fsync", no_room)

    with pytest.warns(CheckpointWarning, match="No space left") as warned:
        result = plain(tmp_path, 30, checkpoint_every=10, callback=fill)
    assert len(warned) == 1
    assert steps_in(tmp_path) == [10]
    np.testing.assert_array_equal(result.losses, plain(None, 30).losses)


def coin(prior=1.0, data=None):
    def model(y=None):
        p = sample("p", probtorch.distributions.Beta(prior, 1.0))
        with plate("toss", 4):
            sample("y", probtorch.distributions.Bernoulli(p), obs=y if data is None else data)

    return model


def toss(folder, num_steps=20, y=(1.0, 1.0, 0.0, 1.0), seed=0, lr=0.05, prior=1.0, **options):
    model = options.pop("model", None) or coin(prior)
    optim = options.pop("optim", None) or Adam({"lr": lr})
    svi = SVI(model, AutoNormal(model), optim, options.pop("loss", None), seed=seed)
    args = () if y is None else (tensor(y),)
    return svi.run(num_steps, *args, progress_bar=False, checkpoint=folder, **options)


OTHERS = {
    "data": ({"y": (1.0, 0.0, 0.0, 1.0)}, r"other data \(args\[0\]\)"),
    "a prior": ({"prior": 2.0}, "another model or other data .site 'p'"),
    "a seed": ({"seed": 1}, "another seed .1, saved was 0"),
    "no seed": ({"seed": None}, "another seed .none, saved was 0"),
    "a learning rate": ({"lr": 0.1}, r"another lr .0\.1, saved was 0\.05"),
    "an optimizer": ({"optim": SGD({"lr": 0.05})}, "another optimizer"),
    "an objective": ({"loss": Trace_ELBO(num_particles=2)}, "another num_particles .2"),
}


@pytest.mark.parametrize("num_steps", [20, 50], ids=["finished", "unfinished"])
@pytest.mark.parametrize("what", OTHERS)
def test_a_folder_of_a_run_with_another_part_is_refused(what, num_steps, tmp_path):
    changed, message = OTHERS[what]
    first = toss(tmp_path)
    with pytest.raises(ArgumentError, match=message) as caught:
        toss(tmp_path, num_steps, **changed)
    assert "choose another folder" in str(caught.value)
    # Nothing was harmed.
    again = toss(tmp_path, 50)
    assert again.losses[:20].tolist() == first.losses.tolist()
    np.testing.assert_array_equal(again.losses, toss(None, 50).losses)


def beta_guide(shift, family=probtorch.distributions.Beta):
    def guide(y=None):
        a, b = (probtorch.param(n, tensor(1.0), constraint=constraints.positive) for n in "ab")
        sample("p", family(a + shift, b))

    return guide


@pytest.mark.parametrize(
    "other",
    [beta_guide(1.0), beta_guide(0.0, lambda a, b: probtorch.distributions.Uniform(0.0 * a, 1.0))],
    ids=["with other numbers", "of another family"],
)
def test_another_guide_with_the_same_parameters_is_refused(other, tmp_path):
    def run(guide, num_steps):
        svi = SVI(coin(), guide, Adam({"lr": 0.05}), seed=0)
        y = tensor([1.0, 1.0, 0.0, 1.0])
        return svi.run(num_steps, y, progress_bar=False, checkpoint=tmp_path)

    run(beta_guide(0.0), 20)
    for num_steps in (20, 30):
        with pytest.raises(ArgumentError, match=r"another guide \(site 'p': log density"):
            run(other, num_steps)
    assert len(run(beta_guide(0.0), 30).losses) == 30


def test_other_data_in_a_closure_are_refused(tmp_path):
    data = tensor([1.0, 1.0, 0.0, 1.0])
    toss(tmp_path, y=None, model=coin(data=data))
    toss(tmp_path, y=None, model=coin(data=data.clone()))
    with pytest.raises(ArgumentError, match=r"other data .observed at site 'y'"):
        toss(tmp_path, y=None, model=coin(data=1.0 - data))


def test_other_covariates_and_other_rows_of_a_loader_are_refused(tmp_path):
    def run(folder, x, y):
        loader = DataLoader(TensorDataset(tensor(x), tensor(y)), batch_size=8, shuffle=True)

        def model(loader=loader):
            b = sample("b", Normal(0.0, 1.0))
            with plate("rows", loader) as (x, y):
                sample("y", Normal(b * x[:, 0], 1.0), obs=y)

        probtorch.manual_seed(0)
        svi = SVI(model, AutoNormal(model), Adam({"lr": 0.1}), seed=0)
        return svi.run(12, progress_bar=False, checkpoint=folder)

    first = run(tmp_path, X, Y)
    np.testing.assert_array_equal(run(tmp_path, X, Y).losses, first.losses)
    np.testing.assert_array_equal(run(None, X, Y).losses, first.losses)
    with pytest.raises(ArgumentError, match=r"another model or other data .site 'y'"):
        run(tmp_path, X + 0.1, Y)
    with pytest.raises(ArgumentError, match=r"other data .observed at site 'y'"):
        run(tmp_path, X, Y + 0.1)


def test_a_model_with_draws_of_its_own_goes_on(tmp_path):
    rng = np.random.default_rng(0)
    data = rng.normal(size=40)

    def model():
        b = sample("b", Normal(0.0, 1.0))
        sample("y", Normal(b, 1.0).expand([5]).to_event(1), obs=tensor(rng.choice(data, 5)))

    for steps in (5, 10):
        svi = SVI(model, AutoNormal(model), Adam({"lr": 0.1}), seed=0)
        assert len(svi.run(steps, progress_bar=False, checkpoint=tmp_path).losses) == steps


def test_a_folder_of_an_earlier_release_goes_on_with_a_warning(tmp_path):
    toss(tmp_path)
    (path,) = Checkpoint(tmp_path).files()
    state = load(path)
    del state["values"]["run"]
    probtorch.save(state, path)
    with pytest.warns(CheckpointWarning, match="earlier release"):
        assert len(toss(tmp_path, 30).losses) == 30


def test_modules_among_the_arguments_are_part_of_the_state(tmp_path):
    def run(folder, steps):
        probtorch.manual_seed(2)
        net = Sequential(Linear(3, 4), BatchNorm1d(4), Dropout(0.5), Linear(4, 1))

        def model(net, x, y):
            with plate("rows", len(x)):
                sample("y", Normal(net(x).squeeze(-1), 1.0), obs=y)

        svi = SVI(model, lambda *args: None, Adam(net.parameters(), lr=0.01), seed=0)
        result = svi.run(steps, net, tensor(X), tensor(Y), progress_bar=False, checkpoint=folder)
        return result.losses.tolist(), {n: x.numpy().tobytes() for n, x in net.state_dict().items()}

    run(tmp_path, 10)
    assert run(tmp_path, 25) == run(None, 25)


def test_a_checkpoint_may_bring_objects_of_its_own(tmp_path):
    counter = Counter(4)
    plain(Checkpoint(tmp_path, {"counter": counter}, every=5, keep=3), 20)
    assert steps_in(tmp_path) == [10, 15, 20]
    counter.count = 0
    plain(Checkpoint(tmp_path, {"counter": counter}), 20)
    assert counter.count == 4


def test_tensors_go_where_they_are_sent(tmp_path):
    seen = []

    def stay(x, device):
        seen.append(device)
        return x

    plain(tmp_path, 5)
    plain(Checkpoint(tmp_path, map_location=stay), 10)
    assert set(seen) == {"cpu"}


def test_arguments_that_contradict_each_other_are_refused(tmp_path):
    with pytest.raises(ArgumentError, match="checkpoint_every"):
        plain(None, 5, checkpoint_every=3)
    with pytest.raises(ArgumentError, match="checkpoint_every"):
        plain(Checkpoint(tmp_path), 5, checkpoint_every=3)
    with pytest.raises(ArgumentError, match="'svi'"):
        plain(Checkpoint(tmp_path, {"svi": Counter()}), 5)
