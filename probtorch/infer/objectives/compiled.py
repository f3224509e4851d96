"""Pyro's names for objectives of compiled steps: here the steps of every objective are compiled."""

from __future__ import annotations

from collections.abc import Mapping

from probtorch.infer.objectives.elbo import ELBO, Trace_ELBO
from probtorch.infer.objectives.enumerated import TraceEnum_ELBO
from probtorch.infer.objectives.graph import TraceGraph_ELBO
from probtorch.infer.objectives.mean_field import TraceMeanField_ELBO

__all__ = ["JitTraceEnum_ELBO", "JitTraceGraph_ELBO", "JitTraceMeanField_ELBO", "JitTrace_ELBO"]


class _Jit(ELBO):
    """Takes the settings of Pyro's compiler.

    Parameters
    ----------
    *args, **kwargs
        As for the objective without ``Jit``.
    ignore_jit_warnings : bool
    jit_options : dict, optional
        Both change nothing.
    """

    def __init__(
        self,
        *args: object,
        ignore_jit_warnings: bool = False,
        jit_options: Mapping[str, object] | None = None,
        **kwargs: object,
    ) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]  # as the objective takes them
        self.ignore_jit_warnings, self.jit_options = ignore_jit_warnings, jit_options


class JitTrace_ELBO(_Jit, Trace_ELBO):
    """`Trace_ELBO`, by the name that Pyro has for it where steps are compiled."""


class JitTraceGraph_ELBO(_Jit, TraceGraph_ELBO):
    """`TraceGraph_ELBO`, by the name that Pyro has for it where steps are compiled."""


class JitTraceEnum_ELBO(_Jit, TraceEnum_ELBO):
    """`TraceEnum_ELBO`, by the name that Pyro has for it where steps are compiled."""


class JitTraceMeanField_ELBO(_Jit, TraceMeanField_ELBO):
    """`TraceMeanField_ELBO`, by the name that Pyro has for it where steps are compiled."""
