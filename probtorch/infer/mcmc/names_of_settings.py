"""Settings of kernels by names that other libraries, or other kernels, have for them."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator, Mapping

__all__ = ["MEANT", "settings_of_others"]

# Settings of the driver that are given to the kernel, and where they go.
_ELSEWHERE = (
    "draws num_samples tune num_warmup warmup_steps chains num_chains seed rng_key random_seed "
    "progress_bar"
)
_DRIVER = "it belongs to the driver: MCMC(NUTS(model), num_samples=1000, num_chains=4, seed=0)"
# What other libraries call the settings, or where they belong.
MEANT = {
    "max_treedepth": "max_tree_depth",
    "max_depth": "max_tree_depth",
    "target_accept": "target_accept_prob",
    "adapt_delta": "target_accept_prob",
    "delta": "target_accept_prob",
    "init": "init_strategy",
    "mass_matrix": "inverse_mass_matrix",
    "mass_matrix_type": "metric",
    "dense_mass": "metric",
    "full_mass": "metric",
    "path_length": "trajectory_length",
    **dict.fromkeys(_ELSEWHERE.split(), _DRIVER),
}

# Where kernels are, beneath this package.
_ROOMS = ("kernels", "gibbs", "subsampling")


def settings_of_others(kind: type, base: type, kwargs: Mapping[str, object]) -> str | None:
    """What to do about a setting that another kernel has and this one has not, or None.

    `base` is the class that all kernels come from.
    """
    known = inspect.signature(kind).parameters
    name = next((name for name in kwargs if name not in known), None)
    if name is None:
        return None
    meant = MEANT.get(name, name)
    having = {k.__name__ for k in _kernels(base) if meant in inspect.signature(k).parameters}
    if meant in known or not having:
        return None
    # Of those that have it, the ones that people know.
    known_first = sorted(having, key=lambda k: (k not in ("NUTS", "HMC"), k))
    for inside in ("kernel", "inner_kernel"):
        if inside in known:
            keyword = "" if inside == next(iter(known)) else f"{inside}="
            return (
                f"give it to the kernel inside: "
                f"{kind.__name__}({keyword}{known_first[0]}(model, {name}=...))"
            )
    more = f" and {len(having) - 4} more" if len(having) > 4 else ""
    spelt = "" if meant == name else f", as {meant}"
    return (
        f"leave it out: a setting of {', '.join(known_first[:4])}{more}{spelt}, "
        f"which {kind.__name__} has not"
    )


def _kernels(base: type) -> Iterator[type]:
    """All kernels of the library that can be made, those included that nobody has imported yet."""
    for rooms in _ROOMS:
        home = importlib.import_module(f"{__package__}.{rooms}")
        for room in pkgutil.iter_modules(home.__path__, f"{home.__name__}."):
            importlib.import_module(room.name)
    yield from _made_of(base)


def _made_of(kind: type) -> Iterator[type]:
    for k in kind.__subclasses__():
        if not inspect.isabstract(k) and k.__module__.startswith("probtorch."):
            yield k
        yield from _made_of(k)
