"""What kernels with a metric and a step size have in common: their settings, and their warm-up.

`MetricKernel` has proposals shaped by a mass matrix that warm-up learns; `StepSizeKernel` has a
step size beside it, `SteppingKernel` one that is tuned by the acceptance. Pyro's signatures, with
NumPyro's names as keyword aliases, are those of `NUTS` (nuts.py) and `HMC` (hmc.py); here each
setting is stated once.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from probtorch.core.arguments import choice_of
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import replace
from probtorch.errors import ArgumentError
from probtorch.infer.mcmc.kernel import Kernel, S, setting, tuned
from probtorch.infer.mcmc.warm_up.adaptation import AcceptanceTuner, Tuner, Warmup, find_step_size
from probtorch.infer.mcmc.warm_up.forms import Form
from probtorch.infer.mcmc.warm_up.mass_matrix import MassMatrix
from probtorch.infer.mcmc.warm_up.metric_settings import (
    FORMS,
    FORMS_OF_DRAWS,
    block_places,
    chosen_metric,
    form_of,
    given_inverse_mass,
    metric_of,
)

if TYPE_CHECKING:
    from probtorch.infer.mcmc.kernels.hmc import HMCState
    from probtorch.infer.mcmc.randomness import Key
    from probtorch.infer.mcmc.warm_up.estimates import Spectrum
    from probtorch.infer.potential import Target


__all__ = ["ACCEPTANCE", "MetricKernel", "StepSizeKernel", "SteppingKernel"]

# What trajectories are tuned to where nothing is said: Stan's value, slower than the optimum of
# HMC in many dimensions, 0.651, and with fewer divergences.
ACCEPTANCE = 0.8


class MetricKernel(Kernel[S]):
    """A kernel whose proposals are shaped by a metric, which warm-up learns.

    Parameters
    ----------
    metric : str or sequence of sequences of str
        What the mass matrix looks like: "diag", "low_rank", "dense", blocks of sites, or "auto"; in
        a chain it is the metric in use.
    adapt_mass_matrix : bool
        Whether warm-up learns it.
    inverse_mass_matrix : array_like or dict, optional
        What to begin with or to keep.
    """

    # Whether states have gradients, from which a metric and a first step size are found; without
    # them draws have to do.
    gradients: ClassVar[bool] = True

    metric: Any = tuned(default="auto")
    adapt_mass_matrix: bool = setting(default=True)
    inverse_mass_matrix: Any = setting(default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.gradients:
            learnt = "leave it out: other forms are learnt from gradients, which it does not have"
            choice_of(self.name, "metric", self.metric, FORMS_OF_DRAWS, learnt)
        self._set(
            metric=chosen_metric(self.name, self.metric, None, None),
            adapt_mass_matrix=bool(self.adapt_mass_matrix),
            inverse_mass_matrix=given_inverse_mass(self.name, self.inverse_mass_matrix),
        )

    def form(self, dim: int, places: Sequence[np.ndarray] = ()) -> Form:
        """Return the `Form` of mass matrices for `dim` coordinates, with blocks at `places`."""
        forms = FORMS if self.gradients else FORMS_OF_DRAWS
        return form_of(self.metric, self.inverse_mass_matrix, dim, places, forms)

    def form_for(self, target: Target) -> Form:
        """Return the `Form` of mass matrices of a target."""
        places = block_places(self.name, self.metric, self.inverse_mass_matrix, target)
        return self.form(target.dim, places)

    def first_values(
        self, target: Target, state: S, spectrum: Spectrum | None, warming: bool
    ) -> Mapping[str, object]:
        """Return the metric to begin with.

        Raises
        ------
        ShapeError
            If the inverse mass matrix that was given does not fit the target.
        """
        form = self.form_for(target)
        if self.inverse_mass_matrix is not None:
            return {"metric": metric_of(self.name, self.inverse_mass_matrix, form, target)}
        if not (self.adapt_mass_matrix and warming):
            return {"metric": form.identity()}
        if spectrum is not None:
            return {"metric": form.of_spectrum(spectrum)}
        if not self.gradients:
            return {"metric": form.identity()}
        # Where there are gradients, states have them.
        return {"metric": form.of_gradient(cast("HMCState", state).grad.array)}

    def blank_values(self, dim: int, leaves: Sequence[np.ndarray]) -> Mapping[str, object]:
        """Return a metric of the kind that a saved chain has."""
        # The coordinates of dense blocks are the only vectors of whole numbers in a chain.
        places = [x for x in leaves if x.ndim == 1 and x.dtype == np.int64]
        return {"metric": self.form(dim, places).identity()}

    @property
    def warmup(self) -> Warmup:
        """The metric is learnt."""
        return Warmup(learner=self._learner if self.adapt_mass_matrix else None)

    def _learner(self, target: Target, position: np.ndarray) -> MassMatrix:
        return MassMatrix(self.form_for(target), position)

    def attrs(self) -> dict[str, object]:
        """Return the settings that results should carry."""
        return {
            **super().attrs(),
            "metric": self.metric if isinstance(self.metric, str) else str(self.metric),
            "adapt_mass_matrix": self.adapt_mass_matrix,
        }


class StepSizeKernel(MetricKernel[S]):
    """A kernel with a metric and a step size, which warm-up tunes.

    Parameters
    ----------
    step_size : float
        To begin with, or to keep.
    adapt_step_size : bool
        Whether warm-up tunes it.
    find_heuristic_step_size : bool, optional
        Whether to look for a step size before adapting it; by default whenever it is adapted.
    """

    step_size: Any = tuned(default=1.0, between=(0.0, math.inf))
    adapt_step_size: bool = setting(default=True)
    find_heuristic_step_size: bool | None = setting(default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        search, adapts = self.find_heuristic_step_size, bool(self.adapt_step_size)
        if search and not self.gradients:
            raise ArgumentError(
                f"{self.name}(find_heuristic_step_size=...)",
                expected="False",
                got=repr(search),
                fix="leave it out: it is found by a step along the gradient",
            )
        search = adapts and self.gradients if search is None else bool(search)
        self._set(adapt_step_size=adapts, find_heuristic_step_size=search)

    def first_guess(self, key: Key, state: S) -> tuple[TensorBase, S]:
        """Return a step size at which a leapfrog step is accepted, and the state after the search.

        See `find_step_size`; the state has a gradient.
        """
        start = cast("HMCState", state)
        step_size, counter = find_step_size(
            self.density, self.metric, key, state.counter, start, self.step_size
        )
        return step_size, replace(state, counter=counter)

    def tuner(self) -> Tuner:
        """Return what tunes the step size, as a chain begins with it."""
        raise NotImplementedError(type(self).__name__)

    @property
    def warmup(self) -> Warmup:
        """The step size is tuned, and the metric learnt."""
        return dataclasses.replace(
            super().warmup,
            tuner=self.tuner(),
            tunes=self.adapt_step_size,
            searches=bool(self.find_heuristic_step_size),
        )

    def attrs(self) -> dict[str, object]:
        """Return the settings that results should carry."""
        return {**super().attrs(), "adapt_step_size": self.adapt_step_size}


class SteppingKernel(StepSizeKernel[S]):
    """A kernel whose step size is tuned by the acceptance.

    Parameters
    ----------
    target_accept_prob : float, in (0, 1)
        Acceptance that it is tuned to.
    """

    target_accept_prob: float = setting(default=ACCEPTANCE, between=(0.0, 1.0))

    # The field of the info that is compared with the target.
    follows: ClassVar[str] = "accept_prob"

    def _settle(self, given: dict[str, Any]) -> None:
        """Take over the arguments of a constructor with Pyro's signature, by name."""
        if given["transforms"] is not None:
            raise ArgumentError(
                f"{self.name}(transforms=...)",
                expected="None",
                got=type(given["transforms"]).__name__,
                fix="a site is transformed by the support of its distribution; see reparam",
            )
        spellings = given["metric"], given["full_mass"], given["dense_mass"]
        known = {f.name: f.default for f in dataclasses.fields(self) if f.init}
        self._set(**{name: given.get(name, default) for name, default in known.items()})
        self._set(metric=chosen_metric(self.name, *spellings))
        self.__post_init__()

    def tuner(self) -> Tuner:
        """Return what tunes the step size, as a chain begins with it."""
        return AcceptanceTuner.around(
            self.step_size, self.target_accept_prob, follows=self.follows, searches=self.gradients
        )

    def attrs(self) -> dict[str, object]:
        """Return the settings that results should carry."""
        return {**super().attrs(), "target_accept_prob": self.target_accept_prob}
