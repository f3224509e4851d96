"""Hamiltonian Monte Carlo with one mistake, chosen by name, and without any: for tests of tests."""

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.tree import replace, static
from probtorch.infer.mcmc.kernels.hmc import HMCInfo, HMCState, TrajectoryKernel, energy_drop
from probtorch.infer.mcmc.randomness import normals, uniform
from probtorch.ops.arithmetic import clamp, where
from probtorch.ops.control import while_loop
from probtorch.ops.exponentials import exp

# What each does wrong. The last leaves the posterior invariant: dynamics that do not fit the energy
# are still reversible and preserve volume, so proposals are only accepted less often.
MISTAKES = {
    "none": "a sampler without a mistake",
    "acceptance": "every proposal is accepted, whatever the error of its energy",
    "energy": "the kinetic energy lacks its factor 1/2, so momenta are not drawn from its law",
    "refreshment": "momenta are drawn too large",
    "force": "the force lacks the factor of the metric that the velocity has",
}


class BrokenHMC(TrajectoryKernel):
    """A few leapfrog steps and a Metropolis step; `mistake` is a key of `MISTAKES`."""

    mistake: str = static(default="none")
    steps: int = static(default=4)

    def step(self, key, state):
        dim = state.position.array.shape[0]
        momentum = normals(key, state.counter, dim)
        if self.mistake == "refreshment":
            momentum = 2.0 * momentum
        drawn = uniform(key, state.counter + dim)
        energy = self._kinetic(momentum) - state.logdensity

        def move(carry):
            taken, q, p, _, g = carry
            p = p + 0.5 * self.step_size * self._force(g)
            q = q + self.step_size * self.metric.velocity(p)
            logdensity, g = self.density(q)
            return taken + 1, q, p + 0.5 * self.step_size * self._force(g), logdensity, g

        start = (wrap(np.array(0)), state.position, momentum, state.logdensity, state.grad)
        taken, q, p, logdensity, g = while_loop(lambda c: c[0] < self.steps, move, start)
        drop = energy_drop(energy, self._kinetic(p) - logdensity)
        accept_prob = exp(clamp(drop, max=0.0))
        # Not even without the step where the density is 0.
        accepted = drop > -1000.0 if self.mistake == "acceptance" else drawn < accept_prob
        new = HMCState(
            where(accepted, q, state.position),
            where(accepted, logdensity, state.logdensity),
            where(accepted, g, state.grad),
            state.counter + (dim + 1),
        )
        error, never = where(accepted, -drop, 0.0), taken < 0
        info = HMCInfo(
            accept_prob=accept_prob,
            accept_symmetric=accept_prob,
            diverging=never,
            energy=energy + error,
            energy_error=error,
            lp=new.logdensity,
            step_size=self.step_size,
            n_steps=taken,
            tree_depth=0 * taken,
            reached_max_treedepth=never,
        )
        return new, info

    def _kinetic(self, momentum):
        square = (momentum * momentum).sum()
        return square if self.mistake == "energy" else 0.5 * square

    def _force(self, grad):
        return grad if self.mistake == "force" else self.metric.force(grad)


def broken(mistake, **settings):
    """A function that makes such a kernel for a model."""
    return lambda model: BrokenHMC(model, mistake=mistake, **settings)


def shrinking(kind, factor=0.8):
    """A class of kernels, of any kind, that come to stand nearer to 0 than they went."""

    class Shrinking(kind):
        def step(self, key, state):
            new, info = super().step(key, state)
            return replace(new, position=factor * new.position), info

    return Shrinking
