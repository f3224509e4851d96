"""`Calls`: hears what the user's code calls while it is recorded.

A clock, a file, the environment, a random generator of another library: what they answer is frozen
in a recording, and nothing that could be watched tells that they would answer otherwise. So the
recording of a function that could reach one (`Environment.suspicious`) is listened to, by a profile
hook, and a call from the user's code into something that `kinds` does not know as pure makes the
function run eagerly. Calls that libraries make are theirs: a function is judged by its name.
"""

import sys
import types

import numpy as np

from probtorch.compiler.guards.code import asks_type
from probtorch.compiler.guards.kinds import impure, is_of_library
from probtorch.errors import user_location

__all__ = ["Calls"]


class Calls:
    """Context manager: the first call from the user's code into something that is not pure.

    Parameters
    ----------
    listening : bool
        Without it nothing is heard.
    unread : container of int
        Identities of what must not be gone through: what it counts cannot be watched.
    going : dict of int to (frame, generator)
        Generators that must not go on, by the ids of their frames.
    typed : bool
        Whether it matters that the user's code asks for types, as tensors stand in for floats.

    Attributes
    ----------
    found : (str, str) or None
        The name of what was called, and the user's line.
    asked_type : bool
        Whether code that may have asked for the type of a number was run, or nobody knows.

    Notes
    -----
    A profile hook of Python's that is at work already goes on to hear everything, as that of
    `probtorch.profiler` has to. Where a profiler of another kind is (cProfile on Python 3.11),
    nothing is heard.
    """

    def __init__(self, listening=True, unread=(), going=(), typed=False):
        self.listening, self._unread, self._typed = listening, unread, typed
        self._going = going
        self._judging = listening
        self.found, self.asked_type = None, False
        # Whose code a frame runs, by the identity of the code; the codes, so that they stay.
        self._users, self._codes = {}, []

    def __enter__(self):
        self._before = sys.getprofile()
        heard = self._before is None or callable(self._before)
        self.listening = heard and (self.listening or self._typed)
        self.asked_type = self._typed and not heard
        if self._going and not heard:
            self.found = "what a profiler hides, a generator that may go on", ""
        if self.listening:
            sys.setprofile(self._heard)
        return self

    def __exit__(self, *error):
        if self.listening:
            sys.setprofile(self._before)

    def _heard(self, frame, event, arg):
        if self._before is not None:
            self._before(frame, event, arg)
        if self._typed and event == "call" and self._is_users(frame):
            self.asked_type = self.asked_type or asks_type(frame.f_code)
        if not self._judging:
            return
        if self._going:
            self._watch_going(frame, event, arg)
        if event == "c_call":
            if self._is_users(frame):
                self._judge(_name_of(arg))
        elif event == "call" and not self._is_users(frame):
            caller = frame.f_back
            if caller is not None and self._is_users(caller):
                code = frame.f_code
                module = frame.f_globals.get("__name__") or ""
                self._judge(f"{module}.{code.co_qualname}")
                if self._unread and self.found is None and code.co_name == "__iter__":
                    for name in code.co_varnames[:1]:
                        if id(frame.f_locals.get(name)) in self._unread:
                            self.found = f"{module}.{code.co_qualname}", user_location(2)

    def _watch_going(self, frame, event, arg):
        """Note that a generator goes on, or is closed."""
        if event == "call" and id(frame) in self._going:
            x = self._going[id(frame)][1]
        elif event == "c_call" and type(getattr(arg, "__self__", None)) is types.GeneratorType:
            x = arg.__self__
            if id(x.gi_frame) not in self._going:
                return
        else:
            return
        if self.found is None:
            self.found = f"{x.__qualname__}, a generator", user_location(3)

    def _is_users(self, frame):
        code = frame.f_code
        known = self._users.get(id(code))
        if known is None:
            known = self._users[id(code)] = not is_of_library(code, frame.f_globals.get("__name__"))
            self._codes.append(code)
        return known

    def _judge(self, name):
        if self.found is None and impure(name):
            self.found = name, user_location(3)


def _name_of(fn):
    """The dotted name of a function written in C."""
    owner = getattr(fn, "__self__", None)
    name = getattr(fn, "__name__", "")
    if owner is None or isinstance(owner, types.ModuleType):
        module = getattr(fn, "__module__", None) or getattr(owner, "__name__", "builtins")
        return f"{module}.{name}"
    if isinstance(owner, np.ndarray):
        return f"numpy.ndarray.{name}"  # also of arrays in files: their elements are watched
    kind = owner if isinstance(owner, type) else type(owner)
    return f"{kind.__module__}.{kind.__qualname__}.{name}"
