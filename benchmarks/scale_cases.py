"""What grows, ours and peers: functions that make the work of one size for one system.

A maker takes a size and returns the work, a function without arguments that waits for its result;
if it returns a number, that is how many units were done (leapfrogs, say). Every maker is run in a
process of its own (scale_child.py), and imports its system itself. All is in double precision but
the training steps.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

__all__ = ["CASES", "Case", "case", "numbers"]

Work = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """One kind of work.

    Parameters
    ----------
    what : str
        With `{}` in the place of the size.
    sizes : tuple of int
    makers : dict of callables
        By system; ours is "probtorch".
    few : dict of int
        The largest size that a system is asked for, where that is not the last.
    """

    what: str
    sizes: tuple[int, ...]
    makers: dict[str, Callable[[int], Work]]
    few: dict[str, int]


CASES: dict[str, Case] = {}


def case(what: str, *sizes: int, **few: int) -> Callable[[type], type]:
    """Make a case of a class whose static methods are named for systems."""

    def add(cls: type) -> type:
        makers = {n: getattr(cls, n) for n in vars(cls) if not n.startswith("_")}
        CASES[cls.__name__] = Case(what, sizes, makers, few)
        return cls

    return add


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


# ---------------------------------------------------------------------------------------- sampling


def _ours_sampled(model: Callable, *data: object, draws: int = 1000) -> Work:
    from probtorch.infer import MCMC, NUTS

    def work() -> int:
        mcmc = MCMC(NUTS(model), draws, draws // 2, num_chains=1, seed=0, progress_bar=False)
        mcmc.diagnose = False
        found = mcmc.run(*data)
        return int(found.attrs["warmup_gradients"]) + int(found.sample_stats["n_steps"].sum())

    return work


def _numpyro_sampled(model: Callable, draws: int = 1000) -> Work:
    """Its kernel in a loop that is compiled once: `MCMC.run` compiles it anew each time."""
    import functools

    import jax
    from numpyro.infer import NUTS
    from numpyro.infer.util import initialize_model

    found = initialize_model(jax.random.PRNGKey(0), model)

    @functools.partial(jax.jit, static_argnums=1)
    def chain(key: object, draws: int) -> object:
        kernel = NUTS(potential_fn=found.potential_fn)
        state = kernel.init(key, draws // 2, found.param_info.z, (), {})

        def transition(state: object, _: object) -> tuple:
            state = kernel.sample(state, (), {})
            return state, (state.z, state.num_steps)

        return jax.lax.scan(transition, state, None, draws + draws // 2)[1]

    return lambda: int(chain(jax.random.PRNGKey(1), draws)[1].sum())


# Enough that what a run costs beside leapfrogs is little.
LEAPFROG_DRAWS = {10: 200_000, 100: 40_000, 1000: 4000, 10_000: 400}
HIERARCHY_DRAWS = {1000: 1000, 10_000: 300, 100_000: 50}


@case("NUTS, {} normals, a leapfrog", 10, 100, 1000, 10_000)
class Leapfrog:
    """Standard deviations from 1 to 2, so that there is something to learn."""

    @staticmethod
    def probtorch(size: int) -> Work:
        import probtorch
        import probtorch.distributions as dist

        scale = probtorch.from_numpy(np.linspace(1.0, 2.0, size))
        return _ours_sampled(
            lambda: probtorch.sample("x", dist.Normal(0.0, scale).to_event(1)),
            draws=LEAPFROG_DRAWS[size],
        )

    @staticmethod
    def numpyro(size: int) -> Work:
        import numpyro
        import numpyro.distributions as dist

        scale = np.linspace(1.0, 2.0, size)
        return _numpyro_sampled(
            lambda: numpyro.sample("x", dist.Normal(0.0, scale).to_event(1)),
            draws=LEAPFROG_DRAWS[size],
        )


def _hierarchy(ppl: object, d: object, y: object, size: int) -> Callable[[], None]:
    """Normal levels of groups of ten, centred: as many numbers as groups, and three."""

    def model() -> None:
        mu = ppl.sample("mu", d.Normal(0.0, 5.0))
        tau = ppl.sample("tau", d.HalfNormal(2.0))
        sigma = ppl.sample("sigma", d.HalfNormal(2.0))
        with ppl.plate("group", size):
            level = ppl.sample("level", d.Normal(mu, tau))
            ppl.sample("y", d.Normal(level, sigma / 10**0.5), obs=y)

    return model


def _group_means(size: int) -> np.ndarray:
    return numbers(size) * 1.2 + 1.0


@case("hierarchical normal, {} groups, a leapfrog", 1000, 10_000, 100_000, numpyro=10_000)
class Hierarchy:
    """NUTS, all in."""

    @staticmethod
    def probtorch(size: int) -> Work:
        import probtorch
        import probtorch.distributions as dist

        y = probtorch.from_numpy(_group_means(size))
        return _ours_sampled(_hierarchy(probtorch, dist, y, size), draws=HIERARCHY_DRAWS[size])

    @staticmethod
    def numpyro(size: int) -> Work:
        import numpyro
        import numpyro.distributions as dist

        model = _hierarchy(numpyro, dist, _group_means(size), size)
        return _numpyro_sampled(model, draws=HIERARCHY_DRAWS[size])


@case("the same, the gradient alone, {} groups", 1000, 10_000, 100_000)
class HierarchyGradient:
    """What a leapfrog cannot be faster than; called from native code, as samplers do."""

    @staticmethod
    def probtorch(size: int) -> Work:
        import probtorch
        import probtorch.distributions as dist
        from probtorch.infer import Target

        y = probtorch.from_numpy(_group_means(size))
        target = Target.from_model(_hierarchy(probtorch, dist, y, size))
        q, context = np.zeros(target.dim), target.density.context()
        return lambda: context.native(q)

    @staticmethod
    def numpyro(size: int) -> Work:
        import jax
        import numpyro
        import numpyro.distributions as dist
        from numpyro.infer.util import initialize_model

        model = _hierarchy(numpyro, dist, _group_means(size), size)
        found = initialize_model(jax.random.PRNGKey(0), model)
        fn, z = jax.jit(jax.value_and_grad(found.potential_fn)), found.param_info.z
        return lambda: jax.block_until_ready(fn(z))


SCHOOLS = (
    np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0]),
    np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0]),
)


def _schools(ppl: object, d: object) -> Callable[..., None]:
    def model(y: object, sigma: object) -> None:
        mu = ppl.sample("mu", d.Normal(0.0, 5.0))
        tau = ppl.sample("tau", d.HalfCauchy(5.0))
        with ppl.plate("school", 8):
            eta = ppl.sample("eta", d.Normal(0.0, 1.0))
            ppl.sample("y", d.Normal(mu + tau * eta, sigma), obs=y)

    return model


@case("eight schools, 200 + 200 transitions of {} chains", 4, 64, 1024, 4096, numpyro=64)
class Chains:
    """NUTS, all in."""

    @staticmethod
    def probtorch(size: int) -> Work:
        import probtorch
        import probtorch.distributions as dist
        from probtorch.infer import MCMC, NUTS

        data = [probtorch.from_numpy(x) for x in SCHOOLS]

        def work() -> None:
            kernel = NUTS(_schools(probtorch, dist))
            mcmc = MCMC(kernel, 200, 200, num_chains=size, seed=1, progress_bar=False)
            mcmc.diagnose = False
            mcmc.run(*data)

        return work

    @staticmethod
    def numpyro(size: int) -> Work:
        import jax
        import numpyro
        import numpyro.distributions as dist
        from numpyro.infer import MCMC, NUTS

        settings = {"chain_method": "vectorized", "progress_bar": False, "num_chains": size}
        kernel = NUTS(_schools(numpyro, dist))
        mcmc = MCMC(kernel, num_warmup=200, num_samples=200, **settings)
        return lambda: mcmc.run(jax.random.PRNGKey(1), *SCHOOLS)


# ------------------------------------------------------------------------------------------- loops


def _smoothed(y: object, a: object, zero: object, steps: int) -> object:
    level = total = zero
    for t in range(steps):
        level = a * level + (1.0 - a) * y[t]
        total = total - 0.5 * (y[t] - level) ** 2
    return total


class _Smoothed:
    """Exponential smoothing of a series of so many steps."""

    @staticmethod
    def _jax(size: int, *, by_scan: bool) -> Work:
        import jax

        def step(state: tuple, now: object) -> tuple:
            level, total = state
            level = 0.3 * level + 0.7 * now
            return (level, total - 0.5 * (now - level) ** 2), None

        def scanned(y: object) -> object:
            return jax.lax.scan(step, (0.0, 0.0), y)[0][1]

        y = jax.numpy.asarray(numbers(size))
        fn = jax.jit(scanned if by_scan else lambda y: _smoothed(y, 0.3, 0.0, size))
        return lambda: jax.block_until_ready(fn(y))


@case("Python `for` of {} steps", 1000, 10_000, 100_000, jax=1000)
class Loop(_Smoothed):
    """Compiled, the loop as it is written; JAX unrolls it, PyTorch is eager."""

    @staticmethod
    def probtorch(size: int) -> Work:
        import probtorch

        y, a = probtorch.from_numpy(numbers(size)), probtorch.tensor(0.3).double()
        zero = probtorch.tensor(0.0).double()
        fn = probtorch.compile(lambda y, a: _smoothed(y, a, zero, size))
        return lambda: fn(y, a)

    @staticmethod
    def jax(size: int) -> Work:
        return _Smoothed._jax(size, by_scan=False)

    @staticmethod
    def torch(size: int) -> Work:
        import torch

        y, a = torch.from_numpy(numbers(size)), torch.tensor(0.3).double()
        return lambda: _smoothed(y, a, torch.tensor(0.0).double(), size)


@case("`scan` of {} steps", 1000, 10_000, 100_000, 1_000_000)
class Scan(_Smoothed):
    """The same series."""

    @staticmethod
    def probtorch(size: int) -> Work:
        import probtorch

        y, zero = probtorch.from_numpy(numbers(size)), probtorch.tensor(0.0).double()

        def step(state: tuple, now: object) -> tuple:
            level, total = state
            level = 0.3 * level + 0.7 * now
            return (level, total - 0.5 * (now - level) ** 2), None

        fn = probtorch.compile(lambda y: probtorch.scan(step, (zero, zero), y)[0][1])
        return lambda: fn(y)

    @staticmethod
    def jax(size: int) -> Work:
        return _Smoothed._jax(size, by_scan=True)


def _smoothed_series(y: object, a: object, zero: object) -> object:
    total = zero
    for series in range(y.shape[0]):
        level = zero
        for t in range(y.shape[1]):
            level = a * level + (1.0 - a) * y[series, t]
            total = total - 0.5 * (y[series, t] - level) ** 2
    return total


@case("loops in loops, {} series of 100 steps", 10, 30, 100, jax=10)
class Nested:
    """Series by series, as plain loops."""

    @staticmethod
    def probtorch(size: int) -> Work:
        import probtorch

        y, a = probtorch.from_numpy(numbers(size, 100)), probtorch.tensor(0.3).double()
        zero = probtorch.tensor(0.0).double()
        fn = probtorch.compile(lambda y, a: _smoothed_series(y, a, zero))
        return lambda: fn(y, a)

    @staticmethod
    def jax(size: int) -> Work:
        import jax

        y, fn = jax.numpy.asarray(numbers(size, 100)), jax.jit(_smoothed_series)
        return lambda: jax.block_until_ready(fn(y, 0.3, 0.0))

    @staticmethod
    def torch(size: int) -> Work:
        import torch

        y, a = torch.from_numpy(numbers(size, 100)), torch.tensor(0.3).double()
        return lambda: _smoothed_series(y, a, torch.tensor(0.0).double())


def _markov(size: int, *, by_scan: bool, states: int = 50) -> Work:
    import probtorch
    from probtorch.infer import Target

    seen, q = probtorch.from_numpy(numbers(size, states)), numbers(states * states)

    def density(q: object) -> object:
        move, state = q.reshape(states, states).log_softmax(-1), seen[0]

        def step(state: object, now: object) -> tuple:
            return (state[:, None] + move).logsumexp(0) + now, None

        if by_scan:
            state, _ = probtorch.scan(step, state, seen[1:])
        else:
            for t in range(1, size):
                state, _ = step(state, seen[t])
        return state.logsumexp(0)

    target = Target.from_density(density, len(q))
    return lambda: target.value_and_grad(q)


def _jax_markov(size: int, states: int = 50) -> Work:
    import jax
    from jax.nn import log_softmax, logsumexp

    seen, q = jax.numpy.asarray(numbers(size, states)), numbers(states * states)

    def density(q: object) -> object:
        move = log_softmax(q.reshape(states, states), -1)

        def step(state: object, now: object) -> tuple:
            return logsumexp(state[:, None] + move, 0) + now, None

        return logsumexp(jax.lax.scan(step, seen[0], seen[1:])[0])

    fn = jax.jit(jax.value_and_grad(density))
    return lambda: jax.block_until_ready(fn(q))


@case("hidden Markov model, 50 states, `for` of {} steps, gradient", 300, 1000, 3000)
class Markov:
    """JAX by `scan`."""

    @staticmethod
    def probtorch(size: int) -> Work:
        return _markov(size, by_scan=False)

    jax = staticmethod(_jax_markov)


@case("hidden Markov model, 50 states, `scan` of {} steps, gradient", 300, 1000, 3000)
class MarkovScan:
    """The same."""

    @staticmethod
    def probtorch(size: int) -> Work:
        return _markov(size, by_scan=True)

    jax = staticmethod(_jax_markov)
