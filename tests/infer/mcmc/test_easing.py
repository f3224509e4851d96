"""A lower acceptance where trajectories are short: when it is taken, and that draws are right."""

from types import SimpleNamespace

import numpy as np
import pytest

from probtorch.core.dispatch import wrap
from probtorch.core.tree import replace
from probtorch.diagnostics.sampler_checks import divergences
from probtorch.errors import ArgumentError
from probtorch.infer import HMC, MCMC, NUTS, Target
from probtorch.infer.mcmc.warm_up.easing import EASED, FIRST, Easing
from probtorch.infer.mcmc.warm_up.guard import ACCEPTANCE_GAP, _rejecting

TARGET = 0.8


def after(transitions, easing=None):
    """Return the rule after transitions of (steps, acceptance, whether steps were longer)."""
    easing = easing or Easing.begun()
    for steps, acceptance, longer in transitions:
        easing = easing.updated(*(wrap(np.array(x)) for x in (steps, acceptance, longer)))
    return easing


def aimed_at(easing):
    return float(easing.of(wrap(np.array(TARGET))).array)


def normal(dim):
    return Target.from_density(lambda q: -0.5 * (q * q).sum(), dim)


def test_short_trajectories_that_lose_nothing_ease_the_acceptance():
    assert aimed_at(after([(3, 0.8, False)] * 150)) == pytest.approx(EASED * TARGET)


def test_transitions_at_the_beginning_do_not_count():
    assert aimed_at(after([(3, 0.8, False)] * int(FIRST))) == TARGET


def test_longer_trajectories_keep_the_acceptance():
    mostly_long = ([(7, 0.8, False)] * 3 + [(3, 0.8, False)]) * 50
    assert aimed_at(after(mostly_long)) == TARGET


def test_energies_that_are_lost_now_and_then_keep_the_acceptance():
    rough = ([(3, 0.8, False)] * 49 + [(3, 0.02, False)]) * 8
    assert aimed_at(after(rough)) == TARGET


def test_energies_lost_with_steps_longer_than_usual_do_not_count():
    tried = ([(3, 0.8, False)] * 9 + [(1, 0.02, True)]) * 30
    assert aimed_at(after(tried)) == pytest.approx(EASED * TARGET)


def test_the_acceptance_is_taken_back_when_energies_are_lost():
    eased = after([(3, 0.8, False)] * 200)
    assert aimed_at(after([(3, 0.02, False)] * 3, eased)) == TARGET


def test_once_settled_it_does_not_begin_and_ends_only_where_energies_are_lost():
    short, long, lost = ([(steps, a, False)] * 50 for steps, a in ((3, 0.8), (7, 0.8), (3, 0.02)))
    eased = after(short * 4).refocused()
    assert aimed_at(after(long * 4, eased)) == aimed_at(eased) < TARGET
    assert aimed_at(after(lost, eased)) == TARGET
    assert aimed_at(after(short * 4, after(long).refocused())) == TARGET


def sampled(kernel, seed=3):
    mcmc = MCMC(kernel, 1000, warmup_steps=400, num_chains=4, seed=seed, progress_bar=False)
    mcmc.run()
    stats = mcmc.draws.sample_stats
    return mcmc, float(np.mean(stats["acceptance_rate"])), float(np.mean(stats["n_steps"]))


def test_a_normal_posterior_is_sampled_with_shorter_trajectories():
    mcmc, acceptance, steps = sampled(NUTS(normal(6)))
    _, usual, longer = sampled(NUTS(normal(6), target_accept_prob=TARGET))
    assert acceptance < 0.78 < usual
    assert steps < longer
    # Variances of draws worth at least 1000 each: 5 standard errors.
    variances = mcmc.draws.positions.reshape(-1, 6).var(0)
    assert np.all(np.abs(variances - 1.0) < 5.0 * np.sqrt(2.0 / 1000.0))


def test_an_acceptance_that_was_asked_for_is_kept():
    for kernel in (
        NUTS(normal(2), target_accept_prob=TARGET),
        NUTS(normal(2), adaptive_steps=True),
    ):
        assert kernel.tuner().easing is None
        assert kernel.target_accept_prob == TARGET
    kernel = NUTS(normal(2))
    assert kernel.tuner().easing is not None
    assert kernel.target_accept_prob == TARGET


def test_results_say_what_each_chain_aimed_at():
    eased, _, _ = sampled(NUTS(normal(6)))
    assert eased.draws.attrs["target_accept_prob"] == 0.7
    asked, _, _ = sampled(NUTS(normal(6), target_accept_prob=TARGET))
    assert asked.draws.attrs["target_accept_prob"] == TARGET
    untuned, _, _ = sampled(NUTS(normal(6), adapt_step_size=False))
    assert untuned.draws.attrs["target_accept_prob"] == TARGET

    mixed = MCMC(NUTS(normal(6)), 1000, num_chains=3, seed=1, progress_bar=False)
    (first, second, *_), (third, *_) = (m.state_dict()["chains"] for m in (eased, asked))
    mixed.load_state_dict({"chains": [first, third, second]})
    draws = mixed.run()
    assert draws.attrs["target_accept_prob"] == [0.7, TARGET, 0.7]
    draws.sample_stats["diverging"][0, 0] = True
    assert "(now 0.7 or 0.8)" in divergences(draws, [], 0, None, None).fix


def test_a_chain_that_was_eased_is_no_chain_of_an_acceptance_that_was_given():
    """Of another acceptance a folder says so itself; of the default as a number the chain does."""
    state = sampled(NUTS(normal(2)))[0].state_dict()
    asked = MCMC(NUTS(normal(2), target_accept_prob=TARGET), 10, progress_bar=False)
    words = r"(?s)expected: .*NUTS\(target_accept_prob=0.8\).*got: .*without target_accept_prob.*"
    with pytest.raises(ArgumentError, match=words + "fix: +leave target_accept_prob out"):
        asked.load_state_dict(state)
    with pytest.raises(ArgumentError, match="arrays of other shapes"):
        MCMC(HMC(normal(2)), 10, progress_bar=False).load_state_dict(state)


@pytest.mark.parametrize("missed", [False, True])
@pytest.mark.parametrize("eased", [False, True])
def test_an_acceptance_is_compared_with_what_the_chain_aimed_at(eased, missed):
    tuner = NUTS(normal(2)).tuner()
    own = replace(tuner, easing=after([(3, 0.8, False)] * 150)) if eased else tuner
    aim = EASED * TARGET if eased else TARGET
    run = SimpleNamespace(
        warmup=SimpleNamespace(tuner=tuner, follows=True),
        acceptance=aim - ACCEPTANCE_GAP + (-0.01 if missed else 0.01),
        runner=SimpleNamespace(row=None, chain=SimpleNamespace(tuner=own)),
    )
    trouble = _rejecting(SimpleNamespace(number=0, run=run))
    assert (trouble is not None) == missed
    assert not missed or f"{aim:g} was aimed at" in trouble.got
