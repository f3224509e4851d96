"""The warm-up suite: what it counts, that peers get our density, and how results become ratios."""

import ctypes
import json

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from benchmarks import warmup, warmup_child
from benchmarks.counting import CountedDensity
from benchmarks.peers import OURS, adapter
from benchmarks.warmup_child import main, measure, parsed
from benchmarks.warmup_problems import OWN, POSTERIORS, low_rank_gaussian
from probtorch.infer import Target


def pair():
    probtorch.sample("x", dist.Normal(1.0, 2.0))
    probtorch.sample("s", dist.Gamma(2.0, 3.0))


@pytest.fixture
def density():
    return CountedDensity(Target.from_model(pair))


def pointer(array):
    return array.ctypes.data_as(ctypes.c_void_p)


# ---------------------------------------------------------------------------------- what is counted


def test_every_evaluation_is_counted_once(density):
    before = density.calls
    density.target.value_and_grad([0.1, 0.2])
    density.target.value_and_grad_many(np.zeros((70, 2)))
    density.native.native(np.zeros(2))
    native = ctypes.CFUNCTYPE(ctypes.c_double, *[ctypes.c_void_p] * 3)(density.native.function)
    q, gradient = np.array([0.1, 0.2]), np.zeros(2)
    assert native(pointer(q), pointer(gradient), density.native.address) == pytest.approx(
        density.target.value_and_grad(q)[0], rel=1e-14
    )
    assert density.calls - before == 1 + 70 + 1 + 1 + 1


def test_sampler_spends_its_leapfrog_steps_and_little_else(density):
    run = adapter(OURS).density_sampler(density, step_size=0.5, adapt_step_size=False)
    found = measure(run, density, chains=2, warmup=0, draws=200, seed=1)
    assert found["gradients"] >= 400
    # Starts, and comparisons with Python at powers of four.
    assert 2 <= found["warmup_gradients"] <= 100
    assert found["warmup"] == 0
    assert found["draws"] == 200


def test_warmup_without_a_number_is_the_default_of_the_sampler(density):
    run = adapter(OURS).density_sampler(density)
    found = measure(run, density, chains=2, warmup=None, draws=60, seed=1)
    assert (
        found["warmup"]
        == probtorch.infer.MCMC(probtorch.infer.NUTS(pair), num_samples=60).num_warmup
    )
    assert found["warmup_gradients"] > found["warmup"]


def test_function_for_nutpie_gives_density_gradient_and_status(density):
    function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_size_t, *[ctypes.c_void_p] * 4)(
        density.address_of("bench_nutpie")
    )
    q, gradient, value = np.array([0.3, -0.4]), np.zeros(2), np.zeros(1)
    arguments = pointer(q), pointer(gradient), pointer(value), density.native.address
    assert function(2, *arguments) == 0
    expected, slope = density.target.value_and_grad(q)
    assert value[0] == expected
    np.testing.assert_array_equal(gradient, slope)
    q[1] = np.inf
    assert function(2, *arguments) == 4


def test_function_for_xla_gives_the_potential_and_its_gradient(density):
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(
        density.address_of("bench_xla")
    )
    q, gradient, value = np.array([0.3, -0.4]), np.zeros(2), np.zeros(1)
    numbers = np.array([density.native.address, 2])
    outputs = np.array([value.ctypes.data, gradient.ctypes.data])
    inputs = np.array([q.ctypes.data, numbers.ctypes.data])
    function(pointer(outputs), pointer(inputs))
    expected, slope = density.target.value_and_grad(q)
    assert value[0] == -expected
    np.testing.assert_array_equal(gradient, -slope)


def test_stored_point_is_the_point(density):
    function = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_size_t, ctypes.c_size_t, *[ctypes.c_void_p] * 3
    )(density.address_of("bench_identity"))
    q, out = np.array([0.3, -0.4]), np.zeros(2)
    assert function(2, 2, pointer(q), pointer(out), None) == 0
    np.testing.assert_array_equal(out, q)


def test_start_of_peers_depends_on_its_seed_alone(density):
    first = density.start(3)
    density.start(4)
    np.testing.assert_array_equal(density.start(3), first)
    assert not np.array_equal(density.start(4), first)


# --------------------------------------------------------------------------------------- posteriors


@pytest.mark.parametrize("make", OWN, ids=lambda make: make.__name__)
def test_own_posterior_has_the_same_finite_data_every_time(make):
    (_, first), (_, second) = make(), make()
    for name, value in first.items():
        value, again = (np.asarray(x) for x in (value, second[name]))
        assert np.isfinite(value).all()
        np.testing.assert_array_equal(value, again)


def test_low_rank_gaussian_has_five_long_directions():
    _, data = low_rank_gaussian()
    scales = np.sort(1.0 / np.sqrt(np.linalg.eigvalsh(data["precision"])))
    np.testing.assert_allclose(scales[-5:], [30.0, 40.0, 55.0, 75.0, 100.0], rtol=1e-8)
    np.testing.assert_allclose(scales[:-5], 1.0, rtol=1e-10)


# ------------------------------------------------------------------------------------------ results


def record(ess=1000.0, gradients=10_000, warmup_gradients=20_000, **other):
    found = {
        "warmup": 1000,
        "draws": 1000,
        "seconds": 0.5,
        "gradients": gradients,
        "warmup_gradients": warmup_gradients,
        "divergences": 0,
        "ess": ess,
        "rhat": 1.001,
        "mean": [0.0, 1.0],
        "mcse": [0.1, 0.1],
    }
    return found | other


def results(folder, **systems):
    """A folder with the same record for two seeds of each system."""
    for system, found in systems.items():
        name = warmup.NUTPIE[1].replace(":", ".") if system == "low_rank" else system
        text = json.dumps({f"1000/{seed}": found for seed in range(2)})
        (folder / f"rats.{name}.json").write_text(text)
    return folder


def table_of(folder, installed=(OURS, "nutpie"), **options):
    systems = [OURS, *warmup.NUTPIE]
    return warmup.run(
        installed,
        posteriors=["rats"],
        systems=systems,
        seeds=2,
        results=folder,
        **{"lengths": ["1000"], **options},
    )


def test_ratios_are_ours_by_the_better_metric_of_nutpie(tmp_path):
    folder = results(
        tmp_path,
        probtorch=record(ess=3000.0, warmup_gradients=5000),
        nutpie=record(ess=1000.0),
        low_rank=record(ess=2000.0, gradients=20_000, warmup_gradients=0),
    )
    text, failures = table_of(folder)
    assert failures == []
    # 300 by 100 (both metrics); 200 by 100 (low rank); 6000 by 4000; 5 k by 20 k of the diagonal.
    summary = next(line for line in text.splitlines() if line.startswith("| 1000"))
    assert [cell.split(";")[0].strip() for cell in summary.split("|")[4:8]] == [
        "3.00",
        "2.00",
        "1.50",
        "0.25",
    ]
    assert "300 / 200 / 5k" in text


def test_runs_that_are_there_are_not_run_again(tmp_path, monkeypatch):
    folder = results(tmp_path, probtorch=record(), nutpie=record(), low_rank=record())
    started = []
    monkeypatch.setattr(
        warmup.subprocess,
        "run",
        lambda command, **_: started.append(command[3:5]) or type("Done", (), {"returncode": 0}),
    )
    table_of(folder)
    assert started == []
    table_of(folder, fresh=[OURS])
    assert started == [[OURS, "rats"]]


def test_results_of_peers_that_are_not_installed_are_used(tmp_path):
    folder = results(tmp_path, probtorch=record(ess=1500.0), nutpie=record())
    text, failures = table_of(folder, installed=[OURS])
    assert failures == []
    assert "nutpie low rank" not in text
    assert "1.50; 1.50 (rats)" in text


def test_other_means_bad_mixing_and_divergences_are_remarked(tmp_path):
    folder = results(
        tmp_path,
        probtorch=record(mean=[0.0, 2.0]),
        nutpie=record(rhat=1.2, divergences=7),
        low_rank=record(),
    )
    text, _ = table_of(folder)
    # Two seeds: standard errors 0.1 / sqrt(2) each, 1.0 apart.
    assert "ours: means 10.0 errors off" in text
    assert "nutpie: R-hat x 2, 7 divergences" in text


def test_posterior_that_nutpie_does_not_mix_in_stays_out_of_the_means(tmp_path):
    folder = results(
        tmp_path, probtorch=record(), nutpie=record(rhat=1.2), low_rank=record(ess=5.0, rhat=1.9)
    )
    text, _ = table_of(folder)
    assert not any(line.startswith("| 1000") for line in text.splitlines())
    assert "| rats (2)" in text


def test_default_length_is_told_and_compared_with_the_long_one_of_nutpie(tmp_path):
    folder = results(tmp_path, nutpie=record(), low_rank=record())
    ours = {f"default/{seed}": record(ess=2000.0, warmup=350) for seed in range(2)}
    (folder / f"rats.{OURS}.json").write_text(json.dumps(ours))
    text, failures = table_of(folder, lengths=["default"])
    assert failures == []
    assert "Warm-up default (350):" in text
    assert "2.00; 2.00 (rats)" in text


def test_run_that_failed_is_reported(tmp_path):
    folder = results(
        tmp_path, probtorch={"error": "ValueError: no"}, nutpie=record(), low_rank=record()
    )
    _, failures = table_of(folder)
    assert failures == [f"{OURS}, rats, 1000/{seed}: ValueError: no" for seed in range(2)]
    (tmp_path / "rats.nutpie.json").write_text(json.dumps({"1000/0": {"error": "no"}}))
    text, _ = table_of(folder, ())
    assert [cell.strip() for cell in row_of(text, "rats")[2:5]] == [
        "failed",
        "failed",
        str(warmup.Cell([record()] * 2)),
    ]


def test_peer_that_is_too_slow_is_shown_as_such_and_not_tried_again(tmp_path, monkeypatch):
    tried = []

    def slow(command, timeout, **_):
        tried.append(command)
        raise warmup.subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(warmup.subprocess, "run", slow)
    folder = results(tmp_path, probtorch=record(), low_rank=record())
    for _ in range(2):
        text, failures = table_of(folder)
        assert row_of(text, "rats")[3].strip() == warmup.TOO_SLOW
        assert any(warmup.TOO_SLOW in failure for failure in failures)
    assert len(tried) == 1


def row_of(text, posterior):
    """The cells of the row of a posterior."""
    return next(x for x in text.splitlines() if x.startswith(f"| {posterior} (")).split("|")


def test_process_that_fails_is_reported_with_its_last_line(tmp_path, monkeypatch):
    def broken(command, stdout, **_):
        stdout.write("a traceback\nNameError: no such thing\n")
        return type("Done", (), {"returncode": 1})

    monkeypatch.setattr(warmup.subprocess, "run", broken)
    _, failures = table_of(tmp_path)
    assert f"{OURS}, rats: the process ended with 1: NameError: no such thing" in failures


def test_settings_stand_after_a_colon():
    system = "probtorch:metric=diag,target_accept_prob=0.9,full_mass=True"
    settings = {"metric": "diag", "target_accept_prob": 0.9, "full_mass": True}
    assert parsed(system) == ("probtorch", settings)
    assert parsed("nutpie") == ("nutpie", {})


def test_child_writes_what_succeeded_and_what_did_not(tmp_path, monkeypatch):
    monkeypatch.setitem(POSTERIORS, "pair", lambda: (pair, {}))
    file = tmp_path / "pair.probtorch.json"
    main("pair", 2, 50, {OURS: (str(file), ["100/0", "-1/0"])})
    found = json.loads(file.read_text())
    assert found["100/0"]["warmup"] == 100
    assert len(found["100/0"]["mean"]) == 2
    assert found["-1/0"]["error"].startswith("ArgumentError: MCMC(warmup_steps")
    main("pair", 2, 50, {OURS: (str(file), ["100/1"])})
    assert set(json.loads(file.read_text())) == {"100/0", "-1/0", "100/1"}


def test_systems_of_one_process_take_turns(tmp_path, monkeypatch):
    monkeypatch.setitem(POSTERIORS, "pair", lambda: (pair, {}))
    order = []
    monkeypatch.setattr(
        warmup_child,
        "measure",
        lambda run, density, chains, length, draws, seed: order.append((run, seed)) or record(),
    )
    one, other = f"{OURS}:metric=diag", f"{OURS}:metric=dense"
    plan = {s: (str(tmp_path / f"{i}.json"), ["9/0", "9/1"]) for i, s in enumerate((one, other))}
    main("pair", 2, 50, plan)
    (first, _), *_ = order
    # A run before the first one of each compiles.
    assert [(run is first, seed) for run, seed in order] == [
        *((True, 1000), (True, 0), (False, 1000), (False, 0)),
        *((False, 1), (True, 1)),
    ]
    assert set(json.loads((tmp_path / "1.json").read_text())) == {"9/0", "9/1"}
