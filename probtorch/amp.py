"""Mixed precision, as training scripts write it: everything is computed in the precision it has.

No processor here is faster in float16, and there is no bfloat16, so `autocast` changes nothing; a
script that uses it trains in float32, with the same or better numbers. `GradScaler` is the real
thing: it scales a loss, takes the scale out of gradients again, leaves out steps whose gradients
are not finite, and adapts the scale [micikevicius2018]_, for networks in float16 (`Module.half`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import TracebackType
from typing import ParamSpec, TypeVar

from probtorch.autograd.modes import no_grad
from probtorch.core.dtype import as_dtype
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import flatten, unflatten
from probtorch.core.typed import DTypeLike, Tree
from probtorch.cuda import is_available
from probtorch.errors import ArgumentError
from probtorch.ops.comparisons import isfinite
from probtorch.optim import Optimizer
from probtorch.optim.typed import R as Loss

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd", "is_autocast_available"]

_KINDS = ("cpu", "cuda")
# Of a scale: what multiplies a loss of float32 is finite there.
_LARGEST = 2.0**127

P = ParamSpec("P")
R = TypeVar("R")


class autocast:
    """Context manager and decorator that leaves the precision as it is; see the module.

    Parameters
    ----------
    device_type : str
        "cpu" or "cuda".
    dtype : dtype, optional
    enabled, cache_enabled : bool

    Raises
    ------
    ArgumentError
        For another device.

    Examples
    --------
    >>> import probtorch
    >>> with probtorch.autocast("cpu"):
    ...     (probtorch.ones(2, 2) @ probtorch.ones(2, 2)).dtype
    dtype('float32')
    """

    def __init__(
        self,
        device_type: str,
        dtype: DTypeLike | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        kind = str(device_type).partition(":")[0]
        if kind not in _KINDS:
            raise ArgumentError(
                "autocast",
                expected='device_type "cpu" or "cuda"',
                got=repr(device_type),
                fix="name the kind of the device on which the block computes",
            )
        if dtype is not None:
            as_dtype(dtype)
        self.device_type, self.enabled = kind, bool(enabled)

    def __enter__(self) -> autocast:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    def __call__(self, fn: Callable[P, R]) -> Callable[P, R]:
        """Return the function itself."""
        return fn

    def __repr__(self) -> str:
        return f"autocast({self.device_type!r}, enabled={self.enabled})"


def is_autocast_available(device_type: str) -> bool:
    """Return whether `autocast` takes a kind of device: "cpu" and "cuda"."""
    return device_type in _KINDS


def custom_fwd(
    fwd: Callable[P, R] | None = None,
    *,
    device_type: str,
    cast_inputs: DTypeLike | None = None,
) -> Callable[..., object]:
    """Decorate the forward of an `autograd.Function`, which `autocast` leaves as it is, too.

    `cast_inputs` counts inside of autocast in PyTorch, and so nowhere here.
    """
    autocast(device_type, cast_inputs)
    return fwd if fwd is not None else _as_it_is


def custom_bwd(bwd: Callable[P, R] | None = None, *, device_type: str) -> Callable[..., object]:
    """Decorate the backward of an `autograd.Function`, see `custom_fwd`."""
    autocast(device_type)
    return bwd if bwd is not None else _as_it_is


def _as_it_is(fn: Callable[P, R]) -> Callable[P, R]:
    return fn


class GradScaler:
    """Scales a loss so that gradients in float16 do not vanish, and finds a good scale.

    Parameters
    ----------
    device : str
        "cuda" or "cpu". Without a GPU a scaler for "cuda" is disabled, as in PyTorch: all its
        methods hand on what they get.
    init_scale, growth_factor, backoff_factor : float
        The scale at first; by what it grows, and shrinks after gradients that were not finite.
    growth_interval : int
        Steps with finite gradients after which it grows.
    enabled : bool

    Examples
    --------
    >>> import probtorch
    >>> from probtorch.amp import GradScaler
    >>> w = probtorch.tensor([1.0], requires_grad=True)
    >>> optimizer, scaler = probtorch.optim.SGD([w], lr=0.1), GradScaler("cpu")
    >>> scaler.scale((w * 2.0).sum()).backward()
    >>> scaler.step(optimizer)
    >>> scaler.update()
    >>> w
    tensor([0.8000], requires_grad=True)
    """

    def __init__(
        self,
        device: str = "cuda",
        init_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        if growth_factor <= 1.0 or not 0.0 < backoff_factor < 1.0:
            raise ArgumentError(
                "GradScaler",
                expected="growth_factor > 1 and 0 < backoff_factor < 1",
                got=f"growth_factor={growth_factor}, backoff_factor={backoff_factor}",
                fix="the scale grows after steps with finite gradients and shrinks after others",
            )
        if enabled and str(device).startswith("cuda") and not is_available():
            warnings.warn(
                'GradScaler for "cuda" is disabled, as there is no GPU; GradScaler("cpu") scales',
                stacklevel=2,
            )
            enabled = False
        self._enabled = bool(enabled)
        self._scale = float(init_scale)
        self._growth_factor, self._backoff_factor = float(growth_factor), float(backoff_factor)
        self._growth_interval, self._since = int(growth_interval), 0
        # By optimizer, since the last update: whether all its gradients were finite, and those
        # that took a step.
        self._finite: dict[int, bool] = {}
        self._stepped: set[int] = set()

    def is_enabled(self) -> bool:
        """Whether it scales."""
        return self._enabled

    def get_scale(self) -> float:
        """Return the factor by which losses are multiplied."""
        return self._scale if self._enabled else 1.0

    def scale(self, outputs: Tree) -> Tree:
        """Return tensors, or a tree of them, multiplied by the scale."""
        if not self._enabled:
            return outputs
        leaves, structure = flatten(outputs)
        return unflatten(structure, [x * self._scale for x in leaves])

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients of an optimizer's parameters by the scale, ahead of clipping.

        Raises
        ------
        ArgumentError
            If it was done since the last `update`.
        """
        if not self._enabled:
            return
        if id(optimizer) in self._finite:
            raise ArgumentError(
                "GradScaler.unscale_",
                expected="one call for each optimizer between two calls of update()",
                got="a second one",
                fix="call update() after step()",
            )
        self._unscale(optimizer)

    def _unscale(self, optimizer: Optimizer) -> None:
        finite = True
        with no_grad():
            for p in _parameters(optimizer):
                if p.grad is not None:
                    p.grad.mul_(1.0 / self._scale)
                    finite = finite and bool(isfinite(p.grad).all())
        self._finite[id(optimizer)] = finite

    def step(self, optimizer: Optimizer, closure: Callable[[], Loss] | None = None) -> None:
        """Take a step of the optimizer if all its gradients are finite.

        Raises
        ------
        ArgumentError
            If it took one since the last `update`, so that its gradients would keep the scale; or
            for a closure, whose gradients nobody would divide by the scale.
        """
        if not self._enabled:
            if closure is None:
                optimizer.step()
            else:
                optimizer.step(closure)
            return
        if closure is not None:
            raise ArgumentError(
                "GradScaler.step",
                expected="an optimizer that takes its step from the gradients that are there",
                got="a closure, which computes them anew, several times perhaps",
                fix="call optimizer.step(closure) with a scaler of enabled=False",
            )
        if id(optimizer) in self._stepped:
            raise ArgumentError(
                "GradScaler.step",
                expected="one step of each optimizer between two calls of update()",
                got="a second one",
                fix="call update() after the steps of all optimizers",
            )
        if id(optimizer) not in self._finite:
            self._unscale(optimizer)
        self._stepped.add(id(optimizer))
        if self._finite[id(optimizer)]:
            optimizer.step()

    def update(self, new_scale: float | TensorBase | None = None) -> None:
        """Adapt the scale to what the steps since the last call met, or set it.

        Raises
        ------
        ArgumentError
            If there was no step.
        """
        if not self._enabled:
            return
        if new_scale is not None:
            self._scale = float(new_scale)
        elif not self._finite:
            raise ArgumentError(
                "GradScaler.update",
                expected="a call of step() since the last update()",
                got="none",
                fix="call step(optimizer) in place of optimizer.step()",
            )
        elif not all(self._finite.values()):
            self._scale, self._since = self._scale * self._backoff_factor, 0
        else:
            self._since += 1
            if self._since == self._growth_interval:
                grown = self._scale * self._growth_factor
                self._scale, self._since = min(grown, _LARGEST), 0
        self._finite.clear()
        self._stepped.clear()

    def state_dict(self) -> dict[str, float]:
        """Return the scale and what it is adapted by; empty if it is disabled."""
        if not self._enabled:
            return {}
        return {
            "scale": self._scale,
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._since,
        }

    def load_state_dict(self, state_dict: dict[str, float]) -> None:
        """Go on from what `state_dict` returned."""
        if not self._enabled:
            return
        if "scale" not in state_dict:
            raise ArgumentError(
                "GradScaler.load_state_dict",
                expected="the state of a scaler that scales",
                got=f"keys {sorted(state_dict)}",
                fix="a disabled scaler has no state: make this one with enabled=False, too",
            )
        self._scale = float(state_dict["scale"])
        self._growth_factor = float(state_dict["growth_factor"])
        self._backoff_factor = float(state_dict["backoff_factor"])
        self._growth_interval = int(state_dict["growth_interval"])
        self._since = int(state_dict["_growth_tracker"])

    def __repr__(self) -> str:
        return f"GradScaler(scale={self.get_scale()}, enabled={self._enabled})"


def _parameters(optimizer: Optimizer) -> list[TensorBase]:
    return [p for group in optimizer.param_groups for p in group["params"]]


explain_calls(globals())
