"""`Site`: what one statement of a model says, and what becomes of it on its way.

A primitive (`sample`, `param`, `plate` ...) makes a `Site`, the handlers change it, the trace keeps
it, inference reads it. Its fields are the whole protocol between them; what an algorithm wants to
remember besides goes into `notes`. The density of one site is computed here and nowhere else, with
mask, scale and the check that every batch dim belongs to a plate.

Pyro's dict spelling works too: ``site["type"]``, ``site["is_observed"]``,
``site["cond_indep_stack"]``. Read `runtime.py` next.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, fields
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from probtorch.core import signatures
from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.core.rng import Generator
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import entered
from probtorch.core.typed import Shape, TensorLike, Tree
from probtorch.errors import DTypeError, ModelError, ProbtorchError
from probtorch.ops.arithmetic import where
from probtorch.tensor import Tensor

if TYPE_CHECKING:
    from probtorch.distributed.shards import Shard
    from probtorch.utils.data.loader import DataLoader

__all__ = ["Frame", "Site", "as_mask", "as_value", "calling_line", "line_of"]


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """One plate around a site.

    Attributes
    ----------
    name : str
    size : int
        Rows in use: the subsample's, or all.
    full_size : int
        Rows there are.
    dim : int or None
        Negative batch dim of the plate; None inside a sequential ``for i in plate(...)``.
    index : int or None
        The row at hand in a sequential plate.
    coords : tuple or None
        Labels of all rows.
    indices : Tensor of int64, shape (size,), or None
        Rows of the subsample; None when all are in use, or they come from a stream.
    loader : DataLoader or None
        Where the rows come from, if from a loader.
    shard : Shard or None
        The rows of this process, where others have the rest.
    shared : bool
        Whether others have the rest, or minibatches of their own.
    """

    name: str
    size: int
    full_size: int
    dim: int | None = None
    index: int | None = None
    coords: tuple[object, ...] | None = None
    indices: Tensor | None = None
    loader: DataLoader | None = None
    shard: Shard | None = None
    shared: bool = False

    @property
    def subsampled(self) -> bool:
        """Whether these are not simply all rows in order."""
        return self.indices is not None or self.size != self.full_size

    @property
    def vectorized(self) -> bool:
        """Whether the plate is a tensor dim and not a Python loop."""
        return self.dim is not None

    @property
    def counter(self) -> int:
        """Pyro's name for the position in a sequential plate; 0 when vectorised."""
        return self.index or 0

    @property
    def scale(self) -> float:
        """What the log density of a row counts for: rows there are per row in use."""
        # An empty plate contributes nothing whatever its scale; 1 keeps 0 / 0 out of the sums.
        if not self.size:
            return 1.0
        if self.shard is not None:
            # So that the mean over ranks counts every row once, however unequal their parts are.
            return self.shard.ranks * len(self.shard) / self.size
        return self.full_size / self.size


# Which elements count: all for None and True.
Mask: TypeAlias = Tensor | bool | None

_BETWEEN = signatures.__file__

# Pyro's and NumPyro's names for fields that are spelt out here.
_SPELLINGS = {"type": "kind", "is_observed": "observed", "cond_indep_stack": "plates"}
# Present in the dict spelling once they were computed, as in Pyro.
_COMPUTED = frozenset(("log_prob", "unscaled_log_prob", "log_prob_sum"))


@dataclass(slots=True, eq=False)
class Site:
    """One statement of a model, passed from handler to handler.

    Attributes
    ----------
    kind : {"sample", "param", "deterministic", "factor", "plate"}
    name : str
    fn : Distribution, callable or None
        Expanded to the plates' shape.
    args, kwargs
        What a callable `fn` is called with; for a param ``(init, constraint, event_dim)``.
    value : Tensor or None
        None until a handler or the default behaviour supplies it.
    observed : bool
        Whether the value is data.
    mask : None, bool or bool Tensor
        Which elements count; None means all. Broadcasts with the log density.
    scale : float or Tensor
        Factor on the log density: subsampling plates and `scale` handlers, multiplied.
    infer : dict
        The user's and inference's settings for this site.
    plates : tuple of Frame
        Plates around the site, outermost first.
    plate_shape : tuple of int
        Batch shape the vectorised plates ask for, 1 at dims that no plate takes.
    free_dim : int or None
        Batch dims at or to the left of this one belong to inference (particles, enumeration), not
        to the model, and are not held to the plates.
    inside : bool
        The value is known to lie in the support, so the density need not look.
    all_values_at : int or None
        The batch dim along which the value holds the whole support, for distributions that know a
        shorter way to the log density then (`log_prob_of_all`).
    generator : Generator or None
        Where a draw takes its random bits from; None is the default generator.
    stop : bool
        Handlers further out do not see the site.
    notes : dict
        Whatever an algorithm wants to remember.
    event_dim : int or None
        Rightmost dims of a param's or deterministic value that are no plate's.
    log_prob, unscaled_log_prob, log_prob_sum : Tensor or None
        Filled in by `compute_log_prob`.
    """

    kind: str
    name: str
    fn: Any = None
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] | None = None
    value: Tree = None
    observed: bool = False
    mask: Mask = None
    scale: float | Tensor = 1.0
    infer: dict[str, Any] = field(default_factory=dict)
    plates: tuple[Frame, ...] = ()
    plate_shape: tuple[int, ...] = ()
    free_dim: int | None = None
    inside: bool = False
    all_values_at: int | None = None
    generator: Generator | None = None
    stop: bool = False
    notes: dict[str, Any] = field(default_factory=dict)
    event_dim: int | None = None
    code: CodeType | str | None = None
    instruction: int = -1
    log_prob: Tensor | None = None
    unscaled_log_prob: Tensor | None = None
    log_prob_sum: Tensor | None = None

    def __getstate__(self) -> dict[str, object]:
        state = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**state, "code": self.location}  # code objects do not travel

    def __setstate__(self, state: dict[str, object]) -> None:
        for name, value in state.items():
            setattr(self, name, value)

    @property
    def location(self) -> str:
        """The "file:line" of the statement, "" when unknown."""
        return line_of(self.code, self.instruction)

    @property
    def has_density(self) -> bool:
        """Whether the site is a term of the joint log density."""
        return self.kind == "sample" or self.kind == "factor"

    def compute_log_prob(self) -> Tensor:
        """Return the log density of the site's value, scaled and masked, and remember it.

        Returns
        -------
        log_prob : Tensor, shape of the plates around the site
            Natural log. Masked elements are 0 and pass no gradient, whatever their value, NaN
            included.

        Raises
        ------
        ModelError
            If a batch dim belongs to no plate, or `fn` has no density.
        """
        if self.log_prob is not None:
            return self.log_prob
        raw = self._raw_log_prob()
        shape = raw.array.shape
        if shape != self.plate_shape:
            self._check_plates(shape)
        self.unscaled_log_prob = raw
        if type(self.scale) is not float or self.scale != 1.0:
            raw = raw * self.scale
            if raw.array.shape != shape:  # the scale has dims of its own
                self._check_plates(raw.array.shape)
        self.log_prob = raw
        return raw

    def compute_log_prob_sum(self) -> Tensor:
        """Return the sum of `compute_log_prob` over all elements, a 0-d tensor, and remember it."""
        if self.log_prob_sum is None:
            log_prob = self.compute_log_prob()
            self.log_prob_sum = log_prob.sum() if log_prob.array.ndim else log_prob
        return self.log_prob_sum

    def _raw_log_prob(self) -> Tensor:
        """Log density with the mask and without the scale."""
        mask, fn = self.mask, self.fn
        if self.kind == "factor":
            return self._masked_factor(mask)
        if not hasattr(fn, "log_prob"):
            raise ModelError(
                f"site {self.name!r} has no density",
                expected="a distribution with log_prob",
                got=repr(fn),
                fix="use a distribution, or hide the site from inference with handlers.block",
                at=self.location,
            )
        try:
            if self.all_values_at is not None and (mask is None or mask is True):
                return fn.log_prob_of_all(self.all_values_at)
            if mask is not None and mask is not True:
                # Not a selection after the fact: a NaN outside the mask must not reach a gradient.
                fn = fn.mask(mask)
            return fn.log_prob_inside(self.value) if self.inside else fn.log_prob(self.value)
        except ProbtorchError as error:
            raise _at_site(error, self) from error

    def _masked_factor(self, mask: Mask) -> Tensor:
        if mask is None or mask is True:
            return self.value
        if mask is False:
            return self.value.new_zeros(self.value.shape)
        return where(mask, self.value, 0.0)

    def _check_plates(self, shape: Shape) -> None:
        covered, free = self.plate_shape, self.free_dim
        outside = 1
        leftmost = 0
        for i in range(1, len(shape) + 1):
            if free is not None and -i <= free:
                break
            taken = covered[-i] if i <= len(covered) else 1
            if shape[-i] != 1 and shape[-i] != taken:
                outside *= shape[-i]
                leftmost = i
        if not leftmost:
            return
        kind = "factor" if self.kind == "factor" else "site"
        if kind == "factor":
            fix = "sum the log factor first, or put it inside a plate"
        elif getattr(self.mask, "ndim", 0) > len(covered):
            fix = self._inside_plate_of("mask", self.mask)
        elif getattr(self.scale, "ndim", 0) > len(covered):
            fix = self._inside_plate_of("scale", self.scale)
        else:
            fix = f"add `with plate('data', {shape[-leftmost]}):` around it"
            if all(size == 1 for size in covered[-leftmost:]):
                fix += f" or, if the values are one draw together, `.to_event({leftmost})`"
        plates = ", ".join(f"{f.name!r} at dim {f.dim}" for f in self.plates if f.dim is not None)
        raise ModelError(
            f"{kind} {self.name!r} has {outside} values outside any plate",
            expected=f"a log density of shape {covered}"
            + (f" (plates {plates})" if plates else ""),
            got=f"a log density of shape {tuple(shape)}",
            fix=fix,
            at=self.location,
        )

    @staticmethod
    def _inside_plate_of(kind: str, given: object) -> str:
        shape = tuple(getattr(given, "shape", ()))
        return f"its {kind} has shape {shape}: apply it inside the {kind}'s plate"

    # -------------------------------------------------------------------- Pyro's dict spelling

    def __getitem__(self, key: str) -> Tree:
        name = _SPELLINGS.get(key, key)
        if name not in _FIELDS:
            return self.notes[key]
        value = getattr(self, name)
        if value is None and name in _COMPUTED:
            raise KeyError(f"{key}: call compute_log_prob() on the trace first")
        return value

    def __setitem__(self, key: str, value: object) -> None:
        name = _SPELLINGS.get(key, key)
        if name in _FIELDS:
            setattr(self, name, value)
        else:
            self.notes[key] = value

    def __contains__(self, key: str) -> bool:
        name = _SPELLINGS.get(key, key)
        if name in _COMPUTED:
            return getattr(self, name) is not None
        return name in _FIELDS or key in self.notes

    def get(self, key: str, default: object = None) -> Tree:
        """Return ``site[key]``, or `default` when there is none."""
        return self[key] if key in self else default

    def __repr__(self) -> str:
        shape = getattr(self.value, "shape", None)
        parts = [repr(self.name)]
        if self.fn is not None:
            parts.append(type(self.fn).__name__)
        if shape is not None:
            parts.append(f"value of shape {tuple(shape)}")
        if self.observed:
            parts.append("observed")
        return f"<{self.kind} site {', '.join(parts)}>"


_FIELDS = frozenset(Site.__slots__)


def as_value(data: TensorLike, name: str) -> Tensor:
    """Return what a user gave as the value of site `name` as a tensor, without losing digits.

    Tensors are kept as they are and arrays keep their dtype and memory. Python numbers become 0-d
    tensors of full precision, which are weak in promotion; lists of Python floats become float64,
    so that a model whose latents are float64 sees the data as written.
    """
    if isinstance(data, TensorBase):
        return data
    if isinstance(data, (bool, int, float)):
        t = wrap(np.array(data))
        entered(data, t)
        return t
    if isinstance(data, (list, tuple)):
        if any(isinstance(row, TensorBase) for row in data):
            return as_tensor(data, name)
        data = np.array(data)
    try:
        return as_tensor(data, name)
    except DTypeError as error:
        raise DTypeError(
            f"site {name!r}",
            expected="a tensor, an array, a number or a nested list of numbers as its value",
            got=error.got,
            fix=error.fix,
        ) from None


def as_mask(mask: TensorLike, subject: str) -> bool | Tensor:
    """Return a mask as a Python bool or a bool tensor; `subject` names it in errors."""
    if isinstance(mask, bool):
        return mask
    mask = as_value(mask, subject)
    if mask.array.dtype.kind != "b":
        raise DTypeError(
            subject,
            expected="True, False or a tensor of booleans",
            got=f"dtype {mask.array.dtype}",
            fix="write mask.bool(), or a comparison such as x > 0",
        )
    return mask


def calling_line(depth: int = 2) -> tuple[CodeType, int]:
    """Return the code object and instruction of the caller's caller, free to take.

    What `explained` puts between a function and its caller is not counted.
    """
    frame: FrameType | None = sys._getframe(1)
    while depth > 1 and frame is not None and frame.f_back is not None:
        frame = frame.f_back
        depth -= frame.f_code.co_filename != _BETWEEN
    assert frame is not None
    return frame.f_code, frame.f_lasti


def line_of(code: CodeType | str | None, instruction: int) -> str:
    """Return the "file:line" of an instruction, "" when there is none; of a line itself, it."""
    if code is None or isinstance(code, str):
        return code or ""
    line = code.co_firstlineno
    for start, end, number in code.co_lines():
        if start <= instruction < end and number is not None:
            line = number
    return f"{code.co_filename}:{line}"


def _at_site(error: ProbtorchError, site: Site) -> ProbtorchError:
    """The same error, told of the site it happened at."""
    return type(error)(
        f"site {site.name!r}: {error.subject}",
        expected=error.expected,
        got=error.got,
        fix=error.fix,
        at=site.location,
    )
