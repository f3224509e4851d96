"""Optimizers that are given the loss itself: Pyro's `MultiOptimizer` and its kin.

A `PyroOptim` is handed parameters whose gradients are there; one of these differentiates the loss
by itself, as often as it likes, and so several of them can share the parameters of one model:
`MixedMultiOptimizer`. `Newton` takes second derivatives (newton.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from probtorch.autograd.modes import no_grad
from probtorch.autograd.tape import grad
from probtorch.core.in_place import assign
from probtorch.core.signatures import explain_calls
from probtorch.errors import ArgumentError
from probtorch.optim.newton import newton_step
from probtorch.optim.optimizer import Optimizer
from probtorch.optim.pyro import PyroOptim
from probtorch.optim.typed import Group
from probtorch.tensor import Tensor

__all__ = [
    "MixedMultiOptimizer",
    "MultiOptimizer",
    "Newton",
    "PyroMultiOptimizer",
    "TorchMultiOptimizer",
]


class MultiOptimizer:
    """Base of optimizers that differentiate the loss themselves.

    A subclass defines `get_step`, or `step` where new values cannot be had without moving.
    """

    def step(self, loss: Tensor, params: Mapping[str, Tensor]) -> None:
        """Move parameters once, in place.

        Parameters
        ----------
        loss : Tensor, 0-d
            On the tape.
        params : dict of name to Tensor
            Leaves that it was computed from; unconstrained values.
        """
        self.prepared(loss, params)()

    def prepared(self, loss: Tensor, params: Mapping[str, Tensor]) -> Callable[[], None]:
        """Differentiate the loss, and return what moves the parameters; arguments as for `step`.

        Of several optimizers all differentiate before the first one moves.
        """
        if type(self).step is not MultiOptimizer.step:
            return lambda: self.step(loss, params)  # of a subclass that does it in one
        values = {name: value.detach() for name, value in self.get_step(loss, params).items()}

        def move() -> None:
            with no_grad():
                for name, p in params.items():
                    assign(p, values[name].clone(), "step")

        return move

    def get_step(self, loss: Tensor, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return what parameters are after a step, on the tape; arguments as for `step`."""
        raise NotImplementedError(f"{type(self).__name__} moves parameters in place: call step()")


class PyroMultiOptimizer(MultiOptimizer):
    """A `PyroOptim` that takes the loss.

    Parameters
    ----------
    optim : PyroOptim
        Such as ``Adam({"lr": 0.01})``.

    Raises
    ------
    ArgumentError
        If it is none.
    """

    def __init__(self, optim: PyroOptim) -> None:
        if not isinstance(optim, PyroOptim):
            raise ArgumentError(
                f"{type(self).__name__}(optim)",
                expected="an optimizer that is made of options alone",
                got=f"{type(optim).__name__} {optim!r:.60}",
                fix='write Adam({"lr": 0.01})',
            )
        self.optim = optim

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.optim!r})"

    def prepared(self, loss: Tensor, params: Mapping[str, Tensor]) -> Callable[[], None]:
        """Take the gradients, and return the step; see `MultiOptimizer.prepared`."""
        slopes = grad(loss, list(params.values()), retain_graph=True)

        def move() -> None:
            for p, slope in zip(params.values(), slopes, strict=True):
                p.grad = slope
            self.optim(params)

        return move


class TorchMultiOptimizer(PyroMultiOptimizer):
    """An optimizer by its class and its options that takes the loss.

    Parameters
    ----------
    optim_constructor : type
        Such as `Adam`.
    optim_args : dict
    """

    def __init__(self, optim_constructor: type[Optimizer], optim_args: Group) -> None:
        super().__init__(PyroOptim(optim_constructor, optim_args))


class MixedMultiOptimizer(MultiOptimizer):
    """Several optimizers, each for some of the parameters.

    Parameters
    ----------
    parts : sequence of (names, optimizer)
        Names of parameters, and the `MultiOptimizer` or `PyroOptim` that moves them. They have
        to be all that `step` is given.

    Raises
    ------
    ArgumentError
        If a name is given twice, or a part is no such pair; in a step, if names are not those of
        the parameters.

    Examples
    --------
    >>> from probtorch import tensor
    >>> from probtorch.optim import Adam, MixedMultiOptimizer, Newton
    >>> a, b = (tensor([x]).requires_grad_() for x in (3.0, 5.0))
    >>> optimizer = MixedMultiOptimizer([(["a"], Adam({"lr": 0.1})), (["b"], Newton())])
    >>> optimizer.step(((a - 1.0) ** 2 + (b - 2.0) ** 2).sum(), {"a": a, "b": b})
    >>> a.detach(), b.detach()
    (tensor([2.9000]), tensor([2.]))
    """

    def __init__(self, parts: Sequence[tuple[Sequence[str], MultiOptimizer | PyroOptim]]) -> None:
        made: list[tuple[tuple[str, ...], MultiOptimizer]] = []
        seen: set[str] = set()
        for names, optimizer in parts:
            found = PyroMultiOptimizer(optimizer) if isinstance(optimizer, PyroOptim) else optimizer
            twice = seen.intersection(names)
            if not isinstance(found, MultiOptimizer) or twice or isinstance(names, str):
                raise ArgumentError(
                    "MixedMultiOptimizer(parts)",
                    expected="pairs of names and an optimizer, each name once",
                    got=f"{sorted(twice)[0]!r} twice" if twice else f"{(names, optimizer)!r:.60}",
                    fix='write [(["loc"], Adam({"lr": 0.01})), (["scale"], Newton())]',
                )
            seen.update(names)
            made.append((tuple(names), found))
        self.parts = made

    def __repr__(self) -> str:
        return f"MixedMultiOptimizer({self.parts!r})"

    def prepared(self, loss: Tensor, params: Mapping[str, Tensor]) -> Callable[[], None]:
        """Differentiate for all parts, and return their step; see `MultiOptimizer.prepared`."""
        moves = [optimizer.prepared(loss, some) for optimizer, some in self._shared_out(params)]

        def move() -> None:
            for each in moves:
                each()

        return move

    def get_step(self, loss: Tensor, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return what parameters are after a step; see `MultiOptimizer.get_step`."""
        values: dict[str, Tensor] = {}
        for optimizer, some in self._shared_out(params):
            values.update(optimizer.get_step(loss, some))
        return values

    def _shared_out(
        self, params: Mapping[str, Tensor]
    ) -> list[tuple[MultiOptimizer, dict[str, Tensor]]]:
        """Each optimizer with its parameters; all of them have to have one."""
        known = {name for names, _ in self.parts for name in names}
        if known != set(params):
            raise ArgumentError(
                "MixedMultiOptimizer.step(params)",
                expected=f"the parameters of its parts: {', '.join(sorted(known)) or 'none'}",
                got=", ".join(sorted(params)) or "none",
                fix="name each parameter in one of the parts, and pass all of them",
            )
        return [(optimizer, {n: params[n] for n in names}) for names, optimizer in self.parts]


class Newton(MultiOptimizer):
    """Newton's method, each parameter with its own second derivatives; see `newton_step`.

    Parameters
    ----------
    trust_radii : dict of name to float, optional
        How far the rows of a parameter may go in a step; as far as it says for others.

    Notes
    -----
    Parameters are rows of a few numbers, of shape (..., dim), which enter the loss on their own.

    Examples
    --------
    >>> from probtorch import tensor
    >>> x = tensor([0.0]).requires_grad_()
    >>> for _ in range(5):
    ...     Newton().step(x.exp().sum() - 2.0 * x.sum(), {"x": x})
    >>> x.detach().exp()
    tensor([2.])
    """

    def __init__(self, trust_radii: Mapping[str, float] | None = None) -> None:
        self.trust_radii = dict(trust_radii or {})

    def __repr__(self) -> str:
        return f"Newton({self.trust_radii or ''})"

    def get_step(self, loss: Tensor, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return what parameters are after a step; see `MultiOptimizer.get_step`."""
        radii = self.trust_radii
        return {name: newton_step(loss, p, radii.get(name))[0] for name, p in params.items()}


explain_calls(globals())
