"""Pyro's optimizers: options first, parameters as they turn up.

In Pyro a model's parameters come into being while it runs, so an optimizer is made from options
alone and is handed parameters at each step. `PyroOptim` makes one PyTorch-style optimizer per
parameter when it first meets it; `PyroLRScheduler` adds a learning-rate schedule to each. The
optimizer classes return one when they are given a dict or a function in place of parameters:
``Adam({"lr": 1e-3})``.
"""

from __future__ import annotations

import inspect
import numbers
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np

from probtorch.autograd.modes import no_grad
from probtorch.core.dispatch import wrap
from probtorch.core.signatures import explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import StateDict
from probtorch.errors import ArgumentError, DTypeError, UnknownNameError
from probtorch.ops import arithmetic
from probtorch.ops.reduction import sum as total
from probtorch.optim.typed import Group, Options
from probtorch.serialization import load, save
from probtorch.serialization.saving import MapLocation
from probtorch.tensor import Tensor

__all__ = ["PyroLRScheduler", "PyroOptim", "by_step_size", "is_step_size"]

# The forms in which parameters come to a step.
Named: TypeAlias = Tensor | Mapping[str, Tensor] | Iterable[Tensor] | Iterable[tuple[str, Tensor]]


class PyroOptim:
    """An optimizer that meets its parameters one by one.

    Parameters
    ----------
    optim_constructor : callable
        ``optim_constructor([tensor], **optim_args)`` makes the optimizer of one parameter.
    optim_args : dict, or callable
        Its options, or a function from the name of a parameter to them (Pyro's older
        ``(module_name, param_name)`` is accepted too). "lr" may be a function, too: from the number
        of steps before, a 0-d tensor, to the size of the step.
    clip_args : dict, or callable, optional
        "clip_norm" bounds the Euclidean norm of each parameter's gradient, "clip_value" the size of
        its elements; or a function from a name to such a dict.

    Raises
    ------
    DTypeError, ArgumentError
        If the arguments are neither dicts nor functions, or `clip_args` has other entries.

    Examples
    --------
    >>> from probtorch import tensor
    >>> from probtorch.optim import Adam
    >>> optimizer = Adam({"lr": 0.1}, {"clip_norm": 10.0})
    >>> p = tensor([1.0], requires_grad=True)
    >>> (p * p).sum().backward()
    >>> optimizer({"loc": p})
    >>> p
    tensor([0.9000], requires_grad=True)
    """

    def __init__(
        self,
        optim_constructor: Callable[..., object],
        optim_args: Options | None = None,
        clip_args: Options | None = None,
    ) -> None:
        optim_args = {} if optim_args is None else optim_args
        clip_args = {} if clip_args is None else clip_args
        for name, value in {"optim_args": optim_args, "clip_args": clip_args}.items():
            if not callable(value) and not isinstance(value, dict):
                raise DTypeError(
                    name,
                    expected="a dict, or a function from a parameter's name to one",
                    got=f"{type(value).__name__} {value!r:.60}",
                    fix='write {"lr": 1e-3}',
                )
        if isinstance(clip_args, dict):
            _check_clipping(clip_args)
        if isinstance(optim_args, dict) and hasattr(optim_constructor, "add_param_group"):
            # Options that it refuses are refused here, not at the first step.
            _scheduled(optim_constructor, wrap(np.zeros((1, 1), np.float32)), optim_args)
        self.pt_optim_constructor = optim_constructor
        self.pt_optim_args = optim_args
        self.pt_clip_args = clip_args
        self.optim_objs: dict[Tensor, Any] = {}
        self._names: dict[Tensor, str] = {}
        self._clips: dict[Tensor, Group] = {}
        self._waiting: dict[str, StateDict] = {}

    def __repr__(self) -> str:
        return f"{self.pt_optim_constructor.__name__}({self.pt_optim_args})"

    def __getattr__(self, name: str) -> object:
        if name in ("step", "zero_grad", "param_groups", "add_param_group"):
            kind = getattr(self.pt_optim_constructor, "__name__", "Adam")
            raise UnknownNameError(
                f"{type(self).__name__!r} object has no attribute {name!r}",
                expected="an optimizer over parameters, where you take the steps",
                got="one made of options alone, for SVI",
                fix=f"write {kind}(module.parameters(), lr=0.01)",
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name)

    def __call__(self, params: Named, *args: object, **kwargs: object) -> None:
        """Move `params` once along their gradients; those without one stay.

        Parameters
        ----------
        params : dict of name to Tensor, or iterable of Tensor or of (name, Tensor)
            A parameter keeps the name it first came with; without one it is named by the order in
            which it appeared.
        *args, **kwargs
            Passed on to the `step` of optimizers that are not of this package.
        """
        optimizers = []
        for p in self.meet(params):
            clip = self._clips[p]
            if clip and p.grad is not None:
                _clip(p, clip)
            optimizers.append(_inner(self.optim_objs[p]))
        together = getattr(type(optimizers[0]), "step_together", None) if optimizers else None
        if together is not None and not args and not kwargs:
            together(optimizers)
        else:
            for optimizer in optimizers:
                optimizer.step(*args, **kwargs)

    def meet(self, params: Named) -> list[Tensor]:
        """Make the optimizers of parameters that are new; `__call__` does it by itself.

        Parameters
        ----------
        params : dict of name to Tensor, or iterable of Tensor or of (name, Tensor)

        Returns
        -------
        list of Tensor
            All of them.
        """
        found = []
        for name, p in _named(params):
            if p not in self.optim_objs:
                self._meet(name, p)
            found.append(p)
        return found

    def _meet(self, name: str | None, p: Tensor) -> None:
        if name is None:
            name = str(len(self._names))
        if name in self._names.values():
            raise ArgumentError(
                f"parameter {name!r}",
                expected="a new name for a new parameter",
                got="a tensor other than the one that has this name",
                fix="reuse the tensor, or make a new optimizer after clearing parameters",
            )
        self._names[p] = name
        clip = self._for(self.pt_clip_args, name)
        _check_clipping(clip)
        self._clips[p] = clip
        self.optim_objs[p] = self._make(p, self._for(self.pt_optim_args, name))
        if name in self._waiting:
            _load(self.optim_objs[p], self._waiting.pop(name))

    def _make(self, p: Tensor, options: Group) -> object:
        return _scheduled(self.pt_optim_constructor, p, options)

    @staticmethod
    def _for(options: Options, name: str) -> Group:
        """Return the options of the parameter `name`."""
        if isinstance(options, dict):
            return options
        if len(inspect.signature(options).parameters) == 2:
            module, _, rest = name.rpartition(".")
            found = options(module or None, rest)
        else:
            found = options(name)
        if not isinstance(found, dict):
            raise DTypeError(
                f"options of parameter {name!r}",
                expected="a dict",
                got=f"{type(found).__name__} {found!r:.60}",
                fix='let the function return one, for example {"lr": 1e-3}',
            )
        return found

    def get_state(self) -> dict[str, StateDict]:
        """Return the `state_dict` of each parameter's optimizer, by the parameter's name."""
        found = {self._names[p]: _saved(o) for p, o in self.optim_objs.items()}
        return {**self._waiting, **found}

    def set_state(self, state_dict: Mapping[str, StateDict]) -> None:
        """Take over what `get_state` returned; parameters not met yet get theirs when they come."""
        objects = {self._names[p]: o for p, o in self.optim_objs.items()}
        for name, state in state_dict.items():
            if name in objects:
                _load(objects[name], state)
            else:
                self._waiting[name] = state

    def save(self, filename: str | os.PathLike[str]) -> None:
        """Write `get_state` to a file; see `probtorch.save`."""
        save(self.get_state(), filename)

    def load(self, filename: str | os.PathLike[str], map_location: MapLocation = None) -> None:
        """Take over the state of a file that `save` wrote; `map_location` as `probtorch.load`."""
        self.set_state(load(filename, map_location))


class PyroLRScheduler(PyroOptim):
    """A `PyroOptim` with a learning-rate schedule.

    Parameters
    ----------
    scheduler_constructor : callable
        A class of `optim.lr_scheduler`.
    optim_args : dict, or callable
        "optimizer" is a class of optimizers, "optim_args" its options; other entries go to
        `scheduler_constructor`. Or a function from a parameter's name to such a dict.
    clip_args : dict, or callable, optional
        See `PyroOptim`.

    Examples
    --------
    >>> from probtorch.optim import Adam
    >>> from probtorch.optim.lr_scheduler import ExponentialLR
    >>> schedule = PyroLRScheduler(
    ...     ExponentialLR, {"optimizer": Adam, "optim_args": {"lr": 0.01}, "gamma": 0.1}
    ... )
    """

    def __init__(
        self,
        scheduler_constructor: Callable[..., object],
        optim_args: Options,
        clip_args: Options | None = None,
    ) -> None:
        super().__init__(scheduler_constructor, optim_args, clip_args)
        if isinstance(optim_args, dict):
            _check_schedule(optim_args)

    def _make(self, p: Tensor, options: Group) -> object:
        _check_schedule(options)
        rest = {k: v for k, v in options.items() if k not in ("optimizer", "optim_args")}
        optimizer = options["optimizer"]([p], **options.get("optim_args", {}))
        return self.pt_optim_constructor(optimizer, **rest)

    def step(self, *args: object, **kwargs: object) -> None:
        """Advance every schedule, usually once per epoch."""
        for scheduler in self.optim_objs.values():
            scheduler.step(*args, **kwargs)


def is_step_size(x: object) -> bool:
    """Whether what an optimizer is given first is a number: NumPy's and 0-d constants, too."""
    if isinstance(x, (TensorBase, np.ndarray)):
        return x.ndim == 0 and not getattr(x, "requires_grad", False)
    return isinstance(x, numbers.Real)


def by_step_size(
    kind: str, params: object, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> Group:
    """Return the options of an optimizer that is given a step size first, as NumPyro's are.

    Parameters
    ----------
    kind : str
        The optimizer's name.
    params : float, or ()
        The step size, unless it is among `kwargs`.
    args, kwargs
        What else it is given: `step_size`, a number or a function of the step; `b1` and `b2`.

    Raises
    ------
    ArgumentError
        If there are parameters too, options without a name, or two step sizes.
    """
    options: Group = dict(kwargs)
    sizes = [options.pop(n) for n in ("step_size", "lr") if n in options]
    first = is_step_size(params)
    sizes += [params] if first else []
    if args or len(sizes) != 1 or not (first or isinstance(params, tuple)) or params is True:
        raise ArgumentError(
            kind,
            expected=f"{kind}(step_size, name=...), or {kind}(module.parameters(), lr=...)",
            got=f"{len(args) + (params != ())} by position, {', '.join(kwargs) or 'none'} by name",
            fix=f"write {kind}(0.01) for SVI, with further options by name",
        )
    if "b1" in options or "b2" in options:
        options["betas"] = options.pop("b1", 0.9), options.pop("b2", 0.999)
    return {"lr": sizes[0], **options}


def _scheduled(make: Callable[..., object], p: Tensor, options: Group) -> object:
    """The optimizer of one parameter; where its "lr" is a function, that is its schedule."""
    schedule = options.get("lr")
    if not callable(schedule) or isinstance(schedule, TensorBase):
        return make([p], **options)
    made = make([p], **{**options, "lr": 1.0})
    if not hasattr(made, "slots"):
        raise ArgumentError(
            f"{getattr(make, '__name__', 'optimizer')}(lr=...)",
            expected="a number",
            got="a function of the step",
            fix="use Adam, SGD or their kin, or a schedule of lr_scheduler",
        )
    vars(made)["schedule"] = schedule
    return made


def _named(params: Named) -> Iterable[tuple[str | None, Tensor]]:
    """Yield ``(name or None, tensor)`` for the forms in which parameters come."""
    if isinstance(params, TensorBase):
        params = [params]
    for item in params.items() if hasattr(params, "items") else params:
        name, p = item if isinstance(item, tuple) else (None, item)
        if not isinstance(p, TensorBase):
            raise DTypeError(
                "params",
                expected="tensors, (name, tensor) pairs or a dict from names to tensors",
                got=f"{type(p).__name__} {p!r:.60}",
                fix="pass the unconstrained tensors that have the gradients",
            )
        yield name, p


def _inner(made: Any) -> Any:
    """Return the optimizer, out of its scheduler if it is in one."""
    return getattr(made, "optimizer", made)


def _saved(made: Any) -> StateDict:
    if _inner(made) is made:
        return made.state_dict()
    return {"scheduler": made.state_dict(), "optimizer": made.optimizer.state_dict()}


def _load(made: Any, state: StateDict) -> None:
    if _inner(made) is made:
        made.load_state_dict(state)
    else:
        made.load_state_dict(state["scheduler"])
        made.optimizer.load_state_dict(state["optimizer"])


def _check_clipping(clip: Iterable[str]) -> None:
    unknown = set(clip) - {"clip_norm", "clip_value"}
    if unknown:
        raise ArgumentError(
            "clip_args",
            expected="clip_norm, clip_value or both",
            got=", ".join(sorted(map(str, unknown))),
            fix='write {"clip_norm": 10.0}',
        )


def _check_schedule(options: Mapping[str, object]) -> None:
    if "optimizer" not in options:
        raise ArgumentError(
            "optim_args of a schedule",
            expected='an entry "optimizer", the class of optimizers to schedule',
            got=f"entries {', '.join(options) or '(none)'}",
            fix='write {"optimizer": Adam, "optim_args": {"lr": 1e-3}, ...}',
        )


def _clip(p: Tensor, clip: Group) -> None:
    """Clip the gradient of `p`, first its norm and then its elements."""
    grad = p.grad
    assert grad is not None  # the caller has looked
    with no_grad():
        if clip.get("clip_norm") is not None:
            norm = arithmetic.sqrt(total(arithmetic.square(grad)))
            # 1e-6 as in PyTorch, so that a gradient of 0 stays 0.
            grad.mul_(arithmetic.minimum(clip["clip_norm"] / (norm + 1e-6), 1.0))
        if clip.get("clip_value") is not None:
            bound: float = clip["clip_value"]
            grad.copy_(arithmetic.minimum(arithmetic.maximum(grad, -bound), bound))


explain_calls(globals())
