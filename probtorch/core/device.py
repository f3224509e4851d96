"""`device`: the name of a device as an object, which is a string as well."""

from __future__ import annotations

from probtorch.backends.registry import parse_device
from probtorch.core.signatures import explained
from probtorch.errors import DeviceError

__all__ = ["device", "device_named"]


class device(str):  # PyTorch's name
    """Where tensors are: ``device("cpu")``, ``device("cuda:1")``, ``device("cuda", 1)``.

    It equals its text, so that ``t.device == "cpu"`` may be written, and goes wherever a device is
    asked for as text does.

    Parameters
    ----------
    type : str, int or device
        "cpu", "cuda" or "cuda:N"; a number is that of a GPU.
    index : int, optional
        Number of the GPU, where `type` has none.

    Attributes
    ----------
    type : str
        "cpu" or "cuda".
    index : int or None
        None where none was said.

    Raises
    ------
    DeviceError
        If no device has such a name. Whether it can be used is seen when it is.
    """

    __slots__ = ("index", "type")

    type: str
    index: int | None  # type: ignore[assignment]  # not the method of str

    @explained("device")
    def __new__(cls, type: str | int = "cpu", index: int | None = None) -> device:
        text = f"cuda:{type}" if isinstance(type, int) else str(type)
        if index is not None:
            if ":" in text:
                raise DeviceError(
                    "device",
                    expected="the index once",
                    got=f"{text!r} and index={index}",
                    fix=f'write device("{text}")',
                )
            text = f"{text}:{index}"
        kind, number = parse_device(text)
        made = super().__new__(cls, text)
        made.type, made.index = kind, number
        return made

    def __getnewargs__(self) -> tuple[str]:
        return (str(self),)

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __repr__(self) -> str:
        index = "" if self.index is None else f", index={self.index}"
        return f"device(type={self.type!r}{index})"


_KNOWN: dict[str, device] = {}


def device_named(text: str) -> device:
    """Return the device of a name; for equal names the same."""
    found = _KNOWN.get(text)
    if found is None:
        found = _KNOWN[text] = device(text)
    return found
