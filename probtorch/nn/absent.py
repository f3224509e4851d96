"""What stands in for networks of PyTorch and Pyro that are not in `probtorch.nn`."""

from __future__ import annotations

__all__ = ["INSTEAD"]

_QUANTISED = "there are no quantised tensors"

INSTEAD = {
    "AutoRegressive": "AutoRegressiveNN",
    "DistributedDataParallel": "SVI(..., distributed=True), or distributed.all_reduce of gradients",
    "QuantStub": _QUANTISED,
    "DeQuantStub": _QUANTISED,
    "module_": "effects.module makes the weights of a module parameters of a model",
    "qat": _QUANTISED,
    "quantized": _QUANTISED,
    "intrinsic": _QUANTISED,
}
