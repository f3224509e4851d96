"""One adapter file per system.

An adapter has `DISTRIBUTIONS` (what must be installed; the first is the system itself) and any of

- `tensor_library()`: a module with PyTorch's names, for the eager suite;
- `log_density_of(name, case)`: for the distributions suite, a function without arguments that
  returns the sum of the log densities of a `Case` and its gradients, in the order of the
  parameters (ours has ``compiled=``, and `sampler_of(name, arguments, count)`);
- `density(problem)`: for the density suite, a function from a float64 vector to (log density,
  gradient);
- `autoencoder(batches)`: for the svi suite, a function that takes one training step on the next of
  these arrays and returns the loss (torch's has `compiled_autoencoder` too);
- `sampler(problem)`: for the nuts suite, a function ``run(seed, chains, warmup, draws)`` that
  returns a dict of arrays (chain, draw, ...) and has an attribute `print_summary`, a function that
  prints the system's own summary of the last run;
- `density_sampler(density, **settings)`: for the warm-up suite, a function ``run(seed, chains,
  warmup, draws)`` that samples a `CountedDensity`, with an attribute ``read``: of what `run`
  returned, a dict of "positions" (chain, draw, dim), "steps" and "diverging" (chain, draw) after
  warm-up, "warmup", the number of warm-up draws, and perhaps "share", the part of the time of
  `run` that counts;
- `kernel_sampler(kernel, density, start, settings)`: for the suite of kernels of peers, a function
  ``run(draws, seed)`` that returns positions (chain, draw, dim) and how many gradients they took,
  or None if it has no such kernel.
"""

import importlib
from types import ModuleType

from benchmarks.machine import version

__all__ = ["OURS", "PEERS", "adapter", "missing"]

OURS = "probtorch"
PEERS = ("torch", "jax", "numpyro", "blackjax", "nutpie", "pyro")


def adapter(name: str) -> ModuleType:
    """Import the adapter of the system `name`; the system itself is imported when it is used."""
    return importlib.import_module(f"benchmarks.peers.{name}_")


def missing(name: str) -> str | None:
    """Return the first distribution `name` needs that is not installed, or None."""
    absent = [d for d in adapter(name).DISTRIBUTIONS if version(d) is None]
    return absent[0] if absent else None
