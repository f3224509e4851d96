"""Schedules that follow a cosine, once or again and again."""

from __future__ import annotations

import math

from probtorch.core.signatures import explain_calls
from probtorch.core.told import repeated
from probtorch.errors import ArgumentError
from probtorch.optim.lr_scheduler.base import LRScheduler
from probtorch.optim.optimizer import Optimizer

__all__ = ["CosineAnnealingLR", "CosineAnnealingWarmRestarts"]


class CosineAnnealingLR(LRScheduler):
    """Half a cosine wave from the initial rate down to `eta_min` in `T_max` steps, and up again.

    Parameters
    ----------
    optimizer : Optimizer
    T_max : int
        Steps of half a period.
    eta_min : float
    last_epoch : int

    References
    ----------
    I. Loshchilov, F. Hutter, "SGDR: stochastic gradient descent with warm restarts", ICLR 2017.
    """

    def __init__(
        self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """Return the present rates, moved by the ratio of this height to the one before."""
        step, half = self.last_epoch, self.T_max
        if step == 0 or self._beginning():
            return self._present()
        if (step - 1 - half) % (2 * half) == 0:
            # The height before is 0: leave the valley by the closed form's first step up.
            up = (1 - math.cos(math.pi / half)) / 2
            return [
                lr + (base - self.eta_min) * up for lr, base in zip(self._present(), self.base_lrs)
            ]
        ratio = (1 + math.cos(math.pi * step / half)) / (1 + math.cos(math.pi * (step - 1) / half))
        return [ratio * (lr - self.eta_min) + self.eta_min for lr in self._present()]

    def _closed_form(self) -> list[float]:
        height = (1 + math.cos(math.pi * self.last_epoch / self.T_max)) / 2
        return [self.eta_min + (base - self.eta_min) * height for base in self.base_lrs]


class CosineAnnealingWarmRestarts(LRScheduler):
    """Half a cosine wave from the initial rate down to `eta_min`, again and again.

    Parameters
    ----------
    optimizer : Optimizer
    T_0 : int
        Steps of the first wave.
    T_mult : int
        How many times longer each wave is than the one before.
    eta_min : float
    last_epoch : int

    References
    ----------
    I. Loshchilov, F. Hutter, "SGDR: stochastic gradient descent with warm restarts", ICLR 2017.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        T_0: int,
        T_mult: int = 1,
        eta_min: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        for name, value in {"T_0": T_0, "T_mult": T_mult}.items():
            if not isinstance(value, int) or value < 1:
                raise ArgumentError(
                    f"CosineAnnealingWarmRestarts: {name}",
                    expected="an integer >= 1",
                    got=repr(value),
                    fix="count it in calls of step()",
                )
        self.T_0, self.T_mult, self.eta_min = T_0, T_mult, eta_min
        self.T_i: float = T_0
        self.T_cur: float = last_epoch
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """Return the rates at this point of the wave."""
        height = (1 + math.cos(math.pi * self.T_cur / self.T_i)) / 2
        return [self.eta_min + (base - self.eta_min) * height for base in self.base_lrs]

    @repeated
    def step(self, epoch: float | None = None) -> None:
        """Go on to the next step, or to `epoch`, which may be a fraction."""
        if epoch is not None and epoch < 0:
            raise ArgumentError(
                "CosineAnnealingWarmRestarts.step",
                expected="epoch >= 0",
                got=str(epoch),
                fix="leave it out to go one step on",
            )
        position = self.last_epoch + 1 if epoch is None else epoch
        wave = 0
        length: float = self.T_0
        start: float = 0
        if self.T_mult == 1:
            start = position // self.T_0 * self.T_0
        else:
            # Waves of T_0 * T_mult^n steps: the n-th ends at T_0 (T_mult^(n+1) - 1) / (T_mult - 1).
            while position >= start + length:
                start += length
                wave += 1
                length = self.T_0 * self.T_mult**wave
        self.T_i, self.T_cur = length, position - start
        self.last_epoch = math.floor(position)
        self._set(self.get_lr())


explain_calls(globals())
