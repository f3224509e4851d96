"""Approximations of many posteriors: Laplace's, Pathfinder's, DADVI's, over one compiled density.

An engine is made once, for the first data set; a block of others is given to it with the data of
each. Laplace's searches of a block climb together (`run_many`), what else there is runs one data
set after the other. Draws have importance weights, from which each posterior has its verdict.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from probtorch.core.rng import Generator
from probtorch.errors import ArgumentError
from probtorch.infer.approximations.dadvi import DADVI
from probtorch.infer.approximations.laplace import LaplaceApproximation
from probtorch.infer.approximations.pathfinder import Pathfinder
from probtorch.infer.approximations.result import Approximation
from probtorch.infer.many.data_sets import ModelCall
from probtorch.infer.many.many_target import ManyTarget
from probtorch.infer.vi.guide_quality import GuideWarning

__all__ = ["Approximator", "approximate", "approximator_for"]

Approximator: TypeAlias = LaplaceApproximation | Pathfinder | DADVI
KINDS = LaplaceApproximation, Pathfinder, DADVI


def approximator_for(kernel: object, target: ManyTarget) -> Approximator | None:
    """Return the engine that a user's choice makes of a target; None where it makes a kernel."""
    if isinstance(kernel, KINDS):
        made = copy.copy(kernel)
        made.model = target
        return made
    # A class of kernels is not called twice.
    if kernel in KINDS or (callable(kernel) and not isinstance(kernel, type)):
        found = kernel(target)
        return found if isinstance(found, KINDS) else None
    return None


def check_one_chain(num_chains: int, thinning: int) -> None:
    """Refuse settings of chains for an approximation."""
    if num_chains == thinning == 1:
        return
    raise ArgumentError(
        "fit_many with an approximation",
        expected="one chain of independent draws",
        got=f"num_chains={num_chains}, thinning={thinning}",
        fix="leave both out; num_samples is how many draws there are",
    )


def approximate(
    engine: Approximator,
    target: ManyTarget,
    calls: Sequence[ModelCall],
    streams: Sequence[Generator],
    num_draws: int,
) -> list[tuple[np.ndarray, float] | Exception]:
    """Return draws (num_draws, dim) and the shape k of the weights for each data set, or an error.

    Parameters
    ----------
    engine
        Its settings are used.
    target, calls, streams
        Of the data sets; `at` gives the target of each.
    num_draws : int
    """
    found: list[tuple[np.ndarray, float] | Exception] = []
    with warnings.catch_warnings():
        # Of each posterior `diagnostics` tells.
        warnings.simplefilter("ignore", GuideWarning)
        results = _results(engine, target, calls, streams)
        for result, stream in zip(results, streams, strict=True):
            if not isinstance(result, Exception):
                try:
                    drawn, _, verdict = result.positions(num_draws, stream, result.resample)
                    k = verdict.get("pareto_k", np.nan)
                    found.append((drawn, float(k)))  # type: ignore[arg-type]  # a number
                    continue
                except Exception as error:
                    result = error
            found.append(result)
    return found


def _results(
    engine: Approximator,
    target: ManyTarget,
    calls: Sequence[ModelCall],
    streams: Sequence[Generator],
) -> list[Approximation | Exception]:
    if isinstance(engine, LaplaceApproximation) and engine.hessian_structure == "full":
        targets: list[ManyTarget | Exception] = []
        for call in calls:
            try:
                targets.append(target.at(call))
            except Exception as error:
                targets.append(error)
        good = [i for i, t in enumerate(targets) if not isinstance(t, Exception)]
        made = engine.run_many(
            [t for t in targets if not isinstance(t, Exception)], [streams[i] for i in good]
        )
        done = dict(zip(good, made, strict=True))
        return [t if isinstance(t, Exception) else done[i] for i, t in enumerate(targets)]

    results: list[Approximation | Exception] = []
    for call, stream in zip(calls, streams, strict=True):
        one = copy.copy(engine)
        try:
            one.model, one.seed = target.at(call), stream
            results.append(one.run())
        except Exception as error:
            results.append(error)
    return results
