"""`AutoDiscreteParallel`: a table of probabilities for each finite discrete site."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from probtorch.autograd.modes import no_grad
from probtorch.backends.registry import to_host
from probtorch.core.dtype import float64
from probtorch.core.rng import Generator, default_generator
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import DTypeLike
from probtorch.distributions import constraints
from probtorch.distributions.bernoulli import Bernoulli
from probtorch.distributions.categorical import Categorical, OneHotCategorical
from probtorch.distributions.distribution import Distribution
from probtorch.effects.enumerable import can_enumerate
from probtorch.effects.plates import plate
from probtorch.effects.primitives import param, sample
from probtorch.effects.site import Site
from probtorch.errors import InferenceError
from probtorch.infer.guides.base import AutoGuide, off_tape
from probtorch.infer.guides.latents import GivenRows, latent_of
from probtorch.infer.model_runs import lifted, out_of_sight

__all__ = ["AutoDiscreteParallel"]


class AutoDiscreteParallel(AutoGuide):
    """Independent probabilities of the values of each finite discrete site.

    Parameters
    ----------
    model : callable
        All whose latent sites in sight have a finite support: hide others by `block`, and put a
        guide of them beside this one in an `AutoGuideList`.
    create_plates, prefix, dtype
        See `AutoGuide`.

    Raises
    ------
    InferenceError
        At the first call: if there is no discrete latent site, or one is continuous or has a
        support other than 0, 1, ... n - 1 or vectors with a one.

    Notes
    -----
    Sites are annotated with ``infer={"enumerate": "parallel"}``, so that `TraceEnum_ELBO` takes the
    mean over all values exactly; `Trace_ELBO` draws them. A model whose discrete sites have no
    guide at all has them summed out, which is better where it can be done: this guide is for what
    couples too many of them. Parameters are ``{site}_auto_probs``, one probability for each value
    (of a Bernoulli that of 1).

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import SVI, AutoDiscreteParallel, TraceEnum_ELBO
    >>> from probtorch.optim import Adam
    >>> def model(y):
    ...     with probtorch.plate("data", len(y)):
    ...         z = probtorch.sample("z", dist.Bernoulli(0.5))
    ...         probtorch.sample("y", dist.Normal(4.0 * z, 1.0), obs=y)
    >>> guide = AutoDiscreteParallel(model)
    >>> svi = SVI(model, guide, Adam({"lr": 0.3}), TraceEnum_ELBO(), seed=0)
    >>> result = svi.run(100, probtorch.tensor([0.3, 4.1, 3.8]), progress_bar=False)
    >>> guide.median()["z"].tolist()
    [0.0, 1.0, 1.0]
    """

    def __init__(
        self,
        model: Callable[..., object],
        *,
        create_plates: Callable[..., plate | Iterable[plate]] | None = None,
        prefix: str = "auto",
        dtype: DTypeLike = float64,
    ) -> None:
        super().__init__(model, create_plates=create_plates, prefix=prefix, dtype=dtype)
        # How many values each site has, and whether they are vectors with a one.
        self._values: dict[str, tuple[int, type[Distribution]]] = {}

    def setup(self, *args: object, **kwargs: object) -> None:
        """Run the model once to find its discrete sites."""
        if self.latents:
            return
        if self.precise:
            args, kwargs = lifted(args), lifted(kwargs)
        rows = GivenRows()
        with no_grad(), out_of_sight(rows, precise=self.precise) as seen:
            self.model(*args, **kwargs)
        found = [seen[n] for n in seen.stochastic_nodes if hasattr(seen[n].fn, "log_prob")]
        if not found:
            raise InferenceError(
                f"{self.__name__}: the model has no latent sites",
                expected="at least one discrete sample statement without obs",
                got=f"sites {', '.join(map(repr, seen.nodes)) or 'none'}",
                fix="leave the value of what is to be inferred out",
            )
        self._chosen_by_caller = frozenset(rows.given_rows)
        self._values = {site.name: self._kind(site) for site in found}
        self.latents = {site.name: latent_of(site) for site in found}

    def _kind(self, site: Site) -> tuple[int, type[Distribution]]:
        """How many values a site has, and which distribution has them."""
        fn = site.fn
        if can_enumerate(site):
            values = to_host(fn.enumerate_support(expand=False).array)
            n, event = len(values), tuple(fn.event_shape)
            values = values.reshape(n, *event)
            if event == (n,) and np.array_equal(values, np.eye(n)):
                return n, OneHotCategorical
            if not event and np.array_equal(values, np.arange(n)):
                # Values are of the model's dtype: a Categorical's may index tensors.
                return n, Bernoulli if n == 2 and values.dtype.kind == "f" else Categorical
        raise InferenceError(
            f"{self.__name__}: site {site.name!r}",
            expected="a discrete site with the values 0, 1, ... n - 1, or vectors with a one",
            got=f"{type(fn).__name__} on {fn.support!r}",
            fix="hide it with handlers.block, and put a guide of it into an AutoGuideList",
            at=site.location,
        )

    def _probs(self, name: str, event_dim: int | None = None) -> Distribution:
        """The distribution of a site, of the rows in use inside its plates."""
        latent, (n, kind) = self.latents[name], self._values[name]
        batch = latent.shape[: latent.batch_ndim]
        label = f"{name}_{self.prefix}_probs"
        if kind is Bernoulli:
            half = np.full(batch, 0.5, self.dtype)
            return Bernoulli(param(label, lambda: half, constraints.unit_interval, event_dim))
        even = np.full((*batch, n), 1.0 / n, self.dtype)
        keep = None if event_dim is None else 1
        probs = param(label, lambda: even, constraints.simplex, keep)
        return OneHotCategorical(probs) if kind is OneHotCategorical else Categorical(probs)

    def draw(self, plates: dict[str, plate]) -> dict[str, TensorBase]:
        """State all discrete sites; see `AutoGuide.draw`."""
        values = {}
        for name, latent in self.latents.items():
            with self._within(latent, plates):
                notes = {"enumerate": "parallel", "inside": True}
                values[name] = sample(name, self._probs(name, 0), infer=notes)
        return values

    def get_posterior(self) -> dict[str, Distribution]:
        """Return the distribution of every site, of all rows, by name."""
        with self._asked():
            return {name: off_tape(self._probs(name)) for name in self.latents}

    def median(self, *args: object, **kwargs: object) -> dict[str, TensorBase]:
        """Return the most probable value of every site by name, which may have no median."""
        return {name: off_tape(fn.mode) for name, fn in self.get_posterior().items()}

    def quantiles(
        self, quantiles: Iterable[float], *args: object, **kwargs: object
    ) -> dict[str, TensorBase]:
        """Refuse: values may have no order; ask `get_posterior` for the probabilities."""
        raise InferenceError(
            f"{self.__name__}.quantiles",
            expected="continuous sites",
            got=f"discrete ones: {', '.join(map(repr, self.latents)) or 'none yet'}",
            fix="ask guide.get_posterior() for their probabilities",
        )

    def sample_posterior(
        self,
        sample_shape: int | tuple[int, ...] = (),
        *,
        generator: Generator | None = None,
    ) -> dict[str, TensorBase]:
        """Return draws of the sites by name; see `AutoGuide.sample_posterior`."""
        shape = (sample_shape,) if isinstance(sample_shape, int) else tuple(sample_shape)
        return self.free_draws(shape, generator or default_generator)

    def free_draws(self, shape: tuple[int, ...], generator: Generator) -> dict[str, TensorBase]:
        """Return draws; a discrete value has no other scale."""
        with self._asked():
            return {n: self._probs(n).sample(shape, generator) for n in self.latents}
