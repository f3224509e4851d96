"""Schedules that rise and fall, the momentum going the other way."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence

from probtorch.core.signatures import explain_calls
from probtorch.core.typed import StateDict
from probtorch.errors import ArgumentError
from probtorch.optim.lr_scheduler.base import (
    LRScheduler,
    check_momentum,
    check_optimizer,
    per_group,
    set_lr,
    set_momentum,
)
from probtorch.optim.optimizer import Optimizer

__all__ = ["CyclicLR", "OneCycleLR"]


class CyclicLR(LRScheduler):
    """Up and down between two rates, again and again, momentum going the other way.

    Parameters
    ----------
    optimizer : Optimizer
    base_lr, max_lr : float, or list of float, one per group
        Where a cycle starts and ends, and where it turns.
    step_size_up : int
        Steps of a rise.
    step_size_down : int, optional
        Steps of a descent; those of a rise if None.
    mode : {"triangular", "triangular2", "exp_range"}
        Whether all rises are alike, each is half of the one before, or their height is `gamma` to
        the power of the step.
    gamma : float
    scale_fn : callable, optional
        In place of a mode: from the number of the cycle (from 1) or the step to what part of the
        rise is left.
    scale_mode : {"cycle", "iterations"}
        What `scale_fn` is called with.
    cycle_momentum : bool
        Move "momentum", or the first of "betas", too.
    base_momentum, max_momentum : float, or list of float
    last_epoch : int

    Raises
    ------
    ArgumentError
        For bad options, or an optimizer without momentum to cycle.

    Notes
    -----
    `scale_fn` is not part of `state_dict`.

    References
    ----------
    L. N. Smith, "Cyclical learning rates for training neural networks", WACV 2017.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        base_lr: float | Sequence[float],
        max_lr: float | Sequence[float],
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None,
        scale_mode: str = "cycle",
        cycle_momentum: bool = True,
        base_momentum: float | Sequence[float] = 0.8,
        max_momentum: float | Sequence[float] = 0.9,
        last_epoch: int = -1,
    ) -> None:
        check_optimizer(optimizer, "CyclicLR")
        if scale_fn is None and mode not in _HEIGHTS:
            raise ArgumentError(
                "CyclicLR: mode",
                expected=f"one of {', '.join(_HEIGHTS)}, or a scale_fn",
                got=repr(mode),
                fix="see the documentation of the class",
            )
        down = step_size_up if step_size_down is None else step_size_down
        if step_size_up <= 0 or down <= 0:
            raise ArgumentError(
                "CyclicLR",
                expected="step_size_up > 0 and step_size_down > 0",
                got=f"{step_size_up} and {down}",
                fix="count them in calls of step()",
            )
        self.total_size = float(step_size_up + down)
        self.step_ratio = step_size_up / self.total_size
        self.mode, self.gamma = mode, gamma
        self.scale_mode = scale_mode if scale_fn is not None else _COUNTED[mode]
        self._scale_fn = scale_fn
        bases = per_group(base_lr, optimizer, "base_lr")
        self.max_lrs = per_group(max_lr, optimizer, "max_lr")
        if last_epoch == -1:
            for group, base in zip(optimizer.param_groups, bases):
                set_lr(group, base)
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            check_momentum(optimizer)
            self.base_momentums = per_group(base_momentum, optimizer, "base_momentum")
            self.max_momentums = per_group(max_momentum, optimizer, "max_momentum")
            if last_epoch == -1:
                ends = zip(optimizer.param_groups, self.base_momentums, self.max_momentums)
                for group, low, high in ends:
                    set_momentum(group, high)
                    group["base_momentum"], group["max_momentum"] = low, high
        self._bases = bases
        super().__init__(optimizer, last_epoch)
        self.base_lrs = bases

    def scale_fn(self, x: float) -> float:
        """Return what part of the rise is left in cycle, or at step, `x`."""
        if self._scale_fn is not None:
            return self._scale_fn(x)
        return _HEIGHTS[self.mode](x, self.gamma)

    def get_lr(self) -> list[float]:
        """Return the rates at this point of the cycle; sets the momenta on the way."""
        cycle = math.floor(1 + self.last_epoch / self.total_size)
        x = 1.0 + self.last_epoch / self.total_size - cycle
        rise = x / self.step_ratio if x <= self.step_ratio else (x - 1) / (self.step_ratio - 1)
        height = self.scale_fn(cycle if self.scale_mode == "cycle" else self.last_epoch)
        if self.cycle_momentum:
            ends = zip(self.optimizer.param_groups, self.base_momentums, self.max_momentums)
            for group, low, high in ends:
                set_momentum(group, high - (high - low) * rise * height)
        return [low + (high - low) * rise * height for low, high in zip(self._bases, self.max_lrs)]

    def state_dict(self) -> StateDict:
        """Return the state, without `scale_fn`."""
        return {k: v for k, v in super().state_dict().items() if k != "_scale_fn"}


# By the mode of `CyclicLR`, the height of a rise, and what it is a function of.
_HEIGHTS: dict[str, Callable[[float, float], float]] = {
    "triangular": lambda cycle, gamma: 1.0,
    "triangular2": lambda cycle, gamma: 1 / 2.0 ** (cycle - 1),
    "exp_range": lambda step, gamma: gamma**step,
}
_COUNTED = {"triangular": "cycle", "triangular2": "cycle", "exp_range": "iterations"}


class OneCycleLR(LRScheduler):
    """One rise to `max_lr` and a long descent, momentum going the other way.

    Parameters
    ----------
    optimizer : Optimizer
    max_lr : float, or list of float, one per group
    total_steps : int, optional
        Steps of the whole cycle; else ``epochs * steps_per_epoch``.
    epochs, steps_per_epoch : int, optional
    pct_start : float, in [0, 1]
        Part of the cycle in which the rate rises.
    anneal_strategy : {"cos", "linear"}
    cycle_momentum : bool
        Move "momentum", or the first of "betas", too.
    base_momentum, max_momentum : float, or list of float
    div_factor : float
        The rate starts at ``max_lr / div_factor``.
    final_div_factor : float
        It ends at the start's value divided by this.
    three_phase : bool
        Descend as steeply as it rose, then go on down to the end.
    last_epoch : int

    Raises
    ------
    ArgumentError
        For bad options, an optimizer without momentum to cycle, or a step beyond the cycle.

    References
    ----------
    L. N. Smith, N. Topin, "Super-convergence", 2017.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | Sequence[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float | Sequence[float] = 0.85,
        max_momentum: float | Sequence[float] = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:
        check_optimizer(optimizer, "OneCycleLR")
        if total_steps is None:
            if epochs is None or steps_per_epoch is None:
                raise ArgumentError(
                    "OneCycleLR",
                    expected="total_steps, or epochs and steps_per_epoch",
                    got=f"epochs={epochs}, steps_per_epoch={steps_per_epoch}",
                    fix="pass total_steps=epochs * len(loader)",
                )
            total_steps = epochs * steps_per_epoch
        wrong = {
            "total_steps": (total_steps, total_steps > 0, "> 0"),
            "pct_start": (pct_start, 0 <= pct_start <= 1, "in [0, 1]"),
            "anneal_strategy": (
                anneal_strategy,
                anneal_strategy in ("cos", "linear"),
                "'cos' or 'linear'",
            ),
        }
        for name, (value, ok, expected) in wrong.items():
            if not ok:
                raise ArgumentError(
                    f"OneCycleLR: {name}",
                    expected=expected,
                    got=repr(value),
                    fix="see the documentation of the class",
                )
        self.total_steps, self.anneal_strategy = total_steps, anneal_strategy
        self.cycle_momentum = cycle_momentum
        if three_phase:
            ends = [pct_start * total_steps - 1, 2 * pct_start * total_steps - 2, total_steps - 1]
            legs = [("initial", "max"), ("max", "initial"), ("initial", "min")]
            swings = [("max", "base"), ("base", "max"), ("max", "max")]
        else:
            ends = [pct_start * total_steps - 1, total_steps - 1]
            legs, swings = [("initial", "max"), ("max", "min")], [("max", "base"), ("base", "max")]
        self._phases: list[tuple[float, str, str, str, str]] = [
            (float(end), *leg, *swing) for end, leg, swing in zip(ends, legs, swings, strict=True)
        ]
        peaks = per_group(max_lr, optimizer, "max_lr")
        if last_epoch == -1:
            for group, peak in zip(optimizer.param_groups, peaks):
                group["initial_lr"] = peak / div_factor
                group["max_lr"] = peak
                group["min_lr"] = group["initial_lr"] / final_div_factor
        if cycle_momentum:
            check_momentum(optimizer)
            bases = per_group(base_momentum, optimizer, "base_momentum")
            tops = per_group(max_momentum, optimizer, "max_momentum")
            if last_epoch == -1:
                for group, low, high in zip(optimizer.param_groups, bases, tops):
                    set_momentum(group, high)
                    group["base_momentum"], group["max_momentum"] = low, high
        super().__init__(optimizer, last_epoch)

    def _between(self, start: float, end: float, part: float) -> float:
        if self.anneal_strategy == "linear":
            return start + (end - start) * part
        return end + (start - end) / 2.0 * (1 + math.cos(math.pi * part))

    def get_lr(self) -> list[float]:
        """Return the rates at this point of the cycle; sets the momenta on the way."""
        step = self.last_epoch
        if step > self.total_steps:
            raise ArgumentError(
                f"Tried to step {step} times",
                expected=f"at most the {self.total_steps} steps of the cycle",
                got=str(step),
                fix="raise total_steps, or stop calling step()",
            )
        turns = [end for end, *_ in self._phases]
        phase = min(bisect.bisect_left(turns, step), len(turns) - 1)
        start = turns[phase - 1] if phase else 0.0
        end, lr_from, lr_to, momentum_from, momentum_to = self._phases[phase]
        part = (step - start) / (end - start) if end != start else 1.0
        found = []
        for group in self.optimizer.param_groups:
            found.append(self._between(group[f"{lr_from}_lr"], group[f"{lr_to}_lr"], part))
            if self.cycle_momentum:
                ends = group[f"{momentum_from}_momentum"], group[f"{momentum_to}_momentum"]
                set_momentum(group, self._between(*ends, part))
        return found


explain_calls(globals())
