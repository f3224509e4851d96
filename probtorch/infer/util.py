"""NumPyro's name for what a model is on the unconstrained scale, for samplers of one's own.

`initialize_model` returns a starting point, the potential as a plain function and the way back;
`potential_energy`, `constrain_fn` and `unconstrain_fn` do a part of this each, by names of sites.
All are `Target` (potential.py), which is compiled and works on one flat vector: prefer it in loops.
What is summed out, scaled and masked in inference is so here. NumPyro's random keys are left out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from probtorch.core.casting import cast
from probtorch.core.dispatch import wrap
from probtorch.core.dtype import float64
from probtorch.core.rng import Generator, generator_of
from probtorch.core.signatures import explain_calls, explained
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import Shape, TensorLike
from probtorch.distributions.transforms.transform import Transform
from probtorch.effects.density import log_density
from probtorch.effects.trace import Trace
from probtorch.errors import ArgumentError, ShapeError
from probtorch.infer.model_calls import check_model_call, is_rng_key
from probtorch.infer.potential import ModelTarget, Target
from probtorch.infer.prediction.predictive import Predictive, log_likelihood
from probtorch.infer.slots import bijection
from probtorch.infer.starts.initialization import Strategy, init_to_uniform, search
from probtorch.ops.joining import cat
from probtorch.ops.movement import reshape

__all__ = [
    "ModelInfo",
    "ParamInfo",
    "Predictive",
    "constrain_fn",
    "find_valid_initial_params",
    "get_potential_fn",
    "get_transforms",
    "initialize_model",
    "log_density",
    "log_likelihood",
    "potential_energy",
    "torch_item",
    "transform_fn",
    "unconstrain_fn",
]

R = TypeVar("R")
Values = Mapping[str, TensorLike]
Kwargs = Mapping[str, object]
# Of unconstrained values by site.
Potential = Callable[[Values], TensorBase]
Postprocess = Callable[[Values], dict[str, TensorBase]]


_NO_KEY = "leave the key out: no keys are needed here; a start has seed=0"


def _advice(args: tuple[object, ...], kwargs: dict[str, object]) -> str | None:
    """The fix line where NumPyro's random key stands in front, or has its name."""
    return _NO_KEY if "rng_key" in kwargs or (args and not callable(args[0])) else None


class ParamInfo(NamedTuple):
    """A starting point.

    Attributes
    ----------
    z : dict of str to Tensor
        Unconstrained values by site.
    potential_energy : Tensor, shape ()
        Minus the log density there, natural log.
    z_grad : dict of str to Tensor
        Gradient of the potential energy.
    """

    z: dict[str, TensorBase]
    potential_energy: TensorBase
    z_grad: dict[str, TensorBase]


class ModelInfo(NamedTuple):
    """What a sampler of one's own needs of a model.

    Attributes
    ----------
    param_info : ParamInfo
    potential_fn : callable
        From unconstrained values by site to the potential energy, differentiable.
    postprocess_fn : callable
        From unconstrained values by site to constrained ones and deterministic sites.
    model_trace : Trace
        Of a run at the starting point.
    """

    param_info: ParamInfo
    potential_fn: Potential
    postprocess_fn: Postprocess
    model_trace: Trace


def torch_item(x: TensorLike) -> TensorLike:
    """Return a tensor's one number as Python's; a number as it is."""
    return x.item() if isinstance(x, TensorBase) else x


def transform_fn(
    transforms: Mapping[str, Transform], params: Values, invert: bool = False
) -> dict[str, TensorBase]:
    """Apply transforms to values of the same names; others are handed on.

    Parameters
    ----------
    transforms : dict of str to Transform
    params : dict of str to array_like
    invert : bool
        Apply the inverses.

    Returns
    -------
    dict of str to Tensor
    """
    found: dict[str, TensorBase] = {}
    for name, value in params.items():
        x = value if isinstance(value, TensorBase) else wrap(np.asarray(value))
        if name in transforms:
            x = transforms[name].inv(x) if invert else transforms[name](x)
        found[name] = x
    return found


def get_transforms(
    model: Callable[..., object],
    model_args: Sequence[object] = (),
    model_kwargs: Kwargs | None = None,
    params: Values | None = None,
) -> dict[str, Transform]:
    """Return the bijection from the unconstrained scale onto the support of each latent site.

    Parameters
    ----------
    model, model_args, model_kwargs
        As `potential_energy`.
    params : dict of str to array_like, optional
        Constrained values of all latent sites, at which supports are looked up that depend on them.

    Returns
    -------
    dict of str to Transform
    """
    target = _target("get_transforms", model, model_args, model_kwargs)
    q = np.zeros(target.dim) if params is None else target.unconstrain(params)
    return _transforms(target, wrap(q))


def unconstrain_fn(
    model: Callable[..., object],
    model_args: Sequence[object] = (),
    model_kwargs: Kwargs | None = None,
    params: Values | None = None,
) -> dict[str, TensorBase]:
    """Return the unconstrained values of latent sites.

    Parameters
    ----------
    model, model_args, model_kwargs
        As `potential_energy`.
    params : dict of str to array_like
        A constrained value of each latent site.

    Returns
    -------
    dict of str to Tensor

    Raises
    ------
    ModelError
        If a name is missing or unknown.
    DomainError
        If a value lies outside its support.
    """
    target = _target("unconstrain_fn", model, model_args, model_kwargs)
    return target.unpack(wrap(target.unconstrain(params or {})))


def constrain_fn(
    model: Callable[..., object],
    model_args: Sequence[object] = (),
    model_kwargs: Kwargs | None = None,
    params: Values | None = None,
    return_deterministic: bool = False,
    batch_ndims: int = 0,
) -> dict[str, TensorBase]:
    """Return the constrained values of latent sites.

    Parameters
    ----------
    model, model_args, model_kwargs
        As `potential_energy`.
    params : dict of str to array_like
        Unconstrained values of each latent site.
    return_deterministic : bool
        Return the deterministic sites, too.
    batch_ndims : int
        How many dims of draws stand in front of the values: 1 for draws, 2 for chains and draws.

    Returns
    -------
    dict of str to Tensor
        Differentiable where there are no dims of draws.

    Raises
    ------
    ModelError
        If a name is missing or unknown.
    ShapeError
        If a value has not the unconstrained shape of its site behind the dims of draws.
    """
    target = _target("constrain_fn", model, model_args, model_kwargs)
    found = _constrained(target, params or {}, batch_ndims)
    return found if return_deterministic else {n: found[n] for n in target.slots}


def potential_energy(
    model: Callable[..., object],
    model_args: Sequence[object] = (),
    model_kwargs: Kwargs | None = None,
    params: Values | None = None,
    enum: bool = False,
) -> TensorBase:
    """Return the potential energy of a model: minus the log density on the unconstrained scale.

    Parameters
    ----------
    model : callable
    model_args : tuple
    model_kwargs : dict, optional
        What it is called with.
    params : dict of str to array_like
        Unconstrained values of each latent site.
    enum : bool
        Accepted for NumPyro's sake: finite sites are always summed out.

    Returns
    -------
    Tensor, shape (), float64
        Natural log, with log-determinants of the bijections; differentiable in `params`.

    Raises
    ------
    ModelError
        If a name is missing or unknown.
    ShapeError
        If a value has not the unconstrained shape of its site.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> def model(y):
    ...     scale = probtorch.sample("scale", dist.HalfNormal(1.0))
    ...     probtorch.sample("y", dist.Normal(0.0, scale), obs=y)
    >>> y = probtorch.tensor(0.5)
    >>> round(potential_energy(model, (y,), {}, {"scale": 0.0}).item(), 4)
    1.7697
    """
    target = _target("potential_energy", model, model_args, model_kwargs)
    return _potential(target, params or {})


def get_potential_fn(
    model: Callable[..., object],
    inv_transforms: Mapping[str, Transform] | None = None,
    *,
    enum: bool = False,
    replay_model: bool = False,
    dynamic_args: bool = False,
    model_args: Sequence[object] = (),
    model_kwargs: Kwargs | None = None,
) -> tuple[Potential, Postprocess]:
    """Return the potential energy and the way back to constrained values, as functions.

    Parameters
    ----------
    model, model_args, model_kwargs
        As `potential_energy`.
    inv_transforms, enum, replay_model : optional
        Accepted for NumPyro's sake: these are found out.
    dynamic_args : bool
        Return functions of the model's arguments that return these two.

    Returns
    -------
    potential_fn, postprocess_fn : callable
        As in `ModelInfo`.
    """
    target = _target("get_potential_fn", model, model_args, model_kwargs)
    return _functions(target, model, dynamic_args)


@explained("find_valid_initial_params", advice=_advice)
def find_valid_initial_params(
    model: Callable[..., object],
    *,
    init_strategy: Strategy = init_to_uniform,
    model_args: Sequence[object] = (),
    model_kwargs: Kwargs | None = None,
    seed: int | Generator | None = None,
) -> tuple[ParamInfo, bool]:
    """Return a point at which the log density and its gradient are finite, and True.

    Parameters
    ----------
    model, model_args, model_kwargs
        As `potential_energy`.
    init_strategy : callable
        Of `init_to_uniform` and its kin.
    seed : int or Generator, optional
        The default generator if None.

    Raises
    ------
    InferenceError
        If there is no such point within 100 tries.
    """
    target = _target("find_valid_initial_params", model, model_args, model_kwargs)
    return _start(target, init_strategy, seed), True


@explained("initialize_model", advice=_advice)
def initialize_model(
    model: Callable[..., object],
    model_args: Sequence[object] = (),
    model_kwargs: Kwargs | None = None,
    *,
    init_strategy: Strategy = init_to_uniform,
    dynamic_args: bool = False,
    seed: int | Generator | None = None,
) -> ModelInfo:
    """Return what a sampler of one's own needs of a model.

    Parameters
    ----------
    model, model_args, model_kwargs
        As `potential_energy`.
    init_strategy : callable
        Where to start: `init_to_uniform` and its kin.
    dynamic_args : bool
        As `get_potential_fn`.
    seed : int or Generator, optional
        The default generator if None.

    Returns
    -------
    ModelInfo

    Raises
    ------
    InferenceError
        If there is no starting point within 100 tries.

    Notes
    -----
    `potential_fn` is a plain function, which runs the model. ``Target.from_model(model).density``
    has the same numbers from native code, for NumPy's arrays.

    Examples
    --------
    >>> import probtorch
    >>> import probtorch.distributions as dist
    >>> def model(y):
    ...     scale = probtorch.sample("scale", dist.HalfNormal(1.0))
    ...     probtorch.sample("y", dist.Normal(0.0, scale), obs=y)
    >>> info = initialize_model(model, (probtorch.tensor(0.5),), seed=0)
    >>> bool(info.potential_fn(info.param_info.z) == info.param_info.potential_energy)
    True
    >>> list(info.postprocess_fn(info.param_info.z))
    ['scale']
    """
    target = _target("initialize_model", model, model_args, model_kwargs)
    start = _start(target, init_strategy, seed)
    potential_fn, postprocess_fn = _functions(target, model, dynamic_args)
    run = target.trace_at(_packed(target, start.z))
    return ModelInfo(start, potential_fn, postprocess_fn, run)


# ------------------------------------------------------------------------------------------ helpers


def _target(
    subject: str, model: object, args: Sequence[object], kwargs: Kwargs | None
) -> ModelTarget:
    if is_rng_key(model) or not callable(model):
        raise ArgumentError(
            subject,
            expected=f"{subject}(model, model_args=(), model_kwargs={{}}, ...)",
            got=f"{type(model).__name__} {model!s:.40} in place of the model",
            fix=_NO_KEY,
        )
    kwargs = dict(kwargs or {})
    check_model_call(model, tuple(args), kwargs, f"{subject}(model, model_args)")
    return Target.from_model(model, *args, **kwargs)


def _packed(target: Target, values: Values) -> TensorBase:
    """The flat vector of unconstrained values by name; differentiable in them."""
    target._check_names(values, "unconstrained values")
    parts = []
    for name in target.slots:
        x = _float64(values[name])
        _check_shape(target, name, tuple(x.shape), ())
        parts.append(reshape(x, (-1,)))
    return cat(parts)


def _check_shape(target: Target, name: str, shape: Shape, lead: Shape) -> None:
    """Refuse a value that has not the shape of its site behind the dims of draws."""
    expected = (*lead, *target.slots[name].free_shape)
    if shape != expected:
        raise ShapeError(
            f"unconstrained value of {name!r}",
            expected=f"shape {expected}",
            got=f"shape {shape}",
            fix="constrain_fn's batch_ndims says how many dims of draws stand in front, the same "
            "of all sites",
        )


def _float64(value: TensorLike) -> TensorBase:
    """A value in float64; numbers without the rounding of a tensor of the default dtype."""
    if isinstance(value, TensorBase):
        return cast(value, float64)
    return wrap(np.asarray(value, np.float64))


def _functions(
    target: ModelTarget, model: Callable[..., object], dynamic_args: bool
) -> tuple[Potential, Postprocess]:
    """What `get_potential_fn` returns."""
    if not dynamic_args:
        return functools.partial(_potential, target), functools.partial(_constrained, target)

    def of_arguments(fn: Callable[..., R], *args: object, **kwargs: object) -> Callable[..., R]:
        return functools.partial(fn, _target("potential_fn", model, args, kwargs))

    # Functions of the model's arguments then, as in NumPyro; the type is that of the usual case.
    made: object = (
        functools.partial(of_arguments, _potential),
        functools.partial(of_arguments, _constrained),
    )
    return made  # type: ignore[return-value]  # see above


def _potential(target: ModelTarget, params: Values) -> TensorBase:
    return -target.logdensity(_packed(target, params))


def _constrained(
    target: ModelTarget, params: Values, batch_ndims: int = 0
) -> dict[str, TensorBase]:
    if not batch_ndims:
        return target.constrain(_packed(target, params))
    target._check_names(params, "unconstrained values")
    arrays = {name: np.asarray(params[name], np.float64) for name in target.slots}
    lead = next(iter(arrays.values())).shape[:batch_ndims]
    for name, x in arrays.items():
        _check_shape(target, name, x.shape, lead)
    sizes = {name: slot.stop - slot.start for name, slot in target.slots.items()}
    flat = [x.reshape(*lead, sizes[name]) for name, x in arrays.items()]
    rows = np.concatenate(flat, axis=-1)
    return {name: wrap(x) for name, x in target.constrain_many(rows).items()}


def _start(target: ModelTarget, strategy: Strategy, seed: int | Generator | None) -> ParamInfo:
    generator = generator_of(seed)
    q, value, gradient, _ = search(target, generator, strategy)
    return ParamInfo(
        target.unpack(wrap(q)), wrap(np.asarray(-value)), target.unpack(wrap(-gradient))
    )


def _transforms(target: ModelTarget, q: TensorBase) -> dict[str, Transform]:
    run = target.trace_at(q)
    return {name: bijection(run[name], slot) for name, slot in target.slots.items()}


explain_calls(globals())
