"""Numbers that a function takes out of a tensor only to return them: `ReturnedNumbers`.

``return loss.item()`` ends most training steps. The number decides on nothing, so no guard is
needed: a copy of the tensor is a result of the graph, and each replay makes a number of it. That
nothing else happens to the number is read off the function's source: the call of ``item()`` or
``float()`` stands in its own return statement, inside of tuples, lists and dicts at most, or is
given to a variable that is read in such a place and nowhere else. Where the source is not that of
the code that runs, or the call is another one that asks for a number (``math.sqrt(loss)``), there
is a guard.
"""

import ast
import builtins
import functools
import inspect
import linecache
import sys
import types

from probtorch.core.tensor_base import TensorBase
from probtorch.errors import is_ours

__all__ = ["ReturnedNumbers"]


class _Integer(int):
    """An integer that is told from all others: Python keeps one object for each small one."""


class ReturnedNumbers:
    """The numbers that one function returns and does nothing else with.

    Parameters
    ----------
    fn : callable
        The function; of what others return, their callers may make use.
    caller : code
        Of what calls it.
    """

    def __init__(self, fn, caller):
        self._code, self._caller = _code_of(fn), caller
        self._found = []

    def take(self, what, t, value):
        """Return what Python gets for `value`, the element of `t`, if it is only returned; or None.

        Notes
        -----
        Call it from a method of the recorder: frames of this package are skipped.
        """
        if type(value) not in (float, int) or not self._only_returned(what):
            return None
        value = value if type(value) is float else _Integer(value)
        # A copy: what is read may be overwritten later.
        self._found.append((value, t.detach().clone().reshape(())))
        return value

    def _only_returned(self, what):
        frame: types.FrameType | None = sys._getframe(2)
        while frame is not None and is_ours(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is None or frame.f_code is not self._code or frame.f_back is None:
            return False
        if frame.f_back.f_code is not self._caller:
            return False
        if what == "float()" and _global(frame, "float") is not float:
            return False
        return _is_returned(what, frame.f_code, frame.f_lasti)

    def tensor_of(self, x):
        """Return the tensor whose element a number of the result is; all else as it is."""
        return next((t for value, t in self._found if value is x), x)

    def plain(self, x):
        """Return a leaf of the result as the function's caller is to get it."""
        return int(x) if type(x) is _Integer else x

    def kinds(self, leaves):
        """Return the dtypes of tensors that stand for numbers, by their places among tensors."""
        tensors = [x for x in leaves if isinstance(x, TensorBase)]
        mine = {id(t) for _, t in self._found}
        return {i: t.array.dtype for i, t in enumerate(tensors) if id(t) in mine}


def _code_of(fn):
    """The code that runs, at once and alone, where an object is called; None if there is none."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    if not inspect.isroutine(fn):
        fn = type(fn).__call__
    return getattr(fn, "__code__", None)


def _global(frame, name):
    found = frame.f_globals.get(name, getattr(builtins, name))
    return None if name in frame.f_locals else found


@functools.lru_cache(256)
def _is_returned(what, code, instruction):
    """Whether the value of the call at an instruction is returned and nothing else."""
    places = list(code.co_positions())[instruction // 2]
    above = _parents(code)
    call = next((x for x in above if isinstance(x, ast.Call) and _place(x) == places), None)
    if call is None or not _asks_for_number(call, what):
        return False
    if _goes_into_return(call, above):
        return True
    statement = above[call]
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
        if isinstance(target, ast.Name):
            return _is_only_returned(target, statement, above, code)
    return False


def _asks_for_number(call, what):
    """Whether a call is ``x.item()`` or ``float(x)``, whose value is the number itself."""
    if what == "item()":
        return isinstance(call.func, ast.Attribute) and call.func.attr == "item" and not call.args
    return what == "float()" and isinstance(call.func, ast.Name) and call.func.id == "float"


def _parents(code):
    """Return what each node of the source is part of; {} if the code was not made from it."""
    linecache.checkcache(code.co_filename)
    text = "".join(linecache.getlines(code.co_filename))
    made, above = _parsed(text)
    return above if any(_same(code, c) for c in made) else {}


@functools.lru_cache(16)
def _parsed(text):
    """Return the code of all functions in a source, and what each of its nodes is part of."""
    try:
        tree = ast.parse(text)
        todo = [compile(text, "", "exec", dont_inherit=True)]
    except (SyntaxError, ValueError):
        return [], {}
    made = []
    while todo:
        made.append(todo.pop())
        todo += (c for c in made[-1].co_consts if isinstance(c, types.CodeType))
    return made, {child: x for x in ast.walk(tree) for child in ast.iter_child_nodes(x)}


def _same(code, other):
    # Equality leaves out where in a line instructions come from.
    return code == other and list(code.co_positions()) == list(other.co_positions())


def _place(node):
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


def _goes_into_return(node, above):
    """Whether a node is what a return statement returns, or part of a container that it makes."""
    parent = above.get(node)
    while isinstance(parent, (ast.Tuple, ast.List, ast.Dict)):
        if isinstance(parent, ast.Dict) and node in parent.keys:
            return False
        node, parent = parent, above.get(parent)
    return isinstance(parent, ast.Return)


# With these code reads a variable without its name.
_BY_TEXT = {"locals", "vars", "eval", "exec", "dir"}


def _is_only_returned(target, statement, above, code):
    """Whether a variable is set here alone, and read in return statements alone."""
    fn = above.get(statement)
    while fn is not None and not isinstance(fn, (ast.FunctionDef, ast.Lambda, ast.ClassDef)):
        fn = above.get(fn)
    if not isinstance(fn, ast.FunctionDef) or target.id in code.co_cellvars:
        return False
    if not _BY_TEXT.isdisjoint(code.co_names) or target.id not in code.co_varnames:
        return False
    uses = [x for x in ast.walk(fn) if isinstance(x, ast.Name) and x.id == target.id]
    return all(x is target or (_is_plain_load(x) and _goes_into_return(x, above)) for x in uses)


def _is_plain_load(name):
    return isinstance(name.ctx, ast.Load)
