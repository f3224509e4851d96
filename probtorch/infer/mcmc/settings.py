"""Settings of `MCMC`, checked: one of two names, whole numbers, what other libraries call them.

`RunSettings` is what one run is asked for: the settings as they stood when it began.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, SupportsIndex, TypeVar

import numpy as np

from probtorch.backends.registry import parse_device, to_device, usable
from probtorch.core.arguments import choice_of, count_of
from probtorch.core.rng import Generator
from probtorch.errors import ArgumentError
from probtorch.infer.mcmc.kernel import Kernel
from probtorch.infer.remote.pools import check_executor

if TYPE_CHECKING:
    from probtorch.infer.mcmc.chunk import Chain
    from probtorch.infer.mcmc.starts import Params
    from probtorch.infer.mcmc.store import StoreEnd
    from probtorch.infer.remote.pools import ExecutorLike
    from probtorch.infer.results import SampledDraws
    from probtorch.tensor import Tensor

__all__ = [
    "MEANT",
    "RunSettings",
    "check_settings",
    "check_shared_run",
    "count",
    "one_of",
    "the_device",
    "the_kernel",
]

T = TypeVar("T")

CHAIN_METHODS = ("parallel", "sequential", "vectorized")

# Settings of the kernel that are given to the driver, and where they go.
_ELSEWHERE = (
    "target_accept target_accept_prob adapt_delta max_treedepth max_tree_depth step_size "
    "full_mass dense_mass init_strategy"
)
_KERNEL = "it belongs to the kernel: NUTS(model, target_accept_prob=0.9, max_tree_depth=10)"
# What other libraries call the settings, or where they belong.
MEANT = {
    "draws": "num_samples",
    "n_samples": "num_samples",
    "iter": "num_samples",
    "tune": "warmup_steps",
    "warmup": "warmup_steps",
    "chains": "num_chains",
    "cores": "num_threads",
    "thin": "thinning",
    "random_seed": "seed",
    "rng_key": "seed",
    "progressbar": "progress_bar",
    "model": "wrap the model in a kernel: MCMC(NUTS(model), num_samples=1000)",
    **dict.fromkeys(_ELSEWHERE.split(), _KERNEL),
}


def the_kernel(kernel: Kernel | None, sampler: Kernel | None) -> Kernel:
    """Return the kernel that was given, by one of its two names."""
    given = one_of("kernel", kernel, "sampler", sampler)
    if not isinstance(given, Kernel):
        raise ArgumentError(
            "MCMC(kernel)",
            expected="a kernel such as NUTS(model)",
            got=f"{type(given).__name__}",
            fix="wrap the model: MCMC(NUTS(model), num_samples=1000)",
        )
    return given


def check_settings(
    chain_method: str,
    params: object,
    transforms: object,
    postprocess_fn: object,
    executor: object,
    hook_fn: object,
) -> None:
    """Refuse settings of `MCMC` that are no method, no point, no executor, or not supported."""
    for name, value in (("transforms", transforms), ("postprocess_fn", postprocess_fn)):
        if value is not None:
            raise ArgumentError(
                f"MCMC({name}=...)",
                expected="None",
                got=type(value).__name__,
                fix="draws of a model come back in its own space; those of a potential_fn do by "
                "infer.util.transform_fn(transforms, mcmc.get_samples(), invert=True)",
            )
    choice_of("MCMC", "chain_method", chain_method, CHAIN_METHODS)
    if isinstance(params, (int, float, str)) and not isinstance(params, bool):
        raise ArgumentError(
            "MCMC(initial_params)",
            expected="a dict from site names to unconstrained values, or a vector of them",
            got=repr(params),
            fix=f"name what it is: num_chains={params}, thinning={params}",
        )
    if executor is not None:
        check_executor(executor, "MCMC")
        if hook_fn is not None:
            raise ArgumentError(
                "MCMC(executor=..., hook_fn=...)",
                expected="one of them",
                got="both",
                fix="hooks see each transition as it is made, in this process: leave one out",
            )


def the_device(device: str | None, kernel: Kernel, executor: object) -> str | None:
    """Return the GPU that chains are to run on, None for the CPU.

    Raises
    ------
    ArgumentError
        If the kernel has no walkers to be moved all at once, or an executor was given too.
    DeviceError
        If there is no such device.
    """
    if device is None or parse_device(usable(device))[0] == "cpu":
        return None
    if not kernel.moves_rows:
        raise ArgumentError(
            "MCMC(device=...)",
            expected="a kernel of many walkers, which a GPU moves all at once",
            got=f"{kernel.name}, device={device!r}",
            fix="ChEESHMC(model, walkers=1024), SNAPERHMC or MEADS; or leave device out",
        )
    if executor is not None:
        raise ArgumentError(
            "MCMC(device=..., executor=...)",
            expected="one of them",
            got="both",
            fix="leave executor out: this process has the GPU",
        )
    to_device(np.zeros(1), device)  # which says why it cannot be used
    return device


def check_shared_run(
    *,
    store: str | None = None,
    max_seconds: float | None = None,
    executor: ExecutorLike | None = None,
) -> None:
    """Refuse what processes that make one run together cannot do."""
    if max_seconds is not None:
        raise ArgumentError(
            "MCMC.run(max_seconds=...)",
            expected="numbers of draws, where processes share the rows of a plate",
            got=f"max_seconds={max_seconds}: their clocks would stop them at different draws",
            fix="give num_samples, or until_ess, and a checkpoint to go on from",
        )
    if executor is not None:
        raise ArgumentError(
            "MCMC(executor=...)",
            expected="chains in these processes, which share the rows of a plate",
            got="an executor, whose workers have not got the rows",
            fix="leave it out",
        )
    if store is not None:
        raise ArgumentError(
            "MCMC.run(store=...)",
            expected="draws in memory, where processes share the rows of a plate",
            got="a folder to which all of them would write",
            fix="if get_rank() == 0: draws.save(path)",
        )


def one_of(name: str, value: T, alias: str, other: T) -> T:
    """Return the one of two names of a setting that was given."""
    if value is not None and other is not None:
        raise ArgumentError(
            f"MCMC({name}, {alias})",
            expected=f"{name} or {alias}",
            got="both",
            fix=f"leave {alias} out",
        )
    return other if value is None else value


def count(name: str, value: SupportsIndex | None, least: int) -> int:
    """Return a setting as an int of at least `least`."""
    return count_of("MCMC", name, value, least, fix=f"for example {name}=1000")


# Of where draws go, a checkpoint has to agree in whether it is a folder.
STORED = "a folder"


def without_places(settings: dict[str, object]) -> dict[str, object]:
    """Return settings that were saved by a release that counted the path of a store among them."""
    return {**settings, "store": STORED} if "store" in settings else settings


@dataclass(frozen=True)
class RunSettings:
    """What one run is asked for.

    Parameters
    ----------
    num_samples : int
        0 for a warm-up alone.
    params : dict or array_like, optional
        Where chains start.
    seed, rng_key : int or Generator, optional
        Of the constructor, and of the run, which goes first.
    resumed_from : sequence of Chain, optional
        Chains that are warm, to go on with.
    store : str, optional
        The folder that draws go to.
    store_end : StoreEnd, optional
        Where the draws end that are in the folder already.

    The others are attributes of `MCMC`.
    """

    kernel: Kernel
    num_samples: int
    num_warmup: int
    num_chains: int
    thinning: int
    num_threads: int
    params: Params | None
    seed: int | Generator | None
    rng_key: int | Generator | None
    resumed_from: Sequence[Chain] | None
    hook_fn: Callable[[Kernel, dict[str, Tensor], str, int], object] | None
    executor: ExecutorLike | None
    device: str | None
    save_params: Sequence[str] | None
    progress_bar: bool
    keep_warmup: bool
    diagnose: bool
    store: str | None
    store_end: StoreEnd | None = None

    @property
    def source(self) -> int | Generator | None:
        """Where randomness comes from."""
        return self.seed if self.rng_key is None else self.rng_key

    def agreed(self) -> dict[str, object]:
        """Return what a checkpoint has to agree in."""
        seed: object = self.source
        if self.resumed_from is not None:
            seed = None  # these chains go on with the keys they have
        if isinstance(seed, Generator):
            seed = [seed.initial_seed(), seed.stream]
        return {
            "seed": None if seed is None else str(seed),
            **self.kernel.attrs(),
            "num_samples": self.num_samples,
            "num_warmup": self.num_warmup if self.resumed_from is None else 0,
            "num_chains": self.num_chains,
            "thinning": self.thinning,
            "keep_warmup": self.keep_warmup,
            # Folders can be moved.
            **({} if self.store is None else {"store": STORED}),
        }

    def row(self) -> dict[str, object]:
        """Return what says which transitions make a row of the draws, and what is in it."""
        kept = None if self.save_params is None else list(self.save_params)
        return {"thinning": self.thinning, "save_params": kept}

    def check_kept(self, variables: Iterable[str]) -> None:
        """Refuse names to keep that are none of the variables of a model.

        Raises
        ------
        ArgumentError
        """
        known = list(variables)
        unknown = [name for name in self.save_params or () if name not in known]
        if unknown:
            raise ArgumentError(
                "MCMC(save_params=...)",
                expected=f"names among {', '.join(known) or '(none)'}",
                got=", ".join(map(str, unknown)),
                fix="check the spelling; leave it out to keep all variables",
            )

    def selected(self, draws: SampledDraws) -> SampledDraws:
        """Return draws of the variables that are to be kept."""
        return draws if self.save_params is None else draws.select(list(self.save_params))
