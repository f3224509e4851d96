"""The statements a model is written in: sample, param, factor, deterministic; plates.py has plate.

Each makes a `Site` and hands it to `perform`; without handlers around, `sample` draws and `param`
reads the store. What can be wrong with a statement on its own (names, shapes of data against the
distribution) is said here, at the user's line.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any, TypeVar, overload

from probtorch.core.shape import broadcast_shapes
from probtorch.core.signatures import closest, explain_calls
from probtorch.core.typed import Shape, TensorLike, Tree
from probtorch.distributions import constraints
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.distribution import Distribution
from probtorch.effects.params import read_owned, read_param
from probtorch.effects.placing import PARTICLES, place
from probtorch.effects.plate_rows import take_rows
from probtorch.effects.runtime import STATE, default_for, perform
from probtorch.effects.site import Site, as_mask, as_value
from probtorch.errors import ArgumentError, DTypeError, ShapeError
from probtorch.ops.arithmetic import where
from probtorch.tensor import Tensor

__all__ = ["deterministic", "factor", "owned_param", "param", "sample", "sample_from"]


R = TypeVar("R")

# The frame of the statement, seen from the function: `explain_calls` stands between.
WRITTEN = 2


class _Absent:
    """The default of `obs`, which is not the None that a user gives."""

    def __repr__(self) -> str:
        return "None"


_ABSENT: Any = _Absent()


@overload
def sample(
    name: str,
    fn: Distribution,
    *,
    obs: TensorLike | None = _ABSENT,
    obs_mask: TensorLike | None = None,
    infer: Mapping[str, object] | None = None,
    rng_key: object = None,
    sample_shape: tuple[int, ...] = (),
) -> Tensor: ...
@overload
def sample(
    name: str,
    fn: Callable[..., R],
    *args: object,
    obs: TensorLike | None = _ABSENT,
    obs_mask: TensorLike | None = None,
    infer: Mapping[str, object] | None = None,
    rng_key: object = None,
    sample_shape: tuple[int, ...] = (),
    **kwargs: object,
) -> R: ...
def sample(
    name: str,
    fn: Any,
    *args: object,
    obs: TensorLike | None = _ABSENT,
    obs_mask: TensorLike | None = None,
    infer: Mapping[str, object] | None = None,
    rng_key: object = None,
    sample_shape: tuple[int, ...] = (),
    **kwargs: object,
) -> Tree:
    """Draw a value, or state that one was observed.

    Parameters
    ----------
    name : str
        Unique within one run of the model.
    fn : Distribution or callable
        A callable is called with ``*args, **kwargs``, and has no density.
    obs : Tensor, array, list or number, optional
        The observed value, of the distribution's shape; left out or None, the site is latent. None
        says that data were meant: a run in which nothing is observed then warns.
    obs_mask : bool Tensor or array, optional
        Which elements of `obs` are there. The others are latent: the site splits into
        ``{name}_observed``, ``{name}_unobserved`` and the deterministic `name` that joins them.
    infer : dict, optional
        Settings for inference, for example ``{"enumerate": "parallel"}``.
    rng_key : optional
        Accepted for NumPyro's sake, and ignored: use the `seed` handler.
    sample_shape : tuple of int
        Independent copies, on the left of the batch shape.

    Returns
    -------
    value : Tensor, shape ``fn.batch_shape + fn.event_shape`` within the plates around it

    Raises
    ------
    ShapeError
        If the shape of the data, or of a plate, does not fit the distribution.

    Notes
    -----
    Draws are reparameterised where the distribution can. The elements that `obs_mask` leaves out
    follow the distribution at every position, also where there are data: their extra density
    integrates to 1, and no direction of the posterior is flat.

    Examples
    --------
    >>> from probtorch.distributions.normal import Normal
    >>> from probtorch.effects.plates import plate
    >>> with plate("data", 3):
    ...     y = sample("y", Normal(0.0, 1.0), obs=[0.1, -0.3, 2.0])
    """
    frame = sys._getframe(WRITTEN)
    where_from = frame.f_code, frame.f_lasti
    if (args or kwargs) and hasattr(fn, "log_prob"):
        _check_statement(name, fn)
        raise _not_taken(name, fn, args, kwargs)
    if sample_shape:
        fn = fn.expand(tuple(sample_shape) + tuple(fn.batch_shape))
    if obs is _ABSENT:
        return sample_from(name, fn, args, kwargs, None, None, infer, where_from)
    if obs is None:
        return sample_from(name, fn, args, kwargs, None, None, infer, where_from, waiting=True)
    if obs_mask is not None and obs is not None:
        return _partly_observed(name, fn, as_value(obs, name), obs_mask, infer, where_from)
    return sample_from(name, fn, args, kwargs, obs, None, infer, where_from)


def sample_from(
    name: str,
    fn: Any,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    obs: TensorLike | None,
    mask: bool | Tensor | None,
    infer: Mapping[str, object] | None,
    where_from: tuple[CodeType, int],
    waiting: bool = False,
) -> Tree:
    """`sample` without its conveniences; `where_from` is code and instruction to blame.

    `waiting` is noted of a site that was told ``obs=None``: data were meant.
    """
    plates = STATE.plates
    if type(name) is not str or not hasattr(fn, "log_prob") or isinstance(fn, type):
        _check_statement(name, fn)
    elif plates.shape:
        fn = place(fn, name, plates.frames, plates.shape)
    site = Site(
        "sample",
        name,
        fn,
        args,
        kwargs,
        None if obs is None else as_value(obs, name),
        obs is not None,
        mask,
        plates.scale,
        dict(infer) if infer else {},
        plates.frames,
        plates.shape,
        code=where_from[0],
        instruction=where_from[1],
    )
    if waiting:
        site.notes["no_data"] = True
    value = perform(site)
    if site.observed and hasattr(site.fn, "event_shape"):
        shape = value.array.shape
        if shape != tuple(site.fn.batch_shape) + tuple(site.fn.event_shape):
            _check_data(site, shape)
    return value


def param(
    name: str,
    init_tensor: TensorLike | Callable[..., TensorLike] | None = None,
    constraint: Constraint = constraints.real,
    event_dim: int | None = None,
    *,
    init_value: TensorLike | Callable[..., TensorLike] | None = None,
) -> Tensor:
    """Return the value of a learnable parameter, made from its initial value at the first call.

    Parameters
    ----------
    name : str
    init_tensor : Tensor, array, number or callable
        Initial value, inside the constraint; a callable is asked for it. `init_value` is NumPyro's
        name for it.
    constraint : Constraint, default real
        Where the value lives; it is optimised through ``transform_to(constraint)``.
    event_dim : int, optional
        Rightmost dims that belong to no plate; by default all of them. Inside a subsampling plate
        the other dims are cut to the rows in use.

    Returns
    -------
    value : Tensor
        Differentiable with respect to the unconstrained leaf in the store.

    Raises
    ------
    ModelError
        If the parameter is new and has no initial value.
    DomainError
        If the initial value violates the constraint.
    """
    plates = STATE.plates
    init = init_value if init_tensor is None else init_tensor
    frame = sys._getframe(WRITTEN)
    site = Site(
        "param",
        name,
        args=(init, constraint, event_dim),
        infer={},
        plates=plates.frames,
        plate_shape=plates.shape,
        event_dim=event_dim,
        code=frame.f_code,
        instruction=frame.f_lasti,
    )
    value = perform(site)
    if event_dim is None or not plates.frames:
        return value
    site.value = take_rows(value, event_dim, plates.frames, f"param {name!r}")
    return site.value


def factor(name: str, log_factor: TensorLike, *, has_rsample: bool | None = None) -> None:
    """Add a term to the joint log density.

    Parameters
    ----------
    name : str
    log_factor : Tensor or number, shape broadcastable with the plates around it
        Natural log of the factor; one term per row of the plates.
    has_rsample : bool, optional
        In a guide: whether the factor comes from differentiable draws.
    """
    plates = STATE.plates
    value = as_value(log_factor, name)
    if plates.shape and value.shape != plates.shape:
        value = value.expand(
            broadcast_shapes(tuple(value.shape), plates.shape, op=f"factor {name!r}")
        )
    frame = sys._getframe(WRITTEN)
    perform(
        Site(
            "factor",
            name,
            value=value,
            observed=True,
            scale=plates.scale,
            infer={} if has_rsample is None else {"has_rsample": has_rsample},
            plates=plates.frames,
            plate_shape=plates.shape,
            code=frame.f_code,
            instruction=frame.f_lasti,
        )
    )


def deterministic(name: str, value: TensorLike, event_dim: int | None = None) -> Tensor:
    """Name a computed value, so that traces and results contain it; return it.

    Parameters
    ----------
    name : str
    value : Tensor, array or number
    event_dim : int, optional
        Rightmost dims that belong to no plate; None leaves it to the sizes of the plates around the
        statement.
    """
    plates = STATE.plates
    frame = sys._getframe(WRITTEN)
    return perform(
        Site(
            "deterministic",
            name,
            value=as_value(value, name),
            plates=plates.frames,
            plate_shape=plates.shape,
            event_dim=event_dim,
            code=frame.f_code,
            instruction=frame.f_lasti,
        )
    )


def owned_param(
    name: str,
    leaf: Tensor,
    constraint: Constraint,
    event_dim: int | None,
    where_from: tuple[CodeType, int],
    from_store: bool = False,
) -> Tensor:
    """`param` of a module: `leaf` holds its unconstrained numbers, see `params.read_owned`."""
    plates = STATE.plates
    site = Site(
        "param",
        name,
        args=(leaf, constraint, event_dim),
        infer={},
        plates=plates.frames,
        plate_shape=plates.shape,
        notes={"leaf": leaf, "from_store": from_store},
        event_dim=event_dim,
        code=where_from[0],
        instruction=where_from[1],
    )
    value = perform(site)
    if event_dim is None or not plates.frames:
        return value
    site.value = take_rows(value, event_dim, plates.frames, f"param {name!r}")
    return site.value


@default_for("param")
def _read_param(site: Site) -> Tensor:
    init, constraint, _ = site.args
    leaf = site.notes.get("leaf")
    if leaf is None:
        return read_param(site.name, init, constraint)
    return read_owned(site.name, leaf, constraint, site.notes["from_store"])


def _partly_observed(
    name: str,
    fn: Distribution,
    data: Tensor,
    obs_mask: TensorLike,
    infer: Mapping[str, object] | None,
    where_from: tuple[CodeType, int],
) -> Tensor:
    """`sample` with data for some elements only."""
    there: Any = as_mask(obs_mask, f"obs_mask of site {name!r}")
    event = tuple(fn.event_shape)
    shape = tuple(getattr(there, "shape", ()))
    if event and shape == tuple(data.shape) and shape[-len(event) :] == event:
        raise ShapeError(
            f"obs_mask of site {name!r}",
            expected=f"one truth for each draw of {type(fn).__name__}, an event of shape {event}",
            got=f"shape {shape}, one for each number",
            fix="write obs_mask.all(-1), to infer a draw of which a part is missing; "
            "NanMaskedMultivariateNormal takes data with nan",
        )
    observed = sample_from(f"{name}_observed", fn, (), {}, data, there, infer, where_from)
    unobserved = sample_from(f"{name}_unobserved", fn, (), {}, None, None, infer, where_from)
    for _ in fn.event_shape:
        there = there.unsqueeze(-1)
    return deterministic(name, where(there, observed, unobserved), len(fn.event_shape))


def _check_statement(name: object, fn: object) -> None:
    if type(name) is not str:
        raise DTypeError(
            "sample",
            expected="a name as its first argument",
            got=f"{type(name).__name__} {name!r:.60}",
            fix="write sample('x', distribution)",
        )
    if isinstance(fn, type) and hasattr(fn, "log_prob"):
        raise DTypeError(
            f"site {name!r}",
            expected=f"a distribution, made with its parameters: {fn.__name__}(...)",
            got=f"the class {fn.__name__}",
            fix=f"write sample({name!r}, {fn.__name__}(...)), with the parameters inside",
        )
    if not callable(fn):
        raise DTypeError(
            f"site {name!r}",
            expected="a distribution (or a function that draws)",
            got=f"{type(fn).__name__} {fn!r:.60}",
            fix="write it as one of probtorch.distributions, such as Normal(loc, scale)"
            if type(fn).__module__.startswith("scipy.stats")
            else "for a known value use deterministic(name, value), for data sample(..., obs=)",
        )


# What other libraries give a sample statement beside its distribution.
_MEANT = {
    "observed": "the data are given as obs=",
    "data": "the data are given as obs=",
    "value": "the data are given as obs=",
    "y": "the data are given as obs=",
    "shape": "independent copies are a plate: with plate('rows', n): ..., or {fn}.expand([n])",
    "size": "independent copies are a plate: with plate('rows', n): ..., or {fn}.expand([n])",
    "dims": "a plate names the dim: with plate('rows', coords=names): ...",
    "coords": "a plate names the dim: with plate('rows', coords=names): ...",
    "mask": "write {fn}.mask(mask), or obs_mask= for data of which some are missing",
    "weights": "write `with probtorch.handlers.scale(scale=weights):`",
    "sample_weight": "write `with probtorch.handlers.scale(scale=weights):`",
    "scale_factor": "write `with probtorch.handlers.scale(scale=factor):`",
    "initval": "a start is given to the kernel: NUTS(model, init_strategy=init_to_value(...))",
    "seed": "a seed is given to the inference object, or to the seed handler",
    "rng": "a seed is given to the inference object, or to the seed handler",
    "random_state": "a seed is given to the inference object, or to the seed handler",
}


def _not_taken(
    name: str, fn: object, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> ArgumentError:
    """Error for arguments beside a distribution: data under another name would be forgotten."""
    taken = ("obs", "obs_mask", "infer", "sample_shape")
    of = f"{type(fn).__name__}(...)"
    if args:
        got = f"{len(args)} more argument{'s' * (len(args) > 1)} by position"
        fix = f"for data write sample({name!r}, {of}, obs=data)"
    else:
        word = next(iter(kwargs))
        got = f"the unknown argument {word!r}"
        near = closest(word, taken)
        fix = f"did you mean {near}=...?" if near else "leave it out"
        if word in _MEANT:
            fix = _MEANT[word].format(fn=of)
    return ArgumentError(
        f"site {name!r}",
        expected=f"a distribution, and beside it {', '.join(taken)} by name",
        got=got,
        fix=fix,
    )


def _check_data(site: Site, shape: Shape) -> None:
    """Refuse data of another shape than the distribution where that changes the sum."""
    batch, event = tuple(site.fn.batch_shape), tuple(site.fn.event_shape_of(shape))
    expected = batch + event
    n = len(event)
    try:
        full = broadcast_shapes(shape, expected)
    except ShapeError:
        full = None
    if full is None or (n and shape[-n:] != event):
        raise _misfit(site, shape, batch, event)
    have = (1,) * (len(full) - len(shape)) + shape
    # Data are the same for all particles.
    free = next((f.dim for f in site.plates if f.name == PARTICLES), site.free_dim)
    for i in range(n + 1, len(full) + 1):
        if have[-i] != full[-i] and (free is None or n - i > free):
            terms, rows = math.prod(full[: len(full) - n]), math.prod(have[: len(full) - n])
            fix = (
                "squeeze or flatten the side that has a dim of size 1 too many; "
                f"if every row is meant, expand the data to {full}"
            )
            around = [f for f in site.plates if f.dim is not None]
            if shape == event and around:
                fix = (
                    f"the data are one draw of {type(site.fn).__name__}: write the statement "
                    f"outside of plate {around[-1].name!r}, whose rows are as many draws; {fix}"
                )
            raise ShapeError(
                f"site {site.name!r}: log_prob would have {terms} terms for {rows} observations",
                expected=f"data of the shape {full} that data and distribution broadcast to",
                got=f"data of shape {shape}, a distribution of shape {expected}",
                fix=fix,
                at=site.location,
            )


def _misfit(site: Site, shape: Shape, batch: Shape, event: Shape) -> ShapeError:
    """Error for data that do not broadcast with the distribution."""
    fix = "check the order of the dims, and that the last ones are the event's"
    placed = [f for f in site.plates if f.dim is not None]
    turned = len(placed) > 1 and sorted(shape) == sorted(batch + event)
    if turned:
        where = ", ".join(f"{f.name!r} is dim {(f.dim or 0) - len(event)}" for f in placed)
        fix = f"transpose the data: plate {where} (an inner plate lies to the left of an outer one)"
    for frame in site.plates:
        i = (frame.dim or 0) - len(event)
        told = frame in placed and frame.indices is None and not turned
        if told and -i <= len(shape) and shape[i] not in (1, frame.size):
            fix = (
                f"plate {frame.name!r} has the size {frame.size}, the data {shape[i]} along its "
                f"dim {i}: make the plate of the data, plate({frame.name!r}, {shape[i]}), or check "
                "the order of the dims"
            )
        if frame.indices is not None and -i <= len(shape) and shape[i] == frame.full_size:
            fix = (
                f"plate {frame.name!r} works on {frame.size} of {frame.full_size} rows: "
                f"`with plate(...) as rows:` and obs=data[rows]"
            )
    return ShapeError(
        f"site {site.name!r}",
        expected=f"data of shape {batch + event} (batch {batch}, event {event})",
        got=f"shape {shape}",
        fix=fix,
        at=site.location,
    )


explain_calls(globals())
