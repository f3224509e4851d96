"""The statements a model is written in: sample, param, factor, deterministic; plates.py has plate.

Each makes a `Site` and hands it to `perform`; without handlers around, `sample` draws and `param`
reads the store. What can be wrong with a statement on its own (names, shapes of data against the
distribution) is said at the user's line (statement_checks.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any, TypeVar, overload

from probtorch.core.shape import broadcast_shapes
from probtorch.core.signatures import explain_calls
from probtorch.core.typed import TensorLike, Tree
from probtorch.distributions import constraints
from probtorch.distributions.constraints import Constraint
from probtorch.distributions.distribution import Distribution
from probtorch.effects.params import read_owned, read_param
from probtorch.effects.placing import give_size, place
from probtorch.effects.plate_rows import take_rows
from probtorch.effects.runtime import STATE, default_for, perform
from probtorch.effects.site import Site, as_mask, as_value
from probtorch.effects.statement_checks import check_data, check_statement, not_taken
from probtorch.errors import ShapeError
from probtorch.ops.arithmetic import where
from probtorch.tensor import Tensor

__all__ = [
    "PARTLY",
    "UNOBSERVED",
    "deterministic",
    "factor",
    "owned_param",
    "param",
    "sample",
    "sample_from",
]

# Of data with gaps: what the site of what is drawn for them is called, after the data.
UNOBSERVED = "_unobserved"
# The note of that site: which elements are there, and the data.
PARTLY = "partly_observed"
# The frame of the statement, seen from the function: `explain_calls` stands between.
WRITTEN = 2

R = TypeVar("R")


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
    Draws are reparameterised where the distribution can. ``{name}_unobserved`` has a value at every
    position. Samplers have coordinates of the missing elements alone, and fill the others with the
    data; everywhere else, in guides too, they follow the distribution also where there are data:
    their extra density integrates to 1, and no direction of the posterior is flat.

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
        check_statement(name, fn)
        raise not_taken(name, fn, args, kwargs)
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
    partly: tuple[bool | Tensor, Tensor] | None = None,
) -> Tree:
    """`sample` without its conveniences; `where_from` is code and instruction to blame.

    `waiting` is noted of a site that was told ``obs=None``: data were meant; `partly` of what is
    missing of data: which elements are there, and the data.
    """
    plates = STATE.plates
    if type(name) is not str or not hasattr(fn, "log_prob") or isinstance(fn, type):
        check_statement(name, fn)
    elif plates.shape or plates.waiting:
        if plates.waiting:
            plates = give_size(_rows_stated(name, fn, obs))
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
    if partly is not None:
        site.notes[PARTLY] = partly
    value = perform(site)
    if site.observed and hasattr(site.fn, "event_shape"):
        shape = value.array.shape
        if shape != tuple(site.fn.batch_shape) + tuple(site.fn.event_shape):
            check_data(site, shape)
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
    if plates.waiting:
        plates = give_size(tuple(value.shape))
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


def _rows_stated(name: str, fn: Distribution, obs: TensorLike | None) -> tuple[int, ...]:
    """The batch shape of a distribution with its data, for plates without a size."""
    batch = tuple(fn.batch_shape)
    if obs is None:
        return batch
    data = tuple(as_value(obs, name).shape)
    rows = data[: len(data) - len(fn.event_shape)]
    return broadcast_shapes(rows, batch, op=f"site {name!r}")


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
    unobserved = sample_from(
        name + UNOBSERVED, fn, (), {}, None, None, infer, where_from, partly=(there, data)
    )
    for _ in fn.event_shape:
        there = there.unsqueeze(-1)
    return deterministic(name, where(there, observed, unobserved), len(fn.event_shape))


explain_calls(globals())
