"""`best_of_starts`: fits from several starts, here or on an executor; the best is kept."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from probtorch.core.rng import Generator, generator_of
from probtorch.core.signatures import explain_calls, explained
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer.remote.all_of import all_of
from probtorch.infer.remote.parcels import Parcel, pack
from probtorch.infer.remote.pools import ExecutorLike, check_executor
from probtorch.infer.vi.svi import SVI
from probtorch.infer.vi.svi_result import SVIResult

__all__ = ["BestOfStarts", "best_of_starts"]

# Fits are compared by the mean of this share of their last losses, which are noisy.
LAST = 0.1


@dataclass(frozen=True, eq=False, repr=False)
class BestOfStarts:
    """Fits from several starts.

    Attributes
    ----------
    best : SVIResult
        The fit with the lowest loss at its end.
    number : int
        Of its start.
    losses : dict of int to ndarray
        Of each start that came to its end, at each step.
    final : dict of int to float
        Mean of the last tenth of these.
    failed : dict of int to Exception
    """

    best: SVIResult
    number: int
    losses: Mapping[int, np.ndarray]
    final: Mapping[int, float]
    failed: Mapping[int, Exception]

    def __repr__(self) -> str:
        values = sorted(self.final.values())
        failed = f", {len(self.failed)} failed" if self.failed else ""
        return (
            f"BestOfStarts(start {self.number} of {len(self.final) + len(self.failed)}: loss "
            f"{values[0]:.6g}, the others' {', '.join(f'{x:.6g}' for x in values[1:4])}"
            f"{', ...' if len(values) > 4 else ''}{failed})"
        )


@dataclass(frozen=True)
class _Plan:
    make: Callable[[Generator], SVI]
    num_steps: int
    args: tuple[object, ...]
    packed: bool  # whether fits come back from workers
    kwargs: dict[str, Any]  # of model and guide, which stand beside those of `SVI.run`


@explained("best_of_starts")
def best_of_starts(
    make: Callable[[Generator], SVI],
    num_steps: int,
    *args: object,
    num_starts: int = 8,
    seed: int | Generator | None = None,
    executor: ExecutorLike | None = None,
    **kwargs: object,
) -> BestOfStarts:
    """Run SVI from several starts, and keep the fit that ends with the lowest loss.

    Use it where the loss has several minima: mixtures, factors, networks.

    Parameters
    ----------
    make : callable
        ``make(generator)`` returns a new SVI for each start: give it the generator as its seed, and
        have its guide start somewhere else each time (``init_loc_fn=init_to_sample``).
    num_steps : int
        Of each fit.
    *args, **kwargs
        What model and guide are called with.
    num_starts : int
    seed : int or Generator, optional
        Source of the generators; the default generator if None.
    executor : concurrent.futures.Executor or callable, optional
        Where the fits run; here, one after the other, by default. The result does not depend on it.

    Returns
    -------
    BestOfStarts
        After Ctrl-C, of those fits that were done.

    Raises
    ------
    ArgumentError
        If `make` returns no SVI; if there are no starts.
    InferenceError
        That of the first start, if none came to its end.
    KeyboardInterrupt
        On Ctrl-C before the first fit is done.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import SVI, AutoNormal, best_of_starts, init_to_sample
    >>> from probtorch.optim import Adam
    >>> def model(y):
    ...     mu = probtorch.sample("mu", dist.Normal(0.0, 10.0))
    ...     with probtorch.plate("row", len(y)):
    ...         probtorch.sample("y", dist.Normal(mu, 1.0), obs=y)
    >>> def make(generator):
    ...     guide = AutoNormal(model, init_loc_fn=init_to_sample)
    ...     return SVI(model, guide, Adam({"lr": 0.05}), seed=generator)
    >>> found = best_of_starts(make, 300, probtorch.tensor([1.0, 2.0]), num_starts=3, seed=0)
    >>> len(found.losses), found.best.losses.shape
    (3, (300,))
    """
    if isinstance(num_starts, bool) or not isinstance(num_starts, int) or num_starts < 1:
        raise ArgumentError(
            "best_of_starts(num_starts=...)",
            expected="a number of at least 1",
            got=f"{num_starts!r:.60}",
            fix="leave it out for 8",
        )
    if executor is not None:
        check_executor(executor, "best_of_starts")
    generator = generator_of(seed)
    done = all_of(
        run_start,
        _Plan(make, num_steps, args, executor is not None, kwargs),
        generator.spawn(num_starts),
        executor=executor,
        names=[f"start {i}" for i in range(num_starts)],
        what="a model, its guide and its data",
    )
    if not done.results:
        if done.interrupted:
            raise KeyboardInterrupt("interrupted before the first fit was done")
        raise done.failed[min(done.failed)]
    losses = {i: found[0] for i, found in sorted(done.results.items())}
    final = {i: float(np.mean(x[-max(int(LAST * len(x)), 1) :])) for i, x in losses.items()}
    number = min(final, key=lambda i: (np.isnan(final[i]), final[i]))
    best: SVIResult | Parcel = done.results[number][1]
    result = _opened(best) if isinstance(best, Parcel) else best
    return BestOfStarts(result, number, losses, final, done.failed)


def _opened(fit: Parcel) -> SVIResult:
    assert fit.data is not None  # a worker packed it whole
    result: SVIResult = pickle.loads(fit.data)  # noqa: S301 - packed by a worker of ours
    return result


def run_start(plan: _Plan, generator: Generator) -> tuple[np.ndarray, SVIResult | Parcel]:
    """Fit from one start, in whatever process this is; returns the losses, and the fit."""
    svi = plan.make(generator)
    if not isinstance(svi, SVI):
        raise ArgumentError(
            "best_of_starts(make)",
            expected="a function of a generator that returns a new SVI",
            got=f"one that returns {type(svi).__name__}",
            fix="write lambda generator: SVI(model, guide, optim, seed=generator)",
        )
    found = svi.run(plan.num_steps, *plan.args, progress_bar=False, **plan.kwargs)
    if found.interrupted:
        raise KeyboardInterrupt
    if not np.isfinite(found.losses[-1]):
        raise InferenceError(
            "best_of_starts",
            expected="a finite loss at the end of a fit",
            got=f"{found.losses[-1]}",
            fix="start elsewhere, or lower the learning rate",
        )
    return found.losses, pack(found, "a fit") if plan.packed else found


explain_calls(globals())
