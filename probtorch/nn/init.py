"""Initial values of parameters, in two spellings.

PyTorch's, which fill a tensor in place and end in an underscore: ``xavier_uniform_(weight)``. And
the recipes that layers state with a parameter, ``self.parameter("weight", shape, init=fan_in())``:
each is a function of a tensor that fills it, so that the base class can repeat it.

Draws come from the default generator (`probtorch.manual_seed`) unless one is given.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import TypedDict

import numpy as np

from probtorch.autograd.modes import no_grad
from probtorch.core.making import as_tensor
from probtorch.core.rng import Generator
from probtorch.core.signatures import explain_calls, misfit
from probtorch.core.typed import DType, Shape
from probtorch.errors import ArgumentError, DomainError, ShapeError
from probtorch.ops.random_integers import randperm
from probtorch.ops.sampling import rand, randn
from probtorch.ops.special import ndtri
from probtorch.tensor import Tensor

__all__ = [
    "calculate_gain",
    "constant",
    "constant_",
    "dirac_",
    "eye_",
    "fan_in",
    "fan_in_",
    "kaiming_normal",
    "kaiming_normal_",
    "kaiming_uniform",
    "kaiming_uniform_",
    "normal",
    "normal_",
    "ones",
    "ones_",
    "orthogonal",
    "orthogonal_",
    "sparse_",
    "trunc_normal",
    "trunc_normal_",
    "uniform",
    "uniform_",
    "xavier_normal",
    "xavier_normal_",
    "xavier_uniform",
    "xavier_uniform_",
    "zeros",
    "zeros_",
]

_GAINS = {
    "tanh": 5.0 / 3.0,
    "relu": math.sqrt(2.0),
    # The value at which a self-normalising network keeps its variance (Klambauer et al. 2017 give
    # 1; PyTorch keeps 3/4, which trains more stably).
    "selu": 3.0 / 4.0,
}
_LINEAR = frozenset(
    "linear sigmoid conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d".split()
)


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """Return the factor by which weights make up for what a nonlinearity does to the variance.

    Parameters
    ----------
    nonlinearity : str
        "linear", "conv2d" (and the like), "sigmoid", "tanh", "relu", "leaky_relu" or "selu".
    param : float, optional
        Negative slope of "leaky_relu", 0.01 if None.

    Raises
    ------
    ArgumentError
        For an unknown name.
    """
    if nonlinearity in _LINEAR:
        return 1.0
    if nonlinearity in _GAINS:
        return _GAINS[nonlinearity]
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else float(param)
        return math.sqrt(2.0 / (1.0 + slope * slope))
    raise ArgumentError(
        "calculate_gain",
        expected=f"one of {', '.join(sorted(_LINEAR | _GAINS.keys() | {'leaky_relu'}))}",
        got=repr(nonlinearity),
        fix="use the gain of the closest of these, or pass a number as gain",
    )


def _fans(tensor: Tensor, op: str) -> Shape:
    """Return (fan in, fan out): inputs of one output, and outputs of one input."""
    shape = tensor.array.shape
    if len(shape) < 2:
        raise ShapeError(
            op,
            expected="a weight with at least 2 dims (out, in, *kernel)",
            got=str(shape),
            fix="use uniform_, normal_ or constant_ for vectors",
        )
    field = math.prod(shape[2:])
    return shape[1] * field, shape[0] * field


def _calculate_fan_in_and_fan_out(tensor: Tensor) -> Shape:
    """Return `_fans` by the name that PyTorch has for it, which layers of one's own call."""
    return _fans(tensor, "_calculate_fan_in_and_fan_out")


@no_grad
def _filled(tensor: Tensor, value: Tensor) -> Tensor:
    return tensor.copy_(value)


class _Options(TypedDict):
    generator: Generator | None
    dtype: DType
    device: str


def _options(tensor: Tensor, generator: Generator | None) -> _Options:
    return {"generator": generator, "dtype": tensor.dtype, "device": tensor.device}


def _in_order(op: str, a: float, b: float) -> None:
    if not a <= b:
        raise DomainError(op, expected="a <= b", got=f"a={a!r}, b={b!r}", fix="exchange them")


def _no_size_below(op: str, least: float, std: float) -> None:
    if not std >= least:
        raise DomainError(
            op, expected="std > 0" if least else "std >= 0", got=repr(std), fix="check std"
        )


def uniform_(
    tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """Fill `tensor` with draws from the uniform distribution on (a, b); returns it."""
    _in_order("uniform_", a, b)
    return _filled(tensor, rand(tensor.shape, **_options(tensor, generator)) * (b - a) + a)


def normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """Fill `tensor` with draws from the normal distribution; returns it."""
    _no_size_below("normal_", 0.0, std)
    return _filled(tensor, randn(tensor.shape, **_options(tensor, generator)) * std + mean)


def trunc_normal_(
    tensor: Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    generator: Generator | None = None,
) -> Tensor:
    """Fill `tensor` with draws from the normal distribution restricted to [a, b]; returns it.

    Quantiles of uniforms between the two tail probabilities: no draw is rejected.
    """
    _in_order("trunc_normal_", a, b)
    _no_size_below("trunc_normal_", math.ulp(0.0), std)
    low, high = (0.5 * math.erfc(-(x - mean) / std / math.sqrt(2.0)) for x in (a, b))
    options = _options(tensor, generator) | {"dtype": np.dtype(np.float64)}
    u = rand(tensor.shape, **options) * (high - low) + low
    return _filled(tensor, (ndtri(u) * std + mean).clamp(a, b).to(tensor.dtype))


def constant_(tensor: Tensor, val: float) -> Tensor:
    """Fill `tensor` with one value; returns it."""
    return _filled(tensor, as_tensor(np.asarray(val, tensor.dtype)).to(tensor.device))


def ones_(tensor: Tensor) -> Tensor:
    """Fill `tensor` with ones; returns it."""
    return constant_(tensor, 1.0)


def zeros_(tensor: Tensor) -> Tensor:
    """Fill `tensor` with zeros; returns it."""
    return constant_(tensor, 0.0)


def fan_in_(tensor: Tensor, fan: int | None = None, generator: Generator | None = None) -> Tensor:
    """Fill `tensor` uniformly on (-1/sqrt(fan), 1/sqrt(fan)), PyTorch's default for most layers.

    `fan` is the number of inputs of one output: that of the weight's shape if None, 0 meaning an
    interval of no length.
    """
    fan = _fans(tensor, "fan_in_")[0] if fan is None else fan
    bound = 1.0 / math.sqrt(fan) if fan > 0 else 0.0
    return uniform_(tensor, -bound, bound, generator)


def xavier_uniform_(
    tensor: Tensor, gain: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """Fill with U(-a, a), ``a = gain * sqrt(6 / (fan_in + fan_out))`` [glorot2010]_."""
    bound = gain * math.sqrt(6.0 / _sum_of_fans(tensor, "xavier_uniform_"))
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Fill with normals of standard deviation ``gain * sqrt(2 / (fan_in + fan_out))``."""
    std = gain * math.sqrt(2.0 / _sum_of_fans(tensor, "xavier_normal_"))
    return normal_(tensor, 0.0, std, generator)


def _sum_of_fans(tensor: Tensor, op: str) -> int:
    return max(sum(_fans(tensor, op)), 1)


def _kaiming(op: str, tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    """Return the standard deviation of [he2015]_."""
    if mode not in ("fan_in", "fan_out"):
        raise ArgumentError(
            op, expected="mode 'fan_in' or 'fan_out'", got=repr(mode), fix="use 'fan_in'"
        )
    fan = _fans(tensor, op)[mode == "fan_out"]
    return calculate_gain(nonlinearity, a) / math.sqrt(max(fan, 1))


def kaiming_uniform_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """Fill with U(-b, b), ``b = gain * sqrt(3 / fan)`` [he2015]_.

    Parameters
    ----------
    tensor : Tensor
    a : float
        Negative slope of the rectifier that follows ("leaky_relu" only).
    mode : {"fan_in", "fan_out"}
        Keep the variance of the forward or of the backward pass.
    nonlinearity : str
        Name for `calculate_gain`.
    generator : Generator, optional

    Returns
    -------
    Tensor
        `tensor`.
    """
    bound = math.sqrt(3.0) * _kaiming("kaiming_uniform_", tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """Fill with normals of standard deviation ``gain / sqrt(fan)``; see `kaiming_uniform_`."""
    std = _kaiming("kaiming_normal_", tensor, a, mode, nonlinearity)
    return normal_(tensor, 0.0, std, generator)


def orthogonal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Fill with a uniformly drawn (semi-)orthogonal matrix times `gain`; dims after 0 count as one.

    The Q of the QR factors of a normal matrix, with the signs of R's diagonal, which makes it
    uniform (Mezzadri 2007).
    """
    shape = tensor.shape
    _fans(tensor, "orthogonal_")
    rows, cols = shape[0], math.prod(shape[1:])
    tall = randn(max(rows, cols), min(rows, cols), generator=generator, dtype=np.float64).numpy()
    q, r = np.linalg.qr(tall)
    q = q * np.where(np.diag(r) < 0.0, -1.0, 1.0)
    q = (q.T if rows < cols else q).reshape(shape) * gain
    return _filled(tensor, as_tensor(q.astype(tensor.dtype)).to(tensor.device))


def eye_(tensor: Tensor) -> Tensor:
    """Fill a matrix with the identity; returns it."""
    if tensor.ndim != 2:
        raise ShapeError("eye_", expected="a matrix", got=str(tensor.shape), fix="use dirac_")
    return _filled(tensor, as_tensor(np.eye(*tensor.shape, dtype=tensor.dtype)).to(tensor.device))


def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """Fill a convolution weight so that each channel (of each group) passes through unchanged."""
    shape = tensor.shape
    if len(shape) not in (3, 4, 5) or shape[0] % groups:
        raise ShapeError(
            "dirac_",
            expected="a weight with 3, 4 or 5 dims, dim 0 divisible by groups",
            got=f"{shape}, groups={groups}",
            fix="use eye_ for matrices",
        )
    out, per_group = np.zeros(shape, tensor.dtype), shape[0] // groups
    middle = tuple(k // 2 for k in shape[2:])
    for g in range(groups):
        for d in range(min(per_group, shape[1])):
            out[(g * per_group + d, d, *middle)] = 1
    return _filled(tensor, as_tensor(out).to(tensor.device))


def sparse_(
    tensor: Tensor, sparsity: float, std: float = 0.01, generator: Generator | None = None
) -> Tensor:
    """Fill a matrix with normals, a fraction `sparsity` of each column being 0 [martens2010]_."""
    if tensor.ndim != 2:
        raise ShapeError("sparse_", expected="a matrix", got=str(tensor.shape), fix="reshape it")
    rows, cols = tensor.shape
    normal_(tensor, 0.0, std, generator)
    keep = np.ones((rows, cols), tensor.dtype)
    for j in range(cols):
        zeros = randperm(rows, generator=generator).numpy()[: math.ceil(sparsity * rows)]
        keep[zeros, j] = 0
    with no_grad():
        return _filled(tensor, tensor * as_tensor(keep).to(tensor.device))


# The recipes below hold on to the functions above.
explain_calls(globals())


def _recipe(fill: Callable[..., Tensor]) -> Callable[..., _Recipe]:
    name = fill.__name__.rstrip("_")
    taken = list(inspect.signature(fill).parameters.values())[1:]

    def make(*args: object, **kwargs: object) -> _Recipe:
        error = misfit(name, taken, args, kwargs)
        if error is not None:
            raise error
        return _Recipe(fill, args, kwargs)

    make.__name__ = make.__qualname__ = name
    make.__doc__ = (
        f"Recipe for `Module.parameter`: fill with `{fill.__name__}` and these arguments, which "
        "are those after the tensor."
    )
    return make


class _Recipe:
    """A fill function and its arguments; calling it fills a tensor."""

    _saved_whole = True

    def __init__(
        self, fill: Callable[..., Tensor], args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> None:
        self.fill, self.args, self.kwargs = fill, args, kwargs

    def __call__(self, tensor: Tensor) -> Tensor:
        return self.fill(tensor, *self.args, **self.kwargs)

    def __repr__(self) -> str:
        shown = [*map(repr, self.args), *(f"{k}={v!r}" for k, v in self.kwargs.items())]
        return f"{self.fill.__name__.rstrip('_')}({', '.join(shown)})"


constant = _recipe(constant_)
fan_in = _recipe(fan_in_)
kaiming_normal = _recipe(kaiming_normal_)
kaiming_uniform = _recipe(kaiming_uniform_)
normal = _recipe(normal_)
ones = _recipe(ones_)
orthogonal = _recipe(orthogonal_)
trunc_normal = _recipe(trunc_normal_)
uniform = _recipe(uniform_)
xavier_normal = _recipe(xavier_normal_)
xavier_uniform = _recipe(xavier_uniform_)
zeros = _recipe(zeros_)
