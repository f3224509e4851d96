"""`backtest`: forecasts at many times of a known series, and their scores."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import TypeAlias

from probtorch.contrib.forecast.forecasters import Forecaster
from probtorch.contrib.forecast.model import ForecastingModel, covariates_for, duration_of
from probtorch.core.making import as_tensor
from probtorch.core.signatures import explain_calls
from probtorch.core.typed import TensorLike
from probtorch.diagnostics.tensor_stats import crps_empirical
from probtorch.effects import handlers
from probtorch.errors import ArgumentError
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.order_statistics import quantile
from probtorch.ops.reduction import mean
from probtorch.tensor import Tensor

__all__ = ["backtest", "eval_crps", "eval_mae", "eval_rmse"]

Metric: TypeAlias = Callable[[Tensor, Tensor], object]
# What a forecaster is made with beside data: one dict, or one for each window by its three times.
Options: TypeAlias = Mapping[str, object] | Callable[[int, int, int], Mapping[str, object]]


def eval_mae(pred: TensorLike, truth: TensorLike) -> float:
    """Return the mean absolute error of the median.

    Parameters
    ----------
    pred : Tensor, shape (draws, ...)
    truth : Tensor, shape (...)
    """
    x, y = as_tensor(pred, "eval_mae"), as_tensor(truth, "eval_mae")
    return float(mean(absolute(quantile(x, 0.5, 0) - y)))


def eval_rmse(pred: TensorLike, truth: TensorLike) -> float:
    """Return the root mean squared error of the mean.

    Parameters
    ----------
    pred : Tensor, shape (draws, ...)
    truth : Tensor, shape (...)
    """
    x, y = as_tensor(pred, "eval_rmse"), as_tensor(truth, "eval_rmse")
    return math.sqrt(float(mean((mean(x, 0) - y) ** 2)))


def eval_crps(pred: TensorLike, truth: TensorLike) -> float:
    """Return the mean of the continuous ranked probability score; see `crps_empirical`.

    Parameters
    ----------
    pred : Tensor, shape (draws, ...)
    truth : Tensor, shape (...)
    """
    x, y = as_tensor(pred, "eval_crps"), as_tensor(truth, "eval_crps")
    return float(mean(crps_empirical(x, y)))


METRICS: dict[str, Metric] = {"mae": eval_mae, "rmse": eval_rmse, "crps": eval_crps}


def backtest(
    data: TensorLike,
    covariates: TensorLike | None,
    model_fn: Callable[[], ForecastingModel],
    *,
    forecaster_fn: Callable[..., Callable[..., Tensor]] = Forecaster,
    metrics: Mapping[str, Metric] | None = None,
    transform: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None,
    train_window: int | None = None,
    min_train_window: int = 1,
    test_window: int | None = None,
    min_test_window: int = 1,
    stride: int = 1,
    seed: int = 1234567890,
    num_samples: int = 100,
    batch_size: int | None = None,
    forecaster_options: Options | None = None,
) -> list[dict[str, object]]:
    """Fit and forecast at many times of a known series, and score the draws against it.

    Parameters
    ----------
    data : Tensor, shape (..., duration, dim)
    covariates : Tensor, shape (..., duration, features), or None
    model_fn : callable
        Makes a `ForecastingModel`; each window has a new one.
    forecaster_fn : callable
        `Forecaster`, `HMCForecaster`, or a function of model, data, covariates, ``seed=`` and
        `forecaster_options`.
    metrics : dict, optional
        From names to functions of draws and truth; by default `eval_mae`, `eval_rmse`, `eval_crps`.
    transform : callable, optional
        From draws and truth to what is scored, ``(pred, truth)``: back from logarithms, for one.
    train_window : int, optional
        Steps to fit; by default all before the forecast, from `min_train_window` on.
    test_window : int, optional
        Steps to forecast; by default all that are left, down to `min_test_window`.
    stride : int
        Steps from one window to the next.
    seed : int
        Of each window.
    num_samples, batch_size
        As a forecaster is called.
    forecaster_options : dict or callable
        For `forecaster_fn`; or a function ``(t0, t1, t2)`` that returns them.

    Returns
    -------
    list of dict
        For each window "t0", "t1", "t2" (begin, forecast from, end), "seed", "num_samples",
        "train_walltime" and "test_walltime" in seconds, and the metrics.

    Raises
    ------
    ArgumentError
        If the series is too short for a window, or a size is none.

    Examples
    --------
    ::

        scores = backtest(data, None, Model, test_window=10, min_train_window=100, stride=20)
        crps = np.mean([s["crps"] for s in scores])
    """
    data = as_tensor(data, "backtest")
    covariates = covariates_for(data, covariates)
    known, duration = duration_of(data, covariates)
    first = min_train_window if train_window is None else train_window
    least = min_test_window if test_window is None else test_window
    if known != duration or min(first, least, stride) < 1 or first + least > duration:
        raise ArgumentError(
            "backtest",
            expected=f"windows within {known} steps of data and covariates, of a step or more",
            got=f"{duration} steps of covariates, {first} steps to fit, {least} to forecast, "
            f"stride={stride}",
            fix="choose train_window (or min_train_window) and test_window so that their sum fits",
        )
    found = []
    for t1 in range(first, duration - least + 1, stride):
        t0 = 0 if train_window is None else t1 - train_window
        t2 = duration if test_window is None else t1 + test_window
        options = forecaster_options
        options = options(t0, t1, t2) if callable(options) else options
        begin = time.perf_counter()
        with handlers.seed(rng_seed=seed):
            model = model_fn()
        past = data[..., t0:t1, :]
        forecaster = forecaster_fn(
            model, past, covariates[..., t0:t1, :], **{"seed": seed, **(options or {})}
        )
        fitted = time.perf_counter()
        pred = forecaster(past, covariates[..., t0:t2, :], num_samples, batch_size)
        end = time.perf_counter()
        truth = data[..., t1:t2, :]
        if transform is not None:
            pred, truth = transform(pred, truth)
        found.append(
            {
                "t0": t0,
                "t1": t1,
                "t2": t2,
                "seed": seed,
                "num_samples": num_samples,
                "train_walltime": fitted - begin,
                "test_walltime": end - fitted,
                **{name: fn(pred, truth) for name, fn in (metrics or METRICS).items()},
            }
        )
    return found


explain_calls(globals())
