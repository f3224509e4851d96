"""What code names, read out of its bytecode: globals, attributes, modules that it imports."""

import dis
import importlib.util
import types

__all__ = ["imports", "looks_anywhere", "names"]

# With these a function looks things up by names that its code does not show.
_BY_TEXT = {"getattr", "globals", "vars", "eval", "exec", "attrgetter", "__dict__", "import_module"}
_ANYWHERE = _BY_TEXT - {"getattr"}


def _codes(code):
    """A code object and those nested in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def names(code):
    """Names that code may look up: as a global, as an attribute, or by a text (`getattr`)."""
    found = {}
    for c in _codes(code):
        found.update(dict.fromkeys(c.co_names))
        if not _BY_TEXT.isdisjoint(c.co_names):
            for x in c.co_consts:
                if isinstance(x, str):
                    found.update((part, None) for part in x.split(".") if part.isidentifier())
    return list(found)


def looks_anywhere(code):
    """Whether code may look up globals or attributes of modules by names that are computed."""
    return any(not _ANYWHERE.isdisjoint(c.co_names) for c in _codes(code))


def imports(code, package):
    """Names of the modules that code imports when it runs."""
    found = {}
    for c in _codes(code):
        if dis.opmap["IMPORT_NAME"] not in c.co_code[::2]:
            continue
        steps = list(dis.get_instructions(c))
        for i, step in enumerate(steps):
            if step.opname == "IMPORT_NAME":
                level, name = steps[i - 2].argval, step.argval
                if isinstance(level, int) and level and package:
                    name = importlib.util.resolve_name("." * level + name, package)
                found[name] = None
    return list(found)
