"""Findings and warnings: each fault is found, named and given a cure; healthy runs are quiet."""

import warnings

import numpy as np
import pytest

from probtorch.diagnostics import (
    ConvergenceWarning,
    DivergenceWarning,
    Draws,
    EnergyWarning,
    InferenceWarning,
    TreeDepthWarning,
    diagnose,
    warn_about,
)

SHAPE = (4, 1000)


def healthy(seed=0, **changes):
    rng = np.random.default_rng(seed)
    posterior = {"mu": rng.normal(size=SHAPE), "theta": rng.normal(size=(*SHAPE, 3))}
    stats = {
        "diverging": np.zeros(SHAPE, bool),
        "energy": rng.normal(size=SHAPE),
        "reached_max_treedepth": np.zeros(SHAPE, bool),
        "tree_depth": rng.integers(2, 5, SHAPE),
    }
    fields = {"posterior": posterior, "sample_stats": stats} | changes
    labels = {"dims": {"theta": ("school",)}, "coords": {"school": ["Choate", "Hotch", "Lawr"]}}
    return Draws(**labels, **fields)


def with_stats(**stats):
    draws = healthy()
    return draws.with_group("sample_stats", {**draws.sample_stats, **stats})


def only(findings):
    assert len(findings) == 1, [str(finding) for finding in findings]
    return findings[0]


def test_a_healthy_run_is_quiet():
    assert diagnose(healthy()) == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert warn_about(healthy()) == []


@pytest.mark.parametrize("width", [0.0, 1e-6])
def test_a_chain_that_never_moved_is_named_and_not_told_to_run_longer(width):
    draws = healthy()
    posterior = {name: x.copy() for name, x in draws.posterior.items()}
    for x in posterior.values():
        x[2] = 1.5 + width * x[2]
    rates = np.full(SHAPE, 0.9)
    rates[2] = 0.0
    draws = with_stats(acceptance_rate=rates, reached_max_treedepth=np.ones(SHAPE, bool))
    finding = only(diagnose(draws.with_group("posterior", posterior)))
    assert finding.kind == "stuck"
    assert finding.subject.startswith("chain 2 never moved")
    assert "run longer" not in str(finding)
    assert "0 % of the proposals accepted" in finding.got


def test_sites_without_a_prior_that_falls_off_are_named_where_chains_are_lost():
    rng = np.random.default_rng(0)
    lost = 1e9 * rng.normal(size=(4, 1)) + rng.normal(size=(4, 200)).cumsum(1)
    for attrs, kinds in (
        ({"improper_sites": ["a"]}, ["improper"]),
        ({"improper_sites": ["b"]}, []),
    ):
        draws = Draws({"a": lost, "b": rng.normal(size=(4, 200))}, attrs=attrs)
        found = [f for f in diagnose(draws) if f.kind == "improper"]
        assert [f.kind for f in found] == kinds
        assert all(f.parameters == ("a",) and "proper prior" in f.fix for f in found)
    far = Draws({"a": 1e150 * rng.normal(size=(4, 200))}, attrs={"improper_sites": ["a"]})
    assert diagnose(far)[0].kind == "improper"


def test_one_chain_that_never_moved_is_named():
    posterior = {"mu": np.full((1, 200), 0.7)}
    for rate, kinds in ((0.0, ["stuck"]), (0.9, [])):
        draws = Draws(
            posterior=posterior, sample_stats={"acceptance_rate": np.full((1, 200), rate)}
        )
        assert [f.kind for f in diagnose(draws, min_chains=1)] == kinds


def test_divergences_are_counted_and_traced_to_the_parameter():
    # A funnel's neck: divergences happen where tau is small, whatever mu and theta are.
    rng = np.random.default_rng(1)
    tau = np.exp(rng.normal(size=SHAPE))
    diverging = (tau < 0.3) & (rng.random(SHAPE) < 0.5)
    draws = with_stats(diverging=diverging).with_group(
        "posterior", healthy().posterior | {"tau": tau}
    )
    finding = only(diagnose(draws))
    count = int(diverging.sum())
    assert (finding.kind, finding.category) == ("divergence", DivergenceWarning)
    assert finding.parameters[0] == "tau"
    assert f"{count} of 4000 draws ({100 * count / 4000:.3g} %)" in finding.got
    there, elsewhere = np.median(tau[diverging]), np.median(tau[~diverging])
    assert f"tau ({there:.3g} there, {elsewhere:.3g} elsewhere)" in finding.got
    assert "non-centred" in finding.fix and "tau" in finding.fix


def test_the_cure_for_divergences_names_the_current_target():
    draws = with_stats(diverging=np.ones(SHAPE, bool))
    draws = Draws(draws.posterior, draws.sample_stats, attrs={"target_accept_prob": 0.8})
    finding = only(diagnose(draws))
    assert "(now 0.8)" in finding.fix
    assert "4000 of 4000 draws (100 %)" in finding.got
    assert diagnose(draws, max_divergences=4000) == []


def test_disagreeing_chains_are_named_worst_first():
    draws = healthy()
    theta = draws.posterior["theta"].copy()
    theta[0, :, 1] += 3.0
    theta[0, :, 2] += 0.5
    findings = diagnose(draws.with_group("posterior", {**draws.posterior, "theta": theta}))
    assert [finding.kind for finding in findings] == ["rhat", "ess"]
    for finding in findings:
        assert finding.category is ConvergenceWarning
        assert finding.parameters == ("theta[Hotch]", "theta[Lawr]")
    assert "R-hat at most 1.01" in findings[0].expected
    assert "at least 400 (100 per chain)" in findings[1].expected
    assert findings[0].got.startswith("theta[Hotch] 1.")


def test_sticky_chains_have_too_few_effective_draws():
    rng = np.random.default_rng(2)
    sticky = np.zeros(SHAPE)
    for t in range(1, SHAPE[1]):
        sticky[:, t] = 0.97 * sticky[:, t - 1] + rng.normal(size=4)
    finding = only(diagnose(Draws({"x": sticky}), rhat_max=2.0))
    assert finding.kind == "ess" and finding.parameters == ("x",)
    assert diagnose(Draws({"x": sticky}), rhat_max=2.0, ess_per_chain=1) == []


def test_many_bad_parameters_are_counted_not_listed():
    x = np.random.default_rng(3).normal(size=(*SHAPE, 10)) + np.arange(4.0)[:, None, None]
    finding = diagnose(Draws({"x": x}))[0]
    assert len(finding.parameters) == 3
    assert "and 7 more" in finding.subject and "10 of 10 parameters" in finding.got


def test_a_short_run_gives_one_finding_with_the_worst_parameter():
    x = np.random.default_rng(4).normal(size=(4, 50, 3))
    x[..., 1] += np.arange(4.0)[:, None] * 3
    finding = only(diagnose(Draws({"x": x})))
    assert finding.kind == "short_run" and finding.parameters == ("x[1]",)
    assert "50 draws per chain" in finding.got and "R-hat" in finding.got
    assert only(diagnose(Draws({"x": x[:, :2]}))).parameters == ()
    assert only(diagnose(Draws({"x": x[:, :0]}))).kind == "short_run"


def test_saturated_trees_warn_and_a_few_are_only_noted():
    reached = np.zeros(SHAPE, bool)
    reached[0, :100] = True
    draws = with_stats(reached_max_treedepth=reached, tree_depth=np.full(SHAPE, 10))
    note = only(diagnose(draws))
    assert (note.kind, note.category) == ("treedepth", None)
    finding = only(diagnose(draws, treedepth_share=0.01))
    assert finding.category is TreeDepthWarning and len(finding.parameters) == 3
    assert "maximum tree depth of 10" in finding.subject
    assert "100 of 4000 draws (2.5 %)" in finding.got and "max_tree_depth" in finding.fix


def test_slow_energy_names_its_chains_and_the_parameter_it_goes_with():
    rng = np.random.default_rng(5)
    energy = rng.normal(size=SHAPE)
    walk = np.zeros(1000)
    for t in range(1, 1000):
        walk[t] = 0.95 * walk[t - 1] + rng.normal()
    energy[2] = walk
    mu = healthy().posterior["mu"].copy()
    mu[2] = np.random.default_rng(6).permutation(mu[2])
    mu += 0.2 * energy
    draws = with_stats(energy=energy).with_group(
        "posterior", {"x": rng.normal(size=SHAPE), "mu": mu}
    )
    finding = next(f for f in diagnose(draws) if f.kind == "energy")
    assert finding.category is EnergyWarning and finding.parameters[0] == "mu"
    assert "in chain 2" in finding.got and "chain 0" not in finding.got
    assert not [f for f in diagnose(draws, bfmi_min=0.01) if f.kind == "energy"]


def test_few_chains_are_a_note_and_no_warning():
    draws = Draws({"x": np.random.default_rng(7).normal(size=(2, 1000))})
    note = only(diagnose(draws))
    assert (note.kind, note.category, note.got) == ("few_chains", None, "2")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert warn_about(draws) == [note]
    assert diagnose(draws, min_chains=2) == []


def test_draws_that_are_not_finite_are_located():
    draws = healthy()
    theta = draws.posterior["theta"].copy()
    theta[1, 20:25, 2] = np.nan
    theta[3, 7, 0] = np.inf
    finding = only(diagnose(draws.with_group("posterior", {**draws.posterior, "theta": theta})))
    assert finding.kind == "non_finite" and finding.category is InferenceWarning
    assert finding.parameters == ("theta[Lawr]", "theta[Choate]")
    assert "5 draws of theta[Lawr]" in finding.got and "chain 1, draw 20" in finding.got


def test_structural_zeros_are_not_judged():
    lower = np.random.default_rng(8).normal(size=(*SHAPE, 2, 2))
    lower[..., 0, 1] = 0.0
    assert diagnose(Draws({"L": lower})) == []


def test_names_limit_what_is_judged():
    draws = healthy()
    stuck = np.broadcast_to(np.arange(4.0)[:, None], SHAPE)
    draws = draws.with_group("posterior", {**draws.posterior, "stuck": stuck})
    assert diagnose(draws, names=["mu", "theta"]) == []
    assert diagnose(draws)[0].parameters == ("stuck",)


def test_warnings_carry_their_category_the_three_parts_and_the_callers_line():
    draws = with_stats(diverging=np.ones(SHAPE, bool))
    with pytest.warns(DivergenceWarning, match=r"(?s)expected: none.*got: .*4000.*fix: ") as caught:
        findings = warn_about(draws)
    assert [finding.kind for finding in findings] == ["divergence"]
    assert caught[0].filename == __file__
    assert issubclass(DivergenceWarning, InferenceWarning) and issubclass(
        InferenceWarning, UserWarning
    )


def test_discrete_and_complex_parameters_are_judged_too():
    rng = np.random.default_rng(9)
    flag = rng.random(SHAPE) < np.array([0.1, 0.9, 0.1, 0.9])[:, None]
    wave = rng.normal(size=SHAPE) + 1j * np.arange(4.0)[:, None]
    finding = diagnose(Draws({"flag": flag, "wave": wave}))[0]
    assert finding.kind == "rhat" and set(finding.parameters) == {"flag", "wave_imag"}


# -------------------------------------------------------------------------------- chance and advice


def autoregressive(chains, draws, parameters, coefficient, seed=0):
    """Stationary chains; an effective size of (1 - c) / (1 + c) per draw."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(chains, draws + 100, parameters))
    x = np.zeros_like(noise)
    for t in range(1, draws + 100):
        x[:, t] = coefficient * x[:, t - 1] + noise[:, t]
    return x[:, 100:]


@pytest.mark.parametrize(
    ("chains", "draws", "parameters", "coefficient"),
    [
        (4, 1000, 300, 0.78),
        (4, 1000, 3, 0.78),
        (2, 400, 300, 0.3),
        (1, 300, 300, 0.0),
        (4, 300, 300, -0.8),  # antithetic, as draws of NUTS are: their spread is less certain
    ],
)
def test_chance_alone_is_no_cause_for_a_warning(chains, draws, parameters, coefficient):
    # At the plain limit of 1.01 about a quarter of all parameters of the first two are above it.
    # False alarms: R-hat in one of a thousand such runs, by the limits' own level.
    x = autoregressive(chains, draws, parameters, coefficient)
    assert [f.kind for f in diagnose(Draws({"x": x})) if f.category] == []


def test_plain_limit_would_have_warned():
    x = autoregressive(4, 1000, 300, 0.78)
    from probtorch.diagnostics import rhat

    assert (rhat(x) > 1.01).mean() > 0.1


@pytest.mark.parametrize("parameters", [1, 1000])
def test_chains_apart_are_found_among_however_many_parameters(parameters):
    x = np.random.default_rng(10).normal(size=(*SHAPE, parameters))
    x[0, ..., 0] += 0.5  # R-hat 1.026
    found = {f.kind: f for f in diagnose(Draws({"x": x}))}
    assert found["rhat"].parameters == ("x[0]",)


def test_limit_says_how_many_parameters_it_allows_for():
    x = autoregressive(4, 1000, 300, 0.78)
    x[0, :, 7] += 6.0
    finding = next(f for f in diagnose(Draws({"x": x})) if f.kind == "rhat")
    assert finding.parameters == ("x[7]",)
    assert "which 300 parameters may reach by chance" in finding.expected


def test_one_chain_does_not_disagree():
    x = np.random.default_rng(11).normal(size=(1, 1000))
    x[0, 500:] += 2.0
    finding = next(f for f in diagnose(Draws({"x": x})) if f.kind == "rhat")
    assert finding.subject == "the chain has not settled: its halves differ on x"
    assert "num_chains=4" in finding.fix and "chains" not in finding.subject


def test_several_findings_are_one_warning_with_a_line_for_all():
    x = np.random.default_rng(12).normal(size=SHAPE)
    x[0] += 3.0
    draws = Draws({"x": x}, {"diverging": x > 5.0, "energy": np.cumsum(x, axis=1)})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        findings = warn_about(draws)
    assert [f.kind for f in findings] == ["divergence", "rhat", "ess", "energy"]
    (warning,) = caught
    first, *rest = str(warning.message).splitlines()
    assert warning.category is DivergenceWarning
    assert first == "; ".join(f.subject for f in findings)
    assert [line.split(":")[0].strip() for line in rest] == ["expected", "got", "fix", "more"]
    assert "diagnose(draws)" in rest[-1]


@pytest.mark.parametrize(
    ("centred", "words"),
    [
        (None, "write hierarchical sites non-centred"),
        (["theta"], "write theta non-centred"),
        ([], "raise target_accept_prob towards 0.99; if some stay"),
    ],
)
def test_cure_for_divergences_fits_the_model(centred, words):
    draws = with_stats(diverging=np.ones(SHAPE, bool))
    attrs = {} if centred is None else {"centred_sites": centred}
    finding = only(diagnose(Draws(draws.posterior, draws.sample_stats, attrs=attrs)))
    assert finding.fix.startswith(words)
    assert ("non-centred" in finding.fix) == (centred != [])


@pytest.mark.parametrize(
    ("attrs", "advised"),
    [
        ({"curvature_at_divergences": 0.9, "curvature_elsewhere": 0.2}, True),
        ({"curvature_at_divergences": 0.9, "curvature_elsewhere": 0.2, "centred_sites": []}, True),
        # A funnel's form is the reason; a wall has no curvature; nor has a step size that is too
        # large everywhere a peak.
        (
            {"curvature_at_divergences": 9.0, "curvature_elsewhere": 0.2, "centred_sites": ["x"]},
            False,
        ),
        ({"curvature_at_divergences": 0.1, "curvature_elsewhere": 0.02}, False),
        ({"curvature_at_divergences": 1.1, "curvature_elsewhere": 0.9}, False),
        ({}, False),
    ],
)
def test_adaptive_steps_are_advised_where_the_curvature_peaks(attrs, advised):
    draws = with_stats(diverging=np.ones(SHAPE, bool))
    attrs |= {"target_accept_prob": 0.8}
    finding = only(diagnose(Draws(draws.posterior, draws.sample_stats, attrs=attrs)))
    assert ("NUTS(..., adaptive_steps=True)" in finding.fix) == advised
    assert "target_accept_prob (now 0.8)" in finding.fix
    if advised:
        words = "the curvature there is 0.9 times what the step size can follow (0.2 elsewhere)"
        assert words in finding.got


def test_divergences_of_adaptive_steps_have_another_cure():
    draws = with_stats(diverging=np.ones(SHAPE, bool))
    attrs = {"adaptive_steps": True, "max_halvings": 10, "centred_sites": []}
    peak = {"curvature_at_divergences": 1e6, "curvature_elsewhere": 0.2}
    for more, words in (({}, "look for a jump or a wall"), (peak, "raise max_halvings (now 10)")):
        finding = only(diagnose(Draws(draws.posterior, draws.sample_stats, attrs=attrs | more)))
        assert words in finding.fix
        assert "adaptive_steps=True" not in finding.fix and "target_accept" not in finding.fix


def test_one_divergence_is_one_transition():
    diverging = np.zeros(SHAPE, bool)
    diverging[0, 0] = True
    assert only(diagnose(with_stats(diverging=diverging))).subject.startswith(
        "1 divergent transition after"
    )


def test_every_so_many_draws_judge_variables_and_all_draws_are_counted():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 1000, 3))
    x[3, :, 1] += 4.0
    diverging = np.zeros((4, 1000), bool)
    diverging[0, [1, 5, 10]] = True  # one of them among the draws that are looked at
    draws = Draws({"x": x}, {"diverging": diverging})
    found = {finding.kind: finding for finding in diagnose(draws, every=5)}
    assert found["divergence"].subject.startswith("3 divergent") and "rhat" in found
    assert found["rhat"].parameters == ("x[1]",)
    assert "of 4000 draws" in found["divergence"].got
    x[2, 15, 0] = np.nan
    (found,) = [f for f in diagnose(draws, every=5) if f.kind == "non_finite"]
    assert "chain 2, draw 15" in found.got
