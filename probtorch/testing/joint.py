"""Geweke's test: two ways to draw parameters and data together have to agree.

The marginal-conditional simulator draws parameters from the prior and data given them. The
successive-conditional simulator goes on from there: new data given the parameters, a transition of
the sampler given the data, and so on. If the sampler leaves the posterior invariant, both have the
same law; if not, the second drifts away, and further with each transition, which makes the test
sensitive to small mistakes. Nothing has to converge, and there is no posterior to know.

Here many chains start at draws of the first kind, so that each is stationary from its first state
on if the sampler is right, and their means are independent: the standard error needs no estimate of
an autocorrelation. Read infer/calibration/simulated.py first.

References
----------
J. Geweke, "Getting it right: joint distribution tests of posterior simulators", Journal of the
American Statistical Association 99 (2004).
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy import stats

from probtorch.compiler.program import NativeProgram
from probtorch.core.dispatch import wrap
from probtorch.core.rng import Generator, generator_of
from probtorch.core.signatures import explain_calls, explained
from probtorch.core.tree import replace
from probtorch.core.typed import Tree
from probtorch.diagnostics.findings import InferenceWarning
from probtorch.errors import ArgumentError
from probtorch.infer.calibration.displays import TurnProgress
from probtorch.infer.calibration.sbc import counted
from probtorch.infer.calibration.simulated import (
    Arrays,
    Quantity,
    SimulatedMixedTarget,
    SimulatedTarget,
    data_sites,
    kernel_for,
    simulate,
)
from probtorch.infer.calibration.uniformity import holm
from probtorch.infer.mcmc.driver import MCMC
from probtorch.infer.mcmc.integrators import DensityHandle
from probtorch.infer.mcmc.kernel import Kernel
from probtorch.infer.mcmc.kernels.nuts import NUTS
from probtorch.infer.mcmc.randomness import key_of
from probtorch.ops.control import while_loop
from probtorch.tensor import Tensor

__all__ = ["JointTest", "geweke"]

# Draws of the first simulator per chain of the second: enough that the latter's error dominates.
MARGINAL = 100
# Steps before an interrupted test says anything.
FEWEST_STEPS = 2
SHOWN = 30


@dataclass(frozen=True, eq=False, repr=False)
class JointTest:
    """What `geweke` found.

    Attributes
    ----------
    zscores : dict of str to ndarray, each (2,)
        How many standard errors the second simulator's mean, and spread, of a quantity are above
        the first's; of its ranks among the draws of the first (see `geweke`).
    pvalues : dict of str to float
        Two-sided, for each quantity the smaller of its two, doubled.
    adjusted : dict of str to float
        The same, adjusted for the number of quantities (Holm).
    marginal, successive : dict of str to ndarray, (draws,) and (chains, steps)
        What the two simulators drew.
    level : float
        Chance of a false alarm that the verdict keeps to.
    name : str
        Of the model and the kernel.
    """

    marginal: dict[str, np.ndarray]
    successive: dict[str, np.ndarray]
    level: float
    name: str
    zscores: dict[str, np.ndarray] = field(init=False)
    pvalues: dict[str, float] = field(init=False)
    adjusted: dict[str, float] = field(init=False)

    def __post_init__(self) -> None:
        zscores, pvalues = {}, {}
        for name, draws in self.marginal.items():
            zscores[name], pvalues[name] = _compare(draws, self.successive[name])
        adjusted = holm(np.array(list(pvalues.values())))
        object.__setattr__(self, "zscores", zscores)
        object.__setattr__(self, "pvalues", pvalues)
        object.__setattr__(self, "adjusted", dict(zip(pvalues, map(float, adjusted))))

    @property
    def agree(self) -> bool:
        """Whether no quantity speaks against the sampler, at `level` for all together."""
        return min(self.adjusted.values()) > self.level

    @property
    def verdicts(self) -> dict[str, bool]:
        """Whether the simulators agree on each quantity, as far as can be seen."""
        return {name: p > self.level for name, p in self.adjusted.items()}

    def __repr__(self) -> str:
        order = sorted(self.pvalues, key=lambda name: self.pvalues[name])
        width = max(len("quantity"), *(len(name) for name in order[:SHOWN]))
        chains, steps = next(iter(self.successive.values())).shape
        lines = [
            f"Geweke's joint test of {self.name}: {chains} chains x {steps} steps",
            f"{'quantity':{width}}  z of mean  z of spread  p-value  adjusted",
        ]
        for name in order[:SHOWN]:
            mean, spread = self.zscores[name]
            p, adjusted = (f"{x:.3f}" if x >= 1e-3 else f"{x:.0e}" for x in
                           (self.pvalues[name], self.adjusted[name]))  # fmt: skip
            lines.append(f"{name:{width}}  {mean:9.2f}  {spread:11.2f}  {p:>7}  {adjusted:>8}")
        if len(order) > SHOWN:
            lines.append(f"and {len(order) - SHOWN} more with larger p-values")
        bad = sum(not good for good in self.verdicts.values())
        chance = f"(chance of a false alarm: {self.level:g})"
        lines.append(
            f"the simulators agree, as far as this can tell {chance}"
            if not bad
            else f"the simulators differ in {bad} of {len(order)} quantities {chance}"
        )
        return "\n".join(lines)


def _compare(marginal: np.ndarray, successive: np.ndarray) -> tuple[np.ndarray, float]:
    """z-scores of mean and spread, and the p-value of both, for one quantity."""
    ordered = np.sort(marginal)
    chains = len(successive)
    zscores, pvalues = np.zeros(2), np.ones(2)
    for i, moment in enumerate((lambda u: u, lambda u: (u - 0.5) ** 2)):
        ours = moment(_shares(marginal, ordered))
        means = moment(_shares(successive, ordered)).mean(axis=1)
        own, other = ours.var(ddof=1) / len(ours), means.var(ddof=1) / chains
        error = math.sqrt(own + other)
        if error == 0.0:
            continue  # every value is in the middle of one tie
        zscores[i] = (means.mean() - ours.mean()) / error
        # Welch's degrees of freedom; those of the marginal draws are as good as infinite.
        freedom = (chains - 1) * (1.0 + own / max(other, 1e-300)) ** 2
        pvalues[i] = 2.0 * stats.t.sf(abs(zscores[i]), freedom)
    return zscores, min(1.0, 2.0 * float(np.min(pvalues)))


def _shares(values: np.ndarray, ordered: np.ndarray) -> np.ndarray:
    """The share of an ordered sample that lies below each value; ties count half."""
    below, upto = (np.searchsorted(ordered, values, side=s) for s in ("left", "right"))
    return 0.5 * (below + upto) / len(ordered)


@explained("geweke")
def geweke(
    model: Callable[..., object],
    kernel: Kernel | Callable[..., Kernel] = NUTS,
    num_chains: int = 100,
    num_steps: int = 100,
    *,
    args: tuple[object, ...] = (),
    kwargs: Mapping[str, object] | None = None,
    observed: Iterable[str] = (),
    quantities: Mapping[str, Quantity] | None = None,
    log_likelihood: bool = True,
    simulator: Callable[..., object] | None = None,
    transitions: int = 1,
    warmup_steps: int = 300,
    level: float = 0.01,
    seed: int | Generator | None = 0,
    progress_bar: bool = True,
) -> JointTest:
    """Check the transitions of a sampler by Geweke's joint distribution test.

    Use it for a kernel of your own. Unlike `sbc` it needs no long runs: it asks whether transitions
    leave the posterior as it is, not whether they get there.

    Parameters
    ----------
    model, kernel, args, kwargs, observed, quantities, log_likelihood, simulator
        As for `sbc`.
    num_chains : int
        Chains of the second simulator; at least 10.
    num_steps : int
        Their length: so often new data are drawn. A mistake shows the more, the longer they are;
        with data that say much about the parameters they move slowly, so use few data.
    transitions : int
        Of the sampler, between two data sets.
    warmup_steps : int
        The kernel is adapted once, so long, to data of its own, and stays as it is then.
    level : float
        Largest chance of calling a right sampler wrong.
    seed : int or Generator, optional
        Source of all randomness; the default generator if None.
    progress_bar : bool

    Returns
    -------
    JointTest
        Prints as a table; ``.agree`` is the verdict, ``.zscores`` and ``.pvalues`` what it rests
        on. After Ctrl-C, of the steps that were done.

    Raises
    ------
    ArgumentError
        If it is not clear what the data are, or a factor says what no draw can follow.
    InferenceError
        If the kernel cannot be adapted.

    Notes
    -----
    Compared are the means of u and (u - 1/2)^2, where u is the share of the first simulator's draws
    that lie below a quantity: moments of the quantity itself need not exist. The error of the
    second simulator's means is that of the independent means of its chains, so autocorrelation is
    in it, whatever it is.

    References
    ----------
    [geweke2004]_.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import HMC
    >>> from probtorch.testing import geweke
    >>> def model(y=None):
    ...     x = probtorch.sample("x", dist.Normal(0.0, 1.0))
    ...     probtorch.sample("y", dist.Normal(x, 1.0), obs=y)
    >>> result = geweke(model, lambda m: HMC(m, num_steps=3), 50, 30, progress_bar=False)
    >>> result.agree
    True
    """
    counted("geweke", "num_chains", num_chains, 10)
    counted("geweke", "num_steps", num_steps, FEWEST_STEPS)
    counted("geweke", "transitions", transitions, 1)
    counted("geweke", "warmup_steps", warmup_steps, 0)
    args, kwargs = tuple(args), dict(kwargs or {})
    names = data_sites(model, args, kwargs, observed, "geweke")
    generator = generator_of(seed)
    prior, pilot, later, *streams = generator.spawn(3 + num_chains)
    simulator = simulator or model
    drawn = simulate(simulator, args, kwargs, MARGINAL * num_chains, prior)
    example = kernel if isinstance(kernel, Kernel) or not callable(kernel) else kernel(model)
    moves_discrete = getattr(example, "moves_discrete", False)
    target = (SimulatedMixedTarget if moves_discrete else SimulatedTarget)(
        model, args, kwargs, {name: drawn[name][-1] for name in names}, quantities, log_likelihood
    )
    made = kernel_for(kernel, target, "geweke")
    adapted = _adapted(made, warmup_steps, pilot)

    point = target.points(drawn)
    points = np.array([point(i) for i in range(MARGINAL * num_chains)])
    marginal = target.scores(points, target.pack_data(_only(drawn, names), lead=1))

    chains = _Chains(target, adapted, points[:num_chains], streams, transitions)
    latent = {name: marginal[name][:num_chains] for name in target.slots}
    found: list[dict[str, np.ndarray]] = []
    with TurnProgress(num_steps, "steps", shown=progress_bar) as progress:
        try:
            for _ in range(num_steps):
                data = simulate(simulator, args, kwargs, num_chains, later, latent)
                packed = target.pack_data(_only(data, names), lead=1)
                found.append(target.scores(chains.advance(packed), packed))
                latent = {name: found[-1][name] for name in target.slots}
                progress.update(math.nan)
        except KeyboardInterrupt:
            if len(found) < FEWEST_STEPS:
                raise
            print(f"interrupted: keeping {len(found)} steps", file=sys.stderr, flush=True)
    labels, before = target.columns(marginal)
    after = np.stack([target.columns(step)[1] for step in found], axis=1)
    for i, label in enumerate(labels):
        if np.isnan(before[:, i]).any() or np.isnan(after[..., i]).any():
            raise ArgumentError(
                f"geweke: quantity {label!r}",
                expected="a number at every draw",
                got="nan at some",
                fix="mend it, or leave it out, so that it can be compared",
            )
    kept = [i for i in range(len(labels)) if np.ptp(before[:, i]) > 0 or np.ptp(after[..., i]) > 0]
    return JointTest(
        marginal={labels[i]: before[:, i] for i in kept},
        successive={labels[i]: after[..., i] for i in kept},
        level=level,
        name=f"{target.name} with {made.name}",
    )


def _only(drawn: Arrays, names: Iterable[str]) -> Arrays:
    return {name: drawn[name] for name in names}


def _adapted(kernel: Kernel, warmup_steps: int, generator: Generator) -> Kernel:
    """The kernel as the warm-up of a chain leaves it, without a density."""
    mcmc = MCMC(kernel, 1, warmup_steps, num_chains=1, seed=generator, progress_bar=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InferenceWarning)
        mcmc.run()
    return mcmc.last_state[0].kernel


class _Chains:
    """The second simulator's chains: where they are, and the native code that moves them."""

    def __init__(
        self,
        target: SimulatedTarget,
        kernel: Kernel,
        points: np.ndarray,
        streams: Sequence[Generator],
        transitions: int,
    ) -> None:
        self.points, self.counters = points, [np.array(0)] * len(points)
        self.context = target.density.context()
        handle = DensityHandle(
            wrap(np.asarray(self.context.function, np.int64)),
            wrap(np.asarray(self.context.address, np.int64)),
        )
        self.keys = [key_of(stream) for stream in streams]
        kernel, count = replace(kernel, density=handle), wrap(np.array(transitions))
        task = kernel, count, self.keys[0], wrap(points[0]), wrap(np.array(0))
        self.program = NativeProgram(_transitions, task, name="the sampler").resident(task)

    def advance(self, data: np.ndarray) -> np.ndarray:
        """Move each chain given its row of data; returns the points (chains, dim)."""
        moved = np.empty_like(self.points)
        # The last leaves of the task: the key, the point, the counter.
        seed, stream, position, counter = self.program.inputs[-4:]
        for i, row in enumerate(data):
            self.context.set_data(row)
            seed[...], stream[...] = self.keys[i].seed.array, self.keys[i].stream.array
            position[...], counter[...] = self.points[i], self.counters[i]
            self.program.run()
            self.context.raise_error()
            moved[i], self.counters[i] = self.program.outputs[0], self.program.outputs[1].copy()
        self.points = moved
        return moved


def _transitions(task: Tree) -> Tree:
    """Make some transitions of a kernel from a point; returns where they end."""
    kernel, count, key, position, counter = task

    def going(carry: Tree) -> Tensor:
        return carry[0] < count

    def step(carry: Tree) -> Tree:
        at, state = carry
        return at + 1, kernel.step(key, state)[0]

    _, state = while_loop(going, step, (wrap(np.array(0)), kernel.init(position, counter)))
    return state.position, state.counter


explain_calls(globals())
