"""Forecasts: one model for a series as it was and as it goes on, by Pyro's names.

A `ForecastingModel` is written over the time that its covariates cover. Given data of all that time
it is a model to be fitted; given less, it goes on from a fit to the rest. `Forecaster` fits by SVI,
`HMCForecaster` by NUTS, and both are called for draws of what is to come; `backtest` does so at
many times of a series that is known, and scores the draws. Read model.py first.
"""

from probtorch.contrib.forecast.backtests import backtest, eval_crps, eval_mae, eval_rmse
from probtorch.contrib.forecast.forecasters import Forecaster, HMCForecaster
from probtorch.contrib.forecast.model import ForecastingModel

__all__ = [
    "Forecaster",
    "ForecastingModel",
    "HMCForecaster",
    "backtest",
    "eval_crps",
    "eval_mae",
    "eval_rmse",
]
