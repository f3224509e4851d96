"""`CSIS`: a guide that is trained to propose for any data, then importance sampling with it.

Inference compilation [le2017]_: runs of the model without its data are pairs of latent values and
data. The guide, which is given the data as `observations`, learns to find the values probable: the
loss is the mean of its negative log density over such runs, an upper bound of how far it is from
the posterior of all data sets together. Training costs no data; afterwards each data set takes one
call of `run`. `Importance` (importance.py) is what that does, `SVI` what takes the steps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from probtorch.autograd.modes import no_grad
from probtorch.core.rng import Generator, default_generator, generator_of
from probtorch.core.signatures import explain_calls, explained
from probtorch.core.tensor_base import TensorBase
from probtorch.effects.handlers import replay, trace
from probtorch.effects.handlers import seed as seed_handler
from probtorch.effects.runtime import Handler
from probtorch.effects.site import Site
from probtorch.effects.trace import Trace
from probtorch.errors import InferenceError, ModelError
from probtorch.infer.model_calls import check_model, check_model_call
from probtorch.infer.model_runs import untraced
from probtorch.infer.sequential.importance import Importance, checked_count
from probtorch.infer.vi.svi import SVI
from probtorch.infer.vi.updater import Optim

__all__ = ["CSIS"]


class _Unobserving(Handler):
    """Draw what is observed, and take down its names."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def on_sample(self, site: Site) -> None:
        if site.observed:
            self.names.append(site.name)
            site.value, site.observed = None, False


class CSIS(Importance):
    """Compiled sequential importance sampling: importance sampling with a trained guide [le2017]_.

    Parameters
    ----------
    model : callable
        Takes its data as ``observations``, a dict by site name, and observes them at these sites.
    guide : callable
        Takes the same arguments, and draws the latent sites by a distribution that depends on
        ``observations``, with parameters to learn: a network, mostly.
    optim : optimizer
        As for `SVI`.
    num_inference_samples : int
        Draws of `run`.
    training_batch_size, validation_batch_size : int
        Runs of the model for a step, and for the validation loss.
    seed : int or Generator, optional
        Where random numbers come from; the default generator if None.

    References
    ----------
    [le2017]_.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> from probtorch.infer import CSIS
    >>> from probtorch.optim import Adam
    >>> def model(observations={"y": 0.0}):
    ...     z = probtorch.sample("z", dist.Normal(0.0, 1.0))
    ...     probtorch.sample("y", dist.Normal(z, 1.0), obs=probtorch.tensor(observations["y"]))
    >>> def guide(observations={"y": 0.0}):
    ...     slope = probtorch.param("slope", probtorch.tensor(0.0))
    ...     probtorch.sample("z", dist.Normal(slope * observations["y"], 0.8))
    >>> csis = CSIS(model, guide, Adam({"lr": 0.05}), num_inference_samples=500, seed=0)
    >>> losses = [csis.step() for _ in range(150)]
    >>> found = csis.run(observations={"y": 2.0})
    >>> bool(abs(found.expectation("z") - 1.0) < 0.15)
    True
    """

    @explained("CSIS", meant={"num_samples": "num_inference_samples"})
    def __init__(
        self,
        model: Callable[..., object],
        guide: Callable[..., object],
        optim: Optim,
        num_inference_samples: int = 10,
        training_batch_size: int = 10,
        validation_batch_size: int = 20,
        *,
        seed: int | Generator | None = None,
    ) -> None:
        generator = None if seed is None else generator_of(seed)
        count = checked_count("CSIS", "num_inference_samples", num_inference_samples)
        super().__init__(model, guide, count, seed=generator)
        check_model(guide, "CSIS", "guide")
        self.proposal = guide
        self.training_batch_size = checked_count("CSIS", "training_batch_size", training_batch_size)
        self.validation_batch_size = checked_count(
            "CSIS", "validation_batch_size", validation_batch_size
        )
        self.svi = SVI(model, guide, optim, self._loss, seed=generator)
        self._validation: list[Trace] = []
        # The sites of runs, as they come; of several kinds no program is made.
        self._kinds: set[tuple[str, ...]] = set()

    def step(self, *args: object, **kwargs: object) -> float:
        """Take one step on fresh runs of the model, and return its loss.

        Parameters
        ----------
        *args, **kwargs
            What the model is called with; `observations` only say which sites have data, and may be
            left out where the model has a default.

        Returns
        -------
        float
            Mean negative log density of the guide, in nats.
        """
        check_model_call(self.model, args, kwargs, "csis.step")
        if len(self._kinds) > 1 and self.svi.compiled.reason is None:
            self.svi.compiled.reason = (
                "runs of the model have different sites, so each batch of them is another program"
            )
        return self.svi.step(*args, **kwargs)

    def set_validation_batch(self, *args: object, **kwargs: object) -> None:
        """Draw the runs of the model that `validation_loss` is computed on."""
        with no_grad(), seed_handler(None, self._generator or default_generator):
            self._validation = [
                self._joint(args, kwargs) for _ in range(self.validation_batch_size)
            ]

    def validation_loss(self, *args: object, **kwargs: object) -> float:
        """Return the loss on runs that are the same every time; nothing is moved.

        Raises
        ------
        InferenceError
            If `set_validation_batch` was not called.
        """
        if not self._validation:
            raise InferenceError(
                "CSIS.validation_loss",
                expected="runs of the model to compute it on",
                got="none",
                fix="call set_validation_batch(...) once",
            )
        with no_grad(), self._surroundings():
            losses = [self._particle(joint, args, kwargs) for joint in self._validation]
        return float(sum(losses, start=0.0 * losses[0])) / len(losses)

    def _surroundings(self) -> contextlib.AbstractContextManager[object]:
        """The parameters that were learnt."""
        return self.svi.params.activate()

    def _loss(
        self,
        model: Callable[..., object],
        guide: Callable[..., object],
        *args: object,
        **kwargs: object,
    ) -> TensorBase:
        """The loss of a step, differentiable in the guide's parameters."""
        total: TensorBase | None = None
        for _ in range(self.training_batch_size):
            with no_grad():
                joint = self._joint(args, kwargs)
            term = self._particle(joint, args, kwargs)
            total = term if total is None else total + term
        assert total is not None
        return total / float(self.training_batch_size)

    def _joint(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Trace:
        """A run of the model with its data drawn; sites that it observes are observed in it."""
        with untraced(), trace() as found, _Unobserving() as drawn:
            self.model(*args, **kwargs)
        if not drawn.names:
            raise ModelError(
                "CSIS: the model",
                expected="sites with obs=observations[...]",
                got="none",
                fix="write sample('y', ..., obs=observations['y'])",
            )
        for name in drawn.names:
            found[name].observed = True
        if len(self._kinds) < 2:
            self._kinds.add(tuple(found.stochastic_nodes))
        return found

    def _particle(
        self, joint: Trace, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> TensorBase:
        """Negative log density of the guide at the latent values of a run, given its data."""
        data = {name: joint[name].value for name in joint.observation_nodes}
        latent = {n: s for n, s in joint.items() if s.kind == "sample" and not s.observed}
        with untraced(), trace() as proposed, replay(None, latent):
            self.proposal(*args, **{**kwargs, "observations": data})
        for name in proposed.stochastic_nodes:
            if name not in latent and not proposed[name].infer.get("is_auxiliary"):
                raise ModelError(
                    f"guide site {name!r} is no latent site of the model",
                    expected=f"latent sites of the run: {', '.join(map(repr, latent)) or 'none'}",
                    got=repr(name),
                    fix="draw in the guide what the model draws, branch for branch",
                    at=proposed[name].location,
                )
        return -proposed.log_prob_sum()


explain_calls(globals())
