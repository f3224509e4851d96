"""`linearize`: a function at one point, as its value and a linear map of tangents."""

from __future__ import annotations

from collections.abc import Callable

from probtorch.autograd import tape
from probtorch.autograd.modes import enable_grad
from probtorch.autograd.transforms import vjp
from probtorch.core.making import as_tensor
from probtorch.core.signatures import explain_calls
from probtorch.core.tree import flatten, unflatten
from probtorch.core.typed import Tree
from probtorch.errors import ArgumentError, ShapeError
from probtorch.factories import zeros_like

__all__ = ["linearize"]


def linearize(func: Callable[..., Tree], *primals: Tree) -> tuple[Tree, Callable[..., Tree]]:
    """Evaluate a function, and return its value and what pushes tangents through it there.

    Use it where many tangents go through one point: the function runs once, not once per tangent
    as with `jvp`.

    Parameters
    ----------
    func : callable
        From trees of tensors to a tree of tensors.
    *primals : trees of tensors

    Returns
    -------
    value : tree of Tensor
    push : callable
        From tangents, structured like the primals, to the tangent of the value.

    Raises
    ------
    ArgumentError, ShapeError
        By `push`, if tangents have not the structure or the shapes of the primals.

    Notes
    -----
    Pulling cotangents back is linear in these, and the transpose of that map pushes tangents: both
    are taped once.

    Examples
    --------
    >>> import probtorch
    >>> x = probtorch.tensor([1.0, 2.0])
    >>> value, push = linearize(lambda x: (x**3).sum(), x)
    >>> value, push(probtorch.tensor([1.0, 0.0])), push(probtorch.tensor([0.0, 1.0]))
    (tensor(9.), tensor(3.), tensor(12.))
    """
    items, structure = flatten(primals)
    value, pull = vjp(func, *primals)
    outs, out_structure = flatten(value)
    # In the place of cotangents, and of any value, as the pull-back is linear in them.
    cotangents = [zeros_like(as_tensor(x)).detach() for x in outs]
    smooth = [t for t in cotangents if t.array.dtype.kind in "fc"]
    for t in smooth:
        t.requires_grad = True
    with enable_grad():
        pulled, _ = flatten(pull(unflatten(out_structure, cotangents)))

    def push(*tangents: Tree) -> Tree:
        """Return the tangent of the value."""
        given, found = flatten(tangents)
        if found != structure:
            raise ArgumentError(
                "linearize",
                expected=f"tangents structured like the {len(items)} primals",
                got=f"{len(given)} leaves in another structure",
                fix="pass one tangent per primal",
            )
        ts = [as_tensor(t) for t in given]
        for t, x in zip(ts, items, strict=True):
            if t.array.shape != as_tensor(x).array.shape:
                raise ShapeError(
                    "linearize",
                    expected=f"a tangent of shape {as_tensor(x).array.shape}, that of its primal",
                    got=str(t.array.shape),
                    fix="a tangent has the shape of its primal",
                )
        pairs = [(g, t) for g, t in zip(pulled, ts, strict=True) if g.requires_grad]
        if not pairs:
            return unflatten(out_structure, [zeros_like(as_tensor(x)) for x in outs])
        ends, seeds = [g for g, _ in pairs], [t for _, t in pairs]
        pushed = iter(
            tape.grad(ends, smooth, seeds, retain_graph=True, materialize_grads=True)
            if smooth
            else ()
        )
        differentiable = {id(t) for t in smooth}
        return unflatten(
            out_structure,
            [next(pushed) if id(t) in differentiable else zeros_like(t) for t in cotangents],
        )

    return value, push


explain_calls(globals())
