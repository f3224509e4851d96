"""The posterior given two sets of data, one of which can be exchanged: for `posterior_sbc`.

`AugmentedTarget` is its density, for kernels. `Twice` is a model of both sets, for whatever else
samples a posterior: it runs the user's model once for the further data, and once more with the same
parameters for the data that were there. Discrete sites that are summed out are of one of the sets.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.effects.handlers import trace
from probtorch.effects.runtime import Handler
from probtorch.effects.site import Site
from probtorch.errors import InferenceError
from probtorch.infer.calibration.simulated import Arrays, SimulatedMixedTarget, SimulatedTarget
from probtorch.tensor import Tensor

__all__ = ["FIRST", "AugmentedMixedTarget", "AugmentedTarget", "Twice"]

# Sites of the data that were there have this before their names.
FIRST = "first/"


class AugmentedTarget(SimulatedTarget):
    """The posterior given data, and more data of the same kind that can be exchanged.

    Parameters
    ----------
    model, args, kwargs
    data : dict of ndarray
        The first further data, by site.
    original : dict of ndarray
        The data that stay.
    """

    def __init__(
        self,
        model: Callable[..., object],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        data: Arrays,
        original: Arrays,
    ) -> None:
        self._original = {name: np.asarray(x, data[name].dtype) for name, x in original.items()}
        super().__init__(model, args, kwargs, data)
        if self._sums.branches:
            name = self._sums.branches[0].names[0]
            raise InferenceError(
                f"posterior_sbc: site {name!r} is enumerated sequentially",
                expected="sites that are summed out in parallel, or moved by a kernel",
                got="a model with branches, whose two sets of data would share the branch",
                fix="write the branch as where(), or take sbc(model), which asks this of none",
            )

    def logdensity(self, q: Tensor) -> Tensor:
        """Return the log density of parameters and both sets of data at `q`."""
        density = super().logdensity(q)
        with self._given(wrap(self.pack_data(self._original))):
            return density + self._likelihood(q)


class AugmentedMixedTarget(AugmentedTarget, SimulatedMixedTarget):
    """The same with discrete sites as coordinates, which both sets of data share."""


class Twice:
    """A model of the data that it is called with, and of more data of the same kind.

    Parameters
    ----------
    model : callable
    parameters : collection of str
        Latent sites that both sets of data share.

    Notes
    -----
    The sites of the further data have the names of the model's, so that they can be conditioned;
    those of the data that it is called with are `FIRST` and that name.
    """

    def __init__(self, model: Callable[..., object], parameters: Collection[str]) -> None:
        self.model, self.parameters = model, tuple(parameters)
        self.__name__ = getattr(model, "__name__", type(model).__name__)

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Run the model for both sets; returns what it returns for the further one."""
        with trace() as seen:
            returned = self.model(*args, **kwargs)
        with _Again({name: seen[name].value for name in self.parameters}):
            self.model(*args, **kwargs)
        return returned


class _Again(Handler):
    """Give parameters the values that they have, and all that is stated besides another name."""

    def __init__(self, values: Mapping[str, object]) -> None:
        super().__init__()
        self.values = values

    def on_sample(self, site: Site) -> None:
        if site.name in self.values and not site.observed:
            site.value, site.stop = self.values[site.name], True
        else:
            site.name = FIRST + site.name

    def on_deterministic(self, site: Site) -> None:
        site.name = FIRST + site.name

    on_plate = on_deterministic
