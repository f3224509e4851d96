"""What stands in for names of Pyro's and NumPyro's diagnostics that are not here."""

from __future__ import annotations

__all__ = ["INSTEAD"]

INSTEAD = {
    "fit_generalized_pareto": "psis(log_ratios) smooths weights by it",
    "pi": "eti(x, prob) of draws (chain, draw, *event); ops.stats.pi of tensors",
    "quantile": "ops.stats.quantile, or quantile at the front door",
    "resample": "ops.stats.resample",
    "weighed_quantile": "ops.stats.weighed_quantile, or WeightedDraws.quantile",
}
