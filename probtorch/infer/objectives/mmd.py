"""`Trace_MMD`: guides whose draws, all together, are like those of the prior.

The evidence lower bound holds the guide to the prior at each row of data, by a divergence of
densities. Here it is the draws over all rows that are held to it, by the maximum mean discrepancy
of two samples, so that a row may keep all that it says of its latent numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer.objectives.elbo import ELBO, averaged, scaled
from probtorch.infer.objectives.protocol import Estimate, Guide, Model
from probtorch.infer.objectives.runs import Run, Vectorised, is_latent, is_precise, run_pair
from probtorch.infer.objectives.score import has_score
from probtorch.ops.arithmetic import maximum
from probtorch.ops.movement import reshape, unsqueeze
from probtorch.ops.pieces import cat
from probtorch.ops.reduction import sum as total

__all__ = ["Trace_MMD", "maximum_mean_discrepancy", "rows_of"]

Kernel = Callable[[TensorBase, TensorBase], TensorBase]


def nothing(*args: object, **kwargs: object) -> None:
    """The guide without a site: all is drawn from the prior."""


def nothing_precise(*args: object, **kwargs: object) -> None:
    """The same of models that run in float64."""


nothing_precise.precise = True  # type: ignore[attr-defined]  # what `is_precise` looks for


class Trace_MMD(ELBO):
    """The expected log likelihood, less the discrepancy between draws of the guide and the prior.

    ``E_q[log p(x | z)] - mmd_scale sum over sites of MMD^2(q(z), p(z))``, where q(z) is the mixture
    of the guide's distributions over particles and rows of plates.

    Parameters
    ----------
    kernel : callable, optional
        From rows (n, d) and (m, d) to similarities (n, m), positive definite. By default the
        inverse multiquadratic ``c / (c + |x - y|^2)`` with c twice the total variance of the prior.
    num_particles : int, at least 2
        Draws per estimate.
    max_plate_nesting, vectorize_particles, retain_graph, allow_missing
        See `ELBO`.
    mmd_scale : float, positive
        What the discrepancy weighs against the log likelihood, in nats.

    Raises
    ------
    ArgumentError
        If `mmd_scale` is not positive, or there are fewer than 2 particles.
    InferenceError
        At the first estimate: if the guide has a draw without a pathwise gradient.

    Notes
    -----
    The loss is no bound of the evidence: it is minus the above. The estimate of the discrepancy is
    unbiased and may be below 0. Rows of a plate count as draws of one distribution. For a model
    with global sites alone the guide is not held to the posterior, only to fit and prior, and
    shrinks towards the best fit (in a regression to 0.03 of the posterior's standard deviations):
    use `Trace_ELBO`.

    References
    ----------
    Gretton, Borgwardt, Rasch, Scholkopf, Smola (2012), "A kernel two-sample test"; Zhao, Song,
    Ermon (2017), "InfoVAE"; Tolstikhin, Bousquet, Gelly, Scholkopf (2018), "Wasserstein
    auto-encoders".

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import SVI, Trace_MMD
    >>> from probtorch.optim import Adam
    >>> def model(x):
    ...     with probtorch.plate("row", len(x)):
    ...         z = probtorch.sample("z", dist.Normal(0.0, 1.0))
    ...         probtorch.sample("x", dist.Normal(z, 0.1), obs=x)
    >>> def guide(x):
    ...     w = probtorch.param("w", 0.5)
    ...     with probtorch.plate("row", len(x)):
    ...         probtorch.sample("z", dist.Normal(w * x, 0.1))
    >>> x = probtorch.tensor([-1.2, -0.5, 0.0, 0.4, 1.3])
    >>> svi = SVI(model, guide, Adam({"lr": 0.01}), Trace_MMD(num_particles=4), seed=0)
    >>> result = svi.run(300, x, progress_bar=False)
    >>> bool(abs(result.params["w"] - 1.0) < 0.1)
    True
    """

    min_particles = 2

    def __init__(
        self,
        kernel: Kernel | None = None,
        num_particles: int = 10,
        max_plate_nesting: int | None = None,
        vectorize_particles: bool = False,
        retain_graph: bool | None = None,
        *,
        mmd_scale: float = 1.0,
        allow_missing: bool = False,
    ) -> None:
        super().__init__(
            num_particles,
            max_plate_nesting,
            vectorize_particles,
            retain_graph,
            allow_missing=allow_missing,
        )
        if kernel is not None and not callable(kernel):
            raise ArgumentError(
                "Trace_MMD(kernel=...)",
                expected="a function of two tensors of rows, (n, d) and (m, d)",
                got=repr(kernel),
                fix="leave it out for an inverse multiquadratic kernel",
            )
        if not 0.0 < mmd_scale < math.inf:
            raise ArgumentError(
                "Trace_MMD(mmd_scale=...)",
                expected="a positive number",
                got=repr(mmd_scale),
                fix="leave it out for 1",
            )
        self.kernel, self.mmd_scale = kernel, float(mmd_scale)
        self._prior = Vectorised(self.num_particles, allow_missing=True)

    def estimates(
        self, model: Model, guide: Guide, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Iterator[Estimate]:
        """Yield the log likelihood less the discrepancy."""
        runs = list(self.runs(model, guide, args, kwargs))
        names = [n for n, s in runs[0].model.nodes.items() if is_latent(s)]
        for name in names:
            _check_path(runs[0], name)
        found = None
        for run in runs:
            value = averaged(_log_likelihood(run, names), run)
            part, _ = scaled(Estimate(value, value), run.size, self.num_particles)
            found = part if found is None else found + part
        assert found is not None  # there are at least two particles
        prior = self._prior_runs(model, guide, args, kwargs)
        for name in names:
            far = maximum_mean_discrepancy(rows_of(runs, name), rows_of(prior, name), self.kernel)
            found = found - self.mmd_scale * far
        yield Estimate(found, found)

    def _prior_runs(
        self, model: Model, guide: Guide, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> list[Run]:
        """As many runs of the model with draws of its own."""
        free = nothing_precise if is_precise(guide) else nothing
        if self.vectorize_particles:
            return [self._prior(model, free, args, kwargs)]
        count = range(self.num_particles)
        return [run_pair(model, free, args, kwargs, allow_missing=True) for _ in count]


def _log_likelihood(run: Run, latent: Sequence[str]) -> TensorBase:
    """Log density of all that is no draw, per particle."""
    found = run.log_model()
    for name in latent:
        found = found - run.per_particle(run.model.nodes[name].compute_log_prob())
    return found


def _check_path(run: Run, name: str) -> None:
    site = run.guide.nodes.get(name)
    if site is not None and has_score(site):
        raise InferenceError(
            f"Trace_MMD: guide site {name!r} has no pathwise gradient",
            expected="draws by differentiable functions of the parameters (has_rsample)",
            got=f"a {type(site.fn).__name__}, which has none",
            fix="use Trace_ELBO or TraceGraph_ELBO",
            at=site.location,
        )


def rows_of(runs: Sequence[Run], name: str) -> TensorBase:
    """Return the draws of a site, particles and rows of plates one below the other.

    Returns
    -------
    Tensor of float64, shape (draws, numbers of an event)
    """
    parts = []
    for run in runs:
        site = run.model.nodes[name]
        size = math.prod(tuple(site.fn.event_shape))
        # What is left of the three means is small against each: in double precision.
        parts.append(reshape(site.value, (-1, size)).double())
    return parts[0] if len(parts) == 1 else cat(parts, 0)


def maximum_mean_discrepancy(
    x: TensorBase, y: TensorBase, kernel: Kernel | None = None
) -> TensorBase:
    """Return the unbiased estimate of the squared maximum mean discrepancy of two samples.

    Parameters
    ----------
    x, y : Tensor, shapes (n, d) and (m, d), n and m at least 2
    kernel : callable, optional
        See `Trace_MMD`; `y` is the prior's.

    Returns
    -------
    Tensor, shape ()
        Lemma 6 of Gretton et al. (2012); below 0 by chance where both are of one distribution.
    """
    similar = _multiquadratic(y) if kernel is None else kernel
    n, m = x.array.shape[0], y.array.shape[0]
    within = _off_diagonal(similar(x, x)) / (n * (n - 1)) + _off_diagonal(similar(y, y)) / (
        m * (m - 1)
    )
    return within - 2.0 * similar(x, y).mean()


def _off_diagonal(gram: TensorBase) -> TensorBase:
    return total(gram) - total(gram.diagonal())


def _multiquadratic(y: TensorBase) -> Kernel:
    """The default kernel, of the width of a sample of the prior."""
    fixed = y.detach()
    width = 2.0 * total((fixed - fixed.mean(0)) ** 2) / (y.array.shape[0] - 1)
    width = maximum(width, 1e-30)

    def similar(a: TensorBase, b: TensorBase) -> TensorBase:
        apart = total((unsqueeze(a, 1) - unsqueeze(b, 0)) ** 2, -1)
        return width / (width + apart)

    return similar


explain_calls(globals())
