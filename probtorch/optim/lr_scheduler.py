"""Learning-rate schedules, with PyTorch's names, signatures and arithmetic.

A scheduler multiplies or replaces the "lr" of an optimizer's groups each time its `step` is
called, usually once per epoch. Where PyTorch multiplies the present value (so that several
schedulers of one optimizer compose), this does too; `base_lrs` are the values before any of them.

`LRScheduler.get_lr` is what a subclass defines.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, cast

import numpy as np

from probtorch.autograd.modes import no_grad
from probtorch.core.dispatch import wrap
from probtorch.core.in_place import assign
from probtorch.core.showing import call_of
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import StateDict
from probtorch.errors import ArgumentError, DTypeError
from probtorch.optim.optimizer import Optimizer
from probtorch.optim.typed import Group
from probtorch.tensor import Tensor

__all__ = [
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "OneCycleLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
]

_Value = TypeVar("_Value")


class LRScheduler:
    """Base of schedulers.

    Parameters
    ----------
    optimizer : Optimizer
    last_epoch : int
        Steps already taken; -1 for a new schedule. To resume, build a new one and use
        `load_state_dict`.

    Raises
    ------
    DTypeError
        If `optimizer` is none.
    ArgumentError
        If `last_epoch` is given and the groups do not remember their "initial_lr".
    """

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        _check_optimizer(optimizer, type(self).__name__)
        self.optimizer = optimizer
        for i, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                lr = group["lr"]
                group.setdefault("initial_lr", _number(lr))
            elif "initial_lr" not in group:
                raise ArgumentError(
                    f"param 'initial_lr' is not specified in param_groups[{i}]",
                    expected="groups that a scheduler has seen before, as last_epoch is given",
                    got=f"options {', '.join(k for k in group if k != 'params')}",
                    fix="load the optimizer's state first, or leave last_epoch out",
                )
        self.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        self._last_lr: list[float] = []
        self.step()

    def __repr__(self) -> str:
        return call_of(self, "optimizer", "optimizers", "schedulers", "last_epoch")

    def get_lr(self) -> list[float]:
        """Return the learning rate of each group at step `last_epoch`."""
        raise NotImplementedError(f"{type(self).__name__} does not define get_lr()")

    def get_last_lr(self) -> list[float]:
        """Return the learning rates set last, one per group."""
        return self._last_lr

    def step(self, epoch: int | None = None) -> None:
        """Go on to the next step of the schedule.

        Parameters
        ----------
        epoch : int, optional
            Go to this one instead, with the closed form where the class has one.
        """
        if epoch is None:
            self.last_epoch += 1
            values = self.get_lr()
        else:
            self.last_epoch = epoch
            closed = getattr(self, "_closed_form", None)
            values = closed() if closed is not None else self.get_lr()
        self._set(values)

    def _set(self, values: Sequence[float]) -> None:
        for group, lr in zip(self.optimizer.param_groups, values, strict=True):
            _set_lr(group, lr)
        self._last_lr = [_number(group["lr"]) for group in self.optimizer.param_groups]

    def _present(self) -> list[float]:
        return [_number(group["lr"]) for group in self.optimizer.param_groups]

    def state_dict(self) -> StateDict:
        """Return everything but the optimizer; plain numbers and lists."""
        return {k: _copied(v) for k, v in self.__dict__.items() if k != "optimizer"}

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Take over what `state_dict` returned. The optimizer's own state is loaded separately."""
        self.__dict__.update({k: _copied(v) for k, v in state_dict.items()})


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
        _check_optimizer(optimizer, "LambdaLR")
        self.lr_lambdas = _per_group(lr_lambda, optimizer, "lr_lambda")
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """Return the initial rates times their factors."""
        return [base * fn(self.last_epoch) for base, fn in zip(self.base_lrs, self.lr_lambdas)]

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
        return [lr * self.gamma if self.last_epoch > 0 else lr for lr in self._present()]

    def _closed_form(self) -> list[float]:
        return [base * self.gamma**self.last_epoch for base in self.base_lrs]


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
        if self.last_epoch <= self.total_iters:
            ratio = self._factor(self.last_epoch) / self._factor(self.last_epoch - 1)
        return [lr * ratio for lr in self._present()]

    def _closed_form(self) -> list[float]:
        return [base * self._factor(self.last_epoch) for base in self.base_lrs]


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
        if step == 0:
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
        _check_optimizer(optimizer, "OneCycleLR")
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
        self._phases: list[Any] = [
            [float(end), *leg, *swing] for end, leg, swing in zip(ends, legs, swings, strict=True)
        ]
        peaks = _per_group(max_lr, optimizer, "max_lr")
        if last_epoch == -1:
            for group, peak in zip(optimizer.param_groups, peaks):
                group["initial_lr"] = peak / div_factor
                group["max_lr"] = peak
                group["min_lr"] = group["initial_lr"] / final_div_factor
        if cycle_momentum:
            if not {"momentum", "betas"} & optimizer.defaults.keys():
                raise ArgumentError(
                    "optimizer must support momentum or beta1 with `cycle_momentum` option enabled",
                    expected='an option "momentum" or "betas"',
                    got=type(optimizer).__name__,
                    fix="pass cycle_momentum=False",
                )
            bases = _per_group(base_momentum, optimizer, "base_momentum")
            tops = _per_group(max_momentum, optimizer, "max_momentum")
            if last_epoch == -1:
                for group, low, high in zip(optimizer.param_groups, bases, tops):
                    _set_momentum(group, high)
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
                _set_momentum(group, self._between(*ends, part))
        return found


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
        _check_optimizer(optimizer, "ReduceLROnPlateau")
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
        self.min_lrs = _per_group(min_lr, optimizer, "min_lr")
        self.best = math.inf if mode == "min" else -math.inf
        self.num_bad_epochs = self.cooldown_counter = self.last_epoch = 0
        self._last_lr = self._present()

    def is_better(self, a: float, best: float) -> bool:
        """Whether `a` beats `best` by the threshold."""
        sign = 1.0 if self.mode == "min" else -1.0
        if self.threshold_mode == "rel":
            return sign * a < sign * best * (1.0 - sign * self.threshold)
        return sign * a < sign * best - self.threshold

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
                lr = _number(group["lr"])
                lower = max(lr * self.factor, least)
                if lr - lower > self.eps:
                    _set_lr(group, lower)
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
        self._last_lr = self._present()


class SequentialLR(LRScheduler):
    """One scheduler after the other.

    Parameters
    ----------
    optimizer : Optimizer
    schedulers : list of LRScheduler
        All of this optimizer.
    milestones : list of int
        Steps at which the next scheduler begins, from its own step 0; one less than schedulers.
    last_epoch : int

    Raises
    ------
    ArgumentError
        If numbers of schedulers and milestones do not go together, or the optimizers differ.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        schedulers: Sequence[LRScheduler],
        milestones: Sequence[int],
        last_epoch: int = -1,
    ) -> None:
        _check_optimizer(optimizer, "SequentialLR")
        if len(schedulers) < 1 or len(milestones) != len(schedulers) - 1:
            raise ArgumentError(
                "SequentialLR",
                expected="one milestone less than schedulers",
                got=f"{len(schedulers)} schedulers and {len(milestones)} milestones",
                fix="a milestone is the step at which the next scheduler begins",
            )
        for i, scheduler in enumerate(schedulers):
            if scheduler.optimizer is not optimizer or not hasattr(scheduler, "base_lrs"):
                raise ArgumentError(
                    f"SequentialLR: scheduler {i}",
                    expected="a scheduler of the same optimizer that counts steps by itself",
                    got=type(scheduler).__name__,
                    fix="build all of them with this optimizer; ReduceLROnPlateau and another "
                    "SequentialLR cannot be parts",
                )
        self.optimizer = optimizer
        self._schedulers, self._milestones = list(schedulers), list(milestones)
        self.last_epoch = last_epoch + 1
        # Each scheduler took its first step when it was built; only the first one's counts.
        for group in optimizer.param_groups:
            _set_lr(group, group["initial_lr"])
        for scheduler in self._schedulers:
            scheduler.last_epoch -= 1
        self._schedulers[0].step()
        self._last_lr = self._schedulers[0].get_last_lr()

    def step(self, epoch: int | None = None) -> None:
        """Go on to the next step of the scheduler whose turn it is."""
        if epoch is not None:
            raise ArgumentError(
                "SequentialLR.step",
                expected="no epoch",
                got=str(epoch),
                fix="call step() once per step",
            )
        self.last_epoch += 1
        turn = bisect.bisect_right(self._milestones, self.last_epoch)
        scheduler = self._schedulers[turn]
        if turn > 0 and self._milestones[turn - 1] == self.last_epoch:
            scheduler.step(0)
        else:
            scheduler.step()
        self._last_lr = scheduler.get_last_lr()

    def state_dict(self) -> StateDict:
        """Return the state, that of the schedulers included."""
        found = {k: v for k, v in self.__dict__.items() if k not in ("optimizer", "_schedulers")}
        states = [scheduler.state_dict() for scheduler in self._schedulers]
        return {**{k: _copied(v) for k, v in found.items()}, "_schedulers": states}

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Take over what `state_dict` returned."""
        rest = {k: v for k, v in state_dict.items() if k != "_schedulers"}
        super().load_state_dict(rest)
        for scheduler, state in zip(self._schedulers, state_dict["_schedulers"], strict=True):
            scheduler.load_state_dict(state)


def _check_optimizer(optimizer: object, name: str) -> None:
    if not isinstance(optimizer, Optimizer):
        raise DTypeError(
            name,
            expected="an Optimizer",
            got=type(optimizer).__name__,
            fix="for options instead of an optimizer use optim.PyroLRScheduler",
        )


def _per_group(value: _Value | Sequence[_Value], optimizer: Optimizer, name: str) -> list[_Value]:
    """Return `value` repeated for each group, or the list that it is."""
    count = len(optimizer.param_groups)
    if not isinstance(value, (list, tuple)):
        return [cast(_Value, value)] * count  # other sequences are refused as values
    if len(value) != count:
        raise ArgumentError(
            name,
            expected=f"one value, or one per parameter group ({count})",
            got=f"{len(value)} values",
            fix="match the groups of the optimizer",
        )
    return list(value)


def _number(lr: float | Tensor) -> float:
    return lr.array.item() if isinstance(lr, TensorBase) else lr


def _set_lr(group: Group, lr: float) -> None:
    """Set the rate of a group; one that is a tensor keeps being that tensor."""
    present = group["lr"]
    if isinstance(present, TensorBase):
        with no_grad():
            assign(present, wrap(np.asarray(lr, present.array.dtype)), "lr")
    else:
        group["lr"] = lr


def _set_momentum(group: Group, value: float) -> None:
    if "betas" in group:
        group["betas"] = (value, *group["betas"][1:])
    else:
        group["momentum"] = value


def _copied(value: object) -> object:
    return list(value) if isinstance(value, list) else value


explain_calls(globals())
