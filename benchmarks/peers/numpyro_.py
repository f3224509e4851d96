"""NumPyro's NUTS in float64, its chains vectorised.

That is the faster of its two ways on one core for all three models (0.8 s against 1.7 s a run for
the eight schools), though its first result comes up to 4 s later. Every `run` traces the model anew
and asks XLA to compile it; with JAX's persistent cache on, as the suite has it, that loads instead.
"""

import ctypes
import functools
import itertools

import numpy as np

from benchmarks.kernel_targets import PIECE

DISTRIBUTIONS = ("numpyro", "jax", "jaxlib")


def log_density_of(name, case):
    import jax
    import jax.numpy as jnp
    import numpyro.distributions

    jax.config.update("jax_enable_x64", True)
    values = jnp.asarray(case.values)
    values = values.astype(jnp.int64) if name in ("Categorical", "Bernoulli") else values
    fixed = {n: jnp.asarray(x) for n, x in case.fixed.items()}
    given = {n: jnp.asarray(x) for n, x in case.parameters.items()}
    kind = getattr(numpyro.distributions, name)

    @jax.jit
    @jax.value_and_grad
    def step(parameters, values):
        return kind(**fixed, **parameters).log_prob(values).sum()

    def call():
        value, grads = jax.block_until_ready(step(given, values))
        return value, *(grads[n] for n in given)

    return call


def model(problem):
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    def eight_schools(y, sigma):
        mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
        tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
        with numpyro.plate("school", 8):
            z = numpyro.sample("z", dist.Normal(0.0, 1.0))
            theta = numpyro.deterministic("theta", mu + tau * z)
            numpyro.sample("obs", dist.Normal(theta, sigma), obs=y)

    def logistic(x, y):
        beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([50]).to_event(1))
        with numpyro.plate("row", 5000):
            numpyro.sample("obs", dist.Bernoulli(logits=x @ beta), obs=y)

    def varying_intercepts(x, group, y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
        tau = numpyro.sample("tau", dist.HalfNormal(2.0))
        beta = numpyro.sample("beta", dist.Normal(0.0, 5.0))
        sigma = numpyro.sample("sigma", dist.HalfNormal(2.0))
        with numpyro.plate("county", 85):
            z = numpyro.sample("z", dist.Normal(0.0, 1.0))
            alpha = numpyro.deterministic("alpha", mu + tau * z)
        with numpyro.plate("house", 919):
            numpyro.sample("obs", dist.Normal(alpha[group] + beta * x, sigma), obs=y)

    models = {f.__name__: f for f in (eight_schools, logistic, varying_intercepts)}
    return models[problem.name], {name: jnp.asarray(v) for name, v in problem.data.items()}


def sampler(problem):
    import jax
    from numpyro.infer import MCMC, NUTS

    fn, data = model(problem)
    objects = {}

    def run(seed, chains, warmup, draws):
        if "mcmc" not in objects:
            objects["mcmc"] = MCMC(
                NUTS(fn),
                num_warmup=warmup,
                num_samples=draws,
                num_chains=chains,
                chain_method="vectorized",
                progress_bar=False,
            )
        mcmc = objects["mcmc"]
        mcmc.run(jax.random.PRNGKey(seed), **data)
        samples = mcmc.get_samples(group_by_chain=True)
        return {name: np.asarray(value) for name, value in samples.items()}

    def print_summary():
        objects["mcmc"].print_summary()

    run.print_summary = print_summary
    return run


def density_sampler(density):
    """Sample our native density, which XLA calls by its address, with NumPyro's kernel.

    The loop over transitions is our own, so that it is compiled once for all chains and seeds of a
    length; `MCMC` compiles it for every chain.

    Chains run one after the other: vectorised, all would wait for the longest trajectory, and its
    gradients would be counted for each. The interface is XLA's first one for custom calls, the
    only one that needs no C++; XLA says that it will go.
    """
    import jax
    import jax.numpy as jnp
    from numpyro.infer import NUTS

    # Narrower numbers would be another program's.
    jax.config.update("jax_enable_x64", True)
    native = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(
        density.address_of("bench_xla")
    )
    jax.ffi.register_ffi_target(
        "bench_xla", jax.ffi.pycapsule(native), platform="cpu", api_version=0
    )
    numbers = np.array([density.native.address, density.dim], np.int64)
    results = [jax.ShapeDtypeStruct(shape, jnp.float64) for shape in ((), (density.dim,))]
    call = jax.ffi.ffi_call("bench_xla", results, custom_call_api_version=1)

    def forward(q):
        return tuple(call(q, numbers))

    @jax.custom_vjp
    def potential(q):
        return forward(q)[0]

    potential.defvjp(forward, lambda gradient, cotangent: (cotangent * gradient,))

    @functools.partial(jax.jit, static_argnums=(2, 3))
    def one_chain(key, start, warmup, draws):
        kernel = NUTS(potential_fn=potential)
        state = kernel.init(key, warmup, start, (), {})

        def transition(state, _):
            state = kernel.sample(state, (), {})
            return state, (state.z, state.num_steps, state.diverging)

        return jax.lax.scan(transition, state, None, warmup + draws)[1]

    def run(seed, chains, warmup, draws):
        keys = jax.random.split(jax.random.PRNGKey(seed), chains)
        starts = [density.start(chains * seed + chain) for chain in range(chains)]
        found = [one_chain(key, start, warmup, draws) for key, start in zip(keys, starts)]
        return jax.block_until_ready(found), warmup

    def read(result):
        chains, warmup = result
        positions, steps, diverging = (
            np.stack([np.asarray(chain[i])[warmup:] for chain in chains]) for i in range(3)
        )
        return {
            "warmup": warmup,
            "positions": positions,
            "steps": steps,
            "diverging": diverging,
        }

    run.read = read
    return run


def autoencoder(data):
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from jax import random
    from jax.example_libraries import stax
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.optim import Adam

    from benchmarks.svi import BATCH, HIDDEN, LATENT, PIXELS, RATE

    # The other suites are in float64; this one comes last.
    jax.config.update("jax_enable_x64", False)

    def encoder():
        return stax.serial(
            *(stax.Dense(HIDDEN), stax.Softplus, stax.Dense(HIDDEN), stax.Softplus),
            stax.FanOut(2),
            stax.parallel(stax.Dense(LATENT), stax.serial(stax.Dense(LATENT), stax.Exp)),
        )

    def decoder():
        return stax.serial(
            *(stax.Dense(HIDDEN), stax.Softplus, stax.Dense(HIDDEN), stax.Softplus),
            stax.Dense(PIXELS),
        )

    def model(x):
        decode = numpyro.module("decoder", decoder(), (BATCH, LATENT))
        with numpyro.plate("row", len(x)):
            z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([LATENT]).to_event(1))
            numpyro.sample("x", dist.Bernoulli(logits=decode(z)).to_event(1), obs=x)

    def guide(x):
        encode = numpyro.module("encoder", encoder(), (BATCH, PIXELS))
        loc, scale = encode(x)
        with numpyro.plate("row", len(x)):
            numpyro.sample("z", dist.Normal(loc, scale).to_event(1))

    rows = itertools.cycle([jnp.asarray(x, jnp.float32) for x in data])
    svi = SVI(model, guide, Adam(RATE), Trace_ELBO())
    objects = {"state": None}
    update = jax.jit(svi.update)

    def step():
        x = next(rows)
        if objects["state"] is None:
            objects["state"] = svi.init(random.PRNGKey(0), x)
        objects["state"], loss = update(objects["state"], x)
        return float(loss)

    return step


def kernel_sampler(kernel, density, start, settings):
    """Return ``run(draws, seed) -> (positions, evaluations or None)``; see blackjax_.py."""
    import jax
    import jax.numpy as jnp
    from numpyro.infer import AIES, ESS, HMC, NUTS, BarkerMH

    step_size = settings.get("step_size")
    kept = {"step_size": step_size, "adapt_step_size": False, "adapt_mass_matrix": False}
    unit = {**kept, "inverse_mass_matrix": jnp.ones(start.shape[-1])}
    makers = {
        "NUTS": lambda f: NUTS(potential_fn=f, **unit),
        "HMC, 5 steps": lambda f: HMC(potential_fn=f, num_steps=5, trajectory_length=None, **unit),
        "BarkerMH": lambda f: BarkerMH(potential_fn=f, **kept),
        "AIES": lambda f: AIES(potential_fn=f, moves={AIES.StretchMove(): 1.0}),
        "ESS": lambda f: ESS(
            potential_fn=f,
            moves={ESS.DifferentialMove(): 1.0},
            init_mu=settings["mu"],
            tune_mu=False,
            # Walkers keep their places: shuffled ones have no autocorrelation of their own.
            randomize_split=False,
        ),
    }
    if kernel not in makers:
        return None
    made, walkers = makers[kernel](lambda q: -density(q)), start.shape[0] if start.ndim == 2 else 0
    key = jax.random.PRNGKey(0)
    keys = jax.random.split(key, walkers) if walkers else key
    first = made.init(keys, 0, jnp.asarray(start), (), {})

    @jax.jit
    def chain(state):
        def transition(state, _):
            state = made.sample(state, (), {})
            return state, (state.z, getattr(state, "num_steps", 1))

        return jax.lax.scan(transition, state, None, PIECE)

    def run(draws, seed=0):
        state, parts = first._replace(rng_key=jax.random.PRNGKey(seed)), []
        for _ in range(draws // PIECE):
            state, part = chain(state)
            parts.append(part)
        parts = jax.block_until_ready(parts)
        positions, taken = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        if walkers:
            return np.swapaxes(positions, 0, 1), None
        return positions[None], float(taken.sum())

    return run
