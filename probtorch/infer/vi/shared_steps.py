"""Steps of SVI that several processes take together.

Each process ("rank") estimates the loss on its own rows, and the gradients of all are averaged
before the optimizer moves: so all have the same parameters, and the step is that of all rows. A
plate with ``shard=True`` counts its rows so many times as there are ranks, and a loader with a
`DistributedSampler` gives minibatches of the whole, so a mean is right for both. With one seed for
all, the guide's draws are the same on every rank, and full shards give the step of one process.

That parameters are the same bits is checked when the run begins, where those of rank 0 are sent to
all if need be, and every 100 steps.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from probtorch.backends.registry import to_host
from probtorch.core.dispatch import wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.distributed.communicator import Communicator
from probtorch.distributed.group import average, broadcast, check_equal, communicator
from probtorch.effects.runtime import Handler
from probtorch.effects.site import Site
from probtorch.errors import InferenceError
from probtorch.infer.model_runs import OUTSIDE

if TYPE_CHECKING:
    from probtorch.infer.vi.fit_memory import FitMemory

__all__ = ["shared_loss_and_grads"]

# Steps between two comparisons of the parameters.
CHECK_EVERY = 100


def shared_loss_and_grads(fit: FitMemory, own: Callable[[], float]) -> float:
    """Return the mean of the loss over all ranks, and leave the means of the gradients.

    Parameters
    ----------
    fit : FitMemory
        Whose parameters have their gradients in ``.grad``.
    own : callable
        Computes the loss of this rank, and adds its gradients.

    Raises
    ------
    DistributedError
        If a rank fails, or parameters differ.
    """
    ranks = communicator()
    start = fit.generator_states()
    if fit.num_steps == 0:
        with _NoLocalSites():
            loss = _together(ranks, own)
    else:
        loss = _together(ranks, own)
    leaves = _leaves(fit)
    if fit.num_steps == 0 and not _equal_at_start(ranks, leaves):
        for leaf in leaves.values():
            broadcast(leaf)
            leaf.grad = None
        fit.set_generator_states(start)
        loss = _together(ranks, own)
    elif fit.num_steps % CHECK_EVERY == 0:
        check_equal({n: to_host(p.array) for n, p in leaves.items()}, f"step {fit.num_steps}")
    if math.isfinite(loss):
        moved = {n: p.grad.array for n, p in leaves.items() if p.grad is not None}
        for name, mean in zip(moved, average(list(moved.values())), strict=True):
            leaves[name].grad = wrap(mean)
    return loss


class _NoLocalSites(Handler):
    """Refuse latent sites that only one rank knows."""

    def after_sample(self, site: Site) -> None:
        frame = next((f for f in site.plates if f.shard is not None), None)
        if frame is not None and not site.observed and not site.infer.get("enumerate"):
            raise InferenceError(
                f"latent site {site.name!r} in plate {frame.name!r}, which processes share",
                expected="latent sites outside of the plate, whose parameters all of them have",
                got="a value for each row, known to one process",
                fix="let a network that all share give the parameters of the rows (an amortised "
                "guide) on one machine, integrate the site out, or leave shard=True out",
                at=site.location,
            )


def _together(ranks: Communicator, own: Callable[[], float]) -> float:
    """The mean loss; nan if a rank's point is outside; an error on all if one has an error."""
    failure: BaseException | None = None
    loss = math.nan
    try:
        loss = own()
    except BaseException as error:
        failure = error
    fatal = failure is not None and not isinstance(failure, OUTSIDE)
    total = ranks.all_reduce(np.array([loss, fatal, ranks.rank if fatal else 0.0]))
    if failure is not None:
        raise failure
    if total[1]:
        who = f"rank {total[2]:.0f}" if total[1] == 1.0 else f"{total[1]:.0f} ranks"
        raise ranks.lost(who, "failed", got=f"an error on {who}, which printed it")
    return float(total[0]) / ranks.size


def _leaves(fit: FitMemory) -> dict[str, TensorBase]:
    """The parameters by name, each once, in an order that all ranks share."""
    named = {**fit.updater.parameters, **dict(fit.params.named_parameters())}
    seen: dict[int, str] = {}
    for name, leaf in named.items():
        seen.setdefault(id(leaf), name)
    return {name: named[name] for name in seen.values()}


def _equal_at_start(ranks: Communicator, leaves: Mapping[str, TensorBase]) -> bool:
    sums = {n: zlib.crc32(np.asarray(to_host(p.array)).tobytes()) for n, p in leaves.items()}
    found = ranks.all_gather_object(sums)
    return all(x == found[0] for x in found)
