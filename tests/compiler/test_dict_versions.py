"""Version tags of dicts: no change of keys, values or order goes unnoticed."""

import collections
import sys

import pytest

from probtorch.compiler.guards import dict_versions
from probtorch.compiler.guards.dict_versions import DictVersions
from probtorch.compiler.guards.environment import Environment
from probtorch.compiler.guards.walk import Entries


class Watched:
    """Dicts as compiled calls watch them: by tags where Python has these, else by contents."""

    def __init__(self, dicts):
        self.environment = Environment(dicts)
        assert self.same()  # from the second look on tags are compared

    def same(self):
        return self.environment.changed() is None


def test_tags_are_used_in_the_releases_that_are_known_to_have_them():
    known = sys.implementation.name == "cpython" and sys.version_info[:2] in ((3, 11), (3, 12))
    assert dict_versions.available() == known


class Thing:
    def __init__(self):
        self.a, self.b = 1.0, 2.0


turns = 0


def turn():
    global turns
    turns += 1


CHANGES = {
    "item set": lambda d: d.__setitem__("a", 9.0),
    "item added": lambda d: d.__setitem__("new", 9.0),
    "item deleted": lambda d: d.pop("a"),
    "update": lambda d: d.update(b=7.0),
    "cleared": lambda d: d.clear(),
    "popitem": lambda d: d.popitem(),
    "setdefault": lambda d: d.setdefault("new", 1.0),
    "or": lambda d: d.__ior__({"b": 0.0}),
    "order": lambda d: d.update(a=d.pop("a")),
}


@pytest.mark.parametrize("kind", [dict, lambda d: collections.defaultdict(None, d)])
@pytest.mark.parametrize("change", CHANGES)
def test_each_change_of_a_dict_shows(change, kind):
    others = [{i: i} for i in range(5)]
    d = kind({"a": 1.0, "b": 2.0})
    versions = Watched([*others, d])
    list(d.items()), d.get("a"), len(d), dict(d), "a" in d
    assert versions.same()
    CHANGES[change](d)
    assert not versions.same()


def test_changes_of_attributes_show_however_they_are_made():
    def by_statement(x):
        x.a = 3.0

    changes = [
        by_statement,
        lambda x: setattr(x, "a", 4.0),
        lambda x: object.__setattr__(x, "a", 5.0),
        lambda x: delattr(x, "a"),
        lambda x: vars(x).update(a=6.0),
    ]
    thing = Thing()
    for change in changes:
        versions = Watched([vars(thing)])
        assert versions.same()
        change(thing)
        assert not versions.same()


def test_a_statement_that_python_has_specialised_shows():
    things = [Thing() for _ in range(3)]
    versions = [Watched([vars(t)]) for t in things]

    def write(x, value):
        x.a = value

    for i in range(200):  # the interpreter rewrites the instruction after a few of them
        for k, thing in enumerate(things):
            assert versions[k].same()
            write(thing, float(i))
            assert not versions[k].same()
            versions[k] = Watched([vars(thing)])


def test_globals_that_functions_write_show():
    for _ in range(20):
        versions = Watched([globals()])
        assert versions.same()
        turn()
        assert not versions.same()


def test_no_dicts_never_change():
    assert DictVersions([]).same()


def test_a_change_that_leaves_all_as_it_was_is_none():
    options = {"a": 1.0, "b": [1, 2]}
    found = Environment([Entries({"options": options}, ("options",)), options])
    options["a"], options["new"] = 1.0, 3
    del options["new"]
    for _ in range(3):
        assert found.changed() is None
    options["a"] = 2.0
    assert found.changed() == "a"
