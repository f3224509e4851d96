"""Whether a value that Python reads is only shown to people: `shown_at`.

Compiled code does not run Python again, so a number that Python reads while a function is recorded
makes the recording hold for that number only, and a text makes it impossible. Not where the value
is printed: ``print(mu)`` says what mu is and changes nothing. The reader is found by its frame:

- code of `logging`, of a debugger, or of what they print with;
- otherwise a line of the user's, whose statement has to be a call of `print` (of a logger, of
  ``sys.stdout.write``) and nothing else, with the value inside its arguments, between which there
  may be nothing but formatting and arithmetic: ``print(f"mu {mu:.2f}")`` is printed, and
  ``print(save(str(mu)))`` may come back from wherever `save` puts it.

What cannot be found out (no source, a function in between) counts as not printed.
"""

from __future__ import annotations

import ast
import builtins
import functools
import itertools
import linecache
import logging
import os
import sys
import warnings
from types import CodeType, FrameType

from probtorch.errors import is_ours, is_users, user_location

__all__ = ["shown_at"]

# Folders and files of what shows values to people, as parts of paths.
_STANDARD = os.path.dirname(os.__file__) + os.sep
_VIEWERS = (
    *(_STANDARD + name for name in ("logging" + os.sep, "pdb.py", "bdb.py", "cmd.py", "pprint.py")),
    *(_STANDARD + name for name in ("code.py", "reprlib.py", "traceback.py")),
)
_VIEWER_PARTS = tuple(
    os.sep + name
    for name in ("pydevd", "_pydevd_bundle", "debugpy", "IPython", "ipdb", "pudb", "rich")
)
# Functions through which a value may go on its way to be printed: their result is new.
_PLAIN = frozenset("abs ascii float format int len list max min repr round sorted str sum".split())
_READS = frozenset("item numpy tolist __format__ __repr__ __str__".split())
_LEVELS = frozenset("critical debug error exception info log warn warning".split())
_EXPRESSIONS = (
    ast.BinOp, ast.UnaryOp, ast.Compare, ast.JoinedStr, ast.FormattedValue, ast.Tuple, ast.List,
    ast.Dict, ast.Starred, ast.keyword, ast.IfExp, ast.Subscript, ast.Slice, ast.GeneratorExp,
    ast.ListComp,
    # Until Python 3.12 the text between the values of an f-string has the place of the whole.
    ast.Constant,
)  # fmt: skip


def shown_at() -> str | None:
    """Return the "file:line" that shows what the caller's caller reads, None if none does.

    Notes
    -----
    Call it from a method of the tensor that is read: frames of this package are skipped.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_ours(frame.f_code.co_filename):
        if frame.f_code.co_filename.startswith("<"):
            break
        frame = frame.f_back
    if frame is None:
        return None
    reader = frame
    # What is typed at a debugger's prompt has no file; the debugger is the next frame.
    while frame is not None and frame.f_code.co_filename in ("<stdin>", "<string>"):
        frame = frame.f_back
    if frame is not None and _is_viewer(frame.f_code.co_filename):
        return user_location()
    if frame is not reader or not is_users(reader.f_code.co_filename):
        return None
    path = _path(reader.f_code, reader.f_lasti)
    if not _only_shows(path) or not _is_a_printer(path[-2], reader):
        return None
    if any(_value(name, reader) is not getattr(builtins, name.id) for name in _plain_names(path)):
        return None
    return f"{reader.f_code.co_filename}:{reader.f_lineno}"


@functools.lru_cache(256)
def _is_viewer(filename: str) -> bool:
    return filename.startswith(_VIEWERS) or any(part in filename for part in _VIEWER_PARTS)


# ----------------------------------------------------------------------------------- the statement


@functools.lru_cache(1024)
def _path(code: CodeType, instruction: int) -> tuple[ast.AST, ...]:
    """The nodes from the one that reads to its statement; empty if they cannot be found."""
    places = next(itertools.islice(code.co_positions(), instruction // 2, None), None)
    if places is None or None in places:
        return ()
    return _parents(code.co_filename).get(places, ())


@functools.lru_cache(16)
def _parents(filename: str) -> dict[tuple[int | None, ...], tuple[ast.AST, ...]]:
    """For each expression of a file, by its place, the nodes from it up to its statement."""
    try:
        tree = ast.parse("".join(linecache.getlines(filename)))
    except (SyntaxError, ValueError):
        return {}
    found: dict[tuple[int | None, ...], tuple[ast.AST, ...]] = {}
    stack: list[tuple[ast.AST, tuple[ast.AST, ...]]] = [(tree, ())]
    while stack:
        node, above = stack.pop()
        path = (node, *above) if isinstance(node, (ast.expr, ast.keyword, ast.Expr)) else ()
        if isinstance(node, ast.expr):
            place = (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset)
            # Of nodes in one place the innermost is met last: it has the longest path.
            if len(path) >= len(found.get(place, ())):
                found[place] = path
        inner = above if isinstance(node, ast.comprehension) else path
        stack.extend((child, inner) for child in ast.iter_child_nodes(node))
    return found


def _only_shows(path: tuple[ast.AST, ...]) -> bool:
    """Whether all between the read of a value and the call of its statement is formatting."""
    if len(path) < 2 or not isinstance(path[-1], ast.Expr):
        return False
    inner, *between = path[:-2] or (None,)
    if inner is not None and not (_is_formatting(inner) or _is_read(inner)):
        return False
    return all(map(_is_formatting, between))


def _is_formatting(node: ast.AST) -> bool:
    """Whether an expression makes something new of its parts and keeps nothing."""
    if not isinstance(node, ast.Call):
        return isinstance(node, _EXPRESSIONS)
    fn = node.func
    if isinstance(fn, ast.Attribute) and isinstance(fn.value, ast.Constant):
        return isinstance(fn.value.value, str)  # "...".format(x), ", ".join(...)
    return isinstance(fn, ast.Name) and fn.id in _PLAIN


def _is_read(node: ast.AST) -> bool:
    """Whether a call is that of a tensor's own method that gives its elements to Python."""
    fn = getattr(node, "func", None)
    return isinstance(fn, ast.Attribute) and fn.attr in _READS


def _plain_names(path: tuple[ast.AST, ...]) -> list[ast.Name]:
    """The names of builtins that calls on the way rely on."""
    calls = (node.func for node in path[:-2] if isinstance(node, ast.Call))
    return [fn for fn in calls if isinstance(fn, ast.Name)]


# ------------------------------------------------------------------------------------ what it calls


def _is_a_printer(call: ast.AST, frame: FrameType) -> bool:
    """Whether a node is the call of what shows its arguments and keeps nothing of them."""
    if not isinstance(call, ast.Call):
        return False
    if any(keyword.arg == "file" and not _is_terminal(keyword.value, frame)
           for keyword in call.keywords):  # fmt: skip
        return False
    fn = call.func
    if isinstance(fn, ast.Name):
        found = _value(fn, frame)
        return found is builtins.print or _of(found, "rich") or found in _FUNCTIONS
    if not isinstance(fn, ast.Attribute):
        return False
    if fn.attr == "write":
        return _is_terminal(fn.value, frame)
    owner = _value(fn.value, frame)
    if fn.attr in _LEVELS and isinstance(owner, (logging.Logger, logging.LoggerAdapter)):
        return True
    return (owner is logging and fn.attr in _LEVELS) or (owner is warnings and fn.attr == "warn")


_FUNCTIONS = (warnings.warn, logging.debug, logging.info, logging.warning, logging.error)


def _is_terminal(node: ast.AST, frame: FrameType) -> bool:
    """Whether an expression is ``sys.stdout`` or ``sys.stderr``."""
    return (
        isinstance(node, ast.Attribute)
        and node.attr in ("stdout", "stderr")
        and _value(node.value, frame) is sys
    )


def _of(fn: object, package: str) -> bool:
    return str(getattr(fn, "__module__", "")).partition(".")[0] == package


def _value(node: ast.AST, frame: FrameType) -> object:
    """What a name, or an attribute of one, is in a frame; None if it is neither."""
    if isinstance(node, ast.Name):
        for names in (frame.f_locals, frame.f_globals, frame.f_builtins):
            if node.id in names:
                return names[node.id]
        return None
    if isinstance(node, ast.Attribute):
        owner = _value(node.value, frame)
        return getattr(owner, "__dict__", {}).get(node.attr) if owner is not None else None
    return None
