"""Places where users keep a float that changes, and how results of calls are compared."""

import argparse
import collections
import dataclasses

import numpy as np

import probtorch
from probtorch import tensor
from probtorch.core.tree import flatten

X = tensor(np.linspace(-1.0, 1.0, 6), dtype=probtorch.float32)


class Holder:
    """What a user keeps a number in."""

    def __init__(self):
        self.number = 0.1


def attribute(body):
    holder = Holder()
    return (lambda x: body(x, holder.number)), lambda v: setattr(holder, "number", v)


def entry(body):
    table = {"number": 0.1}
    return (lambda x: body(x, table["number"])), lambda v: table.update(number=v)


def variable(body):
    number = 0.1

    def change(v):
        nonlocal number
        number = v

    return (lambda x: body(x, number)), change


def global_one(body):
    global NUMBER
    NUMBER = 0.1

    def change(v):
        global NUMBER
        NUMBER = v

    return (lambda x: body(x, NUMBER)), change


class Slotted:
    """Attributes in slots."""

    __slots__ = ("_number", "other")

    def __init__(self):
        self._number, self.other = 0.1, "a"

    number = property(lambda self: self._number)


def slot(body):
    holder = Slotted()
    return (lambda x: body(x, holder.number)), lambda v: setattr(holder, "_number", v)


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    """What is set past its own refusal."""

    number: float = 0.1


def frozen_slot(body):
    holder = Frozen()
    return (lambda x: body(x, holder.number)), lambda v: object.__setattr__(holder, "number", v)


def class_attribute(body):
    class Config:
        number, other = 0.1, 2.0

    return (lambda x: body(x, Config().number)), lambda v: setattr(Config, "number", v)


def inherited(body):
    class Config:
        number = 0.1

    class Own(Config):
        other = [1.0]

    return (lambda x: body(x, Own.number) if Own.other else x), (
        lambda v: setattr(Config, "number", v)
    )


def item(body):
    numbers = [1.0, 0.1, "a", None]
    return (lambda x: body(x, numbers[1]) if numbers[2] else x), (
        lambda v: numbers.__setitem__(1, v)
    )


class AttrDict(dict):
    """A dict whose entries are attributes."""

    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


def attribute_of_a_dict(body):
    holder = AttrDict(number=0.1, other=AttrDict(deep=1))
    return (lambda x: body(x, holder.number)), lambda v: setattr(holder, "number", v)


def ordered_entry(body):
    table = collections.OrderedDict(other=1.0, number=0.1)
    table.move_to_end("other")
    return (lambda x: body(x, table["number"])), lambda v: table.update(number=v)


def namespace(body):
    holder = argparse.Namespace(number=0.1, name="a")
    return (lambda x: body(x, holder.number)), lambda v: setattr(holder, "number", v)


PLACES = [
    *(attribute, entry, variable, global_one, slot, frozen_slot, class_attribute, inherited, item),
    *(attribute_of_a_dict, ordered_entry, namespace),
]


# Of which some ask how large the number is.

VALUES = [0.1, 0.2, 0.3, 0.5, 0.4, 1.0, 0.7, 0.25]


def the_same(a, b):
    """Whether results are the same, but for rounding."""
    (a, of_a), (b, of_b) = flatten(a), flatten(b)
    if repr(of_a) != repr(of_b) or list(map(type, a)) != list(map(type, b)):
        return False
    return all(
        x.dtype == y.dtype and np.allclose(x.numpy(), y.numpy(), 1e-5, 1e-6, equal_nan=True)
        if isinstance(x, probtorch.Tensor)
        else repr(x) == repr(y)
        for x, y in zip(a, b, strict=True)
    )


def outcome(fn, *args):
    """The result, or the type of the error."""
    probtorch.manual_seed(0)
    try:
        with np.errstate(all="ignore"):
            return fn(*args)
    except Exception as error:
        return type(error).__name__
