"""What makes two calls versions of one another: all that Python could ask of their arguments."""

import numpy as np

from probtorch.backends.registry import device_of
from probtorch.core.sameness import token
from probtorch.core.tensor_base import is_tensor

__all__ = [
    "FIXED",
    "NUMBERS",
    "OBJECTS",
    "as_given",
    "hand_over",
    "shapes_apart",
    "same_ones",
    "stand_ins",
    "too_many",
    "version_of",
    "what_is_alike",
]

# What there are too many of where numbers keep changing.
NUMBERS, OBJECTS = "values of numbers", "other objects"
# Types of arguments that are numbers or texts, and no objects.
FIXED = (bool, int, float, complex, str, bytes, type(None))


def version_of(x):
    """Return what an argument means for the choice of a version."""
    if is_tensor(x):
        on_tape = (1 if x.grad_fn is None else 2) if x.requires_grad else 0
        found = x.array.shape, x.array.dtype, device_of(x.array), type(x), on_tape
        # Attributes of a user's class, which no stand-in has: there is no such version.
        own = getattr(x, "__dict__", None)
        return (*found, own) if own else found
    return token(x)


def same_ones(tensors):
    """Return which tensors are the same one, None where none are."""
    if len(set(map(id, tensors))) == len(tensors):
        return None
    first = {id(t): i for i, t in reversed(list(enumerate(tensors)))}
    return tuple(first[id(t)] for t in tensors)


def stand_ins(tensors, known, environment):
    """Return tensors in whose place others may come: all that Python can ask of them is the same,
    except who they are. Those that are `known` by their ids stay themselves, and so do those that
    nothing holds outside of the arguments, so that whatever the function does with them it does to
    the caller's own.
    """
    outside = environment.tensors()
    made = {
        id(t): t for t in tensors if id(t) in known or (id(t) not in outside and _has_no_history(t))
    }
    for t in tensors:
        if id(t) not in made:
            made[id(t)] = s = object.__new__(type(t))
            s.array, s.requires_grad, s.grad_fn, s._grad = t.array, t.requires_grad, None, None
            s._base, s._version, s._index, s._extra = None, 0, 0, {"stands_for": t}
            if hasattr(t, "persistent"):
                s.persistent = t.persistent
    return [made[id(t)] for t in tensors]


def as_given(items, leaves):
    """Return items with the caller's array in the place of a tensor that shows it, an array in
    that of one with other numbers, and a float where the caller has one.
    """
    found = []
    for x, given in zip(items, leaves, strict=True):
        if is_tensor(x) and issubclass(type(given), np.ndarray):
            x = x.array if x.array.flags.writeable else given
        elif is_tensor(x) and type(given) is float:
            x = float(x.array)
        found.append(x)
    return found


def _has_no_history(t):
    """Whether a stand-in would be no other than the tensor."""
    return t.grad_fn is None and t._base is None and not t.requires_grad


def hand_over(given, tensors):
    """Let arguments be asked for gradients where those in their place were, and have what came."""
    for s, t in zip(given, tensors, strict=True):
        if s.requires_grad is not t.requires_grad:
            t.requires_grad = s.requires_grad
            if s._grad is not None:
                t._grad = s._grad


def what_is_alike(key):
    """What a version's key has in common with those that differ in numbers or objects only, or in
    who they are.
    """
    kinds = tuple(v if _of_tensor(v) else v[0] for v in key[1])
    return (key[0], kinds, *key[2:-1])


def shapes_apart(key):
    """Return what a version's key has in common with those that differ in shapes only, or in who
    its tensors are; and the shapes.
    """
    shapes = tuple(v[0] if _of_tensor(v) else None for v in key[1])
    kinds = tuple(v[1:] if _of_tensor(v) else v for v in key[1])
    return (key[0], kinds, *key[2:-1]), shapes


def _of_tensor(v):
    return isinstance(v[0], tuple)


def too_many(most, alike, key):
    """Return what to say of more than `most` versions that are alike, of which this is one."""
    what = NUMBERS
    if any(isinstance(k, type) and k not in FIXED for k in alike[1]):
        what = OBJECTS
    if key[-1] is not None:
        what = "tensors, which it finds outside too,"
    return f"more than {most} {what} among the arguments: pass what changes as a tensor"
