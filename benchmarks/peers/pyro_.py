"""Pyro's NUTS in float64. Minutes rather than seconds, so the nuts suite asks for it by --slow."""

import itertools

import numpy as np

DISTRIBUTIONS = ("pyro-ppl", "torch")


def model(problem):
    import pyro
    import pyro.distributions as dist
    import torch

    zero, one, two, five = (torch.tensor(v, dtype=torch.float64) for v in (0.0, 1.0, 2.0, 5.0))

    def eight_schools(y, sigma):
        mu = pyro.sample("mu", dist.Normal(zero, five))
        tau = pyro.sample("tau", dist.HalfCauchy(five))
        with pyro.plate("school", 8):
            z = pyro.sample("z", dist.Normal(zero, one))
            pyro.sample("obs", dist.Normal(mu + tau * z, sigma), obs=y)

    def logistic(x, y):
        beta = pyro.sample("beta", dist.Normal(zero, one).expand([50]).to_event(1))
        with pyro.plate("row", 5000):
            pyro.sample("obs", dist.Bernoulli(logits=x @ beta), obs=y)

    def varying_intercepts(x, group, y):
        mu = pyro.sample("mu", dist.Normal(zero, five))
        tau = pyro.sample("tau", dist.HalfNormal(two))
        beta = pyro.sample("beta", dist.Normal(zero, five))
        sigma = pyro.sample("sigma", dist.HalfNormal(two))
        with pyro.plate("county", 85):
            z = pyro.sample("z", dist.Normal(zero, one))
        with pyro.plate("house", 919):
            pyro.sample("obs", dist.Normal((mu + tau * z)[group] + beta * x, sigma), obs=y)

    models = {f.__name__: f for f in (eight_schools, logistic, varying_intercepts)}
    return models[problem.name], {name: torch.as_tensor(v) for name, v in problem.data.items()}


def sampler(problem):
    import pyro
    import torch
    from pyro.infer import MCMC, NUTS

    torch.set_num_threads(1)
    fn, data = model(problem)
    objects = {}

    def run(seed, chains, warmup, draws):
        pyro.set_rng_seed(seed)
        # Pyro's own parallel chains are processes; on one core they run one after the other.
        each = []
        for _ in range(chains):
            objects["mcmc"] = MCMC(
                NUTS(fn), num_samples=draws, warmup_steps=warmup, disable_progbar=True
            )
            objects["mcmc"].run(**data)
            each.append(objects["mcmc"].get_samples())
        samples = {name: np.stack([np.asarray(c[name]) for c in each]) for name in each[0]}
        derived = {"eight_schools": "theta", "varying_intercepts": "alpha"}.get(problem.name)
        if derived:
            mu, tau = samples["mu"][..., None], samples["tau"][..., None]
            samples[derived] = mu + tau * samples["z"]
        return samples

    def print_summary():
        objects["mcmc"].summary()

    run.print_summary = print_summary
    return run


def autoencoder(data):
    import pyro
    import pyro.distributions as dist
    import torch
    from pyro.infer import SVI, Trace_ELBO
    from pyro.optim import Adam

    from benchmarks.peers.torch_ import networks
    from benchmarks.svi import LATENT, RATE

    torch.set_num_threads(1)
    pyro.set_rng_seed(0)
    encoder, decoder = networks()

    def model(x):
        pyro.module("decoder", decoder)
        with pyro.plate("row", len(x)):
            z = pyro.sample("z", dist.Normal(torch.zeros(len(x), LATENT), 1.0).to_event(1))
            logits = decoder(z)
            # The data are checked by no system.
            likelihood = dist.Bernoulli(logits=logits, validate_args=False)
            pyro.sample("x", likelihood.to_event(1), obs=x)

    def guide(x):
        pyro.module("encoder", encoder)
        with pyro.plate("row", len(x)):
            loc, scale = encoder(x)
            pyro.sample("z", dist.Normal(loc, scale).to_event(1))

    svi = SVI(model, guide, Adam({"lr": RATE}), Trace_ELBO())
    rows = itertools.cycle([torch.tensor(x) for x in data])
    return lambda: svi.step(next(rows))
