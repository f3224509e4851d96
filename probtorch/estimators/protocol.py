"""What every gradient estimator is made of: its record, its problem, its randomness, its result.

An estimator is a frozen record with options. It is handed a `Problem`: a distribution q, a cost, a
number of samples and `SiteDraws`, the only door to randomness. It returns an `Estimated`: a value,
and a surrogate whose gradient estimates that of E_q[cost]. What drives it (a plain function in
expectation.py, reruns of a guide and a model in inference) is behind the cost and the draws, so an
estimator is written once.

Shapes: q has batch shape B, where `Independent` is taken off, so that all of its elements are
there. The cost of n values has shape (n, *C), where C has the rank of B and either its size or 1 at
every dim. Where C has the size of B, entry i is the cost of row i alone ("rows"); where it has size
1, all elements along that dim make one cost together ("joint").

docs/internals/estimators.md has the protocol; score_function.py is the example to imitate.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol, TypeAlias

from probtorch.core.rng import Generator
from probtorch.core.typed import DType, TensorLike
from probtorch.distributions.distribution import Distribution, Independent
from probtorch.ops.families import unbroadcast
from probtorch.ops.sampling import rand
from probtorch.tensor import Tensor

__all__ = [
    "CostFunction",
    "Estimated",
    "Estimator",
    "Memory",
    "Problem",
    "Refusal",
    "SiteDraws",
    "unwrapped",
]

# What an estimator keeps from call to call.
Memory: TypeAlias = dict[str, Tensor]


class Refusal(NamedTuple):
    """Why an estimator does not apply to a distribution.

    Attributes
    ----------
    expected : str
        What it is made for.
    got : str
        What is not so here.
    """

    expected: str
    got: str


class Estimated(NamedTuple):
    """What an estimator makes of a problem.

    Attributes
    ----------
    value : Tensor, shape C
        Estimates E_q[cost].
    surrogate : Tensor, shape C
        Its gradient estimates that of E_q[cost]; its value means nothing.
    loss : Tensor, shape (), or None
        What the estimator's own parameters (baselines, control variates) are trained by: an
        estimate of its variance, up to a constant, to be minimised. It has a gradient in them
        alone.
    """

    value: Tensor
    surrogate: Tensor
    loss: Tensor | None = None


class SiteDraws:
    """The randomness of an estimator: all of it comes through these methods.

    Parameters
    ----------
    rng : Generator, optional
        The default generator if None.
    """

    def __init__(self, rng: Generator | None = None) -> None:
        self.rng = rng

    def sample(self, q: Distribution, n: int) -> Tensor:
        """Return n draws of q without gradient, shape (n, *B, *E)."""
        return q.sample((n,), self.rng)

    def rsample(self, q: Distribution, n: int) -> Tensor:
        """Return n draws of q by a differentiable function of its parameters."""
        return q.rsample((n,), self.rng)

    def uniform(self, shape: tuple[int, ...], dtype: DType | None) -> Tensor:
        """Return draws from the open interval (0, 1)."""
        return rand(shape, generator=self.rng, dtype=dtype)


class CostFunction(Protocol):
    """From values, shape (n, *B, *E), to costs, shape (n, *C)."""

    def __call__(self, z: Tensor) -> Tensor:
        """Return the costs of n values."""

    def like(self, fn: Callable[[Tensor], TensorLike]) -> CostFunction:
        """Return the costs of another function of the same values."""


@dataclass(frozen=True, eq=False)
class Problem:
    """An expectation whose gradient is wanted.

    Attributes
    ----------
    q : Distribution
        Without `Independent` around it.
    cost : callable
        From values, shape (n, *B, *E), to costs, shape (n, *C). ``cost.like(fn)`` is the same for
        another function of the values.
    draws : Draws
    num_samples : int
    memory : dict or None
        What the estimator remembers from call to call; None where nobody keeps it.
    learn : bool
        Whether `Estimated.loss` is wanted.
    """

    q: Distribution
    cost: CostFunction
    draws: SiteDraws
    num_samples: int = 1
    memory: Memory | None = None
    learn: bool = False

    def sample(self) -> Tensor:
        """Return draws of q, shape (num_samples, *B, *E)."""
        return self.draws.sample(self.q, self.num_samples)

    def log_prob(self, z: Tensor) -> Tensor:
        """Return the log density of values in the support, shape (n, *B)."""
        return self.q.log_prob_inside(z)

    def uniform(self, z: Tensor, *more: int) -> Tensor:
        """Return uniforms, one for each element of the batches of `z` and of further dims."""
        shape = (z.array.shape[0], *self.q.batch_shape, *more)
        dtype = self.q._dtype
        return self.draws.uniform(shape, dtype)

    def joint_elements(self, shape: tuple[int, ...]) -> int:
        """Return how many elements of q make up one cost, for costs of shape C."""
        costs = math.prod(shape)
        return math.prod(self.q.batch_shape) // costs if costs else 1


def joined(x: Tensor, cost: Tensor) -> Tensor:
    """Sum a tensor of shape (n, *B) over the joint dims, to the shape (n, *C) of `cost`."""
    shape = (x.array.shape[0], *cost.array.shape[1:])
    return unbroadcast(x, shape)


def unwrapped(q: Distribution) -> tuple[Distribution, int]:
    """Return q without `Independent` around it, and the number of dims that were events."""
    dims = 0
    while isinstance(q, Independent):
        n = q.reinterpreted_batch_ndims
        # An expansion is on the outside: its copies have to be elements inside as well.
        whole = (*q.batch_shape, *q.event_shape[:n])
        q, dims = q.base_dist, dims + n
        q = q if tuple(q.batch_shape) == whole else q.expand(whole)
    return q, dims


class Estimator(abc.ABC):
    """Base of all gradient estimators: frozen records whose fields are options.

    Attributes
    ----------
    name : str
        Its name in ``infer={"estimator": name}``.
    unbiased : bool
        Whether value and gradient have the exact ones as their means.
    all_orders : bool
        Whether higher derivatives of the estimate estimate higher derivatives of E_q[cost]. Where
        they do not, asking for them raises.
    mixes : bool
        Whether an entry of the cost may, besides its own row, depend on others: the gradient with
        respect to row i is then taken of entry i alone.
    relaxes : bool
        Whether the cost is evaluated between the values of the support, and differentiated there.
    """

    name: ClassVar[str] = ""
    unbiased: ClassVar[bool] = True
    all_orders: ClassVar[bool] = False
    mixes: ClassVar[bool] = False
    relaxes: ClassVar[bool] = False

    @property
    def min_samples(self) -> int:
        """The least number of samples."""
        return 1

    @abc.abstractmethod
    def refusal(self, q: Distribution) -> Refusal | None:
        """Return why the estimator does not apply to q (which is unwrapped); None if it does."""

    @abc.abstractmethod
    def estimate(self, problem: Problem) -> Estimated:
        """Return value and surrogate."""
