"""Kernels of Brownian motion, and of several outputs or tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from probtorch.backends.registry import to_host
from probtorch.contrib.gp.kernels.kernel import Kernel
from probtorch.contrib.gp.parameterized import Given, positive
from probtorch.core.signatures import explain_calls
from probtorch.distributions.validation import require, without_tape
from probtorch.effects.pyro_module import PyroParam, PyroSample
from probtorch.effects.site import as_value
from probtorch.errors import ArgumentError, DomainError, ShapeError
from probtorch.factories import zeros
from probtorch.ops.arithmetic import abs as absolute
from probtorch.ops.arithmetic import floor, minimum, where
from probtorch.ops.comparisons import eq, ge, le, logical_and
from probtorch.ops.movement import unsqueeze
from probtorch.ops.reduction import sum as total
from probtorch.ops.sampling import randn
from probtorch.ops.scattering import one_hot
from probtorch.tensor import Tensor

__all__ = ["Brownian", "Coregionalize", "Multitask"]


class Brownian(Kernel):
    """Brownian motion from 0 at x = 0, in both directions.

    Its covariances are ``variance * min(|x|, |z|)`` on the same side of 0, and 0 across it.

    Parameters
    ----------
    input_dim : int
        1.
    variance : Tensor or number, positive, optional
        Of a unit of x; 1 without it.
    active_dims : sequence of int, optional
    """

    def __init__(
        self,
        input_dim: int = 1,
        variance: Given | None = None,
        active_dims: Sequence[int] | None = None,
    ) -> None:
        if input_dim != 1:
            raise ArgumentError(
                "Brownian", expected="input_dim 1", got=repr(input_dim),
                fix="a Brownian sheet is a Product of kernels, one for each dim",
            )  # fmt: skip
        super().__init__(input_dim, active_dims)
        self.variance = positive(variance)

    def forward(self, X: Tensor, Z: Tensor | None = None, diag: bool = False) -> Tensor:
        """Return covariances; see `Kernel.forward`."""
        x = self.points(X)[:, 0]
        if diag:
            return self.variance * absolute(x)
        z = x if Z is None else self.points(Z, "Z")[:, 0]
        a, b = unsqueeze(x, 1), unsqueeze(z, 0)
        return self.variance * where(a * b > 0.0, minimum(absolute(a), absolute(b)), 0.0)


class Coregionalize(Kernel):
    """Linear model of coregionalization: covariances of outputs, where a feature says which.

    Points give weights to outputs (one-hot rows say which one): ``x @ (W W' + diag(v)) @ z``. Times
    another kernel it makes functions of several correlated outputs.

    Parameters
    ----------
    input_dim : int
        Number of outputs.
    rank : int, optional
        Columns of W; all of them without it.
    components : Tensor, shape (input_dim, rank), optional
        W at first; small random numbers without it.
    diagonal : Tensor, shape (input_dim,), optional
        The variances v at first, positive; halves without it.
    active_dims : sequence of int, optional

    References
    ----------
    Alvarez, Rosasco and Lawrence (2012), "Kernels for vector-valued functions: a review".
    """

    def __init__(
        self,
        input_dim: int,
        rank: int | None = None,
        components: Tensor | PyroParam | PyroSample | None = None,
        diagonal: Given | None = None,
        active_dims: Sequence[int] | None = None,
    ) -> None:
        super().__init__(input_dim, active_dims)
        wanted = input_dim if rank is None else rank
        if components is None:
            components = 0.1 * randn(input_dim, wanted)
        if isinstance(components, Tensor):
            shape = tuple(components.shape)
            if len(shape) != 2 or shape[0] != input_dim or (rank is not None and shape[1] != rank):
                raise ShapeError(
                    "Coregionalize", expected=f"components of shape ({input_dim}, {wanted})",
                    got=str(shape), fix="a row for each output; leave rank out to have it read off",
                )  # fmt: skip
            components = PyroParam(components)
        self.components = cast(Tensor, components)
        self.diagonal = positive(zeros(input_dim) + 0.5 if diagonal is None else diagonal)

    def forward(self, X: Tensor, Z: Tensor | None = None, diag: bool = False) -> Tensor:
        """Return covariances; see `Kernel.forward`."""
        x = self.points(X)
        w, v = self.components, self.diagonal
        left = x @ w
        if diag:
            return total(left * left, -1) + total(x * x * v, -1)
        z = x if Z is None else self.points(Z, "Z")
        right = left if Z is None else z @ w
        return left @ right.mT + (x * v) @ z.mT


class Multitask(Kernel):
    """Intrinsic coregionalization: a kernel of correlated tasks, where a column says which task.

    Covariances are ``kern(x, z) * (W W' + diag(v))[i, j]`` for points x and z of the tasks i and j.

    Parameters
    ----------
    kern : Kernel
        Of the other columns, the same for all tasks.
    num_tasks : int
    rank : int, optional
        Columns of W: so many functions make up what tasks share; 1 without it.
    components : Tensor, shape (num_tasks, rank), optional
        W at first; small random numbers without it.
    diagonal : Tensor, shape (num_tasks,), optional
        The variances v at first, positive, of what each task has of its own; halves without it.
    task_dim : int, optional
        The column with the number of the task, from 0; the one after those of `kern` without it.
        Negative ones count from the last column of points.

    Raises
    ------
    ArgumentError
        If `kern` looks at the column of tasks; with negative columns only points can say.
    DomainError
        If points have tasks other than 0, 1, ..., ``num_tasks - 1``.

    Notes
    -----
    The parameters of the tasks are those of ``tasks``, a `Coregionalize`. One of the two variances,
    that of `kern` and the scale of W and v, is redundant: fix or give a prior to one of them.

    References
    ----------
    E. V. Bonilla, K. M. A. Chai, C. K. I. Williams, "Multi-task Gaussian process prediction", NIPS
    2007.

    Examples
    --------
    Three points of two tasks:

    >>> from probtorch import tensor
    >>> from probtorch.contrib.gp.kernels import RBF
    >>> w, v = tensor([[1.0], [-1.0]]), tensor([0.1, 0.1])
    >>> kernel = Multitask(RBF(1), 2, components=w, diagonal=v)
    >>> kernel(tensor([[0.3, 0.0], [0.3, 1.0], [9.0, 1.0]])).detach().round(decimals=3)
    tensor([[ 1.1000, -1.0000, -0.0000],
            [-1.0000,  1.1000,  0.0000],
            [-0.0000,  0.0000,  1.1000]])
    """

    def __init__(
        self,
        kern: Kernel,
        num_tasks: int,
        rank: int | None = None,
        components: Tensor | PyroParam | PyroSample | None = None,
        diagonal: Given | None = None,
        task_dim: int | None = None,
    ) -> None:
        if isinstance(num_tasks, bool) or not isinstance(num_tasks, int) or num_tasks < 1:
            raise ArgumentError(
                "Multitask(num_tasks=...)", expected="a positive int", got=repr(num_tasks),
                fix="tasks are numbered from 0",
            )  # fmt: skip
        looks_at = range(kern.input_dim) if kern.active_dims is None else kern.active_dims
        column = max(looks_at, default=-1) + 1 if task_dim is None else task_dim
        _check_apart(column, looks_at)
        super().__init__(len(looks_at) + 1, [*looks_at, column])
        self.kern, self.task_dim, self.num_tasks = kern, column, num_tasks
        if rank is None and components is None:
            rank = 1
        self.tasks = Coregionalize(num_tasks, rank, components, diagonal)

    def forward(self, X: Tensor, Z: Tensor | None = None, diag: bool = False) -> Tensor:
        """Return covariances; see `Kernel.forward`."""
        of_tasks = self.tasks(self._which(X, "X"), self._which(Z, "Z"), diag=diag)
        k: Tensor = self.kern(X, Z, diag=diag)
        return k * of_tasks

    def _which(self, X: Tensor | None, name: str) -> Tensor | None:
        """A row for each point, with a 1 for its task."""
        if X is None:
            return None
        number, last = self.points(X, name)[:, -1], self.num_tasks - 1
        shape = as_value(X, name).array.shape
        columns = shape[1] if len(shape) == 2 else 1
        *looks_at, column = (d + columns if d < 0 else d for d in self.active_dims or ())
        _check_apart(column, looks_at)

        def error() -> DomainError:
            x = to_host(number.array)
            at = int(np.flatnonzero(~np.isin(x, np.arange(last + 1)))[0])
            return DomainError(
                f"Multitask: column {column} of {name}",
                expected=f"numbers of tasks, from 0 to {last}", got=f"{x[at]:.6g} in row {at}",
                fix="number tasks from 0; num_tasks= says how many, task_dim= in which column",
            )  # fmt: skip

        def inside(x: Tensor) -> Tensor:
            return logical_and(logical_and(ge(x, 0), le(x, last)), eq(x, floor(x)))

        require(without_tape(inside, number), error)
        return one_hot(number.long(), self.num_tasks).to(self.tasks.components.dtype)


def _check_apart(column: int, looks_at: Sequence[int]) -> None:
    """Refuse a column of tasks that the kernel of the other columns looks at."""
    if column in looks_at:
        raise ArgumentError(
            "Multitask(task_dim=...)", expected="a column at which kern does not look",
            got=f"{column}, where kern looks at {list(looks_at)}",
            fix="give kern its active_dims=",
        )  # fmt: skip


explain_calls(globals())
