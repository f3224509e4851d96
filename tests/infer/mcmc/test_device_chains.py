"""Walkers on a GPU: whole chunks of transitions as one program there, through a fake CuPy.

Draws are compared with those of the CPU, which other tests compare with the truth. Where there is a
GPU, the same tests run on it, marked `gpu`, those aside that count.
"""

import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch.compiler.paths import CompileWarning
from probtorch.errors import ArgumentError, CompileError, DeviceError
from probtorch.infer import MCMC, MEADS, NUTS, SNAPERHMC, ChEESHMC, Target
from probtorch.infer.mcmc.chunk import DeviceSeat
from tests.backends.fake_cupy import install
from tests.compiler.gpu_programs import SEAMS, put_in_place

COVARIANCE = np.array([[1.0, 0.8, 0.0], [0.8, 1.0, 0.3], [0.0, 0.3, 2.0]])
PRECISION = probtorch.tensor(np.linalg.inv(COVARIANCE))
Y = probtorch.tensor([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
SIGMA = probtorch.tensor([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


@pytest.fixture(autouse=True, params=SEAMS)
def seam(request, monkeypatch):
    return put_in_place(request.param, monkeypatch)


@pytest.fixture
def copies(seam):
    if seam is None:
        pytest.skip("only the fake counts")
    return seam


def gaussian():
    return Target.from_density(lambda q: -0.5 * (q @ (PRECISION @ q)), dim=3)


def schools(y, sigma):
    mu = probtorch.sample("mu", dist.Normal(0.0, 5.0))
    tau = probtorch.sample("tau", dist.HalfCauchy(5.0))
    with probtorch.plate("school", 8):
        z = probtorch.sample("z", dist.Normal(0.0, 1.0))
        probtorch.sample("y", dist.Normal(mu + tau * z, sigma), obs=y)


def branching(y, sigma):
    mu = probtorch.sample("mu", dist.Normal(0.0, 5.0))
    if mu > 0.0:
        sigma = 2.0 * sigma
    with probtorch.plate("school", 8):
        probtorch.sample("y", dist.Normal(mu, sigma), obs=y)


def of_bessel(y, sigma):
    mu = probtorch.sample("mu", dist.Normal(0.0, 1.0))
    probtorch.factor("f", probtorch.special.iv(2.5, 1.0 + mu * mu).log())


def process(y, sigma):
    """A Gaussian process, whose matrix is not positive definite where the length is very large."""
    length = probtorch.sample("length", dist.LogNormal(0.0, 1.0))
    x = probtorch.arange(8.0).reshape(-1, 1)
    kernel = probtorch.exp(-0.5 * ((x - x.T) / length) ** 2)
    probtorch.sample("y", dist.MultivariateNormal(probtorch.zeros(8), kernel), obs=0.1 * y)


def sampler(kernel, **settings):
    settings = {"num_samples": 12, "warmup_steps": 20, "seed": 3, "progress_bar": False} | settings
    mcmc = MCMC(kernel, **settings)
    mcmc.diagnose = False
    return mcmc


@pytest.fixture
def seats(monkeypatch):
    """The calls on a GPU, counted."""
    found = []
    run = DeviceSeat.run
    monkeypatch.setattr(DeviceSeat, "run", lambda *args, **kw: found.append(1) or run(*args, **kw))
    return found


def check_same(ours, theirs):
    # Rounding differs, and grows along trajectories.
    for name, x in theirs.posterior.items():
        np.testing.assert_allclose(ours.posterior[name], x, rtol=1e-7, atol=1e-9)
    for name, x in theirs.sample_stats.items():
        np.testing.assert_allclose(ours.sample_stats[name], x, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("kind", "model"),
    [(ChEESHMC, "gaussian"), (ChEESHMC, "schools"), (SNAPERHMC, "gaussian"), (MEADS, "schools")],
    ids=lambda x: x if isinstance(x, str) else x.__name__,
)
def test_walkers_on_a_gpu_draw_what_they_draw_on_the_cpu(kind, model, seats):
    model, args = (gaussian(), ()) if model == "gaussian" else (schools, (Y, SIGMA))
    ours = sampler(kind(model, walkers=8), device="cuda").run(*args)
    assert seats
    check_same(ours, sampler(kind(model, walkers=8)).run(*args))
    assert not ours.sample_stats["diverging"].all()


def test_a_call_sends_what_it_drew_to_the_host_and_nothing_else(copies, monkeypatch):
    trips = []
    run = DeviceSeat.run

    def counted(self, count, search, adapt, *, grads):
        before = np.array([copies.to_device, copies.to_host])
        found = run(self, count, search, adapt, grads=grads)
        trips.append((grads, *(np.array([copies.to_device, copies.to_host]) - before).tolist()))
        return found

    monkeypatch.setattr(DeviceSeat, "run", counted)
    sampler(ChEESHMC(gaussian(), walkers=8), device="cuda").run()
    # The plan of three numbers; positions, seven columns of the info, the status; and gradients
    # while the metric learns from them.
    assert {(True, 3, 10), (False, 3, 9)} == set(trips)


def test_a_run_goes_on_from_where_it_stands_on_the_gpu():
    kernel = ChEESHMC(gaussian(), walkers=8)
    in_parts = sampler(kernel, num_samples=6, device="cuda")
    in_parts.run()
    check_same(in_parts.more(6), sampler(kernel, device="cuda").run())


def test_arguments_of_the_model_on_a_gpu_bring_the_walkers_there(seats):
    kernel = ChEESHMC(schools, walkers=8)
    ours = sampler(kernel, num_chains=2).run(Y.to("cuda"), sigma=SIGMA.to("cuda"))
    assert seats
    check_same(ours, sampler(kernel, num_chains=2).run(Y, SIGMA))


@pytest.mark.parametrize("kernel", [ChEESHMC, NUTS])
def test_density_of_tensors_on_a_gpu_is_sampled(kernel, seats):
    there = PRECISION.to("cuda")
    target = Target.from_density(lambda q: -0.5 * (q @ (there @ q)), dim=3)
    given = {"walkers": 8} if kernel is ChEESHMC else {}
    ours = sampler(kernel(target, **given)).run()
    assert bool(seats) == (kernel is ChEESHMC)
    check_same(ours, sampler(kernel(gaussian(), **given)).run())


def test_walker_at_an_indefinite_matrix_is_rejected_and_the_others_go_on(seats):
    start = np.linspace(-1.0, 0.0, 8).reshape(8, 1)
    kernel = ChEESHMC(process, walkers=8, step_size=3.0, trajectory_length=9.0)
    given = {"initial_params": start, "warmup_steps": 0, "num_samples": 6}
    ours = sampler(kernel, device="cuda", **given).run(Y, SIGMA)
    assert seats
    diverging = ours.sample_stats["diverging"]
    assert diverging.any() and not diverging.all()
    check_same(ours, sampler(kernel, **given).run(Y, SIGMA))


# ---------------------------------------------------------------------------------- what is refused


def test_branch_on_a_value_is_named_with_its_line():
    mcmc = sampler(ChEESHMC(branching, walkers=8), device="cuda")
    with pytest.raises(
        CompileError, match=r"a branch on a value at .*test_device_chains\.py"
    ) as info:
        mcmc.run(Y, SIGMA)
    assert "where(...)" in str(info.value)


def test_op_without_a_form_on_a_gpu_is_named():
    with pytest.raises(CompileError, match=r"of_bessel\n.*\n.*iv"):
        sampler(ChEESHMC(of_bessel, walkers=8), device="cuda").run(Y, SIGMA)


def test_walkers_that_cannot_go_where_the_data_are_stay_and_say_so(seats):
    mcmc = sampler(ChEESHMC(branching, walkers=8))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        ours = mcmc.run(Y.to("cuda"), SIGMA.to("cuda"))
    (warning,) = [w for w in told if w.category is CompileWarning]
    assert "chains stay on the CPU" in str(warning.message) and warning.filename == __file__
    assert not seats
    check_same(ours, sampler(ChEESHMC(branching, walkers=8)).run(Y, SIGMA))


def test_a_kernel_of_single_chains_has_no_use_for_a_gpu():
    with pytest.raises(ArgumentError, match=r"NUTS, device='cuda'") as info:
        sampler(NUTS(gaussian()), device="cuda")
    assert "ChEESHMC" in str(info.value)


def test_a_gpu_and_an_executor_are_not_both_given():
    with ThreadPoolExecutor(1) as pool, pytest.raises(ArgumentError, match=r"got: +both"):
        sampler(ChEESHMC(gaussian(), walkers=8), device="cuda", executor=pool)


def test_a_gpu_that_is_not_there_is_an_error_before_the_run(copies, monkeypatch):
    install(monkeypatch, available=False)
    with pytest.raises(DeviceError):
        sampler(ChEESHMC(gaussian(), walkers=8), device="cuda")
