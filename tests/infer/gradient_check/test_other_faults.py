"""What else the check finds: wrong derivatives, and densities that differ at one point."""

import numpy as np
import pytest

import probtorch
from probtorch.compiler.paths import CompileWarning
from probtorch.config import configure
from probtorch.errors import InferenceError
from probtorch.infer import MCMC, NUTS, Target
from tests.infer.gradient_check.whole_models import XT, normal, seen


def test_a_wrong_derivative_of_a_hand_written_density_is_refused():
    def fn(q):
        return -(q * (q.detach().numpy() * 1.0)).sum()

    with pytest.raises(InferenceError, match="not that of its log density"):
        Target.from_density(fn, 3).value_and_grad([0.1, 0.2, 0.3])
    with configure(check_gradients=False), pytest.warns(CompileWarning):
        assert Target.from_density(fn, 3).value_and_grad([0.1, 0.2, 0.3])[0] < 0.0


def noisy():
    rng = np.random.default_rng(0)
    return lambda: float(rng.normal())


def counting():
    count = iter(range(1, 1000))
    return lambda: float(next(count))


@pytest.mark.parametrize("make", [noisy, counting])
def test_a_density_that_differs_at_one_point_is_never_frozen(make):
    read = make()

    def model():
        seen(normal("b") * XT + read())

    target = Target.from_model(model)
    with pytest.warns(CompileWarning, match="another value each time at the same point"):
        found = [target.value_and_grad([0.3])[0] for _ in range(5)]
    assert len(set(found)) == 5
    assert not target.density.paths


def test_draws_in_a_density_are_named_with_their_line():
    def model():
        seen(normal("b") * XT + probtorch.randn(20))

    target = Target.from_model(model)
    with pytest.warns(CompileWarning, match="test_other_faults.py"):
        found = [target.value_and_grad([0.3])[0] for _ in range(5)]
    assert len(set(found)) == 5


def dropping():
    keep = probtorch.nn.Dropout(0.5)
    return lambda: keep(probtorch.ones(20))


def before():
    """The point of the evaluation before."""
    met = [0.0]

    def read(b):
        met.append(float(b.detach()))
        return met[-2]

    return read


@pytest.mark.parametrize("make", [noisy, counting, dropping, before])
def test_no_sampler_runs_on_a_density_that_is_another_each_time(make):
    read = make()

    def model():
        b = normal("b")
        seen(b * XT + (read(b) if make is before else read()))

    mcmc = MCMC(NUTS(model), warmup_steps=5, num_samples=5, seed=0, disable_progbar=True)
    with (
        pytest.warns(CompileWarning),
        pytest.raises(InferenceError, match=r"is no density[\s\S]*same point[\s\S]*a site of"),
    ):
        mcmc.run()
