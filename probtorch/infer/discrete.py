"""`infer_discrete`: a model whose finite discrete sites are drawn from their posterior.

The model is run once with these sites enumerated (effects/enumeration.py), which gives their joint
posterior given everything else; values are chosen (decode.py), and the model is run at them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, TypeVar, overload

from probtorch.autograd.modes import no_grad
from probtorch.core.signatures import explain_calls
from probtorch.effects.enumerable import as_annotated, can_enumerate
from probtorch.effects.enumeration import DeeperPlates, Enumeration, enumerate_sites
from probtorch.effects.handlers import trace
from probtorch.effects.runtime import STATE, Handler
from probtorch.effects.site import Site
from probtorch.effects.trace import Trace
from probtorch.errors import ArgumentError, InferenceError
from probtorch.infer.enumeration.choices import ONE_BY_ONE, Choices, branches_of
from probtorch.infer.enumeration.decode import decode
from probtorch.infer.enumeration.enumerated_check import GiveValues
from probtorch.infer.enumeration.factors import axes_of, compute_densities
from probtorch.infer.enumeration.summed import leftmost_plate, marginal_density
from probtorch.infer.model_calls import check_model
from probtorch.infer.objectives.runs import same_draws
from probtorch.ops.categories import categorical
from probtorch.ops.exponential_sums import softmax
from probtorch.ops.pieces import stack

if TYPE_CHECKING:
    from probtorch.core.tensor_base import TensorBase
    from probtorch.infer.objectives.protocol import Model

__all__ = ["infer_discrete"]

P = ParamSpec("P")
R = TypeVar("R")


@overload
def infer_discrete(
    fn: None = None,
    first_available_dim: int | None = None,
    temperature: int = 1,
    *,
    strict_enumeration_warning: bool = True,
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
@overload
def infer_discrete(
    fn: Callable[P, R],
    first_available_dim: int | None = None,
    temperature: int = 1,
    *,
    strict_enumeration_warning: bool = True,
) -> Callable[P, R]: ...
def infer_discrete(
    fn: Callable[P, R] | None = None,
    first_available_dim: int | None = None,
    temperature: int = 1,
    *,
    strict_enumeration_warning: bool = True,
) -> Callable[P, R] | Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a model that draws its finite discrete latent sites from their posterior.

    Parameters
    ----------
    fn : callable, optional
        A model with data. Without it, a decorator.
    first_available_dim : int, optional
        Accepted for Pyro's sake: dims are found.
    temperature : {0, 1}
        1 for a joint draw from the posterior, given the data and the other latent sites; 0 for the
        values of highest probability, as Viterbi's algorithm finds for a Markov chain.
    strict_enumeration_warning : bool
        Accepted for Pyro's sake.

    Returns
    -------
    callable
        Runs the model twice: with all values of the discrete sites at once, and at the chosen ones;
        for sites with ``infer={"enumerate": "sequential"}`` once more for each of their values.
        Other latent sites keep their values; give them with `substitute`, or they are drawn from
        the prior.

    Raises
    ------
    ArgumentError
        If `temperature` is neither 0 nor 1.
    InferenceError
        While running: if the sum over the sites is intractable, or the data are impossible.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> def model(y):
    ...     with probtorch.plate("data", len(y)):
    ...         z = probtorch.sample("z", dist.Bernoulli(0.5))
    ...         probtorch.sample("y", dist.Normal(4.0 * z, 1.0), obs=y)
    ...     return z
    >>> infer_discrete(model, temperature=0)(probtorch.tensor([0.3, 4.1, 3.8])).tolist()
    [0.0, 1.0, 1.0]
    """
    if isinstance(temperature, bool) or temperature not in (0, 1):
        raise ArgumentError(
            "infer_discrete",
            expected="temperature=0 for the most probable values, or 1 for a draw",
            got=repr(temperature),
            fix="leave it out for a draw",
        )
    if fn is None:

        def decorate(fn: Callable[P, R]) -> Callable[P, R]:
            return infer_discrete(fn, temperature=temperature)

        return decorate
    check_model(fn, "infer_discrete")
    model = fn
    first_dim = -1

    @functools.wraps(model)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal first_dim
        found, enumeration = _enumerated(model, args, kwargs, first_dim)
        first_dim = enumeration.first_dim
        branch: dict[str, TensorBase] = {}
        if any("choice" in site.notes for site in found.nodes.values()):
            found, enumeration = _branch(model, args, kwargs, found, first_dim, temperature)
            branch = {n: s.value for n, s in found.nodes.items() if "choice" in s.notes}
        values = decode(found, enumeration, axes_of(enumeration, found), temperature)
        with GiveValues(values | branch, found):
            return model(*args, **kwargs)

    return run


def _branch(
    model: Model,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    first: Trace,
    first_dim: int,
    temperature: int,
) -> tuple[Trace, Enumeration]:
    """A run along one of the branches of a model, drawn by their densities, or the likeliest."""
    runs: list[tuple[Trace, Enumeration]] = []
    weights: list[TensorBase] = []
    drawn = {n: s.value for n, s in first.nodes.items() if _is_drawn(s)}

    def along(choices: Choices) -> Trace:
        given = GiveValues(drawn, first)
        found, enumeration = _enumerated(model, args, kwargs, first_dim, given, choices)
        met = {n for n, s in found.nodes.items() if _is_drawn(s)}
        if met != drawn.keys():
            raise _other_sites(min(met ^ drawn.keys()), found, first)
        runs.append((found, enumeration))
        weights.append(marginal_density(found, enumeration, maximum=temperature == 0))
        return found

    with no_grad():
        branches_of(along, getattr(model, "__name__", "the model"))
        logits = stack(weights)
        chosen = int(logits.argmax(-1) if temperature == 0 else categorical(softmax(logits, -1)))
    return runs[chosen]


def _is_drawn(site: Site) -> bool:
    latent = site.kind == "sample" and not site.observed
    return latent and "variable" not in site.notes and "choice" not in site.notes


def _other_sites(name: str, found: Trace, first: Trace) -> InferenceError:
    return InferenceError(
        f"infer_discrete: site {name!r} is drawn along some branches of the model only",
        expected="the same other latent sites for all values of the sites that are enumerated "
        "sequentially",
        got=f"{name!r} along one of them",
        fix=f"draw {name!r} before the branch; programs whose sites come and go are for "
        "ParticleGibbs(model) and Importance(model)",
        at=(found if name in found else first)[name].location,
    )


def _enumerated(
    model: Model,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    first_dim: int,
    *handlers: Handler,
) -> tuple[Trace, Enumeration]:
    """A run of the model with its discrete sites enumerated, to the left of all plates.

    Those that are enumerated sequentially have their first values, if `handlers` do not say others.
    """
    handlers = handlers or (Choices(()),)
    while True:
        enumeration = Enumeration(first_dim)
        enumeration.marks.cure = ONE_BY_ONE
        for handler in handlers:
            if isinstance(handler, Choices):
                handler.names.clear()
                handler.sizes.clear()
        try:
            with enumeration.watch():
                enumerating = enumerate_sites(None, enumeration, _finite)
                found = _run(model, args, kwargs, enumerating, *handlers)
                with no_grad():
                    compute_densities(found)
            if leftmost_plate(found) > first_dim:
                return found, enumeration
        except DeeperPlates:
            pass
        except Exception:
            # Plates may have met variables at their dims before a site could tell.
            with same_draws():
                if leftmost_plate(_run(model, args, kwargs)) > first_dim:
                    raise
        with same_draws():
            first_dim = min(first_dim, leftmost_plate(_run(model, args, kwargs))) - 1


def _run(
    model: Callable[..., object],
    args: tuple[object, ...],
    kwargs: dict[str, object],
    *handlers: Handler,
) -> Trace:
    """Run the model under handlers that have the last word, unseen by the traces around."""
    before = STATE.handlers
    tracer = trace()
    around = tuple(handler for handler in before if not isinstance(handler, trace))
    STATE.handlers = (tracer, *handlers, *around)
    try:
        with no_grad():
            model(*args, **kwargs)
    finally:
        STATE.handlers = before
    return tracer.trace


def _finite(site: Site) -> str | None:
    """Enumerate what can be, however it is annotated."""
    return "parallel" if as_annotated(site) or can_enumerate(site) else None


explain_calls(globals())
