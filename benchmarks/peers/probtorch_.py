"""probtorch, through its public names alone: models as a user would write them."""

import itertools
import time

import numpy as np

DISTRIBUTIONS = ("probtorch",)


def tensor_library():
    import probtorch as torch

    return torch


def log_density_of(name, case, compiled):
    import probtorch
    from probtorch import distributions, func

    values = probtorch.tensor(case.values)
    fixed = {n: probtorch.tensor(x) for n, x in case.fixed.items()}
    given = [probtorch.tensor(x) for x in case.parameters.values()]
    names = tuple(
        case.parameters
    )  # arrays that a compiled function can reach are compared each time

    def total(values, *parameters):
        arguments = dict(zip(names, parameters, strict=True))
        return getattr(distributions, name)(**fixed, **arguments).log_prob(values).sum()

    if compiled:
        numbers = tuple(range(1, 1 + len(given)))
        step = probtorch.compile(func.value_and_grad(total, argnums=numbers))

        def call():
            value, grads = step(values, *given)
            return value, *grads

        return call

    leaves = [x.requires_grad_() for x in given]

    def eager():
        value = total(values, *leaves)
        return value.detach(), *probtorch.autograd.grad(value, leaves)

    return eager


def sampler_of(name, arguments, count):
    import probtorch
    from probtorch import distributions

    arguments = {n: probtorch.tensor(x, dtype=probtorch.float64) for n, x in arguments.items()}
    distribution = getattr(distributions, name)(**arguments)
    return lambda: distribution.sample((count,))


def model(problem):
    """Return the model function of `problem` and its arguments as tensors."""
    import probtorch
    import probtorch.distributions as dist

    def eight_schools(y, sigma):
        mu = probtorch.sample("mu", dist.Normal(0.0, 5.0))
        tau = probtorch.sample("tau", dist.HalfCauchy(5.0))
        with probtorch.plate("school", 8):
            z = probtorch.sample("z", dist.Normal(0.0, 1.0))
            theta = probtorch.deterministic("theta", mu + tau * z)
            probtorch.sample("obs", dist.Normal(theta, sigma), obs=y)

    def logistic(x, y):
        beta = probtorch.sample("beta", dist.Normal(0.0, 1.0).expand([50]).to_event(1))
        with probtorch.plate("row", 5000):
            probtorch.sample("obs", dist.Bernoulli(logits=x @ beta), obs=y)

    def varying_intercepts(x, group, y):
        mu = probtorch.sample("mu", dist.Normal(0.0, 5.0))
        tau = probtorch.sample("tau", dist.HalfNormal(2.0))
        beta = probtorch.sample("beta", dist.Normal(0.0, 5.0))
        sigma = probtorch.sample("sigma", dist.HalfNormal(2.0))
        with probtorch.plate("county", 85):
            z = probtorch.sample("z", dist.Normal(0.0, 1.0))
            alpha = probtorch.deterministic("alpha", mu + tau * z)
        with probtorch.plate("house", 919):
            probtorch.sample("obs", dist.Normal(alpha[group] + beta * x, sigma), obs=y)

    def many_rows(x, group, y):
        mu = probtorch.sample("mu", dist.Normal(0.0, 5.0))
        tau = probtorch.sample("tau", dist.HalfNormal(2.0))
        beta = probtorch.sample("beta", dist.Normal(0.0, 5.0))
        sigma = probtorch.sample("sigma", dist.HalfNormal(2.0))
        with probtorch.plate("group", 400):
            z = probtorch.sample("z", dist.Normal(0.0, 1.0))
        with probtorch.plate("row", 10_000):
            loc = (mu + tau * z)[group] + beta * x
            probtorch.sample("obs", dist.Normal(loc, sigma), obs=y)

    def gaussian_process(x, y):
        rho = probtorch.sample("rho", dist.HalfNormal(1.0))
        alpha = probtorch.sample("alpha", dist.HalfNormal(1.0))
        sigma = probtorch.sample("sigma", dist.HalfNormal(1.0))
        squares = (x[:, None] - x) ** 2
        covariance = alpha**2 * (-0.5 * squares / rho**2).exp()
        covariance = covariance + (sigma**2 + 1e-6) * probtorch.eye(200, dtype=x.dtype)
        probtorch.sample("obs", dist.MultivariateNormal(x * 0.0, covariance), obs=y)

    def hidden_markov(y):
        logits = probtorch.sample("logits", dist.Normal(0.0, 1.0).expand([5, 5]).to_event(2))
        loc = probtorch.sample("loc", dist.Normal(0.0, 5.0).expand([5]).to_event(1))
        move = logits.log_softmax(-1)
        alpha = dist.Normal(loc, 1.0).log_prob(y[0]) - np.log(5.0)
        for t in range(1, 1000):
            alpha = (alpha[:, None] + move).logsumexp(0) + dist.Normal(loc, 1.0).log_prob(y[t])
        probtorch.factor("obs", alpha.logsumexp(0))

    def autoregression(y):
        alpha = probtorch.sample("alpha", dist.Normal(0.0, 1.0))
        beta = probtorch.sample("beta", dist.Normal(0.0, 1.0).expand([5]).to_event(1))
        sigma = probtorch.sample("sigma", dist.HalfNormal(1.0))
        total = 0.0
        for t in range(5, 5000):
            loc = alpha + (beta * y[t - 5 : t]).sum()
            total = total + dist.Normal(loc, sigma).log_prob(y[t])
        probtorch.factor("obs", total)

    def softmax_regression(x, y):
        weights = probtorch.sample("weights", dist.Normal(0.0, 1.0).expand([20, 5]).to_event(2))
        with probtorch.plate("row", 2000):
            probtorch.sample("obs", dist.Categorical(logits=x @ weights), obs=y)

    models = {
        f.__name__: f
        for f in (
            eight_schools,
            logistic,
            varying_intercepts,
            many_rows,
            gaussian_process,
            hidden_markov,
            autoregression,
            softmax_regression,
        )
    }
    tensors = {name: probtorch.tensor(value) for name, value in problem.data.items()}
    return models[problem.name], tensors


def density(problem):
    from probtorch.infer import Target

    fn, data = model(problem)
    target = Target.from_model(fn, **data)

    def value_and_grad(q):
        return target.value_and_grad(q)

    return value_and_grad


def sampler(problem):
    import probtorch
    from probtorch.infer import MCMC, NUTS

    fn, data = model(problem)
    objects = {}

    def run(seed, chains, warmup, draws):
        probtorch.manual_seed(seed)
        mcmc = MCMC(
            NUTS(fn),
            num_samples=draws,
            warmup_steps=warmup,
            num_chains=chains,
            disable_progbar=True,
        )
        mcmc.run(**data)
        objects["mcmc"] = mcmc
        samples = mcmc.get_samples(group_by_chain=True)
        return {name: np.asarray(value) for name, value in samples.items()}

    def print_summary():
        print(objects["mcmc"].summary())

    run.print_summary = print_summary
    return run


def density_sampler(density, **settings):
    from probtorch.infer import MCMC, NUTS

    def run(seed, chains, warmup, draws):
        mcmc = MCMC(
            NUTS(density.target, **settings),
            num_samples=draws,
            warmup_steps=warmup,
            num_chains=chains,
            num_threads=1,
            seed=seed,
            progress_bar=False,
        )
        mcmc.diagnose = False  # as the peers do
        start = time.perf_counter()
        mcmc.run()
        return mcmc, time.perf_counter() - start

    def read(result):
        mcmc, seconds = result
        stats = mcmc.draws.sample_stats
        return {
            "warmup": mcmc.num_warmup,
            "positions": mcmc.draws.positions,
            "steps": np.asarray(stats["n_steps"]),
            "diverging": np.asarray(stats["diverging"]),
            # Naming the draws is left out: the peers' are raw.
            "share": sum(mcmc.seconds.values()) / seconds,
        }

    run.read = read
    return run


def autoencoder(data):
    import probtorch
    import probtorch.distributions as dist
    from benchmarks.svi import HIDDEN, LATENT, PIXELS, RATE
    from probtorch import nn
    from probtorch.infer import SVI, Trace_ELBO
    from probtorch.optim import Adam

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(
                nn.Linear(PIXELS, HIDDEN), nn.Softplus(), nn.Linear(HIDDEN, HIDDEN), nn.Softplus()
            )
            self.loc, self.log_scale = nn.Linear(HIDDEN, LATENT), nn.Linear(HIDDEN, LATENT)

        def forward(self, x):
            h = self.body(x)
            return self.loc(h), self.log_scale(h).exp()

    probtorch.manual_seed(0)
    encoder = Encoder()
    decoder = nn.Sequential(
        *(nn.Linear(LATENT, HIDDEN), nn.Softplus(), nn.Linear(HIDDEN, HIDDEN), nn.Softplus()),
        nn.Linear(HIDDEN, PIXELS),
    )

    def model(x):
        probtorch.module("decoder", decoder)
        with probtorch.plate("row", len(x)):
            z = probtorch.sample("z", dist.Normal(probtorch.zeros(len(x), LATENT), 1.0).to_event(1))
            probtorch.sample("x", dist.Bernoulli(logits=decoder(z)).to_event(1), obs=x)

    def guide(x):
        probtorch.module("encoder", encoder)
        with probtorch.plate("row", len(x)):
            loc, scale = encoder(x)
            probtorch.sample("z", dist.Normal(loc, scale).to_event(1))

    svi = SVI(model, guide, Adam({"lr": RATE}), Trace_ELBO())
    rows = itertools.cycle([probtorch.tensor(x) for x in data])
    return lambda: svi.step(next(rows))
