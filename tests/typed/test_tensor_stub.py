"""What checkers are told of `Tensor` is what is there: tensor.pyi beside tensor.py."""

import ast
import inspect
from importlib import import_module
from pathlib import Path

import pytest

from probtorch.core.tensor_base import TensorBase
from probtorch.tensor import Tensor

MODULE = import_module("probtorch.tensor")
STUB = ast.parse(Path(MODULE.__file__).with_suffix(".pyi").read_text())
CLASS = next(n for n in STUB.body if isinstance(n, ast.ClassDef) and n.name == "Tensor")

# What the class body says to Python and to other libraries, not to users.
UNTOLD = {
    "__module__",
    "__doc__",
    "__annotations__",  # made by Python when something in the process asks for them
    "__array_struct__",
    "__array_interface__",
    "__cuda_array_interface__",
    "_data",
    "unconstrained",
    "__array_ufunc__",
    "__array_function__",
    "__firstlineno__",  # of every class, from Python 3.13 on
    "__static_attributes__",
}
SLOTS = set(TensorBase.__slots__) - {"__weakref__"}


def told(body):
    """Dict from name to the declarations of it: several if overloaded."""
    found = {}
    for node in body:
        if isinstance(node, ast.FunctionDef):
            found.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.AnnAssign):
            found[node.target.id] = [node]
    return found


METHODS = told(CLASS.body)
FUNCTIONS = told(STUB.body)


def declared(node):
    """Parameters of a declaration: dict from name to (kind, whether it has a default)."""
    a, kinds = node.args, inspect.Parameter
    places = [*a.posonlyargs, *a.args]
    optional = len(places) - len(a.defaults)
    found = {x.arg: (kinds.POSITIONAL_OR_KEYWORD, i >= optional) for i, x in enumerate(places)}
    if a.vararg:
        found[a.vararg.arg] = (kinds.VAR_POSITIONAL, False)
    for x, default in zip(a.kwonlyargs, a.kw_defaults, strict=True):
        found[x.arg] = (kinds.KEYWORD_ONLY, default is not None)
    if a.kwarg:
        found[a.kwarg.arg] = (kinds.VAR_KEYWORD, False)
    return found


def there(fn):
    """The same of a function; the name of the first parameter of a method does not count."""
    return {
        p.name: (p.kind, p.default is not p.empty)
        for p in inspect.signature(fn).parameters.values()
    }


def behind(name):
    """The function whose arguments a method takes: in-place ones hand theirs on."""
    fn = getattr(Tensor, name)
    generic = list(inspect.signature(fn).parameters) == ["self", "args", "kwargs"]
    if generic and name.endswith("_") and not name.startswith("__"):
        return getattr(Tensor, name[:-1])
    return fn


def test_stub_has_the_names_of_the_class():
    # Tests of what users give to the class leave theirs, under names of their own.
    body = {name for name in vars(Tensor) if not name.endswith("_of_a_test")} - UNTOLD
    assert set(METHODS) == body | SLOTS


def test_stub_has_the_public_functions():
    assert set(MODULE.__all__) <= set(FUNCTIONS) | {"Tensor"}
    for name, nodes in FUNCTIONS.items():
        if isinstance(nodes[0], ast.FunctionDef):
            assert declared(nodes[0]) == there(getattr(MODULE, name)), name


@pytest.mark.parametrize(
    "name",
    sorted(
        n
        for n, nodes in METHODS.items()
        if isinstance(nodes[0], ast.FunctionDef)
        and not isinstance(inspect.getattr_static(Tensor, n), property)
        and n not in ("__new__", "__hash__")
    ),
)
def test_stub_has_the_arguments_of_the_method(name):
    actual = list(there(behind(name)).items())[1:]
    if name.startswith("__i") and len(METHODS[name][0].args.args) == 2:
        assert len(actual) >= 1  # ``x += y`` gives one operand
        return
    if name.startswith("__"):
        actual = [(n, p) for n, p in actual if n != "out"]  # operators have no place for it
    allowed = dict(actual)
    overloads = METHODS[name]
    for node in overloads:
        given = dict(list(declared(node).items())[1:])
        if len(overloads) == 1:
            assert given == allowed
        else:  # an overload may leave arguments out, or demand what it is told by
            kinds = {n: kind for n, (kind, _) in allowed.items()}
            assert {n: kinds.get(n) for n in given} == {n: kind for n, (kind, _) in given.items()}
