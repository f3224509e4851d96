"""Transforms with parameters: what makes a transform a `Module` as well, alone, in a row, inverted.

`TransformModule` is the base of flows whose parameters are learned. A flow that depends on a
context is a `ConditionalTransformModule`: ``condition(context)`` gives the transform for that
context, whose parameters are outputs of a network. Names are Pyro's.

`OnePass` is for maps of vectors that come with their log-determinant, `hidden_sizes` has the
networks that flows are made with by default.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from probtorch.core.signatures import explain_calls
from probtorch.distributions import constraints
from probtorch.distributions.transforms.transform import (
    ComposeTransform,
    InverseTransform,
    Transform,
    inverse_of,
)
from probtorch.errors import ArgumentError
from probtorch.nn.arguments import whole
from probtorch.nn.module import Module
from probtorch.tensor import Tensor

__all__ = [
    "ComposeTransformModule",
    "ConditionalComposeTransformModule",
    "ConditionalTransform",
    "ConditionalTransformModule",
    "OnePass",
    "TransformModule",
    "hidden_sizes",
    "iterated",
]


class TransformModule(Transform, Module):
    """Base of transforms with learned parameters: a `Transform` and a `Module` at once.

    Notes
    -----
    ``module.inv`` is a `TransformModule` too, over the same parameters. Transforms cache nothing:
    the inverse is computed when it is asked for, so gradients do not depend on what was called
    before.
    """

    @property
    def inv(self) -> Transform:
        """The inverse transform, a module over the same parameters."""
        return inverse_of(self, InverseTransformModule)

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = Module.__hash__
    __repr__ = Module.__repr__


class OnePass(Transform, abc.ABC):
    """Base of maps of vectors that compute the value and the log-determinant together."""

    domain = constraints.real_vector
    codomain = constraints.real_vector

    @abc.abstractmethod
    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``(y, log_abs_det_jacobian(x, y))``."""

    def _call(self, x: Tensor) -> Tensor:
        return self.call_and_ladj(x)[0]

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self.call_and_ladj(x)[1]


class InverseTransformModule(InverseTransform, TransformModule):
    """The inverse of a transform with parameters; made by `TransformModule.inv`."""

    def __init__(self, transform: Transform) -> None:
        Module.__init__(self)
        super().__init__(transform)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.inv is other.inv

    def __hash__(self) -> int:
        return hash((InverseTransformModule, id(self.inv)))


class ComposeTransformModule(TransformModule, ComposeTransform):
    """Transforms one after the other, some of them with parameters.

    Parameters
    ----------
    parts : sequence of Transform
        The first in the list comes first.
    """

    def __init__(self, parts: Sequence[Transform], cache_size: int = 0) -> None:
        Module.__init__(self)
        flat = []
        for part in parts:
            flat.extend(part.parts if isinstance(part, ComposeTransform) else [part])
        _keep(self, flat)
        self.bijective = all(p.bijective for p in flat)
        self.costly_inverse = any(p.costly_inverse for p in flat)
        if flat:
            self._event_dims()

    # Read from the children, where `ComposeTransform` has a list of its own.
    @property
    def parts(self) -> list[Transform]:  # type: ignore[override]
        """The transforms, in order."""
        return _kept(self)

    def __len__(self) -> int:
        return self._count


def _keep(module: Module, parts: Sequence[object]) -> None:
    """Make parts with parameters children of a module, under their numbers; keep others beside."""
    module._others = {}
    for i, part in enumerate(parts):
        if isinstance(part, Module):
            module.add_module(str(i), part)
        else:
            module._others[i] = part
    module._count = len(parts)


def _kept(module: Module) -> list[Any]:
    """Return those parts, in order."""
    others, children = module._others, module._modules
    return [others[i] if i in others else children[str(i)] for i in range(module._count)]


def iterated(
    repeats: int, base_fn: Callable[..., Transform], *args: object, **kwargs: object
) -> ComposeTransformModule:
    """Return several new transforms in a row.

    Parameters
    ----------
    repeats : int
    base_fn : callable
        Makes one: ``base_fn(*args, **kwargs)``, for example `affine_autoregressive`.

    Returns
    -------
    ComposeTransformModule
    """
    whole("iterated", repeats=repeats)
    return ComposeTransformModule([base_fn(*args, **kwargs) for _ in range(repeats)])


def hidden_sizes(
    hidden_dims: Sequence[int] | None, input_dim: int, layers: int = 2
) -> Sequence[int]:
    """Return the sizes of a network's hidden layers: ``10 * input_dim`` each if None is given."""
    return [10 * input_dim] * layers if hidden_dims is None else hidden_dims


# ------------------------------------------------------------------------------ with a context


class ConditionalTransform(abc.ABC):
    """A transform for every context."""

    @abc.abstractmethod
    def condition(self, context: Tensor) -> Transform:
        """Return the transform for a context.

        Parameters
        ----------
        context : Tensor, shape (..., context_dim)

        Returns
        -------
        Transform
        """


class ConditionalTransformModule(ConditionalTransform, Module):
    """A transform for every context, with learned parameters."""

    __hash__ = Module.__hash__

    @property
    def inv(self) -> ConditionalTransform:
        """The inverses, a conditional transform over the same parameters."""
        return _ConditionalInverse(self)


class _ConditionalInverse(ConditionalTransformModule):
    """The inverse for every context."""

    def __init__(self, transform: ConditionalTransform) -> None:
        super().__init__()
        self._inv = transform

    @property
    def inv(self) -> ConditionalTransform:
        return self._inv

    def condition(self, context: Tensor) -> Transform:
        return self._inv.condition(context).inv


Part: TypeAlias = Transform | ConditionalTransform


class ConditionalComposeTransformModule(ConditionalTransformModule):
    """Transforms one after the other, of which some depend on the context.

    Parameters
    ----------
    transforms : sequence of ConditionalTransform or Transform
        The first comes first. All that depend on the context see the same.
    """

    def __init__(self, transforms: Sequence[Part]) -> None:
        super().__init__()
        transforms = list(transforms)
        for transform in transforms:
            if not isinstance(transform, (Transform, ConditionalTransform)):
                raise ArgumentError(
                    "ConditionalComposeTransformModule",
                    expected="transforms and conditional transforms",
                    got=f"{type(transform).__name__} {transform!r:.60}",
                    fix="for example [conditional_planar(3, 2), permute(3)]",
                )
        _keep(self, transforms)

    @property
    def transforms(self) -> list[Part]:
        """The transforms, in order."""
        return _kept(self)

    def condition(self, context: Tensor) -> Transform:
        """Return the composition for a context."""
        return ComposeTransformModule([conditioned(t, context) for t in self.transforms])


def conditioned(transform: Part, context: Tensor) -> Transform:
    """Return a transform for a context; one that needs none stays what it is."""
    if isinstance(transform, ConditionalTransform):
        return transform.condition(context)
    return transform


explain_calls(globals())
