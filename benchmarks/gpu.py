"""Steps on a GPU: ours as one captured graph, JAX, and torch.compile with CUDA graphs.

    python -m benchmarks.gpu [--quick]

Two workloads: a training step of a variational autoencoder (forward, backward, Adam, random draws),
and a log density with its gradient for many chains at once. Everything is written once per library,
starts from the same numbers, and is checked before it is timed. Where there is no GPU, or a library
cannot use it, that is said and nothing is measured.

This is no suite of `python -m benchmarks`: that one pins everybody to one core of the processor.
"""

import argparse
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.report import duration, table
from benchmarks.timing import race

__all__ = ["DENSITY", "VAE", "DensitySize", "VAESize", "ours_density", "ours_vae"]


@dataclass(frozen=True)
class VAESize:
    """Sizes of the autoencoder: pixels, hidden units, latent dims, images per step."""

    pixels: int = 784
    hidden: int = 400
    latent: int = 20
    batch: int = 256


@dataclass(frozen=True)
class DensitySize:
    """Sizes of the logistic regression: chains, data points, coefficients."""

    chains: int = 1024
    points: int = 2000
    dim: int = 50


VAE, DENSITY = VAESize(), DensitySize()
RATE, BETA1, BETA2, EPS = 1e-3, 0.9, 0.999, 1e-8
# Steps per timed call, so that the wait at its end does not count.
STEPS = 20


def vae_start(size: VAESize) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return initial weights and one batch of images, float32."""
    rng = np.random.default_rng(0)
    shapes = {
        "enc": (size.pixels, size.hidden),
        "mean": (size.hidden, size.latent),
        "spread": (size.hidden, size.latent),
        "dec": (size.latent, size.hidden),
        "out": (size.hidden, size.pixels),
    }
    weights = {}
    for name, (n, m) in shapes.items():
        weights[name] = (rng.standard_normal((n, m)) / np.sqrt(n)).astype(np.float32)
        weights[name + "_bias"] = np.zeros(m, np.float32)
    images = (rng.uniform(size=(size.batch, size.pixels)) < 0.3).astype(np.float32)
    return weights, images


def negative_elbo(lib, w, x, noise):
    """Minus the evidence bound per image, in a vocabulary that the three libraries share.

    `lib` has `tanh`, `exp` and `softplus`.
    """
    hidden = lib.tanh(x @ w["enc"] + w["enc_bias"])
    mean = hidden @ w["mean"] + w["mean_bias"]
    log_scale = hidden @ w["spread"] + w["spread_bias"]
    z = mean + lib.exp(log_scale) * noise
    logits = lib.tanh(z @ w["dec"] + w["dec_bias"]) @ w["out"] + w["out_bias"]
    reconstruction = (lib.softplus(logits) - x * logits).sum()
    prior = (0.5 * (mean * mean + lib.exp(2.0 * log_scale) - 1.0) - log_scale).sum()
    return (reconstruction + prior) / x.shape[0]


def density_start(size: DensitySize) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return predictors, outcomes and one point per chain, float32."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((size.points, size.dim)).astype(np.float32)
    y = (rng.uniform(size=size.points) < 0.5).astype(np.float32)
    q = (0.1 * rng.standard_normal((size.chains, size.dim))).astype(np.float32)
    return x, y, q


def log_densities(lib, x, y, q):
    """Log density of a logistic regression for each chain."""
    z = q @ x.T
    return (y * z - lib.softplus(z)).sum(1) - 0.5 * (q * q).sum(1)


# --------------------------------------------------------------------------------------------- ours


def ours_vae(size: VAESize, device: str) -> tuple[Callable, Callable]:
    """Return ``(step, wait)``: a compiled training step, and what waits and returns its loss."""
    import probtorch
    from probtorch import autograd, nn

    class Lib:
        tanh, exp = staticmethod(probtorch.tanh), staticmethod(probtorch.exp)
        softplus = staticmethod(nn.functional.softplus)

    start, images = vae_start(size)
    weights = {k: probtorch.tensor(v).to(device) for k, v in start.items()}
    first = {k: probtorch.tensor(np.zeros_like(v)).to(device) for k, v in start.items()}
    second = {k: probtorch.tensor(np.zeros_like(v)).to(device) for k, v in start.items()}
    powers = probtorch.tensor(np.ones(2, np.float32)).to(device)
    betas = probtorch.tensor(np.array([BETA1, BETA2], np.float32)).to(device)
    x = probtorch.tensor(images).to(device)

    @probtorch.compile
    def step(x):
        leaves = {k: w.detach().requires_grad_() for k, w in weights.items()}
        noise = probtorch.randn(size.batch, size.latent, device=device)
        loss = negative_elbo(Lib, leaves, x, noise)
        grads = autograd.grad(loss, list(leaves.values()))
        powers.mul_(betas)
        for (k, w), g in zip(weights.items(), grads, strict=True):
            first[k].mul_(BETA1).add_(g * (1.0 - BETA1))
            second[k].mul_(BETA2).add_(g * g * (1.0 - BETA2))
            scale = (second[k] / (1.0 - powers[1])).sqrt() + EPS
            w.sub_(first[k] / (1.0 - powers[0]) / scale * RATE)
        return loss.detach()

    return lambda: step(x), lambda loss: float(loss)


def ours_density(size: DensitySize, device: str) -> tuple[Callable, Callable]:
    """Return ``(evaluate, wait)``: values and gradients of all chains."""
    import probtorch
    from probtorch import autograd, nn

    class Lib:
        softplus = staticmethod(nn.functional.softplus)

    x, y, q = (probtorch.tensor(a).to(device) for a in density_start(size))

    @probtorch.compile
    def evaluate(q):
        leaf = q.detach().requires_grad_()
        values = log_densities(Lib, x, y, leaf)
        (g,) = autograd.grad(values.sum(), leaf)
        return values.detach(), g

    return lambda: evaluate(q), lambda out: [t.cpu().numpy() for t in out]


# -------------------------------------------------------------------------------------------- peers


def jax_vae(size: VAESize) -> tuple[Callable, Callable]:
    """As `ours_vae`."""
    import jax
    import jax.numpy as jnp

    class Lib:
        tanh, exp, softplus = jnp.tanh, jnp.exp, jax.nn.softplus

    weights, images = jax.tree.map(jnp.asarray, vae_start(size))
    zeros = jax.tree.map(jnp.zeros_like, weights)
    state = [weights, zeros, zeros, jnp.ones(2), jax.random.key(0)]

    @jax.jit
    def step(weights, first, second, powers, key, x):
        key, sub = jax.random.split(key)
        noise = jax.random.normal(sub, (size.batch, size.latent))
        loss, g = jax.value_and_grad(lambda w: negative_elbo(Lib, w, x, noise))(weights)
        powers = powers * jnp.array([BETA1, BETA2])
        first = jax.tree.map(lambda m, g: BETA1 * m + (1 - BETA1) * g, first, g)
        second = jax.tree.map(lambda v, g: BETA2 * v + (1 - BETA2) * g * g, second, g)
        new = jax.tree.map(
            lambda w, m, v: w - RATE * m / (1 - powers[0]) / (jnp.sqrt(v / (1 - powers[1])) + EPS),
            weights,
            first,
            second,
        )
        return loss, (new, first, second, powers, key)

    def run():
        loss, state[:] = step(*state, images)
        return loss

    return run, float


def jax_density(size: DensitySize) -> tuple[Callable, Callable]:
    """As `ours_density`."""
    import jax
    import jax.numpy as jnp

    class Lib:
        softplus = jax.nn.softplus

    x, y, q = map(jnp.asarray, density_start(size))

    @jax.jit
    def evaluate(q):
        g, values = jax.grad(
            lambda q: (lambda v: (v.sum(), v))(log_densities(Lib, x, y, q)), has_aux=True
        )(q)
        return values, g

    return lambda: evaluate(q), lambda out: [np.asarray(a) for a in out]


def torch_vae(size: VAESize) -> tuple[Callable, Callable]:
    """As `ours_vae`; forward and backward as CUDA graphs, Adam fused."""
    import torch

    class Lib:
        tanh, exp, softplus = torch.tanh, torch.exp, torch.nn.functional.softplus

    start, images = vae_start(size)
    weights = {k: torch.tensor(v, device="cuda", requires_grad=True) for k, v in start.items()}
    x = torch.tensor(images, device="cuda")
    adam = torch.optim.Adam(weights.values(), RATE, (BETA1, BETA2), EPS, fused=True)

    @torch.compile(mode="reduce-overhead")
    def objective(x):
        noise = torch.randn(size.batch, size.latent, device="cuda")
        return negative_elbo(Lib, weights, x, noise)

    def step():
        adam.zero_grad()
        loss = objective(x)
        loss.backward()
        adam.step()
        return loss.detach()

    return step, float


def torch_density(size: DensitySize) -> tuple[Callable, Callable]:
    """As `ours_density`."""
    import torch

    class Lib:
        softplus = torch.nn.functional.softplus

    x, y, q = (torch.tensor(a, device="cuda") for a in density_start(size))
    leaf = q.requires_grad_()

    @torch.compile(mode="reduce-overhead")
    def values(q):
        return log_densities(Lib, x, y, q)

    def evaluate():
        found = values(leaf)
        (g,) = torch.autograd.grad(found.sum(), leaf)
        return found.detach(), g

    return evaluate, lambda out: [t.cpu().numpy() for t in out]


# ---------------------------------------------------------------------------------------- measuring


def unusable(library: str) -> str | None:
    """Return why a library cannot be measured on a GPU here, or None."""
    if importlib.util.find_spec(library) is None:
        return f"{library} is not installed"
    if library == "probtorch":
        from probtorch.backends.registry import unavailable_reason

        return unavailable_reason("cuda")
    if library == "torch":
        import torch

        return None if torch.cuda.is_available() else "torch finds no GPU"
    import jax

    return None if jax.default_backend() == "gpu" else "JAX finds no GPU"


def several(step: Callable, wait: Callable) -> Callable:
    """Return a function that makes `STEPS` steps and waits for the last."""

    def run():
        for _ in range(STEPS):
            out = step()
        wait(out)

    return run


def disagreement(results: dict[str, object], rtol: float) -> str | None:
    """Return a sentence on the first library whose result is not that of the first one."""
    (name, expected), *others = results.items()
    for other, got in others:
        if not all(map(lambda a, b: np.allclose(a, b, rtol, rtol), expected, got)):
            return f"{other} disagrees with {name}"
    return None


def measure(name: str, contestants: dict[str, tuple[Callable, Callable]], rtol: float) -> str:
    """Check the contestants against each other and return a table of their times."""
    results = {}
    for library, (step, wait) in contestants.items():
        for _ in range(100):
            out = step()
        results[library] = np.atleast_1d(wait(out)) if name == "VAE" else wait(out)
    wrong = disagreement(results, rtol)
    if wrong:
        return f"{name}: not measured, {wrong}"
    times = race({library: several(*pair) for library, pair in contestants.items()})
    ours = times["probtorch"].best
    rows = [
        [library, duration(t.best / STEPS), f"{ours / t.best:.2f}", f"{t.spread:.2f}"]
        for library, t in times.items()
    ]
    return f"{name}\n" + table(["library", "per step", "ours / theirs", "spread"], rows)


def main() -> int:
    """Measure what can be measured; the exit status is 1 where our side cannot."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    options = parser.parse_args()
    usable = []
    for library in ("probtorch", "jax", "torch"):
        reason = unusable(library)
        if reason is None:
            usable.append(library)
        else:
            print(f"left out: {library} ({reason})")
    if "probtorch" not in usable:
        print("nothing to measure without a GPU that probtorch can use")
        return 1
    vae = VAESize(64, 32, 4, 16) if options.quick else VAE
    density = DensitySize(16, 100, 5) if options.quick else DENSITY
    vaes = {
        "probtorch": lambda: ours_vae(vae, "cuda"),
        "jax": lambda: jax_vae(vae),
        "torch": lambda: torch_vae(vae),
    }
    densities = {
        "probtorch": lambda: ours_density(density, "cuda"),
        "jax": lambda: jax_density(density),
        "torch": lambda: torch_density(density),
    }
    # Losses are of different random draws.
    print(measure("VAE", {k: vaes[k]() for k in usable}, 0.02))
    print(measure("density", {k: densities[k]() for k in usable}, 1e-3))
    return 0


if __name__ == "__main__":
    sys.exit(main())
