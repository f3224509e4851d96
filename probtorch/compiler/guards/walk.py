"""How `Environment` gets from an object to all that it consists of, one kind of object at a time.

Of each object `Walk` notes what would tell that it has changed, and finds what it refers to. A kind
of object that is to be entered, watched or refused is told here, with its parts in entering.py.
"""

import abc
import array
import builtins
import collections
import contextvars
import copy
import copyreg
import decimal
import functools
import gc
import linecache
import operator
import sys
import types
import warnings
import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from probtorch.compiler.guards.by_name import ByName
from probtorch.compiler.guards.caches import is_cache, looked_up, tensors_kept
from probtorch.compiler.guards.code import (
    asks_locks,
    asks_who,
    computes_names,
    formats,
    global_names,
    handed_on,
    imports,
    looks_anywhere,
    matches_by_kind,
    names,
)
from probtorch.compiler.guards.ends import HOLD_WEAKLY, looked_for, referents, runs_when_dropped
from probtorch.compiler.guards.entering import called_with, parts_of
from probtorch.compiler.guards.kinds import (
    IMPURE_NAMES,
    all_in_the_open,
    goes_on,
    in_library,
    is_constant,
    is_harmless,
    is_library_file,
    is_of_library,
    may_answer_otherwise,
    module_of,
    names_of_slots,
)
from probtorch.compiler.guards.reading import (
    GENERATORS,
    OF_MODULES,
    Way,
    abc_token,
    attribute,
    contents,
    decimal_context,
    has_dict,
    is_filled,
    key_label,
    numpy_errors,
    own_names,
    pandas_options,
    print_options,
    slot,
    stands_for_another,
    teller,
    to_enter,
    variable,
    warning_filters,
)
from probtorch.compiler.guards.watches import raw
from probtorch.core.rng import Generator
from probtorch.core.sameness import PLAIN, is_value
from probtorch.core.tensor_base import TensorBase

__all__ = ["Entries", "Known", "Walk"]

# What lies deeper within objects of other libraries is for their functions alone.
MAX_DEPTH = 4

# Modules whose types only hold what others put there.
_HOLDERS = {"builtins", "types", "functools", "operator", "collections", "argparse", "itertools"}


class Entries(NamedTuple):
    """A root: what is found under some keys of a dict, by identity; the walk does not enter it.

    Attributes
    ----------
    items : dict
    keys : tuple
    busy : bool
        Whether other entries of the dict change all the time.
    """

    items: dict[str, object]
    keys: Iterable[str]
    busy: bool = False


# What Python may ask of a tensor, or of a frame, that no recording can answer for another one.
_OF_NO_RECORDING = {
    "grad_fn": "the place of a tensor on the tape",
    "data_ptr": "where the elements of a tensor lie",
    "f_back": "the frame of a caller",
    "_version": "how often a tensor was changed",
}


class Known(NamedTuple):
    """A root: objects that the walk does not enter, since other roots say what of them counts."""

    objects: tuple[object, ...]


class Walk(ByName):
    """What was met so far, and what is watched of it.

    Attributes
    ----------
    asks_who : bool
        Whether code was met that may ask which object another one is.
    asks_id : bool
        Whether code was met that may ask for the number that Python has for it (`id`).
    asks_hash : bool
        Whether code was met that may ask for the `hash` of anything.
    asks_type : bool
        Whether code of the user's was met that may ask for the type of anything (`type`).
    holds_back : bool
        Whether something was met whose end, as soon as nobody holds it, runs code of the user's.
    takes_leaves : bool
        Whether code was met that may make something of leaves of the tape alone: an optimizer.
    """

    def __init__(self):
        super().__init__()
        self.asks_who, self.asks_id, self.asks_type = False, False, False
        self.asks_hash = False
        self.takes_leaves = False
        self.holds_back = False
        self._weakly = []  # weak references, with the ways to them
        # (function that tells the state of a random generator, state, what to call it)
        self._generators = [(f, f(), name) for name, f in OF_MODULES.items()]
        self._owners = set()  # of dicts of which a replay reads something anew

    def _visit(self, x, path, todo):
        # Half of all that is met, of which nothing else is asked. Lines of sources are a bystander.
        kind = type(x)
        if id(kind) in _BOXES and x is not linecache.cache:
            if not ((kind is tuple or kind is frozenset) and is_value(x)):
                self._container(x, path, todo)
            return
        if stands_for_another(x):
            self._refuse(x, path)
            return
        if isinstance(x, (TensorBase, Generator)):
            if weakref.getweakrefcount(x) and runs_when_dropped(x):
                self._let_go(x, path)
            if not in_library(module_of(type(x))):
                self._of_users_class(x, path, todo)
            return
        if is_harmless(x):
            self._bystanders.append((x, path))
            self._suspect(module_of(type(x)))
            return
        if id(x) in _WARNING:
            filters = warning_filters(warnings, "")
            self._places.add(warning_filters, warnings, "the filters of warnings", filters)
        if x is copy.copy or x is copy.deepcopy:
            todo.append((copyreg.dispatch_table, Way(None, "copyreg.dispatch_table")))
        if isinstance(x, types.FunctionType):
            self._function(x, path, todo)
        elif isinstance(x, types.MethodType):
            todo += ((x.__self__, path), (x.__func__, path))
        elif isinstance(x, types.BuiltinFunctionType):
            self._builtin(x, path, todo)
        elif isinstance(x, np.ndarray):
            self._array(x, path, todo)
        elif isinstance(x, Entries):
            for key in x.keys:
                watch = self._places if x.busy else self._dicts
                watch.add(dict.get, x.items, key, x.items[key])
        elif isinstance(x, Known):
            pass
        elif type(x) is types.GeneratorType and not self._late:
            for name in ("__name__", "__qualname__"):
                self._places.add(getattr, x, name, getattr(x, name))
            if runs_when_dropped(x):
                self._let_go(x, path)
            if x.gi_frame is not None:  # one at its end stays there
                self.suspicious = True  # who goes on with it is heard
                self.going[id(x.gi_frame)] = x.gi_frame, x
        elif isinstance(x, _GO_ON):
            self._refuse(x, path)
        elif isinstance(x, GENERATORS):
            self._generator(x, path)
        elif isinstance(x, type):
            self._class(x, path, todo)
        elif isinstance(x, types.ModuleType):
            self._modules[id(x)] = x, path
            self._suspect(x.__name__)
            if x.__name__ == "pandas":
                todo.append((pandas_options(), Way(None, "pandas.options")))
            if type(x) is not types.ModuleType:
                todo.append((type(x), path))
        elif is_constant(x):
            if type(x) is decimal.Decimal:
                todo.append((decimal.Decimal, path))
            elif module_of(type(x)) == "typing":  # `typing.Sequence` may be asked in its place
                self._watch_abstract()
            self._suspect(getattr(x, "__module__", None))
        elif isinstance(x, contextvars.ContextVar):
            value = x.get(None)
            self._places.add(variable, x, "a context variable", value)
            todo.append((value, path))
        else:
            self._other(x, path, todo)

    def _of_users_class(self, x, path, todo):
        """Note what a user's class adds to a tensor or a generator: attributes and methods."""
        if has_dict(x):
            todo += ((value, Way(path, f".{name}")) for name, value in self._dict_of(x))
        self._places.add(attribute, x, "__class__", type(x))
        todo += self._classes_of(type(x).__mro__, path)

    def _other(self, x, path, todo):
        kind: Any = type(x)
        if hasattr(kind, "__followed__"):
            self._owners.add(id(x))
            for table, names in x.__followed__():
                self._follow(table, names)
            for name in getattr(kind, "__repeats__", ()):
                found = (c.__dict__.get(name) for c in kind.__mro__)
                self._seen.update((id(fn), fn) for fn in found if fn is not None)
        if is_cache(x):
            self._cache(x, path, todo)
            return
        if isinstance(x, HOLD_WEAKLY) and not path.inside:
            self._weakly += [(y, path) for y in referents(x)]
        parts = parts_of(x)
        if parts is not None:
            found = self._parts.add(x, parts)
            todo += ((y, path) for y in found)
            todo += self._classes_of(kind.__mro__, path)
            if module_of(kind).partition(".")[0] == "pandas":
                todo.append((pandas_options(), Way(None, "pandas.options")))
            return
        if isinstance(x, weakref.finalize):
            self._refuse(x, path)
            return
        self._container(x, path, todo)
        library = in_library(module_of(kind))
        if library:
            self._suspect(module_of(kind))
        if isinstance(x, BaseException):
            self._object(x, path, todo)
        elif module_of(kind) in _HOLDERS or isinstance(x, types.GenericAlias):
            self._holder(x, path, todo)
        elif not library or all_in_the_open(kind):
            if isinstance(x, property):
                # Of a class derived from it; which functions it has does not change.
                todo += ((f, path) for f in (x.fget, x.fset, x.fdel) if f is not None)
            self._object(x, path, todo)
            if not all_in_the_open(kind):
                self._refuse(x, path)
        elif kind not in _WATCHED_CONTAINERS:
            self._refuse(x, path)

    def _cache(self, x, path, todo):
        found = self._caches.add(x)
        if found is None:
            self._refuse(x, path)
            return
        self._ways_to_caches.append(path)
        self.asks_who = True  # what it has kept is found by who the arguments are
        self._seen.update((id(t), t) for t in tensors_kept(x))
        todo += to_enter(found, path)
        todo += self._classes_of(type(x).__mro__, path)

    def _refuse(self, x, path):
        if path.inside:
            self.suspicious = True  # it is for that library's functions, whose calls can be heard
        elif self.opaque is None:
            kind = type(x)
            name = kind.__qualname__
            if module_of(kind) not in ("builtins", "__main__"):
                name = f"{module_of(kind)}.{name}"
            self.opaque = f"{path}, a {name}, whose state cannot be watched"

    def _let_go(self, x, path):
        """Refuse what is not to be kept: code of the user's runs when nobody holds it any more."""
        self.holds_back = True
        if self.opaque is None:
            self.opaque = (
                f"{path}, a {type(x).__qualname__}, whose end code may run on, or look for"
            )

    def _let_referents_go(self):
        """Refuse what is held here and referred to weakly as well."""
        for x, path in looked_for(self._weakly, self._seen):
            self._let_go(x, path)

    def _builtin(self, x, path, todo):
        if x is id:
            self.asks_who = self.asks_id = True
        self.asks_hash = self.asks_hash or x is hash
        owner = x.__self__
        if owner is None or isinstance(owner, types.ModuleType):
            self._suspect(f"{x.__module__ or getattr(owner, '__name__', '')}.{x.__name__}")
            if x in _OF_THE_COLLECTOR and self.opaque is None:
                self.opaque = f"{path}, which is another while a call is recorded"
        else:
            self._suspect(f"{type(owner).__module__}.{x.__name__}")
            todo.append((owner, path))

    def _array(self, x, path, todo):
        if x.dtype == object and x.flags.c_contiguous:
            found = self._items.add(x.reshape(-1))
            todo += to_enter(found, path)
        elif x.dtype.hasobject:
            self._refuse(x, path)
        else:
            self._arrays.add(x)
        if type(x) is not np.ndarray and has_dict(x):
            self._object(x, path, todo)

    def _generator(self, x, path):
        try:
            state = teller(x)
            self._generators.append((state, state(), str(path)))
        except NotImplementedError:  # the system's, which has none: its draws are calls
            self.suspicious = True

    def _container(self, x, path, todo):
        if isinstance(x, dict):
            self._whole(x, path, todo)
        elif isinstance(x, (tuple, frozenset)):
            todo += to_enter(raw(type(x))[0](x), path)
        elif id(x) in self._followed and isinstance(x, list):
            todo += to_enter(self._other_items(x), path)
        elif isinstance(x, (list, set, collections.deque, bytearray, array.array)):
            found = self._items.add(x, path)
            if not isinstance(x, (bytearray, array.array)):
                todo += to_enter(found, path)

    def _whole(self, d, path, todo):
        """Note all keys and values of a dict, or of the read-only view that stands for one."""
        if not isinstance(d, dict):
            self._items.add(d, path)
            self._entries(d, list(d), path, todo)
            return
        if id(d) in self._followed:
            todo += ((y, Way(path, key_label(key))) for key, y in self._others_of(d))
            return
        # An OrderedDict keeps its order beside the dict.
        ordered = issubclass(type(d), collections.OrderedDict)
        (self._items if ordered else self._keys).add(d, path)
        self._values.add(d)
        module = dict.__contains__(d, "__spec__") and dict.__contains__(d, "__name__")
        for key, value in list(dict.items(d)):
            if module and type(key) is str and key.startswith("__"):
                continue  # how it was imported
            if type(key) not in PLAIN:
                todo.append((key, Way(path, ".keys()")))
                self.asks_who = self.asks_who or isinstance(key, TensorBase)
            if type(value) not in PLAIN:
                todo.append((value, Way(path, key_label(key))))

    def _holder(self, x, path, todo):
        if goes_on(type(x)):
            self._refuse(x, path)
        elif isinstance(x, types.GenericAlias):
            # Its attributes, `__dict__` among them, are those of the class before the brackets.
            todo += ((x.__origin__, path), (x.__args__, path))
        elif isinstance(x, (operator.attrgetter, operator.methodcaller)):
            for text in x.__reduce__()[1]:
                if isinstance(text, str):
                    self._named.update(dict.fromkeys(text.split(".")))
        elif has_dict(x) and not isinstance(x, _REFERRING):
            todo += ((value, Way(path, f".{name}")) for name, value in self._dict_of(x))
        elif not isinstance(x, _WATCHED):
            inside = gc.get_referents(x)
            if any(map(may_answer_otherwise, inside)):
                self._refuse(x, path)
            if isinstance(x, functools.partial):
                self._parts.add(x, called_with)  # which `__setstate__` sets
            todo += ((y, path) for y in inside)

    def _dict_of(self, x):
        """Note all attributes in the dict of an object; returns those to visit, with names."""
        own = attribute(x, "__dict__")
        if id(own) in self._followed:
            return self._others_of(own)
        if isinstance(own, dict):
            self._keys.add(own)
            self._values.add(own)
        else:
            self._items.add(own)
        return list(dict.items(own) if isinstance(own, dict) else own.items())

    def _class(self, x, path, todo):
        if x is decimal.Decimal:
            self._places.add(
                decimal_context, decimal, "the context of decimal", decimal_context(decimal, "")
            )
        elif x is FloatingPointError:
            self._places.add(numpy_errors, np, "numpy.geterr()", numpy_errors(np, ""))
        elif x is special.SpecialFunctionError:
            found = numpy_errors(special, "")
            self._places.add(numpy_errors, special, "scipy.special.geterr()", found)
        if issubclass(type(x), abc.ABCMeta):
            self._watch_abstract()
        if in_library(module_of(x)):
            self._suspect(f"{x.__module__}.{x.__name__}")
            self.takes_leaves = self.takes_leaves or hasattr(x, "__takes_leaves__")
            todo += self._classes_of(x.__mro__, path)
            return
        self._items.add(x.__dict__)
        self._told_by_name.append((type.__getattribute__, x, path))
        self._places.add(getattr, x, "__bases__", x.__bases__)
        self._entries(x.__dict__, own_names(x), path, todo, x)
        todo += ((c, path) for c in (type(x), *x.__mro__[1:]))

    def _watch_abstract(self):
        """Note who counts as an instance of abstract classes: of a change only this tells."""
        if id(abc_token) not in self._seen:
            self._seen[id(abc_token)] = abc_token
            self._places.add(abc_token, abc, "classes registered with abc", abc_token(abc, ""))

    def _object(self, x, path, todo):
        module = module_of(type(x))
        # What goes on is moved by Python's `next`, which nobody hears.
        if in_library(module) and not goes_on(type(x)):
            foreign = module.partition(".")[0] != "probtorch"
            path = Way(path.before, path.label, max(1, path.inside + foreign))
            if path.inside > MAX_DEPTH:
                self.suspicious = True
                return
        if runs_when_dropped(x):
            self._let_go(x, path)
        # Past what a class of the user's may do where an attribute is not there.
        self._places.add(attribute, x, "__class__", type(x))
        if has_dict(x):
            self._places.add(attribute, x, "__dict__", attribute(x, "__dict__"))
            todo += ((value, Way(path, f".{name}")) for name, value in self._dict_of(x))
        if isinstance(x, BaseException):
            self._places.add(getattr, x, "args", x.args)
            todo.append((x.args, Way(path, ".args")))
        kind: Any = type(x)
        for name in names_of_slots(kind):
            value = slot(x, name)
            if self._is_followed(x, name):
                continue
            self._places.add(slot if value is None else attribute, x, name, value)
            todo.append((value, Way(path, f".{name}")))
        todo += self._classes_of(kind.__mro__, path)

    def _unheard(self, fn, path):
        """Name a function that code hands on to others, written in C, whose calls may answer
        otherwise each time: where others call it, nobody hears of that. None without one.
        """
        cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or ()))
        for name, attribute_of_it in handed_on(fn.__code__):
            x = contents(cells[name]) if name in cells else fn.__globals__.get(name)
            if attribute_of_it is not None:
                x = vars(x).get(attribute_of_it) if type(x) is types.ModuleType else None
            if may_answer_otherwise(x):
                return (
                    f"{path}, which hands {x.__module__}.{x.__name__} on, whose calls are not heard"
                )
        return None

    def _function(self, fn, path, todo):
        for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or ()):
            value = contents(cell)
            if self._is_followed(cell, "cell_contents"):
                continue
            get = getattr if is_filled(cell) else contents
            self._places.add(get, cell, "cell_contents", value)
            todo.append((value, Way(None, f"closure.{name}")))
        wrapped = getattr(fn, "__wrapped__", None)
        if wrapped is not None:
            todo.append((wrapped, path))
        if is_of_library(fn.__code__, fn.__module__):
            self._suspect(f"{fn.__module__}.{fn.__name__}")
            reads = fn.__dict__.get("__reads__")
            todo += ((x, path) for x in (reads() if callable(reads) else ()))
            return
        if matches_by_kind(fn.__code__):
            self._watch_abstract()
        found_before = looked_up(fn)
        if found_before is not None:
            self._watch_abstract()
            self._seen.setdefault(id(found_before), found_before)
        self._told_by_name.append((getattr, fn, path))
        for name in ("__code__", "__defaults__", "__kwdefaults__"):
            self._places.add(getattr, fn, name, getattr(fn, name))
        for name in ("__defaults__", "__kwdefaults__", "__dict__"):
            todo.append((getattr(fn, name), Way(path, f".{name}")))
        self.asks_who = self.asks_who or asks_who(fn.__code__)
        found = names(fn.__code__)
        ours = is_library_file(fn.__code__.co_filename)
        asked = [name for name in _OF_NO_RECORDING if name in found]
        if asked and self.opaque is None and not ours:
            way = str(path)
            # Not for code that is only there: all modules are met where names are computed.
            if not way.startswith(("sys.modules[", "globals()")):
                what = _OF_NO_RECORDING[asked[0]]
                self.opaque = f"{way}, which reads {asked[0]}, {what}"
        self._named.update(dict.fromkeys(found))
        self._anywhere = self._anywhere or looks_anywhere(fn.__code__)
        self._computed = self._computed or computes_names(fn.__code__)
        self._asks_locks = self._asks_locks or asks_locks(fn.__code__)
        if formats(fn.__code__) and id(np.get_printoptions) not in self._seen:
            self._seen[id(np.get_printoptions)] = np.get_printoptions
            self._places.add(print_options, np, "np.get_printoptions()", print_options(np, ""))
        if not IMPURE_NAMES.isdisjoint(found):
            self.suspicious = True
        known = fn.__globals__
        if self.opaque is None and not ours:
            self.opaque = self._unheard(fn, path)
        if self._anywhere:
            module = sys.modules.get(known.get("__name__"))
            if module is not None and module.__dict__ is known:
                self._modules.setdefault(id(module), (module, Way(None, "globals()")))
                self._seen.setdefault(id(module), module)
        read = global_names(fn.__code__)
        for name in [name for name in found if name in read]:
            if self._is_followed(known, name):
                continue
            if name in known or name in vars(builtins):
                # A global may come to hide what is built in.
                self._places.add(dict.get, known, name, known.get(name))
                todo.append((known.get(name), Way(None, name)))
            elif not (name in known or name in vars(builtins)):
                self._places.add(dict.get, known, name, None)  # which a function may try, or define
            if name not in known and name in vars(builtins):
                # In a method such as `__hash__` it is the object's own.
                own = fn.__name__.startswith("__") and fn.__name__.endswith("__")
                self.asks_who = self.asks_who or name == "id"
                self.asks_type = self.asks_type or name == "type"
                value = vars(builtins)[name]
                self._dicts.add(dict.get, vars(builtins), name, value)
                if not (own and value is id):
                    todo.append((value, Way(None, name)))
        for name in imports(fn.__code__, known.get("__package__")):
            module = sys.modules.get(name)
            self._places.add(dict.get, sys.modules, name, module)
            todo.append((module, Way(None, name)))


# What goes on like a generator, when somebody awaits it.
_GO_ON = types.CoroutineType, types.AsyncGeneratorType
_OF_THE_COLLECTOR = gc.get_threshold, gc.get_count
# What they do is for the filters to say.
_WARNING = {id(f): f for f in (warnings.warn, warnings.warn_explicit, warnings.catch_warnings)}
# By identity, as a metaclass of the user's may say how its classes compare.
_BOXES = {id(kind): kind for kind in (dict, list, tuple, set, frozenset)}
_WATCHED_CONTAINERS = {array.array, bytearray}
_WATCHED = (list, dict, tuple, set, frozenset, collections.deque)
# Their attributes are not in a dict, although they may have one.
_REFERRING = (functools.partial, property, staticmethod, classmethod)
