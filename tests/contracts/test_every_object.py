"""Laws that every object with a state keeps: it is copied and pickled, and it prints shortly.

A row makes an object, and another function says what it answers. A copy answers the same to the
last bit: also one of an object that has compiled code, which stays behind and is made anew. A new
public class gets a row, or an entry in `NOT_HERE` with the reason.
"""

import copy
import pickle
import re
import warnings

import numpy as np
import pytest

import probtorch
import probtorch.distributions as dist
from probtorch import diagnostics, effects, handlers, infer, nn, optim, plate, sample, tensor
from probtorch.infer import MCMC, NUTS, SVI, AutoNormal, Predictive, Target, Trace_ELBO
from probtorch.optim import Adam, lr_scheduler
from probtorch.utils import data

X = probtorch.linspace(-1.0, 1.0, 12, dtype=probtorch.float64)
Y = 1.0 + 2.0 * X


def line(x, y=None):
    a = sample("a", dist.Normal(0.0, 5.0))
    b = sample("b", dist.Normal(0.0, 5.0))
    with plate("n", 12):
        return sample("y", dist.Normal(a + b * x, 1.0), obs=y)


def switched(y):
    p = sample("p", dist.Beta(2.0, 2.0))
    z = sample("z", dist.Bernoulli(p))
    sample("y", dist.Normal(3.0 * z, 1.0), obs=y)


def by_hand(q):
    return -(q * q).sum()


def potential(q):
    return (q["x"] ** 2).sum()


@probtorch.compile
def decorated(x):
    return (x * x).sum()


@handlers.scale(scale=2.0)
def scaled_line(x, y=None):
    return line(x, y)


@infer.config_enumerate
def enumerating_guide(y):
    p = sample("p", dist.Beta(2.0, 2.0))
    sample("z", dist.Bernoulli(p))


@infer.infer_discrete
def decoded(y):
    return switched(y)


def chains(started):
    mcmc = MCMC(NUTS(line), num_samples=12, warmup_steps=20, num_chains=2, seed=0)
    mcmc.progress_bar = False
    if started:
        run(mcmc)
    return mcmc


def run(mcmc):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mcmc.run(X, Y)
    return mcmc.get_samples()


def groups(x, y=None):
    scale = sample("scale", dist.HalfNormal(1.0))
    with plate("n", 12):
        b = sample("b", dist.Normal(0.0, scale))
        return sample("y", dist.Normal(b * x, 1.0), obs=y)


def shops(x, y=None):
    with plate("n", 12):
        a, b = sample("a", dist.Normal(0.0, 1.0)), sample("b", dist.Normal(0.0, 1.0))
        return sample("y", dist.Normal(a + b * x, 1.0), obs=y)


def weaker():
    return line(0.5 * X, Y)


def half_of_b(rng_key, gibbs_sites, hmc_sites):
    return {"a": hmc_sites["b"] / 2.0}


def quiet(fn, *args, **kwargs):
    """A run too short to be without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fn(*args, **kwargs)


def fitted():
    few = {"num_samples": 20, "warmup_steps": 20, "num_chains": 2}
    return quiet(infer.fit, line, X, Y, seed=0, verbose=False, **few)


def drawn_line():
    return quiet(MCMC(NUTS(line), num_samples=50, seed=0, progress_bar=False).run, X, Y)


def elpd():
    return quiet(diagnostics.loo, drawn_line())


def svi(steps, guide=AutoNormal, optimizer=Adam, model=line, objective=Trace_ELBO):
    made = SVI(model, guide(model), optimizer({"lr": 0.05}), objective(), seed=0)
    for _ in range(steps):
        made.step(X, Y)
    return made


def steps(made):
    return [made.step(X, Y) for _ in range(3)]


def guide(kind):
    made = kind(line)
    svi(1, lambda model: made)
    return made


def answers_of_guide(made):
    with probtorch.handlers.seed(rng_seed=0):
        return made(X, Y)


def target(used=True, of=None):
    made = Target.from_model(line, X, Y) if of is None else of()
    if used:
        made.value_and_grad(np.full(made.dim, 0.3))
    return made


def density(made):
    return made.value_and_grad(np.full(made.dim, 0.3))


def weights():
    return [tensor([1.0, 2.0]).requires_grad_()]


def optimizer(kind, rate="lr", **options):
    made = kind(**{"params": weights(), rate: 0.1, **options})
    for _ in range(2):
        moved(made)
    return made


def moved(made):
    (w,) = made.param_groups[0]["params"]

    def closure():
        made.zero_grad()
        loss = (w * w).sum()
        loss.backward()
        return loss

    made.step(closure)
    return w.detach()


def rates(made):
    found = []
    for _ in range(4):
        made.optimizer.step()
        made.step(*(() if type(made) is not lr_scheduler.ReduceLROnPlateau else (1.0,)))
        found.append(made.optimizer.param_groups[0]["lr"])
    return found


def trace_of(made):
    with probtorch.handlers.seed(rng_seed=0):
        found = probtorch.handlers.trace(made).get_trace(X, Y)
    found.compute_log_prob()
    return {k: (v.value, v.log_prob) for k, v in found.nodes.items() if v.kind == "sample"}


def schedule(kind, *args, **kwargs):
    made = kind(Adam(weights(), lr=0.1), *args, **kwargs)
    made.optimizer.step()
    return made


def constant(epoch):
    return 0.5**epoch


def by_name(site):
    """Where to leave a run."""
    return site.name == "nowhere"


GUIDES = (
    "AutoBNAFNormal AutoDAIS AutoDelta AutoDiagonalNormal AutoGaussian AutoIAFNormal "
    "AutoLaplaceApproximation AutoLowRankMultivariateNormal AutoMultivariateNormal AutoNormal "
    "AutoHierarchicalNormalMessenger AutoNormalMessenger AutoRegressiveMessenger AutoASVI "
    "AutoStructured"
).split()
OBJECTIVES = (
    "CUBO EnergyDistance FDivergence ImportanceWeightedELBO RenyiELBO ReweightedWakeSleep "
    "TraceEnum_ELBO "
    "TraceGraph_ELBO Trace_MMD TraceMeanField_ELBO TraceTMC_ELBO TraceTailAdaptive_ELBO Trace_ELBO "
    "JitTrace_ELBO JitTraceEnum_ELBO JitTraceGraph_ELBO JitTraceMeanField_ELBO"
).split()
OPTIMIZERS = (
    "ASGD Adadelta Adafactor Adagrad Adam AdamW Adamax ClippedAdam DoG DoWG LDoG NAdam RAdam "
    "RMSprop Rprop SGD SM3 RMSProp RMSPropMomentum SparseAdam"
).split()
DATASET = data.TensorDataset(X, Y)
TRACE = probtorch.handlers.trace(probtorch.handlers.seed(line, 0)).get_trace(X, Y)


def guide_list():
    made = infer.AutoGuideList(line)
    made.append(infer.AutoNormal(handlers.block(line, expose=["a"])))
    made.append(infer.AutoDelta(handlers.block(line, expose=["b"])))
    return made


def importance():
    return infer.Importance(line, num_samples=20, seed=1)


def near(states, t):
    return dist.Normal(states, 2.0)


def particle_filter():
    return infer.ParticleFilter(dist.Normal(0.0, 5.0), near, near, num_particles=50)


def ensemble_filter():
    return infer.EnsembleKalmanFilter(dist.Normal(0.0, 5.0), near, near, num_members=20)


def multi_moved(optimizer):
    a = probtorch.tensor([3.0]).requires_grad_()
    optimizer.step(((a - 1.0) ** 2).sum(), {"a": a})
    return a


class Stepping:
    def init(self, state):
        state["z"] = sample("z", dist.Normal(0.0, 1.0))

    def step(self, state, y):
        state["z"] = sample("z", dist.Normal(state["z"], 1.0))
        sample("y", dist.Normal(state["z"], 1.0), obs=y)


def smc_filter():
    made = infer.SMCFilter(Stepping(), None, 20, 0, seed=1)
    made.init()
    made.step(Y[0])
    return made


def runs_of_line():
    return infer.ParticleGibbs(line, 3, num_samples=4, warmup_steps=0, seed=1)


def no_draws(run):
    """The auxiliary model of a move without draws."""


def turned(run, draws):
    return {**run, "a": run["b"], "b": run["a"]}, {}


def involutive_mcmc():
    moves = [infer.Involution(no_draws, turned), infer.Involution.drift(0.2, of=["a", "b"])]
    return infer.InvolutiveMCMC(line, moves, 4, 0, seed=1, progress_bar=False)


def smc():
    return infer.SMC(infer.RandomWalk(line), 256, temperatures=[0.01, 0.1, 1.0], seed=1)


def nested():
    return infer.NestedSampler(line, 32, seed=1, num_threads=1, progress_bar=False)


def mixture_of_guides(steps):
    kernel, seed = infer.RBFKernel(), probtorch.Generator(3)
    made = infer.SteinVI(line, AutoNormal(line), Adam({"lr": 0.1}), kernel, 2, 2, seed=seed)
    for _ in range(steps):
        made.step(X, Y)
    return made


def particles(steps):
    made = infer.SVGD(line, infer.RBFSteinKernel(), Adam({"lr": 0.1}), 4, seed=0)
    for _ in range(steps):
        made.step(X, Y)
    return made


def drawn(x, y=None):
    return {n: effects.sample(n, dist.Normal(0.0, 1.0)) for n in "ab"}


def coins():
    with effects.plate("row", 3):
        effects.sample("z", dist.Bernoulli(0.3))


def asked(guide, *args):
    guide(*args)
    return guide


# name: (how it is made, what it answers)
ROWS = {
    "MCMC": (lambda: chains(False), run),
    "MCMC after a run": (lambda: chains(True), run),
    "MCMC's draws": (lambda: chains(True), lambda m: m.get_samples()),
    "MCMC's predictions": (lambda: chains(True), lambda m: m.draws.predict(X, seed=1)),
    "NUTS": (lambda: NUTS(line, target_accept_prob=0.9), lambda k: k.target_accept_prob),
    "HMC": (lambda: infer.HMC(line, num_steps=3), lambda k: k.num_steps),
    "RandomWalk": (lambda: infer.RandomWalk(line, step_size=0.5), lambda k: k.step_size),
    "MALA": (lambda: infer.MALA(line, metric="diag"), lambda k: k.metric),
    "BarkerMH": (lambda: infer.BarkerMH(line, step_size=0.5), lambda k: k.step_size),
    "DynamicHMC": (lambda: infer.DynamicHMC(line, law="exponential"), lambda k: k.law),
    "ChEESHMC": (lambda: infer.ChEESHMC(line, walkers=4), lambda k: k.members),
    "MEADS": (lambda: infer.MEADS(line, walkers=12, folds=3), lambda k: k.members),
    "SNAPERHMC": (lambda: infer.SNAPERHMC(line, walkers=4), lambda k: k.members),
    "MCLMC": (lambda: infer.MCLMC(line, num_steps=3), lambda k: k.num_steps),
    "AdjustedMCLMC": (
        lambda: infer.AdjustedMCLMC(line, integrator="leapfrog"),
        lambda k: k.integrator,
    ),
    "GHMC": (lambda: infer.GHMC(line, drift=0.2), lambda k: k.drift),
    "RMHMC": (lambda: infer.RMHMC(line, alpha=10.0), lambda k: (k.alpha, k.jitter)),
    "MALT": (lambda: infer.MALT(line, friction=0.5), lambda k: (k.friction, k.max_num_steps)),
    "GIST": (lambda: infer.GIST(line, max_num_steps=9), lambda k: k.max_num_steps),
    "OrbitalHMC": (lambda: infer.OrbitalHMC(line, num_points=5), lambda k: k.num_points),
    "SMMALA": (lambda: infer.SMMALA(line, alpha=2.0), lambda k: (k.alpha, k.max_dim)),
    "IndependentMH": (lambda: infer.IndependentMH(line, df=3), lambda k: (k.df, k.proposal)),
    "CyclicalSGLD": (
        lambda: infer.CyclicalSGLD(line, cycle_length=9),
        lambda k: (k.cycle_length, k.exploration),
    ),
    "Slice": (lambda: infer.Slice(line, width=3.0), lambda k: k.width),
    "AIES": (lambda: infer.AIES(line, walkers=6), lambda k: k.members),
    "Importance": (lambda: importance(), lambda i: i.run(X, Y).log_weights),
    "WeightedDraws": (lambda: importance().run(X, Y), lambda w: (w.samples, w.log_weights)),
    "DEMetropolis": (lambda: infer.DEMetropolis(line, walkers=6), lambda k: (k.members, k.jumps)),
    "EllipticalSlice": (
        lambda: infer.EllipticalSlice(line, loc=[0.0, 0.0], covariance=[1.0, 2.0]),
        lambda k: k.covariance,
    ),
    "ReplicaExchange": (
        lambda: infer.ReplicaExchange(NUTS(line), inverse_temperatures=[1.0, 0.5]),
        lambda k: k.inverse_temperatures,
    ),
    "SGLD": (lambda: infer.SGLD(line, step_size=0.1), lambda k: k.step_size),
    "SGHMC": (lambda: infer.SGHMC(line, friction=2.0), lambda k: k.friction),
    "SGNHT": (lambda: infer.SGNHT(line, diffusion=2.0), lambda k: k.diffusion),
    "HMCECS": (lambda: infer.HMCECS(NUTS(line), num_blocks=2), lambda k: k.num_blocks),
    "SA": (lambda: infer.SA(line, walkers=6), lambda k: (k.members, k.metric)),
    "ESS": (lambda: infer.ESS(line, walkers=6), lambda k: (k.members, k.mu)),
    "Gibbs": (lambda: infer.Gibbs(line, discrete="modified"), lambda k: k.attrs()["blocks"]),
    "MixedHMC": (
        lambda: infer.MixedHMC(infer.HMC(line), num_discrete_updates=3),
        lambda k: (k.updates, k.attrs()["blocks"]),
    ),
    "FullConditional": (
        lambda: infer.FullConditional(half_of_b),
        lambda f: f.fn(rng_key=None, gibbs_sites={}, hmc_sites={"b": 3.0}),
    ),
    "Plan": (lambda: fitted().plan, str),
    "Fitted": (lambda: fitted(), lambda f: (f.posterior, f.verdict, f.explain())),
    "Sensitivity": (lambda: infer.power_sensitivity(drawn_line()), str),
    "CheckReport": (lambda: infer.check(line, X, Y, parts=["prior"]), str),
    "Elpd": (lambda: elpd(), lambda e: (e.elpd, e.pointwise)),
    "Comparison": (lambda: diagnostics.compare({"a": elpd(), "b": elpd()}), str),
    "SMC": (lambda: smc(), lambda s: s.run(X, Y)["a"]),
    "SMCDraws": (lambda: smc().run(X, Y), lambda d: (d.posterior, d.log_evidence)),
    "NestedSampler": (lambda: nested(), lambda s: s.run(X, Y)["a"]),
    "NestedDraws": (lambda: nested().run(X, Y), lambda d: (d.posterior, d.weighted.log_weights)),
    "ParticleFilter": (lambda: particle_filter(), lambda f: f.run(Y, seed=1).mean),
    "EnsembleKalmanFilter": (lambda: ensemble_filter(), lambda f: f.run(Y, seed=1).mean),
    "EnsembleStates": (
        lambda: ensemble_filter().run(Y, seed=1),
        lambda f: (f.members, f.log_evidence),
    ),
    "AIS": (
        lambda: infer.AIS(
            infer.Slice(line), 20, temperatures=[0.3, 1.0], seed=1, progress_bar=False
        ),
        lambda a: a.run(X, Y).log_ratios,
    ),
    "INLA": (lambda: infer.INLA(line, latent=["a"]), lambda i: i.latent),
    "INLAResult": (
        lambda: infer.INLA(line, latent=["a"], seed=0).run(X, Y),
        lambda r: (r.evidence, r.sample(5, probtorch.Generator(0))),
    ),
    "INLACompositeResult": (
        lambda: infer.INLA(line, latent=["a"], integration="ccd", seed=0).run(X, Y),
        lambda r: (r.evidence, r.sample(5, probtorch.Generator(0))),
    ),
    "LaplaceMarginal": (
        lambda: infer.LaplaceMarginal(line, ["a"], X, Y),
        lambda t: t.value_and_grad(np.array([0.5])),
    ),
    "Newton": (lambda: optim.Newton({"a": 1.0}), lambda o: multi_moved(o)),
    "PyroMultiOptimizer": (
        lambda: optim.PyroMultiOptimizer(Adam({"lr": 0.1})),
        lambda o: multi_moved(o),
    ),
    "TorchMultiOptimizer": (
        lambda: optim.TorchMultiOptimizer(Adam, {"lr": 0.1}),
        lambda o: multi_moved(o),
    ),
    "MixedMultiOptimizer": (
        lambda: optim.MixedMultiOptimizer([(["a"], optim.Newton())]),
        lambda o: multi_moved(o),
    ),
    "FilteredStates": (lambda: particle_filter().run(Y, seed=1), lambda f: f.smooth(3, seed=1)),
    "SMCFilter": (lambda: smc_filter(), lambda f: (f.state["z"], f.log_evidence)),
    "InvolutiveMCMC": (lambda: involutive_mcmc(), lambda m: m.run(X, Y).posterior),
    "Involution": (
        lambda: infer.Involution.drift(0.2, of=["a"]),
        lambda m: m.involution({"a": tensor(1.0)}, {"step of a": tensor(0.5)}),
    ),
    "ParticleGibbs": (lambda: runs_of_line(), lambda g: g.run(X, Y).posterior),
    "RunDraws": (lambda: runs_of_line().run(X, Y), lambda d: (d.posterior, d.values[0][0])),
    "ABC": (lambda: infer.ABC(line, 5, seed=1), lambda a: a.run({"y": Y}, X).posterior),
    "ABCSMC": (lambda: infer.ABCSMC(line, 10, seed=1), lambda a: (a.num_particles, a.quantile)),
    "CSIS": (
        lambda: infer.CSIS(line, infer.AutoNormal(line), Adam({"lr": 0.1}), seed=1),
        lambda c: (c.num_samples, c.training_batch_size),
    ),
    "AutoProposal": (lambda: infer.AutoProposal(line), lambda g: (g.hidden, g.components)),
    "SampledDraws": (lambda: chains(True).draws, lambda d: d.posterior),
    "Draws": (
        lambda: diagnostics.Draws({"a": np.zeros((2, 5))}),
        lambda d: (d.posterior, d.num_chains),
    ),
    "Summary": (lambda: chains(True).summary(), str),
    "Finding": (lambda: diagnostics.Finding("rhat", "a", "b", "c", "d"), str),
    "Target": (lambda: target(False), density),
    "Target, compiled": (target, density),
    "Target, many": (target, lambda t: t.constrain_many(np.zeros((40, 2)))),
    "Target of a density": (
        lambda: target(of=lambda: Target.from_density(by_hand, dim=2)),
        density,
    ),
    "Target of a potential": (
        lambda: target(of=lambda: Target.from_potential(potential, {"x": [0.0, 0.0]})),
        density,
    ),
    "Target, summed": (
        lambda: target(of=lambda: Target.from_model(switched, tensor(2.0))),
        density,
    ),
    "SVI": (lambda: svi(0), steps),
    "SVI after steps": (lambda: svi(6), steps),
    "SVI, scheduled": (
        lambda: svi(
            5,
            optimizer=lambda options: optim.PyroLRScheduler(
                lr_scheduler.ExponentialLR, {"optimizer": Adam, "optim_args": options, "gamma": 0.9}
            ),
        ),
        steps,
    ),
    "SVIResult": (
        lambda: svi(2).run(3, X, Y, progress_bar=False),
        lambda r: (r.losses, r.draws(5, seed=0).posterior),
    ),
    "Converged": (
        lambda: infer.Converged(tolerance=0.1),
        lambda c: c.trend(np.arange(1000.0)),
    ),
    "Predictive": (
        lambda: Predictive(line, {"a": Y, "b": Y}, seed=0),
        lambda p: p(X),
    ),
    "compiled function of a module": (
        lambda: decorated,
        lambda f: [f(X) for _ in range(3)][-1],  # recorded, and then native
    ),
    "compiled function": (
        lambda: probtorch.compile(by_hand),
        lambda f: [f(X) for _ in range(3)][-1],
    ),
    "handler around a function of a module": (lambda: scaled_line, trace_of),
    "config_enumerate": (lambda: enumerating_guide, lambda g: g is enumerating_guide),
    "config_enumerate, inline": (
        lambda: infer.config_enumerate(switched),
        lambda g: probtorch.handlers.trace(g).get_trace(tensor(0.0))["z"].infer,
    ),
    "infer_discrete": (lambda: decoded, lambda g: g is decoded),
    "Trace": (
        lambda: probtorch.handlers.trace(probtorch.handlers.seed(line, 0)).get_trace(X, Y),
        lambda t: (list(t.nodes), t["y"].value, t.log_prob_sum(), t["a"].location),
    ),
    "Generator": (lambda: probtorch.Generator(3), lambda g: probtorch.randn(3, generator=g)),
    "ParamStore": (lambda: svi(1).params, lambda s: dict(s.named_parameters())),
    "DataLoader": (
        lambda: data.DataLoader(DATASET, 5, shuffle=True, generator=probtorch.Generator(1)),
        list,
    ),
    "DataLoader under way": (
        lambda: data.DataLoader(DATASET, 5, shuffle=True, generator=probtorch.Generator(1)),
        lambda d: [list(d), list(d)],
    ),
    "TensorDataset": (lambda: DATASET, lambda d: d[3]),
    "Subset": (lambda: data.Subset(DATASET, [1, 2]), lambda d: d[1]),
    "StackDataset": (lambda: data.StackDataset(DATASET, DATASET), lambda d: d[3]),
    "ArrayDataset": (lambda: data.ArrayDataset(X.numpy()), lambda d: d.take([0, 5, 2])),
    "BlockRandomSampler": (
        lambda: data.BlockRandomSampler(DATASET, 2, generator=probtorch.Generator(1)),
        list,
    ),
    "DistributedSampler": (lambda: data.DistributedSampler(DATASET, 3, 1), list),
    "ConcatDataset": (lambda: DATASET + DATASET, lambda d: d[20]),
    "ChainDataset": (lambda: data.ChainDataset([]), list),
    "SequentialSampler": (lambda: data.SequentialSampler(DATASET), list),
    "RandomSampler": (
        lambda: data.RandomSampler(DATASET, generator=probtorch.Generator(1)),
        list,
    ),
    "SubsetRandomSampler": (
        lambda: data.SubsetRandomSampler([3, 1, 2], generator=probtorch.Generator(1)),
        list,
    ),
    "WeightedRandomSampler": (
        lambda: data.WeightedRandomSampler([1.0, 2.0], 5, generator=probtorch.Generator(1)),
        list,
    ),
    "BatchSampler": (
        lambda: data.BatchSampler(data.SequentialSampler(DATASET), 5, False),
        list,
    ),
    "BucketBatchSampler": (
        lambda: data.BucketBatchSampler([3, 1, 2, 2], 2, generator=probtorch.Generator(1)),
        list,
    ),
    "PyroOptim": (lambda: Adam({"lr": 0.1}), lambda o: o.pt_optim_args),
    "PyroLRScheduler": (
        lambda: optim.PyroLRScheduler(
            lr_scheduler.StepLR, {"optimizer": Adam, "optim_args": {"lr": 0.1}, "step_size": 2}
        ),
        lambda o: o.pt_optim_args,
    ),
    "LBFGS": (lambda: optimizer(optim.LBFGS), moved),
    "Muon": (lambda: optimizer(optim.Muon, params=[tensor([[1.0, 2.0]]).requires_grad_()]), moved),
    "CosineAnnealingLR": (lambda: schedule(lr_scheduler.CosineAnnealingLR, 5), rates),
    "CosineAnnealingWarmRestarts": (
        lambda: schedule(lr_scheduler.CosineAnnealingWarmRestarts, 5),
        rates,
    ),
    "ChainedScheduler": (
        lambda: lr_scheduler.ChainedScheduler([schedule(lr_scheduler.ExponentialLR, 0.9)]),
        rates,
    ),
    "ConstantLR": (lambda: schedule(lr_scheduler.ConstantLR, 0.5, 2), rates),
    "CyclicLR": (lambda: schedule(lr_scheduler.CyclicLR, 0.1, 0.5, 2), rates),
    "MultiplicativeLR": (lambda: schedule(lr_scheduler.MultiplicativeLR, constant), rates),
    "PolynomialLR": (lambda: schedule(lr_scheduler.PolynomialLR, 4), rates),
    "ExponentialLR": (lambda: schedule(lr_scheduler.ExponentialLR, 0.9), rates),
    "LambdaLR": (lambda: schedule(lr_scheduler.LambdaLR, constant), rates),
    "LinearLR": (lambda: schedule(lr_scheduler.LinearLR), rates),
    "MultiStepLR": (lambda: schedule(lr_scheduler.MultiStepLR, [1, 3]), rates),
    "OneCycleLR": (lambda: schedule(lr_scheduler.OneCycleLR, 0.5, total_steps=9), rates),
    "ReduceLROnPlateau": (lambda: schedule(lr_scheduler.ReduceLROnPlateau, patience=1), rates),
    "StepLR": (lambda: schedule(lr_scheduler.StepLR, 2), rates),
    "Checkpoint": (
        lambda: infer.Checkpoint("unused", {"net": nn.Linear(2, 3)}, every=10),
        lambda c: c.every,
    ),
    "AutoCallable": (
        lambda: asked(infer.AutoCallable(line, drawn), X, Y),
        lambda g: g.sample_posterior(3, generator=probtorch.Generator(0)),
    ),
    "AutoBatchedMultivariateNormal": (
        lambda: asked(infer.AutoBatchedMultivariateNormal(shops), X, Y),
        answers_of_guide,
    ),
    "AutoBatchedLowRankMultivariateNormal": (
        lambda: asked(infer.AutoBatchedLowRankMultivariateNormal(shops), X, Y),
        answers_of_guide,
    ),
    "AutoSurrogateLikelihoodDAIS": (
        lambda: asked(infer.AutoSurrogateLikelihoodDAIS(line, weaker, K=2, prefix="dais"), X, Y),
        answers_of_guide,
    ),
    "AutoSemiDAIS": (
        lambda: asked(infer.AutoSemiDAIS(groups, K=2, prefix="semi"), X, Y),
        answers_of_guide,
    ),
    "AutoDiscreteParallel": (
        lambda: asked(infer.AutoDiscreteParallel(coins)),
        lambda g: g.sample_posterior(3, generator=probtorch.Generator(0)),
    ),
    "AutoGuideList": (guide_list, lambda g: len(list(g))),
    "LocScaleReparam": (lambda: effects.LocScaleReparam(0.5), lambda r: r.centered),
    "NeuTraReparam": (
        lambda: infer.NeuTraReparam(svi(4, infer.AutoMultivariateNormal).guide),
        lambda r: trace_of(r.reparam(line)),
    ),
    "StructuredReparam": (
        lambda: infer.StructuredReparam(svi(4, infer.AutoStructured).guide),
        lambda r: trace_of(r.reparam(line)),
    ),
    "FormsOfSites": (
        lambda: infer.choose_reparam(groups, X, Y),
        lambda f: (f.forms, f.shares, trace_of(handlers.reparam(groups, config=f))),
    ),
    "NetworkLaplace": (
        lambda: infer.NetworkLaplace(nn.Linear(1, 1), "regression").fit(X[:, None], Y[:, None]),
        lambda a: (a(probtorch.ones(2, 1)), a.sample(2), a.log_marginal_likelihood()),
    ),
    "SteinVI": (lambda: mixture_of_guides(2), lambda s: (s.step(X, Y), s.get_params())),
    "SteinVIResult": (
        lambda: mixture_of_guides(1).run(1, X, Y, progress_bar=False),
        lambda r: (r.losses, r.params),
    ),
    "SVGD": (lambda: particles(0), lambda s: (s.step(X, Y), s.get_named_particles())),
    "ASVGD": (
        lambda: infer.ASVGD(line, infer.RBFSteinKernel(), Adam({"lr": 0.1}), 4, seed=0),
        lambda s: (s.step(X, Y), s.get_named_particles()),
    ),
    "SVGD after steps": (lambda: particles(3), lambda s: (s.step(X, Y), s.get_named_particles())),
    "plate": (lambda: plate("n", 3), lambda p: (p.name, p.size)),
}
ROWS |= {name: ((lambda k=name: guide(getattr(infer, k))), answers_of_guide) for name in GUIDES}
ROWS |= {
    name: ((lambda k=name: getattr(infer, k)()), lambda o: o.num_particles) for name in OBJECTIVES
}
ROWS |= {name: ((lambda k=name: optimizer(getattr(optim, k))), moved) for name in OPTIMIZERS}
ROWS["AdagradRMSProp"] = (lambda: optimizer(optim.AdagradRMSProp, "eta"), moved)
# name: (how it is made, which also makes a result of its run)
APPROXIMATIONS = {
    "Pathfinder": ("PathfinderResult", lambda: infer.Pathfinder(line, 2, seed=0)),
    "LaplaceApproximation": ("LaplaceResult", lambda: infer.LaplaceApproximation(line, seed=0)),
    "DADVI": ("DADVIResult", lambda: infer.DADVI(line, 4, seed=0)),
    "NaturalGradientVI": (
        "NaturalGradientResult",
        lambda: infer.NaturalGradientVI(line, num_steps=5, seed=0),
    ),
}
ROWS |= {
    name: (make, lambda a: a.run(X, Y).sample(3, probtorch.Generator(0)))
    for name, (_, make) in APPROXIMATIONS.items()
}
ROWS |= {
    name: ((lambda make=make: make().run(X, Y)), lambda r: (r.log_prob(np.eye(2)), r.attrs))
    for name, make in APPROXIMATIONS.values()
}
ROWS |= {
    name: (make, lambda k: k.evaluate(np.eye(3)))
    for name, make in {
        "GraphicalKernel": infer.GraphicalKernel,
        "IMQKernel": lambda: infer.IMQKernel(const=2.0),
        "IMQSteinKernel": infer.IMQSteinKernel,
        "LinearKernel": infer.LinearKernel,
        "MixtureKernel": lambda: infer.MixtureKernel([1.0, 2.0], [infer.RBFKernel()] * 2),
        "RBFKernel": lambda: infer.RBFKernel("vector"),
        "RBFSteinKernel": lambda: infer.RBFSteinKernel(0.5),
        "RandomFeatureKernel": lambda: infer.RandomFeatureKernel(seed=1),
    }.items()
}
ROWS |= {
    name: (make, trace_of)
    for name, make in {
        "block": lambda: handlers.block(line, hide=["a"]),
        "condition": lambda: handlers.condition(line, {"a": 1.0}),
        "do": lambda: handlers.do(line, {"a": 1.0}),
        "lift": lambda: handlers.lift(line, {"other": dist.Normal(0.0, 1.0)}),
        "mask": lambda: handlers.mask(line, True),
        "equalize": lambda: probtorch.handlers.equalize(line, ["a", "b"]),
        "escape": lambda: probtorch.handlers.escape(line, by_name),
        "reparam": lambda: handlers.reparam(line, {"a": effects.LocScaleReparam(0.0)}),
        "replay": lambda: handlers.replay(line, trace=TRACE),
        "scale": lambda: handlers.scale(line, 2.0),
        "scope": lambda: handlers.scope(line, prefix="in"),
        "seed": lambda: handlers.seed(line, 3),
        "substitute": lambda: handlers.substitute(line, {"a": tensor(1.0)}),
        "trace": lambda: handlers.trace(line),
        "uncondition": lambda: handlers.uncondition(line),
    }.items()
}
ROWS["ManyFits"] = (
    lambda: infer.fit_many(line, [(X, Y), (X, -Y)], num_samples=20, seed=0, progress_bar=False),
    lambda found: (found.labels, found.diagnostics, dict(found[1].posterior)),
)
ROWS["BestOfStarts"] = (
    lambda: infer.best_of_starts(
        lambda g: SVI(line, AutoNormal(line), Adam({"lr": 0.05}), seed=g), 20, X, Y, seed=0
    ),
    lambda found: (found.number, found.final),
)
# Classes without a row: bases, what a row holds already, functions that look like classes.
NOT_HERE = {
    "Approximation", "SteinKernel",  # bases
    "AutoContinuous", "AutoGuide", "ELBO", "ElementwiseOptimizer", "Optimizer", "LRScheduler",
    "Dataset", "IterableDataset", "Sampler", "StoredRows",  # bases
    "ParquetDataset",  # of files, by pyarrow: tests/utils/test_stored_data.py pickles one
    "AutoMessenger", "EasyGuide", "MultiOptimizer",  # bases
    "Guide", "Objective",  # protocols
    "Estimate",  # a named tuple on the tape
    "WorkerInfo",  # belongs to a process
    "AutoNormalizingFlow",  # its flow is made by the user's function; AutoIAFNormal is one
    "SequentialLR",  # holds schedulers, which have rows
    "RunHandle", "BackgroundRun", "RunProgress", "ChainProgress",  # of a run under way, in threads
    "infer_config",  # config_enumerate is one
    "markov",  # a loop under way
}  # fmt: skip
WAYS = {
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "deepcopy": copy.deepcopy,
    "cloudpickle": lambda x: pickle.loads(pytest.importorskip("cloudpickle").dumps(x)),
}


def plain(value):
    """Tensors as arrays, all the way down."""
    if isinstance(value, probtorch.Tensor):
        return value.detach().numpy()
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ROWS)
def test_copy_answers_what_the_object_answers(name, way):
    make, answer = ROWS[name]
    original = make()
    made = WAYS[way](original)
    assert type(made) is type(original)
    expected = plain(answer(original))
    np.testing.assert_equal(plain(answer(made)), expected)


@pytest.mark.parametrize("name", sorted(ROWS.keys() - {"infer_discrete"}))  # a function
def test_object_prints_shortly_and_says_what_it_is(name):
    made = ROWS[name][0]()
    text = repr(made)
    assert " at 0x" not in text, text
    assert text.strip() and max(map(len, text.split("\n"))) < 200
    if not isinstance(made, (diagnostics.Summary, nn.Module)):
        assert re.search("[A-Za-z]", text) and len(text) < 500


def test_every_public_class_with_a_state_has_a_row():
    rooms = (infer, optim, lr_scheduler, handlers, data, diagnostics)
    classes = {
        name
        for room in rooms
        for name in room.__all__
        if isinstance(getattr(room, name), type)
        and not issubclass(getattr(room, name), (BaseException, Warning))
    }
    assert classes - set(ROWS) - NOT_HERE == set()
    assert NOT_HERE <= classes


def test_copies_share_no_memory():
    first = svi(3)
    second = copy.deepcopy(first)
    before = {k: v.detach().numpy().copy() for k, v in second.params.named_parameters()}
    for _ in range(3):
        first.step(X, Y)
    for name, value in second.params.named_parameters():
        np.testing.assert_array_equal(value.detach().numpy(), before[name])


def test_draws_of_copied_runs_know_their_model_again():
    mcmc = chains(True)
    for way in WAYS.values():
        assert way(mcmc).draws.predict(X, seed=0)["y"].shape == (2, 12, 12)
    # On their own they go without it where they are sent, and keep it where they are copied.
    assert copy.deepcopy(mcmc.draws).target is not None
    assert pickle.loads(pickle.dumps(mcmc.draws)).target is None


def test_optimisation_with_a_loader_goes_on_from_its_batch():
    loader = data.DataLoader(DATASET, 4, shuffle=True, generator=probtorch.Generator(1))
    made = SVI(rows, AutoNormal(rows), Adam({"lr": 0.05}), Trace_ELBO(), seed=0)
    for _ in range(4):
        made.step(loader)
    second_svi, second_loader = copy.deepcopy((made, loader))
    expected = [made.step(loader) for _ in range(4)]
    assert [second_svi.step(second_loader) for _ in range(4)] == expected


def rows(loader):
    a = sample("a", dist.Normal(0.0, 5.0))
    with plate("n", loader) as (x, y):
        sample("y", dist.Normal(a + x, 1.0), obs=y)


def test_names_of_handlers_made_by_decorating_are_found():
    assert pickle.loads(pickle.dumps(scaled_line)) is scaled_line
    assert pickle.loads(pickle.dumps(decorated)) is decorated
    # What only has the name of something else is sent with what is inside.
    other = handlers.scale(line, 3.0)
    assert pickle.loads(pickle.dumps(other)) is not line
