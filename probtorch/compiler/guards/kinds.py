"""Of which kind a Python object is: constant, without influence, pure, or of the user's making.

Tables of exact types and of modules. What is in none of them is entered if all its state can be
seen from Python (`all_in_the_open`), and otherwise a reason to stay eager.
"""

import array
import builtins
import collections
import functools
import io
import linecache
import logging
import sys
import types
import typing
from collections.abc import Iterator

import numpy as np

from probtorch.compiler.guards.bystanders import SHOWING
from probtorch.core.op import Op
from probtorch.core.sameness import CLOCKS, is_value
from probtorch.source_files import owner

__all__ = [
    "IMPURE_NAMES",
    "all_in_the_open",
    "goes_on",
    "impure",
    "in_library",
    "is_constant",
    "is_harmless",
    "is_library_file",
    "is_of_library",
    "may_answer_otherwise",
    "module_of",
    "module_part",
    "names_of_slots",
]

# Code and descriptors: they hold nothing that a program changes.
_CONSTANT = (
    type(vars(collections.namedtuple("Pair", "first"))["first"]),
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.UnionType,
    typing.TypeVar,
    typing.ForwardRef,
    np.finfo,
    np.iinfo,
    Op,
)
# Types of compiled extensions that are functions by another name.
_FUNCTIONS = {
    "cython_function_or_method",
    "fused_cython_function",
    "fortran",
    "_ArrayFunctionDispatcher",
    "_multi_dispatch",
}
# Immutable by contract, although their types are written in C.
_IMMUTABLE = {
    ("pyarrow.lib", None),
    ("zoneinfo", None),
    ("pandas._libs.tslibs.timestamps", None),
    ("pandas._libs.tslibs.timedeltas", None),
    ("pandas._libs.tslibs.period", None),
    ("pandas._libs.tslibs.offsets", None),
    ("pandas._libs.tslibs.nattype", None),
    ("pandas._libs.missing", None),
    ("pandas._libs.properties", None),
    ("pandas._libs.interval", None),
    ("pandas", "Timestamp"),  # where the types of pandas 3 say that they are from
    ("pandas", "Timedelta"),
    ("pandas", "Period"),
    ("pandas", "Interval"),
    ("pandas.api.typing", "NaTType"),
    ("pandas.api.typing", "NAType"),
    ("typing", None),
    ("re", "Pattern"),
    ("re", "Match"),
    ("numpy", "dtype"),
    ("_abc", "_abc_data"),
    ("uarray", "_Function"),
}
# Nothing in them reaches a number that a model computes.
_HARMLESS = {
    "_thread": {"lock", "RLock", "_RLock", "_ThreadHandle"},
    "logging": None,
    "tqdm": None,
    "rich": None,
    "matplotlib": None,
    "warnings": None,
    # What runs tests holds them all, and their results.
    "_pytest": None,
    "pluggy": None,
}

# What all streams are derived from; `io.IOBase` itself is an abstract class, which is slow to ask.
_STREAM = io.IOBase.__mro__[1]

# Libraries of bystanders whose methods show things, see bystanders.py.
_SHOWS = {"tqdm", "rich"}

# Calls from the user's code into these give the same for the same arguments, or change nothing
# that is not watched. Longest names first: what is not pure within them follows below.
_PURE = {
    "builtins", "math", "cmath", "operator", "_operator", "itertools", "functools", "_functools",
    "collections", "_collections", "_collections_abc", "typing", "types", "abc", "_abc", "enum",
    "dataclasses", "copy", "copyreg", "contextlib", "contextvars", "_contextvars", "warnings",
    "_warnings", "string", "_string", "re", "_sre", "textwrap", "numbers", "fractions", "decimal",
    "_decimal", "statistics", "_statistics", "bisect", "_bisect", "heapq", "_heapq", "array",
    "struct", "_struct", "json", "_json", "inspect", "weakref", "_weakref", "_weakrefset",
    "logging", "traceback", "sys.intern",
    "sys.getdefaultencoding", "sys.exit", "datetime", "_datetime", "calendar", "zoneinfo", "numpy",
    "scipy", "pandas", "xarray", "probtorch", "opt_einsum", "einops", "keyword",
    "reprlib", "pprint", "argparse", "ast", "dis", "importlib", "_frozen_importlib", "unittest",
    "pytest", "_pytest", "_thread", "graphlib", "colorsys", "difflib", "unicodedata", "genericpath",
    "posixpath", "os._Environ", "uuid.UUID", "codecs.BufferedIncrementalDecoder",
    "pathlib.PurePath", "pathlib._local.PurePath", "pathlib._abc.PurePathBase",
    "pathlib.Path.__new__", "pathlib.Path.__init__", "pathlib._local.Path.__new__",
    "pathlib._local.Path.__init__",
    # Debuggers: people look, and what they change by hand is met by the checks of replays.
    "pdb", "bdb", "cmd", "ipdb", "pudb", "debugpy", "pydevd", "IPython",
}  # fmt: skip
_IMPURE = {
    "builtins.open", "builtins.input", "numpy.random", "numpy.load",
    "numpy.loadtxt", "numpy.genfromtxt", "numpy.fromfile", "numpy.memmap", "numpy.seterr",
    "numpy.save", "numpy.savez", "numpy.savetxt", "numpy.lib._npyio_impl", "numpy.lib.npyio",
    "numpy.geterr", "numpy.geterrcall", "numpy.getbufsize", "numpy.get_printoptions",
    "pandas.get_option", "pandas.Timestamp.now", "pandas.Timestamp.today",
    "posixpath.abspath", "posixpath.realpath", "posixpath.relpath", "posixpath.expanduser",
    "posixpath.expandvars", "posixpath.islink", "posixpath.lexists", "posixpath.ismount",
    "_thread.lock.locked",
    "scipy.io", "pandas.io", "xarray.backends", "json.load", "logging.config", "random",
    "datetime.datetime.now", "datetime.datetime.today", "datetime.datetime.utcnow",
    "datetime.date.today", "decimal.getcontext", "decimal.setcontext", "decimal.localcontext",
    "numpy.set_printoptions", "genericpath.exists", "genericpath.isfile", "genericpath.getsize",
    "genericpath.getmtime", "genericpath.isdir", "probtorch.serialization",
    "traceback.format_exc", "weakref.getweakrefcount", "weakref.getweakrefs",
    "_weakref.getweakrefcount", "_weakref.getweakrefs",
    # The frames of callers, whose variables nobody watches.
    "sys._getframe", "inspect.currentframe", "inspect.stack", "inspect.trace",
    "traceback.extract_stack", "traceback.format_stack", "traceback.walk_stack",
    "builtins.id",
    "_decimal.getcontext", "pandas._libs.tslibs.timestamps.Timestamp.now",
    "pandas._libs.tslibs.timestamps.Timestamp.today",
}  # fmt: skip


# What those of them are called that are functions of a module which is else pure.
IMPURE_NAMES = frozenset(name.rpartition(".")[2] for name in _IMPURE)


@functools.cache
def is_library_file(file):
    """Whether a file is part of Python's library, an installed package or probtorch.

    A function made by code in it may bear the name of a user's module: wrappers and ops do.
    """
    return not file.startswith("<") and owner(file) != "user"


@functools.cache
def in_library(name):
    """Whether a module of this name is part of Python, an installed package or probtorch."""
    if name is None or name == "builtins":
        return True
    if name == "__main__":
        return False
    module = sys.modules.get(name)
    # Not by getattr: a module may have a `__getattr__` of the user's.
    file = getattr(module, "__dict__", {}).get("__file__")
    if type(file) is not str:
        # Modules written in C, or code that was compiled from a string: the latter is the user's.
        return name in sys.builtin_module_names
    return is_library_file(file)


def module_part(name):
    """What of the dotted name of a function or class is the name of its module."""
    while name not in sys.modules and "." in name:
        name = name.rpartition(".")[0]
    return name


@functools.cache
def impure(name):
    """Whether what has this dotted name may answer otherwise the next time, or change things."""
    parts = name.split(".")
    if parts[0] in _SHOWS and parts[-1] in SHOWING:
        return False
    for k in range(len(parts), 0, -1):
        prefix = ".".join(parts[:k])
        if prefix in _IMPURE:
            return True
        if prefix in _PURE:
            return _public(parts) in _IMPURE
    return True


def may_answer_otherwise(x):
    """Whether `x` is a function of a module written in C that is not pure."""
    if type(x) is not types.BuiltinFunctionType:
        return False
    owner = x.__self__
    return (owner is None or isinstance(owner, types.ModuleType)) and impure(
        f"{x.__module__ or getattr(owner, '__name__', '')}.{x.__name__}"
    )


def _public(parts):
    """What a function deep in a package is called where people find it: ``numpy.geterr``."""
    return f"{parts[0]}.{parts[-1]}"


def module_of(kind):
    """The name of the module that a type says it is from."""
    name = kind.__module__
    if name == "builtins" and "__module__" in vars(kind):
        # Code that was run in a dict without a name says so of its classes.
        return name if vars(builtins).get(kind.__name__) is kind else ""
    return name if type(name) is str else ""


def is_of_library(code, name):
    """Whether code is a library's, in a module of this name; None if it was run in a dict that has
    none.
    """
    return is_library_file(code.co_filename) if name is None else in_library(name)


def is_constant(x):
    """Whether nothing that a program may do changes what `x` is."""
    kind = type(x)
    if is_value(x) or isinstance(x, _CONSTANT) or kind.__name__ in _FUNCTIONS:
        return True
    if isinstance(x, np.ufunc):
        # One that knows nothing but objects may call a function of Python's: `np.frompyfunc`.
        return any("O" not in signature for signature in x.types)
    if kind in CLOCKS:
        return is_constant(x.tzinfo)
    if hasattr(kind, "n_sequence_fields"):  # named tuples of Python's own
        return True
    module = module_of(kind)
    return (module, None) in _IMMUTABLE or (module, kind.__name__) in _IMMUTABLE


def is_harmless(x):
    """Whether `x` only serves to lock, to log or to show: a bystander, see bystanders.py."""
    kind = type(x)
    if isinstance(x, logging.Logger):  # code may ask for its level
        return False
    names = _HARMLESS.get(module_of(kind).partition(".")[0], ())
    if names is None or kind.__name__ in names:
        return True
    if x is sys.stdout or x is sys.stderr or x is sys.__stdout__ or x is sys.__stderr__:
        return True
    # Lines of sources, for tracebacks: as many as were shown.
    if x is linecache.cache:
        return True
    if issubclass(kind, _STREAM):
        return not x.closed and not x.readable()
    # Of notebooks and of pytest: streams to write to.
    return hasattr(kind, "write") and not hasattr(kind, "read") and in_library(module_of(kind))


def goes_on(kind):
    """Whether the instances of a type are iterators."""
    # Abstract classes take some microseconds to answer, and all that a walk meets is asked.
    return hasattr(kind, "__next__") and issubclass(kind, Iterator)


@functools.cache
def names_of_slots(kind):
    """Names of the attributes that the classes of a type keep in slots."""
    return tuple(
        name
        for cls in kind.__mro__
        for name, slot in cls.__dict__.items()
        if isinstance(slot, types.MemberDescriptorType) and not _is_builtin(cls)
    )


@functools.cache
def all_in_the_open(kind):
    """Whether Python sees all that an instance holds: attributes in a dict or in slots.

    Types of compiled extensions have memory besides; so have classes that derive from them, but for
    the containers, of which the items are looked at.
    """
    for cls in kind.__mro__:
        if cls in _CONTAINERS or issubclass(cls, BaseException):
            continue
        if not _is_builtin(cls):
            # A class statement adds a dict, weak references and slots, nothing else.
            own = cls.__dict__
            if "__dict__" in own or "__slots__" in own or "__weakref__" in own:
                continue
            base = cls.__base__
            if base is not None and cls.__basicsize__ == base.__basicsize__:
                continue
        return False
    return True


# Their items are looked at one by one, or they hold nothing that changes.
_CONTAINERS = {
    object, dict, list, tuple, set, frozenset, bytearray, array.array, collections.deque,
    collections.OrderedDict, collections.defaultdict, typing.Generic, int, float, complex, str,
    bytes, types.SimpleNamespace, types.ModuleType, property,
}  # fmt: skip
_HEAP_TYPE = 1 << 9


def _is_builtin(cls):
    """Whether a type is written in C."""
    if not cls.__flags__ & _HEAP_TYPE:
        return True
    # Types of extensions may be heap types too; a class statement leaves its qualified name and a
    # dict of Python functions behind, and nothing that only C can make.
    return any(
        isinstance(x, (types.GetSetDescriptorType, types.MethodDescriptorType))
        and x.__objclass__ is cls
        and name not in ("__dict__", "__weakref__")
        for name, x in cls.__dict__.items()
    )
