"""Saving and loading: `save` and `load` (saving.py), the one door to files of our own format.

`tree.py` turns trees of plain data into a header (`objects.py` what modules consist of), `blobs.py`
arrays into stretches of bytes, `container.py` both into a file with checksums, and `files.py` puts
that in place atomically.
`safetensors_.py` is the way to other libraries and back, `torch_.py` reads PyTorch's own files; the
pickle in those is read as data by `plain_pickle.py`, and nowhere is one run. Files hold plain
tensors and those of types that are registered in core/leaf_types.py.
"""

from probtorch.nn import parameter as _parameter  # noqa: F401  registers its types
from probtorch.serialization.objects import (
    add_safe_globals,
    clear_safe_globals,
    get_safe_globals,
    safe_globals,
)
from probtorch.serialization.saving import load, save

__all__ = [
    "add_safe_globals",
    "clear_safe_globals",
    "get_safe_globals",
    "load",
    "safe_globals",
    "save",
]
