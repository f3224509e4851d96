"""JAX: log densities as a JAX user writes them, for the density suite.

Each is `jax.jit(jax.value_and_grad(...))` in float64. `density_in_loop` runs many evaluations
inside one compiled loop, each at a point that depends on the last gradient: what JAX costs where
its dispatch does not count.
"""

import itertools

import numpy as np

DISTRIBUTIONS = ("jax", "jaxlib")


def log_density(problem):
    """Return the log density of `problem` as a JAX function of the unconstrained vector."""
    import jax.numpy as jnp
    from jax import lax, nn
    from jax.scipy import stats

    data = {name: jnp.asarray(value) for name, value in problem.data.items()}
    normal = stats.norm.logpdf

    def half_normal_of_log(log_value, scale):
        return normal(jnp.exp(log_value), 0.0, scale) + jnp.log(2.0) + log_value

    def eight_schools(q):
        mu, log_tau, z = q[0], q[1], q[2:]
        tau = jnp.exp(log_tau)
        prior = normal(mu, 0.0, 5.0) + normal(z, 0.0, 1.0).sum()
        prior += stats.cauchy.logpdf(tau, 0.0, 5.0) + jnp.log(2.0) + log_tau
        return prior + normal(data["y"], mu + tau * z, data["sigma"]).sum()

    def logistic(q):
        logits = data["x"] @ q
        return normal(q, 0.0, 1.0).sum() + (data["y"] * logits - nn.softplus(logits)).sum()

    def varying_intercepts(q):
        mu, log_tau, beta, log_sigma, z = q[0], q[1], q[2], q[3], q[4:]
        prior = normal(mu, 0.0, 5.0) + normal(beta, 0.0, 5.0) + normal(z, 0.0, 1.0).sum()
        prior += half_normal_of_log(log_tau, 2.0) + half_normal_of_log(log_sigma, 2.0)
        alpha = mu + jnp.exp(log_tau) * z
        loc = alpha[data["group"]] + beta * data["x"]
        return prior + normal(data["y"], loc, jnp.exp(log_sigma)).sum()

    def gaussian_process(q):
        rho, alpha, sigma = jnp.exp(q)
        prior = sum(half_normal_of_log(log_value, 1.0) for log_value in q)
        squares = (data["x"][:, None] - data["x"]) ** 2
        covariance = alpha**2 * jnp.exp(-0.5 * squares / rho**2)
        covariance += (sigma**2 + 1e-6) * jnp.eye(200)
        return prior + stats.multivariate_normal.logpdf(data["y"], jnp.zeros(200), covariance)

    def hidden_markov(q):
        logits, loc = q[:25].reshape(5, 5), q[25:]
        prior = normal(logits, 0.0, 1.0).sum() + normal(loc, 0.0, 5.0).sum()
        move = nn.log_softmax(logits, -1)

        def step(alpha, y):
            return nn.logsumexp(alpha[:, None] + move, 0) + normal(y, loc, 1.0), None

        first = normal(data["y"][0], loc, 1.0) - jnp.log(5.0)
        alpha, _ = lax.scan(step, first, data["y"][1:])
        return prior + nn.logsumexp(alpha)

    def autoregression(q):
        alpha, beta, sigma = q[0], q[1:6], jnp.exp(q[6])
        prior = normal(q[:6], 0.0, 1.0).sum() + half_normal_of_log(q[6], 1.0)

        def step(last, y):
            density = normal(y, alpha + (beta * last).sum(), sigma)
            return jnp.concatenate([last[1:], y[None]]), density

        _, densities = lax.scan(step, data["y"][:5], data["y"][5:])
        return prior + densities.sum()

    def softmax_regression(q):
        scores = nn.log_softmax(data["x"] @ q.reshape(20, 5), -1)
        chosen = jnp.take_along_axis(scores, data["y"][:, None], -1)
        return normal(q, 0.0, 1.0).sum() + chosen.sum()

    functions = {
        "eight_schools": eight_schools,
        "logistic": logistic,
        "varying_intercepts": varying_intercepts,
        "many_rows": varying_intercepts,
        "gaussian_process": gaussian_process,
        "hidden_markov": hidden_markov,
        "autoregression": autoregression,
        "softmax_regression": softmax_regression,
    }
    return functions[problem.name]


def density(problem):
    import jax

    compiled = jax.jit(jax.value_and_grad(log_density(problem)))

    def value_and_grad(q):
        value, grad = compiled(q)
        grad.block_until_ready()
        return value, grad

    return value_and_grad


def density_in_loop(problem, evaluations):
    import jax
    import jax.numpy as jnp

    value_and_grad = jax.value_and_grad(log_density(problem))

    @jax.jit
    def loop(q):
        def body(_, state):
            point, total = state
            value, grad = value_and_grad(point)
            return q + 1e-9 * grad, total + value

        return jax.lax.fori_loop(0, evaluations, body, (q, jnp.zeros(())))

    return lambda q: loop(q)[1].block_until_ready()


def autoencoder(data):
    import jax
    import jax.numpy as jnp
    from jax import nn, random
    from jax.example_libraries.optimizers import adam

    from benchmarks.svi import HIDDEN, LATENT, PIXELS, RATE

    # All dtypes are said: the other suites run in float64, in the same process.
    sizes = [(PIXELS, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, LATENT), (HIDDEN, LATENT)]
    sizes += [(LATENT, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, PIXELS)]
    keys = random.split(random.PRNGKey(0), len(sizes))
    weights = [
        (
            random.normal(key, size, jnp.float32) * np.float32(size[0] ** -0.5),
            jnp.zeros(size[1:], jnp.float32),
        )
        for key, size in zip(keys, sizes, strict=True)
    ]
    start, advance, current = adam(RATE)

    def loss_of(weights, key, x):
        def layer(i, h):
            return h @ weights[i][0] + weights[i][1]

        h = nn.softplus(layer(1, nn.softplus(layer(0, x))))
        loc, log_scale = layer(2, h), layer(3, h)
        z = loc + jnp.exp(log_scale) * random.normal(key, loc.shape, jnp.float32)
        logits = layer(6, nn.softplus(layer(5, nn.softplus(layer(4, z)))))
        divergence = 0.5 * (loc**2 + jnp.exp(2.0 * log_scale) - 1.0 - 2.0 * log_scale).sum()
        return divergence + (nn.softplus(logits) - x * logits).sum()

    @jax.jit
    def update(i, state, key, x):
        key, mine = random.split(key)
        loss, gradient = jax.value_and_grad(loss_of)(current(state), mine, x)
        return advance(i, gradient, state), key, loss

    rows = itertools.cycle([jnp.asarray(x, jnp.float32) for x in data])
    objects = {"state": start(weights), "key": random.PRNGKey(1), "step": 0}

    def step():
        state, key, loss = update(objects["step"], objects["state"], objects["key"], next(rows))
        objects.update(state=state, key=key, step=objects["step"] + 1)
        return float(loss)

    return step
