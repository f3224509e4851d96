"""Runs of SVGD and SteinVI that are broken off anywhere go on as if they never had been."""

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch.core.rng import Generator, default_generator
from probtorch.errors import ArgumentError
from probtorch.infer import (
    ASVGD,
    SVGD,
    AutoNormal,
    Checkpoint,
    IMQKernel,
    RandomFeatureKernel,
    RBFKernel,
    SteinVI,
)
from probtorch.optim import Adagrad, Adam, PyroLRScheduler
from probtorch.optim.lr_scheduler import ExponentialLR
from probtorch.serialization import load
from probtorch.tensor import tensor
from tests.infer.broken_runs import broken_off

Y = tensor([1.0, 0.2, 2.3, -0.5])
STEPS = 8


def model(y, prior=1.0):
    mu = probtorch.sample("mu", dist.Normal(0.0, prior))
    sd = probtorch.sample("sd", dist.HalfNormal(2.0))
    with probtorch.plate("row", len(y)):
        probtorch.sample("y", dist.Normal(mu, sd), obs=y)


def wider(y):
    model(y, 3.0)


def other_sites(y):
    mean = probtorch.sample("mean", dist.Normal(0.0, 1.0))
    with probtorch.plate("row", len(y)):
        probtorch.sample("y", dist.Normal(mean, 1.0), obs=y)


def noisy(y):
    """With draws that are no site's, from the default generator whatever the seed."""
    model(y + 0.1 * probtorch.randn(4, generator=default_generator))


def handwritten(y):
    loc = probtorch.param("loc", tensor(0.1))
    scale = probtorch.param("scale", tensor(0.7), constraint=dist.constraints.positive)
    probtorch.sample("mu", dist.Normal(loc, 0.5))
    probtorch.sample("sd", dist.LogNormal(0.0, scale))


def svgd(seed=1, of=model, lr=0.1, kernel=None, num_particles=6, kind=SVGD, **options):
    kernel = kernel or RBFKernel()
    return kind(of, kernel, Adagrad({"lr": lr}), num_particles, seed=seed, **options)


def mixture(seed=1, of=model, lr=0.1, num=3, guide=None, optim=None, **options):
    guide, optim = guide or AutoNormal(of), optim or Adam({"lr": lr})
    return SteinVI(of, guide, optim, RBFKernel(), num, 2, seed=seed, **options)


def schedule():
    return PyroLRScheduler(
        ExponentialLR, {"optimizer": Adam, "optim_args": {"lr": 0.1}, "gamma": 0.8}
    )


# What begins anew in each process.
KINDS = {
    "SVGD": svgd,
    "SVGD with a class": lambda: SVGD(model, RBFKernel(), Adam, 6, seed=1, lr=0.1),
    "SVGD from a generator": lambda: svgd(Generator(3), kernel=RandomFeatureKernel()),
    "SVGD without a seed": lambda: svgd(None),
    "ASVGD": lambda: svgd(kind=ASVGD, num_cycles=2),
    "a class made of SVGD": lambda: svgd(kind=Derived),
    "SteinVI": mixture,
    "SteinVI with a class": lambda: SteinVI(
        model, AutoNormal(model), Adam, RBFKernel(), 3, 2, seed=1, lr=0.1
    ),
    "SteinVI by a schedule": lambda: mixture(optim=schedule()),
    "SteinVI with shared parameters": lambda: mixture(
        guide=handwritten, non_mixture_guide_params_fn=lambda name: name == "scale"
    ),
    "SteinVI from a generator": lambda: mixture(Generator(3)),
    "SteinVI of a model with draws of its own": lambda: mixture(of=noisy, guide=AutoNormal(model)),
    "SteinVI without a seed": lambda: mixture(None),
}


class Derived(SVGD):
    """Somebody's own."""


def plain(x):
    """A state as what can be compared bit for bit, whatever the order of its names."""
    if isinstance(x, dict):
        return {name: plain(value) for name, value in x.items()}
    if isinstance(x, (list, tuple)):
        return [plain(value) for value in x]
    return x.numpy().tobytes() if isinstance(x, probtorch.Tensor) else repr(x)


def run(make, num_steps=STEPS, data=Y, **options):
    """A run as of a new process, and all it left behind, as bytes."""
    probtorch.manual_seed(7)
    made = make()
    result = made.run(num_steps, data, progress_bar=False, **options)
    found = {f"leaf {n}": x.array.tobytes() for n, x in made._updater.parameters.items()}
    found["optimizer"] = plain(made._updater.take()["optimizer"])
    found["generators"] = made._seeded and made._seeded.get_state(), default_generator.get_state()
    found["num_steps"] = made.num_steps
    if isinstance(made, SteinVI):
        found["losses"] = result.losses.tobytes()
        found |= {n: x.numpy().tobytes() for n, x in result.params.items()}
    else:
        found |= {n: np.asarray(x).tobytes() for n, x in result.posterior.items()}
        found["lp"] = result.sample_stats["lp"].tobytes()
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_is_broken_off_again_and_again_ends_as_one_that_never_was(
    kind, tmp_path, monkeypatch
):
    make = KINDS[kind]
    whole, saving = run(make), {"checkpoint": tmp_path, "checkpoint_every": 0.0}
    for after in (1, 2, 3):
        assert broken_off(lambda: run(make, **saving), after, monkeypatch)[1]
    assert load(Checkpoint(tmp_path).newest())["values"]["run"]["done"] == 1 + 2 + 3
    assert run(make, **saving) == whole


@pytest.mark.parametrize("kind", ["SVGD", "ASVGD", "SteinVI"])
def test_a_run_that_is_complete_takes_no_step(kind, tmp_path, monkeypatch):
    make = KINDS[kind]
    first = run(make, checkpoint=Checkpoint(tmp_path))
    files = sorted(p.name for p in tmp_path.iterdir() if p.suffix == ".ckpt")
    monkeypatch.setattr(type(make()), "step", None)
    assert run(make, checkpoint=tmp_path) == first
    assert sorted(p.name for p in tmp_path.iterdir() if p.suffix == ".ckpt") == files


@pytest.mark.parametrize("kind", ["SVGD", "SteinVI"])
def test_a_run_that_is_complete_can_be_made_longer(kind, tmp_path):
    run(KINDS[kind], 3, checkpoint=tmp_path)
    assert run(KINDS[kind], checkpoint=tmp_path) == run(KINDS[kind])


def test_a_run_that_its_callback_ended_stays_ended(tmp_path):
    first = run(mixture, callback=lambda step, loss: step == 2, checkpoint=tmp_path)
    assert first["num_steps"] == 3
    assert run(mixture, checkpoint=tmp_path) == first


# What is another run, by what the error says of it.
OTHERS = {
    "SVGD": (
        svgd,
        {
            "seed=2, 0 .saved was 1, 0": lambda: svgd(2),
            "lr=0.2 .saved was 0.1": lambda: svgd(lr=0.2),
            "num_particles=7 .saved was 6": lambda: svgd(num_particles=7),
            "kernel=IMQKernel": lambda: svgd(kernel=IMQKernel()),
            "mode=multivariate": lambda: svgd(mode="multivariate"),
            "sites=": lambda: svgd(of=other_sites),
            "log density of the saved run": lambda: svgd(of=wider),
        },
    ),
    "ASVGD": (
        KINDS["ASVGD"],
        {"num_cycles=3 .saved was 2": lambda: svgd(kind=ASVGD, num_cycles=3)},
    ),
    "SteinVI": (
        mixture,
        {
            "seed=2, 0 .saved was 1, 0": lambda: mixture(2),
            "lr=0.2 .saved was 0.1": lambda: mixture(lr=0.2),
            "num_stein_particles=4 .saved was 3": lambda: mixture(num=4),
            "loss_temperature=2.0": lambda: mixture(loss_temperature=2.0),
            "params=": lambda: mixture(of=other_sites),
            "log density of the saved run": lambda: mixture(of=wider),
        },
    ),
}
CASES = [(kind, says) for kind, (_, others) in OTHERS.items() for says in others]


@pytest.mark.parametrize(("kind", "says"), CASES)
def test_a_folder_of_another_run_is_refused(kind, says, tmp_path):
    make, others = OTHERS[kind]
    run(make, checkpoint=tmp_path)
    with pytest.raises(ArgumentError, match=says) as raised:
        run(others[says], checkpoint=tmp_path)
    assert f"{kind}.run(checkpoint=" in raised.value.subject
    # It is as it was, and free for the run that it belongs to.
    assert run(make, checkpoint=tmp_path) == run(make)


@pytest.mark.parametrize("kind", OTHERS)
def test_a_folder_with_other_data_is_refused(kind, tmp_path):
    make, _ = OTHERS[kind]
    run(make, checkpoint=tmp_path)
    with pytest.raises(ArgumentError, match="data"):
        run(make, data=Y + 1.0, checkpoint=tmp_path)


def test_cycles_of_another_number_of_steps_are_refused(tmp_path):
    run(KINDS["ASVGD"], checkpoint=tmp_path)
    with pytest.raises(ArgumentError, match=r"num_steps=20 .saved was 8"):
        run(KINDS["ASVGD"], 20, checkpoint=tmp_path)
