"""Layers that learn from their first input how many features or channels it has.

`LazyLinear(10)` is a `Linear` without its first argument. On the first call it makes its
parameters, in the place of those without a shape, and becomes a `Linear`: optimizers made before
keep them. State that is loaded before the first call gives the shapes, too.
"""

from __future__ import annotations

import inspect
from typing import Any, ClassVar, TypeAlias

from probtorch.core.dispatch import recorder
from probtorch.core.making import as_tensor
from probtorch.core.typed import DTypeLike, SizeLike, TensorLike, Tree
from probtorch.errors import ModelError, ShapeError
from probtorch.factories import zeros
from probtorch.nn.arguments import documented_by
from probtorch.nn.convolution import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
)
from probtorch.nn.linear import Linear
from probtorch.nn.module import Module
from probtorch.nn.normalization import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
)
from probtorch.nn.parameter import UninitializedBuffer, UninitializedParameter
from probtorch.tensor import Tensor

__all__ = [
    "LazyBatchNorm1d",
    "LazyBatchNorm2d",
    "LazyBatchNorm3d",
    "LazyConv1d",
    "LazyConv2d",
    "LazyConv3d",
    "LazyConvTranspose1d",
    "LazyConvTranspose2d",
    "LazyConvTranspose3d",
    "LazyInstanceNorm1d",
    "LazyInstanceNorm2d",
    "LazyInstanceNorm3d",
    "LazyLinear",
]

# What a constructor was given, by name.
Settings: TypeAlias = dict[str, Any]
_WITHOUT_SHAPE = (UninitializedParameter, UninitializedBuffer)


class _Lazy(Module):
    """A layer that is made when it meets its first input.

    Attributes
    ----------
    becomes : type
        The class it then is an instance of.
    unknown : str
        The first argument of that class, which the input gives.
    accepts : tuple of int
        Numbers of dims that an input may have, with a batch the largest.
    """

    becomes: ClassVar[type[Module]]
    unknown: ClassVar[str]
    accepts: ClassVar[tuple[int, ...]]

    def _begin(
        self,
        settings: Settings,
        parameters: tuple[str, ...],
        buffers: tuple[str, ...] = (),
    ) -> None:
        """Remember the arguments of a constructor; register what has no shape yet."""
        place = {"device": settings["device"], "dtype": settings["dtype"]}
        Module.__init__(self, **place)
        self._settings = settings
        setattr(self, self.unknown, 0)
        for name in ("weight", "bias"):
            made = UninitializedParameter(**place) if name in parameters else None
            self.register_parameter(name, made)
        for name in buffers:
            self.register_buffer(name, UninitializedBuffer(**place))

    def has_uninitialized_params(self) -> bool:
        """Whether a parameter or buffer has no shape yet."""
        tensors = (*self._parameters.values(), *self._buffers.values())
        return any(isinstance(t, _WITHOUT_SHAPE) for t in tensors)

    def _size(self, x: Tensor) -> int:
        """Return the argument that was left out."""
        if x.array.ndim not in self.accepts:
            raise ShapeError(
                type(self).__name__,
                expected=f"an input with {' or '.join(map(str, self.accepts))} dims",
                got=str(x.array.shape),
                fix="the batch comes first, then the channels",
            )
        # Without a batch the channels come first; batch normalisation needs one.
        batched = x.array.ndim == max(self.accepts) or issubclass(self.becomes, BatchNorm1d)
        return x.array.shape[1 if batched else 0]

    def initialize_parameters(self, input: TensorLike) -> None:
        """Make the parameters for inputs like this one, where there are none yet."""
        if recorder() is not None:
            raise ModelError(
                type(self).__name__,
                expected="parameters with shapes, in code that is recorded",
                got="a layer that has met no input",
                fix="call the module once on an example before it is compiled or batched",
            )
        weight = self._parameters["weight"]
        if weight is None:
            weight = self._buffers.get("running_mean")
        settings = dict(self._settings)
        if weight is not None:
            settings.update(device=weight.device, dtype=weight.dtype)
        settings[self.unknown] = self._size(as_tensor(input, type(self).__name__))
        made = self.becomes(**settings)
        for table in ("_parameters", "_buffers"):
            for name, fresh in getattr(made, table).items():
                mine = getattr(self, table).get(name)
                if isinstance(mine, _WITHOUT_SHAPE):
                    mine.materialize(fresh.shape)
                    self._overwrite(mine, fresh.detach())
        self._recipes.update(made._recipes)
        for name, value in made.__dict__.items():
            if name not in ("training", "_hooks") and not isinstance(value, (dict, set)):
                self.__dict__[name] = value
        self.__dict__["_non_persistent"].update(made._non_persistent)

    def reset_parameters(self) -> None:
        """Do nothing: there are no values yet."""

    def forward(self, input: TensorLike, *args: Tree, **kwargs: Tree) -> Tensor:
        self.initialize_parameters(input)
        del self.__dict__["_settings"]
        self.__class__ = self.becomes  # type: ignore[assignment]
        return self.forward(input, *args, **kwargs)

    def extra_repr(self) -> str:
        usual = inspect.signature(self.becomes.__init__).parameters
        shown = [
            f"{name}={value!r}"
            for name, value in self._settings.items()
            if name not in usual or value != usual[name].default
        ]
        return ", ".join(shown)


@documented_by(Linear)
class LazyLinear(_Lazy, Linear):
    """A `Linear` whose `in_features` is the last size of its first input."""

    becomes, unknown = Linear, "in_features"

    def __init__(
        self,
        out_features: int,
        bias: bool = True,
        device: str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        settings = {"out_features": out_features, "bias": bias, "device": device, "dtype": dtype}
        self._begin(settings, ("weight", "bias") if bias else ("weight",))
        self.out_features = out_features

    def _size(self, x: Tensor) -> int:
        if not x.array.ndim:
            raise ShapeError(
                "LazyLinear",
                expected="an input (..., features)",
                got="a 0-d tensor",
                fix="the last dim holds the features",
            )
        return x.array.shape[-1]


class _LazyConv(_Lazy):
    """A convolution whose `in_channels` is that of its first input."""

    unknown = "in_channels"

    def __init__(
        self,
        out_channels: int,
        kernel_size: SizeLike,
        stride: SizeLike = 1,
        padding: SizeLike | str = 0,
        dilation: SizeLike = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        settings = {
            "out_channels": out_channels,
            "kernel_size": kernel_size,
            "stride": stride,
            "padding": padding,
            "dilation": dilation,
            "groups": groups,
            "bias": bias,
            "padding_mode": padding_mode,
            "device": device,
            "dtype": dtype,
        }
        self._begin(settings, ("weight", "bias") if bias else ("weight",))
        self.out_channels = out_channels


class LazyConv1d(_LazyConv, Conv1d):
    """A `Conv1d` whose `in_channels` is that of its first input; other arguments as there."""

    becomes, accepts = Conv1d, (2, 3)


class LazyConv2d(_LazyConv, Conv2d):
    """A `Conv2d` whose `in_channels` is that of its first input; other arguments as there."""

    becomes, accepts = Conv2d, (3, 4)


class LazyConv3d(_LazyConv, Conv3d):
    """A `Conv3d` whose `in_channels` is that of its first input; other arguments as there."""

    becomes, accepts = Conv3d, (4, 5)


class _LazyConvTranspose(_Lazy):
    """A transposed convolution whose `in_channels` is that of its first input."""

    unknown = "in_channels"

    def __init__(
        self,
        out_channels: int,
        kernel_size: SizeLike,
        stride: SizeLike = 1,
        padding: SizeLike = 0,
        output_padding: SizeLike = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: int = 1,
        padding_mode: str = "zeros",
        device: str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        settings = {
            "out_channels": out_channels,
            "kernel_size": kernel_size,
            "stride": stride,
            "padding": padding,
            "output_padding": output_padding,
            "groups": groups,
            "bias": bias,
            "dilation": dilation,
            "padding_mode": padding_mode,
            "device": device,
            "dtype": dtype,
        }
        self._begin(settings, ("weight", "bias") if bias else ("weight",))
        self.out_channels = out_channels


class LazyConvTranspose1d(_LazyConvTranspose, ConvTranspose1d):
    """A `ConvTranspose1d` whose `in_channels` is that of its first input; the rest as there."""

    becomes, accepts = ConvTranspose1d, (2, 3)


class LazyConvTranspose2d(_LazyConvTranspose, ConvTranspose2d):
    """A `ConvTranspose2d` whose `in_channels` is that of its first input; the rest as there."""

    becomes, accepts = ConvTranspose2d, (3, 4)


class LazyConvTranspose3d(_LazyConvTranspose, ConvTranspose3d):
    """A `ConvTranspose3d` whose `in_channels` is that of its first input; the rest as there."""

    becomes, accepts = ConvTranspose3d, (4, 5)


class _LazyNorm(_Lazy):
    """A normalisation whose `num_features` is the number of channels of its first input."""

    unknown = "num_features"

    def __init__(
        self,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: str | None = None,
        dtype: DTypeLike | None = None,
        *,
        bias: bool = True,
    ) -> None:
        settings = {
            "eps": eps,
            "momentum": momentum,
            "affine": affine,
            "track_running_stats": track_running_stats,
            "device": device,
            "dtype": dtype,
            "bias": bias,
        }
        learned = ("weight", *(("bias",) if settings["bias"] else ())) if settings["affine"] else ()
        tracked = bool(settings["track_running_stats"])
        self._begin(settings, learned, ("running_mean", "running_var") if tracked else ())
        count = zeros((), dtype="int64") if tracked else None
        if not tracked:
            self.register_buffer("running_mean", None)
            self.register_buffer("running_var", None)
        self.register_buffer("num_batches_tracked", count)


class LazyBatchNorm1d(_LazyNorm, BatchNorm1d):
    """A `BatchNorm1d` whose `num_features` is that of its first input; the rest as there."""

    becomes, accepts = BatchNorm1d, (2, 3)


class LazyBatchNorm2d(_LazyNorm, BatchNorm2d):
    """A `BatchNorm2d` whose `num_features` is that of its first input; the rest as there."""

    becomes, accepts = BatchNorm2d, (4,)


class LazyBatchNorm3d(_LazyNorm, BatchNorm3d):
    """A `BatchNorm3d` whose `num_features` is that of its first input; the rest as there."""

    becomes, accepts = BatchNorm3d, (5,)


class LazyInstanceNorm1d(_LazyNorm, InstanceNorm1d):
    """An `InstanceNorm1d` whose `num_features` is that of its first input; the rest as there."""

    becomes, accepts = InstanceNorm1d, (2, 3)


class LazyInstanceNorm2d(_LazyNorm, InstanceNorm2d):
    """An `InstanceNorm2d` whose `num_features` is that of its first input; the rest as there."""

    becomes, accepts = InstanceNorm2d, (3, 4)


class LazyInstanceNorm3d(_LazyNorm, InstanceNorm3d):
    """An `InstanceNorm3d` whose `num_features` is that of its first input; the rest as there."""

    becomes, accepts = InstanceNorm3d, (4, 5)
