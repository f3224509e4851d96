"""What travels to a worker: models, kernels and their data, packed once and unpacked once a worker.

Everything goes by cloudpickle where it is installed (the one place that imports it), so that models
which are closures, or were written in a notebook, travel too; by pickle otherwise. A worker keeps
the parcels that it opened last, and what was compiled for them.
"""

from __future__ import annotations

import hashlib
import pickle
import threading
from collections import OrderedDict
from dataclasses import dataclass, replace

from probtorch.errors import ArgumentError, InferenceError

try:
    import cloudpickle
except ImportError:
    cloudpickle = None

__all__ = ["Parcel", "pack", "unpack"]

# Parcels that a worker keeps open: one for each model that it is asked for in turns.
KEPT = 4

_opened: OrderedDict[str, object] = OrderedDict()
_lock = threading.Lock()


@dataclass(frozen=True)
class Parcel:
    """Something packed.

    Attributes
    ----------
    digest : str
        By which a worker knows what it has.
    data : bytes or None
        None where the worker is believed to have it.
    """

    digest: str
    data: bytes | None

    def without_data(self) -> Parcel:
        """Return what names the parcel."""
        return replace(self, data=None)


def pack(content: object, what: str) -> Parcel:
    """Pack something for workers.

    Parameters
    ----------
    content : object
    what : str
        For the message: "the model and its data".

    Raises
    ------
    ArgumentError
        If it cannot travel.
    """
    try:
        data = (cloudpickle or pickle).dumps(content, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # picklers raise whatever the object's own methods raise
        fix = (
            "make what cannot travel (locks, open files, connections, generators) inside the "
            "model, or pass data as arrays"
            if cloudpickle
            else "pip install 'probtorch[parallel]': cloudpickle takes closures and lambdas, too; "
            "or put the model into a module that workers can import"
        )
        raise ArgumentError(
            "executor=...",
            expected=f"{what} that can be sent to a worker",
            got=f"{type(error).__name__}: {error}",
            fix=fix,
        ) from error
    return Parcel(hashlib.sha256(data).hexdigest(), data)


def unpack(parcel: Parcel) -> object:
    """Return what is in a parcel, the same object each time as long as it is kept.

    Raises
    ------
    KeyError
        If the data were left out, and are not here.
    InferenceError
        If this process lacks what is needed to open it.
    """
    with _lock:
        if parcel.digest in _opened:
            _opened.move_to_end(parcel.digest)
            return _opened[parcel.digest]
        if parcel.data is None:
            raise KeyError(parcel.digest)
        try:
            content = pickle.loads(parcel.data)  # noqa: S301 - packed by who started this task
        except Exception as error:
            raise InferenceError(
                "executor=...",
                expected="a worker that has the modules which the model is made of",
                got=f"{type(error).__name__}: {error}",
                fix="install them where workers run, in the same releases; functions of the main "
                "script travel whole (with cloudpickle), those of modules by their names",
            ) from error
        _opened[parcel.digest] = content
        while len(_opened) > KEPT:
            _opened.popitem(last=False)
        return content
