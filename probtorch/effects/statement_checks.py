"""What statements of a model refuse: names that are none, distributions that are none, data that do
not fit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from probtorch.core.shape import broadcast_shapes
from probtorch.core.signatures import closest
from probtorch.core.typed import Shape
from probtorch.effects.placing import PARTICLES
from probtorch.effects.site import Site
from probtorch.errors import ArgumentError, DTypeError, ShapeError

__all__ = ["check_data", "check_statement", "not_taken"]


def check_statement(name: object, fn: object) -> None:
    """Refuse what is no name, and what is no distribution."""
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


def not_taken(
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


def check_data(site: Site, shape: Shape) -> None:
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
