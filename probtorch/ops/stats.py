"""Pyro's name for statistics of tensors, which are in `probtorch.diagnostics.tensor_stats`."""

from typing import TYPE_CHECKING

from probtorch.core.rooms import late_names

if TYPE_CHECKING:  # checkers know the names from here, Python from the table
    from probtorch.diagnostics.tensor_stats import (
        autocorrelation as autocorrelation,
        autocovariance as autocovariance,
        crps_empirical as crps_empirical,
        effective_sample_size as effective_sample_size,
        energy_score_empirical as energy_score_empirical,
        gelman_rubin as gelman_rubin,
        hpdi as hpdi,
        pi as pi,
        quantile as quantile,
        resample as resample,
        split_gelman_rubin as split_gelman_rubin,
        waic as waic,
        weighed_quantile as weighed_quantile,
    )
else:
    _HOMES = {
        "probtorch.diagnostics.tensor_stats": (
            "autocorrelation autocovariance crps_empirical effective_sample_size "
            "energy_score_empirical gelman_rubin hpdi pi quantile resample split_gelman_rubin "
            "waic weighed_quantile"
        )
    }
    _INSTEAD = {"fit_generalized_pareto": "diagnostics.psis(log_ratios) smooths weights by it"}
    __all__, __getattr__, __dir__ = late_names(__name__, _HOMES, instead=_INSTEAD)
