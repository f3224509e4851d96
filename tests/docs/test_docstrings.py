"""The examples in docstrings give what they show."""

import doctest
import importlib
import pkgutil

import pytest

import probtorch


def _modules_with_examples():
    found = []
    for info in pkgutil.walk_packages(probtorch.__path__, "probtorch."):
        if info.name == "probtorch.legacy":
            continue  # which cannot be imported, on purpose
        module = importlib.import_module(info.name)
        if any(test.examples for test in doctest.DocTestFinder().find(module)):
            found.append(info.name)
    return found


@pytest.mark.parametrize("name", _modules_with_examples())
def test_examples_of_a_module_give_what_they_show(name):
    module = importlib.import_module(name)
    failed, tried = doctest.testmod(
        module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    )
    assert tried
    assert not failed
