"""A native density without a place for its gradient: values alone, of programs without one."""

import numpy as np
import pytest
from scipy import stats

import probtorch
import probtorch.distributions as dist
from probtorch.compiler.density import NativeDensity
from probtorch.compiler.program import NativeProgram
from probtorch.core.dispatch import wrap
from probtorch.infer import MCMC, Gibbs, RandomWalk, Target
from probtorch.ops.foreign import native_density


def handles(context):
    return [wrap(np.asarray(x, np.int64)) for x in (context.function, context.address)]


def value_program(density):
    """A compiled program that reads the value only, and the context that it calls."""
    context = density.context()
    inputs = wrap(np.zeros(density.dim)), *handles(context)
    program = NativeProgram(lambda t: native_density(*t)[0], inputs)
    return lambda q: float(program((wrap(q), *inputs[1:])).array), context


def test_a_program_that_reads_no_gradient_has_none_computed():
    taken = []

    def fn(q):
        taken.append(q.requires_grad)
        return -0.5 * (q * q).sum()

    density = NativeDensity(fn, 3)
    value, context = value_program(density)
    taken.clear()  # of the recording, which is eager
    q = np.array([1.0, 2.0, -1.0])
    assert value(q) == -3.0
    assert taken == [False] and len(density.of_values.paths) == 1
    both = context.native(q)  # and the other entry is as it was
    assert both[0] == -3.0 and np.array_equal(both[1], -q)
    assert len(density.paths) == 1


def test_values_meet_branches_loops_and_places_outside():
    def fn(q):
        if q[0] > 0.0:
            return -(q * q).sum()
        if q[1] > 1.0:
            return dist.Normal(0.0, -1.0).log_prob(q[1])  # refused: the point is outside
        total = 0.0
        for i in range(100):
            total = total - (q[0] - 0.01 * i) ** 2
        return total

    density = NativeDensity(fn, 2)
    value, context = value_program(density)
    for q in ([1.0, 0.0], [-1.0, 0.5], [2.0, 3.0], [-1.0, 2.0], [-2.0, 0.0]):
        q = np.array(q)
        expected = -(q @ q) if q[0] > 0 else -np.sum((q[0] - 0.01 * np.arange(100)) ** 2)
        if q[0] <= 0 and q[1] > 1.0:
            expected = -np.inf
        assert value(q) == pytest.approx(expected, rel=1e-12)
    context.raise_error()


def test_an_error_in_a_density_of_values_is_raised_where_the_run_looks():
    def fn(q):
        raise KeyError("mine")

    value, context = value_program(NativeDensity(fn, 2))
    assert np.isnan(value(np.zeros(2)))
    with pytest.raises(KeyError, match="mine"):
        context.raise_error()


def test_a_python_density_gives_its_values():
    density = NativeDensity.from_python(lambda q: (-0.5 * q @ q, -q), 2)
    value, _ = value_program(density)
    assert value(np.array([3.0, 4.0])) == -12.5


def test_kernels_without_gradients_draw_from_values():
    target = Target.from_density(lambda q: -0.5 * (q * q).sum(), 1)
    mcmc = MCMC(RandomWalk(target), 4000, 300, num_chains=2, seed=1, progress_bar=False)
    draws = mcmc.run()
    assert len(target.density.of_values.paths) == 1
    # 8000 draws worth at least 800 by the kernel's autocorrelation: five standard errors.
    assert abs(draws["x"].mean()) < 5 / np.sqrt(800)

    def counts(y):
        k = probtorch.sample("k", dist.Binomial(6, 0.5))
        mu = probtorch.sample("mu", dist.Normal(0.0, 1.0))
        probtorch.sample("y", dist.Normal(mu + k, 1.0), obs=y)

    mcmc = MCMC(Gibbs(counts), 3000, 300, num_chains=2, seed=1, progress_bar=False)
    draws = mcmc.run(probtorch.tensor(4.0))
    k = np.arange(7)
    weight = stats.binom.pmf(k, 6, 0.5) * stats.norm.pdf(4.0, k, np.sqrt(2.0))
    mean = (k * weight).sum() / weight.sum()
    assert abs(draws["k"].mean() - mean) < 5 * 1.2 / np.sqrt(600)
    assert len(mcmc.target.density.of_values.paths) == 1 == len(mcmc.target.density.paths)
