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


class _OnDensity:
    """What `nutpie.sample` needs of a compiled model, for a density that is native already."""

    dims = coords = None

    def __init__(self, density):
        self.density, self.n_dim = density, density.dim

    def _make_sampler(self, settings, init_mean, cores, progress_type, store):
        from nutpie import _lib

        density, sizes = self.density, {"at": self.n_dim, "unconstrained_parameter": self.n_dim}
        table = density.native.address
        model = _lib.PyMcModel(
            _lib.LogpFunc(density.address_of("bench_nutpie"), table, self),
            _lib.ExpandFunc(
                self.n_dim, self.n_dim, density.address_of("bench_identity"), table, self
            ),
            _lib.PyVariable.new_variables(["q"], ["float64"], [[self.n_dim]], sizes, {"q": ["at"]}),
            self.n_dim,
            sizes,
            {},
            lambda seed: density.start(seed % 2**31),
            lambda *_, **__: None,
        )
        return _lib.PySampler.from_pymc(settings, cores, model, progress_type, store)


def density_sampler(density, low_rank=False):
    import nutpie
    import pyarrow

    def column(batch, name):
        return pyarrow.array(batch.column(name))

    def run(seed, chains, warmup, draws):
        raw = nutpie.sample(
            _OnDensity(density),
            draws=draws,
            tune=warmup,
            chains=chains,
            cores=1,
            seed=seed,
            progress_bar=False,
            low_rank_modified_mass_matrix=low_rank,
            return_raw_trace=True,
        )
        return raw, warmup

    def read(result):
        raw, warmup = result
        positions, stats = raw.get_arrow_trace()
        return {
            "warmup": warmup,
            "positions": np.stack(
                [
                    column(batch, "q").flatten().to_numpy(False).reshape(-1, density.dim)[warmup:]
                    for batch in positions
                ]
            ),
            "steps": np.stack([column(s, "n_steps").to_numpy(False)[warmup:] for s in stats]),
            "diverging": np.stack([column(s, "diverging").to_numpy(False)[warmup:] for s in stats]),
        }

    run.read = read
    return run
