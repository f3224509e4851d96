"""What training scripts need around a model.

`data` feeds it, `dlpack` hands memory to others, `memory` says which tensors are alive, and
`tensorboard` logs what happens.
"""

from probtorch.utils import data, dlpack, memory, tensorboard

__all__ = ["data", "dlpack", "memory", "tensorboard"]
