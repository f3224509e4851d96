"""Normalisation of each sample by itself, and of channels over the batch.

Batch and instance normalisation keep running statistics as buffers; the others have none.
"""

from __future__ import annotations

from probtorch.autograd.modes import no_grad
from probtorch.core import dtype as dtypes
from probtorch.core.making import as_tensor
from probtorch.core.typed import DTypeLike, Shape, SizeLike, StateDict, TensorLike
from probtorch.errors import ArgumentError, ShapeError
from probtorch.nn import functional as F
from probtorch.nn import init
from probtorch.nn.arguments import documented_by, shown, whole
from probtorch.nn.module import Module
from probtorch.nn.state import Metadata
from probtorch.tensor import Tensor

__all__ = [
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "GroupNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LayerNorm",
    "LocalResponseNorm",
    "RMSNorm",
    "SyncBatchNorm",
]


def _as_shape(normalized_shape: SizeLike) -> Shape:
    return (
        (int(normalized_shape),)
        if hasattr(normalized_shape, "__index__")
        else tuple(normalized_shape)
    )


class LayerNorm(Module):
    """Standardise over the last dims, then scale and shift elementwise.

    Shapes: ``(*, *normalized_shape)``, in and out.

    Parameters
    ----------
    normalized_shape : int or tuple of int
        Shape of the last dims.
    eps : float
        Added to the variance.
    elementwise_affine : bool
        Whether to learn `weight` and `bias`, which start at 1 and 0.
    bias : bool
        Whether there is a bias among them.
    device, dtype
        Of the parameters.
    """

    def __init__(
        self,
        normalized_shape: SizeLike,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(device=device, dtype=dtype)
        self.normalized_shape = shape = _as_shape(normalized_shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        self.parameter("weight", shape if elementwise_affine else None, init=init.ones())
        self.parameter("bias", shape if elementwise_affine and bias else None, init=init.zeros())

    def forward(self, input: TensorLike) -> Tensor:
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        settings = shown(self, "eps", "elementwise_affine")
        return f"{self.normalized_shape}, {settings}, bias={self.bias is not None}"


class RMSNorm(Module):
    """Divide by the root mean square over the last dims, then scale elementwise.

    Parameters
    ----------
    normalized_shape : int or tuple of int
    eps : float, optional
        Added to the mean square; the epsilon of the input's dtype if None.
    elementwise_affine : bool
        Whether to learn `weight`, which starts at 1.
    device, dtype
        Of the parameter.
    """

    def __init__(
        self,
        normalized_shape: SizeLike,
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(device=device, dtype=dtype)
        self.normalized_shape = shape = _as_shape(normalized_shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        self.parameter("weight", shape if elementwise_affine else None, init=init.ones())

    def forward(self, input: TensorLike) -> Tensor:
        return F.rms_norm(input, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, {shown(self, 'eps', 'elementwise_affine')}"


class GroupNorm(Module):
    """Standardise each group of channels of each sample, then scale and shift each channel.

    Shapes: ``(N, num_channels, *)``, in and out.

    Parameters
    ----------
    num_groups : int
        Divides `num_channels`.
    num_channels : int
    eps : float
    affine : bool
        Whether to learn `weight` and `bias`, which start at 1 and 0.
    device, dtype
        Of the parameters.
    bias : bool
        Whether there is a bias among them.
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: str | None = None,
        dtype: DTypeLike | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(device=device, dtype=dtype)
        whole("GroupNorm", num_groups=num_groups, num_channels=num_channels)
        if num_channels % num_groups:
            raise ArgumentError(
                "GroupNorm",
                expected="num_channels divisible by num_groups",
                got=f"num_groups={num_groups}, num_channels={num_channels}",
                fix="the number of groups comes first",
            )
        self.num_groups, self.num_channels = num_groups, num_channels
        self.eps, self.affine = eps, affine
        self.parameter("weight", (num_channels,) if affine else None, init=init.ones())
        self.parameter("bias", (num_channels,) if affine and bias else None, init=init.zeros())

    def forward(self, input: TensorLike) -> Tensor:
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        settings = f"{shown(self, 'eps', 'affine')}, bias={self.bias is not None}"
        return f"{self.num_groups}, {self.num_channels}, {settings}"


class _Running(Module):
    """What batch and instance normalisation share: parameters, running statistics, checks."""

    # Version 1 had no `num_batches_tracked`: what was saved then, and dicts that know of no
    # version, are loaded without it, as in PyTorch.
    _version = 2

    ndims: tuple[int, ...]
    shapes: str

    def _load_from_state_dict(
        self,
        state_dict: StateDict,
        prefix: str,
        local_metadata: Metadata,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        version, key = local_metadata.get("version"), f"{prefix}num_batches_tracked"
        count = self._buffers.get("num_batches_tracked")
        if count is not None and not (isinstance(version, int) and version >= 2):
            state_dict.setdefault(key, count)
        super()._load_from_state_dict(
            state_dict,
            prefix,
            local_metadata,
            strict,
            missing_keys,
            unexpected_keys,
            error_msgs,
        )

    def _build(
        self,
        num_features: int,
        eps: float,
        momentum: float | None,
        affine: bool,
        track_running_stats: bool,
        bias: bool,
    ) -> None:
        whole(type(self).__name__, num_features=num_features)
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        self.parameter("weight", (num_features,) if affine else None, init=init.ones())
        self.parameter("bias", (num_features,) if affine and bias else None, init=init.zeros())
        tracked = (num_features,) if track_running_stats else None
        self.buffer("running_mean", tracked, init=init.zeros())
        self.buffer("running_var", tracked, init=init.ones())
        self.buffer(
            "num_batches_tracked",
            () if track_running_stats else None,
            init=init.zeros(),
            dtype=dtypes.int64,
        )

    def reset_running_stats(self) -> None:
        """Set the running statistics to those of no data: mean 0, variance 1, no batches."""
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            if self.track_running_stats:
                self._recipes[name](self._buffers[name])

    def _check(self, input: Tensor, channels: int) -> None:
        if input.ndim not in self.ndims or input.shape[channels] != self.num_features:
            raise ShapeError(
                type(self).__name__,
                expected=f"an input {self.shapes} with C = {self.num_features}",
                got=str(input.shape),
                fix="num_features is the number of channels, C",
            )

    def extra_repr(self) -> str:
        settings = f"{shown(self, 'eps', 'momentum', 'affine')}, bias={self.bias is not None}"
        return f"{self.num_features}, {settings}, {shown(self, 'track_running_stats')}"


class _BatchNorm(_Running):
    """Standardise each channel over the batch, then scale and shift it.

    In evaluation the running mean and variance take the place of the batch's.

    Parameters
    ----------
    num_features : int
        Number of channels.
    eps : float
        Added to the variance.
    momentum : float or None
        Share of each batch in the running statistics; None averages all batches evenly.
    affine : bool
        Whether to learn `weight` and `bias`, which start at 1 and 0.
    track_running_stats : bool
        Off, the batch is used in evaluation too.
    device, dtype
        Of parameters and buffers.
    bias : bool
        Whether `affine` has a bias.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: str | None = None,
        dtype: DTypeLike | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(device=device, dtype=dtype)
        self._build(num_features, eps, momentum, affine, track_running_stats, bias)

    def _count_batch(self) -> float:
        """Count a batch in training; return its share in the new running statistics."""
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            with no_grad():
                self.num_batches_tracked.add_(1)
            if self.momentum is None:
                return 1.0 / float(self.num_batches_tracked)
        return self.momentum or 0.0

    def forward(self, input: TensorLike) -> Tensor:
        x = as_tensor(input, type(self).__name__)
        self._check(x, 1)
        factor = self._count_batch()
        use_batch = self.training or self.running_mean is None
        # `track_running_stats` may have been switched off later: then training leaves them alone.
        kept = not self.training or self.track_running_stats
        return F.batch_norm(
            x,
            self.running_mean if kept else None,
            self.running_var if kept else None,
            self.weight,
            self.bias,
            use_batch,
            factor,
            self.eps,
        )


@documented_by(_BatchNorm)
class BatchNorm1d(_BatchNorm):
    """Batch normalisation of (N, C) or (N, C, L)."""

    ndims, shapes = (2, 3), "(N, C) or (N, C, L)"


@documented_by(_BatchNorm)
class BatchNorm2d(_BatchNorm):
    """Batch normalisation of images (N, C, H, W)."""

    ndims, shapes = (4,), "(N, C, H, W)"


@documented_by(_BatchNorm)
class BatchNorm3d(_BatchNorm):
    """Batch normalisation of volumes (N, C, D, H, W)."""

    ndims, shapes = (5,), "(N, C, D, H, W)"


@documented_by(_BatchNorm)
class SyncBatchNorm(_BatchNorm):
    """Batch normalisation of (N, C, *), for any number of dims.

    In PyTorch the processes of a group share their statistics. Here one process computes a batch,
    which is a group of one: statistics are those of the batch.
    """

    shapes = "(N, C, *)"

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: object = None,
        device: str | None = None,
        dtype: DTypeLike | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias
        )
        if process_group is not None:
            raise ArgumentError(
                "SyncBatchNorm",
                expected="process_group=None",
                got=repr(process_group),
                fix="one process computes a batch: leave the argument out",
            )

    def _check(self, input: Tensor, channels: int) -> None:
        if input.ndim < 2 or input.shape[channels] != self.num_features:
            raise ShapeError(
                "SyncBatchNorm",
                expected=f"an input {self.shapes} with C = {self.num_features}",
                got=str(input.shape),
                fix="num_features is the number of channels, C",
            )

    @classmethod
    def convert_sync_batchnorm(cls, module: Module, process_group: object = None) -> Module:
        """Return `module` with every batch normalisation in it replaced by this class.

        The new layers share parameters and buffers with those they replace.
        """
        out = module
        if isinstance(module, _BatchNorm):
            out = cls(
                module.num_features,
                module.eps,
                module.momentum,
                module.affine,
                module.track_running_stats,
                process_group,
            )
            for table in ("_parameters", "_buffers"):
                getattr(out, table).update(getattr(module, table))
            out.training = module.training
        for name, child in module._modules.items():
            if child is not None:
                out.add_module(name, cls.convert_sync_batchnorm(child, process_group))
        return out


class _InstanceNorm(_Running):
    """Standardise each channel of each sample over its spatial dims.

    Parameters
    ----------
    num_features : int
        Number of channels.
    eps : float
    momentum : float or None
        Share of each batch in the running statistics.
    affine : bool
        Whether to learn `weight` and `bias`.
    track_running_stats : bool
        Whether to keep running statistics and use them in evaluation.
    device, dtype
        Of parameters and buffers.
    bias : bool
        Whether `affine` has a bias.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: str | None = None,
        dtype: DTypeLike | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(device=device, dtype=dtype)
        self._build(num_features, eps, momentum, affine, track_running_stats, bias)

    def forward(self, input: Tensor) -> Tensor:
        batched = input.ndim == max(self.ndims)
        self._check(input, 1 if batched else 0)
        out = F.instance_norm(
            input if batched else input.unsqueeze(0),
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training or not self.track_running_stats,
            self.momentum or 0.0,
            self.eps,
        )
        return out if batched else out.squeeze(0)


@documented_by(_InstanceNorm)
class InstanceNorm1d(_InstanceNorm):
    """Instance normalisation of (N, C, L) or (C, L)."""

    ndims, shapes = (2, 3), "(N, C, L) or (C, L)"


@documented_by(_InstanceNorm)
class InstanceNorm2d(_InstanceNorm):
    """Instance normalisation of images, (N, C, H, W) or (C, H, W)."""

    ndims, shapes = (3, 4), "(N, C, H, W) or (C, H, W)"


@documented_by(_InstanceNorm)
class InstanceNorm3d(_InstanceNorm):
    """Instance normalisation of volumes, with or without N."""

    ndims, shapes = (4, 5), "(N, C, D, H, W) or (C, D, H, W)"


class LocalResponseNorm(Module):
    """Divide by ``(k + alpha * mean of squares) ** beta`` over `size` neighbouring channels.

    Shapes: ``(N, C, *)``, in and out.
    """

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        super().__init__()
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, input: TensorLike) -> Tensor:
        return F.local_response_norm(input, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self) -> str:
        return f"{self.size}, {shown(self, 'alpha', 'beta', 'k')}"
