"""All ops, one declaration each, grouped by kin; importing fills the registry in `core/op.py`."""

from typing import TYPE_CHECKING

from probtorch.core.rooms import late_beside

# What does the work of Pyro's modules of this name that are not here.
INSTEAD = {
    "arrowhead": "NUTS(model, full_mass=[...]) has mass matrices by blocks of sites",
    "contract": "probtorch.einsum; finite sites are summed out by TraceEnum_ELBO and NUTS",
    "dual_averaging": "NUTS(target_accept_prob=) tunes its step size by itself",
    "einsum": "probtorch.einsum plans the order; logsumexp for logarithms",
    "gamma_gaussian": "distributions.GammaGaussianHMM",
    "gaussian": "distributions.GaussianHMM, MultivariateNormal and their kin",
    "hessian": "func.hessian(fn)",
    "integrator": "HMC and NUTS have theirs; ode.odeint solves differential equations",
    "jit": "compile(fn)",
    "newton": "numerics.root finds where a gradient is 0; infer.LaplaceApproximation the mode",
    "packed": "plates name their dims; probtorch.einsum sums over named ones",
    "provenance": "viz.get_model_relations and get_dependencies say who depends on whom",
    "rings": "probtorch.einsum, and logsumexp for logarithms",
    "ssm_gp": "contrib.timeseries.MaternKernel",
    "streaming": "MCMC.run(store=folder) streams draws to the disk, with diagnostics",
    "welford": "NUTS adapts its mass matrix by itself; var and cov are of draws",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = late_beside(__name__, {}, INSTEAD)
