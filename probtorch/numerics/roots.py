"""`root`: where a system of equations holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from probtorch.autograd.modes import no_grad
from probtorch.core import dtype as dtypes
from probtorch.core.casting import cast
from probtorch.core.making import as_tensor
from probtorch.core.signatures import explain_calls, explained
from probtorch.core.typed import TensorLike
from probtorch.errors import ArgumentError, DomainError, ShapeError
from probtorch.numerics.implicit import Equations, differentiable_root, no_root
from probtorch.numerics.searches import METHODS, JacobianSearch
from probtorch.ops.movement import expand, unsqueeze
from probtorch.tensor import Tensor

__all__ = ["broadcast_unknowns", "checked_steps", "residuals", "root", "starting"]

# The step that is made after the tolerance is met squares the error.
DEFAULT_RTOL = {8: 1e-8, 4: 1e-4, 2: 1e-2}


def _advice(args: Sequence[object], kwargs: Mapping[str, object]) -> str | None:
    """What to write where SciPy takes the parameters as a tuple."""
    if "args" in kwargs:
        return "write them one by one after x0: root(func, x0, a, b)"
    if "jac" in kwargs:
        return "leave it out: slopes come from the function itself"
    return None


@explained("root", meant={"f": "func", "fun": "func", "x": "x0", "guess": "x0"}, advice=_advice)
def root(
    func: Callable[..., Tensor],
    x0: TensorLike,
    *params: TensorLike,
    method: str = "newton",
    rtol: float | None = None,
    atol: float = 0.0,
    max_steps: int = 100,
) -> Tensor:
    """Return the x near `x0` with ``func(x, *params) = 0``.

    Parameters
    ----------
    func : callable
        From x, shape (..., n), and the parameters to the residuals, of the same shape: as many
        equations as unknowns. It may close over tensors.
    x0 : Tensor, shape (n,) or (..., n), or a number
        Where the search begins. Each row of the last dim is a system of its own; batch dims that
        the residuals have beyond those of `x0` are added to it. A 0-d one is one equation.
    *params
        Passed on to `func`.
    method : {"newton", "powell"}
        Newton's steps, cut short where residuals would grow; or Powell's dogleg in a trust region,
        which goes on where slopes are nearly singular on the way.
    rtol, atol : float
        The search ends when Newton's step is at most ``atol + rtol * abs(x)``, and makes that step,
        which squares the error. `rtol` is 1e-8 in double precision, 1e-4 in single.
    max_steps : int
        Steps tried, at most.

    Returns
    -------
    Tensor, shape (..., n)

    Raises
    ------
    ArgumentError
        If the method is unknown or a tolerance is not a positive number.
    ShapeError
        If there are not as many residuals as unknowns.
    DomainError
        If the search does not find a root. In compiled code and under `vmap` the row is nan
        instead, which makes the point of a density infeasible.

    Notes
    -----
    Differentiable, to all orders, in the parameters and in what `func` closes over, by the implicit
    function theorem; `x0` has no gradient. The derivative is nan where the slopes at the root are
    singular. Which of several roots is found depends on `x0`. Each step takes n backward passes
    through `func` and one solve of n equations.

    References
    ----------
    Powell (1970), "A hybrid method for nonlinear equations"; Nocedal and Wright (2006), "Numerical
    optimization", chapter 11. Stan's ``solve_newton`` and ``solve_powell``, SciPy's ``root``.

    Examples
    --------
    >>> from probtorch import stack, tensor
    >>> from probtorch.numerics import root
    >>> def meet(x, a):
    ...     return stack([x[0] ** 2 + x[1] ** 2 - a, x[0] - x[1]])
    >>> a = tensor(8.0, requires_grad=True)
    >>> x = root(meet, tensor([1.0, 0.5]), a)
    >>> x.detach()
    tensor([2., 2.])
    >>> x[0].backward()
    >>> a.grad
    tensor(0.1250)
    """
    if method not in METHODS:
        raise ArgumentError(
            "root(method=...)",
            expected=" or ".join(repr(name) for name in METHODS),
            got=repr(method),
            fix="leave it out for Newton's method",
        )
    start = starting("root", x0)
    alone = start.array.ndim == 0
    start = unsqueeze(start, 0) if alone else start

    def f(x: Tensor) -> Tensor:
        residual = residuals("root", func, x[..., 0] if alone else x, params)
        return unsqueeze(residual, -1) if alone else residual

    start = broadcast_unknowns("root", f, start)
    rtol = checked_steps("root", rtol, DEFAULT_RTOL[start.array.dtype.itemsize], atol, max_steps)
    search = JacobianSearch(start, METHODS[method], rtol, atol, max_steps)

    def failure(where_: np.ndarray, x: Tensor) -> DomainError:
        left = float(np.abs(f(x).detach().numpy()[where_]).max())
        begun = np.isfinite(f(start).detach().numpy()).all()
        return no_root(
            "root",
            where_,
            expected=f"residuals that become 0 in {max_steps} steps from x0"
            if begun
            else "residuals that are numbers at x0",
            got=f"residuals of up to {left:.3g} where the search ended"
            if begun
            else f"x0 = {np.array2string(start.numpy(), threshold=6, precision=4)}",
            fix="begin elsewhere, try method="
            + ("'powell'" if method == "newton" else "'newton'")
            + ", or raise max_steps; or there is no root",
        )

    def own(x: Tensor) -> Tensor:
        return f(x).to(x.array.dtype)

    equations = Equations("root", own, start, search, single=False)
    found = differentiable_root(equations, failure)
    return found[..., 0] if alone else found


def starting(name: str, x0: TensorLike) -> Tensor:
    """Return where a search begins, without its gradient."""
    start = as_tensor(x0, name).detach()
    if start.array.dtype.kind != "f":
        start = cast(start, dtypes.default_dtype())
    return start


def checked_steps(
    name: str, rtol: float | None, default: float, atol: float, max_steps: int
) -> float:
    """Refuse tolerances that are none; return `rtol`, or its default."""
    chosen = default if rtol is None else rtol
    if not (chosen > 0.0 and atol >= 0.0 and max_steps >= 1):
        raise ArgumentError(
            f"{name}(rtol, atol, max_steps)",
            expected="rtol above 0, atol of 0 or more, and one step or more",
            got=f"rtol={rtol}, atol={atol}, max_steps={max_steps}",
            fix="leave them out for the defaults",
        )
    return float(chosen)


def residuals(
    name: str, func: Callable[..., Tensor], x: Tensor, params: Sequence[TensorLike]
) -> Tensor:
    """Call the user's function."""
    found = func(x, *params)
    if isinstance(found, (tuple, list)):
        raise ShapeError(
            name,
            expected="residuals in one tensor",
            got=f"a {type(found).__name__} of {len(found)}",
            fix="return stack([...], -1), one residual for each unknown",
        )
    return as_tensor(found, name)


def broadcast_unknowns(name: str, f: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """Return where to begin with the batch dims and the precision of the residuals.

    Raises
    ------
    ShapeError
        If the residuals are not as many as the unknowns.
    """
    with no_grad():
        residual = f(start)
    shape, own = residual.array.shape, start.array.shape
    fits = len(shape) >= len(own) and all(
        s in (1, r) for s, r in zip(own[::-1], shape[::-1], strict=False)
    )
    if not fits or (name == "root" and shape[-1:] != own[-1:]):
        raise ShapeError(
            name,
            expected=f"as many residuals as unknowns: shape {own}",
            got=f"shape {shape}",
            fix="return one residual for each unknown: stack([...], -1) for a system; rows of "
            "shape (..., 1) have one equation each",
        )
    dtype = np.promote_types(residual.array.dtype, start.array.dtype)
    start = start if dtype == start.array.dtype else cast(start, dtype)
    return start if shape == own else expand(start, shape)


explain_calls(globals())
