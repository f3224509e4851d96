"""Schedules that are a formula of the step: functions, stairs, lines, powers."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Sequence

from probtorch.core.signatures import explain_calls
from probtorch.core.typed import StateDict
from probtorch.errors import ArgumentError
from probtorch.optim.lr_scheduler.base import LRScheduler, check_optimizer, per_group
from probtorch.optim.optimizer import Optimizer, rate_from

__all__ = [
    "ConstantLR",
    "ExponentialLR",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "MultiplicativeLR",
    "PolynomialLR",
    "StepLR",
]


class LambdaLR(LRScheduler):
    """The initial rate times a function of the step.

    Parameters
    ----------
    optimizer : Optimizer
    lr_lambda : callable, or list of them, one per group
        From step (int, from 0) to a factor.
    last_epoch : int

    Notes
    -----
    The functions are not part of `state_dict`.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
        last_epoch: int = -1,
    ) -> None:
        check_optimizer(optimizer, "LambdaLR")
        self.lr_lambdas = per_group(lr_lambda, optimizer, "lr_lambda")
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """Return the initial rates times their factors."""
        factors = [rate_from("LambdaLR", fn(self.last_epoch)) for fn in self.lr_lambdas]
        return [base * factor for base, factor in zip(self.base_lrs, factors, strict=True)]

    def state_dict(self) -> StateDict:
        """Return the state, without the functions."""
        return {k: v for k, v in super().state_dict().items() if k != "lr_lambdas"}


class MultiplicativeLR(LRScheduler):
    """The present rate times a function of the step.

    Parameters
    ----------
    optimizer : Optimizer
    lr_lambda : callable, or list of them, one per group
        From step (int, from 1) to the factor between the rate before and this one.
    last_epoch : int

    Notes
    -----
    The functions are not part of `state_dict`.

    Examples
    --------
    >>> from probtorch import tensor
    >>> from probtorch.optim import SGD
    >>> optimizer = SGD([tensor([1.0], requires_grad=True)], lr=1.0)
    >>> schedule = MultiplicativeLR(optimizer, lambda step: 1 / step)
    >>> for _ in range(4):
    ...     schedule.step()
    >>> schedule.get_last_lr()  # 1 / 4!
    [0.041666666666666664]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
        last_epoch: int = -1,
    ) -> None:
        check_optimizer(optimizer, "MultiplicativeLR")
        self.lr_lambdas = per_group(lr_lambda, optimizer, "lr_lambda")
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """Return the present rates times their factors."""
        if self._beginning():
            return self._present()
        factors = [rate_from("MultiplicativeLR", fn(self.last_epoch)) for fn in self.lr_lambdas]
        return [lr * factor for lr, factor in zip(self._present(), factors, strict=True)]

    def state_dict(self) -> StateDict:
        """Return the state, without the functions."""
        return {k: v for k, v in super().state_dict().items() if k != "lr_lambdas"}


class StepLR(LRScheduler):
    """The rate times `gamma` every `step_size` steps.

    Parameters
    ----------
    optimizer : Optimizer
    step_size : int
    gamma : float
    last_epoch : int
    """

    def __init__(
        self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """Return the present rates, times gamma at every multiple of the step size."""
        turn = self.last_epoch > 0 and self.last_epoch % self.step_size == 0
        return [lr * self.gamma if turn else lr for lr in self._present()]

    def _closed_form(self) -> list[float]:
        factor = self.gamma ** (self.last_epoch // self.step_size)
        return [base * factor for base in self.base_lrs]


class MultiStepLR(LRScheduler):
    """The rate times `gamma` at each milestone.

    Parameters
    ----------
    optimizer : Optimizer
    milestones : iterable of int
        Steps; one that occurs twice counts twice.
    gamma : float
    last_epoch : int
    """

    def __init__(
        self,
        optimizer: Optimizer,
        milestones: Iterable[int],
        gamma: float = 0.1,
        last_epoch: int = -1,
    ) -> None:
        self.milestones, self.gamma = sorted(milestones), gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """Return the present rates, times gamma at a milestone."""
        times = self.milestones.count(self.last_epoch)
        return [lr * self.gamma**times if times else lr for lr in self._present()]

    def _closed_form(self) -> list[float]:
        factor = self.gamma ** bisect.bisect_right(self.milestones, self.last_epoch)
        return [base * factor for base in self.base_lrs]


class ExponentialLR(LRScheduler):
    """The rate times `gamma` at every step.

    Parameters
    ----------
    optimizer : Optimizer
    gamma : float
    last_epoch : int
    """

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """Return the present rates times gamma."""
        return [lr if self._beginning() else lr * self.gamma for lr in self._present()]

    def _closed_form(self) -> list[float]:
        return [base * self.gamma**self.last_epoch for base in self.base_lrs]


class ConstantLR(LRScheduler):
    """The initial rate times `factor` for `total_iters` steps, then the initial rate.

    Parameters
    ----------
    optimizer : Optimizer
    factor : float, in (0, 1]
    total_iters : int
    last_epoch : int
    """

    def __init__(
        self,
        optimizer: Optimizer,
        factor: float = 1.0 / 3,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        if not 0.0 < factor <= 1.0:
            raise ArgumentError(
                "ConstantLR",
                expected="factor in (0, 1]",
                got=f"factor={factor}",
                fix="the factor is relative to the optimizer's lr: raise that instead",
            )
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """Return the present rates, times the factor at first, and without it at the end."""
        if self.last_epoch == 0:
            return [lr * self.factor for lr in self._present()]
        if self.last_epoch == self.total_iters:
            return [lr * (1.0 / self.factor) for lr in self._present()]
        return self._present()

    def _closed_form(self) -> list[float]:
        factor = self.factor if self.last_epoch < self.total_iters else 1.0
        return [base * factor for base in self.base_lrs]


class PolynomialLR(LRScheduler):
    """From the initial rate down to 0 in `total_iters` steps, as a power of the steps left.

    Parameters
    ----------
    optimizer : Optimizer
    total_iters : int
    power : float
        1 descends in equal steps; larger ones descend faster at first.
    last_epoch : int
    """

    def __init__(
        self,
        optimizer: Optimizer,
        total_iters: int = 5,
        power: float = 1.0,
        last_epoch: int = -1,
    ) -> None:
        self.total_iters, self.power = total_iters, power
        super().__init__(optimizer, last_epoch)

    def _left(self, step: int) -> float:
        return 1.0 - min(step, self.total_iters) / self.total_iters

    def get_lr(self) -> list[float]:
        """Return the present rates times the ratio of this height to the one before."""
        step = self.last_epoch
        if self._beginning() or not 0 < step <= self.total_iters:
            return self._present()
        ratio = (self._left(step) / self._left(step - 1)) ** self.power
        return [lr * ratio for lr in self._present()]

    def _closed_form(self) -> list[float]:
        height = self._left(self.last_epoch) ** self.power
        return [base * height for base in self.base_lrs]


class LinearLR(LRScheduler):
    """From `start_factor` to `end_factor` of the initial rate in `total_iters` equal steps.

    Parameters
    ----------
    optimizer : Optimizer
    start_factor : float, in (0, 1]
    end_factor : float, in [0, 1]
    total_iters : int
    last_epoch : int
    """

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1.0 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        if not 0.0 < start_factor <= 1.0 or not 0.0 <= end_factor <= 1.0:
            raise ArgumentError(
                "LinearLR",
                expected="start_factor in (0, 1] and end_factor in [0, 1]",
                got=f"start_factor={start_factor}, end_factor={end_factor}",
                fix="factors are relative to the optimizer's lr: raise that instead",
            )
        self.start_factor, self.end_factor = start_factor, end_factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def _factor(self, step: int) -> float:
        done = min(step, self.total_iters) / self.total_iters
        return self.start_factor + (self.end_factor - self.start_factor) * done

    def get_lr(self) -> list[float]:
        """Return the present rates times the ratio of this factor to the one before."""
        if self.last_epoch == 0:
            return [lr * self.start_factor for lr in self._present()]
        ratio = 1.0
        if not self._beginning() and self.last_epoch <= self.total_iters:
            ratio = self._factor(self.last_epoch) / self._factor(self.last_epoch - 1)
        return [lr * ratio for lr in self._present()]

    def _closed_form(self) -> list[float]:
        return [base * self._factor(self.last_epoch) for base in self.base_lrs]


explain_calls(globals())
