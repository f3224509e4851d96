"""What stands in for names of PyTorch that are not here: `advice`, for the error that says so.

The reasons are in docs/reference/differences.md.
"""

from __future__ import annotations

__all__ = ["advice"]

_INSTEAD = {
    "bfloat16": "there is no bfloat16: use float32, or float16 for less memory",
    "export": "onnx.export writes a network for other programs",
    "fx": "compile(fn).explain() shows the graph of a function",
    "hub": "nothing here reads from the network: load a state_dict with load(path)",
    "jit": "compile(fn) compiles functions and modules by recording them",
    "multiprocessing": "DataLoader(num_workers=), threads, or Python's multiprocessing with arrays",
    "nested": "there are no nested tensors: nn.utils.rnn pads sequences, or packs them",
    "quantization": "there are no quantised tensors",
    "sparse": "there are no sparse tensors: index_add and gather work on rows",
    "sparse_coo_tensor": "there are no sparse tensors: index_add and gather work on rows",
    "version": "__version__ is the version; cuda.is_available() says whether there is a GPU",
}


def advice(name: str) -> str:
    """Return what to use instead of a name, as the end of a message; "" if nothing is known."""
    return f": {_INSTEAD[name]}" if name in _INSTEAD else ""
