"""HMC with energy conserving subsampling: the rows are part of the state, and are drawn anew.

Before each transition some of the rows are proposed anew and accepted by the estimate of the log
density that they give; then another kernel moves the position, for the rows as they are. So each
trajectory has one density from beginning to end, whose energy it conserves. Both leave the joint
law of position and rows invariant, of which the position's is the posterior but for an error of
order 1 / (rows * batch^2): difference_estimator.py has the estimate.

References
----------
K.-D. Dang, M. Quiroz, R. Kohn, M.-N. Tran, M. Villani, "Hamiltonian Monte Carlo with energy
conserving subsampling", JMLR 20 (2019), algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import flatten, record, replace, static
from probtorch.core.typed import TensorLike
from probtorch.errors import ArgumentError
from probtorch.infer.mcmc.integrators import Density
from probtorch.infer.mcmc.kernel import setting, statistic
from probtorch.infer.mcmc.kernels.nested import NestedKernel
from probtorch.infer.mcmc.kernels.random_walk import PointState, accept_probability
from probtorch.infer.mcmc.kernels.stepping import MetricKernel
from probtorch.infer.mcmc.randomness import Key, uniform
from probtorch.infer.mcmc.subsampling.difference_estimator import DifferenceTarget, TaylorProxy
from probtorch.infer.mcmc.subsampling.row_kernel import RowKernel
from probtorch.infer.potential import Target
from probtorch.ops.arithmetic import floor, where
from probtorch.ops.pieces import cat

__all__ = ["HMCECS", "HMCECSInfo", "HMCECSState"]


@record
class OfRows:
    """The density of position and rows as one of the position, for a kernel."""

    density: Density
    rows: TensorBase

    def __call__(self, position: TensorBase) -> tuple[TensorBase, TensorBase]:
        value, grad = self.density(cat([position, self.rows]))
        return value, grad[: position.array.shape[0]]


@record
class HMCECSState:
    """The inner kernel's state, and the rows.

    Parameters
    ----------
    inner : record
    rows : Tensor, shape (batch,)
        Their numbers, as floats.
    counter : Tensor, 0-d int64
    """

    inner: PointState
    rows: TensorBase
    counter: TensorBase

    @property
    def position(self) -> TensorBase:
        """Of the inner state."""
        return self.inner.position

    @property
    def logdensity(self) -> TensorBase:
        """The estimate by the rows."""
        return self.inner.logdensity

    @property
    def grad(self) -> TensorBase:
        """Of that estimate, if the inner state has a gradient."""
        return self.inner.grad  # type: ignore[attr-defined]  # of those that have one


@record
class HMCECSInfo:
    """What one proposal of rows, and a transition of the inner kernel, came to.

    Parameters
    ----------
    accept_prob, followed, diverging
        Of the inner kernel: acceptance, what its step size is tuned by, divergence.
    lp : Tensor
        The estimate of the log density by the new rows at the new position.
    rows_prob : Tensor
        With which the proposed rows were accepted; low where the proxies are poor.
    n_steps : Tensor, int64
        Evaluations of the estimate.
    """

    accept_prob: TensorBase = statistic("acceptance_rate")
    followed: TensorBase = statistic()
    lp: TensorBase = statistic("lp")
    rows_prob: TensorBase = statistic("rows_acceptance_rate")
    diverging: TensorBase = statistic("diverging", dtype=bool, combine=np.logical_or)
    n_steps: TensorBase = statistic("n_steps", dtype=np.int64, combine=np.add)


class HMCECS(NestedKernel[HMCECSState], RowKernel[HMCECSState]):
    """HMC with energy conserving subsampling [dang2019]_, for data of many rows.

    Each evaluation looks at as many rows as the model's plate says (``subsample_size``); each row
    has a proxy, made once from all of them. Unlike `SGLD` and its kin it accepts and rejects, so
    that its draws are as good as the estimate: ``rows_acceptance_rate`` in `sample_stats` should
    not be below one half or so; else give a larger ``subsample_size``.

    Parameters
    ----------
    inner_kernel : NUTS, HMC or another kernel with a metric
        With a model, one plate of which draws subsamples.
    num_blocks : int
        Parts of the rows; one of them is proposed anew at a time. The more, the more are accepted.
    proxy : TaylorProxy, optional
        Made by `taylor_proxy`; of degree 2 around the mode if None.

    Notes
    -----
    The proxies take memory for ``rows * dim`` numbers of degree 1, ``rows * dim ** 2`` of degree 2.

    References
    ----------
    [dang2019]_.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import HMCECS, MCMC, NUTS
    >>> def model(x, y):
    ...     slope = probtorch.sample("slope", dist.Normal(0.0, 1.0))
    ...     with probtorch.plate("data", len(y), subsample_size=20) as rows:
    ...         logits = slope * x[rows]
    ...         probtorch.sample("y", dist.Bernoulli(logits=logits), obs=y[rows])
    >>> x = probtorch.linspace(-2.0, 2.0, 1000)
    >>> y = (x + 0.5 * (20.0 * x).sin() > 0.0).float()
    >>> kernel = HMCECS(NUTS(model))
    >>> mcmc = MCMC(kernel, num_samples=500, num_chains=4, seed=1, progress_bar=False)
    >>> mcmc.run(x, y)
    Draws(4 chains x 500 draws: slope)
    """

    info: ClassVar[type] = HMCECSInfo

    num_blocks: int = static(default=1)
    proxy: TaylorProxy | None = setting(default=None)

    def __init__(
        self,
        inner_kernel: MetricKernel[PointState],
        *,
        num_blocks: int = 1,
        proxy: TaylorProxy | None = None,
    ) -> None:
        self._surround(inner_kernel)
        if not (isinstance(num_blocks, int) and num_blocks >= 1):
            raise ArgumentError(
                "HMCECS(num_blocks=...)",
                expected="an int of at least 1",
                got=repr(num_blocks),
                fix="leave it out for 1",
            )
        if not (proxy is None or isinstance(proxy, TaylorProxy)):
            raise ArgumentError(
                "HMCECS(proxy=...)",
                expected="what HMCECS.taylor_proxy returns, or None",
                got=f"{proxy!r:.60}",
                fix="write proxy=HMCECS.taylor_proxy(reference_params)",
            )
        self._set(num_blocks=num_blocks, proxy=proxy, batch=0, rows=0.0)
        self.__post_init__()

    @staticmethod
    def taylor_proxy(
        reference_params: Mapping[str, TensorLike] | None = None, degree: int = 2
    ) -> TaylorProxy:
        """Return proxies that are the Taylor polynomials of the rows' log likelihoods.

        Parameters
        ----------
        reference_params : dict of array_like by site, optional
            Constrained values around which they are; the mode if None.
        degree : {1, 2}
            In unconstrained coordinates.
        """
        return TaylorProxy(reference_params, degree)

    # ---------------------------------------------------------------------------------- the target

    def target(
        self,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        init_params: TensorLike | Mapping[str, TensorLike] | None = None,
    ) -> Target:
        """Return the `DifferenceTarget` of the model for the arguments of a run."""
        if self.model is None or isinstance(self.model, Target):
            raise ArgumentError(
                "HMCECS(inner_kernel)",
                expected="a kernel with a model, whose plate draws subsamples",
                got="a kernel with a density, of which nobody knows the rows",
                fix="write HMCECS(NUTS(model))",
            )
        return super().target(args, kwargs, init_params)

    def target_of(
        self, model: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> DifferenceTarget:
        """Return the target of a model."""
        return DifferenceTarget(model, args, kwargs, self.proxy or TaylorProxy())

    def blank_values(self, dim: int, leaves: Sequence[np.ndarray]) -> Mapping[str, object]:
        """Return what a saved chain has of the inner kernel, and how many rows."""
        # Behind the rows come the counter, a key of two numbers, and the tuner.
        rows = leaves[-4 - len(flatten(self.warmup.tuner)[0])]
        return {**super().blank_values(dim, leaves), "batch": rows.size}

    def attrs(self) -> dict[str, object]:
        """Return the settings that results should carry."""
        degree = (self.proxy or TaylorProxy()).degree
        return {**super().attrs(), "num_blocks": self.num_blocks, "proxy_degree": degree}

    # ----------------------------------------------------------------------------------- the kernel

    def first_of(self, state: HMCECSState) -> PointState:
        """Return the inner state."""
        return replace(state.inner, counter=state.counter)

    def kernel_of(self, state: HMCECSState) -> MetricKernel[PointState]:
        """Return the inner kernel on the density of the rows."""
        return self.surrounding(OfRows(self.density, state.rows), self.metric)

    def init(self, position: TensorBase, counter: TensorBase | int = 0) -> HMCECSState:
        """Return the state at a position, with rows from all over the data."""
        rows = floor(self.rows * wrap((np.arange(self.batch) + 0.5) / max(self.batch, 1)))
        inner = replace(self._inner, density=OfRows(self.density, rows)).init(position, counter)
        return HMCECSState(inner, rows, as_tensor(counter))

    def resumed(self, state: HMCECSState) -> HMCECSState:
        """Return the state with the density of its rows taken anew."""
        return replace(state, inner=self.kernel_of(state).resumed(self.first_of(state)))

    def step(self, key: Key, state: HMCECSState) -> tuple[HMCECSState, HMCECSInfo]:
        """Return ``(state, info)`` after a proposal of rows and a transition."""
        tried, prob, evaluations = self._with_new_rows(key, state)
        inner, info = self.kernel_of(tried).step(key, self.first_of(tried))
        told = self.told(info)
        new = HMCECSState(inner, tried.rows, inner.counter)
        return new, HMCECSInfo(
            told.accept_prob,
            told.followed,
            new.logdensity,
            prob,
            told.diverging,
            told.n_steps + evaluations,
        )

    def _with_new_rows(
        self, key: Key, state: HMCECSState
    ) -> tuple[HMCECSState, TensorBase, TensorBase]:
        """The state after a proposal of rows, its acceptance, and the evaluations it took."""
        if not self.batch:
            return state, wrap(np.ones(())), wrap(np.array(0))
        number, counter = wrap(np.arange(self.batch)), state.counter + self.batch
        # Parts of the rows in a line, of equal sizes but for rounding.
        part = floor(self.num_blocks * uniform(key, counter))
        chosen = (number * self.num_blocks) // self.batch == part.long()
        rows = where(chosen, self.drawn_rows(key, state.counter), state.rows)
        value, grad = OfRows(self.density, rows)(state.position)
        prob = accept_probability(value - state.logdensity)
        accepted = uniform(key, counter + 1) < prob
        inner = replace(state.inner, logdensity=where(accepted, value, state.logdensity))
        if hasattr(inner, "grad"):
            inner = replace(inner, grad=where(accepted, grad, state.grad))
        new = HMCECSState(inner, where(accepted, rows, state.rows), counter + 2)
        return new, prob, wrap(np.array(1))
