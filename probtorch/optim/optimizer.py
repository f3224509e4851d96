"""`Optimizer`: parameter groups, their options, and the state that travels with each parameter.

What every optimizer shares is here: accepting parameters in the forms PyTorch accepts, clearing
gradients, saving and loading. How parameters move is the business of subclasses; nearly all of them
state one formula and inherit the rest from `optim/elementwise.py`, which is what to read next.

Interface and layout of `state_dict` are PyTorch's. State lives in tensors: recording a step sees
all of it.
"""

from __future__ import annotations

import copy
import inspect
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self, overload
from typing import cast as typed

import numpy as np

from probtorch.autograd.modes import enable_grad, no_grad
from probtorch.backends.registry import device_of, to_device
from probtorch.core.casting import cast
from probtorch.core.dispatch import wrap
from probtorch.core.signatures import explained
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import number, numbers_shown
from probtorch.core.typed import StateDict
from probtorch.errors import ArgumentError, AutogradError, DTypeError
from probtorch.optim.pyro import PyroOptim, by_step_size, is_step_size
from probtorch.optim.step_hooks import StepHook, StepHookHandle, add_step_hook
from probtorch.optim.typed import Given, Group, R, Schedule
from probtorch.tensor import Tensor

__all__ = ["Optimizer", "check_option", "rate_from"]


# What other libraries call the options.
_MEANT = {"learning_rate": "lr", "step_size": "lr", "rate": "lr", "parameters": "params"}
_MEANT |= {"b1": "pass betas=(b1, b2)", "b2": "pass betas=(b1, b2)", "l2": "weight_decay"}


def _two_ways(name: str, option: str) -> str:
    """How an optimizer is made: for `SVI`, which finds its parameters, and for a loop of yours."""
    key, _, value = option.partition("=")
    return (
        f"write {name}({{{key!r}: {value}}}) for SVI, "
        f"{name}(module.parameters(), {option}) for a loop of your own"
    )


def _advice(cls: type, args: Sequence[object], kwargs: Mapping[str, object]) -> str | None:
    """The fix line where the parameters were forgotten."""
    if args or "params" in kwargs:
        return None
    option = next((f"{k}={v!r:.20}" for k, v in kwargs.items()), "lr=0.01")
    return _two_ways(cls.__name__, option)


class Optimizer:
    """Base of all optimizers.

    Parameters
    ----------
    params : iterable
        Tensors, ``(name, tensor)`` pairs, or groups: dicts with the tensors under "params" and
        options of their own. A dict of options, a function from a parameter's name to one, or a
        step size as NumPyro has it (``Adam(0.01)``, ``Adam(step_size=schedule)``) gives a
        `PyroOptim` instead, which meets its parameters later.
    defaults : dict
        Options of the groups that do not set them.

    Attributes
    ----------
    param_groups : list of dict
        Each with "params" and its options. Options are read at every step, so they can be changed
        between steps.
    state : dict
        From parameter to a dict of what the optimizer remembers about it.
    defaults : dict

    Raises
    ------
    ArgumentError
        If there are no parameters, or one appears twice.
    DTypeError, AutogradError
        If a parameter is no tensor, not of a real floating dtype, or not a leaf.

    Notes
    -----
    A subclass calls ``super().__init__(params, defaults)`` and defines `step`.
    """

    # For the compiler: in the place of an argument it has other tensors, which are no leaves.
    __takes_leaves__ = True
    # What "lr" is multiplied by at each step; `PyroOptim` sets it where "lr" is a function.
    schedule: Schedule | None = None
    # State that is no tensor like its parameter: it keeps its dtype when it is loaded.
    _counting: frozenset[str] = frozenset(("step",))

    def __new__(cls, params: Given = (), *args: Any, **kwargs: Any) -> Self:
        """Return an optimizer, or a `PyroOptim` where options stand in place of parameters."""
        made: Any = None
        if is_step_size(params) or "step_size" in kwargs:
            made = PyroOptim(cls, by_step_size(cls.__name__, params, args, kwargs))
        elif (isinstance(params, dict) and "params" not in params) or (
            callable(params) and not hasattr(params, "parameters")
        ):
            made = PyroOptim(cls, params, *args, **kwargs)
        return super().__new__(cls) if made is None else made

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            named = explained(cls.__name__, meant=_MEANT, advice=lambda a, k: _advice(cls, a, k))
            setattr(cls, "__init__", named(cls.__init__))  # noqa: B010  # mypy: no method to it
        # __new__ would hide the constructor's own signature from help() and editors.
        parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
        cls.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # documented hook

    def __setattr__(self, name: str, value: object) -> None:
        # In PyTorch it changes nothing, without a word. Classes of others may have such attributes.
        if name in vars(self).get("defaults", ()) and type(self).__module__.startswith(
            "probtorch."
        ):
            raise ArgumentError(
                f"{type(self).__name__}.{name} = ...",
                expected="options set in the groups of parameters, where steps read them",
                got=f"{value!r:.60}",
                fix=f"for group in optimizer.param_groups: group[{name!r}] = {value!r:.20}",
            )
        super().__setattr__(name, value)

    def __init__(self, params: Given, defaults: Group) -> None:
        module = hasattr(params, "parameters")
        if module or isinstance(params, (TensorBase, dict, set, frozenset)):
            raise DTypeError(
                f"params of {type(self).__name__}",
                expected="an ordered iterable of tensors, (name, tensor) pairs or group dicts",
                got=f"a {type(params).__name__}",
                fix="pass its .parameters()" if module else "wrap it in a list",
            )
        if "lr" in defaults:
            defaults = {**defaults, "lr": _one_number(defaults["lr"])}
        self.defaults = defaults
        self.state: defaultdict[Tensor, StateDict] = defaultdict(dict)
        self.param_groups: list[Group] = []
        if not isinstance(params, Iterable):
            name = type(self).__name__
            raise DTypeError(
                f"params of {name}",
                expected="tensors, or a dict of options",
                got=f"{type(params).__name__} {params!r:.60}",
                fix=_two_ways(name, f"lr={params!r:.20}"),
            )
        groups: list[Any] = list(params)
        if not groups:
            raise ArgumentError(
                "optimizer got an empty parameter list",
                expected="at least one parameter",
                got="none",
                fix="pass list(model.parameters()), and check that the model has parameters and "
                "that a generator passed here was not used up before",
            )
        if not isinstance(groups[0], dict):
            groups = [{"params": groups}]
        for group in groups:
            self.add_param_group(group)

    def __environment__(self) -> list[object]:
        """What a compiled function that uses the optimizer depends on."""
        return [x for name, x in vars(self).items() if not name.startswith("_")]

    def __followed__(self) -> list[tuple[Group, dict[str, tuple[str, ...]]]]:
        """What of it a replay reads anew: keys of dicts, and the names that others get there by."""
        return [(g, dict.fromkeys(followed(g), ("param_groups",))) for g in self.param_groups]

    def _read(self, group: Group) -> Group:
        """Return the options of a group, those that are followed by way of whoever listens."""
        return {**group, **{key: number(group, key) for key in followed(group)}}

    def add_param_group(self, param_group: Group) -> None:
        """Add parameters with options of their own, for example layers added during training.

        Parameters
        ----------
        param_group : dict
            "params" holds one tensor or an iterable of tensors or ``(name, tensor)`` pairs; other
            entries are options, the missing ones taken from `defaults`.
        """
        if not isinstance(param_group, dict) or "params" not in param_group:
            raise DTypeError(
                "add_param_group",
                expected='a dict with the tensors under "params"',
                got=f"{type(param_group).__name__} {param_group!r:.60}",
                fix='write {"params": tensors, "lr": 0.1}',
            )
        params = param_group["params"]
        if isinstance(params, (set, frozenset)):
            raise DTypeError(
                "add_param_group",
                expected="parameters in an order that is the same in every run",
                got="a set",
                fix="pass a list",
            )
        items: list[Any] = [params] if isinstance(params, TensorBase) else list(params)
        group = {**param_group}
        if items and all(isinstance(item, tuple) for item in items):
            group["param_names"] = [name for name, _ in items]
            items = [p for _, p in items]
        known = {id(p) for g in self.param_groups for p in g["params"]}
        for p in items:
            self._check_param(p, known, param_group)
            known.add(id(p))
        group["params"] = items
        for option, value in self.defaults.items():
            group.setdefault(option, value)
        self.param_groups.append(group)

    def _check_param(self, p: object, known: set[int], group: Group) -> None:
        if not isinstance(p, TensorBase):
            raise DTypeError(
                "optimizer can only optimize Tensors",
                expected="tensors, or (name, tensor) pairs throughout",
                got=f"{type(p).__name__} {p!r:.60}",
                fix="pass model.parameters() or model.named_parameters()",
            )
        if p.array.dtype.kind != "f":
            raise DTypeError(
                "optimizer can only optimize tensors of real floating dtype",
                expected="float16, float32 or float64",
                got=str(p.array.dtype),
                fix="leave it out; for complex numbers optimize real and imaginary part",
            )
        differentiable = group.get("differentiable", self.defaults.get("differentiable"))
        retained = "retained" in (p._extra or {})
        if p.grad_fn is not None and not (differentiable or retained):
            raise AutogradError(
                "can't optimize a non-leaf Tensor",
                expected="a leaf, whose .grad backward() fills",
                got=f"the result of {p.grad_fn.op.name}",
                fix="detach().requires_grad_() it, or pass the tensor it was computed from",
            )
        if id(p) in known:
            raise ArgumentError(
                "some parameters appear in more than one parameter group",
                expected="each parameter once",
                got=f"a tensor of shape {p.array.shape} twice",
                fix="remove the repetition; one update per step is enough",
            )

    # ------------------------------------------------------------------------------------- training

    def register_step_pre_hook(self, hook: StepHook) -> StepHookHandle:
        """Call ``hook(optimizer, args, kwargs)`` before each `step`, with the step's arguments.

        The first of `args` is the optimizer, as in PyTorch. A pair that the hook returns takes
        their place. `remove()` of the handle takes the hook off.
        """
        return add_step_hook(self, hook, before=True)

    def register_step_post_hook(self, hook: StepHook) -> StepHookHandle:
        """Call ``hook(optimizer, args, kwargs)`` after each `step`."""
        return add_step_hook(self, hook, before=False)

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], R]) -> R: ...
    def step(self, closure: Callable[[], R] | None = None) -> R | None:
        """Move the parameters once, along their gradients.

        Parameters
        ----------
        closure : callable, optional
            Computes the loss and its gradients anew; called with the tape on.

        Returns
        -------
        loss
            What `closure` returned, or None.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define step()")

    @overload
    def _loss(self, closure: None) -> None: ...
    @overload
    def _loss(self, closure: Callable[[], R]) -> R: ...
    def _loss(self, closure: Callable[[], R] | None) -> R | None:
        """Return what `closure` returns, with the tape on, or None without one."""
        if closure is None:
            return None
        with enable_grad():
            return closure()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of all parameters, or with ``set_to_none=False`` make them zeros."""
        for group in self.param_groups:
            for p in group["params"]:
                if set_to_none:
                    p.grad = None
                elif p.grad is not None:
                    p.grad.detach_()
                    with no_grad():
                        p.grad.zero_()

    @staticmethod
    def step_together(optimizers: Iterable[Optimizer]) -> None:
        """Step several optimizers; subclasses may share work between them."""
        for optimizer in optimizers:
            optimizer.step()

    # ------------------------------------------------------------------------------ saving, loading

    def state_dict(self) -> StateDict:
        """Return options and state, with parameters replaced by their position.

        Returns
        -------
        dict
            "state" maps positions to dicts, "param_groups" is a list of dicts. The tensors are
            those in use, not copies: `copy.deepcopy` the result to keep it while training goes on.
        """
        numbers_shown()
        positions: dict[int, int] = {}
        for group in self.param_groups:
            for p in group["params"]:
                positions[id(p)] = len(positions)
        return {
            "state": {
                positions[id(p)]: dict(s) for p, s in self.state.items() if id(p) in positions
            },
            "param_groups": [
                {**group, "params": [positions[id(p)] for p in group["params"]]}
                for group in self.param_groups
            ],
        }

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Take over options and state that `state_dict` returned; training then goes on exactly.

        The tensors are copied, floating ones to dtype and device of their parameter.

        Raises
        ------
        ArgumentError
            If the groups do not match those of this optimizer.
        """
        saved = state_dict["param_groups"]
        sizes = [len(g["params"]) for g in self.param_groups]
        saved_sizes = [len(g["params"]) for g in saved]
        if sizes != saved_sizes:
            different = len(sizes) != len(saved_sizes)
            raise ArgumentError(
                "loaded state dict has a different number of parameter groups"
                if different
                else "loaded state dict contains a parameter group that doesn't match the size of "
                "optimizer's group",
                expected=f"groups of {sizes} parameters",
                got=f"groups of {saved_sizes}",
                fix="build the optimizer with the parameters it had when it was saved",
            )
        params = {
            position: p
            for group, old in zip(self.param_groups, saved)
            for p, position in zip(group["params"], old["params"])
        }
        self.state = defaultdict(dict)
        for position, entries in state_dict["state"].items():
            p = params[position]
            self.state[p] = {name: self._adopt(name, v, p) for name, v in entries.items()}
        self.param_groups = [
            {
                **copy.deepcopy({k: v for k, v in old.items() if k != "params"}),
                "params": g["params"],
            }
            for g, old in zip(self.param_groups, saved)
        ]
        for group in self.param_groups:
            for option, value in self.defaults.items():
                group.setdefault(option, value)

    def _adopt(self, name: str, value: object, p: Tensor) -> object:
        """Return a copy of one state entry of `p`, where and in the dtype it is used."""
        if not isinstance(value, TensorBase):
            if isinstance(value, (list, tuple)):
                return type(value)(self._adopt(name, v, p) for v in value)
            return copy.deepcopy(value)
        with no_grad():
            if name not in self._counting and value.array.dtype.kind == "f":
                value = cast(value, p.array.dtype)
            return wrap(to_device(value.array.copy(), device_of(p.array)))

    def __getstate__(self) -> StateDict:
        numbers_shown()
        found: StateDict = {
            "defaults": self.defaults,
            "state": self.state,
            "param_groups": self.param_groups,
        }
        return found if self.schedule is None else {**found, "schedule": self.schedule}

    def __repr__(self) -> str:
        numbers_shown()
        lines = [f"{type(self).__name__} ("]
        for i, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {i}")
            lines += [f"    {k}: {group[k]}" for k in sorted(group) if k != "params"]
        return "\n".join([*lines, ")"])


def _one_number(lr: object) -> object:
    """Return a learning rate; of one element along some dims the same memory without them."""
    if not isinstance(lr, (TensorBase, np.ndarray)):
        return lr
    array = lr.array if isinstance(lr, TensorBase) else lr
    if array.size != 1:
        raise ArgumentError(
            "Invalid learning rate",
            expected="a number >= 0, or a tensor with one element",
            got=f"a {type(lr).__name__} of shape {tuple(array.shape)}",
            fix="give parameters that learn at other rates groups of their own: "
            '[{"params": [p], "lr": 0.1}, {"params": [q], "lr": 0.01}]',
        )
    return lr.reshape(()) if array.ndim else lr


def followed(group: Group) -> tuple[str, ...]:
    """Return the options that schedules change."""
    names = ("lr", "momentum", "betas") if "base_momentum" in group else ("lr",)
    return tuple(name for name in names if name in group)


def rate_from(name: str, value: object) -> float:
    """Return what a user's schedule gave as a number of Python's; a tensor stands for itself.

    A number of NumPy's would lend its dtype to the rate, and with it to the parameters.
    """
    if isinstance(value, Tensor) and value.array.size == 1:
        return typed(float, value.reshape(()) if value.array.ndim else value)
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.reshape(())[()]
    if isinstance(value, (int, float, np.integer, np.floating)):
        return float(value)
    shape = getattr(value, "shape", None)
    raise DTypeError(
        name,
        expected="a function from the step to one real number",
        got=f"{value!r:.40}" if shape is None else f"a {type(value).__name__} of shape {shape}",
        fix="return a float, or a tensor of one element",
    )


def check_option(name: str, value: object, ok: bool, expected: str) -> None:
    """Raise unless `ok`, naming the option of the optimizer that is out of range."""
    if not ok:
        raise ArgumentError(
            f"Invalid {name}: {value}",
            expected=f"{name} {expected}",
            got=repr(value),
            fix="check the options of the optimizer",
        )
