"""Random models against themselves in NumPy: ``python -m tests.infer.random_models``.

`check(seed)` writes a model (model_texts.py), and holds probtorch to what its text means by
numpy_models.py and SciPy: log joint densities, with finite sites summed out assignment by
assignment; log determinants of the map from unconstrained space by differences; gradients by
differences; log likelihoods; values of deterministic sites; handlers around the model; losses of a
compiled SVI; draws of NUTS and predictions from them. It returns what differs.
``--seed N --minutes M`` goes on with new ones.
"""

import argparse
import os
import random
import tempfile
import time
import warnings

import numpy as np

import probtorch
import probtorch.distributions as dist
from probtorch import float64, tensor
from probtorch.distributions import constraints, transforms
from probtorch.effects import (
    LocScaleReparam,
    clear_param_store,
    deterministic,
    factor,
    get_param_store,
    handlers,
    log_density,
    markov,
    param,
    plate,
    reparam,
    sample,
)
from probtorch.effects.reparams import TransformReparam
from probtorch.errors import InferenceError, ModelError
from probtorch.infer import MCMC, NUTS, SVI, AutoDelta, Predictive, Target, Trace_ELBO
from probtorch.ops.indexing import Vindex
from probtorch.optim import Adam
from tests.infer.model_texts import model_text
from tests.infer.numpy_models import LAWS, NumpyModel

__all__ = ["check", "main"]

# Values to rounding; determinants and slopes by differences of fourth order.
CLOSE = {"rtol": 1e-9, "atol": 1e-9}
BY_DIFFERENCES = {"rtol": 1e-6, "atol": 1e-6}
# Where float32, the default dtype, is that of parameters and constants.
SINGLE = {"rtol": 1e-4, "atol": 1e-3}
# The second step is for points close to a kink or a jump, which the first may meet.
STEPS = (1e-3, 1e-5)
POINTS = 2


def names():
    """What the text of a model means with probtorch."""
    found = {k: getattr(dist, k, None) or getattr(transforms, k) for k in LAWS}
    found |= {
        k: getattr(probtorch, k)
        for k in ("exp", "log", "tanh", "sin", "log1p", "sigmoid", "where", "maximum", "sqrt")
    }
    found |= {"softplus": probtorch.nn.functional.softplus, "softmax": probtorch.softmax}
    found |= {"const": lambda x: tensor(x, dtype=float64), "truth": lambda x: tensor(x)}
    found |= {"pick": lambda x, i: Vindex(x)[..., i.long()], "markov": markov}
    found |= {"take": lambda x, i: x[i], "index": tensor}
    found |= {"pick_row": lambda x, i: Vindex(x)[..., i.long(), :]}
    found |= {k: getattr(handlers, k) for k in ("condition", "do", "scope", "mask", "scale")}
    found |= {"block": handlers.block, "reparam": reparam, "positive": constraints.positive}
    found |= {"LocScaleReparam": LocScaleReparam, "TransformReparam": TransformReparam}
    return found | {
        "sample": sample, "factor": factor, "param": param, "deterministic": deterministic,
        "plate": plate,
    }  # fmt: skip


class Different(AssertionError):
    """A law that does not hold."""


def same(law, found, wanted, rtol, atol):
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    shape = np.broadcast_shapes(found.shape, wanted.shape)
    if found.size != wanted.size or not np.allclose(
        np.broadcast_to(found, shape), np.broadcast_to(wanted, shape), rtol, atol, equal_nan=True
    ):
        raise Different(f"{law}: {found} instead of {wanted}")


def difference(f, q, direction, step):
    """The slope of `f` at `q` along a direction, to fourth order."""
    one, two = (
        (f(q + n * step * direction) - f(q - n * step * direction)) / (2 * n * step) for n in (1, 2)
    )
    return (4.0 * one - two) / 3.0


def by_differences(law, value, wanted):
    """Hold a value to what `wanted` makes of a step, the first or else the second."""
    try:
        same(law, value, wanted(STEPS[0]), **BY_DIFFERENCES)
    except Different:
        same(law, value, wanted(STEPS[1]), **BY_DIFFERENCES)


def free(kind, x):
    """The numbers of a value that are free to move, in one row for each point."""
    if kind == "simplex":
        x = x[..., :-1]
    elif kind == "correlation":
        x = x[..., 1, 0]
    return x.reshape(len(x), -1)


class Trial:
    """One model, in both languages."""

    def __init__(self, seed):
        self.written = model_text(seed)
        self.rng = random.Random(seed)
        self.points = np.random.default_rng(seed)
        scope = names()
        exec(compile(self.written.text, f"random_model_{seed}.py", "exec"), scope)  # noqa: S102 - ours
        self.model = scope["model"]
        self.data = {k: tensor(v, dtype=float64) for k, v in self.written.data.items()}
        self.kinds = self.written.kinds

    def values(self, target, q):
        found = target.constrain(tensor(q, dtype=float64))
        return {k: v.detach().numpy() for k, v in found.items()}

    def slots(self, target, twin, points):
        """All free numbers of the sites of the twin, a row for each point."""
        found = target.constrain_many(points)
        sites = [n for n in twin.latent if n not in twin.finite]
        return np.concatenate([free(self.kind(n), found[n]) for n in sites], -1)

    def log_det(self, target, twin, q, step):
        """Log determinant of the map to the numbers that are free to move."""
        columns = difference(lambda p: self.slots(target, twin, p), q, np.eye(target.dim), step)
        return np.linalg.slogdet(columns)[1]

    def kind(self, name):
        return self.kinds.get(name.rpartition("/")[2])

    def hold(self, around=(), model=None, native=True):
        """Check a density, where the model is under handlers (as the twin knows them)."""
        twin = NumpyModel(self.written.text, around)
        target = Target.from_model(self.model if model is None else model, self.data)
        points = self.points.uniform(-1.2, 1.2, (POINTS, target.dim))
        joints, many = target.log_joint(points), target.constrain_many(points)
        for i, (q, joint) in enumerate(zip(points, joints, strict=True)):
            values = self.values(target, q)
            for name, x in values.items():
                same(f"constrain_many, {name}", many[name][i], x, **CLOSE)
            wanted = twin.log_joint(self.written.data, values)
            assert all(n in values for n in twin.latent if n not in twin.finite)
            eager = target.logdensity(tensor(q, dtype=float64)).item()
            by_differences(
                "density", eager, lambda h, q=q, w=wanted: w + self.log_det(target, twin, q, h)
            )
            if not self.written.reparametrised:
                same("log_joint", joint, wanted, **CLOSE)
            self.hold_values(target, twin, values)
        if native:
            self.hold_compiled(target, points)
        if not twin.finite:
            self.hold_likelihood(target, twin, points)
        return target, twin, points

    def hold_values(self, target, twin, values):
        for name in target.deterministic:
            if name in twin.computed:
                same(f"deterministic {name}", values[name], twin.computed[name], **CLOSE)

    def hold_compiled(self, target, points):
        """The native density, twice at each point, and that of many points."""
        eager = [target.logdensity(tensor(q, dtype=float64)).item() for q in points]
        slopes = []
        for q, value in zip(points, eager, strict=True):
            found, slope = target.value_and_grad(q)
            same("compiled density", found, value, **CLOSE)
            direction = self.points.normal(size=target.dim)
            size = max(1.0, abs(slope) @ abs(direction))

            def wanted(step, q=q, direction=direction, size=size):
                f = lambda p: target.logdensity(tensor(p, dtype=float64)).item()
                return difference(f, q, direction, step) / size

            by_differences("slope", slope @ direction / size, wanted)
            slopes.append(slope)
        for _ in range(2):
            many, slope = target.value_and_grad_many(points)
            same("density of many points", many, eager, **CLOSE)
            same("slopes of many points", slope, slopes, **CLOSE)
        back = target.unconstrain(self.constrained(target, points[0]))
        same("unconstrain", back, points[0], 1e-6, 1e-6)

    def constrained(self, target, q):
        found = self.values(target, q)
        return {n: found[n] for n in target.slots}

    def hold_likelihood(self, target, twin, points):
        found = target.log_likelihood(points)
        for i, q in enumerate(points):
            twin.run(self.written.data, self.values(target, q))
            for name, rows in found.items():
                same(f"log likelihood of {name}", rows[i], twin.rows[name], **CLOSE)

    # ----------------------------------------------------------------------------------------- laws

    def hold_handlers(self, target, twin, q):
        """One handler of each kind around the model, against the same in the twin."""
        values = self.values(target, q)
        free_ones = [n for n in twin.latent if n not in twin.finite and n in target.slots]
        if len(free_ones) < 2:
            return
        name = self.rng.choice(free_ones)
        given = {name: values[name] if self.rng.random() < 0.5 else values[name] * 1.0}
        kind = self.rng.choice(["condition", "do", "scope", "scale", "mask", "block"])
        if (twin.finite and kind in ("scale", "block")) or (
            self.written.reparametrised and kind == "scale"
        ):
            kind = "condition"
        argument = {
            "condition": given, "do": given, "scope": "outer", "scale": 0.75, "mask": True,
            "block": list(twin.rows)[:1],
        }[kind]  # fmt: skip
        key = {"condition": "data", "do": "data", "scope": "prefix", "block": "hide"}.get(
            kind, kind
        )
        around = getattr(handlers, kind)(self.model, **{key: argument})
        if twin.params and self.rng.random() < 0.5:
            kind, argument = "lift", {twin.params[0]: ("HalfNormal", 1.5)}
            around = handlers.lift(self.model, prior={twin.params[0]: dist.HalfNormal(1.5)})
        try:
            self.hold([(kind, argument)], around, native=self.rng.random() < 0.3)
        except Different as error:
            raise Different(f"{kind} {argument}: {error}") from error

    def hold_log_density(self, target, twin, q):
        """`log_density` at values, and the sites of its trace one by one."""
        values = self.values(target, q)
        wanted = twin.run(self.written.data, values)
        given = {n: tensor(values[n], dtype=float64) for n in target.slots}
        total, trace = log_density(self.model, (self.data,), params=given)
        if not self.written.reparametrised:
            same("log_density", total.item(), wanted, **SINGLE)
        for name, term in twin.terms.items():
            if (
                name in trace
                and trace[name].kind in ("sample", "factor")
                and (not self.written.reparametrised)
            ):
                same(f"term of {name}", trace[name].log_prob_sum.item(), term, **SINGLE)

    def hold_draws(self, target, twin):
        """What a short run of NUTS and predictions say of its draws."""
        kernel = NUTS(self.model)
        mcmc = MCMC(kernel, num_samples=4, warmup_steps=4, num_chains=1, seed=1, progress_bar=False)
        draws = mcmc.run(self.data)
        samples = {n: draws.posterior[n][0] for n in target.slots}
        predicted = {}
        if target.deterministic:  # else there is nothing to predict
            predicted = Predictive(self.model, posterior_samples=samples)(self.data)
        for i in range(4):
            values = {n: x[0, i] for n, x in draws.posterior.items()}
            twin.run(self.written.data, values)
            q = target.unconstrain({n: values[n] for n in target.slots})
            lp = target.logdensity(tensor(q, dtype=float64)).item()
            same("lp of a draw", draws.sample_stats["lp"][0, i], lp, 1e-6, 1e-6)
            for name in target.deterministic:
                if name in twin.computed:
                    wanted = twin.computed[name]
                    same(f"{name} of a draw", values[name], wanted, **CLOSE)
                    same(f"{name} predicted", predicted[name][i].numpy(), wanted, **SINGLE)

    def hold_svi(self, target, twin):
        """Losses of a point estimate are log joint densities where it stands."""
        clear_param_store()
        probtorch.manual_seed(0)
        guide = AutoDelta(self.model)
        svi = SVI(self.model, guide, Adam({"lr": 0.02}), Trace_ELBO())
        guide(self.data)
        for turn in range(5):
            points = guide.median(self.data)
            points |= {n: get_param_store()[n] for n in twin.params if turn}
            values = {k: v.detach().numpy().copy() for k, v in points.items()}
            wanted = -twin.run(self.written.data, values)
            loss = float(svi.step(self.data))
            same(f"loss of step {turn}", loss, wanted, **SINGLE)
        clear_param_store()


def check(seed):
    """Return None, or what differs, with the text of the model; or "refused" and why."""
    trial = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            clear_param_store()
            trial = Trial(seed)
            target, twin, points = trial.hold()
            trial.hold_handlers(target, twin, points[0])
            if not twin.finite:
                trial.hold_log_density(target, twin, points[1])
                if not trial.written.reparametrised and seed % 3 == 0:
                    trial.hold_svi(target, twin)
                elif seed % 5 == 0:
                    trial.hold_draws(target, twin)
    except (InferenceError, ModelError) as error:
        return f"refused: {error}"
    except Exception as error:  # whatever a model raises is reported with the model
        text = "" if trial is None else trial.written.text
        return f"model {seed}: {type(error).__name__}: {error}\n{text}"
    return None


def main(argv=None):
    """Check new models until time is up; returns how many were wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1_000_000)
    parser.add_argument("--minutes", type=float, default=10.0)
    options = parser.parse_args(argv)
    end = time.monotonic() + 60.0 * options.minutes
    seed, wrong, refused = options.seed, 0, 0
    with tempfile.TemporaryDirectory(prefix="probtorch-models-") as folder:
        # The user's own cache would grow by a file per model.
        os.environ["PROBTORCH_CACHE_DIR"] = folder
        while time.monotonic() < end:
            found = check(seed)
            seed += 1
            if found is not None and found.startswith("refused"):
                refused += 1
            elif found is not None:
                wrong += 1
                print(found, flush=True)
            if (seed - options.seed) % 100 == 0:
                print(f"{seed - options.seed} models, {refused} refused, {wrong} wrong", flush=True)
    print(f"{seed - options.seed} models, {refused} refused, {wrong} wrong", flush=True)
    return wrong


if __name__ == "__main__":
    raise SystemExit(bool(main()))
