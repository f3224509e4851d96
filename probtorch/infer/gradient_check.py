"""Whether a gradient is that of the values: one comparison with differences, at the first point.

A value that leaves the tape through Python (`float(b)`, `b.item()`) and comes back is a constant
for the gradient: samplers then walk along a wrong slope, and SVI stays at the prior, without any
sign of it. So the first evaluation runs under a `Watch` (autograd/escapes.py), which refuses what
it recognises, and the derivative along a direction is compared with two difference quotients of
values. What is cut on purpose is held, so that both sides take it for a constant.

There is no verdict where the two quotients disagree with each other: at a kink, at a branch, where
values are not finite, or where a model is not the same function twice. Nor where nothing left the
tape and a third, wider one sides with the gradient: there values are steps, by rounding.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from probtorch.autograd.escapes import NotAlike, Watch, check_alike, cure, forget, restore
from probtorch.autograd.tape import grad
from probtorch.compiler.record.record import keeping_all, unheard
from probtorch.config import settings
from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.core.rng import Generator
from probtorch.errors import DeviceError, InferenceError
from probtorch.infer.model_runs import OUTSIDE
from probtorch.infer.starts.initialization import uniform_point

if TYPE_CHECKING:
    from probtorch.compiler.density import NativeDensity
    from probtorch.infer.potential import Target
    from probtorch.infer.slots import Slot


__all__ = [
    "DensityCheck",
    "ParameterCheck",
    "quotient",
    "random_direction",
    "refuse_fickle",
    "wrong",
]

# Points at which a verdict is looked for, before it is given up.
TRIES = 3
# Relative difference of gradient and differences that is an error, and the one that two difference
# quotients may have between them. A cut mostly changes the leading digit.
DISAGREE, AGREE = 1e-3, 1e-4
# An adaptive solver changes its steps with the point, which its gradient leaves out.
DISAGREE_ROUGHLY = 5e-2
NARROW_AGREE = 5e-2
# Relative difference of two eager runs at one point: they do the same in the same order.
SAME = 1e-9
STEPS, WIDE_STEP, NARROW_STEPS = (1e-4, 1e-6), 1e-2, (1e-1, 1e-2)
ROUNDING = 100.0
# Of the finaliser of SplitMix64 (Steele, Lea and Flood 2014).
_MIXING = (30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)
# How far away a density is evaluated in between, to see whether it is the same again.
AWAY = 0.1


class DensityCheck:
    """The check of one log density.

    Parameters
    ----------
    name : str
        Of the model, for messages.
    slots : dict of str to Slot
    """

    def __init__(self, name: str, slots: Mapping[str, Slot]) -> None:
        self.name, self.slots = name, slots
        self.left = TRIES
        self._rest = self._pause = 0  # calls to let go by, and how many it were the last time
        self._watch: Watch | None = None
        self._value_before: float | None = None  # at the point at hand

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_watch": None}  # it follows the tensors of one evaluation

    def due(self) -> bool:
        """Whether there was no verdict yet, and this call is to be looked at."""
        if self.left <= 0 or not settings.check_gradients:
            return False
        self._rest -= 1
        return self._rest < 0

    def before(self, density: NativeDensity, q: np.ndarray) -> None:
        """Run the density eagerly under a watch; refuse what comes back into it.

        Raises
        ------
        InferenceError
            Also where something left the tape, and the gradient is not that of the values.
        """
        try:
            self._before(density, q)
        except InferenceError:
            self.left = TRIES  # and so at every call
            raise

    def _before(self, density: NativeDensity, q: np.ndarray) -> None:
        self.left -= 1
        self._watch = self._value_before = None
        try:
            value, gradient, watch = self._watched(density, q)
        except (*OUTSIDE, DeviceError):
            return  # of tensors on a GPU the evaluation finds out, or says what is wrong
        if not math.isfinite(value):
            return
        self._value_before = value
        if not watch.escapes and not watch.cuts:
            forget(watch)
            self._watch = watch  # compiled code gives the values: see `after`
            return
        assert gradient is not None  # something was cut
        self._judge(q, value, gradient, lambda at: self._value_at(density, at, watch), watch)

    def differs(self, value: float) -> bool:
        """Whether a recording at the point of `before` gave another value than the run there."""
        before, self._value_before = self._value_before, None
        if before is None:
            return False
        return not abs(value - before) <= SAME * max(abs(value), abs(before))

    def after(self, density: NativeDensity, q: np.ndarray) -> None:
        """Compare the compiled gradient with differences of compiled values, if that is enough."""
        watch, self._watch = self._watch, None
        if watch is None:
            return
        left, self.left = self.left, 0  # what follows is no first point
        # Memory of its own: the call that this is part of is still under way.
        context, known = density.context(), len(density.paths)
        value, gradient = context.native(q)

        def probe(at: np.ndarray) -> float:
            found = context.native(at)[0]
            if len(density.paths) > known:
                raise NotAlike("over there it takes another branch")
            return found

        try:
            self._judge(q, value, gradient, probe, watch, left)
        except InferenceError:
            density.forget()
            self.left = TRIES
            raise

    def _watched(
        self, density: NativeDensity, q: np.ndarray
    ) -> tuple[float, np.ndarray | None, Watch]:
        """Value, gradient (nan where nothing was cut, since nobody asks) and the watch."""
        point = wrap(np.array(q, np.float64))
        if density.device is not None:
            return math.nan, None, Watch()
        point.requires_grad = True
        with unheard(), keeping_all(), Watch() as watch, np.errstate(all="ignore"):
            if not any(slot.location for slot in self.slots.values()):
                watch.named(point, "the point")
            value = as_tensor(density.fn(point), self.name)
        gradient = None
        if watch.escapes or watch.cuts:
            gradient = np.zeros(len(q))
            if value.requires_grad:
                with unheard(), np.errstate(all="ignore"):
                    gradient = grad(value, point, materialize_grads=True)[0].array
        restore(watch)
        return float(value.array.sum()), gradient, watch

    def _value_at(self, density: NativeDensity, q: np.ndarray, first: Watch) -> float:
        point = wrap(np.array(q, np.float64))
        point.requires_grad = True
        with unheard(), keeping_all(), Watch(first) as watch, np.errstate(all="ignore"):
            value = as_tensor(density.fn(point), self.name)
        restore(watch)
        check_alike(watch)
        return float(value.array.sum())

    def _judge(
        self,
        q: np.ndarray,
        value: float,
        gradient: np.ndarray,
        probe: Callable[[np.ndarray], float],
        watch: Watch,
        left: int | None = None,
    ) -> None:
        """Compare along one direction, and along that of the sites whose values left the tape."""
        if not (math.isfinite(value) and np.isfinite(gradient).all()):
            self.left = self.left if left is None else left
            return
        settled = True
        for direction in self._directions(watch, q):
            slope = float(gradient @ direction)
            found = quotient(_along(direction, q, probe), value, slope, watch)
            if found is not None and found != slope:
                raise wrong(self.name, "log density", slope, found, watch)
            settled &= found is not None
        if settled or not watch.escapes:
            self.left = 0
        else:  # what left the tape may have come back: some later point may tell
            self.left = max(self.left if left is None else left, 1)
            self._rest = self._pause = 2 * self._pause + 1

    def _directions(self, watch: Watch, q: np.ndarray) -> Iterator[np.ndarray]:
        # Coordinates of large numbers are moved further: their values are flat in proportion.
        whole = random_direction(len(q)) * np.maximum(np.abs(q), 1.0)
        size = len(q)
        yield whole
        names = {name for escape in watch.escapes for name in escape.sites}
        part = np.zeros(size)
        for slot in self.slots.values():
            if f"site {slot.name!r}" in names:
                part[slot.start : slot.stop] = whole[slot.start : slot.stop]
        if 0 < np.count_nonzero(part) < size:
            yield part


class ParameterCheck(DensityCheck):
    """The check of a density of parameters and data: only the former have a gradient."""

    def __init__(self, name: str, slots: Mapping[str, Slot], dim: int) -> None:
        super().__init__(name, slots)
        self.dim = dim

    def _directions(self, watch: Watch, q: np.ndarray) -> Iterator[np.ndarray]:
        for direction in super()._directions(watch, q):
            direction[self.dim :] = 0.0
            yield direction


def refuse_fickle(target: Target, start: np.ndarray) -> None:
    """Refuse a density that is another each time it is evaluated: no sampler can draw from it.

    Parameters
    ----------
    target : Target
    start : ndarray, shape (dim,)
        Where a chain starts.

    Raises
    ------
    InferenceError
        If two evaluations there differ.

    Notes
    -----
    Nothing is evaluated where the density was compiled: random draws and Python values that change
    keep it from that.
    """
    density = target.density
    if density.paths or density.device is not None or not settings.check_gradients:
        return
    elsewhere = start + uniform_point(Generator(0), (target.dim,), AWAY)
    values = []
    for q in (start, elsewhere, start):  # one may depend on the point before
        with contextlib.suppress(*OUTSIDE):
            values.append(density.eager(np.array(q))[0])
    first, *_, last = values or [math.nan]
    if abs(last - first) <= SAME * max(abs(last), abs(first)) or not math.isfinite(last - first):
        return
    reason, place = density.reason or ("", "")
    raise InferenceError(
        f"{target.name} is no density: it changes from one evaluation to the next",
        expected="the same log density each time at the same point",
        got=f"{first:.6g}, then {last:.6g}, where the first chain starts"
        + (f" ({reason})" if reason else ""),
        fix="make a site of what is random (probtorch.sample), or draw it once, ahead of the "
        "model; put networks with dropout into eval(), and keep counters and schedules out of it",
        at=place or None,
    )


def _along(
    direction: np.ndarray, q: np.ndarray, probe: Callable[[np.ndarray], float]
) -> Callable[[float], float]:
    """From a step along a direction to the value there."""
    return lambda h: probe(q + h * direction)


def random_direction(size: int) -> np.ndarray:
    """A direction of length 1 in which no coordinate is small."""
    # By hashing indices: our draws are native, and compiled for nothing else at a first call.
    with np.errstate(over="ignore"):
        bits = np.arange(1, size + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in _MIXING:
            bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    draws = (bits >> np.uint64(11)) * 2.0**-52 - 1.0
    signs = np.where(draws < 0.0, -1.0, 1.0) * (1.0 + 0.5 * np.abs(draws))
    return signs / max(np.linalg.norm(signs), 1e-300)


def quotient(
    at: Callable[[float], float], value: float, slope: float, watch: Watch
) -> float | None:
    """The derivative by differences where it contradicts `slope`, `slope` itself where both agree;
    None without a verdict.

    Parameters
    ----------
    at : callable
        From a step along the direction to the value there; may raise NotAlike.
    value, slope : float
        Value and derivative at the point.
    """
    if watch.narrow:
        return _narrow_quotient(at, value, slope)
    limit = DISAGREE_ROUGHLY if watch.approximate else DISAGREE
    for h in STEPS:
        found = _differences(at, value, h, 2.2e-16, slope, limit)
        if found is None:
            continue
        if not isinstance(found, tuple):
            return found  # the slope
        one, two, noise = found
        size = max(abs(one), abs(two), abs(slope))
        if abs(one - two) > AGREE * size + noise:
            continue
        if abs(two - slope) <= limit * size + 10.0 * (noise + abs(one - two)):
            return slope
        return two if watch.escapes or not _of_steps(at, value, slope, two) else None
    return None


def _of_steps(at: Callable[[float], float], value: float, slope: float, found: float) -> bool:
    """Whether a wide difference sides with the slope: values that rounding turned into steps, as
    the logarithm of 1 - p is where p is 1 but for a few units of the last place.
    """
    wide = _differences(at, value, WIDE_STEP, 2.2e-16)
    return isinstance(wide, tuple) and abs(wide[0] - slope) < abs(wide[0] - found)


def _narrow_quotient(at: Callable[[float], float], value: float, slope: float) -> float | None:
    """The same where part of it is in single precision, and a small step may be lost in rounding:
    two long steps have to agree.
    """
    wide, close = (_differences(at, value, h, 1.2e-7) for h in NARROW_STEPS)
    if not (isinstance(wide, tuple) and isinstance(close, tuple)):
        return None
    noise = wide[2] + close[2]
    size = max(abs(wide[1]), abs(close[1]), abs(slope))
    if max(abs(wide[1] - close[1]), abs(close[0] - close[1])) > NARROW_AGREE * size + noise:
        return None
    wrong = abs(close[1] - slope) > 4.0 * NARROW_AGREE * size + 10.0 * noise
    return close[1] if wrong else slope


def _differences(
    at: Callable[[float], float],
    value: float,
    h: float,
    eps: float,
    slope: float = math.nan,
    limit: float = 0.0,
) -> tuple[float, float, float] | float | None:
    """Two difference quotients and their rounding error for steps of `h`; None without them, and
    `slope` where one of fewer values is that already, to within `limit` of its size.
    """
    near = limit * abs(slope)
    try:
        forth = at(h)
        # Where the value ahead is what the slope says, nothing would come of the others.
        if abs((forth - value) / h - slope) <= near:
            return slope
        back = at(-h)
        one = (forth - back) / (2.0 * h)
        if abs(one - slope) <= near:
            return slope
        far = at(2.0 * h)
    except (NotAlike, *OUTSIDE):
        return None
    values = np.array([back, value, forth, far])
    if not np.isfinite(values).all():
        return None
    # Through all four points, so that it sees a kink that the symmetric one does not.
    two = (-2.0 * back - 3.0 * value + 6.0 * forth - far) / (6.0 * h)
    return one, two, ROUNDING * eps * float(np.max(abs(values))) / h


def wrong(name: str, what: str, slope: float, found: float, watch: Watch) -> InferenceError:
    """Return the error for a slope that differences contradict, with what left the tape."""
    escapes = [str(e) for e in watch.escapes]
    if escapes:
        shown = "; ".join(dict.fromkeys(escapes[:4]))
        more = f"; and {len(escapes) - 4} more" if len(escapes) > 4 else ""
        sites = tuple(dict.fromkeys(s for e in watch.escapes for s in e.sites))
        return InferenceError(
            f"the gradient of {name} is cut: it is not that of its {what}",
            expected=f"{found:.6g} along a direction, by differences of the {what}",
            got=f"{slope:.6g}; values left the computation: {shown}{more}",
            fix=cure(sites),
            at=next((e.place for e in watch.escapes if e.place), None),
        )
    return InferenceError(
        f"the gradient of {name} is not that of its {what}",
        expected=f"{found:.6g} along a direction, by differences of the {what}",
        got=f"{slope:.6g}",
        fix="look for a value that takes part without being a tensor (an array, a number kept in "
        "an object), or an operation whose derivative is wrong (autograd.gradcheck); if all is "
        "meant, switch the check off: with probtorch.configure(check_gradients=False)",
    )
