"""What stands in for names of the inference of Pyro, NumPyro, PyMC and Turing that is not here."""

from __future__ import annotations

__all__ = ["INSTEAD"]

_DRAWS = "results have their draws: MCMC(...).get_samples(), SVI(...).run(n).draws(), or Draws"

INSTEAD = {
    "BinaryGibbsMetropolis": 'Gibbs(model, {"z": "metropolis"})',
    "BinaryMetropolis": 'Gibbs(model, {"z": "metropolis"})',
    "BlockMassMatrix": "NUTS(model, full_mass=[...]) makes blocks of sites, and finds their metric",
    "CategoricalGibbsMetropolis": 'Gibbs(model, {"z": "metropolis"}) proposes uniformly, and '
    '"modified" in proportion to probabilities',
    "CustomGibbs": 'Gibbs(model, {"x": FullConditional(fn)})',
    "DiscreteGibbs": 'Gibbs(model, discrete="conditional"); NUTS sums finite sites out by itself',
    "DEMetropolisZ": "DEMetropolis(model)",
    "EmpiricalMarginal": _DRAWS + "; of weighted ones WeightedDraws.marginal(name)",
    "HMCDA": "HMC(model, trajectory_length=1.0), whose step size is found by dual averaging",
    "HamiltonianMC": "HMC(model)",
    "MCMCKernel": "infer.mcmc.kernel says what a kernel is",
    "MHResampler": "Importance(model, guide).run(), whose weights are smoothed",
    "StreamingMCMC": "MCMC.run(store=folder) streams draws to the disk, with diagnostics",
    "TraceMCMC": "MCMC",
    "TracePosterior": _DRAWS,
    "TracePredictive": "Predictive(model, samples)(*args)",
    "WeighedPredictive": "Predictive takes Importance(...).run().draws(), resampled by weight",
    "hmc_util": "step sizes and metrics are tuned by NUTS itself; NUTS(...) has the settings",
    "vsbc_diagnostic": "testing.vsbc(model, lambda m: SVI(m, AutoNormal(m), Adam, lr=0.02))",
    "run_inference": "fit(model, *args)",
}
