"""`ASVGD`: particles whose pull towards the posterior comes and goes, so that they find all modes.

In `SVGD` the gradient of the posterior holds a particle in the mode next to which it began. Where
it counts for little, particles only keep each other apart and spread; where it counts for all, they
gather in the modes that they have come to. [dangelo2021]_ lets the one follow the other in cycles.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from probtorch.core.arguments import count_of
from probtorch.core.rng import Generator
from probtorch.core.signatures import explained
from probtorch.errors import ArgumentError
from probtorch.infer.approximations.stein_kernels import SteinKernel
from probtorch.infer.approximations.svgd import SVGD
from probtorch.infer.potential import Target
from probtorch.infer.starts.initialization import Strategy
from probtorch.infer.vi.updater import Optim

__all__ = ["ASVGD"]


class ASVGD(SVGD):
    """Annealed Stein variational gradient descent.

    Parameters
    ----------
    model, kernel, optim, num_particles, mode, init_strategy, seed, **optim_args
        As for `SVGD`.
    num_cycles : int
        How often the pull of the posterior rises from nothing, in a run.
    transition_speed : float, positive
        Power of its rise: with larger ones it stays near nothing for longer.

    Raises
    ------
    ArgumentError
        If `num_cycles` is no integer of at least 1, `transition_speed` is not positive, and as for
        `SVGD`.

    Notes
    -----
    A run has ``num_cycles + 1`` stretches of about the same length. In each but the last the pull
    is ``(t / T) ** transition_speed`` at step t of T; in the last it is whole, so that particles
    come to rest. Steps that are taken by `step` alone are those of `SVGD`. How many particles there
    are in a mode says little about its mass.

    References
    ----------
    [dangelo2021]_.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import ASVGD, RBFSteinKernel, init_to_uniform
    >>> from probtorch.optim import Adam
    >>> def hills():
    ...     means = probtorch.tensor([-5.0, 5.0])
    ...     parts = dist.Normal(means, 1.0)
    ...     half = dist.Categorical(probs=probtorch.tensor([0.5, 0.5]))
    ...     probtorch.sample("x", dist.MixtureSameFamily(half, parts))
    >>> begin = init_to_uniform(radius=1.0)
    >>> svgd = ASVGD(hills, RBFSteinKernel(), Adam({"lr": 0.1}), 20, seed=0, init_strategy=begin)
    >>> x = svgd.run(400, progress_bar=False)["x"]
    >>> bool((x < -3.0).any()), bool((x > 3.0).any())
    (True, True)
    """

    _name = "ASVGD"

    @explained("ASVGD")
    def __init__(
        self,
        model: Callable[..., object] | Target,
        kernel: SteinKernel,
        optim: Optim,
        num_particles: int = 10,
        num_cycles: int = 10,
        transition_speed: float = 10.0,
        *,
        mode: str | None = None,
        init_strategy: Strategy | None = None,
        seed: int | Generator | None = None,
        **optim_args: object,
    ) -> None:
        super().__init__(
            model, kernel, optim, num_particles, None, mode,
            init_strategy=init_strategy, seed=seed, **optim_args,
        )  # fmt: skip
        self.num_cycles = count_of("ASVGD", "num_cycles", num_cycles)
        if not 0.0 < transition_speed < math.inf:
            raise ArgumentError(
                "ASVGD(transition_speed=...)",
                expected="a positive number",
                got=repr(transition_speed),
                fix="leave it out for 10",
            )
        self.transition_speed = float(transition_speed)

    def _settings(self) -> dict[str, object]:
        """What a checkpoint has to agree in: the cycles are those of so many steps."""
        steps = None if self._course is None else self._course[1]
        return {
            **super()._settings(),
            "num_cycles": self.num_cycles,
            "transition_speed": self.transition_speed,
            "num_steps": steps,
        }

    def _pull(self) -> float:
        """What the posterior's gradient counts for in the next step."""
        if self._course is None:
            return 1.0
        begun, count = self._course
        length = max(count // (self.num_cycles + 1), 1)
        cycle, place = divmod(self.num_steps - begun, length)
        if cycle >= self.num_cycles:
            return 1.0
        return ((place + 1) / length) ** self.transition_speed
