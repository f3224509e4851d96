"""Averages of a model's weights over training: equal ones (SWA), or of recent ones (EMA).

`AveragedModel` is a copy of a model whose weights are an average; `SWALR` the schedule that goes
with equal weights; `update_bn` gives the copy the statistics of batch normalisation that belong to
averaged weights. Names and arithmetic are PyTorch's.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from probtorch.autograd.modes import no_grad
from probtorch.core.signatures import explain_calls
from probtorch.core.typed import Tree
from probtorch.errors import ArgumentError, ModelError
from probtorch.nn.module import Module
from probtorch.nn.normalization import BatchNorm1d, BatchNorm2d, BatchNorm3d
from probtorch.optim.lr_scheduler.base import LRScheduler, check_optimizer, per_group
from probtorch.optim.optimizer import Optimizer
from probtorch.tensor import Tensor, tensor

__all__ = [
    "SWALR",
    "AveragedModel",
    "get_ema_avg_fn",
    "get_ema_multi_avg_fn",
    "get_swa_avg_fn",
    "get_swa_multi_avg_fn",
    "update_bn",
]

# From the average, the present value and how many have been averaged to the new average.
Average: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
# The same for all weights at once, in place.
Averages: TypeAlias = Callable[[Sequence[Tensor], Sequence[Tensor], Tensor], object]


class AveragedModel(Module):
    """A copy of a model whose weights are an average of those that the model has had.

    Parameters
    ----------
    model : Module
        It is copied; its own weights are read by `update_parameters`.
    device : str, optional
        Where the average lives; where the model is if None.
    avg_fn : callable, optional
        ``avg_fn(average, value, num_averaged)`` returns the new average of a tensor; the mean of
        all values so far if None.
    multi_avg_fn : callable, optional
        ``multi_avg_fn(averages, values, num_averaged)`` changes all averages in place.
    use_buffers : bool
        Average buffers, too; otherwise the newest ones are taken.

    Attributes
    ----------
    module : Module
        The copy.
    n_averaged : Tensor, 0-d int64
        How often `update_parameters` was called.

    Raises
    ------
    ArgumentError
        If both functions are given.

    References
    ----------
    P. Izmailov et al., "Averaging weights leads to wider optima and better generalization", UAI
    2018.

    Examples
    --------
    >>> from probtorch import nn, no_grad
    >>> model = nn.Linear(1, 1, bias=False)
    >>> averaged = AveragedModel(model)
    >>> for value in (1.0, 2.0, 6.0):
    ...     with no_grad():
    ...         _ = model.weight.fill_(value)
    ...     averaged.update_parameters(model)
    >>> averaged.module.weight.item()
    3.0
    """

    n_averaged: Tensor

    def __init__(
        self,
        model: Module,
        device: str | None = None,
        avg_fn: Average | None = None,
        multi_avg_fn: Averages | None = None,
        use_buffers: bool = False,
    ) -> None:
        super().__init__()
        if avg_fn is not None and multi_avg_fn is not None:
            raise ArgumentError(
                "AveragedModel",
                expected="only one of avg_fn and multi_avg_fn",
                got="both",
                fix="leave one out",
            )
        self.module = copy.deepcopy(model)
        if device is not None:
            self.module.to(device)
        self.register_buffer("n_averaged", tensor(0, device=device))
        self.avg_fn, self.multi_avg_fn = avg_fn, multi_avg_fn
        self.use_buffers = use_buffers

    def forward(self, *args: Tree, **kwargs: Tree) -> Tree:
        """Return what the averaged model returns."""
        return self.module(*args, **kwargs)

    @no_grad
    def update_parameters(self, model: Module) -> None:
        """Let the average take in the present weights of `model`, which is like the one copied.

        Raises
        ------
        ModelError
            If it has other numbers of parameters or buffers.
        """
        averages, values = self._weights(self.module), self._weights(model)
        buffers = list(zip(self.module.buffers(), model.buffers()))
        if len(averages) != len(values) or len(buffers) != sum(1 for _ in model.buffers()):
            raise ModelError(
                "update_parameters",
                expected=f"a model of {len(averages)} parameters and {len(buffers)} buffers",
                got=f"a {type(model).__name__} of {sum(1 for _ in model.parameters())} and "
                f"{sum(1 for _ in model.buffers())}",
                fix="make a new AveragedModel of the model as it is now",
            )
        values = [value.to(average.device) for average, value in zip(averages, values)]
        if self.n_averaged == 0:
            for average, value in zip(averages, values):
                average.copy_(value)
        elif self.multi_avg_fn is not None:
            # By dtype, as a function for all may treat integers as it treats their first.
            for dtype in {average.dtype: None for average in averages}:
                members = [i for i, average in enumerate(averages) if average.dtype == dtype]
                self.multi_avg_fn(
                    [averages[i] for i in members], [values[i] for i in members], self.n_averaged
                )
        else:
            mean = self.avg_fn or get_swa_avg_fn()
            for average, value in zip(averages, values):
                found = mean(average, value, self.n_averaged)
                average.copy_(found.to(average.dtype))
        if not self.use_buffers:
            for average, value in buffers:
                average.copy_(value.detach().to(average.device))
        self.n_averaged.add_(1)

    def _weights(self, model: Module) -> list[Tensor]:
        """What is averaged, detached and in the same memory."""
        found: Iterable[Tensor] = model.parameters()
        if self.use_buffers:
            found = itertools.chain(found, model.buffers())
        return [t.detach() for t in found]


def get_swa_avg_fn() -> Average:
    """Return the function that makes the mean of all values, for one tensor."""

    @no_grad
    def swa_update(averaged: Tensor, current: Tensor, num_averaged: Tensor) -> Tensor:
        return averaged + (current - averaged) / (num_averaged + 1)

    return swa_update


def get_swa_multi_avg_fn() -> Averages:
    """Return the function that makes the mean of all values, for many tensors in place."""
    return _in_place(get_swa_avg_fn())


def get_ema_avg_fn(decay: float = 0.999) -> Average:
    """Return the function that keeps `decay` of an average and adds the rest of the new value.

    Parameters
    ----------
    decay : float, in [0, 1]

    Raises
    ------
    ArgumentError
        If it lies outside.
    """
    if not 0.0 <= decay <= 1.0:
        raise ArgumentError(
            f"Invalid decay value {decay}",
            expected="a value in [0, 1]",
            got=repr(decay),
            fix="write decay=0.999 for an average over about 1000 steps",
        )

    @no_grad
    def ema_update(averaged: Tensor, current: Tensor, num_averaged: Tensor) -> Tensor:
        return averaged * decay + current * (1 - decay)

    return ema_update


def get_ema_multi_avg_fn(decay: float = 0.999) -> Averages:
    """Return `get_ema_avg_fn` for many tensors in place."""
    return _in_place(get_ema_avg_fn(decay))


def _in_place(mean: Average) -> Averages:
    @no_grad
    def update(averages: Sequence[Tensor], values: Sequence[Tensor], num_averaged: Tensor) -> None:
        for average, value in zip(averages, values, strict=True):
            average.copy_(mean(average, value, num_averaged).to(average.dtype))

    return update


@no_grad
def update_bn(loader: Iterable[Tree], model: Module, device: str | None = None) -> None:
    """Compute the running means and variances of batch normalisation anew, in one pass over data.

    Parameters
    ----------
    loader : iterable
        Of batches: tensors, or lists and tuples of which the first is what the model takes.
    model : Module
        Runs in training mode meanwhile; its statistics become the means over all batches. Without
        a layer of batch normalisation nothing is run.
    device : str, optional
        Where batches are moved to.
    """
    found = [m for m in model.modules() if isinstance(m, (BatchNorm1d, BatchNorm2d, BatchNorm3d))]
    if not found:
        return
    momenta = [m.momentum for m in found]
    was_training = model.training
    model.train()
    try:
        for m in found:
            m.reset_running_stats()
            m.momentum = None  # every batch counts the same
        for batch in loader:
            x = batch[0] if isinstance(batch, (list, tuple)) else batch
            model(x if device is None else x.to(device))
    finally:
        for m, momentum in zip(found, momenta):
            m.momentum = momentum
        model.train(was_training)


class SWALR(LRScheduler):
    """From the present rate to `swa_lr` in `anneal_epochs` steps, then constant.

    Parameters
    ----------
    optimizer : Optimizer
    swa_lr : float, or list of float, one per group
    anneal_epochs : int, >= 0
    anneal_strategy : {"cos", "linear"}
    last_epoch : int

    Raises
    ------
    ArgumentError
        For other strategies or lengths.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        swa_lr: float | Sequence[float],
        anneal_epochs: int = 10,
        anneal_strategy: str = "cos",
        last_epoch: int = -1,
    ) -> None:
        check_optimizer(optimizer, "SWALR")
        if anneal_strategy not in ("cos", "linear"):
            raise ArgumentError(
                "SWALR: anneal_strategy",
                expected="'cos' or 'linear'",
                got=repr(anneal_strategy),
                fix="leave it out",
            )
        if not isinstance(anneal_epochs, int) or anneal_epochs < 0:
            raise ArgumentError(
                "SWALR: anneal_epochs",
                expected="an integer >= 0",
                got=repr(anneal_epochs),
                fix="count it in calls of step()",
            )
        for group, rate in zip(optimizer.param_groups, per_group(swa_lr, optimizer, "swa_lr")):
            group["swa_lr"] = rate
        self.anneal_epochs, self.anneal_strategy = anneal_epochs, anneal_strategy
        super().__init__(optimizer, last_epoch)

    def _begin(self) -> None:
        self._steps = -1
        super()._begin()

    def step(self, epoch: int | None = None) -> None:
        """Go on to the next step; `epoch` is only noted."""
        self._steps += 1
        super().step(epoch)

    def _part(self, step: int) -> float:
        """What part of the way is done after so many steps."""
        done = max(0.0, min(1.0, step / max(1, self.anneal_epochs)))
        return done if self.anneal_strategy == "linear" else (1 - math.cos(math.pi * done)) / 2

    def get_lr(self) -> list[float]:
        """Return the rates, computed from the present ones, which others may have changed."""
        step = max(1, self._steps) if self.anneal_epochs == 0 else self._steps
        before, now = self._part(step - 1), self._part(step)
        found = []
        for lr, group in zip(self._present(), self.optimizer.param_groups):
            end = group["swa_lr"]
            start = end if before == 1.0 else (lr - before * end) / (1 - before)
            found.append(end * now + start * (1 - now))
        return found


explain_calls(globals())
