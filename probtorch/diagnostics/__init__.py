"""What inference returns, and whether to believe it.

`Draws` is the record that every engine returns; `summary` and `diagnose` judge it; the functions of
`convergence.py` and `intervals.py` do so on plain arrays. Everything rests on NumPy and SciPy
alone; ArviZ, pandas and matplotlib are imported only by the calls that need them.
"""

from typing import TYPE_CHECKING

from probtorch.core.rooms import late_beside
from probtorch.diagnostics.absent import INSTEAD
from probtorch.diagnostics.checks import diagnose, warn_about
from probtorch.diagnostics.comparison import Comparison, compare, stacking_weights
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
from probtorch.diagnostics.criteria import Elpd, loo, waic
from probtorch.diagnostics.draws import Draws
from probtorch.diagnostics.findings import (
    ConvergenceWarning,
    DivergenceWarning,
    EnergyWarning,
    Finding,
    InferenceWarning,
    TreeDepthWarning,
)
from probtorch.diagnostics.intervals import eti, hdi
from probtorch.diagnostics.older_forms import (
    autocorrelation,
    effective_sample_size,
    gelman_rubin,
    hpdi,
    print_summary,
    split_gelman_rubin,
)
from probtorch.diagnostics.plots import trace_plot
from probtorch.diagnostics.psis import pareto_k_limit, psis
from probtorch.diagnostics.scores import (
    crps_empirical,
    energy_score_empirical,
    loo_pit,
    loo_score,
)
from probtorch.diagnostics.summary import Summary, summary

__all__ = [
    "Comparison",
    "ConvergenceWarning",
    "DivergenceWarning",
    "Draws",
    "Elpd",
    "EnergyWarning",
    "Finding",
    "InferenceWarning",
    "Summary",
    "TreeDepthWarning",
    "autocorrelation",
    "autocovariance",
    "bfmi",
    "compare",
    "crps_empirical",
    "diagnose",
    "effective_sample_size",
    "energy_score_empirical",
    "ess_bulk",
    "ess_mean",
    "ess_quantile",
    "ess_sd",
    "ess_tail",
    "eti",
    "gelman_rubin",
    "hdi",
    "hpdi",
    "loo",
    "loo_pit",
    "loo_score",
    "mcse_mean",
    "mcse_quantile",
    "mcse_sd",
    "pareto_k_limit",
    "print_summary",
    "psis",
    "rhat",
    "split_gelman_rubin",
    "split_rhat",
    "stacking_weights",
    "summary",
    "trace_plot",
    "waic",
    "warn_about",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = late_beside(__name__, {}, INSTEAD)
