"""`ManyTarget`: the posterior of a model whose arguments can be exchanged, compiled once.

The density is compiled as a function of parameters and data (compiler/data_density.py); `at` gives
a target like it with other data, at the cost of copying them.
"""

from __future__ import annotations

import contextlib
import copy
import math
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from probtorch.compiler.data_density import DataDensity
from probtorch.core.dispatch import wrap
from probtorch.core.rng import Generator
from probtorch.core.tensor_base import is_tensor
from probtorch.core.tree import flatten
from probtorch.errors import InferenceError
from probtorch.infer.approximations.second_order import hessian_row
from probtorch.infer.gradient_check import ParameterCheck
from probtorch.infer.many.data_sets import DataGroup, ModelCall, with_tensors
from probtorch.infer.mapping import DrawMap
from probtorch.infer.model_runs import in_float64, lifted
from probtorch.infer.potential import ModelTarget
from probtorch.infer.starts.initialization import uniform_point
from probtorch.tensor import Tensor

__all__ = ["ManyTarget", "check_meaning"]

# What is compiled when it is first asked for, for the data of one target in one process.
_COMPILED = ("density", "curved_density")


class ManyTarget(ModelTarget):
    """The posterior of a model given one of many data sets that are alike.

    Parameters
    ----------
    model : callable
    call : ModelCall
        The first of them.
    """

    def __init__(self, model: Callable[..., object], call: ModelCall) -> None:
        self.group = DataGroup(call)
        self._flat = self.group.packed(call)
        self._exchanging = threading.RLock()
        given = with_tensors(call)
        super().__init__(model, given.args, given.kwargs)
        self._values_map = DrawMap(self._values)
        self._hessian_map = DrawMap(self._hessian_row, few=1)  # for all data sets

    def __getstate__(self) -> dict[str, object]:
        state = {**self.__dict__, "_exchanging": None}
        for name in _COMPILED:
            state.pop(name, None)
        return state

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state, _exchanging=threading.RLock())

    def at(self, call: ModelCall) -> ManyTarget:
        """Return the posterior given other data of the kind."""
        with self._exchanging:
            density = self.density
        made = copy.copy(self)
        made._exchanging = self._exchanging
        given = with_tensors(call)
        with in_float64():
            made.args, made.kwargs = lifted(given.args), lifted(given.kwargs)
        made._sums = self._sums.of_run(made.run)
        made._log_likelihood_map = DrawMap(made._log_likelihood_one)
        for name in _COMPILED:
            made.__dict__.pop(name, None)
        made._flat = self.group.packed(call)
        made.density = density.with_data(made._flat)
        return made

    @contextlib.contextmanager
    def _given(self, flat: Tensor) -> Iterator[None]:
        """Return a context in which the data are those of a vector, a Tensor."""
        with self._exchanging:  # who records or checks the model here, while other threads sample
            before = self.args, self.kwargs
            self.args, self.kwargs = self.group.arguments(flat)
            try:
                yield
            finally:
                self.args, self.kwargs = before

    def _joint(self, q: Tensor, flat: Tensor) -> Tensor:
        with self._given(flat):
            return self.logdensity(q)

    def _values(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        with self._given(inputs["data"]):
            return self.constrain(inputs["q"])

    def _hessian_row(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        with self._given(inputs["data"]):
            return {"row": hessian_row(self.logdensity, inputs["q"], inputs["i"])}

    def hessian_rows(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return rows of the second derivatives given the data at hand; see `Hessians`."""
        data = np.broadcast_to(self._flat, (len(inputs["q"]), len(self._flat)))
        return self._hessian_map({**inputs, "data": data})

    @cached_property
    def density(self) -> Any:  # a NativeDensity in all that samplers ask of it
        """The log density and its gradient as native code, with the data exchangeable."""
        return DataDensity(
            self._joint,
            self.dim,
            self._flat,
            name=f"the log density of {self.name}",
            check=ParameterCheck(self.name, self.slots, self.dim),
        )

    def values(self, positions: np.ndarray, data: np.ndarray) -> dict[str, np.ndarray]:
        """Return the variables for draws of several data sets.

        Parameters
        ----------
        positions : ndarray, shape (data sets, chain, draw, dim)
        data : ndarray, shape (data sets, size)

        Returns
        -------
        dict of str to ndarray, each (data sets, chain, draw, *shape)
        """
        lead = positions.shape[:3]
        rows = np.broadcast_to(data[:, None, None, :], (*lead, data.shape[1]))
        return self._values_map({"q": positions, "data": rows}, 3)


def _without_labels(x: Any) -> object:
    """The array of a table or column of pandas, which goes by its labels."""
    return x.to_numpy() if hasattr(x, "to_numpy") else x


def check_meaning(target: ManyTarget, data: object) -> None:
    """Refuse a model to which arrays mean something else than tensors of them, which it gets here.

    Parameters
    ----------
    target : ManyTarget
    data : object
        Its data set as the user has given it.

    Raises
    ------
    InferenceError
    """
    named = issubclass(type(data), Mapping)
    given = () if named else data if isinstance(data, tuple) else (data,)
    args = tuple(map(_without_labels, given))
    kwargs = {str(n): _without_labels(x) for n, x in data.items()} if named else {}  # type: ignore[attr-defined]
    if all(is_tensor(x) for x in flatten((args, kwargs))[0]):
        return
    q = wrap(uniform_point(Generator(0), (target.dim,)))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            other = ModelTarget(target.model, args, kwargs, whole=True)
            expected = float(other.logdensity(q).item())
    except Exception:  # one written for tensors
        return
    found = float(target.logdensity(q).item())
    if other.dim != target.dim or math.isclose(found, expected, rel_tol=1e-6, abs_tol=1e-6):
        return
    if math.isnan(found) and math.isnan(expected):
        return
    raise InferenceError(
        f"fit_many: to {target.name} arrays mean something else than tensors of them",
        expected="the same log density for the first data set as it is and as tensors, with which "
        "the model is compiled",
        got=f"{expected:.6g} as it is, {found:.6g} with tensors",
        fix="write what means the same to both, or the model for tensors: y.std(correction=0) is "
        "NumPy's y.std(), and x / n of whole numbers needs x.double()",
    )
