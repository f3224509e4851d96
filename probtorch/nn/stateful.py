"""What modules save and load, and who has a say in it: the half of `Module` that is about state.

`state_dict` asks each module of the tree for what it holds, `load_state_dict` gives each its part.
Classes say how their own part is saved and loaded by `_save_to_state_dict` and
`_load_from_state_dict`, which are PyTorch's, and hooks are called around both. Which names and
shapes fit is found in `state.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from probtorch.autograd.modes import no_grad
from probtorch.core.typed import StateDict, Tree
from probtorch.errors import ModelError
from probtorch.nn.hooks import Hook, RemovableHandle
from probtorch.nn.state import (
    IncompatibleKeys,
    Metadata,
    collect,
    hooks_of,
    load,
    load_own,
    save_own,
)
from probtorch.tensor import Tensor

if TYPE_CHECKING:
    from probtorch.nn.module import Module

__all__ = ["Stateful"]

# PyTorch's order of the arguments of `state_dict`, which older code gives by position.
_POSITIONAL = ("destination", "prefix", "keep_vars")


class Stateful:
    """Base of `Module`: what is saved and loaded, and the hooks around it."""

    # The form of the state that a class saves. It raises the number when names or meanings change,
    # and its `_load_from_state_dict` converts what has a lower one.
    _version: int | None = 1

    def state_dict(
        self,
        *args: object,
        destination: StateDict | None = None,
        prefix: str = "",
        keep_vars: bool = False,
    ) -> StateDict:
        """Return all parameters and persistent buffers by dotted name.

        Parameters
        ----------
        *args
            The others by position, as older code has them.
        destination : dict, optional
            Filled and returned; a new OrderedDict if None.
        prefix : str
            Put before every name.
        keep_vars : bool
            Return the parameters themselves; else detached tensors, which share their memory.
        """
        if args:
            given: dict[str, object] = {
                "destination": destination,
                "prefix": prefix,
                "keep_vars": keep_vars,
            }
            given |= dict(zip(_POSITIONAL, args))
            return Stateful.state_dict(self, **given)  # type: ignore[arg-type]  # by position
        return collect(cast("Module", self), destination, prefix, keep_vars)

    def load_state_dict(
        self, state_dict: StateDict, strict: bool = True, assign: bool = False
    ) -> IncompatibleKeys:
        """Copy values by name into the parameters and buffers.

        Parameters
        ----------
        state_dict : dict
            From dotted names to tensors or arrays, as `state_dict` returns. Dtype and device of
            this module are kept.
        strict : bool
            Whether the names must be exactly those of this module.
        assign : bool
            Put the tensors given in the place of the module's own, instead of copying.

        Returns
        -------
        IncompatibleKeys
            Named tuple of `missing_keys` and `unexpected_keys`.

        Raises
        ------
        ModelError
            If names (unless `strict` is off) or shapes differ; then the parameters and buffers are
            what they were. The message lists them, and pairs names that seem to mean the same.
        """
        return load(cast("Module", self), state_dict, strict, assign)

    def _save_to_state_dict(self, destination: StateDict, prefix: str, keep_vars: bool) -> None:
        """Put what this module holds, its children's excepted, into `destination`.

        A subclass with another form of its own state overrides it.
        """
        save_own(cast("Module", self), destination, prefix, keep_vars)

    def _load_from_state_dict(
        self,
        state_dict: StateDict,
        prefix: str,
        local_metadata: Metadata,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Take what is this module's own, its children's excepted, out of `state_dict`.

        A subclass that saves another form, or loads older ones, overrides it: it changes
        `state_dict`, which is a copy, and calls this one. ``local_metadata.get("version")`` is the
        `_version` of the class that saved, or None if it is not known. What is wrong is added to
        the three lists.
        """
        module = cast("Module", self)
        told = (
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs,
        )  # fmt: skip
        for hook, options in hooks_of(module, "load_pre"):
            hook(*((module,) if options["with_module"] else ()), *told)
        load_own(module, *told)

    @staticmethod
    def _overwrite(target: Tensor, value: Tensor) -> None:
        with no_grad():
            target.copy_(value.to(target.device))

    def get_extra_state(self) -> Tree:
        """Return more state to save; a subclass that defines it also defines `set_extra_state`."""
        raise ModelError(
            "get_extra_state",
            expected="a subclass that defines it",
            got="Module itself",
            fix="define get_extra_state and set_extra_state together",
        )

    def set_extra_state(self, state: Tree) -> None:
        """Take back what `get_extra_state` returned."""
        raise ModelError(
            "set_extra_state",
            expected="a subclass that defines it",
            got="Module itself",
            fix="define get_extra_state and set_extra_state together",
        )

    # ---------------------------------------------------------------------------------------- hooks

    if TYPE_CHECKING:

        def _add_hook(self, kind: str, hook: Hook, **options: bool) -> RemovableHandle: ...

    def register_state_dict_pre_hook(self, hook: Hook) -> RemovableHandle:
        """Call ``hook(module, prefix, keep_vars)`` before `state_dict` looks at the module."""
        return self._add_hook("state_pre", hook)

    def register_state_dict_post_hook(self, hook: Hook) -> RemovableHandle:
        """Call ``hook(module, state_dict, prefix, local_metadata)`` after the module is saved.

        The hook changes `state_dict`, which has the module's part and all that came before it, and
        returns nothing.
        """
        return self._add_hook("state", hook, may_replace=False)

    def _register_state_dict_hook(self, hook: Hook) -> RemovableHandle:
        """Do as `register_state_dict_post_hook`; a dict that the root's hook returns is taken."""
        return self._add_hook("state", hook, may_replace=True)

    def register_load_state_dict_pre_hook(self, hook: Hook) -> RemovableHandle:
        """Call ``hook(module, *arguments)`` before the module's part is loaded.

        The arguments are those of `_load_from_state_dict`: `state_dict`, which the hook may change,
        `prefix`, `local_metadata`, `strict`, and lists of missing keys, unexpected keys and errors.
        """
        return self._add_hook("load_pre", hook, with_module=True)

    def _register_load_state_dict_pre_hook(
        self, hook: Hook, with_module: bool = False
    ) -> RemovableHandle:
        """Do as `register_load_state_dict_pre_hook`, by default without the module in front."""
        return self._add_hook("load_pre", hook, with_module=with_module)

    def register_load_state_dict_post_hook(self, hook: Hook) -> RemovableHandle:
        """Call ``hook(module, incompatible_keys)`` after the module and its children are loaded.

        What the hook takes out of the two lists, or adds, counts for `strict`. It returns nothing.
        """
        return self._add_hook("load_post", hook)
