"""What all estimators of the expected information gain do: run a model, and optimise what is bound.

A design is a tensor ``(*designs, features)``; a model draws for all designs at once, inside plates
of the shape ``designs``. `lexpand` puts samples on the left, so that one run makes all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeAlias

from probtorch.autograd.modes import is_grad_enabled, set_grad_enabled
from probtorch.core import dtype as dtypes
from probtorch.core.typed import DType, Shape
from probtorch.distributions.distribution import Distribution
from probtorch.effects.handlers import block, trace
from probtorch.effects.modules import module
from probtorch.effects.params import get_param_store
from probtorch.effects.site import Site
from probtorch.effects.trace import Trace
from probtorch.errors import ArgumentError, InferenceError
from probtorch.nn.module import Module
from probtorch.ops.movement import expand
from probtorch.ops.pieces import stack
from probtorch.ops.reduction import mean
from probtorch.ops.reduction import sum as total
from probtorch.optim.optimizer import Optimizer
from probtorch.optim.pyro import PyroLRScheduler, PyroOptim
from probtorch.tensor import Tensor

__all__ = [
    *("Count", "Labels", "Model", "Optim", "as_asked", "averaged", "dtype_of", "lexpand", "listed"),
    *("log_density", "network", "no_others", "optimised", "outcomes", "pair_of", "repeated", "run"),
    *("scored", "single", "site_of", "summed", "summed_right", "values", "without_scores"),
]

Labels: TypeAlias = str | Sequence[str]
Model: TypeAlias = Callable[..., object]
Optim: TypeAlias = PyroOptim | Optimizer
# How many samples an estimate takes: of the outer expectation, or also of the inner one.
Count: TypeAlias = int | tuple[int, int]


class Loss(Protocol):
    """An estimate for each design; summed it is what an optimizer makes small."""

    def __call__(
        self, design: Tensor, num_samples: Count, *, evaluation: bool
    ) -> tuple[Tensor, Tensor]:
        """Return the sum to make small, and what is estimated, shape ``designs``."""


def listed(labels: Labels | None) -> tuple[str, ...]:
    """Return labels as a tuple."""
    return (labels,) if isinstance(labels, str) else tuple(labels or ())


def lexpand(x: Tensor, *sizes: int) -> Tensor:
    """Return `x` repeated along new dims on the left."""
    return expand(x, (*sizes, *x.array.shape))


def repeated(seen: dict[str, Tensor], count: int) -> dict[str, Tensor]:
    """Return values, each so many times along a new dim on the left."""
    return {label: lexpand(x, count) for label, x in seen.items()}


def pair_of(count: Count) -> tuple[int, int]:
    """Return the numbers of outer and inner samples.

    Raises
    ------
    ArgumentError
        If it is one number.
    """
    if isinstance(count, int) or len(count) != 2:
        raise ArgumentError(
            "num_samples",
            expected="a pair (N, M): outer samples, and inner ones for each",
            got=repr(count),
            fix="write num_samples=(100, 10)",
        )
    return count


def single(count: Count) -> int:
    """Return the number of samples of an estimate that has one mean.

    Raises
    ------
    ArgumentError
        If it is a pair.
    """
    if isinstance(count, int):
        return count
    raise ArgumentError(
        "num_samples", expected="a number", got=repr(count), fix="write num_samples=100"
    )


def dtype_of(design: Tensor) -> DType:
    """Return the dtype of gains: that of the design, if it is of floats."""
    dtype = design.array.dtype
    return dtype if dtype.kind == "f" else dtypes.default_dtype()


def run(model: Model, *args: object) -> Trace:
    """Return the trace of a run: of a model with designs, or of a guide with what else it takes.

    Raises
    ------
    ArgumentError
        If samples and designs are not the outermost plates of a model.
    """
    seen = trace(model).get_trace(*args)
    if len(args) == 1 and isinstance(args[0], Tensor):
        for name in (*seen.stochastic_nodes, *seen.observation_nodes):
            _check_plates(seen[name], args[0].array.shape, drawn=name in seen.stochastic_nodes)
    return seen


def _check_plates(site: Site, shape: Shape, *, drawn: bool) -> None:
    """Refuse plates whose dims would be taken for those of samples and designs, and designs without
    features, whose gains would be added up.
    """
    sizes = {f.dim: f.size for f in site.plates if f.dim is not None}
    outermost = tuple(sizes[dim] for dim in sorted(sizes))
    designs = tuple(shape[:-1])
    # Of one design alone, or of all, a plate may have been left out.
    fewer = len(outermost) < len(designs)
    if fewer or (outermost[: len(designs)] == designs and not (drawn and outermost == shape)):
        return
    raise ArgumentError(
        f"designs: plates around {site.name!r}",
        expected=f"those of shape {designs} outside of all others, as design.shape[:-1] has it",
        got=", ".join(f"{f.name!r} of {f.size} at dim {f.dim}" for f in site.plates),
        fix="the last dim of a design is for its features: design.unsqueeze(-1) adds one; plates "
        "inside go to the right, by plate_stack(..., rightmost_dim=-2), or are dims of an event",
    )


def site_of(seen: Trace, label: str, what: str) -> Site:
    """Return a site by its label.

    Raises
    ------
    ArgumentError
        If there is none.
    """
    if label in seen and seen[label].kind == "sample":
        return seen[label]
    names = [*seen.stochastic_nodes, *seen.observation_nodes]
    raise ArgumentError(
        f"{what}={label!r}",
        expected=f"a sample site, one of {', '.join(map(repr, names)) or '(none)'}",
        got=repr(label),
        fix="name it as the sample statement does",
    )


def values(seen: Trace, labels: Iterable[str], what: str) -> dict[str, Tensor]:
    """Return the values of sites, by label."""
    return {label: site_of(seen, label, what).value for label in labels}


def log_density(seen: Trace, labels: Iterable[str], ndim: int, what: str) -> Tensor:
    """Return the log density of some sites together, summed over dims beyond the first `ndim`."""
    return summed([_density(site_of(seen, label, what), ndim) for label in labels])


def _density(site: Site, ndim: int) -> Tensor:
    return summed_right(site.compute_log_prob(), ndim)


def summed(terms: Sequence[Tensor]) -> Tensor:
    """Return the sum of some tensors, at least one."""
    return sum(terms[1:], terms[0])


def summed_right(x: Tensor, ndim: int) -> Tensor:
    """Return the sum over dims beyond the first `ndim`."""
    return total(x, tuple(range(ndim, x.array.ndim))) if x.array.ndim > ndim else x


def _scores(seen: Trace, ndim: int) -> Iterator[tuple[str, Tensor]]:
    """Log densities of draws without a path to what they depend on, where a gradient is wanted."""
    for name in seen.stochastic_nodes:
        fn = seen[name].fn
        if isinstance(fn, Distribution) and not fn.has_rsample:
            score = _density(seen[name], ndim)
            if score.requires_grad:
                yield name, score


def scored(terms: Tensor, seen: Trace, ndim: int) -> Tensor:
    """Return the same terms, with the gradient of their expectation where draws have no path.

    Parameters
    ----------
    terms : Tensor, shape (samples, *designs)
    seen : Trace
        Of the run that the terms are of, whose dims before those of `terms` are independent draws.
    ndim : int
        How many dims of densities are samples and designs.

    Notes
    -----
    The score function, with the mean of the other terms as its baseline [mnih2016]_.
    """
    if not is_grad_enabled():
        return terms
    scores = [score for _, score in _scores(seen, ndim)]
    if not scores:
        return terms
    score = summed(scores)
    score = (
        total(score, tuple(range(ndim - terms.array.ndim))) if ndim > terms.array.ndim else score
    )
    fixed, n = terms.detach(), terms.array.shape[0]
    others = (total(fixed, 0) - fixed) / max(n - 1, 1)
    return terms + (fixed - others) * (score - score.detach())


def without_scores(seen: Trace, ndim: int, subject: str) -> None:
    """Refuse draws of an inner expectation that depend on the design and have no path to it."""
    if not is_grad_enabled():
        return
    for name, _ in _scores(seen, ndim):
        raise InferenceError(
            f"{subject}: gradients of draws of {name!r}",
            expected="a site with has_rsample, or one that does not depend on the design",
            got=f"a {type(seen[name].fn).__name__} that depends on what gradients are wanted of",
            fix="pass design.detach(), or estimate by marginal_eig or posterior_eig",
            at=seen[name].location,
        )


def no_others(seen: Trace, known: Sequence[str], subject: str, instead: str) -> None:
    """Refuse sites that are neither targets nor observed: the gain would be of them, too."""
    others = [name for name in seen.stochastic_nodes if name not in known]
    if others:
        raise ArgumentError(
            f"{subject}(target_labels=...)",
            expected="all sites that are not observed: others would count as targets",
            got=f"none of {', '.join(map(repr, others[:4]))}",
            fix=f"name them, or use {instead}",
        )


def averaged(terms: Tensor, subject: str) -> Tensor:
    """Return the mean over samples.

    Raises
    ------
    InferenceError
        If a term is not finite: leaving it out would bias the estimate without a word.
    """
    found = mean(terms, 0)
    bad = ~found.isfinite()
    if bool(bad.any()):
        raise InferenceError(
            subject,
            expected="finite terms",
            got=f"{int((~terms.isfinite()).sum())} of {terms.array.size} that are not",
            fix="take more inner samples, a guide with heavier tails, or a smaller learning rate",
        )
    return found


def network(name: str, fn: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function whose parameters are stated where it is a network."""
    return module(name, fn) if isinstance(fn, Module) else fn


def outcomes(model: Model, wide: Tensor, *, evaluation: bool) -> Trace:
    """Run a model that stays what it is while guides are learnt."""
    with set_grad_enabled(evaluation and is_grad_enabled()), block():
        return run(model, wide)


def optimised(
    loss: Loss,
    design: Tensor,
    num_samples: Count,
    num_steps: int,
    optim: Optim | None,
    return_history: bool,
    final_design: Tensor | None,
    final_num_samples: Count | None,
) -> tuple[Tensor | None, Tensor]:
    """Make a loss small; return its history, None unless asked for, and the final estimate.

    Whatever parameters its runs state are learnt, in the global store.
    """
    history = []
    for _ in range(num_steps):
        with trace(param_only=True) as seen:
            aggregate, found = loss(design, num_samples, evaluation=return_history)
        leaves = dict(_leaves(seen))
        for leaf in leaves.values():
            leaf.grad = None
        aggregate.backward()
        if return_history:
            history.append(found.detach())
        if isinstance(optim, PyroOptim):
            optim({name: leaf for name, leaf in leaves.items() if leaf.grad is not None})
            if isinstance(optim, PyroLRScheduler):
                optim.step()
        elif optim is not None:
            optim.step()
    design = design if final_design is None else final_design
    count = num_samples if final_num_samples is None else final_num_samples
    _, found = loss(design, count, evaluation=True)
    return (stack(history) if history else None), found


def as_asked(history: Tensor | None, found: Tensor) -> Tensor | tuple[Tensor, Tensor]:
    """Return what `optimised` found in the form that estimators give it."""
    return found if history is None else (history, found)


def _leaves(seen: Trace) -> Iterator[tuple[str, Tensor]]:
    for name, site in seen.nodes.items():
        if site.kind == "param":
            value = site.value
            yield name, value if value.is_leaf else get_param_store().unconstrained(name)
