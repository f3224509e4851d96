"""`Fitted`: what `fit` returns, draws of any engine with the plan that made them and a verdict."""

from __future__ import annotations

from dataclasses import dataclass

from probtorch.infer.plans.planning import Plan
from probtorch.infer.sequential.run_draws import RunDraws

__all__ = ["Fitted"]


@dataclass(frozen=True, eq=False, repr=False)
class Fitted(RunDraws):
    """What `fit` returns: draws that know how they were made, and whether to believe them.

    Parameters
    ----------
    plan : Plan
        What was run, and why.
    engine : object
        What ran: `MCMC`, an `SVIResult`, a `PathfinderResult`, `WeightedDraws`, `RunDraws`; None
        for exact draws. Not kept by `save` and by pickle.
    verdict : str
        Whether to believe the draws, in words.
    trusted : bool
        The same as yes or no.

    Notes
    -----
    `values` are empty but for models whose sites change from run to run.
    """

    plan: Plan | None = None  # gone where draws were read from a file
    engine: object = None
    verdict: str = ""
    trusted: bool = True

    def explain(self) -> str:
        """Return what was decided, each decision with its reason, and the verdict."""
        plan = [] if self.plan is None else [self.plan.explain()]
        return "\n".join([*plan, f"verdict: {self.verdict}"])

    def __repr__(self) -> str:
        return f"{RunDraws.__repr__(self)}\n{self.verdict}"

    def __getstate__(self) -> dict[str, object]:
        return {**RunDraws.__getstate__(self), "engine": None}
