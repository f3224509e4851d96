"""A schedule that listens: the rate falls when a number stops getting better."""

from __future__ import annotations

import math
from collections.abc import Sequence

from probtorch.core.signatures import explain_calls
from probtorch.core.told import repeated
from probtorch.errors import ArgumentError
from probtorch.optim.lr_scheduler.base import (
    LRScheduler,
    check_optimizer,
    number_of,
    per_group,
    set_lr,
)
from probtorch.optim.optimizer import Optimizer
from probtorch.tensor import Tensor

__all__ = ["ReduceLROnPlateau"]


class ReduceLROnPlateau(LRScheduler):
    """The rate times `factor` when a number, such as a validation loss, stops getting better.

    Parameters
    ----------
    optimizer : Optimizer
    mode : {"min", "max"}
        Whether smaller or larger is better.
    factor : float, < 1
    patience : int
        Bad steps that are let pass; the rate falls at the next one.
    threshold : float
        What counts as better: by this part of the best ("rel") or by this much ("abs").
    threshold_mode : {"rel", "abs"}
    cooldown : int
        Steps after a fall in which bad ones are not counted.
    min_lr : float, or list of float, one per group
    eps : float
        Smaller falls are left out.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float | Sequence[float] = 0,
        eps: float = 1e-8,
    ) -> None:
        check_optimizer(optimizer, "ReduceLROnPlateau")
        wrong = {
            "factor": (factor, factor < 1.0, "< 1.0"),
            "mode": (mode, mode in ("min", "max"), "'min' or 'max'"),
            "threshold_mode": (threshold_mode, threshold_mode in ("rel", "abs"), "'rel' or 'abs'"),
        }
        for name, (value, ok, expected) in wrong.items():
            if not ok:
                raise ArgumentError(
                    f"ReduceLROnPlateau: {name}",
                    expected=expected,
                    got=repr(value),
                    fix="see the documentation of the class",
                )
        self.optimizer = optimizer
        self.mode, self.factor, self.patience = mode, factor, patience
        self.threshold, self.threshold_mode = threshold, threshold_mode
        self.cooldown, self.eps = cooldown, eps
        self.min_lrs = per_group(min_lr, optimizer, "min_lr")
        self.best = math.inf if mode == "min" else -math.inf
        self.num_bad_epochs = self.cooldown_counter = self.last_epoch = 0
        self._last_lr = self._present()

    def is_better(self, a: float, best: float) -> bool:
        """Whether `a` beats `best` by the threshold."""
        sign = 1.0 if self.mode == "min" else -1.0
        if self.threshold_mode == "rel":
            return sign * a < sign * best * (1.0 - sign * self.threshold)
        return sign * a < sign * best - self.threshold

    @repeated
    def step(self, metrics: float | Tensor, epoch: int | None = None) -> None:  # type: ignore[override]
        """Hear of a new value of the number that is watched.

        Parameters
        ----------
        metrics : float or Tensor with one element
        epoch : int, optional
            What to count this step as.
        """
        current = float(metrics)
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        if self.is_better(current, self.best):
            self.best, self.num_bad_epochs = current, 0
        else:
            self.num_bad_epochs += 1
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            for group, least in zip(self.optimizer.param_groups, self.min_lrs, strict=True):
                lr = number_of(group["lr"])
                lower = max(lr * self.factor, least)
                if lr - lower > self.eps:
                    set_lr(group, lower)
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
        self._last_lr = self._present()


explain_calls(globals())
