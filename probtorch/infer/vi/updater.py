"""`Updater`: one face for all the forms in which an optimizer may be given.

A model's parameters come into being while it runs, an optimizer of PyTorch's wants them when it is
made, and one of Pyro's is handed them at each step. `Updater` accepts

- an instance of `optim.Optimizer` over parameters of modules; parameters of `param` statements are
  added to it as they turn up;
- a class (or any function from parameters to an optimizer) with options: made when the first
  parameters are there;
- a `PyroOptim`, as ``Adam({"lr": 0.01})`` is; ``LBFGS({...})`` is made over all parameters at
  once, since its steps depend on all of them.

It reads and writes its part of a `FitState`: parameters, and the optimizer's state and options.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from probtorch.core.dispatch import around, overwrite
from probtorch.core.sameness import PLAIN
from probtorch.core.tensor_base import TensorBase
from probtorch.core.tree import flatten, map_tree
from probtorch.core.typed import Tree
from probtorch.diagnostics.findings import InferenceWarning
from probtorch.errors import ArgumentError, user_frame
from probtorch.infer.vi.fit_state import FitState
from probtorch.optim.lbfgs import LBFGS
from probtorch.optim.optimizer import Optimizer
from probtorch.optim.pyro import PyroOptim

if TYPE_CHECKING:
    from probtorch.optim.lr_scheduler.base import LRScheduler

__all__ = ["Updater", "copied"]

_ARRAYS = (TensorBase, np.ndarray)

NOTHING = (
    "SVI has nothing to optimise: steps estimate the loss and move nothing\n"
    "  expected: at least one parameter: a param() statement or an autoguide's\n"
    "  got:      a model and a guide without parameters, and an optimizer without any\n"
    "  fix:      state what is to be learned with param(), a network with module('net', net), or "
    "use AutoNormal(model); or pass an optimizer over the parameters of your modules"
)


# Where options belong that are given to SVI beside a finished optimizer.
_MEANT = {
    "elbo objective loss_fn criterion": "write loss=...",
    "num_particles num_samples n_samples particles draws": "give it to the objective: "
    "Trace_ELBO(num_particles=10)",
    "num_steps steps num_iterations iterations epochs n": "give it to run: svi.run(num_steps, ...)",
    "lr step_size learning_rate": 'give it to the optimizer: Adam({"lr": 0.01})',
    "rng_key random_seed random_state": "write seed=...",
    "progress_bar progressbar": "give it to run: svi.run(num_steps, ..., progress_bar=False)",
}


# An optimizer, one per parameter as Pyro has it, or what makes one of parameters and options.
Optim: TypeAlias = Optimizer | PyroOptim | Callable[..., Optimizer]


class Updater:
    """An optimizer of any form, and the parameters it moves.

    Parameters
    ----------
    optim : Optimizer, PyroOptim, or callable
        See the module.
    options : dict
        For a callable: it is called as ``optim(parameters, **options)``.

    Raises
    ------
    ArgumentError
        If `optim` is nothing of these, or options are given to a finished optimizer.
    """

    def __init__(self, optim: Optim, options: Mapping[str, object]) -> None:
        self.options = dict(options)
        together = _steps_together(optim)
        if together is not None:
            optim, own = together
            options = {**own, **options}
            self.options = dict(options)
        self.optimizer = optim if isinstance(optim, (Optimizer, PyroOptim)) else None
        self.make: Any = optim  # called where it is no optimizer
        if self.optimizer is None and not callable(optim):
            raise ArgumentError(
                "SVI(optim=...)",
                expected="an optimizer, a class of them with options, or one made of a dict",
                got=f"{type(optim).__name__} {optim!r:.60}",
                fix='write Adam({"lr": 0.01})',
            )
        if self.optimizer is not None and options:
            raise ArgumentError(
                "SVI",
                expected="no options beside an optimizer that is made already",
                got=", ".join(options),
                fix=next(
                    (fix for words, fix in _MEANT.items() if set(words.split()) & set(options)),
                    "give options to the optimizer, and arguments of the model to run and step: "
                    "svi.run(1000, x=...)",
                ),
            )
        self._known: dict[str, TensorBase] = {}
        self._foreign: dict[str, TensorBase] = {}
        self._given: dict[
            str, TensorBase
        ] = {}  # as they were called before the store referred to them
        self._told = False
        self._notice()

    @property
    def parameters(self) -> dict[str, TensorBase]:
        """All leaves by name; those of an optimizer made over them are called ``optim.0`` ..."""
        return {**self._foreign, **self._known}

    @property
    def needs_closure(self) -> bool:
        """Whether the optimizer asks for several losses per step."""
        return isinstance(self.optimizer, LBFGS)

    def _notice(self) -> None:
        """Give names to what the optimizer moves and the store does not know."""
        if isinstance(self.optimizer, Optimizer):
            known = {id(p) for p in self.parameters.values()}
            for i, p in enumerate(_members(self.optimizer.param_groups)):
                if id(p) not in known:
                    self._foreign[f"optim.{i}"] = self._given[f"optim.{i}"] = p

    def adopt(self, named: Mapping[str, TensorBase]) -> None:
        """Take in the leaves that are not known yet; none at all are told of once."""
        self._notice()
        self._claim(named)
        added = self._new(named)
        if any(name in self._known for name in added) and self.optimizer is not None:
            # The store was cleared and filled again: the old leaves are nobody's any more.
            self._forget()
            added = self._new(named)
        if not added:
            if not self._known and not self._foreign and not self._told:
                self._told = True
                place = user_frame() or ("<unknown>", 0)
                warnings.warn_explicit(NOTHING, InferenceWarning, *place)
            return
        self._known.update(added)
        if self.optimizer is None:
            self.optimizer = self.make(list(added.values()), **self.options)
        elif isinstance(self.optimizer, Optimizer):
            self.optimizer.add_param_group({"params": list(added.values())})

    def _claim(self, named: Mapping[str, TensorBase]) -> None:
        """Give the optimizer's own parameters their names, where the store refers to them too."""
        if not self._foreign:
            return
        places = {id(p): place for place, p in self._foreign.items()}
        for name, p in named.items():
            if id(p) in places:
                self._known[name] = self._foreign.pop(places.pop(id(p)))

    def _new(self, named: Mapping[str, TensorBase]) -> dict[str, TensorBase]:
        """The leaves that are not known yet; one with two names counts once, by the first."""
        seen = {id(p) for p in self._known.values()}
        added = {}
        for name, p in named.items():
            if id(p) not in seen:
                seen.add(id(p))
                added[name] = p
        return added

    def _forget(self) -> None:
        self._known.clear()
        if isinstance(self.optimizer, PyroOptim):
            old = self.optimizer
            self.optimizer = type(old)(
                old.pt_optim_constructor, old.pt_optim_args, old.pt_clip_args
            )
        elif callable(self.make) and not isinstance(self.make, Optimizer):
            self.optimizer = None
        else:
            raise ArgumentError(
                "SVI.step",
                expected="the parameters that the optimizer was given",
                got="new ones under their names: the parameter store was cleared",
                fix="make a new optimizer and a new SVI",
            )

    def step(self, closure: Callable[[], TensorBase | float] | None = None) -> None:
        """Move all parameters that have gradients."""
        if self.optimizer is None:
            return
        if isinstance(self.optimizer, PyroOptim):
            self.optimizer({n: p for n, p in self._known.items() if p.grad is not None})
        elif self.needs_closure:
            self.optimizer.step(closure)
        else:
            self.optimizer.step()

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for p in (*self._foreign.values(), *self._known.values()):
            p.grad = None

    def optimizers(self) -> list[Optimizer]:
        """Return the optimizers at work, of which Pyro's has one per parameter."""
        if self.optimizer is None:
            return []
        if isinstance(self.optimizer, PyroOptim):
            return [getattr(o, "optimizer", o) for o in self.optimizer.optim_objs.values()]
        return [self.optimizer]

    # ----------------------------------------------------------------- its part of a `FitState`

    def take(self) -> dict[str, dict[str, Tree]]:
        """Return copies of parameters and state, as `FitState` has them."""
        self._notice()
        optimizer, named = self.optimizer, self.parameters
        params = {name: copied(p) for name, p in named.items()}
        if optimizer is None:
            return {"params": params, "optimizer": {}}
        if isinstance(optimizer, PyroOptim):
            return {"params": params, "optimizer": {"optim": _copied_tree(optimizer.get_state())}}
        names = {id(p): name for name, p in named.items()}
        groups = [[names[id(p)] for p in group["params"]] for group in optimizer.param_groups]
        saved = {"groups": groups, "optim": _copied_tree(optimizer.state_dict())}
        return {"params": params, "optimizer": saved}

    def put(self, state: FitState) -> None:
        """Write parameters and the optimizer's state back, but for its options.

        What the state does not know, since it came later, stays as it is, or begins anew.
        """
        named = {**self._given, **self.parameters}
        for name, saved in state.params.items():
            if name in named:
                overwrite(named[name], saved.array)
        for made, one in self._with_saved(state):
            inner = _inner(made)
            _write(inner, (one if inner is made else one.get("optimizer", {})).get("state", {}))

    def _with_saved(
        self, state: FitState
    ) -> Iterator[tuple[Optimizer | LRScheduler, dict[str, Tree]]]:
        """Yield what the optimizer is made of, an optimizer or a schedule each, and its state."""
        saved = state.optimizer.get("optim", {})
        if isinstance(self.optimizer, PyroOptim):
            made = self.optimizer.optim_objs
            # One that serves others as well moves their parameters, too.
            for name, p in self._known.items():
                if p in made:
                    yield made[p], saved.get(name, {})
        elif self.optimizer is not None:
            yield self.optimizer, saved

    def load(self, state: FitState, named: Mapping[str, TensorBase]) -> None:
        """Take in the parameters of a state, and the options of its optimizer; `put` does the rest.

        Parameters
        ----------
        state : FitState
        named : dict of str to Tensor
            The leaves of the parameter store; all of them exist.

        Raises
        ------
        ArgumentError
            If the parameters are not those of the state.
        """
        params, saved = state.params, state.optimizer
        self._notice()
        self._claim(named)
        have = {**self.parameters, **self._new(named)}
        if set(have) != set(params):
            raise ArgumentError(
                "SVI.load_state_dict",
                expected=f"parameters {', '.join(map(repr, sorted(params)))}, as they were saved",
                got=", ".join(map(repr, sorted(have))) or "none",
                fix="load into an SVI of the same model, guide and kind of optimizer",
            )
        for name, tensor in params.items():
            if tensor.array.shape != have[name].array.shape:
                raise ArgumentError(
                    f"SVI.load_state_dict: parameter {name!r}",
                    expected=f"shape {tuple(have[name].array.shape)}",
                    got=f"shape {tuple(tensor.array.shape)}",
                    fix="load into an SVI of the same model and guide, with plates of one size",
                )
        if "optim" not in saved:
            return
        for names in saved.get("groups", [list(named)]):
            self.adopt({n: named[n] for n in names if n in named})
        if isinstance(self.optimizer, PyroOptim):
            made = self.optimizer.optim_objs
            new = {n: s for n, s in saved["optim"].items() if self._known.get(n) not in made}
            self.optimizer.set_state(_copied_tree(new))
            self.optimizer.meet({n: p for n, p in self._known.items() if n in new})
        for thing, one in self._with_saved(state):
            inner = _inner(thing)
            if one and inner is not thing:
                thing.load_state_dict(one["scheduler"])
                one = one["optimizer"]
            if one:
                _write_options(inner, one)


def copied(tensor: TensorBase) -> TensorBase:
    """Return the elements of a tensor as a new one, off the tape."""
    return around(tensor.array.copy())


def _inner(made: Optimizer | LRScheduler) -> Optimizer:
    """The optimizer, out of a schedule if it is in one."""
    return made.optimizer if hasattr(made, "optimizer") else made


def _write(optimizer: Optimizer, saved: Tree) -> None:
    """Give an optimizer the state of its parameters: in its own tensors if it has them already."""
    live = optimizer.state_dict()
    (mine, structure), (theirs, other) = flatten(live["state"]), flatten(saved)
    sources: dict[int, TensorBase] = {}
    if structure == other and all(_fits(x, y, sources) for x, y in zip(mine, theirs, strict=True)):
        for x, y in zip(mine, theirs, strict=True):
            if isinstance(x, TensorBase):
                overwrite(x, y.array)
    else:
        optimizer.load_state_dict({**live, "state": _copied_tree(saved)})


def _fits(mine: TensorBase, saved: TensorBase, sources: dict[int, TensorBase]) -> bool:
    """Whether a leaf can take over a saved one; `sources` has what tensors take over by their ids,
    since those that are one, as step counts are, can only take over one.
    """
    if not (isinstance(mine, TensorBase) and isinstance(saved, TensorBase)):
        return _equal(mine, saved)
    x, y = mine.array, saved.array
    return (
        x.shape == y.shape and x.dtype == y.dtype and sources.setdefault(id(mine), saved) is saved
    )


def _write_options(optimizer: Optimizer, saved: dict[str, Tree]) -> None:
    """Give the groups of an optimizer the options that they had."""
    groups, before = optimizer.param_groups, saved["param_groups"]
    if [len(group["params"]) for group in groups] != [len(group["params"]) for group in before]:
        optimizer.load_state_dict(saved)  # which says what is wrong
    for group, options in zip(groups, before, strict=True):
        for name, value in options.items():
            if isinstance(value, TensorBase) and isinstance(group.get(name), TensorBase):
                overwrite(group[name], value.array)
            elif name != "params" and not _equal(group.get(name), value):
                group[name] = _copied_tree(value)


def _equal(
    a: bool | float | tuple[float, ...] | None, b: bool | float | tuple[float, ...] | None
) -> bool:
    return a is b or (type(a) is type(b) and not isinstance(a, _ARRAYS) and a == b)


def _copied_tree(tree: Tree) -> Tree:
    """`tree` with copies of its tensors; optimizers share step counts, and go on sharing them."""
    seen: dict[int, TensorBase] = {}

    def leaf(x: object) -> object:
        if not isinstance(x, TensorBase):
            return x
        made = seen.get(id(x))
        if made is None:
            made = seen[id(x)] = copied(x)
        return made

    def copy(x: Tree) -> Tree:
        # By hand where it can be: there is one at each eager step, and `map_tree` takes thrice as
        # long.
        kind = type(x)
        if kind is dict:
            return {key: copy(value) for key, value in x.items()}
        if kind is list or kind is tuple:
            return kind([copy(value) for value in x])
        return leaf(x) if kind in PLAIN or isinstance(x, TensorBase) else map_tree(leaf, x)

    return copy(tree)


def _members(groups: Iterable[Mapping[str, Tree]]) -> list[TensorBase]:
    return [p for group in groups for p in group["params"]]


def _steps_together(optim: Optim) -> tuple[type[LBFGS], dict[str, object]] | None:
    """Class and options of ``LBFGS({...})``, whose parameters cannot have an optimizer each."""
    if not isinstance(optim, PyroOptim):
        return None
    kind = optim.pt_optim_constructor
    if not (isinstance(kind, type) and issubclass(kind, LBFGS)):
        return None
    if callable(optim.pt_optim_args) or optim.pt_clip_args:
        raise ArgumentError(
            "SVI(optim=LBFGS(...))",
            expected="one dict of options: its steps are those of all parameters together",
            got="options per parameter" if callable(optim.pt_optim_args) else "clipped gradients",
            fix='write LBFGS({"lr": 1.0, "line_search_fn": "strong_wolfe"})',
        )
    return kind, optim.pt_optim_args
