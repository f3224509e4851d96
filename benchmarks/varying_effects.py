"""Correlated varying effects: a gradient of a model with many groups, ours and NumPyro's.

Two coefficients for each of 6,000 groups, ten rows a group in random order: what is paid for is the
way from rows to groups and back. Rows of the suite `scale`, in processor time of one thread, the
best of some rounds; NumPyro has its rows where it is installed, in both precisions.
"""

import importlib.util
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import probtorch
import probtorch.distributions as dist
from probtorch.infer import Target

__all__ = ["ROWS"]

Row = tuple[str, int, float]

GROUPS, EACH = 6000, 10
ROUNDS, CALLS = 12, 20


def _data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the group of each row, a covariate and the outcome."""
    rng = np.random.default_rng(0)
    group = rng.permutation(np.repeat(np.arange(GROUPS), EACH))
    x = rng.normal(size=group.size)
    effects = rng.normal((1.0, 0.5), (0.5, 0.3), (GROUPS, 2))[group]
    return group, x, effects[:, 0] + effects[:, 1] * x + rng.normal(0.0, 0.7, group.size)


def _model(ppl: Any, d: Any, group: object, x: object, y: object) -> Callable[[], None]:
    """The model in words that both libraries have."""

    def model() -> None:
        mu = ppl.sample("mu", d.Normal(0.0, 1.0).expand([2]).to_event(1))
        tau = ppl.sample("tau", d.HalfNormal(1.0).expand([2]).to_event(1))
        factor = ppl.sample("factor", d.LKJCholesky(2, 2.0))
        sigma = ppl.sample("sigma", d.HalfNormal(1.0))
        with ppl.plate("group", GROUPS):
            z = ppl.sample("z", d.Normal(0.0, 1.0).expand([2]).to_event(1))
        effects = mu + z @ (tau[:, None] * factor).T
        with ppl.plate("row", GROUPS * EACH):
            mean = effects[group, 0] + effects[group, 1] * x
            ppl.sample("y", d.Normal(mean, sigma), obs=y)

    return model


def _best(call: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.process_time()
        for _ in range(CALLS):
            call()
        best = min(best, (time.process_time() - start) / CALLS)
    return best


def ours() -> Row:
    """In double precision, as samplers take it."""
    threads = probtorch.get_num_threads()
    probtorch.set_num_threads(1)
    try:
        data = [probtorch.tensor(x) for x in _data()]
        target = Target.from_model(_model(probtorch, dist, *data))
        q = np.random.default_rng(1).normal(0.0, 0.1, target.dim)
        target.value_and_grad(q)
        seconds = _best(lambda: target.value_and_grad(q))
    finally:
        probtorch.set_num_threads(threads)
    return "gradient of correlated varying effects, float64", GROUPS * EACH, seconds


def _numpyro(double: bool) -> Callable[[], Row]:
    def row() -> Row:
        # Read when JAX looks for its devices.
        one = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {one}"
        import jax
        import numpyro
        from numpyro.infer.util import initialize_model

        jax.config.update("jax_enable_x64", double)
        group, x, y = _data()
        kind = np.float64 if double else np.float32
        data = [jax.numpy.asarray(a) for a in (group, x.astype(kind), y.astype(kind))]
        model = _model(numpyro, numpyro.distributions, *data)
        found = initialize_model(jax.random.PRNGKey(0), model)
        fn, z = jax.jit(jax.value_and_grad(found.potential_fn)), found.param_info.z
        jax.block_until_ready(fn(z))
        seconds = _best(lambda: jax.block_until_ready(fn(z)))
        precision = "float64" if double else "float32"
        return f"the same by NumPyro, {precision}", GROUPS * EACH, seconds

    return row


ROWS: list[Callable[[], Row]] = [ours]
if importlib.util.find_spec("numpyro") is not None:
    ROWS += [_numpyro(False), _numpyro(True)]
