"""What code names, read out of its bytecode: globals, attributes, modules that it imports."""

import dis
import functools
import importlib.util
import sys
import types

__all__ = [
    "asks_locks",
    "asks_type",
    "asks_who",
    "computes_names",
    "formats",
    "global_names",
    "handed_on",
    "imports",
    "looks_anywhere",
    "matches_by_kind",
    "names",
]

# With these a function looks things up by names that its code does not show.
_BY_TEXT = {"getattr", "globals", "vars", "eval", "exec", "attrgetter", "__dict__", "import_module"}
_ANYWHERE = _BY_TEXT - {"getattr"}


def _codes(code):
    """A code object and those nested in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


@functools.lru_cache(64)
def _steps(code):
    """The instructions of a code object, which several questions in turn are about."""
    return tuple(dis.get_instructions(code))


def names(code):
    """Names that code may look up: as a global, as an attribute, or by a text (`getattr`)."""
    found = {}
    for c in _codes(code):
        found.update(dict.fromkeys(c.co_names))
        if _MATCH in c.co_code[::2]:  # `case Point(x=0)` has its attributes in a constant
            texts = (x for x in c.co_consts if type(x) is tuple)
            found.update((t, None) for x in texts for t in x if type(t) is str)
        if not _BY_TEXT.isdisjoint(c.co_names):
            for x in c.co_consts:
                if isinstance(x, str):
                    found.update((part, None) for part in x.split(".") if part.isidentifier())
    return list(found)


@functools.lru_cache(4096)
def global_names(code):
    """Names that code may look up as globals: those of `names` that are no attributes alone."""
    found = set()
    for c in _codes(code):
        by_text = not _BY_TEXT.isdisjoint(c.co_names)
        if by_text:
            found.update(names(c))
        else:
            found.update(s.argval for s in _steps(c) if s.opname in _OF_GLOBALS)
    return frozenset(found)


# LOAD_GLOBAL, STORE_NAME and their kin, not IMPORT_NAME and LOAD_CLASSDEREF.
_OF_GLOBALS = {name for name in dis.opmap if name.endswith(("_GLOBAL", "_GLOBALS", "_NAME"))} - {
    "IMPORT_NAME"
}


_MATCH = dis.opmap["MATCH_CLASS"]


@functools.lru_cache(4096)
def asks_locks(code):
    """Whether code may look at what `acquire` of a lock answers: not where that is thrown away."""
    return any("acquire" in c.co_names and _keeps_answer(c) for c in _codes(code))


def _keeps_answer(code):
    steps = [s for s in _steps(code) if s.opname not in ("CACHE", "NOP", "PRECALL")]
    for i, step in enumerate(steps):
        if step.argval != "acquire" or not step.opname.startswith("LOAD_"):
            continue
        end = next((k for k in range(i, len(steps)) if steps[k].opname.startswith("CALL")), None)
        if end is None or steps[end + 1].opname != "POP_TOP":
            return True
        if any(s.opname.startswith("STORE_") for s in steps[i + 1 : end]):
            return True  # the method has another name by then
    return False


# Functions and methods that make texts of what they are given.
_FORMATTING = {
    *("str", "repr", "ascii", "format", "format_map", "print", "pformat", "pprint", "pp"),
    *("array2string", "array_repr", "array_str", "to_string", "to_markdown", "to_html", "to_latex"),
    *("__str__", "__repr__", "__format__", "Template", "Formatter", "_repr_html_"),
}
_OF_TEXTS = {code for name, code in dis.opmap.items() if name.startswith("FORMAT_")}


@functools.lru_cache(4096)
def formats(code):
    """Whether code may make texts of objects, as options for that say."""
    return any(
        not _FORMATTING.isdisjoint(c.co_names)
        or not _OF_TEXTS.isdisjoint(c.co_code[::2])
        or any(s.opname == "BINARY_OP" and s.argrepr in ("%", "%=") for s in _steps(c))
        for c in _codes(code)
    )


def looks_anywhere(code):
    """Whether code may look up globals or attributes of modules by names that are computed."""
    return any(not _ANYWHERE.isdisjoint(c.co_names) for c in _codes(code))


def computes_names(code):
    """Whether code may ask an object for an attribute by a name that is computed (`getattr`)."""
    return any("getattr" in c.co_names and _computes(c) for c in _codes(code))


def _computes(code):
    steps = [s for s in _steps(code) if s.opname not in ("CACHE", "NOP", "PRECALL")]
    for i, step in enumerate(steps):
        if step.argval == "getattr" and step.opname.startswith("LOAD_"):
            calls = (k for k in range(i, len(steps)) if _calls_with_two_or_three(steps[k]))
            end = next(calls, None)
            # The name, or the name and what there is instead.
            given = steps[max(i, end - 2) : end] if end is not None else []
            if not any(s.opname == "LOAD_CONST" and isinstance(s.argval, str) for s in given):
                return True
    return False


def _calls_with_two_or_three(step):
    return step.opname in ("CALL", "CALL_FUNCTION") and step.arg in (2, 3)


@functools.lru_cache(4096)
def handed_on(code):
    """What code loads to do anything else with it than to call it: names of variables, each with
    that of an attribute, or with None where it is the variable itself.
    """
    found = {}
    for c in _codes(code):
        steps = [s for s in _steps(c) if s.opname not in _NO_STEPS]
        for i, step in enumerate(steps):
            if not step.opname.startswith(_OF_VARIABLES):
                continue
            end = i + (steps[i + 1].opname in ("LOAD_ATTR", "LOAD_METHOD"))
            # What is called comes with an empty place on the stack, for a `self`.
            loads = any("NULL" in s.argrepr for s in steps[i : end + 1])
            beside = steps[min(end + 1, len(steps) - 1) if _NULL_FOLLOWS else max(i - 1, 0)]
            pushed = beside.opname == "PUSH_NULL"
            if not (loads or pushed or steps[end].opname == "LOAD_METHOD"):
                found[step.argval, steps[end].argval if end > i else None] = None
    return tuple(found)


_NULL_FOLLOWS = sys.version_info >= (3, 13)  # ahead of what is called before
_NO_STEPS = "CACHE", "NOP", "EXTENDED_ARG", "PRECALL"
_OF_VARIABLES = "LOAD_GLOBAL", "LOAD_DEREF", "LOAD_NAME"


@functools.lru_cache(4096)
def asks_type(code):
    """Whether code asks for the type of anything but the object of a method: ``type(self)``, as
    the methods that dataclasses write do.
    """
    named = (c for c in _codes(code) if "type" in c.co_names)
    return not all(_of_self(c, i) for c in named for i in _places_of_type(c))


def _places_of_type(code):
    steps = _short(code)
    return [i for i, s in enumerate(steps) if s.argval == "type" and s.opname in _NAMED]


def _of_self(code, i):
    """Whether what is loaded at a step is called with ``self``, and nothing else."""
    steps = _short(code)[i + 1 : i + 3]
    if len(steps) < 2 or code.co_varnames[:1] != ("self",):
        return False
    given, call = steps
    own = given.opname.startswith("LOAD_FAST") and given.argval == "self"
    return own and call.opname.startswith("CALL") and call.arg == 1


def _short(code):
    return [s for s in _steps(code) if s.opname not in (*_NO_STEPS, "PUSH_NULL")]


_NAMED = "LOAD_GLOBAL", "LOAD_NAME"


# Functions and methods that look for one and the same object.
_SAME = {
    *("is_", "is_not", "index", "remove", "count"),
    *("deepcopy", "buffers", "named_buffers"),  # what stands in two places counts once
}
_NO_OBJECT = (None, True, False, Ellipsis)


def asks_who(code):
    """Whether code may ask which of several objects one is: by ``is``, ``in`` and their kin."""
    return any(not _SAME.isdisjoint(c.co_names) or _compares(c) for c in _codes(code))


def _compares(code):
    if not {dis.opmap["IS_OP"], dis.opmap["CONTAINS_OP"]}.intersection(code.co_code[::2]):
        return False
    constant = False  # whether what comes before loads what there is only one of
    for step in _steps(code):
        if step.opname == "CONTAINS_OP" or (step.opname == "IS_OP" and not constant):
            return True
        constant = step.opname == "LOAD_CONST" and step.argval in _NO_OBJECT
    return False


def matches_by_kind(code):
    """Whether code asks if something counts as a sequence or a mapping (``case [a, b]``), without
    a name for that.
    """
    return any(not _KINDS.isdisjoint(c.co_code[::2]) for c in _codes(code))


_KINDS = {dis.opmap["MATCH_SEQUENCE"], dis.opmap["MATCH_MAPPING"]}


def imports(code, package):
    """Names of the modules that code imports when it runs."""
    found = {}
    for c in _codes(code):
        if dis.opmap["IMPORT_NAME"] not in c.co_code[::2]:
            continue
        steps = _steps(c)
        for i, step in enumerate(steps):
            if step.opname == "IMPORT_NAME":
                level, name = steps[i - 2].argval, step.argval
                if isinstance(level, int) and level and package:
                    name = importlib.util.resolve_name("." * level + name, package)
                found[name] = None
    return list(found)
