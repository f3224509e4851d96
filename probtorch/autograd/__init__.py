"""Differentiation: the tape and its modes, custom functions, forward mode, transforms.

`tape` reads the tape backwards; `modes` switches it on and off; `function` is for derivatives
written by hand; `checking` compares derivatives with differences; `anomaly` finds the operation
that made a nan. `transforms`, `forward` and `jacobians` turn functions into derivatives (public as
`probtorch.func`; `functional` has torch's older spelling). `methods` and `values` are what tensors
have of it as methods; `graph` shows nodes and hands out what they keep.
"""

from probtorch.autograd import functional, graph, profiler
from probtorch.autograd.anomaly import detect_anomaly, set_detect_anomaly
from probtorch.autograd.checking import gradcheck, gradgradcheck
from probtorch.autograd.function import Function, once_differentiable
from probtorch.autograd.modes import (
    enable_grad,
    inference_mode,
    is_grad_enabled,
    no_grad,
    set_grad_enabled,
)
from probtorch.autograd.tape import backward, grad
from probtorch.autograd.variable import Variable

__all__ = [
    "Function",
    "Variable",
    "backward",
    "detect_anomaly",
    "enable_grad",
    "functional",
    "grad",
    "gradcheck",
    "gradgradcheck",
    "graph",
    "inference_mode",
    "is_grad_enabled",
    "no_grad",
    "once_differentiable",
    "profiler",
    "set_detect_anomaly",
    "set_grad_enabled",
]
