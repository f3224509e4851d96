"""`Parameterized`: modules whose random attributes have a guide of their own.

A random attribute of a `PyroModule` has a prior. Here it has an approximation of its posterior
beside it, stated by `Parameterized.autoguide`, and is read from either: from the prior in the
model, from the approximation in the guide and in predictions. Which one is a matter of where the
program is (`reading`), not of the module, so that a kernel may be part of several models; outside
of both, `Parameterized.set_mode` says.

Read effects/pyro_module.py first.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Literal, TypeAlias, cast

import numpy as np

from probtorch.core.signatures import explain_calls
from probtorch.core.typed import TensorLike
from probtorch.distributions import constraints
from probtorch.distributions.distribution import Distribution
from probtorch.distributions.multivariate_normal import MultivariateNormal
from probtorch.distributions.normal import Normal
from probtorch.distributions.transformed import TransformedDistribution
from probtorch.distributions.transforms.registry import biject_to
from probtorch.distributions.transforms.transform import ReshapeTransform
from probtorch.distributions.uniform import Delta
from probtorch.effects.pyro_module import PyroModule, PyroParam, PyroSample
from probtorch.effects.site import as_value
from probtorch.errors import ArgumentError, DomainError, DTypeError
from probtorch.tensor import Tensor

__all__ = ["Parameterized", "Given", "positive", "reading"]

Mode: TypeAlias = Literal["model", "guide"]
# What an argument for a parameter may be: its initial value, or its prior.
Given: TypeAlias = TensorLike | PyroParam | PyroSample

# The standard deviation that a normal guide starts with, on the unconstrained scale.
INITIAL_SCALE = 0.1


class _Reading(threading.local):
    """Where the program is: None outside of models and guides."""

    mode: Mode | None = None


_READING = _Reading()


@contextlib.contextmanager
def reading(mode: Mode) -> Iterator[None]:
    """Context manager: random attributes are read from their priors, or from their guides."""
    before, _READING.mode = _READING.mode, mode
    try:
        yield
    finally:
        _READING.mode = before


def positive(value: Given | None) -> Tensor:
    """Return what to assign to an attribute that reads as a tensor: a parameter, or a prior."""
    if isinstance(value, Distribution):
        value = PyroSample(value)
    elif not isinstance(value, (PyroParam, PyroSample)):
        value = PyroParam(1.0 if value is None else value, constraints.positive)
    return cast(Tensor, value)


class Parameterized(PyroModule):
    """A `PyroModule` whose random attributes are read from priors or from guides.

    Attributes
    ----------
    mode : str
        ``"model"`` or ``"guide"``: what random attributes are read from where no model and no guide
        runs.

    Examples
    --------
    >>> import probtorch.distributions as dist
    >>> from probtorch.contrib.gp.kernels import RBF
    >>> from probtorch.nn import PyroSample
    >>> kernel = RBF(input_dim=1)
    >>> kernel.lengthscale = PyroSample(dist.LogNormal(0.0, 1.0))
    >>> kernel.autoguide("lengthscale", dist.Normal)
    >>> kernel.set_mode("guide")
    >>> kernel.lengthscale.shape
    Size([])
    """

    def __init__(self) -> None:
        super().__init__()
        self.__dict__.update(_guides={}, mode="model")

    def __setattr__(self, name: str, value: object) -> None:
        for ending in self.__dict__.get("_guides", {}).pop(name, ()):
            delattr(self, f"{name}_{ending}")
        super().__setattr__(name, value)
        # At once, so that an optimizer over `parameters()` has it. A prior that a function returns
        # may depend on attributes that are still to come; one of counts has no guide.
        prior = value.prior if isinstance(value, PyroSample) else None
        if isinstance(prior, Distribution) and not prior.is_discrete:
            self.autoguide(name)

    def set_mode(self, mode: Mode) -> None:
        """Read random attributes, of the modules below too, from ``"model"`` or ``"guide"``."""
        if mode not in ("model", "guide"):
            raise ArgumentError(
                f"{type(self).__name__}.set_mode",
                expected="'model' or 'guide'",
                got=repr(mode),
                fix="'model' reads priors, 'guide' what approximates posteriors",
            )
        if mode == "guide":
            self.complete_guides()
        for module in self.modules():
            if isinstance(module, Parameterized):
                module.__dict__["mode"] = mode

    def complete_guides(self) -> None:
        """Give each random attribute, of the modules below too, a guide: its mode by default.

        Those whose prior is a distribution have one already; an optimizer over ``parameters()``
        that is to learn the others is made after this.
        """
        for module in self.modules():
            if isinstance(module, Parameterized):
                for name in module._pyro_samples:
                    if name not in module._guides:
                        module.autoguide(name)

    def autoguide(
        self,
        name: str,
        dist_constructor: type[Delta] | type[Normal] | type[MultivariateNormal] = Delta,
        init: TensorLike | None = None,
    ) -> None:
        """State what approximates the posterior of a random attribute.

        Parameters
        ----------
        name : str
            Of the attribute, which has a `PyroSample`.
        dist_constructor : type
            `Delta` for the mode (the default of attributes that nobody stated), `Normal` for
            independent normals and `MultivariateNormal` for a joint one, both of the unconstrained
            values. Their parameters are ``{name}_map``, or ``{name}_loc`` and ``{name}_scale`` or
            ``{name}_scale_tril``.
        init : Tensor, optional
            The mean at first, in the support; the mean of the prior without it, or a draw.
        """
        if name not in self._pyro_samples:
            raise ArgumentError(
                f"{type(self).__name__}.autoguide",
                expected=f"one of {sorted(self._pyro_samples)}" if self._pyro_samples
                else "a random attribute: there is none",
                got=repr(name),
                fix=f"give it a prior first: module.{name} = PyroSample(...)",
            )  # fmt: skip
        with reading("model"):
            prior = self._pyro_samples[name].distribution(self, name)
        start = _start(prior) if init is None else as_value(init, "init").detach()
        if not bool(prior.support.check(start).all()):
            raise DomainError(
                f"{type(self).__name__}.autoguide({name!r})",
                expected=f"init in the support of the prior, {prior.support}",
                got=f"{start.numpy()!r:.60}",
                fix="give a value as the attribute itself has it, not an unconstrained one",
            )
        for ending in self._guides.pop(name, ()):
            delattr(self, f"{name}_{ending}")
        if dist_constructor is Delta:
            made = {"map": PyroParam(start, prior.support, prior.event_dim)}
        elif dist_constructor in (Normal, MultivariateNormal):
            free = biject_to(prior.support).inv(start).clone()
            made = {"loc": PyroParam(free)}
            if dist_constructor is Normal:
                made["scale"] = PyroParam(free * 0.0 + INITIAL_SCALE, constraints.positive)
            else:
                eye = free.new_tensor(INITIAL_SCALE * np.eye(free.numel()))
                made["scale_tril"] = PyroParam(eye, constraints.lower_cholesky)
        else:
            raise DTypeError(
                f"{type(self).__name__}.autoguide({name!r})",
                expected="Delta, Normal or MultivariateNormal",
                got=f"{getattr(dist_constructor, '__name__', dist_constructor)!s:.60}",
                fix="other guides: infer.AutoGuide classes, given the model of the process",
            )
        for ending, param in made.items():
            setattr(self, f"{name}_{ending}", param)
        self._guides[name] = tuple(made)

    def draw_all(self) -> None:
        """Read every random attribute, of the modules below too: what a guide has to do."""
        for path, module in self.named_modules():
            if isinstance(module, PyroModule):
                for name in module._pyro_samples:
                    if not isinstance(module, Parameterized):
                        raise _no_guide(f"{path}.{name}", type(module).__name__)
                    getattr(module, name)

    def _random(self, name: str) -> PyroSample:
        prior = super()._random(name)
        if (_READING.mode or self.mode) == "model":
            return prior
        if name not in self._guides:
            raise ArgumentError(
                f"{type(self).__name__}.{name} in a guide",
                expected="an attribute that has a guide",
                got="one that has not",
                fix=f"call autoguide({name!r}) on the module before",
            )
        return PyroSample(lambda _: self._guide_of(name, prior.distribution(self, name)))

    def _guide_of(self, name: str, prior: Distribution) -> Distribution:
        endings = self._guides[name]
        if endings == ("map",):
            return Delta(getattr(self, f"{name}_map"), event_dim=prior.event_dim)
        transform = biject_to(prior.support)
        loc: Tensor = getattr(self, f"{name}_loc")
        if "scale" in endings:
            normal: Distribution = Normal(loc, getattr(self, f"{name}_scale"))
            normal = normal.to_event(transform.domain.event_dim)
            whole = TransformedDistribution(normal, transform)
            return whole.to_event(prior.event_dim - whole.event_dim)
        # One normal of all elements, whatever their shape: a joint one has no batch.
        joint = MultivariateNormal(loc.reshape(-1), scale_tril=getattr(self, f"{name}_scale_tril"))
        into = ReshapeTransform((loc.numel(),), tuple(loc.shape))
        return TransformedDistribution(joint, [into, transform])


def _start(prior: Distribution) -> Tensor:
    """The mean of a prior where it has a finite one inside its support, or else a draw."""
    try:
        mean: Tensor = prior.mean.detach()
    except NotImplementedError:
        return prior().detach()
    inside = bool(mean.isfinite().all()) and bool(prior.support.check(mean).all())
    return mean if inside else prior().detach()


def _no_guide(name: str, kind: str) -> ArgumentError:
    return ArgumentError(
        f"{name} in a guide",
        expected="random attributes of Parameterized modules, which have guides",
        got=f"one of {kind}: the guide would draw it from its prior",
        fix="make the class a contrib.gp.Parameterized, or give SVI a guide of all of the model: "
        "AutoNormal(gp.model)",
    )


explain_calls(globals())
