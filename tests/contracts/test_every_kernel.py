"""Laws that hold for every kernel: invariance, purity, one program per dimension, honest counts.

A new kernel gets a row in `KERNELS`. And what runs kernels knows none of them.
"""

import ast
import inspect
from pathlib import Path

import numpy as np
import pytest

from probtorch import infer
from probtorch.config import configure
from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.core.rng import Generator
from probtorch.core.tree import flatten, leaves, map_tree, replace
from probtorch.diagnostics import bfmi
from probtorch.distributions import Normal
from probtorch.effects import plate, sample
from probtorch.errors import ArgumentError
from probtorch.infer import (
    AIES,
    ESS,
    GHMC,
    GIST,
    HMC,
    HMCECS,
    MALA,
    MALT,
    MCLMC,
    MCMC,
    MEADS,
    NUTS,
    RMHMC,
    SA,
    SGHMC,
    SGLD,
    SGNHT,
    SMMALA,
    SNAPERHMC,
    AdjustedMCLMC,
    BarkerMH,
    ChEESHMC,
    CyclicalSGLD,
    DEMetropolis,
    DynamicHMC,
    EllipticalSlice,
    Gibbs,
    IndependentMH,
    MixedHMC,
    OrbitalHMC,
    RandomWalk,
    ReplicaExchange,
    Slice,
)
from probtorch.infer.mcmc import chain as chain_runs
from probtorch.infer.mcmc import chunk
from probtorch.infer.mcmc.chunk import Chain, ChunkPlan, ChunkRunner, Task, run_chunk
from probtorch.infer.mcmc.kernel import Kernel, statistics
from probtorch.infer.mcmc.kernels.curved_kernel import CurvedKernel
from probtorch.infer.mcmc.kernels.gaussian_prior import Gaussian
from probtorch.infer.mcmc.metrics import DenseMetric, DiagonalMetric
from probtorch.infer.mcmc.randomness import Key, key_of
from probtorch.infer.potential import Target
from tests.infer.mcmc.targets import curved_gaussian, eager, gaussian, handle

COVARIANCE = np.array([[2.0, 0.9, 0.0], [0.9, 1.0, -0.3], [0.0, -0.3, 0.5]])
DIAGONAL = DiagonalMetric.from_inverse_mass([2.0, 1.0, 0.5])
DENSE = DenseMetric.from_inverse_mass(np.array([[1.0, 0.4, 0.0], [0.4, 1.0, 0.0], [0.0, 0.0, 1.0]]))
TARGET = Target.from_density(lambda q: -0.5 * (q * q).sum(), 3)

# Two sites of one and two coordinates, a block each; and what a chain has of these blocks.
BLOCKS = Gibbs(
    Target.from_density(
        lambda x: -0.5 * (x["a"] ** 2 + (x["b"] ** 2).sum()),
        example={"a": 0.0, "b": np.zeros(2)},
    ),
    blocks={"a": Slice},
    kernel=MALA(TARGET, step_size=0.9, metric="diag"),
)
OF_BLOCKS = BLOCKS.first_values(
    BLOCKS.target((), {}),
    BLOCKS.in_use(eager(gaussian(np.eye(3)))).init(wrap(np.ones(3))),
    None,
    True,
)

MIXED = MixedHMC(HMC(TARGET, step_size=0.5, num_steps=3, metric="diag"))
OF_MIXED = MIXED.first_values(
    TARGET, MIXED.in_use(eager(gaussian(np.eye(3)))).init(wrap(np.ones(3))), None, True
)

# A kernel as users make it, and what is in use of that which is tuned.
KERNELS = {
    "nuts": (NUTS(TARGET, step_size=0.7), {"metric": DIAGONAL}),
    "nuts, dense": (NUTS(TARGET, step_size=0.5), {"metric": DENSE}),
    "nuts, cut off": (NUTS(TARGET, step_size=0.3, max_tree_depth=2), {"metric": DIAGONAL}),
    "nuts, adaptive steps": (
        NUTS(TARGET, step_size=1.7, adaptive_steps=True, energy_tolerance=0.4),
        {"metric": DIAGONAL},
    ),
    "hmc, steps": (HMC(TARGET, step_size=0.9, num_steps=3), {"metric": DIAGONAL}),
    "hmc, length": (
        HMC(TARGET, step_size=0.5, trajectory_length=2.0, jitter=0.3),
        {"metric": DENSE},
    ),
    "random walk": (RandomWalk(TARGET, step_size=1.2), {"metric": DENSE}),
    "mala": (MALA(TARGET, step_size=0.9), {"metric": DIAGONAL}),
    "barker": (BarkerMH(TARGET, step_size=1.2), {"metric": DENSE}),
    "dynamic hmc": (DynamicHMC(TARGET, step_size=0.7), {"metric": DIAGONAL}),
    "dynamic hmc, exponential": (
        DynamicHMC(TARGET, step_size=0.6, law="exponential", trajectory_length=1.0),
        {"metric": DENSE},
    ),
    "malt": (MALT(TARGET, step_size=0.6, trajectory_length=1.9), {"metric": DIAGONAL}),
    "malt, one step": (MALT(TARGET, step_size=0.8, trajectory_length=0.1), {"metric": DENSE}),
    "gist": (GIST(TARGET, step_size=0.6), {"metric": DIAGONAL}),
    "gist, cut off": (GIST(TARGET, step_size=0.3, max_num_steps=5), {"metric": DENSE}),
    "independent metropolis": (
        IndependentMH(TARGET),
        {"gaussian": Gaussian.of(np.array([0.3, 0.0, -0.2]), 2.0 * DENSE.inverse_mass())},
    ),
    "independent metropolis, normal": (
        IndependentMH(TARGET, df=None),
        {"gaussian": Gaussian.of(np.array([0.3, 0.0, -0.2]), np.array([3.0, 1.5, 0.8]))},
    ),
    "orbital": (OrbitalHMC(TARGET, step_size=0.9, num_points=5), {"metric": DIAGONAL}),
    "mclmc": (MCLMC(TARGET, step_size=0.3, num_steps=3), {"metric": DIAGONAL}),
    "adjusted mclmc": (AdjustedMCLMC(TARGET, step_size=1.0), {"metric": DIAGONAL}),
    "adjusted mclmc, leapfrog": (
        AdjustedMCLMC(TARGET, step_size=0.6, integrator="leapfrog"),
        {"metric": DENSE},
    ),
    "chees": (ChEESHMC(TARGET, walkers=8, step_size=0.7), {"metric": DIAGONAL}),
    "meads": (MEADS(TARGET, walkers=8, folds=2), {}),
    "snaper": (SNAPERHMC(TARGET, walkers=8, step_size=0.7), {"metric": DIAGONAL}),
    "ghmc": (GHMC(TARGET, step_size=0.7, drift=0.3), {"metric": DIAGONAL}),
    "riemannian hmc": (
        RMHMC(TARGET, step_size=0.9, trajectory_length=2.0),
        {"metric": DIAGONAL},
    ),
    "simplified manifold mala": (
        SMMALA(TARGET, step_size=0.9, alpha=3.0),
        {"metric": DIAGONAL},
    ),
    "slice": (Slice(TARGET), {"metric": DENSE}),
    "slice, narrow": (Slice(TARGET, width=0.3), {"metric": DIAGONAL}),
    "gibbs": (BLOCKS, OF_BLOCKS),
    "mixed hmc": (MIXED, OF_MIXED),
    "affine-invariant ensemble": (AIES(TARGET, walkers=8), {}),
    "differential evolution": (DEMetropolis(TARGET, walkers=8, snooker=0.5), {}),
    "sample adaptive": (SA(TARGET, walkers=8), {}),
    "sample adaptive, diagonal": (SA(TARGET, walkers=8, metric="diag"), {}),
    "ensemble slice": (ESS(TARGET, walkers=8), {}),
    # At powers that are almost alike: other laws than of the first replica are in its own tests.
    "replica exchange": (
        ReplicaExchange(HMC(TARGET, step_size=0.9, num_steps=3), inverse_temperatures=(1.0, 0.98)),
        {"metric": DIAGONAL, "step_size": wrap(np.array(0.9))},
    ),
    # Without rows; with them in its own tests.
    "hmcecs": (
        HMCECS(HMC(TARGET, step_size=0.9, num_steps=3)),
        {"metric": DIAGONAL, "step_size": wrap(np.array(0.9))},
    ),
    # All rows at a time. They are not exact, but with so short steps as good as that for two draws.
    "sgld": (SGLD(TARGET, step_size=0.4), {"metric": DIAGONAL}),
    "cyclical sgld": (
        CyclicalSGLD(TARGET, step_size=0.4, temperature=1.0, cycle_length=5),
        {"metric": DIAGONAL},
    ),
    "sghmc": (SGHMC(TARGET, step_size=0.4), {"metric": DIAGONAL}),
    "sgnht": (SGNHT(TARGET, step_size=0.3), {"metric": DIAGONAL}),
    "elliptical slice": (
        EllipticalSlice(TARGET),
        {"gaussian": Gaussian.of(np.array([0.3, 0.0, -0.2]), 2.0 * DENSE.inverse_mass())},
    ),
}


# Other settings of a kernel that has a row already.
VARIANTS = {
    *("nuts, dense", "nuts, cut off", "hmc, length", "slice, narrow"),
    *("malt, one step", "gist, cut off", "independent metropolis, normal"),
    *("dynamic hmc, exponential", "adjusted mclmc, leapfrog", "sample adaptive, diagonal"),
}
NAMES = [pytest.param(n, marks=pytest.mark.slow) if n in VARIANTS else n for n in KERNELS]
# One of each sort for the test of the test.
SORTS = {"nuts", "random walk", "slice", "affine-invariant ensemble"}


def logdensity(covariance):
    precision = wrap(np.linalg.inv(covariance))
    return lambda q: -0.5 * (q * (precision @ q)).sum()


def density_of(name, covariance):
    """What a kernel evaluates of a Gaussian, as native code."""
    return KERNELS[name][0].native(Target.from_density(logdensity(covariance), 3))


def eager_of(name, covariance):
    """The same as a NumPy function."""
    kind = type(KERNELS[name][0])
    return (curved_gaussian if issubclass(kind, CurvedKernel) else gaussian)(covariance)


def start_of(kernel):
    """A position, or as many as a state has."""
    some = np.random.default_rng(3).normal(size=(max(kernel.members, 1), 3))
    return some if kernel.members else np.array([0.3, -0.2, 0.5])


def chain_of(name, density, seed=1, target_accept_prob=0.8):
    made, values = KERNELS[name]
    kernel, tuner = made.in_use(density, **values), made.warmup.tuner
    if tuner is not None:
        tuner = replace(tuner, target=wrap(np.array(target_accept_prob)))
    return Chain(kernel, kernel.init(wrap(start_of(kernel))), key_of(Generator(seed)), tuner)


def scores(draws, covariance):
    """Means, variances and correlations of iid draws as approximately standard normal scores."""
    n, sd = len(draws), np.sqrt(np.diag(covariance))
    upper = np.triu_indices(len(covariance), 1)
    corr, expected = np.corrcoef(draws.T)[upper], (covariance / np.outer(sd, sd))[upper]
    return np.concatenate(
        [
            draws.mean(axis=0) / sd * np.sqrt(n),
            (draws.var(axis=0) / sd**2 - 1.0) * np.sqrt(n / 2.0),
            (np.arctanh(corr) - np.arctanh(expected)) * np.sqrt(n - 3.0),
        ]
    )


def moved(name, covariance, starts, transitions=2):
    """Where exact draws are after some transitions of a kernel for a Gaussian."""
    context = density_of(name, covariance).context()
    runner = ChunkRunner(chain_of(name, handle(context)))
    fresh, ends = runner.chain, []
    members = max(fresh.kernel.members, 1)
    for i, q in enumerate(starts[: len(starts) // members * members].reshape(-1, members, 3)):
        state = fresh.kernel.init(wrap(q if fresh.kernel.members else q[0]))
        key = Key(fresh.key.seed, wrap(np.array(i)))
        runner.chain = replace(fresh, state=state, key=key)
        positions, *_ = runner.run(transitions)
        ends.extend(positions[-1].reshape(-1, 3).copy())
    return np.array(ends)


@pytest.mark.parametrize("name", NAMES)
def test_kernel_leaves_a_gaussian_invariant(name):
    """5000 exact draws stay exact; one of nine scores beyond 5 has a chance of 5e-6.

    A bias of 0.1 sd in a mean or 15 % in a variance has a score above 7, as the next test shows.
    """
    starts = np.random.default_rng(0).multivariate_normal(np.zeros(3), COVARIANCE, 5000)
    assert np.abs(scores(moved(name, COVARIANCE, starts), COVARIANCE)).max() < 5.0


@pytest.mark.parametrize(
    "name", [n if n in SORTS else pytest.param(n, marks=pytest.mark.slow) for n in KERNELS]
)
def test_invariance_test_notices_another_target(name):
    starts = np.random.default_rng(0).multivariate_normal(np.zeros(3), COVARIANCE, 5000)
    ends = moved(name, 1.3 * COVARIANCE, starts, transitions=12)
    assert np.abs(scores(ends, COVARIANCE)).max() > 5.0


@pytest.mark.parametrize("name", NAMES)
def test_step_is_pure(name):
    chain = chain_of(name, eager(eager_of(name, COVARIANCE)))
    first, second = (leaves(chain.kernel.step(chain.key, chain.state)) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a.array, b.array)
    # Some may be rejected, and stay where they are.
    others = [chain.kernel.step(key_of(Generator(s)), chain.state)[0] for s in range(2, 7)]
    assert max(np.abs(x.position.array - first[0].array).max() for x in others) > 0.0


@pytest.mark.parametrize("name", NAMES)
def test_what_a_step_says_it_took_is_what_it_took(name):
    calls = []

    def counted(q):
        calls.append(q)
        return eager_of(name, COVARIANCE)(q)

    chain = chain_of(name, eager(counted))
    state, spent = chain.state, len(calls)
    for _ in range(5):
        state, info = chain.kernel.step(chain.key, state)
        spent += int(info.n_steps.array.sum())
        assert len(calls) == spent


# Of a metric that changes from place to place the determinant is part of the energy.
TELLING = [
    name
    for name, (made, _) in KERNELS.items()
    if {"energy", "lp"} <= {s.name for s in statistics(made.info)}
    and not isinstance(made, CurvedKernel)
]
# With walls, at which the longer steps of the law lose the energy.
STEEP = Target.from_density(lambda q: (-0.5 * q * q - 50.0 * q**4).sum(), 3)


@pytest.mark.parametrize("name", TELLING)
@pytest.mark.parametrize("step_size", [0.05, 0.3])
def test_the_energy_is_that_of_the_state_that_is_kept(name, step_size):
    """Energy and log density then differ by a kinetic energy, that of three normal numbers.

    Also where ends are rejected, since position and momentum that are kept have the joint law. The
    standard error of the mean is 0.04, a few times that with momenta that are kept in part.
    """
    context = KERNELS[name][0].native(STEEP).context()
    runner = ChunkRunner(chain_of(name, handle(context)))
    runner.set("step_size", wrap(np.array(step_size)))
    kinetic = []
    for _ in range(25):
        positions, _, info = runner.run(40)
        lp = (-0.5 * positions**2 - 50.0 * positions**4).sum(-1)
        assert np.allclose(info.lp, lp, rtol=1e-10)
        kinetic.append(info.energy + lp)
    assert np.min(kinetic) > -1e-9
    assert abs(np.mean(kinetic) - 1.5) < 0.3


def test_malt_tells_no_energy_of_rejected_ends():
    """With a friction, ends below the energy of the start are rejected, too."""
    steep = Target.from_density(lambda q: (-0.5 * q * q - 50.0 * q**4).sum(), 1)
    kernel = MALT(steep, step_size=0.5, adapt_step_size=False)
    mcmc = MCMC(kernel, 1000, num_chains=2, seed=1, progress_bar=False)
    stats = mcmc.run().sample_stats
    kinetic = stats["energy"] + stats["lp"]
    assert kinetic.min() >= 0.0
    # Half a squared normal number, but for what is lost on the way.
    assert abs(kinetic.mean() - 0.5) < 0.1
    assert np.all(bfmi(stats["energy"]) > 0.8)


@pytest.mark.parametrize("name", NAMES)
def test_eager_chunk_is_the_compiled_chunk(name):
    """Adaptation, search for a step size and all: equal but for the last bits of exp and log."""
    context = density_of(name, COVARIANCE).context()
    chain = chain_of(name, handle(context))
    runner = ChunkRunner(chain)
    positions, grads, info = runner.run(8, search=True, adapt=True)
    plan = ChunkPlan(*(wrap(np.array(x)) for x in (8, True, True)))
    after, trace = run_chunk(Task(chain, plan), 8)
    np.testing.assert_allclose(trace.positions.array, positions, rtol=1e-8, atol=1e-10)
    if trace.grads is not None:
        np.testing.assert_allclose(trace.grads.array, grads, rtol=1e-8, atol=1e-10)
    for ours, theirs in zip(leaves(trace.info), leaves(info), strict=True):
        np.testing.assert_allclose(ours.array, theirs, rtol=1e-8, atol=1e-10)
    for ours, theirs in zip(leaves(after), leaves(runner.chain), strict=True):
        np.testing.assert_allclose(ours.array, theirs.array, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_cutting_a_run_into_calls_changes_nothing(name):
    context = density_of(name, COVARIANCE).context()
    whole, parts = (ChunkRunner(chain_of(name, handle(context))) for _ in range(2))
    expected = whole.run(30, adapt=True)[0].copy()
    got = [parts.run(n, adapt=True)[0].copy() for n in (1, 17, 12)]
    np.testing.assert_array_equal(np.concatenate(got), expected)
    for a, b in zip(leaves(whole.chain), leaves(parts.chain), strict=True):
        np.testing.assert_array_equal(a.array, b.array)


@pytest.mark.parametrize(
    "name", [name for name, (_, values) in KERNELS.items() if "metric" in values]
)
def test_a_metric_set_alone_is_as_one_set_with_the_chain(name):
    context = density_of(name, COVARIANCE).context()
    alone, whole = (ChunkRunner(chain_of(name, handle(context))) for _ in range(2))
    for runner in (alone, whole):
        runner.run(3, adapt=True)
    held = alone.held("metric")
    other = map_tree(lambda x: wrap(1.5 * x.array) if x.array.dtype == float else x, held)
    alone.set("metric", other)
    chain = whole.chain
    whole.chain = replace(chain, kernel=replace(chain.kernel, metric=other))
    for a, b in zip(leaves(alone.chain), leaves(whole.chain), strict=True):
        np.testing.assert_array_equal(a.array, b.array)
    assert leaves(alone.held("metric"))[0] is leaves(whole.held("metric"))[0]
    np.testing.assert_array_equal(alone.run(5)[0], whole.run(5)[0])


@pytest.mark.parametrize("name", NAMES)
def test_one_program_serves_all_densities_of_a_dimension(name):
    contexts = [density_of(name, c * COVARIANCE).context() for c in (1.0, 2.0)]
    runners = [ChunkRunner(chain_of(name, handle(c))) for c in contexts]
    assert runners[0].run(50)[0].tolist() != runners[1].run(50)[0].tolist()
    runners.append(ChunkRunner(chain_of(name, handle(contexts[0]), 9, 0.9)))
    assert len({id(runner.sit_down().program.owner) for runner in runners}) == 1


def test_programs_of_ever_more_dimensions_are_forgotten(monkeypatch):
    made = []
    monkeypatch.setattr(chunk, "_programs", {})
    monkeypatch.setattr(chunk, "NativeProgram", lambda *args, **kwargs: made.append(1) or made[:])
    for dim in range(1, 101):
        chunk.program_for(as_tensor(np.zeros(dim)), 16)
        assert len(chunk._programs) <= chunk.MAX_PROGRAMS
        chunk.program_for(as_tensor(np.zeros(1)), 16)  # is in use all the time
    assert len(made) == 100


@pytest.mark.parametrize("name", NAMES)
def test_states_keep_structure_shapes_and_dtypes(name):
    chain = chain_of(name, eager(eager_of(name, COVARIANCE)))
    state, info = chain.kernel.step(chain.key, chain.state)
    (before, structure), (after, same) = flatten(chain.state), flatten(state)
    assert structure == same
    for a, b in zip(before, after, strict=True):
        assert a.array.shape == b.array.shape and a.array.dtype == b.array.dtype
    assert type(info) is chain.kernel.info
    for declared in statistics(type(info)):
        value = getattr(info, declared.field).array
        assert value.dtype == declared.dtype, declared
        shape = state.position.array.shape[:-1]
        if declared.like is not None:
            shape = getattr(chain.kernel, declared.like).array.shape
        assert value.shape == shape, declared


class Crash(Exception):
    """What breaks a run off."""


# One of each kind, as it is made where the target says no more than its density.
RUNNABLE = {type(made): made for made, _ in KERNELS.values()}
RUNNABLE[EllipticalSlice] = EllipticalSlice(TARGET, loc=np.zeros(3), covariance=np.eye(3))


def in_rows():
    x = sample("x", Normal(0.0, 1.0).expand([3]).to_event(1))
    with plate("rows", 6, subsample_size=2) as rows:
        sample("y", Normal(x[0], 1.0), obs=as_tensor(np.arange(6.0))[rows])


RUNNABLE[HMCECS] = HMCECS(HMC(in_rows, num_steps=2))


@pytest.mark.parametrize("kind", RUNNABLE)
def test_a_run_broken_off_in_warm_up_and_after_goes_on_bit_for_bit(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(chain_runs, "CALL_SECONDS", 0.0)  # a call, and a snapshot, per transition

    def run(crash=None, **options):
        def hook(kernel, params, stage, i):
            if i == crash:
                raise Crash

        mcmc = MCMC(RUNNABLE[kind], 4, 7, num_chains=1, seed=2, hook_fn=hook, progress_bar=False)
        mcmc.diagnose = False
        return mcmc.run(**options)

    with configure(jit=False):
        whole = run()
        for crash in (3, 9):
            with pytest.raises(Crash):
                run(crash, checkpoint=tmp_path, checkpoint_every=1e-9)
        parts = run(checkpoint=tmp_path)
    for name, values in whole.posterior.items():
        assert parts[name].tobytes() == values.tobytes(), name
    for statistic, values in whole.sample_stats.items():
        assert parts.sample_stats[statistic].tobytes() == values.tobytes(), statistic


# ------------------------------------------------------------------------------------ what is known

ROOT = Path(infer.__file__).resolve().parents[1]
PUBLIC = [
    kind
    for kind in (getattr(infer, name) for name in infer.__all__)
    if isinstance(kind, type) and issubclass(kind, Kernel)
]
# What runs kernels, whichever.
DRIVER = (
    "adapted budget chain chunk collect driver guard handle progress recording run_results "
    "running saved standstill starts store threads"
).split()


def imports(path):
    """Pairs of a module and a name that a file imports from it."""
    nodes = ast.walk(ast.parse(path.read_text()))
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    return {(node.module, alias.name) for node in froms for alias in node.names}


@pytest.mark.parametrize("kind", PUBLIC)
def test_settings_of_other_kernels_are_told_apart_from_mistakes(kind):
    """A setting that some kernel has: which one, or where it goes; never the bare name."""
    known = inspect.signature(kind).parameters
    for name, meant in {"dense_mass": "metric", "walkers": "walkers", "proxy": "proxy"}.items():
        if name in known:
            continue
        with pytest.raises(ArgumentError) as caught:
            kind(TARGET, **{name: True})
        fix = str(caught.value).split("fix:")[1].splitlines()[0].strip()
        if meant in known:
            assert fix == f"write {meant}=..."
        elif {"kernel", "inner_kernel"} & known.keys():
            assert fix.startswith("give it to the kernel inside: ") and f"(model, {name}=" in fix
        else:
            assert fix.startswith("leave it out: a setting of ")
            assert fix.endswith(f", which {kind.__name__} has not")


@pytest.mark.parametrize("module", DRIVER)
def test_what_runs_kernels_knows_the_contract_only(module):
    own = {kind.__module__ for kind in PUBLIC} | {"probtorch.infer.mcmc.kernels.stepping"}
    found = {
        (m, name)
        for m, name in imports(next((ROOT / "infer/mcmc").rglob(f"{module}.py")))
        if m in own
    }
    assert not found


def test_every_kernel_at_the_front_door_has_a_row():
    assert set(PUBLIC) == {type(made) for made, _ in KERNELS.values()}


@pytest.mark.parametrize(
    "kind", [HMC, NUTS, AIES, MALA, BarkerMH, DynamicHMC, GHMC, RandomWalk, Slice]
)
def test_kernels_are_copied_and_shown_as_the_base_says(kind):
    # Dataclasses write over what a class inherits: __repr__ everywhere, __replace__ from 3.13 on.
    assert vars(kind)["__replace__"] is Kernel.__replace__
    assert vars(kind)["__repr__"] is not None
    assert replace(kind.of(None), density=len).density is len


# What others are made of, or move their points by, and what `fit` plans with.
IN_USE = HMC, HMCECS, NUTS, Gibbs, ReplicaExchange, Slice


@pytest.mark.parametrize("kind", [kind for kind in PUBLIC if kind not in IN_USE])
def test_a_kernel_is_one_file_and_one_export(kind):
    users = {
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("*.py")
        if kind.__name__ in path.read_text() and (kind.__module__, kind.__name__) in imports(path)
    }
    assert users == {"infer/__init__.py"}
