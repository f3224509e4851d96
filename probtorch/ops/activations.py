"""Activations as one operation each, where nobody listens: value and slope in one pass.

Each is a formula and a slope over the scalar algebra, with Python's numbers as attributes. Native
code is made of both (compiler/render/runtime/rows.py); where there is none they run on NumPy's
arrays, and on tensors where a derivative of the derivative is asked for. Recordings and other
listeners see the compositions of nn/functional/activation.py, which fuse.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from probtorch.core.dispatch import apply, unheard, unseen, wrap
from probtorch.core.tensor_base import TensorBase
from probtorch.ops import arithmetic, exponentials
from probtorch.ops.accumulate import floats
from probtorch.ops.families import structured
from probtorch.ops.native_rows import native_elements
from probtorch.ops.scalar import numpy_algebra

if TYPE_CHECKING:
    from probtorch.core.op import Attrs, Op

__all__ = ["FORMULAS", "activated"]

# Of activations and their slopes, by the names of their native functions.
FORMULAS: dict[str, Callable[..., TensorBase]] = {}


class _TensorAlgebra:
    """The algebra of formulas on tensors, as far as these need it."""

    where = staticmethod(arithmetic.where)
    abs = staticmethod(arithmetic.abs)
    exp = staticmethod(exponentials.exp)
    expm1 = staticmethod(exponentials.expm1)


_tensor_algebra = _TensorAlgebra()
_FLOATS = "fd"
# On all sides of the kinks.
_SAMPLES = np.array([-7.3, -2.2, -0.8, -0.2, 0.3, 0.9, 2.5, 6.4])


def _activation(
    name: str,
    formula: Callable[..., TensorBase],
    slope: Callable[..., TensorBase],
    numbers: dict[str, float],
    doc: str,
) -> Op:
    """Declare an activation: ``formula(s, x, *numbers)``, and ``slope(s, g, x, *numbers)``, its
    derivative times `g`.
    """
    names, slope_name = tuple(numbers), f"{name}_slope"

    def run(x: np.ndarray, **attrs: float) -> np.ndarray:
        native = native_elements(name, x)
        if native is not None:
            return native(x, *attrs.values())  # as all that calls it writes them in order
        return np.asarray(formula(numpy_algebra, floats(x), *[attrs[n] for n in names]))

    def of_arrays(g: np.ndarray, x: np.ndarray, attrs: Attrs) -> np.ndarray:
        native = native_elements(slope_name, x)
        if native is not None and g.dtype is x.dtype:
            return native(g, x, *attrs.values())
        return np.asarray(slope(numpy_algebra, g, x, *[attrs[n] for n in names]))

    def vjp(
        g: TensorBase,
        out: TensorBase,
        inputs: tuple[TensorBase, ...],
        attrs: Attrs,
        needs: Sequence[bool],
    ) -> tuple[TensorBase, ...]:
        (x,) = inputs
        if unseen(g, x):
            return (wrap(of_arrays(g.array, x.array, attrs)),)
        return (slope(_tensor_algebra, g, x, *[attrs[n] for n in names]),)

    def jvp(
        tangents: Sequence[TensorBase],
        out: TensorBase,
        inputs: tuple[TensorBase, ...],
        attrs: Attrs,
    ) -> TensorBase:
        return slope(_tensor_algebra, tangents[0], inputs[0], *[attrs[n] for n in names])

    FORMULAS.update({name: formula, slope_name: slope})
    return structured(
        name,
        "structured",
        run=run,
        vjp=vjp,
        jvp=jvp,
        saves="x",
        core="()->()",
        samples=lambda rng: [
            ((_SAMPLES + 0.1 * rng.random(8),), dict(numbers)),
            ((rng.uniform(0.6, 0.9, (2, 3)),), dict(numbers)),
        ],
        reference=functools.partial(_on_arrays, formula),
        doc=doc,
        extra={
            "decompose": lambda x, **attrs: formula(_tensor_algebra, x, *[attrs[n] for n in names]),
        },
    )


def _on_arrays(formula: Callable[..., TensorBase], x: np.ndarray, **attrs: float) -> np.ndarray:
    return np.asarray(formula(numpy_algebra, x, *attrs.values()))


# Where a formula has exp, its argument is 0 where the other side is chosen: no overflow.
_ACTIVATIONS = {
    "elu": _activation(
        "elu",
        lambda s, x, alpha: s.where(x > 0.0, x, s.expm1(s.where(x > 0.0, 0.0, x)) * alpha),
        lambda s, g, x, alpha: s.where(x > 0.0, g, g * alpha * s.exp(s.where(x > 0.0, 0.0, x))),
        {"alpha": 1.5},
        "x where positive, else alpha (exp(x) - 1).",
    ),
    "selu": _activation(
        "selu",
        lambda s, x, alpha, scale: (
            s.where(x > 0.0, x, s.expm1(s.where(x > 0.0, 0.0, x)) * alpha) * scale
        ),
        lambda s, g, x, alpha, scale: (
            s.where(x > 0.0, g, g * alpha * s.exp(s.where(x > 0.0, 0.0, x))) * scale
        ),
        {"alpha": 1.5, "scale": 1.1},
        "`elu` times a scale.",
    ),
    "celu": _activation(
        "celu",
        lambda s, x, alpha: s.where(x > 0.0, x, s.expm1(s.where(x > 0.0, 0.0, x) / alpha) * alpha),
        lambda s, g, x, alpha: s.where(x > 0.0, g, g * s.exp(s.where(x > 0.0, 0.0, x) / alpha)),
        {"alpha": 1.5},
        "x where positive, else alpha (exp(x / alpha) - 1).",
    ),
    "leaky_relu": _activation(
        "leaky_relu",
        lambda s, x, slope: s.where(x > 0.0, x, x * slope),
        lambda s, g, x, slope: s.where(x > 0.0, g, g * slope),
        {"negative_slope": 0.1},
        "x where positive, else x times a slope.",
    ),
    "hardtanh": _activation(
        "hardtanh",
        lambda s, x, low, high: s.where(x <= low, low, s.where(x >= high, high, x)),
        lambda s, g, x, low, high: s.where(x <= low, 0.0, s.where(x >= high, 0.0, g)),
        {"low": -1.0, "high": 2.0},
        "x limited to [low, high], with slope 0 at both.",
    ),
    "hardsigmoid": _activation(
        "hardsigmoid",
        lambda s, x: s.where(x + 3.0 <= 0.0, 0.0, s.where(x + 3.0 >= 6.0, 6.0, x + 3.0)) / 6.0,
        lambda s, g, x: s.where(x + 3.0 <= 0.0, 0.0, s.where(x + 3.0 >= 6.0, 0.0, g / 6.0)),
        {},
        "x / 6 + 1 / 2 limited to [0, 1].",
    ),
    "hardswish": _activation(
        "hardswish",
        lambda s, x: x * s.where(x + 3.0 <= 0.0, 0.0, s.where(x + 3.0 >= 6.0, 6.0, x + 3.0)) / 6.0,
        lambda s, g, x: (
            g / 6.0 * s.where(x + 3.0 <= 0.0, 0.0, s.where(x + 3.0 >= 6.0, 6.0, x + x + 3.0))
        ),
        {},
        "x times `hardsigmoid` of it.",
    ),
    "huber": _activation(
        "huber",
        lambda s, x, delta: s.where(
            s.abs(x) < delta, x * x * 0.5, (s.abs(x) - delta * 0.5) * delta
        ),
        lambda s, g, x, delta: s.where(
            s.abs(x) < delta,
            g * x,
            s.where(x > 0.0, g * delta, s.where(x < 0.0, g * -delta, g * x)),
        ),
        {"delta": 0.5},
        "Half the square of a small x; linear beyond delta.",
    ),
    "smooth_l1": _activation(
        "smooth_l1",
        lambda s, x, beta: s.where(s.abs(x) < beta, x * x * (0.5 / beta), s.abs(x) - beta * 0.5),
        lambda s, g, x, beta: s.where(
            s.abs(x) < beta,
            g * x / beta,
            s.where(x > 0.0, g, s.where(x < 0.0, -g, g * x)),
        ),
        {"beta": 0.5},
        "`huber` divided by its delta.",
    ),
    "hardshrink": _activation(
        "hardshrink",
        lambda s, x, width: s.where(s.abs(x) <= width, 0.0, x),
        lambda s, g, x, width: s.where(s.abs(x) <= width, 0.0, g),
        {"width": 0.5},
        "x where its size exceeds a width, else 0.",
    ),
    "softshrink": _activation(
        "softshrink",
        lambda s, x, width: s.where(s.abs(x) <= width, 0.0, s.where(x > 0.0, x - width, x + width)),
        lambda s, g, x, width: s.where(s.abs(x) <= width, 0.0, g),
        {"width": 0.5},
        "x moved towards 0 by a width, 0 within it.",
    ),
}


def activated(name: str, x: TensorBase, **numbers: float) -> TensorBase | None:
    """Return an activation of `x` as one operation; None where somebody listens, or where operands
    are others than floats of NumPy's and Python's numbers.
    """
    array = x.array
    if type(array) is not np.ndarray or array.dtype.char not in _FLOATS or not unheard():
        return None
    for number in numbers.values():
        if type(number) is not float and type(number) is not int:
            return None
    return apply(_ACTIVATIONS[name], (x,), numbers)
