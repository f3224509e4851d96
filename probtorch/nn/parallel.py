"""`DataParallel`: PyTorch's wrapper around a module, on the one device that there is."""

from __future__ import annotations

from collections.abc import Sequence

from probtorch.core.typed import Tree
from probtorch.nn.arguments import whole
from probtorch.nn.module import Module

__all__ = ["DataParallel", "data_parallel"]

# Numbers or names of devices.
Devices = Sequence[int | str] | None


class DataParallel(Module):
    """Pass calls on to `module`, as PyTorch does on one device.

    Scripts that wrap their network, and states that were saved from such a wrapper (whose names
    begin with ``module.``), work as they are. The batch is not split: one device computes it.

    Parameters
    ----------
    module : Module
        Kept under this name.
    device_ids, output_device, dim
        Of PyTorch; they change nothing here.
    """

    def __init__(
        self,
        module: Module,
        device_ids: Devices = None,
        output_device: int | str | None = None,
        dim: int = 0,
    ) -> None:
        super().__init__()
        whole("DataParallel", -(1 << 31), dim=dim)
        self.module = module
        self.device_ids = [] if device_ids is None else list(device_ids)
        self.output_device, self.dim = output_device, dim

    def forward(self, *inputs: Tree, **kwargs: Tree) -> Tree:
        """Return what the wrapped module returns."""
        return self.module(*inputs, **kwargs)


def data_parallel(
    module: Module,
    inputs: Tree,
    device_ids: Devices = None,
    output_device: int | str | None = None,
    dim: int = 0,
    module_kwargs: dict[str, Tree] | None = None,
) -> Tree:
    """Call a module, as `DataParallel` does; `inputs` is a tuple of arguments, or the only one."""
    given = inputs if isinstance(inputs, tuple) else (inputs,)
    return module(*given, **(module_kwargs or {}))
