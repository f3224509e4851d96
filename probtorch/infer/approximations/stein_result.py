"""`SteinVIResult`: the mixture of guides that `SteinVI` (stein_vi.py) ends with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from probtorch.autograd.modes import no_grad
from probtorch.autograd.vmap import vmap
from probtorch.backends.registry import to_host
from probtorch.core.arguments import count_of
from probtorch.core.dispatch import wrap
from probtorch.core.rng import Generator, generator_of
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.distributions.transforms.registry import biject_to
from probtorch.effects.handlers import seed as seed_handler
from probtorch.effects.handlers import substitute
from probtorch.infer.approximations.result import free_values
from probtorch.infer.objectives.runs import precision
from probtorch.infer.potential import ModelTarget
from probtorch.infer.results import SampledDraws, make_draws
from probtorch.infer.sequential.weights import uniforms
from probtorch.infer.vi.guide_quality import judge, quality_of
from probtorch.infer.vi.with_ratios import WithRatios

if TYPE_CHECKING:
    from probtorch.infer.approximations.stein_vi import SteinVI

__all__ = ["SteinVIResult", "Tensors"]

Tensors = dict[str, TensorBase]


@dataclass(frozen=True, eq=False, repr=False)
class SteinVIResult(WithRatios):
    """What `SteinVI.run` returns.

    Attributes
    ----------
    params : dict of str to Tensor
        Constrained parameters of the guides, each (particles, *shape), and those that are shared.
    losses : ndarray, shape (steps,)
        Minus the bound of the mixture before each step, in nats.
    stein : SteinVI
        What ran; it can go on.
    args, kwargs
        What model and guide were called with.
    seconds : float
        How long it took.
    interrupted : bool
        Whether Ctrl-C, the clock or who holds its handle ended it.
    """

    params: Tensors
    losses: np.ndarray
    stein: SteinVI
    args: tuple[object, ...] = ()
    kwargs: dict[str, object] = field(default_factory=dict)
    seconds: float = 0.0
    interrupted: bool = False
    _made: dict[object, SampledDraws] = field(default_factory=dict)

    def draws(self, num_draws: int = 1000, *, seed: int | Generator = 0) -> SampledDraws:
        """Return draws of the mixture as one chain, as many of each guide but for one.

        Parameters
        ----------
        num_draws : int
        seed : int or Generator
            Where they are drawn from; an int gives the same draws every time.

        Returns
        -------
        SampledDraws
            With importance weights and their verdict, as those of `SVIResult`. A mixture of points
            has none.

        Warns
        -----
        GuideWarning
            If the mixture is too far from the posterior, or too narrow, to stand for it.
        """
        count = count_of("SteinVIResult.draws", "num_draws", num_draws)
        key = (count, seed)
        if not isinstance(seed, Generator) and key in self._made:
            return self._made[key]
        made = self._draw(count, generator_of(seed))
        judge(made, "the mixture of guides", "take more steps or particles, or sample with NUTS")
        if not isinstance(seed, Generator):
            self._made[key] = made
        return made

    def _draw(self, count: int, generator: Generator) -> SampledDraws:
        stein = self.stein
        own = {name: self.params[name] for name in stein._leaves}
        shared = {name: self.params[name] for name in stein._shared}
        args, kwargs = stein._meet(self.args, self.kwargs)
        with precision(stein.guide), substitute(None, shared), no_grad():
            target = ModelTarget(stein.model, args, kwargs, whole=True)
        names = list(target.slots)
        each = -(-count // stein.num_stein_particles)

        def draw(mine: Tensors, _: TensorBase) -> tuple[Tensors, TensorBase, TensorBase]:
            run, log_mixture = stein._drawn(mine, own, shared, args, kwargs)
            sites = run.model.nodes
            free = {n: biject_to(sites[n].fn.support).inv(sites[n].value) for n in names}
            return free, run.log_model(), log_mixture

        many = vmap(draw, in_dims=(None, 0), randomness="different")
        with precision(stein.guide), seed_handler(None, generator), no_grad():
            found = vmap(lambda mine: many(mine, wrap(np.zeros(each))), randomness="different")(own)
        free, joint, mixture = found
        total = each * stein.num_stein_particles
        order = np.argsort(uniforms(generator, total), kind="stable")[:count]
        points = np.empty((total, target.dim))
        for name, slot in target.slots.items():
            points[:, slot.start : slot.stop] = to_host(free[name].array).reshape(total, -1)
        points = points[order]
        values = to_host(joint.array).astype(np.float64).reshape(-1)[order]
        ratios = values - to_host(mixture.array).astype(np.float64).reshape(-1)[order]
        if stein._points:
            ratios = np.full(count, np.nan)
        quality = quality_of(ratios, free_values(target, points))
        stats = {"lp": values}
        if quality.log_weight is not None:
            stats["log_weight"] = quality.log_weight
        attrs = {
            "inference_library": "probtorch",
            "inference_method": "SteinVI",
            "num_steps": stein.num_steps,
            "sampling_time": self.seconds,
            "interrupted": self.interrupted,
            **quality.attrs,
        }
        return make_draws(target, points[None], {n: x[None] for n, x in stats.items()}, attrs)

    def __repr__(self) -> str:
        last = f", last loss {self.losses[-1]:.6g}" if len(self.losses) else ""
        note = ", interrupted" if self.interrupted else ""
        return f"SteinVIResult({self.stein.num_stein_particles} particles{last}{note})"


explain_calls(globals())
