"""Activations as modules: each holds the settings of its function in `functional`.

Shapes: any; the result has the shape of the input (half of `dim` for GLU).
"""

from __future__ import annotations

from probtorch.core.typed import DTypeLike, TensorLike
from probtorch.errors import ShapeError
from probtorch.nn import functional as F
from probtorch.nn.arguments import shown, whole
from probtorch.nn.init import constant
from probtorch.nn.module import Module
from probtorch.tensor import Tensor

__all__ = [
    "CELU",
    "ELU",
    "GELU",
    "GLU",
    "SELU",
    "Hardshrink",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "LeakyReLU",
    "LogSigmoid",
    "LogSoftmax",
    "Mish",
    "PReLU",
    "RReLU",
    "ReLU",
    "ReLU6",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softmax2d",
    "Softmin",
    "Softplus",
    "Softshrink",
    "Softsign",
    "Tanh",
    "Tanhshrink",
    "Threshold",
]


class _InPlace(Module):
    """Base of activations whose one setting is whether they overwrite their input."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def extra_repr(self) -> str:
        return shown(self)


class ReLU(_InPlace):
    """max(x, 0)."""

    def forward(self, input: TensorLike) -> Tensor:
        return F.relu(input, self.inplace)


class ReLU6(_InPlace):
    """min(max(x, 0), 6)."""

    def forward(self, input: TensorLike) -> Tensor:
        return F.relu6(input, self.inplace)


class SELU(_InPlace):
    """ELU with the scales that keep mean 0 and variance 1; see `functional.selu`."""

    def forward(self, input: TensorLike) -> Tensor:
        return F.selu(input, self.inplace)


class SiLU(_InPlace):
    """X times sigmoid(x)."""

    def forward(self, input: TensorLike) -> Tensor:
        return F.silu(input, self.inplace)


class Mish(_InPlace):
    """X times tanh(softplus(x))."""

    def forward(self, input: TensorLike) -> Tensor:
        return F.mish(input, self.inplace)


class Hardsigmoid(_InPlace):
    """``x / 6 + 1 / 2`` limited to [0, 1]."""

    def forward(self, input: TensorLike) -> Tensor:
        return F.hardsigmoid(input, self.inplace)


class Hardswish(_InPlace):
    """X times hardsigmoid(x)."""

    def forward(self, input: TensorLike) -> Tensor:
        return F.hardswish(input, self.inplace)


class LeakyReLU(Module):
    """X where positive, else ``negative_slope * x``."""

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        super().__init__()
        self.negative_slope, self.inplace = negative_slope, inplace

    def forward(self, input: TensorLike) -> Tensor:
        return F.leaky_relu(input, self.negative_slope, self.inplace)

    def extra_repr(self) -> str:
        return shown(self, "negative_slope")


class PReLU(Module):
    """X where positive, else a learned slope times x.

    Parameters
    ----------
    num_parameters : int
        1, or the number of channels (dim 1 of the input).
    init : float
        The slope to start with.
    device, dtype
        Of the parameter.
    """

    def __init__(
        self,
        num_parameters: int = 1,
        init: float = 0.25,
        device: str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(device=device, dtype=dtype)
        whole("PReLU", num_parameters=num_parameters)
        self.num_parameters, self.init = num_parameters, init
        self.parameter("weight", (num_parameters,), init=constant(init))

    def forward(self, input: TensorLike) -> Tensor:
        return F.prelu(input, self.weight)

    def extra_repr(self) -> str:
        return shown(self, "num_parameters")


class RReLU(Module):
    """X where positive, else x times a slope: random in training, the mean otherwise."""

    def __init__(
        self, lower: float = 1.0 / 8.0, upper: float = 1.0 / 3.0, inplace: bool = False
    ) -> None:
        super().__init__()
        self.lower, self.upper, self.inplace = lower, upper, inplace

    def forward(self, input: TensorLike) -> Tensor:
        return F.rrelu(input, self.lower, self.upper, self.training, self.inplace)

    def extra_repr(self) -> str:
        return shown(self, "lower", "upper")


class ELU(Module):
    """X where positive, else ``alpha * (exp(x) - 1)``."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        self.alpha, self.inplace = alpha, inplace

    def forward(self, input: TensorLike) -> Tensor:
        return F.elu(input, self.alpha, self.inplace)

    def extra_repr(self) -> str:
        return shown(self, "alpha")


class CELU(Module):
    """X where positive, else ``alpha * (exp(x / alpha) - 1)``."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        self.alpha, self.inplace = alpha, inplace

    def forward(self, input: TensorLike) -> Tensor:
        return F.celu(input, self.alpha, self.inplace)

    def extra_repr(self) -> str:
        return shown(self, "alpha")


class GELU(Module):
    """X times the standard normal distribution function of x, or its "tanh" approximation."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, input: TensorLike) -> Tensor:
        return F.gelu(input, self.approximate)

    def extra_repr(self) -> str:
        return shown(self, "approximate")


class GLU(Module):
    """Halve `dim` into a and b; ``a * sigmoid(b)``."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        return F.glu(input, self.dim)

    def extra_repr(self) -> str:
        return shown(self, "dim")


class Hardtanh(Module):
    """X limited to [min_val, max_val]."""

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        self.min_val, self.max_val, self.inplace = min_val, max_val, inplace

    def forward(self, input: TensorLike) -> Tensor:
        return F.hardtanh(input, self.min_val, self.max_val, self.inplace)

    def extra_repr(self) -> str:
        return shown(self, "min_val", "max_val")


class Hardshrink(Module):
    """X where its size exceeds `lambd`, else 0."""

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        self.lambd = lambd

    def forward(self, input: TensorLike) -> Tensor:
        return F.hardshrink(input, self.lambd)

    def extra_repr(self) -> str:
        return str(self.lambd)


class Softshrink(Module):
    """X moved towards 0 by `lambd`, 0 within that distance."""

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        self.lambd = lambd

    def forward(self, input: TensorLike) -> Tensor:
        return F.softshrink(input, self.lambd)

    def extra_repr(self) -> str:
        return str(self.lambd)


class Softplus(Module):
    """log(1 + exp(beta * x)) / beta; x itself where ``beta * x > threshold``."""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__()
        self.beta, self.threshold = beta, threshold

    def forward(self, input: TensorLike) -> Tensor:
        return F.softplus(input, self.beta, self.threshold)

    def extra_repr(self) -> str:
        return shown(self, "beta", "threshold")


class Threshold(Module):
    """X where it exceeds `threshold`, else `value`."""

    def __init__(self, threshold: float, value: TensorLike, inplace: bool = False) -> None:
        super().__init__()
        self.threshold, self.value, self.inplace = threshold, value, inplace

    def forward(self, input: TensorLike) -> Tensor:
        return F.threshold(input, self.threshold, self.value, self.inplace)

    def extra_repr(self) -> str:
        return shown(self, "threshold", "value")


class Sigmoid(Module):
    """1 / (1 + exp(-x))."""

    def forward(self, input: TensorLike) -> Tensor:
        return F.sigmoid(input)


class LogSigmoid(Module):
    """log(sigmoid(x)), without its underflow."""

    def forward(self, input: TensorLike) -> Tensor:
        return F.logsigmoid(input)


class Tanh(Module):
    """Hyperbolic tangent."""

    def forward(self, input: TensorLike) -> Tensor:
        return F.tanh(input)


class Tanhshrink(Module):
    """X - tanh(x)."""

    def forward(self, input: TensorLike) -> Tensor:
        return F.tanhshrink(input)


class Softsign(Module):
    """X / (1 + abs(x))."""

    def forward(self, input: TensorLike) -> Tensor:
        return F.softsign(input)


class Softmax(Module):
    """Exponentials divided by their sum along `dim`."""

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: TensorLike) -> Tensor:
        return F.softmax(input, self.dim)

    def extra_repr(self) -> str:
        return shown(self, "dim")


class Softmin(Softmax):
    """Softmax of -x along `dim`."""

    def forward(self, input: TensorLike) -> Tensor:
        return F.softmin(input, self.dim)


class LogSoftmax(Softmax):
    """Logarithm of the softmax along `dim`."""

    def forward(self, input: TensorLike) -> Tensor:
        return F.log_softmax(input, self.dim)


class Softmax2d(Module):
    """Softmax over the channels of images (N, C, H, W) or (C, H, W)."""

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim not in (3, 4):
            raise ShapeError(
                "Softmax2d",
                expected="an input (N, C, H, W) or (C, H, W)",
                got=str(input.shape),
                fix="use Softmax(dim=...)",
            )
        return F.softmax(input, -3)
