"""`probtorch.compile`: any function of tensors, recorded, compiled and replayed, path by path.

A call with arguments of new dtypes, or one whose Python branches go another way, runs eagerly and
is recorded; the next call of that kind is one native call. So do the first shapes; of shapes that
come later the first call is eager, and the second one recorded. Tensors that the function
finds outside its arguments are read anew at each call, and written to where it changes them in
place; random draws advance their generator as eagerly. Python values that it finds outside
(globals, attributes, `environment`) belong to the path: when one has changed, the call is recorded
anew. Gradients through a call are compiled too (`differentiable`). Where a replay could be wrong
(shapes that depend on values, Python objects that the function changes) the function runs eagerly.
"""

import functools

from probtorch.compiler.compiled_function import CompiledFunction
from probtorch.core.signatures import explain_calls

__all__ = ["compile"]


def compile(
    fn=None,
    *,
    verify=True,
    disable=False,
    mode=None,
    fullgraph=False,
    dynamic=None,
    backend=None,
    options=None,
):
    """Return a compiled version of `fn`; also a decorator.

    Parameters
    ----------
    fn : callable
        From trees of tensors (and hashable values, which select a version) to a tree of tensors and
        numbers.
    verify : bool
        Calls 2, 3, 5, 9, 17 ... of a path are made in Python too, and the results compared, so that
        something that no guard sees cannot go unnoticed for long. Switch it off where `fn` should
        run as rarely as possible; `probtorch.configure(verify=False)` does for all.
    disable : bool
        Return `fn` as it is.
    fullgraph : bool
        Raise `CompileError` where `fn` would run eagerly for a reason that is its own, in place of
        the warning.
    mode, dynamic, backend, options
        Settings of PyTorch's compiler, so that its users' programs run as they are. They change
        nothing: there is one backend, and each shape has a version of its own.

    Returns
    -------
    CompiledFunction
        With `explain()` and `source()`. Of a module, a module of its class that shares all it has
        with it: parameters, buffers, hooks, settings. Only its calls are compiled.

    Raises
    ------
    ReplayError
        By a call whose results are not those of Python. The function is eager from then on.

    Notes
    -----
    Python side effects such as `print` happen only when a path is first met and when a call is
    verified; a function that fills containers, outside or among its arguments, or sets attributes
    runs eagerly. Python values that the function finds outside its arguments, or in objects
    among them, may change: the call is then recorded anew. Arrays and data frames are compared by
    their elements at each call, which tensors need not be: they are read anew. A function that
    calls what answers otherwise each time (a clock, a file, a random generator of another library),
    or uses an object whose state Python does not show, runs eagerly, after a warning that names it.

    A number or object among the arguments selects a version; after 8 of them the function runs
    eagerly for others: pass what changes from call to call as a tensor. Each shape and dtype of its
    tensors is a version, too. The first is compiled at once, another shape when it is met for the
    second time, since many a batch of its own size never comes back (``fullgraph=True`` compiles
    each at once). There is room for 128 of them, and then those that come back replace those that
    no longer do, while what is new runs eagerly.

    Results of compiled calls share no memory with arguments, with tensors outside or with one
    another; one that is returned twice is one tensor. Calls that are made in Python return what it
    does, and that may be an argument, a parameter, a view: those of a function that runs eagerly,
    and, where a result needs a gradient, the first ones of a version (one, or two where no argument
    needs one), also after a Python value has changed. A call whose result needs a gradient is one
    entry on the tape, and its backward pass another native call, which computes the forward pass
    again: a gradient taken inside the function (`loss.backward()`, `func.value_and_grad`) is
    cheaper, and a whole training step, from `zero_grad()` to `optimizer.step()`, is one native
    call. Where the function draws random numbers or writes to tensors outside, such a call is
    eager.

    Examples
    --------
    >>> import probtorch
    >>> @probtorch.compile
    ... def f(x):
    ...     return (x * x).sum() if x[0] > 0 else x.exp().sum()
    >>> f(probtorch.tensor([1.0, 2.0]))
    tensor(5.)
    """
    if fn is None:
        return functools.partial(compile, verify=verify, disable=disable, fullgraph=fullgraph)
    if disable:
        return fn
    make = functools.partial(CompiledFunction, verify=verify, whole=fullgraph)
    # Of a module more is made than a function, by its own room.
    own = getattr(type(fn), "__compiled__", None)
    return make(fn) if own is None else own(fn, make)


explain_calls(globals())
