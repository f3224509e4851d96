"""`Transform`: an invertible map with a log-determinant, and the ways to combine transforms.

A transform is a pure function of its argument; nothing is cached, so gradients never depend on what
was called before. Subclasses give `_call`, `_inverse` and `log_abs_det_jacobian(x, y)`, all in
Tensor ops; `domain` and `codomain` are constraints, whose event dims say what the determinant is
of.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Sequence

import numpy as np

from probtorch.core.dispatch import wrap
from probtorch.core.making import as_tensor
from probtorch.core.signatures import also_called, explain_calls
from probtorch.core.tensor_base import TensorBase
from probtorch.core.told import is_number, number_alone
from probtorch.core.typed import Shape, TensorLike
from probtorch.distributions import constraints
from probtorch.distributions.constraints import Constraint
from probtorch.errors import ShapeError
from probtorch.ops.movement import reshape
from probtorch.ops.reduction import sum as total
from probtorch.tensor import Tensor

__all__ = [
    "ComposeTransform",
    "IdentityTransform",
    "IndependentTransform",
    "ReshapeTransform",
    "Transform",
    "identity_transform",
    "sum_last",
]


class Transform:
    """An invertible map from `domain` onto `codomain`.

    Parameters
    ----------
    cache_size : int
        Taken for PyTorch's sake, here and by all others: nothing is cached. A
        `TransformedDistribution` knows what its own draws came from.

    Attributes
    ----------
    domain, codomain : Constraint
        Where the map goes from and to; their `event_dim` says how many rightmost dims it treats as
        one element.
    bijective : bool
        Whether every element of `codomain` is reached once. If not, `inv` is a right inverse.
    costly_inverse : bool
        Whether the inverse is much more work than the map.
    augmented : bool
        Whether arguments have coordinates that results have not, of which the log-determinant has
        the density: densities over results are right when those are integrated out.
    """

    domain: constraints.Constraint = constraints.real
    codomain: constraints.Constraint = constraints.real
    bijective = True
    costly_inverse = False
    augmented: bool = False
    _settings: tuple[str, ...] = ()

    def __init__(self, cache_size: int = 0) -> None:
        super().__init__()  # some are modules, too

    def with_cache(self, cache_size: int = 1) -> Transform:
        """Return the transform itself, see `cache_size`."""
        return self

    def __call__(self, x: TensorLike) -> Tensor:
        """Return y = T(x)."""
        return self._call(_tensor(x))

    @property
    def event_dim(self) -> int:
        """Number of dims of one element of the domain: Pyro's older name."""
        return self.domain.event_dim

    def clear_cache(self) -> None:
        """Do nothing, as nothing is cached: training loops written for Pyro call it."""

    @property
    def inv(self) -> Transform:
        """The inverse transform, whose `inv` is this one."""
        return inverse_of(self)

    @property
    def sign(self) -> float | Tensor:
        """Sign of the derivative, a number or a tensor, for maps of the line."""
        return 1

    def _call(self, x: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} has no forward map")

    def _inverse(self, y: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} has no inverse")

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Return log abs det dy/dx, with the event dims summed away; `y` is ``T(x)``."""
        raise NotImplementedError(f"{type(self).__name__} has no log-determinant")

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``(y, log_abs_det_jacobian(x, y))``."""
        x = _tensor(x)
        y = self._call(x)
        return y, self.log_abs_det_jacobian(x, y)

    def _inverse_and_ladj(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``(x, log_abs_det_jacobian(x, y))`` for y = T(x)."""
        x = self._inverse(y)
        return x, self.log_abs_det_jacobian(x, y)

    def forward_shape(self, shape: Shape) -> Shape:
        """Return the shape of T(x) for x of `shape`."""
        return tuple(shape)

    def inverse_shape(self, shape: Shape) -> Shape:
        """Return the shape of x for T(x) of `shape`."""
        return tuple(shape)

    def with_domain(self, domain: Constraint, codomain: Constraint) -> Transform:
        """Return a copy that states other constraints (a narrower domain, a shifted codomain)."""
        out = object.__new__(type(self))
        out.__dict__.update(self.__dict__, domain=domain, codomain=codomain)
        return out

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return type(self) is type(other) and all(
            _equal(getattr(self, n), getattr(other, n)) for n in self._settings
        )

    def __hash__(self) -> int:
        return hash(type(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(repr(getattr(self, n)) for n in self._settings)})"


def _equal(a: float, b: float) -> bool:
    if isinstance(a, TensorBase) or isinstance(b, TensorBase):
        return a is b
    return a == b


def _tensor(x: TensorLike) -> Tensor:
    """Tensors as they are, arrays without a copy, Python numbers exactly."""
    if isinstance(x, TensorBase):
        return number_alone(x) if is_number(x) else x
    return wrap(np.array(x, np.float64)) if type(x) in (int, float) else as_tensor(x, "transform")


# Inverses in use, by the id of what they invert and keep alive.
_INVERSES: dict[int, weakref.ref] = {}


def inverse_of(transform: Transform, kind: type | None = None) -> Transform:
    """Return the one inverse of a transform, so that ``t.inv.inv is t`` of an inverse too."""
    key = id(transform)
    kept = _INVERSES.get(key)
    found = None if kept is None else kept()
    if found is None or found.inv is not transform:
        found = (kind or InverseTransform)(transform)
        _INVERSES[key] = weakref.ref(found, functools.partial(_forget, key))
    return found


def _forget(key: int, reference: weakref.ref[Transform]) -> None:
    if _INVERSES.get(key) is reference:
        del _INVERSES[key]


class InverseTransform(Transform):
    """The inverse of a transform; made by `Transform.inv`."""

    _settings = ("inv",)

    def __init__(self, transform: Transform) -> None:
        self._inv = transform
        self.domain, self.codomain = transform.codomain, transform.domain
        self.bijective = transform.bijective

    @property
    def inv(self) -> Transform:
        """The transform this is the inverse of."""
        return self._inv

    @property
    def sign(self) -> float | Tensor:
        """As the inverse."""
        return self._inv.sign

    def _call(self, x: Tensor) -> Tensor:
        return self._inv._inverse(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return self._inv._call(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -self._inv.log_abs_det_jacobian(y, x)

    def call_and_ladj(self, x: TensorLike) -> tuple[Tensor, Tensor]:
        y, ladj = self._inv._inverse_and_ladj(_tensor(x))
        return y, -ladj

    def _inverse_and_ladj(self, y: Tensor) -> tuple[Tensor, Tensor]:
        x, ladj = self._inv.call_and_ladj(y)
        return x, -ladj

    def forward_shape(self, shape: Shape) -> Shape:
        return self._inv.inverse_shape(shape)

    def inverse_shape(self, shape: Shape) -> Shape:
        return self._inv.forward_shape(shape)

    def __repr__(self) -> str:
        return f"{self._inv!r}.inv"


class ComposeTransform(Transform):
    """Transforms one after the other, the first in the list first.

    Parameters
    ----------
    parts : sequence of Transform
    """

    _settings: tuple[str, ...] = ("parts",)

    def __init__(self, parts: Sequence[Transform], cache_size: int = 0) -> None:
        flat = []
        for part in parts:
            flat.extend(part.parts if isinstance(part, ComposeTransform) else [part])
        self.parts = flat
        self.bijective = all(p.bijective for p in flat)
        self.costly_inverse = any(p.costly_inverse for p in flat)
        if flat:
            self._event_dims()

    @property
    def inv(self) -> Transform:
        """The inverse transform; the identity is its own."""
        return inverse_of(self) if self.parts else self

    @property
    def sign(self) -> float | Tensor:
        """Product of the signs of the parts."""
        return math.prod(p.sign for p in self.parts)

    def _event_dims(self) -> None:
        """Work out how many dims one element of the domain, and of the codomain, has in all."""
        need = self.parts[-1].codomain.event_dim
        for part in reversed(self.parts):
            need = max(
                need + part.domain.event_dim - part.codomain.event_dim, part.domain.event_dim
            )
        self._domain_dim = need
        first, last = self.parts[0].domain, self.parts[-1].codomain
        self.domain = _at_least(first, need)
        for part in self.parts:
            need += part.codomain.event_dim - part.domain.event_dim
        self.codomain = _at_least(last, need)

    def _call(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part._call(x)
        return x

    def _inverse(self, y: Tensor) -> Tensor:
        for part in reversed(self.parts):
            y = part._inverse(y)
        return y

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self._ladj(x, y)[1]

    def call_and_ladj(self, x: TensorLike) -> tuple[Tensor, Tensor]:
        return self._ladj(_tensor(x), None)

    def _ladj(self, x: Tensor, y: Tensor | None) -> tuple[Tensor, Tensor]:
        """Forward through the parts; `y`, where known, spares the last call."""
        if not self.parts:
            return x, x.new_zeros(x.array.shape)
        dim, out = self.domain.event_dim, None
        for i, part in enumerate(self.parts):
            if y is not None and i == len(self.parts) - 1:
                z, term = y, part.log_abs_det_jacobian(x, y)
            else:
                z, term = part.call_and_ladj(x)
            term = sum_last(term, dim - part.domain.event_dim)
            out = term if out is None else out + term
            dim += part.codomain.event_dim - part.domain.event_dim
            x = z
        assert out is not None  # there are parts
        return x, out

    def _inverse_and_ladj(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Backward through the parts."""
        if not self.parts:
            return y, y.new_zeros(y.array.shape)
        dim, out = self.codomain.event_dim, None
        for part in reversed(self.parts):
            dim += part.domain.event_dim - part.codomain.event_dim
            y, term = part._inverse_and_ladj(y)
            term = sum_last(term, dim - part.domain.event_dim)
            out = term if out is None else out + term
        assert out is not None  # there are parts
        return y, out

    def forward_shape(self, shape: Shape) -> Shape:
        for part in self.parts:
            shape = part.forward_shape(shape)
        return tuple(shape)

    def inverse_shape(self, shape: Shape) -> Shape:
        for part in reversed(self.parts):
            shape = part.inverse_shape(shape)
        return tuple(shape)


identity_transform = ComposeTransform([])


def IdentityTransform() -> Transform:
    """Return `identity_transform`: NumPyro has a class of that name."""
    return identity_transform


def _at_least(constraint: Constraint, event_dim: int) -> Constraint:
    extra = event_dim - constraint.event_dim
    return constraints.independent(constraint, extra) if extra else constraint


def sum_last(x: Tensor, n: int) -> Tensor:
    """Return the sums over the last `n` dims."""
    return total(x, tuple(range(-n, 0))) if n else x


class IndependentTransform(Transform):
    """A transform applied to each element of the last dims, whose log-determinants are summed.

    Parameters
    ----------
    base_transform : Transform
    reinterpreted_batch_ndims : int
    """

    _settings = ("base_transform", "reinterpreted_batch_ndims")

    def __init__(
        self, base_transform: Transform, reinterpreted_batch_ndims: int, cache_size: int = 0
    ) -> None:
        n = reinterpreted_batch_ndims
        self.base_transform = base_transform
        self.reinterpreted_batch_ndims = n
        self.costly_inverse = base_transform.costly_inverse
        self.bijective = base_transform.bijective
        self.augmented = base_transform.augmented
        self.domain = constraints.independent(base_transform.domain, n)
        self.codomain = constraints.independent(base_transform.codomain, n)

    @property
    def sign(self) -> float | Tensor:
        """As the base."""
        return self.base_transform.sign

    def _call(self, x: Tensor) -> Tensor:
        return self.base_transform._call(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return self.base_transform._inverse(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        ladj = self.base_transform.log_abs_det_jacobian(x, y)
        return sum_last(ladj, self.reinterpreted_batch_ndims)

    def call_and_ladj(self, x: TensorLike) -> tuple[Tensor, Tensor]:
        y, ladj = self.base_transform.call_and_ladj(_tensor(x))
        return y, sum_last(ladj, self.reinterpreted_batch_ndims)

    def _inverse_and_ladj(self, y: Tensor) -> tuple[Tensor, Tensor]:
        x, ladj = self.base_transform._inverse_and_ladj(y)
        return x, sum_last(ladj, self.reinterpreted_batch_ndims)

    def forward_shape(self, shape: Shape) -> Shape:
        return self.base_transform.forward_shape(shape)

    def inverse_shape(self, shape: Shape) -> Shape:
        return self.base_transform.inverse_shape(shape)


class ReshapeTransform(Transform):
    """Another shape of the same elements.

    Parameters
    ----------
    in_shape, out_shape : tuple of int
        Event shapes with as many elements.
    """

    _settings = ("in_shape", "out_shape")

    # NumPyro names each shape by the direction that leads to it.
    @also_called(None, forward_shape="out_shape", inverse_shape="in_shape")
    def __init__(self, in_shape: Shape, out_shape: Shape, cache_size: int = 0) -> None:
        self.in_shape, self.out_shape = tuple(in_shape), tuple(out_shape)
        if math.prod(self.in_shape) != math.prod(self.out_shape):
            raise ShapeError(
                "ReshapeTransform",
                expected="shapes with as many elements",
                got=f"{self.in_shape} and {self.out_shape}",
                fix="check the sizes",
            )
        self.domain = constraints.independent(constraints.real, len(self.in_shape))
        self.codomain = constraints.independent(constraints.real, len(self.out_shape))

    def _call(self, x: Tensor) -> Tensor:
        return reshape(x, self.forward_shape(x.array.shape))

    def _inverse(self, y: Tensor) -> Tensor:
        return reshape(y, self.inverse_shape(y.array.shape))

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        shape = x.array.shape
        return x.new_zeros(shape[: len(shape) - len(self.in_shape)])

    def forward_shape(self, shape: Shape) -> Shape:
        return _replaced(shape, self.in_shape, self.out_shape)

    def inverse_shape(self, shape: Shape) -> Shape:
        return _replaced(shape, self.out_shape, self.in_shape)


def _replaced(shape: Shape, old: Shape, new: Shape) -> Shape:
    cut = len(shape) - len(old)
    if cut < 0 or tuple(shape[cut:]) != old:
        raise ShapeError(
            "ReshapeTransform",
            expected=f"a shape that ends in {old}",
            got=str(tuple(shape)),
            fix="check the event shape of the distribution",
        )
    return tuple(shape[:cut]) + new


explain_calls(globals())
