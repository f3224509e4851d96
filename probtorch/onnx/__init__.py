"""Networks as ONNX files, which other programs run and show: `export`.

A call of the module is watched, and each operation is written down as nodes of ONNX; convolution
layers are one node. `tracing.py` watches, `rules.py` has a rule per operation, `files.py` writes.
The package onnx is imported there, when something is exported.
"""

from probtorch.onnx.files import export

__all__ = ["export"]
