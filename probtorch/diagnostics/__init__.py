"""What inference returns, and whether to believe it.

`Draws` is the record that every engine returns; `summary` and `diagnose` judge it; the functions of
`convergence.py` and `intervals.py` do so on plain arrays. Everything rests on NumPy and SciPy
alone; ArviZ, pandas and matplotlib are imported only by the calls that need them.
"""

from probtorch.diagnostics.checks import (
    ConvergenceWarning,
    DivergenceWarning,
    EnergyWarning,
    Finding,
    InferenceWarning,
    TreeDepthWarning,
    diagnose,
    warn_about,
)
from probtorch.diagnostics.convergence import (
    autocovariance,
    bfmi,
    ess_bulk,
    ess_mean,
    ess_quantile,
    ess_sd,
    ess_tail,
    mcse_mean,
    mcse_quantile,
    mcse_sd,
    rhat,
    split_rhat,
)
from probtorch.diagnostics.draws import Draws
from probtorch.diagnostics.intervals import eti, hdi
from probtorch.diagnostics.plots import trace_plot
from probtorch.diagnostics.psis import pareto_k_limit, psis
from probtorch.diagnostics.summary import Summary, summary

__all__ = [
    "ConvergenceWarning",
    "DivergenceWarning",
    "Draws",
    "EnergyWarning",
    "Finding",
    "InferenceWarning",
    "Summary",
    "TreeDepthWarning",
    "autocovariance",
    "bfmi",
    "diagnose",
    "ess_bulk",
    "ess_mean",
    "ess_quantile",
    "ess_sd",
    "ess_tail",
    "eti",
    "hdi",
    "mcse_mean",
    "mcse_quantile",
    "mcse_sd",
    "pareto_k_limit",
    "psis",
    "rhat",
    "split_rhat",
    "summary",
    "trace_plot",
    "warn_about",
]
