"""Where chains start: at points found or given, or where an earlier run left them.

A chain before its first transition is a `Chain` (chunk.py) whose kernel holds the address of a
density; the context beside it keeps that density alive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias, overload

import numpy as np

from probtorch.compiler.density import DensityContext
from probtorch.compiler.record.record import rarely_searched
from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.core.rng import Generator
from probtorch.core.tree import flatten, leaves, replace
from probtorch.core.typed import TensorLike
from probtorch.errors import InferenceError, ShapeError
from probtorch.infer.forgotten import refuse_flat
from probtorch.infer.gradient_check import refuse_fickle
from probtorch.infer.mcmc.chunk import Chain, ChunkRunner
from probtorch.infer.mcmc.integrators import DensityHandle
from probtorch.infer.mcmc.kernel import Kernel
from probtorch.infer.mcmc.randomness import key_of
from probtorch.infer.mcmc.stacked import ChainStack
from probtorch.infer.mcmc.warm_up.estimates import Spectrum
from probtorch.infer.potential import Target
from probtorch.infer.starts.initialization import StartingPoints, starting_points
from probtorch.infer.starts.start_errors import bad_start

if TYPE_CHECKING:
    from probtorch.infer.mcmc.warm_up.adaptation import Tuner

__all__ = ["Starts", "first_chain", "new_chains", "resumed_chains", "runners_of"]

# Fewer are made one by one.
FEW_CHAINS = 3
# Unconstrained values, a vector or by site; and those of the first chain, as arrays.
Params: TypeAlias = TensorLike | Mapping[str, TensorLike]
FirstValues: TypeAlias = np.ndarray | dict[str, np.ndarray]
# A chain, and the context of the density it holds.
Start: TypeAlias = tuple[Chain, DensityContext]


class Starts(Sequence[Start]):
    """Chains before their first transition, each with the context of its density.

    Parameters
    ----------
    chains : ChainStack or sequence of Start
        Of a stack each chain is made, and has a context made, where it is asked for.
    gradients : int
        Evaluations of the log density with its gradient that finding them took, for all chains
        together.
    """

    def __init__(self, chains: ChainStack | Sequence[Start], gradients: int) -> None:
        self._chains, self.gradients = chains, gradients

    def __len__(self) -> int:
        return len(self._chains)

    @overload
    def __getitem__(self, i: int) -> Start: ...
    @overload
    def __getitem__(self, i: slice) -> list[Start]: ...
    def __getitem__(self, i: int | slice) -> Start | list[Start]:
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self)))]
        if not isinstance(self._chains, ChainStack):
            return self._chains[i]
        if not -len(self) <= i < len(self):
            raise IndexError(i)
        assert self._chains.density is not None  # of a stack of starts
        chain, context = self._chains.chain(i), self._chains.density.context()
        kernel = replace(chain.kernel, density=DensityHandle.of(context))
        return replace(chain, kernel=kernel), context

    def runners(self) -> list[ChunkRunner]:
        """Return what runs them."""
        if isinstance(self._chains, ChainStack):
            return [ChunkRunner((self._chains, i)) for i in range(len(self))]
        return runners_of(self._chains)


def runners_of(chains: Sequence[Start]) -> list[ChunkRunner]:
    """Return what runs some chains."""
    if isinstance(chains, Starts):
        return chains.runners()
    return [ChunkRunner(chain, context) for chain, context in chains]


def new_chains(
    kernel: Kernel,
    target: Target,
    params: Params | None,
    num_chains: int,
    generator: Generator,
    *,
    warming: bool = True,
) -> Starts:
    """Return chains at the given parameters, or where the kernel's strategy puts them.

    Parameters
    ----------
    kernel : Kernel
    target : Target
    params : dict or array_like, optional
        Unconstrained, for one chain or with a leading dim for all.
    num_chains : int
    generator : Generator
        Each chain draws from a child of it.
    warming : bool
        Whether a warm-up follows: then what it learns is, to begin with, what the starts say.

    Raises
    ------
    InferenceError
        If log density or gradient are not finite there, or no point was found; if the density
        is no distribution, or another each time.
    ShapeError
        If the parameters are neither for one chain nor for all.
    """
    starts, *streams = generator.spawn(1 + num_chains)
    members = max(kernel.members, 1)
    if params is None:
        found = starting_points(target, num_chains * members, starts, kernel.init_strategy)
    else:
        found = StartingPoints(_positions(target, params, num_chains * members), 0)
    together: Spectrum | None = None
    if found.covariances is not None:
        together = Spectrum(*found.covariances.decomposition())
    started = _alike(kernel, target, found.positions, together, streams, warming) or _each(
        kernel, target, found.positions, together, streams, warming
    )
    refuse_fickle(target, found.positions[0])
    refuse_flat(target, found.positions[0])
    return Starts(started, found.gradients + num_chains * members)


def _each(
    kernel: Kernel,
    target: Target,
    positions: np.ndarray,
    spectra: Spectrum | None,
    streams: Sequence[Generator],
    warming: bool,
) -> list[Start]:
    """Chains one by one."""
    shape = (-1, kernel.members, target.dim) if kernel.members else (-1, target.dim)
    tuner = kernel.warmup.tuner
    kernel = kernel.on(target)
    own = [None if spectra is None else spectra[i] for i in range(len(streams))]
    with rarely_searched():  # all that is made here stays, and is more with each chain
        return [
            _new_chain(kernel, target, *start, tuner, warming)
            for start in zip(positions.reshape(shape), own, streams)
        ]


def _alike(
    kernel: Kernel,
    target: Target,
    positions: np.ndarray,
    spectra: Spectrum | None,
    streams: Sequence[Generator],
    warming: bool,
) -> ChainStack | None:
    """Chains as `_each` makes them, as one stack; None where they cannot be made together."""
    if len(streams) < FEW_CHAINS or spectra is None or not kernel.takes_any_density():
        return None
    metrics = kernel.metrics_of_spectra(target, spectra, warming)
    if metrics is None:
        return None
    tuner = kernel.warmup.tuner
    chain, context = _new_chain(
        kernel, target, positions[0], spectra[0], streams[0], tuner, warming
    )
    count = len(streams)
    values, grads = np.empty(count), np.empty((count, target.dim))
    for i, position in enumerate(positions):
        values[i], grads[i] = context.native(position)
    for i in (~(np.isfinite(values) & np.isfinite(grads).all(axis=1))).nonzero()[0].tolist():
        # Which says what is wrong there.
        _new_chain(kernel, target, positions[i], spectra[i], streams[i], tuner, warming)
    leaves = [np.repeat(x.array[None], count, axis=0) for x in flatten(chain)[0]]
    stack = ChainStack(chain, leaves, context)
    stack.put("metric", metrics)
    places = stack.at.state
    keys = np.array([stream.stream for stream in streams], np.uint64).view(np.int64)
    for name, column in (("position", positions), ("logdensity", values), ("grad", grads)):
        stack.leaves[getattr(places, name)][...] = column
    stack.leaves[stack.at.key.stream][...] = keys
    return stack


def _new_chain(
    kernel: Kernel,
    target: Target,
    position: np.ndarray,
    spectrum: Spectrum | None,
    stream: Generator,
    tuner: Tuner | None,
    warming: bool,
) -> Start:
    context = kernel.native(target).context()
    in_use = kernel.in_use(DensityHandle.of(context))
    state = in_use.init(wrap(np.array(position, np.float64)), wrap(np.array(0)))
    context.raise_error()
    if not all(np.isfinite(leaf.array).all() for leaf in leaves(state)):
        raise bad_start(
            target,
            _worst(kernel, context, position),
            "initial_params",
            "start elsewhere, or leave initial_params out",
        )
    values = kernel.first_values(target, state, spectrum, warming)
    chain = Chain(replace(in_use, **values), state, key_of(stream), tuner)
    return chain, context


def _worst(kernel: Kernel, context: DensityContext, position: np.ndarray) -> np.ndarray:
    """The first of several points at which the density is not finite."""
    for point in position.reshape(-1, position.shape[-1]):
        value, grad = context.value_and_grad(kernel.evaluated_at(point))
        if not (np.isfinite(value) and np.isfinite(grad).all()):
            return point
    return point


def resumed_chains(target: Target, chains: Sequence[Chain], num_chains: int) -> list[Start]:
    """Return chains that go on from where they stand.

    Parameters
    ----------
    target : Target
    chains : sequence of Chain
        Without a density, as `MCMC.last_state` holds them.
    num_chains : int

    Raises
    ------
    InferenceError
        If there are not `num_chains` of the target's dimension.
    """
    dims = {c.state.position.array.shape[-1] for c in chains}
    if len(chains) != num_chains or dims != {target.dim}:
        raise InferenceError(
            "post_warmup_state",
            expected=f"{num_chains} chains of dimension {target.dim}",
            got=f"{len(chains)} chains of dimension {', '.join(map(str, sorted(dims)))}",
            fix="set it to the last_state of a run of the same model, or to None",
        )
    resumed = []
    for chain in chains:
        kernel = chain.kernel.on(target)
        context = kernel.native(target).context()
        kernel = replace(kernel, density=DensityHandle.of(context))
        # The arguments of the model may have changed since.
        state = kernel.resumed(chain.state)
        context.raise_error()
        resumed.append((replace(chain, kernel=kernel, state=state), context))
    return resumed


def first_chain(params: Params | None, num_chains: int) -> FirstValues | None:
    """Return what variables look like, from parameters that may have a leading chain dim."""
    if params is None:
        return None
    if not isinstance(params, Mapping):
        array = _array(params)
        return array[0] if array.ndim == 2 else array
    arrays = {name: _array(x) for name, x in params.items()}
    if num_chains > 1 and all(x.ndim and x.shape[0] == num_chains for x in arrays.values()):
        return {name: x[0] for name, x in arrays.items()}
    return arrays


def _positions(target: Target, params: Params, num_chains: int) -> np.ndarray:
    """Starting points (num_chains, dim) from parameters given for one or for all chains."""
    if isinstance(params, Mapping):
        arrays = {name: _array(x) for name, x in params.items()}
        per_chain = all(
            name in target.slots and x.shape == (num_chains, *target.slots[name].free_shape)
            for name, x in arrays.items()
        )
        if not per_chain:
            return np.tile(target.pack(arrays), (num_chains, 1))
        return np.stack(
            [target.pack({name: x[i] for name, x in arrays.items()}) for i in range(num_chains)]
        )
    array = _array(params)
    if array.shape == (target.dim,):
        return np.tile(array, (num_chains, 1))
    if array.shape != (num_chains, target.dim):
        raise ShapeError(
            "initial_params",
            expected=f"shape ({target.dim},) or ({num_chains}, {target.dim})",
            got=str(array.shape),
            fix="give unconstrained values, one row per chain",
        )
    return array


def _array(value: TensorLike) -> np.ndarray:
    return np.asarray(as_tensor(value).array, np.float64)
