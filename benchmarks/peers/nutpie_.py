"""nutpie sampling a PyMC model (its default Numba backend)."""

import numpy as np

DISTRIBUTIONS = ("nutpie", "pymc")


def model(problem):
    import pymc as pm

    data = problem.data
    with pm.Model() as built:
        if problem.name == "eight_schools":
            mu = pm.Normal("mu", 0.0, 5.0)
            tau = pm.HalfCauchy("tau", 5.0)
            z = pm.Normal("z", 0.0, 1.0, shape=8)
            theta = pm.Deterministic("theta", mu + tau * z)
            pm.Normal("obs", theta, data["sigma"], observed=data["y"])
        elif problem.name == "logistic":
            beta = pm.Normal("beta", 0.0, 1.0, shape=50)
            pm.Bernoulli("obs", logit_p=pm.math.dot(data["x"], beta), observed=data["y"])
        else:
            mu = pm.Normal("mu", 0.0, 5.0)
            tau = pm.HalfNormal("tau", 2.0)
            beta = pm.Normal("beta", 0.0, 5.0)
            sigma = pm.HalfNormal("sigma", 2.0)
            z = pm.Normal("z", 0.0, 1.0, shape=85)
            alpha = pm.Deterministic("alpha", mu + tau * z)
            loc = alpha[data["group"]] + beta * data["x"]
            pm.Normal("obs", loc, sigma, observed=data["y"])
    return built


def sampler(problem):
    import arviz
    import nutpie

    compiled = nutpie.compile_pymc_model(model(problem))
    objects = {}

    def run(seed, chains, warmup, draws):
        trace = nutpie.sample(
            compiled,
            draws=draws,
            tune=warmup,
            chains=chains,
            cores=1,
            seed=seed,
            progress_bar=False,
        )
        objects["trace"] = trace
        return {name: np.asarray(value) for name, value in trace.posterior.data_vars.items()}

    def print_summary():
        print(arviz.summary(objects["trace"], var_names=list(problem.monitored)))

    run.print_summary = print_summary
    return run
