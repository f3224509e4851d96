"""Chains that go together as rows: they are what each would be alone, also where one goes wrong."""

import warnings

import numpy as np
import pytest

from probtorch.compiler.density import NativeDensity
from probtorch.config import configure
from probtorch.core.dispatch import wrap
from probtorch.core.tree import flatten
from probtorch.infer.mcmc.chain import ChainRun
from probtorch.infer.mcmc.company import Company
from probtorch.infer.mcmc.driver import MCMC
from probtorch.infer.mcmc.kernels.hmc import HMC
from probtorch.infer.mcmc.kernels.nuts import NUTS
from probtorch.infer.mcmc.rows import TOGETHER
from probtorch.infer.potential import Target
from tests.infer.mcmc.targets import funnel_logdensity

SCALES = np.array([1.0, 3.0, 0.2])
CHAINS = 19
MANY = TOGETHER + 4  # more than a call runs


def ridge_target():
    """Two coordinates that are nearly one, for a metric with directions, and one of other scale."""

    def density(q):
        return -0.5 * (((q[0] - q[1]) / 0.1) ** 2 + ((q[0] + q[1]) / 5.0) ** 2 + (q[2] / 0.2) ** 2)

    return Target.from_density(density, 3)


def normal_target():
    return Target.from_density(lambda q: -0.5 * (q * q).sum(), 1)


def wide_target():
    """More than 40 dims, a few of them long together: their matrices have directions."""
    rows = wrap(np.linalg.qr(np.random.default_rng(0).normal(size=(60, 60)))[0][:3])
    return Target.from_density(
        lambda q: -0.5 * ((q * q).sum() - 0.97 * (rows @ q).square().sum()), 60
    )


def run(kernel, together=True, samples=60, warmup=120, chains=CHAINS, **settings):
    mcmc = MCMC(kernel, samples, warmup, num_chains=chains, num_threads=1, seed=3, **settings)
    used = []
    original = Company.of.__func__

    def watched(cls, runs):
        company = original(cls, runs) if together else None
        used.append(company is not None)
        return company

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        patch.setattr(Company, "of", classmethod(watched))
        mcmc.run()
    assert any(used) == together
    return mcmc, sorted(str(w.message) for w in caught)


def assert_same(one, other):
    (a, told), (b, also_told) = one, other
    np.testing.assert_array_equal(a.draws.positions, b.draws.positions)
    assert a.draws.sample_stats.keys() == b.draws.sample_stats.keys()
    for name, values in a.draws.sample_stats.items():
        np.testing.assert_array_equal(values, b.draws.sample_stats[name], err_msg=name)
    assert told == also_told
    attrs = ["extended_chains", "moved_chains", "missing_chains"]
    if not a.draws.attrs.get("missing_chains"):
        # What a call did that failed is not counted, and calls are cut by the clock.
        attrs.append("warmup_gradients")
    for attr in attrs:
        assert a.draws.attrs.get(attr) == b.draws.attrs.get(attr)
    for x, y in zip(a.last_state, b.last_state, strict=True):
        for leaf, also in zip(flatten(x)[0], flatten(y)[0], strict=True):
            np.testing.assert_array_equal(leaf.array, also.array)


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (lambda: NUTS(ridge_target()), {}),
        (lambda: NUTS(wide_target()), {"chains": 3, "samples": 5}),
        (lambda: NUTS(ridge_target(), full_mass=True), {"thinning": 7, "samples": 30}),
        (lambda: NUTS(normal_target()), {"keep_warmup": True, "chains": MANY}),
        (lambda: HMC(ridge_target(), metric="diag", num_steps=4), {"chains": 5}),
        (lambda: NUTS(ridge_target(), step_size=0.1, adapt_step_size=False), {"chains": 2}),
    ],
    ids=["low rank", "wide", "dense, thinned", "warm-up kept", "HMC", "fixed step"],
)
def test_chains_together_are_those_alone(make, settings):
    assert_same(*(run(make(), together, **settings) for together in (True, False)))


def test_chains_whose_warm_up_is_made_longer_go_on_together():
    funnel = Target.from_density(funnel_logdensity, 10)
    found = [run(NUTS(funnel), together, samples=20, warmup=60) for together in (True, False)]
    assert found[0][0].draws.attrs["extended_chains"]
    assert_same(*found)


@pytest.mark.parametrize("size", [0.5, 1.2, 40.0])
def test_what_is_told_of_chains_together_is_what_is_told_of_each(size):
    # Of a step of 40 all proposals are rejected, of one of 1.2 a good many.
    found = []
    for together in (True, False):
        seen = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ChainRun, "end_stage", noted(ChainRun.end_stage, seen))
            kernel = HMC(ridge_target(), step_size=size, adapt_step_size=False, num_steps=1)
            run(kernel, together, samples=70, warmup=60)
        found.append(sorted(seen, key=repr))
    assert len(found[0]) >= 2 * CHAINS  # more where a warm-up is made longer
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def noted(end_stage, seen):
    """A method that notes what is told of a chain at the end of a stage."""

    def ended(self):
        end_stage(self)
        still = self.standstill
        course = np.concatenate([*self.course, np.zeros(0)])
        numbers = self.iteration, self.divergences, self.evaluations, self.warmup_evaluations
        # Nobody counts on, once a chain is told to stand still.
        standing = [0.0] if still.how else [still._rejected, still._short, *still.last]
        seen.append(
            [
                *numbers,
                self.step_size,
                self.acceptance,
                self.effort,
                *standing,
                *course,
                self.segment,
            ]
        )

    return ended


def test_a_chain_has_its_draws_before_it_is_told_how_far_it_is(monkeypatch):
    record, told = Company._record, []

    def noted(self, runs, positions, info):
        record(self, runs, positions, info)
        told.extend(r.iteration - r.num_warmup < r.draws.complete for r in runs if not r.warming_up)

    monkeypatch.setattr(Company, "_record", noted)
    run(NUTS(normal_target()))
    assert told and all(told)


def test_the_last_run_goes_on_and_what_it_learnt_is_kept():
    together, alone = (run(NUTS(ridge_target()), how, chains=4)[0] for how in (True, False))
    for a, b in zip(together.adapted, alone.adapted, strict=True):
        assert a.step_size == b.step_size
        np.testing.assert_array_equal(a.inverse_mass(), b.inverse_mass())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.testing.assert_array_equal(together.more(20).positions, alone.more(20).positions)


def failing_target(where):
    """A density of Python's that raises beyond a place."""

    def value_and_grad(q):
        if q[0] > where:
            raise RuntimeError("the well is dry")
        return -0.5 * q @ q, -q

    target = normal_target()
    target.__dict__["density"] = NativeDensity.from_python(value_and_grad, 1)
    return target


def test_chains_that_fail_are_left_behind_by_the_others():
    settings = {"samples": 40, "warmup": 20, "chains": MANY}
    found = []
    for together in (True, False):
        kernel = NUTS(failing_target(2.5), step_size=1.0, adapt_step_size=False, max_tree_depth=2)
        found.append(run(kernel, together, **settings))
    # Points further away than 2.5 standard deviations: one in 160, of 60 draws and their leaves.
    assert 0 < len(found[0][0].draws.attrs["missing_chains"]) < MANY
    assert_same(*found)


def test_rows_are_not_for_what_has_its_own_order(tmp_path):
    seen = []
    original = Company.of.__func__

    def watched(cls, runs):
        seen.append(original(cls, runs))
        return seen[-1]

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr(Company, "of", classmethod(watched))
        mcmc = MCMC(NUTS(ridge_target()), 10, 10, num_chains=3, num_threads=1, seed=1)
        mcmc.run(checkpoint=tmp_path)
        mcmc.hook_fn = lambda *_: None
        mcmc.run()
        mcmc.hook_fn = None
        with configure(jit=False):
            mcmc.num_samples = mcmc.num_warmup = 3
            mcmc.run()
    assert seen and not any(seen)
