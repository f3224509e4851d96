"""`AutoProposal`: a guide for inference compilation that writes itself, for any program.

The guide runs the model, and at each latent site, whichever the run comes to, asks a network for a
distribution to draw from instead. The network remembers the run so far in a recurrent state: it has
read the data, and at each address the value before it and which address it is. So it proposes one
site after the other, in the order of the model and with the branches that the values taken so far
lead to; addresses of a loop (``part_0``, ``part_1``, ...) share one proposal that is told the
number. `CSIS` trains it.

References
----------
T. A. Le, A. G. Baydin, F. Wood, "Inference compilation and universal probabilistic programming",
AISTATS 2017. A. G. Baydin et al., "Etalumis: bringing probabilistic programming to scientific
simulators at scale", SC 2019, for addresses. T. Hesterberg, "Weighted average importance
sampling and defensive mixture distributions", Technometrics 37 (1995).
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from probtorch.autograd.modes import no_grad
from probtorch.backends.registry import to_host
from probtorch.core.dispatch import wrap
from probtorch.core.dtype import get_default_dtype
from probtorch.core.making import as_tensor
from probtorch.core.rng import Generator
from probtorch.core.signatures import explain_calls, explained
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import TensorLike
from probtorch.distributions.bernoulli import Bernoulli
from probtorch.distributions.categorical import Categorical
from probtorch.distributions.mixture import MixtureSameFamily
from probtorch.distributions.mixtures import MixtureGeneral
from probtorch.distributions.normal import Normal
from probtorch.distributions.transformed import TransformedDistribution
from probtorch.distributions.transforms.registry import biject_to
from probtorch.distributions.uniform import Delta
from probtorch.effects.handlers import block
from probtorch.effects.handlers import seed as seed_handler
from probtorch.effects.modules import module
from probtorch.effects.primitives import param
from probtorch.effects.runtime import Handler
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer.model_calls import check_model
from probtorch.infer.sequential.importance import checked_count
from probtorch.nn.module import Module
from probtorch.ops.exponential_sums import softmax
from probtorch.ops.exponentials import sigmoid, softplus
from probtorch.ops.movement import reshape
from probtorch.ops.pieces import cat
from probtorch.ops.trigonometry import tanh

if TYPE_CHECKING:
    from probtorch.distributions.distribution import Distribution
    from probtorch.effects.site import Site

__all__ = ["AutoProposal"]

# Runs of the model by which data and values are brought to a common scale.
FIRST_RUNS = 100
# Scales of proposals are at least this share of what the prior has at an address.
LEAST_SCALE = 1e-3
# The share of each proposal that is the prior itself: what normals do not reach is found by it, and
# no site adds more than log(1 / PRIOR_SHARE) to a weight beside its likelihood (Hesterberg 1995).
PRIOR_SHARE = 0.05
NUMBER = re.compile(r"\d+")

# Of each coordinate its mean and standard deviation.
Moments = tuple[np.ndarray, np.ndarray]


@dataclass
class _Scales:
    """What data and unconstrained values are like under the prior, by name and by address."""

    data: dict[str, Moments] = field(default_factory=dict)
    values: dict[tuple[str, int], Moments] = field(default_factory=dict)


class AutoProposal:
    """A guide that runs the model and proposes a value at each address it comes to [le2017]_.

    Parameters
    ----------
    model : callable
        As for `CSIS`: it takes its data as ``observations``, a dict by site name. Its sites may
        differ from run to run.
    embed : Module or callable, optional
        From the dict of data to a vector; a module is trained along. By default two layers of a
        network on all numbers of the data, which have to be as many in each run.
    hidden : int
        Size of the recurrent state and of the layers.
    components : int
        Normals in the mixture that a continuous number is proposed from, on the unconstrained
        scale.
    prefix : str
        Part of the names of parameters.

    Raises
    ------
    ArgumentError
        If a size is no positive integer. When called: without data; if they are not those that it
        was trained with.

    Notes
    -----
    Continuous sites are proposed from mixtures of normals, number by number; Bernoulli and
    Categorical ones from their values' probabilities, which begin at those of the prior. A
    twentieth of each proposal is the prior itself [hesterberg1995]_, for tails that normals lack.
    Other discrete sites are drawn from the prior. An address is the name of a site with its numbers
    taken out, so names in loops should have them: ``f"x_{i}"``.

    Parameters come to be when an address is first met, as `param` statements. What is whitened by
    100 runs of the model does not depend on a seed, so parameters fit a guide made anew.

    References
    ----------
    [le2017]_, [baydin2019]_, [hesterberg1995]_.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import CSIS, AutoProposal
    >>> from probtorch.optim import Adam
    >>> def model(observations={"y": 0.0}):
    ...     z = probtorch.sample("z", dist.Normal(0.0, 1.0))
    ...     probtorch.sample("y", dist.Normal(z, 0.2), obs=probtorch.tensor(observations["y"]))
    >>> guide = AutoProposal(model, hidden=4)
    >>> csis = CSIS(model, guide, Adam({"lr": 0.05}), 50, training_batch_size=2, seed=0)
    >>> losses = [csis.step() for _ in range(10)]
    >>> csis.run(observations={"y": 1.0}).log_ratios.shape
    (50,)
    """

    @explained("AutoProposal")
    def __init__(
        self,
        model: Callable[..., object],
        embed: Callable[[Mapping[str, TensorBase]], TensorBase] | None = None,
        *,
        hidden: int = 64,
        components: int = 3,
        prefix: str = "proposal",
    ) -> None:
        check_model(model, "AutoProposal")
        self.model, self.embed, self.prefix = model, embed, prefix
        self.hidden = checked_count("AutoProposal", "hidden", hidden)
        self.components = checked_count("AutoProposal", "components", components)
        self._scales: _Scales | None = None

    def __repr__(self) -> str:
        return f"AutoProposal({getattr(self.model, '__name__', type(self.model).__name__)})"

    def __call__(
        self,
        *args: object,
        observations: Mapping[str, TensorLike] | None = None,
        **kwargs: object,
    ) -> None:
        """Run the model, and state proposals for its latent sites.

        Parameters
        ----------
        *args, **kwargs
            What the model is called with.
        observations : dict
            Its data.
        """
        if not observations:
            raise ArgumentError(
                "AutoProposal(observations=...)",
                expected="the data, by site name",
                got=repr(observations),
                fix="write csis.run(..., observations={'y': y})",
            )
        if self._scales is None:
            self._scales = self._first_look(args, {**kwargs, "observations": observations})
        data = {name: as_tensor(x) for name, x in sorted(observations.items())}
        read = self._read(data)
        with _Proposing(self, read):
            self.model(*args, observations=observations, **kwargs)

    # ------------------------------------------------------------------------------------ networks

    def layer(self, name: str, x: TensorBase, size: int, *, gain: float = 1.0) -> TensorBase:
        """An affine function of a vector, with parameters under a name."""
        (width,) = x.array.shape
        dtype = get_default_dtype()

        def weight() -> np.ndarray:
            # The same in every process: their order is that in which addresses are met.
            key = [ord(c) for c in f"{self.prefix}.{name}"]
            rng = np.random.default_rng(key)
            return (gain / math.sqrt(width) * rng.standard_normal((size, width))).astype(dtype)

        w = param(f"{self.prefix}.{name}.weight", weight)
        b = param(f"{self.prefix}.{name}.bias", lambda: np.zeros(size, dtype))
        if w.array.shape != (size, width):
            raise ArgumentError(
                f"AutoProposal: layer {name!r}",
                expected=f"{w.array.shape[1]} numbers to read, as when it was trained",
                got=f"{width}",
                fix="data and values of one address have one size; for data of any length give "
                "embed=, a function from the data to a vector",
            )
        return w @ x + b

    def _read(self, data: Mapping[str, TensorBase]) -> TensorBase:
        """The data as a vector of the network's size."""
        if self.embed is not None:
            if isinstance(self.embed, Module):
                module(f"{self.prefix}.embed", self.embed)
            read = reshape(as_tensor(self.embed(data)), (-1,))
        else:
            flat = [(reshape(x, (-1,)), self._scale_of(name, x)) for name, x in data.items()]
            read = cat([_whitened(x, moments) for x, moments in flat], 0)
            read = tanh(self.layer("data.0", read, self.hidden))
        return tanh(self.layer("data.1", read, self.hidden))

    def _scale_of(self, name: str, x: TensorBase) -> Moments:
        assert self._scales is not None
        found = self._scales.data.get(name)
        size = x.array.size
        return found if found is not None and found[0].size == size else _unit(size)

    def advance(self, state: TensorBase, read: TensorBase) -> TensorBase:
        """The recurrent state after reading a vector: a gated unit."""
        n = self.hidden
        both = cat([read, state], 0)
        gates = sigmoid(self.layer("core.gates", both, 2 * n))
        keep, reset = gates[:n], gates[n:]
        new = tanh(self.layer("core.new", cat([read, reset * state], 0), n))
        return keep * state + (1.0 - keep) * new

    def moments(self, address: str, size: int) -> Moments:
        """What unconstrained values at an address are like under the prior."""
        assert self._scales is not None
        return self._scales.values.get((address, size)) or _unit(size)

    # ---------------------------------------------------------------------------------- whitening

    def _first_look(self, args: Sequence[object], kwargs: Mapping[str, object]) -> _Scales:
        """Runs of the model without its data, by a generator of their own."""
        seen = _Looking()
        with no_grad(), block(), seed_handler(None, Generator(0)):
            for _ in range(FIRST_RUNS):
                # A draw that cannot be gone on from says nothing.
                with contextlib.suppress(Exception), seen:
                    self.model(*args, **kwargs)
        return _Scales(
            {name: _moments(rows) for name, rows in seen.data.items()},
            {key: _moments(rows) for key, rows in seen.values.items()},
        )


class _Looking(Handler):
    """Take down data and unconstrained values of runs in which all is drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.data: dict[str, list[np.ndarray]] = {}
        self.values: dict[tuple[str, int], list[np.ndarray]] = {}
        self._observed: set[int] = set()

    def on_sample(self, site: Site) -> None:
        """Let data be drawn."""
        if site.observed:
            self._observed.add(id(site))
            site.value, site.observed = None, False

    def after_sample(self, site: Site) -> None:
        """Keep what was drawn."""
        if id(site) in self._observed:
            self._observed.discard(id(site))
            self.data.setdefault(site.name, []).append(_flat(site.value))
        elif _is_latent(site) and not _is_discrete(site):
            free = _flat(biject_to(site.fn.support).inv(site.value))
            self.values.setdefault((_address(site.name), free.size), []).append(free)


class _Proposing(Handler):
    """Put proposals in the place of latent sites, and remember the run.

    Parameters
    ----------
    guide : AutoProposal
    read : Tensor
        The data, as a vector.
    """

    def __init__(self, guide: AutoProposal, read: TensorBase) -> None:
        super().__init__()
        self.guide, self.read = guide, read
        self.state = 0.0 * read
        self.before = 0.0 * read

    def on_sample(self, site: Site) -> None:
        """Hide data; give a latent site its proposal."""
        if site.observed or not _is_latent(site):
            site.stop = True
            return
        prior, guide, address = site.fn, self.guide, _address(site.name)
        number = NUMBER.findall(site.name)
        place = wrap(np.array([math.log1p(float(number[-1])) if number else 0.0]))
        which = tanh(guide.layer(f"{address}.place", place.to(self.read.dtype), guide.hidden))
        self.state = guide.advance(self.state, cat([self.read, which, self.before], 0))
        self._prior = prior
        site.fn = self._proposal(address, prior)

    def after_sample(self, site: Site) -> None:
        """Read the value that was taken."""
        if site.observed or not _is_latent(site):
            return
        guide, address, prior = self.guide, _address(site.name), self._prior
        with no_grad():
            value = site.value
            expected = tuple(prior.batch_shape) + tuple(prior.event_shape)
            if tuple(value.array.shape) != expected:
                raise InferenceError(
                    f"AutoProposal: the value of site {site.name!r}",
                    expected=f"one run at a time, shape {expected}",
                    got=f"shape {tuple(value.array.shape)}",
                    fix="particles are run one by one here",
                    at=site.location,
                )
            if _is_discrete(site):
                seen = reshape(value, (-1,)).to(self.read.dtype)
            else:
                free = reshape(biject_to(prior.support).inv(value), (-1,)).to(self.read.dtype)
                seen = _whitened(free, guide.moments(address, free.array.size))
        self.before = tanh(guide.layer(f"{address}.value", seen, guide.hidden))

    def on_factor(self, site: Site) -> None:
        """Hide it: guides have none."""
        site.stop = True

    def on_deterministic(self, site: Site) -> None:
        """Hide it: the model computes it again."""
        site.stop = True

    def _proposal(self, address: str, prior: Distribution) -> Distribution:
        """What the network proposes at an address."""
        guide, batch = self.guide, tuple(prior.batch_shape)
        support = prior.support
        if support.is_discrete:
            plain = prior
            if not isinstance(plain, (Bernoulli, Categorical)):
                return prior
            logits = plain.logits.detach()
            shift = guide.layer(f"{address}.logits", self.state, logits.array.size, gain=0.01)
            shifted = logits + reshape(shift, tuple(logits.array.shape))
            learnt = sigmoid(shifted) if isinstance(plain, Bernoulli) else softmax(shifted, -1)
            share = PRIOR_SHARE * plain.probs.detach()
            return type(plain)(probs=(1.0 - PRIOR_SHARE) * learnt + share)
        transform = biject_to(support)
        shape = transform.inverse_shape(batch + tuple(prior.event_shape))
        size, count = math.prod(shape), guide.components
        out = guide.layer(f"{address}.{size}.head", self.state, size * 3 * count, gain=0.01)
        out = reshape(out, (*shape, 3, count))
        mean, sd = (
            reshape(wrap(x.astype(self.read.dtype)), (*shape, 1))
            for x in guide.moments(address, size)
        )
        # Components begin side by side, so that they do not all learn the same.
        apart = wrap(np.linspace(-0.5, 0.5, count).astype(self.read.dtype)) if count > 1 else 0.0
        loc = mean + sd * (out[..., 0, :] + apart)
        # softplus(0.54) = 1.
        scale = sd * (softplus(out[..., 1, :] + 0.54) + LEAST_SCALE)
        normals = MixtureSameFamily(Categorical(logits=out[..., 2, :]), Normal(loc, scale))
        event = transform.domain.event_dim
        base = normals.to_event(event) if event else normals
        proposed = TransformedDistribution(base, transform, validate_args=False)
        shares = Categorical(probs=wrap(np.array([1.0 - PRIOR_SHARE, PRIOR_SHARE])))
        return MixtureGeneral(shares, [proposed, prior], support=support, validate_args=False)


def _is_latent(site: Site) -> bool:
    return not site.observed and hasattr(site.fn, "log_prob") and not isinstance(site.fn, Delta)


def _is_discrete(site: Site) -> bool:
    return bool(site.fn.support.is_discrete)


def _address(name: str) -> str:
    """A site's name without its numbers: what the turns of a loop share."""
    return NUMBER.sub("#", name)


def _flat(x: TensorBase) -> np.ndarray:
    return np.asarray(to_host(x.array), np.float64).reshape(-1)


def _whitened(x: TensorBase, moments: Moments) -> TensorBase:
    mean, sd = (wrap(m.astype(x.array.dtype)) for m in moments)
    return (x - mean) / sd


def _moments(rows: Sequence[np.ndarray]) -> Moments:
    """Of each coordinate, from rows of one size; others are passed over."""
    same = np.stack([row for row in rows if row.size == rows[0].size])
    same = np.where(np.isfinite(same), same, np.nan)
    with np.errstate(invalid="ignore"):
        middle = np.nan_to_num(np.nanmedian(same, axis=0))
        # Robust: priors may have no variance.
        spread = 1.4826 * np.nanmedian(np.abs(same - middle), axis=0)
    return middle, np.where(np.isfinite(spread) & (spread > 0.0), spread, 1.0)


def _unit(size: int) -> Moments:
    return np.zeros(size), np.ones(size)


explain_calls(globals())
