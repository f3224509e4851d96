"""The safetensors format, through its package; the only file that imports it.

A flat dict from names to tensors, as a module's `state_dict` is, to exchange with PyTorch, JAX and
others. Shared memory, nesting and numbers are not part of that format.
"""

from __future__ import annotations

import os
from importlib import import_module
from types import ModuleType
from typing import IO

import numpy as np

from probtorch.backends.registry import to_host
from probtorch.core.tensor_base import TensorBase
from probtorch.core.typed import Tree
from probtorch.errors import DTypeError, FileError
from probtorch.serialization.files import reading

__all__ = ["SUFFIX", "load", "save"]

SUFFIX = ".safetensors"


def save(tree: Tree, stream: IO[bytes]) -> None:
    """Write a dict of tensors or arrays by name.

    Raises
    ------
    DTypeError
        If `tree` is anything else.
    FileError
        If the package is missing.
    """
    package = _package()
    flat = hasattr(tree, "items") and all(
        isinstance(name, str) and isinstance(x, (TensorBase, np.ndarray))
        for name, x in tree.items()
    )
    if not flat:
        raise DTypeError(
            "save to a .safetensors file",
            expected="a dict from names to tensors or arrays",
            got=f"a {type(tree).__name__}"
            + (" with other things in it" if hasattr(tree, "items") else ""),
            fix="save a state_dict(), or choose another suffix: probtorch's own format holds "
            "whole trees",
        )
    arrays = {
        name: np.ascontiguousarray(to_host(x.array if isinstance(x, TensorBase) else x))
        for name, x in tree.items()
    }
    # ascontiguousarray gives what has no dims one.
    shaped = {name: array.reshape(tree[name].shape) for name, array in arrays.items()}
    stream.write(package.save(shaped))


def load(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Return the arrays of a file by name.

    Raises
    ------
    FileError
        If it is none, or holds a dtype that NumPy lacks.
    """
    package = _package()
    with reading(path):
        pass  # the package's message of a missing file does not name it
    try:
        return package.load_file(path)
    except Exception as error:  # SafetensorError, and KeyError or TypeError for foreign dtypes
        raise FileError(
            f"loading {os.fspath(path)}",
            expected="a safetensors file of numbers that NumPy has (no bfloat16, no float8)",
            got=f"{type(error).__name__}: {error}",
            fix="copy it again from where it came from, or convert it to float32 when saving",
        ) from error


def _package() -> ModuleType:
    try:
        return import_module("safetensors.numpy")
    except ModuleNotFoundError:
        raise FileError(
            f"a {SUFFIX} file",
            expected="the package safetensors",
            got="an environment without it",
            fix="pip install 'probtorch[safetensors]', or use another suffix for probtorch's own "
            "format",
        ) from None
